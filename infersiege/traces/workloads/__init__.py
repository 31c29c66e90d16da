"""The built-in workloads."""
