"""Brings the GPU and engine series of all hosts from InfluxDB into the run directory, so that a report stays whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec
from infersiege_agents.errors import AgentError
from infersiege_agents.influx.answers import quoted
from infersiege_agents.influx.http import UnreachableError
from infersiege_agents.influx.server import Series, TruncatedError, identify, literal, query
from infersiege_agents.influx.target import Target
from infersiege_agents.measurements import ENGINE, GPU, GPU_HOST, Measurement

from infersiege.errors import TargetError, UsageError
from infersiege.records import SeriesRow
from infersiege.rundir import ENGINE_SERIES, GPU_SERIES, PlanFile, RunDirectory

SECOND_NS: Final = 1_000_000_000
MARGIN_NS: Final = 5 * SECOND_NS
"""Before the first arrival and after the end: a host's clock may be a little off, and its points stand for a second."""
SLICE_NS: Final = 300 * SECOND_NS
"""Time of one query: 64 GPUs at one point a second are some 20 MB."""

IDENTIFY_S: Final = 5.0
QUERY_S: Final = 30.0
"""Longest time of one request."""

STILL_WRITES_NS: Final = 5 * SECOND_NS
"""A series without a point for so long has ended, or its agent is away: nobody waits for its next one."""
LOOK_EVERY_S: Final = 0.25

FILES: Final[dict[str, tuple[Measurement, ...]]] = {ENGINE_SERIES: (ENGINE,), GPU_SERIES: (GPU, GPU_HOST)}
"""File below telemetry/ -> measurements that it holds. The smaller first: where time is short, it has come."""
OF_HOSTS: Final = (GPU, GPU_HOST)
"""[telemetry] hosts says whose GPUs belong to a run. An engine's `host` is that of its address, which may be another
name of the same machine, or a gateway; engines are told apart by the addresses of the plan's channels."""

_Tags = tuple[tuple[str, str], ...]
_Key = tuple[int, _Tags]


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """What came for one file."""

    rows: int
    """Points that the database has."""
    added: int
    """Of these, points that were not in the file."""
    hosts: tuple[str, ...]
    """Hosts that they are of, sorted."""


class FetchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `fetch` did."""

    files: dict[str, Fetched]
    """File name -> what came."""
    missing_hosts: tuple[str, ...]
    """Hosts that were asked for and have no point of any kind."""
    notes: tuple[str, ...]
    """Torn lines that were left out."""

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.files.values())


class NoInfluxqlError(TargetError):
    """VictoriaMetrics: it takes points, and can't be asked for them."""


class _OverError(UnreachableError):
    """The database answers, and the time is over."""


class _Source:
    """A database, and the time that is left to ask it."""

    def __init__(self, target: Target, within_s: float | None, clock: Callable[[], float]) -> None:
        self.target = target
        self._clock = clock
        self._within_s = within_s
        self._ends = None if within_s is None else clock() + within_s

    def left_s(self, most_s: float) -> float:
        """Time for one request. Raises _OverError when there is none left."""
        if self._ends is None:
            return most_s
        left = min(most_s, self._ends - self._clock())
        if left <= 0:
            raise _OverError(f"{self.target.url}: did not give all series within {self._within_s:.3g} s")
        return left


