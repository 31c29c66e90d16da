"""A file that is read by place for as long as a trace is played, while others may write to it.

It is not mapped: where a mapped file is cut, whoever reads it dies of SIGBUS without a word.
"""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from infersiege.errors import TraceError

WINDOW_BYTES = 1 << 20
"""What is read at once of a file that is read through."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class KeptFile:
    """A descriptor of its own of an open file, closed with the last reference to it."""

    def __init__(self, file: IO[bytes], path: Path, *, ours: bool = False) -> None:
        """`ours`: nobody else has the file, so that nobody changes it."""
        self.size = os.fstat(file.fileno()).st_size
        self._path = path
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._opened = None if ours else _state(self._descriptor)

    @property
    def ours(self) -> bool:
        return self._opened is None

    def fileno(self) -> int:
        return self._descriptor

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`. Raises TraceError where the file is no more what it was at opening."""
        try:
            data = os.pread(self._descriptor, end - start, start)
            changed = len(data) < end - start or (self._opened is not None and _state(self._descriptor) != self._opened)
        except OSError as error:
            raise unreadable(self._path, error) from error
        if changed:
            raise was_changed(self._path)
        return data

    def windows(self, start: int, end: int, size: int = WINDOW_BYTES) -> Iterator[tuple[int, bytes]]:
        """(first byte, data) of one piece after the other. Raises TraceError as `read` does."""
        while start < end:
            data = self.read(start, min(start + size, end))
            yield start, data
            start += len(data)


@contextmanager
def unchanged(file: IO[bytes], path: Path) -> Iterator[None]:
    """What is read of the file inside is of one state of it. Raises TraceError if not, whatever else failed."""
    before = _state(file.fileno())
    try:
        yield
    except Exception:
        if _state(file.fileno()) != before:
            raise was_changed(path) from None
        raise
    if _state(file.fileno()) != before:
        raise was_changed(path)


@contextmanager
def new_spool(path: Path) -> Iterator[IO[bytes]]:
    """A file without a name to unpack `path` into: it is gone when it is closed, however this process ends.

    Open afterwards, if nothing fails inside. Raises TraceError that names the folder where there is no room for it.
    """
    folder = "$TMPDIR"
    try:
        folder = tempfile.gettempdir()
        spool = tempfile.TemporaryFile(prefix="infersiege-trace-", dir=folder)  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise _no_room(path, folder, error) from error
    try:
        yield spool
        spool.flush()
    except BaseException as error:
        with suppress(OSError):  # of what it still held, which is of no use any more
            spool.close()
        if is_of_spool(error):
            raise _no_room(path, folder, error) from error
        raise


def is_of_spool(error: BaseException) -> bool:
    """Writing failed, not reading."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def unreadable(path: Path, error: Exception) -> TraceError:
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return TraceError(f"{path}: cannot be read ({detail})", hint="check the file's permissions and that it is whole")


def was_changed(path: Path) -> TraceError:
    return TraceError(f"{path}: was changed while it was read", hint="play a copy, or wait until it is written")


def _no_room(path: Path, folder: str, error: BaseException) -> TraceError:
    detail = getattr(error, "strerror", None) or error
    return TraceError(
        f"{path}: cannot be unpacked into {folder} ({detail})",
        hint="set TMPDIR to a folder with room for the unpacked file, or unpack it yourself",
    )


def _state(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns
