"""What the engines told of themselves in one steady phase. Requests of several engines are added up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from infersiege_agents.engine_histograms import Buckets, merge, parse, percentile

from infersiege.metrics.facts import SteadyWindow
from infersiege.resources.evidence import KV_FULL, EngineLoad
from infersiege.resources.gpus import mean_of, sum_of
from infersiege.resources.series import Series, highest_sum
from infersiege.resources.watched import Watched, engine_names


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Figures of all engines in one steady phase; None: no engine told."""

    kv_use_mean: float | None
    kv_use_peak: float | None
    """Of the fullest engine: one full cache delays its requests, however empty the others are."""
    running_mean: float | None
    running_peak: float | None
    waiting_mean: float | None
    waiting_peak: float | None
    preemptions: float | None
    prefix_hit_share: float | None
    server_ttft_mean_ms: float | None
    server_ttft_p50_ms: float | None
    server_ttft_p95_ms: float | None
    server_itl_mean_ms: float | None
    restarts: int
    each: tuple[EngineLoad, ...]
    coverage: dict[str, float]


def engine_figures(watched: Watched, window: SteadyWindow) -> EngineFigures | None:
    """None when no engine was watched in the whole run."""
    engines = watched.engines
    if not engines:
        return None
    names = engine_names(engines)
    ttft = merge(one for series in engines for one in _ttft_buckets(series, window))
    p50, p95 = percentile(ttft, 0.50), percentile(ttft, 0.95)
    return EngineFigures(
        kv_use_mean=mean_of(one.mean("kv_use", window) for one in engines),
        kv_use_peak=max((peak for one in engines if (peak := one.peak("kv_use", window)) is not None), default=None),
        running_mean=sum_of(one.mean("running", window) for one in engines),
        running_peak=highest_sum([(one, one.column("running")) for one in engines], window),
        waiting_mean=sum_of(one.mean("waiting", window) for one in engines),
        waiting_peak=highest_sum([(one, one.column("waiting")) for one in engines], window),
        preemptions=sum_of(one.total("preemptions", window) for one in engines),
        prefix_hit_share=_prefix_hits(engines, window),
        server_ttft_mean_ms=_mean_of_values(engines, "ttft", window),
        server_ttft_p50_ms=None if p50 is None else 1000 * p50,
        server_ttft_p95_ms=None if p95 is None else 1000 * p95,
        server_itl_mean_ms=_mean_of_values(engines, "itl", window),
        restarts=sum(round(one.total("resets", window) or 0) for one in engines),
        each=tuple(_load_of(name, one, window) for name, one in zip(names, engines, strict=True)),
        coverage={f"engine {name}": one.coverage(window) for name, one in zip(names, engines, strict=True)},
    )


def _load_of(name: str, series: Series, window: SteadyWindow) -> EngineLoad:
    return EngineLoad(
        name=name,
        kv_use_mean=series.mean("kv_use", window),
        kv_use_peak=series.peak("kv_use", window),
        running_mean=series.mean("running", window),
        running_peak=series.peak("running", window),
        waiting_mean=series.mean("waiting", window),
        waiting_peak=series.peak("waiting", window),
        waiting_while_full=_waiting_while_full(series, window),
        preemptions=series.total("preemptions", window),
    )


def _waiting_while_full(series: Series, window: SteadyWindow) -> float | None:
    """Share of the waiting (requests × time) at points whose KV cache was full; None: nothing waited, or not told."""
    use, waiting = series.column("kv_use"), series.column("waiting")
    known = np.isfinite(use) & np.isfinite(waiting)
    waited = waiting[known] * series.gauge_seconds(window.start_ns, window.end_ns)[known]
    total = float(waited.sum())
    return float(waited[use[known] >= KV_FULL].sum()) / total if total > 0 else None


def _ttft_buckets(series: Series, window: SteadyWindow) -> Iterator[Buckets]:
    """Histograms of the points that lie in the window by half or more: counts of values can't be split."""
    for place in np.flatnonzero(series.count_shares(window.start_ns, window.end_ns) >= 0.5):
        text = series.buckets[place]
        if text:
            # A damaged text is one point less, as a damaged row is.
            with contextlib.suppress(ValueError):
                yield parse(text)


def _prefix_hits(engines: Sequence[Series], window: SteadyWindow) -> float | None:
    """Hits / queries in tokens; the engines' own gauges where they tell no counts."""
    counted = [
        (hits, queries)
        for one in engines
        if (queries := one.total("prefix_queries", window)) and (hits := one.total("prefix_hits", window)) is not None
    ]
    if counted:
        return min(1.0, sum(hits for hits, _ in counted) / sum(queries for _, queries in counted))
    if any(one.has("prefix_queries") for one in engines):
        return None
    return mean_of(one.mean("prefix_hit_share", window) for one in engines)


def _mean_of_values(engines: Sequence[Series], name: str, window: SteadyWindow) -> float | None:
    """Exact mean over all values of the window, from the count and the mean of each point."""
    n = total = 0.0
    for one in engines:
        counts, means = one.column(f"{name}_n"), one.column(f"{name}_mean_ms")
        shares = one.count_shares(window.start_ns, window.end_ns)
        known = np.isfinite(counts) & np.isfinite(means) & (counts > 0)
        weights = counts[known] * shares[known]
        n += float(weights.sum())
        total += float((weights * means[known]).sum())
    return total / n if n else None
