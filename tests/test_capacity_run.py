"""`infersiege capacity` and `sweep` as a user starts them, on an engine whose limit can be computed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from siege import Siege, plan_text

from infersiege.capacity.child import Interruption
from infersiege.capacity.hunt import begun, hunt
from infersiege.capacity.runs import Settings, workers_of
from infersiege.capacity.search import Outcome, Range
from infersiege.capacity.state import CapacityState, SweepState
from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import PlanError
from infersiege.plan import load_plan
from infersiege.rundir import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SEATS, TOKENS, STEP_MS = 8, 10, 20
MOST_WAIT_MS = 110
"""All answers take TOKENS steps: N users on SEATS seats make a round of N / SEATS such times, and the first token comes
after the wait and one or two steps more. From 12 users on, half of the waits are (12/8 - 1) * 200 = 100 ms or longer,
and their first tokens at 120 ms or later; at 11 they are 75 + 20 to 35."""


@pytest.fixture
def emulator() -> Iterator[EmulatorProcess]:
    options = ["--max-num-seqs", SEATS, "--step-base-ms", STEP_MS, "--step-per-sequence-ms", 0]
    options += ["--output-tokens", TOKENS, "--prefill-rate", 1_000_000, "--no-prefix-caching"]
    with EmulatorProcess(*map(str, options)) as process:
        yield process


def plan_for(emulator: EmulatorProcess, *, users: int) -> str:
    return plan_text(
        emulator.base_url,
        run='duration = "1500ms"',
        load=f'mode = "closed"\nusers = {users}\nramp = "300ms"\ndrain = "5s"',
        more=f'[[slo]]\nmetric = "ttft"\nstat = "p50"\nmax = "{MOST_WAIT_MS}ms"',
    )


def command(plan: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "infersiege", "capacity", str(plan), "--out", str(out), *options]


def state_in(folder: Path) -> CapacityState:
    return msgspec.json.decode((folder / "capacity.json").read_bytes(), type=CapacityState)


def started(siege: Siege, plan: Path, out: Path, *options: str, until: str) -> subprocess.Popen[bytes]:
    """A search in a process of its own, as soon as a run of it has begun to write turns (glob `until`)."""
    process = subprocess.Popen(
        command(plan, out, *options), env=siege.environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not list(out.glob(f"{until}/turns.jsonl")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def test_the_emulators_limit_is_found_by_a_search_that_was_killed_stopped_and_went_on(
    siege: Siege, emulator: EmulatorProcess
) -> None:
    plan, out = siege.folder / "plan.toml", siege.folder / "capacity"
    plan.write_text(plan_for(emulator, users=8), encoding="utf-8")
    options = ("--start", "12", "--lowest", "10", "--highest", "15", "--repeats", "1", "--resolution", "20")
    killed_in_its_first_probe(siege, plan, out, *options)
    process = started(siege, plan, out, *options, until="probe-003-*")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    before = state_in(out)
    assert [probe.ended for probe in before.probes] == [False, True, False] and before.finding is None

    code, said = siege.command(*command(plan, out, *options)[3:], within_s=110)
    state = state_in(out)
    assert state.probes[:3] == before.probes, "what was found stays"
    assert [probe.number for probe in state.probes] == list(range(1, len(state.probes) + 1))
    assert [probe.call for probe in state.probes][:4] == [1, 2, 2, 3] and state.call == 3
    found = state.finding
    assert found is not None, said
    if found.outcome is Outcome.INVALID:
        pytest.skip(f"this machine was too busy for its own client: {said}")
    assert code == 0 and found.outcome is Outcome.FOUND, said
    assert found.passes in (10, 11) and found.fails in (12, 13), said
    ended = [probe for probe in state.probes if probe.ended]
    assert len(ended) <= state.usual_probes + 1
    nonces = set()
    for probe in ended:
        run = RunDirectory.open(out / probe.directory)
        assert run.report_path.exists()
        assert probe.idle is not None and (probe.idle.by, probe.idle.dirty) == ("gauges", False), "each began idle"
        nonces.add(run.read_plan().nonce)
    assert len(nonces) == len(ended), "fresh salts for each probe"
    assert "EMULATED" in said and f"capacity: {found.passes:.0f} users" in said
    assert (out / "capacity.html").stat().st_size > 100_000
    # All is there already: the same command answers at once, without a run.
    asked_at = time.monotonic()
    again, said = siege.command(*command(plan, out, *options)[3:])
    assert again == 0 and "capacity:" in said and state_in(out).probes == state.probes
    assert time.monotonic() - asked_at < 8


def killed_in_its_first_probe(siege: Siege, plan: Path, out: Path, *options: str) -> None:
    """While it works, nobody else may work in its folder; with it ends its run, which would take a minute."""
    process = started(siege, plan, out, *options, "--probe-duration", "60s", until="probe-001-*")
    try:
        (run,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        code, said = siege.command(*command(plan, out, *options)[3:])
        assert code == 2 and "another capacity, sweep or run works in it" in said
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 25
    while is_alive(run):
        assert time.monotonic() < deadline, "it still loads the target"
        time.sleep(0.05)


def is_alive(process: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text("ascii", "replace")
    except OSError:
        return False


def test_a_probe_that_its_plan_keeps_from_beginning_leaves_none(siege: Siege) -> None:
    """With the faults in words: the plan of the probe is not the one that the user sees."""
    path, out = siege.folder / "plan.toml", siege.folder / "capacity"
    path.write_text(plan_text("http://127.0.0.1:9/v1", run='duration = "2s"'), encoding="utf-8")
    plan = load_plan(path, (), siege.environment)
    settings = Settings(
        plan=path,
        overrides=("load.drain=-1s",),
        slos=(),
        folder=out,
        workers=1,
        expect_workers=1,
        bind="127.0.0.1:0",
        wait_for_target_s=0,
        pause_s=0,
        idle_limit_s=0,
        environ=siege.environment,
    )
    state = begun(out, plan, "users", Range(start=4, lowest=1, highest=8, whole=True), 2_000_000_000)
    with (
        Interruption() as interruption,
        pytest.raises(PlanError, match=r"probe-001-users-4: .*the plan has a fault") as e,
    ):
        hunt(state, plan, settings, interruption, lambda _: None)
    (fault,) = e.value.faults
    assert "load.drain" in fault
    assert state_in(out).probes == ()


def test_a_sweep_over_channels_one_of_which_is_down(siege: Siege, emulator: EmulatorProcess) -> None:
    text = plan_for(emulator, users=2).replace("[[workload]]", '[[workload]]\nchannel = "target"')
    text += '\n[channel.down]\nengine = "sglang"\nbase_url = "http://127.0.0.1:9"\nmodel = "m"\n'
    text += "\n[telemetry]\nengine_metrics = true\n"
    plan, out = siege.folder / "plan.toml", siege.folder / "sweep"
    plan.write_text(text, encoding="utf-8")
    code, said = siege.command(
        "sweep",
        str(plan),
        "--users",
        "2,4",
        "--all-channels",
        "--pause",
        "0.2",
        "--probe-duration",
        "1s",
        "--out",
        str(out),
    )
    assert code == 4, said
    state = msgspec.json.decode((out / "sweep.json").read_bytes(), type=SweepState)
    points = {(probe.channel, probe.load): probe.point for probe in state.probes}
    assert list(points) == [("target", 2), ("down", 2), ("target", 4), ("down", 4)]
    assert points["down", 2] is None and points["down", 4] is None
    two, four = points["target", 2], points["target", 4]
    assert two is not None and four is not None
    assert two.throughput is not None and four.throughput is not None
    assert four.throughput > 1.5 * two.throughput, "seats are free: twice the users, twice the tokens"
    assert two.kv_use_peak is not None, "the engine was watched"
    table = (out / "sweep.md").read_text(encoding="utf-8").splitlines()
    assert len(table) == 6 and "nothing listens" in said
    assert sum("no run" in line for line in table) == 2


@pytest.mark.parametrize(
    ("local", "in_all", "load", "unit", "words"),
    [
        (2, 2, 8, "users", "--workers 2"),
        (4, 4, 2, "users", "--workers 2"),  # each needs a user
        (2, 6, 8, "users", "--workers 2 --expect-workers 6 --bind h:1"),
        (2, 6, 3, "users", "--workers 2 --expect-workers 3 --bind h:1"),
        (2, 6, 2, "users", "--workers 2"),  # who joins from elsewhere is turned away, and tries again
        (0, 6, 1, "users", "--workers 0 --expect-workers 1 --bind h:1"),
        (0, 6, 0.5, "sessions/s", "--workers 0 --expect-workers 6 --bind h:1"),  # a rate can be split at will
    ],
)
def test_small_probes_have_fewer_workers(local: int, in_all: int, load: float, unit: str, words: str) -> None:
    settings = Settings(Path("p"), (), (), Path("f"), local, in_all, "h:1", 0, 0, 0, {})
    assert " ".join(workers_of(settings, load, unit)) == words


@pytest.mark.parametrize(
    ("options", "secret", "said"),
    [
        (("--expect-workers", "2", "--bind", "127.0.0.1:5557"), "", "INFERSIEGE_SECRET is not set"),
        (("--expect-workers", "2"), "a-secret-of-some-length", "the same port"),
        (("--expect-workers", "2", "--workers", "3"), "", "make no sense"),
        (("--expect-workers", "2", "--bind", "host:port"), "", "not an address"),
    ],
)
def test_workers_from_elsewhere_that_could_not_join_are_an_error_before_the_first_probe(
    siege: Siege, options: tuple[str, ...], secret: str, said: str
) -> None:
    plan = siege.folder / "plan.toml"
    plan.write_text(plan_text("http://127.0.0.1:9/v1"), encoding="utf-8")
    siege.environment["INFERSIEGE_SECRET"] = secret
    code, out = siege.command("sweep", str(plan), "--users", "2", "--out", str(siege.folder / "s"), *options)
    assert (code, said in out) == (2, True), out


def test_workers_of_other_hosts_take_part_in_every_probe(
    siege: Siege, emulator: EmulatorProcess, free_port: Callable[[], int]
) -> None:
    """They come back after each. A probe with fewer users than workers has the master's own, however many others wait
    and are faster, and turns the rest away, who try again."""
    plan, out, address = siege.folder / "plan.toml", siege.folder / "sweep", f"127.0.0.1:{free_port()}"
    plan.write_text(plan_for(emulator, users=1), encoding="utf-8")
    siege.environment["INFERSIEGE_SECRET"] = "a-secret-of-some-length"
    worker = [sys.executable, "-m", "infersiege", "worker", "--forever", "--master", address, "--name"]
    names = ("far", "away", "there", "beyond")
    workers = [subprocess.Popen([*worker, name], env=siege.environment, stderr=subprocess.DEVNULL) for name in names]
    try:
        fleet = ("--workers", "2", "--expect-workers", "6", "--bind", address)
        code, said = siege.command("sweep", str(plan), "--users", "3,6", "--out", str(out), *fleet, within_s=100)
    finally:
        for process in workers:
            process.terminate()
        ended = [process.wait(20) for process in workers]
    # On a loaded machine the load generator may have been too slow, and then a probe is invalid.
    assert code in (0, 3), said
    assert ended == [143] * 4
    by_load = {}
    for probe in msgspec.json.decode((out / "sweep.json").read_bytes(), type=SweepState).probes:
        by_load[probe.load] = {turn.worker for turn in RunDirectory.open(out / probe.directory).read_turns()}
    own = {"worker-1", "worker-2"}
    assert own < by_load[3] < {*own, *names} and len(by_load[3]) == 3
    assert by_load[6] == {*own, *names}
