"""How far the master's clock is from a worker's: measured at the start, watched during the run, looked at in the end.

Only monotonic clocks are compared, and the records of a run keep the offset of its start, so that no step of a wall
clock (NTP, an operator) moves an instant. What may be done, and until when (leases, permits), goes by the offset of the
moment: the clock of a machine that was suspended has another one since. The way is NTP's: of several exchanges the
quickest one knows best, by half of its round trip, and what it knew fades as oscillators run apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import gevent

from infersiege.errors import InternalError
from infersiege.records import Assignment, ClockPing, Report
from infersiege.swarm import messages
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.versions import boot_id

CLOCK_PINGS = 10
PING_PATIENCE_S = 0.1

CLOCK_DRIFT_NS = 50_000_000
"""Clocks that drifted further apart during a run, or that are known less well, are worth a warning."""

REMEMBERED_NS = 60_000_000_000
"""An exchange counts for so long."""

FADES_PPM = 100
"""So fast a free oscillator may run from another one: what an exchange knew is in doubt by so much more each second."""


class Reading(NamedTuple):
    """Master's monotonic clock minus a worker's, right to within `uncertainty_ns`."""

    offset_ns: int
    uncertainty_ns: int


SAME: Final = Reading(0, 0)
"""Of a worker whose clock is the master's own."""


class _Exchange(NamedTuple):
    offset_ns: int
    half_ns: int
    """Of the round trip: the answer was made somewhere between."""
    at_ns: int
    """When it came back, on the worker's clock."""

    def doubt_ns(self, now_ns: int) -> int:
        return self.half_ns + max(0, now_ns - self.at_ns) * FADES_PPM // 1_000_000


