"""One worker's load without a master: users that play sessions against one server, measured for a few seconds.

For `infersiege calibrate`: everything that a worker does for a turn is done (sessions, requests, records, their spool,
windows), so that its ceiling is that of a worker and not of a bare client. Instants are the monotonic clock's.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import msgspec

from infersiege.channels.answer import Answer
from infersiege.metrics.histogram import Histogram
from infersiege.metrics.windows import windows
from infersiege.plan.load_schema import Load
from infersiege.plan.schema import Channel, Plan, Run, Workload
from infersiege.records import Outcome, Phase, Reason, TurnRecord
from infersiege.schedule import Ticket
from infersiege.swarm.branches import PreparedSession
from infersiege.swarm.control import RunControl
from infersiege.swarm.health import HealthMonitor
from infersiege.swarm.ledger import Ledger, Place, opened_lines
from infersiege.swarm.player import SessionPlayer
from infersiege.swarm.routes import Clients, Route, cache_key_of, route_of, way_of
from infersiege.swarm.source import SessionSource
from infersiege.swarm.spool import Spool
from infersiege.swarm.turns import TurnPlayer
from infersiege.wire.exchange import BodySink, Deadlines, Request
from infersiege.wire.transport import Client, DecoderLoop, Exchange, StampClock

NAME = "calibrate"
FOREVER_NS = 1 << 60
PER_USER_S = 0.001
"""Pause between the beginnings of two users, so that the streams that run are read meanwhile."""
HOUSEKEEPING_S = 0.5


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the client saw in one window of time."""

    seconds: float
    tokens: int
    """Content chunks that arrived."""
    turns: int
    """That ended well."""
    failed: int
    example: str | None
    """Of a failure."""
    first_tokens: list[tuple[str, int, int]]
    """(request id, first token in ns of the monotonic clock, its slack) of first tokens that came in it."""
    chunks: int
    """Of turns that ended in it, as `coalesced`."""
    coalesced: int
    cpu_share: float
    cpu_wait_share: float | None
    hub_lag_p99_ms: int | None


class _Client(Client):
    """Keeps who answers what, until it was looked at."""

    def __init__(self, route: Route, clock: StampClock, loop: DecoderLoop, answers: dict[str, Answer]) -> None:
        super().__init__(route.endpoint, clock, loop, keep_alive=route.channel.keep_alive)
        self._answers = answers

    def start(self, request: Request, sink: BodySink, deadlines: Deadlines) -> Exchange:
        if isinstance(sink, Answer):
            self._answers[dict(request.headers).get("x-request-id", "")] = sink
        return super().start(request, sink, deadlines)


class Sprint:
    """Users on one channel; `measure` grows their number and looks. Use with `with`."""

    def __init__(self, channel: Channel) -> None:
        workload = Workload(scenario="short-qa", trace="builtin:short-qa", wrap=True, channel=NAME)
        plan = Plan(run=Run(nonce=NAME), channels={NAME: channel}, workloads=(workload,), load=Load(users=1))
        self._source = SessionSource(plan, place=0, members=1)
        self._route = route_of(NAME, channel, plan, os.environ)
        self._clock = StampClock()
        self._decoder_loop = DecoderLoop(self._clock)
        self._control = RunControl()
        self._control.renew(FOREVER_NS)
        self._folder = Path(tempfile.mkdtemp(prefix="infersiege-calibrate-"))
        self._spool = Spool(self._folder / "spool", NAME)
        self._ledger = Ledger(
            run_id=f"{NAME}-{os.getpid()}-{time.monotonic_ns()}",
            worker=NAME,
            epoch=0,
            spool=self._spool,
            place_of=lambda _: Place(NAME, Phase.STEADY),
        )
        self._records: list[TurnRecord] = []
        self._since_last: list[TurnRecord] = []
        self._ledger.listeners.append(self._records.append)
        self._ledger.listeners.append(self._since_last.append)
        self._turns = TurnPlayer(self._ledger, offset_ns=0)
        self._player = SessionPlayer(self._turns, self._control, offset_ns=0)
        self._numbers = itertools.count()
        self._users: list[Any] = []
        self._answers: dict[str, Answer] = {}
        """By request id, of the requests since the last look."""
        self._health = HealthMonitor(NAME)

    def __enter__(self) -> Sprint:
        self._health.start()
        self._keeper = gevent.spawn(self._keep_house)
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close(Reason.RUN_END, 0)
        self._turns.abort_all("the probe is over")
        gevent.joinall(self._users, timeout=5)
        self._keeper.kill()
        self._health.stop()
        self._spool.close(remove=True)
        self._clock.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def measure(self, users: int, settle_s: float, seconds: float) -> Measured:
        """Bring the users to this number, wait until they run, and look at what happens for so long."""
        while len(self._users) < users:
            self._users.append(gevent.spawn(self._user))
            gevent.sleep(PER_USER_S)
        gevent.sleep(settle_s)
        self._health.sample(0)
        self._records.clear()
        self._answers.clear()
        begun_ns, chunks = time.monotonic_ns(), self._turns.chunks
        gevent.sleep(seconds)
        ended_ns, arrived = time.monotonic_ns(), self._turns.chunks - chunks
        health = self._health.sample(0)
        closed = list(self._records)
        first_tokens = [
            (request_id, answer.first_token_ns, answer.first_token_slack_ns or 0)
            for request_id, answer in self._answers.items()
            if answer.first_token_ns is not None and answer.first_token_ns >= begun_ns
        ]
        self._answers.clear()
        failures = [one for one in closed if one.outcome is Outcome.FAILED]
        return Measured(
            seconds=(ended_ns - begun_ns) / 1e9,
            tokens=arrived,
            turns=sum(one.outcome is Outcome.OK for one in closed),
            failed=len(failures),
            example=failures[0].error_detail if failures else None,
            first_tokens=first_tokens,
            chunks=sum(one.chunks for one in closed),
            coalesced=sum(one.coalesced for one in closed),
            cpu_share=health.cpu_share,
            cpu_wait_share=health.cpu_wait_share,
            hub_lag_p99_ms=Histogram.from_sparse(health.hub_lag).percentile(0.99),
        )

    def _user(self) -> None:
        clients = Clients(self._new_client)
        try:
            while not self._control.closing.is_set():
                self._session(clients)
        finally:
            clients.close()

    def _session(self, clients: Clients) -> None:
        number = next(self._numbers)
        ticket = Ticket(index=number, workload=0, session_index=number, offset_ns=None)
        session_id, conversation = self._source.named_conversation(ticket)
        due_ns = time.monotonic_ns()
        lines = opened_lines(
            conversation.lines,
            session_id=f"{session_id}#{number}",
            scenario="short-qa",
            channel=self._route.labels,
            due_ns=due_ns,
        )
        self._ledger.take(*lines)
        way = way_of(self._route, cache_key_of(self._ledger.run_id, lines[0].session_id))
        self._player.play(PreparedSession(lines, conversation, way), clients, due_ns, self._lent)

    @contextmanager
    def _lent(self) -> Iterator[Clients]:
        clients = Clients(self._new_client)
        try:
            yield clients
        finally:
            clients.close()

    def _new_client(self, route: Route) -> Client:
        return _Client(route, self._clock, self._decoder_loop, self._answers)

    def _keep_house(self) -> None:
        """What a worker does beside its turns: windows are made, records are packed and let go."""
        while True:
            gevent.sleep(HOUSEKEEPING_S)
            self._spool.cut()
            for segment in list(self._spool.unacknowledged()):
                self._spool.acknowledge(segment.sequence)
            windows(self._since_last)
            self._since_last.clear()
