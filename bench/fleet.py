"""How many workers one master carries: the real master, and workers that only talk (fleet_workers.py).

    python bench/fleet.py                                   # 10, 100, 300 and 1,000 workers, 10 requests/s each
    python bench/fleet.py --workers 300 --rate 100          # ten times the requests
    python bench/fleet.py --workers 20 --rate 200 --seconds 300     # DI-04: CPU and memory stay flat
    python bench/fleet.py --workers 300 --profile out.prof  # cProfile of the master
    python bench/fleet.py --workers 1000 --users 10000 --lose 1     # users of closed loops once one is lost

The master is `infersiege run --expect-workers N` in a process of its own, unchanged but for a greenlet that looks each
10 ms how late it comes. All traffic stays on loopback, and workers use a core beside the master's. Exit code 1 when a
fleet of `--must-carry` workers or fewer is not carried: p99 of the loop's lag under 200 ms and of acknowledgements
under a second, no lease later than 1.5 s. `CPU` is of the event loop and of ZeroMQ's thread, in cores; `waited` is the
time in which the event loop had work and no CPU: above a few percent this machine was too busy to measure on.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_LAG_MS = 200.0
LATEST_LEASE_MS = 1500.0
"""Half of what a lease lasts."""
SLOWEST_ACK_MS = 1000.0
"""p99; a worker sends again what was not acknowledged within two seconds."""
WORKERS_A_PROCESS = 250
START_S = 90.0
END_S = 30.0
LOSE_AFTER_S = 1.0
"""From its first lease on a worker that is to be lost says nothing more."""
TAKEN_OVER_S = 8.0
"""From then on until its users are had by others, and everybody was told: silence, the end of its lease, an epoch."""
SETTLE_S = 5.0
"""Left out at the beginning of a measurement: all histograms are new then."""
PLAN = """
[run]
name = "fleet"
duration = "{seconds}s"
wait_for_workers = "{start}s"
[channel.local]
engine = "generic"
base_url = "http://127.0.0.1:9/v1"
model = "none"
text_lengths = "ratio"
[[workload]]
scenario = "short-qa"
trace = "builtin:short-qa"
[load]
users = {users}
drain = "1s"
{more}
"""


@dataclass(slots=True)
class Probe:
    """What the kernel says of the master, each second."""

    pid: int
    seconds: list[dict[str, float]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        try:
            before, at, waited = self._cpu_s(), time.monotonic(), self._waited_s()
            while not self.over.wait(1.0):
                now, now_at, now_waited = self._cpu_s(), time.monotonic(), self._waited_s()
                rss = int(Path(f"/proc/{self.pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
                second = {"at": now_at, "rss": float(rss), "wait": (now_waited - waited) / (now_at - at)}
                second |= {"main": (now[0] - before[0]) / (now_at - at)}
                self.seconds.append(second | {"others": (now[1] - before[1]) / (now_at - at)})
                before, at, waited = now, now_at, now_waited
        except (OSError, IndexError):
            return  # it has ended

    def _waited_s(self) -> float:
        """Seconds in which the event loop could have run but had no CPU: other processes of this machine."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text("ascii").split()[1]) / 1e9

    def _cpu_s(self) -> tuple[float, float]:
        """CPU seconds of the main thread, which is the event loop, and of all others: ZeroMQ's does the encryption."""
        main = others = 0.0
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            words = (thread / "stat").read_text("utf-8").rpartition(")")[2].split()
            used = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
            main, others = (used, others) if thread.name == str(self.pid) else (main, others + used)
        return main, others


