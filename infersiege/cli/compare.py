"""`infersiege compare`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infersiege.cli.output import escaped

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
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="The page.  [default: compare.html]")
@click.option("--no-html", is_flag=True, help="No page.")
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="The table for a document.")
@click.option("--csv", "table", type=click.Path(path_type=Path), metavar="FILE", help="The figures, a row for each.")
@click.option("--json", "data", type=click.Path(path_type=Path), metavar="FILE", help="Everything, for programs.")
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
    if not no_html:
        _write_page(html, lambda: render(found, shapes))
    if markdown is not None:
        _write(markdown, markdown_table(found), "--markdown")
    if table is not None:
        _write(table, csv_table(found), "--csv")
    if data is not None:
        _write(data, pretty(found).decode(), "--json")


def _write_page(path: Path | None, render: Callable[[], str]) -> None:
    """The page; without a path compare.html, which must not be somebody else's."""
    from infersiege.compare.page import MARK
    from infersiege.errors import UsageError

    if path is None and PAGE.exists():
        try:
            ours = MARK.encode() in PAGE.read_bytes()[:2048]
        except OSError:
            ours = False
        if not ours:
            raise UsageError(f"{PAGE}: is there, and no page of this command", hint="name another with --html")
    _write(path or PAGE, render(), "--html")


def _write(path: Path, text: str, option: str) -> None:
    """Whole or not at all. Raises UsageError when it can't be written."""
    from infersiege.errors import UsageError
    from infersiege.rundir.files import discard, reason_of

    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="replace", newline="")
        part.replace(path)
    except (OSError, ValueError) as error:
        discard(part)
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path}: can't be written: {why}", hint=f"name another with {option}") from None
    click.echo(f"written: {escaped(str(path))}")
