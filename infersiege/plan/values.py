"""How single values of a plan are written: durations, shares, limits with their unit. Text in, numbers out."""

from __future__ import annotations

import math
import re
from decimal import Decimal

UNIT_NS: dict[str, int] = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
"""Units of a duration, in ns."""

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ns|us|µs|ms|s|m|h)\s*")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LARGEST_NS = 366 * 24 * UNIT_NS["h"]
_SHOWN = 40
_WRITTEN = 100
"""Characters of the longest duration that is looked at; a digit more is no precision."""


def parse_duration(text: str) -> int:
    """Nanoseconds of `5m`, `800ms`, `1h30m`, `1.5s`.

    Raises ValueError (with a message for the user) on anything else, on parts that do not go from large to small
    (`30s5m` is more likely a slip than a wish), and on more than a year.
    """
    total = Decimal(0)
    at = 0
    before: int | None = None
    text = text.strip()
    if len(text) > _WRITTEN:
        raise ValueError(_no_duration(text))
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(_no_duration(text))
        unit_ns = UNIT_NS[part[2]]
        if before is not None and unit_ns >= before:
            raise ValueError(f"units of {text!r} must go from large to small, each once")
        total += Decimal(part[1]) * unit_ns
        before = unit_ns
        at = part.end()
    if before is None:
        raise ValueError(_no_duration(text))
    if total > _LARGEST_NS:
        raise ValueError(f"{text!r} is more than a year")
    if total != int(total):
        raise ValueError(f"{text!r} is not a whole number of nanoseconds")
    return int(total)


def _no_duration(text: str) -> str:
    text = shortened(text)
    if _NUMBER.fullmatch(text):
        return f'{text!r} has no unit; write "{text}s" or "{text}ms"'
    return f'{text!r} is no duration; write it like "5m", "800ms" or "1h30m"'


def format_duration(duration_ns: int) -> str:
    """The shortest exact form that `parse_duration` reads: 5400000000000 -> `1h30m`."""
    if duration_ns == 0:
        return "0s"
    parts = []
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        count, duration_ns = divmod(duration_ns, UNIT_NS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_limit(value: object, unit: str) -> float:
    """A limit of an SLO in its metric's own unit, which `unit` names (`ms`, `ratio`, `tokens/s` …).

    Durations need their unit (`"800ms"`), ratios are `"1%"` or a number from 0 to 1, everything else is a number.
    Raises ValueError with a message for the user.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{kind_of(value)} where a limit is needed")
    if unit in UNIT_NS:
        return _duration_limit(value, unit)
    if unit == "ratio":
        return _ratio_limit(value)
    if isinstance(value, str):
        bare = value.removesuffix(unit).strip()
        if not _NUMBER.fullmatch(bare):
            raise ValueError(f"{shortened(value)!r} does not fit the metric's unit ({unit}); write a number")
        value = float(bare)
    return float(finite(value))


def finite(value: float) -> float:
    """The number itself. Raises ValueError for NaN, infinities and what no float can hold."""
    try:
        if math.isfinite(value):
            return value
    except OverflowError:
        raise ValueError(f"{shortened(str(value))} is too large") from None
    raise ValueError(f"{value} is not a finite number")


def shortened(text: str) -> str:
    """At most 40 characters of what was written, for messages."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _duration_limit(value: float | str, unit: str) -> float:
    if not isinstance(value, str):
        shown = shortened(str(finite(value)))
        raise ValueError(f'{shown} has no unit; write "{shown}ms" or "{shown}s"')
    if _PERCENT.fullmatch(value.strip()):
        raise ValueError(f'{value!r} is a share, but the metric is a time; write it like "800ms"')
    return parse_duration(value) / UNIT_NS[unit]


def _ratio_limit(value: float | str) -> float:
    if isinstance(value, str):
        share = _PERCENT.fullmatch(value.strip())
        if share is None:
            raise ValueError(f'{shortened(value)!r} is no share; write "1%" or 0.01')
        value = float(Decimal(share[1]) / 100)
    if not 0 <= finite(value) <= 1:
        raise ValueError(f'{shortened(str(value))} is not between 0 and 1; write "1%" or 0.01')
    return float(value)


def kind_of(value: object) -> str:
    """The TOML name of a value's type, with its article, for messages."""
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a string", list: "an array", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")
