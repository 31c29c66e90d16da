"""A verdict says the same as exit code, JUnit, gate.json, Markdown, annotations and table."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import metrics_turns as make
import msgspec
import pytest
import xmlschema
from baseline_runs import RELATIVE, side, summary_of
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from infersiege import gate
from infersiege.cli.announce import announce, check_markdown
from infersiege.errors import UsageError
from infersiege.gate.relative import against, with_baseline
from infersiege.metrics.summary import summarise
from infersiege.plan.schema import Slo
from infersiege.records import RuleResult, StoppedEarly, Summary, Verdict
from infersiege.report.annotations import MOST, github_annotations
from infersiege.report.junit import gate_file, junit_xml
from infersiege.report.markdown import MOST_BYTES, escaped, markdown, series_markdown
from infersiege.report.schema import schemas
from infersiege.report.tables import print_rules

XSD = xmlschema.XMLSchema(str(Path(__file__).parent / "data" / "junit.xsd"))

HOLDS = Slo(metric="ttft", stat="p50", at_most=150.0)
BROKEN = Slo(metric="ttft", stat="p90", at_most=50.0)
UNKNOWN = Slo(metric="cache_share", at_least=0.5)
WARNS = msgspec.structs.replace(BROKEN, severity="warn", stat="p50")
WARNS_OF_NOTHING = msgspec.structs.replace(UNKNOWN, severity="warn", at_least=0.6)
EARLY = StoppedEarly(place=0, at_ns=make.T0, past=40, of=60, allowed_share=0.1)


def gated(
    slos: Sequence[Slo], *, invalid: tuple[str, ...] = (), interrupted: bool = False, early: StoppedEarly | None = None
) -> Summary:
    facts = make.facts(limits=gate.request_limits(slos), cuts=gate.cuts(slos), invalid=invalid, interrupted=interrupted)
    summary = msgspec.structs.replace(summarise(make.many(60), facts), stopped_early=early)
    rules = gate.judge(slos, summary)
    return msgspec.structs.replace(
        summary,
        rules=rules,
        verdict=gate.overall(summary, rules),
        exit_code=int(gate.exit_code(summary, rules, gated=True)),
    )


# ------------------------------------------------------------------------------------ every combination of verdicts

CODES = {
    # (fails, lacks data, invalid, interrupted): exit code
    (False, False, False, False): 0,
    (True, False, False, False): 1,
    (False, True, False, False): 5,
    (True, True, False, False): 5,
    (False, False, True, False): 3,
    (True, False, True, False): 3,
    (False, True, True, False): 3,
    (True, True, True, False): 3,
    (False, False, False, True): 130,
    (True, False, False, True): 130,
    (False, True, False, True): 130,
    (True, True, False, True): 130,
    (False, False, True, True): 130,
    (True, False, True, True): 130,
    (False, True, True, True): 130,
    (True, True, True, True): 130,
}

FORMS = {Verdict.PASS: "system-out", Verdict.FAIL: "failure", Verdict.NO_DATA: "error", Verdict.INVALID: "error"}


@pytest.mark.parametrize("warn", [(), (WARNS,), (WARNS_OF_NOTHING,), (WARNS, WARNS_OF_NOTHING)], ids=len)
@pytest.mark.parametrize(("case", "code"), CODES.items())
def test_gt_04_every_combination_of_verdicts_has_its_code_and_its_junit(
    case: tuple[bool, bool, bool, bool], code: int, warn: tuple[Slo, ...]
) -> None:
    fails, lacks, invalid, interrupted = case
    slos = (HOLDS, *([BROKEN] if fails else []), *([UNKNOWN] if lacks else []), *warn)
    summary = gated(slos, invalid=("worker w2 was lost",) if invalid else (), interrupted=interrupted)
    assert summary.exit_code == code

    document = junit_xml(summary, summary.rules)
    XSD.validate(document)
    suite = ET.fromstring(document).find("testsuite")
    assert suite is not None
    counted = Counter(FORMS[rule.verdict] if rule.severity != "warn" else "system-out" for rule in summary.rules)
    assert Counter(child.tag for case_ in suite.iter("testcase") for child in case_) == counted
    assert (suite.get("failures"), suite.get("errors")) == (str(counted["failure"]), str(counted["error"]))
    red = bool(counted["failure"] or counted["error"])
    assert red == (code in (1, 3, 5) or (code == 130 and (fails or lacks or invalid))), "CI shows what the code says"

    told = gate_file(summary)
    validator = jsonschema.Draft202012Validator(schemas()["gate.schema.json"])
    validator.validate(json.loads(msgspec.json.encode(told)))
    assert (told.exit_code, told.verdict) == (code, summary.verdict)
    errors = [line for line in github_annotations(summary) if line.startswith("::error ")]
    assert bool(errors) == (code != 0)


@pytest.mark.parametrize(
    ("slos", "invalid", "code", "verdict", "reason"),
    [
        ((BROKEN, HOLDS), (), 1, Verdict.FAIL, "the rule that stopped it"),
        ((BROKEN, UNKNOWN), (), 1, Verdict.FAIL, "what had no time to be measured hides nothing"),
        ((HOLDS, HOLDS), (), 1, Verdict.FAIL, "also where the figure then says otherwise"),
        ((BROKEN, HOLDS), ("client-bound: w1",), 3, Verdict.INVALID, "a run that can't be trusted shows nothing"),
    ],
)
def test_a_run_that_was_stopped_early_has_failed(
    slos: tuple[Slo, ...], invalid: tuple[str, ...], code: int, verdict: Verdict, reason: str
) -> None:
    summary = gated(slos, early=EARLY, invalid=invalid)
    assert (summary.exit_code, summary.verdict) == (code, verdict), reason
    assert "stopped early after 60 turns: 40 of them (66.7 %) were past the limit" in summary.rules[-2].detail
    assert "stopped early" in summary.rules[-1].remark
    XSD.validate(junit_xml(summary, summary.rules))
    assert "stopped early after 60 turns" in markdown(summary)


def test_two_rules_of_one_name_are_two_cases() -> None:
    summary = gated((HOLDS, msgspec.structs.replace(HOLDS, min_samples=10)))
    document = junit_xml(summary, summary.rules)
    XSD.validate(document)
    names = [case.get("name") for case in ET.fromstring(document).iter("testcase")]
    assert names[-2:] == ["ttft p50 <= 150 ms", "ttft p50 <= 150 ms (2)"]


def test_what_must_be_read_with_a_comparison_is_in_junit_too() -> None:
    summary = against_a_baseline(5, 5)[0]
    document = junit_xml(summary, summary.rules)
    XSD.validate(document)
    suite = ET.fromstring(document).find("testsuite")
    assert suite is not None
    notes = ["GPU <b> of | somebody", "another note"]
    assert [one.get("value") for one in suite.iter("property") if one.get("name") == "note"] == notes
    (said,) = (one.findtext("system-out") for one in suite.iter("testcase") if "comparable" in (one.get("name") or ""))
    assert said is not None and said.splitlines()[-2:] == [f"note: {note}" for note in notes]


def test_the_schema_of_junit_refuses_what_ci_systems_misread() -> None:
    summary = gated((HOLDS, BROKEN))
    document = junit_xml(summary, summary.rules)
    for wrong in (
        document.replace("<failure ", "<fail ").replace("</failure>", "</fail>"),
        document.replace('type="fail"', 'type="failed"'),
        document.replace(' errors="0"', ""),
        document.replace('timestamp="2027', 'timestamp="yesterday'),
        document.replace("p90", "p50").replace("50 ms", "150 ms").replace("1150", "150"),
    ):
        assert wrong != document
        with pytest.raises(xmlschema.XMLSchemaException):
            XSD.validate(wrong)


def test_a_case_has_all_its_figures() -> None:
    summary = gated((HOLDS, BROKEN))
    found = ET.fromstring(junit_xml(summary, summary.rules)).find("testsuite/testcase/failure")
    assert found is not None and (found.text or "").splitlines() == [
        "value: 100 ms",
        "n: 60",
        "needed: 29",
        "95 % range: 100 ms … 100 ms",
        "limit: <= 50.0 ms",
        "window: steady 10 s",
    ]


# ----------------------------------------------------------------------------------------------------------- the table


def shown(summary: Summary, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        print_rules(summary, console)
    return captured.get()


def compared(summary: Summary) -> Summary:
    """As `gate --baseline` leaves it."""
    extra = RuleResult(
        name="tpot p50 at most 10 % worse than the baseline",
        metric="tpot",
        stat="p50",
        scenario=None,
        channel=None,
        stage=None,
        n=5,
        value=22.3,
        unit="ms",
        at_most=None,
        at_least=None,
        verdict=Verdict.FAIL,
        detail="slower",
        relative_max=0.1,
        baseline=20.3,
        change=0.101,
        change_low=0.094,
        change_high=0.109,
        p=0.004,
    )
    return msgspec.structs.replace(summary, rules=(*summary.rules, extra))


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_table_has_value_n_range_and_what_it_is_compared_with(width: int) -> None:
    text = shown(compared(gated((HOLDS, BROKEN))), width)
    flowing = " ".join(text.split())
    for said in ("100 ms", "100 ms … 100 ms", "22.3 ms", "20.3 ms", "+10.1 % (+9.4 … +10.9 %)", "verdict: FAIL"):
        assert said in flowing, text
    assert max(map(len, text.splitlines())) <= width


def test_why_stands_below_the_table_of_all_that_did_not_pass() -> None:
    text = shown(gated((HOLDS, BROKEN, UNKNOWN)), 100)
    assert "FAIL ttft p90 <= 50 ms: 100 ms of 60 values" in text
    assert "NO DATA cache_share >= 50 %: the server does not tell cached tokens" in text
    assert "Rules, steady 10 s" in text


@pytest.mark.parametrize("width", [50, 100, 160], ids=["one below the other", "a table", "a wide table"])
def test_what_is_said_of_several_rules_stands_there_once(width: int) -> None:
    """Two rules have no verdict for the same reason, and one for a reason of its own."""
    rules = (*RELATIVE, Slo(metric="ttft", stat="p99_9", relative_max=0.1))
    text = shown(with_baseline(summary_of(1.0), against(rules, side("new", runs=1), side("base", runs=1))), width)
    flowing = " ".join(text.split())
    assert flowing.count("1 against 1 runs tell nothing of how much runs differ") == 1, text
    first = "NO DATA ttft p50 at most 5 % worse than the baseline"
    assert f"{first} and 1 more rule: 1 against 1 runs" in flowing, text
    assert "not measured in 1 of 1 runs of the baseline" in flowing, "what is said of one rule stands beside it"


# ------------------------------------------------------------------------------------------------------------ Markdown


def test_markdown_has_the_verdict_why_and_every_rule() -> None:
    summary = compared(gated((HOLDS, BROKEN, WARNS)))
    text = markdown(summary)
    assert text.startswith("### infersiege: FAIL · a run\n")
    assert "2 failed" in text and "1 only warn" in text
    assert "- **fail**: ttft p90 &lt;= 50 ms: 100 ms of 60 values" in text
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.count(" | ") for line in table if "baseline" in table[0]} >= {8}
    for rule in summary.rules:
        assert any(escaped(rule.name) in line for line in table), rule.name
    assert "| +10.1 % (+9.4 … +10.9 %) |" in text


@given(st.text(max_size=40))
def test_no_name_makes_markup_of_itself(text: str) -> None:
    made = escaped(text)
    assert "\n" not in made and "\r" not in made
    assert not re.search(r"[<>@]", made)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`*_\[\]~$#]", re.sub(r"&#64;", "", made)), made


def test_a_hostile_name_stays_in_its_cell() -> None:
    summary = gated((msgspec.structs.replace(HOLDS, scenario="a|b\n@all <img src=x> [x](http://y) `z`"),))
    rows = [line for line in markdown(summary).splitlines() if "all" in line and line.startswith("|")]
    assert len(rows) == 1 and len(re.findall(r"(?<!\\)\|", rows[0])) == 8
    assert "@all" not in rows[0] and "<img" not in rows[0]


def against_a_baseline(runs: int, base: int) -> list[Summary]:
    """Gated summaries of one side, as `gate A B … --baseline` leaves them."""
    candidate, baseline = side("new", 1.1, runs=runs), side("base", runs=base)
    found = against(RELATIVE, candidate, baseline)
    first = msgspec.structs.replace(found.rules[0], notes=("GPU <b> of | somebody", "another note"))
    found = msgspec.structs.replace(found, rules=(first, *found.rules[1:]))
    return [with_baseline(gated((HOLDS,)), found) for _ in range(runs)]


def test_a_series_has_one_table_of_what_it_was_held_to_and_a_line_for_each_run() -> None:
    summaries = against_a_baseline(5, 5)
    text = series_markdown([f"run-{n}" for n in range(1, 6)], summaries)
    assert text.startswith("### infersiege: FAIL · a run · 5 runs\n") and text.endswith("Exit code 1.\n")
    assert text.count("| **fail** | ttft p50 at most 5 % worse than the baseline |") == 1
    assert "Compared: 5 runs against 5 of base." in text and "Each run by itself: 5 pass." in text
    assert re.findall(r"<summary>(run-\d): PASS · \d passed<", text) == [f"run-{n}" for n in range(1, 6)]
    assert text.count("- GPU &lt;b&gt; of \\| somebody") == 1, "what must be read with a comparison, once"
    assert text.count("<details>") == text.count("</details>") == 6


def test_runs_without_a_baseline_share_a_table_of_their_rules() -> None:
    slower = gated((HOLDS, msgspec.structs.replace(BROKEN, at_most=200.0)))
    text = series_markdown(["run-1", "run_2"], [gated((HOLDS, BROKEN)), slower])
    assert text.startswith("### infersiege: FAIL · a run · 2 runs\n")
    assert "| ttft p50 &lt;= 150 ms | 2 pass | 100 ms | &lt;= 150 ms |" in text
    assert "| ttft p90 &lt;= 50 ms | **1 fail** |" in text
    assert re.search(r"<summary>run-1: FAIL · 1 failed, \d passed: ttft p90 &lt;= 50 ms</summary>", text)
    assert "<summary>run_2: PASS" in text, "beside a tag a backslash would be seen"


def test_a_sentence_that_many_rules_share_stands_once() -> None:
    (summary,) = against_a_baseline(1, 1)
    text = markdown(summary)
    assert text.count("tell nothing of how much runs differ") == 1
    (line,) = (line for line in text.splitlines() if "tell nothing" in line)
    assert "ttft p50 at most 5 % worse" in line and "e2e p50 at most 5 % worse" in line


LARGE = [
    (1, 1, 400, "x", "one run with many rules"),
    (1, 1, 3, "@" * 30_000, "a name that fills the document alone, five times as long when escaped"),
    (300, 1, 1, "x", "many runs: those that passed are folded away first"),
    (3_000, 1, 1, "界", "so many that not each has a line"),
    (40, 30, 10, "a reason " * 200, "many of all"),
]


@pytest.mark.parametrize(("runs", "failed", "rules", "word", "why"), LARGE, ids=[row[-1] for row in LARGE])
def test_no_verdict_is_longer_than_a_comment_may_be(runs: int, failed: int, rules: int, word: str, why: str) -> None:
    def with_rules(limit: float) -> Summary:
        summary = gated((msgspec.structs.replace(HOLDS, at_most=limit),))
        more = [msgspec.structs.replace(summary.rules[-1], name=f"{word} {n}") for n in range(rules)]
        return msgspec.structs.replace(summary, rules=(*summary.rules, *more), warnings=(word,) * 30)

    bad, good = with_rules(50.0), with_rules(150.0)
    summaries = [bad if place < failed else good for place in range(runs)]
    text = markdown(bad) if runs == 1 else series_markdown([f"run-{n}" for n in range(runs)], summaries)
    assert len(text.encode()) <= MOST_BYTES, why
    assert text.startswith("### infersiege: FAIL · a run"), "the verdict stays"
    assert text.count("<details>") == text.count("</details>")
    if runs == 300:
        assert "<summary>run-0: FAIL" in text and "- run-299: PASS" in text
    if runs in (1, 300):
        assert "Exit code 1." in text
    else:
        assert "Exit code 1." in text or "junit.xml" in text


def test_names_of_runs_make_no_markup() -> None:
    text = series_markdown(["<img src=x>@all", "`*_b"], [gated((HOLDS,)), gated((BROKEN,))])
    assert "<img" not in text and "@all" not in text and "&lt;img src=x&gt;&#64;all" in text


# --------------------------------------------------------------------------------------------------------- annotations


def test_an_annotation_is_one_line_that_begins_no_other() -> None:
    summary = gated((HOLDS,), invalid=("50% lost\n::set-env name=X::y\r, a: b",))
    (line,) = (line for line in github_annotations(summary) if "lost" in line)
    assert line == "::error title=infersiege%3A run invalid::50%25 lost%0A::set-env name=X::y%0D, a: b"
    assert all(len(line.splitlines()) == 1 for line in github_annotations(summary))


def test_a_title_keeps_its_colons_and_commas_to_itself() -> None:
    summary = gated((msgspec.structs.replace(BROKEN, scenario="chat", stage="s1"),))
    (line,) = (line for line in github_annotations(summary) if line.startswith("::error "))
    assert line.startswith("::error title=infersiege%3A fail%3A chat%2C s1%3A ttft p90 <= 50 ms::")


def test_github_shows_ten_of_a_kind_and_the_last_says_how_many_more() -> None:
    slos = tuple(msgspec.structs.replace(BROKEN, at_most=float(at)) for at in range(1, 15))
    lines = list(github_annotations(gated(slos)))
    assert len(lines) == MOST and "and 5 more" in lines[-1]
    assert len(list(github_annotations(gated(slos[:MOST])))) == MOST


def test_a_pass_is_a_notice_and_a_warning_a_warning() -> None:
    kinds = [line.split(" ")[0] for line in github_annotations(gated((HOLDS, WARNS)))]
    assert kinds == ["::warning", "::notice"]


# ------------------------------------------------------------------------------------------------ what the command does


def test_markdown_goes_to_its_file_and_is_added_to_the_summary_of_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, step, file = gated((BROKEN,)), tmp_path / "step.md", tmp_path / "verdict.md"
    step.write_text("before\n", encoding="utf-8")
    file.write_text(markdown(gated((HOLDS,))), encoding="utf-8")
    check_markdown(file)
    environ = {"GITHUB_STEP_SUMMARY": str(step), "GITHUB_ACTIONS": "true"}
    assert announce([summary.run_id], [summary], file, environ) == ()
    assert file.read_text("utf-8") == markdown(summary)
    assert step.read_text("utf-8") == "before\n" + markdown(summary)
    assert capsys.readouterr().out.splitlines() == list(github_annotations(summary))
    assert announce([summary.run_id], [summary], None, {}) == ()
    assert capsys.readouterr().out == "", "elsewhere nothing is printed"


def test_a_file_that_cannot_be_written_is_told_and_changes_nothing(tmp_path: Path) -> None:
    (fault,) = announce(["a"], [gated((HOLDS,))], tmp_path / "no" / "verdict.md", {})
    assert "verdict.md: can't be written: No such file or directory" in str(fault)


NOT_OURS = [
    (b"[run]\nname = 'x'\n", "a plan"),
    (b"# infersiege\n", "a document about us"),
    (b"\n### infersiege: PASS", "not as ours begins"),
    (bytes(range(256)), "no text"),
]


@pytest.mark.parametrize(("data", "why"), NOT_OURS, ids=[why for _, why in NOT_OURS])
def test_a_file_that_is_no_verdict_is_not_written_over(tmp_path: Path, data: bytes, why: str) -> None:
    file = tmp_path / "plan.toml"
    file.write_bytes(data)
    with pytest.raises(
        UsageError, match=r"plan\.toml: is there already, and is no verdict of `infersiege gate`"
    ) as told:
        check_markdown(file)
    assert told.value.hint == "name another file, or remove this one" and file.read_bytes() == data, why


def test_an_empty_file_and_standard_output_are_places_for_a_verdict(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """`mktemp` makes the one; a pipe behind the other gets the text and nothing before it is lost."""
    summary, file = gated((HOLDS,)), tmp_path / "made"
    file.touch()
    for place in (file, Path("-"), None):
        check_markdown(place)
    print("before")
    assert announce([summary.run_id], [summary], file, {}) == announce([summary.run_id], [summary], Path("-"), {}) == ()
    assert file.read_text("utf-8") == markdown(summary)
    assert capfdbinary.readouterr().out == f"before\n{markdown(summary)}".encode()
