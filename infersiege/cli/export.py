"""`infersiege export`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infersiege.cli.output import escaped
from infersiege.cli.paths import NAMED_PATH

if TYPE_CHECKING:
    from infersiege.metrics.batch import Batch
    from infersiege.rundir import PlanFile, RunDirectory


@click.command(epilog="Example: infersiege export runs/20261130T140211Z-qwen3-8b-on-vllm --parquet turns.parquet")
@click.argument("run", type=NAMED_PATH)
@click.option("--parquet", type=NAMED_PATH, metavar="FILE", help="Typed columns; needs the package pyarrow.")
@click.option("--csv", type=NAMED_PATH, metavar="FILE", help="Text; `-` is standard output.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def export(run: Path, parquet: Path | None, csv: Path | None, force: bool) -> None:
    """Write the turns of RUN as a table: a row for each turn, a column for each field of turns.jsonl.

    Whole or not at all, in little memory, whatever the number of turns. Records hold no prompt, no answer and no key.
    """
    from infersiege.cli.destination import check_destination, destination, is_standard_output
    from infersiege.errors import UsageError
    from infersiege.export import check_parquet, write_csv, write_parquet
    from infersiege.rundir.living import open_finished

    if parquet is None and csv is None:
        raise UsageError("what is to be written is not named", hint="add --parquet FILE or --csv FILE, or both")
    if parquet is not None and is_standard_output(parquet):
        raise UsageError("a Parquet file is no text for standard output", hint="name a file, or use --csv -")
    if parquet is not None and csv is not None and os.path.realpath(parquet) == os.path.realpath(csv):
        raise UsageError(f"--parquet and --csv both name {csv}", hint="each needs a file of its own")
    if parquet is not None:
        check_parquet()
    for out in (parquet, csv):
        if out is not None:
            check_destination(out, force=force)
    directory = open_finished(run)
    plan = directory.read_plan()
    if parquet is not None:
        with destination(parquet, force=force) as file:
            rows = write_parquet(_batches(directory, plan), file, plan)
        click.echo(f"{escaped(str(parquet))}: {rows:,} turns", err=True)
    if csv is not None:
        with destination(csv, force=force) as file:
            rows = write_csv(_batches(directory, plan), file)
        click.echo(f"{escaped(str(csv))}: {rows:,} turns", err=True)


def _batches(run: RunDirectory, plan: PlanFile) -> Iterator[Batch]:
    from infersiege.rundir import LeftOut

    torn, left_out = list[str](), LeftOut()
    yield from run.read_turn_batches(torn.append, span=plan.span, left_out=left_out)
    for text in (*torn, *left_out.reasons):
        click.echo(f"warning: {escaped(text)}", err=True)
