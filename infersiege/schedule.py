"""When which session starts: pure functions of seed and plan; the clock is an argument.

One seeded sequence of tickets is split by index: worker i of n takes the tickets with index i modulo n, so the union
over the workers is the sequence of one worker, whatever n is. Offsets are absolute from the start of the stage and are
never made by adding up sleeps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from hashlib import blake2b
from itertools import count, groupby
from operator import itemgetter
from typing import Literal

import msgspec
import numpy as np

from infersiege.errors import InternalError, UsageError

SECOND_NS = 1_000_000_000
MOST_SESSIONS = 100_000_000
"""That a duration may ask for: more is a slip, and takes longer to count than to notice."""
_BLOCK = 4096
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 / golden ratio: steps of the additive sequence that shares sessions out among workloads."""
_WORD = 1 << 64
_FAR_NS = 1 << 62
"""146 years: an arrival that is later counts as that far away, so that no offset leaves 64 bits."""
_SMALLEST, _LARGEST = 1e-9, 1e9
"""Of rates and speeds: beyond them arrivals are at one instant, or never."""


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """The right to start one session."""

    index: int
    """Place in the whole run's sequence."""
    workload: int
    session_index: int
    """How many sessions of this workload came before, over all workers; beyond a trace's end when it wraps."""
    offset_ns: int | None
    """When it is due, from the start; None: as soon as a user is free."""


def _generator(seed: int, what: str) -> np.random.PCG64:
    return np.random.PCG64(int.from_bytes(blake2b(f"{seed}\0{what}".encode(), digest_size=16).digest(), "little"))


def _constant(rate: float, seed: int) -> Iterator[list[int]]:
    """Arrival k at k / rate, the first at 0. Exact rational steps: no drift however long it runs."""
    gap_ns = SECOND_NS / Fraction(rate)
    for first in count(0, _BLOCK):
        yield [min(round(k * gap_ns), _FAR_NS) for k in range(first, first + _BLOCK)]


def _poisson(rate: float, seed: int) -> Iterator[list[int]]:
    """Gaps -ln(U) / rate, the first one before the first arrival.

    U comes from the raw output of PCG64, which numpy keeps the same over its releases; its distributions it does not.
    """
    source = _generator(seed, "poisson")
    at_ns = 0.0  # exact to a nanosecond for 104 days
    while True:
        uniform = ((source.random_raw(_BLOCK) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        offsets = at_ns + np.cumsum(-np.log(uniform) * (SECOND_NS / rate))
        offsets = np.minimum(offsets, _FAR_NS)
        at_ns = float(offsets[-1])
        yield np.rint(offsets).astype(np.int64).tolist()


ARRIVALS: dict[str, Callable[[float, int], Iterator[list[int]]]] = {"constant": _constant, "poisson": _poisson}
"""(rate per second, seed) -> blocks of offsets in ns, not falling, without end."""

LATER_ARRIVALS: tuple[str, ...] = ("gamma",)
"""Planned and not built yet."""


def open_tickets(
    *,
    rate: float,
    arrivals: str,
    weights: Sequence[float],
    seed: int,
    duration_ns: int | None = None,
    sessions: int | None = None,
    available: Sequence[int | None] | None = None,
    place: int = 0,
    members: int = 1,
    first: int = 0,
) -> Iterator[Ticket]:
    """Open loop: sessions arrive by a process, whatever the answers do.

    `rate` is sessions per second over all workloads and workers. Ends before `duration_ns` or after `sessions` tickets.
    `available[w]` is what workload w's trace holds (None: endless, or it wraps): beyond it the arrivals of this
    workload fall away and the rate drops by its share, since the others must not get load that was not asked for.
    `first` and (`place`, `members`) give the share of an epoch. Raises UsageError for an unknown process.
    """
    _check_split(place, members, first)
    _check_factor("rate", rate)
    offsets = _process(arrivals)(rate, seed)
    deal = _Deal(weights, seed, available)
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
            if _mine(index, place, members, first):
                yield Ticket(index, dealt[0], dealt[1], offset_ns)
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
) -> Iterator[Ticket]:
    """Closed loop: what each free user takes next. Without end unless `sessions` or the traces end it.

    A used-up trace is passed over and its share goes to the other workloads, so that the number of users holds.
    """
    _check_split(place, members, first)
    deal = _Deal(weights, seed, available)
    for index in count():
        if sessions is not None and index >= sessions:
            return
        dealt = deal.draw(redistribute=True)
        if dealt is None:
            return
        if _mine(index, place, members, first):
            yield Ticket(index, dealt[0], dealt[1], None)


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
) -> Iterator[Ticket]:
    """Replay: each workload's own arrivals, `speed` times faster, merged by time (equal times: by workload).

    A trace that wraps starts again one mean gap after its last arrival. Arrivals of a workload that share a time are
    spread at random over `jitter_ns` from it, in the trace's own time, and never to the next one's; `seed` says how.
    Raises UsageError for a trace without times.
    """
    _check_split(place, members, first)
    _check_factor("speed", speed)
    times = []
    total = 0.0
    for workload, arrivals in enumerate(arrivals_ns):
        if arrivals is None:
            raise UsageError(
                f"workload.{workload}: its trace has no timestamps, so it can't be replayed",
                hint='use load mode "open" with a rate, or "closed" with users',
            )
        wraps = bool(wrap and wrap[workload])
        if wraps and duration_ns is not None and arrivals:
            total += duration_ns * speed / _period_ns(arrivals) * len(arrivals)
        timed = _timed(workload, arrivals, wraps)
        times.append(_spread(timed, jitter_ns, _generator(seed, f"jitter {workload}")) if jitter_ns else timed)
    if sessions is None and total > MOST_SESSIONS:
        raise UsageError(
            f"replay at speed {speed:g} asks for {total:,.0f} sessions; the most is {MOST_SESSIONS:,}",
            hint="lower load.speed or run.duration, or set run.stop = {sessions = …}",
        )
    for index, (at_ns, workload, session_index) in enumerate(heapq.merge(*times)):
        offset_ns = min(round(at_ns / speed), _FAR_NS)
        if (duration_ns is not None and offset_ns >= duration_ns) or (sessions is not None and index >= sessions):
            return
        if _mine(index, place, members, first):
            yield Ticket(index, workload, session_index, offset_ns)


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


