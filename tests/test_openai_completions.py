"""The dialect `openai-completions`: its prompt text, its chunks, its request bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.channels.accounting import account_tokens
from infersiege.channels.dialect import ANSWER, DONE, ERROR, TEXT, Decoded
from infersiege.channels.openai_completions import OpenAICompletions, prompt_text
from infersiege.records import ErrorClass
from infersiege.wire.sse import EventStream

SPOKEN = TEXT | ANSWER
DIALECT = OpenAICompletions()

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


def chunk(text: Any, *, finish: Any = None, **more: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more}).encode()


def feed(*payloads: bytes) -> tuple[list[int], Decoded]:
    decoder = DIALECT.decoder()
    return [decoder.feed(payload) for payload in payloads], decoder.decoded()


# ------------------------------------------------------------------------------------------------------------ prompt

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


@pytest.mark.parametrize(
    ("messages", "prompt", "why"),
    [
        ([{"role": "user", "content": "hi"}], "hi", "one user message is its text alone"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "ab", "parts"),
        (
            [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
            "S\n\nUser: U\n\nAssistant:",
            "the first message stands without its role",
        ),
        (
            [
                {"role": "user", "content": "U"},
                {"role": "assistant", "content": "A", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "7"},
            ],
            'U\n\nAssistant: A\nf({"a":1})\n\nTool: 7\n\nAssistant:',
            "a call and its result",
        ),
        (
            [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}],
            "U\n\nAssistant: A",
            "an answer that is begun is left open",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h/i"}}]}],
            "[image_url]",
            "an image can't be said",
        ),
    ],
)
def test_the_prompt(messages: list[dict[str, Any]], prompt: str, why: str) -> None:
    assert prompt_text(messages) == prompt, why


def test_tools_go_first() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    prompt = prompt_text([{"role": "user", "content": "U"}], tools)
    assert prompt == 'Tools: {"tools":[{"type":"function","function":{"name":"f"}}]}\n\nUser: U\n\nAssistant:'


TURN = st.tuples(st.text(max_size=20), st.text(max_size=20))


@given(st.lists(TURN, min_size=2, max_size=5), st.none() | st.text(max_size=10))
def test_each_prompt_begins_with_the_one_before_it(turns: list[tuple[str, str]], system: str | None) -> None:
    """Or a prefix cache would have nothing of the turn before."""
    messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    before = ""
    for asked, answered in turns:
        messages.append({"role": "user", "content": asked})
        prompt = prompt_text(messages)
        assert prompt.startswith(before)
        before = prompt
        messages.append({"role": "assistant", "content": answered})


# -------------------------------------------------------------------------------------------------------- requests


def body_of(**changes: Any) -> dict[str, Any]:
    value = json.loads(DIALECT.request_body(**(REQUEST | changes)))
    assert isinstance(value, dict)
    return value


def test_a_request_in_full() -> None:
    sampling = {"temperature": 0.0, "top_p": None, "seed": 3, "stop": ["x"]}
    assert body_of(sampling=sampling, extra={"ignore_eos": True}) == {
        "model": "m",
        "prompt": "hi",
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "seed": 3,
        "stop": ["x"],
        "ignore_eos": True,
    }


@pytest.mark.parametrize(("stream", "include_usage"), [(True, False), (False, True)])
def test_stream_options_only_where_they_are_allowed(stream: bool, include_usage: bool) -> None:
    assert "stream_options" not in body_of(stream=stream, include_usage=include_usage)


@pytest.mark.parametrize(
    ("extra", "fields", "why"),
    [
        ({"tool_choice": "auto", "parallel_tool_calls": False, "top_k": 5}, {"top_k": 5}, "a text has no tools"),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}, "a number here"),
        ({"logprobs": True}, {"logprobs": 1}, "a number here"),
        ({"logprobs": False}, {}, "none asked"),
        ({"reasoning_effort": "low", "guided_json": {}}, {"guided_json": {}}, "engines' own fields stay"),
    ],
)
def test_fields_of_a_chat_trace(extra: dict[str, Any], fields: dict[str, Any], why: str) -> None:
    assert DIALECT.request_fields(extra) == fields, why


# ---------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("payload", "flags", "text", "why"),
    [
        (chunk("a"), SPOKEN, "a", "plain"),
        (chunk("", finish="stop"), 0, "", "llama.cpp: an empty finish chunk"),
        (chunk("b", finish="stop"), SPOKEN, "b", "vLLM, SGLang: text on the finish chunk"),
        (chunk(None), 0, "", "null"),
        (chunk(7), 0, "", "no text"),
        (b'{"choices":[{"text":"a\xff"}]}', SPOKEN, "a\ufffd", "bad UTF-8, by the lenient path"),
        (b'{"choices":[{"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-0.1]}}]}', SPOKEN, "a", "logprobs"),
    ],
)
def test_st_01_only_generated_text_counts(payload: bytes, flags: int, text: str, why: str) -> None:
    seen, decoded = feed(payload)
    assert (seen, decoded.text) == ([flags], text), why


def test_tk_07_usage_after_the_finish_reason() -> None:
    last = json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}).encode()
    seen, decoded = feed(chunk("a"), chunk("b", finish="length"), last, b"[DONE]")
    assert seen == [SPOKEN, SPOKEN, 0, DONE]
    assert account_tokens(decoded, 2)[:3] == (5, None, 2)
    assert (decoded.finish_reason, decoded.done) == ("length", True)


def test_st_14_an_error_after_text() -> None:
    seen, decoded = feed(chunk("a"), b'{"error":{"message":"full","code":503}}', b"[DONE]")
    assert seen == [SPOKEN, ERROR, DONE]
    assert decoded.fault is not None
    assert decoded.fault.error_class is ErrorClass.OVERLOAD


def test_a_whole_answer() -> None:
    body = chunk("hello", finish="stop", model="m", usage={"prompt_tokens": 3, "completion_tokens": 1})
    decoded = DIALECT.decode_whole(body)
    assert (decoded.text, decoded.finish_reason, decoded.model) == ("hello", "stop", "m")
    with pytest.raises(ValueError, match="choices"):
        DIALECT.decode_whole(b'{"text":"hello"}')


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=6), st.data())
def test_any_cut_of_the_bytes_gives_the_same_answer(texts: list[str], data: st.DataObject) -> None:
    payloads = [*map(chunk, texts), chunk("", finish="stop"), b"[DONE]"]
    stream = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    cut = data.draw(st.integers(0, len(stream)))
    events = EventStream()
    cut_up = events.feed(stream[:cut]) + events.feed(stream[cut:]) + events.close()
    assert feed(*cut_up) == feed(*payloads)
    assert feed(*cut_up)[1].text == "".join(texts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
