"""Cost: the formula with figures worked out by hand, what is billed and what is a guess, and that the sums agree."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import metrics_turns as make
import msgspec
import pytest
import records_sample as sample
from hypothesis import given
from hypothesis import strategies as st
from siege import Siege, check_conserved, plan_text

from infersiege import gate
from infersiege.channels import DIALECTS
from infersiege.channels.accounting import account_tokens
from infersiege.cost import cost_line, cost_of, dearest, gpu_hours_cost, money, priced, settle, tokens_cost
from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import PlanError
from infersiege.metrics.facts import Cut
from infersiege.metrics.summary import summarise
from infersiege.plan import load_plan
from infersiege.plan.schema import Price, Slo
from infersiege.records import (
    Cost,
    ErrorClass,
    Outcome,
    Phase,
    StageResources,
    Summary,
    TokensFrom,
    TurnRecord,
    Verdict,
)
from infersiege.report.rebuild import finish
from infersiege.report.tables import to_text

USAGE, ESTIMATE = TokensFrom.USAGE, TokensFrom.ESTIMATE
RATE = "cost_per_million_output_tokens"
CLOUD = Price(input=3.0, cached=0.3, cache_write=3.75, output=15.0)
"""Per million tokens."""
PLAIN = Price(input=1.0, output=10.0)


def about(value: float) -> Any:
    return pytest.approx(value, rel=1e-12)


# ----------------------------------------------------------------------------------------------------- the formula


@pytest.mark.parametrize(
    ("price", "tokens", "cost", "why"),
    [
        (
            Price(input=0.50, cached=0.05, output=3.00),
            {"prompt_tokens": 20_212, "cached_tokens": 16_298, "output_tokens": 931},
            0.005_564_9,
            "3,914 x 0.50 + 16,298 x 0.05 + 931 x 3.00 = 1,957 + 814.9 + 2,793; cached tokens are not billed twice",
        ),
        (
            CLOUD,
            {"prompt_tokens": 1_000, "cached_tokens": 200, "cache_write_tokens": 700, "output_tokens": 50},
            0.003_735,
            "100 x 3 + 200 x 0.30 + 700 x 3.75 + 50 x 15 = 300 + 60 + 2,625 + 750; writes are billed",
        ),
        (PLAIN, {"prompt_tokens": 1_000_000, "output_tokens": 0}, 1.0, "a million tokens cost the price"),
        (PLAIN, {"prompt_tokens": 0, "output_tokens": 1_000_000}, 10.0, "the same for output"),
        (PLAIN, {"prompt_tokens": 0, "output_tokens": 0}, 0.0, "nothing costs nothing"),
        (
            PLAIN,
            {"prompt_tokens": 1_000, "cached_tokens": 400, "cache_write_tokens": 300, "output_tokens": 0},
            0.001,
            "parts without a price of their own are billed as input",
        ),
        (
            Price(input=3.0, cached=0.0, output=15.0),
            {"prompt_tokens": 1_000, "cached_tokens": 1_000, "output_tokens": 0},
            0.0,
            "a price of 0 is a price",
        ),
        (
            Price(input=3.0, cached=0.3, output=15.0),
            {"prompt_tokens": 100, "cached_tokens": 1_000, "output_tokens": 10},
            0.000_45,
            "more cached than prompt: the fresh part is 0 and not -900 (1,000 x 0.30 + 10 x 15)",
        ),
        (Price(gpu_hour=2.0), {"prompt_tokens": 5, "output_tokens": 5}, None, "paid by the hour, not by tokens"),
        (Price(output=2.0), {"prompt_tokens": 5, "output_tokens": 5}, None, "no price of input: not known, not free"),
    ],
)
def test_cl_06_tokens_times_prices(price: Price, tokens: dict[str, int], cost: float | None, why: str) -> None:
    assert tokens_cost(price, **tokens) == (None if cost is None else about(cost)), why


def answered(dialect: str, *payloads: dict[str, Any]) -> TurnRecord:
    """The record of an answer in this dialect, from its own events."""
    decoder = DIALECTS[dialect].decoder()
    for payload in payloads:
        decoder.feed(json.dumps(payload).encode())
    decoded = decoder.decoded()
    made = make.streamed(0, [100, 200], finish_reason=decoded.finish_reason, http_status=200)
    return msgspec.structs.replace(made, **account_tokens(decoded, 2)._asdict())


CHAT = (
    {"choices": [{"delta": {"content": "a b"}}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 1000,
            "completion_tokens": 50,
            "prompt_tokens_details": {"cached_tokens": 200, "cache_write_tokens": 700},
        },
    },
)
MESSAGES = (
    {
        "type": "message_start",
        "message": {
            "model": "m",
            "usage": {
                "input_tokens": 100,
                "cache_creation_input_tokens": 700,
                "cache_read_input_tokens": 200,
                "output_tokens": 1,
            },
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a b"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 50}},
    {"type": "message_stop"},
)


@pytest.mark.parametrize(("dialect", "payloads"), [("openai-chat", CHAT), ("anthropic-messages", MESSAGES)])
def test_cl_06_one_bill_whatever_the_protocol_calls_its_counts(dialect: str, payloads: Any) -> None:
    """OpenAI's prompt_tokens hold what was cached, Anthropic's input_tokens don't: the same work costs the same."""
    turn = answered(dialect, *payloads)
    assert (turn.prompt_tokens, turn.cached_tokens, turn.cache_write_tokens) == (1000, 200, 700)
    assert cost_of(turn, CLOUD) == (about(0.003_735), USAGE)


