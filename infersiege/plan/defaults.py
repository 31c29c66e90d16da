"""What a plan does not say: names, base URLs and dialects of engines, files relative to the plan."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from infersiege.channels import PROFILES
from infersiege.plan.schema import Channel, Plan, Workload

BUILTIN = "builtin:"
"""How the trace of a built-in workload begins."""

CLOUDS: Mapping[str, str] = {
    "anthropic": "https://api.anthropic.com/v1",
    "openai": "https://api.openai.com/v1",
    "taotoken": "https://taotoken.net/api",
}
"""Services with one address for everybody."""


def default_base_url(engine: str) -> str | None:
    """Where an engine listens when nobody says otherwise; None for services without one address."""
    port = PROFILES[engine].default_port
    return CLOUDS.get(engine) if port is None else f"http://127.0.0.1:{port}/v1"


def local_file(written: str, base: Path) -> Path:
    """A file that a plan names: `~` is the home directory, relative paths begin at the plan's folder."""
    path = Path(written)
    with suppress(RuntimeError):  # `~nobody`: there is no such user, so it is a name like any other
        path = path.expanduser()
    return base / path


def fill(plan: Plan, path: Path) -> Plan:
    """The plan with its defaults; filling twice changes nothing. The plan must have been checked."""
    base = path.absolute().parent  # workers may run elsewhere
    first = next(iter(plan.channels))
    return msgspec.structs.replace(
        plan,
        run=msgspec.structs.replace(plan.run, name=plan.run.name or path.stem),
        channels={name: _channel(channel, base) for name, channel in plan.channels.items()},
        workloads=tuple(_workload(workload, first, base) for workload in plan.workloads),
        quality=plan.quality and msgspec.structs.replace(plan.quality, file=_trace_file(plan.quality.file, base)),
        telemetry=msgspec.structs.replace(
            plan.telemetry, spool=plan.telemetry.spool and str(local_file(plan.telemetry.spool, base))
        ),
        redis=msgspec.structs.replace(
            plan.redis,
            password_file=plan.redis.password_file and str(local_file(plan.redis.password_file, base)),
            ca=plan.redis.ca and str(local_file(plan.redis.ca, base)),
        ),
    )


def _channel(channel: Channel, base: Path) -> Channel:
    return msgspec.structs.replace(
        channel,
        # What asks one address for all (preflight, metrics of the engine) asks the first replica.
        base_url=channel.base_urls[0] if channel.base_urls else channel.base_url or default_base_url(channel.engine),
        dialect=channel.dialect or PROFILES[channel.engine].default_dialect,
        ca=channel.ca and str(local_file(channel.ca, base)),
        tokenizer=channel.tokenizer and str(local_file(channel.tokenizer, base)),
        api_key_file=channel.api_key_file and str(local_file(channel.api_key_file, base)),
    )


def _trace_file(trace: str, base: Path) -> str:
    return trace if trace.startswith(BUILTIN) else str(local_file(trace, base))


def _workload(workload: Workload, channel: str, base: Path) -> Workload:
    trace = workload.trace
    return msgspec.structs.replace(
        workload,
        channel=workload.channel or channel,
        trace=trace if workload.source is not None else _trace_file(trace, base),
    )
