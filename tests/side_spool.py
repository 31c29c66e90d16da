"""What test_spool.py does to a process that it would not do to its own."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from swarm_rows import record

from infersiege.swarm.spool import Spool


def _write(spool: Spool, rows: int) -> dict[str, Any]:
    for turn in range(rows):
        spool.add(record("a", turn, detail="x" * 100))
    spool.cut()
    return {"disk_error": spool.disk_error, "shipped": sum(segment.rows for segment in spool.unacknowledged())}


def write_under_a_file_size_limit(directory: str, limit: int, rows: int) -> dict[str, Any]:
    spool = Spool(Path(directory), "w")
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return _write(spool, rows)


def write_without_descriptors(directory: str, rows: int) -> dict[str, Any]:
    spool = Spool(Path(directory), "w")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        found = _write(spool, rows)
    for descriptor in taken:
        os.close(descriptor)
    return found
