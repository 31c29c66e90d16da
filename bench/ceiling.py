"""What one worker of a whole run can do on one core, against the server that writes down its times.

    .venv/bin/python bench/ceiling.py                # the three targets, a minute and a half; needs gcc
    .venv/bin/python bench/ceiling.py events --users 800 --profile out.svg

* `events`: 1,040 streams of 50 events/s, one event per write: at least 50,000 events read per second, at most 2 % of
  the chunks coalesced, |TTFT - the server's| at most 1 ms (p99);
* `short`: answers that are not streamed, 64 at a time: at least 2,000 a second;
* `memory`: 2,000 streams at a time, 20 events/s each: the worker's resident set stays below 400 MB.

`infersiege run` with one worker, which alone has the first core; the master and the server share the last one. Exit
code 1 when a target is missed, each is named. --profile needs py-spy in the environment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from generated import where_and_when, write_block
from rig.server import Rig, build

from infersiege.records import TurnRecord
from infersiege.rundir import RunDirectory

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
DRAIN_S = 12
PLAN = """
[run]
name = "ceiling"
duration = "{seconds}s"
workers = 1
[channel.null]
engine = "generic"
base_url = "http://127.0.0.1:{port}/v1"
model = "fake"
stream = {stream}
text_lengths = "ratio"
[[workload]]
scenario = "fixed"
trace = "fixed.csv"
wrap = true
[load]
users = {users}
ramp = "2s"
warmup = "4s"
drain = "{drain}s"
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One target's load: what the plan asks for and what the server does."""

    users: int
    seconds: int
    """Of load, 4 s of warm-up included."""
    stream: bool
    tokens: int
    server: dict[str, float]


CASES = {
    "events": Case(1060, 24, True, 250, {"ttft": 200, "ttft_j": 0.5, "itl": 20}),
    "short": Case(64, 14, False, 8, {"ttft": 1, "itl": 0}),
    "memory": Case(2000, 24, True, 200, {"ttft": 200, "ttft_j": 0.5, "itl": 50}),
}


@dataclass(slots=True)
class Worker:
    """What was seen of the worker process."""

    peak_bytes: int = 0
    cpu: list[tuple[float, float]] = field(default_factory=list)
    """(monotonic seconds, its CPU seconds so far), twice a second."""

    def look(self, pid: int) -> None:
        """Raises OSError when it is gone."""
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        for line in status.splitlines():  # a process that has ended and isn't waited for yet has no such line
            if line.startswith("VmHWM"):
                self.peak_bytes = int(line.split()[1]) * 1024
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        self.cpu.append((time.monotonic(), (int(fields[11]) + int(fields[12])) * TICK_S))

    def share(self, begin_s: float, end_s: float) -> float:
        """Of a core, between two instants."""
        inside = [one for one in self.cpu if begin_s <= one[0] <= end_s]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


@dataclass(frozen=True, slots=True)
class Figures:
    events_per_s: float
    """Content events that the server wrote in steady."""
    turns_per_s: float
    """That ended well in steady."""
    failed: int
    unread: int
    """Events of turns that ended well which the client did not count."""
    coalesced: float
    ttft_error_p50_ms: float
    ttft_error_p99_ms: float
    late_p99_ms: float
    """First token minus its write: the answer's way alone, the part of the TTFT error that a client can spoil."""
    cpu_share: float
    peak_mb: float
    client: str
    """The run's own verdict on its client, and why."""


def worker_of(pid: int) -> int | None:
    """The worker process of a run, as soon as it has its command line."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    for child in map(int, children):
        if b"worker" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
            return child
    return None


def run(case: Case, folder: Path, rig: Rig, profile: Path | None) -> tuple[RunDirectory, Worker]:
    """A whole run. SystemExit with the run's output when it failed."""
    row = f"2026-01-01 00:00:{{:02}},32,{case.tokens}"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", *map(row.format, range(60)), ""]
    (folder / "fixed.csv").write_text("\n".join(rows), encoding="utf-8")
    plan, out, log = folder / "plan.toml", folder / "run", folder / "log"
    stream = "true" if case.stream else "false"
    text = PLAN.format(seconds=case.seconds, port=rig.port, stream=stream, users=case.users, drain=DRAIN_S)
    plan.write_text(text, encoding="utf-8")
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "infersiege", "run", str(plan), "--out", str(out)]
    seen, pid, profiler = Worker(), None, None
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as master:
        os.sched_setaffinity(master.pid, {cores[-1]})
        while master.poll() is None:
            time.sleep(0.5 if pid else 0.02)
            try:
                if pid is None and (pid := worker_of(master.pid)) is not None:
                    os.sched_setaffinity(pid, {cores[0]})
                    profiler = _profiler(pid, profile, case.seconds - 8)
                if pid is not None:
                    seen.look(pid)
            except OSError:
                continue
    if profiler is not None:
        profiler.wait(60)
    if not (out / "summary.json").exists():
        raise SystemExit(f"error: the run left no summary:\n{log.read_text(errors='replace')[-2000:]}")
    return RunDirectory.open(out), seen


def _profiler(pid: int, profile: Path | None, seconds: int) -> subprocess.Popen[bytes] | None:
    """py-spy on the worker, once its load is there."""
    if profile is None:
        return None
    tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if tool is None:
        raise SystemExit("error: py-spy is not installed: .venv/bin/python -m pip install py-spy")
    form = "raw" if profile.suffix == ".txt" else "flamegraph"
    command = f"sleep 6; exec {tool} record --pid {pid} --rate 200 --duration {seconds} --format {form} -o {profile}"
    return subprocess.Popen(["sh", "-c", command], stdout=subprocess.DEVNULL)


