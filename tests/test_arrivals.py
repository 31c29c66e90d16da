"""The arrival processes: spacing, seeds, and sequences that stay what they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from itertools import islice, pairwise
from math import gamma, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import InternalError, UsageError
from infersiege.schedule import ARRIVALS, SECOND_NS, arrival_process, open_tickets, stream_seed

HOUR_NS = 3600 * SECOND_NS
KS_LIMIT = 1.95
"""Times 1 / sqrt(n): one in a thousand right samples would be above it, and the seeds are fixed."""


def gaps_of(offsets: list[int]) -> np.ndarray:
    return np.diff(np.array(offsets, dtype=np.float64))


def gamma_share(shape: float, scaled: np.ndarray) -> np.ndarray:
    """P(shape, x), the share of gaps up to x: the series of DLMF 8.7.1, which converges everywhere."""
    term = np.full_like(scaled, 1 / gamma(shape + 1))
    total = term.copy()
    for n in range(1, 400):
        term = term * scaled / (shape + n)
        total += term
    return np.asarray(np.where(scaled > 60, 1.0, total * np.exp(-scaled) * scaled**shape))


def distance(sample: np.ndarray, share_up_to: Callable[[np.ndarray], np.ndarray], *, from_: float = 0.0) -> float:
    """Kolmogorov-Smirnov statistic times sqrt(n), of what is at least `from_`: below it lies what ns can't tell."""
    n = len(sample)
    ordered = np.sort(sample)
    seen = ordered >= from_
    shares, steps = share_up_to(ordered[seen]), np.arange(n + 1) / n
    return float(max((steps[1:][seen] - shares).max(), (shares - steps[:-1][seen]).max()) * sqrt(n))


def offsets_of(arrivals: str, *, rate: float, n: int, seed: int, burstiness: float | None = None, **more) -> list[int]:
    tickets = open_tickets(
        rate=rate, arrivals=arrivals, burstiness=burstiness, weights=[1], seed=seed, sessions=n, **more
    )
    return [ticket.offset_ns for ticket in tickets]


@pytest.mark.parametrize(
    ("arrivals", "rate", "seed", "first_500", "later"),
    [
        ("constant", 7.3, 1, "c31f38a4502f33a4", {4095: 560958904110, 4096: 561095890411, 10000: 1369863013699}),
        ("constant", 40.0, 2, "18aa7552fea00768", {4095: 102375000000, 4096: 102400000000, 10000: 250000000000}),
        ("constant", 1e-6, 3, "8529d8235ada84a7", {4095: 4095000000000000185, 10000: 1 << 62}),
        ("poisson", 40.0, 11, "8c7d55f20ff6f352", {4095: 102665652300, 4096: 102698187564, 10000: 250744141468}),
        ("poisson", 7.3, 1, "69fa8a60c3946807", {4095: 554282767307, 4096: 554401540071, 10000: 1371209761283}),
        ("poisson", 0.25, 2**40, "05da801b0cc41c57", {4095: 16383146637657, 10000: 40425740120002}),
    ],
)
def test_sequences_of_the_first_version_are_the_same_to_the_bit(arrivals, rate, seed, first_500, later):
    """Taken from the code before stages, streams and gamma: a plan that ran then runs the same way now."""
    tickets = list(islice(open_tickets(rate=rate, arrivals=arrivals, weights=[1, 2.5], seed=seed), 10_001))
    rows = [[t.index, t.workload, t.session_index, t.offset_ns] for t in tickets[:500]]
    assert sha256(json.dumps(rows).encode()).hexdigest()[:16] == first_500
    assert {index: tickets[index].offset_ns for index in later} == later


