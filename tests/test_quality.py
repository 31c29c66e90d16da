"""Checked prompts and their checks, the set that ships, the light JSON Schema, shares, and texts that collapsed."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import metrics_turns as make
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.emulator.text import prose
from infersiege.errors import ExitCode, PlanError, TraceError
from infersiege.gate import exit_code, judge
from infersiege.metrics.facts import SteadyWindow
from infersiege.metrics.proportions import chance_of_more, wilson
from infersiege.metrics.summary import summarise
from infersiege.plan.load import load_plan
from infersiege.plan.quality_schema import Quality
from infersiege.plan.schema import Channel, Plan, Slo, Workload
from infersiege.plan.trace import trace_of
from infersiege.quality import Item, Said, Score, collapse_flags, open_quality, read_score, score, unscored
from infersiege.quality.checks import make_check, normalised, numbers_in
from infersiege.quality.collapse import is_garbled, is_looped
from infersiege.quality.items import FORMAT
from infersiege.quality.json_shape import faults_of_schema, fits
from infersiege.records import ErrorClass, Outcome, Summary, TurnRecord, Verdict

BASIC = open_quality("builtin:basic")
CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris", "days": 2}'}}


# ------------------------------------------------------------------------------------------------------- the set


@pytest.mark.parametrize("item", BASIC.items, ids=lambda item: item.name)
def test_every_prompt_of_the_set_has_an_answer_that_passes_and_one_that_does_not(item: Any) -> None:
    assert item.good is not None and item.bad is not None
    assert score(item, item.good.text, item.good.tool_calls).passed
    assert not score(item, item.bad.text, item.bad.tool_calls).passed
    assert not score(item, "").passed, "an answer without a word passes nothing"
    assert item.session.turns[0].extra["max_tokens"] <= 60


def test_the_set_is_of_every_kind_in_both_languages() -> None:
    lines = (Path(__file__).parents[1] / "infersiege/quality/basic.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    rows = [json.loads(line) for line in lines]
    kinds = {(row["set"], row["language"]) for row in rows}
    wanted = ("arithmetic", "extraction", "format", "instruction", "tool-call")
    assert kinds == {(name, language) for name in wanted for language in ("en", "zh")}
    assert 38 <= len(rows) <= 50


def test_prompts_that_call_tools_are_left_out_where_there_are_none() -> None:
    without = open_quality("builtin:basic", tools=False)
    assert {item.set for item in BASIC.items} - {item.set for item in without.items} == {"tool-call"}
    assert without.rows == BASIC.rows and without.skipped == {"calls tools": 4}


# ------------------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("check", "text", "holds", "reason"),
    [
        ({"contains": "Paris"}, "it is PARIS, sir", True, "case does not count"),
        ({"contains": "Paris", "case": True}, "PARIS", False, "unless it is to"),
        ({"contains": ["a", "b"]}, "only a", False, "all of a list"),
        ({"contains": ["x", "b"], "any": True}, "b", True, "or any of it"),
        ({"contains": "１２"}, "12", True, "full-width digits are digits"),
        ({"not_contains": ["Rome"]}, "Paris", True, ""),
        ({"not_contains": ["Rome"]}, "Paris, not Rome", False, ""),
        ({"regex": r"\d{4}-\d{2}"}, "on 2024-03.", True, "found anywhere"),
        ({"regex": r"\d{4}", "whole": True}, "in 2024", False, "the whole of it"),
        ({"equals": "yes"}, ' "Yes." ', True, "quotes, case and full stop do not count"),
        ({"equals": "是"}, "是。", True, "nor those of Chinese"),
        ({"equals": "yes"}, "yes, it is", False, ""),
        ({"number": 42}, "17 + 25 = 42", True, "the last number"),
        ({"number": 17, "take": "first"}, "17 + 25 = 42", True, ""),
        ({"number": 42, "take": "only"}, "17 + 25 = 42", False, "it is not the only one"),
        ({"number": 3.14, "within": 0.01}, "3.15", True, "the border is inside"),
        ({"number": 3.14, "within": 0.01}, "3.151", False, ""),
        ({"number": 1024}, "1,024 bytes", True, "thousands are written with commas"),
        ({"number": -5}, "−5", True, "the true minus sign"),
        ({"number": 12}, "B12", False, "a name is no number"),
        ({"number": 1}, "none", False, "no number at all"),
        ({"json": "object", "required": ["a"]}, '```json\n{"a": 1}\n```', True, "in a fence"),
        ({"json": "object", "bare": True}, '```json\n{"a": 1}\n```', False, "a program would not read that"),
        ({"json": "object"}, 'Here: {"a": 1}', False, "words around it"),
        ({"json": "object"}, "[1]", False, "another kind of value"),
        ({"json": "value"}, "NaN", False, "that is no JSON"),
        ({"json": "value"}, "[" * 5000, False, "nested beyond reason"),
        ({"json": "object", "equals": {"a": 1}}, '{"a": 1.0}', True, "one number"),
        ({"json": "object", "equals": {"a": 1}}, '{"a": true}', False, "true is not 1"),
        ({"json": "array", "schema": {"items": {"type": "integer"}}}, "[1, 2.5]", False, ""),
        ({"length": "words", "max": 2}, "one two three", False, ""),
        ({"length": "chars", "min": 1}, "", False, ""),
        ({"length": "lines", "min": 2, "max": 2}, "a\n\nb\n", True, "empty lines do not count"),
        ({"number": 4}, "<think>2 + 2 is 5?</think>\n4", True, "thoughts are no answer"),
        ({"contains": "5"}, "<think>2 + 2 is 5?</think>\n4", False, "thoughts are no answer"),
        ({"no_tool": True}, "text", True, ""),
        ({"tool": "weather"}, "weather", False, "words are no call"),
    ],
)
def test_a_check_of_a_text(check: dict[str, Any], text: str, holds: bool, reason: str) -> None:
    assert make_check(check).holds(Said.of(text)) is holds, reason


@pytest.mark.parametrize(
    ("check", "calls", "holds", "reason"),
    [
        ({"tool": "weather"}, [CALL], True, "called at all"),
        ({"tool": "weather", "arguments": {"city": "paris"}}, [CALL], True, "further arguments may be there"),
        ({"tool": "weather", "arguments": {"city": "Rome"}}, [CALL], False, ""),
        ({"tool": "weather", "arguments": {"days": "2"}}, [CALL], False, "a text is no number"),
        ({"tool": "news"}, [CALL], False, "another function"),
        ({"tool": "weather", "only": True}, [CALL, CALL], False, "twice"),
        ({"tool": "weather", "arguments": {"a": 1}}, [{"function": {"name": "weather", "arguments": "{"}}], False, ""),
        ({"tool": "weather"}, [{"function": None}, {}], False, "calls of no form"),
        ({"no_tool": True}, [CALL], False, ""),
    ],
)
def test_a_check_of_calls(check: dict[str, Any], calls: list[dict[str, Any]], holds: bool, reason: str) -> None:
    assert make_check(check).holds(Said.of("", tuple(calls))) is holds, reason


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ({}, "a check is an object"),
        ({"contain": "x"}, "begins with its kind"),
        ({"contains": 3}, "needs a text"),
        ({"contains": "x", "cased": True}, "has no option 'cased'"),
        ({"regex": "("}, "can't be read"),
        ({"number": float("nan")}, "finite number"),
        ({"number": True}, "finite number"),
        ({"number": 1, "within": -1}, "not below 0"),
        ({"json": "list"}, "value, object or array"),
        ({"json": "value", "schema": {"oneOf": []}}, "'oneOf' is not known"),
        ({"length": "chars"}, "needs min or max"),
        ({"length": "words", "min": 3, "max": 2}, "max at or above min"),
        ({"callable": "os:getcwd"}, "allow_code"),
    ],
)
def test_a_check_that_is_none(check: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        make_check(check)


# ------------------------------------------------------------------------------------------------------- own code

OWN_CHECKS = """import json, os, sys
def yes(text, calls): return 1
def no(text, calls): return []
def number(text, calls): return float(text) > 1
def deep(text, calls):
    return json.loads(text)["a"]
