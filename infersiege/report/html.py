"""report.html: one file that says what was run, what came out, and whether to believe it. Opens without any request.

Holds aggregates only: its size does not grow with the turns, and no text of a prompt or an answer is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec
import plotly.offline

from infersiege.metrics.definitions import METRICS
from infersiege.records import ClientSummary, ClientVerdict, EventRow, Summary, WindowRow
from infersiege.redact import scrub
from infersiege.report.charts import Chart, Series
from infersiege.report.collect import Collected
from infersiege.report.event_words import EVENT_WORDS
from infersiege.report.headline import VERDICTS, cards, cost_cells, emulated, verdict
from infersiege.report.latency import group_name
from infersiege.report.latency_html import delivered_html, latency_html
from infersiege.report.markup import absent, grid, items, script_json, section, table, text
from infersiege.report.numbers import count, figure, moment, number, share, span
from infersiege.report.page import POLICY, SCRIPT, STYLE
from infersiege.report.shapes import distribution, distributions, shapes_of, slack
from infersiege.report.stages import account_line, grafana_links, limit_banner, stage_tables
from infersiege.report.tables import (
    allowance_lines,
    conservation,
    rule_detail,
    served_lines,
    trace_lines,
)
from infersiege.report.watched import WatchedSeries
from infersiege.resources import Watched
from infersiege.rundir import PlanFile

EVENTS_SHOWN = 200

_RATES = ("asked_rate", "sent_rate", "finished_rate", "throughput", "goodput", "cache_share", "delivered_share")


def _load_table(summary: Summary) -> str:
    columns = [("Group", "", False)]
    columns += [
        (METRICS[name].title, METRICS[name].unit if METRICS[name].unit != "ratio" else "", True) for name in _RATES
    ]
    columns += [
        ("In flight", "mean", True),
        ("In flight", "max", True),
        ("Prompt", "tokens", True),
        ("Output", "tokens", True),
    ]
    columns += [("Cost", "", True), ("Cost", "per million output tokens", True)] if summary.costs else []
    rows = []
    for group in summary.groups:
        row = [text(group_name(group))]
        for name in _RATES:
            value = group.rates.get(name)
            written = share(value) if METRICS[name].unit == "ratio" else number(value)
            row.append(absent("not known, or does not apply") if value is None else written)
        row += [
            number(group.in_flight_mean),
            count(group.in_flight_max),
            count(group.prompt_tokens),
            count(group.output_tokens),
        ]
        row += cost_cells(group) if summary.costs else []
        rows.append(row)
    return table("Load in the steady phase", columns, rows)


def _group_notes(summary: Summary) -> str:
    notes = [f"{group_name(group)}: {note}" for group in summary.groups for note in group.notes]
    return items(notes) if notes else ""


def _rules(summary: Summary) -> str:
    if not summary.rules:
        return '<p class="soft">No rule was held against this run: <code>infersiege gate</code> does that.</p>'
    rows = []
    for rule in summary.rules:
        kind = VERDICTS[rule.verdict][0]
        name = text(rule.name) + (' <span class="soft">(warns only)</span>' if rule.severity == "warn" else "")
        name += ' <span class="soft">(built in)</span>' if rule.built_in else ""
        verdict = f'<span class="v-{kind}"><b>{rule.verdict.value.upper()}</b></span>'
        rows.append(
            [verdict, name, text(figure(rule.value, rule.unit)), count(rule.n), text(rule_detail(rule, summary))]
        )
    columns = [("Verdict", "", False), ("Rule", "", False), ("Value", "", True), ("n", "", True), ("Why", "", False)]
    return table("Rules of the plan and built-in rules", columns, rows)


def _errors(collected: Collected, summary: Summary) -> str:
    parts = []
    settled = summary.counts.ok + summary.counts.failed
    if collected.errors:
        rows = [
            [
                text(name),
                count(turns),
                share(turns / settled if settled else None),
                text(collected.examples.get(name, "")),
            ]
            for name, turns in sorted(collected.errors.items(), key=lambda item: (-item[1], item[0]))
        ]
        columns = [
            ("Class", "", False),
            ("Turns", "", True),
            ("Share", "of ok + failed", True),
            ("One of them", "", False),
        ]
        parts.append(table("Failed turns of all phases by class", columns, rows))
    if collected.reasons:
        rows = [
            [text(why), count(turns)] for why, turns in sorted(collected.reasons.items(), key=lambda item: -item[1])
        ]
        parts.append(
            table(
                "Turns that neither succeeded nor failed", [("Outcome: reason", "", False), ("Turns", "", True)], rows
            )
        )
    finishes = summary.groups[0].finish_reasons if summary.groups else {}
    if finishes:
        rows = [[text(name), count(turns)] for name, turns in sorted(finishes.items(), key=lambda item: -item[1])]
        parts.append(table("Finish reasons of steady turns", [("Finish reason", "", False), ("Turns", "", True)], rows))
    return "".join(parts)


def _by_turn(collected: Collected) -> str:
    if not any(turn for _, turn in collected.by_turn):
        return ""
    rows = []
    for (scenario, turn), row in sorted(collected.by_turn.items()):
        ttft, cache = row.ttft.percentile(0.5), row.cache_share
        rows.append(
            [
                f"{text(scenario)} · {turn + 1}",
                count(row.n),
                number(None if ttft is None else ttft / 1e6),
                number(row.prompt_mean),
                absent("the server does not tell cached tokens") if cache is None else share(cache),
            ]
        )
    columns = [("Scenario · turn", "", False), ("n", "", True), ("TTFT p50", "ms", True)]
    columns += [("Prompt", "mean tokens", True), ("Cache share", "", True)]
    return table("By turn of the session: what a growing history and the prefix cache do", columns, rows)


def _slowest(collected: Collected, start_ns: int) -> str:
    rows = [
        [
            f"<code>{text(slow.request_id)}</code>",
            number(slow.e2e_ns / 1e6),
            number(None if slow.ttft_ns is None else slow.ttft_ns / 1e6),
            count(slow.prompt_tokens),
            count(slow.output_tokens),
            number((slow.due_ns - start_ns) / 1e9),
            f"{text(slow.scenario)} · {text(slow.channel)} · <code>{text(slow.session_id)}</code> turn {slow.turn + 1}",
        ]
        for slow in collected.slowest
    ]
    columns = [("x-request-id", "", False), ("E2E", "ms", True), ("TTFT", "ms", True), ("Prompt", "tokens", True)]
    columns += [("Output", "tokens", True), ("Due", "s since start", True), ("Session", "", False)]
    return table("Slowest ok turns of the steady phase; find them in the server's log by their id", columns, rows)


def _facts(rows: Sequence[tuple[str, str]]) -> str:
    """(name, HTML) pairs as a definition list."""
    return f'<dl class="facts">{"".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in rows)}</dl>'


def _what_was_run(plan: PlanFile, summary: Summary) -> str:
    rows = [("Run", f"<code>{text(plan.run_id)}</code>"), ("Started", text(moment(summary.started_ns)))]
    rows.append(("Length", text(span(summary.ended_ns - summary.started_ns))))
    for name, channel in plan.channels.items():
        parts = [f"{text(channel.engine)} {text(channel.version or '(version unknown)')}", text(channel.dialect)]
        parts += [f"model {text(channel.model)}", f"<code>{text(channel.url)}</code>"]
        parts += ["<b>EMULATED</b>"] if channel.emulated else []
        parts += ["<b>certificate not verified</b>"] if channel.insecure else []
        parts += [] if channel.streamed else ["not streamed: no TTFT, no TPOT"]
        parts += [f"{text(key)} {text(value)}" for key, value in sorted(channel.details.items())]
        rows.append((f"Channel {name}", " · ".join(parts)))
    for stage in plan.stages:
        asked = [f"{count(stage.users)} sessions at a time"] if stage.users is not None else []
        asked += [f"{number(stage.rate)} sessions/s"] if stage.rate is not None else []
        asked += [f"steady for {span(stage.steady_ended_ns - stage.steady_started_ns)}"]
        asked += ["started dirty: the engine was not idle"] if stage.started_dirty else []
        rows.append((f"Stage {stage.name}", text(" · ".join(asked))))
    for trace in summary.traces:
        digest = trace.sha256 or plan.trace_hashes.get(trace.scenario)
        rows.append(
            (
                f"Trace {trace.scenario}",
                f"{text(trace.trace)} ({text(trace.format)})<br><code>{text(digest or '')}</code>",
            )
        )
    run = plan.plan.get("run")
    seed = run.get("seed") if isinstance(run, dict) else None
    rows.append(("Seed, nonce", f"{text(seed)}, <code>{text(plan.nonce)}</code>"))
    labels = plan.plan.get("labels")
    if isinstance(labels, dict) and labels:
        rows.append(("Labels", text(", ".join(f"{key} = {value}" for key, value in labels.items()))))
    rows.append(("Versions", text(", ".join(f"{key} {value}" for key, value in plan.versions.items()))))
    if plan.host:
        rows.append(("Load generator", text(", ".join(f"{key} {value}" for key, value in plan.host.items()))))
    if summary.telemetry is not None:
        rows.append(("InfluxDB", text(account_line(summary.telemetry))))
    # Redacted where it was written, and once more here.
    encoded = scrub(msgspec.json.format(msgspec.json.encode(plan.plan), indent=2).decode())
    return _facts(rows) + f"<details><summary>The resolved plan</summary><pre>{escape(encoded)}</pre></details>"


def _health(summary: Summary, collected: Collected, charts: Sequence[Chart]) -> str:
    """Whether the load generator itself was fit: how late it was, how sure its first-token stamps are."""
    stamps = ", ".join(f"{name} {count(turns)}" for name, turns in summary.stamp_source.items()) or "none"
    tokens = ", ".join(f"{name} {count(turns)}" for name, turns in summary.tokens_from.items()) or "none"
    rows = [("Stamps from", text(stamps)), ("Token counts from", text(tokens))]
    if collected.flags:
        flags = sorted(collected.flags.items(), key=lambda item: -item[1])
        rows.append(("Oddities", text(", ".join(f"{name} {count(turns)}" for name, turns in flags))))
    columns = [("Worker", "", False), ("Turns", "", True), ("Records", "received / promised", True)]
    columns += [("CPU", "max, of a core", True), ("Loop lag", "p99, ms", True), ("Clock offset", "ms ± doubt", True)]
    columns += [("Clock drift", "ms in the run", True), ("State", "", False), ("Verdict", "in steady", False)]
    fitness = {one.worker: one for one in summary.clients}
    cells = []
    for worker in summary.workers:
        lag = None if worker.hub_lag_p99_ns is None else worker.hub_lag_p99_ns / 1e6
        offset = f"{number(worker.clock_offset_ns / 1e6)} ± {number(worker.clock_uncertainty_ns / 1e6)}"
        drift = number(None if worker.clock_drift_ns is None else worker.clock_drift_ns / 1e6)
        state = "finished"
        if worker.lost:
            back_s = sum(back_ns - lost_ns for lost_ns, back_ns in worker.away) / 1e9
            state = '<b class="v-fail">LOST</b>' if worker.back_at_ns is None else f"lost for {number(back_s)} s"
        promised = f"{count(worker.records_received)} / {count(worker.records_promised)}"
        name = f"{text(worker.worker)} on {text(worker.host)}"
        fit = _fitness(fitness.get(worker.worker))
        cells.append(
            [name, count(worker.turns), promised, share(worker.cpu_share_max), number(lag), offset, drift, state, fit]
        )
    workers = table("Workers of the load generator", columns, cells) if cells else ""
    return _facts(rows) + workers + grid(charts)


def _fitness(seen: ClientSummary | None) -> str:
    """A worker's verdict with its reasons."""
    if seen is None:
        return absent("the run has no telemetry/clients.jsonl")
    if seen.verdict is None:
        return absent("not watched: it has no row in telemetry/clients.jsonl within the steady window")
    said = text(": ".join([seen.verdict.value, *([", ".join(seen.reasons)] if seen.reasons else [])]))
    return f'<b class="v-fail">{said}</b>' if seen.verdict is ClientVerdict.CLIENT_BOUND else said


