"""Seconds of a run as points: whatever the workers, their order and their number, the database ends up the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable

import metrics_turns as make
import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents.points import Point
from test_telemetry_points import check

from infersiege.metrics.facts import RequestLimit
from infersiege.metrics.histogram import Histogram, percentiles
from infersiege.metrics.summary import summarise
from infersiege.metrics.turn import was_asked
from infersiege.metrics.windows import windows
from infersiege.plan.load_schema import Load, Stage
from infersiege.plan.schema import Channel, Plan, Run, Workload
from infersiege.plan.streams import Stream, streams_of
from infersiege.records import ErrorClass, Outcome, Phase, Report, TurnRecord, WindowRow
from infersiege.telemetry.live import COUNTS, KEPT_S, LiveGauges, WindowPoints, asked, exact_points

RUN = "a-run"
SECOND0 = make.T0 // make.SECOND
LIMITS = (RequestLimit(metric="ttft", at_most=500.0),)
Key = tuple[str, tuple[tuple[str, str], ...], int]
Table = dict[Key, dict[str, float | int | str | None]]


def live_points(**changes: int) -> WindowPoints:
    return WindowPoints(RUN, **({"started_ns": make.T0, "steady_ns": make.T0} | changes))


def database(points: Iterable[Point], table: Table | None = None) -> Table:
    """What InfluxDB keeps: the fields of points with the same tags and instant merge, the later one wins."""
    kept: Table = {} if table is None else table
    for point in points:
        check(point)
        key = (point.measurement, tuple(sorted(point.tags.items())), point.at_ns)
        fields = {name: value for name, value in point.fields.items() if value is not None}
        kept.setdefault(key, {}).update(fields)
    return kept


def counts_only(table: Table) -> Table:
    names = {*COUNTS, "good", "count", "since_steady"}
    return {key: {name: value for name, value in fields.items() if name in names} for key, fields in table.items()}


def of(table: Table, measurement: str = "infersiege_window", **tags: str) -> dict[int, dict[str, float]]:
    """Second -> fields of one series; `all` unless a tag says otherwise, stage s1 and phase steady."""
    wanted = {"run": RUN, "scenario": "all", "channel": "all", "stage": "s1", "phase": "steady"} | tags
    return {
        at_ns // make.SECOND - SECOND0: {name: float(value) for name, value in fields.items() if value is not None}
        for (name_, key, at_ns), fields in sorted(table.items())
        if name_ == measurement and dict(key) == wanted
    }


def total(table: Table, field: str, **tags: str) -> float:
    """The sum of a count over all seconds and phases of one cut."""
    phases = [of(table, phase=phase.value, **tags) for phase in Phase]
    return sum(second.get(field, 0.0) for phase_ in phases for second in phase_.values())


# ------------------------------------------------------------------------------------------------ order and splitting


@given(
    st.lists(make.turns(), max_size=15),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_ig_03_workers_order_and_ticks_make_no_difference(
    records: list[TurnRecord], random_: random.Random, workers: int, ticks: int
) -> None:
    """Turns of several workers, reported in any order with ticks in between, end as those of one do."""
    whole = live_points()
    whole.add(windows(records, limits=LIMITS))
    once = database(whole.tick())

    shuffled = list(records)
    random_.shuffle(shuffled)
    shares = [windows(shuffled[place::workers], limits=LIMITS) for place in range(workers)]
    rows = [row for share in shares for row in share]
    random_.shuffle(rows)
    split, table = live_points(), Table()
    for _ in range(ticks):
        cut = random_.randrange(len(rows) + 1)
        split.add(rows[:cut])
        rows = rows[cut:]
        database(split.tick(), table)
    split.add(rows)
    database(split.tick(), table)
    assert counts_only(table) == counts_only(once)
    if not ticks:
        assert table == once, "the percentiles too"
    assert list(split.tick()) == [], "nothing changed since"


@given(st.lists(make.turns(), max_size=20))
def test_every_turn_is_counted_once_in_every_cut(records: list[TurnRecord]) -> None:
    live = live_points()
    live.add(windows(records, limits=LIMITS))
    table = database(live.tick())
    for cut in ({}, {"scenario": "chat"}, {"channel": "cloud"}, {"scenario": "agent", "channel": "local"}):
        mine = [turn for turn in records if all(getattr(turn, name) == value for name, value in cut.items())]
        assert total(table, "due", **cut) == sum(was_asked(turn) for turn in mine)
        for outcome in (Outcome.OK, Outcome.FAILED, Outcome.CANCELLED, Outcome.SKIPPED):
            assert total(table, outcome.value, **cut) == sum(turn.outcome is outcome for turn in mine)
        assert total(table, "chunks", **cut) == sum(turn.chunks for turn in mine)
    failed = Counter(str(turn.error_class) for turn in records if turn.outcome is Outcome.FAILED)
    for name in ErrorClass:
        found = sum(
            second["count"]
            for phase in Phase
            for second in of(table, "infersiege_error", error_class=str(name), phase=phase.value).values()
        )
        assert found == failed[str(name)]


@given(st.lists(make.turns(), max_size=20))
def test_tokens_of_the_seconds_are_those_of_the_turns(records: list[TurnRecord]) -> None:
    """Spread over chunks in whole tokens, none is lost to rounding."""
    rows = windows(records)
    told = sum((turn.chunks if turn.output_tokens is None else turn.output_tokens) for turn in records)
    assert sum(row.tokens for row in rows) == told


@given(st.dictionaries(st.integers(0, 3000), st.integers(1, 50), max_size=30), st.lists(st.floats(0, 1), max_size=5))
def test_percentiles_of_counts_are_the_histograms(counts: dict[int, int], shares: list[float]) -> None:
    histogram = Histogram.from_sparse(counts)
    assert percentiles(counts, shares) == [histogram.percentile(share) for share in shares]


# ------------------------------------------------------------------------------------------------------- percentiles


def test_ig_12_the_panels_percentile_is_the_summarys() -> None:
    """1,000 known values in reports of three workers: no mean of percentiles, and the n stands beside them."""
    draw = random.Random(12)
    turns = [
        make.streamed(at, [at + wait, at + wait + 30, at + wait + 100])
        for at, wait in ((draw.uniform(0, 8000), draw.lognormvariate(4.5, 0.7)) for _ in range(1000))
    ]
    live, table = live_points(), Table()
    for place in range(3):
        live.add(windows(turns[place::3]))
        database(live.tick(), table)
    database(exact_points(RUN, windows(turns), started_ns=make.T0, steady_ns=make.T0, written=live.written), table)
    whole = summarise(turns, make.facts()).groups[0]
    last = list(of(table).values())[-1]
    for metric in ("ttft", "tpot", "e2e", "lateness"):
        found = whole.distributions[metric]
        assert last[f"{metric}_n_stage"] == last[f"{metric}_n_60s"] == found.n == 1000
        for stat in ("p50", "p95", "p99"):
            assert last[f"{metric}_{stat}_stage_ms"] == pytest.approx(getattr(found, stat), rel=0.01, abs=1e-6)
            assert last[f"{metric}_{stat}_60s_ms"] == last[f"{metric}_{stat}_stage_ms"], "the run took 10 s"


@given(st.lists(make.turns(), min_size=1, max_size=40))
def test_the_last_percentile_to_date_is_that_of_all_steady_turns(records: list[TurnRecord]) -> None:
    table = database(exact_points(RUN, windows(records), started_ns=make.T0, steady_ns=make.T0))
    whole = summarise(records, make.facts()).groups[0]
    seconds = of(table)
    last = seconds[max(seconds)] if seconds else {}
    for metric in ("ttft", "e2e", "lateness"):
        found = whole.distributions[metric]
        assert last.get(f"{metric}_n_stage", 0) == found.n
        for stat in ("p50", "p95", "p99"):
            expected, seen = getattr(found, stat), last.get(f"{metric}_{stat}_stage_ms")
            if expected is None:
                assert seen is None
            else:
                assert seen == pytest.approx(expected, rel=0.01, abs=1e-6)


def test_percentiles_forget_what_is_older_than_a_minute() -> None:
    """First 120 turns of 100 ms, then, 70 s later, 120 turns of 300 ms."""
    turns = make.many(120, 100.0, spread_ms=1000) + [
        make.streamed(at, [at + 300, at + 400]) for at in range(70_000, 71_200, 10)
    ]
    table = database(exact_points(RUN, windows(turns), started_ns=make.T0, steady_ns=make.T0))
    seconds = of(table)
    assert seconds[1]["ttft_p50_60s_ms"] == pytest.approx(100, rel=0.01)
    last = seconds[max(seconds)]
    assert (last["ttft_n_60s"], last["ttft_n_stage"]) == (120, 240)
    assert last["ttft_p50_60s_ms"] == pytest.approx(300, rel=0.01)
    assert last["ttft_p50_stage_ms"] == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    ("n", "cancelled", "known", "reason"),
    [
        (99, 0, {"p50", "p95"}, "p99 needs 100 values"),
        (100, 0, {"p50", "p95", "p99"}, "100 are enough"),
        (1, 0, {"p50", "p95"}, "one value is its own median"),
        (200, 3, {"p50", "p95"}, "more than 1 % were cut: the slowest may be among them"),
        (200, 30, {"p50"}, "more than 5 % were cut"),
    ],
)
def test_percentiles_have_floors(n: int, cancelled: int, known: set[str], reason: str) -> None:
    turns = make.many(n) + [make.streamed(0, [9000], outcome=Outcome.CANCELLED) for _ in range(cancelled)]
    table = database(exact_points(RUN, windows(turns), started_ns=make.T0, steady_ns=make.T0))
    seconds = of(table)
    last = seconds[max(seconds)]
    assert {stat for stat in ("p50", "p95", "p99") if f"ttft_{stat}_stage_ms" in last} == known, reason
    assert last["ttft_n_stage"] == n
    if cancelled:
        assert ("lateness_p99_stage_ms" in last) == (n >= 100), "cutting an answer hides no lateness"


def test_percentiles_are_on_the_newest_second_only_while_it_runs() -> None:
    """A panel takes the last one; older seconds keep what was known in them."""
    live = live_points()
    live.add(windows(make.many(30, spread_ms=3000)))
    with_percentiles = [
        point.at_ns // make.SECOND - SECOND0
        for point in live.tick()
        if "ttft_n_stage" in point.fields and point.tags["scenario"] == "all" and point.tags["channel"] == "all"
    ]
    assert with_percentiles == [3]


# ------------------------------------------------------------------------------------------------------ late and long


def row_at(second: int, **changes: object) -> WindowRow:
    base = {"second": SECOND0 + second, "scenario": "a", "channel": "c", "stage": "s1", "phase": Phase.STEADY}
    return WindowRow(**(base | changes))  # type: ignore[arg-type]


def test_a_turn_that_ends_late_changes_the_seconds_it_began_in() -> None:
    live, table = live_points(), Table()
    live.add([row_at(0, due=1, sent=1), row_at(30, ok=1)])
    database(live.tick(), table)
    live.add([row_at(0, due=1, sent=1), row_at(40, ok=1)])
    changed = list(live.tick())
    assert sorted({point.at_ns // make.SECOND - SECOND0 for point in changed}) == [0, 40], "and no other second"
    database(changed, table)
    assert of(table)[0]["due"] == 2


def test_what_comes_too_late_still_counts_to_date() -> None:
    """Its second is not in memory any more: writing it again would take away what it had."""
    live, table = live_points(), Table()
    live.add([row_at(0, ok=5, ttft={1000: 5})])
    database(live.tick(), table)
    live.add([row_at(KEPT_S + 5, ok=1, ttft={1000: 1})])
    live.add([row_at(0, ok=7, ttft={1000: 7})])
    database(live.tick(), table)
    seconds = of(table)
    assert seconds[0]["ok"] == 5
    assert seconds[KEPT_S + 5]["ttft_n_stage"] == 13


def test_memory_does_not_grow_with_the_length_of_a_run() -> None:
    live = live_points()
    held = []
    for second in range(4 * KEPT_S):
        live.add([row_at(second, due=1, ok=1, ttft={1000 + second % 50: 1})])
        assert all(check(point) for point in live.tick())
        held.append(live.held)
    assert max(held) <= 4 * (KEPT_S + 1)
    assert held[-1] == held[2 * KEPT_S]


@pytest.mark.parametrize("second", [-10_000, 10**9])
def test_a_row_of_another_time_is_left_out(second: int) -> None:
    """A damaged one: seconds are kept as a map over the length of the run."""
    live = live_points()
    live.add([row_at(second, ok=1)])
    assert list(live.tick()) == []


def test_a_second_of_waiting_is_not_written_while_the_run_goes_on() -> None:
    live = live_points()
    live.add(windows([make.streamed(0, [100, 9000])]))
    assert sorted({point.at_ns // make.SECOND - SECOND0 for point in live.tick()}) == [0, 9]


# -------------------------------------------------------------------------------------------------------- when over


def test_exact_seconds_know_who_was_alive() -> None:
    rows = windows([make.streamed(0, [100, 2500]), make.streamed(1000, [1100, 3100], scenario="agent")])
    seconds = of(database(exact_points(RUN, rows, started_ns=make.T0, steady_ns=make.T0)))
    assert [second["in_flight"] for second in seconds.values()] == [1, 2, 1, 0]
    assert [second["users"] for second in seconds.values()] == [1, 2, 1, 0]


def test_seconds_of_turns_that_were_lost_become_zeros() -> None:
    """A worker reported them and died before its records were home."""
    home = [make.streamed(0, [100])]
    lost = [make.failed(3000, 3500), make.streamed(5000, [5100], scenario="agent")]
    live, table = live_points(), Table()
    live.add(windows(home + lost))
    database(live.tick(), table)
    database(exact_points(RUN, windows(home), started_ns=make.T0, steady_ns=make.T0, written=live.written), table)
    seconds = of(table)
    assert (seconds[3]["failed"], seconds[5]["ok"], seconds[0]["ok"]) == (0, 0, 1)
    assert of(table, scenario="agent")[5]["ok"] == 0
    assert of(table, "infersiege_error", error_class="rate_limit")[3] == {"count": 0}
    assert total(table, "due") == 1


@given(st.lists(make.turns(), max_size=15), st.lists(make.turns(), max_size=5))
def test_exact_seconds_replace_all_that_live_had_written(home: list[TurnRecord], lost: list[TurnRecord]) -> None:
    live, table = live_points(), Table()
    live.add(windows(home + lost))
    database(live.tick(), table)
    alone = database(exact_points(RUN, windows(home), started_ns=make.T0, steady_ns=make.T0))
    database(exact_points(RUN, windows(home), started_ns=make.T0, steady_ns=make.T0, written=live.written), table)
    for key, fields in table.items():
        for name in (*COUNTS, "count", "in_flight", "users"):
            assert fields.get(name, 0) == alone.get(key, {}).get(name, 0), (key, name)


def test_ig_18_every_second_has_its_phase_and_its_distance_to_steady() -> None:
    """Two runs with warm-ups of 3 and 8 s: aligned by since_steady, their steady seconds lie on one another."""

    def steady_of(warmup_s: int) -> dict[float, float]:
        start_ns = make.T0 - warmup_s * make.SECOND
        turns = make.many(50)
        turns += [make.streamed(-at, [50 - at], phase=Phase.WARMUP) for at in range(100, warmup_s * 1000, 100)]
        live = WindowPoints(RUN, started_ns=start_ns, steady_ns=make.T0)
        live.add(windows(turns))
        table = database(live.tick())
        warmup = of(table, phase="warmup")
        assert min(second["since_steady"] for second in warmup.values()) == -warmup_s
        return {second["since_steady"]: second["due"] for second in of(table).values()}

    assert steady_of(3) == steady_of(8)
    assert min(steady_of(3)) == 0


# ------------------------------------------------------------------------------------------------------------- rates


@pytest.mark.parametrize("interval_s", [1, 10, 60])
def test_ig_13_counts_per_second_add_up_at_every_interval(interval_s: int) -> None:
    """Three workers of 10 req/s for a minute make 30 req/s, whatever the interval of the panel is."""
    live, table = live_points(), Table()
    for second in range(60):
        for _ in range(3):
            live.add([row_at(second, due=10, sent=10, ok=10)])
        database(live.tick(), table)
    seconds = of(table)
    for start in range(0, 60, interval_s):
        within = [seconds[second]["sent"] for second in range(start, start + interval_s)]
        assert sum(within) / interval_s == 30


def report(worker: str, **changes: object) -> Report:
    base: dict[str, object] = {
        "worker": worker,
        "sequence": 1,
        "windows": (),
        "health": None,
        "open_turns": (),
        "sessions": 4,
        "in_flight": 3,
        "planned_turns": 0,
        "closed_turns": 0,
    }
    return Report(**(base | changes))  # type: ignore[arg-type]


def test_ig_13_a_worker_that_comes_back_makes_no_spike() -> None:
    """Its counters begin at 0 again: what it did before stays counted once."""
    gauges = LiveGauges(RUN, streams(Load(mode="closed", users=8)))
    started, chunks = [], []

    def tick(at_s: int, alive: int) -> None:
        point = check(gauges.point(at_s * make.SECOND, elapsed_ns=at_s * make.SECOND, alive=alive, expected=2))
        started.append(point.fields["started"])
        chunks.append(point.fields["chunks"])

    for second in range(1, 4):
        for worker in ("w1", "w2"):
            gauges.add(report(worker, started_turns=10 * second, closed_turns=9 * second, chunks=100 * second))
        tick(second, 2)
    gauges.drop("w2")
    gauges.add(report("w1", started_turns=40, chunks=400))
    tick(4, 1)
    gauges.add(report("w1", started_turns=50, chunks=500))
    gauges.add(report("w2", started_turns=10, chunks=100))
    tick(5, 2)
    assert started == [20, 20, 20, 10, 20]
    assert chunks == [200, 200, 200, 100, 200]


def test_a_lost_worker_has_no_sessions() -> None:
    gauges = LiveGauges(RUN, streams(Load(mode="closed", users=8)))
    gauges.add(report("w1"))
    gauges.add(report("w2", windows=(row_at(0, failed=2),)))
    first = gauges.point(make.SECOND, elapsed_ns=0, alive=2, expected=2).fields
    gauges.drop("w2")
    second = gauges.point(2 * make.SECOND, elapsed_ns=0, alive=1, expected=2).fields
    assert (first["sessions"], first["in_flight"], first["failed"], first["interval"]) == (8, 6, 2, None)
    assert (second["sessions"], second["in_flight"], second["failed"], second["interval"]) == (4, 3, 0, 1.0)


def streams(load: Load, *beside: Load) -> tuple[Stream, ...]:
    """Those of a run of a minute: [load], and workloads with loads of their own."""
    own = tuple(Workload(scenario=f"s{place}", trace="builtin:short-qa", load=one) for place, one in enumerate(beside))
    return streams_of(
        Plan(
            run=Run(duration_ns=60 * make.SECOND),
            channels={"c": Channel(engine="vllm", model="m")},
            workloads=(Workload(scenario="s", trace="builtin:short-qa"), *own),
            load=load,
        )
    )


CLOSED = Load(mode="closed", users=10, ramp_ns=10 * make.SECOND)


STAGED = Load(
    stages=(Stage(users=2, duration_ns=10 * make.SECOND), Stage(users=4, duration_ns=20 * make.SECOND)),
)


@pytest.mark.parametrize(
    ("load", "elapsed_s", "expected", "reason"),
    [
        (CLOSED, -0.5, (0, None), "the first arrival is not due yet"),
        (CLOSED, 0.0, (1, None), "the first user starts at 0"),
        (CLOSED, 4.5, (5, None), "user 4 started at 4 s"),
        (CLOSED, 30.0, (10, None), "never more than all"),
        (CLOSED, None, (0, None), "the load has ended"),
        (Load(mode="closed", users=3, ramp_ns=0), 0.0, (3, None), "no ramp: all at once"),
        (Load(mode="open", rate=2.5), 7.0, (None, 2.5), "an open loop asks for a rate"),
        (Load(mode="open", rate=2.5), None, (None, 0.0), "and for nothing when it has ended"),
        (Load(mode="replay"), 7.0, (None, None), "a replay has no rate of its own"),
        (Load(mode="replay"), None, (None, None), "not at its end either"),
        (STAGED, 5.0, (2, None), "the first stage"),
        (STAGED, 10.0, (3, None), "the next stage's ramp begins with its first step"),
        (STAGED, 29.0, (4, None), "the next stage"),
        (STAGED, 31.0, (0, None), "after the last one"),
    ],
)
def test_what_the_plan_asks_for_at_a_moment(
    load: Load, elapsed_s: float | None, expected: tuple[int | None, float | None], reason: str
) -> None:
    elapsed_ns = None if elapsed_s is None else round(elapsed_s * make.SECOND)
    assert asked(streams(load), elapsed_ns) == expected, reason


def test_loads_side_by_side_are_asked_for_together() -> None:
    mixed = streams(Load(mode="closed", users=4, ramp_ns=0), Load(mode="open", rate=5.0), Load(mode="open", rate=2.0))
    assert asked(mixed, make.SECOND) == (4, 7.0)
    assert asked(mixed, None) == (0, 0.0)


# -------------------------------------------------------------------------------------------------------------- good


@pytest.mark.parametrize(
    ("turn", "good", "reason"),
    [
        (lambda: make.streamed(0, [400]), 1, "within the limit"),
        (lambda: make.streamed(0, [600]), 0, "above it"),
        (lambda: make.failed(0, 100), 0, "a failed turn is not good"),
        (lambda: make.streamed(0, [400], outcome=Outcome.CANCELLED), 0, "a cut one neither"),
        (lambda: make.streamed(0, [600], scenario="other"), None, "no rule is about this scenario"),
    ],
)
def test_good_turns(turn: Callable[[], TurnRecord], good: int | None, reason: str) -> None:
    limit = RequestLimit(metric="ttft", at_most=500.0, scenario="chat")
    rows = windows([turn()], limits=(limit,))
    assert {row.good is None for row in rows} == {good is None}, reason
    assert sum(row.good or 0 for row in rows) == (good or 0), reason


@given(st.lists(make.turns(), max_size=20))
def test_good_turns_of_the_seconds_are_goodput(records: list[TurnRecord]) -> None:
    whole = summarise(records, make.facts(limits=LIMITS)).groups[0]
    rows = [row for row in windows(records, limits=LIMITS) if row.phase is Phase.STEADY]
    goodput = whole.rates["goodput"]
    assert sum(row.good or 0 for row in rows) == round((goodput or 0.0) * 10)
    assert all(row.good is None for row in windows(records))


def test_a_metric_that_needs_a_stream_makes_no_unstreamed_turn_good() -> None:
    turns = [make.streamed(0, [400])]
    assert sum(row.good or 0 for row in windows(turns, limits=LIMITS, streamed={"local": False})) == 0
