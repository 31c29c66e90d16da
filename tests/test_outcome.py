"""Judgement of one exchange: statuses, bodies, streams, ends; and what is kept of what the server said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.channels.dialect import TEXT, Decoded
from infersiege.channels.openai_chat import OpenAIChat
from infersiege.channels.outcome import (
    Conclusion,
    account_tokens,
    conclude,
    decode_body,
    retry_after_ns,
    scrub,
)
from infersiege.channels.redaction import Secrets, one_line
from infersiege.records import ErrorClass, Outcome
from infersiege.wire.exchange import ExchangeResult, Fault
from infersiege.wire.sse import EventStream

E = ErrorClass
SSE = {"content-type": "text/event-stream; charset=utf-8"}
TEXT_A = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
STOP = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'
DONE = "data: [DONE]\n\n"
GOOD = TEXT_A + STOP + USAGE + DONE
RESET = Fault(error_class=E.TRUNCATED, detail="connection reset by peer")
OURS = Fault(error_class=None, detail="run_end")


def finish(reason: str) -> str:
    return f'data: {{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}\n\n'


def exchange(status: int | None = 200, **fields: Any) -> ExchangeResult:
    return ExchangeResult(attempt_ns=0, status=status, **({"complete": True} | fields))


def stream(
    body: str, *, stream_asked: bool = True, asked: int | None = None, **fields: Any
) -> tuple[Conclusion, Decoded, int]:
    """A streamed answer as its sink would take it: conclusion, what was decoded, chunks."""
    events, decoder, fault, chunks = EventStream(), OpenAIChat().decoder(), None, 0
    for payload in events.feed(body.encode()):
        try:
            chunks += bool(decoder.feed(payload) & TEXT)
        except ValueError as error:
            fault = fault or Fault(error_class=E.PARSE, detail=str(error))
    for payload in events.close():
        try:
            decoder.feed(payload)
        except ValueError:
            continue
    decoded = decoder.decoded()
    conclusion = conclude(
        exchange(streamed=True, headers=SSE, **fields),
        decoded=decoded,
        stream_asked=stream_asked,
        parse_fault=fault,
        unterminated=events.unterminated,
        asked_output_tokens=asked,
    )
    return conclusion, decoded, chunks


def whole(
    body: str | bytes,
    *,
    status: int | None = 200,
    content_type: str = "application/json",
    stream_asked: bool = True,
    **fields: Any,
) -> Conclusion:
    """An answer that did not go to the sink."""
    raw = body.encode() if isinstance(body, str) else body
    headers = {"content-type": content_type} | fields.pop("headers", {})
    result = exchange(status, body=raw, headers=headers, **fields)
    decoded, fault = decode_body(OpenAIChat(), result)
    return conclude(result, decoded=decoded, stream_asked=stream_asked, parse_fault=fault)


def verdict(conclusion: Conclusion) -> tuple[Outcome, ErrorClass | None]:
    return conclusion.outcome, conclusion.error_class


OK = (Outcome.OK, None)


AT_A_LIMIT = ("length", "max_tokens", "model_context_window_exceeded", "max_output_tokens")


def failed(error_class: ErrorClass) -> tuple[Outcome, ErrorClass]:
    return Outcome.FAILED, error_class


# --------------------------------------------------------------------------------------------------------- streams


def test_a_good_stream_is_ok_and_plain() -> None:
    conclusion, _, _ = stream(GOOD)
    assert conclusion == Conclusion(
        outcome=Outcome.OK, error_class=None, error_detail=None, finish_reason="stop", flags=(), retry_after_ns=None
    )


def test_st_14_in_stream_error_after_200() -> None:
    body = TEXT_A + 'data: {"error":{"message":"engine dead","code":500}}\n\n' + DONE
    conclusion, decoded, chunks = stream(body)
    assert verdict(conclusion) == failed(E.STREAM_ERROR)
    assert conclusion.error_detail == "engine dead (500)"
    assert account_tokens(decoded, chunks).output_tokens == 1  # the part that came; never what was asked


@pytest.mark.parametrize(
    ("reason", "want", "why"),
    [
        ("stop", OK, "the model's own end"),
        ("length", OK, "the limit that was asked"),
        ("tool_calls", OK, "a call"),
        ("function_call", OK, "a call, the old form"),
        ("eos_token", OK, "TGI"),
        ("stop_sequence", OK, "TGI, Anthropic behind a gateway"),
        ("end_turn", OK, "Anthropic behind a gateway"),
        ("STOP", OK, "Gemini behind a gateway"),
        ("MAX_TOKENS", OK, "Gemini behind a gateway"),
        ("tool_use", OK, "Anthropic: a call"),
        ("pause_turn", OK, "Anthropic: a tool of its own takes long, this turn is over"),
        ("max_tokens", OK, "Anthropic: the limit"),
        ("model_context_window_exceeded", OK, "Anthropic: the context's end"),
        ("completed", OK, "Responses: its status"),
        ("max_output_tokens", OK, "Responses: why it is incomplete"),
        ("refusal", failed(E.CONTENT_FILTER), "Anthropic: withheld"),
        ("abort", failed(E.STREAM_ERROR), "vLLM, SGLang, LMDeploy: given up"),
        ("error", failed(E.STREAM_ERROR), "LMDeploy, gateways"),
        ("parse_error", failed(E.STREAM_ERROR), "LMDeploy"),
        ("content_filter", failed(E.CONTENT_FILTER), "withheld"),
        ("sensitive", failed(E.CONTENT_FILTER), "Zhipu: withheld"),
        ("network_error", failed(E.STREAM_ERROR), "Zhipu"),
        ("what_is_this", failed(E.STREAM_ERROR), "nobody knows it: not a full answer"),
    ],
)
def test_st_17_only_known_finish_reasons_end_a_full_answer(reason: str, want: object, why: str) -> None:
    conclusion, _, _ = stream(TEXT_A + finish(reason) + USAGE + DONE)
    assert verdict(conclusion) == want, why
    assert conclusion.finish_reason == reason
    assert ("length" in conclusion.flags) == (reason.lower() in AT_A_LIMIT)
    assert (conclusion.error_detail is None) == (want == OK)


@pytest.mark.parametrize(
    ("body", "complete", "fault", "want", "flags", "why"),
    [
        (TEXT_A + STOP, True, None, OK, ("usage_missing", "no_done"), "(a) finish reason, clean end"),
        (TEXT_A, True, None, failed(E.TRUNCATED), ("usage_missing",), "(b) neither, clean end"),
        (TEXT_A, False, RESET, failed(E.TRUNCATED), ("usage_missing",), "(c) reset"),
        (TEXT_A, False, None, failed(E.TRUNCATED), ("usage_missing",), "no end marker of the chunked body"),
        (TEXT_A + STOP, False, RESET, failed(E.TRUNCATED), ("usage_missing",), "reset after the finish reason"),
        (TEXT_A + DONE, True, None, OK, ("usage_missing", "no_finish"), "[DONE] without a finish reason"),
        (GOOD, False, RESET, OK, ("cut_after_done",), "reset after [DONE]: nothing was missing"),
        (GOOD, False, None, OK, ("cut_after_done",), "no end marker after [DONE]"),
        (GOOD, True, OURS, OK, ("cut_after_done",), "we hung up after [DONE]"),
        (GOOD[:-2], True, None, OK, ("unterminated_event",), "[DONE] without its blank line"),
        (TEXT_A + STOP[:30], True, None, failed(E.TRUNCATED), ("unterminated_event", "usage_missing"), "half an event"),
        (
            TEXT_A + STOP + USAGE[:30],
            True,
            None,
            OK,
            ("unterminated_event", "usage_missing", "no_done"),
            "half a usage",
        ),
    ],
)
def test_st_20_ends(
    body: str, complete: bool, fault: Fault | None, want: object, flags: tuple[str, ...], why: str
) -> None:
    conclusion, _, _ = stream(body, complete=complete, fault=fault)
    assert verdict(conclusion) == want, why
    assert conclusion.flags == flags, why


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "headers, then the end"),
        (": ping\n\n" * 3, "comments only"),
        (DONE, "nothing but the end"),
        ('data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n' + STOP + DONE, "a role and an end"),
        (STOP + USAGE + DONE, "usage claims what nobody saw"),
        (finish("length") + DONE, "the limit, but no text"),
    ],
)
def test_tk_02_a_success_without_output_is_a_failure(body: str, why: str) -> None:
    conclusion, _, _ = stream(body)
    assert verdict(conclusion) == failed(E.NO_OUTPUT), why
    assert conclusion.error_detail


def test_tk_02_a_hundred_empty_successes_are_a_hundred_failures() -> None:
    outcomes = [stream("")[0].outcome for _ in range(100)]
    assert outcomes.count(Outcome.FAILED) == 100


def test_st_25_a_usage_only_answer_has_no_first_token() -> None:
    conclusion, decoded, chunks = stream(USAGE + DONE)
    assert verdict(conclusion) == failed(E.NO_OUTPUT)
    assert chunks == 0
    assert decoded.first_chunk_tokens is None


def test_st_28_a_turn_of_tool_calls_only_is_ok() -> None:
    call = 'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f"}}]}}]}\n\n'
    conclusion, _, chunks = stream(call + finish("tool_calls") + USAGE + DONE)
    assert verdict(conclusion) == OK
    assert chunks == 1


def test_st_02_thinking_to_the_limit_is_ok_without_an_answer() -> None:
    thought = 'data: {"choices":[{"delta":{"reasoning":"x"}}]}\n\n'
    conclusion, decoded, _ = stream(thought + finish("length") + USAGE + DONE)
    assert verdict(conclusion) == OK
    assert decoded.text == ""


def test_st_32_a_leaked_end_token_is_noted() -> None:
    conclusion, _, _ = stream(TEXT_A.replace('"a"', '"4.<|im_end|>"') + STOP + USAGE + DONE)
    assert verdict(conclusion) == OK
    assert conclusion.flags == ("end_token_text",)


def test_an_output_clipped_by_the_engine_is_noted() -> None:
    body = TEXT_A + finish("length") + USAGE + DONE
    assert stream(body, asked=50)[0].flags == ("length", "clipped")
    assert stream(body, asked=1)[0].flags == ("length",)


def test_an_event_that_is_no_json_fails_the_turn() -> None:
    conclusion, _, _ = stream(TEXT_A + "data: Traceback (most recent call last)\n\n" + STOP + DONE)
    assert verdict(conclusion) == failed(E.PARSE)


def test_a_stream_that_nobody_asked_for_is_noted() -> None:
    assert stream(GOOD, stream_asked=False)[0].flags == ("stream_unasked",)


def test_a_count_of_zero_beside_text_is_noted() -> None:
    assert "usage_zero" in stream(TEXT_A + STOP + USAGE.replace(":1}", ":0}") + DONE)[0].flags


# ------------------------------------------------------------------------------------------- order of judgement


@pytest.mark.parametrize(
    ("body", "fields", "want", "why"),
    [
        (TEXT_A, {"fault": OURS, "complete": False}, (Outcome.CANCELLED, None), "cut by us"),
        ("", {"fault": OURS, "complete": False}, (Outcome.CANCELLED, None), "cut by us before the first token"),
        (
            'data: {"error":{"message":"busy","code":503}}\n\n',
            {"fault": OURS, "complete": False},
            failed(E.OVERLOAD),
            "it had failed before we cut it",
        ),
        (
            'data: {"error":{"message":"dead"}}\n\n',
            {"fault": RESET, "complete": False},
            failed(E.STREAM_ERROR),
            "the error is the cause, the reset its effect",
        ),
        (
            TEXT_A,
            {"fault": Fault(error_class=E.TIMEOUT_IDLE, detail="idle 60 s"), "complete": False},
            failed(E.TIMEOUT_IDLE),
            "a deadline",
        ),
        (
            TEXT_A + "data: {broken\n\n",
            {"fault": Fault(error_class=E.TIMEOUT_TOTAL, detail="total 600 s"), "complete": False},
            failed(E.TIMEOUT_TOTAL),
            "what ended the exchange stands before what could not be read",
        ),
        (finish("content_filter") + DONE, {}, failed(E.CONTENT_FILTER), "withheld stands before empty"),
        (finish("abort") + DONE, {}, failed(E.STREAM_ERROR), "given up stands before empty"),
    ],
)
def test_the_first_finding_in_order_decides(body: str, fields: dict[str, Any], want: object, why: str) -> None:
    conclusion, _, _ = stream(body, **fields)
    assert verdict(conclusion) == want, why
    assert conclusion.error_detail


@pytest.mark.parametrize(
    "error_class", [E.CONNECT, E.TLS, E.TIMEOUT_CONNECT, E.TIMEOUT_FIRST_TOKEN, E.STALE_CONNECTION, E.CLIENT_RESOURCE]
)
def test_a_fault_of_the_transport_keeps_its_class(error_class: ErrorClass) -> None:
    fault = Fault(error_class=error_class, detail="what happened")
    conclusion = conclude(exchange(None, complete=False, fault=fault), decoded=None, stream_asked=True)
    assert (*verdict(conclusion), conclusion.error_detail) == (*failed(error_class), "what happened")


def test_a_status_stands_even_if_the_upload_was_cut() -> None:
    assert verdict(whole("too large", status=413, fault=RESET, complete=False)) == failed(E.BAD_REQUEST)


def test_no_answer_and_no_fault_is_still_a_failure() -> None:
    conclusion = conclude(exchange(None, complete=False), decoded=None, stream_asked=True)
    assert verdict(conclusion) == failed(E.TRUNCATED)


# ------------------------------------------------------------------------------------------------- statuses and bodies


def error_body(message: str, kind: str | None = None, code: Any = None) -> str:
    return json.dumps({"error": {"message": message, "type": kind, "code": code}})


@pytest.mark.parametrize(
    ("status", "body", "want", "why"),
    [
        (400, error_body("bad"), E.BAD_REQUEST, "plain"),
        (400, error_body("maximum context length is 1024 tokens"), E.CONTEXT_LENGTH, "vLLM, OpenAI"),
        (400, error_body("max_tokens=5000 cannot be greater than max_model_len=1024"), E.CONTEXT_LENGTH, "vLLM"),
        (
            400,
            '{"object":"error","message":"longer than the model\'s context length (1024)"}',
            E.CONTEXT_LENGTH,
            "SGLang",
        ),
        (
            400,
            error_body("exceeds the available context size", "exceed_context_size_error"),
            E.CONTEXT_LENGTH,
            "llama.cpp",
        ),
        (400, error_body("see code", "invalid_request_error", "context_length_exceeded"), E.CONTEXT_LENGTH, "OpenAI"),
        (400, error_body("should not exceed max_num_tokens (8192)"), E.CONTEXT_LENGTH, "TensorRT-LLM"),
        (400, error_body("prompt is too long: 210000 tokens > 200000 maximum"), E.CONTEXT_LENGTH, "Anthropic"),
        (400, error_body("Range of input length should be [1, 6000]"), E.CONTEXT_LENGTH, "DashScope"),
        (
            422,
            '{"error":"`inputs` must have less than 1024 tokens. Given: 2000","error_type":"validation"}',
            E.CONTEXT_LENGTH,
            "TGI",
        ),
        (422, '{"error":"temperature must be positive","error_type":"validation"}', E.BAD_REQUEST, "TGI"),
        (422, '{"detail":[{"loc":["body"],"msg":"Field required"}]}', E.BAD_REQUEST, "FastAPI"),
        (413, "<html><title>413 Request Entity Too Large</title></html>", E.BAD_REQUEST, "nginx: bytes, not tokens"),
        (400, error_body("blocked", None, "content_filter"), E.CONTENT_FILTER, "Azure"),
        (401, '{"error":"Unauthorized"}', E.AUTH, "vLLM, SGLang"),
        (401, "", E.AUTH, "TGI: no body"),
        (403, error_body("no"), E.AUTH, "forbidden"),
        (402, error_body("Insufficient Balance"), E.AUTH, "DeepSeek"),
        (404, '{"detail":"Not Found"}', E.NOT_FOUND, "wrong path"),
        (404, error_body("The model `x` does not exist", "NotFoundError", 404), E.NOT_FOUND, "wrong model"),
        (405, '{"detail":"Method Not Allowed"}', E.NOT_FOUND, "the path takes no POST"),
        (408, "", E.RATE_LIMIT, "request timeout of a gateway"),
        (429, error_body("slow down"), E.RATE_LIMIT, "plain"),
        (429, error_body("quota", "insufficient_quota"), E.RATE_LIMIT, "OpenAI"),
        (429, '{"error":"Model is overloaded","error_type":"overloaded"}', E.OVERLOAD, "TGI: its own limit"),
        (424, '{"error":"CUDA error","error_type":"generation"}', E.SERVER, "TGI"),
        (500, error_body("oops"), E.SERVER, "plain"),
        (500, error_body("the server is overloaded"), E.OVERLOAD, "in words"),
        (502, "<html><title>502 Bad Gateway</title></html>", E.SERVER, "a proxy"),
        (503, error_body("The engine is currently busy", "Service Unavailable", 503), E.OVERLOAD, "vLLM"),
        (503, "", E.OVERLOAD, "no body"),
        (504, "", E.SERVER, "a proxy's deadline"),
        (529, error_body("x", "overloaded_error"), E.OVERLOAD, "Anthropic"),
        (529, '{"type":"error","error":{"type":"overloaded_error","message":"x"}}', E.OVERLOAD, "Anthropic, in full"),
        (413, error_body("x", "request_too_large"), E.BAD_REQUEST, "Anthropic: bytes, not tokens"),
        (418, "", E.BAD_REQUEST, "any other of 4xx"),
        (599, "", E.SERVER, "any other of 5xx"),
        (307, "", E.BAD_REQUEST, "not followed"),
        (301, "<html>", E.BAD_REQUEST, "not followed"),
    ],
)
def test_statuses(status: int, body: str, want: ErrorClass, why: str) -> None:
    conclusion = whole(body, status=status)
    assert verdict(conclusion) == failed(want), why
    assert conclusion.error_detail is not None
    assert conclusion.error_detail.startswith(f"HTTP {status}")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (
            404,
            error_body("The model `x` does not exist", "NotFoundError", 404),
            "HTTP 404: The model `x` does not exist (NotFoundError, 404)",
        ),
        (502, "<html><head><title>502 Bad Gateway</title></head><body>x</body></html>", "HTTP 502: 502 Bad Gateway"),
        (500, "Internal\nServer  Error", "HTTP 500: Internal Server Error"),
        (503, "", "HTTP 503, no body"),
        (500, 'data: {"error":{"message":"in a frame"}}\n\ndata: [DONE]\n\n', "HTTP 500: in a frame"),
    ],
)
def test_the_detail_is_what_the_server_said(status: int, body: str, said: str) -> None:
    assert whole(body, status=status).error_detail == said


def test_a_redirect_says_where_to() -> None:
    detail = whole("", status=308, headers={"location": "https://h/v1/chat/completions?key=hunter2"}).error_detail
    assert detail is not None
    assert "https://h/v1/chat/completions" in detail
    assert "base_url" in detail
    assert "hunter2" not in detail


ANSWER_BODY = (
    '{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],'
    '"usage":{"prompt_tokens":3,"completion_tokens":1}}'
)


@pytest.mark.parametrize(
    ("body", "content_type", "want", "said"),
    [
        ('{"error":{"message":"no such model"}}', "application/json", E.STREAM_ERROR, "no such model"),
        ('{"error":{"message":"no such model","code":404}}', "application/json", E.NOT_FOUND, "no such model"),
        ('{"error":{"message":"busy","code":503}}', "application/json", E.OVERLOAD, "busy"),
        ("<html>login</html>", "text/html", E.NO_OUTPUT, "login"),
        ("<html><title>Wifi</title>login</html>", "application/json", E.NO_OUTPUT, "Wifi"),
        ("", "application/json", E.NO_OUTPUT, "empty body"),
        ("", "text/plain", E.NO_OUTPUT, "empty body"),
        (ANSWER_BODY, "application/json", E.STREAM_ERROR, "stream = false"),
        ('{"type":"message","content":[{"type":"text","text":"a"}]}', "application/json", E.STREAM_ERROR, "false"),
        ('{"object":"response","error":null,"output":[]}', "application/json", E.STREAM_ERROR, "stream = false"),
        (GOOD, "text/plain", E.STREAM_ERROR, "text/plain"),
        ("ok", "text/plain", E.NO_OUTPUT, "ok"),
        ("{}", "application/json", E.NO_OUTPUT, "without an answer"),
        ("[]", "application/json", E.NO_OUTPUT, "without an answer"),
    ],
)
def test_st_27_a_stream_was_asked_and_something_else_came(
    body: str, content_type: str, want: ErrorClass, said: str
) -> None:
    conclusion = whole(body, content_type=content_type)
    assert verdict(conclusion) == failed(want)
    assert conclusion.error_detail is not None
    assert said in conclusion.error_detail


@pytest.mark.parametrize(
    ("body", "want", "why"),
    [
        (ANSWER_BODY, OK, "a whole answer, as asked"),
        (ANSWER_BODY.replace("stop", "length"), OK, "at its limit"),
        (ANSWER_BODY.replace("stop", "abort"), failed(E.STREAM_ERROR), "given up"),
        (ANSWER_BODY.replace("hi", ""), failed(E.NO_OUTPUT), "no text"),
        ('{"choices":[]}', failed(E.NO_OUTPUT), "no choice"),
        ('{"error":{"message":"no such model"}}', failed(E.STREAM_ERROR), "an error with status 200"),
        ("<html>login</html>", failed(E.NO_OUTPUT), "a page"),
        ("", failed(E.NO_OUTPUT), "nothing"),
        ('{"hello":1}', failed(E.PARSE), "JSON of something else"),
        (ANSWER_BODY[:40], failed(E.PARSE), "half of it, though HTTP says it is all"),
    ],
)
def test_st_26_answers_that_were_not_streamed(body: str, want: object, why: str) -> None:
    assert verdict(whole(body, stream_asked=False)) == want, why


def test_st_26_half_a_body_is_truncated() -> None:
    conclusion = whole(ANSWER_BODY[:40], stream_asked=False, complete=False)
    assert verdict(conclusion) == failed(E.TRUNCATED)


@pytest.mark.parametrize("status", [204, 206])
def test_other_successes_without_output(status: int) -> None:
    assert verdict(whole("", status=status)) == failed(E.NO_OUTPUT)


@given(st.one_of(st.none(), st.integers(100, 599)), st.binary(max_size=80), st.booleans(), st.booleans())
def test_every_exchange_has_exactly_one_outcome(status: int | None, body: bytes, asked: bool, complete: bool) -> None:
    """And nothing that a server can send makes the judgement raise, or be ok without text."""
    result = exchange(status, body=body, complete=complete)
    decoded, fault = decode_body(OpenAIChat(), result)
    conclusion = conclude(result, decoded=decoded, stream_asked=asked, parse_fault=fault)
    assert (conclusion.outcome is Outcome.FAILED) == (conclusion.error_class is not None)
    assert (conclusion.outcome is Outcome.OK) == (conclusion.error_detail is None)
    assert conclusion.outcome is not Outcome.OK or (decoded is not None and decoded.text)


# ------------------------------------------------------------------------------------------------------- retry-after


DATE = "Mon, 30 Nov 2026 11:00:10 GMT"


@pytest.mark.parametrize(
    ("headers", "wait_ns", "why"),
    [
        ({}, None, "not said"),
        ({"retry-after": "2"}, 2_000_000_000, "seconds"),
        ({"retry-after": "0.5"}, 500_000_000, "parts of a second, which some send"),
        ({"retry-after": "0"}, 0, "at once"),
        ({"retry-after": "-3"}, 0, "in the past"),
        ({"retry-after-ms": "250", "retry-after": "1"}, 250_000_000, "OpenAI, Azure: the finer one"),
        (
            {"retry-after": DATE, "date": "Mon, 30 Nov 2026 11:00:00 GMT"},
            10_000_000_000,
            "a date, by the server's clock",
        ),
        ({"retry-after": DATE}, 4_000_000_000, "a date, by ours"),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:00 GMT"}, 0, "a date in the past"),
        ({"retry-after": "soon"}, None, "no meaning"),
        ({"retry-after": "nan"}, None, "no number"),
        ({"retry-after": "1e300"}, None, "beyond every run"),
        ({"retry-after": ""}, None, "empty"),
        ({"retry-after": "Mon, 99 Nov 2026 11:00:10 GMT"}, None, "no date"),
    ],
)
def test_retry_after(headers: dict[str, str], wait_ns: int | None, why: str) -> None:
    now_ns = 1_796_036_406 * 1_000_000_000  # 2026-11-30 11:00:06 UTC
    assert retry_after_ns(headers, now_ns) == wait_ns, why


def test_retry_after_is_kept_with_the_failure() -> None:
    assert whole("", status=429, headers={"retry-after": "3"}).retry_after_ns == 3_000_000_000


def test_a_date_without_any_clock_is_not_guessed() -> None:
    assert retry_after_ns({"retry-after": DATE}, None) is None


# ----------------------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-test-hunter2. See the docs",
        "Authorization: Bearer hunter2",
        "got 'bearer hunter2'",
        '{"authorization": "hunter2"}',
        "x-api-key: hunter2",
        '"api_key":"hunter2"',
        "api key = hunter2",
        "password=hunter2",
        "https://me:hunter2@h/v1",
        "https://h/v1?key=hunter2&a=1",
        "https://h/v1?a=1&access_token=hunter2",
        "token eyJhbGciOiJIUzI1NiJ9.hunter2hunter2.sig is expired",
        "hf_hunter2hunter2hunter2",
    ],
)
def test_cl_08_what_looks_like_a_key_never_shows(text: str) -> None:
    assert "hunter2" not in scrub(text)
    assert "[redacted]" in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 1024 tokens. (parameter=input_tokens, value=1025)",
        "The model `qwen3-8b` does not exist (NotFoundError, 404)",
        "the task-based risk-free desk-top",
        "max_tokens=5000 cannot be greater than max_model_len=1024",
        "connect to [::1]:8000 failed: connection refused",
        "http://127.0.0.1:8000/v1/chat/completions?api-version=2024-10-21",
    ],
)
def test_what_is_no_key_stays_readable(text: str) -> None:
    assert scrub(text) == text


def test_cl_08_an_echoed_key_of_ours_never_shows_in_any_form() -> None:
    key = 'k"y/with+odd\\chars é'
    said = f"raw {key}; json {json.dumps(key)}; url k%22y%2Fwith%2Bodd%5Cchars%20%C3%A9"
    clean = Secrets((key,)).scrub(said)
    assert clean.count("[redacted]") == 3
    assert "odd" not in clean


def test_cl_08_a_key_in_a_401_is_taken_out_before_it_is_cut() -> None:
    key = "plain-key-without-a-known-form"
    body = error_body("x" * 285 + key)
    for cut in range(0, 40, 7):
        result = exchange(401, body=body[:20].encode() + body[20 + cut :].encode(), headers={})
        detail = conclude(result, decoded=None, stream_asked=True, secrets=(key,)).error_detail
        assert detail is not None
        assert len(detail) <= 300
        assert key[:8] not in detail


@given(st.text(max_size=80), st.lists(st.text(min_size=8, max_size=12), max_size=3))
def test_scrubbing_again_changes_nothing_and_no_secret_is_left(text: str, secrets: list[str]) -> None:
    text = text + "".join(secrets) + text
    clean = Secrets(secrets).scrub(text)
    assert scrub(clean) == clean
    rest = clean.replace("[redacted]", "\0")
    assert not any(secret.strip() in rest for secret in secrets if len(secret.strip()) >= 8)


@given(st.text(max_size=700))
def test_a_detail_is_one_short_printable_line(text: str) -> None:
    line = one_line(text)
    assert len(line) <= 300
    assert line.isprintable()
    line.encode()
