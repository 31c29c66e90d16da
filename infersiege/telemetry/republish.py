"""Writes the rows of a run that is over to InfluxDB again, after its figures have changed: series of hosts came in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from infersiege_agents.errors import AgentError
from infersiege_agents.influx.spool import spool_directory
from infersiege_agents.influx.target import Target
from infersiege_agents.influx.writer import DurableWriter

from infersiege.errors import UsageError
from infersiege.report.rebuild import Rebuilt
from infersiege.rundir import RunDirectory
from infersiege.telemetry.crossed import groups_of, pairs_of, uncounted
from infersiege.telemetry.points import cut_points, run_points

WITHIN_S = 10.0
"""For the database to take them; the rest stays in the spool."""


def write_again(run: RunDirectory, found: Rebuilt, target: Target, environ: Mapping[str, str]) -> str:
    """One line on what became of the rows of infersiege_run. They take the place of those of the run's end.

    Raises UsageError when the spool can't be used.
    """
    pairs = pairs_of(found.windows)
    turns = run.read_turns(span=found.plan.span)
    groups = groups_of(turns, found, uncounted(found.summary, pairs))
    plan = found.plan.typed_plan()
    spool = Path(plan.telemetry.spool) if plan.telemetry.spool else spool_directory(environ)
    writer = DurableWriter(target, spool, source="report")
    try:
        writer.start()
    except (AgentError, OSError) as error:
        raise UsageError(f"the run's rows can't be written to {target.url}: {error}") from None
    rows = [*run_points(found.plan, found.summary, pairs=pairs), *cut_points(found.plan, found.summary, groups)]
    try:
        for row in rows:
            writer.put(row)
    finally:
        counters = writer.close(WITHIN_S)
    if counters.acknowledged == counters.written:
        return f"{len(rows):,} rows of infersiege_run written again to {target.url}"
    said = writer.problem or writer.refusal
    why = f" ({said})" if said else ""
    return (
        f"{counters.written - counters.acknowledged:,} of {counters.written:,} points were not taken by {target.url}"
        f"{why}; they lie in {spool}"
    )
