"""What dead workers leave: their last records, their turns that were on their way, and arrivals that nobody plays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from infersiege.errors import InfersiegeError
from infersiege.records import OpenTurn, Outcome, Plays, Reason, TraceChanges, TurnRecord
from infersiege.schedule import Ticket
from infersiege.schedule.epochs import Table
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.intake import Intake
from infersiege.swarm.ledger import ChannelLabels, LineKey, Place, unsent_record, workload_key
from infersiege.swarm.leftovers import read_journal, why_not
from infersiege.swarm.membership import LEASE_NS, MARGIN_NS
from infersiege.swarm.source import ARRIVAL_LINES, SessionSource, is_arrival
from infersiege.swarm.spool import is_spool_of, leftover_segments, read_info, remove_spool
from infersiege.swarm.timeline import Timeline
from infersiege.swarm.versions import boot_id
from infersiege.traces.play.session_lines import SessionLine

ROWS_AT_ONCE = 4096
"""Written together: a dead worker may leave a million arrivals."""

MAYBE_SENT = "not known whether it was sent: due after the worker's last report, which its lease outlived"


@dataclass(frozen=True, slots=True)
class Loss:
    """One worker's account after its death, for the event log."""

    recovered_rows: int
    lost: int
    skipped: int
    plays: dict[str, Plays]
    """Sessions that it had taken, by `workload_key`, as far as is known."""
    planned_turns: int
    changes: dict[str, TraceChanges] = field(default_factory=dict)
    """How much it had not played as the trace has it, by `workload_key`, as far as it had told."""
    unplayed: int = 0
    """Sessions that were its own, and that nobody began."""
    maybe_sent: int = 0
    """Of the skipped turns, those that it may have sent after its last report."""
    unread: str | None = None
    """Why its spool, which is here, could not be read; None: it could, or is elsewhere."""


class Orphan(NamedTuple):
    """A line of a session that was one worker's to play."""

    owner: str
    opened: OpenTurn
    """At its first turn."""
    stream: int = 0
    ticket: int = 0
    """Index of its ticket in that stream."""
    timed: bool = True
    """It came due at an instant; False: with whichever user was free."""


@dataclass(slots=True)
class _Estate:
    """What is known of one worker, and what was made of it so far."""

    worker: WorkerState
    spool: Path | None = None
    """On the master's own host it tells exactly; otherwise the last report does (at most a second old)."""
    unread: str | None = None
    recovered_rows: int = 0
    lines: dict[LineKey, OpenTurn] = field(default_factory=dict)
    """That it had open. Of one that came back: none, what it took has its records."""
    started: dict[LineKey, int] = field(default_factory=dict)
    """The last turn of each that was sent."""
    maybe_until_ns: int | None = None
    """What was due by then (epoch) may have been sent without our knowing; None: all is known."""
    closed: set[tuple[str, int]] = field(default_factory=set)
    began: set[str] = field(default_factory=set)
    arrivals: PlayedArrivals = field(default_factory=lambda: PlayedArrivals(()))
    lost: int = 0
    maybe_sent: int = 0
    rows: int = 0
    unplayed: set[str] = field(default_factory=set)
    """Sessions of orphans that were skipped."""

    def knows(self, closed: set[tuple[str, int]]) -> None:
        """`closed`: its turns that have a record."""
        self.closed = closed
        self.began = {session_id for session_id, _ in closed} | {session_id for session_id, _ in self.lines}
        self.arrivals = PlayedArrivals(self.began)

    def took(self, orphan: Orphan) -> bool:
        """It had told that it was past this ticket, which is not open any more: then it was played to its end."""
        report = self.worker.report
        if self.worker.alive or report is None or is_arrival(orphan.opened.session_id):
            return False
        return orphan.stream < len(report.next_index) and orphan.ticket < report.next_index[orphan.stream]


