"""Where records come home: each segment once into turns.jsonl, acknowledged only when it is there."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import msgspec

from infersiege.errors import DiskError
from infersiege.records import Segment, TurnRecord
from infersiege.rundir import UNREADABLE, RunDirectory
from infersiege.rundir.damage import Span, damage_of

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TurnRecord).decode

MOST_SEGMENT_BYTES = 256 << 20
"""Of one segment, unpacked: a hundred times what a busy worker closes in the seconds of a stall. 16 MiB of zeros on the
wire would become 16 GiB."""


class _Numbers:
    """Which of 0, 1, 2 … were seen, in little memory where they come nearly in order."""

    __slots__ = ("_below", "_beyond")

    def __init__(self) -> None:
        self._below = 0
        self._beyond: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number < self._below or number in self._beyond

    def add(self, number: int) -> None:
        self._beyond.add(number)
        while self._below in self._beyond:
            self._beyond.remove(self._below)
            self._below += 1


@dataclass(slots=True)
class Refused:
    """Segments of one worker that were none."""

    why: str
    """Of the first."""
    missing: set[int] = field(default_factory=set)
    """Their sequences; one that comes whole after all is taken, and is no more among them."""


def _tell_nobody(worker: str, why: str) -> None:
    """Who has no log of events hears of refused segments from `Intake.refused` alone."""


@dataclass(slots=True)
class Intake:
    """Appends segments unparsed. A full disk stops nothing here: rows wait in memory and are tried again."""

    run: RunDirectory
    on_refused: Callable[[str, str], None] = _tell_nobody
    """Called with a worker's name and the reason, the first time that a segment of it is refused."""
    refused: dict[str, Refused] = field(default_factory=dict)
    """By worker."""
    rows_of: dict[str, int] = field(default_factory=dict)
    """Rows received, by worker."""
    disk_error: DiskError | None = None
    """The first failure to write."""
    _seen: dict[str, _Numbers] = field(default_factory=dict)
    _unwritten: list[tuple[Callable[[], None], bytes]] = field(default_factory=list)

    def take(self, segment: Segment, acknowledge: Callable[[], None]) -> None:
        """Write a worker's segment, unless it was written before; call `acknowledge` as soon as it is on disk.

        One that is no segment, is too large, or does not hold as many whole lines as it says is refused: neither
        written nor acknowledged. What stands in its lines is looked at when they are read.
        """
        seen = self._seen.setdefault(segment.worker, _Numbers())
        if segment.sequence in seen:
            if not self._unwritten:
                acknowledge()
            return
        try:
            lines = unpacked_rows(segment.data)
            _check_lines(lines, segment.rows)
        except (zlib.error, ValueError) as error:
            self._refuse(segment, str(error))
            return
        self._take(segment.worker, segment.sequence, lines, acknowledge)

    def _refuse(self, segment: Segment, why: str) -> None:
        refused = self.refused.get(segment.worker)
        if refused is None:
            why = f"segment {segment.sequence} of its records is none: {why}"
            refused = self.refused[segment.worker] = Refused(why)
            self.on_refused(segment.worker, why)
        refused.missing.add(segment.sequence)

    def _take(self, worker: str, sequence: int, lines: bytes, acknowledge: Callable[[], None]) -> None:
        self._seen[worker].add(sequence)
        self.rows_of[worker] = self.rows_of.get(worker, 0) + lines.count(b"\n")
        if worker in self.refused:
            self.refused[worker].missing.discard(sequence)
        self._append(lines, acknowledge)

    def take_leftover(self, worker: str, sequence: int, lines: bytes) -> None:
        """The same for a segment found in a dead worker's spool."""
        seen = self._seen.setdefault(worker, _Numbers())
        if sequence in seen or not lines:
            return
        self._take(worker, sequence, lines, lambda: None)

    def write(self, records: list[TurnRecord]) -> None:
        """Rows of the master's own making (lost and skipped turns of dead workers)."""
        if records:
            self._append(b"".join(_encode(record) + b"\n" for record in records), lambda: None)

    def _append(self, lines: bytes, acknowledge: Callable[[], None]) -> None:
        self._unwritten.append((acknowledge, lines))
        self.retry()

    def retry(self) -> None:
        """Write what waits, in order, as far as the disk takes it."""
        while self._unwritten:
            acknowledge, lines = self._unwritten[0]
            try:
                self.run.append_turn_lines(lines)
            except DiskError as error:
                self.disk_error = self.disk_error or error
                return
            del self._unwritten[0]
            acknowledge()

    @property
    def unwritten_rows(self) -> int:
        return sum(lines.count(b"\n") for _, lines in self._unwritten)

    def closed_turns(self, workers: Collection[str]) -> dict[str, set[tuple[str, int]]]:
        """By worker, (session, turn) of every record of some workers, written or waiting. Reads the run's turns once.

        Rows that hold no turn of the run are none: no figure will have them. Raises RunDirectoryError when the turns
        or plan.json can't be read.
        """
        closed: dict[str, set[tuple[str, int]]] = {worker: set() for worker in workers}
        if not closed:
            return closed
        span = self.run.read_plan().span
        for row in chain(self.run.read_turns(span=span), self._waiting(span)):
            if row.worker in closed:
                closed[row.worker].add((row.session_id, row.turn))
        return closed

    def _waiting(self, span: Span) -> Iterator[TurnRecord]:
        """As `read_turns`, of rows that are not written yet."""
        for _, lines in self._unwritten:
            for line in lines.splitlines():
                with suppress(*UNREADABLE):
                    row = _decode(line)
                    if damage_of(row, span) is None:
                        yield row

    def rescue(self) -> RunDirectory:
        """Move the run to where there is room: a copy of its directory with all rows, those that wait included.

        Returns the new run directory, below the system's temporary directory. Raises OSError when that is full too.
        """
        target = Path(tempfile.mkdtemp(prefix="infersiege-rescue-")) / self.run.path.name
        shutil.copytree(self.run.path, target)
        moved = RunDirectory.open(target)
        for _, lines in self._unwritten:
            moved.append_turn_lines(lines)
        self._unwritten.clear()
        return moved


def unpacked_rows(data: bytes) -> bytes:
    """Rows of a segment. Raises zlib.error for what is none, is cut, or holds more than MOST_SEGMENT_BYTES."""
    stream = zlib.decompressobj()
    lines = stream.decompress(data, MOST_SEGMENT_BYTES)
    if not stream.eof:
        what = "too large" if stream.unconsumed_tail or len(lines) >= MOST_SEGMENT_BYTES else "cut"
        raise zlib.error(f"a segment that is {what}")
    return lines


def _check_lines(lines: bytes, rows: int) -> None:
    """Raises ValueError unless it is so many whole lines: half a row would be glued to the next segment's first one."""
    if not lines.endswith(b"\n"):
        raise ValueError("its last row has no end")
    if (count := lines.count(b"\n")) != rows:
        raise ValueError(f"it says {rows} rows and has {count}")
