"""What single keys can't tell: combinations that make no sense, names that don't exist, secrets in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from infersiege.channels.redaction import names_secret
from infersiege.errors import TraceError
from infersiege.plan.channel_checks import channels, file_fault
from infersiege.plan.convert import SECRET_KEYS
from infersiege.plan.defaults import BUILTIN, local_file
from infersiege.plan.faults import Faults
from infersiege.plan.hybrid_checks import channel_names, hybrids, no_such
from infersiege.plan.load_checks import loads
from infersiege.plan.locate import KeyPath
from infersiege.plan.quality_checks import quality
from infersiege.plan.redis_checks import access, in_redis
from infersiege.plan.registries import names
from infersiege.plan.schema import Plan, Workload
from infersiege.plan.slo_checks import slos
from infersiege.plan.telemetry_checks import telemetry
from infersiege.redact import looks_secret

_SECRET_FIELDS = (SECRET_KEYS | {"proxy-authorization", "x-api-key", "api-key", "x-auth-token", "cookie"}) - {
    "key",
    "token",
}
"""Fields of extra_body that hold keys; a `key` and a `token` there may be anything."""


class Draft(msgspec.Struct, frozen=True):
    """A plan that may have faults, with what was written. Look only at keys of which `faults.ok` is true."""

    plan: Plan
    raw: dict[str, Any]
    faults: Faults
    base: Path
    environ: Mapping[str, str] | None

    def written(self, *path: str | int) -> bool:
        """The key stands in the file or was set."""
        here: Any = self.raw
        for part in path:
            items = dict(enumerate(here)) if isinstance(here, list) else here
            if not isinstance(items, dict) or part not in items:
                return False
            here = items[part]
        return True


def check(plan: Plan, raw: dict[str, Any], faults: Faults, *, base: Path, environ: Mapping[str, str] | None) -> None:
    """Add every fault that lies between keys. `environ` None: don't look whether the keys' variables are there."""
    draft = Draft(plan, raw, faults, base, environ)
    for one in CHECKS:
        one(draft)


def _secrets(draft: Draft) -> None:
    for path, text in _strings(draft.raw, ()):
        if draft.faults.ok(*path) and (looks_secret(text) or _secret_name(path)):
            instead = {"telemetry": "influx_token_env", "redis": "password_env"}.get(str(path[0]), "api_key_env")
            draft.faults.add(
                path, f"looks like a secret, which must not stand in a plan; name its variable in {instead} instead"
            )


def _secret_name(path: KeyPath) -> bool:
    if len(path) < 2 or path[-2] not in ("headers", "extra_body"):
        return False
    name = str(path[-1])
    if path[-2] == "headers":
        return names_secret(name)
    return name.lower() in _SECRET_FIELDS


def _strings(raw: object, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(raw, str):
        yield path, raw
    elif isinstance(raw, dict):
        for key, value in raw.items():
            yield from _strings(value, (*path, key))
    elif isinstance(raw, list):
        for index, value in enumerate(raw):
            yield from _strings(value, (*path, index))


def _workloads(draft: Draft) -> None:
    faults = draft.faults
    if faults.ok("workload") and not draft.plan.workloads and draft.plan.quality is None:
        missing = "is missing; write [[workload]]: what is sent"
        written = draft.written("workload")
        faults.add(("workload",), "no [[workload]] in it: what should be sent?" if written else missing)
    seen: dict[tuple[str, str | None], int] = {}
    for index, workload in enumerate(draft.plan.workloads):
        here = ("workload", index)
        _workload_channel(draft, here, workload)
        if workload.source is not None:
            in_redis(draft, here, workload)
        elif faults.ok(*here, "trace") and faults.ok(*here, "source"):
            _trace(draft, here, workload.trace)
        _options(draft, here, workload)
        if faults.ok(*here, "scenario") and faults.ok(*here, "channel"):
            first = seen.setdefault((workload.scenario, workload.channel), index)
            if first != index:
                faults.add(
                    (*here, "scenario"),
                    f"{workload.scenario!r} is on this channel already (workload.{first}): one name, two results",
                )


def _workload_channel(draft: Draft, here: KeyPath, workload: Workload) -> None:
    faults, channels = draft.faults, channel_names(draft.plan)
    if not faults.ok(*here, "channel") or not channels:
        return
    if workload.channel is None:
        if len(channels) > 1:
            faults.add(here, f"needs a channel, since there are several: {', '.join(channels)}")
    elif workload.channel not in channels:
        faults.add((*here, "channel"), no_such("channel", workload.channel, channels))


def _trace(draft: Draft, here: KeyPath, trace: str) -> None:
    where = (*here, "trace")
    if trace.startswith(BUILTIN):
        name = trace.removeprefix(BUILTIN)
        known = names("BUILTINS")
        if name in known.later:
            draft.faults.add(where, f"{trace} is not built yet; there are: {', '.join(known.now)}")
        elif name not in known.now:
            draft.faults.add(where, no_such("built-in workload", name, known.now))
        if draft.written(*here, "format") and draft.faults.ok(*here, "format"):
            draft.faults.add((*here, "format"), "a built-in workload is no file and has no format")
        return
    path = local_file(trace, draft.base)
    fault = file_fault(path, str(path), or_folder=True)
    if fault is not None:
        hint = f'; for the built-in one write "{BUILTIN}{trace}"' if trace in names("BUILTINS").now else ""
        draft.faults.add(where, fault + hint)


def _options(draft: Draft, here: KeyPath, workload: Workload) -> None:
    """Options of a built-in workload, or of a format that is named; others are checked when the trace is opened."""
    faults = draft.faults
    if not all(faults.ok(*here, key) for key in ("trace", "format", "options")):
        return
    from infersiege.traces import BUILTINS, READERS
    from infersiege.traces.options import check_options

    if workload.source is not None:
        return
    if workload.trace.startswith(BUILTIN):
        table = BUILTINS[workload.trace.removeprefix(BUILTIN)].options
    elif workload.format is not None:
        table = READERS[workload.format].options
    else:
        return
    try:
        check_options(workload.trace, table, workload.options)
    except TraceError as error:
        message = str(error).removeprefix(f"{workload.trace}: ")
        faults.add((*here, "options"), f"{message}; {error.hint}")


CHECKS: tuple[Callable[[Draft], None], ...] = (
    loads,
    channels,
    hybrids,
    _workloads,
    quality,
    access,
    slos,
    telemetry,
    _secrets,
)
