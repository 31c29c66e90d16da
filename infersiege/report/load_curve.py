"""Figures of whole runs as points of a curve over the load, and where the curve bends. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from infersiege.metrics.definitions import METRICS
from infersiege.records import GroupSummary, Summary
from infersiege.report.numbers import milliseconds

KNEE_SENSITIVITY = 0.05
"""How far a knee must stand out from the straight line, as a share of what the curve rises by."""

KNEE_RISE = 0.1
"""A curve that rises by less than this share of its top is flat: its bends are noise."""

KNEE_POINTS = 4
"""Fewer loads show no bend."""

KNEE_DEFINITION = (
    "where the curve of goodput (throughput, where no turn is held to a limit) over the load bends most: it stands "
    "highest above the straight line from its first point to its highest value at the last load, both axes scaled to "
    "0 … 1. Where that curve has no bend, since the first load already fills the server, it is where the median TTFT "
    "(E2E, where nothing was streamed) hangs lowest below the line from its lowest value at the first load to its last "
    "point: from there on requests wait. A curve that rises by less than a tenth of its top has no knee (Kneedle: "
    "Satopää, Albrecht, Irwin, Raghavan 2011)"
)


class Knee(msgspec.Struct, frozen=True):
    """Where a curve bends."""

    load: float
    by: str
    """What bends there: `goodput`, `throughput`, `TTFT` or `E2E`."""


class LoadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run as a point of a curve. Times in ms, of ok turns due in the steady phase; None: not known."""

    load: float
    """Users, or sessions per second."""
    verdict: str | None = None
    """`pass`, `fail`, `no data` or `invalid`; None: not judged."""
    turns: int = 0
    """Ok turns of the steady phase."""
    ttft_mean_ms: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_mean_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p99_ms: float | None = None
    throughput: float | None = None
    """Output tokens/s."""
    finished_rate: float | None = None
    """Turns/s."""
    goodput: float | None = None
    """Turns/s within every limit for single turns; None: the plan has no such limit."""
    goodput_share: float | None = None
    error_share: float | None = None
    cache_share: float | None = None
    in_flight_mean: float | None = None
    gpu_memory_peak_bytes: float | None = None
    kv_use_mean: float | None = None
    kv_use_peak: float | None = None
    waiting_mean: float | None = None
    limited_by: str | None = None
    """What limited it, as far as GPUs and engine were watched."""
    cost: float | None = None
    """In the plan's currency, of the steady phase."""
    cost_per_million_output_tokens: float | None = None


def point_of(summary: Summary, load: float, verdict: str | None) -> LoadPoint:
    """The run's first stage as one point; a probe has no other."""
    whole = summary.groups[0]
    watched = summary.resources[0] if summary.resources else None
    return LoadPoint(
        load=load,
        verdict=verdict,
        turns=whole.counts.ok,
        ttft_mean_ms=_ms(whole, "ttft", "mean"),
        ttft_p50_ms=_ms(whole, "ttft", "p50"),
        ttft_p95_ms=_ms(whole, "ttft", "p95"),
        ttft_p99_ms=_ms(whole, "ttft", "p99"),
        tpot_mean_ms=_ms(whole, "tpot", "mean"),
        tpot_p50_ms=_ms(whole, "tpot", "p50"),
        tpot_p99_ms=_ms(whole, "tpot", "p99"),
        e2e_p50_ms=_ms(whole, "e2e", "p50"),
        e2e_p99_ms=_ms(whole, "e2e", "p99"),
        throughput=whole.rates.get("throughput"),
        finished_rate=whole.rates.get("finished_rate"),
        goodput=whole.rates.get("goodput") if whole.rates.get("goodput_share") is not None else None,
        goodput_share=whole.rates.get("goodput_share"),
        error_share=whole.rates.get("error_share"),
        cache_share=whole.rates.get("cache_share"),
        in_flight_mean=whole.in_flight_mean,
        gpu_memory_peak_bytes=None if watched is None else watched.memory_used_peak_bytes,
        kv_use_mean=None if watched is None else watched.kv_use_mean,
        kv_use_peak=None if watched is None else watched.kv_use_peak,
        waiting_mean=None if watched is None else watched.waiting_mean,
        limited_by=None if watched is None else watched.limit,
        cost=None if whole.cost is None else whole.cost.total,
        cost_per_million_output_tokens=whole.rates.get("cost_per_million_output_tokens"),
    )


def _ms(group: GroupSummary, metric: str, stat: str) -> float | None:
    found = group.distributions.get(metric)
    return None if found is None else milliseconds(getattr(found, stat), METRICS[metric].unit)


def medians(points: Sequence[LoadPoint], name: str) -> tuple[list[float], list[float]]:
    """(loads in rising order, median of field `name` over the points of each); loads without a value are left out."""
    by_load: dict[float, list[float]] = {}
    for point in points:
        value = getattr(point, name)
        if value is not None:
            by_load.setdefault(point.load, []).append(value)
    loads = sorted(by_load)
    return loads, [statistics.median(by_load[load]) for load in loads]


def knee_of(points: Sequence[LoadPoint]) -> Knee | None:
    """The knee of a curve (`KNEE_DEFINITION`); None: too few loads, or no bend among them.

    Invalid points don't count: they were not the load that was asked for.
    """
    known = [point for point in points if point.verdict != "invalid"]
    for (first, by_first), (second, by_second), bend in (
        (("goodput", "goodput"), ("throughput", "throughput"), knee),
        (("ttft_p50_ms", "TTFT"), ("e2e_p50_ms", "E2E"), elbow),
    ):
        by = by_first
        loads, heights = medians(known, first)
        if len(loads) < KNEE_POINTS:
            by = by_second
            loads, heights = medians(known, second)
        found = bend(loads, heights)
        if found is not None:
            return Knee(found, by)
    return None


def knee(loads: Sequence[float], heights: Sequence[float]) -> float | None:
    """Kneedle without smoothing for a curve that rises and flattens (or falls after its top). `loads` in rising order.

    The straight line goes from the first point to the highest value at the last load, so that a curve that collapses
    behind its top bends at the top. None: fewer than `KNEE_POINTS`, or the curve does not rise (`KNEE_RISE`).
    """
    scaled = _scaled(loads, heights, heights[0], max(heights)) if len(loads) >= KNEE_POINTS else []
    return _furthest(loads, [y - x for x, y in scaled])


def elbow(loads: Sequence[float], heights: Sequence[float]) -> float | None:
    """The same for a curve that is flat and then rises.

    The straight line goes from the lowest value at the first load to the last point.
    """
    scaled = _scaled(loads, heights, min(heights), heights[-1]) if len(loads) >= KNEE_POINTS else []
    return _furthest(loads, [x - y for x, y in scaled])


def _scaled(loads: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[tuple[float, float]]:
    """Loads to 0 … 1, and heights so that `low` is 0 and `high` is 1; empty: there is nothing that rises."""
    width, rise = loads[-1] - loads[0], high - low
    if width <= 0 or rise <= 0 or rise < KNEE_RISE * high:
        return []
    return [((x - loads[0]) / width, (y - low) / rise) for x, y in zip(loads, heights, strict=True)]


def _furthest(loads: Sequence[float], distances: Sequence[float]) -> float | None:
    place = max(range(len(distances)), key=distances.__getitem__, default=None)
    return loads[place] if place is not None and distances[place] > KNEE_SENSITIVITY else None
