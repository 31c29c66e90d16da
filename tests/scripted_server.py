"""A TCP server that does to each connection exactly what a test says, in real threads.

Everything comes from the unpatched standard library, so that it works the same when another test file has imported
Locust (which monkey-patches the process).
"""

from __future__ import annotations

import _socket
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType

from gevent.monkey import get_original

start_thread = get_original("_thread", "start_new_thread")
sleep = get_original("time", "sleep")

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(body: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def stream(*events: bytes) -> bytes:
    """A whole streamed response."""
    return STREAM_HEAD + b"".join(map(chunked, events)) + b"0\r\n\r\n"


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json", extra: str = "") -> bytes:
    """A whole response with its length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{extra}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Peer:
    """The server's side of one connection."""

    def __init__(self, sock: _socket.socket, number: int, context: ssl.SSLContext | None) -> None:
        self.number = number
        """0 for the first connection."""
        self._sock = sock
        self._unread = b""
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._pump(self._tls.do_handshake)

    def request(self) -> bytes | None:
        """Read one whole request; None at the end of the connection. Who asks for figures is told: there are none."""
        while (found := self._request()) is not None and found.startswith(b"GET /metrics "):
            self.send(whole(b"", "404 Not Found"))
        return found

    def _request(self) -> bytes | None:
        while b"\r\n\r\n" not in self._unread:
            if not self._more():
                return None
        head, _, rest = self._unread.partition(b"\r\n\r\n")
        lengths = (line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        length = int(next(lengths, b"0"))
        while len(rest) < length:
            if not self._more():
                return None
            rest = self._unread.partition(b"\r\n\r\n")[2]
        self._unread = rest[length:]
        return head + b"\r\n\r\n" + rest[:length]

    def read_some(self) -> bytes:
        return self._sock.recv(1000)

    def send(self, *pieces: bytes, pause: float = 0.0) -> None:
        """Each piece in a write of its own, with a pause before each but the first."""
        for number, piece in enumerate(pieces):
            if number:
                sleep(pause)
            if self._tls is not None:
                self._tls.write(piece)
                piece = self._outgoing.read()
            self._sock.sendall(piece)

    def close(self) -> None:
        self._sock.close()

    def reset(self) -> None:
        """Close with an RST."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def wait_for_end(self) -> None:
        """Until the other side closes."""
        while self._sock.recv(65536):
            pass

    def _more(self) -> bool:
        if self._tls is None:
            data = self._sock.recv(65536)
            self._unread += data
            return bool(data)
        while True:
            try:
                # First what is there: the first request may have come together with the handshake's end.
                piece = self._tls.read(65536)
                self._unread += piece
                return bool(piece)
            except ssl.SSLWantReadError:
                data = self._sock.recv(65536)
                if not data:
                    return False
                self._incoming.write(data)

    def _pump(self, step: Callable[[], None]) -> None:
        while True:
            try:
                step()
            except ssl.SSLWantReadError:
                self._sock.sendall(self._outgoing.read())
                data = self._sock.recv(65536)
                if not data:
                    raise ConnectionError("closed in the handshake") from None
                self._incoming.write(data)
            else:
                self._sock.sendall(self._outgoing.read())
                return


class Server:
    """Runs `script(peer)` for each connection, in a thread of its own. Use with `with`."""

    def __init__(self, script: Callable[[Peer], None], context: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self.open = 0
        self.most_open = 0
        self.errors: list[BaseException] = []
        self._script = script
        self._context = context
        self._listener = _socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(1024)
        self.port: int = self._listener.getsockname()[1]
        self._stopping = False
        start_thread(self._accept, ())

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                descriptor, _ = self._listener._accept()
            except OSError:
                return
            sock = _socket.socket(fileno=descriptor)
            if self._stopping:
                sock.close()
                return
            sock.setblocking(True)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number, self.connections = self.connections, self.connections + 1
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            start_thread(self._serve, (sock, number))

    def _serve(self, sock: _socket.socket, number: int) -> None:
        try:
            self._script(Peer(sock, number, self._context))
        except OSError:
            pass  # the client went away: what tests do on purpose
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.errors.append(error)
        finally:
            self.open -= 1
            sock.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        with closing(_socket.socket()) as waker:  # closing a listener doesn't wake its accept
            waker.connect(("127.0.0.1", self.port))
        self._listener.close()
        if error is None and self.errors:
            raise self.errors[0]


def answering(response: bytes) -> Callable[[Peer], None]:
    """A script: this response to each request."""

    def script(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(response)

    return script


@contextmanager
def black_hole() -> Iterator[int]:
    """A port at which a SYN gets no answer at all, as behind a firewall that drops it.

    Linux ignores SYNs to a listener whose queue of connections is full; with a backlog of 0 it is after one.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(closing(_socket.socket()))
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        for _ in range(3):  # more than fit, so that none is left to the caller whatever the kernel rounds up to
            filler = stack.enter_context(closing(_socket.socket()))
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port


@contextmanager
def dead_port() -> Iterator[int]:
    """A port on which nobody listens, held so that nobody else takes it."""
    with closing(_socket.socket()) as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
