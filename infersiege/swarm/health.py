"""How this worker process does: CPU, event-loop lag, garbage-collector pauses, memory, sockets."""

from __future__ import annotations

import gc
import os
import resource
import time
from pathlib import Path

import gevent

from infersiege.metrics.histogram import Histogram
from infersiege.records import ClientHealth

TICK_SECONDS = 0.01


def freeze_garbage() -> None:
    """Keep the collector off the measurement: what set-up made is never scanned again, and passes become rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


class HealthMonitor:
    """Samples while its greenlet runs; `sample` gives one second's figures and starts the next."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lag = Histogram()
        self._lag_max_ns = 0
        self._gc_started_ns = 0
        self._gc_max_ns = 0
        self._cpu_seconds = time.process_time()
        self._wall_ns = time.monotonic_ns()
        self.cpu_share_max: float | None = None

    def start(self) -> None:
        gc.callbacks.append(self._on_gc)
        gevent.spawn(self._watch)

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_started_ns = time.monotonic_ns()
        else:
            self._gc_max_ns = max(self._gc_max_ns, time.monotonic_ns() - self._gc_started_ns)

    def _watch(self) -> None:
        """Lag = how much later than asked a timer came; the loop's 1 ms timer grain is within it."""
        expected = TICK_SECONDS * 1e9
        while True:
            before = time.monotonic_ns()
            gevent.sleep(TICK_SECONDS)
            lag_ns = max(0, int(time.monotonic_ns() - before - expected))
            self._lag.add(lag_ns)
            self._lag_max_ns = max(self._lag_max_ns, lag_ns)

    @property
    def hub_lag_p99_ns(self) -> int | None:
        value = self._lag.percentile(0.99)
        return None if value is None else int(value)

    def sample(self, second: int) -> ClientHealth:
        cpu_seconds, wall_ns = time.process_time(), time.monotonic_ns()
        share = (cpu_seconds - self._cpu_seconds) / max(1e-3, (wall_ns - self._wall_ns) / 1e9)
        self._cpu_seconds, self._wall_ns = cpu_seconds, wall_ns
        self.cpu_share_max = share if self.cpu_share_max is None else max(self.cpu_share_max, share)
        health = ClientHealth(
            second=second,
            worker=self._worker,
            cpu_share=round(share, 4),
            hub_lag_max_ns=self._lag_max_ns,
            gc_pause_max_ns=self._gc_max_ns,
            rss_bytes=_resident_bytes(),
            open_files=_open_files(),
        )
        self._lag_max_ns = self._gc_max_ns = 0
        return health


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
