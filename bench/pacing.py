"""Whether arrivals go out when the schedule says: drift over a whole run, and lateness.

    python bench/pacing.py                      # constant 200/s for 60 s, against the emulator
    python bench/pacing.py --rate 50 --seconds 10

The drift is the difference between the median lateness of the last and the first tenth of the arrivals: where sleeps
are added up it grows with the length of the run. Exit code 1 when it is 20 ms or more, or an arrival is missing.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from infersiege.emulator.process import EmulatorProcess
from infersiege.rundir import RunDirectory

LARGEST_DRIFT_MS = 20.0
PLAN = """
[run]
name = "pacing"
duration = "{seconds}s"
[channel.target]
engine = "vllm"
base_url = "{url}"
model = "emulated-model"
[[workload]]
scenario = "short-qa"
trace = "builtin:short-qa"
max_tokens = 4
[load]
mode = "open"
rate = {rate}
arrivals = "constant"
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=200.0, help="sessions per second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        plan, out = Path(folder) / "plan.toml", Path(folder) / "run"
        quick = ("--output-tokens", "4", "--step-base-ms", "1", "--step-per-sequence-ms", "0")
        with EmulatorProcess(*quick, "--prefill-rate", "1000000", "--max-num-seqs", "1024") as emulator:
            text = PLAN.format(url=emulator.base_url, rate=options.rate, seconds=options.seconds)
            plan.write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "infersiege", "run", str(plan), "--out", str(out)]
            command += ["--workers", str(options.workers)]
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        turns = sorted(RunDirectory.open(out).read_turns(), key=lambda turn: turn.due_ns)
    late_ms = [(turn.attempt_ns - turn.due_ns) / 1e6 for turn in turns if turn.attempt_ns is not None]
    asked = round(options.rate * options.seconds)
    if len(late_ms) < 20:
        print(f"{len(late_ms)} of {asked} arrivals were begun: nothing to measure")
        return 1
    tenth = len(late_ms) // 10
    drift_ms = statistics.median(late_ms[-tenth:]) - statistics.median(late_ms[:tenth])
    ordered = sorted(late_ms)
    print(f"{options.rate:g}/s for {options.seconds} s on {options.workers} worker(s): {len(late_ms)} of {asked} begun")
    print(
        f"drift {drift_ms:+.2f} ms; lateness p50 {statistics.median(late_ms):.2f} ms, "
        f"p99 {ordered[int(len(ordered) * 0.99)]:.2f} ms, max {ordered[-1]:.2f} ms"
    )
    return int(abs(drift_ms) >= LARGEST_DRIFT_MS or len(late_ms) < asked)


if __name__ == "__main__":
    sys.exit(main())