@dataclass(slots=True)
class ClockEstimate:
    """Master's monotonic clock minus this worker's, from the exchanges of the last minute."""

    answers: int = 0
    """In all."""
    _kept: list[_Exchange] = field(default_factory=list)
    _best: _Exchange | None = None
    """Of those; None: to be looked for. All doubts grow alike, so it stays the best one until another one comes."""
    _last: tuple[int, int] | None = None
    """Of the last exchange: when the worker asked, and the master's answer."""

    def add(self, ping: ClockPing, received_ns: int) -> None:
        """An answer of the master. One that can't be (it came before it was asked for) is none."""
        if ping.master_ns is None or received_ns < ping.sent_ns:
            return
        self.answers += 1
        half_ns = (received_ns - ping.sent_ns + 1) // 2
        new = _Exchange(ping.master_ns - (ping.sent_ns + received_ns) // 2, half_ns, received_ns)
        # What contradicts it is of another clock: one of the two was stopped (a suspended machine) or set since then.
        self._kept = [
            old
            for old in self._kept
            if received_ns - old.at_ns <= REMEMBERED_NS
            and abs(old.offset_ns - new.offset_ns) <= old.doubt_ns(received_ns) + half_ns
        ]
        self._kept.append(new)
        self._best = None
        self._last = ping.sent_ns, ping.master_ns

    def at_latest(self, at_ns: int) -> int | None:
        """A past instant of the worker's clock on the master's, at the latest; None: nothing was asked since then.

        That holds whatever the worker's clock did, as long as it did not run too fast: if it stood still, it did so
        before the instant, which then the answer knows of, or between it and the question, and then it was earlier.
        """
        if self._last is None or at_ns >= self._last[0]:
            return None
        sent_ns, master_ns = self._last
        return master_ns - (sent_ns - at_ns)

    def reading(self, now_ns: int) -> Reading | None:
        """What is known at this instant of the worker's clock; None: nothing yet, or all of it is too old."""
        best = self._best
        if best is None or now_ns - best.at_ns > REMEMBERED_NS:
            known = (one for one in self._kept if now_ns - one.at_ns <= REMEMBERED_NS)
            best = self._best = min(known, key=lambda one: one.doubt_ns(now_ns), default=None)
        return None if best is None else Reading(best.offset_ns, best.doubt_ns(now_ns))


def applied(measured: Reading | None, *, same_boot: bool) -> Reading | None:
    """The offset that a worker's instants get.

    Processes of one kernel have one monotonic clock, unless a time namespace (containers, checkpoints) moves it: what
    was measured is believed where it contradicts that.
    """
    if not same_boot:
        return measured
    if measured is None or abs(measured.offset_ns) <= measured.uncertainty_ns:
        return SAME
    return measured


class ClockExchange:
    """A worker's exchange of clock messages with its master."""

    def __init__(self, runner: Any, name: str) -> None:
        self._runner = runner
        self._name = name
        self._estimate = ClockEstimate()
        self._same_boot = False
        self.offset_ns = self.uncertainty_ns = 0
        """Of the start: the instants of records keep it."""
        self.on_compared: list[Callable[[], None]] = []
        """Called after each exchange; must not yield."""
        messages.on(runner, ClockPing, self._on_answer)

    def ping(self) -> None:
        """Also a sign of life."""
        messages.send(self._runner, ClockPing(worker=self._name, sent_ns=time.monotonic_ns()))

    def measure(self, assignment: Assignment) -> None:
        """A few exchanges give offset and doubt. Raises InternalError for a master that does not answer."""
        self._same_boot = assignment.boot_id == boot_id()
        self._exchange()
        found = self.reading()
        if found is None:
            raise InternalError(f"{self._name}: the master answers no clock messages")
        self.offset_ns, self.uncertainty_ns = found

    def reading(self) -> Reading | None:
        """What is known now, from the exchanges of the last minute; None: the master has not answered for so long."""
        return applied(self._estimate.reading(time.monotonic_ns()), same_boot=self._same_boot)

    def now(self) -> int:
        """This worker's monotonic clock."""
        return time.monotonic_ns()

    def at_latest(self, at_ns: int) -> int | None:
        """As of `ClockEstimate`; the instant itself, where it is the master's own clock."""
        return at_ns if self._same_boot and self.reading() == SAME else self._estimate.at_latest(at_ns)

    def measured_again(self) -> int:
        """The offset now, for the drift; that of the start where the master answers no more."""
        self._exchange()
        found = self.reading()
        return self.offset_ns if found is None else found.offset_ns

    def _on_answer(self, _: str, ping: ClockPing) -> None:
        self._estimate.add(ping, time.monotonic_ns())
        for tell in self.on_compared:
            tell()

    def _exchange(self) -> None:
        for _ in range(CLOCK_PINGS):
            seen = self._estimate.answers
            self.ping()
            deadline = time.monotonic() + PING_PATIENCE_S
            while self._estimate.answers == seen and time.monotonic() < deadline:
                gevent.sleep(0.001)


# ------------------------------------------------------------------------------------------------- the master's side


class ClockWatch:
    """Tells once of each worker that its clock is not known well enough, and once that it drifted."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def look(self, worker: WorkerState, report: Report, note: Callable[..., None]) -> None:
        """`note(kind, detail, worker=name)` is called for what there is to say after a report, and was not said."""
        if report.clock_offset_ns is None or report.clock_uncertainty_ns is None:
            return
        now = Reading(report.clock_offset_ns, report.clock_uncertainty_ns)
        if (doubt := in_doubt(worker.name, worker.clock_uncertainty_ns)) and self._first(worker, "doubt"):
            note("clock_doubt", doubt, worker=worker.name)
        if (drift := drifted(worker, now)) and self._first(worker, "drift"):
            note("clock_drift", drift, worker=worker.name)

    def _first(self, worker: WorkerState, what: str) -> bool:
        before = len(self._told)
        self._told.add((worker.name, what))
        return len(self._told) > before


def in_doubt(name: str, uncertainty_ns: int) -> str | None:
    if uncertainty_ns <= CLOCK_DRIFT_NS:
        return None
    return (
        f"the clock of {name} is only known to within {uncertainty_ns / 1e6:.0f} ms: so far its instants may be from "
        "those of other workers; its own durations are right"
    )


def drifted(worker: WorkerState, now: Reading) -> str | None:
    """None: it did not, or not surely."""
    drift_ns = now.offset_ns - worker.clock_offset_ns
    if abs(drift_ns) <= max(CLOCK_DRIFT_NS, worker.clock_uncertainty_ns + now.uncertainty_ns):
        return None
    return f"the clock of {worker.name} drifted by {drift_ns / 1e6:.0f} ms against the master's during the run"


def last_reading(worker: WorkerState) -> Reading | None:
    """Of its farewell, or of its last report; None: it was never measured again."""
    report = worker.report
    doubt_ns = report.clock_uncertainty_ns if report is not None else None
    if worker.bye is not None:
        return Reading(worker.bye.clock_offset_ns, doubt_ns or 0)
    if report is None or report.clock_offset_ns is None or doubt_ns is None:
        return None
    return Reading(report.clock_offset_ns, doubt_ns)


def drift_ns(worker: WorkerState) -> int | None:
    """How far its clock had gone by the end, against the offset of its start; None: not known."""
    found = last_reading(worker)
    return None if found is None else found.offset_ns - worker.clock_offset_ns


def clock_warnings(workers: Iterable[WorkerState]) -> Iterator[str]:
    """For the summary."""
    for worker in workers:
        found = last_reading(worker)
        told = (
            None if worker.ready is None else in_doubt(worker.name, worker.clock_uncertainty_ns),
            None if found is None else drifted(worker, found),
        )
        yield from (line for line in told if line is not None)
