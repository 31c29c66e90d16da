"""*Capacity review*: load, latency, queue, KV cache and GPUs on one time axis, and what limited each stage."""

from __future__ import annotations

from infersiege_grafana import queries as q
from infersiege_grafana.panels import (
    SHARE,
    TOKENS_PER_S,
    TURNS_PER_S,
    WARMUP,
    Json,
    coloured,
    layout,
    note,
    override,
    table,
    target,
    timeseries,
    xy,
)
from infersiege_grafana.shell import channel, dashboard, engine, engine_host, gpu, host, run, scenario

WHERE = f"{q.RUN} AND {q.CUT}"
EACH_STAGE = "\"scenario\" = 'all' AND \"channel\" = 'all' AND \"stage\" != 'all'"
PHASES = f"{WHERE} AND {q.MEASURED}"
STAGES = f"{q.RUN} AND {EACH_STAGE}"
WINDOW = "infersiege_window"
CARD = ("host", "uuid")
ENGINE = ("host", "instance")

READING = """\
**What was the limit?** Read downwards, at the moment at which latency turns up:
1. *Client* first (last row): a client near a full core, or late by more than 100 ms, is the limit, and nothing
else counts.
2. *Queue*: requests that **wait** in the engine while *running* stands still: it takes no more at a time.
3. *KV cache* near 100 % or *preemptions*: memory for contexts is the limit, not compute.
4. *SM active* (not utilisation: that is only the share of time in which any kernel ran) near 100 %: compute. *DRAM*
near 100 % and SM lower: memory bandwidth. *Power* at its limit: the card is slowed.
5. *TTFT of client and server* apart: the time is lost before the engine (network, gateway, quota)."""


def stage_table() -> Json:
    columns = {
        "stage": "stage", "users": "users_asked", "sessions/s": "rate_asked", "in flight": "in_flight_mean",
        "asked/s": "asked_rate", "sent/s": "sent_rate", "finished/s": "finished_rate", "goodput/s": "goodput",
        "tokens/s": "throughput", "failed": "error_share", "n": "ttft_n",
        "TTFT p50": "ttft_p50_ms", "TTFT p95": "ttft_p95_ms", "TTFT p99": "ttft_p99_ms", "TTFT mean": "ttft_mean_ms",
        "TTFT server mean": "server_ttft_mean_ms",
        "TPOT p50": "tpot_p50_ms", "TPOT p95": "tpot_p95_ms", "E2E p95": "e2e_p95_ms",
        "KV peak": "kv_use_peak", "waiting peak": "waiting_peak",
        "SM active": "sm_active_mean", "power": "power_mean_w", "J/token": "energy_per_output_token_j",
        "start": "started_ms",
    }  # fmt: skip
    times = {name: "ms" for name in columns if "TTFT" in name or "TPOT" in name or "E2E" in name}
    units = {**times, "failed": SHARE, "KV peak": SHARE, "SM active": SHARE, "power": "watt"}
    return table(
        "Stages, exact",
        "Figures of the steady phase of each stage, the same to the last digit as in summary.json; rates are turns "
        "per second.",
        "short",
        target(q.run_rows(columns, STAGES), table=True),
        units=units,
        overrides=[
            override("failed", thresholds=_steps(("green", None), ("orange", 0.001), ("red", 0.01)),
                     custom_cellOptions={"type": "color-text"}),
            override("KV peak", thresholds=_steps(("green", None), ("orange", 0.9), ("red", 0.98)),
                     custom_cellOptions={"type": "color-text"}),
        ],
        hidden=("Time", "start"),
        sort=("start", False),
    )  # fmt: skip


def _steps(*steps: tuple[str, float | None]) -> Json:
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for colour, value in steps]}


def limit_table() -> Json:
    columns = {
        "stage": "stage", "limit": "limit", "because": "limit_reason", "KV mean": "kv_use_mean",
        "waiting mean": "waiting_mean", "preemptions": "preemptions",
        "power-capped": "power_capped_share", "throttled": "throttled_share",
    }  # fmt: skip
    return table(
        "What limited it",
        "The first limit that the figures of the stage show, and the figures that this rests on; never utilisation "
        "alone.",
        "short",
        target(q.run_rows(columns, STAGES), table=True),
        units={"KV mean": SHARE, "power-capped": SHARE, "throttled": SHARE},
        overrides=[override("because", custom_width=560), override("limit", custom_width=150)],
        sort=("stage", False),
    )


