"""A trace file on disk: lines with their numbers, plain or gzip, its hash, and the head that tells the format."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from infersiege.errors import TraceError

HEAD_BYTES = 1 << 18
"""What `sniff` functions see of a file, and more where its first line is longer."""

_LONGEST_LINE = 64 << 20

MOST_TOKENS = 1_000_000_000
"""Of one prompt or answer: a larger length is a misread column."""
_LARGEST_NUMBER = 1e20
"""Of anything that is counted or timed: beyond the Unix epoch in ns, and far from what a float can't hold."""

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


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


class Head:
    """The first bytes of a file, decoded once for all formats that look at them."""

    def __init__(self, data: bytes) -> None:
        text = data.decode("utf-8-sig", errors="replace")
        self.text = text
        # Not splitlines: JSON strings may hold U+2028 and other ends of line as they are.
        lines = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
        self.first_number, self.first_line = next(((number, line) for number, line in lines if line), (1, ""))
        self.row: Any = None
        """The first line as JSON, None if it is none (or is longer than the head)."""
        self.fault: str | None = None
        """Why the first line is no JSON."""
        try:
            self.row = decode_json(self.first_line)
        except ValueError as error:
            self.fault = str(error)

    def keys(self) -> frozenset[str]:
        """Keys of the first row, where it is an object."""
        return frozenset(self.row) if isinstance(self.row, dict) else frozenset()


class Source:
    """One trace file. Nothing is read before it is asked for; errors of reading are TraceErrors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if is_missing(path):
            raise TraceError(
                f"{path}: no such trace file",
                hint="paths are relative to the plan file; built-in traces start with builtin:",
            )
        reason = why_unreadable(path)
        if reason is not None:
            hint = (
                "name the file inside it"
                if reason.startswith("is a directory")
                else "what comes through a pipe must be saved first"
            )
            raise TraceError(f"{path}: {reason}", hint=hint)

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
                row = decode_json(line)
            except ValueError as error:
                raise not_json(self.path, number, str(error)) from error
            yield number, row

    def _open(self) -> io.BufferedReader | gzip.GzipFile:
        """By content, not by name: `.gz` files get renamed."""
        file = self.path.open("rb")
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        if not packed:
            return file
        file.close()
        return gzip.open(self.path, "rb")


def decode_json(data: str | bytes) -> Any:
    """Any JSON value. Raises ValueError with the reason."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(_reason(data, str(error))) from None


def _reason(data: str | bytes, seen: str) -> str:
    """msgspec says of half a surrogate pair that the input was cut; Python's own parser takes it, and NaN."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return seen
    return "it holds half a surrogate pair, NaN or Infinity"


def not_json(path: Path, line: int, reason: str) -> TraceError:
    return TraceError(
        f"{path}:{line}: is not JSON ({reason})",
        hint="each line must be one whole JSON value; a cut last line means a file copied in part",
    )


def _unreadable(path: Path, error: Exception) -> TraceError:
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return TraceError(f"{path}: cannot be read ({detail})", hint="check the file's permissions and that it is whole")


def want_int(row: dict[str, Any], key: str, place: str) -> int:
    """A whole number from 0 to MOST_TOKENS (3.0 counts as 3). Raises TraceError."""
    value = row.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TraceError(f"{place}: {key} {_seen(row, key)}, a whole number of at least 0 is wanted")
    check_tokens(value, key, place)
    return value


def check_tokens(value: int, key: str, place: str) -> None:
    """Raises TraceError for more tokens than any request has."""
    if value > MOST_TOKENS:
        raise TraceError(
            f"{place}: {key} is {_short(value)}, the most is {MOST_TOKENS:,}", hint="is this the right column?"
        )


def want_number(row: dict[str, Any], key: str, place: str) -> float | int:
    """A number that can be a time or a count. Raises TraceError."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise TraceError(f"{place}: {key} {_seen(row, key)}, a number is wanted")
    if abs(value) > _LARGEST_NUMBER:
        raise TraceError(f"{place}: {key} {_seen(row, key)}, no time is so far away", hint="check its unit")
    return value


def _seen(row: dict[str, Any], key: str) -> str:
    return "is missing" if key not in row else f"is {_short(row[key])!r}"


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 128:
        return f"a number of {value.bit_length()} bits"  # longer ones have no decimal form in Python
    return str(value)[:40]
