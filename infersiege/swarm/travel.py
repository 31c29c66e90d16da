"""The files of a plan on their way to workers that don't have them: traces and certificates, never keys.

The master lists what the plan names (`needed_paths`), with hashes. A worker that has not the same files under the same
paths asks for them (`Luggage`), and the master sends them packed and in parts (`FileStore`), without a stop of its
event loop. They live in a private folder until the worker has opened them, and are gone before the load begins.

Tokenizer files stay at home: the master has measured with them, and workers get the lengths (`text_lengths` of the
assignment). So do files with keys (`api_key_file`, `from_file`): each host has its own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import gevent

from infersiege.errors import UsageError
from infersiege.plan.defaults import BUILTIN
from infersiege.plan.schema import Plan
from infersiege.records import FilePart, FileWanted, NeededFile, NeededPath
from infersiege.swarm import messages
from infersiege.traces import Trace
from infersiege.traces.files.unpacked import files_in

log = logging.getLogger("infersiege.swarm.travel")

MOST_PACKED_BYTES = 64 << 20
"""Of one path. To 100 workers over 1 Gbit/s that is a minute, the time for which a run waits for its workers."""
MOST_BYTES = 1 << 30
"""The same unpacked: what a worker without it must have room for, and what is not even tried to be packed."""
PART_BYTES = 64 << 10
"""Of the stream, in one message: a part arrives within two seconds on a line of 32 KB/s."""
PARTS_AT_ONCE = 16
"""For each request: a worker that is 100 ms away gets 10 MB/s."""
_PARTS_A_PAUSE = 2
"""With a pause of a millisecond 1 Gbit/s. All that a thousand workers ask for at once would be a gigabyte in ZeroMQ's
queues, and no lease would go out for a second."""
_PAUSE_S = 1e-6
"""A millisecond in truth. 0 would be one more round of the same pass of the loop, in which timers wait."""
_BLOCK_BYTES = 64 << 10
"""Packed without a stop: a millisecond."""


def needed_paths(plan: Plan, traces: Sequence[Trace]) -> tuple[NeededPath, ...]:
    """What workers need of the master's files: each path once. Raises UsageError for one that can't be read."""
    whats: dict[str, tuple[str, str | None]] = {}
    for workload, trace in zip(plan.workloads, traces, strict=True):
        if workload.source is None and not workload.trace.startswith(BUILTIN):
            whats.setdefault(workload.trace, (f"trace of {workload.scenario}", trace.sha256))
    for name, channel in plan.channels.items():
        if channel.ca is not None:
            whats.setdefault(channel.ca, (f"ca of channel {name}", None))
    if plan.redis.ca is not None:
        whats.setdefault(plan.redis.ca, ("ca of Redis", None))
    return tuple(_needed(path, what, sha256) for path, (what, sha256) in whats.items())


def _needed(path: str, what: str, sha256: str | None) -> NeededPath:
    place = Path(path)
    members = files_in(place) if place.is_dir() else (place,)
    try:
        sizes = [member.stat().st_size for member in members]
        travels = sum(sizes) <= MOST_BYTES
        files = []
        for member, size in zip(members, sizes, strict=True):
            name = "" if member == place else member.relative_to(place).as_posix()
            if len(members) == 1 and sha256 is not None:
                digest = sha256
            else:
                digest = sha256_of(member) if travels else ""
            files.append(NeededFile(name=name, size_bytes=size, sha256=digest))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint=f"it is the {what}") from None
    return NeededPath(path=path, what=what, files=tuple(files), travels=travels)


def sha256_of(path: Path) -> str:
    """Of a file, read in pieces with pauses for others. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            gevent.sleep(0)
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------------- the master


@dataclass(slots=True)
class _Packed:
    file: IO[bytes] | None = None
    """Without a name; None: it is being packed, or does not travel."""
    size_bytes: int = 0
    refused: str | None = None
    waiting: dict[str, int] = field(default_factory=dict)
    """Node id -> offset, of those who asked while it was packed."""


