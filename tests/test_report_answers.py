"""Sections of the page on the answers themselves, and on the baseline: what stands there is what was measured."""

from __future__ import annotations

import re

import metrics_turns as make
import pytest
from baseline_runs import RELATIVE, side
from records_sample import records, write_run
from test_report import check_page

from infersiege.gate.baseline import Baseline
from infersiege.gate.relative import against, with_baseline
from infersiege.metrics.batch import batches
from infersiege.metrics.summary import summarise
from infersiege.quality.collapse import COLLAPSE_FLAGS
from infersiege.records import ErrorClass, Outcome, Phase, Summary, TurnRecord
from infersiege.report import Rebuilt, judged, read
from infersiege.report.baseline_html import baseline_charts, baseline_html
from infersiege.report.details import EXAMPLES, Details
from infersiege.report.html import render
from infersiege.report.quality_html import quality_charts, quality_html
from infersiege.report.tables import to_text


def details_of(turns: list[TurnRecord]) -> Details:
    made = Details()
    for batch in batches(turns):
        made.add_batch(batch)
    return made


def rows_of(html: str, caption: str) -> list[list[str]]:
    """Cells of a table's body, as plain text."""
    found = re.search(rf"<caption>{re.escape(caption)}.*?<tbody>(.*?)</tbody>", html, re.S)
    assert found is not None, caption
    rows = re.findall(r"<tr>(.*?)</tr>", found[1], re.S)
    return [[re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def section_of(turns: list[TurnRecord]) -> tuple[Summary, str]:
    summary = summarise(turns, make.facts(checked=frozenset({"quality"})))
    return summary, "".join(quality_html(summary, quality_charts(summary), details_of(turns)))


# --------------------------------------------------------------------------------------------------------- answers


def test_collapsed_answers_are_found_by_their_ids() -> None:
    turns = [make.turn(request_id=f"sound-{n}") for n in range(20)]
    turns += [
        make.turn(request_id=f"{flag}-{n}", flags=(flag,), output_tokens=90 + n, finish_reason="stop")
        for flag in COLLAPSE_FLAGS
        for n in range(EXAMPLES + 2)
    ]
    turns += [
        make.turn(request_id="warm", phase=Phase.WARMUP, flags=("repeated",)),
        make.turn(request_id="failed", outcome=Outcome.FAILED, error_class=ErrorClass.NO_OUTPUT),
        make.turn(scenario="other"),
    ]
    summary, html = section_of(turns)
    (whole, other, chat) = rows_of(html, "Answers that are none any more")
    assert whole == ["s1", "41", "50.0 %", "5", "5", "5", "5", "1"], "21 of 42, the empty one among them"
    assert (other[:3], chat[:3]) == (["s1 · chat", "40", "51.2 %"], ["s1 · other", "1", "0.0 %"])
    examples = rows_of(html, "Examples: the first turns of each kind")
    assert [row[3] for row in examples] == [f"{flag}-{n}" for flag in COLLAPSE_FLAGS for n in range(EXAMPLES)]
    assert examples[0][-1] == "90 tokens, stop"
    assert "50.0 %" in to_text(summary) and "in a loop" in to_text(summary)


def test_answers_that_could_not_be_checked_are_at_the_top_of_their_section() -> None:
    why = 'callable own:check, line 3 of own.py: ValueError: key "k" http://u:hidden@host/ <b>'
    turns = [make.turn(scenario="quality", quality=f"unscored facts/a: {why}") for _ in range(3)]
    turns += [make.turn(scenario="quality", quality="pass facts/b"), make.turn()]
    summary, html = section_of(turns)
    assert "3 of 4 answers could not be checked" in html and "line 3 of own.py" in html
    assert "<b>" not in html.replace("<b>FAIL", "") and "hidden" not in html
    assert rows_of(html, "Answers that could not be checked") == [["facts/a", "3"]]
    assert rows_of(html, "Pass share of checked prompts")[0][:3] == ["all", "1", "100.0 %"]
    said = to_text(summary)
    assert "Answers that could not be checked" in said and "3 of 4 answers could not be checked" in said


def test_sound_answers_that_nobody_checked_have_no_section() -> None:
    assert section_of([make.turn() for _ in range(5)])[1] == ""


# -------------------------------------------------------------------------------------------------------- baseline


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Rebuilt:
    folder = tmp_path_factory.mktemp("runs")
    return judged(read(write_run(folder / "run", records(6, steady_s=60), steady_s=60)), gated=True)


def compared(found: Rebuilt, candidate: Baseline, baseline: Baseline) -> Summary:
    return with_baseline(found.summary, against(RELATIVE, candidate, baseline))


def test_a_run_without_a_baseline_has_no_such_section(found: Rebuilt) -> None:
    assert baseline_html(found.summary, baseline_charts(found.summary)) == ()


def test_what_changed_stands_by_rule_with_its_interval(found: Rebuilt) -> None:
    summary = compared(found, side("new", 1.08), side("old"))
    (chart,) = baseline_charts(summary)
    html = "".join(baseline_html(summary, [chart]))
    assert ">Comparable with the baseline<" in html and "5 runs against 5 of old" in html
    rules = [rule for rule in summary.rules if rule.change is not None]
    assert len(rules) == len(RELATIVE)
    for row, rule in zip(rows_of(html, "Change against the baseline"), rules, strict=True):
        assert row[0] == rule.verdict.value.upper() == "FAIL" and row[1] == rule.name
        assert row[4] == f"{100 * (rule.change or 0):+.1f} %" and row[5].startswith(
            f"{100 * (rule.change_low or 0):+.1f} …"
        )
    assert chart.figure is not None
    drawn = chart.figure["data"][0]
    for place, rule in enumerate(rules):
        assert drawn["y"][place] == pytest.approx(100 * (rule.change or 0), abs=0.001)
        high = drawn["y"][place] + drawn["error_y"]["array"][place]
        assert high == pytest.approx(100 * (rule.change_high or 0), abs=0.002)


def test_runs_that_may_not_be_compared_say_why_and_nothing_else(found: Rebuilt) -> None:
    summary = compared(found, side("new", gpus=("B200",)), side("old"))
    assert baseline_charts(summary) == []
    html = "".join(baseline_html(summary, []))
    assert ">Not comparable with the baseline<" in html and "B200" in html
    assert {row[4] for row in rows_of(html, "Change against the baseline")} == {"–"}
    assert all("not comparable" in row[1] for row in rows_of(html, "Change against the baseline"))


def test_notes_of_the_comparison_are_read_with_it(found: Rebuilt) -> None:
    told = against(RELATIVE, side("new", gpus=("B200",)), side("old"), allowed=("gpu",))
    assert any("differs, as it may" in note for note in told.notes)
    assert told.rules[0].notes == told.notes
    html = "".join(baseline_html(with_baseline(found.summary, told), []))
    assert ">Comparable with the baseline<" in html and "<li>differs, as it may: gpu" in html


def test_the_page_with_a_baseline_is_sound(found: Rebuilt) -> None:
    summary = compared(found, side("new", 1.08), side("old <script>alert(1)</script>"))
    page = check_page(render(summary, found.plan, found.windows, found.collected, details=found.details))
    assert "baseline" in page.figures and ("a", {"href": "#baseline"}) in page.elements
    assert "old <script>alert(1)</script>" in page.text, "as text"
