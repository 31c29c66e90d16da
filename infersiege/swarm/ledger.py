"""Exactly one record per turn of every session taken, whatever happens to the greenlet that plays it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from infersiege.records import OpenTurn, Outcome, Phase, Plays, Reason, TraceChanges, TurnRecord
from infersiege.swarm.spool import JournalLine
from infersiege.traces.play.session_lines import SessionLine


@dataclass(frozen=True, slots=True)
class ChannelLabels:
    """What a record says about its channel, known before anything is sent."""

    name: str
    engine: str
    dialect: str
    model: str


class Place(NamedTuple):
    """Where on the run's time axis an instant lies."""

    stage: str
    phase: Phase


LineKey: TypeAlias = tuple[str, int]
"""A line of a session in play: session id, number of its first turn."""


@dataclass(slots=True)
class SessionMark:
    """What the lines of one session share."""

    repeated: bool = False
    """It was played before: the trace wraps."""
    sent: bool = False
    """A turn of it was on its way."""


@dataclass(slots=True)
class OpenSession:
    """A session that was taken and is not over; of one with branches, one of its lines."""

    session_id: str
    scenario: str
    channel: ChannelLabels
    turns: int
    """Of this line."""
    due_ns: int
    """Epoch ns. Of the turn in flight or next; of a turn that never came: of the last one known."""
    first_turn: int = 0
    """Number of its first turn in the session; 0 is the main line's."""
    after: int | None = None
    """A branch: the turn after whose end it comes; None: it starts with the session."""
    next_turn: int = -1
    """First turn that has no record yet; -1: the line's first."""
    started: bool = False
    """next_turn is on its way."""
    attempt_ns: int | None = None
    """Since when (epoch ns), if it is."""
    routed_by: str | None = None
    """The hybrid channel that chose `channel`, and may choose another one for the next turn."""
    until_ns: int | None = None
    """From then on no turn of it starts (monotonic): its user's time or its stage is over; None: not before the run."""
    mark: SessionMark = field(default_factory=SessionMark)
    epoch: int = 0
    """The one in force when it was taken."""

    def __post_init__(self) -> None:
        self.next_turn = max(self.next_turn, self.first_turn)

    @property
    def key(self) -> LineKey:
        return self.session_id, self.first_turn

    @property
    def end(self) -> int:
        """Number of its last turn, and one."""
        return self.first_turn + self.turns

    def open_turn(self, place: Place) -> OpenTurn:
        return OpenTurn(
            session_id=self.session_id,
            scenario=self.scenario,
            stage=place.stage,
            phase=place.phase,
            channel=self.channel.name,
            turns=self.turns,
            first_turn=self.first_turn,
            after=self.after,
            turn=self.next_turn,
            started=self.started,
            due_ns=self.due_ns,
            routed_by=self.routed_by,
            repeated=self.mark.repeated,
            epoch=self.epoch,
        )


def opened_lines(lines: Sequence[SessionLine], *, repeated: bool = False, **common: Any) -> tuple[OpenSession, ...]:
    """A session's lines for the ledger. `common`: what all of them share."""
    mark = SessionMark(repeated=repeated)
    return tuple(
        OpenSession(turns=len(line.turns), first_turn=line.first_turn, after=line.after, mark=mark, **common)
        for line in lines
    )


def workload_key(scenario: str, channel: str) -> str:
    """Names one workload of a plan: a scenario may be played on several channels, but once on each.

    `channel`: as the workload names it, so that of a hybrid one its own name.
    """
    return f"{scenario} on {channel}"


def key_of(session: OpenSession) -> str:
    return workload_key(session.scenario, session.routed_by or session.channel.name)


_HEADER_SAFE = re.compile(r"[A-Za-z0-9._~:#-]{1,80}")


def request_id_of(run_id: str, session_id: str, turn: int) -> str:
    """`x-request-id` of a turn: unique in the run, found again in the server's log.

    A session id that is not fit for a header (it comes from a trace file) is replaced by its hash.
    """
    if not _HEADER_SAFE.fullmatch(session_id):
        session_id = hashlib.blake2b(session_id.encode("utf-8", "replace"), digest_size=12).hexdigest()
    return f"{run_id}.{session_id}.{turn}"


class RecordSink(Protocol):
    """Where a ledger's rows go. Neither call may raise or yield."""

    def journal(self, line: JournalLine) -> None: ...

    def add(self, record: TurnRecord) -> None: ...


