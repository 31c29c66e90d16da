"""Where bytes are kept: what a read returns, a stream's reads that wait for the decoder, any other body."""

from __future__ import annotations

READ_BYTES = 65536
BATCH_BYTES = 32_768
"""What is decoded in one go, so that the loop is soon back at its sockets."""
MAX_BODY_BYTES = 8 << 20


class ReadBuffer:
    """Where reads go. One for all connections of a thread: a callback is done with it before the next begins."""

    __slots__ = ("vector", "view")

    def __init__(self) -> None:
        buffer = bytearray(READ_BYTES)
        self.view = memoryview(buffer)
        self.vector = [buffer]
        """As `recvmsg_into` wants it."""


class Backlog:
    """Reads of one stream that are stamped but not decoded.

    A base class and no part, since the hot path spends its time on fetching objects that other streams have pushed
    out of the CPU's caches: each object less counts.
    """

    __slots__ = ("_held", "_reads")

    def __init__(self) -> None:
        self._reads: list[tuple[int, bytes]] = []
        """(stamp_ns, body), in order."""
        self._held = 0
        """Bytes of their bodies."""

    def _take(self) -> list[tuple[int, bytes]]:
        """Remove and return the next batch: all there is, or about 32 KiB when more than twice that waits."""
        if self._held <= 2 * BATCH_BYTES:
            return self._take_all()
        reads = self._reads
        batch = size = 0
        while size < BATCH_BYTES:
            size += len(reads[batch][1])
            batch += 1
        self._reads, self._held = reads[batch:], self._held - size
        return reads[:batch]

    def _take_all(self) -> list[tuple[int, bytes]]:
        """Remove and return everything."""
        reads, self._reads, self._held = self._reads, [], 0
        return reads


class WholeBody:
    """A body that is no stream, up to 8 MiB."""

    __slots__ = ("_pieces", "_room")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._room = MAX_BODY_BYTES

    def add(self, piece: bytes) -> bool:
        """Keep what there is room for; return whether that is all of it."""
        self._pieces.append(piece[: self._room])
        fits = len(piece) <= self._room
        self._room = max(0, self._room - len(piece))
        return fits

    def joined(self) -> bytes:
        return b"".join(self._pieces)
