"""Figures of GPUs and engines per stage: clipped to the steady phase, gaps as gaps, nothing counted twice."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from infersiege_agents.measurements import MEASUREMENTS
from records_sample import SECOND, START_NS, records, write_run
from series_sample import GIB, engine_row, engine_rows, gpu_row, gpu_rows, lost_row

from infersiege.metrics.facts import SteadyWindow
from infersiege.records import SeriesRow, StageResources, Summary
from infersiege.report import finish, read, rebuild
from infersiege.report.rebuild import instance_of
from infersiege.resources import Watched, gather, stages, thin, warnings
from infersiege.resources.series import COLUMNS, Series, weighted
from infersiege.resources.watched import alike
from infersiege.rundir import SUMMARY, RunDirectory

ALL = (0, 1 << 62)


def at(seconds: float) -> int:
    return START_NS + round(seconds * SECOND)


def window(start_s: float, end_s: float, stage: str = "24 users") -> SteadyWindow:
    return SteadyWindow(stage=stage, start_ns=at(start_s), end_ns=at(end_s))


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return rebuild(
        write_run(tmp_path_factory.mktemp("run") / "r", records(12, steady_s=60, fail_share=0.0), steady_s=60)
    )


def watched(rows: Sequence[SeriesRow], **more: Any) -> Watched:
    return gather(rows, span_ns=ALL, **more)


def one(rows: Sequence[SeriesRow], summary: Summary, *, seconds: tuple[float, float] = (30, 90)) -> StageResources:
    (found,) = stages(watched(rows), summary, [window(*seconds)])
    return found


def steady(
    uuid: str = "GPU-0", *, start: int = 0, end: int = 100, host: str = "bench-1", **fields: Any
) -> list[SeriesRow]:
    """A point a second with the same fields."""
    return [gpu_row(at(second), uuid, host=host, **fields) for second in range(start + 1, end + 1)]


# ---------------------------------------------------------------------------------------------------------- columns


def test_every_column_is_a_field_of_the_table() -> None:
    """A renamed field fails here, not in silence."""
    for name, columns in COLUMNS.items():
        left = set(columns) - set(MEASUREMENTS[name].fields)
        assert left <= {"interval"} and (not left or name == "gpu_host"), (name, left)


def test_no_series_no_resources(summary: Summary) -> None:
    assert stages(watched([]), summary, [window(30, 90)]) == ()
    assert not Watched()


def test_a_stage_without_length_has_no_figures(summary: Summary) -> None:
    assert stages(watched(steady(power_mean_w=1.0)), summary, [window(30, 30)]) == ()


# ------------------------------------------------------------------------------------------------------ clipping


@pytest.mark.parametrize(
    ("start", "end", "joules", "why"),
    [
        (30.0, 90.0, 6000.0, "whole points: a stamp is the end of its interval"),
        (30.5, 90.0, 5950.0, "half of a point"),
        (30.0, 90.25, 6025.0, "a quarter of a point"),
        (30.2, 30.4, 20.0, "less than a point"),
        (95.0, 200.0, 500.0, "what was not watched is not made up"),
    ],
)
def test_energy_is_clipped_to_the_steady_phase(
    summary: Summary, start: float, end: float, joules: float, why: str
) -> None:
    found = one(steady(energy_j=100.0, power_mean_w=100.0), summary, seconds=(start, end))
    assert found.energy_j == pytest.approx(joules), why


def test_the_warm_up_is_in_no_figure(summary: Summary) -> None:
    rows = steady(end=30, energy_j=900.0, power_mean_w=900.0, power_capped=1.0) + steady(
        start=30, energy_j=100.0, power_mean_w=100.0, power_capped=0.0
    )
    found = one(rows, summary)
    assert (found.energy_j, found.power_mean_w, found.power_capped_share) == (pytest.approx(6000), 100.0, 0.0)


def test_energy_per_token_divides_by_the_tokens_of_throughput(summary: Summary) -> None:
    found = one(steady(energy_j=100.0), summary)
    whole = summary.groups[0]
    assert whole.rates["throughput"] is not None and found.energy_j is not None
    tokens = whole.rates["throughput"] * whole.steady_duration_ns / SECOND
    assert found.energy_per_output_token_j == pytest.approx(found.energy_j / tokens)


def test_without_tokens_there_is_no_energy_per_token(summary: Summary) -> None:
    whole = msgspec.structs.replace(summary.groups[0], rates={**summary.groups[0].rates, "throughput": None})
    found = one(steady(energy_j=100.0), msgspec.structs.replace(summary, groups=(whole,)))
    assert found.energy_j is not None and found.energy_per_output_token_j is None


def test_without_an_energy_counter_power_is_integrated(summary: Summary) -> None:
    assert one(steady(power_mean_w=250.0), summary).energy_j == pytest.approx(250 * 60)
    assert one(steady(power_average_w=250.0), summary).energy_j == pytest.approx(250 * 60)
    assert one(steady(utilization_mean=1.0), summary).energy_j is None


@given(
    st.lists(st.floats(0.05, 3.0), min_size=1, max_size=12),
    st.floats(0.0, 30.0),
    st.floats(0.5, 30.0),
    st.randoms(use_true_random=False),
)
def test_energy_of_parts_adds_up_whatever_the_order(
    steps: list[float], start: float, length: float, random_: random.Random
) -> None:
    """Two windows side by side hold what one over both holds; points come in any order."""
    rows, now = [], 0.0
    for step in steps:
        now += step
        rows.append(gpu_row(at(now), interval=step, energy_j=100 * step))
    random_.shuffle(rows)
    series = watched(rows).gpus[0]
    middle = start + length / 2
    whole = series.total("energy_j", window(start, start + length)) or 0.0
    parts = [series.total("energy_j", window(*part)) or 0.0 for part in ((start, middle), (middle, start + length))]
    assert sum(parts) == pytest.approx(whole, rel=1e-6, abs=1e-4)
    inside = max(0.0, min(now, start + length) - start)
    assert whole == pytest.approx(100 * inside, rel=1e-6, abs=1e-4)


def test_two_agents_on_one_card_are_one_card(summary: Summary) -> None:
    """Each point then stands for the time since the one before, and the energy comes out once."""
    rows = steady(energy_j=100.0, power_mean_w=100.0)
    shifted = [msgspec.structs.replace(row, at_ns=row.at_ns + 400_000_000) for row in rows]
    found = one([*rows, *shifted], summary)
    assert found.gpus == 1 and found.energy_j == pytest.approx(6000) and found.power_mean_w == pytest.approx(100)


def lost_for(seconds: int, **fields: Any) -> list[SeriesRow]:
    """100 W for the whole phase of 60 s but for so many seconds from 40 s on."""
    card = {"power_mean_w": 100.0, **fields}
    rows = steady(end=40, **card) + steady(start=40 + seconds, **card)
    return rows + [lost_row(at(second)) for second in range(41, 41 + seconds)]


@pytest.mark.parametrize(
    ("rows", "share", "why"),
    [
        (steady(energy_j=100.0), 1.0, "all of it was read"),
        (lost_for(6, energy_j=100.0), 1.0, "a tenth is missing: it is taken to be like the rest"),
        (lost_for(6), 1.0, "the same from power"),
        (lost_for(30, energy_j=100.0), None, "half is missing: half of the energy over all tokens looks splendid"),
        (lost_for(30), None, "the same from power"),
        ([*steady(end=40, energy_j=100.0), gpu_row(at(70), energy_j=3000.0, interval=30.0),
          *steady(start=70, energy_j=100.0)], 1.0, "a counter that was read again after a hole knows of it"),
        (steady("GPU-0", energy_j=100.0) + steady("GPU-1", utilization_mean=1.0), None, "one card tells no energy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_energy_per_token_is_of_all_cards_and_the_whole_phase(
    summary: Summary, rows: list[SeriesRow], share: float | None, why: str
) -> None:
    found = one(rows, summary)
    whole = summary.groups[0]
    tokens = (whole.rates["throughput"] or 0) * whole.steady_duration_ns / SECOND
    expected = None if share is None else pytest.approx(share * 6000 / tokens)
    assert found.energy_per_output_token_j == expected, why
    assert found.energy_j is not None and found.energy_j <= 6000.1, "what was read stays what was read"


def test_why_there_is_no_energy_per_token_is_said(summary: Summary) -> None:
    assert any("no energy per token" in line for line in warnings([one(lost_for(30), summary)]))
    assert not any("no energy per token" in line for line in warnings([one(lost_for(6), summary)]))


# ------------------------------------------------------------------------------------------------ gaps, lost cards


def test_gp_03_lost_card_is_a_gap_and_is_named(summary: Summary) -> None:
    """Lost from 40 to 70 s: its last value is not carried on, and the other card is as it was."""
    card = {"power_mean_w": 400.0, "energy_j": 400.0, "sm_active": 0.8}
    rows = steady("GPU-0", **card) + steady("GPU-1", end=40, **card) + steady("GPU-1", start=70, **card)
    rows += [lost_row(at(second), "GPU-1") for second in range(41, 71)]
    found = one(rows, summary)
    assert found.gpus == 2 and found.gpus_lost == ("bench-1 GPU-1: GPU is lost (15)",)
    assert found.energy_j == pytest.approx(400 * 60 + 400 * 30), "half of the time of card 1 is not known"
    assert found.sm_active_mean == pytest.approx(0.8)
    assert found.coverage == {"gpu bench-1 GPU-0": 1.0, "gpu bench-1 GPU-1": pytest.approx(0.5)}
    assert thin(found.coverage) == ("gpu bench-1 GPU-1: 50 %",)
    assert "(gpu bench-1 GPU-1: 50 %)" in found.limit_reason
    said = warnings([found])
    assert any("GPU is lost (15)" in line for line in said) and any("50 %" in line for line in said)


def test_gp_03_a_card_that_never_comes_back_has_no_value(summary: Summary) -> None:
    rows = steady("GPU-0", end=20, sm_active=0.9) + [lost_row(at(second)) for second in range(21, 101)]
    found = one(rows, summary)
    assert (found.gpus, found.sm_active_mean, found.energy_j, found.power_mean_w) == (0, None, None, None)
    assert found.coverage["gpu bench-1 GPU-0"] == 0.0 and found.gpus_lost


def test_ig_14_a_stopped_agent_ends_its_line(summary: Summary) -> None:
    found = one(steady(end=45, sm_active=0.5), summary)
    assert found.coverage["gpu bench-1 GPU-0"] == pytest.approx(0.25) and found.sm_active_mean == 0.5


def test_a_gauge_after_a_hole_does_not_fill_it_but_its_counts_do() -> None:
    """The first scrape after 20 s of outage tells what ran at that moment, and what was counted in the 20 s."""
    rows = [engine_row(at(second), running=5.0, preemptions=1.0) for second in range(1, 41)]
    rows.append(engine_row(at(60), interval=20.0, running=50.0, preemptions=20.0))
    series = watched(rows).engines[0]
    assert series.total("preemptions", window(40, 60)) == pytest.approx(20)
    assert series.coverage(window(40, 60)) == pytest.approx(2.5 / 20)
    assert series.mean("running", window(0, 60)) == pytest.approx((40 * 5 + 2.5 * 50) / 42.5)


@pytest.mark.parametrize("bad", [{"interval": float("nan")}, {"interval": -4.0}, {"interval": 1e12}])
def test_a_point_without_a_usable_interval_stands_for_the_time_since_the_last(bad: dict[str, float]) -> None:
    series = watched([gpu_row(at(second), **{"energy_j": 10.0, **bad}) for second in range(1, 11)]).gpus[0]
    assert series.total("energy_j", window(0, 10)) == pytest.approx(100)


def test_damaged_values_are_left_out(summary: Summary) -> None:
    rows = [gpu_row(at(second), power_mean_w=100.0, sm_active="high") for second in range(1, 101)]
    rows += [SeriesRow(at_ns=at(50), measurement="gpu", tags={}, fields={}), gpu_row(-5), gpu_row(1 << 62)]
    rows.append(SeriesRow(at_ns=at(50), measurement="something_new", tags={}, fields={"x": 1.0}))
    found = one(rows, summary)
    assert found.power_mean_w == 100.0 and found.sm_active_mean is None


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("sm_active", 50.0, 0.5),
        ("sm_active", -1.0, 0.5),
        ("power_mean_w", -3.0, 300.0),
        ("energy_j", -1.0, 300.0),
        ("memory_used_mean_bytes", -5.0 * (1 << 20), 1e9),
        ("memory_used_mean_bytes", 1e30, 1e9),
        ("sm_active", math.inf, 0.5),
    ],
)
def test_a_value_that_cannot_be_is_missing_and_counted(summary: Summary, name: str, bad: float, good: float) -> None:
    rows = [gpu_row(at(second), **{name: good}) for second in range(1, 100)]
    found = watched([*rows, gpu_row(at(100), **{name: bad})])
    values = found.gpus[0].column(name)
    assert np.isnan(values[99]) and (values[:99] == good).all()
    (line,) = found.notes
    assert line.startswith("1 values of GPUs and engines are out of range") and f"gpu.{name} (1)" in line
    assert line in warnings(stages(found, summary, [window(30, 90)]), found)


def test_an_engine_that_cannot_be_makes_no_limit(summary: Summary) -> None:
    rows = [engine_row(at(second), kv_use=50.0, waiting=1e308) for second in range(1, 101)]
    found = one(rows, summary)
    assert (found.kv_use_mean, found.waiting_peak) == (None, None) and found.limit not in ("KV cache", "queue")


@pytest.mark.parametrize(("value", "kept"), [(1.004, 1.0), (-0.004, 0.0), (0.0, 0.0), (1.0, 1.0)])
def test_a_share_that_is_off_by_a_rounding_is_put_right(value: float, kept: float) -> None:
    found = watched([gpu_row(at(1), sm_active=value)])
    assert found.gpus[0].column("sm_active")[0] == kept and found.notes == ()


# ------------------------------------------------------------------------------------------------- several cards


def test_gp_11_cards_weigh_the_same_and_power_adds_up(summary: Summary) -> None:
    """Four busy and four idle: the mean is 50 %, and the limit looks at the busiest."""
    rows = [
        row
        for gpu in range(8)
        for row in steady(
            f"GPU-{gpu}", power_mean_w=600.0 if gpu < 4 else 100.0, dram_active=0.9 if gpu < 4 else 0.0,
            memory_used_mean_bytes=70.0 * GIB, memory_total_bytes=80.0 * GIB, power_capped=0.0,
        )
    ]  # fmt: skip
    rows += [engine_row(at(second), running=32.0) for second in range(1, 101)]
    found = one(rows, summary)
    assert found.gpus == 8 and found.power_mean_w == pytest.approx(2800)
    assert found.dram_active_mean == pytest.approx(0.45)
    assert found.limit == "memory bandwidth" and "90 % on the busiest of 8 GPUs (mean 45 %)" in found.limit_reason
    assert found.memory_used_mean_bytes == pytest.approx(560 * GIB) and found.memory_total_bytes == 640 * GIB


def test_gp_11_hosts_with_the_same_index_are_not_merged(summary: Summary) -> None:
    rows = steady("GPU-0", index=0.0, power_mean_w=1.0) + steady("GPU-1", index=0.0, host="bench-2", power_mean_w=1.0)
    assert one(rows, summary).gpus == 2


def host_row(second: float, *, host: str = "bench-1", **fields: float | str) -> SeriesRow:
    base: dict[str, float | str] = {"ok": 1.0, "error": 0.0, "gpus": 4.0, "gpus_expected": 4.0}
    return SeriesRow(at_ns=at(second), measurement="gpu_host", tags={"host": host}, fields={**base, **fields})


BROKEN: dict[str, float | str] = {"ok": 0.0, "error": 999.0, "error_text": "Unknown Error (nvmlInit)", "gpus": 0.0}


@pytest.mark.parametrize(
    ("rows", "lost", "why"),
    [
        ([host_row(second) for second in range(1, 101)], (), "all there"),
        (
            [host_row(second, gpus=3.0) for second in range(1, 101)],
            ("bench-1: only 3 of 4 GPUs were there",),
            "GP-11: one was never there, so there is no series of it",
        ),
        (
            [host_row(second, gpus=3.0 if 40 < second <= 55 else 4.0) for second in range(1, 101)],
            ("bench-1: only 3 of 4 GPUs were there for 25 % of the time",),
            "for a part",
        ),
        ([host_row(second, gpus=1.0) for second in range(1, 20)] + [host_row(second) for second in range(20, 101)], (),
         "cards that came before the phase began"),
        ([host_row(second, **BROKEN) for second in range(1, 101)], ("bench-1: Unknown Error (nvmlInit)",), "GP-06"),
        ([host_row(second) for second in range(1, 20)], ("bench-1: no point of its GPUs",), "its agent was gone"),
    ],
)  # fmt: skip
def test_gp_06_gp_11_what_a_host_lacks_is_named(
    summary: Summary, rows: list[SeriesRow], lost: tuple[str, ...], why: str
) -> None:
    found = one(rows, summary)
    assert (found.gpus, found.gpus_lost) == (0, lost), why
    assert all(any(each in line for line in warnings([found])) for each in lost)


def test_gp_11_a_card_that_is_lost_is_not_named_twice(summary: Summary) -> None:
    rows = [host_row(second, gpus=3.0) for second in range(1, 101)] + [lost_row(at(second)) for second in range(1, 101)]
    assert one(rows, summary).gpus_lost == ("bench-1 GPU-0: GPU is lost (15)",)
    rows = [msgspec.structs.replace(row, fields={**row.fields, "gpus": 2.0}) if "uuid" not in row.tags else row
            for row in rows]  # fmt: skip
    assert one(rows, summary).gpus_lost[1] == "bench-1: only 2 of 4 GPUs were there", "but a second one is"


def test_gp_11_no_energy_per_token_of_three_of_four_cards(summary: Summary) -> None:
    there = steady(energy_j=100.0)
    assert one(there + [host_row(second) for second in range(1, 101)], summary).energy_per_output_token_j is not None
    short = [host_row(second, gpus=3.0) for second in range(1, 101)]
    assert one(there + short, summary).energy_per_output_token_j is None


def test_gp_11_a_named_host_without_any_point_is_named(summary: Summary) -> None:
    seen = watched(steady("GPU-0", host="a", energy_j=1.0), hosts=("a", "b"))
    (found,) = stages(seen, summary, [window(30, 90)])
    assert found.gpus_lost == ("b: no point of this host",) and found.energy_per_output_token_j is None
    engine = [engine_row(at(second), "b:8000", host="b", running=1.0) for second in range(1, 101)]
    assert watched([*steady("GPU-0", host="a"), *engine], hosts=("a", "b")).silent == (), "b has an engine only"
    assert watched(engine, hosts=("a", "b")).silent == (), "no GPUs were watched"


def test_gp_11_idle_cards_are_told_beside_the_limit(summary: Summary) -> None:
    rows = [row for gpu in range(4) for row in steady(f"GPU-{gpu}", sm_active=0.9 if gpu < 1 else 0.01,
                                                      dram_active=0.8 if gpu < 1 else 0.0)]  # fmt: skip
    rows += [engine_row(at(second), running=32.0) for second in range(1, 101)]
    found = one(rows, summary)
    assert found.limit == "memory bandwidth" and "3 of the 4 GPUs did no work" in found.limit_reason
    idle = steady("GPU-0", utilization_mean=0.0)
    assert "no GPU that was watched did any work" in one(idle, summary).limit_reason


def test_only_hosts_of_the_plan_count(summary: Summary) -> None:
    rows = steady("GPU-0", power_mean_w=100.0) + steady("GPU-1", host="other", power_mean_w=900.0)
    found = stages(watched(rows, hosts=("bench-1",)), summary, [window(30, 90)])[0]
    assert (found.gpus, found.power_mean_w) == (1, 100.0)


def test_gp_01_mig_slices_have_memory_and_the_cards_power_counts_once(summary: Summary) -> None:
    """Two slices of 20 GB that repeat the card's power: 300 W, not 900; utilisation is not supported and not 0."""
    rows = steady("GPU-0", power_mean_w=300.0, energy_j=300.0, memory_used_mean_bytes=99.0 * GIB)
    for name in ("MIG-a", "MIG-b"):
        rows += [
            gpu_row(at(second), name, parent="GPU-0", power_mean_w=300.0, energy_j=300.0,
                    memory_used_mean_bytes=15.0 * GIB, memory_used_max_bytes=16.0 * GIB, memory_total_bytes=20.0 * GIB)
            for second in range(1, 101)
        ]  # fmt: skip
    found = one(rows, summary)
    assert found.gpus == 2 and found.power_mean_w == 300.0 and found.energy_j == pytest.approx(300 * 60)
    assert found.memory_total_bytes == 40 * GIB and found.memory_used_peak_bytes == 32 * GIB
    assert found.memory_used_mean_bytes == pytest.approx(30 * GIB)
    assert found.utilization_mean is None and found.sm_active_mean is None
    alone = one([row for row in rows if row.tags["mig_parent"] != "none"], summary)
    assert alone.power_mean_w == 300.0, "seen through a slice only"


