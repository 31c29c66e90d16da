"""Rules held against a summary, and the exit code of a run.

A rule passes only on a value that was measured often enough. Too few turns, a metric that does not exist here, or a cut
that no turn belongs to are `no data`, which is not a pass. Rules of an invalid run are `invalid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from infersiege.errors import ExitCode, strongest
from infersiege.gate.built_in import BASIC, checks_carried_out, outcome, validity
from infersiege.metrics.behind import turns_behind
from infersiege.metrics.definitions import METRICS, STATS, Metric, Stat
from infersiege.metrics.facts import Cut, RequestLimit
from infersiege.metrics.orders import enough
from infersiege.plan.schema import Slo
from infersiege.records import GroupSummary, Outcome, RuleResult, StoppedEarly, Summary, Verdict

LIMIT_STATS = ("p90", "p95", "p99", "p99_9", "max")
"""A limit on one of these is what each single turn is held to for goodput; a median promises nothing to a turn."""

MOST_FAILURES = 0.05
"""Share of failed turns that a gated run may have where its plan has no rule on them."""


def request_limits(slos: Sequence[Slo]) -> tuple[RequestLimit, ...]:
    """The limits that each turn is held to for goodput: of each metric and cut, the loosest `max` of a high percentile.

    A turn above the p99 limit breaks the promise; one above the p90 limit only need not.
    """
    loosest: dict[tuple[str, Cut], float] = {}
    for slo in slos:
        metric = METRICS.get(slo.metric)
        if metric is None or metric.per_turn is None or metric.outcome is not Outcome.OK:
            continue
        if slo.at_most is None or slo.stat not in LIMIT_STATS:
            continue
        key = (slo.metric, cut_of(slo))
        loosest[key] = max(loosest.get(key, slo.at_most), slo.at_most)
    return tuple(
        RequestLimit(metric=metric, at_most=at_most, scenario=cut.scenario, channel=cut.channel, stage=cut.stage)
        for (metric, cut), at_most in loosest.items()
    )


def cut_of(slo: Slo) -> Cut:
    return Cut(scenario=slo.scenario, channel=slo.channel, stage=slo.stage)


def cuts(slos: Sequence[Slo]) -> tuple[Cut, ...]:
    """The groups that a summary must hold for these rules."""
    return tuple(dict.fromkeys(cut_of(slo) for slo in slos))


def judge(slos: Sequence[Slo], summary: Summary) -> tuple[RuleResult, ...]:
    """First the built-in rules (gate.built_in), then one result per rule of the plan, in its order.

    A run that a rule stopped early has failed that rule, whatever its figure then was.
    """
    judged = [without_baseline(slo) if is_relative(slo) else _judge(slo, summary) for slo in slos]
    stopped = summary.stopped_early
    if stopped is not None:
        judged = [_marked(result, stopped, by=place == stopped.place) for place, result in enumerate(judged)]
    results = (*outcome(summary), *_failures(slos, summary), *checks_carried_out(summary), *judged)
    if summary.invalid:
        results = tuple(_invalidated(result, summary) for result in results)
    # What makes a run invalid is judged apart, so that a reader sees which of them it was.
    return (*results[:BASIC], *validity(summary), *results[BASIC:])


def _failures(slos: Sequence[Slo], summary: Summary) -> tuple[RuleResult, ...]:
    """The limit on failed turns that holds where the plan says nothing of them (GT-01, GT-03)."""
    own = any(slo.metric == "error_share" and slo.at_most is not None and cut_of(slo) == Cut() for slo in slos)
    if own:
        return ()
    found = _judge(Slo(metric="error_share", at_most=MOST_FAILURES), summary)
    return (msgspec.structs.replace(found, built_in=True),)


def _marked(result: RuleResult, stopped: StoppedEarly, *, by: bool) -> RuleResult:
    """What a rule shows of a run that was stopped early, by itself or by another one."""
    if by:
        return msgspec.structs.replace(
            result, verdict=Verdict.FAIL, detail=f"{stopped.words}; {result.detail}", remark=stopped.words
        )
    return _with_remark(result, "the run was stopped early")


def _with_remark(result: RuleResult, remark: str) -> RuleResult:
    said = f"{result.remark}, {remark}" if result.remark else remark
    return msgspec.structs.replace(result, remark=said, detail=f"{result.detail}, {remark}")


def exit_code(summary: Summary, rules: Sequence[RuleResult], *, gated: bool) -> ExitCode:
    """The exit code of a run; of several findings the strongest.

    Ungated: invalid, interrupted, every turn failed, or none ended by itself. Gated: the rules as well. Rules of
    severity `warn` never count.
    """
    codes = {ExitCode.PASS}
    if summary.interrupted:
        codes.add(ExitCode.INTERRUPTED)
    if summary.invalid:
        codes.add(ExitCode.INVALID_RUN)
    if summary.internal_faults:
        codes.add(ExitCode.INTERNAL)
    counts = summary.counts
    if not counts.ok:
        codes.add(ExitCode.RULE_FAILED if counts.failed else ExitCode.NO_DATA)
    if gated:
        codes |= {_CODES[rule.verdict] for rule in _counting(summary, rules)}
    return strongest(codes)


_CODES = {
    Verdict.PASS: ExitCode.PASS,
    Verdict.FAIL: ExitCode.RULE_FAILED,
    Verdict.NO_DATA: ExitCode.NO_DATA,
    Verdict.INVALID: ExitCode.INVALID_RUN,
}


def _counting(summary: Summary, rules: Sequence[RuleResult]) -> list[RuleResult]:
    """Rules that make the verdict. What a run that was stopped early had no time to show does not hide why it was."""
    counting = [rule for rule in rules if rule.severity != "warn"]
    if summary.stopped_early is None:
        return counting
    return [rule for rule in counting if rule.verdict is not Verdict.NO_DATA]


def overall(summary: Summary, rules: Sequence[RuleResult]) -> Verdict:
    """The verdict on a gated run: invalid before no data before fail; pass only when every rule passes."""
    verdicts = {rule.verdict for rule in _counting(summary, rules)}
    if summary.invalid or Verdict.INVALID in verdicts:
        return Verdict.INVALID
    return next((verdict for verdict in (Verdict.NO_DATA, Verdict.FAIL) if verdict in verdicts), Verdict.PASS)


class _Measured(NamedTuple):
    """What a rule has to go by. `value` None: no data, and the detail says why."""

    n: int | None
    value: float | None
    detail: str
    remark: str = ""
    needed: int | None = None
    low: float | None = None
    high: float | None = None


def _judge(slo: Slo, summary: Summary) -> RuleResult:
    metric = METRICS.get(slo.metric)
    group = next((one for one in summary.groups if _is(one, cut_of(slo))), None)
    if metric is None:
        found = _Measured(None, None, f"unknown metric {slo.metric!r}")
    elif group is None:
        found = _Measured(None, None, f"no figures for {_where(slo)} in this run")
    else:
        found = _measured(metric, slo, group)
    if found.value is None:
        verdict = Verdict.NO_DATA
    elif (slo.at_most is not None and found.value > slo.at_most) or (
        slo.at_least is not None and found.value < slo.at_least
    ):
        verdict = Verdict.FAIL
    else:
        verdict = Verdict.PASS
    return result_of(
        slo,
        rule_name(slo),
        verdict,
        f"{found.detail}, {found.remark}" if found.remark else found.detail,
        n=found.n,
        value=found.value,
        at_most=slo.at_most,
        at_least=slo.at_least,
        needed=found.needed,
        low=found.low,
        high=found.high,
        window_duration_ns=None if group is None else group.steady_duration_ns,
        remark=found.remark,
    )


def _is(group: GroupSummary, cut: Cut) -> bool:
    return (group.scenario, group.channel, group.stage) == (cut.scenario, cut.channel, cut.stage)


ENOUGH_CHECKED = 30
"""Checked answers that a rule on `quality` takes: below that one answer moves the share by more than 3 points."""


def needed_for(slo: Slo) -> int:
    """Values that a rule takes to be judged.

    Of a percentile so many that a 95 % upper bound of it exists (metrics.orders: 5 for p50, 29 for p90, 59 for p95, 299
    for p99, 2,995 for p99.9), or the rule's own `min_samples`, but never fewer than the statistic's floor. Of all other
    figures `min_samples`, or 1.
    """
    stat = STATS.get(slo.stat or "")
    if stat is None:
        return slo.min_samples or (ENOUGH_CHECKED if slo.metric == "quality" else 1)
    return max(slo.min_samples or _usual(stat), stat.floor)


def _usual(stat: Stat) -> int:
    return stat.floor if stat.q is None else max(stat.floor, enough(stat.q))


def _measured(metric: Metric, slo: Slo, group: GroupSummary) -> _Measured:
    if metric.kind == "rate":
        return _measured_rate(metric, slo, group)
    distribution, stat, needed = group.distributions.get(metric.name), STATS.get(slo.stat or ""), needed_for(slo)
    if distribution is None or stat is None:
        return _Measured(0, None, f"no such figure: {metric.name} {slo.stat or 'without a stat'}")
    n, beside = distribution.n, _beside(distribution.missing, distribution.failed_share)
    if not n:
        unstreamed = metric.needs_stream and not distribution.missing and group.counts.ok
        why = "the answers were not streamed" if unstreamed else "nothing measured"
        return _Measured(0, None, why, beside, needed)
    if n < needed:
        return _Measured(n, None, f"{n:,} values, {slo.stat} needs {needed:,}", beside, needed)
    value: float | None = getattr(distribution, stat.name)
    if value is None:
        cut = distribution.cancelled_share or 0.0
        return _Measured(n, None, f"{cut:.1%} of the turns were cut: {slo.stat} is not known", beside, needed)
    low, high = distribution.ranges.get(stat.name, (None, None))
    remarks = [beside] if beside else []
    if n < _usual(stat):
        remarks.append(f"fewer than the {_usual(stat):,} values that a 95 % upper bound of {stat.name} takes")
    detail = f"{_with_unit(value, metric.unit)} of {n:,} values"
    return _Measured(n, value, detail, ", ".join(remarks), needed, low, high)


def _measured_rate(metric: Metric, slo: Slo, group: GroupSummary) -> _Measured:
    n, needed = turns_behind(metric.name, group), needed_for(slo)
    value = group.rates.get(metric.name)
    if metric.name == "quality" and group.unscored:
        of_all = n + group.unscored
        return _Measured(n, None, f"{group.unscored:,} of {of_all:,} answers could not be checked", needed=needed)
    if n < needed:
        return _Measured(n, None, f"{n:,} turns in steady, {needed:,} are needed", needed=needed)
    if value is None:
        return _Measured(n, None, _WHY_NO_RATE.get(metric.name, "nothing measured"), needed=needed)
    return _Measured(n, value, f"{_with_unit(value, metric.unit)} over {n:,} turns", needed=needed)


_WHY_NO_RATE = {
    "goodput": "goodput needs a limit for single turns: a rule with max on p90 or higher of ttft, tpot, e2e …",
    "goodput_share": "no turn could be judged: it needs a rule with max on p90 or higher of ttft, tpot, e2e …",
    "cache_share": "the server does not tell cached tokens",
    "cost_per_million_output_tokens": "no price in the plan, or nobody knows this cut's part of what the GPUs cost",
    "delivered_share": "the plan asks no load of this cut as such",
    "quality": "no answer was checked: the plan needs [quality]",
}


def _beside(missing: int, failed_share: float | None) -> str:
    parts = [f"{missing:,} without"] if missing else []
    parts += [f"{failed_share:.2%} of the turns failed"] if failed_share else []
    return ", ".join(parts)


def _invalidated(result: RuleResult, summary: Summary) -> RuleResult:
    """The figure stays to be seen, but in an invalid run it shows nothing."""
    detail = f"{result.detail} (run invalid: {summary.invalid[0]})"
    return msgspec.structs.replace(result, verdict=Verdict.INVALID, detail=detail)


def is_relative(slo: Slo) -> bool:
    """It has no limit of its own, only one against a baseline."""
    return slo.at_most is None and slo.at_least is None and slo.relative_max is not None


def without_baseline(slo: Slo) -> RuleResult:
    """What a rule that needs a baseline shows of a run alone: nothing."""
    why = "it needs a baseline: infersiege gate RUN… --baseline RUN…"
    return result_of(slo, relative_name(slo), Verdict.NO_DATA, why, relative_max=slo.relative_max)


def result_of(slo: Slo, name: str, verdict: Verdict, detail: str, **found: Any) -> RuleResult:
    """A result with what the rule is about, and `found`: the fields that say how it came out."""
    metric = METRICS.get(slo.metric)
    result = RuleResult(
        name=name,
        metric=slo.metric,
        stat=slo.stat or "",
        scenario=slo.scenario,
        channel=slo.channel,
        stage=slo.stage,
        n=None,
        value=None,
        unit=metric.unit if metric is not None else "",
        at_most=None,
        at_least=None,
        verdict=verdict,
        detail=detail,
        severity=slo.severity,
    )
    return msgspec.structs.replace(result, **found)


def relative_name(slo: Slo) -> str:
    """Such as `agent: ttft p99 at most 10 % worse than the baseline`; of shares `2 points`."""
    metric = METRICS.get(slo.metric)
    share = metric is not None and metric.unit == "ratio"
    limit = f"{_number(100 * (slo.relative_max or 0.0))} {'points' if share else '%'}"
    where, stat = _where(slo), f" {slo.stat}" if slo.stat is not None else ""
    return f"{f'{where}: ' if where else ''}{slo.metric}{stat} at most {limit} worse than the baseline"


def rule_name(slo: Slo) -> str:
    """Such as `agent: ttft p99 <= 800 ms`."""
    metric = METRICS.get(slo.metric)
    unit = metric.unit if metric is not None else ""
    limits = []
    if slo.at_most is not None:
        limits.append(f"<= {_with_unit(slo.at_most, unit)}")
    if slo.at_least is not None:
        limits.append(f">= {_with_unit(slo.at_least, unit)}")
    stat = f" {slo.stat}" if slo.stat is not None else ""
    where = _where(slo)
    return f"{f'{where}: ' if where else ''}{slo.metric}{stat} {' and '.join(limits)}"


def _where(slo: Slo) -> str:
    return ", ".join(part for part in (slo.scenario, slo.channel, slo.stage) if part is not None)


def _with_unit(value: float, unit: str) -> str:
    if unit == "ratio":
        return f"{_number(value * 100)} %"
    return f"{_number(value)} {unit}" if unit != "count" else _number(value)


def _number(value: float) -> str:
    """Four significant digits, whole numbers whole."""
    if abs(value) >= 1000 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.4g}"
