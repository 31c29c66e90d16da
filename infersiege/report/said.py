"""Answers that were kept (`[quality] keep_answers`) in one line: for a terminal, JUnit and Markdown."""

from __future__ import annotations

from infersiege.records import KeptAnswer, RuleResult, Summary, Verdict
from infersiege.redact import scrub
from infersiege.report.numbers import printable

LONGEST_SHORT = 200
"""Characters of what stands in a rule's result. Longer ones are in the report."""

_OF_ALL = frozenset({None, "quality"})
"""Scenarios of rules that are over all checked prompts."""


def said(answer: KeptAnswer) -> str:
    """`"Rome"`, `"One moment.", calls weather {"city": "Rome"}`, `nothing`; on one line."""
    text = printable(scrub(answer.text))
    parts = [f'"{text}"'] if text else []
    parts += [f"calls {printable(scrub(call))}" for call in answer.tool_calls]
    return ", ".join(parts) or "nothing"


def asked(answer: KeptAnswer) -> str:
    """`{"contains": "Paris"}`; several with `and` between them; on one line."""
    return " and ".join(printable(scrub(check)) for check in answer.asked)


def cut(line: str, most: int) -> str:
    """At most so many characters, with a mark at the end where it was longer."""
    return line if len(line) <= most else f"{line[: most - 1]}…"


def first_wrong(rule: RuleResult, summary: Summary) -> str | None:
    """What the first answer said that a rule on quality did not pass for, if that is short.

    None: it passed, it is over a part of the run only, no answer was kept, or it is too long to stand in a line.
    """
    kinds = {"quality": True, "unscored": False}
    whole = rule.channel is None and rule.stage is None and rule.scenario in _OF_ALL
    if rule.metric not in kinds or rule.verdict is Verdict.PASS or not whole:
        return None
    for wrong in summary.wrong_answers:
        for one in wrong.examples:
            if one.scored == kinds[rule.metric]:
                words = f"first of {wrong.prompt}: {asked(one.answer)} was asked, {said(one.answer)} was said"
                return words if len(words) <= LONGEST_SHORT else None
    return None
