"""OpenHands event histories: messages, delays and condensations as the agent had them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trace_trajectories import (
    EXAMPLES,
    check_conserved,
    check_normal_form,
    check_requests,
    check_talk,
    openai_messages,
    rounds,
    sessions,
)

from infersiege.errors import TraceError
from infersiege.traces import Trace, open_trace


def event(ident: int, source: str, **more: object) -> dict[str, Any]:
    return {"id": ident, "timestamp": f"2026-01-05T10:{ident // 60:02}:{ident % 60:02}", "source": source, **more}


def asked(ident: int, text: str = "hi") -> dict[str, Any]:
    return event(ident, "user", action="message", args={"content": text})


def metadata(response: str | None, idents: list[str], call: str, content: str | None = "x", **more: object) -> Any:
    """`tool_call_metadata` of one call; without a response it was not stored."""
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in idents]
    stored = {"id": response, "choices": [{"message": {"role": "assistant", "content": content, "tool_calls": calls}}]}
    return {
        "function_name": "f",
        "tool_call_id": call,
        "model_response": {**stored, **more} if response else None,
        "total_calls_in_response": len(idents),
    }


def acted(ident: int, of: Any, action: str = "run", **args: object) -> dict[str, Any]:
    return event(ident, "agent", action=action, args=args, tool_call_metadata=of)


def seen(ident: int, of: Any = None, text: str = "r", observation: str = "read", **more: object) -> dict[str, Any]:
    return event(ident, "agent", observation=observation, content=text, tool_call_metadata=of, **more)


def opened(folder: Path, *histories: list[Any], metrics: object = None, format: str | None = None) -> Trace:
    rows = [{"instance_id": f"t{n}", "history": history, "metrics": metrics} for n, history in enumerate(histories)]
    path = folder / "output.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return open_trace(str(path), format=format)


def contents(trace: Trace, turn: int, index: int = 0) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in trace.session(index).turns[turn].messages]


def test_example():
    """Two calls of one response, a command's end, an error, instructions that were recalled, and a condensation."""
    trace = open_trace("openhands.jsonl", base=EXAMPLES)
    session = trace.session(0)
    assert (trace.warnings, session.session_id, session.source_line) == ((), "museum__clock-1", 1)
    assert [tool["function"]["name"] for tool in session.tools or ()] == ["execute_bash", "finish"]
    assert contents(trace, 0)[1:] == [("user", "Mend the tower clock."), ("user", "Oil is in the cellar.")]
    (answer,) = session.turns[0].recorded_answer
    assert [call["id"] for call in answer["tool_calls"]] == ["c1", "c2"], "one message for one response"
    assert contents(trace, 1) == [
        ("tool", "tower\n[Current working directory: /museum]\n[Command finished with exit code 0]"),
        ("tool", "No such command.\n[Error occurred in processing last action]"),
    ]
    assert session.turns[2].replaces_history, "what was forgotten is gone"
    assert [role for role, _ in contents(trace, 2)] == ["system", "user", "user", "user", "assistant", "tool"]
    assert contents(trace, 2)[3] == ("user", "The museum has one clock, in the tower.")
    assert session.turns[2].recorded_answer == ({"role": "assistant", "content": "It goes."},)
    # The second response came 4 s after the first one and took 1.5 s; the third 5 s after that and took 2 s.
    assert [turn.delay_ns for turn in session.turns] == [0, 2_500_000_000, 3_000_000_000]
    assert [turn.asked_prompt_tokens for turn in session.turns] == [310, 420, 260]
    assert [turn.asked_output_tokens for turn in session.turns] == [52, 24, 19]
    assert list(trace.arrivals_ns or ()) == [0, 119_900_000_000]
    assert check_requests(trace) == 5


def test_example_of_an_older_file():
    """Pairs of action and observation, commands as text, no latencies."""
    session = open_trace("openhands.jsonl", base=EXAMPLES).session(1)
    assert session.tools is None
    first, second = session.turns
    assert first.recorded_answer[0]["content"] == "I compare them.\n<execute_bash>\ncompare\n</execute_bash>"
    assert second.messages == ({"role": "user", "content": "hall: -2 s"},)
    assert second.delay_ns == 1_500_000_000
    assert second.recorded_answer[0]["content"] == "The one in the hall."


