"""What a plan would send: counted, not sent."""

from __future__ import annotations

from itertools import islice

from rich.console import Console

from infersiege.plan.schema import Plan
from infersiege.swarm.source import SessionSource
from infersiege.traces import describe

SAMPLE = 200
MOST_COUNTED = 1_000_000
"""Sessions that are counted; of more it is only said that there are more."""


def dry_run(plan: Plan, console: Console) -> None:
    """Print arrivals, turns and tokens, from the first sessions of the plan's own sequence."""
    source = SessionSource(plan, place=0, members=1)
    for workload, trace in zip(plan.workloads, source.traces, strict=True):
        console.print(f"{workload.scenario}: {describe(trace).line()}", highlight=False, markup=False)
    sample = list(islice(source.tickets(), SAMPLE))
    turns = prompt = output = 0
    for ticket in sample:
        conversation = source.conversation(ticket)
        turns += conversation.turns
        for turn in conversation.session.turns[: conversation.turns]:
            prompt += turn.asked_prompt_tokens or 0
            output += turn.asked_output_tokens or plan.sampling.max_tokens
    sessions = _sessions(plan, source)
    console.print(
        f"first {len(sample)} sessions: {turns} turns, about {prompt:,} prompt and at most {output:,} output tokens",
        highlight=False,
    )
    if not sample:
        console.print("sessions in all: none is due within the duration")
        return
    if sessions is None:
        console.print("sessions in all: as many as the users get through in the duration")
        return
    factor = sessions / len(sample)
    more = "at least " if sessions == MOST_COUNTED else ""
    console.print(f"sessions in all: {more}{sessions:,}, about {turns * factor:,.0f} turns", highlight=False)


def _sessions(plan: Plan, source: SessionSource) -> int | None:
    """Sessions of the whole run; None: the answers decide."""
    if plan.run.stop is not None and plan.run.stop.sessions is not None:
        return plan.run.stop.sessions
    if plan.load.mode == "closed":
        return None
    return sum(1 for _ in islice(source.tickets(), MOST_COUNTED))
