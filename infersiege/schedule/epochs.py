"""Who plays which ticket when workers come and go: pure functions of the table of epochs (docs/decisions/0008).

Every worker walks the whole sequence of each stream and takes what the table gives it, so the union over the workers is
the sequence of one worker, whoever is there and for how long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from infersiege.errors import InternalError
from infersiege.records import Epoch
from infersiege.schedule.tickets import Ticket

AT_A_STRETCH = 1000
"""Tickets of others that a walk passes by before it lets the process do something else."""


class Table:
    """The epochs in force, in order. Raises InternalError for a table that gives a ticket to nobody, or to two."""

    __slots__ = ("_later", "epochs")

    def __init__(self, epochs: Sequence[Epoch]) -> None:
        self.epochs = tuple(epochs)
        numbers = [epoch.number for epoch in self.epochs]
        if not self.epochs or any(not epoch.members for epoch in self.epochs) or sorted(set(numbers)) != numbers:
            raise InternalError(f"{self.epochs} is no table of epochs")
        for before, after in pairwise(self.epochs):
            if after.from_offset_ns < before.from_offset_ns or _falls(before.from_index, after.from_index):
                raise InternalError(f"epoch {after.number} begins before epoch {before.number}")
        self._later = tuple(reversed(self.epochs[1:]))

    @property
    def last(self) -> Epoch:
        return self.epochs[-1]

    @property
    def number(self) -> int:
        """Of the epoch that was put in force last."""
        return self.last.number

    def epoch_of(self, ticket: Ticket) -> Epoch:
        """The epoch that a ticket belongs to: the last one whose boundary is not after it."""
        for epoch in self._later:
            if reaches(epoch, ticket):
                return epoch
        return self.epochs[0]

    def owner(self, ticket: Ticket) -> str:
        """The only worker that may play a ticket."""
        members = self.epoch_of(ticket).members
        return members[ticket.index % len(members)]

    def is_settled(self, ticket: Ticket) -> bool:
        """Whether no later epoch can give it to somebody else: boundaries never fall."""
        return not reaches(self.last, ticket)

    def with_epoch(self, epoch: Epoch) -> Table:
        return Table((*self.epochs, epoch))


def reaches(epoch: Epoch, ticket: Ticket) -> bool:
    """Whether a ticket lies at or beyond an epoch's boundary."""
    if ticket.offset_ns is not None:
        return ticket.offset_ns >= epoch.from_offset_ns
    return ticket.index >= _of_stream(epoch.from_index, ticket.stream)


def _of_stream(indices: Sequence[int], stream: int) -> int:
    return indices[stream] if stream < len(indices) else 0


def _falls(before: Sequence[int], after: Sequence[int]) -> bool:
    return any(_of_stream(after, stream) < index for stream, index in enumerate(before))


class TicketWalk:
    """One worker's walk over the tickets of one stream.

    What was passed by since the last ticket taken is kept, since another table may give it to this worker. A table
    never gives away, or newly gives, what lies before a ticket that was taken: its boundary lies behind it.
    """

    def __init__(self, tickets: Iterator[Ticket], me: str, idle: Callable[[], object] = lambda: None) -> None:
        """`tickets`: the whole sequence, of all workers; `idle` is called in long walks, and may yield."""
        self._tickets = tickets
        self._me = me
        self._idle = idle
        self._ahead: deque[Ticket] = deque()
        """Drawn, and not decided yet."""
        self._dry = False
        self._table: Table | None = None
        self.next_index = 0
        """Above every index that was taken."""
        self.next_offset_ns = 0
        """After every instant of which a ticket was taken."""
        self.timeless = False
        """Its tickets have no times: boundaries are indices. Known with the first one taken."""

    def use(self, table: Table) -> None:
        """This table is in force now."""
        self._table = table

    def peek(self) -> Ticket | None:
        """This worker's next ticket; None: there is none, for good if `over`."""
        while True:
            found, again = self._look()
            if not again:
                return found
            self._idle()

    @property
    def over(self) -> bool:
        """Nothing is left for this worker under the table in force."""
        return self.peek() is None and self._dry

    def take(self, ticket: Ticket) -> None:
        """It is played, or accounted for, by this worker. Raises InternalError unless `peek` gave it."""
        while self._ahead:
            if self._ahead.popleft() is ticket:
                self.next_index = ticket.index + 1
                self.timeless = ticket.offset_ns is None
                self.next_offset_ns = 0 if ticket.offset_ns is None else ticket.offset_ns + 1
                return
        raise InternalError(f"{ticket} is not on the way")

    def _look(self) -> tuple[Ticket | None, bool]:
        """(my next ticket as far as it is known, whether to look again)."""
        table, ahead = self._table, self._ahead
        if table is None:
            return None, False
        while ahead and table.is_settled(ahead[0]) and table.owner(ahead[0]) != self._me:
            ahead.popleft()
        for ticket in ahead:
            if table.owner(ticket) == self._me:
                return ticket, False
        member = self._me in table.last.members
        for _ in range(AT_A_STRETCH):
            if not member and ahead and not table.is_settled(ahead[-1]):
                return None, False  # What comes next is for others, as long as they have the table to themselves.
            drawn = None if self._dry else next(self._tickets, None)
            if drawn is None:
                self._dry = True
                return None, False
            mine = table.owner(drawn) == self._me
            if mine or not table.is_settled(drawn):
                ahead.append(drawn)
            if mine:
                return drawn, False
        return None, True


def first_slots(users: int, members: Sequence[str]) -> dict[int, str]:
    """Who has which user of a closed loop at the start: number modulo members."""
    return {number: members[number % len(members)] for number in range(users)}


def spread_slots(holders: Mapping[int, str], members: Sequence[str]) -> dict[int, str]:
    """Who is to have each user's slot now that these are the members.

    Slots of those who are gone go to whoever has the fewest, and no other one moves unless counts differ by more than
    one: then the fullest gives away what it has last. Raises InternalError without members.
    """
    if not members:
        raise InternalError("slots can't be spread over nobody")
    slots: dict[str, list[int]] = {member: [] for member in members}
    homeless: list[int] = []
    for number in sorted(holders):
        slots.get(holders[number], homeless).append(number)
    for number in homeless:
        slots[_fewest(slots, members)].append(number)
    while True:
        fewest, fullest = _fewest(slots, members), max(members, key=lambda member: len(slots[member]))
        if len(slots[fullest]) - len(slots[fewest]) <= 1:
            break
        slots[fewest].append(slots[fullest].pop())
    return {number: member for member, numbers in slots.items() for number in numbers}


def _fewest(slots: Mapping[str, Sequence[int]], members: Sequence[str]) -> str:
    return min(members, key=lambda member: len(slots[member]))
