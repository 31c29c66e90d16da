"""`infersiege baseline`: keep the figures of some runs, to hold later ones against."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infersiege.cli import Commands, LazyGroup
from infersiege.cli.output import escaped
from infersiege.cli.paths import NAMED_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

    from infersiege.gate.baseline import Baseline, Figures, MeasuredRun

COMMANDS: Commands = {
    "save": ("infersiege.cli.baseline", "Keep the figures of some runs in a small file."),
    "show": ("infersiege.cli.baseline", "What a baseline holds, and how much its runs differ."),
}
"""A command that is here can be called; see `infersiege.cli.Commands`."""

SHOWN = ("p50", "p95", None)
"""Statistics that `show` has without --all; None: metrics that are one number."""


@click.group(cls=LazyGroup, table=COMMANDS)
def baseline() -> None:
    """Keep the figures of some runs, to hold later ones against (`infersiege gate --baseline`)."""


@baseline.command(epilog="Example: infersiege baseline save runs/main --out baseline.json")
@click.argument("runs", type=NAMED_PATH, nargs=-1, required=True, metavar="RUN…")
@click.option("--out", type=NAMED_PATH, required=True, metavar="FILE", help="Where it is kept.")
@click.option("--name", help="What reports call it.  [default: that of the first run]")
@click.option(
    "--floor",
    "floor",
    type=NAMED_PATH,
    metavar="FILE",
    help="An earlier baseline of the same thing on the same machine: how much runs differ. For fewer than 5 runs.",
)
@click.option("--allow", multiple=True, metavar="WORD,…", help="What may differ among the runs (docs/gate.md).")
@click.pass_context
def save(
    context: click.Context,
    runs: tuple[Path, ...],
    out: Path,
    name: str | None,
    floor: Path | None,
    allow: tuple[str, ...],
) -> None:
    """Keep the figures of each RUN (a run directory, or a folder of them) in one file: no turn, no text, no secret.

    The runs must be valid and of the same thing. Five or more tell how much runs differ; fewer need --floor.

    Exit codes: 0 saved, 2 usage, 5 a run is not valid, or they are not comparable with one another.
    """
    from infersiege.cli.destination import check_remade, destination, is_standard_output
    from infersiege.errors import ExitCode
    from infersiege.gate.baseline import KIND, side_of, with_floors
    from infersiege.gate.change import ENOUGH_RUNS
    from infersiege.gate.comparable import allowed_words
    from infersiege.report import read
    from infersiege.report.sides import observed, read_baseline, runs_in, unique
    from infersiege.rundir.files import pretty
    from infersiege.rundir.living import open_finished

    check_remade(out, lambda head: f'"kind": "{KIND}"'.encode() in head, "baseline")
    words = allowed_words(allow)
    directories = [open_finished(path) for path in unique(run for path in runs for run in runs_in(path))]
    seen = [observed(read(directory)) for directory in directories]
    made = side_of(seen, name=name or seen[0].file.name, now_ns=time.time_ns())
    earlier = None if floor is None else read_baseline(floor)
    if reasons := _reasons(made, earlier, words):
        for reason in reasons:
            click.echo(f"not comparable: {escaped(reason)}", err=True)
        click.echo("error: nothing was saved", err=True)
        click.echo("hint: leave such runs out, or make them again; --allow lets a difference be", err=True)
        context.exit(ExitCode.NO_DATA)
    if earlier is not None:
        made = with_floors(made, earlier)
    with destination(out, force=True) as file:
        file.write(pretty(made))
    count = len(made.runs)
    said = f"baseline: {out}: {count} {'run' if count == 1 else 'runs'}, {len(made.figures)} figures"
    click.echo(said, err=is_standard_output(out))
    if count < ENOUGH_RUNS and earlier is None:
        click.echo(
            f"note: fewer than {ENOUGH_RUNS} runs don't tell how much runs differ; a gate needs {ENOUGH_RUNS} here, or "
            "against it, or --floor",
            err=True,
        )


def _reasons(made: Baseline, earlier: Baseline | None, words: Sequence[str]) -> list[str]:
    """Why these are no runs of the same thing; of the floor, why it is not of the same thing either."""
    from infersiege.gate.comparable import differences

    found = [f"run {run.run_id} is invalid: {'; '.join(run.unusable)}" for run in made.runs if run.unusable]
    facts = [run.facts for run in made.runs]
    among = [one for one in differences(facts, facts, allowed=words) if not one.passes]
    found += [f"{one.name}: {one.candidate} in these runs" for one in among]
    if earlier is not None:
        known = {run.run_id for run in earlier.runs}
        found += [
            f"run {run.run_id} is in the floor, which must be of other runs" for run in made.runs if run.run_id in known
        ]
        for one in differences([run.facts for run in earlier.runs], facts, allowed=words):
            if not one.passes:
                found.append(f"the floor has another {one.name}: {one.baseline} there, {one.candidate} here")
    return found


@baseline.command(epilog="Example: infersiege baseline show baseline.json")
@click.argument("file", type=NAMED_PATH)
@click.option("--all", "every", is_flag=True, help="Every statistic and every cut.")
def show(file: Path, every: bool) -> None:
    """What is in FILE: its runs, what they were made with, their figures, and how much these differ from run to run."""
    from rich.console import Console

    from infersiege.report.sides import read_baseline
    from infersiege.report.tables import print_emulated

    found = read_baseline(file)
    console = Console(highlight=False)
    if found.emulated:
        print_emulated(console)
    console.print(f"{escaped(found.name)}, saved {_time(found.saved_ns)}", style="bold", markup=False)
    for run in found.runs:
        console.print(_run_line(run), markup=False, soft_wrap=True)
    for name, value in _facts(found.runs):
        console.print(f"  {escaped(name)}: {escaped(value)}", markup=False, soft_wrap=True)
    console.print(_figures([one for one in found.figures if every or _usual(one)]))


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _run_line(run: MeasuredRun) -> str:
    doubt = f", the engine was busy before {', '.join(run.dirty)}" if run.dirty else ""
    return escaped(f"run {run.run_id} {run.name}, {_time(run.created_ns)}, {run.turns:,} turns{doubt}")


def _facts(runs: Iterable[MeasuredRun]) -> list[tuple[str, str]]:
    """Without the plan's keys, which are many."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in run.facts.items():
            if not name.startswith(("plan.", "load.", "limits", "price.")):
                found.setdefault(name, {})[value] = None
    return [(name, " and ".join(values)) for name, values in sorted(found.items())]


def _usual(one: Figures) -> bool:
    return one.stat in SHOWN and one.scenario is None and one.channel is None and one.stage is None


def _figures(figures: Sequence[Figures]) -> Table:
    """Mean, spread and values, a row each."""
    from rich import box
    from rich.table import Table

    from infersiege.gate.baseline import is_share
    from infersiege.report.numbers import number, share

    table = Table(box=box.SIMPLE)
    for name in ("figure", "unit", "runs differ by", "values"):
        table.add_column(name, justify="right" if name == "runs differ by" else "left")
    for one in figures:
        where = ", ".join(part for part in (one.scenario, one.channel, one.stage) if part is not None)
        spread = one.spread or one.floor
        points = is_share(one.metric)
        differ = "–" if spread is None else f"{100 * spread.deviation:.2f} {'points' if points else '%'}"
        values = ", ".join(share(value) if points else number(value) for value in one.values)
        table.add_row(
            escaped(f"{where}: " if where else "") + f"{one.metric} {one.stat or ''}".strip(), one.unit, differ, values
        )
    return table
