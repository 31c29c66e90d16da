"""Is one set of runs worse than another? The unit is the run: what one run has 1,000 turns of is still one value here.

Runs of the same thing differ among themselves (clocks, placement, caches, neighbours), by more than their turns can
show. So each metric has one value per run, and what is judged is the difference of the two sides' means against the
spread between runs:

* With enough runs on both sides an exact permutation test: how often does a random split of all runs into two sides
  make the worst metric look as bad as this split does? The largest statistic over all metrics is taken in each split
  (Westfall and Young, Resampling-Based Multiple Testing, 1993, step-down maxT), so that metrics that move together are
  not punished for being many. It assumes nothing but that runs of the same thing can be exchanged.
* With fewer, a known spread (an A/A floor, or five runs on one side) and Student's t with Holm's correction.
* Without either there is no verdict.

Latencies and rates are compared as ratios (their logarithms), shares as differences. docs/gate.md has the method in
words and the simulation behind the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from infersiege.errors import InternalError
from infersiege.records import Verdict

ALPHA = 0.05
"""Chance that a gate of any number of rules finds any one worse on runs of the same thing, however much they differ.
That a change must be relevant as well makes it smaller: see docs/gate.md."""
RELEVANT = 0.055
"""Smallest change of a latency or a rate that is worth a failure, where a rule does not say."""
RELEVANT_SHARE = 0.02
"""The same of a share, as a difference."""
ENOUGH_RUNS = 5
"""Of each side, without a floor."""
MOST_SPLITS = 20_000
"""Above so many, splits are drawn at random."""
NOISY = 2.0
"""A change whose confidence interval is wider, to either side, than so many times what is relevant shows nothing."""

Floats = npt.NDArray[np.float64]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of both sides, a value per run. None: that run did not give it."""

    name: str
    baseline: tuple[float | None, ...]
    candidate: tuple[float | None, ...]
    better: Literal["lower", "higher"]
    share: bool = False
    """Compared as a difference; else as a ratio, and values must be above 0."""
    relevant: float | None = None
    """Smallest change that counts: of a ratio 0.1 is 10 %, of a share 0.1 are 10 points. None: the usual one."""

    @property
    def least(self) -> float:
        return self.relevant if self.relevant is not None else RELEVANT_SHARE if self.share else RELEVANT


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """How much runs of the same thing differ in one metric: standard deviation of its logarithm, or of a share."""

    deviation: float
    runs: int
    """It was measured on."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one metric. Changes are of the candidate against the baseline: 0.1 is 10 % more, or 10 points."""

    name: str
    verdict: Verdict
    detail: str
    baseline: float | None = None
    """Geometric mean over the runs; of a share the mean. None, also below: no verdict was possible."""
    candidate: float | None = None
    change: float | None = None
    low: float | None = None
    """The 95 % confidence interval of the change, of this metric alone."""
    high: float | None = None
    p: float | None = None
    """Chance of looking as bad by accident, corrected for all metrics of the gate."""


def floor_of(values: Sequence[float], *, share: bool) -> Floor | None:
    """The spread of runs of the same thing; None: fewer than two values, or values that have no ratio."""
    if len(values) < 2 or (not share and min(values) <= 0):
        return None
    scaled = np.array(values) if share else np.log(values)
    return Floor(deviation=float(np.std(scaled, ddof=1)), runs=len(values))


def judge_changes(
    samples: Sequence[Sample], floors: Mapping[str, Floor] | None = None, *, seed: int = 1
) -> tuple[Change, ...]:
    """One `Change` per sample, in order.

    `floors`: by name of the metric, from earlier A/A runs on the same machine. `seed`: of the splits that are drawn,
    where there are too many for all of them.
    """
    floors = floors or {}
    found: dict[str, Change] = {}
    usable: list[Sample] = []
    for sample in samples:
        fault = _fault(sample)
        if fault is None:
            usable.append(sample)
        else:
            found[sample.name] = _unknown(sample, fault)
    permuted = [sample for sample in usable if _permutable(sample)]
    for sizes in {(len(one.baseline), len(one.candidate)) for one in permuted}:
        group = [one for one in permuted if (len(one.baseline), len(one.candidate)) == sizes]
        # Several sizes: metrics that some runs lack. Bonferroni between the groups, so that the whole keeps its level.
        share = len(group) / len(usable)
        for sample, p in zip(group, _permutation_p(group, seed), strict=True):
            found[sample.name] = _change(sample, min(1.0, p / share), None)
    rest = [sample for sample in usable if not _permutable(sample)]
    tested = [(sample, _known_spread(sample, floors.get(sample.name))) for sample in rest]
    able = [(sample, spread) for sample, spread in tested if spread is not None]
    share = max(len(able) / len(usable), 1e-9) if usable else 1.0
    adjusted = _holm([_t_p(sample, spread) for sample, spread in able])
    for (sample, spread), p in zip(able, adjusted, strict=True):
        found[sample.name] = _change(sample, min(1.0, p / share), spread)
    for sample in rest:
        if sample.name not in found:
            found[sample.name] = _unknown(
                sample,
                f"{len(sample.baseline)} against {len(sample.candidate)} runs tell nothing of how much runs differ: "
                f"{ENOUGH_RUNS} of each are needed, or a baseline with {ENOUGH_RUNS} runs",
            )
    if len(found) != len(samples):
        raise InternalError("samples share a name")
    return tuple(found[sample.name] for sample in samples)


