"""*Compare runs*: two or three runs laid over one another from their steady start, and exact figures."""

from __future__ import annotations

from infersiege_grafana import queries as q
from infersiege_grafana.panels import (
    EMULATED,
    SHARE,
    TOKENS_PER_S,
    TURNS_PER_S,
    Json,
    coloured,
    layout,
    note,
    override,
    table,
    target,
    wide,
    without_absent,
    xy,
)
from infersiege_grafana.shell import DESCENDING, channel, dashboard, scenario, variable

RUNS = {"third": "#8E8E8E", "baseline": "#FF9830", "run": "#5794F2"}
"""Variable -> colour, in every panel; the last is drawn on top."""
ANY_RUN = '"run" =~ /^(${run:regex}|${baseline:regex}|${third:regex})$/'
WHOLE = f"{q.CUT} AND \"stage\" = 'all'"
SINCE = "since steady start"

FIGURES = {
    "sent (turns/s)": "sent_rate", "finished (turns/s)": "finished_rate", "goodput (turns/s)": "goodput",
    "output (tokens/s)": "throughput", "failed (share)": "error_share", "cached prompt tokens (share)": "cache_share",
    "turns in flight, mean": "in_flight_mean",
    "TTFT p50 (ms)": "ttft_p50_ms", "TTFT p95 (ms)": "ttft_p95_ms", "TTFT p99 (ms)": "ttft_p99_ms",
    "TTFT from due p95 (ms)": "ttft_from_due_p95_ms",
    "TPOT p50 (ms)": "tpot_p50_ms", "TPOT p95 (ms)": "tpot_p95_ms",
    "gap p99 (ms)": "gap_p99_ms", "E2E p50 (ms)": "e2e_p50_ms", "E2E p95 (ms)": "e2e_p95_ms",
    "lateness p95 (ms)": "lateness_p95_ms", "turns behind it": "ttft_n",
    "energy (J/token)": "energy_per_output_token_j", "power, mean (W)": "power_mean_w",
    "KV use, peak (share)": "kv_use_peak", "waiting, peak (requests)": "waiting_peak",
    "SM active, mean (share)": "sm_active_mean",
}  # fmt: skip

DIFFERENCE: list[Json] = [
    {
        "id": "reduce",
        "filter": {"id": "byRefId", "options": "A"},
        "options": {"mode": "seriesToRows", "reducers": ["max"], "includeTimeField": False},
    },
    {
        "id": "reduce",
        "filter": {"id": "byRefId", "options": "B"},
        "options": {"mode": "seriesToRows", "reducers": ["min"], "includeTimeField": False},
    },
    {"id": "joinByField", "options": {"byField": "Field", "mode": "outer"}},
    without_absent("Max", "Min"),
    {
        "id": "calculateField",
        "options": {
            "mode": "binary",
            "alias": "difference",
            "binary": {"left": "Max", "operator": "-", "right": "Min"},
            "replaceFields": False,
        },
    },
    {
        "id": "calculateField",
        "options": {
            "mode": "binary",
            "alias": "of the baseline",
            "binary": {"left": "difference", "operator": "/", "right": "Min"},
            "replaceFields": False,
        },
    },
    {
        "id": "organize",
        "options": {
            "renameByName": {"Field": "figure", "Max": "run", "Min": "baseline"},
            "indexByName": {"Field": 0, "Max": 1, "Min": 2, "difference": 3, "of the baseline": 4},
        },
    },
]
"""Each query has one row, so `max` and `min` are that value: two reducers give two columns to subtract."""


def figures() -> Json:
    def one(run_variable: str) -> Json:
        where = f'"run" =~ /^${{{run_variable}:regex}}$/ AND {WHOLE}'
        return target(q.run_rows(FIGURES, where, time=q.COMPARED_ROWS), table=True)

    no_share = [
        {"type": "special", "options": {"match": "nan", "result": {"text": "–"}}},
        {"type": "range", "options": {"from": 1000, "to": None, "result": {"text": "–"}}},
    ]
    percent = override("of the baseline", unit=SHARE, decimals=1, mappings=no_share)
    return table(
        "Run against baseline, exact",
        "Figures of the steady phases as in summary.json, and their difference; what only one of the two has is left "
        "out.",
        "short",
        one("run"),
        one("baseline"),
        overrides=[percent, override("figure", custom_width=260)],
        hidden=(),
        transformations=DIFFERENCE,
    )


