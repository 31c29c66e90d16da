"""The master of one run: workers in, records home, an end of our own."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gevent
import msgspec
from locust.exception import RPCError

from infersiege.errors import DiskError, RunInvalidError, UsageError
from infersiege.plan.schema import Plan
from infersiege.records import Ack, Bye, Drain, EventRow, Reason, Refusal, Report, Segment, Spending
from infersiege.report.live import LiveView
from infersiege.rundir import RunDirectory
from infersiege.swarm import messages
from infersiege.swarm.attendance import Attendance
from infersiege.swarm.budget import Treasury, limits_of
from infersiege.swarm.checking import CheckWatch
from infersiege.swarm.clock import ClockWatch
from infersiege.swarm.door import Door, Terms
from infersiege.swarm.ending import ALL_PLAYED, Ending, MasterOptions, MasterResult, why_stopped
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.figures import LiveFigures
from infersiege.swarm.fleet import Fleet, WorkerState, end_of, last_line
from infersiege.swarm.intake import Intake
from infersiege.swarm.membership import Membership
from infersiege.swarm.ratelimit import rates_of
from infersiege.swarm.rpc import shown_address
from infersiege.swarm.session_users import Director
from infersiege.swarm.stages import StageWatch
from infersiege.swarm.status_page import StatusBoard
from infersiege.swarm.timeline import Timeline
from infersiege.telemetry.publisher import Publisher

TICK_S = 0.05
SHOW_EVERY_NS = 250_000_000
"""People look at figures so often at most."""
LEAD_NS = 500_000_000
"""From "go" to the first arrival: every worker must have heard it."""
FAREWELL_NS = 3_000_000_000
"""After the drain: time to cancel what is open and to ship the last records."""
REAP_S = 1.2
"""After that own worker processes are ended by signals. With FAREWELL_NS and Locust's half second: under 5 s."""
ANY_HOST = ("0.0.0.0", "*", "::")
INTERRUPT_DRAIN_NS = 3_000_000_000
"""After Ctrl-C open turns get at most so long; a second Ctrl-C cancels them at once."""