def _fault(sample: Sample) -> str | None:
    for side, values in (("baseline", sample.baseline), ("candidate", sample.candidate)):
        missing = sum(value is None for value in values)
        if missing or not values:
            return f"not measured in {missing} of {len(values)} runs of the {side}"
        if not sample.share and any(value is not None and value <= 0 for value in values):
            return f"0 in a run of the {side}: it has no ratio"
        if any(value is not None and not math.isfinite(value) for value in values):
            return f"no number in a run of the {side}"
    return None


def _permutable(sample: Sample) -> bool:
    return min(len(sample.baseline), len(sample.candidate)) >= ENOUGH_RUNS


def _scaled(sample: Sample) -> tuple[Floats, Floats]:
    """Both sides on the scale of the test, larger is worse."""
    sides = [np.array(side, dtype=np.float64) for side in (sample.baseline, sample.candidate)]
    if not sample.share:
        sides = [np.log(side) for side in sides]
    sign = 1.0 if sample.better == "lower" else -1.0
    return sign * sides[0], sign * sides[1]


# ------------------------------------------------------------------------------------------------- permutation


def _permutation_p(samples: Sequence[Sample], seed: int) -> list[float]:
    """Step-down maxT over all splits of the runs, or over many drawn ones; one p per sample."""
    scaled = [_scaled(sample) for sample in samples]
    runs = np.stack([np.concatenate(sides) for sides in scaled])
    first, second = len(samples[0].baseline), len(samples[0].candidate)
    statistics = _statistics(runs, _splits(first, second, seed))
    seen = statistics[0]
    order = np.argsort(-seen, kind="stable")
    adjusted, last = np.empty(len(samples)), 0.0
    for position, place in enumerate(order):
        # Rounding must not make the split that was seen look rarer than itself.
        as_bad = statistics[:, order[position:]].max(axis=1) >= seen[place] - 1e-9
        last = max(last, float(as_bad.mean()))
        adjusted[place] = last
    return [float(p) for p in adjusted]


def _splits(first: int, second: int, seed: int) -> npt.NDArray[np.bool_]:
    """Which runs are the second side, a row per split; the first row is the split that was seen."""
    runs = first + second
    seen = np.arange(runs) >= first
    if math.comb(runs, second) <= MOST_SPLITS:
        chosen = [places for places in combinations(range(runs), second) if places != tuple(range(first, runs))]
        rows = np.zeros((len(chosen) + 1, runs), dtype=np.bool_)
        np.put_along_axis(rows[1:], np.array(chosen, dtype=np.int64).reshape(-1, second), True, axis=1)
    else:
        ranks = np.random.Generator(np.random.PCG64(seed)).random((MOST_SPLITS, runs)).argsort(axis=1)
        rows = ranks < second
    rows[0] = seen
    return rows


def _statistics(runs: Floats, splits: npt.NDArray[np.bool_]) -> Floats:
    """Student's statistic of every split (rows) and metric (columns). `runs`: metric x run."""
    second = splits.sum(axis=1)[:, None]
    first = runs.shape[1] - second
    centred = runs - runs.mean(axis=1, keepdims=True)
    upper, lower = splits @ centred.T / second, ~splits @ centred.T / first
    squares = (centred**2).sum(axis=1)[None, :] - second * upper**2 - first * lower**2
    variance = np.maximum(squares, 0.0) / (runs.shape[1] - 2)
    error = np.sqrt(variance * (1 / first + 1 / second))
    difference = upper - lower
    tiny = 1e-12 * np.maximum(np.abs(runs).max(axis=1, initial=0.0), 1.0)[None, :]
    # Runs that are equal to the last digit: any difference is as large as it gets, and none is none.
    equal = np.where(np.abs(difference) <= tiny, 0.0, np.sign(difference) * 1e12)
    return np.where(error <= tiny, equal, difference / np.maximum(error, 1e-300))


