"""`infersiege run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from infersiege.cli.address import MASTER_PORT, address_of
from infersiege.errors import UsageError

_LONGEST_WAIT_S = 86_400


def seconds_of(option: str, seconds: float) -> int:
    """Nanoseconds of an option in seconds. Raises UsageError for what is no time to wait."""
    if not 0 <= seconds <= _LONGEST_WAIT_S:  # NaN is not either
        raise UsageError(f"{option} {seconds:g}: not a number of seconds from 0 to {_LONGEST_WAIT_S:,}")
    return round(seconds * 1e9)


@click.command(epilog="Example: infersiege run examples/plans/vllm.toml --workers 2 --set load.users=64")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The run directory itself; default: runs/<time>-<name>.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the plan; may be repeated."
)
@click.option("--workers", type=click.IntRange(0, 1_000), help="Worker processes on this host; default: the plan's, 1.")
@click.option(
    "--expect-workers", type=click.IntRange(1, 10_000), help="Workers in all, with those that join from elsewhere."
)
@click.option(
    "--bind",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST[:PORT]",
    help=f"Where other workers join; default port {MASTER_PORT}, port 0 takes any free one.",
)
@click.option(
    "--web",
    metavar="HOST:PORT",
    help="Serve a page on which the run can be watched, such as 127.0.0.1:8089; read-only.",
)
@click.option("--wait-for-target", default=0.0, metavar="SECONDS", help="Wait so long for the target to become ready.")
@click.option("--skip-doctor", is_flag=True, help="Ask the target nothing before the load.")
@click.option(
    "--gate", "gated", is_flag=True, help="Judge the run by the plan's rules, write junit.xml, exit accordingly."
)
@click.option("--dry-run", is_flag=True, help="Print what would be sent, send nothing.")
def run(
    plan: Path,
    out: Path | None,
    overrides: tuple[str, ...],
    workers: int | None,
    expect_workers: int | None,
    bind: str,
    web: str | None,
    wait_for_target: float,
    skip_doctor: bool,
    gated: bool,
    dry_run: bool,
) -> None:
    """Run PLAN and leave a run directory.

    Ends with 0, or with a code that says why not: docs/gate.md has the table.
    """
    from infersiege.swarm.patching import patch

    patch()
    from infersiege.plan.load import load_plan
    from infersiege.swarm.console import SteadyConsole
    from infersiege.swarm.dry import dry_run as show_plan
    from infersiege.swarm.interrupts import Interrupts
    from infersiege.swarm.run import RunOptions, run_plan

    address = address_of("--bind", bind, default_port=MASTER_PORT)
    wait_ns = seconds_of("--wait-for-target", wait_for_target)
    interrupts = Interrupts()
    console = SteadyConsole()
    loaded = load_plan(plan, overrides, os.environ)
    if dry_run:
        show_plan(loaded, console)
        return
    options = RunOptions(
        out=out,
        workers=workers,
        expect_workers=expect_workers,
        bind=address,
        web=None if web is None else address_of("--web", web),
        wait_for_target_ns=wait_ns,
        skip_doctor=skip_doctor,
        gated=gated,
    )
    sys.exit(run_plan(loaded, options, console, os.environ, interrupts).summary.exit_code)
