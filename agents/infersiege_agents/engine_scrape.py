"""One GET of an engine's metrics page, within a deadline and a size, and what it means when there is none.

No proxies from the environment: an engine is where the address says. Redirects are followed on the same origin only.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult, urljoin, urlsplit

from infersiege_agents.errors import AgentError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BODY_LIMIT_BYTES = 16 << 20
"""SGLang's page is below 100 kB; what is longer than this is no metrics page."""

_REDIRECTS = 3
_ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"


class ScrapeError(Exception):
    """`str(error)`: why there is no page, in one line for the field `error`."""


class NotMetricsError(ScrapeError):
    """Something answered, and it was no Prometheus page: another path may have it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a metrics page is, as `address_of` read it."""

    scheme: str
    host: str
    port: int
    path: str
    """With its query; "" when the address named none."""

    @property
    def netloc(self) -> str:
        """host:port, with brackets around IPv6."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self.netloc}{path}"


def address_of(text: str) -> Address:
    """Read `http://HOST:PORT[/PATH]`. A path of `/` or `/v1` (a plan's base_url) is none.

    Raises AgentError for anything else, and for a password in the address.
    """
    example = "such as http://127.0.0.1:8000 or http://10.0.0.5:8000/metrics"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise AgentError(f"--url {text!r}: is no address", hint=example) from None
    if "@" in parts.netloc:  # not shown: it may hold a password
        raise AgentError("--url: a user or password in an address is not taken", hint="use --api-key-env")
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c.isspace() for c in text):
        raise AgentError(f"--url {text!r}: is no http or https address", hint=example)
    path = parts.path if parts.path.rstrip("/") not in ("", "/v1") else ""
    query = f"?{parts.query}" if parts.query and path else ""
    return Address(parts.scheme, parts.hostname, port or _port_of(parts), path + query)


def _port_of(parts: SplitResult) -> int:
    return 443 if parts.scheme == "https" else 80


@dataclass(frozen=True, slots=True)
class Page:
    """A page that came."""

    text: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


def fetch(
    address: Address, path: str, *, api_key: str | None, deadline_s: float, clock: Callable[[], float] = time.monotonic
) -> Page:
    """GET the page at `path`. `deadline_s` from now, for everything but the resolution of the host's name.

    Raises ScrapeError with a reason in one line, NotMetricsError when what came is no metrics page.
    """
    deadline = clock() + deadline_s
    try:
        return _follow(address, path, api_key, deadline, clock)
    except TimeoutError:
        raise ScrapeError(f"no answer within {deadline_s:.1f} s") from None
    except ConnectionRefusedError:
        raise ScrapeError(f"connection refused: nothing listens on {address.netloc}") from None
    except socket.gaierror as error:
        raise ScrapeError(f"the host {address.host} has no address: {error.strerror or error}") from None
    except ssl.SSLError as error:
        raise ScrapeError(f"TLS failed: {one_line(error.reason or str(error))}") from None
    except http.client.IncompleteRead:
        raise ScrapeError("the connection ended in the middle of the page") from None
    except http.client.HTTPException as error:
        raise ScrapeError(f"no HTTP answer: {one_line(str(error)) or type(error).__name__}") from None
    except OSError as error:
        raise ScrapeError(f"connection failed: {one_line(error.strerror or str(error))}") from None


def _follow(address: Address, path: str, api_key: str | None, deadline: float, clock: Callable[[], float]) -> Page:
    for _ in range(_REDIRECTS + 1):
        connection = _connection(address, deadline - clock())
        connection.connect()
        with contextlib.closing(connection.sock) as sock:
            connection.sock = cast("socket.socket", _Timed(sock, deadline, clock))
            headers = {"Accept": _ACCEPT, "Accept-Encoding": "identity", "Connection": "close"}
            if api_key:
                headers["Authorization"] = f"Bearer {api_key}"
            connection.request("GET", path, headers=headers)
            with connection.getresponse() as answer:
                target = answer.headers.get("Location")
                if answer.status // 100 != 3 or target is None:
                    return _page(answer)
        path = _same_origin(address, path, target)
    raise ScrapeError(f"more than {_REDIRECTS} redirects")


def _connection(address: Address, timeout_s: float) -> http.client.HTTPConnection:
    if timeout_s <= 0:
        raise TimeoutError
    if address.scheme == "https":
        return http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s)
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)


def _same_origin(address: Address, path: str, target: str) -> str:
    """The path of a redirect. Another origin is not asked: it isn't ours to load, and the key isn't for it."""
    to = urlsplit(urljoin(address.url(path), target))
    try:
        origin = (to.scheme, to.hostname, to.port or _port_of(to))
    except ValueError:
        origin = ("", None, 0)
    if origin != (address.scheme, address.host, address.port):
        raise ScrapeError(f"redirects to {one_line(to.netloc.rpartition('@')[2])}: name that address, if it is meant")
    return f"{to.path or '/'}{'?' + to.query if to.query else ''}"


def _page(answer: http.client.HTTPResponse) -> Page:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if answer.status != HTTPStatus.OK:
        raise _refusal(answer.status, answer.reason)
    body = _decoded(answer.read(BODY_LIMIT_BYTES + 1), headers.get("content-encoding", "identity"))
    if len(body) > BODY_LIMIT_BYTES:
        raise ScrapeError(f"the page is longer than {BODY_LIMIT_BYTES >> 20} MiB: that is no metrics page")
    if answer.length:  # read(n) tells of a cut page only so
        raise http.client.IncompleteRead(body, answer.length)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    start = body[:64].lstrip()[:1]
    if kind == "text/html" or start == b"<":
        raise NotMetricsError("answered with a web page (HTML), not with metrics")
    if kind == "application/json" or start in (b"{", b"["):
        raise NotMetricsError("answered with JSON, not with Prometheus metrics")
    return Page(body.decode("utf-8", "replace"), headers)


def _refusal(status: int, reason: str) -> ScrapeError:
    told = f"HTTP {status} {one_line(reason)}".rstrip()
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ScrapeError(f"{told}: it wants a key (--api-key-env)")
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.NOT_IMPLEMENTED):  # llama.cpp without --metrics: 501
        return NotMetricsError(told)
    return ScrapeError(told)


def _decoded(body: bytes, encoding: str) -> bytes:
    """We ask for no encoding; some proxies compress all the same."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise ScrapeError(f"answered in the encoding {one_line(encoding)!r}, which nobody asked for")
    unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS | (0 if encoding == "deflate" else 16))
    try:
        plain = unpack.decompress(body, BODY_LIMIT_BYTES + 1)
    except zlib.error:
        raise ScrapeError(f"answered in {encoding}, and it can't be unpacked") from None
    if not unpack.eof and len(plain) <= BODY_LIMIT_BYTES:
        raise ScrapeError(f"answered in {encoding}, and it ends too early")
    return plain


def one_line(text: str) -> str:
    """Fit for the field `error`: one line of at most 200 printable characters."""
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))[:200]


class _Timed:
    """What http.client needs of a socket, with one deadline over all of it.

    A socket's own timeout begins anew at each byte: a server that drips would hold us for ever.
    """

    def __init__(self, sock: socket.socket, deadline: float, clock: Callable[[], float]) -> None:
        self._sock = sock
        self._deadline = deadline
        self._clock = clock

    def in_time(self) -> socket.socket:
        """The socket, with what is left as its timeout. Raises TimeoutError when nothing is."""
        left = self._deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock

    def sendall(self, data: bytes) -> None:
        self.in_time().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """http.client closes its socket before the answer is read; `_follow` closes it after."""


class _Reader(io.RawIOBase):
    def __init__(self, timed: _Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._timed.in_time().recv_into(buffer)
