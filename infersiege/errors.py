"""One error tree. Each error says what happened and where, carries a hint, and has an exit code of its class.

The command line prints `error: <message>` and `hint: <hint>` and ends with the code; no traceback reaches a user.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command (docs/gate.md). When several hold, `PRECEDENCE` decides."""

    PASS = 0
    RULE_FAILED = 1
    USAGE = 2
    INVALID_RUN = 3
    TARGET = 4
    NO_DATA = 5
    INTERNAL = 70
    INTERRUPTED = 130


PRECEDENCE: tuple[ExitCode, ...] = (
    ExitCode.INTERRUPTED,
    ExitCode.INTERNAL,
    ExitCode.USAGE,
    ExitCode.TARGET,
    ExitCode.INVALID_RUN,
    ExitCode.NO_DATA,
    ExitCode.RULE_FAILED,
)
"""First match wins; nothing of these is a pass."""


def strongest(codes: set[ExitCode]) -> ExitCode:
    """The one exit code of several findings."""
    return next((code for code in PRECEDENCE if code in codes), ExitCode.PASS)


class InfersiegeError(Exception):
    """Base of all errors that a user may see.

    `str(error)` is one line: where, what was seen. `hint` is what to try, or None.
    """

    exit_code = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(InfersiegeError):
    """A command line that makes no sense, a file that is not there, an output that cannot be written."""

    exit_code = ExitCode.USAGE


class PlanError(UsageError):
    """One or more faults of a plan file; `faults` has them all, in file order, one line each."""

    def __init__(self, message: str, *, faults: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.faults = faults


class TraceError(UsageError):
    """A trace file that cannot be read; the message starts with `path:line:` where a line is known."""


class RunDirectoryError(UsageError):
    """A run directory that is missing, unreadable, of a newer schema, or in the way."""


class TargetError(InfersiegeError):
    """The system under test is not there, not ready, or refuses us (name, port, key, model)."""

    exit_code = ExitCode.TARGET


class RunInvalidError(InfersiegeError):
    """The run took place but its figures can't be trusted: worker lost, load not delivered, disk full."""

    exit_code = ExitCode.INVALID_RUN


class DiskError(InfersiegeError):
    """A disk that does not take what a run writes: full, read-only, something in the way."""


class UnwrittenFileError(DiskError, RunDirectoryError):
    """A file of a run directory that can't be made or replaced; what stood there before is as it was."""


class UnwrittenRowsError(DiskError, RunInvalidError):
    """Rows of a run that can't be appended; no part of them is in the file."""


class InternalError(InfersiegeError):
    """A fault of ours."""
