"""After a run: what the master knows becomes facts of plan.json, and the run directory becomes a report."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from infersiege.errors import DiskError, RunInvalidError
from infersiege.plan.schema import Plan
from infersiege.plan.streams import Span, Stream, duration_of, spans_of
from infersiege.plan.values import format_duration
from infersiege.records import BudgetUse, Plays, TraceChanges, WorkerSummary
from infersiege.rundir import PlanFile, RunDirectory, StageFacts, StreamFacts
from infersiege.swarm.budget import spent_before_steady
from infersiege.swarm.clock import clock_warnings, drift_ns
from infersiege.swarm.ending import ALL_PLAYED, MasterResult
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.losses import Loss, doubt_of
from infersiege.swarm.source import SessionSource, changed_traces
from infersiege.swarm.spool import is_spool_of, remove_spool
from infersiege.swarm.versions import boot_id

MOST_OF_THE_TIME = 0.95
"""A load that ended by itself after so much of its time was as long as it was asked to be."""


@dataclass(slots=True)
class LostShare:
    """What dead workers had taken and planned, summed up."""

    plays: dict[str, Plays]
    """By workload."""
    planned_turns: int = 0
    changes: dict[str, TraceChanges] = field(default_factory=dict)
    """How much they had not played as the trace has it, by workload."""
    unplayed: dict[str, int] = field(default_factory=dict)
    """Sessions that nobody played, by worker; whoever is not in it was not settled."""
    unread: set[str] = field(default_factory=set)
    """Workers whose spools are here and could not be read."""
    doubts: list[str] = field(default_factory=list)
    """What is not certain about their turns, for people: one line for each worker."""

    def add(self, worker: str, loss: Loss) -> None:
        self.unplayed[worker] = loss.unplayed
        if loss.unread is not None:
            self.unread.add(worker)
        if (doubt := doubt_of(worker, loss)) is not None:
            self.doubts.append(doubt)
        self.planned_turns += loss.planned_turns
        _add(self.plays, loss.plays)
        _add(self.changes, loss.changes)


def stage_facts(
    plan: Plan, source: SessionSource, started_ns: int, ended_ns: int | None, dirty: Collection[str] = ()
) -> tuple[StageFacts, ...]:
    """The stages on the time axis (epoch ns), as far as they began; the first always did.

    `ended_ns` None: the load goes on, so all ends are the planned ones and no arrivals are counted: that takes a second
    for each million, while the master has workers to lead.
    """
    spans = spans_of(plan)
    if ended_ns is not None:
        spans = tuple(span for span in spans if span is spans[0] or started_ns + span.start_ns < ended_ns)
    steady_ns = []
    for span in spans:
        planned_end_ns = None if span.load_end_ns is None else started_ns + span.load_end_ns
        ends = [end for end in (planned_end_ns, ended_ns) if end is not None]
        steady_ns.append((span.steady_ns, max(min(ends) - started_ns, span.steady_ns) if ends else span.steady_ns))
    streams = source.streams
    arrivals = [None if ended_ns is None else _arrivals(stream, source, steady_ns) for stream in streams]
    return tuple(
        _stage(
            span,
            started_ns,
            steady_ns[place],
            [_asked(stream, place, counts) for stream, counts in zip(streams, arrivals, strict=True)],
            dirty=span.name in dirty,
        )
        for place, span in enumerate(spans)
    )


def _arrivals(stream: Stream, source: SessionSource, steady_ns: list[tuple[int, int]]) -> list[int] | None:
    return None if stream.load.mode == "closed" else source.arrivals_between(stream, steady_ns)


def _asked(stream: Stream, place: int, arrivals: list[int] | None) -> StreamFacts:
    asked = stream.asked[place]
    return StreamFacts(
        mode=stream.load.mode,
        scenarios=stream.scenarios,
        users=asked.users,
        rate=asked.rate,
        arrivals=None if arrivals is None else arrivals[place],
    )


def _stage(
    span: Span, started_ns: int, steady_ns: tuple[int, int], streams: list[StreamFacts], *, dirty: bool
) -> StageFacts:
    users = [stream.users for stream in streams if stream.users is not None]
    rates = [stream.rate for stream in streams if stream.rate is not None]
    arrivals = [stream.arrivals for stream in streams if stream.arrivals is not None]
    return StageFacts(
        name=span.name,
        started_ns=started_ns + span.start_ns,
        steady_started_ns=started_ns + steady_ns[0],
        steady_ended_ns=started_ns + steady_ns[1],
        users=sum(users) if users else None,
        rate=sum(rates) if rates else None,
        arrivals=sum(arrivals) if arrivals else None,
        started_dirty=dirty,
        streams=tuple(streams) if len(streams) > 1 else (),
    )


def final_facts(
    file: PlanFile, plan: Plan, source: SessionSource, result: MasterResult, lost: LostShare, invalid: list[str]
) -> PlanFile:
    """plan.json as it is kept."""
    plays = all_plays(result, lost)
    accounts = source.accounts(plays, trace_changes(result, lost))
    stages: tuple[StageFacts, ...] = ()
    if result.started_ns is not None:
        ended_ns = result.load_ended_ns if result.load_ended_ns is not None else result.ended_ns
        stages = stage_facts(plan, source, result.started_ns, ended_ns, result.dirty_stages)
    taken = sum(one.taken for one in plays.values())
    over = list(_ran_out(plan, source, result, taken))
    farewells = [worker.bye for worker in result.fleet.alive() if worker.bye is not None]
    return msgspec.structs.replace(
        file,
        started_ns=result.started_ns,
        ended_ns=result.ended_ns,
        interrupted=result.interrupted,
        stopped_early=result.stopped_early,
        stages=stages,
        planned_turns=lost.planned_turns + sum(bye.planned_turns for bye in farewells),
        traces=accounts,
        workers=worker_summaries(result, lost),
        budgets=result.budgets,
        rate_limits=result.rate_limits,
        invalid=(
            *invalid,
            *_faults(result),
            *_refused(result),
            *_stopped(result),
            *_spent_in_warmup(plan, result),
            *_unplayed(plan, result, taken),
            *_unreached(plan, result),
            *(line for line, mode in over if mode == "open"),
        ),
        warnings=(
            *file.warnings,
            *changed_traces(accounts, plan),
            *(line for line, mode in over if mode != "open"),
            *_budget_ended(plan, result),
            *_dirty(stages),
            *clock_warnings(result.fleet.workers.values()),
            *_spools(result),
            *lost.doubts,
        ),
    )


def all_plays(result: MasterResult, lost: LostShare) -> dict[str, Plays]:
    """By workload, over all workers."""
    plays = dict(lost.plays)
    for worker in result.fleet.alive():
        if worker.bye is not None:
            _add(plays, worker.bye.plays)
    return plays


def trace_changes(result: MasterResult, lost: LostShare) -> dict[str, TraceChanges]:
    """By workload, over all workers."""
    changes = dict(lost.changes)
    for worker in result.fleet.alive():
        if worker.bye is not None:
            _add(changes, worker.bye.changes)
    return changes


Sum = TypeVar("Sum", Plays, TraceChanges)


def _add(total: dict[str, Sum], more: Mapping[str, Sum]) -> None:
    for workload, one in more.items():
        total[workload] = total[workload].plus(one) if workload in total else one


def _faults(result: MasterResult) -> list[str]:
    return [
        f"a fault of infersiege on {worker.name}: {worker.bye.fault}; please report it"
        for worker in result.fleet.workers.values()
        if worker.bye is not None and worker.bye.fault is not None
    ]


def _refused(result: MasterResult) -> list[str]:
    """Workers that sent what is no segment of records."""
    reasons = []
    for worker, refused in result.intake.refused.items():
        if many := len(refused.missing):
            what, were, them = ("segment", "was", "it") if many == 1 else ("segments", "were", "them")
            said = f"{many:,} {what} of {worker}'s records {were} refused, and what was in {them} is in no figure"
            reasons.append(f"{said}: {refused.why}")
    return reasons


def _stopped(result: MasterResult) -> list[str]:
    """Why workers could make no more sessions, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for worker in result.fleet.workers.values():
        if worker.bye is not None and worker.bye.stopped is not None:
            by_reason.setdefault(worker.bye.stopped, []).append(worker.name)
    return [f"{reason} ({', '.join(names)})" for reason, names in by_reason.items()]


