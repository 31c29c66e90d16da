"""`infersiege doctor`."""

from __future__ import annotations

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
    """Ask every channel of PLAN for its models and for one small answer, without offering load.

    Exits with 0 when all channels answer, with 2 for a faulty plan, with 4 when a target is not there or refuses.
    """
    from infersiege.doctor import examine
    from infersiege.errors import ExitCode, strongest
    from infersiege.plan import load_plan

    checked = load_plan(plan, overrides)
    found = [examine(name, channel, checked.sampling) for name, channel in checked.channels.items()]
    table = Table("channel", "check", "", "seen", box=None, pad_edge=False)
    marks = {True: Text("ok", "green"), False: Text("FAIL", "bold red"), None: Text("note", "yellow")}
    for examination in found:
        for check in examination.checks:
            seen = check.seen if check.hint is None else f"{check.seen}\nhint: {check.hint}"
            table.add_row(Text(examination.channel), Text(check.name), marks[check.ok], Text(seen))
    Console().print(table)
    code = strongest({one.error.exit_code for one in found if one.error is not None})
    if code is not ExitCode.PASS:
        sys.exit(code)
