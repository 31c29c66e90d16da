"""Tickets of several sources as one sequence: streams in turn, checked prompts in the place of a share of sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infersiege.plan.schema import Plan
from infersiege.plan.streams import Stream
from infersiege.schedule import Ticket
from infersiege.schedule.replacing import replaced


def with_checked(plan: Plan, stream: Stream, tickets: Iterator[Ticket]) -> Iterator[Ticket]:
    """A stream's tickets, of all workers, with its share of checked prompts; each goes where its session went."""
    if not stream.checked or plan.quality is None:
        return tickets
    by_channel = {plan.workloads[place].channel: place for place in stream.checked}
    channels = {place: plan.workloads[place].channel for place in stream.workloads}
    instead = {place: by_channel[name] for place, name in channels.items() if name in by_channel}
    return replaced(tickets, plan.quality.share, plan.run.seed, instead)


def in_turn(streams: Sequence[Iterator[Ticket]]) -> Iterator[Ticket]:
    """One of each, until all have ended."""
    left = list(streams)
    while left:
        for tickets in tuple(left):
            ticket = next(tickets, None)
            if ticket is None:
                left.remove(tickets)
            else:
                yield ticket
