"""Turns that look like a real run's, made from a seed: for golden files, report tests and docs/report.png.

No clock and no global random state: the same arguments give the same records, to the letter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from infersiege.metrics.histogram import bucket_of
from infersiege.plan.schema import Channel, Load, Plan, Run, Slo, Workload
from infersiege.records import (
    ErrorClass,
    Outcome,
    Phase,
    Reason,
    StampSource,
    TokensFrom,
    TraceAccount,
    TurnRecord,
    WorkerSummary,
)
from infersiege.rundir import ChannelFacts, PlanFile, RunDirectory, StageFacts

MS = 1_000_000
SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND
RUN_ID = "3f9c2a7be1d04c55"
STAGE = "24 users"
PLAN_TEXT_SECRET = "the quick brown prompt"
"""In no record and in no report: reports never hold prompt text."""


def plan(name: str = "qwen3-8b on vllm", *, slos: tuple[Slo, ...] | None = None, steady_s: int = 240) -> Plan:
    return Plan(
        run=Run(name=name, duration_ns=(30 + steady_s) * SECOND, seed=7, nonce="b7c1", workers=2),
        channels={"local": Channel(engine="vllm", base_url="http://127.0.0.1:8000/v1", model="qwen3-8b")},
        workloads=(
            Workload(scenario="agent", trace="builtin:agent", channel="local"),
            Workload(scenario="short-qa", trace="builtin:short-qa", channel="local", weight=3.0),
        ),
        load=Load(mode="closed", users=24, warmup_ns=30 * SECOND, drain_ns=30 * SECOND),
        slos=(
            (
                Slo(metric="ttft", stat="p99", at_most=800.0, scenario="agent"),
                Slo(metric="tpot", stat="p95", at_most=30.0),
                Slo(metric="error_share", at_most=0.05),
            )
            if slos is None
            else slos
        ),
        labels={"gpu": "RTX 4090", "quantization": "awq"},
    )


def plan_file(
    plan: Plan, *, turns: int, steady_s: int = 240, emulated: bool = True, sessions: dict[str, int] | None = None
) -> PlanFile:
    """plan.json of a run that ended well."""
    started = {"agent": 0, "short-qa": 0} if sessions is None else sessions
    worker = WorkerSummary(
        worker="w1",
        host="bench-1",
        pid=4001,
        turns=turns,
        lost=False,
        lost_at_ns=None,
        records_promised=turns,
        records_received=turns,
        hub_lag_p99_ns=310_000,
        cpu_share_max=0.41,
        clock_offset_ns=0,
        clock_uncertainty_ns=21_000,
    )
    return PlanFile(
        run_id=RUN_ID,
        name=plan.run.name or "",
        created_ns=START_NS - 5 * SECOND,
        started_ns=START_NS,
        ended_ns=START_NS + (steady_s + 45) * SECOND,
        nonce="b7c1",
        plan_hash="9d2f6c01aa3e",
        plan=msgspec.to_builtins(plan),
        versions={"infersiege": "0.1.0", "python": "3.12.4", "locust": "2.47.1", "gevent": "25.9.1"},
        host={"cpus": "16", "memory_bytes": "67430000000", "kernel": "6.8.0"},
        channels={
            "local": ChannelFacts(
                url="http://127.0.0.1:8000/v1/chat/completions",
                engine="vllm",
                dialect="openai-chat",
                model="qwen3-8b",
                emulated=emulated,
                version="0.11.0",
            )
        },
        trace_hashes={"agent": "5f" * 32, "short-qa": "a1" * 32},
        stages=(
            StageFacts(
                name=STAGE,
                started_ns=START_NS,
                steady_started_ns=START_NS + 30 * SECOND,
                steady_ended_ns=START_NS + (30 + steady_s) * SECOND,
                users=24,
            ),
        ),
        traces=tuple(
            TraceAccount(
                scenario=scenario,
                trace=f"builtin:{scenario}",
                format="builtin",
                sha256=None,
                rows=None,
                sessions=None,
                sessions_started=count,
                not_started=None,
                skipped={},
                repeat_factor=None,
            )
            for scenario, count in started.items()
        ),
        workers=(worker,),
        workers_asked=1,
    )


def _phase(due_ns: int, steady_s: int) -> Phase:
    at = due_ns - START_NS
    if at < 30 * SECOND:
        return Phase.WARMUP
    return Phase.STEADY if at < (30 + steady_s) * SECOND else Phase.DRAIN


def _base(random_: random.Random, session: int, turn: int, scenario: str, due_ns: int, steady_s: int) -> TurnRecord:
    return TurnRecord(
        run_id=RUN_ID,
        worker="w1",
        epoch=1,
        session_id=f"{scenario}-{session}",
        turn=turn,
        parent_turn=turn - 1 if turn else None,
        scenario=scenario,
        stage=STAGE,
        phase=_phase(due_ns, steady_s),
        channel="local",
        replica="127.0.0.1:8000",
        engine="vllm",
        dialect="openai-chat",
        model_asked="qwen3-8b",
        request_id=f"{random_.getrandbits(64):016x}",
        due_ns=due_ns,
        outcome=Outcome.SKIPPED,
        reason=Reason.RUN_END,
    )


def _answered(
    random_: random.Random, base: TurnRecord, prompt: int, cached: int, output: int, load: float
) -> TurnRecord:
    """An ok turn: prefill grows with uncached tokens, decode with the load."""
    lateness = int(random_.expovariate(1 / 250_000)) + 40_000
    attempt = base.due_ns + lateness
    sent = attempt + random_.randrange(60_000, 400_000)
    ttft = int((45 + 0.052 * (prompt - cached)) * load * random_.lognormvariate(0, 0.22) * MS)
    first = sent + ttft
    tpot_ns = max(4 * MS, int(11.5 * MS * load * random_.lognormvariate(0, 0.10)))
    gaps: dict[int, int] = {}
    by_second: dict[int, int] = {first // SECOND: 1}
    at = first
    for _ in range(output - 1):
        gap = int(tpot_ns * random_.lognormvariate(0, 0.25))
        at += gap
        bucket = bucket_of(gap)
        gaps[bucket] = gaps.get(bucket, 0) + 1
        by_second[at // SECOND] = by_second.get(at // SECOND, 0) + 1
    return msgspec.structs.replace(
        base,
        model_answered="qwen3-8b",
        attempt_ns=attempt,
        sent_ns=sent,
        sent_end_ns=sent + 30_000 + prompt * 8,
        first_byte_ns=first - 90_000,
        first_token_ns=first,
        first_token_slack_ns=random_.randrange(20_000, 300_000),
        first_answer_ns=first,
        last_token_ns=at,
        closed_ns=at + 300_000,
        connect_duration_ns=None if base.turn else 210_000,
        reused_connection=base.turn > 0,
        attempts=1,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        tokens_from=TokensFrom.USAGE,
        asked_prompt_tokens=prompt,
        asked_output_tokens=output,
        chunks=output,
        chunks_by_second=by_second,
        gaps=gaps,
        finish_reason="stop",
        outcome=Outcome.OK,
        reason=None,
        http_status=200,
        bytes_in=output * 240,
        bytes_out=prompt * 5,
        stamp_source=StampSource.KERNEL,
    )


def _failed(random_: random.Random, base: TurnRecord, prompt: int, overloaded: bool) -> TurnRecord:
    attempt = base.due_ns + 90_000
    if overloaded:
        what, status, detail, ms = ErrorClass.OVERLOAD, 503, "503: no free slot, queue is full", random_.uniform(1, 6)
    else:
        what, status, detail, ms = ErrorClass.TRUNCATED, 200, "stream ended after 12 chunks", random_.uniform(90, 900)
    return msgspec.structs.replace(
        base,
        attempt_ns=attempt,
        sent_ns=attempt + 100_000,
        sent_end_ns=attempt + 180_000,
        closed_ns=attempt + int(ms * MS),
        reused_connection=False,
        attempts=1,
        asked_prompt_tokens=prompt,
        outcome=Outcome.FAILED,
        reason=None,
        error_class=what,
        error_detail=detail,
        http_status=status,
        stamp_source=StampSource.KERNEL,
    )


def records(users: int = 24, *, seed: int = 7, steady_s: int = 240, fail_share: float = 0.012) -> list[TurnRecord]:
    """Every turn of a closed loop of `users`, in the order in which they ended; about 20 turns per user and minute.

    A slow-down in the second half with a burst of overload errors at its top, and what a run's end cuts.
    """
    random_ = random.Random(seed)
    made: list[TurnRecord] = []
    end_ns = START_NS + (30 + steady_s) * SECOND
    session = 0
    for user in range(users):
        free_ns = START_NS + user * SECOND // users
        while free_ns < end_ns:
            agent = random_.random() < 0.25
            played = list(_session(random_, session, agent, free_ns, steady_s, fail_share))
            made.extend(played)
            ended = [turn.closed_ns for turn in played if turn.closed_ns is not None]
            free_ns = max(ended) + random_.randrange(1, 5) * MS
            session += 1
    return sorted(made, key=lambda turn: (turn.closed_ns or turn.due_ns, turn.session_id, turn.turn))


def _session(
    random_: random.Random, session: int, agent: bool, due: int, steady_s: int, fail_share: float
) -> Iterator[TurnRecord]:
    end_ns = START_NS + (30 + steady_s) * SECOND
    prompt = random_.randint(900, 2400) if agent else int(random_.lognormvariate(4.6, 0.5))
    cached, alive, reason = 0, True, Reason.RUN_END
    for turn in range(random_.randint(3, 9) if agent else 1):
        base = _base(random_, session, turn, "agent" if agent else "short-qa", due, steady_s)
        share = (due - START_NS) / (end_ns - START_NS)
        load = 1.0 + 0.75 * math.exp(-(((share - 0.62) / 0.1) ** 2))
        output = max(2, int(random_.lognormvariate(3.6 if agent else 4.0, 0.45)))
        if not alive or due >= end_ns:
            alive = False
            yield msgspec.structs.replace(base, reason=reason)
        elif random_.random() < fail_share * (6 if load > 1.6 else 1):
            yield _failed(random_, base, prompt, overloaded=load > 1.6)
            alive, reason = False, Reason.AFTER_FAILURE
        else:
            record = _answered(random_, base, prompt, cached, output, load)
            yield record
            due = (record.closed_ns or due) + random_.randrange(200, 1800) * MS
            cached, prompt = prompt // 16 * 16, prompt + output + random_.randint(40, 600)


def write_run(
    path: Path, rows: list[TurnRecord], plan_: Plan | None = None, *, emulated: bool = True, steady_s: int = 240
) -> RunDirectory:
    """A finished run directory of these turns, its files closed."""
    plan_ = plan() if plan_ is None else plan_
    run = RunDirectory.create(path, name=plan_.run.name or "", now_ns=START_NS)
    sessions: dict[str, int] = {"agent": 0, "short-qa": 0}
    for row in rows:
        sessions[row.scenario] = sessions.get(row.scenario, 0) + (row.turn == 0)
    run.write_plan(plan_file(plan_, turns=len(rows), emulated=emulated, sessions=sessions, steady_s=steady_s))
    run.append_turn_lines(msgspec.json.Encoder().encode_lines(rows))
    run.close()
    return run
