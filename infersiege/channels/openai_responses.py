"""The dialect `openai-responses`: `/responses` of OpenAI, and of the engines that speak it.

As in `openai_chat`, events are decoded into a struct of the fields we read, and what it refuses by a lenient path into
the same struct. Deltas are what counts; the whole texts that follow them are read only where no delta came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from infersiege.channels import responses_request
from infersiege.channels.dialect import ANSWER, DONE, TEXT, Decoded, Dialect
from infersiege.channels.faults import whole_object
from infersiege.channels.gathered import Gathered
from infersiege.channels.leniency import lenient_json
from infersiege.channels.openai_usage import Counters
from infersiege.records import Message

_REASONING = frozenset(
    {"response.reasoning_text.delta", "response.reasoning_summary_text.delta"}
    | {"response.reasoning.delta", "response.reasoning_summary.delta"}
)
_ARGUMENTS = frozenset(
    {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
    | {"response.mcp_call_arguments.delta"}
)
_BEGINS = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_CALLS = frozenset({"function_call", "custom_tool_call", "mcp_call"})


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    delta: Any = None
    output_index: Any = None
    item: Any = None
    response: Any = None
    error: Any = None
    timings: Any = None


_parse: Callable[[bytes], _Event] = msgspec.json.Decoder(_Event).decode


class ResponsesDecoder(Gathered):
    """State of one answer, streamed or whole."""

    __slots__ = ("_counters", "_reasoning_kind")

    def __init__(self) -> None:
        super().__init__()
        self._counters = Counters()
        self._reasoning_kind: str | None = None

    def feed(self, payload: bytes) -> int:
        """Take one event's data; return TEXT | ANSWER | DONE | ERROR flags.

        Raises ValueError on what is no JSON (or is nested beyond reason), and on nothing else.
        """
        try:
            event = _parse(payload)
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return self._unusual(payload)
        if event.type == "response.output_text.delta":
            delta = event.delta
            if type(delta) is str and delta:
                self._text.append(delta)
                return TEXT | ANSWER
        return self._event(event, payload)

    def _event(self, event: _Event, payload: bytes) -> int:
        kind = event.type
        if type(kind) is not str or kind == "error":
            return self._untyped(kind, payload)
        if kind == "response.output_text.delta":
            return self._say(event.delta)
        if kind in _REASONING:
            return self._reason(kind, event.delta)
        if kind == "response.refusal.delta":
            return self._refuse(event.delta)
        if kind in _ARGUMENTS:
            return self._arguments(event)
        if kind == "response.output_item.added":
            return self._item_begins(event)
        if kind == "response.output_item.done":
            return self._item_ends(event)
        if kind in _ENDS:
            return self._end(kind, event)
        if kind in _BEGINS and isinstance(event.response, dict):
            self._learn_model(event.response.get("model"))
        elif event.error:
            return self._error(lenient_json(payload))
        return 0

    def _untyped(self, kind: object, payload: bytes) -> int:
        """An error, or something of no meaning to us."""
        if flags := self._error(lenient_json(payload), "an error without a message" if kind == "error" else None):
            return flags
        self._flags["odd_payload"] = None
        return 0

    def _reason(self, kind: str, delta: object) -> int:
        """One spelling per answer: a summary that comes beside the reasoning itself says it a second time."""
        if self._reasoning_kind not in (None, kind):
            return 0
        flags = self._think(delta.get("text") if isinstance(delta, dict) else delta)
        if flags:
            self._reasoning_kind = kind
        return flags

    def _arguments(self, event: _Event) -> int:
        if not event.delta:
            return 0
        return self._tools.take([{"index": event.output_index, "function": {"arguments": event.delta}}])

    def _item_begins(self, event: _Event) -> int:
        item = event.item
        if not isinstance(item, dict) or not _is_call(item):
            return 0
        return self._tools.take([_call(event.output_index, item, arguments=False)])

    def _item_ends(self, event: _Event) -> int:
        """An item that is complete: read where nothing of it came before."""
        item = event.item
        if not isinstance(item, dict):
            return 0
        if _is_call(item):
            call = _call(event.output_index, item, arguments=True)
            begun = next((one for one in self._tools.calls() if one["id"] == call["id"]), None)
            if begun is not None:
                if begun["function"]["arguments"]:
                    return 0
                call["function"].pop("name")
            return self._tools.take([call])
        return self._item(event.output_index, item)

    def _item(self, index: object, item: dict[str, Any]) -> int:
        kind = item.get("type")
        if kind == "message" and not self._text and not self._refusal:
            parts = item.get("content")
            parts = [{"type": "output_text", "text": parts}] if isinstance(parts, str) else parts
            flags = 0
            for part in parts if isinstance(parts, list) else []:
                if isinstance(part, dict):
                    flags |= self._refuse(part["refusal"]) if part.get("refusal") else self._say(part.get("text"))
            return flags
        if kind == "reasoning" and not self._reasoning:
            parts = item.get("content") or item.get("summary")
            texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
            flags = 0
            for text in texts:
                flags |= self._think(text)
            return flags
        if _is_call(item):
            return self._tools.take([_call(index, item, arguments=True)])
        return 0

    def _end(self, kind: str, event: _Event) -> int:
        response = event.response if isinstance(event.response, dict) else {}
        flags = 0
        if not (self._text or self._reasoning or self._refusal or self._tools.calls()):
            flags = self._output(response)
        if event.timings is not None:  # llama.cpp
            self._counters.take_timings(event.timings)
        self._done = True
        return flags | DONE | self._conclude(response, kind.removeprefix("response."))

    def _output(self, response: dict[str, Any]) -> int:
        output = response.get("output")
        flags = 0
        if isinstance(output, list):
            texts, refusals = self._text, self._refusal
            for index, item in enumerate(output):
                if isinstance(item, dict):
                    # Several messages are one text, so each is read as if it were the first.
                    self._text, self._refusal = [], []
                    flags |= self._item(index, item)
                    texts += self._text
                    refusals += self._refusal
            self._text, self._refusal = texts, refusals
        return flags

    def _conclude(self, response: dict[str, Any], kind: str) -> int:
        """Usage, model, the reason of the end; ERROR if it failed. `kind`: what the event's name says."""
        self._learn_model(response.get("model"))
        usage = response.get("usage")
        if isinstance(usage, dict):
            self._counters.take_usage(
                {
                    "prompt_tokens": usage.get("input_tokens"),
                    "prompt_tokens_details": usage.get("input_tokens_details"),
                    "completion_tokens": usage.get("output_tokens"),
                    "completion_tokens_details": usage.get("output_tokens_details"),
                }
            )
        elif usage is not None:
            self._counters.odd = True
        status = response.get("status")
        if "failed" in (status, kind) or response.get("error"):
            return self._error({"error": response.get("error")}, "the response failed without a reason")
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        # vLLM sends `response.completed` with the status `incomplete`: the reason says most, the event's name least.
        self._finish(reason or status or kind)
        return 0

    def _unusual(self, payload: bytes) -> int:
        """Everything that the struct of the fast path refuses, and a `[DONE]`."""
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
        return self._event(_Event(**{name: value.get(name) for name in _Event.__struct_fields__}), stripped)

    def take_whole(self, value: dict[str, Any]) -> None:
        """A non-streamed answer, or an error in its place."""
        self._done = True
        if not isinstance(value.get("output"), list):
            self._error(value)
            return
        self._output(value)
        self._conclude(value, "completed")

    def decoded(self) -> Decoded:
        """All that was said so far."""
        counters = self._counters
        return self._gathered(
            counters.usage(),
            end_event="response.completed",
            odd_usage=counters.odd,
            server_ttft_ns=counters.server_ttft_ns,
        )


