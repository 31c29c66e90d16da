"""Every key of a plan file with its type, unit, default and meaning: the one table behind loading and docs/plan.md.

A key of the TOML file is the attribute's name without its unit suffix (`duration_ns` is written `duration = "5m"`).
`extra` of a field's Meta: `unit` says how a value is written; `later` names what is not built yet: setting the key is
a plan error that says so.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from infersiege.plan.bounds import DURATION, LARGEST, MANY, PER_MILLION, SECOND_NS, SPAN
from infersiege.plan.bounds import meta as _meta
from infersiege.plan.hybrid_schema import HYBRIDS, Hybrid
from infersiege.plan.load_schema import Load
from infersiege.plan.quality_schema import Quality
from infersiege.plan.redis_schema import RedisAccess


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Ends the run by work instead of time."""

    sessions: Annotated[
        int | None, _meta("Sessions to play in all, over all workloads", unit="sessions", at_least=1, at_most=MANY)
    ] = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """[run]: what to call it, how long, from which seed."""

    name: Annotated[str | None, _meta("Name of the run; default: the plan file's name", longest=200)] = None
    duration_ns: Annotated[int | None, _meta("How long load is offered (warm-up included, drain excluded)", **SPAN)] = (
        None
    )
    stop: Annotated[Stop | None, _meta("Stop after an amount of work instead")] = None
    seed: Annotated[
        int, _meta("Seed of every random choice: arrivals, workloads, text", at_least=0, at_most=LARGEST)
    ] = 1
    nonce: Annotated[
        str | None, _meta("Salt of the prompts; new for each run unless set; set it to repeat a run to the letter")
    ] = None
    workers: Annotated[
        int, _meta("Worker processes that `run` starts on this host", unit="processes", at_least=1, at_most=1_000)
    ] = 1
    wait_for_workers_ns: Annotated[int, _meta("How long to wait for all workers to be ready", **DURATION)] = (
        60 * SECOND_NS
    )
    repeats: Annotated[
        int,
        _meta(
            "Runs to make of this plan, one after the other, each with a salt of its own",
            unit="runs",
            at_least=1,
            at_most=1_000,
        ),
    ] = 1


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """The four deadlines of one request."""

    connect_ns: Annotated[int, _meta("Name look-up, TCP connect and TLS handshake", **SPAN)] = 10 * SECOND_NS
    first_token_ns: Annotated[int, _meta("From the first byte sent to the first generated text", **SPAN)] = (
        120 * SECOND_NS
    )
    idle_ns: Annotated[int, _meta("Longest silence once the answer has begun (comments count as life)", **SPAN)] = (
        60 * SECOND_NS
    )
    total_ns: Annotated[int, _meta("The whole request, from the first byte sent", **SPAN)] = 600 * SECOND_NS


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Money in one currency of your choice, the same for all channels: by tokens, or by GPUs and hours."""

    input: Annotated[float | None, _meta("Input tokens; 0 where they are free", **PER_MILLION)] = None
    cached: Annotated[
        float | None, _meta("Input tokens that were read from a cache; default: as input", **PER_MILLION)
    ] = None
    cache_write: Annotated[
        float | None, _meta("Input tokens that were written to a cache; default: as input", **PER_MILLION)
    ] = None
    output: Annotated[float | None, _meta("Output tokens, reasoning included", **PER_MILLION)] = None
    gpu_hour: Annotated[
        float | None,
        _meta("One GPU for one hour, of an engine of one's own", unit="per hour", at_least=0, at_most=1e9),
    ] = None
    gpus: Annotated[
        int | None,
        _meta("GPUs that serve the channel; default: those that are watched", unit="GPUs", at_least=1, at_most=100_000),
    ] = None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Ends the run on all workers when used up; turns that are on their way then may still end (docs/budget.md)."""

    cost: Annotated[
        float | None, _meta("Money by the channel's prices for tokens", unit="currency", at_least=1e-6, at_most=1e9)
    ] = None
    tokens: Annotated[
        int | None,
        _meta("Input and output tokens, as far as servers bill them", unit="tokens", at_least=1, at_most=1_000 * MANY),
    ] = None
    requests: Annotated[
        int | None, _meta("Requests, each retry counted", unit="requests", at_least=1, at_most=MANY)
    ] = None


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What the account allows: kept in every sliding minute, over all workers (docs/budget.md)."""

    requests_per_minute: Annotated[
        int | None,
        _meta("Requests in any sliding minute, each retry counted", unit="requests", at_least=1, at_most=MANY),
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        _meta(
            "Prompt and output tokens in any sliding minute; a request counts its longest answer until it has ended",
            unit="tokens",
            at_least=1,
            at_most=1_000 * MANY,
        ),
    ] = None
    burst_ns: Annotated[
        int,
        _meta(
            "So much of the minute's amount may go at once after a quiet time; `60s`: all of it",
            unit="duration",
            at_least=0,
            at_most=60 * SECOND_NS,
        ),
    ] = SECOND_NS


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """[channel.NAME]: where requests go."""

    engine: Annotated[str, _meta("Engine profile", choices="PROFILES")]
    base_url: Annotated[
        str | None, _meta("Address of the server, with or without /v1 and endpoint; the final URL is printed")
    ] = None
    base_urls: Annotated[
        tuple[str, ...],
        _meta("Replicas without a balancer, instead of base_url: sessions are dealt to them in turn, and stay"),
    ] = ()
    model: Annotated[str, _meta("Model name to ask for")]
    dialect: Annotated[str | None, _meta("Wire protocol; default: the engine's", choices="DIALECTS")] = None
    api_key_env: Annotated[str | None, _meta("Environment variable that holds the key")] = None
    api_key_file: Annotated[str | None, _meta("File that holds the key, and nothing else")] = None
    headers: Annotated[dict[str, str], _meta("Extra request headers; no secrets here")] = {}
    extra_body: Annotated[
        dict[str, Any], _meta("Extra fields of the request body, verbatim; not model, messages or stream")
    ] = {}
    stream: Annotated[bool, _meta("Ask for a stream; without it there is no TTFT and no TPOT")] = True
    drop_fields: Annotated[
        tuple[str, ...],
        _meta("Request fields that the server refuses, not to be sent; the preflight adds those that it finds"),
    ] = ()
    include_usage: Annotated[bool, _meta("Ask for `stream_options.include_usage`")] = True
    ignore_eos: Annotated[
        bool, _meta("Fix the output length by the engine's own field, on plain text turns with a known length")
    ] = False
    keep_alive: Annotated[bool, _meta("Reuse a user's connection for its next turn")] = True
    retries: Annotated[
        int,
        _meta(
            "Times a request that was refused before its first token (no connection, 429, 502, 503, 504, 529) is sent "
            "again; counted and shown",
            at_least=0,
            at_most=20,
        ),
    ] = 0
    proxy: Annotated[
        str | None,
        _meta(
            "Proxy, `http://host:port`, for http and https targets; proxy variables of the environment are never used"
        ),
    ] = None
    ca: Annotated[str | None, _meta("PEM file of certificate authorities to trust instead of the system's")] = None
    insecure: Annotated[bool, _meta("Do not verify the server's certificate; shown in the report")] = False
    tokenizer: Annotated[
        str | None, _meta("A local tokenizer.json, by which synthesised prompts get their lengths")
    ] = None
    text_lengths: Annotated[
        str,
        _meta(
            "How synthesised prompts get their lengths: by `tokenizer`, by the engine's own tokenize endpoint, "
            "calibrated by its counts of a few prompts before the load, or by the usual ratio; "
            "auto: the first of these that there is",
            choices=("auto", "tokenizer", "endpoint", "calibrated", "ratio"),
        ),
    ] = "auto"
    affinity_headers: Annotated[
        tuple[str, ...], _meta("Response headers to send back within a session, to the server that sent them")
    ] = ()
    prompt_cache_key: Annotated[
        bool, _meta("Send the field `prompt_cache_key`, one value for each session (openai-chat, openai-responses)")
    ] = False
    from_file: Annotated[
        str | None,
        _meta(
            "What the channel doesn't say itself is read from another tool's settings: Codex's "
            "`config.toml#model_providers.NAME` or Claude Code's `settings.json` (docs/channels.md)"
        ),
    ] = None
    timeouts: Annotated[Timeouts, _meta("Deadlines")] = Timeouts()
    price: Annotated[Price | None, _meta("Prices")] = None
    budget: Annotated[Budget | None, _meta("Budget")] = None
    rate_limit: Annotated[RateLimit | None, _meta("Rate limit")] = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Base URLs of its replicas, at least one."""
        return self.base_urls or (self.base_url or "",)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """[[workload]]: a trace, and where its sessions go."""

    scenario: Annotated[str, _meta("Name by which results are split", longest=80)]
    trace: Annotated[
        str,
        _meta(
            "`builtin:short-qa`, `builtin:long-document`, `builtin:agent`, or a path (relative to the plan file); with "
            "`source` the name of a trace there"
        ),
    ]
    source: Annotated[
        str | None,
        _meta(
            "Redis that has the trace (`infersiege traces load`) and hands its sessions to workers as they need them: "
            "`redis://host[:port][/db]`, `rediss://…` or `unix://…`, without user and password (docs/redis.md)"
        ),
    ] = None
    format: Annotated[str | None, _meta("Trace format, if it can't be told from the content", choices="READERS")] = None
    channel: Annotated[str | None, _meta("Channel; may be left out when there is one")] = None
    weight: Annotated[float, _meta("Share of sessions, when workloads share [load]", above=0, at_most=1e6)] = 1.0
    language: Annotated[
        str, _meta("Language of the built-in workloads and of synthesised text", choices=("en", "zh"))
    ] = "en"
    limit: Annotated[
        int | None, _meta("Use only the first rows of the trace", unit="sessions", at_least=1, at_most=MANY)
    ] = None
    wrap: Annotated[bool, _meta("Start again at the end of the trace (reported as repeat factor)")] = False
    history: Annotated[
        str,
        _meta(
            "Earlier answers in the next request: the trace's (recorded, the same everywhere) or the engine's (live)",
            choices=("recorded", "live"),
        ),
    ] = "recorded"
    salt: Annotated[
        bool | None,
        _meta(
            "A salt at the start of every prompt, so that no cache outlives the run; default: on; "
            "sharing that the trace means is kept inside the run"
        ),
    ] = None
    delay_scale: Annotated[float, _meta("Think and tool times are multiplied by this", at_least=0, at_most=1e4)] = 1.0
    delay_cap_ns: Annotated[int | None, _meta("Longest think or tool time, after scaling", **DURATION)] = 60 * SECOND_NS
    length_scale: Annotated[
        float,
        _meta("Prompt lengths of synthesised text are multiplied by this (for small models)", above=0, at_most=1e4),
    ] = 1.0
    output_scale: Annotated[float, _meta("Asked output lengths are multiplied by this", above=0, at_most=1e4)] = 1.0
    max_tokens: Annotated[
        int | None, _meta("Cap of every asked output length", unit="tokens", at_least=1, at_most=MANY)
    ] = None
    max_turns: Annotated[
        int | None, _meta("Play only the first turns of a session", unit="turns", at_least=1, at_most=MANY)
    ] = None
    context_limit: Annotated[
        int | None, _meta("Longest prompt plus output that the model takes", unit="tokens", at_least=1, at_most=MANY)
    ] = None
    too_long: Annotated[
        str,
        _meta(
            "What to do with turns over context_limit: skip (the turn and the rest of its session), or clip (prompts "
            "are cut to what fits)",
            choices=("skip", "clip"),
        ),
    ] = "skip"
    options: Annotated[dict[str, Any], _meta("Options of a built-in workload (docs/traces.md)")] = {}
    load: Annotated[
        Load | None,
        _meta(
            "A load of its own, beside [load] and through all its stages: mixed closed and open in one run. It has the "
            "keys of [load] but stages, pause, warmup and drain"
        ),
    ] = None


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """[[slo]]: one rule of the gate."""

    metric: Annotated[str, _meta("Metric", choices="METRICS")]
    stat: Annotated[str | None, _meta("Statistic; needed for distributions, none for rates", choices="STATS")] = None
    at_most: Annotated[
        float | None,
        _meta("Written `max`: highest value that passes, with its unit (`800ms`, `1%`)", key="max", unit="metric"),
    ] = None
    at_least: Annotated[float | None, _meta("Written `min`: lowest value that passes", key="min", unit="metric")] = None
    scenario: Annotated[str | None, _meta("Only this scenario")] = None
    channel: Annotated[str | None, _meta("Only this channel")] = None
    stage: Annotated[str | None, _meta("Only this stage")] = None
    min_samples: Annotated[
        int | None,
        _meta(
            "Fewer are `no data`; default: as many as a 95 % upper bound of the percentile takes (p50: 5, p99: 299)",
            unit="turns",
            at_least=1,
            at_most=MANY,
        ),
    ] = None
    severity: Annotated[str, _meta("fail, or warn (shown, never fails the gate)", choices=("fail", "warn"))] = "fail"
    abort: Annotated[
        bool,
        _meta(
            "Stop the run when this rule can't pass any more: for `max` on a percentile or on error_share, and `min` "
            "on goodput_share"
        ),
    ] = False
    relative_max: Annotated[
        float | None,
        _meta(
            "Largest change for the worse against a baseline (`gate --baseline`), as `10%`: of latencies and rates a "
            "ratio, of shares points",
            unit="ratio",
            above=0,
            at_most=10,
        ),
    ] = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """[sampling]: the same for every channel, or the comparison is none."""

    temperature: Annotated[float | None, _meta("Temperature", at_least=0, at_most=100)] = 0.0
    top_p: Annotated[float | None, _meta("Nucleus", above=0, at_most=1)] = None
    seed: Annotated[int | None, _meta("Sampling seed sent to the engine", at_least=-LARGEST, at_most=LARGEST)] = None
    max_tokens: Annotated[
        int, _meta("Output limit where the trace doesn't say", unit="tokens", at_least=1, at_most=MANY)
    ] = 256
    stop: Annotated[tuple[str, ...], _meta("Stop strings")] = ()


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """[telemetry]: where series go, and which are taken from this host."""

    influx_url: Annotated[
        str | None, _meta("InfluxDB (1.8, 2.x, 3.x) or VictoriaMetrics to write to; none: the run directory only")
    ] = None
    influx_bucket: Annotated[str, _meta("Bucket (2.x) or database (1.x, 3.x)", longest=200)] = "infersiege"
    influx_org: Annotated[str | None, _meta("Organisation (2.x)", longest=200)] = None
    influx_token_env: Annotated[
        str | None, _meta("Environment variable that holds the token (2.x, 3.x) or `user:password` (1.8)")
    ] = None
    spool: Annotated[
        str | None, _meta("Directory for points that the database has not taken yet; default: in the user's state")
    ] = None
    gpu: Annotated[bool, _meta("Sample this host's GPUs, into the run directory and InfluxDB")] = False
    engine_metrics: Annotated[bool, _meta("Scrape each channel's /metrics, into the run directory and InfluxDB")] = (
        False
    )
    hosts: Annotated[
        tuple[str, ...],
        _meta("Hosts whose GPUs belong to this run, when series are fetched from InfluxDB; default: all it has"),
    ] = ()
    grafana_url: Annotated[str | None, _meta("Grafana with infersiege's dashboards, for links from the report")] = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole plan, resolved."""

    run: Annotated[Run, _meta("The run")] = Run()
    channels: Annotated[dict[str, Channel], _meta("Written [channel.NAME]: where requests go", key="channel")]
    hybrids: Annotated[
        dict[str, Hybrid],
        _meta('Written [channel.NAME] with engine = "hybrid": a channel made of others (docs/hybrid.md)', key=HYBRIDS),
    ] = {}
    workloads: Annotated[tuple[Workload, ...], _meta("Written [[workload]]: what is sent", key="workload")] = ()
    load: Annotated[Load, _meta("How much")] = Load()
    slos: Annotated[tuple[Slo, ...], _meta("Written [[slo]]: rules of the gate", key="slo")] = ()
    sampling: Annotated[Sampling, _meta("Sampling parameters")] = Sampling()
    labels: Annotated[dict[str, str], _meta("What the tool can't see (GPU, quantisation …); kept with the run")] = {}
    redis: Annotated[RedisAccess, _meta("Redis, for workloads with a source")] = RedisAccess()
    telemetry: Annotated[Telemetry, _meta("Series")] = Telemetry()
    quality: Annotated[Quality | None, _meta("Checked prompts")] = None
