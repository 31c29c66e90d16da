"""Agent trajectories with texts (tau-bench, SWE-agent, mini-swe-agent, ATIF): what becomes of them, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces import Conversation, Synthesizer, Trace, open_trace
from infersiege.traces.formats import normal
from infersiege.traces.sessions import session_checks

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


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(str.strip)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b"]), st.integers() | TEXT | st.none(), max_size=2)


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[str, list[dict[str, Any]]]]:
    """(answer's text, arguments of its calls) of each round of a conversation."""
    return draw(st.lists(st.tuples(TEXT, st.lists(ARGUMENTS, max_size=3)), min_size=1, max_size=4))


def openai_messages(talk: list[tuple[str, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, USER]
    for number, (text, calls) in enumerate(talk):
        idents = [f"{number}-{n}" for n in range(len(calls))]
        answer: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            answer["tool_calls"] = [
                {"id": ident, "type": "function", "function": {"name": "f", "arguments": json.dumps(given)}}
                for ident, given in zip(idents, calls, strict=True)
            ]
        messages += [answer, *map(result, idents)] if calls else [answer, USER]
    return messages


def check_talk(session: Session, talk: list[tuple[str, list[dict[str, Any]]]]) -> None:
    """The session asks for each round's answer, with everything before it."""
    wanted = openai_messages(talk)
    assert len(session.turns) == len(talk)
    for (messages, _), turn in zip(requests(session), session.turns, strict=True):
        assert messages == wanted[: len(messages)]
        assert list(turn.recorded_answer) == [wanted[len(messages)]]


def check_conserved(trace: Trace) -> None:
    assert trace.rows == (trace.sessions or 0) + sum(trace.skipped.values())


def check_normal_form(trace: Trace, folder: Path) -> None:
    with (folder / "normal.jsonl").open("wb") as file:
        normal.write(file, sessions(trace))
    assert sessions(open_trace(str(folder / "normal.jsonl"))) == sessions(trace)


@settings(max_examples=40)
@given(talks=st.lists(rounds(), min_size=1, max_size=3), broken=st.integers(0, 2))
def test_tau_bench_talks_come_back_whole(tmp_path_factory, talks, broken):
    folder = tmp_path_factory.mktemp("tau")
    entries: list[dict[str, Any]] = [{"traj": openai_messages(talk), "task_id": n} for n, talk in enumerate(talks)]
    entries += [{"traj": [USER, result("nobody")]}] * broken
    (folder / "t.json").write_text(json.dumps(entries), encoding="utf-8")
    trace = open_trace(str(folder / "t.json"))
    assert (trace.format, trace.sessions) == ("tau-bench", len(talks))
    assert trace.skipped == ({"tool_result_without_call": broken} if broken else {})
    for session, talk in zip(sessions(trace), talks, strict=True):
        check_talk(session, talk)
    check_requests(trace)
    check_conserved(trace)
    check_normal_form(trace, folder)


@pytest.mark.parametrize(
    ("arguments", "sent", "why"),
    [
        ('{ "x": 1}', '{ "x": 1}', "a string is carried to the letter"),
        ({"x": 1}, '{"x":1}', "the wire format is a string"),
        ("", "{}", "no arguments are an empty object"),
        (None, "{}", "nor are null ones"),
        ("rm -rf", '{"arguments":"rm -rf"}', "what is no JSON stays in the history, as servers parse it"),
        ("[1]", '{"arguments":"[1]"}', "they want an object"),
    ],
)
def test_arguments_are_strings_of_json_objects(tmp_path, arguments, sent, why):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"traj": [USER, calling("a", arguments=arguments), result("a"), ANSWER]}]))
    trace = open_trace(str(path))
    (call,) = trace.session(0).turns[0].recorded_answer[0]["tool_calls"]
    assert call["function"]["arguments"] == sent, why
    assert any("no JSON object" in warning for warning in trace.warnings) == ('"arguments"' in sent)
    check_requests(trace)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no_messages"),
        ([USER], "no_answer"),
        ([ANSWER], "no_user_message"),
        ([{"role": "robot", "content": "x"}], "not_a_message"),
        ([USER, result("a"), ANSWER], "tool_result_without_call"),
        ([USER, calling("a"), USER, ANSWER], "tool_call_without_result"),
        ([USER, calling("a", "a"), result("a"), ANSWER], "bad_tool_call"),
        ([USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}, ANSWER], "bad_tool_call"),
        ([USER, {"role": "assistant", "tool_calls": 3}, ANSWER], "bad_tool_call"),
        ([{"role": "user"}, ANSWER], "message_without_content"),
        ([USER, ANSWER, {"role": "user", "content": " "}, ANSWER], "empty_user_message"),
    ],
)
def test_conversations_of_which_no_request_can_be_made_are_skipped(tmp_path, messages, reason):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"traj": messages}, {"traj": [USER, ANSWER]}]))
    trace = open_trace(str(path), format="tau-bench")
    assert trace.skipped == {reason: 1}
    assert (trace.rows, trace.sessions, trace.session(0).session_id) == (2, 1, "task-1-trial-0")


