"""Values with their units and colours, as Grafana writes them."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from infersiege_grafana.frames import Cell
from infersiege_grafana.panels import Json

COLOURS = {"green": "#37872D", "orange": "#E0752D", "red": "#C4162A", "blue": "#1F60C4"}


def properties(panel: Json, name: str) -> dict[str, Any]:
    """What holds for one series or column: defaults, and the overrides that match its name, later ones last."""
    defaults = panel["fieldConfig"]["defaults"]
    found = {key: value for key, value in defaults.items() if key != "custom"}
    found |= {f"custom.{key}": value for key, value in defaults.get("custom", {}).items()}
    for one in panel["fieldConfig"]["overrides"]:
        matcher, options = one["matcher"]["id"], one["matcher"]["options"]
        if (matcher == "byName" and options == name) or (matcher == "byRegexp" and re.search(options.strip("/"), name)):
            found |= {each["id"]: each["value"] for each in one["properties"]}
    return found


SCALED: dict[str, tuple[str, float]] = {"ms": ("ms", 1), "s": ("s", 1), "watt": ("W", 1), "joule": ("J", 1)}


def written(value: Cell, found: dict[str, Any]) -> str:
    """A value with its unit, as Grafana writes it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    for mapping in found.get("mappings", ()):
        options = mapping["options"]
        if mapping["type"] == "value" and isinstance(value, int | float) and f"{value:g}" in options:
            return str(options[f"{value:g}"]["text"])
        if mapping["type"] == "range" and isinstance(value, int | float) and value >= options["from"]:
            return str(options["result"]["text"])
    if isinstance(value, str):
        return value
    return _number(float(value), found.get("unit", "short"))


def _number(value: float, unit: str) -> str:
    if unit == "dateTimeAsIso":
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if unit == "dateTimeFromNow":
        return _age(time.time() - value / 1000)
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in ("bytes", "Bps"):
        power = next((power for power in range(3) if abs(value) < 1024 ** (power + 1)), 3)
        size = ("", "Ki", "Mi", "Gi")[power]
        return f"{value / 1024**power:.3g} {size}B" + ("/s" if unit == "Bps" else "")
    if unit == "ms" and abs(value) >= 10_000:
        return f"{value / 1000:.3g} s"
    if unit in ("watt", "joule") and abs(value) >= 10_000:
        return f"{value / 1000:.3g} k{SCALED[unit][0]}"
    name = unit.removeprefix("suffix:").strip() if unit.startswith("suffix:") else SCALED.get(unit, ("", 1))[0]
    if unit == "celsius":
        name = "°C"
    text = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    if "e" in text:
        text = f"{Decimal(text):f}"
    return f"{text} {name}".strip()


def _age(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"


def colour_of(value: Cell, found: dict[str, Any]) -> str:
    """By the highest threshold that the value reaches, or its mapping."""
    for mapping in found.get("mappings", ()):
        if mapping["type"] == "value" and isinstance(value, int | float) and f"{value:g}" in mapping["options"]:
            name = mapping["options"][f"{value:g}"].get("color", "green")
            return str(COLOURS.get(name, name))
    reached = "green"
    for step in found["thresholds"]["steps"]:
        if step["value"] is None or (isinstance(value, int | float) and value >= step["value"]):
            reached = step["color"]
    return COLOURS.get(reached, reached)
