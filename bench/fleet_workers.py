"""Many workers in one process that only talk: they join, report, ship segments and leave as `infersiege worker` does.

    INFERSIEGE_SECRET=… python bench/fleet_workers.py 127.0.0.1:5557 --workers 250 --first 0 --rate 10

Each has a socket of its own with CURVE, and sends what a busy worker sends, at the same times: Locust's heartbeat each
second and its statistics each third one, our sign of life and a segment of records each half second, a report with
histograms each second. What it says is made up beforehand, from records with the shape of real ones. It writes one
JSON line of what it saw each second, and ends when all its workers were told to.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from random import Random
from select import EPOLLIN, epoll  # before Locust takes it away
from typing import Any, ClassVar

import msgpack  # type: ignore[import-untyped]
import msgspec
import zmq
from locust import __version__ as locust_version

from infersiege.metrics.histogram import bucket_of
from infersiege.metrics.windows import windows
from infersiege.records import (
    Ack,
    Assignment,
    Bye,
    ClientHealth,
    ClockPing,
    Drain,
    Go,
    Hello,
    Lease,
    OpenTurn,
    Outcome,
    Phase,
    Plays,
    Ready,
    Refusal,
    Report,
    Segment,
    StampSource,
    TokensFrom,
    TurnRecord,
    WindowRow,
)
from infersiege.swarm import messages
from infersiege.swarm.rpc import derive_keys
from infersiege.swarm.secret import SECRET_VARIABLE
from infersiege.swarm.versions import boot_id, versions

SECOND_NS = 1_000_000_000
BEAT_NS = SECOND_NS // 2
STATS_NS = 3 * SECOND_NS
KINDS = [("short-qa", "local"), ("long-document", "local"), ("agent", "local"), ("agent", "cloud")]
"""Scenario and channel of the turns in a report: four rows for each second that it touches."""
POOL = 8
"""Different seconds that a worker tells of, again and again."""
NO_STATS: dict[str, Any] = {
    "name": "Aggregated", "method": "", "last_request_timestamp": None, "start_time": 0.0, "num_requests": 0,
    "num_none_requests": 0, "num_failures": 0, "total_response_time": 0, "max_response_time": 0,
    "min_response_time": None, "total_content_length": 0, "response_times": {}, "num_reqs_per_sec": {},
    "num_fail_per_sec": {},
}  # fmt: skip
"""What Locust's statistics of a worker are while our users fire none of its events."""


def turns_of_a_second(rate: float, rng: Random, at_ns: int = 0, worker: str = "worker") -> list[TurnRecord]:
    """Turns that ended in one second, as many as `rate` on average."""
    count = int(rate) + (rng.random() < rate % 1)
    return [_turn(rng, at_ns + round(rng.random() * SECOND_NS), worker) for _ in range(count)]


def _turn(rng: Random, closed_ns: int, worker: str) -> TurnRecord:
    scenario, channel = rng.choice(KINDS)
    tokens = rng.randint(20, 150)
    ttft_ns, gap_ns = round(rng.lognormvariate(19.2, 0.4)), round(rng.lognormvariate(16.8, 0.2))
    first_ns = closed_ns - gap_ns * (tokens - 1)
    sent_ns = first_ns - ttft_ns
    by_second: dict[int, int] = {}
    gaps: dict[int, int] = {}
    for index in range(tokens):
        second = (first_ns + index * gap_ns) // SECOND_NS
        by_second[second] = by_second.get(second, 0) + 1
        if index:
            bucket = bucket_of(round(gap_ns * rng.gauss(1, 0.05)))
            gaps[bucket] = gaps.get(bucket, 0) + 1
    failed = rng.random() < 0.01
    return TurnRecord(
        run_id="0123456789ab", worker=worker, epoch=0, session_id=f"{scenario}-{rng.randrange(10**9)}", turn=0,
        parent_turn=None, scenario=scenario, stage="main", phase=Phase.STEADY, channel=channel,
        replica="127.0.0.1:8000", engine="vllm", dialect="openai-chat", model_asked="emulated-model",
        model_answered="emulated-model", request_id=f"{rng.randrange(16**16):016x}", due_ns=sent_ns - 80_000,
        attempt_ns=sent_ns - 40_000, sent_ns=sent_ns, sent_end_ns=sent_ns + 20_000, first_byte_ns=first_ns,
        first_token_ns=first_ns, first_token_slack_ns=9_000, first_answer_ns=first_ns, last_token_ns=closed_ns,
        closed_ns=closed_ns, reused_connection=True, attempts=1, prompt_tokens=rng.randint(50, 4000),
        cached_tokens=0, output_tokens=tokens, first_chunk_tokens=1, tokens_from=TokensFrom.USAGE, chunks=tokens,
        chunks_by_second=by_second, gaps=dict(sorted(gaps.items())), finish_reason="stop",
        outcome=Outcome.FAILED if failed else Outcome.OK, http_status=200, bytes_in=tokens * 180, bytes_out=900,
        stamp_source=StampSource.KERNEL,
    )  # fmt: skip


