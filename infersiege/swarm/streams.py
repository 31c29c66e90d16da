"""One stream of a worker's share: its tickets, and when its users start and stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from gevent.event import Event

from infersiege.plan.streams import Stream
from infersiege.records import ErrorClass, Reason, TurnRecord
from infersiege.schedule import Pacer, Slot, user_slots, users_share
from infersiege.swarm.branches import PreparedSession

if TYPE_CHECKING:
    from infersiege.swarm.share import WorkerShare

EARLY_NS = 50_000_000
"""How long before its arrival is due a session is set up: its text is written and its request built by then."""

REFUSED_PAUSE_NS = 100_000_000
"""Pause of a closed-loop user whose request was refused: it would hammer a dead port, or a key's limit."""
LONGEST_PAUSE_NS = 60_000_000_000
"""Most that a Retry-After is followed."""
REFUSED = frozenset(
    {
        ErrorClass.CONNECT,
        ErrorClass.CLIENT_RESOURCE,
        ErrorClass.TLS,
        ErrorClass.AUTH,
        ErrorClass.NOT_FOUND,
        ErrorClass.RATE_LIMIT,
        ErrorClass.OVERLOAD,
    }
)

Start: TypeAlias = Callable[[Callable[[], None]], Any]
"""Starts a Locust user with such a life."""


def pause_after(last: TurnRecord | None) -> int:
    """How long (ns) a closed-loop user waits before its next session; 0 unless its last request was refused."""
    if last is None:
        return REFUSED_PAUSE_NS
    if last.error_class not in REFUSED:
        return 0
    return max(REFUSED_PAUSE_NS, min(last.retry_after_ns or 0, LONGEST_PAUSE_NS))


class PacedStream:
    """Starts the users of one stream, each on time. Instants are the worker's monotonic clock."""

    def __init__(self, share: WorkerShare, stream: Stream, *, place: int, members: int) -> None:
        self._share = share
        self._stream = stream
        self._control = share.control
        self._place, self._members = place, members
        self._tickets = share.source.tickets(stream.number)
        self.exhausted = False
        """No user starts any more, and those that are there take no more sessions."""
        self.playing = 0
        """Users that are there."""

    def direct(self, start: Start) -> None:
        """Start this stream's users. Returns when there is nobody left to start."""
        if self._stream.load.mode == "closed":
            self._direct_closed(start)
        else:
            self._direct_open(start)

    # --------------------------------------------------------------------------------------------------------- closed

    def _direct_closed(self, start: Start) -> None:
        slots = user_slots(self._stream.users, self._place, self._members)
        gone: dict[int, Any] = {}
        """Of the last user with each number: set when the last turn is over."""
        for slot in slots:
            due_ns = self._share.timeline.start_ns + slot.start_ns
            if not self._control.wait_until(due_ns):
                return
            before, gone[slot.number] = gone.get(slot.number), Event()
            self.playing += 1
            start(partial(self._take_place, before, gone[slot.number], due_ns, self._until(slot)))
        self.exhausted = self.exhausted or not slots

    def _until(self, slot: Slot) -> int | None:
        """When a user must be gone (monotonic); None: with the run, whose end the master tells."""
        timeline = self._share.timeline
        end_ns = None if slot.end_ns is None else timeline.start_ns + slot.end_ns
        return None if end_ns is None or end_ns == timeline.load_end_ns else end_ns

    def _take_place(self, before: Any, gone: Any, due_ns: int, until_ns: int | None) -> None:
        """A user's life, which does not begin before that of the one with the same number is over: a turn that is still
        open from an earlier stage is load as well, and both would be more than was asked for."""
        try:
            if before is not None and not before.is_set():
                before.wait()
                due_ns = max(due_ns, time.monotonic_ns())
            self._play_closed(due_ns, until_ns)
        finally:
            self.playing -= 1
            gone.set()

    def _play_closed(self, due_ns: int, until_ns: int | None) -> None:
        """A user's life: session after session, each due as soon as the one before is over."""
        share = self._share
        clients = share.own_clients()
        try:
            while not self._control.closing.is_set() and (until_ns is None or due_ns < until_ns):
                ticket = next(self._tickets, None)
                if ticket is None:
                    self.exhausted = True
                    return
                prepared = share.prepare(ticket, due_ns, until_ns)
                share.ledger.take(*prepared.lines)
                last = share.play_session(prepared, clients, due_ns)
                again_ns = time.monotonic_ns() + pause_after(last)
                self._control.wait_until(again_ns if until_ns is None else min(again_ns, until_ns))
                due_ns = time.monotonic_ns()
        finally:
            clients.close()

    # ----------------------------------------------------------------------------------------------------------- open

    def _direct_open(self, start: Start) -> None:
        share, load = self._share, self._stream.load
        pacer = Pacer(load.late)
        cap = None if load.max_in_flight is None else users_share(load.max_in_flight, self._place, self._members)
        until_ns: int | None = None
        for ticket in self._tickets:
            due_ns = share.timeline.start_ns + (ticket.offset_ns or 0)
            if not self._control.wait_until(due_ns - EARLY_NS) and due_ns > time.monotonic_ns():
                return  # It is not due any more; those that were have their records, by the branch below.
            before_ns, until_ns = until_ns, share.timeline.ends_at(due_ns)
            if before_ns != until_ns:
                pacer.begin_anew()  # There was a pause: what is late from before it is not sent any more.
            prepared = share.prepare(ticket, due_ns, until_ns)
            share.ledger.take(*prepared.lines)
            if self._control.closing.is_set():
                self._skip(prepared, self._control.reason)
                continue
            send_ns = pacer.send_at(due_ns, time.monotonic_ns())
            reason = Reason.LATE_DROPPED if send_ns is None else self._hold(prepared, send_ns, cap)
            if reason is not None:
                self._skip(prepared, reason)
                continue
            prepared.not_before_ns = send_ns or 0
            self.playing += 1
            start(partial(self._play_open, prepared, due_ns))
        self.exhausted = True

    def _skip(self, prepared: PreparedSession, reason: Reason) -> None:
        for line in prepared.lines:
            self._share.ledger.skip_rest(line, reason)

    def _hold(self, prepared: PreparedSession, send_ns: int, cap: int | None) -> Reason | None:
        """Wait until an arrival may be set up: its time has come and the cap leaves room. Else why it can't."""
        until_ns = prepared.until_ns
        if not self._control.wait_until(send_ns - EARLY_NS if until_ns is None else min(send_ns - EARLY_NS, until_ns)):
            return self._control.reason
        while cap is not None and self.playing >= cap:
            if self._stream.load.late == "drop":
                return Reason.MAX_IN_FLIGHT
            if prepared.over(time.monotonic_ns()):
                break
            if self._control.closing.wait(0.005):
                return self._control.reason
        return Reason.STAGE_END if prepared.over(time.monotonic_ns()) else None

    def _play_open(self, prepared: PreparedSession, due_ns: int) -> None:
        """A user's life: one session."""
        try:
            with self._share.lent() as clients:
                self._share.play_session(prepared, clients, due_ns)
        finally:
            self.playing -= 1
