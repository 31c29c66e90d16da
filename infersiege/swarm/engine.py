"""Locust's environment as we use it: no command line, one Director on each worker, and an end of our own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import locust.runners
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from locust.env import Environment
from locust.event import Events
from locust.user import User

from infersiege.swarm.dispatcher import OnePerWorker

log = logging.getLogger("infersiege.swarm.engine")

if TYPE_CHECKING:
    from infersiege.swarm.share import WorkerShare

NEVER = 10**9
"""Seconds."""

LOCUSTS_LINES = 50
"""Warnings of Locust's runner that are shown: it has one for each message of a node that it does not know."""
FAULTS_SHOWN = 3


class _Few(logging.Filter):
    """Lets so many records through."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def filter(self, record: logging.LogRecord) -> bool:
        self._left -= record.levelno >= logging.WARNING
        return self._left >= 0


class SiegeEnvironment(Environment):
    """An Environment that knows what its users play."""

    share: WorkerShare | None = None
    """Of a worker, as soon as it has one."""
    prepared: Any
    """Event: it has."""

    def __init__(self, user_classes: list[type[User]]) -> None:
        """The first of `user_classes` is the one that Locust places, once on each worker."""
        # Who is alive is ours to say (fleet.py, control.py, joining.py). Locust stops the test when its last worker is
        # silent for 4 s, spawns anew when one comes back, and ends a worker by the wall clock, which NTP may set.
        locust.runners.HEARTBEAT_LIVENESS = locust.runners.MASTER_HEARTBEAT_TIMEOUT = NEVER
        runners = logging.getLogger("locust.runners")
        if not any(isinstance(one, _Few) for one in runners.filters):
            runners.addFilter(_Few(LOCUSTS_LINES))
        os.environ.setdefault("LOCUST_WAIT_FOR_WORKERS_REPORT_AFTER_RAMP_UP", "0")
        events: Any = Events
        self.dispatcher: OnePerWorker | None = None
        """Of a master that has placed Directors."""
        self._placing = BoundedSemaphore()
        dispatcher: Any = self._new_dispatcher
        # stop_timeout 0: while Locust stops users a worker is deaf, so draining is not left to it.
        super().__init__(user_classes=user_classes, events=events(), dispatcher_class=dispatcher, stop_timeout=0)
        self.prepared = Event()

    def _new_dispatcher(self, worker_nodes: list[Any], user_classes: list[type[Any]]) -> OnePerWorker:
        self.dispatcher = OnePerWorker(worker_nodes, user_classes)
        return self.dispatcher

    def place_directors(self, workers: int) -> None:
        """On each worker that has none; `workers` is only Locust's count. Blocks its greenlet for a moment.

        Those of two joins are placed one after the other, and by then there may be nothing left to do.
        """
        runner: Any = self.runner
        with self._placing:
            if self.dispatcher is None or self.dispatcher.waits:
                runner.start(workers, 100)

    def forget(self, node_id: str) -> None:
        """A node that was not let in: Locust would keep each that ever knocked."""
        runner: Any = self.runner
        node = runner.clients.pop(node_id, None)
        runner.worker_indexes.pop(node_id, None)
        if node is not None and self.dispatcher is not None:
            self.dispatcher.remove_worker(node)

    def create_master_runner(self, master_bind_host: str = "127.0.0.1", master_bind_port: int = 0) -> Any:
        """Locust's, whose receiver lives on whatever a message does to its handler."""
        runner: Any = super().create_master_runner(master_bind_host, master_bind_port)
        handle: Callable[[str, Any], None] = runner.handle_message
        faults = 0

        def guarded(client_id: str, message: Any) -> None:
            nonlocal faults
            try:
                # Locust looks through all its workers after each message, which ours do not change.
                ours = runner.custom_messages.get(message.type)
                if ours is None:
                    handle(client_id, message)
                else:
                    ours[0](environment=self, msg=message)
            except Exception:
                faults += 1
                if faults <= FAULTS_SHOWN:
                    log.exception("handling %s of %.80s", message.type, client_id)

        runner.handle_message = guarded
        return runner
