"""Is a starved client called client-bound, and a fit one not? The experiment behind the rule of docs/client.md.

    python bench/starved.py                  # 20 runs of each kind
    python bench/starved.py --repeats 2 --kind half

Whole runs with one worker against the null server of `infersiege calibrate`:

* `half`: streams of 20 tokens/s at half of the calibrated ceiling: must not be client-bound;
* `slow`: the same number of streams from a server that takes 10 times as long for each token: must not be;
* `tenth`: as `half`, but the worker is stopped for 90 of each 100 ms, so that it has a tenth of a core: must be;
* `brief`: the same, stopped for 900 ms of each second: must be;
* `rare`: the same, stopped for 1.1 s and then left alone for 2.9 s, two or three times in steady: must be;
* `fine`: the same, stopped for 9 of each 10 ms: must be;
* `flood`: ten times the ceiling, or as much of it as the null server can send: must be.

Exit code 1 when one verdict is wrong. A run whose null server or worker was starved by other processes is told apart
as spoilt.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infersiege.calibrate.measure import ANSWER_TOKENS, calibrated
from infersiege.calibrate.rig import Side
from infersiege.calibration import known
from infersiege.records import Calibration

MS = 1_000_000
STEADY_S = 8
SERVER_LATE_MS = 25.0
"""A null server that is later than this (p99) was starved by others on the machine: what it then sends comes in bursts
with several tokens of a stream, and says nothing about the client."""
WAITED_SHARE = 0.1
"""Of a core: a worker that waited longer than this for one, and was not stopped by us, had a busy host. That such a run
is client-bound is true, but not what is asked here."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of run."""

    load: float
    """Of the calibrated ceiling."""
    bound: bool
    """What the verdict must be."""
    interval_ms: float = 50.0
    stop_ms: float = 0.0
    run_ms: float = 0.0


KINDS = {
    "half": Kind(load=0.5, bound=False),
    "slow": Kind(load=0.5, bound=False, interval_ms=500.0),
    "tenth": Kind(load=0.5, bound=True, stop_ms=90.0, run_ms=10.0),
    "brief": Kind(load=0.5, bound=True, stop_ms=900.0, run_ms=100.0),
    "rare": Kind(load=0.5, bound=True, stop_ms=1100.0, run_ms=2900.0),
    "fine": Kind(load=0.5, bound=True, stop_ms=9.0, run_ms=1.0),
    "flood": Kind(load=1.0, bound=True, interval_ms=5.0),
}


def plan_of(port: int, users: int) -> str:
    return f"""
[run]
name = "starved"
duration = "{STEADY_S + 4}s"
workers = 1
[channel.null]
engine = "generic"
base_url = "http://127.0.0.1:{port}/v1"
model = "null"
text_lengths = "ratio"
[[workload]]
scenario = "short-qa"
trace = "builtin:short-qa"
[load]
users = {users}
ramp = "3s"
warmup = "4s"
drain = "1s"
"""


@contextmanager
def duty_cycle(run: subprocess.Popen[bytes], events: Path, kind: Kind) -> Iterator[None]:
    """Stop and continue the run's worker from the beginning of the load to its end."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set() and not (events.exists() and b"stage_started" in events.read_bytes()):
            over.wait(0.05)
        worker = next(iter(children_of(run.pid)), None)
        while worker is not None and not over.is_set() and b"load_ended" not in events.read_bytes():
            try:
                os.kill(worker, signal.SIGSTOP)
                over.wait(kind.stop_ms / 1000)
                os.kill(worker, signal.SIGCONT)
                over.wait(kind.run_ms / 1000)
            except ProcessLookupError:
                return

    thread = threading.Thread(target=work)
    if kind.stop_ms:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if kind.stop_ms:
            thread.join()


def children_of(pid: int) -> list[int]:
    """Worker processes of a run."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return [one for one in found if b"worker" in Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")]


def one_run(kind: Kind, ceiling: Calibration, folder: Path) -> dict[str, Any]:
    """The summary of one run."""
    server = Side("infersiege.calibrate.server")
    try:
        port = server.read()["port"]
        server.ask({"interval_ns": round(kind.interval_ms * MS), "tokens": ANSWER_TOKENS})
        plan = folder / "plan.toml"
        plan.write_text(plan_of(port, max(1, round(ceiling.streams * kind.load))), encoding="utf-8")
        out = folder / f"run-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "infersiege", "run", str(plan), "--out", str(out), "--skip-doctor"]
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as run,
            duty_cycle(run, out / "events.jsonl", kind),
        ):
            run.wait(180)
        if not (out / "summary.json").exists():
            raise SystemExit((folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:])
        found: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        did = server.ask({})
        return found | {"server_late_ms": did["late_p99_ms"], "server_wait": did["cpu_wait_share"]}
    finally:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Starved clients and fit ones, and what a run says of them.")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only these (may be repeated)")
    options = parser.parse_args()
    ceiling = known(os.environ).calibration or calibrated(False, os.environ)
    print(f"ceiling: {ceiling.tokens_per_s:,.0f} tokens/s in {ceiling.streams:,} streams")
    wrong = spoilt = 0
    for number in range(options.repeats):
        for name in options.kind or KINDS:
            with tempfile.TemporaryDirectory() as folder:
                summary = one_run(KINDS[name], ceiling, Path(folder))
            bound = any(reason.startswith("client-bound") for reason in summary["invalid"])
            right = bound == KINDS[name].bound
            disturbed = not right and not KINDS[name].bound and busy_host(summary)
            wrong += not right and not disturbed
            spoilt += disturbed
            told = "; ".join(summary["invalid"]) or "; ".join(w for w in summary["warnings"] if "client" in w) or "-"
            said = f"{number + 1:>3} {name:<6} {'right' if right else 'spoilt' if disturbed else 'WRONG'}  "
            said += f"{summary['client']}, server late {summary['server_late_ms']:.1f} ms (p99)"
            print(f"{said}: {figures(summary)} | {told}")
            sys.stdout.flush()
    print(f"{wrong} wrong verdicts, {spoilt} runs spoilt by other processes on the host")
    sys.exit(wrong > 0)


def busy_host(summary: dict[str, Any]) -> bool:
    waited = max(client["cpu_wait_share_mean"] or 0.0 for client in summary["clients"])
    return bool(summary["server_late_ms"] > SERVER_LATE_MS or waited > WAITED_SHARE)


def figures(summary: dict[str, Any]) -> str:
    """What the rule saw of the worker."""
    seen = summary["clients"][0]
    return (
        f"lag p99 {seen['hub_lag_p99_ms']} ms, held {seen['held_seconds']}, stalled "
        f"{seen['stalled_share'] or 0:.1%}, busy {seen['busy_seconds']} of "
        f"{seen['seconds']} s, CPU {seen['cpu_share_mean'] or 0:.2f} + {seen['cpu_wait_share_mean'] or 0:.2f}, "
        f"lateness p99 {seen['lateness_p99_ms'] or 0:.1f} ms, slack {seen['wide_slack']}/{seen['first_tokens']}, "
        f"coalesced {seen['coalesced']}/{seen['chunks']}"
    )


if __name__ == "__main__":
    main()