def test_cl_06_a_cut_anthropic_answer_is_not_priced_by_the_one_token_it_began_with() -> None:
    turn = answered("anthropic-messages", *MESSAGES[:3])
    assert (turn.output_tokens, turn.tokens_from) == (1, USAGE), "what message_start said"
    cut = msgspec.structs.replace(turn, outcome=Outcome.CANCELLED, chunks=40)
    # 300 + 60 + 2,625 + 40 x 15
    assert cost_of(cut, CLOUD) == (about(0.003_585), ESTIMATE)


# ------------------------------------------------------------------------------------------ told, guessed, not billed


def sent(**changes: Any) -> TurnRecord:
    """An ok turn of 1,000 prompt and 50 output tokens, of which the server told everything."""
    made: dict[str, Any] = {
        "prompt_tokens": 1000,
        "cached_tokens": 0,
        "cache_write_tokens": 0,
        "http_status": 200,
        "asked_prompt_tokens": 900,
        "bytes_out": 4001,
    }
    return make.streamed(0, [100, 200], tokens=50, **(made | changes))


def refusal(error_class: ErrorClass, status: int | None) -> dict[str, Any]:
    """What became of a turn of which the prompt went out whole and nothing came but an error."""
    nothing = ("first_token_ns", "first_answer_ns", "last_token_ns", "finish_reason", "tokens_from", "output_tokens")
    return {
        "outcome": Outcome.FAILED,
        "error_class": error_class,
        "http_status": status,
        "chunks": 0,
        **dict.fromkeys((*nothing, "prompt_tokens", "cached_tokens", "cache_write_tokens")),
    }


