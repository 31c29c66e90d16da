"""Which part of a hybrid channel serves a session's next turn, and what is tried again. Pure: seed and clock are given.

A part is told by its place in the plan's list. A session stays on the part that served its last turn, where its history
is cached, unless the policy says otherwise:

* `Weighted` and `ByScenario` choose once for each session, the same whatever the number of workers;
* `Overflow` looks before each turn: the first part that is neither full nor slow, but never back to an earlier one;
* `Failover` begins with the first part and goes on to the next when a turn failed before its first token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from enum import StrEnum
from fractions import Fraction
from hashlib import blake2b
from typing import NamedTuple, Protocol

from infersiege.records import ErrorClass

_WORD = 1 << 64
_GOLDEN = 11400714819323198485
"""2^64 / golden ratio, odd: multiples of it modulo 2^64 fall as evenly as any sequence can (Knuth, TAOCP 3, 6.4)."""

FEWEST_TTFTS = 5
"""Fewer recent TTFTs say nothing about a channel."""
MOST_TTFTS = 5_000
"""That are kept of one channel; a longer window looks at the last ones."""
SLOW_SHARE = Fraction(5, 100)
"""A p95 is above a limit when more than this share of the values is."""

OURS = frozenset({ErrorClass.CLIENT_RESOURCE, ErrorClass.CLIENT_LIMIT})
"""Faults of this machine, which another channel would not cure."""

REFUSED_STATUSES = frozenset({429, 502, 503, 504, 529})
REFUSED_CLASSES = frozenset(
    {ErrorClass.CONNECT, ErrorClass.TIMEOUT_CONNECT, ErrorClass.RATE_LIMIT, ErrorClass.OVERLOAD}
)
"""The last two also as an error inside a 200 (vLLM and SGLang refuse streams so when their queue is full)."""

TURNED_AWAY = frozenset(
    {
        ErrorClass.TLS,
        ErrorClass.AUTH,
        ErrorClass.NOT_FOUND,
        ErrorClass.BAD_REQUEST,
        ErrorClass.CONTEXT_LENGTH,
        ErrorClass.CLIENT_RESOURCE,
    }
)
"""Never worked on either, but the same would come of another attempt."""

_FIRST_ERROR_STATUS = 400

FIRST_BACK_OFF_NS = 200_000_000
LONGEST_BACK_OFF_NS = 5_000_000_000
LONGEST_RETRY_AFTER_NS = 30_000_000_000
"""A Retry-After is followed up to here."""


class RouteReason(StrEnum):
    """Why a turn went to the channel that its record names."""

    WEIGHT = "weight"
    SCENARIO = "scenario"
    FIRST = "first"
    """The first part, which nothing spoke against."""
    KEPT = "kept"
    """The part that served the turn before, and has its history in its cache."""
    FULL = "full"
    """An earlier part had its limit of turns in flight."""
    SLOW = "slow"
    """An earlier part's recent TTFT was above the limit."""
    FAILED = "failed"
    """The part before it failed, before the first token."""


class Choice(NamedTuple):
    """A part, and why."""

    part: int
    reason: RouteReason


class Load(Protocol):
    """What a policy may ask of each part, when it chooses."""

    def is_full(self, part: int) -> bool:
        """Its turns in flight have reached its limit."""

    def is_slow(self, part: int) -> bool:
        """Its recent TTFTs are above its limit."""


class Policy(Protocol):
    def home(self, number: int, scenario: str) -> Choice:
        """Where a session begins, as far as is known before it does. `number`: of its workload, over all workers."""

    def next(self, home: Choice, served: int | None, load: Load) -> Choice:
        """Where a turn goes now. `served`: the part that served the turn before; None: the first turn."""

    def after_failure(self, tried: Sequence[int]) -> Choice | None:
        """Where a turn goes that failed before its first token on all of `tried`, in this order; None: nowhere."""


class Fixed:
    """A session's part is a matter of the session alone: base of the policies that choose once."""

    def next(self, home: Choice, served: int | None, load: Load) -> Choice:
        return home

    def after_failure(self, tried: Sequence[int]) -> Choice | None:
        return None


class Weighted(Fixed):
    """Sessions by weight, evenly interleaved: of any n successive ones a part has its share to within a few.

    Session k has the point frac(k * golden ratio + offset(seed)); each part has a length of [0, 1) by its weight.
    """

    def __init__(self, weights: Sequence[float], seed: int, name: str = "") -> None:
        """`name` sets two hybrid channels of one run apart."""
        exact = [Fraction(weight) for weight in weights]
        total, so_far = sum(exact), Fraction(0)
        self._bounds: list[int] = []
        for weight in exact[:-1]:
            so_far += weight
            self._bounds.append(int(so_far / total * _WORD))
        self._offset = _hashed(seed, "weighted", name)

    def home(self, number: int, scenario: str) -> Choice:
        point = (self._offset + number * _GOLDEN) % _WORD
        return Choice(bisect_right(self._bounds, point), RouteReason.WEIGHT)


