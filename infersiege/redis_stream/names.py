"""What things are called in Redis."""

from __future__ import annotations

PREFIX = "infersiege"
LAYOUT = 2
"""Of what `load` writes: entries with the number of their session as id, times of arrival beside them."""
RUN_S = 600
"""So long after its last sign of life a run is over for everybody else."""


def keys(name: str) -> tuple[str, str]:
    """(hash of the trace, stream of its sessions)."""
    return f"{PREFIX}:{name}:trace", f"{PREFIX}:{name}:sessions"


def run_key(name: str, run_id: str) -> str:
    """Says that a run plays a trace, as long as it is there."""
    return f"{PREFIX}:{name}:run:{run_id}"


def entry_id(index: int) -> str:
    """Of a session in the stream; 0-0 can't be one."""
    return f"{index + 1}-0"


def index_of(entry: bytes | str) -> int:
    """The inverse."""
    text = entry.decode() if isinstance(entry, bytes) else entry
    return int(text.partition("-")[0]) - 1


def group_of(run_id: str, workload: int, repeat: int) -> str:
    """Consumer group of one workload of a run, anew for each time that the trace wraps."""
    return f"{run_id}:{workload}:{repeat}"


def run_of(group: str) -> str:
    """The run whose group it is."""
    return group.partition(":")[0]
