"""Whether one set of runs is worse than another: the statistics of the gate against a baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import InternalError
from infersiege.gate.change import Floor, Sample, floor_of, judge_changes, t_cdf, t_quantile
from infersiege.records import Verdict

PASS, FAIL, NO_DATA = Verdict.PASS, Verdict.FAIL, Verdict.NO_DATA
STEADY = (100.0, 102.0, 98.0, 101.0, 99.0)


def times(factor: float, values: tuple[float, ...] = STEADY) -> tuple[float, ...]:
    return tuple(factor * value for value in values)


def sample(candidate: tuple[float | None, ...], baseline: tuple[float | None, ...] = STEADY, **more: object) -> Sample:
    given: dict[str, object] = {"name": "ttft p50", "better": "lower", **more}
    return Sample(baseline=baseline, candidate=candidate, **given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Row:
    sample: Sample
    verdict: Verdict
    says: str
    reason: str
    floor: Floor | None = None


ROWS = [
    Row(sample(STEADY), PASS, "not worse by 5.5%", "the same runs"),
    Row(sample(times(1.10)), FAIL, "worse by 10.0%", "a tenth slower, runs differ by 1.6 %"),
    Row(sample(times(0.80)), PASS, "not worse", "faster is no failure"),
    Row(sample(times(0.90), better="higher"), FAIL, "worse by 10.0%", "a throughput that fell"),
    Row(sample(times(1.20), better="higher"), PASS, "not worse", "a throughput that rose"),
    Row(sample(times(1.04)), PASS, "not worse by 5.5%", "significant, but not relevant"),
    Row(sample(times(1.10), relevant=0.2), PASS, "not worse by 20.0%", "the rule allows a fifth"),
    Row(sample(times(1.04), relevant=0.03), FAIL, "worse by 4.0%", "the rule allows less than the usual"),
    Row(
        sample((80.0, 130.0, 90.0, 140.0, 101.0)),
        NO_DATA,
        "differ too much",
        "a sixth slower on average, and anything between much faster and much slower: that is no pass",
    ),
    Row(sample((97.0, 112.0, 100.0, 111.0, 113.0)), PASS, "may differ by", "worse on average, and not surely"),
    Row(
        sample((60.0, 140.0, 80.0, 150.0, 90.0), (70.0, 150.0, 70.0, 140.0, 95.0)),
        NO_DATA,
        "differ too much",
        "no change of 5 % could be seen in these",
    ),
    Row(sample((100.0,), (100.0,)), NO_DATA, "are needed", "one run a side shows nothing"),
    Row(sample((130.0,), (100.0, 101.0, 99.0, 100.0)), NO_DATA, "are needed", "four are not five"),
    Row(sample((130.0,)), FAIL, "worse by 30", "five runs of the baseline tell how much runs differ"),
    Row(sample((103.0,)), PASS, "not worse", "one run within what runs differ by"),
    Row(sample((120.0,), (100.0,)), FAIL, "1 against 1 runs", "a floor tells it", Floor(deviation=0.02, runs=9)),
    Row(
        sample((120.0,), (100.0,)), NO_DATA, "are needed", "a floor of two runs does not", Floor(deviation=0.02, runs=2)
    ),
    Row(sample((None, *STEADY)), NO_DATA, "not measured in 1 of 6 runs of the candidate", "no value is no value"),
    Row(sample(STEADY, ()), NO_DATA, "0 of 0 runs of the baseline", "no runs at all"),
    Row(sample((0.0, *STEADY)), NO_DATA, "has no ratio", "zero has no logarithm"),
    Row(sample(STEADY, (math.inf, *STEADY)), NO_DATA, "no number", "nor has infinity"),
    Row(
        sample((0.05,) * 5, (0.0,) * 5, name="error_share", share=True),
        FAIL,
        "worse by 5 points",
        "errors from none to 5 %; runs equal to the last digit",
    ),
    Row(sample((0.0,) * 5, (0.0,) * 5, share=True), PASS, "not worse by 2 points", "no errors, and none"),
    Row(
        sample((0.60, 0.61, 0.62, 0.60, 0.59), (0.80, 0.81, 0.79, 0.80, 0.82), share=True, better="higher"),
        FAIL,
        "worse by",
        "a cache share that fell by a fifth",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.reason for row in ROWS])
def test_the_verdict(row: Row) -> None:
    floors = {} if row.floor is None else {row.sample.name: row.floor}
    (change,) = judge_changes([row.sample], floors)
    assert change.verdict is row.verdict and row.says in change.detail, change.detail
    if change.change is not None:
        assert change.low is not None and change.high is not None and change.low <= change.change <= change.high


def test_gt_06_one_of_many_metrics_is_worse() -> None:
    """The others are not called worse with it, and many rules do not hide it."""
    steady = [sample(times(factor), name=f"m{place}") for place, factor in enumerate((1.0, 0.99, 1.01, 1.0, 1.02))]
    found = judge_changes([*steady, sample(times(1.12), name="worse")])
    assert [change.verdict for change in found] == [PASS] * 5 + [FAIL]


def test_metrics_that_some_runs_lack_are_judged_by_those_that_have_them() -> None:
    found = judge_changes([sample(times(1.2)), sample(times(1.2)[:1], name="few"), sample((None,) * 5, name="none")])
    assert [change.verdict for change in found] == [FAIL, FAIL, NO_DATA]


def test_two_samples_of_one_name_are_a_fault_of_ours() -> None:
    with pytest.raises(InternalError):
        judge_changes([sample(STEADY), sample(STEADY)])


def test_more_runs_than_all_splits_of_which_can_be_tried() -> None:
    many = tuple(100.0 + place % 7 for place in range(20))
    (same,) = judge_changes([sample(many, many)])
    (slower,) = judge_changes([sample(times(1.1, many), many)])
    assert same.verdict is PASS and slower.verdict is FAIL and slower.p is not None and slower.p < 0.001
    assert judge_changes([sample(many, many)], seed=1) == judge_changes([sample(many, many)], seed=1)


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [
        (12.706, 1, 0.975),
        (4.303, 2, 0.975),
        (3.182, 3, 0.975),
        (2.306, 8, 0.975),
        (2.896, 8, 0.99),
        (1.96, 100_000, 0.975),
        (0.0, 7, 0.5),
        (-2.306, 8, 0.025),
    ],
)
def test_students_t_is_that_of_the_tables(t: float, degrees: int, p: float) -> None:
    assert t_cdf(t, degrees) == pytest.approx(p, abs=5e-5)
    if p > 0.5:
        assert t_quantile(p, degrees) == pytest.approx(t, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "share", "floor"),
    [
        ((1.0,), False, None),
        ((0.0, 1.0), False, None),
        ((math.e, 1.0), False, Floor(deviation=math.sqrt(0.5), runs=2)),
        ((0.0, 1.0), True, Floor(deviation=math.sqrt(0.5), runs=2)),
    ],
)
def test_a_floor_is_the_spread_of_runs(values: tuple[float, ...], share: bool, floor: Floor | None) -> None:
    found = floor_of(values, share=share)
    assert found == floor or (found and floor and found.deviation == pytest.approx(floor.deviation))


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.floats(50, 200), min_size=10, max_size=10, unique=True),
    factor=st.floats(1e-3, 1e3),
)
def test_the_unit_of_a_metric_changes_nothing(runs: list[float], factor: float) -> None:
    """Milliseconds or seconds; and what is worse in latency is worse in rate."""
    one = sample(tuple(runs[5:]), tuple(runs[:5]))
    scaled = sample(times(factor, tuple(runs[5:])), times(factor, tuple(runs[:5])))
    (first,), (second,) = judge_changes([one]), judge_changes([scaled])
    assert first.change == pytest.approx(second.change, abs=1e-6) and first.p == pytest.approx(second.p, abs=0.01)
    rates = sample(tuple(1 / one for one in runs[5:]), tuple(1 / one for one in runs[:5]), better="higher")
    (rate,) = judge_changes([rates])
    assert rate.p == pytest.approx(first.p, abs=0.01)


def test_gt_06_runs_of_the_same_thing_are_seldom_called_worse_and_a_tenth_is_found() -> None:
    """The small form of bench/gate.py: 3 % from run to run, 1,000 turns a run, four metrics."""
    draw = np.random.Generator(np.random.PCG64(11))

    def runs(slower: float) -> list[tuple[float, ...]]:
        found = []
        for _ in range(5):
            shared, own = draw.normal(0, 0.03 / math.sqrt(2)), draw.normal(0, 0.03 / math.sqrt(2), 2)
            ttft = slower * 200 * math.exp(shared + own[0]) * np.exp(draw.normal(0, 0.3, 1000))
            tpot = 20 * math.exp(shared + own[1]) * np.exp(draw.normal(0, 0.15, 1000))
            e2e = ttft + 100 * tpot
            found.append((np.median(ttft), np.percentile(ttft, 95), np.median(tpot), np.median(e2e)))
        return list(zip(*found, strict=True))

    def failed(slower: float) -> bool:
        pairs = zip(runs(1.0), runs(slower), strict=True)
        samples = [sample(after, before, name=f"m{place}") for place, (before, after) in enumerate(pairs)]
        return any(change.verdict is FAIL for change in judge_changes(samples))

    assert sum(failed(1.0) for _ in range(150)) <= 9, "2 % and what 150 may scatter"
    assert sum(failed(1.1) for _ in range(150)) >= 135, "95 % and what 150 may scatter"
