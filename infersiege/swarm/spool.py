"""A worker's records on their way home: kept on disk and in memory until the master has acknowledged them.

    <directory>/spool.json      whose it is: run, worker, process; once it stopped, its farewell (`SpoolInfo`)
    <directory>/plan.json       the run's plan as the worker was given it (without secrets)
    <directory>/journal.jsonl   a line per session taken and per turn started
    <directory>/segment-N.jsonl rows of turns.jsonl; N counts up from 0; removed when acknowledged

Lines are written with one unbuffered write each, so a killed worker loses nothing that it had closed (a crashed host
may lose what its page cache held). The spool lies outside the run directory: a full disk there must not take the
records along. What is left of it after a crash comes home with `infersiege recover` (swarm.recovery).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shlex
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from infersiege.records import Bye, OpenTurn, Segment, TurnRecord
from infersiege.rundir.rows import UNREADABLE
from infersiege.swarm.spool_info import SpoolInfo
from infersiege.swarm.untrusted import open_own, read_own

SPOOL_VARIABLE: Final = "INFERSIEGE_SPOOL"
PREFIX: Final = "infersiege-spool-"
INFO: Final = "spool.json"
PLAN_FILE: Final = "plan.json"
JOURNAL: Final = "journal.jsonl"

_encode_plain = msgspec.json.Encoder().encode


def _encode(row: msgspec.Struct) -> bytes:
    """JSON of a row, whatever texts it holds: half a pair of surrogates in one must not cost the turn."""
    try:
        return _encode_plain(row)
    except UnicodeEncodeError:
        return _encode_plain(_readable(msgspec.to_builtins(row)))


def _readable(value: Any) -> Any:
    """Plain values with U+FFFD for what is in no UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list | tuple) else value


def spool_root(environ: Mapping[str, str]) -> Path:
    """Where spools lie: INFERSIEGE_SPOOL, or the temporary directory."""
    return Path(environ.get(SPOOL_VARIABLE) or tempfile.gettempdir())


def spool_path(worker: str, environ: Mapping[str, str]) -> Path:
    """A new spool's directory. No two are alike: process numbers come again, in containers at every start."""
    plain = re.sub(r"[^\w.-]+", "-", worker)[:60]
    return spool_root(environ) / f"{PREFIX}{os.getpid()}-{plain}-{secrets.token_hex(4)}"


class JournalLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`taken` and `branches` on a session's first line; later lines only say which turn started."""

    session_id: str
    taken: OpenTurn | None = None
    branches: tuple[OpenTurn, ...] = ()
    first_turn: int = 0
    """Of the line of the session whose turn started."""
    started: int | None = None
    request_id: str | None = None
    due_ns: int | None = None
    attempt_ns: int | None = None
    channel: str | None = None
    """Where a hybrid channel sent the turn; None: to the channel of the first line."""