def figures(case: Case, rundir: RunDirectory, seen: Worker, rig: Rig) -> Figures:
    """The run held against the server's own record. SystemExit when no turn ended well."""
    truth = {row.name: row for row in rig.truth()}
    turns = list(rundir.read_turns())
    done = [turn for turn in turns if turn.outcome == "ok"]
    if not done:
        raise SystemExit(f"error: of {len(turns):,} turns none ended well: is something else busy here?")
    steady = [turn for turn in done if turn.phase == "steady"]
    first_ns = min(truth[turn.request_id].received_ns for turn in done)
    begin_ns, end_ns = first_ns + 5_000_000_000, first_ns + (case.seconds - 1) * 1_000_000_000
    written = np.concatenate([row.written_ns for row in truth.values()])
    seconds = (end_ns - begin_ns) / 1e9
    offset_ns = time.time_ns() - time.monotonic_ns()
    closed = [turn.closed_ns - offset_ns for turn in done if turn.closed_ns is not None]
    chunks = sum(turn.chunks for turn in steady)
    errors_ms = [
        error for turn in steady if (error := _ttft_error_ms(turn, truth[turn.request_id].ttft_ns)) is not None
    ]
    late_ms = [
        (turn.first_token_ns - offset_ns - int(truth[turn.request_id].written_ns[0])) / 1e6
        for turn in steady
        if turn.first_token_ns is not None
    ]
    summary = rundir.read_summary()
    return Figures(
        events_per_s=int(np.count_nonzero((written >= begin_ns) & (written < end_ns))) / seconds,
        turns_per_s=sum(begin_ns <= at < end_ns for at in closed) / seconds,
        failed=sum(turn.outcome == "failed" for turn in turns),
        unread=sum(len(truth[turn.request_id].written_ns) - turn.chunks for turn in done) if case.stream else 0,
        coalesced=sum(turn.coalesced for turn in steady) / chunks if chunks else 0.0,
        ttft_error_p50_ms=float(np.percentile(errors_ms, 50)) if errors_ms else 0.0,
        ttft_error_p99_ms=float(np.percentile(errors_ms, 99)) if errors_ms else 0.0,
        late_p99_ms=float(np.percentile(late_ms, 99)) if late_ms else 0.0,
        cpu_share=seen.share(begin_ns / 1e9, end_ns / 1e9),
        peak_mb=seen.peak_bytes / 1e6,
        client="; ".join([str(summary.client), *(text for one in summary.clients for text in one.reasons)]),
    )


def _ttft_error_ms(turn: TurnRecord, true_ns: int) -> float | None:
    if turn.first_token_ns is None or turn.sent_ns is None:
        return None
    return abs(turn.first_token_ns - turn.sent_ns - true_ns) / 1e6


def judge(name: str, found: Figures) -> list[tuple[str, str, str, bool]]:
    """(target, limit, measured, met) of one case."""
    if name == "short":
        rows = [("short answers, not streamed", "≥ 2,000/s", f"{found.turns_per_s:,.0f}/s", found.turns_per_s >= 2000)]
    elif name == "memory":
        rows = [("memory of 2,000 streams", "< 400 MB", f"{found.peak_mb:,.0f} MB", found.peak_mb < 400)]
    else:
        rate, error = found.events_per_s, found.ttft_error_p99_ms
        seen = f"{error:.3f} ms (p50 {found.ttft_error_p50_ms:.3f}; 1st token late p99 {found.late_p99_ms:.3f})"
        rows = [
            ("streamed events, one per write", "≥ 50,000/s", f"{rate:,.0f}/s", rate >= 50_000),
            ("coalesced chunks of these", "≤ 2 %", f"{found.coalesced:.2%}", found.coalesced <= 0.02),
            ("TTFT error p99 meanwhile", "≤ 1 ms", seen, error <= 1.0),
        ]
    lost = found.failed + found.unread
    return [*rows, (f"`{name}`: failed turns, unread events", "0", f"{found.failed}, {found.unread}", lost == 0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", choices=[[], *CASES], help="only these")
    parser.add_argument("--users", type=int, help="instead of the case's own number")
    parser.add_argument("--profile", type=Path, help="py-spy's record of the worker (.svg, or .txt for folded stacks)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    lines = ["| target | limit | measured | worker's CPU | worker's memory | client |", "|---|---|---|---|---|---|"]
    missed = 0
    for name in options.case or CASES:
        case = CASES[name]
        if options.users:
            case = Case(options.users, case.seconds, case.stream, case.tokens, case.server)
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            build(folder)
            with Rig(folder, core=max(os.sched_getaffinity(0)), maxtok=1 << 24, maxrec=1 << 18, **case.server) as rig:
                rundir, seen = run(case, folder, rig, options.profile)
                found = figures(case, rundir, seen, rig)
        print(f"{name}: {found}", file=sys.stderr)
        for target, limit, measured, met in judge(name, found):
            missed += not met
            lines.append(
                f"| {target} | {limit} | {measured}{'' if met else ' **missed**'} | {found.cpu_share:.0%} "
                f"| {found.peak_mb:,.0f} MB | {found.client.partition(';')[0]} |"
            )
    table = f"{where_and_when()}, one run each.\n\n" + "\n".join(lines)
    print(table)
    if options.write:
        write_block("bench-ceiling", table)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
