"""`infersiege demo`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from infersiege.errors import PlanError, UsageError

PLAN = Path(__file__).with_name("demo.toml")
EMULATOR = ("--preset", "small", "--max-num-seqs", "32")


@click.command(epilog="Example: infersiege demo --out runs/demo")
@click.option("--out", type=click.Path(path_type=Path), help="The run directory itself; default: runs/<time>-demo.")
@click.option("--duration", default="45s", show_default=True, help="How long to offer the load.")
@click.option("--workers", type=click.IntRange(1, 1_000), default=2, show_default=True, help="Worker processes.")
def demo(out: Path | None, duration: str, workers: int) -> None:
    """Run three workloads against the built-in emulator, with two worker processes, and write a report.

    Nothing else is needed: no GPU, no model, no network. The figures are the emulator's and say nothing about hardware.
    """
    from infersiege.swarm.patching import patch

    patch()
    from infersiege.emulator.process import EmulatorProcess
    from infersiege.plan.load import load_plan
    from infersiege.swarm.console import SteadyConsole
    from infersiege.swarm.interrupts import Interrupts
    from infersiege.swarm.run import RunOptions, run_plan

    _check_duration(duration)
    interrupts = Interrupts()
    console = SteadyConsole()
    with EmulatorProcess(*EMULATOR) as emulator:
        overrides = (f"channel.emulator.base_url={emulator.base_url}", f"run.duration={duration}")
        plan = load_plan(PLAN, overrides, os.environ)
        options = RunOptions(
            out=out, workers=workers, expect_workers=None, bind=("127.0.0.1", 0), wait_for_target_ns=0, gated=True
        )
        result = run_plan(plan, options, console, os.environ, interrupts)
    if not result.summary.interrupted:
        console.print("next: start your engine and run one of examples/plans/*.toml", highlight=False)
    sys.exit(result.summary.exit_code)


def _check_duration(duration: str) -> None:
    """Raises UsageError that names the option, where the plan would only know its own key."""
    from infersiege.plan.load import load_plan

    try:
        load_plan(PLAN, (f"run.duration={duration}",), {})
    except PlanError as error:
        _place, _key, message = error.faults[0].split(": ", 2)
        raise UsageError(f"--duration {duration}: {message}", hint='write it like "45s" or "2m"') from None
