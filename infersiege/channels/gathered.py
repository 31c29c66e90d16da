"""What one answer said so far: the state that the decoders of protocols with typed events share. Pure."""

from __future__ import annotations

from infersiege.channels.dialect import ANSWER, ERROR, TEXT, Decoded, StreamFault, Usage
from infersiege.channels.faults import class_of_stream_error, server_error
from infersiege.channels.leniency import joined
from infersiege.channels.openai_tools import ToolCalls
from infersiege.records import ErrorClass

SPOKEN = TEXT | ANSWER


class Gathered:
    """Text of each channel, tool calls, the first fault, and how it ended."""

    __slots__ = ("_done", "_fault", "_finish_reason", "_flags", "_model", "_reasoning", "_refusal", "_text", "_tools")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._tools = ToolCalls()
        self._finish_reason: str | None = None
        self._fault: StreamFault | None = None
        self._done = False
        self._model: str | None = None
        self._flags: dict[str, None] = {}

    def _say(self, text: object) -> int:
        return self._add(self._text, text, SPOKEN)

    def _think(self, text: object) -> int:
        return self._add(self._reasoning, text, TEXT)

    def _refuse(self, text: object) -> int:
        return self._add(self._refusal, text, SPOKEN)

    def _add(self, channel: list[str], text: object, flags: int) -> int:
        if type(text) is not str:
            if text is not None:
                self._flags["odd_content"] = None
            return 0
        if not text:
            return 0
        channel.append(text)
        return flags

    def _finish(self, reason: object) -> None:
        if type(reason) is str and reason:
            self._finish_reason = reason
        elif reason is not None:
            self._flags["odd_finish_reason"] = None

    def _learn_model(self, model: object) -> None:
        if self._model is None and type(model) is str and model:
            self._model = model

    def _error(self, value: object, otherwise: str | None = None) -> int:
        """Take a JSON value as an error. `otherwise`: what to say if it is none; None: then nothing happened."""
        error = server_error(value)
        if error is None and otherwise is None:
            return 0
        if self._fault is None:  # the first one is the cause
            if error is not None:
                self._fault = StreamFault(error_class=class_of_stream_error(error), detail=error.describe())
            else:
                self._fault = StreamFault(error_class=ErrorClass.STREAM_ERROR, detail=otherwise or "")
        return ERROR

    def _closing_mark(self) -> None:
        """`[DONE]`, which is no end of these protocols: engines send it after an error, gateways after everything."""
        if self._finish_reason is not None or self._fault is not None:
            self._done = True

    def _gathered(
        self, usage: Usage | None, *, end_event: str, odd_usage: bool, server_ttft_ns: int | None = None
    ) -> Decoded:
        odd = ("odd_tool_calls",) * self._tools.odd + ("odd_usage",) * odd_usage
        return Decoded(
            text=joined(self._text),
            reasoning=joined(self._reasoning),
            refusal=joined(self._refusal),
            tool_calls=self._tools.calls(),
            finish_reason=self._finish_reason,
            usage=usage,
            first_chunk_tokens=None,
            fault=self._fault,
            done=self._done,
            model=self._model,
            server_ttft_ns=server_ttft_ns,
            flags=(*self._flags, *odd),
            end_event=end_event,
        )
