"""`infersiege compare`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infersiege.cli.output import escaped
from infersiege.cli.paths import NAMED_PATH

if TYPE_CHECKING:
    from infersiege.compare.cuts import By

PAGE = Path("compare.html")


@click.command(
    epilog="Example: infersiege compare runs/vllm runs/sglang\n\n"
    "Example: infersiege compare old=runs/before-* new=runs/after --markdown table.md --csv table.csv\n\n"
    "Example: infersiege compare runs/one --by channel"
)
@click.argument("runs", nargs=-1, required=True, metavar="[NAME=]RUN…")
@click.option(
    "--reference", metavar="NAME", help="Column that the others are held against.  [default: that of the first run]"
)
@click.option(
    "--by",
    type=click.Choice(["channel", "scenario", "stage"]),
    help="Each of these of a run is a column of its own.",
)
@click.option("--each", is_flag=True, help="Every run is a column of its own, also those of the same thing.")
@click.option("--html", type=NAMED_PATH, metavar="FILE", help="The page.  [default: compare.html]")
@click.option("--no-html", is_flag=True, help="No page.")
@click.option("--markdown", type=NAMED_PATH, metavar="FILE", help="The table for a document.")
@click.option("--csv", "table", type=NAMED_PATH, metavar="FILE", help="The figures, a row for each.")
@click.option("--json", "data", type=NAMED_PATH, metavar="FILE", help="Everything, for programs.")
def compare(
    runs: tuple[str, ...],
    reference: str | None,
    by: By | None,
    each: bool,
    html: Path | None,
    no_html: bool,
    markdown: Path | None,
    table: Path | None,
    data: Path | None,
) -> None:
    """Put runs side by side: what each reached, how sure the differences are, and what makes it unfair.

    RUN is a run directory, or a folder of runs (a series, a sweep, a search). Runs of the same thing are one column,
    with how much they differ; NAME=RUN names a column, and runs of one name belong together. Five runs of each side
    give ranges that hold how much runs differ; with fewer the ranges are those that their turns tell.

    Nothing is judged (`infersiege gate --baseline` is for that): the exit code is 0 when there is a table. Invalid runs
    are shown, and marked.
    """
    from rich.console import Console

    from infersiege.compare.columns import columns_of, referred
    from infersiege.compare.comparison import compared
    from infersiege.compare.documents import csv_table, markdown_table
    from infersiege.compare.page import render
    from infersiege.compare.sources import named_runs, source_of
    from infersiege.compare.tables import print_comparison
    from infersiege.errors import UsageError
    from infersiege.rundir.files import pretty

    if html is not None and no_html:
        raise UsageError("--html and --no-html exclude each other", hint="leave one out")
    page = None if no_html else html or PAGE
    check_outputs({"--html": page, "--markdown": markdown, "--csv": table, "--json": data})
    named = named_runs(runs)
    sources = [source_of(one, by) for one in named]
    columns, notes = columns_of(sources, each=each)
    if not columns:
        raise UsageError(
            "there is nothing to compare: no turn of these runs was ever due", hint="look at their reports"
        )
    found = compared(referred(columns, reference), by=by, notes=notes)
    print_comparison(found, Console(highlight=False))
    if len(columns) == 1:
        click.echo("note: one column compares with nothing; name more runs, or use --by", err=True)
    shapes = {column.name: [member.cut.shape.by_metric for member in column.members] for column in columns}
    if page is not None:
        _write(page, render(found, shapes))
    if markdown is not None:
        _write(markdown, markdown_table(found))
    if table is not None:
        _write(table, csv_table(found))
    if data is not None:
        _write(data, pretty(found).decode())


def check_outputs(named: Mapping[str, Path | None]) -> None:
    """Before the runs are read. Raises UsageError: one can't be written, or is a file that is not of this option."""
    from infersiege.cli.destination import check_remade, is_standard_output
    from infersiege.compare.comparison import KIND
    from infersiege.compare.documents import CSV_HEADER, MARKDOWN_HEAD
    from infersiege.compare.page import MARK
    from infersiege.errors import UsageError

    known: dict[str, tuple[Callable[[bytes], bool], str]] = {
        "--html": (lambda head: MARK.encode() in head, "page"),
        "--markdown": (lambda head: MARKDOWN_HEAD.match(head) is not None, "Markdown"),
        "--csv": (lambda head: head.startswith(",".join(CSV_HEADER).encode()), "CSV"),
        "--json": (lambda head: f'"kind": "{KIND}"'.encode() in head, "JSON"),
    }
    taken: dict[str, str] = {}
    for option, path in named.items():
        if path is None:
            continue
        place = "-" if is_standard_output(path) else os.path.realpath(path)
        if (before := taken.setdefault(place, option)) != option:
            raise UsageError(f"{before} and {option} both name {path}", hint="each needs a file of its own")
        ours, kind = known[option]
        check_remade(path, ours, f"{kind} of `infersiege compare`")


def _write(path: Path, text: str) -> None:
    """Whole or not at all. Raises UsageError when it can't be written."""
    from infersiege.cli.destination import destination, is_standard_output

    sys.stdout.flush()  # what was said before, where both go to the same place
    with destination(path, force=True) as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
    if not is_standard_output(path):
        click.echo(f"written: {escaped(str(path))}")
