"""The emulator as a child process, for tests, benchmarks and the demo. Standard library only."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from infersiege.errors import TargetError, UsageError

_LISTENING = re.compile(rb"listening on (http://\S+:(\d+)/v1) \(model (.*)\)\n")


class EmulatorProcess:
    """Starts `python -m infersiege.emulator` on a free port and waits until it listens.

        with EmulatorProcess("--preset", "small", log=path) as emulator:
            ... emulator.base_url ...
            rows = emulator.truth()

    The child ends with this process, however that ends: it holds the other side of its standard input.
    """

    def __init__(
        self,
        *options: str,
        log: Path | None = None,
        api_key: str | None = None,
        port: int = 0,
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = 30.0,
    ) -> None:
        """`options` are those of `infersiege emulate`; the key goes through the environment, not the process list."""
        self.log = log
        self._command = [sys.executable, "-m", "infersiege.emulator", "--port", str(port), "--until-stdin-closes"]
        if log is not None:
            self._command += ["--log", str(log)]
        self._command += options
        self._env = {**os.environ, **(env or {})}
        self._env.pop("INFERSIEGE_EMULATOR_API_KEY", None)
        if api_key is not None:
            self._env["INFERSIEGE_EMULATOR_API_KEY"] = api_key
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self.base_url = ""
        """With `/v1` at its end; empty before the start."""
        self.port = 0
        self.model = ""

    def start(self) -> EmulatorProcess:
        """Raises UsageError for options that the emulator refuses, TargetError when it does not come up."""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed in stop)
        # A session of its own: Ctrl-C is for the program that uses it, which may still have answers to wait for.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._env,
            start_new_session=True,
        )
        found = _LISTENING.search(self._first_line())
        if found is None:
            code, text = self._process.poll(), self._stderr_text()
            self.stop()
            message = f"the emulator did not start (exit code {code}): {text.strip() or 'no message'}"
            raise UsageError(message) if code == 2 else TargetError(message)
        self.base_url = found[1].decode()
        self.port = int(found[2])
        self.model = found[3].decode()
        return self

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def stop(self, timeout_s: float = 10.0) -> int | None:
        """End it and wait; gives its exit code (0, or negative for a signal), None if it never ran."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            process.terminate()
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            for pipe in (process.stdin, process.stdout, self._stderr):
                if pipe is not None:
                    pipe.close()
        return process.returncode

    def kill(self) -> None:
        """SIGKILL, as if the engine had died; `stop` still cleans up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def truth(self) -> list[dict[str, Any]]:
        """The rows of the truth log so far. Raises UsageError when none was asked for."""
        if self.log is None:
            raise UsageError("the emulator was started without a log")
        return [json.loads(line) for line in self.log.read_bytes().splitlines()]

    def __enter__(self) -> EmulatorProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _first_line(self) -> bytes:
        """Standard output up to its first line end; less when the process ended or the time is over."""
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + self._start_timeout_s
        line = b""
        while b"\n" not in line:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                break
            data = os.read(descriptor, 4096)
            if not data:
                self._process.wait()
                break
            line += data
        return line

    def _stderr_text(self) -> str:
        assert self._stderr is not None
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")[-2000:]
