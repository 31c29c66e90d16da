"""What a plan would send, and what that would cost: counted, not sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from rich.console import Console

from infersiege.cost import HOUR_NS, dearest, gpu_hours_cost, money, tokens_cost
from infersiege.errors import UsageError
from infersiege.plan.schema import Plan, Price
from infersiege.plan.streams import duration_of
from infersiege.plan.values import format_duration
from infersiege.records import TraceChanges
from infersiege.swarm.ledger import workload_key
from infersiege.swarm.source import SessionSource, changed_traces, workload_channel
from infersiege.traces import Conversation, describe

SAMPLE = 200
MINUTE_NS = 60_000_000_000
MOST_COUNTED = 1_000_000
"""Sessions that are counted; of more it is only said that there are more."""


@dataclass(slots=True)
class Volume:
    """What some sessions ask of one channel."""

    turns: int = 0
    prompt_tokens: int = 0
    repeated_tokens: int = 0
    """Of these, what the turn before in the session had sent already: a cache could hold it."""
    output_tokens: int = 0
    """At most."""
    largest: int = 0
    """Tokens of the turn that asks for most, prompt and longest answer."""
    smallest: int | None = None
    """The same of the one that asks for least."""
    guessed: int = 0
    """Turns whose prompt has no known length: a token for every few bytes."""


@dataclass(slots=True)
class Sample:
    """The first sessions of a plan, and how many there will be."""

    sessions: int = 0
    by_channel: dict[str, Volume] = field(default_factory=dict)
    changes: dict[str, TraceChanges] = field(default_factory=dict)
    """What is not played as the traces have it, by `workload_key`."""
    sessions_in_all: int | None = None
    """Of the whole run; None: the answers decide."""

    @property
    def factor(self) -> float | None:
        """The run, in samples; None: not known."""
        return self.sessions_in_all / self.sessions if self.sessions and self.sessions_in_all is not None else None


def dry_run(plan: Plan, console: Console) -> None:
    """Print arrivals, turns, tokens and cost, from the first sessions of the plan's own sequence."""
    source = SessionSource(plan, place=0, members=1)
    check_rate_limits(plan, source)
    for workload, trace in zip(plan.workloads, source.traces, strict=True):
        console.print(f"{workload.scenario}: {describe(trace).line()}", highlight=False, markup=False)
    sample = sampled(plan, source)
    volumes = list(sample.by_channel.values())
    accounts = source.accounts({}, sample.changes)
    turns, guessed = sum(one.turns for one in volumes), sum(one.guessed for one in volumes)
    prompt, output = sum(one.prompt_tokens for one in volumes), sum(one.output_tokens for one in volumes)
    console.print(
        f"first {sample.sessions} sessions: {turns} turns, about {prompt:,} prompt and at most {output:,} output tokens"
        + (f" ({guessed} prompts by their size)" if guessed else ""),
        highlight=False,
    )
    changed = (f"first {sample.sessions} sessions: {line}" for line in changed_traces(accounts, plan))
    for line in (*changed, _in_all(sample, turns), *expected_cost(plan, sample), *expected_waits(plan, sample)):
        console.print(line, highlight=False, markup=False)


def _in_all(sample: Sample, turns: int) -> str:
    if not sample.sessions:
        return "sessions in all: none is due within the duration"
    if sample.factor is None:
        return "sessions in all: as many as the users get through in the duration"
    more = "at least " if sample.sessions_in_all == MOST_COUNTED else ""
    return f"sessions in all: {more}{sample.sessions_in_all:,}, about {turns * sample.factor:,.0f} turns"


def sampled(plan: Plan, source: SessionSource) -> Sample:
    """What the first sessions of the plan's sequence, over all workers, ask of each channel."""
    found = Sample()
    for ticket in islice(source.tickets(), SAMPLE):
        found.sessions += 1
        workload = plan.workloads[ticket.workload]
        volume = found.by_channel.setdefault(source.channel_of(ticket)[0], Volume())
        key = workload_key(workload.scenario, workload_channel(plan, workload))
        changed = _count(volume, source.conversation(ticket))
        found.changes[key] = found.changes.get(key, TraceChanges()).plus(changed)
    found.sessions_in_all = _sessions(plan, source)
    return found


