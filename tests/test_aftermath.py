"""What the master writes of a run's stages: at its start, while workers wait for it, and at its end."""

from __future__ import annotations

import time

import pytest

from infersiege.plan.load_schema import Load
from infersiege.plan.schema import Channel, Plan, Run, Workload
from infersiege.swarm.aftermath import stage_facts
from infersiege.swarm.source import SessionSource

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
HOUR_S = 3600


def plan(load: Load, *workloads: Workload, seconds: float | None = None, run: Run | None = None) -> Plan:
    duration_ns = None if seconds is None else round(seconds * SECOND)
    return Plan(
        run=run or Run(seed=7, nonce="n", duration_ns=duration_ns),
        channels={"target": Channel(engine="vllm", base_url="http://127.0.0.1:9/v1", model="m")},
        workloads=workloads or (Workload(scenario="short-qa", trace="builtin:short-qa"),),
        load=load,
    )


def alone(described: Plan) -> SessionSource:
    return SessionSource(described, place=0, members=1)


def test_a_long_run_begins_at_once_however_many_arrivals_it_has() -> None:
    """43 million of them: to count them takes longer than a worker's lease, and nothing else gets done meanwhile."""
    described = plan(Load(mode="open", rate=500.0), seconds=24 * HOUR_S)
    source = alone(described)
    before_s = time.process_time()
    (stage,) = stage_facts(described, source, T0, None)
    assert time.process_time() - before_s < 0.5
    assert stage.arrivals is None and stage.rate == 500.0
    assert stage.steady_ended_ns - stage.started_ns == 24 * HOUR_S * SECOND
    (ended,) = stage_facts(described, source, T0, T0 + 20 * SECOND)
    assert ended.arrivals == pytest.approx(10_000, rel=0.1), "a run that ended early is held against its own seconds"
