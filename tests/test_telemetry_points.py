"""Rows of a run as points: every tag and field is in the one table, and the figures are summary.json's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import metrics_turns as make
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents import measurements
from infersiege_agents.points import Point, line_of
from records_sample import plan

from infersiege.metrics.facts import Cut, RunFacts, SteadyWindow
from infersiege.metrics.summary import summarise
from infersiege.metrics.windows import windows
from infersiege.plan.schema import Telemetry
from infersiege.records import (
    ClientHealth,
    ErrorClass,
    EventRow,
    Phase,
    StageResources,
    Summary,
    TurnRecord,
    Verdict,
)
from infersiege.report.collect import Collected
from infersiege.report.event_words import EVENT_WORDS
from infersiege.report.rebuild import Rebuilt, run_facts
from infersiege.rundir import ChannelFacts, PlanFile, StageFacts
from infersiege.telemetry.crossed import groups_of, pairs_of, uncounted
from infersiege.telemetry.live import WindowPoints, exact_points
from infersiege.telemetry.points import client_point, cut_points, event_point, run_points, start_point, tag_of
from infersiege.telemetry.publisher import Publisher

RUN = "20270115T080000Z-a-run-run-1"
STAGE = StageFacts(
    name="s1",
    started_ns=make.T0 - 5 * make.SECOND,
    steady_started_ns=make.T0,
    steady_ended_ns=make.T0 + 10 * make.SECOND,
    users=24,
)
CHANNELS = {
    "local": ChannelFacts(url="http://127.0.0.1:8000", engine="vllm", dialect="d", model="org/m 1", version="0.9"),
    "cloud": ChannelFacts(url="https://example.org", engine="openai", dialect="d", model="m,2", emulated=True),
}


def plan_file(**changes: Any) -> PlanFile:
    base: dict[str, Any] = {
        "run_id": "run-1",
        "name": "a run",
        "created_ns": make.T0 - 6 * make.SECOND,
        "started_ns": make.T0 - 5 * make.SECOND,
        "nonce": "n",
        "plan": msgspec.to_builtins(plan()),
        "channels": CHANNELS,
        "stages": (STAGE,),
    }
    return PlanFile(**(base | changes))


def some_turns() -> list[TurnRecord]:
    """Two scenarios on two channels, with failures, in three phases."""
    turns = make.many(150) + make.many(40, scenario="agent", channel="cloud", ttft_ms=333.0)
    turns += [make.failed(index * 10, index * 10 + 5, ErrorClass.OVERLOAD) for index in range(7)]
    turns += make.many(20, phase=Phase.WARMUP, due_ns=make.T0 - make.SECOND)
    return turns


def summary_of(turns: list[TurnRecord], **changes: Any) -> Summary:
    return msgspec.structs.replace(summarise(turns, make.facts()), **changes)


def check(point: Point) -> Point:
    """Held against the table: every tag is there and has a value, no field is unknown, its kind is right."""
    table = measurements.MEASUREMENTS[point.measurement]
    assert sorted(point.tags) == sorted(table.tags)
    assert all(point.tags.values()), point.tags
    unknown = point.fields.keys() - table.fields.keys()
    assert not unknown, unknown
    for name, value in point.fields.items():
        if value is not None:
            assert isinstance(value, str) == (table.fields[name].kind == "text"), (name, value)
    assert line_of(point)
    return point


def row(points: list[Point], **tags: str) -> Point:
    """The only point with these tags; the others are `all`."""
    wanted = {"scenario": "all", "channel": "all", "stage": "all"} | tags
    (found,) = [point for point in points if wanted.items() <= point.tags.items()]
    return found


def test_a_run_has_the_figures_of_its_summary_to_the_last_digit() -> None:
    summary = summary_of(some_turns(), verdict=Verdict.FAIL, exit_code=1, invalid=("one", "two"))
    points = [check(point) for point in run_points(plan_file(), summary)]
    assert len(summary.groups) == 5, "all, two scenarios, two channels"
    for group in summary.groups:
        fields = row(points, scenario=group.scenario or "all", channel=group.channel or "all").fields
        for metric in measurements.RUN_METRICS:
            found = group.distributions[metric]
            assert fields[f"{metric}_n"] == found.n
            for stat in measurements.RUN_STATS:
                assert fields[f"{metric}_{stat}_ms"] == getattr(found, stat)
        for name in measurements.RUN_RATES:
            assert fields[name] == group.rates[name]
        for name in ("started", "ok", "failed", "cancelled", "lost", "skipped"):
            assert fields[f"turns_{name}"] == getattr(group.counts, name)
        assert (fields["in_flight_mean"], fields["in_flight_max"]) == (group.in_flight_mean, group.in_flight_max)
        assert (fields["prompt_tokens"], fields["output_tokens"]) == (group.prompt_tokens, group.output_tokens)
        assert (fields["verdict"], fields["exit_code"], fields["invalid"]) == ("fail", 1, "one; two")
        assert (fields["state"], fields["ended_ms"]) == (1, summary.ended_ns / 1e6)


def test_every_figure_of_the_table_is_written() -> None:
    """A field that the table promises and nobody fills would be an empty panel."""
    resources = StageResources(stage="s1", limit="queue", limit_reason="30 requests waited")
    points = list(run_points(plan_file(), summary_of(some_turns(), resources=(resources,))))
    assert set(row(points).fields) == set(measurements.RUN.fields)
    exact = exact_points(RUN, windows(some_turns()), started_ns=make.T0, steady_ns=make.T0)
    assert {name for point in exact if point.measurement == "infersiege_window" for name in point.fields} == set(
        measurements.WINDOW.fields
    )


def test_the_row_of_a_run_that_goes_on_is_replaced_by_its_last_ones() -> None:
    """Same measurement, tags and instant: the database keeps one row."""
    first = check(start_point(plan_file()))
    last = row(list(run_points(plan_file(), summary_of(some_turns()))))
    assert (first.measurement, first.tags, first.at_ns) == (last.measurement, last.tags, last.at_ns)
    assert (first.fields["state"], last.fields["state"]) == (0, 1)
    assert not first.fields.keys() - last.fields.keys(), "nothing of the first row stays behind"


def test_a_run_is_described_without_secrets_and_split_by_channel() -> None:
    points = list(run_points(plan_file(), summary_of(some_turns())))
    whole, local = row(points).fields, row(points, channel="local").fields
    assert (whole["models"], whole["engines"]) == ("org/m 1, m,2", "vllm 0.9, openai")
    assert (local["models"], local["engines"]) == ("org/m 1", "vllm 0.9")
    assert whole["labels"] == "gpu=RTX 4090, quantization=awq"
    assert whole["run_key"] == points[0].tags["run"] == plan_file().run_key
    assert (whole["emulated"], local["emulated"]) == (0, 0)
    assert row(list(run_points(plan_file(), summary_of(some_turns(), emulated=True)))).fields["emulated"] == 1


def test_the_only_stage_has_a_row_of_its_own() -> None:
    """Tables of stages read runs with one stage and with several alike."""
    points = list(run_points(plan_file(), summary_of(some_turns())))
    assert row(points, stage="s1").fields == row(points).fields


def rebuilt(turns: list[TurnRecord]) -> Rebuilt:
    """As after a run of these turns."""
    file = plan_file()
    facts = run_facts(file, started_ns=STAGE.started_ns, ended_ns=STAGE.steady_ended_ns)
    return Rebuilt(
        summary=summarise(turns, facts),
        plan=file,
        windows=tuple(windows(turns)),
        collected=Collected(),
        events=(),
    )


def crossed_turns() -> list[TurnRecord]:
    """a on both channels, b on one of them; c only in the warm-up, on the other."""
    turns = make.many(30, scenario="a", channel="x") + make.many(20, scenario="a", channel="y", ttft_ms=250.0)
    turns += make.many(10, scenario="b", channel="x", ttft_ms=777.0)
    return turns + make.many(5, scenario="c", channel="y", phase=Phase.WARMUP, due_ns=make.T0 - make.SECOND)


def test_every_scenario_with_every_channel_has_a_row() -> None:
    """Dashboards offer both: no choice may find nothing, and none may find figures of other turns."""
    turns = crossed_turns()
    found = rebuilt(turns)
    pairs = pairs_of(found.windows)
    assert pairs == (("a", "x"), ("a", "y"), ("b", "x"), ("c", "y"))
    cuts = uncounted(found.summary, pairs)
    assert [(cut.scenario, cut.channel) for cut in cuts] == [("a", "x"), ("a", "y")], "the others are as their scenario"
    points = [check(point) for point in run_points(found.plan, found.summary, pairs=pairs)]
    points += [check(point) for point in cut_points(found.plan, found.summary, groups_of(turns, found, cuts))]
    tags = [tuple(point.tags[name] for name in ("scenario", "channel", "stage")) for point in points]
    assert len(tags) == len(set(tags)), "one row each"
    for scenario, channel in (*pairs, *((s, "all") for s in "abc"), ("all", "x"), ("all", "y"), ("all", "all")):
        fields = row(points, scenario=scenario, channel=channel).fields
        mine = [
            turn
            for turn in turns
            if turn.phase is Phase.STEADY and scenario in ("all", turn.scenario) and channel in ("all", turn.channel)
        ]
        assert fields["turns_ok"] == fields["ttft_n"] == len(mine), (scenario, channel)
    assert row(points, scenario="a", channel="y").fields["ttft_mean_ms"] == 250.0
    assert row(points, scenario="b", channel="x").fields["ttft_mean_ms"] == 777.0


def test_the_only_scenario_and_the_only_channel_are_the_run() -> None:
    """With its GPUs: nothing else ran on them."""
    turns = make.many(40, scenario="agent", channel="local")
    resources = StageResources(stage="s1", energy_j=12.5, limit="compute", limit_reason="SM active 0.97")
    found = rebuilt(turns)
    pairs = pairs_of(found.windows)
    assert [(group.scenario, group.channel) for group in found.summary.groups] == [(None, None), ("agent", None)]
    for groups, why in ((found.summary.groups, "a rule asks for agent"), (found.summary.groups[:1], "none does")):
        summary = msgspec.structs.replace(found.summary, resources=(resources,), groups=groups)
        assert uncounted(summary, pairs) == (), why
        points = [check(point) for point in run_points(found.plan, summary, pairs=pairs)]
        assert len(points) == 5, why
        for scenario in ("all", "agent"):
            for channel in ("all", "local"):
                fields = row(points, scenario=scenario, channel=channel).fields
                assert (fields["energy_j"], fields["turns_ok"], fields["ttft_p50_ms"]) == (12.5, 40, 100.0), why
                assert fields["models"] == ("org/m 1" if channel == "local" else "org/m 1, m,2"), why


@given(st.lists(make.turns(), max_size=20))
def test_figures_of_a_part_are_those_that_the_summary_would_have(records: list[TurnRecord]) -> None:
    found = rebuilt(records)
    known = [group for group in found.summary.groups if group.stage is None]
    again = groups_of(records, found, [Cut(scenario=one.scenario, channel=one.channel) for one in known])
    assert list(again) == known


class Steps:
    """A clock that goes on a little with each look at it, and counts the pauses."""

    def __init__(self, step_s: float) -> None:
        self.now = 0.0
        self.step_s = step_s
        self.pauses = 0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now

    def sleep(self, _seconds: float) -> None:
        self.pauses += 1


@pytest.mark.parametrize(("within_s", "told"), [(1e9, 0), (0.0, 2)])
def test_what_is_written_at_the_end_has_its_time_and_lets_others_run(
    within_s: float, told: int, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    """Two scenarios on two channels for minutes: thousands of points, in small pieces."""
    turns = [
        make.streamed(at * 100, [at * 100 + 40, at * 100 + 80], scenario=f"s{at % 2}", channel=f"c{at % 4 // 2}")
        for at in range(2400)
    ]
    found, clock = rebuilt(turns), Steps(0.001)
    telemetry = Telemetry(influx_url=f"http://127.0.0.1:{free_port()}", spool=str(tmp_path / "points"))
    made = msgspec.structs.replace(plan(), telemetry=telemetry)
    publisher = Publisher(made, {}, titles=EVENT_WORDS, clock=clock, sleep=clock.sleep)
    publisher.open()
    try:
        publisher.begin(found.plan)
        publisher.finish(found, lambda: turns, within_s=within_s)
    finally:
        account = publisher.close(0.0)
    assert account is not None and account.written == account.spooled > 10
    if told:
        assert ["no figures by scenario and channel" in publisher.warnings[0], len(publisher.warnings)] == [True, told]
        assert "InfluxDB has exact seconds up to" in publisher.warnings[1]
    else:
        assert publisher.warnings == []
        assert account.written > 240 * 9 and clock.pauses > 20


def test_a_database_that_takes_nothing_is_told_once_and_early(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """Not at the end of an hour's run, and not before it had its chance."""
    url = f"http://127.0.0.1:{free_port()}"
    made = msgspec.structs.replace(plan(), telemetry=Telemetry(influx_url=url, spool=str(tmp_path / "points")))
    now = [0.0]
    said: list[str] = []
    publisher = Publisher(made, {}, titles=EVENT_WORDS, clock=lambda: now[0])
    publisher.say = said.append
    publisher.open()
    try:
        publisher.begin(plan_file())
        deadline = time.monotonic() + 20
        while not publisher.away:
            assert time.monotonic() < deadline
            tick(publisher)
            time.sleep(0.05)
        tick(publisher)
        assert said == [], "2 s are not over"
        now[0] = 2.5
        tick(publisher)
        tick(publisher)
    finally:
        publisher.close(0.0)
    (line,) = said
    assert line.startswith(f"warning: InfluxDB {url} does not take points: ") and line.endswith("the run goes on")
    assert line.count(url) == 1


