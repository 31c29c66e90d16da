"""What the quick samples of one interval gather for one GPU, and what stands in for them where a GPU has no memory."""

from __future__ import annotations

from pathlib import Path

from infersiege_agents.gpu_codes import REASONS
from infersiege_agents.gpu_fields import Values

_SPREADS = (("utilization", ""), ("memory_used", "_bytes"), ("power", "_w"))


class Spread:
    """Least, mean and greatest of what was added."""

    __slots__ = ("count", "least", "most", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = self.most = 0.0

    def add(self, value: float) -> None:
        if not self.count or value < self.least:
            self.least = value
        if not self.count or value > self.most:
            self.most = value
        self.count += 1
        self.total += value

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


class Interval:
    """What the quick samples of one interval gathered for one GPU."""

    __slots__ = ("busy_ns", "reason_bits", "reason_counts", "reasons", "samples", "spreads")

    def __init__(self) -> None:
        self.samples = 0
        self.busy_ns = 0
        self.spreads = {"utilization": Spread(), "memory_utilization": Spread(), "memory_used": Spread(),
                        "power": Spread()}  # fmt: skip
        self.reasons = 0
        self.reason_bits = 0
        self.reason_counts = [0] * len(REASONS)

    def add(self, values: Values) -> None:
        self.samples += 1
        for name, spread in self.spreads.items():
            value = values.get(name)
            if value is not None:
                spread.add(value)
        bits = values.get("clock_reasons")
        if bits is not None:
            self.reasons += 1
            self.reason_bits |= int(bits)
            for number, (_, mask) in enumerate(REASONS):
                self.reason_counts[number] += bool(int(bits) & mask)

    def fields(self) -> dict[str, float | None]:
        fields: dict[str, float | None] = {"samples": self.samples}
        for name, unit in _SPREADS:
            spread = self.spreads[name]
            if spread.count:
                fields[f"{name}_min{unit}"] = spread.least
                fields[f"{name}_mean{unit}"] = spread.mean
                fields[f"{name}_max{unit}"] = spread.most
        fields["memory_utilization_mean"] = self.spreads["memory_utilization"].mean
        if self.reasons:
            fields["clock_reasons"] = self.reason_bits
            for (name, _), count in zip(REASONS, self.reason_counts, strict=True):
                fields[name] = count / self.reasons
        return fields


def host_memory(meminfo: Path) -> dict[str, float]:
    """System memory from /proc/meminfo, bytes; empty when it can't be read."""
    try:
        text = meminfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if name in ("MemTotal", "MemAvailable") and number and number[0].isdigit():
            found[name] = int(number[0]) * 1024.0
    if "MemTotal" not in found or "MemAvailable" not in found:
        return {}
    return {
        "host_memory_total_bytes": found["MemTotal"],
        "host_memory_used_bytes": found["MemTotal"] - found["MemAvailable"],
    }
