"""Rate limits of channels, the master's side: no sliding minute at the server holds more than the limit.

The master keeps a log of what was sent within the last minute over all workers, and hands out permits: each is leave to
send one request until an instant about a second away. A worker without one sends nothing. A permit counts as used from
its grant on until its worker tells when the request was sent, or that none was; if nobody ever tells, as used at the
last moment at which it can have been. A place in the log is free again a minute and GUARD_NS after that. So of any
`limit + 1` requests the last one's permit was granted when an earlier one had been on the wire for a minute and
GUARD_NS: at the server they are a minute apart as long as no request is longer on its way there than GUARD_NS.

Beside the log stands a bucket that refills continuously, as those of clouds do: the minute's amount is not spent at the
minute's start. All that decides is pure: clocks are arguments, one monotonic clock, in ns.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from infersiege.plan.schema import Plan
from infersiege.records import Permit, PermitUse, RateAsk, RateUse

MINUTE_NS: Final = 60_000_000_000
GUARD_NS: Final = 250_000_000
"""So much longer than a minute a place stays taken: what a request may be longer on its way than another one, and what
clocks of hosts may differ more than they told."""
VALID_NS: Final = 1_000_000_000
"""How long a permit may be used."""
SLACK_NS: Final = 100_000_000
"""The bucket's refill is not lost when the master looks so much later."""


@dataclass(frozen=True, slots=True)
class Rate:
    """One channel's rate limit. The length of its window can be another one, so that tests need no minutes."""

    channel: str
    requests: int | None = None
    """In any sliding window; None: as many as wanted."""
    tokens: int | None = None
    burst_ns: int = 1_000_000_000
    """So much of the window's amount may go at once."""
    connect_ns: int = 10_000_000_000
    """What is begun within a permit's time is on the wire so much later at the latest."""
    window_ns: int = MINUTE_NS
    guard_ns: int = GUARD_NS
    valid_ns: int = VALID_NS


def rates_of(plan: Plan) -> tuple[Rate, ...]:
    """Every rate limit of a plan."""
    return tuple(
        Rate(
            name,
            requests=channel.rate_limit.requests_per_minute,
            tokens=channel.rate_limit.tokens_per_minute,
            burst_ns=channel.rate_limit.burst_ns,
            connect_ns=channel.timeouts.connect_ns,
        )
        for name, channel in plan.channels.items()
        if channel.rate_limit is not None
    )


class SentBefore:
    """Requests that were sent before the load."""

    def __init__(self) -> None:
        self.at_ns: dict[str, list[int]] = {}
        """By channel, monotonic."""

    def note(self, channel: str) -> None:
        """One has just ended."""
        self.at_ns.setdefault(channel, []).append(time.monotonic_ns())


class _Meter:
    """One figure of a limit: what is in the window, and a bucket that refills at limit / window."""

    def __init__(self, limit: int, rate: Rate) -> None:
        self.limit = limit
        self.used = 0
        self._asked = self._came = 0
        """Of what is settled: what it was thought to be, and what it was."""
        self._window_ns, self._burst_ns = rate.window_ns, rate.burst_ns
        self._full_ns = 0
        """When the bucket is full again (it is, from then on)."""

    def fits(self, amount: int, now_ns: int) -> bool:
        if self.used + amount > self.limit:
            return False
        # Whatever is larger than the bucket may go when the bucket is full.
        return self._full_ns <= now_ns + max(self._burst_ns - self._span(amount), 0)

    def take(self, amount: int, now_ns: int) -> int:
        """It is in the window. Returns by how much the bucket is emptier: for `correct`."""
        span_ns = self._span(amount)
        self.used += amount
        self._full_ns = max(self._full_ns, now_ns - SLACK_NS) + span_ns
        return span_ns

    def correct(self, before: int, amount: int, span_ns: int) -> int:
        """What is in the window is another amount than was taken. Returns by how much the bucket is emptier for it."""
        self.used += amount - before
        if amount and amount != before:
            self._asked, self._came = self._asked + before, self._came + amount
            if self._asked > self.limit:
                self._asked, self._came = self._asked // 2, self._came // 2
        exact_ns = amount * self._window_ns // self.limit
        self._full_ns += exact_ns - span_ns
        return exact_ns

    def leave(self, amount: int) -> None:
        """Out of the window."""
        self.used -= amount

    def _span(self, amount: int) -> int:
        """In which the bucket gets back what will come of it: answers are mostly shorter than they may be."""
        likely = amount * self._came // self._asked if self._asked else amount
        return likely * self._window_ns // self.limit


