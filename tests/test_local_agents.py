"""Agents that a run starts on its own host: real processes, the emulator's /metrics, the stand-in NVML library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fake_nvml
import msgspec
import pytest
from conftest import Needs
from databases import InfluxDB
from infersiege_agents.engine_names import ENGINES

from infersiege.channels.profiles import PROFILES
from infersiege.emulator.process import EmulatorProcess
from infersiege.plan.schema import Channel, Plan, Telemetry, Workload
from infersiege.rundir import ENGINE_SERIES, GPU_SERIES, RunDirectory
from infersiege.telemetry.local import STOP_WITHIN_S, LocalAgents

KEY = "sk-secret-of-the-engine"
TOKEN = "token-of-the-database"


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--preset", "small") as process:
        yield process


@pytest.fixture(scope="module")
def nvml(needs: Needs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs(fake_nvml.compiler_missing())
    return fake_nvml.compile_library(tmp_path_factory.mktemp("nvml") / "library")


def plan(base_url: str | None = None, *, channel: Mapping[str, Any] | None = None, **telemetry: Any) -> Plan:
    local = Channel(engine="vllm", base_url=base_url or "http://127.0.0.1:9/v1", model="m", **(channel or {}))
    workload = Workload(scenario="agent", trace="builtin:agent", channel="local")
    return Plan(channels={"local": local}, workloads=(workload,), telemetry=Telemetry(**telemetry))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.create(tmp_path / "run", name="x", now_ns=time.time_ns()) as made:
        yield made


@pytest.fixture
def started() -> Iterator[Callable[..., LocalAgents]]:
    """Starts agents; whatever a test does, none is left."""
    made: list[LocalAgents] = []

    def start(plan: Plan, run: RunDirectory, environ: Mapping[str, str] | None = None) -> LocalAgents:
        agents = LocalAgents(plan, {}, run, os.environ if environ is None else environ)
        made.append(agents)
        agents.start()
        return agents

    yield start
    for agents in made:
        agents.stop()


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "never came"
        time.sleep(0.05)
    return found


def commands_of(pids: list[int]) -> str:
    return " ".join(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in pids)


def pids_of(agents: LocalAgents) -> list[int]:
    return [agent.process.pid for agent in agents._agents if agent.process is not None]


def test_a_plan_without_telemetry_starts_nothing(run: RunDirectory, started: Callable[..., LocalAgents]) -> None:
    agents = started(plan(), run)
    assert pids_of(agents) == [] and agents.problems() == []
    agents.stop()
    assert not (run.path / "logs").exists()


def test_engine_series_of_a_channel(
    run: RunDirectory, emulator: EmulatorProcess, started: Callable[..., LocalAgents]
) -> None:
    agents = started(plan(emulator.base_url, engine_metrics=True), run)
    wait_for(lambda: len(list(run.read_series(ENGINE_SERIES))) >= 2)
    assert agents.problems() == []
    begin = time.monotonic()
    agents.stop()
    assert time.monotonic() - begin < STOP_WITHIN_S and agents.problems() == []
    rows = list(run.read_series(ENGINE_SERIES))
    assert {row.tags["instance"] for row in rows} == {f"127.0.0.1:{emulator.port}"}
    assert {row.tags["engine"] for row in rows} == {"vllm"} and rows[-1].fields["up"] == 1.0
    assert (run.path / "logs" / "agent-engine.log").exists()


def test_gpu_series_of_this_host(run: RunDirectory, nvml: Path, started: Callable[..., LocalAgents]) -> None:
    control = fake_nvml.Control(run.path.parent / "nvml.conf")
    agents = started(plan(gpu=True), run, control.environ(nvml))
    wait_for(lambda: sum(row.measurement == "gpu" for row in run.read_series(GPU_SERIES)) >= 4)
    agents.stop()
    assert agents.problems() == []
    assert len({row.tags["uuid"] for row in run.read_series(GPU_SERIES) if row.measurement == "gpu"}) == 2


def test_gp_12_no_driver_is_one_line_and_no_end(
    run: RunDirectory, emulator: EmulatorProcess, started: Callable[..., LocalAgents], tmp_path: Path
) -> None:
    """A host without NVML: its agent ends by itself, the engine's goes on."""
    (tmp_path / "none").mkdir()
    broken = tmp_path / "none" / "libnvidia-ml.so.1"
    broken.write_bytes(b"")
    agents = started(
        plan(emulator.base_url, gpu=True, engine_metrics=True),
        run,
        {**os.environ, "LD_LIBRARY_PATH": str(broken.parent)},
    )
    (line,) = wait_for(agents.problems)
    assert (
        line.startswith("GPU series: the GPUs of this host are not in this run: ")
        and "\n" not in line
        and "Traceback" not in line
    )
    wait_for(lambda: list(run.read_series(ENGINE_SERIES)))
    agents.stop()
    assert agents.problems() == [line], "told once, whatever comes"