def leaves(text, calls): sys.exit(3)
def nothing(text, calls): text.strip()
def no_arguments(): return True
def two_lines(text, calls): raise ValueError("one\\n  two")
async def later(text, calls): return True
def pieces(text, calls): yield True
def tells(text, calls): raise ValueError("no" + os.environ["OWN_KEY"] + " \\ud83d")
"""


@pytest.fixture
def own_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of an importable module of checkers."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN_CHECKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def item_with(tmp_path: Path, *checks: dict[str, Any], **more: Any) -> Item:
    row = {"id": "a", "prompt": "Hi", "checks": list(checks), **more}
    return open_quality(written(tmp_path, row), allow_code=True).items[0]


@pytest.mark.parametrize(("function", "found"), [("yes", "pass default/a"), ("no", "fail default/a: callable")])
def test_own_code_says_what_is_right(own_checks: str, tmp_path: Path, function: str, found: str) -> None:
    item = item_with(tmp_path, {"callable": f"{own_checks}:{function}"})
    assert item.own_code and str(score(item, "any answer")) == found


@pytest.mark.parametrize(
    ("function", "why", "reason"),
    [
        ("number", ", line 4 of {own}.py: ValueError: could not convert string to float: <the answer>", "no text kept"),
        ("deep", ", line 6 of {own}.py: JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "its own line"),
        ("leaves", ", line 7 of {own}.py: SystemExit: 3", "no worker ends by it"),
        ("nothing", ": returned None, not True or False", "a forgotten return is no wrong answer"),
        (
            "no_arguments",
            ": TypeError: no_arguments() takes 0 positional arguments but 2 were given",
            "no line reached",
        ),
        ("two_lines", ", line 10 of {own}.py: ValueError: one two", "one line of a record"),
    ],
)
def test_an_answer_that_can_not_be_checked_is_neither_right_nor_wrong(
    own_checks: str, tmp_path: Path, function: str, why: str, reason: str
) -> None:
    broken = {"callable": f"{own_checks}:{function}"}
    for checks in ([broken], [{"contains": "no such word"}, broken], [broken, {"contains": "answer"}]):
        made = score(item_with(tmp_path, *checks), "an answer that is no number")
        assert str(made) == f"unscored default/a: callable {own_checks}:{function}{why.format(own=own_checks)}", reason
        assert not made.passed and made.failed == () and read_score(str(made)) == made


@pytest.mark.parametrize(
    ("written_check", "said"),
    [
        ("no_such_module_here:f", "ModuleNotFoundError"),
        ("{own}:later", "is async"),
        ("{own}:pieces", "is async or a generator"),
        ("{own}:sys", "is no function"),
    ],
)
def test_own_code_that_can_be_no_check(own_checks: str, written_check: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_check({"callable": written_check.format(own=own_checks)}, allow_code=True)


def test_a_checker_that_breaks_on_its_own_answers_is_told_before_the_load(own_checks: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"can't be carried out on its own answers: callable .*:leaves, line 7"):
        item_with(tmp_path, {"callable": f"{own_checks}:leaves"}, good="yes")


def test_what_own_code_says_while_the_file_is_read_is_redacted_and_text(
    own_checks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On import, and of its own answers; by the plan's check and by whoever opens its trace."""
    key, said, broken = "correct-horse-battery", "Error: no[redacted] \ufffd", f"broken_{own_checks}"
    (tmp_path / f"{broken}.py").write_text('import os\nraise RuntimeError("no" + os.environ["OWN_KEY"] + " \\ud83d")\n')
    monkeypatch.setenv("OWN_KEY", key)
    for function in (f"{broken}:f", f"{own_checks}:tells"):
        file = written(tmp_path, {"id": "a", "prompt": "Hi", "checks": [{"callable": function}], "good": "yes"})
        plan = tmp_path / "plan.toml"
        plan.write_text(
            '[channel.c]\nengine = "vllm"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\napi_key_env = "OWN_KEY"\n'
            f'[run]\nduration = "9s"\n[load]\nusers = 1\n[quality]\nfile = "{file}"\nallow_code = true\n'
        )
        with pytest.raises(PlanError) as refused:
            load_plan(plan)
        (fault,) = refused.value.faults
        assert said in str(fault) and key not in str(fault)
        opened = Workload(scenario="s", trace=str(file), format=FORMAT)
        whole = Plan(
            channels={"c": Channel(engine="vllm", model="m", api_key_env="OWN_KEY")},
            workloads=(opened,),
            quality=Quality(file=str(file), allow_code=True),
        )
        with pytest.raises(TraceError, match=re.escape(said)):
            trace_of(whole, opened)


