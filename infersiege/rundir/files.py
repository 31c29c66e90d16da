"""Writing so that a reader never sees half of something, and saying what to do when the disk says no."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from infersiege.errors import RunDirectoryError, UnwrittenRowsError


def reason_of(error: OSError) -> str:
    """`no space left on device`."""
    return (error.strerror or str(error)).lower()


def remedy_for(error: OSError, *, made: bool) -> str:
    """What to do about an OSError of a file that is written. `made`: by the run itself, which takes --out."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"free some space, or {'put the run on another disk with --out' if made else _COPY}"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"make the directory writable, or {'name another with --out' if made else _COPY}"
        case errno.EMFILE | errno.ENFILE:
            return "raise the limit of open files (`ulimit -n`)"
        case errno.EISDIR | errno.ENOTEMPTY | errno.ENOTDIR:
            return "something else stands in its place: move it away"
        case _:
            return f"check the disk, or {'put the run on another one with --out' if made else _COPY}"


_COPY = "work on a copy of the run elsewhere"


def endless(path: Path) -> str | None:
    """What stands at a place where a file should: a pipe, whose reader waits for a writer, or a device, which may have
    no end; None: a file, a folder, or nothing that could be looked at."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a disk", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode))


def check_files(paths: Iterable[Path]) -> None:
    """Raises RunDirectoryError where one of them would keep its reader for ever."""
    for path in paths:
        if (kind := endless(path)) is not None:
            raise RunDirectoryError(f"{path}: is {kind}, no file", hint="put the file of the run in its place")


class Appender:
    """An append-only file of whole rows, handed to the kernel with each append (our own crash loses none)."""

    def __init__(self, path: Path, *, made: bool) -> None:
        self.path = path
        self._made = made
        self._file = path.open("ab", buffering=0)
        self._end = self._file.seek(0, os.SEEK_END)

    def append(self, rows: bytes) -> None:
        """Raises UnwrittenRowsError when they can't be written; the file then ends where it ended before."""
        view = memoryview(rows)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._take_back()
            raise UnwrittenRowsError(
                f"{self.path}: {len(rows)} bytes of results can't be written: {reason_of(error)}",
                hint=remedy_for(error, made=self._made),
            ) from None
        self._end += len(rows)

    def _take_back(self) -> None:
        try:
            self._file.truncate(self._end)
            self._file.seek(self._end)
        except OSError:
            # A device without truncation, or a broken disk: readers tolerate a torn last line.
            return

    def claim(self) -> bool:
        """Take the file for this process, until it ends or closes it. False: another one has it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks: nobody can tell
            return True
        return True

    def sync(self) -> None:
        """Out of the page cache: what stands here survives the host. Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def drop_torn_row(path: Path) -> int:
    """Cut off what a crash left after the last whole row; returns how many bytes. Raises OSError."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - (1 << 16))
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
    return size - end


class Versioned(msgspec.Struct):
    """The one field that is read before everything else."""

    schema_version: int


def pretty(value: msgspec.Struct) -> bytes:
    """Strict, indented JSON with its newline."""
    # msgspec writes NaN and infinities as null: strict JSON by construction.
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def discard(path: Path) -> None:
    """Remove what is left of a failed write, if it can be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # Already reporting a failed write of the same directory: that one is what the user needs to hear.
        return


def bad_line(path: Path, number: int, line: bytes, error: Exception) -> RunDirectoryError:
    """The error for a line that can not be what a crash left."""
    hint = "this line was damaged after it was written; take it out of a copy of the run to go on without it"
    return RunDirectoryError(f"{path}:{number}: {reason_of_line(line, error)}", hint=hint)


def reason_of_line(line: bytes, error: Exception) -> str:
    """What is wrong with a line that is no row, by the line and what its decoder said."""
    return "zero bytes" if line.startswith(b"\0") else str(error)
