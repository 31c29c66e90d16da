"""One run from plan to exit code: traces, preflight, run directory, master, report."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import gevent
import msgspec
from rich.console import Console

from infersiege.doctor import preflight
from infersiege.errors import InfersiegeError
from infersiege.plan.load import plan_hash, plan_json, resolve
from infersiege.plan.schema import Plan
from infersiege.records import OpenTurn, Summary, WorkerSummary
from infersiege.report.junit import junit_xml
from infersiege.report.live import LiveView
from infersiege.report.rebuild import judged, read, write
from infersiege.report.tables import print_summary
from infersiege.rundir import REPORT, ChannelFacts, PlanFile, RunDirectory, StageFacts
from infersiege.swarm.ending import MasterOptions, MasterResult
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.ledger import ChannelLabels
from infersiege.swarm.losses import Loss, LossAccount, describe
from infersiege.swarm.master import Master
from infersiege.swarm.rpc import SECRET_VARIABLE, install
from infersiege.swarm.source import SessionSource
from infersiege.swarm.timeline import STAGE, settling_ns
from infersiege.swarm.versions import all_versions, host_facts, versions


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line adds to a plan."""

    out: Path | None
    workers: int | None
    """On this host; None: the plan's."""
    expect_workers: int | None
    """In all; None: only those of this host."""
    bind: str
    """`HOST:PORT` that workers join at."""
    wait_for_target_ns: int
    gated: bool
    """Broken rules count in the exit code, and junit.xml is written."""


@dataclass(frozen=True, slots=True)
class RunResult:
    run: RunDirectory
    summary: Summary


def run_plan(plan: Plan, options: RunOptions, console: Console, environ: Mapping[str, str]) -> RunResult:
    """Make one run. Returns with a complete run directory however the load went.

    Raises InfersiegeError for what is wrong before any load: plan, trace, target, directory, workers.
    """
    now_ns = time.time_ns()
    plan = resolve(plan, now_ns, Random(secrets.randbits(64)))
    source = SessionSource(plan, place=0, members=1)
    for warning in source.warnings():
        console.print(f"warning: {warning}", highlight=False, markup=False)
    channels = preflight(plan, environ=environ, wait_ns=options.wait_for_target_ns)
    for name, facts in channels.items():
        console.print(f"{name}: {facts.url} ({facts.engine}, model {facts.model})", highlight=False, markup=False)
    run = RunDirectory.create(options.out, name=plan.run.name or "run", now_ns=now_ns)
    campaign = Campaign(plan, source, channels, options, run, console)
    return campaign.execute()


