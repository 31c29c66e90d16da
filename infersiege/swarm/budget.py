"""Budgets of channels: the master grants what may be spent, and a worker without a grant sends nothing.

Every limit of the plan (a channel's money, tokens or requests) is one account in whole units. The master hands its
amount out in grants, never more in all than there is; each worker starts a request while it has spent less than it was
granted. A request is counted when it starts, tokens and money when the turn has ended, since nobody knows them before.
So at any moment, whatever became of messages and workers,

    spent <= amount + the last turn of each user

and requests are never more than their amount. What a lost worker was granted is not given back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from infersiege.cost import money
from infersiege.plan.schema import Plan
from infersiege.records import BudgetUse, Grant, Permit, RateUse, Spending
from infersiege.swarm.ratelimit import Rate, limiters_of

COST, TOKENS, REQUESTS = "cost", "tokens", "requests"
"""Kinds of limits: keys of [channel.NAME.budget]."""

UNITS_PER_MONEY = 1_000_000_000
"""Money is counted in billionths, rounded for each turn: sums of floats would depend on their order."""

FIRST_PART = 64
"""The first grant is at most this part of the amount; grants double while a worker asks again within QUICK_NS."""
QUICK_NS = 500_000_000
SLOW_NS = 2_000_000_000
"""A grant that lasted longer is halved next time: what a worker holds is about a second of its load."""
PATIENCE_NS = 1_000_000_000
"""Once a worker has to stop, the others may use up what they still hold for so long."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One figure of one channel's budget."""

    channel: str
    kind: str
    amount: int
    """Requests, tokens, or billionths of money."""

    def written(self, amount: int) -> str:
        """`20 requests`, `1,500 tokens`, `cost 0.50`."""
        return f"cost {self.figure(amount)}" if self.kind == COST else f"{self.figure(amount)} {self.kind}"

    def figure(self, amount: int) -> str:
        """The same without the kind."""
        return money(amount / UNITS_PER_MONEY) if self.kind == COST else f"{amount:,}"

    def plain(self, amount: int) -> float:
        """In the unit of the plan."""
        return amount / UNITS_PER_MONEY if self.kind == COST else amount


def limits_of(plan: Plan) -> tuple[Limit, ...]:
    """Every limit of a plan, in an order that master and workers share."""
    limits = []
    for name, channel in plan.channels.items():
        budget = channel.budget
        if budget is None:
            continue
        if budget.cost is not None:
            limits.append(Limit(name, COST, round(budget.cost * UNITS_PER_MONEY)))
        if budget.tokens is not None:
            limits.append(Limit(name, TOKENS, budget.tokens))
        if budget.requests is not None:
            limits.append(Limit(name, REQUESTS, budget.requests))
    return tuple(limits)


def spent_before_steady(use: BudgetUse, lasted_ns: int, steady_ns: int) -> str:
    """Why a run shows nothing whose budget was used up before its first steady phase. Times since the load began."""
    limit = Limit(use.channel, use.kind, round(use.amount * (UNITS_PER_MONEY if use.kind == COST else 1)))
    return (
        f"no steady window was reached: the budget of channel {use.channel} ({limit.written(limit.amount)}) was used "
        f"up after {lasted_ns / 1e9:.1f} s, before steady began at {steady_ns / 1e9:.1f} s; raise "
        f"channel.{use.channel}.budget.{use.kind}, or shorten load.warmup"
    )


@dataclass(slots=True)
class _Held:
    """One worker's part of one limit, as the master knows it."""

    granted: int = 0
    spent: int = 0
    waiting: int = 0
    chunk: int = 0
    """Size of its grants, which follows how long one lasts."""
    given: int = 0
    """Its last grant."""
    at_ns: int = 0
    """When it was last granted something."""

    @property
    def charged(self) -> int:
        """Of the amount: what it may spend, or has spent beyond that."""
        return max(self.granted, self.spent)


