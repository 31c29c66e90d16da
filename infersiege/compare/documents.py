"""A comparison for a document or a spreadsheet: the table in Markdown, and every figure as a row of CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from infersiege.compare.comparison import Cell, Comparison, Line
from infersiege.compare.rows import written
from infersiege.compare.tables import about, change_of, doubt_of, range_of, remarks, spread_of, title_of, word_rows
from infersiege.report.numbers import printable

CSV_HEADER = (
    "metric", "unit", "column", "runs", "value", "low", "high", "lowest_run", "highest_run", "reference", "change",
    "change_low", "change_high", "change_unit", "range_of", "says",
)  # fmt: skip

MARKDOWN_HEAD = re.compile(rb"\|  \|[^\n]*\n\|---\|(---:\|)+\n")
"""How `markdown_table` begins."""


def markdown_table(found: Comparison) -> str:
    """The table with figures as rows, and below it what must be read with it. Names may hold anything."""
    headers = ["", *(_named(column.name, doubt_of(column)) for column in found.columns)]
    rows = [[title_of(line), *(_cell(line, cell) for cell in line.cells)] for line in found.rows]
    rows += [[name, *values] for name, values in word_rows(found)]
    rule = f"|---|{'---:|' * len(found.columns)}"
    lines = [_line(headers), rule, *map(_line, rows), ""]
    if found.emulated:
        lines += ["**EMULATED**: the target was infersiege's own emulator; the figures say nothing about hardware.", ""]
    lines += [f"* {_text(column.name)}: {_text(about(column))}" for column in found.columns]
    lines += [f"* {_text(line)}" for line, _ in remarks(found, whole=True)]
    return "\n".join(lines) + "\n"


def _named(name: str, doubt: str) -> str:
    return f"{name} ({doubt})" if doubt else name


def _cell(line: Line, cell: Cell) -> str:
    parts = (written(line.unit, cell.value), spread_of(line, cell), change_of(line, cell), range_of(line, cell))
    return " ".join(part for part in parts if part)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_text, cells))} |"


def _text(value: str) -> str:
    """One line, without anything that Markdown or the HTML in it would obey."""
    said = printable(value)
    for character in "\\`*_[]<>|#~":
        said = said.replace(character, f"\\{character}")
    return said


def csv_table(found: Comparison) -> str:
    """A row per figure and column, in full precision: ratios as ratios, changes as ratios or points.

    What is not known is empty. A spreadsheet takes text that begins with `=`, `+`, `-` or `@` for a formula: such names
    get an apostrophe before them.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for line in found.rows:
        for column, cell in zip(found.columns, line.cells, strict=True):
            known = [value for value in cell.values if value is not None]
            figures = (cell.value, cell.low, cell.high, min(known, default=None), max(known, default=None))
            change = (cell.change, cell.change_low, cell.change_high)
            unit = "" if cell.change is None else "points" if line.share else "ratio"
            scaled = [None if one is None else 100 * one if line.share else one for one in change]
            against = "" if cell.change is None else _plain(found.reference)
            head = (line.key, line.unit, _plain(column.name), len(known))
            changes = (against, *map(_number, scaled), unit, cell.basis or "", cell.says)
            writer.writerow((*head, *map(_number, figures), *changes))
    return out.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _plain(name: str) -> str:
    said = printable(name)
    return f"'{said}" if said[:1] in ("=", "+", "-", "@") else said
