"""The sender: a process of its own that takes segments from a spool to the database.

    python -m infersiege_agents.influx.sender DIRECTORY

Its writer starts it and speaks to it over stdin: first one line of JSON (token and settings), then an empty line for
each new segment, `finish SECONDS` at the end. When stdin ends without that, the writer is dead: what waits is sent
within a bound. All state is in the spool (influx.spool); the sender can be killed at any moment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import cast

from infersiege_agents.influx import losses, set_aside, spool
from infersiege_agents.influx.answers import Verdict
from infersiege_agents.influx.orders import Orders, Settings, Status
from infersiege_agents.influx.pieces import Piece, Progress, read_piece
from infersiege_agents.influx.search import Refused, search
from infersiege_agents.influx.spool import Segment
from infersiege_agents.influx.target import Target
from infersiege_agents.influx.transport import Answer, Transport

RESCAN_S = 5.0
"""Directories of dead writers are looked for this often."""
HEARTBEAT_S = 5.0
NICENESS = 5
"""Below the load generator's own processes: telemetry must not disturb what it measures."""
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Faults in reading a file that are not the file's."""
MOST_TAKEN_UP = 32
"""Directories of dead writers at a time: each is a descriptor, of which a process has some hundred."""
LEAST_REQUEST_BYTES = 8192
"""Before compression. What a line can't carry in a deadline's time is no line for points."""


