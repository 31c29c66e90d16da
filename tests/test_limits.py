"""What limited a stage: each rule with a reason, conflicting evidence, missing data, and GP-09."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import pytest
from records_sample import plan, records, write_run
from series_sample import engine_rows, gpu_rows

from infersiege.records import Outcome, TurnRecord
from infersiege.report import read
from infersiege.resources.evidence import EngineLoad, Evidence
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
    amount,
    limit_of,
    percent,
)

WORDS = {"compute", "memory bandwidth", "KV cache", "queue", "power", "client", "quota", "not clear"}


def on(ratio: float) -> Spread:
    """The same on one GPU."""
    return Spread(ratio, ratio, 1)


ENGINE = {field.name for field in fields(EngineLoad)}


def seen(**values: Any) -> Evidence:
    """Evidence of one engine from plain fields; `engines`: of several."""
    engine = {name: value for name, value in values.items() if name in ENGINE}
    others = {name: value for name, value in values.items() if name not in ENGINE}
    return Evidence(**{"engines": (EngineLoad(**engine),), **others})


CALM: dict[str, Any] = {
    "started": 1000, "ended": 1000, "in_flight_mean": 30.0, "kv_use_mean": 0.35, "kv_use_peak": 0.5,
    "running_mean": 24.0, "running_peak": 32.0, "waiting_mean": 0.1, "waiting_peak": 1.0, "waiting_while_full": 0.0,
    "preemptions": 0.0, "power_capped": on(0.02), "throttled": on(0.0), "clock_loss": on(0.1), "dram_active": on(0.35),
    "tensor_active": on(0.2), "sm_active": on(0.6), "utilization": on(1.0), "gpus": 1,
}  # fmt: skip
"""Everything is measured and nothing is near a limit, though the GPU is "100 % utilised"."""

FULL = {"kv_use_mean": 0.93, "kv_use_peak": 0.99, "waiting_while_full": 0.9}
QUEUED = {"waiting_mean": 6.0, "waiting_peak": 20.0}

H1_FULL = EngineLoad(
    name="h:1", kv_use_mean=0.99, kv_use_peak=1.0, running_mean=40.0, running_peak=48.0, waiting_mean=10.0,
    waiting_peak=20.0, waiting_while_full=1.0, preemptions=0.0,
)  # fmt: skip
H2_EMPTY = EngineLoad(
    name="h:2", kv_use_mean=0.2, kv_use_peak=0.3, running_mean=8.0, running_peak=12.0, waiting_mean=0.0,
    waiting_peak=0.0, preemptions=0.0,
)  # fmt: skip
H3_QUEUED = EngineLoad(
    name="h:3", kv_use_mean=0.3, kv_use_peak=0.4, running_mean=16.0, running_peak=16.0, waiting_mean=4.0,
    waiting_peak=9.0, waiting_while_full=0.0, preemptions=0.0,
)  # fmt: skip

ROWS: list[tuple[dict[str, Any], str, str, str]] = [
    ({}, NOT_CLEAR, "more load would show it", "nothing is near"),
    ({"client": "the event loop of w1 was held up by 900 ms (p99)"}, CLIENT, "held up by 900 ms", "our own fault"),
    (
        {"client": "the first token of 40 turns is in doubt", **FULL, "waiting_mean": 30.0},
        CLIENT,
        "also at a limit: KV cache",
        "a client-bound run's server figures are those of a load that nobody asked for",
    ),
    ({"rate_limited": 30}, QUOTA, "30 of 1,000 turns were refused by a rate limit", "3 % refused"),
    ({"rate_limited": 10}, QUOTA, "10 of 1,000", "1 % is the threshold"),
    ({"rate_limited": 9}, NOT_CLEAR, "9 of 1,000 turns refused", "0.9 % refused: a hiccup, but told"),
    ({"rate_limited": 2, "ended": 20, "started": 20}, NOT_CLEAR, "", "two turns prove nothing in a short stage"),
    (
        {"overloaded": 40},
        QUEUE,
        "40 of 1,000 turns were refused as overloaded: the server's own limit of requests that it admits",
        "a 503 of an engine is its admission, and no quota that money lifts",
    ),
    ({"overloaded": 9}, NOT_CLEAR, "9 of 1,000 turns refused as overloaded", "0.9 % overloaded"),
    (
        {"overloaded": 40, **FULL, **QUEUED},
        KV_CACHE,
        "also at a limit: queue",
        "overloaded since the cache is full: the cache comes first",
    ),
    ({"overloaded": 40, **QUEUED}, QUEUE, "tokens per step; 40 of 1,000", "a queue, and refusals: both are told"),
    ({**FULL, "waiting_mean": 12.4, "waiting_peak": 40.0}, KV_CACHE, "12 requests waited", "full, and requests wait"),
    ({**FULL, **QUEUED}, KV_CACHE, "(90 % of it while the cache was 90 % full or more)", "when they waited is told"),
    ({**FULL, "preemptions": 45.0}, KV_CACHE, "45 requests were preempted", "full, and requests are thrown out"),
    ({**FULL, "preemptions": 4.0}, NOT_CLEAR, "4 requests were preempted", "4 of 1,000 thrown out: a moment"),
    ({**FULL}, NOT_CLEAR, "93 % full on average", "full, but nobody waits: it just fits"),
    (
        {"kv_use_mean": 0.9, "kv_use_peak": 0.94, "preemptions": 500.0, "running_peak": 48.0},
        KV_CACHE,
        "500 requests were preempted",
        "half of the turns thrown out: the peak lies between two points",
    ),
    (
        {"kv_use_mean": 0.4, "kv_use_peak": 0.99, "waiting_while_full": 0.1, "waiting_mean": 5.0, "waiting_peak": 30.0},
        QUEUE,
        "40 % full on average, 99 % at most",
        "full for a moment, but requests wait all the time",
    ),
    (
        {"kv_use_mean": 0.4, "kv_use_peak": 0.99, "waiting_while_full": 0.9, "waiting_mean": 5.0, "waiting_peak": 30.0},
        KV_CACHE,
        "40 % full on average",
        "bursts: on average there is room, but whoever waits, waits for blocks",
    ),
    (
        {"kv_use_mean": 0.85, "kv_use_peak": 0.88, "waiting_while_full": 0.0, **QUEUED},
        QUEUE,
        "or its KV cache, if the next prompts are longer than what was free",
        "an eighth is free: a long document may not fit there",
    ),
    (
        {"kv_use_mean": None, "kv_use_peak": None, "waiting_while_full": None, "preemptions": 45.0},
        KV_CACHE,
        "not known",
        "only a full cache makes an engine preempt: it need not tell how full",
    ),
    (
        {"preemptions": 45.0},
        NOT_CLEAR,
        "45 requests were preempted",
        "preempted with a half-empty cache: not explained, and not hidden",
    ),
    (QUEUED, QUEUE, "while the KV cache was 35 % full", "room, but they wait"),
    ({"waiting_mean": 6.0, "waiting_peak": 9.0}, QUEUE, "32 requests ran at most", "names the running requests"),
    ({"waiting_mean": 0.9, "waiting_peak": 9.0}, NOT_CLEAR, "at its limit for long", "less than one on average"),
    (
        {"waiting_mean": 4.0, "running_mean": 200.0, "waiting_peak": 9.0},
        NOT_CLEAR,
        "",
        "4 beside 200 running: the scheduler's hand-over from step to step",
    ),
    (
        {"waiting_mean": 6.0, "kv_use_mean": None, "kv_use_peak": None, "waiting_while_full": None},
        QUEUE,
        "or its KV cache",
        "llama.cpp tells no KV use: it can't be told apart, and the sentence says so",
    ),
    (
        {"engines": (H1_FULL, H2_EMPTY)},
        KV_CACHE,
        "on engine h:1, the worst of 2, the KV cache was 99 % full",
        "60 % on average of both: one is full all the same",
    ),
    (
        {"engines": (H1_FULL, H2_EMPTY)},
        KV_CACHE,
        "while h:2 had room: spread the load evenly before adding hardware",
        "the router is at fault, not the memory",
    ),
    (
        {"engines": (H2_EMPTY, H3_QUEUED)},
        QUEUE,
        "on engine h:3, the worst of 2, 4 requests waited",
        "one has a queue of its own, while the other has none",
    ),
    ({"engines": (H1_FULL, H3_QUEUED)}, KV_CACHE, "also at a limit: queue", "each engine has a limit of its own"),
    (
        {"engines": (H2_EMPTY, EngineLoad(name="h:4", kv_use_mean=0.5, kv_use_peak=0.6, waiting_mean=0.2))},
        NOT_CLEAR,
        "60 % at most on h:4, the fullest of 2 engines",
        "no limit: the fullest one's figures",
    ),
    (
        {"engines": tuple(EngineLoad(name=f"h:{n}", running_mean=1.0, kv_use_peak=0.1) for n in range(8)),
         "dram_active": on(0.85)},
        NOT_CLEAR,
        "only 1 request at a time",
        "eight engines with a request each are no batch of eight",
    ),
    ({"power_capped": on(0.6)}, POWER, "power limit for 60 % of the time", "clocks are down"),
    ({"power_capped": on(0.6)}, POWER, "with SM clocks 10 % below the highest", "what there is to gain"),
    ({"power_capped": on(0.6), "clock_loss": None}, POWER, "60 %", "clocks not told"),
    (
        {"power_capped": on(0.9), "clock_loss": on(0.02)},
        NOT_CLEAR,
        "SM clocks 2 % below",
        "capped all the time, by next to nothing: more power would not be felt",
    ),
    ({"power_capped": on(0.24)}, NOT_CLEAR, "not all are far", "below a quarter of the time, but near"),
    ({"throttled": on(0.15)}, POWER, "heat or hardware for 15 %", "slowed all the same, and worth a look"),
    (
        {"throttled": on(0.15), "dram_active": on(0.8)},
        POWER,
        "look at cooling and power supply first",
        "a fault of the machine comes before what the machine can do",
    ),
    (
        {"power_capped": Spread(0.2, 0.8, 4)},
        POWER,
        "80 % of the time on the busiest of 4 GPUs (mean 20 %)",
        "GP-11: with tensor parallelism the slowest card sets the pace; a mean hides it",
    ),
    ({"dram_active": on(0.8)}, BANDWIDTH, "in use for 80 % with 24 requests at a time", "decode at a large batch"),
    (
        {"dram_active": on(0.8)},
        BANDWIDTH,
        "the KV cache has room (50 % full at most)",
        "a second machine is not the first thing to try",
    ),
    (
        {"dram_active": on(0.8), "power_capped": on(0.5)},
        BANDWIDTH,
        "also at a limit: power",
        "the cap lowers the SMs' clock, and they wait for memory anyway",
    ),
    (
        {"dram_active": Spread(0.67, 0.71, 8)},
        BANDWIDTH,
        "71 % on the busiest of 8 GPUs (mean 67 %)",
        "the figure that was tested is the one that is printed",
    ),
    ({"dram_active": on(0.6951)}, BANDWIDTH, "70 %", "printed as 70 %, so it counts as 70 %"),
    ({"dram_active": on(0.6949)}, NOT_CLEAR, "69 %", "and below it does not"),
    ({"dram_active": on(0.65)}, NOT_CLEAR, "not all are far from it", "65 of 70 % is near"),
    (
        {"dram_active": on(0.85), "running_mean": 1.0, "in_flight_mean": 1.0},
        NOT_CLEAR,
        "only 1 request at a time",
        "one user reads all weights for each token: more users share that",
    ),
    ({"tensor_active": on(0.6)}, COMPUTE, "tensor cores were busy for 60 %", "prefill"),
    ({"tensor_active": on(0.6), "running_mean": 1.0}, COMPUTE, "60 %", "one long prompt can fill the tensor cores"),
    ({"tensor_active": on(0.6), "power_capped": on(0.5)}, POWER, "also at a limit: compute", "the cap slows compute"),
    ({"sm_active": on(0.97)}, COMPUTE, "while DRAM bandwidth was in use for 35 %", "SMs full, memory not"),
    ({"sm_active": on(0.97), "dram_active": None}, NOT_CLEAR, "", "SMs that wait for memory have a warp, too"),
    ({"sm_active": on(0.97), "running_mean": 2.0}, NOT_CLEAR, "", "two users: a kernel spans all SMs anyway"),
    (
        {"sm_active": Spread(0.97, 0.97, 8)},
        NOT_CLEAR,
        "kernels that wait for another GPU count as work",
        "all-reduce over PCIe spins on the SMs: faster links, not more GPUs",
    ),
    ({"sm_active": Spread(0.6, 0.96, 2), "dram_active": Spread(0.4, 0.5, 2)}, NOT_CLEAR, "96 %", "the same for one"),
    (
        {"dram_active": on(0.8), "running_mean": None, "in_flight_mean": 2.0},
        NOT_CLEAR,
        "",
        "without the engine's figure, the client's turns in flight tell the batch",
    ),
    ({"running_mean": None, "in_flight_mean": None, "dram_active": on(0.8)}, BANDWIDTH, "", "batch not known"),
    (
        {**QUEUED, "tensor_active": on(0.7), "power_capped": on(0.5)},
        QUEUE,
        "also at a limit: power, compute, so that to lift the first alone may not raise throughput",
        "all evidence is told, the nearest to the user first",
    ),
    (
        {"dram_active": Spread(0.45, 0.9, 8), "gpus": 8, "idle": 4},
        BANDWIDTH,
        "4 of the 8 GPUs did no work: use them before adding any",
        "GP-11: half of the machine stood idle",
    ),
    ({"gpus": 2, "idle": 2}, NOT_CLEAR, "they may not be those of the engines", "the wrong host was watched"),
    ({**QUEUED, "restarts": 1}, QUEUE, "an engine was restarted once", "its queue is that of a restart"),
    ({"dram_active": None}, NOT_CLEAR, "the limit may lie there", "what was not measured is not promised to be free"),
    ({"started": 0, "ended": 0}, NOT_CLEAR, "No turn was started", "an empty stage"),
    ({"thin": ("engine 127.0.0.1:8000: 45 %",)}, NOT_CLEAR, "(engine 127.0.0.1:8000: 45 %)", "a note on holes"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "limit", "says", "why"), ROWS, ids=[row[3] for row in ROWS])
def test_the_limit_of(change: dict[str, Any], limit: str, says: str, why: str) -> None:
    found, reason = limit_of(seen(**{**CALM, **change}))
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


@pytest.mark.parametrize("change", [row[0] for row in ROWS if row[1] == NOT_CLEAR])
def test_nothing_is_called_far_from_its_limit_when_it_is_not(change: dict[str, Any]) -> None:
    """Preemptions, refusals, a full cache: who reads "not near" orders nothing and is wrong."""
    evidence = seen(**{**CALM, **change})
    reason = limit_of(evidence)[1]
    high = (evidence.kv_peak or 0) >= 0.8 or evidence.preemptions or evidence.rate_limited or evidence.overloaded
    assert not (high and "is near its limit" in reason), reason


def test_utilisation_never_changes_a_limit() -> None:
    for change, *_ in ROWS:
        values = {**CALM, **change}
        limits = {limit_of(seen(**{**values, "utilization": each}))[0] for each in (None, on(0.0), on(1.0))}
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
