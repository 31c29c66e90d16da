"""ShareGPT, WildChat and LMSYS, vLLM's multi-turn form, MT-bench: what is read, skipped and refused."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_talks import ANSWER, EXAMPLES, USER, requests, sessions, talk, write

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces import Trace, open_trace
from infersiege.traces.formats import normal


def array(path: Path, *entries: object, indent: int | None = None) -> Path:
    path.write_text(json.dumps(list(entries), indent=indent, ensure_ascii=False), encoding="utf-8")
    return path


def told(session: Session) -> list[list[str]]:
    """The words of each turn: what was asked, then what was answered."""
    return [[str(message["content"]) for message in (*turn.messages, *turn.recorded_answer)] for turn in session.turns]


def same_in_normal_form(trace: Trace, folder: Path) -> None:
    with (folder / "normal.jsonl").open("wb") as file:
        normal.write(file, sessions(trace))
    assert sessions(open_trace(str(folder / "normal.jsonl"))) == sessions(trace)


# ------------------------------------------------------------------------------------------------ ShareGPT


def said(*pairs: tuple[str, str], ident: str | None = None, **more: object) -> dict[str, object]:
    row = {"conversations": [{"from": role, "value": text} for role, text in pairs], **more}
    return row if ident is None else {"id": ident, **row}


PAIR = (("human", "q"), ("gpt", "a"))


def test_the_sharegpt_example():
    trace = open_trace("sharegpt.json", base=EXAMPLES)
    first, second = sessions(trace)
    assert (trace.rows, trace.sessions, trace.skipped, trace.arrivals_ns) == (3, 2, {}, None)
    assert (first.session_id, first.source_line) == ("kW3xPq0", 0)
    assert told(first) == [
        ["How do I sharpen a chisel?", "Flatten the back first, then hone the bevel."],
        ["Which stone for the bevel?", "A grit of 1000, then one of 6000."],
        ["And after that?", "A leather strop, ten strokes a side."],
    ]
    assert (second.session_id, second.source_line) == ("mB81zzA_0", 2)
    assert second.turns[0].messages == (
        {"role": "system", "content": "You speak like a gardener."},
        {"role": "user", "content": "When do I plant garlic?\n\nIn a cold place."},
    )
    assert trace.warnings == (
        "a talk begins with an answer, which is left out",
        "messages of one role that follow each other are sent as one",
    )


def test_tool_calls_of_sharegpt_talks_are_bound_to_their_results():
    first, second = sessions(open_trace("sharegpt.tools.jsonl", base=EXAMPLES))
    call = {"id": "call_0", "type": "function", "function": {"name": "count", "arguments": '{"what":"eggs"}'}}
    assert first.turns[0].recorded_answer == ({"role": "assistant", "content": None, "tool_calls": [call]},)
    assert first.turns[1].messages == ({"role": "tool", "tool_call_id": "call_0", "content": '{"left": 4}'},)
    assert first.tools is not None
    assert first.tools[0]["function"]["name"] == "count"
    assert told(second) == [["Thank you.", "Gladly."]]


@pytest.mark.parametrize("role", ["gpt", "bing", "chatgpt", "bard", "assistant", "ChatGPT"])
@pytest.mark.parametrize("key", ["conversations", "items", "conversation"])
def test_roles_and_keys_of_sharegpt(tmp_path, role, key):
    row = {"id": "a", key: [{"from": "user", "value": "q"}, {"from": role, "value": "<p>a</p>"}]}
    for path in (array(tmp_path / "a.json", row), write(tmp_path / "a.jsonl", row)):
        trace = open_trace(str(path))
        assert (trace.format, told(trace.session(0))) == ("sharegpt", [["q", "<p>a</p>"]])


@pytest.mark.parametrize(
    ("talk_", "words", "why"),
    [
        ([("gpt", "x"), ("gpt", "y"), *PAIR], [["q", "a"]], "answers whose question is not here"),
        ([("system", "s"), ("gpt", "x"), *PAIR], [["s", "q", "a"]], "but for a system prompt"),
        ([("human", "1"), ("human", "2"), ("gpt", "a"), ("gpt", "b")], [["1\n\n2", "a\n\nb"]], "one role, one message"),
        ([*PAIR, ("human", "z")], [["q", "a"], ["z"]], "a last question is asked"),
        ([("human", "q"), ("gpt", ""), ("human", "z")], [["q", ""], ["z"]], "an empty answer is one"),
        ([*PAIR, ("tool", "r"), ("gpt", "b")], [["q", "a"], ["r", "b"]], "a result without a call"),
        ([("human", "q"), ("function_call", "no JSON"), ("gpt", "a")], [["q", "no JSON\n\na"]], "a call in words"),
    ],
)
def test_talks_become_turns(tmp_path, talk_, words, why):
    trace = open_trace(str(array(tmp_path / "a.json", said(*talk_))))
    assert told(trace.session(0)) == words, why
    roles = [message["role"] for message in requests(trace)[-1]]
    assert all(a != b for a, b in pairwise(roles)), "templates that alternate take it"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (said(), "no_messages"),
        (said(("gpt", "a")), "no_user_message"),
        (said(("human", "q"), ("narrator", "a")), "unknown_role"),
        ({"conversations": [{"value": "q"}]}, "unknown_role"),
        ({"conversations": ["q"]}, "not_a_message"),
        ({"conversations": [{"from": "human", "value": None}]}, "message_without_content"),
        (said(("human", "q"), ("function_call", '{"name": "f"}'), ("human", "z")), "tool_call_without_result"),
    ],
)
def test_sharegpt_rows_that_are_skipped(tmp_path, row, reason):
    trace = open_trace(str(array(tmp_path / "a.json", said(*PAIR), row)))
    assert (trace.rows, trace.sessions, trace.skipped) == (2, 1, {reason: 1})


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[{"id": "a", "conversations": [', r"a.json:1: is no JSON array \(", "whole"),
        ('[{"id": "a", "conversations": [{"from": "human", "value": "q"}]}, 5]', r"a.json:1: is a int, not", "format"),
        (
            '[{"id": "b", "conversation": "x"}]',
            r"a.json:0: has no list of conversations \(keys: conversation, id\)",
            "f",
        ),
        ('{"conversations": []}\n{"conversations": [', r"a.json:2: is not JSON \(", "cut"),
        ("[]", r"a.json: the file has no rows", "at least one"),
    ],
)
def test_sharegpt_faults(tmp_path, text, message, hint):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(str(path), format="sharegpt")
    assert hint in (caught.value.hint or "")


PARTS = [
    said(*PAIR, ident="x_0"),
    said(*PAIR, *PAIR, ident="x_2"),
    said(*PAIR, ident="x_6"),
    said(*PAIR, ident="y_0"),
    said(*PAIR, ident="y_1"),
    said(*PAIR, ident="z_4"),
    said(*PAIR, ident="z_6"),
]


@pytest.mark.parametrize(
    ("join", "expected", "why"),
    [
        ("offsets", {"x": 4, "y_0": 1, "y_1": 1, "z_4": 1, "z_6": 1}, "y is numbered; the beginning of z is not here"),
        ("numbers", {"x_0": 1, "x_2": 2, "x_6": 1, "y": 2, "z_4": 1, "z_6": 1}, "y alone is numbered so"),
        ("no", {f"{row['id']}": len(row["conversations"]) // 2 for row in PARTS}, "each row is a talk"),
    ],
)
def test_parts_of_one_talk_are_joined(tmp_path, join, expected, why):
    trace = open_trace(str(array(tmp_path / "a.json", *PARTS)), options={"join_parts": join})
    assert {session.session_id: len(session.turns) for session in sessions(trace)} == expected, why
    assert trace.rows == len(PARTS)
    assert any("join_parts" in warning for warning in trace.warnings) == (join == "offsets")


def test_talks_that_are_only_numbered_are_not_joined(shared):
    trace = open_trace("sharegpt/dummy_conversation.json", base=shared / "traces")
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("sharegpt", 500, 500, {})
    rows = json.loads((shared / "traces/sharegpt/dummy_conversation.json").read_text(encoding="utf-8"))
    asked = [sum(each["from"] == "human" for each in row["conversations"]) for row in rows]
    assert [len(session.turns) for session in sessions(trace)] == asked
    assert [warning for warning in trace.warnings if "ID_1 follows ID_0" in warning]
    assert trace.session(499).session_id == "identity_499"


ROLE = st.sampled_from(["human", "gpt", "system", "tool", "function_call", "narrator"])
SAID = st.builds(lambda role, text: {"from": role, "value": text}, ROLE, st.text(max_size=8))
TALKS = st.lists(
    st.fixed_dictionaries(
        {"conversations": st.lists(SAID, max_size=6)},
        optional={"id": st.builds("{}_{}".format, st.sampled_from("ab"), st.integers(0, 6))},
    ),
    max_size=8,
)


@given(rows=TALKS, join=st.sampled_from(["offsets", "numbers", "no"]), lines=st.booleans())
def test_sharegpt_rows_are_sent_or_skipped(tmp_path_factory, rows, join, lines):
    folder = tmp_path_factory.mktemp("sharegpt")
    rows = [said(*PAIR, ident="first"), *rows]
    path = (write if lines else array)(folder / "t", *rows)
    trace = open_trace(str(path), format="sharegpt", options={"join_parts": join})
    assert trace.sessions is not None
    assert trace.rows == len(rows)
    if join == "no":
        assert trace.rows == trace.sessions + sum(trace.skipped.values())
    asked = [each["value"] for row in rows for each in row["conversations"] if each["from"] == "human"]
    sent = [part for session in sessions(trace) for turn in session.turns for part in turn.messages]
    if not trace.skipped:
        everything = "\0".join(str(part["content"]) for part in sent)
        assert all(text in everything for text in asked), "no question is lost"
    same_in_normal_form(trace, folder)


# ------------------------------------------------------------------------------------------------ WildChat, LMSYS


def wild(*messages: object, **more: object) -> dict[str, object]:
    return {"conversation_hash": "h", "conversation": list(messages), **more}


def at(message: dict[str, object], stamp: object) -> dict[str, object]:
    return {**message, "timestamp": stamp, "hashed_ip": "0af3", "country": "Nowhere", "toxic": False}


def test_the_wildchat_examples():
    trace = open_trace("wildchat.jsonl", base=EXAMPLES)
    first, second = sessions(trace)
    assert list(trace.arrivals_ns or ()) == [0, 65_500_000_000]
    assert [turn.delay_ns for turn in first.turns] == [0, 48_000_000_000]
    assert first.turns[0].messages == ({"role": "user", "content": "Which bird sings at night?"},)
    assert [session.session_id for session in (first, second)] == [
        "0f1e2d3c4b5a69788796a5b4c3d2e1f0-1",
        "112233445566778899aabbccddeeff00-2",
    ]
    lmsys = open_trace("wildchat.lmsys.jsonl", base=EXAMPLES)
    assert (lmsys.format, lmsys.arrivals_ns) == ("wildchat", None)
    assert [session.session_id for session in sessions(lmsys)] == ["9d0c5e1fa7b84d6a", "b7725de0c91f4c3e"]
    assert told(lmsys.session(0)) == [["Name a prime above ten.", "Eleven."], ["The next one?", "Thirteen."]]


def test_one_language_is_kept_by_option():
    trace = open_trace("wildchat.jsonl", base=EXAMPLES, options={"language": "french"})
    assert (trace.rows, trace.sessions, trace.skipped) == (2, 1, {"other_language": 1})
    assert told(trace.session(0)) == [["Comment dit-on « rain » ?", "On dit « pluie »."]]


@pytest.mark.parametrize(
    ("stamps", "row", "arrival", "delays", "why"),
    [
        ([None, 100, None, 130], None, 100, [0, 30], "from answer to answer"),
        ([90, 100, 125, 130], None, 90, [0, 25], "from an answer to the question, where that has a time"),
        ([None, None, None, None], 200, 200, [0, 0], "times of rows only"),
        ([None, 100, None, 90], 200, 100, [0, 0], "never negative"),
        ([None, 100, None, None], 200, 100, [0, 0], "an answer without a time"),
    ],
)
def test_times_of_talks(tmp_path, stamps, row, arrival, delays, why):
    epoch = 1_700_000_000
    messages = [at(m, None if s is None else epoch + s) for m, s in zip(talk(4), stamps, strict=True)]
    zero = wild(at(USER, epoch), conversation_id="zero")
    path = write(tmp_path / "t.jsonl", zero, wild(*messages, timestamp=None if row is None else epoch + row))
    trace = open_trace(str(path))
    assert list(trace.arrivals_ns or ()) == [0, arrival * 10**9], why
    assert [turn.delay_ns for turn in trace.session(1).turns] == [delay * 10**9 for delay in delays], why


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_epochs_tell_their_unit(tmp_path, scale):
    rows = [wild(USER, timestamp=(1_700_000_000 + second) * scale) for second in (5, 0, 7)]
    trace = open_trace(str(write(tmp_path / "t.jsonl", *rows)))
    assert list(trace.arrivals_ns or ()) == [0, 5 * 10**9, 7 * 10**9]
    assert [session.source_line for session in sessions(trace)] == [2, 1, 3]


def test_parquet_rows(tmp_path):
    rows = [json.loads(line) for line in (EXAMPLES / "wildchat.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:  # where these files have dates, not strings
        for holder in (row, *row["conversation"]):
            if holder.get("timestamp"):
                holder["timestamp"] = datetime.fromisoformat(holder["timestamp"])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    trace = open_trace(str(tmp_path / "train.parquet"))
    assert trace.format == "wildchat"
    assert sessions(trace) == sessions(open_trace("wildchat.jsonl", base=EXAMPLES))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (wild(), "no_messages"),
        (wild(ANSWER), "no_user_message"),
        (wild({"role": "user", "content": None}), "message_without_content"),
        (wild(USER, {"role": "assistant", "content": None}), "message_without_content"),
        (wild({"role": "human", "content": "q"}), "not_a_message"),
        (wild("q"), "not_a_message"),
    ],
)
def test_wildchat_rows_that_are_skipped(tmp_path, row, reason):
    trace = open_trace(str(write(tmp_path / "t.jsonl", wild(USER), row)))
    assert (trace.rows, trace.sessions, trace.skipped) == (2, 1, {reason: 1})


SECRET = "sk-test-000 of someone@example.org"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"conversation": SECRET}, r"t.jsonl:2: has no list `conversation` \(keys: conversation\)"),
        ([SECRET], r"t.jsonl:2: is a list, not an object"),
        (wild(USER, timestamp=SECRET), r"t.jsonl:2: timestamp is a string of 34 characters that is no date"),
        (wild(at({"role": "user", "content": SECRET}, 7)), r"t.jsonl:2: timestamp is 7, which is no date in s, ms"),
        (wild({"role": "user", "content": SECRET}, timestamp=[1]), r"t.jsonl:2: timestamp is a list, a number"),
    ],
)
def test_tr_15_faults_of_wildchat_say_nothing_of_what_people_wrote(tmp_path, row, message):
    path = write(tmp_path / "t.jsonl", wild({"role": "user", "content": SECRET}), row)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(str(path), format="wildchat")
    assert "sk-test" not in f"{caught.value} {caught.value.hint}"


def test_what_is_about_people_is_not_kept(tmp_path):
    trace = open_trace(str(write(tmp_path / "t.jsonl", wild(at(USER, None), at(ANSWER, None), hashed_ip="0af3"))))
    kept = msgspec.json.encode(trace.session(0)).decode()
    assert "0af3" not in kept
    assert "Nowhere" not in kept


WILD = st.lists(
    st.fixed_dictionaries(
        {
            "conversation": st.lists(
                st.fixed_dictionaries(
                    {
                        "role": st.sampled_from(["user", "assistant", "narrator"]),
                        "content": st.none() | st.text(max_size=6),
                    },
                    optional={"timestamp": st.none() | st.integers(1_600_000_000, 1_700_000_000)},
                ),
                max_size=5,
            )
        },
        optional={
            "timestamp": st.integers(1_600_000_000, 1_700_000_000),
            "conversation_hash": st.text("ab", max_size=2),
        },
    ),
    max_size=5,
)


@given(rows=WILD)
def test_wildchat_rows_are_sent_or_skipped(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("wildchat")
    trace = open_trace(str(write(folder / "t.jsonl", wild(USER), *rows)))
    assert trace.sessions is not None
    assert trace.rows == len(rows) + 1 == trace.sessions + sum(trace.skipped.values())
    for session in sessions(trace):
        assert all(turn.delay_ns >= 0 for turn in session.turns)
        row = [wild(USER), *rows][(session.source_line or 0) - 1]
        assert [text for turn in told(session) for text in turn] == [m["content"] for m in row["conversation"]]
    same_in_normal_form(trace, folder)


# ------------------------------------------------------------------------------------------------ vLLM multi-turn


def test_the_vllm_example():
    trace = open_trace("vllm-multi-turn.json", base=EXAMPLES)
    first, second = sessions(trace)
    assert [s.session_id for s in (first, second)] == ["conv_0", "7"]
    assert told(first) == [
        ["Give me a word for snow on a roof.", "A cornice, if it hangs over."],
        ["And when it slides down?", "A roof avalanche."],
    ]
    assert told(second) == [["Use short words.", "What melts snow?", "Sun, salt and rain."]]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no_messages"),
        ([ANSWER, USER], "not_alternating"),
        ([USER, USER, ANSWER], "not_alternating"),
        ([USER, ANSWER, ANSWER], "not_alternating"),
        ([USER, ANSWER, {"role": "system", "content": "s"}, USER], "not_alternating"),
        ([{"role": "system", "content": "s"}], "no_user_message"),
        ([USER, {"role": "bot", "content": "s"}], "not_a_message"),
    ],
)
def test_vllm_entries_that_do_not_alternate_are_skipped(tmp_path, messages, reason):
    path = array(tmp_path / "v.json", {"id": 1, "messages": talk(3)}, {"id": 2, "messages": messages})
    trace = open_trace(str(path))
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("vllm-multi-turn", 2, 1, {reason: 1})


@pytest.mark.parametrize(
    ("entry", "message", "hint"),
    [
        ({"messages": []}, r"v.json:1: id is missing, a string or a whole number is wanted", "id"),
        ({"id": 1.5, "messages": []}, r"v.json:1: id is a float, a string or a whole number", "id"),
        ({"id": True, "messages": []}, r"v.json:1: id is a bool, a string or a whole number", "id"),
        ({"id": "b"}, r"v.json:1: has no messages \(keys: id\)", "format"),
        ({"id": "a", "messages": talk(1)}, r"v.json:1: this id came before", "one entry"),
        (5, r"v.json:1: is a int, not an object", "format"),
    ],
)
def test_vllm_faults(tmp_path, entry, message, hint):
    path = array(tmp_path / "v.json", {"id": "a", "messages": talk(2)}, entry, indent=1)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(str(path), format="vllm-multi-turn")
    assert hint in (caught.value.hint or "")


@given(counts=st.lists(st.integers(0, 7), max_size=6), extra=st.booleans())
def test_vllm_entries_are_sent_or_skipped(tmp_path_factory, counts, extra):
    folder = tmp_path_factory.mktemp("vllm")
    entries = [
        {"id": n, "messages": talk(count), **({"n": 1} if extra else {})} for n, count in enumerate([2, *counts])
    ]
    trace = open_trace(str(array(folder / "t.json", *entries)))
    assert trace.sessions is not None
    assert trace.rows == len(entries) == trace.sessions + sum(trace.skipped.values())
    for session in sessions(trace):
        said_ = [m for turn in session.turns for m in (*turn.messages, *turn.recorded_answer)]
        assert said_ == entries[int(session.session_id)]["messages"]
    same_in_normal_form(trace, folder)


# ------------------------------------------------------------------------------------------------ MT-bench


def test_the_mt_bench_example():
    trace = open_trace("mt-bench.jsonl", base=EXAMPLES)
    assert [session.session_id for session in sessions(trace)] == ["question-1", "question-2", "question-extra-3"]
    assert told(trace.session(1)) == [["What is 17 times 6?"], ["Halve it."]]
    assert requests(trace, 1)[1] == [
        {"role": "user", "content": "What is 17 times 6?"},
        {"role": "assistant", "content": "live"},
        {"role": "user", "content": "Halve it."},
    ]


def test_one_category_is_kept_by_option():
    trace = open_trace("mt-bench.jsonl", base=EXAMPLES, options={"category": "math"})
    assert (trace.sessions, trace.skipped) == (1, {"other_category": 2})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"turns": ["a"]}, r"q.jsonl:2: question_id is missing or neither"),
        ({"question_id": None, "turns": ["a"]}, r"q.jsonl:2: question_id is missing or neither"),
        ({"question_id": 1}, r"q.jsonl:2: turns is no list"),
        ({"question_id": 1, "turns": "a"}, r"q.jsonl:2: turns is no list"),
        ({"question_id": 1, "turns": ["a", 5]}, r"q.jsonl:2: turn 1 is a int without text"),
        ([], r"q.jsonl:2: is a list, not an object"),
    ],
)
def test_mt_bench_faults(tmp_path, row, message):
    path = write(tmp_path / "q.jsonl", {"question_id": 0, "turns": [{"content": "a"}]}, row)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(str(path))
    assert caught.value.hint


@given(questions=st.lists(st.lists(st.text(max_size=6), max_size=4), max_size=5))
def test_questions_are_sent_or_skipped(tmp_path_factory, questions):
    folder = tmp_path_factory.mktemp("mt-bench")
    questions = [["first"], *questions]
    rows = [{"question_id": n, "category": "c", "turns": turns} for n, turns in enumerate(questions)]
    trace = open_trace(str(write(folder / "q.jsonl", *rows)))
    empty = sum(not turns for turns in questions)
    assert (trace.rows, trace.sessions) == (len(rows), len(rows) - empty)
    assert trace.skipped == ({"no_messages": empty} if empty else {})
    assert [told(session) for session in sessions(trace)] == [
        [[text] for text in turns] for turns in questions if turns
    ]
    same_in_normal_form(trace, folder)


def test_the_80_questions_of_mt_bench(shared):
    trace = open_trace("mtbench/question.jsonl", base=shared / "traces")
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("mt-bench", 80, 80, {})
    assert {len(session.turns) for session in sessions(trace)} == {2}


# ------------------------------------------------------------------------------------------------ telling them apart


@pytest.mark.parametrize(
    ("text", "format", "why"),
    [
        (json.dumps([{"id": 1, "messages": [USER, ANSWER]}]), "vllm-multi-turn", "an array with ids"),
        (json.dumps([{"messages": [USER, ANSWER]}]), "openai-messages", "an array of rows without ids"),
        (json.dumps([{"messages": [USER, ANSWER]}], indent=1), "openai-messages", "the same over many lines"),
        (f"{json.dumps([USER, ANSWER])}\n{json.dumps([USER])}\n", "openai-messages", "lines that are lists"),
        (json.dumps([USER, ANSWER]), "openai-messages", "one line that is a list"),
        (json.dumps([USER, ANSWER], indent=1), "mini-swe-agent", "one list over many lines"),
        (json.dumps([{"task_id": 1, "traj": [USER, ANSWER]}]), "tau-bench", "an array with trajectories"),
        (json.dumps({"id": 1, "messages": [USER]}), "openai-messages", "a line with an id"),
        (json.dumps({"timestamp": 1, "body": {"messages": [USER]}}), "full-body", "a body with its time"),
        (json.dumps({"custom_id": "a", "body": {"messages": [USER]}}), "openai-messages", "a batch row without a url"),
        (json.dumps({"body": {"messages": [USER]}}), "openai-messages", "a body without a time"),
        (json.dumps({"conversation": [USER, ANSWER], "turn": 1}), "wildchat", "role and content"),
        (json.dumps({"conversation": [{"from": "human", "value": "q"}]}), "sharegpt", "from and value"),
        (json.dumps([{"conversation_id": "a", "conversation": [USER]}], indent=2), "wildchat", "an array of rows"),
        (json.dumps({"question_id": 1, "turns": ["a"]}), "mt-bench", "questions"),
    ],
)
def test_formats_of_conversations_are_told_apart(tmp_path, text, format, why):
    (tmp_path / "t").write_text(text)
    trace = open_trace(str(tmp_path / "t"))
    assert (trace.format, trace.sessions is not None and trace.sessions >= 1) == (format, True), why


# ------------------------------------------------------------------------------------------------ anything at all

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
# fmt: off
FIELDS = [
    "messages", "conversations", "conversation", "turns", "id", "question_id", "timestamp", "body",
    "url", "session_id", "input", "prompt", "tools", "role", "content", "from",
    "value", "type", "tool_calls", "language", "system", "headers", "completion_tokens", "text",
    "reasoning", "output", "call_id", "tool_choice", "delay",
]
# fmt: on
WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "human",
        "function_call",
        "tool",
        "message",
        "function_call_output",
        "a_0",
        "a_1",
        "/v1/responses",
    ]
)
OBJECT = st.recursive(
    JSON | WORDS,
    lambda inner: st.dictionaries(st.sampled_from(FIELDS), inner | st.lists(inner, max_size=3), max_size=5),
    max_leaves=20,
)
FORMATS = [
    ("openai-messages", {}),
    ("openai-messages", {"rows": "cumulative"}),
    ("openai-messages", {"rows": "deltas", "unit": "s"}),
    ("full-body", {}),
    ("full-body", {"session": "id", "unit": "ms"}),
    ("sharegpt", {}),
    ("sharegpt", {"join_parts": "numbers"}),
    ("wildchat", {}),
    ("vllm-multi-turn", {}),
    ("mt-bench", {}),
]


@pytest.mark.parametrize(("format", "options"), FORMATS)
@settings(max_examples=40)
@given(rows=st.lists(OBJECT, min_size=1, max_size=3), in_array=st.booleans())
def test_any_json_is_read_or_refused_by_a_trace_error(tmp_path_factory, format, options, rows, in_array):
    path = tmp_path_factory.mktemp("any") / "t"
    (array if in_array else write)(path, *rows)
    try:
        trace = open_trace(str(path), format=format, options=options)
    except TraceError as error:
        assert str(path) in str(error)
    else:
        for index in range(trace.sessions or 0):
            requests(trace, index)


@pytest.mark.parametrize(("format", "options"), FORMATS)
@settings(max_examples=15)
@given(data=st.binary(max_size=100))
def test_any_bytes_are_refused_by_a_trace_error(tmp_path_factory, format, options, data):
    path = tmp_path_factory.mktemp("any") / "t"
    path.write_bytes(data)
    with pytest.raises(TraceError):
        open_trace(str(path), format=format, options=options)
