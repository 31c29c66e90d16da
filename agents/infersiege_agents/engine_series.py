"""From the pages of one engine to points of measurements.ENGINE: gauges as they are, counters as counts per interval.

* The first page, and the first one after a restart, give no counts: what was counted before is not of this interval,
  and how much of it was counted after the restart is not known. `resets` is 1 then.
* A restart is seen by a counter that fell, or by another start time of the process (where the engine tells).
* A failed scrape is a point with `up` 0, the reason, and nothing else. The next page's counts are over the true
  interval, back to the last good page.
* Percentiles of the engine's own histograms are over the intervals that ended in the last 60 s.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from infersiege_agents.engine_histograms import Buckets, from_cumulative, merge, percentile, text_of
from infersiege_agents.engine_names import (
    COUNTERS,
    ENGINES,
    HIGHEST_GAUGES,
    HISTOGRAMS,
    RANKS,
    SINGLE_GAUGES,
    START_HEADER,
    START_METRIC,
    SUMMED_GAUGES,
    EngineNames,
    Sources,
    Term,
)
from infersiege_agents.engine_scrape import Page, ScrapeError, one_line
from infersiege_agents.measurements import LIVE_STATS
from infersiege_agents.points import Point

UNKNOWN = "unknown"
"""Tag `engine` as long as nobody said which it is and no page has told."""
WINDOW_S = 60.0

Labels = tuple[tuple[str, str], ...]
"""Sorted."""
Key = tuple[str, Labels]
Samples = dict[str, dict[Labels, float]]
"""Metric (with `_` for `:`) -> labels -> value."""


@dataclass(slots=True)
class Totals:
    """Running totals of one histogram's series."""

    by_bound: dict[float, float] = field(default_factory=dict)
    count: float | None = None
    sum: float | None = None

    def fell_below(self, before: Totals) -> bool:
        """It began anew: a total is lower than it was, or the bounds are others."""
        if self.by_bound.keys() != before.by_bound.keys():
            return True
        fell = any(self.by_bound[bound] < total for bound, total in before.by_bound.items())
        return fell or (self.count is not None and before.count is not None and self.count < before.count)


@dataclass(slots=True)
class Reading:
    """What one page says, in our words."""

    gauges: dict[str, float]
    counters: dict[str, dict[Key, float]]
    """Field -> running totals by series. A field that the engine doesn't tell has no entry."""
    histograms: dict[str, dict[Key, Totals]]
    started: dict[Key, float]
    """Start times, in whatever unit: another value is another process."""


def detect(text: str) -> str | None:
    """The engine whose metrics these are, by the prefix of their names; None: no engine that we know."""
    heads = {name.partition("_")[0] for name, _ in _lines(text)}
    return next((engine for engine, names in ENGINES.items() if names.prefix in heads), None)


def read(page: Page, engine: str) -> Reading:
    """What the page says. Raises ScrapeError when it is none of this engine, or when a line of ours can't be read."""
    names = ENGINES[engine]
    samples = _samples(page.text, _wanted(names))
    reading = Reading({}, {}, {}, _start_times(page, samples, names))
    for name, sources in names.fields.items():
        if name in HISTOGRAMS:
            if found := _histogram(samples, sources):
                reading.histograms[name] = found
        elif (series := _first(samples, sources)) is None:
            continue
        elif name in COUNTERS:
            reading.counters[name] = series
        elif (value := _gauge(name, series.values())) is not None:
            reading.gauges[name] = value
    if {"prefix_queries", "prefix_hits"} <= reading.counters.keys():
        reading.gauges.pop("prefix_hit_share", None)
    else:
        for name in ("prefix_queries", "prefix_hits"):
            reading.counters.pop(name, None)
    if not (reading.gauges or reading.counters or reading.histograms):
        other = detect(page.text)
        looks = f"; it looks like {other}" if other is not None and other != engine else ""
        raise ScrapeError(f"no metric of {engine} on this page{looks}")
    return reading


def _wanted(names: EngineNames) -> frozenset[str]:
    """The metrics of this engine that matter, in every spelling that a page has of them."""
    wanted = {START_METRIC}
    for field_name, sources in names.fields.items():
        for term in (term for terms in sources for term in terms):
            metric = _plain(term.metric)
            base = metric.removesuffix("_total")
            suffixes = ("_bucket", "_sum", "_count") if field_name in HISTOGRAMS else ("",)
            wanted |= {metric + suffix for suffix in suffixes} | {base + "_created"}
    return frozenset(wanted)


def _plain(name: str) -> str:
    """`vllm:x` and `vllm_x` are the same: exporters on the way write one for the other."""
    return name.replace(":", "_", 1)


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """(plain name, line) of each sample. Comments are left out: TYPE lines would only rename what they declare."""
    for line in text.splitlines():
        if line and line[0] != "#":
            head = line.partition("{")[0].split(None, 1)
            if head:
                yield _plain(head[0]), line


