"""A worker's side of the files that travel: which it has, which it asks for, and where they are until they are open."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import gevent
import msgspec
from gevent.queue import Empty, Queue

from infersiege.errors import InfersiegeError, RunInvalidError, TargetError, UsageError
from infersiege.plan.schema import Plan
from infersiege.records import FilePart, FileWanted, NeededPath
from infersiege.swarm import messages
from infersiege.swarm.travel import PART_BYTES, PARTS_AT_ONCE, sha256_of

ASK_AGAIN_S = 2.0
"""Nothing came for so long: a request or an answer was lost, or the master still packs."""
PATIENCE_S = 60.0
"""Nothing came for so long: the master is stuck."""
_MOST_AT_ONCE = 1 << 20
"""Unpacked without a stop. A stream may unpack to a thousand times its size."""
_PREFIX = "infersiege-files-"
_LEFT_S = 60.0
"""A younger folder may be of a worker that is about to lock it."""


class Luggage:
    """Gets what is missing. `folder` is private, and gone after `discard`, or when the next worker starts."""

    def __init__(self, runner: Any, host: str, say: Callable[[str], None]) -> None:
        self._runner = runner
        self._host = host
        self._say = say
        self._parts: Any = Queue()
        self._folder: Path | None = None
        self._lock: int | None = None
        messages.on(runner, FilePart, lambda _, part: self._parts.put(part))

    @contextlib.contextmanager
    def opened(self, paths: Sequence[NeededPath]) -> Iterator[dict[str, str]]:
        """`fetch`, for as long as it takes to open the files; errors that are raised inside name the plan's paths."""
        places: dict[str, str] = {}
        try:
            places = self.fetch(paths)
            yield places
        except InfersiegeError as error:
            error.args = (as_planned(str(error), places),)
            raise
        finally:
            self.discard()

    def fetch(self, paths: Sequence[NeededPath]) -> dict[str, str]:
        """Path of the plan -> where it lies here, for those that are not under their own path.

        Raises UsageError: for what does not travel and is not here, for a folder without room. TargetError: the master
        sends nothing.
        """
        places = {}
        for number, path in enumerate(paths):
            found = differs(path)
            if found is not None:
                places[path.path] = str(self._get(number, path, found))
        return places

    def discard(self) -> None:
        """Remove the files; whoever has opened them keeps them. Again does nothing."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        self._folder = self._lock = None

    def _get(self, number: int, path: NeededPath, found: str) -> Path:
        size = sum(file.size_bytes for file in path.files)
        here = f"{path.path} ({path.what}"
        if len(path.files) == 1 and path.files[0].sha256:
            here += f", sha256 {path.files[0].sha256[:16]}…"
        here += ")"
        self._say(f"{here} {found} on {self._host}: asking the master for its {size:,} bytes")
        try:
            place = self._new_place(number, path)
            with Unpacker(place, path) as unpacker:
                self._receive(number, unpacker, f"{here} {found} on {self._host}")
        except OSError as error:
            raise UsageError(
                f"{path.path}: can't be kept in {tempfile.gettempdir()} on {self._host}: {error.strerror or error}",
                hint=f"TMPDIR names a folder with room for {size:,} bytes",
            ) from None
        return place

    def _receive(self, number: int, unpacker: Unpacker, here: str) -> None:
        offset, packed_bytes, quiet_s, ask_at = 0, None, 0.0, 0
        while packed_bytes is None or offset < packed_bytes:
            if offset >= ask_at:
                messages.send(self._runner, FileWanted(number=number, offset_bytes=offset))
                ask_at = offset + PARTS_AT_ONCE * PART_BYTES
            try:
                part = self._parts.get(timeout=ASK_AGAIN_S)
            except Empty:
                quiet_s, ask_at = quiet_s + ASK_AGAIN_S, offset
                if quiet_s >= PATIENCE_S:
                    raise TargetError(f"{here}: the master has sent nothing of it for {quiet_s:.0f} s") from None
                continue
            if part.number != number or (part.offset_bytes != offset and part.refused is None):
                continue  # of a request that was answered twice
            if part.refused is not None:
                raise UsageError(
                    f"{here}, and {part.refused}",
                    hint="copy the master's to the same path on this host; a large trace can be played from Redis",
                )
            quiet_s, packed_bytes = 0.0, part.packed_bytes
            offset += len(part.data)
            unpacker.feed(part.data)
        unpacker.finish()

    def _new_place(self, number: int, path: NeededPath) -> Path:
        """Raises OSError."""
        if self._folder is None:
            sweep()
            try:
                self._folder, self._lock = _own_folder()
            except OSError:  # Somebody tidies up TMPDIR, and it was gone, or held, before it was locked.
                self._folder, self._lock = _own_folder()
        # Readers and messages know a file by its name.
        return self._folder / str(number) / (Path(path.path).name or "root")


class Unpacker:
    """Writes the files of one path out of its stream, and no byte more than they have."""

    def __init__(self, place: Path, path: NeededPath) -> None:
        self._place = place
        self._path = path
        self._stream = zlib.decompressobj()
        self._files = iter(path.files)
        self._left = 0
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._wanted = ""

    def __enter__(self) -> Unpacker:
        self._next()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def feed(self, data: bytes) -> None:
        """Raises UsageError for what is no such stream, OSError from the disk."""
        try:
            while data:
                self._write(self._stream.decompress(data, _MOST_AT_ONCE))
                data = self._stream.unconsumed_tail
                gevent.sleep(0)
        except zlib.error:
            raise self._broken("it can't be unpacked") from None
        if self._stream.unused_data:
            raise self._broken("it is longer than its list says")

    def finish(self) -> None:
        """All files must be whole. Raises UsageError, OSError."""
        self._write(self._stream.flush())
        if self._file is not None or not self._stream.eof:
            raise self._broken("it is shorter than its list says")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._file is None:
                raise self._broken("it is longer than its list says")
            piece = view[: self._left]
            self._file.write(piece)
            self._digest.update(piece)
            self._left -= len(piece)
            view = view[len(piece) :]
            if not self._left:
                self._next()

    def _next(self) -> None:
        """End the file in work, begin the next one that has bytes."""
        while True:
            if self._file is not None:
                self._file.close()
                self._file = None
                if self._digest.hexdigest() != self._wanted:
                    raise self._broken("its hash is another one than its list says")
            wanted = next(self._files, None)
            if wanted is None:
                return
            if wanted.name and not _stays_below(wanted.name):
                raise self._broken("it has a file outside its folder")
            place = Path(self._place, wanted.name)
            place.parent.mkdir(parents=True, exist_ok=True)
            self._file = place.open("xb")
            self._left, self._wanted, self._digest = wanted.size_bytes, wanted.sha256, hashlib.sha256()
            if self._left:
                return

    def _broken(self, why: str) -> UsageError:
        return UsageError(f"{self._path.path}: did not arrive from the master as it should: {why}")


def differs(path: NeededPath) -> str | None:
    """How what lies under the path here is not the master's, as the end of a sentence; None: it is the same.

    What does not travel need only be there: it is hashed when it is opened, and held against the master's then.
    """
    base = Path(path.path)
    for wanted in path.files:
        place, of = Path(base, wanted.name), f", file {wanted.name}," if wanted.name else ""
        try:
            size = place.stat().st_size
            if size != wanted.size_bytes:
                return f"is another one{of} ({size:,} bytes instead of {wanted.size_bytes:,})"
            if path.travels and sha256_of(place) != wanted.sha256:
                return f"is another one{of} (its content differs)"
        except (OSError, ValueError) as error:
            if not isinstance(error, FileNotFoundError):
                return f"cannot be read{of} ({getattr(error, 'strerror', None) or error})"
            return f"is not whole{of} which is missing," if wanted.name and base.is_dir() else "is not there"
    return None


def must_be_the_masters(here: Mapping[str, str], there: Mapping[str, str], host: str) -> None:
    """`scenario (trace)` -> SHA-256, of this worker and of the master. Raises RunInvalidError where they differ."""
    for name, digest in there.items():
        found = here.get(name)
        if found != digest:
            what = (
                "has no hash" if found is None else f"is another one (sha256 {found[:16]}… instead of {digest[:16]}…)"
            )
            raise RunInvalidError(
                f"trace of {name} {what} on {host}", hint="copy the master's to the same path on every host"
            )


def with_places(plan: Plan, places: Mapping[str, str]) -> Plan:
    """The plan with these paths instead of its own."""
    if not places:
        return plan
    return msgspec.structs.replace(
        plan,
        workloads=tuple(
            msgspec.structs.replace(workload, trace=places.get(workload.trace, workload.trace))
            for workload in plan.workloads
        ),
        channels={
            name: msgspec.structs.replace(channel, ca=places.get(channel.ca or "", channel.ca))
            for name, channel in plan.channels.items()
        },
        redis=msgspec.structs.replace(plan.redis, ca=places.get(plan.redis.ca or "", plan.redis.ca)),
    )


def as_planned(text: str, places: Mapping[str, str]) -> str:
    """A text about the files, with the plan's paths."""
    for path, place in places.items():
        text = text.replace(place, path)
    return text


def sweep() -> None:
    """Remove what workers left that were killed in the moment between."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = folder.stat(follow_symlinks=False)
            ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
            if not ours or time.time() - facts.st_mtime < _LEFT_S:
                continue
            lock = _locked(folder)  # BlockingIOError: its worker lives
            try:
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _own_folder() -> tuple[Path, int]:
    """A new folder, and the descriptor that holds it. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # 0700
    try:
        return folder, _locked(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder, until its process ends. Raises OSError where another one does."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _stays_below(name: str) -> bool:
    pure = PurePosixPath(name)
    return not pure.is_absolute() and ".." not in pure.parts and "\0" not in name
