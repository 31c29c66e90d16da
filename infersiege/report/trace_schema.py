"""JSON Schema of `traces inspect --json`: `python -m infersiege.report.trace_schema docs/schema/traces` writes it.

tests/test_cli_traces.py holds the committed file to the type, and real output to the file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from infersiege.report.schema import text_of
from infersiege.traces.inspection.describe import Description

NAME = "inspect.schema.json"


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12)."""
    (found,), components = msgspec.json.schema_components((Description,), ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What `infersiege traces inspect --json` prints of one trace",
        **found,
        "$defs": components,
    }


def main(arguments: list[str]) -> None:
    """Write it into the directory that is named."""
    target = Path(arguments[0] if arguments else "docs/schema/traces")
    target.mkdir(parents=True, exist_ok=True)
    (target / NAME).write_text(text_of(schema()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
