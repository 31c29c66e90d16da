"""The dialect `openai-responses`: events, ends, usage, odd payloads, properties, and its request bodies."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.channels.accounting import account_tokens
from infersiege.channels.answer import Answer
from infersiege.channels.dialect import ANSWER, DONE, ERROR, TEXT, Decoded
from infersiege.channels.openai_responses import OpenAIResponses
from infersiege.channels.outcome import Conclusion, conclude
from infersiege.records import ErrorClass, Outcome, TokensFrom
from infersiege.wire.exchange import ExchangeResult

E = ErrorClass
SPOKEN = TEXT | ANSWER
DIALECT = OpenAIResponses()


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": f"response.{kind}", **fields}).encode()


def says(text: str) -> bytes:
    return event("output_text.delta", delta=text, item_id="msg_1", output_index=0, logprobs=[])


def ends(kind: str = "completed", *, status: Any = "completed", **response: Any) -> bytes:
    return event(kind, response={"object": "response", "model": "m", "status": status, **response})


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": text}]}


def feed(*payloads: bytes) -> tuple[list[int], Decoded]:
    decoder = DIALECT.decoder()
    return [decoder.feed(payload) for payload in payloads], decoder.decoded()


def play(*payloads: bytes) -> tuple[Answer, Conclusion]:
    answer = Answer(DIALECT.decoder())
    answer.more([(at, b"event: x\ndata: " + payload + b"\n\n") for at, payload in enumerate(payloads)])
    answer.end()
    result = ExchangeResult(
        attempt_ns=0, status=200, headers={"content-type": "text/event-stream"}, streamed=True, complete=True
    )
    told = answer.decoder.decoded()
    return answer, conclude(result, decoded=told, stream_asked=True, parse_fault=answer.fault)


# ---------------------------------------------------------------------------------------------- what counts as text


@pytest.mark.parametrize(
    ("payload", "flags", "why"),
    [
        (event("created", response={"model": "m", "output": []}), 0, "the start"),
        (event("in_progress", response={}), 0, "progress"),
        (event("output_item.added", item={"type": "message", "content": []}), 0, "an empty item"),
        (event("content_part.added", part={"type": "output_text", "text": ""}), 0, "an empty part"),
        (says("a"), SPOKEN, "text"),
        (says(""), 0, "empty text"),
        (event("output_text.delta", delta=7), 0, "no text"),
        (event("refusal.delta", delta="no"), SPOKEN, "a refusal is an answer"),
        (event("reasoning_text.delta", delta="x"), TEXT, "reasoning"),
        (event("reasoning_summary_text.delta", delta="x"), TEXT, "OpenAI: its summary"),
        (event("reasoning.delta", delta={"text": "x"}), TEXT, "an older spelling"),
        (event("function_call_arguments.delta", delta="{", output_index=0), SPOKEN, "a piece of arguments"),
        (event("function_call_arguments.delta", delta="", output_index=0), 0, "no piece"),
        (event("custom_tool_call_input.delta", delta="x", output_index=0), SPOKEN, "input of a custom tool"),
        (event("output_item.added", item={"type": "function_call", "name": "f"}), SPOKEN, "the name of a function"),
        (event("output_text.annotation.added", annotation={}), 0, "an annotation"),
        (event("web_search_call.searching"), 0, "a tool of the server's own"),
        (event("brand_new.delta", delta="x"), 0, "unknown events are ignored"),
        (ends(), DONE, "the end"),
        (ends("incomplete", status="incomplete"), DONE, "the end, too"),
    ],
)
def test_st_01_only_generated_text_counts(payload: bytes, flags: int, why: str) -> None:
    assert feed(payload)[0] == [flags], why


def test_whole_texts_after_their_deltas_are_passed_over() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    seen, decoded = feed(
        event("reasoning_summary_text.delta", delta="hm"),
        event("reasoning_summary_text.done", text="hm"),
        event("output_item.done", item=reasoning, output_index=0),
        says("a"),
        says("b"),
        event("output_text.done", text="ab"),
        event("content_part.done", part={"type": "output_text", "text": "ab"}),
        event("output_item.done", item=message("ab"), output_index=1),
        ends(output=[reasoning, message("ab")]),
    )
    assert seen == [TEXT, 0, 0, SPOKEN, SPOKEN, 0, 0, 0, DONE]
    assert (decoded.text, decoded.reasoning) == ("ab", "hm")


@pytest.mark.parametrize(
    ("payloads", "flags"),
    [
        ((event("output_item.done", item=message("ab")), ends(output=[message("ab")])), [SPOKEN, DONE]),
        ((ends(output=[message("a"), message("b")]),), [SPOKEN | DONE]),
    ],
)
def test_whole_texts_without_deltas_are_read_once(payloads: tuple[bytes, ...], flags: list[int]) -> None:
    seen, decoded = feed(*payloads)
    assert (seen, decoded.text) == (flags, "ab")


def test_st_02_reasoning_told_twice_is_taken_once() -> None:
    seen, decoded = feed(event("reasoning_text.delta", delta="long"), event("reasoning_summary_text.delta", delta="l"))
    assert (seen, decoded.reasoning) == ([TEXT, 0], "long")


ADDED = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": ""}


@pytest.mark.parametrize("placed", [True, False])
def test_st_28_calls_join_with_or_without_their_place(placed: bool) -> None:
    def at(place: int) -> dict[str, Any]:
        return {"output_index": place} if placed else {}

    second = {**ADDED, "id": "fc_2", "call_id": "c2", "name": "g"}
    seen, decoded = feed(
        event("output_item.added", item=ADDED, **at(0)),
        event("function_call_arguments.delta", delta='{"a":', item_id="fc_1", **at(0)),
        event("function_call_arguments.delta", delta="1}", item_id="fc_1", **at(0)),
        event("function_call_arguments.done", arguments='{"a":1}', item_id="fc_1", **at(0)),
        event("output_item.done", item={**ADDED, "arguments": '{"a":1}'}, **at(0)),
        event("output_item.added", item=second, **at(1)),
        event("output_item.done", item={**second, "arguments": "{}"}, **at(1)),
        ends(),
    )
    assert seen == [SPOKEN, SPOKEN, SPOKEN, 0, 0, SPOKEN, SPOKEN, DONE]
    assert decoded.tool_calls == (
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    )


def test_st_28_calls_that_come_whole() -> None:
    items = [{**ADDED, "arguments": "{}"}, {**ADDED, "call_id": "c2", "arguments": "[]"}]
    _, decoded = feed(*[event("output_item.done", item=item, output_index=n) for n, item in enumerate(items)], ends())
    assert [call["function"]["arguments"] for call in decoded.tool_calls] == ["{}", "[]"]


# ------------------------------------------------------------------------------------------------------- how it ends


@pytest.mark.parametrize(
    ("last", "finish", "want", "flags", "why"),
    [
        ((ends(),), "completed", None, (), "whole"),
        (
            (ends("incomplete", status="incomplete", incomplete_details={"reason": "max_output_tokens"}),),
            "max_output_tokens",
            None,
            ("length",),
            "at its limit",
        ),
        (
            (ends("completed", status="incomplete", incomplete_details={"reason": "max_output_tokens"}),),
            "max_output_tokens",
            None,
            ("length",),
            "vLLM: the other event",
        ),
        (
            (ends("incomplete", status="incomplete", incomplete_details={"reason": "content_filter"}),),
            "content_filter",
            E.CONTENT_FILTER,
            (),
            "withheld",
        ),
        ((ends(status=None),), "completed", None, (), "the event's name stands in"),
        ((ends("cancelled", status="cancelled"),), "cancelled", E.STREAM_ERROR, (), "given up"),
        (
            (ends("failed", status="failed", error={"code": "server_error", "message": "dead"}),),
            None,
            E.STREAM_ERROR,
            (),
            "failed",
        ),
        (
            (ends("failed", status="failed", error={"code": "rate_limit_exceeded", "message": "slow"}),),
            None,
            E.RATE_LIMIT,
            (),
            "failed, and why",
        ),
        ((ends("failed", status="failed", error=None),), None, E.STREAM_ERROR, (), "failed, and not why"),
        ((), None, E.TRUNCATED, (), "no end at all"),
        ((b"[DONE]",), None, E.TRUNCATED, (), "[DONE] is no end of this protocol"),
        ((ends(), b"[DONE]"), "completed", None, (), "[DONE] after it"),
    ],
)
def test_st_16_st_17_ends(
    last: tuple[bytes, ...], finish: str | None, want: ErrorClass | None, flags: tuple[str, ...], why: str
) -> None:
    _, conclusion = play(says("a"), *last)
    assert (conclusion.error_class, conclusion.finish_reason) == (want, finish), why
    assert (conclusion.outcome is Outcome.OK) == (want is None), why
    assert tuple(flag for flag in conclusion.flags if flag == "length") == flags, why


def test_tk_02_an_end_without_output_is_a_failure() -> None:
    assert play(ends(output=[], usage={"output_tokens": 5}))[1].error_class is E.NO_OUTPUT


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None}, E.RATE_LIMIT),
        ({"type": "error", "code": "server_error", "message": "dead"}, E.STREAM_ERROR),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, E.OVERLOAD),
        ({"type": "error"}, E.STREAM_ERROR),
        ({"error": {"message": "busy", "code": 503}}, E.OVERLOAD),
        ({"object": "error", "message": "maximum context length is 5", "code": 400}, E.CONTEXT_LENGTH),
        ({"type": "response.queued", "error": {"message": "who", "code": 401}}, E.AUTH),
    ],
)
def test_st_14_errors_of_every_shape(error: dict[str, Any], error_class: ErrorClass) -> None:
    seen, decoded = feed(says("a"), json.dumps(error).encode(), b"[DONE]")
    assert seen == [SPOKEN, ERROR, DONE]
    assert decoded.fault is not None
    assert decoded.fault.error_class is error_class


# ------------------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("usage", "counts", "why"),
    [
        (
            {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 9},
            (20, 16, 9, None),
            "cached is part of the input",
        ),
        (
            {"input_tokens": 20, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 5}},
            (20, None, 9, 5),
            "not a word of caches",
        ),
        ({"input_tokens": 20, "input_tokens_details": {"cached_tokens": 0}}, (20, 0, None, None), "known to be none"),
        ({"output_tokens": -1}, (None, None, None, None), "no count"),
    ],
)
def test_tk_14_usage(usage: dict[str, Any], counts: tuple[int | None, ...], why: str) -> None:
    told = feed(says("a"), ends(usage=usage))[1].usage
    assert told is not None
    assert (told.prompt_tokens, told.cached_tokens, told.output_tokens, told.reasoning_tokens) == counts, why


def test_cl_06_writes_to_a_cache_are_told() -> None:
    usage = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 7}}
    told = feed(ends(usage=usage))[1].usage
    assert told is not None
    assert (told.prompt_tokens, told.cached_tokens, told.cache_write_tokens) == (20, 2, 7)


@pytest.mark.parametrize("usage", [None, [], "x"])
def test_tk_03_usage_missing_is_an_estimate(usage: Any) -> None:
    decoded = feed(says("one "), says("two"), ends(usage=usage))[1]
    assert account_tokens(decoded, 2)[2:] == (2, None, None, TokensFrom.ESTIMATE, None)


def test_timings_of_llama_cpp() -> None:
    timings = {"cache_n": 36, "prompt_n": 1, "prompt_ms": 12.5, "predicted_n": 8}
    decoded = feed(says("a"), event("completed", response={"status": "completed"}, timings=timings))[1]
    assert account_tokens(decoded, 1)[:3] == (37, 36, 8)
    assert decoded.server_ttft_ns == 12_500_000


# --------------------------------------------------------------------------------------------- what is not quite right


@pytest.mark.parametrize("payload", [b"x", b"{", b'{"type":', b"\xff", b"[DONE"])
def test_what_is_no_json_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError):
        feed(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"1",
        b"[]",
        b"{}",
        b'{"type":7}',
        b'{"type":"response.output_text.delta","delta":{"a":1}}',
        b'{"type":"response.reasoning.delta","delta":[1]}',
        b'{"type":"response.output_item.added","item":"x"}',
        b'{"type":"response.output_item.added","item":{"type":["function_call"]}}',
        b'{"type":"response.output_item.done","item":{"type":{"a":1}}}',
        b'{"type":"response.output_item.done","item":{"type":"message","content":[1,{"text":2}]}}',
        b'{"type":"response.output_item.done","item":{"type":"reasoning","summary":7}}',
        b'{"type":"response.created","response":[]}',
        b'{"type":"response.x","y":NaN}',
    ],
)
def test_surprising_types_neither_count_nor_crash(payload: bytes) -> None:
    seen, decoded = feed(payload, says("a"))
    assert seen == [0, SPOKEN]
    assert (decoded.text, decoded.fault) == ("a", None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(
    [
        *("output_text.delta", "reasoning_text.delta", "refusal.delta", "function_call_arguments.delta", "created"),
        *("output_item.added", "output_item.done", "completed", "incomplete", "failed", "x"),
    ]
).map(lambda kind: f"response.{kind}")


def some_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of these keys."""
    return st.fixed_dictionaries({}, optional=fields)