def test_empty_user_messages_between_others_are_left_out(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"traj": [USER, ANSWER, {"role": "user", "content": ""}, USER, ANSWER, USER]}]))
    assert [turn.messages for turn in open_trace(str(path)).session(0).turns] == [(USER,), (USER,)]


def test_errors_hold_no_text_of_the_recording(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"traj": "sk-test-000 of a@example.org"}]))
    with pytest.raises(TraceError) as caught:
        open_trace(str(path), format="tau-bench")
    assert "sk-test" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ SWE-agent


def test_swe_agent_example():
    """The demonstration is context, results have their calls' ids, a tool's time is the next turn's delay."""
    trace = open_trace("swe-agent.traj", base=EXAMPLES)
    session = trace.session(0)
    assert (session.session_id, session.arrival_ns, session.source_line) == ("swe-agent", None, 1)
    assert [turn.delay_ns for turn in session.turns] == [0, 250_000_000, 2_500_000_000]
    system, demo, task = session.turns[0].messages
    assert (system["role"], demo["role"]) == ("system", "user")
    assert task["content"] == [{"type": "text", "text": "The tower clock stands still. Please mend it."}]
    assert session.turns[1].messages == ({"role": "tool", "tool_call_id": "call_1", "content": "hall\ntower"},)
    assert session.turns[2].recorded_answer == (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_3", "type": "function", "function": {"name": "submit", "arguments": "{}"}}],
        },
    )
    assert [tool["function"]["name"] for tool in session.tools or ()] == ["list_clocks", "submit", "wind"]
    assert check_requests(trace) == 3


def test_swe_agent_text_example():
    """Commands as text: no tools; what another agent saw is not in this one's requests."""
    trace = open_trace("swe-agent.text.traj", base=EXAMPLES)
    session = trace.session(0)
    assert session.tools is None
    assert [[message["role"] for message in turn.messages] for turn in session.turns] == [["system", "user"], ["user"]]
    assert trace.warnings == ("entries of other agents are not in this agent's requests",)


def entry(role: str, content: object = "x", **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, "agent": "main", **more}


def swe_agent(path: Path, *history: dict[str, Any], **more: object) -> str:
    path.write_text(json.dumps({"history": history, "info": {}, **more}, indent=1), encoding="utf-8")
    return str(path)


def test_swe_agent_demonstrations_with_answers_are_no_turns(tmp_path):
    demo = [entry("user", is_demo=True), entry("assistant", is_demo=True, **_calls("d")), _observed("d", is_demo=True)]
    steps = [{"action": "ls", "execution_time": 1.5}]
    history = [entry("system"), *demo, entry("user", "task"), entry("assistant", action="ls")]
    trace = open_trace(swe_agent(tmp_path / "a.traj", *history, trajectory=steps), format="swe-agent")
    (turn,) = trace.session(0).turns
    assert [message["role"] for message in turn.messages] == ["system", "user", "assistant", "tool", "user"]
    check_requests(trace)


