"""The search for a plan's capacity, probe by probe, each step on disk before the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from infersiege.capacity.child import Interrupted, Interruption
from infersiege.capacity.runs import Settings, name_of, number_after, run_probe
from infersiege.capacity.search import (
    LENGTHENED_MOST,
    Finding,
    Judged,
    Outcome,
    Range,
    Shown,
    most_probes,
    next_load,
    usual_probes,
)
from infersiege.capacity.state import CAPACITY, CapacityState, Identity, Probe, check_same, identity_of, load, save
from infersiege.errors import ExitCode, InternalError, UsageError
from infersiege.plan import Plan, Slo
from infersiege.report.load_curve import Knee, knee_of
from infersiege.rundir import PlanFile
from infersiege.telemetry.idle import engine_pages

LONGEST_FACTOR = 8
"""A probe that lacks turns is made again, at most so many times as long as asked."""

Say = Callable[[str], None]

_GROWS = ("throughput", "goodput", "finished_rate", "sent_rate", "asked_rate")
"""Metrics that are low at low loads: a `min` on them fails where there is little load, too."""

EXIT_CODES = {
    Outcome.FOUND: ExitCode.PASS,
    Outcome.AT_LEAST: ExitCode.PASS,
    Outcome.BELOW: ExitCode.RULE_FAILED,
    Outcome.INVALID: ExitCode.INVALID_RUN,
    Outcome.NO_DATA: ExitCode.NO_DATA,
    Outcome.UNCONFIRMED: ExitCode.NO_DATA,
}


def unit_of(plan: Plan, command: str) -> str:
    """What is searched: `users` or `sessions/s`. Raises UsageError for a plan whose load is no single number."""
    if plan.load.stages:
        raise UsageError(f"{command}: the plan has stages, and each probe needs one load", hint="--set load.stages=")
    if plan.load.mode == "replay":
        raise UsageError(
            f"{command}: a replay has the trace's own load",
            hint="use mode = closed or open; `speed` is no load of its own",
        )
    if plan.workloads and all(workload.load is not None for workload in plan.workloads):
        raise UsageError(
            f"{command}: every workload has a load of its own: [load] has no number to vary",
            hint="take the load out of the workload whose limit is asked for: --set workload.0.load=",
        )
    return "users" if plan.load.mode == "closed" else "sessions/s"


def fixed_loads(plan: Plan) -> tuple[str, ...]:
    """What is said of a mixed plan: which part of its load is not varied."""
    own = [workload.scenario for workload in plan.workloads if workload.load is not None]
    varied = [workload.scenario for workload in plan.workloads if workload.load is None]
    if not own:
        return ()
    return (f"only [load] is varied, which is that of {', '.join(varied)}; {', '.join(own)} keeps its own load",)


def must_have_rules(slos: Sequence[Slo]) -> None:
    """Raises UsageError for a plan that says nothing about what is good enough."""
    if not any(slo.severity == "fail" for slo in slos):
        raise UsageError(
            "capacity: the plan has no [[slo]] that can fail: nothing says which load is too much",
            hint='add one, such as [[slo]] metric = "ttft", stat = "p99", max = "800ms"',
        )


def notes_on(slos: Sequence[Slo]) -> tuple[str, ...]:
    """What makes the search's assumption, that more load is never better, doubtful."""
    return tuple(
        f"a rule asks for a {slo.metric} of at least {slo.at_least:g}, which low loads don't reach: give a start "
        "at which it holds"
        for slo in slos
        if slo.severity == "fail" and slo.at_least is not None and slo.metric in _GROWS
    )


def begun(folder: Path, plan: Plan, unit: str, search: Range, duration_ns: int) -> CapacityState:
    """A new search, or the one that the folder holds, with this range. Raises UsageError."""
    now = identity_of(plan)
    fresh = CapacityState(
        name=plan.run.name or "capacity",
        unit=unit,
        identity=now,
        search=search,
        probe_duration_ns=duration_ns,
        usual_probes=usual_probes(search),
        most_probes=most_probes(search),
        notes=(*notes_on(plan.slos), *fixed_loads(plan)),
    )
    found = load(folder, CAPACITY, CapacityState)
    if found is None:
        return fresh
    check_same(folder / CAPACITY, found.identity, now)
    return msgspec.structs.replace(fresh, identity=found.identity, probes=found.probes, call=found.call + 1)