@given(st.text(max_size=300))
def test_no_text_breaks_a_check(text: str) -> None:
    for item in BASIC.items:
        found = score(item, text)
        assert read_score(str(found)) == found
    assert normalised(normalised(text)) == normalised(text)
    numbers_in(text)


@given(
    st.from_regex(r"[a-z][a-z0-9.-]{0,9}", fullmatch=True),
    st.from_regex(r"[a-z][a-z0-9.-]{0,9}", fullmatch=True),
    st.lists(st.sampled_from(["json", "number", "equals"]), unique=True),
)
def test_a_score_is_read_as_it_was_written(name: str, item: str, failed: list[str]) -> None:
    made = Score(name, item, tuple(failed))
    assert read_score(str(made)) == made


@given(st.text(max_size=300))
def test_whatever_a_checker_says_fits_in_a_record(why: str) -> None:
    item = BASIC.items[0]
    made = unscored(item, why)
    assert read_score(str(made)) == made and made.broken and "\n" not in str(made)


@pytest.mark.parametrize("text", [None, "", "pass", "fail a/b", "unscored a/b", "pass a/b: json", "good a/b"])
def test_what_is_no_score(text: str | None) -> None:
    assert read_score(text) is None


# ------------------------------------------------------------------------------------------------------- the file


def written(tmp_path: Path, *rows: Any, header: Any = None) -> str:
    path = tmp_path / "q.jsonl"
    lines = [{"infersiege_quality": 1} if header is None else header, *rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
    return str(path)


GOOD_ROW = {"id": "a", "prompt": "Hi", "checks": [{"contains": "x"}]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**GOOD_ROW, "id": "a b"}, "other characters"),
        ({**GOOD_ROW, "checks": []}, "has no checks"),
        ({**GOOD_ROW, "check": []}, "unknown field `check`"),
        ({**GOOD_ROW, "messages": []}, "prompt or messages"),
        ({**GOOD_ROW, "max_tokens": 0}, "from 1 to"),
        ({**GOOD_ROW, "good": "y"}, "the good answer does not pass contains"),
        ({**GOOD_ROW, "bad": "x"}, "the bad answer passes every check"),
        ({**GOOD_ROW, "tools": [{}]}, "a tool is written"),
        ({"id": "a", "messages": [{"role": "user"}], "checks": [{"contains": "x"}]}, "needs a role and a content"),
        ([], "Expected `object`"),
    ],
)
def test_a_row_that_can_not_be(tmp_path: Path, row: Any, said: str) -> None:
    with pytest.raises(TraceError) as raised:
        open_quality(written(tmp_path, {**GOOD_ROW, "id": "first"}, row))
    assert said in str(raised.value) and ":3: " in str(raised.value), str(raised.value)


