"""Whether the engines of a plan are idle: one look at their metrics pages, as the engine agent reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from infersiege_agents.engine_names import ENGINES
from infersiege_agents.engine_scrape import ScrapeError, address_of, fetch
from infersiege_agents.engine_series import read
from infersiege_agents.errors import AgentError

from infersiege.channels.profiles import PROFILES
from infersiege.channels.url import root_url
from infersiege.errors import InfersiegeError
from infersiege.plan.schema import Channel, Plan
from infersiege.redact import api_key

LOOK_WITHIN_S = 1.0


def watchable(plan: Plan) -> dict[str, Channel]:
    """Channels whose engines tell what they run."""
    return {
        name: channel
        for name, channel in plan.channels.items()
        if PROFILES[channel.engine].metrics_path is not None and channel.engine in ENGINES
    }


def busy(channels: Mapping[str, Channel], environ: Mapping[str, str]) -> Iterator[tuple[str, float, float]]:
    """(channel, running, waiting) of each address that is not idle. One that does not answer, or that has no such
    figures, tells nothing."""
    for name, channel in channels.items():
        path = PROFILES[channel.engine].metrics_path or ""
        for base in channel.addresses:
            try:
                address = address_of(root_url(base, path))
                page = fetch(address, address.path, api_key=api_key(channel, environ), deadline_s=LOOK_WITHIN_S)
                gauges = read(page, channel.engine).gauges
            except (AgentError, InfersiegeError, ScrapeError):
                continue
            running, waiting = gauges.get("running", 0.0), gauges.get("waiting", 0.0)
            if running or waiting:
                yield name, running, waiting