def test_an_engine_that_never_answers_is_a_problem(
    run: RunDirectory, free_port: Callable[[], int], started: Callable[..., LocalAgents]
) -> None:
    agents = started(plan(f"http://127.0.0.1:{free_port()}/v1", engine_metrics=True), run)
    wait_for(lambda: list(run.read_series(ENGINE_SERIES)))
    agents.stop()
    (line,) = agents.problems()
    assert line.startswith("engine series") and "127.0.0.1" in line
    assert all(row.fields["up"] == 0.0 for row in run.read_series(ENGINE_SERIES))


def test_a_killed_agent_is_a_problem(
    run: RunDirectory, emulator: EmulatorProcess, started: Callable[..., LocalAgents]
) -> None:
    agents = started(plan(emulator.base_url, engine_metrics=True), run)
    wait_for(lambda: list(run.read_series(ENGINE_SERIES)))
    os.kill(pids_of(agents)[0], signal.SIGKILL)
    (line,) = wait_for(agents.problems)
    assert line.endswith(f"(signal 9): see {run.path / 'logs' / 'agent-engine.log'}"), (
        "no line of its log is the reason"
    )


def test_a_line_that_is_no_error_is_no_reason(
    run: RunDirectory, emulator: EmulatorProcess, started: Callable[..., LocalAgents]
) -> None:
    agents = started(plan(emulator.base_url, engine_metrics=True), run)
    wait_for(lambda: list(run.read_series(ENGINE_SERIES)))
    with (run.path / "logs" / "agent-engine.log").open("a") as log:
        log.write("note: 37 points wait\n")
    os.kill(pids_of(agents)[0], signal.SIGKILL)
    (line,) = wait_for(agents.problems)
    assert "signal 9" in line and "37 points" not in line


def test_an_agent_that_wrote_no_point_is_a_problem(
    run: RunDirectory, emulator: EmulatorProcess, started: Callable[..., LocalAgents]
) -> None:
    """SIGTERM while it starts, as when a driver hangs then: no point, no file, no word."""
    agents = started(plan(emulator.base_url, engine_metrics=True), run)
    agents.stop()
    (line,) = agents.problems()
    assert line.startswith("engine series: the agent wrote no point") and "\n" not in line
    assert not list(run.read_series(ENGINE_SERIES))


def test_a_host_whose_cards_are_lost_has_its_own_words(
    run: RunDirectory, nvml: Path, started: Callable[..., LocalAgents]
) -> None:
    """The agent's error says what is wrong: there is NVML here."""
    control = fake_nvml.Control(run.path.parent / "nvml.conf")
    control.set(count=0)
    agents = started(plan(gpu=True), run, control.environ(nvml))
    (line,) = wait_for(agents.problems)
    assert line.startswith("GPU series: the GPUs of this host are not in this run: ")
    assert "has no GPU" in line and "no NVML" not in line


def test_a_cloud_alone_has_nothing_to_scrape(run: RunDirectory, started: Callable[..., LocalAgents]) -> None:
    cloud = Channel(engine="openai", base_url="http://127.0.0.1:9/v1", model="m")
    only = msgspec.structs.replace(plan(engine_metrics=True), channels={"cloud": cloud})
    agents = started(only, run)
    assert pids_of(agents) == []
    assert agents.problems() == ["engine series: none: OpenAI (channel cloud) has no /metrics to scrape"]
    both = msgspec.structs.replace(plan(engine_metrics=True), channels={**plan().channels, "cloud": cloud})
    assert started(both, run).problems() == [], "a hybrid's cloud is no fault"


def test_the_database_has_the_same_points_and_no_secret_shows(
    run: RunDirectory, emulator: EmulatorProcess, influx_server: InfluxDB, started: Callable[..., LocalAgents]
) -> None:
    """Key and token go through the environment; the database's address does not need to be hidden."""
    (run.path / "key").write_text(KEY)
    agents = started(
        plan(
            emulator.base_url, channel={"api_key_file": str(run.path / "key")}, engine_metrics=True,
            influx_url=influx_server.url, influx_token_env="MY_TOKEN", spool=str(run.path.parent / "spool"),
        ),
        run,
        {**os.environ, "MY_TOKEN": TOKEN},
    )  # fmt: skip
    wait_for(lambda: list(run.read_series(ENGINE_SERIES)))
    commands = commands_of(pids_of(agents))
    assert influx_server.url in commands and "MY_TOKEN" in commands
    assert KEY not in commands and TOKEN not in commands
    agents.stop()
    assert agents.problems() == []
    rows = list(run.read_series(ENGINE_SERIES))
    instance = f"127.0.0.1:{emulator.port}"
    (found,) = influx_server.query(f'SELECT count("up") FROM "engine" WHERE "instance" = \'{instance}\'')
    stored = found["values"][0][1]
    assert stored >= len(rows) >= 1
    for path in run.path.parent.rglob("*"):
        if path.is_file() and path.name != "key":
            assert KEY.encode() not in path.read_bytes() and TOKEN.encode() not in path.read_bytes(), path