class Master:
    """Runs one plan to its end. `execute` returns however the run went; it raises only before the load began."""

    def __init__(
        self,
        plan: Plan,
        run: RunDirectory,
        *,
        terms: Terms,
        options: MasterOptions,
        view: LiveView,
        board: StatusBoard,
        publisher: Publisher,
        environ: Mapping[str, str],
    ) -> None:
        self.plan = plan
        self._environ = environ
        self.run = run
        self.options = options
        self.view = view
        self.board = board
        self.publisher = publisher
        self.offset_ns = terms.offset_ns
        self.fleet = Fleet(expected=options.expected_workers, local=options.local_workers)
        self.intake = Intake(run, lambda worker, why: self.note("segment_refused", why, worker=worker))
        self.figures = LiveFigures(plan.slos)
        self._clocks = ClockWatch()
        self._checks = CheckWatch()
        self.treasury = Treasury(
            limits_of(plan), rates_of(plan), workers=options.expected_workers, sent_ns=options.sent_ns
        )
        self.timeline: Timeline | None = None
        self.membership = Membership(self.fleet, plan, note=self.note)
        self._attendance = Attendance(
            self.fleet, self.membership, self.treasury, self.figures, publisher, view, self.note
        )
        self._door = Door(self.fleet, terms, lambda worker, why: self.note("worker_refused", why, worker=worker))
        self._ending: Ending | None = None
        self._stages: StageWatch | None = None
        self._interrupts = 0
        self._shown_ns = 0
        self._settled = False
        """No more records of workers are taken."""
        self._runner: Any = None

    # ------------------------------------------------------------------------------------------------ life of a run

    def execute(
        self, begun: Callable[[int], None], after_losses: Callable[[Sequence[WorkerState]], None]
    ) -> MasterResult:
        """Start workers, offer the load, drain, bring the records home, end the workers.

        `begun` is called with the instant (epoch ns) of the first arrival, before it; `after_losses` with the workers
        that died or were away, if there are any, when no more of their records can come.
        Raises RunInvalidError when the workers don't come up, or what a worker refused with.
        """
        try:
            self._open()
            self._await_workers()
            self._start(begun)
            self._loop(lambda: self._ending is not None)
            self._drain()
        finally:
            self._close()
        for away, why in self._door.away_again():
            self.note("worker_refused", why, worker=away)
        for worker in self.fleet.alive():
            if worker.bye is None and self.timeline is not None:
                worker.lost_at_ns = time.monotonic_ns()
                self._attendance.lose(worker)
        self._settled = True
        if lost := self.fleet.ever_lost():
            after_losses(lost)
        self.intake.retry()
        ending = self._ending
        return MasterResult(
            started_ns=self._epoch(self.timeline.start_ns) if self.timeline else None,
            load_ended_ns=self._epoch(ending.load_ended_ns or ending.at_ns) if ending else None,
            ended_ns=self._epoch(time.monotonic_ns()),
            offset_ns=self.offset_ns,
            interrupted=self._interrupts > 0,
            ending=ending.why if ending else "never began",
            budgets=self.treasury.uses(),
            rate_limits=self.treasury.rate_uses(),
            dirty_stages=frozenset(self._stages.dirty if self._stages is not None else ()),
            fleet=self.fleet,
            intake=self.intake,
            table=self.membership.table,
            stopped_early=self.figures.stopped_early,
        )

    def interrupt(self) -> None:
        """Ctrl-C or SIGTERM: once to end the load, again to cancel what is open."""
        self._interrupts += 1
        if self._ending is None:
            drain_ns = min(INTERRUPT_DRAIN_NS, self.plan.load.drain_ns)
            self._end("interrupted", Reason.INTERRUPTED, drain_ns)
            self.view.say("interrupted: no more turns start, open ones get a moment; press Ctrl-C again to cut them")
        else:
            self._ending.drain_ns = time.monotonic_ns() - self._ending.at_ns
            self._broadcast(self._ending.drain(0, Reason.INTERRUPTED, self.membership.number))

    def _open(self) -> None:
        environment = SiegeEnvironment([Director])
        host, port = self.options.host, self.options.port
        try:
            self._runner = environment.create_master_runner(host, port)
        except (RPCError, SystemExit, OSError) as error:  # Locust itself ends the process when a port is taken
            raise UsageError(
                f"--bind {host}:{port}: can't listen there: {error or 'the port is taken'}",
                hint="name an address of this host and a free port; port 0 takes any free one",
            ) from None
        self._door.open(self._runner)
        self.membership.open(self._runner)
        messages.on(self._runner, Report, self._on_report)
        messages.on(self._runner, Segment, self._on_segment)
        messages.on(self._runner, Bye, self._on_bye)
        messages.on(self._runner, Spending, self._on_spending)
        self.fleet.spawn(
            address=shown_address("127.0.0.1" if host in ANY_HOST else host, self._runner.server.port),
            secret=self.options.secret,
            log_directory=self._log_directory,
        )

    @property
    def ended_ns(self) -> int:
        """When the load ended, or now (monotonic)."""
        return self._ending.at_ns if self._ending is not None else time.monotonic_ns()

    @property
    def _log_directory(self) -> Path:
        return self.run.path / "logs"

    def _await_workers(self) -> None:
        deadline = time.monotonic_ns() + self.plan.run.wait_for_workers_ns
        remote = self.options.expected_workers - self.options.local_workers
        if remote:
            host = platform.node() if self.options.host in ANY_HOST else self.options.host
            address = shown_address(host, self._runner.server.port)
            self.view.say(f"waiting for {remote} worker(s): infersiege worker --master {address}")
        while not self.fleet.all_ready():
            if self._door.refusal is not None:
                raise self._door.refusal
            if self._interrupts:
                return
            for name, returncode in self.fleet.exited_early().items():
                raise RunInvalidError(f"{name} ended before the run began: {end_of(returncode, self._last_line(name))}")
            for worker in self.fleet.newly_dead(time.monotonic_ns(), self._runner.server.heard_until_ns):
                self._attendance.lose(worker)
            if time.monotonic_ns() > deadline:
                ready = {worker.name for worker in self.fleet.alive() if worker.ready is not None}
                said = {name: self._last_line(name) for name in self.fleet.processes if name not in ready}
                words = "".join(f"; {name} said last: {line}" for name, line in said.items() if line)
                words += "".join(f"; {worker} was turned away: {why}" for worker, why in self._door.away())
                raise RunInvalidError(
                    f"{len(ready)} of {self.fleet.expected} workers were ready after "
                    f"{self.plan.run.wait_for_workers_ns / 1e9:.0f} s{words}",
                    hint="start the others, or ask for fewer; [run] wait_for_workers sets the limit",
                )
            gevent.sleep(0.02)

    def _last_line(self, name: str) -> str | None:
        return last_line(self._log_directory / f"{name}.log")

    def _start(self, begun: Callable[[int], None]) -> None:
        if self._interrupts:
            return
        now_ns = time.monotonic_ns()
        self.timeline = Timeline.of(self.plan, start_ns=now_ns + LEAD_NS)
        self._attendance.begin(self._runner, self.timeline.start_ns, now_ns)
        self._door.begun = True
        begun(self._epoch(self.timeline.start_ns))
        self._stages = StageWatch(self.plan, self.timeline, self._environ)
        first = self._stages.first
        self.note(first.kind, first.detail, stage=first.stage)

    def _loop(self, over: Callable[[], bool]) -> None:
        """Tick until `over`; a stall of the master itself is not held against the workers."""
        before_ns = time.monotonic_ns()
        while not over():
            gevent.sleep(TICK_S)
            now_ns = time.monotonic_ns()
            stall_ns = now_ns - before_ns - 500_000_000
            before_ns = now_ns
            if stall_ns > 0:
                self.fleet.forgive(stall_ns, now_ns)
            self._tick(now_ns)

    def _tick(self, now_ns: int) -> None:
        self._attendance.look(now_ns, self._ending)
        self.membership.tick(now_ns)
        if self.intake.disk_error is not None:
            self.intake.retry()
        if self._ending is None and self._stages is not None:
            for event in self._stages.passed(now_ns):
                self.note(event.kind, event.detail, stage=event.stage, at_ns=event.at_ns)
            self._check_end(now_ns)
        self._hand_out(now_ns)
        self._show(now_ns)

    def _check_end(self, now_ns: int) -> None:
        alive, timeline = self.fleet.members(), self.timeline
        if timeline is None:
            return
        if self.intake.disk_error is not None:
            self.note("disk_full", str(self.intake.disk_error))
            self._end("the run directory can't be written", Reason.RUN_END, 0)
        elif not alive:
            self._end("no worker is left", Reason.WORKER_LOST, 0)
        elif (spent := self.treasury.used_up(now_ns, timeline.load_end_ns)) is not None:
            self.note("budget_used_up", spent.detail, stage=timeline.stage_at(spent.since_ns), at_ns=spent.since_ns)
            self._end(spent.why, Reason.BUDGET, self.plan.load.drain_ns, load_ended_ns=spent.since_ns)
        elif timeline.load_end_ns is not None and now_ns >= timeline.load_end_ns:
            self._end("duration is over", Reason.RUN_END, self.plan.load.drain_ns)
        elif (hopeless := self.figures.hopeless(now_ns, at_ns=self._epoch(now_ns))) is not None:
            self._end(hopeless, Reason.STOPPED_EARLY, self.plan.load.drain_ns)
        elif (stopped := why_stopped(alive)) is not None:
            self._end(stopped, Reason.RUN_END, self.plan.load.drain_ns)
        elif self.membership.settled and all(one.report is not None and one.report.finished for one in alive):
            self._end(ALL_PLAYED, Reason.RUN_END, self.plan.load.drain_ns)

    def _end(self, why: str, reason: Reason, drain_ns: int, *, load_ended_ns: int | None = None) -> None:
        self._ending = Ending(why, reason, time.monotonic_ns(), drain_ns, load_ended_ns)
        self.membership.end()
        self._door.over = True
        ended_ns = self._ending.at_ns if load_ended_ns is None else load_ended_ns
        stage = None if self.timeline is None else self.timeline.stage_at(ended_ns)
        self.note("load_ended", why, stage=stage, at_ns=load_ended_ns)
        self._broadcast(self._ending.drain(drain_ns, reason, self.membership.number))

    def _drain(self) -> None:
        """Until every live worker has said farewell, or its time is over."""
        ending = self._ending
        if ending is None or self.timeline is None:
            return

        def over() -> bool:
            # A master that is late has farewells before it that it has not heard yet.
            now_ns = time.monotonic_ns()
            heard_ns = max(min(now_ns, self._runner.server.heard_until_ns), now_ns - FAREWELL_NS)
            late = heard_ns > ending.at_ns + ending.drain_ns + FAREWELL_NS
            return late or all(worker.bye is not None for worker in self.fleet.members())

        self._loop(over)

    def _close(self) -> None:
        self.view.close()
        if self._ending is None:
            self._broadcast(Refusal(worker="", message="the run did not begin", hint=None, exit_code=0))
        if self._runner is not None:
            self._runner.quit()
        self.fleet.reap(REAP_S)

    # -------------------------------------------------------------------------------------------------- what comes in

    def _on_report(self, node_id: str, report: Report) -> None:
        worker = self.fleet.seen(node_id)
        if worker is None:
            return
        health = None if report.health is None else msgspec.structs.replace(report.health, worker=worker.name)
        report = msgspec.structs.replace(report, worker=worker.name, health=health)  # whatever it calls itself
        worker.report = report
        if not worker.alive:
            return
        now_ns = time.monotonic_ns()
        self.membership.reported(worker, report, now_ns)
        self.figures.add(report, now_ns)
        self.publisher.report(report)
        self._clocks.look(worker, report, self.note)
        self._checks.look(report, self.note)
        if health is not None:
            self._write(lambda: self.run.append_health(health))

    def _on_segment(self, node_id: str, segment: Segment) -> None:
        worker = self.fleet.seen(node_id)
        if worker is None or self._settled:
            return  # Its turns were accounted for as lost: what comes now stays in its spool.
        segment = msgspec.structs.replace(segment, worker=worker.name)  # whatever it calls itself
        self.intake.take(segment, lambda: messages.send(self._runner, Ack(sequence=segment.sequence), node_id))

    def _on_bye(self, node_id: str, bye: Bye) -> None:
        worker = self.fleet.seen(node_id)
        if worker is None:
            return
        worker.bye = bye
        if self._ending is None and worker.alive:
            # It left (SIGTERM) before it was told to: its records are here, the rest of its share is not played.
            worker.lost_at_ns = time.monotonic_ns()
            self._attendance.lose(worker)

    def _on_spending(self, node_id: str, spending: Spending) -> None:
        worker = self.fleet.seen(node_id)
        if worker is not None and worker.alive:
            now_ns = time.monotonic_ns()
            grant = self.treasury.told(worker.name, spending, now_ns)
            if grant is not None and self._ending is None:
                messages.send(self._runner, grant, node_id)
            self._hand_out(now_ns)

    # ------------------------------------------------------------------------------------------------- what goes out

    def _broadcast(self, message: Drain | Refusal) -> None:
        for worker in self.fleet.alive():
            messages.send(self._runner, message, worker.node_id)

    def _hand_out(self, now_ns: int) -> None:
        """Permits of rate limits, to those who wait for them."""
        for name, grant in self.treasury.due(now_ns).items() if self._ending is None else ():
            worker = self.fleet.by_name(name)
            if worker is not None and worker.alive:
                messages.send(self._runner, grant, worker.node_id)

    def note(
        self, kind: str, detail: str, worker: str | None = None, *, stage: str | None = None, at_ns: int | None = None
    ) -> None:
        """A row of events.jsonl, at this moment unless another one (monotonic) is given."""
        at_ns = self._epoch(time.monotonic_ns() if at_ns is None else at_ns)
        event = EventRow(at_ns=at_ns, kind=kind, detail=detail, worker=worker, stage=stage)
        self._write(lambda: self.run.append_event(event))
        self.publisher.event(event)

    def _write(self, append: Callable[[], None]) -> None:
        """Append a row; a disk that does not take it ends the run, as one that takes no turns does."""
        try:
            append()
        except DiskError as error:
            self.intake.disk_error = self.intake.disk_error or error

    def _epoch(self, monotonic_ns: int) -> int:
        return monotonic_ns + self.offset_ns

    def _show(self, now_ns: int) -> None:
        if self.timeline is None or now_ns - self._shown_ns < SHOW_EVERY_NS:
            return
        self._shown_ns = now_ns
        state = self.figures.state(now_ns, self.timeline, self._ending, self.fleet, self.treasury.note())
        self.view.show(state)
        self.board.show(state)
        self.publisher.tick(
            self._epoch(now_ns),
            elapsed_ns=None if self._ending is not None else now_ns - self.timeline.start_ns,
            alive=len(self.fleet.alive()),
            expected=self.fleet.expected,
        )
