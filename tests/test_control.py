"""When a worker may start turns: absolute waits that are never early, the lease, and an end that only comes sooner."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gevent
import pytest

from infersiege.records import Reason
from infersiege.swarm import control as module
from infersiege.swarm.alarm import AlarmClock
from infersiege.swarm.control import RunControl

MS = 1_000_000
LATE_NS = 500 * MS
"""What this machine may be late when it is busy; being early is never allowed."""
NEVER_NS = 1 << 62


@pytest.fixture
def clock() -> Iterator[AlarmClock]:
    made = AlarmClock()
    yield made
    made.close()


@pytest.fixture
def control() -> Iterator[RunControl]:
    made = RunControl()
    yield made
    made.close(Reason.RUN_END, 0)
    gevent.sleep(0)
    made._alarm.close()


def wakes(clock: AlarmClock, instants: list[int]) -> list[tuple[int, int]]:
    """(asked, woken) in the order in which the sleepers woke."""
    woken: list[tuple[int, int]] = []

    def sleep(at_ns: int) -> None:
        clock.sleep_until(at_ns)
        woken.append((at_ns, time.monotonic_ns()))

    with gevent.Timeout(5):
        gevent.joinall([gevent.spawn(sleep, at_ns) for at_ns in instants], raise_error=True)
    return woken


ORDERS = [
    ([0, 20, 40, 60], "each later than the one before"),
    ([60, 40, 20, 0], "each new one is the first: the timer is set again and again"),
    ([40, 0, 60, 20, 40, 40], "mixed, three at once"),
    ([-1000, -1, 30], "instants that have passed ring at once"),
]


@pytest.mark.parametrize(("offsets_ms", "why"), ORDERS, ids=[why for _, why in ORDERS])
def test_one_timer_wakes_all_sleepers_in_order_and_none_early(
    clock: AlarmClock, offsets_ms: list[int], why: str
) -> None:
    now_ns = time.monotonic_ns()
    woken = wakes(clock, [now_ns + offset * MS for offset in offsets_ms])
    assert [asked for asked, _ in woken] == sorted(asked for asked, _ in woken), why
    for asked, woke in woken:
        assert asked <= woke
        assert woke <= max(asked, now_ns) + LATE_NS


def test_an_instant_before_the_boot_rings_too(clock: AlarmClock) -> None:
    """0 would disarm a timerfd: the sleeper would wait for ever."""
    assert len(wakes(clock, [0, -5 * MS])) == 2


def test_a_killed_sleeper_does_not_hold_the_others_up(clock: AlarmClock) -> None:
    now_ns = time.monotonic_ns()
    doomed = gevent.spawn(clock.sleep_until, now_ns + 20 * MS)
    gevent.sleep(0)
    doomed.kill()
    ((asked, woke),) = wakes(clock, [now_ns + 40 * MS])
    assert asked <= woke <= asked + LATE_NS


def test_wake_all_wakes_far_sleepers_and_the_clock_goes_on(clock: AlarmClock) -> None:
    far = [gevent.spawn(clock.sleep_until, NEVER_NS) for _ in range(3)]
    gevent.sleep(0)
    clock.wake_all()
    with gevent.Timeout(5):
        gevent.joinall(far, raise_error=True)
    assert len(wakes(clock, [time.monotonic_ns() + 10 * MS])) == 1


def test_wait_until_is_absolute_and_never_early(control: RunControl) -> None:
    """Twenty waits on a grid don't add up their lateness: `start + k * step`, whatever each of them took."""
    start_ns = time.monotonic_ns()
    for step in range(1, 21):
        at_ns = start_ns + step * 2 * MS
        assert control.wait_until(at_ns) is True
        assert time.monotonic_ns() >= at_ns
    assert time.monotonic_ns() - start_ns < 40 * MS + LATE_NS


def test_wait_until_sleeps_on_when_it_was_woken_too_soon(control: RunControl) -> None:
    at_ns = time.monotonic_ns() + 50 * MS
    waiter = gevent.spawn(control.wait_until, at_ns)
    gevent.sleep(0.005)
    control._alarm.wake_all()
    with gevent.Timeout(5):
        assert waiter.get() is True
    assert time.monotonic_ns() >= at_ns


def test_an_instant_that_has_passed_does_not_wait(control: RunControl) -> None:
    assert control.wait_until(time.monotonic_ns() - 1) is True


def test_closing_wakes_all_who_wait_and_nothing_starts_after_it(control: RunControl) -> None:
    control.renew(NEVER_NS >> 1)
    waiters = [gevent.spawn(control.wait_until, NEVER_NS) for _ in range(3)]
    go = gevent.spawn(control.go.wait)
    gevent.sleep(0)
    control.close(Reason.RUN_END, 1000 * MS)
    with gevent.Timeout(5):
        assert [waiter.get() for waiter in waiters] == [False] * 3
        go.get()
    assert control.wait_until(0) is False, "an instant in the past is no reason to start after the end"
    assert control.may_start() is False, "nor is a valid lease"


