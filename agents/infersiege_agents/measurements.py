"""Every measurement that infersiege writes to InfluxDB: the one table behind writers, dashboards and docs/grafana.md.

A point is stamped with the end of the interval that it stands for; a window with the second that it is.
Numbers are floats, shares are ratios from 0 to 1, counts are per interval (never a running total), so that
`sum() / interval` is right whatever the interval of a panel is. Tags of a measurement are always all there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["tag", "number", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """One tag or field."""

    name: str
    kind: Kind
    unit: str
    """`ratio`, `ms`, `s`, `W`, `J`, `bytes`, `MHz`, `°C`, `tokens`, `turns`, …; empty for texts and codes."""
    meaning: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """One table of the database."""

    name: str
    source: str
    """Who writes it, and how often."""
    meaning: str
    columns: tuple[Column, ...]

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.kind == "tag")

    @property
    def fields(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns if column.kind != "tag"}


def _tag(name: str, meaning: str) -> Column:
    return Column(name, "tag", "", meaning)


def _number(name: str, unit: str, meaning: str) -> Column:
    return Column(name, "number", unit, meaning)


def _text(name: str, meaning: str) -> Column:
    return Column(name, "text", "", meaning)


def _spread(name: str, unit: str, meaning: str, suffix: str = "") -> Iterable[Column]:
    """Least, mean and greatest of the quick samples of one interval."""
    for stat, word in (("min", "least"), ("mean", "mean"), ("max", "greatest")):
        yield _number(f"{name}_{stat}{suffix}", unit, f"{meaning}: {word} of the interval's samples")


_RUN = _tag("run", "Run key: UTC start, name and id, such as 20261130T140211Z-qwen3-8b-a1b2c3d4e5f6; sorts by time")
_SCENARIO = _tag("scenario", "Scenario, or `all`")
_CHANNEL = _tag("channel", "Channel, or `all`")
_STAGE = _tag("stage", "Stage, or `all`")
_PHASE = _tag("phase", "warmup, steady or drain: the phase in which the turns were due")
_HOST = _tag("host", "Host name")

LIVE_METRICS = ("ttft", "tpot", "e2e", "lateness")
LIVE_STATS = ("p50", "p95", "p99")
RUN_METRICS = ("ttft", "ttfa", "tpot", "gap", "e2e", "ttft_from_due", "e2e_from_due", "lateness")
RUN_STATS = ("mean", "min", "p50", "p90", "p95", "p99", "p99_9", "max")
RUN_RATES: dict[str, str] = {
    "asked_rate": "turns/s", "sent_rate": "turns/s", "finished_rate": "turns/s", "throughput": "tokens/s",
    "goodput": "turns/s", "error_share": "ratio", "cache_share": "ratio", "delivered_share": "ratio",
}  # fmt: skip


def _live_percentiles() -> Iterable[Column]:
    for metric in LIVE_METRICS:
        for over, words in (("60s", "the last 60 s"), ("stage", "the stage and phase to date")):
            for stat in LIVE_STATS:
                yield _number(f"{metric}_{stat}_{over}_ms", "ms", f"{metric} {stat} over {words}; never to be averaged")
            yield _number(f"{metric}_n_{over}", "turns", f"Turns behind the {metric} percentiles of {words}")


WINDOW = Measurement(
    "infersiege_window",
    "master, each second; written again with exact seconds when the run has ended",
    "One second of one scenario, channel, stage and phase. While the run goes on, a turn enters when it ends, in the "
    "seconds in which its parts happened. scenario and channel `all` hold everything.",
    (
        _RUN, _SCENARIO, _CHANNEL, _STAGE, _PHASE,
        _number("since_steady", "s", "Since the run's first steady phase began; negative before it: aligns runs"),
        _number("due", "turns", "Turns due in this second"),
        _number("sent", "turns", "Turns sent"),
        _number("ok", "turns", "Turns that ended well"),
        _number("failed", "turns", "Turns that failed"),
        _number("cancelled", "turns", "Turns that were cut by us"),
        _number("skipped", "turns", "Turns that were never sent"),
        _number("good", "turns", "Ended turns that met every per-request SLO; absent without such rules"),
        _number("chunks", "chunks", "Content chunks that arrived"),
        _number("output_tokens", "tokens", "Output tokens of the turns that ended in this second"),
        _number("tokens", "tokens", "Output tokens that arrived in this second"),
        _number("in_flight", "turns", "Turns in flight at the end of the second; after the run only"),
        _number("users", "sessions", "Sessions alive at the end of the second; after the run only"),
        *_live_percentiles(),
    ),
)  # fmt: skip

ERROR = Measurement(
    "infersiege_error",
    "master, each second with a failed turn",
    "Failed turns by class.",
    (
        _RUN, _SCENARIO, _CHANNEL, _STAGE, _PHASE,
        _tag("error_class", "Error class (docs/metrics.md)"),
        _number("count", "turns", "Turns that failed in this second with this class"),
    ),
)  # fmt: skip

LIVE = Measurement(
    "infersiege_live",
    "master, each second",
    "The whole run at this moment, as the workers' reports tell it: for the eye while it goes on.",
    (
        _RUN,
        _number("users_asked", "sessions", "Closed loop: sessions at a time that the plan asks for"),
        _number("rate_asked", "sessions/s", "Open loop and replay: sessions per second that the plan asks for"),
        _number("sessions", "sessions", "Sessions alive"),
        _number("in_flight", "turns", "Turns in flight"),
        _number("started", "turns", "Turns started since the last point"),
        _number("closed", "turns", "Turns ended since the last point, in any way"),
        _number("failed", "turns", "Turns failed since the last point"),
        _number("chunks", "chunks", "Content chunks since the last point, those of open turns included"),
        _number("interval", "s", "Since the last point"),
        _number("workers", "workers", "Workers alive"),
        _number("workers_expected", "workers", "Workers that the run began with"),
    ),
)  # fmt: skip

CLIENT = Measurement(
    "infersiege_client",
    "master, each second and worker",
    "How the load generator itself does: a run whose client is the limit is invalid.",
    (
        _RUN,
        _tag("worker", "Worker"),
        _number("cpu_share", "ratio", "CPU of the worker process; 1 is one core"),
        _number("hub_lag_max_ms", "ms", "Longest time in which its event loop did not poll"),
        _number("gc_pause_max_ms", "ms", "Longest pause of the garbage collector"),
        _number("rss_bytes", "bytes", "Resident memory"),
        _number("open_files", "files", "Open descriptors"),
    ),
)  # fmt: skip


def _run_distributions() -> Iterable[Column]:
    for metric in RUN_METRICS:
        for stat in RUN_STATS:
            yield _number(f"{metric}_{stat}_ms", "ms", f"{metric} {stat} over ok turns of the steady phase, exact")
        yield _number(f"{metric}_n", "turns", f"Values behind {metric} (gaps for gap)")


def _run_rates() -> Iterable[Column]:
    for name, unit in RUN_RATES.items():
        yield _number(name, unit, f"{name.replace('_', ' ')} of the steady phase (docs/metrics.md)")


RESOURCES: tuple[Column, ...] = (
    _number("gpus", "GPUs", "GPUs and MIG slices seen in the steady phase"),
    _number("energy_j", "J", "Energy of all GPUs in the steady phase"),
    _number("energy_per_output_token_j", "J/token", "That energy / output tokens that arrived in the steady phase"),
    _number("power_mean_w", "W", "Mean power of all GPUs together"),
    _number("sm_active_mean", "ratio", "Mean share of time in which an SM had a warp, over GPUs that tell"),
    _number("tensor_active_mean", "ratio", "Mean share of time in which tensor cores were busy"),
    _number("dram_active_mean", "ratio", "Mean share of DRAM bandwidth in use"),
    _number("memory_used_mean_bytes", "bytes", "GPU memory in use, all GPUs together, mean"),
    _number("memory_used_peak_bytes", "bytes", "GPU memory in use, all GPUs together, highest second"),
    _number("memory_total_bytes", "bytes", "GPU memory of all GPUs"),
    _number("power_capped_share", "ratio", "Share of GPU time at the power limit (clock-event reason 0x4)"),
    _number("throttled_share", "ratio", "Share of GPU time slowed by heat or hardware"),
    _number("kv_use_mean", "ratio", "KV-cache use, mean"),
    _number("kv_use_peak", "ratio", "KV-cache use, highest"),
    _number("running_mean", "requests", "Requests that the engine works on, mean"),
    _number("waiting_mean", "requests", "Requests that wait in the engine, mean"),
    _number("waiting_peak", "requests", "Requests that wait in the engine, most"),
    _number("preemptions", "requests", "Requests that the engine threw out and computed again"),
    _number("prefix_hit_share", "ratio", "Prefix-cache hits / queries in tokens, as the engine counts them"),
    _number("server_ttft_mean_ms", "ms", "The engine's own mean TTFT in the steady phase"),
    _number("server_ttft_p95_ms", "ms", "The engine's own p95 of TTFT, to the width of its buckets"),
    _number("server_itl_mean_ms", "ms", "The engine's own mean inter-token latency"),
    _text(
        "limit", "What limited the stage: compute, memory bandwidth, KV cache, queue, power, client, quota, not clear"
    ),
    _text("limit_reason", "The figures that this rests on"),
)

RUN = Measurement(
    "infersiege_run",
    "master, at the start (state 0) and, with all figures, at the end (state 1); stamped with the start of the run",
    "Exact figures of a run, the same as in summary.json: one row for the whole run (scenario, channel and stage "
    "`all`), and one per scenario, channel and stage where there are several.",
    (
        _RUN, _SCENARIO, _CHANNEL, _STAGE,
        _text("run_key", "The tag `run` once more: variables list runs of the time range by it"),
        _text("run_id", "Run id, as in plan.json"),
        _text("name", "Name of the run"),
        _text("models", "Models asked for"),
        _text("engines", "Engines, with versions where they tell"),
        _text("labels", "Labels of the plan"),
        _text("verdict", "pass, fail, no_data, invalid; absent when nobody judged"),
        _text("invalid", "Why the figures can't be trusted; absent when they can"),
        _number("state", "", "0: the run goes on, 1: it has ended"),
        _number("emulated", "", "1: the target was infersiege's emulator: figures say nothing about hardware"),
        _number("exit_code", "", "Exit code of the run"),
        _number("started_ms", "ms", "First arrival due, ms since the epoch"),
        _number("steady_started_ms", "ms", "Steady phase begins, ms since the epoch"),
        _number("steady_ended_ms", "ms", "Steady phase ends, ms since the epoch"),
        _number("ended_ms", "ms", "The run ended, ms since the epoch"),
        _number("users_asked", "sessions", "Closed loop: sessions at a time that were asked for"),
        _number("rate_asked", "sessions/s", "Open loop: sessions per second that were asked for"),
        _number("turns_started", "turns", "Steady turns started"),
        _number("turns_ok", "turns", "Steady turns that ended well"),
        _number("turns_failed", "turns", "Steady turns that failed"),
        _number("turns_cancelled", "turns", "Steady turns that were cut by us"),
        _number("turns_lost", "turns", "Steady turns lost with their worker"),
        _number("turns_skipped", "turns", "Steady turns never sent"),
        _number("prompt_tokens", "tokens", "Prompt tokens of ok steady turns"),
        _number("output_tokens", "tokens", "Output tokens of ok steady turns"),
        _number("in_flight_mean", "turns", "Turns in flight, mean of the steady phase"),
        _number("in_flight_max", "turns", "Turns in flight, most"),
        *_run_rates(),
        *_run_distributions(),
        *RESOURCES,
    ),
)  # fmt: skip

EVENT = Measurement(
    "infersiege_event",
    "master, as they happen",
    "Rows of events.jsonl, for annotations.",
    (
        _RUN,
        _tag("kind", "stage_started, steady_started, load_ended, worker_lost … (docs/rundir.md)"),
        _text("title", "The kind in words"),
        _text("detail", "What happened"),
        _text("stage", "Stage, where there is one"),
        _text("worker", "Worker, where there is one"),
    ),
)  # fmt: skip

GPU = Measurement(
    "gpu",
    "GPU agent, each second",
    "One GPU or MIG slice over one interval. A card that can't be read has ok = 0 and its error, and no reading; Xid "
    "events, which are none, are there all the same.",
    (
        _HOST,
        _tag("uuid", "UUID of the GPU or MIG slice: the identity to join by"),
        _tag("pci", "PCI bus id; that of the card for a MIG slice"),
        _tag("name", "Name of the card"),
        _tag("mig_parent", "UUID of the card for a MIG slice, else `none`"),
        _number("ok", "", "1: read, 0: not readable (see error)"),
        _number("error", "", "NVML's return code of the first call that failed, also with ok = 1; 0 when all is well"),
        _text("error_text", "That code in words, with the call"),
        _number("index", "", "NVML's index: not CUDA's order, and not stable"),
        _number("interval", "s", "Time that this point stands for"),
        _number("samples", "", "Quick samples in the interval"),
        _number("sample_duration", "s", "Time that the agent itself spent on reading this GPU"),
        *_spread("utilization", "ratio", "Share of time in which any kernel ran: not how full the GPU is"),
        _number("memory_utilization_mean", "ratio", "Share of time in which memory was accessed: not how full it is"),
        _number("sm_active", "ratio", "Share of time in which an SM had a warp (GPM; Hopper and later)"),
        _number("sm_occupancy", "ratio", "Warps resident / most that an SM can hold (GPM)"),
        _number("tensor_active", "ratio", "Share of time in which tensor cores were busy (GPM)"),
        _number("dram_active", "ratio", "Share of DRAM bandwidth in use (GPM)"),
        *_spread("memory_used", "bytes", "Memory in use, without what the driver reserves", "_bytes"),
        _number("memory_reserved_bytes", "bytes", "Memory that the driver keeps for itself"),
        _number("memory_total_bytes", "bytes", "Memory of the GPU or slice"),
        _number("host_memory_used_bytes", "bytes", "System memory in use, on machines whose GPU shares it"),
        _number("host_memory_total_bytes", "bytes", "System memory, on machines whose GPU shares it"),
        *_spread("power", "W", "Power draw", "_w"),
        _number("power_average_w", "W", "Power, the driver's 1 s average (field 185)"),
        _number("power_instant_w", "W", "Power at this moment (field 186)"),
        _number("power_limit_w", "W", "Enforced power limit"),
        _number("energy_j", "J", "Energy since the last point, from the driver's counter"),
        _number("clock_sm_mhz", "MHz", "SM clock"),
        _number("clock_sm_max_mhz", "MHz", "Highest SM clock"),
        _number("clock_memory_mhz", "MHz", "Memory clock"),
        _number("clock_reasons", "", "Clock-event reasons of the interval, as NVML's bits (or-ed)"),
        _number("power_capped", "ratio", "Share of samples with reason 0x4: slowed by the power limit"),
        _number("thermal_throttled", "ratio", "Share of samples slowed by heat (0x20, 0x40)"),
        _number("hardware_slowdown", "ratio", "Share of samples slowed by hardware (0x8) or a power brake (0x80)"),
        _number("temperature_c", "°C", "GPU temperature"),
        _number("temperature_memory_c", "°C", "Memory temperature"),
        _number("pcie_rx_bytes", "bytes", "Received over PCIe since the last point"),
        _number("pcie_tx_bytes", "bytes", "Sent over PCIe since the last point"),
        _number("nvlink_rx_bytes", "bytes", "Received over NVLink since the last point"),
        _number("nvlink_tx_bytes", "bytes", "Sent over NVLink since the last point"),
        _number("ecc_corrected", "errors", "Corrected memory errors since the last point"),
        _number("ecc_uncorrected", "errors", "Uncorrected memory errors since the last point"),
        _number("xid", "", "Code of the latest Xid event since the last point; absent without one"),
        _number("xid_count", "events", "Xid events since the last point"),
        _number("processes", "processes", "Compute processes, read at most each 10 s"),
    ),
)  # fmt: skip

GPU_HOST = Measurement(
    "gpu_host",
    "GPU agent, each second",
    "The GPUs of one host: is each of them there?",
    (
        _HOST,
        _number("ok", "", "1: the driver answers, 0: not (see error)"),
        _number("error", "", "NVML's return code of initialisation; 0 when all is well"),
        _text("error_text", "That code in words"),
        _text("driver", "Driver version"),
        _number("gpus", "GPUs", "GPUs that were read"),
        _number("gpus_expected", "GPUs", "GPUs that should be there: --expect, else the most seen so far"),
        _number("sample_duration", "s", "Time that the agent spent on reading in this interval"),
        _number("restarts", "", "Times that NVML was initialised again since the agent began"),
    ),
)  # fmt: skip


def _server_times() -> Iterable[Column]:
    for name, words in (("ttft", "time to first token"), ("itl", "inter-token latency")):
        yield _number(f"{name}_n", "values", f"The engine's own {words}: values since the last point")
        yield _number(f"{name}_mean_ms", "ms", f"Their mean: the engine's own {words}")
        for stat in LIVE_STATS:
            yield _number(f"{name}_{stat}_ms", "ms", f"{stat} of the last 60 s, interpolated in the engine's buckets")
        yield _text(f"{name}_buckets", "Counts since the last point by upper bound in s: `0.1:3 0.25:1 +Inf:1`")


ENGINE = Measurement(
    "engine",
    "engine agent, each second",
    "What the engine tells of itself on /metrics, in the same words for every engine. What an engine does not tell is "
    "absent.",
    (
        _HOST,
        _tag("engine", "Engine profile: vllm, sglang, llama.cpp, lmdeploy, tgi, tensorrt-llm"),
        _tag("instance", "host:port of its /metrics"),
        _number("up", "", "1: scraped, 0: not (see error)"),
        _text("error", "Why it could not be scraped"),
        _number("interval", "s", "Since the last good scrape; counts are over it"),
        _number("scrape_duration", "s", "Time that the scrape took"),
        _number("resets", "", "1: counters began anew since the last point: the engine was restarted"),
        _number("running", "requests", "Requests that it works on"),
        _number("waiting", "requests", "Requests that wait"),
        _number("kv_use", "ratio", "KV cache in use"),
        _number("prefix_queries", "tokens", "Prompt tokens looked up in the prefix cache since the last point"),
        _number("prefix_hits", "tokens", "Of these, tokens that were found"),
        _number("prefix_hit_share", "ratio", "Hits / queries of the interval, or the engine's own gauge"),
        _number("preemptions", "requests", "Requests thrown out to be computed again, since the last point"),
        _number("prompt_tokens", "tokens", "Prompt tokens processed since the last point"),
        _number("generated_tokens", "tokens", "Tokens generated since the last point"),
        *_server_times(),
    ),
)  # fmt: skip

WRITER = Measurement(
    "infersiege_writer",
    "every writer, each 10 s and at its end",
    "The durable writer's own counters since it began (running totals): written = acknowledged + rejected + spooled + "
    "dropped + what is still in memory.",
    (
        _HOST,
        _tag("source", "run, gpu, engine, import or spool"),
        _number("written", "points", "Points given to it"),
        _number("acknowledged", "points", "Points that the database took"),
        _number("rejected", "points", "Points that it refused for good; set aside in the spool"),
        _number("spooled", "points", "Points on disk that wait"),
        _number("dropped", "points", "Points lost, because spool and memory were full"),
        _number("taken_up", "points", "Points of earlier writers that this one has sent"),
        _number("left_out", "values", "Values that were not finite numbers"),
        _number("lost_before", "points", "Points that earlier writers had in memory when they were killed"),
        _number("clock_offset", "s", "This host's clock minus the database's, to the second"),
    ),
)  # fmt: skip

MEASUREMENTS: dict[str, Measurement] = {
    one.name: one
    for one in (WINDOW, ERROR, LIVE, CLIENT, RUN, EVENT, GPU, GPU_HOST, ENGINE, WRITER)
}  # fmt: skip
"""Name -> measurement."""
