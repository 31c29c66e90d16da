"""The bytes of trace files as they are read: packed ones and folders are unpacked once, into a file without a name."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import zstandard

from infersiege.errors import TraceError
from infersiege.traces.files.foreign import START_BYTES, foreign
from infersiege.traces.files.kept_file import WINDOW_BYTES, KeptFile, is_of_spool, new_spool, unchanged, unreadable
from infersiege.traces.files.parquet import write_rows

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_PIECE_BYTES = 1 << 14
"""Of a packed file at once: what comes out of it is held, and may be ten thousand times as much."""

_PACKED_SUFFIXES = frozenset({".gz", ".zst"})
_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson", ".traj", ".parquet", *_PACKED_SUFFIXES})
"""Of files in a folder; others (licences, notes) are passed over."""
_TABLE = ".csv"

_LONGEST_HEADER = 1 << 16


class Extent(NamedTuple):
    """Where one file's rows lie in the unpacked bytes."""

    start: int
    end: int
    lines_before: int = 0
    """Lines of the file that are no rows: 1 where a folder's CSV files repeat the header."""


class Unpacked(NamedTuple):
    file: KeptFile
    starts: Sequence[int]
    """First byte of each file."""
    extents: Sequence[Extent]
    """Of each file, without its byte order mark."""
    digests: Sequence[str] | None
    """SHA-256 of each file as it lies there, read in the same pass; None: the bytes are the file's own."""


def files_in(folder: Path) -> tuple[Path, ...]:
    """Trace files of a folder, at any depth, by name. CSV files are passed over where there are others.

    Raises TraceError where there is none.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix in {*_SUFFIXES, _TABLE} and path.is_file())
    if not files:
        wanted = ", ".join(sorted({*_SUFFIXES, _TABLE}))
        raise TraceError(f"{folder}: no trace file in this folder", hint=f"looked for {wanted}")
    return tuple(path for path in files if not is_table(path)) or tuple(files)


def is_table(path: Path) -> bool:
    """By its name it is a CSV file, packed or not."""
    return (path.with_suffix("") if path.suffix in _PACKED_SUFFIXES else path).suffix == _TABLE


def unpacked(files: Sequence[Path]) -> Unpacked:
    """One file, or several one behind the other. Raises TraceError, also for what is no trace whatever its format."""
    if len(files) > 1:
        return _together(files)
    path = files[0]
    with _reading(path), path.open("rb") as file:
        kind = _packing(file)
        if kind is None:
            kept, digests = KeptFile(file, path), None
        else:
            with new_spool(path) as spool:
                digests = (_unpack(path, file, kind, spool),)
            with spool:
                kept = KeptFile(spool, path, ours=True)
    return Unpacked(kept, (0,), (_extent(kept, path, 0, kept.size),), digests)


def _together(files: Sequence[Path]) -> Unpacked:
    starts, digests = [], []
    with new_spool(files[0].parent) as spool:
        for path in files:
            starts.append(spool.tell())
            with _reading(path), path.open("rb") as file:
                digests.append(_unpack(path, file, _packing(file), spool))
    with spool:
        kept = KeptFile(spool, files[0].parent, ours=True)
    ends = [*starts[1:], kept.size]
    extents = [_extent(kept, path, start, end) for path, start, end in zip(files, starts, ends, strict=True)]
    if is_table(files[0]):
        extents = _without_headers(kept, files, extents)
    return Unpacked(kept, starts, extents, digests)


def _extent(kept: KeptFile, path: Path, start: int, end: int) -> Extent:
    """Raises TraceError where the file is of another kind."""
    beginning = kept.read(start, min(start + START_BYTES, end))
    found = foreign(beginning)
    if found is not None:
        raise TraceError(f"{path}: {found.what}", hint=found.hint)
    return Extent(start + len(BYTE_ORDER_MARK) * beginning.startswith(BYTE_ORDER_MARK), end)


def _without_headers(kept: KeptFile, files: Sequence[Path], extents: Sequence[Extent]) -> list[Extent]:
    """The header of a folder's CSV files stands in front of the first one's rows only. Raises TraceError where they
    are not the same."""
    found: list[Extent] = []
    first: tuple[Path, bytes] | None = None
    for path, extent in zip(files, extents, strict=True):
        line, end_of_line, _ = kept.read(extent.start, min(extent.start + _LONGEST_HEADER, extent.end)).partition(b"\n")
        header = line.rstrip()
        if first is None or not header:
            first = first or ((path, header) if header else None)
            found.append(extent)
        elif header == first[1]:
            found.append(Extent(extent.start + len(line) + len(end_of_line), extent.end, lines_before=1))
        else:
            raise TraceError(
                f"{path}:1: its header is not that of {first[0]}",
                hint="CSV files of a folder are read as one table: play others one by one",
            )
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        if is_of_spool(error):
            raise
        raise unreadable(path, error) from error


def _packing(file: IO[bytes]) -> str | None:
    """By content, not by name: `.gz` files get renamed. None: it is not packed."""
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return "gzip"
    # The second is a frame to be passed over, with which files begin that several threads packed.
    if magic == b"\x28\xb5\x2f\xfd" or (magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5):
        return "zstd"
    return "parquet" if magic == b"PAR1" else None


def _unpack(path: Path, file: IO[bytes], kind: str | None, spool: IO[bytes]) -> str:
    """Write what the file holds; returns the SHA-256 of the file itself, of the same state of it. Raises TraceError."""
    with unchanged(file, path):
        if kind == "parquet":
            write_rows(path, file, spool)
        else:
            for piece in _pieces(file, kind):
                spool.write(piece)
        file.seek(0)
        digest = hashlib.sha256()
        for piece in _pieces(file, None):
            digest.update(piece)
        return digest.hexdigest()


def _pieces(file: IO[bytes], kind: str | None) -> Iterable[bytes]:
    if kind == "zstd":
        return _frames(file)
    source = gzip.GzipFile(fileobj=file) if kind == "gzip" else file
    return iter(lambda: source.read(WINDOW_BYTES), b"")


def _frames(file: IO[bytes]) -> Iterator[bytes]:
    """Frame by frame, since readers of a whole stream don't tell that its last frame is cut."""
    frame = None
    while data := file.read(_PIECE_BYTES):
        while data:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(data)
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("the Zstandard file is cut: its last frame has no end")
