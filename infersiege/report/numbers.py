"""How figures are written for people: the same in the terminal and in HTML. Absent is `–`, never 0."""

from __future__ import annotations

from datetime import UTC, datetime

ABSENT = "–"
"""Stands where there is no figure. Next to it somewhere is why."""

SECOND_NS = 1_000_000_000

_IN_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def number(value: float | None) -> str:
    """Three significant digits, whole above 100, thousands by comma: `12,345`, `99.4`, `3.07`, `0.0312`."""
    if value is None:
        return ABSENT
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return "0" if value == 0 else f"{value:.3g}" if size >= 1e-4 else f"{value:.1e}"


def count(value: int | None) -> str:
    """A whole number, exact."""
    return ABSENT if value is None else f"{value:,}"


def share(ratio: float | None) -> str:
    """A ratio as percent. What is not 0 is never written as 0 %, what is not all never as 100 %."""
    if ratio is None:
        return ABSENT
    percent = 100 * ratio
    if ratio != 0 and abs(percent) < 0.01:
        return "<0.01 %"
    if 99.95 <= percent < 100:
        return ">99.9 %"
    return f"{percent:.2f} %" if 0 < percent < 1 else f"{percent:.1f} %"


def milliseconds(value: float | None, unit: str) -> float | None:
    """A duration in any unit as ms. Raises KeyError when the unit is no duration's."""
    return None if value is None else value * _IN_MS[unit]


def is_duration(unit: str) -> bool:
    return unit in _IN_MS


def figure(value: float | None, unit: str) -> str:
    """A value with its unit, as in a rule: `812 ms`, `1.2 %`, `43.1 turns/s`."""
    if value is None:
        return ABSENT
    if is_duration(unit):
        ms = value * _IN_MS[unit]
        return f"{number(ms)} ms" if ms < 10_000 else f"{number(ms / 1000)} s"
    if unit in ("ratio", "share", "%"):
        return share(value)
    if unit in ("turns", "tokens") and value == int(value):
        return f"{int(value):,} {unit}"
    return f"{number(value)} {unit}".rstrip()


def span(duration_ns: int | None) -> str:
    """A length of time: `0.8 s`, `42 s`, `4 min 30 s`, `2 h 05 min`."""
    if duration_ns is None:
        return ABSENT
    seconds = duration_ns / SECOND_NS
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def moment(at_ns: int | None) -> str:
    """An instant in UTC: `2026-11-30 14:02:11 UTC`."""
    if at_ns is None:
        return ABSENT
    return datetime.fromtimestamp(at_ns // SECOND_NS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def printable(text: str) -> str:
    """`text` on one line and without control characters: a server's error text must not drive a terminal."""
    return "".join(character if character.isprintable() else " " for character in text).strip()