def _calls(*idents: str) -> dict[str, Any]:
    return {"tool_calls": calling(*idents)["tool_calls"]}


def _observed(*idents: str, **more: object) -> dict[str, Any]:
    return entry("tool", "seen", tool_call_ids=list(idents), **more)


@pytest.mark.parametrize(
    ("actions", "steps", "delays", "why"),
    [
        (["a", "b"], [("a", 1), ("b", 2)], [0, 1], "a step for each answer"),
        (["a", "b"], [("a", 1), ("", 9), ("b", 2)], [0, 1], "a query that failed has a step and no answer"),
        (["a", "b", "c"], [("z", 5), ("b", 2)], [0, 0, 2], "an answer without a step is followed at once"),
        (["a", "b"], [("a", None), ("b", 2)], [0, 0], "an action that did not run"),
        (["a", "b"], [], [0, 0], "no trajectory at all"),
    ],
)
def test_swe_agent_delays_are_those_of_the_steps(tmp_path, actions, steps, delays, why):
    said = [one for action in actions for one in (entry("assistant", action=action), entry("user", "seen"))]
    trajectory = [{"action": action, "execution_time": seconds} for action, seconds in steps]
    path = swe_agent(tmp_path / "a.traj", entry("user"), *said, trajectory=trajectory)
    session = open_trace(path, format="swe-agent").session(0)
    assert [turn.delay_ns / 1e9 for turn in session.turns] == delays, why


def test_swe_agent_observation_of_several_calls_answers_each(tmp_path):
    path = swe_agent(
        tmp_path / "a.traj",
        entry("user"),
        entry("assistant", **_calls("a", "b")),
        _observed("a", "b"),
        entry("assistant"),
    )
    trace = open_trace(path, format="swe-agent")
    assert [message["content"] for message in trace.session(0).turns[1].messages] == ["seen", ""]
    check_requests(trace)


def test_swe_agent_folder_is_a_session_a_file_with_the_tools_of_all(tmp_path):
    for name, function in (("b", "look"), ("a", "wind")):
        (tmp_path / "run" / name).mkdir(parents=True)
        history = [entry("user"), entry("assistant", tool_calls=calling("1", name=function)["tool_calls"], action="x")]
        swe_agent(tmp_path / "run" / name / "task.traj", *history, trajectory=[{"action": "x", "thought": ""}])
    trace = open_trace("run", base=tmp_path)
    assert trace.format == "swe-agent"
    assert [session.session_id for session in sessions(trace)] == ["a/task", "b/task"]
    assert {len(session.tools or ()) for session in sessions(trace)} == {2}
    assert sessions(open_trace("run", base=tmp_path, limit=1)) == sessions(trace)[:1]


