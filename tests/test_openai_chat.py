"""The decoder and the request bodies of `openai-chat`: field cases, shapes of engines and clouds, properties."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.channels import DIALECTS, LATER_DIALECTS, PROFILES, key_headers
from infersiege.channels.accounting import account_tokens, estimate_tokens
from infersiege.channels.dialect import ANSWER, DONE, ERROR, TEXT, Decoded
from infersiege.channels.openai_chat import OpenAIChat
from infersiege.errors import UsageError
from infersiege.records import ErrorClass, TokensFrom

E = ErrorClass

SPOKEN = TEXT | ANSWER


def chunk(delta: Any = None, *, finish: Any = None, **more: Any) -> bytes:
    """One chunk as JSON; `delta` None: a chunk without choices."""
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    return json.dumps({"choices": choices, **more}).encode()


def feed(*payloads: bytes) -> tuple[list[int], Decoded]:
    decoder = OpenAIChat().decoder()
    return [decoder.feed(payload) for payload in payloads], decoder.decoded()


def says(text: str) -> bytes:
    return chunk({"content": text})


# ---------------------------------------------------------------------------------------------- what counts as text


@pytest.mark.parametrize(
    ("delta", "flags", "why"),
    [
        ({"role": "assistant", "content": ""}, 0, "vLLM, SGLang: role chunk with an empty string"),
        ({"role": "assistant", "content": None}, 0, "llama.cpp: role chunk with null"),
        ({"role": "assistant"}, 0, "TensorRT-LLM: role chunk without content"),
        ({}, 0, "finish chunk"),
        ({"role": "assistant", "content": "a"}, SPOKEN, "TGI, LMDeploy: the role beside real text"),
        ({"content": " "}, SPOKEN, "a space is text"),
        ({"content": "\u0000"}, SPOKEN, "so is any character"),
        ({"reasoning_content": "x"}, TEXT, "llama.cpp, SGLang, DeepSeek"),
        ({"reasoning": "x"}, TEXT, "vLLM"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "x"}]}, TEXT, "OpenRouter"),
        ({"reasoning_content": None, "content": "x"}, SPOKEN, "SGLang: null reasoning beside text"),
        ({"reasoning_content": "", "content": ""}, 0, "both there, both empty"),
        ({"reasoning": "x", "content": "y"}, SPOKEN, "the parser's seam: both in one chunk"),
        ({"refusal": "no"}, SPOKEN, "a refusal is an answer"),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, SPOKEN, "the name alone"),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, SPOKEN, "a piece of arguments"),
        ({"tool_calls": [{"index": 0, "id": "c1"}]}, 0, "an id is nothing generated"),
        ({"tool_calls": []}, 0, "an empty list"),
        ({"function_call": {"name": "f"}}, SPOKEN, "the old form"),
        ({"content": [{"type": "text", "text": "x"}]}, SPOKEN, "Mistral: parts"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}]}, TEXT, "Mistral: thinking"),
        ({"content": []}, 0, "no parts"),
        ({"content": 7}, 0, "nobody documents a number"),
    ],
)
def test_st_01_only_generated_text_counts(delta: dict[str, Any], flags: int, why: str) -> None:
    seen, _ = feed(chunk(delta))
    assert seen == [flags], why


def test_st_01_a_role_chunk_before_the_text_is_no_token() -> None:
    seen, decoded = feed(chunk({"role": "assistant", "content": ""}), says("a"))
    assert seen == [0, SPOKEN]
    assert decoded.text == "a"


def test_progress_chunks_of_llama_cpp_are_no_tokens() -> None:
    progress = {"total": 2011, "cache": 0, "processed": 512, "time_ms": 90}
    seen, decoded = feed(chunk({"role": "assistant", "content": None}, prompt_progress=progress), says("a"))
    assert seen == [0, SPOKEN]
    assert decoded.flags == ()


def test_st_02_thinking_to_the_limit_is_text_without_an_answer() -> None:
    thoughts = [chunk({"reasoning": "x"}) for _ in range(50)]
    seen, decoded = feed(*thoughts, chunk({}, finish="length"), chunk(usage={"completion_tokens": 50}))
    assert seen[:50] == [TEXT] * 50
    assert (decoded.text, decoded.reasoning, decoded.finish_reason) == ("", "x" * 50, "length")
    assert account_tokens(decoded, 50).output_tokens == 50


def test_st_02_one_reasoning_text_under_several_names_is_taken_once() -> None:
    delta = {"reasoning_content": "hm", "reasoning": "hm", "reasoning_details": [{"text": "hm"}]}
    assert feed(chunk(delta))[1].reasoning == "hm"


def test_st_03_chunks_are_not_tokens() -> None:
    seen, decoded = feed(*[says("four words at once ")] * 4, chunk(usage={"completion_tokens": 16}))
    assert seen.count(SPOKEN) == 4
    assert account_tokens(decoded, 4)[2:] == (16, None, None, TokensFrom.USAGE, None)


def test_st_04_the_first_chunk_tells_its_tokens_by_usage() -> None:
    texts = [chunk({"content": "x"}, usage={"completion_tokens": 9 + i}) for i in range(11)]
    _, decoded = feed(chunk({"role": "assistant", "content": ""}, usage={"completion_tokens": 0}), *texts)
    assert decoded.first_chunk_tokens == 9
    assert account_tokens(decoded, 11).output_tokens == 19


def test_st_04_llama_cpp_tells_it_by_timings() -> None:
    _, decoded = feed(chunk({"content": "x"}, timings={"predicted_n": 2}), says("y"))
    assert decoded.first_chunk_tokens == 2


def test_st_04_usage_of_another_chunk_is_not_the_first_chunks() -> None:
    _, decoded = feed(chunk({}, usage={"completion_tokens": 1}), says("x"), chunk(usage={"completion_tokens": 8}))
    assert decoded.first_chunk_tokens is None


def test_st_32_a_leaked_end_token_stays_text_and_usage_counts() -> None:
    _, decoded = feed(
        says("4"), says("."), says("<|im_end|>"), chunk({}, finish="stop"), chunk(usage={"completion_tokens": 2})
    )
    assert decoded.text == "4.<|im_end|>"
    assert account_tokens(decoded, 3).output_tokens == 2


def test_text_on_the_finish_chunk_is_text() -> None:
    seen, decoded = feed(says("a"), chunk({"content": "b"}, finish="stop"))
    assert seen == [SPOKEN, SPOKEN]
    assert (decoded.text, decoded.finish_reason) == ("ab", "stop")


def test_text_of_every_choice_counts() -> None:
    payload = {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]}
    seen, decoded = feed(json.dumps(payload).encode())
    assert seen == [SPOKEN]
    assert decoded.text == "ab"


def test_a_whole_message_in_a_stream_is_taken_unless_it_repeats_deltas() -> None:
    whole = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"all of it"},"finish_reason":"stop"}]}'
    assert feed(whole)[1].text == "all of it"
    assert feed(says("all "), says("of it"), whole)[1].text == "all of it"


# ------------------------------------------------------------------------------------------------------- tool calls


def tool(index: int | None, *, call_id: str | None = None, name: str | None = None, arguments: Any = None) -> bytes:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    one: dict[str, Any] = {"function": function}
    one |= {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}
    return chunk({"tool_calls": [one]})


def calls_of(*payloads: bytes) -> list[tuple[str, str, str]]:
    calls = feed(*payloads)[1].tool_calls
    assert all(call["type"] == "function" for call in calls)
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


def test_st_28_a_turn_of_tool_calls_only() -> None:
    pieces = [tool(0, arguments=piece) for piece in ('{"', "city", '":"', 'Rome"}')]
    payloads = [tool(0, call_id="c1", name="f", arguments=""), *pieces, chunk({}, finish="tool_calls")]
    seen, decoded = feed(*payloads)
    assert seen == [SPOKEN] * 5 + [0]
    assert (decoded.text, decoded.finish_reason) == ("", "tool_calls")
    assert calls_of(*payloads) == [("c1", "f", '{"city":"Rome"}')]


@pytest.mark.parametrize(
    ("payloads", "calls", "why"),
    [
        (
            [
                tool(0, call_id="a", name="f"),
                tool(1, call_id="b", name="g"),
                tool(0, arguments="1"),
                tool(1, arguments="2"),
            ],
            [("a", "f", "1"), ("b", "g", "2")],
            "parallel calls, arguments interleaved",
        ),
        (
            [tool(0, call_id="a", name="f", arguments="1"), tool(0, call_id="b", name="g", arguments="2")],
            [("a", "f", "1"), ("b", "g", "2")],
            "Gemini: every call has index 0",
        ),
        (
            [tool(None, call_id="a", name="f", arguments="1"), tool(None, arguments="2")],
            [("a", "f", "12")],
            "no index: the last call goes on",
        ),
        (
            [tool(None, call_id="a", name="f"), tool(None, call_id="b", name="g"), tool(None, arguments="2")],
            [("a", "f", ""), ("b", "g", "2")],
            "no index: a new id with a name is a new call",
        ),
        (
            [tool(0, call_id="a", name="f", arguments="1"), tool(0, call_id="a", name="f", arguments="2")],
            [("a", "f", "12")],
            "id and name repeated on every delta",
        ),
        (
            [tool(0, call_id="a", name="f", arguments="1"), tool(0, call_id="zzz", arguments="2")],
            [("a", "f", "12")],
            "a fresh id on each delta, without a name",
        ),
        ([tool(0, call_id="a", name="get_"), tool(0, name="weather")], [("a", "get_weather", "")], "a name in pieces"),
        ([tool(0, name="f", arguments={"a": "é"})], [("call_0", "f", '{"a": "é"}')], "Ollama: an object; and no id"),
        (
            [tool(3, call_id="b", name="g"), tool(1, call_id="a", name="f")],
            [("a", "f", ""), ("b", "g", "")],
            "by index",
        ),
        (
            [chunk({"function_call": {"name": "f"}}), chunk({"function_call": {"arguments": "{}"}})],
            [("call_0", "f", "{}")],
            "the old form",
        ),
    ],
)
def test_st_28_deltas_of_tool_calls_join(payloads: list[bytes], calls: list[tuple[str, str, str]], why: str) -> None:
    assert calls_of(*payloads) == calls, why


@pytest.mark.parametrize("odd", ['"f"', "{}", "[null]", "[3]", '[{"index":0,"function":"f"}]', '[{"index":"0"}]'])
def test_odd_tool_calls_are_passed_over(odd: str) -> None:
    seen, decoded = feed(f'{{"choices":[{{"delta":{{"content":"a","tool_calls":{odd}}}}}]}}'.encode())
    assert seen == [SPOKEN]
    assert decoded.text == "a"


# ------------------------------------------------------------------------------------------------------------ usage


def test_tk_01_usage_in_an_empty_text_chunk() -> None:
    texts = [says("a")] * 3
    _, decoded = feed(*texts, chunk({"content": ""}, usage={"completion_tokens": 3}))
    assert account_tokens(decoded, 3)[2:] == (3, None, None, TokensFrom.USAGE, None)


def test_tk_03_usage_missing_is_an_estimate_and_says_so() -> None:
    words = [chunk({"content": f"word{i} "}, usage=None) for i in range(20)]
    account = account_tokens(feed(*words)[1], 20)
    assert account.prompt_tokens is None
    assert (account.output_tokens, account.tokens_from) == (20, TokensFrom.ESTIMATE)


@pytest.mark.parametrize(
    ("text", "chunks", "low", "high", "why"),
    [
        ("word " * 20, 20, 20, 20, "one token per chunk: the chunks"),
        ("word " * 20, 1, 20, 30, "all in one chunk: the text"),
        ("the quick brown fox jumps over the lazy dog " * 10, 25, 85, 120, "four tokens a chunk"),
        ("今天天气很好，我们去公园散步吧。" * 10, 0, 80, 130, "Chinese, not streamed"),
        ("今天天气很好，我们去公园散步吧。" * 10, 105, 105, 107, "Chinese, one token per chunk"),
        ("a", 1, 1, 1, "one token"),
        ("a", 0, 1, 1, "one token, not streamed"),
        ("publish least", 2, 2, 2, "a few long words"),
    ],
)
def test_tk_03_the_estimate_is_near(text: str, chunks: int, low: int, high: int, why: str) -> None:
    assert low <= estimate_tokens(text, chunks) <= high, why


def test_tk_03_reasoning_refusals_and_tool_calls_are_estimated_too() -> None:
    payloads = [
        chunk({"reasoning": "a thought of some words "}),
        tool(0, name="get_weather", arguments='{"city":"Rome"}'),
    ]
    account = account_tokens(feed(*payloads)[1], 2)
    assert account.tokens_from is TokensFrom.ESTIMATE
    assert account.output_tokens is not None
    assert 8 <= account.output_tokens <= 16


def test_tk_05_cumulative_usage_is_not_summed_and_its_text_is_read() -> None:
    seen, decoded = feed(*[chunk({"content": "a"}, usage={"completion_tokens": i}) for i in (1, 2, 3, 4)])
    assert seen == [SPOKEN] * 4
    assert decoded.text == "aaaa"
    assert account_tokens(decoded, 4).output_tokens == 4


def test_tk_07_usage_after_the_finish_reason() -> None:
    usage = {"completion_tokens": 8, "prompt_tokens": 37, "prompt_tokens_details": {"cached_tokens": 36}}
    seen, decoded = feed(says("a"), chunk({}, finish="length"), chunk(usage=usage), b"[DONE]")
    assert seen == [SPOKEN, 0, 0, DONE]
    assert account_tokens(decoded, 1)[:3] == (37, 36, 8)
    assert decoded.done


def test_tk_09_reasoning_is_part_of_the_output() -> None:
    usage = {"completion_tokens": 120, "completion_tokens_details": {"reasoning_tokens": 100}}
    account = account_tokens(feed(says("a"), chunk(usage=usage))[1], 1)
    assert (account.output_tokens, account.reasoning_tokens) == (120, 100)


@pytest.mark.parametrize(
    ("usage", "cached", "why"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, None, "vLLM without its flag"),
        ({"prompt_tokens": 9}, None, "not a word"),
        ({"prompt_tokens": 9, "prompt_tokens_details": {}}, None, "details about other things"),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, None, "null"),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}, 0, "known to be none"),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}, 8, "known"),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 8}, 8, "DeepSeek"),
        ({"prompt_tokens": 9, "cached_tokens": 8}, 8, "Moonshot"),
        ({"prompt_tokens": 99, "prompt_cache_hit_tokens": None, "cached_tokens": 40}, 40, "null hides no count"),
        (
            {"prompt_tokens": 99, "prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 64},
            64,
            "a gateway's 0 hides no count",
        ),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 0, "cached_tokens": None}, 0, "0 and null: none"),
    ],
)
def test_tk_14_unknown_is_not_zero(usage: dict[str, Any], cached: int | None, why: str) -> None:
    decoded = feed(says("a"), chunk(usage=usage))[1]
    assert decoded.usage is not None
    assert decoded.usage.cached_tokens == cached, why


@pytest.mark.parametrize(
    ("usages", "counts", "why"),
    [
        ([{"completion_tokens": 5}, {"completion_tokens": 0}], (None, 5), "a gateway sends zeroes at the end"),
        ([{"completion_tokens": 0}, {"completion_tokens": 5}], (None, 5), "or at the start"),
        ([{"prompt_tokens": 9}, {"completion_tokens": 5}], (9, 5), "in two chunks"),
        (
            [{"prompt_tokens": 20}, {"prompt_tokens": 9, "completion_tokens": 5}],
            (9, 5),
            "a guess, then the true figure",
        ),
        ([{"completion_tokens": 0}], (None, 0), "0 as the only word stays 0"),
        ([{"prompt_tokens": 9.0, "completion_tokens": 5.0}], (9, 5), "whole floats"),
        ([{"completion_tokens": 5}, {"completion_tokens": -1}], (None, 5), "negative"),
        ([{"completion_tokens": 5}, {"completion_tokens": True}], (None, 5), "no number"),
        ([{"completion_tokens": 5}, {"completion_tokens": "6"}], (None, 5), "a string"),
        ([{"completion_tokens": 5}, {"completion_tokens": 10**30}], (None, 5), "not to be believed"),
        ([{"completion_tokens": 5}, []], (None, 5), "a list"),
    ],
)
def test_usage_the_last_real_value_wins(usages: list[Any], counts: tuple[int | None, int], why: str) -> None:
    usage = feed(says("a"), *[chunk(usage=one) for one in usages])[1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens) == counts, why


def test_usage_in_the_choice_is_read() -> None:
    payload = b'{"choices":[{"delta":{},"finish_reason":"stop","usage":{"completion_tokens":7}}]}'
    assert account_tokens(feed(says("a"), payload)[1], 1).output_tokens == 7


def test_a_count_of_zero_beside_text_is_not_believed() -> None:
    account = account_tokens(feed(says("a"), chunk(usage={"completion_tokens": 0, "prompt_tokens": 4}))[1], 1)
    assert account[:3] == (4, None, 1)
    assert account.tokens_from is TokensFrom.ESTIMATE


def test_timings_of_llama_cpp_stand_in_for_usage() -> None:
    timings = {"cache_n": 36, "prompt_n": 1, "prompt_ms": 12.5, "predicted_n": 8}
    decoded = feed(says("a"), chunk({}, finish="stop", timings=timings))[1]
    assert account_tokens(decoded, 1)[:3] == (37, 36, 8)
    assert decoded.server_ttft_ns == 12_500_000


@pytest.mark.parametrize("odd", [None, "fast", -1, 0, 1e300, [], True])
def test_a_prefill_time_that_is_none_is_absent(odd: object) -> None:
    assert feed(chunk({}, finish="stop", timings={"prompt_ms": odd}))[1].server_ttft_ns is None


# ----------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("payload", "error_class", "said"),
    [
        ('{"error":{"message":"engine dead","code":500}}', E.STREAM_ERROR, "engine dead"),
        ('{"error":{"message":"busy","type":"Service Unavailable","code":503}}', E.OVERLOAD, "busy"),
        ('{"error":{"object":"error","message":"full","type":"SERVICE_UNAVAILABLE","code":503}}', E.OVERLOAD, "full"),
        ('{"error":{"message":"Model is overloaded","http_status_code":422}}', E.OVERLOAD, "overloaded"),
        (
            '{"error":{"message":"`inputs` must have less than 9 tokens","http_status_code":422}}',
            E.CONTEXT_LENGTH,
            "less",
        ),
        ('{"error":{"message":"bad field","http_status_code":422}}', E.BAD_REQUEST, "bad field"),
        ('{"error":{"message":"slow down","code":429}}', E.RATE_LIMIT, "slow down"),
        ('{"error":{"message":"slow down","code":"rate_limit_exceeded"}}', E.RATE_LIMIT, "slow down"),
        ('{"error":{"message":"maximum context length is 5","code":400}}', E.CONTEXT_LENGTH, "maximum"),
        (
            '{"error":{"message":"m","code":"context_length_exceeded","type":"invalid_request_error"}}',
            E.CONTEXT_LENGTH,
            "m (",
        ),
        ('{"error":{"message":"no","type":"exceed_context_size_error","code":400}}', E.CONTEXT_LENGTH, "no"),
        ('{"error":{"message":"who","code":401}}', E.AUTH, "who"),
        ('{"error":{"message":"no model","type":"NotFoundError","code":404}}', E.NOT_FOUND, "no model"),
        ('{"error":{"message":"filtered","code":"content_filter"}}', E.CONTENT_FILTER, "filtered"),
        ('{"error":{"message":"x","type":"overloaded_error"}}', E.OVERLOAD, "x"),
        ('{"error":"Unauthorized"}', E.STREAM_ERROR, "Unauthorized"),
        ('{"error":"Model is overloaded","error_type":"overloaded"}', E.OVERLOAD, "overloaded"),
        ('{"object":"error","message":"dead","type":"InternalServerError","code":500}', E.STREAM_ERROR, "dead"),
        ('{"type":"error","error":{"type":"overloaded_error","message":"x"}}', E.OVERLOAD, "x"),
        ('{"detail":"Not Found"}', E.STREAM_ERROR, "Not Found"),
        ('{"detail":[{"loc":["body"],"msg":"Field required"}]}', E.STREAM_ERROR, "Field required"),
        ('{"code":"InvalidApiKey","message":"no key","request_id":"r"}', E.AUTH, "no key"),
        ('{"error":{"message":"","type":"InternalServerError","code":500}}', E.STREAM_ERROR, "InternalServerError"),
        ('{"error":{"code":500}}', E.STREAM_ERROR, "500"),
        ('{"error":true,"message":"dead"}', E.STREAM_ERROR, "dead"),
        ('{"error":["a","b"]}', E.STREAM_ERROR, "a; b"),
        ('{"choices":[],"error":{"message":"dead"}}', E.STREAM_ERROR, "dead"),
        (
            '{"choices":[{"delta":{"content":""},"finish_reason":"error"}],"error":{"message":"dead","code":502}}',
            E.STREAM_ERROR,
            "dead",
        ),
        ('{"choices":null,"error":{"message":"dead"}}', E.STREAM_ERROR, "dead"),
        ('{"choices":{},"error":{"message":"dead"}}', E.STREAM_ERROR, "dead"),
    ],
)
def test_st_14_errors_of_every_shape(payload: str, error_class: ErrorClass, said: str) -> None:
    seen, decoded = feed(says("x"), payload.encode(), b"[DONE]")
    assert seen == [SPOKEN, ERROR, DONE]
    assert decoded.fault is not None
    assert decoded.fault.error_class is error_class
    assert said in decoded.fault.detail
    assert decoded.text == "x"


@pytest.mark.parametrize("quiet", ["null", '""', "{}", "false", "[]", "0"])
def test_a_key_error_without_an_error_is_none(quiet: str) -> None:
    seen, decoded = feed(f'{{"error":{quiet},"choices":[{{"delta":{{"content":"a"}}}}]}}'.encode())
    assert seen == [SPOKEN]
    assert decoded.fault is None


def test_the_first_error_is_the_cause() -> None:
    _, decoded = feed(b'{"error":{"message":"first"}}', b'{"error":{"message":"second"}}')
    assert decoded.fault is not None
    assert decoded.fault.detail == "first"


# --------------------------------------------------------------------------------------------------- what is not quite


@pytest.mark.parametrize("done", [b"[DONE]", b"[DONE] ", b" [DONE]", b"[DONE]\r"])
def test_done_however_it_is_spaced(done: bytes) -> None:
    seen, decoded = feed(done)
    assert seen == [DONE]
    assert decoded.done


def test_trailing_space_of_tensorrt_llm() -> None:
    assert feed(says("a") + b" ")[0] == [SPOKEN]


@pytest.mark.parametrize("reason", ["", "null", "None", None])
def test_a_finish_reason_that_is_none(reason: str | None) -> None:
    assert feed(chunk({"content": "a"}, finish=reason))[1].finish_reason is None


@pytest.mark.parametrize("payload", [b"1", b"null", b"true", b'"text"', b"[1,2]", b"[]", b"1.5", b"9" * 5000])
def test_json_that_is_no_object_is_flagged(payload: bytes) -> None:
    seen, decoded = feed(payload, says("a"))
    assert seen == [0, SPOKEN]
    assert decoded.flags == ("non_object",)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices":"x"}',
        b'{"choices":[1,null,"x"]}',
        b'{"choices":[{"delta":"x"}]}',
        b'{"choices":[{"delta":[]}]}',
        b'{"choices":[{"delta":{"content":{"a":1}},"finish_reason":7}]}',
        b'{"choices":[{"delta":{"reasoning":{"a":1},"refusal":[],"function_call":"f"}}]}',
        b'{"choices":[{"delta":{"content":1e999}}]}',
        b'{"choices":[{"delta":{"content":NaN}}]}',
        b'{"choices":[{}],"usage":"none","timings":[1],"metrics":3,"model":5}',
        b"{}",
        b'{"a":' + b"[" * 200 + b"]" * 200 + b"}",
    ],
)
def test_surprising_types_neither_count_nor_crash(payload: bytes) -> None:
    seen, decoded = feed(payload, says("a"))
    assert seen == [0, SPOKEN]
    assert decoded.text == "a"
    assert decoded.fault is None


@pytest.mark.parametrize(
    "payload", [b"x", b"{", b'{"choices":[', b"error: engine died", b"{'a': 1}", b"[DONE", b"\xff"]
)
def test_what_is_no_json_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError):
        feed(payload)


def test_nesting_beyond_reason_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested"):
        feed(b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@pytest.mark.parametrize("depth", [10, 100, 400, 900, 990, 3000])
@pytest.mark.parametrize(
    "form",
    [
        '{"error":%s}',
        '{"detail":%s}',
        '{"choices":[{"delta":{"content":[%s]}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":%s}}]}}]}',
        '{"choices":[{"delta":%s}]}',
    ],
)
def test_nesting_raises_nothing_but_value_error(form: str, depth: int) -> None:
    for nested in ("[" * depth + "]" * depth, '{"content":' * depth + "1" + "}" * depth):
        decoder = OpenAIChat().decoder()
        try:
            decoder.feed((form % nested).encode())
        except ValueError:
            assert depth >= 400
        decoder.decoded()


def test_st_05_bad_utf_8_costs_one_character_not_the_answer() -> None:
    seen, decoded = feed(b'{"choices":[{"delta":{"content":"a\xffb"}}]}', says("c"))
    assert seen == [SPOKEN, SPOKEN]
    assert decoded.text == "a\ufffdbc"


def test_halves_of_a_surrogate_pair_meet_across_chunks() -> None:
    _, decoded = feed(
        b'{"choices":[{"delta":{"content":"\\ud83d"}}]}', b'{"choices":[{"delta":{"content":"\\ude00"}}]}'
    )
    assert decoded.text == "😀"


def test_a_single_half_of_a_surrogate_pair_can_be_written() -> None:
    _, decoded = feed(b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}', says("b"))
    assert decoded.text == "a\ufffdb"


def test_the_model_is_the_first_that_is_named() -> None:
    _, decoded = feed(chunk({"content": "a"}, model=""), chunk({"content": "a"}, model="m1"), chunk({}, model="m2"))
    assert decoded.model == "m1"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "content",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "refusal",
    "tool_calls",
    "function_call",
    "role",
)
DELTA = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4) | JSON


def some_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of these keys."""
    return st.fixed_dictionaries({}, optional=fields)


