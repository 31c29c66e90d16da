"""Tool schemas for recordings that have none: made from the calls seen in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from infersiege.records import Message


class CalledTools:
    """What calls have shown of each function: its argument names, their JSON types, which of them every call gave."""

    def __init__(self) -> None:
        self._types: dict[str, dict[str, set[str]]] = {}
        self._always: dict[str, set[str]] = {}

    def add(self, messages: Iterable[Message]) -> None:
        """Take note of the tool calls in OpenAI's form; the order in which messages are added does not matter."""
        for message in messages:
            for call in message.get("tool_calls") or ():
                function = call["function"]
                name, arguments = function["name"], _arguments(function.get("arguments"))
                types = self._types.setdefault(name, {})
                for key, value in arguments.items():
                    types.setdefault(key, set()).add(_json_type(value))
                self._always[name] = self._always.get(name, set(arguments)) & set(arguments)

    def schemas(self) -> tuple[dict[str, Any], ...]:
        """One definition for each function, by name; empty where nothing was called."""
        return tuple(self._schema(name) for name in sorted(self._types))

    def _schema(self, name: str) -> dict[str, Any]:
        return {
            "type": "function",
            "function": {
                "name": name,
                "description": name.replace("_", " "),
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": min(types)} if len(types) == 1 else {}
                        for key, types in sorted(self._types[name].items())
                    },
                    "required": sorted(self._always[name]),
                },
            },
        }


def _arguments(raw: object) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw) if isinstance(raw, str) else raw
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    return "array" if isinstance(value, list) else "object"
