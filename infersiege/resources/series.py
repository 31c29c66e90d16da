"""Points of GPUs and engines as columns on a time axis: what each point stands for, and where there is none.

A point stands for the `interval` before its stamp. Where no point stands for a time, there is no value: the last one is
never carried on.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from infersiege.metrics.facts import SteadyWindow
from infersiege.records import SeriesRow
from infersiege.resources.plausible import believed, bounds_of

SECOND_NS = 1_000_000_000

Floats = npt.NDArray[np.float64]
Instants = npt.NDArray[np.int64]

LONGEST_STANDING = 2.5
"""A gauge stands for at most so many usual intervals of its series: after an outage it tells of its own moment only.

Counts are exact over the whole interval, however long, since they are differences of a counter."""

GPU_COLUMNS = (
    "ok", "index", "interval", "utilization_mean", "sm_active", "tensor_active", "dram_active",
    "memory_used_mean_bytes", "memory_used_max_bytes", "memory_total_bytes", "power_mean_w", "power_average_w",
    "power_limit_w", "energy_j", "clock_sm_mhz", "clock_sm_max_mhz", "power_capped", "thermal_throttled",
    "hardware_slowdown", "xid", "xid_count",
)  # fmt: skip
HOST_COLUMNS = ("ok", "interval", "gpus", "gpus_expected")
ENGINE_COLUMNS = (
    "up", "interval", "resets", "running", "waiting", "kv_use", "prefix_queries", "prefix_hits", "prefix_hit_share",
    "preemptions", "ttft_n", "ttft_mean_ms", "itl_n", "itl_mean_ms",
)  # fmt: skip
COLUMNS = {"gpu": GPU_COLUMNS, "gpu_host": HOST_COLUMNS, "engine": ENGINE_COLUMNS}
"""Measurement -> the fields that figures, rules and charts read; the others stay in the run directory."""
_BOUNDS = {measurement: tuple(bounds_of(measurement, name) for name in names) for measurement, names in COLUMNS.items()}
_BUCKETS = "ttft_buckets"


@dataclass(slots=True)
class Building:
    """Columns of one series while its points come in, in any order."""

    measurement: str
    tags: dict[str, str]
    names: tuple[str, ...]
    at_ns: array[int] = field(default_factory=lambda: array("q"))
    columns: list[array[float]] = field(default_factory=list)
    buckets: list[str | None] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)
    """(at_ns, error text) of the points that could not be read."""
    unbelieved: Counter[str] = field(default_factory=Counter)
    """Field -> values that it can't have, which are missing."""

    @property
    def good(self) -> str:
        """The field that is 1 in a point that could be read."""
        return "up" if self.measurement == "engine" else "ok"

    def add(self, row: SeriesRow) -> None:
        self.at_ns.append(row.at_ns)
        value_of = row.fields.get
        for column, name, bounds in zip(self.columns, self.names, _BOUNDS[self.measurement], strict=True):
            value = value_of(name)
            kept = believed(value, bounds) if isinstance(value, float) else np.nan
            column.append(kept)
            if kept != kept and isinstance(value, float) and value == value:
                self.unbelieved[name] += 1
        good = self.good
        if good == "up":
            text = value_of(_BUCKETS)
            self.buckets.append(text if isinstance(text, str) else None)
        if value_of(good) == 0:
            said = value_of("error_text", value_of("error"))
            told = said if isinstance(said, str) else "not readable" if said is None else f"error {said:.0f}"
            self.errors.append((row.at_ns, told))


