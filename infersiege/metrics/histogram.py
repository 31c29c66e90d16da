"""A mergeable histogram of whole nanoseconds: exact below 256, 128 buckets per power of two above.

The layout is HdrHistogram's with 7 significant bits: a bucket is at most 1/128 (0.8 %) of its value wide and is read
as its middle, so a percentile is off by at most 0.4 %. Two histograms with the same values are the same whatever the
order and the split, since merging adds integers only.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

EXACT_BELOW = 256
"""Smaller values have a bucket of their own."""


def bucket_of(ns: int) -> int:
    """Index of the bucket that holds `ns`, for 0 <= ns. Raises ValueError on a negative value."""
    if ns < EXACT_BELOW:
        if ns < 0:
            raise ValueError(f"a histogram holds durations, not {ns} ns")
        return ns
    exponent = ns.bit_length() - 8
    return exponent * 128 + (ns >> exponent)


def buckets_of(ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`bucket_of` for an array of int64, same shape. Raises ValueError if one value is negative."""
    values = np.asarray(ns, dtype=np.int64)
    if values.size and int(values.min()) < 0:
        raise ValueError(f"a histogram holds durations, not {int(values.min())} ns")
    # frexp gives the bit length, but it rounds to 53 bits: 2**60 - 1 would come out one bit too long. Taking the bit
    # length of the upper half where there is one keeps it exact.
    upper = values >> 32
    half = np.where(upper > 0, upper, values)
    bits = np.frexp(half.astype(np.float64))[1].astype(np.int64) + np.where(upper > 0, 32, 0)
    exponent = np.maximum(bits - 8, 0)
    indexes: npt.NDArray[np.int64] = exponent * 128 + (values >> exponent)
    return indexes


def bucket_bounds(index: int) -> tuple[int, int]:
    """(low, high) of a bucket in ns: it holds low <= value < high."""
    if index < 0:
        raise ValueError(f"no bucket has the index {index}")
    if index < EXACT_BELOW:
        return index, index + 1
    exponent = index // 128 - 1
    low = (index - exponent * 128) << exponent
    return low, low + (1 << exponent)


def bucket_value(index: int) -> int:
    """The value in ns that stands for a bucket: its middle (the value itself below 256)."""
    low, high = bucket_bounds(index)
    return (low + high - 1) // 2


class Histogram:
    """Counts by bucket, with exact minimum, maximum, sum and number of the values that were added.

    Minimum and maximum are None while it is empty, so an empty histogram is neutral in a merge.
    """

    __slots__ = ("counts", "max", "min", "n", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        """Bucket index -> count; no zero counts."""
        self.n: int = 0
        self.total: int = 0
        """Sum of the values in ns."""
        self.min: int | None = None
        self.max: int | None = None

    @classmethod
    def from_sparse(cls, counts: Mapping[int, int]) -> Histogram:
        """From bucket counts alone: minimum, maximum and sum are then those of the buckets' middles (0.4 %)."""
        made = cls()
        made.counts = {index: count for index, count in counts.items() if count > 0}
        if made.counts:
            made.n = sum(made.counts.values())
            made.total = sum(bucket_value(index) * count for index, count in made.counts.items())
            made.min = bucket_value(min(made.counts))
            made.max = bucket_value(max(made.counts))
        return made

    @classmethod
    def merged(cls, parts: Iterable[Histogram]) -> Histogram:
        """A new histogram of all parts; none of them changes."""
        made = cls()
        for part in parts:
            made.merge(part)
        return made

    def add(self, ns: int, count: int = 1) -> None:
        """Add one value, `count` times. Raises ValueError on a negative value or count."""
        if count < 0:
            raise ValueError(f"a value can't be added {count} times")
        if count == 0:
            return
        index = bucket_of(ns)
        self.counts[index] = self.counts.get(index, 0) + count
        self.n += count
        self.total += ns * count
        self.min = ns if self.min is None or ns < self.min else self.min
        self.max = ns if self.max is None or ns > self.max else self.max

    def add_many(self, ns: npt.NDArray[np.int64]) -> None:
        """Add all values of an int64 array; the same as `add` for each. Raises ValueError on a negative one."""
        values = np.asarray(ns, dtype=np.int64).ravel()
        if not values.size:
            return
        indexes, counts = np.unique(buckets_of(values), return_counts=True)
        for index, count in zip(indexes.tolist(), counts.tolist(), strict=True):
            self.counts[index] = self.counts.get(index, 0) + count
        # Sums of int64 wrap silently: two halves of 32 bits can't, up to 2**31 values.
        self.total += (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
        self.n += int(values.size)
        low, high = int(values.min()), int(values.max())
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)

    def merge(self, other: Histogram) -> None:
        """Add all of `other` to this one: exact, in any order, in any grouping."""
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count
        self.n += other.n
        self.total += other.total
        if other.min is not None:
            self.min = other.min if self.min is None else min(self.min, other.min)
        if other.max is not None:
            self.max = other.max if self.max is None else max(self.max, other.max)

    @property
    def mean(self) -> float | None:
        """Exact mean in ns; None when empty."""
        return self.total / self.n if self.n else None

    def percentile(self, q: float) -> int | None:
        """The value in ns below or at which a share `q` (0 to 1) lies, by nearest rank; None when empty.

        At most 1 % from the value of that rank, never above the maximum nor below the minimum.
        """
        if self.n == 0 or self.min is None or self.max is None:
            return None
        rank = rank_of(q, self.n)
        if rank == self.n:
            return self.max
        seen = 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= rank:
                return min(max(bucket_value(index), self.min), self.max)
        raise AssertionError(f"{seen} values counted, {self.n} added")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return (self.counts, self.n, self.total, self.min, self.max) == (
            other.counts,
            other.n,
            other.total,
            other.min,
            other.max,
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Histogram(n={self.n}, min={self.min}, max={self.max})"


def percentiles(
    counts: Mapping[int, int], shares: Sequence[float], indexes: Sequence[int] | None = None
) -> list[int | None]:
    """`Histogram.from_sparse(counts).percentile(q)` in ns for each share, in one pass over the buckets.

    All None when nothing is counted. Counts must not be negative. `indexes`: the buckets in rising order, from a caller
    that keeps them so.
    """
    indexes = sorted(counts) if indexes is None else indexes
    below = list(accumulate(map(counts.__getitem__, indexes)))
    n = below[-1] if below else 0
    if not n:
        return [None] * len(shares)
    return [bucket_value(indexes[bisect_left(below, rank_of(share, n))]) for share in shares]


def rank_of(q: float, n: int) -> int:
    """Nearest rank (1 to n) of the share `q` of n values: the smallest k with k/n >= q.

    Raises ValueError unless 0 <= q <= 1. Rounded before the ceiling, since 0.07 * 100 is 7.000000000000001.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a percentile is a share from 0 to 1, not {q}")
    return min(max(math.ceil(round(q * n, 6)), 1), n)
