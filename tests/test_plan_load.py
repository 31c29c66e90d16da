"""[load] with stages and loads of single workloads: faults have their line, the rest is one time axis."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import PlanError
from infersiege.plan.load import load_plan
from infersiege.plan.load_schema import Load, Stage
from infersiege.plan.schema import Channel, Plan, Run, Workload
from infersiege.plan.streams import duration_of, most_sessions_at_a_time, spans_of, streams_of
from infersiege.records import Phase
from infersiege.swarm.timeline import Timeline

SECOND = 1_000_000_000
PLAN = """\
[channel.local]
engine = "vllm"
model = "m"
[[workload]]
scenario = "agent"
trace = "builtin:agent"
{workload}
[load]
{load}
[run]
{run}
"""
OPEN = '{mode = "open", rate = 5.0}'
OTHER = '[[workload]]\nscenario = "qa"\ntrace = "builtin:short-qa"\nload = ' + OPEN
TWO = 'stages = [{users = 4, duration = "10s"}, {users = 8, duration = "20s"}]'


def load(tmp_path: Path, load: str = "", run: str = "", workload: str = "") -> Plan:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(load=load, run=run, workload=workload), encoding="utf-8")
    return load_plan(path)


FAULTS = [
    (
        "a rate in a closed loop",
        'stages = [{rate = 4.0, duration = "9s"}]',
        "",
        "",
        "load.stages.0.rate: means nothing in mode closed; write users",
    ),
    (
        "users in an open loop",
        'mode = "open"\nstages = [{users = 4, duration = "9s"}]',
        "",
        "",
        "load.stages.0.users: means nothing in mode open; write rate",
    ),
    (
        "no users",
        'stages = [{duration = "9s"}]',
        "",
        "",
        "load.stages.0: needs users, since the mode is closed",
    ),
    (
        "stages of a replay",
        'mode = "replay"\nstages = [{duration = "9s"}]',
        "",
        "",
        "load.stages: means nothing in mode replay, only in closed and open",
    ),
    (
        "users beside stages",
        TWO + "\nusers = 3",
        "",
        "",
        "load.users: means nothing beside stages",
    ),
    (
        "another duration",
        TWO,
        'duration = "5m"',
        "",
        "run.duration: 5m is not what the stages come to (30s); leave it out",
    ),
    (
        "another duration, with pauses",
        TWO + '\npause = "5s"',
        'duration = "30s"',
        "",
        "what the stages come to with their pauses (35s)",
    ),
    (
        "a number of sessions",
        TWO,
        "stop = {sessions = 9}",
        "",
        "run.stop: can't be used with stages",
    ),
    (
        "all ramp",
        'stages = [{users = 4, duration = "9s", ramp = "9s"}]',
        "",
        "",
        "load.stages.0.ramp: the ramp (9s) takes the whole stage (9s)",
    ),
    (
        "all warm-up of [load]",
        TWO + '\nwarmup = "10s"',
        "",
        "",
        "load.stages.0.duration: the warm-up (10s) takes the whole stage (10s)",
    ),
    (
        "shorter than the default ramp",
        'stages = [{users = 4, duration = "500ms"}]',
        "",
        "",
        "load.stages.0.duration: the ramp (1s) takes the whole stage",
    ),
    (
        "one name twice",
        'stages = [{name = "a", users = 4, duration = "9s"}, {name = "a", users = 8, duration = "9s"}]',
        "",
        "",
        "load.stages.1.name: is called 'a', as load.stages.0 is already",
    ),
    (
        "swinging users",
        'stages = [{users = 4, duration = "9s", sine = {period = "3s"}}]',
        "",
        "",
        "load.stages.0.sine: means nothing in mode closed",
    ),
    (
        "a sine without a period",
        'mode = "open"\nstages = [{rate = 4.0, duration = "9s", sine = {amplitude = 0.5}}]',
        "",
        "",
        "load.stages.0.sine.period: is missing",
    ),
    (
        "a pause without stages",
        'users = 4\npause = "5s"',
        'duration = "30s"',
        "",
        "load.pause: means nothing without stages",
    ),
    (
        "gamma without a shape",
        'mode = "open"\nrate = 4.0\narrivals = "gamma"',
        'duration = "30s"',
        "",
        "load.arrivals: gamma arrivals need burstiness",
    ),
    (
        "a shape without gamma",
        'mode = "open"\nrate = 4.0\nburstiness = 2.0',
        'duration = "30s"',
        "",
        "load.burstiness: means nothing with poisson arrivals",
    ),
    (
        "sessions of a mix",
        "users = 4",
        "stop = {sessions = 9}",
        OTHER,
        "run.stop: can't be used where a workload has a load of its own",
    ),
    (
        "stages of an own load",
        "users = 4",
        'duration = "30s"',
        OTHER.replace("5.0", "5.0, stages = []"),
        "workload.1.load.stages: is the whole run's",
    ),
    (
        "a warm-up of an own load",
        "users = 4",
        'duration = "30s"',
        OTHER.replace("5.0", '5.0, warmup = "1s"'),
        "workload.1.load.warmup: is the whole run's",
    ),
    (
        "an own load without a rate",
        "users = 4",
        'duration = "30s"',
        OTHER.replace(", rate = 5.0", ""),
        "workload.1.load: mode open needs rate",
    ),
    (
        "a name with two loads",
        "users = 4",
        'duration = "30s"',
        OTHER.replace('"qa"', '"agent"') + '\nchannel = "local"',
        "workload.1.scenario: 'agent' is the name of workload.0 too",
    ),
    (
        "a load that nobody shares",
        "users = 4",
        'duration = "30s"',
        f"load = {OPEN}",
        "load.users: means nothing: every workload has a load of its own",
    ),
    (
        "a replay in the pauses",
        TWO + '\npause = "1s"',
        "",
        OTHER.replace(OPEN, '{mode = "replay"}'),
        "workload.1.load.mode: a replay has its own times",
    ),
    (
        "a rule on no stage",
        TWO,
        '[[slo]]\nmetric = "ttft"\nstat = "p50"\nmax = "1s"\nstage = "3"',
        "",
        "slo.0.stage: ",
    ),
    (
        "too many in one stage",
        'mode = "open"\nstages = [{rate = 1e5, duration = "1h"}]',
        "",
        "",
        "load.stages.0.rate: 100000 a second for 1h are 360,000,000 sessions",
    ),
]


@pytest.mark.parametrize(("_why", "text", "run", "workload", "said"), FAULTS, ids=[row[0] for row in FAULTS])
def test_one_fault(tmp_path: Path, _why: str, text: str, run: str, workload: str, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        load(tmp_path, text, run, workload)
    (fault,) = caught.value.faults
    assert said in fault and "plan.toml:" in fault, fault


def test_all_faults_of_all_stages_at_once(tmp_path: Path) -> None:
    stages = 'stages = [{rate = 4.0, duration = "9s"}, {users = 4, duration = "9s", warmup = "1m"}, {duration = "9s"}]'
    with pytest.raises(PlanError) as caught:
        load(tmp_path, stages, 'duration = "1m"')
    assert len(caught.value.faults) == 4, caught.value.faults


def test_a_mix_is_one_time_axis(tmp_path: Path) -> None:
    plan = load(tmp_path, TWO + '\npause = "2s"\nwarmup = "3s"', "", OTHER.replace("5.0", "5.0, max_in_flight = 9"))
    assert duration_of(plan) == 32 * SECOND
    first, second = spans_of(plan)
    assert (first.name, first.start_ns, first.steady_ns, first.load_end_ns, first.end_ns) == (
        "1: 4 users", 0, 3 * SECOND, 10 * SECOND, 12 * SECOND,
    )  # fmt: skip
    assert (second.name, second.start_ns, second.load_end_ns) == ("2: 8 users", 12 * SECOND, 32 * SECOND)
    shared, own = streams_of(plan)
    assert (shared.number, shared.scenarios, own.number, own.scenarios) == (0, ("agent",), 1, ("qa",))
    moments = (0, 5 * SECOND, 11 * SECOND, 30 * SECOND, 32 * SECOND)
    assert [shared.users_at(at_ns) for at_ns in moments] == [1, 4, 0, 8, 0]
    assert [own.rate_at(at_ns) for at_ns in moments] == [5.0, 5.0, 0.0, 5.0, 0.0]
    assert most_sessions_at_a_time(plan) == 8 + 9


def test_an_instant_belongs_to_one_stage_and_phase(tmp_path: Path) -> None:
    timeline = Timeline.of(load(tmp_path, TWO + '\npause = "2s"\nwarmup = "3s"'), start_ns=100 * SECOND)
    found = [tuple(timeline.place_of((100 + at_s) * SECOND)) for at_s in (-1, 0, 3, 9, 10, 11, 12, 15, 31, 32, 99)]
    one, two = "1: 4 users", "2: 8 users"
    assert found == [
        (one, Phase.WARMUP), (one, Phase.WARMUP), (one, Phase.STEADY), (one, Phase.STEADY), (one, Phase.DRAIN),
        (one, Phase.DRAIN), (two, Phase.WARMUP), (two, Phase.STEADY), (two, Phase.STEADY), (two, Phase.DRAIN),
        (two, Phase.DRAIN),
    ]  # fmt: skip
    assert timeline.ends_at(105 * SECOND) == 110 * SECOND, "a pause ends sessions"
    assert timeline.ends_at(115 * SECOND) is None, "the run's end is told by the master"


def test_without_stages_nothing_has_changed(tmp_path: Path) -> None:
    plan = load(tmp_path, 'users = 4\nwarmup = "3s"', 'duration = "30s"')
    (span,) = spans_of(plan)
    assert (span.name, span.start_ns, span.steady_ns, span.end_ns) == ("main", 0, 3 * SECOND, 30 * SECOND)
    (counted,) = spans_of(load(tmp_path, "users = 4", "stop = {sessions = 5}"))
    assert (counted.steady_ns, counted.load_end_ns, counted.end_ns) == (SECOND, None, None), (
        "the ramp is no steady load"
    )


AS_BEFORE = [
    ('ramp = "5s"', "{users = 4, duration = '10s'}, {users = 4, duration = '5s'}", [5, 10], "nobody comes or goes"),
    (
        "",
        "{users = 4, duration = '9s'}, {users = 4, duration = '1s', ramp = '1s'}",
        [1, 9],
        "nor with a ramp of its own",
    ),
]


@pytest.mark.parametrize(("more", "stages", "steady_s", "why"), AS_BEFORE, ids=[why for *_, why in AS_BEFORE])
def test_a_stage_whose_users_are_those_before_has_no_ramp(
    tmp_path: Path, more: str, stages: str, steady_s: list[int], why: str
) -> None:
    """The check asks the very schedule that will be run; after a pause all users come anew."""
    plan = load(tmp_path, f"stages = [{stages}]\n{more}", "")
    assert [span.steady_ns for span in spans_of(plan)] == [second * SECOND for second in steady_s], why
    with pytest.raises(PlanError) as caught:
        load(tmp_path, f'stages = [{stages}]\n{more}\npause = "1s"', "")
    (fault,) = caught.value.faults
    assert "load.stages.1" in fault and "takes the whole stage" in fault


LENGTHS = st.integers(2, 50).map(lambda tenths: tenths * SECOND // 10)


@given(
    stages=st.lists(st.tuples(st.integers(1, 20), LENGTHS, st.integers(0, 100)), min_size=1, max_size=6),
    pause_ns=st.sampled_from((0, SECOND)),
)
def test_spans_follow_each_other_and_each_has_something_to_measure(
    stages: list[tuple[int, int, int]], pause_ns: int
) -> None:
    made = tuple(
        Stage(users=users, duration_ns=length_ns, ramp_ns=length_ns * percent // 101)
        for users, length_ns, percent in stages
    )
    plan = Plan(
        run=Run(),
        channels={"c": Channel(engine="vllm", model="m")},
        workloads=(Workload(scenario="s", trace="builtin:short-qa"),),
        load=Load(stages=made, pause_ns=pause_ns),
    )
    spans = spans_of(plan)
    for before, after in pairwise(spans):
        assert before.end_ns == after.start_ns and (before.end_ns or 0) - (before.load_end_ns or 0) == pause_ns
    assert all(span.start_ns <= span.steady_ns < (span.load_end_ns or 0) for span in spans)
    assert spans[-1].load_end_ns == spans[-1].end_ns == duration_of(plan)
    (stream,) = streams_of(plan)
    assert [stream.users_at(span.steady_ns) for span in spans] == [users for users, _, _ in stages]
