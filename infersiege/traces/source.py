"""A trace file on disk: its rows with their places, however it is packed; its hash; the head that tells the format.

Memory stays small whatever the file's size: a plain file is mapped, a packed one (.gz, .zst, .parquet, told by content)
is unpacked once into a nameless temporary file, and rows are byte ranges that are decoded when they are asked for.
"""

from __future__ import annotations

import gzip
import hashlib
import mmap
import shutil
import stat
import tempfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
import zstandard

from infersiege.errors import TraceError
from infersiege.traces.head import Head
from infersiege.traces.parquet import parquet_rows
from infersiege.traces.values import decode_json, not_json

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

HEAD_BYTES = 1 << 18
"""What `sniff` functions see of a file, and more where its first line is longer."""

_LONGEST_LINE = 64 << 20
_LONGEST_ARRAY = 4 << 20
"""Of a line that is an array: longer ones are whole files, whose first elements tell the format."""


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

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data: mmap.mmap | bytes | None = None
        self._sha256: str | None = None
        self._files: tuple[Path, ...] = (path,)
        self._starts: list[int] = [0]
        """First byte of each file in the unpacked data."""
        if is_missing(path):
            raise TraceError(
                f"{path}: no such trace file",
                hint="paths are relative to the plan file; built-in traces start with builtin:",
            )
        reason = why_unreadable(path)
        if reason == IS_FOLDER:
            self._files = _files_in(path)
        elif reason is not None:
            raise TraceError(f"{path}: {reason}", hint="what comes through a pipe must be saved first")

    def sha256(self) -> str:
        """Of the file as it lies there (a packed file is not unpacked for it); of a folder, of its files' hashes."""
        if self._sha256 is None:
            try:
                digests = [_digest(path) for path in self._files]
            except OSError as error:
                raise _unreadable(self.path, error) from error
            whole = "".join(f"{path.name} {digest}\n" for path, digest in zip(self._files, digests, strict=True))
            self._sha256 = digests[0] if len(digests) == 1 else hashlib.sha256(whole.encode()).hexdigest()
        return self._sha256

    def head(self) -> Head:
        """Of the (first) file."""
        data = self.data()
        size = self._starts[1] if len(self._starts) > 1 else len(data)
        end = min(size, HEAD_BYTES)
        if data.find(b"\n", 0, end) < 0:
            longest = _LONGEST_ARRAY if data[:end].removeprefix(BYTE_ORDER_MARK).lstrip()[:1] == b"[" else _LONGEST_LINE
            found = data.find(b"\n", end, min(size, longest))
            end = min(size, longest) if found < 0 else found
        return Head(data[:end])

    def data(self) -> mmap.mmap | bytes:
        """The unpacked file. A map of it where it is not empty: slices copy, the whole does not."""
        if self._data is None:
            try:
                with self._unpacked() as file:
                    size = file.seek(0, 2)
                    self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
                raise _unreadable(self.path, error) from error
        return self._data

    def place(self, row: Row) -> str:
        """`path:line`, as messages about a row begin."""
        return f"{self._files[bisect_right(self._starts, row.start) - 1]}:{row.line}"

    def rows(self) -> Iterator[Row]:
        """Lines that are not empty. LF and CR LF end a line, which are no part of the row, nor is a byte order mark."""
        data = self.data()
        find = data.find
        for begin, size in self._extents():
            start, line = begin, 0
            while start < size:
                line += 1
                found = find(b"\n", start, size)
                end = size if found < 0 else found
                following = end + 1
                if data[end - 1 : end] == b"\r":
                    end -= 1
                if end > start and not (end - start < _SHORT and data[start:end].isspace()):
                    yield Row(line, start, end)
                start = following

    def documents(self) -> Iterator[Row]:
        """Each file as one row (line 1), for formats with one JSON document a file."""
        for start, end in self._extents():
            yield Row(1, start, end)

    def elements(self) -> Iterator[Row]:
        """Elements of the JSON array that the file is. Raises TraceError where it is none."""
        view = memoryview(self.data())
        # The elements are views of the map: where they begin is their distance from its first byte.
        origin = _address(view) if len(view) else 0
        for start, end in self._extents():
            try:
                raws = msgspec.json.decode(view[start:end], type=list[msgspec.Raw])
            except (msgspec.DecodeError, RecursionError) as error:
                reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
                place = self.place(Row(1, start, end))
                raise TraceError(f"{place}: is no JSON array ({reason})", hint="is the file whole?") from None
            for index, raw in enumerate(raws):
                part = memoryview(raw)
                begin = _address(part) - origin
                yield Row(index, begin, begin + len(part))

    def raw(self, row: Row) -> bytes:
        return self.data()[row.start : row.end]

    def json(self, row: Row) -> Any:
        """The decoded row. Raises TraceError with its place."""
        raw = self.data()[row.start : row.end]
        try:
            return decode_json(raw)
        except ValueError as error:
            place, reason = self.place(row), str(error)
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise TraceError(f"{place}: is not UTF-8 ({error.reason})", hint="convert the file to UTF-8") from None
        raise not_json(place, reason)

    def lines(self) -> Iterator[tuple[int, str]]:
        """(1-based number, text without its line end) of lines that are not empty, for CSV.

        Raises TraceError where the text is no UTF-8.
        """
        data = self.data()
        for row in self.rows():
            try:
                yield row.line, data[row.start : row.end].decode()
            except UnicodeDecodeError as error:
                raise TraceError(
                    f"{self.place(row)}: is not UTF-8 ({error.reason})", hint="convert the file to UTF-8"
                ) from error

    def _extents(self) -> Iterator[tuple[int, int]]:
        """First byte and end of each file, without its byte order mark."""
        data = self.data()
        for start, end in zip(self._starts, [*self._starts[1:], len(data)], strict=True):
            yield start + 3 * (data[start : start + 3] == BYTE_ORDER_MARK), end

    def _unpacked(self) -> IO[bytes]:
        if len(self._files) == 1:
            return _unpack(self._files[0])
        spool = _spool()
        self._starts.clear()
        for path in self._files:
            self._starts.append(spool.tell())
            with _unpack(path) as file:
                file.seek(0)
                shutil.copyfileobj(file, spool, 1 << 20)
        spool.flush()
        return spool


