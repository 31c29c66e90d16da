"""The durable writer: memory, then disk, then a sender process; its caller never waits for the database."""

from __future__ import annotations

import atexit
import contextlib
import errno
import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from infersiege_agents.influx import losses
from infersiege_agents.influx import spool as spools
from infersiege_agents.influx.counters import Counters
from infersiege_agents.influx.orders import Settings, Status, read_status
from infersiege_agents.influx.sender_process import SenderProcess
from infersiege_agents.influx.survey import notices, settle_losses
from infersiege_agents.influx.target import Target
from infersiege_agents.points import Point, line_of

SEGMENT_LINES = 5_000
SEGMENT_BYTES = 1 << 20
MEMORY_BYTES = 64 << 20
SET_ASIDE_SHARE = 8
"""An eighth of the spool may hold lines that the database refused for good; then the oldest of them go."""
OWN_COUNTERS_EVERY_S = 10.0
WAITING_SEGMENT_S = 10.0
"""While the database is away segments grow for this long, so that a day's outage is no directory of 86,400 files."""


class DurableWriter:
    """Points to one database, through a spool on disk. For one thread at a time; greenlets of one thread are fine.

    `put` and `tick` never raise and never wait for a network. A kill -9 of this process loses what was not flushed
    yet (`flush_every_s`), and the next writer counts it; one of the sender or of the database loses nothing.
    """

    def __init__(
        self,
        target: Target,
        spool: Path,
        *,
        source: str,
        host: str | None = None,
        named_by: str | None = None,
        flush_every_s: float = 1.0,
        memory_points: int = 100_000,
        spool_bytes: int = 512 << 20,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`memory_points` and `spool_bytes` bound what waits: beyond both, new points are dropped and counted.

        `spool_bytes` is for the whole spool directory, with what other writers left there. `settings` are the
        sender's; its token is taken from the target. `host` is the tag of infersiege_writer's rows; None: this host's
        name. `named_by`: the option that named the spool (`--spool`), for the hint when it can't be used.
        """
        self.target = target
        self.spool = spool
        self._named_by = named_by
        self.directory: Path | None = None
        """This writer's own, below the spool, once started."""
        self._source = source
        self._flush_every_s = flush_every_s
        self._memory_points = memory_points
        self._spool_bytes = spool_bytes
        given = settings or Settings()
        most_set_aside = min(given.set_aside_bytes, spool_bytes // SET_ASIDE_SHARE)
        self._settings = replace(given, token=target.token, set_aside_bytes=most_set_aside)
        self._clock = clock
        self._wall_ns = wall_ns
        self._host = host or socket.gethostname()
        self._lock = -1
        self._lines: list[bytes] = []
        self._line_bytes = 0
        self._written = self._dropped = self._left_out = 0
        self._lost_before = 0
        """Found by ourselves at the start; the sender finds more."""
        self._drops_began_ns: int | None = None
        self._counts: losses.CountsFile | None = None
        self._segment: spools.SegmentFile | None = None
        self._segment_began = 0.0
        self._sequence = self._sealed_points = 0
        self._sizes: dict[int, int] = {}
        """Sequence -> size of each sealed segment that may still be there."""
        self._listing = spools.Listing([], 0)
        self._disk_problem: str | None = None
        self._flush_at = self._keep_at = self._tell_at = 0.0
        self._sender: SenderProcess | None = None
        self._status = Status()
        self._refusal: str | None = None
        self._final: Counters | None = None
        self._closing = False
        self.notices: list[str] = []
        """What is worth telling the user once: points that wait for other databases, refused ones, and points that were
        lost when an earlier writer was killed. It may grow while the writer lives."""

    def start(self) -> None:
        """Takes a directory of its own and starts the sender, which takes up what dead writers left.

        Raises AgentError when the spool can't be used.
        """
        self.directory, self._lock = spools.create(
            self.spool, self._source, self.target, self._wall_ns(), named_by=self._named_by
        )
        with contextlib.suppress(OSError):
            self._counts = losses.CountsFile(self.directory)
        self.notices += notices(self.spool, self.target)
        self._lost_before = settle_losses(self.spool, self.target, self.directory)
        self._tell_of_losses(self._lost_before)
        now = self._clock()
        self._flush_at, self._keep_at, self._tell_at = now + self._flush_every_s, now, now + OWN_COUNTERS_EVERY_S
        self._sender = SenderProcess(self.directory, self._lock, self._settings, self._clock)
        self._keep()
        atexit.register(self._at_exit)

    def put(self, point: Point) -> None:
        """Takes a point. What can't be written down is counted as left out, what finds no room as dropped."""
        if self._final is not None:
            return
        if self._closing:  # another greenlet, while close() waits for the sender
            self._written += 1
            self._drop(1)
            return
        try:
            line = line_of(point)
            for value in point.fields.values():
                if isinstance(value, float) and not math.isfinite(value):
                    self._left_out += 1
        except (AttributeError, TypeError, ValueError, OverflowError):
            self._left_out += 1
            return
        if not line:
            return
        self._written += 1
        if len(self._lines) >= self._memory_points or self._line_bytes + len(line) > MEMORY_BYTES:
            self._drop(1)
        else:
            self._lines.append(line)
            self._line_bytes += len(line)
        self._keep_counts()
        now = self._clock()
        full = len(self._lines) >= SEGMENT_LINES or self._line_bytes >= SEGMENT_BYTES
        if now >= self._flush_at or (full and self._disk_problem is None):
            self._flush(now)
            self._keep()

    def tick(self) -> None:
        """Moves on what waits. To be called about once a second, also when there are no points."""
        if self._final is not None or self.directory is None:
            return
        now = self._clock()
        if now >= self._tell_at:
            self._tell_at = now + OWN_COUNTERS_EVERY_S
            self.put(self._own_counters())
        if now >= self._flush_at:
            self._flush(now)
        self._keep()

    def counters(self) -> Counters:
        """As of now, from what lies in the spool."""
        if self._final is not None:
            return self._final
        if self.directory is not None:
            with contextlib.suppress(OSError):
                self._listing = spools.listing(self.directory)
        rejected = self._listing.rejected
        sealed_waiting = self._listing.spooled
        return Counters(
            written=self._written,
            acknowledged=max(0, self._sealed_points - sealed_waiting - rejected),
            rejected=rejected,
            spooled=sealed_waiting + (self._segment.points if self._segment else 0),
            dropped=self._dropped,
            left_out=self._left_out,
            taken_up=self._status.taken_up + (self._sender.taken_up_before if self._sender else 0),
            inherited=self._status.inherited,
            lost_before=self._all_lost_before(),
        )

    @property
    def problem(self) -> str | None:
        """One line on why points wait or were dropped; None when all is well."""
        if self._disk_problem is not None:
            dropped = ""
            if self._drops_began_ns is not None:
                began = time.strftime("%H:%M:%SZ", time.gmtime(self._drops_began_ns / 1e9))
                dropped = f"; {self._dropped} points dropped since {began}"
            return f"telemetry spool {self.spool}: {self._disk_problem}{dropped}"
        sender = self._sender.problem if self._sender else None
        return self._status.problem or sender

    @property
    def refusal(self) -> str | None:
        """The database's latest words for lines that it refused for good, and where those lie; None: none so far.

        It stays, and holds up nothing. The words may quote a line, so that they differ each time.
        """
        return self._refusal

    def close(self, within_s: float = 10.0) -> Counters:
        """Flushes, lets the sender deliver what it can within that time, ends it, and settles the accounts.

        What is still spooled is taken up by the next writer to the same database on this host. May be repeated.
        """
        if self._final is not None:
            return self._final
        ends = time.monotonic() + max(0.0, within_s)
        if self.directory is None or self._sender is None:
            self._drop(len(self._lines))
            self._lines.clear()
            self._final = self.counters()
            return self._final
        if not self._closing:
            self.put(self._own_counters())
            self._closing = True
        self._flush_all()
        self._drop(len(self._lines))
        self._lines.clear()
        self._sender.finish(ends)
        self._read_status(self.directory)
        self._final = self.counters()
        atexit.unregister(self._at_exit)
        if self._counts is not None:
            self._counts.close()
        spools.remove_finished(self.directory)
        os.close(self._lock)
        return self._final

    def hurry(self) -> None:
        """`close`, which may be waiting in another greenlet, shall not wait for the database any longer."""
        if self._sender is not None:
            self._sender.hurry()

    def _drop(self, points: int) -> None:
        if points:
            self._dropped += points
            self._drops_began_ns = self._drops_began_ns or self._wall_ns()
            self._keep_counts()

    def _keep_counts(self, appending: int = 0) -> None:
        """Leaves what a kill -9 at this moment would take to the next writer's accounts."""
        if self._counts is not None:
            opened = self._segment.points if self._segment else 0
            self._counts.keep(self._written, self._dropped, self._sealed_points, opened, appending)

    def _all_lost_before(self) -> int:
        by_senders = self._status.lost_before + (self._sender.lost_found_before if self._sender else 0)
        return self._lost_before + by_senders

    def _tell_of_losses(self, points: int) -> None:
        if points:
            self.notices.append(
                f"{points:,} points were lost when an earlier writer was killed: they were not on disk yet "
                "(counted as lost_before in infersiege_writer)"
            )

    def _own_counters(self) -> Point:
        """A row of infersiege_writer; it tells of all points before itself."""
        counters = self.counters()
        names = ("written", "acknowledged", "rejected", "spooled", "dropped", "taken_up", "left_out", "lost_before")
        values: dict[str, float | int | str | None] = {name: getattr(counters, name) for name in names}
        values["clock_offset"] = self._status.clock_offset_s
        return Point("infersiege_writer", {"host": self._host, "source": self._source}, values, self._wall_ns())

    def _flush(self, now: float, *, seal: bool = False) -> None:
        """Memory to disk, one segment at most. When the disk fails, points stay in memory, up to its bound, and it is
        tried again."""
        self._flush_at = now + self._flush_every_s
        if self.directory is None:
            return
        self._disk_problem = None
        try:
            if self._lines:
                self._append(now)
        except OSError as error:
            self._disk_problem = f"{error.strerror or error}; points are kept in memory"
        try:
            self._seal(now, seal)
        except OSError as error:
            self._disk_problem = f"{error.strerror or error}; points are kept in memory"
        if self._lines and self._disk_problem is None:
            # A disk that failed has room again: one segment at each call, so that no call takes long.
            self._flush_at = now

    def _seal(self, now: float, seal: bool) -> None:
        """Hands the segment to the sender, when it is time. Raises OSError."""
        segment = self._segment
        if segment is None or not (seal or self._is_full(segment, now)):
            return
        if segment.seal() is not None:
            self._sizes[segment.sequence] = segment.size_bytes
            self._sealed_points += segment.points
        self._segment = None
        if self._sender is not None:
            self._sender.nudge()

    def _append(self, now: float) -> None:
        """A segment's worth of lines from memory. Raises OSError."""
        assert self.directory is not None
        count = size = 0
        for line in self._lines[:SEGMENT_LINES]:
            if count and size + len(line) > SEGMENT_BYTES:
                break
            count, size = count + 1, size + len(line)
        self._make_room(size)
        if self._segment is None:
            self._segment = spools.SegmentFile(self.directory, self._sequence)
            self._sequence += 1
            self._segment_began = now
        self._keep_counts(appending=count)
        try:
            self._segment.append(b"".join(self._lines[:count]), count)
        finally:
            self._keep_counts()
        del self._lines[:count]
        self._line_bytes -= size

    def _flush_all(self) -> None:
        """The end: everything to disk, as far as it takes it."""
        while True:
            before = len(self._lines)
            self._flush(self._clock(), seal=True)
            if not self._lines or len(self._lines) == before:
                return

    def _is_full(self, segment: spools.SegmentFile, now: float) -> bool:
        """Sealed at once while the sender keeps up; when nobody takes it, it may as well grow."""
        if self._status.problem is None or segment.points >= SEGMENT_LINES or segment.size_bytes >= SEGMENT_BYTES:
            return True
        return now - self._segment_began >= WAITING_SEGMENT_S

    def _make_room(self, size_bytes: int) -> None:
        """Raises OSError when the spool would grow beyond its bound."""
        assert self.directory is not None
        self._listing = spools.listing(self.directory)
        left = {segment.sequence for segment in self._listing.waiting}
        self._sizes = {sequence: size for sequence, size in self._sizes.items() if sequence in left}
        use = sum(map(spools.blocks, self._sizes.values())) + (self._segment.size_bytes if self._segment else 0)
        use += self._listing.set_aside_bytes
        if use + self._status.elsewhere_bytes + spools.blocks(size_bytes) > self._spool_bytes:
            raise OSError(errno.EDQUOT, f"full ({self._spool_bytes >> 20} MiB)")

    def _keep(self) -> None:
        """About once a second: what the sender says, and whether it lives."""
        now = self._clock()
        if now < self._keep_at or self.directory is None or self._sender is None:
            return
        self._keep_at = now + min(1.0, self._flush_every_s)
        self._read_status(self.directory)
        self._sender.keep_alive(self._status)

    def _read_status(self, directory: Path) -> None:
        before = self._all_lost_before()
        self._status = read_status(directory)
        self._tell_of_losses(self._all_lost_before() - before)
        self._refusal = self._status.refusal or self._refusal

    def _at_exit(self) -> None:
        """The process ends without `close`: what is in memory goes to the sender, which outlives us for a while."""
        self._flush_all()
