"""The sessions of one workload that this worker has claimed in Redis, and has not begun to play.

A session goes through three hands: *held* (claimed: others get it if this worker dies), *ready* (taken: this worker's
for good, its arrival is due), and the ledger's, which sees to its records. Sessions are counted over all repeats.

Taken comes before the ledger. The other way round a worker that dies in between would leave a record of a session that
Redis gives to another one, which would play it once more; so that session has no record, and the report counts it.
"""

from __future__ import annotations

import logging
import secrets
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Any

import redis

from infersiege.errors import TraceError
from infersiege.redis_stream import RedisTrace, keys, shown
from infersiege.redis_stream.groups import TAKE_OVER_S, Entry, Group
from infersiege.redis_stream.names import RUN_S
from infersiege.swarm.claims.line import RedisLine, Return, RunOverError
from infersiege.swarm.control import RunControl

log = logging.getLogger("infersiege.swarm.claims")

EARLY_NS = 50_000_000
"""How long before its arrival is due a session is taken: with the beginning of its preparation."""
POLL_S = 0.1
"""Between two looks whether others have given back what they had claimed."""
LOOK_NS = 1_000_000_000
"""Between two looks for claims of workers that show no sign of life."""
MOST_AT_ONCE = 64
"""Sessions of one claim."""
REMEMBERED = 20_000
"""Sessions that were taken lately: those that Redis may have forgotten after a crash."""


