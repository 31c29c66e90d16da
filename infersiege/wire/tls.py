"""A connection whose bytes go through TLS in memory (`ssl.MemoryBIO`): the reads and their stamps stay ours."""

from __future__ import annotations

import ssl

from infersiege.wire.buffers import READ_BYTES
from infersiege.wire.clock import monotonic_ns
from infersiege.wire.connection import Connection


class TlsConnection(Connection):
    """`ssl` never sees the socket. A stamp is that of the read that completed the record."""

    __slots__ = ("_incoming", "_outgoing", "_tls")

    def _secure(self) -> None:
        context = self._endpoint.tls
        assert context is not None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=self._endpoint.host)
        self._reader.start(self._guarded, self._on_handshake)
        self._shake()

    def _on_handshake(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)  # type: ignore[union-attr]
        except (BlockingIOError, InterruptedError):
            return
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        self._shake()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except OSError as error:  # ssl.SSLError and certificate errors are such
            self._flush()  # the alert that tells the server why
            self.close()
            if self.owner is not None:
                self.owner.connect_failed(error)
            return
        self._flush()
        self._reader.stop()
        self.tls_duration_ns = monotonic_ns() - self._started_ns
        self.shaken = True
        self._tell_connected()

    def usable(self) -> bool:
        try:
            data = self._sock.recv(READ_BYTES)  # type: ignore[union-attr]
            if not data:
                return False
            self._incoming.write(data)  # session tickets come late, they are no sign of anything
            return not self._tls.read(1)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False

    def _sealed(self, payload: bytes) -> bytes:
        self._tls.write(payload)
        return self._outgoing.read()

    def _on_readable(self) -> None:
        try:
            count, stamp_ns, earliest_ns = self._read()
            plain, over = self._open_records(count)
            if plain and self.owner is not None:
                self.owner.received(memoryview(plain), stamp_ns, earliest_ns)
            if over and self.owner is not None:
                self.owner.disconnected(None)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 - an exception would stop the watcher and hang the stream
            self._crash(error)

    def _open_records(self, count: int) -> tuple[bytes, bool]:
        """(plain text of the records that are complete, whether the stream is over)."""
        if count:
            self._incoming.write(self._view[:count])
        else:
            self._incoming.write_eof()
        pieces = []
        over = not count
        try:
            while piece := self._tls.read(READ_BYTES):
                pieces.append(piece)
            over = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            over = True
        self._flush()
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), over

    def _flush(self) -> None:
        """TLS has something to say by itself: handshake, key update, alert."""
        data = self._outgoing.read()
        if data:
            self._out = memoryview(bytes(self._out) + data if self._out else data)
            self._push()
