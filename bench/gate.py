"""How often does the gate cry wolf, and how often does it miss? A simulation of runs that differ among themselves.

    python bench/gate.py                 # 2,000 comparisons of each kind, about two minutes
    python bench/gate.py --comparisons 500 --runs 5

A run has 1,000 turns. Its TTFT and TPOT have an effect of the run on them (3 % from run to run, half of it shared by
both), and turns scatter around that. Six metrics are judged together, as a gate does. Runs of the same thing must be
called worse in at most 2 of 100 comparisons; a TTFT or a TPOT that is a tenth slower must be found in 95. Exit code 1
when one is missed.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np

from infersiege.gate.change import Sample, judge_changes
from infersiege.records import Verdict

METRICS = ("ttft p50", "ttft p95", "tpot p50", "tpot p95", "e2e p50", "throughput")
TURNS = 1_000
SCATTER = {"ttft": 0.3, "tpot": 0.15}
"""Of turns within a run, of the logarithm."""
MOST_FALSE, LEAST_FOUND = 0.02, 0.95


def run_of(draw: np.random.Generator, between: float, slower: dict[str, float]) -> tuple[float, ...]:
    """The values of METRICS of one run."""
    shared, own = draw.normal(0, between / math.sqrt(2)), draw.normal(0, between / math.sqrt(2), 2)
    level = {"ttft": 200 * math.exp(shared + own[0]), "tpot": 20 * math.exp(shared + own[1])}
    turns = {name: level[name] * slower.get(name, 1.0) * np.exp(draw.normal(0, SCATTER[name], TURNS)) for name in level}
    e2e = turns["ttft"] + 100 * turns["tpot"]
    percentiles = [float(np.percentile(turns[name], q)) for name in ("ttft", "tpot") for q in (50, 95)]
    return (*percentiles, float(np.median(e2e)), 32 * 100_000 / float(e2e.mean()))


def called_worse(draw: np.random.Generator, runs: int, between: float, slower: dict[str, float]) -> set[str]:
    """The metrics that the gate fails, of one comparison."""
    before = [run_of(draw, between, {}) for _ in range(runs)]
    after = [run_of(draw, between, slower) for _ in range(runs)]
    samples = [
        Sample(
            name=name,
            baseline=tuple(run[place] for run in before),
            candidate=tuple(run[place] for run in after),
            better="higher" if name == "throughput" else "lower",
        )
        for place, name in enumerate(METRICS)
    ]
    return {change.name for change in judge_changes(samples) if change.verdict is Verdict.FAIL}


def main() -> None:
    parser = argparse.ArgumentParser(description="False alarms and misses of the gate against a baseline.")
    parser.add_argument("--comparisons", type=int, default=2_000)
    parser.add_argument("--runs", type=int, default=5, help="of each side")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = np.random.Generator(np.random.PCG64(options.seed))
    kinds: list[tuple[str, float, dict[str, float]]] = [
        (f"the same, {between:.0%} from run to run", between, {}) for between in (0.01, 0.03, 0.06, 0.12)
    ]
    kinds += [
        ("TTFT 10 % slower, 3 %", 0.03, {"ttft": 1.1}),
        ("TPOT 10 % slower, 3 %", 0.03, {"tpot": 1.1}),
        ("both 10 % slower, 3 %", 0.03, {"ttft": 1.1, "tpot": 1.1}),
        ("TTFT 20 % slower, 6 %", 0.06, {"ttft": 1.2}),
    ]
    missed = False
    print(f"{options.runs} runs a side, {TURNS:,} turns a run, {len(METRICS)} metrics judged together")
    print("\n| runs | called worse | TTFT p50 | TPOT p50 |\n|---|---|---|---|")
    for name, between, slower in kinds:
        found = [called_worse(draw, options.runs, between, slower) for _ in range(options.comparisons)]
        whole = sum(map(bool, found)) / len(found)
        parts = " | ".join(f"{sum(metric in one for one in found) / len(found):.1%}" for metric in METRICS[:3:2])
        print(f"| {name} | {whole:.1%} | {parts} |", flush=True)
        if between == 0.03:
            missed |= whole < LEAST_FOUND if slower else whole > MOST_FALSE
    sys.exit(missed)


if __name__ == "__main__":
    main()