CALL = some_of(
    index=st.integers(-2, 3) | JSON, id=st.text(max_size=2) | JSON, function=JSON | some_of(name=JSON, arguments=JSON)
)
CHOICE = some_of(
    text=JSON,
    delta=DELTA | some_of(tool_calls=st.lists(CALL, max_size=3)),
    message=DELTA,
    finish_reason=JSON,
    usage=JSON,
)
CHUNK = some_of(
    choices=st.lists(CHOICE | JSON, max_size=3) | JSON,
    **dict.fromkeys(("usage", "error", "timings", "metrics", "model", "detail", "message", "code"), JSON),
)


@given(st.lists(CHUNK | JSON, max_size=4))
def test_no_json_value_raises(values: list[Any]) -> None:
    _, decoded = feed(*[json.dumps(value).encode() for value in values])
    for text in (decoded.text, decoded.reasoning, decoded.refusal, json.dumps(decoded.tool_calls, ensure_ascii=False)):
        text.encode()


@given(st.binary(max_size=60) | st.binary(max_size=12).map(lambda junk: says("a")[:30] + junk + says("a")[30:]))
def test_arbitrary_bytes_raise_nothing_but_value_error(payload: bytes) -> None:
    decoder = OpenAIChat().decoder()
    try:
        decoder.feed(payload)
    except ValueError:
        assert decoder.feed(says("a")) == SPOKEN  # and leave the decoder usable