def tick(publisher: Publisher) -> None:
    publisher.tick(time.time_ns() + tick_number() * 2_000_000_000, elapsed_ns=1, alive=1, expected=1)


tick_number = itertools.count().__next__


def test_a_spool_that_cannot_be_used_is_told_with_its_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    telemetry = Telemetry(influx_url="http://127.0.0.1:9", spool=str(tmp_path / "file"))
    publisher = Publisher(msgspec.structs.replace(plan(), telemetry=telemetry), {}, titles=EVENT_WORDS)
    publisher.open()
    (warning,) = publisher.warnings
    assert str(tmp_path / "file") in warning
    assert "set [telemetry] spool to a directory" in warning, "what named it, not the environment"


def two_stages() -> tuple[PlanFile, Summary]:
    second = SteadyWindow(stage="s2", start_ns=make.T0 + 20 * make.SECOND, end_ns=make.T0 + 30 * make.SECOND)
    facts: RunFacts = make.facts(steady=(make.STEADY, second), ended_ns=make.T0 + 30 * make.SECOND)
    resources = tuple(
        StageResources(stage=name, energy_j=energy, limit="not clear", limit_reason="r")
        for name, energy in (("s1", 10.0), ("s2", 20.0))
    )
    summary = summarise(make.many(120) + make.many(10, stage="s2"), facts)
    later = StageFacts(
        name="s2",
        started_ns=make.T0 + 15 * make.SECOND,
        steady_started_ns=make.T0 + 20 * make.SECOND,
        steady_ended_ns=make.T0 + 30 * make.SECOND,
        users=48,
    )
    return plan_file(stages=(STAGE, later)), msgspec.structs.replace(summary, resources=resources)


