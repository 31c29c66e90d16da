"""What rate limits of the plan did to its load, in words."""

from __future__ import annotations

from infersiege.metrics.collect import Collector
from infersiege.metrics.delivery import Delivered
from infersiege.records import RateUse

LONG_AWAY_NS = 200_000_000
"""A Redis that gave no answer for so long made arrivals late: their sessions are claimed a little longer before."""


def held_back(collector: Collector, one: Delivered) -> str | None:
    """What kept turns of a load waiting, as the end of a sentence: rate limits, a Redis that gave no sessions; None:
    neither did."""
    stage, load = one.window.stage, one.load
    channels = {channel for (who, channel, of, _) in collector.cells if of == stage and load.plays(who)}
    uses = [use for use in collector.facts.rate_limits if use.channel in channels and use.held]
    if not uses:
        return _source_away(collector)
    limits = " and ".join(f"the rate limit of {use.channel} ({limit_of(use)})" for use in uses)
    return f": {limits} held turns back; lower the rate, or raise the limit if the account allows more"


def _source_away(collector: Collector) -> str | None:
    away_ns = max((worker.source_away_ns or 0 for worker in collector.facts.workers), default=0)
    if away_ns < LONG_AWAY_NS:
        return None
    return (
        f": Redis gave no sessions for up to {away_ns / 1e9:.1f} s, and arrivals waited for them or were skipped; keep "
        "it running, or play the trace from a file"
    )


def limit_of(use: RateUse) -> str:
    """`60 requests and 100,000 tokens a minute`."""
    figures = ((use.requests_per_minute, "requests"), (use.tokens_per_minute, "tokens"))
    return " and ".join(f"{figure:,} {unit}" for figure, unit in figures if figure is not None) + " a minute"


def about_rate_limits(collector: Collector) -> list[str]:
    """Turns that waited, or were not sent at all, because of the plan's own limits."""
    warnings = []
    for use in collector.facts.rate_limits:
        if use.held:
            warnings.append(
                f"rate limit of {use.channel} held back {use.held:,} turns by up to "
                f"{(use.held_longest_ms or 0.0) / 1e3:.1f} s ({limit_of(use)}); lateness and what is measured from "
                "due hold that time"
            )
        if use.too_large:
            warnings.append(
                f"rate limit of {use.channel}: {use.too_large:,} turns were not sent, since each alone asks for more "
                f"than {use.tokens_per_minute or 0:,} tokens; a smaller max_tokens asks for less"
            )
    return warnings
