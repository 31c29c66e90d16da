"""What the report's details rest on, held against a look at every turn; and how slow turns are drawn."""

from __future__ import annotations

import itertools
import random
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records_sample import MS, SECOND, START_NS, records

from infersiege.metrics.batch import batches
from infersiege.metrics.client import ClientWatch
from infersiege.metrics.definitions import METRICS
from infersiege.records import ClientHealth, EventRow, Outcome, Phase, TurnRecord
from infersiege.report.charts import Series
from infersiege.report.collect import collect
from infersiege.report.details import EXAMPLES, RANKED, SHORTEST, SLOWEST, Details, length_bounds
from infersiege.report.health_charts import WORKERS_AT_MOST, HealthSeries
from infersiege.report.slow_html import PHASES, WIDTH, slowest_html, spans_ms, timeline
from infersiege.report.slowest import candidates, keep
from infersiege.report.words import ENGLISH


def details_of(turns: list[TurnRecord]) -> Details:
    made = Details()
    for batch in batches(turns):
        made.add_batch(batch)
    return made


@pytest.fixture(scope="module")
def sample() -> list[TurnRecord]:
    return [
        msgspec.structs.replace(row, worker=f"w{place % 3}", server_ttft_ns=row.first_token_ns and 30 * MS)
        for place, row in enumerate(records(24, steady_s=120))
    ]


def shown(rows: list[TurnRecord]) -> list[TurnRecord]:
    return [row for row in rows if row.outcome is Outcome.OK and row.phase is Phase.STEADY]


def values(rows: list[TurnRecord], metric: str) -> list[int]:
    of = METRICS[metric].per_turn
    assert of is not None
    return [round(value) for row in rows if (value := of(row)) is not None]


# ------------------------------------------------------------------------------------------------------- collector


@pytest.mark.parametrize("metric", RANKED)
def test_the_slowest_are_the_slowest(sample: list[TurnRecord], metric: str) -> None:
    found = details_of(sample).slowest(metric)
    assert [one.value_ns for one in found] == sorted(values(shown(sample), metric), reverse=True)[:SLOWEST]
    by_id = {row.request_id: row for row in sample}
    for one in found:
        row = by_id[one.request_id]
        assert (one.worker, one.session_id, one.instants_ns[0]) == (row.worker, row.session_id, row.due_ns)
        assert one.ttft_ns == METRICS["ttft"].per_turn(row) and one.e2e_ns == METRICS["e2e"].per_turn(row)  # type: ignore[misc]


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12), max_size=5), st.integers(1, 4))
def test_the_largest_of_all_batches_are_kept(drawn: list[list[tuple[int, bool]]], most: int) -> None:
    """Many are as large as others: then what comes after the value decides, wherever the batches were cut."""
    heap: list[tuple[int, int]] = []
    every: list[tuple[int, int]] = []
    for batch in drawn:
        values = np.array([value for value, _ in batch], dtype=np.int64)
        named = [(value, len(every) + place) for place, (value, _) in enumerate(batch)]
        for place in candidates(values, np.array([told for _, told in batch], dtype=np.bool_), most).tolist():
            keep(heap, named[place], most)
        every += [one if told else (-1, one[1]) for one, (_, told) in zip(named, batch, strict=True)]
    assert sorted(heap, reverse=True) == sorted((one for one in every if one[0] >= 0), reverse=True)[:most]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_order_and_batches_do_not_matter(sample: list[TurnRecord], size: int) -> None:
    mixed = list(sample)
    random.Random(size).shuffle(mixed)
    made = Details()
    for batch in batches(mixed, size):
        made.add_batch(batch)
    whole = details_of(sample)
    assert [made.slowest(metric) for metric in RANKED] == [whole.slowest(metric) for metric in RANKED]
    assert {key: (row.n, row.ttft, row.tpot, row.e2e, row.output_mean) for key, row in made.by_length.items()} == {
        key: (row.n, row.ttft, row.tpot, row.e2e, row.output_mean) for key, row in whole.by_length.items()
    }
    assert made.server_ttft == whole.server_ttft and made.client_ttft == whole.client_ttft


