"""A worker's share of a trace in Redis: finished when all of it is played, and holding no more than it will play."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
import redis_server

from infersiege.plan import load_plan
from infersiege.plan.schema import Plan
from infersiege.records import (
    Assignment,
    Epoch,
    EpochTable,
    Outcome,
    Plays,
    Reason,
    Session,
    Turn,
    TurnRecord,
    UserSlots,
)
from infersiege.redis_stream import Address, RedisTrace, load
from infersiege.redis_stream.groups import TAKE_OVER_S, Group
from infersiege.swarm.claims import ClaimKeeper, Claims
from infersiege.swarm.claims.line import RedisLine
from infersiege.swarm.claims.shelf import Shelf
from infersiege.swarm.control import RunControl
from infersiege.swarm.share import WorkerShare
from infersiege.swarm.source import SessionSource
from infersiege.swarm.spool import Spool
from infersiege.swarm.tickets_in_play import TicketsInPlay
from infersiege.traces.formats import normal

RUN = "abc123"
MS, SECOND = 1_000_000, 1_000_000_000
STREAM, GROUP = "infersiege:mine:sessions", f"{RUN}:0:0"

PLAN = """
[run]
stop = {{sessions = {sessions}}}
[channel.target]
engine = "vllm"
base_url = "http://127.0.0.1:1"
model = "m"
[[workload]]
scenario = "talk"
trace = "mine"
source = "{url}"
[load]
{load}
"""


@pytest.fixture
def server(tmp_path: Path, free_port: Callable[[], int], needs: Callable[[str | None], None]):
    needs(None if shutil.which("redis-server") else f"no Redis: {redis_server.INSTALL}")
    with redis_server.RedisServer(tmp_path / "redis", free_port()) as started:
        yield started


def stored(server: redis_server.RedisServer, *arrivals_ms: int) -> None:
    turn = Turn(messages=({"role": "user", "content": "hi"},))  # type: ignore[arg-type]
    found = (
        Session(session_id=f"s{number}", turns=(turn,), arrival_ns=at_ms * MS)
        for number, at_ms in enumerate(arrivals_ms)
    )
    load(server.url, "mine", found, normal.Header(infersiege_trace=1))


def plan_of(server: redis_server.RedisServer, folder: Path, sessions: int, load: str = 'mode = "replay"') -> Plan:
    path = folder / "plan.toml"
    path.write_text(PLAN.format(url=server.url, sessions=sessions, load=load), encoding="utf-8")
    return load_plan(path)


def table(number: int, *members: str) -> EpochTable:
    """One that is in force from the first ticket on."""
    return EpochTable(epochs=(Epoch(number=number, from_offset_ns=0, from_index=(0,), members=members),))


def until(is_so: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, what
        gevent.sleep(0.01)


def claimed(server: redis_server.RedisServer) -> dict[str, list[int]]:
    """Sessions that are claimed and not taken, by worker."""
    found: dict[str, list[int]] = {}
    with server.client() as client:
        for one in client.xpending_range(STREAM, GROUP, "-", "+", 100):
            number = int(one["message_id"].partition(b"-")[0]) - 1
            found.setdefault(one["consumer"].decode(), []).append(number)
    return found


def idle_s(server: redis_server.RedisServer) -> dict[int, float]:
    """How long each claim has shown no sign of life, at one instant."""
    with server.client() as client:
        found = client.xpending_range(STREAM, GROUP, "-", "+", 100)
    return {int(one["message_id"].partition(b"-")[0]) - 1: one["time_since_delivered"] / 1000 for one in found}


def alive(server: redis_server.RedisServer) -> set[int]:
    """Claims that nobody else can have."""
    return {number for number, idle in idle_s(server).items() if idle < TAKE_OVER_S}


@pytest.fixture
def run_over() -> Iterator[RunControl]:
    """A control whose run ends with the test."""
    control = RunControl()
    control.renew(600 * SECOND)
    yield control
    control.closing.set()
    control.changed()
    gevent.sleep(0)


# ------------------------------------------------------------------------------------------------------ being finished


def test_an_arrival_that_waits_for_redis_keeps_its_worker_from_being_finished(
    server: redis_server.RedisServer, tmp_path: Path, run_over: RunControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of a trace: its ticket is taken from the walk, its session can't be claimed, the ledger is empty."""
    monkeypatch.setattr("infersiege.swarm.claims.line.ANSWER_S", 0.2)
    stored(server, 0)
    plan, control = plan_of(server, tmp_path, 1), run_over
    with ClaimKeeper(plan, RUN):
        assignment = Assignment(
            run_id=RUN, epoch=0, place=0, members=1, plan=b"", plan_hash="", trace_hashes={}, offset_ns=0, boot_id=""
        )
        spool = Spool(tmp_path / "spool", "w0")
        share = WorkerShare(assignment, plan, "w0", spool, control, time.time_ns() - time.monotonic_ns())
        share.enforce(table(0, "w0"))
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            control.begin(time.monotonic_ns())
            share.begin()
            gevent.spawn(share.direct, gevent.spawn)
            walk = share.in_play.walks[0]
            until(lambda: walk.over, "the arrival is taken from the walk")
            assert not share.ledger.open and not share.finished()
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        until(share.finished, "Redis is there again")
        assert list(share.ledger.plays.values()) == [Plays(taken=1, sent=1)]
        assert share.why_stopped is None
    spool.close(remove=True)
    share._clock.close()