class LossAccount:
    """Writes the records that dead workers can't write any more."""

    def __init__(self, intake: Intake, *, run_id: str, channels: dict[str, ChannelLabels], offset_ns: int = 0) -> None:
        """`offset_ns`: epoch minus the monotonic clock of `WorkerState`."""
        self._intake = intake
        self._run_id = run_id
        self._channels = channels
        self._offset_ns = offset_ns

    def settle(self, workers: Sequence[WorkerState], orphans: Iterable[Orphan]) -> list[Loss]:
        """Bring home what lies in the workers' spools, then give every turn that was theirs its record.

        One loss for each of `workers`, in their order. The run's turns are read once and `orphans` are walked once,
        however many workers there are. Of one that came back only the arrivals are settled that nobody played while it
        was away. `orphans`: lines of sessions that were these workers' to play; those that they took are left out.
        Raises RunDirectoryError when the turns can't be read; then no row was written, and the spools are still there.
        """
        estates = {worker.name: self._estate(worker) for worker in workers}
        for name, closed in self._intake.closed_turns(estates).items():
            estates[name].knows(closed)
        rows: list[TurnRecord] = []
        for row in self._rows(estates, orphans):
            rows.append(row)
            if len(rows) >= ROWS_AT_ONCE:
                self._intake.write(rows)
                rows.clear()
        self._intake.write(rows)
        if self._intake.disk_error is None:
            for estate in estates.values():
                if estate.spool is not None:
                    remove_spool(estate.spool)
        return [_loss(estate) for estate in estates.values()]

    def _estate(self, worker: WorkerState) -> _Estate:
        """What the worker had open when it died, after the rows of its spool were brought home."""
        estate = _Estate(worker)
        if worker.alive:
            return estate
        before = self._intake.rows_of.get(worker.name, 0)
        try:
            if (spool := self._local_spool(worker)) is not None:
                for sequence, segment in leftover_segments(spool):
                    self._intake.take_leftover(worker.name, sequence, segment)
                journal = read_journal(spool)
                estate.spool, estate.lines, estate.started = spool, journal.lines, journal.started
        except (OSError, InfersiegeError) as error:
            estate.unread = why_not(error) if isinstance(error, OSError) else str(error)
        if estate.spool is None:
            for opened in worker.report.open_turns if worker.report is not None else ():
                key = (opened.session_id, opened.first_turn)
                estate.lines[key] = opened
                estate.started[key] = opened.turn if opened.started else opened.turn - 1
            estate.maybe_until_ns = self._maybe_until_ns(worker)
        estate.recovered_rows = self._intake.rows_of.get(worker.name, 0) - before
        return estate

    def _maybe_until_ns(self, worker: WorkerState) -> int | None:
        """When (epoch) a worker of which only the last report tells sent its last turn at the latest: with the end of
        the last lease that it can have had."""
        if worker.bye is not None or worker.lost_at_ns is None:
            return None
        lease_ns = 0 if worker.gone else LEASE_NS + MARGIN_NS + worker.clock_uncertainty_ns
        return worker.lost_at_ns + lease_ns + self._offset_ns

    def _local_spool(self, worker: WorkerState) -> Path | None:
        """Raises OSError where it is here and can't be looked at."""
        path = Path(worker.hello.spool_dir)
        if worker.hello.boot_id != boot_id() or not path.is_dir():
            return None
        read_info(path)
        return path if is_spool_of(path, self._run_id) else None

    def _rows(self, estates: Mapping[str, _Estate], orphans: Iterable[Orphan]) -> Iterator[TurnRecord]:
        for estate in estates.values():
            yield from self._open_rows(estate)
        for orphan in orphans:
            estate = estates[orphan.owner]
            key = (orphan.opened.session_id, orphan.opened.first_turn)
            if key not in estate.lines and not estate.arrivals.played(orphan.opened):
                yield from self._orphan_rows(estate, orphan)

    def _open_rows(self, estate: _Estate) -> Iterator[TurnRecord]:
        """Turns without a record. What was sent is lost, also where its record existed and did not come home."""
        for key, opened in estate.lines.items():
            sent_until = estate.started.get(key, -1)
            for turn in _numbers(opened):
                if (opened.session_id, turn) not in estate.closed:
                    yield self._row(estate, opened, turn, sent=turn <= sent_until)

    def _orphan_rows(self, estate: _Estate, orphan: Orphan) -> Iterator[TurnRecord]:
        """Lines that nobody plays; of one that was over at the last report, the records that did not come home."""
        opened = orphan.opened
        sent = opened.session_id in estate.began or estate.took(orphan)
        if not sent:
            estate.unplayed.add(opened.session_id)
        for turn in _numbers(opened):
            if (opened.session_id, turn) not in estate.closed:
                yield self._row(estate, opened, turn, sent=sent, timed=orphan.timed)

    def _row(self, estate: _Estate, opened: OpenTurn, turn: int, *, sent: bool, timed: bool = True) -> TurnRecord:
        until_ns = estate.maybe_until_ns
        maybe = not sent and until_ns is not None and (not timed or opened.due_ns <= until_ns)
        estate.rows += 1
        estate.lost += sent
        estate.maybe_sent += maybe
        return unsent_record(
            opened,
            run_id=self._run_id,
            worker=estate.worker.name,
            epoch=opened.epoch,
            channel=self._channels[opened.channel],
            outcome=Outcome.LOST if sent else Outcome.SKIPPED,
            reason=Reason.WORKER_LOST,
            turn=turn,
            detail=MAYBE_SENT if maybe else None,
        )


