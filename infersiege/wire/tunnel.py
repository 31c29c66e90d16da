"""TLS through an HTTP proxy: CONNECT first (RFC 9110, 9.3.6), then the handshake with the server inside the tunnel."""

from __future__ import annotations

import re

from infersiege.channels.proxy import tunnel_refusal
from infersiege.wire.buffers import READ_BYTES
from infersiege.wire.clock import monotonic_ns
from infersiege.wire.faults import ProxyError
from infersiege.wire.tls import TlsConnection

_LONGEST_HEAD = 64 << 10
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: ([^\r\n]*))?\r?\n")
_END = re.compile(rb"\r?\n\r?\n")


class TunnelConnection(TlsConnection):
    """`connect_duration_ns` holds TCP to the proxy and its answer to CONNECT, so also its own way to the server;
    `tls_duration_ns` the handshake with the server through it. Neither counts in the bytes of the request."""

    __slots__ = ("_dial_duration_ns", "_head")

    def _secure(self) -> None:
        # Nothing is connected until the proxy says so: what breaks until then is no fault of TLS.
        self._dial_duration_ns, self.connect_duration_ns = self.connect_duration_ns or 0, None
        self._head = b""
        place = self._endpoint.place
        self._reader.start(self._guarded, self._on_answer)
        self._out = memoryview(f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\nuser-agent: infersiege\r\n\r\n".encode())
        self._push()

    def _on_answer(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)  # type: ignore[union-attr]
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            raise ProxyError("closed the connection instead of opening a tunnel")
        self._head += data
        if not self._stands():
            return
        self._reader.stop()
        now_ns = monotonic_ns()
        self.connect_duration_ns = self._dial_duration_ns + now_ns - self._started_ns
        self._started_ns = now_ns
        super()._secure()

    def _stands(self) -> bool:
        """The final answer is there, and it is a tunnel. Raises ProxyError where it is none."""
        while (end := _END.search(self._head)) is not None:
            status = _STATUS.match(self._head)
            if status is None:
                raise ProxyError("does not speak HTTP")
            code, self._head = int(status[1]), self._head[end.end() :]
            if code < 200:
                continue  # an interim answer; the final one comes after it
            if code >= 300:
                raise ProxyError(tunnel_refusal(code, _printable(status[2] or b"")))
            if self._head:
                # A TLS server is silent until it is greeted, and a 2xx to CONNECT has no body.
                raise ProxyError("sends more than its answer to CONNECT")
            return True
        if len(self._head) > _LONGEST_HEAD:
            raise ProxyError("answers CONNECT without end")
        return False


def _printable(reason: bytes) -> str:
    text = reason.decode("latin-1")
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()[:60]
