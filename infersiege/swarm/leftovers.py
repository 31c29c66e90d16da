"""Spools that were left behind: found, told apart, and read however damaged they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infersiege.errors import UsageError
from infersiege.records import OpenTurn, Reason, TurnRecord
from infersiege.swarm.ledger import LineKey
from infersiege.swarm.spool import (
    JOURNAL,
    PLAN_FILE,
    JournalLine,
    SpoolInfo,
    find_spools,
    in_use,
    leftover_segments,
    read_info,
    spool_root,
)

Key = tuple[str, int]
"""(session, turn)."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A spool and whose it is."""

    path: Path
    info: SpoolInfo

    @property
    def plan(self) -> Path:
        return self.path / PLAN_FILE

    @property
    def why_unplayed(self) -> Reason:
        """Why a turn of this worker was not played: it was killed, or it had no master any more."""
        return Reason.WORKER_LOST if self.info.bye is None else Reason.NO_LEASE

    def in_use(self) -> bool:
        return in_use(self.path, self.info)


@dataclass(slots=True)
class Journal:
    """What a worker had taken and sent, as far as its journal could be read."""

    lines: dict[LineKey, OpenTurn] = field(default_factory=dict)
    started: dict[LineKey, int] = field(default_factory=dict)
    """The last turn of each line that was about to be sent."""
    last_ns: int | None = None
    """The last instant (epoch) at which one was."""
    unreadable: int = 0
    """Lines that no crash of the worker leaves: its disk, or somebody, damaged them."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A spool as `infersiege recover` lists it."""

    path: Path
    info: SpoolInfo | None
    """None: it does not say whose it is."""
    lives: bool
    changed_ns: int
    """When something was last written to it (wall clock)."""
    rows: int
    sessions: int
    """That its worker had taken."""


def read_journal(directory: Path) -> Journal:
    """Raises UsageError when the file is there and can't be read. What a crash tore is left out."""
    found = Journal()
    decode = msgspec.json.Decoder(JournalLine).decode
    for raw in _whole_lines(directory / JOURNAL):
        try:
            line = decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            found.unreadable += 1
            continue
        if line.taken is not None:
            found.lines |= {(one.session_id, one.first_turn): one for one in (line.taken, *line.branches)}
        key = (line.session_id, line.first_turn)
        if line.started is not None:
            found.started[key] = max(line.started, found.started.get(key, -1))
        if line.attempt_ns is not None:
            found.last_ns = max(line.attempt_ns, found.last_ns or line.attempt_ns)
        if line.channel is not None and key in found.lines:
            found.lines[key] = msgspec.structs.replace(found.lines[key], channel=line.channel)
    return found


def _whole_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(path, error) from None


def read_rows(leftover: Leftover) -> Iterator[tuple[TurnRecord, bytes] | None]:
    """(row, its line as it stands) of each record in a spool, in the order of their ends; None for a line that is none
    of this run. Raises UsageError when a file can't be read."""
    decode = msgspec.json.Decoder(TurnRecord).decode
    try:
        for _, lines in leftover_segments(leftover.path):
            for line in lines.splitlines(keepends=True):
                try:
                    row = decode(line)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    yield None
                    continue
                yield (row, line) if row.run_id == leftover.info.run_id else None
    except OSError as error:
        raise _unreadable(leftover.path, error) from None


def _unreadable(path: Path, error: OSError) -> UsageError:
    reason = (error.strerror or str(error)).lower()
    return UsageError(
        f"{path}: can't be read: {reason}", hint="spools belong to whoever ran the worker: run this as that user"
    )


def found_here(environ: Mapping[str, str]) -> list[Leftover]:
    """All spools of this host that say whose they are, the oldest first; those of other users are left out."""
    found = []
    for path in find_spools(spool_root(environ)):
        try:
            info = read_info(path)
        except OSError:
            continue
        if info is not None:
            found.append(Leftover(path, info))
    return found


def named(paths: Iterable[Path]) -> list[Leftover]:
    """The spools that a command line names, or the spools inside of a directory that it names.

    Raises UsageError for what is none and has none.
    """
    found: dict[Path, Leftover] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path}: there is no such spool", hint="`infersiege recover` lists those of this host")
        try:
            inside = [path] if (info := read_info(path)) is not None else find_spools(path)
            for one in inside:
                info = read_info(one)
                if info is not None:
                    found[one.resolve()] = Leftover(one, info)
                elif one is path or len(inside) == 1:
                    raise _no_spool(one)
        except OSError as error:
            raise _unreadable(path, error) from None
        if not inside:
            raise _no_spool(path)
    return list(found.values())


def _no_spool(path: Path) -> UsageError:
    return UsageError(
        f"{path}: is no spool of a worker: it has no spool.json that can be read",
        hint="name the spool's own directory (infersiege-spool-…), or the one that it lies in",
    )


def listing(environ: Mapping[str, str]) -> tuple[list[Listed], list[Path]]:
    """Spools of this host, the oldest first; and those that this user may not look into."""
    listed, closed = [], []
    for path in find_spools(spool_root(environ)):
        try:
            info = read_info(path)
            rows = sum(lines.count(b"\n") for _, lines in leftover_segments(path))
            changed_ns = max(one.stat().st_mtime_ns for one in (path, *path.iterdir()))
            sessions = len({session_id for session_id, _ in read_journal(path).lines})
        except (OSError, UsageError):
            closed.append(path)
            continue
        listed.append(Listed(path, info, in_use(path, info), changed_ns, rows, sessions))
    return listed, closed
