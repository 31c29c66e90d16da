"""What a run is made of: sessions and turns, the record of one turn, and every row and message that leaves a process.

All types are frozen. Instants are integer nanoseconds since the Unix epoch on the master's clock, durations carry
`_duration_ns`, absent is None and never 0. The rows are published as JSON Schema in docs/schema/.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

SCHEMA_VERSION = 1
"""Version of the run directory's rows. A reader refuses a newer one."""

Message: TypeAlias = dict[str, Any]
"""One chat message in OpenAI's form, carried verbatim."""


class Outcome(StrEnum):
    """How a turn ended. Exactly one per planned turn, whatever happens."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Cut by us: the run's end, its budget."""
    LOST = "lost"
    """Its worker died; written by the master."""
    SKIPPED = "skipped"
    """Never sent; `reason` says why."""


class Phase(StrEnum):
    """Part of a stage. A turn belongs to the phase in which it was due."""

    WARMUP = "warmup"
    STEADY = "steady"
    DRAIN = "drain"


class ErrorClass(StrEnum):
    """Why a turn failed. Told apart by status, body and stream."""

    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"
    TIMEOUT_IDLE = "timeout_idle"
    TIMEOUT_TOTAL = "timeout_total"
    STALE_CONNECTION = "stale_connection"
    RATE_LIMIT = "rate_limit"
    OVERLOAD = "overload"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    CONTEXT_LENGTH = "context_length"
    BAD_REQUEST = "bad_request"
    SERVER = "server"
    STREAM_ERROR = "stream_error"
    TRUNCATED = "truncated"
    NO_OUTPUT = "no_output"
    PARSE = "parse"
    CONTENT_FILTER = "content_filter"
    CLIENT_RESOURCE = "client_resource"
    CLIENT_LIMIT = "client_limit"
    QUALITY = "quality"


class Reason(StrEnum):
    """Why a turn was skipped, cancelled or lost."""

    RUN_END = "run_end"
    """The duration was over before it was due or sent, or the drain was over before it ended."""
    INTERRUPTED = "interrupted"
    """Ctrl-C or SIGTERM."""
    AFTER_FAILURE = "after_failure"
    """An earlier turn of its session failed, so its history does not exist."""
    LATE_DROPPED = "late_dropped"
    """`late = "drop"`: its arrival passed while the worker was behind."""
    MAX_IN_FLIGHT = "max_in_flight"
    """`late = "drop"` with the cap reached."""
    WORKER_LOST = "worker_lost"
    NO_LEASE = "no_lease"
    """The worker lost its master."""
    BUDGET = "budget"
    TOO_LONG = "too_long"
    """Over the context limit, by choice of the plan."""
    INTERNAL = "internal"
    """A fault of ours before it could be sent; error_detail has it."""


class StampSource(StrEnum):
    KERNEL = "kernel"
    USER = "user"


class TokensFrom(StrEnum):
    USAGE = "usage"
    TOKENIZER = "tokenizer"
    ESTIMATE = "estimate"


# ---------------------------------------------------------------------------------------------------- trace side


class BlockText(msgspec.Struct, frozen=True, kw_only=True):
    """Text that is known only by length and identity (hash traces, length-only traces, the built-in workloads).

    The same (scope, id) is the same text on every worker and run; different ids differ from their first word.
    """

    scope: str
    """Ids of two scopes are never the same text."""
    ids: tuple[int, ...]
    tokens: tuple[int, ...]
    """Wanted tokens of each id, same length as `ids`."""
    language: str = "en"
    """`en` or `zh`."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session and, where recorded, its answer.

    The request's history is: what the session had (unless `replaces_history`), then `messages`. A message whose
    `content` is to be synthesised has its text in `texts` at the same index, None elsewhere.
    """

    messages: tuple[Message, ...]
    """New messages since the previous answer: system, user or tool messages."""
    texts: tuple[BlockText | None, ...] = ()
    """Empty, or one entry per message: what to write into its `content`."""
    replaces_history: bool = False
    """The messages are the whole request (cumulative rows, compaction), sent as given."""
    delay_ns: int = 0
    """Think or tool time, from the end of the previous answer; 0 for a first turn."""
    recorded_answer: tuple[Message, ...] = ()
    """What the trace says was answered (assistant messages); put into the history in `recorded` mode."""
    answer_text: BlockText | None = None
    """The recorded answer of a length-only trace."""
    asked_prompt_tokens: int | None = None
    """What the trace says the whole request holds."""
    asked_output_tokens: int | None = None
    """What the trace says was answered; becomes `max_tokens`."""
    tools: tuple[dict[str, Any], ...] | None = None
    """Tool definitions of this request, verbatim; None: the session's."""
    extra: dict[str, Any] = {}
    """Other request fields that the trace carries (`tool_choice`, `response_format` …), verbatim."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One user's or one agent's ordered turns."""

    session_id: str
    turns: tuple[Turn, ...]
    arrival_ns: int | None = None
    """When the trace says it started, from the trace's first arrival; None: the trace has no times."""
    tools: tuple[dict[str, Any], ...] | None = None
    shares_prefix: bool = False
    """The trace means prefixes to be shared between sessions: the salt is then the same for the whole run."""
    source_line: int | None = None
    """Line or index in the trace file."""


