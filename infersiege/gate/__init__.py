"""The gate: rules held against a run, a run held against a baseline, and what comes of both (docs/gate.md).

Pure: nothing here measures, opens a file or knows a clock.
"""

from infersiege.gate.rules import (
    LIMIT_STATS,
    cut_of,
    cuts,
    exit_code,
    judge,
    overall,
    request_limits,
    rule_name,
    validate_slo,
)

__all__ = [
    "LIMIT_STATS",
    "cut_of",
    "cuts",
    "exit_code",
    "judge",
    "overall",
    "request_limits",
    "rule_name",
    "validate_slo",
]
