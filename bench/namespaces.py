"""Nothing lost, nothing twice: what happens to a run on several hosts when one of them dies, stops or is cut off.

    python bench/namespaces.py                        # everything: about 25 minutes, as root
    python bench/namespaces.py --only kill --kills 3
    python bench/namespaces.py --sessions 400 --rate 50

A master, a server (the emulator) and four workers on hosts of their own: namespaces of this machine with own addresses,
clocks, disks and host names (tests/hosts.py). After each run the server's own log is held against the records
(tests/remote_runs.py): no turn sent twice, none with two records, none without one; what a worker had closed a second
before is home; what was open when it died is `lost`; the counts add up; the exit code and the verdict say what
happened. Exit code 1 when anything is wrong, each fault with its run. `--write` puts the table into the document.
"""

from __future__ import annotations

import argparse
import importlib
import random
import re
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
remote: Any = importlib.import_module("remote_runs")
rig: Any = importlib.import_module("hosts")

WORKERS = 4
STOPPED_S, CUT_S = 8.0, 10.0
ORPHANED_S = 15.0
"""Within this a worker whose master has died has ended (docs/distributed.md)."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one run said, and what is wrong about it."""

    code: int
    outcomes: str
    faults: list[str]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that can happen."""

    what: str
    play: Callable[[Any, argparse.Namespace, random.Random], Told]
    runs: int = 1


# ------------------------------------------------------------------------------------------------------------- the runs


def text_of(site: Any, options: argparse.Namespace, mode: str) -> str:
    text: str = remote.plan(site.hosts, options.sessions, options.rate, mode=mode)
    return text


def at_random(options: argparse.Namespace, dice: random.Random, *, before_end_s: float) -> float:
    """Seconds after the first record."""
    return dice.uniform(0.5, max(1.0, options.sessions / options.rate - before_end_s))


def judged(run: Any, ran: Any, blow: Any, *, code: int, saying: str, sessions: int | None) -> Told:
    """`saying`: what a reason of an invalid run has in it; of a valid one: empty."""
    faults = list(remote.faults_of(ran.path, run.log_rows(), blow, sessions=sessions))
    reasons = [line for line in ran.out.splitlines() if line.startswith("INVALID")]
    busy = all("client-bound" in line or "load not delivered" in line for line in reasons)
    if ran.code != code and not (code == 0 and ran.code == 3 and busy):
        faults.append(f"exit code {ran.code}, not {code}: {ran.out[-300:]}")
    if saying and not any(saying in line for line in reasons):
        faults.append(f"no reason has {saying!r}: {reasons}")
    if "Traceback" in ran.out:
        faults.append(f"a traceback: {ran.out[-300:]}")
    unknown = remote.unknown_to_the_master(ran.path, run.log_rows())
    return Told(ran.code, remote.told(ran) + (f" ({unknown} of them were sent)" if unknown else ""), faults)


def undisturbed(mode: str) -> Callable[[Any, argparse.Namespace, random.Random], Told]:
    def play(site: Any, options: argparse.Namespace, dice: random.Random) -> Told:
        run = site.start(text_of(site, options, mode))
        return judged(run, run.wait(180), None, code=0, saying="", sessions=options.sessions)

    return play


def blown(mode: str, strike: Callable[[Any, str], Any], takes_s: float) -> Callable[..., Told]:
    """`strike(run, worker)` at a random time, to a worker drawn at random."""

    def play(site: Any, options: argparse.Namespace, dice: random.Random) -> Told:
        worker = dice.choice(site.workers)
        run = site.start(text_of(site, options, mode))
        run.until_loaded(at_random(options, dice, before_end_s=takes_s + 6.0))
        blow = strike(run, worker)
        return judged(run, run.wait(180), blow, code=3, saying=worker, sessions=options.sessions)

    return play


def master_killed(site: Any, options: argparse.Namespace, dice: random.Random) -> Told:
    """SIGKILL; then every worker ends by itself, and `recover` brings home what is in the spools."""
    run = site.start(text_of(site, options, "open"))
    run.until_loaded(at_random(options, dice, before_end_s=3.0))
    at_ns = time.monotonic_ns()
    run.master.signal(signal.SIGKILL)
    code = run.master.wait(10)
    faults = [f"{name} ended with {process.wait(60)}" for name, process in run.workers.items() if process.wait(60) != 3]
    took_s = (time.monotonic_ns() - at_ns) / 1e9
    if took_s > ORPHANED_S + 3:
        faults.append(f"the last worker ended {took_s:.1f} s after the master")
    # As somebody does who copies the spools to where the run directory is.
    home = site.hosts[remote.MASTER]
    spools = [str(home.here / copied) for copied in site.carry_spools()]
    done, said = home.run("infersiege", "recover", run.path.name, *spools, within_s=120)
    if "Traceback" in said or done not in (0, 3):
        faults.append(f"recover ended with {done}: {said[-300:]}")
    blow = remote.Blow(tuple(site.workers), at_ns, deadly=False)
    faults += remote.faults_of(run.path, run.log_rows(), blow)
    return Told(code, remote.told_of(run.path) + f"; workers ended within {took_s:.0f} s", faults)


def disk_full(site: Any, options: argparse.Namespace, dice: random.Random) -> Told:
    """The master's run directory lies on a disk that is full after some hundred records."""
    home = site.hosts[remote.MASTER]
    small = home.here / "small"
    home.run("sh", "-c", f"umount -l {small} 2>/dev/null; mkdir -p {small}; mount -t tmpfs -o size=600k none {small}")
    run = site.start(text_of(site, options, "open"), out="small/run")
    ran = run.wait(180)
    rescued = [line.partition(": ")[2] for line in ran.out.splitlines() if line.startswith("run directory: ")]
    if not rescued or not rescued[0].startswith(str(home.here)):
        return Told(ran.code, "", [f"no run directory elsewhere: {ran.out[-500:]}"])
    elsewhere = home.disk / Path(rescued[0]).relative_to(home.here)
    moved = type(ran)(ran.code, ran.out, ran.seconds, elsewhere)
    return judged(run, moved, None, code=3, saying="no space left", sessions=None)


