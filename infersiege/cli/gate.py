"""`infersiege gate`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(epilog="Example: infersiege gate runs/20261130T140211Z-qwen3-8b-on-vllm")
@click.argument("run", type=click.Path(path_type=Path))
@click.pass_context
def gate(context: click.Context, run: Path) -> None:
    """Judge RUN by the [[slo]] rules of its plan: print them, write junit.xml, exit with the code of the verdict.

    The figures are made anew from turns.jsonl, so that nothing edited in between counts; summary.json and report.html
    get the verdict. A file that can't be written is warned of and changes no verdict.

    Exit codes: 0 pass, 1 a rule failed, 3 the run is invalid, 5 no data for a rule, 130 interrupted.
    """
    from rich.console import Console

    from infersiege.cli.unwritten import warn_of
    from infersiege.errors import InfersiegeError
    from infersiege.report import judged, read, write
    from infersiege.report.junit import junit_xml
    from infersiege.report.tables import print_emulated, print_rules
    from infersiege.rundir import RunDirectory

    directory = RunDirectory.open(run)
    found = judged(read(directory), gated=True)
    unwritten: list[InfersiegeError] = []
    summary = write(directory, found, unwritten.append)
    junit = None
    try:
        junit = directory.write_junit(junit_xml(summary, summary.rules))
    except InfersiegeError as error:
        unwritten.append(error)
    console = Console(highlight=False)
    if summary.emulated:
        print_emulated(console)
    print_rules(summary, console)
    if not found.plan.typed_plan().slos:
        click.echo("note: the plan has no [[slo]]; only the built-in rules were judged", err=True)
    if junit is not None:
        click.echo(f"junit: {junit}")
    warn_of(unwritten)
    context.exit(summary.exit_code)
