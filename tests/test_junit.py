"""JUnit XML: what CI systems read must say the same as the gate."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import metrics_turns as make
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege import gate
from infersiege.metrics.summary import summarise
from infersiege.plan.schema import Slo
from infersiege.records import RuleResult, Summary, Verdict
from infersiege.report.junit import junit_xml

SLOS = (
    Slo(metric="ttft", stat="p50", at_most=100.0, scenario="chat"),
    Slo(metric="ttft", stat="p50", at_most=99.0),
    Slo(metric="cache_share", at_least=0.5),
    Slo(metric="ttft", stat="p50", at_most=98.0, severity="warn"),
)


def judged(**changes: object) -> tuple[Summary, tuple[RuleResult, ...]]:
    facts = make.facts(limits=gate.request_limits(SLOS), cuts=gate.cuts(SLOS), **changes)
    summary = summarise(make.many(20, flags=("emulated",)), facts)
    return summary, gate.judge(SLOS, summary)


def suite_of(summary: Summary, rules: tuple[RuleResult, ...]) -> ET.Element:
    root = ET.fromstring(junit_xml(summary, rules))
    assert root.tag == "testsuites"
    (suite,) = root.findall("testsuite")
    return suite


def test_one_case_per_rule_with_its_verdict() -> None:
    suite = suite_of(*judged())
    found = [(case.get("name"), [child.tag for child in case]) for case in suite.findall("testcase")]
    assert found == [
        ("some turn succeeds", ["system-out"]),
        ("some output tokens arrive", ["system-out"]),
        ("the load is delivered", ["system-out"]),
        ("the client keeps up", ["system-out"]),
        ("no worker is lost", ["system-out"]),
        ("error_share <= 5 %", ["system-out"]),
        ("chat: ttft p50 <= 100 ms", ["system-out"]),
        ("ttft p50 <= 99 ms", ["failure"]),
        ("cache_share >= 50 %", ["error"]),
        ("ttft p50 <= 98 ms", ["system-out"]),
    ]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["10", "1", "1", "0"]
    error = suite.find("testcase/error")
    assert error is not None and error.get("type") == "no data"
    failure = suite.find("testcase/failure")
    assert failure is not None and "100 ms of 20 values" in (failure.get("message") or "")
    assert (suite.findall("testcase")[-1].findtext("system-out") or "").startswith("warning, fail:")


def test_an_invalid_run_is_an_error_in_every_case() -> None:
    suite = suite_of(*judged(invalid=("worker w2 was lost", "client-bound")))
    errors = suite.findall("testcase/error")
    assert len(errors) == 8, "all but what only warns: a rule of the plan, and that nobody knows the load"
    assert {error.get("type") for error in errors} == {"invalid"}
    assert (errors[0].text or "").startswith("worker w2 was lost\nclient-bound\nvalue: 20 turns\nn: 20")
    assert suite.get("errors") == "8"


def test_the_suite_says_which_run_it_was() -> None:
    suite = suite_of(*judged(warnings=("started dirty",)))
    told = {item.get("name"): item.get("value") for item in suite.findall("properties/property")}
    assert (told["run_id"], told["emulated"], told["interrupted"]) == ("run-1", "true", "false")
    assert (suite.get("name"), suite.get("time"), suite.get("timestamp")) == ("a run", "12.000", "2027-01-15T08:00:00")
    warnings = [item.get("value") for item in suite.findall("properties/property") if item.get("name") == "warning"]
    assert "started dirty" in warnings


def test_case_names_do_not_depend_on_the_run() -> None:
    summary, rules = judged()
    other = msgspec.structs.replace(summary, name="another run", run_id="run-2")
    names = [[case.attrib for case in suite_of(one, rules).iter("testcase")] for one in (summary, other)]
    assert names[0] == names[1]


@pytest.mark.parametrize("bad", ["\x00", "\x1b[31m", "\x0b", "\ufffe", "\ud800"])
def test_characters_that_xml_forbids_are_dropped(bad: str) -> None:
    summary, rules = judged(name=f"run{bad}X & <more>", invalid=(f"server said {bad}Y",))
    document = junit_xml(summary, rules)
    document.encode("utf-8")
    suite = ET.fromstring(document).find("testsuite")
    assert suite is not None
    assert (suite.get("name") or "").startswith("run") and (suite.get("name") or "").endswith("X & <more>")


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=30))
def test_any_detail_makes_a_readable_document(text: str) -> None:
    summary, rules = judged()
    failing = next(rule for rule in rules if rule.verdict is Verdict.FAIL)
    odd = msgspec.structs.replace(failing, detail=text, name=text or "x", scenario=text or None)
    assert odd.verdict is Verdict.FAIL
    assert suite_of(summary, (odd,)).find("testcase/failure") is not None
