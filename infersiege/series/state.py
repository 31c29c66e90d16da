"""What a series has done so far: series.json beside its runs, so that the same command goes on from there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from infersiege.capacity.idle import Idleness
from infersiege.capacity.state import Kept, check_plan_and_versions
from infersiege.errors import ExitCode
from infersiege.plan import Plan, plan_hash
from infersiege.swarm.versions import versions

SERIES = "series.json"
AGAINST = "against"
"""Folder of the runs of the other plan, beside `run-1` …"""
DISCARDED = "discarded"
"""Folder of runs that were cut or invalid, and made again."""

KEPT = (ExitCode.PASS, ExitCode.RULE_FAILED, ExitCode.NO_DATA)
"""Of a run that is not made again when the series goes on: a rule that failed is a result."""


class OneRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a series."""

    directory: str
    """Beside series.json: `run-1`, `against/run-1`."""
    ended: bool = False
    """False: it was begun, and nothing is known of its end."""
    exit_code: int | None = None
    idle: Idleness | None = None
    """How the target was found before it; None: nobody looked."""
    invalid: tuple[str, ...] = ()
    """Why its figures can't be trusted."""

    @property
    def kept(self) -> bool:
        return self.ended and self.exit_code in KEPT


class SeriesState(Kept, frozen=True, kw_only=True):
    """series.json."""

    kind: str = "series"
    name: str
    plans: tuple[str, ...]
    """Hashes of the plan and, if there is one, of the other plan."""
    versions: dict[str, str]
    runs: tuple[OneRun, ...] = ()
    """In the order in which they were made."""


def begun(name: str, plans: tuple[Plan, ...]) -> SeriesState:
    """A series without runs."""
    return SeriesState(name=name, plans=tuple(identity_of(plan) for plan in plans), versions=versions())


def identity_of(plan: Plan) -> str:
    """Without the number of runs: a series may be made longer."""
    return plan_hash(msgspec.structs.replace(plan, run=msgspec.structs.replace(plan.run, repeats=1)))


def check_same(path: Path, before: SeriesState, now: SeriesState) -> None:
    """Raises UsageError when runs of now would not belong to the series of before."""
    check_plan_and_versions(path, before.plans == now.plans, before.versions, now.versions)


def order(repeats: int, sides: int) -> list[str]:
    """Directories in the order of their runs: of two plans in turn, so that whatever drifts meets both alike.

    Which of the two is first changes with each pair (A B, B A, …): a drift that goes one way favours neither.
    """
    found = []
    for number in range(1, repeats + 1):
        pair = [f"run-{number}", f"{AGAINST}/run-{number}"][:sides]
        found += pair if number % 2 else pair[::-1]
    return found
