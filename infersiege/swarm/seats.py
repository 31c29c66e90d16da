"""The master's side of the epochs: who plays what, offered, answered, put in force. Pure: the clock is an argument.

Instants are offsets from the first arrival. Whoever uses it sends what it gives, in order, to each worker.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from infersiege.records import Epoch, EpochAnswer, EpochTable, SlotsHeld, UserSlots
from infersiege.schedule.epochs import Table, first_slots, spread_slots

LEAD_NS = 1_000_000_000
"""From an offer to its boundary: all members must have heard it, and answered, before they are there."""
LATE_NS = 400_000_000
"""An offer that is not accepted by all so long before its boundary is made anew: nobody is to wait there."""
AGAIN_NS = 500_000_000
"""An offer that was not answered for so long is sent again."""
QUICK_NS = 500_000_000
SLOW_NS = 4_000_000_000
"""The head of a closed stream doubles when it was used up sooner than that, and halves when it lasted longer."""
MOST_HEAD = 1 << 20
TABLE = "*"
"""Addressee of what everybody gets."""


class Letter(NamedTuple):
    """What to send to whom: a worker's name, or TABLE."""

    to: str
    message: Epoch | EpochTable | UserSlots


@dataclass(slots=True)
class Head:
    """How far a closed stream's tickets may be taken ahead of what the master knows of.

    Nobody can ask a worker that is silent how far it went, so its leases say how far it may go.
    """

    least: int
    size: int
    known: int = 0
    """Above every ticket that somebody said he had taken."""
    until: int = 0
    """Tickets below this may be taken."""
    raised_ns: int = -SLOW_NS

    @classmethod
    def of(cls, users: int, members: int) -> Head:
        """Room for each user's first session, and for workers of which one is ahead of the others."""
        least = users + 4 * members
        return cls(least=least, size=least, until=least)

    def told(self, next_index: int, now_ns: int) -> bool:
        """Somebody is so far. Whether more may be taken now than before."""
        self.known = max(self.known, next_index)
        if self.known + self.size // 2 < self.until:
            return False
        if now_ns - self.raised_ns < QUICK_NS:
            self.size = min(self.size * 2, MOST_HEAD)
        elif now_ns - self.raised_ns > SLOW_NS:
            self.size = max(self.size // 2, self.least)
        self.raised_ns = now_ns
        self.until = max(self.until, self.known + self.size)
        return True


@dataclass(slots=True)
class _Offer:
    epoch: Epoch
    sent_ns: int
    answers: dict[str, bool] = field(default_factory=dict)


@dataclass(slots=True)
class _Slot:
    """A user of a closed stream."""

    holder: str
    """Who has it: two never do."""
    following: str
    """Who is to have it, once its holder has let it go."""


class Seats:
    """Keeps the table of epochs, the offers, and who has which users."""

    def __init__(self, members: Sequence[str], *, streams: int, users: Mapping[int, int]) -> None:
        """`users`: the most users of each closed stream, by its number; `streams`: number of the last one, and one."""
        self.table = Table((Epoch(number=0, members=tuple(members)),))
        self._members = tuple(members)
        self._offer: _Offer | None = None
        self._number = 0
        self._heads = {number: Head.of(most, len(members)) for number, most in users.items()}
        self._next = {number: dict.fromkeys(members, 0) for number in users}
        self._streams = streams
        self._not_before_ns = 0
        self._not_below = dict.fromkeys(users, 0)
        self._tries = 0
        self._slots = {
            number: {slot: _Slot(holder, holder) for slot, holder in first_slots(most, members).items()}
            for number, most in users.items()
        }
        self._owned: dict[int, dict[str, list[int]]] = {}
        """Users of each closed stream by who has them and keeps them, in order: a thousand workers that each look
        through ten thousand users would stop the master."""
        self._moving: dict[int, dict[str, list[int]]] = {}
        """The others, by who has them still."""
        self._look_up()
        self._spread = 0
        """Number of the epoch for which users were last spread."""

    @property
    def settled(self) -> bool:
        """The members are those of the last epoch in force."""
        return self._offer is None and self._members == self.table.last.members

    @property
    def until_index(self) -> tuple[int, ...]:
        """For leases."""
        no_limit = 1 << 62
        return tuple(self._heads[one].until if one in self._heads else no_limit for one in range(self._streams))

    def change(self, members: Sequence[str], *, goes_on_until_ns: int = 0, untold: bool = False) -> None:
        """These are the members from now on, in the order of their seats.

        `goes_on_until_ns`: somebody who left may still be alive, and takes arrivals for so long at most. `untold`:
        somebody did not tell how many sessions of closed loops he had taken in the end.
        """
        self._members = tuple(members)
        self._not_before_ns = max(self._not_before_ns, goes_on_until_ns)
        for number, head in self._heads.items() if untold else ():
            self._not_below[number] = max(self._not_below[number], head.until)

    def told(self, worker: str, next_index: Sequence[int], now_ns: int) -> bool:
        """How far a worker is. Whether more may be taken now than before: a new lease says so."""
        raised = False
        for number, head in self._heads.items():
            if number < len(next_index):
                self._next[number][worker] = next_index[number]
                raised |= head.told(next_index[number], now_ns)
        return raised

    def answered(self, worker: str, answer: EpochAnswer, now_ns: int) -> bool:
        """As `told`; an answer to the offer counts as such."""
        offer = self._offer
        if offer is not None and offer.epoch.number == answer.number and worker in offer.epoch.members:
            offer.answers[worker] = answer.accepted
            self._not_before_ns = max(self._not_before_ns, answer.next_offset_ns)
        return self.told(worker, answer.next_index, now_ns)

    def tick(self, now_ns: int) -> Iterator[Letter]:
        """What is to be sent now."""
        offer = self._offer
        if not self._members:
            self._offer = None  # Nobody is left: the load ends.
            return
        if offer is None:
            if self._members != self.table.last.members:
                yield from self._make_offer(now_ns)
        elif offer.epoch.members != self._members or False in offer.answers.values():
            yield from self._make_offer(now_ns)
        elif len(offer.answers) == len(offer.epoch.members):
            yield from self._enforce(offer.epoch)
        elif now_ns > offer.epoch.from_offset_ns - LATE_NS:
            yield from self._make_offer(now_ns)
        elif now_ns - offer.sent_ns >= AGAIN_NS:
            offer.sent_ns = now_ns
            yield from (Letter(one, offer.epoch) for one in offer.epoch.members if one not in offer.answers)
        if self.settled and self._spread < self.table.number and now_ns >= self.table.last.from_offset_ns:
            yield from self._spread_users()

    def letters_for(self, worker: str) -> tuple[Letter, ...]:
        """What a worker has to know of the past, which is in force."""
        return Letter(worker, EpochTable(epochs=self.table.epochs)), Letter(worker, self.slots_of(worker))

    def slots_of(self, worker: str) -> UserSlots:
        """All users that a worker is to have now."""
        its = {number: tuple(owned.get(worker, ())) for number, owned in self._owned.items()}
        return UserSlots(epoch=self._spread, slots=its)

    def held(self, worker: str, message: SlotsHeld) -> Iterator[Letter]:
        """A worker says which users it still has beyond its own: the others are free for those who are to have them."""
        if message.epoch < self._spread:
            return
        gainers: dict[str, None] = {}
        for number, moving in self._moving.items():
            asked = moving.pop(worker, None)
            if asked is None:
                continue
            still = set(message.slots.get(number, ()))
            for one in asked:
                if one not in still:
                    slot = self._slots[number][one]
                    slot.holder = slot.following
                    insort(self._owned[number].setdefault(slot.holder, []), one)
                    gainers[slot.holder] = None
            if still := still.intersection(asked):
                moving[worker] = sorted(still)
        yield from (Letter(gainer, self.slots_of(gainer)) for gainer in gainers)

    # ---------------------------------------------------------------------------------------------------------- steps

    def _make_offer(self, now_ns: int) -> Iterator[Letter]:
        self._number += 1
        self._tries += 1
        last = self.table.last
        indices = [0] * self._streams
        for number, head in self._heads.items():
            # Of those, too, who left: who said farewell had told how far it was.
            ahead = max(self._next[number].values(), default=0)
            slack = min(head.size, len(self._members) << min(self._tries, 20))
            before = last.from_index[number] if number < len(last.from_index) else 0
            indices[number] = max(before, self._not_below[number], ahead + slack)
        epoch = Epoch(
            number=self._number,
            members=self._members,
            from_offset_ns=max(0, now_ns + LEAD_NS, self._not_before_ns, last.from_offset_ns),
            from_index=tuple(indices),
        )
        self._offer = _Offer(epoch, now_ns)
        yield from (Letter(member, epoch) for member in epoch.members)

    def _enforce(self, epoch: Epoch) -> Iterator[Letter]:
        self.table = self.table.with_epoch(epoch)
        self._offer, self._tries = None, 0
        yield Letter(TABLE, EpochTable(epochs=self.table.epochs))

    def _spread_users(self) -> Iterator[Letter]:
        self._spread = self.table.number
        members = self.table.last.members
        for slots in self._slots.values():
            wanted = spread_slots({one: slot.following for one, slot in slots.items()}, members)
            for one, slot in slots.items():
                slot.following = wanted[one]
                if slot.holder not in members:
                    slot.holder = slot.following  # Its lease was over before the boundary.
        self._look_up()
        if self._slots:
            yield from (Letter(member, self.slots_of(member)) for member in members)

    def _look_up(self) -> None:
        """Find what `slots_of` and `held` are asked for, in one walk over all users."""
        self._owned = {number: {} for number in self._slots}
        self._moving = {number: {} for number in self._slots}
        for number, slots in self._slots.items():
            for one, slot in slots.items():
                found = self._owned if slot.holder == slot.following else self._moving
                found[number].setdefault(slot.holder, []).append(one)
