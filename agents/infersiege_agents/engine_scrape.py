"""One GET of an engine's metrics page, within a deadline and a size, and what it means when there is none.

Redirects are followed on the same origin only.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import SplitResult, urljoin, urlsplit

from infersiege_agents.errors import AgentError
from infersiege_agents.timed_http import Answer, Origin, TooLargeError, ask

BODY_LIMIT_BYTES = 16 << 20
"""SGLang's page is below 100 kB; what is longer than this is no metrics page."""

_TOO_LONG = f"the page is longer than {BODY_LIMIT_BYTES >> 20} MiB: that is no metrics page"
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
    try:
        return _follow(address, path, api_key, clock() + deadline_s, clock)
    except TimeoutError:
        raise ScrapeError(f"no answer within {deadline_s:.1f} s") from None
    except TooLargeError:
        raise ScrapeError(_TOO_LONG) from None
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
    headers = {"Accept": _ACCEPT, "Accept-Encoding": "identity"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    origin = Origin(address.scheme, address.host, address.port)
    for _ in range(_REDIRECTS + 1):
        answer = ask(
            origin, "GET", path,
            headers=headers, deadline_s=deadline - clock(), most_bytes=BODY_LIMIT_BYTES, clock=clock,
        )  # fmt: skip
        target = answer.headers.get("location")
        if answer.status // 100 != 3 or target is None:
            return _page(answer)
        path = _same_origin(address, path, target)
    raise ScrapeError(f"more than {_REDIRECTS} redirects")


def _same_origin(address: Address, path: str, target: str) -> str:
    """The path of a redirect. Another origin is not asked: it isn't ours to load, and the key isn't for it."""
    try:
        to = urlsplit(urljoin(address.url(path), target))
        origin = (to.scheme, to.hostname, to.port or _port_of(to))
    except ValueError:
        raise ScrapeError("redirects to what is no address") from None
    if origin != (address.scheme, address.host, address.port):
        raise ScrapeError(f"redirects to {one_line(to.netloc.rpartition('@')[2])}: name that address, if it is meant")
    return f"{to.path or '/'}{'?' + to.query if to.query else ''}"


def _page(answer: Answer) -> Page:
    if answer.status != HTTPStatus.OK:
        raise _refusal(answer.status, answer.reason)
    body = _decoded(answer.body, answer.headers.get("content-encoding", "identity"))
    if len(body) > BODY_LIMIT_BYTES:
        raise ScrapeError(_TOO_LONG)
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    start = body[:64].lstrip()[:1]
    if kind == "text/html" or start == b"<":
        raise NotMetricsError("answered with a web page (HTML), not with metrics")
    if kind == "application/json" or start in (b"{", b"["):
        raise NotMetricsError("answered with JSON, not with Prometheus metrics")
    return Page(body.decode("utf-8", "replace"), answer.headers)


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
