"""What a probe shows, and how loads are climbed: pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

ERROR_MS = 1.0
"""Times that may be further off than this (p99) are no times of the server's."""
COALESCED = 0.02
"""More chunks than this without a gap of their own are too many."""
DELIVERED = 0.95
SERVER_BUSY = 0.9
"""The null server's own use of a core, above which a failed probe says nothing about the client."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One load, for one window of time."""

    users: int
    asked_per_s: float | None
    """Tokens that the server was to send; None: it answers as fast as it is asked."""
    tokens_per_s: float
    turns_per_s: float
    failed: int
    example: str | None
    errors_ms: tuple[float, ...]
    """Of first tokens, rising: distance from the server's own stamps, and the width of the doubt."""
    coalesced_share: float
    client_cpu: float
    client_wait: float
    client_lag_p99_ms: int
    server_cpu: float
    server_wait: float
    server_late_p99_ms: float

    @property
    def error_p99_ms(self) -> float | None:
        """None: no first token came in the window. Of few it is the second largest at least, or the largest."""
        n = len(self.errors_ms)
        return self.errors_ms[min(n - 1, math.ceil(0.99 * n) - 1)] if n else None

    @property
    def fault(self) -> str | None:
        """Why its times are not right, in words; None: they are."""
        error_ms = self.error_p99_ms
        if self.failed:
            return f"{self.failed} requests failed ({self.example})"
        if self.asked_per_s is not None and self.tokens_per_s < DELIVERED * self.asked_per_s:
            return f"{self.tokens_per_s:,.0f} of {self.asked_per_s:,.0f} tokens/s arrived"
        if error_ms is not None and error_ms > ERROR_MS:
            return f"first tokens may be {error_ms:.1f} ms off (p99)"
        if self.coalesced_share > COALESCED:
            return f"{self.coalesced_share:.1%} of the chunks have no time of their own"
        return None

    @property
    def limited_by(self) -> str:
        """Who was the limit: `client` unless the server had no time left, or was late by itself."""
        if self.failed and self.example is not None and "file" in self.example:
            return "descriptors"
        used = self.server_cpu + self.server_wait
        busier = used > SERVER_BUSY and self.client_cpu + self.client_wait < SERVER_BUSY
        return "server" if busier or (used > SERVER_BUSY and self.server_late_p99_ms > 10) else "client"


def error_ms(first_ns: int, slack_ns: int, sent_ns: tuple[int, int]) -> float:
    """How far a first token's time may be from the truth, in ms; both clocks are CLOCK_MONOTONIC.

    `sent_ns`: the server's readings before and after its `send()`; anywhere between them is right, before as well as
    behind them is wrong. `slack_ns`: width of the doubt that the client itself has.
    """
    before_ns, after_ns = sent_ns
    return (max(0, first_ns - after_ns, before_ns - first_ns) + slack_ns) / 1e6


class Climbed(NamedTuple):
    """How far a climb came."""

    good: Probe | None
    """The heaviest load whose times were right."""
    ended: str
    """What ended it: client, server, descriptors, end of scale, time."""
    last_bad: Probe | None = None
    """The probe that failed last, at a load above `good`; None: no load above it failed."""


def climb(steps: Sequence[int], probe: Callable[[int], Probe | None], *, again: int = 1) -> Climbed:
    """Load after load until one fails `1 + again` times in a row, or there is no time for another probe (None).

    Again, because a neighbour on the machine spoils a probe of two seconds easily.
    """
    good: Probe | None = None
    for users in steps:
        bad: Probe | None = None
        for _ in range(1 + again):
            found = probe(users)
            if found is None:
                return Climbed(good, "time", bad)
            if found.fault is None:
                good, bad = found, None
                break
            bad = found
        if bad is not None:
            return Climbed(good, bad.limited_by, bad)
    return Climbed(good, "end of scale")
