"""The dialect `anthropic-messages`: field cases, usage, odd payloads, properties, and its request bodies."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.channels.accounting import account_tokens
from infersiege.channels.answer import Answer
from infersiege.channels.anthropic_messages import AnthropicMessages
from infersiege.channels.anthropic_usage import AnthropicCounters
from infersiege.channels.dialect import ANSWER, DONE, ERROR, TEXT, Decoded
from infersiege.channels.outcome import Conclusion, conclude
from infersiege.records import ErrorClass, Outcome, TokensFrom
from infersiege.wire.exchange import ExchangeResult

E = ErrorClass
SPOKEN = TEXT | ANSWER
DIALECT = AnthropicMessages()
SSE = {"content-type": "text/event-stream"}


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


def start(**usage: Any) -> bytes:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
    return event("message_start", message=message)


def begin(index: int, **block: Any) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def says(text: str) -> bytes:
    return delta(0, "text_delta", text=text)


def ends(reason: Any = "end_turn", **usage: Any) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


BLOCK_END = event("content_block_stop", index=0)
STOP = event("message_stop")


def feed(*payloads: bytes) -> tuple[list[int], Decoded]:
    decoder = DIALECT.decoder()
    return [decoder.feed(payload) for payload in payloads], decoder.decoded()


def play(*reads: tuple[int, bytes], complete: bool = True) -> tuple[Answer, Conclusion]:
    """Payloads by arrival, with their `event:` lines, through the sink and the judgement."""
    answer = Answer(DIALECT.decoder())
    answer.more([(at, b"event: x\ndata: " + payload + b"\n\n") for at, payload in reads])
    answer.end()
    result = ExchangeResult(attempt_ns=0, status=200, headers=SSE, streamed=True, complete=complete)
    conclusion = conclude(
        result, decoded=answer.decoder.decoded(), stream_asked=True, parse_fault=answer.fault, unterminated=0
    )
    return answer, conclusion


# ---------------------------------------------------------------------------------------------- what counts as text


@pytest.mark.parametrize(
    ("payload", "flags", "why"),
    [
        (start(input_tokens=9), 0, "the start"),
        (event("ping"), 0, "a ping"),
        (begin(0, type="text", text=""), 0, "an empty block"),
        (begin(0, type="thinking", thinking="", signature=""), 0, "an empty block"),
        (begin(0, type="tool_use", id="t", name="f", input={}), 0, "a block, though it names the tool"),
        (begin(0, type="text", text="a"), SPOKEN, "a gateway: text in the start"),
        (
            begin(0, type="tool_use", id="t", name="f", input={"a": 1}),
            SPOKEN,
            "a gateway: the whole input in the start",
        ),
        (says("a"), SPOKEN, "text"),
        (says(" "), SPOKEN, "a space is text"),
        (says(""), 0, "empty text"),
        (delta(0, "thinking_delta", thinking="x"), TEXT, "thinking"),
        (delta(0, "thinking_delta", thinking=""), 0, "empty thinking"),
        (delta(0, "signature_delta", signature="abc"), 0, "a signature"),
        (delta(0, "citations_delta", citation={"cited_text": "x"}), 0, "a citation"),
        (delta(0, "input_json_delta", partial_json=""), 0, "empty input"),
        (delta(0, "input_json_delta", partial_json="{"), SPOKEN, "input"),
        (delta(0, "new_delta", text="x"), 0, "a kind that nobody knows"),
        (delta(0, "text_delta", text=7), 0, "no text"),
        (event("content_block_delta", index=0, delta=None), 0, "no delta"),
        (event("content_block_delta", index=0, delta="x"), 0, "no delta"),
        (BLOCK_END, 0, "the end of a block"),
        (ends(output_tokens=5), 0, "the end of the message"),
        (STOP, DONE, "the end of the stream"),
        (event("new_event", text="x"), 0, "unknown events are ignored"),
    ],
)
def test_st_29_what_is_a_token(payload: bytes, flags: int, why: str) -> None:
    assert feed(payload)[0] == [flags], why


def test_st_29_first_token_is_thinking_first_answer_is_text() -> None:
    answer, conclusion = play(
        (0, start(input_tokens=9)),
        (100, event("ping")),
        (300, delta(0, "thinking_delta", thinking="hm")),
        (500, delta(0, "signature_delta", signature="s")),
        (900, delta(1, "text_delta", text="a")),
        (950, delta(2, "input_json_delta", partial_json="{}")),
        (960, ends(output_tokens=3)),
        (970, STOP),
    )
    assert (answer.first_token_ns, answer.first_answer_ns, answer.last_token_ns) == (300, 900, 950)
    assert (answer.chunks, answer.done_ns) == (3, 970)
    assert conclusion.outcome is Outcome.OK


def test_st_28_tool_calls_join_by_block() -> None:
    seen, decoded = feed(
        begin(0, type="tool_use", id="t1", name="f", input={}),
        delta(0, "input_json_delta", partial_json=""),
        delta(0, "input_json_delta", partial_json='{"a":'),
        begin(1, type="tool_use", id="t2", name="g", input={}),
        delta(1, "input_json_delta", partial_json="{}"),
        delta(0, "input_json_delta", partial_json="1}"),
        event("content_block_stop", index=0),
        ends("tool_use"),
    )
    assert seen == [0, 0, SPOKEN, 0, SPOKEN, SPOKEN, 0, 0]
    assert decoded.tool_calls == (
        {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "t2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    )


def test_st_28_a_call_without_arguments_is_seen_at_its_end() -> None:
    answer, conclusion = play(
        (0, start()), (5, begin(0, type="tool_use", id="t", name="f", input={})), (9, BLOCK_END), (9, ends("tool_use")),
        (9, STOP),
    )  # fmt: skip
    assert (answer.first_token_ns, answer.chunks) == (9, 1)
    assert conclusion.outcome is Outcome.OK
    assert answer.decoder.decoded().tool_calls[0]["function"] == {"name": "f", "arguments": "{}"}


# ------------------------------------------------------------------------------------------------------- how it ends


def test_st_16_an_error_in_the_middle_of_an_answer() -> None:
    error = event("error", error={"type": "overloaded_error", "message": "x"})
    answer, conclusion = play((0, start(input_tokens=9)), (5, says("a")), (9, error))
    assert (conclusion.outcome, conclusion.error_class) == (Outcome.FAILED, E.OVERLOAD)
    assert (answer.chunks, answer.first_token_ns) == (1, 5)


@pytest.mark.parametrize(
    ("payloads", "want", "why"),
    [
        ((start(), says("a"), ends(), STOP), None, "whole"),
        ((start(), says("a"), BLOCK_END, ends()), E.TRUNCATED, "no message_stop"),
        ((start(), says("a")), E.TRUNCATED, "nothing of an end"),
        ((start(), says("a"), STOP), None, "no stop reason, but the end was said"),
        ((start(), says("a"), ends(), b"[DONE]"), None, "a gateway that ends as OpenAI does"),
        ((start(), says("a"), b"[DONE]"), E.TRUNCATED, "[DONE] is no end of this protocol"),
        ((start(), ends(output_tokens=5), STOP), E.NO_OUTPUT, "not one token"),
        ((start(), says("a"), ends("refusal"), STOP), E.CONTENT_FILTER, "withheld"),
        ((start(), says("a"), ends("brand_new"), STOP), E.STREAM_ERROR, "nobody knows it"),
        ((start(), event("error", error={"type": "overloaded_error"}), STOP), E.OVERLOAD, "SGLang: a stop after it"),
        ((start(), event("error", error={"type": "internal_error"}), b"[DONE]"), E.STREAM_ERROR, "vLLM: [DONE]"),
    ],
)
def test_st_16_only_message_stop_ends_a_stream(payloads: tuple[bytes, ...], want: ErrorClass | None, why: str) -> None:
    _, conclusion = play(*enumerate(payloads))
    assert conclusion.error_class == want, why
    assert (conclusion.outcome is Outcome.OK) == (want is None), why


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, E.OVERLOAD),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}, E.RATE_LIMIT),
        ({"type": "error", "error": {"type": "authentication_error", "message": "x"}}, E.AUTH),
        ({"type": "error", "error": {"type": "billing_error", "message": "x"}}, E.AUTH),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}, E.BAD_REQUEST),
        ({"type": "error", "error": {"type": "request_too_large", "message": "big"}}, E.BAD_REQUEST),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt too long"}}, E.CONTEXT_LENGTH),
        ({"type": "error", "error": {"type": "api_error", "message": "dead"}}, E.STREAM_ERROR),
        ({"type": "error", "message": "flat", "code": 503}, E.OVERLOAD),
        ({"type": "error"}, E.STREAM_ERROR),
        ({"error": {"message": "in OpenAI's form", "code": 429}}, E.RATE_LIMIT),
        ({"object": "error", "message": "flat", "code": 400}, E.BAD_REQUEST),
    ],
)  # fmt: skip
def test_st_14_errors_of_every_shape(error: dict[str, Any], error_class: ErrorClass) -> None:
    seen, decoded = feed(says("a"), json.dumps(error).encode())
    assert seen == [SPOKEN, ERROR]
    assert decoded.fault is not None
    assert decoded.fault.error_class is error_class
    assert decoded.fault.detail


# ------------------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("first", "then", "counts", "why"),
    [
        ({"input_tokens": 25, "output_tokens": 1}, {"output_tokens": 15}, (25, None, 15), "A"),
        (
            {"input_tokens": 9, "cache_read_input_tokens": 1},
            {"input_tokens": 9, "cache_read_input_tokens": 1, "output_tokens": 16},
            (10, 1, 16),
            "B: the same pair twice is not added",
        ),
        ({"input_tokens": 25}, {"input_tokens": 0, "output_tokens": 15}, (25, None, 15), "a 0 that means nothing"),
        (
            {"input_tokens": 25, "cache_read_input_tokens": 5},
            {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 15},
            (30, 5, 15),
            "all zeroes",
        ),
        (
            {"input_tokens": 2000},
            {"input_tokens": 9, "cache_read_input_tokens": 1991, "output_tokens": 5},
            (2000, 1991, 5),
            "a guess, then the split",
        ),
        (
            {"input_tokens": 2000},
            {"input_tokens": 0, "cache_read_input_tokens": 2000, "output_tokens": 5},
            (2000, 2000, 5),
            "a 0 beside a cache is one",
        ),
        ({"input_tokens": 7, "output_tokens": 3}, {"output_tokens": 0}, (7, None, 3), "zeroes at the end"),
        ({"input_tokens": 7, "cache_read_input_tokens": 0}, {"output_tokens": 2}, (7, 0, 2), "known to be none"),
        ({"input_tokens": 7, "cache_read_input_tokens": None}, {"output_tokens": 2}, (7, None, 2), "null"),
        ({}, {"output_tokens": 2}, (None, None, 2), "late and no input"),
        ({}, {"input_tokens": 7, "output_tokens": 2}, (7, None, 2), "all of it late"),
        ({"input_tokens": 7.0}, {"output_tokens": "2"}, (7, None, None), "a float and a word"),
        ({"input_tokens": -7}, {"output_tokens": True}, None, "no counts"),
    ],
)
def test_tk_12_usage_of_both_events(
    first: dict[str, Any], then: dict[str, Any], counts: tuple[int | None, ...] | None, why: str
) -> None:
    usage = feed(start(**first), says("a"), ends(**then), STOP)[1].usage
    told = None if usage is None else (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
    assert told == counts, why


@pytest.mark.parametrize(
    ("first", "then", "counts", "odd", "why"),
    [
        (
            {"input_tokens": 1000, "cache_read_input_tokens": 900},
            {"input_tokens": 1000, "output_tokens": 5},
            (1000, None, None),
            True,
            "a guess at the cache, and a final input without one: 1,900 were never sent",
        ),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 20},
            {"input_tokens": 25, "output_tokens": 5},
            (25, 20, None),
            False,
            "the final input is the sum of the known split",
        ),
        (
            {"input_tokens": 10, "cache_creation_input_tokens": 15},
            {"input_tokens": 5, "cache_read_input_tokens": 20},
            (25, 20, None),
            True,
            "the final set has another cache: the first one's is not added",
        ),
        (
            {"input_tokens": 7, "cache_read_input_tokens": 0},
            {"input_tokens": 7, "output_tokens": 5},
            (7, 0, None),
            False,
            "a cache known to be empty loses nothing",
        ),
    ],
)
def test_tk_12_counts_of_two_sets_are_never_added(
    first: dict[str, Any], then: dict[str, Any], counts: tuple[int | None, ...], odd: bool, why: str
) -> None:
    told = AnthropicCounters()
    told.take(first)
    told.take(then)
    usage = told.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.cache_write_tokens) == counts, why
    assert told.odd is odd, why


def test_cl_06_input_is_all_three_parts() -> None:
    """100 fresh, 700 written, 200 read: each is billed at its own price."""
    counts = {"input_tokens": 100, "cache_creation_input_tokens": 700, "cache_read_input_tokens": 200}
    usage = feed(start(**counts), says("a"), ends(output_tokens=5))[1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.cache_write_tokens) == (1000, 200, 700)


def test_cl_06_writes_told_by_lifetime() -> None:
    counts = {"input_tokens": 1, "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}}
    usage = feed(start(**counts))[1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cache_write_tokens) == (8, 7)


def test_tk_03_usage_missing_is_an_estimate() -> None:
    decoded = feed(start(), *map(says, ("one ", "two ", "three")), event("message_delta", delta={}), STOP)[1]
    assert account_tokens(decoded, 3)[2:] == (3, None, None, TokensFrom.ESTIMATE, None)


def test_tk_09_thinking_is_part_of_the_output() -> None:
    usage = feed(start(), ends(output_tokens=120, output_tokens_details={"thinking_tokens": 100}))[1].usage
    assert usage is not None
    assert (usage.output_tokens, usage.reasoning_tokens) == (120, 100)


# --------------------------------------------------------------------------------------------- what is not quite right


@pytest.mark.parametrize("payload", [b"x", b"{", b'{"type":', b"\xff", b"[DONE", b"error: died"])
def test_what_is_no_json_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError):
        feed(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"1",
        b"null",
        b"[]",
        b"{}",
        b'{"type":7}',
        b'{"type":"content_block_delta","delta":{"type":["text_delta"],"text":"x"}}',
        b'{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":[]}}',
        b'{"type":"content_block_start","content_block":"x"}',
        b'{"type":"content_block_start","content_block":{"type":"text","text":{"a":1}}}',
        b'{"type":"content_block_stop","index":[]}',
        b'{"type":"message_start","message":[1]}',
        b'{"type":"message_start","message":{"usage":3,"model":4}}',
        b'{"type":"message_delta","delta":{"stop_reason":7},"usage":[]}',
        b'{"type":"ping","x":NaN}',
    ],
)
def test_surprising_types_neither_count_nor_crash(payload: bytes) -> None:
    seen, decoded = feed(payload, says("a"))
    assert seen == [0, SPOKEN]
    assert (decoded.text, decoded.fault, decoded.finish_reason) == ("a", None, None)


def test_st_05_bad_utf_8_costs_one_character_not_the_answer() -> None:
    seen, decoded = feed(b'{"type":"content_block_delta","delta":{"type":"text_delta","text":"a\xff"}}', says("b"))
    assert seen == [SPOKEN, SPOKEN]
    assert decoded.text == "a\ufffdb"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(
    ["content_block_delta", "content_block_start", "content_block_stop", "message_start", "message_delta", "error", "x"]
)
DELTA_KINDS = st.sampled_from(["text_delta", "thinking_delta", "input_json_delta", "signature_delta", "x"])


def some_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of these keys."""
    return st.fixed_dictionaries({}, optional=fields)


