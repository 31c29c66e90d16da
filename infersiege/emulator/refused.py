"""Answers that are made without the engine: refusals of all kinds, on request or for a reason."""

from __future__ import annotations

import json
import time
from email.utils import formatdate

from infersiege.emulator.faults import Fault
from infersiege.emulator.frames import END, Script, http_chunk
from infersiege.emulator.frames_messages import MessagesFrames
from infersiege.emulator.http1 import Connection, Request
from infersiege.emulator.profile import PROFILES, Api, Profile
from infersiege.emulator.quota import retry_fields
from infersiege.emulator.refusal import Reason, RefusedError, body_of, of_status, over_context, status_of
from infersiege.emulator.settings import EmulatorSettings

_LOGIN_PAGE = b"<!DOCTYPE html>\n<html><head><title>Login</title></head><body><h1>Please log in</h1></body></html>\n"


def refusal_bytes(
    connection: Connection,
    profile: Profile,
    api: Api | None,
    error: RefusedError,
    fields: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    """(status, answer) of a refused request, as this engine gives it."""
    status = status_of(profile, error)
    return status, connection.whole_json(status, body_of(profile, api, error), fields)


def refusal_in_stream(
    connection: Connection, settings: EmulatorSettings, error: RefusedError, fields: dict[str, str]
) -> bytes:
    """SGLang's refusal of a stream of `/v1/messages`: a 200 whose events are an error."""
    script = Script(0, int(time.time()), settings.model, ("",), profile=PROFILES[settings.profile])
    events = MessagesFrames(script).refusal(error)
    return connection.stream_head(fields) + http_chunk(events) + END


def early_answer(
    fault: Fault,
    connection: Connection,
    request: Request,
    api: Api,
    settings: EmulatorSettings,
    fields: dict[str, str],
) -> tuple[int, bytes]:
    """(status, bytes) of a faulty answer that needs no engine. `fields`: of the rate limits."""
    profile = PROFILES[settings.profile]
    if fault.status is not None:
        error = of_status(fault.status, "emulated fault")
        body = body_of(profile, api, error)
        return fault.status, connection.whole_json(fault.status, body, {**fields, **_retry_fields(fault)})
    if fault.context:
        limit = settings.spec.max_model_len
        return refusal_bytes(connection, profile, api, over_context(limit + 1, limit))
    if fault.echo_key:
        sent = request.headers.get("authorization") or request.headers.get("x-api-key") or "none"
        echo = RefusedError(Reason.KEY, f"invalid key: {sent}", literal=True)
        return refusal_bytes(connection, profile, api, echo)
    if fault.html:
        return 200, connection.whole(200, _LOGIN_PAGE, "text/html; charset=utf-8")
    if fault.json_error:
        error = RefusedError(Reason.INVALID, "emulated fault: no such model", status=400)
        return 200, connection.whole_json(200, body_of(profile, api, error))
    if _asks_for_stream(request.body):
        return 200, connection.stream_head({}) + END
    return 200, connection.whole(200, b"", "application/json")


def _asks_for_stream(body: bytes) -> bool:
    try:
        value = json.loads(body)
    except ValueError:
        return False
    return isinstance(value, dict) and bool(value.get("stream"))


def _retry_fields(fault: Fault) -> dict[str, str]:
    """Retry-After in the forms that were asked for, several at once too."""
    fields: dict[str, str] = {}
    if fault.retry_after is not None:
        fields["retry-after"] = fault.retry_after
    if fault.retry_date is not None:
        # A whole second from the one that the Date field names.
        fields["retry-after"] = formatdate(int(time.time()) + fault.retry_date, usegmt=True)
        fields["date"] = formatdate(int(time.time()), usegmt=True)
    if fault.retry_after_ms is not None:
        fields["retry-after-ms"] = str(fault.retry_after_ms)
    return fields


def over_quota(
    connection: Connection, profile: Profile, api: Api, wait_s: float, fields: dict[str, str]
) -> tuple[int, bytes]:
    """429 with when to come again."""
    message = f"Rate limit reached. Please try again in {wait_s:.3f}s."
    told = {**fields, **retry_fields(profile.rate_limit_headers, wait_s)}
    return refusal_bytes(connection, profile, api, RefusedError(Reason.RATE, message), told)
