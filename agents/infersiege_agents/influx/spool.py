"""The spool: points on disk that wait for the database. The directory is the only state; there is no index.

    <spool>/<source>-<pid>-<start>/       one writer; owned by whoever holds the lock: the writer and its sender
        lock                              flock; free when both are dead
        meta.json                         which database the points are for (no token)
        000000000007.open                 being written; a dead writer's may end in half a line
        000000000007-998.lp               sealed by rename: segment 7 with 998 lines; deleted when the database has it
        000000000007-2.bad, ….why         2 lines of segment 7 that the database refused for good, and its words
        forgotten.json                    how many such lines were removed, because they took too much room
        counts                            what the writer has taken and written down (influx.losses)
        status.json, sender.log           what the sender has to tell

So acknowledged = sealed - what is left, and a kill -9 at any moment leaves nothing that can't be read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from infersiege_agents.errors import AgentError
from infersiege_agents.influx import losses
from infersiege_agents.influx.target import Target

BLOCK_BYTES = 4096
"""What a small file takes on disk."""
_SEGMENT = re.compile(r"(\d{12})-(\d+)\.(lp|bad|why)")
_OPEN = re.compile(r"(\d{12})\.open")
_WRITER = re.compile(r"[A-Za-z0-9_.]+-\d+-\d+")
_OURS = re.compile(
    r"lock|counts|(meta|status|forgotten)\.json(\.tmp)?|sender\.log|\d{12}-\d+\.(lp|bad|why)(\.tmp)?|\d{12}\.open"
)
"""Files that a writer or its sender makes. A directory that holds anything else is never removed."""
_ABANDONED_S = 60.0
"""A directory that nobody finished to set up is removed when it is older than this."""


class Segment(NamedTuple):
    """A sealed file of lines."""

    directory: Path
    sequence: int
    points: int

    @property
    def path(self) -> Path:
        return self.directory / f"{self.sequence:012d}-{self.points}.lp"


class Forgotten(NamedTuple):
    """Refused lines that were removed: how many in all, and the segments of the last removal.

    A `.bad` file of those segments is about to be deleted and is counted here.
    """

    lines: int = 0
    sequences: frozenset[int] = frozenset()


class Listing(NamedTuple):
    """What one writer's directory holds."""

    waiting: list[Segment]
    """Oldest first."""
    rejected: int
    """Lines that were refused for good, of segments that are done with."""
    set_aside_bytes: int = 0
    """Disk that refused lines take."""

    @property
    def spooled(self) -> int:
        return sum(segment.points for segment in self.waiting)


def spool_directory(environ: Mapping[str, str]) -> Path:
    """Where points wait on this host: $INFERSIEGE_TELEMETRY_SPOOL, else below $XDG_STATE_HOME, else ~/.local/state."""
    if own := environ.get("INFERSIEGE_TELEMETRY_SPOOL"):
        return Path(own)
    state = environ.get("XDG_STATE_HOME", "")
    # The specification of XDG directories: a relative path is to be ignored.
    base = Path(state) if state.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".local" / "state"
    return base / "infersiege" / "telemetry"


def create(
    spool: Path, source: str, target: Target, started_ns: int, *, named_by: str | None = None
) -> tuple[Path, int]:
    """A writer's own directory, locked: (path, lock). Raises AgentError when the spool can't be used.

    It gets its name when it is complete, so that nobody takes it for one that a dead writer left; and it is on the disk
    for good: points that survive a power cut are of no use without their database. `named_by` is the option or setting
    that named the spool, for the hint; None: nothing did, or the environment.
    """
    name = f"{re.sub(r'[^A-Za-z0-9_.]+', '_', source) or 'writer'}-{os.getpid()}-{started_ns}"
    try:
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = spool / f".{name}"
        draft.mkdir(mode=0o700)
        lock = claim(draft)
        if lock is None:
            raise OSError("its lock is held by another process")
        write_owner(draft, target)
        draft.rename(spool / name)
        sync(spool)
    except OSError as error:
        seen = "is a file" if isinstance(error, FileExistsError) and not spool.is_dir() else error.strerror or error
        raise AgentError(
            f"telemetry spool {spool}: {seen}",
            hint=f"points wait there while the database is away; set {named_by or 'INFERSIEGE_TELEMETRY_SPOOL'} to a "
            "directory on a local disk that this user may write to",
        ) from error
    return spool / name, lock


def claim(directory: Path) -> int | None:
    """The directory's lock as a descriptor; None when another process has it, or when it was removed meanwhile.

    Raises OSError when the file system has no locks or the directory can't be written to.
    """
    try:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise
    if os.fstat(lock).st_nlink == 0:  # its owner finished and removed it between our open and our lock
        os.close(lock)
        return None
    return lock


