"""The same plan over given loads, and over channels: every combination is a run, whatever became of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from infersiege.capacity.child import Interrupted, Interruption
from infersiege.capacity.hunt import Say, ended_line, same_traces, written
from infersiege.capacity.runs import Settings, name_of, number_after, run_probe
from infersiege.capacity.search import Judged
from infersiege.capacity.state import SWEEP, Probe, SweepState, check_same, identity_of, load, save
from infersiege.errors import ExitCode, InternalError, TargetError, UsageError, strongest
from infersiege.plan import Plan
from infersiege.report.load_curve import Knee, knee_of
from infersiege.telemetry.idle import engine_pages


def channels_of(plan: Plan, wanted: Sequence[str], *, every: bool) -> tuple[str, ...]:
    """The channels of a sweep; empty: each workload goes where the plan says.

    Raises UsageError for a channel that isn't in the plan, and for a rule that is about one channel only: everything
    goes to one after the other, and the rule could be judged on none of the others.
    """
    known = (*plan.channels, *plan.hybrids)
    for name in wanted:
        if name not in known:
            raise UsageError(f"--channel {name}: the plan has no such channel", hint=f"there are: {', '.join(known)}")
    chosen = tuple(plan.channels) if every else tuple(dict.fromkeys(wanted))
    for place, slo in enumerate(plan.slos):
        if chosen and slo.channel is not None:
            raise UsageError(
                f"sweep: slo.{place} is about channel {slo.channel} only, and a sweep over channels sends all to "
                "one after the other",
                hint=f"take it out: --set slo.{place}.channel=",
            )
    return chosen


def only_to(plan: Plan, channel: str) -> list[str]:
    """Overrides that send every workload to one channel, and leave out those that nothing goes to any more.

    A target of these that is down is no reason not to measure this one.
    """
    parts = {part.channel for part in plan.hybrids[channel].parts} if channel in plan.hybrids else set()
    unused = [name for name in (*plan.channels, *plan.hybrids) if name != channel and name not in parts]
    more = [f"channel.{_quoted(name)}=" for name in unused]
    return more + [f"workload.{place}.channel={_quoted(channel)}" for place in range(len(plan.workloads))]


def _quoted(name: str) -> str:
    """As a key and as a value of TOML."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def begun(
    folder: Path, plan: Plan, unit: str, loads: Sequence[float], channels: Sequence[str], duration_ns: int
) -> SweepState:
    """A new sweep, or the one that the folder holds, with these loads and channels. Raises UsageError."""
    fresh = SweepState(
        name=plan.run.name or "sweep",
        unit=unit,
        identity=identity_of(plan),
        loads=tuple(loads),
        channels=tuple(channels),
        engines={name: one.engine for name, one in plan.channels.items()},
        probe_duration_ns=duration_ns,
    )
    found = load(folder, SWEEP, SweepState)
    if found is None:
        return fresh
    check_same(folder / SWEEP, found.identity, fresh.identity)
    return msgspec.structs.replace(fresh, identity=found.identity, probes=found.probes, engines=found.engines)


def asked_for(state: SweepState) -> list[Probe]:
    """The runs of this call's loads and channels, which table and page show; the folder may hold others."""
    names: Sequence[str | None] = state.channels or (None,)
    return [probe for probe in state.probes if probe.channel in names and probe.load in state.loads]


def left(state: SweepState) -> list[tuple[str | None, float]]:
    """(channel, load) that have no run yet, load by load, so that all channels are met under the same circumstances."""
    done = {(probe.channel, probe.load) for probe in state.probes if probe.point is not None}
    names: Sequence[str | None] = state.channels or (None,)
    return [(name, at) for at in state.loads for name in names if (name, at) not in done]


def sweep(state: SweepState, plan: Plan, settings: Settings, interruption: Interruption, say: Say) -> SweepState:
    """Make every run that is left. A target that is not there takes only its own runs with it.

    Raises Interrupted, and what is wrong with the plan or this host.
    """
    again = left(state)
    state = msgspec.structs.replace(state, probes=tuple(one for one in state.probes if one.point is not None))
    for place, (channel, at) in enumerate(again, 1):
        number = number_after(settings.folder, state.probes)
        probe = Probe(
            number=number,
            directory=name_of(number, at, state.unit, channel),
            load=at,
            channel=channel,
            duration_ns=state.probe_duration_ns,
            workers=settings.expect_workers,
        )
        before = state
        state = msgspec.structs.replace(before, probes=(*before.probes, probe))
        save(settings.folder, SWEEP, state)
        where = "" if channel is None else f" on {channel}"
        say(f"run {place} of {len(again)}: {written(at, state.unit)}{where} for {probe.duration_ns / 1e9:g} s")
        if interruption.asked():
            raise Interrupted
        try:
            state = _after(before, probe, plan, settings, interruption)
        except UsageError:
            save(settings.folder, SWEEP, before)  # it never began
            raise
        save(settings.folder, SWEEP, state)
        say(ended_line(state.probes[-1], state.unit))
    state = msgspec.structs.replace(state, knees=_knees(state))
    save(settings.folder, SWEEP, state)
    return state


def _after(state: SweepState, probe: Probe, plan: Plan, settings: Settings, interruption: Interruption) -> SweepState:
    """The sweep with this probe and what came of it."""
    channel = probe.channel
    more = [] if channel is None else only_to(plan, channel)
    pages = [page for page in engine_pages(plan) if channel not in plan.channels or page.name == channel]
    try:
        ran = run_probe(settings, probe, state.unit, more, pages, interruption)
    except TargetError as error:
        probe = msgspec.structs.replace(probe, ended=True, exit_code=int(ExitCode.TARGET), why=str(error))
        return msgspec.structs.replace(state, probes=(*state.probes, probe))
    if ran.interrupted:
        raise InternalError(f"{probe.directory}: the run was interrupted", hint="the same command goes on")
    engines = {name: " ".join(filter(None, (one.engine, one.version))) for name, one in ran.file.channels.items()}
    engines[channel or ""] = " + ".join(dict.fromkeys(engines.values()))
    return msgspec.structs.replace(
        state,
        identity=same_traces(state.identity, ran.file),
        probes=(*state.probes, ran.probe),
        engines={**state.engines, **engines},
    )


def _knees(state: SweepState) -> dict[str, Knee]:
    found = {}
    for name in state.channels or ("",):
        points = [one.point for one in asked_for(state) if one.point is not None and one.channel == (name or None)]
        knee = knee_of(points)
        if knee is not None:
            found[name] = knee
    return found


def exit_code_of(state: SweepState) -> ExitCode:
    """A sweep judges nothing: 0 unless a target was not there, a run is invalid, or every turn of one failed."""
    codes = {ExitCode.PASS}
    for probe in asked_for(state):
        if probe.point is None:
            codes.add(ExitCode.TARGET)
        elif probe.judged is Judged.INVALID:
            codes.add(ExitCode.INVALID_RUN)
        elif not probe.point.turns:
            codes.add(ExitCode.RULE_FAILED)
    return strongest(codes)
