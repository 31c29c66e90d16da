"""What a master is told, and what it knows when a run is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from infersiege.records import BudgetUse, Drain, RateUse, Reason, StoppedEarly
from infersiege.schedule.epochs import Table
from infersiege.swarm.fleet import Fleet, WorkerState
from infersiege.swarm.intake import Intake

ALL_PLAYED = "all sessions were played"
"""Why a load ended of which nothing more could come."""


@dataclass(frozen=True, slots=True)
class MasterOptions:
    local_workers: int
    """Started on this host."""
    expected_workers: int
    """In all."""
    host: str
    port: int
    """0: any free one."""
    secret: str
    sent_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Channel -> when it was sent requests before the load (monotonic): its rate limit counts them."""


@dataclass(slots=True)
class Ending:
    """Why and when the load stopped."""

    why: str
    reason: Reason
    at_ns: int
    drain_ns: int
    load_ended_ns: int | None = None
    """Until when the load was the one that was asked for, where that is a little before."""

    def drain(self, drain_ns: int, reason: Reason, epoch: int) -> Drain:
        """What workers are told: `epoch` is in force, and open turns have so long."""
        return Drain(duration_ns=drain_ns, reason=reason, epoch=epoch, ended_ns=self.at_ns)


def why_stopped(alive: Iterable[WorkerState]) -> str | None:
    """Why one of the workers makes no more sessions, although there are more; None: all go on, or have played all."""
    return next((one.report.stopped for one in alive if one.report is not None and one.report.stopped), None)


@dataclass(slots=True)
class MasterResult:
    """What only the master knows of the run. Instants in epoch ns."""

    started_ns: int | None
    load_ended_ns: int | None
    ended_ns: int
    offset_ns: int
    """Epoch minus the master's monotonic clock."""
    interrupted: bool
    ending: str
    budgets: tuple[BudgetUse, ...]
    rate_limits: tuple[RateUse, ...]
    dirty_stages: frozenset[str]
    """Stages at whose start an engine was not idle."""
    fleet: Fleet
    intake: Intake
    table: Table | None
    """The epochs; None: the load never began."""
    stopped_early: StoppedEarly | None = None
    """By a rule with `abort`; None: it was not."""
