"""`infersiege doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text


@click.command(epilog="Example: infersiege doctor plan.toml --set channel.local.model=qwen3-8b")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the plan.")
def doctor(plan: Path, overrides: tuple[str, ...]) -> None:
    """Ask every channel of PLAN for its models and for one small answer, without offering load. Where the plan names an
    InfluxDB, write a point to it and read it back.

    Exits with 0 when all channels answer, with 2 for a faulty plan, with 4 when a target is not there or refuses. An
    InfluxDB that is down is only noted: a run starts without it, and its points wait on disk.
    """
    from infersiege.doctor import examine
    from infersiege.doctor.telemetry import examine_telemetry
    from infersiege.errors import ExitCode, strongest
    from infersiege.plan import load_plan

    checked = load_plan(plan, overrides)
    found = [examine(name, channel, checked.sampling) for name, channel in checked.channels.items()]
    series = examine_telemetry(checked.telemetry, os.environ)
    table = Table("channel", "check", "", "seen", box=None, pad_edge=False)
    marks = {True: Text("ok", "green"), False: Text("FAIL", "bold red"), None: Text("note", "yellow")}
    rows = [(one.channel, check) for one in found for check in one.checks]
    for name, check in [*rows, *(("telemetry", check) for check in series.checks)]:
        seen = check.seen if check.hint is None else f"{check.seen}\nhint: {check.hint}"
        table.add_row(Text(name), Text(check.name), marks[check.ok], Text(seen))
    Console().print(table)
    code = strongest({error.exit_code for error in (*(one.error for one in found), series.error) if error is not None})
    if code is not ExitCode.PASS:
        sys.exit(code)