def shown(state: CapacityState) -> list[Shown]:
    """The probes that ended, as the search looks at them.

    Those without a verdict ended the call that made them, and say nothing to another one: the host is idle now, there
    are more workers, the probes are longer.
    """
    return [Shown(probe.load, probe.judged, probe.hopeless) for probe in _counting(state) if probe.judged is not None]


def _counting(state: CapacityState) -> list[Probe]:
    decided = (Judged.PASS, Judged.FAIL)
    return [probe for probe in state.probes if probe.judged in decided or (probe.judged and probe.call == state.call)]


def next_step(state: CapacityState) -> float | Finding:
    """The next load, or what was found."""
    before = sum(probe.call != state.call for probe in _counting(state))
    return next_load(state.search, shown(state), before=before)


def length_of(state: CapacityState, at_load: float) -> int:
    """Nanoseconds of the next probe at this load: as asked, or as long as an earlier one should have been.

    At a higher load the same turns take less time, at a lower one more.
    """
    asked, longest = state.probe_duration_ns, LONGEST_FACTOR * state.probe_duration_ns
    needed = (
        round(probe.longer_ns * probe.load / at_load)
        for probe in state.probes
        if probe.judged is Judged.NO_DATA and probe.longer_ns is not None
    )
    return min(max((asked, *needed)), longest)


def ended_as(probe: Probe, state: CapacityState) -> Probe:
    """An ended probe; without data in one as long as any may be, it is not made again."""
    if probe.judged is Judged.NO_DATA and probe.duration_ns >= LONGEST_FACTOR * state.probe_duration_ns:
        return msgspec.structs.replace(probe, hopeless=True)
    return probe


def hunt(state: CapacityState, plan: Plan, settings: Settings, interruption: Interruption, say: Say) -> CapacityState:
    """Probe until there is a finding. Raises Interrupted, and what keeps a run from beginning or ending."""
    pages = engine_pages(plan)
    while True:
        step = next_step(state)
        if isinstance(step, Finding):
            points = [probe.point for probe in state.probes if probe.point is not None]
            state = msgspec.structs.replace(state, finding=step, knee=knee_of(points))
            save(settings.folder, CAPACITY, state)
            return state
        number = number_after(settings.folder, state.probes)
        probe = Probe(
            number=number,
            directory=name_of(number, step, state.unit),
            load=step,
            duration_ns=length_of(state, step),
            workers=settings.expect_workers,
            call=state.call,
        )
        before = state
        state = _with(before, probe)
        save(settings.folder, CAPACITY, state)
        say(begins(probe, state))
        if interruption.asked():
            raise Interrupted
        try:
            ran = run_probe(settings, probe, state.unit, (), pages, interruption)
        except UsageError:
            save(settings.folder, CAPACITY, before)  # it never began
            raise
        ended = ended_as(ran.probe, state)
        if ran.interrupted:  # by somebody else's signal: it is no probe of this length
            raise InternalError(f"{probe.directory}: the run was interrupted", hint="the same command goes on")
        state = msgspec.structs.replace(_with(before, ended), identity=same_traces(before.identity, ran.file))
        save(settings.folder, CAPACITY, state)
        say(ended_line(ended, state.unit))


def _with(state: CapacityState, probe: Probe) -> CapacityState:
    return msgspec.structs.replace(state, probes=(*state.probes, probe), finding=None, knee=None)


def same_traces(before: Identity, file: PlanFile) -> Identity:
    """Raises UsageError when a trace is another one than at the first probe."""
    now = file.trace_hashes
    changed = [name for name, digest in before.trace_hashes.items() if now.get(name, digest) != digest]
    if changed:
        raise UsageError(
            f"the trace of {', '.join(changed)} changed between the probes: they are no curve",
            hint="start anew with another --out",
        )
    return msgspec.structs.replace(before, trace_hashes={**now, **before.trace_hashes})


def written(load: float, unit: str) -> str:
    """`16 users`, `2.5 sessions/s`."""
    return f"{load:g} {'user' if unit == 'users' and load == 1 else unit}"


def begins(probe: Probe, state: CapacityState) -> str:
    """One line before a probe."""
    beside = (
        one.call != state.call or one.judged is Judged.NO_DATA or not one.ended or one.judged is None
        for one in state.probes[:-1]
    )
    most = probe.number - len(state.probes) + state.most_probes + sum(beside)
    seconds = probe.duration_ns / 1e9
    return f"probe {probe.number} (of {most} at most): {written(probe.load, state.unit)} for {seconds:g} s"


