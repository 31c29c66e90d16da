"""`infersiege run`."""

from __future__ import annotations

import contextlib
import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from infersiege.cli.address import MASTER_PORT, address_of
from infersiege.cli.announce import announce, check_markdown, markdown_option
from infersiege.cli.paths import NAMED_PATH
from infersiege.cli.seconds import in_seconds
from infersiege.cli.unwritten import warn_of
from infersiege.cli.worker_options import bind_option, expect_workers_option, workers_option
from infersiege.errors import UsageError

_LONGEST_WAIT_S = 86_400


def seconds_of(option: str, seconds: float) -> int:
    """Nanoseconds of an option in seconds. Raises UsageError for what is no time to wait."""
    if not 0 <= seconds <= _LONGEST_WAIT_S:  # NaN is not either
        raise UsageError(f"{option} {seconds:g}: not a number of seconds from 0 to {_LONGEST_WAIT_S:,}")
    return round(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class RunAsked:
    """What the command line says; fields as the options."""

    plan: Path
    out: Path | None
    overrides: tuple[str, ...]
    workers: int | None
    expect_workers: int | None
    bind: str
    web: str | None
    wait_for_target: float
    skip_doctor: bool
    gated: bool
    dry_run: bool
    repeats: int | None
    against: Path | None
    allow: tuple[str, ...]
    markdown: Path | None


def asked_repeats(plan: Path, overrides: Sequence[str]) -> int:
    """How many runs the plan asks for; 1 where that can't be told.

    It is read before anything is imported that must be patched first; loading the plan later tells of its faults. What
    is no file is left to that, too: a pipe would be waited for, and be empty then.
    """
    asked: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
        if plan.is_file():
            asked = tomllib.loads(plan.read_text(encoding="utf-8-sig")).get("run", {}).get("repeats")
    for key, _, text in (override.partition("=") for override in overrides):
        if key.strip() == "run.repeats":
            asked = int(text) if text.strip().isdecimal() else None
    return asked if isinstance(asked, int) and 1 <= asked <= 1_000 else 1


@click.command(epilog="Example: infersiege run examples/plans/vllm.toml --workers 2 --set load.users=64")
@click.argument("plan", type=NAMED_PATH)
@click.option("--out", type=NAMED_PATH, help="The run directory itself; default: runs/<time>-<name>.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the plan; may be repeated."
)
@workers_option
@expect_workers_option
@bind_option
@click.option(
    "--web",
    metavar="HOST:PORT",
    help="Serve a page on which the run can be watched, such as 127.0.0.1:8089; read-only.",
)
@click.option(
    "--wait-for-target",
    type=in_seconds,
    default=0.0,
    metavar="SECONDS",
    help="Wait so long for the target to become ready.",
)
@click.option("--skip-doctor", is_flag=True, help="Ask the target nothing before the load.")
@click.option(
    "--gate", "gated", is_flag=True, help="Judge the run by the plan's rules, write junit.xml, exit accordingly."
)
@click.option("--dry-run", is_flag=True, help="Print what would be sent, send nothing.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 1_000),
    help="Runs to make, into run-1, run-2 … of --out; default: the plan's, 1.",
)
@click.option(
    "--against",
    type=NAMED_PATH,
    metavar="PLAN",
    help="Another plan, run in turn with this one, for a comparison that no drift tips (docs/gate.md).",
)
@click.option(
    "--allow", multiple=True, metavar="WORD,…", help="With --gate and --against: what may differ between the plans."
)
@markdown_option
def run(**options: Any) -> None:
    """Run PLAN and leave a run directory; with --repeats or --against a folder of them.

    Ends with 0, or with a code that says why not: docs/gate.md has the table.
    """
    asked = RunAsked(**options)
    if asked.markdown is not None and not asked.gated:
        raise UsageError("--markdown means nothing without --gate", hint="add --gate")
    if asked.allow and not (asked.gated and asked.against is not None):
        raise UsageError("--allow means nothing without --against and --gate", hint="leave it out, or add both")
    repeats = asked.repeats if asked.repeats is not None else asked_repeats(asked.plan, asked.overrides)
    if (repeats > 1 or asked.against is not None) and not asked.dry_run:
        from infersiege.cli.repeats import run_series

        run_series(asked, repeats)
    _run_once(asked)


def _run_once(asked: RunAsked) -> None:
    """Ends the process, but for a dry run."""
    from infersiege.swarm.patching import patch

    patch()
    from infersiege.plan.load import load_plan
    from infersiege.swarm.console import SteadyConsole
    from infersiege.swarm.dry import dry_run as show_plan
    from infersiege.swarm.interrupts import Interrupts
    from infersiege.swarm.run import RunOptions, run_plan

    address = address_of("--bind", asked.bind, default_port=MASTER_PORT)
    wait_ns = seconds_of("--wait-for-target", asked.wait_for_target)
    check_markdown(asked.markdown)
    interrupts = Interrupts()
    console = SteadyConsole()
    loaded = load_plan(asked.plan, asked.overrides, os.environ)
    if asked.dry_run:
        other = None if asked.against is None else load_plan(asked.against, asked.overrides, os.environ)
        for path, plan in ((asked.plan, loaded), (asked.against, other)):
            if plan is None:
                continue
            if other is not None:
                console.print(f"{path}:", style="bold", markup=False, highlight=False)
            show_plan(plan, console)
        return
    if loaded.run.repeats > 1 and asked.repeats is None:
        raise UsageError(f"{asked.plan}: run.repeats is set in a way that was not seen", hint="use --repeats")
    options = RunOptions(
        out=asked.out,
        workers=asked.workers,
        expect_workers=asked.expect_workers,
        bind=address,
        web=None if asked.web is None else address_of("--web", asked.web),
        wait_for_target_ns=wait_ns,
        skip_doctor=asked.skip_doctor,
        gated=asked.gated,
    )
    summary = run_plan(loaded, options, console, os.environ, interrupts).summary
    if asked.gated:
        warn_of(announce([summary.run_id], [summary], asked.markdown, os.environ))
    sys.exit(summary.exit_code)
