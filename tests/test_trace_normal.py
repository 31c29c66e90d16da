"""Our own format: what no session can be is refused with its place; and what holds for the sessions of every reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infersiege.errors import TraceError
from infersiege.records import Branch, Session, Turn
from infersiege.traces import Conversation, Synthesizer, describe, open_trace
from infersiege.traces.files.indexed import IndexedTrace
from infersiege.traces.files.source import Source
from infersiege.traces.sessions.session_checks import check_branches, check_session
from infersiege.traces.trace import ReadOptions

HI = {"role": "user", "content": "hi"}
EMPTY = {"role": "user", "content": ""}
SECRET = "sk-test-000 john@corp.example"


def trace(tmp_path: Path, **session: Any) -> str:
    path = tmp_path / "t.jsonl"
    rows = [{"infersiege_trace": 1}, {"session_id": "a", "turns": [{"messages": [HI]}], **session}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def turn(**values: Any) -> dict[str, Any]:
    return {"turns": [{"messages": [HI], **values}]}


def text(**values: Any) -> dict[str, Any]:
    return turn(messages=[EMPTY], texts=[{"scope": "s", "ids": [1], "tokens": [3], **values}])


@pytest.mark.parametrize(
    ("session", "message"),
    [
        ({"arrival_ns": 2**70}, "arrival_ns is more than"),
        ({"arrival_ns": -5}, "arrival_ns is below 0"),
        ({"source_line": 2**70}, "source_line is more than"),
        (turn(delay_ns=2**70), "turns[0]: delay_ns is more than"),
        (turn(delay_ns=-7), "turns[0]: delay_ns is below 0"),
        (turn(asked_prompt_tokens=-1), "turns[0]: asked_prompt_tokens is below 0"),
        (turn(asked_prompt_tokens=2**70), "turns[0]: asked_prompt_tokens is more than 1,000,000,000"),
        (turn(asked_output_tokens=-5), "turns[0]: asked_output_tokens is below 0"),
        (turn(messages=[]), "turns[0]: messages is empty"),
        (turn(messages=[{"role": "user", "content": 5}]), "turns[0]: messages[0]: content is a int"),
        (turn(messages=[HI, {"role": "user"}]), "messages[1]: can't be sent (message_without_content)"),
        (turn(messages=[{"role": "pirate", "content": "x"}]), "messages[0]: can't be sent (not_a_message)"),
        (turn(messages=[{"role": "tool", "content": "x"}]), "messages[0]: a result has a tool_call_id"),
        (
            turn(messages=[HI, {"role": "assistant", "content": "x", "tool_calls": 5}]),
            "messages[1]: can't be sent (bad_tool_call)",
        ),
        (turn(recorded_answer=[HI]), "recorded_answer[0]: is no assistant's message"),
        (turn(recorded_answer=[{"role": "assistant", "content": 5}]), "recorded_answer[0]: content is a int"),
        (turn(messages=[HI, HI], texts=[None]), "turns[0]: 1 texts for 2 messages"),
        (text(tokens=[3, 4]), "texts[0]: 1 ids, but 2 tokens"),
        (text(tokens=[-9]), "texts[0]: tokens is below 0"),
        (text(tokens=[2**40]), "texts[0]: tokens is more than"),
        (text(ids=[2**64]), "texts[0]: an id is no 64-bit number"),
        (text(language="fr"), "texts[0]: its language is unknown"),
        (turn(answer_text={"scope": "s", "ids": [1], "tokens": []}), "answer_text: 1 ids, but 0 tokens"),
        ({"turns": []}, "session 'a' has no turns"),
        ({"turns": [], "session_id": "x" * 100_000}, f"session '{'x' * 40}' has no turns"),
        ({"branches": [{"turns": []}]}, "branch 0 of session 'a' has no turns"),
        ({"branches": [turn(delay_ns=-1)]}, "branches[0].turns[0]: delay_ns is below 0"),
        ({"branches": [{**turn(), "after": 0, "joined_by": 0}]}, "turns wait for each other"),
        ({"branches": [{**turn(), "after": 5}]}, "starts after turn 5, there are 2"),
        ({SECRET: 1}, f"unknown field of {len(SECRET)} characters"),
        ({"turnz": 1}, "unknown field 'turnz'"),
    ],
)
def test_a_session_that_can_not_be_is_refused_with_its_place(tmp_path, session, message):
    path = trace(tmp_path, **session)
    with pytest.raises(TraceError) as caught:
        open_trace(path)
    assert str(caught.value).startswith(f"{path}:2: "), caught.value
    assert message in str(caught.value)
    assert caught.value.hint
    assert len(str(caught.value)) < len(path) + 200


@pytest.mark.parametrize(
    "session",
    [
        turn(asked_prompt_tokens=0, delay_ns=0),
        turn(messages=[HI, {"role": "assistant", "content": None, "tool_calls": []}, HI]),
        text(ids=[-(2**63)], tokens=[0]),
        text(ids=[], tokens=[]),
        text(language="zh"),
        {"turns": [{"messages": [HI], "recorded_answer": [{"role": "assistant", "content": "x"}]}, {"messages": [HI]}]},
        {"branches": [{**turn(), "after": 0}]},
        {"arrival_ns": 5},
    ],
)
def test_the_edges_of_what_can_be_are_read_and_play(tmp_path, session):
    read = open_trace(trace(tmp_path, **session))
    describe(read)
    conversation = Conversation(read.session(0), synthesizer=Synthesizer(1))
    while conversation.next_turn() is not None:
        conversation.answered("hello")


def test_turns_of_results_stand_by_themselves(tmp_path):
    """A result's call is in the answer before: each message is held against the rules alone."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"messages": [HI], "recorded_answer": [{"role": "assistant", "content": None, "tool_calls": [call]}]},
        {"messages": [{"role": "tool", "tool_call_id": "c", "content": "done"}]},
    ]
    assert open_trace(trace(tmp_path, turns=turns)).session(0).turn_count == 2


