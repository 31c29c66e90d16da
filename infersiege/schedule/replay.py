"""Tickets at a trace's own times."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count, groupby
from operator import itemgetter

import numpy as np

from infersiege.errors import UsageError
from infersiege.schedule.arrivals import FAR_NS, SECOND_NS, check_factor, generator, stream_seed
from infersiege.schedule.shares import check_split, is_mine
from infersiege.schedule.tickets import Ticket, plan_places

MOST_SESSIONS = 100_000_000
"""That a duration may ask for: more is a slip, and takes longer to count than to notice."""


def replay_tickets(
    arrivals_ns: Sequence[Sequence[int] | None],
    *,
    speed: float = 1.0,
    wrap: Sequence[bool] | None = None,
    duration_ns: int | None = None,
    sessions: int | None = None,
    jitter_ns: int = 0,
    seed: int = 0,
    place: int = 0,
    members: int = 1,
    first: int = 0,
    stream: int = 0,
    workloads: Sequence[int] | None = None,
) -> Iterator[Ticket]:
    """Replay: each workload's own arrivals, `speed` times faster, merged by time (equal times: by workload).

    A trace that wraps starts again one mean gap after its last arrival. Arrivals of a workload that share a time are
    spread at random over `jitter_ns` from it, in the trace's own time, and never to the next one's; `seed` says how.
    `stream` and `workloads` as in `open_tickets`. Raises UsageError for a trace without times.
    """
    check_split(place, members, first)
    places = plan_places(workloads, len(arrivals_ns))
    seed = stream_seed(seed, stream)
    check_factor("speed", speed)
    times = []
    total = 0.0
    for workload, arrivals in enumerate(arrivals_ns):
        if arrivals is None:
            raise UsageError(
                f"workload.{places[workload]}: its trace has no timestamps, so it can't be replayed",
                hint='use load mode "open" with a rate, or "closed" with users',
            )
        wraps = bool(wrap and wrap[workload])
        if wraps and duration_ns is not None and arrivals:
            total += duration_ns * speed / _period_ns(arrivals) * len(arrivals)
        timed = _timed(workload, arrivals, wraps)
        times.append(_spread(timed, jitter_ns, generator(seed, f"jitter {workload}")) if jitter_ns else timed)
    if sessions is None and total > MOST_SESSIONS:
        raise UsageError(
            f"replay at speed {speed:g} asks for {total:,.0f} sessions; the most is {MOST_SESSIONS:,}",
            hint="lower load.speed or run.duration, or set run.stop = {sessions = …}",
        )
    for index, (at_ns, workload, session_index) in enumerate(heapq.merge(*times)):
        offset_ns = min(round(at_ns / speed), FAR_NS)
        if (duration_ns is not None and offset_ns >= duration_ns) or (sessions is not None and index >= sessions):
            return
        if is_mine(index, place, members, first):
            yield Ticket(index, places[workload], session_index, offset_ns, stream)


def _timed(workload: int, arrivals: Sequence[int], wrap: bool) -> Iterator[tuple[int, int, int]]:
    if not arrivals:
        return
    period_ns = _period_ns(arrivals)
    for turn in count():
        for place, at_ns in enumerate(arrivals):
            yield turn * period_ns + at_ns, workload, turn * len(arrivals) + place
        if not wrap:
            return


def _spread(
    arrivals: Iterator[tuple[int, int, int]], jitter_ns: int, source: np.random.PCG64
) -> Iterator[tuple[int, int, int]]:
    """Arrivals (time, …) in the same order, those of one time at random ones from it on, before the next one's."""
    ticks = (list(group) for _, group in groupby(arrivals, key=itemgetter(0)))
    together = next(ticks, [])
    while together:
        at_ns, later = together[0][0], next(ticks, [])
        room_ns = min(jitter_ns, later[0][0] - at_ns) if later else jitter_ns
        if len(together) > 1:
            # The generator's raw output, which stays the same over numpy's releases; a product of whole numbers.
            draws = sorted((word * room_ns) >> 64 for word in source.random_raw(len(together)).tolist())
            together = [(at_ns + draw, *one[1:]) for draw, one in zip(draws, together, strict=True)]
        yield from together
        together = later


def _period_ns(arrivals: Sequence[int]) -> int:
    """From one start of a trace that wraps to the next."""
    last = arrivals[-1]
    return last + (round(last / (len(arrivals) - 1)) if len(arrivals) > 1 else 0) or SECOND_NS
