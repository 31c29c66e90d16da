"""What we say about time, held against servers that wrote down when they wrote. Both sides read CLOCK_MONOTONIC.

Bounds are generous, since the machine is shared: bench/truth.py has the sharp ones.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import numpy as np
import pytest
from gevent.monkey import get_original
from scripted_server import STREAM_HEAD, Peer, Server, chunked

from infersiege.channels.answer import Answer
from infersiege.channels.openai_chat import OpenAIChat
from infersiege.records import StampSource
from infersiege.wire.exchange import Deadlines, Request
from infersiege.wire.transport import Client, DecoderLoop, Endpoint, StampClock

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from rig.server import Rig, build
from truth import COLUMNS, TARGETS, judge

pytestmark = pytest.mark.truth
stall = get_original("time", "sleep")
MS = 1_000_000
LONG = Deadlines(connect_ns=10**10, first_token_ns=30 * 10**9, idle_ns=30 * 10**9, total_ns=60 * 10**9)
TEXT = chunked(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
END = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@pytest.fixture(scope="module", autouse=True)
def kernel_stamps() -> Iterator[None]:
    """Stamping stays on between tests. The kernel switches it on some time after a first socket asks, by a work queue:
    as good as at once in a run, which asks long before its first request, but not here on a busy machine."""
    clock = StampClock()
    stall(0.05)
    yield
    clock.close()


@pytest.fixture
def clock() -> Iterator[StampClock]:
    clock = StampClock()
    yield clock
    clock.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile bench/rig/sseserver.c with")
    folder = tmp_path_factory.mktemp("rig")
    build(folder)
    with Rig(folder, ttft=100, itl=20) as rig:
        yield rig


def request(tokens: int, name: str) -> Request:
    body = b'{"model":"m","stream":true,"max_tokens":%d,"messages":[]}' % tokens
    return Request(path="/v1/chat/completions", headers=(("x-request-id", name),), body=body)


def ask(port: int, clock: StampClock, streams: int, tokens: int) -> dict[str, tuple[Answer, int]]:
    """Name of the request -> (answer, sent_ns)."""
    loop = DecoderLoop(clock)
    endpoint = Endpoint.from_url(f"http://127.0.0.1:{port}")
    answers: dict[str, tuple[Answer, int]] = {}

    def one(number: int) -> None:
        gevent.sleep(0.01 * number)
        client = Client(endpoint, clock, loop)
        answer = Answer(OpenAIChat().decoder())
        result = client.start(request(tokens, f"r{number}"), answer, LONG).wait()
        client.close()
        assert result.fault is None
        assert result.stamp_source is StampSource.KERNEL
        assert result.sent_ns is not None
        answers[f"r{number}"] = answer, result.sent_ns

    gevent.joinall([gevent.spawn(one, number) for number in range(streams)], raise_error=True)
    return answers


def test_first_tokens_and_chunks_of_50_streams(engine: Rig, clock: StampClock) -> None:
    answers = ask(engine.port, clock, 50, 40)
    truth = {times.name: times for times in engine.truth()}
    late, widths = [], []
    for name, (answer, _) in answers.items():
        written = truth[name].written_ns
        assert answer.chunks == len(written) == 40
        assert answer.first_token_ns is not None
        assert answer.last_token_ns is not None
        assert answer.first_token_slack_ns is not None
        late.append(answer.first_token_ns - written[0])
        # Never before it was written; and with the slack taken off, never after it arrived (an hour-glass of 1 ms).
        assert answer.first_token_ns >= written[0]
        assert answer.first_token_ns - answer.first_token_slack_ns <= written[0] + 5 * MS
        widths.append((answer.last_token_ns - answer.first_token_ns) - (written[-1] - written[0]))
    assert np.median(late) < 1 * MS
    assert np.median(np.abs(widths)) < 1 * MS


def test_what_a_stalled_loop_cannot_know_is_said(clock: StampClock) -> None:
    """Two tokens while the loop was held up: the record tells how wide the doubt is, and the truth lies inside."""
    written: list[int] = []

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        stall(0.05)
        for _ in range(3):
            written.append(time.monotonic_ns())
            peer.send(TEXT)
            stall(0.02)
        stall(0.2)
        peer.send(TEXT, TEXT + END, pause=0.05)

    with Server(script) as server:
        client = Client(Endpoint.from_url(server.url), clock, DecoderLoop(clock))
        answer = Answer(OpenAIChat().decoder())
        exchange = client.start(request(5, "x"), answer, LONG)
        gevent.sleep(0.03)
        stall(0.15)
        exchange.wait()
        client.close()
    assert (answer.chunks, answer.coalesced) == (5, 3)
    assert answer.first_token_ns is not None
    assert answer.first_token_slack_ns is not None
    assert answer.first_token_slack_ns >= 38 * MS, "the third came at least 40 ms after the first"
    assert answer.first_token_ns - answer.first_token_slack_ns <= written[0] <= answer.first_token_ns
    assert abs(answer.first_token_ns - written[2]) < 10 * MS, "the stamp is that of the last of them"
    assert sum(answer.gaps.values()) == 2, "those that shared a read have no gap of their own"


def test_a_stall_between_reads_shifts_nothing(clock: StampClock) -> None:
    """One token while the loop was held up: its stamp is the kernel's, there is no doubt at all."""
    written: list[int] = []

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD)
        stall(0.05)
        written.append(time.monotonic_ns())
        peer.send(TEXT)
        stall(0.2)
        peer.send(END)

    with Server(script) as server:
        client = Client(Endpoint.from_url(server.url), clock, DecoderLoop(clock))
        answer = Answer(OpenAIChat().decoder())
        exchange = client.start(request(1, "x"), answer, LONG)
        gevent.sleep(0.03)
        stall(0.12)
        exchange.wait()
        client.close()
    assert answer.first_token_slack_ns == 0
    assert 0 <= answer.first_token_ns - written[0] < 10 * MS  # type: ignore[operator]


def test_an_idle_client_claims_no_doubt_of_the_time_it_slept(clock: StampClock) -> None:
    """Two quick writes after a long silence wake it at the first: the doubt is the wake-up, not the silence."""

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(STREAM_HEAD)
            stall(0.1)
            peer.send(TEXT, TEXT + END)

    with Server(script) as server:
        client = Client(Endpoint.from_url(server.url), clock, DecoderLoop(clock))
        slacks = []
        for _ in range(20):
            answer = Answer(OpenAIChat().decoder())
            client.start(request(2, "x"), answer, LONG).wait()
            slacks.append(answer.first_token_slack_ns)
        client.close()
    assert None not in slacks
    assert sorted(slacks)[10] < 20 * MS  # type: ignore[type-var]


@pytest.mark.parametrize("missed", [None, *TARGETS])
def test_the_benchmark_says_which_target_was_missed(missed: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Exactly at its limit a target is met."""
    row = {key: limit * (1.01 if key == missed else 1.0) for key, limit in TARGETS.items()}
    assert judge(row) == (missed is None)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("MISSED")]
    assert [COLUMNS[missed][0] in line for line in lines] == [True] if missed else lines == []