@dataclass(slots=True)
class Crowds:
    """Processes full of workers, and what they saw."""

    processes: list[subprocess.Popen[bytes]]
    told: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    latest: dict[int, dict[str, Any]] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def listen(self) -> None:
        for number, process in enumerate(self.processes):
            thread = threading.Thread(target=self._read, args=(number, process), daemon=True)
            thread.start()
            self.threads.append(thread)

    def _read(self, number: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            self.latest[number] = said
            self.told.append((time.monotonic(), said))

    def count(self, name: str) -> int:
        return sum(said[name] for said in list(self.latest.values()))

    def between(self, begin: float, end: float) -> list[dict[str, Any]]:
        return [said for at, said in list(self.told) if begin <= at <= end]


@dataclass(slots=True)
class Fleet:
    """Figures of one fleet."""

    workers: int
    rate: float
    to_lose: int
    """Workers that fell silent as they were meant to."""
    ready_s: float
    """From the start of the workers to the first lease."""
    seconds: list[dict[str, float]]
    told: list[dict[str, Any]]
    lag_ms: dict[str, float]
    end_s: float | None
    """From the end of the load to the last worker's quit; None: not all were told."""
    lost: int

    def values_ms(self, name: str) -> list[float]:
        return sorted(value / 1e6 for said in self.told for value in said[name])

    def mean(self, name: str) -> float:
        return sum(second[name] for second in self.seconds) / max(len(self.seconds), 1)

    @property
    def carried(self) -> bool:
        leases = self.values_ms("lease_gaps_ns")
        acks = self.values_ms("acks_ns")
        quick = bool(leases) and leases[-1] < LATEST_LEASE_MS
        quick = quick and bool(acks) and acks[int(len(acks) * 0.99)] < SLOWEST_ACK_MS
        return quick and self.lag_ms["p99"] < MOST_LAG_MS and self.lost == self.to_lose and self.end_s is not None

    def figures(self) -> dict[str, Any]:
        """For scripts; times in ms."""
        rss = [second["rss"] for second in self.seconds]
        leases, acks = self.values_ms("lease_gaps_ns"), self.values_ms("acks_ns")
        return {
            "workers": self.workers,
            "rate": self.rate,
            "carried": self.carried,
            "lost": self.lost,
            "ended": self.end_s is not None,
            "cpu_share": self.mean("main"),
            "rss_bytes": rss,
            "lag_p99": self.lag_ms["p99"],
            "lease_gap_max": leases[-1] if leases else None,
            "acknowledged": len(acks),
            "held": max((said["held"] for said in self.told), default=0),
            "report_bytes": max((said["report_bytes"] for said in self.told), default=0),
            "record_bytes_per_s": self.workers * max((said["record_bytes"] for said in self.told), default=0),
        }

    def line(self) -> str:
        answers, acks, leases = (self.values_ms(name) for name in ("answers_ns", "acks_ns", "lease_gaps_ns"))
        rss = [second["rss"] / 2**20 for second in self.seconds] or [0.0]
        late = max((said["late_ns"] / 1e6 for said in self.told), default=0.0)
        crowd = sum(said["cpu_share"] for said in self.told) / max(len(self.seconds), 1)
        sizes = {said["report_bytes"] for said in self.told}
        records = self.workers * max((said["record_bytes"] for said in self.told), default=0) / 1e6
        end = "never" if self.end_s is None else f"{self.end_s:.1f} s"
        return (
            f"{self.workers:>5} workers x {self.rate:g}/s: {'carried' if self.carried else 'TOO MANY'}; "
            f"CPU {self.mean('main'):.2f} + {self.mean('others'):.2f}, waited {self.mean('wait'):.2f}, "
            f"RSS {rss[0]:.0f} -> {rss[-1]:.0f} MiB, "
            f"loop lag p50 {self.lag_ms['p50']:.0f} p99 {self.lag_ms['p99']:.0f} max {self.lag_ms['max']:.0f} ms, "
            f"answer {_three(answers)}, ack {_three(acks)}, lease gap {_three(leases)}; "
            f"ready {self.ready_s:.1f} s, end {end}, lost {self.lost}, records {records:.1f} MB/s, "
            f"report {max(sizes, default=0):,} B; workers' CPU {crowd:.2f}, late {late:.0f} ms"
        )


def _three(values: list[float]) -> str:
    """p50/p99/max in ms."""
    if not values:
        return "-"
    return f"{values[len(values) // 2]:.0f}/{values[int(len(values) * 0.99)]:.0f}/{values[-1]:.0f} ms"


@contextmanager
def fleet_of(
    workers: int, rate: float, seconds: int, folder: Path, more: str, profile: str | None, users: int, lose: int
) -> Iterator[Any]:
    """(run's process, its directory, Crowds) with all workers on their way in."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = os.environ | {"INFERSIEGE_SECRET": secrets.token_hex(16)}
    plan, out = folder / "plan.toml", folder / "run"
    plan.write_text(PLAN.format(seconds=seconds, start=int(START_S), users=users, more=more), encoding="utf-8")
    command = [
        sys.executable,
        __file__,
        "--as-master",
        str(folder / "lag.json"),
        *(["--profile", profile] if profile else []),
    ]
    command += ["--", "run", str(plan), "--out", str(out), "--workers", "0", "--expect-workers", str(workers)]
    command += ["--bind", address, "--skip-doctor"]
    processes: list[subprocess.Popen[bytes]] = []
    with (folder / "log").open("wb") as log:
        master = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            while not (folder / "log").read_bytes().count(b"waiting for") and master.poll() is None:
                time.sleep(0.05)
            script = str(Path(__file__).with_name("fleet_workers.py"))
            for first in range(0, workers, WORKERS_A_PROCESS):
                count = min(WORKERS_A_PROCESS, workers - first)
                crowd = [sys.executable, script, address, "--workers", str(count), "--first", str(first)]
                crowd += ["--fleet", str(workers), "--rate", str(rate)]
                crowd += ["--lose", str(0 if first else lose), "--lose-after", str(LOSE_AFTER_S)]
                processes.append(subprocess.Popen(crowd, env=environment, stdout=subprocess.PIPE, stderr=log))
            yield master, out, Crowds(processes)
        finally:
            for process in (master, *processes):
                process.kill()
                process.wait()


def measured(
    workers: int,
    rate: float,
    seconds: int,
    *,
    more: str = "",
    profile: str | None = None,
    users: int | None = None,
    lose: int = 0,
) -> Fleet:
    """One fleet, from the first hello to the last quit. What is measured begins when `lose` workers were replaced."""
    users = workers if users is None else users
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.monotonic()
        with fleet_of(workers, rate, seconds, folder, more, profile, users, lose) as (master, out, crowds):
            crowds.listen()
            probe = Probe(master.pid)
            threading.Thread(target=probe.watch, daemon=True).start()
            events = out / "events.jsonl"
            while not (events.exists() and b"stage_started" in events.read_bytes()):
                if master.poll() is not None or time.monotonic() - begun > START_S:
                    joined, ready = crowds.count("joined"), crowds.count("ready")
                    log = (folder / "log").read_text(encoding="utf-8", errors="replace")[-1500:]
                    raise SystemExit(f"the load did not begin: {joined} joined, {ready} were ready\n{log}")
                time.sleep(0.02)
            ready_s, started = time.monotonic() - begun, time.monotonic()
            settle_s = LOSE_AFTER_S + TAKEN_OVER_S if lose else min(SETTLE_S, seconds / 3)
            ended = _ended(events, master, within_s=seconds + 20)
            end_s = _gone(crowds, workers, ended)
            probe.over.set()
            lost = events.read_bytes().count(b'"worker_lost"')
            # What comes now is the report of the run, which is none of the fleet's costs.
            master.send_signal(signal.SIGUSR1 if profile else signal.SIGKILL)
            master.wait(60)
            lag = json.loads((folder / "lag.json").read_text("ascii"))
        begin, end = started + settle_s, ended
        looks = sorted(ms for at, ms in lag if begin <= at <= end) or [0.0]
        lag_ms = {"p50": looks[len(looks) // 2], "p99": looks[int(len(looks) * 0.99)], "max": looks[-1]}
        inside = [second for second in probe.seconds if begin <= second["at"] <= end]
        return Fleet(workers, rate, lose, ready_s, inside, crowds.between(begin, end), lag_ms, end_s, lost)


def _ended(events: Path, master: subprocess.Popen[bytes], within_s: float) -> float:
    deadline = time.monotonic() + within_s
    while b"load_ended" not in events.read_bytes() and master.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return time.monotonic()


def _gone(crowds: Crowds, workers: int, ended: float) -> float | None:
    while time.monotonic() - ended < END_S:
        if all(process.poll() is not None for process in crowds.processes):
            return time.monotonic() - ended
        time.sleep(0.05)
    print(f"of {workers} workers {crowds.count('gone')} were told to go", file=sys.stderr)
    return None


def as_master(lag_file: Path, profile: str | None, arguments: list[str]) -> None:
    """The command `infersiege`, watched: how late a greenlet comes that wants to run each 10 ms."""
    from infersiege.swarm.patching import patch

    patch()
    import gevent

    from infersiege.cli import main as infersiege

    looks: list[tuple[float, float]] = []

    def watch() -> None:
        while True:
            due = time.monotonic() + 0.01
            gevent.sleep(0.01)
            now = time.monotonic()
            looks.append((now, (now - due) * 1e3))

    def keep() -> None:
        while True:
            gevent.sleep(2.0)
            part = lag_file.with_suffix(".part")
            part.write_text(json.dumps(looks), encoding="ascii")
            part.replace(lag_file)

    gevent.spawn(watch)
    gevent.spawn(keep)
    sys.argv = ["infersiege", *arguments]
    profiler = cProfile.Profile()
    if profile is None:
        infersiege()

    def end() -> None:
        profiler.disable()
        profiler.dump_stats(profile or "")
        os._exit(0)

    gevent.signal_handler(signal.SIGUSR1, end)
    profiler.enable()
    infersiege()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, action="append", help="a fleet (may be repeated)")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second of each worker")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--users", type=int, help="of the closed loop; default: one for each worker")
    parser.add_argument("--lose", type=int, default=0, help="workers (250 at most) that fall silent in the load")
    parser.add_argument("--must-carry", type=int, default=100)
    parser.add_argument("--more", default="", help="more lines of the plan, such as a [telemetry] section")
    parser.add_argument("--json", action="store_true", help="figures for scripts")
    parser.add_argument("--profile", help="write a cProfile of the master there")
    parser.add_argument("--as-master", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_master is not None:
        as_master(options.as_master, options.profile, options.arguments)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the fleet goes, too
    failed = False
    for workers in options.workers or (10, 100, 300, 1000):
        fleet = measured(
            workers,
            options.rate,
            options.seconds,
            more=options.more,
            profile=options.profile,
            users=options.users,
            lose=options.lose,
        )
        print(json.dumps(fleet.figures()) if options.json else fleet.line(), flush=True)
        failed = failed or (workers <= options.must_carry and not fleet.carried)
    sys.exit(failed)


if __name__ == "__main__":
    main()
