"""Brings the GPU and engine series of all hosts from InfluxDB into the run directory, so that a report stays whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec
from infersiege_agents.errors import AgentError
from infersiege_agents.influx.server import Series, TruncatedError, identify, literal, query, quoted
from infersiege_agents.influx.target import Target
from infersiege_agents.measurements import ENGINE, GPU, Measurement

from infersiege.errors import TargetError, UsageError
from infersiege.records import SeriesRow
from infersiege.rundir import ENGINE_SERIES, GPU_SERIES, PlanFile, RunDirectory

SECOND_NS: Final = 1_000_000_000
MARGIN_NS: Final = 5 * SECOND_NS
"""Before the first arrival and after the end: a host's clock may be a little off, and its points stand for a second."""
SLICE_NS: Final = 300 * SECOND_NS
"""Time of one query: 64 GPUs at one point a second are some 20 MB."""

FILES: Final[dict[str, Measurement]] = {GPU_SERIES: GPU, ENGINE_SERIES: ENGINE}
"""File below telemetry/ -> measurement that it holds."""

_Key = tuple[int, tuple[tuple[str, str], ...]]


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
    """Hosts that were asked for and have no point of either kind."""
    notes: tuple[str, ...]
    """Torn lines that were left out."""

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.files.values())


def fetch(run: RunDirectory, target: Target, *, hosts: tuple[str, ...] = ()) -> FetchResult:
    """Merge the database's points of the run's time into telemetry/gpu.jsonl and telemetry/engine.jsonl.

    From 5 s before the first arrival to 5 s after the end; `hosts`: only of these, none: of all. Points that are in a
    file already (same tags and instant) are not doubled; rows are sorted by time. A file is replaced whole or not at
    all: after an error it is as it was.

    Raises TargetError when the database can't be asked, RunDirectoryError for a damaged file, UsageError when a file
    can't be written or the run has no time span.
    """
    plan = run.read_plan()
    span = _span(run, plan)
    notes: list[str] = []
    files: dict[str, Fetched] = {}
    try:
        _must_have_influxql(target)
        for name, measurement in FILES.items():
            local = sorted(run.read_series(name, notes.append), key=_order)
            fetched = _rows(target, measurement, span, hosts)
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


def _span(run: RunDirectory, plan: PlanFile) -> tuple[int, int]:
    """(first, end) of the time to fetch, in ns. The end of a run that crashed is that of its last turn."""
    if plan.started_ns is None:
        raise UsageError(
            f"{run.path}: the run ended before its first request: there is no time to fetch series of",
            hint="is it the run that you mean?",
        )
    ended_ns = plan.ended_ns
    if ended_ns is None:
        ends = (turn.closed_ns for turn in run.read_turns() if turn.closed_ns is not None)
        ended_ns = max(ends, default=plan.started_ns)
    return plan.started_ns - MARGIN_NS, max(ended_ns, plan.started_ns) + MARGIN_NS


def _must_have_influxql(target: Target) -> None:
    server = identify(target)
    if server.kind == "victoriametrics":
        raise TargetError(
            f"{target.url}: is VictoriaMetrics, which has no InfluxQL: series can't be fetched from it",
            hint="write to an InfluxDB, or copy telemetry/*.jsonl of the agents' --out files into the run directory",
        )


# --------------------------------------------------------------------------------------------------------------- rows


def _rows(
    target: Target, measurement: Measurement, span: tuple[int, int], hosts: tuple[str, ...]
) -> Iterator[SeriesRow]:
    """The database's points in order of time, slice by slice."""
    first_ns, end_ns = span
    at_ns = first_ns
    while at_ns < end_ns:
        to_ns = min(at_ns + SLICE_NS, end_ns)
        yield from sorted(_slice(target, measurement, at_ns, to_ns, hosts), key=_order)
        at_ns = to_ns


def _slice(
    target: Target, measurement: Measurement, from_ns: int, to_ns: int, hosts: tuple[str, ...]
) -> list[SeriesRow]:
    of_hosts = " OR ".join(f'"host" = {literal(host)}' for host in hosts)
    text = f"SELECT * FROM {quoted(measurement.name)} WHERE time >= {from_ns} AND time < {to_ns}"
    text += f" AND ({of_hosts})" if hosts else ""
    try:
        found = query(target, f"{text} GROUP BY *")
    except TruncatedError:
        if to_ns - from_ns <= SECOND_NS:
            raise
        middle_ns = (from_ns + to_ns) // 2
        early = _slice(target, measurement, from_ns, middle_ns, hosts)
        return early + _slice(target, measurement, middle_ns, to_ns, hosts)
    return [row for series in found if series.name == measurement.name for row in rows_of(series, measurement)]


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
    return row.at_ns, tuple(sorted((name, value) for name, value in row.tags.items() if value))


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