def _loss(estate: _Estate) -> Loss:
    """The account of a worker all of whose rows are made."""
    worker, rows = estate.worker, estate.rows
    # A farewell tells all; a spool more than the last report. Who came back has told what it had taken.
    told = None if worker.alive else worker.bye or worker.report
    plays = told.plays if told is not None else {}
    if estate.spool is not None and worker.bye is None:
        plays = plays_of(estate.lines, estate.started)
    here = rows if worker.alive else len(estate.closed) + rows
    return Loss(
        recovered_rows=estate.recovered_rows,
        lost=estate.lost,
        skipped=rows - estate.lost,
        plays=dict(plays),
        # What it said that it had planned stands against what is here: a record that never came is then missed, unless
        # the session is among the orphans.
        planned_turns=max(told.planned_turns if told is not None else 0, here),
        changes=dict(told.changes) if told is not None else {},
        unplayed=len(estate.unplayed),
        maybe_sent=estate.maybe_sent,
        unread=estate.unread,
    )


def plays_of(lines: Mapping[LineKey, OpenTurn], started: Mapping[LineKey, int]) -> dict[str, Plays]:
    """By `workload_key`, from all lines that a worker took and the last turn of each that was sent."""
    sent = {session_id for session_id, _ in started}
    found: dict[str, Plays] = {}
    for opened in {opened.session_id: opened for opened in lines.values()}.values():
        key, began = workload_key(opened.scenario, opened.routed_by or opened.channel), opened.session_id in sent
        play = Plays(taken=1, sent=int(began), repeats=int(began and opened.repeated))
        found[key] = found.get(key, Plays()).plus(play)
    return found


def _numbers(line: OpenTurn) -> range:
    """Numbers of a line's turns in its session."""
    return range(line.first_turn, line.first_turn + line.turns)


def orphans(
    source: SessionSource,
    timeline: Timeline,
    table: Table,
    owners: Collection[str],
    ended_ns: int,
    offset_ns: int,
    until_index: Sequence[int] = (),
) -> Iterator[Orphan]:
    """Lines of all sessions that were some workers' to play until the load ended (monotonic); one walk for all of them.

    `source`: of the whole run. A closed loop has some only if it is a known number of sessions: below the boundary at
    which somebody else took over, and where the plan says how many sessions are to be played, as far as leases had
    gone. `until_index`: that, by number of the stream (`Lease.until_index`); who lives takes nothing beyond, so that
    nobody has a record there. Missing: no limit. `offset_ns`: epoch minus that clock.
    """
    stop = source.plan.run.stop
    for stream in source.streams:
        closed, to_the_end = stream.load.mode == "closed", stop is not None and stop.sessions is not None
        if closed and not to_the_end and not source.is_finite(stream):
            continue
        leased = until_index[stream.number] if closed and stream.number < len(until_index) else None
        for ticket in source.tickets(stream.number):
            timed = ticket.offset_ns is not None
            due_ns = timeline.start_ns + ticket.offset_ns if ticket.offset_ns is not None else ended_ns
            epoch = table.epoch_of(ticket)
            if due_ns > ended_ns or (closed and not to_the_end and epoch is table.last):
                break
            if leased is not None and ticket.index >= leased:
                break
            owner = table.owner(ticket)
            if owner in owners:
                place = timeline.place_of(due_ns)
                for opened in lines_of(ticket, source, place, due_ns + offset_ns, epoch=epoch.number):
                    yield Orphan(owner, opened, stream.number, ticket.index, timed)


