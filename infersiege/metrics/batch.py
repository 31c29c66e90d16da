"""Some thousands of turns as columns: what is done per turn in Python is done once here, the rest are array operations.

A `Batch` makes a column when it is asked for and keeps it, so that several observers of the same turns share it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from infersiege.records import ErrorClass, Outcome, Phase, Reason, StampSource, TokensFrom, TurnRecord

ABSENT: Final = -(1 << 63)
"""Stands for None in a column of int64. No instant, duration or count of a row can be it (rundir.damage)."""

BATCH: Final = 8192
"""Turns that are looked at together: columns of fewer cost more per turn, and rows of more cost memory."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Made = TypeVar("Made")


class Kind(NamedTuple):
    """What many turns have in common: counts of turns are counts of kinds."""

    scenario: str
    channel: str
    stage: str
    phase: Phase
    replica: str | None
    worker: str
    outcome: Outcome
    reason: Reason | None
    error_class: ErrorClass | None
    routed_by: str | None
    tokens_from: TokensFrom | None
    stamp_source: StampSource | None
    finish_reason: str | None
    clock_step: bool


_kind_of: Callable[[TurnRecord], tuple[object, ...]] = attrgetter(*Kind._fields)

SessionName = tuple[str, str, str]
"""Scenario, channel, session."""

_session_of: Callable[[TurnRecord], SessionName] = attrgetter("scenario", "channel", "session_id")


@dataclass(frozen=True, slots=True)
class Sparse:
    """A dict[int, int] of each turn (`gaps`, `chunks_by_second`), laid out one after the other."""

    turn: Ints
    """Place of the turn in the batch, by entry."""
    key: Ints
    count: Ints
    sizes: Ints
    """Entries of each turn."""

    @property
    def starts(self) -> Ints:
        """Where the entries of each turn begin."""
        starts: Ints = np.cumsum(self.sizes) - self.sizes
        return starts


class Values(NamedTuple):
    """A value of each turn, where it gives one."""

    values: Ints | Floats
    """In ns, tokens or money; anything where `given` is false."""
    given: Mask


class Batch:
    """Turns and their columns, all of the batch's length and in its order."""

    def __init__(self, turns: Sequence[TurnRecord]) -> None:
        self.turns = turns
        self._columns: dict[str, Ints] = {}
        self._sparse: dict[str, Sparse] = {}
        self._made: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.turns)

    def ints(self, name: str) -> Ints:
        """A column of whole numbers by the name of the record's field; ABSENT where it is None."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._column(attrgetter(name))
        return found

    def _column(self, value_of: Callable[[TurnRecord], int | None]) -> Ints:
        try:
            return np.fromiter(map(value_of, self.turns), dtype=np.int64, count=len(self.turns))
        except TypeError:  # some are None
            values = map(value_of, self.turns)
            return np.array([ABSENT if value is None else value for value in values], dtype=np.int64)

    def once(self, key: Hashable, make: Callable[[Batch], Made]) -> Made:
        """What `make` makes of this batch: made once under its key, for everybody who looks at it."""
        found: Made | None = self._made.get(key)
        if found is None:
            found = self._made[key] = make(self)
        return found

    def sparse(self, name: str) -> Sparse:
        """A column of sparse histograms by the name of the record's field."""
        found = self._sparse.get(name)
        if found is None:
            dicts = list(map(attrgetter(name), self.turns))
            sizes = np.fromiter(map(len, dicts), dtype=np.int64, count=len(dicts))
            many = int(sizes.sum())
            found = self._sparse[name] = Sparse(
                turn=np.repeat(np.arange(len(dicts)), sizes),
                key=np.fromiter(chain.from_iterable(dicts), dtype=np.int64, count=many),
                count=np.fromiter(chain.from_iterable(map(dict.values, dicts)), dtype=np.int64, count=many),
                sizes=sizes,
            )
        return found

    @cached_property
    def _sessions(self) -> tuple[list[SessionName], Ints]:
        table: dict[SessionName, int] = {}
        codes = [table.setdefault(name, len(table)) for name in map(_session_of, self.turns)]
        return list(table), np.array(codes, dtype=np.int64)

    @property
    def sessions(self) -> list[SessionName]:
        """Each session that has turns in the batch."""
        return self._sessions[0]

    @property
    def session(self) -> Ints:
        """Which of `sessions` each turn is of."""
        return self._sessions[1]

    @cached_property
    def _kinds(self) -> tuple[list[Kind], Ints]:
        table: dict[tuple[object, ...], int] = {}
        codes = [table.setdefault(kind, len(table)) for kind in map(_kind_of, self.turns)]
        return [Kind(*kind) for kind in table], np.array(codes, dtype=np.int64)  # type: ignore[arg-type]

    @property
    def kinds(self) -> list[Kind]:
        """Each kind of turn that is in the batch."""
        return self._kinds[0]

    @property
    def kind(self) -> Ints:
        """Which of `kinds` each turn is."""
        return self._kinds[1]

    def counted(self) -> Iterator[tuple[Kind, int]]:
        """Each kind with how many turns are of it."""
        yield from zip(self.kinds, np.bincount(self.kind, minlength=len(self.kinds)).tolist(), strict=True)

    def where(self, asked: Callable[[Kind], bool]) -> Mask:
        """Turns whose kind is asked for."""
        return np.array([asked(kind) for kind in self.kinds], dtype=np.bool_)[self.kind]

    def numbered(self, number: Callable[[Kind], int]) -> Ints:
        """A whole number of each turn's kind."""
        return np.array([number(kind) for kind in self.kinds], dtype=np.int64)[self.kind]

    @cached_property
    def ok(self) -> Mask:
        return self.where(lambda kind: kind.outcome is Outcome.OK)

    @cached_property
    def steady(self) -> Mask:
        return self.where(lambda kind: kind.phase is Phase.STEADY)

    def places(self, mask: Mask) -> list[int]:
        """Where a mask is true, as places in `turns`."""
        found: list[int] = np.flatnonzero(mask).tolist()
        return found


class Observer(Protocol):
    """Takes all turns of a run, batch by batch."""

    def add_batch(self, batch: Batch) -> None: ...

    def merge(self, other: Self) -> None:
        """Add what `other` took of the turns after these: as if all had been taken here. `other` is used up."""


def batches(turns: Iterable[TurnRecord], size: int = BATCH) -> Iterator[Batch]:
    """All turns, in their order."""
    left = iter(turns)
    while rows := list(islice(left, size)):
        yield Batch(rows)


def known(column: Ints) -> Mask:
    """Where a column is not None."""
    mask: Mask = column != ABSENT
    return mask


def sums(codes: Ints, weights: Ints, size: int) -> Ints:
    """Sum of the weights by code (0 to size - 1), exact for sums below 2**53."""
    return np.bincount(codes, weights=weights, minlength=size).astype(np.int64)


_FEW: Final = 1 << 14


def grouped(codes: Ints, weights: Ints | None = None) -> tuple[list[int], list[int]]:
    """(each code in rising order, how many there are of it or the sum of their weights)."""
    if codes.size and int(codes.min()) >= 0 and int(codes.max()) < _FEW:
        # Such as buckets: without sorting them.
        counts = np.bincount(codes)
        found = np.flatnonzero(counts)
        counts = counts if weights is None else sums(codes, weights, counts.size)
        return found.tolist(), counts[found].tolist()
    found, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    if weights is not None:
        counts = sums(inverse, weights, found.size)
    return found.tolist(), counts.tolist()
