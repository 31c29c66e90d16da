"""A trace that lies in Redis, for whoever asks for its sessions by number."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec
import redis

from infersiege.errors import TraceError
from infersiege.plan import trace as files
from infersiege.plan.schema import Plan, Workload
from infersiege.records import Session
from infersiege.redis_stream.address import Address, address_of, connected, shown
from infersiege.redis_stream.loading import unpacked
from infersiege.redis_stream.names import LAYOUT, PREFIX, entry_id, index_of, keys
from infersiege.traces import Trace
from infersiege.traces.formats.normal import NAME, VERSION
from infersiege.traces.sessions.session_checks import check_session

AHEAD = 16
"""Sessions on one round trip, where they are read one after another."""
_MOST_NAMES = 20


def trace_of(plan: Plan, workload: Workload, environ: Mapping[str, str] = os.environ) -> Trace:
    """The trace of any workload, in Redis or not. Raises TraceError and UsageError."""
    if workload.source is None:
        return files.trace_of(plan, workload)
    return RedisTrace(address_of(plan, workload.source, environ), workload.trace, limit=workload.limit)


class RedisTrace:
    """A trace in Redis. Sessions are fetched when they are asked for, unless a claim has brought them."""

    def __init__(self, address: Address, name: str, *, limit: int | None = None) -> None:
        """Raises UsageError for a server that is not there or refuses, TraceError for a trace that is not whole."""
        self.address = address
        self.name = name
        self.format = NAME
        self.rows: int | None = None
        self.skipped: Mapping[str, int] = {}
        self._place = f"{shown(address.url)}: trace {name!r}"
        with connected(address) as server:
            facts = self._facts(server)
            whole = self._count(facts)
            there = server.xlen(keys(name)[1])
        if there != whole:
            raise TraceError(
                f"{self._place}: has {there:,} of its {whole:,} sessions", hint="load it again, with --replace"
            )
        self.stored = whole
        self.sessions: int = whole if limit is None else min(whole, limit)
        self.sha256: str | None = facts[b"content_sha256"].decode()
        self.warnings: tuple[str, ...] = ()
        self.arrivals_ns: Sequence[int] | None = self._arrivals(facts)
        self._brought: dict[int, bytes] = {}
        """Sessions that are here already, by number: each is asked for once."""
        self._ahead: dict[int, bytes] = {}
        self._decoder = msgspec.json.Decoder(Session)

    def session(self, index: int) -> Session:
        """Raises IndexError outside of the trace, UsageError where Redis does not give it."""
        if not 0 <= index < self.sessions:
            raise IndexError(index)
        line = self._brought.pop(index, None) or self._ahead.pop(index, None)
        if line is None:
            self._ahead = dict(self._fetch(index))
            line = self._ahead.pop(index, None)
        if line is None:
            raise TraceError(f"{self._place}: session {index} is gone", hint="load it again, with --replace")
        return self._decoded(index, line)

    def bring(self, index: int, line: bytes) -> None:
        """A claim has this session: the next to ask for it gets it from here."""
        self._brought[index] = line

    def forget(self, index: int) -> None:
        """Nobody will ask for this session."""
        self._brought.pop(index, None)

    def same_as(self, facts: Mapping[bytes, bytes]) -> bool:
        """Whether what Redis says of the trace of this name now is still said of this one."""
        return facts.get(b"content_sha256", b"").decode() == self.sha256

    def _decoded(self, index: int, line: bytes) -> Session:
        try:
            session = self._decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise TraceError(f"{self._place}: session {index}: {error}", hint="load it again, with --replace") from None
        check_session(session, f"{self._place}: session {index}")
        return session

    def _fetch(self, index: int) -> Iterator[tuple[int, bytes]]:
        # Who asks for the first one may want it only; who asks for the one after the last one goes on.
        count = 1 if index == 0 else min(AHEAD, self.sessions - index)
        with connected(self.address) as server:
            found: Any = server.xrange(keys(self.name)[1], min=entry_id(index), count=count)
        for entry, fields in found:
            yield index_of(entry), fields[b"session"]

    def _facts(self, server: redis.Redis) -> Mapping[bytes, bytes]:
        facts: Any = server.hgetall(keys(self.name)[0])
        if not facts:
            names = sorted(_names(server))
            there = f"there are: {', '.join(names)}" if names else "there is none at all"
            raise TraceError(
                f"{shown(self.address.url)}: there is no trace {self.name!r}",
                hint=f"`infersiege traces load FILE --redis URL --name {self.name}` puts it there; {there}",
            )
        again = "load it again, with --replace"
        if facts.get(b"layout") != b"%d" % LAYOUT or facts.get(b"version") != b"%d" % VERSION:
            raise TraceError(f"{self._place}: was loaded by another version of infersiege", hint=again)
        if facts.get(b"complete") != b"1" or not facts.get(b"content_sha256"):
            raise TraceError(f"{self._place}: is not whole", hint=again)
        return cast("Mapping[bytes, bytes]", facts)

    def _count(self, facts: Mapping[bytes, bytes]) -> int:
        with suppress(ValueError):
            count = int(facts.get(b"sessions", b""))
            if count > 0:
                return count
        raise TraceError(f"{self._place}: has no sessions", hint="load it again, with --replace")

    def _arrivals(self, facts: Mapping[bytes, bytes]) -> array[int] | None:
        try:
            times = unpacked(facts.get(b"arrivals", b""))
        except ValueError:
            times = array("q")
        if times is not None and len(times) != self.stored:
            raise TraceError(f"{self._place}: its times are damaged", hint="load it again, with --replace")
        return None if times is None else times[: self.sessions]


def _names(server: redis.Redis) -> list[str]:
    """Of the traces that are there, some of them where there are many."""
    found = []
    for key in server.scan_iter(match=f"{PREFIX}:*:trace", count=1_000):
        found.append(key.decode(errors="replace").removeprefix(f"{PREFIX}:").removesuffix(":trace"))
        if len(found) == _MOST_NAMES:
            break
    return found