BLOCK = some_of(
    type=st.sampled_from(["text", "thinking", "tool_use", "server_tool_use"]) | JSON,
    **dict.fromkeys(("text", "thinking", "id", "name", "input"), JSON),
)
EVENT = some_of(
    type=KINDS | JSON,
    index=st.integers(-1, 3) | JSON,
    delta=some_of(type=DELTA_KINDS | JSON, **dict.fromkeys(("text", "thinking", "partial_json", "stop_reason"), JSON))
    | JSON,
    content_block=BLOCK | JSON,
    message=some_of(model=JSON, usage=JSON) | JSON,
    usage=some_of(input_tokens=JSON, output_tokens=JSON, cache_read_input_tokens=JSON, cache_creation=JSON) | JSON,
    error=JSON,
)


@given(st.lists(EVENT | JSON, max_size=4))
def test_no_json_value_raises(values: list[Any]) -> None:
    _, decoded = feed(*[json.dumps(value).encode() for value in values])
    for text in (decoded.text, decoded.reasoning, json.dumps(decoded.tool_calls, ensure_ascii=False)):
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


@given(st.lists(BLOCK | JSON, max_size=3), JSON, JSON)
def test_no_whole_answer_raises(content: list[Any], reason: Any, usage: Any) -> None:
    value = {"type": "message", "content": content, "stop_reason": reason, "usage": usage}
    DIALECT.decode_whole(json.dumps(value).encode()).text.encode()


