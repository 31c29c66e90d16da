"""However a run is split over workers, its merged counts are the same; only that makes figures of fleets comparable."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_turns import T0, turns
from siege import Siege, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.metrics.histogram import Histogram
from infersiege.metrics.merging import COUNTS, DISTRIBUTIONS, WindowSums
from infersiege.metrics.windows import windows
from infersiege.records import Outcome, Phase, Report, TurnRecord, WindowRow
from infersiege.swarm.figures import OVER_NS, LiveFigures
from infersiege.telemetry.live import WindowPoints

SECOND = 1_000_000_000


def test_every_count_and_distribution_of_a_row_is_merged() -> None:
    """A field that is added to WindowRow has to be added up, too."""
    other = {"second", "scenario", "channel", "stage", "phase", "good", "errors"}
    assert {*COUNTS, *DISTRIBUTIONS} | other == set(WindowRow.__struct_fields__)
    assert not {*COUNTS} & {*DISTRIBUTIONS}


def row_at(second: int, **values: Any) -> WindowRow:
    return WindowRow(second=second, scenario="a", channel="b", stage="c", phase=Phase.STEADY, **values)


def merged(parts: Sequence[Sequence[WindowRow]]) -> list[WindowRow]:
    sums = WindowSums()
    for part in parts:
        sums.add(part)
    return sums.take()


def at_work(rows: Sequence[WindowRow]) -> list[WindowRow]:
    """Rows without the seconds in which nothing but waiting happened, and in the order of their keys."""
    kept = [row for row in rows if _without_key(row) != _without_key(row_at(0))]
    return sorted(kept, key=lambda row: (row.second, row.scenario, row.channel, row.stage, row.phase))


def _without_key(row: WindowRow) -> WindowRow:
    return msgspec.structs.replace(row, second=0, scenario="", channel="", stage="", phase=Phase.STEADY, good=None)


def shares(records: Sequence[TurnRecord], owner: Sequence[int], workers: int) -> list[list[TurnRecord]]:
    """Whole sessions: each is one worker's."""
    sessions = {
        name: owner[number % len(owner)] for number, name in enumerate(dict.fromkeys(r.session_id for r in records))
    }
    return [[r for r in records if sessions[r.session_id] == worker] for worker in range(workers)]


OWNERS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@given(st.lists(turns(), max_size=40), OWNERS)
def test_four_workers_count_what_one_would(records: list[TurnRecord], owner: list[int]) -> None:
    one = merged([windows(records)])
    four = merged([windows(share) for share in shares(records, owner, 4)])
    assert at_work(four) == at_work(one)


@given(st.lists(turns(), max_size=30), st.lists(st.integers(0, 29), max_size=6))
def test_cutting_the_records_of_a_worker_into_reports_changes_no_count(
    records: list[TurnRecord], cuts: list[int]
) -> None:
    """Users and turns in flight are gauges of whole sessions, and of no report: they are told apart from counts."""
    bounds = [0, *sorted(cuts), len(records)]
    parts = [windows(records[begin:end]) for begin, end in pairwise(bounds)]

    def counted(rows: list[WindowRow]) -> list[WindowRow]:
        return at_work([msgspec.structs.replace(row, in_flight=0, users=0) for row in rows])

    assert counted(merged(parts)) == counted(merged([windows(records)]))


@given(st.lists(st.lists(turns(), max_size=10), max_size=5), st.randoms())
def test_order_and_grouping_do_not_matter(parts: list[list[TurnRecord]], rng: Random) -> None:
    rows = [windows(part) for part in parts]
    shuffled = list(rows)
    rng.shuffle(shuffled)
    assert merged(shuffled) == merged(rows)
    assert merged([merged(rows[:2]), merged(rows[2:])]) == merged(rows)
    assert merged([*rows, []]) == merged(rows), "nothing is neutral"


def test_sums_are_given_once() -> None:
    sums = WindowSums()
    assert sums.take() == []
    row = row_at(7, due=1)
    sums.add([row, row])
    assert sums.take() == [msgspec.structs.replace(row, due=2)]
    assert sums.take() == []


@pytest.mark.parametrize(
    ("parts", "good"),
    [
        ([None, None], None),  # no rule: nobody counts, and that is not 0
        ([None, 0], 0),
        ([2, None, 3], 5),
    ],
)
def test_good_turns_are_none_only_where_nobody_counts(parts: list[int | None], good: int | None) -> None:
    row = row_at(7)
    (found,) = merged([[msgspec.structs.replace(row, good=part) for part in parts]])
    assert found.good == good


# ------------------------------------------------------------------------------------------------------ live figures


