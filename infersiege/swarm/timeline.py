"""When a run warms up, measures and stops: one stage, in ns of one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from infersiege.plan.schema import Plan
from infersiege.records import Phase

STAGE = "main"
"""Name of the only stage, until plans can have several."""


def settling_ns(plan: Plan) -> int:
    """From the first arrival to the steady phase: the warm-up, and in a closed loop at least the ramp, since a load
    that is still being built up is not the load that was asked for."""
    load = plan.load
    return max(load.warmup_ns, load.ramp_ns) if load.mode == "closed" else load.warmup_ns


@dataclass(frozen=True, slots=True)
class Timeline:
    """Fixed before the first arrival."""

    start_ns: int
    """First arrival due."""
    steady_ns: int
    """End of the warm-up."""
    load_end_ns: int | None
    """No arrival is due from here on; None: the run ends by work."""

    @classmethod
    def of(cls, plan: Plan, *, start_ns: int) -> Self:
        duration_ns = plan.run.duration_ns
        return cls(
            start_ns=start_ns,
            steady_ns=start_ns + settling_ns(plan),
            load_end_ns=None if duration_ns is None else start_ns + duration_ns,
        )

    def phase_of(self, at_ns: int) -> Phase:
        """The phase in which something that was due at this instant belongs."""
        if self.load_end_ns is not None and at_ns >= self.load_end_ns:
            return Phase.DRAIN
        return Phase.WARMUP if at_ns < self.steady_ns else Phase.STEADY
