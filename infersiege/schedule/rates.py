"""An arrival rate that changes over time: steps, ramps, sine, pauses.

The process at unit rate is mapped through the inverse of the cumulative rate (time rescaling: Brown et al., The
time-rescaling theorem and its application to neural spike train data analysis, Neural Computation 14, 2002; inversion:
E. Çınlar, Introduction to Stochastic Processes, 1975, chapter 4). So the mean count between two instants is the
integral of the rate between them (constant arrivals: to within one), and nothing adds up to a drift.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from math import cos, isfinite, pi, sin

import msgspec
import numpy as np

from infersiege.errors import InternalError
from infersiege.schedule.arrivals import SECOND_NS, Floats

_HALVINGS = 60
"""Until an interval of a few radians is narrower than a double can tell."""


class RateStage(msgspec.Struct, frozen=True):
    """Sessions per second over [start, end), offsets from the start of the load.

    The rate goes evenly from `rate_from` to `rate` over `ramp_ns`, and from then on stays there or, with a sine, swings
    by `rate * sine_amplitude` around it, upwards first. Raises InternalError for values without meaning.
    """

    start_ns: int
    end_ns: int
    rate_from: float
    """At the start of the ramp; without a ramp it means nothing."""
    rate: float
    ramp_ns: int = 0
    sine_amplitude: float = 0.0
    """Largest departure from `rate`, as a share of it: 0 to 1."""
    sine_period_ns: int = 0

    def __post_init__(self) -> None:
        rates_ok = all(isfinite(rate) and 0 <= rate <= 1e9 for rate in (self.rate_from, self.rate))
        times_ok = 0 <= self.start_ns < self.end_ns and 0 <= self.ramp_ns <= self.end_ns - self.start_ns
        sine_ok = self.sine_amplitude == 0 or (0 < self.sine_amplitude <= 1 and self.sine_period_ns > 0)
        if not (rates_ok and times_ok and sine_ok):
            raise InternalError(f"{self} makes no sense")


def rate_at(stages: Iterable[RateStage], at_ns: int) -> float:
    """The asked rate (sessions per second) at an offset; 0 between stages and after the last."""
    for stage in stages:
        if stage.start_ns <= at_ns < stage.end_ns:
            since_ns = at_ns - stage.start_ns
            if since_ns < stage.ramp_ns:
                return stage.rate_from + (stage.rate - stage.rate_from) * (since_ns / stage.ramp_ns)
            if not stage.sine_amplitude:
                return stage.rate
            turn = (since_ns - stage.ramp_ns) % stage.sine_period_ns / stage.sine_period_ns
            return stage.rate * (1 + stage.sine_amplitude * sin(2 * pi * turn))
    return 0.0


def expected(stage: RateStage, from_ns: int | None = None, to_ns: int | None = None) -> float:
    """Mean number of arrivals of a stage, or of its part between two offsets from the start of the load."""
    first_ns = stage.start_ns if from_ns is None else min(max(from_ns, stage.start_ns), stage.end_ns)
    last_ns = stage.end_ns if to_ns is None else min(max(to_ns, first_ns), stage.end_ns)
    return float(_count(stage, last_ns - stage.start_ns) - _count(stage, first_ns - stage.start_ns))


def rescaled(counts: Iterable[tuple[int, Floats]], stages: Sequence[RateStage]) -> Iterator[list[int]]:
    """Offsets (ns) of a process, given by its `counts`, at the rates of the stages. Ends with the last stage.

    Each lies in [start, end) of a stage, and each stage has those between its first and its last count: the sequence
    goes on from one stage to the next. Raises InternalError for stages that overlap or go back.
    """
    check_order(stages)
    left = iter(stages)
    stage = next(left)
    before, within = Fraction(0), _count(stage, stage.end_ns - stage.start_ns)
    for whole, parts in counts:
        place = 0
        while place < len(parts):
            since = parts[place:] + float(whole - before)
            in_stage = np.searchsorted(since, float(within)) if within else 0
            offsets = _inverse(stage, since[:in_stage])
            # What would round to the end is the next stage's first: an end belongs to nobody.
            offsets = offsets[: np.searchsorted(offsets, stage.end_ns)]
            yield offsets.tolist()
            place += len(offsets)
            if place < len(parts):
                following = next(left, None)
                if following is None:
                    return
                before += within
                stage, within = following, _count(following, following.end_ns - following.start_ns)


def check_order(stages: Sequence[RateStage]) -> None:
    """Raises InternalError unless there are stages, one after the other."""
    if not stages or any(after.start_ns < before.end_ns for before, after in pairwise(stages)):
        raise InternalError(f"stages {list(stages)} are none, or overlap")


def _count(stage: RateStage, since_ns: int) -> Fraction:
    """Integral of the rate over so much of the stage: exact but for a sine, which is as good as a double."""
    ramp_ns = min(since_ns, stage.ramp_ns)
    flat_ns = since_ns - ramp_ns
    rate, rise = Fraction(stage.rate), Fraction(stage.rate) - Fraction(stage.rate_from)
    total = rate * flat_ns
    if ramp_ns:
        total += Fraction(stage.rate_from) * ramp_ns + rise * ramp_ns**2 / (2 * stage.ramp_ns)
    if stage.sine_amplitude and flat_ns:
        turn = flat_ns % stage.sine_period_ns / stage.sine_period_ns
        swing = stage.sine_amplitude * (1 - cos(2 * pi * turn)) / (2 * pi)
        total += rate * stage.sine_period_ns * Fraction(swing)
    return total / SECOND_NS


def _inverse(stage: RateStage, counts: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """When the count since the start of the stage reaches each of these: whole ns from the start of the load."""
    ramped = float(_count(stage, stage.ramp_ns))
    in_ramp = int(np.searchsorted(counts, ramped))
    since_ns = np.concatenate(
        (_inverse_ramp(stage, counts[:in_ramp]), stage.ramp_ns + _inverse_flat(stage, counts[in_ramp:] - ramped))
    )
    # Two doubles that are all but equal may come out in either order.
    whole_ns = np.maximum.accumulate(np.rint(since_ns)) if len(since_ns) else since_ns
    return whole_ns.astype(np.int64) + stage.start_ns


def _inverse_ramp(stage: RateStage, counts: Floats) -> Floats:
    """Since the start: rate_from * t + slope * t**2 / 2 = count, solved in the form without cancellation."""
    count = np.maximum(counts, 0.0)
    slope = (stage.rate - stage.rate_from) / (stage.ramp_ns / SECOND_NS) if stage.ramp_ns else 0.0
    root = np.sqrt(np.maximum(stage.rate_from**2 + 2 * count * slope, 0.0))
    base = stage.rate_from + root
    seconds: Floats = 2 * count / np.where(base > 0, base, 1.0)  # 0 of a ramp from 0 is at 0
    return np.minimum(seconds * SECOND_NS, stage.ramp_ns)


def _inverse_flat(stage: RateStage, counts: Floats) -> Floats:
    """Since the ramp's end: count / rate, or the sine's, turn by turn."""
    count = np.maximum(counts, 0.0)
    if not len(count):
        return count
    if not stage.sine_amplitude:
        return count * SECOND_NS / stage.rate
    per_turn = stage.rate * stage.sine_period_ns / SECOND_NS
    turns, rest = np.divmod(count, per_turn)
    angle = _inverse_turn(rest / per_turn * (2 * pi), stage.sine_amplitude)
    result: Floats = (turns + angle / (2 * pi)) * stage.sine_period_ns
    return result


def _inverse_turn(share: Floats, amplitude: float) -> Floats:
    """The angle x in [0, 2 pi) at which x + amplitude * (1 - cos x) is `share`.

    Seen from 3/2 pi, where the rate is lowest, this is Kepler's equation E - e sin E = M: E is within e of M.
    """
    mean = share - amplitude - 1.5 * pi
    low, high = mean - amplitude, mean + amplitude
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        over = middle - amplitude * np.sin(middle) > mean
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.maximum((low + high) / 2 + 1.5 * pi, 0.0)