def _conservation(summary: Summary) -> str:
    lost = "" if summary.counts.conserved() else " v-fail"
    equation = f'<p class="equation{lost}">{text(conservation(summary.counts))}</p>'
    lines = [
        *(trace_lines(summary) if summary.traces else ()),
        *allowance_lines(summary),
        *served_lines(summary),
    ]
    return equation + (items(lines) if lines else "")


def _events(events: Sequence[EventRow], start_ns: int) -> str:
    if not events:
        return ""
    rows = []
    for event in events[:EVENTS_SHOWN]:
        at = number((event.at_ns - start_ns) / 1e9)
        rows.append([at, text(_event_words(event)), text(event.worker or ""), text(event.detail)])
    left = len(events) - len(rows)
    caption = "Events" + (f" (the first {EVENTS_SHOWN}; {left:,} more in events.jsonl)" if left else "")
    columns = [("At", "s since start", False), ("Event", "", False), ("Worker", "", False), ("Detail", "", False)]
    return table(caption, columns, rows)


def _event_words(event: EventRow) -> str:
    """Also of a kind that a newer infersiege wrote."""
    return EVENT_WORDS.get(event.kind, event.kind.replace("_", " "))


def _glossary() -> str:
    entries = "".join(
        f"<dt>{text(metric.title)} <code>{text(metric.name)}</code> <span class=soft>{text(metric.unit)}</span></dt>"
        f"<dd>{text(metric.description)}<br><code>{text(metric.formula)}</code></dd>"
        for metric in METRICS.values()
    )
    words = (
        "<p>Percentiles are over ok turns that were due in the steady phase. p99 needs 100 turns, p99.9 needs 1,000; "
        "a share of cancelled turns above 1 − q takes p_q away, since the slowest may be among them. A figure that is "
        "not there is –, never 0. All times are UTC or seconds since the start.</p>"
    )
    return (
        f'{words}<details><summary>Every metric and its formula</summary><dl class="glossary">{entries}</dl></details>'
    )


