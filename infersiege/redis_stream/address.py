"""Where a Redis is, how to get in, and what may be said of it: never a password, never a session."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from infersiege.channels.redaction import scrub
from infersiege.errors import UsageError
from infersiege.plan.schema import Plan
from infersiege.redact import redis_password

TIMEOUT_S = 10.0
OLDEST = (6, 2)
"""The first version that has XAUTOCLAIM."""
_FORM = "redis://USER:PASSWORD@HOST:6379/0; / # ? @ : as %2F %23 %3F %40 %3A"
_LONGEST = 200
_HIDDEN = "the address of --redis"
_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:.%]+\]")


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis, and what it takes to get in."""

    url: str = field(repr=False)
    user: str | None = None
    """Beside the URL; None: the one in it, or the default one."""
    password: str | None = field(default=None, repr=False)
    """Beside the URL; None: the one in it, if there is one."""
    ca_pem: str | None = field(default=None, repr=False)
    """Certificates of the authorities that may have signed its own (rediss://); None: the system's."""
    advice: str = "is Redis running there? --redis names it"
    """What to try when nobody answers."""
    password_advice: str = "redis://user:password@host:port/0"
    """What to try when it wants another password."""

    def client(self, timeout_s: float = TIMEOUT_S, *, single: bool = False) -> redis.Redis:
        """A client that tries nothing twice. Raises ValueError, TypeError.

        `single`: one connection, made now (what that raises comes too); once cut it is not made again without a word.
        """
        more = {} if self.ca_pem is None else {"ssl_ca_data": self.ca_pem}
        return redis.Redis.from_url(
            self.url,
            username=self.user,
            password=self.password,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            single_connection_client=single,
            **more,
        )


def address_of(plan: Plan, source: str, environ: Mapping[str, str]) -> Address:
    """The Redis that a workload names. Raises UsageError for a password that can't be had."""
    return Address(
        source,
        user=plan.redis.user,
        password=redis_password(plan.redis, environ),
        ca_pem=pem_of(plan.redis.ca) if plan.redis.ca is not None and source.startswith("rediss:") else None,
        advice="is Redis running there? `source` of the workload names it",
        password_advice="[redis] has user, and password_env or password_file for where the password is",
    )


def pem_of(path: str) -> str:
    """Certificates, read now: the file may be gone when a connection has to be made again. Raises UsageError."""
    try:
        text = Path(path).expanduser().read_text(encoding="ascii")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        reason = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "it holds no certificate"
        raise UsageError(
            f"{path}: can't be read: {reason}", hint="it must be a PEM file with the authority's certificate"
        ) from None
    return text


@contextmanager
def connected(address: Address) -> Iterator[redis.Redis]:
    """A client of the server there. What it raises becomes a UsageError of one line, without password or session."""
    check_database(address.url)
    try:
        client = address.client()
        with told(address):
            client.ping()
    except (ValueError, TypeError):
        # Its text would repeat parts of the URL, which may be parts of a password.
        raise UsageError(f"{shown(address.url)}: is no Redis URL", hint=_FORM) from None
    with client, told(address):
        yield client


def check_database(url: str) -> None:
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


def check_version(server: redis.Redis, address: Address) -> str:
    """What it is: `Redis 7.0.15`, `Valkey 8.1.1`. Raises UsageError for one that is too old."""
    try:
        facts: Any = server.info("server")
    except NoPermissionError:
        return "Redis"
    name, version = "Redis", str(facts.get("redis_version", ""))
    if facts.get("server_name") == "valkey":
        name, version = "Valkey", str(facts.get("valkey_version", version))
    elif tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        raise UsageError(
            f"{shown(address.url)}: is Redis {version}, which can't hand out sessions",
            hint=f"{OLDEST[0]}.{OLDEST[1]} is the oldest that can",
        )
    return f"{name} {version}".strip()


@contextmanager
def told(address: Address) -> Iterator[None]:
    """What the client raises becomes a UsageError, as `connected` says."""
    try:
        yield
    except redis.RedisError as error:
        raise refusal(error, address) from None


def refusal(error: redis.RedisError, address: Address) -> UsageError:
    """One line and what to try, without password, command or session."""
    place, reason = shown(address.url), reason_of(error, address.url)
    if isinstance(error, redis.AuthenticationError):
        return UsageError(f"{place}: Redis wants another user or password", hint=address.password_advice)
    if isinstance(error, redis.OutOfMemoryError):
        return UsageError(
            f"{place}: Redis is full: its `maxmemory` is used up", hint="`redis-cli info memory` shows its room"
        )
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return UsageError(f"{place}: {reason}", hint=_tls_advice(reason) or address.advice)
    if "DB index" in reason:
        return UsageError(
            f"{place}: Redis has no database of this number", hint="`redis-cli config get databases`: how many"
        )
    return UsageError(f"{place}: Redis refused: {reason}", hint="what may this user do there?")


def _tls_advice(reason: str) -> str | None:
    if "CERTIFICATE_VERIFY_FAILED" in reason or "certificate verify failed" in reason:
        return "ca of [redis] names the authority's certificate; the host must be one of those in the certificate"
    if "WRONG_VERSION_NUMBER" in reason or "record layer" in reason:
        return "it does not speak TLS there: redis:// is without, rediss:// with TLS"
    if "closed by server" in reason:
        return "does it speak TLS? rediss:// is with TLS, redis:// without"
    return None


def reason_of(error: redis.RedisError, url: str) -> str:
    """What client or server say, without what they repeat of an address that was read wrongly, or of a command."""
    if shown(url) == _HIDDEN:
        return type(error).__name__
    return scrub(str(error).partition(", with args")[0])[:_LONGEST]


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