def test_each_turn_is_in_the_bin_of_its_prompt(sample: list[TurnRecord]) -> None:
    found = details_of(sample).by_length
    assert len(found) >= 6
    for (scenario, place), row in found.items():
        low, high = length_bounds(place)
        inside = [
            one
            for one in shown(sample)
            if one.scenario == scenario and one.prompt_tokens is not None and low <= one.prompt_tokens < high
        ]
        assert row.n == len(inside) > 0
        for metric in ("ttft", "tpot", "e2e"):
            histogram = getattr(row, metric)
            expected = values(inside, metric)
            assert (histogram.n, histogram.min, histogram.max) == (len(expected), min(expected), max(expected))


@given(tokens=st.integers(0, 1 << 40))
def test_every_length_has_one_bin(tokens: int) -> None:
    row = msgspec.structs.replace(shown(records(1, steady_s=30))[0], prompt_tokens=tokens)
    ((_, place),) = details_of([row]).by_length
    low, high = length_bounds(place)
    assert low <= tokens < high and (high == SHORTEST or high == 2 * low)


def test_a_prompt_of_unknown_length_is_in_no_bin(sample: list[TurnRecord]) -> None:
    rows = [msgspec.structs.replace(row, prompt_tokens=None) for row in sample]
    assert details_of(rows).by_length == {}


def test_examples_differ_are_few_and_hold_no_key() -> None:
    row = next(one for one in records(24, steady_s=60) if one.outcome is Outcome.FAILED)
    rows = [msgspec.structs.replace(row, error_detail=f"503: try {place // 2}") for place in range(20)]
    rows.insert(0, msgspec.structs.replace(row, error_detail="401: bad key sk-abcdefghijklmnopqrstuvwxyz123456"))
    (found,) = details_of(rows).examples.values()
    assert len(found) == EXAMPLES == len({one.detail for one in found})
    assert "sk-abcdefghijklmnop" not in found[0].detail and found[0].detail.startswith("401")


def test_the_servers_ttft_and_the_clients_are_of_the_same_turns(sample: list[TurnRecord]) -> None:
    rows = [msgspec.structs.replace(row, server_ttft_ns=None) if place % 2 else row for place, row in enumerate(sample)]
    found = details_of(rows)
    told = [row for row in rows if row.outcome is Outcome.OK and row.server_ttft_ns is not None]
    assert sum(part.n for part in found.server_ttft.values()) == len(values(told, "ttft"))
    assert {second: part.n for second, part in found.server_ttft.items()} == {
        second: part.n for second, part in found.client_ttft.items()
    }
    assert details_of([msgspec.structs.replace(row, server_ttft_ns=None) for row in rows]).server_ttft == {}


# -------------------------------------------------------------------------------------------------------- timeline


def test_a_timeline_holds_all_of_a_turns_time(sample: list[TurnRecord]) -> None:
    for turn in details_of(sample).slowest("e2e"):
        spans = spans_ms(turn)
        due_ns, closed_ns = turn.instants_ns[0], turn.instants_ns[-1]
        assert due_ns is not None and closed_ns is not None
        assert spans[0][1] == 0 and spans[-1][2] == pytest.approx((closed_ns - due_ns) / 1e6)
        assert all(end == begin for (_, _, end), (_, begin, _) in itertools.pairwise(spans)), "no hole"
        assert [place for place, _, _ in spans] == sorted({place for place, _, _ in spans})