def about() -> Json:
    columns = {
        "run": "run_key", "name": "name", "models": "models", "engines": "engines", "labels": "labels",
        "users": "users_asked", "sessions/s": "rate_asked", "verdict": "verdict",
        "why figures can't be trusted": "invalid", "emulated": "emulated", "limit": "limit",
    }  # fmt: skip
    where = f"{ANY_RUN} AND {WHOLE}"
    return table(
        "What is compared",
        "Target, labels and load of each run: only what differs on purpose should differ, and no run may be invalid.",
        "short",
        target(q.run_rows(columns, where, time=q.COMPARED_ROWS), table=True),
        overrides=[override("emulated", mappings=[EMULATED])],
        sort=("run", True),
    )


def overlay(title: str, description: str, unit: str, field: str, *, rate: bool = False) -> Json:
    """One line per run, by time since its own steady start."""
    targets = [
        target(
            q.rate_since_steady(field, name, name) if rate else q.since_steady({name: field}, name),
            table=True,
        )
        for name in RUNS
    ]
    return xy(
        title, description, unit, *targets, x_unit="s", x_name=SINCE, lines=True, overrides=coloured(RUNS)
    )  # fmt: skip


def with_times(*runs: Json) -> list[Json]:
    """Each variable that names a run, followed by two hidden ones, in whole numbers: when its steady phase began (ms
    since the epoch), and how long turns of it were sent (s)."""
    found: list[Json] = []
    for one in runs:
        found.append(one)
        for name, words, query in (
            ("start", "When its steady phase began, in ms since the epoch.", q.starts(one["name"])),
            ("length", "Seconds in which it sent steady turns.", q.lengths(one["name"])),
        ):
            found.append(variable(f"{one['name']}_{name}", "", words, query, regex=r"/^(\d+)/", hidden=True))
    return found


def build() -> Json:
    aligned = "each run from the start of its own steady phase."
    run = variable(
        "run", "Run", "The run to judge: runs up to 30 days before the end of the time range.", q.RUNS_TO_COMPARE,
        sort=DESCENDING,
    )  # fmt: skip
    baseline = variable(
        "baseline", "Baseline", "What it is held against: the oldest of these runs, if you choose none.",
        q.RUNS_TO_COMPARE,
    )  # fmt: skip
    third = variable(
        "third", "Third run", "One more for the charts; the same as the baseline shows nothing new.",
        q.RUNS_TO_COMPARE,
    )  # fmt: skip
    latency = [
        overlay("TTFT p95", f"Time to first token, p95 over 60 s, {aligned}", "ms", "ttft_p95_60s_ms"),
        overlay("TPOT p95", f"Time per output token, p95 over 60 s, {aligned}", "ms", "tpot_p95_60s_ms"),
        overlay("E2E p95", f"Time to the last token, p95 over 60 s, {aligned}", "ms", "e2e_p95_60s_ms"),
    ]
    means = "in means over whole 10 s, warm-up before 0:"
    rates = [
        overlay("Turns sent", f"Load {means} {aligned}", TURNS_PER_S, "sent", rate=True),
        overlay("Turns that ended well", f"What came back {means} {aligned}", TURNS_PER_S, "ok", rate=True),
        overlay("Output tokens", f"Of turns that ended, {means} {aligned}", TOKENS_PER_S, "output_tokens", rate=True),
    ]
    sections = [
        ("", [(6, [about()])]),
        ("Steady phase over steady phase", [(9, latency), (9, rates)]),
        ("Exact figures", [(18, [wide(figures(), 14), wide(note("How to compare", READING), 10)])]),
    ]
    return dashboard(
        "infersiege-compare",
        "Two or three runs laid over one another from the start of their steady phase, with exact differences.",
        [*with_times(run, baseline, third), scenario(ANY_RUN), channel(ANY_RUN)],
        layout(sections),
        live=False,
    )


READING = """\
* Choose **Run** and **Baseline** above. The lists hold runs of the last 30 days before the end of the time range;
panels follow them wherever they lie, so the time range needs no change.
* **Same load?** *Turns sent* must lie over one another. In a closed loop a slower server gets less load: compare
latency at the same *turns in flight*, and throughput beside it.
* **Same cache?** *Cached prompt tokens* explain most surprises in TTFT.
* **Enough turns?** *Turns behind it*: a p99 of a few hundred turns moves by chance.
* A run that can't be trusted says why above; no difference to it means anything."""
