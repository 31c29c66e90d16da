"""plan.json of a run whose master is gone: the facts that only spools and rows can tell."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from infersiege.doctor import unexamined
from infersiege.errors import InfersiegeError, UsageError
from infersiege.plan.load import plan_from_json
from infersiege.plan.schema import Plan
from infersiege.records import Outcome, Plays, TraceChanges, TurnRecord, WorkerSummary
from infersiege.rundir import EVENTS, PLAN, TURNS, PlanFile, RunDirectory, StageFacts
from infersiege.swarm.aftermath import stage_facts
from infersiege.swarm.budget import limits_of
from infersiege.swarm.ledger import workload_key
from infersiege.swarm.leftovers import Journal, Key, Leftover
from infersiege.swarm.losses import plays_of
from infersiege.swarm.source import SessionSource, changed_traces
from infersiege.swarm.untrusted import read_own

ENDED_BEFORE = (
    "the master ended before the run did (crash, kill, power, full disk): what its workers still held was recovered "
    "from their spools; run it again"
)
FROM_SPOOLS = (
    "this run directory was made from the spools of its workers alone: records that its master had taken already are "
    "lost with its host"
)


BY_RECOVERY = "written by infersiege recover: "
"""How the detail of each row begins that no worker wrote."""


class Tally:
    """What the run's rows are, one pass."""

    def __init__(self) -> None:
        self.keys: set[Key] = set()
        self.sessions: set[str] = set()
        self.rows_of: Counter[str] = Counter()
        """All rows, by worker."""
        self.epochs: set[int] = set()
        """Of those that workers wrote, and of the sessions that they took."""
        self.own_rows_of: Counter[str] = Counter()
        """Of these, those that the worker wrote."""
        self.last_of: dict[str, int] = {}
        """Last instant (epoch) at which a worker did anything."""
        self.last_sent_ns: int | None = None
        self.made: Counter[Outcome] = Counter()
        """The others: `lost` and `skipped` of a recovery."""
        self.sent_sessions: dict[tuple[str, str, str], dict[str, bool]] = {}
        """(worker, scenario, channel that the workload names) -> session -> whether any turn was sent."""

    def add(self, row: TurnRecord) -> None:
        self.keys.add((row.session_id, row.turn))
        self.sessions.add(row.session_id)
        self.rows_of[row.worker] += 1
        if row.error_detail is not None and row.error_detail.startswith(BY_RECOVERY):
            self.made[row.outcome] += 1
            return
        self.own_rows_of[row.worker] += 1
        self.epochs.add(row.epoch)
        place = (row.worker, row.scenario, row.routed_by or row.channel)
        sessions = self.sent_sessions.setdefault(place, {})
        sessions[row.session_id] = sessions.get(row.session_id, False) or row.attempt_ns is not None
        for at_ns in (row.attempt_ns, row.closed_ns):
            if at_ns is not None:
                self.last_of[row.worker] = max(at_ns, self.last_of.get(row.worker, at_ns))
        if row.attempt_ns is not None:
            self.last_sent_ns = max(row.attempt_ns, self.last_sent_ns or row.attempt_ns)


@dataclass(frozen=True, slots=True)
class Found:
    """What spools and rows tell. Instants in epoch ns on the master's clock."""

    leftovers: Sequence[Leftover]
    journals: Sequence[Journal]
    """Of each."""
    stopped_ns: Sequence[int | None]
    """When each was last seen to do anything."""
    received: Mapping[str, int]
    """Records that a worker wrote and that are there, by worker."""
    sent_sessions: Mapping[tuple[str, str, str], Mapping[str, bool]]
    """(worker, scenario, channel) -> session -> whether any of its turns that have a record was sent."""
    load_ended_ns: int
    """When the last turn was sent."""
    ended_ns: int
    """When the last worker stopped."""
    missing: Sequence[str]
    """Workers whose spool is not there."""


def missing_workers(run: RunDirectory, file: PlanFile, leftovers: Sequence[Leftover], tally: Tally) -> list[str]:
    """Workers that took part and whose spool is not here, as far as rows, the workers' health and the plan tell."""
    here = {one.info.worker for one in leftovers}
    there = set(tally.own_rows_of)
    with contextlib.suppress(InfersiegeError):  # damaged: only the rows tell
        there |= {row.worker for row in run.read_health()}
    missing = sorted(there - here)
    asked = max([file.workers_asked or 0, *(one.info.members for one in leftovers)])
    unknown = asked - len(there | here)
    return [*missing, *([f"{unknown} more of {asked} workers"] if unknown > 0 else [])]


