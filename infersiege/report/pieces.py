"""All turns of a large run, read by several processes: each has a piece of the file and observers of its own.

What they counted is then merged in the order of the pieces, so that the same figures come out as from one process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

from infersiege.metrics.batch import Batch, Observer
from infersiege.rundir.damage import Span
from infersiege.rundir.pieces import OddError, Piece, batches_of, pieces_of

MOST_PROCESSES: Final = 8
"""Merging is the work of one process, and grows with them."""

LEAST_BYTES: Final = 96 << 20
"""A smaller piece is read in less time than a process takes to begin, and to hand over what it counted."""

_COMMAND: Final = (sys.executable, "-P", "-c", "from infersiege.report.pieces import serve; serve()")


def observe(batches: Iterable[Batch], observers: Sequence[Observer]) -> None:
    """Show all turns to all observers."""
    for batch in batches:
        for observer in observers:
            observer.add_batch(batch)


def observe_in_pieces(
    path: Path,
    span: Span,
    observers: Sequence[Observer],
    *,
    processes: int | None = None,
) -> bool:
    """Show all turns of a file to observers that have seen none yet; they must be fit for pickle.

    False, and nothing was shown: the file is too small for it, it has a line that is no turn of a run in `span` (half a
    one at its end included), or a process could not do its part; to read the file at one go then tells more.
    `processes`: by default as many as the file is worth, and no more than there are CPUs.
    """
    many = _worth(path) if processes is None else processes
    pieces = pieces_of(path, many) if many > 1 else ()
    if len(pieces) < 2:
        return False
    blank = pickle.dumps(tuple(observers))
    try:
        with ExitStack() as started:
            readers = [started.enter_context(_Reader(path, piece, span, blank)) for piece in pieces[1:]]
            found = _filled(path, pieces[0], span, blank)
            for reader in readers:
                _merge(found, reader.result())
    except (OddError, OSError, EOFError, pickle.UnpicklingError):
        return False
    _merge(observers, found)
    return True


def _merge(observers: Sequence[Observer], others: Sequence[Observer]) -> None:
    for mine, theirs in zip(observers, others, strict=True):
        mine.merge(theirs)


def _worth(path: Path) -> int:
    try:
        size = path.stat().st_size
    except OSError:
        return 1
    return min(size // LEAST_BYTES, len(os.sched_getaffinity(0)), MOST_PROCESSES)


def _filled(path: Path, piece: Piece, span: Span, blank: bytes) -> tuple[Observer, ...]:
    """Observers of one piece. Raises OddError, OSError."""
    observers: tuple[Observer, ...] = pickle.loads(blank)
    observe(batches_of(path, piece, span), observers)
    return observers


class _Reader:
    """A process that reads one piece."""

    def __init__(self, path: Path, piece: Piece, span: Span, blank: bytes) -> None:
        """Raises OSError when it can't be started."""
        self._process = subprocess.Popen(
            # What it has to say of a fault nobody could use: the file is then read at one go.
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )  # fmt: skip
        try:
            with _open(self._process.stdin) as asked:
                pickle.dump((path.absolute(), piece, span, blank), asked)
        except OSError:
            self.__exit__()
            raise

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        _open(self._process.stdout).close()
        self._process.wait()

    def result(self) -> tuple[Observer, ...]:
        """What its observers saw. Raises EOFError or UnpicklingError when it ended without that."""
        found: tuple[Observer, ...] = pickle.load(_open(self._process.stdout))
        return found


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("a process without its pipes")
    return pipe


def serve() -> None:
    """Read the piece that standard input names, and write its observers to standard output."""
    path, piece, span, blank = pickle.load(sys.stdin.buffer)
    try:
        pickle.dump(_filled(path, piece, span, blank), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    except (OddError, OSError):
        sys.exit(1)
