"""After a crash of the master: what its workers left in their spools comes into the run directory.

Every step can be repeated: rows are appended only for turns that have none, plan.json and what is made of it are
written whole, and a spool goes only when everything else is on the disk. `recovery.json` in the run directory says that
a recovery has begun; it goes last.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infersiege.errors import UsageError
from infersiege.plan.schema import Plan
from infersiege.records import EventRow, OpenTurn, Outcome, Reason
from infersiege.report.rebuild import Rebuilt, judged, read, write
from infersiege.rundir import PlanFile, RunDirectory
from infersiege.rundir.living import writer_of
from infersiege.swarm.ledger import ChannelLabels, LineKey, unsent_record
from infersiege.swarm.leftovers import Journal, Leftover, read_journal, read_rows
from infersiege.swarm.losses import lines_of, unplayed_arrivals
from infersiege.swarm.recovered_facts import (
    BY_RECOVERY,
    Found,
    Tally,
    check_spools,
    completed,
    missing_workers,
    open_source,
)
from infersiege.swarm.source import SessionSource, is_arrival
from infersiege.swarm.spool import remove_spool
from infersiege.swarm.timeline import Timeline

NOT_HOME = f"{BY_RECOVERY}its record is lost"
"""It was sent; the worker was killed, or the host that had its record already is gone."""
NOT_PLAYED = f"{BY_RECOVERY}nobody was there to send it"
ROWS_AT_ONCE = 1000


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """recovery.json."""

    spools: tuple[str, ...]
    settled: bool = False
    """Everything is in the run directory: only the spools are to be removed."""


@dataclass(slots=True)
class Recovered:
    """What a recovery did."""

    spools: int
    rebuilt: Rebuilt
    rows: int = 0
    """Records that this call brought home."""
    lost: int = 0
    """Turns of which only that they were sent is known, in all."""
    skipped: int = 0
    remarks: list[str] = field(default_factory=list)


def recover(
    run: RunDirectory,
    leftovers: Sequence[Leftover],
    *,
    damaged: Sequence[Path] = (),
    keep: bool = False,
    partial: bool = False,
) -> Recovered:
    """Bring the spools of a run home, and make it a whole run directory. `keep`: the spools stay.

    `partial`: also when the spool of a worker that took part is missing. `damaged`: spools that may be those. Raises
    UsageError when there is nothing to do or when it can't be done yet, and what writing raises; then nothing is lost,
    and it can be called again.
    """
    if _marker(run) is None and (file := run.read_plan()).ended_ns is not None:
        raise _complete(run, file, leftovers)
    if not run.claim():
        raise UsageError(
            f"{run.path}: another process writes to it ({writer_of(run)})",
            hint="does the run still go on, or another `recover`?",
        )
    file, marker = run.read_plan(), _marker(run)
    if marker is not None and marker.settled:
        return _over(run, marker, keep=keep)
    if marker is None and file.ended_ns is not None:
        raise _complete(run, file, leftovers)
    if not leftovers:
        raise UsageError(
            f"{run.path}: there is no spool of run {file.run_id} on this host: nothing to recover",
            hint="name those that you copied from the hosts of its workers; without any, `infersiege report "
            f"{run.path}` shows what had come home",
        )
    tally = Tally()
    for row in run.read_turns(span=file.span):
        tally.add(row)
    missing = missing_workers(run, file, leftovers, tally)
    check_spools(run, file, leftovers, () if partial else missing, damaged)
    marker = Marker(spools=tuple(str(one.path.resolve()) for one in leftovers))
    _note(run, marker)
    run.drop_torn_rows()
    result = _Work(run, file, leftovers, tally, missing).settle()
    if damaged:
        places = ", ".join(map(str, damaged))
        result.remarks.append(f"spool.json can't be read in {places}: if that is of this run, its records are given up")
    _note(run, msgspec.structs.replace(marker, settled=True))
    _remove(run, marker, keep=keep)
    return result


def is_over(run: RunDirectory) -> bool:
    """Whether there is nothing to bring home any more: the spools that a command line names may be gone."""
    marker = _marker(run)
    return marker.settled if marker is not None else run.read_plan().ended_ns is not None


def _complete(run: RunDirectory, file: PlanFile, leftovers: Sequence[Leftover]) -> UsageError:
    if not leftovers:
        return UsageError(f"{run.path}: this run is complete: nothing to recover")
    spools = " ".join(str(one.path) for one in leftovers)
    return UsageError(
        f"{run.path}: this run is complete, it ended with an account of every turn: nothing is changed",
        hint=f"what is still in spools of it is accounted for there as lost or skipped; remove them: rm -r {spools}",
    )


def _marker(run: RunDirectory) -> Marker | None:
    try:
        return msgspec.json.decode(run.recovery_path.read_bytes(), type=Marker)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        return Marker(spools=())


def _note(run: RunDirectory, marker: Marker) -> None:
    part = run.recovery_path.with_name(f".{run.recovery_path.name}.part")
    try:
        part.write_bytes(msgspec.json.encode(marker))
        part.replace(run.recovery_path)
    except OSError as error:
        raise UsageError(
            f"{run.recovery_path}: can't be written: {error.strerror or error}",
            hint="free some space, or recover into a copy of the run directory elsewhere",
        ) from None


def _remove(run: RunDirectory, marker: Marker, *, keep: bool) -> None:
    """The spools, then the note that they are to be removed."""
    if not keep:
        for spool in marker.spools:
            try:
                remove_spool(Path(spool))
            except OSError as error:
                raise UsageError(
                    f"{spool}: can't be removed: {error.strerror or error}",
                    hint="everything in it is in the run directory: remove it yourself",
                ) from None
    run.recovery_path.unlink(missing_ok=True)


def _over(run: RunDirectory, marker: Marker, *, keep: bool) -> Recovered:
    """A recovery that was cut when everything was in the run directory."""
    _remove(run, marker, keep=keep)
    return Recovered(spools=len(marker.spools), rebuilt=judged(read(run), gated=False))


class _Work:
    """One recovery. `settle` does all of it but removing."""

    def __init__(
        self,
        run: RunDirectory,
        file: PlanFile,
        leftovers: Sequence[Leftover],
        tally: Tally,
        missing: Sequence[str],
    ) -> None:
        """`tally`: of the rows that the run has."""
        self._run = run
        self._leftovers = leftovers
        self._plan: Plan = file.typed_plan()
        self._missing = missing
        began = [one.info.started_ns for one in leftovers if one.info.started_ns is not None]
        started_ns = file.started_ns if file.started_ns is not None else min(began, default=None)
        self._file = msgspec.structs.replace(file, started_ns=started_ns)
        self._tally = tally
        self._journals: list[Journal] = []
        self._unreadable = 0
        self._unknown: set[str] = set()
        """Sessions of arrivals of which nobody here knows whether they were played."""
        self._brought = 0

    def settle(self) -> Recovered:
        run, tally = self._run, self._tally
        for leftover in self._leftovers:
            self._append(self._rows_of(leftover))
            journal = read_journal(leftover.path, self._file.span)
            self._journals.append(journal)
            tally.epochs |= {opened.epoch for opened in journal.lines.values()}
        found = self._found()
        self._append(self._open_rows())
        source, why_not = open_source(self._plan, self._file)
        if source is not None and self._file.started_ns is not None:
            self._append(self._unplayed(source, self._file.started_ns, found.ended_ns))
        run.sync_turns()
        remarks = self._remarks(why_not)
        self._tell(found.ended_ns)
        run.write_plan(completed(self._file, self._plan, source, found, tally.rows_of, len(tally.keys), remarks))
        rebuilt = judged(read(run), gated=False)
        write(run, rebuilt)
        return Recovered(
            spools=len(self._leftovers),
            rebuilt=rebuilt,
            rows=self._brought,
            lost=self._tally.made[Outcome.LOST],
            skipped=self._tally.made[Outcome.SKIPPED],
            remarks=remarks,
        )

    def _append(self, rows: Iterator[bytes]) -> None:
        """In blocks: each is in the file as a whole or not at all."""
        block: list[bytes] = []
        for row in rows:
            block.append(row)
            if len(block) == ROWS_AT_ONCE:
                self._run.append_turn_lines(b"".join(block))
                block.clear()
        self._run.append_turn_lines(b"".join(block))

    def _rows_of(self, leftover: Leftover) -> Iterator[bytes]:
        """Lines of turns that have no record in the run."""
        for found in read_rows(leftover, self._file.span):
            if found is None:
                self._unreadable += 1
                continue
            row, line = found
            if (row.session_id, row.turn) not in self._tally.keys:
                self._tally.add(row)
                self._brought += 1
                yield line

    def _open_rows(self) -> Iterator[bytes]:
        """Turns of sessions that were taken and have no record: lost where they were sent."""
        lines: dict[LineKey, tuple[OpenTurn, Leftover]] = {}
        started: dict[LineKey, int] = {}
        for leftover, journal in zip(self._leftovers, self._journals, strict=True):
            for key, turn in journal.started.items():
                started[key] = max(turn, started.get(key, -1))
            for key, opened in journal.lines.items():
                # Of a session that changed hands the one that sent it counts.
                if key not in lines or key in journal.started:
                    lines[key] = opened, leftover
        for key, (opened, leftover) in lines.items():
            reason = leftover.why_unplayed
            for turn in range(opened.first_turn, opened.first_turn + opened.turns):
                outcome = Outcome.LOST if turn <= started.get(key, -1) else Outcome.SKIPPED
                yield from self._made_row(opened, leftover.info.worker, turn, outcome, reason)

    def _unplayed(self, source: SessionSource, started_ns: int, ended_ns: int) -> Iterator[bytes]:
        """Arrivals with a time that was over before the last worker stopped, and that none of them took."""
        known = self._tally.sessions | {name for journal in self._journals for name, _ in journal.lines}
        # Which session an arrival of a trace in Redis had is not known: as many as were begun were played.
        begun = {name for name in known if not is_arrival(name)}
        seats: dict[str, tuple[str, Reason | None]] = {}
        arrivals = self._arrivals(source, started_ns, ended_ns, begun, seats)
        for opened in unplayed_arrivals(arrivals, begun):
            worker, reason = seats[opened.session_id]
            if reason is None:
                self._unknown |= {opened.session_id} - known
                continue
            for turn in range(opened.first_turn, opened.first_turn + opened.turns):
                yield from self._made_row(opened, worker, turn, Outcome.SKIPPED, reason)

    def _arrivals(
        self,
        source: SessionSource,
        started_ns: int,
        ended_ns: int,
        begun: Container[str],
        seats: dict[str, tuple[str, Reason | None]],
    ) -> Iterator[OpenTurn]:
        """Lines of sessions that nobody began, as far as that is known; `seats` gets whose they were, had all workers
        lived, and what to say; None: somebody whose spool is not here may have played it."""
        timeline = Timeline.of(self._plan, start_ns=started_ns)
        by_place = {one.info.place: one for one in self._leftovers}
        members = max(one.info.members for one in self._leftovers)
        for stream in source.streams:
            if stream.load.mode == "closed":
                continue
            for ticket in source.tickets(stream.number):
                due_ns = started_ns + (ticket.offset_ns or 0)
                if due_ns > ended_ns:
                    break
                if not source.hands_out(ticket) and source.session_id(ticket)[0] in begun:
                    continue
                seat = by_place.get(ticket.index % members)
                worker = seat.info.worker if seat is not None else f"seat-{ticket.index % members + 1}"
                reason = self._why_unplayed(seat, known=not source.hands_out(ticket))
                for opened in lines_of(ticket, source, timeline.place_of(due_ns), due_ns):
                    seats[opened.session_id] = worker, reason
                    yield opened

    def _why_unplayed(self, seat: Leftover | None, *, known: bool) -> Reason | None:
        """Of an arrival that no record and no journal here tells of. `known`: whose it is goes by its number.

        With a spool that is missing only a worker that outlived the master answers for its seat: nobody can have taken
        that over from it, unless it was handed on before.
        """
        if not self._missing:
            return Reason.WORKER_LOST if seat is None else seat.why_unplayed
        outlived = seat is not None and seat.info.bye is not None and len(self._tally.epochs) <= 1
        return Reason.NO_LEASE if outlived and known else None

    def _made_row(self, opened: OpenTurn, worker: str, turn: int, outcome: Outcome, reason: Reason) -> Iterator[bytes]:
        if (opened.session_id, turn) in self._tally.keys:
            return
        row = unsent_record(
            opened,
            run_id=self._file.run_id,
            worker=worker,
            epoch=opened.epoch,
            channel=self._labels(opened.channel),
            outcome=outcome,
            reason=reason,
            turn=turn,
            detail=NOT_HOME if outcome is Outcome.LOST else NOT_PLAYED,
        )
        self._tally.add(row)
        yield msgspec.json.encode(row) + b"\n"

    def _labels(self, channel: str) -> ChannelLabels:
        facts = self._file.channels.get(channel)
        if facts is None:
            raise UsageError(
                f"a spool names a channel {channel!r} that the run's plan.json does not have",
                hint="was plan.json edited by hand?",
            )
        return ChannelLabels(name=channel, engine=facts.engine, dialect=facts.dialect, model=facts.model)

    def _found(self) -> Found:
        """When everything stopped, and what each worker did. Call it before rows of our own are made."""
        tally = self._tally
        stopped: dict[int, int | None] = {}
        for number, (leftover, journal) in enumerate(zip(self._leftovers, self._journals, strict=True)):
            known = (leftover.info.stopped_ns, journal.last_ns, tally.last_of.get(leftover.info.worker))
            stopped[number] = max((at for at in known if at is not None), default=leftover.info.started_ns)
        sent = [journal.last_ns for journal in self._journals if journal.last_ns is not None]
        begin_ns = self._file.started_ns if self._file.started_ns is not None else self._file.created_ns
        ends = [at for at in (*stopped.values(), *tally.last_of.values()) if at is not None]
        if tally.last_sent_ns is not None:
            sent.append(tally.last_sent_ns)
        return Found(
            leftovers=self._leftovers,
            journals=self._journals,
            stopped_ns=[stopped[number] for number in range(len(self._leftovers))],
            received=dict(tally.own_rows_of),
            sent_sessions=tally.sent_sessions,
            load_ended_ns=max([*sent, begin_ns]),
            ended_ns=max([*ends, begin_ns]),
            missing=self._missing,
        )

    def _remarks(self, why_not: str | None) -> list[str]:
        """What the run's figures lack, for its warnings: the same each time that it is asked."""
        remarks = []
        unreadable = self._unreadable + sum(journal.unreadable for journal in self._journals)
        if unreadable:
            remarks.append(f"{unreadable} lines of the workers' spools are damaged and left out")
        if why_not is not None:
            remarks.append(f"arrivals that no worker took before the crash are not counted: {why_not}")
        if self._unknown:
            remarks.append(
                f"{len(self._unknown):,} sessions that were due have no record: {', '.join(self._missing)} may have "
                "played them"
            )
        return remarks

    def _tell(self, ended_ns: int) -> None:
        made = self._tally.made
        detail = (
            f"the master was gone: the records of {len(self._leftovers)} spools were recovered, "
            f"{made[Outcome.LOST]} turns lost on their way, {made[Outcome.SKIPPED]} that nobody will play"
        )
        self.note("recovered", detail, ended_ns)

    def note(self, kind: str, detail: str, at_ns: int) -> None:
        """A row of events.jsonl, unless a recovery that was cut has written it."""
        if not self._run.has_events() or all(event.kind != kind for event in self._run.read_events()):
            self._run.append_event(EventRow(at_ns=at_ns, kind=kind, detail=detail))