def _samples(text: str, wanted: frozenset[str]) -> Samples:
    """The wanted samples with a finite value.

    Only their lines reach the parser, each without its family: so the names stay as they are written (with a TYPE line
    the parser takes `_total` away and adds it, and `iteration_tokens_total` is a histogram), and a line of somebody
    else's that can't be read does no harm.
    """
    ours = "\n".join(line for name, line in _lines(text) if name in wanted)
    found: Samples = {}
    try:
        for family in text_string_to_metric_families(ours):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    labels = tuple(sorted(sample.labels.items()))
                    found.setdefault(_plain(sample.name), {})[labels] = float(sample.value)
    except (ValueError, IndexError, KeyError, TypeError) as error:  # what the parser raises for lines that are none
        raise ScrapeError(f"its metrics can't be read: {one_line(str(error)) or type(error).__name__}") from None
    return {metric: _one_of_each_replica(series) for metric, series in found.items()}


def _one_of_each_replica(series: dict[Labels, float]) -> dict[Labels, float]:
    """Without copies that differ in their rank only: the lowest rank is kept."""
    kept: dict[Labels, tuple[list[tuple[int, str]], Labels]] = {}
    for labels in series:
        rank = [(len(value), value) for name, value in labels if name in RANKS]
        rest = tuple(label for label in labels if label[0] not in RANKS)
        if rest not in kept or rank < kept[rest][0]:
            kept[rest] = (rank, labels)
    return {labels: series[labels] for _, labels in kept.values()}


def _start_times(page: Page, samples: Samples, names: EngineNames) -> dict[Key, float]:
    ours = {metric for metric in samples if metric.startswith(f"{names.prefix}_") and metric.endswith("_created")}
    found: dict[Key, float] = {}
    for metric in (*ours, START_METRIC):
        found |= {(metric, labels): value for labels, value in samples.get(metric, {}).items()}
    with contextlib.suppress(KeyError, ValueError):  # only llama.cpp has it
        found[START_HEADER, ()] = float(page.headers[START_HEADER])
    return found


def _first(samples: Samples, sources: Sources) -> dict[Key, float] | None:
    """The series of the first alternative that the page has."""
    for terms in sources:
        if all(term.optional or _plain(term.metric) in samples for term in terms):
            return {key: value for term in terms for key, value in _series_of(samples, term).items()}
    return None


def _series_of(samples: Samples, term: Term) -> dict[Key, float]:
    metric = _plain(term.metric)
    return {
        (metric, labels): value
        for labels, value in samples.get(metric, {}).items()
        if not term.label or dict(labels).get(term.label, "").endswith(term.ending)
    }


def _gauge(name: str, values: Iterable[float]) -> float | None:
    """One figure of the replicas' gauges; a value below 0 is an engine's way to say "none"."""
    told = [value for value in values if value >= 0]
    if not told or (name in SINGLE_GAUGES and len(told) > 1):
        return None
    assert name in SUMMED_GAUGES or name in HIGHEST_GAUGES or name in SINGLE_GAUGES, name
    return sum(told) if name in SUMMED_GAUGES else max(told)


def _histogram(samples: Samples, sources: Sources) -> dict[Key, Totals] | None:
    for term in (terms[0] for terms in sources):
        metric = _plain(term.metric)
        found: dict[Key, Totals] = {}
        for labels, total in samples.get(f"{metric}_bucket", {}).items():
            rest = tuple(label for label in labels if label[0] != "le")
            try:
                bound = float(dict(labels)["le"])
            except (KeyError, ValueError):
                raise ScrapeError(f"its metrics can't be read: a bucket of {term.metric} has no bound") from None
            found.setdefault((metric, rest), Totals()).by_bound[bound] = total
        for (_, labels), totals in found.items():
            totals.count = samples.get(f"{metric}_count", {}).get(labels)
            totals.sum = samples.get(f"{metric}_sum", {}).get(labels)
        if found:
            return found
    return None


