"""A comparison in a terminal: figures are rows, runs are columns; what is too wide goes into several tables.

Colour only repeats what the words say.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from infersiege.compare.comparison import Cell, ColumnShown, Comparison, Line
from infersiege.compare.rows import written
from infersiege.compare.unequal import Unequal
from infersiege.gate.change import floor_of
from infersiege.report.fitting import fitted
from infersiege.report.numbers import ABSENT, count, moment, printable, span
from infersiege.report.tables import print_emulated

FACTS_SHOWN = 3
"""Facts of one kind that were compared on purpose; more of them are only named."""

_NAME_WIDTH = 24
_STYLES = {"better": "green", "worse": "red", "differs": "yellow"}
_UNITS = {"ratio": "", "money": "", "money/M tokens": "", "count": ""}

RUNS = (
    "ranges without * are of 95 %, between runs, each of its row alone: of 20 figures that did not change one looks as "
    "if it had"
)
TURNS = (
    "ranges with * are what the turns of these runs tell. They do not hold how much runs of the same thing differ, "
    "which is often more: 5 runs of each side tell"
)
MISSING = "– is a figure that not every run of the column has: p99 needs 100 turns, and the report of a run says why"
SPREAD = "of several runs the mean is shown, and where there is room how much they differ (standard deviation)"


def print_comparison(found: Comparison, console: Console) -> None:
    """Everything, warnings after the table."""
    if found.emulated:
        print_emulated(console)
    for place, column in enumerate(found.columns):
        said = Text(printable(column.name), style="bold")
        said.append("  (reference)" if place == 0 else "", style="dim")
        said.append(f"  {printable(about(column))}", style="dim")
        said.append(f"  {doubt_of(column)}" if doubt_of(column) else "", style="bold magenta")
        console.print(said)
    for table in figure_tables(found, console.width):
        console.print(table)
    for line, style in remarks(found):
        console.print(Text(printable(line), style=style), soft_wrap=not console.is_terminal)


def remarks(found: Comparison, *, whole: bool = False) -> Iterator[tuple[str, str]]:
    """What must be read with the table, most important last, with its style. `whole`: every fact with its values."""
    for line in (*basis_lines(found), *found.notes):
        yield f"note: {line}", "dim"
    many = Counter(_word(fact) for fact in found.unequal if fact.expected)
    shown = FACTS_SHOWN if not whole else len(found.unequal)
    for word in (word for word, facts in many.items() if facts > shown):
        names = [fact.name.removeprefix(f"{word}.") for fact in found.unequal if _word(fact) == word]
        yield f"differs: {word}: {', '.join(names)} (page, --markdown and --json have the values)", "dim"
    for fact in sorted(found.unequal, key=lambda fact: not fact.expected):
        if not fact.expected:
            yield f"unequal: {fact.name}: {_told(fact, found)} ({fact.why})", "yellow"
        elif many[_word(fact)] <= shown:
            yield f"differs: {fact.name}: {_told(fact, found)}", "dim"
    for warning in found.warnings:
        yield f"warning: {warning}", "yellow"


def _word(fact: Unequal) -> str:
    return fact.name.partition(".")[0]


def _told(fact: Unequal, found: Comparison) -> str:
    return "; ".join(f"{value} in {names}" for value, names in by_value(fact.values, found.columns))


def about(column: ColumnShown) -> str:
    """What it is, on one line."""
    runs = column.runs
    many = [f"{len(runs)} runs"] if len(runs) > 1 else []
    path = [runs[0].path] if len(runs) == 1 else []
    turns = f"{sum(run.turns for run in runs):,} turns"
    steady = f"steady {span(sum(run.steady_duration_ns for run in runs) // len(runs))}"
    started = moment(min(run.started_ns for run in runs))
    return " · ".join(part for part in (column.about, *many, turns, steady, started, *path) if part)


def doubt_of(column: ColumnShown) -> str:
    """What nobody may miss of its runs; empty: nothing."""
    invalid = sum(bool(run.invalid) for run in column.runs)
    if not invalid:
        return ""
    return "INVALID" if len(column.runs) == 1 else f"{invalid} OF {len(column.runs)} INVALID"


def by_value(values: Sequence[str], columns: Sequence[ColumnShown]) -> list[tuple[str, str]]:
    """(value, names of the columns that have it)."""
    names: dict[str, list[str]] = {}
    for value, column in zip(values, columns, strict=True):
        names.setdefault(value, []).append(column.name)
    return [(value, ", ".join(those)) for value, those in names.items()]


def basis_lines(found: Comparison) -> list[str]:
    """What the ranges of the table are."""
    bases = {cell.basis for line in found.rows for cell in line.cells}
    said = [words for basis, words in (("runs", RUNS), ("turns", TURNS)) if basis in bases]
    if any(cell.value is None for line in found.rows for cell in line.cells):
        said.append(MISSING)
    if any(len(column.runs) > 1 for column in found.columns):
        said.append(SPREAD)
    return said


# ------------------------------------------------------------------------------------------------------- the table


def figure_tables(found: Comparison, width: int) -> Iterator[Table]:
    """One table, or several where it would be too wide; the reference stands in the first."""
    headers = ["", *map(_header, found.columns)]
    columns = [_aligned(found.rows, place, spread=True) for place in range(len(found.columns))]
    titles = max((len(title_of(line)) for line in found.rows), default=0)
    if titles + sum(1 + column.width for column in columns) + 2 > width:
        columns = [_aligned(found.rows, place, spread=False) for place in range(len(found.columns))]
    rows = [
        [Text(title_of(line)), *cells]
        for line, cells in zip(found.rows, zip(*(column.cells for column in columns), strict=True), strict=True)
    ]
    if rows:
        rows += [[Text(name), *map(_below, values, columns)] for name, values in word_rows(found)]
        for table in fitted("Compared", headers, rows, width):
            for column in table.columns:
                column.justify = "left"  # cells are aligned in themselves; to the right, their last spaces would go
            yield table


def _below(value: str, column: _Aligned) -> Text:
    """A word below the values of its column."""
    return Text(value.rjust(column.value_width))


def _header(column: ColumnShown) -> str:
    lines = textwrap.wrap(printable(column.name), _NAME_WIDTH)[:3]
    return "\n".join([*lines, doubt_of(column)]).strip()


def title_of(line: Line) -> str:
    """`TTFT p50 ms`."""
    return f"{line.title} {_UNITS.get(line.unit, line.unit)}".rstrip()


def word_rows(found: Comparison) -> list[tuple[str, list[str]]]:
    """Rows that are no figures: whether the client was fit, the verdict of the runs' own rules, how much there is."""
    rows = [
        ("Client", [_all(run.client for run in column.runs) for column in found.columns]),
        ("Verdict", [_all(run.verdict for run in column.runs) for column in found.columns]),
        ("Turns ok", [count(sum(run.turns for run in column.runs)) for column in found.columns]),
        ("Runs", [count(len(column.runs)) for column in found.columns]),
    ]
    return [(name, values) for name, values in rows if any(value != ABSENT for value in values)]


