"""Sessions handed out by Redis: each to one worker, in the trace's order, whatever happens to workers and to Redis."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import redis_server
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import TraceError, UsageError
from infersiege.plan import load_plan
from infersiege.records import OpenTurn, Outcome, Phase, Reason, Session, Turn
from infersiege.redis_stream import Address, RedisTrace, load
from infersiege.redis_stream.groups import TAKE_OVER_S, Group
from infersiege.redis_stream.loading import packed, unpacked
from infersiege.schedule import Ticket
from infersiege.swarm.claims.keeper import ClaimKeeper, forget_dead_runs, played_twice
from infersiege.swarm.claims.line import RedisLine
from infersiege.swarm.claims.shelf import Shelf
from infersiege.swarm.control import RunControl
from infersiege.swarm.ledger import ChannelLabels, unsent_record
from infersiege.swarm.losses import unplayed_arrivals
from infersiege.swarm.source import SessionSource, is_arrival
from infersiege.traces.formats import normal

RUN = "abc123"
AOF = ("--appendonly", "yes", "--appendfsync", "everysec")
PATIENCE_NS = 2_000_000_000


def sessions(count: int, *, gap_ns: int | None = 10_000_000) -> Iterator[Session]:
    turn = Turn(messages=({"role": "user", "content": "hi"},))  # type: ignore[arg-type]
    for number in range(count):
        yield Session(session_id=f"s{number}", turns=(turn,), arrival_ns=None if gap_ns is None else number * gap_ns)


@pytest.fixture
def server(tmp_path: Path, free_port: Callable[[], int], needs: Callable[[str | None], None]):
    needs(None if shutil.which("redis-server") else f"no Redis: {redis_server.INSTALL}")
    with redis_server.RedisServer(tmp_path / "redis", free_port(), *AOF) as started:
        yield started


def stored(server: redis_server.RedisServer, count: int = 10) -> None:
    load(server.url, "mine", sessions(count), normal.Header(infersiege_trace=1))


class Hand:
    """One worker's shelf, moved by hand."""

    def __init__(self, server: redis_server.RedisServer, worker: str, *, wrap: bool = False, limit: int | None = None):
        self.control = RunControl()
        address = Address(server.url)
        self.trace = RedisTrace(address, "mine", limit=limit)
        self.line = RedisLine(address, PATIENCE_NS, self.control)
        groups: dict[int, Group] = {}

        def group_of(repeat: int) -> Group:
            return groups.setdefault(repeat, Group("mine", RUN, 0, repeat, worker))

        self.group_of = group_of
        self.shelf = Shelf(self.trace, self.line, self.control, group_of, wrap=wrap)
        self.line.call(group_of(0).create)

    def next(self) -> int | None:
        return self.shelf.next(time.monotonic_ns())

    def expect(self, count: int) -> None:
        """Claim for so many arrivals of the next minute."""
        self.shelf.expect([time.monotonic_ns() + 60_000_000_000] * count)

    def here_for_long(self) -> None:
        """As if it had been connected for longer than it takes to call somebody dead."""
        self.line.connected_ns = time.monotonic_ns() - round((TAKE_OVER_S + 1) * 1e9)


def idle(server: redis_server.RedisServer, worker: str, numbers: list[int]) -> None:
    """A worker's claims, as if it had shown no sign of life for long."""
    with server.client() as client:
        for number in numbers:
            client.execute_command(
                "XCLAIM", "infersiege:mine:sessions", f"{RUN}:0:0", worker, 0, f"{number + 1}-0", "IDLE", 60_000,
                "JUSTID", parse_justid=True,
            )  # fmt: skip


# ------------------------------------------------------------------------------------------------- the trace in Redis


def test_a_trace_in_redis_is_read_by_number(server):
    stored(server, 40)
    trace = RedisTrace(Address(server.url), "mine", limit=30)
    assert trace.sessions == 30
    assert list(trace.arrivals_ns or ()) == [number * 10_000_000 for number in range(30)]
    assert [trace.session(number).session_id for number in (3, 29, 0, 4)] == ["s3", "s29", "s0", "s4"]
    for outside in (-1, 30):
        with pytest.raises(IndexError):
            trace.session(outside)


def test_the_same_sessions_have_the_same_hash_whoever_loaded_them(server):
    stored(server, 5)
    load(server.url, "other", sessions(5), normal.Header(infersiege_trace=1, made_from="another file"))
    load(server.url, "less", sessions(4), normal.Header(infersiege_trace=1))
    hashes = [RedisTrace(Address(server.url), name).sha256 for name in ("mine", "other", "less")]
    assert hashes[0] == hashes[1] != hashes[2]