def test_each_stage_has_its_own_instants_load_and_resources() -> None:
    points = [check(point) for point in run_points(*two_stages())]
    whole, first, second = (row(points, stage=name).fields for name in ("all", "s1", "s2"))
    assert [fields["users_asked"] for fields in (whole, first, second)] == [None, 24, 48]
    assert [fields.get("energy_j") for fields in (whole, first, second)] == [None, 10.0, 20.0]
    assert [fields["steady_started_ms"] for fields in (whole, first, second)] == [
        make.T0 / 1e6,
        make.T0 / 1e6,
        make.T0 / 1e6 + 20_000,
    ]
    assert whole["steady_ended_ms"] == second["steady_ended_ms"]


def test_resources_stand_where_they_hold() -> None:
    """GPUs serve all scenarios at once: their energy belongs to no single one."""
    resources = StageResources(stage="s1", energy_j=12.5, limit="compute", limit_reason="SM active 0.97")
    points = list(run_points(plan_file(), summary_of(some_turns(), resources=(resources,))))
    assert row(points).fields["energy_j"] == 12.5
    assert row(points).fields["limit"] == "compute"
    assert row(points, stage="s1").fields["energy_j"] == 12.5
    assert "energy_j" not in row(points, scenario="agent").fields


@pytest.mark.parametrize(
    ("name", "tag", "reason"),
    [
        (None, "all", "everything"),
        ("agent", "agent", "a name is itself"),
        ("all", "all (name)", "a scenario of this name must not take the place of everything"),
        ("a b,c=d", "a b,c=d", "escaping is the line protocol's business"),
    ],
)
def test_tags(name: str | None, tag: str, reason: str) -> None:
    assert tag_of(name) == tag, reason


