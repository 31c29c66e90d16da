"""`/v1/chat/completions` and `/v1/completions`: chunks with choices, in each engine's layout."""

from __future__ import annotations

from typing import Any

from infersiege.emulator.frames import (
    DONE,
    FINGERPRINT,
    HOLE,
    Counts,
    Frames,
    Part,
    Pattern,
    Script,
    event,
    timings_of,
    usage_of,
)
from infersiege.emulator.profile import Api


class ChoiceFrames(Frames):
    """What the two share: the object around the choice, usage, the end."""

    streamed_object: str
    whole_object: str
    id_prefix: str

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._with_text = self.api in self.profile.finish_with_text and script.tool is None
        bare = self.profile.name == "sglang"
        self._base: dict[str, Any] = {
            "id": script.hex_id * 2 if bare else self.id_prefix + script.hex_id,
            "object": self.streamed_object,
            "created": script.created,
            "model": script.model,
        }
        if self.profile.name in ("llama.cpp", "openai"):
            self._base["system_fingerprint"] = FINGERPRINT
        if self.profile.name == "openai":
            self._base["service_tier"] = "default"

    def chunk(self, choices: list[dict[str, Any]], counts: Counts | None = None) -> dict[str, Any]:
        """One chunk; `counts` puts usage on it."""
        value = {"choices": choices, **self._base} if self.profile.name == "llama.cpp" else dict(self._base)
        value["choices"] = choices
        if counts is not None:
            value["usage"] = usage_of(self.profile, self.api, counts)
        elif self._null_usage():
            value["usage"] = None
        return value

    def _null_usage(self) -> bool:
        if self.profile.name == "openai":
            return self.script.usage_asked
        return self.profile.name == "sglang" and self.api is Api.COMPLETIONS

    def choice(self, content: dict[str, Any], finish: str | None) -> dict[str, Any]:
        """One choice around a delta or a text."""
        name = self.profile.name
        if name == "llama.cpp" and self.api is Api.CHAT:
            return {"finish_reason": finish, "index": 0, **content}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        if name == "sglang":
            choice["matched_stop"] = None
        if name == "vllm":
            if finish is not None or self.api is Api.COMPLETIONS:
                choice["stop_reason"] = None
            if self.api is Api.COMPLETIONS:
                choice["prompt_token_ids"] = None
            choice["token_ids"] = None
        return choice

    @property
    def usage_with_last_text(self) -> bool:
        return self._with_text and self._usage_on_finish()

    def empty(self) -> dict[str, Any]:
        """A choice's content without text."""
        raise NotImplementedError

    def finishing(self, finish: str | None, counts: Counts) -> bytes:
        """The chunk with the finish reason, where it is one of its own."""
        if self._with_text or finish is None:
            return b""
        told = counts if self._usage_on_finish() or self.script.usage_on_every_chunk else None
        value = self.chunk([self.choice(self.empty(), finish)], told)
        self._sign(value)
        if self._times_here():
            value["timings"] = timings_of(counts)
        return event(value)

    def _usage_on_finish(self) -> bool:
        return self.script.tells_usage and self.script.usage_on_finish

    def _own_usage(self) -> bool:
        return self.script.tells_usage and not self.script.usage_on_finish

    def _times_here(self) -> bool:
        """llama.cpp: on the usage chunk, and where there is none, on the finish chunk."""
        return self.profile.name == "llama.cpp" and self.script.timed and not self._own_usage()

    def _sign(self, value: dict[str, Any]) -> None:
        """vLLM names its version on the last chunk."""
        if self.profile.name == "vllm" and not self._own_usage():
            value["system_fingerprint"] = FINGERPRINT

    def tail(self, finish: str | None, counts: Counts) -> bytes:
        if not self._own_usage():
            return b""
        value = self.chunk([], counts)
        if self.profile.name == "vllm":
            value["system_fingerprint"] = FINGERPRINT
        if self.profile.name == "llama.cpp" and self.script.timed:
            value["timings"] = timings_of(counts)
        return event(value)

    def end(self, finish: str | None, counts: Counts) -> bytes:
        return DONE

    def last(self, content: dict[str, Any], finish: str, counts: Counts | None) -> bytes:
        """The chunk with the last text and the finish reason."""
        value = self.chunk([self.choice(content, finish)], counts)
        self._sign(value)
        return event(value)

    def whole_of(self, choice: dict[str, Any], counts: Counts) -> dict[str, Any]:
        """The answer without streaming."""
        value = {**self._base, "object": self.whole_object, "choices": [choice]}
        if self.profile.name == "vllm":
            value["system_fingerprint"] = FINGERPRINT
        if self.script.tells_usage:
            value["usage"] = usage_of(self.profile, self.api, counts)
        if self.profile.name == "llama.cpp" and self.script.timed:
            value["timings"] = timings_of(counts)
        return value


