"""Where an agent's points go: InfluxDB through the durable writer, a file of JSON lines, or both."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from infersiege_agents import options
from infersiege_agents.console import say
from infersiege_agents.errors import INTERRUPTED, TARGET, AgentError
from infersiege_agents.influx.target import Target, target_of
from infersiege_agents.point_file import PointFile
from infersiege_agents.points import Point

if TYPE_CHECKING:
    from infersiege_agents.influx.counters import Counters

URL_VARIABLE = "INFERSIEGE_INFLUX_URL"
BUCKET_VARIABLE = "INFERSIEGE_INFLUX_BUCKET"
ORG_VARIABLE = "INFERSIEGE_INFLUX_ORG"
TOKEN_VARIABLE = "INFLUX_TOKEN"

CLOSE_WITHIN_S = 10.0
LONGEST_CLOSE_S = 3600.0
ROOM_POINTS = 50_000
"""An import waits while so many points are on their way; the writer holds twice as many in memory."""
_TELL_AGAIN_S = 60.0
"""A problem whose words change is told again after this time at the earliest."""


def add_database_options(parser: argparse.ArgumentParser) -> None:
    """Which database: --influx-url, --influx-bucket, --influx-org, --influx-token-env."""
    parser.add_argument(
        "--influx-url",
        metavar="URL",
        help=f"InfluxDB (1.8, 2.x, 3.x) or VictoriaMetrics, such as http://127.0.0.1:8086  [default: {URL_VARIABLE}]",
    )
    parser.add_argument(
        "--influx-bucket",
        metavar="NAME",
        help=f"bucket (2.x) or database (1.x, 3.x)  [default: {BUCKET_VARIABLE}, else infersiege]",
    )
    parser.add_argument("--influx-org", metavar="NAME", help=f"organisation (2.x)  [default: {ORG_VARIABLE}]")
    parser.add_argument(
        "--influx-token-env",
        metavar="VARIABLE",
        help="environment variable that holds the token (2.x, 3.x) or user:password (1.8); the token itself is never "
        f"given on a command line  [default: {TOKEN_VARIABLE}]",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that makes points: the database, --spool and --out."""
    add_database_options(parser)
    parser.add_argument(
        "--spool",
        type=Path,
        metavar="DIR",
        help="where points wait on disk for the database  [default: in the user's state directory]",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the points to FILE too, as JSON lines")
    parser.add_argument(
        "--close-within",
        type=options.seconds(0, LONGEST_CLOSE_S),
        default=CLOSE_WITHIN_S,
        metavar="S",
        help=f"at the end, wait so long for the database; the rest stays on disk  [default: {CLOSE_WITHIN_S:.0f}]",
    )


def database_of(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Target | None:
    """The database that options and environment name; None: none.

    Raises AgentError for a URL that is none, and for a named token variable that is not set.
    """
    url = args.influx_url or environ.get(URL_VARIABLE, "").strip()
    if not url:
        return None
    return target_of(
        url,
        bucket=args.influx_bucket or environ.get(BUCKET_VARIABLE, "").strip() or "infersiege",
        org=args.influx_org or environ.get(ORG_VARIABLE, "").strip(),
        token=_token(args.influx_token_env, environ),
    )


def _token(variable: str | None, environ: Mapping[str, str]) -> str:
    token = environ.get(variable or TOKEN_VARIABLE, "").strip()
    if variable and not token:
        state = "empty" if variable in environ else "not set"
        raise AgentError(
            f"--influx-token-env: the environment variable {options.variable_shown(variable)} is {state}",
            hint="export it with the token; the option takes the variable's name, never the token",
        )
    if not token.isprintable() or not token.isascii():
        raise AgentError(
            f"the environment variable {options.variable_shown(variable or TOKEN_VARIABLE)} holds more than a token",
            hint="it must hold the token and nothing else, in printable ASCII",
        )
    return token


def open_outlet(args: argparse.Namespace, *, source: str, environ: Mapping[str, str] = os.environ) -> Outlet:
    """The outlet that the options of `add_options` ask for. `source` names the writer (gpu, engine, import).

    Raises AgentError when neither a database nor a file is named, and when the spool or the file can't be used. That a
    database is down is no error: points wait in the spool.
    """
    target = database_of(args, environ)
    if target is None and args.out is None:
        raise AgentError(
            "where should the points go?",
            hint=f"name --influx-url http://127.0.0.1:8086 (or set {URL_VARIABLE}), or --out FILE, or both",
        )
    file = None if args.out is None else PointFile(args.out)
    if target is None:
        return Outlet(None, file)
    try:
        return Outlet(_writer(args, target, source, environ), file, close_within_s=args.close_within)
    except BaseException:
        if file is not None:
            file.close()
        raise


def _writer(args: argparse.Namespace, target: Target, source: str, environ: Mapping[str, str]) -> Database:
    from infersiege_agents.influx.spool import spool_directory
    from infersiege_agents.influx.writer import DurableWriter

    directory = spool_directory(environ) if args.spool is None else args.spool
    named_by = None if args.spool is None else "--spool"
    host = getattr(args, "host", None)
    writer = DurableWriter(target, directory, source=source, host=host, named_by=named_by)
    writer.start()
    database = Database(writer, target, directory, writer.notices)
    for notice in database.fresh_notices():
        say(f"note: {notice}")
    return database


class Writer(Protocol):
    """What an outlet needs of influx.writer.DurableWriter."""

    def put(self, point: Point) -> None: ...

    def tick(self) -> None: ...

    def counters(self) -> Counters: ...

    @property
    def problem(self) -> str | None:
        """Why points wait, or are dropped, at present."""
        ...

    @property
    def refusal(self) -> str | None:
        """The database's latest words for points that it refused for good; None: it refused none."""
        ...

    def close(self, within_s: float) -> Counters: ...

    def hurry(self) -> None:
        """A `close` that waits shall not wait any longer."""
        ...


class Database:
    """A writer with the names that its summary needs."""

    def __init__(self, writer: Writer, target: Target, spool: Path, notices: Sequence[str] = ()) -> None:
        """`notices` may grow while the writer lives."""
        self.writer = writer
        self.target = target
        self.spool = spool
        self._notices = notices
        self._notices_told = 0

    def fresh_notices(self) -> Sequence[str]:
        """Those that were not asked for before."""
        fresh = self._notices[self._notices_told :]
        self._notices_told += len(fresh)
        return fresh

    def close(self, within_s: float) -> tuple[str, Counters]:
        """Send what is left, as far as the time goes: what became of the points, in words and in numbers."""
        counters = self.writer.close(within_s)
        text = f"{self.target.url}: {counters.written:,} points written, {counters.acknowledged:,} acknowledged"
        if counters.taken_up:
            text += f", {counters.taken_up:,} of earlier agents sent"
        if counters.spooled:
            text += f", {counters.spooled:,} still spooled in {self.spool} (the next start sends them)"
        if counters.inherited:
            text += f", {counters.inherited:,} of earlier agents still wait"
        if counters.rejected:
            text += f", {counters.rejected:,} rejected (set aside in {self.spool}: infersiege-agent spool list)"
        if counters.dropped:
            text += f", {counters.dropped:,} dropped"
        if counters.rejected and self.writer.refusal:
            text += f"; {self.writer.refusal}"
        if (counters.spooled or counters.dropped) and self.writer.problem:
            text += f"; {self.writer.problem}"
        return text, counters


class Outlet:
    """A points.Sink over a database and a file. Problems, and their end, are told once each.

    Threads may share it: `lock` is held by whoever uses it.
    """

    def __init__(
        self,
        database: Database | None,
        file: PointFile | None,
        *,
        tell: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        close_within_s: float = CLOSE_WITHIN_S,
    ) -> None:
        """`tell` gets lines for the user (default: stderr). `clock` in s."""
        self._close_within_s = close_within_s
        self._database = database
        self._file = file
        self._tell = tell or say
        self._clock = clock
        self._told: str | None = None
        self._told_at = self._refusal_at = -_TELL_AGAIN_S
        self._refusal: str | None = None
        """The refusal that was told last."""
        self._file_told = False
        self.lost = False
        """Points were lost: rejected, dropped, or not written to the file. Final after `close`."""
        self.waiting = False
        """Points wait in the spool for the next start. Known after `close`."""
        self.nothing_taken = False
        """Points are only for a database, and it acknowledged none of them. Known after `close`."""
        self.hurried = self.closed = False
        self.lock = threading.RLock()

    @property
    def exit_code(self) -> int:
        """What an agent ends with, after `close`: of errors, or 0."""
        if self.lost:
            return TARGET
        if self.hurried and self.waiting:
            return INTERRUPTED
        return TARGET if self.nothing_taken else 0

    def put(self, point: Point) -> None:
        with self.lock:
            if self._database is not None:
                self._database.writer.put(point)
            if self._file is not None:
                self._file.put(point)

    def tick(self) -> None:
        with self.lock:
            self._tick()

    def _tick(self) -> None:
        if self._database is not None:
            self._database.writer.tick()
            self._tell_of_database(self._database)
            self._tell_of_refusals(self._database)
            for notice in self._database.fresh_notices():
                self._tell(f"note: {notice}")
        if self._file is not None and self._file.problem is not None and not self._file_told:
            self._file_told = True
            self._tell(f"warning: {self._file.problem}; going on, points are lost there")

    def _tell_of_database(self, database: Database) -> None:
        problem = database.writer.problem
        if problem == self._told:
            return
        now = self._clock()
        if problem is None:
            self._tell(f"{database.target.url}: takes points again")
        elif now - self._told_at < _TELL_AGAIN_S:
            return
        else:
            self._tell(f"warning: {problem}")
            self._told_at = now
        self._told = problem

    def _tell_of_refusals(self, database: Database) -> None:
        """What is refused for good does not come back by itself: a new text is told, at most once a minute."""
        refusal, now = database.writer.refusal, self._clock()
        if refusal is None or refusal == self._refusal or now - self._refusal_at < _TELL_AGAIN_S:
            return
        self._refusal, self._refusal_at = refusal, now
        self._tell(f"warning: points are refused: {refusal}")

    def wait_for_room(self, within_s: float = 60.0, *, points: int = ROOM_POINTS) -> None:
        """For an import, which is faster than any database: let all but `points` go out before more comes in.

        Returns at once while the database is away: points then wait on disk, as far as there is room.
        """
        if self._database is None:
            return
        writer, ends = self._database.writer, self._clock() + within_s
        while self._clock() < ends and writer.problem is None:
            counters = writer.counters()
            if counters.spooled + counters.in_memory <= points:
                return
            time.sleep(0.05)
            writer.tick()

    def hurry(self) -> None:
        """A `close` that waits for the database shall not wait any longer. Takes no lock."""
        self.hurried = True
        if self._database is not None:
            self._database.writer.hurry()

    def close(self, within_s: float | None = None) -> str:
        """Hand over what is left, within about `within_s` (None: --close-within); a line on what became of it.

        SIGTERM and SIGINT meanwhile make it hurry: the rest stays on disk, and the line is said all the same.
        """
        within_s = self._close_within_s if within_s is None else within_s
        with self.lock, _signals_do(self.hurry):
            parts = []
            if self._database is not None:
                text, counters = self._database.close(within_s)
                parts.append(text)
                self.lost = counters.rejected > 0 or counters.dropped > 0
                self.waiting = counters.spooled > 0
                self.nothing_taken = self.waiting and counters.acknowledged == 0 and self._file is None
            if self._file is not None:
                parts.append(self._file.close())
                self.lost = self.lost or self._file.lost > 0
            self.closed = True
            return "; ".join(parts)


@contextmanager
def _signals_do(action: Callable[[], None]) -> Iterator[None]:
    """Inside, SIGTERM and SIGINT call `action`. In threads, which get no signals, nothing changes."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda _number, _frame: action())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
