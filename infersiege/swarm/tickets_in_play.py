"""What of a run's tickets and users is one worker's, as far as its master has told it. Pure: no clock, no sockets.

The rule that keeps a ticket from being taken twice: a worker takes one only while it is leased, while the table in
force gives it to it, below the boundary of any epoch that it accepted and that is not in force yet, and, in a closed
loop, below the index of its lease (docs/decisions/0008-epochs.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from infersiege.records import Epoch, EpochAnswer, EpochTable, UserSlots
from infersiege.schedule import Ticket
from infersiege.schedule.epochs import Table, TicketWalk, reaches


@dataclass(slots=True)
class TicketsInPlay:
    """One worker's side of the epochs."""

    me: str
    walks: dict[int, TicketWalk]
    """By number of the stream."""
    table: Table | None = None
    accepted: Epoch | None = None
    """It is not in force yet: from its boundary on nothing is taken."""
    until_index: tuple[int, ...] = ()
    """Of the newest lease."""
    ask_at: dict[int, int] = field(default_factory=dict)
    """Closed streams: with this ticket the master is told how far we are, so that a new lease goes further."""
    blocked: bool = False
    """A ticket of ours was held back by it."""
    slots: dict[int, frozenset[int]] = field(default_factory=dict)
    """Users that are this worker's, by number of the stream."""
    expelled: bool = False
    """Others were given what was ours: users that the next `UserSlots` does not name end at once."""
    slots_epoch: int = -1
    """Of the last word about them, or of the one that is awaited."""

    @classmethod
    def of(
        cls, me: str, tickets: Mapping[int, Iterator[Ticket]], idle: Callable[[], object] = lambda: None
    ) -> TicketsInPlay:
        """`tickets`: whole sequences, by number of the stream; `idle` as in `TicketWalk`."""
        return cls(me, {number: TicketWalk(one, me, idle) for number, one in tickets.items()})

    @property
    def number(self) -> int:
        """Of the last epoch known to be in force; -1: none is."""
        return -1 if self.table is None else self.table.number

    @property
    def next_offset_ns(self) -> int:
        """After every instant of which a ticket was taken."""
        return max((walk.next_offset_ns for walk in self.walks.values()), default=0)

    @property
    def next_index(self) -> tuple[int, ...]:
        """Above every ticket that was taken, by number of the stream."""
        last = max(self.walks, default=-1)
        return tuple(self.walks[number].next_index if number in self.walks else 0 for number in range(last + 1))

    def place(self) -> tuple[int, int] | None:
        """(place, members) in the last epoch; None: not in it."""
        members = () if self.table is None else self.table.last.members
        return (members.index(self.me), len(members)) if self.me in members else None

    def is_mine(self, ticket: Ticket) -> bool:
        """Whether the table in force gives it to this worker."""
        return self.table is not None and self.table.owner(ticket) == self.me

    def answer(self, offer: Epoch) -> EpochAnswer:
        """Accept an epoch if nothing was taken from its boundary on; nothing is from now on, until it is in force."""
        moved = any(
            walk.next_index > (offer.from_index[number] if number < len(offer.from_index) else 0)
            for number, walk in self.walks.items()
            if walk.timeless
        )
        fits = offer.number > self.number and not moved and self.next_offset_ns <= offer.from_offset_ns
        if fits:
            self.accepted = offer
        return self.position(offer.number, accepted=fits)

    def position(self, number: int, *, accepted: bool = False) -> EpochAnswer:
        """How far this worker is."""
        return EpochAnswer(
            number=number, accepted=accepted, next_offset_ns=self.next_offset_ns, next_index=self.next_index
        )

    def enforce(self, message: EpochTable) -> bool:
        """Put a table in force. False: it is an old one."""
        table = Table(message.epochs)
        if table.number <= self.number:
            return False
        before = self.number
        self.table = table
        for walk in self.walks.values():
            walk.use(table)
        if self.accepted is not None and self.accepted.number <= table.number:
            self.accepted = None
        without = [epoch.number for epoch in table.epochs if epoch.number > before and self.me not in epoch.members]
        if before >= 0 and without and not self.expelled:
            self.expelled, self.slots_epoch = True, max(self.slots_epoch, without[0])
        return True

    def give_slots(self, message: UserSlots) -> bool:
        """Take over what the master says. Whether users that this does not name have to end at once, since others may
        have them by now."""
        if message.epoch < self.slots_epoch:
            return False
        self.slots_epoch = message.epoch
        self.slots = {number: frozenset(slots) for number, slots in message.slots.items()}
        cut, self.expelled = self.expelled, False
        return cut

    def may_take(self, ticket: Ticket) -> bool:
        """Whether a ticket of ours may be taken now, given a valid lease."""
        if self.accepted is not None and reaches(self.accepted, ticket):
            return False
        if ticket.offset_ns is not None or ticket.index < self._until(ticket):
            return True
        self.blocked = True
        return False

    def leased(self, until_index: tuple[int, ...]) -> bool:
        """A lease says how far closed streams may go. Whether somebody waits for that."""
        if until_index == self.until_index:
            return False
        self.until_index = until_index
        for number, walk in self.walks.items():
            if number < len(until_index):
                self.ask_at[number] = (walk.next_index + until_index[number]) // 2
        waits, self.blocked = self.blocked, False
        return waits

    def asks(self, ticket: Ticket) -> bool:
        """Whether the master is to be told now, after this ticket was taken; once for each lease that went further."""
        if ticket.index < self.ask_at.get(ticket.stream, 1 << 62):
            return False
        del self.ask_at[ticket.stream]
        return True

    def _until(self, ticket: Ticket) -> int:
        return self.until_index[ticket.stream] if ticket.stream < len(self.until_index) else 1 << 62