class ChatFrames(ChoiceFrames):
    """Role chunk, deltas, the end."""

    api = Api.CHAT
    streamed_object = "chat.completion.chunk"
    whole_object = "chat.completion"
    id_prefix = "chatcmpl-"

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._call_id = f"chatcmpl-tool-{script.hex_id}" if self.profile.name == "vllm" else f"call_{script.hex_id}"
        kinds = {part.kind for part in self.parts}
        self._patterns = {
            kind: Pattern(self.chunk([self.choice({"delta": self._delta(kind, HOLE)}, None)])) for kind in kinds
        }

    def _delta(self, kind: str, text: str) -> dict[str, Any]:
        """A delta with text of this kind; of a tool call, with arguments."""
        name = self.profile.name
        quiet = {"reasoning_content": None} if name == "sglang" else {}
        if kind == "reasoning":
            return {**quiet, self.profile.reasoning_key: text}
        if kind == "text":
            return {**quiet, "content": text}
        call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
        return {"content": None, "tool_calls": [call]} if name in ("vllm", "sglang") else {"tool_calls": [call]}

    def _named_call(self, arguments: str) -> dict[str, Any]:
        """The delta that begins a tool call."""
        function = {"name": self.script.tool, "arguments": arguments}
        if self.profile.name == "vllm" and not arguments:
            del function["arguments"]
        call = {"id": self._call_id, "type": "function", "index": 0, "function": function}
        delta = {"content": None, "tool_calls": [call]}
        # OpenAI has no role chunk before a call.
        return {"role": "assistant", **delta} if self.profile.name == "openai" else delta

    def empty(self) -> dict[str, Any]:
        return {"delta": {"reasoning_content": None} if self.profile.name == "sglang" else {}}

    def opening(self, counts: Counts) -> bytes:
        name = self.profile.name
        if name == "openai" and self.script.tool is not None:
            return b""
        delta: dict[str, Any] = {"role": "assistant", "content": None if name == "llama.cpp" else ""}
        if name == "sglang":
            delta = {"reasoning_content": None, **delta}
        if name == "openai":
            delta["refusal"] = None
        value = self.chunk([self.choice({"delta": delta}, None)], counts if self.script.usage_on_every_chunk else None)
        if name == "vllm":
            del value["choices"][0]["token_ids"]
            value |= {"prompt_token_ids": None, "prompt_text": None}
        return event(value)

    def tokens(self, start: int, stop: int, finish: str | None, counts: Counts | None) -> bytes:
        return b"".join(
            self._span(part, low, high, finish if high == stop else None, counts)
            for part, low, high in self.spans(start, stop)
        )

    def _span(self, part: Part, start: int, stop: int, finish: str | None, counts: Counts | None) -> bytes:
        last = finish if self._with_text else None
        named = part.kind == "tool" and start == 0
        if last is None and counts is None and not named:
            return self._patterns[part.kind].fill(self.escaped(start, stop))
        pieces = self.script.pieces
        if named:
            delta = self._named_call("".join(pieces[1:stop]))
        else:
            delta = self._delta(part.kind, "".join(pieces[start:stop]))
        if last is not None:
            return self.last({"delta": delta}, last, counts)
        return event(self.chunk([self.choice({"delta": delta}, None)], counts))

    def whole(self, finish: str | None, counts: Counts) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for part in self.parts:
            if part.kind == "tool":
                function = {"name": self.script.tool, "arguments": self.text(part)}
                message["tool_calls"] = [{"id": self._call_id, "type": "function", "function": function}]
            else:
                message["content" if part.kind == "text" else self.profile.reasoning_key] = self.text(part)
        if self.profile.name == "sglang":
            message.setdefault("reasoning_content", None)
        choice = self.choice({"message": message}, finish)
        return self.whole_of(choice, counts)


class CompletionFrames(ChoiceFrames):
    """Texts, the end. Reasoning stands in the text here: this protocol has no word for it."""

    api = Api.COMPLETIONS
    streamed_object = "text_completion"
    whole_object = "text_completion"
    id_prefix = "cmpl-"

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        if self.profile.name == "llama.cpp":
            self._base["id"] = f"chatcmpl-{script.hex_id}"
        self._pattern = Pattern(self.chunk([self.choice({"text": HOLE}, None)]))

    def empty(self) -> dict[str, Any]:
        return {"text": ""}

    def opening(self, counts: Counts) -> bytes:
        return b""

    def tokens(self, start: int, stop: int, finish: str | None, counts: Counts | None) -> bytes:
        last = finish if self._with_text else None
        if last is None and counts is None:
            return self._pattern.fill(self.escaped(start, stop))
        content = {"text": "".join(self.script.pieces[start:stop])}
        if last is not None:
            return self.last(content, last, counts)
        return event(self.chunk([self.choice(content, None)], counts))

    def whole(self, finish: str | None, counts: Counts) -> dict[str, Any]:
        choice = self.choice({"text": "".join(self.script.pieces)}, finish)
        return self.whole_of(choice, counts)