@given(st.lists(st.text(min_size=1, max_size=10).filter(str.strip), max_size=20))
def test_text_is_what_was_sent_in_order(texts: list[str]) -> None:
    seen, decoded = feed(*map(says, texts))
    assert seen == [SPOKEN] * len(texts)
    assert decoded.text == "".join(texts)


@given(CHUNK)
def test_the_lenient_path_means_what_the_fast_path_means(value: dict[str, Any]) -> None:
    """The same chunk, once as it is, once with something in it that only the lenient path can read."""
    plain = json.dumps(value).encode()
    odd = b'{"unread":NaN,' + plain[1:] if len(plain) > 2 else b'{"unread":NaN}'
    (fast,), told = feed(plain)
    (slow,), told_slowly = feed(odd)
    assert fast == slow
    for name in Decoded.__struct_fields__:
        if name != "flags":
            assert getattr(told, name) == getattr(told_slowly, name), name


def test_a_plain_event_costs_little() -> None:
    """Against json.loads of the same bytes, so that it holds on a busy machine: 25k events/s leave 40 us for all."""
    payload = chunk({"content": " word"}, id="chatcmpl-9cee983878e01a9e", created=1796036414, model="tiny")
    decoder = OpenAIChat().decoder()

    def cost(call: Any) -> float:
        def once() -> float:
            start = time.perf_counter()
            for _ in range(2000):
                call(payload)
            return time.perf_counter() - start

        return min(once() for _ in range(5))

    assert cost(decoder.feed) < cost(json.loads)


