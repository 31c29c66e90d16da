"""One TCP or TLS connection in callbacks of the event loop: connect, send, read with stamps. Knows no HTTP.

Sockets are those of `_socket`, which monkey-patching leaves alone: gevent's own would switch greenlets inside a
callback. Every callback catches everything: an exception that reached the loop would stop its watcher and hang the
stream.
"""

from __future__ import annotations

import _socket
import errno
import os
import socket
import struct
from typing import Any, Protocol

from infersiege.wire.buffers import READ_BYTES, ReadBuffer
from infersiege.wire.clock import (
    ANCILLARY_BYTES,
    SO_TIMESTAMPNS,
    TIMESPEC,
    TOLERANCE_NS,
    PollWatch,
    StampClock,
    monotonic_ns,
)
from infersiege.wire.endpoint import Address, Endpoint
from infersiege.wire.exchange import ExchangeResult
from infersiege.wire.faults import is_ours

_READ, _WRITE = 1, 2
_IN_PROGRESS = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})
_unpack = TIMESPEC.unpack
_DATA_SEGMENTS_IN = struct.Struct("152xI")  # tcpi_data_segs_in of struct tcp_info, Linux 4.6 and later
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A peer that vanished without a word is noticed after a minute, beside the idle deadline.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", 4), 30),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", 5), 10),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", 6), 3),
)


class Owner(Protocol):
    """Whom a connection tells what happened. None of these may yield."""

    def connected(self) -> None: ...

    def received(self, data: memoryview, stamp_ns: int, earliest_ns: int) -> None:
        """One read, valid until this returns. It arrived in [earliest_ns, stamp_ns]."""

    def disconnected(self, error: OSError | None) -> None:
        """None: the other side closed in good order."""

    def connect_failed(self, error: OSError) -> None:
        """No address took the connection, or (an ssl.SSLError) the handshake failed."""

    def crashed(self, error: Exception) -> None:
        """A bug, ours or the sink's."""


