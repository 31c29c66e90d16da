"""Faults of workloads whose trace lies in Redis, and of [redis]."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from infersiege.errors import UsageError
from infersiege.plan.defaults import local_file
from infersiege.plan.locate import KeyPath
from infersiege.plan.schema import Workload
from infersiege.redact import looks_secret, redis_password

if TYPE_CHECKING:
    from infersiege.plan.checks import Draft

SCHEMES = ("redis", "rediss", "unix")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DATABASE = re.compile(r"(/[0-9]{0,5})?")
_FORM = "redis://host:6379/0, rediss://host:6379/0 or unix:///run/redis.sock"
_WHEN_LOADED = ("format", "options", "length_scale", "output_scale")
"""Keys that say how a file is read: `traces load` has done that."""


def in_redis(draft: Draft, here: KeyPath, workload: Workload) -> None:
    """Add every fault of a workload that has a source. Whether the trace is there is found out when it is opened."""
    faults = draft.faults
    if faults.ok(*here, "source") and (fault := source_fault(workload.source or "")) is not None:
        faults.add((*here, "source"), fault)
    if faults.ok(*here, "trace") and (not workload.trace.strip() or not workload.trace.isprintable()):
        faults.add((*here, "trace"), "is no name of a trace in Redis; write the one of `traces load --name`")
    for key in _WHEN_LOADED:
        if draft.written(*here, key) and faults.ok(*here, key):
            faults.add((*here, key), "means nothing for a trace in Redis: give it to `infersiege traces load`")


def source_fault(url: str) -> str | None:
    """What is wrong with an address, without a word of it that may be a password; None: nothing."""
    if "@" in url:
        return "has a user or a password in it; [redis] has user, and password_env for the variable of the password"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"is no address of a Redis; write it like {_FORM}"
    if parts.scheme not in SCHEMES:
        return f"is no address of a Redis; write it like {_FORM}"
    if parts.query or parts.fragment:
        return "has more than an address: leave out what comes after ? or #"
    if parts.scheme == "unix":
        return None if parts.path.startswith("/") and not parts.netloc else f"is no socket; write it like {_FORM}"
    if not parts.hostname or port == 0:
        return f"names no host; write it like {_FORM}"
    if not _DATABASE.fullmatch(parts.path):
        return "what follows the / is no number of a database"
    return None


def access(draft: Draft) -> None:
    """Add every fault of [redis]."""
    plan, faults = draft.plan, draft.faults
    used = [workload for workload in plan.workloads if workload.source is not None]
    if not used:
        if draft.written("redis") and faults.ok("redis") and faults.ok("workload"):
            faults.add(("redis",), "means nothing: no workload has a source")
        return
    for index, workload in enumerate(plan.workloads):
        here = ("workload", index, "source")
        if plan.redis.ca is not None and workload.source is not None and faults.ok("redis", "ca") and faults.ok(*here):
            _ca(draft, workload.source)
    if plan.redis.user is not None and faults.ok("redis", "user") and not _has_password(draft):
        faults.add(("redis", "user"), "needs a password; name its variable in password_env")
    _password(draft)


def _has_password(draft: Draft) -> bool:
    return any(draft.written("redis", key) for key in ("password_env", "password_file"))


def _ca(draft: Draft, source: str) -> None:
    from infersiege.plan.channel_checks import file_fault

    here, ca = ("redis", "ca"), draft.plan.redis.ca or ""
    if not source.startswith("rediss:"):
        draft.faults.add(here, f"means nothing for {source.partition(':')[0]}://, which has no TLS; write rediss://")
    elif (fault := file_fault(local_file(ca, draft.base), str(local_file(ca, draft.base)))) is not None:
        draft.faults.add(here, fault)


def _password(draft: Draft) -> None:
    from infersiege.plan.channel_checks import file_fault

    faults, access = draft.faults, draft.plan.redis
    variable, file = access.password_env, access.password_file
    if variable is not None and file is not None and faults.ok("redis", "password_file"):
        faults.add(("redis", "password_file"), "the password comes from password_env already; leave one of them out")
    here = ("redis", "password_file" if variable is None else "password_env")
    if not faults.ok(*here):
        return
    if variable is not None and (not _VARIABLE.fullmatch(variable) or looks_secret(variable)):
        faults.add(here, "is no name of an environment variable (the password itself must not stand here)")
        return
    if draft.environ is None:
        return
    path = None if file is None else str(local_file(file, draft.base))
    if variable is None and path is not None and (fault := file_fault(Path(path), path)) is not None:
        faults.add(here, fault)
        return
    try:
        password = redis_password(msgspec.structs.replace(access, password_file=path), draft.environ)
    except UsageError as error:
        faults.add(here, str(error))
        return
    if variable is not None and password is None:
        state = "empty" if variable in draft.environ else "not set"
        faults.add(here, f"the environment variable {variable} is {state}; export it with the password")
