"""One HTTP exchange, step by step, so that a fault can be told by the step that failed: name, port, TLS, HTTP.

The standard library only, never the transport under test, and never a proxy variable of the environment. Works with
and without gevent's patches.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec

from infersiege.errors import TargetError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_READ_BYTES = 1 << 16
_MOST_INTERIM = 50
"""Interim answers (1xx) before one that counts."""


class NotReadyError(TargetError):
    """A fault that may go away by itself while a server starts: refused, reset, 502, 503, 504."""


class Reply(msgspec.Struct, kw_only=True):
    """An answer's head, and its body as far as it was read."""

    url: str
    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes
    cut: str | None = None
    """Why the body ended early; None: it is whole, or as long as was wanted."""

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
    most_bytes: int = 8 << 20


def tls_context(ca: str | None, insecure: bool) -> ssl.SSLContext:
    """Verifying, with the system's authorities or those of `ca`, unless `insecure`.

    Raises TargetError for a file that holds none.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise TargetError(
            f"ca {ca}: no certificate authorities can be read from it",
            hint="it must be a PEM file, with lines -----BEGIN CERTIFICATE----- (no key, no DER)",
        ) from None
    except OSError as error:
        raise TargetError(
            f"ca {ca}: no certificate authorities can be read from it: {error.strerror or error}",
            hint="name a PEM file that this user may read",
        ) from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def fetch(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None,
    tls: ssl.SSLContext,
    limits: Limits,
    start_hint: str,
) -> Reply:
    """Make one request and read its answer, on a connection of its own.

    Raises TargetError (NotReadyError where waiting may help), with `start_hint` for a server that isn't there. What
    follows the status line is given back as it is, even cut (`Reply.cut`).
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connected = _connect(host, port, place, limits.connect_s, start_hint)
    with closing(_encrypted(connected, host, place, tls) if parts.scheme == "https" else connected) as connection:
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        client = kind(host, port, context=tls) if kind is http.client.HTTPSConnection else kind(host, port)
        client.sock = connection
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with _http_faults(url, parts.scheme, limits.answer_s):
            connection.settimeout(limits.answer_s)
            reader = _Reader(_Timed(connection, time.monotonic() + limits.answer_s))
            client.request(method, path, body=body, headers={**headers, "Connection": "close"})
            response = _final_answer(reader, method)
        with closing(response):
            reply = Reply(
                url=url,
                status=response.status,
                headers={name.lower(): value for name, value in response.getheaders()},
                body=b"",
            )
            _read(response, reply, limits)
            return reply


class _Timed(io.RawIOBase):
    """Reads a socket until one deadline, however small the pieces are in which it trickles."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Raises TimeoutError at the deadline."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


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


def _connect(host: str, port: int, place: str, timeout_s: float, start_hint: str) -> socket.socket:
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NotReadyError(
            f"the name {host} is not found: {reason}", hint="check base_url, and whether this host can look names up"
        ) from None
    try:
        return socket.create_connection((host, port), timeout_s)
    except ConnectionRefusedError:
        raise NotReadyError(f"nothing listens on {place} (connection refused)", hint=start_hint) from None
    except TimeoutError:
        raise NotReadyError(
            f"{place} does not take a connection within {timeout_s:g} s", hint="a firewall? the wrong host?"
        ) from None
    except OSError as error:
        raise NotReadyError(f"{place} cannot be reached: {error.strerror or error}", hint=start_hint) from None


def _encrypted(plain: socket.socket, host: str, place: str, tls: ssl.SSLContext) -> socket.socket:
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise TargetError(
            f"the certificate of {place} is not trusted: {error.verify_message}",
            hint='name its authority with ca = "file.pem"; insecure = true turns the check off',
        ) from None
    except (OSError, ValueError) as error:
        plain.close()
        reason = (
            getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
        )
        raise TargetError(
            f"{place} makes no TLS connection: {str(reason).replace('_', ' ').lower()}",
            hint="does the server speak plain HTTP? then write http:// in base_url",
        ) from None


@contextmanager
def _http_faults(url: str, scheme: str, timeout_s: float) -> Iterator[None]:
    """What goes wrong between the request and the end of the answer's head."""
    try:
        yield
    except TimeoutError:
        raise TargetError(
            f"{url} gives no answer within {timeout_s:g} s", hint="is the engine still loading, or stuck?"
        ) from None
    except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
        hint = "does the server expect TLS? then write https:// in base_url" if scheme == "http" else None
        raise NotReadyError(f"{url} closes the connection without an answer", hint=hint) from None
    except (http.client.HTTPException, ValueError):
        raise TargetError(
            f"{url} answers, but not in HTTP",
            hint="is it the right port? does the server expect TLS (https://)?",
        ) from None
    except OSError as error:
        raise NotReadyError(f"{url}: the connection broke: {error.strerror or error}") from None


def _read(response: http.client.HTTPResponse, reply: Reply, limits: Limits) -> None:
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
            if b"data: [DONE]" in part:
                break
        # read1 does not say that a body of known length was cut.
        if response.length:
            reply.cut = f"{response.length} bytes are missing"
    except TimeoutError:
        reply.cut = f"it had not ended after {limits.answer_s:g} s, our own limit"
    except (http.client.HTTPException, OSError, ValueError) as error:
        reply.cut = f"the connection broke ({type(error).__name__})"
    reply.body = b"".join(parts)