class Shelf:
    """One workload's sessions on this worker."""

    def __init__(
        self,
        trace: RedisTrace,
        line: RedisLine,
        control: RunControl,
        group_of: Callable[[int], Group],
        *,
        wrap: bool,
        remembered: int = REMEMBERED,
    ) -> None:
        """`group_of`: the group of a repeat. `remembered`: so many sessions that were taken are known as such."""
        self._trace, self._line, self._control = trace, line, control
        self._group_of = group_of
        self._wrap = wrap
        self._sessions = trace.sessions
        self._repeat = 0
        self._ended = False
        """The repeat gives no more: all of it was claimed by somebody."""
        self._held: list[int] = []
        """In order."""
        self._ready: deque[int] = deque()
        self._taken: dict[int, None] = {}
        """Lately, in the order in which they were."""
        self._remembered = remembered
        self._due: deque[int] = deque()
        """When arrivals are due that will need sessions (monotonic)."""
        self._one = False
        """One session is to be here for whoever is free next."""
        self._asking = 0
        """Arrivals that wait for their sessions now."""
        self._served_ns = 0
        """The last one that got its session."""
        self._looked_ns = 0
        self._word, self._calls = secrets.token_hex(6), 0
        line.on_connect.append(self._reconnected)

    def expect(self, due_ns: Iterable[int]) -> None:
        """Arrivals are due then (monotonic): have their sessions here. Raises TraceError, RunOverError."""
        with self._line.lock:
            self._due += (at_ns for at_ns in due_ns if at_ns > self._served_ns)
            while self._due and self._due[0] <= self._served_ns:
                self._due.popleft()
            self._claim(len(self._due) - len(self._held) - len(self._ready))

    def forgo(self, due_ns: Iterable[int]) -> None:
        """These arrivals are somebody else's by now, and so are their sessions. Raises TraceError, RunOverError."""
        with self._line.lock:
            for at_ns in due_ns:
                if at_ns in self._due:
                    self._due.remove(at_ns)
            self._give_back()

    def have_one(self) -> None:
        """Have a session here for whoever is free next. Raises TraceError, RunOverError."""
        with self._line.lock:
            self._one = True
            if not self._held and not self._ready:
                self._claim(1)

    def have_none(self) -> None:
        """Nobody will be free for one. Raises TraceError, RunOverError."""
        with self._line.lock:
            self._one = False
            self._give_back()

    def next(self, due_ns: int) -> int | None:
        """The session for an arrival, waiting for Redis if need be. None: there is none left, or the load is over.

        Raises TraceError when Redis gives none for too long.
        """
        self._asking += 1
        try:
            while not self._ready:
                if self._control.closing.is_set():
                    return None
                if self._obtain():
                    break
                if self._over():
                    return None
                self._control.closing.wait(POLL_S)
            self._served_ns = max(self._served_ns, due_ns)
            return self._ready.popleft()
        except RunOverError:
            return None
        finally:
            self._asking -= 1

    def keep(self) -> None:
        """A sign of life for what is held, and for the run. Raises TraceError, RunOverError."""
        with self._line.lock:
            self._line.call(lambda server: server.expire(self._group().run_key, RUN_S))
            self._give_back()
            for repeat, numbers in self._by_repeat(self._held):
                group = self._group(repeat)
                mine = self._ask(group, partial(_swapped, group.touch, numbers))
                self._drop(number + repeat * self._sessions for number in numbers if number not in mine)

    # ------------------------------------------------------------------------------------------------------- claiming

    def _obtain(self) -> bool:
        """Take what is held for arrivals that are due now, one at least; claim one first if there is none."""
        with self._line.lock:
            if self._ready:
                return True
            if not self._held:
                self._claim(1)
            until_ns = time.monotonic_ns() + EARLY_NS
            while self._held and not self._ready:  # some may be somebody else's by now
                due = sum(self._served_ns < at_ns <= until_ns for at_ns in self._due)
                self._take(self._held[: max(1, due)])
            return bool(self._ready)

    def _claim(self, count: int) -> None:
        """Have so many more here, as far as there are."""
        if count <= 0:
            return
        count -= self._take_over(count)
        while count > 0:
            if self._ended:
                if not self._wrap:
                    return
                self._repeat, self._ended = self._repeat + 1, False
                group = self._group()
                self._line.call(group.create)
            self._settle()
            group, wanted = self._group(), min(count, MOST_AT_ONCE)
            entries = self._ask(group, partial(_swapped, group.read, wanted))
            count -= self._hold(entries, self._repeat)
            self._ended = not entries or entries[-1].number >= self._sessions

    def _give_back(self) -> None:
        """Others may have what is held for no arrival of ours: somebody may wait for it, until the load is over."""
        wanted = sum(at_ns > self._served_ns for at_ns in self._due) + self._one + self._asking
        spare = self._held[max(0, wanted - len(self._ready)) :]
        for repeat, numbers in self._by_repeat(spare):
            group = self._group(repeat)
            self._ask(group, partial(_swapped, group.give_back, numbers))
        self._drop(spare)

    def _settle(self) -> None:
        """After Redis was started again: until the others have said what was theirs."""
        while (left_ns := self._line.quiet_until_ns - time.monotonic_ns()) > 0:
            if self._control.closing.wait(left_ns / 1e9):
                raise RunOverError

    def _take_over(self, count: int) -> int:
        """Claim what dead workers had claimed. How many.

        Times of silence mean something only where Redis, and we, were there all the while.
        """
        now_ns = time.monotonic_ns()
        if now_ns - self._line.connected_ns < TAKE_OVER_S * 1e9 or now_ns - self._looked_ns < LOOK_NS:
            return 0
        found = 0
        for repeat in {max(0, self._repeat - 1), self._repeat}:
            group = self._group(repeat)
            entries = self._ask(group, partial(_swapped, group.take_over, count))
            found += self._hold(entries, repeat)
        self._looked_ns = 0 if found else now_ns  # there may be more
        return found

    def _hold(self, entries: Iterable[Entry], repeat: int) -> int:
        """What the group gave is here; how much of it is new. What was here before is not played again."""
        kept, again = 0, []
        for entry in entries:
            session = repeat * self._sessions + entry.number
            if session in self._taken or entry.number >= self._sessions:
                again.append(entry.number)
                if session in self._taken:
                    log.warning("Redis gave session %d again, which is not played twice", entry.number)
            elif session not in self._held:
                insort(self._held, session)
                self._trace.bring(entry.number, entry.line)
                kept += 1
        if again:
            group = self._group(repeat)
            self._ask(group, partial(_swapped, group.acknowledge, again))
        return kept

    def _take(self, sessions: list[int]) -> None:
        for repeat, numbers in self._by_repeat(sessions):
            group, self._calls = self._group(repeat), self._calls + 1
            word = f"{self._word}.{self._calls}"

            def take(
                server: redis.Redis, group: Group = group, numbers: list[int] = numbers, word: str = word
            ) -> list[bool]:
                found = group.take(server, numbers, word)
                if self._line.tries > 1:  # it may have been restored after it was taken
                    group.acknowledge(server, [one for one, mine in zip(numbers, found, strict=True) if mine])
                return found

            for number, mine in zip(numbers, self._ask(group, take), strict=True):
                session = repeat * self._sessions + number
                if mine:
                    self._ready.append(session)
                    self._remember(session)
                    if session in self._held:
                        self._held.remove(session)
                else:
                    self._drop((session,))

    def _remember(self, session: int) -> None:
        """It is taken: a crash may make Redis give it again, but not one of so long ago."""
        self._taken[session] = None
        if len(self._taken) > self._remembered:
            del self._taken[next(iter(self._taken))]

    def _drop(self, sessions: Iterable[int]) -> None:
        """They are somebody else's by now."""
        for session in list(sessions):
            if session in self._held:
                self._held.remove(session)
                self._trace.forget(session % self._sessions)

    def _over(self) -> bool:
        """Nothing comes any more: all was claimed, and nobody holds what he could still lose."""
        if self._wrap or not self._ended:
            return False
        group = self._group()
        return bool(self._ask(group, group.waiting) == 0)

    # ------------------------------------------------------------------------------------------- when Redis comes back

    def _ask(self, group: Group, work: Callable[[redis.Redis], Any]) -> Any:
        """A call on a group, which is made again where Redis has forgotten it. Raises TraceError, RunOverError."""

        def asked(server: redis.Redis) -> Any:
            try:
                return work(server)
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                self._remake(server, group)
                return work(server)

        return self._line.call(asked)

    def _remake(self, server: redis.Redis, group: Group) -> None:
        self._check_trace(server)
        log.warning("Redis has forgotten the group %s: it is made again", group.name)
        held, taken = self._of_group(group)
        group.create(server, after=max((*held, *taken), default=-1))
        group.restore(server, held, taken)

    def _reconnected(self, server: redis.Redis, back: Return) -> None:
        """Say what is ours where Redis may not know it, and hear what is, where an answer was lost."""
        if back.forgetful:
            self._check_trace(server)
        for repeat in sorted({max(0, self._repeat - 1), self._repeat}):
            group = self._group(repeat)
            held, taken = self._of_group(group)
            try:
                if back.forgetful:
                    group.restore(server, held if back.young else (), taken)
                mine = group.mine(server)
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                self._remake(server, group)
                mine = group.mine(server)
            there = {entry.number for entry in mine}
            self._drop(repeat * self._sessions + number for number in held if number not in there)
            self._keep_new(mine, repeat)

    def _keep_new(self, mine: Iterable[Entry], repeat: int) -> None:
        for entry in mine:
            session = repeat * self._sessions + entry.number
            if session not in self._taken and session not in self._held and entry.number < self._sessions:
                insort(self._held, session)
                self._trace.bring(entry.number, entry.line)

    def _check_trace(self, server: redis.Redis) -> None:
        """Raises TraceError for a trace that is gone, or another one by now."""
        facts: Any = server.hgetall(keys(self._trace.name)[0])
        place = f"{shown(self._trace.address.url)}: the trace {self._trace.name!r}"
        if not facts:
            raise TraceError(
                f"{place} is gone from Redis",
                hint="was it started again without `appendonly yes`? load the trace again",
            )
        if not self._trace.same_as(facts):
            raise TraceError(f"{place} was replaced while it was played", hint="load it under another --name")

    # --------------------------------------------------------------------------------------------------------- counting

    def _group(self, repeat: int | None = None) -> Group:
        return self._group_of(self._repeat if repeat is None else repeat)

    def _by_repeat(self, sessions: Iterable[int]) -> list[tuple[int, list[int]]]:
        """(repeat, numbers in the trace) of sessions in order."""
        return [
            (repeat, [session % self._sessions for session in some])
            for repeat, some in groupby(list(sessions), key=lambda session: session // self._sessions)
        ]

    def _of_group(self, group: Group) -> tuple[list[int], list[int]]:
        """(held, lately taken) numbers of one group."""
        repeat = group.repeat
        held = [one % self._sessions for one in self._held if one // self._sessions == repeat]
        return held, [one % self._sessions for one in self._taken if one // self._sessions == repeat]


def _swapped(work: Callable[[redis.Redis, Any], Any], argument: Any, server: redis.Redis) -> Any:
    return work(server, argument)
