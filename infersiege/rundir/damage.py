"""What a row of turns.jsonl can't hold, whatever happened in the run: then the file was damaged after it was written.

Times that only contradict one another (a first token before its request was sent) are no damage: a clock that is
stepped during a turn does that. They are counted, and the figures that they would give are missing (metrics.validity).
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

import numpy as np

from infersiege.metrics.batch import Batch, Mask, known
from infersiege.metrics.histogram import bucket_of
from infersiege.records import TurnRecord

_DAY_NS: Final = 86_400_000_000_000
SECOND_NS: Final = 1_000_000_000
_LAST_BUCKET: Final = bucket_of((1 << 63) - 1)
_MOST: Final = 1_000_000_000
"""No turn has more tokens or chunks than this: a damaged byte made the number."""
_LONGEST_NS: Final = 366 * _DAY_NS

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
    "cache_write_tokens",
    "asked_prompt_tokens",
    "asked_output_tokens",
    "first_token_slack_ns",
    "connect_duration_ns",
    "tls_duration_ns",
    "server_ttft_ns",
)
INSTANTS: Final = (
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
"""Fields of a TurnRecord that are instants: ns since the Unix epoch on the master's clock."""
_counts_of = attrgetter(*_COUNTS)
_instants_of = attrgetter(*INSTANTS)


def damage_of(turn: TurnRecord, span: Span) -> str | None:
    """What is impossible about a row of a run that took place in `span`, as one sentence; None: nothing."""
    for value in _counts_of(turn):
        if value is not None and not 0 <= value <= _MOST:
            name = _COUNTS[_counts_of(turn).index(value)]
            if value < 0 or value > _most(name):
                return f"{name} is {value}"
    low_ns, high_ns = span
    for at_ns in _instants_of(turn):
        if at_ns is not None and not low_ns <= at_ns <= high_ns:
            name = INSTANTS[_instants_of(turn).index(at_ns)]
            return f"{name} is {at_ns}, which is more than a day from the run"
    gaps, seconds = turn.gaps, turn.chunks_by_second
    if gaps and not (min(gaps) >= 0 and max(gaps) <= _LAST_BUCKET and _possible(gaps)):
        return "gaps has a bucket or a count that no gap can have"
    if seconds and not _possible(seconds):
        return f"chunks_by_second has {'a negative count' if min(seconds.values()) < 0 else 'more than any second has'}"
    if seconds and not low_ns <= min(seconds) * SECOND_NS <= max(seconds) * SECOND_NS <= high_ns:
        return "chunks_by_second has a second that is more than a day from the run"
    return None


def _most(name: str) -> int:
    return _LONGEST_NS if name.endswith("_ns") else _MOST


def _possible(counts: dict[int, int]) -> bool:
    return min(counts.values()) >= 0 and max(counts.values()) <= _MOST


def damages(batch: Batch, span: Span) -> dict[int, str]:
    """`damage_of` of each turn of a batch that is damaged, by its place there.

    The same as asking turn by turn, but looks at whole columns, and at single turns only where those are suspicious.
    """
    try:
        suspects = batch.places(_suspicious(batch, span))
    except OverflowError:  # a number of more than 63 bits
        suspects = list(range(len(batch)))
    found = ((place, damage_of(batch.turns[place], span)) for place in suspects)
    return {place: damage for place, damage in found if damage is not None}


def _suspicious(batch: Batch, span: Span) -> Mask:
    low_ns, high_ns = span
    marked = np.zeros(len(batch), dtype=np.bool_)
    for name in _COUNTS:
        column = batch.ints(name)
        marked |= known(column) & ((column < 0) | (column > _most(name)))
    for name in INSTANTS:
        column = batch.ints(name)
        marked |= known(column) & ((column < low_ns) | (column > high_ns))
    for name, low, high in (
        ("gaps", 0, _LAST_BUCKET),
        ("chunks_by_second", low_ns / SECOND_NS, high_ns / SECOND_NS),
    ):
        found = batch.sparse(name)
        odd = (found.key < low) | (found.key > high) | (found.count < 0) | (found.count > _MOST)
        marked[found.turn[odd]] = True
    return marked