def _unplayed(plan: Plan, result: MasterResult, taken: int) -> list[str]:
    """A run that was to play so many sessions, and ended by itself with fewer, which nothing else explains."""
    asked = plan.run.stop.sessions if plan.run.stop is not None else None
    told = any(use.ended_run for use in result.budgets) or bool(_stopped(result)) or result.stopped_early is not None
    told = told or bool(result.fleet.ever_lost())
    if asked is None or plan.run.duration_ns is not None or result.interrupted or taken >= asked or told:
        return []
    return [
        f"only {taken} of {asked} sessions were played ({result.ending}); use a longer trace, or wrap = true, or ask "
        "for fewer"
    ]


def _ran_out(plan: Plan, source: SessionSource, result: MasterResult, taken: int) -> Iterator[tuple[str, str]]:
    """(what to say, mode) of each load whose traces were over well before the time that was asked for.

    A rate was asked for until then; users and replays have done what there was to do.
    """
    duration_ns, asked = duration_of(plan), plan.run.stop.sessions if plan.run.stop is not None else None
    if duration_ns is None or result.ending != ALL_PLAYED or result.started_ns is None or result.load_ended_ns is None:
        return
    lasted_ns = result.load_ended_ns - result.started_ns
    if lasted_ns >= MOST_OF_THE_TIME * duration_ns or (asked is not None and taken >= asked):
        return
    for stream in source.streams:
        if source.runs_out(stream):
            who = f" of {', '.join(stream.scenarios)}" if len(source.streams) > 1 else ""
            yield (
                f"all sessions{who} of the trace were played after {lasted_ns / 1e9:.1f} s instead of "
                f"{format_duration(duration_ns)}; use a longer trace, or wrap = true, or a shorter duration",
                stream.load.mode,
            )


