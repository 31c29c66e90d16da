"""One turn against the per-request limits of the plan: what goodput counts (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from infersiege.metrics.batch import Batch, Ints
from infersiege.metrics.columns import applying, values_of
from infersiege.metrics.definitions import METRICS, Metric
from infersiege.metrics.facts import RequestLimit
from infersiege.records import Outcome, TurnRecord

Judgement = Literal["good", "violating", "cancelled", "unmeasured", "not_judged"]

JUDGEMENTS: tuple[Judgement, ...] = ("good", "violating", "cancelled", "unmeasured", "not_judged")
"""By the codes of `TurnLimits.judged_all`."""

GOOD, _VIOLATING, _, _UNMEASURED, _NOT_JUDGED = range(len(JUDGEMENTS))


class TurnLimits:
    """The limits that hold for one (scenario, channel, stage). False where there are none: nothing is judged then."""

    __slots__ = ("_limits", "_streamed")

    def __init__(self, limits: Iterable[RequestLimit], key: tuple[str, str, str], *, streamed: bool) -> None:
        """`streamed`: the channel was asked for streams; without them some metrics do not exist."""
        self._limits: tuple[tuple[Metric, float], ...] = tuple(
            (METRICS[limit.metric], limit.at_most * METRICS[limit.metric].per_unit)
            for limit in limits
            if limit.covers(*key)
        )
        self._streamed = streamed

    def __bool__(self) -> bool:
        return bool(self._limits)

    def judged_all(self, batch: Batch) -> Ints:
        """`judged` of each turn of a batch, as places in JUDGEMENTS."""
        return batch.once((self._limits, self._streamed), self._judged_all)

    def _judged_all(self, batch: Batch) -> Ints:
        verdicts = np.full(len(batch), _NOT_JUDGED, dtype=np.int64)
        verdicts[batch.where(lambda kind: kind.outcome is Outcome.FAILED)] = _VIOLATING
        past = np.zeros(len(batch), dtype=np.bool_)
        unmeasured = np.zeros(len(batch), dtype=np.bool_)
        for metric, at_most in self._limits:
            if (metric.needs_stream and not self._streamed) or metric.per_turn is None:
                unmeasured[:] = True
                continue
            found, applies = values_of(batch, metric), applying(batch, metric)
            past |= found.given & (found.values > at_most)
            unmeasured |= ~found.given & (True if applies is None else applies)
        ok = batch.ok
        verdicts[ok] = np.where(past[ok], _VIOLATING, np.where(unmeasured[ok], _UNMEASURED, GOOD))
        # Turns that we cut are few.
        for place in batch.places(batch.where(lambda kind: kind.outcome is Outcome.CANCELLED)):
            verdicts[place] = JUDGEMENTS.index(self.judged(batch.turns[place]))
        return verdicts

    def judged(self, turn: TurnRecord) -> Judgement:
        """A failed turn violates. A cut one does only if it was past a limit already, else it is left out."""
        if turn.outcome is Outcome.FAILED:
            return "violating"
        if turn.outcome is Outcome.CANCELLED:
            bounds = ((m.so_far(turn) if m.so_far is not None else None, at_most) for m, at_most in self._limits)
            past = any(bound is not None and bound > at_most for bound, at_most in bounds)
            return "violating" if past else "cancelled"
        if turn.outcome is not Outcome.OK:
            return "not_judged"
        unmeasured = False
        for metric, at_most in self._limits:
            if metric.needs_stream and not self._streamed:
                unmeasured = True
                continue
            value = metric.per_turn(turn) if metric.per_turn is not None else None
            if value is None:
                unmeasured = unmeasured or metric.applies is None or metric.applies(turn)
            elif value > at_most:
                return "violating"
        return "unmeasured" if unmeasured else "good"
