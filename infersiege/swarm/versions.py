"""Who we are: versions that must be the same on all workers, and the facts of this host."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

COMPARED = ("infersiege", "locust", "gevent", "msgspec", "numpy")
"""A mismatch is refused: messages, seeds and histograms must mean the same everywhere."""


def versions() -> dict[str, str]:
    """Name -> version of everything in COMPARED."""
    return {name: metadata.version(name) for name in COMPARED}


def all_versions() -> dict[str, str]:
    """The same for plan.json, with Python's and httptools'."""
    return {**versions(), "httptools": metadata.version("httptools"), "python": platform.python_version()}


def boot_id() -> str:
    """The same on two processes exactly when their monotonic clocks are one."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.exists() else platform.node()


def host_facts() -> dict[str, str]:
    """The machine that generates the load, as it is shown in a report."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts = {
        "name": platform.node(),
        "kernel": platform.release(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.1f} GiB",
    }
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            facts["cpu"] = line.partition(":")[2].strip()
            break
    return facts
