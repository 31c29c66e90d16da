"""How far the master's clock is from a worker's."""

from __future__ import annotations

from dataclasses import dataclass

from infersiege.records import ClockPing


@dataclass(slots=True)
class ClockEstimate:
    """Master's monotonic clock minus this worker's, from the tightest exchange."""

    offset_ns: int = 0
    uncertainty_ns: int = 1 << 62
    answers: int = 0

    def add(self, ping: ClockPing, received_ns: int) -> None:
        if ping.master_ns is None:
            return
        self.answers += 1
        half_ns = (received_ns - ping.sent_ns) // 2
        if half_ns < self.uncertainty_ns:
            self.offset_ns = ping.master_ns - (ping.sent_ns + half_ns)
            self.uncertainty_ns = half_ns