# ------------------------------------------------------------------------------------------------------ whole answers


def test_st_26_a_whole_answer_has_no_first_chunk() -> None:
    body = b"""{"id":"x","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant",
        "content":"hello","refusal":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}}],
        "usage":{"prompt_tokens":9,"completion_tokens":4}}"""
    decoded = OpenAIChat().decode_whole(body)
    assert (decoded.text, decoded.finish_reason, decoded.model) == ("hello", "stop", "m")
    assert decoded.tool_calls[0]["function"]["name"] == "f"
    assert account_tokens(decoded, 0)[:3] == (9, None, 4)
    assert decoded.first_chunk_tokens is None


def test_a_whole_answer_may_be_an_error() -> None:
    decoded = OpenAIChat().decode_whole(b'{"error":{"message":"no such model","code":404}}')
    assert decoded.fault is not None
    assert decoded.fault.error_class is ErrorClass.NOT_FOUND


def test_a_whole_answer_with_bad_utf_8() -> None:
    assert OpenAIChat().decode_whole(b'{"choices":[{"message":{"content":"a\xff"}}]}').text == "a\ufffd"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"null", b"{}", b'{"choices":7}', b'{"data":[]}', b"{" * 100_000]
)
def test_what_is_no_answer_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        OpenAIChat().decode_whole(body)


