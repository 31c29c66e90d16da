"""Annotations of GitHub Actions: a line on standard output each, which the job's page and the pull request show.

The form is that of the workflow commands `::error title=…::message`
(https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
"""

from __future__ import annotations

from collections.abc import Iterator

from infersiege.records import Summary, Verdict
from infersiege.report import rule_words
from infersiege.report.numbers import printable

MOST = 10
"""Annotations of one kind and step that GitHub shows; what comes after is dropped without a word."""


def github_annotations(summary: Summary) -> Iterator[str]:
    """Lines without their line break: an error for each reason and rule that decides, a warning for each that warns.

    At most ten of a kind: the last one then says how many more there are. A notice when all is well.
    """
    errors = [("run invalid", reason) for reason in summary.invalid]
    warnings = []
    for rule in rule_words.worst_first(summary.rules):
        said = (f"{rule.verdict.value}: {rule.name}", rule_words.why(rule, summary))
        if rule.severity == "warn":
            warnings.append(said)
        elif rule.verdict is not Verdict.INVALID:
            errors.append(said)
    if summary.interrupted:
        errors.insert(0, ("interrupted", "the run was stopped before its end"))
    yield from _shown("error", errors)
    yield from _shown("warning", warnings)
    if not errors:
        emulated = " (emulated: says nothing about hardware)" if summary.emulated else ""
        conclusion = f"{rule_words.conclusion(summary)}: {rule_words.tally(summary.rules)}{emulated}"
        yield _line("notice", printable(summary.name), conclusion)


def _shown(kind: str, found: list[tuple[str, str]]) -> Iterator[str]:
    rest = len(found) - MOST
    for title, message in found[: MOST - 1] if rest > 0 else found:
        yield _line(kind, title, message)
    if rest > 0:
        yield _line(kind, f"and {rest + 1} more", "the summary of the job and junit.xml have them all")


def _line(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_property(f'infersiege: {title}')}::{_data(message)}"


def _data(text: str) -> str:
    """As GitHub's own toolkit writes it: a line break would end the command, and begin another one."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