def test_every_fault_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as raised:
        open_quality(written(tmp_path, GOOD_ROW, GOOD_ROW, {**GOOD_ROW, "id": "b", "checks": [{"x": 1}]}))
    lines = str(raised.value).split("\n")
    assert [line.split(":")[1] for line in lines] == ["3", "4"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no prompts"),
        ('{"infersiege_quality": 1}\n', "has no prompts"),
        ('{"infersiege_quality": 2}\n{}\n', "version 2"),
        ('{"id": "a"}\n', "is no file of checked prompts"),
        ('{"infersiege_quality": 1}\n{"id": \n', ":2: not JSON"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=re.escape(said)):
        open_quality(str(path))


def test_toml_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "q.toml"
    path.write_text(
        'infersiege_quality = 1\n[[item]]\nid = "a"\nset = "facts"\nprompt = "Capital of France?"\n'
        'checks = [{contains = "Paris"}]\ngood = "Paris"\n'
    )
    (item,) = open_quality(str(path)).items
    assert (item.name, item.set) == ("a", "facts")
    assert score(item, "It is Paris.").passed


# ------------------------------------------------------------------------------------------------------- JSON Schema

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1.0, -2.0]) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
            | st.lists(st.sampled_from(["string", "integer", "null"]), min_size=1, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "const": VALUES,
            "minimum": st.integers(-3, 3),
            "exclusiveMaximum": st.integers(-3, 3),
            "minLength": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "pattern": st.sampled_from(["a", "^b", "ab$"]),
            "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "additionalProperties": inner | st.booleans(),
            "items": inner | st.booleans(),
        },
    ),
    max_leaves=4,
)


