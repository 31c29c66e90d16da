"""windows.jsonl rebuilt from the turns."""

from __future__ import annotations

import random

import metrics_turns as make
from hypothesis import given
from hypothesis import strategies as st

from infersiege.metrics.histogram import Histogram, bucket_of
from infersiege.metrics.turn import was_asked
from infersiege.metrics.windows import windows
from infersiege.records import ErrorClass, Outcome, Phase, Reason, TurnRecord, WindowRow

SECOND0 = make.T0 // make.SECOND


def at(rows: list[WindowRow], second: int) -> WindowRow:
    return next(row for row in rows if row.second == SECOND0 + second)


def test_each_thing_stands_in_the_second_in_which_it_happened() -> None:
    turn = make.streamed(900, [1100, 1900, 2100], due_ns=make.T0 + 800 * make.MS, tokens=7)
    rows = windows([turn])
    assert [row.second - SECOND0 for row in rows] == [0, 1, 2]
    assert [(row.due, row.sent, row.chunks, row.ok) for row in rows] == [(1, 1, 0, 0), (0, 0, 2, 0), (0, 0, 1, 1)]
    assert [row.in_flight for row in rows] == [1, 1, 0]
    assert [row.output_tokens for row in rows] == [0, 0, 7]
    assert at(rows, 0).lateness == {bucket_of(100 * make.MS): 1}
    assert at(rows, 1).ttft == {bucket_of(200 * make.MS): 1}
    assert at(rows, 2).e2e == {bucket_of(1200 * make.MS): 1}
    assert at(rows, 2).tpot == {bucket_of(round(1000 * make.MS / 6)): 1}


def test_a_silent_second_with_open_turns_has_a_row() -> None:
    rows = windows([make.streamed(0, [100, 4100])])
    assert [(row.second - SECOND0, row.in_flight, row.users) for row in rows] == [
        (0, 1, 1),
        (1, 1, 1),
        (2, 1, 1),
        (3, 1, 1),
        (4, 0, 0),
    ]


def test_a_silence_of_years_is_not_filled_with_seconds() -> None:
    """What a damaged row makes: an end that no run reaches."""
    rows = windows([make.streamed(0, [100], closed_ns=make.T0 + 10**17)])
    assert len(rows) < 90_000


def test_an_end_before_its_start_is_nothing_in_flight() -> None:
    rows = windows([make.streamed(5000, [5100], closed_ns=make.T0 + 2 * make.SECOND)])
    assert min(row.in_flight for row in rows) == 0


def test_a_session_is_a_user_while_it_thinks() -> None:
    first = make.streamed(0, [100, 200], session_id="a")
    second = make.streamed(3000, [3100, 3200], session_id="a", turn=1)
    rows = windows([second, first])
    assert [(row.second - SECOND0, row.in_flight, row.users) for row in rows] == [
        (0, 0, 1),
        (1, 0, 1),
        (2, 0, 1),
        (3, 0, 0),
    ]


def test_failed_and_skipped_turns_are_counted_by_class() -> None:
    rows = windows(
        [
            make.failed(0, 1500, ErrorClass.OVERLOAD),
            make.failed(0, 1600, ErrorClass.OVERLOAD),
            make.skipped(Reason.LATE_DROPPED, 2500),
            make.turn(outcome=Outcome.LOST, phase=Phase.STEADY),
        ]
    )
    assert at(rows, 1).failed == 2
    assert at(rows, 1).errors == {"overload": 2}
    assert at(rows, 2).skipped == 1
    assert at(rows, 0).due == 3
    assert all(not row.e2e and not row.ttft for row in rows)


def test_rows_are_split_by_scenario_channel_stage_and_phase() -> None:
    keys = [("a", "x", "s1", Phase.WARMUP), ("a", "x", "s1", Phase.STEADY), ("b", "y", "s2", Phase.STEADY)]
    records = [
        make.streamed(0, [10], scenario=scenario, channel=channel, stage=stage, phase=phase)
        for scenario, channel, stage, phase in keys
    ]
    rows = windows(records)
    assert sorted((row.scenario, row.channel, row.stage, row.phase) for row in rows) == sorted(keys)


@given(st.lists(make.turns(), max_size=20), st.randoms(use_true_random=False))
def test_windows_hold_every_turn_once_in_any_order(records: list[TurnRecord], random_: random.Random) -> None:
    rows = windows(iter(records))
    assert sum(row.due for row in rows) == sum(was_asked(turn) for turn in records)
    for outcome in (Outcome.OK, Outcome.FAILED, Outcome.CANCELLED, Outcome.SKIPPED):
        assert sum(getattr(row, outcome.value) for row in rows) == sum(turn.outcome is outcome for turn in records)
    assert sum(row.chunks for row in rows) == sum(turn.chunks for turn in records)
    e2e = Histogram.merged(Histogram.from_sparse(row.e2e) for row in rows)
    assert e2e.n == sum(turn.outcome is Outcome.OK and turn.closed_ns != turn.sent_ns for turn in records)
    assert all(row.in_flight >= 0 and row.users >= 0 for row in rows)
    assert rows == sorted(rows, key=lambda row: (row.second, row.scenario, row.channel, row.stage, row.phase))
    shuffled = list(records)
    random_.shuffle(shuffled)
    assert windows(shuffled) == rows


def test_a_session_that_thinks_when_the_load_ends_is_alive_until_the_last_answer() -> None:
    quick = make.streamed(0.0, [500.0], session_id="a", closed_ns=make.T0 + make.SECOND // 2)
    slow = make.streamed(0.0, [500.0, 4200.0], session_id="b", closed_ns=make.T0 + 4 * make.SECOND + 1)
    rows = windows([quick, slow, make.skipped(Reason.RUN_END, 60_000.0, session_id="a", turn=1)])
    users = {row.second - SECOND0: row.users for row in rows if row.users}
    assert users == {0: 2, 1: 2, 2: 2, 3: 2}
