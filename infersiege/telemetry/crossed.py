"""Parts of a run by scenario and channel: which group of the summary is whose, and figures of those that have none.

A summary has a group for each scenario and each channel where there are several; a dashboard offers every scenario with
every channel. Where two parts hold the same turns they have the same figures; the others are computed as the summary's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from infersiege.metrics.collect import Collector
from infersiege.metrics.delivery import delivered
from infersiege.metrics.facts import Cut
from infersiege.metrics.groups import group
from infersiege.records import GroupSummary, Summary, TurnRecord, WindowRow
from infersiege.report.rebuild import Rebuilt, run_facts

Pair = tuple[str, str]
"""Scenario and channel of a turn."""
Part = tuple[str | None, str | None]
"""Scenario and channel of a part of the run; None: all."""


def pairs_of(rows: Iterable[WindowRow]) -> tuple[Pair, ...]:
    """Which scenarios went to which channels, sorted."""
    return tuple(sorted({(row.scenario, row.channel) for row in rows}))


def shared(summary: Summary, pairs: Sequence[Pair]) -> Mapping[Part, GroupSummary]:
    """Parts without a group of their own -> the group that holds the same turns. The only scenario is the whole run."""
    groups = _groups(summary)
    same: dict[frozenset[Pair], GroupSummary] = {}
    for part, found in groups.items():
        same.setdefault(_held(part, pairs), found)
    return {part: same[held] for part in _parts(pairs) if part not in groups and (held := _held(part, pairs)) in same}


def is_everything(part: Part, pairs: Sequence[Pair]) -> bool:
    """Whether a part holds every turn of the run, as the only scenario does."""
    return part == (None, None) or (bool(pairs) and _held(part, pairs) == frozenset(pairs))


def uncounted(summary: Summary, pairs: Sequence[Pair]) -> tuple[Cut, ...]:
    """Parts whose figures the summary does not have: there are several scenarios, and several channels."""
    known = _groups(summary).keys() | shared(summary, pairs).keys()
    return tuple(Cut(scenario=part[0], channel=part[1]) for part in _parts(pairs) if part not in known)


def groups_of(turns: Iterable[TurnRecord], found: Rebuilt, cuts: Sequence[Cut]) -> tuple[GroupSummary, ...]:
    """The figures of these cuts, as a summary that had them as groups would give them. Reads each turn once."""
    if not cuts:
        return ()
    summary = found.summary
    facts = run_facts(found.plan, started_ns=summary.started_ns, ended_ns=summary.ended_ns)
    collector = Collector(msgspec.structs.replace(facts, cuts=tuple(cuts)))
    collector.add_all(turns)
    loads = delivered(collector)
    return tuple(group(cut, collector, loads) for cut in cuts)


def _groups(summary: Summary) -> dict[Part, GroupSummary]:
    """Of the whole time, by part."""
    return {(one.scenario, one.channel): one for one in summary.groups if one.stage is None}


def _parts(pairs: Sequence[Pair]) -> tuple[Part, ...]:
    """Every choice of a scenario or all, and a channel or all, that holds a turn."""
    return tuple(dict.fromkeys(part for s, c in pairs for part in ((None, None), (s, None), (None, c), (s, c))))


def _held(part: Part, pairs: Sequence[Pair]) -> frozenset[Pair]:
    scenario, channel = part
    return frozenset((s, c) for s, c in pairs if scenario in (None, s) and channel in (None, c))
