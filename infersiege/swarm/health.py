"""How this worker process does: CPU, event-loop lag, garbage-collector pauses, memory, sockets."""

from __future__ import annotations

import gc
import os
import resource
import time
from pathlib import Path

import gevent

from infersiege.errors import UsageError
from infersiege.metrics.histogram import Histogram, bucket_of
from infersiege.plan.schema import Plan
from infersiege.plan.streams import streams_of
from infersiege.records import ClientHealth

TICK_SECONDS = 0.01
TICK_NS = 10_000_000
MOST_STEPS = 1_000
PROCESS_FILES = 32
"""Descriptors of a master or worker beside its connections: 18 to 20 when the load begins, and a few for what it opens
for a moment."""


def freeze_garbage() -> None:
    """Keep the collector off the measurement: what set-up made is never scanned again, and passes become rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


class HealthMonitor:
    """Samples while its greenlet runs; `sample` gives the figures since the last one and starts anew."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lag = LagLooks()
        self._lag_of_all = LagLooks()
        self._lag_max_ns = 0
        self._gc_started_ns = 0
        self._gc_max_ns = self._gc_ns = 0
        self._cpu_seconds = time.process_time()
        self._wait_ns = _run_delay_ns()
        self._wall_ns = time.monotonic_ns()
        self.cpu_share_max: float | None = None

    def start(self) -> None:
        gc.callbacks.append(self._on_gc)
        self._watcher = gevent.spawn(self._watch)

    def stop(self) -> None:
        """End watching; only after `start`."""
        gc.callbacks.remove(self._on_gc)
        self._watcher.kill()

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_started_ns = time.monotonic_ns()
        else:
            pause_ns = time.monotonic_ns() - self._gc_started_ns
            self._gc_ns += pause_ns
            self._gc_max_ns = max(self._gc_max_ns, pause_ns)

    def _watch(self) -> None:
        """Lag = how much later than asked a timer came; the loop's 1 ms timer grain is within it."""
        while True:
            before = time.monotonic_ns()
            gevent.sleep(TICK_SECONDS)
            lag_ns = max(0, time.monotonic_ns() - before - TICK_NS)
            self._lag.add(lag_ns)
            self._lag_max_ns = max(self._lag_max_ns, lag_ns)

    @property
    def hub_lag_p99_ns(self) -> int | None:
        """Of the samples that were taken, in whole ms."""
        value = Histogram.from_sparse(self._lag_of_all.counts).percentile(0.99)
        return None if value is None else value * 1_000_000

    def sample(self, offset_ns: int) -> ClientHealth:
        """How the worker did since the last sample. `offset_ns`: master's epoch minus this monotonic clock."""
        cpu_seconds, wait_ns, wall_ns = time.process_time(), _run_delay_ns(), time.monotonic_ns()
        seconds = max(1e-3, (wall_ns - self._wall_ns) / 1e9)
        share = (cpu_seconds - self._cpu_seconds) / seconds
        wait = None if wait_ns is None or self._wait_ns is None else (wait_ns - self._wait_ns) / 1e9 / seconds
        self.cpu_share_max = share if self.cpu_share_max is None else max(self.cpu_share_max, share)
        health = ClientHealth(
            second=(wall_ns + offset_ns) // 1_000_000_000,
            worker=self._worker,
            begun_ns=self._wall_ns + offset_ns,
            ended_ns=wall_ns + offset_ns,
            cpu_share=round(share, 4),
            cpu_wait_share=None if wait is None else round(wait, 4),
            hub_lag=dict(sorted(self._lag.counts.items())),
            hub_lag_max_ns=self._lag_max_ns,
            gc_pause_max_ns=self._gc_max_ns,
            gc_pause_ns=self._gc_ns,
            rss_bytes=_resident_bytes(),
            open_files=_open_files(),
        )
        self._lag_of_all.merge(self._lag)
        self._lag = LagLooks()
        self._cpu_seconds, self._wait_ns, self._wall_ns = cpu_seconds, wait_ns, wall_ns
        self._lag_max_ns = self._gc_max_ns = self._gc_ns = 0
        return health


class LagLooks:
    """Looks at the event loop, one per tick, by how many whole ms they were late (histogram bucket -> looks).

    A stall hides looks: one of 100 ms is seen once, where ten would have been 100, 90, 80 … ms late. They are added, so
    that a percentile is over time and not over the looks that a stalled loop had time for.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, lag_ns: int) -> None:
        hidden = lag_ns // TICK_NS
        # A process that was stopped for an hour hid too many to go through: in steps, each of several looks.
        step = 1 + hidden // MOST_STEPS
        for number in range(0, hidden + 1, step):
            bucket = bucket_of((lag_ns - number * TICK_NS) // 1_000_000)
            self.counts[bucket] = self.counts.get(bucket, 0) + step

    def merge(self, other: LagLooks) -> None:
        for bucket, looks in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + looks


def _run_delay_ns() -> int | None:
    """Time that this process's main thread was runnable without a CPU, since its start; None: not Linux, or no file."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _resident_bytes() -> int | None:
    try:
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:  # no descriptor is left
        return None
    return int(fields[1]) * resource.getpagesize()


def _open_files() -> int | None:
    """Descriptors in all: sockets are nearly all of them, and telling them apart costs a readlink each."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no Path objects for thousands of entries
    except OSError:
        return None


def raise_descriptor_limit() -> int:
    """Lift the soft limit on open files to the hard one; returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def worker_files(plan: Plan, members: int) -> int:
    """Least descriptors that each of so many workers needs: a connection for every user of a closed loop, who keeps it.

    What an open loop has in flight nobody knows before; the doctor holds its cap against the limit (docs/doctor.md).
    """
    if not all(channel.keep_alive for channel in plan.channels.values()):
        return PROCESS_FILES
    closed = [stream for stream in streams_of(plan) if stream.load.mode == "closed"]
    users = sum(max(stage.users for stage in stream.users) for stream in closed)
    stop = plan.run.stop
    if stop is not None and stop.sessions is not None:
        users = min(users, stop.sessions)
    return PROCESS_FILES + -(-users // members)


def require_files(needed: int, who: str) -> None:
    """Lift the limit on open files, and raise UsageError where that is less than needed: before the load, since in it
    each turn would fail, and imports too. `who`: needs them, for people."""
    limit = raise_descriptor_limit()
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return
    raise UsageError(
        f"a process may have {limit:,} open files here, and {who} needs at least {needed:,}",
        hint=f"raise the limit where it was set: `ulimit -n {max(1_024, needed)}` of the shell, LimitNOFILE of the "
        "service, --ulimit nofile of the container",
    )
