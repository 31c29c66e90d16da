"""Our own trace format: JSON Lines of `records.Session`, after a first line that names the version.

    {"infersiege_trace": 1}
    {"session_id": "a", "arrival_ns": 0, "turns": [{"messages": [{"role": "user", "content": "Hi"}]}]}

It keeps all that any reader knows; what is not said has its default. docs/schema/session.schema.json is its schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import shown_key
from infersiege.traces.options import Option
from infersiege.traces.sessions.session_checks import check_session
from infersiege.traces.trace import ReadOptions, Tally

NAME = "infersiege"
VERSION = 1

OPTIONS: dict[str, Option] = {}

_FIELD_NAME = re.compile("unknown field `(.*?)`(?= - at `|$)", re.DOTALL)
"""In a decoder's message: it may be anything that somebody wrote."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    infersiege_trace: int
    """Version of the format."""
    made_from: str | None = None
    """Name and format of the trace that it was converted from."""
    sha256: str | None = None
    """Of that file."""
    changes: tuple[str, ...] = ()
    """What was done to it, oldest first: `shape-only`, `redact`, `sample 0.1`, `stretch 2` …"""


def sniff(head: Head) -> bool:
    return "infersiege_trace" in head.outline.keys


def header_of(source: Source) -> Header:
    """Raises TraceError for a file without a header, or of a later version."""
    row = next(source.rows(), None)
    try:
        header = msgspec.convert(None if row is None else source.json(row), Header)
    except msgspec.ValidationError:
        raise TraceError(
            f"{source.path}:1: is no header of the format {NAME!r}",
            hint=f'the first line of such a file is {{"infersiege_trace": {VERSION}}}',
        ) from None
    if header.infersiege_trace != VERSION:
        raise TraceError(
            f"{source.path}:1: version {header.infersiege_trace} of the format is not known, {VERSION} is",
            hint="read it with a newer infersiege, or convert it again",
        )
    return header


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError with the line and the path inside the row."""
    header = header_of(source)
    rows = source.rows()
    next(rows)
    decoder = msgspec.json.Decoder(Session)

    def decode(source: Source, row: Row) -> Session:
        try:
            session = decoder.decode(source.raw(row))
        except (msgspec.DecodeError, RecursionError) as error:
            reason = _FIELD_NAME.sub(lambda found: f"unknown field {shown_key(found[1])}", str(error))
            raise TraceError(f"{source.place(row)}: {reason}", hint="docs/traces.md has the format") from None
        check_session(session, source.place(row))
        return session

    trace = IndexedTrace(source, options, format=NAME, make=_same, decode=decode).read_rows(rows)
    trace.changes = header.changes
    return trace


def _same(rows: Sequence[Placed], tally: Tally) -> Session:
    session = rows[0].value
    assert isinstance(session, Session)
    return session


def write(file: IO[bytes], sessions: Iterable[Session], header: Header | None = None) -> int:
    """Write a trace; returns how many sessions."""
    count = -1
    for line in lines(sessions, header):
        file.write(line + b"\n")
        count += 1
    return count


def lines(sessions: Iterable[Session], header: Header | None = None) -> Iterator[bytes]:
    """The lines of a trace, without their ends: the header, then the sessions."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(header or Header(infersiege_trace=VERSION))
    for session in sessions:
        yield encoder.encode(session)