# ---------------------------------------------------------------------------------------------------- run side


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The product of a run: one row of turns.jsonl per turn of every planned session (docs/metrics.md).

    Instants in ns since the Unix epoch on the master's clock. None means "did not happen" or "not known".
    """

    run_id: str
    worker: str
    epoch: int
    session_id: str
    turn: int
    """0-based place in the session."""
    parent_turn: int | None
    scenario: str
    stage: str
    phase: Phase
    channel: str
    replica: str | None
    """Address (`host:port`) that served it."""
    engine: str
    dialect: str
    model_asked: str
    model_answered: str | None = None
    request_id: str
    """Sent as `x-request-id`."""

    due_ns: int
    attempt_ns: int | None = None
    """Connecting, or the reuse of a connection, began."""
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

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
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
    """Oddities that do not fail a turn: no_done, unterminated_event, burst, length, usage_missing …"""
    http_status: int | None = None
    retry_after_ns: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    stamp_source: StampSource | None = None
    clock_step: bool = False
    server_ttft_ns: int | None = None
    cost: float | None = None
    quality: str | None = None


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
    in_flight: int = 0
    """At the end of the second."""
    users: int = 0
    """Sessions alive at the end of the second."""
    errors: dict[str, int] = {}
    """error_class -> count."""
    ttft: dict[int, int] = {}
    tpot: dict[int, int] = {}
    e2e: dict[int, int] = {}
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
    rss_bytes: int
    open_sockets: int


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of events.jsonl: stage changes, worker lost, clock step, interrupt, disk full."""

    at_ns: int
    kind: str
    detail: str
    worker: str | None = None
    stage: str | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Conservation: planned = started + skipped; started = ok + failed + cancelled + lost."""

    planned: int
    started: int
    ok: int
    failed: int
    cancelled: int
    lost: int
    skipped: int

    def conserved(self) -> bool:
        return (
            self.planned == self.started + self.skipped
            and self.started == self.ok + self.failed + self.cancelled + self.lost
        )


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A metric over ok turns of phase steady, in the metric's unit (`METRICS[name].unit`).

    Percentiles are None below their sample floor (p99: 100, p99.9: 1000) and where too many turns were cancelled.
    """

    unit: str
    n: int
    missing: int
    """Turns to which the metric applies but that did not give it; never entered as 0."""
    failed_share: float | None
    """Failed turns / (ok + failed) of the same group: stands beside every percentile."""
    cancelled_share: float | None
    mean: float | None
    min: float | None
    max: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p99_9: float | None


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One cut of the run: everything, or one scenario, channel or stage (None = all)."""

    scenario: str | None
    channel: str | None
    stage: str | None
    emulated: bool
    counts: Counts
    """Of steady turns."""
    steady_duration_ns: int
    distributions: dict[str, Distribution]
    """By metric name: ttft, ttfa, tpot, gap, e2e, ttft_from_due, e2e_from_due, lateness, upload, connect …"""
    rates: dict[str, float | None]
    """asked, sent, finished (turns/s), throughput (output tokens/s), goodput (turns/s), error_share, cache_share …"""
    prompt_tokens: int | None
    output_tokens: int | None
    errors: dict[str, int]
    finish_reasons: dict[str, int]
    in_flight_mean: float | None
    in_flight_max: int | None
    notes: tuple[str, ...]


class TraceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in = sessions sent + skipped by reason + not started, per workload."""

    scenario: str
    trace: str
    format: str
    sha256: str | None
    rows: int | None
    sessions: int | None
    """None: a generator without end."""
    sessions_started: int
    not_started: int | None
    skipped: dict[str, int]
    repeat_factor: float | None
    """How often a finite trace was played on average; above 1 it is (also) a cache test."""


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NO_DATA = "no data"
    INVALID = "invalid"


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """One rule held against the run."""

    name: str
    """Such as `agent: ttft p99 <= 800 ms`."""
    metric: str
    stat: str
    scenario: str | None
    channel: str | None
    stage: str | None
    n: int | None
    value: float | None
    unit: str
    at_most: float | None
    at_least: float | None
    verdict: Verdict
    detail: str
    severity: str = "fail"
    built_in: bool = False


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
    clock_uncertainty_ns: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """summary.json: everything that gate, compare and report need beside the turns (docs/metrics.md)."""

    schema_version: int
    run_id: str
    name: str
    emulated: bool
    """A target was infersiege's own emulator: figures say nothing about hardware."""
    started_ns: int
    ended_ns: int
    interrupted: bool
    counts: Counts
    """Of all turns, all phases."""
    groups: tuple[GroupSummary, ...]
    """The first is the whole run; then each scenario, channel and stage where there is more than one."""
    traces: tuple[TraceAccount, ...]
    workers: tuple[WorkerSummary, ...]
    invalid: tuple[str, ...]
    """Reasons why the figures can't be trusted; empty: valid."""
    warnings: tuple[str, ...]
    tokens_from: dict[str, int]
    """usage/tokenizer/estimate -> turns."""
    stamp_source: dict[str, int]
    rules: tuple[RuleResult, ...] = ()
    verdict: Verdict | None = None
    exit_code: int = 0


