"""Producers of points in processes of their own, for tests that kill them: see test_influx_outages.py.

    python side_influx.py '{"url": …, "spool": …, "first": 0, "points": 60000, "rate": 1000}'

Prints what happened as JSON; writes down the value that it puts next, so that a test knows how far a killed one came.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

EPOCH_NS = 1_764_500_000_000_000_000


def produce(orders: dict[str, Any]) -> dict[str, Any]:
    """Puts `points` values from `first` on at `rate` per second, by absolute times; each has an instant of its own."""
    if orders.get("gevent"):
        from gevent import monkey

        monkey.patch_all()
    from infersiege_agents.influx import DurableWriter, target_of
    from infersiege_agents.points import Point

    writer = DurableWriter(target_of(orders["url"], token="secret"), Path(orders["spool"]), source=orders["source"])
    writer.start()
    first, rate = orders["first"], orders["rate"]
    taken_ns: list[int] = []
    progress = os.open(orders["progress"], os.O_RDWR | os.O_CREAT, 0o600) if "progress" in orders else None
    problems: list[str] = []
    began = time.monotonic()
    for number in range(orders["points"]):
        wait = began + number / rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        point = Point("stream", {"worker": "w1"}, {"value": first + number}, EPOCH_NS + (first + number) * 1000)
        before = time.perf_counter_ns()
        writer.put(point)
        taken_ns.append(time.perf_counter_ns() - before)
        if progress is not None:
            os.pwrite(progress, f"{first + number:09d}".encode(), 0)
        if number % rate == 0:
            writer.tick()
            if writer.problem and writer.problem not in problems[-1:]:
                problems.append(writer.problem)
    lasted = time.monotonic() - began
    counters = writer.close(orders["close_within_s"])
    taken_ns.sort()
    return {
        "counters": asdict(counters),
        "in_memory": counters.in_memory,
        "problem": writer.problem,
        "problems": problems,
        "lasted_s": lasted,
        "close_s": time.monotonic() - began - lasted,
        "put_mean_us": sum(taken_ns) / len(taken_ns) / 1000,
        "put_p99_us": taken_ns[int(len(taken_ns) * 0.99)] / 1000,
        "put_max_ms": taken_ns[-1] / 1e6,
    }


def _main() -> None:
    print(json.dumps(produce(json.loads(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    _main()
