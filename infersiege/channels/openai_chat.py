"""The dialect `openai-chat`: `/chat/completions` of OpenAI and of every engine that speaks it.

Its decoder reads the chunks of `/completions` too, which differ in one field.

`feed` is on the hot path. It decodes into structs that hold only the fields we read; msgspec skips the rest without
building it. What those structs refuse (a list where an object belongs, bad UTF-8, half a surrogate pair) is decoded
once more by a lenient path and brought into the same structs, so that the meaning of a chunk is written down once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from infersiege.channels.dialect import ANSWER, DONE, ERROR, TEXT, Decoded, Dialect, StreamFault
from infersiege.channels.faults import class_of_stream_error, server_error, whole_object
from infersiege.channels.leniency import joined, lenient_json
from infersiege.channels.openai_tools import ToolCalls
from infersiege.channels.openai_usage import Counters
from infersiege.channels.request import encoded, given, refuse
from infersiege.records import Message

_DEEPEST_TEXT = 8
"""How far text is looked for inside parts of parts."""


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    refusal: Any = None
    reasoning_details: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    finish_reason: Any = None
    message: _Delta | None = None
    usage: Any = None
    text: Any = None
    """What `/completions` has in the place of a delta."""


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    timings: Any = None
    metrics: Any = None


class _NamedChunk(_Chunk, gc=False):
    """With the model's name, which is read until it is known."""

    model: Any = None


_parse: Callable[[bytes], _Chunk] = msgspec.json.Decoder(_Chunk).decode
_parse_named: Callable[[bytes], _Chunk] = msgspec.json.Decoder(_NamedChunk).decode


class OpenAIChatDecoder:
    """State of one answer, streamed or whole."""

    __slots__ = (
        "_counters",
        "_done",
        "_fault",
        "_finish_reason",
        "_first_chunk_tokens",
        "_flags",
        "_model",
        "_parse",
        "_reasoning",
        "_refusal",
        "_seen_text",
        "_text",
        "_tools",
    )

    def __init__(self) -> None:
        self._parse = _parse_named
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._tools = ToolCalls()
        self._counters = Counters()
        self._finish_reason: str | None = None
        self._first_chunk_tokens: int | None = None
        self._seen_text = False
        self._fault: StreamFault | None = None
        self._done = False
        self._model: str | None = None
        self._flags: dict[str, None] = {}

    def feed(self, payload: bytes) -> int:
        """Take one event's data; return TEXT | ANSWER | DONE | ERROR flags.

        Raises ValueError on what is no JSON (or is nested beyond reason), and on nothing else.
        """
        parse = self._parse  # a slot called as if it were a method is looked up the slow way (CPython 3.11)
        try:
            chunk = parse(payload)
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors; [DONE] comes this way too
            return self._unusual(payload)
        choices = chunk.choices
        if not choices:
            return self._without_choices(payload, chunk)
        return self._take(chunk, choices)

    def _take(self, chunk: _Chunk, choices: list[_Choice]) -> int:
        flags = 0
        for choice in choices:
            delta = choice.delta
            if delta is None and not self._seen_text:
                delta = choice.message  # a whole answer; in a stream, one that follows deltas repeats them
            if delta is not None:
                content = delta.content
                if type(content) is str:
                    if content:
                        self._text.append(content)
                        flags |= TEXT | ANSWER
                elif content is not None:
                    flags |= self._parts(content)
                flags |= self._beside_content(delta)
            elif choice.text is not None:
                flags |= self._completion(choice.text)
            if choice.finish_reason:
                self._finish(choice)
        told = None if chunk.usage is None else self._counters.take_usage(chunk.usage)
        if chunk.timings is not None:
            timed = self._counters.take_timings(chunk.timings)
            told = timed if told is None else told
        if chunk.metrics is not None:
            self._counters.take_metrics(chunk.metrics)
        if flags and not self._seen_text:
            self._seen_text = True
            self._first_chunk_tokens = told or None
        if chunk.error and choices:  # without choices the whole object is read as an error
            flags |= self._error({"error": chunk.error})
        if self._model is None:
            self._learn_model(chunk)
        return flags

    def _completion(self, text: object) -> int:
        if type(text) is not str:
            return self._parts(text)
        if not text:
            return 0
        self._text.append(text)
        return TEXT | ANSWER

    def _beside_content(self, delta: _Delta) -> int:
        """Reasoning, tool calls and refusals: what a plain delta has not."""
        flags = 0
        # Gateways repeat one reasoning text under two or three names; the first that holds text is the one.
        if delta.reasoning_content is not None or delta.reasoning is not None or delta.reasoning_details is not None:
            text = _plain(delta.reasoning_content) or _plain(delta.reasoning) or _plain(delta.reasoning_details)
            if text:
                self._reasoning.append(text)
                flags = TEXT
        if delta.tool_calls is not None:
            flags |= self._tools.take(delta.tool_calls)
        if delta.refusal is not None and type(delta.refusal) is str and delta.refusal:
            self._refusal.append(delta.refusal)
            flags |= TEXT | ANSWER
        if delta.function_call is not None:
            flags |= self._tools.take([{"index": 0, "function": delta.function_call}])
        return flags

    def _parts(self, content: object) -> int:
        """Content that is a list of parts (text, thinking), or something else that nobody documented."""
        if not isinstance(content, list):
            self._flags["odd_content"] = None
            return 0
        flags = 0
        for part in content:
            text = _plain(part)
            if not text:
                continue
            thinking = isinstance(part, dict) and part.get("type") in ("thinking", "reasoning")
            (self._reasoning if thinking else self._text).append(text)
            flags |= TEXT if thinking else TEXT | ANSWER
        return flags

    def _finish(self, choice: _Choice) -> None:
        reason = choice.finish_reason
        if type(reason) is not str:
            self._flags["odd_finish_reason"] = None
        elif reason.lower() not in ("null", "none"):  # two clouds write null as a word on every chunk
            self._finish_reason = reason
        if choice.usage is not None:  # Moonshot puts it here
            self._counters.take_usage(choice.usage)

    def _learn_model(self, chunk: _Chunk) -> None:
        model = getattr(chunk, "model", None)
        if type(model) is str and model:
            self._model = model
            self._parse = _parse

    def _error(self, value: object) -> int:
        error = server_error(value)
        if error is None:
            return 0
        if self._fault is None:  # the first one is the cause
            self._fault = StreamFault(error_class=class_of_stream_error(error), detail=error.describe())
        return ERROR

    def _without_choices(self, payload: bytes, chunk: _Chunk) -> int:
        """An error, a bare usage chunk, or something of no meaning to us."""
        self._take(chunk, [])
        try:
            value = msgspec.json.decode(payload)
        except (ValueError, RecursionError):
            value = lenient_json(payload)
        if flags := self._error(value):
            return flags
        if chunk.usage is None and chunk.timings is None and "choices" not in value:
            self._flags["odd_payload"] = None
        return 0

    def _unusual(self, payload: bytes) -> int:
        """`[DONE]`, and everything that the structs of the fast path refuse."""
        stripped = payload.strip()
        if stripped == b"[DONE]":
            self._done = True
            return DONE
        if not stripped:
            return 0
        return self._take_value(lenient_json(stripped))

    def _take_value(self, value: object) -> int:
        if not isinstance(value, dict):
            self._flags["non_object"] = None
            return 0
        self._flags["odd_payload"] = None
        chunk = _NamedChunk(**{name: value.get(name) for name in _NamedChunk.__struct_fields__ if name != "choices"})
        choices = value.get("choices")
        choices = (
            [_lenient_choice(choice) for choice in choices if isinstance(choice, dict)]
            if isinstance(choices, list)
            else []
        )
        flags = self._take(chunk, choices)
        return flags if flags & ERROR or choices else flags | self._error(value)

    def decoded(self) -> Decoded:
        """All that was said so far."""
        odd = ("odd_tool_calls",) * self._tools.odd + ("odd_usage",) * self._counters.odd
        return Decoded(
            text=joined(self._text),
            reasoning=joined(self._reasoning),
            refusal=joined(self._refusal),
            tool_calls=self._tools.calls(),
            finish_reason=self._finish_reason,
            usage=self._counters.usage(),
            first_chunk_tokens=self._first_chunk_tokens,
            fault=self._fault,
            done=self._done,
            model=self._model,
            server_ttft_ns=self._counters.server_ttft_ns,
            flags=(*self._flags, *odd),
        )