def test_gp_08_no_memory_is_not_0(summary: Summary) -> None:
    found = one(steady(power_mean_w=50.0), summary)
    assert found.memory_used_mean_bytes is None and found.memory_used_peak_bytes is None


def test_memory_peak_is_of_one_moment(summary: Summary) -> None:
    """Two cards that peak at different times are not added at their own peaks."""
    rows = []
    for second in range(1, 101):
        high, low = 70.0 * GIB, 10.0 * GIB
        for gpu, busy in ((0, second <= 60), (1, second > 60)):
            used = high if busy else low
            rows.append(gpu_row(at(second), f"GPU-{gpu}", memory_used_mean_bytes=used, memory_used_max_bytes=used))
    assert one(rows, summary).memory_used_peak_bytes == 80 * GIB


def test_xids_are_counted_in_their_stage(summary: Summary) -> None:
    rows = [*steady(end=50, power_mean_w=1.0), gpu_row(at(51), xid=79.0, xid_count=2.0)]
    rows += [gpu_row(at(95), xid=31.0, xid_count=1.0)]
    found = one(rows, summary)
    assert found.xids == {"GPU-0: Xid 79": 2}
    assert any("Xid 79 (2 times)" in line for line in warnings([found]))


def test_throttling_by_heat_and_hardware_at_once_counts_once(summary: Summary) -> None:
    assert one(steady(thermal_throttled=0.5, hardware_slowdown=0.5), summary).throttled_share == 0.5
    assert one(steady(hardware_slowdown=0.25), summary).throttled_share == 0.25
    assert one(steady(power_mean_w=1.0), summary).throttled_share is None