def test_a_long_circle_is_told_in_short():
    one = Turn(messages=(HI,))
    session = Session(session_id="s", turns=(one,) * 100, branches=(Branch(turns=(one,) * 100, after=99, joined_by=0),))
    check_session(session, "t:2")
    with pytest.raises(TraceError, match="wait for each other") as caught:
        check_branches(session, "t:2")
    assert len(str(caught.value)) < 200


def test_no_reader_gives_a_session_that_would_wait_for_itself(tmp_path):
    """What is wrong in a reader is told when the trace is opened, not by a user that hangs."""
    path = tmp_path / "q.jsonl"
    path.write_text("{}\n")
    one = Turn(messages=(HI,))
    circle = Session(session_id="s", turns=(one,), branches=(Branch(turns=(one,), after=0, joined_by=0),))
    source = Source(path)
    made = IndexedTrace(source, ReadOptions(name="q"), format="x", make=lambda rows, tally: circle)
    with pytest.raises(TraceError, match=r"q\.jsonl:1: session 's': turns wait for each other"):
        made.read_rows(source.rows())


# ------------------------------------------------------------------------------- what holds for the readers of rows

SPAN = {"start_time": 1_700_000_000_000_000_000, "end_time": 1_700_000_000_000_000_001, "name": "x"}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": [HI]}
REPLAY = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def claude(session: str, kind: str, number: int, **message: Any) -> dict[str, Any]:
    return {
        "type": kind, "uuid": f"{session}{number}", "parentUuid": f"{session}{number - 1}" if number else None,
        "sessionId": session, "timestamp": f"2026-01-01T00:00:0{number}.000Z", "message": {"role": kind, **message},
    }  # fmt: skip


def codex(session: str, *items: Any) -> list[dict[str, Any]]:
    head = {"type": "session_meta", "payload": {"id": session, "timestamp": "2026-01-01T00:00:00Z"}}
    rows = [head, *({"type": "response_item", "payload": item} for item in items)]
    return [{"timestamp": f"2026-01-01T00:00:0{at}Z", **row} for at, row in enumerate(rows)]


def said(role: str) -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": "hi"}]}


def request(session: str, output: int) -> dict[str, Any]:
    return {"timestamp": 0, "session_id": session, "input_length": 512, "output_length": output, "hash_ids": [1]}


def end(session: str, output: int) -> dict[str, Any]:
    return {
        "event_type": "request_end", "event_time_unix_ms": 2_000, "agent_context": {"session_id": session},
        "request": {"input_tokens": 9, "output_tokens": output, "request_received_ms": 1_000, "total_time_ms": 900},
    }  # fmt: skip


def chat(ident: int, output: int) -> dict[str, Any]:
    return {
        "chat_id": ident, "parent_chat_id": -1, "timestamp": ident, "input_length": 16, "output_length": output,
        "type": "text", "turn": 1, "hash_ids": [ident],
    }  # fmt: skip


def a_round(session: str, output: int) -> dict[str, Any]:
    return {
        "session_id": session, "round_index": 0, "input_tokens_total": 9, "prefix_tokens": 0, "output_tokens": output,
    }  # fmt: skip