@given(
    st.lists(st.tuples(st.sampled_from(["text", "thinking", "input"]), st.text(min_size=1, max_size=8)), min_size=1),
    st.data(),
)
def test_any_cut_and_any_split_into_deltas_gives_the_same_answer(
    said: list[tuple[str, str]], data: st.DataObject
) -> None:
    def payloads(pieces: list[tuple[str, str]]) -> list[bytes]:
        forms = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
        deltas = [
            delta(0, forms[kind][0], **{forms[kind][1]: text})
            if kind in forms
            else delta(1, "input_json_delta", partial_json=text)
            for kind, text in pieces
        ]
        return [start(input_tokens=3), *deltas, ends(output_tokens=9), STOP]

    def told(reads: list[bytes]) -> Decoded:
        answer = Answer(DIALECT.decoder())
        answer.more(list(enumerate(reads)))
        answer.end()
        return answer.decoder.decoded()

    split = [(kind, piece) for kind, text in said for piece in text]
    stream = b"".join(b"event: x\ndata: " + payload + b"\n\n" for payload in payloads(split))
    cut = data.draw(st.integers(0, len(stream)))
    want = feed(*payloads(said))[1]
    assert told([stream[:cut], stream[cut:]]) == want
    assert want.done


@pytest.mark.parametrize("depth", [10, 400, 990, 3000])
@pytest.mark.parametrize(
    "form",
    [
        '{"type":"error","error":%s}',
        '{"detail":%s}',
        '{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":%s}}',
        '{"type":"content_block_start","content_block":{"type":"tool_use","input":%s}}',
        '{"type":"message_start","message":{"usage":%s}}',
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
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "hello"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "u", "name": "g", "input": {}},
        {"type": "web_search_tool_result", "content": []},
    ]
    usage = {"input_tokens": 1, "cache_read_input_tokens": 30, "output_tokens": 6}
    value = {"type": "message", "content": blocks, "model": "m", "stop_reason": "tool_use", "usage": usage}
    decoded = DIALECT.decode_whole(json.dumps(value).encode())
    assert (decoded.text, decoded.reasoning, decoded.finish_reason, decoded.model) == ("hello", "hm", "tool_use", "m")
    assert [call["function"] for call in decoded.tool_calls] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert account_tokens(decoded, 0)[:3] == (31, 30, 6)
    assert decoded.done


