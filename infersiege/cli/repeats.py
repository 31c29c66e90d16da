"""`infersiege run` with --repeats or --against: a series of runs, each a process of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NoReturn

import click

from infersiege.capacity.child import Interrupted, Interruption
from infersiege.capacity.state import alone_in
from infersiege.cli.announce import check_markdown
from infersiege.cli.output import escaped
from infersiege.cli.probing import RATE_PAUSE_S
from infersiege.cli.run import RunAsked, seconds_of
from infersiege.errors import ExitCode, strongest
from infersiege.gate.comparable import allowed_words
from infersiege.plan import load_plan
from infersiege.rundir import default_path
from infersiege.series.runs import Settings, Side, make
from infersiege.series.state import AGAINST, SeriesState

PAUSE_S = 2.0
"""Before each run, where no engine tells whether it is idle."""
IDLE_LIMIT_S = 60.0
"""Longest wait for the engines to be idle."""


def run_series(options: RunAsked, repeats: int) -> NoReturn:
    """Make the runs that are missing, gate them if asked, and end the process with the strongest exit code.

    Raises PlanError, UsageError, TargetError: what keeps a run from beginning ends the series.
    """
    seconds_of("--wait-for-target", options.wait_for_target)
    allowed_words(options.allow)
    check_markdown(options.markdown)
    paths = (options.plan,) if options.against is None else (options.plan, options.against)
    sides = tuple(Side(path, load_plan(path, options.overrides, os.environ)) for path in paths)
    channels = [channel for side in sides for channel in side.plan.channels.values()]
    folder = options.out or default_path(sides[0].plan.run.name or "series", time.time_ns())
    settings = Settings(
        sides=sides,
        repeats=repeats,
        folder=folder,
        options=_passed_on(options),
        # A run does not know what was sent before it: with a rate limit the server's minute has to be over.
        pause_s=RATE_PAUSE_S if any(channel.rate_limit is not None for channel in channels) else PAUSE_S,
        idle_limit_s=IDLE_LIMIT_S,
        environ=os.environ,
    )
    if any(side.plan.run.nonce is not None for side in sides):
        click.echo("note: run.nonce of the plan is not used: each run of a series has a salt of its own", err=True)
    with alone_in(folder), Interruption() as interruption:
        try:
            state = make(settings, interruption, lambda line: click.echo(escaped(line)))
        except Interrupted:
            click.echo(f"interrupted: the same command with --out {folder} goes on")
            raise SystemExit(int(ExitCode.INTERRUPTED)) from None
    raise SystemExit(int(_ended(options, folder, state)))


def _ended(options: RunAsked, folder: Path, state: SeriesState) -> ExitCode:
    """What came of all runs; with --gate the verdict on them."""
    codes = {ExitCode(one.exit_code) for one in state.runs if one.exit_code is not None}
    if cut := [one.directory for one in state.runs if one.invalid]:
        click.echo(f"invalid: {', '.join(cut)}; the same command with --out {folder} makes them again")
    click.echo(f"runs: {folder}")
    baseline = () if options.against is None else (folder / AGAINST,)
    if not options.gated:
        more = f" --baseline {baseline[0]}" if baseline else ""
        click.echo(f"judge them with: infersiege gate {folder}{more}")
        return strongest(codes)
    from infersiege.cli.gate import judge_runs

    return strongest({judge_runs((folder,), baseline, options.allow, strict=False, markdown=options.markdown)})


def _passed_on(options: RunAsked) -> tuple[str, ...]:
    """Options of every single run. Their rules are judged at the end, all together."""
    words = ["--wait-for-target", f"{options.wait_for_target:g}", "--bind", options.bind]
    for name, value in (("--workers", options.workers), ("--expect-workers", options.expect_workers)):
        words += [] if value is None else [name, str(value)]
    words += [] if options.web is None else ["--web", options.web]
    words += ["--skip-doctor"] if options.skip_doctor else []
    for override in options.overrides:
        words += ["--set", override]
    return tuple(words)