# --------------------------------------------------------------------------------------------------------- engines


def test_engine_figures_of_two_replicas(summary: Summary) -> None:
    rows = []
    for second in range(1, 101):
        rows.append(engine_row(at(second), "h:1", kv_use=0.9, running=10.0, waiting=2.0, preemptions=1.0))
        rows.append(engine_row(at(second), "h:2", kv_use=0.3, running=20.0, waiting=0.0, preemptions=0.0))
    found = one(rows, summary)
    assert (found.running_mean, found.running_peak, found.waiting_mean) == (30.0, 30.0, 2.0)
    assert found.kv_use_mean == pytest.approx(0.6) and found.kv_use_peak == 0.9, "the fullest one's peak"
    assert found.preemptions == pytest.approx(60)
    assert found.gpus is None and found.power_mean_w is None, "nobody watched GPUs"


def test_server_mean_is_exact_and_percentiles_are_of_merged_buckets(summary: Summary) -> None:
    """900 fast values and 100 slow ones: the mean of the points' means would be 0.55 s, a mean of p95s as wrong."""
    fast = {"ttft_n": 15.0, "ttft_mean_ms": 100.0, "ttft_buckets": "0.05:0 0.1:15"}
    slow = {"ttft_n": 15.0, "ttft_mean_ms": 1000.0, "ttft_buckets": "0.5:0 1:15"}
    rows = [engine_row(at(second), **(slow if second > 84 else fast)) for second in range(1, 101)]
    found = one(rows, summary)
    assert found.server_ttft_mean_ms == pytest.approx((54 * 100 + 6 * 1000) / 60)
    assert found.server_ttft_p50_ms is not None and 50 <= found.server_ttft_p50_ms <= 100
    assert found.server_ttft_p95_ms is not None and 500 <= found.server_ttft_p95_ms <= 1000


