"""What Grafana makes of a query before InfluxDB sees it, for tests and for `preview.py`.

Grafana's own order: the browser replaces variables (`${run:regex}`, `${__from}`), then its InfluxDB backend replaces
`$timeFilter`, `$__interval_ms` and `$__interval` as plain text. Here only what the dashboards use is known; what else
still looks like a variable afterwards is an error, since Grafana would send it to InfluxDB as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ALL = "$__all"
VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}")
LEFT_OVER = re.compile(r"\$(?:\{\w+|__\w+|timeFilter|interval)|\[\[")

Value = str | Sequence[str]


@dataclass(frozen=True)
class View:
    """The time range and the chosen values of one look at a dashboard."""

    from_ms: int
    to_ms: int
    interval_ms: int
    """Grafana makes it from the range and the width of the panel; never below a panel's min interval."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """Variable -> value; several values, or ALL."""
    all_values: Mapping[str, str] = field(default_factory=dict)
    """Variable -> what ALL stands for; Grafana does not escape it."""


def expand(query: str, view: View) -> str:
    """The InfluxQL that Grafana sends. Raises ValueError for a variable that nothing replaces."""
    text = VARIABLE.sub(lambda found: _value(found[1], found[2], view), query)
    text = text.replace("$timeFilter", f"time >= {view.from_ms}ms and time <= {view.to_ms}ms")
    text = text.replace("$__interval_ms", str(view.interval_ms)).replace("$__interval", duration(view.interval_ms))
    left = LEFT_OVER.search(text)
    if left:
        raise ValueError(f"nothing replaces {left[0]} in {query}")
    return text


def duration(ms: int) -> str:
    """As Grafana writes an interval: 1s, 20s, 1m, 250ms."""
    for unit, length in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms >= length and ms % length == 0:
            return f"{ms // length}{unit}"
    return f"{ms}ms"


def escape(value: str) -> str:
    """Grafana's escapeRegex (`:regex` of one value)."""
    return re.sub(r"[\\^$*+?.()|\[\]{}/]", r"\\\g<0>", value)


def _value(name: str, form: str | None, view: View) -> str:
    if name == "__from":
        return str(view.from_ms)
    if name == "__to":
        return str(view.to_ms)
    if name not in view.values:
        raise ValueError(f"${{{name}}}: the dashboard has no such variable")
    chosen = view.values[name]
    if form == "raw" and isinstance(chosen, str) and re.fullmatch(r"\d*", chosen):
        return chosen
    if form != "regex":
        raise ValueError(f"${{{name}}}: write ${{{name}:regex}}, or quotes in a value break the query")
    if chosen == ALL or (not isinstance(chosen, str) and list(chosen) == [ALL]):
        return view.all_values[name]
    if isinstance(chosen, str):
        return escape(chosen)
    escaped = [escape(value) for value in chosen]
    return escaped[0] if len(escaped) == 1 else "(" + "|".join(escaped) + ")"