class PlayedArrivals:
    """Tells the arrivals of traces in Redis for which a worker had a session.

    Which one an arrival plays is known to its worker only: of those that were its own the first ones were played, as
    many as it has begun sessions of that workload.
    """

    def __init__(self, began: Iterable[str]) -> None:
        """`began`: ids of the sessions that it has begun."""
        self._left = Counter(session_id.partition(":")[0] for session_id in began)

    def played(self, orphan: OpenTurn) -> bool:
        """Call it once for each orphan, in their order. False for a session of any other trace."""
        if not is_arrival(orphan.session_id):
            return False
        label = orphan.session_id.partition(":")[0]
        if not self._left[label]:
            return False
        self._left[label] -= 1
        return True


def unplayed_arrivals(orphans: Iterable[OpenTurn], began: Iterable[str]) -> Iterator[OpenTurn]:
    """Without the arrivals that were played (`PlayedArrivals`)."""
    arrivals = PlayedArrivals(began)
    return (orphan for orphan in orphans if not arrivals.played(orphan))


def lines_of(ticket: Ticket, share: SessionSource, place: Place, due_ns: int, *, epoch: int = 0) -> Iterator[OpenTurn]:
    """First turns of all lines of a ticket's session, which nobody has begun. `due_ns`: Unix epoch.

    Of a trace in Redis: one turn, for the arrival. Its session is whichever comes next, and is played by another one.
    """
    lines: Sequence[SessionLine] = ARRIVAL_LINES
    if share.hands_out(ticket):
        session_id = share.arrival_id(ticket)
    else:
        session_id, conversation = share.named_conversation(ticket, place.stage)
        lines = conversation.lines
    channel, routed_by = share.channel_of(ticket)
    for line in lines:
        yield OpenTurn(
            session_id=session_id,
            scenario=share.plan.workloads[ticket.workload].scenario,
            stage=place.stage,
            phase=place.phase,
            channel=channel,
            routed_by=routed_by,
            turns=len(line.turns),
            first_turn=line.first_turn,
            after=line.after,
            turn=line.first_turn,
            started=False,
            due_ns=due_ns,
            epoch=epoch,
        )


def doubt_of(worker: str, loss: Loss) -> str | None:
    """What the records of a dead worker may say wrongly, in one line for the report; None: all is known."""
    doubts = []
    if loss.unread is not None:
        said = "its last report had to tell which of its turns are lost and which are skipped"
        doubts.append(f"its spool can't be read ({loss.unread}), so {said}")
    if loss.maybe_sent:
        doubts.append(f"{loss.maybe_sent:,} of its {loss.skipped:,} skipped turns may have been sent")
    return f"{worker}: {'; '.join(doubts)}" if doubts else None


def describe(worker: WorkerState, loss: Loss | InfersiegeError) -> str:
    """One line for events.jsonl."""
    if isinstance(loss, InfersiegeError):
        return f"{worker.name}: its records could not be settled: {loss}"
    maybe = f" ({loss.maybe_sent} of them may have been sent after its last report)" if loss.maybe_sent else ""
    unread = f"; its spool can't be read: {loss.unread}" if loss.unread is not None else ""
    return (
        f"{worker.name}: {loss.recovered_rows} records recovered from its spool, {loss.lost} turns lost on their way, "
        f"{loss.skipped} turns that nobody will play{maybe}{unread}"
    )