ITEM = some_of(
    type=st.sampled_from(["message", "reasoning", "function_call"]) | JSON,
    content=st.lists(some_of(text=JSON, refusal=JSON) | JSON, max_size=2) | JSON,
    **dict.fromkeys(("summary", "call_id", "id", "name", "arguments"), JSON),
)
RESPONSE = some_of(
    output=st.lists(ITEM | JSON, max_size=3) | JSON,
    usage=some_of(input_tokens=JSON, input_tokens_details=JSON, output_tokens=JSON) | JSON,
    incomplete_details=some_of(reason=JSON) | JSON,
    **dict.fromkeys(("status", "error", "model"), JSON),
)
EVENT = some_of(
    type=KINDS | JSON,
    delta=JSON,
    output_index=st.integers(-1, 3) | JSON,
    item=ITEM | JSON,
    response=RESPONSE | JSON,
    error=JSON,
    timings=JSON,
)


@given(st.lists(EVENT | JSON, max_size=4))
def test_no_json_value_raises(values: list[Any]) -> None:
    _, decoded = feed(*[json.dumps(value).encode() for value in values])
    for text in (decoded.text, decoded.reasoning, decoded.refusal, json.dumps(decoded.tool_calls, ensure_ascii=False)):
        text.encode()


@given(EVENT)
def test_the_lenient_path_means_what_the_fast_path_means(value: dict[str, Any]) -> None:
    plain = json.dumps(value).encode()
    odd = b'{"unread":NaN,' + plain[1:] if len(plain) > 2 else b'{"unread":NaN}'
    (fast,), told = feed(plain)
    (slow,), told_slowly = feed(odd)
    assert fast == slow
    for name in Decoded.__struct_fields__:
        if name != "flags":
            assert getattr(told, name) == getattr(told_slowly, name), name


