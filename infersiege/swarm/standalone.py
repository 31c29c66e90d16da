"""For plain `locust -f locustfiles/….py`: users that play sessions, and TTFT rows in Locust's own table and web page.

Here `-u` and `-r` mean what Locust's users expect. The promises about records (one per turn, conserved, on disk) hold
for `infersiege run` only: Locust may end a user at any moment.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import gevent
import msgspec
from locust import User, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner

from infersiege.channels import PROFILES
from infersiege.errors import InfersiegeError, UsageError
from infersiege.metrics import turn as of
from infersiege.plan.load_schema import Load
from infersiege.plan.schema import Channel, Plan, Run, Workload
from infersiege.records import Outcome, Phase, TurnRecord
from infersiege.schedule import Ticket
from infersiege.swarm.branches import PreparedSession
from infersiege.swarm.control import RunControl
from infersiege.swarm.ledger import Ledger, Place, opened_lines
from infersiege.swarm.player import SessionPlayer
from infersiege.swarm.routes import Clients, Route, cache_key_of, route_of, way_of
from infersiege.swarm.source import SessionSource
from infersiege.swarm.spool import JournalLine
from infersiege.swarm.streams import pause_after
from infersiege.swarm.turns import TurnPlayer
from infersiege.wire.transport import Client, DecoderLoop, StampClock

CHANNEL = "locust"
SESSIONS_PER_WORKER = 1_000_003
FOREVER_NS = 1 << 60


class Unkept:
    """Records are not kept: Locust's statistics are the result."""

    def journal(self, line: JournalLine) -> None:
        """Nothing to recover."""

    def add(self, record: TurnRecord) -> None:
        """Its listeners have seen it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One workload on one channel."""

    source: SessionSource
    route: Route
    workload: Workload
    numbers: Iterator[int]


class LocustRun:
    """What all users of one Locust process share."""

    def __init__(self, environment: Environment, seed: int, environ: Mapping[str, str]) -> None:
        self._environment = environment
        self._seed = seed
        self._environ = environ
        self._clock = StampClock()
        self._decoder_loop = DecoderLoop(self._clock)
        self._parts: dict[tuple[str, str | None], Part] = {}
        self._stopped = False
        self._control = RunControl()
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._ledger = Ledger(
            run_id=f"locust-{os.getpid()}",
            worker="locust",
            epoch=0,
            spool=Unkept(),
            place_of=lambda _: Place(CHANNEL, Phase.STEADY),
        )
        self._ledger.listeners.append(self._fire)
        turns = TurnPlayer(self._ledger, offset_ns=self._offset_ns)
        self._player = SessionPlayer(turns, self._control, offset_ns=self._offset_ns)

    def part(self, workload: Workload, channel: Channel) -> Part:
        """Trace, route and session numbers of a workload, made once per process. Raises what a plan would raise."""
        key = (workload.scenario, channel.base_url)
        found = self._parts.get(key)
        if found is None:
            if channel.api_key_env and not self._environ.get(channel.api_key_env):
                raise UsageError(
                    f"the environment variable {channel.api_key_env} is not set", hint="export it with the key"
                )
            if workload.load is not None:
                raise UsageError(
                    f"the workload {workload.scenario!r} has a load of its own, which a locustfile can't give it",
                    hint="Locust's -u and -r say how many users there are; loads and stages are `infersiege run`'s",
                )
            plan = Plan(
                run=Run(seed=self._seed, nonce=str(self._seed)),
                channels={CHANNEL: channel},
                workloads=(msgspec.structs.replace(workload, wrap=True, channel=CHANNEL),),
                load=Load(users=1),
            )
            # Locust gives workers an index when they connect; each starts its sessions far from the others'.
            worker_index = max(0, getattr(self._environment.runner, "worker_index", 0))
            found = Part(
                source=SessionSource(plan, place=0, members=1),
                route=route_of(CHANNEL, channel, plan, self._environ),
                workload=workload,
                numbers=itertools.count(worker_index * SESSIONS_PER_WORKER),
            )
            self._parts[key] = found
        return found

    def stop(self, error: InfersiegeError) -> None:
        """End this Locust process: there is nothing more to play."""
        if self._stopped:
            return
        self._stopped = True
        _say(error)
        self._environment.process_exit_code = int(error.exit_code)
        if self._environment.runner is not None:
            gevent.spawn(self._environment.runner.quit)

    def client(self, route: Route) -> Client:
        return Client(route.endpoint, self._clock, self._decoder_loop)

    def play(self, part: Part, client: Client) -> None:
        """One session, from its first turn to its last."""
        self._control.renew(FOREVER_NS)
        number = next(part.numbers)
        ticket = Ticket(index=number, workload=0, session_index=number, offset_ns=None)
        session_id, conversation = part.source.named_conversation(ticket)
        due_ns = time.monotonic_ns()
        lines = opened_lines(
            conversation.lines,
            session_id=f"{session_id}#{number}",
            scenario=part.workload.scenario,
            channel=part.route.labels,
            due_ns=due_ns + self._offset_ns,
        )
        self._ledger.take(*lines)
        way = way_of(part.route, cache_key_of(self._ledger.run_id, lines[0].session_id))
        prepared = PreparedSession(lines, conversation, way)
        last = self._player.play(prepared, Clients(lambda _: client), due_ns, self._lent)
        self._control.wait_until(time.monotonic_ns() + pause_after(last))

    @contextmanager
    def _lent(self) -> Iterator[Clients]:
        """Connections of a branch, for as long as it is played."""
        clients = Clients(self.client)
        try:
            yield clients
        finally:
            clients.close()

    def _fire(self, record: TurnRecord) -> None:
        """Rows of Locust's table: `chat` is the whole answer, failures included; TTFT and TPOT stand beside it."""
        if record.outcome in (Outcome.SKIPPED, Outcome.CANCELLED):
            return
        fire: Any = self._environment.events.request.fire
        failed = record.outcome is not Outcome.OK
        error = InfersiegeError(f"{record.error_class}: {record.error_detail}") if failed else None
        whole_ns = of.e2e(record) if not failed else _until_closed(record)
        common: dict[str, Any] = {"name": record.scenario, "context": {}, "response": None}
        fire(
            request_type="chat", response_time=_ms(whole_ns) or 0.0, response_length=record.bytes_in,
            exception=error, **common,
        )  # fmt: skip
        if failed:
            return
        for row, value_ns in (("TTFT", of.ttft(record)), ("TPOT", of.tpot(record))):
            if value_ns is not None:
                fire(request_type=row, response_time=_ms(value_ns), response_length=0, exception=None, **common)


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _until_closed(record: TurnRecord) -> int | None:
    if record.closed_ns is None or record.attempt_ns is None:
        return None
    return record.closed_ns - record.attempt_ns