def test_results_stand_behind_their_call_whatever_came_between(tmp_path):
    """As OpenHands does: an answer is in the history when all its calls have their results."""
    of = [metadata("r1", ["a", "b"], call) for call in ("a", "b")]
    history = [asked(0), acted(1, of[0]), acted(2, of[1]), asked(3, "wait"), seen(4, of[1]), seen(5, of[0])]
    last = metadata("r2", ["c"], "c")
    trace = opened(tmp_path, [*history, acted(6, last)])
    (first, second) = trace.session(0).turns
    assert [message["role"] for message in first.messages] == ["user", "user"]
    assert [message.get("tool_call_id") for message in second.messages] == ["a", "b"]
    check_requests(trace)


def test_answers_without_results_are_left_out_unless_last(tmp_path):
    lost, last = metadata("r1", ["a"], "a"), metadata("r2", ["b"], "b")
    trace = opened(tmp_path, [asked(0), acted(1, lost), asked(2, "go on"), acted(3, last)])
    (turn,) = trace.session(0).turns
    assert [message["content"] for message in turn.messages] == ["hi", "go on"]
    assert [call["id"] for call in turn.recorded_answer[0]["tool_calls"]] == ["b"]
    assert "answers whose calls have no result are left out" in trace.warnings


def test_calls_are_made_of_the_action_where_the_response_was_not_stored(tmp_path):
    of = metadata(None, ["a"], "a")
    trace = opened(tmp_path, [asked(0), acted(1, of, command="ls", thought="I look."), seen(2, of), asked(3)])
    (answer,) = trace.session(0).turns[0].recorded_answer
    assert answer["content"] == "I look."
    assert answer["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"command":"ls"}'}}
    ]


def test_what_is_no_message_is_passed_over(tmp_path):
    silent = [
        event(1, "user", action="recall", args={"query": "x"}),
        event(2, "environment", observation="recall", content="Added", extras={"microagent_knowledge": []}),
        event(3, "environment", observation="agent_state_changed", content=""),
        event(4, "environment", action="change_agent_state", args={}),
        event(5, "agent", observation="null", content=""),
        event(6, "agent", action="condensation_request", args={}),
    ]
    trace = opened(tmp_path, [asked(0), *silent, event(7, "agent", action="message", args={"content": "hello"})])
    (turn,) = trace.session(0).turns
    assert turn.messages == ({"role": "user", "content": "hi"},)
    assert turn.recorded_answer == ({"role": "assistant", "content": "hello"},)


def test_a_finish_is_a_text_to_later_requests(tmp_path):
    done = metadata("r1", ["a"], "a", content="")
    history = [
        asked(0),
        acted(1, done, "finish", final_thought="Done."),
        asked(2),
        acted(3, metadata("r2", ["b"], "b")),
    ]
    trace = opened(tmp_path, history)
    assert trace.session(0).turns[0].recorded_answer == ({"role": "assistant", "content": "Done."},)
    assert check_requests(trace) == 2


@pytest.mark.parametrize(
    ("args", "kept", "why"),
    [
        ({"forgotten_event_ids": [1, 2]}, ["user"], "no summary"),
        ({"forgotten_event_ids": [1, 2], "summary": "s", "summary_offset": 1}, ["user", "user"], "a summary"),
        ({"forgotten_events_start_id": 1, "forgotten_events_end_id": 2}, ["user"], "a range"),
        ({"forgotten_events_start_id": 2, "forgotten_events_end_id": 2}, ["user"], "its last one, too"),
        ({"forgotten_event_ids": [2]}, ["user"], "a call goes with its result"),
        ({"forgotten_event_ids": []}, ["user", "assistant", "tool"], "nothing forgotten"),
    ],
)
def test_condensations(tmp_path, args, kept, why):
    of, last = metadata("r1", ["a"], "a"), metadata("r2", ["b"], "b")
    condensed = event(3, "agent", action="condensation", args=args)
    trace = opened(tmp_path, [asked(0), acted(1, of), seen(2, of), condensed, asked(4, "next"), acted(5, last)])
    first, second = trace.session(0).turns
    assert not first.replaces_history
    assert second.replaces_history
    assert [role for role, _ in contents(trace, 1)] == [*kept, "user"], why
    assert second.delay_ns == 3_000_000_000, "from the answer to the last message after it"
    check_requests(trace)


