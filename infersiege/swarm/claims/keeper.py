"""The master's side: what a run needs in Redis is made before it, and goes with it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import redis

from infersiege.errors import UsageError
from infersiege.plan.schema import Plan
from infersiege.records import Plays, TurnRecord
from infersiege.redis_stream import Address, address_of, keys
from infersiege.redis_stream.address import check_version, connected, refusal
from infersiege.redis_stream.groups import Group
from infersiege.redis_stream.names import RUN_S, index_of, run_key, run_of
from infersiege.swarm.ledger import workload_key

log = logging.getLogger("infersiege.swarm.claims")

END_S = 2.0
"""Most that the end of a run waits for a Redis."""


class Remarks(NamedTuple):
    """What became of sessions that Redis gave out."""

    invalid: list[str]
    """Why the run's figures can't be trusted."""
    warnings: list[str]


@dataclass(slots=True)
class ClaimKeeper:
    """One run's groups, of all workloads whose traces lie in Redis; without any it does nothing."""

    plan: Plan
    run_id: str
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    taken: dict[int, int] = field(default_factory=dict)
    """Sessions that workers took, over all repeats, by place of the workload: known at the end, where Redis answers."""

    def __enter__(self) -> ClaimKeeper:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Make the groups, and take away those of runs that are gone. Raises UsageError."""
        for address, places in self._servers():
            with connected(address) as server:
                check_version(server, address)
                for place in places:
                    name = self.plan.workloads[place].trace
                    forget_dead_runs(server, name)
                    key = run_key(name, self.run_id)
                    server.hset(key, "begun", time.time_ns())
                    server.expire(key, RUN_S)
                    Group(name, self.run_id, place, 0, "").create(server)

    def end(self) -> None:
        """Take away all that the run has in Redis. Where it does not answer, that is forgotten by the next run of the
        trace, once RUN_S have passed."""
        try:
            servers = list(self._servers())
        except UsageError as error:  # the password's file is gone by now
            log.warning("what the run had in Redis was not taken away: %s", error)
            return
        for address, places in servers:
            try:
                with address.client(END_S) as server:
                    for place in places:
                        self.taken[place] = _taken_away(server, self.plan.workloads[place].trace, self.run_id, place)
                    for place in places:
                        server.delete(run_key(self.plan.workloads[place].trace, self.run_id))
            except redis.RedisError as error:
                log.warning("what the run had in Redis was not taken away: %s", refusal(error, address))

    def remarks(self, turns: Iterable[TurnRecord], plays: Mapping[str, Plays], *, died: bool) -> Remarks:
        """Hold what Redis says against the records. `plays`: of all workers, by `workload_key`; `died`: one did."""
        if all(workload.source is None for workload in self.plan.workloads):
            return Remarks([], [])
        scenarios = {workload.scenario for workload in self.plan.workloads if workload.source is not None}
        twice = played_twice(turn for turn in turns if turn.scenario in scenarios)
        invalid = []
        if twice:
            invalid.append(
                f"{len(twice):,} sessions were played twice (first: {twice[0]}): Redis had lost that it had given them "
                "out; `appendfsync always` keeps it from that (docs/redis.md)"
            )
        warnings = []
        for place, taken in self.taken.items() if died else ():
            workload = self.plan.workloads[place]
            key = workload_key(workload.scenario, workload.channel or next(iter(self.plan.channels)))
            missing = taken - plays.get(key, Plays()).taken
            if missing > 0:
                warnings.append(
                    f"{workload.scenario}: {missing:,} sessions were taken from Redis by a worker that died before it "
                    "could begin them: they were not played"
                )
        return Remarks(invalid, warnings)

    def _servers(self) -> Iterator[tuple[Address, list[int]]]:
        places: dict[str, list[int]] = {}
        for place, workload in enumerate(self.plan.workloads):
            if workload.source is not None:
                places.setdefault(workload.source, []).append(place)
        for source, some in places.items():
            yield address_of(self.plan, source, self.environ), some


def forget_dead_runs(server: redis.Redis, name: str) -> int:
    """Groups of runs that have shown no sign of life for RUN_S go. How many."""
    stream, gone = keys(name)[1], 0
    groups: Any = server.xinfo_groups(stream)
    for group in groups:
        title = group["name"].decode(errors="replace")
        if title.count(":") == 2 and not server.exists(run_key(name, run_of(title))):
            server.xgroup_destroy(stream, group["name"])
            gone += 1
    return gone


def played_twice(turns: Iterable[TurnRecord]) -> list[str]:
    """Sessions of which more than one worker has records, in the order in which they were found."""
    player: dict[str, str] = {}
    twice: dict[str, None] = {}
    for turn in turns:
        if player.setdefault(turn.session_id, turn.worker) != turn.worker:
            twice[turn.session_id] = None
    return list(twice)


def _taken_away(server: redis.Redis, name: str, run_id: str, place: int) -> int:
    """The groups of one workload go. How many of their sessions were taken."""
    stream, taken = keys(name)[1], 0
    groups: Any = server.xinfo_groups(stream)
    for group in groups:
        if group["name"].decode(errors="replace").startswith(f"{run_id}:{place}:"):
            taken += index_of(group["last-delivered-id"]) + 1 - group["pending"]
            server.xgroup_destroy(stream, group["name"])
    return taken
