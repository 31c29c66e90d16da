"""The rows of the table: which figures are compared, where each comes from, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from infersiege.compare.cuts import Cut
from infersiege.compare.intervals import Estimate, of_mean, of_rate, of_share
from infersiege.cost import money
from infersiege.metrics.behind import turns_behind
from infersiege.metrics.definitions import METRICS
from infersiege.records import StageResources
from infersiege.report.numbers import ABSENT, number, share

GIB = 2**30

Value = Callable[[Cut], float | None]
Range = Callable[[Cut], Estimate | None]


class Row(NamedTuple):
    """One figure."""

    key: str
    title: str
    unit: str
    better: Literal["lower", "higher"] | None
    """None: more is neither."""
    share: bool
    """Compared as a difference in points; others as ratios."""
    value: Value
    """In `unit`; None: this run does not have it."""
    range: Range
    """What the turns of this run tell of how sure it is; None: nothing."""


def written(unit: str, value: float | None) -> str:
    """A value of a row as people read it; None is `–`."""
    if value is None:
        return ABSENT
    return share(value) if unit == "ratio" else money(value) if unit.startswith("money") else number(value)


def _nothing(_cut: Cut) -> None:
    return None


# ------------------------------------------------------------------------------------------------- distributions


def _stat(metric: str, stat: str) -> Value:
    def value(cut: Cut) -> float | None:
        found = cut.group.distributions.get(metric)
        return None if found is None else getattr(found, stat)

    return value


def _stat_range(metric: str, stat: str) -> Range:
    """Of a percentile by order statistics (metrics.orders), of a mean by its deviation."""

    def of_percentile(cut: Cut) -> Estimate | None:
        found = cut.group.distributions.get(metric)
        value = None if found is None else getattr(found, stat)
        if found is None or value is None:
            return None
        low, high = found.ranges.get(stat, (None, None))
        return None if low is None or high is None else Estimate(value, min(low, value), max(high, value))

    def of_mean_of(cut: Cut) -> Estimate | None:
        found = cut.group.distributions.get(metric)
        shape = cut.shape.by_metric.get(metric)
        if found is None or found.mean is None or shape is None:
            return None
        return of_mean(shape, found.mean, METRICS[metric].per_unit)

    # Gaps of one answer are alike, and tokens are no times: their numbers would promise too much.
    if metric not in ("ttft", "tpot", "e2e"):
        return _nothing
    return of_mean_of if stat == "mean" else of_percentile


def _distribution(metric: str, *stats: str, title: str | None = None) -> list[Row]:
    known = METRICS[metric]
    neutral = metric in ("prompt_tokens", "output_tokens")
    return [
        Row(
            f"{metric}_{stat}",
            f"{title or known.title} {stat}",
            known.unit,
            None if neutral else known.better,
            False,
            _stat(metric, stat),
            _stat_range(metric, stat),
        )
        for stat in stats
    ]


# ---------------------------------------------------------------------------------------------------------- rates


def _rate(metric: str, title: str, range_: Range = _nothing) -> Row:
    known = METRICS[metric]
    return Row(
        metric,
        title,
        known.unit,
        None if metric in ("asked_rate", "users", "delivered_share") else known.better,
        known.unit == "ratio",
        lambda cut: cut.group.rates.get(metric),
        range_,
    )


def _by_second(metric: str, seconds: str) -> Range:
    def found(cut: Cut) -> Estimate | None:
        value = cut.group.rates.get(metric)
        return None if value is None else of_rate(getattr(cut.seconds, seconds), value)

    return found


def _of_turns(metric: str) -> Range:
    """A share whose turns are counted."""

    def found(cut: Cut) -> Estimate | None:
        value, n = cut.group.rates.get(metric), turns_behind(metric, cut.group)
        return None if value is None else of_share(round(value * n), n)

    return found


def _good(cut: Cut) -> Estimate | None:
    """The summary has their rate and their share."""
    rate, good = cut.group.rates.get("goodput"), cut.group.rates.get("goodput_share")
    if not rate or not good:
        return None
    turns = round(rate * cut.group.steady_duration_ns / 1e9)
    return of_share(turns, round(turns / good))


# ------------------------------------------------------------------------------------------------------ resources


def _peak(field: str) -> Value:
    """The highest of all stages."""

    def value(cut: Cut) -> float | None:
        known = [found for one in cut.resources if (found := getattr(one, field)) is not None]
        return max(known, default=None)

    return value


def _memory_gib(cut: Cut) -> float | None:
    peak = _peak("memory_used_peak_bytes")(cut)
    return None if peak is None else peak / GIB


def _energy_per_token(cut: Cut) -> float | None:
    """Joules / output tokens over all stages, each of which must be known."""
    if not cut.resources or not all(map(_has_energy, cut.resources)):
        return None
    energy_j = math.fsum(one.energy_j or 0.0 for one in cut.resources)
    tokens = math.fsum((one.energy_j or 0.0) / (one.energy_per_output_token_j or 1.0) for one in cut.resources)
    return energy_j / tokens if tokens else None


def _has_energy(one: StageResources) -> bool:
    return one.energy_j is not None and bool(one.energy_per_output_token_j)


def _resource(key: str, title: str, unit: str, value: Value, *, ratio: bool = False, neutral: bool = False) -> Row:
    return Row(key, title, unit, None if neutral else "lower", ratio, value, _nothing)


ROWS: Sequence[Row] = (
    *_distribution("ttft", "mean", "p50", "p95", "p99"),
    *_distribution("tpot", "mean", "p50", "p95", "p99"),
    *_distribution("gap", "p50", "p99", title="Gap"),
    *_distribution("e2e", "mean", "p50", "p95", "p99"),
    _rate("throughput", "Output", _by_second("throughput", "tokens")),
    _rate("finished_rate", "Finished", _by_second("finished_rate", "finished")),
    _rate("goodput", "Goodput", _by_second("goodput", "good")),
    _rate("goodput_share", "Good share", _good),
    _rate("error_share", "Error share", _of_turns("error_share")),
    _rate("cache_share", "Cache share"),
    _rate("quality", "Quality", _of_turns("quality")),
    _rate("collapsed_share", "Collapsed share", _of_turns("collapsed_share")),
    _resource("gpu_memory_peak", "GPU memory peak", "GiB", _memory_gib, neutral=True),
    _resource("kv_use_peak", "KV use peak", "ratio", _peak("kv_use_peak"), ratio=True, neutral=True),
    _resource("energy_per_token", "Energy per token", "J", _energy_per_token),
    _rate("cost_per_million_output_tokens", "Cost per 1M output"),
    *_distribution("prompt_tokens", "p50", title="Prompt"),
    *_distribution("output_tokens", "p50", title="Output"),
    _rate("users", "Users"),
    _rate("asked_rate", "Asked"),
    _rate("delivered_share", "Delivered load"),
)
"""In the order of the table; rows that no run knows are left out."""
