"""What a plan's loads come to on one time axis: the stages of the run, and the streams of sessions beside each other.

Stream 0 is [load], with every workload that has no load of its own; each of the others is a stream too. Offsets are
from the first arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from infersiege.plan.load_schema import Load, Stage
from infersiege.plan.schema import Plan
from infersiege.quality.items import FORMAT
from infersiege.schedule import RateStage, UserStage, rate_at, users_at

MAIN = "main"
"""Name of the only stage of a load without `stages`."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stage of the run, for all streams."""

    name: str
    start_ns: int
    steady_ns: int
    """End of its warm-up, which is as long as the ramps in it at least: a load that is still being built up is not the
    load that was asked for."""
    load_end_ns: int | None
    """No arrival is due from here on; None: the run ends by work."""
    end_ns: int | None
    """The next stage begins: the pause after this one is over. Without a pause the same as `load_end_ns`."""

    @property
    def paused_after(self) -> bool:
        """Nothing is sent between this stage and the next one."""
        return self.load_end_ns != self.end_ns


@dataclass(frozen=True, slots=True)
class Asked:
    """What a stream asks for in one stage, once its ramp is over."""

    users: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """One load with the workloads that it plays."""

    number: int
    load: Load
    workloads: tuple[int, ...]
    """Places in the plan."""
    scenarios: tuple[str, ...]
    """Those of `checked` included."""
    duration_ns: int | None
    """Of the run; None: it ends by work."""
    asked: tuple[Asked, ...]
    """By stage of the run."""
    users: tuple[UserStage, ...] = ()
    """Closed loop: one for each stage of the run."""
    rates: tuple[RateStage, ...] = field(default=())
    """Open loop: rates over time; empty: `load.rate` from the start to the end."""
    checked: tuple[int, ...] = ()
    """Places of workloads that take a share of the sessions ([quality]): each of those that go to its channel."""

    def users_at(self, at_ns: int) -> int | None:
        """Sessions asked for at this offset; None: this is no closed loop."""
        return users_at(self.users, at_ns) if self.load.mode == "closed" else None

    def rate_at(self, at_ns: int) -> float | None:
        """Sessions per second asked for at this offset; None: it has no rate."""
        if self.load.mode != "open":
            return None
        if self.rates:
            return rate_at(self.rates, at_ns)
        over = at_ns < 0 or (self.duration_ns is not None and at_ns >= self.duration_ns)
        return 0.0 if over else self.load.rate


def duration_of(plan: Plan) -> int | None:
    """How long load is offered: `run.duration`, or all stages with the pauses between them; None: until the work is
    done."""
    stages = plan.load.stages
    if not stages:
        return plan.run.duration_ns
    return sum(stage.duration_ns for stage in stages) + (len(stages) - 1) * plan.load.pause_ns


def stage_names(load: Load) -> tuple[str, ...]:
    """Names of a load's stages in order; `main` of one without any."""
    return tuple(stage_name(number, stage) for number, stage in enumerate(load.stages)) or (MAIN,)


def stage_name(number: int, stage: Stage) -> str:
    """`2: 8 users`, `3: 5/s`, unless it has a name. `number` counts from 0."""
    if stage.name is not None:
        return stage.name
    return f"{number + 1}: " + (f"{stage.users} users" if stage.users is not None else f"{stage.rate or 0:g}/s")


def streams_of(plan: Plan) -> tuple[Stream, ...]:
    """Every stream of a plan without faults; at least one."""
    bounds, checked = _bounds(plan), checked_places(plan)
    shared = tuple(
        place for place, workload in enumerate(plan.workloads) if workload.load is None and place not in checked
    )
    streams = [_stream(plan, 0, plan.load, shared, bounds)] if shared else []
    for place, workload in enumerate(plan.workloads):
        if workload.load is not None:
            number = 1 + sum(before.load is not None for before in plan.workloads[:place])
            streams.append(_stream(plan, number, workload.load, (place,), bounds))
    if checked:
        # One load only: what is delivered of each is told by its scenarios.
        scenarios = tuple(dict.fromkeys(plan.workloads[place].scenario for place in checked))
        streams[0] = replace(streams[0], checked=checked, scenarios=(*streams[0].scenarios, *scenarios))
    return tuple(streams)


def checked_places(plan: Plan) -> tuple[int, ...]:
    """Workloads that take a share of another load's sessions; none of them where they are all that there is."""
    if plan.quality is None or plan.quality.share == 1:
        return ()
    found = tuple(place for place, workload in enumerate(plan.workloads) if workload.format == FORMAT)
    return found if len(found) < len(plan.workloads) else ()


