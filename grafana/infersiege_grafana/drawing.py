"""Panels drawn by plotly and plain HTML, near enough to Grafana's to judge them."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import plotly.offline

from infersiege_grafana.expand import View
from infersiege_grafana.frames import Cell, Frame
from infersiege_grafana.panels import AGE, Json
from infersiege_grafana.values import COLOURS, SCALED, colour_of, properties, written

SCRIPT = f"<script>{plotly.offline.get_plotlyjs()}</script>"
PALETTE = ("#73BF69", "#F2CC0C", "#5794F2", "#FF9830", "#F2495C", "#B877D9", "#37872D", "#8AB8FF", "#C4162A", "#705DA0")
NS_PER_MS = 1e6


@dataclass(frozen=True)
class Canvas:
    """Where a panel is drawn."""

    name: str
    """Of its element, once on a page."""
    width: int
    height: int
    view: View
    events: Sequence[tuple[float, str, str]]


# ------------------------------------------------------------------------------------------------------ charts


def _chart(traces: list[Json], layout: Json, canvas: Canvas) -> str:
    legend, legend_px = _legend(traces, canvas.width)
    base: Json = {
        "width": canvas.width,
        "height": canvas.height - legend_px,
        "margin": {"l": 64, "r": 56, "t": 8, "b": 26},
        "font": {"size": 11, "color": "#24292e"},
        "paper_bgcolor": "#fff",
        "plot_bgcolor": "#fff",
        "showlegend": False,
    }
    data, shape = json.dumps(traces), json.dumps({**base, **layout})
    return (
        f'<div id="{canvas.name}"></div>{legend}<script>Plotly.newPlot("{canvas.name}",{data},{shape},'
        "{staticPlot:true,displayModeBar:false})</script>"
    )


CHARACTER_PX, SAMPLE_PX, LINE_PX, INDENT_PX = 7.0, 33, 16, 30
"""Of a legend: the mean width of a character, that of a line's sample with the room around it, the height of a
row, and the room before it."""


def _legend(traces: Sequence[Json], width: int) -> tuple[str, int]:
    """The names of the traces below a chart, and its height in px. Plotly's own would lie over the axis."""
    room = width - INDENT_PX
    entries, rows, used = [], 0, float(room)
    for trace in traces:
        if trace.get("showlegend", True):
            entry_px = SAMPLE_PX + CHARACTER_PX * len(trace["name"])
            rows, used = (rows + 1, entry_px) if used + entry_px > room else (rows, used + entry_px)
            line = trace.get("line", {})
            colour = line.get("color") or trace["marker"]["color"]
            style = f"border-top:3px {'dashed' if 'dash' in line else 'solid'} {colour}"
            entries.append(f'<span><i style="{style}"></i>{html.escape(trace["name"])}</span>')
    return f'<div class="legend">{"".join(entries)}</div>', LINE_PX * rows


def _axis(unit: str, found: dict[str, Any]) -> Json:
    axis: Json = {"gridcolor": "#eceff2", "zeroline": False, "automargin": True, "rangemode": "tozero"}
    if unit == "percentunit":
        axis["tickformat"] = ".0%"
    elif unit in ("bytes", "Bps"):
        axis |= {"tickformat": "~s", "ticksuffix": "B" if unit == "bytes" else "B/s"}
    else:
        known = SCALED.get(unit, ("°C" if unit == "celsius" else "", 1))[0]
        axis["ticksuffix"] = " " + (unit.removeprefix("suffix:").strip() if unit.startswith("suffix:") else known)
    if "max" in found and "min" in found:
        axis["range"] = [found["min"], found["max"] * 1.04]
    return axis