class Series:
    """One GPU, MIG slice, host or engine: points sorted by time, each with the stretch of time that it stands for."""

    def __init__(self, made: Building) -> None:
        at_ns = np.frombuffer(made.at_ns, dtype=np.int64)
        order = np.argsort(at_ns, kind="stable")
        self.measurement = made.measurement
        self.tags = made.tags
        self.end_ns: Instants = at_ns[order]
        self._columns = {
            name: np.frombuffer(column, dtype=np.float64)[order]
            for name, column in zip(made.names, made.columns, strict=True)
        }
        self.buckets = [made.buckets[place] for place in order] if made.buckets else []
        self.errors = sorted(made.errors)
        length_ns = self._lengths()
        usual_ns = int(np.median(length_ns)) if length_ns.size else 0
        # Two agents that watch the same card make twice the points, and no second card: each stands for the time since
        # the one before.
        before_ns = np.concatenate((self.end_ns[:1] - length_ns[:1], self.end_ns[:-1]))
        self.start_ns: Instants = np.maximum(self.end_ns - length_ns, before_ns)
        self.gauge_start_ns: Instants = np.maximum(self.start_ns, self.end_ns - int(LONGEST_STANDING * usual_ns))
        self._length_ns = length_ns
        self.readable = self.column(made.good) > 0

    def _lengths(self) -> Instants:
        """Declared intervals; where there is none, the time since the point before, within the usual."""
        declared = self.column("interval") * SECOND_NS
        steps = np.diff(self.end_ns)
        usual = float(np.median(steps)) if steps.size else float(SECOND_NS)
        since = np.minimum(np.concatenate(([usual], steps.astype(np.float64))), LONGEST_STANDING * usual)
        known = np.isfinite(declared) & (declared > 0) & (declared < 86_400 * SECOND_NS)
        lengths: Instants = np.where(known, declared, since).astype(np.int64)
        return lengths

    def column(self, name: str) -> Floats:
        """Values by point; NaN where there is none."""
        return self._columns[name]

    def has(self, name: str) -> bool:
        """Some point has a value."""
        return bool(np.isfinite(self.column(name)).any())

    def peak_of(self, name: str) -> float | None:
        """Greatest value of the whole run."""
        values = self.column(name)
        return float(np.nanmax(values)) if np.isfinite(values).any() else None

    def gauge_seconds(self, start_ns: int, end_ns: int) -> Floats:
        """Seconds of [start, end) that each point's gauges stand for."""
        return _overlap(self.gauge_start_ns, self.end_ns, start_ns, end_ns) / SECOND_NS

    def count_shares(self, start_ns: int, end_ns: int) -> Floats:
        """Share of each point's counts that falls into [start, end), spread evenly over its interval."""
        return _overlap(self.start_ns, self.end_ns, start_ns, end_ns) / np.maximum(self._length_ns, 1)

    def count_seconds(self, start_ns: int, end_ns: int) -> Floats:
        """Seconds of [start, end) that each point's counts are of."""
        return _overlap(self.start_ns, self.end_ns, start_ns, end_ns) / SECOND_NS

    def mean(self, name: str, window: SteadyWindow) -> float | None:
        """Time-weighted mean of a gauge; None where no point has it."""
        return weighted(self.column(name), self.gauge_seconds(window.start_ns, window.end_ns))

    def peak(self, name: str, window: SteadyWindow) -> float | None:
        values = self.column(name)
        inside = np.isfinite(values) & (self.gauge_seconds(window.start_ns, window.end_ns) > 0)
        return float(values[inside].max()) if inside.any() else None

    def total(self, name: str, window: SteadyWindow) -> float | None:
        """Sum of a count over the window; None where no point has it."""
        values, shares = self.column(name), self.count_shares(window.start_ns, window.end_ns)
        inside = np.isfinite(values) & (shares > 0)
        return float((values[inside] * shares[inside]).sum()) if inside.any() else None

    def bin_means(self, values: Floats, edges_ns: Instants) -> Floats:
        """Time-weighted mean of a gauge (values by point) between each two edges.

        NaN where less than half of the bin is covered: a hole stays a hole.
        """
        integral, seconds = self._between(self.gauge_start_ns, values, edges_ns)
        whole = np.diff(edges_ns) / SECOND_NS
        means: Floats = np.full(whole.size, np.nan)
        enough = seconds >= whole / 2
        means[enough] = integral[enough] / seconds[enough]
        return means

    def bin_sums(self, values: Floats, edges_ns: Instants) -> Floats:
        """Sum of a count (values by point) between each two edges, spread evenly over each point's interval."""
        per_second = values * SECOND_NS / np.maximum(self._length_ns, 1)
        return self._between(self.start_ns, per_second, edges_ns)[0]

    def _between(self, starts_ns: Instants, values: Floats, edges_ns: Instants) -> tuple[Floats, Floats]:
        """(integral of the values, seconds with a value) between each two edges. Points don't overlap."""
        origin = int(edges_ns[0])
        known = np.isfinite(values)
        seconds = (self.end_ns - starts_ns)[known] / SECOND_NS
        at = np.empty(2 * seconds.size)
        at[0::2], at[1::2] = (starts_ns[known] - origin) / SECOND_NS, (self.end_ns[known] - origin) / SECOND_NS
        if not at.size:
            return np.zeros(edges_ns.size - 1), np.zeros(edges_ns.size - 1)
        edges = (edges_ns - origin) / SECOND_NS
        parts = []
        for weights in (values[known] * seconds, seconds):
            total = np.zeros(at.size)
            total[1::2] = np.cumsum(weights)
            total[2::2] = total[1:-1:2]
            parts.append(np.diff(np.interp(edges, at, total)))
        return parts[0], parts[1]

    def coverage(self, window: SteadyWindow) -> float:
        """Share of the window for which there are points that could be read."""
        seconds = self.gauge_seconds(window.start_ns, window.end_ns)[self.readable].sum()
        return min(1.0, float(seconds) * SECOND_NS / window.duration_ns) if window.duration_ns else 0.0

    def errors_in(self, window: SteadyWindow) -> Counter[str]:
        """Error texts of the points in the window that could not be read."""
        return Counter(text for at_ns, text in self.errors if window.start_ns < at_ns <= window.end_ns)