DAMAGED = [
    (("DEL", "infersiege:mine:trace"), "there is no trace 'mine'", "it is not there"),
    (("XDEL", "infersiege:mine:sessions", "3-0"), "has 9 of its 10 sessions", "a session is missing"),
    (("DEL", "infersiege:mine:sessions"), "has 0 of its 10 sessions", "all are"),
    (("HDEL", "infersiege:mine:trace", "complete"), "is not whole", "its writer was not done"),
    (("HSET", "infersiege:mine:trace", "layout", "1"), "was loaded by another version", "an older layout"),
    (("HSET", "infersiege:mine:trace", "sessions", "x"), "has no sessions", "no number"),
    (("HSET", "infersiege:mine:trace", "arrivals", "!"), "its times are damaged", "no base 64"),
    (("HSET", "infersiege:mine:trace", "arrivals", packed([1, 2])), "its times are damaged", "too few times"),
]


@pytest.mark.parametrize(("command", "message", "why"), DAMAGED)
def test_a_trace_that_is_not_whole_is_refused(server, command, message, why):
    stored(server)
    with server.client() as client:
        client.execute_command(*command)
    with pytest.raises(TraceError, match=message) as caught:
        RedisTrace(Address(server.url), "mine")
    assert caught.value.hint, why


def test_times_that_fall_or_are_missing_are_no_times(server):
    for name, times in (("none", [None, 5]), ("falling", [5, 4]), ("same", [7, 7])):
        found = (Session(session_id=f"s{at}{number}", turns=(), arrival_ns=at) for number, at in enumerate(times))
        load(server.url, name, found, normal.Header(infersiege_trace=1))
    read = {name: RedisTrace(Address(server.url), name).arrivals_ns for name in ("none", "falling", "same")}
    assert read["none"] is None and read["falling"] is None
    assert list(read["same"] or ()) == [0, 0], "from the first one on"


@given(st.lists(st.integers(0, 10**15), min_size=1).map(sorted))
def test_packed_times_are_the_same_from_the_first_on(times):
    assert list(unpacked(packed(times)) or ()) == [at - times[0] for at in times]


# ------------------------------------------------------------------------------------------------------- handing out


def test_di_07_each_session_goes_to_one_worker_in_the_traces_order(server):
    """3 workers, 9 sessions."""
    stored(server, 9)
    hands = [Hand(server, f"w{number}") for number in range(3)]
    given_out = [hands[turn % 3].next() for turn in range(9)]
    assert given_out == list(range(9))
    assert [hand.next() for hand in hands] == [None, None, None], "the trace is over"
    assert hands[1].trace.session(4).session_id == "s4"


def test_a_claim_comes_with_its_session(server):
    stored(server)
    hand = Hand(server, "w0")
    hand.expect(2)
    first = hand.next()
    server.kill()
    assert first == 0
    assert hand.trace.session(0).session_id == "s0", "it is here already"


def test_a_limit_is_the_end_of_the_trace(server):
    stored(server)
    hand = Hand(server, "w0", limit=4)
    hand.expect(8)
    assert [hand.next() for _ in range(5)] == [0, 1, 2, 3, None]


def test_a_trace_that_wraps_gives_each_session_once_in_each_repeat(server):
    stored(server, 5)
    hands = [Hand(server, "w0", wrap=True), Hand(server, "w1", wrap=True)]
    hands[1].expect(2)  # held while the other one goes on into the next repeat
    found = [hands[0].next() for _ in range(10)]
    found += [hands[1].next() for _ in range(4)]
    assert sorted(found) == list(range(14))
    hands[0].next()
    assert hands[0].trace.session(0).session_id == "s0"


def test_unstarted_claims_of_a_dead_worker_are_played_by_others(server):
    stored(server)
    dead, living = Hand(server, "dead"), Hand(server, "living")
    dead.expect(4)
    assert dead.next() == 0  # begun: nobody else gets it
    idle(server, "dead", [1, 2, 3])
    assert living.next() == 4, "a worker that has just come can't tell who is silent"
    living.here_for_long()
    assert [living.next() for _ in range(8)] == [1, 2, 3, 5, 6, 7, 8, 9]
    assert living.next() is None


def test_a_worker_that_was_away_does_not_begin_what_others_took_over(server):
    """SIGSTOP for longer than it takes to count as dead."""
    stored(server)
    away, other = Hand(server, "away"), Hand(server, "other")
    away.expect(3)
    idle(server, "away", [0, 1, 2])
    other.here_for_long()
    assert [other.next(), other.next()] == [0, 1]
    assert away.next() in (2, 3), "0 and 1 are not its own any more"
    found = {away.next(), other.next(), away.next(), other.next()}
    assert len(found) == 4 and not found & {0, 1}


