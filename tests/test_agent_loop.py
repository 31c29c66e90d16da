"""The agents' loop: absolute times, no bursts, and every way in which it ends."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents.loop import Ended, run_every


class Clock:
    """Time that goes on when somebody sleeps or works."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, for_s: float) -> None:
        self.slept.append(for_s)
        self.now += for_s


def test_steps_come_at_start_and_then_at_each_interval() -> None:
    clock, times = Clock(), list[float]()
    ended = run_every(1.0, lambda: times.append(clock.now), seconds=10, clock=clock, sleep=clock.sleep)
    assert ended is Ended.TIME_OVER
    assert times == [1000.0 + tick for tick in range(10)], "10 s each 1 s are 10 steps"
    assert clock.now == pytest.approx(1010.0), "the last interval is waited for: its values belong to somebody"


@given(
    interval=st.sampled_from([0.1, 0.3, 1.0, 7.5]),
    work=st.lists(st.floats(0, 5, allow_nan=False), max_size=30),
)
def test_times_never_drift_and_nothing_is_made_up_for(interval: float, work: list[float]) -> None:
    clock, started = Clock(), list[float]()
    durations: Iterator[float] = iter(work)

    def step() -> None:
        started.append(clock.now)
        clock.now += next(durations, 0.0) * interval

    run_every(interval, step, seconds=20 * interval, clock=clock, sleep=clock.sleep)
    ticks = [(at - 1000.0) / interval for at in started]
    assert ticks[0] == 0
    for before, after in itertools.pairwise(ticks):
        assert after == pytest.approx(round(after), abs=1e-6), "every step is at its own time"
        assert after - before > 0.999, "no two steps come closer than the interval"
    for place, tick in enumerate(ticks[:-1]):
        busy = work[place] if place < len(work) else 0.0
        assert ticks[place + 1] == pytest.approx(max(round(tick) + 1, math.ceil(tick + busy - 1e-9)), abs=1.001)
        if busy < 0.99:
            assert ticks[place + 1] == pytest.approx(round(tick) + 1, abs=1e-6), "nothing was missed, nothing left out"


def test_a_step_that_raises_ends_the_loop_and_is_seen() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError):
        run_every(0.01, lambda: 1 / 0)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("interval", [0.0, -1.0, math.inf, math.nan])
def test_an_interval_that_is_none_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        run_every(interval, lambda: None)


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, Ended.TERMINATED), (signal.SIGINT, Ended.INTERRUPTED)])
def test_a_signal_ends_the_wait_at_once(number: signal.Signals, reason: Ended) -> None:
    timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
    timer.start()
    started = time.monotonic()
    assert run_every(60.0, lambda: None) is reason
    assert time.monotonic() - started < 10, "not only when the next step is due"
    timer.join()


def test_a_signal_in_a_step_lets_it_finish() -> None:
    done = []

    def step() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        done.append(1)

    assert run_every(0.01, step) is Ended.TERMINATED
    assert done == [1]


def test_a_second_interrupt_breaks_into_a_step_that_hangs() -> None:
    def step() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_every(1.0, step)


def test_it_ends_with_its_parent() -> None:
    """Within a second or so, also when the interval is a minute."""
    clock, ids = Clock(), iter([7, 7, 7, 1])
    ended = run_every(60.0, lambda: None, with_parent=7, clock=clock, sleep=clock.sleep, parent=lambda: next(ids))
    assert ended is Ended.ORPHANED
    assert clock.now < 1003.0


def test_a_parent_that_died_before_we_looked_is_missed_all_the_same() -> None:
    """Python's start takes long enough for that; our parent is then init, or whoever takes orphans."""
    steps: list[int] = []
    clock = Clock()
    ended = run_every(1.0, lambda: steps.append(1), with_parent=7, clock=clock, sleep=clock.sleep, parent=lambda: 1)
    assert (ended, steps) == (Ended.ORPHANED, [])


def test_without_being_asked_it_outlives_its_parent() -> None:
    clock, ids = Clock(), iter([7] + [1] * 99)
    ended = run_every(1.0, lambda: None, seconds=3, clock=clock, sleep=clock.sleep, parent=lambda: next(ids))
    assert ended is Ended.TIME_OVER


def test_a_real_process_ends_when_its_parent_is_killed() -> None:
    child = (
        "import sys; from infersiege_agents.loop import run_every\n"
        "print('began', flush=True)\n"
        "print(run_every(0.05, lambda: None, with_parent=int(sys.argv[1])), flush=True)"
    )
    start = f"subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())])"
    parent = f"import os, subprocess, sys, time\n{start}\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().strip() == "began"
        process.kill()
        assert process.stdout.readline().strip() == Ended.ORPHANED
        process.wait()


def test_in_a_thread_it_works_without_signals() -> None:
    found: list[Ended] = []
    thread = threading.Thread(target=lambda: found.append(run_every(0.01, lambda: None, seconds=0.05)))
    thread.start()
    thread.join(10)
    assert found == [Ended.TIME_OVER]