def environ_of(pid: int) -> dict[str, str]:
    # Between fork and exec it is a copy of this process.
    wait_for(lambda: b"infersiege_agents" in Path(f"/proc/{pid}/cmdline").read_bytes())
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def test_each_agent_gets_the_secrets_that_it_needs_and_no_other(
    run: RunDirectory, emulator: EmulatorProcess, nvml: Path, influx_server: InfluxDB,
    started: Callable[..., LocalAgents],
) -> None:  # fmt: skip
    environ = fake_nvml.Control(run.path.parent / "nvml.conf").environ(nvml)
    agents = started(
        plan(
            emulator.base_url, channel={"api_key_env": "MY_KEY"}, engine_metrics=True, gpu=True,
            influx_url=influx_server.url, influx_token_env="MY_TOKEN", spool=str(run.path.parent / "spool"),
        ),
        run,
        {**environ, "MY_KEY": KEY, "MY_TOKEN": TOKEN, "OTHER_API_KEY": "sk-of-nobodys-business"},
    )  # fmt: skip
    gpu, engine = (environ_of(pid) for pid in pids_of(agents))
    assert (gpu.get("MY_TOKEN"), engine.get("MY_TOKEN")) == (TOKEN, TOKEN)
    assert (gpu.get("MY_KEY"), engine.get("MY_KEY")) == (None, KEY)
    assert "OTHER_API_KEY" not in {*gpu, *engine}
    assert gpu["PATH"] == environ["PATH"]


def test_the_folder_in_which_somebody_stands_is_not_imported(
    run: RunDirectory, emulator: EmulatorProcess, started: Callable[..., LocalAgents], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` would put it before everything else: a random.py there would run in the agent."""
    trap = run.path.parent / "trap"
    trap.mkdir()
    for name in ("random.py", "argparse.py", "json.py"):
        (trap / name).write_text(f"open({str(trap / 'sprung')!r}, 'w')\nraise SystemExit('trapped')\n")
    monkeypatch.chdir(trap)
    agents = started(plan(emulator.base_url, engine_metrics=True), run)
    wait_for(lambda: list(run.read_series(ENGINE_SERIES)))
    assert agents.problems() == [] and not (trap / "sprung").exists()


def test_the_plan_alone_says_where_points_go(
    run: RunDirectory, emulator: EmulatorProcess, started: Callable[..., LocalAgents]
) -> None:
    """Without influx_url a database of the environment is not written to."""
    environ = {**os.environ, "INFERSIEGE_INFLUX_URL": "http://127.0.0.1:9", "XDG_STATE_HOME": str(run.path.parent)}
    agents = started(plan(emulator.base_url, engine_metrics=True), run, environ)
    wait_for(lambda: list(run.read_series(ENGINE_SERIES)))
    agents.stop()
    assert "127.0.0.1:9:" not in (run.path / "logs" / "agent-engine.log").read_text()
    assert not [path for path in run.path.parent.iterdir() if "infersiege" in path.name]


def test_a_bad_key_file_is_a_problem_and_no_exception(run: RunDirectory, started: Callable[..., LocalAgents]) -> None:
    agents = started(plan(channel={"api_key_file": "/nowhere/key"}, engine_metrics=True), run)
    assert [line.split(":")[0] for line in agents.problems()] == ["series of GPUs and engines"]


def test_an_agent_that_does_not_end_is_killed(
    run: RunDirectory, emulator: EmulatorProcess, started: Callable[..., LocalAgents], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infersiege.telemetry.local.STOP_WITHIN_S", 1.0)
    agents = started(plan(emulator.base_url, engine_metrics=True), run)
    (pid,) = pids_of(agents)
    wait_for(lambda: list(run.read_series(ENGINE_SERIES)))
    os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    agents.stop()
    assert time.monotonic() - begin < 6
    assert "was killed" in agents.problems()[0]
    assert not Path(f"/proc/{pid}").exists()


MASTER = """
import os, sys, time
from pathlib import Path
import test_local_agents as given
from infersiege.rundir import RunDirectory
plan = given.plan(sys.argv[1], engine_metrics=True)
agents = given.LocalAgents(plan, {}, RunDirectory(Path(sys.argv[2])), os.environ)
agents.start()
print(given.pids_of(agents)[0], flush=True)
time.sleep(60)
"""


def test_agents_end_when_the_master_is_killed(run: RunDirectory, emulator: EmulatorProcess) -> None:
    """SIGKILL: nobody tells them, and nothing may be left."""
    master = subprocess.Popen(
        [sys.executable, "-c", MASTER, emulator.base_url, str(run.path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert master.stdout is not None
    try:
        pid = int(master.stdout.readline())
        wait_for(lambda: list(run.read_series(ENGINE_SERIES)))
    finally:
        master.kill()
        master.wait()
        master.stdout.close()
    wait_for(lambda: not alive(pid), 15)


def alive(pid: int) -> bool:
    """Running; a zombie that its new parent has not buried is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_agent_knows_every_engine_that_a_plan_can_name() -> None:
    """Each profile with a metrics page is one that `infersiege-agent engine` reads."""
    told = {name for name, profile in PROFILES.items() if profile.metrics_path is not None}
    assert told and told <= set(ENGINES)
