"""One probe: an `infersiege run` as a process of its own, whose run directory is read when it has ended."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple

import msgspec

from infersiege.capacity.idle import requests_of, wait_until_idle
from infersiege.capacity.search import Judged
from infersiege.capacity.state import Probe
from infersiege.capacity.verdict import judge_probe
from infersiege.errors import (
    ExitCode,
    InfersiegeError,
    InternalError,
    PlanError,
    RunDirectoryError,
    TargetError,
    UsageError,
)
from infersiege.plan import Slo
from infersiege.plan.values import format_duration
from infersiege.report.load_curve import point_of
from infersiege.report.numbers import printable
from infersiege.rundir import PlanFile, RunDirectory, slug
from infersiege.telemetry.idle import EnginePage

PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """Somebody asked to stop; what was done so far is on disk."""


class Interruption:
    """Ctrl-C, SIGTERM and SIGHUP, handed on to the run that goes on: once, it ends in good order; again, at once.

    Runs are in a session of their own, so that a terminal's Ctrl-C reaches them only through here, and only once.
    """

    def __init__(self) -> None:
        self._asked = False
        self._run: subprocess.Popen[bytes] | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def asked(self) -> bool:
        return self._asked

    def watch(self, run: subprocess.Popen[bytes] | None) -> None:
        """The run that signals are for; one that came just before is not lost."""
        self._run = run
        if run is not None and self._asked:
            run.send_signal(signal.SIGINT)

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        if self._run is not None:
            self._run.send_signal(signal.SIGINT)


class Settings(NamedTuple):
    """What all probes of one command have in common."""

    plan: Path
    overrides: tuple[str, ...]
    """Of the user's --set."""
    slos: tuple[Slo, ...]
    folder: Path
    workers: int
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


def run_probe(
    settings: Settings,
    probe: Probe,
    unit: str,
    more: Sequence[str],
    pages: Sequence[EnginePage],
    interruption: Interruption,
) -> Ran:
    """Wait until the target is idle, run, judge. `more`: overrides of the plan beside load and duration.

    Raises Interrupted; TargetError when the target refuses; UsageError when the run could not begin; InternalError.
    """
    idle = wait_until_idle(
        pages,
        lambda page: requests_of(page, settings.environ),
        pause_s=settings.pause_s,
        limit_s=settings.idle_limit_s,
        stopped=interruption.asked,
    )
    if interruption.asked():
        raise Interrupted
    changes = [*settings.overrides, *more, *changes_of(probe.load, unit, probe.duration_ns)]
    workers = min(settings.workers, int(probe.load)) if unit == "users" else settings.workers
    path = settings.folder / probe.directory
    command = [sys.executable, "-P", "-m", "infersiege", "run", str(settings.plan), "--out", str(path), "--gate"]
    command += ["--workers", str(max(workers, 1)), "--wait-for-target", f"{settings.wait_for_target_s:g}"]
    for change in changes:
        command += ["--set", change]
    log = path.with_name(f"{path.name}.log")
    code = _execute(command, log, settings.environ, interruption)
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


def _execute(command: list[str], log: Path, environ: Mapping[str, str], interruption: Interruption) -> int:
    """Its exit code. Whatever ends us ends it too."""
    try:
        out = log.open("wb")
    except OSError as error:
        raise UsageError(f"{log}: can't be written: {error.strerror or error}") from None
    with out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
            preexec_fn=_tied_to(os.getpid()),  # noqa: PLW1509 - this process has no threads
        )
    try:
        interruption.watch(process)
        return process.wait()
    finally:
        interruption.watch(None)
        if process.poll() is None:
            process.terminate()
            process.wait()


def _tied_to(parent: int) -> Callable[[], None] | None:
    """Runs in the new process before the command: when we die, by whatever, the kernel sends it SIGTERM (Linux)."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before that
            os._exit(int(ExitCode.INTERRUPTED))

    return tie


def _judged(probe: Probe, path: Path, log: Path, slos: Sequence[Slo]) -> Ran:
    """Read what the run left. Raises what kept it from beginning or ending."""
    try:
        run = RunDirectory.open(path)
        file, summary = run.read_plan(), run.read_summary()
    except RunDirectoryError as error:
        raise _why_not_begun(probe, log, error) from None
    if probe.exit_code == ExitCode.INTERNAL or summary.internal_faults:
        raise InternalError(f"{path}: the run ended with code {probe.exit_code}: {_last_error(log) or f'see {log}'}")
    found = judge_probe(summary, slos, run.read_turns)
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


def _why_not_begun(probe: Probe, log: Path, error: RunDirectoryError) -> InfersiegeError:
    said = _last_error(log) or f"exit code {probe.exit_code}: {error}"
    hint = _last_hint(log) or f"the whole output is in {log}"
    if probe.exit_code == ExitCode.USAGE and (faults := _last_faults(log)):
        return PlanError(f"{probe.directory}: {said}", faults=faults, hint=hint)
    kinds: dict[int | None, type[InfersiegeError]] = {ExitCode.TARGET: TargetError, ExitCode.USAGE: UsageError}
    kind = kinds.get(probe.exit_code, InternalError)
    return kind(f"{probe.directory}: {said}", hint=hint)


def _last_error(log: Path) -> str:
    return _last(log, "error:")


def _last_faults(log: Path) -> tuple[str, ...]:
    """The faults of a plan, which stand below its error, indented; empty: it was none."""
    lines = _lines(log)
    at = max((place for place, line in enumerate(lines) if line.startswith("error:")), default=len(lines))
    return tuple(printable(line.strip()) for line in takewhile(lambda line: line.startswith("  "), lines[at + 1 :]))


def _last_hint(log: Path) -> str:
    return _last(log, "hint:")


def _last(log: Path, mark: str) -> str:
    """What a run's last line with this mark says; empty: there is none."""
    found = [line.partition(":")[2].strip() for line in _lines(log) if line.startswith(mark)]
    return printable(re.sub(r"\s+", " ", found[-1])) if found else ""


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
