"""Sessions by number, and when each was alive: kept turn by turn, put together when somebody asks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from infersiege.metrics.batch import Batch, Ints, SessionName


class Sessions:
    """A number for each session, from 0, in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[SessionName, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, names: Iterable[SessionName]) -> Ints:
        """The number of each of these; what has none yet gets one."""
        numbers = self._numbers
        return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)

    def of(self, batch: Batch) -> Ints:
        """The number of each turn's session."""
        return batch.once(self, lambda batch: self.number(batch.sessions)[batch.session])

    def merge(self, other: Sessions) -> Ints:
        """Number those of `other` as well: the new number of each. The same again, when it is asked twice."""
        return self.number(other._numbers)


class Alive(NamedTuple):
    """One entry for each session that began; instants and durations in ns."""

    start_ns: Ints
    """First due."""
    end_ns: Ints
    """Last end, or when the next turn was due of one that the end of the load met between two turns."""
    pause_ns: Ints
    """How long its user may wait before the next one without being gone: 0 unless the session ended in failure."""


class Lives:
    """Turns that were begun, as parts of the lives of their sessions."""

    def __init__(self) -> None:
        self._number, self._start_ns, self._end_ns, self._pause_ns = (array("q") for _ in range(4))
        """Of each turn: its session, when it was due, when it ended, what its user waits after it."""
        self._thinking, self._until_ns = array("q"), array("q")
        """Of each turn that the end of the load kept from beginning: its session, when it was due."""

    def add(self, number: Ints, start_ns: Ints, end_ns: Ints, pause_ns: Ints) -> None:
        _append((self._number, number), (self._start_ns, start_ns), (self._end_ns, end_ns), (self._pause_ns, pause_ns))

    def think(self, number: Ints, until_ns: Ints) -> None:
        """The users of these sessions were alive, and thinking, when the load ended: it was load that was asked for."""
        _append((self._thinking, number), (self._until_ns, until_ns))

    def merge(self, other: Lives, numbers: Ints) -> None:
        """Add those of `other`. `numbers`: what its numbers are here (`Sessions.merge`)."""
        self.add(numbers[ints_of(other._number)], *map(ints_of, (other._start_ns, other._end_ns, other._pause_ns)))
        self.think(numbers[ints_of(other._thinking)], ints_of(other._until_ns))

    def alive(self) -> Alive:
        """By session, in the order of their numbers."""
        number = ints_of(self._number)
        if not number.size:
            return Alive(number, number, number)
        order = np.argsort(number, kind="stable")
        ordered = number[order]
        first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
        start_ns = np.minimum.reduceat(ints_of(self._start_ns)[order], first)
        end_ns = np.maximum.reduceat(ints_of(self._end_ns)[order], first)
        pause_ns = np.maximum.reduceat(ints_of(self._pause_ns)[order], first)
        sessions, thinking = ordered[first], ints_of(self._thinking)
        place = np.minimum(np.searchsorted(sessions, thinking), sessions.size - 1)
        began = sessions[place] == thinking
        np.maximum.at(end_ns, place[began], ints_of(self._until_ns)[began])
        return Alive(start_ns, end_ns, pause_ns)


def ints_of(column: array[int]) -> Ints:
    """An array of "q" as numpy has it, without a copy: while that lives, nothing can be appended."""
    return np.frombuffer(column, dtype=np.int64) if column else np.empty(0, dtype=np.int64)


def _append(*columns: tuple[array[int], Ints]) -> None:
    for column, values in columns:
        column.frombytes(values.tobytes())
