"""How long a prompt and its answer may be for a channel: what its server takes, and the longest row that goes to it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from infersiege.plan.schema import Plan, Workload
from infersiege.redis_stream import trace_of
from infersiege.rundir import ChannelFacts
from infersiege.traces.play.session_lines import cut_session

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


def within_context(plan: Plan, facts: Mapping[str, ChannelFacts]) -> Plan:
    """The plan with a context limit in each workload that has none and whose servers tell theirs (TR-11).

    Of a workload that may go to several channels it is the least of theirs that is known: requests are to be the same.
    """
    workloads = []
    for workload in plan.workloads:
        channels = served_by(plan, workload.channel or next(iter(plan.channels)), workload.scenario)
        told = [int(facts[name].details["context_length"]) for name in channels if _tells(facts.get(name))]
        limit = workload.context_limit or min(told, default=None)
        workloads.append(msgspec.structs.replace(workload, context_limit=limit))
    return msgspec.structs.replace(plan, workloads=tuple(workloads))


def _tells(facts: ChannelFacts | None) -> bool:
    return facts is not None and facts.details.get("context_length", "").isdigit()


def told_limits(before: Plan, after: Plan) -> list[str]:
    """A line for each workload that got its context limit from its server, before a run."""
    lines = []
    for asked, workload in zip(before.workloads, after.workloads, strict=True):
        if asked.context_limit is None and workload.context_limit is not None:
            what = "prompts are cut to fit" if workload.too_long == "clip" else "turns over it are skipped"
            lines.append(f"{workload.scenario}: the server takes {workload.context_limit:,} tokens; {what}")
    return lines


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
        session = cut_session(trace.session(index), workload.max_turns)
        for number, turn in enumerate(session.all_turns()):
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
