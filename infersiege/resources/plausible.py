"""Which values a field of a GPU or an engine can have: one that no hardware and no engine can have is missing."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import Final

from infersiege_agents.measurements import MEASUREMENTS

ROUNDING: Final = 0.01
"""A share may come out above 1 or below 0 by so much, as counters are read one after the other. It is then 1 or 0."""

GREATEST: Final = {
    "ratio": 1.0,
    "W": 1e5,  # a card of today draws 1 kW
    "J": 1e9,  # 10 kW for a day
    "bytes": 1e15,
    "MHz": 1e5,
    "ms": 1e9,  # 11 days
    "s": 86_400.0,
    "GPUs": 1e5,
    "requests": 1e9,
    "tokens": 1e12,
    "values": 1e12,
    "events": 1e9,
    "": 4_294_967_296.0,  # codes and flags
}
"""Unit -> greatest value; the least is 0. Wide: only what can't be is left out."""

Bounds = tuple[float, float]


def bounds_of(measurement: str, name: str) -> Bounds:
    """(least, greatest) that a field may have before it is missing."""
    column = MEASUREMENTS[measurement].fields.get(name)
    unit = "" if column is None else column.unit
    slack = ROUNDING if unit == "ratio" else 0.0
    return -slack, GREATEST.get(unit, inf) + slack


def believed(value: float, bounds: Bounds) -> float:
    """The value; NaN when it is out of bounds. Shares within ROUNDING of their range are put into it."""
    if isnan(value) or not bounds[0] <= value <= bounds[1]:
        return nan
    if bounds[0] < 0.0:
        return min(max(value, 0.0), bounds[1] + bounds[0])
    return value
