"""The runs against their baseline: whether they may be compared, and by rule what changed (docs/gate.md)."""

from __future__ import annotations

from infersiege.gate.relative import COMPARABLE
from infersiege.records import RuleResult, Summary, Verdict
from infersiege.report import rule_words
from infersiege.report.charts import PALETTE, Chart, Ranged, ranged_bars
from infersiege.report.headline import VERDICTS, verdict_word
from infersiege.report.markup import english, grid, items, table, text
from infersiege.report.numbers import ABSENT, printable
from infersiege.report.words import ENGLISH, Words


def baseline_charts(summary: Summary, say: Words = ENGLISH) -> list[Chart]:
    """None where nothing could be compared."""
    shown = [rule for rule in summary.rules if rule.change is not None]
    return [_chart(shown, say)] if shown else []


def baseline_html(summary: Summary, charts: list[Chart], say: Words = ENGLISH) -> tuple[str, ...]:
    """The parts of the section; none where the run was held against no baseline."""
    head = next((rule for rule in summary.rules if rule.name == COMPARABLE), None)
    if head is None:
        return ()
    rules = [rule for rule in summary.rules if rule.relative_max is not None]
    parts = [_comparable(head, say), grid(charts) if charts else "", _table(rules, say) if rules else ""]
    return tuple(part for part in parts if part)


def _comparable(head: RuleResult, say: Words) -> str:
    may = head.verdict is Verdict.PASS
    said = say("Comparable with the baseline") if may else say("Not comparable with the baseline")
    notes = english(items(head.notes), say, block=True) if head.notes else ""
    return (
        f'<div class="banner {VERDICTS[head.verdict][0]}"><strong>{text(said)}</strong>'
        f"<p>{english(text(head.detail), say)}</p>{notes}</div>"
    )


def _table(rules: list[RuleResult], say: Words) -> str:
    rows = []
    for rule in rules:
        verdict = f'<span class="v-{VERDICTS[rule.verdict][0]}"><b>{text(verdict_word(rule.verdict, say))}</b></span>'
        change, interval = (ABSENT, ABSENT) if rule.change is None else _change(rule)
        # Where there is a change, the columns say all that its reason does.
        why = f'<br><small class="soft">{text(rule.detail)}</small>' if rule.change is None else ""
        chance = ABSENT if rule.p is None else f"{rule.p:.2g}"
        cells = [rule_words.baseline(rule), rule_words.value(rule), change, interval, chance]
        rows.append([verdict, english(text(rule.name) + why, say), *map(text, cells)])
    columns = [(say("Verdict"), "", False), (say("Rule"), "", False), (say("Baseline"), say("mean of its runs"), True)]
    columns += [(say("Now"), say("mean of these runs"), True), (say("Change"), "", True)]
    columns += [(say("Of the change"), say("95 % interval"), True), ("p", say("corrected"), True)]
    return table(say("Change against the baseline; the unit is the run, not the turn"), columns, rows)


def _change(rule: RuleResult) -> tuple[str, str]:
    """(`+4.2 %`, `-1.0 … +9.4 %`); of shares in points."""
    change, _, ends = rule_words.change(rule).partition(" (")
    return change, ends.removesuffix(")") or ABSENT


def _chart(rules: list[RuleResult], say: Words) -> Chart:
    words = ", ".join(f"{_short(rule)} {rule_words.change(rule)}" for rule in rules)
    bars = [Ranged(_short(rule), rule.change or 0.0, rule.change_low, rule.change_high) for rule in rules]
    axis = say("change, % or points")
    figure = ranged_bars(
        say("Change"),
        bars,
        axis,
        color=PALETTE[0],
        xaxis={"type": "category"},
        yaxis={"title": {"text": axis}, "zeroline": True},
    )
    return Chart(
        key="baseline",
        title=say("Change against the baseline"),
        caption=say("With its 95 % interval. Shares in points, everything else in % of the baseline."),
        words=printable(words),
        figure=figure,
        wide=True,
    )


def _short(rule: RuleResult) -> str:
    """`chat: ttft p99`."""
    where = ", ".join(part for part in (rule.scenario, rule.channel, rule.stage) if part is not None)
    return f"{f'{where}: ' if where else ''}{rule.metric}{f' {rule.stat}' if rule.stat else ''}"
