"""The deadlines of one exchange: which of them comes first, and the timer that waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infersiege.records import ErrorClass
from infersiege.wire.exchange import Deadlines

DRAIN_NS = 250_000_000
"""How long a stream that said it is over may take to end."""

Deadline = tuple[int, ErrorClass | None, str]
"""(when, class, detail) of what passing it means. Class None: no fault, the drain is over."""


def connect_deadline(begun_ns: int, limits: Deadlines, where: str) -> Deadline:
    """While there is no connection; `begun_ns`: when the attempt (with the look-up of the name) began."""
    what = f"no connection to {where} within {_seconds(limits.connect_ns)}"
    return begun_ns + limits.connect_ns, ErrorClass.TIMEOUT_CONNECT, what


def answer_deadline(sent_ns: int, last_ns: int | None, limits: Deadlines) -> Deadline:
    """The nearest one once the request is being sent. `last_ns`: the last read of an answer that has begun."""
    total = (sent_ns + limits.total_ns, ErrorClass.TIMEOUT_TOTAL, f"not over after {_seconds(limits.total_ns)}")
    if last_ns is None:
        what = f"no token within {_seconds(limits.first_token_ns)}"
        other = (sent_ns + limits.first_token_ns, ErrorClass.TIMEOUT_FIRST_TOKEN, what)
    else:
        what = f"nothing came for {_seconds(limits.idle_ns)} in mid-answer"
        other = (last_ns + limits.idle_ns, ErrorClass.TIMEOUT_IDLE, what)
    return min(total, other)


def drain_deadline(stream_closed_ns: int) -> Deadline:
    """After the stream said, at `stream_closed_ns`, that it is over."""
    return stream_closed_ns + DRAIN_NS, None, ""


class Alarm:
    """The one timer of an exchange; setting it again moves it."""

    __slots__ = ("_loop", "_timer")

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._timer: Any = None

    def set(self, after_ns: int, callback: Callable[[], None]) -> None:
        """Call `callback` (which must not raise) once, after this long; at once for what is not positive."""
        self.stop()
        self._timer = self._loop.timer(max(0.0, after_ns / 1e9))
        self._timer.start(callback, update=True)

    def stop(self) -> None:
        """Also lets go of the callback."""
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:g} s"
