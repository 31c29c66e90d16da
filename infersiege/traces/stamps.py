"""Times of rows: numbers of one unit, or ISO dates."""

from __future__ import annotations

from typing import Any

from infersiege.errors import TraceError
from infersiege.traces.azure import stamp_ns
from infersiege.traces.values import want_number

UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

_FARTHEST_NS = 9 * 10**18
"""From the epoch, either way (the year 2255): more does not fit the index of a trace."""


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
            except ValueError:
                raise TraceError(
                    f"{place}: {key} is a string of {len(value)} characters that is no date",
                    hint="a date is like 2026-01-31T12:00:00.5Z; without an offset it is UTC",
                ) from None
        number = want_number(row, key, place)
        unit = self._unit or _unit_of_date(number)
        if unit is None:
            raise TraceError(f"{place}: {key} is {number:g}, which is no date in s, ms, us or ns")
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
    if abs(at_ns) > _FARTHEST_NS:
        raise TraceError(f"{place}: {key} is {at_ns / (366 * 86_400e9):.0f} years from 1970", hint="check its unit")
    return at_ns
