"""What a dialect is: it builds a request body and turns payloads into deltas. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from infersiege.records import ErrorClass, Message

TEXT = 1
"""Payload flag: it holds generated text of any channel (content, reasoning, refusal, tool-call delta)."""
ANSWER = 2
"""Payload flag: of that, answer text (content, refusal or a tool call; not reasoning)."""
DONE = 4
"""Payload flag: the stream says that it is over (`[DONE]`, `message_stop`, `response.completed`)."""
ERROR = 8
"""Payload flag: an error inside the stream."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts as the server tells them. None: not told."""

    prompt_tokens: int | None = None
    """All of the input, whatever of it was read from a cache or written to one (Anthropic tells the three apart)."""
    cached_tokens: int | None = None
    """Of these, read from a cache."""
    cache_write_tokens: int | None = None
    """Of these, written to a cache; clouds bill them at a price of their own."""
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


class StreamFault(msgspec.Struct, frozen=True, kw_only=True):
    error_class: ErrorClass
    detail: str


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """All that one answer said, after its last payload (or as far as it came)."""

    text: str
    reasoning: str
    refusal: str
    tool_calls: tuple[dict[str, Any], ...]
    """In OpenAI's form, arguments joined by index."""
    finish_reason: str | None
    usage: Usage | None
    first_chunk_tokens: int | None
    """From usage on the first content chunk, where the server sends it per chunk."""
    fault: StreamFault | None
    done: bool
    model: str | None
    server_ttft_ns: int | None
    flags: tuple[str, ...]
    end_event: str | None = None
    """The event without which a stream of this dialect was cut (ST-16); None: a finish reason will do (ST-20)."""


class Decoder(Protocol):
    """State of one answer."""

    def feed(self, payload: bytes) -> int:
        """Take one event's data; return TEXT | ANSWER | DONE | ERROR flags. Raises ValueError on what is no JSON."""

    def decoded(self) -> Decoded: ...


class Dialect(Protocol):
    """One wire protocol. What has a value here is so for most of them."""

    name: str
    path: str
    """Below the API root, such as `/chat/completions`."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Headers, in lower case, that each request needs beside the key; the channel's own win."""
    key_header: str = "authorization"
    key_prefix: str = "Bearer "
    """The key is sent as `key_header: key_prefix + key`, unless the engine wants another form (`key_headers`)."""
    prompt_fields: tuple[str, ...] = ("messages",)
    """Fields of a body that come from the trace: a plan must not set them."""
    left_out: Mapping[str, str] = MappingProxyType({})
    """Sampling field that this protocol lacks -> why it is not sent."""
    least_output_tokens: int = 1
    """Smallest output limit that every server of it takes."""

    def request_fields(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Request fields of a trace, which are those of `/chat/completions`, in the words of this protocol.

        What it has no word for is left out: servers refuse unknown fields.
        """
        return dict(extra)

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
        """UTF-8 JSON of one request; messages and tools are in OpenAI's form.

        `sampling` is written in this protocol's words. `extra` comes last, verbatim, and wins. Raises UsageError for
        fields that would make the answer unmeasurable (`n > 1`), and on nothing else.
        """

    def decoder(self) -> Decoder: ...

    def decode_whole(self, body: bytes) -> Decoded:
        """A non-streamed answer. Raises ValueError on what is no JSON object of this dialect."""