def test_a_whole_answer_may_be_an_error() -> None:
    decoded = DIALECT.decode_whole(b'{"type":"error","error":{"type":"not_found_error","message":"no such model"}}')
    assert decoded.fault is not None
    assert decoded.fault.error_class is E.NOT_FOUND


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b"{}", b'{"content":"x"}', b'{"choices":[]}'])
def test_what_is_no_answer_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        DIALECT.decode_whole(body)


# ------------------------------------------------------------------------------------------------------- request bodies

REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": None,
    "max_tokens": 7,
    "stream": True,
    "include_usage": True,
    "sampling": {},
    "extra": {},
}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def body_of(**changes: Any) -> dict[str, Any]:
    value = json.loads(DIALECT.request_body(**(REQUEST | changes)).decode("utf-8"))
    assert isinstance(value, dict)
    return value


def call(call_id: str, arguments: Any = '{"a":1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_a_request_in_full() -> None:
    sampling = {"temperature": 0.0, "top_p": None, "seed": 3, "stop": ["x"]}
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    assert body_of(messages=messages, tools=[TOOL], sampling=sampling, extra={"top_k": 1}) == {
        "model": "m",
        "max_tokens": 7,
        "system": "S",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "stream": True,
        "temperature": 0.0,
        "stop_sequences": ["x"],
        "top_k": 1,
    }
    assert DIALECT.left_out.keys() == {"seed"}
    assert DIALECT.headers == {"anthropic-version": "2023-06-01"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("messages", "sent", "why"),
    [
        (
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "a", "tool_calls": [call("c1"), call("c2", "")]},
                {"role": "tool", "tool_call_id": "c1", "content": "7"},
                {"role": "tool", "tool_call_id": "c2", "content": [text("8")]},
                {"role": "user", "content": "and?"},
            ],
            [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": [
                        text("a"),
                        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                        {"type": "tool_use", "id": "c2", "name": "f", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": "7"},
                        {"type": "tool_result", "tool_use_id": "c2", "content": "8"},
                        text("and?"),
                    ],
                },
            ],
            "calls and results, results first in the user's message",
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
            [{"role": "user", "content": [text("a"), text("b")]}],
            "neighbours are merged",
        ),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None},
                {"role": "system", "content": "s"},
            ],
            [{"role": "user", "content": [text("a"), text("s")]}],
            "empty text is refused; a late system message stays where it is",
        ),
        (
            [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "hi"}],
            [
                {"role": "user", "content": "."},
                {"role": "assistant", "content": "hello"},
                {"role": "user", "content": "hi"},
            ],
            "the user must begin",
        ),
        (
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "", "tool_calls": [call("functions.f:0", "no json")]},
                {"role": "tool", "tool_call_id": "functions.f:0", "content": "7"},
            ],
            [
                {"role": "user", "content": "q"},
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "tool_use",
                            "id": "functions_f_0",
                            "name": "f",
                            "input": {"arguments": "no json"},
                        }
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "functions_f_0", "content": "7"}],
                },
            ],
            "ids of Kimi, arguments that are no object",
        ),
        (
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "7"},
            ],
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "7"}]},
            ],
            "the old form of a call",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                        {"type": "image_url", "image_url": {"url": "https://h/i.png"}},
                        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}},
                    ],
                }
            ],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                        {"type": "image", "source": {"type": "url", "url": "https://h/i.png"}},
                        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}},
                    ],
                }
            ],
            "images, and marks of the cache",
        ),
    ],
)
def test_messages(messages: list[dict[str, Any]], sent: list[dict[str, Any]], why: str) -> None:
    assert body_of(messages=messages)["messages"] == sent, why