def _unreached(plan: Plan, result: MasterResult) -> list[str]:
    """Stages of which nothing was measured, since the run had ended by itself; that a rule ended it is the rule's."""
    spans = spans_of(plan)
    if result.stopped_early is not None:
        return []
    if len(spans) == 1 or result.interrupted or result.started_ns is None or result.load_ended_ns is None:
        return []
    lasted_ns = result.load_ended_ns - result.started_ns
    missed = [span.name for span in spans if span.steady_ns >= lasted_ns]
    if not missed:
        return []
    what = f"stage {missed[0]} was" if len(missed) == 1 else f"stages {', '.join(missed)} were"
    return [f"{what} not reached: {result.ending} after {lasted_ns / 1e9:.1f} s"]


def _ended_by_budget(result: MasterResult) -> tuple[BudgetUse, int] | None:
    """The budget that ended the load, and after what time (ns)."""
    ended = next((use for use in result.budgets if use.ended_run), None)
    if ended is None or result.started_ns is None or result.load_ended_ns is None:
        return None
    return ended, result.load_ended_ns - result.started_ns


def _spent_in_warmup(plan: Plan, result: MasterResult) -> list[str]:
    """Of that run nothing was measured, and a longer duration would change nothing."""
    ended, steady_ns = _ended_by_budget(result), spans_of(plan)[0].steady_ns
    return [] if ended is None or ended[1] > steady_ns else [spent_before_steady(*ended, steady_ns)]


def _budget_ended(plan: Plan, result: MasterResult) -> list[str]:
    """A run that its budget ended is as good as any, but shorter than what was asked for."""
    ended, duration_ns = _ended_by_budget(result), duration_of(plan)
    if ended is None or _spent_in_warmup(plan, result):
        return []
    after = f"after {ended[1] / 1e9:.1f} s of load"
    instead = "before all sessions were played" if duration_ns is None else f"instead of {format_duration(duration_ns)}"
    return [f"{result.ending}: the run ended {after} {instead}; figures are of the steady time until then"]


