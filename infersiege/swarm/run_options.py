"""What the command line of `run` adds to a plan, and what both say together about workers."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infersiege.errors import UsageError
from infersiege.plan.schema import Plan
from infersiege.plan.streams import streams_of
from infersiege.swarm.ending import MasterOptions
from infersiege.swarm.exposure import check_secret
from infersiege.swarm.secret import SECRET_VARIABLE


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line adds to a plan."""

    out: Path | None
    workers: int | None
    """On this host; None: the plan's."""
    expect_workers: int | None
    """In all; None: only those of this host."""
    bind: tuple[str, int]
    """Where workers join; port 0: any free one."""
    wait_for_target_ns: int
    gated: bool
    """Broken rules count in the exit code, and junit.xml is written."""
    skip_doctor: bool = False
    """Ask the channels nothing before the load."""
    web: tuple[str, int] | None = None
    """Where the status page listens; port 0: any free one. None: there is none."""


def fleet_options(plan: Plan, options: RunOptions, environ: Mapping[str, str]) -> MasterOptions:
    """How many workers, and where they join. Raises UsageError for numbers that make no sense together."""
    local = options.workers if options.workers is not None else plan.run.workers
    expected = options.expect_workers if options.expect_workers is not None else local
    secret = check_fleet(local, expected, options.bind, environ)
    for key, value in _to_be_shared(plan):
        if value < expected:
            raise UsageError(
                f"{key} = {value} can't be shared among {expected} workers: some would have none",
                hint="use fewer workers",
            )
    host, port = options.bind
    return MasterOptions(
        local_workers=local, expected_workers=expected, host=host, port=port, secret=secret or secrets.token_hex(16)
    )


def check_fleet(local: int, expected: int, bind: tuple[str, int], environ: Mapping[str, str]) -> str:
    """The secret that workers of other hosts need, empty where there are none of them and it is not set.

    Raises UsageError for numbers that make no sense together, for a secret that is missing or can be guessed.
    """
    if expected < 1 or expected < local:
        raise UsageError(
            f"{local} workers on this host and {expected} in all make no sense",
            hint="--expect-workers counts all workers, those of --workers included",
        )
    secret = environ.get(SECRET_VARIABLE, "")
    if expected > local and not secret:
        raise UsageError(
            f"{expected - local} worker(s) are to join from elsewhere, but {SECRET_VARIABLE} is not set",
            hint=f"set it here and on their hosts: export {SECRET_VARIABLE}=$(openssl rand -hex 32)",
        )
    check_secret(*bind, secret)
    return secret


def _to_be_shared(plan: Plan) -> Iterator[tuple[str, int]]:
    """Numbers of sessions of which each worker needs one at least, with their key."""
    for stream in streams_of(plan):
        here = "load" if stream.number == 0 else f"workload.{stream.workloads[0]}.load"
        if stream.load.max_in_flight is not None:
            yield f"{here}.max_in_flight", stream.load.max_in_flight
        staged = stream.number == 0 and bool(plan.load.stages)
        for place, asked in enumerate(stream.asked):
            if asked.users is not None:
                yield f"{here}.stages.{place}.users" if staged else f"{here}.users", asked.users
