"""Exactly one Director on each worker: Locust places it, and has nothing to rebalance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class OnePerWorker:
    """Duck type of Locust's UsersDispatcher: a join adds one Director, a death touches nobody."""

    def __init__(self, worker_nodes: list[Any], user_classes: list[type[Any]]) -> None:
        self._waiting = {node.id for node in worker_nodes}
        """Nodes that have no Director yet: Locust dispatches again at each join and removal of a worker."""
        self._director = user_classes[0].__name__
        self._pending = False

    @property
    def dispatch_in_progress(self) -> bool:
        """Locust asks before it dispatches anew, at each join and departure. Where nobody waits it would dispatch
        nothing, and fail at that in its receiver."""
        return not self._waiting

    def new_dispatch(
        self, target_user_count: int, spawn_rate: float, user_classes: list[type[Any]] | None = None
    ) -> None:
        self._pending = True

    def add_worker(self, worker_node: Any) -> None:
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
        return {node: {self._director: 1} for node in nodes}
