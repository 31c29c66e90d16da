"""Who plays which ticket when workers come and go: every ticket has one owner, and nobody else can have taken it."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import InternalError
from infersiege.records import Epoch, EpochTable, UserSlots
from infersiege.schedule import Ticket, closed_tickets, open_tickets
from infersiege.schedule.epochs import Table, TicketWalk, first_slots, spread_slots
from infersiege.swarm.tickets_in_play import TicketsInPlay

SECOND = 1_000_000_000
NAMES = ("a", "b", "c", "d", "e")


def timed(count: int = 200, rate: float = 20.0) -> list[Ticket]:
    return list(islice(open_tickets(rate=rate, arrivals="constant", weights=[1.0], seed=1), count))


def timeless(count: int = 200) -> list[Ticket]:
    return list(islice(closed_tickets(weights=[1.0], seed=1), count))


def epoch(number: int, members: str, from_s: float = 0.0, from_index: int = 0) -> Epoch:
    return Epoch(number=number, members=tuple(members), from_offset_ns=round(from_s * SECOND), from_index=(from_index,))


SEQUENCES = st.lists(
    st.tuples(st.lists(st.sampled_from(NAMES), min_size=1, unique=True), st.integers(0, 40), st.booleans()),
    min_size=1,
    max_size=8,
)
"""Members, how much later the boundary is than the one before, whether the number of an offer was used up in vain."""


def table_of(sequence: list[tuple[list[str], int, bool]]) -> Table:
    epochs: list[Epoch] = []
    number = boundary = 0
    for members, later, skipped in sequence:
        boundary += later if epochs else 0
        epochs.append(epoch(number, "".join(members), boundary / 20, boundary))
        number += 2 if skipped else 1
    return Table(epochs)


@given(SEQUENCES, st.booleans())
def test_every_ticket_has_exactly_one_owner_whoever_comes_and_goes(
    sequence: list[tuple[list[str], int, bool]], with_times: bool
) -> None:
    """The walks of all workers together are the sequence of one worker."""
    table, tickets = table_of(sequence), timed() if with_times else timeless()
    taken: list[Ticket] = []
    for name in NAMES:
        walk = TicketWalk(iter(tickets), name)
        walk.use(table)
        while (ticket := walk.peek()) is not None:
            assert table.owner(ticket) == name
            walk.take(ticket)
            taken.append(ticket)
    assert sorted(taken, key=lambda ticket: ticket.index) == tickets


def test_with_the_first_epoch_alone_it_is_the_index_modulo_members() -> None:
    table = Table([epoch(0, "abc")])
    assert [table.owner(ticket) for ticket in timed(6)] == ["a", "b", "c", "a", "b", "c"]


def test_an_epochs_boundary_is_its_first_ticket() -> None:
    """Constant arrivals at 20/s: the one at exactly 1 s is the new epoch's."""
    table = Table([epoch(0, "a"), epoch(1, "b", from_s=1.0, from_index=7)])
    owners = {ticket.offset_ns: table.owner(ticket) for ticket in timed(60)}
    assert {owner for offset, owner in owners.items() if (offset or 0) < SECOND} == {"a"}
    assert {owner for offset, owner in owners.items() if (offset or 0) >= SECOND} == {"b"}
    assert [table.owner(ticket) for ticket in timeless(9)] == ["a"] * 7 + ["b"] * 2


NO_TABLES: list[tuple[list[Epoch], str]] = [
    ([], "no epoch"),
    ([epoch(0, "")], "an epoch of nobody"),
    ([epoch(1, "a"), epoch(1, "b")], "two epochs with one number"),
    ([epoch(0, "a"), epoch(1, "b", 2.0), epoch(2, "c", 1.0)], "a boundary in time that falls"),
    ([epoch(0, "a"), epoch(1, "b", 0, 5), epoch(2, "c", 0, 4)], "a boundary of a closed stream that falls"),
]


@pytest.mark.parametrize(("epochs", "why"), NO_TABLES, ids=[why for _, why in NO_TABLES])
def test_what_is_no_table(epochs: list[Epoch], why: str) -> None:
    with pytest.raises(InternalError):
        Table(epochs)


@given(
    st.sampled_from("ab"),
    st.integers(0, 60),
    st.integers(0, 60),
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    st.booleans(),
)
def test_another_table_gives_what_was_passed_by(
    me: str, taken: int, later: int, members: list[str], with_times: bool
) -> None:
    """A worker that has taken some tickets, and looked at the next one, takes all that the new table gives it."""
    tickets = timed() if with_times else timeless()
    walk = TicketWalk(iter(tickets), me)
    first = Table([epoch(0, "ab")])
    walk.use(first)
    mine = []
    for _ in range(taken):
        ticket = walk.peek()
        assert ticket is not None
        walk.take(ticket)
        mine.append(ticket)
    walk.peek()
    boundary = walk.next_index + later
    second = first.with_epoch(epoch(1, "".join(members), boundary / 20, boundary))
    walk.use(second)
    while (ticket := walk.peek()) is not None:
        walk.take(ticket)
        mine.append(ticket)
    assert mine == [ticket for ticket in tickets if second.owner(ticket) == me]
    assert walk.over or me not in members, "who is no member may have more by the next table"


