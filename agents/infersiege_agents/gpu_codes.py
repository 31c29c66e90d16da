"""Codes and bits of NVML that nvidia-smi's output and other vendors' tools are put into too. Needs no NVML."""

from __future__ import annotations

PERMISSION, LOST, RESET, UNKNOWN = 4, 15, 16, 999
"""Return codes: no permission, GPU is lost, GPU needs a reset, and a fault without a code of its own."""

REASONS: tuple[tuple[str, int], ...] = (
    ("power_capped", 0x4),
    ("thermal_throttled", 0x20 | 0x40),
    ("hardware_slowdown", 0x8 | 0x80),
)
"""Field of the measurement `gpu` -> the clock-event reasons that it stands for."""
