"""When late arrivals are sent."""

from __future__ import annotations

from typing import Literal

from infersiege.errors import InternalError

LATE_GRACE_NS = 100_000_000
"""How late an arrival may be before `late = "drop"` drops it."""


class Pacer:
    """When to send one worker's arrivals, given that some of them are late.

    On-time arrivals go at their due time, however close they are. After a stall, `send` keeps the order and halves the
    gaps until it has caught up: never more than twice the rate that the schedule had over the same arrivals (a burst of
    all that was missed would be another test). Each gap is that of its arrival's stage, so the bound moves with the
    rate. `drop` sends what is at most `grace_ns` late at once, drops the rest.
    """

    def __init__(self, policy: Literal["send", "drop"] | str, *, grace_ns: int = LATE_GRACE_NS) -> None:
        if policy not in ("send", "drop"):
            raise InternalError(f"late policy {policy!r} is unknown")
        self._policy = policy
        self._grace_ns = grace_ns
        self._due_ns: int | None = None
        self._sent_ns = 0

    def send_at(self, due_ns: int, now_ns: int) -> int | None:
        """When to send the arrival due at `due_ns`, at or after `now_ns`; None: drop and count it.

        Call it once per arrival, in order of due times.
        """
        if self._policy == "drop":
            return None if now_ns - due_ns > self._grace_ns else max(due_ns, now_ns)
        earliest = now_ns
        if self._due_ns is not None and self._sent_ns > self._due_ns:
            earliest = max(now_ns, self._sent_ns + (due_ns - self._due_ns + 1) // 2)
        self._due_ns = due_ns
        self._sent_ns = max(due_ns, earliest)
        return self._sent_ns

    def begin_anew(self) -> None:
        """A pause is over: nothing was due in it, so what was late before it does not hold up what is due after it."""
        self._due_ns = None
