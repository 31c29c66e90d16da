"""What a writer and its sender tell each other: settings and orders over stdin; status.json the other way."""

from __future__ import annotations

import json
import os
import select
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

Fsync = Literal["never", "waiting", "always"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the writer tells its sender at the start."""

    token: str = ""
    deadline_s: float = 10.0
    """For one request, from connecting to the end of the answer."""
    backoff_s: float = 0.25
    backoff_most_s: float = 15.0
    request_lines: int = 10_000
    request_bytes: int = 2 << 20
    fsync: Fsync = "waiting"
    """`waiting`: what was not taken at its first try goes onto the disk for good. A taken segment needs no fsync."""
    set_aside_bytes: int = 64 << 20
    """Disk for lines that the database refused for good."""
    orphan_s: float = 10.0
    """How long a sender goes on after its writer died."""


@dataclass(frozen=True, slots=True)
class Status:
    """What the sender tells its writer, in status.json."""

    problem: str | None = None
    """Why points wait."""
    refusal: str | None = None
    """The database's words for the last lines that it refused for good."""
    clock_offset_s: int | None = None
    taken_up: int = 0
    """Points of dead writers that this sender has delivered."""
    inherited: int = 0
    """Points of dead writers that wait."""
    lost_before: int = 0
    """Points that dead writers lost, found by this sender."""
    elsewhere_bytes: int = 0
    """Disk that all other directories of the spool take."""
    beat: int = 0
    """Counts up while the sender lives."""


def read_status(directory: Path) -> Status:
    """The sender's last word; an empty one before the first."""
    try:
        found = json.loads((directory / "status.json").read_bytes())
        return Status(**{one.name: found[one.name] for one in fields(Status)})
    except (OSError, ValueError, KeyError, TypeError):
        return Status()


class Orders:
    """The writer's end of stdin."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = b""
        self.ended = False
        """The writer has closed its end, or died."""
        self.finish_within_s: float | None = None

    def first_line(self) -> bytes:
        while b"\n" not in self._pending and not self.ended:
            self._read(None)
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def wait(self, timeout_s: float) -> None:
        """Until the writer says something, at most that long."""
        if self.ended:
            time.sleep(max(0.0, timeout_s))
            return
        self._read(timeout_s)
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            if line.startswith(b"finish "):
                self.finish_within_s = float(line.removeprefix(b"finish "))

    def _read(self, timeout_s: float | None) -> None:
        readable, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if readable:
            data = os.read(self._descriptor, 65536)
            self.ended = not data
            self._pending += data