# ---------------------------------------------------------------------------------------------------- messages
# Between master and workers; sent as msgpack of these structs inside Locust's custom messages `ifs.<name>`.


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master, first. A mismatch of versions is refused."""

    worker: str
    host: str
    pid: int
    boot_id: str
    """The same boot id means the same monotonic clock."""
    versions: dict[str, str]
    spool_dir: str


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker: the resolved plan and this worker's place."""

    run_id: str
    epoch: int
    place: int
    members: int
    plan: bytes
    plan_hash: str
    trace_hashes: dict[str, str]
    offset_ns: int
    """Master's wall clock minus the master's monotonic clock: one constant per run."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker (mismatch), or worker -> master (it cannot take part): the reason."""

    worker: str
    message: str
    hint: str | None
    exit_code: int


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    worker: str
    plan_hash: str
    trace_hashes: dict[str, str]
    trace_accounts: tuple[TraceAccount, ...]


class ClockPing(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master and back: offset = master_ns - (sent_ns + received) / 2, on monotonic clocks."""

    worker: str
    sent_ns: int
    master_ns: int | None = None


class Go(msgspec.Struct, frozen=True, kw_only=True):
    start_ns: int
    """Master's monotonic clock at which the first arrival is due."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker, twice a second: turns may start until this long after its receipt."""

    duration_ns: int
    sequence: int


class OpenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A session in play, so that the master can write its records if the worker dies."""

    session_id: str
    scenario: str
    stage: str
    phase: Phase
    channel: str
    turns: int
    turn: int
    """The turn in flight or next."""
    started: bool
    due_ns: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master, each second. Its size does not depend on the number of requests."""

    worker: str
    sequence: int
    windows: tuple[WindowRow, ...]
    health: ClientHealth | None
    open_turns: tuple[OpenTurn, ...]
    sessions: int
    in_flight: int
    planned_turns: int
    closed_turns: int
    chunks: int = 0
    """Content chunks that arrived since the start, open turns included."""
    events: tuple[EventRow, ...] = ()
    finished: bool = False
    """Nothing more to start: the trace or the number of sessions is used up and all turns ended."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master: zlib-compressed rows of turns.jsonl; repeated until acknowledged."""

    worker: str
    sequence: int
    rows: int
    data: bytes


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Master -> worker: start nothing, let open turns end for so long, then cancel them."""

    duration_ns: int
    reason: Reason


class Bye(msgspec.Struct, frozen=True, kw_only=True):
    """Worker -> master, after the last acknowledged segment."""

    worker: str
    records: int
    planned_turns: int
    sessions_started: dict[str, int]
    """By scenario."""
    hub_lag_p99_ns: int | None
    cpu_share_max: float | None
    exit_reason: str
