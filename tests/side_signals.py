"""Masters that let a worker get so far and no further, and what signals do to a `Leaving` (see test_worker_signals.py).

    python side_signals.py FOLDER     writes FOLDER/ports.json, then a line of FOLDER/events.txt for what workers do

FOLDER/plan.toml is the plan. Ends with its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gevent
import msgspec
import zmq.green as zmq
from gevent import fileobject
from zmq.utils.monitor import parse_monitor_message

from infersiege.plan.load import load_plan, plan_hash, plan_json
from infersiege.records import Bye, FileWanted, Hello, NeededFile, NeededPath
from infersiege.swarm import messages, rpc
from infersiege.swarm.door import Door, Terms
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.fleet import Fleet
from infersiege.swarm.leaving import LeaveError, Leaving
from infersiege.swarm.session_users import Director
from infersiege.swarm.source import SessionSource
from infersiege.swarm.versions import versions

ABSENT = NeededPath(
    path="/no/such/trace.jsonl", what="trace of chat", files=(NeededFile(name="", size_bytes=9, sha256="0" * 64),)
)


class Masters:
    """One for each state in which a worker waits."""

    def __init__(self, folder: Path) -> None:
        self._events = (folder / "events.txt").open("a", encoding="utf-8", buffering=1)
        plan = load_plan(folder / "plan.toml", check_environment=False)
        self._terms = Terms(
            run_id="run-of-signals",
            plan=plan_json(plan),
            plan_hash=plan_hash(plan),
            trace_hashes=SessionSource(plan, place=0, members=1).trace_hashes(),
            versions=versions(),
            offset_ns=time.time_ns() - time.monotonic_ns(),
        )
        without_key = msgspec.structs.replace(
            plan,
            channels={
                name: msgspec.structs.replace(one, api_key_env="NO_SUCH_KEY") for name, one in plan.channels.items()
            },
        )
        self.ports = {
            "another secret": self._deaf(),
            "no answer": self._silent(),
            "go": self._ready(),
            "files": self._ready(files=(ABSENT,), ignored=FileWanted),
            "key": self._ready(plan=plan_json(without_key), plan_hash=plan_hash(without_key)),
            "trace": self._ready(trace_hashes={"short-qa (builtin:short-qa)": "0" * 64}),
        }

    def _say(self, *words: object) -> None:
        print(*words, file=self._events)

    def _master(self, secret: str = "of-this-test-only") -> Any:
        rpc.install(secret.encode())
        return SiegeEnvironment([Director]).create_master_runner("127.0.0.1", 0)

    def _deaf(self) -> int:
        """Whoever comes has another secret: Locust's constructor tries on and on."""
        runner = self._master("another one of some length")
        monitor = runner.server.socket.get_monitor_socket(zmq.EVENT_ACCEPTED)

        def watch() -> None:
            while True:
                parse_monitor_message(monitor.recv_multipart())
                self._say("knocked")

        gevent.spawn(watch)
        port: int = runner.server.port
        return port

    def _silent(self) -> int:
        """Locust is there, and nobody answers a hello."""
        runner = self._master()
        messages.on(runner, Hello, lambda _, hello: self._say("hello", hello.worker))
        self._hear_farewells(runner)
        port: int = runner.server.port
        return port

    def _ready(self, *, ignored: type[msgspec.Struct] | None = None, **terms: Any) -> int:
        """The real door, which lets workers in; nobody ever says go, or answers what is `ignored`."""
        runner, fleet = self._master(), Fleet(expected=50)
        fields = {name: getattr(self._terms, name) for name in Terms.__dataclass_fields__}
        door = Door(fleet, Terms(**(fields | terms)), lambda worker, why: self._say("away", worker, why))
        door.open(runner)
        self._hear_farewells(runner)
        if ignored is not None:
            del runner.custom_messages[messages.NAMES[ignored]]  # Locust has one listener for each
            messages.on(runner, ignored, lambda node_id, _: self._say("wanted", fleet.workers[node_id].name))
        told: set[str] = set()

        def watch() -> None:
            while True:
                for worker in fleet.alive():
                    if worker.ready is not None and worker.name not in told:
                        told.add(worker.name)
                        self._say("ready", worker.name)
                if door.refusal is not None:
                    self._say("refused", door.refusal)
                    door.refusal = None
                gevent.sleep(0.02)

        gevent.spawn(watch)
        port: int = runner.server.port
        return port

    def _hear_farewells(self, runner: Any) -> None:
        messages.on(runner, Bye, lambda _, bye: self._say("farewell", bye.worker, bye.exit_reason))


def leaving() -> dict[str, Any]:
    """What signals do to a greenlet that computes, to one that waits, and once the load is there."""
    found: dict[str, Any] = {}

    def told(work: Any) -> list[Any]:
        """Whether it was broken off, and which exit code follows."""
        one = Leaving()
        one.listen()
        try:
            work(one)
        except LeaveError:
            return ["broken off", one.exit_code]
        return ["went on", one.exit_code]

    def compute(one: Leaving) -> None:
        with one.computing():
            busy(signal.SIGTERM)

    def busy(number: signal.Signals) -> None:
        """A signal, and nothing that yields until it is noticed."""
        os.kill(os.getpid(), number)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            pass

    class Finaliser:
        def __del__(self) -> None:
            """Python drops what is raised in here."""
            busy(signal.SIGHUP)

    def dropped(one: Leaving) -> None:
        with one.computing():
            Finaliser()
            found["dropped by Python"] = one.why
        found["went on"] = "behind the work"

    def dropped_before(one: Leaving) -> None:
        with one.computing():
            Finaliser()
            busy(signal.SIGTERM)
            found["went on"] = "with the work"

    def wait(one: Leaving) -> None:
        gevent.spawn_later(0.1, os.kill, os.getpid(), signal.SIGINT)
        gevent.sleep(20)

    def again(one: Leaving) -> None:
        """The second one comes while the first one is followed."""
        try:
            wait(one)
        except LeaveError:
            os.kill(os.getpid(), signal.SIGHUP)
            gevent.sleep(0.2)
            raise

    def in_load(one: Leaving) -> None:
        calls: list[str] = []
        one.in_load = lambda: calls.append(one.why)
        for number in (signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
            gevent.sleep(0.1)
        found["calls"] = calls

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
    sys.unraisablehook = lambda _: None
    for work in (compute, dropped, dropped_before, wait, again, in_load):
        found[work.__name__] = told(work)
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    masters = Masters(folder)
    part = folder / "ports.part"
    part.write_text(json.dumps(masters.ports), encoding="utf-8")
    part.replace(folder / "ports.json")
    fileobject.FileObject(sys.stdin.buffer).read()
    os._exit(0)


if __name__ == "__main__":
    main()
