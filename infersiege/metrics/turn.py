"""What one turn gives to each metric, in ns or tokens; None when it does not give it (docs/metrics.md)."""

from __future__ import annotations

from infersiege.records import Outcome, Reason, TurnRecord

NS_PER_MS = 1_000_000

BURST_NS = 1 * NS_PER_MS
"""Chunks closer than this are not told apart: a proxy or one write held them (ST-24)."""


def _span(start_ns: int | None, end_ns: int | None) -> int | None:
    """A time that really passed. An end at or before its start is a broken clock, not a time of 0 (ST-25)."""
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        return None
    return end_ns - start_ns


def ttft(turn: TurnRecord) -> int | None:
    return _span(turn.sent_ns, turn.first_token_ns)


def ttfa(turn: TurnRecord) -> int | None:
    return _span(turn.sent_ns, turn.first_answer_ns)


def tpot(turn: TurnRecord) -> float | None:
    first, last, tokens = turn.first_token_ns, turn.last_token_ns, turn.output_tokens
    if first is None or last is None or tokens is None:
        return None
    after_first = tokens - (turn.first_chunk_tokens or 1)
    if tokens < 2 or after_first < 1:
        return None
    # A whole answer in one read or within a millisecond: that is how it was delivered, not how it was generated.
    if last - first < BURST_NS:
        return None
    return (last - first) / after_first


def _end_of_answer(turn: TurnRecord) -> int | None:
    # An answer that was not streamed has no chunks: its text came with the body.
    return turn.last_token_ns if turn.chunks or turn.last_token_ns is not None else turn.closed_ns


def e2e(turn: TurnRecord) -> int | None:
    return _span(turn.sent_ns, _end_of_answer(turn))


def closed(turn: TurnRecord) -> int | None:
    return _span(turn.sent_ns, turn.closed_ns)


def ttft_from_due(turn: TurnRecord) -> int | None:
    return _span(turn.due_ns, turn.first_token_ns)


def e2e_from_due(turn: TurnRecord) -> int | None:
    return _span(turn.due_ns, _end_of_answer(turn))


def lateness(turn: TurnRecord) -> int | None:
    return None if turn.attempt_ns is None else turn.attempt_ns - turn.due_ns


def upload(turn: TurnRecord) -> int | None:
    if turn.sent_ns is None or turn.sent_end_ns is None or turn.sent_end_ns < turn.sent_ns:
        return None
    return turn.sent_end_ns - turn.sent_ns


def time_to_error(turn: TurnRecord) -> int | None:
    return _span(turn.attempt_ns, turn.closed_ns)


def closed_from_due(turn: TurnRecord) -> int | None:
    return _span(turn.due_ns, turn.closed_ns)


def contradicts_itself(turn: TurnRecord) -> bool:
    """Whether something ended before it began, as when the clock was set back in between."""
    first, last, sent, closed = turn.first_token_ns, turn.last_token_ns, turn.sent_ns, turn.closed_ns
    if sent is not None and ((first is not None and first <= sent) or (closed is not None and closed < sent)):
        return True
    return first is not None and last is not None and last < first


ENDS = frozenset({Reason.RUN_END, Reason.STAGE_END})
"""Of a skipped turn: it was asked for only when it is an arrival; later turns were not due yet."""

NOT_ASKED = frozenset({Reason.AFTER_FAILURE, Reason.TOO_LONG, Reason.BUDGET, Reason.INTERRUPTED, Reason.STOPPED_EARLY})
"""Of a skipped turn: the load did not ask for it."""


def was_asked(turn: TurnRecord) -> bool:
    """Whether the load asked for this turn: not the rest of a broken session, nor what came after the end."""
    if turn.outcome is not Outcome.SKIPPED:
        return True
    if turn.reason in ENDS:
        return turn.turn == 0
    return turn.reason not in NOT_ASKED