def redis_restarted(site: Any, options: argparse.Namespace, dice: random.Random) -> Told:
    """SIGKILL of the Redis that hands the sessions out; three seconds later it is started on what it had written."""
    redis, home = site.redis(), site.hosts[remote.MASTER]
    name = ("--redis", site.redis_url, "--name", "fleet", "--sessions", str(options.sessions))
    code, said = home.run("infersiege", "traces", "load", "builtin:short-qa", *name, within_s=120)
    if code:
        return Told(code, "", [f"traces load: {said[-300:]}"])
    workload = f'scenario = "short-qa"\ntrace = "fleet"\nsource = "{site.redis_url}"'
    run = site.start(remote.plan(site.hosts, options.sessions, options.rate, workload=workload))
    run.until_loaded(at_random(options, dice, before_end_s=6.0))
    redis.signal(signal.SIGKILL)
    redis.wait(10)
    time.sleep(3.0)
    again = site.redis()
    ran = run.wait(180)
    told = judged(run, ran, None, code=0, saying="", sessions=options.sessions)
    left = home.run("redis-cli", "-u", site.redis_url, "--scan", "--pattern", "infersiege:*")[1].split()
    told.faults.extend(f"left in Redis: {key}" for key in left if not key.startswith("infersiege:fleet:"))
    again.signal(signal.SIGKILL)
    return told


