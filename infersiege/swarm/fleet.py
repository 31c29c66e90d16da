"""The master's view of its workers: who they are, whether they live, and the processes that it started itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from infersiege.records import Bye, Hello, Ready, Report
from infersiege.swarm.secret import SECRET_VARIABLE
from infersiege.swarm.versions import boot_id

SILENT_NS = 2_000_000_000
"""A worker that says nothing for so long is lost (Locust's own heartbeat takes about twice that)."""
SET_UP_NS = 60_000_000_000
"""One that joins is silent while it reads its traces."""
WAITING_NS = 10_000_000_000
"""One that waits for the load to begin says something twice a second; nothing is lost yet where it does not."""


@dataclass(slots=True)
class WorkerState:
    """One worker as the master knows it. Instants are the master's monotonic clock."""

    node_id: str
    hello: Hello
    place: int
    """Of its seat."""
    last_seen_ns: int
    ready: Ready | None = None
    report: Report | None = None
    bye: Bye | None = None
    admitted: bool = False
    """It plays a part in the load, or did."""
    lost_at_ns: int | None = None
    gone: bool = False
    """Lost for good: its process has ended."""
    away: list[tuple[int, int]] = field(default_factory=list)
    """From when to when it was lost, and came back."""
    sent_away: bool = False
    """It came back, and somebody else had its seat."""
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
    """All workers that a run ever had; each that is alive has a seat of its own, by its place."""

    expected: int
    local: int = 0
    """How many of them this host starts."""
    workers: dict[str, WorkerState] = field(default_factory=dict)
    """By Locust's node id."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Those that this host started, by worker name."""
    _by_name: dict[str, WorkerState] = field(init=False)

    def __post_init__(self) -> None:
        self._by_name = {worker.name: worker for worker in self.workers.values()}

    def add(self, worker: WorkerState) -> None:
        """Its name is nobody else's, nor ever was."""
        self.workers[worker.node_id] = self._by_name[worker.name] = worker

    def remove(self, worker: WorkerState) -> None:
        """One that never played a part."""
        del self.workers[worker.node_id], self._by_name[worker.name]

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of the workers that this host starts."""
        return tuple(f"worker-{number}" for number in range(1, self.local + 1))

    def is_own(self, hello: Hello) -> bool:
        """Whether this host started who says so: a stranger may have any name."""
        process = self.processes.get(hello.worker)
        return process is not None and process.pid == hello.pid and hello.boot_id == boot_id()

    def awaited(self) -> int:
        """How many of the workers that this host starts have not come yet."""
        return sum(self.by_name(name) is None for name in self.own_names)

    def spawn(self, *, address: str, secret: str, log_directory: Path) -> None:
        """Start the local workers. They ignore the terminal's Ctrl-C (a session of their own): the master ends them."""
        # numpy only makes small histograms here; its thread pool would take time from the event loop.
        environment = os.environ | {SECRET_VARIABLE: secret, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        log_directory.mkdir(parents=True, exist_ok=True)
        for name in self.own_names:
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
        return self._by_name.get(name)

    def alive(self) -> list[WorkerState]:
        """Those who are not lost, in the order of their seats."""
        return sorted((worker for worker in self.workers.values() if worker.alive), key=lambda worker: worker.place)

    def members(self) -> list[WorkerState]:
        """Those of them who play a part in the load."""
        return [worker for worker in self.alive() if worker.admitted]

    def ever_lost(self) -> list[WorkerState]:
        """Those of whose share a part may have been nobody's: also who came back."""
        return [worker for worker in self.workers.values() if worker.admitted and (worker.away or not worker.alive)]

    def free_places(self) -> list[int]:
        """Seats that nobody has, in order."""
        taken = {worker.place for worker in self.alive()}
        return [place for place in range(self.expected) if place not in taken]

    def has_seat(self, worker: WorkerState) -> bool:
        """Whether nobody else has a worker's seat."""
        return all(other is worker or other.place != worker.place for other in self.alive())

    def heard_again(self) -> list[WorkerState]:
        """Lost workers that have said something since, and are not known to be at their end."""
        return [
            worker
            for worker in self.workers.values()
            if worker.lost_at_ns is not None
            and worker.last_seen_ns > worker.lost_at_ns
            and not (worker.gone or worker.sent_away or worker.bye is not None)
        ]

    def forgive(self, stall_ns: int, now_ns: int) -> None:
        """The master itself heard nobody for so long; who was heard since then owes it nothing."""
        for worker in self.alive():
            worker.last_seen_ns = min(now_ns, worker.last_seen_ns + stall_ns)

    def all_ready(self) -> bool:
        ready = [worker for worker in self.alive() if worker.ready is not None]
        return len(ready) >= self.expected

    def exited_early(self) -> dict[str, int]:
        """Name -> return code, of own processes that ended although nobody told them to."""
        return {name: code for name, process in self.processes.items() if (code := process.poll()) is not None}

    def newly_dead(self, now_ns: int, heard_until_ns: int | None = None) -> list[WorkerState]:
        """Workers that are lost by silence or by their exit, marked as such; each is returned once.

        `heard_until_ns`: a master that is late has their words still before it; None: it has heard all by now.
        """
        heard_ns = now_ns if heard_until_ns is None else min(now_ns, heard_until_ns)
        dead = []
        for worker in self.alive():
            if worker.bye is not None:
                continue
            process = self.processes.get(worker.name)
            worker.gone = process is not None and process.poll() is not None
            patience_ns = SILENT_NS if worker.admitted else SET_UP_NS if worker.ready is None else WAITING_NS
            if worker.gone or heard_ns - worker.last_seen_ns > patience_ns:
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


def last_line(log: Path) -> str | None:
    """What a process said last, at most 300 characters, with the hint behind it; None: it said nothing."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    said = [line[:300] for line in lines[-2:]]
    return "; ".join(said) if said[-1:] and said[-1].startswith("hint: ") else said[-1] if said else None


def end_of(returncode: int, said: str | None) -> str:
    """Why a process ended, as far as it can be told: `killed by SIGKILL`, `exit code 2: error: no such …`."""
    try:
        how = f"exit code {returncode}" if returncode >= 0 else f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        how = f"killed by signal {-returncode}"
    return f"{how}: {said}" if said else f"{how}, and it said nothing"
