"""Waits until the target has nothing to do, so that a probe meets no queue that the one before it left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from infersiege_agents.engine_scrape import ScrapeError, address_of, fetch
from infersiege_agents.engine_series import read
from infersiege_agents.errors import AgentError

from infersiege.channels.profiles import PROFILES
from infersiege.channels.url import root_url
from infersiege.errors import InfersiegeError
from infersiege.plan import Channel
from infersiege.redact import api_key, scrub

POLL_S = 0.2
DEADLINE_S = 5.0
"""Of one look at a metrics page."""


class Idleness(msgspec.Struct, frozen=True, kw_only=True):
    """How the target was found before a probe."""

    by: str
    """`gauges`: the engines' own running and waiting requests; `pause`: nobody tells, so we waited a while with nothing
    of ours in flight."""
    waited_s: float
    dirty: bool = False
    """It was not idle when the probe began: its figures hold somebody else's load too."""
    detail: str = ""


class Page(NamedTuple):
    """Where one replica tells what it is doing."""

    channel: str
    engine: str
    url: str
    key: str | None


def pages_of(channels: Mapping[str, Channel], environ: Mapping[str, str]) -> list[Page]:
    """The metrics pages of these channels; clouds have none."""
    pages: dict[str, Page] = {}
    for name, channel in channels.items():
        path = PROFILES[channel.engine].metrics_path
        if path is None:
            continue
        for address in channel.addresses:
            url = root_url(address, path)
            pages.setdefault(url, Page(name, channel.engine, url, api_key(channel, environ)))
    return list(pages.values())


def busy(page: Page) -> float | None:
    """Requests that the engine works on or holds back; None: it does not tell."""
    try:
        address = address_of(page.url)
        gauges = read(fetch(address, address.path, api_key=page.key, deadline_s=DEADLINE_S), page.engine).gauges
    except (ScrapeError, AgentError, InfersiegeError):
        return None
    told = [gauges[name] for name in ("running", "waiting") if name in gauges]
    return sum(told) if told else None


def wait_until_idle(
    pages: Sequence[Page],
    *,
    pause_s: float,
    limit_s: float,
    stopped: Callable[[], bool] = lambda: False,
    look: Callable[[Page], float | None] = busy,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Idleness:
    """Return when no page tells of a request, or after `limit_s` with `dirty`.

    `pause_s` is waited where not every page tells (or there is none). `stopped` ends the wait at once.
    """
    start = clock()
    silent = not pages
    while not stopped():
        seen = {page: look(page) for page in pages}
        silent = silent or any(requests is None for requests in seen.values())
        working = {page.channel: requests for page, requests in seen.items() if requests}
        waited = clock() - start
        if not working and (not silent or waited >= pause_s):
            return Idleness(by="pause" if silent else "gauges", waited_s=round(waited, 3))
        if working and waited >= limit_s:
            detail = ", ".join(f"{scrub(name)}: {requests:.0f} requests" for name, requests in working.items())
            return Idleness(by="gauges", waited_s=round(waited, 3), dirty=True, detail=detail)
        sleep(POLL_S)
    return Idleness(by="gauges", waited_s=round(clock() - start, 3), dirty=True, detail="not waited for: interrupted")