def cases(kills: int) -> Iterator[Case]:
    yield Case("nothing, open loop", undisturbed("open"))
    yield Case("nothing, closed loop", undisturbed("closed"))
    yield Case("kill -9 of a worker, open loop", blown("open", remote.kill, 0.0), (kills + 1) // 2)
    yield Case("kill -9 of a worker, closed loop", blown("closed", remote.kill, 0.0), kills // 2)
    stop = lambda run, worker: remote.stop(run, worker, STOPPED_S)  # noqa: E731
    whole = lambda run, worker: remote.cut(run, worker, CUT_S)  # noqa: E731
    masters = lambda run, worker: remote.cut(run, worker, CUT_S, "control")  # noqa: E731
    for mode in ("open", "closed"):
        yield Case(f"SIGSTOP of a worker for 8 s, {mode} loop", blown(mode, stop, STOPPED_S))
        yield Case(f"cut of a worker for 10 s, {mode} loop", blown(mode, whole, CUT_S))
        yield Case(f"cut of a worker from the master alone for 10 s, {mode} loop", blown(mode, masters, CUT_S))
    yield Case("kill -9 of the master", master_killed)
    yield Case("the master's disk full", disk_full)
    yield Case("kill -9 of Redis, started again 3 s later", redis_restarted)


# ----------------------------------------------------------------------------------------------------------- the table


def played(site: Any, case: Case, options: argparse.Namespace, dice: random.Random) -> Told:
    try:
        return case.play(site, options, dice)
    except Exception as error:  # noqa: BLE001 (one broken run is a row of the table; the others are still made)
        if options.verbose:
            traceback.print_exc()
        return Told(-1, "", [f"{type(error).__name__}: {str(error)[-600:]}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=2_000)
    parser.add_argument("--rate", type=int, default=100, help="sessions per second")
    parser.add_argument("--kills", type=int, default=20, help="runs with a killed worker")
    parser.add_argument("--only", default="", help="cases with these words")
    parser.add_argument("--seed", type=int, default=7, help="of who is struck when")
    parser.add_argument("--write", action="store_true", help="put the table into docs/distributed.md")
    parser.add_argument("--verbose", action="store_true", help="show where a run of the bench itself broke")
    options = parser.parse_args()
    if (why := rig.missing()) is not None:
        print(why, file=sys.stderr)
        return 2
    # Ctrl-C and SIGTERM end the hosts on the way out; after SIGKILL the kernel does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    dice, wrong = random.Random(options.seed), 0
    head = f"{WORKERS} workers, {options.sessions:,} sessions, {options.rate} a second (seed {options.seed}):"
    table = ["| what happens | runs | exit code | records, last run | faults |", "|---|---|---|---|---|"]
    print(head, "", *table, sep="\n", flush=True)
    for case in cases(options.kills):
        if any(word not in case.what for word in shlex.split(options.only)):
            continue
        found: list[Told] = []
        for number in range(case.runs):
            with tempfile.TemporaryDirectory() as folder, remote.Site(Path(folder) / "site", WORKERS) as site:
                found.append(played(site, case, options, dice))
            for fault in found[-1].faults:
                print(f"FAULT {case.what}, run {number + 1}: {fault}", file=sys.stderr)
        faults = sum(len(one.faults) for one in found)
        wrong += faults
        if found:
            table.append(row_of(case, found))
            print(table[-1], flush=True)
    if options.write:
        write(head, table)
    return int(wrong > 0)


def row_of(case: Case, found: list[Told]) -> str:
    faults = sum(len(one.faults) for one in found)
    codes = " ".join(str(code) for code in sorted({one.code for one in found}))
    return f"| {case.what} | {case.runs} | {codes} | {found[-1].outcomes} | {faults or 'none'} |"


def write(head: str, table: list[str]) -> None:
    """Into the document; rows of cases that were not played now stay as they are there."""
    document = ROOT / "docs" / "distributed.md"
    before = document.read_text(encoding="utf-8")
    inside = re.search(r"<!-- bench-namespaces: begin -->\n(.*?)<!-- bench-namespaces: end -->", before, re.DOTALL)
    assert inside is not None, f"{document}: the place for the table is gone"
    rows = {line.split(" | ")[0]: line for line in inside[1].splitlines() if line.startswith("|")}
    rows |= {line.split(" | ")[0]: line for line in table}
    text = "\n".join((head, "", *rows.values(), ""))
    document.write_text(before[: inside.start(1)] + text + before[inside.end(1) :], encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
