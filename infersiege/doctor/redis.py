"""Preflight of the Redis that workloads name as their source: is it there, is the trace whole, will it keep it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import redis
from redis.exceptions import NoPermissionError

from infersiege.doctor.findings import Check, Verdict
from infersiege.errors import InfersiegeError
from infersiege.plan.schema import Plan
from infersiege.redis_stream import Address, RedisTrace, address_of, keys, shown
from infersiege.redis_stream.address import check_version, connected
from infersiege.redis_stream.names import PREFIX

TRY_GROUP = f"{PREFIX}-doctor"
_KEEPS = "appendonly yes and appendfsync everysec keep all but the last second when Redis crashes (docs/redis.md)"


class RedisExamination(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out of the plan's Redis."""

    checks: tuple[Check, ...] = ()
    """Empty when no workload has a source."""
    error: InfersiegeError | None = None
    """Why a run could not begin."""


def examine_redis(plan: Plan, environ: Mapping[str, str]) -> RedisExamination:
    """Look at each server and each trace once. Errors are in the result."""
    wanted: dict[str, dict[str, None]] = {}
    for workload in plan.workloads:
        if workload.source is not None:
            wanted.setdefault(workload.source, {})[workload.trace] = None
    checks: list[Check] = []
    error: InfersiegeError | None = None
    for source, names in wanted.items():
        try:
            address = address_of(plan, source, environ)
            with connected(address) as server:
                checks += _server(server, address)
            for name in names:
                checks.append(_trace(address, name))
                with connected(address) as server:
                    checks.append(_group(server, address, name))
        except InfersiegeError as failed:
            checks.append(Check(name="redis", verdict=Verdict.FAULT, seen=str(failed), hint=failed.hint))
            error = error or failed
    return RedisExamination(checks=tuple(checks), error=error)


def _server(server: redis.Redis, address: Address) -> Iterator[Check]:
    version = check_version(server, address)
    yield Check(name="redis", verdict=Verdict.OK, seen=f"{shown(address.url)}: {version}")
    try:
        kept: Any = server.info("persistence")
        memory: Any = server.info("memory")
    except NoPermissionError:
        return
    if kept.get("aof_enabled"):
        yield Check(name="persistence", verdict=Verdict.OK, seen="it writes an append-only file")
    else:
        seen = "it writes no append-only file: once it is started again it does not know what it had given out"
        yield Check(name="persistence", verdict=Verdict.WARNING, seen=seen, hint=_KEEPS)
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if memory.get("maxmemory") and policy.startswith("allkeys"):
        seen = f"maxmemory-policy {policy}: it may drop the trace when its memory is full"
        yield Check(name="eviction", verdict=Verdict.WARNING, seen=seen, hint="noeviction keeps it")


def _trace(address: Address, name: str) -> Check:
    trace = RedisTrace(address, name)
    trace.session(0)
    times = "with" if trace.arrivals_ns is not None else "without"
    seen = f"{name}: {trace.stored:,} sessions, {times} times, sha256 {(trace.sha256 or '')[:12]}…"
    return Check(name="trace", verdict=Verdict.OK, seen=seen)


def _group(server: redis.Redis, address: Address, name: str) -> Check:
    """Whether this user may hand out sessions: a group is made and taken away again."""
    stream = keys(name)[1]
    server.xgroup_destroy(stream, TRY_GROUP)
    server.xgroup_create(stream, TRY_GROUP, id="$")
    server.xgroup_destroy(stream, TRY_GROUP)
    return Check(name="groups", verdict=Verdict.OK, seen=f"{name}: sessions can be handed out")