def _is_call(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    return type(kind) is str and kind in _CALLS


def _call(index: object, item: dict[str, Any], *, arguments: bool) -> dict[str, Any]:
    function = {"name": item.get("name")}
    if arguments:
        function["arguments"] = item.get("arguments") or item.get("input")
    return {"index": index, "id": item.get("call_id") or item.get("id"), "function": function}


class OpenAIResponses(Dialect):
    """The dialect: request bodies in, decoders out. Holds no state."""

    name = "openai-responses"
    path = "/responses"
    prompt_fields = ("input", "instructions", "previous_response_id", "conversation")
    left_out = MappingProxyType(
        {"seed": "the Responses API has no seed", "stop": "the Responses API has no stop strings"}
    )
    least_output_tokens = 16

    def request_fields(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """`tool_choice`, `response_format`, reasoning and sampling in its words; it refuses the rest."""
        return responses_request.fields(extra)

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
        return responses_request.body(
            model=model,
            messages=messages,
            tools=tools,
            max_tokens=max_tokens,
            stream=stream,
            sampling=sampling,
            extra=extra,
        )

    def decoder(self) -> ResponsesDecoder:
        return ResponsesDecoder()

    def decode_whole(self, body: bytes) -> Decoded:
        """A non-streamed answer; an error object gives a Decoded with a fault.

        Raises ValueError on what is neither an answer nor an error.
        """
        value = whole_object(body, "output")
        decoder = ResponsesDecoder()
        decoder.take_whole(value)
        return decoder.decoded()
