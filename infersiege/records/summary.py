"""summary.json: what gate, compare and report need beside the turns."""

from __future__ import annotations

import msgspec

from infersiege.records.words import Verdict


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
    internal_faults: int = 0
    """Turns that were not sent because of a fault of ours."""
    tokens_from: dict[str, int]
    """usage/tokenizer/estimate -> turns."""
    stamp_source: dict[str, int]
    rules: tuple[RuleResult, ...] = ()
    verdict: Verdict | None = None
    exit_code: int = 0
