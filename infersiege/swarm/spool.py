"""A worker's records on their way home: kept on disk and in memory until the master has acknowledged them.

    <directory>/journal.jsonl   a line per session taken and per turn started
    <directory>/segment-N.jsonl rows of turns.jsonl; N counts up from 0; removed when acknowledged

Lines are written with one unbuffered write each, so a killed worker loses nothing that it had closed (a crashed host
may lose what its page cache held). The spool lies outside the run directory: a full disk there must not take the
records along.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from infersiege.records import OpenTurn, Segment, TurnRecord

_encode = msgspec.json.Encoder().encode


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
        directory.mkdir(parents=True, exist_ok=True)
        self._journal = self._open(directory / "journal.jsonl")

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


def remove_spool(directory: Path) -> None:
    """Remove a spool's files, and its directory unless something else lies in it."""
    for path in directory.glob("*.jsonl"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        directory.rmdir()


def leftover_segments(directory: Path) -> Iterator[tuple[int, bytes]]:
    """(sequence, whole lines) that a dead worker left behind, in order. A torn last line is dropped."""
    numbered = sorted((int(path.stem.partition("-")[2]), path) for path in directory.glob("segment-*.jsonl"))
    for sequence, path in numbered:
        lines = path.read_bytes()
        yield sequence, lines[: lines.rfind(b"\n") + 1]


def read_journal(directory: Path) -> Iterator[JournalLine]:
    """The journal of a dead worker; a torn last line is dropped."""
    path = directory / "journal.jsonl"
    if not path.exists():
        return
    decoder = msgspec.json.Decoder(JournalLine)
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield decoder.decode(line)