class EngineSeries:
    """The points of one engine, from page to page."""

    def __init__(self, *, host: str, instance: str, engine: str | None) -> None:
        """`engine` is a key of ENGINES; None: told by each page."""
        self.host = host
        self._instance = instance
        self._asked = engine
        self.engine = engine or UNKNOWN
        self.resets_in_a_row = 0
        """Pages since the last one whose counters went on: more than a few are no restarts."""
        self._known: _Known | None = None
        self._last_s = 0.0
        self._windows: dict[str, deque[tuple[float, Buckets]]] = {name: deque() for name in HISTOGRAMS}

    def failed(self, reason: str, *, at_ns: int) -> Point:
        """The point of a scrape that gave nothing. What is known from before stays, for the next page's counts."""
        return self._point({"up": 0.0, "error": one_line(reason) or "no reason given"}, at_ns)

    def scraped(self, page: Page, *, at_ns: int, at_s: float, took_s: float) -> Point:
        """The point of a page that came at `at_ns` (since the epoch), `at_s` (monotonic), after `took_s`.

        A page that can't be used gives the point of a failed scrape.
        """
        engine = self._asked or detect(page.text)
        if engine is None:
            return self.failed("a page without metrics of an engine that is known", at_ns=at_ns)
        try:
            now = read(page, engine)
        except ScrapeError as error:
            return self.failed(str(error), at_ns=at_ns)
        if engine != self.engine:
            self.engine, self._known = engine, None
        fields: dict[str, float | str | None] = {"up": 1.0, "scrape_duration": took_s, **now.gauges}
        interval_s, self._last_s = at_s - self._last_s, at_s
        if self._known is None:
            self._known = _Known()
        else:
            fields["interval"] = interval_s
            fields |= self._since(self._known, now, at_s)
        self._known.take(now)
        return self._point(fields, at_ns)

    def _since(self, known: _Known, now: Reading, at_s: float) -> dict[str, float | str | None]:
        """What was counted since the last page; only `resets` when the counters began anew."""
        if known.began_anew(now):
            self._known = _Known()
            self.resets_in_a_row += 1
            return {"resets": 1.0}
        self.resets_in_a_row = 0
        fields: dict[str, float | str | None] = {"resets": 0.0, **known.counts(now)}
        for name, series in now.histograms.items():
            buckets, n, total_s = known.values(series)
            fields[f"{name}_n"] = float(n)
            fields[f"{name}_mean_ms"] = total_s / n * 1000 if n > 0 and total_s is not None else None
            fields[f"{name}_buckets"] = _text(buckets)
            fields |= self._percentiles(name, buckets, at_s)
        return fields

    def _percentiles(self, name: str, buckets: Buckets, at_s: float) -> dict[str, float | None]:
        window = self._windows[name]
        window.append((at_s, buckets))
        while window[0][0] <= at_s - WINDOW_S:
            window.popleft()
        recent = merge(one for _, one in window)
        values_s = {stat: percentile(recent, int(stat.removeprefix("p")) / 100) for stat in LIVE_STATS}
        return {f"{name}_{stat}_ms": None if value is None else value * 1000 for stat, value in values_s.items()}

    def _point(self, fields: Mapping[str, float | str | None], at_ns: int) -> Point:
        tags = {"host": self.host, "engine": self.engine, "instance": self._instance}
        return Point("engine", tags, fields, at_ns)


def _text(buckets: Buckets) -> str | None:
    try:
        return text_of(buckets) or None
    except ValueError:  # replicas with different bounds: there is no one text for them
        return None


@dataclass(slots=True)
class _Known:
    """The totals that each series had when it was last on a page. What a page leaves out is kept: it may come back.

    A series that was on no page before counts from 0, since labels appear when they are first used.
    """

    counters: dict[Key, float] = field(default_factory=dict)
    histograms: dict[Key, Totals] = field(default_factory=dict)
    started: dict[Key, float] = field(default_factory=dict)

    def take(self, now: Reading) -> None:
        for series in now.counters.values():
            self.counters |= series
        for histograms in now.histograms.values():
            self.histograms |= histograms
        self.started |= now.started

    def began_anew(self, now: Reading) -> bool:
        if any(value != self.started.get(key, value) for key, value in now.started.items()):
            return True
        totals = (item for series in now.counters.values() for item in series.items())
        if any(total < self.counters.get(key, 0.0) for key, total in totals):
            return True
        histograms = (item for series in now.histograms.values() for item in series.items())
        return any(key in self.histograms and one.fell_below(self.histograms[key]) for key, one in histograms)

    def counts(self, now: Reading) -> dict[str, float | None]:
        counts: dict[str, float | None] = {}
        for name, series in now.counters.items():
            counts[name] = sum(total - self.counters.get(key, 0.0) for key, total in series.items())
        queries, hits = counts.get("prefix_queries"), counts.get("prefix_hits")
        if queries is not None and hits is not None:
            # Some engines count the two at different moments of a request; a share above 1 is none.
            counts["prefix_hit_share"] = hits / queries if queries > 0 and hits <= queries else None
        return counts

    def values(self, now: Mapping[Key, Totals]) -> tuple[Buckets, int, float | None]:
        """(buckets, number, sum in s; None when a series doesn't tell it) of the values since the last page."""
        parts, n, total_s = [], 0, 0.0
        told = True
        for key, totals in now.items():
            was = self.histograms.get(key, Totals())
            bounds = totals.by_bound.items()
            part = from_cumulative({bound: total - was.by_bound.get(bound, 0.0) for bound, total in bounds})
            parts.append(part)
            n += part.n if totals.count is None else round(totals.count - (was.count or 0.0))
            told = told and totals.sum is not None
            total_s += (totals.sum or 0.0) - (was.sum or 0.0)
        return merge(parts), n, total_s if told else None
