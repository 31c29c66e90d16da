"""Everything that `infersiege doctor` looks at, line by line, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from infersiege.doctor import targets
from infersiege.doctor.examination import examine
from infersiege.doctor.findings import Check, Verdict, fit
from infersiege.doctor.host import examine_host
from infersiege.doctor.redis import examine_redis
from infersiege.doctor.telemetry import examine_telemetry
from infersiege.doctor.tools import sends_tools
from infersiege.errors import ExitCode, strongest
from infersiege.plan.schema import Plan
from infersiege.redact import Secrets
from infersiege.rundir import ChannelFacts

RUNS = Path("runs")
"""Where run directories are made, unless `--out` says otherwise."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one thing."""

    subject: str
    """Name of a channel (with `#n`: its n-th address), `host`, `telemetry` or `redis`."""
    check: str
    verdict: str
    """ok, warning or fault."""
    seen: str
    hint: str | None


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    verdict: str
    """The worst of all lines."""
    exit_code: ExitCode
    lines: tuple[Line, ...]
    channels: dict[str, ChannelFacts]
    """What a run would write into plan.json, of the channels without a fault."""

    def as_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


def examine_plan(
    plan: Plan, environ: Mapping[str, str], *, out: Path = RUNS, show: Callable[[Line], None] | None = None
) -> Examined:
    """Look at everything; `show` gets each line once its subject is done. Nothing of the plan's targets raises."""
    secrets = Secrets.of(plan, environ)
    lines: list[Line] = []
    codes: set[ExitCode] = set()
    facts: dict[str, ChannelFacts] = {}

    def tell(subject: str, checks: tuple[Check, ...]) -> None:
        for check in checks:
            line = Line(
                subject=subject,
                check=check.name,
                verdict=check.verdict.value,
                seen=fit(check.seen, secrets),
                hint=fit(check.hint, secrets) if check.hint else None,
            )
            lines.append(line)
            if show is not None:
                show(line)

    for name, label, channel in targets(plan):
        tools = sends_tools(plan, name)
        found = examine(label, channel, plan.sampling, environ=environ, plan=plan, channel_name=name, tools=tools)
        tell(label, found.checks)
        if found.facts is not None:
            facts.setdefault(name, found.facts)
        if found.error is not None:
            codes.add(found.error.exit_code)
    tell("host", host := examine_host(plan, environ, out=out))
    if any(check.verdict is Verdict.FAULT for check in host):
        codes.add(ExitCode.TARGET)
    series = examine_telemetry(plan.telemetry, environ)
    tell("telemetry", series.checks)
    if series.error is not None:
        codes.add(series.error.exit_code)
    sessions = examine_redis(plan, environ)
    tell("redis", sessions.checks)
    if sessions.error is not None:
        codes.add(sessions.error.exit_code)
    worst = next((name for name in ("fault", "warning") if any(line.verdict == name for line in lines)), "ok")
    return Examined(verdict=worst, exit_code=strongest(codes), lines=tuple(lines), channels=facts)
