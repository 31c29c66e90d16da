"""The transport against scripted servers on real sockets: what comes out of each thing that servers do."""

from __future__ import annotations

import _socket
import errno
import gc
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest
from gevent.monkey import get_original
from scripted_server import STREAM_HEAD, Peer, Server, answering, black_hole, chunked, dead_port, stream, whole

from infersiege.channels.answer import Answer
from infersiege.channels.openai_chat import OpenAIChat
from infersiege.errors import UsageError
from infersiege.records import ErrorClass, StampSource
from infersiege.wire.clock import ANCILLARY_BYTES, SO_TIMESTAMPNS
from infersiege.wire.exchange import Deadlines, ExchangeResult, Request
from infersiege.wire.transport import Client, DecoderLoop, Endpoint, Exchange, StampClock

SECOND = 1_000_000_000
MS = 1_000_000
stall = get_original("time", "sleep")
LONG = Deadlines(connect_ns=5 * SECOND, first_token_ns=20 * SECOND, idle_ns=20 * SECOND, total_ns=40 * SECOND)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text(content: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": content}}]})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
STOP = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
DONE = b"data: [DONE]\n\n"
GOOD = stream(ROLE, text("a"), text("b"), STOP, DONE)


class Rig:
    """Clients of one process, and a short way to make one request."""

    def __init__(self, clock: StampClock | None = None) -> None:
        self.clock = clock or StampClock()
        self.decoder_loop = DecoderLoop(self.clock)
        self._clients: list[Client] = []

    def client(self, url: str, *, keep_alive: bool = True, **tls: object) -> Client:
        client = Client(Endpoint.from_url(url, **tls), self.clock, self.decoder_loop, keep_alive=keep_alive)  # type: ignore[arg-type]
        self._clients.append(client)
        return client

    def start(
        self, client: Client, *, body: bytes = b"{}", sink: object = None, **limits: float
    ) -> tuple[Answer, Exchange]:
        """`limits`: deadlines in seconds, by name without `_ns`."""
        answer = Answer(OpenAIChat().decoder()) if sink is None else sink
        request = Request(path="/v1/chat/completions", headers=(("content-type", "application/json"),), body=body)
        fields = {name: getattr(LONG, name) for name in LONG.__struct_fields__}
        fields |= {f"{name}_ns": round(value * SECOND) for name, value in limits.items()}
        return answer, client.start(request, answer, Deadlines(**fields))  # type: ignore[arg-type,return-value]

    def ask(self, client: Client, **options: object) -> tuple[Answer, ExchangeResult]:
        answer, exchange = self.start(client, **options)  # type: ignore[arg-type]
        with gevent.Timeout(30):
            return answer, exchange.wait()

    def ask_once(self, script: Callable[[Peer], None], **options: object) -> tuple[Answer, ExchangeResult]:
        with Server(script) as server:
            return self.ask(self.client(server.url), **options)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.clock.close()


@pytest.fixture(scope="module", autouse=True)
def kernel_stamps() -> Iterator[None]:
    """Stamping is on before the first test, and stays on between them.

    The kernel switches it on some time after a first socket asks, by a work queue: as good as at once in a run, which
    asks long before its first request, but not here on a busy machine.
    """
    clock = StampClock()
    listener = _socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    receiver = _socket.socket()
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    receiver.connect(listener.getsockname())
    accepted = _socket.socket(fileno=listener._accept()[0])
    end_ns = time.monotonic_ns() + 20 * SECOND
    while time.monotonic_ns() < end_ns:
        accepted.send(b"x")
        if receiver.recvmsg(1, ANCILLARY_BYTES)[1]:
            break
        stall(0.01)
    for sock in (listener, receiver, accepted):
        sock.close()
    yield
    clock.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    assert rig.decoder_loop.poll._holders == 0, "somebody still holds the poll watch"
    rig.close()


def once(act: Callable[[Peer], None]) -> Callable[[Peer], None]:
    """A script: read one request, then do this."""

    def script(peer: Peer) -> None:
        assert peer.request() is not None
        act(peer)

    return script


def fault_of(result: ExchangeResult) -> tuple[ErrorClass | None, str]:
    assert result.fault is not None
    return result.fault.error_class, result.fault.detail


# ------------------------------------------------------------------------------------------------- plain exchanges


def test_a_streamed_answer(rig: Rig) -> None:
    with Server(answering(GOOD)) as server:
        answer, result = rig.ask(rig.client(server.url), body=b'{"model":"m"}')
    assert result.fault is None
    assert (result.status, result.streamed, result.complete, result.attempts) == (200, True, True, 1)
    assert answer.decoder.decoded().text == "ab"
    assert answer.done
    assert result.headers["content-type"] == "text/event-stream"
    assert result.peer == f"127.0.0.1:{server.port}"
    assert result.bytes_in == len(GOOD)
    assert result.bytes_out > len(b'{"model":"m"}')
    assert result.stamp_source is StampSource.KERNEL
    assert not result.clock_step
    assert not result.reused_connection
    assert result.connect_duration_ns is not None
    assert result.tls_duration_ns is None
    times = [result.attempt_ns, result.sent_ns, result.first_byte_ns, answer.first_token_ns, result.closed_ns]
    assert None not in times
    assert times == sorted(times)  # type: ignore[type-var]
    assert result.sent_end_ns is not None
    assert result.sent_end_ns >= result.sent_ns  # type: ignore[operator]


def test_the_request_as_the_server_sees_it(rig: Rig) -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        while (request := peer.request()) is not None:
            seen.append(request)
            peer.send(GOOD)

    with Server(script) as server:
        rig.ask(rig.client(server.url), body=b"{}")
        rig.ask(rig.client(server.url, keep_alive=False), body=b"")
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n" % server.port
    )
    assert seen == [head + b"content-length: 2\r\n\r\n{}", head + b"connection: close\r\ncontent-length: 0\r\n\r\n"]


