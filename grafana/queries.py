"""InfluxQL texts of the dashboards, in the subset that InfluxDB 1.x, 2.x and 3.x all answer.

Three habits hold everywhere:

* Values of variables stand only inside anchored regular expressions (`=~ /^${run:regex}$/`). Grafana escapes them
  there, so a scenario named `it's "odd" / 中文` is just a name. Every identifier is quoted.
* Percentiles are read with last() from what the master computed, never averaged.
* Counts are per interval, so a rate is a sum over seconds, whatever the interval of the panel is. The first and last
  interval of a panel are cut by the time range; dividing their sum by a whole interval would draw a dip at both edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RUN = '"run" =~ /^${run:regex}$/'
CUT = '"scenario" =~ /^${scenario:regex}$/ AND "channel" =~ /^${channel:regex}$/'
MEASURED = "\"phase\" != 'drain'"
"""Warm-up and steady: few turns are due in the drain, and their percentiles would only be in the way."""
HOST = '"host" =~ /^${host:regex}$/'
GPU = f'{HOST} AND "uuid" =~ /^${{gpu:regex}}$/'
ENGINE = '"instance" =~ /^${engine:regex}$/'

LONGEST_RUN = "7d"
"""A row of infersiege_run is stamped with the run's start. Zooming into a run must not lose it, so rows are looked up
this far before the time range."""
COMPARABLE = "30d"
"""How far before the end of the time range a baseline may lie."""

RUN_ROWS = f"time >= ${{__from}}ms - {LONGEST_RUN} AND time <= ${{__to}}ms"
OVERLAPS = '("ended_ms" >= ${__from} OR "state" = 0)'
"""Of RUN_ROWS, runs that had not ended when the time range begins."""
COMPARED_ROWS = f"time >= ${{__from}}ms - {COMPARABLE} AND time <= ${{__to}}ms"

RUNS_IN_RANGE = f'SELECT DISTINCT("run_key") FROM "infersiege_run" WHERE {RUN_ROWS} AND {OVERLAPS}'
RUNS_TO_COMPARE = f'SELECT DISTINCT("run_key") FROM "infersiege_run" WHERE {COMPARED_ROWS}'

Columns = Mapping[str, str]
"""Name of the series in the panel -> field, or an expression with fields quoted."""


def tag_values(measurement: str, tag: str, where: str) -> str:
    """Values of a tag, as a variable lists them."""
    return f'SHOW TAG VALUES FROM "{measurement}" WITH KEY = "{tag}" WHERE $timeFilter AND {where}'


def _grouped(by: Sequence[str]) -> str:
    return "".join(f', "{tag}"' for tag in by)


def over_time(
    measurement: str, columns: Columns, where: str, by: Sequence[str] = (), *, every: str = "$__interval"
) -> str:
    """One value per interval: `columns` are whole expressions, such as `last("ttft_p95_60s_ms")`.

    Empty intervals stay null: a panel breaks its line there.
    """
    selected = ", ".join(f'{expression} AS "{name}"' for name, expression in columns.items())
    return (
        f'SELECT {selected} FROM "{measurement}" WHERE $timeFilter AND {where} '
        f"GROUP BY time({every}){_grouped(by)} fill(null)"
    )


def per_second(measurement: str, columns: Columns, where: str, by: Sequence[str] = ()) -> str:
    """The mean rate per second of fields that count per second; a second without a row counts as 0.

    Right for any interval, also for those that the time range cuts. The last 3 s may not have been written yet: they
    would draw a dip at the right edge of a live panel, and are left out.
    """
    time = "$timeFilter AND time < now() - 3s"
    inner = ", ".join(f'sum("{field}") AS "n{place}"' for place, field in enumerate(columns.values()))
    outer = ", ".join(f'mean("n{place}") AS "{name}"' for place, name in enumerate(columns))
    return (
        f'SELECT {outer} FROM (SELECT {inner} FROM "{measurement}" WHERE {time} AND {where} '
        f"GROUP BY time(1s){_grouped(by)} fill(0)) WHERE {time} GROUP BY time($__interval){_grouped(by)} fill(null)"
    )


def per_interval(field: str) -> str:
    """Rate per second of a field that counts since the last point, in measurements that tell that time."""
    return f'sum("{field}") / sum("interval")'


def spread_over(
    measurement: str, field: str, where: str, by: Sequence[str], *, least: str = "min", most: str = "max"
) -> str:
    """Lowest and highest of the series' own means in each interval: the band around per-card lines."""
    return (
        f'SELECT min("card") AS "{least}", max("card") AS "{most}" FROM (SELECT mean("{field}") AS "card" '
        f'FROM "{measurement}" WHERE $timeFilter AND {where} GROUP BY time($__interval){_grouped(by)} fill(none)) '
        "WHERE $timeFilter GROUP BY time($__interval) fill(null)"
    )


def summed_over(measurement: str, columns: Columns, where: str, by: Sequence[str]) -> str:
    """Each series' mean in each interval, all series added up: the power of all cards."""
    inner = ", ".join(f'mean("{field}") AS "n{place}"' for place, field in enumerate(columns.values()))
    outer = ", ".join(f'sum("n{place}") AS "{name}"' for place, name in enumerate(columns))
    return (
        f'SELECT {outer} FROM (SELECT {inner} FROM "{measurement}" WHERE $timeFilter AND {where} '
        f"GROUP BY time($__interval){_grouped(by)} fill(none)) WHERE $timeFilter GROUP BY time($__interval) fill(null)"
    )


def latest(measurement: str, columns: Columns, where: str, by: Sequence[str] = ()) -> str:
    """The last value of the time range, one row per group."""
    selected = ", ".join(f'last("{field}") AS "{name}"' for name, field in columns.items())
    grouped = ", ".join(f'"{tag}"' for tag in by)
    return f'SELECT {selected} FROM "{measurement}" WHERE $timeFilter AND {where}' + (
        f" GROUP BY {grouped}" if grouped else ""
    )


def run_rows(columns: Columns, where: str, *, time: str = RUN_ROWS) -> str:
    """Rows of infersiege_run as they are."""
    selected = ", ".join(f'"{field}" AS "{name}"' for name, field in columns.items())
    return f'SELECT {selected} FROM "infersiege_run" WHERE {time} AND {where}'


def since_steady(fields: Columns, run_variable: str) -> str:
    """Steady and warm-up seconds of one run by time since its steady phase began; x is the first column."""
    selected = ", ".join(f'"{field}" AS "{name}"' for name, field in fields.items())
    return (
        f'SELECT "since_steady" AS "since steady start", {selected} FROM "infersiege_window" '
        f"WHERE {COMPARED_ROWS} AND {_the(run_variable)} AND {CUT} AND \"phase\" = 'steady'"
    )


def rate_since_steady(field: str, name: str, run_variable: str) -> str:
    """Mean rate over 10 s, divided by the seconds that the 10 s really hold, by time since the steady start."""
    second = 'max("since_steady") - min("since_steady")'
    return (
        f'SELECT max("since_steady") AS "since steady start", sum("{field}") / ({second} + 1) AS "{name}" '
        f'FROM "infersiege_window" WHERE {COMPARED_ROWS} AND {_the(run_variable)} AND {CUT} '
        "GROUP BY time(10s) fill(none)"
    )


def _the(run_variable: str) -> str:
    return f'"run" =~ /^${{{run_variable}:regex}}$/'
