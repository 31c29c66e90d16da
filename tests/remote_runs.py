"""Runs of a master and workers on hosts of their own (hosts.py), and what must hold after each.

`faults_of` compares the run directory with the log of the server and gives every contradiction in words: tests want
none, bench/namespaces.py puts them into its table.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from hosts import Host, Hosts, Process
from siege import Ran, plan_text

from infersiege.records import Outcome, Reason, TurnRecord
from infersiege.rundir import RunDirectory

MASTER, SERVER = "master", "server"
PORT, SERVER_PORT = 5557, 8000
SECRET = {"INFERSIEGE_SECRET": "of-this-test-only"}
ENDS = ("stop", "length")
"""Finish reasons of an answer that the server sent to its end."""
SAFE_NS = 1_000_000_000
"""What a worker had closed so long before it died has a record at the master."""
TOLD_NS = 2_000_000_000
"""What a worker had begun so long before it died the master knows of: a report goes each second."""
EMULATOR = "--output-tokens 20 --step-base-ms 20 --step-per-sequence-ms 0 --prefill-rate 1000000 --max-num-seqs 1024"
"""An answer takes about 0.4 s, whatever the load: there is always something open that can be lost."""


def plan(hosts: Hosts, sessions: int, rate: int, *, mode: str = "open", run: str = "", workload: str = "") -> str:
    """A plan of so many sessions in all: arrivals at a constant rate, or so many users as have that rate together."""
    base_url = f"http://{hosts[SERVER].address('load')}:{SERVER_PORT}/v1"
    users = max(4, rate * 45 // 100)
    load = {
        "open": f'mode = "open"\nrate = {rate}\narrivals = "constant"\ndrain = "5s"',
        "closed": f'mode = "closed"\nusers = {users}\nramp = "0s"\ndrain = "5s"',
    }[mode]
    stop = f"stop = {{ sessions = {sessions} }}" if mode == "closed" else f'duration = "{sessions / rate:g}s"'
    workload = workload or 'scenario = "short-qa"\ntrace = "builtin:short-qa"'
    return plan_text(base_url, load=load, run=f"{stop}\n{run}", workload=workload)


class Site:
    """A master, a server and workers on hosts of their own, for one run or several."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.workers = [f"worker-{number + 1}" for number in range(workers)]
        self.hosts = Hosts(folder, [MASTER, SERVER, *self.workers])
        self._runs = 0
        self._running: list[Process] = []

    def __enter__(self) -> Site:
        self.hosts.__enter__()
        try:
            server = self.hosts[SERVER]
            self.server = server.start(
                *("infersiege", "emulate", "--host", "0.0.0.0", "--port", str(SERVER_PORT), "--log", "truth.jsonl"),
                *EMULATOR.split(),
            )
            _until(lambda: "listening on" in self.server.output(), 30, self.server)
        except BaseException:
            self.hosts.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.hosts.__exit__(kind, error, traceback)

    def redis(self) -> Process:
        """Start a Redis on the master's host, with what an earlier one there left; it keeps what docker-compose.yml's
        does.
        """
        home = self.hosts[MASTER]
        settings = f"--bind {home.address('control')} --protected-mode no --appendonly yes --appendfsync everysec"
        process = home.start("redis-server", "--dir", str(home.here), *settings.split())
        _until(lambda: "Ready to accept connections" in process.output(), 30, process)
        return process

    @property
    def redis_url(self) -> str:
        return f"redis://{self.hosts[MASTER].address('control')}:6379/0"

    def join(self, worker: str) -> Process:
        """Start the worker of this name on its host."""
        master = f"{self.hosts[MASTER].address('control')}:{PORT}"
        return self.hosts[worker].start("infersiege", "worker", "--master", master, "--name", worker, environ=SECRET)

    def start(self, text: str, *options: str, out: str | None = None) -> RemoteRun:
        """Start a run and all workers. `out`: its directory, below the master's disk."""
        for left in self._running:  # of a run that broke
            if left.entered.poll() is None:
                left.signal(signal.SIGKILL)
                left.wait(10)
        self._runs += 1
        master = self.hosts[MASTER]
        (master.disk / "plan.toml").write_text(text, encoding="utf-8")
        directory = out or f"run-{self._runs}"
        command = ["infersiege", "run", "plan.toml", "--out", directory, "--workers", "0"]
        command += ["--expect-workers", str(len(self.workers)), "--bind", f"{master.address('control')}:{PORT}"]
        seen = len(self.log_rows())
        process = master.start(*command, *options, environ=SECRET)
        joined = {name: self.join(name) for name in self.workers}
        self._running = [process, *joined.values()]
        return RemoteRun(self, process, master.disk / directory, seen, joined)

    def carry_spools(self) -> list[str]:
        """Copy what workers left in their spools to the master's disk, as somebody does with scp: names there."""
        carried = []
        for worker in self.workers:
            for spool in sorted((self.hosts[worker].disk / "spool").glob("infersiege-spool-*")):
                name = f"from-{worker}-{spool.name}"
                shutil.copytree(spool, self.hosts[MASTER].disk / name)
                carried.append(name)
        return carried

    def log_rows(self) -> list[dict[str, Any]]:
        """The server's log so far: one row for each request that it has answered, or whose client has gone."""
        lines = (self.hosts[SERVER].disk / "truth.jsonl").read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]