def test_swe_agent_attempts(tmp_path):
    run = {"history": [entry("user"), entry("assistant")], "trajectory": []}
    other = {"history": [entry("user", "y"), entry("assistant")], "trajectory": []}
    for file in ({"attempts": [other, run]}, {"attempts": [run, other], **run}):
        (tmp_path / "a.traj").write_text(json.dumps({**file, "info": {"action": 1}}))
        trace = open_trace(str(tmp_path / "a.traj"))
        assert trace.session(0).turns[0].messages[0]["content"] == "x"
        assert trace.warnings == ("attempts beside the one that was chosen are not played",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"history": 3}', r"a\.traj:1: Expected `array \| null`, got `int` - at `\$\.history`"),
        ('{"history": [{"content": "x"}]}', r"missing required field `role` - at `\$\.history\[0\]`"),
        ('{"history": [{"role": "user", "content": 3}]}', r"at `\$\.history\[0\]\.content`"),
        ('{"history": [], "trajectory": [{"execution_time": "1"}]}', r"at `\$\.trajectory\[0\]\.execution_time`"),
        ('{"history": [', r"a\.traj:1: is not JSON"),
        ("[]", "Expected `object`, got `array`"),
        (
            '{"history": [{"role": "user", "content": "x"}, {"role": "assistant"}], '
            '"trajectory": [{"execution_time": -1}]}',
            "execution_time of step 0 is no number of seconds",
        ),
        ('{"info": {}}', "none of 1 rows can be sent: no_messages"),
    ],
)
def test_swe_agent_faults(tmp_path, text, message):
    path = tmp_path / "a.traj"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        open_trace(str(path), format="swe-agent")


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        (
            [entry("user"), entry("assistant", **_calls("a")), entry("tool", "x"), entry("assistant")],
            "tool_result_without_call",
        ),
        (
            [entry("user"), entry("assistant", **_calls("a")), _observed("b"), entry("assistant")],
            "tool_result_without_call",
        ),
        ([entry("user"), entry("assistant", tool_calls=[{"id": 1}]), entry("assistant")], "bad_tool_call"),
    ],
)
def test_swe_agent_skips(tmp_path, history, reason):
    swe_agent(tmp_path / "a.traj", *history)
    swe_agent(tmp_path / "b.traj", entry("user"), entry("assistant"))
    assert open_trace(str(tmp_path), format="swe-agent").skipped == {reason: 1}


@settings(max_examples=30)
@given(talk=rounds(), seconds=st.lists(st.floats(0, 1e6), max_size=4))
def test_swe_agent_talks_come_back_whole(tmp_path_factory, talk, seconds):
    folder = tmp_path_factory.mktemp("swe")
    history = []
    for message in openai_messages(talk):
        if "tool_call_id" in message:
            message = {**message, "tool_call_ids": [message["tool_call_id"]]}
            del message["tool_call_id"]
        history.append({**message, "agent": "main", "action": "x", "thought": message["content"]})
    path = swe_agent(folder / "a.traj", *history, trajectory=[{"execution_time": value} for value in seconds])
    trace = open_trace(path, format="swe-agent")
    check_talk(trace.session(0), talk)
    check_requests(trace)
    check_conserved(trace)
    check_normal_form(trace, folder)
    if len(seconds) == len(talk):
        delays = [turn.delay_ns / 1e9 for turn in trace.session(0).turns]
        assert delays == pytest.approx([0, *seconds[:-1]], abs=1e-9)


def test_swe_agent_real_file(shared):
    trace = open_trace("swe-agent", base=shared / "traces")
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("swe-agent", 1, 1, {})
    assert check_requests(trace) == 13
    session = trace.session(0)
    assert session.session_id == "marshmallow-1867.function_calling"
    assert [round(turn.delay_ns / 1e6) for turn in session.turns][:4] == [0, 116, 138, 1951]
    names = [tool["function"]["name"] for tool in session.tools or ()]
    assert names == ["bash", "create", "edit", "find_file", "insert", "open", "submit"]


# ------------------------------------------------------------------------------------------------ mini-swe-agent


def test_mini_swe_agent_examples():
    """Times and tokens where the file has them; nothing after the last answer."""
    trace = open_trace("mini-swe-agent.json", base=EXAMPLES)
    assert check_requests(trace) == 2
    assert trace.session(0).tools is None
    trace = open_trace("mini-swe-agent.tools.json", base=EXAMPLES)
    session = trace.session(0)
    assert check_requests(trace) == 3
    assert [turn.delay_ns for turn in session.turns] == [0, 1_250_000_000, 0]
    assert [turn.asked_prompt_tokens for turn in session.turns] == [120, 198, 230]
    assert [turn.asked_output_tokens for turn in session.turns] == [31, 6, 18]
    assert [tool["function"]["name"] for tool in session.tools or ()] == ["bash"]


