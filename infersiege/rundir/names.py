"""The names of a run directory's files, and of run directories themselves."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

PLAN: Final = "plan.json"
TURNS: Final = "turns.jsonl"
WINDOWS: Final = "windows.jsonl"
EVENTS: Final = "events.jsonl"
SUMMARY: Final = "summary.json"
REPORT: Final = "report.html"
JUNIT: Final = "junit.xml"
GATE: Final = "gate.json"
"""The verdict for programs, when somebody gated."""
RECOVERY: Final = "recovery.json"
"""There while a recovery has begun and is not through."""
TELEMETRY: Final = "telemetry"
CLIENTS: Final = "clients.jsonl"
GPU_SERIES: Final = "gpu.jsonl"
ENGINE_SERIES: Final = "engine.jsonl"
SERIES: Final = (GPU_SERIES, ENGINE_SERIES)
"""Series of GPUs and engines, below telemetry/."""

READ: Final = (PLAN, TURNS, WINDOWS, EVENTS, SUMMARY, RECOVERY, *(f"{TELEMETRY}/{name}" for name in (CLIENTS, *SERIES)))
"""What is read of a run, as far as it is there."""

RUNS: Final = Path("runs")
"""Where run directories go unless `--out` names one."""

_SLUG_LENGTH: Final = 60


def slug(name: str) -> str:
    """A run's name as part of a file name: lower case, words joined by `-`, at most 60 characters, never empty."""
    words = re.findall(r"[^\W_]+(?:\.\d+)*", name.lower())
    return "-".join(words)[:_SLUG_LENGTH].strip("-.") or "run"


def run_stem(name: str, now_ns: int) -> str:
    """`<UTC time>-<slug>`: sorts by time."""
    return f"{datetime.fromtimestamp(now_ns // 1_000_000_000, UTC).strftime('%Y%m%dT%H%M%SZ')}-{slug(name)}"


def default_path(name: str, now_ns: int, base: Path = RUNS) -> Path:
    """`runs/<UTC time>-<slug>`, with `-2`, `-3` … when another run of that name began in the same second."""
    stem = run_stem(name, now_ns)
    path = base / stem
    number = 2
    while path.exists():
        path = base / f"{stem}-{number}"
        number += 1
    return path