def test_signs_of_life_keep_claims(server):
    stored(server)
    busy, other = Hand(server, "busy"), Hand(server, "other")
    busy.expect(3)
    idle(server, "busy", [0, 1, 2])
    busy.shelf.keep()
    other.here_for_long()
    assert other.next() == 3, "nothing is taken over"
    assert [busy.next() for _ in range(3)] == [0, 1, 2]
    with server.client() as client:
        client.expire(f"infersiege:mine:run:{RUN}", 5)
        busy.shelf.keep()
        assert client.ttl(f"infersiege:mine:run:{RUN}") > 5, "the run is alive, too"


def test_at_the_end_others_wait_for_what_might_still_be_lost(server):
    stored(server, 3)
    slow, other = Hand(server, "slow"), Hand(server, "other")
    slow.expect(1)
    assert [other.next(), other.next()] == [1, 2]
    idle(server, "slow", [0])
    other.here_for_long()
    assert other.next() == 0


def test_an_answer_that_was_lost_is_given_again(server):
    stored(server)
    group = Group("mine", RUN, 0, 0, "w0")
    with server.client() as client:
        group.create(client)
        group.read(client, 3)
        assert group.take(client, [0, 1], "first") == [True, True]
        assert group.take(client, [0, 1], "first") == [True, True], "the same call"
        assert group.take(client, [0, 2], "second") == [False, True], "another one"


# ------------------------------------------------------------------------------------------------- when Redis fails


def test_redis_restarted_in_the_middle_gives_no_session_twice(server):
    stored(server, 30)
    hands = [Hand(server, f"w{number}") for number in range(3)]
    found = [hands[turn % 3].next() for turn in range(9)]
    hands[0].expect(2)
    server.kill()
    server.start()
    while len(found) < 30:
        found += [hand.next() for hand in hands]
    assert sorted(one for one in found if one is not None) == list(range(30))


def test_redis_that_lost_its_last_claims_gives_no_session_twice(server, tmp_path):
    """AOF without fsync, and the file as it was before the claims: the worst that a crash can do."""
    stored(server, 30)
    hands = [Hand(server, f"w{number}") for number in range(3)]
    time.sleep(1.2)  # all of this is on disk
    parts = sorted((tmp_path / "redis" / "appendonlydir").iterdir())
    before = {part: part.read_bytes() for part in parts}
    found = [hands[turn % 3].next() for turn in range(9)]
    hands[2].expect(3)
    server.kill()
    for part, content in before.items():
        part.write_bytes(content)
    server.start()
    with server.client() as client:
        (group,) = client.xinfo_groups("infersiege:mine:sessions")
        assert group["last-delivered-id"] == b"0-0", "it has forgotten them all"
    for hand in hands:  # as their signs of life do within a second
        hand.shelf.keep()
    while len(found) < 30:
        found += [hand.next() for hand in hands]
    assert sorted(one for one in found if one is not None) == list(range(30))


def test_a_group_that_is_gone_is_made_again_where_it_was(server):
    stored(server)
    hand = Hand(server, "w0")
    hand.expect(4)
    found = [hand.next(), hand.next()]
    with server.client() as client:
        client.xgroup_destroy("infersiege:mine:sessions", f"{RUN}:0:0")
    found += [hand.next() for _ in range(8)]
    assert found == list(range(10))


GONE = [
    (("FLUSHALL",), "is gone from Redis", "it was started again without a file"),
    (("HSET", "infersiege:mine:trace", "content_sha256", "0"), "was replaced while it was played", "another trace"),
]


@pytest.mark.parametrize(("command", "message", "why"), GONE)
def test_a_trace_that_goes_in_the_middle_ends_the_load_with_the_reason(server, command, message, why):
    stored(server)
    hand = Hand(server, "w0")
    hand.next()
    with server.client() as client:
        client.execute_command(*command)
        if client.exists("infersiege:mine:sessions"):
            client.xgroup_destroy("infersiege:mine:sessions", f"{RUN}:0:0")
    with pytest.raises(TraceError, match=message) as caught:
        hand.next()
    assert caught.value.hint, why


def test_redis_that_stays_away_ends_the_load_when_patience_is_over(server):
    stored(server)
    hand = Hand(server, "w0")
    hand.next()
    server.kill()
    begun = time.monotonic()
    with pytest.raises(TraceError, match=r"Redis has given no session for \d+ s: redis://127.0.0.1:\d+/0") as caught:
        hand.next()
    assert PATIENCE_NS / 1e9 <= time.monotonic() - begun < PATIENCE_NS / 1e9 + 5
    assert "patience of [redis]" in (caught.value.hint or "")


