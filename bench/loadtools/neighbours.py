"""How much of the machine other processes took: a figure of a disturbed run says little."""

from __future__ import annotations

import os
import time
from pathlib import Path

QUIET = 0.05
"""Share of all cores that others may take without a run being called disturbed."""


def busy_s() -> float:
    """CPU seconds of all processes on all cores since boot, and those that the host took away from us (steal)."""
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


class Neighbours:
    """From its making on: what others took, once it is told what was ours."""

    def __init__(self) -> None:
        self._began, self._busy_s = time.monotonic(), busy_s()

    def share(self, ours_s: float) -> float:
        """Of all cores, 0 to 1. `ours_s`: CPU seconds of ours meanwhile."""
        whole_s = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return max(0.0, busy_s() - self._busy_s - ours_s) / whole_s


def wait_for_quiet(longest_s: float) -> bool:
    """Until others took next to nothing for three seconds; False when `longest_s` is over."""
    until = time.monotonic() + longest_s
    while time.monotonic() < until:
        seen = Neighbours()
        time.sleep(3)
        if seen.share(0.0) <= QUIET:
            return True
    return False
