"""What the rules of a plan say about one probe, and whether a longer one would say more. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from infersiege.capacity.search import Judged
from infersiege.gate import cut_of
from infersiege.metrics.definitions import METRICS, STATS
from infersiege.metrics.histogram import rank_of
from infersiege.plan import Slo
from infersiege.records import Outcome, Phase, RuleResult, Summary, TurnRecord, Verdict
from infersiege.report.numbers import figure

SPARE = 1.2
"""A probe that was too short is made again this much longer than it should have been."""

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
        return Judgement(Judged.INVALID, summary.invalid[0])
    counting = [rule for rule in summary.rules if rule.severity != "warn"]
    failed = [rule for rule in counting if rule.verdict is Verdict.FAIL]
    if failed:
        return Judgement(Judged.FAIL, "; ".join(_said(rule) for rule in failed))
    missing = [rule for rule in counting if rule.verdict is not Verdict.PASS]
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
    needed = [factor for factor in factors if factor is not None]
    why = "; ".join(f"{rule.name}: {rule.detail}" for rule in missing)
    return Judgement(Judged.NO_DATA, why, max(needed) if len(needed) == len(factors) else None)


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
    stat = STATS.get(slo.stat or "")
    floor = stat.floor if stat is not None else 1
    needed = max(slo.min_samples or floor, floor)
    if n >= needed:
        return 2.0 if cut else None
    if n == 0:
        return 2.0
    return max(1.5, math.ceil(10 * SPARE * needed / n) / 10)