def check_spools(
    run: RunDirectory,
    file: PlanFile,
    leftovers: Sequence[Leftover],
    missing: Sequence[str],
    damaged: Sequence[Path] = (),
) -> None:
    """Whether these are all the spools of this run, and nobody writes to them. Raises UsageError.

    `missing`: workers without a spool, which can't be done without; `damaged`: spools that may be theirs.
    """
    low_ns, high_ns = file.span
    for one in leftovers:
        if one.info.run_id != file.run_id:
            raise UsageError(
                f"{one.path}: is a spool of run {one.info.run_id} ({one.info.run_name}), not of {file.run_id} "
                f"({run.path})",
                hint="`infersiege recover` lists the spools of this host with their runs",
            )
        if one.in_use():
            raise UsageError(
                f"{one.path}: {one.info.worker} (pid {one.info.pid}) still lives and writes to it",
                hint="a worker ends 15 s after its master at the latest: try again then",
            )
        for at_ns in (one.info.written_ns, one.info.started_ns, one.info.stopped_ns):
            if at_ns is not None and not low_ns <= at_ns <= high_ns:
                raise UsageError(
                    f"{one.path}: spool.json has the instant {at_ns}, which is more than a day from the run",
                    hint="it was damaged: set it right by the spools of other workers",
                )
    if missing:
        hint = "copy it from that worker's host (INFERSIEGE_SPOOL, or the temporary directory there) and name it, too"
        if damaged:
            hint = (
                f"spool.json can't be read in {', '.join(map(str, damaged))}, which may be it: mend that file (it is "
                "like those of other workers, and names run, worker and seat), or copy the spool again"
            )
        raise UsageError(
            f"{run.path}: no spool of {', '.join(missing)}, which took part in the run",
            hint=f"{hint}; with --partial what it had not sent home is given up",
        )


def open_source(plan: Plan, file: PlanFile) -> tuple[SessionSource | None, str | None]:
    """All sessions of the run; or None and why its traces can't be used here."""
    try:
        source = SessionSource(plan, place=0, members=1)
        hashes = source.trace_hashes()
    except InfersiegeError as error:
        return None, str(error)
    changed = [name for name, value in file.trace_hashes.items() if hashes.get(name) != value]
    if changed:
        return None, f"the trace of {', '.join(changed)} is another one now"
    return source, None


