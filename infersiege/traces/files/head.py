"""What a trace file begins with: enough to tell its format."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from infersiege.traces.files.values import decode_json

HEAD_TEXT_BYTES = 4 << 20
"""What is looked at as text, at most: of an array that is one line, or of a first line that is longer."""


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

    def __init__(self, data: bytes, *, cut: bool = False) -> None:
        """`data` ends with a line, or there is a line end in it; `cut`: it is the beginning of one line."""
        text = data[:HEAD_TEXT_BYTES].decode("utf-8-sig", errors="replace")
        self.text = text
        self.cut = cut
        """The first line is longer than a row may be, or an array that is too long to be decoded for this."""
        # Not splitlines: JSON strings may hold U+2028 and other ends of line as they are.
        lines = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
        self.first_number, self.first_line = next(((number, line) for number, line in lines if line), (1, ""))
        self.row: Any = None
        """The first line as JSON, None if it is none, or is cut."""
        self.fault: str | None = None
        """Why the first line is no JSON."""
        try:
            if not cut:
                self.row = decode_json(data if len(data) > HEAD_TEXT_BYTES else self.first_line)
        except ValueError as error:
            self.fault = str(error)
        self.outline = outline_of(text)
        """Of the document, or of the first row of JSON Lines."""

    def keys(self) -> frozenset[str]:
        """Keys of the first row, where it is an object."""
        return frozenset(self.row) if isinstance(self.row, dict) else frozenset()


_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("|\\?\Z)|[\[\]{}:,]|[^\s\[\]{}:,"]++', re.DOTALL)
"""A string, whose end (group 1) may be that of the text; a mark; a number or word. Possessive: what a plain repetition
keeps to go back to took a hundred bytes for each character of a string."""


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
        if match[1] is not None and match[1] != '"':
            break
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