def test_damaged_buckets_cost_their_point_only(summary: Summary) -> None:
    rows = [
        engine_row(at(second), ttft_buckets="0.05:0 0.1:5" if second % 2 else "0.1:x nonsense")
        for second in range(1, 101)
    ]
    assert one(rows, summary).server_ttft_p50_ms == pytest.approx(75, abs=1)


def test_prefix_hits_are_over_tokens_not_a_mean_of_shares(summary: Summary) -> None:
    rows = [
        engine_row(at(second), prefix_queries=10.0 if second % 2 else 1000.0, prefix_hits=10.0 if second % 2 else 0.0,
                   prefix_hit_share=1.0 if second % 2 else 0.0)
        for second in range(1, 101)
    ]  # fmt: skip
    assert one(rows, summary).prefix_hit_share == pytest.approx(10 / 1010, rel=0.01)
    gauges = [engine_row(at(second), prefix_hit_share=0.4) for second in range(1, 101)]
    assert one(gauges, summary).prefix_hit_share == pytest.approx(0.4), "an engine that tells a gauge only"


@pytest.mark.parametrize(
    ("instances", "expected", "why"),
    [
        (("127.0.0.1:8000",), {"127.0.0.1:8000"}, "the channel's"),
        (("localhost:8000",), {"127.0.0.1:8000"}, "two names of this host"),
        (("gateway:443",), {"127.0.0.1:8000", "other:9"}, "behind a gateway: all that were watched"),
        ((), {"127.0.0.1:8000", "other:9"}, "no channel has an address"),
    ],
)
def test_engines_of_the_plans_channels_count(instances: tuple[str, ...], expected: set[str], why: str) -> None:
    rows = [engine_row(at(1), "127.0.0.1:8000", running=1.0), engine_row(at(1), "other:9", running=9.0)]
    found = watched(rows, instances=instances).engines
    assert {series.tags["instance"] for series in found} == expected, why


