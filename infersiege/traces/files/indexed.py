"""Sessions that are made from their rows when they are asked for: a trace of any size in little memory.

A reader gives the rows of each session and a function that makes a session of them. Every session is made once when the
trace is opened, so that whatever is wrong is told before a run, with its place; afterwards only the places of the rows
are kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces.files.row_groups import Key, Places, came_before, grouped, mark
from infersiege.traces.files.source import Row, Source
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.session_checks import check_branches
from infersiege.traces.trace import ReadOptions, Tally, check_rate, check_span


class Placed(NamedTuple):
    """A decoded row and where it stands."""

    place: str
    """`path:line`, as error messages begin."""
    line: int
    value: Any


Make = Callable[[Sequence[Placed], Tally], Session]
"""One session of its rows, in the file's order. `arrival_ns` is on the file's own clock (any zero), None without times.

Raises TraceError for a row that is wrong, UnsendableError (its text: the reason) for rows of which no request can be
made: they are skipped and counted. `Tally` takes oddities. Must give the same session each time.
"""


class IndexedTrace:
    """A trace that keeps the places of its sessions' rows, in order of arrival where it has times, else of the file."""

    def __init__(
        self,
        source: Source,
        options: ReadOptions,
        *,
        format: str,
        make: Make,
        decode: Callable[[Source, Row], Any] = Source.json,
        unit_hint: str = "name its unit",
    ) -> None:
        """`unit_hint`: what to try when the times can't be right."""
        self.name = options.name
        self.format = format
        self.sha256: str | None = source.sha256()
        self.rows: int | None = 0
        self.sessions: int | None = 0
        self.skipped: Mapping[str, int] = {}
        self.warnings: tuple[str, ...] = ()
        self.arrivals_ns: Sequence[int] | None = None
        self.changes: tuple[str, ...] = ()
        """What was done to the trace before it was written as it is, where its format tells."""
        self._source = source
        self._make = make
        self._decode = decode
        self._unit_hint = unit_hint
        self._limit = options.limit
        self._tally = Tally()
        self._rows = Places()
        self._ends = array("q")
        """Of each session, the number of rows up to and with its own."""
        self._times = array("q")
        self._untimed = 0
        self._names = array("q")
        """A mark of each session's id."""
        self._again: dict[int, int] = {}
        """The lines of sessions whose id came before, by their number."""
        self._order: array[int] | None = None
        self._first_ns = 0
        self._rows_read = 0

    def read_rows(self, rows: Iterable[Row]) -> IndexedTrace:
        """Every row is a session. Raises TraceError."""
        self.add_sessions((row,) for row in rows)
        return self.finish()

    def read_groups(self, rows: Iterable[Row], key: Callable[[Placed], Key | None]) -> IndexedTrace:
        """Rows with the same key are a session, in the file's order; a row without one (None) is its own. Raises
        TraceError."""
        self.add_sessions(grouped(rows, lambda row: key(self._placed(row))))
        return self.finish()

    def add_sessions(self, groups: Iterable[Sequence[Row]]) -> None:
        """Each group of rows is a session, until `limit` of them are kept. Raises TraceError."""
        for rows in groups:
            if self._limit is not None and len(self._ends) >= self._limit:
                break
            self.add(rows)

    def add(self, rows: Sequence[Row]) -> bool:
        """Check the session of these rows and keep its place. False: it was skipped. Raises TraceError."""
        self._rows_read += len(rows)
        try:
            session = self._make([self._placed(row) for row in rows], self._tally)
        except UnsendableError as reason:
            self._tally.skip(str(reason), self._source.where(rows[0]), len(rows))
            return False
        if session.branches or not session.turns:
            check_branches(session, self._source.place(rows[0]))
        # A name that a session has from its line needs no telling apart: its number is a mark that no id has.
        named = session.session_id != f"line-{rows[0].line}"
        self._names.append(mark(session.session_id) if named else len(self._names))
        for row in rows:
            self._rows.append(row)
        self._ends.append(len(self._rows))
        self._untimed += session.arrival_ns is None
        self._times.append(session.arrival_ns or 0)
        return True

    def _tell_apart(self) -> None:
        """Ids are unique in a trace: what comes again is told apart by its line."""
        for number in came_before(self._names):
            self._again[number] = self._first_row(number).line
        if self._again:
            first = self._first_row(next(iter(self._again)))
            self._tally.odd(
                f"session id came before (first again at {self._source.where(first)}): both sessions are played, the "
                "later one has its line added to its id",
                len(self._again),
            )
        self._names = array("q")

    def skip(self, reason: str, rows: Sequence[Row]) -> None:
        """Count rows that the reader itself leaves out."""
        self._rows_read += len(rows)
        self._tally.skip(reason, self._source.where(rows[0]), len(rows))

    def odd(self, what: str, count: int = 1) -> None:
        self._tally.odd(what, count)

    def finish(self) -> IndexedTrace:
        """Order and check what was added. Raises TraceError for an empty trace and for times that can't be."""
        self._tally.require_sessions(len(self._ends), str(self._source.path), self._rows_read)
        self._tell_apart()
        self.rows, self.sessions = self._rows_read, len(self._ends)
        self.skipped = dict(self._tally.skipped)
        self.warnings = self._tally.warnings()
        if self._untimed and self._untimed < len(self._ends):
            self.warnings += (f"{self._untimed} of {len(self._ends)} sessions have no time: none is replayed by it",)
        if not self._untimed:
            self._order_by_time()
        return self

    def session(self, index: int) -> Session:
        if index < 0:
            raise IndexError(index)
        at = index if self._order is None else self._order[index]
        rows = [self._rows[number] for number in range(self._ends[at - 1] if at else 0, self._ends[at])]
        session = self._make([self._placed(row) for row in rows], Tally())
        arrival_ns = None if self.arrivals_ns is None else self.arrivals_ns[index]
        line = self._again.get(at)
        session_id = session.session_id if line is None else f"{session.session_id}.line-{line}"
        return msgspec.structs.replace(session, session_id=session_id, arrival_ns=arrival_ns)

    def place(self, index: int) -> str:
        """`path:line` of a session's first row, with the file where a folder is read."""
        if index < 0:
            raise IndexError(index)
        return self._source.place(self._first_row(index if self._order is None else self._order[index]))

    def _first_row(self, number: int) -> Row:
        """`number`: in the order of the file."""
        return self._rows[self._ends[number - 1] if number else 0]

    def _placed(self, row: Row) -> Placed:
        return Placed(self._source.place(row), row.line, self._decode(self._source, row))

    def _order_by_time(self) -> None:
        times, path = self._times, str(self._source.path)
        falls = any(later < earlier for earlier, later in pairwise(times))
        if falls:
            by_time = np.argsort(np.frombuffer(times, dtype=np.int64), kind="stable")
            self._order = array("q", by_time.astype(np.int64).tobytes())
            times = array("q", np.frombuffer(times, dtype=np.int64)[by_time].tobytes())
        first_ns = times[0]
        check_span(path, times[-1] - first_ns, "time from the first session to the last")
        self.arrivals_ns = array("q", (time - first_ns for time in times)) if first_ns else times
        warning = check_rate(path, self.arrivals_ns, self._unit_hint)
        if warning is not None:
            self.warnings += (warning,)
        self._times = array("q")


def want_object(row: Placed) -> dict[str, Any]:
    """The row as an object. Raises TraceError."""
    if not isinstance(row.value, dict):
        kind = type(row.value).__name__
        raise TraceError(f"{row.place}: is a {kind}, not an object", hint="name the trace's `format`")
    return row.value
