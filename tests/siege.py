"""Runs `infersiege` as a user does, as a process of its own, and reads what it left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from infersiege.records import EventRow, Outcome, Summary, TurnRecord
from infersiege.rundir import PlanFile, RunDirectory

SLACK_S = 5.0
"""A run ends within its duration + drain + this, whatever happens (and starts within START_S)."""
START_S = 20.0


@dataclass(frozen=True, slots=True)
class Ran:
    """One finished `infersiege run`."""

    code: int
    out: str
    seconds: float
    path: Path

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory.open(self.path)

    @property
    def turns(self) -> list[TurnRecord]:
        return list(self.directory.read_turns())

    @property
    def summary(self) -> Summary:
        return self.directory.read_summary()

    @property
    def plan(self) -> PlanFile:
        return self.directory.read_plan()

    @property
    def events(self) -> list[EventRow]:
        return list(self.directory.read_events())

    def by_outcome(self, outcome: Outcome) -> list[TurnRecord]:
        return [turn for turn in self.turns if turn.outcome is outcome]


def plan_text(
    base_url: str,
    *,
    model: str = "emulated-model",
    engine: str = "vllm",
    load: str = 'mode = "closed"\nusers = 4',
    run: str = 'duration = "3s"',
    workload: str = 'scenario = "short-qa"\ntrace = "builtin:short-qa"',
    channel: str = "",
    more: str = "",
) -> str:
    """A small plan; each part can be replaced."""
    return f"""
[run]
name = "test"
{run}
[channel.target]
engine = "{engine}"
base_url = "{base_url}"
model = "{model}"
{channel}
[[workload]]
{workload}
[load]
{load}
{more}
"""


class Siege:
    """Starts runs below one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "INFERSIEGE_SPOOL": str(folder / "spool"), "NO_COLOR": "1", "COLUMNS": "200"}
        (folder / "spool").mkdir(parents=True, exist_ok=True)
        self._number = 0

    def start(
        self, text: str, *options: str, out: Path | None = None, python: tuple[str, ...] = ("-m", "infersiege")
    ) -> Running:
        """`python`: what it runs in place of `infersiege`."""
        self._number += 1
        plan = self.folder / f"plan-{self._number}.toml"
        plan.write_text(text, encoding="utf-8")
        path = out or self.folder / f"run-{self._number}"
        log = self.folder / f"out-{self._number}.txt"
        command = [sys.executable, *python, "run", str(plan), "--out", str(path), *options]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True
            )
        return Running(process, path, log, time.monotonic())

    def run(self, text: str, *options: str, out: Path | None = None, within_s: float = 90.0) -> Ran:
        return self.start(text, *options, out=out).wait(within_s)

    def command(self, *arguments: str, within_s: float = 60.0) -> tuple[int, str]:
        """Any other command: (exit code, output)."""
        done = subprocess.run(
            [sys.executable, "-m", "infersiege", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            timeout=within_s,
            check=False,
        )
        return done.returncode, done.stdout.decode()

    def spools(self) -> list[Path]:
        """Spools that were left behind."""
        return list((self.folder / "spool").iterdir())


@dataclass(slots=True)
class Running:
    """A run that goes on."""

    process: subprocess.Popen[bytes]
    path: Path
    log: Path
    started: float

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, within_s: float = 90.0) -> Ran:
        """Its end. Kills it, with its workers, and fails when it takes longer."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"the run did not end within {within_s} s:\n{self.output()}") from None
        return Ran(code, self.output(), time.monotonic() - self.started, self.path)

    def until(self, condition: str, within_s: float = 30.0, *, file: str = "turns.jsonl") -> None:
        """Wait until turns.jsonl, or another file, holds a row with this text (a record came home)."""
        deadline = time.monotonic() + within_s
        path = self.path / file
        while time.monotonic() < deadline and self.process.poll() is None:
            if path.exists() and condition in path.read_text(encoding="utf-8"):
                return
            time.sleep(0.05)
        raise AssertionError(f"no record with {condition!r} within {within_s} s:\n{self.output()}")

    def first_arrival_s(self) -> float:
        """When it is due, or was (epoch): known once the first stage was noted."""
        return (RunDirectory.open(self.path).read_plan().started_ns or 0) / 1e9

    def worker_pids(self) -> dict[str, int]:
        """Worker processes that this run started, by name."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
                stat = (folder / "stat").read_text(encoding="utf-8")
            except OSError:
                continue
            parent = int(stat.rpartition(")")[2].split()[1])
            if b"worker" in command and b"--name" in command and parent == self.process.pid:
                found[command[command.index(b"--name") + 1].decode()] = int(folder.name)
        return found

    def interrupt(self) -> None:
        """Ctrl-C in its terminal: SIGINT to the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)


def check_conserved(ran: Ran) -> None:
    """planned = started + skipped, started = ok + failed + cancelled + lost, and no turn has two records."""
    assert ran.path.is_dir(), ran.out
    summary, turns = ran.summary, ran.turns
    counts = summary.counts
    assert counts.conserved(), counts
    assert counts.planned == len(turns) == ran.plan.planned_turns, (counts, len(turns), ran.plan.planned_turns)
    keys = [(turn.session_id, turn.turn) for turn in turns]
    assert len(set(keys)) == len(keys), "a turn has two records"
    by_session: dict[str, set[int]] = {}
    for session, turn in keys:
        by_session.setdefault(session, set()).add(turn)
    for session, numbers in by_session.items():
        assert numbers == set(range(len(numbers))), f"session {session} has a gap: {sorted(numbers)}"
    shown = re.sub(r"\s+", " ", ran.out)
    assert f"planned {counts.planned:,} = started {counts.started:,} + skipped {counts.skipped:,}" in shown, ran.out


def check_passed(ran: Ran) -> None:
    """Exit code 0; on a machine too busy for its own client the run may say so (3), and must have no other reason."""
    if ran.code == 3:
        reasons = ran.summary.invalid
        assert reasons and all(reason.startswith(("client-bound", "load not delivered")) for reason in reasons), ran.out
    else:
        assert ran.code == 0, ran.out