@given(RESPONSE, st.lists(ITEM | JSON, max_size=3))
def test_no_whole_answer_raises(value: dict[str, Any], output: list[Any]) -> None:
    DIALECT.decode_whole(json.dumps(value | {"output": output}).encode()).text.encode()


@given(
    st.lists(st.tuples(st.sampled_from(["text", "reasoning", "call"]), st.text(min_size=1, max_size=8)), min_size=1),
    st.data(),
)
def test_any_cut_and_any_split_into_deltas_gives_the_same_answer(
    said: list[tuple[str, str]], data: st.DataObject
) -> None:
    kinds = {"text": "output_text.delta", "reasoning": "reasoning_text.delta", "call": "function_call_arguments.delta"}

    def payloads(pieces: list[tuple[str, str]]) -> list[bytes]:
        deltas = [event(kinds[kind], delta=text, output_index=0) for kind, text in pieces]
        return [*deltas, ends(usage={"input_tokens": 1, "output_tokens": 9})]

    split = [(kind, piece) for kind, text in said for piece in text]
    stream = b"".join(b"event: x\ndata: " + payload + b"\n\n" for payload in payloads(split))
    cut = data.draw(st.integers(0, len(stream)))
    answer = Answer(DIALECT.decoder())
    answer.more([(0, stream[:cut]), (1, stream[cut:])])
    answer.end()
    assert answer.decoder.decoded() == feed(*payloads(said))[1]