def owner(directory: Path) -> Target | None:
    """The database that a directory's points are for, without its token; None when that can't be read."""
    try:
        meta = json.loads((directory / "meta.json").read_bytes())
        return Target(url=str(meta["url"]), org=str(meta["org"]), bucket=str(meta["bucket"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def living(directory: Path) -> bool:
    """Whether its writer or its sender has the lock. Raises OSError when that can't be told."""
    try:
        lock = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def write_owner(directory: Path, target: Target) -> None:
    """Says which database a directory's points are for. The caller holds the lock. Raises OSError."""
    meta = {"version": 1, "url": target.url, "org": target.org, "bucket": target.bucket}
    write_atomically(directory / "meta.json", json.dumps(meta).encode(), durable=True)


def writers(spool: Path) -> Iterator[Path]:
    """Directories of writers below the spool, the one that was started first at first.

    What others keep there is left alone. Raises OSError when the spool can't be read.
    """
    try:
        with os.scandir(spool) as entries:
            names = [
                entry.name for entry in entries if _WRITER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return
    names.sort(key=lambda name: (int(name.rpartition("-")[2]), name))
    yield from (spool / name for name in names if (spool / name / "meta.json").is_file())


def listing(directory: Path) -> Listing:
    """What waits in a writer's directory. Raises OSError when it can't be read."""
    waiting: list[Segment] = []
    rejected: dict[int, int] = {}
    set_aside_bytes = 0
    forgotten = Forgotten()
    with os.scandir(directory) as entries:
        for entry in entries:
            if found := _SEGMENT.fullmatch(entry.name):
                if found[3] == "lp":
                    waiting.append(Segment(directory, int(found[1]), int(found[2])))
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed at this moment
                    set_aside_bytes += blocks(entry.stat(follow_symlinks=False).st_size)
                if found[3] == "bad":
                    rejected[int(found[1])] = int(found[2])
            elif entry.name == "forgotten.json":
                forgotten = read_forgotten(directory)
    waiting.sort(key=lambda segment: segment.sequence)
    for segment in waiting:  # killed between setting lines aside and deleting the segment: it counts as waiting
        rejected.pop(segment.sequence, None)
    kept = sum(lines for sequence, lines in rejected.items() if sequence not in forgotten.sequences)
    return Listing(waiting, kept + forgotten.lines, set_aside_bytes)


def read_forgotten(directory: Path) -> Forgotten:
    """An empty one when nothing was removed yet."""
    try:
        found = json.loads((directory / "forgotten.json").read_bytes())
        return Forgotten(int(found["lines"]), frozenset(map(int, found["sequences"])))
    except (OSError, ValueError, KeyError, TypeError):
        return Forgotten()


def disk_use(spool: Path, besides: Path) -> int:
    """Bytes below the spool, without one writer's directory; small files count with the block that they take."""
    total = 0
    for directory in writers(spool):
        if directory != besides:
            with contextlib.suppress(OSError), os.scandir(directory) as entries:
                total += sum(blocks(entry.stat(follow_symlinks=False).st_size) for entry in entries)
    return total


def blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def recover(directory: Path) -> None:
    """Seals what a dead writer left open; half a line at its end is cut off. The caller holds the lock."""
    for path in sorted(directory.glob("*.open")):
        if not (found := _OPEN.fullmatch(path.name)):
            continue
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            path.unlink()
            continue
        os.truncate(path, len(whole))
        path.rename(Segment(directory, int(found[1]), whole.count(b"\n")).path)


def drop_waiting(directory: Path) -> None:
    """Removes the points that wait in a dead writer's directory, and the count of those that it lost.

    The caller holds the lock. Raises OSError.
    """
    (directory / losses.NAME).unlink(missing_ok=True)
    for path in directory.iterdir():
        if _OPEN.fullmatch(path.name) or ((found := _SEGMENT.fullmatch(path.name)) and found[3] == "lp"):
            path.unlink()


def remove_finished(directory: Path) -> bool:
    """Removes a directory in which nothing waits, nothing was set aside, and no loss is to be told of.

    The caller holds the lock.
    """
    try:
        if losses.lost(directory):
            return False
        files = list(directory.iterdir())
        if any(path.suffix in (".lp", ".open", ".bad") or not _OURS.fullmatch(path.name) for path in files):
            return False
        for path in files:
            if path.name != "lock":
                path.unlink()
        (directory / "lock").unlink(missing_ok=True)
        directory.rmdir()
    except OSError:
        return False
    return True


def remove_abandoned(spool: Path) -> None:
    """Removes directories whose writer died while it set them up."""
    with contextlib.suppress(OSError):
        for draft in spool.glob(".*-*-*"):
            if not _WRITER.fullmatch(draft.name[1:]) or not all(_OURS.fullmatch(path.name) for path in draft.iterdir()):
                continue
            if time.time() - draft.stat().st_mtime < _ABANDONED_S:
                continue
            if (lock := claim(draft)) is not None:
                remove_finished(draft)
                os.close(lock)


def write_atomically(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Readers see the old content or the new one; `durable`: also after a power cut. Raises OSError."""
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_bytes(content)
    if durable:
        sync(draft)
    draft.replace(path)
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Onto the disk: survives a power cut. Takes as long as the disk takes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SegmentFile:
    """The segment that is being written."""

    def __init__(self, directory: Path, sequence: int) -> None:
        """Raises OSError."""
        self.directory = directory
        self.sequence = sequence
        self.points = 0
        self.size_bytes = 0
        self._path = directory / f"{sequence:012d}.open"
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def append(self, lines: bytes, points: int) -> None:
        """All of it or, with an OSError, nothing."""
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, self.size_bytes)
            os.lseek(self._descriptor, self.size_bytes, os.SEEK_SET)
            raise
        self.points += points
        self.size_bytes += len(lines)

    def seal(self) -> Segment | None:
        """Hands the segment to the sender; None when it is empty and was removed. Raises OSError; may be repeated."""
        segment = Segment(self.directory, self.sequence, self.points)
        if self.points:
            self._path.rename(segment.path)
        else:
            self._path.unlink(missing_ok=True)
        self.close()
        return segment if self.points else None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
