"""A master's door, and workers that knock at it over real sockets: for `isolated` (see test_fleet_scale.py)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gevent
import locust
import msgspec
from locust.rpc import protocol, zmqrpc

from infersiege.records import Assignment, ClockPing, Hello, Refusal
from infersiege.swarm import messages, rpc
from infersiege.swarm.door import LAST_WORDS_NS, UNHEARD_NS, Door, Terms
from infersiege.swarm.engine import SiegeEnvironment
from infersiege.swarm.fleet import SILENT_NS, Fleet
from infersiege.swarm.session_users import Director
from infersiege.swarm.versions import boot_id

KNOCKS = [("late", 11), ("late", 12), ("vm-13", 13), ("late", 14), ("vm-15", 15), ("once", 16)]
"""(name, process): the second one has no --name, and is another one with each of its processes."""
AGAIN = {
    "died": ("wa", "vm", 2),
    "died and no seat is free": ("wa", "vm", 1),
    "died without a --name": ("wb", "vm", 1),
    "lives": ("wa", "elsewhere", 2),
    "without a --name lives": ("wb", "vm", 1),
    "is not heard": ("wa", "vm", 2),
    "of another host": ("wb", "elsewhere", 1),
}
"""What the first one, "wa" of "vm", does -> (name, host of the next one, seats)."""
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

    def visitor(self, name: str, pid: int, boot: str = "b", *, host: str = "vm") -> Visitor:
        self._knocks += 1
        hello = Hello(worker=name, host=host, pid=pid, boot_id=boot, versions={}, spool_dir="/none")
        return Visitor(self.runner.server.port, f"node-{self._knocks}", hello)

    def knock(self, name: str, pid: int, boot: str = "b", *, host: str = "vm") -> Assignment | Refusal:
        visitor = self.visitor(name, pid, boot, host=host)
        visitor.knock()
        answer = visitor.answer(30.0)
        assert answer is not None, "the door says nothing"
        return answer


class Visitor:
    """A worker that may knock again, as those do that get no answer."""

    def __init__(self, port: int, node: str, hello: Hello) -> None:
        self.node = node
        self._hello = hello
        self._last: Any = None
        """The last message that was read."""
        self._client: Any = zmqrpc.Client("127.0.0.1", port, node)
        self._send("client_ready", locust.__version__)

    def _send(self, kind: str, data: Any) -> None:
        message: Any = protocol.Message
        self._client.socket.send(message(kind, data, self.node).serialize())

    def knock(self) -> None:
        self._send(messages.NAMES[Hello], msgspec.msgpack.encode(self._hello))

    def ping(self) -> None:
        """A sign of life; the master answers it."""
        self._send(messages.NAMES[ClockPing], msgspec.msgpack.encode(ClockPing(worker=self._hello.worker, sent_ns=1)))

    def answer(self, within_s: float) -> Assignment | Refusal | None:
        """None: there was none so far."""
        with gevent.Timeout(within_s, False):
            while self._last is None or self._last.type not in ANSWERS:
                self._last = self._client.recv()
            found: Any = msgspec.msgpack.decode(self._last.data, type=ANSWERS[self._last.type])
            return found  # type: ignore[no-any-return]
        return None

    def unanswered(self) -> bool:
        """Messages of one socket are answered in their order, so an answered ping says that the knock before it was
        not."""
        self.ping()
        with gevent.Timeout(30):
            while self._last is None or self._last.type not in (*ANSWERS, messages.NAMES[ClockPing]):
                self._last = self._client.recv()
        return self._last is not None and self._last.type not in ANSWERS


def full() -> dict[str, Any]:
    """No seat is left. What was told of whom, during it and in the end, how many got their refusal, and what Locust
    keeps of them."""
    street = Street(Fleet(expected=0))
    answers = [(name, street.knock(name, pid)) for name, pid in KNOCKS]
    refused = sum(isinstance(answer, Refusal) and answer.worker == name for name, answer in answers)
    kept = len(street.runner.clients) + len(street.runner.worker_indexes)
    return {"told": street.told, "again": list(street.door.away_again()), "refused": refused, "kept": kept}


def again() -> list[tuple[str, bool, str | None]]:
    """(case, whether the first knock was left unanswered, the answer in the end)."""
    return [(case, *_again(case, *row)) for case, row in AGAIN.items()]


def _again(case: str, name: str, host: str, seats: int) -> tuple[bool, str | None]:
    """A worker has the only seat, or one of two, and another process comes that may be its next. What it is told at
    its first knock, once the first one spoke or was silent for longer than a dead one is waited for, and by then."""
    fleet = Fleet(expected=seats)
    street = Street(fleet)
    street.door.begun = True
    before = street.visitor("wa", 1)
    before.knock()
    assert isinstance(before.answer(30.0), Assignment)
    (known,) = fleet.alive()
    known.admitted = True
    next_one = street.visitor(name, 2, host=host)
    next_one.knock()
    waits = next_one.unanswered()
    if waits:
        if case.endswith("lives"):
            gevent.sleep(LAST_WORDS_NS / 1e9)
            before.ping()
            seen_ns = known.last_seen_ns
            with gevent.Timeout(30):
                while known.last_seen_ns == seen_ns:
                    gevent.sleep(0.01)
        elif case.endswith("is not heard"):
            known.last_seen_ns -= UNHEARD_NS
            street.door._first_ns[next_one.node] -= UNHEARD_NS
        else:
            (lost,) = fleet.newly_dead(known.last_seen_ns + SILENT_NS + 1)
            assert lost is known
        next_one.knock()
    answer = next_one.answer(30.0)
    return waits, answer.message if isinstance(answer, Refusal) else f"in as {answer.worker}" if answer else None


def given_up() -> tuple[int, int]:
    """How many nodes Locust and the door keep of one that waited, gave up, and was followed by another one later."""
    fleet = Fleet(expected=1)
    street = Street(fleet)
    before = street.visitor("wa", 1)
    before.knock()
    assert isinstance(before.answer(30.0), Assignment)
    waiting = street.visitor("wa", 2)
    waiting.knock()
    assert waiting.unanswered()
    street.door._first_ns[waiting.node] -= 3 * UNHEARD_NS
    later = street.visitor("wa", 3)
    later.knock()
    assert later.unanswered()
    return len(street.runner.clients), len(street.door._first_ns)


def own() -> list[tuple[str, str]]:
    """Three seats, two of them for processes of the master's own, which are slower than all others. (who, answer)."""
    fleet = Fleet(expected=3, local=2)
    street, answers = Street(fleet), []

    def knock(who: str, name: str, pid: int = 1, boot: str = "b") -> None:
        answer = street.knock(name, pid, boot, host=f"vm-of-{name}")
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