def test_mini_swe_agent_talks_of_the_responses_api(tmp_path):
    messages = [
        {"role": "user", "content": "count"},
        {
            "object": "response",
            "output": [
                {"type": "reasoning", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "ls"}'},
            ],
            "usage": {"input_tokens": 30, "output_tokens": 9},
            "extra": {"timestamp": 100.0},
        },
        {"type": "function_call_output", "call_id": "c1", "output": "7", "extra": {"timestamp": 101.5}},
        {"object": "response", "output": [], "extra": {"timestamp": 103.0}},
        {"role": "exit", "content": "", "extra": {}},
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"messages": messages, "trajectory_format": "mini-swe-agent-1.1"}, indent=1))
    trace = open_trace(str(path))
    assert trace.format == "mini-swe-agent"
    check_requests(trace)
    first, second = trace.session(0).turns
    (answer,) = first.recorded_answer
    assert (answer["content"], answer["tool_calls"][0]["id"]) == ("I look.", "c1")
    assert (first.asked_prompt_tokens, first.asked_output_tokens) == (30, 9)
    assert second.messages == ({"role": "tool", "tool_call_id": "c1", "content": "7"},)
    assert second.delay_ns == 1_500_000_000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"a\.json:1: Expected `object \| array`, got `int`"),
        ([3], r"Expected `object`, got `int` - at `\$\[0\]`"),
        ({"info": {}}, "missing required field `messages`"),
        ([{"role": "user", "content": "x", "extra": {"timestamp": "soon"}}], "that is no date"),
        ([{"role": "user", "content": "x", "extra": {"timestamp": -1}}], "no number of seconds"),
        (
            [USER, {**ANSWER, "extra": {"response": {"usage": {"prompt_tokens": -3}}}}],
            "prompt_tokens is a int, a whole number of at least 0",
        ),
        (
            [
                USER,
                {**ANSWER, "extra": {"timestamp": 0}},
                {**USER, "extra": {"timestamp": 5e9}},
                ANSWER,
            ],
            "a delay is 2 centuries",
        ),
    ],
)
def test_mini_swe_agent_faults(tmp_path, value, message):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(value))
    with pytest.raises(TraceError, match=message):
        open_trace(str(path), format="mini-swe-agent")


@settings(max_examples=30)
@given(talk=rounds(), stamps=st.lists(st.none() | st.integers(0, 10**9), min_size=20, max_size=20))
def test_mini_swe_agent_talks_come_back_whole(tmp_path_factory, talk, stamps):
    """Delays are never negative, and 0 where an end is not known."""
    folder = tmp_path_factory.mktemp("mini")
    wanted = openai_messages(talk)
    messages = [
        message if at is None else {**message, "extra": {"timestamp": at}}
        for message, at in zip(wanted, stamps, strict=False)
    ] + wanted[20:]
    (folder / "a.json").write_text(json.dumps(messages, indent=1), encoding="utf-8")
    trace = open_trace(str(folder / "a.json"))
    assert trace.format == "mini-swe-agent"
    check_talk(trace.session(0), talk)
    check_requests(trace)
    check_conserved(trace)
    check_normal_form(trace, folder)
    at = [message.get("extra", {}).get("timestamp") for message in messages]
    answers = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    for turn, before, answer in zip(trace.session(0).turns[1:], answers, answers[1:], strict=False):
        known = [time for time in at[before + 1 : answer] if time is not None]
        whole = at[before] is not None and known
        assert turn.delay_ns == (max(0, max(known) - at[before]) * 10**9 if whole else 0)


def test_mini_swe_agent_real_files(shared):
    trace = open_trace("mini-swe-agent", base=shared / "traces")
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("mini-swe-agent", 2, 2, {})
    assert [(session.session_id, len(session.turns)) for session in sessions(trace)] == [
        ("github_issue", 10),
        ("local", 2),
    ]
    assert check_requests(trace) == 12


# ------------------------------------------------------------------------------------------------ ATIF


