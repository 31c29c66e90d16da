"""The sender as its writer sees it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from infersiege_agents.environment import bare
from infersiege_agents.influx.orders import Settings, Status, read_status

SILENT_SENDER_S = 90.0
"""A sender that gave no sign of life for this long is killed and started again."""


class SenderProcess:
    """Started, nudged, watched, started again, ended."""

    def __init__(self, directory: Path, lock: int, settings: Settings, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._lock = lock
        self._settings = settings
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._orders = -1
        self._started_at = 0.0
        self._start_at = -math.inf
        self._deaths = 0
        self._starting = False
        self._hurried = False
        self._beat = -1
        self._beat_at = 0.0
        self.taken_up_before = 0
        """Points that earlier senders of this writer have taken up."""
        self.lost_found_before = 0
        """Losses of dead writers that earlier senders of this writer have found."""
        self.problem: str | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def nudge(self) -> bool:
        """Tells it of a new segment. False when it is dead."""
        return self._say(b"\n")

    def keep_alive(self, status: Status) -> None:
        """Starts it when it is not there, and when it has shown no sign of life for long."""
        now = self._clock()
        if self._orders >= 0 and status.beat != self._beat:
            self._beat, self._beat_at, self.problem = status.beat, now, None
        if self._orders >= 0 and now - self._beat_at > SILENT_SENDER_S and self._process is not None:
            self._process.kill()
            self.problem = f"the sender stood still for {SILENT_SENDER_S:.0f} s: started again"
        elif self._orders >= 0 and self._say(b"\n"):
            return
        if self._process is not None:
            self._bury(now, status)
        if now >= self._start_at:
            self._start(now)

    def finish(self, ends: float) -> None:
        """Lets it deliver until that moment of the monotonic clock, and ends it."""
        if not self._say(b"\n"):
            if self._process is not None:
                self._bury(self._clock(), read_status(self._directory))
            self._start(self._clock())
        self._say(f"finish {max(0.0, ends - time.monotonic() - 0.2):.3f}\n".encode())
        process = self._process
        # Popen.poll and sleep, not wait: the same in a process that gevent has patched.
        while process is not None and process.poll() is None and time.monotonic() < ends and not self._hurried:
            time.sleep(0.01)
        if process is not None and process.poll() is None:
            process.kill()  # all its state is in the spool
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
        elif process is not None and process.returncode == 0:
            self.problem = None
        self._hang_up()
        self._process = None

    def hurry(self) -> None:
        """`finish` shall not wait any longer."""
        self._hurried = True

    def _start(self, now: float) -> None:
        if self._starting:  # gevent's Popen lets other greenlets run
            return
        self._starting = True
        reader, writer = os.pipe()
        # -P: without it the current folder would come first on sys.path, and its random.py would be run.
        command = [sys.executable, "-P", "-m", "infersiege_agents.influx.sender", str(self._directory)]
        try:
            with (self._directory / "sender.log").open("wb") as log:
                # A session of its own: Ctrl-C is for us; the sender ends when its stdin does.
                self._process = subprocess.Popen(
                    command,
                    stdin=reader,
                    stdout=log,
                    stderr=log,
                    pass_fds=(self._lock,),
                    start_new_session=True,
                    env=bare(os.environ),
                )
        except OSError as error:
            os.close(writer)
            self._failed_to_live(now, error.strerror or str(error))
            return
        finally:
            os.close(reader)
            self._starting = False
        os.set_blocking(writer, False)
        self._orders, self._started_at, self._beat, self._beat_at = writer, now, -1, now
        self._say(json.dumps(asdict(self._settings)).encode() + b"\n")

    def _say(self, words: bytes) -> bool:
        if self._orders < 0:
            return False
        try:
            os.write(self._orders, words)
        except BlockingIOError:
            pass  # it has enough to read already
        except OSError:
            self._hang_up()
            return False
        return True

    def _bury(self, now: float, status: Status) -> None:
        """It has died: takes its last words, and a pause that grows when it dies young."""
        self._hang_up()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        self._process = None
        self.taken_up_before += status.taken_up
        self.lost_found_before += status.lost_before
        with contextlib.suppress(OSError):
            (self._directory / "status.json").unlink()
        last = ""
        with contextlib.suppress(OSError):
            text = (self._directory / "sender.log").read_text(encoding="utf-8", errors="replace")
            last = text.strip().rpartition("\n")[2][:300]
        self._failed_to_live(now, last)

    def _failed_to_live(self, now: float, words: str) -> None:
        self._deaths = self._deaths + 1 if now - self._started_at < 10 else 0
        self._start_at = now + (min(30.0, 0.5 * 2.0**self._deaths) if self._deaths else 0.0)
        self.problem = f"the sender died and is started again{': ' + words if words else ''}"

    def _hang_up(self) -> None:
        if self._orders >= 0:
            os.close(self._orders)
            self._orders = -1
