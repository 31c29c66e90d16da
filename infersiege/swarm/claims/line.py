"""A worker's connection to one Redis: tried again with patience, and never by two greenlets at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import redis
from gevent.lock import RLock
from redis.exceptions import NoPermissionError

from infersiege.errors import TraceError, UsageError
from infersiege.redis_stream.address import Address, refusal
from infersiege.redis_stream.groups import TAKE_OVER_S
from infersiege.swarm.control import RunControl

T = TypeVar("T")

ANSWER_S = 2.0
"""Longest wait for one answer."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
"""Between two tries to reach it again."""
SETTLE_NS = 1_500_000_000
"""After Redis was started again nothing is claimed for so long: every worker first says what it had been given, and is
back within LONGEST_PAUSE_S."""


class Return(NamedTuple):
    """What is known of a Redis that answers again."""

    forgetful: bool
    """It may have been started again, and may have forgotten its last moments."""
    young: bool
    """So lately that nobody else can have got what was ours."""


class RunOverError(Exception):
    """The load is over: nobody needs an answer of Redis any more."""


class RedisLine:
    """One connection. Instants are the monotonic clock."""

    def __init__(self, address: Address, patience_ns: int, control: RunControl) -> None:
        self.address = address
        self.lock: Any = RLock()
        self.on_connect: list[Callable[[redis.Redis, Return], None]] = []
        """Called for each connection but the first, before anything else is asked."""
        self.connected_ns = 0
        """Since when it answers without a break."""
        self.quiet_until_ns = 0
        """Until then nothing is claimed."""
        self.tries = 0
        """Of the call in progress."""
        self.trouble: str | None = None
        """Why it gives no answer at the moment; None: it does, or was not asked."""
        self.longest_away_ns = 0
        """Longest time without an answer so far."""
        self._patience_ns = patience_ns
        self._control = control
        self._client: redis.Redis | None = None
        self._process: str | None = None
        """Of the server: another one means that it was started again."""

    def call(self, work: Callable[[redis.Redis], T]) -> T:
        """Do it, again and again until Redis answers. Raises TraceError when patience is over or Redis refuses,
        RunOverError when the load ends before."""
        with self.lock:
            self.tries, pause_s, since_ns = 0, FIRST_PAUSE_S, time.monotonic_ns()
            while True:
                self.tries += 1
                try:
                    answer = work(self._connected())
                except redis.RedisError as error:
                    self._drop()
                    self._away(since_ns)
                    self._give_up(error, time.monotonic_ns() - since_ns)
                else:
                    if self.tries > 1:
                        self._away(since_ns)
                    self.trouble = None
                    return answer
                if self._control.closing.wait(pause_s):
                    raise RunOverError
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _give_up(self, error: redis.RedisError, failing_ns: int) -> None:
        """Keeps why; raises for what does not pass by itself, and when it was long enough."""
        said = refusal(error, self.address)
        passes = isinstance(
            error, redis.ConnectionError | redis.TimeoutError | redis.ReadOnlyError | redis.OutOfMemoryError
        ) and not isinstance(error, redis.AuthenticationError)
        if not passes:
            self.trouble = f"Redis gives no sessions: {said}"
            raise TraceError(self.trouble, hint=said.hint) from None
        self.trouble = f"Redis has given no session for {failing_ns / 1e9:.0f} s: {said}"
        if failing_ns >= self._patience_ns:
            raise TraceError(
                self.trouble,
                hint=f"{said.hint}; patience of [redis] is how long a run waits",
            ) from None

    def _away(self, since_ns: int) -> None:
        self.longest_away_ns = max(self.longest_away_ns, time.monotonic_ns() - since_ns)

    def _connected(self) -> redis.Redis:
        if self._client is not None:
            return self._client
        try:
            client = self.address.client(ANSWER_S, single=True)
        except (ValueError, TypeError):
            raise UsageError("the address of Redis is none") from None  # the plan was checked
        self._client = client
        process, age_s = self._look(client)
        self.connected_ns = time.monotonic_ns()
        if self._process is not None:
            forgetful = not process or process != self._process
            if forgetful:
                self.quiet_until_ns = self.connected_ns + SETTLE_NS
            for told in self.on_connect:
                told(client, Return(forgetful=forgetful, young=age_s < TAKE_OVER_S - 1))
        self._process = process
        return client

    def _look(self, client: redis.Redis) -> tuple[str, float]:
        """(what tells this process of the server from others, its age in seconds), as far as we may know."""
        try:
            facts: Any = client.info("server")
        except NoPermissionError:
            facts = {}
        return str(facts.get("run_id", "")), float(facts.get("uptime_in_seconds", 0))

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
