"""What makes no sense in [load], its stages, loads of single workloads, and the end of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from infersiege.plan.bounds import SECOND_NS
from infersiege.plan.load_schema import Load, Stage
from infersiege.plan.locate import KeyPath
from infersiege.plan.streams import duration_of, ramp_of_stage, stage_name
from infersiege.plan.values import format_duration

if TYPE_CHECKING:
    from infersiege.plan.checks import Draft

_ACTS_IN: Mapping[str, tuple[str, ...]] = {
    "users": ("closed",),
    "ramp": ("closed",),
    "rate": ("open",),
    "arrivals": ("open",),
    "burstiness": ("open",),
    "speed": ("replay",),
    "jitter": ("replay",),
    "late": ("open", "replay"),
    "max_in_flight": ("open", "replay"),
    "stages": ("closed", "open"),
}
"""Keys of a load that mean something only in some modes; elsewhere they would be ignored without a word."""

_OF_THE_RUN = ("stages", "pause", "warmup", "drain")
"""Keys that a workload's own load can't have: there is one time axis, and [load] has it."""

_OF_THE_SHARED = (
    "users",
    "rate",
    "stages",
    "ramp",
    "arrivals",
    "burstiness",
    "speed",
    "jitter",
    "late",
    "max_in_flight",
)
"""Keys of [load] that say nothing when every workload has a load of its own."""


def loads(draft: Draft) -> None:
    """[load], its stages, and the loads of single workloads."""
    plan, faults = draft.plan, draft.faults
    own = [(index, workload.load) for index, workload in enumerate(plan.workloads) if workload.load is not None]
    _end_of_run(draft, mixed=bool(own))
    shared = len(own) < len(plan.workloads) or not plan.workloads
    if shared:
        _shared_load(draft)
    else:
        for key in ("mode", *_OF_THE_SHARED):
            if draft.written("load", key) and faults.ok("load", key):
                faults.add(("load", key), "means nothing: every workload has a load of its own")
    for index, load in own:
        _own_load(draft, index, load)
    if plan.load.pause_ns and not plan.load.stages and faults.ok("load", "pause") and faults.ok("load", "stages"):
        faults.add(("load", "pause"), "means nothing without stages, between which it would be")
    _size(draft)


def _shared_load(draft: Draft) -> None:
    load, faults = draft.plan.load, draft.faults
    if not faults.ok("load", "mode"):
        return
    _keys_of_mode(draft, ("load",), load)
    if not faults.ok("load", "stages"):
        return
    if load.stages and load.mode != "replay":
        _stages(draft)
    elif not draft.written("load", "stages"):
        _how_much(draft, ("load",), load)
    elif not load.stages:
        faults.add(("load", "stages"), "there are none in it; write [[load.stages]], or leave it out")


def _keys_of_mode(draft: Draft, here: KeyPath, load: Load) -> None:
    faults = draft.faults
    for key, modes in _ACTS_IN.items():
        if load.mode not in modes and draft.written(*here, key) and faults.ok(*here, key):
            faults.add((*here, key), f"means nothing in mode {load.mode}, only in {' and '.join(modes)}")
    if load.mode != "open" or not faults.ok(*here, "arrivals") or not faults.ok(*here, "burstiness"):
        return
    if load.arrivals == "gamma" and load.burstiness is None:
        faults.add((*here, "arrivals"), "gamma arrivals need burstiness, their shape; 1 is Poisson, below is burstier")
    elif load.arrivals != "gamma" and load.burstiness is not None:
        faults.add((*here, "burstiness"), f"means nothing with {load.arrivals} arrivals, only with gamma")


def _how_much(draft: Draft, here: KeyPath, load: Load) -> None:
    """Users or rate, where no stage has them."""
    faults = draft.faults
    if load.mode == "closed" and load.users is None and faults.ok(*here, "users"):
        faults.add(here, "mode closed needs users, the number of concurrent sessions")
    if load.mode == "open" and load.rate is None and faults.ok(*here, "rate"):
        faults.add(here, "mode open needs rate, in sessions per second")


# ---------------------------------------------------------------------------------------------------------- stages


def _stages(draft: Draft) -> None:
    load, faults = draft.plan.load, draft.faults
    for key in ("users", "rate"):
        if draft.written("load", key) and faults.ok("load", key):
            faults.add(("load", key), f"means nothing beside stages: each stage has its own {key}")
    if draft.plan.run.stop is not None and faults.ok("run", "stop"):
        faults.add(("run", "stop"), "can't be used with stages: the run ends with the last one")
    seen: dict[str, int] = {}
    for index, stage in enumerate(load.stages):
        here = ("load", "stages", index)
        _stage(draft, here, stage)
        if faults.ok(*here, "duration"):
            _settling_of(draft, index)
        if all(faults.ok(*here, key) for key in ("name", "users", "rate")):
            first = seen.setdefault(stage_name(index, stage), index)
            if first != index:
                where = (*here, "name") if stage.name is not None else here
                faults.add(where, f"is called {stage_name(index, stage)!r}, as load.stages.{first} is already")


def _stage(draft: Draft, here: KeyPath, stage: Stage) -> None:
    faults, load = draft.faults, draft.plan.load
    wanted, other = ("users", "rate") if load.mode == "closed" else ("rate", "users")
    if draft.written(*here, other) and faults.ok(*here, other):
        faults.add((*here, other), f"means nothing in mode {load.mode}; write {wanted}")
    elif not draft.written(*here, wanted) and faults.ok(*here):
        faults.add(here, f"needs {wanted}, since the mode is {load.mode}")
    if stage.sine is not None and load.mode == "closed" and faults.ok(*here, "sine"):
        faults.add((*here, "sine"), "means nothing in mode closed: only a rate can swing")


def _settling_of(draft: Draft, index: int) -> None:
    """Measuring begins after warm-up and ramp: something must be left then."""
    load, faults = draft.plan.load, draft.faults
    here, stage = ("load", "stages", index), load.stages[index]
    keys = ((*here, "warmup"), (*here, "ramp"), ("load", "warmup"), ("load", "ramp"), ("load", "pause"))
    if not all(faults.ok(*key) for key in keys):
        return
    near = (here, ("load", "stages", index - 1)) if index else (here,)
    known = all(faults.ok(*one, key) for one in near for key in ("users", "rate"))
    ramp_ns = ramp_of_stage(load, index) if known else 0
    warmup_ns = load.warmup_ns if stage.warmup_ns is None else stage.warmup_ns
    key, name, settling_ns = ("ramp", "ramp", ramp_ns) if ramp_ns > warmup_ns else ("warmup", "warm-up", warmup_ns)
    if settling_ns >= stage.duration_ns:
        at = (*here, key) if draft.written(*here, key) else (*here, "duration")
        faults.add(
            at,
            f"the {name} ({format_duration(settling_ns)}) takes the whole stage "
            f"({format_duration(stage.duration_ns)}): nothing would be measured",
        )


# ---------------------------------------------------------------------------------------------- loads of workloads


def _own_load(draft: Draft, index: int, load: Load) -> None:
    faults, here = draft.faults, ("workload", index, "load")
    for key in _OF_THE_RUN:
        if draft.written(*here, key) and faults.ok(*here, key):
            faults.add((*here, key), "is the whole run's: it can only be set in [load]")
    if not faults.ok(*here, "mode"):
        return
    _keys_of_mode(draft, here, load)
    _how_much(draft, here, load)
    if load.mode == "replay" and draft.plan.load.pause_ns:
        faults.add((*here, "mode"), "a replay has its own times, and can't pause between stages (load.pause)")
    scenario = draft.plan.workloads[index].scenario
    others = [
        place for place, other in enumerate(draft.plan.workloads) if place != index and other.scenario == scenario
    ]
    if others and faults.ok("workload", index, "scenario"):
        faults.add(
            ("workload", index, "scenario"),
            f"{scenario!r} is the name of workload.{others[0]} too: what has a load of its own needs a name of its own",
        )


# ------------------------------------------------------------------------------------------------------ the run's end


def _end_of_run(draft: Draft, *, mixed: bool) -> None:
    plan, faults = draft.plan, draft.faults
    run, stages = plan.run, plan.load.stages
    if run.stop is not None and run.stop.sessions is None and faults.ok("run", "stop"):
        faults.add(("run", "stop"), "says nothing; write stop = {sessions = 1000}")
    if mixed and run.stop is not None and faults.ok("run", "stop"):
        faults.add(("run", "stop"), "can't be used where a workload has a load of its own; set run.duration")
    if not faults.ok("load", "stages"):
        return
    if run.duration_ns is None and run.stop is None and not stages and faults.ok("run"):
        faults.add(("run",), 'the run has no end; set duration = "5m", or stop = {sessions = 1000}')
    if stages and run.duration_ns is not None and faults.ok("run", "duration") and faults.ok("load", "pause"):
        whole_ns = duration_of(plan) or 0
        if whole_ns != run.duration_ns:
            pauses = " with their pauses" if plan.load.pause_ns and len(stages) > 1 else ""
            faults.add(
                ("run", "duration"),
                f"{format_duration(run.duration_ns)} is not what the stages come to{pauses} "
                f"({format_duration(whole_ns)}); leave it out",
            )
    elif run.duration_ns is not None and all(faults.ok(*key) for key in _SETTLING):
        _settling(draft, run.duration_ns)


_SETTLING: tuple[tuple[str, str], ...] = (("run", "duration"), ("load", "mode"), ("load", "warmup"), ("load", "ramp"))


def _settling(draft: Draft, duration_ns: int) -> None:
    """Measuring begins after the warm-up, and in a closed loop after the ramp too: something must be left then."""
    load, faults = draft.plan.load, draft.faults
    found: list[tuple[int, str, KeyPath]] = [(load.warmup_ns, "warm-up", ("load", "warmup"))]
    for here, one in _unstaged(draft):
        if one.mode == "closed" and faults.ok(*here, "ramp"):
            found.append((one.ramp_ns, "ramp", (*here, "ramp")))
    settling_ns, name, path = max(found, key=lambda one: one[0])
    if settling_ns >= duration_ns:
        draft.faults.add(
            path if draft.written(*path) else ("run", "duration"),
            f"the {name} ({format_duration(settling_ns)}) takes the whole run "
            f"({format_duration(duration_ns)}): nothing would be measured",
        )


def _unstaged(draft: Draft) -> Iterator[tuple[KeyPath, Load]]:
    """Loads that are the same over the whole run, with their place."""
    plan = draft.plan
    if not plan.load.stages and (not plan.workloads or any(workload.load is None for workload in plan.workloads)):
        yield ("load",), plan.load
    for index, workload in enumerate(plan.workloads):
        if workload.load is not None:
            yield ("workload", index, "load"), workload.load


def _size(draft: Draft) -> None:
    """Rate and duration may each be right and together ask for a run that nobody means."""
    plan, faults = draft.plan, draft.faults
    if plan.run.stop is not None or not faults.ok("load", "stages") or not faults.ok("run", "duration"):
        return
    from infersiege.schedule import MOST_SESSIONS

    duration_ns = duration_of(plan)
    asked: list[tuple[KeyPath, float, int]] = [
        (("load", "stages", index, "rate"), stage.rate, stage.duration_ns)
        for index, stage in enumerate(plan.load.stages)
        if stage.rate is not None
    ]
    for here, load in _unstaged(draft):
        if load.mode == "open" and load.rate is not None and duration_ns is not None:
            asked.append(((*here, "rate"), load.rate, duration_ns))
    total = sum(rate * duration_ns / SECOND_NS for _, rate, duration_ns in asked)
    if total > MOST_SESSIONS:
        path, rate, duration_ns = max(asked, key=lambda one: one[1] * one[2])
        whole = "" if len(asked) == 1 else ", with the rest of the load"
        if faults.ok(*path):
            faults.add(
                path,
                f"{rate:g} a second for {format_duration(duration_ns)}{whole} are {total:,.0f} sessions; the most is "
                f"{MOST_SESSIONS:,}",
            )
