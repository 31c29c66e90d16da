"""What the master writes of a run's stages: at its start, while workers wait for it, and at its end; and what it may
remove when the run's disk is full."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from swarm_rows import RUN_ID, record, run_in

from infersiege.errors import DiskError
from infersiege.plan.load_schema import Load
from infersiege.plan.schema import Channel, Plan, Run, Stop, Workload
from infersiege.records import Epoch, Hello
from infersiege.schedule.epochs import Table
from infersiege.swarm.aftermath import LostShare, rescued, stage_facts
from infersiege.swarm.ending import MasterResult
from infersiege.swarm.fleet import Fleet, WorkerState
from infersiege.swarm.intake import Intake
from infersiege.swarm.losses import Loss, doubt_of, orphans
from infersiege.swarm.source import SessionSource
from infersiege.swarm.spool import Spool
from infersiege.swarm.telling import early_farewell
from infersiege.swarm.timeline import Timeline
from infersiege.swarm.versions import boot_id

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


ORPHANED = [
    (Load(mode="open", rate=50.0), 10.0, None, 2.0, (), "arrivals until the load ended early"),
    (Load(mode="open", rate=50.0), 2.0, None, 10.0, (), "no more than the load has"),
    (Load(mode="closed", users=4), None, 30, 2.0, (30,), "a number of sessions is somebody's, whenever they come"),
    (
        Load(mode="closed", users=4),
        None,
        10**6,
        2.0,
        (30,),
        "but nobody's beyond the leases: who lives took none there",
    ),
    (Load(mode="closed", users=4), 10.0, None, 2.0, (30,), "users take what they find: nothing is theirs before"),
]


@pytest.mark.parametrize(
    ("load", "seconds", "stop", "ended_s", "until_index", "why"), ORPHANED, ids=[row[-1] for row in ORPHANED]
)
def test_what_a_dead_worker_leaves_is_what_it_can_have_taken_before_the_load_ended(
    load: Load, seconds: float | None, stop: int | None, ended_s: float, until_index: tuple[int, ...], why: str
) -> None:
    run = Run(seed=7, nonce="n", stop=Stop(sessions=stop)) if stop is not None else None
    trace = Workload(scenario="short-qa", trace="builtin:short-qa", wrap=True)
    described = plan(load, trace, seconds=seconds, run=run)
    share, source = alone(described).of_fleet(2).of_place(1), alone(described)
    timeline, table = Timeline.of(described, start_ns=5 * SECOND), Table([Epoch(number=0, members=("a", "b"))])
    ended_ns = timeline.start_ns + round(ended_s * SECOND)
    left = list(orphans(source, timeline, table, {"b"}, ended_ns, T0, until_index))
    assert {one.owner for one in left} <= {"b"}
    if load.mode == "closed":
        assert [one.ticket for one in left] == ([] if stop is None else list(range(1, 30, 2))), why
    else:
        tickets = [ticket for ticket in share.tickets() if (ticket.offset_ns or 0) <= ended_s * SECOND]
        due = [one.opened.due_ns - T0 - timeline.start_ns for one in left]
        assert due == [ticket.offset_ns for ticket in tickets], why
        assert 0.5 < len(left) / (25 * min(ended_s, seconds or 0)) < 1.5


def test_one_walk_finds_what_a_walk_for_each_worker_finds() -> None:
    """However many are lost, and with tables that give a ticket to somebody else in between."""
    names = ("a", "b", "c", "d", "e")
    described = plan(Load(mode="open", rate=50.0), seconds=6)
    timeline = Timeline.of(described, start_ns=5 * SECOND)
    table = Table([Epoch(number=0, members=names), Epoch(number=1, members=("c", "a", "e"), from_offset_ns=2 * SECOND)])
    ended_ns = timeline.start_ns + 5 * SECOND
    together = list(orphans(alone(described), timeline, table, {"a", "b", "e"}, ended_ns, T0))
    for name in ("a", "b", "e"):
        apart = list(orphans(alone(described), timeline, table, {name}, ended_ns, T0))
        assert [one for one in together if one.owner == name] == apart != []
    assert {one.owner for one in together} == {"a", "b", "e"}


def test_what_others_took_over_is_no_orphan(tmp_path: Path) -> None:
    """Of an open loop from the boundary's instant on; of a closed one that has an end, from its index on."""
    epochs = [
        Epoch(number=0, members=("a", "b")),
        Epoch(number=1, members=("a",), from_offset_ns=2 * SECOND, from_index=(6,)),
        Epoch(number=2, members=("a", "b"), from_offset_ns=4 * SECOND, from_index=(10,)),
    ]
    open_loop = plan(Load(mode="open", rate=10.0, arrivals="constant"), seconds=6)
    finite = plan(Load(mode="closed", users=4), short(tmp_path / "t.jsonl", 20), seconds=6)
    stopped = plan(
        Load(mode="closed", users=4), run=Run(seed=7, nonce="n", duration_ns=6 * SECOND, stop=Stop(sessions=20))
    )
    endless = plan(Load(mode="closed", users=4), short(tmp_path / "w.jsonl", 20, wrap=True), seconds=6)
    timeline, counts = Timeline.of(open_loop, start_ns=5 * SECOND), []
    for described in (open_loop, finite, stopped, endless):
        left = orphans(alone(described), timeline, Table(epochs), {"b"}, timeline.start_ns + 6 * SECOND, T0)
        counts.append(Counter(one.opened.epoch for one in left))
    assert counts == [{0: 10, 2: 10}, {0: 3}, {0: 3, 2: 5}, {}]


