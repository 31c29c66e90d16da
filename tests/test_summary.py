"""The summary against a slow, simple calculation of the same, and the field cases of figures and validity."""

from __future__ import annotations

import math
import random
from typing import Any

import metrics_turns as make
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.metrics.facts import AskedLoad, Cut, RequestLimit, RunFacts, SteadyWindow
from infersiege.metrics.summary import summarise
from infersiege.records import (
    ErrorClass,
    GroupSummary,
    Outcome,
    Phase,
    Reason,
    Summary,
    TokensFrom,
    TraceAccount,
    TurnRecord,
    WorkerSummary,
)

MS, SECOND, T0 = make.MS, make.SECOND, make.T0


def whole(turns: list[TurnRecord], **facts: Any) -> GroupSummary:
    return summarise(turns, make.facts(**facts)).groups[0]


def worker(**changes: Any) -> WorkerSummary:
    base: dict[str, Any] = {
        "worker": "w1",
        "host": "bench-1",
        "pid": 7,
        "turns": 1,
        "lost": False,
        "lost_at_ns": None,
        "records_promised": None,
        "records_received": 1,
        "hub_lag_p99_ns": None,
        "cpu_share_max": None,
        "clock_offset_ns": 0,
        "clock_uncertainty_ns": 0,
    }
    return WorkerSummary(**(base | changes))


# --------------------------------------------------------------------------------------- against simple arithmetic


LIMIT = RequestLimit(metric="ttft", at_most=700.0)
LOADS = (AskedLoad(mode="closed", users=3),)
FACTS = make.facts(limits=(LIMIT,), loads=LOADS, cuts=(Cut(scenario="agent", channel="cloud"),))


def slow_percentile(values: list[float], q: float) -> float | None:
    ordered = sorted(values)
    return next((value for rank, value in enumerate(ordered, 1) if rank / len(ordered) >= q - 1e-9), None)


def slow_tokens(turn: TurnRecord, window: SteadyWindow) -> float:
    tokens = turn.output_tokens if turn.output_tokens is not None else turn.chunks
    if not turn.chunks:
        closed = turn.closed_ns
        return tokens if closed is not None and window.start_ns <= closed < window.end_ns else 0
    assert turn.first_token_ns is not None and turn.last_token_ns is not None
    inside = 0.0
    for second, count in turn.chunks_by_second.items():
        low, high = max(second * SECOND, turn.first_token_ns), min((second + 1) * SECOND, turn.last_token_ns)
        if low >= high:
            inside += count * (window.start_ns <= low < window.end_ns)
        else:
            overlap = max(0, min(high, window.end_ns) - max(low, window.start_ns))
            inside += count * overlap / (high - low)
    return tokens * inside / turn.chunks


@given(st.lists(make.turns(), max_size=25))
def test_whole_run_is_what_simple_arithmetic_says(records: list[TurnRecord]) -> None:
    group = summarise(records, FACTS).groups[0]
    steady = [turn for turn in records if turn.phase is Phase.STEADY]
    ok = [turn for turn in steady if turn.outcome is Outcome.OK]
    failed = [turn for turn in steady if turn.outcome is Outcome.FAILED]
    cancelled = [turn for turn in steady if turn.outcome is Outcome.CANCELLED]
    window, seconds = make.STEADY, 10.0
    ttft = [(t.first_token_ns - t.sent_ns) / MS for t in ok if t.first_token_ns is not None and t.sent_ns is not None]
    found = group.distributions["ttft"]
    assert (found.n, found.missing) == (len(ttft), len(ok) - len(ttft))
    assert (found.min, found.max) == ((min(ttft), max(ttft)) if ttft else (None, None))
    hidden = len(cancelled) / (len(ok) + len(cancelled)) if cancelled else 0.0
    for q, value in ((0.5, found.p50), (0.9, found.p90), (0.95, found.p95)):
        assert value == (None if hidden > 1 - q + 1e-9 else slow_percentile(ttft, q))
    assert group.rates["throughput"] == pytest.approx(sum(slow_tokens(turn, window) for turn in records) / seconds)
    sent = [turn for turn in records if turn.sent_ns is not None and window.start_ns <= turn.sent_ns < window.end_ns]
    assert group.rates["sent_rate"] == len(sent) / seconds
    assert group.rates["error_share"] == (len(failed) / (len(ok) + len(failed)) if ok or failed else None)
    known = [
        (t.cached_tokens, t.prompt_tokens) for t in ok if t.cached_tokens is not None and t.prompt_tokens is not None
    ]
    cached = sum(cached for cached, _ in known) / sum(prompt for _, prompt in known) if known else None
    assert group.rates["cache_share"] == cached
    if group.rates["goodput"] is not None:
        assert group.rates["goodput"] == sum(value <= 700 for value in ttft) / seconds
    assert sum(group.errors.values()) == len(failed)