# ------------------------------------------------------------------------------------------------------- request bodies


def body_of(**changes: Any) -> dict[str, Any]:
    raw = OpenAIChat().request_body(**(REQUEST | changes))
    value = json.loads(raw.decode("utf-8"))
    assert isinstance(value, dict)
    return value


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


def test_a_request_in_full() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    sampling = {"temperature": 0.0, "top_p": None, "seed": 0, "stop": ()}
    assert body_of(tools=tools, sampling=sampling, extra={"ignore_eos": True}) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": tools,
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "seed": 0,
        "ignore_eos": True,
    }


@pytest.mark.parametrize(("stream", "include_usage"), [(True, False), (False, True), (False, False)])
def test_stream_options_only_where_they_are_allowed(stream: bool, include_usage: bool) -> None:
    body = body_of(stream=stream, include_usage=include_usage)
    assert body["stream"] is stream
    assert "stream_options" not in body


def test_no_tools_is_no_key() -> None:
    assert "tools" not in body_of(tools=[])


def test_extra_comes_last_and_wins() -> None:
    assert body_of(extra={"max_tokens": 9, "stream_options": None})["max_tokens"] == 9


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("中文 é 😀", "中文 é 😀"),
        ("a\ud83d", "a\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\udc00x", "\ufffdx"),
        ("\x00", "\x00"),
    ],
)
def test_text_of_every_kind_is_sent_as_utf_8(text: str, sent: str) -> None:
    body = body_of(messages=[{"role": "user", "content": text}], extra={text: [text]})
    assert body["messages"][0]["content"] == sent
    assert body[sent] == [sent]