@dataclass(slots=True)
class _Pot:
    """One limit, over all workers."""

    limit: Limit
    held: dict[str, _Held] = field(default_factory=dict)
    past: list[_Held] = field(default_factory=list)
    """Of lost workers whose names others have now."""
    dry_ns: int | None = None
    """Since when somebody waits and there is nothing left."""

    @property
    def left(self) -> int:
        return max(0, self.limit.amount - sum(held.charged for held in (*self.past, *self.held.values())))

    def grant(self, worker: str, members: int, now_ns: int) -> bool:
        """Give a worker its next part, the smaller the less is left. Whether it got any."""
        held, left = self.held[worker], self.left
        if left == 0:
            if held.waiting and self.dry_ns is None:
                self.dry_ns = now_ns
            return False
        if not held.chunk:
            held.chunk = max(1, self.limit.amount // FIRST_PART)
        elif now_ns - held.at_ns < QUICK_NS:
            held.chunk *= 2
        elif now_ns - held.at_ns > SLOW_NS:
            held.chunk = max(1, held.chunk // 2)
        wanted = max(held.chunk, held.waiting if self.limit.kind == REQUESTS else 1)
        # Near the end nobody gets something in advance, so that nothing lies idle with one that others wait for.
        share = max(1, left // (2 * members))
        if share < wanted and held.given and not held.waiting:
            return False
        given = min(wanted, share)
        held.chunk, held.given, held.at_ns = min(held.chunk, share), given, now_ns
        held.granted = held.charged + given
        return True


@dataclass(frozen=True, slots=True)
class UsedUp:
    """The limit that ends a run."""

    limit: Limit
    since_ns: int
    """Since when some worker had to stop for it (monotonic)."""

    @property
    def why(self) -> str:
        return f"budget of channel {self.limit.channel} is used up"

    @property
    def detail(self) -> str:
        return f"{self.limit.channel}: {self.limit.written(self.limit.amount)}"


class Treasury:
    """The master's side: pure, clocks are arguments (monotonic)."""

    def __init__(
        self,
        limits: Sequence[Limit],
        rates: Sequence[Rate] = (),
        *,
        workers: int,
        sent_ns: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """`sent_ns`: when requests were sent to each channel before the load."""
        self._pots = [_Pot(limit) for limit in limits]
        self._limiters = limiters_of(rates, workers=workers, sent_ns=sent_ns)
        self._workers = workers
        self._lost: set[str] = set()
        self._ended_by: Limit | None = None

    def first(self, worker: str, now_ns: int) -> Grant:
        """What a new worker may spend to begin with, so that its first turns wait for nobody.

        A worker of the same name that was there before is another one: what it was granted stays with it.
        """
        self._lost.discard(worker)
        for pot in self._pots:
            if worker in pot.held:
                pot.past.append(pot.held.pop(worker))
            pot.held[worker] = _Held()
            pot.grant(worker, self._members, now_ns)
        for limiter in self._limiters.values():
            limiter.join(worker)
        return Grant(totals=self._totals(worker))

    def found(self, worker: str) -> None:
        """A lost worker is there again, the same process: what it was granted and has spent is known again."""
        self._lost.discard(worker)

    def due(self, now_ns: int) -> dict[str, Grant]:
        """Permits that may be given by now, by worker: to be sent. To be called some ten times a second at least."""
        given: dict[str, dict[str, tuple[Permit, ...]]] = {}
        for channel, limiter in self._limiters.items():
            for worker, permits in limiter.serve(now_ns).items():
                given.setdefault(worker, {})[channel] = tuple(permits)
        return {worker: Grant(totals=self._totals(worker), permits=permits) for worker, permits in given.items()}

    def told(self, worker: str, spending: Spending, now_ns: int) -> Grant | None:
        """A worker says what it has spent. The answer; None: there is nothing to give, or no need.

        Raises ValueError for figures that belong to another plan.
        """
        if len(spending.spent) != len(self._pots) or len(spending.waiting) != len(self._pots):
            raise ValueError(f"{worker} told {len(spending.spent)} figures of {len(self._pots)} limits")
        for channel, ask in spending.rates.items():
            if channel not in self._limiters:
                raise ValueError(f"{worker} told of channel {channel!r}, which has no rate limit")
            self._limiters[channel].told(worker, ask, now_ns)
        given = False
        for pot, spent, waiting in zip(self._pots, spending.spent, spending.waiting, strict=True):
            held = pot.held.setdefault(worker, _Held())
            held.spent, held.waiting = max(held.spent, spent), waiting
            if waiting or 2 * (held.granted - held.spent) < held.given:
                given |= pot.grant(worker, self._members, now_ns)
        return Grant(totals=self._totals(worker)) if given else None

    def lose(self, worker: str) -> None:
        """A worker is gone. What it was granted stays granted: it may have spent that."""
        self._lost.add(worker)
        for limiter in self._limiters.values():
            limiter.lose(worker)

    def used_up(self, now_ns: int, load_end_ns: int | None) -> UsedUp | None:
        """What ends the run; None: it goes on.

        Once a worker has to stop, the others have PATIENCE_NS to use up what they hold, but not beyond the load's end.
        """
        for pot in self._pots:
            if pot.dry_ns is None:
                continue
            idle = all(held.spent >= held.granted for worker, held in pot.held.items() if worker not in self._lost)
            until_ns = pot.dry_ns + PATIENCE_NS if load_end_ns is None else min(pot.dry_ns + PATIENCE_NS, load_end_ns)
            if idle or now_ns >= until_ns:
                self._ended_by = pot.limit
                return UsedUp(pot.limit, pot.dry_ns)
        return None

    def uses(self) -> tuple[BudgetUse, ...]:
        """What became of each budget. A lost worker's grant counts as spent: nobody knows better."""
        return tuple(
            BudgetUse(
                channel=pot.limit.channel,
                kind=pot.limit.kind,
                amount=pot.limit.plain(pot.limit.amount),
                used=pot.limit.plain(sum(held.charged if gone else held.spent for held, gone in self._all(pot))),
                lost=pot.limit.plain(sum(held.charged - held.spent for held, gone in self._all(pot) if gone)),
                ended_run=pot.limit is self._ended_by,
            )
            for pot in self._pots
        )

    def rate_uses(self) -> tuple[RateUse, ...]:
        """What became of each rate limit."""
        return tuple(limiter.use() for limiter in self._limiters.values())

    def note(self) -> str | None:
        """For the eye: who waits for a rate limit, and the budget that is nearest to its end.

        `rate limit of cloud: 3 turns wait · budget of cloud: 12 of 20 requests`.
        """
        waiting = {channel: limiter.waiting for channel, limiter in self._limiters.items()}
        notes = [f"rate limit of {channel}: {count:,} turns wait" for channel, count in waiting.items() if count]
        spent = [(sum(held.spent for held, _ in self._all(pot)), pot.limit) for pot in self._pots]
        if spent:
            most, limit = max(spent, key=lambda one: one[0] / one[1].amount)
            notes.append(
                f"budget of {limit.channel}: {limit.figure(most)} of {limit.figure(limit.amount)} {limit.kind}"
            )
        return " · ".join(notes) or None

    def _all(self, pot: _Pot) -> list[tuple[_Held, bool]]:
        """(a worker's part, whether the worker is gone)."""
        here = [(held, worker in self._lost) for worker, held in pot.held.items()]
        return [*here, *((held, True) for held in pot.past)]

    @property
    def _members(self) -> int:
        return max(1, self._workers - len(self._lost))

    def _totals(self, worker: str) -> tuple[int, ...]:
        return tuple(pot.held[worker].granted if worker in pot.held else 0 for pot in self._pots)
