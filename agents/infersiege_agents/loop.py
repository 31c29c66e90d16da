"""Does a step again and again at fixed times, until it is told to end."""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from types import FrameType

_LONGEST_WAIT_S = 1.0
"""While it waits, it looks this often whether its parent lives."""


class Ended(StrEnum):
    """Why a loop ended."""

    TERMINATED = "SIGTERM"
    INTERRUPTED = "SIGINT"
    ORPHANED = "its parent process ended"
    TIME_OVER = "its time was over"


def run_every(
    interval_s: float,
    step: Callable[[], object],
    *,
    seconds: float | None = None,
    with_parent: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None,
    parent: Callable[[], int] = os.getppid,
    heard: Heard | None = None,
) -> Ended:
    """Call `step` at start, start + interval, start + 2 intervals …; returns why it ended.

    The times are absolute, so that they never drift. Times that pass while a step is busy are left out: after a stall
    it goes on at the next time of the same row, and nothing is made up for.

    `seconds`: end that long after the start (10 s each 1 s are 10 steps); None: go on for ever. `with_parent`: id
    of the process that started this one: end when it is gone, also when that was before we came here. SIGTERM and
    SIGINT end it after the step that is under way; a second SIGINT breaks into that step as KeyboardInterrupt. Signals
    need the main thread; in others there are none. `heard`: of `signals`, where a caller noted them before and goes on
    doing so afterwards.

    `clock` in s, `sleep` in s and `parent` (id of the parent process) can be given by tests. What `step` raises ends
    the loop and is raised. Raises ValueError for an interval that is not above 0.
    """
    if not (interval_s > 0 and math.isfinite(interval_s)):
        raise ValueError(f"interval_s is {interval_s}: it must be above 0")
    with signals() if heard is None else nullcontext(heard) as noted:
        wait = noted.wait if sleep is None else sleep
        started = clock()
        tick = 0
        while True:
            due = started + tick * interval_s
            ends = math.inf if seconds is None else started + seconds
            while True:
                if noted.reason is not None:
                    return noted.reason
                if with_parent is not None and parent() != with_parent:
                    return Ended.ORPHANED
                now = clock()
                if now >= ends:
                    return Ended.TIME_OVER
                if now >= due and due < ends:
                    break
                wait(min(min(due, ends) - now, _LONGEST_WAIT_S))
            step()
            tick = _next_tick(tick, (clock() - started) / interval_s)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Inside, SIGTERM is what Ctrl-C is: KeyboardInterrupt. For work that has no steps. Needs the main thread."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _next_tick(tick: int, now: float) -> int:
    """The first tick after `tick` that has not passed yet. `now` is in ticks since the start."""
    return max(tick + 1, math.ceil(now))


class Heard:
    """Signals that came, and a wait that they end."""

    def __init__(self) -> None:
        self.reason: Ended | None = None
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def take(self, number: int, _frame: FrameType | None) -> None:
        """A pipe, and no lock: the handler runs in the middle of whatever the main thread does."""
        if self.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.reason is None:
            self.reason = Ended.INTERRUPTED if number == signal.SIGINT else Ended.TERMINATED
            os.write(self._writer, b"x")

    def wait(self, for_s: float) -> None:
        select.select([self._reader], [], [], max(for_s, 0.0))

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


@contextmanager
def signals() -> Iterator[Heard]:
    """SIGTERM and SIGINT are noted inside, and do what they did before outside."""
    heard = Heard()
    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, heard.take)
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        heard.close()
