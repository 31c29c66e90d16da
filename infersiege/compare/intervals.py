"""How sure a figure of one run is, and a difference of two, as far as the turns of the runs themselves tell.

All ranges here are of 95 %. They say nothing of how much runs of the same thing differ: that takes several runs
(`gate.change`), and is usually more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from infersiege.gate.change import t_quantile
from infersiege.metrics.histogram import Histogram, bucket_value
from infersiege.metrics.proportions import wilson

Z = 1.959963984540054
"""Standard normal quantile of 0.975."""

BATCHES = 20
"""Parts of the steady phase behind the range of a rate."""

_FEWEST_VALUES = 30
"""Below this the mean of skewed values is not near a normal distribution."""


class Estimate(NamedTuple):
    """A figure and its range, in the figure's unit. low <= value <= high."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """Of a figure against another: 0.1 is 10 % more, of shares 10 points. The ends are None where nothing tells."""

    change: float
    low: float | None
    high: float | None


def of_mean(shape: Histogram, value: float, per_unit: float) -> Estimate | None:
    """Of the mean of independent values, by the normal distribution; None: fewer than 30 of them.

    `value`: the exact mean in its unit; `per_unit`: nanoseconds of the unit. The deviation comes from buckets that are
    0.8 % wide.
    """
    if shape.n < _FEWEST_VALUES or shape.mean is None:
        return None
    mean = shape.mean
    squares = math.fsum(count * (bucket_value(index) - mean) ** 2 for index, count in shape.counts.items())
    half = Z * math.sqrt(squares / (shape.n - 1) / shape.n) / per_unit
    return Estimate(value, max(value - half, 0.0), value + half)


def of_share(part: int, whole: int) -> Estimate | None:
    """Of a share of turns (`metrics.proportions.wilson`); None: no turn."""
    if whole <= 0:
        return None
    share = part / whole
    low, high = wilson(part, whole)
    return Estimate(share, min(low, share), max(high, share))


def of_rate(by_second: Sequence[float], value: float) -> Estimate | None:
    """Of a rate over time, by batch means: 20 parts of whole seconds, Student's t of their means (Law and Kelton,
    Simulation Modeling and Analysis). None: fewer than 40 seconds, or nothing happened.

    `by_second`: what came in each second of the steady phase; `value`: the rate. Seconds that follow each other are
    alike (a queue, a long answer), their means over longer parts are less so.
    """
    length = len(by_second) // BATCHES
    if length < 2:
        return None
    means = [math.fsum(by_second[place * length : (place + 1) * length]) / length for place in range(BATCHES)]
    mean = math.fsum(means) / BATCHES
    if mean <= 0:
        return None
    variance = math.fsum((one - mean) ** 2 for one in means) / (BATCHES - 1)
    half = value / mean * t_quantile(0.975, BATCHES - 1) * math.sqrt(variance / BATCHES)
    return Estimate(value, max(value - half, 0.0), value + half)


def averaged(values: Sequence[float], *, share: bool) -> float:
    """Over runs: the geometric mean, as ratios are compared; of shares, and where a value is 0, the arithmetic one."""
    if len(values) == 1:
        return values[0]
    if share or min(values) <= 0:
        return math.fsum(values) / len(values)
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def plain_difference(before: float, after: float, *, share: bool) -> Difference | None:
    """Without a range; None: a ratio to nothing."""
    if share:
        return Difference(after - before, None, None)
    return Difference(after / before - 1, None, None) if before > 0 and after >= 0 else None


def difference(before: Sequence[Estimate], after: Sequence[Estimate], *, share: bool) -> Difference | None:
    """Of two sides of independent runs, from the ranges of their figures; None: a figure has no ratio.

    The ends of both ranges give those of the difference without their being symmetric (Zou and Donner, Statistics in
    Medicine 27, 2008). Latencies and rates are compared by their logarithms.
    """
    sides = [_side(side, share=share) for side in (before, after)]
    first, second = sides
    if first is None or second is None:
        return None
    change = second.value - first.value
    low = change - math.hypot(second.value - second.low, first.high - first.value)
    high = change + math.hypot(second.high - second.value, first.value - first.low)
    if share:
        return Difference(change, low, high)
    return Difference(math.expm1(change), _ratio(low), _ratio(high))


def _side(runs: Sequence[Estimate], *, share: bool) -> Estimate | None:
    """The mean of independent runs on the scale of the comparison."""
    if not runs or (not share and any(run.value <= 0 for run in runs)):
        return None
    scaled = [run if share else Estimate(*(_log(end) for end in run)) for run in runs]
    value = math.fsum(run.value for run in scaled) / len(scaled)
    below = math.hypot(*(run.value - run.low for run in scaled)) / len(scaled)
    above = math.hypot(*(run.high - run.value for run in scaled)) / len(scaled)
    return Estimate(value, value - below, value + above)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _ratio(value: float) -> float | None:
    """None: without an end on that side."""
    return math.expm1(value) if value < 700 else None


def verdict_of(found: Difference, better: Literal["lower", "higher"] | None) -> str:
    """`better` or `worse` where the range leaves out 0 (`differs` where more is neither); else empty."""
    if found.low is None or found.high is None or found.low <= 0 <= found.high:
        return ""
    if better is None:
        return "differs"
    return "better" if (found.change < 0) is (better == "lower") else "worse"


def merged(shapes: Sequence[Mapping[str, Histogram]], metric: str) -> Histogram:
    """One metric over several runs; empty where none has it."""
    return Histogram.merged(shape[metric] for shape in shapes if metric in shape)
