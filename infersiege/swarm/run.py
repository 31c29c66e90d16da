"""One run from plan to exit code: traces, preflight, run directory, master, report."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import msgspec
from rich.console import Console

from infersiege import calibration
from infersiege.doctor import adapted, preflight, told_limits, unexamined
from infersiege.errors import DiskError, ExitCode, InfersiegeError, UsageError
from infersiege.plan.borrowed import open_key_files
from infersiege.plan.load import plan_hash, plan_json, resolve
from infersiege.plan.schema import Plan
from infersiege.plan.streams import stage_names
from infersiege.records import Calibration, Summary
from infersiege.report.event_words import EVENT_WORDS
from infersiege.report.live import LiveView
from infersiege.report.rebuild import Rebuilt, judged, read
from infersiege.report.tables import print_summary
from infersiege.rundir import ChannelFacts, PlanFile, RunDirectory
from infersiege.swarm.aftermath import LostShare, all_plays, final_facts, rescued, stage_facts
from infersiege.swarm.claims import ClaimKeeper
from infersiege.swarm.door import Terms
from infersiege.swarm.dry import ahead, check_rate_limits
from infersiege.swarm.ending import MasterOptions, MasterResult
from infersiege.swarm.exposure import login_of
from infersiege.swarm.fleet import WorkerState
from infersiege.swarm.handover import HandOver
from infersiege.swarm.health import PROCESS_FILES, require_files, worker_files
from infersiege.swarm.interrupts import Interrupts
from infersiege.swarm.ledger import ChannelLabels
from infersiege.swarm.losses import Loss, LossAccount, describe, orphans
from infersiege.swarm.master import Master
from infersiege.swarm.papers import write_papers
from infersiege.swarm.ratelimit import SentBefore
from infersiege.swarm.rpc import install
from infersiege.swarm.run_options import RunOptions as RunOptions
from infersiege.swarm.run_options import fleet_options
from infersiege.swarm.source import SessionSource
from infersiege.swarm.status_page import StatusBoard, StatusPage
from infersiege.swarm.travel import needed_paths
from infersiege.swarm.versions import all_versions, host_facts, versions
from infersiege.telemetry.local import LocalAgents
from infersiege.telemetry.publisher import Publisher
from infersiege.telemetry.remarks import told, unnamed
from infersiege.telemetry.served import ServedWatch
from infersiege.tokens import TextMeasures, measured
from infersiege.traces import prompt_salt

HANDING_OVER = "handing over points"


@dataclass(frozen=True, slots=True)
class RunResult:
    run: RunDirectory
    summary: Summary


def run_plan(
    plan: Plan, options: RunOptions, console: Console, environ: Mapping[str, str], interrupts: Interrupts
) -> RunResult:
    """Make one run. Returns with a complete run directory however the load went.

    Raises InfersiegeError for what is wrong before any load: plan, options, trace, target, directory, workers.
    """
    now_ns = time.time_ns()
    fleet = fleet_options(plan, options, environ)
    require_files(PROCESS_FILES + fleet.expected_workers, "the master")
    if fleet.local_workers:
        require_files(worker_files(plan, fleet.expected_workers), "each of the workers")
    plan = resolve(plan, now_ns, Random(secrets.randbits(64)))
    source = SessionSource(plan, place=0, members=1)
    for warning in (*source.warnings(), *open_key_files(plan)):
        console.print(f"warning: {warning}", highlight=False, markup=False)
    check_rate_limits(plan, source)
    board = StatusBoard(plan.run.name or "run", grafana=plan.telemetry.grafana_url)
    with contextlib.ExitStack() as stack:
        if options.web is not None:
            login = login_of(*options.web, environ)
            page = stack.enter_context(StatusPage(*options.web, board.snapshot, login=login))
            console.print(f"status page: {page.url}", highlight=False, markup=False)
        # Before the target is asked anything: a directory that can't be written is a mistake that costs no request.
        run = RunDirectory.create(options.out, name=plan.run.name or "run", now_ns=now_ns)
        sent = SentBefore()
        try:
            channels = (
                unexamined(plan)
                if options.skip_doctor
                else preflight(plan, environ=environ, wait_ns=options.wait_for_target_ns, asked=sent.note)
            )
            asked, plan = plan, adapted(plan, channels)
            source = source.of_plan(plan)
            salt = prompt_salt(plan.run.nonce or "", stage_names(plan.load)[0], 0)
            texts = measured(plan, source.traces, channels, environ, salt=salt, asked=sent.note)
        except BaseException:
            discard(run)
            raise
        source = source.with_texts(texts.lengths)
        for line in (*introductions(channels), *texts.lines, *told_limits(asked, plan), *ahead(plan, source)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        board.emulated = any(facts.emulated for facts in channels.values())
        fleet = replace(fleet, sent_ns=sent.at_ns)
        campaign = Campaign(plan, source, channels, texts, fleet, run, board, console, interrupts, environ)
        return campaign.execute(gated=options.gated)


def introductions(channels: Mapping[str, ChannelFacts]) -> Iterator[str]:
    """Where requests go, and what is left out of them because the server refuses it (CL-04)."""
    for name, facts in channels.items():
        yield f"{name}: {facts.url} ({facts.engine}, model {facts.model})"
        if facts.dropped_fields:
            yield f"warning: {name}: the server refuses {', '.join(facts.dropped_fields)}: not sent"


def discard(run: RunDirectory) -> None:
    """A run that never began is no run: nothing of it stays in the way of the next one."""
    run.close()
    shutil.rmtree(run.path, ignore_errors=True)


def _ceilings(found: Calibration | None) -> dict[str, str]:
    """What a worker of this host can do, as a fact of the host."""
    return {} if found is None else {"calibrated": calibration.line_of(found)}


class Campaign:
    """The parts of one run that know each other."""

    def __init__(
        self,
        plan: Plan,
        source: SessionSource,
        channels: Mapping[str, ChannelFacts],
        texts: TextMeasures,
        options: MasterOptions,
        run: RunDirectory,
        board: StatusBoard,
        console: Console,
        interrupts: Interrupts,
        environ: Mapping[str, str],
    ) -> None:
        self._plan = plan
        self._source = source
        self._options = options
        self._run = run
        self._environ = environ
        self._console = console
        self._interrupts = interrupts
        self._board = board
        self._lost = LostShare({})
        self._unmade: list[UsageError] = []
        """Files for people that could not be written."""
        self._publisher = Publisher(plan, environ, titles=EVENT_WORDS)
        self._agents = LocalAgents(plan, channels, run, environ)
        calibrated = calibration.known(environ).calibration
        self._file = PlanFile(
            run_id=secrets.token_hex(6),
            name=plan.run.name or "run",
            created_ns=time.time_ns(),
            nonce=plan.run.nonce or "",
            plan_hash=plan_hash(plan),
            plan=msgspec.to_builtins(plan),
            versions=all_versions(),
            host=host_facts() | _ceilings(calibrated),
            calibration=calibrated,
            channels=dict(channels),
            trace_hashes=source.trace_hashes(),
            workers_asked=options.expected_workers,
            text_lengths=texts.lengths,
            written_prompts=texts.written,
        )
        self._claims = ClaimKeeper(plan, self._file.run_id, environ)
        # One constant per run: instants are the master's monotonic clock plus this, whatever happens to the wall clock.
        self._terms = Terms(
            run_id=self._file.run_id,
            plan=plan_json(plan),
            plan_hash=plan_hash(plan),
            trace_hashes=source.trace_hashes(),
            versions=versions(),
            offset_ns=time.time_ns() - time.monotonic_ns(),
            text_lengths=texts.lengths,
            files=needed_paths(plan, source.traces) if options.expected_workers > options.local_workers else (),
        )

    def execute(self, *, gated: bool) -> RunResult:
        """Offer the load, bring the records home, write the report. Raises what keeps the load from beginning."""
        self._run.write_plan(self._file)
        install(self._options.secret.encode())
        try:
            # Before the load, which the start of a process could disturb.
            self._publisher.open()
            for warning in self._publisher.warnings:
                self._console.print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)
            self._agents.start()
            self._served = ServedWatch(self._plan, self._environ)
            result = self._offer_load()
        except BaseException as error:
            self._agents.stop()
            self._publisher.close(0.0)
            if isinstance(error, InfersiegeError):
                self._leave_no_trace(error)
            raise
        try:
            return self._conclude(result, gated=gated)
        finally:
            self._publisher.close(0.0)

    def _offer_load(self) -> MasterResult:
        with self._claims, LiveView(self._console, emulated=self._board.emulated) as view:
            self._publisher.say = view.say
            master = Master(
                self._plan,
                self._run,
                terms=self._terms,
                options=self._options,
                view=view,
                board=self._board,
                publisher=self._publisher,
                environ=self._environ,
            )
            self._interrupts.on_signal = master.interrupt
            run_id, offset_ns = self._file.run_id, self._terms.offset_ns
            accounts = LossAccount(master.intake, run_id=run_id, channels=self._labels(), offset_ns=offset_ns)
            return master.execute(self._begun, lambda workers: self._settle(workers, master, accounts))

    def _begun(self, started_ns: int) -> None:
        """The time axis is fixed: write it down now, so that a crash leaves a run that can be read."""
        stages = stage_facts(self._plan, self._source, started_ns, None)
        self._file = msgspec.structs.replace(self._file, started_ns=started_ns, stages=stages)
        self._run.write_plan(self._file)
        self._publisher.begin(self._file)

    def _leave_no_trace(self, error: InfersiegeError) -> None:
        """A run that never began is no run: its directory goes. The error has the last line of a worker's log; where it
        is the end of a traceback, which is no user's, the logs go where they can be read."""
        if self._file.started_ns is not None:
            return
        logs = self._run.path / "logs"
        if logs.is_dir() and any(b"Traceback" in log.read_bytes() for log in logs.iterdir()):
            kept = Path(shutil.move(logs, tempfile.mkdtemp(prefix="infersiege-logs-")))
            error.hint = f"{error.hint}; the workers' logs are in {kept}" if error.hint else f"see the logs in {kept}"
        discard(self._run)

    def _settle(self, workers: Sequence[WorkerState], master: Master, accounts: LossAccount) -> None:
        timeline, table = master.timeline, master.membership.table
        assert timeline is not None and table is not None, "a worker is lost once the load has begun"
        names = {worker.name for worker in workers}
        until_index = master.membership.until_index
        offset_ns = self._terms.offset_ns
        left = orphans(self._source, timeline, table, names, master.ended_ns, offset_ns, until_index)
        losses: Sequence[Loss | InfersiegeError]
        try:
            losses = accounts.settle(workers, left)
        except InfersiegeError as error:
            losses = [error] * len(workers)
        for worker, loss in zip(workers, losses, strict=True):
            if isinstance(loss, Loss):
                self._lost.add(worker.name, loss)
            else:
                self._lost.doubts.append(describe(worker, loss))
            master.note("worker_settled", describe(worker, loss), worker=worker.name)

    def _labels(self) -> dict[str, ChannelLabels]:
        return {
            name: ChannelLabels(name=name, engine=facts.engine, dialect=facts.dialect, model=facts.model)
            for name, facts in self._file.channels.items()
        }

    def _conclude(self, result: MasterResult, *, gated: bool) -> RunResult:
        """Facts, summary and report; where the run's own disk takes no more, in a directory elsewhere."""
        run, invalid = self._run, []
        end = self._hand_over()
        died = any(not worker.alive for worker in result.fleet.workers.values())
        claimed = self._claims.remarks(run.read_turns(span=self._file.span), all_plays(result, self._lost), died=died)
        invalid.extend(claimed.invalid)
        warnings = (*self._file.warnings, *end.stop_agents(), *claimed.warnings)
        self._file = msgspec.structs.replace(self._file, warnings=warnings)
        disk_error = result.intake.disk_error
        if disk_error is not None:
            invalid.append(f"{disk_error}; the load was stopped then")
        file = final_facts(self._file, self._plan, self._source, result, self._lost, invalid)
        file = msgspec.structs.replace(file, served=self._served.counted())
        try:
            if disk_error is not None and result.intake.unwritten_rows:
                raise disk_error
            summary = self._report(run, file, gated=gated, end=end)
        except DiskError as error:
            run = rescued(result, self._lost, file.run_id, error)
            where = f"{error}; the whole run is in {run.path}"
            self._console.print(f"error: {where}", style="bold red", highlight=False, markup=False, soft_wrap=True)
            file = msgspec.structs.replace(file, invalid=(where, *file.invalid[len(invalid) :]))
            summary = self._report(run, file, gated=gated, end=end)
        self._console.print(f"run directory: {run.path}", highlight=False, markup=False, soft_wrap=True)
        for unmade in self._unmade:
            note = f"warning: {unmade}; the run is complete: `infersiege report {run.path}` makes its report"
            self._console.print(note, highlight=False, markup=False, soft_wrap=True)
        if run.report_path.is_file():
            self._console.print(f"report: {run.report_path}", highlight=False, markup=False, soft_wrap=True)
        run.close()
        if self._unmade and summary.exit_code == ExitCode.PASS:
            summary = msgspec.structs.replace(summary, exit_code=int(ExitCode.USAGE))
        return RunResult(run, summary)

    def _hand_over(self) -> HandOver:
        """The load is over, and Ctrl-C means from now on: don't wait for a database."""
        end = HandOver(self._publisher, self._agents, self._plan.telemetry)

        def hurry() -> None:
            end.hurry()
            said = "interrupted: not waiting any longer; points that the database has not taken stay in the spool"
            self._console.print(said, highlight=False, markup=False, soft_wrap=True)

        self._interrupts.on_signal = hurry
        self._board.note(HANDING_OVER)
        return end

    def _report(self, run: RunDirectory, file: PlanFile, *, gated: bool, end: HandOver) -> Summary:
        """Write what is made of the turns, then hand over the points, then show it. Raises UsageError when it can't be
        written.

        Whatever happens to this process while it waits for a database, the run directory is whole.
        """
        run.write_plan(file)
        file = end.fetched(run, file)
        run.write_plan(file)
        found = judged(read(run), gated=gated)
        found = told(found, unnamed(found))
        run.write_plan(found.plan)
        self._unmade = write_papers(run, found, gated=gated)
        found = self._with_account(run, found, end.published(run, found), gated=gated)
        print_summary(found.summary, self._console, examples=found.examples)
        if self._publisher.line is not None:
            self._console.print(self._publisher.line, highlight=False, markup=False, soft_wrap=True)
        return found.summary

    def _with_account(self, run: RunDirectory, before: Rebuilt, found: Rebuilt, *, gated: bool) -> Rebuilt:
        """Plan, summary and report again, now with what became of the run's points."""
        if found is before:
            return found
        try:
            run.write_plan(found.plan)
            self._unmade = write_papers(run, found, gated=gated)
        except UsageError as error:
            # What was written before is whole, and lacks only this.
            note = f"warning: {error}; the run directory does not say what became of the points"
            self._console.print(note, highlight=False, markup=False, soft_wrap=True)
        return found
