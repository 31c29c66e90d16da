"""A run is stopped by a rule that can't pass any more, and by nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from siege import Siege, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import PlanError
from infersiege.gate.abort import _ODDS, ERROR, HOLD_NS, AbortWatch, allowed_share, log_evidence
from infersiege.metrics.histogram import bucket_of
from infersiege.plan import load_plan
from infersiege.plan.schema import Slo
from infersiege.records import Outcome, Phase, Reason, Verdict, WindowRow

MS = 1_000_000
SECOND = 1_000_000_000
THRESHOLD = math.log(1.0 / ERROR)

TTFT = Slo(metric="ttft", stat="p99", at_most=800.0, abort=True)
ERRORS = Slo(metric="error_share", at_most=0.01, abort=True)


# ------------------------------------------------------------------------------------------------------------- the test


def evidence(past: npt.NDArray[np.int64], of: npt.NDArray[np.int64], allowed: float) -> npt.NDArray[np.float64]:
    """`log_evidence` of many looks at once."""
    odds = np.array(_ODDS)
    logs = past[:, None] * np.log(odds) - of[:, None] * np.log(1 - allowed + odds * allowed)
    best = logs.max(axis=1)
    found: npt.NDArray[np.float64] = best + np.log(np.exp(logs - best[:, None]).mean(axis=1))
    return found


def first_stop(draw: npt.NDArray[np.bool_], allowed: float) -> int | None:
    """After how many turns a run is stopped that is looked at after each of them."""
    of = np.flatnonzero(draw) + 1  # in between the evidence only falls
    proven = evidence(np.arange(1, of.size + 1), of, allowed) >= THRESHOLD
    return int(of[np.argmax(proven)]) if proven.any() else None


@pytest.mark.parametrize("allowed", [0.5, 0.1, 0.05, 0.01, 0.001])
def test_a_share_at_the_limit_is_hardly_ever_stopped(allowed: float) -> None:
    """Looked at after each of 100,000 turns: in 1 % of runs at most. 200 runs: 7 would come in 0.4 % of all tests."""
    random = np.random.default_rng(1)
    stopped = sum(first_stop(random.random(100_000) < allowed, allowed) is not None for _ in range(200))
    assert stopped <= 6


@pytest.mark.parametrize(("allowed", "turns"), [(0.5, 10), (0.1, 350), (0.05, 750), (0.01, 4_000), (0.001, 40_000)])
def test_twice_the_limit_is_stopped_soon(allowed: float, turns: int) -> None:
    """95 of 100 runs, after so many turns (docs/gate.md has the table)."""
    random = np.random.default_rng(2)
    stops = [first_stop(random.random(turns) < 2 * allowed, allowed) for _ in range(100)]
    assert sum(stop is not None for stop in stops) >= 90


@given(st.integers(0, 500), st.integers(0, 5000), st.sampled_from([0.5, 0.1, 0.01, 0.001]))
def test_more_turns_past_the_limit_are_more_evidence_and_more_within_are_less(
    past: int, within: int, allowed: float
) -> None:
    here = log_evidence(past, past + within, allowed)
    assert log_evidence(past + 1, past + within + 1, allowed) > here, (
        "what reports leave open counts as within: no harm"
    )
    assert log_evidence(past, past + within + 1, allowed) < here
    many = evidence(np.array([past]), np.array([past + within]), allowed)
    assert math.isclose(here, float(many[0]), rel_tol=1e-9, abs_tol=1e-9)


@given(st.sampled_from([0.5, 0.05, 0.01]), st.floats(0.0, 1.0), st.integers(0, 40), st.integers(0, 200))
def test_a_bet_on_one_more_turn_wins_nothing_on_average(allowed: float, part: float, past: int, within: int) -> None:
    """A supermartingale for every share up to the one that may be: what Ville's inequality asks for."""
    share, of = part * allowed, past + within
    here = math.exp(log_evidence(past, of, allowed))
    after = share * math.exp(log_evidence(past + 1, of + 1, allowed))
    after += (1 - share) * math.exp(log_evidence(past, of + 1, allowed))
    assert after <= here * (1 + 1e-9)