def short(path: Path, sessions: int, scenario: str = "short", *, wrap: bool = False) -> Workload:
    rows = (json.dumps({"messages": [{"role": "user", "content": f"question {n}"}]}) for n in range(sessions))
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return Workload(scenario=scenario, trace=str(path), wrap=wrap)


BEFORE_THE_END = [
    ({"arrivals": "poisson"}, None, "gaps at random"),
    ({"arrivals": "constant"}, None, "a grid"),
    ({"arrivals": "gamma", "burstiness": 0.1}, None, "bursts, whose number scatters far more than by its root"),
    ({"arrivals": "poisson"}, 40, "a number of sessions that the traces have not"),
]


@pytest.mark.parametrize(("how", "stop", "why"), BEFORE_THE_END, ids=[why for *_, why in BEFORE_THE_END])
def test_gt_09_arrivals_are_asked_for_also_when_a_trace_is_over(
    tmp_path: Path, how: dict[str, Any], stop: int | None, why: str
) -> None:
    """Two workloads by turns, of which one has but 10 sessions: the arrivals are those of two traces without an end."""
    run = Run(seed=7, nonce="n", duration_ns=10 * SECOND, stop=None if stop is None else Stop(sessions=stop))
    load = Load(mode="open", rate=10.0, **how)
    long = Workload(scenario="short-qa", trace="builtin:short-qa")
    ends = alone(plan(load, long, short(tmp_path / "t.jsonl", 10), run=run))
    wraps = alone(plan(load, long, short(tmp_path / "w.jsonl", 10, wrap=True), run=run))
    (stream,) = ends.streams
    last_ns = 10 * SECOND if stop is None else 1 + max(ticket.offset_ns or 0 for ticket in ends.tickets())
    (asked,) = ends.arrivals_between(stream, [(0, last_ns)])
    assert asked == sum((ticket.offset_ns or 0) < last_ns for ticket in alone(plan(load, long, seconds=10)).tickets())
    assert sum(1 for _ in ends.tickets()) < 0.95 * asked and ends.runs_out(stream), why
    assert not wraps.runs_out(wraps.streams[0])
    assert wraps.arrivals_between(wraps.streams[0], [(0, 10 * SECOND)]) == [sum(1 for _ in wraps.tickets())]


def test_a_number_of_sessions_is_all_that_is_asked_for(tmp_path: Path) -> None:
    """What would have come after the last of them is not missing."""
    run = Run(seed=7, nonce="n", stop=Stop(sessions=20))
    source = alone(plan(Load(mode="open", rate=10.0), short(tmp_path / "t.jsonl", 20), run=run))
    assert source.arrivals_between(source.streams[0], [(0, 60 * SECOND)]) == [20]
    assert not source.runs_out(source.streams[0])


SPOOLS = [
    ("w-home", 3, None, False, False, "it lives, and all that it wrote is here"),
    ("w-short", 4, None, False, True, "it lives, and a record of it did not come"),
    ("w-silent", None, None, False, True, "nobody knows what it wrote"),
    ("w-read", None, Loss(recovered_rows=3, lost=0, skipped=0, plays={}, planned_turns=3), True, False, "it was read"),
    (
        "w-torn",
        None,
        Loss(recovered_rows=0, lost=3, skipped=0, plays={}, planned_turns=3, unread="it can't be read"),
        True,
        True,
        "its records are nowhere else",
    ),
    ("w-left", None, None, True, True, "its turns could not be settled"),
]
"""(worker, records that its farewell tells, its loss, whether it is dead, whether its spool stays, why)."""


@pytest.mark.parametrize(("name", "told", "loss", "dead", "stays", "why"), SPOOLS, ids=[row[0] for row in SPOOLS])
def test_a_rescue_removes_the_spools_whose_records_are_in_it(
    name: str, told: int | None, loss: Loss | None, dead: bool, stays: bool, why: str, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "infersiege-spool-1-w", name)
    spool.add(record("of the spool", worker=name))
    spool.close(remove=False)
    hello = Hello(worker=name, host="h", pid=1, boot_id=boot_id(), versions={}, spool_dir=str(spool.directory))
    worker = WorkerState("node", hello, 0, last_seen_ns=0, admitted=True, lost_at_ns=1 if dead else None)
    if told is not None:
        worker.bye = msgspec.structs.replace(early_farewell(name, "run over"), records=told)
    share, fleet = LostShare({}), Fleet(expected=1)
    fleet.add(worker)
    if loss is not None:
        share.add(name, loss)
        assert share.doubts == ([] if loss.unread is None else [doubt_of(name, loss)])
    with run_in(tmp_path / "run") as run:
        intake = Intake(run)
        intake.write([record(f"s{number}", worker=name) for number in range(3)])
        intake.rows_of[name] = 3
        result = MasterResult(
            started_ns=1, load_ended_ns=2, ended_ns=3, offset_ns=0, interrupted=False, ending="", budgets=(),
            rate_limits=(), dirty_stages=frozenset(), fleet=fleet, intake=intake, table=None,
        )  # fmt: skip
        with rescued(result, share, RUN_ID, DiskError("full")) as moved:
            try:
                assert len(list(moved.read_turns())) == 3
            finally:
                shutil.rmtree(moved.path.parent)
    assert spool.directory.exists() == stays, why
