"""report.html: one file that says what was run, what came out, and whether to believe it. Opens without any request.

Holds aggregates only: its size does not grow with the turns, and no text of a prompt or an answer is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.offline

from infersiege.records import EventRow, Summary, WindowRow
from infersiege.report.account_html import account_html, events_html
from infersiege.report.baseline_html import baseline_charts, baseline_html
from infersiege.report.breakdown import by_length, by_turn_chart, by_turn_table, server_chart, server_table
from infersiege.report.charts import Chart, Series
from infersiege.report.collect import Collected
from infersiege.report.details import Details
from infersiege.report.errors_html import errors_html
from infersiege.report.glossary import glossary
from infersiege.report.headline import cards, emulated, verdict
from infersiege.report.health_charts import HealthSeries
from infersiege.report.health_html import health_html
from infersiege.report.latency_html import delivered_html, group_notes, latency_html, load_html, replicas_html
from infersiege.report.markup import grid, script_json, section, text
from infersiege.report.numbers import moment, span
from infersiege.report.page import POLICY, SCRIPT, STYLE, script_words
from infersiege.report.quality_html import quality_charts, quality_html
from infersiege.report.rules_html import rules_html
from infersiege.report.run_html import what_was_run
from infersiege.report.shapes import distribution, distributions, shapes_of, slack
from infersiege.report.slow_html import slowest_html
from infersiege.report.stages import grafana_links, limit_banner, stage_tables
from infersiege.report.watched import WatchedSeries
from infersiege.report.words import ENGLISH, Words
from infersiege.resources import Watched
from infersiege.rundir import PlanFile

Section = tuple[str, ...]
"""Key, title, parts in HTML."""


@dataclass(frozen=True, slots=True)
class _Charts:
    """All charts of the page, by section."""

    load: list[Chart]
    shapes: list[Chart]
    latency: list[Chart]
    breakdown: list[Chart]
    errors: list[Chart]
    health: list[Chart]
    hardware: list[Chart]
    quality: list[Chart]
    baseline: list[Chart]

    def all(self) -> list[Chart]:
        return [
            *self.load, *self.shapes, *self.latency, *self.breakdown, *self.errors, *self.health, *self.hardware,
            *self.quality, *self.baseline,
        ]  # fmt: skip


def render(
    summary: Summary,
    plan: PlanFile,
    windows: Sequence[WindowRow],
    collected: Collected,
    events: Sequence[EventRow] = (),
    watched: Watched | None = None,
    details: Details | None = None,
    say: Words = ENGLISH,
) -> str:
    """The whole page, in the language of `say`. All arguments but it are of the same run as `summary`."""
    details = Details() if details is None else details
    axis = Series(windows, collected, plan.stages, summary.started_ns, say)
    length_charts, length_table = by_length(details, say)
    charts = _charts(summary, collected, details, axis, events, watched, length_charts)
    sections = _sections(summary, plan, collected, events, details, charts, length_table, say)
    head = _header(summary, plan, sections, say)
    body = "".join(section(key, title, *parts) for key, title, *parts in sections)
    data = script_json({chart.key: chart.figure for chart in charts.all() if chart.figure is not None})
    words = text(script_json(script_words(say)))
    return _document(summary.name, f'{head}<main id="main" data-words="{words}">{body}</main>', data, say)


def _charts(
    summary: Summary,
    collected: Collected,
    details: Details,
    axis: Series,
    events: Sequence[EventRow],
    watched: Watched | None,
    length_charts: list[Chart],
) -> _Charts:
    say = axis.say
    whole = summary.groups[0] if summary.groups else None
    lateness = whole.distributions.get("lateness") if whole is not None else None
    own = [distribution("lateness", shapes_of(collected, "lateness"), lateness, say)]
    own.append(slack(shapes_of(collected, "slack"), say))
    return _Charts(
        load=[axis.load(), axis.throughput(), axis.in_flight()],
        shapes=distributions(collected, whole, say) if whole is not None else [],
        latency=[axis.latency(name) for name in ("ttft", "e2e", "tpot")] + server_chart(details, axis, say),
        breakdown=[*by_turn_chart(collected, say), *length_charts],
        errors=[axis.errors()],
        health=[*own, *HealthSeries(details, axis, events).charts()],
        hardware=WatchedSeries(watched, axis).charts() if watched else [],
        quality=quality_charts(summary, say),
        baseline=baseline_charts(summary, say),
    )


def _sections(
    summary: Summary,
    plan: PlanFile,
    collected: Collected,
    events: Sequence[EventRow],
    details: Details,
    charts: _Charts,
    length_table: str,
    say: Words,
) -> list[Section]:
    """In the order in which people ask: what came out, for whom, why, and whether to believe it."""
    nothing = f'<p class="soft">{text(say("Nothing was measured."))}</p>'
    breakdown = (by_turn_table(collected, say), length_table)
    answers = quality_html(summary, charts.quality, details, say)
    against = baseline_html(summary, charts.baseline, say)
    by = (grid(charts.breakdown) if charts.breakdown else "", *breakdown)
    return [
        ("figures", say("Figures"), cards(summary.groups[0], say) if summary.groups else nothing),
        (
            "groups",
            say("By scenario and channel"),
            latency_html(summary, say),
            load_html(summary, say),
            delivered_html(summary, say),
            replicas_html(summary, say),
            group_notes(summary, say),
        ),
        ("rules", say("Rules"), rules_html(summary, say)),
        *([("baseline", say("Against the baseline"), *against)] if against else []),
        ("load", say("Load"), grid(charts.load)),
        *_hardware(summary, plan, charts.hardware, say),
        ("latency", say("Latency"), grid([*charts.shapes, *charts.latency]), server_table(summary, say)),
        *([("breakdown", say("By turn and prompt length"), *by)] if any(by) else []),
        *([("quality", say("Quality of the answers"), *answers)] if answers else []),
        ("errors", say("Errors"), grid(charts.errors), errors_html(collected, details, summary, say)),
        ("slowest", say("Slowest turns"), slowest_html(details, summary.started_ns, say)),
        ("health", say("Load generator"), health_html(summary, collected, charts.health, say)),
        (
            "account",
            say("Account of all turns"),
            account_html(summary, say),
            events_html(events, summary.started_ns, say),
        ),
        ("plan", say("What was run"), what_was_run(plan, summary, say)),
        ("glossary", say("Words and formulas"), glossary(say)),
    ]


def _hardware(summary: Summary, plan: PlanFile, charts: Sequence[Chart], say: Words) -> list[Section]:
    """The section on GPU and engine; none where nothing was watched and neither database nor dashboard is named."""
    links = grafana_links(plan, summary, say)
    telemetry = plan.plan.get("telemetry")
    in_database = isinstance(telemetry, dict) and bool(telemetry.get("influx_url"))
    if not summary.resources and not links and not in_database:
        return []
    tables = stage_tables(summary, in_database=in_database, say=say)
    return [("resources", say("GPU and engine"), links, tables, grid(charts) if charts else "")]


def _header(summary: Summary, plan: PlanFile, sections: Sequence[Section], say: Words) -> str:
    links = "".join(f'<a href="#{key}">{text(title)}</a>' for key, title, *_ in sections)
    return (
        f'<a class="skip" href="#main">{text(say("Skip to the figures"))}</a>'
        f'<header class="top"><p class="kind">{text(say("infersiege run report"))}</p>'
        f'<button type="button" id="theme" hidden>{text(say("Dark or light"))}</button><h1>{text(summary.name)}</h1>'
        f'<p class="sub">{text(_subtitle(summary, plan, say))}</p>{emulated(summary, say)}{verdict(summary, say)}'
        f"{limit_banner(summary, say)}"
        f'<nav aria-label="{text(say("Sections"))}">{links}</nav></header>'
    )


def _subtitle(summary: Summary, plan: PlanFile, say: Words) -> str:
    steady = summary.groups[0].steady_duration_ns if summary.groups else None
    targets = ", ".join(
        say("{model} on {engine}", model=channel.model, engine=channel.engine) for channel in plan.channels.values()
    )
    steady_for = say("steady for {time}", time=span(steady))
    return f"{targets} · {moment(summary.started_ns)} · {steady_for} · {say('run {id}', id=summary.run_id)}"


def _document(name: str, body: str, data: str, say: Words) -> str:
    made = say("Made by infersiege from turns.jsonl and plan.json; infersiege report makes it anew.")
    needs = say("The charts need JavaScript; every table and figure above is complete without it.")
    return (
        f'<!doctype html><html lang="{say.language}"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(name)} – infersiege</title><style>{STYLE}</style></head><body>{body}"
        f"<footer>{text(made)}<noscript><p>{text(needs)}</p></noscript></footer>"
        f'<script type="application/json" id="figure-data">{data}</script>'
        f"<script>{plotly.offline.get_plotlyjs()}</script><script>{SCRIPT}</script></body></html>\n"
    )
