"""Run one command on one core and tell what its whole process tree used.

    python meter.py '{"command": ["aiperf", "..."], "core": 0, "limit_s": 300, "log": "log.txt"}'

Prints one JSON object, `Used`. CPU is user and system time of every process of the tree: orphans are adopted
(PR_SET_CHILD_SUBREAPER), so that none of them is forgotten. Memory is the largest sum of proportional set sizes (a page
that several processes share counts once), looked at twice a second. What is still there when the limit is over, or five
seconds after the command has ended, is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

LOOK_S = 0.5
ORPHANS_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


class Order(msgspec.Struct, frozen=True):
    command: list[str]
    core: int
    """On which every process of it runs; the meter itself keeps to where it was started."""
    limit_s: float
    log: str
    """File that takes what the command prints."""


class Used(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    """Negative: ended by that signal."""
    timed_out: bool
    wall_s: float
    cpu_s: float
    peak_bytes: int
    processes: int
    """Most at a time."""


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, its children first. A process that ends meanwhile is left out."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text(encoding="ascii").split()]
    return found + [one for child in found for one in descendants(child)]


def proportional_bytes(pid: int) -> int:
    """PSS; 0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def reap_orphans(until: float) -> None:
    """Wait for adopted processes; after `until` (monotonic seconds) those that are left are killed."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > until:
                kill_all(descendants(os.getpid()))
            time.sleep(0.05)


def run(order: Order) -> Used:
    """Raises OSError where the command can't be started."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    peak_bytes = processes = 0
    timed_out = False
    started = time.monotonic()
    own_cores = os.sched_getaffinity(0)
    with Path(order.log).open("wb") as log:
        os.sched_setaffinity(0, {order.core})  # what is started inherits it
        child = subprocess.Popen(
            order.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        os.sched_setaffinity(0, own_cores)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_S)
                break
            tree = descendants(os.getpid())
            peak_bytes = max(peak_bytes, sum(map(proportional_bytes, tree)))
            processes = max(processes, len(tree))
            if time.monotonic() - started > order.limit_s and not timed_out:
                timed_out = True
                kill_all(tree)
    ended = time.monotonic()
    reap_orphans(ended + ORPHANS_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Used(
        exit_code=child.returncode,
        timed_out=timed_out,
        wall_s=ended - started,
        cpu_s=used.ru_utime + used.ru_stime,
        peak_bytes=peak_bytes,
        processes=processes,
    )


def main() -> None:
    used = run(msgspec.json.decode(sys.argv[1], type=Order))
    print(msgspec.json.encode(used).decode())


if __name__ == "__main__":
    main()
