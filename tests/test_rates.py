"""Rates over time: exact against numeric integration, the right counts per stage, the same on any number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import islice, pairwise
from math import isclose, pi, sin, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import InternalError
from infersiege.schedule import (
    ARRIVALS,
    SECOND_NS,
    RateStage,
    Ticket,
    arrival_process,
    closed_tickets,
    expected,
    merge_streams,
    open_tickets,
    rate_at,
    replay_tickets,
)

HOUR_NS = 3600 * SECOND_NS
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(24)


def integral(stage: RateStage, to_ns: float) -> float:
    """Arrivals from the start of the stage to `to_ns` after it: Gauss-Legendre on the formula in the docstring of
    RateStage, an eighth of a period at a time. Written without a look at the closed forms."""
    ramp_ns, end_ns = stage.ramp_ns, stage.end_ns - stage.start_ns
    edges = {0.0, float(ramp_ns), float(end_ns)}
    if stage.sine_amplitude:
        edges |= set(np.arange(ramp_ns, end_ns, stage.sine_period_ns / 8))
    bounds = sorted({edge for edge in edges if edge < to_ns} | {to_ns})
    total = 0.0
    for low, high in pairwise(bounds):
        at = low + (high - low) * (POINTS + 1) / 2
        if high <= ramp_ns:
            rates = stage.rate_from + (stage.rate - stage.rate_from) * at / ramp_ns
        elif stage.sine_amplitude:
            rates = stage.rate * (1 + stage.sine_amplitude * np.sin(2 * pi * (at - ramp_ns) / stage.sine_period_ns))
        else:
            rates = np.full_like(at, stage.rate)
        total += float((rates * WEIGHTS).sum()) * (high - low) / 2 / SECOND_NS
    return total


def offsets_of(stages: Sequence[RateStage], arrivals: str = "constant", seed: int = 1, **more) -> list[int]:
    return [t.offset_ns for t in open_tickets(arrivals=arrivals, weights=[1], seed=seed, stages=stages, **more)]


@st.composite
def rate_stages(draw: st.DrawFn, most: int = 4) -> list[RateStage]:
    """Steps, ramps up and down (also from and to nothing), sine after a ramp, with pauses and without."""
    stages, at_ns = [], draw(st.sampled_from([0, 0, 1_500_000_001]))
    for _ in range(draw(st.integers(1, most))):
        length_ns = draw(st.integers(1, 20 * SECOND_NS))
        sine = draw(st.booleans())
        stages.append(
            RateStage(
                at_ns,
                at_ns + length_ns,
                rate_from=draw(st.sampled_from([0.0, 0.3, 7.3, 20.0])),
                rate=draw(st.sampled_from([0.0, 0.1, 3.0, 7.3, 19.9])),
                ramp_ns=draw(st.sampled_from([0, length_ns // 3, length_ns])),
                sine_amplitude=draw(st.floats(0.01, 1.0)) if sine else 0.0,
                sine_period_ns=draw(st.integers(SECOND_NS // 2, 30 * SECOND_NS)) if sine else 0,
            )
        )
        at_ns += length_ns + draw(st.sampled_from([0, 0, 1, 5 * SECOND_NS]))
    return stages


@settings(deadline=None, max_examples=60)
@given(stages=rate_stages())
def test_each_arrival_is_where_the_integral_of_the_rate_has_its_number(stages):
    """Constant arrivals have the numbers 0, 1, 2 …: exact to 1 ns against numeric integration, none missing."""
    offsets = offsets_of(stages)
    number, before = 0, 0.0
    for stage in stages:
        length_ns = stage.end_ns - stage.start_ns
        mine = [at - stage.start_ns for at in offsets if stage.start_ns <= at < stage.end_ns]
        for since_ns in mine:
            low = before + (integral(stage, since_ns - 1) if since_ns > 1 else 0.0)
            high = before + integral(stage, min(since_ns + 1, length_ns))
            assert low - 1e-10 <= number <= high + 1e-10 or (since_ns == 0 and number <= before + 1e-10)
            number += 1
        before += integral(stage, length_ns)
        assert isclose(expected(stage), integral(stage, length_ns), rel_tol=1e-11, abs_tol=1e-12)
    assert number == len(offsets), "an arrival outside every stage"
    # 1e-7: the last number may lie less than a nanosecond before the end, which is the end.
    assert before - 1e-7 <= number < before + 1 + 1e-10
    assert offsets == sorted(offsets)


@settings(deadline=None, max_examples=60)
@given(stages=rate_stages(), share=st.floats(0, 1), other=st.floats(0, 1))
def test_expected_of_a_part_and_the_rate_at_an_instant(stages, share, other):
    for stage in stages:
        length_ns = stage.end_ns - stage.start_ns
        low, high = sorted((round(share * length_ns), round(other * length_ns)))
        part = expected(stage, stage.start_ns + low, stage.start_ns + high)
        assert isclose(part, integral(stage, high) - integral(stage, low), rel_tol=1e-9, abs_tol=1e-9)
        assert isclose(expected(stage, 0, 10**15), expected(stage))
        assert expected(stage, stage.end_ns, 10**15) == expected(stage, 0, stage.start_ns) == 0
        if high < length_ns:
            flat_ns = high - stage.ramp_ns
            if flat_ns < 0:
                asked = stage.rate_from + (stage.rate - stage.rate_from) * high / stage.ramp_ns
            else:
                swing = stage.sine_amplitude and stage.sine_amplitude * sin(2 * pi * flat_ns / stage.sine_period_ns)
                asked = stage.rate * (1 + swing)
            assert isclose(rate_at(stages, stage.start_ns + high), asked, rel_tol=1e-9, abs_tol=1e-9)
    assert rate_at(stages, stages[-1].end_ns) == 0
    assert stages[0].start_ns == 0 or rate_at(stages, 0) == 0


@pytest.mark.parametrize("rate", [7.3, 0.1])
def test_one_flat_stage_is_the_fixed_rate(rate):
    stage = RateStage(0, HOUR_NS, rate, rate)
    fixed = {"rate": rate, "weights": [1], "seed": 4, "duration_ns": HOUR_NS}
    for arrivals in sorted(ARRIVALS):
        shape = 0.4 if arrivals == "gamma" else None
        plain = [t.offset_ns for t in open_tickets(arrivals=arrivals, burstiness=shape, **fixed)]
        staged = offsets_of([stage], arrivals, seed=4, burstiness=shape)
        assert len(plain) == len(staged)
        assert max(abs(a - b) for a, b in zip(plain, staged, strict=True)) <= 1, arrivals


def test_constant_arrivals_do_not_drift_over_ten_hours_of_stages():
    """Exact to the nanosecond in the tenth hour, after ramps, pauses and nine other rates: compared with fractions."""
    stages = []
    for hour in range(10):
        rate = 3.3 + hour * 1.7
        stages.append(RateStage(hour * HOUR_NS, (hour + 1) * HOUR_NS - 7, rate / 3, rate, ramp_ns=600 * SECOND_NS))
    offsets = offsets_of(stages)
    total = Fraction(0)
    for stage in stages[:-1]:
        ramp, flat = Fraction(stage.ramp_ns, SECOND_NS), Fraction(stage.end_ns - stage.start_ns, SECOND_NS)
        total += (Fraction(stage.rate_from) + Fraction(stage.rate)) / 2 * ramp + Fraction(stage.rate) * (flat - ramp)
    last = stages[-1]
    ramped = (Fraction(last.rate_from) + Fraction(last.rate)) / 2 * 600
    checked = 0
    for number, at_ns in enumerate(offsets):
        if at_ns >= last.start_ns + last.ramp_ns:
            exact = last.start_ns + last.ramp_ns + (number - total - ramped) / Fraction(last.rate) * SECOND_NS
            assert abs(at_ns - exact) < 1
            checked += 1
    assert checked > 50_000


@pytest.mark.parametrize(("arrivals", "shape"), [("poisson", None), ("gamma", 0.3), ("gamma", 5.0), ("constant", None)])
def test_ls_05_every_stage_has_its_rate_and_spacing(arrivals, shape):
    """LS-05 with ramp, spike, pause and sine: counts within 4 sigma, and mapped back the process at unit rate."""
    s = SECOND_NS
    stages = [
        RateStage(0, 300 * s, 0, 20, ramp_ns=200 * s),
        RateStage(300 * s, 330 * s, 20, 200),
        RateStage(330 * s, 600 * s, 200, 10, ramp_ns=50 * s),
        RateStage(700 * s, 1300 * s, 30, 30, sine_amplitude=0.8, sine_period_ns=100 * s),
    ]
    offsets = offsets_of(stages, arrivals, seed=3, burstiness=shape)
    variance = {"constant": 0.0, "poisson": 1.0}.get(arrivals, 1 / (shape or 1))
    blocks = islice(arrival_process(arrivals, 3, shape).counts(), 10)
    unit = [whole + part for whole, parts in blocks for part in parts.tolist()]
    before, number = 0.0, 0
    for stage in stages:
        mine = [at for at in offsets if stage.start_ns <= at < stage.end_ns]
        assert abs(len(mine) - expected(stage)) <= 4 * sqrt(expected(stage) * variance) + 1
        for place in range(0, len(mine), max(1, len(mine) // 200)):
            count = before + integral(stage, mine[place] - stage.start_ns)
            assert abs(count - unit[number + place]) < 1e-6, (
                "so its spacing is that of test_arrivals, seen on its clock"
            )
        before, number = before + expected(stage), number + len(mine)
    assert len(offsets) == number, "and nothing arrives elsewhere"


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_each_period_of_a_sine_has_the_mean_of_its_rate_and_each_half_its_swing(arrivals):
    """Mean 50/s, amplitude 0.6: halves differ by 2 * 2 A / (2 pi) = 0.382 of the whole."""
    period_ns = 40 * SECOND_NS
    stage = RateStage(0, 20 * period_ns, 50, 50, sine_amplitude=0.6, sine_period_ns=period_ns)
    offsets = offsets_of([stage], arrivals, seed=2)
    counts = np.bincount(np.array(offsets) // (period_ns // 2), minlength=40)
    periods = counts.reshape(20, 2)
    noise = 4 * sqrt(2000) if arrivals == "poisson" else 1
    assert all(abs(total - 2000) <= noise for total in periods.sum(axis=1))
    swing = (periods[:, 0] - periods[:, 1]).mean()
    assert abs(swing - 2000 * 2 * 0.6 * 2 / (2 * pi)) <= max(2.0, noise / sqrt(20))


def test_a_sine_over_a_day_is_exact_to_the_nanosecond():
    """A nanosecond of a day is 7e-14 of a turn."""
    day_ns = 24 * HOUR_NS
    stage = RateStage(0, day_ns, 0.5, 0.5, sine_amplitude=0.9, sine_period_ns=day_ns)
    offsets = offsets_of([stage])
    assert len(offsets) == 43_200
    for number in range(1, 43_200, 101):
        # 1e-10: what the sums of this test itself can tell of 43,200.
        assert integral(stage, offsets[number] - 1) - 1e-10 <= number <= integral(stage, offsets[number] + 1) + 1e-10


def test_a_sine_that_reaches_zero_is_solved_there_too():
    """Amplitude 1: the rate is 0 at its lowest, where Newton's method would divide by it."""
    stage = RateStage(0, 100 * SECOND_NS, 1e3, 1e3, sine_amplitude=1.0, sine_period_ns=10 * SECOND_NS)
    offsets = offsets_of([stage])
    assert len(offsets) == 100_000
    assert offsets == sorted(offsets) and offsets[-1] < stage.end_ns
    for number in range(0, 100_000, 997):
        assert abs(integral(stage, offsets[number]) - number) < 1e-4


