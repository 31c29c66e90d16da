"""Charts of a comparison: distributions laid over each other, and the differences with their ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from infersiege.compare.comparison import Comparison, Line
from infersiege.compare.cuts import SHAPES
from infersiege.metrics.definitions import METRICS
from infersiege.metrics.histogram import Histogram, bucket_bounds
from infersiege.report.charts import PALETTE, Chart, Figure, layout_of, legend_name, line_of, ms_of, short, vertical
from infersiege.report.numbers import number
from infersiege.report.shapes import ticks_between

Shapes = Mapping[str, Sequence[Mapping[str, Histogram]]]
"""Column -> of each of its runs: metric -> distribution in ns."""

MARKS = (*(place / 80 for place in range(1, 80)), 0.99, 0.993, 0.995, 0.997, 0.998, 0.999, 0.9995, 1.0)
"""Shares at which a curve has a point: as many for a million turns as for a thousand."""

THIN_CURVES = 24
"""Curves of single runs; where there are more of them only those of the columns are drawn."""

_RATIOS = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.33,
    0.5,
    0.67,
    0.8,
    0.9,
    0.95,
    1,
    1.05,
    1.1,
    1.25,
    1.5,
    2,
    3,
    5,
    10,
    20,
    50,
    100,
)


class Charts(NamedTuple):
    """Of one page."""

    distributions: Sequence[Chart]
    changes: Chart | None
    """None: there is nothing to compare with."""


def charts_of(found: Comparison, shapes: Shapes) -> Charts:
    """Every chart of the page."""
    return Charts([_overlay(found, shapes, metric) for metric in SHAPES], _changes(found))


def curve(shape: Histogram) -> tuple[list[float], list[float]]:
    """(ms, share at or below it) at MARKS, each value once; the last is (max, 1). Rising in both."""
    x: list[float] = []
    y: list[float] = []
    seen, marks = 0, iter(MARKS)
    mark = next(marks)
    for index in sorted(shape.counts):
        seen += shape.counts[index]
        share = seen / shape.n
        if share < mark and seen < shape.n:
            continue
        x.append(short(min(bucket_bounds(index)[1], shape.max or 0) / 1e6))
        y.append(float(f"{share:.6g}"))
        while share >= mark < 1:
            mark = next(marks)
    return x, y


def _overlay(found: Comparison, shapes: Shapes, metric: str) -> Chart:
    known = METRICS[metric]
    data: list[Figure] = []
    words = []
    runs = sum(len(column.runs) for column in found.columns)
    wholes = []
    for place, column in enumerate(found.columns):
        parts = [shape[metric] for shape in shapes.get(column.name, ()) if metric in shape and shape[metric].n]
        whole = Histogram.merged(parts)
        if not whole.n:
            continue
        wholes.append(whole)
        color = PALETTE[place % len(PALETTE)]
        dash = ("solid", "dash", "dot")[place // len(PALETTE) % 3]
        if len(parts) > 1 and runs <= THIN_CURVES:
            data += [_line("", part, color, line={"width": 0.8}, opacity=0.4, showlegend=False) for part in parts]
        data.append(_line(legend_name(column.name), whole, color, line={"width": 2.2, "dash": dash}))
        stats = [
            f"{name} {number(ms_of(whole.percentile(q)))}" for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        ]
        words.append(f"{column.name}: {', '.join(stats)} ms of {whole.n:,}")
    return Chart(
        key=f"overlay-{metric}",
        title=known.title,
        caption=f"Share of {'gaps' if metric == 'gap' else 'turns'} at or below a time. {known.description}",
        words="; ".join(words) + "." if words else "No ok turn of the steady phase gave one.",
        figure={"data": data, "layout": _ms_layout(wholes)} if data else None,
    )


def _line(name: str, shape: Histogram, color: str, **more: object) -> Figure:
    x, y = curve(shape)
    line = {"shape": "hv", **dict(more.pop("line"))}  # type: ignore[call-overload]
    return line_of(name, x, y, color, line=line, **more)


def _ms_layout(wholes: Sequence[Histogram]) -> Figure:
    low = min(max(bucket_bounds(min(one.counts))[0], 1) for one in wholes) / 1e6
    high = max(bucket_bounds(max(one.counts))[1] for one in wholes) / 1e6
    layout = layout_of("share at or below", hovermode="closest")
    ticks = ticks_between(low, high)
    layout["xaxis"] = {"title": {"text": "ms (logarithmic)"}, "type": "log", "zeroline": False, "tickangle": 0}
    layout["xaxis"] |= {"tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}
    layout["yaxis"] |= {"range": [0, 1.02], "tickvals": [0, 0.25, 0.5, 0.75, 0.95, 1], "tickformat": ".0%"}
    return layout


# ------------------------------------------------------------------------------------------------- differences


def _changes(found: Comparison) -> Chart | None:
    """Ratios to the reference, a mark with its range for each figure and column; shares have no ratio."""
    lines = [line for line in found.rows if not line.share and any(cell.change is not None for cell in line.cells)]
    if not lines:
        return None
    data = [_marks(lines, place, column.name) for place, column in enumerate(found.columns) if place]
    names = [line.title for line in lines]
    layout = layout_of("", shapes=[vertical(1, "dash")], hovermode="closest")
    layout["height"] = 110 + 24 * len(lines) + 6 * len(lines) * max(len(data) - 1, 0)
    layout["margin"] |= {"l": 120}
    layout["yaxis"] = {"type": "category", "categoryarray": names[::-1], "categoryorder": "array", "zeroline": False}
    layout["xaxis"] = {"type": "log", "zeroline": False, "tickangle": 0}
    layout["xaxis"] |= {"title": {"text": f"ratio to {legend_name(found.reference)} (logarithmic)"}}
    if data:
        layout["scattermode"] = "group"
    layout["xaxis"] |= _ratio_ticks(data)
    words = [
        f"{says} in {column.name}: {', '.join(titles)}"
        for place, column in enumerate(found.columns)
        for says in ("better", "worse", "differs")
        if (titles := [line.title for line in lines if line.cells[place].says == says])
    ]
    return Chart(
        key="changes",
        title=f"Ratios to {found.reference}",
        caption="A figure of a column divided by that of the reference, with its 95 % range where one is known.",
        words="; ".join(words) + "." if words else "No difference is known to be more than chance.",
        figure={"data": data, "layout": layout},
        wide=True,
    )


def _marks(lines: Sequence[Line], place: int, name: str) -> Figure:
    found = [(line, line.cells[place]) for line in lines]
    # On a logarithmic axis a figure that fell to 0 has no place.
    cells = [(line, cell) for line, cell in found if cell.change is not None and cell.change > -1]
    ratios = [1 + cell.change for _, cell in cells if cell.change is not None]
    lows = [cell.change_low for _, cell in cells]
    highs = [cell.change_high for _, cell in cells]
    color = PALETTE[place % len(PALETTE)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": legend_name(name),
        "x": [short(ratio) for ratio in ratios],
        "y": [line.title for line, _ in cells],
        "marker": {"color": color, "size": 8},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [0 if high is None else short(1 + high - at) for high, at in zip(highs, ratios, strict=True)],
            "arrayminus": [0 if low is None else short(at - 1 - low) for low, at in zip(lows, ratios, strict=True)],
            "color": color,
            "thickness": 1.4,
            "width": 4,
        },
        "showlegend": True,
    }


def _ratio_ticks(data: Sequence[Figure]) -> Figure:
    ends = [1.0]
    for trace in data:
        spread = trace["error_x"]
        for at, up, down in zip(trace["x"], spread["array"], spread["arrayminus"], strict=True):
            ends += [at + up, max(at - down, at / 100)]
    low, high = min(ends) / 1.05, max(ends) * 1.05
    apart = math.log(high / low) / 9
    # From 1 outwards, so that it always has its label.
    ticks = [1.0]
    for way in (1, -1):
        last = 1.0
        for tick in sorted((one for one in _RATIOS if low <= one <= high and (one > 1) is (way > 0)), reverse=way < 0):
            if abs(math.log(tick / last)) >= apart:
                ticks.append(tick)
                last = tick
    ticks.sort()
    return {"tickvals": ticks, "ticktext": [f"×{tick:g}" for tick in ticks]}