def ended_line(probe: Probe, unit: str) -> str:
    """One line after it."""
    verdict = "NO RUN" if probe.judged is None else probe.judged.value.upper()
    dirty = " [started dirty: the target was not idle]" if probe.idle is not None and probe.idle.dirty else ""
    longer = "; made again, longer" if probe.judged is Judged.NO_DATA and not probe.hopeless else ""
    return f"  {verdict} at {written(probe.load, unit)}: {probe.why}{longer}{dirty}"


def conclusion(state: CapacityState) -> list[str]:
    """What was found, in sentences; the first is the answer."""
    found, unit = state.finding, state.unit
    if found is None:
        return ["not finished: the same command goes on"]
    passes = None if found.passes is None else written(found.passes, unit)
    fails = None if found.fails is None else written(found.fails, unit)
    known = f"at least {passes}" if passes else "not known"
    at = "" if found.stopped_at is None else written(found.stopped_at, unit)
    last = next((probe.why for probe in reversed(state.probes) if probe.judged is not None), "")
    lines = {
        Outcome.FOUND: f"capacity: {passes}; the limit lies between {passes} and {fails}",
        Outcome.AT_LEAST: f"capacity: at least {passes}, the highest load allowed",
        Outcome.BELOW: f"capacity: below {fails}, the lowest load allowed",
        Outcome.INVALID: f"capacity: {known}; {at} could not be offered properly, which says nothing about the server: "
        f"{last}",
        Outcome.NO_DATA: f"capacity: {known}; a rule has no data at {at}: {last}",
        Outcome.UNCONFIRMED: f"capacity: {known}, not confirmed: the probes contradict each other too much; "
        "make them longer (--probe-duration)",
    }
    said = [lines[found.outcome]]
    if found.passed_of is not None:
        said.append(f"at {passes} {found.passed_of[0]} of {found.passed_of[1]} probes passed")
    if found.failed_of is not None:
        said.append(f"at {fails} {found.failed_of[0]} of {found.failed_of[1]} probes failed")
    said += [
        f"one probe failed at {written(low, unit)} although one passed at {written(high, unit)}: noise, or a server "
        "for which more load is not always worse"
        for low, high in found.contradictions
    ]
    dirty = [str(probe.number) for probe in state.probes if probe.idle is not None and probe.idle.dirty and probe.ended]
    said += [f"started dirty, with other load on the target: probe {', '.join(dirty)}"] if dirty else []
    said += workers_lines(state.probes)
    said += _warnings(state.probes, (found.passes, found.fails))
    said.append(knee_line(state.knee, unit))
    return said


def workers_lines(probes: Sequence[Probe]) -> list[str]:
    """Whether the runs were made by different numbers of workers, which may be what differs between them."""
    by_workers: dict[int, list[str]] = {}
    for probe in probes:
        if probe.point is not None and probe.workers is not None:
            by_workers.setdefault(probe.workers, []).append(str(probe.number))
    if len(by_workers) < 2:
        return []
    parts = (f"{workers} in probe {', '.join(numbers)}" for workers, numbers in sorted(by_workers.items()))
    return [f"the number of workers was not the same: {'; '.join(parts)}"]


def _warnings(probes: Sequence[Probe], at: Sequence[float | None]) -> list[str]:
    """What the runs warned of at the loads that the answer rests on, each once."""
    by_text: dict[str, list[str]] = {}
    for probe in probes:
        if probe.load in at and probe.judged in (Judged.PASS, Judged.FAIL):
            for text in probe.warnings:
                by_text.setdefault(text, []).append(str(probe.number))
    return [f"warning of probe {', '.join(numbers)}: {text}" for text, numbers in by_text.items()]


def knee_line(knee: Knee | None, unit: str) -> str:
    return (
        "no knee among the probed loads"
        if knee is None
        else f"knee of the curve: {written(knee.load, unit)} ({knee.by})"
    )


def probes_line(state: CapacityState) -> str:
    """How much this may take, before it begins."""
    search = state.search
    return (
        f"searching from {written(search.lowest, state.unit)} to {written(search.highest, state.unit)}, first at "
        f"{written(search.start, state.unit)}, to {search.resolution:.0%}"
        f"{' or 1 user' if search.whole else ''}: usually {state.usual_probes} probes or fewer, {state.most_probes} at "
        f"most, and {LENGTHENED_MOST} more that are made again longer for want of turns"
    )