class ByScenario(Fixed):
    """Each scenario has its part."""

    def __init__(self, scenarios: Sequence[Sequence[str]]) -> None:
        """Of each part; the part without any takes those that are not named."""
        self._parts = {name: part for part, names in enumerate(scenarios) for name in names}
        self._rest = next((part for part, names in enumerate(scenarios) if not names), 0)

    def home(self, number: int, scenario: str) -> Choice:
        return Choice(self._parts.get(scenario, self._rest), RouteReason.SCENARIO)


class Overflow:
    """The first part until it is full or slow, then the next; the last one takes what is left.

    A session that flowed over does not come back: its history is cached where it is now.
    """

    def __init__(self, parts: int) -> None:
        self._last = parts - 1

    def home(self, number: int, scenario: str) -> Choice:
        return Choice(0, RouteReason.FIRST)

    def next(self, home: Choice, served: int | None, load: Load) -> Choice:
        part = 0 if served is None else served
        reason = RouteReason.FIRST if served is None else RouteReason.KEPT
        while part < self._last:
            if load.is_full(part):
                reason = RouteReason.FULL
            elif load.is_slow(part):
                reason = RouteReason.SLOW
            else:
                break
            part += 1
        return Choice(part, reason)

    def after_failure(self, tried: Sequence[int]) -> Choice | None:
        return None


class Failover:
    """The first part, and the others in their order after an error before the first token, each once for a turn."""

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def home(self, number: int, scenario: str) -> Choice:
        return Choice(0, RouteReason.FIRST)

    def next(self, home: Choice, served: int | None, load: Load) -> Choice:
        return home if served is None else Choice(served, RouteReason.KEPT)

    def after_failure(self, tried: Sequence[int]) -> Choice | None:
        start = tried[-1] + 1
        for step in range(self._parts):
            part = (start + step) % self._parts
            if part not in tried:
                return Choice(part, RouteReason.FAILED)
        return None


class RecentTtft:
    """TTFTs of one channel as one worker saw them. Instants and durations in ns."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=MOST_TTFTS)

    def add(self, at_ns: int, ttft_ns: int) -> None:
        """A first token came at `at_ns`. Out of order is fine: turns are added when they end."""
        self._seen.append((at_ns, ttft_ns))

    def is_above(
        self, limit_ns: int, *, window_ns: int, now_ns: int, open_turns: Iterable[tuple[int, int | None]] = ()
    ) -> bool:
        """Whether the p95 of what came in the last `window_ns` is above the limit.

        `open_turns`: (start, first token) of the turns in flight. One that waits for its first token counts once it has
        waited longer than the limit: before that its TTFT is not known, and without it a channel that has stopped
        answering would look fast. Fewer than 5 values say nothing.
        """
        oldest_ns = now_ns - window_ns
        count = above = 0
        for at_ns, ttft_ns in self._seen:
            if at_ns >= oldest_ns:
                count += 1
                above += ttft_ns > limit_ns
        for start_ns, first_ns in open_turns:
            if first_ns is None:
                waiting = now_ns - start_ns > limit_ns
                count += waiting
                above += waiting
            elif first_ns >= oldest_ns:
                count += 1
                above += first_ns - start_ns > limit_ns
        return count >= FEWEST_TTFTS and above > SLOW_SHARE * count


def is_refused(error_class: ErrorClass | None, status: int | None) -> bool:
    """A failed attempt that may be sent again: nothing of it was worked on."""
    return error_class in REFUSED_CLASSES or status in REFUSED_STATUSES


def is_worked_on(error_class: ErrorClass | None, status: int | None, *, begun: bool) -> bool:
    """Whether a server may have worked on a request that was sent whole, and so bills it.

    `begun`: something of an answer came, whatever ended it. A status alone does not tell: a proxy that finds no server
    has none to give (`connect`), and some servers refuse inside a 200.
    """
    if status is not None and status >= _FIRST_ERROR_STATUS:
        return False
    return begun or not (is_refused(error_class, status) or error_class in TURNED_AWAY)


def fails_over(error_class: ErrorClass | None) -> bool:
    """A turn that failed before its first token is another channel's to serve."""
    return error_class is not None and error_class not in OURS


def back_off_ns(retry: int, retry_after_ns: int | None, jitter: float) -> int:
    """How long to wait before retry number `retry` (from 1). `jitter` in [0, 1).

    What the server asked for, at most 30 s; else 0.2 s, doubled with each retry up to 5 s, of which the second half is
    at random, so that what was refused together does not come back together.
    """
    if retry_after_ns is not None:
        return min(max(retry_after_ns, 0), LONGEST_RETRY_AFTER_NS)
    longest_ns = min(FIRST_BACK_OFF_NS << min(retry - 1, 10), LONGEST_BACK_OFF_NS)
    return longest_ns // 2 + int(longest_ns / 2 * jitter)


def jitter_of(seed: int, request_id: str, retry: int) -> float:
    """In [0, 1), the same for the same retry of the same turn."""
    return _hashed(seed, request_id, str(retry)) / _WORD


def _hashed(seed: int, *what: str) -> int:
    text = "\0".join((str(seed), *what)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
