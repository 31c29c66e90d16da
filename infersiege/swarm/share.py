"""A worker's share of a run: its sessions, its routes, its ledger, and how they are paced."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import gevent
import numpy.ma
import numpy.random  # noqa: F401 - numpy reads both from disk when first used: in the load, and with no descriptor left
from gevent.event import Event
from gevent.pool import Group

from infersiege.channels.redaction import one_line
from infersiege.errors import InfersiegeError, InternalError, TraceError
from infersiege.gate import request_limits
from infersiege.metrics.windows import windows
from infersiege.plan.schema import Plan
from infersiege.records import (
    Assignment,
    EpochTable,
    Lease,
    OpenTurn,
    Reason,
    SlotsHeld,
    TurnRecord,
    UserSlots,
    WindowRow,
)
from infersiege.redact import Secrets
from infersiege.schedule import Ticket
from infersiege.swarm.branches import PreparedSession
from infersiege.swarm.budget import limits_of
from infersiege.swarm.claims import Claims
from infersiege.swarm.clock import ClockExchange
from infersiege.swarm.control import RunControl
from infersiege.swarm.ledger import Ledger, opened_lines
from infersiege.swarm.player import SessionPlayer
from infersiege.swarm.purse import Purse
from infersiege.swarm.ratelimit import rates_of
from infersiege.swarm.routes import ClientPool, Clients, Route, Routes
from infersiege.swarm.source import ARRIVAL_LINES, SessionSource
from infersiege.swarm.spool import Spool
from infersiege.swarm.streams import PacedStream, Start
from infersiege.swarm.tickets_in_play import TicketsInPlay
from infersiege.swarm.timeline import Timeline
from infersiege.swarm.turns import TurnPlayer
from infersiege.wire.transport import Client, DecoderLoop, StampClock

log = logging.getLogger("infersiege.swarm.share")

GRACE_SHARE = 0.3
LONGEST_GRACE_NS = 1_000_000_000
"""So long before a pause ends (the smaller of the two) what is still open is cancelled: the server can let go of it
before the next stage begins."""


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
        clock: ClockExchange | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`offset_ns`: what makes records' instants of our clock's. `clock`: how far ours is from the master's at the
        moment; None: they are one. Raises what a trace, a key or an address raises."""
        self.plan = plan
        self.offset_ns = offset_ns
        # All workers walk the same sequences; which tickets are whose the master's table says.
        self.source = SessionSource(plan, place=0, members=1, text_lengths=assignment.text_lengths)
        self.control = control
        tickets = {stream.number: self.source.tickets(stream.number) for stream in self.source.streams}
        self.in_play = TicketsInPlay.of(name, tickets, lambda: gevent.sleep(0))
        self.place = assignment.place, assignment.members
        """(place, members) as last known: its part of what is shared out by number."""
        self.asking: Any = Event()
        """Set when the master is to be told now how far it is."""
        self.letting_go: Any = Event()
        """Set when a user that is somebody else's by now is gone."""
        self.claims = Claims(
            self.source, control, run_id=assignment.run_id, worker=name, failed=self.failed, environ=environ
        )
        self.timeline = Timeline.of(plan, start_ns=0)
        self.ledger = Ledger(
            run_id=assignment.run_id,
            worker=name,
            epoch=assignment.epoch,
            spool=spool,
            place_of=lambda at_ns: self.timeline.place_of(at_ns - self.offset_ns),
        )
        self._limits = request_limits(plan.slos)
        self._streamed = {name: channel.stream for name, channel in plan.channels.items()}
        self._since_last: list[TurnRecord] = []
        self.ledger.listeners.append(self._since_last.append)
        self.turns = TurnPlayer(self.ledger, offset_ns=offset_ns)
        self.purse = Purse(limits_of(plan), rates_of(plan), clock=clock, epoch_offset_ns=offset_ns)
        if clock is not None:
            clock.on_compared.append(self.purse.compared)
        control.on_close.append(self.purse.wake)
        self._secrets = Secrets.of(plan, environ)
        self._player = self._new_player(plan, offset_ns)
        self._routes = Routes(plan, environ, place=assignment.place, members=assignment.members)
        self._clock = StampClock()
        self._decoder_loop = DecoderLoop(self._clock)
        self._pool = ClientPool(self._new_client)
        self._streams = tuple(PacedStream(self, stream) for stream in self.source.streams)
        self._directed = False
        self.fault: str | None = None
        """The first exception of ours outside a turn."""
        self.trouble: str | None = None
        """Why there are no more sessions, where that is no fault of ours: what happened to the trace."""
        self.stopped: Any = Event()
        """Set with the first of either."""

    def _new_player(self, plan: Plan, offset_ns: int) -> SessionPlayer:
        return SessionPlayer(
            self.turns,
            self.control,
            offset_ns=offset_ns,
            seed=plan.run.seed,
            purse=self.purse,
            keep_answers=plan.quality is not None and plan.quality.keep_answers,
            secrets=self._secrets,
        )

    def failed(self, error: Exception) -> None:
        """No more sessions can be made: what is open goes on, nothing more is started by whoever had it."""
        if isinstance(error, InfersiegeError) and not isinstance(error, InternalError):
            log.warning("worker: %s", error)
            said = f"the trace can't be played on: {error}" if isinstance(error, TraceError) else str(error)
            self.trouble = self.trouble or (f"{said}; {error.hint}" if error.hint else said)
        else:
            log.error("worker", exc_info=error)
            self.fault = self.fault or one_line(self._secrets.scrub(f"{type(error).__name__}: {error}"))
        for stream in self._streams:
            stream.stopped = True
        self.control.changed()
        self.stopped.set()

    @property
    def first_unscored(self) -> str | None:
        """Of the answers that could not be checked, the first; None: there was none."""
        return self._player.checker.first_unscored

    @property
    def why_stopped(self) -> str | None:
        """Why no more sessions are made, for the log of events; None: they are, or all were played."""
        return f"a fault of infersiege: {self.fault}" if self.fault is not None else self.trouble

    def begin(self) -> None:
        """The master said go: the time axis is fixed."""
        self.timeline = Timeline.of(self.plan, start_ns=self.control.start_ns)
        self.claims.begin(self.timeline.start_ns, self.in_play)

    # --------------------------------------------------------------------------------------------------------- epochs

    def enforce(self, table: EpochTable) -> None:
        """The master puts a table in force."""
        if not self.in_play.enforce(table):
            return
        self.ledger.epoch = self.in_play.number
        self.place = self.in_play.place() or self.place
        self.control.changed()

    def give_slots(self, slots: UserSlots) -> None:
        """The master says which users are this worker's."""
        before = self.in_play.slots
        if self.in_play.give_slots(slots):
            for stream in self._streams:
                stream.cut_others()
            self.purse.wake()
        if before != self.in_play.slots:
            self.control.changed()
        self.letting_go.set()

    def slots_held(self) -> SlotsHeld:
        """Users that are still there and belong to somebody else."""
        held = {stream.number: stream.held for stream in self._streams if stream.held}
        return SlotsHeld(epoch=self.in_play.slots_epoch, slots=held)

    def let_go(self, *, again: bool) -> None:
        """A user that was somebody else's is gone. `again`: meanwhile it is ours once more, and starts anew."""
        self.letting_go.set()
        if again:
            self.control.changed()

    def renew(self, lease: Lease, offset_ns: int) -> None:
        """A lease, unless it is of an epoch that we don't know. `offset_ns`: master's monotonic clock minus ours."""
        if lease.epoch > self.in_play.number:
            return
        if self.in_play.leased(lease.until_index):
            self.control.changed()
        self.control.renew(lease.duration_ns, None if lease.sent_ns is None else lease.sent_ns - offset_ns)

    # --------------------------------------------------------------------------------------------------------- pacing

    def direct(self, start: Start) -> None:
        """The Director's task: start this worker's users, each on time. Returns when the load is over."""
        if self._directed:
            return  # Locust starts a Director again when a worker joins or is removed.
        self._directed = True
        self.control.go.wait()
        if self.control.closing.is_set():
            return
        pauses = [span for span in self.timeline.spans if span.paused_after]
        if len(self._streams) == 1 and not pauses:
            self._streams[0].direct(start)
            return
        beside = Group()
        try:
            for stream in self._streams:
                beside.spawn(self._safely, partial(stream.direct, start))
            if pauses:
                beside.spawn(self._safely, self._end_stages)
            beside.join()
        finally:
            # This must not yield: the greenlet may be on its way out.
            beside.kill(block=False)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            self.failed(error)

    def _end_stages(self) -> None:
        """At each pause: who waits for a budget looks up, and near its end what is still open is cancelled."""
        for span in self.timeline.spans:
            if not span.paused_after or span.load_end_ns is None or span.end_ns is None:
                continue
            grace_ns = min(round((span.end_ns - span.load_end_ns) * GRACE_SHARE), LONGEST_GRACE_NS)
            if not self.control.wait_until(self.timeline.start_ns + span.load_end_ns):
                return
            self.purse.wake()
            if not self.control.wait_until(self.timeline.start_ns + span.end_ns - grace_ns):
                return
            self.turns.abort_over(time.monotonic_ns(), f"cut before the next stage: {Reason.STAGE_END}")

    # ------------------------------------------------------------------------------------------------------- sessions

    def prepare(self, ticket: Ticket, due_ns: int, until_ns: int | None) -> PreparedSession | None:
        """The session of a ticket, not yet in the ledger. From `until_ns` on none of its turns starts.

        None: Redis, which hands out this trace's sessions, has none left, or gave none until the load was over.
        """
        claimed = self.claims.session_of(ticket, due_ns)
        if claimed is None:
            return None
        ticket = claimed
        workload = self.plan.workloads[ticket.workload]
        session_id, conversation = self.source.named_conversation(ticket, self.timeline.place_of(due_ns).stage)
        way = self._routes.way(ticket, self.ledger.run_id, session_id)
        lines = opened_lines(
            conversation.lines,
            session_id=session_id,
            scenario=workload.scenario,
            channel=way.likely.labels,
            due_ns=due_ns + self.offset_ns,
            routed_by=way.routed_by,
            until_ns=until_ns,
            repeated=self.source.is_repeat(ticket),
        )
        return PreparedSession(lines, conversation, way, checked=self.source.checked_item(ticket))

    def skip_arrival(self, ticket: Ticket, due_ns: int) -> None:
        """Write down an arrival that got no session before the load was over: one turn that was not sent."""
        session_id = self.source.arrival_id(ticket)
        (line,) = opened_lines(
            ARRIVAL_LINES,
            session_id=session_id,
            scenario=self.plan.workloads[ticket.workload].scenario,
            channel=self._routes.way(ticket, self.ledger.run_id, session_id).likely.labels,
            due_ns=due_ns + self.offset_ns,
        )
        self.ledger.take(line)
        self.ledger.skip_rest(line, *self._why_no_session(ticket))

    def _why_no_session(self, ticket: Ticket) -> tuple[Reason, str | None]:
        """(reason, detail) of an arrival for which there is no session."""
        if self.fault is not None:
            return Reason.INTERNAL, self.fault
        why = self.trouble or self.claims.why_none(ticket)
        return (self.control.reason, None) if why is None else (Reason.SOURCE_FAILED, why)

    def play_session(self, prepared: PreparedSession, clients: Clients, due_ns: int) -> TurnRecord | None:
        """Play one session to its end; as `SessionPlayer.play`."""
        return self._player.play(prepared, clients, due_ns, self.lent)

    def own_clients(self) -> Clients:
        """Connections of a user who keeps them; to be closed by it."""
        return Clients(self._new_client)

    @contextmanager
    def lent(self) -> Iterator[Clients]:
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
        return all(one.exhausted and one.idle for one in self._streams) and not self.ledger.open

    def windows_since_last(self) -> list[WindowRow]:
        """Rows of the turns that were closed since the last call, to be added to those before."""
        if not self._since_last:
            return []
        rows = windows(self._since_last, limits=self._limits, streamed=self._streamed)
        self._since_last.clear()
        return list(rows)

    def open_turns(self) -> Iterator[OpenTurn]:
        for session in self.ledger.open.values():
            yield session.open_turn(self.ledger.place_of(session.due_ns))