def engine_at(place: str) -> SeriesRow:
    """`instance@host`."""
    instance, _, host = place.partition("@")
    return engine_row(at(50), instance, host=host, running=1.0)


ENGINES_OF: list[tuple[list[str], dict[str, Any], set[str], str]] = [
    (["127.0.0.1:8000@m", "127.0.0.1:8000@other"], {"instances": ("127.0.0.1:8000",), "here": ("m",)}, {"m"},
     "a loopback address of another host is another team's engine"),
    (["127.0.0.1:8000@other"], {"instances": ("localhost:8000",), "here": ("m",)}, set(),
     "it is not ours even if there is no other"),
    (["127.0.0.1:8000@w1", "127.0.0.1:8000@w2"], {"instances": ("127.0.0.1:8000",), "here": ("m", "w1", "w2")},
     {"w1", "w2"}, "each worker asks its own host"),
    (["127.0.0.1:8000@gpu-1", "127.0.0.1:8000@gpu-2"], {"instances": ("gpu-1:8000",), "here": ("m",)}, {"gpu-1"},
     "the agent stands beside the engine: its loopback is the channel's host"),
    (["127.0.0.1:8000@gpu-1.lan"], {"instances": ("gpu-1:8000",), "here": ("m",)}, {"gpu-1.lan"}, "with its domain"),
    (["127.0.0.1:9999@gpu-1", "127.0.0.1:8000@gpu-1"], {"instances": ("gpu-1:8000",)}, {"gpu-1"}, "the port counts"),
    (["m:8000@m", "x:8000@x"], {"instances": ("127.0.0.1:8000",), "here": ("m",)}, {"m"}, "scraped by its name"),
    (["127.0.0.1:8000@gpu-1", "127.0.0.1:8000@other"],
     {"instances": ("127.0.0.1:4000",), "here": ("m",), "hosts": ("gpu-1",)}, {"gpu-1"},
     "a gateway or a tunnel on this host: the plan names the engine's host"),
    (["127.0.0.1:8000@m", "127.0.0.1:8001@m", "127.0.0.1:8000@x"], {"instances": ("127.0.0.1:4000",), "here": ("m",)},
     {"m"}, "a gateway on this host, engines behind it"),
    (["a:1@a", "b:1@b"], {"instances": ("gateway:443",), "here": ("m",)}, {"a", "b"}, "a gateway elsewhere: all"),
    (["a:1@a", "b:1@b"], {"instances": ("gateway:443",), "hosts": ("b",)}, {"b"}, "but those that are named first"),
    (["127.0.0.1:8000@x"], {"instances": ("127.0.0.1:8000",)}, {"x"}, "a run that does not say where it ran"),
    (["vllm-a@x", "vllm-a@y"], {"instances": ("gateway:443",)}, {"x", "y"}, "names of one's own on two hosts"),
]  # fmt: skip