@pytest.mark.parametrize(
    ("slo", "share", "reason"),
    [
        (TTFT, 0.01, "1 - q"),
        (Slo(metric="e2e", stat="p50", at_most=1.0), 0.5, "the same of a median"),
        (Slo(metric="e2e", stat="max", at_most=1.0), 0.0, "no turn may be past a maximum"),
        (ERRORS, 0.01, "the limit itself"),
        (Slo(metric="goodput_share", at_least=0.95), 0.05, "what is not good"),
        (Slo(metric="ttft", stat="mean", at_most=1.0), None, "no share of turns"),
        (Slo(metric="ttft", stat="p99", at_least=1.0), None, "a lower limit"),
        (Slo(metric="gap", stat="p99", at_most=1.0), None, "workers don't report it by second"),
        (Slo(metric="throughput", at_least=1.0), None, "a rate"),
        (Slo(metric="error_share", at_least=0.1), None, "a lower limit on errors"),
        (Slo(metric="ttft", stat="p99", relative_max=0.1), None, "only against a baseline"),
    ],
)
def test_the_share_that_may_be_past_the_limit(slo: Slo, share: float | None, reason: str) -> None:
    assert allowed_share(slo) == share, reason


# ------------------------------------------------------------------------------------------------------ what is counted


def row(ttft_ms: dict[float, int] | None = None, **changes: Any) -> WindowRow:
    base: dict[str, Any] = {
        "second": 1,
        "scenario": "chat",
        "channel": "local",
        "stage": "s1",
        "phase": Phase.STEADY,
        "ttft": {bucket_of(round(at * MS)): count for at, count in (ttft_ms or {}).items()},
    }
    return WindowRow(**(base | changes))


def stopped(
    slo: Slo, *rows: WindowRow, others: tuple[Slo, ...] = (), after_ns: int = HOLD_NS
) -> tuple[int, int] | None:
    """(past, of) of a watch that saw these rows, looked, and looked again later; None: it goes on."""
    watch = AbortWatch((*others, slo))
    watch.add(rows)
    watch.look(0, at_ns=0)
    found = watch.look(after_ns, at_ns=5)
    assert found is None or found.place == len(others)
    return None if found is None else (found.past, found.of)


@pytest.mark.parametrize(
    ("slo", "rows", "expected", "reason"),
    [
        (TTFT, [row({900.0: 20})], (20, 20), "all are past it"),
        (TTFT, [row({900.0: 2, 100.0: 198})], None, "1 %: as it may be"),
        (TTFT, [row({900.0: 30, 100.0: 270})], (30, 300), "ten times as many"),
        (TTFT, [row({900.0: 20}, phase=Phase.WARMUP)], None, "the warm-up is in no figure"),
        (TTFT, [row({801.0: 20})], None, "within the bucket of the limit: nobody knows, so they count as within"),
        (msgspec.structs.replace(TTFT, scenario="other"), [row({900.0: 20})], None, "not its scenario"),
        (msgspec.structs.replace(TTFT, stage="s1", channel="local"), [row({900.0: 20})], (20, 20), "its cut"),
        (Slo(metric="ttft", stat="max", at_most=800.0, abort=True), [row({900.0: 1, 1.0: 999})], (1, 1000), "certain"),
        (ERRORS, [row(ok=80, failed=20)], (20, 100), "errors"),
        (ERRORS, [row(ok=99, failed=1)], None, "as many as may be"),
        (Slo(metric="error_share", at_most=0.0, abort=True), [row(ok=999, failed=1)], (1, 1000), "none may be"),
        (ERRORS, [row(ok=0, failed=0)], None, "nothing ended"),
    ],
)
def test_turns_past_the_limit_are_counted_from_the_reports(
    slo: Slo, rows: list[WindowRow], expected: tuple[int, int] | None, reason: str
) -> None:
    assert stopped(slo, *rows) == expected, reason


@pytest.mark.parametrize(
    ("rows", "expected", "reason"),
    [
        ([row({900.0: 30}, ok=30, good=0)], (30, 30), "every turn violates"),
        ([row({900.0: 30, 10.0: 270}, ok=300, good=270)], None, "10 %, as it may be"),
        (
            [row({10.0: 30}, ok=30, good=0)],
            None,
            "not good, but past no limit that is known: unmeasured, not violating",
        ),
        ([row({900.0: 30}, ok=30)], None, "no limit holds for these turns"),
        ([row({10.0: 70}, ok=70, failed=30, good=70)], (30, 100), "failed turns violate"),
    ],
)
def test_goodput_counts_what_violates_for_certain(
    rows: list[WindowRow], expected: tuple[int, int] | None, reason: str
) -> None:
    good = Slo(metric="goodput_share", at_least=0.9, abort=True)
    limit = msgspec.structs.replace(TTFT, abort=False)
    assert stopped(good, *rows, others=(limit,)) == expected, reason


