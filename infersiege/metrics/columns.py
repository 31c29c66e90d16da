"""What the turns of a batch give to each metric: `metrics.turn` for whole columns.

`tests/test_metrics_columns.py` holds both to each other. A metric without a formula here is asked turn by turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from infersiege.metrics.batch import Batch, Ints, Mask, Values, known
from infersiege.metrics.definitions import Metric
from infersiege.metrics.turn import BURST_NS, ENDS, NOT_ASKED
from infersiege.records import Outcome, TurnRecord


def _span(start_ns: Ints, end_ns: Ints) -> Values:
    """As metrics.turn._span: an end at or before its start gives nothing."""
    # An absent end is the smallest number, and after no start; an absent start wraps around, but is masked.
    return Values(end_ns - start_ns, known(start_ns) & known(end_ns) & (end_ns > start_ns))


def _end_of_answer(batch: Batch) -> Ints:
    last_ns = batch.ints("last_token_ns")
    return np.where((batch.ints("chunks") != 0) | known(last_ns), last_ns, batch.ints("closed_ns"))


def _tpot(batch: Batch) -> Values:
    first_ns, last_ns = batch.ints("first_token_ns"), batch.ints("last_token_ns")
    tokens, first_chunk = batch.ints("output_tokens"), batch.ints("first_chunk_tokens")
    after_first = tokens - np.where(known(first_chunk) & (first_chunk != 0), first_chunk, 1)
    span_ns = last_ns - first_ns
    given = known(first_ns) & known(last_ns) & known(tokens) & (tokens >= 2) & (after_first >= 1) & (last_ns > first_ns)
    given &= span_ns >= BURST_NS
    return Values(span_ns / np.where(given, after_first, 1), given)


def _lateness(batch: Batch) -> Values:
    attempt_ns = batch.ints("attempt_ns")
    return Values(attempt_ns - batch.ints("due_ns"), known(attempt_ns))


def _upload(batch: Batch) -> Values:
    sent_ns, end_ns = batch.ints("sent_ns"), batch.ints("sent_end_ns")
    return Values(end_ns - sent_ns, known(sent_ns) & known(end_ns) & (end_ns >= sent_ns))


def _as_it_is(name: str) -> Callable[[Batch], Values]:
    def column(batch: Batch) -> Values:
        values = batch.ints(name)
        return Values(values, known(values))

    return column


def _between(start: str, end: str) -> Callable[[Batch], Values]:
    return lambda batch: _span(batch.ints(start), batch.ints(end))


_FORMULAS: Mapping[str, Callable[[Batch], Values]] = {
    "ttft": _between("sent_ns", "first_token_ns"),
    "ttfa": _between("sent_ns", "first_answer_ns"),
    "tpot": _tpot,
    "e2e": lambda batch: _span(batch.ints("sent_ns"), _end_of_answer(batch)),
    "closed": _between("sent_ns", "closed_ns"),
    "ttft_from_due": _between("due_ns", "first_token_ns"),
    "e2e_from_due": lambda batch: _span(batch.ints("due_ns"), _end_of_answer(batch)),
    "lateness": _lateness,
    "upload": _upload,
    "connect": _as_it_is("connect_duration_ns"),
    "tls": _as_it_is("tls_duration_ns"),
    "server_ttft": _as_it_is("server_ttft_ns"),
    "time_to_error": _between("attempt_ns", "closed_ns"),
    "prompt_tokens": _as_it_is("prompt_tokens"),
    "output_tokens": _as_it_is("output_tokens"),
}


def values_of(batch: Batch, metric: Metric) -> Values:
    """One value of each turn. The metric must have values of single turns (`per_turn`)."""
    return batch.once(metric.name, _FORMULAS.get(metric.name) or partial(one_by_one, metric))


def priced(batch: Batch) -> Mask:
    """Turns that have a cost by their tokens."""
    return batch.once("priced", _priced)


def _priced(batch: Batch) -> Mask:
    return np.array([turn.cost is not None for turn in batch.turns], dtype=np.bool_)


_APPLIES: Mapping[str, Callable[[Batch], Mask]] = {
    "connect": lambda batch: batch.ints("reused_connection") == 0,
    "tls": lambda batch: known(batch.ints("tls_duration_ns")),
    "server_ttft": lambda batch: known(batch.ints("server_ttft_ns")),
    "cost": priced,
}


def applying(batch: Batch, metric: Metric) -> Mask | None:
    """Turns that can give the metric at all; None: all."""
    rule = metric.applies
    if rule is None:
        return None
    column = _APPLIES.get(metric.name) or partial(_applying_one_by_one, rule)
    return batch.once(f"{metric.name} applies", column)


def _applying_one_by_one(rule: Callable[[TurnRecord], bool], batch: Batch) -> Mask:
    return np.array([rule(turn) for turn in batch.turns], dtype=np.bool_)


def asked(batch: Batch) -> Mask:
    """As metrics.turn.was_asked."""
    return batch.once("asked", _asked)


def _asked(batch: Batch) -> Mask:
    skipped = batch.where(lambda kind: kind.outcome is Outcome.SKIPPED)
    first = batch.where(lambda kind: kind.reason in ENDS) & (batch.ints("turn") == 0)
    later = batch.where(lambda kind: kind.reason not in ENDS and kind.reason not in NOT_ASKED)
    found: Mask = ~skipped | first | later
    return found


def contradicting(batch: Batch) -> Mask:
    """As metrics.turn.contradicts_itself."""
    first, last, sent, closed = (batch.ints(f"{name}_ns") for name in ("first_token", "last_token", "sent", "closed"))
    of_sent = known(sent) & ((known(first) & (first <= sent)) | (known(closed) & (closed < sent)))
    found: Mask = of_sent | (known(first) & known(last) & (last < first))
    return found


def one_by_one(metric: Metric, batch: Batch) -> Values:
    """By the metric's own definition."""
    give = metric.per_turn
    mask = applying(batch, metric)
    if mask is not None and not mask.any():
        return Values(np.zeros(len(batch)), mask)
    found = [None if give is None else give(turn) for turn in batch.turns]
    return Values(
        np.array([0.0 if value is None else value for value in found], dtype=np.float64),
        np.array([value is not None for value in found], dtype=np.bool_),
    )


def in_whole_ns(found: Values) -> Ints:
    """Values as histograms take them: whole, ties to even as `round` does."""
    if found.values.dtype == np.int64:
        return found.values.astype(np.int64, copy=False)
    return np.rint(np.where(found.given, found.values, 0.0)).astype(np.int64)
