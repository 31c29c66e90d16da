"""OpenAI messages (fine-tune and batch files) and recorded request bodies: what is read, skipped and refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_talks import ANSWER, EXAMPLES, USER, calling, requests, result, sessions, talk, write

from infersiege.errors import TraceError
from infersiege.traces import open_trace
from infersiege.traces.formats import normal

SYSTEM = {"role": "system", "content": "s"}


def test_openai_row_is_a_session_cut_at_its_answers(tmp_path):
    system = {"role": "system", "content": "s"}
    more = {"role": "user", "content": "more"}
    path = write(tmp_path / "t.jsonl", {"messages": [system, USER, ANSWER, more, calling("c"), result("c"), ANSWER]})
    trace = open_trace(path.name, base=tmp_path)
    session = trace.session(0)
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("openai-messages", 1, 1, {})
    assert [turn.messages for turn in session.turns] == [(system, USER), (more,), (result("c"),)]
    assert [turn.recorded_answer for turn in session.turns] == [(ANSWER,), (calling("c"),), (ANSWER,)]
    assert requests(trace)[-1] == [system, USER, ANSWER, more, calling("c"), result("c")]


@pytest.mark.parametrize(
    ("messages", "asked", "why"),
    [
        ([USER], [1], "a last message without an answer is a request"),
        ([USER, ANSWER, ANSWER, USER, ANSWER], [1, 4], "two assistant messages are one answer"),
        ([ANSWER, USER, ANSWER], [2], "a greeting belongs to the first request"),
        ([{"role": "developer", "content": "d"}, USER, ANSWER], [2], "developer messages lead like system ones"),
        ([USER, calling("a", "b"), result("b"), result("a"), ANSWER], [1, 4], "results come in any order"),
        ([USER, calling("a")], [1], "the last calls need no results"),
    ],
)
def test_openai_turns(tmp_path, messages, asked, why):
    trace = open_trace(str(write(tmp_path / "t.jsonl", {"messages": messages})))
    assert [len(request) for request in requests(trace)] == asked, why


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no_messages"),
        ("hi", "no_messages"),
        ([ANSWER], "no_user_message"),
        ([{"role": "robot", "content": "x"}], "not_a_message"),
        ([{"role": "user"}], "message_without_content"),
        ([{"role": "user", "content": None}], "message_without_content"),
        ([USER, result("c"), ANSWER], "tool_result_without_call"),
        ([USER, calling("a"), result("b"), ANSWER], "tool_result_without_call"),
        ([USER, calling("a"), result("a"), result("a"), ANSWER], "tool_result_without_call"),
        ([USER, calling("a", "b"), result("a"), ANSWER], "tool_call_without_result"),
        ([USER, calling("a"), USER, ANSWER], "tool_call_without_result"),
        ([USER, calling("a", "a"), result("a"), ANSWER], "bad_tool_call"),
        ([USER, {"role": "assistant", "tool_calls": [{"id": "x"}]}], "bad_tool_call"),
    ],
)
def test_tr_06_rows_that_no_server_would_take_are_skipped_by_reason(tmp_path, messages, reason):
    """TR-06: rows in = sessions + skipped, by reason."""
    path = write(tmp_path / "t.jsonl", {"messages": [USER, ANSWER]}, {"messages": messages}, {"messages": messages})
    trace = open_trace(str(path))
    assert trace.skipped == {reason: 2}
    assert trace.rows == trace.sessions + 2
    assert any(reason in warning and "line 2" in warning for warning in trace.warnings)


def test_a_trace_of_skipped_rows_only_is_refused(tmp_path):
    path = write(tmp_path / "t.jsonl", {"messages": [ANSWER]})
    with pytest.raises(TraceError, match=r"none of 1 rows can be sent: no_user_message \(1; first: line 1\)"):
        open_trace(str(path))


def test_images_and_parts_are_carried_verbatim(tmp_path):
    parts = [{"type": "text", "text": "Ж"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    trace = open_trace(str(write(tmp_path / "t.jsonl", {"messages": [{"role": "user", "content": parts}]})))
    assert requests(trace) == [[{"role": "user", "content": parts}]]


def test_request_fields_are_kept_and_the_data_sets_own_are_not_sent(tmp_path):
    row = {
        "messages": [USER, {**ANSWER, "weight": 1}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "auto",
        "max_tokens": 5,
        "model": "m",
        "stream": False,
        "quality_score": 3,
    }
    trace = open_trace(str(write(tmp_path / "t.jsonl", row)))
    session = trace.session(0)
    assert session.turns[0].extra == {"tool_choice": "auto", "max_tokens": 5}
    assert session.tools == tuple(row["tools"])
    assert session.turns[0].recorded_answer == (ANSWER,), "weight is a training mark that servers refuse"
    assert trace.warnings == ("key 'quality_score' is no request field and is not sent",)


def test_arguments_stay_a_json_string(tmp_path):
    messages = [USER, calling("a", arguments={"x": [1, "é"]}), result("a"), ANSWER]
    sent = requests(open_trace(str(write(tmp_path / "t.jsonl", {"messages": messages}))))[1]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"x":[1,"é"]}'


def test_bare_lists_and_batch_rows_are_read(tmp_path):
    batch = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [USER], "seed": 1}}
    trace = open_trace(str(write(tmp_path / "t.jsonl", [USER, ANSWER], batch)))
    assert trace.sessions == 2
    assert trace.session(1).turns[0].extra == {"seed": 1}


def test_tr_01_cumulative_rows_are_whole_requests_and_compaction_is_sent_as_given(tmp_path):
    """TR-01: rows with 1, 3, 5, 3 (compacted), 5 messages ask for just that, with no history doubled."""
    compacted = [{"role": "user", "content": "summary"}, ANSWER, USER]
    given = [talk(1), talk(3), talk(5), compacted, [*compacted, ANSWER, USER]]
    path = write(tmp_path / "t.jsonl", *({"session_id": "s", "messages": messages} for messages in given))
    trace = open_trace(str(path), options={"rows": "cumulative"})
    assert requests(trace) == given
    assert any("compaction" in warning for warning in trace.warnings)
    session = trace.session(0)
    assert [turn.replaces_history for turn in session.turns] == [True, False, False, True, False]
    assert session.turns[0].recorded_answer == ({"role": "assistant", "content": "1"},)


def test_tr_01_delta_rows_are_joined(tmp_path):
    rows = [
        {"session_id": "s", "messages": [USER, ANSWER]},
        {"session_id": "s", "messages": [{"role": "user", "content": "b"}], "delay_ms": 200},
    ]
    trace = open_trace(str(write(tmp_path / "t.jsonl", *rows)), options={"rows": "deltas"})
    assert [len(request) for request in requests(trace)] == [1, 3]
    assert trace.session(0).turns[1].delay_ns == 200_000_000


def test_tr_01_rows_that_share_a_session_need_an_explicit_mode(tmp_path):
    rows = [{"session_id": "s", "messages": talk(1)}, {"session_id": "s", "messages": talk(3)}]
    with pytest.raises(TraceError, match=r"t.jsonl:2: this session_id came before") as caught:
        open_trace(str(write(tmp_path / "t.jsonl", *rows)))
    assert "cumulative" in (caught.value.hint or "")


def test_tr_09_delay_and_timestamp_together_are_an_error(tmp_path):
    """TR-09: a delay counts from the end of the previous answer; a time of day beside it contradicts it."""
    path = write(tmp_path / "t.jsonl", {"session_id": "s", "messages": [USER], "delay_ms": 200, "timestamp": 5})
    with pytest.raises(TraceError, match=r"t.jsonl:1: has delay_ms, timestamp"):
        open_trace(str(path), options={"rows": "deltas"})


@pytest.mark.parametrize("answered", [False, True])
def test_tr_01_counts_of_2_4_6_then_3_compacted_then_5(tmp_path, answered):
    """TR-01's own input: each request holds as many messages as its row; with answers in the rows, all but these."""
    first = [SYSTEM, *talk(5)] if not answered else talk(6)
    compacted = [SYSTEM, {"role": "user", "content": "summary"}, *([ANSWER] if answered else [USER])]
    more = [{"role": "user", "content": "b"}, ANSWER] if answered else [ANSWER, {"role": "user", "content": "b"}]
    given = [first[:2], first[:4], first[:6], compacted, compacted + more]
    assert [len(messages) for messages in given] == [2, 4, 6, 3, 5]
    path = write(tmp_path / "t.jsonl", *({"session_id": "s", "messages": messages} for messages in given))
    trace = open_trace(str(path), options={"rows": "cumulative"})
    assert requests(trace) == [messages[:-1] if answered else messages for messages in given]
    session = trace.session(0)
    assert [turn.replaces_history for turn in session.turns] == [True, False, False, True, False]
    assert [warning for warning in trace.warnings if "compaction" in warning] == [
        "compaction: a request does not start with the one before it and is sent as given"
    ]
    if answered:
        assert [turn.recorded_answer for turn in session.turns[-2:]] == [(ANSWER,), (ANSWER,)]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ([*talk(1), USER], "no answer was recorded between: the engine's own must not be put there"),
        (talk(5), "a row is missing between"),
        (talk(1), "a retry"),
        ([{"role": "user", "content": "0", "name": "n"}, *talk(3)[1:]], "a field more is another message"),
    ],
)
def test_tr_01_requests_that_do_not_follow_by_one_answer_are_sent_as_given(tmp_path, second, why):
    rows = [{"session_id": "s", "messages": messages} for messages in (talk(1), second)]
    trace = open_trace(str(write(tmp_path / "t.jsonl", *rows)), options={"rows": "cumulative"})
    assert requests(trace) == [talk(1), second], why
    assert trace.session(0).turns[1].replaces_history
    assert any("sent as given" in warning for warning in trace.warnings)