def render(
    summary: Summary,
    plan: PlanFile,
    windows: Sequence[WindowRow],
    collected: Collected,
    events: Sequence[EventRow] = (),
    watched: Watched | None = None,
) -> str:
    """The whole page. `windows`, `collected` and `watched` are of the same run as `summary`."""
    series = Series(windows, collected, plan.stages, summary.started_ns)
    whole = summary.groups[0] if summary.groups else None
    shapes = distributions(collected, whole) if whole is not None else []
    load = [series.load(), series.throughput(), series.in_flight()]
    latency = [series.latency("ttft"), series.latency("e2e")]
    errors = [series.errors()]
    lateness = whole.distributions.get("lateness") if whole is not None else None
    health = [
        distribution("lateness", shapes_of(collected, "lateness"), lateness),
        slack(shapes_of(collected, "slack")),
    ]
    hardware = WatchedSeries(watched, series).charts() if watched else []
    charts = [*shapes, *load, *latency, *errors, *health, *hardware]
    sections = [
        ("figures", "Figures", cards(whole) if whole is not None else '<p class="soft">Nothing was measured.</p>'),
        (
            "groups",
            "By scenario and channel",
            latency_html(summary),
            _load_table(summary),
            delivered_html(summary),
            _group_notes(summary),
        ),
        ("rules", "Rules", _rules(summary)),
        ("load", "Load", grid(load)),
        *_hardware(summary, plan, hardware),
        ("latency", "Latency", grid([*shapes, *latency]), _by_turn(collected)),
        ("errors", "Errors", grid(errors), _errors(collected, summary)),
        ("slowest", "Slowest turns", _slowest(collected, summary.started_ns)),
        ("health", "Load generator", _health(summary, collected, health)),
        ("account", "Account of all turns", _conservation(summary), _events(events, summary.started_ns)),
        ("plan", "What was run", _what_was_run(plan, summary)),
        ("glossary", "Words and formulas", _glossary()),
    ]
    nav = "".join(f'<a href="#{key}">{text(title)}</a>' for key, title, *_ in sections)
    head = (
        f'<header class="top"><p class="kind">infersiege run report</p><h1>{text(summary.name)}</h1>'
        f'<p class="sub">{text(_subtitle(summary, plan))}</p>{emulated(summary)}{verdict(summary)}'
        f"{limit_banner(summary)}"
        f'<nav aria-label="Sections">{nav}</nav></header>'
    )
    body = "".join(section(key, title, *parts) for key, title, *parts in sections)
    data = script_json({chart.key: chart.figure for chart in charts if chart.figure is not None})
    return _document(summary.name, head + f"<main>{body}</main>", data)


