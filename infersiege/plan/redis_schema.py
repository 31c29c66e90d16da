"""[redis]: how to get into the Redis that workloads name as their `source`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from infersiege.plan.bounds import SECOND_NS, SPAN, meta


class RedisAccess(msgspec.Struct, frozen=True, kw_only=True):
    """[redis]: the same for every workload that has a `source`."""

    user: Annotated[str | None, meta("User, where it is not the default one", longest=200)] = None
    password_env: Annotated[str | None, meta("Environment variable that holds the password, on every host")] = None
    password_file: Annotated[str | None, meta("File that holds the password, and nothing else")] = None
    ca: Annotated[
        str | None, meta("PEM file of certificate authorities to trust instead of the system's, for rediss://")
    ] = None
    patience_ns: Annotated[
        int, meta("How long arrivals wait for a Redis that does not answer before the run ends", **SPAN)
    ] = 30 * SECOND_NS