# ----------------------------------------------------------------------------------------------------- few runs


def _known_spread(sample: Sample, floor: Floor | None) -> Floor | None:
    """Spread between runs, of both sides and of the floor together; None: too few runs tell."""
    squares, degrees = 0.0, 0
    for side in _scaled(sample):
        squares += float(((side - side.mean()) ** 2).sum())
        degrees += len(side) - 1
    enough = max(len(sample.baseline), len(sample.candidate)) >= ENOUGH_RUNS
    if floor is not None and floor.runs >= ENOUGH_RUNS:
        squares += floor.deviation**2 * (floor.runs - 1)
        degrees += floor.runs - 1
        enough = True
    return Floor(deviation=math.sqrt(squares / degrees), runs=degrees + 1) if enough else None


def _error(sample: Sample, spread: Floor) -> float:
    return spread.deviation * math.sqrt(1 / len(sample.baseline) + 1 / len(sample.candidate))


def _t_p(sample: Sample, spread: Floor) -> float:
    before, after = _scaled(sample)
    difference, error = float(after.mean() - before.mean()), _error(sample, spread)
    if error <= 1e-12:
        return 0.0 if difference > 1e-12 else 1.0
    return 1.0 - t_cdf(difference / error, spread.runs - 1)


def _holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Scandinavian Journal of Statistics 6, 1979)."""
    adjusted, last = [1.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        last = max(last, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = last
    return adjusted


def t_cdf(t: float, degrees: int) -> float:
    """Student's distribution for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    term = total = cosine if degrees % 2 else 1.0
    for k in range(3 if degrees % 2 else 2, degrees, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if degrees % 2:
        between = 2 / math.pi * (angle + (sine * total if degrees > 1 else 0.0))
    else:
        between = sine * total
    return (1 + between) / 2


def t_quantile(p: float, degrees: int) -> float:
    """Where `t_cdf` is p, for p from 0.5 up."""
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < p else (low, middle)
    return high


# ---------------------------------------------------------------------------------------------------- the verdict


def _change(sample: Sample, p: float, spread: Floor | None) -> Change:
    before, after = _scaled(sample)
    if spread is None:
        squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (before, after))
        degrees = len(before) + len(after) - 2
        spread = Floor(deviation=math.sqrt(squares / degrees), runs=degrees + 1)
    width = t_quantile(0.975, spread.runs - 1) * _error(sample, spread)
    worse = float(after.mean() - before.mean())
    sign = 1.0 if sample.better == "lower" else -1.0
    ends = sorted((sign * (worse - width), sign * (worse + width)))
    change, low, high = (_unscaled(value, sample) for value in (sign * worse, *ends))
    bad = _harm(sample, change)
    if p <= ALPHA and bad >= sample.least:
        verdict, said = Verdict.FAIL, f"worse by {_written(bad, sample)}"
    elif _unscaled(width, sample) > NOISY * sample.least:
        verdict = Verdict.NO_DATA
        said = f"runs differ too much to see a change of {_written(sample.least, sample)}; more runs are needed"
    elif bad >= sample.least:
        verdict, said = Verdict.PASS, f"worse by {_written(bad, sample)}, which runs of the same thing may differ by"
    else:
        verdict, said = Verdict.PASS, f"not worse by {_written(sample.least, sample)}"
    interval = f"change {change:+.1%} (95 % of {low:+.1%} to {high:+.1%}), p = {p:.3f}"
    if sample.share:
        interval = f"change {100 * change:+.2f} points ({100 * low:+.2f} to {100 * high:+.2f}), p = {p:.3f}"
    runs = f"{len(sample.baseline)} against {len(sample.candidate)} runs"
    return Change(
        name=sample.name,
        baseline=_mean(sign * float(before.mean()), sample),
        candidate=_mean(sign * float(after.mean()), sample),
        change=change,
        low=low,
        high=high,
        p=p,
        verdict=verdict,
        detail=f"{said}: {interval}, {runs}",
    )


def _unscaled(value: float, sample: Sample) -> float:
    return value if sample.share else math.expm1(value)


def _mean(value: float, sample: Sample) -> float:
    return value if sample.share else math.exp(value)


def _harm(sample: Sample, change: float) -> float:
    """How much worse, as a positive number; of a rate that fell by a fifth, a fifth."""
    return change if sample.better == "lower" else -change


def _written(value: float, sample: Sample) -> str:
    return f"{100 * value:.2g} points" if sample.share else f"{value:.1%}"


def _unknown(sample: Sample, why: str) -> Change:
    return Change(name=sample.name, verdict=Verdict.NO_DATA, detail=why)
