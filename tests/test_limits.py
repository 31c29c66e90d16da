"""What limited a stage: each rule with a reason, conflicting evidence, missing data, and GP-09."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from records_sample import plan, records, write_run
from series_sample import engine_rows, gpu_rows

from infersiege.records import Outcome, TurnRecord
from infersiege.report import read
from infersiege.resources.gpus import Spread
from infersiege.resources.limit import (
    BANDWIDTH,
    CLIENT,
    COMPUTE,
    KV_CACHE,
    NOT_CLEAR,
    POWER,
    QUEUE,
    QUOTA,
    RULES,
    Evidence,
    amount,
    limit_of,
    percent,
)

WORDS = {"compute", "memory bandwidth", "KV cache", "queue", "power", "client", "quota", "not clear"}


def on(ratio: float) -> Spread:
    """The same on one GPU."""
    return Spread(ratio, ratio, 1)


CALM: dict[str, Any] = {
    "started": 1000, "ended": 1000, "in_flight_mean": 30.0, "kv_use_mean": 0.35, "kv_use_peak": 0.5,
    "running_mean": 24.0, "running_peak": 32.0, "waiting_mean": 0.1, "waiting_peak": 1.0, "preemptions": 0.0,
    "power_capped": on(0.02), "throttled": on(0.0), "dram_active": on(0.35), "tensor_active": on(0.2),
    "sm_active": on(0.6), "utilization": on(1.0),
}  # fmt: skip
"""Everything is measured and nothing is near a limit, though the GPU is "100 % utilised"."""

FULL = {"kv_use_mean": 0.93, "kv_use_peak": 0.99}

ROWS: list[tuple[dict[str, Any], str, str, str]] = [
    ({}, NOT_CLEAR, "more load would show it", "nothing is near"),
    ({"client": "the event loop of w1 was held up by 900 ms (p99)"}, CLIENT, "held up by 900 ms", "our own fault"),
    (
        {"client": "the first token of 40 turns is in doubt", **FULL, "waiting_mean": 30.0},
        CLIENT,
        "also at a limit: KV cache",
        "a client-bound run's server figures are those of a load that nobody asked for",
    ),
    ({"refused": 30}, QUOTA, "30 of 1,000 turns were refused", "3 % refused"),
    ({"refused": 10}, QUOTA, "10 of 1,000", "1 % is the threshold"),
    ({"refused": 9}, NOT_CLEAR, "", "0.9 % refused: a hiccup"),
    ({"refused": 2, "ended": 20, "started": 20}, NOT_CLEAR, "", "two turns prove nothing in a short stage"),
    ({**FULL, "waiting_mean": 12.4, "waiting_peak": 40.0}, KV_CACHE, "12 requests waited", "full, and requests wait"),
    ({**FULL, "preemptions": 45.0}, KV_CACHE, "45 requests were preempted", "full, and requests are thrown out"),
    ({**FULL, "preemptions": 4.0}, NOT_CLEAR, "at its limit for long", "4 of 1,000 thrown out: a moment"),
    ({**FULL}, NOT_CLEAR, "93 % full on average", "full, but nobody waits: it just fits"),
    (
        {"kv_use_mean": 0.4, "kv_use_peak": 0.99, "waiting_mean": 5.0, "waiting_peak": 30.0},
        QUEUE,
        "40 % full on average, 99 % at most",
        "full for a moment, but requests wait all the time",
    ),
    (
        {"kv_use_mean": None, "kv_use_peak": None, "preemptions": 45.0},
        KV_CACHE,
        "not known",
        "only a full cache makes an engine preempt: it need not tell how full",
    ),
    ({"preemptions": 45.0}, NOT_CLEAR, "", "preempted with a half-empty cache: something else did it"),
    ({"waiting_mean": 6.0, "waiting_peak": 20.0}, QUEUE, "while the KV cache was 35 % full", "room, but they wait"),
    ({"waiting_mean": 6.0, "waiting_peak": 9.0}, QUEUE, "32 requests ran at most", "names the running requests"),
    ({"waiting_mean": 0.9, "waiting_peak": 9.0}, NOT_CLEAR, "at its limit for long", "less than one on average"),
    (
        {"waiting_mean": 4.0, "running_mean": 200.0, "waiting_peak": 9.0},
        NOT_CLEAR,
        "",
        "4 beside 200 running: the scheduler's hand-over from step to step",
    ),
    (
        {"waiting_mean": 6.0, "kv_use_mean": None, "kv_use_peak": None},
        QUEUE,
        "or its KV cache",
        "llama.cpp tells no KV use: it can't be told apart, and the sentence says so",
    ),
    ({"power_capped": on(0.6)}, POWER, "power limit for 60 % of the time", "clocks are down"),
    ({"power_capped": on(0.24)}, NOT_CLEAR, "", "below a quarter of the time"),
    ({"throttled": on(0.15)}, POWER, "heat or hardware for 15 %", "slowed all the same, and worth a look"),
    (
        {"power_capped": Spread(0.2, 0.8, 4)},
        POWER,
        "80 % on the busiest of 4 GPUs (mean 20 %)",
        "GP-11: with tensor parallelism the slowest card sets the pace; a mean hides it",
    ),
    ({"dram_active": on(0.8)}, BANDWIDTH, "DRAM bandwidth was in use for 80 %", "decode at a large batch"),
    ({"dram_active": on(0.8), "power_capped": on(0.5)}, POWER, "also at a limit: memory bandwidth", "cap comes first"),
    (
        {"dram_active": on(0.85), "running_mean": 1.0, "in_flight_mean": 1.0},
        NOT_CLEAR,
        "only 1 request at a time",
        "one user reads all weights for each token: more users share that",
    ),
    ({"tensor_active": on(0.6)}, COMPUTE, "tensor cores were busy for 60 %", "prefill"),
    ({"tensor_active": on(0.6), "running_mean": 1.0}, COMPUTE, "60 %", "one long prompt can fill the tensor cores"),
    ({"sm_active": on(0.97)}, COMPUTE, "while DRAM bandwidth was in use for 35 %", "SMs full, memory not"),
    ({"sm_active": on(0.97), "dram_active": None}, NOT_CLEAR, "", "SMs that wait for memory have a warp, too"),
    ({"sm_active": on(0.97), "running_mean": 2.0}, NOT_CLEAR, "", "two users: a kernel spans all SMs anyway"),
    (
        {"dram_active": on(0.8), "running_mean": None, "in_flight_mean": 2.0},
        NOT_CLEAR,
        "",
        "without the engine's figure, the client's turns in flight tell the batch",
    ),
    ({"running_mean": None, "in_flight_mean": None, "dram_active": on(0.8)}, BANDWIDTH, "", "batch not known"),
    (
        {"waiting_mean": 6.0, "tensor_active": on(0.7), "power_capped": on(0.5)},
        QUEUE,
        "also at a limit: power, compute",
        "all evidence is told, the nearest to the user first",
    ),
    ({"started": 0, "ended": 0}, NOT_CLEAR, "No turn was started", "an empty stage"),
    ({"thin": ("engine 127.0.0.1:8000: 45 %",)}, NOT_CLEAR, "(engine 127.0.0.1:8000: 45 %)", "a note on holes"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "limit", "says", "why"), ROWS, ids=[row[3] for row in ROWS])
def test_the_limit_of(change: dict[str, Any], limit: str, says: str, why: str) -> None:
    found, reason = limit_of(Evidence(**{**CALM, **change}))
    assert found == limit, f"{why}: {reason}"
    assert says.lower() in reason.lower(), reason
    assert reason.endswith(".") and "None" not in reason and "nan" not in reason


def test_the_words_are_those_of_the_summary() -> None:
    assert {name for name, _ in RULES} | {NOT_CLEAR} == WORDS
    assert {row[1] for row in ROWS} == WORDS, "each has a row above"


@pytest.mark.parametrize("users", [1.0, 30.0])
def test_gp_09_utilisation_of_100_percent_is_no_saturation(users: float) -> None:
    """NVML alone: however "full" the GPU is, and whatever the load."""
    found, reason = limit_of(
        Evidence(started=500, ended=500, in_flight_mean=users, power_capped=on(0.0), utilization=on(1.0))
    )
    assert found == NOT_CLEAR
    assert "utilisation of 100 % only says that some kernel ran" in reason
    for missing in ("KV-cache use", "waiting requests", "DRAM bandwidth", "tensor cores"):
        assert missing in reason.split("not measured:")[1]


def test_utilisation_never_changes_a_limit() -> None:
    for change, *_ in ROWS:
        seen = {**CALM, **change}
        limits = {limit_of(Evidence(**{**seen, "utilization": each}))[0] for each in (None, on(0.0), on(1.0))}
        assert len(limits) == 1, change


def test_nothing_measured_is_said_as_that() -> None:
    found, reason = limit_of(Evidence(started=10, ended=10))
    assert (found, reason.split(";")[0]) == (NOT_CLEAR, "Nothing was measured that could show a limit")


@pytest.mark.parametrize(
    ("value", "text", "why"),
    [(0.0, "0 %", "none"), (0.004, "<1 %", "not none"), (0.995, ">99 %", "not all"), (1.0, "100 %", "all")],
)
def test_percent(value: float, text: str, why: str) -> None:
    assert percent(value) == text, why


def test_amount() -> None:
    assert [amount(value) for value in (0.0, 0.186, 2.4, 9.96, 1234.5)] == ["0", "0.19", "2.4", "10", "1,234"]


# ----------------------------------------------------------------------------------------------- with a real summary


def loaded(rows: list[TurnRecord], tmp_path: Any) -> tuple[str, str]:
    run = write_run(tmp_path / "run", rows, plan(slos=()), steady_s=60)
    run.write_series("gpu.jsonl", gpu_rows(1, seconds=95))
    run.write_series("engine.jsonl", engine_rows(seconds=95))
    (stage,) = read(run).summary.resources
    return stage.limit, stage.limit_reason


def test_a_client_bound_run_is_named_as_metrics_validity_says_it(tmp_path: Any) -> None:
    """The rule reads the summary's own words: if they change, this fails."""
    rows = [
        msgspec.structs.replace(row, first_token_slack_ns=9_000_000) if row.first_token_slack_ns is not None else row
        for row in records(12, steady_s=60)
    ]
    limit, reason = loaded(rows, tmp_path)
    assert limit == CLIENT and "in doubt by more than" in reason and "add workers" not in reason


