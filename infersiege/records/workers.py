"""What a run says of each of its workers."""

from __future__ import annotations

import msgspec


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    host: str
    pid: int
    turns: int
    lost: bool
    lost_at_ns: int | None
    records_promised: int | None
    """What its farewell said it had written; None: no farewell."""
    records_received: int
    hub_lag_p99_ns: int | None
    cpu_share_max: float | None
    clock_offset_ns: int
    """Master's monotonic clock minus its own at the start; its instants have it added."""
    clock_uncertainty_ns: int
    """So far that offset may have been from the true one."""
    clock_drift_ns: int | None = None
    """How much the offset had changed by the end, or by the last report of a worker that was lost; None: not known."""
    back_at_ns: int | None = None
    """When it was back for good; None: it was never lost, or did not come back."""
    away: tuple[tuple[int, int], ...] = ()
    """From when to when it was lost, and came back."""
    taken_over_ns: int | None = None
    """From then on others played its share; None: it was never lost, or nobody did."""
    taken_over_by: tuple[str, ...] = ()
    """Those who were there then."""
    source_away_ns: int | None = None
    """Longest that Redis, which hands out a trace's sessions, gave it no answer; None: it asks none, or not known."""
    unplayed: int = 0
    """Sessions that were its own, and that nobody played."""