@given(st.lists(make.turns(), max_size=25))
def test_ls_05_concurrency_is_rebuilt_from_the_turns(records: list[TurnRecord]) -> None:
    group = summarise(records, FACTS).groups[0]
    window = make.STEADY
    spans = [(t.sent_ns, t.closed_ns) for t in records if t.sent_ns is not None and t.closed_ns is not None]
    moments = [window.start_ns, *(at for at, _ in spans if window.start_ns <= at < window.end_ns)]
    assert group.in_flight_max == max(sum(start <= at < end for start, end in spans) for at in moments)
    overlap = sum(max(0, min(end, window.end_ns) - max(start, window.start_ns)) for start, end in spans)
    assert group.in_flight_mean == pytest.approx(overlap / window.duration_ns)


@given(st.lists(make.turns(), max_size=25), st.randoms(use_true_random=False))
def test_order_and_split_of_the_turns_do_not_matter(records: list[TurnRecord], random_: random.Random) -> None:
    shuffled = list(records)
    random_.shuffle(shuffled)
    first, second = summarise(iter(records), FACTS), summarise(iter(shuffled), FACTS)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)


@given(st.lists(make.turns(), max_size=25))
def test_parts_add_up_to_the_whole(records: list[TurnRecord]) -> None:
    summary = summarise(records, FACTS)
    parts = [group for group in summary.groups if group.scenario is not None and group.channel is None]
    if not parts:
        return
    all_ = summary.groups[0]
    assert sum(part.counts.planned for part in parts) == all_.counts.planned
    assert sum(part.distributions["ttft"].n for part in parts) == all_.distributions["ttft"].n
    assert math.fsum(part.rates["throughput"] or 0 for part in parts) == pytest.approx(all_.rates["throughput"])
    assert sum(part.in_flight_mean or 0 for part in parts) == pytest.approx(all_.in_flight_mean)


@given(st.lists(make.turns(), max_size=10))
def test_a_summary_survives_json_without_nan(records: list[TurnRecord]) -> None:
    summary = summarise(records, FACTS)
    encoded = msgspec.json.encode(summary)
    assert msgspec.json.decode(encoded, type=Summary) == summary
    assert b"NaN" not in encoded


# ---------------------------------------------------------------------------------------------- groups and counts


def test_groups_are_the_whole_then_each_part_where_there_are_several() -> None:
    records = [make.streamed(0, [50, 90], scenario=name) for name in ("chat", "agent")]
    facts = make.facts(cuts=(Cut(scenario="agent", channel="local"), Cut(scenario="chat"), Cut(scenario="nobody")))
    found = [(group.scenario, group.channel, group.stage) for group in summarise(records, facts).groups]
    assert found == [
        (None, None, None),
        ("agent", None, None),
        ("chat", None, None),
        ("agent", "local", None),
        ("nobody", None, None),
    ]


def test_a_cut_without_turns_has_no_figures() -> None:
    nobody = summarise(make.many(3), make.facts(cuts=(Cut(scenario="nobody"),))).groups[-1]
    assert nobody.scenario == "nobody"
    assert all(found.n == 0 and found.mean is None for found in nobody.distributions.values())
    assert nobody.rates["error_share"] is None
    assert (nobody.prompt_tokens, nobody.output_tokens) == (None, None)


