"""A trace in Redis: a stream with one entry a session, and a hash that says what it is.

    infersiege:NAME:trace       version, made_from, sha256, changes, sessions, turns, complete
    infersiege:NAME:sessions    stream; each entry has `index` and `session` (a line of the format `infersiege`)

Everything is written beside the old one (`…:sessions:unfinished:` and a random word, gone within an hour if its writer
dies) and put in its place at the end: a reader never sees half a trace, and of two writers of one name the last is
seen, whole.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import msgspec
import redis
from redis.client import Pipeline

from infersiege.channels.redaction import scrub
from infersiege.errors import UsageError
from infersiege.records import Session
from infersiege.traces.formats.normal import VERSION, Header

PREFIX = "infersiege"
BATCH_BYTES = 4 << 20
"""Of sessions on one round trip: a session of an agent may have megabytes."""
_BATCH = 500
"""Sessions of one, at most."""
_FORM = "redis://USER:PASSWORD@HOST:6379/0; / # ? @ : as %2F %23 %3F %40 %3A"
_UNFINISHED_S = 3_600
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
    unfinished = f"{stream}:unfinished:{secrets.token_hex(8)}"
    with _connected(url) as server:
        if not replace and server.exists(facts, stream):
            raise _taken(url, name)
        try:
            written = _write(server, unfinished, sessions)
            _swap(server, url, name, unfinished, written, header, replace=replace)
        except BaseException:
            # What it is that fails is to be told, also where the server is the reason and can't forget.
            with suppress(redis.RedisError):
                server.delete(unfinished)
            raise
    return msgspec.structs.replace(written, key=stream)


def _swap(
    server: redis.Redis, url: str, name: str, unfinished: str, written: Loaded, header: Header, *, replace: bool
) -> None:
    """Put it in its place, all at once. Raises UsageError."""
    facts, stream = keys(name)
    with server.pipeline(transaction=True) as swap:
        swap.watch(facts, stream)  # type: ignore[no-untyped-call]
        if not replace and swap.exists(facts, stream):
            raise _taken(url, name)  # by somebody who loaded it meanwhile
        if swap.xlen(unfinished) != written.sessions:
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
                "made_from": header.made_from or "",
                "sha256": header.sha256 or "",
                "changes": msgspec.json.encode(header.changes).decode(),
                "sessions": written.sessions,
                "turns": written.turns,
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


def _write(server: redis.Redis, key: str, sessions: Iterable[Session]) -> Loaded:
    encoder = msgspec.json.Encoder()
    batch = server.pipeline(transaction=False)
    count = turns = size = held = sent = 0
    for count, session in enumerate(sessions, 1):
        line = encoder.encode(session)
        batch.xadd(key, {"index": count - 1, "session": line})
        turns += session.turn_count
        size += len(line)
        held += len(line)
        if held >= BATCH_BYTES or count - sent >= _BATCH:
            _send(batch, key)
            held, sent = 0, count
    _send(batch, key)
    return Loaded(key=key, sessions=count, turns=turns, bytes=size)


def _send(batch: Pipeline, key: str) -> None:
    """Raises what the server said, without the command: the client would show the beginning of a session."""
    batch.expire(key, _UNFINISHED_S)
    for answer in batch.execute(raise_on_error=False):
        if isinstance(answer, Exception):
            raise answer


@contextmanager
def _connected(url: str) -> Iterator[redis.Redis]:
    """A client of the server there. What it raises becomes a UsageError of one line, without password or session."""
    _check_database(url)
    try:
        client = redis.Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
        with _told(url):
            client.ping()
    except (ValueError, TypeError):
        # Its text would repeat parts of the URL, which may be parts of a password.
        raise UsageError(f"{shown(url)}: is no Redis URL", hint=_FORM) from None
    with client, _told(url):
        yield client


def _check_database(url: str) -> None:
    """The client takes `/x` for database 0. Raises UsageError, without the path, which may be a password's rest."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # the client refuses it, too
    if (
        parts.scheme in ("redis", "rediss")
        and "@" not in parts.path
        and not re.fullmatch(r"(/[0-9]{0,9})?", parts.path)
    ):
        raise UsageError(f"{shown(url)}: is no Redis URL: what follows the / is no number of a database", hint=_FORM)


@contextmanager
def _told(url: str) -> Iterator[None]:
    try:
        yield
    except redis.AuthenticationError:
        raise UsageError(
            f"{shown(url)}: Redis wants another user or password", hint="redis://user:password@host:port/0"
        ) from None
    except redis.OutOfMemoryError:
        raise UsageError(
            f"{shown(url)}: Redis is full: its `maxmemory` is used up", hint="`redis-cli info memory` shows its room"
        ) from None
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise UsageError(
            f"{shown(url)}: {_reason(error, url)}", hint="is Redis running there? --redis names it"
        ) from None
    except redis.RedisError as error:
        reason = _reason(error, url)
        if "DB index" in reason:
            raise UsageError(
                f"{shown(url)}: Redis has no database of this number", hint="`redis-cli config get databases`: how many"
            ) from None
        raise UsageError(f"{shown(url)}: Redis refused: {reason}", hint="what may this user do there?") from None


def _reason(error: redis.RedisError, url: str) -> str:
    """What client or server say, without what they repeat of an address that was read wrongly, or of a command."""
    if shown(url) == _HIDDEN:
        return type(error).__name__
    return scrub(str(error).partition(", with args")[0])[:_LONGEST]


_LONGEST = 200
_HIDDEN = "the address of --redis"
_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:.%]+\]")


def shown(url: str) -> str:
    """Scheme, host, port and number of the database, where they are plain to see; never user, password or query.

    A password with a `/`, `#` or `?` ends the host for every parser, and its rest stands in the path or behind.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return _HIDDEN
    place = parts.netloc.rpartition("@")[2]
    host = place.removesuffix(f":{port}")
    plain = "@" not in f"{parts.path}{parts.query}{parts.fragment}" and not parts.fragment
    if parts.scheme == "unix" and plain and not place:
        return f"unix://{parts.path}"
    if not plain or not _HOST.fullmatch(host) or not re.fullmatch(r"(/\d{0,5})?", parts.path):
        return _HIDDEN
    return f"{parts.scheme}://{place}{parts.path}"
