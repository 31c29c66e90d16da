"""How the bytes of an answer get onto the connection: as they come, all at the end, or cut into small pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from infersiege.emulator.http1 import Connection

_TRICKLE_BYTES = 16


class Outlet(Protocol):
    def write(self, data: bytes) -> None: ...

    def end(self) -> None:
        """All is written: when it has left, the connection may take its next request."""


class DirectOutlet:
    """One write to the socket per call."""

    def __init__(self, connection: Connection) -> None:
        self.write: Callable[[bytes], None] = connection.write
        self.end: Callable[[], None] = connection.finished


class BurstOutlet:
    """Everything in one write at the end, like a buffering proxy."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._held.append(data)

    def end(self) -> None:
        self._connection.write(b"".join(self._held))
        self._connection.finished()


class TrickleOutlet:
    """Sixteen bytes, a pause, sixteen bytes: events and characters are cut anywhere."""

    def __init__(self, connection: Connection, pause_s: float) -> None:
        self._connection = connection
        self._pause_s = pause_s
        self._held = bytearray()
        self._ended = False
        self._running = False

    def write(self, data: bytes) -> None:
        self._held += data
        if not self._running:
            self._running = True
            self._next()

    def end(self) -> None:
        self._ended = True
        if not self._running:
            self._connection.finished()

    def _next(self) -> None:
        if not self._held:
            self._running = False
            if self._ended:
                self._connection.finished()
            return
        self._connection.write(bytes(self._held[:_TRICKLE_BYTES]))
        del self._held[:_TRICKLE_BYTES]
        asyncio.get_running_loop().call_later(self._pause_s, self._next)