def dots() -> list[Json]:
    """One dot per stage of every run in the range: a knee shows when runs or stages differ in load."""
    where = f"{EACH_STAGE} AND {q.OVERLAPS}"
    load = "turns in flight, mean"

    def dot(title: str, words: str, unit: str, columns: dict[str, str], overrides: list[Json]) -> Json:
        query = q.run_rows({load: "in_flight_mean", **columns}, where)
        return xy(
            title, f"{words} One dot per stage (and run) of the time range.", unit, target(query, table=True),
            x_unit="short", x_name=load, lines=False, overrides=overrides,
        )  # fmt: skip

    return [
        dot(
            "Load against TTFT",
            "Where the dots turn up, more load only makes users wait.",
            "ms",
            {"TTFT p50": "ttft_p50_ms", "TTFT p95": "ttft_p95_ms"},
            coloured({"TTFT p50": "#5794F2", "TTFT p95": "#FF9830"}),
        ),
        dot(
            "Load against TPOT",
            "Where the dots turn up, batches are so large that each user reads slower.",
            "ms",
            {"TPOT p50": "tpot_p50_ms", "TPOT p95": "tpot_p95_ms"},
            coloured({"TPOT p50": "#5794F2", "TPOT p95": "#FF9830"}),
        ),
        dot(
            "Load against throughput",
            "Where the dots stop rising, the engine gives no more.",
            TOKENS_PER_S,
            {"output tokens/s": "throughput"},
            coloured({"output tokens/s": "#37872D"}),
        ),
    ]


def _alike(colours: dict[str, str]) -> list[Json]:
    """One colour for all series whose name begins so."""
    return [
        override(f"^{start}.*", regex=True, color={"mode": "fixed", "fixedColor": colour})
        for start, colour in colours.items()
    ]


def load_and_latency() -> list[Json]:
    return [
        timeseries(
            "Load",
            "Turns that were asked, sent and ended well per second, and turns in flight (right axis; in the exact "
            "second once the run is over).",
            TURNS_PER_S,
            target(q.per_second(WINDOW, {"asked": "due", "sent": "sent", "finished": "ok"}, WHERE), alias="$col"),
            target(q.over_time("infersiege_live", {"in flight": 'max("in_flight")'}, q.RUN), alias="$col"),
            overrides=[
                *coloured({"asked": "#B877D9", "sent": "#5794F2", "finished": "#73BF69", "in flight": "#8E8E8E"}),
                override("in flight", unit="short", custom_axisPlacement="right", custom_fillOpacity=10),
            ],
        ),
        timeseries(
            "TTFT: what users feel, and what the server says",
            "Time to first token of the last 60 s at the client, and the engine's own, interpolated in its buckets "
            "(so it may lie a bucket's width too high): a client far above it waits before the engine.",
            "ms",
            target(
                q.over_time(
                    WINDOW,
                    {"client p50": 'last("ttft_p50_60s_ms")', "client p95": 'last("ttft_p95_60s_ms")'},
                    PHASES,
                    ("phase",),
                ),
                alias="$col $tag_phase",
            ),
            target(
                q.over_time(
                    "engine",
                    {"server p50 (buckets)": 'last("ttft_p50_ms")', "server p95 (buckets)": 'last("ttft_p95_ms")'},
                    q.ENGINE,
                    ENGINE,
                ),
                alias="$col $tag_host $tag_instance",
            ),
            overrides=[
                *_alike({"client p50": "#5794F2", "client p95": "#FF9830"}),
                *_alike({"server p50": "#96D98D", "server p95": "#37872D"}),
                WARMUP,
            ],
        ),
    ]


def tokens() -> list[Json]:
    return [
        timeseries(
            "Output tokens, and time per token",
            "Tokens per second of the whole system and the p95 time per token that a user reads at (right axis): one "
            "rises at the cost of the other.",
            TOKENS_PER_S,
            target(q.per_second(WINDOW, {"tokens of ended turns": "output_tokens"}, WHERE), alias="$col"),
            target(
                q.over_time("engine", {"generated": q.per_interval("generated_tokens")}, q.ENGINE, ENGINE),
                alias="engine $tag_host $tag_instance",
            ),
            target(
                q.over_time(WINDOW, {"TPOT p95": 'last("tpot_p95_60s_ms")'}, PHASES, ("phase",)),
                alias="$col $tag_phase",
            ),
            overrides=[
                *_alike({"tokens of": "#5794F2", "engine": "#8AB8FF", "TPOT p95": "#FF9830"}),
                override("^TPOT p95 .*", regex=True, unit="ms", custom_axisPlacement="right"),
                WARMUP,
            ],
        ),
    ]


