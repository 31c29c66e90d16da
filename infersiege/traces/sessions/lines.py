"""Lines of requests with their recorded times, made into the turns and branches of a session.

A recording of agents is a tree of lines: the main one, and those that ran beside another. What starts a branch, what
waits for it, and each turn's delay are read off the times; nothing here knows a format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import msgspec

from infersiege.records import Branch, Turn


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
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


class RecordedLine(msgspec.Struct, kw_only=True):
    """Requests that follow each other, in the order of their starts."""

    requests: list[RecordedRequest]
    parent: RecordedLine | None = None
    """What it runs beside; None: a main line."""
    ends_ns: int | None = None
    """When all of it had ended, if the first later request of the parent is to wait for that; None: none waits."""
    first: int = 0
    """Number of its first turn in the session."""


def parts(lines: Sequence[RecordedLine], *, rounding_ns: int = 0) -> tuple[tuple[Turn, ...], tuple[Branch, ...]]:
    """The main line's turns, and the branches in the order of the lines. There must be at least one request.

    A branch starts after the parent's last request before it that had ended (`rounding_ns`: how much before the end
    still counts, since starts are rounded); without one, as if the parent itself started there and then. It is joined
    by the parent's first later request that starts when it has ended. Where no main line has requests, the line that
    started first becomes one. The session starts with its first request, on whatever line.

    A delay is the time from the latest of what a request waits for to its start, never below 0: the end of the request
    before it, of the one that its line starts after, and of the branches that it joins. Where the end of the one before
    is not known, it is told by what the recording says the delay was, and without that its start stands for it.
    """
    lines = [line for line in lines if line.requests]
    main = next((line for line in lines if line.parent is None), None)
    main = main or min(lines, key=lambda line: line.requests[0].start_ns)
    lines = [main, *(line for line in lines if line is not main)]
    number = 0
    for line in lines:
        line.first = number
        number += len(line.requests)
    anchors = [_anchor(line, main, rounding_ns) for line in lines]
    joins = [None, *(_joined_by(line) for line in lines[1:])]
    joined_ns: dict[int, int] = {}
    for line, joined_by in zip(lines, joins, strict=True):
        if joined_by is not None:
            joined_ns[joined_by] = max(_ended_ns(line), joined_ns.get(joined_by, 0))
    began_ns = min(line.requests[0].start_ns for line in lines)
    turns, *others = (
        _turns(line, began_ns if anchor is None else anchor[0].requests[anchor[1]].ended_ns, joined_ns)
        for line, anchor in zip(lines, anchors, strict=True)
    )
    return turns, tuple(
        Branch(turns=own, after=None if anchor is None else anchor[0].first + anchor[1], joined_by=joined_by)
        for own, anchor, joined_by in zip(others, anchors[1:], joins[1:], strict=True)
    )


def _joined_by(line: RecordedLine) -> int | None:
    """Number of the turn that waits for a branch."""
    parent, ends_ns = line.parent, line.ends_ns
    if parent is None or ends_ns is None:
        return None
    later = range(_before(parent, line.requests[0].start_ns), len(parent.requests))
    found = next((at for at in later if parent.requests[at].start_ns >= ends_ns), None)
    return None if found is None else parent.first + found


def _ended_ns(line: RecordedLine) -> int:
    """When a branch's last request had ended, which is what a replay waits for; not known: when all of it had."""
    last = line.requests[-1]
    return last.end_ns if last.end_ns is not None else line.ends_ns or last.start_ns


def _anchor(line: RecordedLine, main: RecordedLine, rounding_ns: int) -> tuple[RecordedLine, int] | None:
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
        start_ns = min(start_ns, line.requests[0].start_ns) if line.requests else start_ns
    return None


def _before(line: RecordedLine, start_ns: int) -> int:
    """How many requests of a line start before a time, or at it."""
    return sum(1 for _ in takewhile(lambda request: request.start_ns <= start_ns, line.requests))


def _turns(line: RecordedLine, begins_ns: int, joined_ns: Mapping[int, int]) -> tuple[Turn, ...]:
    """`begins_ns`: what the line starts after had ended; `joined_ns`: ends of branches, by the turn that joins them."""
    turns = []
    for number, request in enumerate(line.requests, line.first):
        after_ns = max(begins_ns, joined_ns.get(number, begins_ns))
        turns.append(msgspec.structs.replace(request.turn, delay_ns=max(0, request.start_ns - after_ns)))
        following = number + 1 - line.first
        begins_ns = request.ended_ns
        if request.end_ns is None and following < len(line.requests):
            think_ns = line.requests[following].think_ns
            begins_ns = begins_ns if think_ns is None else line.requests[following].start_ns - think_ns
    return tuple(turns)
