"""Each metric's value of a single turn, and that docs/metrics.md says the same."""

from __future__ import annotations

from pathlib import Path

import metrics_turns as make
import msgspec
import pytest

from infersiege.metrics.definitions import METRICS, STATS
from infersiege.records import Distribution, Outcome, TurnRecord

DOCS = Path(__file__).parents[1] / "docs" / "metrics.md"


def value(name: str, turn: TurnRecord) -> float | None:
    metric = METRICS[name]
    assert metric.per_turn is not None
    raw = metric.per_turn(turn)
    return None if raw is None else raw / metric.per_unit


def test_st_02_reasoning_counts_for_ttft_and_not_for_ttfa() -> None:
    frames = [180 + 10.0 * index for index in range(50)]
    turn = make.streamed(0, frames, tokens=50, first_answer_ns=None, finish_reason="length")
    assert value("ttft", turn) == 180
    assert value("ttfa", turn) is None
    assert value("tpot", turn) == 10


def test_st_03_one_chunk_is_not_one_token() -> None:
    turn = make.streamed(0, [40, 80, 120, 160], tokens=16)
    assert value("tpot", turn) == 8
    assert value("output_tokens", turn) == 16


def test_st_04_tokens_of_the_first_chunk_were_made_before_it() -> None:
    turn = make.streamed(0, [500 + 100.0 * index for index in range(11)], tokens=19, first_chunk_tokens=9)
    assert value("tpot", turn) == 100
    unknown = msgspec.structs.replace(turn, first_chunk_tokens=None)
    assert value("tpot", unknown) == pytest.approx(1000 / 18)


def test_st_23_trailing_usage_is_in_closed_and_not_in_e2e() -> None:
    turn = make.streamed(0, [100, 200], closed_ns=make.T0 + 700 * make.MS)
    assert [value(name, turn) for name in ("ttft", "e2e", "closed")] == [100, 200, 700]


def test_st_24_a_burst_has_no_tpot() -> None:
    turn = make.streamed(0, [3000.0] * 200, coalesced=200)
    assert value("ttft", turn) == 3000
    assert value("tpot", turn) is None
    spilled = make.streamed(0, [3000.0] * 150 + [3000.4] * 50, coalesced=198)
    assert value("tpot", spilled) is None, "a burst that took two reads is still a burst"


@pytest.mark.parametrize(
    ("changes", "metric", "reason"),
    [
        ({"first_token_ns": None}, "ttft", "no text came"),
        ({"first_token_ns": make.T0}, "ttft", "text before the request went out: a broken clock, not 0"),
        ({"first_token_ns": make.T0 - 5}, "ttft", "never negative"),
        ({"sent_ns": None}, "ttft", "never sent"),
        ({"sent_ns": None}, "e2e", "never sent"),
        ({"output_tokens": 1}, "tpot", "one token has no time per further token"),
        ({"output_tokens": None}, "tpot", "unknown count"),
        ({"output_tokens": 9, "first_chunk_tokens": 9}, "tpot", "all tokens in the first chunk"),
        ({"closed_ns": None}, "closed", "never closed"),
        ({"attempt_ns": None}, "lateness", "never begun"),
        ({"sent_end_ns": None}, "upload", "never sent whole"),
        ({"attempt_ns": None}, "time_to_error", "never begun"),
    ],
)
def test_st_25_absent_is_none_and_never_zero(changes: dict[str, int | None], metric: str, reason: str) -> None:
    turn = msgspec.structs.replace(make.streamed(0, [100, 200, 300]), **changes)
    assert value(metric, turn) is None, reason


def test_st_35_tpot_and_gaps_leave_the_first_chunk_out() -> None:
    turn = make.streamed(0, [1000, 1010, 1020])
    assert value("tpot", turn) == 10
    assert sum(turn.gaps.values()) == 2


def test_from_due_adds_the_lateness() -> None:
    turn = make.streamed(30, [130, 230], due_ns=make.T0, attempt_ns=make.T0 + 20 * make.MS)
    assert value("ttft", turn) == 100
    assert value("ttft_from_due", turn) == 130
    assert value("e2e_from_due", turn) == 230
    assert value("lateness", turn) == 20


def test_an_answer_without_a_stream_ends_with_its_body() -> None:
    turn = make.streamed(0, [], tokens=12, closed_ns=make.T0 + 900 * make.MS)
    assert value("e2e", turn) == 900
    assert value("ttft", turn) is None


def test_connection_times_apply_only_where_a_connection_was_made() -> None:
    fresh = make.turn(reused_connection=False, connect_duration_ns=2 * make.MS)
    reused = make.turn(reused_connection=True)
    connect, tls = METRICS["connect"], METRICS["tls"]
    assert connect.applies is not None and tls.applies is not None
    assert (connect.applies(fresh), connect.applies(reused), tls.applies(fresh)) == (True, False, False)
    assert value("connect", fresh) == 2


def test_every_name_is_its_key_and_every_rate_has_no_turn() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.kind == "distribution" or (metric.per_turn is None and not metric.needs_stream)
        assert metric.kind == "rate" or metric.per_turn is not None or name == "gap"
        assert metric.outcome in (Outcome.OK, Outcome.FAILED)


def test_statistics_are_the_fields_of_a_distribution() -> None:
    beside = {"unit", "n", "missing", "failed_share", "cancelled_share", "ranges"}
    assert set(STATS) == set(Distribution.__struct_fields__) - beside
    assert (STATS["p99"].floor, STATS["p99_9"].floor) == (100, 1000)


@pytest.mark.parametrize("name", METRICS)
def test_docs_say_the_same(name: str) -> None:
    metric = METRICS[name]
    row = next((line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}` |")), "")
    assert row, f"docs/metrics.md has no row for {name}"
    assert f"`{metric.formula}`" in row
    assert metric.description in row
    assert f"| {metric.unit} |" in row


@pytest.mark.parametrize("name", STATS)
def test_docs_have_every_statistic(name: str) -> None:
    assert f"| `{name}` |" in DOCS.read_text()