def test_a_later_summary_takes_the_place_of_the_earlier_one(tmp_path):
    def condensed(ident: int, forgotten: int, summary: str) -> dict[str, Any]:
        args = {"forgotten_event_ids": [forgotten], "summary": summary, "summary_offset": 1}
        return event(ident, "agent", action="condensation", args=args)

    answers = [event(n, "agent", action="message", args={"content": f"a{n}"}) for n in (1, 4, 7)]
    history = [asked(0), answers[0], condensed(2, 1, "first"), asked(3), answers[1], condensed(5, 4, "second")]
    trace = opened(tmp_path, [*history, asked(6), answers[2]])
    assert [text for _, text in contents(trace, 1)] == ["hi", "first", "hi"]
    assert [text for _, text in contents(trace, 2)] == ["hi", "second", "hi", "hi"]
    assert [turn.replaces_history for turn in trace.session(0).turns] == [False, True, True]


@pytest.mark.parametrize(
    ("metrics", "delay_s", "tokens", "why"),
    [
        (None, 2, None, "nothing known: until the result was there"),
        ({"response_latencies": [{"latency": 1, "response_id": "r2"}]}, 4, None, "5 s apart, of which 1 is the answer"),
        ({"response_latencies": [{"latency": 9, "response_id": "r2"}]}, 0, None, "never negative"),
        ({"response_latencies": [{"latency": 1}, {"latency": 2}]}, 3, None, "in order, where there is one for each"),
        ({"response_latencies": [{"latency": 1}]}, 2, None, "not where they don't line up"),
        ({"token_usages": [{"prompt_tokens": 7}, {"prompt_tokens": 9, "completion_tokens": 3}]}, 2, (9, 3), "in order"),
        ({"token_usages": [{"prompt_tokens": 9}]}, 2, None, "nor tokens"),
        (
            {"token_usages": [{"prompt_tokens": 9, "completion_tokens": 0, "response_id": "r2"}]},
            2,
            (9, None),
            "0: unknown",
        ),
    ],
)
def test_tr_09_delays_and_tokens_are_those_of_the_metrics(tmp_path, metrics, delay_s, tokens, why):
    of, last = metadata("r1", ["a"], "a"), metadata("r2", ["b"], "b")
    turn = opened(tmp_path, [asked(0), acted(1, of), seen(3, of), acted(6, last)], metrics=metrics).session(0).turns[1]
    assert turn.delay_ns == delay_s * 10**9, why
    assert (turn.asked_prompt_tokens, turn.asked_output_tokens) == (tokens or (None, None)), why


def test_without_times_there_are_no_delays_and_no_arrival(tmp_path):
    of = metadata("r1", ["a"], "a")
    history = [asked(0), acted(1, of), seen(3, of), acted(6, metadata("r2", ["b"], "b"))]
    for one in history:
        del one["timestamp"]
    trace = opened(tmp_path, history)
    assert trace.arrivals_ns is None
    assert [turn.delay_ns for turn in trace.session(0).turns] == [0, 0]


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([], "no_answer"),
        ([asked(0)], "no_answer"),
        ([event(0, "agent", action="message", args={"content": "x"})], "no_user_message"),
        ([{"kind": "MessageEvent", "id": "a", "source": "user"}], "sdk_events"),
        ([asked(0), acted(1, {"tool_call_id": 3})], "bad_tool_call"),
        ([asked(0), acted(1, metadata("r", ["a"], "a") | {"tool_call_id": None})], "bad_tool_call"),
    ],
)
def test_rows_of_which_no_request_can_be_made_are_skipped(tmp_path, history, reason):
    good = [asked(0), event(1, "agent", action="message", args={"content": "x"})]
    trace = opened(tmp_path, history, good)
    assert (trace.rows, trace.sessions, trace.skipped) == (2, 1, {reason: 1})
    check_conserved(trace)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"history": 3}, r"jsonl:2: Expected `array`, got `int` - at `\$\.history`"),
        ({"instance_id": "x"}, r"jsonl:2: Object missing required field `history`"),
        ({"history": [3]}, r"jsonl:2: Expected `object \| array`, got `int` - at `\$\.history\[0\]`"),
        ({"history": [], "metrics": 3}, r"jsonl:2: Expected `object \| null`, got `int` - at `\$\.metrics`"),
        (
            {"history": [{**asked(0), "timestamp": "noon"}]},
            "jsonl:2: timestamp of an event is a string of 4 characters",
        ),
        ({"history": [{**asked(0), "timestamp": True}]}, "jsonl:2: timestamp of an event is no number of seconds"),
        (
            {
                "history": [asked(0), acted(1, metadata("r", ["a"], "a"))],
                "metrics": {"response_latencies": [{"latency": -1, "response_id": "r"}]},
            },
            "jsonl:2: latency is no number of seconds from 0",
        ),
        (
            {"history": [asked(0), acted(1, metadata("r", ["a"], "a", usage={"prompt_tokens": "many"}))]},
            "jsonl:2: prompt_tokens is a str, a whole number",
        ),
    ],
)
def test_faults(tmp_path, row, message):
    good = {"history": [asked(0), event(1, "agent", action="message", args={"content": "x"})]}
    path = tmp_path / "o.jsonl"
    path.write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n")
    with pytest.raises(TraceError, match=message):
        open_trace(str(path), format="openhands")


