"""HOST[:PORT] on the command line."""

from __future__ import annotations

import ipaddress
import re

from infersiege.errors import UsageError

MASTER_PORT = 5557
"""Where workers find their master, unless `--bind` and `--master` name another one; Locust's own."""

_LARGEST = 65_535
_WRITTEN = re.compile(r"(?:\[(?P<bracketed>[^\[\]]*)\]|(?P<plain>[^:\[\]]*))(?::(?P<port>[0-9]+))?")


def address_of(option: str, text: str, *, default_port: int | None = None) -> tuple[str, int]:
    """(host, port) of HOST:PORT, an IPv6 host in brackets; of HOST too, where there is a default port.

    Raises UsageError.
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None and (whole := _ipv6(text.strip())) is not None:
        port = "" if default_port is None else f":{default_port}"
        raise UsageError(f"{option} {text}: not an address", hint=f"write an IPv6 host in brackets: [{whole}]{port}")
    host = "" if found is None else found["bracketed"] or found["plain"] or ""
    port_text = None if found is None else found["port"]
    port_number = default_port if port_text is None else int(port_text[:6])
    sound = bool(host) and not re.search(r"[\s/@]", host) and port_number is not None and port_number <= _LARGEST
    if found is not None and found["bracketed"] is not None and _ipv6(host) is None:
        sound = False
    if not sound or port_number is None:
        form = "HOST:PORT" if default_port is None else f"HOST or HOST:PORT (default port {default_port})"
        raise UsageError(f"{option} {text}: not an address", hint=f"write it as {form}, such as 10.0.0.5:5557")
    return host, port_number


def _ipv6(text: str) -> str | None:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return None
    return text
