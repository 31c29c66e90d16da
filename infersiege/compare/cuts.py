"""What is kept of a run for a comparison: a part of it by channel, scenario or stage, or the whole.

One pass over the turns; what is kept does not grow with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Literal

import msgspec

from infersiege.metrics.batch import Batch, Kind, Mask, grouped, known
from infersiege.metrics.columns import in_whole_ns, values_of
from infersiege.metrics.definitions import METRICS
from infersiege.metrics.histogram import Histogram
from infersiege.metrics.parts import Part, parts
from infersiege.records import GroupSummary, StageResources, Summary, WindowRow
from infersiege.rundir import StageFacts
from infersiege.schedule import SECOND_NS

By = Literal["channel", "scenario", "stage"]

SHAPES = ("ttft", "tpot", "gap", "e2e")
"""Metrics whose whole distributions are laid over each other."""


class Shape(msgspec.Struct):
    """Distributions of ok turns of phase steady, and the lengths of their answers."""

    by_metric: dict[str, Histogram]
    """In ns, of those of SHAPES that some turn gives."""
    asked_turns: int = 0
    """That asked for so many tokens and were told how many came."""
    asked_tokens: int = 0
    got_tokens: int = 0

    def merge(self, other: Shape) -> None:
        """Add all that `other` has."""
        for metric, shape in other.by_metric.items():
            self.by_metric.setdefault(metric, Histogram()).merge(shape)
        self.asked_turns += other.asked_turns
        self.asked_tokens += other.asked_tokens
        self.got_tokens += other.got_tokens


class Seconds(msgspec.Struct, frozen=True):
    """What came in each whole second of the steady phase; empty where there are several steady phases."""

    tokens: tuple[float, ...] = ()
    finished: tuple[float, ...] = ()
    good: tuple[float, ...] = ()
    """Empty: no turn is held to a limit."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A run, or a part of it."""

    name: str | None
    """Of the channel, scenario or stage; None: the whole run."""
    summary: Summary
    group: GroupSummary
    resources: tuple[StageResources, ...]
    """Of its stages; empty: nobody watched, or others used the same hardware at that time."""
    shape: Shape
    seconds: Seconds


class Shapes:
    """Sees all turns of a run, and keeps the shapes of its parts."""

    def __init__(self, by: By | None) -> None:
        self._key: Callable[[Kind], str | None] = _KEYS[by] if by is not None else _whole
        self.found: dict[str | None, Shape] = {}

    def add_batch(self, batch: Batch) -> None:
        shown = batch.ok & batch.steady
        for name, part in parts(batch, self._key):
            _add(self.found.setdefault(name, Shape({})), part, part.of(shown))

    def merge(self, other: Shapes) -> None:
        """Add what `other` saw of later turns; it is used up."""
        for name, shape in other.found.items():
            self.found.setdefault(name, Shape({})).merge(shape)

    def of(self, name: str | None) -> Shape:
        return self.found.get(name) or Shape({})


def _whole(_kind: Kind) -> None:
    return None


_KEYS: Mapping[By, Callable[[Kind], str]] = {
    "channel": attrgetter("channel"),
    "scenario": attrgetter("scenario"),
    "stage": attrgetter("stage"),
}
"""They travel to the processes that read a large run (`report.pieces`), which a lambda can't."""


def _add(shape: Shape, part: Part, shown: Mask) -> None:
    for metric in SHAPES:
        if metric == "gap":
            continue
        found = values_of(part.batch, METRICS[metric])
        values_ns = part.of(in_whole_ns(found))
        given = values_ns[shown & part.of(found.given) & (values_ns >= 0)]
        if given.size:
            shape.by_metric.setdefault(metric, Histogram()).add_many(given)
    entries = part.sparse("gaps")
    counted = shown[entries.turn]
    if counted.any():
        gaps = dict(zip(*grouped(entries.key[counted], entries.count[counted]), strict=True))
        shape.by_metric.setdefault("gap", Histogram()).merge(Histogram.from_sparse(gaps))
    asked, got = part.of(part.batch.ints("asked_output_tokens")), part.of(part.batch.ints("output_tokens"))
    both = shown & known(asked) & known(got)
    shape.asked_turns += int(both.sum())
    shape.asked_tokens += int(asked[both].sum())
    shape.got_tokens += int(got[both].sum())


# ----------------------------------------------------------------------------------------------------- parts of a run


def parts_of(
    summary: Summary, shapes: Shapes, windows: Sequence[WindowRow], stages: Sequence[StageFacts], by: By | None
) -> tuple[Cut, ...]:
    """The whole run, or its parts in the order of the summary. Empty: it has no such part (nothing was ever due)."""
    return tuple(
        Cut(
            name=name,
            summary=summary,
            group=group,
            resources=_resources(summary, by, name),
            shape=shapes.of(name),
            seconds=_seconds(windows, stages, by, name),
        )
        for name, group in _groups(summary, shapes, by)
    )


def _groups(summary: Summary, shapes: Shapes, by: By | None) -> list[tuple[str | None, GroupSummary]]:
    if not summary.groups:
        return []
    if by is None:
        return [(None, summary.groups[0])]
    cuts: list[tuple[str | None, GroupSummary]] = []
    for group in summary.groups:
        named = {"channel": group.channel, "scenario": group.scenario, "stage": group.stage}
        name = named.pop(by)
        if name is not None and not any(named.values()) and group.replica is None:
            cuts.append((name, group))
    # A summary has no group of its own for the only channel, scenario or stage: it is the whole.
    alone = list(shapes.found)
    return cuts or ([(alone[0], summary.groups[0])] if len(alone) == 1 else [])


def _resources(summary: Summary, by: By | None, name: str | None) -> tuple[StageResources, ...]:
    """By channel or scenario nobody can tell whose hardware's work it was, unless there is only one."""
    if by == "stage":
        return tuple(one for one in summary.resources if one.stage == name)
    if by is not None and any(getattr(group, by) not in (None, name) for group in summary.groups):
        return ()
    return summary.resources


def _seconds(rows: Sequence[WindowRow], stages: Sequence[StageFacts], by: By | None, name: str | None) -> Seconds:
    steady = [stage for stage in stages if by != "stage" or stage.name == name]
    if len(steady) != 1:
        return Seconds()
    first = -(-steady[0].steady_started_ns // SECOND_NS)
    length = max(steady[0].steady_ended_ns // SECOND_NS - first, 0)
    tokens, finished, good = [0.0] * length, [0.0] * length, [0.0] * length
    judged = False
    for row in rows:
        place = row.second - first
        if not 0 <= place < length or (by is not None and getattr(row, by) != name):
            continue
        tokens[place] += row.tokens
        finished[place] += row.ok
        if row.good is not None:
            good[place] += row.good
            judged = True
    return Seconds(tuple(tokens), tuple(finished), tuple(good) if judged else ())
