"""Who writes the synthesised texts of each workload: as long in tokens as the workload's channel counts them."""

from __future__ import annotations

from collections.abc import Mapping

from infersiege.plan.schema import Plan
from infersiege.records import TextLengths
from infersiege.tokens import text_channel
from infersiege.traces import Synthesizer


def synthesizers(plan: Plan, text_lengths: Mapping[str, Mapping[str, TextLengths]]) -> tuple[Synthesizer, ...]:
    """One for each workload, in the plan's order; workloads whose texts are as long share one, and its cache."""
    made: dict[tuple[str, str], Synthesizer] = {}
    found = []
    for workload in plan.workloads:
        channel = text_channel(plan, workload)
        lengths = text_lengths.get(channel, {}).get(workload.language)
        key = (channel if lengths else "", workload.language)
        if key not in made:
            known = {workload.language: lengths} if lengths else None
            made[key] = Synthesizer(plan.run.seed, lengths=known)
        found.append(made[key])
    return tuple(found)