@pytest.mark.parametrize(("places", "given_", "hosts", "why"), ENGINES_OF, ids=[row[-1] for row in ENGINES_OF])
def test_whose_engines_count(places: list[str], given_: dict[str, Any], hosts: set[str], why: str) -> None:
    found = watched([engine_at(place) for place in places], **given_)
    assert {series.tags["host"] for series in found.engines} == hosts, why
    assert bool(found.notes) == (not hosts), "nothing is left out in silence"


def test_a_strangers_loopback_engine_makes_no_limit(tmp_path: Path) -> None:
    """Ours is calm, theirs at the same address on another host is full: a whole run."""
    run = write_run(tmp_path / "run", records(12, steady_s=60, fail_share=0.0), steady_s=60)
    ours = [engine_row(at(second), kv_use=0.2, running=4.0, waiting=0.0, preemptions=0.0) for second in range(1, 96)]
    theirs = [engine_row(at(second), host="other-team", kv_use=1.0, running=40.0, waiting=30.0, preemptions=5.0)
              for second in range(1, 96)]  # fmt: skip
    cards = steady("GPU-0", energy_j=100.0) + steady("GPU-9", host="other-team", energy_j=700.0)
    run.write_series("engine.jsonl", [*ours, *theirs])
    run.write_series("gpu.jsonl", cards)
    (found,) = read(run).summary.resources
    assert (found.kv_use_peak, found.waiting_mean, found.gpus, found.energy_j) == (0.2, 0.0, 1, pytest.approx(6000))
    assert found.limit == "not clear"
    run.write_series("engine.jsonl", theirs)
    run.write_series("gpu.jsonl", [])
    summary = read(run).summary
    assert summary.resources == ()
    assert any("left out (127.0.0.1:8000)" in line and "bench-1" in line for line in summary.warnings)


