"""The GPU agent on the stand-in NVML library: values, faults, and what a restart leaves."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import fake_nvml
import pytest
import scripted_server
from fake_nvml import Rig, cards, hosts, number, slices, uuid
from hypothesis import given, settings
from hypothesis import strategies as st
from infersiege_agents.cli import parser_for
from infersiege_agents.errors import NO_GPU, USAGE
from infersiege_agents.gpu_fields import Field, Scalar
from infersiege_agents.measurements import GPU, GPU_HOST
from infersiege_agents.points import Point, json_line

LOST, UNKNOWN, NOT_SUPPORTED, TIMED_OUT, NO_PERMISSION, INVALID = 15, 999, 3, 10, 4, 2
EVENTS = {"xid", "xid_count"}
FAULTY = {"ok", "error", "error_text"} | EVENTS
"""What the point of a card that can't be read has: its fault, and events, which are no readings."""


@pytest.fixture(scope="session")
def library(needs: Callable[[str | None], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs(fake_nvml.compiler_missing())
    return fake_nvml.compile_library(tmp_path_factory.getbasetemp() / "fake-nvml")


@pytest.fixture
def rig(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv(fake_nvml.CONTROL, str(tmp_path / "nvml.conf"))
    with fake_nvml.rig(library, tmp_path) as one:
        yield one


def alive(points: list[Point]) -> list[float]:
    return [number(point, "ok") for point in points]


# What is measured


def test_values_come_in_the_units_of_the_table(rig: Rig) -> None:
    rig.control.update(
        {"count": 1, "0.util": 73, "0.mem": 41, "0.power": 345000, "0.used": 90e9, "0.temp": 64, "0.throttle": 4}
    )
    rig.control.update({"0.sm": 60, "0.occ": 25, "0.tensor": 12, "0.dram": 70})
    rig.start(processes=True)
    point = cards(rig.run(3))[-1]
    expected = {
        "ok": 1, "error": 0, "index": 0, "interval": 1, "samples": 5,
        "utilization_min": 0.73, "utilization_mean": 0.73, "utilization_max": 0.73, "memory_utilization_mean": 0.41,
        "sm_active": 0.60, "sm_occupancy": 0.25, "tensor_active": 0.12, "dram_active": 0.70,
        "memory_used_min_bytes": 90e9, "memory_used_mean_bytes": 90e9, "memory_used_max_bytes": 90e9,
        "memory_reserved_bytes": 600e6, "memory_total_bytes": 150754820096,
        "power_min_w": 345, "power_mean_w": 345, "power_max_w": 345, "power_average_w": 345, "power_instant_w": 345,
        "power_limit_w": 700, "energy_j": 345, "clock_sm_mhz": 1980, "clock_sm_max_mhz": 1980,
        "clock_memory_mhz": 3201, "clock_reasons": 4, "power_capped": 1, "thermal_throttled": 0,
        "hardware_slowdown": 0, "temperature_c": 64, "temperature_memory_c": 73,
        "pcie_rx_bytes": 1e9, "pcie_tx_bytes": 1e9, "nvlink_rx_bytes": 5e6 * 1024, "nvlink_tx_bytes": 5e6 * 1024,
        "ecc_corrected": 0, "ecc_uncorrected": 0, "xid_count": 0,
    }  # fmt: skip
    measured = {name: value for name, value in point.fields.items() if name != "sample_duration"}
    assert measured == pytest.approx(expected, rel=1e-3)
    assert point.tags == {
        "host": "gpu-1", "uuid": uuid(0), "pci": "00000000:01:00.0", "name": "NVIDIA Fake H200", "mig_parent": "none",
    }  # fmt: skip


def test_the_table_has_all_that_is_written_and_all_that_the_table_has_is_written(rig: Rig) -> None:
    """Over a life with everything in it: Xid, a lost card, a machine whose GPU shares the host's memory."""
    rig.control.update({"count": 2, "rc.1.nvmlDeviceGetMemoryInfo_v2": 3, "rc.1.nvmlDeviceGetMemoryInfo": 3})
    rig.start(processes=True)
    points = rig.run(2)
    rig.control.update({"xid.1": "0:31", "rc.1": LOST})
    points += rig.run(13)
    for measurement in (GPU, GPU_HOST):
        own = [point for point in points if point.measurement == measurement.name]
        written = {name for point in own for name, value in point.fields.items() if value is not None}
        assert written == set(measurement.fields)
        assert {tuple(sorted(point.tags)) for point in own} == {tuple(sorted(measurement.tags))}
        for point in own:
            for name, value in point.fields.items():
                assert isinstance(value, str) == (measurement.fields[name].kind == "text") or value is None


def test_gp_14_peaks_of_200_ms_are_seen_and_stand_at_the_right_time(rig: Rig) -> None:
    rig.control.update({"count": 1, "0.burst": 0.2})
    rig.start()
    points = cards(rig.run(10))
    assert len(points) == 10
    for number_of, point in enumerate(points):
        assert number(point, "utilization_max") == 1.0
        assert number(point, "utilization_min") == 0.0
        assert number(point, "utilization_mean") == pytest.approx(0.2)
        end_ns = (fake_nvml.BEGAN_S + number_of + 1) * 1e9
        assert abs(point.at_ns - end_ns) < 10e6, "the point is stamped with the end of its second"


def test_gp_14_a_step_of_the_wall_clock_moves_points_and_changes_no_figure(rig: Rig) -> None:
    rig.control.update({"count": 1, "0.power": 200000})
    rig.start()
    points = rig.run(3)
    rig.clock.wall_offset_s = -3600.0
    points += rig.run(3)
    rig.clock.wall_offset_s = 7200.0
    points += rig.run(3)
    assert [number(point, "interval") for point in cards(points)] == pytest.approx([1.0] * 9, abs=0.01)
    assert [number(point, "energy_j") for point in cards(points)] == pytest.approx([200.0] * 9, rel=0.01)
    steps = [(after.at_ns - before.at_ns) / 1e9 for before, after in itertools.pairwise(hosts(points))]
    assert steps[2] == pytest.approx(1 - 3600, abs=0.01)
    assert steps[5] == pytest.approx(1 + 3600 + 7200, abs=0.01)


def test_clock_event_reasons_are_or_ed_and_shared_out_over_the_samples(rig: Rig) -> None:
    rig.control.update({"count": 1, "0.throttle": 0x4})
    sampler = rig.start(fast_s=0.25)
    assert rig.run(0.5) == []
    rig.control.update({"0.throttle": 0x20 | 0x80})
    rig.run(0.25)
    point = cards(rig.run(0.25))[0]
    assert sampler is rig.samplers[-1]
    assert number(point, "clock_reasons") == 0x4 | 0x20 | 0x80
    shares = [number(point, name) for name in ("power_capped", "thermal_throttled", "hardware_slowdown")]
    assert shares == [0.5, 0.5, 0.5]


def test_ecc_errors_are_counted_per_interval(rig: Rig) -> None:
    rig.control.update({"count": 1, "0.ecc0": 1000, "0.ecc1": 2})
    rig.start()
    points = cards(rig.run(2))
    rig.control.update({"0.ecc0": 1007, "0.ecc1": 3})
    points += cards(rig.run(2))
    assert [number(point, "ecc_corrected") for point in points] == [0, 0, 7, 0]
    assert [number(point, "ecc_uncorrected") for point in points] == [0, 0, 1, 0]


def test_gp_10_processes_are_a_number_read_each_10_s_and_no_ids(rig: Rig) -> None:
    rig.control.update({"count": 1, "0.procs": 3})  # ids 4242 …, of another namespace
    rig.start(processes=True)
    points = cards(rig.run(25))
    assert [at for at, point in enumerate(points) if "processes" in point.fields] == [0, 10, 20]
    assert number(points[10], "processes") == 3
    assert not any("4242" in str(value) for point in points for value in point.fields.values())
    rig.control.update({"0.procs": 300})
    assert [number(one, "processes") for one in cards(rig.run(10)) if "processes" in one.fields] == [300]


def test_processes_are_not_asked_for_unless_wanted(rig: Rig) -> None:
    rig.start()
    assert not any("processes" in point.fields for point in cards(rig.run(12)))


def test_gp_09_the_table_says_that_utilisation_is_not_fullness() -> None:
    assert "not how full" in GPU.fields["utilization_mean"].meaning
    assert "not how full" in GPU.fields["memory_utilization_mean"].meaning
    assert "any kernel" in GPU.fields["utilization_max"].meaning


# Cards that can't be read


def test_gp_03_lost_card_is_told_at_once_and_comes_back_and_the_other_goes_on(rig: Rig) -> None:
    rig.start()
    points = rig.run(10)
    rig.control.update({"rc.1": LOST})
    lost = rig.run(30)
    rig.control.update({"rc.1": None})
    back = rig.run(40)
    assert alive(cards(points, 1)) == [1] * 10
    assert alive(cards(lost, 1)) == [0] * 30
    for point in cards(lost, 1):
        assert set(point.fields) <= FAULTY and (point.fields["ok"], point.fields["error"]) == (0, LOST)
        assert str(point.fields["error_text"]).startswith("GPU is lost (nvmlDevice")
    assert alive(cards(back, 1))[2:] == [1] * 38, "it is asked again each second"
    energy = [number(point, "energy_j") for point in cards(back, 1) if "energy_j" in point.fields]
    assert len(energy) >= 37 and all(0 < joules < 700 for joules in energy), "no difference is made across the gap"
    assert alive(cards(points + lost + back, 0)) == [1] * 80
    energy = [number(point, "energy_j") for point in cards(points + lost + back, 0)]
    assert all(0 < joules < 700 for joules in energy), "the other card has no gap, though NVML was initialised again"
    assert [number(point, "gpus") for point in hosts(lost)] == [1] * 30
    assert {number(point, "gpus_expected") for point in hosts(points + lost + back)} == {2}
    assert {number(point, "ok") for point in hosts(lost)} == {1}
    assert len(rig.told) == 2
    assert uuid(1) in rig.told[0] and "GPU is lost" in rig.told[0]
    assert "can be read again" in rig.told[1]


def test_gp_03_initialisation_is_tried_again_after_longer_and_longer_times(rig: Rig) -> None:
    rig.start()
    rig.run(2)
    rig.control.update({"rc.1": LOST})
    points = hosts(rig.run(120))
    restarts = [number(point, "restarts") for point in points]
    at = [second for second in range(1, len(restarts)) if restarts[second] > restarts[second - 1]]
    waits = [after - before for before, after in itertools.pairwise(at)]
    assert waits == sorted(waits)
    assert waits[0] <= 4 and 30 <= max(waits) <= 32
    assert 5 <= restarts[-1] <= 9, restarts[-1]


def test_all_calls_of_a_card_failing_is_a_fault_of_the_card_and_one_failing_is_not(rig: Rig) -> None:
    rig.start()
    rig.control.update({"rc.0": UNKNOWN, "rc.1.nvmlDeviceGetTemperature": UNKNOWN})
    points = rig.run(3)
    assert alive(cards(points, 0)) == [0] * 3
    assert number(cards(points, 0)[0], "error") == UNKNOWN
    assert "(nvmlDevice" in str(cards(points, 0)[0].fields["error_text"])
    assert alive(cards(points, 1)) == [1] * 3
    assert all("temperature_c" not in point.fields for point in cards(points, 1))
    assert all("utilization_mean" in point.fields for point in cards(points, 1))


def test_a_card_lost_in_the_middle_of_an_interval_gives_none_of_its_samples(rig: Rig) -> None:
    rig.start()
    rig.run(1.4)
    rig.control.update({"rc.1": LOST})
    point = cards(rig.run(0.6), 1)[0]
    assert set(point.fields) <= FAULTY


def test_a_value_that_failed_once_is_absent_once(rig: Rig) -> None:
    rig.control.update({"count": 1})
    rig.start()
    rig.run(1)
    rig.control.update({"rc.nvmlDeviceGetTemperature": TIMED_OUT, "rc.nvmlDeviceGetUtilizationRates": TIMED_OUT,
                        "rc.field.83": TIMED_OUT})  # fmt: skip
    during = cards(rig.run(1))[0]
    rig.control.update({"rc.nvmlDeviceGetTemperature": None, "rc.nvmlDeviceGetUtilizationRates": None,
                        "rc.field.83": None})  # fmt: skip
    first, second = cards(rig.run(2))
    for name in ("temperature_c", "utilization_mean", "utilization_max", "energy_j"):
        assert name not in during.fields
    assert number(during, "ok") == 1
    assert "temperature_c" in first.fields and "utilization_mean" in first.fields
    assert "energy_j" not in first.fields, "that difference would be over two intervals"
    assert 0 < number(second, "energy_j") < 700


def test_gp_08_a_value_that_fails_is_absent_with_its_reason_and_told_once(rig: Rig) -> None:
    """And GP-01: no value, and why. The card is well, and all its other values are there."""
    rig.start()
    rig.run(1)
    rig.control.update({"rc.0.nvmlDeviceGetTemperature": UNKNOWN, "rc.nvmlDeviceGetEnforcedPowerLimit": NO_PERMISSION,
                        "rc.field.83": TIMED_OUT})  # fmt: skip
    points = rig.run(5)
    for point in cards(points, 0):
        assert (point.fields["ok"], "temperature_c" in point.fields, "power_limit_w" in point.fields) == (
            1,
            False,
            False,
        )
        assert point.fields["error"] == TIMED_OUT
        assert point.fields["error_text"] == "Timeout (nvmlDeviceGetFieldValues, energy_j)"
    rig.control.update({"rc.field.83": None})
    assert cards(rig.run(1), 0)[0].fields["error_text"] == "Insufficient Permissions (nvmlDeviceGetEnforcedPowerLimit)"
    rig.control.update({"rc.nvmlDeviceGetEnforcedPowerLimit": None})
    temperature = "Unknown Error (nvmlDeviceGetTemperature)"
    assert [point.fields.get("error_text") for point in cards(rig.run(1))] == [temperature, None]
    rig.control.update({"rc.0.nvmlDeviceGetTemperature": None})
    assert [(point.fields["error"], "error_text" in point.fields) for point in cards(rig.run(1))] == [(0, False)] * 2
    assert len(rig.told) == 3, "each call once, not at each interval, and not for each card"
    assert all(line.startswith("warning: GPU-") and "that value is left out" in line for line in rig.told)
    assert any(temperature in line for line in rig.told)


def test_what_is_not_supported_is_listed_once_at_the_start(rig: Rig) -> None:
    rig.control.update({"count": 8, "rc.nvmlDeviceGetTotalEccErrors": NOT_SUPPORTED, "rc.field.138": INVALID,
                        "rc.field.186": NOT_SUPPORTED, "rc.field.83": NOT_SUPPORTED, "rc.field.197": NOT_SUPPORTED,
                        "rc.nvmlDeviceGetCurrentClocksEventReasons": NOT_SUPPORTED})  # fmt: skip
    rig.start()
    points = rig.run(3)
    rig.control.update({"epoch": 2})
    points += rig.run(20)
    (line,) = [line for line in rig.told if "not supported" in line]
    assert line == (
        f"note: {uuid(0)} at 00000000:01:00.0 and 7 more (NVIDIA Fake H200): not supported, so not written: "
        "ecc_corrected, ecc_uncorrected, nvlink_tx_bytes, power_instant_w"
    ), "an older call gives energy, clock reasons and PCIe rates"
    assert {point.fields["error"] for point in cards(points[-9:])} == {0}, "that is no fault"


UNSUPPORTED = [
    # What isn't supported, fields that are absent then, fields that come from elsewhere then.
    ("rc.nvmlDeviceGetUtilizationRates", {"utilization_mean", "memory_utilization_mean"}, set()),
    ("rc.nvmlDeviceGetTemperature", {"temperature_c"}, {"temperature_memory_c"}),
    ("rc.nvmlDeviceGetTotalEccErrors", {"ecc_corrected", "ecc_uncorrected"}, set()),
    ("rc.nvmlDeviceGetEnforcedPowerLimit", {"power_limit_w"}, {"power_mean_w"}),
    ("rc.nvmlDeviceGetFieldValues", {"power_average_w", "power_instant_w"}, {"power_mean_w", "energy_j"}),
    ("rc.field.186", {"power_instant_w"}, {"power_mean_w", "power_average_w"}),
    ("rc.field.185", {"power_average_w"}, {"power_mean_w"}),
    ("rc.field.83", set(), {"energy_j"}),
    ("rc.field.138", {"nvlink_tx_bytes"}, {"nvlink_rx_bytes"}),
    ("rc.nvmlGpmSampleGet", {"sm_active", "dram_active"}, {"utilization_mean"}),
    ("0.gpm", {"sm_active", "tensor_active"}, {"utilization_mean"}),
    ("rc.nvmlDeviceRegisterEvents", {"xid_count"}, {"utilization_mean"}),
    ("rc.nvmlEventSetCreate", {"xid_count"}, {"utilization_mean"}),
    ("rc.nvmlDeviceGetCurrentClocksEventReasons", set(), {"clock_reasons", "power_capped"}),
    ("rc.nvmlDeviceGetMemoryInfo_v2", {"memory_reserved_bytes"}, {"memory_used_mean_bytes", "memory_total_bytes"}),
]  # fmt: skip


def test_a_counter_that_goes_back_or_leaps_gives_no_value_once(rig: Rig) -> None:
    rig.control.update({"count": 1, "0.ecc0": 1000, "0.power": 100000})
    rig.start()
    rig.run(200)
    rig.control.update({"0.ecc0": 5, "0.power": 600000})  # the stand-in's energy is power x time: it leaps by 100 kJ
    points = cards(rig.run(2))
    rig.control.update({"0.ecc0": 7, "0.power": 100000})
    points += cards(rig.run(2))
    assert [point.fields.get("ecc_corrected") for point in points] == [None, 0, 2, 0]
    assert [point.fields.get("energy_j") for point in points] == [
        None, pytest.approx(600, rel=0.01), None, pytest.approx(100, rel=0.01),
    ]  # fmt: skip


def test_an_agent_that_was_held_up_says_how_long_the_interval_was(rig: Rig) -> None:
    rig.control.update({"count": 1, "0.power": 200000})
    rig.start()
    rig.run(2)
    rig.clock.go_to(5.5)  # nothing ran for 3.5 s
    late = cards(rig.run(4))
    assert number(late[0], "interval") == pytest.approx(3.6, abs=0.11)
    assert number(late[0], "energy_j") == pytest.approx(200 * number(late[0], "interval"), rel=0.01)
    assert len(late) == 1, "what passed is not made up for"
    assert number(cards(rig.run(2))[-1], "interval") == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("key", "absent", "there"), UNSUPPORTED, ids=[row[0] for row in UNSUPPORTED])
def test_what_a_card_does_not_have_is_absent_and_never_0(rig: Rig, key: str, absent: set[str], there: set[str]) -> None:
    rig.control.update({"count": 1, key: 0 if key == "0.gpm" else NOT_SUPPORTED})
    rig.start()
    points = cards(rig.run(3))
    assert alive(points) == [1, 1, 1]
    for point in points:
        assert not absent & set(point.fields)
        assert there <= set(point.fields)


def test_what_a_card_does_not_have_is_not_asked_again_before_the_next_initialisation(rig: Rig) -> None:
    rig.control.update({"count": 1, "rc.nvmlDeviceGetTemperature": NOT_SUPPORTED})
    rig.start()
    rig.run(2)
    rig.control.update({"rc.nvmlDeviceGetTemperature": None})
    assert all("temperature_c" not in point.fields for point in cards(rig.run(5)))
    rig.control.update({"epoch": 2})
    assert "temperature_c" in cards(rig.run(10))[-1].fields


def test_fewer_calls_are_made_of_a_card_that_has_less(rig: Rig) -> None:
    rig.control.update({"count": 1})
    rig.start()
    rig.run(2)
    before = rig.library.fakeCalls()
    rig.run(5)
    all_there = rig.library.fakeCalls() - before
    rig.close()
    rig.control.update({"rc.nvmlDeviceGetUtilizationRates": NOT_SUPPORTED})
    rig.start()
    rig.run(2)
    before = rig.library.fakeCalls()
    rig.run(5)
    assert all_there - (rig.library.fakeCalls() - before) == 25, "five samples a second for five seconds"


def test_pcie_rates_are_the_last_resort_and_seldom(rig: Rig) -> None:
    """They block 20 ms. A value stands for the ten seconds since the one before, so sums come out right."""
    rig.control.update({"count": 1, "rc.field.197": NOT_SUPPORTED, "rc.field.198": NOT_SUPPORTED})
    rig.control.update({"delay_us.nvmlDeviceGetPcieThroughput": 20000})
    rig.start()
    points = cards(rig.run(41))
    there = [at for at, point in enumerate(points) if "pcie_rx_bytes" in point.fields]
    assert there == [10, 20, 30, 40]
    assert number(points[20], "pcie_rx_bytes") == pytest.approx(250000 * 1000 * 10, rel=0.01)
    assert number(points[20], "pcie_tx_bytes") == pytest.approx(900000 * 1000 * 10, rel=0.01)
    assert rig.told == []


def test_counters_of_32_bits_are_not_believed_for_bytes(rig: Rig) -> None:
    rig.control.update({"count": 1, "wide.197": 1, "wide.138": 1})
    rig.start()
    for point in cards(rig.run(5)):
        assert "pcie_tx_bytes" not in point.fields and "nvlink_tx_bytes" not in point.fields
        assert "pcie_rx_bytes" in point.fields and "nvlink_rx_bytes" in point.fields


def test_gp_08_unified_memory_gives_the_hosts_memory_in_fields_of_its_own(rig: Rig, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       125829120 kB\nMemFree: 1 kB\nMemAvailable:   41943040 kB\n", encoding="ascii")
    rig.control.update({"rc.0.nvmlDeviceGetMemoryInfo_v2": 3, "rc.0.nvmlDeviceGetMemoryInfo": 3})
    rig.start(meminfo=meminfo)
    points = rig.run(2)
    for point in cards(points, 0):
        assert not any(name.startswith("memory_used") or name == "memory_total_bytes" for name in point.fields)
        assert number(point, "host_memory_total_bytes") == 125829120 * 1024
        assert number(point, "host_memory_used_bytes") == (125829120 - 41943040) * 1024
    assert not any(name.startswith("host_memory") for point in cards(points, 1) for name in point.fields)
    meminfo.unlink()
    assert not any(name.startswith("host_memory") for point in cards(rig.run(1)) for name in point.fields)


# Driver and initialisation


def test_driver_restart_is_survived_and_the_new_energy_counter_gives_no_nonsense(rig: Rig) -> None:
    rig.control.update({"0.power": 300000, "1.power": 100000})
    rig.start()
    points = rig.run(20)
    rig.control.update({"epoch": 2})
    restarted = rig.run(40)
    assert alive(cards(points, 0)) == [1] * 20
    assert number(hosts(restarted)[0], "ok") == 0
    assert number(hosts(restarted)[0], "error") == UNKNOWN
    dead = [point for point in cards(restarted) if number(point, "ok") == 0]
    assert 2 <= len(dead) <= 8, "back-off: it was back after 1 to 3 s"
    assert alive(cards(restarted, 0))[-30:] == [1] * 30
    energies = [point.fields["energy_j"] for point in cards(points + restarted, 0) if "energy_j" in point.fields]
    assert energies == pytest.approx([300.0] * len(energies), rel=0.02)
    assert len(energies) >= 50
    assert number(hosts(restarted)[-1], "restarts") == 1


def test_gp_06_init_that_fails_from_20_s_on_gives_ok_0_and_a_hint_and_is_tried_again(rig: Rig) -> None:
    rig.start()
    points = rig.run(20)
    rig.control.update({"epoch": 2, "init": UNKNOWN})
    away = rig.run(60)
    rig.control.update({"init": None})
    back = rig.run(40)
    assert alive(hosts(points)) == [1] * 20
    assert alive(hosts(away)) == [0] * 60
    assert alive(cards(away)) == [0] * 120, "each known card says each second that it can't be read"
    assert all(set(point.fields) <= FAULTY for point in cards(away))
    assert all(set(point.fields) == FAULTY - EVENTS for point in cards(away)[2:]), "there is nobody to tell of events"
    assert "restart the agent's container" in str(hosts(away)[-1].fields["error_text"])
    assert number(hosts(away)[-1], "gpus") == 0 and number(hosts(away)[-1], "gpus_expected") == 2
    assert alive(hosts(back))[-8:] == [1] * 8
    assert number(hosts(back)[-1], "restarts") == 1
    assert any("restart the agent's container" in line for line in rig.told)
    assert len(rig.told) < 10


def test_uninitialised_and_shut_down_by_somebody_else_is_initialised_again(rig: Rig) -> None:
    rig.start()
    rig.run(2)
    rig.library.nvmlShutdown()
    points = rig.run(6)
    assert number(cards(points)[0], "error") == 1
    assert alive(hosts(points))[-2:] == [1, 1]


def test_gp_12_no_gpu_at_first_and_then_one(rig: Rig) -> None:
    rig.control.update({"init": 9})
    rig.start()
    assert rig.fault is not None and rig.fault.code == 9
    points = rig.run(5)
    assert [point.measurement for point in points] == ["gpu_host"] * 5
    assert alive(points) == [0] * 5
    assert number(points[-1], "gpus_expected") == 0
    rig.control.update({"init": None})
    points = rig.run(10)
    assert alive(cards(points))[-4:] == [1] * 4
    assert number(hosts(points)[-1], "restarts") == 0


def test_a_driver_without_a_card_is_no_gpu(rig: Rig) -> None:
    rig.control.update({"count": 0})
    rig.start()
    assert rig.fault is not None
    assert alive(rig.run(3)) == [0] * 3
    rig.control.update({"count": 1})
    assert alive(cards(rig.run(6)))[-1] == 1


# Who is who


def test_gp_04_cards_are_known_by_uuid_when_their_index_changes(rig: Rig) -> None:
    rig.control.update({"order": "0,1", "0.power": 100000, "1.power": 500000})
    rig.start()
    before = rig.run(5)
    rig.control.update({"order": "1,0", "epoch": 2})
    after = rig.run(10)
    for points in (before, after[-5:]):
        assert {point.fields["power_mean_w"] for point in cards(points, 0)} == {100.0}
        assert {point.fields["power_mean_w"] for point in cards(points, 1)} == {500.0}
    assert (number(cards(before, 0)[-1], "index"), number(cards(after, 0)[-1], "index")) == (0, 1)
    assert len({point.tags["uuid"] for point in cards(before + after)}) == 2
    assert {point.tags["pci"] for point in cards(before + after, 1)} == {"00000000:02:00.0"}


def test_gp_11_a_missing_card_is_seen(rig: Rig) -> None:
    rig.control.update({"order": "0,1,2"})
    rig.start(expect=4)
    points = rig.run(5)
    assert {number(point, "gpus") for point in hosts(points)} == {3}
    assert {number(point, "gpus_expected") for point in hosts(points)} == {4}
    rig.control.update({"order": "0,1,2,3"})
    points = rig.run(40)
    assert number(hosts(points)[-1], "gpus") == 4, "it is looked for"


def test_gp_11_two_hosts_stay_apart_and_each_card_has_its_own_line(rig: Rig) -> None:
    rig.control.update({"count": 4, "0.util": 100, "1.util": 0, "2.util": 0, "3.util": 0})
    points = []
    for host in ("a", "b"):
        rig.start(host=host)
        points += cards(rig.run(1))
        rig.close()
    lines = {(point.tags["host"], point.tags["uuid"]): number(point, "utilization_mean") for point in points}
    assert len(lines) == 8
    assert sorted(lines.values()) == [0] * 6 + [1] * 2


def test_a_card_that_vanishes_from_the_list_is_said_to_be_gone_for_as_long_as_it_is(rig: Rig) -> None:
    rig.control.update({"order": "0,1"})
    rig.start()
    rig.run(2)
    rig.control.update({"order": "0", "epoch": 2})
    points = rig.run(30)
    assert alive(cards(points, 1)) == [0] * 30
    assert alive(cards(points, 0))[-20:] == [1] * 20
    rig.control.update({"order": "0,1"})
    assert alive(cards(rig.run(40), 1))[-1] == 1


def test_a_card_that_can_not_even_be_identified_is_told_by_the_host(rig: Rig) -> None:
    rig.control.update({"rc.1": LOST})
    rig.start()
    points = rig.run(3)
    assert {point.tags["uuid"] for point in cards(points)} == {uuid(0)}
    host = hosts(points)[-1]
    assert (number(host, "ok"), number(host, "error"), number(host, "gpus"), number(host, "gpus_expected")) == (
        1, LOST, 1, 2,
    )  # fmt: skip
    rig.control.update({"rc.1": None})
    assert alive(cards(rig.run(10), 1))[-1] == 1


def test_eight_cards_one_of_them_lost(rig: Rig) -> None:
    rig.control.update({"count": 8, "3.power": 650000})
    rig.start()
    rig.run(2)
    rig.control.update({"rc.5": LOST})
    points = rig.run(10)
    assert len(cards(points)) == 80
    for index in range(8):
        assert alive(cards(points, index)) == [0 if index == 5 else 1] * 10
    assert number(cards(points, 3)[-1], "power_mean_w") == 650


# MIG


def test_gp_01_slices_have_their_own_memory_and_nothing_of_the_card(rig: Rig) -> None:
    rig.control.update({"count": 2, "mig.0": 2, "0.slice_used": 18e9})
    rig.start()
    points = rig.run(3)
    assert len(slices(points)) == 6
    for point in slices(points):
        assert point.tags["mig_parent"] == uuid(0)
        assert point.tags["uuid"].startswith("MIG-") and point.tags["pci"] == "00000000:01:00.0"
        assert "MIG 1g.18gb" in point.tags["name"]
        assert number(point, "memory_total_bytes") == 20e9
        assert number(point, "memory_used_mean_bytes") == 18e9
        for name in ("utilization_mean", "power_mean_w", "energy_j", "temperature_c", "host_memory_used_bytes"):
            assert name not in point.fields
    assert all("sm_active" in point.fields for point in slices(points)), "GPM knows slices"
    for point in cards(points, 0):
        assert "utilization_mean" not in point.fields and "power_mean_w" in point.fields
    assert all("utilization_mean" in point.fields for point in cards(points, 1))
    assert {number(point, "gpus") for point in hosts(points)} == {2}, "slices are no cards"


def test_slices_come_and_go_without_a_fault(rig: Rig) -> None:
    rig.control.update({"count": 1, "mig.0": 3, "mig.0.1": 0})
    rig.start()
    assert len({point.tags["uuid"] for point in slices(rig.run(2))}) == 2
    rig.control.update({"mig.0.1": 1})
    assert len({point.tags["uuid"] for point in slices(rig.run(14))}) == 3
    rig.control.update({"mig.0.1": 0, "mig.0": 2})
    points = rig.run(14)
    assert len({point.tags["uuid"] for point in slices(points[-4:])}) == 1
    assert set(alive(slices(points))) == {1}
    assert [line for line in rig.told if not line.startswith("note: ")] == []
    assert len(rig.told) == 1, "what a card with slices does not have, once"


def test_a_slice_without_gpm_for_a_moment_is_not_lost(rig: Rig) -> None:
    rig.control.update({"count": 1, "mig.0": 1})
    rig.start()
    rig.run(1)
    rig.control.update({"rc.nvmlGpmMigSampleGet": TIMED_OUT})
    (point,) = slices(rig.run(1))
    assert point.fields["ok"] == 1 and "sm_active" not in point.fields and "memory_used_mean_bytes" in point.fields


def test_slices_of_a_lost_card_are_lost_with_it(rig: Rig) -> None:
    rig.control.update({"count": 1, "mig.0": 2})
    rig.start()
    rig.run(2)
    rig.control.update({"rc.0": LOST})
    points = rig.run(5)
    assert alive(slices(points)) == [0] * 10
    rig.control.update({"rc.0": None})
    assert alive(slices(rig.run(10)))[-2:] == [1, 1]


# Xid


def test_xid_events_are_of_their_card_and_of_their_interval(rig: Rig) -> None:
    rig.start()
    rig.run(1)
    rig.control.update({"xid.1": "1:31", "xid.2": "1:43"})
    points = rig.run(1)
    rig.control.update({"xid.3": "0:63"})
    points += rig.run(3)
    assert [point.fields.get("xid") for point in cards(points, 1)] == [43, None, None, None]
    assert [point.fields["xid_count"] for point in cards(points, 1)] == [2, 0, 0, 0]
    assert [point.fields["xid_count"] for point in cards(points, 0)] == [0, 1, 0, 0]


def test_xid_events_are_heard_after_a_restart_of_the_driver(rig: Rig) -> None:
    rig.start()
    rig.run(2)
    rig.control.update({"epoch": 2})
    rig.run(10)
    rig.control.update({"xid.1": "1:31"})
    assert [point.fields.get("xid") for point in cards(rig.run(1))] == [None, 31]


def test_the_xid_that_took_a_card_away_is_in_its_error(rig: Rig) -> None:
    rig.start()
    rig.run(1)
    rig.control.update({"xid.1": "1:79", "rc.1": LOST})
    first, second = cards(rig.run(2), 1)
    assert str(first.fields["error_text"]).endswith("; Xid 79")
    assert (first.fields["ok"], first.fields["xid"], first.fields["xid_count"]) == (0, 79, 1)
    assert "Xid" not in str(second.fields["error_text"])
    assert "xid" not in second.fields


def test_events_that_could_not_be_heard_are_not_said_to_be_none(rig: Rig) -> None:
    rig.start()
    rig.run(1)
    rig.control.update({"rc.nvmlEventSetWait_v2": UNKNOWN})
    assert not any(EVENTS & set(point.fields) for point in cards(rig.run(2)))
    rig.control.update({"rc.nvmlEventSetWait_v2": None})
    assert {point.fields["xid_count"] for point in cards(rig.run(1))} == {0}


# Slow calls


def test_a_slow_call_makes_points_late_and_never_wrong_and_is_told_once(rig: Rig) -> None:
    rig.control.update({"count": 2, "0.power": 250000, "1.power": 250000})
    rig.control.update({"delay_us.nvmlDeviceGetTemperature": 300000})
    rig.start()
    points = rig.run(20)
    assert len(cards(points, 0)) >= 18
    for point in cards(points):
        assert number(point, "energy_j") / number(point, "interval") == pytest.approx(250, rel=0.25)
        assert 0.25 < number(point, "sample_duration") < 0.35
    total = sum(number(point, "interval") for point in cards(points, 1))
    assert total == pytest.approx(20, abs=1.0), "all time is in some interval"
    assert sum(number(point, "energy_j") for point in cards(points, 1)) == pytest.approx(250 * total, rel=0.03)
    assert 0.55 < number(hosts(points)[-1], "sample_duration") < 0.7
    assert [line for line in rig.told if "nvmlDeviceGetTemperature took 300 ms" in line] == rig.told
    assert len(rig.told) == 1


def test_reading_that_takes_most_of_the_interval_still_makes_a_point_of_each(rig: Rig) -> None:
    rig.control.update({"count": 3, "delay_us.nvmlDeviceGetTemperature": 300000})
    rig.start()
    points = rig.run(30)
    assert len(hosts(points)) >= 28
    assert [number(point, "interval") for point in cards(points, 2)][2:] == pytest.approx([1.0] * 28, abs=0.21)


def test_where_quick_calls_are_slow_there_are_fewer_of_them(rig: Rig) -> None:
    """The driver's lock is the engine's too."""
    rig.control.update({"count": 1, "delay_us.nvmlDeviceGetUtilizationRates": 100000})
    rig.start()
    points = cards(rig.run(20))
    assert {number(point, "samples") for point in points[2:]} <= {1, 2}
    assert all(number(point, "sample_duration") < 0.25 for point in points)
    assert sum(number(point, "interval") for point in points) == pytest.approx(20, abs=1.2)


# Everything at once

_KEYS = ("rc.0", "rc.1", "rc.nvmlDeviceGetFieldValues", "rc.1.nvmlDeviceGetMemoryInfo_v2", "rc.field.83", "init",
         "rc.nvmlDeviceGetCount_v2", "rc.handle", "rc.nvmlGpmSampleGet", "rc.nvmlDeviceGetUUID")  # fmt: skip
_CODES = st.sampled_from([1, 2, 3, 6, 9, 10, 13, 15, 16, 17, 18, 28, 999, None])
_TROUBLE = st.lists(
    st.dictionaries(st.sampled_from([*_KEYS, "epoch", "mig.0", "order"]), _CODES, max_size=3), min_size=1, max_size=8
)


@pytest.fixture(scope="module")
def many(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Rig]]:
    """Gives a fresh rig each time: a property's examples share their fixtures."""
    folder = tmp_path_factory.mktemp("many")
    before = os.environ.get(fake_nvml.CONTROL)
    os.environ[fake_nvml.CONTROL] = str(folder / "nvml.conf")
    with fake_nvml.rig(library, folder) as first:

        def fresh() -> Rig:
            first.library.fakeReset()
            return Rig(first.library, fake_nvml.Control(folder / "nvml.conf"))

        yield fresh
    if before is None:
        del os.environ[fake_nvml.CONTROL]
    else:
        os.environ[fake_nvml.CONTROL] = before


@settings(max_examples=50)  # each is a minute of virtual time
@given(trouble=_TROUBLE)
def test_whatever_happens_points_are_whole_and_nothing_is_negative(
    many: Callable[[], Rig], trouble: list[dict[str, int | None]]
) -> None:
    rig = many()
    rig.control.update({"0.power": 700000, "1.power": 700000})
    rig.start(fast_s=0.5)
    points: list[Point] = []
    for change in trouble:
        steered: dict[str, object] = dict(change)
        if change.get("order") is not None:
            steered["order"] = {0: "0,1", 1: "1,0", 2: "1"}[(change["order"] or 0) % 3]
        if change.get("mig.0") is not None:
            steered["mig.0"] = (change["mig.0"] or 0) % 4
        rig.control.update(steered)
        points += rig.run(2)
    rig.control.update(dict.fromkeys([*_KEYS, "order"]))
    last = rig.run(40)
    assert alive(cards(last, 0))[-1] == alive(cards(last, 1))[-1] == alive(hosts(last))[-1] == 1, "all is well again"
    for point in points + last:
        assert json_line(point)
        if point.measurement == "gpu" and not point.fields["ok"]:
            assert FAULTY - EVENTS <= set(point.fields) <= FAULTY and point.fields["error"]
        for name, value in point.fields.items():
            assert isinstance(value, str) or value is None or value >= 0, (name, value)
        if "energy_j" in point.fields:
            assert number(point, "energy_j") <= 700 * number(point, "interval") * 1.02
    seen = [(point.measurement, tuple(sorted(point.tags.items())), point.at_ns) for point in points + last]
    assert len(seen) == len(set(seen)), "no point replaces another"
    rig.close()
    assert rig.library.fakeSamples() == 0, "all GPM samples and event sets were given back"


def test_rows_of_the_readers_name_fields_of_the_table_or_counters() -> None:
    from infersiege_agents import gpu_card, gpu_fields

    known = set(GPU.fields) | {counter.total for counter in gpu_card.COUNTERS} | {"power_w"}
    rows: list[Scalar | Field] = [*gpu_fields.SCALARS, *gpu_fields.FIELDS, gpu_fields.POWER_INSTANT]
    rows += gpu_fields.OLDER_CALLS.values()
    assert {row.name for row in rows} <= known
    assert {counter.field for counter in gpu_card.COUNTERS} <= set(GPU.fields)


# The command


def agent(*arguments: str, environ: dict[str, str], stderr: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "infersiege_agents.cli", "gpu", *arguments]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True)


def rows_of(file: Path) -> list[Point]:
    return [
        Point(row["measurement"], row["tags"], row["fields"], row["at_ns"])
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines())
    ]


