"""What programs read of a gated run: JUnit XML (one suite, one test case per rule) and gate.json."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from infersiege.records import GateFile, RuleResult, Summary, Verdict
from infersiege.report import rule_words
from infersiege.report.numbers import ABSENT, count
from infersiege.report.said import first_wrong

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML 1.0 document may hold, not even escaped."""


def junit_xml(summary: Summary, rules: Sequence[RuleResult]) -> str:
    """The document, with its declaration, ready to be written as UTF-8.

    A failed rule is a `failure`; `no data` and `invalid` are an `error` of that type. A rule of severity `warn` is a
    passed case that says in `system-out` what it saw.
    """
    counted = [rule for rule in rules if rule.severity != "warn"]
    failures = sum(rule.verdict is Verdict.FAIL for rule in counted)
    errors = sum(rule.verdict in (Verdict.NO_DATA, Verdict.INVALID) for rule in counted)
    totals = {"tests": str(len(rules)), "failures": str(failures), "errors": str(errors)}
    seconds = f"{max(summary.ended_ns - summary.started_ns, 0) / 1e9:.3f}"
    started = datetime.fromtimestamp(summary.started_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    root = ET.Element("testsuites", {"name": "infersiege", "time": seconds, **totals})
    about = {"name": _clean(summary.name), "time": seconds, "timestamp": started, **totals, "skipped": "0"}
    suite = ET.SubElement(root, "testsuite", about)
    properties = ET.SubElement(suite, "properties")
    _property(properties, "run_id", summary.run_id)
    _property(properties, "emulated", "true" if summary.emulated else "false")
    _property(properties, "interrupted", "true" if summary.interrupted else "false")
    _property(properties, "verdict", rule_words.conclusion(summary))
    _property(properties, "exit_code", str(summary.exit_code))
    if summary.stopped_early is not None:
        _property(properties, "stopped_early", summary.stopped_early.words)
    for reason in summary.invalid:
        _property(properties, "invalid", reason)
    for warning in summary.warnings:
        _property(properties, "warning", warning)
    for note in dict.fromkeys(note for rule in rules for note in rule.notes):
        _property(properties, "note", note)
    seen: Counter[tuple[str, str]] = Counter()
    for rule in rules:
        # Without the run's name in it, so that a CI system sees the same case in each run.
        classname = _clean("infersiege.builtin" if rule.built_in else f"infersiege.{rule.scenario or 'run'}")
        name = _clean(rule.name)
        seen[classname, name] += 1
        again = seen[classname, name]
        case = {"name": name if again == 1 else f"{name} ({again})", "classname": classname, "time": "0"}
        _judged(ET.SubElement(suite, "testcase", case), rule, summary)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def gate_file(summary: Summary) -> GateFile:
    """gate.json of a summary with its verdict."""
    return GateFile(
        run_id=summary.run_id,
        name=summary.name,
        emulated=summary.emulated,
        interrupted=summary.interrupted,
        stopped_early=summary.stopped_early,
        verdict=summary.verdict,
        exit_code=summary.exit_code,
        invalid=summary.invalid,
        warnings=summary.warnings,
        rules=summary.rules,
    )


def _judged(case: ET.Element, rule: RuleResult, summary: Summary) -> None:
    facts = [*_facts(rule), *filter(None, [first_wrong(rule, summary)]), *(f"note: {note}" for note in rule.notes)]
    if rule.verdict is not Verdict.PASS and rule.severity != "warn":
        kind = "failure" if rule.verdict is Verdict.FAIL else "error"
        found = ET.SubElement(case, kind, type=rule.verdict.value, message=_clean(rule.detail))
        reasons = summary.invalid if rule.verdict is Verdict.INVALID else ()
        found.text = _clean("\n".join((*reasons, *facts)))
        return
    said = rule.detail if rule.verdict is Verdict.PASS else f"warning, {rule.verdict.value}: {rule.detail}"
    ET.SubElement(case, "system-out").text = _clean("\n".join((said, *facts)))


def _facts(rule: RuleResult) -> list[str]:
    """One line for each figure that there is: value, values behind it, range, limit, window, baseline, change."""
    facts = [("value", rule_words.value(rule)), ("n", count(rule.n)), ("needed", count(rule.needed))]
    facts += [("95 % range", rule_words.extent(rule)), ("limit", rule_words.limit(rule))]
    facts += [("window", rule_words.window(rule)), ("baseline", rule_words.baseline(rule))]
    facts += [("change", rule_words.change(rule)), ("p", ABSENT if rule.p is None else f"{rule.p:.3g}")]
    return [f"{name}: {said}" for name, said in facts if said != ABSENT]


def _property(properties: ET.Element, name: str, value: str) -> None:
    ET.SubElement(properties, "property", name=name, value=_clean(value))


def _clean(text: str) -> str:
    """Without the characters that would make the document unreadable."""
    return _NOT_XML.sub("", text)
