"""The emulator on real sockets: its wire, its faults, its truth log, its command line."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infersiege.emulator.process import EmulatorProcess
from infersiege.emulator.text import ASCII_PER_TOKEN
from infersiege.errors import UsageError

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
FAST = ("--output-tokens", "6", "--step-base-ms", "2", "--step-per-sequence-ms", "0")
SLOW = ("--output-tokens", "400", "--step-base-ms", "20", "--step-per-sequence-ms", "0")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    """One for all tests that only ask."""
    log = tmp_path_factory.mktemp("emulator") / "truth.jsonl"
    with EmulatorProcess(*FAST, "--model", "tiny", "--log-tokens", "--max-model-len", "2048", log=log) as process:
        yield process


def body_of(**changes: Any) -> dict[str, Any]:
    base = {"model": "tiny", "messages": QUESTION, "stream": True, "stream_options": {"include_usage": True}}
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


def post(
    port: int, body: dict[str, Any] | bytes, emulate: str | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        if emulate is not None:
            headers["x-emulate"] = emulate
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", "/v1/chat/completions", data, named)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def get(port: int, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def payloads(body: bytes) -> list[str]:
    assert body.endswith(b"\n\n")
    return [event.removeprefix("data: ") for event in body.decode().split("\n\n")[:-1]]


def contents(events: list[str]) -> list[str]:
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
    return [delta["content"] for delta in deltas if delta.get("content")]


def samples(port: int) -> dict[str, float]:
    """Metric values by name and the labels beside engine and model."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(get(port, "/metrics")[1].decode()):
        for sample in family.samples:
            assert sample.labels.pop("engine") == "0" and sample.labels.pop("model_name")
            found[sample.name + "".join(f"|{value}" for value in sample.labels.values())] = sample.value
    return found