@dataclass(slots=True)
class _Place:
    """What a permit takes up in the log."""

    requests: int
    tokens: int
    free_ns: int
    told: bool = False
    """It was sent, as its worker told: maybe without the count of its tokens yet."""
    spans_ns: tuple[int, int] = (0, 0)
    """What it took of the buckets of requests and of tokens."""


@dataclass(slots=True, eq=False)
class _Asking:
    """One worker, as it told last."""

    worker: str
    waiting: deque[int] = field(default_factory=deque)
    """Tokens that its next turns ask for."""
    ahead: int = 0
    ahead_tokens: int = 0
    unseen: deque[Permit] = field(default_factory=deque)
    """Permits of which it had not heard when it wrote its last message."""
    held: int = 0
    held_longest_ns: int = 0
    too_large: int = 0


class RateLimiter:
    """One channel's limit, over all workers."""

    def __init__(self, rate: Rate, *, workers: int, sent_ns: Sequence[int] = ()) -> None:
        """`sent_ns`: when requests were sent before the load."""
        self.rate = rate
        self._requests = None if rate.requests is None else _Meter(rate.requests, rate)
        self._tokens = None if rate.tokens is None else _Meter(rate.tokens, rate)
        self._workers = workers
        self._asking: dict[str, _Asking] = {}
        self._past: list[_Asking] = []
        """Of workers whose place another one has taken."""
        self._turn: dict[_Asking, None] = {}
        """Who waits, or did when it was entered; who is served next is first."""
        self._early: dict[_Asking, None] = {}
        """Who asks for permits in advance: of a thousand workers few ask at a time."""
        self._places: dict[int, _Place] = {}
        self._by_end: list[tuple[int, int]] = []
        """(when its place is free at the earliest, number): a heap; an entry may be out of date."""
        self._number = 0
        self._sent = 0
        for at_ns in sent_ns:
            self._number += 1
            self._sent += 1
            self._enter(self._number, _Place(1, 0, self._free_after(at_ns)), at_ns)

    def told(self, worker: str, ask: RateAsk, now_ns: int) -> None:
        """A worker's message. Call `serve` after it."""
        for use in ask.uses:
            self._settle(use, now_ns)
        asking = self._of(worker)
        while asking.unseen and (asking.unseen[0].number <= ask.seen or asking.unseen[0].until_ns <= now_ns):
            asking.unseen.popleft()
        # What it does not know of yet is for those that wait longest.
        asking.waiting = deque(ask.waiting[len(asking.unseen) :])
        asking.ahead = 0 if asking.unseen else ask.ahead
        asking.ahead_tokens = ask.ahead_tokens
        asking.held, asking.held_longest_ns, asking.too_large = ask.held, ask.held_longest_ns, ask.too_large
        if asking.waiting:
            self._turn.setdefault(asking)
        if asking.ahead:
            self._early.setdefault(asking)

    def serve(self, now_ns: int) -> dict[str, list[Permit]]:
        """New permits, by worker: those who wait in turn, the next turn of each; then what may be used soon."""
        self._let_go(now_ns)
        given: dict[str, list[Permit]] = {}
        while self._turn:
            asking = next(iter(self._turn))
            if asking.waiting and not self._fits(asking.waiting[0], now_ns):
                return given  # Nothing smaller goes before it, or it would wait for ever.
            del self._turn[asking]
            if asking.waiting:
                given.setdefault(asking.worker, []).append(self._grant(asking, asking.waiting.popleft(), now_ns))
                self._turn[asking] = None  # Behind all others; when it has nothing more, it goes the next time.
        for asking in self._early:
            for _ in range(min(asking.ahead, self._most_ahead)):
                if not self._fits(asking.ahead_tokens, now_ns):
                    break
                given.setdefault(asking.worker, []).append(self._grant(asking, asking.ahead_tokens, now_ns))
            asking.ahead = 0
        self._early.clear()
        return given

    def join(self, worker: str) -> None:
        """A new worker, also one in the place and with the name of another one."""
        before = self._asking.pop(worker, None)
        if before is not None:
            self._past.append(before)
            before.waiting.clear()
            before.ahead = 0  # Whoever has its name would get what it asked for.
        self._of(worker)

    def lose(self, worker: str) -> None:
        """Nothing more is granted to it. What it was granted counts as used at the last moment at which it can be."""
        asking = self._of(worker)
        asking.waiting.clear()
        asking.ahead = 0

    @property
    def used(self) -> tuple[int, int]:
        """Requests and tokens that are in the log."""
        return tuple(0 if meter is None else meter.used for meter in (self._requests, self._tokens))  # type: ignore[return-value]

    @property
    def waiting(self) -> int:
        """Turns that wait, as far as their workers told."""
        return sum(len(asking.waiting) for asking in self._asking.values())

    def use(self) -> RateUse:
        """For the report."""
        asked = [*self._past, *self._asking.values()]
        longest_ns = max((one.held_longest_ns for one in asked), default=0)
        return RateUse(
            channel=self.rate.channel,
            requests_per_minute=self.rate.requests,
            tokens_per_minute=self.rate.tokens,
            requests=self._sent,
            held=sum(one.held for one in asked),
            held_longest_ms=longest_ns / 1e6 if longest_ns else None,
            too_large=sum(one.too_large for one in asked),
        )

    # ------------------------------------------------------------------------------------------------------ the log

    def _of(self, worker: str) -> _Asking:
        asking = self._asking.get(worker)
        if asking is None:
            asking = self._asking[worker] = _Asking(worker)
        return asking

    def _fits(self, tokens: int, now_ns: int) -> bool:
        if self._requests is not None and not self._requests.fits(1, now_ns):
            return False
        return self._tokens is None or self._tokens.fits(tokens, now_ns)

    def _grant(self, asking: _Asking, tokens: int, now_ns: int) -> Permit:
        self._number += 1
        permit = Permit(number=self._number, until_ns=now_ns + self.rate.valid_ns, tokens=tokens)
        asking.unseen.append(permit)
        self._enter(permit.number, _Place(1, tokens, self._free_after(permit.until_ns + self.rate.connect_ns)), now_ns)
        return permit

    def _enter(self, number: int, place: _Place, now_ns: int) -> None:
        self._places[number] = place
        heapq.heappush(self._by_end, (place.free_ns, number))
        place.spans_ns = (
            0 if self._requests is None else self._requests.take(place.requests, now_ns),
            0 if self._tokens is None else self._tokens.take(place.tokens, now_ns),
        )

    def _settle(self, use: PermitUse, now_ns: int) -> None:
        """It is known what became of a permit; told again, only the tokens may be other ones."""
        place = self._places.get(use.number)
        if place is None:
            # Told so late that its place was given to others. What still counts at the server counts here too.
            if use.sent_ns is not None and self._free_after(use.sent_ns) > now_ns:
                self._enter(use.number, _Place(use.requests, use.tokens, self._free_after(use.sent_ns)), now_ns)
                self._sent += use.requests
            return
        requests, tokens = (0, 0) if use.sent_ns is None else (use.requests, use.tokens)
        of_requests, of_tokens = place.spans_ns
        if self._requests is not None:
            of_requests = self._requests.correct(place.requests, requests, of_requests)
        if self._tokens is not None:
            of_tokens = self._tokens.correct(place.tokens, tokens, of_tokens)
        if use.sent_ns is None:
            del self._places[use.number]
            return
        self._sent += requests - (place.requests if place.told else 0)
        place.requests, place.tokens, place.spans_ns = requests, tokens, (of_requests, of_tokens)
        place.free_ns, place.told = self._free_after(use.sent_ns), True
        heapq.heappush(self._by_end, (place.free_ns, use.number))

    def _let_go(self, now_ns: int) -> None:
        while self._by_end and self._by_end[0][0] <= now_ns:
            _, number = heapq.heappop(self._by_end)
            place = self._places.get(number)
            if place is None or place.free_ns > now_ns:
                continue  # It was told when it was sent: another entry has that.
            del self._places[number]
            for meter, amount in ((self._requests, place.requests), (self._tokens, place.tokens)):
                if meter is not None:
                    meter.leave(amount)

    def _free_after(self, sent_ns: int) -> int:
        return sent_ns + self.rate.window_ns + self.rate.guard_ns

    @property
    def _most_ahead(self) -> int:
        """Nobody holds so much in advance that another one's turn finds the bucket empty for it."""
        if self.rate.requests is None:
            return 1
        at_once = self.rate.requests * self.rate.burst_ns // self.rate.window_ns
        return max(0, at_once - 1) // self._workers


def limiters_of(
    rates: Sequence[Rate], *, workers: int, sent_ns: Mapping[str, Sequence[int]] | None = None
) -> dict[str, RateLimiter]:
    """By channel. `sent_ns`: when requests were sent to it before the load."""
    sent = sent_ns or {}
    return {rate.channel: RateLimiter(rate, workers=workers, sent_ns=sent.get(rate.channel, ())) for rate in rates}
