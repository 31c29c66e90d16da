"""Faults of a channel's `proxy`."""

from __future__ import annotations

from infersiege.channels.proxy import proxy_of
from infersiege.errors import UsageError
from infersiege.plan.faults import Faults
from infersiege.plan.schema import Plan


def proxies(plan: Plan, faults: Faults) -> None:
    """Look at each proxy before anything is looked up: only `http://host:port` is one."""
    for name, channel in plan.channels.items():
        here = ("channel", name, "proxy")
        if channel.proxy is None or not faults.ok(*here):
            continue
        try:
            proxy_of(channel.proxy)
        except UsageError as error:
            faults.add(here, f"{error}" + (f"; {error.hint}" if error.hint else ""))
