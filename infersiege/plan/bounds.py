"""What the keys of a plan have in common: how they are described, and how much is too much."""

from __future__ import annotations

from typing import Any

from msgspec import Meta


def meta(description: str, **extra: Any) -> Meta:
    """Of one key: what it means, and what `plan.keys.Key` reads of it."""
    return Meta(description=description, extra=extra)


LONGEST_NS = 30 * 24 * 3_600_000_000_000
"""Longest of all durations in a plan: 30 days. What is longer is a slip."""
LARGEST = (1 << 63) - 1
"""Largest whole number that our files can hold."""
MANY = 1_000_000_000
"""More sessions, tokens or turns than any run has."""
DEEPEST = 100
"""Tables and lists in one another: far beyond any body that a server takes, and so few that whatever walks through a
plan (JSON, hashes, checks) gets to the bottom."""


def deeper_than(most: int, value: object) -> bool:
    """Whether plain values (dicts, lists) are in one another more than `most` times. Looks level by level, so that no
    depth is too much for it."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, dict | list) for one in level)


DURATION: dict[str, Any] = {"unit": "duration", "at_most": LONGEST_NS}
PER_MILLION: dict[str, Any] = {"unit": "per million tokens", "at_least": 0, "at_most": 1e9}
SPAN: dict[str, Any] = {**DURATION, "above": 0}
"""A duration that must not be 0."""

SECOND_NS = 1_000_000_000
