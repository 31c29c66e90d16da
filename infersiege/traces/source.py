"""A trace file on disk: lines with their numbers, plain or gzip, its hash, and the head that tells the format."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from infersiege.errors import TraceError

HEAD_BYTES = 1 << 18
"""What `sniff` functions see of a file, and more where its first line is longer."""

_LONGEST_LINE = 64 << 20


class Head:
    """The first bytes of a file, decoded once for all formats that look at them."""

    def __init__(self, data: bytes) -> None:
        text = data.decode("utf-8-sig", errors="replace")
        self.text = text
        self.first_line = next((line.strip() for line in text.splitlines() if line.strip()), "")
        self.row = _json_or_none(self.first_line)
        """The first line as JSON, None if it is none (or is longer than the head)."""

    def keys(self) -> frozenset[str]:
        """Keys of the first row, where it is an object."""
        return frozenset(self.row) if isinstance(self.row, dict) else frozenset()


class Source:
    """One trace file. Nothing is read before it is asked for; errors of reading are TraceErrors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise TraceError(
                f"{path}: no such trace file",
                hint="paths are relative to the plan file; built-in traces start with builtin:",
            )
        if path.is_dir():
            raise TraceError(f"{path}: is a directory, not a trace file", hint="name the file inside it")

    def sha256(self) -> str:
        """Of the file as it lies there (a gzip file is not unpacked for it)."""
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def head(self) -> Head:
        try:
            with self._open() as file:
                data = file.read(HEAD_BYTES)
                if b"\n" not in data:
                    data += file.readline(_LONGEST_LINE)
                return Head(data)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(self.path, error) from error

    def bytes(self) -> bytes:
        """The whole file, for formats that are one JSON document."""
        try:
            with self._open() as file:
                return file.read()
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(self.path, error) from error

    def lines(self) -> Iterator[tuple[int, str]]:
        """(1-based number, text without its line end); a byte order mark is dropped. LF and CR LF end a line.

        Raises TraceError where the text is no UTF-8.
        """
        number = 0
        try:
            with self._open() as file:
                for number, line in enumerate(file, 1):
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise TraceError(
                f"{self.path}:{number}: is not UTF-8 ({error.reason})", hint="convert the file to UTF-8"
            ) from error
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(self.path, error) from error

    def json_rows(self) -> Iterator[tuple[int, Any]]:
        """(line number, decoded row) of JSON Lines; empty lines are passed over. Raises TraceError with the line."""
        for number, line in self.lines():
            if not line.strip():
                continue
            try:
                yield number, msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise TraceError(
                    f"{self.path}:{number}: is not JSON ({error})",
                    hint="each line must be one whole JSON value; a cut last line means a file copied in part",
                ) from error

    def _open(self) -> io.BufferedReader | gzip.GzipFile:
        """By content, not by name: `.gz` files get renamed."""
        file = self.path.open("rb")
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        if not packed:
            return file
        file.close()
        return gzip.open(self.path, "rb")


def _json_or_none(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _unreadable(path: Path, error: Exception) -> TraceError:
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return TraceError(f"{path}: cannot be read ({detail})", hint="check the file's permissions and that it is whole")


def want_int(row: dict[str, Any], key: str, place: str) -> int:
    """A whole number of at least 0 (3.0 counts as 3). Raises TraceError."""
    value = row.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        seen = "is missing" if key not in row else f"is {str(value)[:40]!r}"
        raise TraceError(f"{place}: {key} {seen}, a whole number of at least 0 is wanted")
    return value


def want_number(row: dict[str, Any], key: str, place: str) -> float | int:
    """A finite number. Raises TraceError."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        seen = "is missing" if key not in row else f"is {str(value)[:40]!r}"
        raise TraceError(f"{place}: {key} {seen}, a number is wanted")
    return value
