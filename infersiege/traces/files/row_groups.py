"""Rows that belong together, wherever they stand in a file, in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from infersiege.traces.files.source import Row

Key: TypeAlias = str | int | tuple[str, ...]


class Places:
    """Rows of a file, sixteen bytes each. Files of up to four billion lines."""

    def __init__(self) -> None:
        self._lines = array("I")
        self._starts = array("q")
        self._sizes = array("I")
        self._long: dict[int, int] = {}
        """Sizes that don't fit into 32 bits, by the number of the row."""

    def __len__(self) -> int:
        return len(self._starts)

    def append(self, row: Row) -> None:
        line, start, end = row
        size = end - start
        if size > _MOST_BYTES:
            self._long[len(self._starts)] = size
            size = _MOST_BYTES
        self._lines.append(line)
        self._starts.append(start)
        self._sizes.append(size)

    def __getitem__(self, number: int) -> Row:
        start, size = self._starts[number], self._sizes[number]
        if size == _MOST_BYTES:
            size = self._long.get(number, size)
        return Row(self._lines[number], start, start + size)


_MOST_BYTES = (1 << 32) - 1


def mark(key: Key) -> int:
    """64 bits by which a key is known while this process lives: keys themselves would be most of the memory.

    Two of ten million keys have the same bits in one file of a million. Numbers go by their digits, since Python's own
    hash is the same for -1 and -2.
    """
    return hash(f"\0{key}") if isinstance(key, int) else hash(key)


def grouped(rows: Iterable[Row], key: Callable[[Row], Key | None]) -> Iterator[list[Row]]:
    """The rows of each key in the file's order, groups in the order of their first rows; a row without a key (None) is
    a group of its own.

    At most 48 bytes a row are held until the first group is given (places, marks, their order), 20 from then on.
    """
    places, marks = Places(), array("q")
    for row in rows:
        name = key(row)
        # Numbers of rows are no hash of a key (but for two in 2^64).
        marks.append(~len(marks) if name is None else mark(name))
        places.append(row)
    order = in_groups(marks)
    del marks
    for numbers in order:
        yield [places[number] for number in numbers]


def in_groups(marks: array[int]) -> Iterator[Sequence[int]]:
    """Indexes of equal marks, rising; groups in the order of their first ones. Nothing of `marks` is kept."""
    if not marks:
        return iter(())
    values = np.frombuffer(marks, dtype=np.int64)
    order = np.argsort(values, kind="stable").astype(np.uint32 if len(marks) <= _MOST_BYTES else np.int64)
    in_order = values[order]
    starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    return _slices(order, starts)


def _slices(order: NDArray[Any], starts: NDArray[Any]) -> Iterator[Sequence[int]]:
    ends = np.append(starts[1:], len(order))
    for group in np.argsort(order[starts]):
        yield order[starts[group] : ends[group]].tolist()


def came_before(marks: array[int]) -> list[int]:
    """Indexes of marks that are not the first of their kind, rising."""
    values = np.frombuffer(marks, dtype=np.int64)
    if len(values) < 2:
        return []
    order = np.argsort(values, kind="stable")
    in_order = values[order]
    again: list[int] = np.sort(order[1:][in_order[1:] == in_order[:-1]]).tolist()
    return again
