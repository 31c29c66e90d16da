"""Tool calls of one OpenAI-style answer, put together from their deltas. Pure."""

from __future__ import annotations

import json
from typing import Any

from infersiege.channels.dialect import ANSWER, TEXT
from infersiege.channels.leniency import joined


class _Call:
    """One tool call as far as it came."""

    __slots__ = ("arguments", "call_id", "name")

    def __init__(self) -> None:
        self.call_id: str | None = None
        self.name = ""
        self.arguments: list[str] = []


class ToolCalls:
    """Calls by index; names and arguments join in the order in which they came."""

    __slots__ = ("_calls", "odd")

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self.odd = False
        """Something in it was of a type that nobody documents; it was left out."""

    def take(self, deltas: object) -> int:
        """The `tool_calls` of one delta. Returns TEXT | ANSWER where it brought a name or arguments, else 0."""
        if not isinstance(deltas, list):
            self.odd = True
            return 0
        flags = 0
        for delta in deltas:
            if isinstance(delta, dict):
                flags |= self._take_one(delta)
            else:
                self.odd = True
        return flags

    def _take_one(self, delta: dict[str, Any]) -> int:
        function = delta.get("function")
        if not isinstance(function, dict):
            self.odd = self.odd or function is not None
            function = {}
        call = self._call_of(delta, function)
        call_id, name, arguments = delta.get("id"), function.get("name"), function.get("arguments")
        if type(call_id) is str and call_id and call.call_id is None:
            call.call_id = call_id
        flags = 0
        if type(name) is str and name:
            if name != call.name:  # some engines repeat it on every delta
                call.name += name
            flags = TEXT | ANSWER
        if arguments is not None and type(arguments) is not str:
            arguments = self._written(arguments)
        if arguments:
            call.arguments.append(arguments)
            flags = TEXT | ANSWER
        return flags

    def _written(self, arguments: object) -> str:
        """Arguments that came as an object (Ollama), as the JSON text that they are elsewhere."""
        try:
            return json.dumps(arguments, ensure_ascii=False)
        except RecursionError:
            self.odd = True
            return ""

    def _call_of(self, delta: dict[str, Any], function: dict[str, Any]) -> _Call:
        """The call that a delta belongs to.

        By index; without one, the last call. A new id together with a name is a new call even at a used index: Gemini
        numbers all of its parallel calls 0.
        """
        index, call_id = delta.get("index"), delta.get("id")
        if type(index) is not int:
            index = max(self._calls, default=0)
        call = self._calls.get(index)
        if call is not None and call_id and function.get("name") and call.call_id not in (None, call_id):
            index, call = max(self._calls) + 1, None
        if call is None:
            call = self._calls[index] = _Call()
        return call

    def calls(self) -> tuple[dict[str, Any], ...]:
        """In OpenAI's form, by index. Where the server gave no id, the place is one: a tool message must name it."""
        return tuple(
            {
                "id": call.call_id or f"call_{index}",
                "type": "function",
                "function": {"name": joined([call.name]), "arguments": joined(call.arguments)},
            }
            for index, call in sorted(self._calls.items())
        )