def raw_request(port: int, body: dict[str, Any], *headers: str) -> socket.socket:
    """A raw socket on which the request has been sent."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    data = json.dumps(body).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: x", f"content-length: {len(data)}", *headers]
    sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    return sock


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        part = sock.recv(65_536)
        assert part, f"closed before {mark!r}: {data[-200:]!r}"
        data += part
    return data


def wait_for(condition: Any, what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def row_of(process: EmulatorProcess, request_id: str) -> dict[str, Any]:
    """The truth about one request, as soon as it is written."""
    wait_for(lambda: any(row["request_id"] == request_id for row in process.truth()), f"the row of {request_id}")
    (row,) = [row for row in process.truth() if row["request_id"] == request_id]
    return row


def test_a_stream_has_the_shape_of_vllms(emulator: EmulatorProcess) -> None:
    response, body = post(emulator.port, body_of())
    assert response.status == 200 and response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = payloads(body)
    assert events[-1] == "[DONE]"
    role, *content, usage = [json.loads(event) for event in events[:-1]]
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in content] == [None] * 5 + ["stop"]
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in content), "the last one too holds text"
    assert usage["choices"] == [] and usage["usage"] == {
        "prompt_tokens": 14,
        "total_tokens": 20,
        "completion_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert len({chunk["id"] for chunk in (role, *content, usage)}) == 1


def test_the_whole_answer_is_the_streams(emulator: EmulatorProcess) -> None:
    _, streamed = post(emulator.port, body_of())
    response, body = post(emulator.port, body_of(stream=False, stream_options=None))
    answer = json.loads(body)
    assert response.status == 200 and answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "".join(contents(payloads(streamed)))
    assert answer["usage"]["completion_tokens"] == 6


def test_usage_only_when_asked_and_on_every_chunk_when_asked(emulator: EmulatorProcess) -> None:
    _, without = post(emulator.port, body_of(stream_options=None))
    assert b'"usage"' not in without
    _, every = post(
        emulator.port, body_of(stream_options={"include_usage": True, "continuous_usage_stats": True}, max_tokens=3)
    )
    counts = [json.loads(event)["usage"]["completion_tokens"] for event in payloads(every)[:-1]]
    assert counts == [0, 1, 2, 3, 3]


def test_a_tool_call_streams_its_name_then_its_arguments(emulator: EmulatorProcess) -> None:
    tool = {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"properties": {"q": {"type": "string"}}}},
    }
    _, body = post(emulator.port, body_of(tools=[tool], tool_choice="required", max_tokens=30, ignore_eos=True))
    *chunks, last = [json.loads(event) for event in payloads(body)[1:-2]]
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in chunks]
    assert calls[0]["function"] == {"name": "look_up"} and calls[0]["id"]
    assert json.loads("".join(call["function"]["arguments"] for call in calls[1:]))["q"]


def test_every_answer_says_that_it_is_emulated(emulator: EmulatorProcess) -> None:
    for path, status in (("/v1/models", 200), ("/health", 200), ("/version", 200), ("/metrics", 200), ("/nope", 404)):
        response, _ = get(emulator.port, path)
        assert (response.status, response.headers["x-infersiege-emulated"]) == (status, "1")
        assert response.headers["server"] == "infersiege-emulator"
    response, body = get(emulator.port, "/v1/chat/completions")
    assert (response.status, body) == (405, b'{"detail":"Method Not Allowed"}')
    (model,) = json.loads(get(emulator.port, "/v1/models")[1])["data"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("tiny", "infersiege-emulator", 2_048)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"model":', 400, "JSON decode error"),
        (b"\xff\xfe", 400, "JSON decode error"),
        (b"[]", 400, "must be a JSON object"),
        (json.dumps(body_of(model="nope")).encode(), 404, "does not exist"),
        (json.dumps(body_of(messages=[{"role": "user", "content": "x" * 11_000}])).encode(), 400, "context length"),
    ],
)
def test_bad_requests_are_refused_before_any_stream(
    emulator: EmulatorProcess, body: bytes, status: int, says: str
) -> None:
    request_id = f"bad-{body[:20].hex()}-{len(body)}"
    response, answer = post(emulator.port, body, x_request_id=request_id)
    assert response.status == status and says in json.loads(answer)["error"]["message"]
    row = row_of(emulator, request_id)
    assert row["status"] == status and row["first_token_ns"] is None and row["output_tokens"] == 0


def test_odd_characters_do_not_break_it(emulator: EmulatorProcess) -> None:
    response, body = post(
        emulator.port, b'{"messages":[{"role":"user","content":"\\ud800 \\u0000 \\u4e2d"}],"stream":true}'
    )
    assert response.status == 200 and contents(payloads(body))


def test_keep_alive_pipelining_and_split_requests(emulator: EmulatorProcess) -> None:
    data = json.dumps(body_of(max_tokens=2)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data)
    chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunked += b"%x\r\n%b\r\n%x;x=y\r\n%b\r\n0\r\n\r\n" % (10, data[:10], len(data) - 10, data[10:])
    with socket.create_connection(("127.0.0.1", emulator.port), timeout=30) as sock:
        sock.sendall(head + data + chunked)  # two at once: answered one after the other
        whole = read_until(sock, b"0\r\n\r\n")
        while whole.count(b"0\r\n\r\n") < 2:
            whole += sock.recv(65_536)
        assert whole.count(b"HTTP/1.1 200 OK") == whole.count(b"data: [DONE]") == 2
        for index in range(0, len(head) + len(data), 7):  # and one in small pieces
            sock.sendall((head + data)[index : index + 7])
        assert b"[DONE]" in read_until(sock, b"0\r\n\r\n")


def test_expect_100_continue_and_garbage(emulator: EmulatorProcess) -> None:
    data = json.dumps(body_of(max_tokens=1)).encode()
    with socket.create_connection(("127.0.0.1", emulator.port), timeout=30) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(data)
        )
        assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(data)
        assert b"[DONE]" in read_until(sock, b"0\r\n\r\n")
    for garbage in (
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", emulator.port), timeout=30) as sock:
            sock.sendall(garbage)
            assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_the_log_agrees_with_a_simple_client(emulator: EmulatorProcess) -> None:
    """Same machine, same monotonic clock: every stamp of the log lies before the client's, in the same order."""
    sent_ns = time.monotonic_ns()
    with raw_request(emulator.port, body_of(max_tokens=40, ignore_eos=True), "x-request-id: log-test") as sock:
        all_sent_ns = time.monotonic_ns()
        data = b""
        seen: list[tuple[int, int]] = []
        while not data.endswith(b"0\r\n\r\n"):
            data += sock.recv(65_536)
            seen.append((time.monotonic_ns(), data.count(b'"content":"') - data.count(b'"content":""')))
    row = row_of(emulator, "log-test")
    assert sent_ns < row["received_ns"] and row["received_ns"] - all_sent_ns < 5e9
    writes = row["token_writes"]
    assert len(writes) == row["chunks"] == row["output_tokens"] == 40 and row["finish"] == "length"
    stamps = [row["received_ns"], *(at for at, _ in writes), row["done_ns"]]
    assert stamps == sorted(stamps)
    assert (writes[0][0], writes[-1][0]) == (row["first_token_ns"], row["last_token_ns"])
    for at, count in seen:
        assert sum(write_ns <= at for write_ns, _ in writes) >= count, "nothing is seen before it was written"
    # 39 steps of 2 ms on absolute times. A busy machine can delay the last write, but never hasten it.
    span_ns = row["last_token_ns"] - row["first_token_ns"]
    assert 78e6 - row["late_ns"] - 1e6 <= span_ns <= 78e6 + row["late_ns"]


