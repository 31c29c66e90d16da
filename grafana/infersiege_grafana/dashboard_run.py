"""*Run*: one run, while it goes on and afterwards."""

from __future__ import annotations

from infersiege_grafana import queries as q
from infersiege_grafana.panels import (
    EMULATED,
    SHARE,
    STEADY_COLOURS,
    TOKENS_PER_S,
    TURNS,
    TURNS_PER_S,
    WARMUP,
    Json,
    coloured,
    layout,
    override,
    stat,
    table,
    target,
    timeseries,
)
from infersiege_grafana.shell import channel, dashboard, run, scenario

WHERE = f"{q.RUN} AND {q.CUT}"
WHOLE = f"{q.RUN} AND {q.WHOLE_RUN}"
LIVE = "infersiege_live"
WINDOW = "infersiege_window"

RUN_LINK = (
    "/d/infersiege-run?var-run=${__data.fields.Run}"
    "&from=${__data.fields.started.numeric}&to=${__data.fields.ended.numeric}"
)
"""To the run's own range, in epoch ms as the run recorded it: the same in every time zone."""

COUNT_AXIS = override(
    "turns behind it.*", regex=True, unit="short", custom_axisPlacement="right", custom_lineWidth=0,
    custom_fillOpacity=8, custom_showPoints="never",
    custom_hideFrom={"legend": True, "tooltip": False, "viz": False}, color={"mode": "fixed", "fixedColor": "#8E8E8E"},
)  # fmt: skip


def percentiles(metric: str, over: str) -> Json:
    """last() of what the master computed, by phase; the number of turns behind it beside it."""
    columns = {stat: f'last("{metric}_{stat}_{over}_ms")' for stat in ("p50", "p95", "p99")}
    columns["turns behind it"] = f'last("{metric}_n_{over}")'
    return target(q.over_time(WINDOW, columns, f"{WHERE} AND {q.MEASURED}", ("phase",)), alias="$col $tag_phase")


def latency(title: str, metric: str, over: str, description: str, unit: str = "ms") -> Json:
    colours = [
        override(f"{name} .*", regex=True, color={"mode": "fixed", "fixedColor": colour})
        for name, colour in STEADY_COLOURS.items()
    ]
    return timeseries(
        title, description, unit, percentiles(metric, over), overrides=[*colours, WARMUP, COUNT_AXIS]
    )  # fmt: skip


def headline() -> list[Json]:
    return [
        stat(
            "State", "Whether the run still goes on.", "short",
            target(q.run_rows({"state": "state"}, WHOLE)),
            words={0: ("running", "blue"), 1: ("ended", "green")},
        ),
        stat(
            "Workers", "Workers that are alive; fewer than the run began with means load is missing.", "short",
            target(q.latest(LIVE, {"alive": "workers", "of": "workers_expected"}, q.RUN), alias="$col"), named=True,
        ),
        stat(
            "In flight", "Turns that wait for their answer at this moment.", TURNS,
            target(q.latest(LIVE, {"in flight": "in_flight"}, q.RUN)), decimals=0,
        ),
        stat(
            "Failed share",
            "Failed turns / turns that ended by themselves, of the scenario and channel in the time range: above 1 % "
            "latencies look better than they are.",
            SHARE,
            target(
                f'SELECT sum("failed") / (sum("ok") + sum("failed")) AS "failed" FROM "{WINDOW}" '
                f"WHERE $timeFilter AND {WHERE}"
            ),
            steps=(("green", None), ("orange", 0.001), ("red", 0.01)), decimals=2,
        ),
        stat(
            "TTFT p95", "Time to first token that 95 % of the steady turns of this stage stayed under, to date.", "ms",
            target(q.latest(WINDOW, {"p95": "ttft_p95_stage_ms"}, f"{WHERE} AND \"phase\" = 'steady'")),
        ),
        stat(
            "TPOT p95", "Time per output token that 95 % of the steady turns of this stage stayed under, to date.",
            "ms",
            target(q.latest(WINDOW, {"p95": "tpot_p95_stage_ms"}, f"{WHERE} AND \"phase\" = 'steady'")),
        ),
        stat(
            "Client event loop",
            "Longest time in which a worker did not look at its sockets: above 100 ms the client, not the server, may "
            "be what you measure.",
            "ms",
            target(f'SELECT max("hub_lag_max_ms") AS "lag" FROM "infersiege_client" WHERE $timeFilter AND {q.RUN}'),
            steps=(("green", None), ("orange", 50), ("red", 100)),
        ),
        stat(
            "Points missing",
            "Points of runs, by the host that writes them, that wait on disk, were refused or were lost: the panels "
            "lack them. Writers (below) tells which it is, and has the agents' too.",
            "short",
            target(
                'SELECT last("spooled") + last("rejected") + last("dropped") AS "missing" FROM "infersiege_writer" '
                "WHERE $timeFilter AND \"source\" = 'run' GROUP BY \"host\"",
                alias="$tag_host",
            ),
            steps=(("green", None), ("orange", 1)), named=True,
        ),
    ]  # fmt: skip


