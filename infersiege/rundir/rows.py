"""Rows out of a file, many at a time, with the place of a bad one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec

from infersiege.rundir.files import bad_line, reason_of_line
from infersiege.rundir.names import TURNS

T = TypeVar("T")

BLOCK_BYTES: Final = 1 << 22
"""Read and decoded at once: some thousands of turns. More of them fall out of the processor's caches."""

UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What a decoder raises for bytes that are no row: RecursionError for lists in lists in lists."""


OnBad: TypeAlias = Callable[[int, bytes, Exception], None]
"""Gets the number of a line that is no row, from 1, the line, and what was wrong with it."""

_MOST_CHARACTERS: Final = 160


@dataclass(slots=True)
class LeftOut:
    """Lines of turns.jsonl that hold no turn of the run: they are in no figure, and are counted here."""

    rows: int = 0
    first: str | None = None
    """Where the first one is, and what is wrong with it."""

    def add(self, number: int, line: bytes, error: Exception) -> None:
        """As `OnBad`."""
        self.rows += 1
        if self.first is None:
            # What a decoder quotes of the line may be as long as that.
            self.first = f"line {number}: {reason_of_line(line, error)[:_MOST_CHARACTERS]}"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the run is invalid; empty: every line was read."""
        if not self.rows:
            return ()
        what = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        return (f"{what} of {TURNS} could not be read and {'is' if self.rows == 1 else 'are'} left out ({self.first})",)


def decoded(
    path: Path,
    decoder: msgspec.json.Decoder[T],
    on_torn: Callable[[str], None] | None,
    on_bad: OnBad | None = None,
    size: int = BLOCK_BYTES,
) -> Iterator[list[T]]:
    """Every row of a file, in lists of about `size` bytes of it.

    A last line without an end that is no row is torn: it is left out, and `on_torn` gets one sentence. Any other bad
    line is left out and told to `on_bad`; without that, it raises RunDirectoryError with its number, after the rows
    before it were given. Raises OSError.
    """
    before = 0
    with path.open("rb", buffering=1 << 20) as file:
        while block := file.read(size):
            block += file.readline()
            rows = _at_once(block, decoder)
            if rows is None:
                yield from _line_by_line(path, before, block, decoder, on_torn, on_bad)
                before += block.count(b"\n")
            else:
                before += len(rows)
                yield rows


def _at_once(block: bytes, decoder: msgspec.json.Decoder[T]) -> list[T] | None:
    """All rows of a block; None: some line is no row."""
    try:
        rows = decoder.decode_lines(block)
    except UNREADABLE:
        return None
    # Empty lines are skipped there, and are damage here.
    return rows if len(rows) == block.count(b"\n") + (not block.endswith(b"\n")) else None


def _line_by_line(
    path: Path,
    before: int,
    block: bytes,
    decoder: msgspec.json.Decoder[T],
    on_torn: Callable[[str], None] | None,
    on_bad: OnBad | None,
) -> Iterator[list[T]]:
    """The rows of a block in which a line is none. `before`: lines of the file before the block."""
    rows: list[T] = []
    *lines, last = block.split(b"\n")
    for number, line in enumerate([*(line + b"\n" for line in lines), *([last] if last else [])], before + 1):
        try:
            rows.append(decoder.decode(line))
        except UNREADABLE as error:
            if line.endswith(b"\n"):
                if on_bad is None:
                    yield rows
                    raise bad_line(path, number, line, error) from None
                on_bad(number, line, error)
            elif on_torn is not None:
                on_torn(f"{path}:{number}: the last line is torn ({len(line)} bytes): the run crashed; left out")
    yield rows
