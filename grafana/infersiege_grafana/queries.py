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
EVERYTHING = "\"scenario\" = 'all' AND \"channel\" = 'all'"
WHOLE_RUN = f"{EVERYTHING} AND \"stage\" = 'all'"
"""The one row of infersiege_run that is the run."""
MEASURED = "\"phase\" != 'drain'"
"""Warm-up and steady: few turns are due in the drain, and their percentiles would only be in the way."""
HOST = '"host" =~ /^${host:regex}$/'
GPU = f'{HOST} AND "uuid" =~ /^${{gpu:regex}}$/'
ENGINE = '"host" =~ /^${engine_host:regex}$/ AND "instance" =~ /^${engine:regex}$/'
"""An instance alone is no engine: every host may have one at 127.0.0.1:8000."""

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


def now(measurement: str, first: str, columns: Columns, where: str, by: Sequence[str]) -> str:
    """The newest point of each group as it is, stamped with its own instant, so that a table tells its age.

    `first`: a field that each point has, by which the newest is found.
    """
    selected = "".join(f', "{field}" AS "{name}"' for name, field in columns.items() if field != first)
    (name,) = [name for name, field in columns.items() if field == first]
    grouped = ", ".join(f'"{tag}"' for tag in by)
    return (
        f'SELECT last("{first}") AS "{name}"{selected} FROM "{measurement}" WHERE $timeFilter AND {where} '
        f"GROUP BY {grouped}"
    )


LAST_S = 15
"""An agent that has written nothing for so long is silent, whatever its last point said."""


def at_the_end(measurement: str, field: str, name: str, where: str, by: str) -> str:
    """The last values of the last LAST_S of the time range, all groups added up; a silent group counts as 0.

    Intervals are counted back from the end of the range, so the last of them, which the panel shows, is whole. Only
    the outer query fills: InfluxDB 1.x does not add up groups that the inner one has filled.
    """
    time = "time >= ${__from}ms AND time < ${__to}ms"
    every = f"GROUP BY time({LAST_S}s, ${{__to}}ms)"
    return (
        f'SELECT sum("n") AS "{name}" FROM (SELECT last("{field}") AS "n" FROM "{measurement}" '
        f'WHERE {time} AND {where} {every}, "{by}" fill(none)) WHERE {time} {every} fill(0)'
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
    """Steady seconds of one run by time since its steady phase began; x is the first column."""
    selected = ", ".join(f'"{field}" AS "{name}"' for name, field in fields.items())
    return (
        f'SELECT "since_steady" AS "since steady start", {selected} FROM "infersiege_window" '
        f"WHERE {COMPARED_ROWS} AND {_the(run_variable)} AND {CUT} AND \"phase\" = 'steady'"
    )


COMPARED_EVERY_S = 10


def rate_since_steady(field: str, name: str, run_variable: str) -> str:
    """Mean rate over each 10 s from the run's own steady start, by time since then; whole 10 s only.

    Intervals of the clock would begin up to 10 s apart in two runs, and one would hold warm-up and steady turns. So
    they begin where the variable `<run>_start` says (`starts`). The one in which the load ends is left out by the
    variable `<run>_length` (`lengths`): it would draw a fall that was none. Without a run both variables are empty,
    hence the 0 before them. A second in which nothing happened may have no row: the sum is divided by the whole
    interval.
    """
    every = f"{COMPARED_EVERY_S}s, 0${{{run_variable}_start:raw}}ms"
    return (
        f'SELECT "x" AS "since steady start", "rate" AS "{name}" FROM (SELECT mean("since_steady") AS "x", '
        f'sum("{field}") / {COMPARED_EVERY_S} AS "rate" FROM "infersiege_window" '
        f"WHERE {COMPARED_ROWS} AND {_the(run_variable)} AND {CUT} GROUP BY time({every}) fill(none)) "
        f'WHERE {COMPARED_ROWS} AND ("x" < 0 OR "x" < 0${{{run_variable}_length:raw}} - {COMPARED_EVERY_S / 2})'
    )


def starts(run_variable: str) -> str:
    """When the steady phase of that run began, in ms since the epoch."""
    where = f"{_the(run_variable)} AND {WHOLE_RUN}"
    return f'SELECT "steady_started_ms" FROM "infersiege_run" WHERE {COMPARED_ROWS} AND {where}'


def lengths(run_variable: str) -> str:
    """Seconds from there to the last one in which that run sent a steady turn, also of a run that goes on."""
    where = f'{_the(run_variable)} AND {EVERYTHING} AND "phase" = \'steady\' AND "sent" > 0'
    return f'SELECT max("since_steady") AS "length" FROM "infersiege_window" WHERE {COMPARED_ROWS} AND {where}'


def _the(run_variable: str) -> str:
    return f'"run" =~ /^${{{run_variable}:regex}}$/'
