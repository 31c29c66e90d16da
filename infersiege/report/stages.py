"""What GPUs and engines did in each stage, for people: the limit, the tables, links to Grafana, the points' account."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import quote, urlencode

from infersiege.records import StageResources, Summary, TelemetryAccount
from infersiege.redact import scrub
from infersiege.report.markup import absent, english, items, table, text
from infersiege.report.numbers import count, number, share
from infersiege.report.words import ENGLISH, Words
from infersiege.resources import thin
from infersiege.rundir import PlanFile

GIB = 1 << 30
AROUND_MS = 10_000
"""Dashboards begin and end so long before and after the run."""

DASHBOARDS: Sequence[tuple[str, str]] = (
    ("infersiege-run", "Run"),
    ("infersiege-capacity", "Capacity review"),
    ("infersiege-gpu", "GPU"),
    ("infersiege-compare", "Compare runs"),
)
"""(uid, title) of grafana/dashboards."""


def gib(value: float | None) -> float | None:
    return None if value is None else value / GIB


Figure = tuple[str, str, Callable[[StageResources], str | None]]
"""(title, unit, how a stage's figure is written; None: not measured)."""


def _number(of: Callable[[StageResources], float | None]) -> Callable[[StageResources], str | None]:
    return lambda stage: None if (value := of(stage)) is None else number(value)


def _share(of: Callable[[StageResources], float | None]) -> Callable[[StageResources], str | None]:
    return lambda stage: None if (value := of(stage)) is None else share(value)


ENGINE_FIGURES: Sequence[Figure] = (
    ("KV use", "mean", _share(lambda stage: stage.kv_use_mean)),
    ("KV use", "peak", _share(lambda stage: stage.kv_use_peak)),
    ("Running", "mean", _number(lambda stage: stage.running_mean)),
    ("Running", "peak", _number(lambda stage: stage.running_peak)),
    ("Waiting", "mean", _number(lambda stage: stage.waiting_mean)),
    ("Waiting", "peak", _number(lambda stage: stage.waiting_peak)),
    ("Preempted", "requests", _number(lambda stage: stage.preemptions)),
    ("Prefix hits", "share", _share(lambda stage: stage.prefix_hit_share)),
    ("Engine TTFT", "mean ms", _number(lambda stage: stage.server_ttft_mean_ms)),
    ("Engine TTFT", "p50 ms", _number(lambda stage: stage.server_ttft_p50_ms)),
    ("Engine TTFT", "p95 ms", _number(lambda stage: stage.server_ttft_p95_ms)),
    ("Engine ITL", "mean ms", _number(lambda stage: stage.server_itl_mean_ms)),
)
GPU_FIGURES: Sequence[Figure] = (
    ("GPUs", "", lambda stage: None if stage.gpus is None else count(stage.gpus)),
    ("SM active", "mean", _share(lambda stage: stage.sm_active_mean)),
    ("DRAM", "bandwidth", _share(lambda stage: stage.dram_active_mean)),
    ("Tensor cores", "mean", _share(lambda stage: stage.tensor_active_mean)),
    ("Some kernel ran", "utilisation", _share(lambda stage: stage.utilization_mean)),
    ("Power", "W, all GPUs", _number(lambda stage: stage.power_mean_w)),
    ("Power-capped", "of the time", _share(lambda stage: stage.power_capped_share)),
    ("Throttled", "of the time", _share(lambda stage: stage.throttled_share)),
    ("Energy", "J", _number(lambda stage: stage.energy_j)),
    ("Energy", "J/token", _number(lambda stage: stage.energy_per_output_token_j)),
    ("Memory", "mean GiB", _number(lambda stage: gib(stage.memory_used_mean_bytes))),
    ("Memory", "peak GiB", _number(lambda stage: gib(stage.memory_used_peak_bytes))),
    ("Memory", "of GiB", _number(lambda stage: gib(stage.memory_total_bytes))),
)


SHORT: Sequence[Figure] = (
    ("KV use", "mean", ENGINE_FIGURES[0][2]),
    ("KV use", "peak", ENGINE_FIGURES[1][2]),
    ("running", "mean", ENGINE_FIGURES[2][2]),
    ("waiting", "mean", ENGINE_FIGURES[4][2]),
    ("pre-", "empted", ENGINE_FIGURES[6][2]),
    ("SM", "active", GPU_FIGURES[1][2]),
    ("power", "W", GPU_FIGURES[5][2]),
    ("capped", "share", GPU_FIGURES[6][2]),
    ("energy", "J/token", GPU_FIGURES[9][2]),
    ("memory", "peak GiB", GPU_FIGURES[11][2]),
)
"""What a terminal has room for."""


def measured(figures: Sequence[Figure], stages: Sequence[StageResources]) -> list[Figure]:
    """Those that some stage has."""
    return [figure for figure in figures if any(figure[2](stage) is not None for stage in stages)]


def limit_banner(summary: Summary, say: Words = ENGLISH) -> str:
    """What limited the run, at the top of the page; empty when nothing was watched."""
    stages = summary.resources
    if not stages:
        return ""
    if len(stages) == 1:
        only = stages[0]
        body = f"<strong>{text(say('Limit: {limit}', limit=say(only.limit)))}</strong> "
        body += f"<span>{english(text(only.limit_reason), say)}</span>"
    else:
        listed = items(f"{one.stage}: {one.limit}. {one.limit_reason}" for one in stages)
        body = f"<strong>{text(say('Limit'))}</strong>{english(listed, say, block=True)}"
    return f'<div class="banner none" role="note">{body}</div>'


def unwatched(in_database: bool) -> str:
    """Why there are no figures of GPUs and engines. `in_database`: the run names an InfluxDB that may have them."""
    if in_database:
        return (
            "No series of GPUs or engines are in this run directory. If agents wrote to the run's InfluxDB, "
            "`infersiege report RUN --with-telemetry` fetches them."
        )
    return "Neither GPUs nor engines were watched in this run."


def stage_tables(summary: Summary, *, in_database: bool = False, say: Words = ENGLISH) -> str:
    """Limit and figures of the steady phase, a row per stage, and what must be read with them."""
    stages = summary.resources
    if not stages:
        return f'<p class="soft">{text(say(unwatched(in_database)))}</p>'
    parts = [
        table(
            say("What limited each stage: rules of docs/metrics.md, none of which rests on NVML's utilisation"),
            [(say("Stage"), "", False), (say("Limit"), "", False), (say("Figures that it rests on"), "", False)],
            [
                [text(one.stage), f"<b>{text(say(one.limit))}</b>", english(text(one.limit_reason), say)]
                for one in stages
            ],
        )
    ]
    for caption, figures in (
        (say("Engine in the steady phase, as it tells it itself"), ENGINE_FIGURES),
        (say("GPUs in the steady phase; powers, energies and memory of all of them together"), GPU_FIGURES),
    ):
        shown = measured(figures, stages)
        if shown:
            columns = [(say("Stage"), "", False), *((say(title), say(unit), True) for title, unit, _ in shown)]
            parts.append(table(caption, columns, [_row(one, shown, say) for one in stages]))
    notes = stage_notes(stages)
    return "".join(parts) + (english(items(notes), say, block=True) if notes else "")


def _row(stage: StageResources, figures: Sequence[Figure], say: Words) -> list[str]:
    none = absent(say("not measured"), say)
    cells = [written if (written := of(stage)) is not None else none for _, _, of in figures]
    return [text(stage.stage), *cells]


def stage_notes(stages: Sequence[StageResources]) -> list[str]:
    """Lost cards, Xids and series with holes, by stage."""
    notes = []
    for stage in stages:
        notes += [f"{stage.stage}: not readable for some of the time: {lost}" for lost in stage.gpus_lost]
        notes += [f"{stage.stage}: {xid}, {count(times)} times" for xid, times in stage.xids.items()]
        holes = thin(stage.coverage)
        if holes:
            notes.append(
                f"{stage.stage}: read for only part of the steady phase: {', '.join(holes)}. Means are over what was "
                "read, energies and counts lack the rest; energy per token there is none when a GPU is among them"
            )
    return notes


def account_line(account: TelemetryAccount) -> str:
    """`http://…: written 60,000 = acknowledged 59,990 + rejected 0 + spooled 10 + dropped 0`, and why."""
    parts = f"acknowledged {count(account.acknowledged)} + rejected {count(account.rejected)} + spooled "
    parts += f"{count(account.spooled)} + dropped {count(account.dropped)}"
    line = f"{scrub(account.url)}: points written {count(account.written)} = {parts}"
    if account.left_out:
        line += f"; {count(account.left_out)} values were no finite numbers"
    if account.spooled or account.rejected:
        line += f"; in {account.spool}"
    return f"{line}; {scrub(account.problem)}" if account.problem else line


def grafana_links(plan: PlanFile, summary: Summary, say: Words = ENGLISH) -> str:
    """Links to the dashboards over the run's time, in absolute ms (IG-17); empty without an address of Grafana."""
    telemetry = plan.plan.get("telemetry")
    base = telemetry.get("grafana_url") if isinstance(telemetry, dict) else None
    if not isinstance(base, str) or not base.lower().startswith(("http://", "https://")):
        return ""
    query = urlencode(
        {
            "from": summary.started_ns // 1_000_000 - AROUND_MS,
            "to": -(-summary.ended_ns // 1_000_000) + AROUND_MS,
            "var-run": plan.run_key,
        }
    )
    root = base.rstrip("/")
    links = [
        f'<a href="{text(f"{root}/d/{quote(uid)}?{query}")}" rel="noreferrer">{text(say(title))}</a>'
        for uid, title in DASHBOARDS
    ]
    return f'<p class="links">{text(say("Grafana, over the time of this run:"))} {" · ".join(links)}</p>'
