"""Which workload the next session is of."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from hashlib import blake2b

from infersiege.errors import InternalError

_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 / golden ratio: steps of the additive sequence that shares sessions out among workloads."""
_WORD = 1 << 64


class Deal:
    """Gives each ticket its workload and counts sessions per workload.

    Point k is (u0 + k * golden ratio) mod 1: shares hold to within a few tickets at any length, and, unlike with a
    round robin, every worker's part of the sequence comes to have them too. 64-bit integers, so that all hosts agree.
    """

    def __init__(self, weights: Sequence[float], seed: int, available: Sequence[int | None] | None) -> None:
        if not weights or any(weight <= 0 for weight in weights):
            raise InternalError(f"weights are {list(weights)}, each must be above 0")
        self._weights = [Fraction(weight) for weight in weights]
        self._left = list(available) if available is not None else [None] * len(self._weights)
        self._counts = [0] * len(self._weights)
        self._point = int.from_bytes(blake2b(f"{seed}\0deal".encode(), digest_size=8).digest(), "little")
        self._all = self._bounds(range(len(self._weights)))
        self._usable = self._bounds(self._open())

    @property
    def exhausted(self) -> bool:
        return not self._usable

    def draw(self, *, redistribute: bool) -> tuple[int, int] | None:
        """(workload, session index), or None: used up (all of them, or, without redistribution, the one drawn)."""
        self._point = (self._point + _GOLDEN) % _WORD
        table = self._usable if redistribute else self._all
        workload = next((workload for bound, workload in table if self._point < bound), None)
        if workload is None or self._is_over(workload):
            return None
        number = self._counts[workload]
        self._counts[workload] += 1
        if self._is_over(workload):
            self._usable = self._bounds(self._open())
        return workload, number

    def _is_over(self, workload: int) -> bool:
        left = self._left[workload]
        return left is not None and self._counts[workload] >= left

    def _open(self) -> list[int]:
        return [workload for workload in range(len(self._weights)) if not self._is_over(workload)]

    def _bounds(self, workloads: Sequence[int]) -> list[tuple[int, int]]:
        total = sum(self._weights[workload] for workload in workloads)
        bounds, so_far = [], Fraction(0)
        for workload in workloads:
            so_far += self._weights[workload]
            bounds.append((_WORD if so_far == total else int(so_far / total * _WORD), workload))
        return bounds
