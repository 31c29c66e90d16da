"""What a worker may spend by the budgets of its channels (swarm.budget), and when it may send (swarm.permits)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gevent.event import Event

from infersiege.cost import billed_tokens
from infersiege.records import Grant, Spending, TurnRecord
from infersiege.swarm.budget import COST, REQUESTS, TOKENS, UNITS_PER_MONEY, Limit
from infersiege.swarm.permits import Leave, OneClock, Turnstile, WorkerClock
from infersiege.swarm.ratelimit import Rate


class _Account:
    """What a worker may spend of one limit, and has spent."""

    __slots__ = ("asked_at", "channel", "granted", "kind", "room", "spent")

    def __init__(self, limit: Limit) -> None:
        self.channel = limit.channel
        self.kind = limit.kind
        self.granted = self.spent = self.room = 0
        self.asked_at = -1
        """`granted` when more was last asked for in advance: once for each grant."""


FREE = Leave()
"""To a channel without a rate limit."""


class Purse:
    """A worker's side: what it may spend, and when it may send. Nothing here yields but `wait`."""

    def __init__(
        self,
        limits: Sequence[Limit] = (),
        rates: Sequence[Rate] = (),
        *,
        clock: WorkerClock | None = None,
        epoch_offset_ns: int = 0,
    ) -> None:
        """`epoch_offset_ns`: of the records' instants against this worker's monotonic clock."""
        self._accounts = [_Account(limit) for limit in limits]
        self._of: dict[str, list[_Account]] = {}
        for account in self._accounts:
            self._of.setdefault(account.channel, []).append(account)
        self._waiting: dict[str, int] = {}
        self._more = Event()
        self.asking: Any = Event()
        """Set when the master is to be told now."""
        self._changed = False
        self._epoch_offset_ns = epoch_offset_ns
        self._turnstiles = {rate.channel: Turnstile(rate, clock or OneClock(), self.asking) for rate in rates}

    def never(self, channel: str, tokens: int) -> Rate | None:
        """The rate limit by which a request can never be sent, since it alone asks for more tokens; None: it can."""
        turnstile = self._turnstiles.get(channel)
        return turnstile.rate if turnstile is not None and turnstile.never(tokens) else None

    def take(self, channel: str, tokens: int = 0, kept: Leave | None = None) -> Leave | None:
        """Leave to send a request to this channel now; it is counted. None: `wait`, and ask again.

        `tokens`: its prompt and its longest answer. `kept`: what `wait` gave; it is used here, or given back.
        """
        turnstile = self._turnstiles.get(channel)
        accounts = self._of.get(channel, ())
        if kept is not None and (kept.turnstile is not turnstile or self._spent(channel)):
            self.give_back(kept)
            kept = None
        if self._spent(channel):
            return None
        leave: Leave | None = FREE
        if turnstile is not None:
            leave = turnstile.take(tokens) if kept is None else turnstile.take_kept(kept, tokens)
        if leave is not None:
            for account in accounts:
                if account.kind == REQUESTS:
                    self._spend(account, 1)
        return leave

    def give_back(self, leave: Leave) -> None:
        """What `wait` gave is not needed."""
        if leave.turnstile is not None:
            leave.turnstile.give_back(leave)

    def paid(self, turn: TurnRecord, leave: Leave = FREE) -> None:
        """An attempt has ended: what it used up is known, and when it was sent."""
        if leave.turnstile is not None:
            leave.turnstile.used(leave, turn, self._epoch_offset_ns)
        for account in self._of.get(turn.channel, ()):
            if account.kind == TOKENS:
                self._spend(account, billed_tokens(turn))
            elif account.kind == COST and turn.cost is not None:
                self._spend(account, round(turn.cost * UNITS_PER_MONEY))

    def wait(self, channel: str, tokens: int = 0) -> Leave | None:
        """Block until a grant comes, or `wake`. What it gives, if anything, is for `take`, or to be given back."""
        turnstile = self._turnstiles.get(channel)
        if turnstile is not None and not self._spent(channel):
            return turnstile.wait(tokens)
        self._waiting[channel] = self._waiting.get(channel, 0) + 1
        self.asking.set()
        try:
            self._more.wait()
        finally:
            self._waiting[channel] -= 1
        return None

    def wake(self) -> None:
        """Everybody who waits looks again."""
        for turnstile in self._turnstiles.values():
            turnstile.wake()
        self._wake_for_grants()

    def _wake_for_grants(self) -> None:
        # A new event for those who will wait from now on: clearing the old one could lose the wake of others.
        more, self._more = self._more, Event()
        more.set()

    def compared(self) -> None:
        """This worker's clock was compared with the master's: more may be known of what was sent."""
        for turnstile in self._turnstiles.values():
            turnstile.compared()

    def grant(self, grant: Grant) -> None:
        """The master's answer. Totals only grow, so an older message changes nothing."""
        for channel, permits in grant.permits.items():
            self._turnstiles[channel].arrive(permits)
        more = False
        for account, total in zip(self._accounts, grant.totals, strict=True):
            if total > account.granted:
                account.granted, account.room = total, total - account.spent
                more = True
        if more:
            self._wake_for_grants()

    def spending(self) -> Spending | None:
        """What to tell the master; None: nothing new."""
        self.asking.clear()
        told = {channel: turnstile.tell() for channel, turnstile in self._turnstiles.items()}
        rates = {channel: ask for channel, ask in told.items() if ask is not None}
        if not self._changed and not rates and not any(self._waiting.values()):
            return None
        self._changed = False
        return Spending(
            spent=tuple(account.spent for account in self._accounts),
            waiting=tuple(
                self._waiting.get(account.channel, 0) if account.spent >= account.granted else 0
                for account in self._accounts
            ),
            rates=rates,
        )

    def _spent(self, channel: str) -> bool:
        """Whether a budget of this channel is used up, as far as it was granted."""
        return any(account.spent >= account.granted for account in self._of.get(channel, ()))

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
