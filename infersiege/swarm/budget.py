"""Budgets of channels: the master grants what may be spent, and a worker without a grant sends nothing.

Every limit of the plan (a channel's money, tokens or requests) is one account in whole units. The master hands its
amount out in grants, never more in all than there is; each worker starts a request while it has spent less than it was
granted. A request is counted when it starts, tokens and money when the turn has ended, since nobody knows them before.
So at any moment, whatever became of messages and workers,

    spent <= amount + the last turn of each user

and requests are never more than their amount. What a lost worker was granted is not given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gevent.event import Event

from infersiege.cost import billed_tokens, money
from infersiege.plan.schema import Plan
from infersiege.records import BudgetUse, Grant, Spending, TurnRecord

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


# --------------------------------------------------------------------------------------------------------- worker


class _Account:
    """What a worker may spend of one limit, and has spent."""

    __slots__ = ("asked_at", "channel", "granted", "kind", "room", "spent")

    def __init__(self, limit: Limit) -> None:
        self.channel = limit.channel
        self.kind = limit.kind
        self.granted = self.spent = self.room = 0
        self.asked_at = -1
        """`granted` when more was last asked for in advance: once for each grant."""


class Purse:
    """A worker's side. Nothing here yields but `wait`."""

    def __init__(self, limits: Sequence[Limit] = ()) -> None:
        self._accounts = [_Account(limit) for limit in limits]
        self._of: dict[str, list[_Account]] = {}
        for account in self._accounts:
            self._of.setdefault(account.channel, []).append(account)
        self._waiting: dict[str, int] = {}
        self._more = Event()
        self.asking: Any = Event()
        """Set when the master is to be told now."""
        self._changed = False

    def take(self, channel: str) -> bool:
        """Whether a request to this channel may start now; if so, it is counted. False: `wait`, and ask again."""
        accounts = self._of.get(channel)
        if accounts is None:
            return True
        for account in accounts:
            if account.spent >= account.granted:
                return False
        for account in accounts:
            if account.kind == REQUESTS:
                self._spend(account, 1)
        return True

    def paid(self, turn: TurnRecord) -> None:
        """An attempt has ended: what it used up is known."""
        for account in self._of.get(turn.channel, ()):
            if account.kind == TOKENS:
                self._spend(account, billed_tokens(turn))
            elif account.kind == COST and turn.cost is not None:
                self._spend(account, round(turn.cost * UNITS_PER_MONEY))

    def wait(self, channel: str) -> None:
        """Block until a grant comes, or `wake`."""
        self._waiting[channel] = self._waiting.get(channel, 0) + 1
        self.asking.set()
        try:
            self._more.wait()
        finally:
            self._waiting[channel] -= 1

    def wake(self) -> None:
        """Everybody who waits looks again."""
        # A new event for those who will wait from now on: clearing the old one could lose the wake of others.
        more, self._more = self._more, Event()
        more.set()

    def grant(self, grant: Grant) -> None:
        """The master's answer. Totals only grow, so an older message changes nothing."""
        for account, total in zip(self._accounts, grant.totals, strict=True):
            if total > account.granted:
                account.granted, account.room = total, total - account.spent
        self.wake()

    def spending(self) -> Spending | None:
        """What to tell the master; None: nothing new."""
        self.asking.clear()
        if not self._changed and not any(self._waiting.values()):
            return None
        self._changed = False
        return Spending(
            spent=tuple(account.spent for account in self._accounts),
            waiting=tuple(
                self._waiting.get(account.channel, 0) if account.spent >= account.granted else 0
                for account in self._accounts
            ),
        )

    def _spend(self, account: _Account, amount: int) -> None:
        before = account.granted - account.spent
        account.spent += amount
        self._changed = True
        left = before - amount
        if left <= 0 < before:
            self.asking.set()
        elif 2 * left < account.room and account.asked_at < account.granted:
            account.asked_at = account.granted
            self.asking.set()


# --------------------------------------------------------------------------------------------------------- master


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
    dry_ns: int | None = None
    """Since when somebody waits and there is nothing left."""

    @property
    def left(self) -> int:
        return max(0, self.limit.amount - sum(held.charged for held in self.held.values()))

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

    def __init__(self, limits: Sequence[Limit], *, workers: int) -> None:
        self._pots = [_Pot(limit) for limit in limits]
        self._workers = workers
        self._lost: set[str] = set()
        self._ended_by: Limit | None = None

    def first(self, worker: str, now_ns: int) -> Grant:
        """What a worker may spend to begin with, so that its first turns wait for nobody."""
        for pot in self._pots:
            pot.held[worker] = _Held()
            pot.grant(worker, self._members, now_ns)
        return self._totals(worker)

    def told(self, worker: str, spending: Spending, now_ns: int) -> Grant | None:
        """A worker says what it has spent. The answer; None: there is nothing to give, or no need.

        Raises ValueError for figures that belong to another plan.
        """
        if len(spending.spent) != len(self._pots) or len(spending.waiting) != len(self._pots):
            raise ValueError(f"{worker} told {len(spending.spent)} figures of {len(self._pots)} limits")
        given = False
        for pot, spent, waiting in zip(self._pots, spending.spent, spending.waiting, strict=True):
            held = pot.held.setdefault(worker, _Held())
            held.spent, held.waiting = max(held.spent, spent), waiting
            if waiting or 2 * (held.granted - held.spent) < held.given:
                given |= pot.grant(worker, self._members, now_ns)
        return self._totals(worker) if given else None

    def lose(self, worker: str) -> None:
        """A worker is gone. What it was granted stays granted: it may have spent that."""
        self._lost.add(worker)

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
                used=pot.limit.plain(
                    sum(held.charged if worker in self._lost else held.spent for worker, held in pot.held.items())
                ),
                lost=pot.limit.plain(
                    sum(held.charged - held.spent for worker, held in pot.held.items() if worker in self._lost)
                ),
                ended_run=pot.limit is self._ended_by,
            )
            for pot in self._pots
        )

    def note(self) -> str | None:
        """For the eye, of the limit that is nearest to its end: `budget of cloud: 12 of 20 requests`."""
        spent = [(sum(held.spent for held in pot.held.values()), pot.limit) for pot in self._pots]
        if not spent:
            return None
        most, limit = max(spent, key=lambda one: one[0] / one[1].amount)
        return f"budget of {limit.channel}: {limit.figure(most)} of {limit.figure(limit.amount)} {limit.kind}"

    @property
    def _members(self) -> int:
        return max(1, self._workers - len(self._lost))

    def _totals(self, worker: str) -> Grant:
        return Grant(totals=tuple(pot.held[worker].granted for pot in self._pots))
