"""Runs held against a baseline: first whether they are comparable, then each rule with `relative_max`, all together.

The results have the form of any other rule's, so that terminal, JUnit, report and summary show them alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from infersiege.gate.baseline import Baseline, Figures, is_share
from infersiege.gate.change import RELEVANT, RELEVANT_SHARE, Change, Floor, Sample, judge_changes
from infersiege.gate.comparable import Difference, differences
from infersiege.gate.rules import cut_of, exit_code, overall, relative_name, result_of
from infersiege.metrics.definitions import METRICS
from infersiege.plan.schema import Slo
from infersiege.records import RuleResult, Summary, Verdict

USUAL: tuple[tuple[str, str | None], ...] = (
    ("ttft", "p50"),
    ("ttft", "p95"),
    ("tpot", "p50"),
    ("tpot", "p95"),
    ("e2e", "p50"),
    ("throughput", None),
    ("error_share", None),
)
"""What is compared of the whole run where the plan has no rule with relative_max, as far as some run has it."""

WHERE_KNOWN = ("cache_share", "goodput_share", "quality", "collapsed_share")
"""The same where the baseline has it. It may be from before its server told, or from before infersiege measured it: a
gate that passed yesterday has to pass today. What the baseline has and the candidate lacks is no data."""

COMPARABLE = "comparable with the baseline"


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a comparison."""

    rules: tuple[RuleResult, ...]
    """First whether the runs may be compared, then a result per rule."""
    reasons: tuple[str, ...]
    """Why they may not, one line each; empty: they may."""
    notes: tuple[str, ...]
    """What must be read with it: differences that may be, runs that began while the engine was busy …"""


def against(
    slos: Sequence[Slo], candidate: Baseline, baseline: Baseline, *, allowed: Iterable[str] = (), strict: bool = False
) -> Compared:
    """Hold the candidate's runs against the baseline's, by the rules that have relative_max, or the usual ones."""
    rules = _rules(slos, candidate, baseline)
    found = differences(
        [run.facts for run in baseline.runs],
        [run.facts for run in candidate.runs],
        allowed=allowed,
        strict=strict,
        metrics=[rule.metric for rule in rules],
    )
    reasons = (*_unusable(candidate, baseline), *(str(one) for one in found if not one.passes))
    notes = _notes(candidate, baseline, found)
    if reasons:
        first = reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")
        why = f"not comparable: {first}"
        results = tuple(_result(rule, None, candidate, baseline, why) for rule in rules)
    else:
        results = _changes(rules, candidate, baseline)
    head = _comparable(candidate, baseline, reasons, [one for one in found if one.passes])
    head = msgspec.structs.replace(head, notes=notes)
    return Compared(rules=(head, *results), reasons=reasons, notes=notes)


def with_baseline(summary: Summary, compared: Compared) -> Summary:
    """The gated summary of one of the candidate's runs with these results in it, and the verdict that follows."""
    return _judged(summary, (*own_rules(summary), *compared.rules))


def without_baseline_rules(summary: Summary) -> Summary:
    """The same without the rules that belong to all runs together."""
    return _judged(summary, own_rules(summary))


def own_rules(summary: Summary) -> tuple[RuleResult, ...]:
    """Rules that this run alone was held to."""
    return tuple(rule for rule in summary.rules if rule.relative_max is None and rule.name != COMPARABLE)


def _judged(summary: Summary, rules: tuple[RuleResult, ...]) -> Summary:
    code = exit_code(summary, rules, gated=True)
    return msgspec.structs.replace(summary, rules=rules, verdict=overall(summary, rules), exit_code=int(code))


# ------------------------------------------------------------------------------------------------------- what to judge


def _rules(slos: Sequence[Slo], candidate: Baseline, baseline: Baseline) -> list[Slo]:
    own = [slo for slo in slos if slo.relative_max is not None]
    if own:
        return own
    usual = [_usual(metric, stat) for metric, stat in USUAL]
    known = [slo for slo in usual if any(_known(_figures(side, slo)) for side in (candidate, baseline))]
    known += [slo for slo in map(_usual, WHERE_KNOWN) if _known(_figures(baseline, slo))]
    return known or usual[:1]


def _usual(metric: str, stat: str | None = None) -> Slo:
    return Slo(metric=metric, stat=stat, relative_max=RELEVANT_SHARE if is_share(metric) else RELEVANT)


def _figures(side: Baseline, slo: Slo) -> Figures | None:
    wanted = (slo.metric, slo.stat, cut_of(slo))
    return next((one for one in side.figures if one.key == wanted), None)


def _known(figures: Figures | None) -> bool:
    return figures is not None and any(value is not None for value in figures.values)


