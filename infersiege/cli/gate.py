"""`infersiege gate`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infersiege.cli.announce import announce, check_markdown, markdown_option
from infersiege.cli.output import escaped
from infersiege.cli.paths import NAMED_PATH

if TYPE_CHECKING:
    from rich.console import Console

    from infersiege.errors import ExitCode, InfersiegeError
    from infersiege.gate.relative import Compared
    from infersiege.records import Summary
    from infersiege.report import Rebuilt
    from infersiege.rundir import RunDirectory


class TakesMany(click.Command):
    """`--baseline A B C` is what a shell makes of `--baseline runs/base-*`: all that follow belong to the option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread, mine = [], False
        for word in args:
            if word.startswith("-"):
                mine = word == "--baseline"
                spread += [] if mine else [word]
                continue
            spread += ["--baseline", word] if mine else [word]
        if mine:  # nothing follows: click says so
            spread += ["--baseline"] if args[-1] == "--baseline" else []
        return super().parse_args(ctx, spread)


@click.command(
    cls=TakesMany,
    epilog="Example: infersiege gate runs/20261130T140211Z-qwen3-8b-on-vllm\n\n"
    "Example: infersiege gate runs/new --baseline runs/old",
)
@click.argument("runs", type=NAMED_PATH, nargs=-1, required=True, metavar="RUN…")
@click.option(
    "--baseline",
    "baselines",
    type=NAMED_PATH,
    multiple=True,
    metavar="RUN…|FILE",
    help="Hold the runs against these: run directories, folders of them, or a file of `baseline save`.",
)
@click.option(
    "--allow",
    "allow",
    multiple=True,
    metavar="WORD,…",
    help="What may differ from the baseline, such as gpu,label.commit (docs/gate.md has the words).",
)
@click.option(
    "--strict", is_flag=True, help="Also the engine's version and its arguments must be those of the baseline."
)
@markdown_option
@click.pass_context
def gate(
    context: click.Context,
    runs: tuple[Path, ...],
    baselines: tuple[Path, ...],
    allow: tuple[str, ...],
    strict: bool,
    markdown: Path | None,
) -> None:
    """Judge RUN by the [[slo]] rules of its plan: print them, write junit.xml and gate.json, exit with its code.

    RUN may also be a folder of runs, and there may be several. With --baseline all of them together are held against
    the baseline, by the rules with relative_max or by the usual metrics.

    The figures are made anew from turns.jsonl, so that nothing edited in between counts; summary.json and report.html
    get the verdict. A file that can't be written is warned of and changes no verdict.

    Exit codes: 0 pass, 1 a rule failed, 3 the run is invalid, 5 no data for a rule or not comparable, 130 interrupted.
    """
    context.exit(judge_runs(runs, baselines, allow, strict=strict, markdown=markdown))


def judge_runs(
    runs: Sequence[Path],
    baselines: Sequence[Path],
    allow: Sequence[str],
    *,
    strict: bool,
    markdown: Path | None = None,
) -> ExitCode:
    """What the command does; the exit code of all runs together.

    Raises UsageError, RunDirectoryError.
    """
    from rich.console import Console

    from infersiege.cli.unwritten import warn_of
    from infersiege.errors import ExitCode, UsageError, strongest
    from infersiege.gate.comparable import allowed_words
    from infersiege.gate.relative import with_baseline, without_baseline_rules
    from infersiege.report import judged, read
    from infersiege.report.sides import runs_in, unique
    from infersiege.report.tables import print_emulated, print_rules
    from infersiege.rundir.living import open_finished

    if (allow or strict) and not baselines:
        raise UsageError("--allow and --strict mean nothing without --baseline", hint="add --baseline RUN…")
    check_markdown(markdown)
    words = allowed_words(allow)
    directories = [open_finished(path) for path in unique(run for path in runs for run in runs_in(path))]
    found = [judged(read(directory), gated=True) for directory in directories]
    compared = _compared(found, baselines, words, strict) if baselines else None
    unwritten: list[InfersiegeError] = []
    console = Console(highlight=False)
    if any(one.summary.emulated for one in found):
        print_emulated(console)
    codes, summaries = [], []
    for directory, one in zip(directories, found, strict=True):
        summary = one.summary if compared is None else with_baseline(one.summary, compared)
        codes.append(ExitCode(summary.exit_code))
        summaries.append(summary)
        junit = _write(directory, one, summary, unwritten)
        if len(found) > 1:
            console.print(f"{directory.path.name}", style="bold", markup=False)
        print_rules(summary if compared is None or len(found) == 1 else without_baseline_rules(summary), console)
        if not one.plan.typed_plan().slos and compared is None:
            click.echo("note: the plan has no [[slo]]; only the built-in rules were judged", err=True)
        if junit is not None:
            click.echo(f"junit: {junit}")
    if compared is not None:
        _print_compared(compared, found[0].summary, console, alone=len(found) == 1)
    warn_of([*unwritten, *announce(_names(directories), summaries, markdown, os.environ)])
    return strongest(set(codes))


def _names(directories: Sequence[RunDirectory]) -> list[str]:
    """By which a reader tells the runs apart: `run-1`; with their folders where two have the same."""
    paths = [one.path for one in directories]
    short = [path.name for path in paths]
    return short if len(set(short)) == len(short) else [f"{path.parent.name}/{path.name}" for path in paths]


def _compared(found: Sequence[Rebuilt], baselines: Sequence[Path], words: Sequence[str], strict: bool) -> Compared:
    from infersiege.gate.baseline import side_of
    from infersiege.gate.relative import against
    from infersiege.report.sides import observed, side_from

    now_ns = time.time_ns()
    candidate = side_of([observed(one) for one in found], name=found[0].plan.name, now_ns=now_ns)
    baseline = side_from(baselines, now_ns=now_ns)
    slos = found[0].plan.typed_plan().slos
    return against(slos, candidate, baseline, allowed=words, strict=strict)


def _write(directory: RunDirectory, found: Rebuilt, summary: Summary, unwritten: list[InfersiegeError]) -> Path | None:
    """The run's files with the verdict in them; junit.xml's path, if it could be written."""
    import msgspec

    from infersiege.errors import InfersiegeError
    from infersiege.report import write
    from infersiege.report.junit import gate_file, junit_xml

    write(directory, msgspec.structs.replace(found, summary=summary), unwritten.append)
    junit: Path | None = None
    try:
        junit = directory.write_junit(junit_xml(summary, summary.rules))
    except InfersiegeError as error:
        unwritten.append(error)
    try:
        directory.write_gate(gate_file(summary))
    except InfersiegeError as error:
        unwritten.append(error)
    return junit


def _print_compared(compared: Compared, first: Summary, console: Console, *, alone: bool) -> None:
    """The rules against the baseline, where they did not stand in the table of a single run; and what to know of it."""
    import msgspec

    from infersiege.gate import overall
    from infersiege.report.tables import print_rules

    if not alone:
        console.print("all runs against the baseline", style="bold")
        shown = msgspec.structs.replace(first, rules=compared.rules, invalid=(), interrupted=False)
        print_rules(msgspec.structs.replace(shown, verdict=overall(shown, compared.rules)), console)
    for reason in compared.reasons:
        console.print(f"not comparable: {escaped(reason)}", markup=False, soft_wrap=True)
    for note in compared.notes:
        console.print(f"note: {escaped(note)}", markup=False, soft_wrap=True)
    words = dict.fromkeys(one.partition(":")[0] for one in compared.reasons if " in the baseline, " in one)
    if words:
        click.echo(f"hint: if that is what you want to compare, add --allow {','.join(words)}", err=True)
