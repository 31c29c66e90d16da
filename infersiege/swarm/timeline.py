"""When each stage of a run warms up, measures and stops, in ns of one monotonic clock."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from infersiege.plan.schema import Plan
from infersiege.plan.streams import Span, spans_of
from infersiege.records import Phase
from infersiege.swarm.ledger import Place


@dataclass(frozen=True, slots=True)
class Timeline:
    """Fixed before the first arrival."""

    start_ns: int
    """First arrival due."""
    spans: tuple[Span, ...]
    """Offsets from `start_ns`."""

    @classmethod
    def of(cls, plan: Plan, *, start_ns: int) -> Self:
        return cls(start_ns, spans_of(plan))

    @property
    def load_end_ns(self) -> int | None:
        """No arrival is due from here on; None: the run ends by work."""
        last_ns = self.spans[-1].load_end_ns
        return None if last_ns is None else self.start_ns + last_ns

    def number_of(self, at_ns: int) -> int:
        """Number of the stage at an instant; a pause belongs to the stage before it, and to the first and the last one
        what is before and after them."""
        return max(0, bisect_right(self.spans, at_ns - self.start_ns, key=lambda span: span.start_ns) - 1)

    def place_of(self, at_ns: int) -> Place:
        """Stage and phase in which something that was due at this instant belongs."""
        span, offset_ns = self.spans[self.number_of(at_ns)], at_ns - self.start_ns
        if span.load_end_ns is not None and offset_ns >= span.load_end_ns:
            return Place(span.name, Phase.DRAIN)
        return Place(span.name, Phase.WARMUP if offset_ns < span.steady_ns else Phase.STEADY)

    def stage_at(self, at_ns: int) -> str:
        """Name of the stage at an instant."""
        return self.spans[self.number_of(at_ns)].name

    def ends_at(self, at_ns: int) -> int | None:
        """When a session that arrives at this instant must end, since a pause follows its stage; None: with the run."""
        for span in self.spans[self.number_of(at_ns) :]:
            if span.paused_after and span.load_end_ns is not None:
                return self.start_ns + span.load_end_ns
        return None
