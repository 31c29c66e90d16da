"""The Locust users of a worker: one Director that paces, and Session users that it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from locust import User, task
from locust.exception import StopUser

if TYPE_CHECKING:
    from infersiege.swarm.engine import SiegeEnvironment
    from infersiege.swarm.share import WorkerShare


class SessionUser(User):
    """A real Locust user: counted, stopped and shown by Locust."""

    share: WorkerShare
    life: Callable[[], None]
    """Open loop: one session; closed: one after another."""

    @task
    def play(self) -> None:
        try:
            self.life()
        except Exception as error:  # noqa: BLE001 - Locust would only log it, and call this task again
            self.share.failed(error)
        raise StopUser


class Director(User):
    """Paces this worker's share of the load on absolute times, and starts the users that carry it."""

    environment: SiegeEnvironment

    @task
    def direct(self) -> None:
        self.environment.prepared.wait()  # Who joins during the load gets its Director before it has read its traces.
        share = self.environment.share
        if share is not None:
            try:
                share.direct(self._start)
            except Exception as error:  # noqa: BLE001 - as above
                share.failed(error)
        raise StopUser

    def _start(self, life: Callable[[], None]) -> Any:
        share, runner = self.environment.share, self.environment.runner
        if share is None or runner is None:
            raise StopUser
        user = SessionUser(self.environment)
        user.share, user.life = share, life
        return user.start(runner.user_greenlets)
