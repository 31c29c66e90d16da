"""The rules that were held against the run."""

from __future__ import annotations

from infersiege.gate.built_in import BUILT_IN
from infersiege.records import RuleResult, Summary
from infersiege.report import rule_words
from infersiege.report.headline import VERDICTS, verdict_word
from infersiege.report.markup import english, table, text
from infersiege.report.numbers import count, figure
from infersiege.report.tables import rule_detail
from infersiege.report.words import Words

WORDS_AS_UNITS = ("turns", "tokens")


def rules_html(summary: Summary, say: Words) -> str:
    """Verdict, rule, value with its range, n and why."""
    if not summary.rules:
        said = text(say("No rule was held against this run: {command} does that.", command="infersiege gate"))
        return f'<p class="soft">{said}</p>'
    rows = []
    for rule in summary.rules:
        kind = VERDICTS[rule.verdict][0]
        name = rule_label(rule, say)
        name += f' <span class="soft">{text(say("(warns only)"))}</span>' if rule.severity == "warn" else ""
        name += f' <span class="soft">{text(say("(built in)"))}</span>' if rule.built_in else ""
        verdict = f'<span class="v-{kind}"><b>{text(verdict_word(rule.verdict, say))}</b></span>'
        value = text(_value(rule, say)) + _range(rule)
        rows.append([verdict, name, value, count(rule.n), english(text(rule_detail(rule, summary)), say)])
    columns = [(say("Verdict"), "", False), (say("Rule"), "", False), (say("Value"), say("95 % range"), True)]
    columns += [("n", "", True), (say("Why"), "", False)]
    return table(say("Rules of the plan and built-in rules"), columns, rows)


def rule_label(rule: RuleResult, say: Words) -> str:
    """HTML of a rule's name. Rules of a plan are named by their keys; what is built in has words of its own."""
    return text(say(rule.name)) if rule.built_in and rule.name in BUILT_IN else english(text(rule.name), say)


def _value(rule: RuleResult, say: Words) -> str:
    """`150 turns`, its unit in the page's language where it is a word."""
    written = rule_words.value(rule)
    return f"{written.removesuffix(rule.unit)}{say(rule.unit)}" if rule.unit in WORDS_AS_UNITS else written


def _range(rule: RuleResult) -> str:
    """Where the true percentile is with 95 % confidence; empty where nothing tells."""
    if rule.low is None and rule.high is None:
        return ""
    low, high = (text(figure(one, rule.unit)) if one is not None else "?" for one in (rule.low, rule.high))
    return f'<br><small class="soft">{low} … {high}</small>'
