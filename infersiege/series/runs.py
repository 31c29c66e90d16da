"""Makes the runs of a series, one after the other, each with a salt of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from infersiege.capacity.child import Interrupted, Interruption, execute, last_error, why_not_begun
from infersiege.capacity.idle import wait_before_run
from infersiege.capacity.state import load, save
from infersiege.errors import ExitCode, InternalError, RunDirectoryError, UsageError
from infersiege.plan import Plan
from infersiege.rundir import RunDirectory
from infersiege.rundir.files import reason_of
from infersiege.series.state import AGAINST, DISCARDED, SERIES, OneRun, SeriesState, begun, check_same, order
from infersiege.telemetry.idle import engine_pages

Say = Callable[[str], None]

AGAIN = 2
"""Times that invalid runs are made again in one call. Not when most are: then it is the plan or the host."""


class Side(NamedTuple):
    """One plan of a series."""

    path: Path
    plan: Plan


class Settings(NamedTuple):
    """What all runs of one series have in common."""

    sides: tuple[Side, ...]
    """The plan, and the other one if there are two."""
    repeats: int
    folder: Path
    options: tuple[str, ...]
    """Of `infersiege run`, for every run."""
    pause_s: float
    idle_limit_s: float
    environ: Mapping[str, str]


def make(settings: Settings, interruption: Interruption, say: Say) -> SeriesState:
    """Make every run that is missing: all, or those that an earlier call of the same command left.

    Runs that were cut or invalid are made again; what is left of them goes to a folder of its own. A run is invalid by
    what the load generator did, whatever its figures are: leaving such runs out favours no side.

    Raises Interrupted, and what is wrong with the plan, the target or this host.
    """
    fresh = begun(settings.sides[0].plan.run.name or "series", tuple(side.plan for side in settings.sides))
    found = load(settings.folder, SERIES, SeriesState)
    if found is not None:
        check_same(settings.folder / SERIES, found, fresh)
    state = fresh if found is None else _cleared(settings.folder, found)
    if state.runs:
        say(f"going on with {len(state.runs)} runs of {settings.folder}")
    for again in range(AGAIN + 1):
        state = _missing(settings, state, interruption, say)
        spoilt = [one.directory for one in state.runs if one.invalid]
        if not spoilt or 2 * len(spoilt) > len(state.runs) or again == AGAIN:
            break
        say(f"made again, since they were invalid: {', '.join(spoilt)}")
        state = _cleared(settings.folder, state)
    return state


def _missing(settings: Settings, state: SeriesState, interruption: Interruption, say: Say) -> SeriesState:
    """Make the runs that are not there."""
    there = {one.directory for one in state.runs}
    left = [directory for directory in order(settings.repeats, len(settings.sides)) if directory not in there]
    for place, directory in enumerate(left, 1):
        one = OneRun(directory=directory)
        save(settings.folder, SERIES, _with(state, one))
        say(f"run {place} of {len(left)}: {directory}")
        state = _with(state, _made(settings, one, interruption))
        save(settings.folder, SERIES, state)
        say(_line(state.runs[-1]))
    return state


def _with(state: SeriesState, one: OneRun) -> SeriesState:
    return msgspec.structs.replace(state, runs=(*state.runs, one))


def _cleared(folder: Path, state: SeriesState) -> SeriesState:
    """The series without runs that are to be made again; their directories are moved out of the way."""
    for one in state.runs:
        if not one.kept:
            _discard(folder, one.directory)
    state = msgspec.structs.replace(state, runs=tuple(one for one in state.runs if one.kept))
    save(folder, SERIES, state)
    return state


def _discard(folder: Path, directory: str) -> None:
    for name in (directory, f"{directory}.log"):
        path = folder / name
        if not path.exists():
            continue
        target = folder / DISCARDED
        try:
            target.mkdir(exist_ok=True)
            number = sum(1 for _ in target.iterdir()) + 1
            path.rename(target / f"{number}-{name.replace('/', '-')}")
        except OSError as error:
            raise UsageError(f"{path}: can't be moved: {reason_of(error)}", hint="name another --out") from None


def _made(settings: Settings, one: OneRun, interruption: Interruption) -> OneRun:
    """Wait until the target is idle, run, and look at what it left."""
    side = settings.sides[-1 if one.directory.startswith(AGAINST) else 0]
    idle = wait_before_run(
        engine_pages(side.plan),
        settings.environ,
        interruption,
        pause_s=settings.pause_s,
        limit_s=settings.idle_limit_s,
    )
    path = settings.folder / one.directory
    log = path.with_name(f"{path.name}.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A run knows nothing of the series; an empty nonce is a new one, so that no run meets the prompts of another.
    command = [sys.executable, "-P", "-m", "infersiege", "run", str(side.path), "--out", str(path)]
    command += [*settings.options, "--set", "run.nonce=", "--set", "run.repeats="]
    code = execute(command, log, settings.environ, interruption)
    try:
        summary = RunDirectory.open(path).read_summary()
    except RunDirectoryError as error:
        if interruption.asked():
            raise Interrupted from None
        raise why_not_begun(one.directory, code, log, error) from None
    if code == ExitCode.INTERNAL or summary.internal_faults:
        raise InternalError(f"{path}: the run ended with code {code}: {last_error(log) or f'see {log}'}")
    if summary.interrupted:
        raise Interrupted
    return msgspec.structs.replace(one, ended=True, exit_code=code, idle=idle, invalid=summary.invalid)


def _line(one: OneRun) -> str:
    """What became of a run."""
    if one.invalid:
        return f"{one.directory}: invalid: {one.invalid[0]}"
    dirty = (
        f" (the engine was busy when it began: {one.idle.detail})" if one.idle is not None and one.idle.dirty else ""
    )
    return f"{one.directory}: ended with code {one.exit_code}{dirty}"
