"""What the GPUs did in one steady phase. Cards weigh the same in a mean; powers, energies and memory are added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from infersiege.metrics.facts import SteadyWindow
from infersiege.resources.series import SECOND_NS, Floats, Series, highest_sum, weighted
from infersiege.resources.watched import Watched

Found = TypeVar("Found")

WHOLE = "none"
"""The tag `mig_parent` of what is no MIG slice."""

READ_ENOUGH = 0.80
"""Figures from a smaller share of the steady phase carry a note, and there is no energy per token."""
IDLE_BELOW = 0.05
"""A GPU that worked for less of the time did none of the work."""


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

    def shared(self, of: Callable[[Series], Found | None]) -> Found | None:
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
    """Of the time that was read."""
    energy_whole_j: float | None
    """Of the whole steady phase, the little that was not read being like the rest; None where that is too much."""
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
    clock_loss: Spread | None
    """1 − SM clock / highest SM clock."""
    idle: int | None
    """Of what work runs on, how many did none; None: not told."""
    xids: dict[str, int]
    coverage: dict[str, float]


def power_column(series: Series) -> str:
    """The best of what the card tells of its power: mean of the samples, else the driver's own average."""
    return "power_mean_w" if series.has("power_mean_w") else "power_average_w"


@dataclass(frozen=True, slots=True)
class Energy:
    """J, and of how many seconds of the steady phase."""

    joules: float
    seconds: float


def energy_of(series: Series, window: SteadyWindow) -> Energy | None:
    """From the driver's counter; from power over the time that was watched where there is no counter."""
    counted, known = series.total("energy_j", window), np.isfinite(series.column("energy_j"))
    if counted is not None:
        # A counter tells of a hole, too, when it is read again after it.
        return Energy(counted, float(series.count_seconds(window.start_ns, window.end_ns)[known].sum()))
    watts, seconds = series.column(power_column(series)), series.gauge_seconds(window.start_ns, window.end_ns)
    known = np.isfinite(watts) & (seconds > 0)
    if not known.any():
        return None
    return Energy(float((watts[known] * seconds[known]).sum()), float(seconds[known].sum()))


def _whole_energy(found: Sequence[Energy | None], watched: Watched, window: SteadyWindow) -> float | None:
    """J of all cards in the whole phase.

    Energy of a part of the time over the tokens of all of it would flatter the hardware: there is none when a card was
    read for less than READ_ENOUGH, or when cards that should be there were not.
    """
    whole_s = window.duration_ns / SECOND_NS
    if not found or watched.silent or any(_missing_share(one, window) > 1 - READ_ENOUGH for one in watched.hosts):
        return None
    total = 0.0
    for energy in found:
        if energy is None or energy.seconds < READ_ENOUGH * whole_s:
            return None
        total += energy.joules * max(1.0, whole_s / energy.seconds)
    return total


def _throttled(series: Series) -> Floats:
    """By heat or by hardware. Both often name the same moment, so their sum would count it twice."""
    return np.fmax(series.column("thermal_throttled"), series.column("hardware_slowdown"))


def _clock_loss(series: Series) -> Floats:
    highest = series.column("clock_sm_max_mhz")
    return 1 - series.column("clock_sm_mhz") / np.where(highest > 0, highest, np.nan)


def _idle(parts: Sequence[Card], window: SteadyWindow) -> int | None:
    """GPUs and slices in which (nearly) no kernel ran. That is all that NVML's utilisation can show."""
    worked = [
        one.mean("sm_active" if one.has("sm_active") else "utilization_mean", window)
        for card in parts
        for one in card.workers
    ]
    known = [share for share in worked if share is not None]
    return sum(share < IDLE_BELOW for share in known) if known else None


def _memory_peaks(series: Series) -> Floats:
    return np.fmax(series.column("memory_used_max_bytes"), series.column("memory_used_mean_bytes"))


