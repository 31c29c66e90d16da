"""Preflight: does every target answer, with this key, to this model, in this protocol? Before any load is offered."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from infersiege.channels.dialect import Decoded
from infersiege.doctor.http import Limits, NotReadyError, Reply
from infersiege.doctor.probe import Models, Probe
from infersiege.errors import InfersiegeError
from infersiege.plan.schema import Channel, Plan, Sampling
from infersiege.redact import api_key, scrub
from infersiege.rundir import ChannelFacts

_SECOND_NS = 1_000_000_000
_CONNECT_LIMIT_S = 5.0
_ANSWER_LIMIT_S = 60.0
_RETRY_S = 0.5
_LISTED: Final = 50

__all__ = ["Check", "Examination", "NotReadyError", "examine", "preflight"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    ok: bool | None
    """None: it says nothing, or there is something to note."""
    seen: str
    hint: str | None = None


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found out of one channel. Exactly one of `facts` and `error` is there."""

    channel: str
    checks: tuple[Check, ...]
    facts: ChannelFacts | None
    error: InfersiegeError | None


def preflight(
    plan: Plan,
    *,
    environ: Mapping[str, str] | None = None,
    wait_ns: int = 0,
    on_wait: Callable[[str], None] | None = None,
) -> dict[str, ChannelFacts]:
    """Ask every channel for its models and for one small answer.

    A server that is not there yet, or says 502, 503 or 504, is asked again until `wait_ns` is over, for all channels
    together (HC-14); `on_wait` is told the reason whenever it changes. The keys of the result are those of
    `plan.channels`. `details` of the facts may hold: server, models, context_length, usage (`yes`, `no`),
    cached_tokens (a number; missing when not told), model_answered, model_note, not_sent (sampling fields that the
    protocol lacks).

    Raises TargetError (exit code 4) with the place, what was seen and what to try; UsageError for a key that cannot be
    read.
    """
    deadline_ns = time.monotonic_ns() + wait_ns
    facts = {}
    for name, channel in plan.channels.items():
        told = ""
        while True:
            found = examine(name, channel, plan.sampling, environ=environ)
            if found.facts is not None:
                facts[name] = found.facts
                break
            if not isinstance(found.error, NotReadyError) or time.monotonic_ns() >= deadline_ns:
                raise found.error or AssertionError("neither facts nor an error")
            if on_wait is not None and str(found.error) != told:
                told = str(found.error)
                on_wait(told)
            time.sleep(min(_RETRY_S, max(0.0, (deadline_ns - time.monotonic_ns()) / _SECOND_NS)))
    return facts


def examine(
    name: str, channel: Channel, sampling: Sampling, *, environ: Mapping[str, str] | None = None
) -> Examination:
    """Look at one channel once. Errors of the target, and of a key that cannot be read, are in the result."""
    checks: list[Check] = []
    try:
        facts = _examine(name, channel, sampling, os.environ if environ is None else environ, checks)
    except InfersiegeError as error:
        checks.append(Check(name=_failed_at(checks), ok=False, seen=str(error), hint=error.hint))
        return Examination(channel=name, checks=tuple(checks), facts=None, error=error)
    return Examination(channel=name, checks=tuple(checks), facts=facts, error=None)


def _examine(
    name: str, channel: Channel, sampling: Sampling, environ: Mapping[str, str], checks: list[Check]
) -> ChannelFacts:
    timeouts = channel.timeouts
    limits = Limits(
        connect_s=min(_CONNECT_LIMIT_S, timeouts.connect_ns / _SECOND_NS),
        answer_s=min(_ANSWER_LIMIT_S, timeouts.first_token_ns / _SECOND_NS),
    )
    probe = Probe(name, channel, api_key(channel, environ), limits)
    checks.append(Check(name="url", ok=True, seen=scrub(probe.url)))
    models = probe.models()
    note = _models_check(probe, models, checks)
    reply, decoded = probe.chat(sampling)
    checks.append(Check(name="answer", ok=True, seen="in a stream" if channel.stream else "in one piece"))
    left_out = probe.not_sent(sampling)
    checks += [Check(name="sampling", ok=None, seen=f"{name} is not sent: {why}") for name, why in left_out.items()]
    version = probe.version()
    if version is not None:
        checks.append(Check(name="version", ok=True, seen=version))
    checks += _usage_checks(probe, decoded)
    emulated = "x-infersiege-emulated" in reply.headers or (models is not None and models.emulated)
    if emulated:
        checks.append(
            Check(name="emulated", ok=None, seen="infersiege's own emulator: figures say nothing of hardware")
        )
    return ChannelFacts(
        url=scrub(probe.url),
        engine=channel.engine,
        dialect=probe.dialect.name,
        model=channel.model,
        emulated=emulated,
        version=version,
        insecure=channel.insecure,
        streamed=channel.stream,
        details={key: probe.secrets.scrub(text) for key, text in _details(models, note, reply, decoded).items()}
        | ({"not_sent": ", ".join(left_out)} if left_out else {}),
    )


def _failed_at(checks: list[Check]) -> str:
    """The step after the last one that was done."""
    done = {check.name for check in checks}
    return next((step for step in ("url", "models", "answer") if step not in done), "answer")


def _models_check(probe: Probe, models: Models | None, checks: list[Check]) -> str | None:
    if models is None or not models.names:
        checks.append(Check(name="models", ok=None, seen="the server lists none"))
        return None
    note = probe.check_model(models)
    checks.append(
        Check(
            name="models",
            ok=None if note else True,
            seen=f"{probe.channel.model}: {note}" if note else probe.channel.model,
        )
    )
    return note


def _usage_checks(probe: Probe, decoded: Decoded) -> list[Check]:
    usage = decoded.usage
    if usage is None or usage.output_tokens is None:
        hint = "token counts will be estimates"
        if not probe.channel.include_usage:
            hint += "; set include_usage = true"
        return [Check(name="usage", ok=None, seen="the server tells no token counts", hint=hint)]
    checks = [Check(name="usage", ok=True, seen=f"{usage.prompt_tokens} in, {usage.output_tokens} out")]
    if usage.cached_tokens is None:
        unknown = "not told: the cache share stays unknown"
        checks.append(Check(name="cached tokens", ok=None, seen=unknown, hint=probe.profile.cached_tokens_hint))
    else:
        checks.append(Check(name="cached tokens", ok=True, seen=str(usage.cached_tokens)))
    return checks


def _details(models: Models | None, note: str | None, reply: Reply, decoded: Decoded) -> dict[str, str]:
    usage = decoded.usage
    found = {
        "server": reply.headers.get("server"),
        "models": ", ".join(models.names[:_LISTED]) if models is not None and models.names else None,
        "context_length": str(models.context_length) if models is not None and models.context_length else None,
        "usage": "yes" if usage is not None and usage.output_tokens is not None else "no",
        "cached_tokens": str(usage.cached_tokens) if usage is not None and usage.cached_tokens is not None else None,
        "model_answered": decoded.model,
        "model_note": note,
    }
    return {name: value for name, value in found.items() if value is not None}
