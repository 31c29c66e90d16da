"""The verdict as GitHub-flavoured Markdown: for the summary of a CI job or a comment on a pull request.

A comment on GitHub takes 65,536 characters, so no document is longer than MOST_BYTES: what matters least is folded
away, then left out, and the text says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import msgspec

from infersiege.errors import ExitCode, strongest
from infersiege.gate.relative import COMPARABLE, own_rules, without_baseline_rules
from infersiege.records import RuleResult, Summary, Verdict
from infersiege.report import rule_words
from infersiege.report.numbers import count, figure, moment, printable, span
from infersiege.report.said import first_wrong

_SPECIAL = re.compile(r"([\\`*_\[\]#|~$])")

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
"""`@` would call somebody; what is written as an entity is never markup."""

MOST_BYTES = 60_000
MOST_WARNINGS = 20
LONGEST_LINE = 1_000
"""Characters of a reason."""

HEADING = "### infersiege: "
"""With which it begins."""


class _Part(NamedTuple):
    """Some lines, and what stands in their place where there is no room for them."""

    lines: list[str]
    short: list[str]
    rank: int = 0
    """The highest goes first; 0 stays."""


def escaped(text: str) -> str:
    """`text` on one line, as text: no markup, no table cell, no mention of anybody comes out of it."""
    text = _SPECIAL.sub(r"\\\1", printable(text))
    return "".join(_ENTITIES.get(character, character) for character in text)


def markdown(summary: Summary) -> str:
    """Verdict, why, a table of all rules, and what the run was; ends with a line break.

    Rules of the plan, and built-in ones that did not pass, stand open; the other built-in ones are folded.
    """
    head = [f"{HEADING}{rule_words.conclusion(summary)} · {escaped(summary.name)}", "", *_emulated([summary])]
    tally = rule_words.tally(summary.rules)
    head += [f"{tally[:1].upper()}{tally[1:]}." if tally else "No rule was held against this run.", ""]
    parts = [_Part(head, head), *_judged(summary)]
    if summary.warnings:
        said = f"Warnings: {len(summary.warnings)}"
        parts.append(_Part(_folded(said, _listed(summary.warnings)), [f"{said}, see the report.", ""], 6))
    return _fitted([*parts, _Part([_what(summary)], [_what(summary)])])


def series_markdown(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    """The same of several gated runs: the verdict on all, one table of what they were held to together, and a line for
    each run with its own rules folded below it. `names`: of the runs, as the reader knows them."""
    strong = strongest({ExitCode(one.exit_code) for one in summaries})
    first = next(one for one in summaries if one.exit_code == strong)
    compared = [rule for rule in first.rules if rule not in own_rules(first)]
    if not any(rule.name == COMPARABLE for rule in compared):
        compared = []
    own = [without_baseline_rules(one) if compared else one for one in summaries]
    head = [f"{HEADING}{rule_words.conclusion(first)} · {escaped(first.name)} · {len(names)} runs", ""]
    head += _emulated(summaries)
    parts = [_Part(head, head)]
    if compared:
        shown = msgspec.structs.replace(first, rules=tuple(compared), invalid=(), interrupted=False)
        parts += _judged(shown)
    else:
        table = _over_runs(own)
        parts.append(_Part(table, [f"The rules of these runs: {len(table)} lines, see the reports.", ""], 4))
    tally = Counter(rule_words.conclusion(one).lower() for one in own)
    said = f"Each run by itself: {', '.join(f'{many} {word}' for word, many in tally.items())}."
    parts.append(_Part([said, ""], [said, ""]))
    parts += [_run(name, one) for name, one in zip(names, own, strict=True)]
    last = [f"Exit code {int(strong)}."]
    return _fitted([*parts, _Part(last, last)])


def _judged(summary: Summary) -> list[_Part]:
    """Why, what to know of it, and the tables."""
    parts = []
    for rule in summary.rules:
        if rule.name == COMPARABLE and rule.verdict is Verdict.PASS:
            line = f"Compared: {_short(rule.detail)}."
            parts.append(_Part([line, ""], [line, ""]))
    if why := _why(summary):
        parts.append(_Part([*why, ""], [f"Reasons: {len(why)}, see the report.", ""], 3))
    folded = [rule for rule in summary.rules if rule.built_in and rule.verdict is Verdict.PASS and not rule.remark]
    folded = [rule for rule in folded if rule.name != COMPARABLE]
    table = _table([rule for rule in summary.rules if rule not in folded])
    parts.append(_Part(table, [f"The table of {len(summary.rules)} rules is too long to stand here.", ""], 5))
    notes = list(dict.fromkeys(note for rule in summary.rules for note in rule.notes))
    if notes:
        said = f"Notes on the comparison: {len(notes)}"
        parts.append(_Part(_folded(said, _listed(notes)), [f"{said}, see the report.", ""], 6))
    if folded:
        passed = f"Built-in rules that passed: {len(folded)}."
        parts.append(_Part(_folded("Built-in rules that passed", _table(folded)), [passed, ""], 7))
    return parts


def _why(summary: Summary) -> list[str]:
    """Reasons of an invalid run, then a line for each sentence that says why rules did not pass: many may share it."""
    lines = [f"- **invalid**: {_short(reason)}" for reason in summary.invalid]
    sharing: dict[tuple[str, str], list[str]] = {}
    for rule in rule_words.worst_first(summary.rules):
        word = "warning" if rule.severity == "warn" else rule.verdict.value
        said = "; ".join(filter(None, (rule_words.why(rule, summary), first_wrong(rule, summary))))
        sharing.setdefault((word, said), []).append(rule.name)
    for (word, said), names in sharing.items():
        lines.append(f"- **{word}**: {_short('; '.join(names))}: {_short(said)}")
    return lines


def _run(name: str, summary: Summary) -> _Part:
    """One run of several: a line, and its rules behind it."""
    missed = [one.name for one in rule_words.worst_first(summary.rules) if one.severity != "warn"]
    word = rule_words.conclusion(summary)
    line = f"{name}: {word} · {rule_words.tally(summary.rules)}" + (f": {'; '.join(missed)}" if missed else "")
    why = _why(summary)
    inside = [*why, *([""] if why else []), *_table(summary.rules), _what(summary)]
    return _Part(_folded(line, inside), [f"- {_short(line)}"], 9 if summary.verdict is Verdict.PASS else 8)


def _over_runs(summaries: Sequence[Summary]) -> list[str]:
    """A row for each rule: how often it had which verdict, and between which values."""
    rows = ["| rule | verdicts | values | limit |", "|---|---|---:|---:|"]
    names = dict.fromkeys(rule.name for one in summaries for rule in one.rules)
    for name in names:
        found = [rule for one in summaries for rule in one.rules if rule.name == name]
        verdicts = Counter(rule.verdict for rule in found)
        if found[0].built_in and not any(map(rule_words.must_be_read, found)):
            continue
        told = ", ".join(
            f"{many} {verdict.value}" if verdict is Verdict.PASS else f"**{many} {verdict.value}**"
            for verdict, many in verdicts.items()
        )
        known = [rule for rule in found if rule.value is not None]
        ends = [rule_words.value(pick(known, key=lambda rule: rule.value or 0.0)) for pick in (min, max) if known]
        values = " … ".join(dict.fromkeys(ends)) or figure(None, "")
        rows.append(f"| {escaped(name)} | {told} | {_plain(values)} | {_plain(rule_words.limit(found[0]))} |")
    return [*rows, ""] if len(rows) > 2 else []


def _emulated(summaries: Sequence[Summary]) -> list[str]:
    lines = []
    if any(one.emulated for one in summaries):
        lines += [
            "> **EMULATED**: the target was infersiege's own emulator; the figures say nothing about hardware",
            "",
        ]
    if len(summaries) == 1 and summaries[0].interrupted and summaries[0].verdict is not None:
        lines += [f"The run was stopped before its end; what was measured: **{summaries[0].verdict.value}**.", ""]
    return lines


def _what(summary: Summary) -> str:
    took = span(max(summary.ended_ns - summary.started_ns, 0))
    counts = summary.counts
    return (
        f"Run `{re.sub('[^0-9A-Za-z._-]', '', summary.run_id)}` of {moment(summary.started_ns)}, {took}: "
        f"{counts.started:,} turns sent, {counts.ok:,} succeeded, {counts.failed:,} failed. Exit code "
        f"{summary.exit_code}."
    )


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    # What stands beside a tag is HTML: a backslash would be seen there.
    said = escape(_bounded(printable(title)), quote=False).replace("@", _ENTITIES["@"])
    return [f"<details><summary>{said}</summary>", "", *lines, *([""] if lines and lines[-1] else []), "</details>", ""]


def _listed(sentences: Sequence[str]) -> list[str]:
    rest = len(sentences) - MOST_WARNINGS
    lines = [f"- {_short(sentence)}" for sentence in sentences[:MOST_WARNINGS]]
    return [*lines, f"- and {rest} more, see the report"] if rest > 0 else lines


def _short(text: str) -> str:
    return escaped(_bounded(text))


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"


def _fitted(parts: Sequence[_Part]) -> str:
    """All parts; of a longer document those with the highest rank, the last of them first, as their short forms."""
    shown = [part.lines for part in parts]
    order = sorted((place for place, part in enumerate(parts) if part.rank), key=lambda at: (-parts[at].rank, -at))
    size = sum(map(_size, shown))
    for place in order:
        if size <= MOST_BYTES:
            break
        size += _size(parts[place].short) - _size(shown[place])
        shown[place] = parts[place].short
    if size <= MOST_BYTES:
        return "\n".join(line for lines in shown for line in lines) + "\n"
    return _cut([line for lines in shown for line in lines])


def _size(lines: Sequence[str]) -> int:
    """Bytes, with the ends of the lines."""
    return sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)


def _cut(lines: Sequence[str]) -> str:
    """So many runs, or such long names, that not even a line of each has room. No line of these opens anything."""
    last = "The rest had no room here: see junit.xml."
    kept: list[str] = []
    left = MOST_BYTES - len(last) - 2
    for line in lines:
        left -= len(line.encode("utf-8", "replace")) + 1
        if left < 0:
            break
        kept.append(line)
    return "\n".join([*kept, "", last]) + "\n"


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
