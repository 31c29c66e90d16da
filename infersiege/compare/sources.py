"""What the command line names: runs, folders of runs, series, searches and sweeps, each with or without a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from infersiege.compare.columns import Source, member_of
from infersiege.compare.cuts import By, Shapes, parts_of
from infersiege.errors import UsageError
from infersiege.report.rebuild import judged, read
from infersiege.report.sides import observed, runs_in
from infersiege.rundir import PLAN
from infersiege.rundir.living import open_finished

AGAINST = "against"
"""Folder of a series with the runs of the other plan (`infersiege run --against`)."""


class Named(NamedTuple):
    """One run to read."""

    path: Path
    name: str | None
    folder: str | None
    """That was named in its place; None: the run itself was."""


def named_runs(texts: Sequence[str]) -> tuple[Named, ...]:
    """`RUN`, `FOLDER` or `NAME=…` as runs, each once, in their order.

    Raises RunDirectoryError where there is no run, and UsageError for a name without a path and for a run with two.
    """
    found: dict[Path, Named] = {}
    for text in texts:
        for one in _runs(text):
            before = found.setdefault(one.path.resolve(), one)
            if before.name != one.name:
                raise UsageError(
                    f"{one.path}: has two names, {before.name or 'none'} and {one.name or 'none'}",
                    hint="a run is in one column",
                )
    return tuple(found.values())


def _runs(text: str) -> Iterator[Named]:
    name, path = _split(text)
    found = runs_in(path)
    if found == (path,):
        yield Named(path, name, None)
        return
    for run in found:
        yield Named(run, name, str(path))
    other = path / AGAINST
    if any(other.glob(f"*/{PLAN}")):
        for run in runs_in(other):
            yield Named(run, name and f"{name} ({AGAINST})", str(other))


def _split(text: str) -> tuple[str | None, Path]:
    """`NAME=PATH`; a path that is there with `=` in it is one."""
    if not text:
        raise UsageError("the name of a run is empty", hint="is a variable not set?")
    name, equals, rest = text.partition("=")
    if not equals or "/" in name or _is_there(Path(text)):
        return None, Path(text)
    if not name.strip() or not rest:
        raise UsageError(f"{text}: a name and a run belong together", hint="NAME=RUN, such as vllm=runs/a")
    return name.strip(), Path(rest)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def source_of(one: Named, by: By | None) -> Source:
    """Read a run: its figures made anew from its turns, in one pass.

    Raises RunDirectoryError: a file is missing, damaged or of a newer schema.
    """
    shapes = Shapes(by)
    found = judged(read(open_finished(one.path), (shapes,)), gated=False)
    gpus = observed(found).gpus
    cuts = parts_of(found.summary, shapes, found.windows, found.plan.stages, by)
    members = tuple(member_of(str(one.path), cut, by, found.plan, gpus) for cut in cuts)
    return Source(members, one.name, one.folder)