class InferenceUser(User):
    """Plays sessions of one workload, one after the other. Subclass it and set `workload`."""

    abstract = True
    workload: ClassVar[Workload]
    channel: ClassVar[Channel | None] = None
    """None: the one that Locust's command line names."""

    def on_start(self) -> None:
        self._run = locust_run(self.environment)
        self._part = self._run.part(self.workload, self.channel or channel_of(self.environment))
        self._client = self._run.client(self._part.route)

    def on_stop(self) -> None:
        self._client.close()

    @task
    def play(self) -> None:
        try:
            self._run.play(self._part, self._client)
        except InfersiegeError as error:
            # Of a trace that was changed meanwhile nothing more can be played: Locust would try again and again.
            self._run.stop(error)
            raise StopUser from None


def locust_run(environment: Environment) -> LocustRun:
    """The shared state of this Locust process, made by its first user."""
    found: LocustRun | None = getattr(environment, "infersiege", None)
    if found is None:
        options: Any = environment.parsed_options
        found = LocustRun(environment, options.infersiege_seed, os.environ)
        keep: Any = environment
        keep.infersiege = found
    return found


def channel_of(environment: Environment) -> Channel:
    """The channel that the command line names. Raises UsageError when the host or the model is missing."""
    options: Any = environment.parsed_options
    if not environment.host:
        raise UsageError("no target: name it with --host http://127.0.0.1:8000/v1")
    if not options.infersiege_model:
        raise UsageError("no model: name it with --model")
    return Channel(
        engine=options.infersiege_engine,
        base_url=environment.host,
        model=options.infersiege_model,
        api_key_env=options.infersiege_key_env or None,
    )


def install() -> None:
    """To be called by a locustfile: puts our options on Locust's command line and checks them before the first user."""
    hooks: Any = events
    hooks.init_command_line_parser.add_listener(_add_options)
    hooks.init.add_listener(_check_headless)
    hooks.init.add_listener(_set_clock)
    hooks.test_start.add_listener(_check)


def _set_clock(**_: Any) -> None:
    """libev counts a timer from its last look at the clock, which was before the imports: `-t 4s` ended after one."""
    gevent.get_hub().loop.update_now()


def _add_options(parser: Any, **_: Any) -> None:
    group = parser.add_argument_group("infersiege")
    group.add_argument("--model", dest="infersiege_model", env_var="INFERSIEGE_MODEL", default="", help="Model name")
    group.add_argument(
        "--engine",
        dest="infersiege_engine",
        env_var="INFERSIEGE_ENGINE",
        default="generic",
        choices=sorted(PROFILES),
        help="Engine profile",
    )
    group.add_argument(
        "--key-env", dest="infersiege_key_env", default="", help="Environment variable that holds the API key"
    )
    group.add_argument("--seed", dest="infersiege_seed", type=int, default=1, help="Seed of the built-in workloads")


def _check_headless(environment: Environment, **_: Any) -> None:
    """Without a web page the command line is all there is: what is missing ends Locust before anything starts.

    A worker gets its options from the master when the load starts.
    """
    options: Any = environment.parsed_options
    if not options.headless or options.worker:
        return
    try:
        _parts(environment)
    except InfersiegeError as error:
        _say(error)
        raise SystemExit(int(error.exit_code)) from None


def _check(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        return
    try:
        _parts(environment)
    except InfersiegeError as error:
        _say(error)
        environment.process_exit_code = int(error.exit_code)
        if environment.runner is not None:
            environment.runner.quit()


def _parts(environment: Environment) -> None:
    """Make what the users will need. A master has no users, so it does not look at what only they need."""
    for user in environment.user_classes:
        if issubclass(user, InferenceUser):
            channel = user.channel or channel_of(environment)
            if not isinstance(environment.runner, MasterRunner):
                locust_run(environment).part(user.workload, channel)


def _say(error: InfersiegeError) -> None:
    print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