@pytest.fixture
def control(tmp_path: Path) -> fake_nvml.Control:
    return fake_nvml.Control(tmp_path / "nvml.conf")


def without_driver(tmp_path: Path) -> dict[str, str]:
    """pynvml finds an empty file in place of the library, also on a host that has one."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


def test_gp_12_host_without_a_driver_gets_one_line_a_hint_and_its_own_code(tmp_path: Path) -> None:
    process = agent("--out", str(tmp_path / "gpu.jsonl"), environ=without_driver(tmp_path))
    out, err = process.communicate(timeout=60)
    assert process.returncode == NO_GPU
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith("error: NVML can't be used: NVML Shared Library Not Found")
    assert second.startswith("hint: install the NVIDIA driver") and "--wait" in second


NO_USE = [
    (18, "mismatch", "reboot"),
    (4, "Insufficient Permissions", "/dev/nvidiactl"),
    (9, "Driver Not Loaded", "modprobe"),
    (999, "Unknown Error", "restart the agent's container"),
]


@pytest.mark.parametrize(("code", "seen", "what_to_do"), NO_USE, ids=[str(row[0]) for row in NO_USE])
def test_gp_12_driver_that_refuses(
    library: Path, control: fake_nvml.Control, tmp_path: Path, code: int, seen: str, what_to_do: str
) -> None:
    control.update({"init": code})
    process = agent("--out", str(tmp_path / "gpu.jsonl"), environ=control.environ(library))
    _, err = process.communicate(timeout=60)
    assert process.returncode == NO_GPU
    first, second = err.splitlines()
    assert seen.lower() in first.lower() and what_to_do in second


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"count": 0}, "the NVIDIA driver answers, but it has no GPU for this process"),
        ({"rc.0": LOST, "rc.1": LOST}, "the NVIDIA driver answers, but its GPUs can't be read: GPU is lost"),
        ({"init": 9}, "NVML can't be used: Driver Not Loaded"),
    ],
    ids=["no card", "cards lost", "no driver"],
)
def test_no_driver_no_card_and_lost_cards_are_told_apart(
    library: Path, control: fake_nvml.Control, tmp_path: Path, wrong: dict[str, object], text: str
) -> None:
    control.update(wrong)
    process = agent("--out", str(tmp_path / "gpu.jsonl"), environ=control.environ(library))
    _, err = process.communicate(timeout=60)
    assert process.returncode == NO_GPU
    assert err.startswith(f"error: {text}"), err
    assert not (tmp_path / "gpu.jsonl").exists()


def test_gp_12_wait_writes_ok_0_and_goes_on_when_the_driver_comes(
    library: Path, control: fake_nvml.Control, tmp_path: Path
) -> None:
    control.update({"init": 9})
    file = tmp_path / "gpu.jsonl"
    process = agent(
        "--wait", "--interval", "0.5", "--expect", "2", "--out", str(file), environ=control.environ(library)
    )
    try:
        until(lambda: file.is_file() and file.stat().st_size > 0)
        control.update({"init": None})
        until(lambda: '"gpu"' in file.read_text(encoding="utf-8"))
    finally:
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    points = rows_of(file)
    first = hosts(points)[0]
    assert (number(first, "ok"), number(first, "error"), number(first, "gpus_expected")) == (0, 9, 2)
    assert "Driver Not Loaded" in str(first.fields["error_text"])
    assert alive(cards(points))[-1] == 1
    assert "NVML can be read again" in err and "Traceback" not in err


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetCount_v2"], ids=["a quick call", "the first"]
)
def test_a_driver_that_hangs_is_told_written_and_ended_by_one_signal(
    library: Path, control: fake_nvml.Control, tmp_path: Path, call: str
) -> None:
    control.update({f"delay_us.{call}": 90_000_000})
    file, told = tmp_path / "gpu.jsonl", tmp_path / "told"
    with told.open("w", encoding="utf-8") as stderr:
        process = agent("--interval", "0.5", "--out", str(file), environ=control.environ(library), stderr=stderr)
    try:
        until(lambda: file.is_file() and len(hosts(rows_of(file))) >= 3)
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()
    points = hosts(rows_of(file))
    assert {(number(point, "ok"), number(point, "error"), number(point, "gpus")) for point in points} == {(0, 10, 0)}
    assert call.removesuffix("_v2") in str(points[0].fields["error_text"])
    first, *_, last = told.read_text(encoding="utf-8").splitlines()
    assert first.startswith("warning: nvml") and "has not answered for 5 s" in first
    assert last == f"{file}: {len(rows_of(file))} points written"


def test_a_driver_that_hangs_does_not_outlast_seconds(
    library: Path, control: fake_nvml.Control, tmp_path: Path
) -> None:
    control.update({"delay_us.nvmlDeviceGetUUID": 90_000_000})
    process = agent("--seconds", "1", "--out", str(tmp_path / "gpu.jsonl"), environ=control.environ(library))
    try:
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "ending without it" in err and "gpu.jsonl: 1 points written" in err


def test_a_driver_that_hangs_and_then_has_no_card_leaves_a_closed_file(
    library: Path, control: fake_nvml.Control, tmp_path: Path
) -> None:
    control.update({"count": 0, "delay_us.nvmlDeviceGetCount_v2": 5_600_000})
    process = agent("--out", str(tmp_path / "gpu.jsonl"), environ=control.environ(library))
    _, err = process.communicate(timeout=30)
    assert process.returncode == NO_GPU
    assert "has not answered for 5 s" in err and "gpu.jsonl: 1 points written" in err
    assert "error: the NVIDIA driver answers, but it has no GPU" in err


def test_hot_restart_makes_no_duplicate_and_no_negative_value(
    library: Path, control: fake_nvml.Control, tmp_path: Path
) -> None:
    """Killed in the middle, started again on the same file: as a supervisor does."""
    control.update({"0.power": 400000, "1.power": 400000})
    file = tmp_path / "gpu.jsonl"
    for _ in range(2):
        size = file.stat().st_size if file.is_file() else 0
        process = agent("--interval", "0.5", "--out", str(file), environ=control.environ(library))
        until(lambda size=size: file.is_file() and file.stat().st_size > size + 2000)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    arguments = ("--interval", "0.5", "--seconds", "0.9", "--out", str(file))
    process = agent(*arguments, environ=control.environ(library))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    points = rows_of(file)
    seen = [(point.measurement, point.tags.get("uuid"), point.at_ns) for point in points]
    assert len(seen) == len(set(seen))
    for index in range(2):
        at = [point.at_ns for point in cards(points, index)]
        assert at == sorted(at)
        assert all(0 < number(point, "energy_j") <= 420 * number(point, "interval") for point in cards(points, index))
    assert all(value >= 0 for point in points for value in point.fields.values() if isinstance(value, float))


def test_seconds_ends_it_with_all_its_points_and_says_so(
    library: Path, control: fake_nvml.Control, tmp_path: Path
) -> None:
    file = tmp_path / "gpu.jsonl"
    arguments = ("--seconds", "1.5", "--interval", "0.5", "--host", "rack 7", "--out", str(file))
    process = agent(*arguments, environ=control.environ(library))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert len(hosts(rows_of(file))) in (2, 3)
    assert {point.tags["host"] for point in rows_of(file)} == {"rack 7"}
    assert f"{len(rows_of(file))} points written" in err


def test_points_that_the_database_refuses_are_exit_code_4(
    library: Path, control: fake_nvml.Control, tmp_path: Path
) -> None:
    refusal = scripted_server.answering(scripted_server.whole(b'{"message": "unable to parse"}', "400 Bad Request"))
    with scripted_server.Server(refusal) as database:
        more = (
            "--seconds",
            "0.5",
            "--interval",
            "0.5",
            "--influx-url",
            database.url,
            "--spool",
            str(tmp_path / "spool"),
        )
        process = agent(*more, environ=control.environ(library))
        _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "rejected" in err and "unable to parse" in err


USAGES = [
    (["--interval", "0"], "--interval"),
    (["--interval", "1m"], "1m"),
    (["--fast", "nan"], "--fast"),
    (["--expect", "-1"], "--expect"),
    (["--seconds", "x"], "--seconds"),
]


@pytest.mark.parametrize(("arguments", "named"), USAGES, ids=[" ".join(row[0]) for row in USAGES])
def test_wrong_options_are_usage_errors(arguments: list[str], named: str) -> None:
    process = agent(*arguments, environ=dict(os.environ))
    _, err = process.communicate(timeout=60)
    assert process.returncode == USAGE
    assert named in err and "Traceback" not in err


def until(true: Callable[[], bool], within_s: float = 30.0) -> None:
    ends = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < ends, "did not happen in time"
        time.sleep(0.05)


def test_a_second_agent_on_the_host_is_noticed_once_and_both_go_on(
    library: Path, control: fake_nvml.Control, tmp_path: Path
) -> None:
    """Their points have the same tags: whoever adds them up must know that there are two."""
    host = f"twin-{os.getpid()}"
    files = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    processes = []
    try:
        for file in files:
            more = ("--interval", "0.5", "--host", host, "--out", str(file))
            processes.append(agent(*more, environ=control.environ(library)))
            until(lambda file=file: file.is_file() and file.stat().st_size > 0)  # type: ignore[misc]
        until(lambda: all(len(hosts(rows_of(file))) >= 2 for file in files))
        other = agent(
            *("--seconds", "0.5", "--interval", "0.5", "--host", f"{host}-b", "--out", str(tmp_path / "other.jsonl")),
            environ=control.environ(library),
        )
        assert "another" not in other.communicate(timeout=30)[1], "another host: other series"
    finally:
        for process in processes:
            process.terminate()
        said = [process.communicate(timeout=30)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert [text.count("note: another infersiege-agent on this host") for text in said] == [0, 1]
    assert f"gpu of {host}" in said[1]


def test_every_command_of_the_readme_is_one() -> None:
    readme = (Path(__file__).parents[1] / "agents" / "README.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in readme.splitlines() if line.startswith("    infersiege-agent ")]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        parsed = parser_for(words[0]).parse_args(words)
        assert parsed.command == words[0], line
