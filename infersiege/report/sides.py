"""From paths to the two sides of a comparison: run directories, folders of them, and files of `baseline save`."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from infersiege.errors import UsageError
from infersiege.gate.baseline import KIND, SCHEMA, Baseline, Observed, damage, side_of
from infersiege.report.rebuild import Rebuilt, read
from infersiege.rundir import PLAN, RunDirectory
from infersiege.rundir.files import endless, reason_of
from infersiege.rundir.living import open_finished

_LARGEST_FILE = 64 << 20


class _Head(msgspec.Struct):
    """What any version of the file has."""

    kind: str = ""
    schema_version: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


def runs_in(path: Path) -> tuple[Path, ...]:
    """The run directory that a path is, or those that lie in it (`run-2` before `run-10`).

    Raises RunDirectoryError when there is none.
    """
    if not stat.S_ISDIR(_mode(path)) or _mode(path / PLAN):
        return (RunDirectory.open(path).path,)
    found = sorted((entry.parent for entry in path.glob(f"*/{PLAN}")), key=lambda run: _natural(run.name))
    return tuple(found) or (RunDirectory.open(path).path,)


def _mode(path: Path) -> int:
    """Of what is there; 0: nothing, or it can't be looked at."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def observed(found: Rebuilt) -> Observed:
    """A run that was read, as the gate compares it."""
    gpus = tuple(one.tags.get("name", "a GPU without a name") for one in found.watched.gpus)
    return Observed(found.plan, found.summary, gpus)


def side_from(paths: Sequence[Path], *, now_ns: int) -> Baseline:
    """One side of a comparison: a file of `baseline save`, or runs and folders of runs, whose figures are made anew.

    Raises RunDirectoryError; UsageError for a file that is none, and for a file together with something else.
    """
    files = [path for path in paths if stat.S_ISREG(_mode(path))]
    if files and len(paths) > 1:
        raise UsageError(
            f"{files[0]}: is a file, and stands for a whole baseline", hint="name one file, or run directories"
        )
    if files:
        return read_baseline(files[0])
    for path in paths:
        if not stat.S_ISDIR(_mode(path)):
            raise UsageError(
                f"{path}: there is no such run directory, and no baseline file",
                hint="name a file of `infersiege baseline save`, run directories, or a folder of them",
            )
    runs = unique(run for path in paths for run in runs_in(path))
    name = paths[0].name or str(paths[0])
    return side_of(
        [observed(read(open_finished(run))) for run in runs],
        name=name if len(paths) == 1 else f"{name} and {len(paths) - 1} more",
        now_ns=now_ns,
    )


def unique(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Each directory once, however it was named."""
    return tuple({path.resolve(): path for path in paths}.values())


def read_baseline(path: Path) -> Baseline:
    """A file of `baseline save`. Raises UsageError: it can't be read, is something else, or is of a newer schema."""
    hint = "name a file of `infersiege baseline save`, or run directories"
    if (kind := endless(path)) is not None:
        raise UsageError(f"{path}: is {kind}, no file", hint=hint)
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise UsageError(f"{path}: larger than 64 MiB: no baseline is", hint="name a file of `baseline save`")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {reason_of(error)}", hint=hint) from None
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.kind != KIND:
            raise UsageError(f"{path}: is no baseline", hint=hint)
        if head.schema_version > SCHEMA:
            raise UsageError(
                f"{path}: schema {head.schema_version} is newer than this infersiege knows ({SCHEMA})",
                hint="read it with the version that made it, or a newer one",
            )
        found = msgspec.json.decode(data, type=Baseline)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no baseline: {error}", hint=hint) from None
    if (why := damage(found)) is not None:
        raise UsageError(f"{path}: was damaged: {why}", hint="save it anew")
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """`run-10` after `run-2`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