@pytest.mark.parametrize(
    "odd", [float("nan"), float("inf"), 10**30, {1: "\ud83d"}, {(1, 2): 3}, b"\xff", object(), {"a", "\ud800"}]
)
def test_values_that_no_json_has_never_stop_a_request(odd: object) -> None:
    assert body_of(extra={"odd": odd, "text": "\ud800"})["text"] == "\ufffd"


@given(st.text(st.characters(codec=None, exclude_categories=())), JSON)
def test_every_request_is_utf_8_json(text: str, extra: Any) -> None:
    body_of(messages=[{"role": "user", "content": text}], model=text, extra={"x": extra})


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("extra", [{"n": 2}, {"best_of": 4}, {"echo": True}, {"background": True}])
def test_what_cannot_be_measured_is_refused_with_a_reason(dialect: str, extra: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(extra))} = .* can't be measured: ") as caught:
        DIALECTS[dialect].request_body(**(REQUEST | {"extra": extra}))
    assert caught.value.hint


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("extra", [{"n": 1}, {"n": None}, {"echo": False}, {"logprobs": True, "top_logprobs": 2}])
def test_what_can_be_measured_is_sent(dialect: str, extra: dict[str, Any]) -> None:
    body = json.loads(DIALECTS[dialect].request_body(**(REQUEST | {"extra": extra})))
    assert body.items() >= extra.items()


