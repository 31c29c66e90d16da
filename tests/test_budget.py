"""Budgets: whatever workers, users and messages do, no more is granted than there is, and nothing stays unused."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import PlanError
from infersiege.plan.load import load_plan
from infersiege.plan.schema import Budget, Channel, Plan, Price, Workload
from infersiege.records import BudgetUse, Grant, Outcome, Phase, Reason, Spending, TokensFrom, TurnRecord
from infersiege.swarm.budget import (
    COST,
    PATIENCE_NS,
    QUICK_NS,
    REQUESTS,
    SLOW_NS,
    TOKENS,
    Limit,
    Treasury,
    limits_of,
    spent_before_steady,
)
from infersiege.swarm.control import RunControl
from infersiege.swarm.purse import Purse

HERE = "cloud"
NOW = 1_000_000_000_000
SECOND = 1_000_000_000


def turn_of(tokens: int, *, cost: float | None = None, channel: str = HERE, status: int = 200) -> TurnRecord:
    """An answered turn that used up so many tokens."""
    return TurnRecord(
        run_id="r", worker="w", epoch=0, session_id="s", turn=0, parent_turn=None, scenario="x", stage="main",
        phase=Phase.STEADY, channel=channel, replica=None, engine="vllm", dialect="openai-chat", model_asked="m",
        request_id="r.s.0", due_ns=1, sent_ns=2, sent_end_ns=3, closed_ns=9, outcome=Outcome.OK, http_status=status,
        prompt_tokens=tokens // 2, output_tokens=tokens - tokens // 2, tokens_from=TokensFrom.USAGE, cost=cost,
    )  # fmt: skip


TOO_SMALL = [
    (BudgetUse(channel=HERE, kind=REQUESTS, amount=2000, used=2000), "2,000 requests"),
    (BudgetUse(channel=HERE, kind=TOKENS, amount=1_500_000, used=1_500_800), "1,500,000 tokens"),
    (BudgetUse(channel=HERE, kind=COST, amount=0.5, used=0.5003), "cost 0.50"),
]


@pytest.mark.parametrize(("use", "amount"), TOO_SMALL, ids=[amount for _, amount in TOO_SMALL])
def test_a_budget_that_did_not_last_until_steady_is_named_with_what_to_raise(use: BudgetUse, amount: str) -> None:
    assert spent_before_steady(use, 3_240_000_000, 30 * SECOND) == (
        f"no steady window was reached: the budget of channel cloud ({amount}) was used up after 3.2 s, before steady "
        f"began at 30.0 s; raise channel.cloud.budget.{use.kind}, or shorten load.warmup"
    )


# ------------------------------------------------------------------------------------------------------- any order


@dataclass
class User:
    """Sends one request at a time."""

    in_flight: int | None = None
    last: int = 0
    """What its last turn used up, once that has ended."""
    waits: Any = None

    @property
    def waiting(self) -> bool:
        return self.waits is not None and not self.waits.ready()


@dataclass
class Place:
    """One worker: its purse, its users, and the messages that are on their way."""

    purse: Purse
    users: list[User]
    up: deque[Spending] = field(default_factory=deque)
    down: deque[Grant] = field(default_factory=deque)
    dead: bool = False
    away: bool = False
    """The master has given it up, and it goes on: a network cut, or it was stopped."""
    started: int = 0
    spent: int = 0


class Fleet:
    """The real master's account and real purses; messages take as long as the test wants."""

    def __init__(self, limit: Limit, users: Sequence[int]) -> None:
        self.limit = limit
        self.treasury = Treasury((limit,), workers=len(users))
        self.now_ns = NOW
        self.gone: list[Place] = []
        """Dead ones whose name another one has."""
        self.places = [Place(Purse((limit,)), [User() for _ in range(count)]) for count in users]
        for number, place in enumerate(self.places):
            place.down.append(self.treasury.first(str(number), self.now_ns))

    def start(self, place: Place, user: User) -> None:
        if place.dead or user.in_flight is not None or user.waiting:
            return
        if place.purse.take(HERE):
            user.in_flight, user.last = 0, 0
            place.started += 1
        else:
            user.waits = gevent.spawn(place.purse.wait, HERE)
            gevent.sleep(0)

    def finish(self, place: Place, user: User, amount: int) -> None:
        if place.dead or user.in_flight is None:
            return
        user.in_flight, user.last = None, amount
        place.spent += amount
        place.purse.paid(turn_of(amount))

    def tell(self, place: Place) -> None:
        if not place.dead and (spending := place.purse.spending()) is not None:
            place.up.append(spending)

    def hear(self, number: int, place: Place) -> None:
        """The master reads a message; those of a worker that it has given up it does not."""
        if place.up:
            spending = place.up.popleft()
            if (
                not place.dead
                and not place.away
                and (grant := self.treasury.told(str(number), spending, self.now_ns)) is not None
            ):
                place.down.append(grant)

    def deliver(self, place: Place) -> None:
        if place.down:
            place.purse.grant(place.down.popleft())
            gevent.sleep(0)

    def die(self, number: int, place: Place) -> None:
        if not place.dead:
            place.dead = True
            self.treasury.lose(str(number))

    def leave(self, number: int, place: Place) -> None:
        if not place.dead and not place.away:
            place.away = True
            self.treasury.lose(str(number))

    def come_back(self, number: int, place: Place) -> None:
        """The same process; or, where that is dead, a new one of its name."""
        if place.away:
            place.away = False
            self.treasury.found(str(number))
        elif place.dead:
            self.places[number] = new = Place(Purse((self.limit,)), [User() for _ in place.users])
            new.down.append(self.treasury.first(str(number), self.now_ns))
            self.gone.append(place)

    def check(self) -> None:
        places = (*self.places, *self.gone)
        amount = self.limit.amount
        if self.limit.kind == REQUESTS:
            assert sum(place.started for place in places) <= amount
            return
        last = sum(user.last for place in places for user in place.users)
        assert sum(place.spent for place in places) <= amount + last, "more than one request of each user beyond"

    def play_to_the_end(self, amount: int) -> int:
        """Everybody does all they can until the master ends the run. Rounds that it took."""
        for rounds in range(5_000):
            self.now_ns += 10_000_000
            for number, place in enumerate(self.places):
                for user in place.users:
                    self.finish(place, user, amount)
                    self.start(place, user)
                self.tell(place)
                while place.up:
                    self.hear(number, place)
                while place.down:
                    self.deliver(place)
                self.check()
            if self.treasury.used_up(self.now_ns, None) is not None:
                return rounds
        raise AssertionError("the budget is never used up")

    def close(self) -> None:
        for place in self.places:
            place.purse.wake()
        gevent.sleep(0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["start", "finish"] * 3,
                "start",
                "tell",
                "hear",
                "deliver",
                "tell",
                "hear",
                "deliver",
                "die",
                "leave",
                "return",
            ]
        ),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(1, 200),
    ),
    max_size=300,
)