@pytest.mark.parametrize(
    ("contents", "system"),
    [
        (["a", "b"], "a\n\nb"),
        ([[text("a")]], [text("a")]),
        (["a", [text("b")]], [text("a"), text("b")]),
        ([""], None),
    ],
)
def test_the_system_prompt_stands_apart(contents: list[Any], system: Any) -> None:
    roles = ("system", "developer")
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    assert body_of(messages=[*messages, {"role": "user", "content": "hi"}]).get("system") == system


@pytest.mark.parametrize(
    ("tool", "sent"),
    [
        ({"type": "function", "function": {"name": "f"}}, {"name": "f", "input_schema": {"type": "object"}}),
        (
            {"type": "function", "function": {"name": "f", "parameters": {"properties": {}}, "strict": True}},
            {"name": "f", "input_schema": {"type": "object", "properties": {}}},
        ),
        ({"name": "f", "input_schema": {"type": "object"}}, {"name": "f", "input_schema": {"type": "object"}}),
    ],
)
def test_tools(tool: dict[str, Any], sent: dict[str, Any]) -> None:
    assert body_of(tools=[tool])["tools"] == [sent]


@pytest.mark.parametrize(
    ("extra", "fields", "why"),
    [
        ({"tool_choice": "required"}, {"tool_choice": {"type": "any"}}, "its own word"),
        ({"tool_choice": "auto"}, {"tool_choice": {"type": "auto"}}, "an object here"),
        ({"tool_choice": "none"}, {"tool_choice": {"type": "none"}}, "an object here"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": {"type": "tool", "name": "f"}},
            "one tool",
        ),
        (
            {"parallel_tool_calls": False},
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            "part of the choice",
        ),
        ({"parallel_tool_calls": True}, {}, "is so anyway"),
        ({"stop": "x", "top_k": 3}, {"stop_sequences": ["x"], "top_k": 3}, "one stop string"),
        (
            {"seed": 1, "response_format": {}, "frequency_penalty": 1, "logprobs": True, "min_p": 0.1},
            {},
            "it refuses what it does not know",
        ),
    ],
)  # fmt: skip
def test_fields_of_a_chat_trace(extra: dict[str, Any], fields: dict[str, Any], why: str) -> None:
    assert DIALECT.request_fields(extra) == fields, why


CONTENT = st.none() | st.text(st.characters(codec=None, exclude_categories=()), max_size=10)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "developer"]), "content": CONTENT},
    ),
    max_size=6,
)


@given(MESSAGES)
def test_messages_alternate_and_none_is_empty(messages: list[dict[str, Any]]) -> None:
    sent = body_of(messages=messages)["messages"]
    assert [message["role"] for message in sent] == [("user", "assistant")[n % 2] for n in range(len(sent))]
    assert sent
    for message in sent:
        blocks = message["content"] if isinstance(message["content"], list) else [text(message["content"])]
        assert all(block["text"].strip() for block in blocks)
