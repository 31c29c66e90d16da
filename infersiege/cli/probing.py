"""What `capacity` and `sweep` have in common: the plan with its length, where probes go, Ctrl-C, the page."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from infersiege.capacity.child import Interrupted, Interruption
from infersiege.capacity.runs import Settings, changes_of
from infersiege.capacity.state import CapacityState, SweepState, alone_in
from infersiege.cli.address import MASTER_PORT, address_of
from infersiege.cli.probe_options import ProbeOptions
from infersiege.cli.run import seconds_of
from infersiege.errors import ExitCode, UsageError
from infersiege.plan import Plan, load_plan
from infersiege.plan.values import parse_duration
from infersiege.report.capacity_page import CurvePage, render_curves
from infersiege.report.tables import print_emulated
from infersiege.rundir import default_path
from infersiege.swarm.run_options import check_fleet

RATE_PAUSE_S = 61.0
"""Before each run of a plan with a rate limit."""


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


def _check_fleet(local: int, expected: int, bind: str) -> None:
    """Raises UsageError: before the first probe, not at it."""
    host, port = address_of("--bind", bind, default_port=MASTER_PORT)
    check_fleet(local, expected, (host, port), os.environ)
    if expected > local and port == 0:
        raise UsageError(
            f"--bind {bind}: workers of other hosts find each probe's master at the same port only",
            hint="name the address that they reach, such as --bind 10.0.0.5, and start them with "
            "`infersiege worker --master 10.0.0.5 --forever`",
        )


class Probing:
    """One call of `capacity` or `sweep`: its plan and folder, what it prints and writes."""

    def __init__(self, command: str, path: Path, options: ProbeOptions) -> None:
        """Raises PlanError, UsageError."""
        self.plan, self.duration_ns = loaded(path, options.overrides, options.probe_duration)
        local = options.workers if options.workers is not None else self.plan.run.workers
        expected = options.expect_workers if options.expect_workers is not None else local
        _check_fleet(local, expected, options.bind)
        self.folder = options.out or default_path(f"{command} {self.plan.run.name}", time.time_ns())
        self.settings = Settings(
            plan=path,
            overrides=options.overrides,
            slos=self.plan.slos,
            folder=self.folder,
            workers=local,
            expect_workers=expected,
            bind=options.bind,
            wait_for_target_s=seconds_of("--wait-for-target", options.wait_for_target) / 1e9,
            pause_s=max(seconds_of("--pause", options.pause) / 1e9, self._minute_s()),
            idle_limit_s=seconds_of("--idle-limit", options.idle_limit) / 1e9,
            environ=os.environ,
        )
        self._as_json = options.as_json
        self._console = Console(highlight=False, stderr=options.as_json)

    def _minute_s(self) -> float:
        """A run does not know what was sent before it: with a rate limit the server's minute has to be over."""
        return RATE_PAUSE_S if any(channel.rate_limit is not None for channel in self.plan.channels.values()) else 0.0

    def must_fit(self, loads: Iterable[float], unit: str) -> None:
        """Raises PlanError when the plan has a fault with one of these loads: before the first run, not at it."""
        for load in dict.fromkeys(loads):
            changes = changes_of(load, unit, self.duration_ns)
            load_plan(self.settings.plan, (*self.settings.overrides, *changes), self.settings.environ)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Two calls in one folder would load the target at the same time, and write over each other's files."""
        return alone_in(self.folder)

    @property
    def width(self) -> int:
        return self._console.width

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def until_stopped(self) -> Iterator[Interruption]:
        """Ends the process with 130 when somebody stopped it."""
        with Interruption() as interruption:
            try:
                yield interruption
            except Interrupted:
                self.say(f"interrupted: the same command with --out {self.folder} goes on")
                raise SystemExit(int(ExitCode.INTERRUPTED)) from None

    def write_page(self, name: str, page: CurvePage) -> Path:
        return self.write_text(name, render_curves(page))

    def write_text(self, name: str, text: str) -> Path:
        """A file for people that can't be written takes nothing from the result: it is said, and that is all."""
        path = self.folder / name
        part = path.with_name(f".{name}.part")
        try:
            part.write_text(text, encoding="utf-8", errors="replace")
            part.replace(path)
        except OSError as error:
            self.say(f"warning: {path}: can't be written: {error.strerror or error}")
        return path

    def show(self, tables: Iterable[Table], lines: Sequence[str], *, emulated: bool) -> None:
        """The first line is the answer."""
        if emulated:
            print_emulated(self._console)
        for table in tables:
            self._console.print(table)
        for number, line in enumerate(lines):
            self._console.print(line, style="" if number else "bold", markup=False, soft_wrap=True)

    def print_json(self, state: CapacityState | SweepState) -> None:
        """On standard output, where it was asked for."""
        if self._as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(state), indent=2))
