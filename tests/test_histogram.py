"""The histogram: bucket layout, percentiles within 1 % of numpy's, and merging that forgets nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.metrics.histogram import (
    Histogram,
    bucket_bounds,
    bucket_of,
    bucket_value,
    buckets_of,
    rank_of,
)

MS = 1_000_000
LARGEST = 2**63 - 1
durations = st.one_of(st.integers(0, 1000), st.integers(0, 10**12), st.integers(0, LARGEST))
samples = st.lists(durations, max_size=60)


def of(values: list[int]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


@pytest.mark.parametrize(
    ("ns", "bucket", "reason"),
    [
        (0, 0, "zero has a bucket"),
        (255, 255, "last exact value"),
        (256, 256, "first shared bucket"),
        (257, 256, "two values wide"),
        (511, 383, "last of the first doubling"),
        (512, 384, "no hole between doublings"),
        (LARGEST, 7295, "the largest int64"),
    ],
)
def test_bucket_layout(ns: int, bucket: int, reason: str) -> None:
    assert bucket_of(ns) == bucket, reason


@given(durations)
def test_a_bucket_holds_its_value_and_is_narrow(ns: int) -> None:
    index = bucket_of(ns)
    low, high = bucket_bounds(index)
    assert low <= ns < high
    assert high - low == 1 or (high - low) * 128 <= low
    assert abs(bucket_value(index) - ns) * 100 <= ns


@given(st.integers(0, 7294))
def test_buckets_meet_without_gap(index: int) -> None:
    assert bucket_bounds(index)[1] == bucket_bounds(index + 1)[0]


@given(st.lists(durations, min_size=1))
def test_the_array_form_is_the_same(values: list[int]) -> None:
    assert buckets_of(np.array(values, dtype=np.int64)).tolist() == [bucket_of(value) for value in values]


@pytest.mark.parametrize("exponent", range(8, 63))
def test_the_array_form_at_powers_of_two(exponent: int) -> None:
    edges = [2**exponent - 1, 2**exponent, 2**exponent + 1]
    assert buckets_of(np.array(edges, dtype=np.int64)).tolist() == [bucket_of(edge) for edge in edges]


def test_negative_durations_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 ns"):
        bucket_of(-1)
    with pytest.raises(ValueError, match="-5 ns"):
        buckets_of(np.array([3, -5], dtype=np.int64))
    with pytest.raises(ValueError, match="-1"):
        bucket_bounds(-1)
    with pytest.raises(ValueError, match="times"):
        Histogram().add(1, -1)


@given(samples.filter(bool), st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]))
def test_percentile_is_within_one_percent_of_the_exact_one(values: list[int], q: float) -> None:
    found = of(values).percentile(q)
    exact = sorted(values)[rank_of(q, len(values)) - 1]
    assert found is not None
    assert min(values) <= found <= max(values)
    assert abs(found - exact) * 100 <= exact


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_rank_is_numpys_inverted_cdf(values: list[int], q: float) -> None:
    exact = sorted(values)[rank_of(q, len(values)) - 1]
    assert exact == int(np.quantile(np.array(values, dtype=np.int64), q, method="inverted_cdf"))


@pytest.mark.parametrize(
    ("q", "n", "rank", "reason"),
    [
        (0.0, 10, 1, "the minimum"),
        (1.0, 10, 10, "the maximum"),
        (0.99, 100, 99, "one of a hundred is above"),
        (0.07, 100, 7, "0.07 * 100 is 7.000000000000001 in floating point"),
        (0.999, 1000, 999, "one of a thousand is above"),
        (0.5, 1, 1, "a single value"),
    ],
)
def test_rank(q: float, n: int, rank: int, reason: str) -> None:
    assert rank_of(q, n) == rank, reason


@pytest.mark.parametrize("q", [-0.1, 1.1, 99.0])
def test_a_percentile_is_a_share(q: float) -> None:
    with pytest.raises(ValueError, match="share"):
        of([1]).percentile(q)


@given(samples, samples, samples)
def test_merging_is_commutative_associative_and_the_same_as_adding(a: list[int], b: list[int], c: list[int]) -> None:
    whole = of([*a, *b, *c])
    left, right = of(b), of(b)
    left.merge(of(a))
    left.merge(of(c))
    right.merge(of(c))
    first = of(a)
    first.merge(right)
    assert left == first == whole == Histogram.merged([of(c), of(a), of(b)])


@given(samples)
def test_an_empty_histogram_is_neutral(values: list[int]) -> None:
    made = of(values)
    made.merge(Histogram())
    other = Histogram()
    other.merge(of(values))
    assert made == other == of(values)
    assert made.min == (min(values) if values else None)
    assert made.max == (max(values) if values else None)


@given(samples)
def test_add_many_is_add_for_each(values: list[int]) -> None:
    many = Histogram()
    many.add_many(np.array(values, dtype=np.int64))
    assert many == of(values)
    assert many.total == sum(values)


@given(samples, samples)
def test_sparse_form_merges_like_the_values(a: list[int], b: list[int]) -> None:
    back = Histogram.from_sparse(of(a).counts)
    back.merge(Histogram.from_sparse(of(b).counts))
    whole = of([*a, *b])
    assert back == Histogram.from_sparse(whole.counts)
    assert back.counts == whole.counts
    for q in (0.5, 0.99):
        exact, found = whole.percentile(q), back.percentile(q)
        assert (exact is None) == (found is None)
        assert exact is None or found is None or abs(found - exact) * 100 <= exact


def test_an_empty_histogram_has_no_figures() -> None:
    empty = Histogram.from_sparse({7: 0})
    assert (empty.n, empty.min, empty.max, empty.mean, empty.percentile(0.5)) == (0, None, None, None, None)


def test_mean_and_repr() -> None:
    made = of([1, 2, 6])
    assert made.mean == 3.0
    assert repr(made) == "Histogram(n=3, min=1, max=6)"
    assert made != 3


def test_sp_01_no_rounding_to_two_digits() -> None:
    slow = of([12_499 * MS] * 99 + [12_501 * MS])
    p99 = slow.percentile(0.99)
    assert p99 is not None and slow.max == 12_501 * MS
    assert 12_499 * MS * 0.99 <= p99 <= 12_501 * MS
    tiny = of([200_000, 300_000, 400_000, 450_000])
    assert tiny.min == 200_000
    p50 = tiny.percentile(0.5)
    assert p50 is not None and abs(p50 - 300_000) <= 3_000


def test_sp_09_percentiles_come_from_merged_histograms() -> None:
    fast, slow = Histogram(), Histogram()
    fast.add(10 * MS, 990)
    slow.add(10_000 * MS, 10)
    mix = Histogram.merged([fast, slow])
    p99 = mix.percentile(0.99)
    assert p99 is not None and abs(p99 - 10 * MS) <= 0.1 * MS
    assert mix.percentile(0.999) == 10_000 * MS
