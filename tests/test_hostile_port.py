"""Everything that may come to a master's port, thrown at one run: it is neither stopped nor distorted."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hostile_peers import CURVE, REPLAYS, STRANGERS, TRAITORS, Door, Recorder, random_secret
from siege import Ran, Running, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.alone]

INPUTS = {**STRANGERS, **TRAITORS, **REPLAYS}
RATE, DURATION_S = 10, 16


@dataclass(frozen=True, slots=True)
class Besieged:
    ran: Ran
    answered: dict[str, bool]
    """Input -> whether the run went on and its port greeted the next peer."""


def greets(port: int) -> bool:
    """Whether a master still answers there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        peer.sendall(CURVE)
        return peer.recv(10)[:1] == b"\xff"
    return False


def throw(running: Running, door: Door) -> dict[str, bool]:
    answered = {}
    for name, attack in INPUTS.items():
        attack(door)
        answered[name] = running.process.poll() is None and greets(door.port)
    return answered


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[Besieged]:
    """One run with a worker of the master's and one that joins over a proxy, on an open load of one turn a session."""
    siege = Siege(tmp_path_factory.mktemp("hostile"))
    door = Door(free_port(), random_secret())
    recorder = Recorder(door.port)
    siege.environment["INFERSIEGE_SECRET"] = door.secret
    load = f'mode = "open"\nrate = {RATE}\narrivals = "constant"\ndrain = "3s"'
    with EmulatorProcess("--output-tokens", "10") as emulator:
        text = plan_text(emulator.base_url, load=load, run=f'duration = "{DURATION_S}s"')
        options = ("--workers", "1", "--expect-workers", "2", "--bind", f"127.0.0.1:{door.port}")
        running = siege.start(text, *options)
        command = [sys.executable, "-m", "infersiege", "worker", "--master", f"127.0.0.1:{recorder.port}"]
        worker = subprocess.Popen([*command, "--name", "far"], env=siege.environment)
        try:
            running.until('"worker":"far"')
            door.recorded += [bytes(recorder.sent), bytes(recorder.answered)]
            answered = throw(running, door)
            over = running.process.poll()
            ran = running.wait(within_s=DURATION_S + 60)
            assert over is None, f"the run was over before all was thrown at it:\n{ran.out}"
            assert worker.wait(20) == 0
        finally:
            door.close()
            recorder.close()
            worker.kill()
            worker.wait()
    yield Besieged(ran, answered)


def test_there_are_more_than_fifty() -> None:
    assert len(INPUTS) == len(STRANGERS) + len(TRAITORS) + len(REPLAYS) > 50


@pytest.mark.parametrize("name", INPUTS)
def test_the_port_answers_after(besieged: Besieged, name: str) -> None:
    assert besieged.answered[name]


def test_the_run_is_valid_whole_and_as_long_as_planned(besieged: Besieged) -> None:
    ran = besieged.ran
    check_passed(ran)
    check_conserved(ran)
    assert len(ran.turns) == RATE * DURATION_S, "every arrival has a record, and nobody else's rows are in it"
    assert {turn.outcome for turn in ran.turns} == {Outcome.OK}
    assert {turn.worker for turn in ran.turns} == {"worker-1", "far"}
    (ended,) = (event for event in ran.events if event.kind == "load_ended")
    load_s = (ended.at_ns - ran.summary.started_ns) / 1e9
    assert DURATION_S - 0.5 < load_s < DURATION_S + 2


def test_no_worker_was_lost_and_nothing_was_spoken_in_their_names(besieged: Besieged) -> None:
    ran = besieged.ran
    assert not any(worker.lost for worker in ran.summary.workers)
    assert len(ran.summary.workers) == 2
    assert not [event for event in ran.events if event.kind == "worker_lost"]
    refused = [event for event in ran.events if event.kind == "worker_refused"]
    assert [event.worker for event in refused] == ["stranger", "worker-1"], "those that asked to join, and no other"
    assert "forged" not in Path(ran.path / "turns.jsonl").read_text(encoding="utf-8")


def test_what_strangers_send_is_not_the_users_business(besieged: Besieged) -> None:
    assert "Traceback" not in besieged.ran.out
    for log in (besieged.ran.path / "logs").iterdir():
        assert "Traceback" not in log.read_text(encoding="utf-8")
