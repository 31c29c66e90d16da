"""Spools that were left behind: found, told apart, and read however damaged they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infersiege.errors import UsageError
from infersiege.records import OpenTurn, Reason, TurnRecord
from infersiege.rundir.damage import Span, damage_of
from infersiege.rundir.rows import UNREADABLE
from infersiege.swarm.ledger import LineKey
from infersiege.swarm.spool import (
    INFO,
    JOURNAL,
    PLAN_FILE,
    JournalLine,
    find_spools,
    in_use,
    leftover_segments,
    read_info,
    spool_root,
)
from infersiege.swarm.spool_info import SpoolInfo
from infersiege.swarm.untrusted import open_own

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


MOST_TURNS = 1_000_000
"""No session has more, and nobody starts as many: each turn of a journal's lines becomes a record."""


def impossible_line(line: JournalLine, span: Span | None = None) -> str | None:
    """What is impossible about a line of a journal, as one sentence; None: nothing. `span`: the time of the run.

    The rules are those of rows (rundir.damage): lines become rows, and facts of plan.json.
    """
    low_ns, high_ns = span if span is not None else (-(1 << 63), (1 << 63) - 1)
    numbers = [line.first_turn, line.started]
    instants = [line.due_ns, line.attempt_ns]
    for one in (*line.branches, *(() if line.taken is None else (line.taken,))):
        numbers += (one.first_turn, one.turns, one.turn, one.after, one.epoch)
        instants.append(one.due_ns)
    for number in numbers:
        if number is not None and not 0 <= number <= MOST_TURNS:
            return f"no turn, epoch or count of turns is {number}"
    for at_ns in instants:
        if at_ns is not None and not low_ns <= at_ns <= high_ns:
            return f"the instant {at_ns} is more than a day from the run"
    return None


def read_journal(directory: Path, span: Span | None = None) -> Journal:
    """What a crash tore is left out; so is what is damaged (`impossible_line`), and counted.

    Raises UsageError when the file is there and can't be read.
    """
    found = Journal()
    decode = msgspec.json.Decoder(JournalLine).decode
    for raw in _whole_lines(directory / JOURNAL):
        try:
            line = decode(raw)
        except UNREADABLE:
            found.unreadable += 1
            continue
        if impossible_line(line, span) is not None:
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
        with open_own(path) as file:
            yield from (line for line in file if line.endswith(b"\n"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(path, error) from None


def read_rows(leftover: Leftover, span: Span) -> Iterator[tuple[TurnRecord, bytes] | None]:
    """(row, its line as it stands) of each record in a spool, in the order of their ends; None for a line that is none
    of this run, or holds what no turn in `span` can have. Raises UsageError when a file can't be read."""
    decode = msgspec.json.Decoder(TurnRecord).decode
    try:
        for _, lines in leftover_segments(leftover.path):
            for line in lines.splitlines(keepends=True):
                try:
                    row = decode(line)
                except UNREADABLE:
                    yield None
                    continue
                ours = row.run_id == leftover.info.run_id and damage_of(row, span) is None
                yield (row, line) if ours else None
    except OSError as error:
        raise _unreadable(leftover.path, error) from None


def _unreadable(path: Path, error: OSError) -> UsageError:
    hint = "spools belong to whoever ran the worker: run this as that user"
    if not isinstance(error, PermissionError):
        hint = "a spool holds plain files of its worker: remove what stands there, if it is not yours"
    return UsageError(f"{error.filename or path}: can't be read: {why_not(error)}", hint=hint)


def why_not(error: OSError) -> str:
    """`permission denied`, `is a named pipe, no file`."""
    return (error.strerror or str(error)).lower()


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


def damaged(folders: Iterable[Path], run_id: str) -> list[Path]:
    """Spools in these places, or at them, that may be of a run and don't say so: their spool.json can't be read.

    Those whose records are of another run are left out, and those that have neither a spool.json nor records, which
    workers leave that never took part in a run.
    """
    found = []
    for path in dict.fromkeys(one for folder in folders for one in (folder, *find_spools(folder))):
        try:
            if read_info(path) is None and _may_be_of(path, run_id):
                found.append(path)
        except OSError:
            continue
    return found


def _may_be_of(path: Path, run_id: str) -> bool:
    """Whether the first record in a spool is of this run; without records: whether there is a spool.json."""
    for _, lines in leftover_segments(path):
        for line in lines.splitlines():
            try:
                return msgspec.json.decode(line, type=TurnRecord).run_id == run_id
            except UNREADABLE:
                continue
    return (path / INFO).exists()


def _no_spool(path: Path) -> UsageError:
    return UsageError(
        f"{path}: is no spool of a worker: it has no spool.json that can be read",
        hint="name the spool's own directory (infersiege-spool-…), or the one that it lies in",
    )


def listing(environ: Mapping[str, str]) -> tuple[list[Listed], list[str]]:
    """Spools of this host, the oldest first; and a line for each that can't be looked into."""
    listed, closed = [], []
    for path in find_spools(spool_root(environ)):
        try:
            info = read_info(path)
            rows = sum(lines.count(b"\n") for _, lines in leftover_segments(path))
            changed_ns = max(one.lstat().st_mtime_ns for one in (path, *path.iterdir()))
            sessions = len({session_id for session_id, _ in read_journal(path).lines})
        except OSError as error:
            closed.append(str(_unreadable(path, error)))
            continue
        except UsageError as error:
            closed.append(str(error))
            continue
        listed.append(Listed(path, info, in_use(path, info), changed_ns, rows, sessions))
    return listed, closed