@pytest.mark.parametrize(
    ("price", "changes", "cost", "source", "why"),
    [
        (CLOUD, {}, 3_750, USAGE, "1,000 x 3 + 50 x 15, all told"),
        (
            CLOUD,
            {"cached_tokens": None},
            3_750,
            ESTIMATE,
            "how much was cached has its price and is not known: at most",
        ),
        (CLOUD, {"cache_write_tokens": None}, 3_750, ESTIMATE, "so has what was written"),
        (PLAIN, {"cached_tokens": None}, 1_500, USAGE, "cached costs what input costs: it doesn't matter"),
        (
            Price(input=1.0, cached=1.0, output=10.0),
            {"cached_tokens": None, "cache_write_tokens": None},
            1_500,
            USAGE,
            "the same price, written out",
        ),
        (PLAIN, {"tokens_from": ESTIMATE}, 1_500, ESTIMATE, "no usage: output counted by its text"),
        (PLAIN, {"tokens_from": TokensFrom.TOKENIZER}, 1_500, ESTIMATE, "our tokenizer is not the bill's"),
        (PLAIN, {"prompt_tokens": None}, 1_400, ESTIMATE, "the prompt as the trace has it: 900 + 500"),
        (
            PLAIN,
            {"prompt_tokens": None, "asked_prompt_tokens": None},
            1_501,
            ESTIMATE,
            "the prompt by its size: 4,001 bytes are 1,001 tokens, rounded up",
        ),
        (
            PLAIN,
            {"outcome": Outcome.CANCELLED, "finish_reason": None, "tokens_from": None, "output_tokens": None},
            1_020,
            ESTIMATE,
            "an answer cut by us is paid as far as it came: two chunks",
        ),
        (
            PLAIN,
            {
                "outcome": Outcome.FAILED,
                "error_class": ErrorClass.TIMEOUT_FIRST_TOKEN,
                "http_status": None,
                "finish_reason": None,
                "tokens_from": None,
                "output_tokens": None,
                "prompt_tokens": None,
                "chunks": 0,
            },
            900,
            ESTIMATE,
            "nothing came, but the whole prompt went out",
        ),
        (PLAIN, refusal(ErrorClass.STREAM_ERROR, 200), 900, ESTIMATE, "broke inside a 200: it may have been worked on"),
        (
            PLAIN,
            refusal(ErrorClass.OVERLOAD, 200) | {"chunks": 40, "first_token_ns": make.T0},
            1_300,
            ESTIMATE,
            "overloaded after 40 chunks: what came is paid",
        ),
        (
            PLAIN,
            {"outcome": Outcome.FAILED, "error_class": ErrorClass.CONTENT_FILTER, "finish_reason": "content_filter"},
            1_500,
            USAGE,
            "a failure of ours to like it: the server told all its counts",
        ),
    ],
)
def test_cl_06_what_is_not_told_is_estimated_and_told_apart(
    price: Price, changes: dict[str, Any], cost: float, source: TokensFrom, why: str
) -> None:
    """`cost` in millionths."""
    assert cost_of(sent(**changes), price) == (about(cost / 1e6), source), why


@pytest.mark.parametrize(
    ("price", "changes", "why"),
    [
        (None, {}, "no price in the plan"),
        (Price(gpu_hour=2.0, gpus=1), {}, "paid by the hour"),
        (PLAIN, {"outcome": Outcome.FAILED, "http_status": 429}, "refused: nobody bills it"),
        (PLAIN, {"outcome": Outcome.FAILED, "http_status": 500}, "the server's own fault"),
        (PLAIN, {"outcome": Outcome.FAILED, "sent_ns": None, "sent_end_ns": None}, "no connection"),
        (PLAIN, {"outcome": Outcome.FAILED, "sent_end_ns": None}, "broken off while it was sent"),
        (PLAIN, refusal(ErrorClass.CONNECT, None), "a proxy's own 502: it reached no server"),
        (PLAIN, refusal(ErrorClass.TIMEOUT_CONNECT, None), "a proxy that got no connection in time"),
        (PLAIN, refusal(ErrorClass.OVERLOAD, 200), "a full queue, told inside a 200"),
        (PLAIN, refusal(ErrorClass.RATE_LIMIT, 200), "a limit, told inside a 200"),
        (PLAIN, refusal(ErrorClass.AUTH, 200), "a wrong key, told inside a 200"),
        (PLAIN, refusal(ErrorClass.CONTEXT_LENGTH, 200), "too long, told inside a 200"),
        (PLAIN, refusal(ErrorClass.CLIENT_RESOURCE, None), "no descriptor of ours"),
        (PLAIN, {"outcome": Outcome.SKIPPED}, "never sent"),
        (PLAIN, {"outcome": Outcome.LOST}, "nobody saw what became of it"),
    ],
)
def test_what_nobody_bills_has_no_cost(price: Price | None, changes: dict[str, Any], why: str) -> None:
    turn = sent(**changes)
    assert cost_of(turn, price) == (None, None), why
    assert priced(turn, price) is turn


# ------------------------------------------------------------------------------------------------------ properties

PRICE = st.floats(0, 1000) | st.just(0.0)
PRICES = st.builds(Price, input=PRICE, output=PRICE, cached=st.none() | PRICE, cache_write=st.none() | PRICE)
TOKENS = st.integers(0, 10**7)