def test_a_scenario_called_all_does_not_hide_the_run() -> None:
    turns = make.many(20, scenario="all") + make.many(30, scenario="other")
    points = list(run_points(plan_file(), summary_of(turns)))
    assert row(points).fields["turns_ok"] == 50
    assert row(points, scenario="all (name)").fields["turns_ok"] == 20


@pytest.mark.parametrize("kind", [*EVENT_WORDS, "of_a_later_version"])
def test_ig_17_an_event_stands_at_its_own_instant(kind: str) -> None:
    """Not at the one at which it was written down, so that markers are where the data is."""
    event = EventRow(at_ns=make.T0 + 123, kind=kind, detail="why", worker="w", stage="s1")
    point = check(event_point(RUN, event, EVENT_WORDS))
    assert (point.at_ns, point.tags["kind"]) == (event.at_ns, kind)
    assert point.fields["title"] == EVENT_WORDS.get(kind, "of a later version")
    assert point.fields["detail"] == "why"


def test_ig_17_a_run_tells_absolute_epoch_milliseconds() -> None:
    """Links use these, whatever the zone of the browser and the clock of a worker."""
    fields = row(list(run_points(plan_file(), summary_of(some_turns())))).fields
    assert fields["started_ms"] == STAGE.started_ns / 1e6
    assert fields["steady_started_ms"] == STAGE.steady_started_ns / 1e6
    assert fields["steady_ended_ms"] == STAGE.steady_ended_ns / 1e6