@pytest.mark.parametrize(
    ("one_", "other", "same", "why"),
    [
        ("gpu-1", "GPU-1", True, "case"), ("gpu-1", "gpu-1.lan", True, "domain"), ("gpu-1", "gpu-10", False, "prefix"),
        ("gpu-1.a", "gpu-1.b", False, "two domains"), ("10", "10.0.0.5", False, "an address has no domain"),
        ("", "x", False, "no name"), ("::1", "::1", True, "IPv6"),
    ],
)  # fmt: skip
def test_names_of_one_host(one_: str, other: str, same: bool, why: str) -> None:
    assert alike(one_, other) is same and alike(other, one_) is same, why


def test_engines_at_one_address_on_two_hosts_stay_two(summary: Summary) -> None:
    """One full, one empty, each known as 127.0.0.1:8000."""
    full = {"kv_use": 0.99, "running": 40.0, "waiting": 10.0, "preemptions": 0.0}
    rows = [row for second in range(1, 101) for row in (
        engine_row(at(second), host="a", **full),
        engine_row(at(second), host="b", kv_use=0.2, running=8.0, waiting=0.0, preemptions=0.0),
    )]  # fmt: skip
    found = one(rows, summary)
    assert set(found.coverage) == {"engine 127.0.0.1:8000 on a", "engine 127.0.0.1:8000 on b"}
    assert found.limit == "KV cache" and "On engine 127.0.0.1:8000 on a" in found.limit_reason
    assert "127.0.0.1:8000 on b had room" in found.limit_reason


def test_waiting_counts_where_the_cache_was_full(summary: Summary) -> None:
    """Full for 12 of 60 s, and nearly all waiting is in them."""
    rows = [
        engine_row(at(second), running=20.0, preemptions=0.0, kv_use=0.97 if 40 < second <= 52 else 0.3,
                   waiting=20.0 if 40 < second <= 52 else 0.1)
        for second in range(1, 101)
    ]  # fmt: skip
    found = one(rows, summary)
    assert found.limit == "KV cache" and "98 % of it while the cache was" in found.limit_reason
    moved = [msgspec.structs.replace(row, fields={**row.fields, "kv_use": 0.3}) for row in rows]
    assert one(moved, summary).limit == "queue"


def test_two_agents_that_scrape_one_engine_do_not_double_it(summary: Summary) -> None:
    rows = [
        row
        for second in range(1, 101)
        for row in (
            engine_row(at(second), "vllm:8000", host="a", running=8.0, preemptions=2.0),
            engine_row(at(second + 0.3), "vllm:8000", host="b", running=8.0, preemptions=2.0),
        )
    ]
    found = one(rows, summary)
    assert found.running_mean == pytest.approx(8) and found.preemptions == pytest.approx(120)
    loopback = [msgspec.structs.replace(row, tags={**row.tags, "instance": "127.0.0.1:8000"}) for row in rows]
    assert one(loopback, summary).running_mean == pytest.approx(16), "each means an engine on its own host"


@pytest.mark.parametrize(
    ("url", "instance"),
    [
        ("http://127.0.0.1:8000/v1/chat/completions", "127.0.0.1:8000"),
        ("https://api.example.com/v1", "api.example.com:443"),
        ("http://h/v1", "h:80"),
        ("http://[::1]:8000/v1", "[::1]:8000"),
        ("nonsense", None),
        ("http://h:99999/", None),
    ],
)
def test_instance_of_a_channel(url: str, instance: str | None) -> None:
    assert instance_of(url) == instance


# -------------------------------------------------------------------------------------------------- several stages


def test_each_stage_has_its_own_figures(summary: Summary) -> None:
    groups = (
        summary.groups[0],
        *(msgspec.structs.replace(summary.groups[0], stage=name) for name in ("few", "many")),
    )
    both = msgspec.structs.replace(summary, groups=groups)
    rows = steady(end=50, power_mean_w=100.0) + steady(start=50, power_mean_w=500.0)
    found = stages(watched(rows), both, [window(10, 50, "few"), window(60, 90, "many")])
    assert [(each.stage, each.power_mean_w) for each in found] == [("few", 100.0), ("many", 500.0)]


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=20))
def test_a_weighted_mean_lies_between_its_values(values: list[float | None]) -> None:
    column = np.array([math.nan if value is None else value for value in values])
    known = [value for value in values if value is not None]
    mean = weighted(column, np.ones(len(values)))
    assert (mean is None) == (not known)
    assert mean is None or min(known) <= mean <= max(known)


@given(st.integers(1, 30), st.integers(1, 7), st.floats(0, 3))
def test_bins_hold_every_count_and_no_mean_leaves_its_values(points: int, width: int, shift: float) -> None:
    rows = [engine_row(at(shift + place + 1), preemptions=2.0, running=float(place)) for place in range(points)]
    series: Series = watched(rows).engines[0]
    edges = np.arange(START_NS, at(points + 20), width * SECOND, dtype=np.int64)
    assert series.bin_sums(series.column("preemptions"), edges).sum() == pytest.approx(2 * points)
    means = series.bin_means(series.column("running"), edges)
    known = means[np.isfinite(means)]
    assert ((known >= -1e-9) & (known <= points - 1 + 1e-9)).all()