FIRST_CAN_NOT_BE_SENT = {
    "otel-genai": lines(
        {"span_id": "a", "trace_id": "t1", **SPAN, "attributes": {"gen_ai.operation.name": "invoke_agent"}},
        *({"span_id": f"b{n}", "trace_id": f"u{n}", **SPAN, "attributes": CHAT} for n in range(2)),
    ),
    "mooncake": lines(request("a", 0), request("b", 3), request("c", 3)),
    "tracelab-replay": REPLAY + "a,0,0,0,0,5,0\nb,1,0,0,5,5,0\nc,1,0,0,5,5,0\n",
    "tracelab-rounds": lines(a_round("a", 0), a_round("b", 5), a_round("c", 5)),
    "dynamo": lines(end("a", 0), end("b", 4), end("c", 4)),
    "qwen-bailian": lines(chat(1, 0), chat(2, 5), chat(3, 5)),
    "aiperf-multi-turn": lines(
        {"session_id": "a", "turns": [{"text": "x", "role": "system"}]},
        *({"session_id": name, "turns": [{"text": "x"}]} for name in "bc"),
    ),
    "claude-code": lines(
        claude("a", "user", 0, content="hi"),
        *(
            row
            for name in "bc"
            for row in (
                claude(name, "user", 0, content="hi"),
                claude(name, "assistant", 1, id=name, content=[{"type": "text", "text": "x"}]),
            )
        ),
    ),
    "codex": lines(
        *codex("a"), *codex("b", said("user"), said("assistant")), *codex("c", said("user"), said("assistant"))
    ),
    "openai-messages": lines(
        {"session_id": "a", "messages": [{"role": "assistant", "content": "x"}]},
        *({"session_id": name, "messages": [HI]} for name in "bc"),
    ),
    "full-body": lines(
        {"timestamp": 1, "metadata": {"s": "a"}, "body": {"messages": [{"role": "pirate"}]}},
        *({"timestamp": 2, "metadata": {"s": name}, "body": {"model": "m", "messages": [HI]}} for name in "bc"),
    ),
}
OPTIONS: dict[str, dict[str, object]] = {"openai-messages": {"rows": "cumulative"}, "mooncake": {"rows": "cumulative"}}


@pytest.mark.parametrize("format", FIRST_CAN_NOT_BE_SENT)
def test_limit_counts_sessions_that_can_be_sent(tmp_path, format):
    path = tmp_path / "t"
    path.write_text(FIRST_CAN_NOT_BE_SENT[format])
    whole = open_trace(str(path), format=format, options=OPTIONS.get(format))
    assert whole.sessions == 2
    assert sum(whole.skipped.values()) >= 1
    limited = open_trace(str(path), format=format, limit=1, options=OPTIONS.get(format))
    assert limited.sessions == 1
    assert limited.session(0).turns == whole.session(0).turns


def test_ids_that_come_again_are_told_apart_by_their_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        lines({"infersiege_trace": 1}, *({"session_id": name, "turns": [{"messages": [HI]}]} for name in "abaa"))
    )
    read = open_trace(str(path))
    assert [read.session(index).session_id for index in range(4)] == ["a", "b", "a.line-4", "a.line-5"]
    assert read.warnings == (
        "session id came before (first again at line 4): both sessions are played, the later one has its line added to "
        "its id (2 times)",
    )


@pytest.mark.parametrize(
    ("name", "content", "format", "seen"),
    [
        (
            "t.jsonl",
            lines({SECRET: 1, "messages_of": 2}),
            None,
            f"from the keys messages_of, of {len(SECRET)} characters",
        ),
        ("t.jsonl", lines({"k" * 300_000: 1}), None, "from the keys of 300000 characters"),
        ("t.csv", f"{SECRET},x\n1,2\n", "azure", "the header has no column 'TIMESTAMP'"),
        (
            "t.csv",
            f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,{SECRET},2\n",
            None,
            "a text of 29 char",
        ),
        ("t.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{SECRET},1,2\n", None, "TIMESTAMP is"),
        ("t.csv", REPLAY + f"a,0,0,0,{SECRET},1,0\n", None, "input_len is a text of 29 characters"),
        ("t.jsonl", lines({"timestamp": {"x": SECRET}, "body": {"messages": [HI]}}), None, "timestamp is a dict"),
        ("t.jsonl", lines(request("a", 3) | {"input_length": SECRET}), None, "input_length is a text of 29 characters"),
        ("t.jsonl", lines(request("a", 3) | {"input_length": [SECRET]}), None, "input_length is a list"),
    ],
)
def test_tr_15_what_stands_in_the_wrong_place_is_not_shown(tmp_path, name, content, format, seen):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(TraceError) as caught:
        open_trace(str(path), format=format)
    message = str(caught.value)
    assert seen in message
    assert caught.value.hint
    assert "sk-test" not in message + caught.value.hint
    assert "corp.example" not in message + caught.value.hint
    assert len(message) < 300 + len(str(path))


def test_tr_15_keys_that_are_no_fields_are_named_only_where_they_are_words(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(lines({"messages": [HI], SECRET: 1, "quality_score": 1, "k" * 500: 1}))
    warnings = open_trace(str(path)).warnings
    assert "key 'quality_score' is no request field and is not sent" in warnings
    assert f"key of {len(SECRET)} characters is no request field and is not sent" in warnings
    assert "key of 500 characters is no request field and is not sent" in warnings


def test_a_file_with_messages_and_other_spans_is_told(tmp_path):
    """Annotations are called spans, too."""
    path = tmp_path / "t.jsonl"
    path.write_text(lines({"messages": [HI], "spans": [{"start": 0, "end": 2, "label": "x"}]}))
    assert open_trace(str(path)).format == "openai-messages"
    path.write_text(json.dumps({"spans": [{"span_id": "a", "trace_id": "t", **SPAN, "attributes": CHAT}]}, indent=1))
    assert open_trace(str(path)).format == "otel-genai"
