"""Where the elements of a JSON array lie, told from pieces of it: an array of any size in the memory of one piece.

Only what parts elements from each other is looked at: strings, brackets, and the commas of the array itself. What is
wrong inside an element comes to light when it is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(")?|[\[{]|([\]}])', re.DOTALL)
"""A string, which has group 1 if its end is there; a bracket that opens; one that closes (group 2)."""
_STRING, _CLOSING = 1, 2
_REST_OF_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_SPACE = re.compile(rb"[ \t\n\r]*+")
_SCALAR = re.compile(rb'[^ \t\n\r,\[\]{}"]*+')
"""A number or a word."""


class Element(NamedTuple):
    number: int
    """0-based."""
    start: int
    end: int


class ArrayError(Exception):
    """Why the document is no array, as a message goes on."""


class ArrayScanner:
    """Takes the pieces of a document one after the other. Raises ArrayError where it is no array."""

    def __init__(self) -> None:
        self._depth = 0
        """Of brackets that are open; the array's own is the first. 0: it has not begun, or has ended."""
        self._ended = False
        self._in_string = self._in_scalar = False
        self._escaped = False
        """The piece before ended with a backslash in a string."""
        self._wants_comma = False
        """An element has ended: a comma follows, or the array's end."""
        self._start = 0
        self._index = 0
        """Of the element that is being read, or is the next one."""

    def feed(self, at: int, data: bytes) -> Iterator[Element]:
        """Elements that end in this piece, whose first byte is `at`."""
        place, size = 0, len(data)
        while place < size:
            if self._in_string:
                place = self._string(data, place)
            elif self._in_scalar:
                place = _end(_SCALAR, data, place)
                self._in_scalar = place == size
            elif self._depth > 1:
                place = self._inside(data, place)
            else:
                place = self._between(at, data, place)
                continue
            if self._depth == 1 and not (self._in_string or self._in_scalar):
                yield Element(self._index, self._start, at + place)
                self._index += 1
                self._wants_comma = True

    def finish(self) -> None:
        """The document has ended."""
        if self._ended:
            return
        if not self._depth:
            raise ArrayError("there is no bracket")
        between = self._depth == 1 and not (self._in_string or self._in_scalar)
        raise ArrayError(f"it ends {'before' if between else 'within'} element {self._index}")

    def _string(self, data: bytes, place: int) -> int:
        """Go on in a string that began in a piece before."""
        if self._escaped:
            self._escaped = False
            place += 1
        place = _end(_REST_OF_STRING, data, place)
        if place == len(data):
            return place
        if data[place] == _QUOTE:
            self._in_string = False
        else:
            self._escaped = True
        return place + 1

    def _inside(self, data: bytes, place: int) -> int:
        """Go on in an object or array that is an element, to its end or that of the piece."""
        depth = self._depth
        for found in _TOKEN.finditer(data, place):
            kind = found.lastindex
            if kind == _STRING:
                continue
            if kind == _CLOSING:
                depth -= 1
                if depth == 1:
                    self._depth = depth
                    return found.end()
            elif data[found.start()] == _QUOTE:
                self._in_string = True
                self._escaped = found.end() < len(data)
                break
            else:
                depth += 1
        self._depth = depth
        return len(data)

    def _between(self, at: int, data: bytes, place: int) -> int:
        """Go on outside of all elements: to the beginning of the next one, or behind one mark."""
        place = _end(_SPACE, data, place)
        if place == len(data):
            return place
        mark = data[place]
        if self._depth == 0:
            self._outside(mark)
        elif mark == _CLOSE and (self._wants_comma or not self._index):
            self._depth, self._ended = 0, True
        elif self._wants_comma:
            if mark != _COMMA:
                raise ArrayError(f"no comma stands before element {self._index}")
            self._wants_comma = False
        elif mark in b",]}":
            raise ArrayError(f"element {self._index} is missing")
        else:
            self._start = at + place
            self._in_string = mark == _QUOTE
            self._in_scalar = mark not in b'"[{'
            self._depth += mark in b"[{"
            return place if self._in_scalar else place + 1
        return place + 1

    def _outside(self, mark: int) -> None:
        if self._ended:
            raise ArrayError(f"something follows its end, which stands after {self._index} elements")
        if mark != _OPEN:
            raise ArrayError("there is no bracket")
        self._depth = 1


_QUOTE, _COMMA, _OPEN, _CLOSE = b'",[]'


def _end(pattern: re.Pattern[bytes], data: bytes, place: int) -> int:
    found = pattern.match(data, place)
    return place if found is None else found.end()
