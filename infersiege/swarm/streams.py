"""One stream of a worker's share: its tickets, and when its users start and stop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from gevent.event import Event

from infersiege.plan.streams import Stream
from infersiege.records import ErrorClass, Reason, TurnRecord
from infersiege.schedule import Pacer, Slot, Ticket, user_slots, users_share
from infersiege.swarm.branches import PreparedSession
from infersiege.swarm.control import FAR_NS

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


@dataclass(slots=True, eq=False)
class _User:
    """A user of a closed loop that is there, or about to be."""

    number: int
    gone: Any = field(default_factory=Event)
    session: PreparedSession | None = None
    """That it plays."""
    leaving: bool = False
    """It is not this worker's any more, and has noticed."""


class PacedStream:
    """Starts the users of one stream, each on time. Instants are the worker's monotonic clock."""

    def __init__(self, share: WorkerShare, stream: Stream) -> None:
        self._share = share
        self._stream = stream
        self.number = stream.number
        self._control = share.control
        self._in_play = share.in_play
        self._walk = share.in_play.walks[stream.number]
        self._users: dict[int, _User] = {}
        """The last one with each number that is not gone."""
        self.stopped = False
        """No user starts any more, and those that are there take no more sessions."""
        self.playing = 0
        """Users that are there."""
        self._setting_up = False
        """An arrival was taken from the walk and is not in the ledger yet: its session may have to come from Redis."""

    @property
    def idle(self) -> bool:
        """Nobody plays, and no arrival is on its way to the ledger."""
        return self.playing == 0 and not self._setting_up

    @property
    def exhausted(self) -> bool:
        """Nothing more is this worker's to start, as things stand: another table, or other users, may change that."""
        if self.stopped:
            return True
        return (self._stream.load.mode == "closed" and not self._mine) or self._walk.over

    def direct(self, start: Start) -> None:
        """Start this stream's users. Returns when the load is over."""
        if self._stream.load.mode == "closed":
            self._direct_closed(start)
        else:
            self._direct_open(start)

    # --------------------------------------------------------------------------------------------------------- closed

    @property
    def _mine(self) -> frozenset[int]:
        """Numbers of the users that are this worker's."""
        return self._in_play.slots.get(self._stream.number, frozenset())

    @property
    def held(self) -> tuple[int, ...]:
        """Users that are there and are not this worker's any more: they end with their sessions."""
        return tuple(number for number in self._users if number not in self._mine)

    def cut_others(self) -> None:
        """End the sessions of users that are not this worker's any more: they are somebody else's by now."""
        for number, user in self._users.items():
            if number not in self._mine and user.session is not None:
                user.session.cut(time.monotonic_ns(), Reason.WORKER_LOST)
                self._share.turns.abort_session(user.session.opened.session_id, f"cut: {Reason.WORKER_LOST}")

    def _direct_closed(self, start: Start) -> None:
        origin_ns, ahead = self._share.timeline.start_ns, deque(user_slots(self._stream.users))
        here: dict[int, Slot] = {}
        changes = -1
        while not self.stopped and not self._control.closing.is_set():
            if changes != self._control.changes:
                changes = self._control.changes
                now_ns = time.monotonic_ns()
                for number in sorted(self._mine - self._users.keys()):
                    slot = here.get(number)
                    if slot is not None and (slot.end_ns is None or origin_ns + slot.end_ns > now_ns):
                        self._begin(start, slot, now_ns)
            while ahead and origin_ns + ahead[0].start_ns <= time.monotonic_ns():
                slot = ahead.popleft()
                here[slot.number] = slot
                if slot.number in self._mine:
                    self._begin(start, slot, origin_ns + slot.start_ns)
            self._control.wait_until(origin_ns + ahead[0].start_ns if ahead else FAR_NS, changes)

    def _begin(self, start: Start, slot: Slot, due_ns: int) -> None:
        before, user = self._users.get(slot.number), _User(slot.number)
        self._users[slot.number] = user
        self.playing += 1
        start(partial(self._take_place, before, user, due_ns, self._until(slot)))

    def _until(self, slot: Slot) -> int | None:
        """When a user must be gone (monotonic); None: with the run, whose end the master tells."""
        timeline = self._share.timeline
        end_ns = None if slot.end_ns is None else timeline.start_ns + slot.end_ns
        return None if end_ns is None or end_ns == timeline.load_end_ns else end_ns

    def _take_place(self, before: _User | None, user: _User, due_ns: int, until_ns: int | None) -> None:
        """A user's life, which does not begin before that of the one with the same number is over: a turn that is still
        open from an earlier stage is load as well, and both would be more than was asked for."""
        try:
            if before is not None and not before.gone.is_set():
                before.gone.wait()
                due_ns = max(due_ns, time.monotonic_ns())
            self._play_closed(user, due_ns, until_ns)
        finally:
            self.playing -= 1
            user.gone.set()
            if self._users.get(user.number) is user:
                del self._users[user.number]
            if user.leaving:
                self._share.let_go(again=user.number in self._mine)

    def _play_closed(self, user: _User, due_ns: int, until_ns: int | None) -> None:
        """A user's life: session after session, each due as soon as the one before is over."""
        share = self._share
        clients = share.own_clients()
        try:
            while (until_ns is None or due_ns < until_ns) and (ticket := self._next(user, until_ns)) is not None:
                prepared = user.session = share.prepare(ticket, due_ns, until_ns)
                if prepared is None:
                    return
                share.ledger.take(*prepared.lines)
                last = share.play_session(prepared, clients, due_ns)
                user.session = None
                again_ns = time.monotonic_ns() + pause_after(last)
                self._control.wait_until(again_ns if until_ns is None else min(again_ns, until_ns))
                due_ns = time.monotonic_ns()
        finally:
            clients.close()

    def _next(self, user: _User, until_ns: int | None) -> Ticket | None:
        """The next session of this worker, taken; waits while none may be. None: this user is to go."""
        control = self._control
        while not self.stopped and not control.closing.is_set() and user.number in self._mine:
            changes, ticket = control.changes, self._walk.peek()
            if ticket is None and self._walk.over:
                return None
            if ticket is not None and control.leased() and self._in_play.may_take(ticket):
                self._walk.take(ticket)
                if self._in_play.asks(ticket):
                    self._share.asking.set()
                return ticket
            control.wait_until(FAR_NS if until_ns is None else until_ns, changes)
            if until_ns is not None and time.monotonic_ns() >= until_ns:
                return None
        user.leaving = user.number not in self._mine
        return None

    # ----------------------------------------------------------------------------------------------------------- open

    def _direct_open(self, start: Start) -> None:
        try:
            self._pace(start)
            if self.stopped:
                self._control.closing.wait()  # The master ends the load for all: until then arrivals are due.
        finally:
            self._account_for_due()

    def _pace(self, start: Start) -> None:
        share, pacer = self._share, Pacer(self._stream.load.late)
        until_ns: int | None = None
        while (ticket := self._next_due()) is not None:
            due_ns = share.timeline.start_ns + (ticket.offset_ns or 0)
            before_ns, until_ns = until_ns, share.timeline.ends_at(due_ns)
            if before_ns != until_ns:
                pacer.begin_anew()  # There was a pause: what is late from before it is not sent any more.
            prepared = self._enter(ticket, due_ns, until_ns)
            if prepared is None:
                continue
            if self._control.closing.is_set():
                self._skip(prepared, self._control.reason)
                continue
            send_ns = pacer.send_at(due_ns, time.monotonic_ns())
            reason = Reason.LATE_DROPPED if send_ns is None else self._hold(prepared, send_ns)
            if reason is not None:
                self._skip(prepared, reason)
                continue
            prepared.not_before_ns = send_ns or 0
            self.playing += 1
            start(partial(self._play_open, prepared, due_ns))

    def _enter(self, ticket: Ticket, due_ns: int, until_ns: int | None) -> PreparedSession | None:
        """Set up an arrival that was taken, and put it into the ledger. None: it got no session, and has its record."""
        share, prepared = self._share, None
        self._setting_up = True
        try:
            prepared = share.prepare(ticket, due_ns, until_ns)
            if prepared is not None:
                share.ledger.take(*prepared.lines)
        except Exception as error:  # noqa: BLE001 - the arrival has its record all the same
            share.failed(error)
        finally:
            # Also where this greenlet is killed while it waits for Redis: what follows does not yield.
            if prepared is None and due_ns <= self._load_end_ns():
                share.skip_arrival(ticket, due_ns)
            self._setting_up = False
        return prepared

    def _load_end_ns(self) -> int:
        """No arrival that is due later has a record, unless its session was there already."""
        closed_ns = self._control.closed_ns
        return FAR_NS if closed_ns is None else closed_ns

    def _account_for_due(self) -> None:
        """Write down the arrivals that were due before the load was over and that nobody can set up any more: no
        session can be made, or this greenlet is killed."""
        if self._control.closed_ns is None:
            return
        while (ticket := self._due_at_end()) is not None:
            self._walk.take(ticket)
            self._share.skip_arrival(ticket, self._share.timeline.start_ns + (ticket.offset_ns or 0))

    def _due_at_end(self) -> Ticket | None:
        """The next arrival of this worker's that was due before the load was over; None: there is none."""
        control, ticket = self._control, self._walk.peek()
        # Without a lease the arrival may be somebody else's by now.
        end_ns = min(self._load_end_ns(), control.lease_end_ns)
        due_ns = FAR_NS if ticket is None else self._share.timeline.start_ns + (ticket.offset_ns or 0)
        return None if ticket is None or due_ns > end_ns or not self._in_play.may_take(ticket) else ticket

    def _next_due(self) -> Ticket | None:
        """This worker's next arrival, taken as soon as it is time to set it up. None: the load is over."""
        control = self._control
        while not self.stopped:
            changes, ticket, now_ns = control.changes, self._walk.peek(), time.monotonic_ns()
            due_ns = FAR_NS if ticket is None else self._share.timeline.start_ns + (ticket.offset_ns or 0)
            if control.closing.is_set():
                ticket = self._due_at_end()
                if ticket is None:
                    return None
            elif ticket is None or now_ns < due_ns - EARLY_NS:
                control.wait_until(due_ns - EARLY_NS, changes)
                continue
            elif not control.leased() or not self._in_play.may_take(ticket):
                control.wait_until(FAR_NS, changes)
                continue
            self._walk.take(ticket)
            return ticket
        return None

    def _cap(self) -> int | None:
        """Most sessions of this worker at a time: its part of the stream's, among those who are there."""
        most = self._stream.load.max_in_flight
        return None if most is None else users_share(most, *self._share.place)

    def _skip(self, prepared: PreparedSession, reason: Reason) -> None:
        for line in prepared.lines:
            self._share.ledger.skip_rest(line, reason)

    def _hold(self, prepared: PreparedSession, send_ns: int) -> Reason | None:
        """Wait until an arrival may be set up: its time has come and the cap leaves room. Else why it can't."""
        until_ns = prepared.until_ns
        if not self._control.wait_until(send_ns - EARLY_NS if until_ns is None else min(send_ns - EARLY_NS, until_ns)):
            return self._control.reason
        while (cap := self._cap()) is not None and self.playing >= cap:
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