@dataclass(slots=True)
class Ledger:
    """A worker's account of sessions and turns. No method yields to another greenlet."""

    run_id: str
    worker: str
    epoch: int
    """The one in force now: of the sessions that are taken from here on."""
    spool: RecordSink
    place_of: Callable[[int], Place]
    """Stage and phase of an epoch instant: a turn belongs to those in which it is due."""
    listeners: list[Callable[[TurnRecord], None]] = field(default_factory=list)
    open: dict[LineKey, OpenSession] = field(default_factory=dict)
    """Lines that are not over."""
    plays: dict[str, Plays] = field(default_factory=dict)
    """By `workload_key`; a session with branches is one."""
    changes: dict[str, TraceChanges] = field(default_factory=dict)
    """By `workload_key`: how much is not played as the trace has it."""
    planned_turns: int = 0
    started_turns: int = 0
    closed_turns: int = 0

    @property
    def open_sessions(self) -> int:
        """Sessions that are not over, each once."""
        return len({session_id for session_id, _ in self.open})

    def take(self, session: OpenSession, *branches: OpenSession) -> None:
        """From here on every turn of the session, which is its main line and these branches, will have a record."""
        for line in (session, *branches):
            line.mark, line.epoch = session.mark, self.epoch
            self.open[line.key] = line
            self.planned_turns += line.turns
        self._count(session, Plays(taken=1))
        taken, *beside = (line.open_turn(self.place_of(line.due_ns)) for line in (session, *branches))
        # In one line: half a session in the journal of a killed worker would be half forgotten.
        self.spool.journal(JournalLine(session_id=session.session_id, taken=taken, branches=tuple(beside)))

    def start(self, session: OpenSession, request_id: str, attempt_ns: int) -> None:
        """The next turn of a line is about to be sent."""
        if not session.mark.sent:
            session.mark.sent = True
            self._count(session, Plays(sent=1, repeats=int(session.mark.repeated)))
        session.started, session.attempt_ns = True, attempt_ns
        self.started_turns += 1
        self.spool.journal(
            JournalLine(
                session_id=session.session_id,
                first_turn=session.first_turn,
                started=session.next_turn,
                request_id=request_id,
                due_ns=session.due_ns,
                attempt_ns=attempt_ns,
                channel=session.channel.name if session.routed_by is not None else None,
            )
        )

    def close(self, session: OpenSession, record: TurnRecord) -> None:
        """Write the record of a line's next turn; after the last one the line is over.

        A turn that has its record (`skip_all` was faster than its greenlet) gets no second one.
        """
        if record.turn < session.next_turn:
            return
        self.spool.add(record)
        self.closed_turns += 1
        session.next_turn += 1
        session.started, session.attempt_ns = False, None
        if session.next_turn >= session.end:
            self.open.pop(session.key, None)
        for listener in self.listeners:
            listener(record)

    def skip_rest(self, session: OpenSession, reason: Reason, detail: str | None = None) -> None:
        """Write `skipped` for every turn of a line that has no record; does nothing for one that is over."""
        while session.next_turn < session.end:
            self.close(session, self._unsent(session, reason, detail))

    def _count(self, session: OpenSession, plays: Plays) -> None:
        key = key_of(session)
        self.plays[key] = self.plays.get(key, Plays()).plus(plays)

    def changed(self, session: OpenSession, changes: TraceChanges) -> None:
        """Turns of a session are not played as the trace has them: add to the `changes` of its workload."""
        key = key_of(session)
        self.changes[key] = self.changes.get(key, TraceChanges()).plus(changes)

    def skip_all(self, reason: Reason) -> None:
        """The last net: sessions whose greenlet never got to write its own."""
        for session in list(self.open.values()):
            self.skip_rest(session, reason)

    def _unsent(self, session: OpenSession, reason: Reason, detail: str | None) -> TurnRecord:
        return unsent_record(
            session.open_turn(self.place_of(session.due_ns)),
            run_id=self.run_id,
            worker=self.worker,
            epoch=session.epoch,
            channel=session.channel,
            outcome=Outcome.CANCELLED if session.started else Outcome.SKIPPED,
            reason=reason,
            detail=detail,
            turn=session.next_turn,
            attempt_ns=session.attempt_ns,
        )


def unsent_record(
    opened: OpenTurn,
    *,
    run_id: str,
    worker: str,
    epoch: int,
    channel: ChannelLabels,
    outcome: Outcome,
    reason: Reason,
    turn: int,
    detail: str | None = None,
    attempt_ns: int | None = None,
) -> TurnRecord:
    """The record of a turn of which nothing was measured: skipped, lost, or cut before its first byte."""
    return TurnRecord(
        run_id=run_id,
        worker=worker,
        epoch=epoch,
        session_id=opened.session_id,
        turn=turn,
        parent_turn=turn - 1 if turn > opened.first_turn else opened.after,
        scenario=opened.scenario,
        stage=opened.stage,
        phase=opened.phase,
        channel=channel.name,
        routed_by=opened.routed_by,
        replica=None,
        engine=channel.engine,
        dialect=channel.dialect,
        model_asked=channel.model,
        request_id=request_id_of(run_id, opened.session_id, turn),
        due_ns=opened.due_ns,
        attempt_ns=attempt_ns,
        outcome=outcome,
        reason=reason,
        error_detail=detail,
    )
