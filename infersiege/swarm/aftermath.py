"""After a run: what the master knows becomes facts of plan.json, and the run directory becomes a report."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infersiege.errors import InfersiegeError, RunInvalidError
from infersiege.plan.schema import Plan
from infersiege.plan.values import format_duration
from infersiege.records import TraceChanges, WorkerSummary
from infersiege.rundir import PlanFile, RunDirectory, StageFacts
from infersiege.swarm.ending import MasterResult
from infersiege.swarm.losses import Loss
from infersiege.swarm.source import SessionSource, changed_traces
from infersiege.swarm.spool import remove_spool
from infersiege.swarm.timeline import STAGE, settling_ns
from infersiege.swarm.versions import boot_id

CLOCK_DRIFT_NS = 50_000_000
"""More drift between a worker's clock and the master's is worth a warning."""


@dataclass(slots=True)
class LostShare:
    """What dead workers had taken and planned, summed up."""

    sessions: dict[str, int]
    """By scenario."""
    planned_turns: int = 0
    changes: dict[str, TraceChanges] = field(default_factory=dict)
    """How much they had not played as the trace has it, by workload."""

    def add(self, loss: Loss) -> None:
        self.planned_turns += loss.planned_turns
        for scenario, count in loss.sessions.items():
            self.sessions[scenario] = self.sessions.get(scenario, 0) + count
        _add(self.changes, loss.changes)


def stage_facts(plan: Plan, source: SessionSource, started_ns: int, ended_ns: int | None) -> StageFacts:
    """The stage on the time axis (epoch ns). `ended_ns` None: it goes on, so its end is the planned one."""
    steady_ns = started_ns + settling_ns(plan)
    planned_end_ns = None if plan.run.duration_ns is None else started_ns + plan.run.duration_ns
    ends = [end for end in (planned_end_ns, ended_ns) if end is not None]
    steady_ended_ns = max(min(ends), steady_ns) if ends else steady_ns
    arrivals = None
    if plan.load.mode != "closed":
        first_ns, last_ns = steady_ns - started_ns, steady_ended_ns - started_ns
        arrivals = source.arrivals_between(first_ns, last_ns)
    return StageFacts(
        name=STAGE,
        started_ns=started_ns,
        steady_started_ns=steady_ns,
        steady_ended_ns=steady_ended_ns,
        users=plan.load.users,
        rate=plan.load.rate,
        arrivals=arrivals,
    )


def final_facts(
    file: PlanFile, plan: Plan, source: SessionSource, result: MasterResult, lost: LostShare, invalid: list[str]
) -> PlanFile:
    """plan.json as it is kept."""
    started = sessions_started(result, lost)
    accounts = source.accounts(started, trace_changes(result, lost))
    stages: tuple[StageFacts, ...] = ()
    if result.started_ns is not None:
        ended_ns = result.load_ended_ns if result.load_ended_ns is not None else result.ended_ns
        stages = (stage_facts(plan, source, result.started_ns, ended_ns),)
    farewells = [worker.bye for worker in result.fleet.alive() if worker.bye is not None]
    return msgspec.structs.replace(
        file,
        started_ns=result.started_ns,
        ended_ns=result.ended_ns,
        interrupted=result.interrupted,
        stages=stages,
        planned_turns=lost.planned_turns + sum(bye.planned_turns for bye in farewells),
        traces=accounts,
        workers=worker_summaries(result),
        budgets=result.budgets,
        invalid=(*invalid, *_faults(result), *_unplayed(plan, result, sum(started.values()))),
        warnings=(
            *file.warnings,
            *changed_traces(accounts, plan),
            *_budget_ended(plan, result),
            *_drifts(result),
            *_spools(result),
        ),
    )


def sessions_started(result: MasterResult, lost: LostShare) -> dict[str, int]:
    """By scenario, over all workers."""
    started = dict(lost.sessions)
    for worker in result.fleet.alive():
        for scenario, count in (worker.bye.sessions_started if worker.bye else {}).items():
            started[scenario] = started.get(scenario, 0) + count
    return started


def trace_changes(result: MasterResult, lost: LostShare) -> dict[str, TraceChanges]:
    """By workload, over all workers."""
    changes = dict(lost.changes)
    for worker in result.fleet.alive():
        if worker.bye is not None:
            _add(changes, worker.bye.changes)
    return changes


def _add(total: dict[str, TraceChanges], more: Mapping[str, TraceChanges]) -> None:
    for workload, changes in more.items():
        total[workload] = total.get(workload, TraceChanges()).plus(changes)


def _faults(result: MasterResult) -> list[str]:
    return [
        f"a fault of infersiege on {worker.name}: {worker.bye.fault}; please report it"
        for worker in result.fleet.workers.values()
        if worker.bye is not None and worker.bye.fault is not None
    ]


def _unplayed(plan: Plan, result: MasterResult, started: int) -> list[str]:
    """A run that was to play so many sessions, and ended by itself with fewer."""
    asked = plan.run.stop.sessions if plan.run.stop is not None else None
    budget = any(use.ended_run for use in result.budgets)
    if asked is None or plan.run.duration_ns is not None or result.interrupted or started >= asked or budget:
        return []
    return [
        f"only {started} of {asked} sessions were played ({result.ending}); use a longer trace, or wrap = true, or ask "
        "for fewer"
    ]


def _budget_ended(plan: Plan, result: MasterResult) -> list[str]:
    """A run that its budget ended is as good as any, but shorter than what was asked for."""
    ended = next((use for use in result.budgets if use.ended_run), None)
    if ended is None or result.started_ns is None or result.load_ended_ns is None:
        return []
    after = f"after {(result.load_ended_ns - result.started_ns) / 1e9:.1f} s of load"
    duration_ns = plan.run.duration_ns
    instead = "before all sessions were played" if duration_ns is None else f"instead of {format_duration(duration_ns)}"
    return [f"{result.ending}: the run ended {after} {instead}; figures are of the steady time until then"]


def _drifts(result: MasterResult) -> list[str]:
    drifts = []
    for worker in result.fleet.workers.values():
        if worker.bye is None:
            continue
        drift_ns = worker.bye.clock_offset_ns - worker.clock_offset_ns
        if abs(drift_ns) > CLOCK_DRIFT_NS:
            drifts.append(
                f"the clock of {worker.name} drifted by {drift_ns / 1e6:.0f} ms against the master's during the run"
            )
    return drifts


def _spools(result: MasterResult) -> list[str]:
    return [
        f"{worker.name} could not keep its records on its own disk ({worker.bye.spool_error})"
        for worker in result.fleet.workers.values()
        if worker.bye is not None and worker.bye.spool_error is not None
    ]


def worker_summaries(result: MasterResult) -> tuple[WorkerSummary, ...]:
    """What is known of each worker at the end."""
    return tuple(
        WorkerSummary(
            worker=worker.name,
            host=worker.hello.host,
            pid=worker.hello.pid,
            turns=result.intake.rows_of.get(worker.name, 0),
            lost=not worker.alive,
            lost_at_ns=None if worker.lost_at_ns is None else worker.lost_at_ns + result.offset_ns,
            records_promised=worker.bye.records if worker.bye else None,
            records_received=result.intake.rows_of.get(worker.name, 0),
            hub_lag_p99_ns=worker.bye.hub_lag_p99_ns if worker.bye else None,
            cpu_share_max=worker.bye.cpu_share_max if worker.bye else None,
            clock_offset_ns=worker.clock_offset_ns,
            clock_uncertainty_ns=worker.clock_uncertainty_ns,
        )
        for worker in result.fleet.workers.values()
    )


def rescued(result: MasterResult, error: InfersiegeError) -> RunDirectory:
    """The run, moved to the temporary directory. Raises RunInvalidError where that has no room either."""
    try:
        moved = result.intake.rescue()
    except OSError as full:
        raise RunInvalidError(
            f"{error}; nor could the run be copied to {tempfile.gettempdir()}: {full.strerror or full}",
            hint="free some space; what was written is in the run directory, the rest in the workers' spools",
        ) from None
    for worker in result.fleet.workers.values():
        if worker.hello.boot_id == boot_id():
            remove_spool(Path(worker.hello.spool_dir))
    return moved
