"""What `capacity` and `sweep` have in common: the plan with its length, where probes go, Ctrl-C, the page."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infersiege.capacity.runs import Interrupted, Interruption, Settings
from infersiege.cli.run import seconds_of
from infersiege.errors import ExitCode, UsageError
from infersiege.plan import Plan, load_plan
from infersiege.plan.values import parse_duration
from infersiege.report.capacity_page import CurvePage, render_curves
from infersiege.rundir import default_path

if TYPE_CHECKING:
    from rich.console import Console


def loaded(path: Path, overrides: Sequence[str], duration: str | None) -> tuple[Plan, int]:
    """The plan, checked, and the length of a probe in ns. Raises PlanError, UsageError."""
    more = [] if duration is None else ["run.stop=", f"run.duration={_checked(duration)}"]
    plan = load_plan(path, (*overrides, *more), os.environ)
    if plan.run.duration_ns is None:
        raise UsageError(
            "the plan ends by sessions, and a probe needs a length: more load would only make it shorter",
            hint="give --probe-duration, such as --probe-duration 60s",
        )
    return plan, plan.run.duration_ns


def _checked(duration: str) -> str:
    try:
        parse_duration(duration)
    except ValueError as error:
        raise UsageError(f"--probe-duration {error}") from None
    return duration.strip()


def folder_for(out: Path | None, name: str) -> Path:
    """Where the probes go; a new one below runs/ unless named."""
    return out if out is not None else default_path(name, time.time_ns())


def settings_for(
    path: Path,
    overrides: tuple[str, ...],
    plan: Plan,
    folder: Path,
    workers: int | None,
    wait_for_target: float,
    pause: float,
    idle_limit: float,
) -> Settings:
    return Settings(
        plan=path,
        overrides=overrides,
        slos=plan.slos,
        folder=folder,
        workers=workers if workers is not None else plan.run.workers,
        wait_for_target_s=seconds_of("--wait-for-target", wait_for_target) / 1e9,
        pause_s=seconds_of("--pause", pause) / 1e9,
        idle_limit_s=seconds_of("--idle-limit", idle_limit) / 1e9,
        environ=os.environ,
    )


class Progress:
    """Prints lines; and runs something until it is done or somebody stops it."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def until_stopped(self, folder: Path) -> Iterator[Interruption]:
        """Ends the process with 130 when somebody stopped it."""
        with Interruption() as interruption:
            try:
                yield interruption
            except Interrupted:
                self(f"interrupted: the same command with --out {folder} goes on")
                raise SystemExit(int(ExitCode.INTERRUPTED)) from None


def write_page(path: Path, page: CurvePage, console: Console) -> Path:
    return write_text(path, render_curves(page), console)


def write_text(path: Path, text: str, console: Console) -> Path:
    """A file for people that can't be written takes nothing from the result: it is said, and that is all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="replace")
        part.replace(path)
    except OSError as error:
        console.print(f"warning: {path}: can't be written: {error.strerror or error}", markup=False, soft_wrap=True)
    return path
