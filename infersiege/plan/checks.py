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
from infersiege.plan.redis_checks import access, in_redis
from infersiege.plan.registries import names
from infersiege.plan.schema import Plan, Slo, Workload
from infersiege.plan.streams import stage_names
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
    if faults.ok("workload") and not draft.plan.workloads:
        faults.add(("workload",), "no [[workload]] in it: what should be sent?")
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


def _slos(draft: Draft) -> None:
    for index, slo in enumerate(draft.plan.slos):
        _slo(draft, ("slo", index), slo)


def _slo(draft: Draft, here: KeyPath, slo: Slo) -> None:
    faults, plan = draft.faults, draft.plan
    if slo.at_most is None and slo.at_least is None and slo.relative_max is None and faults.ok(*here):
        faults.add(here, 'has no limit; set max = "800ms", min = … or relative_max = "10%"')
    if slo.at_most is not None and slo.at_least is not None and slo.at_least > slo.at_most:
        faults.add((*here, "min"), f"{slo.at_least:g} is above max ({slo.at_most:g}): no value can pass")
    scenarios = tuple(dict.fromkeys(workload.scenario for workload in plan.workloads))
    if slo.scenario is not None and slo.scenario not in scenarios and faults.ok("workload"):
        faults.add((*here, "scenario"), no_such("scenario", slo.scenario, scenarios))
    if slo.channel in plan.hybrids and faults.ok("channel"):
        parts = ", ".join(part.channel for part in plan.hybrids[slo.channel].parts)
        faults.add(
            (*here, "channel"), f"results are kept by the channel that served, so name one of its parts: {parts}"
        )
    elif slo.channel is not None and slo.channel not in plan.channels and faults.ok("channel"):
        faults.add((*here, "channel"), no_such("channel", slo.channel, tuple(plan.channels)))
    if slo.stage is not None and faults.ok("load", "stages") and faults.ok(*here, "stage"):
        stages = stage_names(plan.load)
        if slo.stage not in stages:
            faults.add((*here, "stage"), no_such("stage", slo.stage, stages))
    if faults.ok(*here, "metric") and faults.ok(*here, "stat"):
        _slo_metric(draft, here, slo)


def _slo_metric(draft: Draft, here: KeyPath, slo: Slo) -> None:
    from infersiege.metrics.definitions import METRICS, STATS

    faults = draft.faults
    metric = METRICS[slo.metric]
    if metric.kind == "distribution" and slo.stat is None:
        faults.add(here, f"{slo.metric} is a distribution and needs stat: {', '.join(STATS)}")
    if metric.kind == "rate" and slo.stat is not None:
        faults.add((*here, "stat"), f"{slo.metric} is one number and has no statistic; leave stat out")
    if metric.needs_stream and faults.ok("channel") and faults.ok("workload"):
        silent = _unstreamed(draft.plan, slo)
        if silent:
            faults.add(
                (*here, "metric"),
                f"{slo.metric} exists only with streaming, but stream = false on channel {', '.join(silent)}",
            )
    if slo.metric in _COSTS and all(faults.ok(*key) for key in (("channel",), ("workload",), (*here, "channel"))):
        _slo_cost(draft, here, slo)


_COSTS = ("cost", "cost_per_million_output_tokens")


def _slo_cost(draft: Draft, here: KeyPath, slo: Slo) -> None:
    """A rule on money needs a channel that costs some, and one on a turn's money one that is paid by tokens."""
    seen = _seen(draft.plan, slo)
    prices = [price for name in seen if (price := draft.plan.channels[name].price) is not None]
    if not seen or (slo.channel is not None and slo.channel not in seen):
        return
    if not prices:
        draft.faults.add(
            (*here, "metric"),
            f"{slo.metric} needs a price, which channel {', '.join(seen)} does not have; write price = {{input = …, "
            "output = …}",
        )
    elif slo.metric == "cost" and all(price.gpu_hour is not None for price in prices):
        draft.faults.add(
            (*here, "metric"),
            f"cost is a turn's by its tokens, and channel {', '.join(seen)} is paid by the hour; use {_COSTS[1]}",
        )


def _unstreamed(plan: Plan, slo: Slo) -> list[str]:
    """Channels without streaming, if the rule can see no other ones."""
    seen = _seen(plan, slo)
    silent = [name for name in seen if not plan.channels[name].stream]
    return silent if len(silent) == len(seen) else []


def _seen(plan: Plan, slo: Slo) -> list[str]:
    """Channels whose turns a rule can see."""
    only = next(iter(plan.channels)) if len(plan.channels) == 1 else None
    named = {
        workload.channel or only
        for workload in plan.workloads
        if slo.scenario is None or workload.scenario == slo.scenario
    }
    used = named | {part.channel for name in named if name in plan.hybrids for part in plan.hybrids[name].parts}
    return [name for name in plan.channels if name in used and (slo.channel is None or name == slo.channel)]


CHECKS: tuple[Callable[[Draft], None], ...] = (loads, channels, hybrids, _workloads, access, _slos, telemetry, _secrets)
