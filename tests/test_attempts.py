"""Turns that took several attempts: what each cost is in its own channel's figures, and agrees with the budgets."""

from __future__ import annotations

import random
from collections import Counter

import metrics_turns as make
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.cost import billed_tokens, priced
from infersiege.metrics.summary import summarise
from infersiege.plan.schema import Price
from infersiege.records import EarlierAttempt, ErrorClass, Outcome, TokensFrom, TurnRecord
from infersiege.swarm.budget import COST, TOKENS, UNITS_PER_MONEY, Limit
from infersiege.swarm.player import Tries
from infersiege.swarm.purse import Purse

PRICES = {"local": Price(input=1.0, output=10.0), "cloud": Price(input=3.0, cached=0.3, output=15.0)}
CHANNELS = tuple(PRICES)
SENT = make.turns().filter(lambda turn: turn.outcome not in (Outcome.SKIPPED, Outcome.LOST))


def timed_out(channel: str = "local", prompt_tokens: int = 1_000) -> TurnRecord:
    """The whole prompt went out, and no first token came in time."""
    return priced(
        make.failed(
            0, 50, ErrorClass.TIMEOUT_FIRST_TOKEN, channel=channel, sent_end_ns=make.T0, attempts=1,
            asked_prompt_tokens=prompt_tokens, bytes_in=7, bytes_out=4_000,
        ),
        PRICES[channel],
    )  # fmt: skip


def served(channel: str = "cloud", **changes: object) -> TurnRecord:
    turn = make.streamed(60, [100, 200], tokens=50, channel=channel, prompt_tokens=1_000, cached_tokens=0, **changes)
    return priced(turn, PRICES[channel])


def one_turn(*attempts: TurnRecord) -> TurnRecord:
    tries = Tries()
    tries.retried = len(attempts) > 1
    for attempt in attempts:
        tries.add(attempt)
    record = tries.record()
    assert record is not None
    return record


def test_an_attempt_that_failed_over_stays_in_the_record() -> None:
    turn = one_turn(timed_out(), served())
    assert turn.earlier == (
        EarlierAttempt(
            channel="local", error_class=ErrorClass.TIMEOUT_FIRST_TOKEN, cost=0.001, cost_from=TokensFrom.ESTIMATE,
            tokens=1_000, bytes_in=7, bytes_out=4_000,
        ),
    )  # fmt: skip
    assert turn.channel == "cloud"
    assert turn.cost == pytest.approx(0.00375), "the last attempt's own"
    assert one_turn(served()).earlier == ()
    assert msgspec.json.decode(msgspec.json.encode(turn), type=TurnRecord) == turn


def test_a_row_of_an_older_run_is_read() -> None:
    row = msgspec.to_builtins(served())
    del row["earlier"]
    assert msgspec.convert(row, TurnRecord, strict=False).earlier == ()


def test_failures_and_costs_stand_on_the_channel_that_had_them() -> None:
    summary = summarise([one_turn(timed_out(), served(routed_by="both")), served()], make.facts())
    groups = {group.channel: group for group in summary.groups}
    local, cloud, whole = groups["local"], groups["cloud"], groups[None]
    assert (local.failed_attempts, cloud.failed_attempts) == ({"timeout_first_token": 1}, {})
    assert whole.failed_attempts == local.failed_attempts
    assert (local.counts.started, local.counts.failed, cloud.counts.ok) == (0, 0, 2), "each turn is counted once"
    assert local.cost is not None and local.cost.total == pytest.approx(0.001)
    assert cloud.cost is not None and cloud.cost.total == pytest.approx(0.0075)
    assert local.rates["users"] is None, "its user is a hybrid channel's"
    assert [(one.channel, one.turns, one.estimated_turns) for one in summary.costs] == [
        ("cloud", 2, 0),
        ("local", 1, 1),
    ]
    assert summary.cost == pytest.approx(0.0085)
    assert any("1 attempts failed before" in note and "timeout_first_token 1" in note for note in whole.notes)


@given(st.lists(st.lists(SENT, min_size=1, max_size=4), max_size=8), st.randoms(use_true_random=False))
def test_the_sum_of_all_costs_is_what_budgets_count(drawn: list[list[TurnRecord]], order: random.Random) -> None:
    """Worker's purse: each attempt as it ends. Summary: what the records hold of them."""
    limits = [Limit(name, kind, 10**15) for name in CHANNELS for kind in (COST, TOKENS)]
    purse, turns, count = Purse(limits), [], 0
    for attempts in drawn:
        first = attempts[0]
        mine = [
            priced(msgspec.structs.replace(one, scenario=first.scenario, phase=first.phase), PRICES[one.channel])
            for one in attempts
        ]
        for one in mine:
            purse.paid(one)
            count += one.cost is not None
        turns.append(one_turn(*mine))
    told = purse.spending()
    spent = dict(zip([(one.channel, one.kind) for one in limits], told.spent if told else (0,) * 4, strict=True))
    order.shuffle(turns)
    summary = summarise(turns, make.facts())
    costs = {one.channel: one for one in summary.costs}
    tokens: Counter[str] = Counter()
    for turn in turns:
        tokens[turn.channel] += billed_tokens(turn)
        for earlier in turn.earlier:
            tokens[earlier.channel] += earlier.tokens
    for name in CHANNELS:
        total = costs[name].total if name in costs else 0.0
        assert total == pytest.approx(spent[name, COST] / UNITS_PER_MONEY, abs=1e-9 * (count + 1)), "rounded each time"
        assert tokens[name] == spent[name, TOKENS]
    assert sum(one.turns for one in summary.costs) == count
    assert (summary.cost or 0.0) == pytest.approx(sum(one.total or 0.0 for one in summary.costs))
    assert summary.counts.started == len(turns)
