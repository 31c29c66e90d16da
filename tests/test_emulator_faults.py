"""Faults on demand, on real sockets: each must look on the wire as the field case that it plays."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infersiege.emulator.process import EmulatorProcess

TOKENS = 6


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    log = tmp_path_factory.mktemp("emulator") / "truth.jsonl"
    options = ("--model", "tiny", "--output-tokens", str(TOKENS), "--step-base-ms", "2", "--log-tokens")
    with EmulatorProcess(*options, log=log) as process:
        yield process


class Wire:
    """What one raw client saw."""

    def __init__(self, port: int, emulate: str, *headers: str, stream: bool = True, wait_s: float = 20.0) -> None:
        body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello?"}], "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        data = json.dumps(body).encode()
        lines = ["POST /v1/chat/completions HTTP/1.1", "host: x", f"content-length: {len(data)}", *headers]
        if emulate:
            lines.append(f"x-emulate: {emulate}")
        self.raw = b""
        self.ending = ""
        self.arrivals: list[tuple[float, bytes]] = []
        with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as sock:
            sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
            start = time.monotonic()
            while not self.ending:
                try:
                    part = sock.recv(65_536)
                except ConnectionResetError:
                    self.ending = "reset"
                except TimeoutError:
                    self.ending = "silence"
                else:
                    self.arrivals.append((time.monotonic() - start, part))
                    self.raw += part
                    self.ending = self._ending_after(part)
        head, _, self.body = self.raw.partition(b"\r\n\r\n")
        self.head = head.decode()

    def _ending_after(self, part: bytes) -> str:
        if not part:
            return "closed"
        head, split, body = self.raw.partition(b"\r\n\r\n")
        if b"transfer-encoding" in head:
            return "complete" if body.endswith(b"0\r\n\r\n") else ""
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
        return "complete" if split and len(body) >= length else ""

    @property
    def status(self) -> int:
        return int(self.head.split(" ")[1])

    @property
    def events(self) -> list[str]:
        """Data of the SSE events; the chunks of HTTP are taken apart as they were written."""
        joined, rest = b"", self.body
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            joined += rest[: int(size, 16)]
            rest = rest[int(size, 16) + 2 :]
        return [event.removeprefix("data: ") for event in joined.decode().split("\n\n") if event]

    def deltas(self, kind: str) -> list[str]:
        chunks = [json.loads(event) for event in self.events if event != "[DONE]"]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
        return [delta[kind] for delta in deltas if delta.get(kind)]

    @property
    def finishes(self) -> list[str]:
        choices = [json.loads(event).get("choices") for event in self.events if event != "[DONE]"]
        return [choice["finish_reason"] for each in choices for choice in each or [] if choice["finish_reason"]]


def truth_of(process: EmulatorProcess, request_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for row in process.truth():
            if row["request_id"] == request_id:
                return row
        time.sleep(0.02)
    raise AssertionError(f"{request_id} is not in the log")


@pytest.mark.parametrize(
    ("fault", "chunks", "ending", "finish", "reason"),
    [
        ("reset_after=2", 2, "reset", "reset", "ST-20 (c): TCP reset in the middle"),
        ("reset_after=0", 0, "reset", "reset", "reset right after the headers"),
        ("close_after=2", 2, "closed", "close", "a chunked body without its end"),
        ("close_after=0", 0, "closed", "close", "TK-02: 200, headers, nothing"),
        ("eof_after=2", 2, "complete", "eof", "ST-20 (b): text, then a clean end without a finish reason"),
        ("eof_after=0", 0, "complete", "eof", "an empty stream that ends well"),
        ("error_after=2", 2, "complete", "error", "ST-14: error event in a 200"),
        ("error_after=0", 0, "complete", "error", "zero tokens, error event"),
        ("hang_after=2", 2, "silence", "hang", "HC-08: nobody speaks any more"),
    ],
)
def test_cuts(emulator: EmulatorProcess, fault: str, chunks: int, ending: str, finish: str, reason: str) -> None:
    wire = Wire(emulator.port, fault, f"x-request-id: {fault}", wait_s=1.0 if ending == "silence" else 20.0)
    assert wire.status == 200 and wire.ending == ending, reason
    assert len(wire.deltas("content")) == chunks if ending != "reset" else wire.raw.count(b'"content":"') <= chunks + 1
    assert 'finish_reason":"' not in wire.body.decode() and ("[DONE]" in wire.events) is (finish == "error")
    row = truth_of(emulator, fault)
    assert (row["finish"], row["output_tokens"], row["fault"]) == (finish, chunks, fault)
    assert (row["done_ns"] is None) is (finish == "hang")


def test_cuts_free_the_engine(emulator: EmulatorProcess) -> None:
    for fault in ("reset_after=1", "close_after=1", "eof_after=1", "error_after=1"):
        Wire(emulator.port, fault)
    after = Wire(emulator.port, "")
    assert after.ending == "complete" and len(after.deltas("content")) == TOKENS


def test_st_14_in_stream_error_after_200(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "error_after=1,error_code=503")
    assert json.loads(wire.events[-2])["error"]["code"] == 503 and wire.events[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("fault", "status", "holds"),
    [
        ("status=500", 500, '"code":500'),
        ("status=429,retry_after=2", 429, "retry-after: 2\r\n"),
        ("status=529", 529, '"code":529'),
        ("context", 400, "maximum context length"),
        ("html", 200, "text/html"),
        ("json_error", 200, "application/json"),
        ("no_such_fault", 400, "there is no 'no_such_fault'"),
    ],
)
def test_answers_without_a_stream(emulator: EmulatorProcess, fault: str, status: int, holds: str) -> None:
    for stream in (True, False):
        wire = Wire(emulator.port, fault, stream=stream)
        assert (wire.status, wire.ending) == (status, "complete") and holds in wire.raw.decode()
        assert "x-infersiege-emulated: 1" in wire.head


def test_st_27_empty_200(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "empty")
    assert wire.status == 200 and "text/event-stream" in wire.head and wire.body == b"0\r\n\r\n"


def test_cl_08_the_key_is_echoed_in_a_401(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "echo_key", "authorization: Bearer sk-test-123")
    assert wire.status == 401 and b"sk-test-123" in wire.body


@pytest.mark.parametrize(
    ("fault", "finishes", "usage", "done", "reason"),
    [
        ("", ["stop"], True, True, "no fault at all"),
        ("no_done", ["stop"], True, False, "ST-20 (a): finish reason, no [DONE]"),
        ("no_usage", ["stop"], False, True, "TK-03"),
        ("no_finish,no_usage", [], False, True, "[DONE] without a finish reason"),
        ("finish=abort", ["abort"], True, True, "ST-17"),
        ("finish=content_filter", ["content_filter"], True, True, "its neighbour"),
    ],
)
def test_endings(
    emulator: EmulatorProcess, fault: str, finishes: list[str], usage: bool, done: bool, reason: str
) -> None:
    wire = Wire(emulator.port, fault)
    assert wire.ending == "complete" and len(wire.deltas("content")) == TOKENS
    assert wire.finishes == finishes, reason
    assert (b'"usage"' in wire.body, "[DONE]" in wire.events) == (usage, done), reason


def test_bad_json_in_one_chunk(emulator: EmulatorProcess) -> None:
    events = Wire(emulator.port, "bad_json=2").events[:-1]
    broken = []
    for index, event in enumerate(events):
        try:
            json.loads(event)
        except ValueError:
            broken.append(index)
    assert broken == [2], "the role chunk is number 0"


def test_duplicate_role(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "duplicate_role")
    assert wire.deltas("role") == ["assistant", "assistant"] and len(wire.deltas("content")) == TOKENS


def test_st_02_reasoning_comes_first(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "reasoning=4")
    assert len(wire.deltas("reasoning")) == 4 and len(wire.deltas("content")) == TOKENS - 4
    only = Wire(emulator.port, "reasoning=100")
    assert only.deltas("content") == [] and only.finishes == ["stop"]


def test_st_23_usage_comes_late(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "tail_delay=400", "x-request-id: tail")
    late = next(at for at, data in wire.arrivals if b'"usage"' in data)
    last = max(at for at, data in wire.arrivals if b'"content":"' in data)
    assert late - last > 0.3 and wire.ending == "complete"
    row = truth_of(emulator, "tail")
    assert row["done_ns"] - row["last_token_ns"] > 0.3e9


def test_st_36_the_end_of_the_body_comes_late(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "end_delay=400")
    done = next(at for at, data in wire.arrivals if b"[DONE]" in data)
    assert wire.arrivals[-1][0] - done > 0.3 and wire.arrivals[-1][1] == b"0\r\n\r\n"


def test_st_24_a_buffering_proxy(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "burst")
    assert len(wire.deltas("content")) == TOKENS and wire.finishes == ["stop"]
    assert wire.arrivals[0][1].count(b'"content":"') == TOKENS + 1


def test_st_06_trickle_cuts_anywhere_but_loses_nothing(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "trickle=1")
    assert len(wire.arrivals) > 50 and wire.ending == "complete"
    assert wire.deltas("content") == Wire(emulator.port, "").deltas("content")


def test_a_delay_comes_before_the_queue(emulator: EmulatorProcess) -> None:
    wire = Wire(emulator.port, "delay=400", "x-request-id: delayed")
    assert wire.arrivals[0][0] > 0.35
    row = truth_of(emulator, "delayed")
    assert row["first_token_ns"] - row["received_ns"] > 0.35e9


def test_cl_03_two_refusals_then_an_answer(tmp_path: Path) -> None:
    options = ("--model", "tiny", "--output-tokens", "2", "--fault", "status=503", "--fault-first", "2")
    with EmulatorProcess(*options, log=tmp_path / "log") as process:
        assert [Wire(process.port, "").status for _ in range(4)] == [503, 503, 200, 200]
        assert [row["fault"] for row in process.truth()] == ["status=503", "status=503", None, None]


def test_every_third_request_fails(tmp_path: Path) -> None:
    options = ("--model", "tiny", "--output-tokens", "3", "--fault", "reset_after=1", "--fault-every", "3")
    with EmulatorProcess(*options, log=tmp_path / "log") as process:
        endings = [Wire(process.port, "").ending for _ in range(6)]
    assert endings == ["complete", "complete", "reset"] * 2