@given(PRICES, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)
def test_cost_is_never_negative_and_grows_with_what_was_used(
    price: Price, prompt: int, output: int, cached: int, written: int, more: int
) -> None:
    parts = {"cached_tokens": cached, "cache_write_tokens": written}
    cost = tokens_cost(price, prompt_tokens=prompt, output_tokens=output, **parts)
    longer = tokens_cost(price, prompt_tokens=prompt + more, output_tokens=output, **parts)
    wordier = tokens_cost(price, prompt_tokens=prompt, output_tokens=output + more, **parts)
    assert cost is not None and longer is not None and wordier is not None
    assert 0 <= cost <= min(longer, wordier)


@given(PRICES, TOKENS, TOKENS, st.data())
def test_no_split_of_the_prompt_costs_more_than_the_dearest_price(
    price: Price, prompt: int, output: int, data: st.DataObject
) -> None:
    """Nothing is billed twice: parts of the prompt share its tokens."""
    cached = data.draw(st.integers(0, prompt))
    written = data.draw(st.integers(0, prompt - cached))
    dear = max(price.input or 0, price.cached or 0, price.cache_write or 0)
    cost = tokens_cost(
        price, prompt_tokens=prompt, output_tokens=output, cached_tokens=cached, cache_write_tokens=written
    )
    assert cost is not None
    assert cost <= (prompt * dear + output * (price.output or 0)) / 1e6 * (1 + 1e-9)
    if price.cached is None or price.cached <= dear == max(price.input or 0, price.cache_write or 0):
        most = dearest(price, prompt_tokens=prompt, output_tokens=output)
        assert most is not None and cost <= most * (1 + 1e-9), "what a dry run promises as the most"


@given(st.lists(make.turns(), max_size=25), st.randoms(use_true_random=False))
def test_the_sum_over_all_turns_is_the_cost_of_the_run(drawn: list[TurnRecord], order: random.Random) -> None:
    prices = {"cloud": CLOUD, "local": PLAIN}
    turns = [priced(turn, prices[turn.channel]) for turn in drawn]
    summary = summarise(turns, make.facts())
    costs = [turn.cost for turn in turns if turn.cost is not None]
    assert all(cost >= 0 for cost in costs)
    assert (summary.cost is None) == (not costs)
    if summary.cost is not None:
        assert summary.cost == pytest.approx(sum(costs), rel=1e-9)
        assert summary.cost == pytest.approx(sum(one.total or 0 for one in summary.costs), rel=1e-9)
    for one in summary.costs:
        own = [turn for turn in turns if turn.channel == one.channel and turn.cost is not None]
        assert one.turns == len(own)
        assert one.total == pytest.approx(sum(turn.cost or 0 for turn in own), rel=1e-9)
        assert one.estimated_turns == sum(turn.cost_from is ESTIMATE for turn in own)
    steady = [turn.cost for turn in turns if turn.cost is not None and turn.phase is Phase.STEADY]
    whole = summary.groups[0].cost
    assert (None if whole is None else whole.turns) == (len(steady) or None)
    shuffled = list(turns)
    order.shuffle(shuffled)
    again = summarise(shuffled, make.facts())
    assert (again.cost, again.costs, again.groups[0].cost) == (summary.cost, summary.costs, summary.groups[0].cost)


# ------------------------------------------------------------------------------------------------ summary and rules


def one_run() -> Summary:
    """Cloud: three turns in steady of 1,500 millionths each, one in warm-up, one refused. Local: one turn, no price."""
    turns = [sent(channel="cloud", scenario="agent") for _ in range(2)]
    turns.append(sent(channel="cloud", scenario="chat", tokens_from=ESTIMATE))
    turns.append(sent(channel="cloud", scenario="chat", phase=Phase.WARMUP, due_ns=make.T0 - 1))
    turns.append(sent(channel="cloud", scenario="chat", outcome=Outcome.FAILED, http_status=429, tokens_from=None))
    priced_turns = [priced(turn, PLAIN) for turn in turns]
    return summarise([*priced_turns, sent(channel="local", scenario="chat")], make.facts())