def load() -> list[Json]:
    return [
        timeseries(
            "Turns: asked, sent, finished",
            "The load that the plan asked for, what was sent and what ended well; lines that part show a client or a "
            "server that can't keep up.",
            TURNS_PER_S,
            target(q.per_second(WINDOW, {"asked": "due", "sent": "sent", "finished": "ok"}, WHERE), alias="$col"),
            overrides=coloured({"asked": "#B877D9", "sent": "#5794F2", "finished": "#73BF69"}),
        ),
        timeseries(
            "Sessions and turns in flight",
            "Users (or agents) at work and requests that wait for their answer, as the workers tell at each moment.",
            "short",
            target(
                q.over_time(
                    LIVE,
                    {
                        "sessions asked": 'last("users_asked")',
                        "sessions": 'last("sessions")',
                        "turns in flight": 'last("in_flight")',
                    },
                    q.RUN,
                ),
                alias="$col",
            ),
            target(q.over_time(LIVE, {"sessions/s asked (open loop)": 'last("rate_asked")'}, q.RUN), alias="$col"),
            overrides=coloured({"sessions asked": "#B877D9", "sessions": "#5794F2", "turns in flight": "#FF9830"}),
        ),
    ]


def output() -> list[Json]:
    return [
        timeseries(
            "Output tokens",
            "Tokens counted when their turn ended, and in the second in which they arrived: the engine's throughput. "
            "While the run goes on, those of open turns are missing in both.",
            TOKENS_PER_S,
            target(q.per_second(WINDOW, {"of ended turns": "output_tokens"}, WHERE), alias="$col"),
            target(q.per_second(WINDOW, {"as they arrived": "tokens"}, WHERE), alias="$col"),
            overrides=coloured({"of ended turns": "#8AB8FF", "as they arrived": "#1F60C4"}),
        ),
        timeseries(
            "Goodput",
            "Turns per second that met every per-request rule of the plan, beside all that ended well; without such "
            "rules there is no goodput.",
            TURNS_PER_S,
            target(q.per_second(WINDOW, {"ended well": "ok"}, WHERE), alias="$col"),
            target(q.per_second(WINDOW, {"goodput": "good"}, WHERE), alias="$col"),
            overrides=coloured({"ended well": "#8AB8FF", "goodput": "#37872D"}),
        ),
        timeseries(
            "Failed turns by class",
            "What went wrong, per second: rate limits and overloads are the server's answer to load, client_ classes "
            "are ours.",
            TURNS_PER_S,
            target(
                q.per_second("infersiege_error", {"failed": "count"}, WHERE, ("error_class",)), alias="$tag_error_class"
            ),
            bars=True,
            stack=True,
        ),
    ]


def client_charts() -> list[Json]:
    by_worker = ("worker",)
    return [
        timeseries(
            "Lateness",
            "How long after its due time a turn was sent: the client's own delay, which no server can be blamed for.",
            "ms",
            percentiles("lateness", "60s"),
            steps=(("green", None), ("orange", 50), ("red", 100)),
            overrides=[WARMUP, COUNT_AXIS],
        ),
        timeseries(
            "Worker CPU",
            "Share of one core that each worker process uses: near 1 it can't send more, add workers.",
            SHARE,
            target(
                q.over_time("infersiege_client", {"cpu": 'max("cpu_share")'}, q.RUN, by_worker), alias="$tag_worker"
            ),
            steps=(("green", None), ("orange", 0.8), ("red", 1.0)),
        ),
        timeseries(
            "Worker event loop and garbage collector",
            "Longest time in which a worker did not look at its sockets, and its longest pause: time stamps come from "
            "the kernel, yet sending waits.",
            "ms",
            target(
                q.over_time("infersiege_client", {"loop": 'max("hub_lag_max_ms")'}, q.RUN, by_worker),
                alias="loop $tag_worker",
            ),
            target(
                q.over_time("infersiege_client", {"gc": 'max("gc_pause_max_ms")'}, q.RUN, by_worker),
                alias="gc $tag_worker",
            ),
            steps=(("green", None), ("orange", 50), ("red", 100)),
        ),
    ]