def completed(
    file: PlanFile,
    plan: Plan,
    source: SessionSource | None,
    found: Found,
    rows_of: Mapping[str, int],
    planned_turns: int,
    remarks: Sequence[str],
) -> PlanFile:
    """plan.json as it is kept. `rows_of`: all rows by worker, those that stand for lost turns included."""
    plays, changes = _plays(found), _changes(found)
    accounts = file.traces
    stages = _cut(file.stages, found.load_ended_ns)
    warnings = [*file.warnings, *remarks]
    if source is not None:
        accounts = source.accounts(plays, changes)
        warnings += changed_traces(accounts, plan)
        if file.started_ns is not None:
            stages = stage_facts(plan, source, file.started_ns, found.load_ended_ns)
    if limits_of(plan):
        warnings.append("what was used of the plan's budgets is not known: its master kept the account")
    invalid = [ENDED_BEFORE]
    if found.missing:
        names = ", ".join(found.missing)
        invalid.append(
            f"no spool of {names} was there: what it still held, and what it had not begun, is in no record; so how "
            "much of the load was there is not known"
        )
    if file.started_ns is None:
        invalid.append("the load never began")
    return msgspec.structs.replace(
        file,
        ended_ns=found.ended_ns,
        stages=stages,
        planned_turns=planned_turns,
        traces=accounts,
        workers=_workers(found, rows_of),
        missing_workers=tuple(found.missing),
        invalid=tuple(dict.fromkeys((*file.invalid, *invalid))),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _cut(stages: Sequence[StageFacts], ended_ns: int) -> tuple[StageFacts, ...]:
    """Those that began, as long as they lasted; how many arrivals they had is not known without the traces."""
    return tuple(
        msgspec.structs.replace(
            stage, steady_ended_ns=max(min(stage.steady_ended_ns, ended_ns), stage.steady_started_ns)
        )
        for stage in stages
        if stage.started_ns < ended_ns or stage is stages[0]
    )


def _plays(found: Found) -> dict[str, Plays]:
    """By `workload_key`: of each worker from its farewell, else from its journal, else from its records."""
    total: dict[str, Plays] = {}

    def add(more: Mapping[str, Plays]) -> None:
        for key, one in more.items():
            total[key] = total.get(key, Plays()).plus(one)

    for leftover, journal in zip(found.leftovers, found.journals, strict=True):
        bye = leftover.info.bye
        add(bye.plays if bye is not None else plays_of(journal.lines, journal.started))
    spooled = {leftover.info.worker for leftover in found.leftovers}
    for (worker, scenario, channel), sessions in found.sent_sessions.items():
        if worker not in spooled:
            add({workload_key(scenario, channel): Plays(taken=len(sessions), sent=sum(sessions.values()))})
    return total


def _changes(found: Found) -> dict[str, TraceChanges]:
    total: dict[str, TraceChanges] = {}
    for leftover in found.leftovers:
        for key, one in (leftover.info.bye.changes if leftover.info.bye is not None else {}).items():
            total[key] = total.get(key, TraceChanges()).plus(one)
    return total


def _workers(found: Found, rows_of: Mapping[str, int]) -> tuple[WorkerSummary, ...]:
    """Those with a spool, by their seats. A worker of which there are several spools was started again."""
    summaries = {}
    for leftover, stopped_ns in sorted(
        zip(found.leftovers, found.stopped_ns, strict=True), key=lambda one: (one[0].info.place, one[0].info.written_ns)
    ):
        info = leftover.info
        summaries[info.worker] = WorkerSummary(
            worker=info.worker,
            host=info.host,
            pid=info.pid,
            turns=rows_of.get(info.worker, 0),
            lost=info.bye is None,
            lost_at_ns=stopped_ns if info.bye is None else None,
            records_promised=info.bye.records if info.bye is not None else None,
            records_received=found.received.get(info.worker, 0),
            hub_lag_p99_ns=info.bye.hub_lag_p99_ns if info.bye is not None else None,
            cpu_share_max=info.bye.cpu_share_max if info.bye is not None else None,
            clock_offset_ns=info.clock_offset_ns,
            clock_uncertainty_ns=info.clock_uncertainty_ns,
        )
    return tuple(summaries.values())


def plan_of_spools(leftovers: Sequence[Leftover]) -> PlanFile:
    """plan.json of a run whose directory is gone, from what its workers were given.

    Raises UsageError when the spools are of several runs, or when none of them holds the plan.
    """
    runs = {one.info.run_id: one.info.run_name for one in leftovers}
    if len(runs) != 1:
        listed = ", ".join(f"{run_id} ({name})" for run_id, name in runs.items())
        raise UsageError(f"these spools are of {len(runs)} runs: {listed}", hint="recover one after the other")
    info = leftovers[0].info
    for one in leftovers:
        try:
            plan = plan_from_json(read_own(one.plan))
        except (OSError, InfersiegeError):
            continue
        break
    else:
        raise UsageError(
            f"none of the spools of run {info.run_id} holds its plan (plan.json)",
            hint="without the run directory and without the plan nobody can say what these records are of",
        )
    return PlanFile(
        run_id=info.run_id,
        name=info.run_name,
        created_ns=min(one.info.written_ns for one in leftovers),
        started_ns=min((at for one in leftovers if (at := one.info.started_ns) is not None), default=None),
        nonce=plan.run.nonce or "",
        plan_hash=info.plan_hash,
        plan=msgspec.to_builtins(plan),
        versions=info.versions,
        channels=unexamined(plan),
        trace_hashes=info.trace_hashes,
        workers_asked=max(one.info.members for one in leftovers),
        invalid=(FROM_SPOOLS,),
    )


def begin(out: Path, leftovers: Sequence[Leftover]) -> RunDirectory:
    """A run directory for spools whose own one is lost; the same again when that was begun before.

    Raises UsageError when spools are missing, of several runs or without a plan, or when the directory is in the way.
    """
    if not leftovers:
        raise UsageError("--out needs the spools of the run", hint="infersiege recover --out DIR SPOOL...")
    file = plan_of_spools(leftovers)
    there = {path.name: path.stat().st_size for path in out.iterdir()} if out.is_dir() else {}
    if PLAN in there and RunDirectory.open(out).read_plan().run_id == file.run_id:
        return RunDirectory.open(out)
    if there and set(there) <= {TURNS, EVENTS} and not any(there.values()):
        run = RunDirectory(out)  # begun, and killed before it had a plan
    else:
        run = RunDirectory.create(out, name=file.name, now_ns=file.created_ns)
    run.write_plan(file)
    return run
