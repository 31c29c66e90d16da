"""The seconds of a run as points: live, as the workers report them, and exact, when it is over. Pure.

A turn enters when it ends, so its parts change seconds that were written before. Writing the same series and instant
again replaces what was there: each `tick` gives the seconds that changed, whole.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from infersiege_agents import measurements
from infersiege_agents.points import Point

from infersiege.metrics.definitions import METRICS, STATS
from infersiege.metrics.histogram import percentiles
from infersiege.plan.streams import Stream
from infersiege.records import Report, WindowRow
from infersiege.telemetry.points import ALL, NS_PER_MS, SECOND_NS, Fields, tag_of

OVER_S = 60
"""Percentiles beside those of the stage to date are over so many seconds."""

KEPT_S = 900
"""Seconds that can still change. What comes for older ones (a turn that took longer) counts in the figures of the stage
to date; the second itself is set right when the run is over."""

EARLIEST_S, LATEST_S = 3600, 30 * 86_400
"""Around the start of a run; a row of another time is a damaged one."""

COUNTS = ("due", "sent", "ok", "failed", "cancelled", "skipped", "chunks", "output_tokens", "tokens")
GAUGES = ("in_flight", "users")

_Key = TypeVar("_Key")

_METRICS = measurements.LIVE_METRICS
_SHARES = tuple(STATS[stat].q or 0.0 for stat in measurements.LIVE_STATS)
_FLOORS = tuple(STATS[stat].floor for stat in measurements.LIVE_STATS)
_CENSORED = tuple(METRICS[metric].censored for metric in _METRICS)


class Series(NamedTuple):
    """Tags of a series of seconds, beside the run; `all` for everything."""

    scenario: str
    channel: str
    stage: str
    phase: str


def cuts_of(row: WindowRow) -> tuple[Series, ...]:
    """The series that a row is part of: its own, those of its scenario and of its channel, and everything."""
    scenario, channel = tag_of(row.scenario), tag_of(row.channel)
    stage, phase = tag_of(row.stage), row.phase.value
    return (
        Series(ALL, ALL, stage, phase),
        Series(scenario, ALL, stage, phase),
        Series(ALL, channel, stage, phase),
        Series(scenario, channel, stage, phase),
    )


class _Buckets:
    """A sparse histogram whose buckets stay in order: seconds are many, and each asks for its percentiles."""

    __slots__ = ("_counts", "_order", "n")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._order: list[int] = []
        self.n = 0

    def add(self, counts: Mapping[int, int], sign: int) -> None:
        mine = self._counts
        for bucket, count in counts.items():
            before = mine.get(bucket)
            if before is None:
                insort(self._order, bucket)
                mine[bucket] = sign * count
            elif before + sign * count:
                mine[bucket] = before + sign * count
            else:
                del mine[bucket]
                del self._order[bisect_left(self._order, bucket)]
            self.n += sign * count

    def percentiles(self) -> list[int | None]:
        """In ns, by `measurements.LIVE_STATS`."""
        return percentiles(self._counts, _SHARES, self._order)


class _Distributions:
    """Sparse histograms of the live metrics over a span of time, with the outcomes beside them."""

    __slots__ = ("cancelled", "counts", "ok")

    def __init__(self) -> None:
        self.counts = tuple(_Buckets() for _ in _METRICS)
        self.ok = 0
        self.cancelled = 0

    def add(self, row: WindowRow, sign: int = 1) -> None:
        """Add a row, or take it away again (`sign` -1)."""
        self.ok += sign * row.ok
        self.cancelled += sign * row.cancelled
        for counts, metric in zip(self.counts, _METRICS, strict=True):
            counts.add(getattr(row, metric), sign)

    def fields(self, over: str) -> Iterator[tuple[str, float | int | None]]:
        """Percentiles in ms with their n, by field name. None below a statistic's floor (p99: 100 values), and where
        so many turns were cut that the slowest may be among them: the rules of the summary (docs/metrics.md)."""
        ended = self.ok + self.cancelled
        cut_share = self.cancelled / ended if ended else 0.0
        for metric, counts, censored in zip(_METRICS, self.counts, _CENSORED, strict=True):
            values = counts.percentiles()
            for stat, value, share, floor in zip(measurements.LIVE_STATS, values, _SHARES, _FLOORS, strict=True):
                hidden = counts.n < floor or (censored and cut_share > 1 - share + 1e-12)
                known = None if hidden or value is None else value / NS_PER_MS
                yield f"{metric}_{stat}_{over}_ms", known
            yield f"{metric}_n_{over}", counts.n


class _Second:
    """One second of one series, summed up."""

    __slots__ = ("counts", "errors", "good")

    def __init__(self) -> None:
        self.counts = dict.fromkeys((*COUNTS, *GAUGES), 0)
        self.errors: dict[str, int] = {}
        self.good: int | None = None

    def add(self, row: WindowRow) -> None:
        counts = self.counts
        for name in counts:
            counts[name] += getattr(row, name)
        if row.good is not None:
            self.good = row.good + (self.good or 0)
        for name, count in row.errors.items():
            self.errors[name] = self.errors.get(name, 0) + count


class _Track:
    """What is known of one series."""

    def __init__(self) -> None:
        self.seconds: dict[int, _Second] = {}
        self.changed: set[int] = set()
        self.newest: int | None = None
        self._to_date = _Distributions()
        self._recent = _Distributions()
        self._recent_rows: dict[int, list[WindowRow]] = {}
        """What is in `_recent`, by second."""

    def add(self, row: WindowRow, *, kept: bool) -> None:
        """`kept`: the second can still be written."""
        if row.ttft or row.tpot or row.e2e or row.lateness or row.ok or row.cancelled:
            self._to_date.add(row)
            self._recent.add(row)
            self._recent_rows.setdefault(row.second, []).append(row)
        if not kept:
            return
        second = self.seconds.get(row.second)
        if second is None:
            second = self.seconds[row.second] = _Second()
        second.add(row)
        self.changed.add(row.second)
        self.newest = row.second if self.newest is None else max(self.newest, row.second)

    def percentiles(self) -> Fields:
        """Over the last OVER_S seconds up to the newest one, and to date."""
        after = (self.newest or 0) - OVER_S
        for second in [second for second in self._recent_rows if second <= after]:
            for row in self._recent_rows.pop(second):
                self._recent.add(row, -1)
        return dict((*self._recent.fields("60s"), *self._to_date.fields("stage")))

    def forget(self, before: int) -> None:
        for second in [second for second in self.seconds if second < before]:
            del self.seconds[second]
        self.changed = {second for second in self.changed if second >= before}


class _Seconds:
    """A set of seconds in a byte each, since a run may take days."""

    __slots__ = ("_first", "_flags")

    def __init__(self) -> None:
        self._first: int | None = None
        self._flags = bytearray()

    def add(self, second: int) -> None:
        if self._first is None:
            self._first = second
        if second < self._first:
            self._flags[:0] = bytes(self._first - second)
            self._first = second
        place = second - self._first
        if place >= len(self._flags):
            self._flags.extend(bytes(place + 1 - len(self._flags)))
        self._flags[place] = 1

    def discard(self, second: int) -> None:
        place = second - (self._first or 0)
        if self._first is not None and 0 <= place < len(self._flags):
            self._flags[place] = 0

    def __iter__(self) -> Iterator[int]:
        return ((self._first or 0) + place for place, flag in enumerate(self._flags) if flag)


class Written:
    """Which seconds of which series are in the database: what an exact second has to replace."""

    def __init__(self) -> None:
        self._windows: dict[Series, _Seconds] = {}
        self._errors: dict[tuple[Series, str], _Seconds] = {}

    def window(self, series: Series, second: int) -> None:
        self._windows.setdefault(series, _Seconds()).add(second)

    def error(self, series: Series, error_class: str, second: int) -> None:
        self._errors.setdefault((series, error_class), _Seconds()).add(second)

    def without(self, exact: Written) -> None:
        """Leave only what `exact` has not written again."""
        _take_away(self._windows, exact._windows)
        _take_away(self._errors, exact._errors)

    def windows(self) -> Iterator[tuple[Series, int]]:
        return ((series, second) for series, seconds in self._windows.items() for second in seconds)

    def errors(self) -> Iterator[tuple[Series, str, int]]:
        return ((series, name, second) for (series, name), seconds in self._errors.items() for second in seconds)


def _take_away(mine: dict[_Key, _Seconds], theirs: Mapping[_Key, _Seconds]) -> None:
    for key, seconds in theirs.items():
        found = mine.get(key)
        if found is not None:
            for second in seconds:
                found.discard(second)


class WindowPoints:
    """Merges rows, whatever their order and however they were split, into points of whole seconds."""

    def __init__(self, run: str, *, started_ns: int, steady_ns: int, gauges: bool = False) -> None:
        """`steady_ns`: the first steady phase begins. `gauges`: the rows know who was alive at the end of a second."""
        self._run = run
        self._started_s = started_ns // SECOND_NS
        self._steady_ns = steady_ns
        self._gauges = gauges
        self._names = (*COUNTS, *GAUGES) if gauges else COUNTS
        self._tracks: dict[Series, _Track] = {}
        self._newest = 0
        self.written = Written()

    def add(self, rows: Iterable[WindowRow]) -> None:
        for row in rows:
            if not -EARLIEST_S <= row.second - self._started_s <= LATEST_S:
                continue
            if not self._gauges and not _holds_anything(row):
                continue
            self._newest = max(self._newest, row.second)
            kept = row.second > self._newest - KEPT_S
            for series in cuts_of(row):
                track = self._tracks.get(series)
                if track is None:
                    track = self._tracks[series] = _Track()
                track.add(row, kept=kept)

    @property
    def held(self) -> int:
        """Seconds in memory, over all series: at most KEPT_S of each."""
        return sum(len(track.seconds) for track in self._tracks.values())

    def tick(self) -> Iterator[Point]:
        """Every second that changed since the last tick; the newest of each series with its percentiles."""
        for series, track in self._tracks.items():
            track.forget(self._newest - KEPT_S)
            if track.newest is None or not track.changed:
                continue
            for second in sorted({*track.changed, track.newest} & track.seconds.keys()):
                fields = self._fields(track.seconds[second], second)
                if second == track.newest:
                    fields |= track.percentiles()
                yield self._point(series, second, fields)
                for name, count in track.seconds[second].errors.items():
                    self.written.error(series, name, second)
                    yield _error_point(self._run, series, name, second, count)
            track.changed.clear()

    def nothing(self, series: Series, second: int) -> Point:
        """A second in which nothing happened after all."""
        return self._point(series, second, self._fields(_Second(), second))

    def _point(self, series: Series, second: int, fields: Fields) -> Point:
        self.written.window(series, second)
        return Point(measurements.WINDOW.name, {"run": self._run, **series._asdict()}, fields, second * SECOND_NS)

    def _fields(self, one: _Second, second: int) -> Fields:
        fields: Fields = {name: one.counts[name] for name in self._names}
        fields["good"] = one.good
        fields["since_steady"] = (second * SECOND_NS - self._steady_ns) / SECOND_NS
        return fields


def _holds_anything(row: WindowRow) -> bool:
    """Whether anything happened in it: a second of waiting is nothing to write while the run goes on."""
    return bool(row.ttft or row.lateness) or any(getattr(row, name) for name in COUNTS)


def exact_points(
    run: str, rows: Iterable[WindowRow], *, started_ns: int, steady_ns: int, written: Written | None = None
) -> Iterator[Point]:
    """Every second of a run that is over, from its rebuilt rows (sorted by second), each with its percentiles.

    `written`: what live points have put into the database; a second that the rows don't have becomes zeros. It is
    used up.
    """
    exact = WindowPoints(run, started_ns=started_ns, steady_ns=steady_ns, gauges=True)
    for _, of_second in groupby(rows, key=lambda row: row.second):
        exact.add(of_second)
        yield from exact.tick()
    if written is None:
        return
    written.without(exact.written)
    for series, second in written.windows():
        yield exact.nothing(series, second)
    for series, name, second in written.errors():
        yield _error_point(run, series, name, second, 0)


def _error_point(run: str, series: Series, error_class: str, second: int, count: int) -> Point:
    tags = {"run": run, **series._asdict(), "error_class": error_class}
    return Point(measurements.ERROR.name, tags, {"count": count}, second * SECOND_NS)


class LiveGauges:
    """The whole run at this moment, from the workers' latest reports; counts are since the last point."""

    def __init__(self, run: str, streams: Sequence[Stream]) -> None:
        self._run = run
        self._streams = streams
        self._latest: dict[str, Report] = {}
        self._since: dict[str, int] = dict.fromkeys(("started", "closed", "failed", "chunks"), 0)
        self._at_ns: int | None = None

    def add(self, report: Report) -> None:
        before = self._latest.get(report.worker)
        since = self._since
        since["started"] += report.started_turns - (before.started_turns if before else 0)
        since["closed"] += report.closed_turns - (before.closed_turns if before else 0)
        since["failed"] += sum(row.failed for row in report.windows)
        # An answer that ends with fewer chunks than it seemed to have is corrected there: no count goes back.
        since["chunks"] += max(0, report.chunks - (before.chunks if before else 0))
        self._latest[report.worker] = report

    def drop(self, worker: str) -> None:
        """A lost worker plays nothing any more; what it did stays counted."""
        self._latest.pop(worker, None)

    def point(self, at_ns: int, *, elapsed_ns: int | None, alive: int, expected: int) -> Point:
        """`elapsed_ns`: since the first arrival was due; None: the load has ended."""
        users, rate = asked(self._streams, elapsed_ns)
        fields: Fields = {
            "users_asked": users,
            "rate_asked": rate,
            "sessions": sum(report.sessions for report in self._latest.values()),
            "in_flight": sum(report.in_flight for report in self._latest.values()),
            **self._since,
            "interval": None if self._at_ns is None else (at_ns - self._at_ns) / SECOND_NS,
            "workers": alive,
            "workers_expected": expected,
        }
        self._since = dict.fromkeys(self._since, 0)
        self._at_ns = at_ns
        return Point(measurements.LIVE.name, {"run": self._run}, fields, at_ns)


def asked(streams: Iterable[Stream], elapsed_ns: int | None) -> tuple[int | None, float | None]:
    """(sessions at a time, sessions per second) that the plan asks for at this moment, over all its loads; 0 before and
    after the load.

    None: it does not ask for such a thing.
    """
    at_ns = -1 if elapsed_ns is None else elapsed_ns
    users = [found for stream in streams if (found := stream.users_at(at_ns)) is not None]
    rates = [rate for stream in streams if (rate := stream.rate_at(at_ns)) is not None]
    return sum(users) if users else None, sum(rates) if rates else None
