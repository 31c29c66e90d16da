"""The master's look at engines before a stage, in a process of its own: it needs cooperative sockets."""

from __future__ import annotations

from infersiege.swarm.patching import patch

patch()

import time  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402

from infersiege.plan.load_schema import Load, Stage  # noqa: E402
from infersiege.plan.schema import Channel, Plan, Run, Workload  # noqa: E402
from infersiege.swarm.stages import StageEvent, StageWatch  # noqa: E402
from infersiege.swarm.timeline import Timeline  # noqa: E402

SECOND = 1_000_000_000


def look(addresses: dict[str, list[str]]) -> dict[str, Any]:
    """Watch the end of a pause of 4 s: the engines are looked at 0.5 s before it is over. By channel: its URLs."""
    stage = Stage(users=1, duration_ns=SECOND, ramp_ns=0)
    plan = Plan(
        run=Run(),
        channels={name: Channel(engine="vllm", model="m", base_urls=tuple(urls)) for name, urls in addresses.items()},
        workloads=(Workload(scenario="s", trace="builtin:short-qa"),),
        load=Load(mode="closed", stages=(stage, stage), pause_ns=4 * SECOND),
    )
    timeline = Timeline.of(plan, start_ns=time.monotonic_ns() - 4 * SECOND - SECOND // 4)
    watch = StageWatch(plan, timeline, {})
    events: list[StageEvent] = []
    while time.monotonic_ns() < timeline.start_ns + 5 * SECOND + SECOND // 2:
        events += watch.passed(time.monotonic_ns())
        gevent.sleep(0.02)
    told = [
        [event.kind, event.detail, event.at_ns < timeline.start_ns + 5 * SECOND]
        for event in events
        if event.kind in ("started_dirty", "idle_unknown")
    ]
    return {"dirty": sorted(watch.dirty), "events": told}
