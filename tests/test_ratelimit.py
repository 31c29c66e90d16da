"""Rate limits: whatever workers, messages and clocks do, no sliding minute at the server holds more than the limit, and
under full demand nearly all of it is used."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infersiege.errors import PlanError
from infersiege.plan.load import load_plan
from infersiege.records import (
    ClockPing,
    Grant,
    Outcome,
    Permit,
    PermitUse,
    Phase,
    RateAsk,
    Spending,
    TokensFrom,
    TurnRecord,
)
from infersiege.swarm.budget import REQUESTS, Limit, Treasury
from infersiege.swarm.clock import ClockEstimate, Reading
from infersiege.swarm.permits import HELD_NS, Leave, Turnstile
from infersiege.swarm.purse import Purse
from infersiege.swarm.ratelimit import GUARD_NS, MINUTE_NS, VALID_NS, Rate, RateLimiter, rates_of

HERE = "cloud"
MS = 1_000_000
SECOND = 1_000_000_000
NOW = 5_000 * SECOND


def turn_of(sent_ns: int | None, tokens: int, *, attempts: int = 1, told: bool = True) -> TurnRecord:
    """An answered turn; `sent_ns` None: there was no connection."""
    return TurnRecord(
        run_id="r", worker="w", epoch=0, session_id="s", turn=0, parent_turn=None, scenario="x", stage="main",
        phase=Phase.STEADY, channel=HERE, replica=None, engine="vllm", dialect="openai-chat", model_asked="m",
        request_id="r.s.0", due_ns=1, sent_ns=sent_ns, sent_end_ns=sent_ns, closed_ns=9, attempts=attempts,
        outcome=Outcome.OK if sent_ns is not None else Outcome.FAILED, http_status=200, prompt_tokens=tokens,
        output_tokens=0, tokens_from=TokensFrom.USAGE if told else TokensFrom.ESTIMATE,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ a virtual world


class HostClock:
    """A host's monotonic clock, of which the master's is known by messages only. It may run fast or slow, and stands
    still while its machine does."""

    def __init__(self, world: World, skew_ns: int, ppm: int) -> None:
        self._world, self._skew_ns, self._ppm = world, skew_ns, ppm
        self.estimate = ClockEstimate()
        self.stopped_ns: int | None = None
        self._lost_ns = 0

    def now(self) -> int:
        ran_ns = (self.stopped_ns or self._world.now_ns) - self._lost_ns - NOW
        return NOW + self._skew_ns + ran_ns + ran_ns * self._ppm // 1_000_000

    def go_on(self) -> None:
        assert self.stopped_ns is not None
        self._lost_ns += self._world.now_ns - self.stopped_ns
        self.stopped_ns = None

    def reading(self) -> Reading | None:
        return self.estimate.reading(self.now())

    def at_latest(self, at_ns: int) -> int | None:
        return self.estimate.at_latest(at_ns)


@dataclass
class Host:
    """One worker process on a host with a clock of its own."""

    name: str
    purse: Purse
    clock: HostClock
    users: list[Any] = field(default_factory=list)
    dead: bool = False
    cut: bool = False
    """Messages to and from it are lost."""
    runs: Any = field(default_factory=Event)
    """Not set: its machine is suspended."""
    inbox: list[Callable[[], None]] = field(default_factory=list)
    """What came meanwhile."""


@dataclass
class Written:
    sent_end_ns: int | None


class World:
    """The real treasury and real purses; time, network and servers are the test's. Instants: the master's clock."""

    def __init__(
        self, rate: Rate, *, seed: int, delay_ns: int, workers: int, took_ns: int = 300 * MS, drift_ppm: int = 0
    ) -> None:
        self.rate, self.random, self.delay_ns, self.took_ns = rate, random.Random(seed), delay_ns, took_ns
        self.drift_ppm = drift_ppm
        # Oscillators that run apart take a little of the guard while a question is on its way.
        self.longest_way_ns = rate.guard_ns - (MS if drift_ppm else 0)
        self.now_ns = NOW
        self.log: list[tuple[int, int]] = []
        """(when a request came to the server, its tokens)."""
        self.treasury = Treasury((), (rate,), workers=workers)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._lines: dict[tuple[str, bool], int] = {}
        self.hosts = [self.join(f"worker-{number}") for number in range(workers)]
        self.at(0, self._tick)

    def at(self, after_ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ns + after_ns, next(self._order), what))

    def sleep(self, after_ns: int) -> None:
        woken = Event()
        self.at(after_ns, woken.set)
        woken.wait()

    def join(self, name: str) -> Host:
        skew_ns, ppm = self.random.randint(-SECOND, SECOND), self.random.randint(-self.drift_ppm, self.drift_ppm)
        clock = HostClock(self, skew_ns, ppm)
        host = Host(name, Purse((), (self.rate,), clock=clock, epoch_offset_ns=-skew_ns), clock)
        host.runs.set()
        self._answered(host, clock.now(), self.now_ns)  # as before the load
        host.purse.grant(self.treasury.first(name, self.now_ns))
        gevent.spawn(self._courier, host)
        self.at(SECOND, lambda: self._report(host))
        self.at(0, lambda: self._compare(host))
        return host

    def suspend(self, host: Host) -> None:
        host.runs.clear()
        host.clock.stopped_ns = self.now_ns

    def resume(self, host: Host) -> None:
        """Its users go on before what has come meanwhile is read."""
        host.clock.go_on()
        host.runs.set()
        self._settle()
        inbox, host.inbox = host.inbox, []
        for deliver in inbox:
            self.at(0, deliver)

    def add_users(self, host: Host, count: int, pause_ns: int, tokens: tuple[int, int]) -> None:
        host.users += [gevent.spawn(self._user, host, pause_ns, tokens) for _ in range(count)]

    def kill(self, host: Host) -> None:
        host.dead = True
        gevent.killall(host.users, block=False)
        self.treasury.lose(host.name)

    def run(self, length_ns: int) -> None:
        end_ns = self.now_ns + length_ns
        self._settle()
        while self._events and self._events[0][0] <= end_ns:
            self.now_ns, _, what = heapq.heappop(self._events)
            what()
            self._settle()
        self.now_ns = end_ns

    def close(self) -> None:
        for host in self.hosts:
            gevent.killall(host.users, block=False)
            host.dead = True
            host.purse.asking.set()
        self._settle()

    def check(self) -> None:
        """No sliding window of the server's log is above the limit."""
        log = sorted(self.log)
        first = tokens = 0
        for last, (at_ns, amount) in enumerate(log):
            tokens += amount
            while log[first][0] <= at_ns - self.rate.window_ns:
                tokens -= log[first][1]
                first += 1
            if self.rate.requests is not None:
                assert last - first + 1 <= self.rate.requests
            if self.rate.tokens is not None:
                assert tokens <= self.rate.tokens

    # ------------------------------------------------------------------------------------------------- inside

    def _settle(self) -> None:
        for _ in range(4):
            gevent.sleep(0)

    def _tick(self) -> None:
        for name, grant in self.treasury.due(self.now_ns).items():
            for host in self.hosts:
                if host.name == name and not host.dead:
                    self._carry(host, False, lambda host=host, grant=grant: host.purse.grant(grant))  # type: ignore[misc]
        self.at(50 * MS, self._tick)

    def _report(self, host: Host) -> None:
        if not host.dead:
            if host.runs.is_set():
                self._tell(host)
            self.at(SECOND, lambda: self._report(host))

    def _compare(self, host: Host) -> None:
        if not host.dead:
            if host.runs.is_set():
                asked_ns = host.clock.now()
                self._carry(host, True, lambda: self._answer(host, asked_ns, self.now_ns))
            self.at(SECOND // 2, lambda: self._compare(host))

    def _answer(self, host: Host, asked_ns: int, master_ns: int) -> None:
        self._carry(host, False, lambda: self._answered(host, asked_ns, master_ns))

    def _answered(self, host: Host, asked_ns: int, master_ns: int) -> None:
        ping = ClockPing(worker=host.name, sent_ns=asked_ns, master_ns=master_ns)
        host.clock.estimate.add(ping, host.clock.now())
        host.purse.compared()

    def _courier(self, host: Host) -> None:
        while not host.dead:
            host.purse.asking.wait()
            host.runs.wait()
            self._tell(host)

    def _tell(self, host: Host) -> None:
        spending = host.purse.spending()
        if spending is not None and not host.dead:
            self._carry(host, True, lambda: self._hear(host, spending))

    def _hear(self, host: Host, spending: Spending) -> None:
        if not host.dead:
            self.treasury.told(host.name, spending, self.now_ns)
            self.at(0, self._serve_now)

    def _serve_now(self) -> None:
        for name, grant in self.treasury.due(self.now_ns).items():
            for host in self.hosts:
                if host.name == name and not host.dead:
                    self._carry(host, False, lambda host=host, grant=grant: host.purse.grant(grant))  # type: ignore[misc]

    def _carry(self, host: Host, up: bool, deliver: Callable[[], None]) -> None:
        """In order, each way by itself; lost while the host is cut off."""
        if host.cut:
            return
        arrives_ns = max(self.now_ns + self.random.randint(0, self.delay_ns), self._lines.get((host.name, up), 0))
        self._lines[host.name, up] = arrives_ns
        self.at(arrives_ns - self.now_ns, lambda: self._arrived(host, up, deliver))

    def _arrived(self, host: Host, up: bool, deliver: Callable[[], None]) -> None:
        if host.dead or host.cut:
            return
        if up or host.runs.is_set():
            deliver()
        else:
            host.inbox.append(deliver)

    def _sleep_at(self, host: Host, length_ns: int) -> None:
        self.sleep(length_ns)
        host.runs.wait()

    def _user(self, host: Host, pause_ns: int, tokens: tuple[int, int]) -> None:
        kept: Leave | None = None
        while True:
            host.runs.wait()
            asks = self.random.randint(*tokens)
            leave, kept = host.purse.take(HERE, asks, kept), None
            if leave is None:
                kept = host.purse.wait(HERE, asks)
                continue
            if self.random.random() < 0.3:  # a new connection
                self._sleep_at(host, self.random.randint(0, self.rate.connect_ns))
            sent_ns = host.clock.now()
            used = self.random.randint(min(tokens[0], asks), asks)
            self.log.append((self.now_ns + self.random.randint(0, self.longest_way_ns), used))
            leave.begun(Written(sent_ns))
            self._sleep_at(host, self.random.randint(1, self.took_ns))
            host.purse.paid(turn_of(sent_ns + host.purse._epoch_offset_ns, used), leave)
            if pause_ns:
                self._sleep_at(host, self.random.randint(1, pause_ns))


SMALL = {"window_ns": 6 * SECOND, "guard_ns": 100 * MS, "valid_ns": 400 * MS, "connect_ns": 500 * MS}
FAULTS = st.lists(
    st.tuples(st.sampled_from(["kill", "cut", "heal", "found", "join", "calm"]), st.integers(0, 3), st.integers(1, 40)),
    max_size=14,
)


@given(
    requests=st.one_of(st.none(), st.integers(1, 60)),
    tokens=st.one_of(st.none(), st.integers(60, 4_000)),
    burst_ms=st.sampled_from([0, 1_000, 3_000, 6_000]),
    users=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    pause_ms=st.sampled_from([0, 200, 3_000]),
    delay_ms=st.sampled_from([0, 5, 150, 500]),
    faults=FAULTS,
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_no_sliding_minute_at_the_server_is_above_the_limit_whatever_dies(
    requests: int | None,
    tokens: int | None,
    burst_ms: int,
    users: list[int],
    pause_ms: int,
    delay_ms: int,
    faults: list[tuple[str, int, int]],
    seed: int,
) -> None:
    """Random demand, delays, lost messages, deaths, cuts, returns of the same process and of another one."""
    rate = Rate(HERE, requests, tokens, burst_ns=burst_ms * MS, **SMALL)
    world = World(rate, seed=seed, delay_ns=delay_ms * MS, workers=len(users))
    for host, count in zip(world.hosts, users, strict=True):
        world.add_users(host, count, pause_ms * MS, (1, 60))
    for what, who, tenths in faults:
        world.run(tenths * 100 * MS)
        host = world.hosts[who % len(world.hosts)]
        if what == "kill" and not host.dead:
            world.kill(host)
        elif what == "cut":
            host.cut = True
        elif what == "heal" and host.cut and not host.dead:
            host.cut = False
        elif what == "found" and not host.dead:  # given up by the master, and there again
            world.treasury.lose(host.name)
            world.treasury.found(host.name)
        elif what == "join" and host.dead:
            world.hosts[world.hosts.index(host)] = new = world.join(host.name)
            world.add_users(new, 3, pause_ms * MS, (1, 60))
    world.run(8 * SECOND)
    world.close()
    world.check()
    (use,) = world.treasury.rate_uses()
    assert use.requests <= len(world.log), "nothing is counted that was not sent"


@given(
    requests=st.integers(1, 60),
    burst_ms=st.sampled_from([0, 1_000, 6_000]),
    users=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    delay_ms=st.sampled_from([0, 5, 150]),
    suspended=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(1, 2_500), st.booleans()), min_size=1, max_size=8
    ),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_no_sliding_minute_is_above_the_limit_when_clocks_drift_and_stand_still(
    requests: int,
    burst_ms: int,
    users: list[int],
    delay_ms: int,
    suspended: list[tuple[int, int, int, bool]],
    seed: int,
) -> None:
    """Oscillators 90 ppm apart, and machines that are suspended: what they hold is older than their clocks say, until
    they have compared them."""
    rate = Rate(HERE, requests, burst_ns=burst_ms * MS, **SMALL)
    world = World(rate, seed=seed, delay_ns=delay_ms * MS, workers=len(users), drift_ppm=90)
    for host, count in zip(world.hosts, users, strict=True):
        world.add_users(host, count, 0, (1, 1))
    for who, tenths, length_ms, given_up in suspended:
        world.run(tenths * 100 * MS)
        host = world.hosts[who % len(world.hosts)]
        world.suspend(host)
        if given_up:
            world.treasury.lose(host.name)
        world.run(length_ms * MS)
        world.resume(host)
        if given_up:
            world.treasury.found(host.name)
    world.run(8 * SECOND)
    world.close()
    world.check()


def test_a_clock_that_drifts_for_half_an_hour_keeps_to_the_limit() -> None:
    """By 90 ppm, which is 162 ms: more than all of the guard. Each window's amount goes at once as soon as it may."""
    world = World(Rate(HERE, 10, burst_ns=6 * SECOND, **SMALL), seed=1, delay_ns=MS, workers=2, drift_ppm=90)
    for host, ppm in zip(world.hosts, (-90, 90), strict=True):
        host.clock._ppm = ppm
        world.add_users(host, 5, 0, (1, 1))
    world.run(30 * MINUTE_NS)
    world.close()
    world.check()
    assert len(world.log) >= 0.9 * 10 * 300


@pytest.mark.parametrize("seed", range(8))
def test_what_a_lost_worker_may_have_sent_counts_until_a_minute_after(seed: int) -> None:
    """It uses all permits and is gone before it tells: the others, who wait, come a whole window later."""
    rate = Rate(HERE, 10, burst_ns=6 * SECOND, **{**SMALL, "connect_ns": 2 * SECOND})
    world = World(rate, seed=seed, delay_ns=0, workers=2)
    lost, other = world.hosts
    world.add_users(lost, 10, 0, (1, 1))
    world.run(MS)
    lost.cut = True
    world.run(3 * SECOND)
    world.kill(lost)
    world.add_users(other, 10, 0, (1, 1))
    world.run(9 * SECOND)
    world.close()
    world.check()
    assert len(world.log) == 20, "the lost worker's ten, and then ten of the other one"


FULL = [
    (60, 1, 1, 1, "a request a second, one worker"),
    (60, 4, 3, 1, "the same over four"),
    (600, 4, 10, 1, "ten a second: ticks of the master lose nothing"),
    (3_000, 2, 40, 0, "no burst: evenly spaced"),
    (300, 3, 20, 60, "all at once, then again a minute later"),
]


@pytest.mark.parametrize(("requests", "workers", "users", "burst_s", "why"), FULL, ids=[row[-1] for row in FULL])
def test_under_full_demand_95_percent_of_the_limit_are_reached(
    requests: int, workers: int, users: int, burst_s: int, why: str
) -> None:
    rate = Rate(HERE, requests, burst_ns=burst_s * SECOND, connect_ns=100 * MS)
    world = World(rate, seed=1, delay_ns=20 * MS, workers=workers, took_ns=100 * MS)
    for host in world.hosts:
        world.add_users(host, users, 0, (1, 1))
    minutes = 3
    world.run(minutes * MINUTE_NS)
    world.close()
    world.check()
    assert len(world.log) >= 0.95 * minutes * requests, why
    (use,) = world.treasury.rate_uses()
    assert use.held > 0


def test_the_first_minute_is_paced() -> None:
    """No burst of a whole minute's amount at its start: never more than a second's worth and what came since."""
    world = World(Rate(HERE, 600), seed=3, delay_ns=2 * MS, workers=4)
    for host in world.hosts:
        world.add_users(host, 50, 0, (1, 1))
    world.run(20 * SECOND)
    world.close()
    sent = sorted(at_ns - NOW for at_ns, _ in world.log)
    for number, at_ns in enumerate(sent):
        assert number <= 10 + 10 * (at_ns / SECOND) + 1
    assert len(sent) >= 0.95 * 200


def test_a_load_below_the_limit_is_not_held_back() -> None:
    """Users that together send 60 a minute, and 600 are allowed: they wait for the master's answer at most."""
    world = World(Rate(HERE, 600), seed=4, delay_ns=5 * MS, workers=2)
    for host in world.hosts:
        world.add_users(host, 2, 8 * SECOND, (1, 1))
    world.run(MINUTE_NS)
    world.close()
    (use,) = world.treasury.rate_uses()
    assert use.held == 0 and len(world.log) > 30


def test_tokens_that_were_not_used_come_back() -> None:
    """Answers are a tenth of what they may be: by what is asked for alone only a tenth of the limit could be used."""
    rate = Rate(HERE, tokens=60_000, connect_ns=10 * MS)
    world = World(rate, seed=5, delay_ns=2 * MS, workers=2, took_ns=50 * MS)
    for host in world.hosts:
        world.add_users(host, 4, 0, (100, 1_000))
    world.run(2 * MINUTE_NS)
    world.close()
    world.check()
    assert sum(tokens for _, tokens in world.log) >= 0.9 * 120_000


# ----------------------------------------------------------------------------------------------------------- the master


def ask(*waiting: int, seen: int = 0, uses: tuple[PermitUse, ...] = (), ahead: int = 0) -> RateAsk:
    return RateAsk(waiting=waiting, seen=seen, uses=uses, ahead=ahead)


def numbers(given: dict[str, list[Permit]]) -> dict[str, list[int]]:
    return {worker: [permit.number for permit in permits] for worker, permits in given.items()}


ALL_AT_ONCE = Rate(HERE, 4, burst_ns=MINUTE_NS)


def test_workers_are_served_in_turn() -> None:
    limiter = RateLimiter(ALL_AT_ONCE, workers=2)
    limiter.told("a", ask(0, 0, 0, 0, 0), NOW)
    limiter.told("b", ask(0), NOW)
    assert numbers(limiter.serve(NOW)) == {"a": [1, 3, 4], "b": [2]}
    assert limiter.waiting == 2
    assert limiter.serve(NOW + MINUTE_NS) == {}, "used, for all that is known, when it could last be"


def test_what_a_worker_has_not_heard_of_is_not_granted_twice() -> None:
    limiter = RateLimiter(ALL_AT_ONCE, workers=1)
    limiter.told("a", ask(0, 0), NOW)
    assert numbers(limiter.serve(NOW)) == {"a": [1, 2]}
    limiter.told("a", ask(0, 0), NOW)
    assert limiter.serve(NOW) == {}, "the two are on their way"
    limiter.told("a", ask(0, seen=2), NOW)
    assert numbers(limiter.serve(NOW)) == {"a": [3]}
    limiter.told("a", ask(0, 0, seen=2), NOW + VALID_NS)
    assert numbers(limiter.serve(NOW + VALID_NS)) == {"a": [4]}, "the third was lost on its way: it is no good any more"


USES = [
    ((), NOW + VALID_NS + 10 * SECOND + MINUTE_NS + GUARD_NS, "nobody tells: as late as it can have been"),
    ((PermitUse(number=1, sent_ns=NOW + MS),), NOW + MS + MINUTE_NS + GUARD_NS, "a minute and the guard after it"),
    ((PermitUse(number=1, sent_ns=None),), NOW + 5, "given back"),
]


@pytest.mark.parametrize(("uses", "free_ns", "why"), USES, ids=[row[-1] for row in USES])
def test_when_a_place_is_free_again(uses: tuple[PermitUse, ...], free_ns: int, why: str) -> None:
    limiter = RateLimiter(Rate(HERE, 1, burst_ns=MINUTE_NS), workers=2)
    limiter.told("a", ask(0), NOW)
    assert numbers(limiter.serve(NOW)) == {"a": [1]}
    limiter.told("a", ask(seen=1, uses=uses), NOW + 5)
    limiter.told("b", ask(0), NOW + 5)
    if free_ns > NOW + 5:
        assert limiter.serve(free_ns - 1) == {}, why
    assert numbers(limiter.serve(free_ns)) == {"b": [2]}, why


def test_what_is_told_too_late_still_counts() -> None:
    """A stopped process may have sent long after its permit's time: what the server saw counts from then on."""
    limiter = RateLimiter(Rate(HERE, 1, burst_ns=MINUTE_NS), workers=1)
    limiter.told("a", ask(0), NOW)
    limiter.serve(NOW)
    later = NOW + 100 * SECOND
    limiter.serve(later)
    limiter.told("a", ask(0, seen=1, uses=(PermitUse(number=1, sent_ns=later),)), later)
    assert limiter.used == (1, 0)
    assert limiter.serve(later + MINUTE_NS) == {}
    assert numbers(limiter.serve(later + MINUTE_NS + GUARD_NS)) == {"a": [2]}


def test_what_was_sent_before_the_load_counts() -> None:
    sent_ns = {HERE: [NOW - 50 * SECOND, NOW - 2 * SECOND], "other": [NOW]}
    treasury = Treasury((), (ALL_AT_ONCE,), workers=1, sent_ns=sent_ns)
    treasury.first("a", NOW)
    treasury.told("a", Spending(spent=(), waiting=(), rates={HERE: ask(0, 0, 0, 0)}), NOW)
    assert len(treasury.due(NOW)["a"].permits[HERE]) == 2
    (use,) = treasury.rate_uses()
    assert use.requests == 2
    assert treasury.note() == "rate limit of cloud: 2 turns wait"
    assert len(treasury.due(NOW + 11 * SECOND)["a"].permits[HERE]) == 1, "the first of them is a minute old"


def test_a_large_request_is_not_overtaken() -> None:
    limiter = RateLimiter(Rate(HERE, tokens=100, burst_ns=MINUTE_NS), workers=2)
    limiter.told("a", ask(80), NOW)
    limiter.told("b", ask(30, 10), NOW)
    given = limiter.serve(NOW)
    assert [permit.tokens for permit in given["a"]] == [80] and list(given) == ["a"]
    use = PermitUse(number=1, sent_ns=NOW, tokens=5)
    limiter.told("a", ask(seen=1, uses=(use,)), NOW + 9)
    assert [permit.tokens for permit in limiter.serve(NOW + 9)["b"]] == [30, 10], "what was not used comes back at once"
    assert limiter.used == (0, 45)


def test_nothing_is_held_in_advance_that_others_could_want() -> None:
    limiter = RateLimiter(Rate(HERE, 600), workers=2)
    limiter.told("a", ask(ahead=50), NOW)
    assert len(limiter.serve(NOW)["a"]) == 4, "of ten at once"
    limiter = RateLimiter(Rate(HERE, 60), workers=2)
    limiter.told("a", ask(ahead=50), NOW)
    assert limiter.serve(NOW) == {}
    limiter = RateLimiter(Rate(HERE, 600), workers=2)
    limiter.told("a", ask(ahead=50), NOW)
    limiter.told("b", ask(*[0] * 20), NOW)
    assert list(limiter.serve(NOW)) == ["b"], "who waits goes first"


def test_a_lost_worker_is_granted_nothing_and_a_new_one_of_its_name_starts_anew() -> None:
    treasury = Treasury((), (ALL_AT_ONCE,), workers=1)
    treasury.first("a", NOW)
    rates = {HERE: RateAsk(waiting=(0,), held=3, held_longest_ns=SECOND)}
    treasury.told("a", Spending(spent=(), waiting=(), rates=rates), NOW)
    treasury.lose("a")
    assert treasury.due(NOW) == {}
    treasury.first("a", NOW)
    treasury.told("a", Spending(spent=(), waiting=(), rates={HERE: RateAsk(waiting=(0,), held=1)}), NOW)
    assert list(treasury.due(NOW)) == ["a"]
    (use,) = treasury.rate_uses()
    assert (use.held, use.held_longest_ms) == (4, 1000.0), "of both"


def test_a_returned_workers_budget_counts_again_and_a_new_one_of_its_name_has_its_own() -> None:
    limit = Limit(HERE, REQUESTS, 500)
    treasury = Treasury((limit,), workers=2)
    (granted,) = treasury.first("a", NOW).totals
    treasury.first("b", NOW)
    treasury.told("a", Spending(spent=(2,), waiting=(0,)), NOW)
    treasury.lose("a")
    (use,) = treasury.uses()
    assert (use.used, use.lost) == (granted, granted - 2)
    treasury.found("a")
    (use,) = treasury.uses()
    assert (use.used, use.lost) == (2, 0), "it told what it has spent, and goes on"
    treasury.lose("a")
    (again,) = treasury.first("a", NOW).totals
    assert again > 0
    (use,) = treasury.uses()
    assert (use.used, use.lost) == (granted, granted - 2), "the first of that name is gone with its grant"
    spent = 0
    while True:
        grant = treasury.told("b", Spending(spent=(spent,), waiting=(1,)), NOW)
        if grant is None:
            break
        (spent,) = grant.totals
    assert spent + again + granted == 500


def test_a_channel_of_another_plan_is_refused() -> None:
    treasury = Treasury((), (ALL_AT_ONCE,), workers=1)
    with pytest.raises(ValueError, match="'other', which has no rate limit"):
        treasury.told("a", Spending(spent=(), waiting=(), rates={"other": RateAsk()}), NOW)


def test_a_permit_costs_the_master_little() -> None:
    limiter = RateLimiter(Rate(HERE, 10**9, burst_ns=MINUTE_NS), workers=1)
    begun, number = time.perf_counter(), 0
    for _ in range(300):
        uses = tuple(PermitUse(number=one, sent_ns=NOW) for one in range(number - 63, number + 1) if one > 0)
        limiter.told("a", ask(*[0] * 64, seen=number, uses=uses), NOW)
        number = limiter.serve(NOW)["a"][-1].number
    assert (time.perf_counter() - begun) / number < 200e-6, "generous: a busy machine"


# ----------------------------------------------------------------------------------------------------------- the worker


class Now:
    """A worker's clock that is moved by hand. The master's is 7 ns ahead, or up to `doubt_ns` more."""

    def __init__(self) -> None:
        self.ns, self.doubt_ns = NOW, 0
        self.known, self.compared_ns = True, 1 << 62

    def now(self) -> int:
        return self.ns

    def reading(self) -> Reading | None:
        return Reading(7, self.doubt_ns) if self.known else None

    def at_latest(self, at_ns: int) -> int | None:
        return at_ns + 7 + self.doubt_ns if at_ns <= self.compared_ns else None


@pytest.fixture
def now() -> Now:
    return Now()


def gate(now: Now, *, doubt_ns: int = 0, tokens: int | None = None) -> Turnstile:
    now.doubt_ns = doubt_ns
    return Turnstile(Rate(HERE, 60, tokens), now, Event())


def permit(number: int, until_ns: int = NOW + SECOND, tokens: int = 0) -> Permit:
    return Permit(number=number, until_ns=until_ns, tokens=tokens)


def test_without_a_permit_nothing_is_sent_and_an_old_one_is_none(now: Now) -> None:
    turnstile = gate(now, doubt_ns=100)
    assert turnstile.take(5) is None
    turnstile.arrive((permit(1), permit(2)))
    now.ns = NOW + SECOND - 107 - 1
    assert turnstile.take(5) is not None, "the master's clock is 7 ns ahead, or up to 107"
    now.ns += 1
    assert turnstile.take(5) is None
    told = turnstile.tell()
    assert told is not None and told.uses == (PermitUse(number=2, sent_ns=None),) and told.seen == 2
    told = turnstile.tell()
    assert told is not None and told.uses == (), "told once"


def test_turns_go_in_their_order(now: Now) -> None:
    turnstile = gate(now)
    went: list[int] = []

    def user(number: int) -> None:
        leave = turnstile.wait(0)
        assert leave is not None
        assert turnstile.take_kept(leave, 0) is not None
        went.append(number)

    users = [gevent.spawn(user, number) for number in range(4)]
    gevent.sleep(0)
    turnstile.arrive((permit(1), permit(2)))
    assert turnstile.take(0) is None, "who comes now does not overtake them"
    gevent.sleep(0)
    assert went == [0, 1]
    users[2].kill()
    turnstile.arrive((permit(3),))
    gevent.joinall(users, timeout=2)
    assert went == [0, 1, 3]


def test_what_a_turn_does_not_need_after_all_goes_to_the_next_one(now: Now) -> None:
    turnstile = gate(now)
    first, second = gevent.spawn(turnstile.wait, 0), gevent.spawn(turnstile.wait, 0)
    gevent.sleep(0)
    turnstile.arrive((permit(1),))
    first.join(2)
    turnstile.give_back(first.value)
    second.join(2)
    assert second.value is not None and second.value.permit == permit(1)


SENT = [
    (turn_of(NOW, 10), PermitUse(number=1, sent_ns=NOW + 57, tokens=10), "on the master's clock, at the latest"),
    (turn_of(None, 10), PermitUse(number=1, sent_ns=None), "no connection: given back"),
    (turn_of(NOW, 10, told=False), PermitUse(number=1, sent_ns=NOW + 57, tokens=80), "no counts: all it asked for"),
    (turn_of(NOW, 10, attempts=2), PermitUse(number=1, sent_ns=NOW + 57, requests=2, tokens=10), "sent again"),
]


@pytest.mark.parametrize(("turn", "use", "why"), SENT, ids=[row[-1] for row in SENT])
def test_the_master_hears_what_became_of_a_permit(now: Now, turn: TurnRecord, use: PermitUse, why: str) -> None:
    turnstile = gate(now, doubt_ns=50, tokens=100)
    turnstile.arrive((permit(1, tokens=80),))
    leave = turnstile.take(80)
    assert leave is not None
    turnstile.used(leave, turn, 0)
    told = turnstile.tell()
    assert told is not None and told.uses == (use,), why


def test_when_a_long_answers_request_was_sent_is_told_before_it_ends(now: Now) -> None:
    turnstile, written = gate(now, tokens=100), Written(None)
    turnstile.arrive((permit(1, tokens=80),))
    leave = turnstile.take(80)
    assert leave is not None
    leave.begun(written)
    told = turnstile.tell()
    assert told is not None and told.uses == (), "it connects"
    written.sent_end_ns = NOW + 5
    told = turnstile.tell()
    assert told is not None and told.uses == (PermitUse(number=1, sent_ns=NOW + 12, tokens=80),)
    turnstile.used(leave, turn_of(NOW + 5, 10), 0)
    told = turnstile.tell()
    assert told is not None and told.uses == (PermitUse(number=1, sent_ns=NOW + 12, tokens=10),)
    limiter = RateLimiter(Rate(HERE, tokens=100, burst_ns=MINUTE_NS), workers=1)
    limiter.told("a", ask(80), NOW)
    limiter.serve(NOW)
    for tokens in (80, 10, 10):
        limiter.told("a", ask(seen=1, uses=(PermitUse(number=1, sent_ns=NOW, tokens=tokens),)), NOW + 1)
        assert limiter.used == (0, tokens)
    assert limiter.use().requests == 1


def test_when_a_request_was_sent_is_told_once_the_clocks_were_compared_after_it(now: Now) -> None:
    """A machine that was suspended does not know that its clock stood still."""
    turnstile = gate(now, tokens=100)
    turnstile.arrive((permit(1, tokens=80), permit(2, tokens=80)))
    first, second = turnstile.take(80), turnstile.take(80)
    assert first is not None and second is not None
    waits = gevent.spawn(turnstile.wait, 80)
    gevent.sleep(0)
    turnstile.tell()
    now.compared_ns = NOW + 3
    turnstile._asking.clear()
    turnstile.used(first, turn_of(NOW + 5, 10), 0)
    turnstile.used(second, turn_of(NOW + 6, 10), 0)
    assert not turnstile._asking.is_set(), "there is nothing to tell yet"
    told = turnstile.tell()
    assert told is not None and told.uses == ()
    now.compared_ns = NOW + 5
    turnstile.compared()
    assert turnstile._asking.is_set(), "others wait for the tokens that it did not use"
    told = turnstile.tell()
    assert told is not None and told.uses == (PermitUse(number=1, sent_ns=NOW + 12, tokens=10),)
    now.compared_ns = NOW + 6
    told = turnstile.tell()
    assert told is not None and told.uses == (PermitUse(number=2, sent_ns=NOW + 13, tokens=10),), "each once"
    waits.kill()


def test_a_permit_is_none_while_the_masters_clock_is_not_known(now: Now) -> None:
    turnstile = gate(now)
    turnstile.arrive((permit(1), permit(2)))
    kept = turnstile.take(5)
    assert kept is not None
    now.known = False
    assert turnstile.take_kept(kept, 5) is None and turnstile.take(5) is None
    told = turnstile.tell()
    assert told is not None and {use.number for use in told.uses} == {1, 2}, "both go back"


def test_waiting_is_told_and_how_long_it_took(now: Now) -> None:
    turnstile = gate(now)
    waits = gevent.spawn(turnstile.wait, 0)
    gevent.sleep(0)
    told = turnstile.tell()
    assert told is not None and told.waiting == (0,) and told.held == 0
    now.ns += HELD_NS
    turnstile.arrive((permit(1),))
    waits.join(2)
    told = turnstile.tell()
    assert told is not None and told.held == 0, "that is how long it takes to ask"
    again = gevent.spawn(turnstile.wait, 0)
    waits.value.turnstile.take_kept(waits.value, 0)
    gevent.sleep(0)
    now.ns += HELD_NS + 1
    turnstile.wake()
    again.join(2)
    told = turnstile.tell()
    assert again.value is None
    assert told is not None and (told.held, told.held_longest_ns) == (1, HELD_NS + 1)


def test_a_request_that_is_larger_than_the_limit_is_known_before_it_waits() -> None:
    purse = Purse((), (Rate(HERE, tokens=100),))
    assert purse.never(HERE, 100) is None and purse.never("other", 1_000) is None
    assert purse.never(HERE, 101) == Rate(HERE, tokens=100)
    told = purse.spending()
    assert told is not None and told.rates[HERE].too_large == 1


def test_a_budget_that_is_used_up_leaves_permits_to_others() -> None:
    purse = Purse((Limit(HERE, REQUESTS, 9),), (Rate(HERE, 60),))
    until_ns = time.monotonic_ns() + 60 * SECOND
    purse.grant(Grant(totals=(0,), permits={HERE: (permit(1, until_ns),)}))
    assert purse.take(HERE) is None
    purse.grant(Grant(totals=(1,)))
    assert purse.take(HERE) is not None
    assert purse.take(HERE) is None
    told = purse.spending()
    assert told is not None and told.spent == (1,)


# ------------------------------------------------------------------------------------------------------------- the plan

PLAN = """
[channel.cloud]
engine = "vllm"
base_url = "http://127.0.0.1:1"
model = "m"
rate_limit = {limit}
[[workload]]
scenario = "x"
trace = "builtin:short-qa"
[load]
mode = "closed"
users = 1
[run]
duration = "9s"
"""


def test_the_plan_says_what_a_limit_is(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("{limit}", '{requests_per_minute = 60, burst = "5s"}'), encoding="utf-8")
    (rate,) = rates_of(load_plan(path, (), {}))
    assert rate == Rate("cloud", 60, None, burst_ns=5 * SECOND, connect_ns=10 * SECOND)
    assert (rate.window_ns, rate.guard_ns, rate.valid_ns) == (MINUTE_NS, GUARD_NS, VALID_NS)


WRONG = [
    ("{}", "channel.cloud.rate_limit: limits nothing; write requests_per_minute or tokens_per_minute"),
    ("{requests_per_minute = 0}", "channel.cloud.rate_limit.requests_per_minute: "),
    ('{requests_per_minute = 1, burst = "61s"}', "channel.cloud.rate_limit.burst: "),
    ("{requests_per_second = 1}", "channel.cloud.rate_limit.requests_per_second: "),
]


@pytest.mark.parametrize(("limit", "said"), WRONG)
def test_a_limit_that_makes_no_sense_is_a_plan_error(limit: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace("{limit}", limit), encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        load_plan(path, (), {})
    (found,) = caught.value.faults
    assert said in found
