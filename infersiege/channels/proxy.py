"""An HTTP proxy that a plan names: where it listens, and what its refusals look like. Pure.

A proxy is used when the plan asks for one and never otherwise: `HTTP_PROXY` and its kin in the environment change
nothing. https targets go through a tunnel (CONNECT, RFC 9110, 9.3.6), http targets in absolute form (RFC 9112, 3.2.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from infersiege.errors import UsageError

PROXY_STATUS = 407
_UNREACHABLE = frozenset({502, 504})
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
_EXAMPLE = "http://127.0.0.1:3128"


class Proxy(NamedTuple):
    """Where a proxy listens."""

    host: str
    port: int

    @property
    def place(self) -> str:
        """`host:port`, as messages show it."""
        return host_port(self.host, self.port)


def host_port(host: str, port: int) -> str:
    """`host:port`; an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def proxy_of(url: str) -> Proxy:
    """The proxy of a plan's `proxy = "http://host:port"`.

    Raises UsageError, which never shows a user name or password, for anything else than scheme, host and port.
    """
    shown = url if "@" not in url else "[…]"
    if any(letter <= " " or letter == "\x7f" for letter in url):
        raise UsageError("the proxy has a space or a control character in it", hint=f'write it as "{_EXAMPLE}"')
    if "@" in url:
        raise UsageError(
            "the proxy holds user info (user:password@), which would end up in files and logs; a proxy that wants a"
            " password is not supported",
            hint="use a proxy that knows this host by its address, or one on this host that adds the password",
        )
    if "://" not in url:
        raise UsageError(f"the proxy {shown} has no scheme", hint=f"write http://{shown}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        reason = "the port is no number from 1 to 65535" if "ort" in str(error) else "the host can't be read"
        raise UsageError(f"the proxy {shown} can't be taken apart: {reason}", hint=f'write "{_EXAMPLE}"') from None
    if parts.scheme != "http":
        raise UsageError(
            f"the proxy has the scheme {parts.scheme}://; only http:// proxies are spoken to",
            hint="http:// is right also for https targets: they go through it in a tunnel, with TLS end to end",
        )
    if not host or not _HOST.fullmatch(host):
        raise UsageError(f"the proxy {shown} has no host that can be used", hint=f'write "{_EXAMPLE}"')
    if not port:
        raise UsageError(f"the proxy {shown} has no port", hint=f"write http://{host_port(host, 3128)}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(f"the proxy {shown} has more than scheme, host and port", hint=f'write "{_EXAMPLE}"')
    return Proxy(host, port)


def proxy_refusal(status: int, headers: Mapping[str, str]) -> str | None:
    """What a proxy's own answer to a request in absolute form says; None: the answer is the server's, or may well be.

    `headers` have lower-case names. 407 is always the proxy's. 502 and 504 are when they say so (`Proxy-Status` of RFC
    9209, Squid's own header), and when they are no JSON: API servers and gateways describe their errors in JSON,
    proxies in a page, in plain text or not at all.
    """
    if status == PROXY_STATUS:
        return "wants a user name and password (407), which infersiege does not send"
    if status not in _UNREACHABLE:
        return None
    named = "error=" in headers.get("proxy-status", "").replace(" ", "") or "x-squid-error" in headers
    if named or "json" not in headers.get("content-type", "").lower():
        return f"answered {status}: it could not reach the server"
    return None


def tunnel_refusal(status: int, reason: str) -> str:
    """What a status other than 2xx to CONNECT says."""
    if status == PROXY_STATUS:
        return "wants a user name and password (407), which infersiege does not send"
    said = f"{status} {reason}".strip()
    if status in _UNREACHABLE:
        return f"could not reach the server ({said})"
    return f"refused the tunnel ({said})"
