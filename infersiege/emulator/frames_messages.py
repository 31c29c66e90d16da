"""`/v1/messages`: Anthropic's events, from `message_start` to `message_stop`."""

from __future__ import annotations

import json
from typing import Any

from infersiege.emulator.frames import HOLE, Counts, Frames, Part, Pattern, Script, event
from infersiege.emulator.profile import Api
from infersiege.emulator.refusal import RefusedError, anthropic_error

PING = event({"type": "ping"}, "ping")

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "tool": ("input_json_delta", "partial_json"),
}


class MessagesFrames(Frames):
    """One content block per part."""

    api = Api.MESSAGES

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        prefix = "chatcmpl-" if self.profile.name in ("vllm", "llama.cpp") else "msg_"
        self._id = prefix + script.hex_id
        self._patterns = {part.kind: Pattern(*self._delta(part, HOLE)) for part in self.parts}

    def _delta(self, part: Part, text: str) -> tuple[dict[str, Any], str]:
        kind, key = _DELTAS[part.kind]
        delta = {"type": kind, key: text}
        return {"type": "content_block_delta", "index": part.index, "delta": delta}, "content_block_delta"

    def _usage(self, counts: Counts) -> dict[str, Any]:
        """`input_tokens` leaves out what was read from the cache or written to it, where the engine tells that."""
        if not self.profile.messages_tell_cache or counts.cached is None:
            return {"input_tokens": counts.prompt, "output_tokens": counts.output}
        fresh = counts.prompt - counts.cached - counts.cache_written
        usage = {
            "input_tokens": fresh,
            "cache_read_input_tokens": counts.cached,
            "output_tokens": counts.output,
        }
        if self.profile.name == "anthropic":
            usage["cache_creation_input_tokens"] = counts.cache_written
        return usage

    def _final_usage(self, counts: Counts) -> dict[str, Any]:
        """Of `message_delta`: cumulative; engines leave out the input that `message_start` told."""
        usage = self._usage(counts)
        if self.profile.name in ("sglang", "llama.cpp") and not self.script.late_usage:
            return {"output_tokens": usage["output_tokens"]}
        return usage

    def _block(self, part: Part) -> dict[str, Any]:
        if part.kind == "text":
            return {"type": "text", "text": ""}
        if part.kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "tool_use", "id": f"toolu_{self.script.hex_id}", "name": self.script.tool, "input": {}}

    def _begin(self, part: Part) -> bytes:
        value = {"type": "content_block_start", "index": part.index, "content_block": self._block(part)}
        return event(value, "content_block_start")

    def _close(self, part: Part) -> bytes:
        signed = b""
        if part.kind == "reasoning" and self.profile.name == "anthropic":
            delta = {"type": "signature_delta", "signature": "ZW11bGF0ZWQ="}
            signed = event({"type": "content_block_delta", "index": part.index, "delta": delta}, "content_block_delta")
        return signed + event({"type": "content_block_stop", "index": part.index}, "content_block_stop")

    def _start(self, counts: Counts) -> bytes:
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.script.model,
            "stop_reason": None,
            "stop_sequence": None,
        }
        if self.script.tells_usage:
            told = counts.zero() if self.script.late_usage else counts
            message["usage"] = self._usage(told)
            if self.profile.name == "anthropic" and told.prompt:
                message["usage"]["output_tokens"] = 1  # as the cloud does: a first figure, not a count
        return event({"type": "message_start", "message": message}, "message_start")

    def opening(self, counts: Counts) -> bytes:
        """`message_start`, the first block unless it is a call (whose first token is its name), the cloud's ping."""
        first = self.parts[0]
        data = self._start(counts)
        if first.kind != "tool":
            data += self._begin(first)
        return data + (PING if self.profile.name == "anthropic" else b"")

    def tokens(self, start: int, stop: int, finish: str | None, counts: Counts | None) -> bytes:
        data = b""
        for part, low, high in self.spans(start, stop):
            if part.kind == "tool" and low == 0:
                data += self._begin(part) + self._patterns["tool"].fill(b"")
                low = 1
            elif low == part.start and part.index:
                data += self._begin(part)
            if low < high:
                data += self._patterns[part.kind].fill(self.escaped(low, high))
            if high == part.stop and part is not self.parts[-1]:
                data += self._close(part)
        if counts is not None:
            data += self._message_delta(None, counts)
        return data

    def finishing(self, finish: str | None, counts: Counts) -> bytes:
        return self._close(self.parts[-1])

    def _message_delta(self, finish: str | None, counts: Counts) -> bytes:
        value: dict[str, Any] = {
            "type": "message_delta",
            "delta": {"stop_reason": finish, "stop_sequence": None},
        }
        if self.script.tells_usage:
            value["usage"] = self._final_usage(counts)
        return event(value, "message_delta")

    def tail(self, finish: str | None, counts: Counts) -> bytes:
        return self._message_delta(finish, counts)

    def end(self, finish: str | None, counts: Counts) -> bytes:
        return event({"type": "message_stop"}, "message_stop")

    def error(self, error: RefusedError) -> bytes:
        if self.profile.name == "llama.cpp":
            return super().error(error)
        data = event(anthropic_error(self.profile, error, streamed=True), "error")
        return data + (event({"type": "message_stop"}, "message_stop") if self.profile.name == "sglang" else b"")

    def refusal(self, error: RefusedError) -> bytes:
        """SGLang's begins and ends as if it were an answer."""
        start = self._start(Counts(0, 0)) if self.profile.messages_refuse_in_stream else b""
        return start + self.error(error)

    def finish_reason(self, reason: str) -> str:
        if self.script.tool is not None and reason == "stop":
            return "tool_use"
        return _STOP_REASONS[reason]

    def whole(self, finish: str | None, counts: Counts) -> dict[str, Any]:
        content = []
        for part in self.parts:
            block = self._block(part)
            if part.kind == "tool":
                block["input"] = _object(self.text(part))
            else:
                block[part.kind.replace("reasoning", "thinking")] = self.text(part)
            content.append(block)
        value: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.script.model,
            "stop_reason": finish,
            "stop_sequence": None,
        }
        if self.script.tells_usage:
            value["usage"] = self._usage(counts)
        return value


def _object(text: str) -> Any:
    """The arguments as an object; cut ones as the text that they are."""
    try:
        return json.loads(text)
    except ValueError:
        return {"arguments": text}