@settings(deadline=None, max_examples=40)
@given(
    stages=rate_stages(),
    arrivals=st.sampled_from(sorted(ARRIVALS)),
    seed=st.integers(0, 2**40),
    stream=st.integers(0, 3),
)
def test_the_same_plan_and_seed_give_the_same_arrivals_on_1_2_and_7_workers(stages, arrivals, seed, stream):
    common = {
        "arrivals": arrivals,
        "burstiness": 0.5,
        "weights": [1, 2.5],
        "seed": seed,
        "stages": stages,
        "stream": stream,
        "available": [30, None],
    }
    alone = list(open_tickets(**common))
    for members in (2, 7):
        parts = [list(open_tickets(**common, place=place, members=members)) for place in range(members)]
        assert sorted((t for part in parts for t in part), key=lambda t: t.index) == alone
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [t.index for t in alone] == list(range(len(alone)))
    offsets = [t.offset_ns for t in alone]
    assert offsets == sorted(offsets)
    assert all(any(stage.start_ns <= at < stage.end_ns for stage in stages) for at in offsets)


def test_what_would_round_to_the_end_belongs_to_the_next_stage_or_to_none():
    """0.1 as a double is above a tenth: ten seconds of it hold a second arrival, 1e-16 s before the end."""
    ten_ns = 10 * SECOND_NS
    assert expected(RateStage(0, ten_ns, 0.1, 0.1)) >= 1
    assert offsets_of([RateStage(0, ten_ns, 0.1, 0.1)]) == [0]
    third = RateStage(0, 666_666_667, 3, 3)  # its third arrival is a third of a nanosecond before the end
    assert offsets_of([third]) == [0, 333_333_333]
    assert offsets_of([third, RateStage(SECOND_NS, SECOND_NS + 5, 3, 3)]) == [0, 333_333_333, SECOND_NS]
    two = [RateStage(0, ten_ns, 0.1, 0.1), RateStage(3 * ten_ns, 4 * ten_ns, 0.1, 0.1)]
    assert offsets_of(two) == [0, 3 * ten_ns]
    assert offsets_of([two[0], RateStage(ten_ns, 2 * ten_ns, 0.0, 0.0), two[1]]) == [0, 3 * ten_ns]


