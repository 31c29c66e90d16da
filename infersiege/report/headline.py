"""The top of report.html: the verdict and why, the emulator's banner, the figures that people come for."""

from __future__ import annotations

from collections.abc import Mapping

from infersiege.cost import money
from infersiege.metrics.definitions import METRICS
from infersiege.records import GroupSummary, Summary, Verdict
from infersiege.report.glossary import title_of
from infersiege.report.latency import why_absent
from infersiege.report.markup import absent, english, items, text
from infersiege.report.numbers import ABSENT, count, figure, milliseconds, number, share
from infersiege.report.tables import STOPPED, rule_detail
from infersiege.report.words import ENGLISH, Words

VERDICTS: Mapping[Verdict, tuple[str, str]] = {
    Verdict.PASS: ("pass", "every rule holds"),
    Verdict.FAIL: ("fail", "a rule does not hold"),
    Verdict.NO_DATA: ("nodata", "a rule could not be judged: that is not a pass"),
    Verdict.INVALID: ("invalid", "the figures can't be trusted"),
}


def verdict_word(verdict: Verdict, say: Words = ENGLISH) -> str:
    """`FAIL`, in another language with its own word beside it."""
    return say(verdict.value.upper())


def verdict(summary: Summary, say: Words = ENGLISH) -> str:
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
        kind, word, why = "nodata", say("INTERRUPTED"), say(STOPPED)
        if verdict is not None:
            so_far = f"{verdict_word(verdict, say)}, {say(VERDICTS[verdict][1])}"
            why += say("; what was measured until then: {verdict}", verdict=so_far)
    elif verdict is None:
        kind, word, why = "none", say("NOT JUDGED"), say("no rule was held against this run")
    else:
        kind, why = VERDICTS[verdict][0], say(VERDICTS[verdict][1])
        word = verdict_word(verdict, say)
    parts = [f'<div class="banner {kind}" role="status"><strong>{text(word)}</strong> <span>{text(why)}</span>']
    parts.append(english(items(reasons), say, block=True) if reasons else "")
    parts.append("</div>")
    if summary.warnings:
        listed = english(items(summary.warnings), say, block=True)
        parts.append(f'<div class="banner nodata"><strong>{text(say("Warnings"))}</strong>{listed}</div>')
    return "".join(parts)


def emulated(summary: Summary, say: Words = ENGLISH) -> str:
    if not summary.emulated:
        return ""
    said = say(
        "The target was infersiege's own emulator: these figures show how the tool works and say nothing about any "
        "hardware or engine."
    )
    return f'<div class="banner emulated" role="note"><strong>{text(say("EMULATED"))}</strong> {text(said)}</div>'


def _card(label: str, value: str, unit: str, note: str) -> str:
    small = f" <small>{text(unit)}</small>" if unit and value != ABSENT else ""
    return (
        f'<li><div class="label">{text(label)}</div><div class="value">{text(value)}{small}</div>'
        f'<div class="note">{text(note)}</div></li>'
    )


def _latency_card(group: GroupSummary, metric: str, stat: str, say: Words) -> str:
    found = group.distributions.get(metric)
    value = None if found is None else getattr(found, stat)
    title = f"{METRICS[metric].title} {stat}"
    if found is None or value is None:
        return _card(title, ABSENT, "", why_absent(group, metric, stat, say))
    note = say("n {n}, max {top}", n=count(found.n), top=figure(found.max, found.unit))
    return _card(title, number(milliseconds(value, found.unit)), "ms", note)


def cards(group: GroupSummary, say: Words = ENGLISH) -> str:
    cards = [
        _latency_card(group, metric, stat, say)
        for metric, stat in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"))
    ]
    cards += [_latency_card(group, "e2e", "p50", say), _latency_card(group, "e2e", "p99", say)]
    for name, missing in (
        ("throughput", say("token counts are not known")),
        ("finished_rate", say("nothing ended in steady")),
        ("goodput", say("no rule on a turn's latency")),
        ("cache_share", say("the server does not tell")),
    ):
        value, metric = group.rates.get(name), METRICS[name]
        if metric.unit == "ratio":
            note = missing if value is None else say("of prompt tokens")
            cards.append(_card(title_of(metric, say), share(value), "", note))
        else:
            note = missing if value is None else say("mean over the steady phase")
            cards.append(_card(title_of(metric, say), number(value), metric.unit, note))
    errors = group.rates.get("error_share")
    counts = group.counts
    of_all = say("{n} of {all} turns", n=count(counts.failed), all=count(counts.ok + counts.failed))
    cards.append(_card(say("Failed"), share(errors), "", of_all))
    most = say("at most {n}", n=count(group.in_flight_max))
    cards.append(_card(say("In flight"), number(group.in_flight_mean), say("mean"), most))
    cards += _cost_cards(group, say)
    return f'<ul class="cards">{"".join(cards)}</ul>'


def _cost_cards(group: GroupSummary, say: Words) -> list[str]:
    """None where no channel has a price."""
    cost, rate = group.cost, group.rates.get("cost_per_million_output_tokens")
    if cost is None:
        return []
    guessed = ""
    if cost.estimated_turns:
        guessed = say(", {n} of {all} turns estimated", n=count(cost.estimated_turns), all=count(cost.turns))
    total, per = (ABSENT if value is None else money(value) for value in (cost.total, rate))
    unknown = (
        say("the number of GPUs is not known") if cost.total is None else say("no output, or channels paid in two ways")
    )
    return [
        _card(say("Cost"), total, "", say("in steady, by {basis}", basis=cost.basis) + guessed),
        _card(say("Cost per million"), per, "", say("output tokens") if rate is not None else unknown),
    ]


def cost_cells(group: GroupSummary, say: Words = ENGLISH) -> list[str]:
    """Cells of a table: what a group's turns cost, and that for a million output tokens."""
    total = None if group.cost is None else group.cost.total
    rate = group.rates.get("cost_per_million_output_tokens")
    why = say("no price, or nobody knows this part of what the GPUs cost")
    return [absent(why, say) if value is None else money(value) for value in (total, rate)]