class OpenAIChat(Dialect):
    """The dialect: request bodies in, decoders out. Holds no state."""

    name = "openai-chat"
    path = "/chat/completions"

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
        """As `Dialect` says; messages, tools and sampling are verbatim."""
        refuse(extra)
        body: dict[str, Any] = {"model": model, "messages": messages}
        if tools:
            body["tools"] = tools
        body["max_tokens"] = max_tokens
        body["stream"] = stream
        if stream and include_usage:
            body["stream_options"] = {"include_usage": True}
        return encoded(body | given(sampling) | extra)

    def decoder(self) -> OpenAIChatDecoder:
        return OpenAIChatDecoder()

    def decode_whole(self, body: bytes) -> Decoded:
        """A non-streamed answer. Raises ValueError on what is neither an answer nor an error."""
        return whole_answer(body)


def whole_answer(body: bytes) -> Decoded:
    """A non-streamed answer of chat or completions; an error object gives a Decoded with a fault.

    Raises ValueError on what is neither an answer nor an error. `first_chunk_tokens` is None: there are no chunks.
    """
    value = whole_object(body, "choices")
    decoder = OpenAIChatDecoder()
    try:
        chunk = _parse_named(body)
        decoder._take(chunk, chunk.choices or [])
        if not chunk.choices:
            decoder._error(value)
    except (ValueError, RecursionError):
        decoder._take_value(value)
    decoder._done = True
    return msgspec.structs.replace(decoder.decoded(), first_chunk_tokens=None)


def _plain(value: object, deeper: int = _DEEPEST_TEXT) -> str:
    """Text of a string, of a part with `text` (or `thinking`, `summary`, `content`), or of a list of those."""
    if type(value) is str:
        return value
    if isinstance(value, list) and deeper:
        return "".join(_plain(item, deeper - 1) for item in value)
    if isinstance(value, dict) and deeper:
        for key in ("text", "thinking", "summary", "content"):
            if value.get(key):
                return _plain(value[key], deeper - 1)
    return ""


def _lenient_choice(choice: dict[str, Any]) -> _Choice:
    return _Choice(
        delta=_lenient_delta(choice.get("delta")),
        finish_reason=choice.get("finish_reason"),
        message=_lenient_delta(choice.get("message")),
        usage=choice.get("usage"),
        text=choice.get("text"),
    )


def _lenient_delta(delta: object) -> _Delta | None:
    if not isinstance(delta, dict):
        return None
    return _Delta(**{name: delta.get(name) for name in _Delta.__struct_fields__})
