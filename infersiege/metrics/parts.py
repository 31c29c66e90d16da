"""Turns of a batch that belong together: those of one cell, of one flow, of one worker."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from infersiege.metrics.batch import Batch, Ints, Kind, Sparse

Key = TypeVar("Key", bound=Hashable)
Column = TypeVar("Column", bound=npt.NDArray[Any])


@dataclass(frozen=True, slots=True)
class Part:
    """Some turns of a batch, in their order."""

    batch: Batch
    places: Ints
    """Where they are in the batch, rising."""

    def __len__(self) -> int:
        return int(self.places.size)

    def of(self, column: Column) -> Column:
        """What a column of the batch says of these turns."""
        return cast(Column, column[self.places])

    def count(self, mask: npt.NDArray[np.bool_]) -> int:
        """How many of them are in a mask of the batch."""
        return int(self.of(mask).sum())

    def counted(self) -> Iterator[tuple[Kind, int]]:
        """Each kind of turn among them, with how many there are."""
        kinds = self.batch.kinds
        for place, count in enumerate(np.bincount(self.of(self.batch.kind)).tolist()):
            if count:
                yield kinds[place], count

    def sparse(self, name: str) -> Sparse:
        """Their entries of a sparse column; `turn` is then a place among these turns."""
        whole = self.batch.sparse(name)
        sizes = whole.sizes[self.places]
        starts = np.repeat(whole.starts[self.places], sizes)
        inside = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        entries = starts + inside
        return Sparse(
            turn=np.repeat(np.arange(self.places.size), sizes),
            key=whole.key[entries],
            count=whole.count[entries],
            sizes=sizes,
        )


def parts(batch: Batch, key_of: Callable[[Kind], Key]) -> Iterator[tuple[Key, Part]]:
    """The turns of a batch by a key of their kind, in the order in which the keys come first."""
    numbers: dict[Key, int] = {}
    own = batch.numbered(lambda kind: numbers.setdefault(key_of(kind), len(numbers)))
    order = np.argsort(own, kind="stable")
    ends = np.cumsum(np.bincount(own, minlength=len(numbers))).tolist()
    start = 0
    for key, end in zip(numbers, ends, strict=True):
        yield key, Part(batch, order[start:end])
        start = end