def test_cost_of_turns_run_and_million_tokens() -> None:
    summary = one_run()
    assert summary.cost == about(4 * 0.0015), "warm-up is paid as well"
    assert summary.costs == (
        Cost(channel="cloud", basis="tokens", total=0.006, turns=4, estimated_turns=1, estimated=0.0015),
    )
    groups = {(group.scenario, group.channel): group for group in summary.groups}
    whole, agent, local = groups[None, None], groups["agent", None], groups[None, "local"]
    assert whole.cost is not None and whole.cost.total == about(0.0045) and whole.cost.turns == 3
    # 4,500 millionths for 3 x 50 output tokens
    assert whole.rates[RATE] == about(30.0)
    assert agent.rates[RATE] == about(30.0) and agent.cost is not None and agent.cost.total == about(0.003)
    assert (local.cost, local.rates[RATE], local.distributions["cost"].n) == (None, None, 0)
    spent = whole.distributions["cost"]
    assert (spent.n, spent.missing, spent.unit, spent.p50) == (3, 0, "money", about(0.0015))
    assert any("the cost of 1 of 3 requests is estimated (0.0015 of 0.0045)" in note for note in whole.notes)


def test_failed_and_cut_turns_are_on_the_bill_of_a_million_tokens() -> None:
    cut = sent(outcome=Outcome.CANCELLED, finish_reason=None, tokens_from=None, output_tokens=None)
    turns = [priced(turn, PLAIN) for turn in (sent(), cut)]
    whole = summarise(turns, make.facts()).groups[0]
    # 1,500 + 1,020 millionths for 50 + 2 tokens
    assert whole.rates[RATE] == about(2_520 / 52)


@pytest.mark.parametrize(
    ("slo", "verdict", "why"),
    [
        (Slo(metric="cost", stat="mean", at_most=0.002), Verdict.PASS, "0.0015 a turn"),
        (Slo(metric="cost", stat="mean", at_most=0.001), Verdict.FAIL, "0.0015 a turn"),
        (Slo(metric=RATE, at_most=30.1), Verdict.PASS, "30 for a million"),
        (Slo(metric=RATE, at_most=29.9, channel="cloud"), Verdict.FAIL, "30 for a million"),
        (Slo(metric=RATE, at_most=29.9, channel="local"), Verdict.NO_DATA, "no price is no pass"),
        (Slo(metric="cost", stat="p50", at_most=1.0, channel="local"), Verdict.NO_DATA, "no price is no pass"),
    ],
)
def test_rules_hold_a_run_to_its_cost(slo: Slo, verdict: Verdict, why: str) -> None:
    assert gate.judge((slo,), one_run())[-1].verdict is verdict, why


# -------------------------------------------------------------------------------------------------------- GPU-hours


def local_run(*more: TurnRecord, **changes: Any) -> Summary:
    """Ten steady seconds in which 2 turns of 50 tokens arrive; the run takes 12 s."""
    summary = summarise([sent(), sent(), *more], make.facts(cuts=(Cut(scenario="chat"),)))
    return msgspec.structs.replace(summary, **changes)


def stage(gpus: int | None) -> StageResources:
    return StageResources(stage="s1", gpus=gpus, limit="not clear", limit_reason="")


def test_gpu_hours_cost_their_time_idle_or_not() -> None:
    assert gpu_hours_cost(Price(gpu_hour=3.6), 2, 10 * make.SECOND) == about(0.02)
    summary = settle(local_run(), {"local": Price(gpu_hour=3.6, gpus=2)})
    assert summary.cost == about(3.6 * 2 * 12 / 3600), "the run's 12 s"
    assert summary.costs == (Cost(channel="local", basis="GPU hours", total=summary.cost, gpus=2),)
    whole, chat = summary.groups
    assert whole.cost is not None and whole.cost.total == about(0.02), "the steady 10 s"
    # 0.02 for the 100 tokens that arrived
    assert whole.rates[RATE] == about(200.0)
    assert chat.scenario == "chat" and chat.rates[RATE] == about(200.0), "the only scenario is the whole run"


