"""Where a client connects: address, TLS options, a proxy in between, and the addresses behind the name."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

from infersiege.channels.proxy import Proxy, host_port, proxy_of
from infersiege.errors import UsageError

Address = tuple[int, tuple[object, ...]]
"""(address family, what `connect` takes)."""


class Endpoint:
    """One server, shared by all clients of a process.

    The name is looked up once, by the first connection (a load test that asks the resolver for each user measures the
    resolver). Its addresses are then used in turn, except those that last refused; each result tells its `peer`. With a
    proxy all of that is about the proxy: it looks the server's name up.
    """

    def __init__(
        self,
        scheme: str,
        host: str,
        port: int,
        *,
        ca: str | None = None,
        insecure: bool = False,
        proxy: str | None = None,
    ) -> None:
        """`ca`: PEM file to trust instead of the system's authorities. `insecure`: verify nothing. `proxy`: its URL,
        `http://host:port`; None: none, whatever the environment says.

        Raises UsageError for another scheme than http or https, a `ca` that can't be read, a `proxy` that is none.
        """
        if scheme not in ("http", "https"):
            raise UsageError(f"{scheme}://{host}: no scheme that can be used", hint="use http:// or https://")
        self.scheme = scheme
        self.host = host
        self.port = port
        self.insecure = insecure
        self.proxy: Proxy | None = proxy_of(proxy) if proxy is not None else None
        self.addresses: list[Address] = []
        self.tls = _tls_context(ca, insecure) if scheme == "https" else None
        self._turn = 0
        self._refused: set[Address] = set()

    @classmethod
    def from_url(cls, url: str, *, ca: str | None = None, insecure: bool = False, proxy: str | None = None) -> Endpoint:
        """The server of a URL; its path is left to the request. Raises UsageError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{url}: {error}", hint="write it as http://host:port/v1") from None
        if not parts.hostname:
            raise UsageError(f"{url}: no host in it", hint="write it as http://host:port/v1")
        default = 443 if parts.scheme == "https" else 80
        return cls(parts.scheme, parts.hostname, port or default, ca=ca, insecure=insecure, proxy=proxy)

    @property
    def authority(self) -> str:
        """What the host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def place(self) -> str:
        """`host:port` of the server, also with the scheme's own port."""
        return host_port(self.host, self.port)

    @property
    def dialled(self) -> tuple[str, int]:
        """Host and port that a connection is made to: the proxy's, if there is one."""
        return (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)

    def peer(self, target: tuple[object, ...]) -> str:
        """What a result calls the server that was reached by connecting to `target`.

        Behind a proxy that is the name it was asked by: its address is known to the proxy alone.
        """
        return self.place if self.proxy is not None else host_port(str(target[0]), int(str(target[1])))

    def where(self, peer: str | None) -> str:
        """The server as messages call it; `peer`: the address that was connected."""
        if self.proxy is not None:
            return f"{self.authority} through the proxy {self.proxy.place}"
        return self.authority if peer is None or peer == self.authority else f"{self.authority} ({peer})"

    @property
    def request_origin(self) -> str:
        """What stands before the path in a request line: empty, or `http://host` for a proxy that forwards it."""
        return "" if self.proxy is None or self.tls is not None else f"http://{self.authority}"

    def candidates(self) -> list[Address]:
        """All addresses in the order in which one new connection should try them."""
        turn = self._turn % max(1, len(self.addresses))
        self._turn += 1
        ordered = self.addresses[turn:] + self.addresses[:turn]
        return sorted(ordered, key=lambda address: address in self._refused)

    def note(self, address: Address, *, refused: bool) -> None:
        """What came of connecting to it."""
        if refused:
            self._refused.add(address)
        else:
            self._refused.discard(address)


def _tls_context(ca: str | None, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"{ca}: can't be read as certificates: {error}", hint="give a PEM file") from None
    context.set_alpn_protocols(["http/1.1"])
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
