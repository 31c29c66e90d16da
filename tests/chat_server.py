"""A chat server in the test's own process that keeps every request and answers as the test says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scripted_server import Peer, Server, sleep, stream, whole


@dataclass(slots=True)
class Asked:
    """One request. Instants are this host's monotonic clock, the same in every process."""

    body: dict[str, Any]
    request_id: str
    connection: int
    at_ns: int
    ended_ns: int = 0
    """The last byte of the answer was written."""

    @property
    def turn(self) -> int:
        return int(self.request_id.rpartition(".")[2])

    @property
    def said(self) -> list[str]:
        """`role: content`, of each message."""
        return [f"{message['role']}: {message.get('content')}" for message in self.body["messages"]]


@dataclass(frozen=True, slots=True)
class Reply:
    text: str = "fine"
    after_s: float = 0.0
    """Until its first byte."""
    status: int = 200
    tool_calls: tuple[dict[str, Any], ...] = ()
    prompt_tokens: int = 1


class ChatServer:
    """What was asked so far, in order of arrival."""

    def __init__(self, url: str) -> None:
        self.base_url = f"{url}/v1"
        self.asked: list[Asked] = []

    def by_turn(self) -> dict[int, Asked]:
        return {asked.turn: asked for asked in self.asked}


@contextmanager
def chat_server(reply: Callable[[Asked], Reply] = lambda _: Reply()) -> Iterator[ChatServer]:
    """Ends with its connections. A fault of the script fails the test."""

    def script(peer: Peer) -> None:
        while (request := peer.request()) is not None:
            head, _, body = request.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
            asked = Asked(json.loads(body), headers["x-request-id"], peer.number, time.monotonic_ns())
            made.asked.append(asked)
            answer = reply(asked)
            sleep(answer.after_s)
            peer.send(_written(answer))
            asked.ended_ns = time.monotonic_ns()

    with Server(script) as server:
        made = ChatServer(server.url)
        yield made


def _written(answer: Reply) -> bytes:
    if answer.status != 200:
        return whole(b'{"error":{"message":"no"}}', status=f"{answer.status} No")
    delta: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.tool_calls:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(answer.tool_calls)]
    finish = "tool_calls" if answer.tool_calls else "stop"
    output = max(1, len(answer.text.split()))
    usage = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": output, "total_tokens": 1}
    events = [
        {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"id": "x", "model": "m", "choices": [], "usage": usage},
    ]
    lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    return stream(*lines, b"data: [DONE]\n\n")
