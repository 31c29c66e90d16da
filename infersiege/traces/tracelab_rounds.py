"""TraceLab rounds, JSON Lines: one model call a row, with token counts and timed events."""

from __future__ import annotations

from infersiege.errors import TraceError
from infersiege.traces.head import Head
from infersiege.traces.options import Option
from infersiege.traces.source import Source
from infersiege.traces.trace import ReadOptions, Trace

NAME = "tracelab-rounds"

OPTIONS: dict[str, Option] = {}


def sniff(head: Head) -> bool:
    return False


def read(source: Source, options: ReadOptions) -> Trace:
    raise TraceError(f"{source.path}: format {NAME!r} is not read yet")
