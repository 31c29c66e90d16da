"""A trace file on disk: its rows with their places, however it is packed; its hash; the head that tells the format.

Memory stays small whatever the file's size: a plain file is read in pieces, a packed one (.gz, .zst, .parquet, told by
content) is unpacked once into a nameless temporary file, and rows are byte ranges that are decoded when they are asked
for. A file that others change meanwhile is told: no row is of another state of it than its hash.
"""

from __future__ import annotations

import hashlib
import mmap
import stat
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from infersiege.errors import TraceError
from infersiege.traces.files.array_scanner import ArrayError, ArrayScanner
from infersiege.traces.files.head import HEAD_TEXT_BYTES, Head
from infersiege.traces.files.kept_file import WINDOW_BYTES, KeptFile, new_spool
from infersiege.traces.files.unpacked import BYTE_ORDER_MARK, Extent, Unpacked, files_in, unpacked
from infersiege.traces.files.values import decode_json, not_json

__all__ = ["BYTE_ORDER_MARK", "IS_FOLDER", "MOST_ROW_BYTES", "Row", "Source", "is_missing", "why_unreadable"]

HEAD_BYTES = 1 << 18
"""What `sniff` functions see of a file, and more where its first line is longer."""

MOST_ROW_BYTES = 64 << 20
"""Of a row, an element of an array, or a document: decoded it takes several times as much."""


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


IS_FOLDER = "is a directory, not a file"
"""`why_unreadable` of a folder."""


def is_missing(path: Path) -> bool:
    """Nothing has this name. A link that leads nowhere, and a name that no file can have, are something."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def why_unreadable(path: Path) -> str | None:
    """Why a path is no file to read from, as the end of a sentence; None: it is one.

    Only regular files (and links to them) are: a pipe can be read once and may never end, a device ends never.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except ValueError as error:  # a NUL in the name
        return f"cannot be read: {error}"
    if stat.S_ISREG(mode):
        return None
    return f"is {next((kind for test, kind in _KINDS if test(mode)), 'no regular file')}, not a file"


class Row(NamedTuple):
    """Where a row of a file lies."""

    line: int
    """1-based line; of an element of a JSON array: its 0-based index."""
    start: int
    """First byte, in the unpacked file."""
    end: int


