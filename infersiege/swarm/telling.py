"""What a worker tells of itself: a report each second, a farewell in the end."""

from __future__ import annotations

from infersiege.records import Bye, Report
from infersiege.swarm.clock import Reading
from infersiege.swarm.health import HealthMonitor
from infersiege.swarm.share import WorkerShare
from infersiege.swarm.spool import Spool


def report_of(
    share: WorkerShare, worker: str, health: HealthMonitor, clock: Reading | None, *, sequence: int
) -> Report:
    """What happened since the last one: windows and health begin anew with it."""
    return Report(
        worker=worker,
        sequence=sequence,
        windows=tuple(share.windows_since_last()),
        health=health.sample(share.offset_ns),
        open_turns=tuple(share.open_turns()),
        sessions=share.ledger.open_sessions,
        in_flight=len(share.turns.in_flight),
        planned_turns=share.ledger.planned_turns,
        closed_turns=share.ledger.closed_turns,
        started_turns=share.ledger.started_turns,
        chunks=share.turns.chunks,
        changes=share.ledger.changes,
        plays=share.ledger.plays,
        stopped=share.why_stopped,
        unscored=share.first_unscored,
        finished=share.finished(),
        clock_offset_ns=None if clock is None else clock.offset_ns,
        clock_uncertainty_ns=None if clock is None else clock.uncertainty_ns,
        epoch=share.in_play.number,
        next_index=share.in_play.next_index,
    )


def farewell_of(
    share: WorkerShare, worker: str, health: HealthMonitor, spool: Spool, *, clock_offset_ns: int, why: str
) -> Bye:
    """Everything that it has taken has its record by now. `clock_offset_ns`: as measured at the end."""
    return Bye(
        worker=worker,
        records=spool.rows_written,
        planned_turns=share.ledger.planned_turns,
        plays=dict(share.ledger.plays),
        hub_lag_p99_ns=health.hub_lag_p99_ns,
        cpu_share_max=health.cpu_share_max,
        exit_reason=why,
        spool_error=spool.disk_error,
        fault=share.fault,
        stopped=share.trouble,
        source_away_ns=share.claims.away_ns,
        clock_offset_ns=clock_offset_ns,
        changes=share.ledger.changes,
    )


def early_farewell(worker: str, why: str) -> Bye:
    """Of one that has played nothing: its seat is free again as soon as the master hears this."""
    return Bye(
        worker=worker,
        records=0,
        planned_turns=0,
        plays={},
        hub_lag_p99_ns=None,
        cpu_share_max=None,
        exit_reason=why,
        spool_error=None,
        fault=None,
        clock_offset_ns=0,
    )
