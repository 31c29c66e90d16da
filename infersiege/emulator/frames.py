"""vLLM's chat chunks as bytes, each one HTTP chunk. What is the same for all chunks of an answer is built once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

END = b"0\r\n\r\n"
"""End of a chunked body."""

FINGERPRINT = "infersiege-emulator"


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


DONE = http_chunk(b"data: [DONE]\n\n")
KEEPALIVE = http_chunk(b": keep-alive\n\n")


def event(value: Any) -> bytes:
    """One SSE event with JSON data, as one HTTP chunk."""
    return http_chunk(b"data: " + _json(value) + b"\n\n")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def usage_of(prompt: int, output: int, cached: int | None) -> dict[str, Any]:
    """OpenAI's usage object; `cached` None leaves the details out."""
    usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return usage


class Frames:
    """The chunks of one answer."""

    def __init__(self, answer_id: str, created: int, model: str, pieces: Sequence[str], tool: str | None) -> None:
        self._base = {"id": answer_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._opening = b"data: " + _json(self._base)[:-1] + b',"choices":[{"index":0,"delta":'
        self._pieces = pieces
        joined = "".join(pieces)
        self._plain = joined.isprintable() and '"' not in joined and "\\" not in joined
        """Nothing to escape: the usual case, and half a millisecond less for a long answer."""
        self._tool = tool
        self._call_id = f"chatcmpl-tool-{answer_id[9:]}"
        self._content = self._opening + b'{"content":"'
        self._reasoning = self._opening + b'{"reasoning":"'
        self._arguments = (
            self._opening + b'{"content":null,"tool_calls":[{"index":0,"function":{"arguments":"'
            if tool is not None
            else b""
        )

    def role(self, usage: dict[str, Any] | None) -> bytes:
        """The first chunk: no text yet."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        value = {**self._base, "choices": [choice]}
        if usage is not None:
            value["usage"] = usage
        return event({**value, "prompt_token_ids": None, "prompt_text": None})

    def tokens(
        self, start: int, stop: int, finish: str | None, usage: dict[str, Any] | None, *, reasoning: bool = False
    ) -> bytes:
        """The SSE event (not yet an HTTP chunk) of tokens start..stop; an answer's last has the finish reason."""
        text = self._escaped(start, stop)
        if self._tool is not None:
            delta = self._call_delta(start, stop, text)
        elif reasoning:
            delta = self._reasoning + text + b'"}'
        else:
            delta = self._content + text + b'"}'
        if finish is None and usage is None:
            return delta + b',"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        ending = b"null" if finish is None else _json(finish) + b',"stop_reason":null'
        tail = b"" if usage is None else b',"usage":' + _json(usage)
        return delta + b',"logprobs":null,"finish_reason":' + ending + b',"token_ids":null}]' + tail + b"}\n\n"

    def _escaped(self, start: int, stop: int) -> bytes:
        """Tokens as they stand inside a JSON string."""
        text = self._pieces[start] if stop - start == 1 else "".join(self._pieces[start:stop])
        return text.encode() if self._plain else _json(text)[1:-1]

    def _call_delta(self, start: int, stop: int, text: bytes) -> bytes:
        if start > 0:
            return self._arguments + text + b'"}}]}'
        function: dict[str, str] = {"name": self._tool or ""}
        call = {"id": self._call_id, "type": "function", "index": 0, "function": function}
        delta = _json({"content": None, "tool_calls": [call]})
        if stop > 1:  # the whole call in one chunk
            arguments = self._escaped(1, stop)
            delta = delta[: -len(b"}}]}")] + b',"arguments":"' + arguments + b'"}}]}'
        return self._opening + delta

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk after the last token."""
        return event({**self._base, "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT})

    def whole(self, pieces: Sequence[str], finish: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request without streaming."""
        message: dict[str, Any] = {"role": "assistant", "content": None if self._tool is not None else "".join(pieces)}
        if self._tool is not None:
            function = {"name": self._tool, "arguments": "".join(pieces[1:])}
            message["tool_calls"] = [{"id": self._call_id, "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        base = {**self._base, "object": "chat.completion"}
        return {**base, "choices": [choice], "system_fingerprint": FINGERPRINT, "usage": usage}
