"""What an agent tells its user when it can't go on: one line, a hint, an exit code."""

from __future__ import annotations

USAGE = 2
TARGET = 4
"""The database, the engine or the command to be watched is not there, or refuses us."""
NO_GPU = 6
"""No GPU can be read: no driver, no permission, no card, or all cards lost."""
INTERNAL = 70
INTERRUPTED = 130


class AgentError(Exception):
    """`str(error)` says where and what was seen; `hint` what to try."""

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code
