"""docs/measurements.md, made from `infersiege_agents.measurements` by `python grafana/measurement_tables.py`."""

from __future__ import annotations

from pathlib import Path

from infersiege_agents.measurements import MEASUREMENTS, Column, Measurement

FILE = Path(__file__).parents[2] / "docs" / "measurements.md"
HEAD = """\
# Measurements in InfluxDB

Made from `infersiege_agents/measurements.py` by `python grafana/measurement_tables.py`; writers, dashboards
([grafana.md](grafana.md)) and this page are tested against that table.

* Every number is a float. What was not measured is absent, never 0.
* Counts are those of one interval, never running totals (but for `infersiege_writer`), so `sum() / interval` is a rate.
* Shares are ratios from 0 to 1.
* Percentiles are made by the master from all turns: read them with `last()`. Their mean says nothing.
* Instants are in ns, UTC. The same tags and instant written again replace what was there.
"""


def text() -> str:
    return HEAD + "".join(_section(one) for one in MEASUREMENTS.values())


def _section(one: Measurement) -> str:
    rows = "".join(_row(column) for column in one.columns)
    return f"""
## `{one.name}`

{one.meaning}

Written by: {one.source}.

| name | kind | unit | meaning |
|---|---|---|---|
{rows}"""


def _row(column: Column) -> str:
    meaning = column.meaning.replace("|", "\\|")
    return f"| `{column.name}` | {column.kind} | {column.unit} | {meaning} |\n"


def main() -> None:
    FILE.write_text(text(), encoding="utf-8")
