"""Files in a directory that other users can write to, such as the usual place of spools: /tmp."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a disk",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


def open_own(path: Path) -> BinaryIO:
    """Open a file of this user, or of root, for reading.

    Raises OSError, at once, for whatever else stands there: a pipe would keep its reader for ever, a link or a file of
    somebody else would be read under a name that says that it is ours. What was opened is looked at, not its name,
    which may stand for something else a moment later.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        reason = {errno.ELOOP: "is a symbolic link, no file", errno.ENXIO: "is no file"}.get(error.errno or 0)
        raise error if reason is None else OSError(error.errno, reason, str(path)) from None
    try:
        there = os.fstat(descriptor)
        kind = stat.S_IFMT(there.st_mode)
        if kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, f"is {_KINDS.get(kind, 'something else')}, no file", str(path))
        if there.st_uid not in (os.geteuid(), 0):
            reason = f"belongs to user {there.st_uid}, neither to this one nor to root"
            raise PermissionError(errno.EPERM, reason, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_own(path: Path) -> bytes:
    """All bytes of such a file. Raises as `open_own` does."""
    with open_own(path) as file:
        return file.read()
