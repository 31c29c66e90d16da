"""Whether somebody still writes a run: its master until the end, `infersiege recover` while it brings records home.

Both hold a lock on turns.jsonl (`RunDirectory.claim`), which the kernel ends with the process that has it: a dead one
blocks nobody. Figures of half a run are none, and a verdict beside it would outlive the half.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
from pathlib import Path

from infersiege.errors import RunDirectoryError, UsageError
from infersiege.rundir.directory import RunDirectory
from infersiege.rundir.names import TURNS

_LOCKS = Path("/proc/locks")
_TAKEN = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
"""What asking for a lock that another process has says; EACCES on file systems that take record locks for it."""


def open_finished(path: Path) -> RunDirectory:
    """As `RunDirectory.open`, of a run that nobody writes any more.

    Raises RunDirectoryError, also while it is still written. What can't be told (a file system without locks, a file
    that may not be read) is taken for the end.
    """
    run = RunDirectory.open(path)
    if not is_written(path):
        return run
    if run.recovery_path.exists():
        raise RunDirectoryError(
            f"{path}: its records are just brought home ({writer_of(run)})", hint="wait until `recover` has ended"
        )
    raise RunDirectoryError(f"{path}: the run is still going ({writer_of(run)})", hint="wait for its end")


def is_written(path: Path) -> bool:
    """Whether some process, of this host or another one, has the lock on a run directory's turns."""
    try:
        # A pipe in its place would wait for a writer.
        descriptor = os.open(path / TURNS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # reading the turns tells of it
        return False
    try:
        # A shared one: two who only look never meet, and a kernel that emulates locks asks for no right to write.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _TAKEN
    finally:
        os.close(descriptor)
    return False


def writer_of(run: RunDirectory) -> str:
    """Who has the lock, as far as that is known: `pid 4711 on bench-1`, `a process of bench-2, or of another user`."""
    pid = _holder(run.path / TURNS)
    if pid is not None:
        return f"pid {pid} on {platform.node()}"
    try:
        host = run.read_plan().host.get("name")
    except UsageError:
        host = None
    return f"a process of {host or 'another host'}, or of another user"


def _holder(path: Path) -> int | None:
    """Number of the process with the lock; None: it is not of this host or user, or the system doesn't tell."""
    try:
        seen = path.stat()
        # `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF`. Devices of layered file systems have other numbers there.
        words = [line.split() for line in _LOCKS.read_text("ascii").splitlines()]
        pids = {int(one[4]) for one in words if one[1] == "FLOCK" and one[5].rpartition(":")[2] == str(seen.st_ino)}
    except (OSError, ValueError, IndexError):
        return None
    return next((pid for pid in sorted(pids) if _has_open(pid, seen)), None)


def _has_open(pid: int, file: os.stat_result) -> bool:
    with contextlib.suppress(OSError):  # of another user, or gone
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.path.samestat(one.stat(), file):
                    return True
    return False