class Source:
    """One trace file, or a folder of them as if they were one. Nothing is read before it is asked for; errors of
    reading are TraceErrors."""

    def __init__(self, path: Path, *, window_bytes: int = WINDOW_BYTES) -> None:
        """`window_bytes`: what is read at once by who reads it through."""
        self.path = path
        self._window_bytes = window_bytes
        self._data: mmap.mmap | None = None
        self._sha256: str | None = None
        self._files: tuple[Path, ...] = (path,)
        self._name = str(path)
        """Of the only file, for `place`, which is asked for with each row; empty where a folder is read."""
        self._window, self._window_at, self._window_end = b"", 0, 0
        """What was read last by `rows` and `elements`, whose rows are mostly asked for at once."""
        if is_missing(path):
            raise TraceError(
                f"{path}: no such trace file",
                hint="paths are relative to the plan file; built-in traces start with builtin:",
            )
        reason = why_unreadable(path)
        if reason == IS_FOLDER:
            self._files, self._name = files_in(path), ""
        elif reason is not None:
            raise TraceError(f"{path}: {reason}", hint="what comes through a pipe must be saved first")

    def sha256(self) -> str:
        """Of the file as it lies there; of a folder, of its files' hashes.

        Of a packed file and a folder it is computed while they are unpacked, of a plain file from the descriptor that
        rows are read from: it is of the bytes that are played, or the file was changed and reading says so.
        """
        if self._sha256 is None:
            digests = self._unpacked.digests or (self._digest(),)
            whole = "".join(f"{path.name} {digest}\n" for path, digest in zip(self._files, digests, strict=True))
            self._sha256 = digests[0] if len(digests) == 1 else hashlib.sha256(whole.encode()).hexdigest()
        return self._sha256

    def head(self) -> Head:
        """Of the (first) file that is not blank. Of a first line that is too long for a row, or a long array, only the
        beginning."""
        _, start, end = self.begin()
        data = self._kept.read(start, min(start + HEAD_BYTES, end))
        stop = start + len(data)
        if b"\n" in data or stop == end:
            return Head(data)
        most = HEAD_TEXT_BYTES if data.lstrip()[:1] == b"[" else MOST_ROW_BYTES
        stop = self._line_end(stop, min(end, start + most))
        if stop < end and stop == start + most:
            return Head(self._kept.read(start, min(stop, start + HEAD_TEXT_BYTES)), cut=True)
        return Head(self._kept.read(start, stop))

    def begin(self) -> Row:
        """The first file that is not blank, as one row; line 1. Where all are, the first one."""
        for row in self.documents():
            if self._kept.read(row.start, min(row.start + HEAD_BYTES, row.end)).strip():
                return row
        return next(self.documents())

    def data(self) -> mmap.mmap | bytes:
        """The whole unpacked file; a plain one is copied for it, since nobody must change it."""
        kept = self._kept
        if self._data is None and kept.size > _SMALL:
            if kept.ours:
                self._data = mmap.mmap(kept.fileno(), 0, access=mmap.ACCESS_READ)
            else:
                with new_spool(self.path) as spool:
                    for _, data in kept.windows(0, kept.size):
                        spool.write(data)
                with spool:
                    self._data = mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ)
        return kept.read(0, kept.size) if self._data is None else self._data

    def holds(self, what: bytes) -> bool:
        """Whether these bytes stand anywhere in the unpacked file."""
        before = b""
        for _, data in self._kept.windows(0, self._kept.size, self._window_bytes):
            if what in before + data:
                return True
            before = (before + data)[1 - len(what) :] if len(what) > 1 else b""
        return False

    def file(self, row: Row) -> Path:
        """The file that a row is of."""
        return self._files[bisect_right(self._unpacked.starts, row.start) - 1]

    def place(self, row: Row) -> str:
        """`path:line`, as messages about a row begin."""
        return f"{self._name or self.file(row)}:{row.line}"

    def where(self, row: Row) -> str:
        """The same for warnings about this trace: only the line, but where a folder is read."""
        return f"line {row.line}" if self._name else self.place(row)

    def rows(self) -> Iterator[Row]:
        """Lines that are not empty. LF and CR LF end a line, which are no part of the row, nor is a byte order mark."""
        try:
            for extent in self._extents:
                yield from self._rows_of(extent)
        finally:
            self._hold(0, b"")

    def documents(self) -> Iterator[Row]:
        """Each file as one row (line 1), for formats with one JSON document a file."""
        for extent in self._extents:
            yield Row(1, extent.start, extent.end)

    def elements(self) -> Iterator[Row]:
        """Elements of the JSON array that the file is. Raises TraceError where it is none, or is not whole; what is
        wrong inside an element is told when it is decoded."""
        try:
            for whole in self.documents():
                scanner = ArrayScanner()
                try:
                    for at, data in self._kept.windows(whole.start, whole.end, self._window_bytes):
                        self._hold(at, data)
                        for element in scanner.feed(at, data):
                            yield Row(*element)
                    scanner.finish()
                except ArrayError as error:
                    raise TraceError(
                        f"{self.place(whole)}: is no JSON array ({error})", hint="is the file whole?"
                    ) from None
        finally:
            self._hold(0, b"")

    def raw(self, row: Row) -> bytes:
        """Raises TraceError where it is longer than MOST_ROW_BYTES, or the file was changed."""
        _, start, end = row
        at = self._window_at
        if start >= at and end <= self._window_end:
            return self._window[start - at : end - at]
        if end - start > MOST_ROW_BYTES:
            raise TraceError(
                f"{self.place(row)}: is {(end - start) / (1 << 20):,.0f} MiB long, a row has at most "
                f"{MOST_ROW_BYTES >> 20} MiB",
                hint="make sessions shorter; a file of many sessions is JSON Lines or one array of them",
            )
        return self._kept.read(start, end)

    def json(self, row: Row) -> Any:
        """The decoded row. Raises TraceError with its place."""
        raw = self.raw(row)
        try:
            return decode_json(raw)
        except ValueError as error:
            place, reason = self.place(row), str(error)
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise _not_utf_8(place, error) from None
        raise not_json(place, reason)

    def lines(self) -> Iterator[tuple[Row, str]]:
        """(place, text without its line end) of lines that are not empty, for CSV.

        Raises TraceError where the text is no UTF-8.
        """
        for row in self.rows():
            try:
                yield row, self.raw(row).decode()
            except UnicodeDecodeError as error:
                raise _not_utf_8(self.place(row), error) from None

    def _rows_of(self, extent: Extent) -> Iterator[Row]:
        start, last, line = extent
        while start < last:
            data = self._kept.read(start, min(start + self._window_bytes, last))
            self._hold(start, data)
            size, at, find = len(data), 0, data.find
            while at < size:
                found = find(b"\n", at)
                if found < 0:
                    if start + size < last:
                        break
                    found = size
                line += 1
                end = found - (data[found - 1 : found] == b"\r")
                if end > at and not (end - at < _SHORT and data[at:end].isspace()):
                    yield Row(line, start + at, start + end)
                at = found + 1
            if at:
                start += at
                continue
            # A row that is longer than what is read at once.
            line += 1
            stop = self._line_end(start + size, last)
            end = stop - (self._kept.read(stop - 1, stop) == b"\r")
            if end > start and not (end - start < _SHORT and self._kept.read(start, end).isspace()):
                yield Row(line, start, end)
            start = stop + 1

    def _hold(self, at: int, data: bytes) -> None:
        self._window, self._window_at, self._window_end = data, at, at + len(data)

    def _line_end(self, start: int, last: int) -> int:
        """Place of the first line feed from `start` on, or `last`."""
        for at, data in self._kept.windows(start, last, self._window_bytes):
            found = data.find(b"\n")
            if found >= 0:
                return at + found
        return last

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for _, data in self._kept.windows(0, self._kept.size):
            digest.update(data)
        return digest.hexdigest()

    @cached_property
    def _unpacked(self) -> Unpacked:
        return unpacked(self._files)

    @cached_property
    def _kept(self) -> KeptFile:
        return self._unpacked.file

    @cached_property
    def _extents(self) -> tuple[Extent, ...]:
        return tuple(self._unpacked.extents)


_SHORT = 64
"""Longer lines are not looked at for being blank."""

_SMALL = 16 << 20
"""What `data` gives as it is read."""


def _not_utf_8(place: str, error: UnicodeDecodeError) -> TraceError:
    return TraceError(f"{place}: is not UTF-8 ({error.reason})", hint="convert the file to UTF-8")