@dataclass(slots=True)
class RemoteRun:
    """A run that goes on."""

    site: Site
    master: Process
    path: Path
    seen_before: int
    """Rows of the server's log that are of earlier runs."""
    workers: dict[str, Process]
    started: float = field(default_factory=time.monotonic)

    def host(self, worker: str) -> Host:
        return self.site.hosts[worker]

    def until_loaded(self, seconds: float = 0.0, within_s: float = 80.0) -> None:
        """Wait until the first record has come home, and some time of load more."""
        turns = self.path / "turns.jsonl"
        try:
            _until(lambda: turns.exists() and turns.stat().st_size > 0, within_s, self.master)
        except AssertionError as error:
            said = (f"{name}: {process.output()[-300:]}" for name, process in self.workers.items())
            raise AssertionError("\n".join((str(error), *said))) from None
        time.sleep(seconds)

    def wait(self, within_s: float = 90.0) -> Ran:
        """The end of the master, and of the workers: they have no reason to stay longer than their own limits."""
        code = self.master.wait(within_s)
        ran = Ran(code, self.master.output(), time.monotonic() - self.started, self.path)
        for process in self.workers.values():
            process.wait(30)
        return ran

    def worker_codes(self) -> dict[str, int | None]:
        return {name: process.entered.poll() for name, process in self.workers.items()}

    def log_rows(self) -> list[dict[str, Any]]:
        return self.site.log_rows()[self.seen_before :]


@dataclass(frozen=True, slots=True)
class Blow:
    """What was done to whom, when."""

    workers: tuple[str, ...]
    at_ns: int
    """Monotonic clock of this machine, which the server shares."""
    deadly: bool
    """The worker and its spool are gone: what it had open is lost."""


def kill(run: RemoteRun, worker: str) -> Blow:
    """SIGKILL: the spool stays on a host that nobody reads during the run."""
    run.workers[worker].signal(signal.SIGKILL)
    return Blow((worker,), time.monotonic_ns(), deadly=True)


def stop(run: RemoteRun, worker: str, seconds: float) -> Blow:
    """SIGSTOP for a while."""
    blow = Blow((worker,), time.monotonic_ns(), deadly=False)
    run.workers[worker].signal(signal.SIGSTOP)
    time.sleep(seconds)
    run.workers[worker].signal(signal.SIGCONT)
    return blow


def cut(run: RemoteRun, worker: str, seconds: float, *networks: str) -> Blow:
    """No cable for a while."""
    blow = Blow((worker,), time.monotonic_ns(), deadly=False)
    run.host(worker).cut(*networks)
    time.sleep(seconds)
    run.host(worker).mend(*networks)
    return blow


# ---------------------------------------------------------------------------------------------------------- judgement


def faults_of(
    path: Path, log: list[dict[str, Any]], blow: Blow | None = None, *, sessions: int | None = None
) -> Iterator[str]:
    """Every contradiction between a run directory and the server's log, in words.

    `sessions`: so many were asked for, and each has its records, whoever died; None: the load ended before.
    """
    directory = RunDirectory.open(path)
    turns, file = list(directory.read_turns()), directory.read_plan()
    yield from _twice(turns, log, f"{file.run_id}.")
    counts = directory.read_summary().counts
    if not counts.conserved():
        yield f"the counts do not add up: {counts}"
    if not counts.planned == len(turns) == file.planned_turns:
        yield f"planned {counts.planned} and {file.planned_turns}, records {len(turns)}"
    found = len({turn.session_id for turn in turns})
    if sessions is not None and found != sessions:
        yield f"{sessions} sessions were asked for, {found} have records"
    asked = {row["request_id"]: row for row in log if row["request_id"].startswith(f"{file.run_id}.")}
    records = {turn.request_id: turn for turn in turns}
    yield from _strangers(log, asked, (file.started_ns or 0) - (time.time_ns() - time.monotonic_ns()))
    yield from _some("requests that the server saw have no record", (one for one in asked if one not in records))
    done = {one.request_id for one in turns if one.outcome is Outcome.OK}
    yield from _some("records of answers that the server did not give", (one for one in done if one not in asked))
    if blow is None:
        cut = {
            one.request_id for one in turns if one.outcome is Outcome.CANCELLED
        }  # as its last bytes were on their way
        whole_answers = (one for one, row in asked.items() if row["finish"] in ENDS and one not in done | cut)
        yield from _some("requests that the server answered and the records don't", whole_answers)
    else:
        yield from _losses(records, asked, blow)


