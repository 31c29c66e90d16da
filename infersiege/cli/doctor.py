"""`infersiege doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from infersiege.doctor.examined import Line

_COLOURS = {"ok": "green", "warning": "yellow", "fault": "red"}


@click.command(epilog="Example: infersiege doctor plan.toml --set channel.local.model=qwen3-8b")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the plan.")
@click.option("--json", "as_json", is_flag=True, help="The same findings as one JSON object.")
def doctor(plan: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Look at all that PLAN needs, without offering load: each channel in turn, this host, and the database it names.

    One line per check: ok, warning or fault, what was seen, what to try. Exits with 0 when there is no fault, with 2
    for a faulty plan, with 4 when a target is not there or refuses. An InfluxDB that is down is only a warning: a run
    starts without it, and its points wait on disk.
    """
    from infersiege.doctor.examined import examine_plan
    from infersiege.errors import ExitCode
    from infersiege.plan import load_plan

    examined = examine_plan(
        load_plan(plan, overrides, check_environment=False), os.environ, show=None if as_json else _show
    )
    if as_json:
        click.echo(examined.as_json())
    if examined.exit_code is not ExitCode.PASS:
        sys.exit(examined.exit_code)


def _show(line: Line) -> None:
    """One line, as soon as it is known."""
    verdict = click.style(f"{line.verdict:<8}", fg=_COLOURS[line.verdict], bold=line.verdict == "fault")
    hint = f" | try: {line.hint}" if line.hint else ""
    click.echo(f"{line.subject}  {verdict} {line.check:<14}  {line.seen}{hint}")