def _instant(ns: Cell) -> str:
    return datetime.fromtimestamp(float(ns or 0) / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


TICKS: Json = {"ticks": "outside", "ticklen": 5, "tickcolor": "#fff"}
"""Room between a chart and what is written below it."""
RIGHT_AXIS: Json = {"overlaying": "y", "side": "right", "showgrid": False, "tickmode": "auto", "nticks": 5}


def timeseries(panel: Json, frames: Sequence[Frame], canvas: Canvas) -> str:
    traces: list[Json] = []
    layout: Json = {"barmode": "stack", "shapes": [], "xaxis": _time_axis(canvas)}
    colours = itertools.cycle(PALETTE)
    for frame in frames:
        times = [_instant(cell) for cell in frame.columns["Time"]]
        for name, cells in frame.columns.items():
            if name == "Time" or all(cell is None for cell in cells):
                continue
            found = properties(panel, name)
            fixed = found.get("color", {})
            colour = fixed["fixedColor"] if fixed.get("mode") == "fixed" else next(colours)
            right = found.get("custom.axisPlacement") == "right"
            traces.append(_trace(_short(name), times, cells, found, colour, right=right))
            layout["yaxis2" if right else "yaxis"] = _axis(found["unit"], {} if right else found)
            if right:
                layout["yaxis2"] |= RIGHT_AXIS
    _bands(panel, traces)
    layout["shapes"] = _marks(panel, canvas, traces)
    return _chart(traces, layout, canvas)


def _trace(name: str, times: list[str], cells: list[Cell], found: dict[str, Any], colour: str, *, right: bool) -> Json:
    if found.get("custom.drawStyle") == "bars":
        return {"type": "bar", "name": name, "x": times, "y": cells, "marker": {"color": colour}}
    x, y = _connected(times, cells)
    width = found.get("custom.lineWidth", 1)
    line: Json = {"color": colour, "width": width * 1.6 if width else 0}
    if "custom.lineStyle" in found:
        line["dash"] = "dash"
    trace: Json = {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line, "connectgaps": False}
    if found.get("custom.fillOpacity"):
        trace |= {"fill": "tozeroy", "fillcolor": _faint(colour, found["custom.fillOpacity"])}
    if right:
        trace["yaxis"] = "y2"
    if found.get("custom.hideFrom", {}).get("legend"):
        trace["showlegend"] = False
    return trace


def _connected(times: list[str], cells: list[Cell]) -> tuple[list[str], list[Cell]]:
    """Missing points of less than 10 s are bridged, as spanNulls says."""
    x: list[str] = []
    y: list[Cell] = []
    last: str | None = None
    for at, cell in zip(times, cells, strict=True):
        if cell is None:
            continue
        if last is not None and (datetime.fromisoformat(at) - datetime.fromisoformat(last)).total_seconds() > 10:
            x.append(at)
            y.append(None)
        x.append(at)
        y.append(cell)
        last = at
    return x, y


def _short(name: str) -> str:
    """UUIDs by their ends: a picture has less room than a screen."""
    return re.sub(r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]+([0-9a-f]{4})\b", r"…\2", name)


def _faint(colour: str, percent: float) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{percent / 100})"


def _bands(panel: Json, traces: list[Json]) -> None:
    """fillBelowTo: the area between two series. The lower one is drawn first, the upper one filled down to it."""
    names = [trace["name"] for trace in traces]
    for name in names:
        below = properties(panel, name).get("custom.fillBelowTo")
        if below in names:
            upper = next(trace for trace in traces if trace["name"] == name)
            lower = next(trace for trace in traces if trace["name"] == below)
            traces.remove(upper)
            traces.remove(lower)
            upper |= {"fill": "tonexty", "fillcolor": "rgba(87,148,242,0.18)", "showlegend": False}
            lower["showlegend"] = False
            traces[:0] = [lower, upper]


def _time_axis(canvas: Canvas) -> Json:
    ends = [_instant(ms * NS_PER_MS) for ms in (canvas.view.from_ms, canvas.view.to_ms)]
    return {"type": "date", "range": ends, "gridcolor": "#eceff2", "tickformat": "%H:%M:%S", **TICKS}


def _marks(panel: Json, canvas: Canvas, traces: Sequence[Json]) -> list[Json]:
    """Events of the run, and thresholds that the data comes near to."""
    marks: list[Json] = []
    for at, _, _ in canvas.events:
        x = _instant(at)
        line = {"color": "#8AB8FF", "width": 1, "dash": "dot"}
        marks.append({"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line})
    highest = max((cell for trace in traces for cell in trace["y"] if isinstance(cell, int | float)), default=0.0)
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if step["value"] is not None and step["value"] <= max(
            highest * 1.3, panel["fieldConfig"]["defaults"].get("max", 0)
        ):
            line = {"color": COLOURS.get(step["color"], step["color"]), "width": 1, "dash": "dash"}
            ends = {"x0": 0, "x1": 1, "y0": step["value"], "y1": step["value"]}
            marks.append({"type": "line", "xref": "paper", "yref": "y", **ends, "line": line})
    return marks


def states(panel: Json, frames: Sequence[Frame], canvas: Canvas) -> str:
    """One row of bars per series."""
    traces: list[Json] = []
    for frame in frames:
        name = next(name for name in frame.columns if name != "Time")
        found = properties(panel, name)
        cells = [(t, v) for t, v in zip(frame.columns["Time"], frame.columns[name], strict=True) if v is not None]
        for value in sorted({value for _, value in cells if isinstance(value, int | float)}, reverse=True):
            x = [_instant(time) for time, one in cells if one == value]
            label = _short(name)
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "x": x, "y": [label] * len(x), "showlegend": False,
                    "marker": {"symbol": "square", "size": 14, "color": colour_of(value, found)},
                }
            )  # fmt: skip
    layout = {"xaxis": _time_axis(canvas), "yaxis": {"automargin": True}, "shapes": []}
    return _chart(traces, layout, canvas)


