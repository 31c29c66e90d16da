"""Waits until the target has nothing to do, so that a probe meets no queue that the one before it left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from infersiege.capacity.child import Interrupted, Interruption
from infersiege.redact import scrub
from infersiege.telemetry.idle import EnginePage, ask

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


def requests_of(page: EnginePage, environ: Mapping[str, str]) -> float | None:
    """Requests that the engine works on or holds back; None: it does not tell."""
    found = ask(page, environ, DEADLINE_S)
    return None if found is None else found.running + found.waiting


def wait_until_idle(
    pages: Sequence[EnginePage],
    look: Callable[[EnginePage], float | None],
    *,
    pause_s: float,
    limit_s: float,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Idleness:
    """Return when no page tells of a request, or after `limit_s` with `dirty`.

    `look` tells how many requests an engine has; None: it does not tell. `pause_s` is waited where not every page tells
    (or there is none). `stopped` ends the wait at once.
    """
    start = clock()
    silent = not pages
    while not stopped():
        seen = [(page.name, look(page)) for page in pages]
        silent = silent or any(requests is None for _, requests in seen)
        working = {name: requests for name, requests in seen if requests}
        waited = clock() - start
        if not working and (not silent or waited >= pause_s):
            return Idleness(by="pause" if silent else "gauges", waited_s=round(waited, 3))
        if working and waited >= limit_s:
            detail = ", ".join(f"{scrub(name)}: {requests:.0f} requests" for name, requests in working.items())
            return Idleness(by="gauges", waited_s=round(waited, 3), dirty=True, detail=detail)
        sleep(POLL_S)
    return Idleness(by="gauges", waited_s=round(clock() - start, 3), dirty=True, detail="not waited for: interrupted")


def wait_before_run(
    pages: Sequence[EnginePage],
    environ: Mapping[str, str],
    interruption: Interruption,
    *,
    pause_s: float,
    limit_s: float,
) -> Idleness:
    """`wait_until_idle`, by the engines' own pages. Raises Interrupted when somebody stopped us."""
    idle = wait_until_idle(
        pages,
        lambda page: requests_of(page, environ),
        pause_s=pause_s,
        limit_s=limit_s,
        stopped=interruption.asked,
    )
    if interruption.asked():
        raise Interrupted
    return idle