def _count(volume: Volume, conversation: Conversation) -> TraceChanges:
    """Add what a session asks for; returns what of it is not played as the trace has it."""
    fresh = {line.first_turn for line in conversation.lines if not line.inherits}
    sent: dict[int | None, int] = {}
    capped = clipped = cut_ns = 0
    for turn in conversation.outlines():
        if turn.too_long:
            continue
        prompt = turn.prompt_tokens
        before = 0 if turn.index in fresh else sent.get(turn.parent, 0)
        sent[turn.index] = prompt
        volume.turns += 1
        volume.guessed += turn.asked_prompt_tokens is None
        volume.prompt_tokens += prompt
        volume.repeated_tokens += min(before, prompt)
        volume.output_tokens += turn.max_tokens
        asked = prompt + turn.max_tokens
        volume.largest = max(volume.largest, asked)
        volume.smallest = asked if volume.smallest is None else min(volume.smallest, asked)
        capped, cut_ns = capped + turn.delay_capped, cut_ns + turn.delay_cut_ns
        clipped += turn.clipped_tokens > 0
    too_long = conversation.turns - len(sent)
    return TraceChanges(
        capped_turns=capped,
        capped_sessions=int(capped > 0),
        capped_ns=cut_ns,
        clipped_turns=clipped,
        clipped_sessions=int(clipped > 0),
        too_long_turns=too_long,
        too_long_sessions=int(too_long > 0),
    )


def _sessions(plan: Plan, source: SessionSource) -> int | None:
    """Sessions of the whole run; None: the answers decide."""
    if plan.run.stop is not None and plan.run.stop.sessions is not None:
        return plan.run.stop.sessions
    if any(stream.load.mode == "closed" for stream in source.streams):
        return None
    return sum(1 for _ in islice(source.tickets(), MOST_COUNTED))


# ------------------------------------------------------------------------------------------------------------ cost


def ahead(plan: Plan, source: SessionSource) -> list[str]:
    """What a plan of which nothing was counted yet costs, and how long its rate limits make it, for those who are about
    to run it."""
    if all(channel.price is None and channel.rate_limit is None for channel in plan.channels.values()):
        return []
    sample = sampled(plan, source)
    return [*(f"expected {line}" for line in expected_cost(plan, sample)), *expected_waits(plan, sample)]


def expected_waits(plan: Plan, sample: Sample) -> list[str]:
    """How long the turns take at least under each channel's rate limit; empty: there is none.

    Of a hybrid channel's parts only the one at which sessions begin is known before the run.
    """
    lines = []
    for name, channel in plan.channels.items():
        limit, volume = channel.rate_limit, sample.by_channel.get(name)
        if limit is None or volume is None or not volume.turns:
            continue
        factor, whole = sample.factor, f"the {volume.turns * (sample.factor or 0):,.0f} turns of the run take"
        if factor is None:
            factor = 1000 / sample.sessions
            whole = f"1,000 sessions, {volume.turns * factor:,.0f} turns, take"
        takes: list[tuple[float, str]] = []
        if limit.requests_per_minute is not None:
            minutes = volume.turns * factor / limit.requests_per_minute
            takes.append((minutes, f"{limit.requests_per_minute:,} requests a minute"))
        if limit.tokens_per_minute is not None:
            minutes = volume.prompt_tokens * factor / limit.tokens_per_minute
            takes.append((minutes, f"{limit.tokens_per_minute:,} tokens a minute"))
        minutes, limited = max(takes)
        # What the first moments may send is there before the first minute is over.
        minutes = max(0.0, minutes - limit.burst_ns / MINUTE_NS)
        line = f"rate limit of {name}: {whole} {_minutes(minutes)} at least ({limited})"
        duration_ns = duration_of(plan)
        if sample.factor is not None and duration_ns is not None and minutes * MINUTE_NS > duration_ns:
            line += f", which is more than the {format_duration(duration_ns)} of the load: turns will wait"
        lines.append(line)
        most = limit.tokens_per_minute
        if most is not None and volume.largest > most:
            lines.append(
                f"rate limit of {name}: turns of up to {volume.largest:,} tokens, prompt and longest answer, are not "
                f"sent: it gives {most:,} in a minute"
            )
    return lines


