"""Rules held against a summary, and the exit code of a run.

A rule passes only on a value that was measured often enough. Too few turns, a metric that does not exist here, or a cut
that no turn belongs to are `no data`, which is not a pass. Rules of an invalid run are `invalid`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from infersiege.errors import ExitCode, strongest
from infersiege.metrics.definitions import METRICS, STATS, Metric
from infersiege.metrics.facts import Cut, RequestLimit
from infersiege.plan.schema import Slo
from infersiege.records import GroupSummary, Outcome, RuleResult, Summary, Verdict

LIMIT_STATS = ("p90", "p95", "p99", "p99_9", "max")
"""A limit on one of these is what each single turn is held to for goodput; a median promises nothing to a turn."""


# ------------------------------------------------------------------------------------------------ before the run


def validate_slo(slo: Slo, *, streamed: Mapping[str, bool] | None = None) -> list[str]:
    """Faults of one rule, one line each, for loading a plan; empty: it can be judged.

    `streamed` says for each channel of the plan whether it asks for a stream; None: not known yet.
    """
    metric = METRICS.get(slo.metric)
    if metric is None:
        return [f"unknown metric {slo.metric!r}{_nearest(slo.metric, METRICS)}"]
    faults = []
    if metric.kind == "distribution":
        if slo.stat is None:
            faults.append(f"{metric.name} needs a stat, one of {', '.join(STATS)}")
        elif slo.stat not in STATS:
            faults.append(f"unknown stat {slo.stat!r}{_nearest(slo.stat, STATS)}")
    elif slo.stat is not None:
        faults.append(f"{metric.name} is one number and has no stat; leave out stat = {slo.stat!r}")
    if slo.at_most is None and slo.at_least is None and slo.relative_max is None:
        faults.append(f"a rule on {metric.name} needs max or min, or relative_max")
    elif slo.at_most is not None and slo.at_least is not None and slo.at_most < slo.at_least:
        faults.append(f"max ({_number(slo.at_most)}) is below min ({_number(slo.at_least)}): no value passes")
    if metric.name == "delivered_share" and slo.channel is not None:
        faults.append("delivered_share belongs to a load, not to a channel")
    if metric.needs_stream and streamed is not None:
        faults += _unstreamed(metric, slo, streamed)
    return faults


def _unstreamed(metric: Metric, slo: Slo, streamed: Mapping[str, bool]) -> list[str]:
    names = [slo.channel] if slo.channel is not None else list(streamed)
    known = [name for name in names if name in streamed]
    if not known or any(streamed[name] for name in known):
        return []
    return [f"{metric.name} needs a stream, but channel {', '.join(known)} has stream = false"]


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


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


# ------------------------------------------------------------------------------------------------- after the run


def judge(slos: Sequence[Slo], summary: Summary) -> tuple[RuleResult, ...]:
    """One result per rule: first the built-in ones (some success, some output), then the plan's, in its order."""
    results = (*_built_in(summary), *(_judge(slo, summary) for slo in slos if not is_relative(slo)))
    results += tuple(without_baseline(slo) for slo in slos if is_relative(slo))
    if not summary.invalid:
        return results
    return tuple(_invalidated(result, summary) for result in results)


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
        codes |= {_CODES[rule.verdict] for rule in rules if rule.severity != "warn"}
    return strongest(codes)


_CODES = {
    Verdict.PASS: ExitCode.PASS,
    Verdict.FAIL: ExitCode.RULE_FAILED,
    Verdict.NO_DATA: ExitCode.NO_DATA,
    Verdict.INVALID: ExitCode.INVALID_RUN,
}


def overall(summary: Summary, rules: Sequence[RuleResult]) -> Verdict:
    """The verdict on a gated run: invalid before no data before fail; pass only when every rule passes."""
    verdicts = {rule.verdict for rule in rules if rule.severity != "warn"}
    if summary.invalid or Verdict.INVALID in verdicts:
        return Verdict.INVALID
    return next((verdict for verdict in (Verdict.NO_DATA, Verdict.FAIL) if verdict in verdicts), Verdict.PASS)


def _built_in(summary: Summary) -> tuple[RuleResult, RuleResult]:
    """A run in which nothing succeeded shows nothing, whatever its percentiles (GT-01)."""
    whole = summary.groups[0]
    ended = whole.counts.ok + whole.counts.failed
    return (
        _minimum_of_one("some turn succeeds", "ok", whole.counts.ok, ended, "turns", whole),
        _minimum_of_one("some output tokens arrive", "output_tokens", whole.output_tokens, ended, "tokens", whole),
    )


def _minimum_of_one(
    name: str, metric: str, value: int | None, ended: int, unit: str, whole: GroupSummary
) -> RuleResult:
    if not ended:
        verdict, detail = Verdict.NO_DATA, _why_none_ended(whole)
    elif value:
        verdict, detail = Verdict.PASS, f"{value:,} {unit} in steady"
    else:
        verdict, detail = Verdict.FAIL, f"none in {ended} turns{_worst_errors(whole)}"
    return RuleResult(
        name=name,
        metric=metric,
        stat="total",
        scenario=None,
        channel=None,
        stage=None,
        n=ended,
        value=None if value is None else float(value),
        unit=unit,
        at_most=None,
        at_least=1.0,
        verdict=verdict,
        detail=detail,
        built_in=True,
    )


