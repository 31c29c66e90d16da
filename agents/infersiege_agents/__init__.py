"""Agents for GPU hosts: NVML and engine metrics (not built yet, see cli.py)."""

__version__ = "0.1.0"
