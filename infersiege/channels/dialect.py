"""What a dialect is: it builds a request body and turns payloads into deltas. No I/O, no clock."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from infersiege.records import ErrorClass, Message

TEXT = 1
"""Payload flag: it holds generated text of any channel (content, reasoning, refusal, tool-call delta)."""
ANSWER = 2
"""Payload flag: of that, answer text (content, refusal or a tool call; not reasoning)."""
DONE = 4
"""Payload flag: the stream says that it is over (`[DONE]`)."""
ERROR = 8
"""Payload flag: an error inside the stream."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts as the server tells them. None: not told."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
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


class Decoder(Protocol):
    """State of one answer."""

    def feed(self, payload: bytes) -> int:
        """Take one event's data; return TEXT | ANSWER | DONE | ERROR flags. Raises ValueError on what is no JSON."""

    def decoded(self) -> Decoded: ...


class Dialect(Protocol):
    """One wire protocol."""

    name: str
    path: str
    """Below the API root, such as `/chat/completions`."""

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
    ) -> bytes: ...

    def decoder(self) -> Decoder: ...

    def decode_whole(self, body: bytes) -> Decoded:
        """A non-streamed answer. Raises ValueError on what is no JSON object of this dialect."""
