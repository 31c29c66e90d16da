"""Where each key of a TOML document stands: what `tomllib` does not tell.

The scanner takes only text that `tomllib` has accepted, so it needs no error handling and only enough grammar to walk
over values: strings, arrays, inline tables, comments (https://toml.io/en/v1.0.0).
"""

from __future__ import annotations

import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys from the root; an int is an index into an array."""


class Position(NamedTuple):
    """1-based place in the file."""

    line: int
    column: int


def positions(text: str) -> dict[KeyPath, Position]:
    """Give the place of every table, key and array item of a valid TOML document, in file order.

    A table that is opened only by a longer name (`[a.b]` for `a`) has the place of that name.
    """
    return _Scanner(text).scan()


def split_key(text: str) -> tuple[str, ...]:
    """Parts of a dotted TOML key, `a."b.c".d` -> ("a", "b.c", "d"). Raises tomllib.TOMLDecodeError."""
    value: object = tomllib.loads(f"{text} = 0")
    parts: list[str] = []
    while isinstance(value, dict):
        if len(value) != 1:
            raise tomllib.TOMLDecodeError("not one key")
        key, value = next(iter(value.items()))
        parts.append(key)
    return tuple(parts)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.starts = [0, *(index + 1 for index, char in enumerate(self.text) if char == "\n")]
        self.found: dict[KeyPath, Position] = {}
        self.arrays: dict[KeyPath, int] = {}
        """Last index of each array of tables."""

    def scan(self) -> dict[KeyPath, Position]:
        table: KeyPath = ()
        while self._skip_space():
            if self.text.startswith("[[", self.at):
                table = self._header(2)
            elif self.text[self.at] == "[":
                table = self._header(1)
            else:
                self._pair(table)
        return self.found

    def _mark(self, path: KeyPath, at: int, *, again: bool = False) -> None:
        if again or path not in self.found:
            self.found.pop(path, None)
            line = bisect_right(self.starts, at)
            self.found[path] = Position(line, at - self.starts[line - 1] + 1)

    def _skip_space(self) -> bool:
        """Go to the next character that means something; False at the end."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in " \t\r\n":
                self.at += 1
            else:
                return True
        return False

    def _key(self, end: str) -> tuple[str, ...]:
        """A dotted key up to (and past) the character that ends it."""
        start = self.at
        while self.text[self.at] != end:
            if self.text[self.at] in "\"'":
                self._string()
            else:
                self.at += 1
        self.at += 1
        return split_key(self.text[start : self.at - 1].strip())

    def _header(self, brackets: int) -> KeyPath:
        start = self.at
        self.at += brackets
        parts = self._key("]")
        self.at += brackets - 1
        path: KeyPath = ()
        for part in parts[:-1]:
            path = (*path, part)
            self._mark(path, start)
            if path in self.arrays:
                path = (*path, self.arrays[path])
        path = (*path, parts[-1])
        if brackets == 1:
            self._mark(path, start, again=True)
            return path
        self._mark(path, start)
        self.arrays[path] = self.arrays.get(path, -1) + 1
        path = (*path, self.arrays[path])
        self._mark(path, start)
        return path

    def _pair(self, table: KeyPath) -> None:
        start = self.at
        path = table
        for part in self._key("="):
            path = (*path, part)
            self._mark(path, start)
        self._skip_space()
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        char = self.text[self.at]
        if char in "\"'":
            self._string()
        elif char == "[":
            for index in self._items("]"):
                self._mark((*path, index), self.at)
                self._value((*path, index))
        elif char == "{":
            for _ in self._items("}"):
                self._pair(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1

    def _items(self, end: str) -> Iterator[int]:
        """Stand on each item of an array or inline table in turn; the caller moves past it."""
        self.at += 1
        index = 0
        while self._skip_space() and self.text[self.at] != end:
            if self.text[self.at] == ",":
                self.at += 1
                continue
            yield index
            index += 1
        self.at += 1

    def _string(self) -> None:
        """Move past a string of any of the four kinds."""
        quote = self.text[self.at]
        mark = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(mark)
        while not self.text.startswith(mark, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(mark)
        if len(mark) == 3:  # up to two quotes may belong to the content just before the closing three
            while self.at < len(self.text) and self.text[self.at] == quote:
                self.at += 1