def test_what_is_not_known_is_no_phase(sample: list[TurnRecord]) -> None:
    turn = details_of(sample).slowest("e2e")[0]
    due_ns, *_, closed_ns = turn.instants_ns
    bare = turn._replace(instants_ns=(due_ns, None, None, None, None, None, None, closed_ns), connect_ns=None)
    assert [PHASES[place][0] for place, _, _ in spans_ms(bare)] == ["tail"]
    back = turn._replace(instants_ns=(due_ns, due_ns - 5 if due_ns else None, *turn.instants_ns[2:]))
    assert all(end > begin >= 0 for _, begin, end in spans_ms(back)), "no bar of a negative width"


def test_bars_are_on_one_scale_and_in_words(sample: list[TurnRecord]) -> None:
    details = details_of(sample)
    turns = details.slowest("ttft")
    longest = max(end for turn in turns for _, _, end in spans_ms(turn))
    for turn in turns:
        drawn = timeline(turn, longest, ENGLISH)
        ends = [
            float(x) + float(width)
            for x, width in re.findall(r'x="([\d.]+)" y="2" height="12" width="([\d.]+)"', drawn)
        ]
        assert max(ends) <= WIDTH + 1
        assert drawn.count("<rect") == len(spans_ms(turn)) and "first → last token" in drawn
    page = slowest_html(details, START_NS, ENGLISH)
    assert page.count("<table>") == 2 and page.count('role="img"') == 2 * SLOWEST
    assert slowest_html(Details(), START_NS, ENGLISH).startswith("<p")


# ---------------------------------------------------------------------------------------------------- health charts


def series_of(rows: list[TurnRecord], workers: int, events: tuple[EventRow, ...] = ()) -> HealthSeries:
    watch = ClientWatch()
    details = Details(clients=watch)
    for batch in batches(rows):
        watch.add_batch(batch)
        details.add_batch(batch)
    health = (
        ClientHealth(
            second=START_NS // SECOND + second, worker=f"w{worker}", cpu_share=0.1 * (worker + 1),
            hub_lag_max_ns=(worker + 1) * MS, gc_pause_max_ns=0, rss_bytes=None, open_files=None,
        )
        for second in range(120)
        for worker in range(workers)
    )  # fmt: skip
    assert sum(1 for _ in details.watching(health)) == 120 * workers, "the rows go on to whoever judges them"
    return HealthSeries(details, Series((), collect(rows), (), START_NS), events)


def test_each_worker_has_its_line_and_events_their_mark(sample: list[TurnRecord]) -> None:
    events = tuple(
        EventRow(at_ns=START_NS + at * SECOND, kind=kind, detail="x", worker="w1")
        for at, kind in ((0, "stage_started"), (30, "steady_started"), (60, "worker_lost"))
    )
    charts = {chart.key: chart for chart in series_of(sample, 3, events).charts()}
    assert set(charts) == {"client-lag", "client-cpu", "client-lateness", "client-slack", "client-coalesced"}
    for chart in charts.values():
        assert chart.figure is not None
        data = {trace["name"]: trace for trace in chart.figure["data"]}
        assert {"w0", "w1", "w2"} <= set(data) and data["events"]["x"] == [60.0], "what every run has is no mark"
    lag, cpu = charts["client-lag"], charts["client-cpu"]
    assert lag.figure is not None and {1.0, None} >= set(lag.figure["data"][0]["y"]) > {None}
    assert "3.00 ms, w2" in lag.words and "30.0 %, w2" in cpu.words


def test_many_workers_are_the_worst_and_the_middle_one(sample: list[TurnRecord]) -> None:
    n = WORKERS_AT_MOST + 1
    lag = series_of(sample, n).lag()
    assert lag is not None and lag.figure is not None
    worst, middle = lag.figure["data"][:2]
    assert max(filter(None, worst["y"])) == n and max(filter(None, middle["y"])) == n // 2 + 1
    assert len(lag.figure["data"]) <= 3


def test_nothing_is_drawn_of_nobody() -> None:
    assert HealthSeries(Details(), Series((), collect([]), (), START_NS)).charts() == []
