"""A large turns.jsonl in pieces of whole lines, for several processes to read at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from infersiege.metrics.batch import Batch
from infersiege.records import TurnRecord
from infersiege.rundir.damage import Span, damages
from infersiege.rundir.rows import BLOCK_BYTES, UNREADABLE


class Piece(NamedTuple):
    """Bytes of a file: whole lines."""

    start: int
    end: int


class OddError(Exception):
    """A piece has a line that is no turn of the run. Which one it is can only be said by who counts all lines."""


def pieces_of(path: Path, many: int) -> tuple[Piece, ...]:
    """So many pieces of about the same size, or fewer where lines are long; together they are the file.

    Empty for a file with half a line at its end, and for one that can't be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if not size or file.seek(size - 1) < 0 or file.read(1) != b"\n":
                return ()
            ends = [0]
            for place in range(1, many):
                # From the byte before: a piece that begins with a line ends there.
                file.seek(max(size * place // many - 1, 0))
                file.readline()
                ends.append(file.tell())
    except OSError:
        return ()
    ends = sorted({*ends, size})
    return tuple(Piece(start, end) for start, end in pairwise(ends))


def batches_of(path: Path, piece: Piece, span: Span) -> Iterator[Batch]:
    """The turns of a piece, in their order, as `RunDirectory.read_turn_batches` gives those of a file.

    Raises OddError for a line that is no turn of a run that took place in `span`, and OSError.
    """
    decoder = msgspec.json.Decoder(TurnRecord)
    with path.open("rb", buffering=1 << 20) as file:
        at = file.seek(piece.start)
        while at < piece.end:
            block = file.read(min(BLOCK_BYTES, piece.end - at))
            if at + len(block) < piece.end:
                block += file.readline()
            if not block:
                raise OddError(f"{path} ends at {at}")
            at += len(block)
            try:
                turns = decoder.decode_lines(block)
            except UNREADABLE as error:
                raise OddError(str(error)) from None
            batch = Batch(turns)
            # Empty lines are skipped there, and are damage.
            if len(turns) != block.count(b"\n") or damages(batch, span):
                raise OddError(f"between {at - len(block)} and {at}")
            yield batch
