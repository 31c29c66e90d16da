"""The sessions of an AIPerf file as a graph: which are roots, and what each turn starts."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from infersiege.errors import TraceError
from infersiege.traces.files.indexed import Placed, want_object
from infersiege.traces.files.row_groups import Places, came_before, mark
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import want_int

_HINT = "docs/traces-formats/aiperf-multi-turn.md has the format"


class Child(NamedTuple):
    """A session that another one starts."""

    session_id: str
    turn: int | None
    """Whose end starts it; None: it starts with its parent."""
    inherits: bool
    joined_by: int | None


class Graph:
    """Which rows are roots, and which belong to them. Rows are known by their numbers, sessions by marks of their
    names: most of a file's rows stand by themselves, and take 24 bytes."""

    def __init__(self, source: Source) -> None:
        """Raises TraceError for rows that are none, and for names that are there twice or not at all."""
        self._source = source
        self._places = Places()
        self._marks = array("q")
        """Of each row its name."""
        self._parents = array("q")
        """Of each child that a row names, in order: the row."""
        self._named = array("q")
        """And the mark of the child's name."""
        forked = bytearray()
        for row in source.rows():
            placed = self._placed(row)
            number = len(self._places)
            self._places.append(row)
            self._marks.append(mark(ident_of(placed)))
            for child in children_of(placed):
                self._parents.append(number)
                self._named.append(mark(child.session_id))
                forked.append(child.inherits)
        self._check_names()
        self._children = self._numbers_of_children()
        self._check_forks(forked)

    def trees(self) -> Iterator[list[Row]]:
        """The rows of each root: its own, then its descendants', each once. Raises TraceError for cycles."""
        below_another = bytearray(len(self._places))
        for child in self._children:
            below_another[child] = 1
        reached = bytearray(len(self._places))
        for number in range(len(self._places)):
            if not below_another[number]:
                below = self._below(number)
                for each in below:
                    reached[each] = 1
                yield [self._places[each] for each in below]
        for number in range(len(self._places)):
            if not reached[number]:  # each has a parent, yet no root is above it: that is a cycle
                self._below(number)

    def _placed(self, row: Row) -> Placed:
        return Placed(self._source.place(row), row.line, self._source.json(row))

    def _row(self, number: int) -> Placed:
        return self._placed(self._places[number])

    def _check_names(self) -> None:
        for number in came_before(self._marks)[:1]:
            again = self._row(number)
            first = self._source.place(self._places[self._marks.index(self._marks[number])])
            raise TraceError(
                f"{again.place}: session_id {ident_of(again)[:40]!r} is that of {first}, too",
                hint="a session is one row, with all of its turns",
            )

    def _numbers_of_children(self) -> array[int]:
        """Of each child that is named its row. Raises TraceError where it has none."""
        names = np.frombuffer(self._marks, dtype=np.int64)
        wanted = np.frombuffer(self._named, dtype=np.int64)
        if not len(wanted):
            return array("q")
        order = np.argsort(names)
        at = np.searchsorted(names, wanted, sorter=order).clip(max=len(names) - 1)
        numbers = order[at]
        for edge in np.flatnonzero(names[numbers] != wanted)[:1].tolist():
            row = self._row(self._parents[edge])
            child = next(one for one in children_of(row) if mark(one.session_id) == self._named[edge])
            raise TraceError(
                f"{row.place}: session {child.session_id[:40]!r} is named, but not in the file",
                hint="is the file whole?",
            )
        return array("q", numbers.astype(np.int64).tobytes())

    def _check_forks(self, forked: bytearray) -> None:
        """Raises TraceError for a session that would go on from two histories."""
        parents: dict[int, int] = {}
        for parent, child, inherits in zip(self._parents, self._children, forked, strict=True):
            if inherits and parents.setdefault(child, parent) != parent:
                place, ident = self._source.place(self._places[parent]), ident_of(self._row(child))
                raise TraceError(
                    f"{place}: {ident[:40]!r} is forked from two sessions",
                    hint="a fork goes on from one history",
                )

    def _children_of(self, number: int) -> Sequence[int]:
        first = bisect_left(self._parents, number)
        return self._children[first : bisect_right(self._parents, number, lo=first)]

    def _below(self, root: int) -> Sequence[int]:
        """The root and all below it, in order. Raises TraceError for a cycle."""
        if not self._children_of(root):
            return (root,)
        found: dict[int, None] = {}
        path: dict[int, None] = {}
        stack: list[tuple[int, bool]] = [(root, False)]
        while stack:
            number, done = stack.pop()
            if done:
                path.pop(number)
                continue
            if number in found and number not in path:
                continue
            if number in path:
                row = self._row(number)
                raise TraceError(
                    f"{row.place}: session {ident_of(row)[:40]!r} is among its own descendants",
                    hint="forks and spawns name sessions that come later",
                )
            found[number] = None
            path[number] = None
            stack.append((number, True))
            stack.extend((child, False) for child in reversed(self._children_of(number)))
        return list(found)


