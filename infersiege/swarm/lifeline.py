"""A process that ends with the one that started it, by whatever that was ended: also by SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

from infersiege.errors import ExitCode

PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def tied_to(parent: int) -> Callable[[], None] | None:
    """For `preexec_fn`: when `parent` (a process id, our own) dies, the kernel sends the new process SIGTERM.

    It counts as dead with the thread that calls `Popen`: call it in the main one. None: only Linux can do that.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before that
            os._exit(int(ExitCode.INTERRUPTED))

    return tie
