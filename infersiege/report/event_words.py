"""What happens in a run, in words."""

from __future__ import annotations

from collections.abc import Mapping

EVENT_WORDS: Mapping[str, str] = {
    "stage_started": "stage started",
    "steady_started": "steady phase started",
    "stage_ended": "stage ended",
    "started_dirty": "stage started dirty",
    "idle_unknown": "not known whether idle",
    "load_ended": "load ended",
    "worker_lost": "worker lost",
    "worker_back": "lost worker is back",
    "worker_joined": "worker joined",
    "epoch": "arrivals and users shared out anew",
    "worker_settled": "lost worker's turns accounted for",
    "worker_refused": "worker refused",
    "worker_left": "worker gone before it took part",
    "segment_refused": "records refused",
    "disk_full": "disk full",
    "budget_used_up": "budget used up",
    "clock_doubt": "worker's clock known badly",
    "clock_drift": "worker's clock drifted",
    "check_broken": "answer could not be checked",
    "recovered": "records recovered",
}
"""Every kind of event that the master writes, in words (docs/rundir.md lists the same)."""
