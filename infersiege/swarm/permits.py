"""Rate limits of channels, a worker's side: turns wait in their order for permits of the master (swarm.ratelimit)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from gevent.event import Event

from infersiege.cost import BYTES_PER_TOKEN, billed_tokens, is_billed
from infersiege.records import Permit, PermitUse, RateAsk, TokensFrom, TurnRecord
from infersiege.swarm.clock import SAME, Reading
from infersiege.swarm.ratelimit import Rate
from infersiege.traces.play.conversation import PreparedTurn
from infersiege.wire.exchange import Request

HELD_NS: Final = 100_000_000
"""A turn that waits no longer has only waited for the master's answer, not for the limit."""
MOST_TOLD: Final = 64
"""Waiting turns of which a message tells."""
TELL_MORE: Final = 16
"""With so few of them left the next message is due."""
SECOND_NS: Final = 1_000_000_000


def asked_tokens(turn: PreparedTurn, request: Request) -> int:
    """What a request counts against a limit of tokens when it is sent: its prompt, and the longest answer it allows."""
    prompt = turn.asked_prompt_tokens
    if prompt is None:
        prompt = -(-len(request.body) // BYTES_PER_TOKEN)
    return prompt + turn.max_tokens


def too_large(rate: Rate, tokens: int) -> str:
    """Why a turn is not sent."""
    return (
        f"it asks for {tokens:,} tokens, prompt and longest answer, and the rate limit of {rate.channel} gives "
        f"{rate.tokens or 0:,} in a minute; a smaller max_tokens asks for less"
    )


class WorkerClock(Protocol):
    """This worker's monotonic clock, and what is known of the master's at the moment (swarm.clock.ClockExchange)."""

    def now(self) -> int: ...

    def reading(self) -> Reading | None:
        """Master's clock minus ours; None: it is not known any more."""
        ...

    def at_latest(self, at_ns: int) -> int | None:
        """A past instant of ours on the master's, at the latest; None: that is not known yet."""
        ...


class OneClock:
    """Of a worker whose clock is the master's own."""

    def now(self) -> int:
        return time.monotonic_ns()

    def reading(self) -> Reading | None:
        return SAME

    def at_latest(self, at_ns: int) -> int | None:
        return at_ns


class Sending(Protocol):
    """A request on its way."""

    @property
    def sent_end_ns(self) -> int | None:
        """When its last byte was written (monotonic); None: it was not yet."""
        ...


@dataclass(slots=True)
class Leave:
    """Leave to send one request; without a permit, to a channel that has no rate limit."""

    turnstile: Turnstile | None = None
    permit: Permit | None = None

    def begun(self, exchange: Sending) -> None:
        """The request is on its way."""
        if self.turnstile is not None and self.permit is not None:
            self.turnstile.begun(self.permit, exchange)


@dataclass(slots=True)
class _Waiter:
    tokens: int
    permit: Permit | None = None
    woken: Any = field(default_factory=Event)


class _Sent(NamedTuple):
    """What became of a permit, on our clock: not told before it is known what that is on the master's."""

    number: int
    at_ns: int
    requests: int
    tokens: int


class Turnstile:
    """One channel's permits on this worker. Nothing here yields but `wait`.

    When a request was sent is told only once the clocks were compared after it. A machine that was suspended does not
    know that its clock stood still until then, and would tell an instant that is too early by so much: its place in the
    master's log would be free before the server's minute is over.
    """

    def __init__(self, rate: Rate, clock: WorkerClock, asking: Any) -> None:
        """`asking`: the event to set when the master is to be told now."""
        self.rate = rate
        self._clock = clock
        self._asking = asking
        self._stock: deque[Permit] = deque()
        """Not used yet, in the order of their ends."""
        self._waiting: deque[_Waiter] = deque()
        self._told = 0
        """Of those that wait, how many the master knows."""
        self._seen = 0
        self._unused: list[PermitUse] = []
        """Permits that go back."""
        self._sent: list[_Sent] = []
        """Not told yet, in the order in which it became known."""
        self._under_way: dict[int, tuple[Permit, Sending]] = {}
        """Requests of which the master does not know yet that they were sent, by number of the permit."""
        self._takes: deque[int] = deque()
        """When permits were used within the last second."""
        self._largest = 0
        """Tokens of the largest request within about the last second."""
        self._held = self._held_longest_ns = self._too_large = 0
        self._changed = False

    def never(self, tokens: int) -> bool:
        """Whether a request asks for more than the limit ever gives; it is counted."""
        too_large = self.rate.tokens is not None and tokens > self.rate.tokens
        self._too_large += too_large
        self._changed |= too_large
        return too_large

    def take(self, tokens: int) -> Leave | None:
        """A permit for a request that is sent at once. None: `wait`. Those that wait go first."""
        self._return_expired()
        if self._waiting:
            return None
        permit = self._fitting(tokens)
        return None if permit is None else self._use(permit, tokens)

    def take_kept(self, leave: Leave, tokens: int) -> Leave | None:
        """The same with what `wait` gave."""
        permit = leave.permit
        now_ns = self._masters_now()
        if permit is None or permit.tokens < self._need(tokens) or now_ns is None or now_ns >= permit.until_ns:
            self.give_back(leave)
            return self.take(tokens)
        return self._use(permit, tokens)

    def wait(self, tokens: int) -> Leave | None:
        """Block until there is a permit, which is put aside; None: woken without one."""
        waiter, since_ns = _Waiter(self._need(tokens)), self._clock.now()
        self._waiting.append(waiter)
        self._serve()
        if waiter.permit is None and len(self._waiting) <= MOST_TOLD:
            self._asking.set()
        try:
            waiter.woken.wait()
        except BaseException:  # GreenletExit: its session is stopped
            if waiter.permit is not None:
                self.give_back(Leave(self, waiter.permit))
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            self._note(self._clock.now() - since_ns)
        return None if waiter.permit is None else Leave(self, waiter.permit)

    def wake(self) -> None:
        """Everybody who waits looks again."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.woken.set()

    def arrive(self, permits: tuple[Permit, ...]) -> None:
        """What the master granted."""
        for permit in permits:
            self._seen = max(self._seen, permit.number)
            self._told = max(0, self._told - 1)
            self._stock.append(permit)
        self._changed = True
        self._return_expired()
        self._serve()
        if self._told < TELL_MORE and len(self._waiting) > self._told:
            self._asking.set()

    def give_back(self, leave: Leave) -> None:
        """It was not needed: to the next one, or to the master."""
        if leave.permit is not None:
            self._stock.appendleft(leave.permit)
            self._return_expired()
            self._serve()

    def begun(self, permit: Permit, exchange: Sending) -> None:
        self._under_way[permit.number] = permit, exchange

    def used(self, leave: Leave, turn: TurnRecord, epoch_offset_ns: int) -> None:
        """A request has ended. `epoch_offset_ns`: of the record's instants against this worker's monotonic clock."""
        permit = leave.permit
        if permit is None:
            return
        self._changed = True
        self._under_way.pop(permit.number, None)
        at_ns = turn.sent_end_ns if turn.sent_end_ns is not None else turn.sent_ns
        requests = turn.attempts - (at_ns is None)
        if at_ns is None and requests > 0:
            at_ns = turn.closed_ns
        if at_ns is None:
            self._unused.append(PermitUse(number=permit.number, sent_ns=None))
            return
        known = turn.tokens_from is TokensFrom.USAGE or not is_billed(turn)
        tokens = billed_tokens(turn) if known else max(billed_tokens(turn), permit.tokens)
        counted = tokens if self.rate.tokens is not None else 0
        self._sent.append(_Sent(permit.number, at_ns - epoch_offset_ns, max(1, requests), counted))
        self.compared()

    def compared(self) -> None:
        """The clocks were compared, or there is something to tell: a request may have asked for more tokens than came
        of it, and others can go."""
        if self.rate.tokens is not None and self._waiting and any(True for _ in self._known()):
            self._asking.set()

    def tell(self) -> RateAsk | None:
        """For the master; None: nothing new."""
        self._return_expired()
        self._note_sent()
        ahead = self._wanted_ahead()
        uses = (*self._unused, *self._known())
        if not (self._changed or self._waiting or uses or ahead):
            return None
        waiting = tuple(waiter.tokens for waiter, _ in zip(self._waiting, range(MOST_TOLD), strict=False))
        self._told = len(waiting)
        del self._sent[: len(uses) - len(self._unused)]
        self._unused.clear()
        self._changed = False
        return RateAsk(
            seen=self._seen,
            waiting=waiting,
            ahead=ahead,
            ahead_tokens=self._largest,
            uses=uses,
            held=self._held,
            held_longest_ns=self._held_longest_ns,
            too_large=self._too_large,
        )

    # ----------------------------------------------------------------------------------------------------- inside

    def _need(self, tokens: int) -> int:
        return tokens if self.rate.tokens is not None else 0

    def _use(self, permit: Permit, tokens: int) -> Leave:
        now_ns = self._clock.now()
        quiet = not self._takes or now_ns - self._takes[-1] > SECOND_NS
        self._largest = self._need(tokens) if quiet else max(self._largest, self._need(tokens))
        self._takes.append(now_ns)
        while self._takes[0] <= now_ns - SECOND_NS:
            self._takes.popleft()
        if self._stock and 2 * len(self._stock) < len(self._takes):
            self._asking.set()
        return Leave(self, permit)

    def _wanted_ahead(self) -> int:
        """About as many as were used within the last second, once half of them are gone."""
        if self._waiting:
            return 0
        now_ns = self._clock.now()
        while self._takes and self._takes[0] <= now_ns - SECOND_NS:
            self._takes.popleft()
        wanted = len(self._takes) - len(self._stock)
        return wanted if 2 * wanted > len(self._takes) else 0

    def _fitting(self, tokens: int) -> Permit | None:
        need = self._need(tokens)
        for permit in self._stock:
            if permit.tokens >= need:
                self._stock.remove(permit)
                return permit
        return None

    def _serve(self) -> None:
        """Hand permits to those who wait, in their order."""
        while self._waiting:
            permit = self._fitting(self._waiting[0].tokens)
            if permit is None:
                return
            waiter = self._waiting.popleft()
            waiter.permit = permit
            waiter.woken.set()

    def _return_expired(self) -> None:
        now_ns = self._masters_now()
        for permit in [one for one in self._stock if now_ns is None or now_ns >= one.until_ns]:
            self._stock.remove(permit)
            self._unused.append(PermitUse(number=permit.number, sent_ns=None))

    def _note_sent(self) -> None:
        """An answer may take longer than a minute: when its request was sent is told before it ends."""
        for permit, exchange in list(self._under_way.values()):
            at_ns = exchange.sent_end_ns
            if at_ns is not None:
                self._sent.append(_Sent(permit.number, at_ns, 1, permit.tokens))
                del self._under_way[permit.number]

    def _masters_now(self) -> int | None:
        """The master's clock, at the latest; None: it is not known, and no permit is one."""
        known = self._clock.reading()
        return None if known is None else self._clock.now() + known.offset_ns + known.uncertainty_ns

    def _known(self) -> Iterator[PermitUse]:
        """The first ones of what was sent, as far as it is known when that was."""
        for one in self._sent:
            sent_ns = self._clock.at_latest(one.at_ns)
            if sent_ns is None:
                return
            yield PermitUse(number=one.number, sent_ns=sent_ns, requests=one.requests, tokens=one.tokens)

    def _note(self, waited_ns: int) -> None:
        if waited_ns > HELD_NS:
            self._held += 1
            self._held_longest_ns = max(self._held_longest_ns, waited_ns)
            self._changed = True