def test_sessions_whose_rows_lie_among_each_other_are_put_together(tmp_path):
    rows = [{"session_id": f"s{k % 2}", "messages": talk(1 + k // 2 * 2)} for k in range(6)]
    trace = open_trace(str(write(tmp_path / "t.jsonl", *rows)), options={"rows": "cumulative"})
    assert (trace.rows, trace.sessions) == (6, 2)
    for index in (1, 0):
        assert [len(request) for request in requests(trace, index)] == [1, 3, 5]


def test_tools_are_of_the_session_where_rows_have_the_same(tmp_path):
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows = [
        {"session_id": "s", "messages": talk(1), "tools": tools},
        {"session_id": "s", "messages": talk(3), "tools": tools},
        {"session_id": "s", "messages": talk(5)},
        {"session_id": "s", "messages": talk(7), "tools": [{"type": "function", "function": {"name": "g"}}]},
    ]
    path = str(write(tmp_path / "t.jsonl", *rows))
    session = open_trace(path, options={"rows": "cumulative"}).session(0)
    assert session.tools == tuple(tools)
    assert [turn.tools for turn in session.turns] == [None, None, (), tuple(rows[3]["tools"])]


def test_sessions_arrive_at_the_timestamp_of_their_first_row(tmp_path):
    rows = [
        {"session_id": "late", "timestamp": 2000, "messages": talk(1)},
        {"session_id": "early", "timestamp": 500, "messages": talk(1)},
        {"session_id": "late", "delay": 40, "messages": talk(3)},
        {"session_id": "early", "timestamp": 3250, "messages": talk(3)},
    ]
    trace = open_trace(str(write(tmp_path / "t.jsonl", *rows)), options={"rows": "cumulative"})
    assert list(trace.arrivals_ns or ()) == [0, 1_500_000_000]
    assert [session.session_id for session in sessions(trace)] == ["early", "late"]
    delays = [[turn.delay_ns for turn in session.turns] for session in sessions(trace)]
    assert delays == [[0, 2_750_000_000], [0, 40_000_000]]
    assert trace.warnings == (
        "a session's delays are the times between its requests, answers included: the file has no durations",
    )


def test_tr_03_timestamps_of_today_name_their_unit(tmp_path):
    """TR-03: epochs in s and ms, read in the other unit, and seconds from 0 whose rate is absurd."""
    seconds = write(tmp_path / "s.jsonl", *({"messages": [USER], "timestamp": 1.7e9 + k} for k in range(3)))
    with pytest.raises(TraceError, match=r"s.jsonl:1: timestamp 1.7e\+09 is a date of our time in s") as caught:
        open_trace(str(seconds))
    assert caught.value.hint == 'set options.unit = "s"'
    assert list(open_trace(str(seconds), options={"unit": "s"}).arrivals_ns or ()) == [0, 10**9, 2 * 10**9]
    from_zero = write(tmp_path / "z.jsonl", *({"messages": [USER], "timestamp": k / 5} for k in range(3)))
    with pytest.raises(TraceError, match="5000 per second") as caught:
        open_trace(str(from_zero))
    assert '"s"' in (caught.value.hint or "")
    iso = write(tmp_path / "i.jsonl", *({"messages": [USER], "timestamp": f"2026-01-01T00:00:0{k}Z"} for k in range(3)))
    assert list(open_trace(str(iso)).arrivals_ns or ()) == [0, 10**9, 2 * 10**9]


@pytest.mark.parametrize(
    ("rows", "options", "message", "hint"),
    [
        (['"x"'], {}, r"t:1: is a str, not an object", "messages"),
        (['{"a": 1, "b": 2}'], {}, r"t:1: has no messages \(keys: a, b\)", "format"),
        (['{"messages": [], "delay": -1}'], {}, r"t:1: the delay is negative \(-1 ms\)", "0 ms"),
        (['{"messages": [], "delay": "1"}'], {}, r"t:1: delay is '1', a number is wanted", None),
        (['{"messages": [], "delay": 1e16}'], {}, r"t:1: the delay is 3,162 centuries", "unit"),
        (['{"messages": [], "delay": 1, "delay_ms": 1}'], {}, r"t:1: has delay, delay_ms, which say", "not by both"),
        (['{"messages": [], "timestamp": 1, "delay": 1}'], {}, r"t:1: has delay, timestamp, which say", "not by both"),
        (['{"messages": [], "timestamp": "noon"}'], {}, r"t:1: timestamp is a string of 4 characters", "UTC"),
        (['{"messages": [], "timestamp": 1e19}'], {}, r"t:1: timestamp is 316\d+ years from 1970", "unit"),
        (['{"messages": [], "timestamp": "9999-01-01 00:00:00"}'], {}, r"t:1: timestamp is 80\d\d years from", "unit"),
        (
            ['{"session_id": 1, "messages": [], "timestamp": 9}', '{"session_id": 1, "messages": [], "timestamp": 2}'],
            {"rows": "deltas"},
            r"none of 2 rows can be sent: no_messages",
            None,
        ),
        (
            [json.dumps({"session_id": 1, "messages": [USER], "timestamp": at}) for at in (9000, 2000)],
            {"rows": "cumulative"},
            r"t:2: timestamp went back by 7 s within the session",
            "sort",
        ),
    ],
)
def test_openai_faults(tmp_path, rows, options, message, hint):
    path = tmp_path / "t"
    path.write_text("\n".join(rows))
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(str(path), format="openai-messages", options=options)
    assert hint is None or hint in (caught.value.hint or "")


# ------------------------------------------------------------------------------------------------ other endpoints


def batch(url: str | None, **body: object) -> dict[str, object]:
    return {"custom_id": "1", **({} if url is None else {"method": "POST", "url": url}), "body": body}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (batch("/v1/embeddings", input="a"), "embeddings"),
        (batch(None, input=["a"], encoding_format="float"), "embeddings"),
        (batch("/v1/moderations", input="a"), "moderations"),
        (batch("/v1/images/generations", prompt="a"), "other_endpoint"),
        (batch("/v1/messages", messages=[USER]), "other_endpoint"),
        (batch("/v1/chat/completions"), "no_messages"),
        (batch("/v1/completions", prompt=["a", "b"]), "several_prompts"),
        (batch("/v1/completions", prompt=[1, 2]), "prompt_is_no_text"),
        (batch("/v1/completions"), "prompt_is_no_text"),
        (batch("/v1/responses", input=[]), "no_messages"),
        (batch("/v1/responses", input="a", previous_response_id="r"), "history_on_the_server"),
        (batch("/v1/responses", input=[{"type": "item_reference", "id": "i"}]), "history_on_the_server"),
        (batch("/v1/responses", input=[{"type": "computer_call"}]), "unknown_item"),
        (batch("/v1/responses", input=[{"role": "user", "content": [{"type": "input_file"}]}]), "unknown_part"),
        (batch("/v1/responses", input=["a"]), "not_a_message"),
        (batch("/v1/responses", input=[{"content": "a"}]), "not_a_message"),
        (batch("/v1/chat/completions", messages=[USER], tools="f"), "bad_tools"),
    ],
)
def test_batch_rows_of_which_no_chat_request_can_be_made(tmp_path, row, reason):
    trace = open_trace(str(write(tmp_path / "t.jsonl", {"messages": [USER]}, row)), format="openai-messages")
    assert (trace.rows, trace.sessions, trace.skipped) == (2, 1, {reason: 1})


@pytest.mark.parametrize("url", ["/v1/completions", "https://host/v1/completions?api-version=1", None])
def test_a_prompt_becomes_one_user_message(tmp_path, url):
    row = batch(url, prompt="Once", max_tokens=3, logprobs=2, temperature=0)
    trace = open_trace(str(write(tmp_path / "t.jsonl", row)))
    assert requests(trace) == [[{"role": "user", "content": "Once"}]]
    assert trace.session(0).turns[0].extra == {"max_tokens": 3, "temperature": 0}
    assert trace.warnings == (
        "a prompt of the completions endpoint is sent as one user message",
        "key 'logprobs' of the completions endpoint is not sent",
    )


def test_items_of_the_responses_endpoint_become_messages(tmp_path):
    schema = {"type": "object"}
    row = batch(
        "/v1/responses",
        model="m",
        instructions="be brief",
        input=[
            {"role": "user", "content": "a"},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "wait"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "no JSON"},
            {"type": "function_call_output", "call_id": "c2", "output": "2"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "see"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
                ],
            },
        ],
        tools=[{"type": "function", "name": "f", "parameters": schema, "strict": True}, {"type": "web_search"}],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
        reasoning={"effort": "low"},
        max_output_tokens=9,
    )
    trace = open_trace(str(write(tmp_path / "t.jsonl", row)))
    session = trace.session(0)
    calls = [
        {"id": ident, "type": "function", "function": {"name": "f", "arguments": arguments}}
        for ident, arguments in (("c1", '{"x": 1}'), ("c2", '{"arguments":"no JSON"}'))
    ]
    assert requests(trace)[-1] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "wait", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
            ],
        },
    ]
    assert session.tools == ({"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}},)
    assert session.turns[0].extra == {
        "max_completion_tokens": 9,
        "reasoning_effort": "low",
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }
    assert trace.warnings == (
        "a reasoning item of the responses endpoint is not sent",
        "arguments of a tool call are no JSON object and are sent as the only member of one",
        "a tool of the server is not sent",
    )


def test_the_batch_example():
    trace = open_trace("openai-messages.batch.jsonl", base=EXAMPLES)
    assert [requests(trace, index)[0][-1]["content"] for index in range(3)] == [
        "Name three rivers of Europe.",
        "The longest river of Europe is",
        "Which sea does the Danube reach?",
    ]
    assert [session.turns[0].extra for session in sessions(trace)] == [
        {"max_tokens": 40},
        {"max_tokens": 8, "temperature": 0},
        {"max_completion_tokens": 12},
    ]


# ------------------------------------------------------------------------------------------------ full bodies


def body(stamp: object, *messages: object, **more: object) -> dict[str, object]:
    return {"timestamp": stamp, "body": {"messages": list(messages)}, **more}


def test_the_full_body_example():
    trace = open_trace("full-body.jsonl", base=EXAMPLES)
    assert list(trace.arrivals_ns or ()) == [0, 1_250_000_000, 1_500_000_000]
    first, second, third = sessions(trace)
    assert (first.session_id, first.source_line) == ("r-1", 1)
    assert first.turns[0].asked_output_tokens == 21
    assert first.turns[0].extra == {"max_tokens": 64, "temperature": 0.2}
    assert second.tools is not None
    assert (second.tools[0]["function"]["name"], second.turns[0].tools) == ("tide", None)
    assert third.turns[0].messages == ({"role": "user", "content": "Once the tide is out,"},)
    assert all(turn.replaces_history for session in (first, second, third) for turn in session.turns)


def test_rows_of_a_session_are_told_by_a_field():
    trace = open_trace("full-body.session.jsonl", base=EXAMPLES, options={"session": "chat"})
    first, second = sessions(trace)
    assert (first.session_id, len(first.turns), second.session_id) == ("c-1", 2, "c-2")
    assert first.turns[1].messages == ({"role": "user", "content": "Add bread."},)
    assert first.turns[1].delay_ns == 9_000_000_000
    assert first.turns[0].recorded_answer == ({"role": "assistant", "content": "1. ..."},)
    assert first.turns[1].asked_output_tokens == 11


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (lambda row, value: row | {"user": value}, "of the row"),
        (lambda row, value: row | {"body": {**row["body"], "user": value}}, "of the body"),
        (lambda row, value: row | {"body": {**row["body"], "metadata": {"user": value}}}, "of the body's metadata"),
    ],
)
def test_the_session_field_lies_in_the_row_or_its_body(tmp_path, place, why):
    rows = [place(body(k, *talk(2 * (k // 2) + 1)), f"u{k % 2}") for k in range(4)] + [body(9, USER)]
    trace = open_trace(str(write(tmp_path / "t.jsonl", *rows)), options={"session": "user"})
    assert [len(session.turns) for session in sessions(trace)] == [2, 2, 1], why


def test_tr_15_headers_are_not_kept(tmp_path):
    """TR-15: the headers of recorded requests hold keys."""
    rows = [body(0, USER, headers={"Authorization": "Bearer sk-test-000"}), body(1, "x", headers={"x-api-key": "sk-1"})]
    trace = open_trace(str(write(tmp_path / "t.jsonl", *rows)))
    assert trace.skipped == {"not_a_message": 1}
    kept = msgspec.json.encode(sessions(trace)).decode() + " ".join(trace.warnings)
    assert "sk-" not in kept
    assert "eader" not in kept


def test_recorded_requests_are_sent_as_they_were(tmp_path):
    """A message of the assistant at the end is a beginning that the server goes on with, not an answer."""
    prefilled = [USER, {"role": "assistant", "content": "{"}]
    trace = open_trace(str(write(tmp_path / "t.jsonl", body(0, *prefilled))))
    assert requests(trace) == [prefilled]


def test_a_body_may_be_the_text_it_was_on_the_wire(tmp_path):
    rows = [{"timestamp": 0, "body": json.dumps({"messages": [USER], "top_p": 0.5})}]
    trace = open_trace(str(write(tmp_path / "t.jsonl", *rows)))
    assert trace.format == "full-body"
    assert (requests(trace), trace.session(0).turns[0].extra) == ([[USER]], {"top_p": 0.5})


def test_logs_that_are_sorted_by_the_end_of_requests_are_replayed_by_their_start(tmp_path):
    trace = open_trace(str(write(tmp_path / "t.jsonl", body(30, USER), body(10, USER), body(20.5, USER))))
    assert list(trace.arrivals_ns or ()) == [0, 10_500_000_000, 20_000_000_000]
    assert [session.source_line for session in sessions(trace)] == [2, 3, 1]


@pytest.mark.parametrize(
    ("stamps", "unit", "right"),
    [((1.7e9, 1.7e9 + 2), "ms", "s"), ((1.7e12, 1.7e12 + 2000), "s", "ms"), ((1.7e15, 1.7e15 + 2e6), "s", "us")],
)
def test_tr_03_epochs_of_bodies(tmp_path, stamps, unit, right):
    """TR-03: 1.7e9 and 1.7e12 are dates of our time, and tell their unit."""
    path = str(write(tmp_path / "t.jsonl", *(body(stamp, USER) for stamp in stamps)))
    with pytest.raises(TraceError, match=f"is a date of our time in {right}, but is read in {unit}") as caught:
        open_trace(path, options={"unit": unit})
    assert caught.value.hint == f'set options.unit = "{right}"'
    assert list(open_trace(path, options={"unit": right}).arrivals_ns or ()) == [0, 2_000_000_000]


def test_tr_03_milliseconds_from_0_read_as_seconds_are_warned_of(tmp_path):
    path = str(write(tmp_path / "t.jsonl", *(body(at, USER) for at in (0, 10_535, 27_482))))
    assert open_trace(path, options={"unit": "ms"}).warnings == ()
    assert "unit may be wrong" in open_trace(path).warnings[0]


@pytest.mark.parametrize(
    ("row", "message", "hint"),
    [
        ({"timestamp": 0}, r"t.jsonl:2: body is missing, an object is wanted", "body"),
        ({"timestamp": 0, "body": [USER]}, r"t.jsonl:2: body is a list, an object is wanted", "body"),
        ({"timestamp": 0, "body": "{"}, r"t.jsonl:2: body is a string that is no JSON", "cut"),
        (
            {"timestamp": 0, "body": {"model": "m"}},
            r"t.jsonl:2: body has no messages, prompt or input \(keys: model",
            "cut",
        ),
        ({"body": {"messages": [USER]}}, r"t.jsonl:2: timestamp is missing, a number is wanted", None),
        (body(None, USER), r"t.jsonl:2: timestamp is 'None', a number is wanted", None),
        (body(True, USER), r"t.jsonl:2: timestamp is 'True', a number is wanted", None),
        (body("soon", USER), r"t.jsonl:2: timestamp is a string of 4 characters that is no date", "UTC"),
        (body(0, USER, completion_tokens=-1), r"t.jsonl:2: completion_tokens is '-1'", None),
        (body(0, USER, completion_tokens=1e12), r"t.jsonl:2: completion_tokens is 1000000000000, the most", "column"),
        ([1], r"t.jsonl:2: is a list, not an object", "format"),
    ],
)
def test_full_body_faults(tmp_path, row, message, hint):
    path = write(tmp_path / "t.jsonl", body(0, USER), row)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(str(path), format="full-body")
    assert hint is None or hint in (caught.value.hint or "")
    assert "hi" not in str(caught.value).removeprefix(str(path)).split()


def test_times_that_go_back_within_a_session_are_refused(tmp_path):
    path = write(tmp_path / "t.jsonl", body(9, *talk(1), user="u"), body(7.5, *talk(3), user="u"))
    with pytest.raises(TraceError, match=r"t.jsonl:2: timestamp went back by 1.5 s within the session"):
        open_trace(str(path), options={"session": "user"})


@pytest.mark.parametrize(("tokens", "asked"), [(10, 5), (0, None), (1, 1)])
def test_completion_tokens_are_scaled(tmp_path, tokens, asked):
    path = write(tmp_path / "t.jsonl", body(0, USER, completion_tokens=tokens))
    assert open_trace(str(path), output_scale=0.5).session(0).turns[0].asked_output_tokens == asked


# ------------------------------------------------------------------------------------------------ properties

TEXT = st.text(max_size=12)
NAMED = st.fixed_dictionaries({"role": st.just("user"), "content": TEXT}, optional={"name": TEXT})
SAID = st.one_of(
    NAMED,
    st.fixed_dictionaries({"role": st.sampled_from(["system", "assistant"]), "content": TEXT}),
    st.just({"role": "robot", "content": ""}),
    st.just(result("none")),
)
WELL_FORMED = st.fixed_dictionaries(
    {"messages": st.lists(SAID, max_size=6)},
    optional={"temperature": st.floats(0, 2), "tools": st.just([{"type": "function", "function": {"name": "f"}}])},
)


@given(rows=st.lists(WELL_FORMED, min_size=1, max_size=6), wrapped=st.booleans())
def test_rows_are_sent_or_skipped_and_kept_by_the_normal_form(tmp_path_factory, rows, wrapped):
    folder = tmp_path_factory.mktemp("openai")
    good = {"messages": [USER, ANSWER]}
    write(folder / "t.jsonl", *({"custom_id": "1", "body": row} if wrapped else row for row in [good, *rows]))
    trace = open_trace(str(folder / "t.jsonl"))
    assert trace.sessions is not None
    assert trace.rows == len(rows) + 1 == trace.sessions + sum(trace.skipped.values())
    with (folder / "n.jsonl").open("wb") as file:
        normal.write(file, sessions(trace))
    assert sessions(open_trace(str(folder / "n.jsonl"))) == sessions(trace)
    # A session is its row's messages, cut: put together again they are what was there.
    for session in sessions(trace):
        assert session.source_line is not None
        told = [message for turn in session.turns for message in (*turn.messages, *turn.recorded_answer)]
        assert told == [good, *rows][session.source_line - 1]["messages"]


HISTORY = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6)


@given(steps=HISTORY, format=st.sampled_from(["openai-messages", "full-body"]))
def test_tr_01_requests_of_any_history_are_what_was_recorded(tmp_path_factory, steps, format):
    """TR-01: whatever is added or cut from row to row, each request is its row's messages."""
    history: list[dict[str, object]] = [USER]
    recorded = [list(history)]
    for number, (answers, cut) in enumerate(steps):
        history = history[-1:] if cut else history
        history = [*history, *([{"role": "assistant", "content": f"a{number}"}] * answers)]
        history.append({"role": "user", "content": f"u{number}"})
        recorded.append(list(history))
    folder = tmp_path_factory.mktemp("cumulative")
    if format == "full-body":
        rows, options = [body(at, *messages, user="u") for at, messages in enumerate(recorded)], {"session": "user"}
    else:
        rows, options = [{"session_id": "u", "messages": messages} for messages in recorded], {"rows": "cumulative"}
    trace = open_trace(str(write(folder / "t.jsonl", *rows)), options=options)
    assert (trace.format, trace.sessions) == (format, 1)
    assert requests(trace) == recorded


# ------------------------------------------------------------------------------------------------ given material


@pytest.mark.parametrize(("name", "turns"), [("finetune_messages", [1, 2]), ("batch_input", [1, 1])])
def test_given_files_are_read(shared, name, turns):
    trace = open_trace(f"openai-jsonl/{name}.hand-made.jsonl", base=shared / "traces")
    assert (trace.format, trace.skipped) == ("openai-messages", {})
    assert [len(session.turns) for session in sessions(trace)] == turns


@pytest.mark.parametrize(
    ("row", "format"),
    [
        ({"body": {"jane@corp.example": 1, "a key of many words that somebody has written into it": 2}}, "full-body"),
        ({"jane@corp.example": 1, "sk-test-000": 2}, "openai-messages"),
        ({"jane@corp.example": 1, "sk-test-000": 2}, "sharegpt"),
        ({"jane@corp.example": 1, "sk-test-000": 2}, "wildchat"),
        ({"jane@corp.example": 1, "sk-test-000": 2, "id": "a"}, "vllm-multi-turn"),
    ],
)
def test_tr_15_keys_that_may_be_peoples_words_are_not_listed(tmp_path, row, format):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps([row] if format == "vllm-multi-turn" else {"timestamp": 0, **row}), encoding="utf-8")
    with pytest.raises(TraceError, match=r"keys: .*of 17 characters") as caught:
        open_trace(str(path), format=format)
    said = f"{caught.value}{caught.value.hint}"
    assert [word for word in ("jane", "sk-test", "somebody") if word in said] == []