# ------------------------------------------------------------------------------------------------------ a whole run


def test_every_column_is_read_by_somebody(tmp_path: Path, summary: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column is eight bytes a point: none is kept for nobody."""
    asked: dict[str, set[str]] = {name: set() for name in COLUMNS}
    column = Series.column

    def recorded(self: Series, name: str) -> Any:
        asked[self.measurement].add(name)
        return column(self, name)

    monkeypatch.setattr(Series, "column", recorded)
    run = write_run(tmp_path / "run", records(12, steady_s=60), steady_s=60)
    bare = steady("GPU-9", power_average_w=1.0, utilization_mean=0.5)
    run.write_series("gpu.jsonl", [*gpu_rows(1, seconds=95), *bare, *(host_row(second) for second in range(1, 95))])
    gauge = [engine_row(at(second), "[::1]:8000", prefix_hit_share=0.5) for second in range(1, 95)]
    run.write_series("engine.jsonl", [*engine_rows(seconds=95), *gauge])
    finish(run)
    only_gauge = [engine_row(at(second), prefix_hit_share=0.5) for second in range(1, 95)]
    one(only_gauge, summary)
    assert {name: set(columns) - asked[name] for name, columns in COLUMNS.items()} == {name: set() for name in COLUMNS}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return write_run(tmp_path / "run", records(12, steady_s=60), steady_s=60)


def test_a_run_without_series_is_as_before(run: RunDirectory) -> None:
    found = read(run).summary
    assert found.resources == () and not found.warnings
    assert '"resources": []' in msgspec.json.format(msgspec.json.encode(found)).decode()


def test_resources_are_in_the_summary_and_survive_its_file(run: RunDirectory) -> None:
    run.write_series("gpu.jsonl", gpu_rows(2, seconds=95))
    run.write_series("engine.jsonl", engine_rows(seconds=95))
    found = read(run).summary
    (stage,) = found.resources
    assert stage.gpus == 2 and stage.running_mean is not None and stage.energy_per_output_token_j is not None
    assert all(share == pytest.approx(1) for share in stage.coverage.values())
    assert msgspec.json.decode(msgspec.json.encode(found), type=Summary) == found
    run.write_summary(found)
    assert "NaN" not in (run.path / SUMMARY).read_text()


@pytest.mark.parametrize(
    ("tail", "says", "why"),
    [
        (b'{"at_ns": 17', "the last line is torn", "a crash of the agent"),
        (b"\x00\x00\x00\n", "zero bytes; the rest of these series is left out", "a crash of the disk"),
        (b'{"at_ns": "x"}\n', "the rest of these series is left out", "edited by hand"),
        (b'{"x": ' + b"[" * 100_000 + b"\n", "the rest of these series is left out", "deeper than a stack"),
        (b'{"x": ' + b"[" * 100_000, "the last line is torn", "the same without its end"),
    ],
)
def test_damaged_series_are_a_warning(run: RunDirectory, tail: bytes, says: str, why: str) -> None:
    path = run.write_series("gpu.jsonl", gpu_rows(1, seconds=95))
    with path.open("ab") as file:
        file.write(tail)
    found = read(run).summary
    assert sum(says in line for line in found.warnings) == 1, (why, found.warnings)
    assert found.resources[0].gpus == 1, "what came before counts"


def test_points_of_another_time_are_told(run: RunDirectory) -> None:
    """A clock that is an hour wrong: nothing of that host counts, and nobody would know why."""
    wrong = [gpu_row(at(second + 7200), "GPU-7", host="bench-2") for second in range(1, 41)]
    run.write_series("gpu.jsonl", [*gpu_rows(1, seconds=95), *wrong])
    run.write_series("engine.jsonl", [engine_row(at(second - 7200)) for second in range(1, 11)])
    found = read(run).summary
    gpus, engines = [line for line in found.warnings if "are the clocks right?" in line]
    assert gpus.startswith("series of GPUs of bench-2: 40 points, none in the run's time (the nearest is ")
    assert (
        engines.startswith("series of engines of bench-1: 10 points, none in the run's time") and "s before" in engines
    )
    assert found.resources[0].gpus == 1


def test_points_before_and_after_the_run_are_no_fault(run: RunDirectory) -> None:
    """An agent that runs all day."""
    run.write_series("gpu.jsonl", gpu_rows(1, seconds=2000))
    assert not [line for line in read(run).summary.warnings if "clocks" in line]


def test_an_hour_of_eight_cards_is_small_and_quick(tmp_path: Path, summary: Summary) -> None:
    """28,800 points: some bytes a number, not a Python object each."""
    import tracemalloc

    random_ = random.Random(1)
    fields = [{"sm_active": random_.random(), "power_mean_w": 500.0, "energy_j": 500.0} for _ in range(64)]

    def rows() -> Any:
        for second in range(1, 3601):
            for gpu in range(8):
                yield gpu_row(at(second), f"GPU-{gpu}", **fields[(second + gpu) % 64])

    tracemalloc.start()
    found = stages(gather(rows(), span_ns=ALL), summary, [window(30, 3600)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found[0].energy_j == pytest.approx(8 * 500 * 3570, rel=1e-6)
    assert peak < 40_000_000, f"{peak / 1e6:.0f} MB"