def test_stages_have_windows_of_their_own() -> None:
    second = SteadyWindow(stage="s2", start_ns=T0 + 20 * SECOND, end_ns=T0 + 25 * SECOND)
    early = make.streamed(9000, [9500, 20_500, 21_500], tokens=30)
    late = make.streamed(22_000, [22_100, 22_200], tokens=20, stage="s2")
    all_, first, last = summarise([early, late], make.facts(steady=(second, make.STEADY))).groups
    assert (first.stage, last.stage) == ("s1", "s2")
    assert [group.steady_duration_ns // SECOND for group in (all_, first, last)] == [15, 10, 5]
    # 10 of the early turn's tokens came before its stage's end, 20 inside the other stage.
    assert first.rates["throughput"] == pytest.approx(10 / 10)
    assert last.rates["throughput"] == pytest.approx((20 + 20) / 5)
    assert all_.rates["throughput"] == pytest.approx(50 / 15)
    assert [group.distributions["ttft"].n for group in (all_, first, last)] == [2, 1, 1]


def test_emulated_is_seen_by_flag_and_by_channel() -> None:
    flagged = summarise([make.streamed(0, [50, 90], flags=("emulated",))], make.facts())
    named = summarise([make.streamed(0, [50, 90], scenario=name) for name in "ab"], make.facts(emulated=("local",)))
    assert flagged.emulated and flagged.groups[0].emulated
    assert named.emulated and all(group.emulated for group in named.groups)
    assert not summarise(make.many(1), make.facts()).emulated


# ---------------------------------------------------------------------------------------------------- field cases


def test_st_25_usage_only_answers_are_missing_and_counted() -> None:
    records = [*make.many(7), *(make.streamed(at, [], tokens=5) for at in (10, 20, 30))]
    found = whole(records).distributions["ttft"]
    assert (found.n, found.missing) == (7, 3)
    assert found.min is not None and found.min > 0


def test_st_26_without_a_stream_there_is_no_ttft() -> None:
    records = [make.streamed(at, [], tokens=5, closed_ns=T0 + 35 * SECOND) for at in range(5)]
    group = whole(records, streamed={"local": False})
    assert (group.distributions["ttft"].n, group.distributions["ttft"].missing) == (0, 0)
    assert group.distributions["tpot"].p50 is None
    assert group.distributions["e2e"].n == 5
    assert any("not streamed" in note for note in group.notes)


def test_st_24_bursty_streams_are_warned_of() -> None:
    burst = [make.streamed(at, [3000.0 + at] * 200, coalesced=200) for at in range(10)]
    summary = summarise(burst, make.facts())
    assert any("10 of 10 streams came in bursts" in warning for warning in summary.warnings)
    assert summary.groups[0].distributions["tpot"].n == 0
    even = [make.streamed(at, [100 + 20.0 * k + at for k in range(12)]) for at in range(10)]
    assert not any("bursts" in warning for warning in summarise(even, make.facts()).warnings)


def test_st_35_gaps_start_at_the_second_chunk() -> None:
    found = whole([make.streamed(0, [1000, 1010, 1020])]).distributions["gap"]
    assert found.n == 2
    assert found.p50 == pytest.approx(10, rel=0.005)


def test_tk_02_empty_answers_are_failures_and_not_throughput() -> None:
    records = [make.failed(at, at + 2, ErrorClass.NO_OUTPUT) for at in range(100)]
    group = whole(records)
    assert group.rates["error_share"] == 1.0
    assert (group.rates["finished_rate"], group.rates["throughput"]) == (0, 0)
    assert group.errors == {"no_output": 100}


def test_tk_03_estimated_counts_are_said_to_be() -> None:
    records = [*make.many(6), *make.many(2, tokens_from=TokensFrom.ESTIMATE)]
    summary = summarise(records, make.facts())
    assert any("estimated for 2 of 8 turns" in warning for warning in summary.warnings)
    assert summary.tokens_from == {"usage": 6, "estimate": 2}


def test_nonsense_as_usage_is_not_called_missing() -> None:
    """A negative or absurd count is left out by the decoder, which flags the turn."""
    odd = make.many(2, tokens_from=TokensFrom.ESTIMATE, flags=("odd_usage",))
    warnings = " ".join(summarise([*make.many(6), *odd], make.facts()).warnings)
    assert "the server sent nonsense as usage in 2 turns" in warnings and "2 of 8 counts" in warnings
    assert "sent no usage" not in warnings
    both = " ".join(summarise([*odd, *make.many(3, tokens_from=TokensFrom.ESTIMATE)], make.facts()).warnings)
    assert "estimated for 3 of 5 turns: the server sent no usage" in both and "nonsense as usage in 2 turns" in both


def test_tk_10_prompts_off_the_asked_length_are_warned_of() -> None:
    records = make.many(4, prompt_tokens=1183, asked_prompt_tokens=1000)
    summary = summarise(records, make.facts())
    assert any("+18%" in warning for warning in summary.warnings)
    assert summary.groups[0].prompt_tokens == 4 * 1183


def test_tk_13_real_output_is_shown_beside_the_asked_one() -> None:
    notes = whole(make.many(4, tokens=137, asked_output_tokens=512)).notes
    assert any("548" in note and "2,048" in note and "-73%" in note for note in notes)


def test_tk_14_unknown_cache_share_is_not_zero() -> None:
    hint = "start vLLM with --enable-prompt-tokens-details"
    unknown = summarise(make.many(3, prompt_tokens=4000), make.facts(cache_hints={"local": hint}))
    assert unknown.groups[0].rates["cache_share"] is None
    assert any("cache share unknown" in warning and hint in warning for warning in unknown.warnings)
    zero = summarise(make.many(3, prompt_tokens=4000, cached_tokens=0), make.facts())
    assert zero.groups[0].rates["cache_share"] == 0.0
    assert not any("cache" in warning for warning in zero.warnings)
    mixed = [*make.many(1, prompt_tokens=100, cached_tokens=80), *make.many(1, prompt_tokens=9000)]
    assert whole(mixed).rates["cache_share"] == 0.8


def test_ls_07_a_run_that_ends_in_its_ramp_is_invalid() -> None:
    records = [make.streamed(at, [at + 500, at + 1000], phase=Phase.WARMUP) for at in range(0, 6000, 1000)]
    summary = summarise(records, make.facts(steady=()))
    assert any("no steady window" in reason for reason in summary.invalid)
    assert summary.groups[0].rates["throughput"] is None
    assert summary.groups[0].in_flight_max is None


def test_ls_07_users_that_were_never_reached_are_invalid() -> None:
    window = SteadyWindow(stage="s1", start_ns=T0, end_ns=T0 + 6 * SECOND)
    records = [make.streamed(user * 1000, [user * 1000 + 10, 6000]) for user in range(6)]
    summary = summarise(records, make.facts(steady=(window,), loads=(AskedLoad(mode="closed", users=100),)))
    assert any("3.5 of 100 users" in reason for reason in summary.invalid)
    assert summary.groups[0].rates["users"] == pytest.approx(3.5)


def test_ls_05_a_full_plateau_is_valid_and_a_short_one_is_not() -> None:
    def users(count: int) -> list[TurnRecord]:
        return [make.streamed(at, [at + 100, at + 990]) for _ in range(count) for at in range(0, 10_000, 1000)]

    loads = (AskedLoad(mode="closed", users=32),)
    full = summarise(users(32), make.facts(loads=loads))
    assert full.invalid == ()
    assert full.groups[0].in_flight_max == 32
    assert full.groups[0].rates["delivered_share"] == pytest.approx(1.0, abs=0.002)
    assert any("28.0 of 32 users" in reason for reason in summarise(users(28), make.facts(loads=loads)).invalid)


def test_ls_08_tokens_of_cut_turns_are_throughput_and_no_latency() -> None:
    window = SteadyWindow(stage="s1", start_ns=T0, end_ns=T0 + 3 * SECOND)
    cut = [
        make.streamed(0, [100.0 * k for k in range(1, 31)], outcome=Outcome.CANCELLED, output_tokens=None)
        for _ in range(3)
    ]
    group = whole(cut, steady=(window,))
    assert group.rates["throughput"] == pytest.approx(3 * 29 / 3, rel=0.02), "the last chunk came at the very end"
    assert group.distributions["e2e"].n == 0
    assert (group.rates["error_share"], group.rates["cancelled_share"]) == (None, 1.0)
    assert any("one token per chunk" in note for note in group.notes)


def test_ls_10_few_turns_for_the_concurrency_are_warned_of() -> None:
    loads = (AskedLoad(mode="closed", users=100),)
    assert any("first wave" in w for w in summarise(make.many(100), make.facts(loads=loads)).warnings)
    assert not any("first wave" in w for w in summarise(make.many(2000), make.facts(loads=loads)).warnings)


def test_sp_05_failures_are_in_no_latency_and_their_share_stands_beside() -> None:
    records = [*make.many(25, ttft_ms=18), *(make.failed(at, at + 1) for at in range(5))]
    group = whole(records)
    found = group.distributions["ttft"]
    assert (found.n, found.mean) == (25, pytest.approx(18))
    assert found.failed_share == pytest.approx(5 / 30)
    assert group.distributions["time_to_error"].n == 5
    assert group.distributions["time_to_error"].max == pytest.approx(1)


def test_sp_07_no_p99_of_twenty_samples() -> None:
    few = whole(make.many(20)).distributions["ttft"]
    assert (few.n, few.p99, few.p99_9) == (20, None, None)
    assert few.max is not None and few.p50 is not None
    assert whole(make.many(100)).distributions["ttft"].p99 is not None
    assert whole(make.many(100)).distributions["ttft"].p99_9 is None
    assert whole(make.many(1000)).distributions["ttft"].p99_9 is not None


@pytest.mark.parametrize(
    ("cut", "known", "reason"),
    [
        (1, ("p50", "p90", "p95", "p99"), "1 of 101 is below 1 %"),
        (2, ("p50", "p90", "p95"), "2 of 102 could all be above p99"),
        (6, ("p50", "p90"), "6 of 106 could all be above p95"),
        (20, ("p50",), "20 of 120 could all be above p90"),
        (150, (), "more than half was cut"),
    ],
)
def test_cut_turns_take_high_percentiles_away(cut: int, known: tuple[str, ...], reason: str) -> None:
    records = [*make.many(100), *make.many(cut, outcome=Outcome.CANCELLED, reason=Reason.RUN_END)]
    group = whole(records)
    found = group.distributions["e2e"]
    assert tuple(name for name in ("p50", "p90", "p95", "p99") if getattr(found, name) is not None) == known, reason
    assert found.n == 100
    assert group.distributions["lateness"].p99 is not None, "known before the cut"


def test_sp_12_a_straggler_does_not_thin_throughput() -> None:
    quick = [make.streamed(at, [at + 100, at + 1000], tokens=10) for at in range(0, 9000, 90)]
    straggler = make.streamed(9000, [9100, 69_000], tokens=10)
    rate = whole([*quick, straggler]).rates["throughput"]
    assert rate == pytest.approx((10 * len(quick) + 5) / 10, rel=0.02)


# -------------------------------------------------------------------------------------------------------- goodput


def test_goodput_counts_what_met_every_limit() -> None:
    limits = (RequestLimit(metric="ttft", at_most=200), RequestLimit(metric="tpot", at_most=30, scenario="chat"))
    records = [
        make.streamed(0, [100, 120, 140]),  # good
        make.streamed(0, [200, 220, 240]),  # good: at the limit
        make.streamed(0, [201, 220, 240]),  # late first token
        make.streamed(0, [100, 150, 200]),  # slow tokens
        make.streamed(0, [100, 150, 200], scenario="agent"),  # good: no limit on its tokens
        make.failed(0, 5),  # failed is a violation
        make.streamed(0, [100]),  # one token: not measurable
        make.streamed(0, [], outcome=Outcome.CANCELLED, closed_ns=T0 + 150 * MS),  # cut within the limit: left out
        make.streamed(0, [], outcome=Outcome.CANCELLED, closed_ns=T0 + 900 * MS),  # cut past it: a violation
        make.streamed(0, [100], outcome=Outcome.CANCELLED, closed_ns=T0 + 900 * MS),  # had its first token in time
        make.skipped(Reason.AFTER_FAILURE),
    ]
    group = whole(records, limits=limits)
    assert group.rates["goodput"] == pytest.approx(3 / 10)
    assert group.rates["goodput_share"] == pytest.approx(3 / 7)
    assert any("2 cut and 1 unmeasurable" in note for note in group.notes)


def test_goodput_without_a_limit_is_unknown() -> None:
    group = whole(make.many(10))
    assert (group.rates["goodput"], group.rates["goodput_share"]) == (None, None)


# ------------------------------------------------------------------------------------------------------- validity


TAKEN_OVER: dict[str, Any] = {"taken_over_ns": T0 + 8 * SECOND, "taken_over_by": ("w2", "w3")}
AWAY: dict[str, Any] = {"away": ((T0 + 5 * SECOND, T0 + 9 * SECOND),)}


def test_conservation_is_checked_with_numbers() -> None:
    records = [*make.many(3), make.skipped(Reason.RUN_END)]
    assert summarise(records, make.facts(planned_turns=4)).invalid == ()
    reason = summarise(records, make.facts(planned_turns=6)).invalid[0]
    assert "6 planned" in reason and "2 too few" in reason
    twice = summarise([*records, records[0]], make.facts())
    assert any("1 turns have more than one record" in reason for reason in twice.invalid)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"lost": True, "lost_at_ns": T0 + 5 * SECOND},
            "w1 on bench-1 was lost 5.0 s into the run: its share of the load was not there",
        ),
        (
            {"lost": True, "lost_at_ns": T0 + 5 * SECOND, **TAKEN_OVER, "unplayed": 1234},
            "run: w2 and w3 took its share over 8.0 s into the run; 1,234 of its sessions were played by nobody",
        ),
        (
            {"lost": True, "lost_at_ns": T0 + 5 * SECOND, **TAKEN_OVER, **AWAY, "back_at_ns": T0 + 9 * SECOND},
            "w2 and w3 took its share over 8.0 s into the run; it was away for 4.0 s",
        ),
        (
            {"lost": True, "lost_at_ns": T0 + 5 * SECOND, **AWAY},
            "its share of the load was not there; it was away for 4.0 s, and lost again",
        ),
        (
            {"lost": True, "lost_at_ns": T0 + 5 * SECOND, **AWAY, "back_at_ns": T0 + 9 * SECOND},
            "was lost 5.0 s into the run: it was away for 4.0 s",
        ),
        ({"records_promised": 9, "records_received": 8}, "wrote 9 records, 8 arrived"),
    ],
)
def test_gt_09_workers_that_fell_short_are_invalid(changes: dict[str, Any], said: str) -> None:
    summary = summarise(make.many(3), make.facts(workers=(worker(**changes),)))
    assert any(said in reason for reason in summary.invalid)
    assert summarise(make.many(3), make.facts(workers=(worker(),))).invalid == ()