def report(worker: str, rows: Sequence[WindowRow], **gauges: int) -> Report:
    values: dict[str, Any] = {"sessions": 0, "in_flight": 0, "planned_turns": 0, "closed_turns": 0} | gauges
    return Report(worker=worker, sequence=1, windows=tuple(rows), health=None, open_turns=(), **values)


@given(st.lists(turns(), max_size=40), OWNERS)
def test_live_percentiles_do_not_depend_on_the_split(records: list[TurnRecord], owner: list[int]) -> None:
    one, four = LiveFigures(), LiveFigures()
    one.add(report("w", windows(records)), 0)
    for number, share in enumerate(shares(records, owner, 4)):
        four.add(report(f"w{number}", windows(share)), number)
    assert four.ttft_percentiles(SECOND) == one.ttft_percentiles(SECOND)
    assert (four.ok, four.failed, four.errors) == (one.ok, one.failed, one.errors)
    exact = Histogram.merged(Histogram.from_sparse(row.ttft) for row in windows(records))
    assert one.ttft_percentiles(SECOND)[0] == exact.percentile(0.5)


GAUGES = st.fixed_dictionaries({name: st.integers(0, 9) for name in ("sessions", "in_flight", "planned_turns")})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), GAUGES)), max_size=30))
def test_gauges_are_the_last_ones_of_workers_that_live(steps: list[tuple[str, dict[str, int] | None]]) -> None:
    """Sums are kept, not made anew: after any sequence of reports and deaths they must be those of the latest ones."""
    figures = LiveFigures()
    latest: dict[str, dict[str, int]] = {}
    for worker, gauges in steps:
        if gauges is None:
            figures.drop(worker)
            latest.pop(worker, None)
        else:
            figures.add(report(worker, (), **gauges), 0)
            latest[worker] = gauges
    for name in ("sessions", "in_flight", "planned_turns"):
        assert getattr(figures, name) == sum(gauges[name] for gauges in latest.values())


def test_what_came_longer_ago_is_forgotten_and_memory_does_not_grow() -> None:
    """DI-04: an hour of reports holds no more than ten seconds of them."""
    figures, held = LiveFigures(), []
    for second in range(3600):
        now_ns = second * SECOND
        row = row_at(second, ok=2, ttft={1000 + second % 50: 1, 2000: 1})
        figures.add(report("w", [row], chunks=second), now_ns)
        figures.rates(now_ns)
        figures.ttft_percentiles(now_ns)
        held.append(figures.held)
    assert max(held[60:]) <= max(held[:60])
    assert figures.ok == 7200
    assert figures.ttft_percentiles(3599 * SECOND + OVER_NS + 2 * SECOND) == (None, None)


def test_a_thousand_workers_cost_the_database_no_more_points_than_one() -> None:
    """What is written per second depends on scenarios and channels only."""
    row = row_at(T0 // SECOND, ok=1, ttft={1000: 1})
    points = WindowPoints("run", started_ns=T0, steady_ns=T0)
    points.add(merged([[row] for _ in range(1000)]))
    made = list(points.tick())
    assert len(made) == 4
    assert all(point.fields["ok"] == 1000 and point.fields["ttft_n_stage"] == 1000 for point in made)


# ------------------------------------------------------------------------------------------------------- real records


@pytest.mark.slow
def test_di_04_records_of_a_real_run_split_by_four_have_its_counts_and_percentiles(siege: Siege) -> None:
    with EmulatorProcess("--output-tokens", "12") as emulator:
        load = 'mode = "closed"\nusers = 16\nramp = "0s"\ndrain = "2s"'
        ran = siege.run(plan_text(emulator.base_url, load=load, run='duration = "3s"'), "--workers", "2")
    check_passed(ran)
    records = ran.turns
    assert len(records) > 100
    by_worker = [[turn for turn in records if turn.worker == name] for name in ("worker-1", "worker-2")]
    assert all(by_worker)
    one = at_work(merged([windows(records)]))
    assert at_work(merged([windows(share) for share in by_worker])) == one
    for step in range(1, 6):
        owner = [number * step * 7 % 4 for number in range(97)]
        parts = [windows(share) for share in shares(records, owner, 4)]
        assert at_work(merged(parts)) == one
        merged_ttft = Histogram.merged(Histogram.from_sparse(row.ttft) for part in parts for row in part)
        exact = sorted(t.first_token_ns - t.sent_ns for t in records
                       if t.outcome is Outcome.OK and t.first_token_ns and t.sent_ns)  # fmt: skip
        assert merged_ttft.n == len(exact)
        rank = -(-99 * len(exact) // 100)
        assert merged_ttft.percentile(0.99) == pytest.approx(exact[rank - 1], rel=0.01)