def test_what_a_client_could_not_see_is_absent() -> None:
    health = ClientHealth(
        second=7,
        worker="w",
        cpu_share=0.5,
        hub_lag_max_ns=2_500_000,
        gc_pause_max_ns=0,
        rss_bytes=None,
        open_files=None,
    )
    point = check(client_point(RUN, health))
    assert point.at_ns == 7_000_000_000
    line = line_of(point).decode()
    assert "hub_lag_max_ms=2.5" in line
    assert "rss_bytes" not in line and "open_files" not in line


def test_ig_05_series_do_not_grow_with_sessions() -> None:
    """Ids are in no tag: 10,000 sessions make as many series as ten do."""

    def series(sessions: int) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        turns = [
            make.streamed(
                index % 9000,
                [index % 9000 + 50, index % 9000 + 90],
                scenario=f"scenario-{index % 5}",
                channel=f"channel-{index % 2}",
            )
            for index in range(sessions)
        ]
        turns += [make.failed(index, index + 5, error) for index, error in enumerate(ErrorClass)]
        live = WindowPoints(RUN, started_ns=make.T0, steady_ns=make.T0)
        rows = windows(turns)
        live.add(rows)
        points = [*live.tick(), *exact_points(RUN, rows, started_ns=make.T0, steady_ns=make.T0)]
        points += run_points(plan_file(), summary_of(turns), pairs=pairs_of(rows))
        return {(point.measurement, tuple(sorted(point.tags.items()))) for point in points}

    many = series(10_000)
    assert len(many) < 500
    assert len(many) == len(series(10))
