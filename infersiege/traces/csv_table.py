"""CSV files with a header, read by the names of their columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import NoReturn

from infersiege.errors import TraceError
from infersiege.traces.source import Source
from infersiege.traces.values import check_tokens, shown


class CsvTable:
    """A CSV file with a header: wanted columns by name, wherever they stand. Fields may be quoted."""

    def __init__(self, source: Source, wanted: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Raises TraceError where a wanted column is missing or a name comes twice."""
        self._source = source
        self._lines = source.lines()
        number, header = next(self._lines, (0, ""))
        names = header_names(header)
        missing = [name for name in wanted if name not in names]
        if missing or len(set(names)) < len(names):
            raise TraceError(
                f"{source.path}:{max(number, 1)}: "
                + (f"the header has no column {missing[0]!r}" if missing else "the header has a column twice"),
                hint=f"{','.join(wanted)} are wanted; name the trace's `format`",
            )
        self.others = tuple(name for name in names if name not in {*wanted, *optional})
        """Columns that nobody asked for."""
        self._width = len(names)
        self.places = {name: names.index(name) for name in (*wanted, *optional) if name in names}
        """0-based place of each column that is there."""

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line number, fields) of each row. Raises TraceError for a line that is not of the header's width."""
        width = self._width
        for number, line in self._lines:
            fields = line.split(",") if '"' not in line else self._quoted(number, line)
            if len(fields) != width:
                raise TraceError(
                    f"{self._source.path}:{number}: has {len(fields)} columns, {width} are wanted",
                    hint="the file may have been cut",
                )
            yield number, fields

    def _quoted(self, number: int, line: str) -> list[str]:
        try:
            return next(csv.reader([line]))
        except csv.Error as error:
            raise TraceError(
                f"{self._source.path}:{number}: is no line of a CSV file ({error})", hint="a row is one line"
            ) from error

    def tokens(self, text: str, column: str, number: int) -> int:
        """A whole number of at least 0 (`3.0` counts as 3). Raises TraceError."""
        try:
            value = int(text)
        except ValueError:
            value = self._from_float(text, column, number)
        if value < 0:
            self._refuse(text, column, number)
        if value > _PLAUSIBLE:
            check_tokens(value, column, f"{self._source.path}:{number}")
        return value

    def _from_float(self, text: str, column: str, number: int) -> int:
        try:
            value = float(text)
        except ValueError:
            self._refuse(text, column, number)
        if not value.is_integer():
            self._refuse(text, column, number)
        return int(value)

    def _refuse(self, text: str, column: str, number: int) -> NoReturn:
        raise TraceError(
            f"{self._source.path}:{number}: {column} is {shown(text)}, a whole number of at least 0 is wanted",
            hint="is this the right column?",
        )


_PLAUSIBLE = 1_000_000
"""Larger numbers of tokens are looked at."""


def header_names(line: str) -> list[str]:
    """Names of a CSV header, without blanks around them; none where the line is no CSV."""
    try:
        return [name.strip() for name in next(csv.reader([line]), [])]
    except csv.Error:
        return []
