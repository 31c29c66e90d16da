"""A trace in Redis: a stream with one entry a session, and a hash that says what it is.

    infersiege:NAME:trace       version, name, format, sha256, sessions, turns, complete
    infersiege:NAME:sessions    stream; each entry has `index` and `session` (a line of the format `infersiege`)

Everything is written beside the old one and put in its place at the end: a reader never sees half a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec
import redis

from infersiege.errors import UsageError
from infersiege.records import Session
from infersiege.traces.normal import VERSION, Header

PREFIX = "infersiege"
_BATCH = 500
"""Sessions of one round trip."""
_TIMEOUT_S = 10.0


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    key: str
    """Of the stream."""
    sessions: int
    turns: int
    bytes: int
    """Of the sessions, as JSON."""


def keys(name: str) -> tuple[str, str]:
    """(hash of the trace, stream of its sessions)."""
    return f"{PREFIX}:{name}:trace", f"{PREFIX}:{name}:sessions"


def load(url: str, name: str, sessions: Iterable[Session], header: Header, *, replace: bool = False) -> Loaded:
    """Write all sessions under `name`.

    `url`: `redis://[user:password@]host[:port][/db]`, also `rediss://` and `unix://`. Raises UsageError: a name that is
    taken (unless `replace`), a server that is not there, refuses or is full; what was there before is then untouched.
    """
    facts, stream = keys(name)
    unfinished = f"{stream}:unfinished"
    with _told(url), redis.Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S) as server:
        if not replace and server.exists(facts, stream):
            raise UsageError(
                f"{_shown(url)}: there is a trace {name!r} already",
                hint="--replace writes over it; --name gives another",
            )
        server.delete(unfinished)
        try:
            written = _write(server, unfinished, sessions)
        except BaseException:
            server.delete(unfinished)
            raise
        swap = server.pipeline(transaction=True)
        swap.delete(facts)
        swap.rename(unfinished, stream)
        swap.hset(
            facts,
            mapping={
                "version": VERSION,
                "made_from": header.made_from or "",
                "sha256": header.sha256 or "",
                "changes": msgspec.json.encode(header.changes).decode(),
                "sessions": written.sessions,
                "turns": written.turns,
                "complete": 1,
            },
        )
        swap.execute()
    return msgspec.structs.replace(written, key=stream)


def _write(server: redis.Redis, key: str, sessions: Iterable[Session]) -> Loaded:
    encoder = msgspec.json.Encoder()
    batch = server.pipeline(transaction=False)
    count = turns = size = 0
    for count, session in enumerate(sessions, 1):
        line = encoder.encode(session)
        batch.xadd(key, {"index": count - 1, "session": line})
        turns += session.turn_count
        size += len(line)
        if count % _BATCH == 0:
            batch.execute()
    batch.execute()
    return Loaded(key=key, sessions=count, turns=turns, bytes=size)


@contextmanager
def _told(url: str) -> Iterator[None]:
    """What Redis and its client raise, as one line with the address and without its password."""
    try:
        yield
    except redis.AuthenticationError:
        raise UsageError(
            f"{_shown(url)}: Redis wants another user or password", hint="redis://user:password@host:port/0"
        ) from None
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise UsageError(f"{_shown(url)}: {error}", hint="is Redis running there? --redis names it") from None
    except redis.RedisError as error:
        raise UsageError(
            f"{_shown(url)}: Redis refused: {error}", hint="`redis-cli info memory` shows its room"
        ) from None
    except ValueError as error:
        raise UsageError(f"{_shown(url)}: is no Redis URL: {error}", hint="redis://HOST:6379/0") from None


def _shown(url: str) -> str:
    """The address without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
