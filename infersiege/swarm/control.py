"""What a worker may do right now: start turns under a lease, or finish and go."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gevent.event import Event

from infersiege.records import Reason
from infersiege.swarm.alarm import AlarmClock

ORPHANED_NS = 12_500_000_000
"""So long after its last lease a worker stops: the master is gone. Its open turns are cut and its records are safe
before 15 s are over."""
FAR_NS = 1 << 62
"""An instant that does not come."""


class RunControl:
    """Set by messages of the master, read by sessions. Instants are this worker's monotonic clock."""

    def __init__(self) -> None:
        self.go: Any = Event()
        self.start_ns = 0
        """First arrival due; valid once `go` is set."""
        self.closing: Any = Event()
        """No turn starts any more."""
        self.closed_ns: int | None = None
        """Since when: the master's word for it, where that was earlier."""
        self.reason = Reason.RUN_END
        """Why, for the records of what is cut."""
        self.on_close: list[Callable[[], None]] = []
        """Called when no turn starts any more; must not yield."""
        self.drain_end_ns: int | None = None
        """Open turns are cancelled then."""
        self.lease_end_ns = 0
        """Nothing starts from here on, as far as is known."""
        self.changes = 0
        """Counts what may concern those who wait: they look again."""
        self._orphaned_ns = 0
        self._leased = Event()
        self._alarm = AlarmClock()

    def begin(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.go.set()

    def renew(self, duration_ns: int, since_ns: int | None = None) -> None:
        """A lease, which counts from `since_ns`; None: from now."""
        now_ns = time.monotonic_ns()
        # Clocks of two hosts are never quite the same: a lease from the future counts from now.
        since_ns = now_ns if since_ns is None else min(since_ns, now_ns)
        lapsed = not self.leased()
        self.lease_end_ns = max(self.lease_end_ns, since_ns + duration_ns)
        self._orphaned_ns = max(self._orphaned_ns, since_ns + max(duration_ns, ORPHANED_NS))
        if self.leased():
            self._leased.set()
            if lapsed:
                self.changed()

    def changed(self) -> None:
        """Who waits looks again at what it may do."""
        self.changes += 1
        self._alarm.wake_all()

    def close(self, reason: Reason, drain_ns: int, ended_ns: int | None = None) -> None:
        """No more turns. Called again, it can only shorten the drain. `ended_ns`: when the load was over; None: now."""
        now_ns = time.monotonic_ns()
        end_ns = now_ns + drain_ns
        if self.closed_ns is None:
            self.closed_ns = now_ns if ended_ns is None else min(ended_ns, now_ns)
        if self.drain_end_ns is None or end_ns < self.drain_end_ns:
            self.drain_end_ns = end_ns
            self.reason = reason
        self.closing.set()
        self.go.set()
        self._alarm.wake_all()
        for wake in self.on_close:
            wake()

    def leased(self) -> bool:
        return time.monotonic_ns() < self.lease_end_ns

    def orphaned(self) -> bool:
        """The last lease is too long ago for the master to be alive."""
        return self._orphaned_ns > 0 and time.monotonic_ns() > self._orphaned_ns

    def wait_until(self, at_ns: int, changes: int | None = None) -> bool:
        """Sleep to an absolute instant. False: the run is closing, nothing may start.

        With `changes`, also until that is no longer the number of changes.
        """
        while not self.closing.is_set():
            if time.monotonic_ns() >= at_ns or (changes is not None and changes != self.changes):
                return True
            self._alarm.sleep_until(at_ns)
        return False

    def may_start(self) -> bool:
        """Wait for a valid lease. False: the run is closing, or the master is gone."""
        while not self.closing.is_set():
            if self.leased():
                return True
            if self.orphaned():
                self.close(Reason.NO_LEASE, 0)
                break
            self._leased.clear()
            self._leased.wait(0.1)
        return False