# --------------------------------------------------------------------------------------------------- the run's groups


PLAN = """
[run]
stop = {{sessions = 10}}
[channel.target]
engine = "vllm"
base_url = "http://127.0.0.1:1"
model = "m"
[[workload]]
scenario = "talk"
trace = "mine"
source = "{url}"
{more}
[load]
mode = "open"
rate = 1
"""


def plan_of(server: redis_server.RedisServer, tmp_path: Path, more: str = "", tables: str = ""):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(url=server.url, more=more) + tables, encoding="utf-8")
    return load_plan(path)


def test_a_run_leaves_nothing_in_redis(server, tmp_path):
    stored(server)
    keeper = ClaimKeeper(plan_of(server, tmp_path), RUN)
    with server.client() as client:
        with keeper:
            assert len(client.xinfo_groups("infersiege:mine:sessions")) == 1
            assert 0 < client.ttl(f"infersiege:mine:run:{RUN}") <= 600, "it goes by itself if the master dies"
            Group("mine", RUN, 0, 1, "").create(client)
            Group("mine", "other", 0, 0, "").create(client)
            hand = Hand(server, "w0")
            hand.next()
        assert [group["name"] for group in client.xinfo_groups("infersiege:mine:sessions")] == [b"other:0:0"]
        assert sorted(client.keys()) == [b"infersiege:mine:sessions", b"infersiege:mine:trace"]
        assert keeper.taken == {0: 1}
        assert forget_dead_runs(client, "mine") == 1, "the other run shows no sign of life"


def test_a_trace_is_not_written_over_while_a_run_plays_it(server, tmp_path):
    stored(server)
    header = normal.Header(infersiege_trace=1)
    with ClaimKeeper(plan_of(server, tmp_path), RUN), pytest.raises(UsageError, match="a run plays the trace 'mine'"):
        load(server.url, "mine", sessions(3), header, replace=True)
    assert load(server.url, "mine", sessions(3), header, replace=True).sessions == 3


def test_a_redis_that_is_gone_does_not_keep_a_run_from_ending(server, tmp_path):
    stored(server)
    with ClaimKeeper(plan_of(server, tmp_path), RUN):
        server.kill()


def record(session_id: str, worker: str):
    opened = OpenTurn(
        session_id=session_id, scenario="talk", stage="main", phase=Phase.STEADY, channel="target", turns=1, turn=0,
        started=False, due_ns=0,
    )  # fmt: skip
    labels = ChannelLabels("target", "vllm", "openai-chat", "m")
    return unsent_record(
        opened, run_id=RUN, worker=worker, epoch=0, channel=labels, outcome=Outcome.SKIPPED,
        reason=Reason.RUN_END, turn=0,
    )  # fmt: skip


def test_a_session_that_two_workers_have_records_of_is_told(server, tmp_path):
    stored(server)
    turns = [record("talk:a", "w0"), record("talk:a", "w0"), record("talk:b", "w0"), record("talk:b", "w1")]
    assert played_twice(turns) == ["talk:b"]
    remarks = ClaimKeeper(plan_of(server, tmp_path), RUN).remarks(turns, {}, died=False)
    assert "1 sessions were played twice (first: talk:b)" in remarks.invalid[0]


def test_arrivals_without_a_session_stand_for_themselves(server, tmp_path):
    """Which sessions a dead worker's arrivals would have played nobody knows: others play them."""
    stored(server)
    source = SessionSource(plan_of(server, tmp_path), place=0, members=1)
    tickets = [Ticket(index, 0, index, index * 10**9) for index in range(4)]
    names = [source.arrival_id(ticket) for ticket in tickets]
    assert len(set(names)) == 4 and all(map(is_arrival, names)) and all(map(source.hands_out, tickets))
    assert not is_arrival("talk:s1") and not is_arrival("talk:~arrival-0.1~0")
    orphans = [OpenTurn(
        session_id=name, scenario="talk", stage="main", phase=Phase.STEADY, channel="target", turns=1, turn=0,
        started=False, due_ns=0,
    ) for name in names]  # fmt: skip
    left = list(unplayed_arrivals(orphans, {"talk:s7", "talk:s9", "other:s1"}))
    assert [one.session_id for one in left] == names[2:], "two of them were played"


def test_what_redis_raises_is_a_redis_error(server):
    """The retries rest on it: a refused connection is no OSError."""
    server.kill()
    with pytest.raises(redis.ConnectionError), Address(server.url).client(1.0) as client:
        client.ping()