class Sender:
    """Sends one writer's segments, and those that dead writers to the same database left."""

    def __init__(
        self, directory: Path, target: Target, settings: Settings, orders: Orders, chance: random.Random
    ) -> None:
        self._own = directory
        self._target = target
        self._settings = settings
        self._orders = orders
        self._chance = chance
        self._transport = Transport(target)
        self._locks: dict[Path, int] = {}
        """Directories of dead writers that this sender has taken up."""
        self._status = Status()
        self._told: Status | None = None
        self._failures = 0
        self._next_try = 0.0
        self._next_scan = 0.0
        self._next_beat = 0.0
        self._told_to_wait = False
        """`_next_try` is what the server asked for."""
        self._more_to_take_up = False
        self._finish_at: float | None = None
        self._hopeless = False
        self._newest_next = False
        self._most_bytes = self._request_bytes = settings.request_bytes
        """What the server takes at all, and what goes through in time."""
        self._progress: dict[Path, Progress] = {}
        self._synced: set[Path] = set()
        self._unreadable: set[Path] = set()

    def run(self) -> None:
        """Until the writer says so, or is gone."""
        self._orders.wait(0)
        while True:
            now = time.monotonic()
            self._heed_the_end(now)
            if now >= self._next_scan:
                self._next_scan = now + RESCAN_S
                self._look_around()
            queue = self._queue()
            self._sync(queue)
            if queue and now >= self._next_try and not (self._finish_at and now >= self._finish_at):
                self._deliver(self._batch(queue))
                self._tell()
                self._orders.wait(0)
                continue
            self._tell()
            until = [self._next_scan, self._next_beat]
            if queue:
                until.append(self._next_try)
            if self._finish_at is not None:
                if not queue or self._hopeless or max(now, self._next_try) >= self._finish_at:
                    break
                until.append(self._finish_at)
            self._orders.wait(max(0.0, min(until) - now))
        self._leave()

    def _heed_the_end(self, now: float) -> None:
        """At the end everything is tried once more at once, whatever the back-off said; not what Retry-After said."""
        if self._finish_at is not None or (self._orders.finish_within_s is None and not self._orders.ended):
            return
        within = self._orders.finish_within_s
        self._finish_at = now + (self._settings.orphan_s if within is None else within)
        self._hopeless = False
        if self._failures:
            self._failures = 1
            if not self._told_to_wait:
                self._next_try = now

    def _look_around(self) -> None:
        """What dead writers left. Not a reason to stop: whatever fails is tried again at the next look."""
        place = self._own.parent
        with contextlib.suppress(OSError):
            self._take_up()
        with contextlib.suppress(OSError):
            set_aside.forget_of_dead_writers(place, self._own, self._settings.set_aside_bytes)
        with contextlib.suppress(OSError):
            self._status = replace(self._status, elsewhere_bytes=spool.disk_use(place, self._own))
        spool.remove_abandoned(place)

    def _take_up(self) -> None:
        """Locks what dead writers to the same database left, the oldest first, seals it, and removes what is empty."""
        self._more_to_take_up = False
        for directory in spool.writers(self._own.parent):
            if directory == self._own or directory in self._locks:
                continue
            owner = spool.owner(directory)
            if owner is None or owner.identity != self._target.identity:
                continue
            if len(self._locks) >= MOST_TAKEN_UP:
                self._more_to_take_up = True
                return
            with contextlib.suppress(OSError):
                if (lock := spool.claim(directory)) is None:
                    continue
                try:
                    self._settle_losses(directory)
                    spool.recover(directory)
                    if spool.listing(directory).waiting:
                        self._locks[directory], lock = lock, -1
                    else:
                        spool.remove_finished(directory)
                finally:
                    if lock >= 0:
                        os.close(lock)

    def _settle_losses(self, directory: Path) -> None:
        """What a killed writer took with it is counted by whoever comes first. Raises OSError."""
        if lost := losses.settle(directory):
            self._status = replace(self._status, lost_before=self._status.lost_before + lost)
            self._tell()

    def _queue(self) -> list[Segment]:
        """What waits, oldest first: dead writers' segments before our own; after ours when time is short."""
        inherited: list[Segment] = []
        for directory, lock in list(self._locks.items()):  # the oldest first, as they were taken up
            with contextlib.suppress(OSError):
                waiting = spool.listing(directory).waiting
                inherited += waiting
                if not waiting:
                    del self._locks[directory]
                    spool.remove_finished(directory)
                    os.close(lock)
        if self._more_to_take_up and len(self._locks) < MOST_TAKEN_UP // 2:
            self._next_scan = 0.0
        self._status = replace(self._status, inherited=sum(segment.points for segment in inherited))
        own: list[Segment] = []
        with contextlib.suppress(OSError):
            own = spool.listing(self._own).waiting
        queue = own + inherited if self._finish_at is not None else inherited + own
        return [segment for segment in queue if segment.path not in self._unreadable]

    def _batch(self, queue: Sequence[Segment]) -> list[Piece]:
        """Segments for one request, or a part of one that is too large for it.

        While more than a request waits, every other request takes the newest: what a dashboard shows is current soon
        after an outage, and the rest is filled in behind it.
        """
        batch: list[Piece] = []
        lines = size = 0
        self._newest_next = not self._newest_next
        newest_first = not self._newest_next and self._finish_at is None
        for segment in reversed(queue) if newest_first else queue:
            start = self._progress[segment.path].sent_bytes if segment.path in self._progress else 0
            try:
                piece = read_piece(segment, start, self._settings.request_lines, self._request_bytes)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno in _SHORT_OF:
                    self._failed(Answer(Verdict.LATER, f"{segment.path}: {error.strerror}"))
                    break
                self._unreadable.add(segment.path)
                self._status = replace(self._status, refusal=f"{segment.path}: {error.strerror}: not sent")
                continue
            lines, size = lines + piece.lines, size + len(piece.content)
            full = lines > self._settings.request_lines or size > self._request_bytes or not piece.last
            if batch and full:
                break
            batch.append(piece)
            if full:
                break
        return batch[::-1] if newest_first else batch

    def _deliver(self, batch: list[Piece]) -> None:
        if not batch:
            return
        content = b"".join(piece.content for piece in batch)
        began = time.monotonic()
        answer = self._request(content) if content else Answer(Verdict.TAKEN)
        if self._resized(answer, len(content), time.monotonic() - began):
            return
        refused: list[Refused] = []
        lines = [(piece.segment, line) for piece in batch for line in piece.content.split(b"\n") if line]
        if answer.verdict in (Verdict.BAD_LINES, Verdict.UNCLEAR):
            answer, refused = search([line for _, line in lines], answer, self._request)
        if answer.verdict is not Verdict.TAKEN:
            self._failed(answer)
            return
        self._failures, self._next_try, self._hopeless = 0, 0.0, False
        self._status = replace(self._status, problem=None)
        bad: dict[Segment, list[tuple[bytes, str]]] = {}
        for number, words in refused:
            bad.setdefault(lines[number][0], []).append((lines[number][1], words))
        for piece in batch:
            self._done(piece, bad.get(piece.segment, []))

    def _resized(self, answer: Answer, size: int, took_s: float) -> bool:
        """Requests as large as the server and the way to it can take. True: to be tried again at once, smaller."""
        smaller = max(LEAST_REQUEST_BYTES, min(size, self._request_bytes) // 2)
        if answer.late:
            self._request_bytes = smaller
        elif answer.status == 413 and size > LEAST_REQUEST_BYTES:
            self._most_bytes = self._request_bytes = smaller
            return True
        quick = answer.verdict is Verdict.TAKEN and took_s < self._settings.deadline_s / 4
        if quick and size > self._request_bytes // 2:
            self._request_bytes = min(self._most_bytes, self._request_bytes * 2)
        return False

    def _done(self, piece: Piece, refused: list[tuple[bytes, str]]) -> None:
        """The database has these lines, but for what it refused."""
        segment = piece.segment
        before = self._progress.get(segment.path, Progress())
        after = Progress(piece.ends, before.refused + refused)
        if not piece.last:
            self._progress[segment.path] = after
        else:
            try:
                if after.refused:
                    self._set_aside(segment, after.refused)
                segment.path.unlink(missing_ok=True)
            except OSError as error:  # it stays, and is sent again
                self._failed(Answer(Verdict.LATER, f"{segment.directory}: {error.strerror or error}"))
                return
            self._progress.pop(segment.path, None)
            self._synced.discard(segment.path)
        if segment.directory != self._own and piece.last:
            taken_up = self._status.taken_up + segment.points - len(after.refused)
            self._status = replace(self._status, taken_up=taken_up)

    def _set_aside(self, segment: Segment, refused: list[tuple[bytes, str]]) -> None:
        """Raises OSError."""
        words = refused[0][1]
        durable = self._settings.fsync != "never"
        set_aside.set_aside(segment, [line for line, _ in refused], words, durable=durable)
        self._status = replace(self._status, refusal=f"{words}: set aside in {segment.directory}")
        if segment.directory == self._own:
            set_aside.forget_oldest(self._own, self._settings.set_aside_bytes)

    def _request(self, lines: bytes) -> Answer:
        within = self._settings.deadline_s
        if self._finish_at is not None:
            within = min(within, max(0.1, self._finish_at - time.monotonic()))
        answer = self._transport.write(lines, within)
        if answer.clock_offset_s is not None:
            self._status = replace(self._status, clock_offset_s=answer.clock_offset_s)
        return answer

    def _failed(self, answer: Answer) -> None:
        """Full jitter: a random part of a bound that doubles, so that many hosts don't come back at one moment."""
        most = self._settings.backoff_most_s if self._finish_at is None else 1.0
        bound = min(most, self._settings.backoff_s * 2 ** min(self._failures, 30))
        self._failures += 1
        wait = self._chance.uniform(0, bound) if answer.retry_after_s is None else answer.retry_after_s
        self._next_try = time.monotonic() + wait
        self._told_to_wait = answer.retry_after_s is not None
        self._hopeless = self._finish_at is not None and answer.verdict is Verdict.REFUSED
        self._status = replace(self._status, problem=answer.words)

    def _sync(self, queue: Sequence[Segment]) -> None:
        if self._settings.fsync == "never" or (self._settings.fsync == "waiting" and not self._failures):
            return
        fresh = [segment for segment in queue if segment.path not in self._synced]
        try:
            for segment in fresh:
                spool.sync(segment.path)
            for directory in {segment.directory for segment in fresh}:
                spool.sync(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            self._status = replace(self._status, problem=f"{self._own}: {error.strerror}")
        self._synced.update(segment.path for segment in fresh)

    def _tell(self) -> None:
        now = time.monotonic()
        if self._status == self._told and now < self._next_beat:
            return
        self._next_beat = now + HEARTBEAT_S
        self._status = replace(self._status, beat=self._status.beat + 1)
        with contextlib.suppress(OSError):
            content = {one.name: getattr(self._status, one.name) for one in fields(Status)}
            spool.write_atomically(self._own / "status.json", json.dumps(content).encode())
            self._told = self._status

    def _leave(self) -> None:
        self._transport.close()
        self._tell()
        if self._orders.finish_within_s is None:  # the writer is dead: nobody else would
            spool.remove_finished(self._own)


def main(arguments: Sequence[str]) -> int:
    """Ends with 0 when told to, 2 when started wrongly."""
    # Its end is its writer's: a service manager that signals every process must not cut the last delivery off.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    owner = spool.owner(Path(arguments[0])) if len(arguments) == 1 else None
    if owner is None:
        print("infersiege_agents.influx.sender is started by a writer, with its directory", file=sys.stderr)
        return 2
    orders = Orders(sys.stdin.fileno())
    try:
        given = json.loads(orders.first_line() or b"{}")
        settings = Settings(**cast("dict[str, str]", given))  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        print(f"first line: {error}", file=sys.stderr)
        return 2
    target = replace(owner, token=settings.token)
    Sender(Path(arguments[0]).absolute(), target, settings, orders, random.Random()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
