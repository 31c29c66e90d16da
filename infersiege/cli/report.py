"""`infersiege report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click


@click.command(epilog="Example: infersiege report runs/20261130T140211Z-qwen3-8b-on-vllm")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--open/--no-open", "open_it", default=False, help="Open report.html in the browser.  [default: no]")
@click.pass_context
def report(context: click.Context, run: Path, open_it: bool) -> None:
    """Rebuild summary.json, report.html and windows.jsonl of RUN from its turns and plan, and print the tables.

    The same figures come out, whatever happened to the other files. Exits with 0 when it could be rebuilt, whatever the
    figures are, and with 2 when a file could not be written (the tables are printed all the same); `infersiege gate` is
    what judges.
    """
    from rich.console import Console

    from infersiege.cli.unwritten import warn_of
    from infersiege.errors import ExitCode, InfersiegeError
    from infersiege.report import judged, read, write
    from infersiege.report.tables import print_summary
    from infersiege.rundir import RunDirectory

    directory = RunDirectory.open(run)
    found = judged(read(directory), gated=False)
    unwritten: list[InfersiegeError] = []
    write(directory, found, unwritten.append)
    print_summary(found.summary, Console(highlight=False), examples=found.examples)
    if unwritten:
        warn_of(unwritten)
        context.exit(ExitCode.USAGE)
    click.echo(f"report: {directory.report_path}")
    if open_it:
        webbrowser.open(directory.report_path.resolve().as_uri())