def test_lost_turns_are_invalid_without_a_named_worker() -> None:
    lost = make.turn(outcome=Outcome.LOST, reason=Reason.WORKER_LOST)
    assert any("1 turns were lost" in reason for reason in summarise([*make.many(3), lost], make.facts()).invalid)


def open_arrivals(begun: int, late: int) -> list[TurnRecord]:
    step = 10_000 / (begun + late)
    on_time = [make.streamed(k * step, [k * step + 50, k * step + 90]) for k in range(begun)]
    return [*on_time, *(make.skipped(Reason.LATE_DROPPED, (begun + k) * step) for k in range(late))]


@pytest.mark.parametrize(
    ("begun", "late", "valid", "reason"),
    [
        (200, 0, True, "all arrivals begun"),
        (191, 9, True, "95.5 %"),
        (189, 11, False, "94.5 %"),
    ],
)
def test_gt_09_an_open_loop_must_begin_95_percent(begun: int, late: int, valid: bool, reason: str) -> None:
    loads = (AskedLoad(mode="open", rate=20.0),)
    summary = summarise(open_arrivals(begun, late), make.facts(loads=loads))
    assert (summary.invalid == ()) is valid, reason
    assert summary.groups[0].rates["delivered_share"] == pytest.approx(begun / 200)
    assert summary.groups[0].rates["asked_rate"] == pytest.approx(20)


