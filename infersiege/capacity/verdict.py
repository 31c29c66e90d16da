"""What the rules of a plan say about one probe, and whether a longer one would say more. Pure.

Beside the rules a probe must have been a steady state: an open load that the server did not keep up with fails at any
latency, since that grows with the probe's length, and few waves of a closed one measure how users began.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from infersiege.capacity.search import Judged
from infersiege.gate import cut_of, needed_for
from infersiege.metrics.definitions import METRICS, STATS
from infersiege.metrics.histogram import rank_of
from infersiege.metrics.validity import GREW_SHARE, GREW_TURNS, WAVES
from infersiege.plan import Slo
from infersiege.records import DeliveredLoad, Outcome, Phase, RuleResult, Summary, TurnRecord, Verdict
from infersiege.report.numbers import figure

SPARE = 1.2
"""A probe that was too short is made again this much longer than it should have been."""

UNLOADED_SHARE = 0.1
"""How long answers take without a queue is told by the turns that were sent first, this share of them."""

NOTHING_FACTOR = 4.0
"""A probe in which nothing was due after the warm-up is made again so many times as long: nobody knows how long the
answers take."""

Turns = Callable[[], Iterable[TurnRecord]]


class Judgement(NamedTuple):
    judged: Judged
    why: str
    """One line."""
    factor: float | None = None
    """No data: how many times longer the steady phase must be; None: no length would help."""


def judge_probe(summary: Summary, slos: Sequence[Slo], turns: Turns) -> Judgement:
    """One verdict of all rules that count.

    A rule that fails decides, whatever another one lacks. Turns that were cut take a percentile away; where they
    themselves were past the limit often enough, the rule is broken all the same: more than 1 - q of them can't be below
    p_q. `turns` is read only for such rules.
    """
    if summary.invalid:
        if _nothing_measured(summary):
            return Judgement(Judged.NO_DATA, summary.invalid[0], NOTHING_FACTOR)
        return Judgement(Judged.INVALID, summary.invalid[0])
    counting = [rule for rule in summary.rules if rule.severity != "warn" and not _needs_baseline(rule)]
    failed = [rule for rule in counting if rule.verdict is Verdict.FAIL]
    if failed:
        return Judgement(Judged.FAIL, "; ".join(_said(rule) for rule in failed))
    behind = [found for load in summary.loads if (found := _fell_behind(summary, load, turns)) is not None]
    for found in behind:
        if found.judged is Judged.FAIL:
            return found
    missing = [rule for rule in counting if rule.verdict is not Verdict.PASS]
    short = behind + [found for load in summary.loads if (found := _few_waves(summary, load)) is not None]
    if not missing and short:
        return max(short, key=lambda one: one.factor or 0.0)
    if not missing:
        return Judgement(
            Judged.PASS, "; ".join(_said(rule) for rule in counting if not rule.built_in) or "the plan has no rule"
        )
    planned = [rule for rule in summary.rules if not rule.built_in]
    for rule, slo in zip(planned, slos, strict=True):
        if rule in missing and _cut(summary, rule):
            past, of = past_limit(slo, turns())
            if past:
                return Judgement(Judged.FAIL, f"{rule.name}: {past} of {of} turns were past it, cut ones included")
    factors = [
        _factor(rule, None if rule.built_in else slos[planned.index(rule)], cut=_cut(summary, rule)) for rule in missing
    ]
    factors += [one.factor for one in short]
    needed = [factor for factor in factors if factor is not None]
    why = "; ".join(f"{rule.name}: {rule.detail}" for rule in missing)
    return Judgement(Judged.NO_DATA, why, max(needed) if len(needed) == len(factors) else None)


def _needs_baseline(rule: RuleResult) -> bool:
    """It says nothing of one run: a probe has no baseline."""
    return rule.at_most is None and rule.at_least is None and rule.relative_max is not None


def _nothing_measured(summary: Summary) -> bool:
    """Nothing was due after the warm-up, and that is all that was wrong: the answers take longer than the probe."""
    steady, run = summary.groups[0].counts, summary.counts
    return (
        len(summary.invalid) == 1 and not summary.interrupted and not steady.planned and run.started > 0 == run.failed
    )


def _fell_behind(summary: Summary, load: DeliveredLoad, turns: Turns) -> Judgement | None:
    """An open load of which more and more turns were in flight: FAIL, or NO_DATA where the probe may just be too short.

    A server that keeps up has as many in flight as are sent while one is answered; until then that number grows, too.
    What the earliest turns took, when nobody had to wait yet, tells the two apart. None: it kept up.
    """
    seconds = summary.groups[0].steady_duration_ns / 1e9
    if load.mode == "closed" or not load.sent_rate:
        return None
    sent = round(load.sent_rate * seconds)
    if sent < 2 * GREW_TURNS and load.mode == "open":
        why = f"only {sent} turns were sent, too few to tell whether the server keeps up"
        return Judgement(Judged.NO_DATA, why, _longer(2 * GREW_TURNS, sent))
    allowed = GREW_SHARE * sent
    if sent - round((load.finished_rate or 0.0) * seconds) <= allowed:
        return None
    played = [turn for turn in turns() if not load.scenarios or turn.scenario in load.scenarios]
    failed = sum(turn.outcome is Outcome.FAILED and turn.phase is Phase.STEADY for turn in played)
    ended = round((load.finished_rate or 0.0) * seconds) + failed
    grew = sent - ended
    if grew <= allowed:
        return None
    filling = load.sent_rate * _unloaded_s(played)
    rates = f"{load.sent_rate:.3g} turns/s were sent and {ended / seconds:.3g} ended"
    if grew - filling > max(allowed, GREW_TURNS):  # a few turns may be chance
        return Judgement(Judged.FAIL, f"the server did not keep up: {rates}, so {grew} more were open at the end")
    why = f"{rates}: the probe is too short to tell whether the server keeps up"
    return Judgement(Judged.NO_DATA, why, _longer(max(grew, GREW_TURNS) / GREW_SHARE, sent))


def _unloaded_s(played: Sequence[TurnRecord]) -> float:
    """Median time of the answers to the turns that were sent first; 0: none of them ended."""
    sent = sorted((turn.sent_ns, turn.closed_ns) for turn in played if turn.sent_ns is not None)
    first = sent[: max(5, int(UNLOADED_SHARE * len(sent)))]
    times = [closed_ns - sent_ns for sent_ns, closed_ns in first if closed_ns is not None]
    return statistics.median(times) / 1e9 if times else 0.0


def _few_waves(summary: Summary, load: DeliveredLoad) -> Judgement | None:
    """A closed load of which each user sent too few turns: the first ones all met an empty server. None: enough."""
    if load.users_asked is None or load.mode != "closed":
        return None
    sent = round((load.sent_rate or 0.0) * summary.groups[0].steady_duration_ns / 1e9)
    if sent >= WAVES * load.users_asked:
        return None
    why = f"only {sent} turns of {load.users_asked} users were sent, and {WAVES} of each are needed"
    return Judgement(Judged.NO_DATA, why, _longer(WAVES * load.users_asked, sent))


def _longer(needed: float, seen: int) -> float:
    """How many times as long a probe must be that saw so many of the turns it needs."""
    return max(1.5, math.ceil(10 * SPARE * needed / max(seen, 1)) / 10)


def _said(rule: RuleResult) -> str:
    return f"{rule.name}: {figure(rule.value, rule.unit)}"


def _cut(summary: Summary, rule: RuleResult) -> bool:
    """Turns of what it is about were cut, which may hide its percentile."""
    cut = (rule.scenario, rule.channel, rule.stage)
    group = next((one for one in summary.groups if (one.scenario, one.channel, one.stage) == cut), None)
    return group is not None and group.counts.cancelled > 0 and rule.metric in METRICS and bool(rule.stat)


def past_limit(slo: Slo, turns: Iterable[TurnRecord]) -> tuple[int, int]:
    """(turns past the rule's `max`, ok and cut turns) of its cut, where that proves that the percentile is past it.

    (0, …) where it does not: a limit below (`min`), a mean, or too few of them.
    """
    metric, stat, cut = METRICS[slo.metric], STATS.get(slo.stat or ""), cut_of(slo)
    past = total = 0
    if slo.at_most is None or stat is None or stat.q is None or metric.per_turn is None:
        return 0, 0
    limit = slo.at_most * metric.per_unit
    for turn in turns:
        wanted = (cut.scenario or turn.scenario, cut.channel or turn.channel, cut.stage or turn.stage)
        if turn.phase is not Phase.STEADY or wanted != (turn.scenario, turn.channel, turn.stage):
            continue
        if turn.outcome is Outcome.OK:
            value = metric.per_turn(turn)
        elif turn.outcome is Outcome.CANCELLED:
            value = metric.so_far(turn) if metric.so_far is not None else None
        else:
            continue
        total += 1
        past += value is not None and value > limit
    proven = total >= stat.floor and past > total - rank_of(stat.q, total)
    return (past if proven else 0), total


def _factor(rule: RuleResult, slo: Slo | None, *, cut: bool) -> float | None:
    """How many times as many turns the rule needs; None: what it lacks is not turns.

    Turns are cut at the end of a run, so that their share gets smaller the longer it is.
    """
    n = rule.n or 0
    if rule.built_in:
        return 2.0
    if slo is None:
        return None
    needed = needed_for(slo)
    if n >= needed:
        return 2.0 if cut else None
    if n == 0:
        return 2.0
    return _longer(needed, n)
