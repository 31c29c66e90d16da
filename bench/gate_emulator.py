"""The gate against a baseline for once in whole: real runs on two emulators with noise, in turn.

    python bench/gate_emulator.py                  # about six minutes; a quiet machine
    python bench/gate_emulator.py --runs 5 --seconds 5

Both emulators are the same at first: the gate must find nothing. Then the steps of one are a tenth longer, twice: the
gate must find that, by TTFT, TPOT or E2E, both times. Exit code 1 when it does not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import ExitCode
from infersiege.records import RuleResult, Verdict
from infersiege.rundir import RunDirectory

STEP_MS, SLOWER = 20.0, 1.1
PLAN = """
[run]
name = "{name}"
duration = "{seconds}s"
[channel.target]
engine = "vllm"
base_url = "{base_url}"
model = "emulated-model"
[[workload]]
scenario = "short-qa"
trace = "builtin:short-qa"
[load]
users = 6
ramp = "300ms"
warmup = "500ms"
drain = "5s"
[[slo]]
metric = "ttft"
stat = "p50"
relative_max = "5.5%"
[[slo]]
metric = "tpot"
stat = "p50"
relative_max = "5.5%"
[[slo]]
metric = "e2e"
stat = "p50"
relative_max = "5.5%"
"""


def emulator(step_ms: float) -> EmulatorProcess:
    """With noise of 5 % from step to step, and answers of 16 tokens."""
    options = {"step-base-ms": step_ms, "step-per-sequence-ms": 0, "prefill-rate": 100_000, "output-tokens": 16}
    return EmulatorProcess(
        "--noise", "0.05", *(word for name, to in options.items() for word in (f"--{name}", str(to)))
    )


def compared(folder: Path, slower: float, runs: int, seconds: float) -> tuple[int, tuple[RuleResult, ...]]:
    """Exit code of the gate, and its rules against the baseline; the plan is the one on the slower engine."""
    with emulator(STEP_MS * slower) as new, emulator(STEP_MS) as old:
        plans = []
        for name, process in (("new", new), ("old", old)):
            plans.append(folder / f"{name}.toml")
            plans[-1].write_text(PLAN.format(name=name, base_url=process.base_url, seconds=f"{seconds:g}"), "utf-8")
        out = folder / "runs"
        command = [sys.executable, "-m", "infersiege", "run", str(plans[0]), "--against", str(plans[1])]
        command += ["--repeats", str(runs), "--out", str(out), "--gate"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode not in (ExitCode.PASS, ExitCode.RULE_FAILED, ExitCode.NO_DATA, ExitCode.INVALID_RUN):
        sys.exit(f"the series ended with {done.returncode}:\n{done.stdout.decode(errors='replace')}")
    rules = RunDirectory.open(out / "run-1").read_summary().rules
    return done.returncode, tuple(
        rule for rule in rules if rule.relative_max is not None or rule.metric == "comparable"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The gate on real runs: the same engine, and a slower one.")
    parser.add_argument("--runs", type=int, default=5, help="of each side")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    options = parser.parse_args()
    missed = False
    print("| runs | rule | baseline | value | change (95 %) | p | verdict |\n|---|---|---|---|---|---|---|")
    for name, slower in (("the same", 1.0), ("10 % slower", SLOWER), ("10 % slower, again", SLOWER)):
        with tempfile.TemporaryDirectory(prefix="infersiege-gate-") as folder:
            code, rules = compared(Path(folder), slower, options.runs, options.seconds)
        for rule in rules:
            if rule.metric == "comparable":
                if rule.verdict is not Verdict.PASS:
                    print(f"| {name} | {rule.name}: {rule.detail} | | | | | {rule.verdict.value} |")
                continue
            print(f"| {name} | {_row(rule)} |", flush=True)
        missed |= code != (ExitCode.PASS if slower == 1.0 else ExitCode.RULE_FAILED)
    sys.exit(missed)


def _row(rule: RuleResult) -> str:
    values = " | ".join("–" if value is None else f"{value:.1f} {rule.unit}" for value in (rule.baseline, rule.value))
    if rule.change is None or rule.change_low is None or rule.change_high is None or rule.p is None:
        return f"{rule.metric} {rule.stat} | {values} | – | – | {rule.verdict.value}"
    change = f"{rule.change:+.1%} ({rule.change_low:+.1%} to {rule.change_high:+.1%})"
    return f"{rule.metric} {rule.stat} | {values} | {change} | {rule.p:.3f} | {rule.verdict.value}"


if __name__ == "__main__":
    main()
