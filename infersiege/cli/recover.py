"""`infersiege recover`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infersiege.cli.output import escaped
from infersiege.cli.paths import NAMED_PATH

if TYPE_CHECKING:
    from infersiege.swarm.leftovers import Leftover, Listed
    from infersiege.swarm.recovery import Recovered


@click.command(
    epilog="Example: infersiege recover runs/20261130T140211Z-qwen3-8b-on-vllm /mnt/bench-2/infersiege-spool-*"
)
@click.argument("paths", metavar="[RUN_DIR] [SPOOL]...", nargs=-1, type=NAMED_PATH)
@click.option("--out", type=NAMED_PATH, help="Make a run directory there from the SPOOLs alone.")
@click.option("--keep", is_flag=True, help="Leave the spools where they are.")
@click.option("--partial", is_flag=True, help="Also when the spool of a worker that took part is missing.")
@click.pass_context
def recover(context: click.Context, paths: tuple[Path, ...], out: Path | None, keep: bool, partial: bool) -> None:
    """Bring the records of workers home whose master is gone: after a crash, kill -9, a power cut, a full disk.

    Without arguments the spools of this host are listed: those in INFERSIEGE_SPOOL, or else in the temporary directory.

    With RUN_DIR the run's spools of this host, and each SPOOL (copied from another host), come into the run directory:
    every turn gets exactly one record, and plan.json, summary.json and report.html are made. Then the spools are
    removed. It can be interrupted and repeated at any time. Without a run directory `--out DIR SPOOL...` makes one.

    Exits with 3 when it recovered a run, which is an invalid one, and with 2 when there was nothing to recover.
    """
    if not paths and out is None:
        _list(keep or partial)
        return
    from rich.console import Console

    from infersiege.report.tables import print_summary

    result, path = _recover(paths, out, keep=keep, partial=partial)
    print_summary(result.rebuilt.summary, Console(highlight=False), examples=result.rebuilt.examples)
    click.echo(
        f"{result.spools} spools: {result.rows} records brought home, {result.lost} turns lost on their way, "
        f"{result.skipped} turns that nobody will play"
    )
    for remark in result.remarks:
        click.echo(f"warning: {escaped(remark)}", err=True)
    click.echo(f"run directory: {path}")
    context.exit(result.rebuilt.summary.exit_code)


def _recover(paths: Sequence[Path], out: Path | None, *, keep: bool, partial: bool) -> tuple[Recovered, Path]:
    from infersiege.errors import UsageError
    from infersiege.rundir import PLAN, TURNS, RunDirectory
    from infersiege.swarm.leftovers import damaged, found_here, named
    from infersiege.swarm.recovered_facts import begin
    from infersiege.swarm.recovery import is_over
    from infersiege.swarm.recovery import recover as bring_home
    from infersiege.swarm.spool import spool_root

    leftovers: list[Leftover]
    places = paths
    if out is None:
        places = (*paths[1:], spool_root(os.environ))
        run = RunDirectory.open(paths[0])
        run_id = run.read_plan().run_id
        leftovers = [] if is_over(run) else named(paths[1:])
        known = {one.path.resolve() for one in leftovers}
        here = (one for one in found_here(os.environ) if one.info.run_id == run_id)
        leftovers += [one for one in here if one.path.resolve() not in known]
    elif (out / PLAN).exists() and is_over(run := RunDirectory.open(out)):
        leftovers = []
    else:
        for path in paths:
            if (path / PLAN).exists() and (path / TURNS).exists():
                raise UsageError(
                    f"{path}: is a run directory, and --out makes another one from spools alone",
                    hint=f"leave --out away to bring the spools home into {path}, or name spools only",
                )
        leftovers = named(paths)
        run = begin(out, leftovers)
    with run:
        doubtful = damaged(places, run.read_plan().run_id)
        return bring_home(run, leftovers, damaged=doubtful, keep=keep, partial=partial), run.path


def _list(superfluous: bool) -> None:
    """Spools of this host, by run."""
    from infersiege.errors import UsageError
    from infersiege.swarm.leftovers import listing
    from infersiege.swarm.spool import spool_root

    if superfluous:
        raise UsageError("no run directory is named", hint="infersiege recover RUN_DIR; without any, spools are listed")
    spools, closed = listing(os.environ)
    for line in closed:
        click.echo(f"note: {escaped(line)}", err=True)
    if not spools:
        rest = "nothing was left behind" if not closed else "none that can be looked into"
        click.echo(f"no spools in {spool_root(os.environ)}: {rest}")
        return
    runs: dict[str | None, list[Listed]] = {}
    for one in spools:
        runs.setdefault(one.info.run_id if one.info is not None else None, []).append(one)
    for run_id, several in runs.items():
        _list_run(run_id, several)


def _list_run(run_id: str | None, spools: Sequence[Listed]) -> None:
    info = spools[0].info
    if run_id is None or info is None:
        click.echo("of an unknown run (they have no spool.json that this version can read):")
    else:
        click.echo(f"run {run_id} ({escaped(info.run_name)}):")
    for one in spools:
        click.echo(f"  {_line_of(one)}")
    if run_id is None:
        return
    if any(one.lives for one in spools):
        click.echo("  goes on, or its workers have not stopped yet: nothing to recover now")
        return
    where = next(iter(_run_directories(run_id)), None)
    click.echo(f"  recover: infersiege recover {where if where is not None else 'RUN_DIR'}")


def _line_of(one: Listed) -> str:
    worker = f"{escaped(one.info.worker)} on {escaped(one.info.host)}" if one.info is not None else "?"
    if one.lives:
        state = f"lives (pid {one.info.pid})" if one.info is not None else "lives"
    elif one.info is not None and one.info.bye is not None:
        state = "stopped, all turns accounted for"
    else:
        state = "was killed"
    age = _age((time.time_ns() - one.changed_ns) / 1e9)
    return f"{worker}: {state}, {one.sessions} sessions taken, {one.rows} records here, {age} ago: {one.path}"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _run_directories(run_id: str) -> list[Path]:
    """Where the run is, if it is below ./runs."""
    from infersiege.errors import InfersiegeError
    from infersiege.rundir import PLAN, RUNS, RunDirectory

    found = []
    for plan in RUNS.glob(f"*/{PLAN}"):
        try:
            if RunDirectory.open(plan.parent).read_plan().run_id == run_id:
                found.append(plan.parent)
        except InfersiegeError:
            continue
    return found
