"""Ranges and differences: they hold what is true as often as they say, and turn around with the comparison."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.compare.intervals import (
    Difference,
    Estimate,
    averaged,
    difference,
    of_mean,
    of_rate,
    of_share,
    plain_difference,
    verdict_of,
)
from infersiege.metrics.histogram import Histogram
from infersiege.metrics.orders import range_ranks

DRAWS = 400
"""Of which a 95 % range misses 20 on average, and more than 40 with a chance below one in 10,000."""


@st.composite
def estimates(draw: st.DrawFn, *, most: float = 1e6) -> Estimate:
    value = draw(st.floats(1e-3, most))
    return Estimate(value, value * draw(st.floats(0.1, 1)), value * draw(st.floats(1, 10)))


@given(st.lists(estimates(), min_size=1, max_size=4), st.lists(estimates(), min_size=1, max_size=4))
def test_a_difference_is_in_its_range_and_turns_around(before: list[Estimate], after: list[Estimate]) -> None:
    there, back = difference(before, after, share=False), difference(after, before, share=False)
    assert there is not None and back is not None
    assert there.low is not None and there.high is not None and back.low is not None and back.high is not None
    assert there.low <= there.change <= there.high
    assert (1 + there.change) * (1 + back.change) == pytest.approx(1)
    assert (1 + there.low) * (1 + back.high) == pytest.approx(1)


@given(st.lists(estimates(most=1), min_size=1, max_size=4), st.lists(estimates(most=1), min_size=1, max_size=4))
def test_shares_differ_in_points(before: list[Estimate], after: list[Estimate]) -> None:
    there, back = difference(before, after, share=True), difference(after, before, share=True)
    assert there is not None and back is not None and there.low is not None and back.high is not None
    assert there.change == pytest.approx(averaged([one.value for one in after], share=True)
                                         - averaged([one.value for one in before], share=True))  # fmt: skip
    assert there.low == pytest.approx(-back.high)


@given(estimates())
def test_the_wider_a_range_is_the_wider_is_the_difference(one: Estimate) -> None:
    wide = Estimate(one.value, one.low / 2, one.high * 2)
    narrow, broad = difference([one], [one], share=False), difference([one], [wide], share=False)
    assert narrow is not None and broad is not None and narrow.high is not None and broad.high is not None
    assert broad.high > narrow.high
    assert narrow.change == broad.change == 0


@pytest.mark.parametrize(
    ("before", "after", "share", "change", "reason"),
    [
        (200.0, 220.0, False, 0.1, "a latency by its ratio"),
        (0.02, 0.05, True, 0.03, "a share by its points"),
        (0.0, 0.05, True, 0.05, "no error before is a share like any other"),
        (0.0, 5.0, False, None, "nothing is a multiple of 0"),
        (5.0, 0.0, False, -1.0, "but 0 is a share of 5"),
    ],
)
def test_differences_without_a_range(
    before: float, after: float, share: bool, change: float | None, reason: str
) -> None:
    found = plain_difference(before, after, share=share)
    assert (None if found is None else found.change) == (None if change is None else pytest.approx(change)), reason


@pytest.mark.parametrize(
    ("low", "high", "better", "says", "reason"),
    [
        (0.01, 0.2, "lower", "worse", "a latency that rose"),
        (-0.2, -0.01, "lower", "better", "and one that fell"),
        (0.01, 0.2, "higher", "better", "a rate that rose"),
        (-0.1, 0.2, "lower", "", "the range holds 0"),
        (0.0, 0.2, "lower", "", "0 itself may be true"),
        (0.01, 0.2, None, "differs", "a length is neither"),
        (None, 0.2, "lower", "", "without an end nothing is known"),
    ],
)
def test_what_a_difference_says(low: float | None, high: float | None, better: str, says: str, reason: str) -> None:
    change = ((low or 0.0) + (high or 0.0)) / 2
    assert verdict_of(Difference(change, low, high), better) == says, reason  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- as often as they say


def misses(draw: Callable[[np.random.Generator], Estimate | Difference | None], truth: float) -> int:
    found = [draw(np.random.default_rng(seed)) for seed in range(DRAWS)]
    ends = [one[1:] for one in found if one is not None]
    assert len(ends) == DRAWS
    return sum(low is None or high is None or not low <= truth <= high for low, high in ends)


def shape_of(values_ms: npt.ArrayLike) -> Histogram:
    made = Histogram()
    made.add_many(np.array(np.asarray(values_ms) * 1e6, dtype=np.int64))
    return made


def median_of(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Estimate:
    rising = np.sort(values)
    low, high = range_ranks(0.5, rising.size)
    assert low is not None and high is not None
    return Estimate(float(rising[math.ceil(rising.size / 2) - 1]), float(rising[low - 1]), float(rising[high - 1]))


def test_the_range_of_a_mean_holds_it() -> None:
    def draw(random: np.random.Generator) -> Estimate | None:
        values = random.lognormal(4, 0.5, 400)
        return of_mean(shape_of(values), float(values.mean()), 1e6)

    assert 2 <= misses(draw, math.exp(4 + 0.125)) <= 40


def test_the_range_of_a_share_holds_it() -> None:
    assert 2 <= misses(lambda random: of_share(int(random.binomial(600, 0.03)), 600), 0.03) <= 40


def test_the_range_of_a_rate_holds_it_though_seconds_are_alike() -> None:
    def draw(random: np.random.Generator) -> Estimate | None:
        # What is open at the end of a second comes in the next one: neighbours are alike.
        seconds = random.poisson(50, 244).astype(float)
        smooth = np.convolve(seconds, np.full(5, 0.2), mode="valid").tolist()
        return of_rate(smooth, sum(smooth) / len(smooth))

    assert 2 <= misses(draw, 50.0) <= 48


def test_the_range_of_a_ratio_of_medians_holds_it() -> None:
    def draw(random: np.random.Generator) -> Difference | None:
        sides = [median_of(random.lognormal(mean, 0.5, 300)) for mean in (4.0, 4.1)]
        return difference([sides[0]], [sides[1]], share=False)

    assert 2 <= misses(draw, math.expm1(0.1)) <= 40


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (of_mean(shape_of([100.0] * 29), 100.0, 1e6), "29 values are no normal distribution"),
        (of_share(0, 0), "no turn"),
        (of_rate([5.0] * 39, 5.0), "39 s are too few parts"),
        (of_rate([0.0] * 100, 0.0), "nothing came"),
    ],
)
def test_too_little_gives_no_range(found: Estimate | None, reason: str) -> None:
    assert found is None, reason


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_share_is_in_its_range_and_a_range_is_of_shares(counts: tuple[int, int]) -> None:
    found = of_share(*counts)
    assert found is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high