@pytest.mark.parametrize(
    ("response", "status", "body"),
    [
        (
            whole(b'{"error":{"message":"no such model"}}', "404 Not Found"),
            404,
            b'{"error":{"message":"no such model"}}',
        ),
        (whole(b"{}"), 200, b"{}"),
        (whole(b"<html>login</html>", kind="text/html"), 200, b"<html>login</html>"),
        (whole(b""), 200, b""),
        (whole(text("x"), "503 Busy", kind="text/event-stream"), 503, text("x")),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(b"a") + chunked(b"b") + b"0\r\n\r\n",
            200,
            b"ab",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    ],
)
def test_other_bodies_than_streams_are_kept_raw(rig: Rig, response: bytes, status: int, body: bytes) -> None:
    answer, result = rig.ask_once(answering(response))
    assert (result.status, result.body, result.complete, result.streamed) == (status, body, True, False)
    assert result.fault is None
    assert answer.ended, "the sink hears of the end all the same"


def test_retry_after_and_other_headers_are_there(rig: Rig) -> None:
    response = whole(b"{}", "429 Slow Down", extra="Retry-After: 1\r\nX-A: 1\r\nx-a: 2\r\n")
    _, result = rig.ask_once(answering(response))
    assert result.headers["retry-after"] == "1"
    assert result.headers["x-a"] == "2"


def test_a_line_break_in_a_header_is_not_sent(rig: Rig) -> None:
    with Server(answering(GOOD)) as server:
        client = rig.client(server.url)
        request = Request(path="/", headers=(("x", "a\r\nevil: 1"),), body=b"")
        result = client.start(request, Answer(OpenAIChat().decoder()), LONG).wait()
    assert fault_of(result)[0] is ErrorClass.BAD_REQUEST
    assert server.connections == 0


# ------------------------------------------------------------------------------------------------------ streaming


def test_st_01_role_chunk_does_not_start_the_clock(rig: Rig) -> None:
    act = once(lambda peer: peer.send(STREAM_HEAD + chunked(ROLE), chunked(text("a") + DONE) + b"0\r\n\r\n", pause=0.2))
    answer, result = rig.ask_once(act)
    assert answer.first_token_ns is not None
    assert answer.first_token_ns - result.first_byte_ns >= 190 * MS  # type: ignore[operator]


def test_st_06_cut_anywhere_gives_the_same(rig: Rig) -> None:
    body = GOOD
    cut = body.index(b"NE]")
    for pieces in ([body], [bytes([byte]) for byte in body], [body[:cut], body[cut:]]):
        answer, result = rig.ask_once(once(lambda peer, pieces=pieces: peer.send(*pieces)))  # type: ignore[misc]
        assert result.fault is None
        assert (answer.decoder.decoded().text, answer.done, answer.chunks) == ("ab", True, 2)


def test_st_08_comments_before_the_first_token(rig: Rig) -> None:
    pieces = [STREAM_HEAD + chunked(b": wait\n\n"), chunked(b":\n\n"), chunked(b"data:\n\n"), chunked(text("x") + DONE)]
    answer, result = rig.ask_once(once(lambda peer: peer.send(*pieces, b"0\r\n\r\n", pause=0.1)))
    assert answer.keepalives == 3
    assert answer.first_token_ns - result.first_byte_ns >= 250 * MS  # type: ignore[operator]


def test_st_13_small_writes_are_seen_as_they_come(rig: Rig) -> None:
    pieces = [STREAM_HEAD + chunked(ROLE), chunked(text("a")), chunked(text("b")), chunked(DONE) + b"0\r\n\r\n"]
    answer, result = rig.ask_once(once(lambda peer: peer.send(*pieces, pause=0.15)))
    assert sum(answer.gaps.values()) == 1
    assert answer.coalesced == 0
    assert answer.first_token_ns - result.first_byte_ns >= 140 * MS  # type: ignore[operator]
    assert answer.last_token_ns - answer.first_token_ns >= 140 * MS  # type: ignore[operator]


def test_st_20_c_reset_in_mid_stream_is_truncated(rig: Rig) -> None:
    def act(peer: Peer) -> None:
        peer.send(STREAM_HEAD + chunked(text("a")))
        stall(0.1)
        peer.reset()

    answer, result = rig.ask_once(once(act))
    assert fault_of(result)[0] is ErrorClass.TRUNCATED
    assert "connection cut" in fault_of(result)[1]
    assert not result.complete
    assert answer.chunks == 1, "what came before is kept"


def test_st_20_chunked_body_without_end_is_truncated(rig: Rig) -> None:
    act = once(lambda peer: peer.send(STREAM_HEAD + chunked(text("a")) + chunked(STOP)))
    answer, result = rig.ask_once(act)
    assert fault_of(result) == (ErrorClass.TRUNCATED, "connection cut")
    assert answer.decoder.decoded().finish_reason == "stop"


def test_done_without_the_http_end_is_no_fault(rig: Rig) -> None:
    act = once(lambda peer: peer.send(STREAM_HEAD + chunked(text("a")) + chunked(STOP) + chunked(DONE)))
    answer, result = rig.ask_once(act)
    assert result.fault is None
    assert (answer.done, result.complete) == (True, False)


