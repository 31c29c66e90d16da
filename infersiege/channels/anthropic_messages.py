"""The dialect `anthropic-messages`: `/messages` of Anthropic and of every engine and gateway that speaks it.

As in `openai_chat`, events are decoded into structs of the fields we read, and what those refuse by a lenient path
into the same structs. Tokens are `text_delta`, `thinking_delta` and `input_json_delta` (ST-29).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from infersiege.channels import anthropic_request
from infersiege.channels.anthropic_usage import AnthropicCounters
from infersiege.channels.dialect import ANSWER, DONE, TEXT, Decoded, Dialect
from infersiege.channels.faults import whole_object
from infersiege.channels.gathered import Gathered
from infersiege.channels.leniency import lenient_json
from infersiege.records import Message


class _Delta(msgspec.Struct, gc=False):
    type: Any = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    delta: _Delta | None = None
    index: Any = None
    usage: Any = None
    error: Any = None
    message: Any = None
    content_block: Any = None


_parse: Callable[[bytes], _Event] = msgspec.json.Decoder(_Event).decode


class AnthropicDecoder(Gathered):
    """State of one answer, streamed or whole."""

    __slots__ = ("_counters", "_silent")

    def __init__(self) -> None:
        super().__init__()
        self._counters = AnthropicCounters()
        self._silent: set[int] = set()
        """Blocks of tool calls that began, and of whose arguments nothing came yet."""

    def feed(self, payload: bytes) -> int:
        """Take one event's data; return TEXT | ANSWER | DONE | ERROR flags.

        Raises ValueError on what is no JSON (or is nested beyond reason), and on nothing else.
        """
        try:
            event = _parse(payload)
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return self._unusual(payload)
        delta = event.delta
        if delta is not None and event.type == "content_block_delta":
            if delta.type == "text_delta":
                text = delta.text
                if type(text) is str and text:
                    self._text.append(text)
                    return TEXT | ANSWER
            return self._delta(event, delta)
        return self._event(event, payload)

    def _delta(self, event: _Event, delta: _Delta) -> int:
        kind = delta.type
        if kind == "text_delta":
            return self._say(delta.text)
        if kind == "thinking_delta":
            return self._think(delta.thinking)
        if kind == "input_json_delta" and delta.partial_json:
            return self._arguments(event.index, delta.partial_json)
        return 0  # a signature, a citation, or what comes to be invented

    def _event(self, event: _Event, payload: bytes) -> int:
        kind = event.type
        if kind == "error" or event.error:
            # Decoded anew: a flat error has its fields beside the type.
            return self._error(lenient_json(payload), "an error without a message")
        if kind == "content_block_start" and isinstance(event.content_block, dict):
            return self._block(event.index, event.content_block, begins=True)
        if kind == "content_block_stop" and isinstance(event.index, int) and event.index in self._silent:
            # A call without arguments, or of a server that drops them (vLLM): its end is all that shows it.
            return self._arguments(event.index, "{}")
        if kind == "message_start" and isinstance(event.message, dict):
            self._learn_model(event.message.get("model"))
            self._counters.take(event.message.get("usage"))
        elif kind == "message_delta":
            if event.delta is not None:
                self._finish(event.delta.stop_reason)
            self._counters.take(event.usage)
        elif kind == "message_stop":
            self._done = True
            return DONE
        elif kind is None:
            if flags := self._error(lenient_json(payload)):
                return flags
            self._flags["odd_payload"] = None
        return 0

    def _block(self, index: object, block: dict[str, Any], *, begins: bool = False) -> int:
        """A content block: whole, or its first event, which is empty as a rule and no token (ST-29)."""
        kind = block.get("type")
        if kind == "text":
            return self._say(block.get("text"))
        if kind == "thinking":
            return self._think(block.get("thinking"))
        if not isinstance(kind, str) or not kind.endswith("tool_use"):
            return 0  # the result of a tool of the server's own, redacted thinking
        self._tools.take([{"index": index, "id": block.get("id"), "function": {"name": block.get("name")}}])
        if block.get("input"):
            return self._arguments(index, block["input"])
        if begins:
            if type(index) is int:
                self._silent.add(index)
            return 0
        return self._arguments(index, "{}")

    def _arguments(self, index: object, arguments: object) -> int:
        if type(index) is int:
            self._silent.discard(index)
        return self._tools.take([{"index": index, "function": {"arguments": arguments}}])

    def _unusual(self, payload: bytes) -> int:
        """Everything that the structs of the fast path refuse, and a `[DONE]`."""
        stripped = payload.strip()
        if stripped == b"[DONE]":
            self._closing_mark()
            return DONE
        if not stripped:
            return 0
        value = lenient_json(stripped)
        if not isinstance(value, dict):
            self._flags["non_object"] = None
            return 0
        self._flags["odd_payload"] = None
        delta = value.get("delta")
        event = _Event(**{name: value.get(name) for name in _Event.__struct_fields__ if name != "delta"})
        if isinstance(delta, dict):
            event.delta = _Delta(**{name: delta.get(name) for name in _Delta.__struct_fields__})
            if event.type == "content_block_delta":
                return self._delta(event, event.delta)
        return self._event(event, stripped)

    def take_whole(self, value: dict[str, Any]) -> None:
        """A non-streamed answer, or an error in its place."""
        self._error(value)
        content = value.get("content")
        for index, block in enumerate(content if isinstance(content, list) else []):
            if isinstance(block, dict):
                self._block(index, block)
        self._finish(value.get("stop_reason"))
        self._learn_model(value.get("model"))
        self._counters.take(value.get("usage"))
        self._done = True

    def decoded(self) -> Decoded:
        """All that was said so far."""
        return self._gathered(self._counters.usage(), end_event="message_stop", odd_usage=self._counters.odd)


class AnthropicMessages(Dialect):
    """The dialect: request bodies in, decoders out. Holds no state."""

    name = "anthropic-messages"
    path = "/messages"
    headers = MappingProxyType({"anthropic-version": "2023-06-01"})
    key_header = "x-api-key"
    key_prefix = ""
    prompt_fields = ("messages", "system")
    left_out = MappingProxyType({"seed": "Anthropic's Messages API has no seed"})

    def request_fields(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """`stop`, `tool_choice` and what is sampled by, in its words; the rest of OpenAI's fields it refuses."""
        return anthropic_request.fields(extra)

    def request_body(
        self,
        *,
        model: str,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        max_tokens: int,
        stream: bool,
        include_usage: bool,
        sampling: dict[str, Any],
        extra: dict[str, Any],
    ) -> bytes:
        """As `Dialect` says. `include_usage` changes nothing: usage always comes."""
        return anthropic_request.body(
            model=model,
            messages=messages,
            tools=tools,
            max_tokens=max_tokens,
            stream=stream,
            sampling=sampling,
            extra=extra,
        )

    def decoder(self) -> AnthropicDecoder:
        return AnthropicDecoder()

    def decode_whole(self, body: bytes) -> Decoded:
        """A non-streamed answer; an error object gives a Decoded with a fault.

        Raises ValueError on what is neither an answer nor an error.
        """
        value = whole_object(body, "content")
        decoder = AnthropicDecoder()
        decoder.take_whole(value)
        return decoder.decoded()