def check_rate_limits(plan: Plan, source: SessionSource) -> None:
    """Raises UsageError where no turn of the first sessions fits into a channel's tokens of a minute."""
    limited = {name: one.rate_limit for name, one in plan.channels.items() if one.rate_limit is not None}
    if all(limit.tokens_per_minute is None for limit in limited.values()):
        return
    volumes = sampled(plan, source).by_channel
    for name, limit in limited.items():
        most, volume = limit.tokens_per_minute, volumes.get(name, Volume())
        if most is not None and volume.smallest is not None and volume.smallest > most:
            raise UsageError(
                f"channel.{name}.rate_limit.tokens_per_minute = {most}: no turn can be sent: each asks for "
                f"{volume.smallest:,} tokens or more, prompt and longest answer",
                hint="raise the limit if the account allows more, or lower max_tokens",
            )


def _minutes(minutes: float) -> str:
    return f"{minutes * 60:.0f} s" if minutes < 2 else f"{minutes:,.0f} min"


def expected_cost(plan: Plan, sample: Sample) -> list[str]:
    """What the run will cost at most, a line for each channel that has a price; empty: none has."""
    lines = []
    # What overflows or fails over is known afterwards only; counting all of it at its first part would hide the cloud.
    later = {
        part.channel: name
        for name, hybrid in plan.hybrids.items()
        if hybrid.policy in ("overflow", "failover")
        for part in hybrid.parts[1:]
    }
    for name, channel in plan.channels.items():
        if channel.price is not None and channel.price.gpu_hour is not None:
            lines.append(f"cost on {name}: {_by_hours(channel.price, duration_of(plan))}")
        elif channel.price is not None:
            known = _by_tokens(channel.price, sample.by_channel.get(name, Volume()), sample)
            if name in later:
                known = f"not known before the run; it depends on what {later[name]} sends there"
            cap = None if channel.budget is None else channel.budget.cost
            limited = "" if cap is None else f"; its budget ends the run at {money(cap)}"
            lines.append(f"cost on {name}: {known}{limited}")
    return lines


def _by_tokens(price: Price, volume: Volume, sample: Sample) -> str:
    tokens = {"prompt_tokens": volume.prompt_tokens, "output_tokens": volume.output_tokens}
    most = dearest(price, **tokens)
    if most is None or not sample.sessions:
        return "not known"
    factor, whole = sample.factor, "in all"
    if factor is None:
        factor, whole = 1000 / sample.sessions, "for each 1,000 sessions of the run"
    elif sample.sessions_in_all == MOST_COUNTED:
        whole = "or more in all"
    line = f"at most about {money(most * factor)} {whole} (nothing found in a cache, answers as long as allowed)"
    if price.cached is None or not volume.repeated_tokens:
        return line
    written = volume.prompt_tokens - volume.repeated_tokens if price.cache_write is not None else 0
    kept = tokens_cost(price, **tokens, cached_tokens=volume.repeated_tokens, cache_write_tokens=written)
    return f"{line}; {money((kept or 0.0) * factor)} when each turn finds the one before it in the cache"


def _by_hours(price: Price, duration_ns: int | None) -> str:
    gpus = "each watched GPU" if price.gpus is None else f"{price.gpus} GPU{'s' if price.gpus > 1 else ''}"
    cost = gpu_hours_cost(price, price.gpus or 1, HOUR_NS if duration_ns is None else duration_ns)
    span = "an hour" if duration_ns is None else f"the {format_duration(duration_ns)} of load"
    return f"{money(cost or 0.0)} for {gpus} in {span}, before the drain"
