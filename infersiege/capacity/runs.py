"""One probe: an `infersiege run` as a process of its own, whose run directory is read when it has ended."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from infersiege.capacity.child import Interrupted, Interruption, execute, last_error, why_not_begun
from infersiege.capacity.idle import wait_before_run
from infersiege.capacity.search import Judged
from infersiege.capacity.state import Probe
from infersiege.capacity.verdict import judge_probe
from infersiege.errors import ExitCode, InfersiegeError, InternalError, RunDirectoryError
from infersiege.plan import Slo
from infersiege.plan.values import format_duration
from infersiege.report.load_curve import point_of
from infersiege.report.numbers import printable
from infersiege.rundir import PlanFile, RunDirectory, slug
from infersiege.telemetry.idle import EnginePage


class Settings(NamedTuple):
    """What all probes of one command have in common."""

    plan: Path
    overrides: tuple[str, ...]
    """Of the user's --set."""
    slos: tuple[Slo, ...]
    folder: Path
    workers: int
    """On this host."""
    expect_workers: int
    """In all."""
    bind: str
    """Where those of other hosts join."""
    wait_for_target_s: float
    pause_s: float
    idle_limit_s: float
    environ: Mapping[str, str]


class Ran(NamedTuple):
    probe: Probe
    file: PlanFile
    """plan.json of its run."""
    interrupted: bool


def name_of(number: int, load: float, unit: str, channel: str | None = None) -> str:
    """Such as `probe-003-users-16` or `probe-004-vllm-rate-2.5`; sorts by time."""
    kind = "users" if unit == "users" else "rate"
    where = "" if channel is None else f"{slug(channel)}-"
    return f"probe-{number:03}-{where}{kind}-{load:g}"


def number_after(folder: Path, probes: Sequence[Probe]) -> int:
    """Of the next probe: no directory that is there is written over, whether it is known to us or not."""
    names = [path.name.split("-") for path in folder.glob("probe-*")]
    used = [int(parts[1]) for parts in names if len(parts) > 1 and parts[1].isdecimal()]
    return max([0, *used, *(probe.number for probe in probes)]) + 1


def changes_of(load: float, unit: str, duration_ns: int) -> list[str]:
    """Overrides that make a plan a probe.

    Each run draws a nonce, and so salts, of its own: no probe finds the prompts of another in a cache.
    """
    number = f"users={load:.0f}" if unit == "users" else f"rate={load:g}"
    return ["run.nonce=", "run.stop=", f"run.duration={format_duration(duration_ns)}", f"load.{number}"]


def workers_of(settings: Settings, load: float, unit: str) -> list[str]:
    """Options of a run about its workers: with fewer users than workers some stay out of it, those of other hosts first
    (a run keeps the places of its own)."""
    most = max(int(load), 1) if unit == "users" else settings.expect_workers
    local, in_all = min(settings.workers, most), min(settings.expect_workers, most)
    if in_all == local:
        return ["--workers", str(local)]
    return ["--workers", str(local), "--expect-workers", str(in_all), "--bind", settings.bind]


def run_probe(
    settings: Settings,
    probe: Probe,
    unit: str,
    more: Sequence[str],
    pages: Sequence[EnginePage],
    interruption: Interruption,
) -> Ran:
    """Wait until the target is idle, run, judge. `more`: overrides of the plan beside load and duration.

    Raises Interrupted; TargetError when the target refuses; UsageError or RunInvalidError when the run could not begin,
    the latter for want of its workers; InternalError.
    """
    idle = wait_before_run(
        pages,
        settings.environ,
        interruption,
        pause_s=settings.pause_s,
        limit_s=settings.idle_limit_s,
    )
    changes = [*settings.overrides, *more, *changes_of(probe.load, unit, probe.duration_ns)]
    path = settings.folder / probe.directory
    command = [sys.executable, "-P", "-m", "infersiege", "run", str(settings.plan), "--out", str(path), "--gate"]
    command += [*workers_of(settings, probe.load, unit), "--wait-for-target", f"{settings.wait_for_target_s:g}"]
    for change in changes:
        command += ["--set", change]
    log = path.with_name(f"{path.name}.log")
    code = execute(command, log, settings.environ, interruption)
    ended = msgspec.structs.replace(probe, ended=True, exit_code=code, idle=idle)
    if not interruption.asked():
        return _judged(ended, path, log, settings.slos)
    # The run may have been over when the signal came: then it is a whole one. Else nothing of it is used.
    try:
        ran = _judged(ended, path, log, settings.slos)
    except InfersiegeError:
        raise Interrupted from None
    if ran.interrupted:
        raise Interrupted
    return ran


def _judged(probe: Probe, path: Path, log: Path, slos: Sequence[Slo]) -> Ran:
    """Read what the run left. Raises what kept it from beginning or ending."""
    try:
        run = RunDirectory.open(path)
        file, summary = run.read_plan(), run.read_summary()
    except RunDirectoryError as error:
        raise why_not_begun(probe.directory, probe.exit_code, log, error) from None
    if probe.exit_code == ExitCode.INTERNAL or summary.internal_faults:
        raise InternalError(f"{path}: the run ended with code {probe.exit_code}: {last_error(log) or f'see {log}'}")
    turns = partial(run.read_turns, span=file.span)
    found = judge_probe(summary, slos, turns)
    longer_ns = None
    if found.factor is not None:
        steady_ns = summary.groups[0].steady_duration_ns
        longer_ns = round(probe.duration_ns + (found.factor - 1) * max(steady_ns, probe.duration_ns // 2))
    probe = msgspec.structs.replace(
        probe,
        judged=found.judged,
        why=printable(found.why),
        point=point_of(summary, probe.load, found.judged.value),
        longer_ns=longer_ns,
        hopeless=found.judged is Judged.NO_DATA and longer_ns is None,
        emulated=summary.emulated,
        warnings=tuple(printable(text) for text in summary.warnings),
    )
    return Ran(probe, file, summary.interrupted)