class Script:
    """What busy workers say, made once: `POOL` seconds of turns, as window rows and as compressed records."""

    def __init__(self, rate: float, seed: int) -> None:
        rng = Random(seed)
        self.rate = rate
        seconds = [turns_of_a_second(rate, rng, at_ns=1000 * SECOND_NS) for _ in range(POOL)]
        self.rows = [windows(turns) for turns in seconds]
        """Of the Unix second 1,000 and some before it."""
        halves = [half for turns in seconds for half in (turns[::2], turns[1::2])]
        encode = msgspec.json.Encoder().encode_lines
        self.segments = [(len(half), zlib.compress(encode(half), level=1)) for half in halves if half]
        self.record_bytes = sum(len(encode(turns)) for turns in seconds) // POOL
        """Of a second's records, before they are compressed."""
        self.open_turns = tuple(
            OpenTurn(session_id=f"{turn.scenario}-{rng.randrange(10**9)}", scenario=turn.scenario, stage="main",
                     phase=Phase.STEADY, channel=turn.channel, turns=1, turn=0, started=True, due_ns=turn.due_ns)
            for turn in itertools.islice(itertools.cycle(itertools.chain(*seconds)), round(rate * 2))
        )  # fmt: skip

    def windows(self, number: int, second: int) -> tuple[WindowRow, ...]:
        """The rows of a report that is sent in this Unix second."""
        rows = self.rows[number % POOL]
        return tuple(msgspec.structs.replace(row, second=row.second - 1000 + second) for row in rows)


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

    def __init__(self, name: str, socket: Any, script: Script, seen: Seen, phase_ns: int) -> None:
        self.name = name
        self.node_id = f"bench_{name}"
        self.socket, self._script, self._seen = socket, script, seen
        self._phase_ns = phase_ns
        """Of its second, so that not all speak at once."""
        self._state = "ready"
        self._segments: dict[int, int] = {}
        self._numbers = itertools.count()
        self._reports = 0
        self._records = 0
        self._lease_ns: int | None = None
        self._over = False
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
        messages.send(
            self,
            Ready(worker=self.name, plan_hash=assignment.plan_hash, trace_hashes=assignment.trace_hashes,
                  clock_offset_ns=0, clock_uncertainty_ns=0),
        )  # fmt: skip
        self._seen.counts["ready"] += 1
        self.due.append((now_ns + self._phase_ns % BEAT_NS, self._beat))
        self.due.append((now_ns + self._phase_ns, self._report))

    def _on_refusal(self, data: bytes, _now_ns: int) -> None:
        print(f"{self.name}: {msgspec.msgpack.decode(data, type=Refusal).message}", file=sys.stderr)
        self._seen.counts["refused"] += 1
        self._over = True

    def _on_clock(self, data: bytes, now_ns: int) -> None:
        self._seen.answers_ns.append(now_ns - msgspec.msgpack.decode(data, type=ClockPing).sent_ns)

    def _on_ack(self, data: bytes, now_ns: int) -> None:
        sent_ns = self._segments.pop(msgspec.msgpack.decode(data, type=Ack).sequence, None)
        if sent_ns is not None:
            self._seen.acks_ns.append(now_ns - sent_ns)

    def _on_lease(self, _data: bytes, now_ns: int) -> None:
        if self._lease_ns is not None:
            self._seen.lease_gaps_ns.append(now_ns - self._lease_ns)
        self._lease_ns = now_ns

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
        messages.NAMES[Drain]: _on_drain,
        messages.NAMES[Go]: lambda self, _data, now_ns: self.due.append((now_ns + STATS_NS, self._locust_stats)),
    }

    # --------------------------------------------------------------------------------------------------- what it says

    def _locust_beat(self, at_ns: int) -> None:
        state = {"state": self._state, "current_cpu_usage": 40.0, "current_memory_usage": 150_000_000}
        self._say("heartbeat", state)
        self.due.append((at_ns + SECOND_NS, self._locust_beat))

    def _locust_stats(self, at_ns: int) -> None:
        users = {"Director": 1, "SessionUser": round(self._script.rate * 2)}
        self._say("stats", {"stats": [], "stats_total": NO_STATS, "errors": {}, "user_classes_count": users,
                            "user_count": sum(users.values())})  # fmt: skip
        self.due.append((at_ns + STATS_NS, self._locust_stats))

    def _beat(self, at_ns: int) -> None:
        if self._over:
            return
        messages.send(self, ClockPing(worker=self.name, sent_ns=time.monotonic_ns()))
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
            plays={f"{scenario}\t{channel}": Plays(taken=turns, sent=turns) for scenario, channel in KINDS},
        )  # fmt: skip
        self._seen.report_bytes = self._say(messages.NAMES[Report], msgspec.msgpack.encode(report))


class Crowd:
    """The workers of this process, on one clock and one poll."""

    def __init__(self, address: str, secret: bytes, *, workers: int, first: int, rate: float) -> None:
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
            worker = TalkingWorker(f"w{number}", socket, self._script, self.seen, number * 7_919_000 % SECOND_NS)
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
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second of each worker")
    options = parser.parse_args()
    secret = os.environ[SECRET_VARIABLE].encode()
    crowd = Crowd(options.address, secret, workers=options.workers, first=options.first, rate=options.rate)
    for told in crowd.run():
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