def _hardware(summary: Summary, plan: PlanFile, charts: Sequence[Chart]) -> list[tuple[str, ...]]:
    """The section on GPU and engine; none where nothing was watched and neither database nor dashboard is named."""
    links = grafana_links(plan, summary)
    telemetry = plan.plan.get("telemetry")
    in_database = isinstance(telemetry, dict) and bool(telemetry.get("influx_url"))
    if not summary.resources and not links and not in_database:
        return []
    tables = stage_tables(summary, in_database=in_database)
    return [("resources", "GPU and engine", links, tables, grid(charts) if charts else "")]


def _subtitle(summary: Summary, plan: PlanFile) -> str:
    steady = summary.groups[0].steady_duration_ns if summary.groups else None
    targets = ", ".join(f"{channel.model} on {channel.engine}" for channel in plan.channels.values())
    return f"{targets} · {moment(summary.started_ns)} · steady for {span(steady)} · run {summary.run_id}"


def _document(name: str, body: str, data: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(name)} – infersiege</title><style>{STYLE}</style></head><body>{body}"
        "<footer>Made by infersiege from turns.jsonl and plan.json; <code>infersiege report</code> makes it anew."
        "</footer>"
        "<noscript><p>The charts need JavaScript; every table and figure above is complete without it.</p></noscript>"
        f'<script type="application/json" id="figure-data">{data}</script>'
        f"<script>{plotly.offline.get_plotlyjs()}</script><script>{SCRIPT}</script></body></html>\n"
    )
