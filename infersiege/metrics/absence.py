"""Why a run in which a worker was lost is none: when, for how long, and what became of its share."""

from __future__ import annotations

from collections.abc import Sequence

from infersiege.metrics.collect import Collector
from infersiege.records import Counts, WorkerSummary


def lost_workers(collector: Collector, counts: Counts) -> list[str]:
    """A line for each; also one that came back was away."""
    lost = [worker for worker in collector.facts.workers if worker.lost]
    reasons = [_lost(worker, collector.facts.started_ns) for worker in lost]
    if counts.lost and not lost:
        reasons.append(f"{counts.lost} turns were lost with their worker")
    return reasons


def _lost(worker: WorkerSummary, started_ns: int) -> str:
    """When, for how long, and what became of its share."""
    when = "" if worker.lost_at_ns is None else f" {(worker.lost_at_ns - started_ns) / 1e9:.1f} s into the run"
    parts = []
    if worker.taken_over_ns is not None:
        others = f"{len(worker.taken_over_by)} others" if len(worker.taken_over_by) > 4 else _and(worker.taken_over_by)
        parts.append(f"{others} took its share over {(worker.taken_over_ns - started_ns) / 1e9:.1f} s into the run")
    elif worker.back_at_ns is None:
        parts.append("its share of the load was not there")
    if worker.unplayed:
        parts.append(f"{worker.unplayed:,} of its sessions were played by nobody")
    if worker.away:
        away_s = sum(back_ns - lost_ns for lost_ns, back_ns in worker.away) / 1e9
        parts.append(f"it was away for {away_s:.1f} s" + ("" if worker.back_at_ns is not None else ", and lost again"))
    return f"worker {worker.worker} on {worker.host} was lost{when}: {'; '.join(parts)}"


def _and(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