class Connection:
    """One plain socket (tls.TlsConnection: an encrypted one).

    `owner` is set while it serves an exchange; idle in the pool it has none and no running watcher.
    """

    __slots__ = (
        "_addresses", "_clock", "_drained", "_empty_ns", "_endpoint", "_loop", "_out", "_poll", "_reader",
        "_recvmsg_into", "_segments", "_sock", "_started_ns", "_vector", "_view", "_writer", "address", "bytes_in",
        "bytes_out", "closed", "connect_duration_ns", "owner", "peer", "sent_end_ns", "sent_ns", "shaken", "stepped",
        "tls_duration_ns", "user_reads",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, clock: StampClock, loop: Any, owner: Owner, buffer: ReadBuffer) -> None:
        self.owner: Owner | None = owner
        self.peer: str | None = None
        self.address: Address | None = None
        self.connect_duration_ns: int | None = None
        self.tls_duration_ns: int | None = None
        self.closed = False
        self.shaken = False
        """Ready for requests."""
        self._poll: PollWatch | None = None
        self._endpoint = endpoint
        self._clock = clock
        self._vector = buffer.vector
        self._view = buffer.view
        self._loop = loop
        self._sock: _socket.socket | None = None
        self._reader: Any = None
        self._writer: Any = None
        self._addresses: list[Address] = []
        self._started_ns = 0
        self._out: memoryview | None = None
        self._segments: int | None = None
        self._empty_ns = 0
        self._drained = True
        """Whether the last read took all there was."""
        self._forget()

    def _forget(self) -> None:
        """Counters of one exchange."""
        self.sent_ns: int | None = None
        self.sent_end_ns: int | None = None
        self.bytes_in = self.bytes_out = 0
        self.user_reads = 0
        self.stepped = False

    # ------------------------------------------------------------------------------------------------ connecting

    def open(self, addresses: list[Address], started_ns: int) -> None:
        """Connect to the first address that takes it; tells the owner, perhaps before returning.

        `started_ns`: when the attempt began (with the look-up of the name), for `connect_duration_ns`.
        """
        self._addresses = addresses
        self._started_ns = started_ns
        self._next_address(OSError(errno.EADDRNOTAVAIL, "the name has no address"))

    def _next_address(self, last: OSError) -> None:
        while self._addresses:
            self.address = self._addresses.pop(0)
            try:
                self._begin_connect(*self.address)
                return
            except OSError as error:
                last = error
                self._drop()
                if is_ours(error):
                    break
                self._endpoint.note(self.address, refused=True)
        self.close()
        if self.owner is not None:
            self.owner.connect_failed(last)

    def _begin_connect(self, family: int, target: tuple[object, ...]) -> None:
        sock = self._sock = _socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        for option in _OPTIONS:
            sock.setsockopt(*option)
        if self._clock.kernel:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        code = sock.connect_ex(target)
        if code not in _IN_PROGRESS:
            raise OSError(code, os.strerror(code))
        self.peer = self._endpoint.peer(target)
        self._recvmsg_into = sock.recvmsg_into
        self._reader = self._loop.io(sock.fileno(), _READ)
        self._writer = self._loop.io(sock.fileno(), _WRITE)
        self._writer.start(self._guarded, self._on_connect)

    def _on_connect(self) -> None:
        assert self._sock is not None and self.address is not None
        self._writer.stop()
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._drop()
            self._endpoint.note(self.address, refused=True)
            self._next_address(OSError(code, os.strerror(code)))
            return
        self._endpoint.note(self.address, refused=False)
        now_ns = monotonic_ns()
        self.connect_duration_ns = now_ns - self._started_ns
        self._started_ns = now_ns
        self._secure()

    def _secure(self) -> None:
        """The TCP connection stands; a plain one is ready."""
        self.shaken = True
        self._tell_connected()

    def _tell_connected(self) -> None:
        if self.owner is not None:
            self.owner.connected()

    # --------------------------------------------------------------------------------------------------- sending

    def usable(self) -> bool:
        """Whether an idle connection still stands: the server neither closed it nor said anything unasked."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)  # type: ignore[union-attr]
            return False
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False

    def watch(self, poll: PollWatch) -> None:
        """From now on the earliest time of arrival is wanted beside the stamp."""
        poll.acquire()
        self._poll = poll

    def unwatch(self) -> None:
        """No more of that: the first token is there, or never will be. A second call does nothing."""
        if self._poll is not None:
            self._poll.release()
            self._poll = None

    def begin(self, owner: Owner, payload: bytes) -> None:
        """Start one exchange: send all of `payload`, and read from now on, before all of it is sent."""
        self.owner = owner
        self._forget()
        self._empty_ns, self._drained = monotonic_ns(), True
        self._segments = self._data_segments() if self._poll is not None else None
        self._reader.start(self._on_readable)
        self._out = memoryview(self._sealed(payload))
        self._push()

    def _sealed(self, payload: bytes) -> bytes:
        """What goes over the wire for it."""
        return payload

    def _push(self) -> None:
        """Send what the socket takes, and wait with a watcher for the rest."""
        out = self._out
        while out:
            before_ns = monotonic_ns()
            try:
                count = self._sock.send(out)  # type: ignore[union-attr]
            except (BlockingIOError, InterruptedError):
                self._out = out
                if not self._writer.active:
                    self._writer.start(self._guarded, self._push)
                return
            except OSError:
                # The reading side tells what happened: there may be an answer (413) that explains it.
                self._out = None
                self._writer.stop()
                return
            if self.shaken:  # a handshake is no part of the request
                self.bytes_out += count
                if self.sent_ns is None:
                    self.sent_ns = before_ns
            out = out[count:]
        self._out = None
        self._writer.stop()
        if self.shaken and self.sent_end_ns is None:
            self.sent_end_ns = monotonic_ns()

    # --------------------------------------------------------------------------------------------------- reading

    def _on_readable(self) -> None:
        """The hot path of plain connections: one read, one stamp. What `_stamp` does is repeated here, in line."""
        try:
            if self._poll is not None:
                self._read_with_bound()
                return
            recvmsg_into = self._recvmsg_into  # in two steps: one is a slower lookup for what a slot holds
            before_ns = monotonic_ns()
            count, ancillary, _, _ = recvmsg_into(self._vector, ANCILLARY_BYTES)
            if ancillary:
                seconds, nanoseconds = _unpack(ancillary[0][2])
                stamp_ns = seconds * 1_000_000_000 + nanoseconds - self._clock.offset_ns
                # Nearly always it came before the read began; then there is no need to ask for the time again.
                if not self._empty_ns - TOLERANCE_NS <= stamp_ns <= before_ns:
                    stamp_ns = self._believed(stamp_ns, self._empty_ns, monotonic_ns())
            else:
                self.user_reads += count > 0  # the end of the connection has no stamp and needs none
                stamp_ns = monotonic_ns()
            if count < READ_BYTES:  # a full buffer may have left bytes behind, which came before this read
                self._empty_ns = before_ns
            if count:
                self.bytes_in += count
                self.owner.received(self._view[:count], stamp_ns, stamp_ns)  # type: ignore[union-attr]
            else:
                self.owner.disconnected(None)  # type: ignore[union-attr]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            self._crash(error)

    def _read_with_bound(self) -> None:
        """One read while the first token is awaited: also the earliest time at which its first byte can have come."""
        count, stamp_ns, earliest_ns = self._read()
        if count:
            self.owner.received(self._view[:count], stamp_ns, earliest_ns)  # type: ignore[union-attr]
        else:
            self.owner.disconnected(None)  # type: ignore[union-attr]

    def _read(self) -> tuple[int, int, int]:
        """Read once into the buffer: (bytes, stamp, earliest). Raises OSError."""
        segments = self._data_segments() if self._poll is not None else None
        before_ns = monotonic_ns()
        count, ancillary, _, _ = self._recvmsg_into(self._vector, ANCILLARY_BYTES)
        stamp_ns = self._stamp(count, ancillary)
        earliest_ns = stamp_ns if self._poll is None else self._earliest(stamp_ns)
        self.bytes_in += count
        self._drained = count < READ_BYTES
        if self._drained:
            self._empty_ns, self._segments = before_ns, segments
        return count, stamp_ns, earliest_ns

    def _stamp(self, count: int, ancillary: list[tuple[int, int, bytes]]) -> int:
        """When the last segment of a read that has just returned arrived."""
        now_ns = monotonic_ns()
        if not ancillary:
            self.user_reads += count > 0
            return now_ns
        seconds, nanoseconds = _unpack(ancillary[0][2])
        stamp_ns = int(seconds * 1_000_000_000 + nanoseconds - self._clock.offset_ns)
        return self._believed(stamp_ns, self._empty_ns, now_ns)

    def _believed(self, stamp_ns: int, empty_ns: int, now_ns: int) -> int:
        """The kernel's stamp, unless the clock was stepped: then the time of the read stands for it.

        A stamp between the time when the socket was last known empty (just before the last read that did not fill its
        buffer) and now needs no proof. One from the future is a step. An older one is a step only if the clock itself
        shows one: the kernel stamps a packet before it queues it, and on a busy machine the packet may wait there for
        milliseconds (for ksoftirqd to get a CPU) while we find the socket empty.
        """
        if empty_ns - TOLERANCE_NS <= stamp_ns <= now_ns:
            return stamp_ns
        if now_ns < stamp_ns <= now_ns + TOLERANCE_NS:
            return now_ns
        if self._clock.check() or stamp_ns > now_ns:
            self.stepped = True
            return now_ns
        return max(stamp_ns, empty_ns if self.sent_ns is None else self.sent_ns)  # nothing answers what was not sent

    def _earliest(self, stamp_ns: int) -> int:
        """When the first segment of the read that has just returned can have arrived.

        What it holds came after the last read that left the socket empty, and so after the count of data segments just
        before that: a growth of one since then means that this is one segment, without any doubt.
        """
        after = self._data_segments()
        if self._segments is not None and after is not None and after - self._segments == 1:
            return stamp_ns
        # A poll that found bytes of the read before says nothing about when these here came.
        polled_ns = self._poll.empty_ns(stamp_ns) if self._poll is not None and self._drained else 0
        return min(stamp_ns, max(polled_ns, self._empty_ns))

    def _data_segments(self) -> int | None:
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 156)  # type: ignore[union-attr]
            return int(_DATA_SEGMENTS_IN.unpack(info)[0])
        except (OSError, struct.error):
            return None

    # ------------------------------------------------------------------------------------------------------- end

    def count_into(self, result: ExchangeResult) -> None:
        """Add what was sent and read since `begin`."""
        result.sent_ns, result.sent_end_ns = self.sent_ns, self.sent_end_ns
        result.bytes_in += self.bytes_in
        result.bytes_out += self.bytes_out
        result.clock_step = result.clock_step or self.stepped

    def _guarded(self, callback: Any) -> None:
        try:
            callback()
        except OSError as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001
            self._crash(error)

    def _lost(self, error: OSError) -> None:
        owner = self.owner
        if not self.shaken:
            self.close()
            if owner is not None:
                owner.connect_failed(error)
        elif owner is not None:
            owner.disconnected(error)
        else:
            self.close()

    def _crash(self, error: Exception) -> None:
        owner = self.owner
        self.close()
        if owner is not None:
            owner.crashed(error)

    def rest(self) -> None:
        """Idle from now on, in the pool."""
        self.owner = None
        self.unwatch()
        self._reader.stop()

    def close(self) -> None:
        """Close at once. A second call does nothing."""
        self.closed = True
        self._drop()

    def _drop(self) -> None:
        # Watchers before the descriptor: its number may be another socket's a moment later.
        for watcher in (self._reader, self._writer):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._reader = self._writer = None
        if self._sock is not None:
            self._sock.close()
            self._sock = None
