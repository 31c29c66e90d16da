"""Where a command writes a file: whole or not at all, and nothing that is there is lost unasked.

A regular file is written beside its place and gets its name at the end. What is no regular file (a pipe, a terminal,
/dev/null) stays what it is and is written into. Links are followed: the file at their end is written, they stay.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

import click

from infersiege.cli.output import escaped
from infersiege.errors import UsageError

_STANDARD_OUTPUT = ("-", "/dev/stdout")

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C is an exception already."""
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""What link() says on file systems that know no links (FAT, some of networks)."""
_HINTS = {
    errno.ENOSPC: "free some space, or name another place",
    errno.EDQUOT: "free some space, or name another place",
    errno.ENOENT: "name a file in a folder that is there",
    errno.ENOTDIR: "name a file in a folder that is there",
    errno.ENAMETOOLONG: "a shorter name",
    errno.ELOOP: "the links lead to themselves",
    errno.EPIPE: "whoever read from there has gone",
}
_HEAD_BYTES = 1 << 16
_HINT = "name a place where you may write"


def is_standard_output(out: Path) -> bool:
    """`/dev/stdout` may lead to a file that the shell has just made."""
    return str(out) in _STANDARD_OUTPUT


@contextlib.contextmanager
def destination(out: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """The file to write into; `-` is standard output.

    A regular file appears when the block ends well. Where it ends in any other way, signals included, what was there
    before is as it was, and nothing else is left. Raises UsageError: as `check_destination`, also for a file that came
    while this one was written (unless `force`), and for whatever the system refuses (no room, no right).
    """
    if is_standard_output(out):
        yield sys.stdout.buffer
        return
    try:
        if _check(out, force=force):
            with _stream(out) as file:
                yield file
        else:
            with _whole_file(out, Path(os.path.realpath(out)), force=force) as file:
                yield file
    except OSError as error:
        raise _refused(out, error) from None


def check_destination(out: Path, *, force: bool) -> None:
    """Tell before the work what would be told after it. Raises UsageError: a file that is there (unless `force`), a
    folder, a disk, a folder that is not there, a name that no file can have."""
    if is_standard_output(out):
        return
    try:
        _check(out, force=force)
    except OSError as error:
        raise _refused(out, error) from None


def check_remade(out: Path, ours: Callable[[bytes], bool], what: str) -> None:
    """`check_destination` of an output that a command makes anew each time: it writes over an earlier one, and over
    nothing else. `ours`: whether a file that begins so is such an output. Raises UsageError."""
    check_destination(out, force=True)
    if is_standard_output(out) or not out.is_file():
        return
    try:
        with out.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise _refused(out, error) from None
    if head and not ours(head):
        raise UsageError(f"{out}: is there already, and is no {what}", hint="name another file, or remove this one")


def _check(out: Path, *, force: bool) -> bool:
    """Whether it is something to write into as it is. Raises UsageError, OSError."""
    if str(out) in ("", "."):
        raise UsageError("no file is named to write to", hint="- is standard output")
    try:
        mode = out.stat().st_mode
    except FileNotFoundError:
        if not Path(os.path.realpath(out)).parent.is_dir():
            raise
        return False
    except ValueError:  # a NUL in the name
        raise UsageError(f"{out}: can't be written: no file can have this name", hint=_HINT) from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{out}: is a folder", hint="name a file in it")
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        kind = "a disk" if stat.S_ISBLK(mode) else "a socket"
        raise UsageError(f"{out}: is {kind}, no file", hint="name a file; - is standard output")
    if not stat.S_ISREG(mode):
        return True
    if not force:
        raise _there(out)
    return False


def _there(out: Path) -> UsageError:
    return UsageError(f"{out}: is there already", hint="--force writes over it")


def _refused(out: Path, error: OSError) -> UsageError:
    return UsageError(f"{out}: can't be written: {error.strerror or error}", hint=_HINTS.get(error.errno or 0, _HINT))


def _stream(out: Path) -> IO[bytes]:
    """A pipe or device, as it is. Who writes into a pipe waits until somebody reads, and says so."""
    flags = os.O_WRONLY | os.O_NOCTTY
    try:
        descriptor = os.open(out, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO or not out.is_fifo():
            raise
        click.echo(f"{escaped(str(out))}: waiting for somebody to read from this pipe", err=True)
        descriptor = os.open(out, flags)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


@contextlib.contextmanager
def _whole_file(out: Path, place: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """`place` is `out` behind its links."""
    # Not made of the file's name, which may be as long as names can be.
    unfinished = place.with_name(f".infersiege-{secrets.token_hex(8)}.unfinished")
    with _endings_raised():
        try:
            with os.fdopen(os.open(unfinished, _NEW, 0o666), "wb") as file:
                yield file
                if force:
                    # Who may not read the old file may not read the new one.
                    with contextlib.suppress(FileNotFoundError):
                        os.fchmod(file.fileno(), stat.S_IMODE(place.stat().st_mode))
            if force:
                unfinished.replace(place)
            else:
                _name(unfinished, place, out)
        finally:
            unfinished.unlink(missing_ok=True)


def _name(unfinished: Path, place: Path, out: Path) -> None:
    """Give it its name where nothing has that: of two writers at once, one. Raises UsageError, OSError."""
    try:
        try:
            os.link(unfinished, place)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.close(os.open(place, _NEW, 0o666))
            unfinished.replace(place)
    except FileExistsError:
        raise _there(out) from None


@contextlib.contextmanager
def _endings_raised() -> Iterator[None]:
    """Signals that would end the process at once raise SystemExit while a file is begun; those ignored stay ignored."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, end)
        for number in _ENDINGS
        if signal.getsignal(number) == signal.SIG_DFL  # `nohup` ignores one
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
