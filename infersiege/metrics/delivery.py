"""The load that was really there, rebuilt from the turns: concurrency, sessions alive, arrivals begun."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infersiege.metrics.collect import Collector
from infersiege.metrics.facts import AskedLoad, SteadyWindow
from infersiege.metrics.flow import Flow
from infersiege.metrics.lives import Alive
from infersiege.records import Outcome, WorkerSummary

Instants = npt.NDArray[np.int64]

SECOND_NS = 1_000_000_000

SWITCH_NS = 50_000_000
"""A user who takes the next session within this time was never gone."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """One asked load of one stage against what was there."""

    load: AskedLoad
    window: SteadyWindow
    share: float | None
    """Delivered / asked; None when it can't be told."""
    asked: float
    """Users, or arrivals due."""
    got: float
    """Mean sessions alive, or arrivals begun in time."""
    expected: float | None = None
    """Open: arrivals that the rate and the window's length make, where nobody counted those of the process."""
    due: int | None = None
    """Open and replay: arrivals that have a record."""
    follows_more: bool = False
    """Closed: a stage before asked for more users, whose last turns may still be open."""
    strayed: tuple[str, ...] = ()
    """Closed: workers that were lost before the window's end. Their open turns went on until they knew of it, beside
    those of who had their users by then."""


def instants(columns: Iterable[array[int]]) -> Instants:
    """All columns as one int64 array."""
    parts = [np.frombuffer(column, dtype=np.int64) for column in columns if column]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def inside(at_ns: Instants, windows: Sequence[SteadyWindow]) -> int:
    """How many instants lie in one of the windows."""
    return sum(int(((at_ns >= window.start_ns) & (at_ns < window.end_ns)).sum()) for window in windows)


def mean_alive(start_ns: Instants, end_ns: Instants, windows: Sequence[SteadyWindow]) -> float | None:
    """Mean number of the intervals [start, end) that are open inside the windows; None without a window."""
    length_ns = sum(window.duration_ns for window in windows)
    if not length_ns:
        return None
    overlap_ns = 0
    for window in windows:
        overlaps = np.minimum(end_ns, window.end_ns) - np.maximum(start_ns, window.start_ns)
        overlap_ns += int(np.maximum(overlaps, 0).sum())
    return overlap_ns / length_ns


def peak_alive(start_ns: Instants, end_ns: Instants, windows: Sequence[SteadyWindow]) -> int | None:
    """Most intervals [start, end) open at a time inside the windows; None without a window."""
    if not any(window.duration_ns for window in windows):
        return None
    peak = 0
    for window in windows:
        live = (start_ns < window.end_ns) & (end_ns > window.start_ns) & (end_ns > start_ns)
        starts = np.maximum(start_ns[live], window.start_ns)
        ends = end_ns[live]
        at = np.concatenate((starts, ends))
        change = np.concatenate((np.ones_like(starts), -np.ones_like(ends)))
        # An end at the very instant of a start comes first: that slot was free.
        order = np.lexsort((change, at))
        if order.size:
            peak = max(peak, int(np.cumsum(change[order]).max()))
    return peak


def users_alive(flows: Iterable[Flow], windows: Sequence[SteadyWindow]) -> float | None:
    """Mean sessions alive inside the windows, from the first due to the last end, think time included."""
    return mean_alive(*_lives(flows)[:2], windows)


def _lives(flows: Iterable[Flow]) -> Alive:
    """All sessions of these flows."""
    found = [flow.alive for flow in flows]
    empty = np.empty(0, dtype=np.int64)
    return (
        Alive(*(np.concatenate(column) for column in zip(*found, strict=True))) if found else Alive(empty, empty, empty)
    )


def delivered(collector: Collector) -> list[Delivered]:
    """Every asked load in every steady window that it belongs to, in the order of the plan."""
    return [
        _delivered(load, window, collector)
        for load in collector.facts.loads
        for window in collector.windows
        if load.stage in (None, window.stage)
    ]


