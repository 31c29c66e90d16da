"""Whether a rate limit holds at the server, and how much of it is used: 60 requests a minute over four workers.

    python bench/ratelimit.py                          # one worker is killed after a third of the time
    python bench/ratelimit.py --rpm 600 --seconds 150 --no-kill

Users want far more than the limit. The emulator's log tells when each request came, preflight's included. Exit code 1
when a sliding minute held more than the limit, or the busiest one less than 95 % of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from infersiege.emulator.process import EmulatorProcess
from infersiege.rundir import RunDirectory

LEAST_USED = 0.95
PLAN = """
[run]
name = "ratelimit"
duration = "{seconds}s"
[channel.target]
engine = "vllm"
base_url = "{url}"
model = "emulated-model"
rate_limit = {{requests_per_minute = {rpm}}}
[[workload]]
scenario = "short-qa"
trace = "builtin:short-qa"
max_tokens = 4
[load]
mode = "closed"
users = {users}
ramp = "0s"
drain = "2s"
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rpm", type=int, default=60, help="requests per minute")
    parser.add_argument("--seconds", type=int, default=130)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--no-kill", action="store_true", help="all workers live to the end")
    return parser.parse_args()


def kill_one(run: subprocess.Popen[bytes], name: str) -> None:
    """kill -9 a worker process of this run."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == run.pid and name.encode() in words:
            os.kill(int(folder.name), signal.SIGKILL)


def busiest(times_s: list[float], length_s: float) -> int:
    """Most requests in any sliding window [t, t + length)."""
    most = first = 0
    for last, at_s in enumerate(times_s):
        while times_s[first] <= at_s - length_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        plan, out, log = Path(folder) / "plan.toml", Path(folder) / "run", Path(folder) / "log.jsonl"
        with EmulatorProcess("--output-tokens", "4", log=log) as emulator:
            users = max(8, options.rpm // 15)
            text = PLAN.format(url=emulator.base_url, rpm=options.rpm, seconds=options.seconds, users=users)
            plan.write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "infersiege", "run", str(plan), "--out", str(out)]
            command += ["--workers", str(options.workers)]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as run:
                if not options.no_kill:
                    time.sleep(options.seconds / 3)
                    kill_one(run, "worker-2")
            times_s = sorted(row["received_ns"] / 1e9 for row in emulator.truth())
        summary = RunDirectory.open(out).read_summary()
    most, (use,) = busiest(times_s, 60.0), summary.rate_limits
    print(
        f"{options.rpm} requests a minute, {options.seconds} s, {options.workers} workers: {len(times_s)} requests came"
    )
    print(
        f"most in a sliding minute {most}, {most / options.rpm:.1%} of the limit; in a sliding second "
        f"{busiest(times_s, 1.0)}"
    )
    held_s = (use.held_longest_ms or 0.0) / 1e3
    print(f"{use.held} turns waited, {held_s:.1f} s at most; {summary.counts.failed} were refused or failed")
    return int(most > options.rpm or most < LEAST_USED * options.rpm)


if __name__ == "__main__":
    sys.exit(main())
