"""What the four dashboards share: variables, annotations, links between them, and the frame around their panels."""

from __future__ import annotations

from collections.abc import Sequence

from infersiege_grafana import queries as q
from infersiege_grafana.panels import DATASOURCE, Json

TITLES = {
    "infersiege-run": "Run",
    "infersiege-capacity": "Capacity review",
    "infersiege-gpu": "GPU",
    "infersiege-compare": "Compare runs",
}
"""uid -> title."""
ON_TIME_RANGE = 2
ASCENDING, DESCENDING = 1, 2
SHOWN, HIDDEN = 0, 2


def variable(
    name: str,
    label: str,
    description: str,
    query: str,
    *,
    several: bool = False,
    sort: int = ASCENDING,
    default: str | None = None,
    regex: str = "",
    hidden: bool = False,
) -> Json:
    """A list of values from InfluxDB, asked again when the time range changes. `several`: more than one may be chosen,
    and all are at first. `regex`: its first group is the value. A query must answer with one series: Grafana reads no
    more."""
    chosen = {"text": ["All"], "value": ["$__all"]} if several else {"text": default or "", "value": default or ""}
    return {
        "type": "query",
        "name": name,
        "label": label,
        "description": description,
        "datasource": DATASOURCE,
        "definition": query,
        "query": query,
        "refresh": ON_TIME_RANGE,
        "sort": sort,
        "regex": regex,
        "hide": HIDDEN if hidden else SHOWN,
        "multi": several,
        "includeAll": several,
        "allValue": ".*" if several else None,
        "current": chosen if several or default else {},
        "options": [],
        "skipUrlSync": False,
    }


def run(label: str = "Run") -> Json:
    return variable(
        "run", label, "Runs that lie in the time range, newest first.", q.RUNS_IN_RANGE, sort=DESCENDING
    )  # fmt: skip


def scenario(of: str = q.RUN) -> Json:
    words = "Scenario of the load; all holds everything."
    return variable("scenario", "Scenario", words, q.tag_values("infersiege_window", "scenario", of), default="all")


def channel(of: str = q.RUN) -> Json:
    words = "Where requests went; all holds everything."
    return variable("channel", "Channel", words, q.tag_values("infersiege_window", "channel", of), default="all")


def host() -> Json:
    return variable(
        "host", "GPU host", "Hosts whose GPU agent writes.",
        q.tag_values("gpu_host", "host", '"host" =~ /.*/'), several=True,
    )  # fmt: skip


def gpu() -> Json:
    words = "UUIDs of GPUs and MIG slices of these hosts."
    return variable("gpu", "GPU", words, q.tag_values("gpu", "uuid", q.HOST), several=True)


def engine_host() -> Json:
    return variable(
        "engine_host", "Engine host", "Hosts that engines run on.",
        q.tag_values("engine", "host", '"host" =~ /.*/'), several=True,
    )  # fmt: skip


def engine() -> Json:
    return variable(
        "engine", "Engine instance", "host:port of the engines' /metrics on these hosts.",
        q.tag_values("engine", "instance", '"host" =~ /^${engine_host:regex}$/'), several=True,
    )  # fmt: skip


EVENTS: Json = {
    "name": "Events of the run",
    "datasource": DATASOURCE,
    "enable": True,
    "hide": False,
    "iconColor": "#8AB8FF",
    "query": f'SELECT "title", "detail", "kind" FROM "infersiege_event" WHERE $timeFilter AND {q.RUN}',
    "titleColumn": "title",
    "textColumn": "detail",
    "tagsColumn": "kind",
    "timeEndColumn": "",
}


def dashboard(uid: str, description: str, variables: Sequence[Json], panels: Sequence[Json], *, live: bool) -> Json:
    """A whole dashboard. `live`: it is watched while a run goes on, and asks again every 5 s."""
    return {
        "uid": uid,
        "title": TITLES[uid],
        "description": description,
        "tags": ["infersiege"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "refresh": "5s" if live else "",
        "time": {"from": "now-30m" if live else "now-6h", "to": "now"},
        "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m"]},
        "links": [_link(other) for other in TITLES if other != uid],
        "annotations": {"list": [EVENTS]},
        "templating": {"list": list(variables)},
        "panels": list(panels),
    }


def _link(uid: str) -> Json:
    return {
        "type": "link",
        "title": TITLES[uid],
        "url": f"/d/{uid}",
        "icon": "dashboard",
        "tooltip": f"{TITLES[uid]}: the same time range and variables",
        "keepTime": True,
        "includeVars": True,
        "targetBlank": False,
        "asDropdown": False,
        "tags": [],
    }
