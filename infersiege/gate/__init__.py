"""The gate: rules held against a run, a run held against a baseline, and what comes of both (docs/gate.md).

Pure: nothing here measures, opens a file or knows a clock.
"""

from infersiege.gate.rules import (
    LIMIT_STATS,
    MOST_FAILURES,
    cut_of,
    cuts,
    exit_code,
    judge,
    needed_for,
    overall,
    request_limits,
    rule_name,
)

__all__ = [
    "LIMIT_STATS",
    "MOST_FAILURES",
    "cut_of",
    "cuts",
    "exit_code",
    "judge",
    "needed_for",
    "overall",
    "request_limits",
    "rule_name",
]
