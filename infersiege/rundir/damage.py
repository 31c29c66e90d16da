"""What a row of turns.jsonl can't hold, whatever happened in the run: then the file was damaged after it was written.

Times that only contradict one another (a first token before its request was sent) are no damage: a clock that is
stepped during a turn does that. They are counted, and the figures that they would give are missing (metrics.validity).
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from infersiege.metrics.histogram import bucket_of
from infersiege.records import TurnRecord

_DAY_NS: Final = 86_400_000_000_000
SECOND_NS: Final = 1_000_000_000
_LAST_BUCKET: Final = bucket_of((1 << 63) - 1)

Span = tuple[int, int]
"""(earliest, latest) instant that a row may have, in ns since the Unix epoch."""


def span_of_run(created_ns: int, ended_ns: int | None) -> Span:
    """A day before the run was made to a day after its end: no clock is that wrong. Without an end: a year."""
    return created_ns - _DAY_NS, (created_ns + 366 * _DAY_NS if ended_ns is None else ended_ns + _DAY_NS)


_COUNTS: Final = (
    "turn",
    "attempts",
    "chunks",
    "coalesced",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "first_chunk_tokens",
    "first_token_slack_ns",
    "connect_duration_ns",
    "tls_duration_ns",
    "server_ttft_ns",
)
_INSTANTS: Final = (
    "due_ns",
    "attempt_ns",
    "sent_ns",
    "sent_end_ns",
    "first_byte_ns",
    "first_token_ns",
    "first_answer_ns",
    "last_token_ns",
    "closed_ns",
)
_counts_of = attrgetter(*_COUNTS)
_instants_of = attrgetter(*_INSTANTS)


def damage_of(turn: TurnRecord, span: Span) -> str | None:
    """What is impossible about a row of a run that took place in `span`, as one sentence; None: nothing."""
    for value in _counts_of(turn):
        if value is not None and value < 0:
            name = _COUNTS[_counts_of(turn).index(value)]
            return f"{name} is {value}"
    low_ns, high_ns = span
    for at_ns in _instants_of(turn):
        if at_ns is not None and not low_ns <= at_ns <= high_ns:
            name = _INSTANTS[_instants_of(turn).index(at_ns)]
            return f"{name} is {at_ns}, which is more than a day from the run"
    gaps, seconds = turn.gaps, turn.chunks_by_second
    if gaps and (min(gaps) < 0 or max(gaps) > _LAST_BUCKET or min(gaps.values()) < 0):
        return "gaps has a bucket or a count that no gap can have"
    if seconds and min(seconds.values()) < 0:
        return "chunks_by_second has a negative count"
    if seconds and not low_ns <= min(seconds) * SECOND_NS <= max(seconds) * SECOND_NS <= high_ns:
        return "chunks_by_second has a second that is more than a day from the run"
    return None
