"""A master's door, and workers that knock at it over real sockets: for `isolated` (see test_fleet_scale.py)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gevent
import locust
import msgspec
from locust.rpc import protocol, zmqrpc

from infersiege.records import Assignment, Hello, Refusal
from infersiege.swarm import messages, rpc
from infersiege.swarm.door import Door, Terms
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.fleet import Fleet
from infersiege.swarm.session_users import Director
from infersiege.swarm.versions import boot_id

KNOCKS = [("late", 11), ("late", 12), ("vm-13", 13), ("late", 14), ("vm-15", 15), ("once", 16)]
"""(name, process): the second one has no --name, and is another one with each of its processes."""
ANSWERS = {messages.NAMES[kind]: kind for kind in (Assignment, Refusal)}


class Street:
    """A door and who knocks at it."""

    def __init__(self, fleet: Fleet) -> None:
        rpc.install(b"secret")
        self.runner: Any = SiegeEnvironment([Director]).create_master_runner("127.0.0.1", 0)
        self.told: list[tuple[str, str]] = []
        terms = Terms(run_id="r", plan=b"", plan_hash="", trace_hashes={}, versions={}, offset_ns=0)
        self.door = Door(fleet, terms, lambda worker, why: self.told.append((worker, why)))
        self.door.open(self.runner)
        self._knocks = 0

    def knock(self, name: str, pid: int, boot: str = "b") -> Assignment | Refusal:
        self._knocks += 1
        node = f"node-{self._knocks}"
        worker: Any = zmqrpc.Client("127.0.0.1", self.runner.server.port, node)
        hello = Hello(worker=name, host="vm", pid=pid, boot_id=boot, versions={}, spool_dir="/none")
        for kind, data in (
            ("client_ready", locust.__version__),
            (messages.NAMES[Hello], msgspec.msgpack.encode(hello)),
        ):
            worker.socket.send(protocol.Message(kind, data, node).serialize())
        with gevent.Timeout(30):
            while (answer := worker.recv()).type not in ANSWERS:
                pass
        found: Any = msgspec.msgpack.decode(answer.data, type=ANSWERS[answer.type])
        return found


def full() -> dict[str, Any]:
    """No seat is left. What was told of whom, during it and in the end, how many got their refusal, and what Locust
    keeps of them."""
    street = Street(Fleet(expected=0))
    answers = [(name, street.knock(name, pid)) for name, pid in KNOCKS]
    refused = sum(isinstance(answer, Refusal) and answer.worker == name for name, answer in answers)
    kept = len(street.runner.clients) + len(street.runner.worker_indexes)
    return {"told": street.told, "again": list(street.door.away_again()), "refused": refused, "kept": kept}


def own() -> list[tuple[str, str]]:
    """Three seats, two of them for processes of the master's own, which are slower than all others. (who, answer)."""
    fleet = Fleet(expected=3, local=2)
    street, answers = Street(fleet), []

    def knock(who: str, name: str, pid: int = 1, boot: str = "b") -> None:
        answer = street.knock(name, pid, boot)
        answers.append((who, answer.message if isinstance(answer, Refusal) else f"in as {answer.worker}"))

    def knock_of_own(name: str) -> None:
        knock(f"own {name}", name, fleet.processes[name].pid, boot_id())

    knock("before any is started", "first")
    for name in fleet.own_names:
        fleet.processes[name] = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        knock("with a seat free", "second")
        knock("another host's", "worker-1", fleet.processes["worker-1"].pid)
        knock_of_own("worker-1")
        knock("with a seat free still", "second")
        knock_of_own("worker-2")
        knock("once all are there", "second")
        street.door.begun = True
        for worker in fleet.alive()[1:2]:
            worker.lost_at_ns = 1
        knock("in the load, for a lost one", "second")
        knock("in the load", "third")
    finally:
        for process in fleet.processes.values():
            process.communicate(b"\n")
    return answers