@given(
    kind=st.sampled_from([REQUESTS, TOKENS]),
    amount=st.integers(1, 2_000),
    users=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    steps=STEPS,
)
@settings(max_examples=150)
def test_no_order_of_events_spends_more_than_one_request_of_each_user_beyond(
    kind: str, amount: int, users: list[int], steps: list[tuple[str, int, int, int]]
) -> None:
    fleet = Fleet(Limit(HERE, kind, amount), users)
    deaths = 0
    for action, where, who, tokens in steps:
        number = where % len(fleet.places)
        place = fleet.places[number]
        user = place.users[who % len(place.users)]
        fleet.now_ns += tokens * 10_000_000
        if action == "start":
            fleet.start(place, user)
        elif action == "finish":
            fleet.finish(place, user, tokens)
        elif action == "tell":
            fleet.tell(place)
        elif action == "hear":
            fleet.hear(number, place)
        elif action == "deliver":
            fleet.deliver(place)
        elif action == "die" and deaths + 1 < len(fleet.places):
            deaths += not place.dead
            fleet.die(number, place)
        elif action == "leave" and deaths + 1 < len(fleet.places):
            deaths += not place.dead and not place.away
            fleet.leave(number, place)
        elif action == "return":
            fleet.come_back(number, place)
        fleet.check()
    fleet.play_to_the_end(50)
    fleet.check()
    if not deaths:
        spent = [place.started if kind == REQUESTS else place.spent for place in fleet.places]
        assert sum(spent) >= amount, "the run ended before its budget was used up"
        for place in fleet.places:
            for user in place.users:
                fleet.finish(place, user, 50)
        fleet.check()
        (use,) = uses_of(fleet)
        assert use.ended_run and use.lost == 0
    fleet.close()


