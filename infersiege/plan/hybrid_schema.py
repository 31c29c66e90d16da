"""The keys of a hybrid channel, which is made of others."""

from __future__ import annotations

from typing import Annotated

import msgspec

from infersiege.plan.bounds import MANY, SECOND_NS, SPAN
from infersiege.plan.bounds import meta as _meta

HYBRIDS = 'channel, engine = "hybrid"'
"""Stands for the hybrid channels among the plan's keys; in the file they are written as channels."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """[[channel.NAME.part]]: one of the channels that a hybrid channel is made of."""

    channel: Annotated[str, _meta("A channel of this plan that is not hybrid itself")]
    weight: Annotated[float, _meta("weighted: share of sessions", above=0, at_most=1e6)] = 1.0
    scenarios: Annotated[
        tuple[str, ...], _meta("scenario: those that go here; one part may have none and takes the others")
    ] = ()
    max_in_flight: Annotated[
        int | None,
        _meta(
            "overflow: turns in flight on this channel, over all workers, from which on the next part is used",
            unit="turns",
            at_least=1,
            at_most=MANY,
        ),
    ] = None
    max_ttft_ns: Annotated[
        int | None, _meta("overflow: p95 of this channel's recent TTFT, above which the next part is used", **SPAN)
    ] = None


class Hybrid(msgspec.Struct, frozen=True, kw_only=True):
    """[channel.NAME] with engine = "hybrid": a channel made of others."""

    engine: Annotated[str, _meta("`hybrid`", choices=("hybrid",))] = "hybrid"
    policy: Annotated[
        str,
        _meta(
            "weighted: sessions by weight; scenario: by scenario; overflow: the first part until it is full or slow; "
            "failover: the first part, the next one after an error before the first token",
            choices=("weighted", "scenario", "overflow", "failover"),
        ),
    ]
    parts: Annotated[tuple[Part, ...], _meta("Written [[channel.NAME.part]]: the channels, in order", key="part")]
    window_ns: Annotated[int, _meta("overflow: how far back TTFT counts", **SPAN)] = 10 * SECOND_NS
