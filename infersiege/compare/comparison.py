"""A comparison: columns of runs against one of them, row by row. Pure.

What is the same in several runs is one column, with the spread of its runs. Of two columns with enough runs each the
range of a difference is that between runs (`gate.change`); else it is what the turns of the runs tell, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from infersiege.compare.columns import Column, Member
from infersiege.compare.intervals import Difference, Estimate, averaged, difference, plain_difference, verdict_of
from infersiege.compare.rows import ROWS, Row
from infersiege.compare.unequal import Unequal, unequal_facts, warnings_of
from infersiege.gate.change import Sample, judge_changes

SCHEMA = 1
KIND = "infersiege compare"

Basis = Literal["runs", "turns"]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one column, in the row's unit, and its difference to the reference."""

    value: float | None
    """Over its runs: the geometric mean, of shares the arithmetic one; None: some run does not have it."""
    values: tuple[float | None, ...]
    """By run."""
    low: float | None = None
    """95 % range of the value, as far as the turns of its runs tell; None, also below: nothing tells."""
    high: float | None = None
    change: float | None = None
    """Against the reference: 0.1 is 10 % more, of shares 10 points. None: it is the reference, or one has no value."""
    change_low: float | None = None
    """95 % range of the difference, of this row alone."""
    change_high: float | None = None
    basis: Basis | None = None
    """`runs`: the range is that between runs. `turns`: only what turns tell; runs may differ by more."""
    says: str = ""
    """`better`, `worse` or `differs` where the range leaves out 0."""


class Line(msgspec.Struct, frozen=True):
    """One row of the table."""

    key: str
    title: str
    unit: str
    better: Literal["lower", "higher"] | None
    share: bool
    cells: tuple[Cell, ...]
    """By column."""


class RunShown(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a column."""

    path: str
    run_id: str
    name: str
    started_ns: int
    turns: int
    """Steady turns that succeeded."""
    steady_duration_ns: int
    verdict: str | None
    client: str | None
    """Whether the load generator was the limit; None: nothing tells."""
    invalid: tuple[str, ...]


class ColumnShown(msgspec.Struct, frozen=True, kw_only=True):
    """A column."""

    name: str
    about: str
    """Engine, version and model, as far as they are known."""
    emulated: bool
    runs: tuple[RunShown, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that table, page and files show."""

    schema_version: int = SCHEMA
    kind: str = KIND
    by: str | None
    reference: str
    columns: tuple[ColumnShown, ...]
    """The reference first."""
    rows: tuple[Line, ...]
    unequal: tuple[Unequal, ...]
    """Facts that are not the same in all columns."""
    warnings: tuple[str, ...]
    """What makes it unfair, beside these."""
    notes: tuple[str, ...]

    @property
    def emulated(self) -> bool:
        return any(column.emulated for column in self.columns)


def compared(columns: Sequence[Column], *, by: str | None = None, notes: Sequence[str] = ()) -> Comparison:
    """Columns against the first of them."""
    reference = columns[0]
    changes = [_changes(reference, column) for column in columns[1:]]
    """By column, then row."""
    rows = []
    for place, row in enumerate(ROWS):
        first, *others = (_cell(row, column) for column in columns)
        cells = (first, *(_with(cell, row, found[place]) for cell, found in zip(others, changes, strict=True)))
        if any(cell.value is not None for cell in cells):
            rows.append(Line(row.key, row.title, row.unit, row.better, row.share, cells))
    return Comparison(
        by=by,
        reference=reference.name,
        columns=tuple(_shown(column) for column in columns),
        rows=tuple(rows),
        unequal=unequal_facts(columns),
        warnings=warnings_of(columns),
        notes=tuple(notes),
    )


def _shown(column: Column) -> ColumnShown:
    return ColumnShown(
        name=column.name,
        about=" and ".join(dict.fromkeys(member.about for member in column.members if member.about)),
        emulated=any(member.cut.summary.emulated for member in column.members),
        runs=tuple(_run(member) for member in column.members),
    )


def _run(member: Member) -> RunShown:
    summary, group = member.cut.summary, member.cut.group
    return RunShown(
        path=member.path,
        run_id=summary.run_id,
        name=summary.name,
        started_ns=summary.started_ns,
        turns=group.counts.ok,
        steady_duration_ns=group.steady_duration_ns,
        verdict=None if summary.verdict is None else summary.verdict.value,
        client=None if summary.client is None else summary.client.value,
        invalid=member.unusable,
    )


# ------------------------------------------------------------------------------------------------------- figures


def _cell(row: Row, column: Column) -> Cell:
    values = tuple(row.value(member.cut) for member in column.members)
    known = [value for value in values if value is not None]
    sure = row.range(column.members[0].cut) if len(values) == 1 else None
    return Cell(
        value=averaged(known, share=row.share) if known and len(known) == len(values) else None,
        values=values,
        low=None if sure is None else sure.low,
        high=None if sure is None else sure.high,
    )


def _with(cell: Cell, row: Row, found: tuple[Difference, Basis | None] | None) -> Cell:
    if found is None:
        return cell
    change, basis = found
    return msgspec.structs.replace(
        cell,
        change=change.change,
        change_low=change.low,
        change_high=change.high,
        basis=basis,
        says=verdict_of(change, row.better),
    )


def _changes(reference: Column, column: Column) -> list[tuple[Difference, Basis | None] | None]:
    """Of each row: between runs where there are enough, else by their turns, else without a range."""
    samples = [
        Sample(
            name=row.key,
            baseline=tuple(row.value(member.cut) for member in reference.members),
            candidate=tuple(row.value(member.cut) for member in column.members),
            better=row.better or "lower",
            share=row.share,
        )
        for row in ROWS
    ]
    found: list[tuple[Difference, Basis | None] | None] = []
    for row, change in zip(ROWS, judge_changes(samples), strict=True):
        if change.change is not None:
            found.append((Difference(change.change, change.low, change.high), "runs"))
            continue
        sides = [[row.range(member.cut) for member in side.members] for side in (reference, column)]
        sure = [_all_known(side) for side in sides]
        between = None if sure[0] is None or sure[1] is None else difference(sure[0], sure[1], share=row.share)
        found.append((between, "turns") if between is not None else _plain(row, reference, column))
    return found


def _all_known(side: Sequence[Estimate | None]) -> list[Estimate] | None:
    known = [one for one in side if one is not None]
    return known if len(known) == len(side) else None


def _plain(row: Row, reference: Column, column: Column) -> tuple[Difference, None] | None:
    before, after = _cell(row, reference).value, _cell(row, column).value
    if before is None or after is None:
        return None
    found = plain_difference(before, after, share=row.share)
    return None if found is None else (found, None)
