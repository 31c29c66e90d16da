"""Does every target answer, with this key, to this model, in this protocol? Asked before any load is offered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from infersiege.channels import DIALECTS, PROFILES
from infersiege.channels.url import endpoint_url
from infersiege.doctor.examination import Examination, examine
from infersiege.doctor.findings import Check, DoctorError, NotReadyError, Verdict
from infersiege.doctor.lengths import told_limits, within_context
from infersiege.doctor.tools import sends_tools
from infersiege.plan.schema import Channel, Plan
from infersiege.redact import scrub
from infersiege.rundir import ChannelFacts

_SECOND_NS = 1_000_000_000
_RETRY_S = 0.5
SKIPPED: Final = "skipped: nothing was asked before the run"
"""`details["doctor"]` of a channel that nobody looked at."""

__all__ = [
    "SKIPPED",
    "Check",
    "DoctorError",
    "Examination",
    "NotReadyError",
    "Verdict",
    "adapted",
    "examine",
    "preflight",
    "targets",
    "told_limits",
    "unexamined",
]


def targets(plan: Plan) -> Iterator[tuple[str, str, Channel]]:
    """(name of the channel, what to call it, the channel with one address): each server of the plan once."""
    for name, channel in plan.channels.items():
        if len(channel.base_urls) < 2:
            yield name, name, msgspec.structs.replace(channel, base_url=channel.addresses[0], base_urls=())
            continue
        for number, base in enumerate(dict.fromkeys(channel.base_urls), 1):
            yield name, f"{name}#{number}", msgspec.structs.replace(channel, base_url=base, base_urls=())


def preflight(
    plan: Plan,
    *,
    environ: Mapping[str, str] | None = None,
    wait_ns: int = 0,
    on_wait: Callable[[str], None] | None = None,
    asked: Callable[[str], None] | None = None,
) -> dict[str, ChannelFacts]:
    """The short form: ask every channel for its models and for one small answer.

    A server that is not there yet, or says 502, 503 or 504, is asked again until `wait_ns` is over, for all channels
    together (HC-14); `on_wait` is told the reason whenever it changes, `asked` the channel of each request after it.
    The keys of the result are those of `plan.channels`; of replicas, the first one's facts. Hybrid channels are made of
    these, so each is asked once.
    `details` of the facts may hold: server, models, context_length, usage (`yes`, `no`), cached_tokens (a number;
    missing when not told), model_answered, model_note, launch.* (how the server was started, where it tells), not_sent
    (sampling fields that the protocol lacks), dropped_fields (fields that the server refuses).

    Raises TargetError (exit code 4) with the place, what was seen and what to try; UsageError for a key that cannot be
    read.
    """
    deadline_ns = time.monotonic_ns() + wait_ns
    facts: dict[str, ChannelFacts] = {}
    for name, label, channel in targets(plan):
        told, tools = "", sends_tools(plan, name)
        while True:
            after = None if asked is None else partial(asked, name)
            found = examine(label, channel, plan.sampling, environ=environ, tools=tools, asked=after)
            if found.facts is not None:
                facts[name] = _together(facts.get(name), found.facts)
                break
            if not isinstance(found.error, NotReadyError) or time.monotonic_ns() >= deadline_ns:
                raise found.error or AssertionError("neither facts nor an error")
            if on_wait is not None and str(found.error) != told:
                told = str(found.error)
                on_wait(told)
            time.sleep(min(_RETRY_S, max(0.0, (deadline_ns - time.monotonic_ns()) / _SECOND_NS)))
    return facts


def _together(before: ChannelFacts | None, facts: ChannelFacts) -> ChannelFacts:
    """The facts of a channel with several servers: the first one's, but what one refuses is sent to none of them."""
    if before is None:
        return facts
    dropped = tuple(dict.fromkeys((*before.dropped_fields, *facts.dropped_fields)))
    return msgspec.structs.replace(before, dropped_fields=dropped, emulated=before.emulated or facts.emulated)


def adapted(plan: Plan, facts: Mapping[str, ChannelFacts]) -> Plan:
    """The plan as its servers take it: each channel leaves out what its server refuses (CL-04), and no prompt is longer
    than its server takes (TR-11).
    """
    channels = {name: _adapted(channel, facts[name]) for name, channel in plan.channels.items()}
    return within_context(msgspec.structs.replace(plan, channels=channels), facts)


def _adapted(channel: Channel, facts: ChannelFacts) -> Channel:
    dropped = facts.dropped_fields or channel.drop_fields
    cache_key = channel.prompt_cache_key and "prompt_cache_key" not in dropped
    return msgspec.structs.replace(channel, drop_fields=dropped, prompt_cache_key=cache_key)


def unexamined(plan: Plan) -> dict[str, ChannelFacts]:
    """The facts of channels that nobody was asked about (`--skip-doctor`): what the plan says, and that this is all."""
    facts = {}
    for name, _, channel in targets(plan):
        dialect = channel.dialect or PROFILES[channel.engine].default_dialect
        if name not in facts:
            facts[name] = ChannelFacts(
                url=scrub(endpoint_url(channel.base_url or "", DIALECTS[dialect].path)),
                engine=channel.engine,
                dialect=dialect,
                model=channel.model,
                insecure=channel.insecure,
                streamed=channel.stream,
                details={"doctor": SKIPPED},
            )
    return facts