def test_a_body_without_length_ends_with_the_connection(rig: Rig) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n"
    answer, result = rig.ask_once(once(lambda peer: peer.send(head + text("a"), STOP, pause=0.05)))
    assert result.fault is None
    assert result.complete
    assert answer.decoder.decoded().text == "a"
    _, result = rig.ask_once(once(lambda peer: peer.send(b"HTTP/1.0 500 Oops\r\n\r\nbroken")))
    assert (result.status, result.body, result.complete, result.fault) == (500, b"broken", True, None)


def test_informational_responses_come_before_the_answer(rig: Rig) -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nx-early: 1\r\n\r\n"
    answer, result = rig.ask_once(once(lambda peer: peer.send(early, GOOD, pause=0.05)))
    assert (result.status, result.complete, answer.decoder.decoded().text) == (200, True, "ab")
    assert "x-early" not in result.headers
    _, result = rig.ask_once(once(lambda peer: peer.send(early + GOOD)))
    assert result.status == 200


@pytest.mark.parametrize("head", [1, 9, 40])
def test_a_cut_in_the_head_is_truncated(rig: Rig, head: int) -> None:
    _, result = rig.ask_once(once(lambda peer: peer.send(STREAM_HEAD[:head])))
    assert fault_of(result) == (ErrorClass.TRUNCATED, "connection cut")
    assert result.status is None


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"]
)
def test_what_is_no_http_is_a_parse_fault(rig: Rig, answer: bytes) -> None:
    _, result = rig.ask_once(once(lambda peer: peer.send(answer)))
    assert fault_of(result)[0] is ErrorClass.PARSE
    assert "no valid HTTP/1.1" in fault_of(result)[1]


def test_bad_framing_after_tokens_keeps_the_tokens(rig: Rig) -> None:
    pieces = [STREAM_HEAD + chunked(text("a")), chunked(text("b")) + b"zz\r\n"]
    answer, result = rig.ask_once(once(lambda peer: peer.send(*pieces, pause=0.05)))
    assert fault_of(result)[0] is ErrorClass.PARSE
    assert answer.decoder.decoded().text == "ab"


def test_a_compressed_stream_is_named_as_such(rig: Rig) -> None:
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    _, result = rig.ask_once(once(lambda peer: peer.send(head + chunked(b"\x1f\x8b"))))
    assert fault_of(result)[0] is ErrorClass.PARSE
    assert "gzip" in fault_of(result)[1]


def test_a_body_over_8_mib_is_cut_off(rig: Rig) -> None:
    _, result = rig.ask_once(answering(whole(b"x" * (9 << 20), "500 Oops", kind="text/plain")))
    assert fault_of(result)[0] is ErrorClass.CLIENT_LIMIT
    assert len(result.body) == 8 << 20


def test_a_large_fast_stream_is_decoded_whole(rig: Rig) -> None:
    events = [text(f"{n} ") for n in range(30_000)]
    response = STREAM_HEAD + b"".join(chunked(b"".join(events[at : at + 50])) for at in range(0, len(events), 50))
    answer, result = rig.ask_once(once(lambda peer: peer.send(response + chunked(DONE) + b"0\r\n\r\n")))
    assert result.fault is None
    assert answer.chunks == 30_000
    assert answer.decoder.decoded().text == "".join(f"{n} " for n in range(30_000))


def test_st_21_a_bug_in_the_sink_ends_in_a_result(rig: Rig) -> None:
    class Buggy(Answer):
        calls = 0

        def more(self, reads: list[tuple[int, bytes]], earliest_ns: int | None = None) -> bool:
            Buggy.calls += 1
            if Buggy.calls == 2:
                raise OSError("a bug that looks like a network fault")
            return super().more(reads, earliest_ns)

    pieces = [STREAM_HEAD + chunked(text("a")), chunked(text("b")), chunked(DONE)]
    for first_call in (1, 0):  # the second read, decoded in a batch; then the first, decoded in the callback
        Buggy.calls = 1 - first_call
        sink = Buggy(OpenAIChat().decoder())
        _, result = rig.ask_once(once(lambda peer: peer.send(*pieces, pause=0.2)), sink=sink)
        assert fault_of(result) == (
            ErrorClass.PARSE,
            "OSError while reading the answer: a bug that looks like a network fault",
        )
        assert not result.complete


@pytest.mark.parametrize(
    ("method", "detail"),
    [
        ("more", "ZeroDivisionError while reading the answer: a bug"),
        ("end", "ZeroDivisionError at the end: a bug"),
    ],
)
def test_st_21_a_bug_in_decoding_an_answer_that_was_complete(rig: Rig, method: str, detail: str) -> None:
    """The last read ends the message, and is decoded after that: the answer can't be called good any more."""

    class Buggy(Answer):
        def first(self, stamp_ns: int, earliest_ns: int, body: bytes) -> bool:
            Answer.more(self, [(stamp_ns, body)])
            started.append(True)
            return True

        def more(self, reads: list[tuple[int, bytes]], earliest_ns: int | None = None) -> bool:
            if method == "more":
                raise ZeroDivisionError("a bug")
            return super().more(reads, earliest_ns)

        def end(self) -> None:
            super().end()
            if method == "end":
                raise ZeroDivisionError("a bug")

    def act(peer: Peer) -> None:
        peer.send(STREAM_HEAD + chunked(text("a")))
        while not started:
            stall(0.002)
        peer.send(chunked(text("b")) + chunked(DONE) + b"0\r\n\r\n")

    started: list[bool] = []
    _, result = rig.ask_once(once(act), sink=Buggy(OpenAIChat().decoder()))
    assert fault_of(result) == (ErrorClass.PARSE, detail)
    assert result.complete, "as far as HTTP goes"


