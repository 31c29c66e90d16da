"""What becomes of an answer's body: a stream's reads wait for the decoder, any other body is kept as it is."""

from __future__ import annotations

BATCH_BYTES = 32_768
"""What is decoded in one go, so that the loop is soon back at its sockets."""
MAX_BODY_BYTES = 8 << 20


class Backlog:
    """Reads of one stream that are stamped but not decoded. `Exchange.received` appends to it, without a call."""

    __slots__ = ("bytes", "reads")

    def __init__(self) -> None:
        self.reads: list[tuple[int, bytes]] = []
        """(stamp_ns, body), in order."""
        self.bytes = 0
        """Of their bodies."""

    def take(self) -> list[tuple[int, bytes]]:
        """Remove and return the next batch: all there is, or about 32 KiB when more than twice that waits."""
        reads = self.reads
        if self.bytes <= 2 * BATCH_BYTES:
            self.reads, self.bytes = [], 0
            return reads
        batch = size = 0
        while size < BATCH_BYTES:
            size += len(reads[batch][1])
            batch += 1
        self.reads, self.bytes = reads[batch:], self.bytes - size
        return reads[:batch]

    def take_all(self) -> list[tuple[int, bytes]]:
        """Remove and return everything."""
        reads, self.reads, self.bytes = self.reads, [], 0
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
