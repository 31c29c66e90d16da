"""Rows of a run: one turn, one second, one event."""

from __future__ import annotations

import msgspec

from infersiege.records.quality import KeptAnswer
from infersiege.records.words import ErrorClass, Outcome, Phase, Reason, StampSource, TokensFrom


class EarlierAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a turn that failed before its first token and was followed by another one, here or elsewhere."""

    channel: str
    replica: str | None = None
    error_class: ErrorClass | None = None
    cost: float | None = None
    """By tokens, in the plan's currency; None: its channel has no such price, or nobody bills the attempt."""
    cost_from: TokensFrom | None = None
    tokens: int = 0
    """Input and output tokens that it used up, by the counts that it is priced with; 0: it is not billed."""
    output_tokens: int = 0
    """Of these, output."""
    bytes_in: int = 0
    bytes_out: int = 0


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The product of a run: one row of turns.jsonl per turn of every planned session (docs/metrics.md).

    Instants in ns since the Unix epoch on the master's clock. None means "did not happen" or "not known".
    """

    run_id: str
    worker: str
    epoch: int
    session_id: str
    turn: int
    """Its number in the session, from 0: those of the main line, then those of each branch."""
    parent_turn: int | None
    """The turn after whose end it comes: the one before it in its line, or the one that a branch starts after.

    None: it begins the session, or a branch that starts with it.
    """
    scenario: str
    stage: str
    phase: Phase
    channel: str
    """That served it."""
    routed_by: str | None = None
    """Hybrid channel that chose `channel`; None: the workload named it."""
    route_reason: str | None = None
    """Why the hybrid channel chose it (`channels.routing.RouteReason`); None also for a turn that was not sent."""
    replica: str | None
    """Address (`host:port`) that served it; of a channel with `base_urls` as these name it."""
    engine: str
    dialect: str
    model_asked: str
    model_answered: str | None = None
    request_id: str
    """Sent as `x-request-id`."""

    due_ns: int
    attempt_ns: int | None = None
    """Connecting, or the reuse of a connection, began (of the first attempt: what waits between two is no lateness)."""
    sent_ns: int | None = None
    """First byte written (of the attempt that was answered)."""
    sent_end_ns: int | None = None
    """Last byte written."""
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    first_token_slack_ns: int | None = None
    """Width of the doubt of first_token_ns: it may have arrived up to this much earlier."""
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    closed_ns: int | None = None
    connect_duration_ns: int | None = None
    """Name look-up and TCP connect; None on a reused connection."""
    tls_duration_ns: int | None = None
    reused_connection: bool | None = None
    attempts: int = 0
    """Requests that were sent or tried for this turn, on all channels; all other figures are the last one's."""
    earlier: tuple[EarlierAttempt, ...] = ()
    """What came of the attempts before the last one, in their order; each is billed to its own channel."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    """Prompt tokens that were written to a cache, where the server tells."""
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    first_chunk_tokens: int | None = None
    tokens_from: TokensFrom | None = None
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int | None = None
    chunks: int = 0
    """Chunks with generated text."""
    coalesced: int = 0
    """Of these, chunks that shared their read with another one and so give no gap."""
    chunks_by_second: dict[int, int] = {}
    """Unix second -> content chunks that arrived in it."""
    gaps: dict[int, int] = {}
    """Inter-chunk gaps as a sparse histogram (metrics.histogram bucket -> count)."""
    keepalives: int = 0
    """Comment lines and pings."""

    finish_reason: str | None = None
    outcome: Outcome
    reason: Reason | None = None
    error_class: ErrorClass | None = None
    error_detail: str | None = None
    """Redacted, at most 300 characters."""
    flags: tuple[str, ...] = ()
    """Oddities that do not fail a turn: no_done, unterminated_event, burst, length, usage_missing …

    Of turns with several attempts: retried, failed_over, after_ERRORCLASS (of the first attempt), retry_cut (the load
    ended before the next one). Of a session that a hybrid channel sent elsewhere than its last turn: moved. Of a
    prompt that was cut to the model's context: clipped.
    """
    http_status: int | None = None
    retry_after_ns: int | None = None
    quota_left: dict[str, int] = {}
    """What the account may still ask for (`requests`, `tokens` …), as the answer's rate-limit headers told."""
    bytes_in: int = 0
    bytes_out: int = 0
    stamp_source: StampSource | None = None
    clock_step: bool = False
    server_ttft_ns: int | None = None
    cost: float | None = None
    """By tokens, in the plan's currency; None: its channel has no such price, or nobody bills the turn.

    Of the last attempt; those before it have their own in `earlier`.
    """
    cost_from: TokensFrom | None = None
    """Where the token counts behind the cost come from; None: there is none."""
    quality: str | None = None
    answer: KeptAnswer | None = None
    """Of a checked prompt whose answer failed or could not be checked, where the plan keeps such answers."""


class WindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """One second of one (scenario, channel, stage, phase): a row of windows.jsonl; also what a worker reports.

    Counts of turns by the second in which the thing happened. Sparse histograms have metrics.histogram buckets
    of nanoseconds. Rows of several workers merge by adding every count and every bucket.
    """

    second: int
    """Unix second."""
    scenario: str
    channel: str
    stage: str
    phase: Phase
    due: int = 0
    sent: int = 0
    ok: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    chunks: int = 0
    output_tokens: int = 0
    """Of turns that ended in this second, from usage."""
    tokens: int = 0
    """Output tokens that arrived in this second: those of a turn are spread over its chunks, in whole tokens."""
    in_flight: int = 0
    """At the end of the second."""
    users: int = 0
    """Sessions alive at the end of the second."""
    good: int | None = None
    """Of the turns that ended in this second, those that met every per-request SLO; None: the plan has no such rule."""
    errors: dict[str, int] = {}
    """error_class -> count."""
    ttft: dict[int, int] = {}
    ttft_from_due: dict[int, int] = {}
    tpot: dict[int, int] = {}
    e2e: dict[int, int] = {}
    e2e_from_due: dict[int, int] = {}
    lateness: dict[int, int] = {}


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker did in one second."""

    second: int
    worker: str
    cpu_share: float
    """CPU seconds per second of the worker process (1.0 = one core)."""
    hub_lag_max_ns: int
    """Longest time in which the event loop did not poll."""
    gc_pause_max_ns: int
    rss_bytes: int | None
    """None, also below: the worker had no descriptor left to look."""
    open_files: int | None
    """Files and sockets: nearly all of them are sockets."""
    begun_ns: int | None = None
    """What is told is of [begun_ns, ended_ns) on the master's clock; None, also below: an older infersiege wrote it."""
    ended_ns: int | None = None
    hub_lag: dict[int, int] = {}
    """Event loop, looked at each 10 ms: how late a timer came, in whole ms (metrics.histogram bucket -> looks).

    The looks that a stall kept from happening are counted as well: one of 100 ms is ten looks, 100, 90, 80 … ms late.
    """
    cpu_wait_share: float | None = None
    """Seconds per second in which the worker could have run but had no CPU; None: the kernel does not tell."""
    gc_pause_ns: int = 0
    """All pauses together."""


class SeriesRow(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a GPU's or an engine's series: a row of telemetry/gpu.jsonl and telemetry/engine.jsonl.

    `infersiege_agents.measurements` has every tag and field with its unit. A field that was not measured is not there.
    """

    at_ns: int
    """On the clock of the host that measured it."""
    measurement: str
    tags: dict[str, str]
    fields: dict[str, float | str]


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of events.jsonl: stage changes, worker lost, clock step, interrupt, budget, disk full."""

    at_ns: int
    kind: str
    detail: str
    worker: str | None = None
    stage: str | None = None
