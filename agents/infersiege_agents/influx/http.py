"""One request to a database, with a deadline and with errors in words.

influxdb-client carries the points; this is for the questions beside them. Proxy variables of the environment are not
used, as influxdb-client doesn't either: a check must go the way that the points go.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from infersiege_agents.errors import TARGET, AgentError
from infersiege_agents.influx.target import Target
from infersiege_agents.timed_http import Origin, TooLargeError, ask

LARGEST_BODY = 256 << 20


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    sent_s: float
    """time.time() just before the request."""
    read_s: float
    """time.time() just after its headers were read."""


class UnreachableError(AgentError):
    """No answer at all: the database is down, or not where the URL says."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, exit_code=TARGET)


def request(
    target: Target,
    path: str,
    query: Mapping[str, str],
    *,
    body: bytes | None = None,
    timeout_s: float,
) -> Reply:
    """GET, or POST of `body`; redirects are not followed. Any status is a Reply.

    Raises UnreachableError (exit code 4) when there is no whole answer within `timeout_s`, or when TLS fails.
    """
    parts = urlsplit(target.url)
    secure = parts.scheme == "https"
    headers = {"User-Agent": "infersiege-agent", "Accept": "application/json"}
    if target.token:
        headers["Authorization"] = f"Token {target.token}"
    if body is not None:
        headers["Content-Type"] = "text/plain; charset=utf-8"
    try:
        answer = ask(
            Origin(parts.scheme, parts.hostname or "", parts.port or (443 if secure else 80)),
            "GET" if body is None else "POST",
            f"{parts.path}{path}" + (f"?{urlencode(query)}" if query else ""),
            headers=headers, body=body, deadline_s=timeout_s, most_bytes=LARGEST_BODY,
        )  # fmt: skip
    except TooLargeError:
        raise UnreachableError(
            f"{target.url}{path}: answers with more than {LARGEST_BODY >> 20} MiB", hint="ask for a shorter time"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise _explained(target, error, timeout_s, secure) from None
    return Reply(answer.status, answer.headers, answer.body, answer.sent_s, answer.read_s)


def _explained(target: Target, error: Exception, timeout_s: float, secure: bool) -> UnreachableError:
    url = target.url
    if isinstance(error, ssl.SSLCertVerificationError):
        return UnreachableError(
            f"{url}: its certificate is not trusted: {error.verify_message}",
            hint="put its authority into the system's trust store, or name it in SSL_CERT_FILE",
        )
    if isinstance(error, ssl.SSLError):
        return UnreachableError(
            f"{url}: TLS fails: {error.reason}", hint="does it speak plain HTTP? then write http://"
        )
    if isinstance(error, socket.gaierror):
        return UnreachableError(
            f"{url}: the name is not known", hint="is the host's name right, and its DNS reachable?"
        )
    if isinstance(error, ConnectionRefusedError):
        return UnreachableError(
            f"{url}: nobody listens there", hint="start the database, or correct the address and port"
        )
    if isinstance(error, TimeoutError):
        return UnreachableError(
            f"{url}: no answer within {timeout_s:g} s", hint="is it overloaded, or behind a firewall?"
        )
    if isinstance(error, http.client.IncompleteRead):
        return UnreachableError(f"{url}: closes the connection in the middle of its answer", hint="its log tells more")
    if isinstance(error, http.client.HTTPException | ConnectionResetError):
        other = "http" if secure else "https"
        return UnreachableError(
            f"{url}: closes the connection without an answer in HTTP",
            hint=f"is it a database? with TLS write {other}://",
        )
    return UnreachableError(f"{url}: can't be reached: {getattr(error, 'strerror', None) or error}")
