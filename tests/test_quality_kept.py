"""What is kept of answers that failed a check: any text, cut and without secrets, and shown as what it was."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import metrics_turns as make
import msgspec
import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st

from infersiege import gate
from infersiege.channels.redaction import Secrets, scrub
from infersiege.metrics.quality import Answers, AnswersOf, wrong_answers
from infersiege.metrics.summary import summarise
from infersiege.plan.schema import Slo
from infersiege.quality import Item, Said, kept, open_quality, score
from infersiege.quality.checks import make_check
from infersiege.quality.foreign import LONGEST_KEPT, LOOKED_AT
from infersiege.quality.kept import MOST_KEPT, received
from infersiege.records import KeptAnswer, Summary, TurnRecord
from infersiege.report.details import Details
from infersiege.report.junit import junit_xml
from infersiege.report.markdown import MOST_BYTES, escaped, markdown
from infersiege.report.numbers import printable
from infersiege.report.quality_html import quality_charts, quality_html
from infersiege.report.said import LONGEST_SHORT
from infersiege.report.tables import to_text

BASIC = open_quality("builtin:basic")
SECRET = "tt-9f3kd83jf02kfl"
HOSTILE = (
    "<script>alert(1)</script>",
    "\x1b[2J\x1b[31m",
    "a\nb\r\nc\u2028d",
    "\"quotes\" and 'more'",
    "\ud83d half a pair \ude00",
    "\0",
    "x" * 1_000_000,
    "| a | b |",
    '{"json": [1, 2]}',
    "fail a/b: number",
    "\u202e\u2066bidi",
    "[bold]no markup[/]",
    SECRET,
    "]]>&amp;",
)
ANSWERS = st.lists(st.sampled_from(HOSTILE) | st.text(st.characters(), max_size=80), max_size=6).map("".join)
CALLS = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": ANSWERS, "arguments": ANSWERS | st.integers()})})
    | st.fixed_dictionaries({"function": st.none()})
    | st.just({}),
    max_size=6,
)


@given(ANSWERS, CALLS)
def test_what_is_kept_of_any_answer_is_read_as_it_was_written(text: str, calls: list[dict[str, Any]]) -> None:
    item = Item("a", "s", (make_check({"equals": "\ud83d no such answer"}),), BASIC.items[0].session, None, None)
    found = score(item, text, tuple(calls))
    answer = kept(found, Said.of(text, tuple(calls)), Secrets([SECRET]).scrub)
    assert answer is not None and not found.passed
    turn = msgspec.structs.replace(make.turn(), quality=str(found), answer=answer)
    line = msgspec.json.encode(turn)
    assert b"\n" not in line and msgspec.json.decode(line, type=TurnRecord) == turn
    assert len(line) < 20_000, "an answer of any length fits in a row"
    assert SECRET not in line.decode()
    assert len(answer.text) <= LONGEST_KEPT and sum(map(len, answer.tool_calls)) <= LONGEST_KEPT + MOST_KEPT
    said = Said.of(text).text
    assert answer.text_chars == len(said) and answer.calls == len(calls)
    assert received(answer) == answer
    if len(said) <= LONGEST_KEPT and SECRET not in said and not re.search("[\0\ud800-\udfff]", said):
        assert scrub(said) == answer.text, "and nothing of a short answer is lost"


CUT: list[tuple[str, str, str]] = [
    ("short", "short", "whole"),
    ("x" * LONGEST_KEPT, "x" * LONGEST_KEPT, "just as long as may be"),
    ("x" * 601, "x" * 599 + "…", "cut, with a mark"),
    ("x" * 590 + SECRET, "x" * 590 + "[redacted]", "a key across the cut is taken out before it"),
    ("a\ud83d", "a\ufffd", "half a pair of surrogates is no text"),
    ("a\0b", "a\ufffdb", "NUL ends a text in many a file and database"),
]


@pytest.mark.parametrize(("text", "expected", "why"), CUT, ids=[row[2] for row in CUT])
def test_where_an_answer_is_cut(text: str, expected: str, why: str) -> None:
    found = score(BASIC.items[0], text)
    answer = kept(found, Said.of(text), Secrets([SECRET]).scrub)
    assert answer is not None and answer.text == expected, why


LONG = "x" * 200_000
HOSTILE = KeptAnswer(
    asked=(LONG,) * 1_000, text=f"a\0{LONG}", text_chars=len(LONG), tool_calls=(LONG,) * 1_000, calls=1_000
)


def test_a_record_brings_no_more_into_summary_and_page_than_is_kept() -> None:
    """A worker on another host may send what it likes."""
    answer = received(HOSTILE)
    assert (len(answer.asked), len(answer.tool_calls)) == (MOST_KEPT, MOST_KEPT)
    assert answer.text.startswith("a\ufffdxxx") and len(answer.text) == LONGEST_KEPT
    assert sum(map(len, answer.tool_calls)) <= LONGEST_KEPT and received(answer) == answer
    summary = summary_of(HOSTILE)
    assert len(msgspec.json.encode(summary)) < 30_000
    assert max(map(len, (page_of(summary), to_text(summary), markdown(summary)))) < 30_000
    turn = make.turn(scenario="quality", quality=f"unscored s/a: {LONG}", answer=HOSTILE)
    broken = summarise([turn], make.facts(checked=frozenset({"quality"})))
    assert broken.unscored is not None and broken.unscored.first.startswith("s/a: xxx")
    assert len(msgspec.json.encode(broken)) < 30_000


def test_half_a_key_where_the_look_for_secrets_ends_is_not_kept() -> None:
    """Most of what is before it is taken out, so that it would come into what is kept."""
    key = f"bearer {'k' * (LOOKED_AT - 20)}"
    text = f"{key} {SECRET}"
    assert len(key) < LOOKED_AT < len(text)
    answer = kept(score(BASIC.items[0], text), Said.of(text), Secrets([SECRET]).scrub)
    assert answer is not None and SECRET[:4] not in answer.text


def item_with(tmp_path: Path, *checks: dict[str, Any]) -> Item:
    path = tmp_path / "checks.jsonl"
    path.write_text(
        "\n".join(map(json.dumps, [{"infersiege_quality": 1}, {"id": "a", "prompt": "Hi", "checks": checks}]))
    )
    return open_quality(str(path), allow_code=True).items[0]


def test_what_was_asked_is_kept_as_the_file_has_it(tmp_path: Path) -> None:
    checks = [{"contains": ["Paris", "città"], "any": True}, {"number": 7}, {"contains": "yes"}]
    item = item_with(tmp_path, *checks)
    answer = kept(score(item, "yes"), Said.of("yes"), str)
    assert answer is not None and [json.loads(one) for one in answer.asked] == checks[:2], "those that did not hold"
    assert kept(score(item, "yes, 7 in Paris or 7"), Said.of(""), str) is None, "of what is right nothing is kept"
    broken = item_with(tmp_path, {"number": 7}, {"callable": "os:fspath"})
    answer = kept(score(broken, "8"), Said.of("8"), str)
    assert answer is not None and answer.asked == ('{"callable": "os:fspath"}',), "the one that broke"


def test_a_tool_call_is_an_answer_too(tmp_path: Path) -> None:
    calls = tuple({"function": {"name": f"f{n}", "arguments": '{"city": "Rome"}'}} for n in range(6))
    item = item_with(tmp_path, {"tool": "weather", "arguments": {"city": "Paris"}})
    answer = kept(score(item, "", calls), Said.of("", calls), str)
    assert answer is not None and (answer.text, answer.calls) == ("", 6)
    assert answer.tool_calls == tuple(f'f{n} {{"city": "Rome"}}' for n in range(MOST_KEPT))


WRONG = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["one", "two", "three", "four", "five"]), st.integers(0, 30)),
    max_size=40,
)


@given(WRONG, st.randoms(use_true_random=False), st.integers(0, 40))
def test_the_first_answers_of_a_prompt_are_the_same_in_any_order_and_split(
    rows: list[tuple[str, str, int]], random: Any, split: int
) -> None:
    turns = [
        make.turn(
            scenario="quality", request_id=f"r-{n:03d}", due_ns=make.T0 + at, quality=f"fail s/{prompt}: number",
            answer=KeptAnswer(asked=("x",), text=text, text_chars=len(text)),
        )
        for n, (prompt, text, at) in enumerate(rows)
    ]  # fmt: skip
    first: dict[str, dict[str, tuple[int, str]]] = {}
    for turn in turns:
        assert turn.quality is not None and turn.answer is not None
        of = first.setdefault(turn.quality[5:8], {})
        seen = (turn.due_ns, turn.request_id)
        of[turn.answer.text] = min(of.get(turn.answer.text, seen), seen)
    wanted = {
        prompt: [text for text, _ in sorted(of.items(), key=lambda one: one[1])][:3] for prompt, of in first.items()
    }
    random.shuffle(turns)
    parts = Answers(), Answers()
    for place, turn in enumerate(turns):
        parts[place < split].add(turn)
    cells = [AnswersOf("quality", "c", "s", part, 0, Counter()) for part in parts]
    found = wrong_answers(cells)
    assert {one.prompt: [example.answer.text for example in one.examples] for one in found} == wanted
    assert [one.n for one in found] == sorted((one.n for one in found), reverse=True)
    assert sum(one.n for one in found) == len(rows)


# --------------------------------------------------------------------------------------------------- where it is shown

XSD = xmlschema.XMLSchema(str(Path(__file__).parent / "data" / "junit.xsd"))


def summary_of(*answers: KeptAnswer, prompt: str = "s/a") -> Summary:
    """Gated and failed: forty answers of one prompt, those that are given and as many like the first as it takes."""
    many = [*answers, *[answers[0]] * (40 - len(answers))]
    turns = [
        make.turn(scenario="quality", request_id=f"r-{n}", due_ns=make.T0 + n, output_tokens=3, answer=answer)
        for n, answer in enumerate(many)
    ]
    turns = [msgspec.structs.replace(turn, quality=f"fail {prompt}: number") for turn in turns]
    slos = (Slo(metric="quality", at_least=0.9),)
    summary = summarise(turns, make.facts(checked=frozenset({"quality"})))
    rules = gate.judge(slos, summary)
    return msgspec.structs.replace(summary, rules=rules, verdict=gate.overall(summary, rules))


def kept_of(text: str, calls: tuple[dict[str, Any], ...] = (), check: str = "Paris") -> KeptAnswer:
    item = Item("a", "s", (make_check({"equals": check}),), BASIC.items[0].session, None, None)
    answer = kept(score(item, text, calls), Said.of(text, calls), Secrets([SECRET]).scrub)
    assert answer is not None
    return answer


def page_of(summary: Summary) -> str:
    return "".join(quality_html(summary, quality_charts(summary), Details()))


@given(ANSWERS, CALLS)
def test_no_answer_is_anything_but_text_where_it_is_shown(text: str, calls: list[dict[str, Any]]) -> None:
    answer = kept_of(text, tuple(calls))
    summary = summary_of(answer)
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary
    page = page_of(summary)
    found = re.search(r"<caption>What was said.*?<tbody>(.*?)</tbody>", page, re.S)
    assert found is not None
    tags = set(re.findall(r"<[^>]*>", found[1]))
    assert tags <= {
        "<tr>", "</tr>", '<th scope="row">', "</th>", "<td class=text>", "</td>", "<br>", "<code>", "</code>",
        '<span class="soft">', "</span>",
    }  # fmt: skip
    plain = html.unescape(re.sub(r"<[^>]*>", "\n", found[1]))
    assert all(printable(line) in plain for line in answer.text.splitlines()), "and all of it is there"
    for shown in (page, to_text(summary), markdown(summary), junit_xml(summary, summary.rules)):
        assert SECRET not in shown and "\x1b" not in shown and "\0" not in shown
    XSD.validate(junit_xml(summary, summary.rules))
    assert len(markdown(summary).encode()) <= MOST_BYTES


def test_up_to_three_answers_of_a_prompt_with_their_ids() -> None:
    summary = summary_of(*(kept_of(f"Rome {n}\nand more") for n in range(5)))
    page = page_of(summary)
    assert "s/a<br>40" in page and "Rome 2<br>and more" in page and "Rome 3" not in page and "r-1" in page
    assert "{&quot;equals&quot;: &quot;Paris&quot;}" in page
    said = to_text(summary)
    assert "What was said" in said and '"Rome 0 and more"' in said and "Rome 1" not in said, "short: the first one"
    assert '"[bold]no markup[/]"' in to_text(summary_of(kept_of("[bold]no markup[/]")))


IN_A_LINE: list[tuple[KeptAnswer, str | None, str]] = [
    (kept_of("Rome"), 'first of s/a: {"equals": "Paris"} was asked, "Rome" was said', "short"),
    (kept_of(""), 'first of s/a: {"equals": "Paris"} was asked, nothing was said', "nothing at all"),
    (kept_of("", ({"function": {"name": "f", "arguments": "{}"}},)), "calls f {} was said", "a tool call"),
    (kept_of("x" * LONGEST_SHORT), None, "too long for a line: it is in the report"),
    (kept_of("Rome", check="P" * LONGEST_SHORT), None, "so is what was asked"),
]


@pytest.mark.parametrize(("answer", "line", "why"), IN_A_LINE, ids=[row[2] for row in IN_A_LINE])
def test_a_rule_on_quality_says_what_was_said(answer: KeptAnswer, line: str | None, why: str) -> None:
    summary = summary_of(answer)
    for told, shown in ((markdown(summary), escaped), (html.unescape(junit_xml(summary, summary.rules)), str)):
        assert ("first of s/a" in told) == (line is not None), why
        assert line is None or shown(line) in told
    silent = msgspec.structs.replace(summary, wrong_answers=())
    assert "first of" not in markdown(silent) and "What was said" not in page_of(silent) + to_text(silent)