def client_tables() -> list[Json]:
    health = {
        "CPU": "cpu_share", "event loop": "hub_lag_max_ms", "memory": "rss_bytes", "open files": "open_files",
    }  # fmt: skip
    counters = ("written", "acknowledged", "spooled", "rejected", "dropped", "taken_up", "left_out")
    return [
        table(
            "Workers, latest",
            "The latest health of each worker: open descriptors near the limit of its host stop new connections; an "
            "old point of a run that goes on means that the worker is silent.",
            "short",
            target(q.now("infersiege_client", "cpu_share", health, q.RUN, ("worker",)), table=True),
            units={"CPU": SHARE, "event loop": "ms", "memory": "bytes"},
            aged=True,
        ),
        table(
            "Writers",
            "Points that each writer was given and what became of them since it began: dropped ones are lost, spooled "
            "ones come later, rejected ones lie in the spool for a look, and the rest was on its way when the writer "
            "counted.",
            "short",
            target(
                q.now(
                    "infersiege_writer",
                    "written",
                    {**{name.replace("_", " "): name for name in counters}, "clock off by": "clock_offset"},
                    '"source" =~ /.*/',
                    ("host", "source"),
                ),
                table=True,
            ),
            units={"clock off by": "s"},
            aged=True,
        ),
    ]


def runs() -> list[Json]:
    columns = {
        "Run": "run_key", "name": "name", "models": "models", "engines": "engines", "labels": "labels",
        "verdict": "verdict", "why figures can't be trusted": "invalid", "emulated": "emulated",
        "exit code": "exit_code",
        "started": "started_ms", "ended": "ended_ms",
    }  # fmt: skip
    where = f"{q.WHOLE_RUN} AND {q.OVERLAPS}"
    return [
        table(
            "Runs of this time range",
            "Each run with its target and verdict; its name opens it in its own time range.",
            "short",
            target(q.run_rows(columns, where), table=True),
            units={"started": "dateTimeAsIso", "ended": "dateTimeAsIso"},
            overrides=[
                override("Run", links=[{"title": "This run", "url": RUN_LINK, "targetBlank": False}]),
                override("emulated", mappings=[EMULATED]),
            ],
            sort=("Run", True),
        )
    ]


def build() -> Json:
    rolling = (
        "over the last 60 s, computed by the master from every turn; the grey area is the number of turns behind it."
    )
    to_date = "over the stage and phase to date; at the end these are the run's figures."
    sections = [
        ("The run now", [(4, headline())]),
        ("Load", [(8, load())]),
        (
            "What users feel: the last 60 s",
            [
                (
                    8,
                    [
                        latency(
                            "TTFT, last 60 s",
                            "ttft",
                            "60s",
                            f"Time from sending to the first generated text, {rolling}",
                        ),
                        latency("TPOT, last 60 s", "tpot", "60s", f"Time per output token after the first, {rolling}"),
                        latency("E2E, last 60 s", "e2e", "60s", f"Time from sending to the last token, {rolling}"),
                    ],
                )
            ],
        ),
        (
            "What users feel: the stage to date",
            [
                (
                    7,
                    [
                        latency("TTFT, stage to date", "ttft", "stage", f"Time to first token {to_date}"),
                        latency("TPOT, stage to date", "tpot", "stage", f"Time per output token {to_date}"),
                        latency("E2E, stage to date", "e2e", "stage", f"Time to the last token {to_date}"),
                    ],
                )
            ],
        ),
        ("What came out", [(8, output())]),
        ("Is the client fit?", [(8, client_charts()), (6, client_tables())]),
        ("Runs", [(7, runs())]),
    ]
    return dashboard(
        "infersiege-run",
        "One run while it goes on and afterwards: the load that was asked, what users feel, what fails, and whether "
        "the client itself is fit.",
        [run(), scenario(), channel()],
        layout(sections),
        live=True,
    )
