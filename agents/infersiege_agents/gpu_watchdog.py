"""Watches the thread that samples: a call into the driver that hangs can't be broken into, not even by a signal.

While one hangs, a thread of its own writes the host's point with ok = 0, hears signals, and ends the process.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from infersiege_agents.console import say
from infersiege_agents.errors import AgentError
from infersiege_agents.measurements import GPU_HOST
from infersiege_agents.nvml import TIMEOUT, Fault, Nvml, Pending
from infersiege_agents.outlet import Outlet
from infersiege_agents.points import Point

PATIENCE_S = 5.0
"""A call that takes longer is said to hang."""
_GRACE_S = 2.0
"""At the end, a call may take this long: then nobody waits for it any more."""
_LOOK_EVERY_S = 0.25
_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_HINT = "the driver hangs: look at `dmesg` for Xid and at `nvidia-smi`; the host may have to be rebooted"


class Watchdog:
    """`start` and `stop` are the main thread's; everything between happens in a thread of its own."""

    def __init__(
        self,
        nvml: Nvml,
        open_outlet: Callable[[], Outlet],
        *,
        host: str,
        interval_s: float,
        seconds: float | None,
        with_parent: int | None,
        expect: int | None,
    ) -> None:
        """`open_outlet` gives the same outlet each time; it may be opened here first, when the first call hangs."""
        self._nvml = nvml
        self._open = open_outlet
        self._host = host
        self._interval_s = interval_s
        self._ends_s = None if seconds is None else time.monotonic() + seconds
        self._with_parent = with_parent
        self._expect = expect
        self._signalled = self._stopped = False
        self._told: Pending | None = None
        self._point_s = 0.0
        self._reader = self._writer = self._before = -1
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """From now on signals are heard here too: the system writes them to a pipe. They need handlers of Python."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        signal.set_wakeup_fd(self._before)
        os.write(self._writer, b"\0")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        while not self._stopped:
            self._signalled = self._heard(_LOOK_EVERY_S) or self._signalled
            pending, now = self._nvml.pending, time.monotonic()
            if self._told is not None and pending is not self._told:
                say(f"{self._told.call} has answered after {now - self._told.began_s:.0f} s")
                self._told = None
            if pending is None or now - pending.began_s < _GRACE_S:
                continue
            if self._over(now):
                self._end(pending)
            if now - pending.began_s >= PATIENCE_S:
                self._tell(pending, now)

    def _heard(self, within_s: float) -> bool:
        """Whether a signal came that ends us."""
        if not select.select([self._reader], [], [], within_s)[0]:
            return False
        return not _SIGNALS.isdisjoint(os.read(self._reader, 64))

    def _over(self, now: float) -> bool:
        orphaned = self._with_parent is not None and os.getppid() != self._with_parent
        return self._signalled or orphaned or (self._ends_s is not None and now >= self._ends_s)

    def _tell(self, pending: Pending, now: float) -> None:
        if self._told is None:
            self._told, self._point_s = pending, now
            say(f"warning: {pending.call} has not answered for {PATIENCE_S:.0f} s; {_HINT}")
        if now >= self._point_s:
            self._point_s = max(self._point_s + self._interval_s, now)
            sink = self._outlet()
            sink.put(self._point(pending, now))
            sink.tick()

    def _point(self, pending: Pending, now: float) -> Point:
        text = f"{Fault(TIMEOUT, pending.call).text}: has not answered for {now - pending.began_s:.0f} s: {_HINT}"
        fields: dict[str, float | int | str | None] = {
            "ok": 0, "error": TIMEOUT, "error_text": text, "gpus": 0, "gpus_expected": self._expect,
        }  # fmt: skip
        return Point(GPU_HOST.name, {"host": self._host}, fields, time.time_ns())

    def _end(self, pending: Pending) -> None:
        """Close the outlet and end the process, unless the call came back: then the main thread does so."""
        sink = self._outlet()
        with sink.lock:
            if self._nvml.pending is not pending:
                return
            if not sink.closed:
                sink.put(self._point(pending, time.monotonic()))
                say(
                    f"{pending.call} has not answered for {time.monotonic() - pending.began_s:.0f} s: ending without it"
                )
                threading.Thread(target=self._hurry, args=(sink,), daemon=True).start()
                say(sink.close())
            os._exit(sink.exit_code)

    def _hurry(self, sink: Outlet) -> None:
        """One more signal, and the database is not waited for."""
        while not self._heard(60.0):
            pass
        sink.hurry()

    def _outlet(self) -> Outlet:
        try:
            return self._open()
        except AgentError as error:
            self._refuse(error)

    @staticmethod
    def _refuse(error: AgentError) -> NoReturn:
        """The outlet can't be opened, and the main thread, which would say so, hangs."""
        say(f"error: {error}")
        if error.hint:
            say(f"hint: {error.hint}")
        os._exit(error.exit_code)
