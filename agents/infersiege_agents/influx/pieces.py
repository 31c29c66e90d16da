"""Parts of segments: what one request carries, and how far each segment is."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import NamedTuple

from infersiege_agents.influx.spool import Segment


@dataclass(slots=True)
class Progress:
    """How far a segment is that did not fit into one request. In memory only: what a killed sender forgets, the next
    one sends again, which changes nothing."""

    sent_bytes: int = 0
    refused: list[tuple[bytes, str]] = field(default_factory=list)
    """Lines that were refused for good, with the database's words."""


class Piece(NamedTuple):
    """Whole lines of a segment, one after the other."""

    segment: Segment
    content: bytes
    ends: int
    """Where they end in the file, in bytes."""
    last: bool
    """Nothing comes after them."""

    @property
    def lines(self) -> int:
        return self.content.count(b"\n")


def read_piece(segment: Segment, start: int, most_lines: int, most_bytes: int) -> Piece:
    """From byte `start` on as many whole lines as fit, at least one. Raises OSError."""
    with segment.path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(start)
        content = file.read(most_bytes)
        if start + len(content) < size:
            whole = content.rfind(b"\n") + 1
            content = content[:whole] if whole else content + file.readline()  # a line larger than a request
    if content.count(b"\n") > most_lines:
        content = b"".join(line + b"\n" for line in content.split(b"\n", most_lines)[:most_lines])
    ends = start + len(content)
    return Piece(segment, content, ends, last=ends >= size)