@pytest.mark.parametrize(
    ("characters", "steps", "reason"),
    [(500, 1, "one chunk"), (10_000, 2, "2,008 tokens in chunks of 1,500"), (20_000, 3, "and 4,008")],
)
def test_ttft_is_the_equations_to_the_nanosecond(characters: int, steps: int, reason: str, tmp_path: Path) -> None:
    """Write time minus its own lateness is the model's time: n steps of 3.5 ms, and 0.05 ms per prompt token."""
    options = ("--step-base-ms", "3", "--step-per-sequence-ms", "0.5", "--prefill-rate", "20000")
    budget = ("--max-num-batched-tokens", "1500", "--output-tokens", "1", "--model", "tiny")
    with EmulatorProcess(*options, *budget, log=tmp_path / "log") as process:
        post(process.port, body_of(messages=[{"role": "user", "content": "x" * characters}]))
        (row,) = process.truth()
    tokens = characters // ASCII_PER_TOKEN + 8
    assert row["prompt_tokens"] == tokens and row["late_ns"] >= 0
    model_ns = row["first_token_ns"] - row["late_ns"] - row["received_ns"]
    assert model_ns == steps * 3_500_000 + tokens * 50_000, reason


def test_prefix_caching_is_told_in_usage_and_metrics(emulator: EmulatorProcess) -> None:
    before = samples(emulator.port)
    talk: list[dict[str, Any]] = [{"role": "user", "content": "Remember this number: " + "0123456789" * 40}]
    _, first = post(emulator.port, body_of(messages=talk, max_tokens=64, ignore_eos=True))
    talk += [{"role": "assistant", "content": "".join(contents(payloads(first)))}, {"role": "user", "content": "Go on"}]
    _, second = post(emulator.port, body_of(messages=talk))
    first_usage, usage = (json.loads(payloads(body)[-2])["usage"] for body in (first, second))
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached % 16 == 0 and first_usage["total_tokens"] - 16 <= cached < usage["prompt_tokens"]
    after = samples(emulator.port)
    assert after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"] == cached
    for name, kind in (
        ("prompt_tokens", "vllm:prompt_tokens_total"),
        ("completion_tokens", "vllm:generation_tokens_total"),
    ):
        assert after[kind] - before[kind] == first_usage[name] + usage[name]
    count = "vllm:time_to_first_token_seconds_count"
    assert after[count] - before[count] == 2
    assert after["vllm:time_to_first_token_seconds_bucket|+Inf"] == after[count]


def test_ids_of_the_request_come_back(emulator: EmulatorProcess) -> None:
    response, _ = post(emulator.port, body_of(max_tokens=1), x_request_id="my-own-id")
    assert response.headers["x-request-id"] == "my-own-id"
    assert row_of(emulator, "my-own-id")["connection"] > 0


def test_tk_14_cached_tokens_can_be_left_out(tmp_path: Path) -> None:
    with EmulatorProcess(*FAST, "--no-cached-tokens", "--model", "tiny") as process:
        _, body = post(process.port, body_of())
    assert "prompt_tokens_details" not in json.loads(payloads(body)[-2])["usage"]


def test_st_03_several_tokens_per_chunk() -> None:
    with EmulatorProcess("--output-tokens", "17", "--tokens-per-chunk", "4", "--model", "tiny") as process:
        _, body = post(process.port, body_of())
        _, single = post(process.port, body_of(stream=False))
    events = payloads(body)
    assert [len(piece) for piece in contents(events)] == [5, 20, 20, 20, 20]
    assert json.loads(events[-2])["usage"]["completion_tokens"] == 17
    assert json.loads(single)["choices"][0]["message"]["content"] == "".join(contents(events))


