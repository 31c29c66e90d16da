"""Puts a trace into Redis.

Everything is written beside the old one (`…:sessions:unfinished:` and a random word, gone within an hour if its writer
dies) and put in its place at the end: a reader never sees half a trace, and of two writers of one name the last is
seen, whole.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import zlib
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

import msgspec
import numpy as np
import redis
from redis.client import Pipeline

from infersiege.errors import UsageError
from infersiege.records import Session
from infersiege.redis_stream.address import Address, connected, shown
from infersiege.redis_stream.names import LAYOUT, RUN_S, entry_id, keys, run_key
from infersiege.traces.formats.normal import VERSION, Header

BATCH_BYTES = 4 << 20
"""Of sessions on one round trip: a session of an agent may have megabytes."""
_BATCH = 500
"""Sessions of one, at most."""
_UNFINISHED_S = 3_600


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    key: str
    """Of the stream."""
    sessions: int
    turns: int
    bytes: int
    """Of the sessions, as JSON."""


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    loaded: Loaded
    content_sha256: str
    """Of all sessions, in order, each with a line end."""
    arrivals: str
    """As `packed` makes it; empty: not every session has a time, or they fall."""


def load(
    where: str | Address, name: str, sessions: Iterable[Session], header: Header, *, replace: bool = False
) -> Loaded:
    """Write all sessions under `name`.

    `where`: an address, or `redis://[user:password@]host[:port][/db]`, also `rediss://` and `unix://`. Raises
    UsageError: a name that is taken (unless `replace`) or that a run is playing, a server that is not there, refuses or
    is full; what was there before is then untouched.
    """
    address = Address(where) if isinstance(where, str) else where
    facts, stream = keys(name)
    unfinished = f"{stream}:unfinished:{secrets.token_hex(8)}"
    with connected(address) as server:
        if not replace and server.exists(facts, stream):
            raise _taken(address.url, name)
        _check_unplayed(server, address.url, name)
        try:
            written = _write(server, unfinished, sessions)
            _swap(server, address.url, name, unfinished, written, header, replace=replace)
        except BaseException:
            # What it is that fails is to be told, also where the server is the reason and can't forget.
            with suppress(redis.RedisError):
                server.delete(unfinished)
            raise
    return msgspec.structs.replace(written.loaded, key=stream)


def _check_unplayed(server: redis.Redis, url: str, name: str) -> None:
    """Raises UsageError while a run plays what would be written over: it would lose its place."""
    facts, _ = keys(name)
    if not server.exists(facts):
        return
    pattern = run_key("".join(f"\\{sign}" if sign in "*?[]\\^" else sign for sign in name), "*")
    for key in server.scan_iter(match=pattern, count=1_000):
        seconds = RUN_S - max(0, server.ttl(key))
        raise UsageError(
            f"{shown(url)}: a run plays the trace {name!r} (last sign of life {seconds} s ago)",
            hint=f"--name gives another; a run that died is forgotten {RUN_S // 60} minutes later",
        )


def _swap(
    server: redis.Redis, url: str, name: str, unfinished: str, written: _Written, header: Header, *, replace: bool
) -> None:
    """Put it in its place, all at once. Raises UsageError."""
    facts, stream = keys(name)
    loaded = written.loaded
    with server.pipeline(transaction=True) as swap:
        swap.watch(facts, stream)  # type: ignore[no-untyped-call]
        if not replace and swap.exists(facts, stream):
            raise _taken(url, name)  # by somebody who loaded it meanwhile
        if swap.xlen(unfinished) != loaded.sessions:
            raise UsageError(
                f"{shown(url)}: Redis has lost what was written", hint="does it evict keys (`maxmemory-policy`)?"
            )
        swap.multi()
        swap.delete(facts)
        swap.rename(unfinished, stream)
        swap.persist(stream)
        swap.hset(
            facts,
            mapping={
                "version": VERSION,
                "layout": LAYOUT,
                "made_from": header.made_from or "",
                "sha256": header.sha256 or "",
                "content_sha256": written.content_sha256,
                "changes": msgspec.json.encode(header.changes).decode(),
                "sessions": loaded.sessions,
                "turns": loaded.turns,
                "arrivals": written.arrivals,
                "complete": 1,
            },
        )
        try:
            swap.execute()
        except redis.WatchError:
            raise UsageError(
                f"{shown(url)}: somebody else has just written the trace {name!r}", hint="--name gives another"
            ) from None


def _taken(url: str, name: str) -> UsageError:
    return UsageError(
        f"{shown(url)}: there is a trace {name!r} already", hint="--replace writes over it; --name gives another"
    )


def _write(server: redis.Redis, key: str, sessions: Iterable[Session]) -> _Written:
    encoder, content = msgspec.json.Encoder(), hashlib.sha256()
    batch = server.pipeline(transaction=False)
    count = turns = size = held = sent = 0
    times: array[int] | None = array("q")
    for count, session in enumerate(sessions, 1):
        line = encoder.encode(session)
        # Its number is its name there: readers find any session by it.
        batch.xadd(key, {"index": count - 1, "session": line}, id=entry_id(count - 1))
        content.update(line + b"\n")
        turns += session.turn_count
        size += len(line)
        held += len(line)
        times = None if times is None or session.arrival_ns is None else times
        if times is not None:
            times.append(session.arrival_ns or 0)
        if held >= BATCH_BYTES or count - sent >= _BATCH:
            _send(batch, key)
            held, sent = 0, count
    _send(batch, key)
    return _Written(
        loaded=Loaded(key=key, sessions=count, turns=turns, bytes=size),
        content_sha256=content.hexdigest(),
        arrivals=packed(times) if times is not None and all(later >= at for at, later in pairwise(times)) else "",
    )


def _send(batch: Pipeline, key: str) -> None:
    """Raises what the server said, without the command: the client would show the beginning of a session."""
    batch.expire(key, _UNFINISHED_S)
    for answer in batch.execute(raise_on_error=False):
        if isinstance(answer, Exception):
            raise answer


def packed(times_ns: Sequence[int]) -> str:
    """Times that don't fall, as text of a byte or two each: differences, packed, in base 64."""
    if not len(times_ns):
        return ""
    gaps = np.diff(np.asarray(times_ns, dtype="<i8"), prepend=np.int64(0))
    return base64.b64encode(zlib.compress(gaps.astype("<i8").tobytes())).decode()


def unpacked(text: str | bytes) -> array[int] | None:
    """The inverse, from the first time on; None: there are none. Raises ValueError for what is no such text."""
    if not text:
        return None
    try:
        gaps = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), dtype="<i8")
    except zlib.error as error:
        raise ValueError(str(error)) from None
    times = np.cumsum(gaps)
    return array("q", (times - times[0]).astype(np.int64).tobytes())
