"""summary.json: what gate, compare and report need beside the turns."""

from __future__ import annotations

import msgspec

from infersiege.records.client import ClientSummary, ClientVerdict
from infersiege.records.quality import AnswerHealth, QualityShare, Unscored, WrongAnswers
from infersiege.records.verdicts import RuleResult, StoppedEarly
from infersiege.records.words import Verdict
from infersiege.records.workers import WorkerSummary


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
    ranges: dict[str, tuple[float | None, float | None]] = {}
    """Percentile -> where the true one is with 95 % confidence, by order statistics (metrics.orders).
    An end is None where there are too few values for one; percentiles that are None have none."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What turns or a channel cost, in the plan's currency."""

    channel: str | None
    """None: several."""
    basis: str
    """`tokens`, `GPU hours`, or both in one (`tokens and GPU hours`)."""
    total: float | None
    """None: the number of GPUs is not known."""
    turns: int = 0
    """Turns that were priced by their tokens, failed and cut ones included; of several attempts at one, each counts."""
    estimated_turns: int = 0
    """Of these, turns of which the server did not tell every count that has a price."""
    estimated: float | None = None
    """What these cost; part of `total`."""
    gpus: int | None = None
    """That were paid by the hour."""


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """What was used of one figure of a channel's budget, retries included, as the workers counted it."""

    channel: str
    kind: str
    """`cost` (in the plan's currency), `tokens` or `requests`."""
    amount: float
    used: float
    """Turns that were on their way when it was used up may take it above `amount`."""
    lost: float = 0
    """Part of `used` that lost workers may have spent: they had been granted it."""
    ended_run: bool = False
    """The load ended because this was used up."""


class RateUse(msgspec.Struct, frozen=True, kw_only=True):
    """How a run got on with a channel's rate limit, as the workers counted it."""

    channel: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    requests: int = 0
    """That were sent, retries and those before the load included."""
    held: int = 0
    """Turns that waited longer than it takes to ask: the load was more than the limit."""
    held_longest_ms: float | None = None
    """None: none waited."""
    too_large: int = 0
    """Turns that were not sent, since each alone asks for more tokens than the limit gives in a minute."""


class ServedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one channel during the load: what its servers counted, and what the records have."""

    channel: str
    metric: str
    """The servers' counter."""
    counted: int
    """By how much it went up."""
    answered: int = 0
    """Turns that were answered to their end: at least so many it must have counted."""
    sent: int = 0
    """Requests that were sent, or may have been: at most so many, unless others use the server."""


class PromptLengths(msgspec.Struct, frozen=True, kw_only=True):
    """How near the prompts that we wrote came to the tokens asked for, over ok turns: |told - asked| / asked."""

    method: str
    """`tokenizer`, `endpoint`, `calibrated` or `ratio` (TextLengths)."""
    n: int
    error_p50: float | None
    error_p95: float | None
    too_short: int = 0
    """Turns that ask for fewer tokens than template, salt and the shortest text take: in no percentile."""


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
    """Turns that failed, by error class."""
    finish_reasons: dict[str, int]
    in_flight_mean: float | None
    in_flight_max: int | None
    notes: tuple[str, ...]
    cost: Cost | None = None
    """Of turns due in steady; by the hour, of the steady time. None: no price, or shared with other scenarios."""
    channels: tuple[str, ...] = ()
    """To which its turns went."""
    replica: str | None = None
    """None: all of them."""
    failed_attempts: dict[str, int] = {}
    """Attempts of steady turns that failed here and were followed by another one, by error class: in no other figure
    but the cost, since their turn is counted where it ended."""
    prompt_lengths: PromptLengths | None = None
    """None: no turn had a prompt of which we wrote all, or the server told no token counts."""
    checked: int = 0
    """Answers behind the rate `quality`: those of checked prompts."""
    unscored: int = 0
    """Further ones whose checks could not be carried out: with any there is no rate `quality`."""


class DeliveredLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one load asked for in the steady phase of one stage, and what was there, as the records tell."""

    stage: str
    scenarios: tuple[str, ...] = ()
    """That it plays; empty: all of them."""
    mode: str
    """`closed`, `open` or `replay`."""
    users_asked: int | None
    """Sessions at a time; None: no closed loop, or a number of sessions was asked for."""
    users_mean: float | None
    """Sessions alive, think and tool time included."""
    in_flight_mean: float | None
    """Turns that the server had at a time."""
    rate_asked: float | None
    """Sessions/s; None: no open loop. The mean of a rate that swings."""
    rate_due: float | None
    """Sessions/s that the schedule had: an arrival process scatters around its rate. None: closed."""
    rate_begun: float | None
    """Of these, sessions/s that began in time. None: closed."""
    asked_rate: float | None
    """Turns/s that were due."""
    sent_rate: float | None
    """Turns/s."""
    finished_rate: float | None
    """Turns/s that succeeded."""
    share: float | None
    """Delivered of what was asked: sessions begun in time, or users alive; None: it can't be told."""


class TraceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one workload's trace: rows = those of its sessions + skipped by reason; sessions = those that were
    sent + those that were not."""

    scenario: str
    trace: str
    format: str
    sha256: str | None
    rows: int | None
    """Read of the file; None: a generator has none."""
    rows_in_sessions: int | None = None
    """Of which its sessions are made."""
    skipped: dict[str, int]
    """Rows that are part of no session, by reason."""
    sessions: int | None
    """None: a generator without end."""
    sessions_taken: int = 0
    """That were begun, also where none of their turns could be sent; of a trace that wraps each play counts."""
    sessions_started: int
    """Of these, sessions of which at least one turn was sent."""
    sessions_repeated: int = 0
    """Of those, plays of a session that the trace had given before, since it wraps."""
    not_started: int | None
    """Sessions of the trace of which nothing was sent; None: it has no end."""
    repeat_factor: float | None
    """How often a session of a finite trace was played on average; above 1 it is (also) a cache test."""
    capped_delays: int = 0
    """Turns whose think or tool time `delay_cap` shortened."""
    capped_delay_s: float = 0.0
    """What it took away in all."""
    context_limit: int | None = None
    """Most tokens of prompt and output together that were sent; None: no limit was known."""
    clipped_turns: int = 0
    """Turns whose prompt was cut to the context limit."""
    clipped_sessions: int = 0
    """Sessions that have such turns."""
    too_long_turns: int = 0
    """Turns that were skipped because of the context limit, those after them in their line included."""
    too_long_sessions: int = 0
    """Sessions that have such turns."""


class StageResources(msgspec.Struct, frozen=True, kw_only=True):
    """What GPUs and engines did in the steady phase of one stage, and what limited it. None: nobody measured it.

    Means over GPUs weigh every card the same; powers, energies and memory are of all of them together.
    """

    stage: str
    gpus: int | None = None
    """GPUs and MIG slices that were read."""
    gpus_lost: tuple[str, ...] = ()
    """Those that could not be read for some of the time: `host uuid: NVML error`."""
    energy_j: float | None = None
    energy_per_output_token_j: float | None = None
    """That energy / output tokens that arrived in the steady phase."""
    power_mean_w: float | None = None
    utilization_mean: float | None = None
    """Share of time in which any kernel ran: says nothing about how full the GPU is, and no limit rests on it."""
    sm_active_mean: float | None = None
    tensor_active_mean: float | None = None
    dram_active_mean: float | None = None
    memory_used_mean_bytes: float | None = None
    memory_used_peak_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_capped_share: float | None = None
    throttled_share: float | None = None
    """By heat or hardware."""
    xids: dict[str, int] = {}
    """`uuid: Xid code` -> events."""
    kv_use_mean: float | None = None
    kv_use_peak: float | None = None
    running_mean: float | None = None
    running_peak: float | None = None
    waiting_mean: float | None = None
    waiting_peak: float | None = None
    preemptions: float | None = None
    prefix_hit_share: float | None = None
    server_ttft_mean_ms: float | None = None
    server_ttft_p50_ms: float | None = None
    server_ttft_p95_ms: float | None = None
    """To the width of the engine's buckets."""
    server_itl_mean_ms: float | None = None
    coverage: dict[str, float] = {}
    """Series (`gpu host uuid`, `engine instance`) -> share of the steady phase for which it has points."""
    limit: str
    """compute, memory bandwidth, KV cache, queue, power, client, quota, not clear."""
    limit_reason: str
    """One sentence with the figures that it rests on."""


class TelemetryAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the points that the master wrote to InfluxDB; of the agents each tells its own.

    written = acknowledged + rejected + spooled + dropped.
    """

    url: str
    written: int
    acknowledged: int
    rejected: int
    """Refused for good by the database; set aside in the spool."""
    spooled: int
    """Still on this host's disk; the next writer to the same database sends them."""
    dropped: int
    left_out: int
    """Values that were not finite numbers."""
    spool: str
    """Where what is spooled or rejected lies."""
    problem: str | None
    """Why points were not taken, as last seen."""


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
    stopped_early: StoppedEarly | None = None
    """By a rule; None: it was not."""
    counts: Counts
    """Of all turns, all phases."""
    groups: tuple[GroupSummary, ...]
    """The first is the whole run; then each scenario, channel and stage where there is more than one."""
    replicas: tuple[GroupSummary, ...] = ()
    """Of channels that were served by several replicas (`base_urls`, a name with several addresses), each of these.

    `users` and `delivered_share` belong to no replica and are None.
    """
    loads: tuple[DeliveredLoad, ...] = ()
    """By stage, then load; empty: nobody knows what was asked, or no steady phase was reached."""
    traces: tuple[TraceAccount, ...]
    workers: tuple[WorkerSummary, ...]
    clients: tuple[ClientSummary, ...] = ()
    """How fit each worker with turns was in the steady phases; empty: there was none."""
    client: ClientVerdict | None = None
    """The same of all workers together: the worst; None: nothing tells."""
    invalid: tuple[str, ...]
    """Reasons why the figures can't be trusted; empty: valid."""
    warnings: tuple[str, ...]
    internal_faults: int = 0
    """Turns that were not sent because of a fault of ours."""
    tokens_from: dict[str, int]
    """usage/tokenizer/estimate -> turns."""
    stamp_source: dict[str, int]
    cost: float | None = None
    """Of the whole run, all phases; None: no price, or one channel's cost is not known."""
    costs: tuple[Cost, ...] = ()
    """The same by channel, of those that have a price."""
    budgets: tuple[BudgetUse, ...] = ()
    """In the order of the plan; empty: it has none."""
    rate_limits: tuple[RateUse, ...] = ()
    """The same."""
    served: tuple[ServedRequests, ...] = ()
    """By channel; empty: no engine tells how many requests it finished."""
    quality: tuple[QualityShare, ...] = ()
    """Pass shares of checked prompts: the whole run, then by stage, channel and set; empty: none was checked."""
    unscored: Unscored | None = None
    """None: every check could be carried out."""
    wrong_answers: tuple[WrongAnswers, ...] = ()
    """By prompt, those with most first, at most 20; empty: none, or the plan keeps no answers."""
    answers: tuple[AnswerHealth, ...] = ()
    """By stage; empty: no answer of any turn looked broken."""
    resources: tuple[StageResources, ...] = ()
    """One per stage; empty: no GPU and no engine was watched."""
    telemetry: TelemetryAccount | None = None
    """None: the plan names no InfluxDB."""
    rules: tuple[RuleResult, ...] = ()
    verdict: Verdict | None = None
    exit_code: int = 0