def test_go_fixes_the_start(control: RunControl) -> None:
    assert not control.go.is_set()
    control.begin(77)
    assert control.go.is_set() and control.start_ns == 77


def test_no_lease_no_start_until_it_is_renewed(control: RunControl) -> None:
    assert not control.leased() and not control.orphaned(), "before the first lease nobody is an orphan"
    waiter = gevent.spawn(control.may_start)
    gevent.sleep(0.03)
    assert not waiter.ready()
    control.renew(60_000 * MS)
    with gevent.Timeout(5):
        assert waiter.get() is True


def test_an_expired_lease_blocks_and_the_next_one_resumes(control: RunControl) -> None:
    """A stopped or partitioned worker must not send what nobody counts any more."""
    control.renew(20 * MS)
    assert control.may_start() is True
    control.wait_until(time.monotonic_ns() + 21 * MS)
    assert not control.leased()
    waiter = gevent.spawn(control.may_start)
    gevent.sleep(0.15)
    assert not waiter.ready(), "the lease is over"
    control.renew(60_000 * MS)
    with gevent.Timeout(5):
        assert waiter.get() is True


def test_a_lease_that_lay_in_a_queue_is_worth_what_is_left_of_it(control: RunControl) -> None:
    """A worker that was stopped reads a pile of old ones; one from the future is not worth more than a new one."""
    now_ns = time.monotonic_ns()
    control.renew(3_000 * MS, now_ns - 3_001 * MS)
    assert not control.leased()
    control.renew(3_000 * MS, now_ns - 1_000 * MS)
    assert control.leased() and control.lease_end_ns == now_ns + 2_000 * MS
    control.renew(3_000 * MS, now_ns - 2_000 * MS)
    assert control.lease_end_ns == now_ns + 2_000 * MS, "an older one takes nothing away"
    control.renew(3_000 * MS, now_ns + 60_000 * MS)
    assert control.lease_end_ns < now_ns + 10_000 * MS


def test_who_waits_looks_again_when_something_changed(control: RunControl) -> None:
    """A table, users, a lease after none: an arrival that was somebody else's may be ours."""
    waiter = gevent.spawn(control.wait_until, NEVER_NS, control.changes)
    gevent.sleep(0.01)
    assert not waiter.ready()
    control.changed()
    with gevent.Timeout(5):
        assert waiter.get() is True
    before = control.changes
    control.renew(60_000 * MS)
    control.renew(60_000 * MS)
    assert control.changes == before + 1, "only the first lease after none changes what may be done"


def test_closing_ends_the_wait_for_a_lease(control: RunControl) -> None:
    waiter = gevent.spawn(control.may_start)
    gevent.sleep(0)
    control.close(Reason.INTERRUPTED, 0)
    with gevent.Timeout(5):
        assert waiter.get() is False


def test_an_orphan_stops_and_says_why(control: RunControl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lease for 12.5 s (here 200 ms) the master is gone: no more turns, and open ones are cut at once. So
    the worker has stopped before 15 s are over."""
    assert module.ORPHANED_NS == 12_500 * MS
    monkeypatch.setattr(module, "ORPHANED_NS", 200 * MS)
    control.renew(1)
    assert not control.orphaned()
    with gevent.Timeout(5):
        assert control.may_start() is False
    assert control.orphaned()
    assert control.closing.is_set()
    assert control.reason is Reason.NO_LEASE
    assert control.drain_end_ns is not None and control.drain_end_ns <= time.monotonic_ns()


CLOSINGS = [
    ([(Reason.RUN_END, 5000), (Reason.INTERRUPTED, 0)], Reason.INTERRUPTED, 0, "Ctrl-C during the drain cuts it"),
    ([(Reason.INTERRUPTED, 0), (Reason.RUN_END, 5000)], Reason.INTERRUPTED, 0, "a late message gives no time back"),
    (
        [(Reason.RUN_END, 5000), (Reason.NO_LEASE, 9000), (Reason.INTERRUPTED, 3000)],
        Reason.INTERRUPTED,
        3000,
        "the shortest of three, and its reason",
    ),
    ([(Reason.RUN_END, 5000), (Reason.RUN_END, 5000)], Reason.RUN_END, 5000, "the same message twice"),
]


@pytest.mark.parametrize(("calls", "reason", "drain_ms", "why"), CLOSINGS, ids=[why for *_, why in CLOSINGS])
def test_closing_again_only_shortens_the_drain(
    control: RunControl, calls: list[tuple[Reason, int]], reason: Reason, drain_ms: int, why: str
) -> None:
    before_ns = time.monotonic_ns()
    ends: list[int] = []
    for said, milliseconds in calls:
        control.close(said, milliseconds * MS)
        assert control.drain_end_ns is not None
        ends.append(control.drain_end_ns)
    assert ends == sorted(ends, reverse=True)
    assert control.reason is reason, why
    assert before_ns + drain_ms * MS <= ends[-1] <= time.monotonic_ns() + drain_ms * MS


def test_a_new_lease_after_the_end_starts_nothing(control: RunControl) -> None:
    control.close(Reason.RUN_END, 0)
    control.renew(60_000 * MS)
    assert control.may_start() is False
