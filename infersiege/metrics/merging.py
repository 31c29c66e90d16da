"""Rows of several workers made one: every count and every bucket adds up, so that neither order nor split matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from infersiege.records import Phase, WindowRow

COUNTS = (
    "due",
    "sent",
    "ok",
    "failed",
    "cancelled",
    "skipped",
    "chunks",
    "output_tokens",
    "tokens",
    "in_flight",
    "users",
)
DISTRIBUTIONS = ("ttft", "ttft_from_due", "tpot", "e2e", "e2e_from_due", "lateness")

_counts_of = attrgetter(*COUNTS)
_distributions_of = attrgetter(*DISTRIBUTIONS)

_Counted = TypeVar("_Counted")

Key = tuple[int, str, str, str, Phase]
"""Second, scenario, channel, stage, phase."""


class _Sum:
    """All rows of one key."""

    __slots__ = ("counts", "distributions", "errors", "good")

    def __init__(self) -> None:
        self.counts = [0] * len(COUNTS)
        self.good: int | None = None
        self.errors: dict[str, int] = {}
        self.distributions: tuple[dict[int, int], ...] = tuple({} for _ in DISTRIBUTIONS)

    def add(self, row: WindowRow) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, _counts_of(row), strict=True)]
        if row.good is not None:
            self.good = row.good + (self.good or 0)
        if row.errors:
            add_counts(self.errors, row.errors)
        for mine, theirs in zip(self.distributions, _distributions_of(row), strict=True):
            if theirs:
                add_counts(mine, theirs)

    def row(self, key: Key) -> WindowRow:
        second, scenario, channel, stage, phase = key
        values: dict[str, Any] = dict(zip(COUNTS, self.counts, strict=True))
        for name, counts in zip(DISTRIBUTIONS, self.distributions, strict=True):
            values[name] = dict(sorted(counts.items()))
        return WindowRow(
            second=second,
            scenario=scenario,
            channel=channel,
            stage=stage,
            phase=phase,
            good=self.good,
            errors=dict(sorted(self.errors.items())),
            **values,
        )


class WindowSums:
    """Adds rows up by second and key."""

    def __init__(self) -> None:
        self._sums: dict[Key, _Sum] = {}

    def add(self, rows: Iterable[WindowRow]) -> None:
        for row in rows:
            key = row.second, row.scenario, row.channel, row.stage, row.phase
            found = self._sums.get(key)
            if found is None:
                found = self._sums[key] = _Sum()
            found.add(row)

    def take(self) -> list[WindowRow]:
        """One row per key of all that was added since the last call, sorted as `windows` sorts them."""
        sums, self._sums = self._sums, {}
        return [sums[key].row(key) for key in sorted(sums)]


def add_counts(to: dict[_Counted, int], more: Mapping[_Counted, int]) -> None:
    """Add counts by bucket or by name to others."""
    for key, count in more.items():
        to[key] = to.get(key, 0) + count
