"""The GPU agent over a day of virtual time, and what it costs in real time."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fake_nvml
import pytest
from infersiege_agents.points import Point

DAY_S = 86_400


@pytest.fixture(scope="module")
def library(needs: Callable[[str | None], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs(fake_nvml.compiler_missing())
    return fake_nvml.compile_library(tmp_path_factory.getbasetemp() / "fake-nvml")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_day_with_faults_leaves_nothing_behind(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cards, one with slices, each hour: a lost card, a driver restart, slices that change, Xid events."""
    monkeypatch.setenv(fake_nvml.CONTROL, str(tmp_path / "nvml.conf"))
    with fake_nvml.rig(library, tmp_path) as rig:
        rig.control.update({"0.power": 300000, "1.power": 500000, "mig.1": 2})
        rig.start(interval_s=5.0, fast_s=2.5, processes=True)
        seen = Counts()
        sizes = []
        for hour in range(24):
            rig.run(DAY_S / 24 - 120, seen.take)
            rig.control.update({"rc.0": 15, f"xid.{hour + 1}": "1:31", "mig.1": 2 + hour % 2})
            rig.run(60, seen.take)
            rig.control.update({"rc.0": None, "epoch": hour, f"xid.{hour}": None})
            rig.run(60, seen.take)
            gc.collect()
            sizes.append((resident_bytes(), len(gc.get_objects()), rig.library.fakeSamples()))
        assert seen.intervals == DAY_S / 5
        assert seen.xids == 24
        assert seen.negative == 0
        assert seen.energy_j[fake_nvml.uuid(1)] == pytest.approx(500 * DAY_S, rel=0.02)
        assert 0.95 * 300 * DAY_S < seen.energy_j[fake_nvml.uuid(0)] < 300 * DAY_S
        early, late = sizes[3], sizes[-1]
        assert late[0] - early[0] < 2 << 20, "resident memory"
        assert late[1] - early[1] < 200, "Python objects"
        assert max(size[2] for size in sizes) <= 1 + 2 * (2 + 3), "GPM samples and event sets that NVML holds for us"
        assert len(rig.told) < 24 * 20
    assert ctypes.CDLL(str(library)).fakeSamples() == 0


class Counts:
    """What a day's points add up to; the points themselves are not kept."""

    def __init__(self) -> None:
        self.intervals = 0
        self.xids = 0
        self.negative = 0
        self.energy_j: dict[str, float] = {}

    def take(self, points: list[Point]) -> None:
        for point in points:
            numbers = [value for value in point.fields.values() if isinstance(value, int | float)]
            self.negative += sum(value < 0 for value in numbers)
            if point.measurement == "gpu_host":
                self.intervals += 1
                continue
            self.xids += int(point.fields.get("xid_count") or 0)
            if "energy_j" in point.fields:
                joules = fake_nvml.number(point, "energy_j")
                self.energy_j[point.tags["uuid"]] = self.energy_j.get(point.tags["uuid"], 0.0) + joules


@pytest.mark.slow
@pytest.mark.alone
def test_eight_cards_at_1_hz_cost_little_cpu(library: Path, tmp_path: Path) -> None:
    """The real command with its file: at most 2 % of a core here; a quiet machine shows about 0.3 %."""
    control = fake_nvml.Control(tmp_path / "nvml.conf")
    control.update({"count": 8})
    file = tmp_path / "gpu.jsonl"
    command = [sys.executable, "-m", "infersiege_agents.cli", "gpu", "--processes", "--out", str(file)]
    process = subprocess.Popen(command, env=control.environ(library), stderr=subprocess.PIPE)
    try:
        time.sleep(2.5)  # Python's own start is no part of it
        began_s, cpu_s = time.monotonic(), cpu_of(process.pid)
        time.sleep(20)
        share = (cpu_of(process.pid) - cpu_s) / (time.monotonic() - began_s)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    points = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert sum(point["measurement"] == "gpu" for point in points) >= 8 * 20
    assert all(point["fields"]["ok"] == 1 for point in points)
    print(f"CPU with 8 cards at 1 Hz: {share:.2%} of a core")
    assert share < 0.02


def cpu_of(pid: int) -> float:
    """CPU time that a process has had, s; the scheduler's figure, in ns."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