@pytest.mark.parametrize("depth", [10, 400, 990, 3000])
@pytest.mark.parametrize(
    "form",
    [
        '{"type":"error","error":%s}',
        '{"type":"response.failed","response":{"error":%s}}',
        '{"type":"response.function_call_arguments.delta","delta":%s}',
        '{"type":"response.output_item.done","item":{"type":"function_call","arguments":%s}}',
        '{"type":"response.completed","response":{"usage":%s}}',
    ],
)
def test_nesting_raises_nothing_but_value_error(form: str, depth: int) -> None:
    decoder = DIALECT.decoder()
    try:
        decoder.feed((form % ("[" * depth + "]" * depth)).encode())
    except ValueError:
        assert depth >= 400
    decoder.decoded()


def test_a_plain_event_costs_little() -> None:
    """Against json.loads of the same bytes, so that it holds on a busy machine."""
    payload, decoder = says(" word"), DIALECT.decoder()

    def cost(call: Any) -> float:
        def once() -> float:
            begun = time.perf_counter()
            for _ in range(2000):
                call(payload)
            return time.perf_counter() - begun

        return min(once() for _ in range(5))

    assert cost(decoder.feed) < cost(json.loads)


# ------------------------------------------------------------------------------------------------------ whole answers


def test_a_whole_answer() -> None:
    output = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
        message("hello "),
        message("there"),
        {**ADDED, "arguments": "{}"},
    ]
    value = {"object": "response", "model": "m", "status": "completed", "error": None, "output": output}
    decoded = DIALECT.decode_whole(json.dumps(value | {"usage": {"input_tokens": 3, "output_tokens": 7}}).encode())
    assert (decoded.text, decoded.reasoning, decoded.finish_reason) == ("hello there", "hm", "completed")
    assert decoded.tool_calls[0]["id"] == "c1"
    assert account_tokens(decoded, 0)[:3] == (3, None, 7)
    assert decoded.done


