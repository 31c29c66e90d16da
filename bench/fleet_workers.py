"""Many workers in one process that only talk: they join, report, ship segments and leave as `infersiege worker` does.

    INFERSIEGE_SECRET=… python bench/fleet_workers.py 127.0.0.1:5557 --workers 250 --first 0 --rate 10

Each has a socket of its own with CURVE, and sends what a busy worker sends, at the same times: Locust's heartbeat each
second, our sign of life and a segment of records each half second, a report with histograms each second. What it says
is made up beforehand, from records with the shape of real ones. It writes one JSON line of what it saw each second, and
ends when all its workers were told to.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from select import EPOLLIN, epoll  # before Locust takes it away
from typing import Any, ClassVar

import msgpack  # type: ignore[import-untyped]
import msgspec
import zmq
from fleet_script import KINDS, Script
from locust import __version__ as locust_version

from infersiege.records import (
    Ack,
    Assignment,
    Bye,
    ClientHealth,
    ClockPing,
    Drain,
    Epoch,
    EpochAnswer,
    EpochTable,
    Hello,
    Lease,
    Plays,
    Ready,
    Refusal,
    Report,
    Segment,
    SlotsHeld,
    UserSlots,
)
from infersiege.swarm import messages
from infersiege.swarm.clock import CLOCK_PINGS
from infersiege.swarm.rpc import derive_keys
from infersiege.swarm.secret import SECRET_VARIABLE
from infersiege.swarm.versions import boot_id, versions

SECOND_NS = 1_000_000_000
BEAT_NS = SECOND_NS // 2


class Seen:
    """What the workers of one process saw, in ns."""

    def __init__(self) -> None:
        self.answers_ns: list[int] = []
        """From a clock message to the master's answer: how long it let a message wait."""
        self.acks_ns: list[int] = []
        """From a segment to its acknowledgement."""
        self.lease_gaps_ns: list[int] = []
        """Between two leases of one worker; half a second when the master keeps up."""
        self.counts: dict[str, int] = dict.fromkeys(("joined", "ready", "gone", "refused", "sent", "held"), 0)
        self.report_bytes = self.bytes_out = 0

    def taken(self) -> dict[str, Any]:
        """All of it since the last call; counts since the start."""
        lists = {name: getattr(self, name) for name in ("answers_ns", "acks_ns", "lease_gaps_ns")}
        for name in lists:
            setattr(self, name, [])
        return {**lists, **self.counts, "report_bytes": self.report_bytes, "bytes_out": self.bytes_out}


