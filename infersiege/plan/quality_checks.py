"""[quality]: its faults, told before anything is sent, and the workloads that it comes to.

A plan with [quality] has one workload more for each channel that its sessions go to. With a share below 1 it has no
part in the load of its own: it takes its share of the sessions of the first load (`plan.streams`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from infersiege.channels import PROFILES
from infersiege.errors import TraceError
from infersiege.plan.defaults import BUILTIN, local_file
from infersiege.plan.schema import Channel, Plan, Workload
from infersiege.quality.items import FORMAT, open_quality
from infersiege.redact import Secrets

if TYPE_CHECKING:
    from infersiege.plan.checks import Draft

SCENARIO = "quality"
"""Of the turns of checked prompts."""

_WITHOUT_TOOLS = frozenset({"openai-completions"})
"""Dialects in which no request can offer a function."""


def quality(draft: Draft) -> None:
    """Add every fault of [quality], those of its file included."""
    faults, wanted = draft.faults, draft.plan.quality
    if wanted is None:
        return
    for index, workload in enumerate(draft.plan.workloads):
        if workload.scenario == SCENARIO and faults.ok("workload", index, "scenario"):
            faults.add(("workload", index, "scenario"), f"{SCENARIO!r} is the scenario of [quality]; take another name")
    if faults.ok("quality", "share") and wanted.share == 1 and draft.plan.load.mode == "replay":
        faults.add(("quality", "share"), "checked prompts have no times to be replayed at; use another load mode")
    if not all(faults.ok("quality", key) for key in ("file", "tools", "allow_code")):
        return
    file = wanted.file if wanted.file.startswith(BUILTIN) else str(local_file(wanted.file, draft.base))
    try:
        open_quality(file, tools=wanted.tools, allow_code=wanted.allow_code, redact=partial(_redacted, draft))
    except TraceError as error:
        said = "; ".join(str(error).split("\n"))
        faults.add(("quality", "file"), f"{said}; {error.hint}" if error.hint else said)


def _redacted(draft: Draft, text: str) -> str:
    """Own code that is tried may say a key that it met."""
    return Secrets.of(draft.plan, os.environ if draft.environ is None else draft.environ).scrub(text)


def with_quality(plan: Plan) -> Plan:
    """The plan with the workloads of its [quality]; doing it twice changes nothing. Channels have their defaults."""
    wanted = plan.quality
    if wanted is None or any(workload.format == FORMAT for workload in plan.workloads):
        return plan
    made = tuple(_workloads(plan, wanted.file, tools=wanted.tools))
    return msgspec.structs.replace(plan, workloads=made if wanted.share == 1 else (*plan.workloads, *made))


def _workloads(plan: Plan, file: str, *, tools: bool) -> Iterator[Workload]:
    named = dict.fromkeys(workload.channel or next(iter(plan.channels)) for workload in plan.workloads)
    for channel in named or plan.channels:
        parts = [part.channel for part in plan.hybrids[channel].parts] if channel in plan.hybrids else [channel]
        offered = tools and all(_takes_tools(plan.channels[part]) for part in parts)
        yield Workload(
            scenario=SCENARIO,
            trace=file,
            format=FORMAT,
            channel=channel,
            wrap=True,
            salt=False,  # a small model answers a prompt otherwise when there is noise before it
            options={} if offered else {"tools": False},
        )


def _takes_tools(channel: Channel) -> bool:
    return (channel.dialect or PROFILES[channel.engine].default_dialect) not in _WITHOUT_TOOLS
