"""The page of `infersiege traces inspect --html`: one file that opens without any request.

Aggregates only: no text of the trace is in it.
"""

from __future__ import annotations

import msgspec
import plotly.offline

from infersiege.report.charts import Chart
from infersiege.report.markup import grid, items, script_json, section, table, text
from infersiege.report.numbers import ABSENT, count, number, share
from infersiege.report.page import POLICY, SCRIPT, STYLE
from infersiege.report.trace_charts import charts_of
from infersiege.report.trace_table import SPREADS, context_rows, distribution_rows, sentences
from infersiege.traces.inspection.describe import Description, Lengths
from infersiege.traces.inspection.measured import Measured

_CLIPPED = ".plot { overflow: hidden; }"
"""A chart that is not drawn again yet, in a window just made narrow or on paper, stays inside its card."""


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that was looked at."""

    description: Description
    measured: Measured


def render(inspected: Inspected) -> str:
    """The whole page. Its size does not grow with the trace."""
    found = inspected.description
    charts = charts_of(found, inspected.measured)
    sections = [
        ("figures", "Figures", _cards(found), items(list(sentences(found))[1:]), _distributions(found)),
        ("charts", "Charts", grid(charts)),
        ("context", "Context limits", _contexts(found)),
    ]
    head = (
        '<header class="top"><p class="kind">infersiege trace</p>'
        f'<h1>{text(found.name)}</h1><p class="sub">{text(found.format)} · {text(found.line())}</p>'
        f"{_warnings(found)}</header>"
    )
    body = "".join(section(key, title, *parts) for key, title, *parts in sections)
    return _document(found.name, f"{head}<main>{body}</main>", charts)


def _warnings(found: Description) -> str:
    if not found.warnings:
        return ""
    return f'<div class="banner nodata"><strong>To know before a run</strong>{items(found.warnings)}</div>'


def _cards(found: Description) -> str:
    inputs, outputs = found.prompt_tokens, found.output_tokens
    cards = [
        ("Sessions", count(found.sessions) if found.sessions is not None else "endless", f"{count(found.turns)} turns"),
        ("Mean rate", _of(found.mean_rate, "/s"), _rate_note(found)),
        ("Input p50", _stat(inputs, "p50"), f"tokens; p99 {_stat(inputs, 'p99')}"),
        ("Output p50", _stat(outputs, "p50"), f"tokens; p99 {_stat(outputs, 'p99')}"),
        ("Prefix share", share(found.prefix_share), "held by own session"),
        ("Cache bound", share(found.cache_bound), "of prompt tokens, cache without end"),
    ]
    body = "".join(
        f'<li><div class="label">{text(label)}</div><div class="value">{text(value)}</div>'
        f'<div class="note">{text(note)}</div></li>'
        for label, value, note in cards
    )
    return f'<ul class="cards">{body}</ul>'


def _stat(found: Lengths | None, stat: str) -> str:
    return number(None if found is None else getattr(found, stat))


def _rate_note(found: Description) -> str:
    if found.peak_rate is None:
        return "the trace has no times"
    return f"peak {number(found.peak_rate)} in one second; inter-arrival CV {number(found.interarrival_cv)}"


def _of(value: float | None, unit: str) -> str:
    return ABSENT if value is None else number(value) + unit


def _distributions(found: Description) -> str:
    columns = [("Figure", "", False), *((stat, "", True) for stat in SPREADS)]
    rows = [[text(cell) for cell in row] for row in distribution_rows(found)]
    return table("Distributions; percentiles interpolate linearly", columns, rows)


def _contexts(found: Description) -> str:
    rows = [[text(cell) for cell in row] for row in context_rows(found)]
    if not rows:
        return '<p class="soft">The trace does not tell how long its prompts are.</p>'
    columns = [("Context limit", "tokens", False), ("Sessions", "whole", True), ("Sessions", "cut", True)]
    columns += [("Sessions", "dropped", True), ("Turns", "dropped", True), ("Input", "mean tokens", True)]
    columns += [("Output", "mean tokens", True), ("Prefix share", "", True)]
    return table("The first turn over the limit (prompt + output) ends its line: too_long = skip", columns, rows)


def _document(name: str, body: str, charts: list[Chart]) -> str:
    data = script_json({chart.key: chart.figure for chart in charts if chart.figure is not None})
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(name)} – infersiege trace</title><style>{STYLE}{_CLIPPED}</style></head><body>{body}"
        "<footer>Made by <code>infersiege traces inspect</code>; no text of the trace is in this page.</footer>"
        "<noscript><p>The charts need JavaScript; every table and figure above is complete without it.</p></noscript>"
        f'<script type="application/json" id="figure-data">{data}</script>'
        f"<script>{plotly.offline.get_plotlyjs()}</script><script>{SCRIPT}</script></body></html>\n"
    )