def test_the_key_is_asked_for_where_vllm_asks() -> None:
    with EmulatorProcess(*FAST, "--model", "tiny", api_key="sk-emulated") as process:
        assert "sk-emulated" not in Path(f"/proc/{process.pid}/cmdline").read_text()
        for headers in ({}, {"authorization": "Bearer nope"}, {"x_api_key": "sk-emulated"}):
            response, body = post(process.port, body_of(), **headers)
            assert (response.status, body) == (401, b'{"error":"Unauthorized"}')
        assert get(process.port, "/v1/models")[0].status == 401
        assert get(process.port, "/metrics")[0].status == get(process.port, "/health")[0].status == 200
        assert post(process.port, body_of(), authorization="Bearer sk-emulated")[0].status == 200


@pytest.mark.parametrize("overload", ["in-stream", "status"])
def test_a_full_queue_refuses_like_vllm(overload: str, tmp_path: Path) -> None:
    options = ("--model", "tiny", "--max-num-seqs", "1", "--max-queue", "1", "--overload", overload)
    with EmulatorProcess(*SLOW, *options, log=tmp_path / "log") as process:
        running, waiting = (raw_request(process.port, body_of()) for _ in range(2))
        with running, waiting:
            read_until(running, b"data: ")
            assert read_until(waiting, b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
            gauges = samples(process.port)
            assert (gauges["vllm:num_requests_running"], gauges["vllm:num_requests_waiting"]) == (1, 1)
            response, body = post(process.port, body_of(), x_request_id="third")
            whole, whole_body = post(process.port, body_of(stream=False), x_request_id="fourth")
            assert samples(process.port)["vllm:admission_rejections_total|queue_full"] == 2
        assert whole.status == json.loads(whole_body)["error"]["code"] == 503
        if overload == "status":
            assert response.status == json.loads(body)["error"]["code"] == 503
        else:
            assert response.status == 200 and payloads(body)[-1] == "[DONE]"
            assert json.loads(payloads(body)[0])["error"]["code"] == 503
        assert row_of(process, "third")["finish"] == row_of(process, "fourth")["finish"] == "rejected"


def test_a_client_that_leaves_frees_its_place(tmp_path: Path) -> None:
    with EmulatorProcess(*SLOW, "--model", "tiny", log=tmp_path / "log") as process:
        with raw_request(process.port, body_of(), "x-request-id: gone") as sock:
            read_until(sock, b"data: ")
            assert samples(process.port)["vllm:kv_cache_usage_perc"] > 0
        row = row_of(process, "gone")
        assert row["finish"] == "disconnect" and row["done_ns"] >= row["last_token_ns"]
        gauges = samples(process.port)
        assert gauges["vllm:num_requests_running"] == gauges["vllm:kv_cache_usage_perc"] == 0
        assert gauges["vllm:request_success_total|abort"] == 0, "as vLLM does"


def test_ls_12_orphans_can_keep_their_slots(tmp_path: Path) -> None:
    with EmulatorProcess(*SLOW, "--ignore-disconnects", "--model", "tiny", log=tmp_path / "log") as process:
        with raw_request(process.port, body_of(), "x-request-id: orphan") as sock:
            read_until(sock, b"data: ")
        assert row_of(process, "orphan")["finish"] == "disconnect"
        assert samples(process.port)["vllm:num_requests_running"] == 1


def test_hc_03_idle_connections_are_closed_by_the_server() -> None:
    with (
        EmulatorProcess(*FAST, "--idle-timeout", "0.2", "--model", "tiny") as process,
        raw_request(process.port, body_of()) as sock,
    ):
        read_until(sock, b"0\r\n\r\n")
        assert sock.recv(10) == b""


def test_st_08_keepalive_comments_while_waiting() -> None:
    options = ("--prefill-rate", "20", "--keepalive-interval", "0.1", "--model", "tiny")
    with EmulatorProcess(*FAST, *options) as process:
        _, body = post(process.port, body_of())
    assert body.startswith(b": keep-alive\n\n: keep-alive\n\n") and body.count(b": keep-alive") < 20


def test_the_same_seed_gives_the_same_answers_in_any_order() -> None:
    def answers(order: list[int], seed: str) -> dict[int, bytes]:
        with EmulatorProcess(
            "--output-median", "8", "--step-base-ms", "1", "--model", "tiny", "--seed", seed
        ) as process:
            whole = body_of(stream=False)
            texts = {}
            for index in order:
                _, body = post(process.port, {**whole, "messages": [{"role": "user", "content": f"question {index}"}]})
                texts[index] = json.dumps(json.loads(body)["choices"]).encode()
            return texts

    assert answers([0, 1, 2], "3") == answers([2, 0, 1], "3") != answers([0, 1, 2], "4")


def test_st_33_many_streams_at_once_all_come_whole(tmp_path: Path) -> None:
    """200 streams of one batch: every one whole, and the engine's own counters say the same."""
    count, tokens = 200, 20
    options = ("--output-tokens", str(tokens), "--step-base-ms", "20", "--max-num-seqs", "256", "--model", "tiny")
    with EmulatorProcess(*options, log=tmp_path / "log") as process:
        socks = [raw_request(process.port, body_of(), f"x-request-id: many-{index}") for index in range(count)]
        for sock in socks:
            with sock:
                assert read_until(sock, b"[DONE]\n\n\r\n0\r\n\r\n").count(b'"content":"') == tokens + 1
        rows = process.truth()
        assert sorted(row["request_id"] for row in rows) == sorted(f"many-{index}" for index in range(count))
        assert {row["output_tokens"] for row in rows} == {tokens} and {row["finish"] for row in rows} == {"stop"}
        assert samples(process.port)["vllm:generation_tokens_total"] == count * tokens


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(signum: signal.Signals, tmp_path: Path) -> None:
    process = EmulatorProcess(*SLOW, "--model", "tiny", log=tmp_path / "log").start()
    with raw_request(process.port, body_of(), "x-request-id: open") as sock:
        read_until(sock, b"data: ")
        assert process.pid is not None
        os.kill(process.pid, signum)
        assert row_of(process, "open")["finish"] == "stopped"
    # `stop` sends a signal of its own, which would strike an interpreter that is already on its way out.
    status = Path(f"/proc/{process.pid}/stat")
    wait_for(lambda: ") Z " in status.read_text(), "its end")
    assert process.stop() == 0


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from infersiege.emulator.process import EmulatorProcess\n"
        "print(EmulatorProcess().start().pid, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)
    status = Path(f"/proc/{int(done.stdout)}/stat")
    wait_for(lambda: not status.exists() or ") Z " in status.read_text(), "the orphan's end")


def test_a_killed_engine_cuts_its_streams() -> None:
    with EmulatorProcess(*SLOW, "--model", "tiny") as process, raw_request(process.port, body_of()) as sock:
        data = read_until(sock, b"data: ")
        process.kill()
        while part := sock.recv(65_536):
            data += part
        assert not data.endswith(b"0\r\n\r\n")
        assert process.stop() == -signal.SIGKILL


def test_the_command_prints_one_line_and_takes_a_free_port() -> None:
    command = [sys.executable, "-m", "infersiege.emulator", "--port", "0", "--model", "a b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:") and line.endswith("/v1 (model a b)\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout.read() == process.stderr.read() == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--preset", "huge"), "huge"),
        (("--kv-blocks", "10"), "can't hold one sequence"),
        (("--fault", "explode"), "there is no 'explode'"),
        (("--output-tokens", "-1"), "--output-tokens is -1; it must be from 1 to 1,000,000,000"),
        (("--noise", "nan"), "--noise is nan; it must be from 0 to 3"),
        (("--noise", "1e300"), "--noise is 1e+300; it must be from 0 to 3"),
        (("--step-base-ms", "inf"), "--step-base-ms is inf; it must be from 0 to 3,600,000"),
        (("--idle-timeout", "nan"), "--idle-timeout is nan; it must be from 0.001 to 86,400"),
        (("--prefill-rate", "nan"), "--prefill-rate is nan; it must be from 0.001 to 1,000,000,000"),
        (("--port", "70000"), "70000"),
        (("--log", "/dev/null/truth.jsonl"), "/dev/null/truth.jsonl: can't be written"),
        (("--host", "192.0.2.1"), "192.0.2.1"),
    ],
)
def test_what_can_not_be_started_is_said_in_one_message(options: tuple[str, ...], says: str) -> None:
    command = [sys.executable, "-m", "infersiege.emulator", "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(UsageError, match="did not start"):
        EmulatorProcess(*options).start()


def test_a_port_in_use_is_named(emulator: EmulatorProcess) -> None:
    with pytest.raises(UsageError, match=f"127.0.0.1:{emulator.port}: can't listen"):
        EmulatorProcess(port=emulator.port).start()


def test_help_has_an_example() -> None:
    command = [sys.executable, "-m", "infersiege.emulator", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Example: infersiege emulate" in done.stdout and "--until-stdin-closes" not in done.stdout
