"""The file in which a host's calibration is kept, and what it says in one line."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import msgspec

from infersiege.errors import UsageError
from infersiege.records import Calibration

HINT = "measure it with `infersiege calibrate`"


class Known(NamedTuple):
    """What is known of this host. Without `calibration`, `note` says why."""

    calibration: Calibration | None
    note: str | None


def path_of(environ: Mapping[str, str], host: str | None = None) -> Path:
    """$XDG_STATE_HOME/infersiege/calibration-HOST.json; below ~/.local/state without the variable."""
    state = environ.get("XDG_STATE_HOME") or ""
    # As the specification has it: a relative path is not one.
    root = Path(state) if state.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / ".local/state"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", host or platform.node()) or "host"
    return root / "infersiege" / f"calibration-{name}.json"


def versions() -> dict[str, str]:
    return {"infersiege": metadata.version("infersiege"), "python": platform.python_version()}


def cpu_model() -> str:
    """As the kernel names it; empty where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor()


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def known(environ: Mapping[str, str]) -> Known:
    """This host's calibration, if there is one that is its own. Raises nothing: not knowing is a note."""
    path = path_of(environ)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except FileNotFoundError:
        return Known(None, "this host was not calibrated")
    except OSError as error:
        return Known(None, f"{path} can't be read: {(error.strerror or str(error)).lower()}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Known(None, f"{path} is no calibration: {error}")
    for what, then, now in (
        ("CPU", found.cpu, cpu_model()),
        ("number of cores", str(found.cores), str(cores())),
        ("infersiege", found.versions.get("infersiege", "?"), versions()["infersiege"]),
        ("Python", found.versions.get("python", "?"), versions()["python"]),
    ):
        if then != now:
            return Known(None, f"this host was calibrated with another {what} ({then}, now {now})")
    if not (found.tokens_per_s > 0 and found.requests_per_s > 0 and found.answer_tokens > 0):
        return Known(None, f"{path} is no calibration: its ceilings are not positive")
    return Known(found, None)


def keep(found: Calibration, environ: Mapping[str, str]) -> Path:
    """Write it, whole or not at all; returns where. Raises UsageError."""
    path = path_of(environ)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # already telling of the same directory
            part.unlink(missing_ok=True)
        raise UsageError(
            f"{path}: can't be written: {(error.strerror or str(error)).lower()}", hint="set XDG_STATE_HOME to another"
        ) from None
    return path


def line_of(found: Calibration) -> str:
    """For reports: the ceilings of one worker."""
    quick = ", quick" if found.quick else ""
    return (
        f"one worker reads {found.tokens_per_s:,.0f} tokens/s ({found.streams:,} streams), sends "
        f"{found.requests_per_s:,.0f} short requests/s (infersiege calibrate{quick})"
    )
