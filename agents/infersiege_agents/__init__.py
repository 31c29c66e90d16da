"""Agents for GPU hosts: NVML and engine metrics (not built yet, see cli.py)."""
