"""Standard output and error that may go away: a reader that has seen enough, a full disk, a terminal that is gone."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Outlet(io.FileIO):
    """The descriptor below a stream. After a fault it takes everything and writes nothing.

    A pipe that nobody reads any more is no fault: the command goes on and ends with its own code, so that
    `infersiege gate RUN | head -1` still fails for a rule that failed.
    """

    def __init__(self, descriptor: int, *, never_raises: bool) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.fault: OSError | None = None
        """Why output was lost; None: it was not, or nobody wanted it."""
        self._gone = False
        self._never_raises = never_raises

    def write(self, data: Buffer, /) -> int:
        """As FileIO's. Raises OSError at the first fault, unless it never does."""
        size = memoryview(data).nbytes
        if self._gone:
            return size
        try:
            return super().write(data)
        except BrokenPipeError:
            self._gone = True
        except OSError as error:
            self._gone = True
            self.fault = error
            if not self._never_raises:
                raise
        return size


@contextlib.contextmanager
def steady_output() -> Iterator[list[Outlet]]:
    """Put Outlets below `sys.stdout` and `sys.stderr`; gives that of stdout, if it is a file at all.

    Letters that the terminal's encoding lacks become question marks.
    """
    before = sys.stdout, sys.stderr
    outlets: list[Outlet] = []
    with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or replaced by something without a file
        outlet = Outlet(sys.stdout.fileno(), never_raises=False)
        sys.stdout = _stream(outlet, sys.stdout)
        outlets.append(outlet)
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr = _stream(Outlet(sys.stderr.fileno(), never_raises=True), sys.stderr)
    try:
        yield outlets
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = before


def escaped(text: str) -> str:
    """`text` on one line, with what a terminal would obey, hide or turn around written as `\\x1b`.

    Names of files, keys of a trace and words of a server may hold anything.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def unicode_of(name: str) -> str:
    """A name of a file with what is no UTF-8 in it written as `\\udcff`, for JSON and pages."""
    return name.encode("utf-8", "backslashreplace").decode()


def _stream(outlet: Outlet, like: TextIO) -> io.TextIOWrapper:
    like.flush()
    errors = like.errors or "strict"
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=like.encoding,
        errors="replace" if errors == "strict" else errors,
        line_buffering=getattr(like, "line_buffering", False),
        write_through=getattr(like, "write_through", False),
    )
