"""What turns and runs cost: pure functions of records and prices. The currency is the plan's own, and has no name here.

Protocols count input differently (OpenAI's `prompt_tokens` holds what was read from a cache, Anthropic's `input_tokens`
does not); dialects make one thing of both: `prompt_tokens` is all of the input, `cached_tokens` and
`cache_write_tokens` are parts of it. So there is one formula (CL-06), and nothing is billed twice or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from infersiege.channels.routing import is_worked_on
from infersiege.records import Cost, EarlierAttempt, GroupSummary, Outcome, Summary, TokensFrom, TurnRecord

PER_MILLION = 1_000_000
HOUR_NS = 3_600 * 1_000_000_000
SECOND_NS = 1_000_000_000

BY_TOKENS, BY_GPU_HOURS, BY_BOTH = "tokens", "GPU hours", "tokens and GPU hours"
"""`Cost.basis`."""

_RATE = "cost_per_million_output_tokens"

BYTES_PER_TOKEN = 4
"""Of a request's body: about right for English and, with 3 bytes a character, for Chinese."""


class Prices(Protocol):
    """Prices of one channel (`[channel.NAME.price]`). Per million tokens, or per GPU and hour. None: not given."""

    @property
    def input(self) -> float | None: ...
    @property
    def cached(self) -> float | None: ...
    @property
    def cache_write(self) -> float | None: ...
    @property
    def output(self) -> float | None: ...
    @property
    def gpu_hour(self) -> float | None: ...
    @property
    def gpus(self) -> int | None: ...


class TurnCost(NamedTuple):
    """What one turn cost. Both None: it has no price, or nobody bills it."""

    cost: float | None
    cost_from: TokensFrom | None
    """USAGE: the server told every count that has a price of its own. ESTIMATE: one of them is a guess, on the high
    side."""


def tokens_cost(
    price: Prices, *, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
) -> float | None:
    """Money for so many tokens; None: the channel has no price for tokens.

    (prompt - cached - written) x input + cached x cached price + written x cache_write + output x output. Cached and
    written tokens are parts of the prompt; where a server says that they are more, the rest counts 0 and not less. A
    part without a price of its own is billed as input.
    """
    if price.input is None or price.output is None:
        return None
    fresh = max(prompt_tokens - cached_tokens - cache_write_tokens, 0)
    return (
        fresh * price.input
        + cached_tokens * (price.input if price.cached is None else price.cached)
        + cache_write_tokens * (price.input if price.cache_write is None else price.cache_write)
        + output_tokens * price.output
    ) / PER_MILLION


def billed_output_tokens(turn: TurnRecord) -> int:
    """Output tokens that a turn is priced with: the count, or of an answer that was cut at least its chunks.

    An Anthropic answer has said `output_tokens: 1` at its start, whatever came until it was cut.
    """
    tokens = turn.output_tokens or 0
    return tokens if _complete(turn) else max(tokens, turn.chunks)


def is_billed(turn: TurnRecord) -> bool:
    """Whether a server bills the turn: it was sent whole, and not refused, by whatever means."""
    if turn.sent_end_ns is None or turn.outcome in (Outcome.SKIPPED, Outcome.LOST):
        return False
    begun = turn.chunks > 0 or turn.first_token_ns is not None
    return is_worked_on(turn.error_class, turn.http_status, begun=begun)


def billed_tokens(turn: TurnRecord) -> int:
    """Input and output tokens that a turn used up, by the counts that it is priced with; 0: it is not billed."""
    return _prompt_tokens(turn) + billed_output_tokens(turn) if is_billed(turn) else 0


def cost_of(turn: TurnRecord, price: Prices | None) -> TurnCost:
    """What a turn cost by its tokens.

    Nothing is billed for a turn that was never sent whole, or that was refused (`is_billed`): None. Everything else
    that left is priced, whatever its outcome: an answer that was cut is paid for as far as it came. What the server did
    not tell is estimated: the prompt as the trace gives it, else by its size; the output by its text; an unknown share
    of cached tokens is 0, so that the estimate is not below the bill.
    """
    if price is None or not is_billed(turn):
        return TurnCost(None, None)
    told = turn.prompt_tokens is not None and turn.tokens_from is TokensFrom.USAGE and _complete(turn)
    for count, own in ((turn.cached_tokens, price.cached), (turn.cache_write_tokens, price.cache_write)):
        told = told and (count is not None or own in (None, price.input))
    cost = tokens_cost(
        price,
        prompt_tokens=_prompt_tokens(turn),
        cached_tokens=turn.cached_tokens or 0,
        cache_write_tokens=turn.cache_write_tokens or 0,
        output_tokens=billed_output_tokens(turn),
    )
    if cost is None:
        return TurnCost(None, None)
    return TurnCost(cost, TokensFrom.USAGE if told else TokensFrom.ESTIMATE)


