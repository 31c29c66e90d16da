"""A worker's share of a run: its sessions, its routes, its ledger, and how they are paced."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from infersiege.gate import request_limits
from infersiege.metrics.windows import windows
from infersiege.plan.schema import Plan
from infersiege.records import Assignment, ErrorClass, OpenTurn, Reason, TurnRecord, WindowRow
from infersiege.schedule import Pacer, Ticket, ramp_offsets, users_share
from infersiege.swarm.branches import PreparedSession
from infersiege.swarm.budget import Purse, limits_of
from infersiege.swarm.control import RunControl
from infersiege.swarm.ledger import Ledger, opened_lines
from infersiege.swarm.player import SessionPlayer
from infersiege.swarm.routes import ClientPool, Clients, Route, Routes
from infersiege.swarm.source import SessionSource
from infersiege.swarm.spool import Spool
from infersiege.swarm.timeline import STAGE, Timeline
from infersiege.swarm.turns import TurnPlayer
from infersiege.wire.transport import Client, DecoderLoop, StampClock

log = logging.getLogger("infersiege.swarm.share")

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


def pause_after(last: TurnRecord | None) -> int:
    """How long (ns) a closed-loop user waits before its next session; 0 unless its last request was refused."""
    if last is None:
        return REFUSED_PAUSE_NS
    if last.error_class not in REFUSED:
        return 0
    return max(REFUSED_PAUSE_NS, min(last.retry_after_ns or 0, LONGEST_PAUSE_NS))


Start = Callable[[int, PreparedSession | None], Any]
"""Starts a Locust user: (due of its first turn, its session or None for a closed loop)."""


class WorkerShare:
    """What one worker does in one run. Instants are its monotonic clock, records are on the master's."""

    def __init__(
        self,
        assignment: Assignment,
        plan: Plan,
        name: str,
        spool: Spool,
        control: RunControl,
        offset_ns: int,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises what a trace, a key or an address raises."""
        self.plan = plan
        self.offset_ns = offset_ns
        self.source = SessionSource(
            plan, place=assignment.place, members=assignment.members, text_lengths=assignment.text_lengths
        )
        self._place, self._members = assignment.place, assignment.members
        self._control = control
        self._timeline = Timeline.of(plan, start_ns=0)
        self.ledger = Ledger(
            run_id=assignment.run_id,
            worker=name,
            epoch=assignment.epoch,
            spool=spool,
            phase_of=lambda at_ns: self._timeline.phase_of(at_ns - self.offset_ns),
        )
        self._limits = request_limits(plan.slos)
        self._streamed = {name: channel.stream for name, channel in plan.channels.items()}
        self._since_last: list[TurnRecord] = []
        self.ledger.listeners.append(self._since_last.append)
        self.turns = TurnPlayer(self.ledger, offset_ns=offset_ns)
        self.purse = Purse(limits_of(plan))
        control.on_close.append(self.purse.wake)
        self._player = SessionPlayer(self.turns, control, offset_ns=offset_ns, seed=plan.run.seed, purse=self.purse)
        self._routes = Routes(plan, environ, place=assignment.place, members=assignment.members)
        self._clock = StampClock()
        self._decoder_loop = DecoderLoop(self._clock)
        self._pool = ClientPool(self._new_client)
        self._tickets = self.source.tickets()
        self._exhausted = False
        self._playing = 0
        self._directed = False
        self.fault: str | None = None
        """The first exception of ours outside a turn."""

    def failed(self, error: Exception) -> None:
        """A fault of ours outside a turn: what is open goes on, nothing more is started by whoever had it."""
        log.error("worker", exc_info=error)
        self.fault = self.fault or f"{type(error).__name__}: {error}"[:300]
        self._exhausted = True

    def begin(self) -> None:
        """The master said go: the time axis is fixed."""
        self._timeline = Timeline.of(self.plan, start_ns=self._control.start_ns)

    # --------------------------------------------------------------------------------------------------------- pacing

    def direct(self, start: Start) -> None:
        """The Director's task: start this worker's users, each on time. Returns when the load is over."""
        if self._directed:
            return  # Locust starts a Director again when a worker joins or is removed.
        self._directed = True
        self._control.go.wait()
        if self._control.closing.is_set():
            return
        if self.plan.load.mode == "closed":
            self._direct_closed(start)
        else:
            self._direct_open(start)

    def _direct_closed(self, start: Start) -> None:
        offsets = ramp_offsets(self.plan.load.users or 0, self.plan.load.ramp_ns, self._place, self._members)
        for offset_ns in offsets:
            due_ns = self._timeline.start_ns + offset_ns
            if not self._control.wait_until(due_ns):
                return
            self._playing += 1
            start(due_ns, None)
        self._exhausted = self._exhausted or not offsets

    def _direct_open(self, start: Start) -> None:
        load = self.plan.load
        pacer = Pacer(load.late)
        cap = None if load.max_in_flight is None else users_share(load.max_in_flight, self._place, self._members)
        for ticket in self._tickets:
            due_ns = self._timeline.start_ns + (ticket.offset_ns or 0)
            if not self._control.wait_until(due_ns - EARLY_NS) and due_ns > time.monotonic_ns():
                return  # It is not due any more; those that were have their records, by the branch below.
            prepared = self.prepare(ticket, due_ns)
            self.ledger.take(*prepared.lines)
            if self._control.closing.is_set():
                self._skip(prepared, self._control.reason)
                continue
            send_ns = pacer.send_at(due_ns, time.monotonic_ns())
            reason = Reason.LATE_DROPPED if send_ns is None else self._hold(send_ns, cap)
            if reason is not None:
                self._skip(prepared, reason)
                continue
            prepared.not_before_ns = send_ns or 0
            self._playing += 1
            start(due_ns, prepared)
        self._exhausted = True

    def _skip(self, prepared: PreparedSession, reason: Reason) -> None:
        for line in prepared.lines:
            self.ledger.skip_rest(line, reason)

    def _hold(self, send_ns: int, cap: int | None) -> Reason | None:
        """Wait until an arrival may be set up: its time has come and the cap leaves room. Else why it can't."""
        if not self._control.wait_until(send_ns - EARLY_NS):
            return self._control.reason
        while cap is not None and self._playing >= cap:
            if self.plan.load.late == "drop":
                return Reason.MAX_IN_FLIGHT
            if self._control.closing.wait(0.005):
                return self._control.reason
        return None

    # ------------------------------------------------------------------------------------------------------- sessions

    def prepare(self, ticket: Ticket, due_ns: int) -> PreparedSession:
        """The session of a ticket, not yet in the ledger."""
        workload = self.plan.workloads[ticket.workload]
        session_id, conversation = self.source.named_conversation(ticket)
        way = self._routes.way(ticket, self.ledger.run_id, session_id)
        lines = opened_lines(
            conversation.lines,
            session_id=session_id,
            scenario=workload.scenario,
            stage=STAGE,
            channel=way.likely.labels,
            due_ns=due_ns + self.offset_ns,
            routed_by=way.routed_by,
        )
        return PreparedSession(lines, conversation, way)

    def play(self, prepared: PreparedSession, due_ns: int) -> None:
        """An open-loop user's life: one session."""
        try:
            with self._lent() as clients:
                self._player.play(prepared, clients, due_ns, self._lent)
        finally:
            self._playing -= 1

    def play_closed(self, due_ns: int) -> None:
        """A closed-loop user's life: session after session, each due as soon as the one before is over."""
        clients = Clients(self._new_client)
        try:
            while not self._control.closing.is_set():
                ticket = next(self._tickets, None)
                if ticket is None:
                    self._exhausted = True
                    return
                prepared = self.prepare(ticket, due_ns)
                self.ledger.take(*prepared.lines)
                last = self._player.play(prepared, clients, due_ns, self._lent)
                self._control.wait_until(time.monotonic_ns() + pause_after(last))
                due_ns = time.monotonic_ns()
        finally:
            self._playing -= 1
            clients.close()

    @contextmanager
    def _lent(self) -> Iterator[Clients]:
        """Warm connections for one line of a session; the next one gets them."""
        clients = Clients(self._pool.take)
        try:
            yield clients
        finally:
            clients.give_to(self._pool)

    def _new_client(self, route: Route) -> Client:
        return Client(route.endpoint, self._clock, self._decoder_loop, keep_alive=route.channel.keep_alive)

    # -------------------------------------------------------------------------------------------------------- figures

    def finished(self) -> bool:
        """Nothing more will start, and nothing is open."""
        return self._exhausted and self._playing == 0 and not self.ledger.open

    def windows_since_last(self) -> list[WindowRow]:
        """Rows of the turns that were closed since the last call, to be added to those before."""
        if not self._since_last:
            return []
        rows = windows(self._since_last, limits=self._limits, streamed=self._streamed)
        self._since_last.clear()
        return list(rows)

    def open_turns(self) -> Iterator[OpenTurn]:
        for session in self.ledger.open.values():
            yield session.open_turn(self.ledger.phase_of(session.due_ns))
