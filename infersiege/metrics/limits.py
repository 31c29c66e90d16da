"""Limits that more than one rule of a run's validity holds its turns to."""

from __future__ import annotations

from infersiege.metrics.turn import NS_PER_MS

WIDE_SLACK_NS = NS_PER_MS
"""A first token whose arrival is in doubt by more than this counts against the client."""

SHARE = 0.01
"""More turns than this with a doubtful first token, or with a stepped clock, spoil the figures."""

FEW = 3
"""Fewer turns, or seconds, over a limit prove nothing."""


def too_many(part: int, whole: int, share: float = SHARE) -> bool:
    """Whether `part` of `whole` are more than a share, and enough to prove anything. Both are counts of turns."""
    return part >= FEW and part > share * whole
