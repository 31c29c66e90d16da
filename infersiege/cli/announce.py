"""What a CI system is told of a verdict beside junit.xml: Markdown, and the annotations of GitHub Actions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infersiege.cli.paths import NAMED_PATH

if TYPE_CHECKING:
    from infersiege.errors import InfersiegeError
    from infersiege.records import Summary


def markdown_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--markdown FILE`, the same for `gate` and `run --gate`."""
    return click.option(
        "--markdown",
        type=NAMED_PATH,
        metavar="FILE",
        help="Write the verdict as Markdown, for a comment on a pull request; `-` is standard output.",
    )(command)


def check_markdown(file: Path | None) -> None:
    """Before the work: raises UsageError where the verdict can't be written, or would take another file's place."""
    from infersiege.cli.destination import check_remade
    from infersiege.report.markdown import HEADING

    if file is not None:
        check_remade(file, lambda head: head.startswith(HEADING.encode()), "verdict of `infersiege gate` in Markdown")


def announce(
    names: Sequence[str], summaries: Sequence[Summary], file: Path | None, environ: Mapping[str, str]
) -> tuple[InfersiegeError, ...]:
    """Write the verdict on gated runs as Markdown to `file`, and to where GitHub Actions has its summaries.

    `names`: of the runs, which a verdict on several tells apart by them. In a job of GitHub Actions
    (GITHUB_ACTIONS=true) its annotations are printed as well, each once. Returns why a file could not be written, which
    changes no verdict.
    """
    from infersiege.report.annotations import github_annotations
    from infersiege.report.markdown import markdown, series_markdown

    text = markdown(summaries[0]) if len(summaries) == 1 else series_markdown(names, summaries)
    data = text.encode("utf-8", "replace")
    step = environ.get("GITHUB_STEP_SUMMARY")
    faults = (None if file is None else _write(file, data), _add(Path(step), data) if step else None)
    if environ.get("GITHUB_ACTIONS") == "true":
        for line in dict.fromkeys(line for summary in summaries for line in github_annotations(summary)):
            click.echo(line)
    return tuple(fault for fault in faults if fault is not None)


def _write(path: Path, data: bytes) -> InfersiegeError | None:
    from infersiege.cli.destination import destination
    from infersiege.errors import UsageError

    sys.stdout.flush()  # what was said before, where both go to the same place
    try:
        with destination(path, force=True) as file:
            file.write(data)
            file.flush()
    except UsageError as error:
        return error
    return None


def _add(path: Path, data: bytes) -> InfersiegeError | None:
    """To the summary of a job."""
    from infersiege.errors import UsageError

    try:
        with path.open("ab") as file:
            file.write(data)
    except OSError as error:
        return UsageError(f"{path}: the verdict in Markdown can't be written: {error.strerror or error}")
    return None