def _twice(turns: Iterable[TurnRecord], log: Iterable[dict[str, Any]], prefix: str) -> Iterator[str]:
    recorded = Counter((turn.session_id, turn.turn) for turn in turns)
    yield from _some("turns with two records", (str(key) for key, count in recorded.items() if count > 1))
    sent = Counter(row["request_id"] for row in log if row["request_id"].startswith(prefix))
    yield from _some("turns that were sent twice", (key for key, count in sent.items() if count > 1))
    players: dict[str, set[str]] = {}
    for turn in turns:
        if turn.outcome in (Outcome.OK, Outcome.FAILED, Outcome.CANCELLED):
            players.setdefault(turn.session_id, set()).add(turn.worker)
    yield from _some("sessions that two workers played", (key for key, names in players.items() if len(names) > 1))


def _strangers(log: Iterable[dict[str, Any]], asked: dict[str, Any], started_ns: int) -> Iterator[str]:
    """Requests of no turn: only those before the load, by which the target and its text lengths are known."""
    late = (row["request_id"] for row in log if row["request_id"] not in asked and row["received_ns"] > started_ns)
    yield from _some("requests that belong to no turn", late)


def _losses(records: dict[str, TurnRecord], asked: dict[str, dict[str, Any]], blow: Blow) -> Iterator[str]:
    """What a worker had closed for a second is home; what was open when it died, and the master knew of, is lost."""
    for request_id, row in asked.items():
        turn, closed = records.get(request_id), row["finish"] in ENDS
        if closed and row["done_ns"] < blow.at_ns - SAFE_NS and (turn is None or turn.outcome is not Outcome.OK):
            yield f"{request_id} was answered a second before, and its record is {turn and turn.outcome}"
        if not blow.deadly and (turn is None or turn.outcome in (Outcome.LOST, Outcome.SKIPPED)):
            yield f"{request_id} was sent by a worker that returned, and its record is {turn and turn.outcome}"
        if turn is None or turn.worker not in blow.workers or not blow.deadly:
            continue
        open_then = row["received_ns"] < blow.at_ns - TOLD_NS and not closed
        if open_then and turn.outcome not in (Outcome.LOST, Outcome.OK):
            yield f"{request_id} was open and is {turn.outcome}"
        if turn.outcome is Outcome.SKIPPED and not (turn.error_detail or "").startswith("not known whether"):
            yield f"{request_id} was sent, and its record says that it was not ({turn.error_detail})"
    for turn in records.values():
        if turn.outcome is Outcome.LOST and (turn.worker not in blow.workers or turn.reason is not Reason.WORKER_LOST):
            yield f"{turn.request_id} of {turn.worker} is lost ({turn.reason})"


def _some(what: str, which: Iterable[str]) -> Iterator[str]:
    found = list(which)
    if found:
        yield f"{len(found)} {what}: {', '.join(found[:3])}"


def told(ran: Ran) -> str:
    """Outcomes of its turns in a line."""
    return told_of(ran.path)


def unknown_to_the_master(path: Path, log: Iterable[dict[str, Any]]) -> int:
    """Requests that the server saw and the records call skipped: begun after a worker's last report."""
    skipped = {turn.request_id for turn in RunDirectory.open(path).read_turns() if turn.outcome is Outcome.SKIPPED}
    return sum(row["request_id"] in skipped for row in log)


def told_of(path: Path) -> str:
    """The same of a run directory."""
    count = Counter(turn.outcome.value for turn in RunDirectory.open(path).read_turns())
    return ", ".join(f"{number:,} {name}" for name, number in sorted(count.items()))


def _until(condition: Any, within_s: float, process: Process) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert process.entered.poll() is None, f"ended with {process.entered.returncode}:\n{process.output()}"
        assert time.monotonic() < deadline, f"not within {within_s:g} s:\n{process.output()}"
        time.sleep(0.05)
