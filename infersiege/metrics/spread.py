"""Durations of single turns by the second in which they stand: kept as numbers, made histograms when somebody asks.

Hardly two turns of a second are in the same bucket, so that a dict for each second would be most of a report's memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from infersiege.metrics.batch import Ints

_BUCKET_BITS: Final = 13
"""More buckets than a histogram of int64 has."""
_NAME_BITS: Final = 4


class Spread:
    """Values of several names by place: places are any whole numbers, such as a second of a series."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of what is counted, at most 16."""
        self._names = tuple(names)
        self._rows: dict[int, int] = {}
        """Place -> its row, from 0."""
        self._values: array[int] = array("q")
        """Of each value: row, name and bucket in one number."""

    def add(self, name: str, places: Sequence[int], of: Ints, buckets: Ints) -> None:
        """Add a value for each of `buckets`, which stands in `places[of]`."""
        rows = self._numbered(places)
        values = (rows[of] << _NAME_BITS | self._names.index(name)) << _BUCKET_BITS | buckets
        self._values.frombytes(values.tobytes())

    def merge(self, other: Spread, places: Sequence[int]) -> None:
        """Add the values of `other`, of the same names. `places`: what each of `other.places` is here."""
        rows = self._numbered(places)
        if other._values:
            values, below = np.frombuffer(other._values, dtype=np.int64), _NAME_BITS + _BUCKET_BITS
            moved = rows[values >> below] << below | values & ((1 << below) - 1)
            self._values.frombytes(moved.tobytes())

    @property
    def places(self) -> tuple[int, ...]:
        """All that have a value, in the order in which they came."""
        return tuple(self._rows)

    def take(self) -> Iterator[tuple[int, str, dict[int, int]]]:
        """(place, name, bucket -> count by rising bucket) of what has values; nothing is left here."""
        places, values = self.places, np.array(self._values, dtype=np.int64)
        self._rows, self._values = {}, array("q")
        if not values.size:
            return
        values.sort()
        starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
        counts = np.diff(np.append(starts, values.size))
        values = values[starts]
        of = values >> _BUCKET_BITS
        firsts = np.flatnonzero(np.concatenate(([True], of[1:] != of[:-1])))
        owners = of[firsts].tolist()
        # One object for each bucket, however many dicts have it as a key.
        buckets = np.arange(1 << _BUCKET_BITS).astype(object)[values & ((1 << _BUCKET_BITS) - 1)]
        for owner, (first, end) in zip(owners, pairwise([*firsts.tolist(), values.size]), strict=True):
            found = dict(zip(buckets[first:end].tolist(), counts[first:end].tolist(), strict=True))
            yield places[owner >> _NAME_BITS], self._names[owner & ((1 << _NAME_BITS) - 1)], found

    def _numbered(self, places: Sequence[int]) -> Ints:
        rows = self._rows
        return np.array([rows.setdefault(place, len(rows)) for place in places], dtype=np.int64)