@pytest.mark.parametrize(
    ("price", "resources", "others", "gpus", "why"),
    [
        (Price(gpu_hour=3.6, gpus=2), (stage(8),), {}, 2, "the plan knows best"),
        (Price(gpu_hour=3.6), (stage(4),), {}, 4, "those that were watched"),
        (Price(gpu_hour=3.6), (stage(4), stage(None), stage(4)), {}, 4, "a stage without series says nothing"),
        (Price(gpu_hour=3.6), (), {}, None, "nobody watched"),
        (Price(gpu_hour=3.6), (stage(4), stage(3)), {}, None, "one fell out: not clear what was paid"),
        (Price(gpu_hour=3.6), (stage(4),), {"b": Price(gpu_hour=1.0)}, None, "two channels: whose are they?"),
        (Price(gpu_hour=3.6), (stage(4),), {"b": PLAIN}, 4, "the other one is paid by tokens"),
    ],
)
def test_whose_gpus_they_are(
    price: Price, resources: tuple[StageResources, ...], others: dict[str, Price], gpus: int | None, why: str
) -> None:
    summary = settle(local_run(resources=resources), {"local": price, **others})
    own = next(cost for cost in summary.costs if cost.channel == "local")
    assert own.gpus == gpus, why
    assert (own.total is None) == (gpus is None)
    if gpus is None:
        whole = summary.groups[0]
        assert (summary.cost, whole.rates[RATE]) == (None, None), "not known is not 0"
        assert any("the cost of local is not known: give price.gpus" in note for note in whole.notes)


def test_scenarios_that_share_gpus_have_no_cost_of_their_own() -> None:
    prices = {"local": Price(gpu_hour=3.6, gpus=2), "spare": Price(gpu_hour=7.2, gpus=1), "cloud": PLAIN}
    others = [sent(scenario="agent", channel=name) for name in ("local", "spare")]
    bought = priced(sent(scenario="faq", channel="cloud"), PLAIN)
    groups = {group.scenario: group for group in settle(local_run(*others, bought), prices).groups if not group.channel}
    assert (groups["chat"].cost, groups["chat"].rates[RATE]) == (None, None), "its GPUs are shared"
    assert (groups["agent"].cost, groups["agent"].rates[RATE]) == (None, None), "one of its two channels is shared"
    assert groups["faq"].rates[RATE] == about(30.0), "it uses no GPU of ours"
    alone = settle(local_run(sent(scenario="agent", channel="spare")), prices).groups
    costs = {group.scenario: group.cost.total for group in alone if group.cost and not group.channel}
    assert costs == {None: about(0.04), "chat": about(0.02), "agent": about(0.02)}, "each has its own"


def test_a_run_paid_in_both_ways() -> None:
    summary = settle(one_run(), {"cloud": PLAIN, "local": Price(gpu_hour=3.6, gpus=2)})
    assert [(cost.channel, cost.basis) for cost in summary.costs] == [("cloud", "tokens"), ("local", "GPU hours")]
    assert summary.cost == about(0.006 + 0.024)
    groups = {(group.scenario, group.channel): group for group in summary.groups}
    whole = groups[None, None]
    assert whole.cost is not None
    assert (whole.cost.basis, whole.cost.total) == ("tokens and GPU hours", about(0.0045 + 0.02))
    assert whole.rates[RATE] is None, "tokens of two bills make no rate"
    assert groups[None, "cloud"].rates[RATE] == about(30.0)
    # 0.02 for the 50 tokens of the one turn
    assert groups[None, "local"].rates[RATE] == about(400.0)
    assert cost_line(summary) == "cost 0.03 (cloud 0.006, local 0.024; 1 of 4 requests estimated)"


def test_how_prices_were_read_is_said() -> None:
    summary = settle(one_run(), {"cloud": PLAIN, "local": None})
    notes = summary.groups[0].notes
    assert "cloud: cached tokens are priced as input, since the plan has no price for them" in notes
    assert "cost leaves out local: no price in the plan" in notes
    assert cost_line(summary) == (
        "cost 0.006 (cloud 0.006; 1 of 4 requests estimated), 30.00 per million output tokens in steady"
    )


def test_without_prices_nothing_is_said_of_cost() -> None:
    summary = local_run()
    assert settle(summary, {"local": None}) == summary
    assert (summary.cost, summary.costs, cost_line(summary)) == (None, (), None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (1234.5, "1,234.50"),
        (0.25, "0.25"),
        (0.5, "0.50"),
        (-0.004, "-0.004"),
        (0.005_564_9, "0.00556"),
        (0.000_000_45, "0.00000045"),
    ],
)
def test_money_is_short_and_has_no_exponent(value: float, text: str) -> None:
    assert money(value) == text


# ---------------------------------------------------------------------------------------------------------- reports


