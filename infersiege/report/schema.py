"""JSON Schemas of the rows and files of a run directory: `python -m infersiege.report.schema docs/schema` writes them.

tests/test_rundir.py holds the committed files to the types, and real output to the files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from infersiege.gate.baseline import Baseline
from infersiege.records import SCHEMA_VERSION, EventRow, GateFile, SeriesRow, Session, Summary, TurnRecord, WindowRow
from infersiege.rundir import EVENTS, PLAN, SUMMARY, TURNS, WINDOWS, PlanFile
from infersiege.rundir import GATE as VERDICT

FILES: dict[str, tuple[type[msgspec.Struct], str]] = {
    "turns": (TurnRecord, f"One line of {TURNS}"),
    "windows": (WindowRow, f"One line of {WINDOWS}"),
    "events": (EventRow, f"One line of {EVENTS}"),
    "series": (SeriesRow, "One line of telemetry/gpu.jsonl and telemetry/engine.jsonl"),
    "summary": (Summary, SUMMARY),
    "plan": (PlanFile, PLAN),
}
"""Name of the schema file -> (type, what it describes): the files of a run directory."""

TRACES: dict[str, tuple[type[msgspec.Struct], str]] = {
    "session": (Session, "One line of a trace in the format `infersiege`, after its first"),
}
"""The same, of traces."""

GATE: dict[str, tuple[type[msgspec.Struct], str]] = {
    "baseline": (Baseline, "A file of infersiege baseline save"),
    "gate": (GateFile, VERDICT),
}
"""The same, of files that `gate` reads and writes."""


def schemas() -> dict[str, dict[str, Any]]:
    """File name -> JSON Schema (2020-12)."""
    made = {}
    for name, (kind, title) in {**FILES, **TRACES, **GATE}.items():
        (schema,), components = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
        made[f"{name}.schema.json"] = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"{title} (infersiege, schema version {SCHEMA_VERSION})",
            **schema,
            "$defs": components,
        }
    return made


def text_of(schema: dict[str, Any]) -> str:
    """As committed: stable order, one key a line."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> None:
    """Write every schema into the directory that is named."""
    target = Path(arguments[0] if arguments else "docs/schema")
    target.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas().items():
        (target / name).write_text(text_of(schema), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
