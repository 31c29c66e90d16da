"""CSV files with a header, read by the names of their columns."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from infersiege.errors import TraceError
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import check_tokens, shown


class CsvTable:
    """A CSV file with a header: wanted columns by name, wherever they stand. Fields may be quoted."""

    def __init__(self, source: Source, wanted: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Raises TraceError where a wanted column is missing or a name comes twice."""
        self._source = source
        self._lines = source.lines()
        self._row, header = next(self._lines, (Row(1, 0, 0), ""))
        names = header_names(header)
        missing = [name for name in wanted if name not in names]
        if missing or len(set(names)) < len(names):
            written = written_otherwise(header, lambda line: set(wanted) <= set(header_names(line)))
            if written is not None:
                raise TraceError(f"{self.place(self._row.line)}: {written}", hint=WRITE_ANEW)
            raise TraceError(
                f"{self.place(self._row.line)}: "
                + (f"the header has no column {missing[0]!r}" if missing else "the header has a column twice"),
                hint=f"{','.join(wanted)} are wanted; name the trace's `format`",
            )
        self.others = tuple(name for name in names if name not in {*wanted, *optional})
        """Columns that nobody asked for."""
        self._width = len(names)
        self.places = {name: names.index(name) for name in (*wanted, *optional) if name in names}
        """0-based place of each column that is there."""

    def place(self, number: int) -> str:
        """`path:line` of a line of the file that the row given last is of (at first, the header)."""
        return self._source.place(self._row._replace(line=number))

    def where(self, number: int) -> str:
        """The same for warnings: only the line, but where a folder is read."""
        return self._source.where(self._row._replace(line=number))

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line number, fields) of each row. Raises TraceError for a line that is not of the header's width."""
        width = self._width
        for row, line in self._lines:
            self._row = row
            fields = line.split(",") if '"' not in line else self._quoted(row.line, line)
            if len(fields) != width:
                raise TraceError(
                    f"{self.place(row.line)}: has {len(fields)} columns, {width} are wanted",
                    hint="the file may have been cut",
                )
            yield row.line, fields

    def _quoted(self, number: int, line: str) -> list[str]:
        try:
            return next(csv.reader([line]))
        except csv.Error as error:
            raise TraceError(
                f"{self.place(number)}: is no line of a CSV file ({error})", hint="a row is one line"
            ) from error

    def tokens(self, text: str, column: str, number: int) -> int:
        """A whole number of at least 0 (`3.0` counts as 3). Raises TraceError."""
        # Python's own numbers may have underscores, and digits of any script.
        try:
            value = int(text) if text.isascii() and text.isdecimal() else self._from_float(text, column, number)
        except ValueError:  # Python reads no more than some thousand digits
            self._refuse(text, column, number)
        if value < 0:
            self._refuse(text, column, number)
        if value > _PLAUSIBLE:
            check_tokens(value, column, self.place(number))
        return value

    def _from_float(self, text: str, column: str, number: int) -> int:
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not value.is_integer():
            self._refuse(text, column, number)
        return int(value)

    def _refuse(self, text: str, column: str, number: int) -> NoReturn:
        raise TraceError(
            f"{self.place(number)}: {column} is {shown(text)}, a whole number of at least 0 is wanted",
            hint="is this the right column?",
        )


_NUMBER = re.compile(r" *[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)? *", re.ASCII)

_PLAUSIBLE = 1_000_000
"""Larger numbers of tokens are looked at."""


WRITE_ANEW = "columns are parted by commas, lines end with LF or CR LF: write the file anew so"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def written_otherwise(header: str, fits: Callable[[str], bool]) -> str | None:
    """What is wrong with a header that `fits` with other marks, as a message goes on; None: it does not."""
    first, ended, _ = header.partition("\r")
    if ended and fits(first):
        return "its lines end with CR only"
    found = (name for mark, name in _SEPARATORS.items() if mark in header and fits(first.replace(mark, ",")))
    return next((f"its columns are parted by {name}" for name in found), None)


def header_names(line: str) -> list[str]:
    """Names of a CSV header, without blanks around them; none where the line is no CSV."""
    try:
        return [name.strip() for name in next(csv.reader([line]), [])]
    except csv.Error:
        return []
