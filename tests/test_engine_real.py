"""The engine agent beside real engines under load: what it wrote agrees with what clients of them counted.

llama.cpp runs wherever it is installed. vLLM runs when INFERSIEGE_VLLM names the Python of an environment that has it.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import engines
import pytest
from infersiege_agents.engine_histograms import merge, parse, percentile_bounds

VLLM_SERVE = engines.ROOT / "examples" / "engines" / "vllm_serve.py"
Usage = dict[str, Any]


def chat(port: int, model: str, tokens: int, prompt: str) -> tuple[Usage, float]:
    """One streamed chat: (its usage, its time to the first content in ms)."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
    began = time.monotonic()
    first_ms: float | None = None
    usage: Usage = {}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == http.HTTPStatus.OK, answer.read()
    for line in answer:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            if first_ms is None and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first_ms = (time.monotonic() - began) * 1000
            usage = chunk.get("usage") or usage
    connection.close()
    assert usage and first_ms is not None
    return usage, first_ms


def chats(port: int, model: str, tokens: int, prompts: list[str]) -> tuple[list[Usage], list[float]]:
    """All of them at once."""
    found: list[tuple[Usage, float]] = []
    threads = [
        threading.Thread(target=lambda p=prompt: found.append(chat(port, model, tokens, p))) for prompt in prompts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(prompts)
    return [usage for usage, _ in found], [first_ms for _, first_ms in found]


def told(usages: list[Usage]) -> dict[str, float]:
    """What the clients were told, in the agent's words."""
    return {
        "prompt_tokens": sum(one["prompt_tokens"] for one in usages),
        "generated_tokens": sum(one["completion_tokens"] for one in usages),
        "prefix_hits": sum((one.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for one in usages),
    }


class Watching:
    """The real command, which writes to a file."""

    def __init__(self, out: Path, log: Path) -> None:
        self.out = out
        self.log = log

    def points(self) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.out.read_text("utf-8").splitlines()] if self.out.exists() else []
        assert all(row["tags"]["engine"] != "unknown" for row in rows)
        return [row["fields"] for row in rows]

    def sum(self, name: str) -> float:
        return float(sum(one.get(name, 0.0) for one in self.points()))

    def max(self, name: str) -> float:
        return float(max(one.get(name, 0.0) for one in self.points()))

    def until(self, condition: Callable[[], bool], within_s: float = 20.0) -> None:
        ends = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < ends, (self.points()[-3:], self.log.read_text("utf-8"))
            time.sleep(0.1)


@contextmanager
def watching(port: int, folder: Path) -> Iterator[Watching]:
    """`infersiege-agent engine` beside the engine at `port`, since before the load."""
    found = Watching(folder / "engine.jsonl", folder / "agent.log")
    command = [sys.executable, "-m", "infersiege_agents.cli", "engine", "--url", f"http://127.0.0.1:{port}"]
    with found.log.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--interval", "0.2", "--out", str(found.out)], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            found.until(lambda: any("interval" in one for one in found.points()))
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(20)
    assert code == 0, found.log.read_text("utf-8")


@pytest.mark.llamacpp
def test_llama_cpp_under_load_agrees_with_what_its_clients_counted(llamacpp: engines.Engine, tmp_path: Path) -> None:
    with watching(llamacpp.port, tmp_path) as agent:
        usages, _ = chats(llamacpp.port, llamacpp.model, 24, [f"Say {n} in words." for n in range(7)])
        expected = told(usages)
        agent.until(lambda: agent.sum("generated_tokens") >= expected["generated_tokens"])
    assert {name: agent.sum(name) for name in expected} == expected
    assert agent.sum("prefix_queries") == expected["prompt_tokens"]
    assert agent.max("running") == 4.0, "four slots"
    assert 1.0 <= agent.max("waiting") <= 3.0, "seven requests"
    assert agent.sum("resets") == 0.0
    absent = {"kv_use", "preemptions", "ttft_n", "itl_n", "ttft_mean_ms"}
    assert not any(absent & one.keys() for one in agent.points()), "llama.cpp does not tell these"


@pytest.fixture(scope="session")
def vllm(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a real vLLM with 48 KV blocks of 32 tokens and 4 sequences at a time."""
    python = os.environ.get("INFERSIEGE_VLLM")
    if not python:
        pytest.skip("INFERSIEGE_VLLM does not name the Python of an environment with vLLM")
    port, log = free_port(), tmp_path_factory.mktemp("vllm") / "engine.log"
    command = [python, str(VLLM_SERVE), "--port", str(port), "--blocks", "48", "--seqs", "4"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        engines.wait_for_health("127.0.0.1", port, process, log, 100)
        yield port
    finally:
        engines.stop(process)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_vllm_under_load_agrees_with_what_its_clients_counted(vllm: int, tmp_path: Path) -> None:
    with watching(vllm, tmp_path) as agent:
        # 4 of 8 at a time, each up to 20 of the 48 blocks: it has to preempt. They begin alike: the cache has hits.
        prompts = ["tell me of the sea and its ships " * 12 + str(n) for n in range(8)]
        one = chats(vllm, "tiny", 500, prompts)
        two = chats(vllm, "tiny", 500, prompts)
        usages, firsts_ms = one[0] + two[0], one[1] + two[1]
        expected = told(usages)
        agent.until(lambda: agent.sum("generated_tokens") >= expected["generated_tokens"])
    assert {name: agent.sum(name) for name in expected} == expected
    assert expected["prefix_hits"] > 0
    assert agent.sum("prefix_queries") == expected["prompt_tokens"]
    assert agent.max("running") == 4.0
    assert 1.0 <= agent.max("waiting") <= 7.0
    assert 0.8 < agent.max("kv_use") <= 1.0
    assert agent.sum("preemptions") > 0
    assert agent.sum("resets") == 0.0
    points = agent.points()
    ttft = merge(parse(point["ttft_buckets"]) for point in points if "ttft_buckets" in point)
    assert ttft.n == agent.sum("ttft_n") == len(usages)
    mean_ms = sum(point["ttft_mean_ms"] * point["ttft_n"] for point in points if "ttft_mean_ms" in point) / ttft.n
    client_ms = sum(firsts_ms) / len(firsts_ms)
    # The engine counts from its own receipt to its own sending: the client's figure holds that and the way.
    assert 0 < mean_ms <= client_ms
    bounds = percentile_bounds(ttft, 0.5)
    assert bounds is not None and bounds[0] * 1000 <= sorted(firsts_ms)[len(firsts_ms) // 2]
    assert agent.sum("itl_n") == expected["generated_tokens"] - len(usages), "one gap per token after the first"


def test_vllm_s_start_script_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(VLLM_SERVE)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "hint: run it with the Python of an environment that has vLLM" in done.stderr
