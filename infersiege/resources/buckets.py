"""Histograms of an engine as its points carry them: counts since the last point by upper bound, `0.1:3 +Inf:1`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


def parse(text: str) -> dict[float, float]:
    """Upper bound in s -> count of the values at or below it and above the bound before. Damaged parts are left out."""
    found: dict[float, float] = {}
    for part in text.split():
        bound_text, _, count_text = part.partition(":")
        try:
            bound, count = float(bound_text), float(count_text)
        except ValueError:
            continue
        if math.isfinite(count) and count > 0 and not math.isnan(bound):
            found[bound] = found.get(bound, 0.0) + count
    return found


def merged(parts: Iterable[tuple[Mapping[float, float], float]]) -> dict[float, float]:
    """Sum of histograms, each by its weight."""
    total: dict[float, float] = {}
    for counts, weight in parts:
        for bound, count in counts.items():
            total[bound] = total.get(bound, 0.0) + count * weight
    return dict(sorted(total.items()))


def percentile(counts: Mapping[float, float], q: float) -> float | None:
    """In s, interpolated inside the bucket as Prometheus' histogram_quantile does it; None without values.

    The last bucket has no upper bound: what lies there is at least its lower one, and that is what is given.
    """
    whole = sum(counts.values())
    if whole <= 0:
        return None
    rank, below, low = q * whole, 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if below + count >= rank - 1e-9 * whole and count > 0:
            return low if math.isinf(bound) else low + (bound - low) * min(1.0, max(0.0, (rank - below) / count))
        below, low = below + count, bound
    return low
