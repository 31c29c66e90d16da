"""One page with curves over the load: latency, throughput, errors, memory; what was found, and each run behind it.

As report.html: one file without any request, aggregates only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import plotly.offline

from infersiege.report.charts import PALETTE, RED, Chart, Figure, layout_of, legend_name, line_of, short, vertical
from infersiege.report.load_curve import KNEE_DEFINITION, LoadPoint, medians
from infersiege.report.markup import absent, grid, items, script_json, section, table, text
from infersiege.report.numbers import ABSENT, count, number, share
from infersiege.report.page import POLICY, SCRIPT, STYLE

GIB = 2**30


class Limit(NamedTuple):
    """A rule's limit, as a line across a chart."""

    field: str
    """Of LoadPoint."""
    value: float
    name: str


class CurvePage(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows."""

    kind: str
    """`infersiege capacity`, `infersiege sweep`."""
    name: str
    unit: str
    """Of loads: `users` or `sessions/s`."""
    curves: Mapping[str, Sequence[LoadPoint]]
    """Name (of a channel; may be empty) -> its runs, in the order in which they were made."""
    runs: Mapping[str, Sequence[str]]
    """The run directories of these, beside the page."""
    lines: Sequence[str]
    """What was found; the first is the headline."""
    banner: str = "none"
    """Its colour: pass, fail, nodata, invalid or none."""
    passes: float | None = None
    fails: float | None = None
    knees: Mapping[str, float] = {}
    limits: Sequence[Limit] = ()
    emulated: bool = False


Line = tuple[str, str]
"""(field of LoadPoint, name)."""


def render_curves(page: CurvePage) -> str:
    """The whole page."""
    charts = [
        _chart(page, "ttft", "TTFT", "ms", [("ttft_p50_ms", "p50"), ("ttft_p95_ms", "p95"), ("ttft_p99_ms", "p99")]),
        _chart(page, "tpot", "TPOT", "ms", [("tpot_p50_ms", "p50"), ("tpot_p99_ms", "p99")]),
        _chart(page, "e2e", "E2E", "ms", [("e2e_p50_ms", "p50"), ("e2e_p99_ms", "p99")]),
        _chart(page, "throughput", "Throughput", "output tokens/s", [("throughput", "throughput")]),
        _chart(page, "goodput", "Turns", "turns/s", [("finished_rate", "finished"), ("goodput", "goodput")]),
        _chart(page, "errors", "Errors", "share of ended turns", [("error_share", "errors")], cap=1.0),
    ]
    resources = [
        _chart(page, "memory", "GPU memory", "GiB, peak", [("gpu_memory_peak_bytes", "used")], per_unit=GIB),
        _chart(page, "kv", "KV cache", "share in use", [("kv_use_mean", "mean"), ("kv_use_peak", "peak")], cap=1.0),
        _chart(page, "waiting", "Requests that wait in the engine", "mean", [("waiting_mean", "waiting")]),
    ]
    watched = [chart for chart in resources if chart.figure is not None]
    nothing = '<p class="soft">No GPU and no engine was watched: [telemetry] gpu and engine_metrics do that.</p>'
    sections = [
        ("curves", "Curves over the load", grid(charts)),
        ("resources", "GPU and engine", grid(watched) if watched else nothing),
        ("runs", "Every run", *(_runs(page, name) for name in page.curves)),
        ("words", "Words", _words(page)),
    ]
    drawn = [*charts, *watched]
    data = script_json({chart.key: chart.figure for chart in drawn if chart.figure is not None})
    body = "".join(section(key, title, *parts) for key, title, *parts in sections)
    return _document(page, _head(page) + f"<main>{body}</main>", data)


def _head(page: CurvePage) -> str:
    emulated = (
        '<div class="banner emulated" role="note"><strong>EMULATED</strong> The target was infersiege\'s own emulator: '
        "these figures say nothing about any hardware or engine.</div>"
        if page.emulated
        else ""
    )
    rest = items(page.lines[1:]) if len(page.lines) > 1 else ""
    first = text(page.lines[0]) if page.lines else ""
    found = f'<div class="banner {page.banner}" role="status"><strong>{first}</strong>{rest}</div>'
    return (
        f'<header class="top"><p class="kind">{text(page.kind)}</p><h1>{text(page.name)}</h1>{emulated}{found}</header>'
    )


def _chart(
    page: CurvePage,
    key: str,
    title: str,
    unit: str,
    lines: Sequence[Line],
    *,
    per_unit: float = 1,
    cap: float | None = None,
) -> Chart:
    """Each run as a mark (a cross where it failed), with a line through the medians of each load."""
    data: list[Figure] = []
    highest: list[str] = []
    for place, (curve, points) in enumerate(page.curves.items()):
        for shade, (field, name) in enumerate(lines):
            loads, values = medians(points, field)
            if not loads:
                continue
            label = " ".join(part for part in (curve, name if len(lines) > 1 or not curve else "") if part)
            color = PALETTE[(place if len(page.curves) > 1 else shade) % len(PALETTE)]
            dash = ("solid", "dash", "dot")[shade % 3] if len(page.curves) > 1 else "solid"
            scaled = [short(value / per_unit) for value in values]
            data.append(line_of(legend_name(label), loads, scaled, color, line={"dash": dash}))
            data.append(_marks(points, field, color, per_unit))
            highest.append(
                f"{label}: {number(scaled[0])} at {loads[0]:g}, {number(scaled[-1])} at {loads[-1]:g} {page.unit}"
            )
    data += [_limit_line(page, limit, per_unit) for limit in page.limits if data and limit.field in dict(lines)]
    layout = layout_of(unit, shapes=_shapes(page), annotations=_annotations(page))
    layout["xaxis"] = {"title": {"text": page.unit}, "rangemode": "tozero", "zeroline": False}
    layout["margin"]["t"] = 28
    # Room above the lines for the words of what is marked.
    top = 1.18 * max((value for trace in data for value in trace["y"]), default=0.0)
    layout["yaxis"]["range"] = [0, (top or 1) if cap is None else min(cap * 1.1, max(top, 0.02))]
    return Chart(
        key=key,
        title=title,
        caption="A mark is one run (a cross: its rules did not hold); lines go through the medians of each load.",
        words="; ".join(highest) or "Not known of any run.",
        figure={"data": data, "layout": layout} if data else None,
    )


def _marks(points: Sequence[LoadPoint], field: str, color: str, per_unit: float) -> Figure:
    known = [(point, getattr(point, field)) for point in points if getattr(point, field) is not None]
    symbols = {"pass": "circle", "fail": "x", "invalid": "diamond-open"}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [point.load for point, _ in known],
        "y": [short(value / per_unit) for _, value in known],
        "marker": {
            "color": color,
            "size": 8,
            "symbol": [symbols.get(point.verdict or "", "circle-open") for point, _ in known],
        },
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _limit_line(page: CurvePage, limit: Limit, per_unit: float) -> Figure:
    loads = [point.load for points in page.curves.values() for point in points]
    y = short(limit.value / per_unit)
    return line_of(legend_name(limit.name), [0, max(loads)], [y, y], RED, line={"dash": "dot", "width": 1.2})


def _verticals(page: CurvePage) -> list[tuple[float, str, str]]:
    """(load, dash, word) of what is marked over the whole height."""
    knees = [(load, "dash", f"knee {legend_name(name)}".strip()) for name, load in page.knees.items()]
    marked = [(page.passes, "solid", "capacity"), *knees]
    return [(load, dash, word) for load, dash, word in marked if load is not None]


def _shapes(page: CurvePage) -> list[Figure]:
    return [vertical(load, dash) for load, dash, _ in _verticals(page)]


def _annotations(page: CurvePage) -> list[Figure]:
    """What the vertical lines mean, above the chart; two at one load share a word."""
    words: dict[float, list[str]] = {}
    for load, _, word in _verticals(page):
        words.setdefault(load, []).append(word)
    place = {"xref": "x", "yref": "paper", "y": 1.0, "yanchor": "top", "xanchor": "left", "showarrow": False}
    return [
        {**place, "x": load, "text": " + ".join(dict.fromkeys(said)), "font": {"size": 10.5}, "yshift": -12 * row}
        for row, (load, said) in enumerate(sorted(words.items()))
    ]


def _share(value: float | None) -> str:
    return share(value)


Column = tuple[str, str, str, Callable[[float | None], str]]

_COLUMNS: Sequence[Column] = (
    ("TTFT", "mean ms", "ttft_mean_ms", number),
    ("TTFT", "p50 ms", "ttft_p50_ms", number),
    ("TTFT", "p99 ms", "ttft_p99_ms", number),
    ("TPOT", "mean ms", "tpot_mean_ms", number),
    ("E2E", "p99 ms", "e2e_p99_ms", number),
    ("Output", "tokens/s", "throughput", number),
    ("Goodput", "turns/s", "goodput", number),
    ("Errors", "share", "error_share", _share),
    ("Cache", "share", "cache_share", _share),
    ("KV use", "peak", "kv_use_peak", _share),
)


def _runs(page: CurvePage, curve: str) -> str:
    points, runs = page.curves[curve], page.runs.get(curve, ())
    shown = [one for one in _COLUMNS if any(getattr(point, one[2]) is not None for point in points)]
    columns = [("Run", "", False), (page.unit, "", True), ("Verdict", "", False), ("Turns", "ok", True)]
    columns += [(title, unit, True) for title, unit, _, _ in shown]
    rows = []
    for point, run in zip(points, runs, strict=True):
        kind = {"pass": "pass", "fail": "fail", "no data": "nodata", "invalid": "invalid"}.get(
            point.verdict or "", "none"
        )
        verdict = f'<span class="v-{kind}"><b>{text((point.verdict or ABSENT).upper())}</b></span>'
        row = [f'<a href="{text(run)}/report.html">{text(run)}</a>', f"{point.load:g}", verdict, count(point.turns)]
        for _, _, field, how in shown:
            value = getattr(point, field)
            row.append(absent("not known of this run: see its report") if value is None else how(value))
        rows.append(row)
    return table(f"Runs of {curve}" if curve else "Runs, in the order in which they were made", columns, rows)


def _words(page: CurvePage) -> str:
    return (
        f"<p>Knee: {text(KNEE_DEFINITION)}.</p><p>Latencies are of ok turns due in the steady phase; p99 needs "
        "100 of them. A figure that is not there is –, never 0. Each run has its own report, with every figure that "
        "is here and more.</p>"
    )


def _document(page: CurvePage, body: str, data: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(page.name)} – {text(page.kind)}</title><style>{STYLE}</style></head><body>{body}"
        f"<footer>Made by {text(page.kind)} from the summaries of its runs.</footer>"
        "<noscript><p>The charts need JavaScript; the tables are complete without it.</p></noscript>"
        f'<script type="application/json" id="figure-data">{data}</script>'
        f"<script>{plotly.offline.get_plotlyjs()}</script><script>{SCRIPT}</script></body></html>\n"
    )
