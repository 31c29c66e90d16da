"""Faults of hybrid channels: parts that don't exist, keys that mean nothing to the policy, limits that are missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from infersiege.plan.hybrid_schema import Hybrid
from infersiege.plan.locate import KeyPath
from infersiege.plan.schema import Plan

if TYPE_CHECKING:
    from infersiege.plan.checks import Draft

_ACTS_IN: Mapping[str, str] = {
    "weight": "weighted",
    "scenarios": "scenario",
    "max_in_flight": "overflow",
    "max_ttft": "overflow",
}
"""Keys of a part that mean something only to one policy; elsewhere they would be ignored without a word."""


def hybrids(draft: Draft) -> None:
    for name, hybrid in draft.plan.hybrids.items():
        here = ("channel", name)
        if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,100}", name):
            draft.faults.add(here, "a channel's name is 1 to 100 printable characters")
        if not draft.faults.ok(*here, "part"):
            continue
        _parts(draft, here, hybrid)
        if draft.faults.ok(*here, "policy"):
            _policy(draft, here, hybrid)


def channel_names(plan: Plan) -> tuple[str, ...]:
    """What a workload may name: channels and hybrid ones."""
    return (*plan.channels, *plan.hybrids)


def no_such(kind: str, name: str, there: tuple[str, ...]) -> str:
    """The message for a name that does not exist, with the nearest that does."""
    near = get_close_matches(name, there, n=1, cutoff=0.6)
    return (
        f"there is no {kind} {name!r}"
        + (f"; did you mean {near[0]!r}? " if near else "; ")
        + (f"there are: {', '.join(there)}" if there else "there are none")
    )


def _parts(draft: Draft, here: KeyPath, hybrid: Hybrid) -> None:
    faults, plan = draft.faults, draft.plan
    if len(hybrid.parts) < 2:
        faults.add(here, "is made of one channel or none; write [[…part]] for each of two or more")
    seen: set[str] = set()
    for index, part in enumerate(hybrid.parts):
        where = (*here, "part", index, "channel")
        if part.channel in plan.hybrids:
            faults.add(where, f"{part.channel!r} is hybrid itself; name the channels that it is made of")
        elif part.channel not in plan.channels:
            faults.add(where, no_such("channel", part.channel, tuple(plan.channels)))
        elif part.channel in seen:
            faults.add(where, f"{part.channel!r} is a part already; name each once")
        seen.add(part.channel)


def _policy(draft: Draft, here: KeyPath, hybrid: Hybrid) -> None:
    faults = draft.faults
    for index in range(len(hybrid.parts)):
        for key, policy in _ACTS_IN.items():
            where = (*here, "part", index, key)
            if policy != hybrid.policy and draft.written(*where) and faults.ok(*where):
                faults.add(where, f"means nothing to the policy {hybrid.policy}, only to {policy}")
    if hybrid.policy != "overflow" and draft.written(*here, "window") and faults.ok(*here, "window"):
        faults.add((*here, "window"), f"means nothing to the policy {hybrid.policy}, only to overflow")
    if hybrid.policy == "overflow":
        _overflow(draft, here, hybrid)
    elif hybrid.policy == "scenario":
        _scenarios(draft, here, hybrid)


def _overflow(draft: Draft, here: KeyPath, hybrid: Hybrid) -> None:
    """Every part but the last needs a limit, or nothing ever flows over; the last one takes what is left."""
    faults, channels = draft.faults, draft.plan.channels
    last = len(hybrid.parts) - 1
    for index, part in enumerate(hybrid.parts):
        where = (*here, "part", index)
        limited = part.max_in_flight is not None or part.max_ttft_ns is not None
        if index < last and not limited:
            faults.add(
                where, "has no limit, so that nothing would ever go to the next part; set max_in_flight or max_ttft"
            )
        elif index == last and limited and last > 0:
            faults.add(where, "takes what the parts before it don't, so that it can have no limit")
        channel = channels.get(part.channel)
        if part.max_ttft_ns is not None and channel is not None and not channel.stream:
            faults.add((*where, "max_ttft"), f"TTFT exists only with streaming, but {part.channel} has stream = false")


def _scenarios(draft: Draft, here: KeyPath, hybrid: Hybrid) -> None:
    """Each scenario on this channel has exactly one part."""
    faults, plan = draft.faults, draft.plan
    if not faults.ok("workload"):
        return
    mine = tuple(dict.fromkeys(workload.scenario for workload in plan.workloads if workload.channel == str(here[-1])))
    given: dict[str, int] = {}
    rest = [index for index, part in enumerate(hybrid.parts) if not part.scenarios]
    for index, part in enumerate(hybrid.parts):
        for scenario in part.scenarios:
            where = (*here, "part", index, "scenarios")
            if scenario not in mine:
                faults.add(where, no_such("scenario on this channel:", scenario, mine))
            elif given.setdefault(scenario, index) != index:
                faults.add(where, f"{scenario!r} goes to part {given[scenario]} already (counted from 0)")
    for index in rest[1:]:
        faults.add(
            (*here, "part", index), "a second part without scenarios; only one can take those that are not named"
        )
    left = [scenario for scenario in mine if scenario not in given]
    if left and not rest:
        faults.add(here, f"no part takes {', '.join(left)}; name it in scenarios, or leave scenarios out of one part")