@pytest.mark.parametrize(
    ("price", "line", "cards", "why"),
    [
        (PLAIN, " per million output tokens in steady", ("in steady, by tokens", "output tokens"), "by tokens"),
        (
            Price(gpu_hour=3.6, gpus=2),
            "cost 0.30 (local 0.30), ",
            ("in steady, by GPU hours",),
            "7.2 an hour",
        ),
        (Price(gpu_hour=3.6), "cost unknown (local unknown)", ("the number of GPUs is not known",), "nobody watched"),
        (None, "", (), "no price, no word"),
    ],
)
def test_reports_say_what_a_run_cost(
    price: Price | None, line: str, cards: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    plan = sample.plan()
    local = msgspec.structs.replace(plan.channels["local"], price=price)
    plan = msgspec.structs.replace(plan, channels={"local": local})
    turns = [priced(turn, price) for turn in sample.records(users=4, steady_s=105)]
    run = sample.write_run(tmp_path / "run", turns, plan, steady_s=105)
    summary = finish(run)
    shown, page = to_text(summary, width=160), (run.path / "report.html").read_text(encoding="utf-8")
    said = [text for text in shown.splitlines() if text.startswith("cost ")]
    assert len(said) == bool(line), why
    assert all(line in text for text in said), (why, said)
    for card in cards:
        assert card in page, why
    assert ("Cost per million</div>" in page) == bool(cards)


# ------------------------------------------------------------------------------------------------------------ plans


@pytest.mark.parametrize(
    ("engine", "price", "faults", "why"),
    [
        ("vllm", "input = 0.5, output = 1", (), "by tokens"),
        ("vllm", "input = 0, output = 0", (), "free is a price"),
        ("vllm", "gpu_hour = 2.5", (), "by the hour, of the GPUs that are watched"),
        ("taotoken", "input = 3, cached = 0.3, cache_write = 3.75, output = 15", (), "the whole table"),
        ("vllm", "output = 15.0", ("price.input: is missing: without it",), "half a price gives no cost"),
        ("vllm", "cached = 0.3", ("price.input: is missing", "price.output: is missing"), "nor does a part"),
        ("vllm", "", ("price: holds no price",), "an empty table"),
        ("vllm", "gpus = 2", ("price.gpus: counts only with gpu_hour",), "how many of what?"),
        (
            "vllm",
            "input = 1, output = 1, gpu_hour = 1",
            ("price.gpu_hour: the channel is paid by tokens already (input, output)",),
            "paid twice",
        ),
        ("anthropic", "gpu_hour = 2.5", ("price.gpu_hour: Anthropic is paid by tokens",), "somebody else's GPUs"),
        (
            "openai",
            "input = 2.5e-6, output = 10",
            ("price.input: 2.5e-06 looks like a price per token; prices are per million tokens: write 2.5",),
            "as price lists of gateways have it",
        ),
        ("openai", "input = -1, output = 1", ("price.input: -1 is too small; the least is 0",), "nobody pays us"),
        ("openai", 'input = "$3", output = 1', ("price.input: a string where a number is needed",), "no currency"),
        ("openai", "input = nan, output = 1", ("price.input: nan is not a finite number",), "a hole in a price list"),
    ],
)
def test_prices_in_a_plan(engine: str, price: str, faults: tuple[str, ...], why: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan_text("http://127.0.0.1:1/v1", engine=engine, channel=f"price = {{{price}}}"), encoding="utf-8")
    if not faults:
        assert load_plan(path, environ={}).channels["target"].price is not None, why
        return
    with pytest.raises(PlanError) as caught:
        load_plan(path, environ={})
    assert len(caught.value.faults) == len(faults), (why, caught.value.faults)
    for fault, expected in zip(caught.value.faults, faults, strict=True):
        assert f"channel.target.{expected}" in fault, why


# ---------------------------------------------------------------------------------------------------------- dry run


def lengths(folder: Path, *rows: tuple[int, int]) -> Path:
    """A trace of (prompt, output) tokens."""
    path = folder / "lengths.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(
                {
                    "timestamp": at * 100,
                    "input_length": prompt,
                    "output_length": output,
                    "hash_ids": [at * 10, at * 10 + 1][: -(-prompt // 512)],
                }
            )
            for at, (prompt, output) in enumerate(rows)
        ),
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize(
    ("price", "load", "line", "why"),
    [
        (
            "input = 3.0, output = 15.0",
            'mode = "replay"',
            "cost on target: at most about 0.0135 in all",
            "1,000 and 500 in, 400 and 200 out: 4,500 + 9,000 millionths",
        ),
        (
            "input = 3.0, cache_write = 3.75, output = 15.0",
            'mode = "replay"',
            "cost on target: at most about 0.0146 in all",
            "5,625 + 9,000: all of it might be written to a cache",
        ),
        (
            "input = 3.0, output = 15.0",
            'mode = "closed"\nusers = 1',
            "cost on target: at most about 6.75 for each 1,000 sessions",
            "how many a closed loop plays is the server's affair",
        ),
        ("gpu_hour = 6.0, gpus = 2", 'mode = "replay"', "cost on target: 0.01 for 2 GPUs in the 3s of load", "2 x 6 x"),
        (
            "gpu_hour = 6.0",
            'mode = "replay"',
            "cost on target: 0.005 for each watched GPU in the 3s of load",
            "6 x 3 s",
        ),
    ],
)
def test_a_dry_run_says_what_it_would_cost(
    price: str, load: str, line: str, why: str, siege: Siege, tmp_path: Path
) -> None:
    trace = lengths(tmp_path, (1_000, 400), (500, 200))
    workload = f'scenario = "lengths"\ntrace = "{trace}"'
    text = plan_text("http://127.0.0.1:1/v1", channel=f"price = {{{price}}}", load=load, workload=workload)
    plan = tmp_path / "plan.toml"
    plan.write_text(text, encoding="utf-8")
    code, out = siege.command("run", str(plan), "--dry-run")
    assert (code, line in out) == (0, True), (why, out)


def test_a_dry_run_counts_prompts_of_unknown_length_by_their_size(siege: Siege, tmp_path: Path) -> None:
    trace = tmp_path / "talk.jsonl"
    talk = [{"role": "user", "content": "x" * 4000}, {"role": "assistant", "content": "y"}]
    trace.write_text(json.dumps({"messages": talk}), encoding="utf-8")
    text = plan_text(
        "http://127.0.0.1:1/v1",
        channel="price = {input = 1000.0, output = 0.0}",
        run='duration = "3s"\nstop = {sessions = 1}',
        workload=f'scenario = "talk"\ntrace = "{trace}"\nsalt = false',
    )
    plan = tmp_path / "plan.toml"
    plan.write_text(text.replace('duration = "3s"\n', ""), encoding="utf-8")
    code, out = siege.command("run", str(plan), "--dry-run")
    assert code == 0, out
    # 4,000 characters, four to a token, and what a template adds to a message, at 1,000 for a million
    assert "(1 prompts by their size)" in out and "cost on target: at most about 1.00 in all" in out, out


# ------------------------------------------------------------------------------------------------------- a whole run


@pytest.fixture
def emulator() -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--output-tokens", "20") as process:
        yield process


@pytest.mark.slow
@pytest.mark.alone
def test_every_turn_of_a_run_has_its_cost(siege: Siege, emulator: EmulatorProcess) -> None:
    """From the bytes of a server to summary.json: each turn by the formula, the run as their sum, a rule on top."""
    text = plan_text(
        emulator.base_url,
        channel="price = {input = 3.0, cached = 0.3, output = 15.0}",
        run='duration = "2s"',
        more=f'[[slo]]\nmetric = "{RATE}"\nmax = 0.001',
    )
    ran = siege.run(text, "--gate")
    check_conserved(ran)
    turns = ran.by_outcome(Outcome.OK)
    assert turns
    for turn in turns:
        assert turn.prompt_tokens is not None and turn.cached_tokens is not None and turn.output_tokens is not None
        fresh = turn.prompt_tokens - turn.cached_tokens
        millionths = fresh * 3.0 + turn.cached_tokens * 0.3 + turn.output_tokens * 15.0
        assert (turn.cost, turn.cost_from) == (about(millionths / 1e6), USAGE)
    assert ran.summary.cost == about(sum(turn.cost or 0 for turn in ran.turns))
    rate = ran.summary.groups[0].rates[RATE]
    assert rate is not None and rate > 15.0, "output alone costs 15"
    assert ran.code in (1, 3), "a rule that nobody can keep fails the gate (a busy client makes it invalid)"
