"""Preflight of [telemetry]: does the database take points, and give them back with their time?"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from infersiege_agents.influx.server import check

from infersiege.doctor.findings import Check, Verdict
from infersiege.errors import InfersiegeError, TargetError
from infersiege.plan.schema import Telemetry
from infersiege.telemetry.database import database_of


class TelemetryExamination(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out of the plan's InfluxDB."""

    checks: tuple[Check, ...] = ()
    """Empty when the plan names no database."""
    error: InfersiegeError | None = None
    """Why its points would not be taken. None also when it is only down: they wait in the spool until it is up."""


def examine_telemetry(telemetry: Telemetry, environ: Mapping[str, str]) -> TelemetryExamination:
    """Write a point and read it back, as `infersiege-agent check` does. Errors are in the result."""
    try:
        target = database_of(telemetry, environ)
    except InfersiegeError as error:
        return TelemetryExamination(checks=(_failed(error),), error=error)
    if target is None:
        return TelemetryExamination()
    found = check(target)
    if found.down:
        hint = f"the run goes on without it, points wait in the spool; {found.hint}" if found.hint else None
        down = Check(name="influxdb", verdict=Verdict.WARNING, seen=found.seen, hint=hint)
        return TelemetryExamination(checks=(down,))
    if found.ok is False:
        refused = TargetError(found.seen, hint=found.hint)
        return TelemetryExamination(checks=(_failed(refused),), error=refused)
    verdict = Verdict.OK if found.ok else Verdict.WARNING
    return TelemetryExamination(checks=(Check(name="influxdb", verdict=verdict, seen=found.seen, hint=found.hint),))


def _failed(error: InfersiegeError) -> Check:
    return Check(name="influxdb", verdict=Verdict.FAULT, seen=str(error), hint=error.hint)
