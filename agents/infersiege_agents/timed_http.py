"""One HTTP/1.1 request under one deadline and one size: what the agents ask themselves, beside influxdb-client.

A socket's own timeout begins anew at each byte: a server that drips would hold us for ever. Here the deadline is over
all of it but the resolution of the host's name. No proxies of the environment, no redirects: the caller's address is
the one that is asked.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Origin(NamedTuple):
    """Whom to ask."""

    scheme: str
    """http or https."""
    host: str
    port: int


class Answer(NamedTuple):
    """What came."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    sent_s: float
    """time.time() just before the request."""
    read_s: float
    """time.time() just after the head was read."""


class TooLargeError(Exception):
    """The body is larger than `most_bytes`."""


def ask(
    origin: Origin,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    deadline_s: float,
    most_bytes: int,
    clock: Callable[[], float] = time.monotonic,
) -> Answer:
    """Send the request on a connection of its own and read the whole answer; any status is one.

    `path` with its query. `deadline_s` from now; `clock` in s. Raises TimeoutError after the deadline, TooLargeError,
    socket.gaierror for a host without an address or that can't be one, http.client.HTTPException (IncompleteRead for
    a body that was cut), ssl.SSLError, and OSError for what else a connection can meet.
    """
    deadline = clock() + deadline_s
    connection = http.client.HTTPConnection(origin.host, origin.port)
    if origin.scheme == "https":
        connection.default_port = http.client.HTTPS_PORT
    with contextlib.closing(_connected(origin, deadline, clock)) as sock:
        connection.sock = cast("socket.socket", _Timed(sock, deadline, clock))
        sent_s = time.time()
        try:
            connection.request(method, path, body, {"Connection": "close", **headers})
        except UnicodeError:
            raise http.client.InvalidURL(f"{path!r} can't be asked for") from None
        with connection.getresponse() as answer:
            read_s = time.time()
            data = answer.read(most_bytes + 1)
            if len(data) > most_bytes:
                raise TooLargeError
            if answer.length:  # read(n) tells of a cut body only so
                raise http.client.IncompleteRead(data, answer.length)
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, answer.reason, found, data, sent_s, read_s)


def _connected(origin: Origin, deadline: float, clock: Callable[[], float]) -> socket.socket:
    """To the first of the host's addresses that takes a connection, with TLS where the scheme says so."""
    _left(deadline, clock)
    try:
        places = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except UnicodeError:  # an empty label, or one longer than 63 characters
        raise socket.gaierror(socket.EAI_NONAME, "it is no name of a host") from None
    failure: OSError = socket.gaierror(socket.EAI_NONAME, "it has no address")
    for family, kind, protocol, _, address in places:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(deadline, clock))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            break
        except OSError as error:
            sock.close()
            failure = error
    else:
        raise failure
    if origin.scheme != "https":
        return sock
    try:
        context = ssl.create_default_context()
        sock.settimeout(_left(deadline, clock))
        return context.wrap_socket(sock, server_hostname=origin.host)
    except BaseException:
        sock.close()
        raise


def _left(deadline: float, clock: Callable[[], float]) -> float:
    """Seconds until the deadline. Raises TimeoutError when there are none."""
    left = deadline - clock()
    if left <= 0:
        raise TimeoutError
    return left


class _Timed:
    """What http.client needs of a socket, each step within what is left of the time."""

    def __init__(self, sock: socket.socket, deadline: float, clock: Callable[[], float]) -> None:
        self._sock = sock
        self._deadline = deadline
        self._clock = clock

    def in_time(self) -> socket.socket:
        self._sock.settimeout(_left(self._deadline, self._clock))
        return self._sock

    def sendall(self, data: bytes) -> None:
        self.in_time().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """http.client closes its socket before the answer is read; `ask` closes it after."""


class _Reader(io.RawIOBase):
    def __init__(self, timed: _Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._timed.in_time().recv_into(buffer)