def test_atif_example_with_subagents():
    """Two helpers run beside each other after the answer that called them; the next request waits for both."""
    trace = open_trace("atif.jsonl", base=EXAMPLES)
    assert trace.warnings == ()
    session = trace.session(0)
    session_checks.check_branches(session, "atif")
    assert [(branch.after, branch.joined_by, branch.inherits) for branch in session.branches] == [(0, 1, False)] * 2
    assert [turn.messages[0]["content"] for turn in session.turns] == [
        "You keep the clocks.",
        "The hall clock is right.",
        [
            {"type": "text", "text": "And this one?"},
            {"type": "image_url", "image_url": {"url": "https://museum.invalid/clock.png"}},
        ],
    ]
    assert [turn.delay_ns for turn in session.turns] == [0, 0, 15_000_000_000]
    assert [turn.asked_prompt_tokens for turn in session.turns] == [120, 210, 300]
    assert [turn.asked_output_tokens for turn in session.all_turns()] == [40, 6, 5, 12, 5, 12, 5]
    (answer,) = session.turns[0].recorded_answer
    assert (answer["content"], [call["id"] for call in answer["tool_calls"]]) == (None, ["d1", "d2"])
    assert session.tools is not None and session.tools[0]["function"]["description"] == "Give a task to a helper."
    assert list(trace.arrivals_ns or ()) == [0, 60_000_000_000]
    assert check_requests(trace) == 5


def test_atif_calls_that_were_written_as_text():
    """Results without an id are user messages, and the calls stay in the answer's text."""
    session = open_trace("atif.jsonl", base=EXAMPLES).session(1)
    assert session.tools is None
    assert session.turns[0].recorded_answer[0]["content"].startswith('I list them.\n[{"name":"keystrokes"')
    assert session.turns[1].messages == ({"role": "user", "content": "hall tower"},)


def step(source: str, message: object = "x", **more: object) -> dict[str, Any]:
    return {"step_id": 1, "source": source, "message": message, **more}


