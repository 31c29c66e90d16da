"""What a dead worker leaves: its last records, its turns that were on their way, and the arrivals that nobody plays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infersiege.errors import InfersiegeError
from infersiege.records import OpenTurn, Outcome, Plays, Reason, TraceChanges, TurnRecord
from infersiege.schedule import Ticket
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.intake import Intake
from infersiege.swarm.ledger import ChannelLabels, LineKey, Place, unsent_record, workload_key
from infersiege.swarm.source import SessionSource
from infersiege.swarm.spool import leftover_segments, read_journal, remove_spool
from infersiege.swarm.timeline import Timeline
from infersiege.swarm.versions import boot_id


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


class LossAccount:
    """Writes the records that a dead worker can't write any more."""

    def __init__(self, intake: Intake, *, run_id: str, channels: dict[str, ChannelLabels]) -> None:
        self._intake = intake
        self._run_id = run_id
        self._channels = channels

    def settle(self, worker: WorkerState, orphans: Iterable[OpenTurn]) -> Loss:
        """Bring home what lies in the worker's spool, then give every open turn its record.

        On the master's own host the spool tells exactly; otherwise the last report does (at most a second old).
        `orphans`: first turns of the lines of sessions that were this worker's to play; those it took are left out.
        """
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
        rows += self._orphan_rows(worker, missing, closed, began)
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
        )

    def _local_spool(self, worker: WorkerState) -> Path | None:
        path = Path(worker.hello.spool_dir)
        same_host = worker.hello.boot_id == boot_id()
        return path if same_host and path.is_dir() else None

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
            epoch=0,
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


def _numbers(line: OpenTurn) -> range:
    """Numbers of a line's turns in its session."""
    return range(line.first_turn, line.first_turn + line.turns)


def orphans(share: SessionSource, timeline: Timeline, ended_ns: int, offset_ns: int) -> Iterator[OpenTurn]:
    """First turns of all sessions that were a worker's to play until the load ended (monotonic).

    A closed loop without a number of sessions has none: its users take sessions as they are free. `offset_ns`: epoch
    minus that clock.
    """
    stop = share.plan.run.stop
    for stream in share.streams:
        if stream.load.mode == "closed" and (stop is None or stop.sessions is None):
            continue
        for ticket in share.tickets(stream.number):
            due_ns = ended_ns if ticket.offset_ns is None else timeline.start_ns + ticket.offset_ns
            if due_ns > ended_ns:
                break
            yield from lines_of(ticket, share, timeline.place_of(due_ns), due_ns + offset_ns)


def lines_of(ticket: Ticket, share: SessionSource, place: Place, due_ns: int) -> Iterator[OpenTurn]:
    """First turns of all lines of a ticket's session, which nobody has begun. `due_ns`: epoch."""
    session_id, conversation = share.named_conversation(ticket, place.stage)
    channel, routed_by = share.channel_of(ticket)
    for line in conversation.lines:
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
        )


def describe(worker: WorkerState, loss: Loss | InfersiegeError) -> str:
    """One line for events.jsonl."""
    if isinstance(loss, InfersiegeError):
        return f"{worker.name}: its records could not be settled: {loss}"
    return (
        f"{worker.name}: {loss.recovered_rows} records recovered from its spool, "
        f"{loss.lost} turns lost on their way, {loss.skipped} turns that nobody will play"
    )
