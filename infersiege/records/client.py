"""How fit the load generator was: what was seen of each worker, the verdict, and what its host can do."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ClientVerdict(StrEnum):
    """Whether figures are the server's (docs/client.md has the rule)."""

    OK = "ok"
    STRAINED = "strained"
    """Half way to a limit: the figures hold, but more load would need more workers."""
    CLIENT_BOUND = "client-bound"


class ClientSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One worker in the steady phases of a run. None: nothing was seen of it."""

    worker: str
    verdict: ClientVerdict | None
    """None: it was not watched (no report of its health in steady), and its turns alone show nothing against it."""
    reasons: tuple[str, ...] = ()
    """What was over a limit, or over half of it; empty for `ok`."""
    seconds: int = 0
    """Reports of its health whose middle lies in steady; they come once a second."""
    hub_lag_p99_ms: int | None = None
    """Of instants 10 ms apart: how long the event loop let one wait. What a stall hid is counted."""
    hub_lag_max_ms: int | None = None
    stalled_share: float | None = None
    """Of these instants, those at which it was held up for longer than 50 ms."""
    held_seconds: int = 0
    """Seconds in which the event loop was once held up for longer than half of the limit."""
    cpu_share_mean: float | None = None
    """CPU seconds per second; 1 is one core, which is all that a worker can use."""
    cpu_share_max: float | None = None
    cpu_wait_share_mean: float | None = None
    """Time in which it could have run but had no CPU, per second: other processes of its host, or a CPU limit."""
    busy_seconds: int = 0
    """Seconds in which it used, or waited for, a whole core."""
    gc_pause_max_ms: float | None = None
    open_files_max: int | None = None
    turns: int = 0
    """Due in steady."""
    lateness_p99_ms: float | None = None
    first_tokens: int = 0
    """Turns with a first token whose arrival is known to some width."""
    wide_slack: int = 0
    """Of these, those in doubt by more than 1 ms."""
    chunks: int = 0
    coalesced: int = 0
    """Chunks that shared their read with another one."""
    tokens_per_s: float | None = None
    """Output tokens of its turns, per second of steady."""
    turns_per_s: float | None = None


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process of a host can do, measured by `infersiege calibrate` against its null server."""

    host: str
    cpu: str
    cores: int
    versions: dict[str, str]
    """infersiege and Python."""
    measured_ns: int
    """Unix time."""
    quick: bool
    """Short probes and coarse steps."""
    streams: int
    """Concurrent streams of the heaviest probe whose times were right."""
    stream_tokens_per_s: int
    """Of each of these streams."""
    answer_tokens: int
    """Of each of their answers."""
    tokens_per_s: float
    """Tokens that arrived per second in that probe: the ceiling."""
    turns_per_s: float
    """Answers that ended per second in it."""
    timing_error_p99_ms: float
    """In it: how far first-token times may be from the server's own stamps."""
    coalesced_share: float
    """In it."""
    requests_per_s: float
    """Short answers in one piece, on kept connections."""
    connections_per_s: float
    """The same with a new connection for each."""
    limited_by: dict[str, str] = {}
    """`streams`, `requests`, `connections` -> what ended the climb: client, server, descriptors, time, end of scale."""
    notes: tuple[str, ...] = ()