def test_st_33_many_streams_decode_apart_from_the_stamps(rig: Rig) -> None:
    """A slow sink on one stream must not shift the times of another."""

    class Slow(Answer):
        def more(self, reads: list[tuple[int, bytes]], earliest_ns: int | None = None) -> bool:
            stall(0.05)
            return super().more(reads, earliest_ns)

    pieces = [STREAM_HEAD + chunked(text("a")), *[chunked(text("b"))] * 9, chunked(DONE) + b"0\r\n\r\n"]
    with Server(once(lambda peer: peer.send(*pieces, pause=0.03))) as server:
        slow = [rig.start(rig.client(server.url), sink=Slow(OpenAIChat().decoder())) for _ in range(4)]
        answer, exchange = rig.start(rig.client(server.url))
        gevent.joinall([gevent.spawn(exchange.wait) for _, exchange in slow])
        exchange.wait()
    width_ns = answer.last_token_ns - answer.first_token_ns  # type: ignore[operator]
    assert width_ns <= 9 * 30 * MS + 100 * MS, "the server's, however late the reads were"
    # Its first read may have waited for the slow sinks, and then held several chunks: the slack says by how much.
    assert width_ns + answer.first_token_slack_ns >= 9 * 30 * MS - 5 * MS  # type: ignore[operator]


def test_st_36_a_connection_that_stays_open_after_done_costs_at_most_the_drain(rig: Rig) -> None:
    def act(peer: Peer) -> None:
        peer.send(STREAM_HEAD + chunked(text("a")), chunked(text("b") + DONE), pause=0.05)
        peer.wait_for_end()

    started = time.monotonic()
    answer, result = rig.ask_once(once(act))
    assert time.monotonic() - started < 3
    assert result.fault is None
    assert not result.complete
    assert result.closed_ns == answer.done_ns, "the drain is in no figure"


