"""InfluxDB's answers as the tables that Grafana's panels get, and the transformations that the dashboards use."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Series = Mapping[str, Any]
"""As InfluxDB answers: name, tags, columns, values."""
Cell = float | str | None


@dataclass(frozen=True)
class Frame:
    """Columns of equal length."""

    ref: str
    columns: dict[str, list[Cell]]

    @property
    def empty(self) -> bool:
        """Without any value beside instants: Grafana writes "No data"."""
        values = [column for name, column in self.columns.items() if name != "Time"]
        return all(value is None for column in values for value in column)


def frames_of(series: Sequence[Series], *, ref: str, alias: str, table: bool) -> list[Frame]:
    """One frame per value column and series, named by the alias; as a table one frame, tags as columns."""
    if table:
        return [_table(series, ref)] if series else []
    found = []
    for one in series:
        times = _column(one, 0)
        for place, name in enumerate(one["columns"][1:], start=1):
            found.append(Frame(ref, {"Time": times, _named(one, name, alias): _column(one, place)}))
    return found


def _table(series: Sequence[Series], ref: str) -> Frame:
    names = ["Time", *series[0].get("tags", {}), *series[0]["columns"][1:]]
    columns: dict[str, list[Cell]] = {name: [] for name in names}
    for one in series:
        for row in one["values"]:
            cells = [row[0], *(one.get("tags", {}).values()), *row[1:]]
            for name, cell in zip(names, cells, strict=True):
                columns[name].append(cell)
    return Frame(ref, columns)


def _column(one: Series, place: int) -> list[Cell]:
    return [row[place] for row in one["values"]]


def _named(one: Series, column: str, alias: str) -> str:
    tags: Mapping[str, str] = one.get("tags", {})
    if not alias:
        marks = ", ".join(f"{name}: {value}" for name, value in tags.items())
        return f"{one['name']}.{column}" + (f" {{ {marks} }}" if marks else "")
    names = {"col": column, "m": one["name"], "measurement": one["name"], **{f"tag_{k}": v for k, v in tags.items()}}
    return re.sub(r"\$(\w+)", lambda found: str(names.get(found[1], found[0])), alias)


def transform(frames: list[Frame], transformations: Sequence[Mapping[str, Any]]) -> list[Frame]:
    """Apply them in order, as Grafana does in the browser."""
    for one in transformations:
        only = one.get("filter", {}).get("options")
        change = TRANSFORMATIONS[one["id"]]
        kept = [frame for frame in frames if only is not None and frame.ref != only]
        frames = change([frame for frame in frames if only is None or frame.ref == only], one["options"]) + kept
    return frames


def _reduce(frames: list[Frame], options: Mapping[str, Any]) -> list[Frame]:
    """seriesToRows: a row per number column."""
    (reducer,) = options["reducers"]
    pick = {"max": max, "min": min}[reducer]
    names: list[Cell] = []
    values: list[Cell] = []
    for frame in frames:
        for name, column in frame.columns.items():
            numbers = [cell for cell in column if isinstance(cell, int | float)]
            if name != "Time":
                names.append(name)
                values.append(pick(numbers) if numbers else None)
    return [Frame(frames[0].ref, {"Field": names, reducer.capitalize(): values})] if frames else []


def _join(frames: list[Frame], options: Mapping[str, Any]) -> list[Frame]:
    """Outer join by one column, in order of its first appearance (of its value, for Time)."""
    by = options["byField"]
    keys = list(dict.fromkeys(cell for frame in frames for cell in frame.columns.get(by, [])))
    if by == "Time":
        keys.sort(key=lambda cell: float(cell or 0))
    columns: dict[str, list[Cell]] = {by: list(keys)}
    for frame in frames:
        rows = {key: place for place, key in enumerate(frame.columns.get(by, []))}
        for name, column in frame.columns.items():
            if name != by:
                columns[name] = [column[rows[key]] if key in rows else None for key in keys]
    return [Frame("joined", columns)] if keys else []


def _calculate(frames: list[Frame], options: Mapping[str, Any]) -> list[Frame]:
    """A binary operation on two columns."""
    binary = options["binary"]
    found = []
    for frame in frames:
        left, right = frame.columns.get(binary["left"]), frame.columns.get(binary["right"])
        if left is None or right is None:
            found.append(frame)
            continue
        result = [_operate(a, b, binary["operator"]) for a, b in zip(left, right, strict=True)]
        kept = {"Time": frame.columns["Time"]} if options["replaceFields"] else frame.columns
        found.append(Frame(frame.ref, {**kept, options["alias"]: result}))
    return found


def _operate(left: Cell, right: Cell, operator: str) -> Cell:
    """As JavaScript reckons: an absent value is 0, and a division by 0 is infinite or no number."""
    a, b = (0.0 if cell is None else float(cell) for cell in (left, right))
    if operator == "-":
        return a - b
    if b:
        return a / b
    return math.copysign(math.inf, a) if a else math.nan


LEFT_OUT: dict[str, Cell] = {"isNull": None, "equal": 0}
"""Matcher of filterByValue -> the value that it takes out (equal: only 0 is used here)."""


def _filter(frames: list[Frame], options: Mapping[str, Any]) -> list[Frame]:
    """Rows in which none of the named columns has what its matcher takes out."""
    if (options["type"], options["match"]) != ("exclude", "any"):
        raise ValueError(f"filterByValue {options} is not known here")
    found = []
    for frame in frames:
        tested = [
            (frame.columns[one["fieldName"]], LEFT_OUT[one["config"]["id"]])
            for one in options["filters"]
            if one["fieldName"] in frame.columns
        ]
        height = len(next(iter(frame.columns.values()), []))
        kept = [place for place in range(height) if all(column[place] != value for column, value in tested)]
        columns = {name: [column[place] for place in kept] for name, column in frame.columns.items()}
        found.append(Frame(frame.ref, columns))
    return found


def _organize(frames: list[Frame], options: Mapping[str, Any]) -> list[Frame]:
    hidden, renamed = options.get("excludeByName", {}), options.get("renameByName", {})
    places = options.get("indexByName", {})
    found = []
    for frame in frames:
        names = sorted((name for name in frame.columns if not hidden.get(name)), key=lambda name: places.get(name, 99))
        found.append(Frame(frame.ref, {renamed.get(name, name): frame.columns[name] for name in names}))
    return found


TRANSFORMATIONS = {
    "reduce": _reduce,
    "joinByField": _join,
    "calculateField": _calculate,
    "filterByValue": _filter,
    "organize": _organize,
}
"""Id -> transformation."""
