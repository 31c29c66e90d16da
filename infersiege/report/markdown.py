"""The verdict as GitHub-flavoured Markdown: for the summary of a CI job or a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from infersiege.records import RuleResult, Summary, Verdict
from infersiege.report import rule_words
from infersiege.report.numbers import count, moment, printable, span

_SPECIAL = re.compile(r"([\\`*_\[\]#|~$])")

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
"""`@` would call somebody; what is written as an entity is never markup."""

MOST_WARNINGS = 20

HEADING = "### infersiege: "
"""With which it begins."""


def escaped(text: str) -> str:
    """`text` on one line, as text: no markup, no table cell, no mention of anybody comes out of it."""
    text = _SPECIAL.sub(r"\\\1", printable(text))
    return "".join(_ENTITIES.get(character, character) for character in text)


def markdown(summary: Summary) -> str:
    """Verdict, why, a table of all rules, and what the run was; ends with a line break.

    Rules of the plan, and built-in ones that did not pass, stand open; the other built-in ones are folded.
    """
    lines = [f"{HEADING}{rule_words.conclusion(summary)} · {escaped(summary.name)}", ""]
    if summary.emulated:
        lines += [
            "> **EMULATED**: the target was infersiege's own emulator; the figures say nothing about hardware",
            "",
        ]
    if summary.interrupted and summary.verdict is not None:
        lines += [f"The run was stopped before its end; what was measured: **{summary.verdict.value}**.", ""]
    tally = rule_words.tally(summary.rules)
    lines += [f"{tally[:1].upper()}{tally[1:]}." if tally else "No rule was held against this run.", ""]
    lines += [f"- **invalid**: {escaped(reason)}" for reason in summary.invalid]
    for rule in rule_words.worst_first(summary.rules):
        word = "warning" if rule.severity == "warn" else rule.verdict.value
        lines.append(f"- **{word}**: {escaped(rule.name)}: {escaped(rule_words.why(rule, summary))}")
    lines += [""] if lines[-1] else []
    folded = [rule for rule in summary.rules if rule.built_in and rule.verdict is Verdict.PASS and not rule.remark]
    shown = [rule for rule in summary.rules if rule not in folded]
    lines += _table(shown)
    if folded:
        lines += ["<details><summary>Built-in rules that passed</summary>", "", *_table(folded), "</details>", ""]
    if summary.warnings:
        lines += [f"<details><summary>Warnings: {len(summary.warnings)}</summary>", ""]
        lines += [f"- {escaped(warning)}" for warning in summary.warnings[:MOST_WARNINGS]]
        rest = len(summary.warnings) - MOST_WARNINGS
        lines += [f"- and {rest} more, see the report"] if rest > 0 else []
        lines += ["", "</details>", ""]
    took = span(max(summary.ended_ns - summary.started_ns, 0))
    counts = summary.counts
    lines.append(
        f"Run `{re.sub('[^0-9A-Za-z._-]', '', summary.run_id)}` of {moment(summary.started_ns)}, {took}: "
        f"{counts.started:,} turns sent, {counts.ok:,} succeeded, {counts.failed:,} failed. Exit code "
        f"{summary.exit_code}."
    )
    return "\n".join(lines) + "\n"


def _table(rules: Sequence[RuleResult]) -> list[str]:
    if not rules:
        return []
    compared = any(rule.baseline is not None for rule in rules)
    head = ["verdict", "rule", "window", "n", "value", "95 % range", "limit"]
    head += ["baseline", "change"] if compared else []
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * 3}{'---:|' * (len(head) - 3)}"]
    for rule in rules:
        verdict = rule.verdict.value if rule.verdict is Verdict.PASS else f"**{rule.verdict.value}**"
        name = escaped(rule.name) + (" (warns only)" if rule.severity == "warn" else "")
        cells = [verdict, name, escaped(rule_words.window(rule)), count(rule.n)]
        cells += [rule_words.value(rule), _plain(rule_words.extent(rule)), _plain(rule_words.limit(rule))]
        cells += [rule_words.baseline(rule), _plain(rule_words.change(rule))] if compared else []
        rows.append(f"| {' | '.join(cells)} |")
    return [*rows, ""]


def _plain(text: str) -> str:
    """Figures of ours: only `<` and `>` could be markup."""
    return text.replace("<", "&lt;").replace(">", "&gt;")
