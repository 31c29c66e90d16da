"""The 95 % range of a percentile: ranks by the exact binomial distribution, and what a summary shows of them."""

from __future__ import annotations

import math

import metrics_turns as make
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.metrics.orders import enough, range_ranks
from infersiege.metrics.summary import summarise
from infersiege.records import Distribution, Outcome, Reason

SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)


def chance(q: float, n: int, first: int, last: int) -> float:
    """P(first <= B <= last) of a binomial (n, q), term by term."""
    return math.fsum(math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(max(first, 0), min(last, n) + 1))


@pytest.mark.parametrize(("q", "values"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995)])
def test_so_many_values_have_an_upper_bound_and_one_fewer_has_none(q: float, values: int) -> None:
    assert enough(q) == values
    assert 1 - q**values >= 0.95 > 1 - q ** (values - 1)
    assert range_ranks(q, values)[1] == values, "it is the largest value"
    assert range_ranks(q, values - 1)[1] is None


@given(st.sampled_from(SHARES), st.integers(1, 900))
def test_the_range_holds_the_true_percentile_in_95_of_100_cases_and_is_no_wider_than_it_must(q: float, n: int) -> None:
    low, high = range_ranks(q, n)
    below = 0.0 if low is None else chance(q, n, 0, low - 1)
    above = 0.0 if high is None else chance(q, n, high, n)
    assert below + above <= 0.05 + 1e-9
    if low is not None and high is not None and q**n <= 0.025 and (1 - q) ** n <= 0.025:
        assert chance(q, n, 0, low) > 0.025 and chance(q, n, high - 1, n) > 0.025, "one rank further in is too far"


@pytest.mark.parametrize("q", SHARES)
def test_the_normal_ranks_of_many_values_go_on_where_the_exact_ones_end(q: float) -> None:
    least = math.ceil(10_000 / (q * (1 - q)))
    for n in (least - 2, least + 2):
        low, high = range_ranks(q, n)
        assert low is not None and high is not None
        assert abs((n * q - low) - 1.96 * math.sqrt(10_000)) <= 3
        assert abs((high - n * q) - 1.96 * math.sqrt(10_000)) <= 3


@pytest.mark.parametrize(("q", "n"), [(0.0, 5), (1.0, 5), (0.5, -1)])
def test_what_is_no_percentile_is_refused(q: float, n: int) -> None:
    with pytest.raises(ValueError, match="no range"):
        range_ranks(q, n)


def ttft(values_ms: list[float], *more: object) -> Distribution:
    turns = [make.streamed(at, [at + value, at + value + 50.0]) for at, value in enumerate(values_ms)]
    return summarise([*turns, *more], make.facts()).groups[0].distributions["ttft"]  # type: ignore[list-item]


def test_a_summary_has_the_values_of_these_ranks_in_the_metrics_unit() -> None:
    found = ttft([float(value) for value in np.random.default_rng(1).permutation(400) + 1])
    for name, q in zip(("p50", "p90", "p95", "p99"), SHARES, strict=False):
        assert found.ranges[name] == range_ranks(q, 400), "the value of rank k is k ms"
    assert "p99_9" not in found.ranges, "no range where there is no figure"


def test_gaps_have_their_range_from_the_histogram() -> None:
    turns = [make.streamed(0, [10.0, *(10.0 + k * k for k in range(1, 60))]) for _ in range(3)]
    gaps = summarise(turns, make.facts()).groups[0].distributions["gap"]
    low, high = gaps.ranges["p50"]
    assert low is not None and high is not None and gaps.p50 is not None and low < gaps.p50 < high
    every = sorted([2 * k + 1.0 for k in range(59)] * 3)
    ranks = range_ranks(0.5, gaps.n)
    assert gaps.n == len(every) and None not in ranks
    assert [low, high] == pytest.approx([every[rank - 1] for rank in ranks if rank], rel=0.005)


def test_what_cut_turns_hide_has_no_range() -> None:
    cut = make.many(10, outcome=Outcome.CANCELLED, reason=Reason.RUN_END)
    found = ttft([100.0] * 150, *cut)
    assert found.p95 is None or "p95" in found.ranges
    assert found.p99 is None and "p99" not in found.ranges and "p50" in found.ranges


def test_nothing_has_no_range() -> None:
    assert ttft([]).ranges == {}
