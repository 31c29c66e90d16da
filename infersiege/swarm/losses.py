"""What a dead worker leaves: its last records, its turns that were on their way, and the arrivals that nobody plays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infersiege.errors import InfersiegeError
from infersiege.records import OpenTurn, Outcome, Plays, Reason, TraceChanges, TurnRecord
from infersiege.schedule import Ticket
from infersiege.schedule.epochs import Table
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.intake import Intake
from infersiege.swarm.ledger import ChannelLabels, LineKey, Place, unsent_record, workload_key
from infersiege.swarm.source import ARRIVAL_LINES, SessionSource, is_arrival
from infersiege.swarm.spool import is_spool_of, leftover_segments, read_journal, remove_spool
from infersiege.swarm.timeline import Timeline
from infersiege.swarm.versions import boot_id
from infersiege.traces.play.session_lines import SessionLine


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


class LossAccount:
    """Writes the records that a dead worker can't write any more."""

    def __init__(self, intake: Intake, *, run_id: str, channels: dict[str, ChannelLabels]) -> None:
        self._intake = intake
        self._run_id = run_id
        self._channels = channels

    def settle(self, worker: WorkerState, orphans: Iterable[OpenTurn]) -> Loss:
        """Bring home what lies in the worker's spool, then give every open turn its record.

        Of one that came back only the arrivals are settled that nobody played while it was away.
        On the master's own host the spool tells exactly; otherwise the last report does (at most a second old).
        `orphans`: first turns of the lines of sessions that were this worker's to play; those it took are left out.
        """
        if worker.alive:
            return self._settle_absence(worker, orphans)
        spool = self._local_spool(worker)
        before = self._intake.rows_of.get(worker.name, 0)
        lines: dict[LineKey, OpenTurn] = {}
        started: dict[LineKey, int] = {}
        if spool is not None:
            for sequence, segment in leftover_segments(spool):
                self._intake.take_leftover(worker.name, sequence, segment)
            for line in read_journal(spool):
                if line.taken is not None:
                    lines |= {(opened.session_id, opened.first_turn): opened for opened in (line.taken, *line.branches)}
                key = (line.session_id, line.first_turn)
                if line.started is not None:
                    started[key] = line.started
                if line.channel is not None and key in lines:
                    lines[key] = msgspec.structs.replace(lines[key], channel=line.channel)
        elif worker.report is not None:
            for opened in worker.report.open_turns:
                key = (opened.session_id, opened.first_turn)
                lines[key] = opened
                started[key] = opened.turn if opened.started else opened.turn - 1
        recovered = self._intake.rows_of.get(worker.name, 0) - before
        closed = self._intake.closed_turns(worker.name)
        rows = list(self._open_rows(worker, lines, started, closed))
        missing = (orphan for orphan in orphans if (orphan.session_id, orphan.first_turn) not in lines)
        began = {session_id for session_id, _ in closed} | {session_id for session_id, _ in lines}
        rows += (left := list(self._orphan_rows(worker, unplayed_arrivals(missing, began), closed, began)))
        lost = sum(row.outcome is Outcome.LOST for row in rows)
        # What it said that it had planned stands against what is here: a record that never came is then missed, unless
        # the session is among the orphans.
        told = worker.bye.planned_turns if worker.bye else worker.report.planned_turns if worker.report else 0
        self._intake.write(rows)
        if spool is not None and self._intake.disk_error is None:
            remove_spool(spool)
        told_plays = worker.bye.plays if worker.bye else worker.report.plays if worker.report else {}
        return Loss(
            recovered_rows=recovered,
            lost=lost,
            skipped=len(rows) - lost,
            plays=dict(told_plays if worker.bye is not None or spool is None else plays_of(lines, started)),
            planned_turns=max(told, len(closed) + len(rows)),
            changes=dict(worker.bye.changes if worker.bye else worker.report.changes if worker.report else {}),
            unplayed=_sessions(left),
        )

    def _settle_absence(self, worker: WorkerState, orphans: Iterable[OpenTurn]) -> Loss:
        """Of one that came back: what it took has its records, what was due while it was away may have none."""
        closed = self._intake.closed_turns(worker.name)
        began = {session_id for session_id, _ in closed}
        rows = list(self._orphan_rows(worker, unplayed_arrivals(orphans, began), closed, began))
        self._intake.write(rows)
        lost = sum(row.outcome is Outcome.LOST for row in rows)
        skipped, unplayed = len(rows) - lost, _sessions(rows)
        return Loss(recovered_rows=0, lost=lost, skipped=skipped, plays={}, planned_turns=len(rows), unplayed=unplayed)

    def _local_spool(self, worker: WorkerState) -> Path | None:
        path = Path(worker.hello.spool_dir)
        same_host = worker.hello.boot_id == boot_id()
        return path if same_host and is_spool_of(path, self._run_id) else None

    def _open_rows(
        self,
        worker: WorkerState,
        lines: dict[LineKey, OpenTurn],
        started: dict[LineKey, int],
        closed: set[tuple[str, int]],
    ) -> Iterator[TurnRecord]:
        """Turns without a record. What was sent is lost, also where its record existed and did not come home."""
        for key, opened in lines.items():
            for turn in _numbers(opened):
                if (opened.session_id, turn) in closed:
                    continue
                sent = turn <= started.get(key, -1)
                yield self._row(worker, opened, turn, Outcome.LOST if sent else Outcome.SKIPPED)

    def _orphan_rows(
        self, worker: WorkerState, orphans: Iterable[OpenTurn], closed: set[tuple[str, int]], began: set[str]
    ) -> Iterator[TurnRecord]:
        """Lines of sessions that nobody plays; of one that was over at the last report, the records that did not come
        home.
        """
        for orphan in orphans:
            outcome = Outcome.LOST if orphan.session_id in began else Outcome.SKIPPED
            for turn in _numbers(orphan):
                if (orphan.session_id, turn) not in closed:
                    yield self._row(worker, orphan, turn, outcome)

    def _row(self, worker: WorkerState, opened: OpenTurn, turn: int, outcome: Outcome) -> TurnRecord:
        return unsent_record(
            opened,
            run_id=self._run_id,
            worker=worker.name,
            epoch=opened.epoch,
            channel=self._channels[opened.channel],
            outcome=outcome,
            reason=Reason.WORKER_LOST,
            turn=turn,
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


def _sessions(rows: Iterable[TurnRecord]) -> int:
    """Of the skipped turns among them."""
    return len({row.session_id for row in rows if row.outcome is Outcome.SKIPPED})


def _numbers(line: OpenTurn) -> range:
    """Numbers of a line's turns in its session."""
    return range(line.first_turn, line.first_turn + line.turns)


def orphans(
    source: SessionSource, timeline: Timeline, table: Table, owner: str, ended_ns: int, offset_ns: int
) -> Iterator[OpenTurn]:
    """First turns of all sessions that were one worker's to play until the load ended (monotonic).

    `source`: of the whole run. A closed loop has some only if it is a known number of sessions: below the boundary at
    which somebody else took over, and to the end where the plan says how many sessions are to be played. `offset_ns`:
    epoch minus that clock.
    """
    stop = source.plan.run.stop
    for stream in source.streams:
        closed, to_the_end = stream.load.mode == "closed", stop is not None and stop.sessions is not None
        if closed and not to_the_end and not source.is_finite(stream):
            continue
        for ticket in source.tickets(stream.number):
            due_ns = ended_ns if ticket.offset_ns is None else timeline.start_ns + ticket.offset_ns
            epoch = table.epoch_of(ticket)
            if due_ns > ended_ns or (closed and not to_the_end and epoch is table.last):
                break
            if table.owner(ticket) == owner:
                place = timeline.place_of(due_ns)
                yield from lines_of(ticket, source, place, due_ns + offset_ns, epoch=epoch.number)


def unplayed_arrivals(orphans: Iterable[OpenTurn], began: Iterable[str]) -> Iterator[OpenTurn]:
    """Without the arrivals of traces in Redis for which this worker had a session.

    Which one an arrival plays is known to its worker only: of those that were its own the first ones were played, as
    many as it has begun sessions of that workload.
    """
    played = Counter(session_id.partition(":")[0] for session_id in began)
    for orphan in orphans:
        if is_arrival(orphan.session_id):
            label = orphan.session_id.partition(":")[0]
            if played[label]:
                played[label] -= 1
                continue
        yield orphan


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


def describe(worker: WorkerState, loss: Loss | InfersiegeError) -> str:
    """One line for events.jsonl."""
    if isinstance(loss, InfersiegeError):
        return f"{worker.name}: its records could not be settled: {loss}"
    return (
        f"{worker.name}: {loss.recovered_rows} records recovered from its spool, "
        f"{loss.lost} turns lost on their way, {loss.skipped} turns that nobody will play"
    )
