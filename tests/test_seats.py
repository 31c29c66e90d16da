"""A master and its workers on one virtual clock, with whatever may happen to them: no ticket is taken twice."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from infersiege.records import Epoch, EpochAnswer, EpochTable, Lease, SlotsHeld, UserSlots
from infersiege.schedule import Ticket, closed_tickets, open_tickets
from infersiege.swarm.fleet import SILENT_NS
from infersiege.swarm.membership import LEASE_EVERY_NS, LEASE_NS, MARGIN_NS
from infersiege.swarm.seats import TABLE, Seats
from infersiege.swarm.streams import EARLY_NS
from infersiege.swarm.tickets_in_play import TicketsInPlay

SECOND = 1_000_000_000
STEP_NS = 100_000_000
LENGTH_S = 22
RATE = 20.0
USERS = 7


SIMULATED = settings(max_examples=30, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink])
"""Without its last phase, which traces each line and takes minutes."""


class Beat(msgspec.Struct, frozen=True):
    """Heartbeat and report in one."""

    epoch: int
    next_index: tuple[int, ...]


@dataclass
class Line:
    """One direction between two processes: in order, with delays; nothing gets through a cut."""

    random: Random
    waiting: deque[tuple[int, Any]] = field(default_factory=deque)

    def send(self, message: Any, now_ns: int) -> None:
        at_ns = now_ns + self.random.choice((0, 0, 0, 60_000_000, 300_000_000))
        self.waiting.append((max(at_ns, self.waiting[-1][0] if self.waiting else 0), message))

    def arrived(self, now_ns: int) -> list[Any]:
        found = []
        while self.waiting and self.waiting[0][0] <= now_ns:
            found.append(self.waiting.popleft()[1])
        return found


class Player:
    """A worker: takes what it may, as `swarm.streams` does."""

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.random = random
        self.inbox, self.outbox = Line(random), Line(random)
        tickets = {
            0: open_tickets(rate=RATE, arrivals="constant", weights=[1.0], seed=1),
            1: closed_tickets(weights=[1.0], seed=1, stream=1),
        }
        self.part = TicketsInPlay.of(name, tickets)
        self.lease_end_ns = 0
        self.taken: list[Ticket] = []
        self.users: frozenset[int] = frozenset()
        """That run: its own, and those which have not ended yet."""
        self.dead = False
        self.stopped_until_ns = self.cut_until_ns = 0
        self.beat_ns = 0

    def step(self, now_ns: int) -> None:
        if self.dead or now_ns < self.stopped_until_ns:
            return
        for message in self.inbox.arrived(now_ns) if now_ns >= self.cut_until_ns else ():
            # A worker that was stopped has a pile of them; its other greenlets may run between any two.
            self.hear(message, now_ns)
            if self.random.random() < 0.3:
                self.take(now_ns)
        self.take(now_ns)
        mine = self.part.slots.get(1, frozenset())
        if self.users - mine and self.random.random() < 0.1:
            self.users &= mine
            self.tell_held(now_ns)
        if now_ns - self.beat_ns >= SECOND // 2:
            self.beat_ns = now_ns
            self.outbox.send(Beat(self.part.number, self.part.next_index), now_ns)
            self.tell_held(now_ns)

    def tell_held(self, now_ns: int) -> None:
        held = tuple(self.users - self.part.slots.get(1, frozenset()))
        self.outbox.send(SlotsHeld(epoch=self.part.slots_epoch, slots={1: held} if held else {}), now_ns)

    def hear(self, message: Any, now_ns: int) -> None:
        if isinstance(message, Epoch):
            self.outbox.send(self.part.answer(message), now_ns)
        elif isinstance(message, EpochTable):
            self.part.enforce(message)
        elif isinstance(message, UserSlots):
            cut = self.part.give_slots(message)
            mine = self.part.slots.get(1, frozenset())
            self.users = mine if cut else self.users | mine
            self.tell_held(now_ns)
        elif isinstance(message, Lease) and message.epoch <= self.part.number:
            self.part.leased(message.until_index)
            self.lease_end_ns = max(self.lease_end_ns, (message.sent_ns or 0) + LEASE_NS)

    def leased(self, now_ns: int) -> bool:
        return now_ns < self.lease_end_ns

    def take(self, now_ns: int) -> None:
        for stream, walk in self.part.walks.items():
            most = 1000 if stream == 0 else self.random.randrange(4)
            while most and self.leased(now_ns) and (ticket := walk.peek()) is not None:
                if not self.part.may_take(ticket) or (ticket.offset_ns or 0) - EARLY_NS > now_ns:
                    break
                walk.take(ticket)
                self.taken.append(ticket)
                most -= 1
                if self.part.asks(ticket):
                    self.outbox.send(self.part.position(self.part.number), now_ns)


class Leader:
    """The master: `Seats`, and what `Membership` and `Fleet` do around it."""

    def __init__(self, players: list[Player]) -> None:
        self.players = {player.name: player for player in players}
        self.seats = Seats(list(self.players), streams=2, users={1: USERS})
        self.seen_ns = dict.fromkeys(self.players, 0)
        self.lost: dict[str, int] = {}
        self.ever_lost: set[str] = set()
        self.leased_ns = self.slots_ns = 0
        for name in self.players:
            self.inform(name, 0)
        self.lease(0)

    def alive(self) -> list[str]:
        return [name for name in self.players if name not in self.lost]

    def inform(self, name: str, now_ns: int) -> None:
        for letter in self.seats.letters_for(name):
            self.players[name].inbox.send(letter.message, now_ns)

    def lease(self, now_ns: int) -> None:
        self.leased_ns = now_ns
        lease = Lease(
            duration_ns=LEASE_NS,
            sequence=0,
            epoch=self.seats.table.number,
            sent_ns=now_ns,
            until_index=self.seats.until_index,
        )
        for name in self.alive():
            self.players[name].inbox.send(lease, now_ns)

    def send(self, letters: Any, now_ns: int) -> None:
        for letter in letters:
            for name, player in self.players.items():
                if letter.to in (TABLE, name):
                    player.inbox.send(letter.message, now_ns)

    def step(self, now_ns: int) -> None:
        for name, player in self.players.items():
            if now_ns >= player.cut_until_ns:
                for message in player.outbox.arrived(now_ns):
                    self.seen_ns[name] = now_ns
                    if name not in self.lost:
                        self.hear(name, message, now_ns)
        for name in self.alive():
            gone = self.players[name].dead and now_ns % 2 == 0  # Some are processes of the master's own host.
            if gone or now_ns - self.seen_ns[name] > SILENT_NS:
                self.lost[name] = now_ns
                self.ever_lost.add(name)
                until_ns = 0 if gone else now_ns + LEASE_NS + MARGIN_NS
                self.seats.change(self.alive(), goes_on_until_ns=until_ns, untold=True)
        for name, lost_ns in list(self.lost.items()):
            if self.seen_ns[name] > lost_ns:
                del self.lost[name]
                self.inform(name, now_ns)
                self.seats.change(self.alive())
        if now_ns - self.leased_ns >= LEASE_EVERY_NS:
            self.lease(now_ns)
        number = self.seats.table.number
        self.send(self.seats.tick(now_ns), now_ns)
        if self.seats.table.number != number:
            self.lease(now_ns)
        if now_ns - self.slots_ns >= SECOND:
            self.slots_ns = now_ns
            for name in self.alive():
                self.players[name].inbox.send(self.seats.slots_of(name), now_ns)

    def hear(self, name: str, message: Any, now_ns: int) -> None:
        if isinstance(message, Beat):
            if message.epoch < self.seats.table.number:
                self.inform(name, now_ns)
            if self.seats.told(name, message.next_index, now_ns):
                self.lease(now_ns)
        elif isinstance(message, EpochAnswer):
            if self.seats.answered(name, message, now_ns):
                self.lease(now_ns)
        elif isinstance(message, SlotsHeld):
            self.send(self.seats.held(name, message), now_ns)


INCIDENTS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["kill", "stop", "cut"]), st.integers(1, LENGTH_S - 3), st.integers(1, 100)
    ),
    max_size=6,
)
"""(worker, what happens to it, when in seconds, for how many tenths of a second)."""


def play(incidents: list[tuple[int, str, int, int]], seed: int) -> tuple[list[Player], Leader]:
    random = Random(seed)
    players = [Player(name, random) for name in "abcd"]
    leader = Leader(players)
    for now_ns in range(0, LENGTH_S * SECOND, STEP_NS):
        for worker, what, at_s, tenths in incidents:
            if at_s * SECOND == now_ns:
                player, until_ns = players[worker], now_ns + tenths * SECOND // 10
                if what == "kill":
                    player.dead = True
                elif what == "stop":
                    player.stopped_until_ns = max(player.stopped_until_ns, until_ns)
                else:
                    player.cut_until_ns = max(player.cut_until_ns, until_ns)
        for player in random.sample(players, len(players)):
            player.step(now_ns)
        leader.step(now_ns)
        check_users(players, now_ns)
    return players, leader


def check_users(players: list[Player], now_ns: int) -> None:
    """Of those who may start turns no two have the same user, and nobody has one that does not exist."""
    active = [player for player in players if player.leased(now_ns) and not player.dead]
    running = [user for player in active if now_ns >= player.stopped_until_ns for user in player.users]
    assert len(set(running)) == len(running) <= USERS, (now_ns / SECOND, {one.name: one.users for one in active})


@SIMULATED
@given(INCIDENTS, st.integers(0, 1 << 30))
@example([], 1)
@example([(1, "stop", 5, 80)], 1)
@example([(1, "cut", 5, 100)], 1)
@example([(3, "cut", 13, 76), (0, "stop", 8, 96)], 868202078)
@example([(0, "kill", 5, 1), (1, "kill", 6, 1)], 1)
def test_no_ticket_is_taken_twice_and_what_nobody_took_is_a_lost_workers(
    incidents: list[tuple[int, str, int, int]], seed: int
) -> None:
    players, leader = play(incidents, seed)
    taken = [(ticket.stream, ticket.index) for player in players for ticket in player.taken]
    assert len(set(taken)) == len(taken), "a ticket was taken twice"
    table = leader.seats.table
    for player in players:
        assert all(table.owner(ticket) == player.name for ticket in player.taken), "somebody else's"
    due = open_tickets(rate=RATE, arrivals="constant", weights=[1.0], seed=1, duration_ns=(LENGTH_S - 1) * SECOND)
    missed = [ticket for ticket in due if (0, ticket.index) not in set(taken)]
    ended = {player.name for player in players if player.dead}
    assert {table.owner(ticket) for ticket in missed} <= leader.ever_lost | ended
    if not incidents:
        assert not missed and table.number == 0


@SIMULATED
@given(st.integers(0, 1 << 30), st.booleans())
def test_after_a_loss_the_others_have_all_arrivals_and_all_users(seed: int, silent: bool) -> None:
    players, leader = play([(1, "cut" if silent else "kill", 5, 200)], seed)
    rest = [player for player in players if player.name != "b"]
    assert leader.seats.table.last.members == ("a", "c", "d")
    boundary = leader.seats.table.last.from_offset_ns
    late = [ticket.index for player in rest for ticket in player.taken if (ticket.offset_ns or 0) >= boundary]
    assert boundary < 12 * SECOND and len(late) > 9 * RATE
    assert sorted(user for player in rest for user in player.users) == list(range(USERS))


@SIMULATED
@given(st.integers(0, 1 << 30), st.sampled_from(["stop", "cut"]), st.integers(10, 100))
def test_who_comes_back_has_its_part_again(seed: int, what: str, tenths: int) -> None:
    players, leader = play([(2, what, 3, tenths)], seed)
    assert leader.seats.settled
    assert leader.seats.table.last.members == ("a", "b", "c", "d")
    assert sorted(user for player in players for user in player.users) == list(range(USERS))
    last_s = max((ticket.offset_ns or 0) for ticket in players[2].taken) / SECOND
    assert last_s > LENGTH_S - 1


def test_who_leaves_with_a_farewell_takes_nothing_back() -> None:
    """A worker that was ahead of the others says how far it was, and leaves: what it took is nobody else's."""
    seats = Seats("abc", streams=1, users={0: 4})
    for name, taken in (("a", 90), ("b", 40), ("c", 41)):
        seats.told(name, (taken,), 0)
    seats.change(("b", "c"))
    (offer, *_) = [letter.message for letter in seats.tick(SECOND)]
    assert isinstance(offer, Epoch) and offer.from_index[0] >= 90
