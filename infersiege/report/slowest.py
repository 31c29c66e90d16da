"""The largest of many, batch by batch, in memory for so many only: the slowest turns of a report."""

from __future__ import annotations

import heapq
from typing import Any, TypeVar

import numpy as np

from infersiege.metrics.batch import Ints, Mask

T = TypeVar("T", bound=tuple[Any, ...])
"""Ordered by its first fields, which no two share."""


def candidates(values: Ints, shown: Mask, most: int) -> Ints:
    """Places of a batch that may be among the `most` largest of those shown, in their order.

    All that are as large as the last of these are: of equals, what else they have decides.
    """
    places = np.flatnonzero(shown)
    if places.size > most:
        places = places[values[places] >= np.partition(values[places], -most)[-most]]
    return places


def keep(heap: list[T], one: T, most: int) -> None:
    """Take one if it is among the `most` largest so far; the heap's first one is the smallest of them."""
    if len(heap) < most:
        heapq.heappush(heap, one)
    elif one > heap[0]:
        heapq.heapreplace(heap, one)