def test_a_trace_that_ran_out_is_an_undelivered_load() -> None:
    loads = (AskedLoad(mode="open", rate=40.0),)
    assert summarise(open_arrivals(380, 0), make.facts(loads=loads)).invalid == (), "Poisson scatters"
    short = summarise(open_arrivals(200, 0), make.facts(loads=loads))
    assert any("200 arrivals were due where the rate makes 400" in reason for reason in short.invalid)


def test_what_could_not_be_due_is_not_asked() -> None:
    rest = [make.skipped(Reason.AFTER_FAILURE), make.skipped(Reason.RUN_END, turn=3), make.skipped(Reason.TOO_LONG)]
    group = whole([*open_arrivals(20, 0), *rest], loads=(AskedLoad(mode="open"),))
    assert group.rates["asked_rate"] == pytest.approx(2.0)
    assert group.rates["delivered_share"] == 1.0


def test_a_dead_target_is_no_undelivered_load() -> None:
    dead = [make.failed(at, at + 0.1, ErrorClass.CONNECT) for at in range(0, 10_000, 500)]
    summary = summarise(dead, make.facts(loads=(AskedLoad(mode="closed", users=8),)))
    assert summary.invalid == ()


def one_user(sessions_ms: list[tuple[float, float, bool]]) -> list[TurnRecord]:
    """A closed-loop user's sessions: (begin, end, whether it succeeded)."""
    return [
        make.streamed(begin, [begin + 1, end]) if ok else make.failed(begin, end, ErrorClass.CONNECT)
        for begin, end, ok in sessions_ms
    ]