def test_one_that_is_no_member_looks_no_further_than_it_must() -> None:
    """A closed loop over a trace that wraps has no end to look for."""
    walk = TicketWalk(closed_tickets(weights=[1.0], seed=1), "late")
    walk.use(Table([epoch(0, "ab"), epoch(1, "a", 0, 50_000)]))
    rests = 0

    def count() -> None:
        nonlocal rests
        rests += 1

    walk._idle = count
    assert walk.peek() is None and not walk.over
    assert rests == 50, "a long walk lets others work now and then"
    walk.use(
        Table([epoch(0, "ab"), epoch(1, "a", 0, 50_000), Epoch(number=2, members=("late",), from_index=(60_000,))])
    )
    ticket = walk.peek()
    assert ticket is not None and ticket.index == 60_000


def test_what_was_not_looked_at_can_not_be_taken() -> None:
    walk = TicketWalk(iter(timed()), "a")
    with pytest.raises(InternalError):
        walk.take(timed(1)[0])


# --------------------------------------------------------------------------------------------------- one worker's side


def part(me: str, members: str = "ab") -> TicketsInPlay:
    made = TicketsInPlay.of(me, {0: iter(timed()), 1: closed_tickets(weights=[1.0], seed=1, stream=1)})
    made.enforce(EpochTable(epochs=(epoch(0, members),)))
    return made


def take(part: TicketsInPlay, stream: int, count: int) -> None:
    for _ in range(count):
        ticket = part.walks[stream].peek()
        assert ticket is not None
        part.walks[stream].take(ticket)


OFFERS = [
    (4, 2, 0.30, 4, True, "nothing was taken from the boundary on"),
    (4, 2, 0.29, 4, False, "an arrival was"),
    (4, 2, 0.30, 2, False, "a session of a closed loop was"),
    (0, 0, 0.0, 0, True, "nothing was taken at all"),
]


@pytest.mark.parametrize(
    ("arrivals", "sessions", "from_s", "index", "accepted", "why"), OFFERS, ids=[r[-1] for r in OFFERS]
)
def test_an_offer_is_accepted_unless_it_comes_too_late(
    arrivals: int, sessions: int, from_s: float, index: int, accepted: bool, why: str
) -> None:
    """Worker a has arrivals 0, 2, 4, 6, that is until 0.3 s (constant, 20/s), and sessions 0 and 2."""
    mine = part("a")
    take(mine, 0, arrivals)
    take(mine, 1, sessions)
    offer = Epoch(number=1, members=("a",), from_offset_ns=round(from_s * SECOND) + 1, from_index=(0, index))
    answer = mine.answer(offer)
    assert answer.accepted is accepted
    assert answer.next_index == (arrivals and 2 * arrivals - 1, sessions and 2 * sessions - 1)
    ahead = mine.walks[0].peek()
    assert ahead is not None
    assert mine.may_take(ahead) is (not accepted or (ahead.offset_ns or 0) < offer.from_offset_ns)


def test_who_was_left_out_meanwhile_ends_the_users_that_others_have() -> None:
    mine = part("a")
    assert not mine.give_slots(UserSlots(epoch=0, slots={1: (0, 2, 4)}))
    mine.enforce(EpochTable(epochs=(epoch(0, "ab"), epoch(1, "b", 1.0, 10))))
    assert not mine.give_slots(UserSlots(epoch=0, slots={1: (0, 2, 4)})), "an old word, which says nothing"
    assert mine.give_slots(UserSlots(epoch=1, slots={1: (4,)}))
    assert mine.slots == {1: frozenset({4})}
    assert not mine.give_slots(UserSlots(epoch=1, slots={1: ()})), "from then on they end with their sessions"
    assert mine.place() is None


# ------------------------------------------------------------------------------------------------------------- users

MEMBERS = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)


@given(st.integers(0, 60), MEMBERS, st.lists(MEMBERS, max_size=5))
def test_users_are_spread_evenly_and_none_moves_without_need(
    users: int, first: list[str], changes: list[list[str]]
) -> None:
    holders = first_slots(users, first)
    for members in changes:
        spread = spread_slots(holders, members)
        assert spread.keys() == holders.keys(), "each user has one place, and there are as many as before"
        counts = Counter(spread.values())
        per_member = [counts[member] for member in members]
        assert set(spread.values()) <= set(members) and (not users or max(per_member) - min(per_member) <= 1)
        kept = Counter(dict.fromkeys(members, 0))
        kept.update(holder for holder in holders.values() if holder in members)
        floor, more = divmod(users, len(members))
        fullest_first = [count for _, count in kept.most_common()]
        too_many = sum(max(0, count - floor - (rank < more)) for rank, count in enumerate(fullest_first))
        moved = sum(spread[number] != holder for number, holder in holders.items() if holder in members)
        assert moved == too_many, "only what is too much where it is"
        holders = spread


SPREADS = [
    ({0: "a", 1: "b", 2: "c", 3: "a"}, "bc", {0: "b", 1: "b", 2: "c", 3: "c"}, "a is lost: its own are dealt out"),
    ({0: "a", 1: "b", 2: "c", 3: "a"}, "abc", {0: "a", 1: "b", 2: "c", 3: "a"}, "nobody left: nothing moves"),
    ({0: "b", 1: "b", 2: "c", 3: "c"}, "abc", {0: "b", 1: "a", 2: "c", 3: "c"}, "a is back: one moves, of the fullest"),
    ({0: "b", 1: "b", 2: "b"}, "abcd", {0: "b", 1: "c", 2: "a"}, "more workers than users"),
]


@pytest.mark.parametrize(("holders", "members", "spread", "why"), SPREADS, ids=[row[-1] for row in SPREADS])
def test_who_has_which_user(holders: dict[int, str], members: str, spread: dict[int, str], why: str) -> None:
    assert spread_slots(holders, tuple(members)) == spread


def test_nobody_has_no_users() -> None:
    with pytest.raises(InternalError):
        spread_slots({0: "a"}, ())
