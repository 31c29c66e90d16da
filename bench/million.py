"""Are a million turns reported, judged and compared within 30 s and 1.5 GB? Makes such a run and measures the commands.

python bench/million.py                      # makes a run of a million turns in a temporary directory, measures
python bench/million.py --turns 50000 --keep runs/fifty-thousand
python bench/million.py --run runs/fifty-thousand
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import msgspec
import numpy as np
from generated import where_and_when, write_block

from infersiege.metrics.histogram import bucket_of
from infersiege.plan.load_schema import Load, Stage
from infersiege.plan.schema import Channel, Plan, Run, Slo, Workload
from infersiege.records import (
    ClientHealth,
    ErrorClass,
    Outcome,
    Phase,
    Reason,
    StampSource,
    TokensFrom,
    TurnRecord,
    WorkerSummary,
)
from infersiege.rundir import ChannelFacts, PlanFile, RunDirectory, StageFacts

COMMANDS = (("report",), ("gate",), ("compare", "--by", "channel"))
LONGEST_S = 30.0
"""Targets for a million turns, of wall-clock time on two free cores and of memory of all processes together."""
MOST_BYTES = 1.5e9

MS = 1_000_000
SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND
STAGES = 4
WARMUP_S = 30
SCENARIOS = ("agent", "chat", "rag")
CHANNELS = {"vllm": ("10.0.0.1:8000", "10.0.0.2:8000"), "sglang": ("10.0.0.3:30000",)}
WORKERS = 8
RATE = 400
"""Turns per second: a million take 42 minutes."""
FAILED = 0.03
BATCH = 10_000


def plan_of(stage_s: int) -> Plan:
    users = [200, 400, 600, 800]
    return Plan(
        run=Run(name="million", duration_ns=STAGES * stage_s * SECOND, seed=7, nonce="b7c1", workers=WORKERS),
        channels={
            name: Channel(engine=name, base_url=f"http://{replicas[0]}/v1", model="qwen3-8b")
            for name, replicas in CHANNELS.items()
        },
        workloads=tuple(
            Workload(scenario=name, trace=f"builtin:{trace}", channel=channel)
            for (name, trace), channel in zip(
                (("agent", "agent"), ("chat", "short-qa"), ("rag", "long-document")),
                ("vllm", "sglang", "vllm"),
                strict=True,
            )
        ),
        load=Load(
            mode="closed",
            warmup_ns=WARMUP_S * SECOND,
            stages=tuple(Stage(duration_ns=stage_s * SECOND, users=count) for count in users),
        ),
        slos=(
            Slo(metric="ttft", stat="p99", at_most=900.0),
            Slo(metric="tpot", stat="p95", at_most=40.0, scenario="agent"),
            Slo(metric="goodput_share", at_least=0.5),
            Slo(metric="error_share", at_most=0.05),
        ),
    )


def plan_file(turns: int, stage_s: int) -> PlanFile:
    """plan.json of a run that ended well."""
    ends = [START_NS + (stage + 1) * stage_s * SECOND for stage in range(STAGES)]
    share = turns // WORKERS
    return PlanFile(
        run_id="3f9c2a7be1d04c55",
        name="million",
        created_ns=START_NS - 5 * SECOND,
        started_ns=START_NS,
        ended_ns=ends[-1] + 60 * SECOND,
        nonce="b7c1",
        plan=msgspec.to_builtins(plan_of(stage_s)),
        versions={"infersiege": "0.1.0"},
        channels={
            name: ChannelFacts(
                url=f"http://{replicas[0]}/v1/chat/completions", engine=name, dialect="openai-chat", model="qwen3-8b"
            )
            for name, replicas in CHANNELS.items()
        },
        stages=tuple(
            StageFacts(
                name=f"s{stage}",
                started_ns=end - stage_s * SECOND,
                steady_started_ns=end - (stage_s - WARMUP_S) * SECOND,
                steady_ended_ns=end,
            )
            for stage, end in enumerate(ends)
        ),
        workers=tuple(
            WorkerSummary(
                worker=f"w{index}",
                host="bench-1",
                pid=4001 + index,
                turns=share,
                lost=False,
                lost_at_ns=None,
                records_promised=None,
                records_received=share,
                hub_lag_p99_ns=310_000,
                cpu_share_max=0.41,
                clock_offset_ns=0,
                clock_uncertainty_ns=21_000,
            )
            for index in range(WORKERS)
        ),
        workers_asked=WORKERS,
        planned_turns=turns,
    )


def turns_of(count: int, stage_s: int, seed: int = 7) -> Iterator[list[TurnRecord]]:
    """Batches of turns in the order in which they ended, roughly. The same arguments give the same turns."""
    random = np.random.default_rng(seed)
    for first in range(0, count, BATCH):
        yield _batch(random, first, min(BATCH, count - first), stage_s, count)


def _batch(random: np.random.Generator, first: int, size: int, stage_s: int, count: int) -> list[TurnRecord]:
    span_ns = STAGES * stage_s * SECOND
    due = START_NS + (np.arange(first, first + size) * span_ns // count)
    columns = {
        "late": random.exponential(0.3 * MS, size),
        "ttft": random.lognormal(5.0, 0.5, size) * MS,
        "tpot": random.lognormal(3.0, 0.25, size) * MS,
        "tokens": random.lognormal(5.0, 0.6, size) + 8,
        "prompt": random.lognormal(7.5, 0.7, size) + 16,
        "cached": random.random(size),
        "slack": random.exponential(40_000, size),
        "fate": random.random(size),
    }
    rows = {
        name: column.astype(np.int64).tolist() for name, column in columns.items() if name not in ("cached", "fate")
    }
    spread = random.lognormal(0.0, 0.3, (size, 24))
    made = []
    for place, due_ns in enumerate(due.tolist()):
        one = {name: values[place] for name, values in rows.items()}
        gaps = [int(one["tpot"] * factor) for factor in spread[place].tolist()]
        fate = float(columns["fate"][place])
        made.append(_turn(first + place, due_ns, one, gaps, fate, float(columns["cached"][place]), stage_s))
    return made


def _turn(
    number: int, due_ns: int, one: dict[str, int], gaps: list[int], fate: float, cached: float, stage_s: int
) -> TurnRecord:
    always = _always(number, due_ns, stage_s)
    if fate > 0.99:
        return TurnRecord(**always, outcome=Outcome.SKIPPED, reason=Reason.AFTER_FAILURE)
    sent_ns = due_ns + one["late"] + 60_000
    always |= {
        "attempt_ns": due_ns + one["late"],
        "sent_ns": sent_ns,
        "sent_end_ns": sent_ns + 30_000,
        "reused_connection": always["turn"] > 0,
        "connect_duration_ns": None if always["turn"] else 210_000,
        "attempts": 1,
        "stamp_source": StampSource.KERNEL,
        "bytes_out": one["prompt"] * 5,
        "asked_prompt_tokens": one["prompt"],
        "asked_output_tokens": one["tokens"],
    }
    first_ns = sent_ns + one["ttft"]
    if fate < FAILED:
        return TurnRecord(
            **always,
            closed_ns=first_ns,
            first_byte_ns=first_ns,
            outcome=Outcome.FAILED,
            error_class=(ErrorClass.SERVER, ErrorClass.RATE_LIMIT, ErrorClass.OVERLOAD)[number % 3],
            error_detail="HTTP 503: no capacity",
            http_status=503,
        )
    cached_tokens = int(one["prompt"] * cached) if always["turn"] else 0
    return TurnRecord(
        **always,
        **_answer(first_ns, one, gaps),
        cached_tokens=cached_tokens,
        finish_reason="stop" if number % 7 else "length",
        outcome=Outcome.OK,
    )


def _always(number: int, due_ns: int, stage_s: int) -> dict[str, Any]:
    """What every turn has; five make a session."""
    session, turn = number // 5, number % 5
    scenario = SCENARIOS[session % len(SCENARIOS)]
    channel = "sglang" if scenario == "chat" else "vllm"
    stage = min((due_ns - START_NS) // (stage_s * SECOND), STAGES - 1)
    into_ns = due_ns - START_NS - stage * stage_s * SECOND
    return {
        "run_id": "3f9c2a7be1d04c55",
        "worker": f"w{session % WORKERS}",
        "epoch": 1,
        "session_id": f"{scenario}-{session}",
        "turn": turn,
        "parent_turn": turn - 1 if turn else None,
        "scenario": scenario,
        "stage": f"s{stage}",
        "phase": Phase.WARMUP if into_ns < WARMUP_S * SECOND else Phase.STEADY,
        "channel": channel,
        "replica": CHANNELS[channel][session % len(CHANNELS[channel])],
        "engine": channel,
        "dialect": "openai-chat",
        "model_asked": "qwen3-8b",
        "request_id": f"3f9c2a7b-{number:012d}",
        "due_ns": due_ns,
    }


def _answer(first_ns: int, one: dict[str, int], gaps: list[int]) -> dict[str, Any]:
    tokens = one["tokens"]
    last_ns = first_ns + tokens * one["tpot"]
    histogram: dict[int, int] = {}
    each, rest = divmod(max(tokens - 2, 0), len(gaps))
    for place, gap in enumerate(gaps):
        bucket, counted = bucket_of(gap), each + (place < rest)
        if counted:
            histogram[bucket] = histogram.get(bucket, 0) + counted
    return {
        "model_answered": "qwen3-8b",
        "first_byte_ns": first_ns - 20_000,
        "first_token_ns": first_ns,
        "first_token_slack_ns": one["slack"],
        "first_answer_ns": first_ns,
        "last_token_ns": last_ns,
        "closed_ns": last_ns + 400_000,
        "prompt_tokens": one["prompt"],
        "output_tokens": tokens,
        "tokens_from": TokensFrom.USAGE,
        "chunks": tokens,
        "chunks_by_second": _by_second(first_ns, last_ns, tokens),
        "gaps": histogram,
        "http_status": 200,
        "bytes_in": tokens * 210,
    }


def _by_second(first_ns: int, last_ns: int, chunks: int) -> dict[int, int]:
    seconds = range(first_ns // SECOND, last_ns // SECOND + 1)
    each, rest = divmod(chunks, len(seconds))
    return {second: each + (place < rest) for place, second in enumerate(seconds) if each + (place < rest)}


def make(path: Path, count: int) -> RunDirectory:
    """A run directory of so many turns. Raises RunDirectoryError when there is something already."""
    stage_s = max(60, count // (STAGES * RATE))
    run = RunDirectory.create(path, name="million", now_ns=START_NS)
    encoder = msgspec.json.Encoder()
    for batch in turns_of(count, stage_s):
        run.append_turn_lines(encoder.encode_lines(batch))
    for second in range(STAGES * stage_s):
        for worker in range(WORKERS):
            run.append_health(_health(START_NS // SECOND + second, worker))
    run.write_plan(plan_file(count, stage_s))
    run.close()
    return run


def _health(second: int, worker: int) -> ClientHealth:
    return ClientHealth(
        second=second,
        worker=f"w{worker}",
        cpu_share=0.2 + 0.02 * (second % 5),
        hub_lag_max_ns=2 * MS,
        gc_pause_max_ns=MS,
        rss_bytes=90_000_000,
        open_files=120,
        begun_ns=(second - 1) * SECOND,
        ended_ns=second * SECOND,
        hub_lag={0: 96, 1: 3, 2: 1},
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """One command: wall-clock and CPU seconds, and the most memory that it held at a time (all of its processes)."""

    command: str
    code: int
    wall_s: float
    cpu_s: float
    peak_bytes: int


def measure(command: Sequence[str], run: Path) -> Measured:
    """Run `infersiege COMMAND RUN` in a session of its own, inside the run directory: there its files go."""
    run = run.resolve()
    began = perf_counter()
    child = os.fork()
    if not child:
        os.setsid()
        os.chdir(run)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.execv(sys.executable, [sys.executable, "-m", "infersiege", *command, str(run)])
    peak = 0
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        peak = max(peak, _memory_of_session(child))
        sleep(0.05)
    wall_s = perf_counter() - began
    return Measured(" ".join(command), os.waitstatus_to_exitcode(status), wall_s, usage.ru_utime + usage.ru_stime, peak)


def _memory_of_session(session: int) -> int:
    """Proportional set size of all processes of a session: shared pages count once."""
    total = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) != session:
                continue
            rollup = (process / "smaps_rollup").read_text()
        except (OSError, ValueError, IndexError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def show(found: list[Measured], turns: int, size: int) -> str:
    """A Markdown table with where and when it was measured."""
    rows = [
        f"| `infersiege {one.command}` | {one.wall_s:.1f} | {one.cpu_s:.1f} | {one.peak_bytes / 1e9:.2f} |"
        for one in found
    ]
    head = ["| command | wall s | CPU s | memory GB |", "|---|---:|---:|---:|"]
    return "\n".join([*head, *rows, "", f"{turns:,} turns, {size / 1e9:.2f} GB of turns.jsonl; {where_and_when()}."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1_000_000, help="how many to make")
    parser.add_argument("--keep", type=Path, help="make the run here and leave it")
    parser.add_argument("--run", type=Path, help="measure this run instead of making one")
    parser.add_argument("--write", action="store_true", help="write the table into docs/performance.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = asked.run or asked.keep or Path(scratch) / "run"
        if asked.run is None:
            make(path, asked.turns)
        found = [measure(command, path) for command in COMMANDS]
        with (path / "turns.jsonl").open("rb") as lines:
            turns = sum(1 for _ in lines)
        size = (path / "turns.jsonl").stat().st_size
    table = show(found, turns, size)
    print(table)
    if asked.write:
        write_block("million", table)
    missed = [one for one in found if one.wall_s > LONGEST_S or one.peak_bytes > MOST_BYTES]
    for one in missed:
        print(f"missed: {one.command} took {one.wall_s:.1f} s and {one.peak_bytes / 1e9:.2f} GB")
    return 1 if missed or any(one.code not in (0, 1) for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
