"""What the GPUs did in one steady phase. Cards weigh the same in a mean; powers, energies and memory are added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from infersiege.metrics.facts import SteadyWindow
from infersiege.resources.series import Floats, Series, Watched, highest_sum, weighted

WHOLE = "none"
"""The tag `mig_parent` of what is no MIG slice."""


@dataclass(frozen=True, slots=True)
class Card:
    """One physical GPU: its own series, its MIG slices, or both."""

    own: Series | None
    slices: tuple[Series, ...]

    @property
    def workers(self) -> tuple[Series, ...]:
        """What work runs on: its slices, where it has some."""
        return self.slices or ((self.own,) if self.own is not None else ())

    def value(self, of: Callable[[Series], float | None]) -> float | None:
        """The card's own value, else the mean of its slices."""
        value = None if self.own is None else of(self.own)
        return mean_of(of(one) for one in self.slices) if value is None else value

    def shared(self, of: Callable[[Series], float | None]) -> float | None:
        """What slices share and each may repeat (power, energy): counted once."""
        value = None if self.own is None else of(self.own)
        return next((found for one in self.slices if (found := of(one)) is not None), None) if value is None else value


def cards(gpus: Iterable[Series]) -> tuple[Card, ...]:
    """Series by card, in their order."""
    found: dict[tuple[str, str], tuple[list[Series], list[Series]]] = {}
    for series in gpus:
        parent = series.tags.get("mig_parent") or WHOLE
        uuid = series.tags.get("uuid", "") if parent == WHOLE else parent
        own, slices = found.setdefault((series.tags.get("host", ""), uuid), ([], []))
        (own if parent == WHOLE else slices).append(series)
    return tuple(Card(own[0] if own else None, tuple(slices)) for own, slices in found.values())


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of those that are known; None: none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def sum_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class Spread:
    """A ratio over cards."""

    mean: float
    busiest: float
    """Of the card with the highest one: tensor parallelism is as fast as its slowest card."""
    cards: int


def spread(parts: Sequence[Card], of: Callable[[Series], float | None]) -> Spread | None:
    known = [value for card in parts if (value := card.value(of)) is not None]
    return Spread(sum(known) / len(known), max(known), len(known)) if known else None


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """Figures of all GPUs in one steady phase; None: no GPU told."""

    count: int
    lost: tuple[str, ...]
    energy_j: float | None
    power_mean_w: float | None
    memory_used_mean_bytes: float | None
    memory_used_peak_bytes: float | None
    memory_total_bytes: float | None
    utilization: Spread | None
    sm_active: Spread | None
    tensor_active: Spread | None
    dram_active: Spread | None
    power_capped: Spread | None
    throttled: Spread | None
    xids: dict[str, int]
    coverage: dict[str, float]


def power_column(series: Series) -> str:
    """The best of what the card tells of its power: mean of the samples, else the driver's own average."""
    return "power_mean_w" if series.has("power_mean_w") else "power_average_w"


def energy_of(series: Series, window: SteadyWindow) -> float | None:
    """J from the driver's counter; from power over the time that was watched where there is no counter."""
    counted = series.total("energy_j", window)
    if counted is not None:
        return counted
    watts, seconds = series.column(power_column(series)), series.gauge_seconds(window.start_ns, window.end_ns)
    known = np.isfinite(watts) & (seconds > 0)
    return float((watts[known] * seconds[known]).sum()) if known.any() else None


def _throttled(series: Series) -> Floats:
    """By heat or by hardware. Both often name the same moment, so their sum would count it twice."""
    return np.fmax(series.column("thermal_throttled"), series.column("hardware_slowdown"))


def _memory_peaks(series: Series) -> Floats:
    return np.fmax(series.column("memory_used_max_bytes"), series.column("memory_used_mean_bytes"))


def gpu_figures(watched: Watched, window: SteadyWindow) -> GpuFigures | None:
    """None when no GPU and no host of GPUs was watched in the whole run."""
    if not watched.gpus and not watched.hosts:
        return None
    parts = cards(watched.gpus)
    memory = [_memory_of(card) for card in parts]
    coverage = {_name(series): series.coverage(window) for series in watched.gpus}

    def over(name: str) -> Spread | None:
        return spread(parts, lambda series: series.mean(name, window))

    return GpuFigures(
        count=sum(coverage[_name(one)] > 0 for card in parts for one in card.workers),
        lost=_lost(watched, window),
        energy_j=sum_of(card.shared(lambda one: energy_of(one, window)) for card in parts),
        power_mean_w=sum_of(card.shared(lambda one: one.mean(power_column(one), window)) for card in parts),
        memory_used_mean_bytes=sum_of(one.mean("memory_used_mean_bytes", window) for each in memory for one in each),
        memory_used_peak_bytes=highest_sum([(one, _memory_peaks(one)) for each in memory for one in each], window),
        memory_total_bytes=sum_of(one.peak("memory_total_bytes", window) for each in memory for one in each),
        utilization=over("utilization_mean"),
        sm_active=over("sm_active"),
        tensor_active=over("tensor_active"),
        dram_active=over("dram_active"),
        power_capped=over("power_capped"),
        throttled=spread(
            parts, lambda one: weighted(_throttled(one), one.gauge_seconds(window.start_ns, window.end_ns))
        ),
        xids=_xids(watched.gpus, window),
        coverage=coverage,
    )


def _name(series: Series) -> str:
    return f"gpu {series.tags.get('host', '')} {series.tags.get('uuid', '')}"


def _memory_of(card: Card) -> tuple[Series, ...]:
    """A card's memory is that of its slices where they tell it."""
    telling = tuple(one for one in card.slices if one.has("memory_used_mean_bytes"))
    return telling or ((card.own,) if card.own is not None else ())


def _lost(watched: Watched, window: SteadyWindow) -> tuple[str, ...]:
    """`host uuid: NVML error` of each card, and `host: what` of each host, that could not be read at some time."""
    lost = []
    for series in watched.gpus:
        for text, _ in series.errors_in(window).most_common(1):
            lost.append(f"{series.tags.get('host', '')} {series.tags.get('uuid', '')}: {text}")
    for series in watched.hosts:
        host = series.tags.get("host", "")
        errors = series.errors_in(window).most_common(1)
        if errors:
            lost.append(f"{host}: {errors[0][0]}")
            continue
        inside = series.gauge_seconds(window.start_ns, window.end_ns) > 0
        seen, expected = series.column("gpus"), series.column("gpus_expected")
        fewer = inside & (seen < expected)
        if fewer.any():
            lost.append(f"{host}: only {seen[fewer].min():.0f} of {expected[fewer].max():.0f} GPUs were there")
    return tuple(lost)


def _xids(gpus: Iterable[Series], window: SteadyWindow) -> dict[str, int]:
    events: Counter[str] = Counter()
    for series in gpus:
        codes, counts = series.column("xid"), series.column("xid_count")
        inside = np.isfinite(codes) & (series.end_ns > window.start_ns) & (series.end_ns <= window.end_ns)
        for code, count in zip(codes[inside], counts[inside], strict=True):
            events[f"{series.tags.get('uuid', '')}: Xid {code:.0f}"] += max(1, int(count)) if count == count else 1
    return dict(sorted(events.items()))
