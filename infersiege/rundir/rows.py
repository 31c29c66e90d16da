"""Rows out of a file, many at a time, with the place of a bad one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from infersiege.rundir.files import bad_line

T = TypeVar("T")

BLOCK_BYTES: Final = 1 << 22
"""Read and decoded at once: some thousands of turns. More of them fall out of the processor's caches."""

UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What a decoder raises for bytes that are no row: RecursionError for lists in lists in lists."""


def decoded(
    path: Path, decoder: msgspec.json.Decoder[T], on_torn: Callable[[str], None] | None, size: int = BLOCK_BYTES
) -> Iterator[list[T]]:
    """Every row of a file, in lists of about `size` bytes of it.

    A last line without an end that is no row is torn: it is left out, and `on_torn` gets one sentence. Any other bad
    line raises RunDirectoryError with its number, after the rows before it were given. Raises OSError.
    """
    before = 0
    with path.open("rb", buffering=1 << 20) as file:
        while block := file.read(size):
            block += file.readline()
            rows = _at_once(block, decoder)
            if rows is None:
                yield from _line_by_line(path, before, block, decoder, on_torn)
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
    path: Path, before: int, block: bytes, decoder: msgspec.json.Decoder[T], on_torn: Callable[[str], None] | None
) -> Iterator[list[T]]:
    """The rows of a block in which a line is none. `before`: lines of the file before the block."""
    rows: list[T] = []
    *lines, last = block.split(b"\n")
    for number, line in enumerate([*(line + b"\n" for line in lines), *([last] if last else [])], before + 1):
        try:
            rows.append(decoder.decode(line))
        except UNREADABLE as error:
            yield rows
            if line.endswith(b"\n"):
                raise bad_line(path, number, line, error) from None
            if on_torn is not None:
                on_torn(f"{path}:{number}: the last line is torn ({len(line)} bytes): the run crashed; left out")
            return
    yield rows
