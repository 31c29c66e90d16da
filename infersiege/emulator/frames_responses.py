"""`/v1/responses`: OpenAI's events, from `response.created` to `response.completed`, each with a number."""

from __future__ import annotations

from typing import Any

from infersiege.emulator.frames import HOLE, NUMBER, Counts, Frames, Part, Pattern, Script, event
from infersiege.emulator.profile import Api
from infersiege.emulator.refusal import RefusedError, error_object

_REASONS = {"stop": "completed", "tool_calls": "completed", "length": "max_output_tokens"}


class ResponsesFrames(Frames):
    """One output item per part."""

    api = Api.RESPONSES

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._number = 0
        summary = self.profile.name == "openai"
        self._deltas = {
            "text": "response.output_text",
            "reasoning": "response.reasoning_summary_text" if summary else "response.reasoning_text",
            "tool": "response.function_call_arguments",
        }
        self._patterns = {part.kind: self._pattern(part) for part in self.parts}

    def _pattern(self, part: Part) -> Pattern:
        kind = f"{self._deltas[part.kind]}.delta"
        value = {**self._place(part), "delta": HOLE, "sequence_number": NUMBER, "type": kind}
        return Pattern(value, kind)

    def _place(self, part: Part) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._item_id(part), "output_index": part.index}
        if part.kind == "text":
            place["content_index"] = 0
        elif part.kind == "reasoning":
            place["summary_index" if self.profile.name == "openai" else "content_index"] = 0
        return place

    def _item_id(self, part: Part) -> str:
        return {"text": "msg_", "reasoning": "rs_", "tool": "fc_"}[part.kind] + self.script.hex_id

    def _event(self, kind: str, **fields: Any) -> bytes:
        value = {**fields, "sequence_number": self._number, "type": kind}
        self._number += 1
        return event(value, kind)

    def _item(self, part: Part, *, done: bool) -> dict[str, Any]:
        text = self.text(part) if done else ""
        status = "completed" if done else "in_progress"
        item: dict[str, Any] = {"id": self._item_id(part), "status": status}
        if part.kind == "tool":
            call_id = f"call_{self.script.hex_id}"
            return {**item, "type": "function_call", "call_id": call_id, "name": self.script.tool, "arguments": text}
        if part.kind == "text":
            content = [self._text_part(text)] if done else []
            return {**item, "type": "message", "role": "assistant", "content": content}
        if self.profile.name == "openai":
            summary = [{"type": "summary_text", "text": text}] if done else []
            return {**item, "type": "reasoning", "summary": summary}
        content = [{"type": "reasoning_text", "text": text}] if done else []
        return {**item, "type": "reasoning", "summary": [], "content": content}

    @staticmethod
    def _text_part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _response(self, status: str, finish: str | None, counts: Counts | None) -> dict[str, Any]:
        over = counts is not None
        value: dict[str, Any] = {
            "id": f"resp_{self.script.hex_id}",
            "object": "response",
            "created_at": self.script.created,
            "model": self.script.model,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": finish} if status == "incomplete" else None,
            "output": [self._item(part, done=True) for part in self.parts] if over else [],
            "usage": None,
        }
        if counts is not None and self.script.tells_usage:
            value["usage"] = self._usage(counts)
        return value

    def _usage(self, counts: Counts) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "input_tokens": counts.prompt,
            "output_tokens": counts.output,
            "output_tokens_details": {"reasoning_tokens": counts.reasoning},
            "total_tokens": counts.prompt + counts.output,
        }
        if counts.cached is not None:
            usage["input_tokens_details"] = {"cached_tokens": counts.cached}
        return usage

    def opening(self, counts: Counts) -> bytes:
        data = b"".join(
            self._event(kind, response=self._response("in_progress", None, None))
            for kind in ("response.created", "response.in_progress")
        )
        return data if self.parts[0].kind == "tool" else data + self._begin(self.parts[0])

    def _begin(self, part: Part) -> bytes:
        item = self._item(part, done=False)
        data = self._event("response.output_item.added", output_index=part.index, item=item)
        if part.kind == "text":
            data += self._event("response.content_part.added", **self._place(part), part=self._text_part(""))
        return data

    def _close(self, part: Part) -> bytes:
        text = self.text(part)
        done = {"arguments": text} if part.kind == "tool" else {"text": text}
        data = self._event(f"{self._deltas[part.kind]}.done", **self._place(part), **done)
        if part.kind == "text":
            data += self._event("response.content_part.done", **self._place(part), part=self._text_part(text))
        item = self._item(part, done=True)
        return data + self._event("response.output_item.done", output_index=part.index, item=item)

    def tokens(self, start: int, stop: int, finish: str | None, counts: Counts | None) -> bytes:
        """`counts` changes nothing: this protocol has no usage but at the end."""
        data = b""
        for part, low, high in self.spans(start, stop):
            if part.kind == "tool" and low == 0:
                data += self._begin(part)
                low = 1
            elif low == part.start and part.index:
                data += self._begin(part)
            if low < high:
                data += self._patterns[part.kind].fill(*self._holes(part, self.escaped(low, high)))
                self._number += 1
            if high == part.stop and part is not self.parts[-1]:
                data += self._close(part)
        return data

    def _holes(self, part: Part, text: bytes) -> tuple[bytes, bytes]:
        return text, b"%d" % self._number

    def finishing(self, finish: str | None, counts: Counts) -> bytes:
        return self._close(self.parts[-1])

    def end(self, finish: str | None, counts: Counts) -> bytes:
        """vLLM says `response.completed` of an incomplete answer too."""
        status = _status(finish)
        kind = "response.completed" if self.profile.name == "vllm" or status != "incomplete" else "response.incomplete"
        return self._event(kind, response=self._response(status, finish, counts))

    def error(self, error: RefusedError) -> bytes:
        if self.profile.name != "openai":
            return super().error(error)
        value = error_object(self.profile, error)
        failed = self._response("failed", None, None)
        failed["error"] = {"code": value["code"] or value["type"], "message": value["message"]}
        return self._event("error", **{**value, "type": "error"}) + self._event("response.failed", response=failed)

    def finish_reason(self, reason: str) -> str:
        return _REASONS[reason]

    def whole(self, finish: str | None, counts: Counts) -> dict[str, Any]:
        return self._response(_status(finish), finish, counts)


def _status(finish: str | None) -> str:
    """The status that goes with a reason; a reason that is neither is the status."""
    if finish is None:
        return "in_progress"
    return "incomplete" if finish in ("max_output_tokens", "content_filter") else finish
