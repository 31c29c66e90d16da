"""What a master does when a worker comes, goes, or is back: everybody who has to know is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent

from infersiege.records import Go
from infersiege.report.live import LiveView
from infersiege.swarm import messages
from infersiege.swarm.budget import Treasury
from infersiege.swarm.ending import Ending
from infersiege.swarm.figures import LiveFigures
from infersiege.swarm.fleet import Fleet, WorkerState
from infersiege.swarm.membership import Membership
from infersiege.telemetry.publisher import Publisher


class Attendance:
    """Looks who is there. Instants are the master's monotonic clock."""

    def __init__(
        self,
        fleet: Fleet,
        membership: Membership,
        treasury: Treasury,
        figures: LiveFigures,
        publisher: Publisher,
        view: LiveView,
        note: Callable[[str, str, str | None], None],
    ) -> None:
        """`note(kind, detail, worker)` is told what happens."""
        self._fleet = fleet
        self._membership = membership
        self._treasury = treasury
        self._figures = figures
        self._publisher = publisher
        self._view = view
        self._note = note
        self._runner: Any = None
        self._start_ns = 0

    def begin(self, runner: Any, start_ns: int, now_ns: int) -> None:
        """The load begins with those who are ready; its first arrival is due at `start_ns`."""
        self._runner, self._start_ns = runner, start_ns
        self._membership.begin(start_ns, now_ns)
        for worker in self._fleet.members():
            self._go(worker, now_ns)
        self._place_directors()

    def look(self, now_ns: int, ending: Ending | None) -> None:
        """Who is lost since the last look, who is back, and who is new."""
        heard_ns = None if self._runner is None else self._runner.server.heard_until_ns
        for worker in self._fleet.newly_dead(now_ns, heard_ns):
            self.lose(worker)
        for worker in self._membership.returning(now_ns):
            self._take_back(worker, ending)
        for worker in self._fleet.alive() if ending is None else ():
            if worker.ready is not None and not worker.admitted:
                self._admit(worker, now_ns)

    def lose(self, worker: WorkerState) -> None:
        """Whoever was silent may live on, and come back."""
        note, who = self._note, f"{worker.name} on {worker.hello.host} (pid {worker.hello.pid})"
        if not worker.admitted:
            self._fleet.remove(worker)
            how = "was lost" if worker.bye is None else f"left ({worker.bye.exit_reason})"
            note("worker_left", f"{who} {how} before it took part", worker.name)
            return
        self._figures.drop(worker.name)
        self._treasury.lose(worker.name)
        self._publisher.lost(worker.name)
        self._membership.changed(lost=worker, now_ns=worker.lost_at_ns or time.monotonic_ns())
        note("worker_lost", who, worker.name)
        self._view.say(f"worker lost: {worker.name} on {worker.hello.host}", style="bold red")

    def _take_back(self, worker: WorkerState, ending: Ending | None) -> None:
        note, (lost_ns, back_ns) = self._note, worker.away[-1]
        self._treasury.found(worker.name)
        self._membership.changed()
        who = f"{worker.name} on {worker.hello.host}, {(back_ns - lost_ns) / 1e9:.1f} s after it was lost"
        note("worker_back", who, worker.name)
        self._view.say(f"worker is back: {who}")
        # One that was away when the load began has not heard that it did.
        messages.send(self._runner, Go(start_ns=self._start_ns), worker.node_id)
        if ending is not None:
            left_ns = max(0, ending.at_ns + ending.drain_ns - back_ns)
            drain = ending.drain(left_ns, ending.reason, self._membership.number)
            messages.send(self._runner, drain, worker.node_id)

    def _admit(self, worker: WorkerState, now_ns: int) -> None:
        """Who joins during the load has a lost one's seat from the next epoch on."""
        note, who = self._note, f"{worker.name} on {worker.hello.host} (pid {worker.hello.pid})"
        self._membership.admit(worker, now_ns)
        self._go(worker, now_ns)
        self._membership.changed()
        note("worker_joined", who, worker.name)
        self._view.say(f"worker joined: {worker.name} on {worker.hello.host}")
        self._place_directors()

    def _go(self, worker: WorkerState, now_ns: int) -> None:
        messages.send(self._runner, self._treasury.first(worker.name, now_ns), worker.node_id)
        messages.send(self._runner, Go(start_ns=self._start_ns), worker.node_id)

    def _place_directors(self) -> None:
        gevent.spawn(self._runner.environment.place_directors, len(self._fleet.members()))
