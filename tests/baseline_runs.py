"""Runs of the same thing that differ a little, and runs that are slower: for the tests of baselines."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from records_sample import SECOND, plan, plan_file, records, write_run
from series_sample import gpu_rows

from infersiege.gate.baseline import Baseline, Observed, side_of
from infersiege.metrics.summary import summarise
from infersiege.plan.schema import Plan, Slo
from infersiege.records import Outcome, Summary, TurnRecord
from infersiege.report.rebuild import run_facts
from infersiege.rundir import GPU_SERIES, PlanFile

USERS, STEADY_S = 6, 20
RUN_TO_RUN = (1.0, 1.012, 0.985, 1.006, 0.994)
"""How much slower each of five runs of the same thing is than the first."""
RELATIVE = (
    Slo(metric="ttft", stat="p50", relative_max=0.05),
    Slo(metric="e2e", stat="p50", relative_max=0.05),
)


@cache
def sample_turns() -> tuple[TurnRecord, ...]:
    return tuple(records(USERS, steady_s=STEADY_S, fail_share=0.0))


def turns(factor: float) -> list[TurnRecord]:
    """The same turns, each slower by this factor from the moment it was sent."""

    def later(turn: TurnRecord, at_ns: int | None) -> int | None:
        return None if at_ns is None or turn.sent_ns is None else turn.sent_ns + round((at_ns - turn.sent_ns) * factor)

    return [
        msgspec.structs.replace(
            turn,
            first_byte_ns=later(turn, turn.first_byte_ns),
            first_token_ns=later(turn, turn.first_token_ns),
            first_answer_ns=later(turn, turn.first_answer_ns),
            last_token_ns=later(turn, turn.last_token_ns),
            closed_ns=later(turn, turn.closed_ns),
        )
        if turn.outcome is Outcome.OK
        else turn
        for turn in sample_turns()
    ]


def the_plan(slos: tuple[Slo, ...] = RELATIVE, **changes: Any) -> Plan:
    made = plan(slos=slos, steady_s=STEADY_S)
    return msgspec.structs.replace(made, load=msgspec.structs.replace(made.load, users=USERS), **changes)


def the_file(run_id: str, used: Plan | None = None, **changes: Any) -> PlanFile:
    """plan.json of one run; each has an id and a salt of its own."""
    file = plan_file(used or the_plan(), turns=len(sample_turns()), steady_s=STEADY_S, emulated=False)
    stages = tuple(msgspec.structs.replace(stage, users=USERS) for stage in file.stages)
    host = {"cpu": "Fast 9000", "cores": "16"}
    given: dict[str, Any] = {"run_id": run_id, "nonce": f"salt-{run_id}", "host": host, "stages": stages, **changes}
    return msgspec.structs.replace(file, **given)


@cache
def summary_of(factor: float) -> Summary:
    file = the_file("any")
    return summarise(turns(factor), run_facts(file, started_ns=file.started_ns or 0, ended_ns=file.ended_ns or 0))


def observed(
    run_id: str, factor: float = 1.0, *, file: PlanFile | None = None, gpus: tuple[str, ...] = ("H100",)
) -> Observed:
    """One run without a directory; `file`: its plan.json but for id and salt."""
    own = the_file(run_id)
    file = own if file is None else msgspec.structs.replace(file, run_id=own.run_id, nonce=own.nonce)
    return Observed(file, summary_of(factor), gpus)


def side(name: str, factor: float = 1.0, *, runs: int = 5, **more: Any) -> Baseline:
    """So many runs of the same thing, all slower by this factor."""
    made = [observed(f"{name}-{place}", factor * RUN_TO_RUN[place % 5], **more) for place in range(runs)]
    return side_of(made, name=name, now_ns=SECOND)


def write_side(folder: Path, factor: float = 1.0, *, runs: int = 5, gpu: str = "H100", **changes: Any) -> Path:
    """Run directories `run-1` …, as `run --repeats` leaves them, with one GPU that was watched."""
    for place in range(runs):
        rows = turns(factor * RUN_TO_RUN[place])
        run = write_run(folder / f"run-{place + 1}", rows, the_plan(), steady_s=STEADY_S)
        run.write_plan(the_file(f"{folder.name}-{place}", **changes))
        seen = gpu_rows(1, seconds=STEADY_S + 45)
        run.write_series(GPU_SERIES, [msgspec.structs.replace(row, tags={**row.tags, "name": gpu}) for row in seen])
    return folder