@given(SCHEMAS, VALUES)
def test_the_light_validator_says_what_jsonschema_says(schema: dict[str, Any], value: Any) -> None:
    assert faults_of_schema(schema) == []
    assert fits(value, schema) == jsonschema.Draft202012Validator(schema).is_valid(value)


# ------------------------------------------------------------------------------------------------------- shares


@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),  # R. G. Newcombe, Statistics in Medicine 17 (1998) 857, table I
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_has_the_published_ranges(passed: int, n: int, low: float, high: float) -> None:
    assert wilson(passed, n) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_range_holds_its_share(case: tuple[int, int]) -> None:
    passed, n = case
    low, high = wilson(passed, n)
    assert 0 <= low <= passed / n <= high <= 1 and low < high
    assert wilson(n - passed, n) == pytest.approx((1 - high, 1 - low))


def test_fisher_by_hand_and_at_size() -> None:
    # The lady tasting tea: 3 of 4 and 1 of 4 the other way, 17/70 = 0.2429 (R. A. Fisher).
    assert chance_of_more(1, 4, 3, 4) == pytest.approx(17 / 70)
    assert chance_of_more(0, 100, 0, 100) == 1.0
    assert chance_of_more(0, 1000, 12, 1000) < 1e-3
    assert chance_of_more(500, 500_000, 800, 500_000) < 1e-12
    assert chance_of_more(500, 500_000, 510, 500_000) > 0.3


# ------------------------------------------------------------------------------------------------------- collapse

PROSE = (
    "The harbour wakes before the town does. Boats come in with their lamps still lit, and the first buyers stand on "
    "the wet stones with their hands in their sleeves. By seven the fish is gone, the cats have had their share, and "
    "somebody sweeps the ice into the sea. Nothing of it is written down; everybody knows what was paid. "
)
TABLE = "| name | value |\n|------|-------|\n" + "".join(f"| row {row} | {row * 37 % 101} |\n" for row in range(30))
CODE = "".join(f"    if kind == {n}:\n        return self._handle_{n}(value)\n" for n in range(12))


@pytest.mark.parametrize(
    ("text", "flags", "reason"),
    [
        ("", (), "a call of a tool may have no text"),
        ("Paris.", (), ""),
        (PROSE * 2, (), "said twice is no loop"),
        (TABLE, (), "rows of a table are alike"),
        (CODE, (), "so are branches of a program"),
        ("-" * 120, (), "a line of dashes"),
        ("ha " * 40, (), "somebody laughs"),
        (PROSE + "and so on " * 60, ("repeated",), "a loop at the end"),
        ("!" * 400, ("repeated",), "one character, as of an overflow in half precision"),
        ("我们可以" * 80, ("repeated",), "in Chinese"),
        (PROSE + PROSE[:200] * 8, ("repeated",), "a long period"),
        ("".join(f"Step {n}: {PROSE[:150]}" for n in range(10, 40)), ("repeated",), "a loop that counts"),
        ("日本語のテキストです。" + "\ufffd" * 2, (), "a character that the length limit cut"),
        ("broken \ufffd text \ufffd here \ufffd and", ("garbled",), ""),
        ("Ã©tÃ© Ã©tÃ© vÃ©cu dÃ©jÃ ", ("garbled",), "UTF-8 read as Latin-1"),
        ("ä¸­å›½çš„é¦–éƒ½æ˜¯åŒ—äº¬ã€‚", ("garbled",), "the same of Chinese"),
        ("L’été à la plage, déjà vécu… « Où ? » Às vezes — não é só isso.", (), "accents and quotation marks"),
        ("a\x01b\x02c\x03", ("garbled",), "control characters"),
        ("tabs\tand\r\nlines\n", (), ""),
        (" \n\n ", ("blank",), ""),
        ("\n" * 500, ("blank",), "blanks are blank, not a loop"),
        ("🙂" * 20 + "👩‍👩‍👧", (), "emoji with joiners"),
    ],
)
def test_what_collapsed(text: str, flags: tuple[str, ...], reason: str) -> None:
    assert collapse_flags(text) == flags, reason