_SHORT = 64
"""Longer lines are not looked at for being blank."""

_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson", ".traj", ".parquet", ".gz", ".zst"})
"""Of files in a folder; others (licences, notes, CSV files, which have headers) are passed over."""


def _files_in(folder: Path) -> tuple[Path, ...]:
    """Raises TraceError where there is none."""
    files = tuple(sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file()))
    if not files:
        raise TraceError(f"{folder}: no trace file in this folder", hint=f"looked for {', '.join(sorted(_SUFFIXES))}")
    return files


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(path: Path) -> IO[bytes]:
    """By content, not by name: `.gz` files get renamed."""
    file = path.open("rb")
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return _spooled(file, gzip.GzipFile(fileobj=file))
    if magic == b"\x28\xb5\x2f\xfd":
        return _spooled(file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    if magic == b"PAR1":
        file.close()
        return parquet_rows(path)
    return file


def _spool() -> IO[bytes]:
    """A file without a name: it is gone when it is closed, however this process ends."""
    return tempfile.TemporaryFile(prefix="infersiege-trace-")


def _spooled(file: IO[bytes], unpacked: Any) -> IO[bytes]:
    spool = _spool()
    try:
        with file, unpacked:
            shutil.copyfileobj(unpacked, spool, 1 << 20)
        spool.flush()
    except BaseException:
        spool.close()
        raise
    return spool


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0])


def _unreadable(path: Path, error: Exception) -> TraceError:
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return TraceError(f"{path}: cannot be read ({detail})", hint="check the file's permissions and that it is whole")