def outage(pause_ms: float) -> list[tuple[float, float, bool]]:
    """A user's life: the server is gone from second 3 to second 7, and each refused user pauses."""
    life = [(at, at + 999.0, True) for at in range(0, 3000, 1000)]
    at = 3000.0
    while at < 7000:
        life.append((at, at + 1, False))
        at += 1 + pause_ms
    while at < 10_000:
        life.append((at, min(at + 999, 10_000.0), True))
        at += 1000
    return life


@pytest.mark.parametrize("pause_ms", [100, 250, 1000])
def test_an_outage_of_the_server_is_no_undelivered_load(pause_ms: int) -> None:
    """A user whose request was refused waits before the next session: the target was gone, not the user."""
    records = [turn for _ in range(4) for turn in one_user(outage(pause_ms))]
    summary = summarise(records, make.facts(loads=(AskedLoad(mode="closed", users=4),)))
    assert summary.invalid == ()
    assert 0.97 <= summary.groups[0].rates["delivered_share"] <= 1.0  # type: ignore[operator]


def test_an_outage_until_the_end_is_no_undelivered_load() -> None:
    life = [(at, at + 999.0, True) for at in range(0, 5000, 1000)]
    life += [(at, at + 1.0, False) for at in range(5000, 10_000, 1250)]
    summary = summarise(
        [turn for _ in range(4) for turn in one_user(life)],
        make.facts(loads=(AskedLoad(mode="closed", users=4),)),
    )
    assert summary.invalid == ()


def test_retry_after_is_a_pause_that_the_server_asked_for() -> None:
    def life(retry_after_ns: int | None) -> list[TurnRecord]:
        refused = make.failed(2000, 2001, ErrorClass.RATE_LIMIT, retry_after_ns=retry_after_ns)
        return [make.streamed(0, [1, 2000]), refused, make.streamed(8000, [8001, 10_000])]

    loads = (AskedLoad(mode="closed", users=1),)
    assert summarise(life(6 * SECOND), make.facts(loads=loads)).invalid == ()
    assert any("not delivered" in reason for reason in summarise(life(None), make.facts(loads=loads)).invalid)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("reason", "users", "why"),
    [
        (Reason.RUN_END, 4.0, "the end of the load met all four in their think time: they were there until then"),
        (Reason.INTERRUPTED, 4.0, "so did Ctrl-C"),
        (Reason.AFTER_FAILURE, 0.4, "their sessions were over after a second: nobody thinks any more"),
    ],
)
def test_a_user_who_thinks_when_the_load_ends_was_alive(
    reason: Reason, users: float, why: str, backwards: bool
) -> None:
    records = []
    for name in ("a", "b", "c", "d"):
        records.append(make.streamed(0.0, [500.0, 1000.0], session_id=name, closed_ns=make.T0 + make.SECOND))
        records.append(make.skipped(reason, 60_000.0, session_id=name, turn=1))
    loads = (AskedLoad(mode="closed", users=4),)
    found = summarise(reversed(records) if backwards else records, make.facts(loads=loads))
    assert found.groups[0].rates["users"] == pytest.approx(users), why
    assert bool([reason for reason in found.invalid if "users" in reason]) == (users < 4), why


