"""What an examination finds: one line per check, and the errors that end one."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from infersiege.errors import TargetError
from infersiege.redact import Secrets

_LONGEST = 700


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """A run is possible, with what is said here."""
    FAULT = "fault"
    """A run would fail."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    seen: str
    """One line, without secrets."""
    hint: str | None = None
    """What to try; None: nothing to do."""


class DoctorError(TargetError):
    """A fault of a target. `check` names the look that found it; None: the one that was going on."""

    def __init__(self, message: str, *, hint: str | None = None, check: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.check = check


class NotReadyError(DoctorError):
    """A fault that may go away by itself while a server starts: refused, reset, 502, 503, 504."""


def fit(text: str, secrets: Secrets) -> str:
    """What is shown: one printable line without secrets, bounded. Scrubbed first: half a key is not known as one."""
    line = "".join(letter for letter in " ".join(secrets.scrub(text).split()) if letter.isprintable())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


class Findings:
    """The checks of one channel, in the order in which they were made."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self.checks: list[Check] = []
        self.going_on = "url"
        """Name of the look that is going on: a fault that names none belongs to it."""

    def ok(self, name: str, seen: str) -> None:
        self._add(name, Verdict.OK, seen, None)

    def warn(self, name: str, seen: str, hint: str | None = None) -> None:
        self._add(name, Verdict.WARNING, seen, hint)

    def fault(self, name: str | None, seen: str, hint: str | None = None) -> None:
        self._add(name or self.going_on, Verdict.FAULT, seen, hint)

    def replace_secrets(self, secrets: Secrets) -> None:
        """From here on these are kept out."""
        self._secrets = secrets

    def _add(self, name: str, verdict: Verdict, seen: str, hint: str | None) -> None:
        shown = fit(hint, self._secrets) if hint else None
        self.checks.append(Check(name=name, verdict=verdict, seen=fit(seen, self._secrets), hint=shown))
