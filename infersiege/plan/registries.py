"""Names that a plan may use for engines, dialects, trace formats, arrival processes and metrics.

Imported when asked, so that reading the schema costs nothing of them.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Legal names of one kind."""

    now: tuple[str, ...]
    later: tuple[str, ...] = ()
    """Known, but not built yet."""


def names(registry: str) -> Names:
    """Names in `PROFILES`, `DIALECTS`, `READERS`, `BUILTINS`, `ARRIVALS`, `METRICS` or `STATS`."""
    if registry == "PROFILES":
        from infersiege.channels import PROFILES

        return Names(now=(*PROFILES, "hybrid"))  # a channel made of others has its own table (schema.Hybrid)
    if registry == "DIALECTS":
        from infersiege.channels import DIALECTS, LATER_DIALECTS

        return Names(now=tuple(DIALECTS), later=tuple(LATER_DIALECTS))
    if registry == "READERS":
        from infersiege.traces import READERS

        return Names(now=tuple(READERS))
    if registry == "BUILTINS":
        from infersiege.traces import BUILTINS

        return Names(now=tuple(BUILTINS))
    if registry == "ARRIVALS":
        from infersiege.schedule import ARRIVALS

        return Names(now=tuple(ARRIVALS))
    return _metric_names(registry)


def _metric_names(registry: Literal["METRICS", "STATS"] | str) -> Names:
    from infersiege.metrics.definitions import METRICS, STATS

    if registry == "METRICS":
        return Names(now=tuple(METRICS))
    if registry == "STATS":
        return Names(now=tuple(STATS))
    raise KeyError(registry)
