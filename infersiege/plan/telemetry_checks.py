"""Faults of [telemetry]: addresses, the token's variable, keys that would do nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from infersiege_agents.errors import AgentError
from infersiege_agents.influx.target import target_of

from infersiege.plan.defaults import local_file
from infersiege.redact import looks_secret

if TYPE_CHECKING:
    from infersiege.plan.checks import Draft

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_VARIABLE = 64
"""A name longer than this is a token: those of InfluxDB 3 are letters, digits and `_` too."""
_NEEDS_URL = ("influx_bucket", "influx_org", "influx_token_env", "spool")


def telemetry(draft: Draft) -> None:
    """Add every fault of [telemetry]. Whether the database is there is doctor's to see, and no reason not to run."""
    plan, faults = draft.plan.telemetry, draft.faults
    url = plan.influx_url
    if url is None:
        for key in _NEEDS_URL:
            if draft.written("telemetry", key) and faults.ok("telemetry", key) and faults.ok("telemetry", "influx_url"):
                faults.add(("telemetry", key), "means nothing without influx_url")
    elif faults.ok("telemetry", "influx_url"):
        try:
            target_of(url)
        except AgentError as error:
            seen = str(error).split(": ", 1)[-1]
            faults.add(("telemetry", "influx_url"), f"{seen}; {error.hint}")
    _token(draft)
    _grafana(draft)
    _spool(draft)
    for index, host in enumerate(plan.hosts):
        if not host.strip() and faults.ok("telemetry", "hosts", index):
            faults.add(("telemetry", "hosts", index), "is empty; write the host's name as its agent tells it")


def _token(draft: Draft) -> None:
    here, variable = ("telemetry", "influx_token_env"), draft.plan.telemetry.influx_token_env
    if variable is None or not draft.faults.ok(*here):
        return
    if not _VARIABLE.fullmatch(variable) or len(variable) > _LONGEST_VARIABLE or variable.startswith("apiv3_"):
        draft.faults.add(here, "is no name of an environment variable (the token itself must not stand here)")
    elif looks_secret(variable):
        draft.faults.add(here, "looks like the token itself; write the name of the variable that holds it")
    elif draft.environ is not None and not draft.environ.get(variable, "").strip():
        state = "empty" if variable in draft.environ else "not set"
        draft.faults.add(here, f"the environment variable {variable} is {state}; export it with the token")
    elif draft.environ is not None and not _fits(draft.environ[variable].strip()):
        draft.faults.add(
            here, f"the environment variable {variable} holds more than a token: line ends or letters beyond ASCII"
        )


def _fits(token: str) -> bool:
    """A header can carry it."""
    return token.isascii() and token.isprintable()


def _grafana(draft: Draft) -> None:
    here, url = ("telemetry", "grafana_url"), draft.plan.telemetry.grafana_url
    if url is None or not draft.faults.ok(*here):
        return
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        draft.faults.add(here, "is no address; write it like http://127.0.0.1:3000")
    elif parts.username or parts.password:
        draft.faults.add(here, "has a user or a password in it; links go into the report, so leave them out")
    elif parts.query or parts.fragment:
        draft.faults.add(here, "has more than Grafana's own address; leave out what comes after ? or #")


def _spool(draft: Draft) -> None:
    here, spool = ("telemetry", "spool"), draft.plan.telemetry.spool
    if spool is None or not draft.faults.ok(*here):
        return
    if local_file(spool, draft.base).is_file():
        draft.faults.add(here, f"{spool} is a file; it must be a directory, or nothing yet")
