"""What one side of a comparison is: some runs, and per metric, statistic and cut the value of each run.

`infersiege baseline save` keeps it as a small file, so that the runs can be thrown away: no turn and no text is in it.
Pure: reading and writing files is the command's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from infersiege.gate.change import Floor, floor_of
from infersiege.gate.comparable import facts_of, unusable
from infersiege.metrics.behind import turns_behind
from infersiege.metrics.definitions import METRICS, STATS
from infersiege.metrics.facts import Cut
from infersiege.records import GroupSummary, Summary
from infersiege.rundir import PlanFile

SCHEMA = 1
KIND = "infersiege baseline"


class Observed(msgspec.Struct, frozen=True):
    """One run, as `report.read` gives it."""

    file: PlanFile
    summary: Summary
    gpus: tuple[str, ...] = ()
    """Names of the GPUs and MIG slices that were watched."""


class MeasuredRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a side."""

    run_id: str
    name: str
    created_ns: int
    nonce: str
    turns: int
    """Steady turns that succeeded."""
    unusable: tuple[str, ...] = ()
    """Why its figures are none to compare (invalid, interrupted); empty: they are."""
    dirty: tuple[str, ...] = ()
    """Stages that began while the engine was still busy with something else."""
    facts: dict[str, str]
    """What must be the same for runs to be compared (gate.comparable), by name."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One metric, statistic and cut. None in place of a name: all of them."""

    metric: str
    stat: str | None = None
    scenario: str | None = None
    channel: str | None = None
    stage: str | None = None
    unit: str
    values: tuple[float | None, ...]
    """By run, in their order, in `unit`; None: that run did not give it."""
    n: tuple[int | None, ...]
    """Values (of a rate: turns) behind each; None: that run has no such cut."""
    floor: Floor | None = None
    """How much runs of the same thing differ, from other runs than these; None: only these tell."""

    @property
    def key(self) -> tuple[str, str | None, Cut]:
        cut = Cut(scenario=self.scenario, channel=self.channel, stage=self.stage)
        return self.metric, self.stat, cut

    @property
    def spread(self) -> Floor | None:
        """How much these runs differ among themselves; None: fewer than two values, or one that is missing."""
        known = [value for value in self.values if value is not None]
        return floor_of(known, share=is_share(self.metric)) if len(known) == len(self.values) else None


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """One side: a file of `infersiege baseline save`, or runs that were just read."""

    schema_version: int = SCHEMA
    kind: str = KIND
    name: str
    saved_ns: int
    emulated: bool
    """A target was infersiege's own emulator: figures say nothing about hardware."""
    runs: tuple[MeasuredRun, ...]
    figures: tuple[Figures, ...]


LATEST_NS = 253_402_300_799 * 1_000_000_000
"""The last second of the year 9999: calendars end there."""
MOST, LEAST = 1e15, 1e-15
"""Size of a figure: no unit of METRICS takes a run beyond, and what is computed of such figures can't overflow."""
WIDEST, MOST_RUNS = 100.0, 1_000_000
"""Of a floor: a deviation of logarithms, and the runs that it was measured on."""
MOST_COUNTED = 2**53


def damage(baseline: Baseline) -> str | None:
    """What no file of `baseline save` has, in words; None: it may be one."""
    if not baseline.runs:
        return "it holds no runs"
    if not all(0 <= at <= LATEST_NS for at in (baseline.saved_ns, *(run.created_ns for run in baseline.runs))):
        return "a time in it is in no calendar"
    if not all(0 <= run.turns <= MOST_COUNTED for run in baseline.runs):
        return "no run has so many turns"
    for figures in baseline.figures:
        what = f"{figures.metric} {figures.stat or ''}".strip()
        if len(figures.values) != len(baseline.runs) or len(figures.n) != len(baseline.runs):
            return "some figures do not have a value for each run"
        for value in figures.values:
            if value and not LEAST <= abs(value) <= MOST:
                return f"{value:.3g} {figures.unit} is no {what} of a run"
        if not all(n is None or 0 <= n <= MOST_COUNTED for n in figures.n):
            return f"no run has so many values of {what}"
        floor = figures.floor
        if floor is not None and not (0 <= floor.deviation <= WIDEST and 1 <= floor.runs <= MOST_RUNS):
            return f"runs can't differ so in {what}"
    return None


def is_share(metric: str) -> bool:
    """Compared as a difference in points; others as a ratio."""
    return metric in METRICS and METRICS[metric].unit == "ratio"


def side_of(observed: Sequence[Observed], *, name: str, now_ns: int) -> Baseline:
    """Runs as one side. Raises RunDirectoryError when a plan can't be read."""
    runs = tuple(_measured(one) for one in observed)
    groups = [{_cut(group): group for group in one.summary.groups} for one in observed]
    figures = [
        figures for cut in dict.fromkeys(cut for of_run in groups for cut in of_run) for figures in _of_cut(cut, groups)
    ]
    return Baseline(
        name=name,
        saved_ns=now_ns,
        emulated=any(one.summary.emulated for one in observed),
        runs=runs,
        figures=tuple(figures),
    )


def with_floors(baseline: Baseline, other: Baseline) -> Baseline:
    """The same with the spreads of other runs of the same thing, made on the same machine, as floors."""
    spreads = {figures.key: figures.spread for figures in other.figures}
    return msgspec.structs.replace(
        baseline,
        figures=tuple(
            msgspec.structs.replace(figures, floor=spreads.get(figures.key) or figures.floor)
            for figures in baseline.figures
        ),
    )


def _measured(one: Observed) -> MeasuredRun:
    file = one.file
    return MeasuredRun(
        run_id=file.run_id,
        name=file.name,
        created_ns=file.created_ns,
        nonce=file.nonce,
        turns=one.summary.groups[0].counts.ok if one.summary.groups else 0,
        unusable=unusable(one.summary),
        dirty=tuple(stage.name for stage in file.stages if stage.started_dirty),
        facts=facts_of(file, one.summary, one.gpus),
    )


def _cut(group: GroupSummary) -> Cut:
    return Cut(scenario=group.scenario, channel=group.channel, stage=group.stage, replica=group.replica)


def _of_cut(cut: Cut, groups: Sequence[dict[Cut, GroupSummary]]) -> Iterable[Figures]:
    """Every statistic of every metric that some run has in this cut."""
    here = [of_run.get(cut) for of_run in groups]
    for metric in METRICS.values():
        for stat in STATS if metric.kind == "distribution" else (None,):
            found = [_figure(group, metric.name, stat) for group in here]
            if any(value is not None for _, value in found):
                yield Figures(
                    metric=metric.name,
                    stat=stat,
                    scenario=cut.scenario,
                    channel=cut.channel,
                    stage=cut.stage,
                    unit=metric.unit,
                    values=tuple(value for _, value in found),
                    n=tuple(n for n, _ in found),
                )


def _figure(group: GroupSummary | None, metric: str, stat: str | None) -> tuple[int | None, float | None]:
    """(n, value)."""
    if group is None:
        return None, None
    if stat is None:
        return turns_behind(metric, group), group.rates.get(metric)
    distribution = group.distributions.get(metric)
    return (0, None) if distribution is None else (distribution.n, getattr(distribution, stat))
