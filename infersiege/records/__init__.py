"""What a run is made of: sessions and turns, the record of one turn, and every row and message that leaves a process.

All types are frozen. Instants are integer nanoseconds since the Unix epoch on the master's clock, durations carry
`_duration_ns`, absent is None and never 0. The rows are published as JSON Schema in docs/schema/.
"""

from __future__ import annotations

from infersiege.records.messages import (
    Ack,
    Assignment,
    Bye,
    ClockPing,
    Drain,
    Go,
    Grant,
    Hello,
    Lease,
    OpenTurn,
    Ready,
    Refusal,
    Report,
    Segment,
    Spending,
)
from infersiege.records.rows import (
    ClientHealth,
    EarlierAttempt,
    EventRow,
    SeriesRow,
    TurnRecord,
    WindowRow,
)
from infersiege.records.session import (
    BlockText,
    Message,
    Session,
    Turn,
)
from infersiege.records.summary import (
    BudgetUse,
    Cost,
    Counts,
    Distribution,
    GroupSummary,
    RuleResult,
    StageResources,
    Summary,
    TelemetryAccount,
    TraceAccount,
    WorkerSummary,
)
from infersiege.records.words import (
    SCHEMA_VERSION,
    ErrorClass,
    Outcome,
    Phase,
    Reason,
    StampSource,
    TokensFrom,
    Verdict,
)

__all__ = [
    "SCHEMA_VERSION",
    "Ack",
    "Assignment",
    "BlockText",
    "BudgetUse",
    "Bye",
    "ClientHealth",
    "ClockPing",
    "Cost",
    "Counts",
    "Distribution",
    "Drain",
    "EarlierAttempt",
    "ErrorClass",
    "EventRow",
    "Go",
    "Grant",
    "GroupSummary",
    "Hello",
    "Lease",
    "Message",
    "OpenTurn",
    "Outcome",
    "Phase",
    "Ready",
    "Reason",
    "Refusal",
    "Report",
    "RuleResult",
    "Segment",
    "SeriesRow",
    "Session",
    "Spending",
    "StageResources",
    "StampSource",
    "Summary",
    "TelemetryAccount",
    "TokensFrom",
    "TraceAccount",
    "Turn",
    "TurnRecord",
    "Verdict",
    "WindowRow",
    "WorkerSummary",
]