class _Deal:
    """Gives each ticket its workload and counts sessions per workload.

    Point k is (u0 + k * golden ratio) mod 1: shares hold to within a few tickets at any length, and, unlike with a
    round robin, every worker's part of the sequence comes to have them too. 64-bit integers, so that all hosts agree.
    """

    def __init__(self, weights: Sequence[float], seed: int, available: Sequence[int | None] | None) -> None:
        if not weights or any(weight <= 0 for weight in weights):
            raise InternalError(f"weights are {list(weights)}, each must be above 0")
        self._weights = [Fraction(weight) for weight in weights]
        self._left = list(available) if available is not None else [None] * len(self._weights)
        self._counts = [0] * len(self._weights)
        self._point = int.from_bytes(blake2b(f"{seed}\0deal".encode(), digest_size=8).digest(), "little")
        self._all = self._bounds(range(len(self._weights)))
        self._usable = self._bounds(self._open())

    @property
    def exhausted(self) -> bool:
        return not self._usable

    def draw(self, *, redistribute: bool) -> tuple[int, int] | None:
        """(workload, session index), or None: used up (all of them, or, without redistribution, the one drawn)."""
        self._point = (self._point + _GOLDEN) % _WORD
        table = self._usable if redistribute else self._all
        workload = next((workload for bound, workload in table if self._point < bound), None)
        if workload is None or self._is_over(workload):
            return None
        number = self._counts[workload]
        self._counts[workload] += 1
        if self._is_over(workload):
            self._usable = self._bounds(self._open())
        return workload, number

    def _is_over(self, workload: int) -> bool:
        left = self._left[workload]
        return left is not None and self._counts[workload] >= left

    def _open(self) -> list[int]:
        return [workload for workload in range(len(self._weights)) if not self._is_over(workload)]

    def _bounds(self, workloads: Sequence[int]) -> list[tuple[int, int]]:
        total = sum(self._weights[workload] for workload in workloads)
        bounds, so_far = [], Fraction(0)
        for workload in workloads:
            so_far += self._weights[workload]
            bounds.append((_WORD if so_far == total else int(so_far / total * _WORD), workload))
        return bounds


def _process(name: str) -> Callable[[float, int], Iterator[list[int]]]:
    process = ARRIVALS.get(name)
    if process is not None:
        return process
    if name == "trace":
        raise UsageError('arrivals "trace" are the mode "replay"', hint='set load mode = "replay"')
    later = ", not built yet" if name in LATER_ARRIVALS else ""
    raise UsageError(f"arrival process {name!r} is unknown{later}", hint="processes: " + ", ".join(ARRIVALS))


def _check_factor(name: str, value: float) -> None:
    if not _SMALLEST <= value <= _LARGEST:
        raise InternalError(f"{name} is {value}, it must be from {_SMALLEST:g} to {_LARGEST:g}")


def _check_split(place: int, members: int, first: int) -> None:
    if members < 1 or not 0 <= place < members or first < 0:
        raise InternalError(f"place {place} of {members} members from arrival {first} on makes no sense")


def _mine(index: int, place: int, members: int, first: int) -> bool:
    return index >= first and (index - first) % members == place


def users_share(users: int, place: int, members: int) -> int:
    """Users of worker `place` of `members`; the shares add up to `users` and differ by at most one."""
    _check_split(place, members, 0)
    return users // members + (place < users % members)


def ramp_offsets(users: int, ramp_ns: int, place: int = 0, members: int = 1) -> list[int]:
    """When each user of one worker starts: user u of all at u * ramp / users, so that workers interleave evenly."""
    _check_split(place, members, 0)
    return [user * ramp_ns // users for user in range(place, users, members)]


LATE_GRACE_NS = 100_000_000
"""How late an arrival may be before `late = "drop"` drops it."""


class Pacer:
    """When to send one worker's arrivals, given that some of them are late.

    On-time arrivals go at their due time, however close they are. After a stall, `send` keeps the order and halves the
    gaps until it has caught up: never more than twice the rate that the schedule had over the same arrivals (a burst of
    all that was missed would be another test). `drop` sends what is at most `grace_ns` late at once, drops the rest.
    """

    def __init__(self, policy: Literal["send", "drop"] | str, *, grace_ns: int = LATE_GRACE_NS) -> None:
        if policy not in ("send", "drop"):
            raise InternalError(f"late policy {policy!r} is unknown")
        self._policy = policy
        self._grace_ns = grace_ns
        self._due_ns: int | None = None
        self._sent_ns = 0

    def send_at(self, due_ns: int, now_ns: int) -> int | None:
        """When to send the arrival due at `due_ns`, at or after `now_ns`; None: drop and count it.

        Call it once per arrival, in order of due times.
        """
        if self._policy == "drop":
            return None if now_ns - due_ns > self._grace_ns else max(due_ns, now_ns)
        earliest = now_ns
        if self._due_ns is not None and self._sent_ns > self._due_ns:
            earliest = max(now_ns, self._sent_ns + (due_ns - self._due_ns + 1) // 2)
        self._due_ns = due_ns
        self._sent_ns = max(due_ns, earliest)
        return self._sent_ns
