"""Panels of classic dashboards (schema version 41: Grafana 11, 12 and 13) as plain dicts, and their places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

DATASOURCE: Json = {"type": "influxdb", "uid": "infersiege-influxdb"}
PLUGIN_VERSION = "11.6.0"
"""Panels are written as this version writes them; without it Grafana takes an XY chart for one of version 10."""
WIDTH = 24
CONNECT_MS = 10_000
"""A line goes on over missing points up to this far apart (an agent may sample each 5 s, and a sample may slip over the
border of a second); what is longer is a gap, and shown as one."""

TURNS_PER_S = "suffix: turns/s"
TOKENS_PER_S = "suffix: tok/s"
TURNS = "suffix: turns"
SHARE = "percentunit"

Steps = Sequence[tuple[str, float | None]]
CALM: Steps = (("green", None),)

STEADY_COLOURS = {"p50": "#5794F2", "p95": "#FF9830", "p99": "#E02F44", "turns behind it": "#8E8E8E"}


EMULATED: Json = {
    "type": "value",
    "options": {"0": {"text": "no"}, "1": {"text": "yes: says nothing about hardware"}},
}
"""Words for the field `emulated`."""
YES_OR_NO: Json = {
    "type": "value",
    "options": {"0": {"text": "no", "color": "red"}, "1": {"text": "yes", "color": "green"}},
}


def target(query: str, *, alias: str = "", table: bool = False) -> Json:
    """One InfluxQL query; `alias` may hold $col and $tag_<name>."""
    return {
        "datasource": DATASOURCE,
        "rawQuery": True,
        "query": query,
        "resultFormat": "table" if table else "time_series",
        "alias": alias,
    }


def override(name: str, *, regex: bool = False, **properties: Any) -> Json:
    """Properties of the series or column of that name; `custom_x` stands for `custom.x`."""
    matcher = {"id": "byRegexp", "options": f"/{name}/"} if regex else {"id": "byName", "options": name}
    found = [{"id": key.replace("custom_", "custom."), "value": value} for key, value in properties.items()]
    return {"matcher": matcher, "properties": found}


WARMUP = override(
    ".*(warmup|drain)$", regex=True, custom_lineStyle={"fill": "dash", "dash": [4, 6]}, custom_lineWidth=1
)
"""Series of turns that were due outside the steady phase."""


def coloured(colours: Mapping[str, str]) -> list[Json]:
    """One fixed colour per series, the same in every panel."""
    return [override(name, color={"mode": "fixed", "fixedColor": colour}) for name, colour in colours.items()]


def _panel(kind: str, title: str, description: str, unit: str, targets: Sequence[Json], steps: Steps) -> Json:
    letters = (chr(ord("A") + place) for place in range(len(targets)))
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "pluginVersion": PLUGIN_VERSION,
        "interval": "1s",
        "targets": [{"refId": letter, **one} for letter, one in zip(letters, targets, strict=True)],
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "thresholds": {
                    "mode": "absolute",
                    "steps": [{"color": colour, "value": value} for colour, value in steps],
                },
                "custom": {},
            },
            "overrides": [],
        },
        "options": {},
    }


def timeseries(
    title: str,
    description: str,
    unit: str,
    *targets: Json,
    steps: Steps = CALM,
    overrides: Iterable[Json] = (),
    fill: int = 0,
    stack: bool = False,
    bars: bool = False,
    least: float | None = 0,
    most: float | None = None,
    transformations: Sequence[Json] = (),
) -> Json:
    """Lines over time. Steps above the first are drawn as dashed lines."""
    panel = _panel("timeseries", title, description, unit, targets, steps)
    defaults = panel["fieldConfig"]["defaults"]
    defaults["color"] = {"mode": "palette-classic"}
    if least is not None:
        defaults["min"] = least
    if most is not None:
        defaults["max"] = most
    defaults["custom"] = {
        "drawStyle": "bars" if bars else "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 70 if bars else fill,
        "showPoints": "auto",
        "pointSize": 4,
        "spanNulls": CONNECT_MS,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if len(steps) > 1 else "off"},
        "axisPlacement": "auto",
    }
    panel["fieldConfig"]["overrides"] = list(overrides)
    panel["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    panel["transformations"] = list(transformations)
    return panel


def states(title: str, description: str, *targets: Json, words: Mapping[int, tuple[str, str]]) -> Json:
    """A coloured bar per series over time: value -> (word, colour)."""
    panel = _panel("state-timeline", title, description, "short", targets, CALM)
    panel["fieldConfig"]["defaults"]["custom"] = {"fillOpacity": 80, "lineWidth": 0, "spanNulls": CONNECT_MS}
    panel["fieldConfig"]["defaults"]["mappings"] = [_mapping(words)]
    panel["options"] = {
        "mergeValues": True,
        "showValue": "auto",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel


def _mapping(words: Mapping[int, tuple[str, str]]) -> Json:
    options = {str(value): {"text": word, "color": colour} for value, (word, colour) in words.items()}
    return {"type": "value", "options": options}


def stat(
    title: str,
    description: str,
    unit: str,
    *targets: Json,
    steps: Steps = CALM,
    words: Mapping[int, tuple[str, str]] | None = None,
    text: bool = False,
    decimals: int | None = None,
    calc: str = "lastNotNull",
    named: bool = False,
    transformations: Sequence[Json] = (),
) -> Json:
    """One figure per series. `text`: the value is a text; `named`: the series' name beside it, also of a single one."""
    panel = _panel("stat", title, description, unit, targets, steps)
    defaults = panel["fieldConfig"]["defaults"]
    defaults["color"] = {"mode": "thresholds"}
    defaults["noValue"] = "not known"
    if words is not None:
        defaults["mappings"] = [_mapping(words)]
    if decimals is not None:
        defaults["decimals"] = decimals
    panel["options"] = {
        "reduceOptions": {"calcs": [calc], "fields": "/.*/" if text else "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "value_and_name" if named or len(targets) > 1 else "value",
        "justifyMode": "center",
        "orientation": "auto",
        "wideLayout": True,
    }
    panel["transformations"] = list(transformations)
    return panel


def table(
    title: str,
    description: str,
    unit: str,
    *targets: Json,
    steps: Steps = CALM,
    units: Mapping[str, str] | None = None,
    overrides: Iterable[Json] = (),
    hidden: Sequence[str] = ("Time",),
    aged: bool = False,
    sort: tuple[str, bool] | None = None,
    transformations: Sequence[Json] = (),
) -> Json:
    """Rows. `units`: column -> unit; `aged`: rows are points, and their instant is shown as an age; `sort`: (column,
    descending)."""
    panel = _panel("table", title, description, unit, targets, steps)
    defaults = panel["fieldConfig"]["defaults"]
    defaults["custom"] = {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": False, "minWidth": 60}
    defaults["noValue"] = "–"
    named = [override(name, unit=found) for name, found in (units or {}).items()]
    panel["fieldConfig"]["overrides"] = [*named, *overrides]
    panel["options"] = {"showHeader": True, "cellHeight": "sm"}
    if sort is not None:
        panel["options"]["sortBy"] = [{"displayName": sort[0], "desc": sort[1]}]
    if aged:
        panel["fieldConfig"]["overrides"].append(override(AGE, unit="dateTimeFromNow"))
        shown: Json = {"renameByName": {"Time": AGE}}
    else:
        shown = {"excludeByName": dict.fromkeys(hidden, True)}
    panel["transformations"] = [*transformations, {"id": "organize", "options": shown}]
    return panel


AGE = "last point"
"""Column of tables whose rows are points."""


def xy(
    title: str,
    description: str,
    unit: str,
    *targets: Json,
    x_unit: str,
    x_name: str,
    lines: bool,
    overrides: Iterable[Json] = (),
    steps: Steps = CALM,
) -> Json:
    """The first number of each query across, the others upwards."""
    panel = _panel("xychart", title, description, unit, targets, steps)
    defaults = panel["fieldConfig"]["defaults"]
    defaults["color"] = {"mode": "palette-classic"}
    defaults["custom"] = {
        "show": "lines" if lines else "points",
        "lineWidth": 2,
        "pointSize": {"fixed": 10},
        "pointShape": "circle",
        "fillOpacity": 60,
        "axisPlacement": "auto",
    }
    across = override(x_name, unit=x_unit, custom_axisLabel=x_name)
    panel["fieldConfig"]["overrides"] = [across, *overrides]
    panel["options"] = {
        "mapping": "auto",
        "series": [{}],
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel


def without_absent(*names: str, divisor: str | None = None) -> Json:
    """A transformation that leaves rows out in which one of these columns has no value (Grafana would reckon with 0) or
    the divisor is 0."""
    left_out = [{"fieldName": name, "config": {"id": "isNull", "options": {}}} for name in names]
    if divisor is not None:
        left_out.append({"fieldName": divisor, "config": {"id": "equal", "options": {"value": 0}}})
    return {"id": "filterByValue", "options": {"type": "exclude", "match": "any", "filters": left_out}}


def note(title: str, markdown: str) -> Json:
    """A text for the reader."""
    return {
        "type": "text",
        "title": title,
        "description": "How to read this dashboard.",
        "pluginVersion": PLUGIN_VERSION,
        "options": {"mode": "markdown", "content": markdown},
    }


WANTED = "columns of the grid"


def wide(panel: Json, columns: int) -> Json:
    """A panel that takes another width than its equal share of the row."""
    return {**panel, WANTED: columns}


Row = tuple[int, Sequence[Json]]
"""Height, and panels that share the width."""


def layout(sections: Sequence[tuple[str, Sequence[Row]]]) -> list[Json]:
    """All panels with ids and places: sections from top to bottom, each under its own heading."""
    placed: list[Json] = []
    y = 0
    for title, rows in sections:
        if title:
            heading = {"type": "row", "title": title, "collapsed": False, "panels": []}
            placed.append({**heading, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
            y += 1
        for height, panels in rows:
            x = 0
            for place, panel in enumerate(panels):
                width = panel.get(WANTED, WIDTH * (place + 1) // len(panels) - x)
                kept = {name: value for name, value in panel.items() if name != WANTED}
                placed.append({**kept, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
                x += width
            y += height
    return [{"id": number, **panel} for number, panel in enumerate(placed, start=1)]