def test_users_that_are_gone_are_missed_also_when_others_fail() -> None:
    """What a failure excuses is its own pause: three of four users, two of whom see failures, are three."""
    records = [turn for _ in range(2) for turn in one_user(outage(250))]
    records += one_user([(at, at + 999.0, True) for at in range(0, 10_000, 1000)])
    found = summarise(records, make.facts(loads=(AskedLoad(mode="closed", users=4),)))
    assert any("3.0 of 4 users" in reason for reason in found.invalid)


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 3000), st.booleans()), max_size=30))
def test_pauses_never_make_more_users_than_sessions_that_ended(parts: list[tuple[int, int, bool]]) -> None:
    records = one_user([(begin, begin + length, ok) for begin, length, ok in parts])
    group = summarise(records, make.facts(loads=(AskedLoad(mode="closed", users=100),))).groups[0]
    share = group.rates["delivered_share"]
    assert share is None or 0 <= share * 100 <= len(parts) + 1e-9


@pytest.mark.parametrize(
    ("wide", "valid", "reason"),
    [(2, True, "two prove nothing"), (3, True, "1 % of 300 is allowed"), (4, False, "more than 1 %")],
)
def test_di_08_doubtful_first_tokens_make_a_run_client_bound(wide: int, valid: bool, reason: str) -> None:
    records = [*make.many(300 - wide, first_token_slack_ns=MS), *make.many(wide, first_token_slack_ns=MS + 1)]
    found = [text for text in summarise(records, make.facts()).invalid if "client-bound" in text]
    assert (not found) is valid, reason


def test_di_09_stepped_clocks() -> None:
    once = summarise([*make.many(300), *make.many(1, clock_step=True)], make.facts())
    assert once.invalid == () and any("clock was stepped" in warning for warning in once.warnings)
    often = summarise([*make.many(300), *make.many(5, clock_step=True)], make.facts())
    assert any("clock was stepped during 5 of 305" in reason for reason in often.invalid)
    assert not any("clock" in warning for warning in often.warnings)


def test_hc_06_exhausted_clients_are_invalid() -> None:
    records = [*make.many(50), make.failed(0, 1, ErrorClass.CLIENT_RESOURCE)]
    assert any("ulimit -n" in reason for reason in summarise(records, make.facts()).invalid)


def test_a_window_without_turns_is_invalid() -> None:
    assert any("no turn was due" in reason for reason in summarise([], make.facts()).invalid)


def test_a_window_without_turns_names_what_became_of_the_turns() -> None:
    """Every prompt was over the context limit: the trace was used up before the steady window."""
    early: dict[str, Any] = {"phase": Phase.WARMUP}
    refused = [make.failed(-900, -899, ErrorClass.CONTEXT_LENGTH, **early) for _ in range(12)]
    skips = [make.skipped(Reason.AFTER_FAILURE, -900, turn=1, **early) for _ in range(3)]
    reasons = summarise([*refused, *skips], make.facts()).invalid
    assert reasons == (
        "no turn was due in the steady window: of the 15 turns of the run 15 did not succeed (failed: context_length "
        "12, skipped: after_failure 3)",
    )


RAMP = "ramp of 1.0 s (load.ramp)"


@pytest.mark.parametrize(
    ("steady", "failed", "facts", "said"),
    [
        (
            False, 0, {"settling": RAMP, "counted": True},
            f"no steady window was reached: the run ended within its {RAMP}; play more sessions (run.stop), or shorten "
            "the ramp",
        ),
        (
            False, 0, {"settling": "warm-up of 30 s (load.warmup)"},
            "no steady window was reached: the run ended within its warm-up of 30 s (load.warmup); lengthen "
            "run.duration or the trace, or shorten the warm-up",
        ),
        (
            False, 0, {},
            "no steady window was reached: the run ended within its warm-up; lengthen run.duration or the trace, or "
            "shorten the warm-up",
        ),
        (
            True, 3, {"settling": RAMP, "counted": True},
            f"no turn was due in the steady window, which begins after a {RAMP}; play more sessions (run.stop), or "
            "shorten the ramp",
        ),
        (
            True, 12, {"settling": RAMP, "counted": True},
            "no turn was due in the steady window: of the 24 turns of the run 12 did not succeed (failed: no_output "
            "12)",
        ),
        (
            True, 0, {},
            "no turn was due in the steady window; check the trace's length, the rate and the warm-up",
        ),
    ],
    ids=["all within the ramp", "by time", "a run of old", "few failed, and are not why", "half failed", "not known"],
)  # fmt: skip
def test_a_run_that_measured_nothing_names_what_it_ended_in(
    steady: bool, failed: int, facts: dict[str, Any], said: str
) -> None:
    early: dict[str, Any] = {"phase": Phase.WARMUP}
    turns = [make.failed(-900, -899, ErrorClass.NO_OUTPUT, **early) for _ in range(failed)]
    turns += [make.streamed(-800, [-790, -780], **early) for _ in range(24 - failed)]
    facts = facts if steady else {**facts, "steady": ()}
    assert summarise(turns, make.facts(**facts)).invalid == (said,)


