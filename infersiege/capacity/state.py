"""What a search or a sweep has done so far, in one JSON file beside the run directories of its probes.

It is replaced as a whole after each step: whatever happens to the process, the same command goes on from there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from infersiege.capacity.idle import Idleness
from infersiege.capacity.search import Finding, Judged, Range
from infersiege.errors import UsageError
from infersiege.plan import Plan, plan_hash
from infersiege.report.load_curve import Knee, LoadPoint
from infersiege.rundir.files import pretty, reason_of
from infersiege.swarm.versions import versions

SCHEMA = 1
CAPACITY = "capacity.json"
SWEEP = "sweep.json"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a search or a sweep."""

    number: int
    directory: str
    """Of the run, beside this file."""
    load: float
    channel: str | None = None
    """To which every workload was sent; None: as the plan says."""
    duration_ns: int
    ended: bool = False
    """False: it was begun, and nothing is known of its end (interrupted, or the search was killed)."""
    judged: Judged | None = None
    why: str = ""
    """One line: the rule that decided, or why there is no verdict."""
    exit_code: int | None = None
    idle: Idleness | None = None
    """How the target was found before it; None: nobody looked."""
    point: LoadPoint | None = None
    longer_ns: int | None = None
    """How long it should have been for every rule to have its turns."""
    hopeless: bool = False
    """No data, and a longer probe would have none either."""
    emulated: bool = False
    warnings: tuple[str, ...] = ()
    """Of its run: what must be read with its figures."""
    workers: int | None = None
    """That were asked for; a run has no more of them than users. None: not recorded."""
    call: int = 0
    """Of the command that made it: 1 is the first with this folder, each that goes on is one more."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same for probes to belong to one curve."""

    plan_hash: str
    versions: dict[str, str]
    trace_hashes: dict[str, str] = {}
    """As the first probe found them; empty: none ended yet."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What the file of any command with several runs begins with."""

    schema_version: int = SCHEMA


class CapacityState(Kept, frozen=True, kw_only=True):
    """capacity.json."""

    kind: str = "capacity"
    name: str
    unit: str
    """`users` or `sessions/s`."""
    identity: Identity
    search: Range
    probe_duration_ns: int
    usual_probes: int
    most_probes: int
    """Of one call."""
    call: int = 1
    """How many commands worked on this search, this one included."""
    probes: tuple[Probe, ...] = ()
    finding: Finding | None = None
    """None: it has not ended."""
    knee: Knee | None = None
    notes: tuple[str, ...] = ()


class SweepState(Kept, frozen=True, kw_only=True):
    """sweep.json."""

    kind: str = "sweep"
    name: str
    unit: str
    identity: Identity
    loads: tuple[float, ...]
    channels: tuple[str, ...]
    """Empty: each workload goes where the plan says."""
    engines: dict[str, str] = {}
    """Channel (or an empty name: all that the plan uses) -> engine and, where it tells, its version."""
    probe_duration_ns: int
    probes: tuple[Probe, ...] = ()
    knees: dict[str, Knee] = {}
    """Channel (or an empty name) -> knee; one without is left out."""


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Holds the folder, which is made if need be, against other calls; the lock ends with the process, however it ends.

    Raises UsageError when another call works in it, and when it can't be made. A file system without locks has none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"{folder}: {reason_of(error)}", hint="name another folder with --out") from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{folder}: another capacity, sweep or run works in it",
                hint="wait for it, or name another folder with --out",
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(held)


State = TypeVar("State", bound=Kept)


def identity_of(plan: Plan) -> Identity:
    """Without what the probes set themselves: how much load, and how long."""
    same = msgspec.structs.replace(
        plan,
        run=msgspec.structs.replace(plan.run, duration_ns=None, stop=None),
        load=msgspec.structs.replace(plan.load, users=None, rate=None),
    )
    return Identity(plan_hash=plan_hash(same), versions=versions())


def save(folder: Path, file: str, state: Kept) -> None:
    """Replace the file whole. Raises UsageError when it can't be written."""
    path = folder / file
    part = path.with_name(f".{file}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as out:
            out.write(pretty(state))
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path}: can't be written: {reason_of(error)}", hint="name another folder with --out"
        ) from None


def load(folder: Path, file: str, kind: type[State]) -> State | None:
    """What an earlier call left; None: nothing.

    Raises UsageError for a folder that holds something else, and for a file that can't be read.
    """
    path = folder / file
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        _must_be_free(folder, file)
        return None
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {reason_of(error)}") from None
    try:
        state = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{path}: {error}", hint="it was damaged: name another folder with --out") from None
    if state.schema_version != SCHEMA:
        raise UsageError(
            f"{path}: schema {state.schema_version}, this infersiege knows {SCHEMA}",
            hint="name another folder with --out",
        )
    return state


def _must_be_free(folder: Path, file: str) -> None:
    try:
        seen = sorted(entry.name for entry in folder.iterdir() if entry.name != f".{file}.part")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{folder}: {reason_of(error)}", hint="name another folder with --out") from None
    if seen:
        raise UsageError(
            f"{folder}: is not empty (it holds {seen[0]}) and has no {file}", hint="name another folder with --out"
        )


def check_same(path: Path, before: Identity, now: Identity) -> None:
    """Raises UsageError when probes of now would not belong to the curve of before."""
    check_plan_and_versions(path, before.plan_hash == now.plan_hash, before.versions, now.versions)


def check_plan_and_versions(path: Path, same_plan: bool, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises UsageError when runs of now can't go on with what `path` keeps: another plan, or another version."""
    hint = "start anew with another --out, or go on with what it was begun with"
    if not same_plan:
        raise UsageError(f"{path}: was begun with another plan (or other --set values)", hint=hint)
    for name, version in before.items():
        if now.get(name) != version:
            raise UsageError(
                f"{path}: was begun with {name} {version}, this is {now.get(name, 'without it')}", hint=hint
            )