def ident_of(row: Placed) -> str:
    """The session's name. Raises TraceError."""
    value = want_object(row)
    ident = value.get("session_id")
    if ident is None:
        return f"line-{row.line}"
    if not isinstance(ident, str) or not ident:
        raise TraceError(f"{row.place}: session_id is no text", hint=_HINT)
    return ident


def raw_turns(row: Placed) -> list[dict[str, Any]]:
    """The turns as they stand; none of an orchestrator. Raises TraceError."""
    value = want_object(row)
    raw = value.get("turns")
    if raw is None and value.get("orchestrator") is True:
        return []
    if not isinstance(raw, list) or not raw or not all(isinstance(turn, dict) for turn in raw):
        raise TraceError(f"{row.place}: turns is no list of objects with at least one", hint=_HINT)
    return raw


def children_of(row: Placed) -> list[Child]:
    """Sessions that a row starts, in order. Raises TraceError."""
    value = want_object(row)
    turns = raw_turns(row)
    found = [Child(ident, None, False, None) for ident in _texts(value, "pre_session_spawns", row.place)]
    if value.get("orchestrator") is True and not isinstance(value.get("rounds"), int | list):
        found += [Child(ident, None, False, None) for ident in _texts(value, "spawns", row.place)]
    elif value.get("orchestrator") is True:
        rounds = value["rounds"] if isinstance(value["rounds"], list) else [value]
        for one in rounds:
            if isinstance(one, dict):
                found += [Child(ident, None, False, None) for ident in _texts(one, "spawns", row.place)]
    for number, turn in enumerate(turns):
        place = f"{row.place}: turns[{number}]"
        for fork in want_list(turn, "forks", place):
            ident = fork.get("child") if isinstance(fork, dict) else fork
            if not isinstance(ident, str):
                raise TraceError(f"{place}: forks holds a {type(fork).__name__} that names no session", hint=_HINT)
            background = isinstance(fork, dict) and fork.get("background") is True
            if not background and number < len(turns) - 1:
                raise TraceError(
                    f"{place}: forks {ident[:40]!r}, yet more turns follow",
                    hint='a fork that runs beside its parent says "background": true',
                )
            found.append(Child(ident, number, True, None))
        for spawn in want_list(turn, "spawns", place):
            found += _spawned(spawn, number, len(turns), place)
    return found


def _spawned(spawn: object, number: int, turns: int, place: str) -> list[Child]:
    if isinstance(spawn, str):
        return [Child(spawn, number, False, number + 1 if number + 1 < turns else None)]
    if not isinstance(spawn, dict):
        raise TraceError(f"{place}: spawns holds a {type(spawn).__name__} that names no session", hint=_HINT)
    join_at = number + 1 if spawn.get("join_at") is None else want_int(spawn, "join_at", place)
    if join_at <= number or (join_at >= turns and spawn.get("join_at") is not None):
        raise TraceError(
            f"{place}: join_at is {join_at}, a later turn of the session is wanted",
            hint=f"it has {turns} turns, from 0",
        )
    joined_by = join_at if join_at < turns else None
    return [Child(ident, number, False, joined_by) for ident in _texts(spawn, "children", place)]


def want_list(value: dict[str, Any], key: str, place: str) -> list[Any]:
    """The list of a key; empty where it is absent. Raises TraceError."""
    found = value.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise TraceError(f"{place}: {key} is a {type(found).__name__}, a list is wanted", hint=_HINT)
    return found


def _texts(value: dict[str, Any], key: str, place: str) -> list[str]:
    found = want_list(value, key, place)
    if not all(isinstance(one, str) for one in found):
        raise TraceError(f"{place}: {key} is no list of session ids", hint=_HINT)
    return found
