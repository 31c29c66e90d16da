"""`infersiege report`."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infersiege.cli.output import escaped
from infersiege.cli.paths import NAMED_PATH

if TYPE_CHECKING:
    from infersiege_agents.influx.target import Target

    from infersiege.errors import ExitCode, InfersiegeError
    from infersiege.report import Rebuilt
    from infersiege.rundir import RunDirectory


@click.command(epilog="Example: infersiege report runs/20261130T140211Z-qwen3-8b-on-vllm --with-telemetry")
@click.argument("run", type=NAMED_PATH)
@click.option(
    "--with-telemetry",
    is_flag=True,
    help="First fetch the GPU and engine series of all hosts from InfluxDB into the run directory.",
)
@click.option(
    "--influx-url", metavar="URL", help="InfluxDB to fetch from.  [default: that of the run's plan; needs the above]"
)
@click.option(
    "--language",
    type=click.Choice(["en", "zh"]),
    default="en",
    show_default=True,
    help="Of report.html: English or Chinese. Names of metrics and what the run itself holds stay English.",
)
@click.option("--open/--no-open", "open_it", default=False, help="Open report.html in the browser.  [default: no]")
@click.pass_context
def report(
    context: click.Context, run: Path, with_telemetry: bool, influx_url: str | None, language: str, open_it: bool
) -> None:
    """Rebuild summary.json, report.html and windows.jsonl of RUN from its turns and plan, and print the tables.

    The same figures come out, whatever happened to these files; those of GPUs and engines come from telemetry/*.jsonl
    and are missing without them. Exits with 0 when it could be rebuilt, whatever the figures are, and with 2 when a
    file could not be written (the tables are printed all the same); `infersiege gate` is what judges.

    With --with-telemetry the series come into telemetry/*.jsonl first, and a run that was written to InfluxDB gets its
    rows of infersiege_run written again, so that dashboards show the same. It exits with 4, and changes nothing, when
    the database can't be asked, and with 5 when it has no series of the run's time. Bucket, organisation, hosts and the
    variable with the token are those of [telemetry] in the run's plan.
    """
    from rich.console import Console

    from infersiege.cli.unwritten import warn_of
    from infersiege.errors import ExitCode, UsageError, strongest
    from infersiege.report import judged, read, write
    from infersiege.report.tables import print_summary
    from infersiege.report.words import LANGUAGES
    from infersiege.rundir.living import open_finished
    from infersiege.telemetry.remarks import silent

    if influx_url is not None and not with_telemetry:
        raise UsageError("--influx-url means nothing without --with-telemetry", hint="add --with-telemetry")
    directory = open_finished(run)
    target = _target(directory, influx_url) if with_telemetry else None
    code, silent_hosts = (ExitCode.PASS, ()) if target is None else _fetch(directory, target)
    found = judged(read(directory), gated=False)
    unwritten: list[InfersiegeError] = []
    if target is not None:
        found = _with_remarks(directory, found, silent(silent_hosts, target.url), unwritten.append)
    write(directory, found, unwritten.append, LANGUAGES[language])
    if target is not None:
        _write_again(directory, found, target)
    print_summary(found.summary, Console(highlight=False), examples=found.examples)
    if unwritten:
        warn_of(unwritten)
        context.exit(strongest({code, ExitCode.USAGE}))
    click.echo(f"report: {directory.report_path}")
    if open_it:
        webbrowser.open(directory.report_path.resolve().as_uri())
    context.exit(code)


def _target(run: RunDirectory, url: str | None) -> Target:
    from infersiege.errors import UsageError
    from infersiege.telemetry.database import database_of

    target = database_of(run.read_plan().typed_plan().telemetry, os.environ, url=url)
    if target is None:
        raise UsageError(
            f"{run.path}: its plan names no InfluxDB", hint="name the one that the agents write to with --influx-url"
        )
    return target


def _fetch(run: RunDirectory, target: Target) -> tuple[ExitCode, tuple[str, ...]]:
    """Fetch the series, and say what came: PASS, or NO_DATA when nothing did; and the hosts that have none."""
    from infersiege.errors import ExitCode
    from infersiege.telemetry.fetch import fetch

    got = fetch(run, target, hosts=run.read_plan().typed_plan().telemetry.hosts)
    for note in got.notes:
        click.echo(f"note: {escaped(note)}", err=True)
    for name, one in got.files.items():
        of = f" of {', '.join(one.hosts)}" if one.hosts else ""
        click.echo(
            f"telemetry: {name}: {one.rows:,} points{of} in {target.url}, {one.added:,} of them new here", err=True
        )
    for host in got.missing_hosts:
        click.echo(f"warning: host {escaped(host)} has no series of this run's time in {target.url}", err=True)
    if got.rows:
        return ExitCode.PASS, got.missing_hosts
    click.echo(
        f"error: bucket {target.bucket!r} of {target.url} has no GPU or engine series of this run's time\n"
        "hint: did agents write there while it ran, and are all clocks right? infersiege-agent check tells",
        err=True,
    )
    return ExitCode.NO_DATA, got.missing_hosts


def _with_remarks(
    run: RunDirectory, found: Rebuilt, remarks: tuple[str, ...], on_unwritten: Callable[[InfersiegeError], None]
) -> Rebuilt:
    """What is to say of the series now, in place of what an earlier fetch left in plan.json."""
    from infersiege.errors import InfersiegeError
    from infersiege.telemetry.remarks import resettled

    again = resettled(found, remarks)
    if again.plan != found.plan:
        try:
            run.write_plan(again.plan)
        except InfersiegeError as error:
            on_unwritten(error)
    return again


def _write_again(run: RunDirectory, found: Rebuilt, target: Target) -> None:
    """The run's rows in the database, where it has some."""
    from infersiege.errors import InfersiegeError
    from infersiege.telemetry.republish import write_again

    if found.plan.typed_plan().telemetry.influx_url is None:
        return
    try:
        click.echo(f"telemetry: {write_again(run, found, target, os.environ)}", err=True)
    except InfersiegeError as error:
        click.echo(f"warning: {escaped(str(error))}", err=True)
