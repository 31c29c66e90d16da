"""The file of --out: points as JSON lines, whole ones only."""

from __future__ import annotations

import os
from pathlib import Path

from infersiege_agents.errors import AgentError
from infersiege_agents.points import Point, json_line


class PointFile:
    """A file of JSON lines. A fault of the disk loses points, and counts them; it stops nobody."""

    def __init__(self, path: Path) -> None:
        """Append to `path`. Raises AgentError when it can't be written, or ends in half a line of something else."""
        self.path = path
        self.written = 0
        self.lost = 0
        self.problem: str | None = None
        """The latest fault, in words; None: there was none."""
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            hint = "make its folder first" if isinstance(error, FileNotFoundError) else "name another file with --out"
            raise AgentError(f"--out {path}: can't be written: {error.strerror or error}", hint=hint) from None
        try:
            self._mend()
        except BaseException:
            self._file.close()
            raise

    def _mend(self) -> None:
        """Cut off half a line that a crash left: what comes after it would be unreadable."""
        if not self.path.is_file() or self.path.stat().st_size == 0:
            return
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - (1 << 20)))
            tail = file.read()
        torn = tail[tail.rfind(b"\n") + 1 :]
        if not torn:
            return
        if not torn.startswith(b'{"at_ns"'):
            raise AgentError(f"--out {self.path}: is no file of points", hint="name another file with --out")
        self._file.truncate(start + len(tail) - len(torn))

    def put(self, point: Point) -> None:
        line = json_line(point)
        if not line:
            return
        done = 0
        try:
            done = self._file.write(line) or 0
            if done != len(line):
                raise OSError("no space left")
        except (OSError, ValueError) as error:
            self.lost += 1
            reason = error.strerror if isinstance(error, OSError) else None
            self.problem = f"{self.path}: can't be written: {reason or error}"
            self._take_back(done)
        else:
            self.written += 1

    def _take_back(self, done: int) -> None:
        if done:
            try:
                self._file.truncate(os.fstat(self._file.fileno()).st_size - done)
            except OSError as error:  # a pipe, or the disk is gone: what is left is a torn line
                self.problem = f"{self.path}: ends in half a line: {error.strerror}"

    def close(self) -> str:
        """What became of the points."""
        try:
            self._file.close()
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror}"
        text = f"{self.path}: {self.written:,} points written"
        return f"{text}, {self.lost:,} lost ({self.problem})" if self.lost else text