def atif(path: Path, *steps: dict[str, Any], **more: object) -> str:
    value = {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": {"name": "a"}, "steps": list(steps), **more}
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return str(path)


def delegating(*names: str) -> dict[str, Any]:
    """A step that gives tasks to subagents of these names."""
    return step(
        "agent",
        tool_calls=[{"tool_call_id": name, "function_name": "delegate", "arguments": {}} for name in names],
        observation={
            "results": [
                {"source_call_id": name, "subagent_trajectory_ref": [{"trajectory_id": name}]} for name in names
            ]
        },
    )


def child(name: str, *steps: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"trajectory_id": name, "agent": {"name": name}, "steps": list(steps), **more}


def test_atif_nested_subagents_are_numbered_through(tmp_path):
    grandchild = child("c", step("user"), step("agent"))
    second = child("b", step("user"), delegating("c"), step("agent"), subagent_trajectories=[grandchild])
    first = child("d", step("user"), step("agent"))
    trace = open_trace(
        atif(
            tmp_path / "a.json",
            step("user"),
            delegating("b", "d"),
            step("agent"),
            subagent_trajectories=[first, second],
        )
    )
    session = trace.session(0)
    session_checks.check_branches(session, "atif")
    spans = [(branch.after, branch.joined_by, len(branch.turns)) for branch in session.branches]
    # The main line is 0 and 1, b is 2 and 3, its own child 4, d is 5.
    assert spans == [(0, 1, 2), (2, 3, 1), (0, 1, 1)]


def test_atif_subagents_of_the_last_answers(tmp_path):
    """Nobody waits for those of the main line's last answer; a subagent's last one is waited for as the subagent is."""
    grandchild = child("c", step("user"), step("agent"))
    first = child("b", step("user"), delegating("c"), subagent_trajectories=[grandchild])
    last = child("d", step("user"), step("agent"))
    steps = [step("user"), delegating("b"), delegating("d")]
    session = open_trace(atif(tmp_path / "a.json", *steps, subagent_trajectories=[first, last])).session(0)
    session_checks.check_branches(session, "atif")
    assert [(branch.after, branch.joined_by) for branch in session.branches] == [(0, 1), (2, 1), (1, None)]


@pytest.mark.parametrize(
    ("steps", "more", "warning"),
    [
        ([step("user"), delegating("b"), step("agent")], {}, "subagents that are in other files are not branches"),
        (
            [step("user"), step("agent")],
            {"subagent_trajectories": [child("b", step("user"), step("agent"))]},
            "subagents that no step refers to are not played",
        ),
        (
            [step("user"), delegating("b"), step("agent")],
            {"subagent_trajectories": [child("b", step("user"))]},
            "subagents of which no request can be made are not played (no_answer)",
        ),
        (
            [step("user"), step("agent"), step("system", "compacted"), step("user"), step("agent")],
            {},
            "system steps after the first answer are not sent",
        ),
        (
            [
                step("user", [{"type": "image", "source": {"path": "a.png"}}, {"type": "text", "text": "x"}]),
                step("agent"),
            ],
            {},
            "parts of messages that are files are not sent",
        ),
        (
            [
                step("user"),
                step("agent", tool_calls=[{"tool_call_id": "1", "function_name": "f", "arguments": {}}]),
                step("agent"),
            ],
            {},
            "calls without a result are sent with an empty one",
        ),
    ],
)
def test_atif_what_is_left_out_is_warned_of(tmp_path, steps, more, warning):
    trace = open_trace(atif(tmp_path / "a.json", *steps, **more))
    assert warning in trace.warnings
    assert trace.session(0).branches == ()
    check_requests(trace)


def test_atif_context_that_was_copied_or_made_without_a_model_is_no_request(tmp_path):
    copied = [step("user", "old", is_copied_context=True), step("agent", "older", is_copied_context=True)]
    for steps in (
        [*copied, step("user", "new", timestamp="2026-01-06T08:00:00Z"), step("agent")],
        [
            step("user", "old", timestamp="2026-01-06T08:00:00Z"),
            step("agent", "older", llm_call_count=0),
            step("user", "new"),
            step("agent"),
        ],
    ):
        trace = open_trace(atif(tmp_path / "a.json", *steps))
        (turn,) = trace.session(0).turns
        assert [message["content"] for message in turn.messages] == ["old", "older", "new"]
        assert list(trace.arrivals_ns or ()) == [0]


def test_tr_09_atif_gap_of_two_answers_holds_the_second_one(tmp_path):
    """At 10 tokens a second an answer of 40 takes 4 of the 10 seconds between them."""
    steps = [
        step("user", timestamp="2026-01-06T08:00:00Z"),
        step("agent", timestamp="2026-01-06T08:00:01Z", observation={"results": [{"content": "seen"}]}),
        step("agent", timestamp="2026-01-06T08:00:11Z", metrics={"completion_tokens": 40}),
    ]
    path = atif(tmp_path / "a.json", *steps)
    assert [turn.delay_ns for turn in open_trace(path).session(0).turns] == [0, 0]
    for rate, delay_s in ((10.0, 6), (1.0, 0)):
        turns = open_trace(path, options={"answer_tokens_per_s": rate}).session(0).turns
        assert [turn.delay_ns for turn in turns] == [0, delay_s * 10**9]


def test_atif_reasoning_is_sent_where_it_is_asked_for(tmp_path):
    path = atif(tmp_path / "a.json", step("user"), step("agent", reasoning_content="why"), step("user"), step("agent"))
    (answer,) = open_trace(path).session(0).turns[0].recorded_answer
    assert answer == {"role": "assistant", "content": "x"}
    (answer,) = open_trace(path, options={"reasoning": True}).session(0).turns[0].recorded_answer
    assert answer["reasoning_content"] == "why"


@pytest.mark.parametrize(
    ("definitions", "sent"),
    [
        ([{"type": "function", "function": {"name": "f"}}], {"type": "function", "function": {"name": "f"}}),
        (
            [{"name": "f", "input_schema": {"type": "object"}}],
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
        ),
        ([], None),
    ],
)
def test_atif_tool_definitions_are_openais(tmp_path, definitions, sent):
    path = atif(tmp_path / "a.json", step("user"), step("agent"), agent={"name": "a", "tool_definitions": definitions})
    assert open_trace(path).session(0).tools == (None if sent is None else (sent,))


@pytest.mark.parametrize(
    ("steps", "more", "reason"),
    [
        ([step("robot")], {}, "unknown_source"),
        ([step("user"), step("agent")], {"agent": {"tool_definitions": [{"x": 1}]}}, "bad_tools"),
        (
            [step("user"), step("agent", observation={"results": [{"source_call_id": "z", "content": "x"}]})],
            {},
            "tool_result_without_call",
        ),
        ([step("agent")], {}, "no_user_message"),
        ([], {}, "no_messages"),
    ],
)
def test_atif_skips(tmp_path, steps, more, reason):
    atif(tmp_path / "a.json", *steps, **more)
    atif(tmp_path / "b.json", step("user"), step("agent"))
    trace = open_trace(str(tmp_path), format="atif")
    assert (trace.rows, trace.sessions, trace.skipped) == (2, 1, {reason: 1})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"steps": 3}, r"a\.json:1: Expected `array`, got `int` - at `\$\.steps`"),
        ({"steps": [{"message": "x"}]}, "missing required field `source`"),
        ({"steps": [step("agent", tool_calls=[{"function_name": "f"}])]}, "missing required field `tool_call_id`"),
        ({"steps": [step("agent", metrics={"prompt_tokens": -1})]}, "Expected `int` >= 0"),
        ({"steps": [step("user", timestamp="noon"), step("agent")]}, "timestamp of step 0 is a string of 4"),
        ({"steps": [step("user", timestamp="9999-01-01T00:00:00"), step("agent")]}, "no date of our time"),
    ],
)
def test_atif_faults(tmp_path, more, message):
    with pytest.raises(TraceError, match=message):
        open_trace(atif(tmp_path / "a.json", **more))