def test_nothing_arrives_between_stages_and_nothing_is_caught_up_after_them():
    stages = [RateStage(0, SECOND_NS, 5, 5), RateStage(61 * SECOND_NS, 62 * SECOND_NS, 5, 5)]
    at = [0, 200_000_000, 400_000_000, 600_000_000, 800_000_000]
    assert offsets_of(stages) == at + [61 * SECOND_NS + one for one in at]


def test_sessions_and_duration_end_stages_early():
    stages = [RateStage(0, 10 * SECOND_NS, 5, 5)]
    assert len(offsets_of(stages)) == 50
    assert len(offsets_of(stages, sessions=7)) == 7
    assert len(offsets_of(stages, duration_ns=SECOND_NS)) == 5


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((0, 0, 1, 1), "no time"),
        ((-1, 5, 1, 1), "before the start"),
        ((0, 5, -1, 1), "a negative rate"),
        ((0, 5, 1, float("nan")), "no number"),
        ((0, 5, 1, float("inf")), "all at once"),
        ((0, 5, 1, 1, 6), "a ramp that is longer than its stage"),
        ((0, 5, 1, 1, 0, 1.1, 5), "a sine below zero"),
        ((0, 5, 1, 1, 0, 0.5, 0), "a sine without period"),
    ],
)
def test_stages_without_meaning_are_refused(values, reason):
    with pytest.raises(InternalError, match="makes no sense"):
        RateStage(*values)
    assert reason


