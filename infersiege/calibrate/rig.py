"""Null server and client as two processes, and one probe: the same window seen from both sides."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

import msgspec

from infersiege.calibrate.client import Order
from infersiege.calibrate.verdict import Probe, error_ms
from infersiege.errors import InternalError


class Side:
    """A child process that answers a line of JSON with one."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._name = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us; they end when we close their input
        )

    def read(self) -> Any:
        """Its next line. Raises InternalError when it ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.endswith(b"\n"):
            return json.loads(line)
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        raise InternalError(f"{self._name} ended (exit code {self._process.wait()}): {said[-1] if said else 'no word'}")

    def ask(self, question: object) -> Any:
        self.tell(question)
        return self.read()

    def tell(self, question: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.read()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what it did not read before it ended is of no use now
                    pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


class Rig:
    """Both sides, for as long as a calibration takes. Use with `with`."""

    def __init__(self, *, interval_ns: int, tokens: int) -> None:
        self._serving = {"interval_ns": interval_ns, "tokens": tokens}
        self.rate = 1e9 / interval_ns
        with ExitStack() as started:
            self._server = Side("infersiege.calibrate.server")
            started.callback(self._server.close)
            self._client = Side("infersiege.calibrate.client", str(self._server.read()["port"]))
            started.callback(self._client.close)
            self._server.ask(self._serving)
            self._sides = started.pop_all()

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sides.close()

    def probe(self, order: Order) -> Probe:
        """Raises InternalError when one of the sides ends."""
        self._server.ask(self._serving)  # what it did until now is forgotten
        seen = self._client.ask(order)
        did = self._server.ask(self._serving)
        errors = []
        for request, first_ns, slack_ns in seen["first_tokens"]:
            stamps = did["stamps"].get(request)
            if stamps is not None:
                errors.append(error_ms(first_ns, slack_ns, (stamps[0], stamps[1])))
        return Probe(
            users=order.users,
            asked_per_s=order.users * self.rate if order.kind == "streams" else None,
            tokens_per_s=seen["tokens"] / seen["seconds"],
            turns_per_s=seen["turns"] / seen["seconds"],
            failed=seen["failed"],
            example=seen["example"],
            errors_ms=tuple(sorted(errors)),
            coalesced_share=seen["coalesced"] / seen["chunks"] if seen["chunks"] else 0.0,
            client_cpu=seen["cpu_share"],
            client_wait=seen["cpu_wait_share"] or 0.0,
            client_lag_p99_ms=seen["hub_lag_p99_ms"] or 0,
            server_cpu=did["cpu_share"],
            server_wait=did["cpu_wait_share"],
            server_late_p99_ms=did["late_p99_ms"],
        )
