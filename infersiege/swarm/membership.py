"""Who takes part in a run at this moment: leases, who is lost, who is back, who is new, and whose is what by then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from infersiege.errors import ExitCode
from infersiege.plan.schema import Plan
from infersiege.plan.streams import streams_of
from infersiege.records import EpochAnswer, Lease, Refusal, Report, SlotsHeld
from infersiege.schedule.epochs import Table
from infersiege.swarm import messages
from infersiege.swarm.fleet import Fleet, WorkerState
from infersiege.swarm.seats import TABLE, Letter, Seats

LEASE_NS = 3_000_000_000
LEASE_EVERY_NS = 500_000_000
MARGIN_NS = 200_000_000
"""Beyond the end of a silent worker's lease: for clocks that are not quite the same, and turns that start early."""
SLOTS_EVERY_NS = 1_000_000_000
"""Users are told again and again once they have moved: a message may be lost."""


class Membership:
    """Leads the workers of one run from epoch to epoch. Instants are the master's monotonic clock."""

    def __init__(self, fleet: Fleet, plan: Plan, *, note: Callable[[str, str, str | None], None]) -> None:
        """`note(kind, detail, worker)` is told what happens."""
        self._fleet = fleet
        self._streams = streams_of(plan)
        self.note = note
        self._runner: Any = None
        self._seats: Seats | None = None
        self._start_ns = 0
        self._over = False
        self._leased_ns = self._told_slots_ns = 0
        self._sequence = 0

    def open(self, runner: Any) -> None:
        self._runner = runner
        messages.on(runner, EpochAnswer, self._on_answer)
        messages.on(runner, SlotsHeld, self._on_held)

    @property
    def table(self) -> Table | None:
        """The epochs of the run; None: it has not begun."""
        return None if self._seats is None else self._seats.table

    @property
    def until_index(self) -> tuple[int, ...]:
        """How far leases have let closed streams go (`Lease.until_index`); empty: the run has not begun."""
        return () if self._seats is None else self._seats.until_index

    @property
    def settled(self) -> bool:
        """Who is there has all that is to be played, and has told of it since then."""
        seats = self._seats
        if seats is None or not seats.settled:
            return False
        reports = [worker.report for worker in self._fleet.members()]
        return all(report is not None and report.epoch == seats.table.number for report in reports)

    def begin(self, start_ns: int, now_ns: int) -> None:
        """The load begins with those who are ready."""
        self._start_ns = start_ns
        workers = [worker for worker in self._fleet.alive() if worker.ready is not None]
        users = {
            stream.number: max((stage.users for stage in stream.users), default=0)
            for stream in self._streams
            if stream.load.mode == "closed"
        }
        last = max(stream.number for stream in self._streams) + 1
        self._seats = Seats([worker.name for worker in workers], streams=last, users=users)
        for worker in workers:
            self.admit(worker, now_ns)

    def admit(self, worker: WorkerState, now_ns: int) -> None:
        """A worker takes its seat: it learns whose everything is, and is leased from now on."""
        worker.admitted, worker.last_seen_ns = True, now_ns
        self._inform(worker)
        messages.send(self._runner, self._lease(now_ns), worker.node_id)

    def changed(self, *, lost: WorkerState | None = None, now_ns: int = 0) -> None:
        """Somebody came, or is lost, who may go on until its lease is over unless it is known to have ended."""
        if self._seats is None or self._over:
            return
        until_ns, untold = 0, lost is not None and lost.bye is None
        if lost is not None and untold and not lost.gone:
            until_ns = now_ns - self._start_ns + LEASE_NS + MARGIN_NS + lost.clock_uncertainty_ns
        members = [worker.name for worker in self._fleet.members()]
        self._seats.change(members, goes_on_until_ns=until_ns, untold=untold)

    def reported(self, worker: WorkerState, report: Report, now_ns: int) -> None:
        """A worker tells how far it is, and what it knows."""
        if self._seats is None or self._over or not worker.admitted or not worker.alive:
            return
        if report.epoch < self._seats.table.number:
            self._inform(worker)
        if self._seats.told(worker.name, report.next_index, now_ns):
            self._renew(now_ns)

    def tick(self, now_ns: int) -> None:
        """Renew leases and take the next steps."""
        seats = self._seats
        if seats is None or self._over:
            return
        if now_ns - self._leased_ns > LEASE_EVERY_NS:
            self._renew(now_ns)
        number = seats.table.number
        self._send(seats.tick(now_ns - self._start_ns))
        if seats.table.number != number:
            epoch = seats.table.last
            from_s = epoch.from_offset_ns / 1e9
            self.note("epoch", f"epoch {epoch.number}, from {from_s:.1f} s on: {', '.join(epoch.members)}", None)
            self._renew(now_ns)
        if number and now_ns - self._told_slots_ns > SLOTS_EVERY_NS:
            self._told_slots_ns = now_ns
            self._send(Letter(worker.name, seats.slots_of(worker.name)) for worker in self._fleet.members())

    def end(self) -> None:
        """The load is over: whose is what stays as it is."""
        self._over = True

    @property
    def number(self) -> int:
        """Of the epoch in force."""
        return 0 if self._seats is None else self._seats.table.number

    def returning(self, now_ns: int) -> Iterator[WorkerState]:
        """Lost workers that were heard again, once each; those whose seat somebody else has are sent away."""
        for worker in self._fleet.heard_again():
            if self._fleet.has_seat(worker):
                worker.away.append((worker.lost_at_ns or now_ns, now_ns))
                worker.lost_at_ns, worker.last_seen_ns = None, now_ns
                if worker.admitted:
                    self._inform(worker)
                yield worker
            else:
                worker.sent_away = True
                taken = f"{worker.name} was away for too long: its place in the run has somebody else"
                refusal = Refusal(worker=worker.name, message=taken, hint=None, exit_code=int(ExitCode.INVALID_RUN))
                messages.send(self._runner, refusal, worker.node_id)
                self.note("worker_refused", taken, worker.name)

    def _inform(self, worker: WorkerState) -> None:
        if self._seats is not None:
            self._send(self._seats.letters_for(worker.name))

    def _renew(self, now_ns: int) -> None:
        self._leased_ns = now_ns
        self._tell(self._lease(now_ns), self._fleet.members())

    def _lease(self, now_ns: int) -> Lease:
        self._sequence += 1
        return Lease(
            duration_ns=LEASE_NS,
            sequence=self._sequence,
            epoch=self.number,
            sent_ns=now_ns,
            until_index=self.until_index,
        )

    def _send(self, letters: Iterable[Letter]) -> None:
        """Also to who is lost, and may hear it."""
        for letter in letters:
            one = None if letter.to == TABLE else self._fleet.by_name(letter.to)
            readers = self._fleet.workers.values() if letter.to == TABLE else () if one is None else (one,)
            self._tell(letter.message, [worker for worker in readers if worker.admitted])

    def _tell(self, message: msgspec.Struct, workers: Iterable[WorkerState]) -> None:
        messages.send_each(self._runner, message, (worker.node_id for worker in workers))

    def _on_answer(self, node_id: str, answer: EpochAnswer) -> None:
        worker = self._fleet.seen(node_id)
        if worker is None or self._seats is None or self._over or not worker.alive:
            return
        now_ns = time.monotonic_ns()
        if self._seats.answered(worker.name, answer, now_ns - self._start_ns):
            self._renew(now_ns)

    def _on_held(self, node_id: str, held: SlotsHeld) -> None:
        worker = self._fleet.seen(node_id)
        if worker is not None and self._seats is not None and worker.alive and not self._over:
            self._send(self._seats.held(worker.name, held))
