"""The Locust users of a worker: one Director that paces, and Session users that it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locust import User, task
from locust.exception import StopUser

if TYPE_CHECKING:
    from infersiege.swarm.branches import PreparedSession
    from infersiege.swarm.engine import SiegeEnvironment
    from infersiege.swarm.share import WorkerShare


class SessionUser(User):
    """A real Locust user: counted, stopped and shown by Locust. In a closed loop it plays one session after another."""

    share: WorkerShare
    due_ns: int
    """When its first session is due (monotonic)."""
    prepared: PreparedSession | None = None
    """Open loop: the one session that it plays."""

    @task
    def play(self) -> None:
        try:
            if self.prepared is not None:
                self.share.play(self.prepared, self.due_ns)
            else:
                self.share.play_closed(self.due_ns)
        except Exception as error:  # noqa: BLE001 - Locust would only log it, and call this task again
            self.share.failed(error)
        raise StopUser


class Director(User):
    """Paces this worker's share of the load on absolute times, and starts the users that carry it."""

    environment: SiegeEnvironment

    @task
    def direct(self) -> None:
        share = self.environment.share
        if share is not None:
            try:
                share.direct(self._start)
            except Exception as error:  # noqa: BLE001 - as above
                share.failed(error)
        raise StopUser

    def _start(self, due_ns: int, prepared: PreparedSession | None) -> Any:
        share, runner = self.environment.share, self.environment.runner
        if share is None or runner is None:
            raise StopUser
        user = SessionUser(self.environment)
        user.share, user.due_ns, user.prepared = share, due_ns, prepared
        return user.start(runner.user_greenlets)
