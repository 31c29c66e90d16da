"""Whether the engines of a plan are idle: one look at their metrics pages, as the engine agent reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from infersiege_agents.engine_names import ENGINES
from infersiege_agents.engine_scrape import Page, ScrapeError, address_of, fetch
from infersiege_agents.engine_series import read
from infersiege_agents.errors import AgentError

from infersiege.channels.profiles import PROFILES
from infersiege.channels.url import root_url
from infersiege.errors import InfersiegeError
from infersiege.plan.schema import Channel, Plan
from infersiege.redact import api_key


@dataclass(frozen=True, slots=True)
class EnginePage:
    """Where one engine of a channel tells what it is doing."""

    name: str
    """Of the channel."""
    channel: Channel
    base: str
    """One of its addresses."""


class Running(NamedTuple):
    """Requests that an engine has."""

    running: float
    waiting: float


def engine_pages(plan: Plan) -> tuple[EnginePage, ...]:
    """Every address of the channels whose engines tell what they run."""
    return tuple(
        EnginePage(name, channel, base)
        for name, channel in plan.channels.items()
        if PROFILES[channel.engine].metrics_path is not None and channel.engine in ENGINES
        for base in channel.addresses
    )


def ask(page: EnginePage, environ: Mapping[str, str], within_s: float) -> Running | None:
    """What an engine has right now. None: it does not answer within so many seconds, or has no such figures."""
    found = opened(page, environ, within_s)
    if found is None:
        return None
    try:
        gauges = read(found, page.channel.engine).gauges
    except ScrapeError:
        return None
    if "running" not in gauges and "waiting" not in gauges:
        return None
    return Running(gauges.get("running", 0.0), gauges.get("waiting", 0.0))


def opened(page: EnginePage, environ: Mapping[str, str], within_s: float) -> Page | None:
    """What the page of an engine holds. None: no such page in time."""
    try:
        address = address_of(root_url(page.base, PROFILES[page.channel.engine].metrics_path or ""))
        return fetch(address, address.path, api_key=api_key(page.channel, environ), deadline_s=within_s)
    except (AgentError, InfersiegeError, ScrapeError):
        return None
