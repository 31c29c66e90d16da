"""Asks the emulator and reads what it says, with nothing of the client's own code."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
QUESTION = "Hello there, how are you today?"
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class Event:
    """One SSE event: its name, and its data as JSON (or the text, where it is none)."""

    name: str | None
    data: Any


@dataclass(frozen=True, slots=True)
class Said:
    """One whole answer of HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Event]:
        return list(read_events(self.body.decode()))


def read_events(text: str) -> Iterable[Event]:
    """Events of a complete stream with LF line ends; comments are left out."""
    assert text == "" or text.endswith("\n\n"), "the stream ends inside an event"
    for block in text.split("\n\n"):
        name, data = None, []
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            else:
                assert field == "", f"a line that is no field: {line!r}"
        if data:
            joined = "\n".join(data)
            yield Event(name, joined if joined == "[DONE]" else json.loads(joined))


def body_for(api: str, *, tool: str | None = None, stream: bool = True, **changes: Any) -> dict[str, Any]:
    """A request in the words of one protocol. `tool`: `any` forces a call, `named` names the function."""
    messages = [{"role": "user", "content": QUESTION}]
    body: dict[str, Any] = {"model": "tiny", "stream": stream}
    if api in ("chat", "completions"):
        body |= {"max_tokens": 100} | ({"stream_options": {"include_usage": True}} if stream else {})
        body |= {"messages": messages} if api == "chat" else {"prompt": QUESTION}
    elif api == "responses":
        body |= {"input": messages, "max_output_tokens": 100}
    else:
        body |= {"messages": messages, "max_tokens": 100}
    if tool is not None:
        function = {"name": "f", "parameters": PARAMETERS}
        body["tools"] = {
            "chat": [{"type": "function", "function": function}],
            "responses": [{"type": "function", **function}],
            "messages": [{"name": "f", "input_schema": PARAMETERS}],
        }[api]
        named: dict[str, Any] = {
            "chat": {"type": "function", "function": {"name": "f"}},
            "responses": {"type": "function", "name": "f"},
            "messages": {"type": "tool", "name": "f"},
        }
        forced = {"type": "any"} if api == "messages" else "required"
        body["tool_choice"] = named[api] if tool == "named" else forced
    return {key: value for key, value in {**body, **changes}.items() if value is not None}


def ask(
    port: int, path: str, body: Any = None, *, method: str | None = None, emulate: str = "", **headers: str
) -> Said:
    """One request on a connection of its own. GET without a body; `_` in a header's name stands for `-`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    named = {"anthropic-version": "2023-06-01", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if emulate:
        named["x-emulate"] = emulate
    data = body if isinstance(body, bytes) or body is None else json.dumps(body)
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, data, named)
        response = connection.getresponse()
        told = {name.lower(): value for name, value in response.getheaders()}
        return Said(response.status, told, response.read())
    finally:
        connection.close()
