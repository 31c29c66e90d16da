"""Tells whether a trace file is still the one that was opened: sessions are read from it while they are played."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from infersiege.errors import TraceError
from infersiege.plan.schema import Workload
from infersiege.traces import Trace
from infersiege.traces.lengths import LengthTrace

LOOK_EVERY_NS = 500_000_000
"""A look costs microseconds here, but a round trip where the file lies on another host."""

PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1")
"""What files begin with that are unpacked once: nothing of them is read later."""


class TraceWatch:
    """One trace file, from just before it is opened. A file that took its name since is another one: what is open stays
    as it was."""

    def __init__(self, path: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._path = path
        self._clock_ns = clock_ns
        self._before = _seen(path)
        self._read_since = False
        self._look_at_ns = 0

    def read(self, *, at_once: bool = False) -> None:
        """Something was read of it. Raises TraceError if the file is not what it was, within half a second."""
        self._read_since = True
        if at_once or self._clock_ns() >= self._look_at_ns:
            self.look()

    def look(self) -> None:
        """Raises TraceError if the file was changed since it was opened, and read."""
        if not self._read_since or self._before is None:
            return
        now = _seen(self._path)
        replaced = now is None or now[:2] != self._before[:2]
        if now != self._before and not replaced:
            raise TraceError(
                f"the trace {self._path} was changed while it was played",
                hint="run again; of a file that is still being written play a copy",
            )
        self._look_at_ns = self._clock_ns() + LOOK_EVERY_NS
        self._read_since = False


def watch_of(workload: Workload) -> TraceWatch | None:
    """To be called before the trace is opened. None: nothing of it is read after that.

    Folders and packed files are unpacked when they are opened, built-in traces are made up.
    """
    path = Path(workload.trace)
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.read(4).startswith(PACKED):
                return None
    except (OSError, ValueError):
        return None  # Whoever opens it says what is wrong, if it is a file at all.
    return TraceWatch(path)


def is_read_later(trace: Trace) -> bool:
    """Whether sessions are made of the file's rows when they are asked for; not where their numbers are kept."""
    return not isinstance(trace, LengthTrace)


def _seen(path: Path) -> tuple[int, int, int, int] | None:
    """(device, inode, size, time of the last change); None: nothing has this name any more."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
