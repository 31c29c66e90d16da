"""Azure LLM inference traces 2023 and 2024: CSV of `TIMESTAMP,ContextTokens,GeneratedTokens`, lengths only."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from infersiege.errors import TraceError
from infersiege.traces.head import Head
from infersiege.traces.lengths import LengthTrace
from infersiege.traces.options import OptionTable
from infersiege.traces.source import Source
from infersiege.traces.trace import ReadOptions, Tally, check_rate, check_span
from infersiege.traces.values import check_tokens

NAME = "azure"
OPTIONS: OptionTable = {}

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")


def sniff(head: Head) -> bool:
    return head.first_line.startswith("TIMESTAMP,ContextTokens")


def stamp_ns(text: str) -> int:
    """Nanoseconds since the epoch of `2023-11-16 18:15:46.6805900` (0 to 9 digits; UTC unless it has an offset).

    strptime refuses the seven digits, fromisoformat cuts the seventh. Raises ValueError.
    """
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is no timestamp")
    day, time, fraction, zone = match.groups()
    moment = datetime.fromisoformat(f"{day}T{time}{zone or ''}")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def read(source: Source, options: ReadOptions) -> LengthTrace:
    """Raises TraceError for a wrong header or row and for times that go back."""
    tally = Tally()
    trace = LengthTrace(options, format=NAME, sha256=source.sha256(), block_tokens=None)
    rows = 0
    first: int | None = None
    before = 0
    for line, row in _rows(source, tally):
        if options.limit is not None and len(trace.arrivals_ns or ()) >= options.limit:
            break
        rows += 1
        place = f"{source.path}:{line}"
        if len(row) < 3:
            raise TraceError(f"{place}: has {len(row)} columns, 3 are wanted", hint="the file may have been cut")
        try:
            at = stamp_ns(row[0])
            prompt, output = int(row[1]), int(row[2])
        except (ValueError, OverflowError) as error:
            raise TraceError(f"{place}: {error}", hint="a row is TIMESTAMP,ContextTokens,GeneratedTokens") from error
        for value, column in ((prompt, _COLUMNS[1]), (output, _COLUMNS[2])):
            check_tokens(value, column, place)
        if first is None:
            first = before = at
        if at < before:
            raise TraceError(
                f"{place}: timestamp went back by {(before - at) / 1e9:g} s to {row[0]}",
                hint="sort the file by TIMESTAMP",
            )
        before = at
        arrival_ns = check_span(place, at - first, "time since the first row")
        if prompt <= 0 or output <= 0:
            tally.skip("no_input" if prompt <= 0 else "no_output", f"line {line}")
            continue
        trace.add(line=line, arrival_ns=arrival_ns, prompt=prompt, output=output)
    tally.require_sessions(len(trace.arrivals_ns or ()), str(source.path), rows)
    warning = check_rate(str(source.path), trace.arrivals_ns or (), "TIMESTAMP is a date and a time of day")
    trace.finish(rows=rows, tally=tally, warnings=() if warning is None else (warning,))
    return trace


def _rows(source: Source, tally: Tally) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) below the header."""
    lines = source.lines()
    number, header = next(lines, (0, ""))
    names = [name.strip() for name in header.split(",")]
    if tuple(names[:3]) != _COLUMNS:
        raise TraceError(
            f"{source.path}:{max(number, 1)}: header is {header[:60]!r}, {','.join(_COLUMNS)} is wanted",
            hint="name the trace's `format`",
        )
    for extra in names[3:]:
        tally.odd(f"column {extra!r} is not sent")
    for number, line in lines:
        if line.strip():
            try:
                yield number, next(csv.reader([line]))
            except csv.Error as error:
                raise TraceError(f"{source.path}:{number}: is no line of a CSV file ({error})") from error
