"""The schedule: rate, spacing, shares, the split over workers, and what happens after a stall."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import InternalError, UsageError
from infersiege.schedule import (
    ARRIVALS,
    LATE_GRACE_NS,
    SECOND_NS,
    Pacer,
    RateStage,
    Ticket,
    closed_tickets,
    open_tickets,
    replay_tickets,
    users_share,
)

HOUR_NS = 3600 * SECOND_NS


def merged(parts: list[list[Ticket]]) -> list[Ticket]:
    return sorted((ticket for part in parts for ticket in part), key=lambda ticket: ticket.index)


@settings(deadline=None, max_examples=60)
@given(
    members=st.integers(1, 7),
    seed=st.integers(0, 2**40),
    arrivals=st.sampled_from(sorted(ARRIVALS)),
    weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    first=st.integers(0, 50),
    holds=st.one_of(st.none(), st.integers(0, 40)),
)
def test_union_over_workers_is_the_sequence_of_one_worker(members, seed, arrivals, weights, first, holds):
    available = [holds] + [None] * (len(weights) - 1)
    common = {"weights": weights, "seed": seed, "sessions": 200, "available": available, "first": first}
    for tickets in (
        lambda **split: open_tickets(
            rate=50.0, arrivals=arrivals, burstiness=0.5, duration_ns=3 * SECOND_NS, **common, **split
        ),
        lambda **split: closed_tickets(**common, **split),
    ):
        alone = list(tickets())
        parts = [list(tickets(place=place, members=members)) for place in range(members)]
        assert merged(parts) == alone
        assert all((ticket.index - first) % members == place for place, part in enumerate(parts) for ticket in part)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=60)
@given(
    members=st.integers(1, 7),
    traces=st.lists(st.lists(st.integers(0, 10**10), min_size=1, max_size=30).map(sorted), min_size=1, max_size=3),
    speed=st.floats(0.1, 20),
)
def test_union_over_workers_of_a_replay(members, traces, speed):
    alone = list(replay_tickets(traces, speed=speed))
    parts = [list(replay_tickets(traces, speed=speed, place=place, members=members)) for place in range(members)]
    assert merged(parts) == alone
    assert len(alone) == sum(map(len, traces))
    assert [ticket.offset_ns for ticket in alone] == sorted(ticket.offset_ns for ticket in alone)


@settings(deadline=None, max_examples=60)
@given(
    ticks=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 6)), min_size=1, max_size=12),
    jitter_ns=st.integers(1, 6000),
    seed=st.integers(0, 99),
    wrap=st.booleans(),
    members=st.integers(1, 3),
)
def test_jitter_spreads_what_shares_a_time_and_nothing_else(ticks, jitter_ns, seed, wrap, members):
    """In order, from its own time on, less than the jitter and never to the next time; the same on every worker."""
    arrivals, at_ns = [], 0
    for gap_ns, count in ticks:
        arrivals += [at_ns] * count
        at_ns += gap_ns
    count = len(arrivals) * (3 if wrap else 1)
    common = {"wrap": [wrap], "sessions": count, "seed": seed}
    plain = [ticket.offset_ns for ticket in replay_tickets([arrivals], **common)]
    tickets = list(replay_tickets([arrivals], jitter_ns=jitter_ns, **common))
    spread = [ticket.offset_ns for ticket in tickets]
    assert [ticket.session_index for ticket in tickets] == list(range(count))
    assert spread == sorted(spread)
    shared = Counter(plain)
    later = dict(pairwise(sorted(shared)))
    for before, after in zip(plain, spread, strict=True):
        if shared[before] == 1:
            assert after == before, "it shares its time with nobody"
        assert before <= after < before + jitter_ns
        assert after < later.get(before, after + 1), "it has passed the next tick"
    parts = [
        list(replay_tickets([arrivals], jitter_ns=jitter_ns, place=place, members=members, **common))
        for place in range(members)
    ]
    assert merged(parts) == tickets


def test_jitter_is_even_over_the_tick_and_drawn_from_the_seed():
    """12,031 requests on 1,180 stamps 3 s apart, as Mooncake has them."""
    arrivals = [tick * 3 * SECOND_NS for tick in range(1180) for _ in range(10)]
    spread = [ticket.offset_ns for ticket in replay_tickets([arrivals], jitter_ns=3 * SECOND_NS, seed=1)]
    parts = Counter((after - before) // (SECOND_NS // 2) for before, after in zip(arrivals, spread, strict=True))
    assert set(parts) == set(range(6)) and max(parts.values()) < 1.1 * min(parts.values())
    assert spread != [ticket.offset_ns for ticket in replay_tickets([arrivals], jitter_ns=3 * SECOND_NS, seed=2)]
    fast = [ticket.offset_ns for ticket in replay_tickets([arrivals], jitter_ns=3 * SECOND_NS, seed=1, speed=2.0)]
    assert fast == [round(at_ns / 2) for at_ns in spread], "in the trace's own time"


def test_session_indices_count_each_workload_without_gaps():
    tickets = list(closed_tickets(weights=[3, 1, 2], seed=5, sessions=5000))
    for workload in range(3):
        numbers = [ticket.session_index for ticket in tickets if ticket.workload == workload]
        assert numbers == list(range(len(numbers)))


def test_seeds_give_different_sequences_and_the_same_seed_the_same():
    def offsets(seed: int) -> list[Ticket]:
        return list(open_tickets(rate=10.0, arrivals="poisson", weights=[1, 1], seed=seed, sessions=50))

    assert offsets(1) == offsets(1)
    assert offsets(1) != offsets(2)


@settings(deadline=None, max_examples=40)
@given(
    weights=st.lists(st.floats(0.05, 20), min_size=2, max_size=5),
    seed=st.integers(0, 2**32),
    members=st.integers(1, 7),
    n=st.integers(20, 3000),
)
def test_weights_hold_overall_and_on_every_worker(weights, seed, members, n):
    """Low discrepancy: a random choice would be off by tens at n = 3000, a round robin wholly off on one worker."""
    for place in range(members):
        part = list(closed_tickets(weights=weights, seed=seed, sessions=n, place=place, members=members))
        counts = Counter(ticket.workload for ticket in part)
        for workload, weight in enumerate(weights):
            wanted = len(part) * weight / sum(weights)
            assert abs(counts[workload] - wanted) <= 4 + 0.05 * len(part), (place, workload)
    everything = Counter(t.workload for t in closed_tickets(weights=weights, seed=seed, sessions=n))
    for workload, weight in enumerate(weights):
        assert abs(everything[workload] - n * weight / sum(weights)) <= 6


def test_closed_loop_gives_the_share_of_a_used_up_trace_to_the_others():
    tickets = list(closed_tickets(weights=[1, 1], seed=4, sessions=100, available=[10, None]))
    counts = Counter(ticket.workload for ticket in tickets)
    assert counts == {0: 10, 1: 90}


def test_closed_loop_ends_when_every_trace_is_used_up():
    tickets = list(closed_tickets(weights=[1, 2], seed=4, available=[3, 5]))
    assert Counter(ticket.workload for ticket in tickets) == {0: 3, 1: 5}


def test_open_loop_keeps_the_rate_of_the_others_when_a_trace_is_used_up():
    tickets = list(
        open_tickets(
            rate=10.0, arrivals="constant", weights=[1, 1], seed=4, duration_ns=100 * SECOND_NS, available=[10, None]
        )
    )
    counts = Counter(ticket.workload for ticket in tickets)
    assert counts[0] == 10
    assert 495 <= counts[1] <= 505, "5 per second for 100 s, not 10"
    assert [ticket.index for ticket in tickets] == list(range(len(tickets)))


def test_open_loop_ends_when_every_trace_is_used_up():
    tickets = list(open_tickets(rate=10.0, arrivals="poisson", weights=[1, 1], seed=4, available=[3, 0]))
    assert [(t.workload, t.session_index) for t in tickets] == [(0, 0), (0, 1), (0, 2)]


def test_nothing_available_gives_nothing():
    assert list(closed_tickets(weights=[1], seed=1, available=[0])) == []
    assert list(open_tickets(rate=1.0, arrivals="constant", weights=[1], seed=1, available=[0])) == []


def test_duration_is_exclusive():
    offsets = [
        t.offset_ns for t in open_tickets(rate=2.0, arrivals="constant", weights=[1], seed=1, duration_ns=1 * SECOND_NS)
    ]
    assert offsets == [0, SECOND_NS // 2]


def test_replay_scales_time_merges_workloads_and_stops():
    tickets = list(replay_tickets([[0, 4, 8], [1, 4]], speed=2.0))
    assert [(t.workload, t.session_index, t.offset_ns) for t in tickets] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 2),
        (1, 1, 2),
        (0, 2, 4),
    ]
    assert len(list(replay_tickets([[0, 4, 8]], duration_ns=8))) == 2
    assert len(list(replay_tickets([[0, 4, 8]], sessions=1))) == 1


@pytest.mark.parametrize(
    ("arrivals", "offsets", "why"),
    [
        ([0, 10, 20], [0, 10, 20, 30, 40, 50, 60], "the next round starts one mean gap after the last arrival"),
        ([0, 0, 20], [0, 0, 20, 30, 30, 50, 60], "ticks stay ticks"),
        ([0], [k * SECOND_NS for k in range(7)], "one arrival has no gap: a second"),
        ([0, 0], [k // 2 * SECOND_NS for k in range(7)], "all at once: a second, never a loop without time"),
    ],
)
def test_replay_wraps(arrivals, offsets, why):
    tickets = list(islice(replay_tickets([arrivals], wrap=[True]), 7))
    assert [t.offset_ns for t in tickets] == offsets, why
    assert [t.session_index for t in tickets] == list(range(7)), why


def test_replay_without_times_is_a_usage_error_with_a_hint():
    with pytest.raises(UsageError, match=r"workload\.1: its trace has no timestamps") as caught:
        list(replay_tickets([[0], None]))
    assert "open" in (caught.value.hint or "")


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf")])
def test_rates_and_speeds_without_meaning_are_refused(value):
    with pytest.raises(InternalError, match="rate is"):
        next(open_tickets(rate=value, arrivals="poisson", weights=[1], seed=1))
    with pytest.raises(InternalError, match="speed is"):
        next(replay_tickets([[0, 1]], speed=value))


def test_a_replay_of_more_sessions_than_anybody_means_is_refused_at_once():
    """Counting them (--dry-run does) would not come to an end."""
    endless = {"speed": 1e6, "wrap": [True], "duration_ns": 30 * 24 * HOUR_NS}
    with pytest.raises(UsageError, match=r"speed 1e\+06 asks for 2,592,000,000,000 sessions") as caught:
        next(replay_tickets([[0]], **endless))
    assert "load.speed" in (caught.value.hint or "")
    assert len(list(replay_tickets([[0]], **endless, sessions=5))) == 5
    assert len(list(replay_tickets([[0]], **{**endless, "wrap": [False]}))) == 1


def test_replay_at_the_lowest_speed_stays_within_64_bits():
    assert [t.offset_ns for t in replay_tickets([[0, 1, 100 * 366 * 24 * HOUR_NS]], speed=1e-6)] == [0, 10**6, 1 << 62]


@pytest.mark.parametrize(("place", "members"), [(1, 1), (-1, 2), (0, 0)])
def test_impossible_places_are_refused(place, members):
    with pytest.raises(InternalError):
        list(closed_tickets(weights=[1], seed=1, sessions=1, place=place, members=members))
    with pytest.raises(InternalError):
        users_share(3, place, members)


def test_ls_08_what_is_due_by_the_end_is_planned_whatever_is_still_in_flight():
    """LS-08, pure part: the plan of a window does not depend on answers, so nothing of it can get lost."""
    tickets = list(open_tickets(rate=3.0, arrivals="constant", weights=[1], seed=1, duration_ns=3 * SECOND_NS))
    assert len(tickets) == 9


def play(policy: str, dues: list[int], stall_from: int, stall_to: int) -> list[int | None]:
    """Send arrivals with a sender that is blocked from stall_from to stall_to."""
    pacer = Pacer(policy)
    now = 0
    sent: list[int | None] = []
    for due in dues:
        at = pacer.send_at(due, now)
        sent.append(at)
        now = now if at is None else max(now, at)
        if stall_from <= now < stall_to:
            now = stall_to
    return sent


def test_ls_03_late_arrivals_are_sent_at_most_at_twice_the_rate():
    """LS-03: 2 s stall at 50/s, then never more than 100 per second; everything is sent; on time again after 4 s."""
    dues = [k * SECOND_NS // 50 for k in range(500)]
    sent = play("send", dues, SECOND_NS, 3 * SECOND_NS)
    assert None not in sent
    times = [at for at in sent if at is not None]
    assert times == sorted(times)
    assert all(at >= due for at, due in zip(times, dues, strict=True))
    for start in range(0, 10 * SECOND_NS, SECOND_NS // 10):
        assert sum(start <= at < start + SECOND_NS for at in times) <= 101
    after = sum(3 * SECOND_NS <= at < 4 * SECOND_NS for at in times)
    assert 95 <= after <= 101, "it does catch up"
    assert all(at == due for at, due in zip(times, dues, strict=True) if due > 5.2 * SECOND_NS)


def test_ls_03_drop_sends_nothing_that_is_late_and_counts_it():
    dues = [k * SECOND_NS // 50 for k in range(500)]
    sent = play("drop", dues, SECOND_NS, 3 * SECOND_NS)
    dropped = sum(at is None for at in sent)
    assert 93 <= dropped <= 97, "2 s at 50/s less the 100 ms of grace"
    assert all(at - due <= LATE_GRACE_NS for at, due in zip(sent, dues, strict=True) if at is not None)


def test_ls_03_the_bound_moves_with_the_rate_of_the_stages():
    """LS-03 over a step from 20/s to 100/s, stalled across it: what each stage missed is sent at twice its own rate."""
    step_ns = 5 * SECOND_NS
    stages = [RateStage(0, step_ns, 20, 20), RateStage(step_ns, 20 * SECOND_NS, 100, 100)]
    dues = [t.offset_ns for t in open_tickets(arrivals="constant", weights=[1], seed=1, stages=stages)]
    times = play("send", dues, 4 * SECOND_NS, 6 * SECOND_NS)
    assert None not in times and times == sorted(times)
    pairs = list(zip(dues, times, strict=True))
    for (due, at), (next_due, next_at) in pairwise(pairs):
        least_ns = 5_000_000 if due >= step_ns else 25_000_000
        assert next_at - at >= least_ns or next_at == next_due, "on time, or at most at twice the rate"
    late = [at for due, at in pairs if at > due]
    slow = [at for due, at in pairs if at > due and due < step_ns]
    assert 18 <= len(slow) <= 20, "20/s for the second before the step"
    assert slow[-1] - slow[0] == (len(slow) - 1) * 25_000_000, "at 40/s, and no slower"
    assert len(late) > 200 and {b - a for a, b in pairwise(late[len(slow) :])} == {5_000_000}, "at 200/s"


def test_ls_03_what_is_late_before_a_pause_does_not_hold_up_what_comes_after_it():
    """One arrival 8 s late, a pause of 10 s: half the gap between them would make the next stage begin 3 s late."""
    pacer = Pacer("send")
    assert pacer.send_at(0, 8 * SECOND_NS) == 8 * SECOND_NS
    assert pacer.send_at(10 * SECOND_NS, 9 * SECOND_NS) == 13 * SECOND_NS, "within a stage it does"
    pacer = Pacer("send")
    pacer.send_at(0, 8 * SECOND_NS)
    pacer.begin_anew()
    assert pacer.send_at(10 * SECOND_NS, 9 * SECOND_NS) == 10 * SECOND_NS


@given(gaps=st.lists(st.integers(0, 50_000_000), min_size=1, max_size=200), lag=st.integers(0, 5_000))
def test_a_pacer_that_keeps_up_changes_nothing(gaps, lag):
    """Bursts of the schedule itself (a tick of a trace, close Poisson arrivals) are not stretched."""
    pacer = Pacer("send")
    due = 0
    for gap in gaps:
        due += gap
        assert pacer.send_at(due, due - lag) == due


@settings(deadline=None)
@given(
    gaps=st.lists(st.integers(0, 50_000_000), min_size=2, max_size=200),
    stalls=st.dictionaries(st.integers(0, 199), st.integers(0, 2_000_000_000), max_size=4),
)
def test_a_pacer_never_compresses_more_than_twofold(gaps, stalls):
    pacer = Pacer("send")
    due = now = 0
    before: tuple[int, int] | None = None
    for k, gap in enumerate(gaps):
        due += gap
        now += stalls.get(k, 0)
        at = pacer.send_at(due, now)
        assert at is not None
        assert at >= max(due, now)
        if before is not None:
            assert 2 * (at - before[1]) >= due - before[0] or before[1] == before[0]
        before, now = (due, at), at


CHILD = """
import json
from infersiege.schedule import closed_tickets, open_tickets
from infersiege.traces import Conversation, Synthesizer, open_trace
opened = [[t.index, t.workload, t.session_index, t.offset_ns]
          for t in open_tickets(rate=9.7, arrivals="poisson", weights=[1, 2.5], seed=3, sessions=40)]
closed = [[t.workload, t.session_index] for t in closed_tickets(weights=[1, 2.5], seed=3, sessions=40)]
texts = []
for name in ("short-qa", "long-document", "agent"):
    trace = open_trace("builtin:" + name, seed=8, length_scale=0.05, options={"calls": 3} if name == "agent" else {})
    talk = Conversation(trace.session(17), synthesizer=Synthesizer(8), salt="s")
    while (turn := talk.next_turn()) is not None:
        texts.append([turn.messages, turn.tools, turn.delay_ns])
        talk.answered("x")
print(json.dumps([opened, closed, texts]))
"""


def test_sequences_and_prompts_are_the_same_in_every_process():
    outputs = set()
    for hash_seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            check=True,
            timeout=60,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    opened, closed, texts = json.loads(outputs.pop())
    assert len(opened) == len(closed) == 40
    assert len(texts) > 5