class TalkingWorker:
    """One worker's side of the conversation."""

    def __init__(
        self, name: str, socket: Any, script: Script, seen: Seen, *, fleet: int, phase_ns: int, talks_ns: int | None
    ) -> None:
        """`talks_ns`: from its first lease on, for so long; None: to the end."""
        self.name = name
        self.node_id = f"bench_{name}"
        self.socket, self._script, self._seen = socket, script, seen
        self._fleet, self._phase_ns = fleet, phase_ns
        """The latter: of its second, so that not all speak at once."""
        self._talks_ns = talks_ns
        self._slots_epoch = 0
        self._state = "ready"
        self._segments: dict[int, int] = {}
        self._numbers = itertools.count()
        self._reports = 0
        self._records = 0
        self._lease_ns: int | None = None
        self._epoch = -1
        self._over = False
        self._ready: Ready | None = None
        self._pings = 0
        self.due: list[tuple[int, Callable[[int], None]]] = []
        """What it does next, and when; emptied by whoever keeps the time."""

    def connect(self, _now_ns: int) -> None:
        """Locust's worker says so before anything else."""
        self._say("client_ready", locust_version)

    def send_message(self, kind: str, data: Any, _to: str | None = None) -> None:
        """As Locust's runner does, for `messages.send`."""
        self._say(kind, data)

    def _say(self, kind: str, data: Any) -> int:
        frame = msgpack.dumps((kind, data, self.node_id))
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self._seen.counts["held"] += 1  # a worker's queue is full: 1,000 messages wait
            return 0
        self._seen.counts["sent"] += 1
        self._seen.bytes_out += len(frame)
        return len(frame)

    def hear(self, frame: bytes, now_ns: int) -> None:
        kind, data, _ = msgpack.loads(frame, strict_map_key=False)
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(self, data, now_ns)

    # --------------------------------------------------------------------------------------------- what the master says

    def _on_connected(self, _data: Any, now_ns: int) -> None:
        self._seen.counts["joined"] += 1
        self.due.append((now_ns + SECOND_NS, self._locust_beat))
        messages.send(
            self,
            Hello(worker=self.name, host="bench", pid=os.getpid(), boot_id=boot_id(), versions=versions(),
                  spool_dir="/nonexistent/infersiege-bench"),
        )  # fmt: skip

    def _on_assignment(self, data: bytes, now_ns: int) -> None:
        assignment = msgspec.msgpack.decode(data, type=Assignment)
        self._ready = Ready(
            worker=self.name, plan_hash=assignment.plan_hash, trace_hashes=assignment.trace_hashes, clock_offset_ns=0,
            clock_uncertainty_ns=0,
        )  # fmt: skip
        self._ping()

    def _ping(self) -> None:
        messages.send(self, ClockPing(worker=self.name, sent_ns=time.monotonic_ns()))

    def _on_refusal(self, data: bytes, _now_ns: int) -> None:
        print(f"{self.name}: {msgspec.msgpack.decode(data, type=Refusal).message}", file=sys.stderr)
        self._seen.counts["refused"] += 1
        self._over = True

    def _on_clock(self, data: bytes, now_ns: int) -> None:
        self._seen.answers_ns.append(now_ns - msgspec.msgpack.decode(data, type=ClockPing).sent_ns)
        self._pings += 1
        if self._pings < CLOCK_PINGS:
            self._ping()
        elif self._pings == CLOCK_PINGS and self._ready is not None:
            messages.send(self, self._ready)
            self._seen.counts["ready"] += 1
            self.due.append((now_ns + self._phase_ns % BEAT_NS, self._beat))
            self.due.append((now_ns + self._phase_ns, self._report))

    def _on_ack(self, data: bytes, now_ns: int) -> None:
        sent_ns = self._segments.pop(msgspec.msgpack.decode(data, type=Ack).sequence, None)
        if sent_ns is not None:
            self._seen.acks_ns.append(now_ns - sent_ns)

    def _on_lease(self, _data: bytes, now_ns: int) -> None:
        if self._lease_ns is not None:
            self._seen.lease_gaps_ns.append(now_ns - self._lease_ns)
        elif self._talks_ns is not None:
            self.due.append((now_ns + self._talks_ns, self._fall_silent))
        self._lease_ns = now_ns

    def _fall_silent(self, _now_ns: int) -> None:
        self._over = True

    def _on_epoch(self, data: bytes, _now_ns: int) -> None:
        number = msgspec.msgpack.decode(data, type=Epoch).number
        messages.send(self, EpochAnswer(number=number, accepted=True, next_index=(self._taken,)))

    def _on_table(self, data: bytes, _now_ns: int) -> None:
        self._epoch = msgspec.msgpack.decode(data, type=EpochTable).epochs[-1].number

    def _on_slots(self, data: bytes, _now_ns: int) -> None:
        self._slots_epoch = msgspec.msgpack.decode(data, type=UserSlots).epoch
        self._tell_held()

    def _tell_held(self) -> None:
        """That none of its users is another one's, as each worker does once users have moved."""
        if self._slots_epoch > 0 and not self._over:
            messages.send(self, SlotsHeld(epoch=self._slots_epoch, slots={}))

    @property
    def _taken(self) -> int:
        """Sessions that this worker has begun, of all its fleet's, had all begun as many."""
        return round(self._reports * self._script.rate) * self._fleet

    def _on_spawn(self, data: dict[str, Any], _now_ns: int) -> None:
        self._say("spawning", None)
        self._state = "running"
        users = data["user_classes_count"]
        self._say("spawning_complete", {"user_classes_count": users, "user_count": sum(users.values())})

    def _on_drain(self, _data: bytes, now_ns: int) -> None:
        if self._over:
            return
        self._over = True
        self._tell(now_ns)
        messages.send(
            self,
            Bye(worker=self.name, records=self._records, planned_turns=self._records, plays={},
                hub_lag_p99_ns=1_000_000, cpu_share_max=0.5, exit_reason="run over", spool_error=None, fault=None,
                clock_offset_ns=0),
        )  # fmt: skip

    def _on_quit(self, _data: Any, _now_ns: int) -> None:
        self._over = True
        self._seen.counts["gone"] += 1

    _handlers: ClassVar[dict[str, Callable[[TalkingWorker, Any, int], None]]] = {
        "ack": _on_connected,
        "spawn": _on_spawn,
        "quit": _on_quit,
        messages.NAMES[Assignment]: _on_assignment,
        messages.NAMES[Refusal]: _on_refusal,
        messages.NAMES[ClockPing]: _on_clock,
        messages.NAMES[Ack]: _on_ack,
        messages.NAMES[Lease]: _on_lease,
        messages.NAMES[Epoch]: _on_epoch,
        messages.NAMES[EpochTable]: _on_table,
        messages.NAMES[UserSlots]: _on_slots,
        messages.NAMES[Drain]: _on_drain,
    }

    # --------------------------------------------------------------------------------------------------- what it says

    def _locust_beat(self, at_ns: int) -> None:
        if self._over:
            return
        state = {"state": self._state, "current_cpu_usage": 40.0, "current_memory_usage": 150_000_000}
        self._say("heartbeat", state)
        self.due.append((at_ns + SECOND_NS, self._locust_beat))

    def _beat(self, at_ns: int) -> None:
        if self._over:
            return
        self._ping()
        if self._lease_ns is not None and self._script.segments:
            number = next(self._numbers)
            rows, data = self._script.segments[number % len(self._script.segments)]
            self._segments[number] = time.monotonic_ns()
            messages.send(self, Segment(worker=self.name, sequence=number, rows=rows, data=data))
            self._records += rows
        self.due.append((at_ns + BEAT_NS, self._beat))

    def _report(self, at_ns: int) -> None:
        if self._over:
            return
        self._tell(at_ns)
        self._tell_held()
        self.due.append((at_ns + SECOND_NS, self._report))

    def _tell(self, _at_ns: int) -> None:
        busy = self._lease_ns is not None
        self._reports += busy
        wall_ns = time.time_ns()
        turns = round(self._reports * self._script.rate)
        report = Report(
            worker=self.name, sequence=self._reports,
            windows=self._script.windows(self._reports, wall_ns // SECOND_NS) if busy else (),
            health=ClientHealth(
                second=wall_ns // SECOND_NS, worker=self.name, cpu_share=0.4, hub_lag_max_ns=2_000_000,
                gc_pause_max_ns=300_000, rss_bytes=150_000_000, open_files=60, begun_ns=wall_ns - SECOND_NS,
                ended_ns=wall_ns, hub_lag={0: 80, 1: 15, 2: 4, 5: 1}, cpu_wait_share=0.01,
            ),
            open_turns=self._script.open_turns if busy else (), sessions=len(self._script.open_turns),
            in_flight=len(self._script.open_turns), planned_turns=turns + 20, closed_turns=turns,
            started_turns=turns + 20, chunks=turns * 80,
            epoch=self._epoch, next_index=(self._taken,), clock_offset_ns=0, clock_uncertainty_ns=0,
            plays={f"{scenario}\t{channel}": Plays(taken=turns, sent=turns) for scenario, channel in KINDS},
        )  # fmt: skip
        self._seen.report_bytes = self._say(messages.NAMES[Report], msgspec.msgpack.encode(report))


class Crowd:
    """The workers of this process, on one clock and one poll."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        *,
        workers: int,
        first: int,
        fleet: int,
        rate: float,
        lose: int = 0,
        lose_after_s: float = 0.0,
    ) -> None:
        """The first `lose` of its workers fall silent so long after their first lease."""
        self.seen = Seen()
        self._script = Script(rate, seed=first)
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, workers + 16)
        server_public, _ = derive_keys(secret, b"master")
        public, private = derive_keys(secret, b"worker")
        self._workers: dict[int, TalkingWorker] = {}
        self._poll = epoll()
        self._later: list[tuple[int, int, TalkingWorker, Callable[[int], None]]] = []
        self._order = itertools.count()
        now_ns = time.monotonic_ns()
        for number in range(first, first + workers):
            socket = self._context.socket(zmq.DEALER)
            phase_ns = number * 7_919_000 % SECOND_NS
            talks_ns = round(lose_after_s * SECOND_NS) if number < first + lose else None
            worker = TalkingWorker(
                f"w{number}", socket, self._script, self.seen, fleet=fleet, phase_ns=phase_ns, talks_ns=talks_ns
            )
            socket.setsockopt(zmq.IDENTITY, worker.node_id.encode())
            socket.setsockopt(zmq.LINGER, 0)
            socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = server_public, public, private
            socket.connect(f"tcp://{address}")
            descriptor = int(socket.getsockopt(zmq.FD))
            self._workers[descriptor] = worker
            self._poll.register(descriptor, EPOLLIN)
            worker.due.append((now_ns, worker.connect))
            self._hear(worker)

    def run(self) -> Iterator[dict[str, Any]]:
        """What was seen, each second, until all workers are gone."""
        begun_ns = told_ns = time.monotonic_ns()
        busy_ns = time.process_time_ns()
        while self.seen.counts["gone"] + self.seen.counts["refused"] < len(self._workers):
            now_ns = time.monotonic_ns()
            while self._later and self._later[0][0] <= now_ns:
                at_ns, _, worker, act = heapq.heappop(self._later)
                act(at_ns)
                self._hear(worker)
            wait_s = min((self._later[0][0] - now_ns) / 1e9, 0.05) if self._later else 0.05
            for descriptor, _ in self._poll.poll(max(wait_s, 0.0), maxevents=256):
                self._hear(self._workers[descriptor])
            if now_ns - told_ns >= SECOND_NS:
                cpu_ns = time.process_time_ns()
                late_ns = now_ns - self._later[0][0] if self._later else 0
                yield {
                    **self.seen.taken(), "at_s": (now_ns - begun_ns) / 1e9, "late_ns": max(late_ns, 0),
                    "cpu_share": (cpu_ns - busy_ns) / (now_ns - told_ns), "record_bytes": self._script.record_bytes,
                }  # fmt: skip
                told_ns, busy_ns = now_ns, cpu_ns
        self._context.destroy(linger=0)

    def _hear(self, worker: TalkingWorker) -> None:
        # The descriptor tells only that something changed, and only once: read, after a send as well, until there is
        # nothing.
        while worker.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            worker.hear(worker.socket.recv(zmq.NOBLOCK), time.monotonic_ns())
        for at_ns, act in worker.due:
            heapq.heappush(self._later, (at_ns, next(self._order), worker, act))
        worker.due.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("address", help="HOST:PORT of the master")
    parser.add_argument("--workers", type=int, default=250)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--fleet", type=int, help="workers of all processes together; default: these")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second of each worker")
    parser.add_argument("--lose", type=int, default=0, help="workers that fall silent")
    parser.add_argument("--lose-after", type=float, default=0.0, help="seconds from their first lease on")
    options = parser.parse_args()
    secret = os.environ[SECRET_VARIABLE].encode()
    crowd = Crowd(options.address, secret, workers=options.workers, first=options.first,
                  fleet=options.fleet or options.workers, rate=options.rate, lose=options.lose,
                  lose_after_s=options.lose_after)  # fmt: skip
    for told in crowd.run():
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