def _values(side: Baseline, slo: Slo) -> tuple[float | None, ...]:
    """By run; a run with fewer values than the rule asks for gives none."""
    figures = _figures(side, slo)
    if figures is None:
        return (None,) * len(side.runs)
    least = slo.min_samples or 0
    return tuple(None if (n or 0) < least else value for n, value in zip(figures.n, figures.values, strict=True))


# --------------------------------------------------------------------------------------------------------- comparable


def _unusable(candidate: Baseline, baseline: Baseline) -> list[str]:
    found = []
    for side, which in ((baseline, "of the baseline "), (candidate, "")):
        found += [f"run {run.run_id} {which}is invalid: {'; '.join(run.unusable)}" for run in side.runs if run.unusable]
    counted = Counter(run.run_id for side in (baseline, candidate) for run in side.runs)
    found += [
        f"run {run_id} is there {count} times: each counts once" for run_id, count in counted.items() if count > 1
    ]
    return found


def _notes(candidate: Baseline, baseline: Baseline, found: Sequence[Difference]) -> tuple[str, ...]:
    notes = [f"differs, as it may: {one}" for one in found if one.passes]
    for side, which in ((baseline, " of the baseline"), (candidate, "")):
        notes += [
            f"run {run.run_id}{which} began while the engine was busy (stage {', '.join(run.dirty)})"
            for run in side.runs
            if run.dirty
        ]
    salts = Counter({run.run_id: run.nonce for side in (baseline, candidate) for run in side.runs}.values())
    if any(count > 1 for count in salts.values()):
        notes.append(
            "several runs have the same salt (run.nonce is set): a prefix cache that outlived the first of them helps "
            "the others"
        )
    if not any("gpu" in run.facts or "label.gpu" in run.facts for run in candidate.runs) and not candidate.emulated:
        notes.append("nobody told the GPU: [telemetry] gpu, or a label, would show that it is the same one")
    return tuple(notes)


def _comparable(
    candidate: Baseline, baseline: Baseline, reasons: Sequence[str], passing: Sequence[Difference]
) -> RuleResult:
    count = len(candidate.runs)
    runs = f"{count} {'run' if count == 1 else 'runs'} against {len(baseline.runs)} of {baseline.name}"
    differing = f"; differs, as it may: {'; '.join(map(str, passing))}" if passing else ""
    return RuleResult(
        name=COMPARABLE,
        metric="comparable",
        stat="",
        scenario=None,
        channel=None,
        stage=None,
        n=len(candidate.runs),
        value=None,
        unit="",
        at_most=None,
        at_least=None,
        verdict=Verdict.NO_DATA if reasons else Verdict.PASS,
        detail=f"{'; '.join(reasons)} ({runs})" if reasons else f"{runs}{differing}",
        built_in=True,
    )


# ------------------------------------------------------------------------------------------------------------ changes


def _changes(rules: Sequence[Slo], candidate: Baseline, baseline: Baseline) -> tuple[RuleResult, ...]:
    """All rules judged together, so that many of them raise no more false alarms than one."""
    samples, floors = [], {}
    for place, rule in enumerate(rules):
        name = f"{place}"  # two rules may say the same
        samples.append(
            Sample(
                name=name,
                baseline=_values(baseline, rule),
                candidate=_values(candidate, rule),
                better=METRICS[rule.metric].better,
                share=is_share(rule.metric),
                relevant=rule.relative_max,
            )
        )
        if (floor := _floor(rule, candidate, baseline)) is not None:
            floors[name] = floor
    judged = judge_changes(samples, floors)
    return tuple(
        _result(rule, change, candidate, baseline, change.detail) for rule, change in zip(rules, judged, strict=True)
    )


def _floor(rule: Slo, candidate: Baseline, baseline: Baseline) -> Floor | None:
    """That of the side that has one from other runs."""
    for side in (baseline, candidate):
        figures = _figures(side, rule)
        if figures is not None and figures.floor is not None:
            return figures.floor
    return None


def _result(rule: Slo, change: Change | None, candidate: Baseline, baseline: Baseline, detail: str) -> RuleResult:
    figures = _figures(candidate, rule)
    now, before = (_mean(_values(side, rule), rule) for side in (candidate, baseline))
    seen = change if change is not None and change.change is not None else None
    return result_of(
        rule,
        relative_name(rule),
        Verdict.NO_DATA if change is None else change.verdict,
        detail,
        n=None if figures is None else sum(n or 0 for n in figures.n),
        value=now,
        relative_max=rule.relative_max,
        baseline=before,
        change=seen.change if seen is not None else None,
        change_low=seen.low if seen is not None else None,
        change_high=seen.high if seen is not None else None,
        p=seen.p if seen is not None else None,
    )


def _mean(values: Sequence[float | None], rule: Slo) -> float | None:
    """Over the runs, on the scale of the comparison; None: a run has none."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    if is_share(rule.metric) or min(known) <= 0:
        return math.fsum(known) / len(known)
    return math.exp(math.fsum(map(math.log, known)) / len(known))
