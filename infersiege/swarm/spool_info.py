"""spool.json: whose a spool is, and whether that process lives."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

from infersiege.plan.schema import Plan
from infersiege.records import Assignment, Bye
from infersiege.rundir.damage import span_of_run
from infersiege.rundir.planfile import first_too_large
from infersiege.swarm.versions import boot_id, versions


class SpoolInfo(msgspec.Struct, frozen=True, kw_only=True):
    """spool.json: whose records these are, for whoever finds them when master and worker are gone. No secrets."""

    schema_version: int = 1
    run_id: str
    run_name: str
    worker: str
    host: str
    pid: int
    pid_started: int | None
    """Clock ticks since the boot (proc(5), starttime): a later process with the same number is another one. None: the
    system does not tell."""
    boot_id: str
    place: int
    """Its seat in the run, of `members`."""
    members: int
    offset_ns: int
    """Unix epoch on the master's clock minus this host's monotonic clock. Instants of the records have it already."""
    clock_offset_ns: int
    """The master's monotonic clock minus this host's."""
    clock_uncertainty_ns: int
    written_ns: int
    """When the worker took part (epoch)."""
    versions: dict[str, str]
    plan_hash: str
    trace_hashes: dict[str, str] = {}
    started_ns: int | None = None
    """First arrival due (epoch); None: it never heard "go"."""
    stopped_ns: int | None = None
    """When the worker had accounted for all that it held (epoch); None: it was killed."""
    bye: Bye | None = None
    """What it would have told the master then."""

    @classmethod
    def of(
        cls, assignment: Assignment, plan: Plan, worker: str, *, clock_offset_ns: int, clock_uncertainty_ns: int
    ) -> SpoolInfo:
        """Of this process, which has its part in a run now. The clock: the master's monotonic one minus ours."""
        offset_ns = assignment.offset_ns + clock_offset_ns
        return cls(
            run_id=assignment.run_id,
            run_name=plan.run.name or "run",
            worker=worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_started=pid_started(os.getpid()),
            boot_id=boot_id(),
            place=assignment.place,
            members=assignment.members,
            offset_ns=offset_ns,
            clock_offset_ns=clock_offset_ns,
            clock_uncertainty_ns=clock_uncertainty_ns,
            written_ns=time.monotonic_ns() + offset_ns,
            versions=versions(),
            plan_hash=assignment.plan_hash,
            trace_hashes=assignment.trace_hashes,
        )

    def impossible(self) -> str | None:
        """What no worker can have written, as one sentence; None: nothing that this looks at."""
        if (where := first_too_large(msgspec.to_builtins(self))) is not None:
            return f"{where}: no run has a number of that size"
        if self.place < 0 or self.members < 1:
            return f"place is {self.place}, of {self.members} workers"
        low_ns, high_ns = span_of_run(self.written_ns, None)
        for name, at_ns in (("started_ns", self.started_ns), ("stopped_ns", self.stopped_ns)):
            if at_ns is not None and not low_ns <= at_ns <= high_ns:
                return f"{name} is {at_ns}, far from when the worker took part"
        if self.bye is not None:
            several = (msgspec.structs.astuple(one) for one in (*self.bye.plays.values(), *self.bye.changes.values()))
            if min(self.bye.records, self.bye.planned_turns, *(count for one in several for count in one)) < 0:
                return "bye has a negative count"
        return None

    def lives(self) -> bool:
        """Whether the process that wrote it is one of this host's, and still there."""
        started = pid_started(self.pid) if self.boot_id == boot_id() else None
        return started is not None and started == self.pid_started


def pid_started(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None: it has ended, or the system does not tell."""
    try:
        stats = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = stats.rpartition(")")[2].split()
        # A zombie has ended: only its parent has not asked yet.
        return None if state in "ZX" else int(rest[18])
    except (OSError, ValueError, IndexError):
        return None