def _delivered(load: AskedLoad, window: SteadyWindow, collector: Collector) -> Delivered:
    if load.mode == "closed":
        users = load.users or 0
        flows = [flow for (scenario, _, _), flow in collector.flows.items() if load.plays(scenario)]
        alive = (users_alive(flows, (window,)) or 0.0) + _switching(flows, window)
        # When everything fails at once, the time between two attempts is most of a user's life, and no fault of ours.
        dead = collector.outcomes[Outcome.FAILED] > 0 and not collector.outcomes[Outcome.OK]
        share = None if dead or not users else alive / users
        return Delivered(
            load,
            window,
            share,
            users,
            alive,
            follows_more=_follows_more(load, collector.facts.loads),
            strayed=_strayed(collector.facts.workers, window),
        )
    cells = [cell for key, cell in collector.cells.items() if load.plays(key[0]) and key[2] == window.stage]
    due = sum(cell.tally["arrivals"] for cell in cells)
    begun = sum(cell.tally["arrivals_begun"] for cell in cells)
    if load.arrivals is not None:
        # What was asked for, not what the records say: an arrival that nobody wrote down is missing all the same, and
        # so is one for which the trace had no session.
        share = begun / load.arrivals if load.arrivals else None
        return Delivered(load, window, share, load.arrivals, begun, due=due)
    expected = None if load.rate is None else load.rate * window.duration_ns / SECOND_NS
    return Delivered(load, window, begun / due if due else None, due, begun, expected, due)


def _strayed(workers: Iterable[WorkerSummary], window: SteadyWindow) -> tuple[str, ...]:
    return tuple(one.worker for one in workers if one.lost_at_ns is not None and one.lost_at_ns < window.end_ns)


def _follows_more(load: AskedLoad, loads: Sequence[AskedLoad]) -> bool:
    """Whether a stage before asked the same load for more users."""
    same = [one for one in loads if one.mode == "closed" and one.scenarios == load.scenarios]
    return any((one.users or 0) > (load.users or 0) for one in same[: same.index(load)])


def _switching(flows: Iterable[Flow], window: SteadyWindow) -> float:
    """Mean number of users between two sessions: each end is paired with the start that most likely followed it.

    Records don't name users. An end in good order was followed by a start within SWITCH_NS. A start without such an end
    belongs to the oldest session that ended in failure, whose user pauses before the next one (`Alive.pause_ns`):
    a server's outage is no load that we failed to deliver.
    """
    begun, ends, pauses = _lives(flows)
    starts = np.sort(begun).tolist()
    well = np.sort(ends[pauses == 0]).tolist()
    broken = sorted(zip(ends[pauses > 0].tolist(), pauses[pauses > 0].tolist(), strict=True))
    between_ns, free, seen = 0, 0, 0
    pausing: deque[tuple[int, int]] = deque()
    """(end, latest next start) of users that pause, in order of their ends."""
    for start_ns in starts:
        while free < len(well) and well[free] < start_ns - SWITCH_NS:
            free += 1
        if free < len(well) and well[free] <= start_ns:
            between_ns += _overlap(well[free], start_ns, window)
            free += 1
            continue
        while seen < len(broken) and broken[seen][0] <= start_ns:
            pausing.append((broken[seen][0], sum(broken[seen])))
            seen += 1
        while pausing and pausing[0][1] < start_ns:
            pausing.popleft()
        if pausing:
            between_ns += _overlap(pausing.popleft()[0], start_ns, window)
    # Those that still paused when the window ended had no next session.
    pausing.extend((end_ns, end_ns + pause_ns) for end_ns, pause_ns in broken[seen:])
    between_ns += sum(_overlap(end_ns, window.end_ns, window) for end_ns, until in pausing if until >= window.end_ns)
    return between_ns / window.duration_ns


def _overlap(start_ns: int, end_ns: int, window: SteadyWindow) -> int:
    return max(0, min(end_ns, window.end_ns) - max(start_ns, window.start_ns))