def _overlap(starts_ns: Instants, ends_ns: Instants, start_ns: int, end_ns: int) -> Floats:
    """ns of [start, end) inside each [starts, ends)."""
    inside: Floats = np.maximum(np.minimum(ends_ns, end_ns) - np.maximum(starts_ns, start_ns), 0).astype(np.float64)
    return inside


def weighted(values: Floats, seconds: Floats) -> float | None:
    """Mean of the values that are there, by the time that each stands for."""
    known = np.isfinite(values) & (seconds > 0)
    if not known.any():
        return None
    part = values[known]
    mean = float((part * seconds[known]).sum() / seconds[known].sum())
    # A mean of equal values must not come out above them by a rounding.
    return min(max(mean, float(part.min())), float(part.max()))


def highest_sum(parts: Sequence[tuple[Series, Floats]], window: SteadyWindow) -> float | None:
    """Greatest value at one moment of the window of all series together; a series adds nothing where it has none."""
    edges = [np.clip(series.gauge_start_ns, window.start_ns, window.end_ns) for series, _ in parts]
    edges += [np.clip(series.end_ns, window.start_ns, window.end_ns) for series, _ in parts]
    times = np.unique(np.concatenate(edges)) if edges else np.empty(0, dtype=np.int64)
    if times.size < 2:
        return None
    middles = (times[:-1] + times[1:]) // 2
    sums, seen = np.zeros(middles.size), np.zeros(middles.size, dtype=bool)
    for series, values in parts:
        place = np.minimum(np.searchsorted(series.end_ns, middles, side="left"), series.end_ns.size - 1)
        there = (series.gauge_start_ns[place] <= middles) & (middles <= series.end_ns[place])
        there &= np.isfinite(values[place])
        sums[there] += values[place][there]
        seen |= there
    return float(sums[seen].max()) if seen.any() else None
