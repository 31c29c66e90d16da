"""One rule's result in words and figures: what terminal, Markdown, JUnit and annotations say alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infersiege.records import RuleResult, Summary, Verdict
from infersiege.report.numbers import ABSENT, count, figure, share, span

OUTCOMES: Mapping[Verdict, str] = {
    Verdict.FAIL: "failed",
    Verdict.NO_DATA: "without data",
    Verdict.INVALID: "invalid",
    Verdict.PASS: "passed",
}
"""In the order in which they are told."""


def why(rule: RuleResult, summary: Summary) -> str:
    """Why a rule's verdict is what it is, without the reason of an invalid run, which stands there once."""
    said = rule.detail
    return said.removesuffix(f" (run invalid: {summary.invalid[0]})") if summary.invalid else said


def must_be_read(rule: RuleResult) -> bool:
    """Whether there is more to say than the row does."""
    told = rule.verdict is Verdict.NO_DATA and rule.built_in and rule.severity == "warn"
    return bool(rule.remark) or (rule.verdict is not Verdict.PASS and not told)


def extent(rule: RuleResult) -> str:
    """The 95 % range of a percentile: `780 ms … 910 ms`, `>= 780 ms` where too few values tell the upper end."""
    low, high = (None if end is None else figure(end, rule.unit) for end in (rule.low, rule.high))
    if low is not None and high is not None:
        return f"{low} … {high}"
    if low is not None:
        return f">= {low}"
    return f"<= {high}" if high is not None else ABSENT


def limit(rule: RuleResult) -> str:
    """`<= 800 ms`, `>= 95.0 % and <= 105.0 %`, `at most 10.0 % worse`."""
    parts = []
    if rule.at_least is not None:
        parts.append(f">= {figure(rule.at_least, _unit(rule))}")
    if rule.at_most is not None:
        parts.append(f"<= {figure(rule.at_most, _unit(rule))}")
    if rule.relative_max is not None:
        parts.append(f"at most {_step(rule.relative_max, rule)} worse")
    return " and ".join(parts) or ABSENT


def value(rule: RuleResult) -> str:
    if rule.unit == "count" and rule.value is not None and rule.value.is_integer():
        return count(int(rule.value))
    return figure(rule.value, _unit(rule))


def baseline(rule: RuleResult) -> str:
    return figure(rule.baseline, _unit(rule))


def change(rule: RuleResult) -> str:
    """Against the baseline, with its 95 % interval: `+4.2 % (-1.0 … +9.4 %)`; of shares in points."""
    if rule.change is None:
        return ABSENT
    ends = ""
    if rule.change_low is not None and rule.change_high is not None:
        ends = f" ({100 * rule.change_low:+.1f} … {100 * rule.change_high:+.1f} %)"
    unit = "points" if rule.unit == "ratio" else "%"
    return f"{100 * rule.change:+.1f} {unit}{ends.replace('%', unit)}"


def window(rule: RuleResult) -> str:
    """The part of the run that it is over: `steady 60 s`, `agent, s1: steady 30 s`."""
    where = ", ".join(part for part in (rule.scenario, rule.channel, rule.stage) if part is not None)
    if rule.window_duration_ns is None:
        return where or "run"
    return f"{where}: steady {span(rule.window_duration_ns)}" if where else f"steady {span(rule.window_duration_ns)}"


def tally(rules: Sequence[RuleResult]) -> str:
    """`1 failed, 2 without data, 7 passed`; those that only warn are counted apart."""
    counting = [rule for rule in rules if rule.severity != "warn"]
    parts = []
    for verdict, word in OUTCOMES.items():
        many = sum(rule.verdict is verdict for rule in counting)
        if many:
            parts.append(f"{many} {word}")
    warned = sum(rule.severity == "warn" and must_be_read(rule) and rule.verdict is not Verdict.PASS for rule in rules)
    return ", ".join([*parts, *([f"{warned} only warn"] if warned else [])])


def worst_first(rules: Sequence[RuleResult]) -> list[RuleResult]:
    """Rules that did not pass, those that count first, each in its order."""
    order = list(OUTCOMES)
    missed = [rule for rule in rules if rule.verdict is not Verdict.PASS and must_be_read(rule)]
    return sorted(missed, key=lambda rule: (rule.severity == "warn", order.index(rule.verdict)))


def conclusion(summary: Summary) -> str:
    """The verdict in a word or two: `FAIL`, `INTERRUPTED`."""
    if summary.interrupted:
        return "INTERRUPTED"
    return "NOT JUDGED" if summary.verdict is None else summary.verdict.value.upper()


def _unit(rule: RuleResult) -> str:
    return "" if rule.unit == "count" else rule.unit


def _step(size: float, rule: RuleResult) -> str:
    return f"{100 * size:g} points" if rule.unit == "ratio" else share(size)
