"""One `infersiege run` as a process of its own: started, handed signals, and asked why it did not begin."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from types import FrameType, TracebackType

from infersiege.errors import (
    ExitCode,
    InfersiegeError,
    InternalError,
    PlanError,
    RunDirectoryError,
    RunInvalidError,
    TargetError,
    UsageError,
)
from infersiege.report.numbers import printable
from infersiege.swarm.lifeline import tied_to

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


def execute(command: list[str], log: Path, environ: Mapping[str, str], interruption: Interruption) -> int:
    """The exit code of one `infersiege run`, whose output goes to `log`. Whatever ends us ends it too."""
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
            preexec_fn=tied_to(os.getpid()),  # noqa: PLW1509 - this process has no threads
        )
    try:
        interruption.watch(process)
        return process.wait()
    finally:
        interruption.watch(None)
        if process.poll() is None:
            process.terminate()
            process.wait()


def why_not_begun(directory: str, code: int | None, log: Path, error: RunDirectoryError) -> InfersiegeError:
    """What to raise for a run that left no figures, by its exit code and what it said."""
    said = last_error(log) or f"exit code {code}: {error}"
    hint = _last_hint(log) or f"the whole output is in {log}"
    if code == ExitCode.USAGE and (faults := _last_faults(log)):
        return PlanError(f"{directory}: {said}", faults=faults, hint=hint)
    kinds: dict[int | None, type[InfersiegeError]] = {
        ExitCode.TARGET: TargetError,
        ExitCode.USAGE: UsageError,
        ExitCode.INVALID_RUN: RunInvalidError,  # its workers did not come
    }
    kind = kinds.get(code, InternalError)
    return kind(f"{directory}: {said}", hint=hint)


def last_error(log: Path) -> str:
    """What a run said last of why it ended; empty: nothing."""
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