def test_reasoning_is_looked_at_where_there_is_no_answer() -> None:
    assert collapse_flags("", "wait, " * 100) == ("repeated",)
    assert collapse_flags("The answer is 4.", "wait, " * 100) == ()
    assert collapse_flags(" ", "", (CALL,)) == ()
    assert collapse_flags("short", short_of=3) == ("cut_short",)
    assert collapse_flags("whole", short_of=0) == ()


@pytest.mark.parametrize("chinese", [False, True])
def test_the_emulators_own_text_is_none_of_it(chinese: bool) -> None:
    """Its vocabulary is small: a false alarm would be on every run of a demo."""
    for seed in range(300):
        text = "".join(prose(random.Random(seed), 40 * (seed % 30 + 1), chinese=chinese))
        assert collapse_flags(text) == (), text[-200:]


@given(st.text(min_size=1, max_size=80).filter(lambda text: not text.isspace()), st.text(max_size=60))
def test_any_loop_is_found_wherever_it_is_cut(unit: str, before: str) -> None:
    text = before + unit * (600 // len(unit) + 1)
    assert is_looped(text)
    assert is_looped(text[: len(text) - len(unit) // 2])


@given(st.text(max_size=400))
def test_looking_never_raises(text: str) -> None:
    is_looped(text * 8)
    is_garbled(text)


# ------------------------------------------------------------------------------------------------------- by stage


def staged(stage: str, wrong: int, right: int, looped: int) -> list[TurnRecord]:
    turns = [make.turn(stage=stage, scenario="quality", quality="fail a/b: json") for _ in range(wrong)]
    turns += [make.turn(stage=stage, scenario="quality", quality="pass a/b") for _ in range(right)]
    turns += [make.turn(stage=stage, flags=("repeated",) if place < looped else ()) for place in range(100)]
    return [
        *turns,
        make.turn(stage=stage, scenario="quality", outcome=Outcome.FAILED, error_class=ErrorClass.NO_OUTPUT),
    ]


def summary_of(*parts: list[TurnRecord]) -> Summary:
    steady = tuple(
        SteadyWindow(stage=f"s{place + 1}", start_ns=make.T0 + place * 10**10, end_ns=make.T0 + (place + 1) * 10**10)
        for place in range(len(parts))
    )
    facts = make.facts(steady=steady, checked=frozenset({"quality"}))
    turns = [turn for part in parts for turn in part]
    random.Random(3).shuffle(turns)
    return summarise(turns, facts)


def test_a_stage_that_is_worse_than_the_first_is_warned_of_and_one_that_may_be_chance_is_not() -> None:
    found = summary_of(staged("s1", 5, 45, 1), staged("s2", 9, 41, 4), staged("s3", 30, 20, 40))
    shares = {one.stage: (one.n, one.passed) for one in found.quality if one.channel is None and one.set is None}
    assert shares == {None: (150, 106), "s1": (50, 45), "s2": (50, 41), "s3": (50, 20)}
    assert [(one.stage, one.repeated, one.empty) for one in found.answers if one.scenario is None] == [
        ("s1", 1, 1),
        ("s2", 4, 1),
        ("s3", 40, 1),
    ]
    said = [warning for warning in found.warnings if warning.startswith("stage ")]
    assert [warning.split(":")[0] for warning in said] == ["stage s3", "stage s3"]
    assert "40 of 253 answers" not in said[0] and "30 of 50 checked answers were wrong" in said[1]


def test_collapsed_answers_have_their_share_by_stage_and_scenario() -> None:
    found = summary_of(staged("s1", 0, 10, 0), staged("s2", 0, 10, 25))
    shares = {(one.stage, one.scenario): (one.ok, one.empty, one.share) for one in found.answers}
    ordinary = make.turn().scenario
    assert shares == {
        ("s1", None): (110, 1, 1 / 111),
        ("s1", ordinary): (100, 0, 0.0),
        ("s1", "quality"): (10, 1, 1 / 11),
        ("s2", None): (110, 1, 26 / 111),
        ("s2", ordinary): (100, 0, 0.25),
        ("s2", "quality"): (10, 1, 1 / 11),
    }
    whole = {group.stage: group.rates["collapsed_share"] for group in found.groups if group.scenario is None}
    assert whole == {None: 27 / 222, "s1": 1 / 111, "s2": 26 / 111}
    rules = judge(
        (Slo(metric="collapsed_share", at_most=0.02, stage="s1"), Slo(metric="collapsed_share", at_most=0.02)), found
    )
    assert [rule.verdict for rule in rules if rule.metric == "collapsed_share"] == [Verdict.PASS, Verdict.FAIL]


def test_a_turn_with_two_flags_is_one_answer() -> None:
    found = summarise([make.turn(flags=("repeated", "garbled")), make.turn()], make.facts())
    assert found.groups[0].rates["collapsed_share"] == 0.5


# ------------------------------------------------------------------------------------------------- without a score


def partly_scored(right: int, wrong: int, broken: int) -> Summary:
    turns = [make.turn(), *(make.turn(scenario="quality", quality="pass a/b") for _ in range(right))]
    turns += [make.turn(scenario="quality", quality="fail a/b: json") for _ in range(wrong)]
    turns += [
        make.turn(scenario="quality", due_ns=make.T0 + n, quality=f"unscored a/{'cd'[n % 2]}: why {n}")
        for n in range(broken)
    ]
    random.Random(7).shuffle(turns)
    return summarise(turns, make.facts(checked=frozenset({"quality"})))


RULE = Slo(metric="quality", at_least=0.5)


@pytest.mark.parametrize(
    ("right", "wrong", "broken", "verdicts", "reason"),
    [
        (40, 0, 0, {"unscored": Verdict.PASS, "quality": Verdict.PASS}, "all could be checked"),
        (0, 40, 0, {"unscored": Verdict.PASS, "quality": Verdict.FAIL}, "and were wrong"),
        (0, 0, 49, {"unscored": Verdict.NO_DATA, "quality": Verdict.NO_DATA}, "a broken checker measures nothing"),
        (40, 0, 1, {"unscored": Verdict.NO_DATA, "quality": Verdict.NO_DATA}, "one of them may be any"),
        (0, 0, 0, {"quality": Verdict.NO_DATA}, "no checks: no rule of ours on them"),
    ],
)
def test_a_run_of_which_not_all_could_be_checked_has_no_quality(
    right: int, wrong: int, broken: int, verdicts: dict[str, Verdict], reason: str
) -> None:
    found = partly_scored(right, wrong, broken)
    rules = {rule.metric: rule for rule in judge((RULE,), found) if rule.metric in ("unscored", "quality")}
    assert {metric: rule.verdict for metric, rule in rules.items()} == verdicts, reason
    assert found.groups[0].checked == right + wrong and found.groups[0].unscored == broken
    if not broken:
        assert found.unscored is None
        return
    assert found.unscored is not None and found.groups[0].rates["quality"] is None
    assert (found.unscored.n, found.unscored.first) == (broken, "a/c: why 0"), "that which was due first"
    assert found.unscored.prompts == {name: n for name, n in (("a/c", (broken + 1) // 2), ("a/d", broken // 2)) if n}
    assert "a/c: why 0" in rules["unscored"].detail
    assert any("could not be checked" in said and "a/c: why 0" in said for said in found.warnings)
    assert exit_code(found, judge((), found), gated=True) == ExitCode.NO_DATA, "also without a rule on quality"


def test_stages_that_are_alike_raise_no_alarm() -> None:
    """1 % over both stages: of 200 runs with the same true share hardly any warns."""
    draw = random.Random(5)
    alarms = 0
    for _ in range(200):
        wrong = [sum(draw.random() < 0.2 for _ in range(60)) for _ in range(3)]
        found = summary_of(*(staged(f"s{place + 1}", count, 60 - count, 0) for place, count in enumerate(wrong)))
        alarms += any("quality falls" in warning for warning in found.warnings)
    assert alarms <= 6


def test_a_run_without_checks_and_with_sound_answers_says_nothing_of_them() -> None:
    found = summarise([make.turn() for _ in range(50)], make.facts())
    assert found.quality == () and found.answers == ()
    assert found.groups[0].rates["quality"] is None and found.groups[0].checked == 0


def test_order_and_split_of_the_turns_do_not_matter() -> None:
    parts = [staged("s1", 3, 9, 2), staged("s2", 5, 7, 9)]
    assert summary_of(*parts).quality == summary_of(*parts).quality


def test_the_example_of_a_file_can_be_read() -> None:
    path = Path(__file__).parents[1] / "examples" / "plans" / "quality.jsonl"
    items = open_quality(str(path)).items
    assert len(items) == 3 and all(item.good and item.bad for item in items)