@pytest.mark.parametrize(
    "value",
    [
        {"error": {"message": "no such model", "code": 404}},
        {"object": "error", "message": "no such model", "code": 404},
        {"output": [], "status": "failed", "error": {"message": "no such model", "code": 404}},
    ],
)
def test_a_whole_answer_may_be_an_error(value: dict[str, Any]) -> None:
    decoded = DIALECT.decode_whole(json.dumps(value).encode())
    assert decoded.fault is not None
    assert (decoded.fault.error_class, decoded.finish_reason) == (E.NOT_FOUND, None)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b"{}", b'{"output":"x"}', b'{"choices":[]}'])
def test_what_is_no_answer_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        DIALECT.decode_whole(body)


# ------------------------------------------------------------------------------------------------------- request bodies

REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": None,
    "max_tokens": 17,
    "stream": True,
    "include_usage": True,
    "sampling": {},
    "extra": {},
}


def body_of(**changes: Any) -> dict[str, Any]:
    value = json.loads(DIALECT.request_body(**(REQUEST | changes)).decode("utf-8"))
    assert isinstance(value, dict)
    return value


def test_a_request_in_full() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    sampling = {"temperature": 0.0, "top_p": None, "seed": 3, "stop": ["x"]}
    assert body_of(tools=tools, sampling=sampling, extra={"truncation": "auto"}) == {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}],
        "max_output_tokens": 17,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "stream": True,
        "store": False,
        "temperature": 0.0,
        "truncation": "auto",
    }
    assert DIALECT.left_out.keys() == {"seed", "stop"}


def test_a_conversation_becomes_items() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    image = {"type": "image_url", "image_url": {"url": "u"}}
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        {"role": "assistant", "content": "a", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        {"role": "assistant", "content": None, "tool_calls": [{**call, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "8"}]},
    ]
    assert body_of(messages=messages)["input"] == [
        {"role": "system", "content": "S"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "image_url": "u", "detail": "auto"},
            ],
        },
        {
            "type": "message",
            "id": "msg_2",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "a", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "7"},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c2", "output": "8"},
    ]


@pytest.mark.parametrize(
    ("extra", "fields", "why"),
    [
        ({"tool_choice": "required", "parallel_tool_calls": False}, None, "the same words"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": {"type": "function", "name": "f"}},
            "one level higher",
        ),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}, "an object here"),
        (
            {"response_format": {"type": "json_object"}, "verbosity": "low"},
            {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
            "both are of the text",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
            "one level higher",
        ),
        ({"seed": 1, "stop": "x", "logit_bias": {}, "min_tokens": 3, "ignore_eos": True}, {}, "it has no such word"),
    ],
)
def test_fields_of_a_chat_trace(extra: dict[str, Any], fields: dict[str, Any] | None, why: str) -> None:
    assert DIALECT.request_fields(extra) == (extra if fields is None else fields), why


@given(st.text(st.characters(codec=None, exclude_categories=())), JSON)
def test_every_request_is_utf_8_json(text: str, extra: Any) -> None:
    body_of(messages=[{"role": "user", "content": text}], model=text, extra={"x": extra})