def test_a_steady_phase_in_which_all_was_too_long_says_so() -> None:
    summary = summarise([make.skipped(Reason.TOO_LONG) for _ in range(7)], make.facts())
    assert any("none of the 7 turns that were due in the steady" in text for text in summary.warnings)
    assert any("skipped: too_long 7" in text for text in summary.warnings)
    assert not any("no turn was due" in text for text in summary.invalid)


def talks(count: int, too_long: int) -> list[TurnRecord]:
    """Sessions of one turn each, over all of the steady window; the last ones were over the context limit."""
    return [
        make.skipped(Reason.TOO_LONG, due_ms=number, session_id=f"s{number}")
        if number >= count - too_long
        else make.streamed(number, [number + 5, number + 6], session_id=f"s{number}")
        for number in range(count)
    ]


@pytest.mark.parametrize("mode", ["closed", "open"])
@pytest.mark.parametrize(
    ("count", "too_long", "said"),
    [
        (40, 40, "each of the 40 turns was over the context limit of 4,096 tokens"),
        (40, 30, "30 of 40 turns were over the context limit of 4,096 tokens"),
        (40, 2, None),
    ],
)
def test_load_that_was_too_long_is_not_told_to_warm_up(mode: str, count: int, too_long: int, said: str | None) -> None:
    account = TraceAccount(
        scenario="talk",
        trace="t",
        format="f",
        sha256=None,
        rows=40,
        skipped={},
        sessions=40,
        sessions_started=count - too_long,
        not_started=too_long,
        repeat_factor=0.0,
        context_limit=4096,
    )
    asked = {"users": 8} if mode == "closed" else {"rate": 1.0, "arrivals": count}
    load = AskedLoad(stage=make.STEADY.stage, mode=mode, scenarios=(), **asked)  # type: ignore[arg-type]
    summary = summarise(talks(count, too_long), make.facts(loads=(load,), traces=(account,)))
    reasons = [reason for reason in summary.invalid if reason.startswith("load not delivered")]
    assert len(reasons) == 1 or (mode, said) == ("open", None), summary.invalid
    assert any(said in reason and "clip" in reason for reason in reasons) if said else "too_long" not in str(reasons)
    assert not said or not any("warm-up" in reason or "add workers" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("steady", "records", "said"),
    [
        ((), [make.streamed(-900, [-800], phase=Phase.WARMUP)], "interrupted in its warm-up"),
        ((make.STEADY,), [], "interrupted before any turn was due"),
    ],
)
def test_an_interrupted_run_is_not_told_to_change_its_plan(
    steady: tuple[SteadyWindow, ...], records: list[TurnRecord], said: str
) -> None:
    summary = summarise(records, make.facts(steady=steady, interrupted=True))
    assert len(summary.invalid) == 1 and said in summary.invalid[0]
    assert not any(word in text for text in (*summary.invalid, *summary.warnings) for word in ("lengthen", "longer"))


def test_times_that_contradict_one_another_are_missing_and_told() -> None:
    backwards = make.streamed(500, [400, 450])  # the first token before its request
    summary = summarise([*make.many(5), backwards], make.facts())
    ttft = summary.groups[0].distributions["ttft"]
    assert (ttft.n, ttft.missing) == (5, 1)
    assert any("1 turns have times that contradict" in warning for warning in summary.warnings)
    assert not any("contradict" in warning for warning in summarise(make.many(5), make.facts()).warnings)


def test_what_the_master_saw_comes_first() -> None:
    facts = make.facts(invalid=("the disk was full",), warnings=("started dirty",))
    summary = summarise(make.many(3), facts)
    assert summary.invalid[0] == "the disk was full"
    assert summary.warnings[0] == "started dirty"


def test_tr_12_repeated_traces_are_warned_of() -> None:
    account = TraceAccount(
        scenario="chat",
        trace="rows.jsonl",
        format="messages",
        sha256=None,
        rows=10,
        sessions=10,
        sessions_started=1000,
        not_started=0,
        skipped={},
        repeat_factor=100.0,
    )
    assert any("100.0 times" in warning for warning in summarise(make.many(3), make.facts(traces=(account,))).warnings)


def test_facts_are_plain_values() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FACTS), type=RunFacts) == FACTS
