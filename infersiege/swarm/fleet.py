"""The master's view of its workers: who they are, whether they live, and the processes that it started itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from infersiege.records import Bye, Hello, Ready, Report
from infersiege.swarm.secret import SECRET_VARIABLE

SILENT_NS = 2_000_000_000
"""A worker that says nothing for so long is dead (Locust's own heartbeat takes about twice that)."""


@dataclass(slots=True)
class WorkerState:
    """One worker as the master knows it. Instants are the master's monotonic clock."""

    node_id: str
    hello: Hello
    place: int
    last_seen_ns: int
    ready: Ready | None = None
    report: Report | None = None
    bye: Bye | None = None
    lost_at_ns: int | None = None
    clock_offset_ns: int = 0
    clock_uncertainty_ns: int = 0

    @property
    def name(self) -> str:
        return self.hello.worker

    @property
    def alive(self) -> bool:
        return self.lost_at_ns is None


@dataclass(slots=True)
class Fleet:
    """All workers of a run, in the order in which they said hello; the place is the index."""

    expected: int
    workers: dict[str, WorkerState] = field(default_factory=dict)
    """By Locust's node id."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Those that this host started, by worker name."""

    def spawn(self, count: int, *, address: str, secret: str, log_directory: Path) -> None:
        """Start worker processes. They ignore the terminal's Ctrl-C (a session of their own): the master ends them."""
        # numpy only makes small histograms here; its thread pool would take time from the event loop.
        environment = os.environ | {SECRET_VARIABLE: secret, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        log_directory.mkdir(parents=True, exist_ok=True)
        for index in range(count):
            name = f"worker-{index + 1}"
            command = [sys.executable, "-m", "infersiege", "worker", "--master", address, "--name", name]
            with (log_directory / f"{name}.log").open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )

    def seen(self, node_id: str) -> WorkerState | None:
        """Note a sign of life. None: not one of ours."""
        worker = self.workers.get(node_id)
        if worker is not None:
            worker.last_seen_ns = time.monotonic_ns()
        return worker

    def by_name(self, name: str) -> WorkerState | None:
        return next((worker for worker in self.workers.values() if worker.name == name), None)

    def alive(self) -> list[WorkerState]:
        return [worker for worker in self.workers.values() if worker.alive]

    def all_ready(self) -> bool:
        ready = [worker for worker in self.alive() if worker.ready is not None]
        return len(ready) >= self.expected

    def exited_early(self) -> list[str]:
        """Names of own processes that ended although nobody told them to."""
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def newly_dead(self, now_ns: int) -> list[WorkerState]:
        """Workers found dead by silence or by their exit, marked as lost; each is returned once."""
        dead = []
        for worker in self.alive():
            if worker.bye is not None:
                continue
            process = self.processes.get(worker.name)
            gone = process is not None and process.poll() is not None
            if gone or now_ns - worker.last_seen_ns > SILENT_NS:
                worker.lost_at_ns = now_ns
                dead.append(worker)
        return dead

    def reap(self, patience_s: float) -> None:
        """End own processes within about `patience_s`, however many: wait, then SIGTERM, then SIGKILL."""
        deadline = time.monotonic() + patience_s
        self._wait_until(deadline - patience_s / 2)
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        self._wait_until(deadline)
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def _wait_until(self, deadline: float) -> None:
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def last_line(log: Path) -> str:
    """What a process said last, at most 300 characters."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:300] if lines else "it said nothing"
