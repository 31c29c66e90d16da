"""From the kernel's receive stamps to the monotonic clock, and what is known about the time before a stamp."""

from __future__ import annotations

import _socket
import os
import socket
import struct
import time
from typing import Any

SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
"""Linux; the ancillary message has the same number. Python has the name from 3.14 on."""
ANCILLARY_BYTES = socket.CMSG_SPACE(16)
TIMESPEC = struct.Struct("qq")
"""Its content on 64-bit machines: seconds and nanoseconds of CLOCK_REALTIME."""
_BRACKETS = 50
STEP_NS = 100_000
"""A change of the offset that is no error of measuring it. Slewing (NTP) moves both clocks alike."""
TOLERANCE_NS = 50_000
"""How far a stamp may lie outside the time in which it can have been taken, before it is disbelieved."""

monotonic_ns = time.monotonic_ns
_wall_ns = time.time_ns


class StampClock:
    """Turns kernel stamps (CLOCK_REALTIME) into ns of the monotonic clock. One per process.

    `kernel=False` asks for no stamps: every time is then that of the read (`stamp_source = "user"`).
    """

    def __init__(self, *, kernel: bool = True) -> None:
        self.steps = 0
        """How often the wall clock was seen to jump."""
        self.offset_ns = _measure()
        """Realtime minus monotonic."""
        self._keeper: _socket.socket | None = None
        if kernel:
            # The kernel stamps packets only while some socket wants it, and switching that on takes it a moment:
            # the first answers would come without. An open socket keeps it on.
            self._keeper = _socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                self._keeper.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            except OSError:  # not Linux
                self.close()

    @property
    def kernel(self) -> bool:
        return self._keeper is not None

    def close(self) -> None:
        """Stop asking the kernel for stamps."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def check(self) -> bool:
        """Whether the wall clock jumped since the last look; the offset is then measured again. Costs 0.2 us."""
        if abs(_wall_ns() - monotonic_ns() - self.offset_ns) < STEP_NS:
            return False
        offset_ns = _measure()  # perhaps we were only held up between the two readings
        if abs(offset_ns - self.offset_ns) < STEP_NS:
            return False
        self.offset_ns = offset_ns
        self.steps += 1
        return True


def _measure() -> int:
    """Realtime minus monotonic, from the tightest of 50 brackets (about 50 ns wide)."""
    best_width, offset_ns = 1 << 62, 0
    for _ in range(_BRACKETS):
        before = monotonic_ns()
        wall = _wall_ns()
        after = monotonic_ns()
        if after - before < best_width:
            best_width, offset_ns = after - before, wall - (before + after) // 2
    return offset_ns


class PollWatch:
    """When the event loop last looked at its sockets: what stands in a socket now came after the look before.

    Runs only while somebody holds it (`acquire`, `release`): two callbacks per turn of the loop. A socket that libev
    leaves for its next turn because more than 64 became ready in one (its event array then grows) escapes this.
    """

    BLOCKED_NS = 1_000_000
    MARGIN_NS = 50_000
    """From being made runnable to the return of the poll, beyond the wait for a CPU that the kernel accounts for."""

    def __init__(self, loop: Any) -> None:
        # After gevent's own prepare watcher (which runs greenlets), and before any socket's callback.
        self._prepare = loop.prepare(ref=False, priority=loop.MINPRI)
        self._check = loop.check(ref=False, priority=loop.MAXPRI)
        self._holders = 0
        self._prepared_ns = self._polled_ns = self._previous_ns = 0
        self._woken_ns: int | None = None
        self._run_delay_ns: int | None = None
        self._schedstat: int | None = None

    def acquire(self) -> None:
        self._holders += 1
        if self._holders == 1:
            self._prepared_ns = self._polled_ns = self._previous_ns = 0
            self._woken_ns = None
            self._open_schedstat()
            self._prepare.start(self._before_poll)
            self._check.start(self._after_poll)

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._prepare.stop()
            self._check.stop()
            if self._schedstat is not None:
                os.close(self._schedstat)
                self._schedstat = None

    def empty_ns(self, stamp_ns: int) -> int:
        """A time at which a socket that this turn of the loop found readable was still empty; 0: not known.

        `stamp_ns` is the stamp of its last segment. Usually that time is the previous poll's return. But when this
        poll slept, any segment would have woken it, so none came before the wake-up; unless the process was stopped
        or the machine stood still, which shows when a stamp is older than the supposed wake-up.
        """
        if self._woken_ns is not None and self._previous_ns < self._woken_ns <= stamp_ns:
            return self._woken_ns
        return self._previous_ns

    def _before_poll(self) -> None:
        self._prepared_ns = monotonic_ns()

    def _after_poll(self) -> None:
        self._previous_ns = self._polled_ns
        self._polled_ns = now_ns = monotonic_ns()
        self._woken_ns = None
        if self._prepared_ns and now_ns - self._prepared_ns > self.BLOCKED_NS:
            before_ns, self._run_delay_ns = self._run_delay_ns, self._read_run_delay()
            if before_ns is not None and self._run_delay_ns is not None:
                # The growth since the last look is at least that of this wake-up.
                self._woken_ns = now_ns - (self._run_delay_ns - before_ns) - self.MARGIN_NS

    def _open_schedstat(self) -> None:
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = None  # no such kernel option: the previous poll is all that is known
        self._run_delay_ns = self._read_run_delay()

    def _read_run_delay(self) -> int | None:
        """Time that this thread has spent runnable but without a CPU, in ns."""
        if self._schedstat is None:
            return None
        try:
            return int(os.pread(self._schedstat, 80, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return None
