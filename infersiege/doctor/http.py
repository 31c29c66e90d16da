"""One HTTP exchange, step by step, so that a fault can be told by the step that failed (the way there: reach).

The standard library only, never the transport under test, and never a proxy variable of the environment. Works with
and without gevent's patches.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from infersiege.channels.proxy import Proxy
from infersiege.doctor.findings import DoctorError, NotReadyError
from infersiege.doctor.reach import Route, encrypted, place_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

_READ_BYTES = 1 << 16
_MOST_INTERIM = 50
"""Interim answers (1xx) before one that counts."""


class Reply(msgspec.Struct, kw_only=True):
    """An answer's head, and its body as far as it was read."""

    url: str
    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes
    cut: str | None = None
    """Why the body ended early; None: it is whole, or as long as was wanted."""
    gave_up: bool = False
    """It is cut because we waited no longer."""
    sent_ns: int = 0
    """When the request was written, monotonic."""

    @property
    def encoding(self) -> str | None:
        """What packed the body although nobody asked for it; None: nothing."""
        encoding = self.headers.get("content-encoding", "").strip().lower()
        return None if encoding in ("", "identity") else encoding

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how much, in seconds and bytes."""

    connect_s: float
    answer_s: float
    """From the request to the end of the answer."""
    idle_s: float
    """Longest silence once the body has begun."""
    most_bytes: int = 8 << 20


Hear = Callable[[bytes, int], bool]
"""Takes a part of a body and when it was read (monotonic ns); True: no more is wanted."""


def fetch(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None,
    tls: ssl.SSLContext,
    limits: Limits,
    start_hint: str,
    proxy: Proxy | None = None,
    listener: Callable[[Reply], Hear | None] | None = None,
) -> Reply:
    """Make one request and read its answer, on a connection of its own.

    `listener` is given the answer's head and may give what hears its body, part by part. Raises DoctorError
    (NotReadyError where waiting may help), with `start_hint` for a server that isn't there. What follows the status
    line is given back as it is, even cut (`Reply.cut`).
    """
    parts = urlsplit(url)
    place = place_of(url)
    connected = Route(place, proxy, limits.connect_s, start_hint).dial()
    if place.encrypted:
        connected = encrypted(connected, place, tls)
    with closing(connected) as connection:
        client = http.client.HTTPConnection(place.host, place.port)
        if place.encrypted:
            client.default_port = 443  # the host header leaves out the port of https, not of http
        client.sock = connection
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if proxy is not None and not place.encrypted:
            path = f"http://{place}{path}"  # the absolute form (RFC 9112, 3.2.2)
        timed = _Timed(connection, time.monotonic() + limits.answer_s)
        with _http_faults(url, place.encrypted, limits.answer_s):
            connection.settimeout(limits.answer_s)
            client.request(method, path, body=body, headers={**headers, "Connection": "close"})
            sent_ns = time.monotonic_ns()
            response = _final_answer(_Reader(timed), method)
        with closing(response):
            reply = Reply(
                url=url,
                status=response.status,
                headers={name.lower(): value for name, value in response.getheaders()},
                body=b"",
                sent_ns=sent_ns,
            )
            timed.idle_s = limits.idle_s
            _read(response, reply, limits, listener(reply) if listener is not None else None, timed)
            return reply


class _Timed(io.RawIOBase):
    """Reads a socket until one deadline, however small the pieces are in which it trickles."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self.idle_s: float | None = None
        """Longest wait for one piece; None: only the deadline counts."""
        self._heard = False

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Raises TimeoutError at the deadline, or after too long a silence."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self.idle_s is not None and self._heard:
            left = min(left, self.idle_s)
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        self._heard = self._heard or self.idle_s is not None
        return count


class _Reader(io.BufferedReader):
    """What http.client reads an answer from. It outlives the interim answers, which close what they were read from."""

    def makefile(self, *_: Any) -> _Reader:
        return self

    def close(self) -> None:
        """The connection is closed by whoever opened it."""


def _final_answer(reader: _Reader, method: str) -> http.client.HTTPResponse:
    """Skip every 1xx but 101 (RFC 9110, 15.2); http.client itself knows only 100."""
    for _ in range(_MOST_INTERIM):
        response = http.client.HTTPResponse(cast(socket.socket, reader), method=method)
        response.begin()
        if not 101 < response.status < 200:
            return response
    raise http.client.HTTPException("interim answers without end")


@contextmanager
def _http_faults(url: str, is_encrypted: bool, timeout_s: float) -> Iterator[None]:
    """What goes wrong between the request and the end of the answer's head."""
    try:
        yield
    except TimeoutError:
        raise DoctorError(
            f"{url} gives no answer within {timeout_s:g} s", hint="is the engine still loading, or stuck?"
        ) from None
    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
        hint = None if is_encrypted else "does the server expect TLS? then write https:// in base_url"
        raise NotReadyError(f"{url} closes the connection without an answer", hint=hint) from None
    except (http.client.HTTPException, ValueError):
        raise DoctorError(
            f"{url} answers, but not in HTTP",
            hint="is it the right port? does the server expect TLS (https://)?",
        ) from None
    except OSError as error:
        raise NotReadyError(f"{url}: the connection broke: {error.strerror or error}") from None


def _read(response: http.client.HTTPResponse, reply: Reply, limits: Limits, hear: Hear | None, timed: _Timed) -> None:
    """Read the body into `reply`, until it ends, breaks, or is as long as anybody wants."""
    parts: list[bytes] = []
    size = 0
    try:
        while size < limits.most_bytes:
            part = response.read1(_READ_BYTES)
            if not part:
                break
            parts.append(part)
            size += len(part)
            if hear is not None and hear(part, time.monotonic_ns()):
                break
        else:
            reply.cut = f"it goes on beyond {limits.most_bytes >> 20} MiB, our own limit"
        # read1 does not say that a body of known length was cut.
        if response.length and not reply.cut and (not parts or not part):
            reply.cut = f"{response.length} bytes are missing"
    except TimeoutError:
        reply.gave_up = True
        late = (
            f"it had not ended after {limits.answer_s:g} s" if timed.over else f"it fell silent for {limits.idle_s:g} s"
        )
        reply.cut = f"{late}, our own limit"
    except (http.client.HTTPException, OSError, ValueError) as error:
        reply.cut = f"the connection broke ({type(error).__name__})"
    reply.body = b"".join(parts)
