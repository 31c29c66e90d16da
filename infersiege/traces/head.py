"""What a trace file begins with: enough to tell its format."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from infersiege.traces.values import decode_json


class Outline(NamedTuple):
    """What a JSON document begins with, as far as the head of a file shows it."""

    array: bool
    """It is an array; `keys` are those of its first element."""
    keys: frozenset[str]
    """Keys of the object, at its own level; empty: it is no object."""
    values: dict[str, str]
    """Of these, what the strings, numbers, true, false and null say, as written (strings without their quotes)."""


class Head:
    """The first bytes of a file, decoded once for all formats that look at them."""

    def __init__(self, data: bytes) -> None:
        text = data.decode("utf-8-sig", errors="replace")
        self.text = text
        # Not splitlines: JSON strings may hold U+2028 and other ends of line as they are.
        lines = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
        self.first_number, self.first_line = next(((number, line) for number, line in lines if line), (1, ""))
        self.row: Any = None
        """The first line as JSON, None if it is none (or is longer than the head)."""
        self.fault: str | None = None
        """Why the first line is no JSON."""
        try:
            self.row = decode_json(self.first_line)
        except ValueError as error:
            self.fault = str(error)
        self.outline = outline_of(text)
        """Of the document, or of the first row of JSON Lines."""

    def keys(self) -> frozenset[str]:
        """Keys of the first row, where it is an object."""
        return frozenset(self.row) if isinstance(self.row, dict) else frozenset()


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)


def outline_of(text: str) -> Outline:
    """Keys of the first object of a JSON document, which may be cut anywhere; nothing for what is no JSON."""
    tokens = _TOKEN.finditer(text)
    array = False
    depth = 0
    keys: list[str] = []
    values: dict[str, str] = {}
    wants_key = False
    for match in tokens:
        token = match.group()
        if depth == 0:
            if token == "[" and not array:
                array = True
                continue
            if token != "{":
                break
            depth, wants_key = 1, True
        elif token in "{[":
            depth += 1
        elif token in "}]":
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and token == ",":
            wants_key = True
        elif depth == 1 and wants_key and token.startswith('"'):
            keys.append(token[1:-1])
            wants_key = False
        elif depth == 1 and not wants_key and token != ":" and keys:
            values[keys[-1]] = token.strip('"')
    return Outline(array, frozenset(keys), values)
