"""One look at a dashboard: its variables chosen and its panels asked, as Grafana does when somebody opens it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infersiege_grafana.expand import Value, View, expand
from infersiege_grafana.frames import Frame, Series, frames_of, transform
from infersiege_grafana.panels import Json
from infersiege_grafana.shell import DESCENDING

Ask = Callable[[str], Sequence[Series]]
"""Runs an InfluxQL query: the series of its answer, instants in ns. Raises what it wants when it fails."""


@dataclass(frozen=True)
class Look:
    """A dashboard at one time range."""

    dashboard: Json
    ask: Ask
    view: View
    options: Mapping[str, tuple[str, ...]]
    """Variable -> what its list shows, in order."""

    def at_interval(self, interval_ms: int) -> Look:
        """The same with wider or narrower intervals, as on another screen."""
        return replace(self, view=replace(self.view, interval_ms=interval_ms))

    def panel(self, title: str) -> Json:
        (found,) = [panel for panel in self.dashboard["panels"] if panel["title"] == title]
        return dict(found)

    def answers(self, panel: Mapping[str, Any]) -> dict[str, list[Frame]]:
        """refId -> frames, before transformations."""
        return {one["refId"]: self._frames(one) for one in panel["targets"]}

    def shown(self, panel: Mapping[str, Any]) -> list[Frame]:
        """What the panel draws."""
        frames = [frame for found in self.answers(panel).values() for frame in found]
        return transform(frames, panel.get("transformations", ()))

    def events(self) -> list[tuple[float, str, str]]:
        """(instant in ns, title, text) of every annotation."""
        found = []
        for annotation in self.dashboard["annotations"]["list"]:
            for series in self.ask(expand(annotation["query"], self.view)):
                columns = [series["columns"].index(annotation[name]) for name in ("titleColumn", "textColumn")]
                found += [(row[0], *(str(row[place]) for place in columns)) for row in series["values"]]
        return sorted(found)

    def _frames(self, target: Mapping[str, Any]) -> list[Frame]:
        series = self.ask(expand(target["query"], self.view))
        table = target["resultFormat"] == "table"
        return frames_of(series, ref=target["refId"], alias=target["alias"], table=table)


def look_at(
    dashboard: Json,
    ask: Ask,
    *,
    from_ms: int,
    to_ms: int,
    interval_ms: int = 1000,
    chosen: Mapping[str, Value] | None = None,
) -> Look:
    """Fill the lists of the variables from top to bottom, and choose as Grafana does: what is `chosen`
    (in a link), else the dashboard's own default, else the first of the list."""
    view = View(from_ms, to_ms, interval_ms)
    options: dict[str, tuple[str, ...]] = {}
    for variable in dashboard["templating"]["list"]:
        name = variable["name"]
        found = _matched(_listed(ask(expand(variable["query"], view))), variable["regex"])
        listed = sorted(found, reverse=variable["sort"] == DESCENDING)
        options[name] = tuple(listed)
        default = variable["current"].get("value") or (listed[0] if listed else "")
        value = (chosen or {}).get(name, default)
        alls = {**view.all_values, name: variable["allValue"]} if variable["includeAll"] else view.all_values
        view = replace(view, values={**view.values, name: value}, all_values=alls)
    return Look(dashboard, ask, view, options)


def _listed(series: Sequence[Series]) -> list[str]:
    """Grafana reads the first series only: column `value` of SHOW TAG VALUES, else the column after the instant."""
    if len(series) > 1:
        raise ValueError("a variable's query must answer with one series")
    return [str(row[1]) for one in series for row in one["values"]]


def _matched(values: Sequence[str], regex: str) -> list[str]:
    """What the first group of a variable's regular expression (`/^…$/`) finds in each; without one, the values."""
    if not regex:
        return list(values)
    found = (re.search(regex.strip("/"), value) for value in values)
    return [one[1] for one in found if one]
