"""Lines of requests with their recorded times, made into the turns and branches of a session.

A recording of agents is a tree of lines: the main one, and those that ran beside another. What starts a branch, what
waits for it, and each turn's delay are read off the times; nothing here knows a format.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from infersiege.records import Branch, Turn


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a line, with its times on one clock."""

    turn: Turn
    """Its `delay_ns` is set here."""
    start_ns: int
    end_ns: int | None = None
    """None: how long the answer took is not told."""
    think_ns: int | None = None
    """What the recording itself says the delay was."""

    @property
    def ended_ns(self) -> int:
        """The end, as far as it is known."""
        return self.start_ns if self.end_ns is None else self.end_ns


class Line(msgspec.Struct, kw_only=True):
    """Requests that follow each other, in the order of their starts."""

    requests: list[Request]
    parent: Line | None = None
    """What it runs beside; None: a main line."""
    ends_ns: int | None = None
    """When all of it had ended, if the first later request of the parent is to wait for that; None: none waits."""
    first: int = 0
    """Number of its first turn in the session."""


def parts(lines: Sequence[Line], *, rounding_ns: int = 0) -> tuple[tuple[Turn, ...], tuple[Branch, ...]]:
    """The main line's turns, and the branches in the order of the lines. There must be at least one request.

    A branch starts after the parent's last request before it that had ended (`rounding_ns`: how much before the end
    still counts, since starts are rounded), or with what the parent itself starts after. It is joined by the parent's
    first later request that starts when it has ended. Where no main line has requests, the line that started first
    becomes one. Delays are the times between the end of a request and the start of the next, never below 0; where the
    end is not known, what the recording says the delay was, and without that the whole time between the starts.
    """
    lines = [line for line in lines if line.requests]
    main = next((line for line in lines if line.parent is None), None)
    main = main or min(lines, key=lambda line: line.requests[0].start_ns)
    lines = [main, *(line for line in lines if line is not main)]
    number = 0
    for line in lines:
        line.first = number
        number += len(line.requests)
    return _turns(main.requests, 0), tuple(_branch(line, main, rounding_ns) for line in lines[1:])


def _branch(line: Line, main: Line, rounding_ns: int) -> Branch:
    start_ns = line.requests[0].start_ns
    anchor = _anchor(line, main, rounding_ns)
    begins_ns = main.requests[0].start_ns if anchor is None else anchor[0].requests[anchor[1]].ended_ns
    parent, ends_ns, joined_by = line.parent, line.ends_ns, None
    if parent is not None and ends_ns is not None:
        later = range(_before(parent, start_ns), len(parent.requests))
        found = next((at for at in later if parent.requests[at].start_ns >= ends_ns), None)
        joined_by = None if found is None else parent.first + found
    return Branch(
        turns=_turns(line.requests, max(0, start_ns - begins_ns)),
        after=None if anchor is None else anchor[0].first + anchor[1],
        joined_by=joined_by,
    )


def _anchor(line: Line, main: Line, rounding_ns: int) -> tuple[Line, int] | None:
    """The request whose end starts a line; None: the session's start.

    It is always before what the parent asks later, so that no two lines can come to wait for each other.
    """
    start_ns = line.requests[0].start_ns
    parent = line.parent
    while parent is not None and line is not main:
        at = _before(parent, start_ns)
        while at and parent.requests[at - 1].ended_ns > start_ns + rounding_ns:
            at -= 1
        if at:
            return parent, at - 1
        line, parent = parent, parent.parent
        start_ns = line.requests[0].start_ns if line.requests else start_ns
    return None


def _before(line: Line, start_ns: int) -> int:
    """How many requests of a line start before a time, or at it."""
    return sum(1 for _ in takewhile(lambda request: request.start_ns <= start_ns, line.requests))


def _turns(requests: Sequence[Request], first_delay_ns: int) -> tuple[Turn, ...]:
    turns = []
    before: Request | None = None
    for request in requests:
        if before is None:
            delay_ns = first_delay_ns
        elif before.end_ns is None and request.think_ns is not None:
            delay_ns = request.think_ns
        else:
            delay_ns = max(0, request.start_ns - before.ended_ns)
        turns.append(msgspec.structs.replace(request.turn, delay_ns=delay_ns))
        before = request
    return tuple(turns)