def engine_rows() -> list[Json]:
    def each(words: str, expression: str) -> Json:
        return target(
            q.over_time("engine", {"v": expression}, q.ENGINE, ENGINE), alias=f"{words} $tag_host $tag_instance"
        )

    return [
        timeseries(
            "Queue in the engine",
            "Requests that each engine works on and requests that wait: waiting ones are load above what it takes at a "
            "time.",
            "suffix: requests",
            each("running", 'max("running")'),
            each("waiting", 'max("waiting")'),
            each("preempted/s", q.per_interval("preemptions")),
            overrides=[
                override(
                    "waiting.*", regex=True, color={"mode": "fixed", "fixedColor": "#E02F44"}, custom_fillOpacity=15
                )
            ],
        ),
        timeseries(
            "KV cache and prefix cache",
            "Share of the KV cache in use (near 100 % contexts are thrown out and computed again), and share of prompt "
            "tokens found in the prefix cache.",
            SHARE,
            each("KV use", 'max("kv_use")'),
            each("prefix hits", 'sum("prefix_hits") / sum("prefix_queries")'),
            steps=(("green", None), ("orange", 0.9), ("red", 0.98)),
            most=1,
        ),
    ]


def gpu_rows() -> list[Json]:
    return [
        timeseries(
            "GPU: SM active",
            "Share of time in which the SMs had work, per card with the band from the idlest to the busiest: near "
            "100 % compute is used up.",
            SHARE,
            target(q.over_time("gpu", {"sm": 'mean("sm_active")'}, q.GPU, CARD), alias="$tag_host $tag_uuid"),
            target(
                q.spread_over("gpu", "sm_active", q.GPU, CARD, least="idlest card", most="busiest card"), alias="$col"
            ),
            overrides=[BAND, override("idlest card", custom_lineWidth=0)],
            most=1,
        ),
        timeseries(
            "GPU: power",
            "Power of all cards together against their limit together: at the limit cards are slowed.",
            "watt",
            target(
                q.summed_over("gpu", {"power": "power_mean_w", "limit": "power_limit_w"}, q.GPU, CARD), alias="$col"
            ),
            overrides=[
                *coloured({"power": "#FADE2A", "limit": "#E02F44"}),
                override("limit", custom_lineStyle={"fill": "dash", "dash": [8, 6]}),
            ],
        ),
    ]


BAND = override("busiest card", custom_fillBelowTo="idlest card", custom_lineWidth=0)


def client_row() -> list[Json]:
    return [
        timeseries(
            "Is it us? Client CPU and lateness",
            "Busiest worker's share of a core, and how late 95 % of the turns were at most (right axis): both low, or "
            "the client is the limit.",
            SHARE,
            target(q.over_time("infersiege_client", {"busiest worker": 'max("cpu_share")'}, q.RUN), alias="$col"),
            target(
                q.over_time(WINDOW, {"lateness p95": 'last("lateness_p95_60s_ms")'}, PHASES, ("phase",)),
                alias="$col $tag_phase",
            ),
            steps=(("green", None), ("orange", 0.8), ("red", 1.0)),
            overrides=[override("^lateness p95 .*", regex=True, unit="ms", custom_axisPlacement="right"), WARMUP],
        )
    ]


def build() -> Json:
    full = [(6, [panel]) for panel in (*load_and_latency(), *tokens(), *engine_rows(), *gpu_rows(), *client_row())]
    sections = [
        ("Figures of the run", [(4, [stage_table()]), (4, [limit_table()]), (5, [note("In which order", READING)])]),
        ("Load against what it costs", [(8, dots())]),
        ("One time axis (the crosshair is shared)", full),
    ]
    return dashboard(
        "infersiege-capacity",
        "What was the limit: load, latency, engine queue, KV cache and GPUs on one time axis, with the exact figures.",
        [run(), scenario(), channel(), host(), gpu(), engine_host(), engine()],
        layout(sections),
        live=False,
    )
