"""Proxy variables of the environment: infersiege never uses them, the user's other tools do."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple
from urllib.parse import urlsplit

from infersiege.doctor.findings import Findings
from infersiege.doctor.reach import Place, is_this_host
from infersiege.redact import scrub

_LIMIT_S = 1.0
_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}


class Proxy(NamedTuple):
    """What curl, requests and the SDKs would go through."""

    variable: str
    url: str
    """Redacted."""
    host: str
    port: int | None

    def why_dead(self) -> str | None:
        """Why it takes no connection; None: it takes one."""
        if self.port is None or not self.host:
            return "is no address of a proxy"
        try:
            with closing(socket.create_connection((self.host, self.port), _LIMIT_S)):
                return None
        except ConnectionRefusedError:
            return f"names {self.url}, where nothing listens (connection refused)"
        except TimeoutError:
            return f"names {self.url}, which takes no connection within {_LIMIT_S:g} s"
        except (OSError, UnicodeError, OverflowError) as error:
            return f"names {self.url}, which can't be reached: {getattr(error, 'strerror', None) or error}"


def proxy_for(place: Place, environ: Mapping[str, str]) -> Proxy | None:
    """The proxy that other tools would use for this place; None: none."""
    scheme = "https" if place.encrypted else "http"
    names = [f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY"]
    variable = next((name for name in names if environ.get(name, "").strip()), None)
    if variable is None or _exempt(place.host, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return None
    text = environ[variable].strip()
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 80)
    except ValueError:
        return Proxy(variable, scrub(text), "", None)
    return Proxy(variable, scrub(url), host, port)


def check_proxies(found: Findings, place: Place, environ: Mapping[str, str]) -> None:
    """One line: none set; one that is not used; or one that is dead, which fails the user's other tools."""
    proxy = proxy_for(place, environ)
    if proxy is None:
        found.ok("proxy", f"the environment names none for {place.host}; infersiege connects directly")
        return
    dead = proxy.why_dead()
    if dead is None:
        found.ok(
            "proxy", f"{proxy.variable} names {proxy.url}: other tools go through it, infersiege connects directly"
        )
        return
    local = "local proxy failed" if is_this_host(proxy.host) else "proxy failed"
    found.warn(
        "proxy",
        f"{local}: {proxy.variable} {dead}; infersiege does not use it, curl and the SDKs would",
        f"start the proxy, unset {proxy.variable}, or set NO_PROXY={place.host}",
    )


def _exempt(host: str, listed: str) -> bool:
    """Whether NO_PROXY names the host, itself or a domain that it is in."""
    for entry in (part.strip().lower().lstrip(".") for part in listed.split(",")):
        name = entry.rsplit(":", 1)[0] if entry.count(":") == 1 else entry
        if name and (name == "*" or host.lower() == name or host.lower().endswith(f".{name}")):
            return True
    return False
