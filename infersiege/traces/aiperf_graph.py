"""The sessions of an AIPerf file as a graph: which are roots, and what each turn starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from infersiege.errors import TraceError
from infersiege.traces.indexed import Placed, want_object
from infersiege.traces.source import Row, Source
from infersiege.traces.values import want_int


class Child(NamedTuple):
    """A session that another one starts."""

    session_id: str
    turn: int | None
    """Whose end starts it; None: it starts with its parent."""
    inherits: bool
    joined_by: int | None


class Graph:
    """Which rows are roots, and which belong to them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._rows: dict[str, Row] = {}
        self._children: dict[str, tuple[str, ...]] = {}
        self._fork_parents: dict[str, str] = {}
        self._targets: set[str] = set()
        for row in source.rows():
            placed = Placed(source.place(row), row.line, source.json(row))
            ident = ident_of(placed)
            if ident in self._rows:
                first = source.place(self._rows[ident])
                raise TraceError(f"{placed.place}: session_id {ident[:40]!r} is that of {first}, too")
            self._rows[ident] = row
            children = children_of(placed)
            if children:
                self._children[ident] = tuple(child.session_id for child in children)
            for child in children:
                self._targets.add(child.session_id)
                if child.inherits and self._fork_parents.setdefault(child.session_id, ident) != ident:
                    raise TraceError(f"{placed.place}: {child.session_id[:40]!r} is forked from two sessions")

    def trees(self) -> Iterator[list[Row]]:
        """The rows of each root: its own, then its descendants', each once. Raises TraceError."""
        for ident, children in self._children.items():
            for child in children:
                if child not in self._rows:
                    raise TraceError(
                        f"{self._source.place(self._rows[ident])}: session {child[:40]!r} is named, but not in the file"
                    )
        reached: set[str] = set()
        for ident, row in self._rows.items():
            if ident not in self._targets:
                below = self._below(ident)
                reached.update(below)
                yield [row, *(self._rows[child] for child in below if child != ident)]
        for ident in self._rows:
            if ident not in reached:  # each has a parent, yet no root is above it: that is a cycle
                self._below(ident)

    def _below(self, root: str) -> list[str]:
        """The root and all below it, in order. Raises TraceError for a cycle."""
        found: dict[str, None] = {}
        path: dict[str, None] = {}
        stack: list[tuple[str, bool]] = [(root, False)]
        while stack:
            ident, done = stack.pop()
            if done:
                path.pop(ident)
                continue
            if ident in found and ident not in path:
                continue
            if ident in path:
                raise TraceError(
                    f"{self._source.place(self._rows[ident])}: session {ident[:40]!r} is among its own descendants"
                )
            found[ident] = None
            path[ident] = None
            stack.append((ident, True))
            stack.extend((child, False) for child in reversed(self._children.get(ident, ())))
        return list(found)


def ident_of(row: Placed) -> str:
    """The session's name. Raises TraceError."""
    value = want_object(row)
    ident = value.get("session_id")
    if ident is None:
        return f"line-{row.line}"
    if not isinstance(ident, str) or not ident:
        raise TraceError(f"{row.place}: session_id is no text")
    return ident


def raw_turns(row: Placed) -> list[dict[str, Any]]:
    """The turns as they stand; none of an orchestrator. Raises TraceError."""
    value = want_object(row)
    raw = value.get("turns")
    if raw is None and value.get("orchestrator") is True:
        return []
    if not isinstance(raw, list) or not raw or not all(isinstance(turn, dict) for turn in raw):
        raise TraceError(f"{row.place}: turns is no list of objects with at least one")
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
                raise TraceError(f"{place}: forks holds a {type(fork).__name__} that names no session")
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
        raise TraceError(f"{place}: spawns holds a {type(spawn).__name__} that names no session")
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
        raise TraceError(f"{place}: {key} is a {type(found).__name__}, a list is wanted")
    return found


def _texts(value: dict[str, Any], key: str, place: str) -> list[str]:
    found = want_list(value, key, place)
    if not all(isinstance(one, str) for one in found):
        raise TraceError(f"{place}: {key} is no list of session ids")
    return found