def test_gamma_arrivals_stay_what_they_are():
    """Golden, to the microsecond: the sampler's logarithms may differ in the last bit between processors."""
    found = {
        shape: [at // 1000 for at in offsets_of("gamma", rate=10.0, n=4098, seed=5, burstiness=shape)[:: 4097 // 3]]
        for shape in (0.25, 2.5)
    }
    assert found == {
        0.25: [149218, 128184234, 273539717, 409993468],
        2.5: [58182, 137442197, 275144742, 412135080],
    }


def test_constant_arrivals_do_not_drift_over_ten_hours():
    """Exact to the nanosecond, at a rate whose gap is no whole number of them."""
    numerator, denominator = (7.3).as_integer_ratio()
    offsets = offsets_of("constant", rate=7.3, n=262_800, seed=1)
    assert offsets[0] == 0
    assert 10 * HOUR_NS - 2 * SECOND_NS // 7 < offsets[-1] < 10 * HOUR_NS
    worst = max(abs(at * numerator - k * denominator * SECOND_NS) for k, at in enumerate(offsets))
    assert 2 * worst <= numerator, "half a nanosecond, in whole numbers"


@pytest.mark.parametrize("shape", [0.1, 0.5, 1.0, 1.7, 4.0, 20.0])
def test_ls_05_rate_spacing_and_burstiness_of_gamma_and_poisson(shape):
    """LS-05: 40 arrivals/s. Rate within 4 sigma, gaps by Kolmogorov-Smirnov, their variation 1 / sqrt(shape)."""
    n = 40_000
    offsets = offsets_of("gamma", rate=40.0, n=n, seed=11, burstiness=shape)
    assert offsets == sorted(offsets)
    gaps = gaps_of(offsets) * 40 / SECOND_NS
    assert abs(n / (offsets[-1] / SECOND_NS) - 40) < 4 * 40 / sqrt(n * shape)
    assert distance(gaps, lambda x: gamma_share(shape, x * shape), from_=1e-6) < KS_LIMIT
    variation = float(gaps.std() / gaps.mean())
    # Delta method, with a gamma's skewness 2 cv and excess 6 cv**2: the relative variance is (1 + cv**2) / 2n.
    assert abs(variation * sqrt(shape) - 1) < 4 * sqrt((1 + 1 / shape) / (2 * n))


def test_the_spacing_test_tells_processes_apart():
    """A test that every sample passes would show nothing."""
    sample = gaps_of(offsets_of("poisson", rate=40.0, n=5000, seed=11)) * 40 / SECOND_NS
    assert distance(sample, lambda x: 1 - np.exp(-x)) < KS_LIMIT
    assert distance(sample, lambda x: gamma_share(1.2, x * 1.2)) > KS_LIMIT
    assert distance(sample * 1.1, lambda x: 1 - np.exp(-x)) > KS_LIMIT


def test_constant_spacing_is_one_gap():
    offsets = offsets_of("constant", rate=3.0, n=5000, seed=1)
    assert set(gaps_of(offsets)) == {333_333_333, 333_333_334}


def test_a_burstiness_of_one_is_poisson_itself():
    assert offsets_of("gamma", rate=3.0, n=5000, seed=8, burstiness=1.0) == offsets_of(
        "poisson", rate=3.0, n=5000, seed=8
    )


@pytest.mark.parametrize("shape", [0.1, 3.0])
def test_gamma_has_the_asked_rate_from_the_first_instant_on(shape):
    """A sequence that began with a burst, as one that starts with a whole gap does, would have 4.5 more at 0.1."""
    runs, mean = 1500, 20.0
    counts = [
        sum(
            1
            for _ in open_tickets(
                rate=mean, arrivals="gamma", burstiness=shape, weights=[1], seed=seed, duration_ns=SECOND_NS
            )
        )
        for seed in range(runs)
    ]
    error = np.std(counts) / sqrt(runs)
    assert abs(np.mean(counts) - mean) < 4 * error
    assert error < 0.5, "it can tell 4.5 from 0"


def test_poisson_of_one_worker_keeps_its_share_of_the_rate():
    n = 20_000
    part = offsets_of("poisson", rate=40.0, n=n, seed=3, place=2, members=4)
    assert len(part) == n // 4
    assert abs(len(part) / (part[-1] / 1e9) - 10) < 4 * 10 / len(part) ** 0.5


@settings(deadline=None, max_examples=60)
@given(name=st.sampled_from(sorted(ARRIVALS)), seed=st.integers(0, 2**63), shape=st.floats(1e-3, 1e6))
def test_counts_and_offsets_are_one_sequence(name, seed, shape):
    """What stages map is what a fixed rate has, and neither ever falls."""
    process = arrival_process(name, seed, shape)
    offsets = [at for block in islice(process.offsets_ns(1.0), 2) for at in block]
    counts = [whole + float(part) for whole, parts in islice(process.counts(), 2) for part in parts]
    assert offsets == sorted(offsets) and counts == sorted(counts)
    assert len(offsets) == len(counts)
    assert max(abs(at / SECOND_NS - mark) / (1 + mark) for at, mark in zip(offsets, counts, strict=True)) < 2e-9


def test_whole_counts_are_kept_apart_from_their_parts():
    """After ten million arrivals a part still tells 1e-12 of a gap: one double for both would tell 2e-9."""
    blocks = arrival_process("poisson", 4).counts()
    whole, parts = next(islice(blocks, 2441, None))
    assert abs(whole + parts[0] - 10_000_000) < 4 * sqrt(10_000_000)
    assert 0 <= parts[0] < 20 and np.spacing(parts[-1]) < 1e-12
    assert all(after >= before for before, after in pairwise(parts))


def test_streams_have_seeds_of_their_own_and_the_first_has_the_runs():
    assert stream_seed(7, 0) == 7
    seeds = {stream_seed(seed, stream) for seed in range(50) for stream in range(20)}
    assert len(seeds) == 50 * 20
    with pytest.raises(InternalError, match="stream is -1"):
        stream_seed(7, -1)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf")])
def test_burstiness_without_meaning_is_refused(value):
    with pytest.raises(InternalError, match="burstiness is"):
        arrival_process("gamma", 1, value)


def test_gamma_without_burstiness_is_a_usage_error_with_a_hint():
    with pytest.raises(UsageError, match="burstiness") as caught:
        arrival_process("gamma", 1)
    assert "1 is Poisson" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trace", 'mode "replay"'),
        ("poison", "unknown"),
    ],
)
def test_unknown_arrival_processes_say_what_is_known(name, message):
    with pytest.raises(UsageError, match=message):
        list(open_tickets(rate=1.0, arrivals=name, weights=[1], seed=1, sessions=1))


@pytest.mark.parametrize("arrivals", sorted(ARRIVALS))
@pytest.mark.parametrize("rate", [1e-9, 1e-6, 1e9])
def test_extreme_rates_give_offsets_that_do_not_fall_and_fit_64_bits(arrivals, rate):
    """No warning of numpy (pytest makes it an error), no negative offset of a number that overflowed."""
    common = {"rate": rate, "arrivals": arrivals, "weights": [1], "seed": 1, "burstiness": 0.05}
    offsets = [t.offset_ns for t in open_tickets(**common, sessions=20_000)]
    assert len(offsets) == 20_000
    assert offsets == sorted(offsets)
    assert offsets[0] >= 0
    assert offsets[-1] < 1 << 63
    days_ns = 30 * 24 * HOUR_NS
    early = list(islice(open_tickets(**common, duration_ns=days_ns), 20_000))
    assert [t.offset_ns for t in early] == [at for at in offsets if at < days_ns]
