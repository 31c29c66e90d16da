"""Scripted servers for the doctor's tests: raw bytes on a real socket, by `METHOD path`."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from infersiege.doctor import preflight
from infersiege.plan.schema import Channel, Plan, Timeouts
from infersiege.rundir import ChannelFacts


class Pieces(NamedTuple):
    """A response in parts, with a pause before each but the first."""

    parts: tuple[bytes, ...]
    pause_s: float = 0.0
    hold: bool = False
    """Keep the connection open until the client leaves."""


Answer = bytes | Pieces | None


@dataclass(frozen=True, slots=True)
class ByBody:
    """An answer that depends on the request's JSON."""

    answer: Callable[[dict[str, Any]], Answer]


Route = Answer | Callable[[int], Answer] | ByBody
"""Raw bytes of a response; None: never answer; or a function of how often it was asked (from 0), or of what was."""


def response(body: bytes | str, status: str = "200 OK", kind: str = "application/json", extra: str = "") -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{extra}content-length: {len(raw)}\r\n\r\n".encode() + raw


def event(value: object) -> str:
    return f"data: {json.dumps(value)}\n\n"


def stream(*events: str, extra: str = "") -> bytes:
    return response("".join(events), kind="text/event-stream; charset=utf-8", extra=extra)


MODELS = response(json.dumps({"object": "list", "data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}))
ROLE = event({"model": "m-real", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
TEXT = event({"choices": [{"index": 0, "delta": {"content": "hi"}}]})
USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}},
    }
)
DONE = "data: [DONE]\n\n"
CHAT = stream(ROLE, TEXT, USAGE, DONE, extra="server: uvicorn\r\n")
GOOD: dict[str, Route] = {"GET /v1/models": MODELS, "POST /v1/chat/completions": CHAT}
NOT_FOUND = response('{"detail":"Not Found"}', "404 Not Found")


class Server:
    """One connection at a time; what it does is a table of `METHOD path` -> response."""

    def __init__(
        self, routes: Mapping[str, Route], context: ssl.SSLContext | None = None, tunnel: ssl.SSLContext | None = None
    ) -> None:
        """`tunnel`: it is a proxy, and what it opens a tunnel to is itself, with this TLS."""
        self.tunnel = tunnel
        self.routes = routes
        self.context = context
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def bodies(self, route: str) -> list[dict[str, object]]:
        return [json.loads(body) for asked, _, body in self.requests if asked == route]

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._answer(self.context.wrap_socket(connection, server_side=True) if self.context else connection)
                except OSError:
                    continue  # the client went away, or did not trust us

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(10)
        with connection, connection.makefile("rb") as reader:
            first = reader.readline().decode("latin-1").split(" ")
            if len(first) < 3:
                return
            headers = dict(self._headers(reader.readline))
            if first[0] == "CONNECT" and self.tunnel is not None:
                self.requests.append((f"CONNECT {first[1]}", headers, b""))
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._answer(self.tunnel.wrap_socket(connection, server_side=True))
                return
            body = reader.read(int(headers.get("content-length", 0)))
            asked = f"{first[0]} {first[1]}"
            times = sum(before == asked for before, _, _ in self.requests)
            self.requests.append((asked, headers, body))
            route = self.routes.get(asked, NOT_FOUND)
            if isinstance(route, ByBody):
                answer = route.answer(json.loads(body) if body else {})
            else:
                answer = route(times) if callable(route) else route
            if answer is None:
                connection.recv(1)  # silence, until the client gives up
            elif isinstance(answer, Pieces):
                self._send(connection, answer)
            else:
                connection.sendall(answer)

    @staticmethod
    def _send(connection: socket.socket, answer: Pieces) -> None:
        for number, part in enumerate(answer.parts):
            if number:
                time.sleep(answer.pause_s)
            connection.sendall(part)
        if answer.hold:
            connection.recv(1)

    @staticmethod
    def _headers(readline: Callable[[], bytes]) -> Iterator[tuple[str, str]]:
        while line := readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            yield name.lower(), value.strip()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)


@contextmanager
def serving(
    routes: Mapping[str, Route], context: ssl.SSLContext | None = None, tunnel: ssl.SSLContext | None = None
) -> Iterator[Server]:
    server = Server(routes, context, tunnel)
    try:
        yield server
    finally:
        server.close()


def plan_for(port: int, base: str = "http://127.0.0.1:{port}/v1", engine: str = "vllm", **more: object) -> Plan:
    fields: dict[str, object] = {
        "engine": engine,
        "base_url": base.format(port=port),
        "model": "m",
        "timeouts": Timeouts(connect_ns=2_000_000_000, first_token_ns=5_000_000_000),
        **more,
    }
    return Plan(channels={"local": Channel(**fields)}, workloads=())  # type: ignore[arg-type]


def ask(routes: Mapping[str, Route], environ: Mapping[str, str] | None = None, **more: object) -> ChannelFacts:
    with serving(routes) as server:
        return preflight(plan_for(server.port, **more), environ=environ or {})["local"]  # type: ignore[arg-type]


def both(whole: Answer, streamed: Answer) -> ByBody:
    """What a server answers that was asked for the one or the other."""
    return ByBody(lambda asked: streamed if asked.get("stream") else whole)


INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"


def chat(answer: Route) -> dict[str, Route]:
    return {**GOOD, "POST /v1/chat/completions": answer}


ERROR = '{"error":{"message":"%s","type":"%s","code":%d}}'
HTML = response("<!doctype html><title>Open WebUI</title>", kind="text/html; charset=utf-8")
