"""How many turns stand behind a rate: what its share is of, as far as a summary tells.

A rule with `min_samples` asks for so many. Turns that could not have moved the share are none of them: three hundred
that the server refused tell nothing of how the five answers were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from infersiege.records import ErrorClass, GroupSummary


def turns_behind(rate: str, group: GroupSummary) -> int:
    """Steady turns of a cut that a rate of METRICS is over; of `cache_share` and `goodput_share` at most so many.

    Rates by the second see every turn that was started, also those that are still open.
    """
    return _BEHIND.get(rate, _started)(group)


def _started(group: GroupSummary) -> int:
    return group.counts.started


def _ended(group: GroupSummary) -> int:
    """By themselves."""
    return group.counts.ok + group.counts.failed


def _cut_or_ok(group: GroupSummary) -> int:
    return group.counts.ok + group.counts.cancelled


def _ok(group: GroupSummary) -> int:
    return group.counts.ok


def _answered(group: GroupSummary) -> int:
    """With an answer, or with one that had no token."""
    return group.counts.ok + group.errors.get(ErrorClass.NO_OUTPUT.value, 0)


def _checked(group: GroupSummary) -> int:
    return group.checked


_BEHIND: Final[Mapping[str, Callable[[GroupSummary], int]]] = {
    "error_share": _ended,
    "cancelled_share": _cut_or_ok,
    "goodput": _ended,
    "goodput_share": _ended,
    "cache_share": _ok,
    "quality": _checked,
    "collapsed_share": _answered,
}
