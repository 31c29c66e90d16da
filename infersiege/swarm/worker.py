"""A worker process: joins a master, plays its share of the plan, sends its records home, goes.

Messages: hello → assignment → ready → go; then lease, clock and reports; drain → last segments → bye.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from infersiege.errors import ExitCode, InfersiegeError, InternalError, UsageError
from infersiege.plan.load import plan_from_json, plan_hash
from infersiege.records import (
    Ack,
    Assignment,
    Drain,
    Go,
    Grant,
    Hello,
    Ready,
    Reason,
    Refusal,
)
from infersiege.swarm import messages
from infersiege.swarm.clock import ClockExchange
from infersiege.swarm.control import RunControl
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.health import PROCESS_FILES, HealthMonitor, freeze_garbage, require_files, worker_files
from infersiege.swarm.joining import joined, watch_master
from infersiege.swarm.leaving import EARLY, LEAVE_DRAIN_NS, LeaveError, Leaving, leaving_line
from infersiege.swarm.luggage import Luggage, as_planned, must_be_the_masters, with_places
from infersiege.swarm.orders import Orders
from infersiege.swarm.session_users import Director, SessionUser
from infersiege.swarm.share import WorkerShare
from infersiege.swarm.spool import Spool, spool_path
from infersiege.swarm.spool_info import SpoolInfo
from infersiege.swarm.telling import early_farewell, farewell_of, report_of
from infersiege.swarm.versions import boot_id, versions

log = logging.getLogger("infersiege.swarm.worker")

HEARTBEAT_S = 0.5
REPORT_S = 1.0
RESEND_NS = 2_000_000_000
ACK_PATIENCE_NS = 2_500_000_000
"""How long the last segments may wait for their acknowledgement; what is left stays in the spool."""
ABORT_GRACE_S = 0.5


class Worker:
    """One worker's life; `run` gives the process's exit code."""

    def __init__(self, name: str, host: str, port: int, *, wait_s: float) -> None:
        self.name = name
        self._host, self._port, self._wait_s = host, port, wait_s
        self._control = RunControl()
        self._assigned = Event()
        self._draining = Event()
        self._finished = Event()
        self._assignment: Assignment | None = None
        self.share: WorkerShare | None = None
        self._spool: Spool | None = None
        self._health = HealthMonitor(name)
        self._failure: InfersiegeError | None = None
        self._exit_reason = "run over"
        self._runner: Any = None
        self._leaving = Leaving()
        self._report_sequence = 0
        self._shipped_at_ns: dict[int, int] = {}

    # ----------------------------------------------------------------------------------------------------------- life

    def run(self) -> int:
        """Blocks until the run is over, or a signal came. Returns an exit code; says what went wrong on stderr."""
        self._leaving.listen()
        try:
            code = self._live()
        except LeaveError:
            self._leave_early()
            code = ExitCode.INTERRUPTED
        return self._leaving.exit_code or code

    def _live(self) -> int:
        try:
            require_files(PROCESS_FILES, "a worker")
            self._connect()
        except InfersiegeError as error:
            return _told(error)
        try:
            self._set_up()
            self._leaving.in_load = self._leave
            background = [
                gevent.spawn(self._each, HEARTBEAT_S, self._beat),
                gevent.spawn(self._each, REPORT_S, self._report),
                gevent.spawn(self._each, 0.0, self._ask_for_grants),
                gevent.spawn(self._tell_trouble),
            ]
            self._health.start()
            self._draining.wait()
            self._drain()
            self._leaving.in_load = self._finished.set
            gevent.killall(background)
        except InfersiegeError as error:
            if error is not self._failure:  # else it is the master that refused us
                self._refuse(error)
        except Exception as error:
            log.exception("worker %s", self.name)
            self._refuse(InternalError(f"{type(error).__name__}: {error}"))
        if self._failure is not None:
            return _told(self._failure)
        if self._leaving.first is not None:
            self._clock.measured_again()  # the master answers once it has heard our farewell; its end may be far
        elif self._control.reason is Reason.NO_LEASE:  # the run did not end for us, wherever it is now
            return ExitCode.INVALID_RUN
        else:
            self._finished.wait(3.0)
        return ExitCode.PASS

    def _connect(self) -> None:
        """Raises what `joined` does."""
        self._environment = SiegeEnvironment([Director, SessionUser])
        self._runner = joined(self._environment, self._host, self._port, wait_s=self._wait_s, say=_say)
        self._luggage = Luggage(self._runner, platform.node(), _say)
        watch_master(self._runner, self._on_master_gone)
        messages.on(self._runner, Assignment, self._on_assignment)
        messages.on(self._runner, Refusal, self._on_refusal)
        self._clock = ClockExchange(self._runner, self.name)
        self._orders = Orders(self._runner, self._control)
        messages.on(self._runner, Go, self._on_go)
        messages.on(self._runner, Ack, self._on_ack)
        messages.on(self._runner, Grant, self._on_grant)
        messages.on(self._runner, Drain, self._on_drain)
        self._runner.greenlet.spawn(self._watch_quit)

    def _watch_quit(self) -> None:
        """Locust's `quit` kills this greenlet with all of the runner's: the master is through with us."""
        try:
            Event().wait()
        finally:
            self._finished.set()
            self._control.close(Reason.RUN_END, 0)
            self._draining.set()

    def _set_up(self) -> None:
        spool_directory = spool_path(self.name, os.environ)
        hello = Hello(
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            boot_id=boot_id(),
            versions=versions(),
            spool_dir=str(spool_directory),
        )
        for _ in range(10):
            messages.send(self._runner, hello)
            if self._assigned.wait(2.0):
                break
        if self._failure is not None:
            raise self._failure
        assignment = self._assignment
        if assignment is None:
            raise InternalError("the master did not answer our hello", hint="is it another version of infersiege?")
        try:
            self._spool = Spool(spool_directory, self.name)
        except OSError as error:
            raise UsageError(
                f"{spool_directory.parent}: no place for the records that are on their way: {error.strerror}",
                hint="the environment variable INFERSIEGE_SPOOL, or else TMPDIR, names a directory that can be written",
            ) from None
        try:
            self._prepare(assignment, self._spool)
        except BaseException:
            # It holds nothing, and nobody would ever ask for it.
            with contextlib.suppress(OSError):
                self._spool.close(remove=True)
            self._spool = None
            raise

    def _prepare(self, assignment: Assignment, spool: Spool) -> None:
        """Everything that can be done before the load."""
        self._clock.measure(assignment)
        offset_ns = assignment.offset_ns + self._clock.offset_ns
        plan = plan_from_json(assignment.plan)
        require_files(worker_files(plan, assignment.members), f"each of {assignment.members} workers")
        offset, doubt = self._clock.offset_ns, self._clock.uncertainty_ns
        info = SpoolInfo.of(assignment, plan, self.name, clock_offset_ns=offset, clock_uncertainty_ns=doubt)
        spool.describe(info, assignment.plan)
        with self._luggage.opened(assignment.files) as places, self._leaving.computing():
            here = with_places(plan, places)
            share = WorkerShare(assignment, here, self.name, spool, self._control, offset_ns, self._clock)
            trace_hashes = {as_planned(key, places): digest for key, digest in share.source.trace_hashes().items()}
        must_be_the_masters(trace_hashes, assignment.trace_hashes, platform.node())
        self.share = self._environment.share = share
        self._orders.follow(share, self._clock)
        self._environment.prepared.set()
        freeze_garbage()
        messages.send(
            self._runner,
            Ready(
                worker=self.name,
                plan_hash=plan_hash(plan),
                trace_hashes=trace_hashes,
                clock_offset_ns=self._clock.offset_ns,
                clock_uncertainty_ns=self._clock.uncertainty_ns,
            ),
        )

    # ------------------------------------------------------------------------------------------------- what comes in

    def _on_assignment(self, _: str, assignment: Assignment) -> None:
        self._assignment = assignment
        if assignment.worker is not None and assignment.worker != self.name:
            self.name = assignment.worker
            self._health = HealthMonitor(self.name)
        self._assigned.set()

    def _on_refusal(self, _: str, refusal: Refusal) -> None:
        if self._failure is None:  # else we refused first, and this is the master's answer to that
            self._failure = InfersiegeError(refusal.message, hint=refusal.hint)
            self._failure.exit_code = messages.exit_code_of(refusal)
        self._control.close(Reason.WORKER_LOST, 0)  # of one that was away, and whose part has somebody else by now
        self._assigned.set()
        self._draining.set()

    def _on_go(self, _: str, go: Go) -> None:
        if self._control.go.is_set():
            return  # It is said again to who was away.
        self._control.begin(go.start_ns - self._clock.offset_ns)
        if self._spool is not None and self._assignment is not None:
            self._spool.began(go.start_ns + self._assignment.offset_ns)
        if self.share is not None:
            self.share.begin()

    def _on_ack(self, _: str, ack: Ack) -> None:
        if self._spool is not None:
            self._spool.acknowledge(ack.sequence)
            self._shipped_at_ns.pop(ack.sequence, None)

    def _on_grant(self, _: str, grant: Grant) -> None:
        if self.share is not None:
            self.share.purse.grant(grant)

    def _on_drain(self, _: str, drain: Drain) -> None:
        self._orders.drain(drain)
        self._draining.set()

    def _on_master_gone(self, error: InfersiegeError) -> None:
        if not self._control.go.is_set():  # from then on it is the lease that tells
            self._failure = self._failure or error
            self._assigned.set()
            self._draining.set()

    def _leave(self) -> None:
        """A signal: the first one lets open turns end for a while, the next one cuts them."""
        share, why = self.share, self._leaving.why
        assert share is not None, "set-up is over"
        again = self._exit_reason == why
        drain_ns = 0 if again else min(LEAVE_DRAIN_NS, share.plan.load.drain_ns)
        began, flying = self._control.go.is_set(), len(share.turns.in_flight)
        if flying or not again:
            _say(leaving_line(why, drain_ns, flying) if began else f"{EARLY} ({why})")
        self._exit_reason = why
        self._control.close(Reason.INTERRUPTED, drain_ns)
        self._draining.set()

    def _leave_early(self) -> None:
        """A signal came before there was anything to leave in order."""
        _say(f"{EARLY} ({self._leaving.why})")
        if self._runner is not None:
            messages.send(self._runner, early_farewell(self.name, self._leaving.why))
            self._clock.measured_again()  # what is answered was behind our farewell

    # ------------------------------------------------------------------------------------------------- what goes out

    def _each(self, seconds: float, work: Callable[[], None]) -> None:
        """Do it again and again. A failure is logged and the next one is tried: without it the master would hang."""
        while True:
            try:
                work()
            except Exception:
                log.exception("worker %s", self.name)
            gevent.sleep(seconds)

    def _beat(self) -> None:
        """A sign of life, and new records; also ends a worker whose master is gone."""
        self._clock.ping()
        self._ship()
        if self._control.orphaned() and not self._draining.is_set():
            self._exit_reason = "the master is gone"
            self._control.close(Reason.NO_LEASE, 0)
            self._draining.set()

    def _report(self) -> None:
        share = self.share
        if share is None:
            return
        self._report_sequence += 1
        clock, sequence = self._clock.reading(), self._report_sequence
        report = report_of(share, self.name, self._health, clock, sequence=sequence)
        messages.send(self._runner, report)
        self._tell_spending(share)
        self._orders.tell_held()

    def _ask_for_grants(self) -> None:
        if self.share is not None:
            self.share.purse.asking.wait()
            self._tell_spending(self.share)

    def _tell_trouble(self) -> None:
        """At once: the load ends with it."""
        if self.share is not None:
            self.share.stopped.wait()
            self._report()

    def _tell_spending(self, share: WorkerShare) -> None:
        spending = share.purse.spending()
        if spending is not None:
            messages.send(self._runner, spending)

    def _ship(self) -> None:
        """Send new segments, and again those that were not acknowledged in time."""
        if self._spool is None:
            return
        self._spool.cut()
        now_ns = time.monotonic_ns()
        for segment in self._spool.unacknowledged():
            if now_ns - self._shipped_at_ns.get(segment.sequence, -RESEND_NS) >= RESEND_NS:
                self._shipped_at_ns[segment.sequence] = now_ns
                messages.send(self._runner, segment)

    # -------------------------------------------------------------------------------------------------------- the end

    def _drain(self) -> None:
        """Let open turns end, cancel the rest, ship everything, say farewell."""
        share, spool = self.share, self._spool
        if share is None or spool is None:
            return
        self._report()  # what the end costs is none of the load's seconds
        users = self._runner.user_greenlets
        while len(users) and not self._over():
            users.join(timeout=0.05)
        share.turns.abort_all(f"cut at the end: {self._control.reason}")
        if not users.join(timeout=ABORT_GRACE_S):
            users.kill(timeout=ABORT_GRACE_S)
        share.ledger.skip_all(self._control.reason)
        orphaned = self._control.reason is Reason.NO_LEASE
        deadline_ns = time.monotonic_ns() + (0 if orphaned else ACK_PATIENCE_NS)
        while not spool.empty() and time.monotonic_ns() < deadline_ns and not self._finished.is_set():
            self._ship()
            gevent.sleep(0.05)
        offset_ns, why = 0 if orphaned else self._clock.measured_again(), self._exit_reason
        self._report()
        bye = farewell_of(share, self.name, self._health, spool, clock_offset_ns=offset_ns, why=why)
        messages.send(self._runner, bye)
        left = spool.leave(bye, time.monotonic_ns() + share.offset_ns, orphaned=orphaned)
        if left is not None:
            print(left, file=sys.stderr)

    def _over(self) -> bool:
        end_ns = self._control.drain_end_ns
        return end_ns is not None and time.monotonic_ns() >= end_ns

    def _refuse(self, error: InfersiegeError) -> None:
        self._failure = self._failure or error
        refusal = Refusal(worker=self.name, message=str(error), hint=error.hint, exit_code=int(error.exit_code))
        messages.send(self._runner, refusal)
        gevent.sleep(0.2)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _told(error: InfersiegeError) -> int:
    _say(f"error: {error}" + (f" ({error.hint})" if error.hint else ""))  # the master shows the last line of a log
    return int(error.exit_code)


def run_worker(name: str | None, host: str, port: int, *, wait_s: float) -> int:
    """Entry point of `infersiege worker`, which waits so long for its master. Returns the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    code = Worker(name or f"{platform.node()}-{os.getpid()}", host, port, wait_s=wait_s).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # ZeroMQ's context waits for ever for what a dead master will not take; everything of ours is on disk by now.
    os._exit(int(code))
