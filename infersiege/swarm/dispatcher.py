"""Exactly one Director on each worker: Locust places it, and has nothing to rebalance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class OnePerWorker:
    """Duck type of Locust's UsersDispatcher: a join adds one Director, a death touches nobody.

    `SiegeEnvironment.place_directors` begins a dispatch, and only where somebody waits for one: Locust's `start` fails
    at a dispatch of nothing.
    """

    dispatch_in_progress = True
    """Locust asks before it dispatches by itself, in its receiver, at each join and departure. It never is to: whom it
    had served, ours would find gone."""

    def __init__(self, worker_nodes: list[Any], user_classes: list[type[Any]]) -> None:
        self._waiting = {node.id for node in worker_nodes}
        """Nodes that have no Director yet."""
        self._served: set[str] = set()
        self._director = user_classes[0].__name__
        self._pending = False

    @property
    def waits(self) -> bool:
        """Somebody has no Director yet."""
        return bool(self._waiting)

    def new_dispatch(
        self, target_user_count: int, spawn_rate: float, user_classes: list[type[Any]] | None = None
    ) -> None:
        self._pending = True

    def add_worker(self, worker_node: Any) -> None:
        """A second Director would play a worker's share again, so whoever says again that it is ready gets none."""
        if worker_node.id not in self._served:
            self._waiting.add(worker_node.id)

    def remove_worker(self, worker_node: Any) -> None:
        self._waiting.discard(worker_node.id)

    def __iter__(self) -> Iterator[dict[str, dict[str, int]]]:
        return self

    def __next__(self) -> dict[str, dict[str, int]]:
        if not self._pending:
            raise StopIteration
        self._pending = False
        nodes, self._waiting = self._waiting, set()
        self._served |= nodes
        return {node: {self._director: 1} for node in nodes}
