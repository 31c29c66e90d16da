"""Options that `capacity` and `sweep` have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from infersiege.cli.seconds import in_seconds
from infersiege.cli.worker_options import bind_option, expect_workers_option, workers_option

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What the command line says of all runs; fields as the options."""

    out: Path | None
    overrides: tuple[str, ...]
    probe_duration: str | None
    pause: float
    idle_limit: float
    workers: int | None
    expect_workers: int | None
    bind: str
    wait_for_target: float
    as_json: bool


def probe_options(command: _Command) -> _Command:
    """Give a command these options, in this order; it gets them as `**common`, the fields of ProbeOptions."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--out", type=click.Path(path_type=Path), help="Folder of the runs; default: runs/<time>-<command>-<name>."
    ),
    click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the plan."),
    click.option("--probe-duration", metavar="DURATION", help="Length of each run; default: the plan's duration."),
    click.option(
        "--pause",
        type=in_seconds,
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="Before a run, where no engine tells; also with a unit: 90s, 2m.",
    ),
    click.option(
        "--idle-limit",
        type=in_seconds,
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Longest wait for the engine to be idle before a run.",
    ),
    workers_option,
    expect_workers_option,
    bind_option,
    click.option(
        "--wait-for-target",
        type=in_seconds,
        default=0.0,
        metavar="SECONDS",
        help="Wait so long for the target to become ready.",
    ),
    click.option(
        "--json", "as_json", is_flag=True, help="The result as JSON on standard output; progress goes to stderr."
    ),
)
