"""The way to a server, step by step: its name, its port, its certificate.

The standard library only, never the transport under test, and never a proxy variable of the environment. Works with
and without gevent's patches.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from infersiege.channels.proxy import Proxy, tunnel_refusal
from infersiege.doctor.findings import DoctorError, NotReadyError

_MOST_ADDRESSES = 8
_LONGEST_HEAD = 64 << 10
_EXPIRED, _NOT_YET, _WRONG_NAME, _WRONG_ADDRESS = 10, 9, 62, 64
"""OpenSSL's codes of why a certificate is not trusted."""
_PARTIAL_CHAIN = 0x80000
_NO_CHECK_TIME = 0x200000
_MAKE_IT_TRUSTED = 'name its authority with ca = "file.pem"; insecure = true turns the check off'


class Place(NamedTuple):
    """Where a URL leads."""

    host: str
    port: int
    encrypted: bool

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place_of(url: str) -> Place:
    parts = urlsplit(url)
    encrypted = parts.scheme == "https"
    return Place(parts.hostname or "", parts.port or (443 if encrypted else 80), encrypted)


def is_this_host(host: str) -> bool:
    """By its name alone: loopback."""
    return host in ("localhost", "::1") or host.startswith("127.")


def addresses_of(place: Place) -> tuple[str, ...]:
    """All addresses of the host, as they are tried. Raises NotReadyError for a name that is not found."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NotReadyError(
            f"the name {place.host} is not found: {reason}",
            hint="check base_url, and whether this host can look names up",
            check="name",
        ) from None
    return tuple(dict.fromkeys(str(row[4][0]) for row in found))


def reach_each(place: Place, addresses: tuple[str, ...], timeout_s: float, start_hint: str) -> dict[str, str | None]:
    """Address -> why it takes no connection (None: it takes one).

    Raises NotReadyError when none does: refused (nothing listens) is told from silence (a firewall).
    """
    found: dict[str, str | None] = {}
    deadline = time.monotonic() + timeout_s
    for address in addresses[:_MOST_ADDRESSES]:
        left = deadline - time.monotonic()
        if left <= 0 and found:
            break
        try:
            connect(place._replace(host=address), max(left, 0.1), start_hint).close()
            found[address] = None
        except DoctorError as error:
            found[address] = "refused" if isinstance(error.__cause__, ConnectionRefusedError) else str(error)
    if any(reason is None for reason in found.values()):
        return found
    connect(place, timeout_s, start_hint).close()  # says it of the name; and it may have come up meanwhile
    return {**found, next(iter(found)): None}


def connect(place: Place, timeout_s: float, start_hint: str) -> socket.socket:
    """A TCP connection. Raises NotReadyError."""
    addresses_of(place)
    try:
        return socket.create_connection((place.host, place.port), timeout_s)
    except ConnectionRefusedError as error:
        raise NotReadyError(
            f"nothing listens on {place} (connection refused)", hint=start_hint, check="port"
        ) from error
    except TimeoutError as error:
        raise NotReadyError(
            f"{place} does not take a connection within {timeout_s:g} s: no answer, as from a firewall that drops it",
            hint="a firewall? the wrong host?",
            check="port",
        ) from error
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NotReadyError(f"{place} cannot be reached: {reason}", hint=start_hint, check="port") from error


# ---------------------------------------------------------------------------------------------------- the plan's proxy


class Route(NamedTuple):
    """How connections to a place are made."""

    place: Place
    proxy: Proxy | None
    timeout_s: float
    start_hint: str

    def dial(self) -> socket.socket:
        """A connection, in a tunnel where TLS goes through a proxy. Raises DoctorError."""
        if self.proxy is None:
            return connect(self.place, self.timeout_s, self.start_hint)
        try:
            connected = connect(Place(self.proxy.host, self.proxy.port, False), self.timeout_s, "")
        except NotReadyError as error:
            raise proxy_failed(self.proxy, str(error)) from None
        if self.place.encrypted:
            try:
                _tunnel(connected, self.proxy, self.place)
            except BaseException:
                connected.close()
                raise
        return connected


def proxy_failed(proxy: Proxy, seen: str) -> NotReadyError:
    """The fault of the proxy that the plan names."""
    said = "local proxy failed" if is_this_host(proxy.host) else "proxy failed"
    return NotReadyError(
        f"{said}: requests go through {proxy.place} as the plan says, and {seen}",
        hint="start the proxy, or take `proxy` out of the channel",
        check="proxy",
    )


def _tunnel(connected: socket.socket, proxy: Proxy, place: Place) -> None:
    """Ask for a tunnel (RFC 9110, 9.3.6). Raises NotReadyError."""
    head = b""
    try:
        connected.sendall(f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\nuser-agent: infersiege\r\n\r\n".encode())
        while b"\r\n\r\n" not in head and len(head) < _LONGEST_HEAD:
            part = connected.recv(1 if head.endswith((b"\r", b"\n")) else 64)
            if not part:
                break
            head += part
    except OSError as error:
        raise proxy_failed(proxy, f"it gives no answer to CONNECT: {error.strerror or 'too late'}") from None
    found = re.match(rb"HTTP/1\.[01] ([1-5]\d\d)(?: ([^\r\n]*))?\r?\n", head)
    if found is None:
        raise proxy_failed(proxy, "it does not speak HTTP")
    status = int(found[1])
    if not 200 <= status < 300:
        raise proxy_failed(proxy, f"it {tunnel_refusal(status, (found[2] or b'').decode('latin-1')[:60])}")


# ---------------------------------------------------------------------------------------------------- TLS


def tls_context(ca: str | None, insecure: bool) -> ssl.SSLContext:
    """Verifying, with the system's authorities or those of `ca`, unless `insecure`.

    Raises DoctorError for a file that holds none.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise DoctorError(
            f"ca {ca}: no certificate authorities can be read from it",
            hint="it must be a PEM file, with lines -----BEGIN CERTIFICATE----- (no key, no DER)",
            check="tls",
        ) from None
    except OSError as error:
        raise DoctorError(
            f"ca {ca}: no certificate authorities can be read from it: {error.strerror or error}",
            hint="name a PEM file that this user may read",
            check="tls",
        ) from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def encrypted(plain: socket.socket, place: Place, tls: ssl.SSLContext) -> ssl.SSLSocket:
    """TLS on a connection, which is closed when that fails. Raises DoctorError with the reason."""
    try:
        return tls.wrap_socket(plain, server_hostname=place.host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise DoctorError(
            f"the certificate of {place} is not trusted: {error.verify_message}",
            hint=_trust_hint(error.verify_code),
            check="tls",
        ) from None
    except (OSError, ValueError) as error:
        plain.close()
        reason = (
            getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
        )
        raise DoctorError(
            f"{place} makes no TLS connection: {str(reason).replace('_', ' ').lower()}",
            hint="does the server speak plain HTTP? then write http:// in base_url",
            check="tls",
        ) from None


def _trust_hint(code: int) -> str:
    if code in (_WRONG_NAME, _WRONG_ADDRESS):
        return "write base_url with a name that the certificate is for; insecure = true turns the check off"
    if code in (_EXPIRED, _NOT_YET):
        return "renew the server's certificate (is this host's clock right?); insecure = true turns the check off"
    return _MAKE_IT_TRUSTED


class Certificate(NamedTuple):
    """What a server's certificate says of itself."""

    names: tuple[str, ...]
    issuer: str
    expires_s: float | None
    """Seconds since the Unix epoch."""

    def __str__(self) -> str:
        named = ", ".join(self.names[:5]) or "no name"
        until = (
            "" if self.expires_s is None else f", valid until {datetime.fromtimestamp(self.expires_s, UTC):%Y-%m-%d}"
        )
        return f"for {named}, issued by {self.issuer}{until}"


def handshake(way: Route, tls: ssl.SSLContext) -> tuple[str, Certificate | None]:
    """(TLS version, certificate) of one connection. A certificate that is not verified is None here: see `presented`.

    Raises DoctorError.
    """
    plain = way.dial()
    plain.settimeout(way.timeout_s)
    with closing(encrypted(plain, way.place, tls)) as connection:
        told = connection.getpeercert()
        return connection.version() or "TLS", _certificate(told) if told else None


def presented(way: Route) -> Certificate | None:
    """The certificate that the server shows, trusted or not; None when it can't be had."""
    try:
        anybody = tls_context(None, insecure=True)
        with (
            way.dial() as plain,
            anybody.wrap_socket(plain, server_hostname=way.place.host) as connection,
        ):
            raw = connection.getpeercert(binary_form=True)
        if raw is None:
            return None
        # Only a certificate that is verified is taken apart by the standard library: so it vouches for itself.
        itself = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        itself.check_hostname = False
        itself.verify_flags = ssl.VerifyFlags(_PARTIAL_CHAIN | _NO_CHECK_TIME)
        itself.load_verify_locations(cadata=raw)
        with (
            way.dial() as plain,
            itself.wrap_socket(plain, server_hostname=way.place.host) as connection,
        ):
            told = connection.getpeercert()
    except (OSError, ValueError, DoctorError):
        return None
    return _certificate(told) if told else None


def _certificate(told: Any) -> Certificate:
    names = tuple(str(value) for _, value in told.get("subjectAltName", ()))
    try:
        expires_s: float | None = float(ssl.cert_time_to_seconds(told["notAfter"]))
    except (KeyError, ValueError, OverflowError):
        expires_s = None
    return Certificate(names or _common_names(told.get("subject", ())), _issuer(told.get("issuer", ())), expires_s)


def _common_names(name: Any) -> tuple[str, ...]:
    return tuple(str(value) for part in name for key, value in part if key == "commonName")


def _issuer(name: Any) -> str:
    told = {key: str(value) for part in name for key, value in part}
    return told.get("organizationName") or told.get("commonName") or "nobody it names"