@pytest.mark.parametrize("stages", [[], [RateStage(5, 9, 1, 1), RateStage(8, 12, 1, 1)]])
def test_no_stages_and_overlapping_ones_are_refused(stages):
    with pytest.raises(InternalError, match="are none, or overlap"):
        offsets_of(stages)


def test_open_arrivals_without_rate_and_stages_are_refused():
    with pytest.raises(InternalError, match="rate or stages"):
        next(open_tickets(arrivals="constant", weights=[1], seed=1))


# ------------------------------------------------------------------------------------------------------------- streams


def test_streams_of_a_mixed_load_do_not_collide():
    """4 agents closed + 5 short-qa/s open + a replay: each ticket's (stream, index) and session are its own."""
    agents = list(closed_tickets(weights=[1], seed=7, sessions=40, stream=0, workloads=[1]))
    short = list(open_tickets(rate=5.0, arrivals="poisson", weights=[1], seed=7, sessions=200, stream=1, workloads=[0]))
    replay = list(replay_tickets([[0, 5, 9]], seed=7, stream=2, workloads=[2]))
    everything = agents + short + replay
    assert len({(t.stream, t.index) for t in everything}) == len({(t.workload, t.session_index) for t in everything})
    assert len({(t.stream, t.index) for t in everything}) == 243
    assert {(t.stream, t.workload) for t in everything} == {(0, 1), (1, 0), (2, 2)}


