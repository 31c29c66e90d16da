"""The engines' own histograms: their text, merging, percentiles, and how far a percentile can be from the truth."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents.engine_histograms import (
    Buckets,
    from_cumulative,
    merge,
    parse,
    percentile,
    percentile_bounds,
    text_of,
)

BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, math.inf)
"""Like those of vLLM."""

values_s = st.lists(st.floats(0, 20, allow_nan=False), max_size=60)
some_values_s = st.lists(st.floats(0, 20, allow_nan=False), min_size=1, max_size=60)
shares = st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0])


def of(values: list[float], bounds: tuple[float, ...] = BOUNDS) -> Buckets:
    """As an engine's page has them: running totals by upper bound."""
    return from_cumulative({bound: float(sum(value <= bound for value in values)) for bound in bounds})


@given(values_s)
def test_the_text_says_everything(values: list[float]) -> None:
    assert parse(text_of(of(values))) == of(values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], ""),
        ([0.0005], "0.001:1"),  # the first bucket begins at 0
        ([0.2, 0.2, 0.2], "0.1:0 0.25:3"),  # a lower edge is written although nothing lies below it
        ([0.05, 0.2, 20.0], "0.025:0 0.1:1 0.25:1 10:0 +Inf:1"),
    ],
)
def test_the_text_is_compact_and_has_each_lower_edge(values: list[float], text: str) -> None:
    assert text_of(of(values)) == text


@given(values_s, values_s, values_s)
def test_merging_is_exact_in_any_order_and_grouping(one: list[float], two: list[float], three: list[float]) -> None:
    together = of(one + two + three)
    assert merge([of(one), of(two), of(three)]) == together
    assert merge([of(three), merge([of(one), of(two)])]) == together
    assert merge([together, Buckets()]) == together
    assert merge([]) == Buckets()
    # What the report does: it has nothing but the texts.
    assert merge(parse(text_of(of(part))) for part in (two, one, three)) == together


@given(some_values_s, shares)
def test_the_true_percentile_lies_in_the_bounds(values: list[float], share: float) -> None:
    truth = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    bounds = percentile_bounds(of(values), share)
    estimate = percentile(of(values), share)
    assert bounds is not None and estimate is not None
    assert bounds[0] <= truth <= bounds[1]
    assert bounds[0] <= estimate <= bounds[1]
    assert bounds in zip((0.0, *BOUNDS), BOUNDS, strict=False), "the width is that of one bucket of the engine"


@given(some_values_s)
def test_percentiles_rise(values: list[float]) -> None:
    found = [percentile(of(values), share / 100) for share in range(101)]
    assert all(a is not None and b is not None and a <= b + 1e-12 for a, b in pairwise(found))


@given(some_values_s, some_values_s, shares)
def test_merging_never_takes_a_percentile_out_of_its_parts(one: list[float], two: list[float], share: float) -> None:
    parts = sorted(value for part in (one, two) if (value := percentile(of(part), share)) is not None)
    both = percentile(merge([of(one), of(two)]), share)
    assert both is not None and parts[0] - 1e-9 <= both <= parts[-1] + 1e-9


def test_interpolation_is_that_of_prometheus() -> None:
    # histogram_quantile(0.5) of 10 values in (0.1, 0.25] and 10 in (0.25, 0.5]: the edge; 0.75: the middle of the last.
    buckets = from_cumulative({0.1: 0, 0.25: 10, 0.5: 20, math.inf: 20})
    assert percentile(buckets, 0.5) == pytest.approx(0.25)
    assert percentile(buckets, 0.75) == pytest.approx(0.375)
    assert percentile(buckets, 0.25) == pytest.approx(0.175)


def test_above_all_bounds_it_is_at_least_the_highest() -> None:
    buckets = of([30.0, 40.0, 50.0])
    assert percentile(buckets, 0.5) == 10.0
    assert percentile_bounds(buckets, 0.5) == (10.0, math.inf)


def test_no_values_have_no_percentile() -> None:
    assert percentile(Buckets(), 0.5) is None
    assert percentile_bounds(Buckets(), 0.5) is None


def test_a_bucket_at_zero_has_no_width() -> None:
    assert percentile(from_cumulative({0.0: 3, math.inf: 3}), 0.5) == 0.0
    assert parse(text_of(from_cumulative({0.0: 3, 1.0: 3}))) == from_cumulative({0.0: 3, 1.0: 3})


def test_replicas_of_different_bounds_still_have_a_percentile_but_no_text() -> None:
    both = merge([of([0.3] * 10), of([0.3] * 10, (0.2, 0.4, math.inf))])
    value = percentile(both, 0.5)
    assert value is not None and 0.2 <= value <= 0.5
    with pytest.raises(ValueError, match="overlap"):
        text_of(both)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        percentile(of([0.2]), share)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.1", "no count"),
        ("0.1:", "an empty count"),
        ("0.1:1.5", "half a value"),
        ("0.1:-1", "less than none"),
        ("x:1", "no bound"),
        ("nan:1", "no bound either"),
        ("0.2:1 0.1:1", "bounds fall"),
        ("0.1:1 0.1:1", "a bound twice"),
        ("-1:2", "a time below 0"),
        ("0.1:1,0.2:1", "another separator"),
    ],
)
def test_another_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="bucket"):
        parse(text)


@given(st.text(alphabet="0123456789.:+-Infe \n\t,x", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        buckets = parse(text)
    except ValueError:
        return
    assert parse(text_of(buckets)) == buckets


def test_a_page_written_while_it_counted_makes_no_negative_bucket() -> None:
    assert of([]).n == 0
    assert from_cumulative({0.1: 5, 0.25: 4, math.inf: 6}) == Buckets({(0.0, 0.1): 5, (0.25, math.inf): 1})
