"""Rules, verdicts and exit codes: nothing passes that was not measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import metrics_turns as make
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from siege import plan_text

from infersiege import gate
from infersiege.errors import ExitCode, PlanError
from infersiege.metrics.behind import turns_behind
from infersiege.metrics.facts import AskedLoad, Cut, RequestLimit
from infersiege.metrics.summary import summarise
from infersiege.plan import load_plan
from infersiege.plan.schema import Slo
from infersiege.records import ErrorClass, Outcome, Reason, RuleResult, Summary, TurnRecord, Verdict

PASS, FAIL, NO_DATA, INVALID = Verdict.PASS, Verdict.FAIL, Verdict.NO_DATA, Verdict.INVALID


def summary_of(turns: list[TurnRecord], *slos: Slo, **changes: Any) -> Summary:
    """As `infersiege gate` makes it: the rules bring their limits and cuts."""
    facts = make.facts(limits=gate.request_limits(slos), cuts=gate.cuts(slos), **changes)
    return summarise(turns, facts)


def judged(slo: Slo, turns: list[TurnRecord], **changes: Any) -> RuleResult:
    return gate.judge((slo,), summary_of(turns, slo, **changes))[-1]


def code(turns: list[TurnRecord], *slos: Slo, gated: bool = True, **changes: Any) -> ExitCode:
    summary = summary_of(turns, *slos, **changes)
    return gate.exit_code(summary, gate.judge(slos, summary), gated=gated)


TTFT = Slo(metric="ttft", stat="p50", at_most=100.0)
ERRORS = Slo(metric="error_share", at_most=0.01)
SLOW = Slo(metric="ttft", stat="p50", at_most=99.0)


@pytest.mark.parametrize(
    ("slo", "verdict", "reason"),
    [
        (TTFT, PASS, "at the limit passes"),
        (SLOW, FAIL, "above it fails"),
        (Slo(metric="ttft", stat="p50", at_least=100.0), PASS, "at the lower limit passes"),
        (Slo(metric="ttft", stat="p50", at_least=101.0), FAIL, "below it fails"),
        (Slo(metric="ttft", stat="p50", at_least=90.0, at_most=110.0), PASS, "between both"),
        (Slo(metric="ttft", stat="max", at_most=100.0), PASS, "maximum is exact"),
        (Slo(metric="ttft", stat="p95", at_most=100.0), PASS, "120 values are enough for an upper bound"),
        (Slo(metric="ttft", stat="p99", at_most=1e9), NO_DATA, "of p99 they are not"),
        (Slo(metric="ttft", stat="p99", at_most=100.0, min_samples=120), PASS, "the rule itself asks for fewer"),
        (Slo(metric="ttft", stat="p99_9", at_most=1e9, min_samples=120), NO_DATA, "but not below the floor"),
        (Slo(metric="ttft", stat="p50", at_most=1e9, min_samples=121), NO_DATA, "fewer than the rule wants"),
        (Slo(metric="ttft", stat="p99", at_most=1e9, min_samples=1), PASS, "a floor is not lowered by min_samples"),
        (Slo(metric="ttft", stat="p50", at_most=1e9, scenario="nobody"), NO_DATA, "no turn of that scenario"),
        (Slo(metric="error_share", at_most=0.0), PASS, "no failure, and it was looked at"),
        (Slo(metric="throughput", at_least=60.0), PASS, "120 turns of 5 tokens in 10 s"),
        (Slo(metric="throughput", at_least=61.0), FAIL, "not more"),
        (Slo(metric="cache_share", at_least=0.0), NO_DATA, "unknown is not 0"),
        (Slo(metric="goodput", at_least=0.0), NO_DATA, "no limit for single turns"),
        (Slo(metric="server_ttft", stat="p50", at_most=1e9), NO_DATA, "the engine does not tell"),
        (Slo(metric="delivered_share", at_least=0.0), NO_DATA, "no asked load known"),
    ],
)
def test_verdicts(slo: Slo, verdict: Verdict, reason: str) -> None:
    result = judged(slo, make.many(120))
    assert result.verdict is verdict, f"{reason}: {result}"
    assert result.detail


def test_a_result_carries_its_figures() -> None:
    result = judged(Slo(metric="ttft", stat="p90", at_most=800.0, scenario="chat"), make.many(40))
    assert (result.name, result.value, result.n, result.unit) == ("chat: ttft p90 <= 800 ms", 100.0, 40, "ms")
    assert (result.low, result.high, result.needed) == (100.0, 100.0, 29)
    assert result.window_duration_ns == 10 * make.SECOND
    assert (result.at_most, result.at_least, result.built_in, result.severity) == (800.0, None, False, "fail")


@pytest.mark.parametrize(
    ("slo", "name"),
    [
        (Slo(metric="error_share", at_most=0.01), "error_share <= 1 %"),
        (Slo(metric="throughput", at_least=1500.0), "throughput >= 1500 tokens/s"),
        (Slo(metric="users", at_least=32.0), "users >= 32"),
        (Slo(metric="tpot", stat="p99_9", at_most=12.5), "tpot p99_9 <= 12.5 ms"),
        (
            Slo(metric="gap", stat="p50", at_least=1.0, at_most=2.0, channel="local", stage="s1"),
            "local, s1: gap p50 <= 2 ms and >= 1 ms",
        ),
    ],
)
def test_rule_names(slo: Slo, name: str) -> None:
    assert gate.rule_name(slo) == name


# ---------------------------------------------------------------------------------------------------- field cases


def test_gt_01_nothing_is_green_with_no_success() -> None:
    dead = [make.failed(at, at + 1, ErrorClass.NOT_FOUND) for at in range(200)]
    summary = summary_of(dead, TTFT)
    success, output, *_, errors, ttft = gate.judge((TTFT,), summary)
    assert (errors.name, errors.verdict, errors.built_in) == ("error_share <= 5 %", FAIL, True)
    assert (success.verdict, output.verdict, ttft.verdict) == (FAIL, FAIL, NO_DATA)
    assert success.built_in and "not_found 200" in success.detail
    assert ttft.value is None
    assert gate.exit_code(summary, (), gated=False) is ExitCode.RULE_FAILED
    assert code(dead, TTFT) is ExitCode.NO_DATA
    assert code(dead, ERRORS) is ExitCode.RULE_FAILED


def test_gt_01_success_without_output_fails() -> None:
    empty = [make.streamed(at, [], tokens=0) for at in range(5)]
    success, output, *_ = gate.judge((), summary_of(empty))
    assert (success.verdict, output.verdict) == (PASS, FAIL)


def test_gt_01_an_engine_that_dies_is_seen_by_its_error_share() -> None:
    records = [*make.many(100), *(make.failed(at, at + 1, ErrorClass.CONNECT) for at in range(900))]
    result = judged(ERRORS, records)
    assert (result.verdict, result.value, result.n) == (FAIL, 0.9, 1000)


def test_gt_02_an_unknown_metric_is_a_fault_of_the_plan_with_the_nearest_name() -> None:
    assert judged(Slo(metric="tfft", stat="p99", at_most=1e9), make.many(120)).verdict is NO_DATA


def test_gt_02_a_stream_metric_without_a_stream_is_no_data() -> None:
    assert judged(TTFT, make.many(9), streamed={"local": False}).verdict is NO_DATA
    assert code(make.many(9), TTFT, streamed={"local": False}) is ExitCode.NO_DATA


def test_st_26_ttft_gate_on_an_unstreamed_channel() -> None:
    whole = [make.streamed(at, [], tokens=8, closed_ns=make.T0 + 9 * make.SECOND) for at in range(10)]
    result = judged(TTFT, whole, streamed={"local": False})
    assert (result.verdict, result.value, result.n) == (NO_DATA, None, 0)
    assert "not streamed" in result.detail
    assert judged(Slo(metric="e2e", stat="p50", at_most=9001.0), whole, streamed={"local": False}).verdict is PASS


def test_gt_03_one_failure_of_many_is_a_matter_of_the_rule() -> None:
    records = [*make.many(183), make.failed(0, 1)]
    assert code(records, ERRORS) is ExitCode.PASS
    assert code(records, Slo(metric="error_share", at_most=0.0)) is ExitCode.RULE_FAILED
    assert code(records, gated=False) is ExitCode.PASS


GOOD, DEAD = make.many(120), [make.failed(at, at + 1) for at in range(5)]
CUT = make.many(5, outcome=Outcome.CANCELLED, reason=Reason.RUN_END)
LOST = {"invalid": ("worker w2 was lost",)}


@pytest.mark.parametrize(
    ("turns", "slos", "gated", "changes", "expected", "reason"),
    [
        (GOOD, (TTFT,), True, {}, 0, "every rule passes"),
        (GOOD, (SLOW,), True, {}, 1, "a rule fails"),
        (GOOD, (SLOW,), False, {}, 0, "nobody gated it"),
        (GOOD, (TTFT,), True, LOST, 3, "invalid"),
        (GOOD, (), False, LOST, 3, "invalid without a gate too"),
        (GOOD, (SLOW,), True, LOST, 3, "invalid before failed"),
        (GOOD, (SLOW, Slo(metric="cache_share", at_least=0.1)), True, {}, 5, "no data before failed"),
        (GOOD, (Slo(metric="cache_share", at_least=0.1),), True, LOST, 3, "invalid before no data"),
        (GOOD, (SLOW,), True, {"interrupted": True}, 130, "interrupted before failed"),
        (GOOD, (), False, LOST | {"interrupted": True}, 130, "interrupted before invalid"),
        (DEAD, (), False, {}, 1, "every turn failed"),
        (CUT, (), False, {}, 5, "no turn ended by itself"),
        ([], (), False, {"steady": ()}, 3, "no steady window"),
    ],
)
def test_gt_04_exit_codes_are_told_apart(
    turns: list[TurnRecord], slos: tuple[Slo, ...], gated: bool, changes: dict[str, Any], expected: int, reason: str
) -> None:
    assert code(turns, *slos, gated=gated, **changes) == expected, reason


def test_gt_09_rules_of_an_invalid_run_are_invalid_and_keep_their_figure() -> None:
    summary = summary_of(GOOD, TTFT, **LOST)
    results = gate.judge((TTFT,), summary)
    assert {result.verdict for result in results if result.name != "the load is delivered"} == {INVALID, NO_DATA}
    assert results[-1].value == 100.0
    assert "worker w2 was lost" in results[-1].detail
    assert gate.overall(summary, results) is INVALID


def test_sp_05_the_failure_share_stands_beside_a_latency() -> None:
    records = [*make.many(25, ttft_ms=18), *(make.failed(at, at + 1) for at in range(5))]
    result = judged(TTFT, records)
    assert (result.verdict, result.n) == (PASS, 25)
    assert "16.67% of the turns failed" in result.detail


def test_sp_07_a_p99_gate_on_twenty_samples_is_no_data() -> None:
    result = judged(Slo(metric="ttft", stat="p99", at_most=1e9), make.many(20))
    assert (result.verdict, result.n, result.value) == (NO_DATA, 20, None)
    assert "20 values, p99 needs 299" in result.detail


def test_cut_turns_leave_a_high_percentile_without_data() -> None:
    records = [*make.many(300), *make.many(10, outcome=Outcome.CANCELLED, reason=Reason.RUN_END)]
    result = judged(Slo(metric="e2e", stat="p99", at_most=1e9), records)
    assert result.verdict is NO_DATA
    assert "were cut" in result.detail


def test_a_warning_never_fails() -> None:
    warn = msgspec.structs.replace(SLOW, severity="warn")
    nothing = Slo(metric="cache_share", at_least=0.5, severity="warn")
    summary = summary_of(GOOD, warn, nothing)
    results = gate.judge((warn, nothing), summary)
    assert [result.verdict for result in results[-2:]] == [FAIL, NO_DATA]
    assert gate.exit_code(summary, results, gated=True) is ExitCode.PASS
    assert gate.overall(summary, results) is PASS


@pytest.mark.parametrize(
    ("slos", "verdict"),
    [((), PASS), ((TTFT,), PASS), ((TTFT, SLOW), FAIL), ((SLOW, Slo(metric="cache_share", at_least=0.1)), NO_DATA)],
)
def test_overall_verdict_is_the_strongest(slos: tuple[Slo, ...], verdict: Verdict) -> None:
    summary = summary_of(GOOD, *slos)
    assert gate.overall(summary, gate.judge(slos, summary)) is verdict


def test_open_turns_count_for_throughput() -> None:
    long = make.streamed(0, [100.0 * k for k in range(1, 90)], outcome=Outcome.CANCELLED, output_tokens=None)
    assert judged(Slo(metric="throughput", at_least=8.0), [long]).verdict is PASS


def test_request_limits_are_the_loosest_of_high_percentiles() -> None:
    slos = (
        Slo(metric="ttft", stat="p50", at_most=200.0),
        Slo(metric="ttft", stat="p95", at_most=500.0),
        Slo(metric="ttft", stat="p99", at_most=800.0),
        Slo(metric="ttft", stat="p99", at_most=900.0, scenario="agent"),
        Slo(metric="tpot", stat="mean", at_most=20.0),
        Slo(metric="e2e", stat="max", at_least=1.0),
        Slo(metric="gap", stat="p99", at_most=50.0),
        Slo(metric="time_to_error", stat="p99", at_most=50.0),
        ERRORS,
    )
    assert gate.request_limits(slos) == (
        RequestLimit(metric="ttft", at_most=800.0),
        RequestLimit(metric="ttft", at_most=900.0, scenario="agent"),
    )
    assert gate.cuts(slos) == (Cut(), Cut(scenario="agent"))


# ------------------------------------------------------------------------------------------------------ how many values


@pytest.mark.parametrize(
    ("slo", "needed", "reason"),
    [
        (Slo(metric="ttft", stat="p50", at_most=1.0), 5, "an upper bound of a median"),
        (Slo(metric="ttft", stat="p99", at_most=1.0), 299, "of a p99"),
        (Slo(metric="ttft", stat="p99_9", at_most=1.0), 2995, "of a p99.9"),
        (Slo(metric="ttft", stat="p99", at_most=1.0, min_samples=150), 150, "the rule asks for fewer"),
        (Slo(metric="ttft", stat="p99", at_most=1.0, min_samples=10), 100, "but there is no p99 of fewer"),
        (Slo(metric="ttft", stat="p99", at_most=1.0, min_samples=5000), 5000, "or for more"),
        (Slo(metric="ttft", stat="max", at_most=1.0), 1, "a maximum"),
        (Slo(metric="error_share", at_most=0.1), 1, "a rate"),
        (Slo(metric="error_share", at_most=0.1, min_samples=50), 50, "with a number of its own"),
    ],
)
def test_values_that_a_rule_takes(slo: Slo, needed: int, reason: str) -> None:
    assert gate.needed_for(slo) == needed, reason


REFUSED = [make.failed(1000.0 + place, 1100.0 + place) for place in range(295)]
EMPTY = [make.failed(2000.0, 2100.0, ErrorClass.NO_OUTPUT) for _ in range(3)]
CUT = [make.turn(outcome=Outcome.CANCELLED, reason=Reason.RUN_END) for _ in range(2)]
CACHED = [make.streamed(0.0, [100.0, 120.0], prompt_tokens=10, cached_tokens=5) for _ in range(5)]
CHECKED = [make.streamed(0.0, [100.0, 120.0], quality="pass set/item") for _ in range(4)]


@pytest.mark.parametrize(
    ("metric", "rows", "n", "reason"),
    [
        ("error_share", [*CACHED, *REFUSED, *CUT], 300, "turns that ended by themselves"),
        ("collapsed_share", [*CACHED, *REFUSED], 5, "a turn that the server refused gave no answer to look at"),
        ("collapsed_share", [*CACHED, *REFUSED, *EMPTY], 8, "one without a token did"),
        ("cancelled_share", [*CACHED, *REFUSED, *CUT], 7, "what failed could not be cut any more"),
        ("cache_share", [*CACHED, *REFUSED], 5, "the server tells of answers"),
        ("quality", [*CACHED, *REFUSED, *CHECKED], 4, "answers to checked prompts"),
        ("throughput", [*CACHED, *REFUSED, *CUT], 302, "tokens of a turn that we cut count too"),
    ],
)
def test_a_rule_on_a_share_counts_the_turns_that_it_is_a_share_of(
    metric: str, rows: list[TurnRecord], n: int, reason: str
) -> None:
    limit = Slo(metric=metric, at_least=0.0, min_samples=n)
    enough = judged(limit, rows)
    assert (enough.n, enough.verdict) == (n, PASS), reason
    assert judged(msgspec.structs.replace(limit, min_samples=n + 1), rows).verdict is NO_DATA


@given(st.lists(make.turns(), max_size=30))
def test_a_share_is_so_many_of_the_turns_behind_it(rows: list[TurnRecord]) -> None:
    for group in summarise(rows, make.facts()).groups:
        for rate in ("error_share", "cancelled_share", "collapsed_share"):
            n, value = turns_behind(rate, group), group.rates[rate]
            assert (value is None) == (n == 0)
            assert value is None or abs(value * n - round(value * n)) < 1e-9


def test_a_rule_on_fewer_values_says_so() -> None:
    few = judged(Slo(metric="ttft", stat="p99", at_most=100.0, min_samples=120), make.many(120))
    assert few.remark == "fewer than the 299 values that a 95 % upper bound of p99 takes" and few.remark in few.detail
    assert (few.low, few.high) == (100.0, None), "the upper end is not known"
    assert judged(Slo(metric="ttft", stat="p99", at_most=100.0), make.many(299)).remark == ""


# ------------------------------------------------------------------------------------------------------ built-in rules


def built_in(results: Sequence[RuleResult]) -> dict[str, RuleResult]:
    return {result.name: result for result in results if result.built_in}


@pytest.mark.parametrize(
    ("slos", "failed", "verdict", "reason"),
    [
        ((), 1, PASS, "1 of 120"),
        ((), 6, PASS, "6 of 126 are 4.8 %"),
        ((), 12, FAIL, "12 of 132 are too many"),
        ((Slo(metric="error_share", at_most=0.5),), 12, None, "a rule of the plan takes its place"),
        ((Slo(metric="error_share", at_most=0.5, scenario="chat"),), 12, FAIL, "one on a part of the run does not"),
        ((Slo(metric="error_share", at_least=0.01),), 12, FAIL, "nor does one that asks for failures"),
    ],
)
def test_gt_03_failures_have_a_limit_where_the_plan_has_none(
    slos: tuple[Slo, ...], failed: int, verdict: Verdict | None, reason: str
) -> None:
    turns = [*make.many(120), *(make.failed(at, at + 1) for at in range(failed))]
    found = built_in(gate.judge(slos, summary_of(turns, *slos))).get("error_share <= 5 %")
    assert (None if found is None else found.verdict) is verdict, reason


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "detail"),
    [
        ({}, "no worker is lost", NO_DATA, "the workers are not known"),
        ({}, "the client keeps up", NO_DATA, "nobody watched the load generator"),
        ({}, "the load is delivered", NO_DATA, "what was asked of the load can't be told"),
        ({"invalid": ("client-bound: w1: busy",)}, "the client keeps up", INVALID, "client-bound: w1: busy"),
        ({"invalid": ("worker w2 on a was lost",)}, "no worker is lost", INVALID, "worker w2 on a was lost"),
        ({"invalid": ("load not delivered: x",)}, "the load is delivered", INVALID, "load not delivered: x"),
    ],
)
def test_gt_09_what_makes_a_run_invalid_has_its_row(
    changes: dict[str, Any], name: str, verdict: Verdict, detail: str
) -> None:
    summary = summary_of(GOOD, **changes)
    results = gate.judge((), summary)
    found = built_in(results)[name]
    assert (found.verdict, found.detail) == (verdict, detail)
    assert found.severity == ("warn" if verdict is NO_DATA else "fail"), "what nobody knows spoils no verdict"
    assert gate.overall(summary, results) is (INVALID if changes else PASS)


def test_gt_09_a_third_of_the_load_is_seen_in_its_row() -> None:
    load = AskedLoad(mode="open", rate=36.0, arrivals=360)
    skipped = [make.turn(outcome=Outcome.SKIPPED, reason=Reason.LATE_DROPPED) for _ in range(240)]
    summary = summary_of([*make.many(120), *skipped], loads=(load,))
    found = built_in(gate.judge((), summary))["the load is delivered"]
    assert found.verdict is INVALID and found.value == pytest.approx(1 / 3, abs=0.01)
    assert (found.at_least, found.at_most) == (0.95, 1.05)


# ------------------------------------------------------------------------------------------------------ before the run


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (
            'metric = "goodput"\nmin = 1',
            "slo.0.metric: goodput counts turns within their limits",
        ),
        (
            'metric = "delivered_share"\nmin = 0.9\nchannel = "target"',
            "slo.0.channel: delivered_share belongs to",
        ),
        (
            'metric = "throughput"\nmin = 1\nscenario = "short-qa"\nchannel = "b"',
            "no turn of scenario 'short-qa'",
        ),
        ('metric = "tfft"\nstat = "p99"\nmax = 1', "did you mean"),
    ],
)
def test_gt_02_a_combination_that_no_turn_has_is_a_fault_before_the_run(tmp_path: Path, rule: str, fault: str) -> None:
    other = '[channel.b]\nengine = "vllm"\nbase_url = "http://127.0.0.1:2/v1"\nmodel = "m"\n'
    text = plan_text(
        "http://127.0.0.1:1/v1",
        workload='scenario = "short-qa"\ntrace = "builtin:short-qa"\nchannel = "target"',
        more=f'[[workload]]\nscenario = "b"\ntrace = "builtin:short-qa"\nchannel = "b"\n{other}[[slo]]\n{rule}\n',
    )
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanError) as raised:
        load_plan(path, environ={})
    assert [fault in one for one in raised.value.faults] == [True], raised.value.faults