def test_st_36_a_late_end_within_the_drain_keeps_the_connection(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(STREAM_HEAD + chunked(text("a")), chunked(DONE), b"0\r\n\r\n", pause=0.12)

    with Server(script) as server:
        client = rig.client(server.url)
        results = [rig.ask(client) for _ in range(2)]
    assert server.connections == 1
    for answer, result in results:
        assert result.complete
        assert result.closed_ns == answer.done_ns


# ----------------------------------------------------------------------------------------------------- connections


def test_hc_01_300_requests_are_open_at_once(rig: Rig) -> None:
    arrived: list[int] = []

    def act(peer: Peer) -> None:
        arrived.append(peer.number)
        while len(arrived) < 300:
            stall(0.05)
        peer.send(GOOD)

    with Server(once(act)) as server:
        started = [rig.start(rig.client(server.url)) for _ in range(300)]
        with gevent.Timeout(60):
            results = [exchange.wait() for _, exchange in started]
    assert server.most_open == 300
    assert [result.fault for result in results] == [None] * 300


def test_hc_02_ten_turns_over_tls_are_one_handshake(rig: Rig, certificate: Path) -> None:
    with Server(answering(GOOD), server_context(certificate)) as server:
        client = rig.client(server.url, ca=str(certificate / "cert.pem"))
        results = [rig.ask(client) for _ in range(10)]
    assert server.connections == 1
    for turn, (answer, result) in enumerate(results):
        assert result.fault is None
        assert answer.decoder.decoded().text == "ab"
        assert result.reused_connection == (turn > 0)
        assert (result.tls_duration_ns is None) == (turn > 0)
        assert (result.connect_duration_ns is None) == (turn > 0)
        assert result.stamp_source is StampSource.KERNEL


def test_hc_03_200_turns_against_a_server_that_closes_idle_connections(rig: Rig) -> None:
    """It closes right after each third answer, or 1 ms later, or under the next request: before, while and after we
    look. Only the last is sure to need a second attempt, the second may."""
    ways: list[int] = []

    def script(peer: Peer) -> None:
        for _ in range(3):
            if peer.request() is None:
                return
            peer.send(GOOD)
        way = peer.number % 3
        if way == 1:
            stall(0.001)
        elif way == 2 and peer.request() is None:
            return
        ways.append(way)

    with Server(script) as server:
        client = rig.client(server.url)
        results = []
        for turn in range(200):
            results.append(rig.ask(client)[1])
            if turn % 2:
                gevent.sleep(0.002 * (turn % 4))
        client.close()
    assert [result.fault for result in results] == [None] * 200
    resent = [result for result in results if result.attempts > 1]
    assert {result.attempts for result in resent} == {2}
    assert not any(result.reused_connection for result in resent)
    assert ways.count(2) >= 20
    assert ways.count(2) <= len(resent) <= len(ways)
    assert server.connections == sum(not result.reused_connection for result in results)


def test_hc_03_each_request_that_a_server_closed_under_is_sent_again_and_no_other(rig: Rig) -> None:
    closed_under: list[bytes] = []

    def script(peer: Peer) -> None:
        for _ in range(3):
            if peer.request() is None:
                return
            peer.send(GOOD)
        if (request := peer.request()) is not None:
            closed_under.append(request)

    with Server(script) as server:
        client = rig.client(server.url)
        answers = [rig.ask(client, body=b"%d" % turn) for turn in range(200)]
    assert [result.fault for _, result in answers] == [None] * 200
    assert {answer.decoder.decoded().text for answer, _ in answers} == {"ab"}
    resent = [turn for turn, (_, result) in enumerate(answers) if result.attempts == 2]
    assert resent == list(range(3, 200, 3)), "each connection answers three"
    assert [int(request.rpartition(b"\r\n")[2]) for request in closed_under] == resent
    assert sum(result.attempts for _, result in answers) == 200 + len(resent)


def test_hc_03_a_stale_connection_found_only_by_sending_is_replaced_once(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(GOOD)
        if peer.number == 0:
            peer.request()  # takes the second request and closes under it

    with Server(script) as server:
        client = rig.client(server.url)
        rig.ask(client)
        answer, result = rig.ask(client)
    assert result.fault is None
    assert (result.attempts, result.reused_connection, server.connections) == (2, False, 2)
    assert answer.decoder.decoded().text == "ab"
    assert result.sent_ns > result.attempt_ns  # type: ignore[operator]


def test_hc_03_a_new_connection_that_closes_is_not_tried_again(rig: Rig) -> None:
    with Server(lambda peer: peer.request() and None) as server:
        _, result = rig.ask(rig.client(server.url))
    assert fault_of(result) == (ErrorClass.SERVER, "connection closed before any answer")
    assert (result.attempts, server.connections) == (1, 1)


def test_hc_03_nothing_is_sent_again_after_a_byte_of_an_answer(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(GOOD)
        peer.request()
        peer.send(b"H")

    with Server(script) as server:
        client = rig.client(server.url)
        rig.ask(client)
        _, result = rig.ask(client)
    assert fault_of(result)[0] is ErrorClass.TRUNCATED
    assert (result.attempts, result.reused_connection, server.connections) == (1, True, 1)


def test_hc_05_five_parallel_calls_of_one_user_overlap(rig: Rig) -> None:
    def script(peer: Peer) -> None:
        while peer.request() is not None:
            stall(0.4)
            peer.send(GOOD)

    with Server(script) as server:
        client = rig.client(server.url)
        for _ in range(2):
            began = time.monotonic()
            results = [exchange.wait() for _, exchange in [rig.start(client) for _ in range(5)]]
            assert time.monotonic() - began < 1.6, "one after the other would take 2 s"
            assert [result.fault for result in results] == [None] * 5
    assert server.connections == 5, "and the second round uses those of the first"


@pytest.mark.parametrize("header", [b"connection: close\r\n", None])
def test_a_server_that_closes_says_so(rig: Rig, header: bytes | None) -> None:
    response = whole(b"{}") if header is None else GOOD.replace(b"\r\n", b"\r\n" + header, 1)
    response = response if header else response.replace(b"HTTP/1.1", b"HTTP/1.0")
    with Server(answering(response)) as server:
        client = rig.client(server.url)
        results = [rig.ask(client)[1] for _ in range(2)]
    assert [result.reused_connection for result in results] == [False, False]
    assert server.connections == 2


def test_bytes_after_the_answer_spoil_the_connection(rig: Rig) -> None:
    with Server(answering(GOOD + b"HTTP/1.1 500 Unasked\r\ncontent-length: 0\r\n\r\n")) as server:
        client = rig.client(server.url)
        results = [rig.ask(client) for _ in range(2)]
    assert server.connections == 2
    assert [(result.status, result.fault) for _, result in results] == [(200, None)] * 2


def test_keep_alive_off_is_a_connection_per_request(rig: Rig) -> None:
    with Server(answering(GOOD)) as server:
        client = rig.client(server.url, keep_alive=False)
        for _ in range(3):
            rig.ask(client)
    assert server.connections == 3


# --------------------------------------------------------------------------------------------------- large bodies


def test_a_large_request_arrives_whole(rig: Rig) -> None:
    body = os.urandom(12 << 20)
    got: list[bool] = []

    def act(peer: Peer) -> None:
        stall(0.1)
        got.append(True)
        peer.send(GOOD)

    def script(peer: Peer) -> None:
        request = peer.request()
        got.append(request is not None and request.endswith(body))
        act(peer)

    _, result = rig.ask_once(script, body=body)
    assert result.fault is None
    assert got == [True, True]
    assert result.bytes_out > len(body)
    assert result.sent_end_ns > result.sent_ns  # type: ignore[operator]


@pytest.mark.parametrize("ending", ["close", "reset", "drain"])
def test_an_early_413_is_read_while_the_body_is_still_being_sent(rig: Rig, ending: str) -> None:
    def script(peer: Peer) -> None:
        peer.read_some()
        peer.send(whole(b'{"error":"too large"}', "413 Too Large"))
        if ending == "drain":
            stall(0.2)
        elif ending == "reset":
            stall(0.1)
            peer.reset()

    _, result = rig.ask_once(script, body=b"x" * (64 << 20))
    assert (result.status, result.body, result.fault) == (413, b'{"error":"too large"}', None)
    assert result.sent_end_ns is None


# -------------------------------------------------------------------------------------------------------- deadlines


def test_timeout_first_token(rig: Rig) -> None:
    """Headers and a role chunk are no token; nor does the idle deadline end the wait for one."""

    def act(peer: Peer) -> None:
        peer.send(STREAM_HEAD + chunked(ROLE))
        peer.wait_for_end()

    answer, result = rig.ask_once(once(act), first_token=0.4, idle=0.1)
    assert fault_of(result) == (ErrorClass.TIMEOUT_FIRST_TOKEN, "no token within 0.4 s")
    assert 400 * MS <= result.closed_ns - result.sent_ns < 1400 * MS  # type: ignore[operator]
    assert answer.first_token_ns is None
    _, result = rig.ask_once(once(lambda peer: peer.wait_for_end()), first_token=0.2)
    assert fault_of(result)[0] is ErrorClass.TIMEOUT_FIRST_TOKEN


def test_timeout_idle_and_comments_are_life(rig: Rig) -> None:
    def act(peer: Peer) -> None:
        peer.send(STREAM_HEAD + chunked(text("a")), *[chunked(b": ping\n\n")] * 4, pause=0.2)
        peer.wait_for_end()

    answer, result = rig.ask_once(once(act), idle=0.5)
    assert fault_of(result) == (ErrorClass.TIMEOUT_IDLE, "nothing came for 0.5 s in mid-answer")
    assert answer.keepalives == 4
    assert result.closed_ns - answer.first_token_ns >= 1250 * MS  # type: ignore[operator]


def test_timeout_idle_of_a_body_that_is_no_stream(rig: Rig) -> None:
    def act(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 500 Oops\r\ncontent-length: 10\r\n\r\nabc")
        peer.wait_for_end()

    _, result = rig.ask_once(once(act), idle=0.2)
    assert fault_of(result)[0] is ErrorClass.TIMEOUT_IDLE
    assert (result.status, result.body) == (500, b"abc")


def test_timeout_total(rig: Rig) -> None:
    def act(peer: Peer) -> None:
        peer.send(STREAM_HEAD, *[chunked(text("a"))] * 200, pause=0.02)

    answer, result = rig.ask_once(once(act), total=0.5)
    assert fault_of(result) == (ErrorClass.TIMEOUT_TOTAL, "not over after 0.5 s")
    assert answer.chunks > 3


def test_timeout_connect(rig: Rig, certificate: Path) -> None:
    """A server that accepts and never shakes hands; the handshake belongs to connecting."""
    with Server(lambda peer: peer.wait_for_end()) as server:
        client = rig.client(f"https://127.0.0.1:{server.port}", ca=str(certificate / "cert.pem"))
        _, result = rig.ask(client, connect=0.3)
    assert fault_of(result)[0] is ErrorClass.TIMEOUT_CONNECT
    assert "within 0.3 s" in fault_of(result)[1]
    assert result.sent_ns is None


def test_timeout_connect_of_a_port_that_never_answers(rig: Rig) -> None:
    """A SYN that is dropped: nothing comes back, not even a refusal."""
    with black_hole() as port:
        began = time.monotonic()
        _, result = rig.ask(rig.client(f"http://127.0.0.1:{port}"), connect=0.4)
    assert fault_of(result) == (
        ErrorClass.TIMEOUT_CONNECT,
        f"no connection to 127.0.0.1:{port} within 0.4 s",
    )
    assert 0.4 <= time.monotonic() - began < 3
    assert (result.connect_duration_ns, result.sent_ns, result.bytes_out) == (None, None, 0)


# ------------------------------------------------------------------------------------------------ failing to connect


def test_connection_refused(rig: Rig) -> None:
    with dead_port() as port:
        _, result = rig.ask(rig.client(f"http://127.0.0.1:{port}"))
    assert fault_of(result) == (ErrorClass.CONNECT, f"cannot connect to 127.0.0.1:{port}: connection refused")
    assert (result.sent_ns, result.status, result.first_byte_ns) == (None, None, None)


def test_a_name_without_address(rig: Rig) -> None:
    _, result = rig.ask(rig.client("http://no-such-host.invalid"))
    assert fault_of(result)[0] is ErrorClass.CONNECT
    assert "name look-up of no-such-host.invalid failed" in fault_of(result)[1]


def test_the_next_address_of_a_name_is_tried_and_the_dead_one_left_alone(rig: Rig) -> None:
    with Server(answering(GOOD)) as server:
        endpoint = Endpoint("http", "two.example", server.port)
        endpoint.addresses = [(2, ("127.0.0.2", 1)), (2, ("127.0.0.1", server.port))]
        for _ in range(3):
            client = Client(endpoint, rig.clock, rig.decoder_loop)
            _, result = rig.ask(client)
            assert result.peer == f"127.0.0.1:{server.port}"
            client.close()
        assert endpoint.candidates()[-1] == (2, ("127.0.0.2", 1))


def test_localhost_is_looked_up_once(rig: Rig) -> None:
    with Server(answering(GOOD)) as server:
        client = rig.client(f"http://localhost:{server.port}", keep_alive=False)
        results = [rig.ask(client)[1] for _ in range(3)]
    assert [result.fault for result in results] == [None] * 3
    assert {result.peer for result in results} == {f"127.0.0.1:{server.port}"}


def test_hc_06_running_out_of_descriptors_is_this_machines_fault(rig: Rig) -> None:
    with Server(once(lambda peer: peer.wait_for_end())) as server:
        client = rig.client(server.url)
        rig.start(client)
        gevent.sleep(0.05)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            _, result = rig.ask(client)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.close()
    assert fault_of(result)[0] is ErrorClass.CLIENT_RESOURCE
    assert os.strerror(errno.EMFILE).lower() in fault_of(result)[1]


# ------------------------------------------------------------------------------------------------------------ abort


def test_abort_in_mid_stream_keeps_what_came_and_frees_the_server(rig: Rig) -> None:
    ended: list[bool] = []

    def act(peer: Peer) -> None:
        peer.send(STREAM_HEAD + chunked(ROLE), chunked(text("a")), chunked(text("b")), pause=0.03)
        peer.wait_for_end()
        ended.append(True)

    with Server(once(act)) as server:
        answer, exchange = rig.start(rig.client(server.url))
        waiter = gevent.spawn(exchange.wait)
        gevent.sleep(0.3)
        with pytest.raises(RuntimeError, match="in flight"):
            exchange.result()
        exchange.abort("run end")
        result = exchange.result()
        assert waiter.get(timeout=5) is result
        assert fault_of(result) == (None, "run end")
        assert (answer.chunks, answer.ended, result.complete) == (2, True, False)
        exchange.abort("again")
        assert fault_of(exchange.result())[1] == "run end"
        deadline = time.monotonic() + 5
        while not ended and time.monotonic() < deadline:
            gevent.sleep(0.01)
    assert ended, "the server sees the connection close, and can stop its work"


def test_abort_after_a_killed_greenlet(rig: Rig) -> None:
    with Server(once(lambda peer: peer.wait_for_end())) as server:
        client = rig.client(server.url)
        results: list[ExchangeResult] = []

        def turn() -> None:
            _, exchange = rig.start(client)
            try:
                exchange.wait()
            finally:
                exchange.abort("interrupted")
                results.append(exchange.result())

        greenlet = gevent.spawn(turn)
        gevent.sleep(0.1)
        greenlet.kill(timeout=5)
        assert fault_of(results[0]) == (None, "interrupted")


def test_abort_at_any_moment_leaves_one_result(rig: Rig) -> None:
    """From before the name is looked up to after the end."""
    with Server(
        once(lambda peer: peer.send(*[GOOD[at : at + 40] for at in range(0, len(GOOD), 40)], pause=0.002))
    ) as server:
        for step in range(25):
            client = rig.client(f"http://localhost:{server.port}")
            _, exchange = rig.start(client)
            gevent.sleep(step * 0.002)
            exchange.abort("now")
            result = exchange.result()
            assert result.fault is None or result.fault.error_class is None
            assert (result.fault is None) == result.complete
            client.close()


def test_abort_of_a_finished_exchange_changes_nothing(rig: Rig) -> None:
    with Server(answering(GOOD)) as server:
        _, exchange = rig.start(rig.client(server.url))
        exchange.wait()
        exchange.abort("too late")
    assert exchange.result().fault is None


def test_closing_the_client_ends_what_is_in_flight(rig: Rig) -> None:
    with Server(once(lambda peer: peer.wait_for_end())) as server:
        client = rig.client(server.url)
        _, exchange = rig.start(client)
        client.close()
        assert fault_of(exchange.wait()) == (None, "client closed")
        with pytest.raises(RuntimeError, match="closed"):
            rig.start(client)


def test_an_exchange_leaves_no_garbage_and_no_descriptor(rig: Rig) -> None:
    """The collector's pauses are kept off a run, so nothing may wait for it."""

    class Watched(Answer):
        """Without __slots__, so that it can be referred to weakly."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with Server(answering(GOOD)) as server:
        client = rig.client(server.url)
        rig.ask(client)
        gc.collect()  # before the count: what other tests left open may be closed by it
        before = descriptors()
        gc.disable()
        try:
            for _ in range(10):
                sink = Watched(OpenAIChat().decoder())
                _, exchange = rig.start(client, sink=sink)
                exchange.wait()
                gone = weakref.ref(sink)
                del sink, exchange, _
                assert gone() is None
        finally:
            gc.enable()
        # What an earlier test left may close in the meantime: fewer is no fault, and ten leaks can't hide in that.
        assert descriptors() <= before


# ----------------------------------------------------------------------------------------------------------- stamps


def test_without_kernel_stamps_the_time_of_the_read_is_used() -> None:
    rig = Rig(StampClock(kernel=False))
    answer, result = rig.ask_once(answering(GOOD))
    assert result.stamp_source is StampSource.USER
    assert result.sent_ns < answer.first_token_ns <= time.monotonic_ns()  # type: ignore[operator]
    rig.close()


@pytest.mark.parametrize(
    ("step_ns", "why"),
    [
        (3 * SECOND, "stamps seem to lie before the request"),
        (-3 * SECOND, "stamps seem to lie in the future"),
        (4 * MS, "less than a gap: shows in no single stamp, the batches' look at the clock finds it"),
    ],
)
def test_di_09_a_stepped_clock_is_noticed_and_measured_again(rig: Rig, step_ns: int, why: str) -> None:
    """The offset is wrong by the step, as after one. Setting the machine's clock would disturb everybody else."""
    true_ns = rig.clock.offset_ns
    pieces = [STREAM_HEAD + chunked(text("a")), *[chunked(text("b"))] * 9, chunked(DONE) + b"0\r\n\r\n"]
    with Server(once(lambda peer: peer.send(*pieces, pause=0.03))) as server:
        answer, exchange = rig.start(rig.client(server.url))
        rig.clock.offset_ns += step_ns
        result = exchange.wait()
    assert result.clock_step, why
    assert abs(rig.clock.offset_ns - true_ns) < 1 * MS
    assert rig.clock.steps == 1
    assert result.sent_ns - 5 * MS <= answer.first_token_ns  # type: ignore[operator]
    assert result.closed_ns <= time.monotonic_ns()  # type: ignore[operator]
    assert answer.last_token_ns - answer.first_token_ns < 2 * SECOND  # type: ignore[operator]


def test_the_clock_is_not_taken_for_stepped_when_we_are_only_late(rig: Rig) -> None:
    pieces = [STREAM_HEAD + chunked(text("a")), *[chunked(text("b"))] * 20, chunked(DONE) + b"0\r\n\r\n"]
    with Server(once(lambda peer: peer.send(*pieces, pause=0.01))) as server:
        answer, exchange = rig.start(rig.client(server.url))
        for _ in range(4):
            gevent.sleep(0.02)
            stall(0.03)
        result = exchange.wait()
    assert (result.clock_step, rig.clock.steps, result.stamp_source) == (False, 0, StampSource.KERNEL)
    assert answer.chunks == 21


def test_a_stamp_from_before_an_empty_read_is_a_packet_that_waited(rig: Rig) -> None:
    """The kernel stamps a packet before it queues it: on a busy machine a read in between finds the socket empty.

    Such a read is told of here, since when it happens can't be arranged; the clock itself shows no step.
    """
    with Server(once(lambda peer: peer.send(GOOD))) as server:
        answer, exchange = rig.start(rig.client(server.url))
        while exchange._connection is None or exchange._connection.sent_end_ns is None:
            gevent.sleep(0)
        stall(0.05)  # the whole answer waits in the socket
        exchange._connection._empty_ns = told_ns = time.monotonic_ns()
        result = exchange.wait()
    assert (result.clock_step, rig.clock.steps, result.stamp_source) == (False, 0, StampSource.KERNEL)
    assert result.sent_ns <= answer.first_token_ns < told_ns  # type: ignore[operator]


def blast(size: int) -> bytes:
    """A streamed answer of about `size` bytes: more than one read takes, many times over."""
    events = chunked(text("x" * 200) * 50)
    return STREAM_HEAD + events * (size // len(events) + 1) + chunked(DONE) + b"0\r\n\r\n"


TOO_MUCH = [
    (whole(b"x" * 2_000_000, "500 Oops", kind="text/plain"), "an error body of 2 MB"),
    (STREAM_HEAD + chunked(b"data: " + b"x" * 2_000_000), "one line without end"),
    (blast(4_000_000), "a stream faster than it is read"),
]


@pytest.mark.parametrize(("response", "why"), TOO_MUCH, ids=[why for _, why in TOO_MUCH])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_more_than_a_read_takes_is_no_stepped_clock(
    rig: Rig, response: bytes, why: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    """A read that filled its buffer leaves bytes behind that arrived before it: their stamps are older than it is."""
    tls = scheme == "https"
    folder = request.getfixturevalue("certificate") if tls else None
    with Server(once(lambda peer: peer.send(response)), server_context(folder) if tls else None) as server:
        client = rig.client(server.url, ca=str(folder / "cert.pem")) if tls else rig.client(server.url)
        answer, exchange = rig.start(client)
        for _ in range(20):  # the buffers of both sides fill up while nobody reads
            gevent.sleep(0.001)
            stall(0.005)
        result = exchange.wait()
    assert result.bytes_in > 1_900_000, why
    assert (result.clock_step, rig.clock.steps, result.stamp_source) == (False, 0, StampSource.KERNEL), why
    assert answer.coalesced == answer.chunks, "so many events at a time have no gaps of their own"


# -------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem and key.pem for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl command to make a certificate with")
    return folder


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


def test_cl_11_an_unknown_authority_is_refused_with_the_reason(rig: Rig, certificate: Path) -> None:
    with Server(answering(GOOD), server_context(certificate)) as server:
        _, result = rig.ask(rig.client(server.url))
    assert fault_of(result)[0] is ErrorClass.TLS
    assert "certificate not accepted: self" in fault_of(result)[1]


def test_cl_11_insecure_accepts_it(rig: Rig, certificate: Path) -> None:
    with Server(answering(GOOD), server_context(certificate)) as server:
        answer, result = rig.ask(rig.client(server.url, insecure=True))
    assert (result.fault, answer.decoder.decoded().text) == (None, "ab")


def test_cl_11_the_name_is_checked(rig: Rig, certificate: Path) -> None:
    with Server(answering(GOOD), server_context(certificate)) as server:
        client = rig.client(f"https://localhost:{server.port}", ca=str(certificate / "cert.pem"))
        _, result = rig.ask(client)
    assert fault_of(result)[0] is ErrorClass.TLS
    assert "localhost" in fault_of(result)[1]


def test_cl_11_a_ca_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        Endpoint.from_url("https://127.0.0.1", ca=str(tmp_path / "nowhere.pem"))


def test_plain_http_on_a_tls_port_is_a_tls_fault(rig: Rig) -> None:
    with Server(lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        _, result = rig.ask(rig.client(f"https://127.0.0.1:{server.port}"))
    assert fault_of(result)[0] is ErrorClass.TLS


def test_a_stream_over_tls_in_many_records(rig: Rig, certificate: Path) -> None:
    events = [text(str(n)) for n in range(40)]
    pieces = [STREAM_HEAD + chunked(ROLE), *map(chunked, events), chunked(DONE) + b"0\r\n\r\n"]
    with Server(once(lambda peer: peer.send(*pieces, pause=0.005)), server_context(certificate)) as server:
        client = rig.client(server.url, ca=str(certificate / "cert.pem"))
        answer, result = rig.ask(client, body=b"x" * 3_000_000)
    assert (result.fault, result.complete, answer.chunks) == (None, True, 40)
    assert result.bytes_out > 3_000_000


# --------------------------------------------------------------------------------------------------------- endpoint


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://h:8000/v1", "h:8000"),
        ("http://h", "h"),
        ("https://h/api", "h"),
        ("https://h:80", "h:80"),
        ("http://[::1]:5/v1", "[::1]:5"),
    ],
)
def test_authority(url: str, authority: str) -> None:
    assert Endpoint.from_url(url).authority == authority


@pytest.mark.parametrize("url", ["ftp://h", "h:8000", "http://", "http://h:99999999", "http://[::1"])
def test_urls_that_name_no_server(url: str) -> None:
    with pytest.raises(UsageError):
        Endpoint.from_url(url)


def test_it_works_in_a_monkey_patched_process() -> None:
    """As in a worker: Locust has patched socket, ssl and threading before anything else."""
    script = """
import gevent.monkey
gevent.monkey.patch_all()
import pathlib, subprocess, sys, tempfile
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--timeout=60", sys.argv[1], "-k",
                      "streamed_answer or hc_02 or refused or many_records or timeout_idle or mid_stream"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, __file__], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