class Spool:
    """Writer's side."""

    def __init__(self, directory: Path, worker: str) -> None:
        self.directory = directory
        self.worker = worker
        self.rows_written = 0
        self.disk_error: str | None = None
        """First failure to write; from then on rows live in memory only."""
        self._sequence = 0
        self._lines: list[bytes] = []
        self._unacknowledged: dict[int, Segment] = {}
        self._segment: int | None = None
        self._info: SpoolInfo | None = None
        _make_private(directory)
        self._journal = self._open(directory / JOURNAL)
        if self._journal is not None:
            # As long as this process lives: whoever finds the spool sees that it is in use, from any container too.
            with contextlib.suppress(OSError):
                fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def describe(self, info: SpoolInfo, plan: bytes | None = None) -> None:
        """Write whose spool it is, and the run's plan (JSON of plan.schema.Plan). Never raises: see `disk_error`."""
        self._info = info
        if plan is not None:
            self._replace(PLAN_FILE, plan)
        self._replace(INFO, _encode(info))

    def began(self, started_ns: int) -> None:
        """The first arrival is due at `started_ns` (epoch)."""
        if self._info is not None:
            self.describe(msgspec.structs.replace(self._info, started_ns=started_ns))

    def ended(self, bye: Bye, stopped_ns: int) -> None:
        """Every turn that was taken has its record; nobody may have heard this farewell."""
        if self._info is not None:
            self.describe(msgspec.structs.replace(self._info, bye=bye, stopped_ns=stopped_ns))

    def _replace(self, name: str, data: bytes) -> None:
        """Whole or not at all."""
        part = self.directory / f".{name}.part"
        try:
            part.write_bytes(data)
            part.replace(self.directory / name)
        except OSError as error:
            self._failed(error)
            with contextlib.suppress(OSError):
                part.unlink()

    def _open(self, path: Path) -> int | None:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._failed(error)
            return None

    def _failed(self, error: OSError) -> None:
        self.disk_error = self.disk_error or f"{self.directory}: {error.strerror}"

    def _write(self, descriptor: int | None, line: bytes) -> int | None:
        """Append one line; gives the descriptor, or None once the disk takes no more of this file.

        What a failing disk took of the line is cut off: a line after half a line would spoil both for the reader.
        """
        if descriptor is None:
            return None
        taken = 0
        try:
            while taken < len(line):
                taken += os.write(descriptor, line[taken:])
        except OSError as error:
            self._failed(error)
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - taken)
            os.close(descriptor)
            return None
        return descriptor

    def journal(self, line: JournalLine) -> None:
        """Note one line. Never raises and never yields."""
        self._journal = self._write(self._journal, _encode(line) + b"\n")

    def add(self, record: TurnRecord) -> None:
        """Keep one row. Never raises and never yields: it is called while a greenlet is being killed."""
        line = _encode(record) + b"\n"
        if self._segment is None and self.disk_error is None:
            self._segment = self._open(self._path(self._sequence))
        self._segment = self._write(self._segment, line)
        self._lines.append(line)
        self.rows_written += 1

    def cut(self) -> None:
        """Close the segment in work, if it has rows, and queue it for shipping."""
        if not self._lines:
            return
        rows = self._lines
        self._lines = []
        if self._segment is not None:
            os.close(self._segment)
            self._segment = None
        data = zlib.compress(b"".join(rows), level=1)
        segment = Segment(worker=self.worker, sequence=self._sequence, rows=len(rows), data=data)
        self._unacknowledged[self._sequence] = segment
        self._sequence += 1

    def unacknowledged(self) -> list[Segment]:
        """Everything to ship (again), oldest first: at least once; the master drops repeats by sequence."""
        return list(self._unacknowledged.values())

    def acknowledge(self, sequence: int) -> None:
        if self._unacknowledged.pop(sequence, None) is not None:
            self._path(sequence).unlink(missing_ok=True)

    def empty(self) -> bool:
        return not self._lines and not self._unacknowledged

    def leave(self, bye: Bye, stopped_ns: int, *, orphaned: bool) -> str | None:
        """The worker ends: close the spool, and remove it unless somebody may need it.

        `orphaned`: the master is gone, and nobody has heard the farewell. Returns what to tell the user: where the
        spool is and what to do with it; None: it is removed.
        """
        if orphaned or not self.empty():
            self.ended(bye, stopped_ns)
        self.close(remove=not orphaned)
        if not self.directory.exists():
            return None
        run = self._info.run_name if self._info is not None else "the run"
        command = f"infersiege recover RUN_DIRECTORY {shlex.quote(str(self.directory))}"
        if orphaned:
            return (
                f"no word of the master any more: left {run} with its records in {self.directory}; a master on this "
                f"host that still lives takes them from there by itself, otherwise bring them into the run directory "
                f"with: {command}"
            )
        return (
            f"records that the master did not take are in {self.directory}; bring them into the run directory of {run} "
            f"with: {command}"
        )

    def close(self, *, remove: bool) -> None:
        """Close the files; `remove` deletes the spool, which must be empty."""
        for descriptor in (self._journal, self._segment):
            if descriptor is not None:
                os.close(descriptor)
        self._journal = self._segment = None
        if remove and self.empty():
            remove_spool(self.directory)

    def _path(self, sequence: int) -> Path:
        return self.directory / f"segment-{sequence}.jsonl"


def _make_private(directory: Path) -> None:
    """Make the spool's directory, for its owner only. Raises OSError, also for one that somebody else laid out."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    there = directory.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
        raise FileExistsError(17, "something of somebody else lies there", str(directory))
    directory.chmod(0o700)


def remove_spool(directory: Path) -> None:
    """Remove a spool's files, and its directory unless something else lies in it.

    spool.json goes last: what an interrupted removal leaves still says whose it is.
    """
    own = [*directory.glob("*.jsonl"), directory / PLAN_FILE, *directory.glob(".*.part"), directory / INFO]
    for path in own:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        directory.rmdir()


def find_spools(root: Path) -> list[Path]:
    """All spools below a directory, the oldest first; those that can't be looked at are left out."""
    found = []
    for path in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(path.lstat().st_mode):
                found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def read_info(directory: Path) -> SpoolInfo | None:
    """Whose spool it is. None: it does not say (its worker died before it had its part in a run, or the disk was full),
    or what it says was damaged.

    Raises OSError when it can't be looked at.
    """
    try:
        info = msgspec.json.decode(read_own(directory / INFO), type=SpoolInfo)
    except (FileNotFoundError, *UNREADABLE):
        return None
    return info if info.impossible() is None else None


def is_spool_of(directory: Path, run_id: str) -> bool:
    """Whether it is what a worker of this run says: nothing else may be read into a run, or removed, on its word."""
    if directory.is_symlink() or not directory.is_dir() or not directory.name.startswith(PREFIX):
        return False
    try:
        info = read_info(directory)
    except OSError:
        return False
    return info is None or info.run_id == run_id


def in_use(directory: Path, info: SpoolInfo | None) -> bool:
    """Whether the worker that writes the spool still lives: its process is there, or it holds the journal's lock."""
    if info is not None and info.lives():
        return True
    try:
        with open_own(directory / JOURNAL) as journal:
            fcntl.flock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no journal, or a file system without locks: the process tells
        return False
    return False


def leftover_segments(directory: Path) -> Iterator[tuple[int, bytes]]:
    """(sequence, whole lines) that a dead worker left behind, in order. A torn last line is dropped.

    Raises OSError when one can't be read.
    """
    named = ((re.fullmatch(r"segment-([0-9]{1,18})\.jsonl", path.name), path) for path in directory.iterdir())
    for sequence, path in sorted((int(name[1]), path) for name, path in named if name is not None):
        lines = read_own(path)
        yield sequence, lines[: lines.rfind(b"\n") + 1]
