"""The keys of a plan, and keeping them out of everything that leaves the process (infersiege.channels.redaction)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from infersiege.channels import redaction
from infersiege.channels.redaction import REDACTED, looks_secret, scrub
from infersiege.errors import UsageError

if TYPE_CHECKING:  # plan's messages go through scrub: the import goes the other way
    from infersiege.plan.redis_schema import RedisAccess
    from infersiege.plan.schema import Channel, Plan

__all__ = ["REDACTED", "SECRET_VARIABLE", "Secrets", "api_key", "looks_secret", "redis_password", "scrub"]


SECRET_VARIABLE: Final = "INFERSIEGE_SECRET"
"""Environment variable with what the master and the workers of a run share (`infersiege.swarm.secret`)."""


class Secrets(redaction.Secrets):
    """The secret values of one run."""

    @classmethod
    def of(cls, plan: Plan, environ: Mapping[str, str]) -> Self:
        """Keys of all channels, InfluxDB's token, Redis's password, what master and workers share. A file that cannot
        be read gives nothing here: whoever needs the key reports it."""
        values = [*_influx_secrets(plan, environ), environ.get(SECRET_VARIABLE, "")]
        with suppress(UsageError):
            values.append(redis_password(plan.redis, environ) or "")
        for channel in plan.channels.values():
            try:
                values.append(api_key(channel, environ) or "")
            except UsageError:
                continue
        return cls(values)


def _influx_secrets(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """The token; of `user:password` also the password by itself."""
    name = plan.telemetry.influx_token_env
    token = environ.get(name, "").strip() if name is not None else ""
    return [token, token.partition(":")[2]]


def api_key(channel: Channel, environ: Mapping[str, str]) -> str | None:
    """The channel's key, from the variable or file that the plan names; None if it names none or the variable is empty.

    A channel that was borrowed (`from_file`) has the key of that file, if the file holds one and the plan names none.
    Raises UsageError for a file that cannot be read or is empty, and for what no header can carry.
    """
    if channel.api_key_env is not None:
        key = environ.get(channel.api_key_env, "").strip()
        return fit_key(key, f"the environment variable {channel.api_key_env}") if key else None
    if channel.api_key_file is None:
        return None if channel.from_file is None else _borrowed_key(channel.from_file)
    path = _expanded(channel.api_key_file)
    text = _text_of(path, "key", "api_key_file names it").strip()
    if not text:
        raise UsageError(f"{path}: the key file is empty", hint="it must hold the key and nothing else")
    return fit_key(text, f"{path}: the key file")


def redis_password(access: RedisAccess, environ: Mapping[str, str]) -> str | None:
    """The password of Redis, from the variable or file that the plan names; None: it names none, or it is empty.

    Raises UsageError for a file that can't be read or is empty.
    """
    if access.password_env is not None:
        return environ.get(access.password_env, "").strip("\r\n") or None
    if access.password_file is None:
        return None
    path = _expanded(access.password_file)
    text = _text_of(path, "password", "password_file of [redis] names it").strip("\r\n")
    if not text:
        raise UsageError(f"{path}: the password file is empty", hint="it must hold the password and nothing else")
    return text


def _expanded(written: str) -> Path:
    path = Path(written)
    with suppress(RuntimeError):  # `~nobody`: told as a file that is not there
        path = path.expanduser()
    return path


def _text_of(path: Path, what: str, hint: str) -> str:
    """Of a file with a secret, which each worker reads: a pipe would be empty for the second. Raises UsageError."""
    from infersiege.traces.files.source import why_unreadable

    reason = why_unreadable(path)
    try:
        if reason is None:
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        reason = f"cannot be read: {why}"
    raise UsageError(f"{path}: the {what} file {reason}", hint=hint)


def _borrowed_key(from_file: str) -> str | None:
    from infersiege.plan.borrowed import key_of  # plan's messages go through scrub: plan imports this module

    key, place = key_of(from_file)
    return None if key is None else fit_key(key, place)


def fit_key(key: str, place: str) -> str:
    """The key, if a header can carry it. Raises UsageError, with the place and without the key, if none can."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"{place} holds more than a key: spaces, line ends or letters beyond ASCII",
            hint="it must hold the key and nothing else",
        )
    return key