def spans_of(plan: Plan) -> tuple[Span, ...]:
    """The stages of a plan without faults, in order."""
    load, streams = plan.load, streams_of(plan)
    spans = []
    for place, (name, start_ns, load_end_ns, end_ns) in enumerate(_bounds(plan)):
        stage = load.stages[place] if load.stages else None
        warmup_ns = load.warmup_ns if stage is None or stage.warmup_ns is None else stage.warmup_ns
        settling_ns = max(warmup_ns, *(_ramp_in(stream, place) for stream in streams))
        spans.append(Span(name, start_ns, start_ns + settling_ns, load_end_ns, end_ns))
    return tuple(spans)


def ramp_of_stage(load: Load, place: int) -> int:
    """For how long (ns) [load] is still being built up, or down, in one of its stages, which may be longer than it."""
    stage = load.stages[place]
    if load.mode != "closed":
        return stage.ramp_ns or 0
    before = load.stages[place - 1].users or 0 if place and not load.pause_ns else 0
    return _ramp_of_users(load, stage, before, stage.users or 0)


def most_sessions_at_a_time(plan: Plan) -> int | None:
    """The largest number of sessions that the plan allows at a time, over all streams; None: nothing limits it."""
    most = 0
    for stream in streams_of(plan):
        if stream.load.mode == "closed":
            most += max(stage.users for stage in stream.users)
        elif stream.load.max_in_flight is not None:
            most += stream.load.max_in_flight
        else:
            return None
    return most


_Bounds = tuple[str, int, int | None, int | None]
"""Name, start, end of its load, start of the next stage."""


def _bounds(plan: Plan) -> list[_Bounds]:
    stages, duration_ns = plan.load.stages, plan.run.duration_ns
    if not stages:
        return [(MAIN, 0, duration_ns, duration_ns)]
    bounds: list[_Bounds] = []
    start_ns = 0
    for place, (name, stage) in enumerate(zip(stage_names(plan.load), stages, strict=True)):
        load_end_ns = start_ns + stage.duration_ns
        end_ns = load_end_ns + (plan.load.pause_ns if place + 1 < len(stages) else 0)
        bounds.append((name, start_ns, load_end_ns, end_ns))
        start_ns = end_ns
    return bounds


def _stream(plan: Plan, number: int, load: Load, workloads: tuple[int, ...], bounds: list[_Bounds]) -> Stream:
    stages = plan.load.stages if number == 0 else ()
    users: tuple[UserStage, ...] = ()
    rates: tuple[RateStage, ...] = ()
    if load.mode == "closed":
        users = _user_stages(plan, load, stages, bounds)
    elif load.mode == "open" and (stages or (len(bounds) > 1 and plan.load.pause_ns)):
        rates = _rate_stages(plan, load, stages, bounds)
    asked = tuple(Asked(stage.users, stage.rate) for stage in stages) or (Asked(load.users, load.rate),) * len(bounds)
    return Stream(
        number=number,
        load=load,
        workloads=workloads,
        scenarios=tuple(dict.fromkeys(plan.workloads[place].scenario for place in workloads)),
        duration_ns=duration_of(plan),
        asked=asked,
        users=users,
        rates=rates,
    )


def _user_stages(plan: Plan, load: Load, stages: tuple[Stage, ...], bounds: list[_Bounds]) -> tuple[UserStage, ...]:
    found: list[UserStage] = []
    before = 0
    for place, (_, start_ns, load_end_ns, _) in enumerate(bounds):
        stage = stages[place] if stages else None
        users = (load.users if stage is None else stage.users) or 0
        found.append(UserStage(start_ns, load_end_ns, before, users, _ramp_of_users(load, stage, before, users)))
        before = 0 if plan.load.pause_ns else users
    return tuple(found)


def _ramp_of_users(load: Load, stage: Stage | None, before: int, users: int) -> int:
    """Where nobody comes or goes there is none."""
    if before == users:
        return 0
    return load.ramp_ns if stage is None or stage.ramp_ns is None else stage.ramp_ns


def _rate_stages(plan: Plan, load: Load, stages: tuple[Stage, ...], bounds: list[_Bounds]) -> tuple[RateStage, ...]:
    found: list[RateStage] = []
    before = 0.0
    for place, (_, start_ns, load_end_ns, _) in enumerate(bounds):
        stage = stages[place] if stages else None
        rate = (load.rate if stage is None else stage.rate) or 0.0
        sine = None if stage is None else stage.sine
        found.append(
            RateStage(
                start_ns,
                load_end_ns or 0,
                before,
                rate,
                0 if stage is None else stage.ramp_ns or 0,
                0.0 if sine is None else sine.amplitude,
                0 if sine is None else sine.period_ns,
            )
        )
        before = 0.0 if plan.load.pause_ns else rate
    return tuple(found)


def _ramp_in(stream: Stream, place: int) -> int:
    """For how long a stream's load is still being built up, or down, in a stage."""
    if stream.users:
        return stream.users[place].ramp_ns
    return stream.rates[place].ramp_ns if stream.rates else 0
