"""Model calls with their times -> lines of turns: what waited for what, as far as times and enclosing spans tell.

A call that starts before another one ended can't have waited for it. So a call follows, of all that ended before it
started, those that nothing else came after. Calls inside a span (an agent, a tool, a workflow) are ordered among
themselves; to what runs beside that span they are one unit, which ends when the span does.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence

import msgspec


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One model call."""

    start_ns: int
    end_ns: int
    scopes: tuple[str, ...] = ()
    """Spans that hold it, the outermost first."""


class CallLine(msgspec.Struct, kw_only=True):
    """Calls that follow each other, as indexes of `CallGraph.calls`."""

    calls: list[int]
    after: int | None = None
    """The call whose end starts the line."""
    joined_by: int | None = None
    """The call that waits for the line's end."""


class CallGraph(msgspec.Struct, kw_only=True):
    """What waited for what in one session."""

    calls: Sequence[Call]
    """Sorted by start, then by end."""
    lines: list[CallLine]
    """The main line first."""
    waits: list[tuple[int, ...]]
    """Of each call, those that it follows: all that ended just before it."""
    lost: int
    """Waits that the lines can't hold: a call that several wait for has one that continues its line or joins it."""

    def numbers(self) -> dict[int, int]:
        """Index of a call -> number of its turn."""
        order = (call for line in self.lines for call in line.calls)
        return {call: number for number, call in enumerate(order)}

    def delay_ns(self, call: int) -> int:
        """From the end of the last call that it follows (from the session's start, where it follows none)."""
        ends = [self.calls[other].end_ns for other in self.waits[call]]
        return self.calls[call].start_ns - (max(ends) if ends else self.calls[0].start_ns)


class _Unit:
    """A call, or a span with the units in it."""

    def __init__(self, start_ns: int, end_ns: int, call: int | None = None) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.call = call
        self.parts: list[_Unit] = []


def graph_of(calls: Sequence[Call], scopes: dict[str, tuple[int, int]]) -> CallGraph:
    """`calls` sorted by (start, end), at least one; `scopes`: (start, end) of the spans that they name."""
    waits: list[tuple[int, ...]] = [()] * len(calls)
    # Spans may be nested thousands deep: a stack of our own instead of Python's.
    stack = [_order(_tree(calls, scopes).parts, (), waits)]
    lasts: tuple[int, ...] | None = None
    while stack:
        try:
            inner, entry = stack[-1].send(lasts)
        except StopIteration as over:
            stack.pop()
            lasts = over.value
        else:
            stack.append(_order(inner, entry, waits))
            lasts = None
    return _lines(calls, waits)


def _tree(calls: Sequence[Call], scopes: dict[str, tuple[int, int]]) -> _Unit:
    root = _Unit(0, 0)
    units: dict[str, _Unit] = {}
    for index, call in enumerate(calls):
        holder = root
        for name in call.scopes:
            if name not in units:
                units[name] = _Unit(*scopes[name])
                holder.parts.append(units[name])
            holder = units[name]
            # A span that its calls stick out of was stamped by another clock; the calls are what is replayed.
            holder.start_ns = min(holder.start_ns, call.start_ns)
            holder.end_ns = max(holder.end_ns, call.end_ns)
        holder.parts.append(_Unit(call.start_ns, call.end_ns, index))
    return root


def _order(
    units: list[_Unit], entry: tuple[int, ...], waits: list[tuple[int, ...]]
) -> Generator[tuple[list[_Unit], tuple[int, ...]], tuple[int, ...] | None, tuple[int, ...]]:
    """Note what each call of these waits for; `entry` is what those wait for that follow none. Gives the last calls.

    Yields the units inside of a span, with what is entry to them, and is to be sent their last calls.
    """
    units = sorted(units, key=lambda unit: (unit.start_ns, unit.end_ns))
    running: list[tuple[int, int]] = []
    latest: dict[int, tuple[int, ...]] = {}
    """Units that ended and that no ended one came after, with their last calls."""
    lasts: list[tuple[int, ...]] = []

    def close(number: int) -> None:
        for other in [other for other in latest if units[other].end_ns <= units[number].start_ns]:
            del latest[other]
        latest[number] = lasts[number]

    for number, unit in enumerate(units):
        while running and running[0][0] <= unit.start_ns:
            close(heapq.heappop(running)[1])
        follows = tuple(sorted({call for last in latest.values() for call in last})) or entry
        if unit.call is None:
            lasts.append((yield unit.parts, follows) or ())
        else:
            waits[unit.call] = follows
            lasts.append((unit.call,))
        heapq.heappush(running, (unit.end_ns, number))
    while running:
        close(heapq.heappop(running)[1])
    return tuple(sorted({call for last in latest.values() for call in last}))


def _lines(calls: Sequence[Call], waits: list[tuple[int, ...]]) -> CallGraph:
    """Each call continues the earliest line that ends with a call it follows, and joins the others that do."""
    lines: list[CallLine] = []
    open_ends: dict[int, CallLine] = {}
    """Last call -> its line, of lines that nothing joined yet; in the lines' order."""
    lost = 0
    for index in range(len(calls)):
        follows = waits[index]
        ends = sorted((line.calls[0], end) for end, line in open_ends.items() if end in follows)
        held = {end for _, end in ends}
        if ends:
            line = open_ends.pop(ends[0][1])
            line.calls.append(index)
            for _, end in ends[1:]:
                open_ends.pop(end).joined_by = index
        else:
            after = max(follows, key=lambda call: calls[call].end_ns, default=None)
            held = {after} if after is not None else set()
            line = CallLine(calls=[index], after=after)
            lines.append(line)
        open_ends[index] = line
        lost += len(set(follows) - held)
    return CallGraph(calls=calls, lines=lines, waits=waits, lost=lost)
