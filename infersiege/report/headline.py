"""The top of report.html: the verdict and why, the emulator's banner, the figures that people come for."""

from __future__ import annotations

from collections.abc import Mapping

from infersiege.cost import money
from infersiege.metrics.definitions import METRICS
from infersiege.records import GroupSummary, Summary, Verdict
from infersiege.report.latency import why_absent
from infersiege.report.markup import absent, items, text
from infersiege.report.numbers import ABSENT, count, figure, milliseconds, number, share
from infersiege.report.tables import STOPPED, rule_detail

VERDICTS: Mapping[Verdict, tuple[str, str]] = {
    Verdict.PASS: ("pass", "every rule holds"),
    Verdict.FAIL: ("fail", "a rule does not hold"),
    Verdict.NO_DATA: ("nodata", "a rule could not be judged: that is not a pass"),
    Verdict.INVALID: ("invalid", "the figures can't be trusted"),
}


def verdict(summary: Summary) -> str:
    """The verdict and why. A run that nobody gated says so, and is invalid all the same when it is.

    One that was interrupted is that before all else.
    """
    verdict = summary.verdict
    reasons = list(summary.invalid)
    reasons += [
        f"{rule.name}: {rule_detail(rule, summary)}"
        for rule in summary.rules
        if rule.verdict in (Verdict.FAIL, Verdict.NO_DATA)
    ]
    if verdict is None and summary.invalid:
        verdict = Verdict.INVALID
    if summary.interrupted:
        kind, word, why = "nodata", "INTERRUPTED", STOPPED
        if verdict is not None:
            why += f"; what was measured until then: {verdict.value.upper()}, {VERDICTS[verdict][1]}"
    elif verdict is None:
        kind, word, why = "none", "NOT JUDGED", "no rule was held against this run"
    else:
        kind, why = VERDICTS[verdict]
        word = verdict.value.upper()
    parts = [f'<div class="banner {kind}" role="status"><strong>{word}</strong> <span>{text(why)}</span>']
    parts.append(items(reasons) if reasons else "")
    parts.append("</div>")
    if summary.warnings:
        parts.append(f'<div class="banner nodata"><strong>Warnings</strong>{items(summary.warnings)}</div>')
    return "".join(parts)


def emulated(summary: Summary) -> str:
    if not summary.emulated:
        return ""
    return (
        '<div class="banner emulated" role="note"><strong>EMULATED</strong> The target was infersiege\'s own emulator: '
        "these figures show how the tool works and say nothing about any hardware or engine.</div>"
    )


def _card(label: str, value: str, unit: str, note: str) -> str:
    small = f" <small>{text(unit)}</small>" if unit and value != ABSENT else ""
    return (
        f'<li><div class="label">{text(label)}</div><div class="value">{text(value)}{small}</div>'
        f'<div class="note">{text(note)}</div></li>'
    )


def _latency_card(group: GroupSummary, metric: str, stat: str) -> str:
    found = group.distributions.get(metric)
    value = None if found is None else getattr(found, stat)
    title = f"{METRICS[metric].title} {stat}"
    if found is None or value is None:
        return _card(title, ABSENT, "", why_absent(group, metric, stat))
    return _card(
        title, number(milliseconds(value, found.unit)), "ms", f"n {count(found.n)}, max {figure(found.max, found.unit)}"
    )


def cards(group: GroupSummary) -> str:
    cards = [
        _latency_card(group, metric, stat)
        for metric, stat in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"))
    ]
    cards += [_latency_card(group, "e2e", "p50"), _latency_card(group, "e2e", "p99")]
    for name, missing in (
        ("throughput", "token counts are not known"),
        ("finished_rate", "nothing ended in steady"),
        ("goodput", "no rule on a turn's latency"),
        ("cache_share", "the server does not tell"),
    ):
        value, metric = group.rates.get(name), METRICS[name]
        if metric.unit == "ratio":
            cards.append(_card(metric.title, share(value), "", missing if value is None else "of prompt tokens"))
        else:
            note = missing if value is None else "mean over the steady phase"
            cards.append(_card(metric.title, number(value), metric.unit, note))
    errors = group.rates.get("error_share")
    counts = group.counts
    cards.append(
        _card("Failed", share(errors), "", f"{count(counts.failed)} of {count(counts.ok + counts.failed)} turns")
    )
    cards.append(_card("In flight", number(group.in_flight_mean), "mean", f"at most {count(group.in_flight_max)}"))
    cards += _cost_cards(group)
    return f'<ul class="cards">{"".join(cards)}</ul>'


def _cost_cards(group: GroupSummary) -> list[str]:
    """None where no channel has a price."""
    cost, rate = group.cost, group.rates.get("cost_per_million_output_tokens")
    if cost is None:
        return []
    guessed = f", {count(cost.estimated_turns)} of {count(cost.turns)} turns estimated" if cost.estimated_turns else ""
    total, per = (ABSENT if value is None else money(value) for value in (cost.total, rate))
    unknown = "the number of GPUs is not known" if cost.total is None else "no output, or channels paid in two ways"
    return [
        _card("Cost", total, "", f"in steady, by {cost.basis}{guessed}"),
        _card("Cost per million", per, "", "output tokens" if rate is not None else unknown),
    ]


def cost_cells(group: GroupSummary) -> list[str]:
    """Cells of a table: what a group's turns cost, and that for a million output tokens."""
    total = None if group.cost is None else group.cost.total
    rate = group.rates.get("cost_per_million_output_tokens")
    why = "no price, or nobody knows this part of what the GPUs cost"
    return [absent(why) if value is None else money(value) for value in (total, rate)]
