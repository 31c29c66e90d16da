"""Real runs for the dashboards: emulator, workers, engine agent and GPU agent (stand-in NVML), into one InfluxDB."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import fake_nvml
from databases import InfluxDB
from siege import Ran, Running, Siege

from infersiege.emulator.process import EmulatorProcess

MODEL = "org/emulated-7b"
ODD = 'it\'s "odd" / 中文'
"""A scenario whose name needs escaping wherever it could stand."""
EMULATOR = (
    "--preset", "h100-8b", "--model", MODEL, "--output-tokens", "24", "--kv-blocks", "1100", "--max-model-len",
    "16384", "--max-num-seqs", "8",
    "--fault", "status=503", "--fault-every", "40",
)  # fmt: skip
"""A small engine: requests wait, the KV cache fills, some answers fail."""

PLAN = """
[run]
name = "{name}"
duration = "{seconds}s"
[channel.target]
engine = "vllm"
base_url = "{base_url}"
model = "{model}"
[[workload]]
scenario = "short-qa"
trace = "builtin:short-qa"
weight = 3
[[workload]]
scenario = '''{odd}'''
trace = "builtin:short-qa"
language = "zh"
[load]
{load}
warmup = "1s"
drain = "5s"
[[slo]]
metric = "ttft"
stat = "p95"
max = "100s"
[labels]
gpu = "none: the emulator"
[telemetry]
influx_url = "{influx_url}"
gpu = true
engine_metrics = true
"""


@dataclass(frozen=True)
class Runs:
    """A closed and an open run, one after the other."""

    closed: Ran
    open: Ran
    from_ms: int
    to_ms: int


def make(influx: InfluxDB, folder: Path, *, closed_s: int = 9, open_s: int = 6) -> Runs:
    """Both runs, with two workers and the agents that each starts; all points are in the database at the return."""
    siege = Siege(folder)
    # Agents and runs of this test share nothing with those of the user.
    siege.environment["XDG_STATE_HOME"] = str(folder / "state")
    control = fake_nvml.Control(folder / "nvml.conf")
    library = fake_nvml.compile_library(folder / "nvml")
    siege.environment |= _gpu_environment(control, library)
    from_ms = time.time_ns() // 1_000_000
    with EmulatorProcess(*EMULATOR) as emulator:
        first = _run(siege, influx, emulator, "closed / loop", 'mode = "closed"\nusers = 12', closed_s)
        _disturb(control, first)
        closed = first.wait()
        second = _run(siege, influx, emulator, "open loop", 'mode = "open"\nrate = 12.0', open_s)
        _lose(control, second)
        opened = second.wait()
    return Runs(closed, opened, from_ms, time.time_ns() // 1_000_000 + 1000)


def _gpu_environment(control: fake_nvml.Control, library: Path) -> Mapping[str, str]:
    environment = control.environ(library)
    return {name: environment[name] for name in ("LD_LIBRARY_PATH", fake_nvml.CONTROL)}


def _run(siege: Siege, influx: InfluxDB, emulator: EmulatorProcess, name: str, load: str, seconds: int) -> Running:
    text = PLAN.format(
        name=name,
        seconds=seconds,
        base_url=emulator.base_url,
        model=MODEL,
        odd=ODD,
        load=load,
        influx_url=influx.url,
    )
    return siege.start(text, "--workers", "2")


def _disturb(control: fake_nvml.Control, running: Running) -> None:
    """An Xid, memory errors and a power cap on card 0; card 1 gets hot."""
    running.until('"ok"')
    control.update({"xid.1": "0:31", "0.ecc0": 2, "0.ecc1": 1, "0.throttle": 4, "1.throttle": 0x40, "1.temp": 91})
    time.sleep(4)
    control.update({"0.throttle": 0, "1.throttle": 0, "1.temp": 70})


def _lose(control: fake_nvml.Control, running: Running) -> None:
    """Card 1 falls off the bus for a second or two; the agent finds it again. Not in the run whose figures tests hold
    against summary.json: with so much of so short a run unread, some of them are rightly absent."""
    running.until('"ok"')
    control.update({"rc.1": 15})
    time.sleep(1.5)
    control.update({"rc.1": None})
