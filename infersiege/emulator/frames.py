"""What all protocols share in writing an answer as events: patterns, parts, counts. Bytes only, no clock.

Most events of an answer differ in their text alone, so the JSON around it is built once (`Pattern`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from infersiege.emulator.profile import PROFILES, Api, Profile
from infersiege.emulator.refusal import RefusedError, error_object

END = b"0\r\n\r\n"
"""End of a chunked body."""

FINGERPRINT = "infersiege-emulator"
DONE = b"data: [DONE]\n\n"

HOLE = "\ue000hole\ue001"
"""Stands for text inside a JSON string."""
NUMBER = "\ue000number\ue001"
"""Stands for a number; it goes with the quotes around it."""


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def event(value: Any, name: str | None = None) -> bytes:
    """One SSE event with JSON data."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encoded(value) + b"\n\n"


class Pattern:
    """An event with holes: build it once, fill it often."""

    def __init__(self, value: Any, name: str | None = None) -> None:
        data = event(value, name).replace(b'"%b"' % NUMBER.encode(), HOLE.encode())
        self._parts = data.split(HOLE.encode())

    def fill(self, *values: bytes) -> bytes:
        """The event with these bytes in its holes, in order."""
        if len(values) == 1:
            before, after = self._parts
            return before + values[0] + after
        filled = [self._parts[0]]
        for value, part in zip(values, self._parts[1:], strict=True):
            filled += (value, part)
        return b"".join(filled)


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens so far. None: not told."""

    prompt: int
    output: int
    cached: int | None = None
    cache_written: int = 0
    reasoning: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0

    def zero(self) -> Counts:
        """What a gateway tells that does not count."""
        return Counts(0, 0, None if self.cached is None else 0)


@dataclass(frozen=True, slots=True)
class Part:
    """A run of tokens of one kind; an answer is one or two of them."""

    kind: str
    """`reasoning`, `text` or `tool`."""
    start: int
    stop: int
    index: int


@dataclass(frozen=True, slots=True)
class Script:
    """Everything about one answer that its writing needs."""

    number: int
    """Of the request; ids are made of it."""
    created: int
    model: str
    pieces: Sequence[str]
    tool: str | None = None
    reasoning: int = 0
    """So many leading tokens are reasoning."""
    profile: Profile = field(default_factory=lambda: PROFILES["vllm"])
    tells_usage: bool = True
    usage_on_every_chunk: bool = False
    usage_on_finish: bool = False
    usage_asked: bool = False
    """By `stream_options.include_usage`: OpenAI and SGLang then put a null on the other chunks."""
    late_usage: bool = False
    """Counts that usually come at the start are zero there."""
    timed: bool = True
    """llama.cpp's `timings` are told."""

    @property
    def hex_id(self) -> str:
        return f"{self.number:016x}"

    def parts(self) -> list[Part]:
        end = len(self.pieces)
        if self.tool is not None:
            return [Part("tool", 0, end, 0)]
        split = min(self.reasoning, end)
        spans = [("reasoning", 0, split), ("text", split, end)]
        return [Part(*span, index) for index, span in enumerate(span for span in spans if span[1] < span[2])]


class Frames(ABC):
    """The events of one answer, in the order of its methods. Each gives SSE bytes, often none."""

    api: Api

    def __init__(self, script: Script) -> None:
        self.script = script
        self.profile = script.profile
        self.parts = script.parts()
        joined = "".join(script.pieces)
        self._plain = joined.isprintable() and '"' not in joined and "\\" not in joined
        """Nothing to escape: the usual case, and half a millisecond less for a long answer."""

    @property
    def usage_with_last_text(self) -> bool:
        """Whether the chunk with the last text tells usage even where the others do not."""
        return False

    @abstractmethod
    def opening(self, counts: Counts) -> bytes:
        """Before the first token."""

    @abstractmethod
    def tokens(self, start: int, stop: int, finish: str | None, counts: Counts | None) -> bytes:
        """Tokens start..stop. `finish`: these are the last. `counts`: where usage is on this chunk."""

    def finishing(self, finish: str | None, counts: Counts) -> bytes:
        """Right after the last token."""
        return b""

    def tail(self, finish: str | None, counts: Counts) -> bytes:
        """Usage, where it has an event of its own."""
        return b""

    @abstractmethod
    def end(self, finish: str | None, counts: Counts) -> bytes:
        """The mark that nothing follows."""

    @abstractmethod
    def whole(self, finish: str | None, counts: Counts) -> dict[str, Any]:
        """The answer to a request without streaming."""

    def error(self, error: RefusedError) -> bytes:
        """An error inside the stream, and the end that this engine gives it."""
        data = event({"error": error_object(self.profile, error, streamed=True)})
        return data + (DONE if self.profile.error_then_done else b"")

    def refusal(self, error: RefusedError) -> bytes:
        """An error in the place of all events."""
        return self.error(error)

    def finish_reason(self, reason: str) -> str:
        """The reason of the end in the words of this protocol."""
        return reason

    def escaped(self, start: int, stop: int) -> bytes:
        """Tokens as they stand inside a JSON string."""
        pieces = self.script.pieces
        text = pieces[start] if stop - start == 1 else "".join(pieces[start:stop])
        return text.encode() if self._plain else encoded(text)[1:-1]

    def text(self, part: Part) -> str:
        """All of a part; of a tool call its arguments."""
        start = part.start + 1 if part.kind == "tool" else part.start
        return "".join(self.script.pieces[start : part.stop])

    def spans(self, start: int, stop: int) -> Iterator[tuple[Part, int, int]]:
        """The pieces of start..stop that lie in one part each."""
        for part in self.parts:
            low, high = max(start, part.start), min(stop, part.stop)
            if low < high:
                yield part, low, high


def usage_of(profile: Profile, api: Api, counts: Counts) -> dict[str, Any]:
    """The usage object of chat and completions."""
    usage: dict[str, Any] = {
        "prompt_tokens": counts.prompt,
        "total_tokens": counts.prompt + counts.output,
        "completion_tokens": counts.output,
    }
    if counts.cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": counts.cached}
    if profile.name == "sglang":
        usage.setdefault("prompt_tokens_details", None)
        usage["reasoning_tokens"] = counts.reasoning
        if api is Api.CHAT:
            usage["completion_tokens_details"] = None
    elif profile.name == "openai" or (counts.reasoning and profile.name == "vllm"):
        usage["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning}
    return usage


def timings_of(counts: Counts) -> dict[str, Any]:
    """llama.cpp's `timings`."""
    cached = counts.cached or 0
    fresh = counts.prompt - cached
    return {
        "cache_n": cached,
        "prompt_n": fresh,
        "prompt_ms": counts.prefill_ms,
        "prompt_per_token_ms": counts.prefill_ms / max(fresh, 1),
        "prompt_per_second": fresh / max(counts.prefill_ms, 1e-6) * 1e3,
        "predicted_n": counts.output,
        "predicted_ms": counts.decode_ms,
        "predicted_per_token_ms": counts.decode_ms / max(counts.output, 1),
        "predicted_per_second": counts.output / max(counts.decode_ms, 1e-6) * 1e3,
    }