def uses_of(fleet: Fleet) -> tuple[BudgetUse, ...]:
    """What the report says, after the last messages."""
    for number, place in enumerate(fleet.places):
        fleet.tell(place)
        while place.up:
            fleet.hear(number, place)
    return fleet.treasury.uses()


# -------------------------------------------------------------------------------------------------------- the master


def granted(treasury: Treasury, worker: str, spent: int, waiting: int, now_ns: int = NOW) -> int | None:
    grant = treasury.told(worker, Spending(spent=(spent,), waiting=(waiting,)), now_ns)
    return None if grant is None else grant.totals[0]


def test_grants_last_about_a_second() -> None:
    """A worker that comes back at once gets twice as much, one that comes back late half as much."""
    treasury = Treasury((Limit(HERE, REQUESTS, 64_000),), workers=1)
    (first,) = treasury.first("a", NOW).totals
    assert first == 1_000, "a 64th"
    assert granted(treasury, "a", 900, 0, NOW + QUICK_NS // 2) == 3_000
    assert granted(treasury, "a", 2_900, 0, NOW + QUICK_NS) == 7_000
    later = NOW + QUICK_NS + SECOND
    assert granted(treasury, "a", 6_900, 0, later) == 11_000, "just right: the same again"
    assert granted(treasury, "a", 10_900, 0, later + SLOW_NS + 1) == 13_000


def test_nothing_is_granted_to_who_has_enough() -> None:
    treasury = Treasury((Limit(HERE, REQUESTS, 6_400),), workers=1)
    assert treasury.first("a", NOW) == Grant(totals=(100,))
    assert granted(treasury, "a", 10, 0) is None


def test_near_the_end_grants_are_single_and_only_for_who_waits() -> None:
    treasury = Treasury((Limit(HERE, REQUESTS, 12),), workers=2)
    assert treasury.first("a", NOW) == treasury.first("b", NOW) == Grant(totals=(1,))
    assert granted(treasury, "a", 1, 4) == 3, "of the ten that are left a quarter, though four wait"
    assert granted(treasury, "a", 3, 0) is None, "nobody waits: nothing lies idle here that others need"
    total = 3
    while (more := granted(treasury, "a", total, 1)) is not None:
        assert more - total <= 2
        total = more
    assert total == 11, "b has the twelfth"


def test_the_end_comes_when_somebody_waits_and_the_others_have_used_up_theirs() -> None:
    treasury = Treasury((Limit(HERE, REQUESTS, 2),), workers=2)
    treasury.first("a", NOW)
    treasury.first("b", NOW)
    assert treasury.used_up(NOW, None) is None, "all is granted, nothing is spent"
    assert granted(treasury, "a", 1, 0) is None
    assert treasury.used_up(NOW, None) is None, "nobody wants more"
    assert granted(treasury, "a", 1, 1, NOW + 5) is None
    assert treasury.used_up(NOW + 5, None) is None, "b may still send one"
    assert granted(treasury, "b", 1, 0, NOW + 9) is None
    used_up = treasury.used_up(NOW + 10, None)
    assert used_up is not None
    assert (used_up.since_ns, used_up.why) == (NOW + 5, f"budget of channel {HERE} is used up")
    assert treasury.uses() == (BudgetUse(channel=HERE, kind=REQUESTS, amount=2, used=2, ended_run=True),)


@pytest.mark.parametrize(
    ("load_end_ns", "until_ns", "why"),
    [
        (None, PATIENCE_NS, "b thinks for longer than anybody waits for it"),
        (NOW + PATIENCE_NS // 2, PATIENCE_NS // 2, "the load is over anyway: it was the budget that held turns back"),
    ],
)
def test_what_a_worker_does_not_use_holds_up_the_end_for_a_second_at_most(
    load_end_ns: int | None, until_ns: int, why: str
) -> None:
    treasury = Treasury((Limit(HERE, REQUESTS, 2),), workers=2)
    treasury.first("a", NOW)
    treasury.first("b", NOW)
    granted(treasury, "a", 1, 1, NOW)
    assert treasury.used_up(NOW + until_ns - 1, load_end_ns) is None, why
    assert treasury.used_up(NOW + until_ns, load_end_ns) is not None, why


def test_a_lost_workers_grant_is_not_given_back() -> None:
    treasury = Treasury((Limit(HERE, TOKENS, 640),), workers=2)
    assert treasury.first("a", NOW) == treasury.first("b", NOW) == Grant(totals=(10,))
    granted(treasury, "b", 4, 0)
    treasury.lose("b")
    total = 10
    while (more := granted(treasury, "a", total, 1)) is not None:
        total = more
    assert total == 630
    assert treasury.used_up(NOW, None) is not None, "nobody waits for what the dead might still send"
    assert treasury.uses() == (BudgetUse(channel=HERE, kind=TOKENS, amount=640, used=640, lost=6, ended_run=True),)


def test_overshoot_is_charged_to_what_is_left() -> None:
    treasury = Treasury((Limit(HERE, TOKENS, 640),), workers=1)
    treasury.first("a", NOW)
    assert granted(treasury, "a", 600, 1) == 620, "ten granted, 600 spent: half of the rest"
    assert granted(treasury, "a", 900, 1) is None
    assert treasury.used_up(NOW, None) is not None


def test_of_two_limits_the_first_that_is_reached_ends_the_run() -> None:
    limits = (Limit(HERE, TOKENS, 1_000_000), Limit(HERE, REQUESTS, 1))
    treasury, purse = Treasury(limits, workers=1), Purse(limits)
    purse.grant(treasury.first("a", NOW))
    assert purse.take(HERE)
    assert not purse.take(HERE)
    waits = gevent.spawn(purse.wait, HERE)
    gevent.sleep(0)
    spending = purse.spending()
    assert spending == Spending(spent=(0, 1), waiting=(0, 1)), "there are tokens enough"
    treasury.told("a", spending, NOW)
    used_up = treasury.used_up(NOW, None)
    assert used_up is not None and used_up.limit is limits[1]
    purse.wake()
    waits.join(1)


def test_the_live_view_tells_of_the_limit_that_is_nearest_to_its_end() -> None:
    assert Treasury((), workers=1).note() is None
    treasury = Treasury((Limit(HERE, TOKENS, 4_000), Limit("b", REQUESTS, 20), Limit("c", COST, SECOND)), workers=2)
    for worker in "ab":
        treasury.first(worker, NOW)
        treasury.told(worker, Spending(spent=(1_000, 6, 100_000_000), waiting=(0, 0, 0)), NOW)
    assert treasury.note() == "budget of b: 12 of 20 requests"
    treasury.told("a", Spending(spent=(1_000, 6, 600_000_000), waiting=(0, 0, 0)), NOW)
    assert treasury.note() == "budget of c: 0.70 of 1.00 cost"


def test_figures_of_another_plan_are_refused() -> None:
    treasury = Treasury((Limit(HERE, REQUESTS, 2),), workers=1)
    with pytest.raises(ValueError, match="2 figures of 1 limits"):
        treasury.told("a", Spending(spent=(1, 1), waiting=(0, 0)), NOW)


# -------------------------------------------------------------------------------------------------------- the worker


def test_a_channel_without_a_budget_is_free() -> None:
    for purse in (Purse(), Purse((Limit(HERE, REQUESTS, 1),))):
        assert all(purse.take("local") for _ in range(100))
        purse.paid(turn_of(1_000, channel="local"))
        assert purse.spending() is None
    assert not Purse((Limit(HERE, REQUESTS, 1),)).take(HERE), "without a grant nothing is sent"


def test_an_old_grant_changes_nothing() -> None:
    purse = Purse((Limit(HERE, REQUESTS, 9),))
    purse.grant(Grant(totals=(3,)))
    purse.grant(Grant(totals=(1,)))
    assert [purse.take(HERE) is not None for _ in range(4)] == [True, True, True, False]


SPENT = [
    (turn_of(120), (120, 0), "input and output"),
    (turn_of(120, cost=0.25), (120, 250_000_000), "money in billionths"),
    (turn_of(120, status=429), (0, 0), "nobody bills a refusal"),
    (turn_of(120, channel="local"), None, "another channel's"),
]


@pytest.mark.parametrize(("turn", "spent", "why"), SPENT, ids=[why for _, _, why in SPENT])
def test_tokens_and_money_are_counted_when_a_turn_has_ended(
    turn: TurnRecord, spent: tuple[int, int] | None, why: str
) -> None:
    purse = Purse((Limit(HERE, TOKENS, 1_000), Limit(HERE, COST, SECOND)))
    purse.paid(turn)
    told = purse.spending()
    assert (told.spent if told is not None else None) == spent, why
    assert purse.spending() is None, "told once"


def test_more_is_asked_for_before_it_is_needed_and_once() -> None:
    purse = Purse((Limit(HERE, REQUESTS, 1_000),))
    purse.grant(Grant(totals=(10,)))
    asked = []
    for _ in range(10):
        assert purse.take(HERE)
        asked.append(purse.asking.is_set())
        purse.asking.clear()
    assert asked == [False] * 5 + [True, False, False, False, True], "at the half, and when there is nothing left"


def test_who_waits_goes_on_with_a_grant_and_at_the_end_of_the_run() -> None:
    purse, control = Purse((Limit(HERE, REQUESTS, 9),)), RunControl()
    control.on_close.append(purse.wake)
    sent: list[int] = []

    def user(number: int) -> None:
        while not control.closing.is_set():
            if purse.take(HERE):
                sent.append(number)
                return
            purse.wait(HERE)

    users = [gevent.spawn(user, number) for number in range(5)]
    gevent.sleep(0)
    assert purse.asking.is_set()
    assert purse.spending() == Spending(spent=(0,), waiting=(5,))
    assert not purse.asking.is_set(), "or the worker would tell it without end"
    purse.grant(Grant(totals=(2,)))
    gevent.sleep(0)
    assert len(sent) == 2
    assert purse.spending() == Spending(spent=(2,), waiting=(3,))
    control.close(Reason.BUDGET, 0)
    gevent.joinall(users, timeout=5, raise_error=True)
    assert all(one.successful() for one in users) and len(sent) == 2
    control._alarm.close()


def test_a_stopped_greenlet_waits_no_more() -> None:
    purse = Purse((Limit(HERE, REQUESTS, 9),))
    waits = gevent.spawn(purse.wait, HERE)
    gevent.sleep(0)
    waits.kill()
    assert purse.spending() is None


def test_the_hot_path_costs_next_to_nothing() -> None:
    """Two figures of a budget cost well below the microseconds of a request's first byte; without one, less."""
    limits = (Limit(HERE, TOKENS, 10**12), Limit(HERE, REQUESTS, 10**9))
    purse = Purse(limits)
    purse.grant(Grant(totals=(10**12, 10**9)))
    begun = time.perf_counter()
    for _ in range(20_000):
        purse.take(HERE)
    assert (time.perf_counter() - begun) / 20_000 < 50e-6, "generous: a busy machine"


# ---------------------------------------------------------------------------------------------------------- the plan


def test_limits_are_in_whole_units_and_in_the_plans_order() -> None:
    channels = {
        "local": Channel(engine="vllm", model="m"),
        "cloud": Channel(
            engine="vllm",
            model="m",
            price=Price(input=1.0, output=2.0),
            budget=Budget(cost=0.1, tokens=5_000, requests=20),
        ),
        "other": Channel(engine="vllm", model="m", budget=Budget(requests=7)),
    }
    plan = Plan(channels=channels, workloads=(Workload(scenario="x", trace="builtin:short-qa", channel="local"),))
    limits = limits_of(plan)
    assert limits == (
        Limit("cloud", COST, 100_000_000),
        Limit("cloud", TOKENS, 5_000),
        Limit("cloud", REQUESTS, 20),
        Limit("other", REQUESTS, 7),
    )
    assert [limit.written(limit.amount) for limit in limits] == [
        "cost 0.10",
        "5,000 tokens",
        "20 requests",
        "7 requests",
    ]


PRICE = "price = {input = 1.0, output = 2.0}"
HOURLY = "price = {gpu_hour = 2.0}"
RULE = '[[slo]]\nmetric = "cost_per_million_output_tokens"\nmax = 9.0'
TURN_RULE = '[[slo]]\nmetric = "cost"\nstat = "p50"\nmax = 0.1'

FAULTS = [
    ("budget = {}", "", "channel.target.budget: limits nothing; write cost, tokens or requests", "empty"),
    ("budget = {requests = 0}", "", "channel.target.budget.requests: ", "nothing could be sent"),
    ("budget = {tokens = 1.5}", "", "channel.target.budget.tokens: ", "half a token"),
    (f"{PRICE}\nbudget = {{cost = 0}}", "", "channel.target.budget.cost: ", "no money at all"),
    ("budget = {cost = 5.0}", "", "channel.target.budget.cost: can't be counted without a price", "no price"),
    (
        f"{HOURLY}\nbudget = {{cost = 5.0}}",
        "",
        "channel.target.budget.cost: counts tokens, and the channel",
        "by hours",
    ),
    ("", RULE, "slo.0.metric: cost_per_million_output_tokens needs a price, which channel target", "a rule, no price"),
    ("", TURN_RULE, "slo.0.metric: cost needs a price, which channel target does not have", "a turn's rule, no price"),
    (HOURLY, TURN_RULE, "slo.0.metric: cost is a turn's by its tokens", "a turn has no hours"),
    (f"{PRICE}\nbudget = {{cost = 5.0, tokens = 9, requests = 9}}", RULE, None, "all of it"),
    (HOURLY, RULE, None, "hours have a cost per token too"),
    (PRICE, TURN_RULE, None, "by tokens"),
]


@pytest.mark.parametrize(("channel", "more", "fault", "why"), FAULTS, ids=[why for *_, why in FAULTS])
def test_budgets_and_rules_that_nothing_could_count_are_faults_of_the_plan(
    channel: str, more: str, fault: str | None, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        f'[run]\nduration = "3s"\n[channel.target]\nengine = "vllm"\nmodel = "m"\n{channel}\n'
        f'[[workload]]\nscenario = "short-qa"\ntrace = "builtin:short-qa"\n[load]\nusers = 4\n{more}\n',
        encoding="utf-8",
    )
    if fault is None:
        load_plan(path, environ={})
        return
    with pytest.raises(PlanError) as caught:
        load_plan(path, environ={})
    (found,) = caught.value.faults
    assert fault in found, why


def test_a_rule_on_money_may_look_at_a_channel_that_has_a_price(tmp_path: Path) -> None:
    """One of two channels has a price: a rule on both can be judged, one on the other can't."""
    path = tmp_path / "plan.toml"
    text = (
        '[run]\nduration = "3s"\n[channel.a]\nengine = "vllm"\nmodel = "m"\n'
        f'[channel.b]\nengine = "sglang"\nmodel = "m"\n{PRICE}\n[load]\nusers = 4\n'
        + "".join(
            f'[[workload]]\nscenario = "{name}"\ntrace = "builtin:short-qa"\nchannel = "{name}"\n' for name in "ab"
        )
    )
    path.write_text(f'{text}{RULE}\n[[slo]]\nmetric = "cost_per_million_output_tokens"\nmax = 9.0\nchannel = "b"\n')
    load_plan(path, environ={})
    path.write_text(f'{text}{RULE}\nchannel = "a"\n')
    with pytest.raises(PlanError) as caught:
        load_plan(path, environ={})
    (fault,) = caught.value.faults
    assert "needs a price, which channel a does not have" in fault
