"""Numbers of 64 bits, each with the greatest length that came with it, in 17 to 34 bytes an entry.

Traces have tens of millions of distinct blocks, which take 70 bytes each as Python's own numbers in a set.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FIRST_SLOTS = 64
_FULLEST = 0.7
"""Share of slots in use, above which the table doubles."""
_BATCH = 1 << 16
_LONGEST = (1 << 32) - 1


class LongestSeen:
    """Open addressing with linear probing; a slot whose key is 0 is free."""

    def __init__(self) -> None:
        self._count = 0
        self._empty(_FIRST_SLOTS)

    def _empty(self, slots: int) -> None:
        self._keys, self._lengths = array("Q", (0,)) * slots, array("I", (0,)) * slots

    def __len__(self) -> int:
        return self._count

    def take(self, keys: Sequence[int], lengths: Sequence[int]) -> int:
        """The sum of what was seen of each length under its key; from now on all of them are."""
        if self._count + len(keys) > _FULLEST * len(self._keys):
            self._grow(self._count + len(keys))
        taken, longest, last = self._keys, self._lengths, len(self._keys) - 1
        held = new = 0
        for key, length in zip(keys, lengths, strict=True):
            key, length = key or 1, length if length < _LONGEST else _LONGEST
            slot = key & last
            while (there := taken[slot]) != key and there:
                slot = (slot + 1) & last
            if not there:
                taken[slot], longest[slot] = key, length
                new += 1
                continue
            seen = longest[slot]
            if seen < length:
                longest[slot] = length
                held += seen
            else:
                held += length
        self._count += new
        return held

    def _grow(self, count: int) -> None:
        keys, lengths = (np.frombuffer(self._keys, dtype=np.uint64), np.frombuffer(self._lengths, dtype=np.uint32))
        slots = len(keys)
        while count > _FULLEST * slots:
            slots *= 2
        self._empty(slots)
        for start in range(0, len(keys), _BATCH):
            some = keys[start : start + _BATCH]
            self._move(some[some != 0], lengths[start : start + _BATCH][some != 0])

    def _move(self, keys: NDArray[np.uint64], lengths: NDArray[np.uint32]) -> None:
        """Put in entries that are not there, all at once."""
        taken, longest = np.frombuffer(self._keys, dtype=np.uint64), np.frombuffer(self._lengths, dtype=np.uint32)
        last = len(taken) - 1
        slots = (keys & np.uint64(last)).astype(np.int64)
        while len(keys):
            free = taken[slots] == 0
            taken[slots[free]] = keys[free]
            # Of several that came to one free slot the last one has it.
            mine = taken[slots] == keys
            longest[slots[mine]] = lengths[mine]
            keys, lengths, slots = keys[~mine], lengths[~mine], (slots[~mine] + 1) & last
