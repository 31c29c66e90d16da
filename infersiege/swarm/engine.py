"""Locust's environment as we use it: no command line, one Director on each worker, and an end of our own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import locust.runners
from gevent.event import Event
from locust.env import Environment
from locust.event import Events
from locust.user import User

from infersiege.swarm.dispatcher import OnePerWorker

if TYPE_CHECKING:
    from infersiege.swarm.share import WorkerShare

NEVER = 10**9
"""Seconds."""


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
        os.environ.setdefault("LOCUST_WAIT_FOR_WORKERS_REPORT_AFTER_RAMP_UP", "0")
        events: Any = Events
        dispatcher: Any = OnePerWorker
        # stop_timeout 0: while Locust stops users a worker is deaf, so draining is not left to it.
        super().__init__(user_classes=user_classes, events=events(), dispatcher_class=dispatcher, stop_timeout=0)
        self.prepared = Event()