def _dirty(stages: tuple[StageFacts, ...]) -> list[str]:
    return [
        f"stage {stage.name} started dirty: an engine still had requests of the stage before; make load.pause longer"
        for stage in stages
        if stage.started_dirty
    ]


def _spools(result: MasterResult) -> list[str]:
    return [
        f"{worker.name} could not keep its records on its own disk ({worker.bye.spool_error})"
        for worker in result.fleet.workers.values()
        if worker.bye is not None and worker.bye.spool_error is not None
    ]


def worker_summaries(result: MasterResult, shares: LostShare) -> tuple[WorkerSummary, ...]:
    """What is known of each worker at the end; one that was lost and came back counts as lost."""
    lost = result.fleet.ever_lost()
    return tuple(
        WorkerSummary(
            worker=worker.name,
            host=worker.hello.host,
            pid=worker.hello.pid,
            turns=result.intake.rows_of.get(worker.name, 0),
            lost=worker in lost,
            lost_at_ns=_first_lost_ns(worker, result.offset_ns),
            records_promised=worker.bye.records if worker.bye else None,
            records_received=result.intake.rows_of.get(worker.name, 0),
            hub_lag_p99_ns=worker.bye.hub_lag_p99_ns if worker.bye else None,
            cpu_share_max=worker.bye.cpu_share_max if worker.bye else None,
            clock_offset_ns=worker.clock_offset_ns,
            clock_uncertainty_ns=worker.clock_uncertainty_ns,
            clock_drift_ns=drift_ns(worker),
            back_at_ns=worker.away[-1][1] + result.offset_ns if worker.away and worker.alive else None,
            away=tuple((lost_ns + result.offset_ns, back_ns + result.offset_ns) for lost_ns, back_ns in worker.away),
            taken_over_ns=taken_over_ns,
            taken_over_by=taken_over_by,
            source_away_ns=worker.bye.source_away_ns if worker.bye else None,
            unplayed=shares.unplayed.get(worker.name, 0),
        )
        for worker in result.fleet.workers.values()
        for taken_over_ns, taken_over_by in [_taken_over(result, worker.name)]
    )


def _taken_over(result: MasterResult, worker: str) -> tuple[int | None, tuple[str, ...]]:
    """From when (epoch ns) and by whom a worker's share was played first when it was lost."""
    epochs = result.table.epochs if result.table is not None else ()
    for before, epoch in pairwise(epochs):
        if worker in before.members and worker not in epoch.members:
            return (result.started_ns or 0) + epoch.from_offset_ns, epoch.members
    return None, ()


def _first_lost_ns(worker: WorkerState, offset_ns: int) -> int | None:
    lost_ns = worker.away[0][0] if worker.away else worker.lost_at_ns
    return None if lost_ns is None else lost_ns + offset_ns


def rescued(result: MasterResult, lost: LostShare, run_id: str, error: DiskError) -> RunDirectory:
    """The run, moved to the temporary directory; spools of this host go where all that was in them is in it.

    Raises RunInvalidError where that has no room either.
    """
    try:
        moved = result.intake.rescue()
    except OSError as full:
        raise RunInvalidError(
            f"{error}; nor could the run be copied to {tempfile.gettempdir()}: {full.strerror or full}",
            hint="free some space; what was written is in the run directory, the rest in the workers' spools",
        ) from None
    for worker in result.fleet.workers.values():
        spool = Path(worker.hello.spool_dir)
        here = worker.hello.boot_id == boot_id() and is_spool_of(spool, run_id)
        if here and _is_home(worker, result, lost):
            remove_spool(spool)
    return moved


def _is_home(worker: WorkerState, result: MasterResult, lost: LostShare) -> bool:
    """Whether all records of a worker came here: what one that lives says it has written, or a dead one's spool had."""
    if worker.alive:
        return worker.bye is not None and worker.bye.records <= result.intake.rows_of.get(worker.name, 0)
    return worker.name in lost.unplayed and worker.name not in lost.unread