@settings(max_examples=30)
@given(talk=rounds(), gaps=st.lists(st.integers(0, 10**5), min_size=12, max_size=12))
def test_atif_talks_come_back_whole(tmp_path_factory, talk, gaps):
    folder = tmp_path_factory.mktemp("atif")
    steps = [step("system", "s"), step("user", "hi")]
    for number, (text, calls) in enumerate(talk):
        given_calls = [
            {"tool_call_id": f"{number}-{n}", "function_name": "f", "arguments": arguments}
            for n, arguments in enumerate(calls)
        ]
        results = [{"source_call_id": call["tool_call_id"], "content": "r"} for call in given_calls]
        steps.append(step("agent", text, tool_calls=given_calls, observation={"results": results}))
        if not calls:
            steps.append(step("user", "hi"))
    now = datetime(2026, 1, 6, tzinfo=UTC)
    delays = [0]
    for one, gap in zip(steps, gaps, strict=False):
        now += timedelta(milliseconds=gap)
        one["timestamp"] = now.isoformat()
        if one["source"] != "system" and one is not steps[1]:
            delays += [gap * 10**6] if one["source"] == "user" else [0] if one["tool_calls"] else []
    trace = open_trace(atif(folder / "a.json", *steps))
    session = trace.session(0)
    compact = [(text, [json.loads(json.dumps(arguments)) for arguments in calls]) for text, calls in talk]
    assert [len(turn.recorded_answer) for turn in session.turns] == [1] * len(compact)
    for turn, (text, calls) in zip(session.turns, compact, strict=True):
        (answer,) = turn.recorded_answer
        assert answer["content"] == text
        assert [json.loads(call["function"]["arguments"]) for call in answer.get("tool_calls", ())] == calls
    check_requests(trace)
    check_conserved(trace)
    check_normal_form(trace, folder)
    assert [turn.delay_ns for turn in session.turns] == delays[: len(session.turns)]
