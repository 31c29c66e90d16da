"""What a CI system is told of a verdict beside junit.xml: Markdown, and the annotations of GitHub Actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from infersiege.errors import InfersiegeError
    from infersiege.records import Summary

MOST_BYTES = 1_000_000
"""GitHub drops the summary of a step that is above 1 MiB."""


def markdown_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--markdown FILE`, the same for `gate` and `run --gate`."""
    return click.option(
        "--markdown",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write the verdict as Markdown, for a comment on a pull request.",
    )(command)


def announce(
    summaries: Sequence[Summary], file: Path | None, environ: Mapping[str, str]
) -> tuple[InfersiegeError, ...]:
    """Write the verdicts of gated runs as Markdown to `file`, and to where GitHub Actions has its summaries.

    In a job of GitHub Actions (GITHUB_ACTIONS=true) its annotations are printed as well. Returns why a file could not
    be written, which changes no verdict.
    """
    from infersiege.report.annotations import github_annotations
    from infersiege.report.markdown import markdown

    text = "\n".join(markdown(summary) for summary in summaries)
    unwritten = []
    step = environ.get("GITHUB_STEP_SUMMARY")
    for path, mode in ((file, "w"), (Path(step) if step else None, "a")):
        fault = None if path is None else _write(path, mode, text)
        if fault is not None:
            unwritten.append(fault)
    if environ.get("GITHUB_ACTIONS") == "true":
        for summary in summaries:
            for line in github_annotations(summary):
                click.echo(line)
    return tuple(unwritten)


def _write(path: Path, mode: str, text: str) -> InfersiegeError | None:
    from infersiege.errors import UsageError

    data = text.encode("utf-8", "replace")
    if mode == "a" and len(data) > MOST_BYTES:
        data = data[:MOST_BYTES].decode("utf-8", "ignore").encode() + b"\n\n(cut: see junit.xml)\n"
    try:
        with path.open(f"{mode}b") as file:
            file.write(data)
    except OSError as error:
        return UsageError(f"{path}: the verdict in Markdown can't be written: {error.strerror or error}")
    return None