def test_a_worker_without_ports_is_the_client(tmp_path: Any) -> None:
    rows = records(12, steady_s=60)
    place = next(i for i, row in enumerate(rows) if row.outcome is Outcome.FAILED)
    rows[place] = msgspec.structs.replace(rows[place], error_class="client_resource")
    limit, reason = loaded(rows, tmp_path)
    assert limit == CLIENT and "for want of ports, files or memory" in reason


def test_refused_turns_of_a_run_are_a_quota(tmp_path: Any) -> None:
    rows = records(12, steady_s=60, fail_share=0.0)
    refused = [row for row in records(12, steady_s=60, fail_share=0.05) if row.error_class == "overload"][:1]
    assert refused
    failed = msgspec.structs.replace(refused[0], error_class="rate_limit", http_status=429)
    changed = [
        msgspec.structs.replace(
            failed, session_id=row.session_id, turn=row.turn, scenario=row.scenario, phase=row.phase, due_ns=row.due_ns,
            attempt_ns=row.attempt_ns, sent_ns=row.sent_ns, closed_ns=row.closed_ns,
        )
        if place % 25 == 0 and row.outcome is Outcome.OK else row
        for place, row in enumerate(rows)
    ]  # fmt: skip
    limit, reason = loaded(changed, tmp_path)
    assert limit == QUOTA and "refused by a rate limit" in reason
