"""What this host gives a run: descriptors for its users, room on the disks, a driver for its GPU agent."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from infersiege_agents.influx.spool import spool_directory

from infersiege.doctor.findings import Check, Findings
from infersiege.doctor.workers import check_workers
from infersiege.plan.schema import Plan
from infersiege.plan.streams import most_sessions_at_a_time
from infersiege.redact import Secrets

_DESCRIPTORS_BESIDE_USERS = 100
"""Of a worker: libraries, logs, spool, master."""
_BYTES_PER_TURN = 2_000
_LITTLE_BYTES = 1 << 30
_NONE_BYTES = 50 << 20


def examine_host(plan: Plan, environ: Mapping[str, str], *, out: Path) -> tuple[Check, ...]:
    """Open files against users, workers against the load, free disk at the run directory and at the spools, NVML where
    the plan wants GPUs."""
    found = Findings(Secrets.of(plan, environ))
    _descriptors(found, plan)
    check_workers(found, plan, environ)
    places = {"run directory": out, "workers' spool": Path(environ.get("INFERSIEGE_SPOOL") or tempfile.gettempdir())}
    if plan.telemetry.influx_url is not None:
        spool = plan.telemetry.spool
        places["telemetry spool"] = Path(spool) if spool else spool_directory(environ)
    for name, path in places.items():
        _room(found, name, path)
    if plan.telemetry.gpu:
        _gpus(found)
    return tuple(found.checks)


def _descriptors(found: Findings, plan: Plan) -> None:
    """Workers raise their soft limit to the hard one, so that is what counts (HC-06)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    workers, users = plan.run.workers, most_sessions_at_a_time(plan)
    limit = "without limit" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    if users is None:
        found.ok("open files", f"{limit} per process; the load sets no most in flight to hold that against")
        return
    servers = _servers_of_a_user(plan)
    needed = -(-users // workers) * servers + _DESCRIPTORS_BESIDE_USERS
    said = f"{limit} per process; a worker needs about {needed:,} for its share of {users:,} users"
    if servers > 1:
        said += f", each with a connection to up to {servers} servers"
    if hard != resource.RLIM_INFINITY and hard < needed:
        each = max(0, hard - _DESCRIPTORS_BESIDE_USERS) // servers
        more = -(-users // each) if each else None
        hint = f"raise it (ulimit -Hn {needed}, or LimitNOFILE)" + (f", or use {more} workers" if more else "")
        found.fault("open files", said, hint)
    else:
        found.ok("open files", said)


def _servers_of_a_user(plan: Plan) -> int:
    """Connections that one user may have open: it keeps one to each server that a session of its ever went to."""
    named = {workload.channel or next(iter(plan.channels), "") for workload in plan.workloads}
    used = named | {part.channel for name in named if name in plan.hybrids for part in plan.hybrids[name].parts}
    kept = [channel for name, channel in plan.channels.items() if name in used and channel.keep_alive]
    return max(1, sum(len(channel.addresses) for channel in kept))


def _room(found: Findings, name: str, path: Path) -> None:
    folder = path.expanduser().absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        found.fault(name, f"{path}: {error.strerror or error}", "name another directory")
        return
    said = f"{_size(free)} free at {folder}"
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        found.fault(name, f"{folder} can't be written by this user", "name another directory, or change its rights")
    elif free < _NONE_BYTES:
        found.fault(name, said, "a run would be stopped by a full disk: make room")
    elif free < _LITTLE_BYTES:
        found.warn(name, f"{said}: about {free // _BYTES_PER_TURN:,} turns", "make room for a long run")
    else:
        found.ok(name, said)


def _gpus(found: Findings) -> None:
    from infersiege_agents.nvml import Nvml, hint  # loads the driver's library

    nvml = Nvml()
    fault = nvml.start()
    nvml.stop()
    if fault is None:
        found.ok("GPU agent", "NVML answers")
        return
    seen = f"[telemetry] gpu: NVML does not answer here ({fault.text}), so this host's GPUs will not be in the run"
    found.warn("GPU agent", seen, f"{hint(fault.code)}; or leave gpu out, and start infersiege-agent on the GPU host")


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