def test_logprobs_change_nothing() -> None:
    payload = b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.1}]}}]}'
    seen, decoded = feed(payload)
    assert (seen, decoded.text, decoded.flags) == ([SPOKEN], "a", ())


def test_tokens_written_to_a_cache_are_told() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cache_write_tokens": 8}}
    told = feed(says("a"), chunk(usage=usage))[1].usage
    assert told is not None
    assert (told.prompt_tokens, told.cached_tokens, told.cache_write_tokens) == (9, None, 8)


def test_the_dialects_that_there_are() -> None:
    assert {name: dialect.name for name, dialect in DIALECTS.items()} == {name: name for name in DIALECTS}
    assert LATER_DIALECTS == ()
    assert {name: dialect.path for name, dialect in DIALECTS.items()} == {
        "openai-chat": "/chat/completions",
        "openai-completions": "/completions",
        "openai-responses": "/responses",
        "anthropic-messages": "/messages",
    }


@pytest.mark.parametrize("name", PROFILES)
def test_each_engine_has_a_path_for_its_own_dialect(name: str) -> None:
    profile = PROFILES[name]
    assert profile.default_dialect in profile.dialects
    assert set(profile.dialects) <= set(DIALECTS)
    assert "openai-chat" in profile.dialects
    assert profile.default_dialect == ("anthropic-messages" if name == "anthropic" else "openai-chat")


@pytest.mark.parametrize(
    ("engine", "dialect", "headers", "why"),
    [
        ("anthropic", "anthropic-messages", {"x-api-key": "k"}, "its own form"),
        ("anthropic", "openai-chat", {"authorization": "Bearer k"}, "its OpenAI-compatible address"),
        ("vllm", "anthropic-messages", {"authorization": "Bearer k"}, "it answers 401 to x-api-key"),
        ("sglang", "anthropic-messages", {"authorization": "Bearer k"}, "as its capture was asked"),
        ("generic", "anthropic-messages", {"x-api-key": "k", "authorization": "Bearer k"}, "nobody knows: both"),
        ("generic", "openai-chat", {"authorization": "Bearer k"}, "OpenAI has one form"),
        ("vllm", "openai-responses", {"authorization": "Bearer k"}, "OpenAI has one form"),
    ],
)
def test_how_the_key_is_sent(engine: str, dialect: str, headers: dict[str, str], why: str) -> None:
    assert key_headers(PROFILES[engine], DIALECTS[dialect], "k") == headers, why
