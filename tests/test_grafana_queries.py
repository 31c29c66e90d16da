"""Every query of every dashboard on a real InfluxDB with real runs; figures agree with summary.json.

Two runs are made once for all tests here (a closed and an open loop, two workers, two scenarios, the engine agent on
the emulator, the GPU agent on the stand-in NVML library with two cards, of which one is lost for a while).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import databases
import fake_nvml
import grafana_run
import pytest
from infersiege_agents import measurements
from infersiege_agents.points import Point, line_of

from infersiege.records import Summary

GRAFANA = Path(__file__).parents[1] / "grafana"
sys.path.append(str(GRAFANA))

from infersiege_grafana import dashboard_compare  # noqa: E402
from infersiege_grafana.expand import Value  # noqa: E402
from infersiege_grafana.frames import Frame  # noqa: E402
from infersiege_grafana.look import Look, look_at  # noqa: E402
from infersiege_grafana.preview import ask_over_http, render, write  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.alone]

DASHBOARDS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (GRAFANA / "dashboards").glob("*.json")
}
EACH = pytest.mark.parametrize("uid", DASHBOARDS)

NOT_IN_A_CLOSED_LOOP = {("Sessions and turns in flight", "B")}
"""(panel, query) that a closed loop leaves empty; the open one must not."""

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS


@dataclass(frozen=True)
class Stack:
    """An InfluxDB with two runs and 200 old ones."""

    influx: databases.InfluxDB
    runs: grafana_run.Runs

    def look(self, uid: str, *, interval_ms: int = 1000, **chosen: Value) -> Look:
        """By default as somebody who follows a link to the closed run."""
        chosen = {"run": self.closed_key, "third": self.closed_key, **chosen}
        return look_at(
            DASHBOARDS[uid],
            self.influx.query,
            from_ms=self.runs.from_ms,
            to_ms=self.runs.to_ms,
            interval_ms=interval_ms,
            chosen=chosen,
        )

    @property
    def closed_key(self) -> str:
        return self.runs.closed.plan.run_key

    @property
    def open_key(self) -> str:
        return self.runs.open.plan.run_key

    @property
    def summary(self) -> Summary:
        return self.runs.closed.summary


@pytest.fixture(scope="module")
def stack(
    needs: Callable[[str | None], None], free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    needs(databases.influx_missing())
    needs(fake_nvml.compiler_missing())
    influx = databases.InfluxDB(tmp_path_factory.mktemp("grafana-influx"), free_port)
    try:
        runs = grafana_run.make(influx, tmp_path_factory.mktemp("grafana-runs"))
        old = [_old(number, runs.from_ms * 10**6) for number in range(200)]
        influx.write(b"".join(line_of(point) for point in old))
        yield Stack(influx, runs)
    finally:
        influx.close()


def _old(number: int, before_ns: int) -> Point:
    """Half of them ended an hour before the time range, half are older than what can be compared."""
    started = before_ns - 2 * HOUR_NS - number * 10**9 - (40 * DAY_NS if number % 2 else 0)
    key = f"20200101T000000Z-old-{number:012x}"
    tags = {"run": key, "scenario": "all", "channel": "all", "stage": "all"}
    times = {"started_ms": 0, "steady_started_ms": 60_000, "ended_ms": 3_000_000}
    fields = {"run_key": key, "state": 1, **{name: started / 1e6 + after for name, after in times.items()}}
    return Point(measurements.RUN.name, tags, fields, started)


def panels(look: Look) -> list[dict[str, Any]]:
    return [panel for panel in look.dashboard["panels"] if "targets" in panel]


def column(frames: list[Frame], name: str) -> list[Any]:
    """The cells of the one column of that name."""
    (found,) = [frame.columns[name] for frame in frames if name in frame.columns]
    return found


# ------------------------------------------------------------------------------------------------- every query


@EACH
def test_every_panel_query_has_an_answer_on_a_real_run(stack: Stack, uid: str) -> None:
    look = stack.look(uid, baseline=stack.open_key)
    empty = {
        (panel["title"], ref)
        for panel in panels(look)
        for ref, frames in look.answers(panel).items()
        if not frames or all(frame.empty for frame in frames)
    }
    assert empty <= NOT_IN_A_CLOSED_LOOP
    assert not [panel["title"] for panel in panels(look) if all(frame.empty for frame in look.shown(panel))]


def test_what_a_closed_loop_leaves_empty_an_open_one_fills(stack: Stack) -> None:
    look = stack.look("infersiege-run", run=stack.open_key)
    for title, ref in NOT_IN_A_CLOSED_LOOP:
        frames = look.answers(look.panel(title))[ref]
        assert frames and not all(frame.empty for frame in frames), title


@EACH
def test_every_variable_and_annotation_has_values(stack: Stack, uid: str) -> None:
    look = stack.look(uid, baseline=stack.open_key)
    assert all(look.options.values()), look.options
    events = look.events()
    assert events and all(title and title != "None" for _, title, _ in events)


@EACH
@pytest.mark.parametrize("interval_ms", [5_000, 60_000, 600_000])
def test_every_query_runs_at_any_interval(stack: Stack, uid: str, interval_ms: int) -> None:
    look = stack.look(uid, interval_ms=interval_ms)
    for panel in panels(look):
        frames = look.shown(panel)
        assert frames and not all(frame.empty for frame in frames), panel["title"]


@EACH
def test_an_empty_run_is_empty_panels_and_no_error(stack: Stack, uid: str) -> None:
    look = stack.look(uid, run="20200101T000000Z-nothing", baseline="20200101T000000Z-nothing", third="nothing")
    of_the_run = [
        (panel["title"], ref, frames)
        for panel in panels(look)
        for ref, frames in look.answers(panel).items()
        if any(one["refId"] == ref and "${run:" in one["query"] for one in panel["targets"])
    ]
    assert of_the_run
    for title, ref, frames in of_the_run:
        assert all(frame.empty for frame in frames), f"{title} {ref} shows another run"
    assert look.events() == []


@EACH
def test_a_time_range_without_anything_is_no_error(stack: Stack, uid: str) -> None:
    later = stack.runs.to_ms + 40 * 86_400_000
    look = look_at(DASHBOARDS[uid], stack.influx.query, from_ms=later, to_ms=later + 60_000)
    assert look.options["run"] == ()
    for panel in panels(look):
        assert all(frame.empty for frame in look.shown(panel)), panel["title"]


# --------------------------------------------------------------------------------------------------- variables


@EACH
def test_ig_11_runs_of_the_time_range_newest_first_and_not_200_old_ones(stack: Stack, uid: str) -> None:
    listed = stack.look(uid).options["run"]
    assert listed[:2] == (stack.open_key, stack.closed_key)
    if uid == "infersiege-compare":
        assert len(listed) == 2 + 100, "a baseline may be up to 30 days older, not 40"
    else:
        assert len(listed) == 2


def test_ig_11_zooming_into_a_run_does_not_lose_it(stack: Stack) -> None:
    """The rows of a run are stamped with its start, which lies before the time range then."""
    (middle_ms,) = column(stack.look("infersiege-run").answers(_runs_table(stack))["A"], "ended")[-1:]
    from_ms = int(middle_ms) - 3_000
    look = look_at(DASHBOARDS["infersiege-run"], stack.influx.query, from_ms=from_ms, to_ms=from_ms + 1_000)
    assert len(look.options["run"]) == 1
    frames = look.shown(look.panel("State"))
    assert [frame.columns for frame in frames] and not frames[0].empty


def _runs_table(stack: Stack) -> dict[str, Any]:
    return stack.look("infersiege-run").panel("Runs of this time range")


def test_scenarios_and_channels_are_those_of_the_run(stack: Stack) -> None:
    look = stack.look("infersiege-run")
    assert set(look.options["scenario"]) == {"all", "short-qa", grafana_run.ODD}
    assert set(look.options["channel"]) == {"all", "target"}
    assert look.view.values["scenario"] == "all"


def test_gpus_and_engines_are_listed(stack: Stack) -> None:
    look = stack.look("infersiege-capacity")
    assert look.options["gpu"] == (fake_nvml.uuid(0), fake_nvml.uuid(1))
    assert len(look.options["host"]) == 1
    assert look.options["engine"][0].startswith("127.0.0.1:")


@pytest.mark.parametrize("scenario", ["short-qa", grafana_run.ODD])
@pytest.mark.parametrize("channel", ["all", "target"])
def test_a_scenario_shows_its_own_turns_whatever_its_name(stack: Stack, scenario: str, channel: str) -> None:
    look = stack.look("infersiege-run", scenario=scenario, channel=channel)
    frames = look.shown(look.panel("Turns: asked, sent, finished"))
    ok = sum(value or 0 for value in column(frames, "finished"))
    turns = [turn for turn in stack.runs.closed.turns if turn.scenario == scenario and turn.outcome.value == "ok"]
    assert turns and ok == pytest.approx(len(turns), rel=0.01)


def test_a_part_of_a_name_chooses_nothing(stack: Stack) -> None:
    look = stack.look("infersiege-run", scenario="short")
    assert all(frame.empty for frame in look.shown(look.panel("Turns: asked, sent, finished")))


def test_one_gpu_of_two(stack: Stack) -> None:
    look = stack.look("infersiege-gpu", gpu=[fake_nvml.uuid(1)])
    names = [name for frame in look.answers(look.panel("Temperature"))["A"] for name in frame.columns if name != "Time"]
    assert len(names) == 1 and names[0].endswith(fake_nvml.uuid(1))


# ----------------------------------------------------------------------------------------------------- figures


def test_stage_table_is_summary_json_to_the_last_digit(stack: Stack) -> None:
    look = stack.look("infersiege-capacity")
    frames = look.shown(look.panel("Stages, exact"))
    whole = stack.summary.groups[0]
    rates = whole.rates
    expected: dict[str, float | None] = {
        "asked/s": rates["asked_rate"],
        "sent/s": rates["sent_rate"],
        "finished/s": rates["finished_rate"],
        "goodput/s": rates["goodput"],
        "tokens/s": rates["throughput"],
        "failed": rates["error_share"],
        "in flight": whole.in_flight_mean,
        "users": 12.0,
    }
    for name, metric in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e")):
        for stat in ("p50", "p95", "p99"):
            if f"{name} {stat}" in frames[0].columns:
                expected[f"{name} {stat}"] = getattr(whole.distributions[metric], stat)
    expected["TTFT mean"] = whole.distributions["ttft"].mean
    (resources,) = stack.summary.resources
    expected |= {
        "KV peak": resources.kv_use_peak,
        "waiting peak": resources.waiting_peak,
        "SM active": resources.sm_active_mean,
        "power": resources.power_mean_w,
        "J/token": resources.energy_per_output_token_j,
        "TTFT server mean": resources.server_ttft_mean_ms,
    }
    assert {name: column(frames, name) for name in expected} == {name: [value] for name, value in expected.items()}


def test_the_limit_is_that_of_summary_json(stack: Stack) -> None:
    look = stack.look("infersiege-capacity")
    frames = look.shown(look.panel("What limited it"))
    (resources,) = stack.summary.resources
    assert column(frames, "limit") == [resources.limit]
    assert column(frames, "because") == [resources.limit_reason]


def test_differences_of_two_runs_are_those_of_their_summaries(stack: Stack) -> None:
    look = stack.look("infersiege-compare", run=stack.open_key, baseline=stack.closed_key)
    (frame,) = look.shown(look.panel("Run against baseline, exact"))
    rows = {row[0]: row[1:] for row in zip(*frame.columns.values(), strict=True)}
    assert list(frame.columns) == ["figure", "run", "baseline", "difference", "of the baseline"]
    assert set(rows) < set(dashboard_compare.FIGURES)
    assert set(rows) >= {"TTFT p50 (ms)", "sent (turns/s)", "failed (share)", "KV use, peak (share)"}
    new, old = stack.runs.open.summary.groups[0], stack.runs.closed.summary.groups[0]
    now, before = new.distributions["ttft"].p95, old.distributions["ttft"].p95
    assert now is not None and before is not None
    assert rows["TTFT p95 (ms)"] == (now, before, now - before, (now - before) / before)
    assert "TTFT p99 (ms)" not in rows, "so few turns have no p99, and so no difference"
    throughput = new.rates["throughput"]
    assert rows["output (tokens/s)"][0] == throughput


@pytest.mark.parametrize("interval_ms", [1_000, 2_000, 5_000])
def test_ig_13_a_rate_is_right_at_any_interval(stack: Stack, interval_ms: int) -> None:
    """The sum of rate x interval is the number of turns, at whole intervals."""
    step = interval_ms
    from_ms = stack.runs.from_ms // 60_000 * 60_000
    to_ms = -(-stack.runs.to_ms // 60_000) * 60_000
    look = look_at(
        DASHBOARDS["infersiege-run"],
        stack.influx.query,
        from_ms=from_ms,
        # Not the last ms: it would open one more interval.
        to_ms=min(to_ms, stack.runs.to_ms // 5_000 * 5_000 + 5_000) - 1,
        interval_ms=step,
        chosen={"run": stack.closed_key},
    )
    frames = look.shown(look.panel("Turns: asked, sent, finished"))
    turns = stack.runs.closed.turns
    found = {
        name: sum(value or 0 for value in column(frames, name)) * step / 1000 for name in ("asked", "sent", "finished")
    }
    sent = sum(turn.sent_ns is not None for turn in turns)
    assert found["sent"] == pytest.approx(sent, rel=0.01)
    assert found["asked"] == pytest.approx(sent, rel=0.01)
    assert found["finished"] == pytest.approx(stack.summary.counts.ok, rel=0.01)


def test_ig_13_an_interval_that_the_time_range_cuts_keeps_its_rate(stack: Stack) -> None:
    """A minute of which the range shows the last seconds of a run must not show a sixth of the rate."""
    (stage,) = stack.runs.closed.plan.stages
    from_ms, to_ms = stage.steady_started_ns // 10**6 + 1_000, stage.steady_ended_ns // 10**6 - 1_000
    look = look_at(
        DASHBOARDS["infersiege-run"],
        stack.influx.query,
        from_ms=from_ms,
        to_ms=to_ms,
        interval_ms=600_000,
        chosen={"run": stack.closed_key},
    )
    frames = look.shown(look.panel("Turns: asked, sent, finished"))
    rates = [value for value in column(frames, "finished") if value is not None]
    closed = [
        turn.closed_ns // 10**6 for turn in stack.runs.closed.turns if turn.closed_ns and turn.outcome.value == "ok"
    ]
    inside = sum(from_ms <= at <= to_ms for at in closed) / ((to_ms - from_ms) / 1000)
    assert sum(rates) / len(rates) == pytest.approx(inside, rel=0.25), "the second at each edge is cut"


def test_failed_turns_by_class_and_tokens_are_those_of_the_turns(stack: Stack) -> None:
    look = stack.look("infersiege-run")
    frames = look.shown(look.panel("Failed turns by class"))
    shown = {
        name: sum(v or 0 for v in cells) for frame in frames for name, cells in frame.columns.items() if name != "Time"
    }
    failed = [str(turn.error_class) for turn in stack.runs.closed.turns if turn.outcome.value == "failed"]
    assert shown == {name: pytest.approx(failed.count(name), rel=0.01) for name in set(failed)}
    tokens = look.shown(look.panel("Output tokens"))
    all_tokens = sum(turn.output_tokens or 0 for turn in stack.runs.closed.turns)
    assert sum(value or 0 for value in column(tokens, "of ended turns")) == pytest.approx(all_tokens, rel=0.01)
    assert sum(value or 0 for value in column(tokens, "as they arrived")) == pytest.approx(all_tokens, rel=0.01)


@pytest.mark.parametrize(("title", "metric"), [("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e")])
def test_ig_12_percentiles_of_the_stage_to_date_end_at_those_of_the_summary(
    stack: Stack, title: str, metric: str
) -> None:
    look = stack.look("infersiege-run")
    frames = look.shown(look.panel(f"{title}, stage to date"))
    exact = stack.summary.groups[0].distributions[metric]
    for stat in ("p50", "p95", "p99"):
        last = [value for value in column(frames, f"{stat} steady") if value is not None][-1]
        assert last == pytest.approx(getattr(exact, stat), rel=0.011), f"{stat}: a histogram bucket is up to 1 % wide"
    counted = [value for value in column(frames, "turns behind it steady") if value is not None]
    assert counted[-1] == exact.n


def test_gp_03_gp_11_a_lost_card_is_seen_and_no_value_goes_on(stack: Stack) -> None:
    look = stack.look("infersiege-gpu")
    assert column(look.shown(look.panel("Ever lost")), "gpu.lost")[-1] == 1
    lost = [frame for frame in look.answers(look.panel("Cards"))["A"] if _named(frame).endswith(fake_nvml.uuid(1))]
    assert {value for frame in lost for value in frame.columns[_named(frame)]} >= {0, 1}
    (power,) = [
        frame
        for frame in look.answers(look.panel("Power against its limit"))["A"]
        if _named(frame).endswith(fake_nvml.uuid(1))
    ]
    at_loss = [time for time, ok in zip(*lost[0].columns.values(), strict=True) if ok == 0]
    values = dict(zip(*power.columns.values(), strict=True))
    assert at_loss and all(values.get(time) is None for time in at_loss), (
        "the last value goes on while the card is lost"
    )
    seen = look.shown(look.panel("Seen / expected"))
    assert column(seen, "expected")[-1] == 2


def _named(frame: Frame) -> str:
    return next(name for name in frame.columns if name != "Time")


def test_xid_and_energy_are_shown(stack: Stack) -> None:
    look = stack.look("infersiege-gpu")
    assert 31 in column(look.shown(look.panel("Xid events")), "xid")
    energy = column(look.shown(look.panel("J per token, steady")), "infersiege_run.energy")
    assert energy == [stack.summary.resources[0].energy_per_output_token_j]


def test_gp_11_the_band_holds_every_card(stack: Stack) -> None:
    look = stack.look("infersiege-gpu")
    found = look.answers(look.panel("SM active"))
    lowest, highest = (column(found["B"], name) for name in ("lowest card", "highest card"))
    for frame in found["A"]:
        for value, low, high in zip(frame.columns[_named(frame)], lowest, highest, strict=True):
            assert value is None or low <= value <= high


def test_ig_18_runs_are_aligned_at_their_steady_start(stack: Stack) -> None:
    look = stack.look("infersiege-compare", run=stack.open_key, baseline=stack.closed_key)
    answers = look.answers(look.panel("TTFT p95"))
    for ref, ran in (("C", stack.runs.open), ("B", stack.runs.closed)):
        since = [value for value in column(answers[ref], "since steady start") if value is not None]
        (stage,) = ran.plan.stages
        steady_s = (stage.steady_ended_ns - stage.steady_started_ns) / 1e9
        assert -1.5 <= min(since) <= 2, "the first steady second is 0"
        assert max(since) <= steady_s + 6, "steady turns that end in the drain"
    assert look.view.values["baseline_start"] == str(stack.runs.closed.plan.stages[0].steady_started_ns // 10**6)


@pytest.mark.parametrize(("ref", "name", "key"), [("B", "baseline", "closed"), ("C", "run", "open")])
def test_ig_18_compared_rates_hold_no_turn_of_the_other_side_of_the_start(
    stack: Stack, ref: str, name: str, key: str
) -> None:
    """These runs have no whole 10 s of steady phase; what is drawn before their start is all that was sent there."""
    ran = stack.runs.closed if key == "closed" else stack.runs.open
    look = stack.look("infersiege-compare", run=stack.open_key, baseline=stack.closed_key)
    frames = look.answers(look.panel("Turns sent"))[ref]
    points = list(zip(column(frames, "since steady start"), column(frames, name), strict=True))
    sent = [turn.sent_ns for turn in ran.turns if turn.sent_ns is not None]
    steady_ns = ran.plan.stages[0].steady_started_ns
    before = [at_ns for at_ns in sent if at_ns // 10**9 * 10**9 < steady_ns]
    assert len(points) == 1 and -2 < points[0][0] < 0
    assert 10 * points[0][1] == pytest.approx(len(before)), "rows are whole seconds"


def test_every_choice_of_scenario_and_channel_has_figures_to_compare(stack: Stack) -> None:
    """What the variables offer, the tables know."""
    look = stack.look("infersiege-compare", run=stack.open_key, baseline=stack.closed_key)
    chosen = [(scenario, channel) for scenario in look.options["scenario"] for channel in look.options["channel"]]
    assert len(chosen) == 6
    for scenario, channel in chosen:
        cut = stack.look(
            "infersiege-compare", run=stack.open_key, baseline=stack.closed_key, scenario=scenario, channel=channel
        )
        (frame,) = cut.shown(cut.panel("Run against baseline, exact"))
        assert "TTFT p50 (ms)" in frame.columns["figure"], (scenario, channel)
        assert len(cut.shown(cut.panel("What is compared"))[0].columns["run"]) == 2, (scenario, channel)


def test_a_model_with_a_slash_and_the_verdict_are_in_the_list_of_runs(stack: Stack) -> None:
    frames = stack.look("infersiege-run").shown(_runs_table(stack))
    assert column(frames, "models") == [grafana_run.MODEL, grafana_run.MODEL]
    assert column(frames, "verdict") == [ran.summary.verdict for ran in (stack.runs.closed, stack.runs.open)]
    assert column(frames, "emulated") == [1, 1]


def test_the_preview_draws_every_panel(stack: Stack, tmp_path: Path) -> None:
    """The pictures of docs/grafana.md; over HTTP, as its command does."""

    def ask(query: str) -> Any:
        return ask_over_http(stack.influx.own_url, stack.influx.database, "", query)

    chosen = {"run": stack.closed_key, "baseline": stack.open_key, "third": stack.open_key}
    pages = write(tmp_path, ask, from_ms=stack.runs.from_ms, to_ms=stack.runs.to_ms, chosen=chosen)
    assert len(pages) == len(DASHBOARDS)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        dashboard = DASHBOARDS[f"infersiege-{page.stem.removeprefix('grafana-')}"]
        assert text.count('<div class="panel"') == sum(panel["type"] != "row" for panel in dashboard["panels"])
        assert "No data" not in text
        assert "rendered from the panel queries by grafana/preview.py" in text


def test_the_preview_says_no_data_where_there_is_none(stack: Stack) -> None:
    look = stack.look("infersiege-run", run="20200101T000000Z-nothing")
    assert render(look).count('<div class="none">No data</div>') > 10
