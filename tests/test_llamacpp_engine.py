"""The fixture's engine is the real one: llama.cpp's stream, read without any code of ours."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from typing import Any

import engines
import pytest

pytestmark = pytest.mark.llamacpp

TOKENS = 12


def chat(engine: engines.Engine, **extra: Any) -> tuple[int, str, list[str]]:
    """One streamed chat: status, content type, the lines of its body."""
    body = {
        "model": engine.model,
        "messages": [{"role": "user", "content": "Count from one to twenty."}],
        "max_tokens": TOKENS,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(engine.host, engine.port, timeout=60)
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps({**body, **extra}), {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read().decode().split("\n")
    finally:
        connection.close()


def test_a_streamed_chat_has_a_role_chunk_text_a_finish_reason_usage_and_done(llamacpp: engines.Engine) -> None:
    status, content_type, lines = chat(llamacpp)
    payloads = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert status == http.HTTPStatus.OK
    assert content_type.startswith("text/event-stream")
    assert payloads[-1] == "[DONE]"
    chunks = [json.loads(payload) for payload in payloads[:-1]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert not deltas[0].get("content"), "the first chunk is no token"
    assert "".join(delta.get("content") or "" for delta in deltas).strip()
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == TOKENS
    assert chunks[-1]["choices"] == []


def test_a_prompt_over_the_context_is_a_400_that_names_both_lengths(llamacpp: engines.Engine) -> None:
    status, _, lines = chat(llamacpp, messages=[{"role": "user", "content": "one " * 9000}])
    error = json.loads("\n".join(lines))["error"]
    assert status == http.HTTPStatus.BAD_REQUEST
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"]


def test_the_engine_says_why_it_does_not_start(llamacpp: engines.Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, str(engines.LLAMACPP), "--port", str(port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"did not start on port {port}" in ended.stderr


def test_the_engine_without_its_model_names_the_remedy(tmp_path: Any) -> None:
    command = [sys.executable, str(engines.LLAMACPP), "--model", str(tmp_path / "none.gguf")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "none.gguf" in ended.stderr
    assert "hint: make llamacpp" in ended.stderr