def xy(panel: Json, frames: Sequence[Frame], canvas: Canvas) -> str:
    traces: list[Json] = []
    layout: Json = {}
    colours = itertools.cycle(PALETTE)
    lines = panel["fieldConfig"]["defaults"]["custom"]["show"] == "lines"
    for frame in frames:
        names = [name for name, cells in frame.columns.items() if name != "Time" and not isinstance(_first(cells), str)]
        across, *upwards = names
        for name in upwards:
            found = properties(panel, name)
            fixed = found.get("color", {})
            colour = fixed["fixedColor"] if fixed.get("mode") == "fixed" else next(colours)
            pairs = [(a, b) for a, b in zip(frame.columns[across], frame.columns[name], strict=True) if b is not None]
            trace: Json = {"type": "scatter", "name": name, "x": [a for a, _ in pairs], "y": [b for _, b in pairs]}
            trace |= {"mode": "lines", "line": {"color": colour, "width": 2}} if lines else {
                "mode": "markers", "marker": {"color": colour, "size": 11, "opacity": 0.75}
            }  # fmt: skip
            traces.append(trace)
            layout["yaxis"] = _axis(found["unit"], found)
        unit = properties(panel, across)["unit"]
        layout["xaxis"] = {**_axis(unit, {}), "title": {"text": across, "standoff": 4}, "rangemode": "normal"}
        if not lines:
            layout["xaxis"]["rangemode"] = "tozero"
    layout["margin"] = {"l": 64, "r": 20, "t": 10, "b": 44}
    return _chart(traces, layout, canvas)


def _first(cells: Sequence[Cell]) -> Cell:
    return next((cell for cell in cells if cell is not None), None)


# ------------------------------------------------------------------------------------------------ text and rows


def stat(panel: Json, frames: Sequence[Frame], canvas: Canvas) -> str:
    shown = []
    named = panel["options"]["textMode"] == "value_and_name"
    for frame in frames:
        for name, cells in frame.columns.items():
            if name == "Time":
                continue
            found = properties(panel, name)
            value = next((cell for cell in reversed(cells) if cell is not None), None)
            label = f"<small>{html.escape(name)}</small>" if named else ""
            colour = colour_of(value, found)
            shown.append(f'<div style="color:{colour}">{html.escape(written(value, found))}{label}</div>')
    return f'<div class="stat">{"".join(shown)}</div>'


def table(panel: Json, frames: Sequence[Frame], canvas: Canvas) -> str:
    (frame,) = frames[:1]
    rows = list(zip(*frame.columns.values(), strict=True))
    for order in panel["options"].get("sortBy", ()):
        if order["displayName"] in frame.columns:
            place = list(frame.columns).index(order["displayName"])
            rows.sort(key=lambda row: (row[place] is None, row[place]), reverse=order["desc"])
    head = "".join(f"<th>{html.escape(name)}</th>" for name in frame.columns)
    body = "".join(
        "<tr>" + "".join(_cell(panel, name, cell) for name, cell in zip(frame.columns, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(panel: Json, name: str, value: Cell) -> str:
    found = properties(panel, name)
    if name == "Time":
        found = {**found, "unit": "dateTimeAsIso"}
    if name in ("Time", AGE):
        value = float(value or 0) / NS_PER_MS
    kind = "n" if isinstance(value, int | float) else ""
    coloured = found.get("custom.cellOptions", {}).get("type") == "color-text"
    style = f' style="color:{colour_of(value, found)}"' if coloured else ""
    if "links" in found:
        style = ' style="color:#1F60C4;text-decoration:underline"'
    return f'<td class="{kind}"{style}>{html.escape(written(value, found))}</td>'


def markdown(text: str) -> str:
    """The little of it that the notes use: lists, bold, italics, code."""
    blocks: list[str] = []
    for line in text.splitlines():
        if re.match(r"(\d+\.|\*) ", line):
            blocks.append("<li>" + html.escape(line.split(" ", 1)[1]))
        elif blocks:
            blocks[-1] += " " + html.escape(line)
        else:
            blocks.append(html.escape(line))
    joined = "".join(blocks)
    joined = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", joined)
    joined = re.sub(r"\*(.+?)\*", r"<i>\1</i>", joined)
    kind = "ol" if re.search(r"^\d+\. ", text, re.MULTILINE) else "ul"
    first, mark, rest = joined.partition("<li>")
    return f'<div class="text">{first}<{kind}>{mark}{rest}</{kind}></div>'.replace("`", "")


DRAWN: dict[str, Callable[[Json, Sequence[Frame], Canvas], str]] = {
    "timeseries": timeseries,
    "state-timeline": states,
    "xychart": xy,
    "stat": stat,
    "table": table,
}
"""Type of a panel -> what draws it."""