def test_a_first_burst_stops_nothing_that_recovers() -> None:
    """A cold cache: 40 turns past the limit at once, then none. The evidence must stand for some time."""
    watch = AbortWatch((TTFT,))
    watch.add([row({900.0: 40})])
    assert watch.look(0, at_ns=0) is None
    for second in range(1, 5):
        watch.add([row({10.0: 2_000})])
        assert watch.look(second * SECOND, at_ns=0) is None
    assert watch.look(60 * SECOND, at_ns=0) is None


def test_evidence_that_was_gone_begins_anew() -> None:
    watch = AbortWatch((ERRORS,))
    watch.add([row(failed=10)])
    watch.look(0, at_ns=0)
    watch.add([row(ok=5_000)])
    assert watch.look(HOLD_NS, at_ns=0) is None
    watch.add([row(failed=500)])
    assert watch.look(2 * HOLD_NS, at_ns=0) is None
    found = watch.look(3 * HOLD_NS, at_ns=77)
    assert found is not None and (found.at_ns, found.past, found.of) == (77, 510, 5_510)
    assert found.words == (
        "stopped early after 5,510 turns: 510 of them (9.26 %) were past the limit, where 1 % may be"
    )


def test_a_plan_without_such_rules_is_never_stopped() -> None:
    watch = AbortWatch((msgspec.structs.replace(TTFT, abort=False),))
    watch.add([row({9000.0: 10_000})])
    assert watch.look(0, at_ns=0) is None and watch.look(HOLD_NS, at_ns=0) is None


# ------------------------------------------------------------------------------------------------------ before the run


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ('metric = "ttft"\nstat = "mean"\nmax = "1s"', "works with max on a percentile"),
        ('metric = "throughput"\nmin = 5', "works with max on a percentile"),
        ('metric = "gap"\nstat = "p99"\nmax = "1s"', "works with max on a percentile"),
        ('metric = "ttft"\nstat = "p99"\nmin = "1s"', "works with max on a percentile"),
        ('metric = "ttft"\nstat = "p99"\nrelative_max = "10%"', "works with max on a percentile"),
        ('metric = "error_share"\nmax = "1%"\nseverity = "warn"', "only warns stops no run"),
    ],
)
def test_a_rule_that_can_stop_nothing_is_a_fault_of_the_plan(tmp_path: Path, rule: str, fault: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan_text("http://127.0.0.1:1/v1", more=f"[[slo]]\n{rule}\nabort = true\n"), encoding="utf-8")
    with pytest.raises(PlanError) as raised:
        load_plan(path, environ={})
    assert [fault in one for one in raised.value.faults] == [True], raised.value.faults


# ------------------------------------------------------------------------------------------------------------- for real


@pytest.mark.slow
@pytest.mark.alone
def test_a_hopeless_run_ends_early_and_fails_for_that_rule(siege: Siege) -> None:
    rules = (
        '[[slo]]\nmetric = "ttft"\nstat = "p99"\nmax = "100us"\nabort = true\n'
        '[[slo]]\nmetric = "e2e"\nstat = "p99_9"\nmax = "5s"\n'
        '[[slo]]\nmetric = "e2e"\nstat = "p50"\nmax = "5s"\n'
    )
    with EmulatorProcess() as emulator:
        ran = siege.run(plan_text(emulator.base_url, run='duration = "120s"', more=rules), "--gate")
    assert ran.seconds < 60, "long before its time"
    early = ran.summary.stopped_early
    assert early is not None and early.place == 0 and early.past > 0.9 * early.of
    first, second, third = ran.summary.rules[-3:]
    assert (first.verdict, second.verdict) == (Verdict.FAIL, Verdict.NO_DATA), ran.out
    assert "stopped early after" in first.detail and "stopped early" in third.remark
    if not ran.summary.invalid:
        assert (ran.code, ran.summary.verdict) == (1, Verdict.FAIL), "no data of the others does not hide it"
    ended = next(event for event in ran.events if event.kind == "load_ended")
    assert ended.detail.startswith("ttft p99 <= 0.1 ms: stopped early after")
    cut = [turn.reason for turn in ran.turns if turn.outcome in (Outcome.SKIPPED, Outcome.CANCELLED)]
    assert set(cut) <= {Reason.STOPPED_EARLY}
    code, _ = siege.command("gate", str(ran.path))
    assert code == ran.code, "gated again, from the turns alone, it says the same"
