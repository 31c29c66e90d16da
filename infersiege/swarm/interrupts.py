"""SIGINT, SIGTERM and SIGHUP of the process that runs a plan: one handler, whose meaning changes with the load."""

from __future__ import annotations

import signal
from collections.abc import Callable

import gevent

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Until `on_signal` is set to something else, a signal ends the command as Ctrl-C does.

    KeyboardInterrupt is thrown into the main greenlet: left to Python it would strike in gevent's hub, which prints it.
    """

    def __init__(self) -> None:
        self._main = gevent.getcurrent()
        self.on_signal: Callable[[], None] = self._end_command
        for number in SIGNALS:
            gevent.signal_handler(number, self._arrived)

    def _arrived(self) -> None:
        self.on_signal()

    def _end_command(self) -> None:
        gevent.kill(self._main, KeyboardInterrupt)