def fetch(
    run: RunDirectory,
    target: Target,
    *,
    hosts: tuple[str, ...] = (),
    within_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FetchResult:
    """Merge the database's points of the run's time into telemetry/gpu.jsonl and telemetry/engine.jsonl.

    From 5 s before the first arrival to 5 s after the end; `hosts`: only GPUs of these, none: of all. Engines come
    from everywhere. Points that are in a file already (same tags and instant) are not doubled; rows are sorted by time.
    A file is replaced whole or not at all: after an error it is as it was. `within_s`: give up after so long; None:
    wait QUERY_S for each part of the time.

    Raises TargetError when the database can't be asked, RunDirectoryError for a damaged file, UsageError when a file
    can't be written or the run has no time span.
    """
    plan = run.read_plan()
    span = _span(run, plan)
    source = _Source(target, within_s, clock)
    notes: list[str] = []
    files: dict[str, Fetched] = {}
    try:
        _must_have_influxql(source)
        for name, measurements in FILES.items():
            local = sorted(run.read_series(name, notes.append), key=_order)
            fetched = _rows(source, measurements, span, hosts)
            first = next(fetched, None)
            if first is None:
                files[name] = Fetched(rows=0, added=0, hosts=())
                continue
            merge = _Merge(local, chain((first,), fetched))
            run.write_series(name, merge)  # reads them slice by slice, and replaces the file when all have come
            files[name] = Fetched(rows=merge.fetched, added=merge.added, hosts=tuple(sorted(merge.hosts)))
    except AgentError as error:
        raise TargetError(str(error), hint=error.hint) from None
    seen = {host for one in files.values() for host in one.hosts}
    missing = tuple(host for host in hosts if host not in seen)
    return FetchResult(files=files, missing_hosts=missing, notes=tuple(notes))


def await_points(
    run: RunDirectory,
    target: Target,
    *,
    hosts: tuple[str, ...] = (),
    until_ns: int,
    within_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until agents elsewhere, which write once a second or so, have written what they saw up to that instant.

    At most `within_s`; series that are in the run directory, whose agents are this host's, are not waited for.
    Raises TargetError when the database can't be asked.
    """
    source = _Source(target, within_s, clock)
    try:
        _must_have_influxql(source)
        own = {(row.measurement, _tags(row)) for name in FILES for row in run.read_series(name)}
        while any(at_ns < until_ns for series, at_ns in _newest(source, until_ns, hosts) if series not in own):
            sleep(LOOK_EVERY_S)
    except _OverError:
        return
    except AgentError as error:
        raise TargetError(str(error), hint=error.hint) from None


def _newest(source: _Source, until_ns: int, hosts: tuple[str, ...]) -> Iterator[tuple[tuple[str, _Tags], int]]:
    """Each series that still writes, and its newest point."""
    for measurement in chain.from_iterable(FILES.values()):
        always = "up" if measurement is ENGINE else "ok"
        text = (
            f"SELECT last({quoted(always)}) FROM {quoted(measurement.name)} WHERE time >= {until_ns - STILL_WRITES_NS}"
        )
        text += _of_hosts(measurement, hosts)
        for series in query(source.target, f"{text} GROUP BY *", timeout_s=source.left_s(QUERY_S)):
            tags = tuple(sorted((name, value) for name, value in series.tags.items() if value and ":" not in name))
            for row in series.values:
                yield (measurement.name, tags), int(row[series.columns.index("time")])


def _span(run: RunDirectory, plan: PlanFile) -> tuple[int, int]:
    """(first, end) of the time to fetch, in ns. The end of a run that crashed is that of its last turn."""
    if plan.started_ns is None:
        raise UsageError(
            f"{run.path}: the run ended before its first request: there is no time to fetch series of",
            hint="is it the run that you mean?",
        )
    ended_ns = plan.ended_ns
    if ended_ns is None:
        turns = run.read_turns(span=plan.span)
        ends = (turn.closed_ns for turn in turns if turn.closed_ns is not None)
        ended_ns = max(ends, default=plan.started_ns)
    return plan.started_ns - MARGIN_NS, max(ended_ns, plan.started_ns) + MARGIN_NS


def _must_have_influxql(source: _Source) -> None:
    server = identify(source.target, timeout_s=source.left_s(IDENTIFY_S))
    if server.kind == "victoriametrics":
        raise NoInfluxqlError(
            f"{source.target.url}: is VictoriaMetrics, which has no InfluxQL: series can't be fetched from it",
            hint="write to an InfluxDB, or copy telemetry/*.jsonl of the agents' --out files into the run directory",
        )


# --------------------------------------------------------------------------------------------------------------- rows


def _rows(
    source: _Source, measurements: Sequence[Measurement], span: tuple[int, int], hosts: tuple[str, ...]
) -> Iterator[SeriesRow]:
    """The database's points in order of time, slice by slice."""
    first_ns, end_ns = span
    at_ns = first_ns
    while at_ns < end_ns:
        to_ns = min(at_ns + SLICE_NS, end_ns)
        parts = (_slice(source, one, at_ns, to_ns, hosts) for one in measurements)
        yield from sorted(chain.from_iterable(parts), key=_order)
        at_ns = to_ns


def _slice(
    source: _Source, measurement: Measurement, from_ns: int, to_ns: int, hosts: tuple[str, ...]
) -> list[SeriesRow]:
    text = f"SELECT * FROM {quoted(measurement.name)} WHERE time >= {from_ns} AND time < {to_ns}"
    text += _of_hosts(measurement, hosts)
    try:
        found = query(source.target, f"{text} GROUP BY *", timeout_s=source.left_s(QUERY_S))
    except TruncatedError:
        if to_ns - from_ns <= SECOND_NS:
            raise
        middle_ns = (from_ns + to_ns) // 2
        early = _slice(source, measurement, from_ns, middle_ns, hosts)
        return early + _slice(source, measurement, middle_ns, to_ns, hosts)
    return [row for series in found if series.name == measurement.name for row in rows_of(series, measurement)]


def _of_hosts(measurement: Measurement, hosts: tuple[str, ...]) -> str:
    """The condition of a query; empty: all."""
    if not hosts or measurement not in OF_HOSTS:
        return ""
    either = " OR ".join(f'"host" = {literal(host)}' for host in hosts)
    return f" AND ({either})"


def rows_of(series: Series, measurement: Measurement) -> Iterator[SeriesRow]:
    """The points of one series of an answer: whole numbers are floats again, absent values are left out."""
    tags = {name: value for name, value in series.tags.items() if value and ":" not in name}
    texts = {name for name, column in measurement.fields.items() if column.kind == "text"}
    for values in series.values:
        own = dict(tags)
        fields: dict[str, float | str] = {}
        at_ns: int | None = None
        for name, value in zip(series.columns, values, strict=True):
            if name == "time":
                at_ns = int(value)
            elif value is None or name.startswith("iox::"):
                continue
            elif name in measurement.tags:
                own[name] = str(value)
            elif name in texts or isinstance(value, str):
                fields[name] = str(value)
            else:
                fields[name] = float(value)
        if at_ns is not None and fields:
            yield SeriesRow(at_ns=at_ns, measurement=measurement.name, tags=own, fields=fields)


def _key(row: SeriesRow) -> _Key:
    return row.at_ns, _tags(row)


def _tags(row: SeriesRow) -> _Tags:
    return tuple(sorted((name, value) for name, value in row.tags.items() if value))


def _order(row: SeriesRow) -> tuple[int, str, _Key]:
    return row.at_ns, row.measurement, _key(row)


class _Merge(Iterable[SeriesRow]):
    """Rows of the file and of the database in order of time, each point once. Both must be sorted."""

    def __init__(self, local: list[SeriesRow], fetched: Iterator[SeriesRow]) -> None:
        self._local = local
        self._source = fetched
        self.fetched = 0
        self.added = 0
        self.hosts: set[str] = set()

    def __iter__(self) -> Iterator[SeriesRow]:
        local = iter(_once(self._local))
        here = next(local, None)
        for row in _once(self._source):
            self.fetched += 1
            self.hosts.add(row.tags.get("host", ""))
            while here is not None and _order(here) < _order(row):
                yield here
                here = next(local, None)
            if here is not None and _order(here) == _order(row):
                yield _joined(here, row)
                here = next(local, None)
            else:
                self.added += 1
                yield row
        while here is not None:
            yield here
            here = next(local, None)


def _once(rows: Iterable[SeriesRow]) -> Iterator[SeriesRow]:
    """Sorted rows, those of one series and instant joined: a later one wins, as it does in InfluxDB."""
    before: SeriesRow | None = None
    for row in rows:
        if before is not None and _order(before) != _order(row):
            yield before
            before = row
        else:
            before = row if before is None else _joined(row, before)
    if before is not None:
        yield before


def _joined(wins: SeriesRow, other: SeriesRow) -> SeriesRow:
    return msgspec.structs.replace(wins, fields={**other.fields, **wins.fields})
