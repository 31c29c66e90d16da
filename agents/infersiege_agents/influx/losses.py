"""How many points a killed writer takes with it: counts in its directory, kept up to date at each point.

A plain write of 40 bytes, not a mapped file: it costs a microsecond, it is there whole or not at all after a kill -9,
and on a full disk of a file system that copies on write it fails, where a mapped page would end the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

NAME = "counts"
_COUNTS = struct.Struct("<5Q")
"""written, dropped, sealed, in the open segment, being appended to it at this moment."""


class CountsFile:
    """The counts of a living writer. A disk that fails makes them old, and stops nobody."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError."""
        self._descriptor = os.open(directory / NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(self._descriptor, bytes(_COUNTS.size))
        except OSError:
            os.close(self._descriptor)
            raise

    def keep(self, written: int, dropped: int, sealed: int, opened: int, appending: int = 0) -> None:
        """Points so far; `opened`: in the open segment, without the `appending` ones that are on their way there."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, _COUNTS.pack(written, dropped, sealed, opened, appending), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lost(directory: Path) -> int:
    """Points that a dead writer had taken and that were neither on disk nor counted as dropped when it was killed.

    To be asked before its open segment is sealed. 0 when there are no counts, or when `settle` was called.
    """
    try:
        found: tuple[int, ...] = _COUNTS.unpack((directory / NAME).read_bytes())
        written, dropped, sealed, opened, appending = found
        if appending:  # killed in a write: the segment itself says how far it came
            opened = sum(path.read_bytes().count(b"\n") for path in directory.glob("*.open"))
    except (OSError, struct.error):
        return 0
    return max(0, written - dropped - sealed - opened)


def settle(directory: Path) -> int:
    """The same number, once: from now on it is the caller's to tell. The caller holds the directory's lock.

    Raises OSError.
    """
    points = lost(directory)
    (directory / NAME).unlink(missing_ok=True)
    return points
