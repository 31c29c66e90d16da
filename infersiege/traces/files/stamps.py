"""Times of rows: numbers of one unit, or ISO dates. Messages say the kind of what is no time, never the value."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from infersiege.errors import TraceError
from infersiege.traces.files.values import want_number
from infersiege.traces.trace import check_span

UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

FARTHEST_NS = 9 * 10**18
"""From the epoch, either way (the year 2255): more does not fit the index of a trace."""

DATE_HINT = "a date is like 2026-01-31T12:00:00.5Z; without an offset it is UTC"

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stamp_ns(text: str) -> int:
    """Nanoseconds since the epoch of `2023-11-16 18:15:46.6805900` (0 to 9 digits; UTC unless it has an offset).

    strptime refuses the seven digits, fromisoformat cuts the seventh. Raises ValueError, without the text.
    """
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a string of {len(text)} characters that is no date")
    moment_text, fraction, zone = match.groups()
    try:
        since = datetime.fromisoformat(moment_text + (zone or "+00:00")) - _EPOCH
    except (ValueError, OverflowError):
        raise ValueError("no date of the calendar") from None
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def date_ns(value: object, what: str, place: str) -> int:
    """ns since the epoch of an ISO date and time, within a century of it. Raises TraceError."""
    if not isinstance(value, str):
        raise TraceError(f"{place}: {what} is no string, a date and time is wanted", hint=DATE_HINT)
    try:
        at_ns = stamp_ns(value)
    except ValueError as error:
        raise TraceError(f"{place}: {what} is {error}", hint=DATE_HINT) from None
    check_span(place, abs(at_ns), f"{what}, counted from 1970,")
    return at_ns


class Stamps:
    """Stamps of one file -> ns on its own clock (any zero; dates from the Unix epoch)."""

    def __init__(self, unit: str | None) -> None:
        """`unit`: of numbers; None: they are dates of our time, whose size tells the unit."""
        self._unit = unit
        self._checked = False

    def ns(self, row: dict[str, Any], key: str, place: str) -> int:
        """Raises TraceError for what is no time, and (TR-03) for a first date of our time in another unit."""
        value = row.get(key)
        if isinstance(value, str):
            try:
                return _bounded(stamp_ns(value), key, place)
            except ValueError as error:
                raise TraceError(f"{place}: {key} is {error}", hint=DATE_HINT) from None
        number = want_number(row, key, place)
        unit = self._unit or _unit_of_date(number)
        if unit is None:
            raise TraceError(f"{place}: {key} is {number:g}, which is no date in s, ms, us or ns", hint=DATE_HINT)
        if not self._checked:
            self._checked = True
            other = _unit_of_date(number)
            if other is not None and other != unit:
                raise TraceError(
                    f"{place}: {key} {number:g} is a date of our time in {other}, but is read in {unit}",
                    hint=f'set options.unit = "{other}"',
                )
        # Whole units apart: a date in ns has more digits than a float.
        whole, part = divmod(number, 1)
        return _bounded(int(whole) * UNITS_NS[unit] + round(part * UNITS_NS[unit]), key, place)


def _unit_of_date(number: float | int) -> str | None:
    """The unit in which it is a date from 2001 to 2286; no number is one in two of them."""
    return next((unit for unit, ns in UNITS_NS.items() if 10**18 // ns <= number < 10**19 // ns), None)


def _bounded(at_ns: int, key: str, place: str) -> int:
    if abs(at_ns) > FARTHEST_NS:
        raise TraceError(f"{place}: {key} is {at_ns / (366 * 86_400e9):.0f} years from 1970", hint="check its unit")
    return at_ns
