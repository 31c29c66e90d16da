"""SIGINT, SIGTERM and SIGHUP of a worker: before the load it is gone at once, in the load it leaves in order."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import gevent

from infersiege.plan.values import format_duration

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEAVE_DRAIN_NS = 3_000_000_000
"""Turns that are open when the first signal comes get at most so long. With all that comes after them the worker has
left before `docker stop` loses patience (10 s)."""
EARLY = "interrupted before the load began"


class LeaveError(BaseException):
    """A signal ends whatever the worker waits for. No Exception, and no KeyboardInterrupt, which Locust swallows."""


class Leaving:
    """Which signal told this worker to go, and what that means at the moment.

    Until `in_load` is set, the first one raises LeaveError in the greenlet that made this, and later ones do nothing,
    but in `computing`. From then on each calls `in_load`, in a greenlet of its own.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.in_load: Callable[[], None] | None = None
        self._main: Any = gevent.getcurrent()
        self._loop: Any = gevent.get_hub().loop
        self._raised = self._computing = False

    def listen(self) -> None:
        """Take the signals over, but for a SIGHUP that `nohup` has told us to ignore.

        As Python's handlers, which run between any two of its instructions: gevent's wait for the event loop, which
        does not turn while a trace is read.
        """
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._arrived)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # `--forever` blocks SIGINT until here

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Around long work that lets nobody else run, and may be broken off anywhere.

        In here each signal raises, and the end does where the work came to it all the same: Python drops what is raised
        in a `__del__` or in a callback of the collector.
        """
        self._computing = True
        try:
            yield
        finally:
            self._computing = False
        if self._raised:
            raise LeaveError

    @property
    def exit_code(self) -> int | None:
        """As shells have it: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP; None: no signal came."""
        return None if self.first is None else 128 + self.first

    @property
    def why(self) -> str:
        """The signal's name, for people."""
        return "" if self.first is None else self.first.name

    def _arrived(self, number: int, _: FrameType | None) -> None:
        self.first = self.first or signal.Signals(number)
        if self._computing and gevent.getcurrent() is self._main:
            self._raised = True
            raise LeaveError
        self._loop.run_callback(self._act)

    def _act(self) -> None:
        """Runs in the hub: the main greenlet waits for something, and can't meanwhile have got any further."""
        if self.in_load is not None:
            gevent.spawn(self.in_load)
        elif not self._raised:
            self._raised = True
            self._main.throw(LeaveError)


def leaving_line(why: str, drain_ns: int, flying: int) -> str:
    """What somebody who sends a signal in the load is told. `flying`: turns that are open."""
    if not flying:
        return f"leaving the run ({why})"
    if not drain_ns:
        return f"leaving the run ({why}): open turns are cut ({flying})"
    limit = format_duration(drain_ns)
    return f"leaving the run ({why}): open turns ({flying}) get at most {limit}, another signal cuts them"