def _all(values: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(value or ABSENT for value in values))


class _Aligned(NamedTuple):
    """Cells of one column, with values, differences and ranges below each other."""

    cells: list[Text]
    value_width: int

    @property
    def width(self) -> int:
        return max((len(cell) for cell in self.cells), default=0)


def _aligned(lines: Sequence[Line], place: int, *, spread: bool) -> _Aligned:
    cells = [(line, line.cells[place]) for line in lines]
    parts = [(written(line.unit, cell.value), change_of(line, cell), range_of(line, cell)) for line, cell in cells]
    values, changes = (max((len(part[number]) for part in parts), default=0) for number in range(2))
    spreads = [spread_of(line, cell) if spread else "" for line, cell in cells]
    room = max(map(len, spreads), default=0)
    made = []
    for (value, change, ends), (_, cell), differ in zip(parts, cells, spreads, strict=True):
        text = Text(f"{value.rjust(values)} {differ.ljust(room)}" if room else value.rjust(values))
        if change:
            text.append(f" {change.rjust(changes)} {ends}".rstrip(), style=_STYLES.get(cell.says, ""))
        made.append(text)
    return _Aligned(made, values)


def spread_of(line: Line, cell: Cell) -> str:
    """`±3.1 %`: standard deviation between the runs of a column, of shares in points; empty: fewer than two have it."""
    known = [value for value in cell.values if value is not None]
    found = floor_of(known, share=line.share)
    if found is None:
        return ""
    return f"±{100 * found.deviation:.2f} pt" if line.share else f"±{100 * found.deviation:.1f} %"


def change_of(line: Line, cell: Cell) -> str:
    """`+12.3 %`; of shares `+1.20 pt`; empty: there is none."""
    return "" if cell.change is None else f"{signed(line, cell.change)} {'pt' if line.share else '%'}"


def signed(line: Line, change: float) -> str:
    """`+12.3`, in percent or points."""
    value = 100 * change
    digits = 2 if line.share else 0 if abs(value) >= 99.95 else 1
    said = f"{value:+,.{digits}f}"
    return "0" if float(said.replace(",", "")) == 0 else said


def range_of(line: Line, cell: Cell) -> str:
    """`(+8.1 to +16.2)* worse`; empty: nothing tells how sure the difference is."""
    if cell.change_low is None or cell.change_high is None:
        return ""
    ends = f"({signed(line, cell.change_low)} to {signed(line, cell.change_high)})"
    return f"{ends}{'*' if cell.basis == 'turns' else ''} {cell.says}".rstrip()
