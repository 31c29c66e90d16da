"""When which session starts: pure functions of seed and plan; the clock is an argument.

One seeded sequence of tickets is split by index: worker i of n takes the tickets with index i modulo n, so the union
over the workers is the sequence of one worker, whatever n is. Offsets are absolute from the start of the load and are
never made by adding up sleeps. A mixed load has several such sequences at once, its streams.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import msgspec

from infersiege.errors import InternalError
from infersiege.schedule.arrivals import arrival_process, check_factor, stream_seed
from infersiege.schedule.deal import Deal
from infersiege.schedule.rates import RateStage, rescaled
from infersiege.schedule.shares import check_split, is_mine


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """The right to start one session."""

    index: int
    """Place in the whole run's sequence; each stream has its own."""
    workload: int
    session_index: int
    """How many sessions of this workload came before, over all workers; beyond a trace's end when it wraps."""
    offset_ns: int | None
    """When it is due, from the start; None: as soon as a user is free."""
    stream: int = 0
    """Which of several streams of arrivals (mixed loads) it belongs to: (stream, index) is one of its kind in a run."""


def open_tickets(
    *,
    rate: float | None = None,
    arrivals: str,
    weights: Sequence[float],
    seed: int,
    burstiness: float | None = None,
    stages: Sequence[RateStage] | None = None,
    duration_ns: int | None = None,
    sessions: int | None = None,
    available: Sequence[int | None] | None = None,
    place: int = 0,
    members: int = 1,
    first: int = 0,
    stream: int = 0,
    workloads: Sequence[int] | None = None,
) -> Iterator[Ticket]:
    """Open loop: sessions arrive by a process, whatever the answers do.

    `rate` is sessions per second over all workloads and workers; `stages` are rates over time instead of it and end
    with the last one. `burstiness` is the shape of gamma's gaps. Ends before `duration_ns` or after `sessions` tickets.
    `available[w]` is what workload w's trace holds (None: endless, or it wraps): beyond it the arrivals of this
    workload fall away and the rate drops by its share, since the others must not get load that was not asked for.
    `first` and (`place`, `members`) give the share of an epoch. `stream` is the number of a stream in a mixed load, and
    `workloads` are its workloads' places in the plan (None: 0, 1, …), in the order of `weights`. Raises UsageError for
    an unknown process, or one that lacks its burstiness.
    """
    check_split(place, members, first)
    places = plan_places(workloads, len(weights))
    seed = stream_seed(seed, stream)
    offsets = _offsets(rate, stages, arrivals, seed, burstiness)
    deal = Deal(weights, seed, available)
    index = 0
    for block in offsets:
        for offset_ns in block:
            if (duration_ns is not None and offset_ns >= duration_ns) or (sessions is not None and index >= sessions):
                return
            dealt = deal.draw(redistribute=False)
            if dealt is None:
                if deal.exhausted:
                    return
                continue
            if is_mine(index, place, members, first):
                yield Ticket(index, places[dealt[0]], dealt[1], offset_ns, stream)
            index += 1


def closed_tickets(
    *,
    weights: Sequence[float],
    seed: int,
    sessions: int | None = None,
    available: Sequence[int | None] | None = None,
    place: int = 0,
    members: int = 1,
    first: int = 0,
    stream: int = 0,
    workloads: Sequence[int] | None = None,
) -> Iterator[Ticket]:
    """Closed loop: what each free user takes next. Without end unless `sessions` or the traces end it.

    A used-up trace is passed over and its share goes to the other workloads, so that the number of users holds.
    `stream` and `workloads` as in `open_tickets`.
    """
    check_split(place, members, first)
    places = plan_places(workloads, len(weights))
    deal = Deal(weights, stream_seed(seed, stream), available)
    for index in count():
        if sessions is not None and index >= sessions:
            return
        dealt = deal.draw(redistribute=True)
        if dealt is None:
            return
        if is_mine(index, place, members, first):
            yield Ticket(index, places[dealt[0]], dealt[1], None, stream)


def merge_streams(streams: Iterable[Iterator[Ticket]]) -> Iterator[Ticket]:
    """Tickets of several streams that have times, in order of time (equal times: in order of stream)."""
    return heapq.merge(*streams, key=_due)


def plan_places(workloads: Sequence[int] | None, count_of_weights: int) -> Sequence[int]:
    """The place in the plan of each workload of a stream. Raises InternalError unless there is one for each."""
    if workloads is None:
        return range(count_of_weights)
    if len(workloads) != count_of_weights or len(set(workloads)) != count_of_weights:
        raise InternalError(f"{count_of_weights} workloads of a stream have the places {list(workloads)} in the plan")
    return workloads


def _due(ticket: Ticket) -> tuple[int, int]:
    if ticket.offset_ns is None:
        raise InternalError("tickets of a closed loop have no time to be merged by")
    return ticket.offset_ns, ticket.stream


def _offsets(
    rate: float | None, stages: Sequence[RateStage] | None, arrivals: str, seed: int, burstiness: float | None
) -> Iterator[list[int]]:
    process = arrival_process(arrivals, seed, burstiness)
    if stages is not None:
        return rescaled(process.counts(), stages)
    if rate is None:
        raise InternalError("open arrivals need a rate or stages")
    check_factor("rate", rate)
    return process.offsets_ns(rate)
