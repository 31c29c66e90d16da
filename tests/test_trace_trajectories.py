"""Agent trajectories with texts (tau-bench, SWE-agent, mini-swe-agent, ATIF): what becomes of them, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces import Conversation, Synthesizer, Trace, open_trace

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}


def calling(*idents: str, arguments: object = "{}", name: str = "f") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}} for i in idents
        ],
    }


def result(ident: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": ident, "content": "r"}


def sessions(trace: Trace) -> list[Session]:
    assert trace.sessions is not None
    return [trace.session(index) for index in range(trace.sessions)]


def requests(session: Session) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]:
    """(messages, tools) of each request of the main line, in recorded mode."""
    conversation = Conversation(session, synthesizer=Synthesizer(1))
    while (turn := conversation.next_turn()) is not None:
        yield turn.messages, turn.tools
        conversation.answered("live")


def check_request(messages: list[dict[str, Any]]) -> None:
    """What OpenAI-compatible servers want of a request's messages."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
            assert isinstance(message["content"], str | list)
            continue
        assert not open_calls, "a call without its result"
        assert set(message) <= {"role", "content", "tool_calls", "reasoning_content", "name"}
        for call in message.get("tool_calls", ()):
            assert set(call) == {"id", "type", "function"}
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            open_calls.add(call["id"])
        if message["content"] is None:
            assert open_calls, "only a message with calls has no content"
        if message["role"] in {"user", "system"}:
            assert message["content"]
    assert not open_calls
    assert messages[-1]["role"] in {"user", "tool"}


def check_requests(trace: Trace) -> int:
    """Number of requests of all main lines, each checked."""
    count = 0
    for session in sessions(trace):
        for messages, _ in requests(session):
            check_request(messages)
            count += 1
    return count


# ------------------------------------------------------------------------------------------------ tau-bench


def test_tau_bench_derives_tools_and_drops_the_users_last_word(tmp_path):
    first = calling("a", arguments='{"id": "x", "count": 1}')
    second = calling("b", arguments='{"id": "y"}')
    traj = [{"role": "system", "content": "p"}, USER, first, result("a"), second, result("b"), ANSWER, USER]
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"task_id": 3, "trial": 1, "reward": 1.0, "traj": traj}], indent=1))
    trace = open_trace(str(path))
    session = trace.session(0)
    assert (trace.format, session.session_id) == ("tau-bench", "task-3-trial-1")
    assert len(session.turns) == 3, "the simulated user's last message was never sent"
    assert session.tools is not None
    assert session.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"count": {"type": "number"}, "id": {"type": "string"}},
        "required": ["id"],
    }
    assert any("tool schemas were made" in warning for warning in trace.warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "is no JSON array"),
        ('{"traj": 1}', "no JSON array"),
        ("[3]", r"t\.json:0: Expected `object`"),
        ('[{"traj": []}, {"task_id": 1}]', r"t\.json:1: Object missing required field `traj`"),
        ('[{"traj": [3]}]', r"Expected `object`, got `int` - at `\$\.traj\[0\]`"),
        ('[{"traj": [], "task_id": [1]}]', r"at `\$\.task_id`"),
        ("[]", "the file has no rows"),
    ],
)
def test_tau_bench_faults(tmp_path, text, message):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        open_trace(str(path), format="tau-bench")


def test_tau_bench_requests_pair_every_tool_result_with_its_call(shared):
    trace = open_trace("tau-bench/gpt-4o-airline.first40.json", base=shared / "traces")
    assert (trace.rows, trace.sessions, trace.skipped) == (40, 40, {})
    assert check_requests(trace) == 571, "one request per recorded answer"
    results = 0
    for session in sessions(trace):
        assert session.tools is not None
        names = {tool["function"]["name"] for tool in session.tools}
        for turn in session.turns:
            results += sum(message["role"] == "tool" for message in turn.messages)
            calls = [call for message in turn.recorded_answer for call in message.get("tool_calls", ())]
            assert {call["function"]["name"] for call in calls} <= names
    assert results == 247, "254 in the file, 7 of which came after the last answer"
    assert {len(session.tools or ()) for session in sessions(trace)} == {13}


def test_tau_bench_limit_changes_no_tools(shared):
    whole = open_trace("tau-bench/gpt-4o-airline.first40.json", base=shared / "traces")
    limited = open_trace("tau-bench/gpt-4o-airline.first40.json", base=shared / "traces", limit=2)
    assert limited.rows == limited.sessions == 2
    assert sessions(limited) == sessions(whole)[:2]