def _why_none_ended(whole: GroupSummary) -> str:
    counts = whole.counts
    if not counts.planned:
        return "no turn was due in the steady window"
    ends = (("cancelled", counts.cancelled), ("lost", counts.lost), ("skipped", counts.skipped))
    return f"no turn due in the steady window ended: {', '.join(f'{name} {n}' for name, n in ends if n)}"


def _worst_errors(whole: GroupSummary) -> str:
    worst = sorted(whole.errors.items(), key=lambda item: (-item[1], item[0]))[:3]
    return f": {', '.join(f'{name} {count}' for name, count in worst)}" if worst else ""


def _judge(slo: Slo, summary: Summary) -> RuleResult:
    metric = METRICS.get(slo.metric)
    group = next((one for one in summary.groups if _is(one, cut_of(slo))), None)
    if metric is None:
        n, value, detail = None, None, f"unknown metric{_nearest(slo.metric, METRICS)}"
    elif group is None:
        n, value, detail = None, None, f"no figures for {_where(slo)} in this run"
    else:
        n, value, detail = _measured(metric, slo, group)
    if value is None:
        verdict = Verdict.NO_DATA
    elif (slo.at_most is not None and value > slo.at_most) or (slo.at_least is not None and value < slo.at_least):
        verdict = Verdict.FAIL
    else:
        verdict = Verdict.PASS
    unit = metric.unit if metric is not None else ""
    return RuleResult(
        name=rule_name(slo),
        metric=slo.metric,
        stat=slo.stat or "",
        scenario=slo.scenario,
        channel=slo.channel,
        stage=slo.stage,
        n=n,
        value=value,
        unit=unit,
        at_most=slo.at_most,
        at_least=slo.at_least,
        verdict=verdict,
        detail=detail,
        severity=slo.severity,
    )


def _is(group: GroupSummary, cut: Cut) -> bool:
    return (group.scenario, group.channel, group.stage) == (cut.scenario, cut.channel, cut.stage)


def _measured(metric: Metric, slo: Slo, group: GroupSummary) -> tuple[int, float | None, str]:
    """(n, value, detail) of a rule; value None: no data, and the detail says why."""
    if metric.kind == "rate":
        return _measured_rate(metric, slo, group)
    distribution = group.distributions.get(metric.name)
    stat = STATS.get(slo.stat or "")
    if distribution is None or stat is None:
        return 0, None, f"no such figure: {metric.name} {slo.stat or 'without a stat'}"
    needed = max(slo.min_samples or stat.floor, stat.floor)
    beside = _beside(distribution.missing, distribution.failed_share)
    if not distribution.n:
        unstreamed = metric.needs_stream and not distribution.missing and group.counts.ok
        why = "the answers were not streamed" if unstreamed else "nothing measured"
        return 0, None, f"{why}{beside}"
    if distribution.n < needed:
        return distribution.n, None, f"{distribution.n} values, {slo.stat} needs {needed}{beside}"
    value: float | None = getattr(distribution, stat.name)
    if value is None:
        cut = distribution.cancelled_share or 0.0
        return distribution.n, None, f"{cut:.1%} of the turns were cut: {slo.stat} is not known{beside}"
    return distribution.n, value, f"{_with_unit(value, metric.unit)} of {distribution.n} values{beside}"


def _measured_rate(metric: Metric, slo: Slo, group: GroupSummary) -> tuple[int, float | None, str]:
    ended = group.counts.ok + group.counts.failed
    n = ended if metric.name in _OF_ENDED else group.counts.started
    needed = slo.min_samples or 1
    value = group.rates.get(metric.name)
    if n < needed:
        return n, None, f"{n} turns in steady, {needed} are needed"
    if value is None:
        return n, None, _WHY_NO_RATE.get(metric.name, "nothing measured")
    return n, value, f"{_with_unit(value, metric.unit)} over {n} turns"


_OF_ENDED = frozenset({"error_share", "goodput", "goodput_share", "cache_share"})
"""Rates over turns that ended by themselves; the others also see turns that are still open."""

_WHY_NO_RATE = {
    "goodput": "goodput needs a limit for single turns: a rule with max on p90 or higher of ttft, tpot, e2e …",
    "goodput_share": "no turn could be judged: it needs a rule with max on p90 or higher of ttft, tpot, e2e …",
    "cache_share": "the server does not tell cached tokens",
    "cost_per_million_output_tokens": "no price in the plan, or nobody knows this cut's part of what the GPUs cost",
    "delivered_share": "the plan asks no load of this cut as such",
}


def _beside(missing: int, failed_share: float | None) -> str:
    text = f", {missing} without" if missing else ""
    return text + (f", {failed_share:.2%} of the turns failed" if failed_share else "")


def _invalidated(result: RuleResult, summary: Summary) -> RuleResult:
    """The figure stays to be seen, but in an invalid run it shows nothing."""
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    fields |= {"verdict": Verdict.INVALID, "detail": f"{result.detail} (run invalid: {summary.invalid[0]})"}
    return RuleResult(**fields)


def is_relative(slo: Slo) -> bool:
    """It has no limit of its own, only one against a baseline."""
    return slo.at_most is None and slo.at_least is None and slo.relative_max is not None


def without_baseline(slo: Slo) -> RuleResult:
    """What a rule that needs a baseline shows of a run alone: nothing."""
    metric = METRICS.get(slo.metric)
    return RuleResult(
        name=relative_name(slo),
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
        verdict=Verdict.NO_DATA,
        detail="it needs a baseline: infersiege gate RUN… --baseline RUN…",
        severity=slo.severity,
        relative_max=slo.relative_max,
    )


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