@settings(max_examples=40)
@given(talks=st.lists(rounds(), min_size=1, max_size=3), broken=st.integers(0, 2))
def test_talks_come_back_whole(tmp_path_factory, talks, broken):
    """Events in which the same messages are hidden, results in any order."""
    folder = tmp_path_factory.mktemp("openhands")
    histories = [_events(openai_messages(talk)) for talk in talks] + [[asked(0)]] * broken
    trace = opened(folder, *histories)
    assert (trace.format, trace.sessions) == ("openhands", len(talks))
    assert trace.skipped == ({"no_answer": broken} if broken else {})
    for session, talk in zip(sessions(trace), talks, strict=True):
        check_talk(session, talk)
        assert all(turn.delay_ns >= 0 for turn in session.turns)
    check_requests(trace)
    check_conserved(trace)
    check_normal_form(trace, folder)


def _events(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    of: dict[str, Any] = {}
    for number, message in enumerate(messages):
        ident = len(events)
        match message:
            case {"role": "system", "content": text}:
                events.append(event(ident, "agent", action="system", args={"content": text}))
            case {"role": "user", "content": text}:
                events.append(asked(ident, text))
            case {"role": "tool", "tool_call_id": call, "content": text}:
                events.append(seen(ident, of[call], text))
            case {"tool_calls": calls, "content": text}:
                stored = {"id": f"r{number}", "choices": [{"message": message}]}
                for call in calls:
                    of[call["id"]] = {"tool_call_id": call["id"], "model_response": stored}
                    events.append(acted(len(events), of[call["id"]]))
            case {"content": text}:
                events.append(event(ident, "agent", action="message", args={"content": text}))
    return events


KEYS = [
    *("history", "instance_id", "metrics", "id", "timestamp", "source", "action", "observation", "args", "content"),
    *("tool_call_metadata", "tool_call_id", "model_response", "choices", "message", "tool_calls", "function", "name"),
    *("arguments", "response_latencies", "token_usages", "usage", "latency", "response_id", "forgotten_event_ids"),
    *("role", "agent", "trajectory", "execution_time", "tool_call_ids", "is_demo", "messages", "extra", "object"),
    *("output", "type", "steps", "schema_version", "session_id", "observation", "results", "source_call_id", "traj"),
    *("subagent_trajectories", "subagent_trajectory_ref", "trajectory_id", "extras", "metadata", "attempts"),
]
WORDS = ["user", "agent", "system", "assistant", "tool", "run", "message", "condensation", "finish", "recall", "a", ""]
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
EVENT = st.dictionaries(st.sampled_from(KEYS), VALUE, max_size=6)
SHAPED = {
    "openhands": EVENT.map(lambda row: {"history": [asked(0), row, acted(2, metadata("r", ["a"], "a")), row]}),
    "swe-agent": st.lists(EVENT, max_size=3).map(
        lambda rows: {"history": [{"role": "user", "content": "x"}, *rows, {"role": "assistant"}], "trajectory": rows}
    ),
    "mini-swe-agent": st.lists(EVENT, max_size=3).map(lambda rows: [{"role": "user", "content": "x"}, *rows]),
    "atif": st.lists(EVENT, max_size=3).map(lambda rows: {"steps": [{"source": "user", "message": "x"}, *rows]}),
    "tau-bench": st.lists(EVENT, max_size=3).map(lambda rows: [{"traj": [{"role": "user", "content": "x"}, *rows]}]),
}


@pytest.mark.parametrize("format", SHAPED)
@settings(max_examples=40)
@given(data=st.data())
def test_any_json_is_read_or_refused_with_its_place(tmp_path_factory, format, data):
    path = tmp_path_factory.mktemp("fuzz") / "t.json"
    path.write_text(json.dumps(data.draw(SHAPED[format] | VALUE)), encoding="utf-8")
    try:
        trace = open_trace(str(path), format=format)
    except TraceError as error:
        assert str(path) in str(error)
    else:
        check_requests(trace)
        check_conserved(trace)