ENDS = [
    (True, "1s", "patience is over before the load is: nothing can be set up any more"),
    (False, "60s", "the load ends while an arrival waits for Redis, which answers nothing"),
]


@pytest.mark.parametrize(("gives_up", "patience", "why"), ENDS, ids=[why for *_, why in ENDS])
def test_each_arrival_that_was_due_while_redis_was_away_has_its_record_and_no_later_one(
    server: redis_server.RedisServer,
    tmp_path: Path,
    run_over: RunControl,
    monkeypatch: pytest.MonkeyPatch,
    gives_up: bool,
    patience: str,
    why: str,
) -> None:
    monkeypatch.setattr("infersiege.swarm.claims.line.ANSWER_S", 0.5)
    gap_ms, many = 100, 600
    stored(server, *range(0, many * gap_ms, gap_ms))
    plan = plan_of(server, tmp_path, many, f'mode = "replay"\n[redis]\npatience = "{patience}"')
    control, offset_ns = run_over, time.time_ns() - time.monotonic_ns()
    with ClaimKeeper(plan, RUN):
        assignment = Assignment(
            run_id=RUN, epoch=0, place=0, members=1, plan=b"", plan_hash="", trace_hashes={}, offset_ns=0, boot_id=""
        )
        spool = Spool(tmp_path / "spool", "w0")
        share = WorkerShare(assignment, plan, "w0", spool, control, offset_ns)
        records: list[TurnRecord] = []
        share.ledger.listeners.append(records.append)
        share.enforce(table(0, "w0"))
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            control.begin(time.monotonic_ns())
            share.begin()
            directing = gevent.spawn(share.direct, gevent.spawn)
            if gives_up:
                until(lambda: share.why_stopped, "it waits no longer than patience says")
            gevent.sleep(0.5)
            ended_ns = time.monotonic_ns()
            gevent.sleep(0.3)  # the master's word needs its time
            control.close(Reason.RUN_END, 0, ended_ns)
            until(directing.ready, why)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
    due = sorted((record.due_ns - offset_ns - control.start_ns) // MS for record in records)
    last_ms = (ended_ns - control.start_ns) // MS
    assert due == list(range(0, last_ms + 1, gap_ms))
    assert {(record.outcome, record.reason) for record in records} == {(Outcome.SKIPPED, Reason.SOURCE_FAILED)}
    assert all(record.error_detail and server.url in record.error_detail for record in records)
    assert share.ledger.planned_turns == share.ledger.closed_turns == len(records) and not share.ledger.open
    assert share.claims.away_ns is not None and share.claims.away_ns >= 500 * MS
    spool.close(remove=True)
    share._clock.close()


# ------------------------------------------------------------------------------------- no more than what will be played


class Hand:
    """One worker's shelf, moved by hand."""

    def __init__(self, server: redis_server.RedisServer, worker: str, control: RunControl, **more: Any) -> None:
        address = Address(server.url)
        self.trace = RedisTrace(address, "mine")
        self.line = RedisLine(address, 5 * SECOND, control)
        group = Group("mine", RUN, 0, 0, worker)
        self.shelf = Shelf(self.trace, self.line, control, lambda _: group, wrap=False, **more)
        self.line.call(group.create)
        # As if it had been connected for longer than it takes to call somebody dead.
        self.line.connected_ns = time.monotonic_ns() - round((TAKE_OVER_S + 1) * SECOND)

    def next(self) -> int | None:
        return self.shelf.next(time.monotonic_ns())


def test_what_was_claimed_for_an_arrival_that_is_somebody_elses_by_now_is_played_by_others(server, run_over):
    stored(server, *range(4))
    before, other = Hand(server, "before", run_over), Hand(server, "other", run_over)
    later_ns = [time.monotonic_ns() + after_s * SECOND for after_s in (60, 61, 62)]
    before.shelf.expect(later_ns)
    before.shelf.forgo(later_ns[1:])
    assert claimed(server) == {"before": [0, 1, 2]} and alive(server) == {0}
    assert [other.next(), other.next(), other.next()] == [1, 2, 3], "at once, before what nobody had claimed"
    assert before.next() == 0
    assert [before.next(), other.next()] == [None, None], "the trace is over"


def test_signs_of_life_are_shown_for_no_more_than_there_are_arrivals(server, run_over):
    """More may be here than was asked for: an answer of Redis was lost, was asked for again, and then both came."""
    stored(server, *range(4))
    busy = Hand(server, "busy", run_over)
    with server.client() as client:
        Group("mine", RUN, 0, 0, "busy").read(client, 2)
    busy.line._drop()
    busy.shelf.expect([time.monotonic_ns() + 60 * SECOND])
    assert claimed(server) == {"busy": [0, 1, 2]}
    busy.shelf.keep()
    assert alive(server) == {0}
    assert busy.next() == 0


def test_a_session_waits_for_a_closed_loop_only_while_somebody_may_be_free_for_it(server, run_over):
    stored(server, *range(3))
    users, other = Hand(server, "users", run_over), Hand(server, "other", run_over)
    users.shelf.have_one()
    users.shelf.keep()
    assert alive(server) == {0}
    users.shelf.have_none()
    assert other.next() == 0
    users.shelf.have_one()
    assert users.next() == 1


def test_what_was_taken_long_ago_is_forgotten_and_what_was_taken_lately_is_not_played_again(server, run_over):
    stored(server, *range(12))
    hand = Hand(server, "w0", run_over, remembered=3)
    assert [hand.next() for _ in range(9)] == list(range(9))
    assert list(hand.shelf._taken) == [6, 7, 8], "memory does not grow with the run"
    with server.client() as client:  # as a crash of Redis could leave it
        client.xgroup_setid(STREAM, GROUP, "6-0")
    assert [hand.next() for _ in range(4)] == [9, 10, 11, None]


# --------------------------------------------------------------------------------------- whose arrivals they are by now


class Table:
    """Claims of worker w0, with what is its own by the tables that it is told of."""

    def __init__(self, plan: Plan, control: RunControl) -> None:
        source, self.control = SessionSource(plan, place=0, members=1), control
        tickets = {stream.number: source.tickets(stream.number) for stream in source.streams}
        self.in_play = TicketsInPlay.of("w0", tickets)
        self.failed: list[Exception] = []
        self.claims = Claims(source, control, run_id=RUN, worker="w0", failed=self.failed.append)

    def enforce(self, message: EpochTable) -> None:
        assert self.in_play.enforce(message)
        self.control.changed()


def test_claims_go_by_the_table_in_force_when_an_arrival_is_due_and_not_by_that_of_the_one_before(
    server, tmp_path, run_over
):
    """w0 has the arrivals 0 and 2 by the first table, 0 and 1 by the second, 0 by the third."""
    stored(server, 0, 500, 60_000, 900_000)
    plan = plan_of(server, tmp_path, 4)
    with ClaimKeeper(plan, RUN):
        mine = Table(plan, run_over)
        mine.enforce(table(0, "w0", "w1"))
        mine.claims.begin(time.monotonic_ns(), mine.in_play)
        until(lambda: claimed(server) == {"w0": [0]}, "its first arrival, and the next one is a minute away")
        (first,) = table(0, "w0", "w1").epochs
        second = Epoch(number=1, from_offset_ns=400 * MS, from_index=(1,), members=("w1", "w0"))
        mine.enforce(EpochTable(epochs=(first, second)))
        until(lambda: claimed(server) == {"w0": [0, 1]}, "the one that is its own now is due at once")
        assert mine.failed == []


def test_nothing_is_claimed_for_an_arrival_that_became_another_ones_before_it_was_due(server, tmp_path, run_over):
    stored(server, 0, 1_000)
    plan = plan_of(server, tmp_path, 2)
    with ClaimKeeper(plan, RUN):
        mine, start_ns = Table(plan, run_over), time.monotonic_ns()
        mine.enforce(table(0, "w1", "w0"))
        mine.claims.begin(start_ns, mine.in_play)
        gevent.sleep(0)  # It waits for the second arrival now.
        mine.enforce(table(1, "w1"))
        run_over.wait_until(start_ns + 1_000 * MS)
        gevent.sleep(0.05)
        assert claimed(server) == {} and mine.failed == []


def test_a_claim_goes_back_when_its_arrival_becomes_another_ones(server, tmp_path, run_over):
    stored(server, 0, 60_000)
    plan = plan_of(server, tmp_path, 2)
    with ClaimKeeper(plan, RUN):
        mine, other = Table(plan, run_over), Hand(server, "w1", run_over)
        mine.enforce(table(0, "w0"))
        mine.claims.begin(time.monotonic_ns() + 100 * MS, mine.in_play)
        until(lambda: alive(server) == {0}, "it is due soon")
        mine.enforce(table(1, "w1"))
        until(lambda: not alive(server), "it goes back")
        assert other.next() == 0 and mine.failed == []


def test_a_closed_loop_has_no_session_waiting_without_a_user_or_an_arrival(server, tmp_path, run_over):
    stored(server, *range(5))
    plan = plan_of(server, tmp_path, 5, load='mode = "closed"\nusers = 2')
    with ClaimKeeper(plan, RUN):
        mine = Table(plan, run_over)
        mine.enforce(table(0, "w0", "w1"))
        mine.in_play.give_slots(UserSlots(epoch=0, slots={0: (0,)}))
        mine.claims.begin(time.monotonic_ns(), mine.in_play)
        until(lambda: len(alive(server)) == 1, "for its user")
        mine.in_play.give_slots(UserSlots(epoch=1, slots={}))
        until(lambda: not alive(server), "the user is another one's")
        mine.in_play.give_slots(UserSlots(epoch=2, slots={0: (0,)}))
        until(lambda: len(alive(server)) == 1, "a user again")
        mine.enforce(table(1, "w1"))
        until(lambda: not alive(server), "no arrival is its own")
        assert mine.failed == []
