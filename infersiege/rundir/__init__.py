"""The run directory: the only code that knows its file names, and the shape of plan.json (docs/rundir.md).

One writer, the master of the run; everybody else reads. Rows are appended whole: a failed append is taken back, so that
the file ends with a whole row, and only a crash can leave a torn last line.
"""

from infersiege.rundir.damage import INSTANTS
from infersiege.rundir.directory import RunDirectory
from infersiege.rundir.names import (
    ENGINE_SERIES,
    EVENTS,
    GATE,
    GPU_SERIES,
    JUNIT,
    PLAN,
    REPORT,
    RUNS,
    SERIES,
    SUMMARY,
    TELEMETRY,
    TURNS,
    WINDOWS,
    default_path,
    slug,
)
from infersiege.rundir.planfile import ChannelFacts, PlanFile, StageFacts, StreamFacts
from infersiege.rundir.rows import UNREADABLE, LeftOut

__all__ = [
    "ENGINE_SERIES",
    "EVENTS",
    "GATE",
    "GPU_SERIES",
    "INSTANTS",
    "JUNIT",
    "PLAN",
    "REPORT",
    "RUNS",
    "SERIES",
    "SUMMARY",
    "TELEMETRY",
    "TURNS",
    "UNREADABLE",
    "WINDOWS",
    "ChannelFacts",
    "LeftOut",
    "PlanFile",
    "RunDirectory",
    "StageFacts",
    "StreamFacts",
    "default_path",
    "slug",
]