class Campaign:
    """The parts of one run that know each other."""

    def __init__(
        self,
        plan: Plan,
        source: SessionSource,
        channels: Mapping[str, ChannelFacts],
        options: RunOptions,
        run: RunDirectory,
        console: Console,
    ) -> None:
        self._plan = plan
        self._source = source
        self._options = options
        self._run = run
        self._console = console
        local = options.workers if options.workers is not None else plan.run.workers
        self._local_workers = local
        self._expected = options.expect_workers if options.expect_workers is not None else local
        self._run_id = secrets.token_hex(6)
        # One constant per run: instants are the master's monotonic clock plus this, whatever happens to the wall clock.
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._hash = plan_hash(plan)
        self._lost_sessions: dict[str, int] = {}
        self._lost_planned = 0
        self._file = PlanFile(
            run_id=self._run_id,
            name=plan.run.name or "run",
            created_ns=time.time_ns(),
            nonce=plan.run.nonce or "",
            plan_hash=self._hash,
            plan=msgspec.to_builtins(plan),
            versions=all_versions(),
            host=host_facts(),
            channels=dict(channels),
            trace_hashes=source.trace_hashes(),
            workers_asked=self._expected,
        )

    def execute(self) -> RunResult:
        """Offer the load, bring the records home, write the report."""
        run = self._run
        run.write_plan(self._file)
        emulated = any(facts.emulated for facts in self._file.channels.values())
        host, _, port = self._options.bind.rpartition(":")
        secret = os.environ.get(SECRET_VARIABLE) or secrets.token_hex(16)
        install(secret.encode())
        with LiveView(self._console, emulated=emulated) as view:
            master = Master(
                self._plan,
                run,
                run_id=self._run_id,
                plan_bytes=plan_json(self._plan),
                plan_hash=self._hash,
                trace_hashes=self._source.trace_hashes(),
                versions=versions(),
                options=MasterOptions(
                    local_workers=self._local_workers,
                    expected_workers=self._expected,
                    host=host,
                    port=int(port),
                    secret=secret,
                ),
                view=view,
                offset_ns=self._offset_ns,
            )
            for number in (signal.SIGINT, signal.SIGTERM):
                gevent.signal_handler(number, master.interrupt)
            accounts = LossAccount(master.intake, run_id=self._run_id, channels=self._labels())

            def settle(worker: WorkerState) -> None:
                loss: Loss | InfersiegeError
                try:
                    loss = accounts.settle(worker, self._orphans(worker, master))
                    self._lost_planned += loss.planned_turns
                    for scenario, count in (worker.bye.sessions_started if worker.bye else loss.sessions).items():
                        self._lost_sessions[scenario] = self._lost_sessions.get(scenario, 0) + count
                except InfersiegeError as error:
                    loss = error
                master.note("worker_settled", describe(worker, loss), worker=worker.name)

            result = master.execute(settle)
        return self._conclude(result)

    def _labels(self) -> dict[str, ChannelLabels]:
        return {
            name: ChannelLabels(name=name, engine=facts.engine, dialect=facts.dialect, model=facts.model)
            for name, facts in self._file.channels.items()
        }

    def _orphans(self, worker: WorkerState, master: Master) -> Iterator[OpenTurn]:
        """Sessions that were a dead worker's to play until the load ended. A closed loop without a number has none."""
        plan, timeline = self._plan, master.timeline
        counted = plan.run.stop is not None and plan.run.stop.sessions is not None
        if timeline is None or (plan.load.mode == "closed" and not counted):
            return
        source = self._source.of_fleet(self._expected).of_place(worker.place)
        for ticket in source.tickets():
            due_ns = timeline.start_ns + ticket.offset_ns if ticket.offset_ns is not None else master.ended_ns
            if due_ns > master.ended_ns:
                return
            workload = plan.workloads[ticket.workload]
            yield OpenTurn(
                session_id=source.session_id(ticket)[0],
                scenario=workload.scenario,
                stage=STAGE,
                phase=timeline.phase_of(due_ns),
                channel=workload.channel or next(iter(plan.channels)),
                turns=source.conversation(ticket).turns,
                turn=0,
                started=False,
                due_ns=due_ns + self._offset_ns,
            )

    def _conclude(self, result: MasterResult) -> RunResult:
        run = self._run
        invalid: list[str] = []
        if result.intake.disk_error is not None and result.intake.unwritten_rows:
            rows = result.intake.unwritten_rows
            run = result.intake.rescue()
            invalid.append(f"{result.intake.disk_error}; the whole run with its last {rows} records is in {run.path}")
            self._console.print(f"error: {invalid[-1]}", style="bold red", highlight=False, markup=False)
        file = msgspec.structs.replace(
            self._file,
            started_ns=result.started_ns,
            ended_ns=result.ended_ns,
            interrupted=result.interrupted,
            stages=self._stages(result),
            planned_turns=self._lost_planned
            + sum(worker.bye.planned_turns for worker in result.fleet.alive() if worker.bye is not None),
            traces=self._source.accounts(self._sessions_started(result)),
            workers=worker_summaries(result),
            invalid=(*invalid, *self._invalid(result)),
        )
        run.write_plan(file)
        found = judged(read(run), gated=self._options.gated)
        summary = write(run, found)
        if self._options.gated:
            run.write_junit(junit_xml(summary, summary.rules))
        print_summary(summary, self._console, examples=found.examples)
        self._console.print(f"run directory: {run.path}", highlight=False, markup=False, soft_wrap=True)
        self._console.print(f"report: {run.path / REPORT}", highlight=False, markup=False, soft_wrap=True)
        run.close()
        return RunResult(run, summary)

    def _stages(self, result: MasterResult) -> tuple[StageFacts, ...]:
        if result.started_ns is None:
            return ()
        plan, started_ns = self._plan, result.started_ns
        ended_ns = result.load_ended_ns if result.load_ended_ns is not None else result.ended_ns
        if plan.run.duration_ns is not None:
            ended_ns = min(ended_ns, started_ns + plan.run.duration_ns)
        return (
            StageFacts(
                name=STAGE,
                started_ns=started_ns,
                steady_started_ns=started_ns + settling_ns(plan),
                steady_ended_ns=ended_ns,
                users=plan.load.users,
                rate=plan.load.rate,
            ),
        )

    def _sessions_started(self, result: MasterResult) -> dict[str, int]:
        started = dict(self._lost_sessions)
        for worker in result.fleet.alive():
            for scenario, count in (worker.bye.sessions_started if worker.bye else {}).items():
                started[scenario] = started.get(scenario, 0) + count
        return started

    def _invalid(self, result: MasterResult) -> list[str]:
        """What only the master can know."""
        reasons = []
        for worker in result.fleet.workers.values():
            received = result.intake.rows_of.get(worker.name, 0)
            if worker.bye is not None and worker.bye.records != received:
                reasons.append(f"{worker.name} wrote {worker.bye.records} records, {received} arrived")
        return reasons


def worker_summaries(result: MasterResult) -> tuple[WorkerSummary, ...]:
    """What is known of each worker at the end."""
    return tuple(
        WorkerSummary(
            worker=worker.name,
            host=worker.hello.host,
            pid=worker.hello.pid,
            turns=result.intake.rows_of.get(worker.name, 0),
            lost=not worker.alive,
            lost_at_ns=worker.lost_at_ns,
            records_promised=worker.bye.records if worker.bye else None,
            records_received=result.intake.rows_of.get(worker.name, 0),
            hub_lag_p99_ns=worker.bye.hub_lag_p99_ns if worker.bye else None,
            cpu_share_max=worker.bye.cpu_share_max if worker.bye else None,
            clock_offset_ns=worker.clock_offset_ns,
            clock_uncertainty_ns=worker.clock_uncertainty_ns,
        )
        for worker in result.fleet.workers.values()
    )