class FileStore:
    """Master's side: packs a path when it is first asked for, once, and sends it to whoever is in the fleet."""

    def __init__(self, paths: Sequence[NeededPath], known: Callable[[str], object | None]) -> None:
        """`known` gives None for a node id that is not of the fleet, and takes it as a sign of life else."""
        self._paths = paths
        self._known = known
        self._packed: dict[int, _Packed] = {}
        self._asked: dict[tuple[str, int], tuple[int, int]] = {}
        """(node id, number of the path) -> the bytes that it gets, from and to. Who is first is next."""
        self._serves = False
        self._runner: Any = None

    def open(self, runner: Any) -> None:
        self._runner = runner
        messages.on(runner, FileWanted, self._on_wanted)

    def _on_wanted(self, node_id: str, wanted: FileWanted) -> None:
        if self._known(node_id) is None or not 0 <= wanted.number < len(self._paths) or wanted.offset_bytes < 0:
            return
        packed = self._packed.get(wanted.number)
        if packed is None:
            packed = self._packed[wanted.number] = _Packed()
            gevent.spawn(self._pack, wanted.number, packed)
        if packed.file is None and packed.refused is None:
            packed.waiting[node_id] = wanted.offset_bytes
        else:
            self._ask(node_id, wanted.number, wanted.offset_bytes)

    def _pack(self, number: int, packed: _Packed) -> None:
        path = self._paths[number]
        spool: IO[bytes] | None = None
        try:
            spool = tempfile.TemporaryFile(prefix="infersiege-files-")  # noqa: SIM115 - kept for the run
            packed.refused = None if path.travels else too_large(path)
            for data in () if packed.refused else packed_parts(path):
                spool.write(data)
                if spool.tell() > MOST_PACKED_BYTES:
                    packed.refused = too_large(path)
                    break
                gevent.sleep(0)
            spool.flush()
        except _ChangedError as error:
            packed.refused = f"was changed on the master's host since the run began ({error})"
        except Exception as error:  # noqa: BLE001  # it is one of the run's workers that must know, whatever it was
            packed.refused = f"can't be sent by the master: {getattr(error, 'strerror', None) or error}"
        if packed.refused is None and spool is not None:
            packed.size_bytes, packed.file = spool.tell(), spool
        elif spool is not None:
            spool.close()
        for node_id, offset in packed.waiting.items():
            self._ask(node_id, number, offset)
        packed.waiting.clear()

    def _ask(self, node_id: str, number: int, offset: int) -> None:
        self._asked[node_id, number] = offset, offset + PARTS_AT_ONCE * PART_BYTES
        if not self._serves:
            self._serves = True
            gevent.spawn(self._serve)

    def _serve(self) -> None:
        """A part to each in turn, until all have what they asked for."""
        sent = 0
        try:
            while self._asked:
                asked = next(iter(self._asked))
                offset, end = self._asked.pop(asked)
                offset = self._send(*asked, offset)
                if offset < min(end, self._packed[asked[1]].size_bytes):
                    self._asked[asked] = offset, end
                sent += 1
                if sent % _PARTS_A_PAUSE == 0:
                    gevent.sleep(_PAUSE_S)
        finally:
            self._serves = False

    def _send(self, node_id: str, number: int, offset: int) -> int:
        """One part, or why there is none. Returns where the next one begins; beyond the end: there is none."""
        packed, data = self._packed[number], b""
        try:
            if packed.file is not None:
                data = os.pread(packed.file.fileno(), PART_BYTES, offset)
        except OSError as error:
            packed.refused = f"can't be sent by the master: {error.strerror}"
        part = FilePart(
            number=number, offset_bytes=offset, data=data, packed_bytes=packed.size_bytes, refused=packed.refused
        )
        messages.send(self._runner, part, node_id)
        return offset + len(data) if data else packed.size_bytes


class _ChangedError(Exception):
    """A file is no more what the list says; its name."""


def packed_parts(path: NeededPath) -> Iterator[bytes]:
    """The stream of a path's files, in small pieces. Raises _ChangedError, OSError."""
    packer = zlib.compressobj(1)
    for wanted in path.files:
        digest, size = hashlib.sha256(), 0
        with Path(path.path, wanted.name).open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                size += len(block)
                digest.update(block)
                yield packer.compress(block)
        if size != wanted.size_bytes or digest.hexdigest() != wanted.sha256:
            raise _ChangedError(wanted.name or Path(path.path).name)
    yield packer.flush()


def too_large(path: NeededPath) -> str:
    size = sum(file.size_bytes for file in path.files)
    return (
        f"is too large to be sent to workers: {_mib(size)}; what travels has at most {_mib(MOST_PACKED_BYTES)} packed "
        f"and {_mib(MOST_BYTES)} unpacked"
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.0f} MiB"
