"""Histograms of an engine: counts per bucket, their compact text, merging, percentiles. Pure.

The text is what the fields `ttft_buckets` and `itl_buckets` hold, such as `0.1:0 0.25:3 0.5:1 +Inf:1`: upper bounds in
seconds with the number of values in (bound before, bound]. A bound is listed when its bucket or the next one holds
values, so that each listed bucket with values has its lower edge beside it; the first bucket begins at 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

Interval = tuple[float, float]
"""(lower, upper] in seconds; upper may be inf."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """How many values lay in which interval. Only intervals with values are held; equal content is equal."""

    counts: Mapping[Interval, int] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Values, all buckets together."""
        return sum(self.counts.values())


def from_cumulative(totals: Mapping[float, float]) -> Buckets:
    """Buckets of Prometheus' running totals by upper bound (`le` -> values at or below it).

    A total below the one before it, which a page that was written while it counted can hold, makes an empty bucket.
    """
    counts: dict[Interval, int] = {}
    lower, below = 0.0, 0
    for upper, total in sorted(totals.items()):
        whole = round(total)
        if whole > below:
            counts[min(lower, upper), upper] = whole - below
            below = whole
        lower = upper
    return Buckets(counts)


def merge(many: Iterable[Buckets]) -> Buckets:
    """All values together: the counts of equal intervals are added up. Exact, in any order and grouping."""
    counts: dict[Interval, int] = {}
    for one in many:
        for interval, count in one.counts.items():
            counts[interval] = counts.get(interval, 0) + count
    return Buckets(counts)


def percentile(buckets: Buckets, share: float) -> float | None:
    """The value in s below which `share` (0 to 1) of the values lie; None when there are none.

    Values are taken to lie evenly inside their bucket, as Prometheus' histogram_quantile does it. The true value, the
    ceil(share * n)th smallest, is within `percentile_bounds` when all buckets are of one set of bounds. In the bucket
    without an upper bound it is the highest bound that there is: at least that much.
    """
    bounds = percentile_bounds(buckets, share)
    if bounds is None:
        return None
    lower, upper = bounds
    if math.isinf(upper) or lower == upper:
        return lower
    rank = _rank(buckets, share)
    at_lower, at_upper = _below(buckets, lower), _below(buckets, upper)
    if at_upper <= at_lower:
        return upper
    return lower + (upper - lower) * min(1.0, max(0.0, (rank - at_lower) / (at_upper - at_lower)))


def percentile_bounds(buckets: Buckets, share: float) -> Interval | None:
    """Between which two bounds (s) that percentile lies: its bucket, the width of what can be known.

    upper is inf in the bucket without an upper bound. None when there are no values. Raises ValueError for a share
    that is not from 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share is {share}: it must be from 0 to 1")
    rank = _rank(buckets, share)
    edges = sorted({edge for interval in buckets.counts for edge in interval})
    for lower, upper in pairwise(edges):
        if _below(buckets, upper) >= rank and _below(buckets, upper) > 0:
            return lower, upper
    return (edges[0], edges[-1]) if edges else None  # one bucket without a width, `le="0"`


def _rank(buckets: Buckets, share: float) -> float:
    """How many values lie at or below the percentile; need not be whole."""
    return share * buckets.n


def _below(buckets: Buckets, edge: float) -> float:
    """Values at or below `edge`, taken to lie evenly inside their bucket; those above all bounds lie at inf."""
    total = 0.0
    for (lower, upper), count in buckets.counts.items():
        if edge >= upper:
            total += count
        elif edge > lower and not math.isinf(upper):
            total += count * (edge - lower) / (upper - lower)
    return total


def text_of(buckets: Buckets) -> str:
    """The compact text; empty when there are no values.

    Only for buckets of one set of bounds (no two overlap), as one engine has them. Raises ValueError otherwise.
    """
    at: dict[float, int] = {}
    for lower, upper in sorted(buckets.counts):
        if at and lower < max(at):
            raise ValueError("buckets of different bounds overlap: they have no text")
        if lower > 0:
            at.setdefault(lower, 0)
        at[upper] = buckets.counts[lower, upper]
    return " ".join(f"{_bound(upper)}:{count}" for upper, count in at.items())


def parse(text: str) -> Buckets:
    """The buckets that `text_of` wrote. Raises ValueError for any other text, with what is wrong in it."""
    counts: dict[Interval, int] = {}
    lower = 0.0
    for part in text.split():
        bound, colon, count = part.partition(":")
        try:
            upper, values = float(bound), int(count)
        except ValueError:
            raise ValueError(f"bucket {part[:40]!r} is not BOUND:COUNT") from None
        if not colon or values < 0 or math.isnan(upper) or not (upper > lower or (not counts and upper >= 0)):
            raise ValueError(f"bucket {part[:40]!r}: bounds must rise and counts can't be below 0")
        if values:
            counts[lower, upper] = values
        lower = upper
    return Buckets(counts)


def _bound(upper: float) -> str:
    return "+Inf" if math.isinf(upper) else repr(upper).removesuffix(".0")
