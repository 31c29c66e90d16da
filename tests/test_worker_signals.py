"""SIGINT, SIGTERM and SIGHUP at an `infersiege worker`, in every state that it can be in; and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any

import psutil
import pytest
from isolated import isolated
from siege import Running, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import Outcome, Reason

WORKER = (sys.executable, "-m", "infersiege", "worker", "--master")
SECRET = "of-this-test-only"
AT_ONCE_S = 20.0
"""Bound of what takes half a second on an idle machine; the waits that a signal ends are 15 s to 10 minutes long."""


class Masters:
    """Those of side_signals.py, which go so far and no further."""

    def __init__(self, folder: Path) -> None:
        (folder / "plan.toml").write_text(plan_text("http://127.0.0.1:9/v1"), encoding="utf-8")
        self._events = folder / "events.txt"
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("side_signals.py")), str(folder)], stdin=subprocess.PIPE
        )
        ports = folder / "ports.json"
        until(lambda: ports.exists() or self._process.poll() is not None, "the masters are not there")
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in json.loads(ports.read_text()).items()}

    def said(self, line: str) -> int:
        """How many of their lines begin so."""
        return sum(one.startswith(line) for one in self._events.read_text(encoding="utf-8").splitlines())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(20) == 0


class WorkerProcess:
    """`infersiege worker`, with a spool and a temporary directory of its own."""

    def __init__(self, folder: Path, *arguments: str, before: tuple[str, ...] = ()) -> None:
        self.folder = folder
        for name in ("spool", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        environment = os.environ | {"INFERSIEGE_SECRET": SECRET, "INFERSIEGE_SPOOL": str(folder / "spool")}
        self._log = folder / "said.txt"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*before, *WORKER, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment | {"TMPDIR": str(folder / "tmp")},
                start_new_session=True,
            )

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def left(self) -> list[str]:
        """Files and folders that it has left behind."""
        return [path.name for name in ("spool", "tmp") for path in (self.folder / name).iterdir()]


def until(condition: Callable[[], Any], what: str, within_s: float = 40.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def children_of(process: int) -> list[int]:
    """Process ids."""
    return [child.pid for child in psutil.Process(process).children()]


def ended(process: int) -> bool:
    """Also where nobody asks for its exit code."""
    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Masters]:
    found = Masters(tmp_path_factory.mktemp("masters"))
    yield found
    found.close()


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    """Whoever runs the tests may ignore SIGHUP, and processes inherit that."""
    before = signal.signal(SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(SIGHUP, before)


# ---------------------------------------------------------------------------------------------------- before the load

BEFORE = [
    ("no master", SIGINT, "waiting for a master", "Ctrl-C"),
    ("no master", SIGTERM, "waiting for a master", "docker stop"),
    ("no master", SIGHUP, "waiting for a master", "a closed terminal"),
    ("another secret", SIGINT, "knocked", "Locust's constructor swallows a KeyboardInterrupt, and tries for 300 s"),
    ("no answer", SIGTERM, "hello", "it has said hello, ten times 2 s"),
    ("files", SIGINT, "wanted", "it has asked for a trace, 60 s"),
    ("go", SIGTERM, "ready", "it waits for the others"),
    ("go", SIGHUP, "ready", "the same"),
]
"""(master, signal, what says that the worker has got so far, why)."""


@pytest.mark.parametrize(("state", "number", "sign", "reason"), BEFORE, ids=[f"{r[0]}-{r[1].name}" for r in BEFORE])
def test_a_signal_before_the_load_ends_it_at_once(
    state: str, number: signal.Signals, sign: str, reason: str, masters: Masters, tmp_path: Path, free_port: Any
) -> None:
    name = f"{state.replace(' ', '-')}-{number.name}"
    address = masters.addresses.get(state) or f"127.0.0.1:{free_port()}"
    knocked = masters.said("knocked") if state == "another secret" else 0
    with WorkerProcess(tmp_path, address, "--name", name) as worker:
        if state == "no master":
            until(lambda: sign in worker.said(), "it looks for no master")
        elif state == "another secret":
            until(lambda: masters.said(sign) >= knocked + 2, "its first connection is a look, the second one Locust's")
        else:
            until(lambda: masters.said(f"{sign} {name}"), f"it does not get as far: {worker.said()}")
        worker.process.send_signal(number)
        assert worker.process.wait(AT_ONCE_S) == 128 + number, reason
        said = worker.said().splitlines()
        assert said[-1] == f"interrupted before the load began ({number.name})" and "Traceback" not in worker.said()
        assert sum("interrupted" in line for line in said) == 1
        assert worker.left() == []
    if state in ("no answer", "files", "go"):
        until(lambda: masters.said(f"farewell {name} {number.name}"), "the master's seat is not free again")


@pytest.mark.parametrize("number", [SIGINT, SIGTERM, SIGHUP], ids=lambda number: number.name)
def test_a_worker_that_serves_for_ever_leaves_as_well(
    number: signal.Signals, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    with WorkerProcess(tmp_path, f"127.0.0.1:{free_port()}", "--forever") as worker:
        until(lambda: "waiting for a master" in worker.said(), "it looks for no master")
        worker.process.send_signal(number)
        assert worker.process.wait(AT_ONCE_S) == 128 + number
        assert worker.said().splitlines()[-1] == f"interrupted before the load began ({number.name})"


def test_ctrl_c_at_one_that_serves_for_ever_and_has_just_begun(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """The child of its own is in the midst of its imports, where Python would raise KeyboardInterrupt."""
    with WorkerProcess(tmp_path, f"127.0.0.1:{free_port()}", "--forever") as worker:
        until(lambda: children_of(worker.process.pid), "it has started nobody")
        worker.process.send_signal(SIGINT)
        assert worker.process.wait(AT_ONCE_S) == 130
        assert worker.said().splitlines()[-1] == "interrupted before the load began (SIGINT)"
        assert "Traceback" not in worker.said()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_who_kills_one_that_serves_for_ever_has_ended_its_worker(masters: Masters, tmp_path: Path) -> None:
    """Else it would play on, and in the next run in the place of the one that was started again."""
    with WorkerProcess(tmp_path, masters.addresses["go"], "--name", "killed", "--forever") as worker:
        until(lambda: masters.said("ready killed"), f"it does not get as far: {worker.said()}")
        (child,) = children_of(worker.process.pid)
        worker.process.kill()
        worker.process.wait()
        until(lambda: ended(child), "its worker lives on")
        assert worker.said().splitlines()[-1] == "interrupted before the load began (SIGTERM)"
    until(lambda: masters.said("farewell killed SIGTERM"), "the master's seat is not free again")


def test_nohup_keeps_a_worker(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """Had the SIGHUP counted, the exit code would be that of the first signal, 129."""
    ignoring = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    with WorkerProcess(tmp_path, f"127.0.0.1:{free_port()}", before=ignoring) as worker:
        until(lambda: "waiting for a master" in worker.said(), "it looks for no master")
        worker.process.send_signal(SIGHUP)
        worker.process.send_signal(SIGTERM)
        assert worker.process.wait(AT_ONCE_S) == 143


def test_who_computes_is_broken_off_and_who_is_in_the_load_is_told() -> None:
    found = isolated("side_signals:leaving")
    assert found["compute"] == ["broken off", 143], "reading a trace lets no event loop turn"
    assert found["dropped by Python"] == "SIGHUP", "what a finaliser raises"
    assert found["dropped"] == ["broken off", 129], "at the end of the work"
    assert found["dropped_before"] == ["broken off", 129] and "went on" not in found, "the next signal breaks it off"
    assert found["wait"] == ["broken off", 130]
    assert found["again"] == ["broken off", 130], "the first one counts, and what follows is not broken off itself"
    assert found["in_load"] == ["went on", 129] and found["calls"] == ["SIGHUP", "SIGHUP"]


UNFIT = [
    ("key", 2, "NO_SUCH_KEY", "the key is not in this host's environment"),
    ("trace", 3, "trace of short-qa", "the trace is not the master's"),
]


@pytest.mark.parametrize(("master", "code", "error", "reason"), UNFIT, ids=[row[0] for row in UNFIT])
def test_one_that_can_not_take_part_leaves_no_spool(
    master: str, code: int, error: str, reason: str, masters: Masters, tmp_path: Path
) -> None:
    """With `--forever` they would pile up, one each few seconds."""
    with WorkerProcess(tmp_path, masters.addresses[master], "--name", master) as worker:
        assert worker.process.wait(60) == code, reason
        assert error in worker.said().splitlines()[-1] and "Traceback" not in worker.said()
        assert worker.left() == []
    assert masters.said(f"refused {master}: ") == 1


# -------------------------------------------------------------------------------------------------------- in the load


def start(siege: Siege, text: str, expected: int, port: int) -> tuple[Running, str]:
    """A run whose workers all come from elsewhere, and where they find it."""
    address = f"127.0.0.1:{port}"
    siege.environment["INFERSIEGE_SECRET"] = SECRET
    return siege.start(text, "--workers", "0", "--expect-workers", str(expected), "--bind", address), address


def join(siege: Siege, address: str, name: str) -> WorkerProcess:
    folder = siege.folder / name
    folder.mkdir(exist_ok=True)
    return WorkerProcess(folder, address, "--name", name)


def in_flight(emulator: EmulatorProcess) -> float:
    """Requests that the server is answering."""
    with urllib.request.urlopen(emulator.base_url.removesuffix("v1") + "metrics", timeout=10) as answer:
        found = re.search(rb"^vllm:num_requests_running(?:{.*})? (\S+)$", answer.read(), re.MULTILINE)
    return float(found[1]) if found is not None else 0.0


@pytest.mark.slow
@pytest.mark.alone
def test_the_seat_of_one_that_leaves_before_the_load_is_free_again(siege: Siege, free_port: Callable[[], int]) -> None:
    with EmulatorProcess("--output-tokens", "10") as emulator:
        load = 'mode = "closed"\nusers = 3\nramp = "0s"'
        running, address = start(siege, plan_text(emulator.base_url, load=load, run='duration = "2s"'), 3, free_port())
        with join(siege, address, "a") as a, join(siege, address, "b") as b:
            until(lambda: a.left() and b.left(), "they have no part in the run")
            b.process.send_signal(SIGTERM)
            assert b.process.wait(AT_ONCE_S) == 143, b.said()
            with join(siege, address, "c") as c, join(siege, address, "d") as d:
                ran = running.wait()
                assert [one.process.wait(20) for one in (a, c, d)] == [0, 0, 0]
    check_passed(ran)
    check_conserved(ran)
    assert {worker.worker for worker in ran.summary.workers} == {"a", "c", "d"}
    (left,) = [event for event in ran.events if event.kind == "worker_left"]
    assert left.worker == "b" and left.detail.endswith("left (SIGTERM) before it took part")
    assert not [event for event in ran.events if event.kind == "worker_refused"]
    assert b.left() == []


@pytest.mark.slow
@pytest.mark.alone
def test_one_that_leaves_in_the_load_ends_its_turns_and_no_session_is_played_twice(
    siege: Siege, free_port: Callable[[], int]
) -> None:
    log = siege.folder / "truth.jsonl"
    with EmulatorProcess("--output-tokens", "10", "--step-base-ms", "20", log=log) as emulator:
        load = 'mode = "closed"\nusers = 4\nramp = "0s"\ndrain = "10s"'
        text = plan_text(emulator.base_url, load=load, run="stop = { sessions = 60 }")
        running, address = start(siege, text, 2, free_port())
        with join(siege, address, "a") as stays, join(siege, address, "b") as leaves:
            running.until('"worker":"b"')
            leaves.process.send_signal(SIGINT)
            assert leaves.process.wait(AT_ONCE_S) == 130, leaves.said()
            ran = running.wait()
            assert stays.process.wait(20) == 0
        sent = [row["request_id"] for row in emulator.truth()]
    assert ran.code == 3 and [worker.worker for worker in ran.summary.workers if worker.lost] == ["b"], ran.out
    check_conserved(ran)
    assert len({turn.session_id for turn in ran.turns}) == 60, "each has its record, also where nobody played it"
    assert len(sent) == len(set(sent)), "the server got a turn twice"
    assert not ran.by_outcome(Outcome.LOST) and not ran.by_outcome(Outcome.CANCELLED), "answers take less than 3 s"
    assert {turn.worker for turn in ran.by_outcome(Outcome.OK)} == {"a", "b"}
    assert "leaving the run (SIGINT)" in leaves.said() and "Traceback" not in leaves.said()
    assert leaves.left() == []


@pytest.mark.slow
@pytest.mark.alone
def test_a_second_signal_cuts_what_is_open(siege: Siege, free_port: Callable[[], int]) -> None:
    with EmulatorProcess("--output-tokens", "2000", "--step-base-ms", "20") as emulator:
        text = plan_text(emulator.base_url, load='mode = "closed"\nusers = 2\nramp = "0s"', run='duration = "60s"')
        running, address = start(siege, text, 1, free_port())
        with join(siege, address, "a") as worker:
            until(lambda: in_flight(emulator) == 2, "the turns are not open")
            worker.process.send_signal(SIGINT)
            until(lambda: "another signal cuts them" in worker.said(), "it says nothing")
            worker.process.send_signal(SIGINT)
            assert worker.process.wait(AT_ONCE_S) == 130, worker.said()
            ran = running.wait()
    assert ran.code == 3, ran.out
    check_conserved(ran)
    assert {(turn.outcome, turn.reason) for turn in ran.turns} == {(Outcome.CANCELLED, Reason.INTERRUPTED)}
    assert "open turns are cut (2)" in worker.said() and worker.left() == []