def priced(turn: TurnRecord, price: Prices | None) -> TurnRecord:
    """The same turn with what it cost; the turn itself where there is nothing to tell."""
    found = cost_of(turn, price)
    return turn if found.cost is None else msgspec.structs.replace(turn, cost=found.cost, cost_from=found.cost_from)


def earlier_attempt(attempt: TurnRecord) -> EarlierAttempt:
    """What is kept of an attempt, which has its cost, once another one follows."""
    return EarlierAttempt(
        channel=attempt.channel,
        replica=attempt.replica,
        error_class=attempt.error_class,
        cost=attempt.cost,
        cost_from=attempt.cost_from,
        tokens=billed_tokens(attempt),
        output_tokens=billed_output_tokens(attempt) if is_billed(attempt) else 0,
        bytes_in=attempt.bytes_in,
        bytes_out=attempt.bytes_out,
    )


def _complete(turn: TurnRecord) -> bool:
    """Whether its last counts came: it succeeded, or it said why it ended."""
    return turn.outcome is Outcome.OK or turn.finish_reason is not None


def _prompt_tokens(turn: TurnRecord) -> int:
    if turn.prompt_tokens is not None:
        return turn.prompt_tokens
    if turn.asked_prompt_tokens is not None:
        return turn.asked_prompt_tokens
    return -(-turn.bytes_out // BYTES_PER_TOKEN)


# ------------------------------------------------------------------------------------------------------- the run


def gpu_hours_cost(price: Prices, gpus: int | None, duration_ns: int) -> float | None:
    """gpu_hour x GPUs x hours; None: no such price, or nobody knows how many GPUs there are."""
    if price.gpu_hour is None or gpus is None:
        return None
    return price.gpu_hour * gpus * max(duration_ns, 0) / HOUR_NS


def settle(summary: Summary, prices: Mapping[str, Prices | None]) -> Summary:
    """A summary, whose turns had their own costs, with what GPUs cost by the hour and how prices were read.

    `prices`: of every channel of the plan. A channel that is paid by the hour costs from the run's start to its end,
    idle or not; its steady phase by the steady time. GPUs are `price.gpus`, else those that were watched, where only
    one channel can have meant them. Changes nothing when no channel has a price.
    """
    hourly = {name: price for name, price in sorted(prices.items()) if price is not None and price.gpu_hour is not None}
    gpus = {name: _gpus(name, price, hourly, summary) for name, price in hourly.items()}
    run_ns = summary.ended_ns - summary.started_ns
    costs = (
        *summary.costs,
        *(
            Cost(channel=name, basis=BY_GPU_HOURS, total=gpu_hours_cost(price, gpus[name], run_ns), gpus=gpus[name])
            for name, price in hourly.items()
        ),
    )
    groups = summary.groups
    if hourly:
        groups = tuple(_with_gpus(group, groups, prices, gpus) for group in groups)
    if groups and (read := _how_read(prices)):
        groups = (msgspec.structs.replace(groups[0], notes=(*groups[0].notes, *read)), *groups[1:])
    return msgspec.structs.replace(
        summary, costs=tuple(sorted(costs, key=lambda cost: cost.channel or "")), cost=_whole(costs), groups=groups
    )


def _gpus(name: str, price: Prices, hourly: Mapping[str, Prices], summary: Summary) -> int | None:
    if price.gpus is not None:
        return price.gpus
    watched = {stage.gpus for stage in summary.resources if stage.gpus}
    return watched.pop() if len(watched) == 1 and list(hourly) == [name] else None


def _whole(costs: tuple[Cost, ...]) -> float | None:
    """All channels together; None: none has a price, or of one it isn't known what it cost."""
    totals = [cost.total for cost in costs]
    known = [total for total in totals if total is not None]
    return math.fsum(known) if known and len(known) == len(totals) else None


def _with_gpus(
    group: GroupSummary,
    groups: tuple[GroupSummary, ...],
    prices: Mapping[str, Prices | None],
    gpus: Mapping[str, int | None],
) -> GroupSummary:
    """A group with its part of the GPUs' cost."""
    mine = [name for name in gpus if group.channel in (None, name)]
    if group.scenario is not None:
        mine = [name for name in mine if name in group.channels]
    if not mine:
        return group
    rates = {**group.rates, _RATE: None}
    if group.scenario is not None and any(_shared(name, group.scenario, groups) for name in mine):
        # Nothing tells whose time it was.
        return msgspec.structs.replace(group, cost=None, rates=rates)
    parts = {name: _hours(prices[name], gpus[name], group.steady_duration_ns) for name in mine}
    hours = [part for part in parts.values() if part is not None]
    unknown = [name for name, part in parts.items() if part is None]
    tokens = group.cost
    total = None if unknown else math.fsum((*hours, (tokens.total if tokens is not None else None) or 0.0))
    arrived = (group.rates.get("throughput") or 0.0) * group.steady_duration_ns / SECOND_NS
    if total is not None and arrived and set(group.channels) <= gpus.keys():
        rates[_RATE] = total / arrived * PER_MILLION
    cost = Cost(
        channel=group.channel,
        basis=BY_GPU_HOURS if tokens is None else BY_BOTH,
        total=total,
        turns=tokens.turns if tokens is not None else 0,
        estimated_turns=tokens.estimated_turns if tokens is not None else 0,
        estimated=tokens.estimated if tokens is not None else None,
        gpus=None if unknown else sum(gpus[name] or 0 for name in mine),
    )
    notes = tuple(
        f"the cost of {name} is not known: give price.gpus, the number of its GPUs, or have them watched"
        for name in unknown
    )
    return msgspec.structs.replace(group, cost=cost, rates=rates, notes=group.notes + notes)


def _shared(channel: str, scenario: str, groups: tuple[GroupSummary, ...]) -> bool:
    """Whether another scenario used the channel as well."""
    return any(channel in group.channels and group.scenario not in (None, scenario) for group in groups)


def _hours(price: Prices | None, gpus: int | None, duration_ns: int) -> float | None:
    return None if price is None else gpu_hours_cost(price, gpus, duration_ns)


def _how_read(prices: Mapping[str, Prices | None]) -> list[str]:
    """What a reader must know of prices that were not given."""
    notes = [
        f"{name}: cached tokens are priced as input, since the plan has no price for them"
        for name, price in sorted(prices.items())
        if price is not None and price.input and price.cached is None
    ]
    free = [name for name, price in sorted(prices.items()) if price is None]
    if free and len(free) < len(prices):
        notes.append(f"cost leaves out {', '.join(free)}: no price in the plan")
    return notes


# ------------------------------------------------------------------------------------------------ before and after


def dearest(price: Prices, *, prompt_tokens: int, output_tokens: int) -> float | None:
    """The most that so many tokens can cost: nothing is found in a cache, and what is written to one is all of it."""
    written = 0
    if price.input is not None and price.cache_write is not None and price.cache_write > price.input:
        written = prompt_tokens
    return tokens_cost(price, prompt_tokens=prompt_tokens, output_tokens=output_tokens, cache_write_tokens=written)


def money(value: float) -> str:
    """`1,234.50`, `0.30`, `0.0043`: two decimals, below 1 as many as three significant digits need; no exponent."""
    if abs(value) >= 1 or value == 0:
        return f"{value:,.2f}"
    whole, _, decimals = f"{float(f'{value:.3g}'):.12f}".rstrip("0").partition(".")
    return f"{whole}.{decimals:0<2}"


def cost_line(summary: Summary) -> str | None:
    """What the run cost, on one line: `cost 1.32 (cloud 0.97, local 0.35; 12 of 400 requests estimated)`.

    None: no channel has a price.
    """
    if not summary.costs:
        return None
    parts = [f"{cost.channel} {'unknown' if cost.total is None else money(cost.total)}" for cost in summary.costs]
    requests, guessed = sum(cost.turns for cost in summary.costs), sum(cost.estimated_turns for cost in summary.costs)
    doubt = f"; {guessed:,} of {requests:,} requests estimated" if guessed else ""
    rate = summary.groups[0].rates.get(_RATE) if summary.groups else None
    per = "" if rate is None else f", {money(rate)} per million output tokens in steady"
    return f"cost {'unknown' if summary.cost is None else money(summary.cost)} ({', '.join(parts)}{doubt}){per}"
