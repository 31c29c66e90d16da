"""How long a prompt and its answer may be for a channel: the longest row of the traces that go to it."""

from __future__ import annotations

import time
from typing import NamedTuple

from infersiege.plan.schema import Plan, Workload
from infersiege.plan.trace import trace_of

_MOST_SESSIONS = 20_000
_MOST_S = 1.0
"""A trace of millions of rows is not read to its end for one figure."""


class Longest(NamedTuple):
    """The longest request of one workload, in tokens."""

    scenario: str
    prompt_tokens: int
    output_tokens: int
    turn: str
    """Session and turn."""
    whole: bool
    """Every session was looked at."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def longest_rows(plan: Plan, channel: str) -> list[Longest]:
    """One for each workload of the channel whose trace tells lengths. Raises TraceError for one that can't be read."""
    first = next(iter(plan.channels))
    found = [
        _longest(plan, workload)
        for workload in plan.workloads
        if channel in served_by(plan, workload.channel or first, workload.scenario)
    ]
    return [longest for longest in found if longest is not None]


def served_by(plan: Plan, name: str, scenario: str) -> tuple[str, ...]:
    """Channels that a workload's sessions may go to: of a hybrid one, all parts but those of other scenarios."""
    hybrid = plan.hybrids.get(name)
    if hybrid is None:
        return (name,)
    if hybrid.policy != "scenario":
        return tuple(part.channel for part in hybrid.parts)
    named = tuple(part.channel for part in hybrid.parts if scenario in part.scenarios)
    return named or tuple(part.channel for part in hybrid.parts if not part.scenarios)


def _longest(plan: Plan, workload: Workload) -> Longest | None:
    trace = trace_of(plan, workload)
    until = time.monotonic() + _MOST_S
    count = min(_MOST_SESSIONS, trace.sessions) if trace.sessions is not None else 200
    best: Longest | None = None
    index = 0
    while index < count and time.monotonic() < until:
        session = trace.session(index)
        for number, turn in enumerate(session.turns[: workload.max_turns]):
            if turn.asked_prompt_tokens is None:
                continue
            output = turn.asked_output_tokens or plan.sampling.max_tokens
            output = min(output, workload.max_tokens or output)
            total = turn.asked_prompt_tokens + output
            over = workload.context_limit is not None and total > workload.context_limit
            if not over and (best is None or total > best.tokens):
                name = f"session {session.session_id}, turn {number}"
                best = Longest(workload.scenario, turn.asked_prompt_tokens, output, name, True)
        index += 1
    return None if best is None else best._replace(whole=index == trace.sessions)
