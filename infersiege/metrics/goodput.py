"""One turn against the per-request limits of the plan: what goodput counts (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from infersiege.metrics.definitions import METRICS
from infersiege.metrics.facts import RequestLimit
from infersiege.records import Outcome, TurnRecord

Judgement = Literal["good", "violating", "cancelled", "unmeasured", "not_judged"]


class TurnLimits:
    """The limits that hold for one (scenario, channel, stage). False where there are none: nothing is judged then."""

    __slots__ = ("_limits", "_streamed")

    def __init__(self, limits: Iterable[RequestLimit], key: tuple[str, str, str], *, streamed: bool) -> None:
        """`streamed`: the channel was asked for streams; without them some metrics do not exist."""
        self._limits = tuple(
            (METRICS[limit.metric], limit.at_most * METRICS[limit.metric].per_unit)
            for limit in limits
            if limit.covers(*key)
        )
        self._streamed = streamed

    def __bool__(self) -> bool:
        return bool(self._limits)

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