def gpu_figures(watched: Watched, window: SteadyWindow) -> GpuFigures | None:
    """None when no GPU and no host of GPUs was watched in the whole run."""
    if not watched.gpus and not watched.hosts:
        return None
    parts = cards(watched.gpus)
    memory = [_memory_of(card) for card in parts]
    coverage = {_name(series): series.coverage(window) for series in watched.gpus}

    energies = [card.shared(lambda one: energy_of(one, window)) for card in parts]

    def over(name: str) -> Spread | None:
        return spread(parts, lambda series: series.mean(name, window))

    def over_points(of: Callable[[Series], Floats]) -> Spread | None:
        return spread(parts, lambda one: weighted(of(one), one.gauge_seconds(window.start_ns, window.end_ns)))

    return GpuFigures(
        count=sum(coverage[_name(one)] > 0 for card in parts for one in card.workers),
        lost=_lost(watched, window),
        energy_j=sum_of(None if energy is None else energy.joules for energy in energies),
        energy_whole_j=_whole_energy(energies, watched, window),
        power_mean_w=sum_of(card.shared(lambda one: one.mean(power_column(one), window)) for card in parts),
        memory_used_mean_bytes=sum_of(one.mean("memory_used_mean_bytes", window) for each in memory for one in each),
        memory_used_peak_bytes=highest_sum([(one, _memory_peaks(one)) for each in memory for one in each], window),
        memory_total_bytes=sum_of(one.peak("memory_total_bytes", window) for each in memory for one in each),
        utilization=over("utilization_mean"),
        sm_active=over("sm_active"),
        tensor_active=over("tensor_active"),
        dram_active=over("dram_active"),
        power_capped=over("power_capped"),
        throttled=over_points(_throttled),
        clock_loss=over_points(_clock_loss),
        idle=_idle(parts, window),
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
    cards_lost: Counter[str] = Counter()
    for series in watched.gpus:
        for text, _ in series.errors_in(window).most_common(1):
            lost.append(f"{series.tags.get('host', '')} {series.tags.get('uuid', '')}: {text}")
            cards_lost[series.tags.get("host", "")] += 1
    with_cards = {series.tags.get("host", "") for series in watched.gpus}
    for series in watched.hosts:
        host = series.tags.get("host", "")
        lost += [f"{host}: {text}" for text in _host_lost(series, window, cards_lost[host], host in with_cards)]
    return (*lost, *(f"{host}: no point of this host" for host in watched.silent))


def _host_lost(series: Series, window: SteadyWindow, cards_lost: int, has_cards: bool) -> list[str]:
    """What is wrong with a host as a whole. `cards_lost`: its cards that are named already."""
    errors = series.errors_in(window).most_common(1)
    if errors:
        return [errors[0][0]]
    if not has_cards and not series.coverage(window):
        return ["no point of its GPUs"]
    fewer = _fewer(series, window)
    if not fewer.any():
        return []
    seen, expected = series.column("gpus")[fewer], series.column("gpus_expected")[fewer]
    if (expected - seen).max() <= cards_lost:
        return []
    share = _missing_share(series, window)
    of = "" if share >= 0.995 else f" for {max(1, round(100 * share))} % of the time"
    return [f"only {seen.min():.0f} of {expected.max():.0f} GPUs were there{of}"]


def _fewer(series: Series, window: SteadyWindow) -> npt.NDArray[np.bool_]:
    """Points of a host in the window at which GPUs were missing."""
    inside = series.gauge_seconds(window.start_ns, window.end_ns) > 0
    fewer: npt.NDArray[np.bool_] = inside & (series.column("gpus") < series.column("gpus_expected"))
    return fewer


def _missing_share(series: Series, window: SteadyWindow) -> float:
    """Share of the time that a host's points are of in which GPUs were missing; 1.0 where it has no point."""
    seconds = series.gauge_seconds(window.start_ns, window.end_ns)
    told = float(seconds.sum())
    return float(seconds[_fewer(series, window)].sum()) / told if told else 1.0


def _xids(gpus: Iterable[Series], window: SteadyWindow) -> dict[str, int]:
    events: Counter[str] = Counter()
    for series in gpus:
        codes, counts = series.column("xid"), series.column("xid_count")
        inside = np.isfinite(codes) & (series.end_ns > window.start_ns) & (series.end_ns <= window.end_ns)
        for code, count in zip(codes[inside], counts[inside], strict=True):
            events[f"{series.tags.get('uuid', '')}: Xid {code:.0f}"] += max(1, int(count)) if count == count else 1
    return dict(sorted(events.items()))