def test_stream_0_is_the_only_stream_of_other_plans():
    common = {"rate": 5.0, "arrivals": "poisson", "weights": [1, 2], "seed": 7, "sessions": 300}
    assert list(open_tickets(**common)) == list(open_tickets(**common, stream=0))
    assert all(ticket.stream == 0 for ticket in open_tickets(**common))


def test_streams_with_equal_rates_are_independent():
    """Two Poisson streams that share their random numbers would send pairs at one instant."""
    found = []
    for stream in (0, 1):
        offsets = offsets_of([RateStage(0, 2000 * SECOND_NS, 10, 10)], "poisson", seed=7, stream=stream)
        found.append(np.bincount(np.array(offsets) // SECOND_NS, minlength=2000))
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 4 / sqrt(2000)
    deals = [[t.workload for t in closed_tickets(weights=[1, 1], seed=7, sessions=99, stream=n)] for n in (0, 1)]
    assert deals[0] != deals[1]


@settings(deadline=None, max_examples=30)
@given(rates=st.lists(st.floats(0.5, 30), min_size=1, max_size=4), members=st.integers(1, 7))
def test_streams_merge_in_order_of_time_on_every_worker(rates, members):
    def streams(**split: int) -> list[list[Ticket]]:
        return [
            list(
                open_tickets(
                    rate=rate,
                    arrivals="poisson",
                    weights=[1],
                    seed=3,
                    duration_ns=5 * SECOND_NS,
                    stream=number,
                    workloads=[number],
                    **split,
                )
            )
            for number, rate in enumerate(rates)
        ]

    alone = list(merge_streams(map(iter, streams())))
    assert sorted(alone, key=lambda t: (t.offset_ns, t.stream)) == alone
    assert len(alone) == sum(map(len, streams()))
    parts = [list(merge_streams(map(iter, streams(place=place, members=members)))) for place in range(members)]
    assert sorted((t for part in parts for t in part), key=lambda t: (t.offset_ns, t.stream)) == alone


def test_closed_tickets_have_no_time_to_be_merged_by():
    with pytest.raises(InternalError, match="no time"):
        list(merge_streams([closed_tickets(weights=[1], seed=1, sessions=2) for _ in range(2)]))


@pytest.mark.parametrize("workloads", [[0], [1, 1], [0, 1, 2]])
def test_every_weight_needs_its_own_place_in_the_plan(workloads):
    with pytest.raises(InternalError, match="2 workloads of a stream"):
        next(closed_tickets(weights=[1, 1], seed=1, workloads=workloads))
