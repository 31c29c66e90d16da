"""The run directory: the only code that knows its file names, and the shape of plan.json (docs/rundir.md).

One writer, the master of the run; everybody else reads. Rows are appended whole: a failed append is taken back, so that
the file ends with a whole row, and only a crash can leave a torn last line.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from infersiege.errors import InternalError, RunDirectoryError, RunInvalidError, UsageError
from infersiege.plan.schema import Plan
from infersiege.records import (
    SCHEMA_VERSION,
    EventRow,
    Summary,
    TraceAccount,
    TurnRecord,
    WindowRow,
    WorkerSummary,
)

PLAN: Final = "plan.json"
TURNS: Final = "turns.jsonl"
WINDOWS: Final = "windows.jsonl"
EVENTS: Final = "events.jsonl"
SUMMARY: Final = "summary.json"
REPORT: Final = "report.html"
JUNIT: Final = "junit.xml"
TELEMETRY: Final = "telemetry"

RUNS: Final = Path("runs")
"""Where run directories go unless `--out` names one."""

_SLUG_LENGTH = 60
_ROWS_PER_READ = 1 << 20

T = TypeVar("T")


class ChannelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one channel's target, without secrets."""

    url: str
    """The final URL that requests went to, redacted."""
    engine: str
    dialect: str
    model: str
    emulated: bool = False
    """The target said that it is infersiege's own emulator."""
    version: str | None = None
    """Version of the engine, where it tells."""
    insecure: bool = False
    """The server's certificate was not verified."""
    streamed: bool = True
    cache_hint: str | None = None
    """Which flag of the server would make it tell cached tokens."""
    details: dict[str, str] = {}
    """Anything else that the preflight saw (context length, parallel slots …)."""


class StageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One stage on the time axis. Instants in ns since the Unix epoch on the master's clock."""

    name: str
    started_ns: int
    steady_started_ns: int
    """End of the warm-up."""
    steady_ended_ns: int
    """End of the offered load. When a run ended early, its true end."""
    users: int | None = None
    """Closed loop: sessions asked for, over all workers."""
    rate: float | None = None
    """Open loop and replay: sessions per second asked for."""
    started_dirty: bool = False
    """The engine was not idle when it began."""


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """plan.json: what was run, and every fact of the run that is in no turn.

    Written once before the first turn, and again at the end, when `ended_ns`, `traces` and `workers` are known. With
    turns.jsonl it is all that a rebuild needs.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    name: str
    created_ns: int
    started_ns: int | None = None
    """First arrival due; None: the run did not get that far."""
    ended_ns: int | None = None
    """None: the run did not end by itself (crash, kill)."""
    interrupted: bool = False
    nonce: str
    """Salt of the prompts; set it in the plan to repeat the run to the letter."""
    plan_hash: str | None = None
    plan: dict[str, Any]
    """The resolved plan (infersiege.plan.schema.Plan as plain values), redacted."""
    versions: dict[str, str] = {}
    """infersiege, python, locust, gevent …"""
    host: dict[str, str] = {}
    """The master's machine: cpu, cores, memory, kernel."""
    channels: dict[str, ChannelFacts] = {}
    trace_hashes: dict[str, str] = {}
    """scenario -> SHA-256 of its trace."""
    stages: tuple[StageFacts, ...] = ()
    traces: tuple[TraceAccount, ...] = ()
    workers: tuple[WorkerSummary, ...] = ()
    workers_asked: int | None = None
    planned_turns: int | None = None
    """Turns of all started sessions, as the workers' farewells say; None: only the turns tell."""
    invalid: tuple[str, ...] = ()
    """Reasons that only the master could see."""
    warnings: tuple[str, ...] = ()

    @property
    def emulated(self) -> bool:
        """Some target was infersiege's own emulator."""
        return any(channel.emulated for channel in self.channels.values())

    def typed_plan(self) -> Plan:
        """The plan as the schema's type.

        Raises RunDirectoryError when it is not one of this version's plans.
        """
        try:
            return msgspec.convert(self.plan, Plan)
        except msgspec.ValidationError as error:
            raise RunDirectoryError(
                f"{PLAN}: the plan of run {self.run_id} can't be read: {error}",
                hint="read it with the version of infersiege that made it (versions.infersiege in the file)",
            ) from None


def slug(name: str) -> str:
    """A run's name as part of a file name: lower case, words joined by `-`, at most 60 characters, never empty."""
    words = re.findall(r"[^\W_]+(?:\.\d+)*", name.lower())
    return "-".join(words)[:_SLUG_LENGTH].strip("-.") or "run"


def default_path(name: str, now_ns: int, base: Path = RUNS) -> Path:
    """`runs/<UTC time>-<slug>`, with `-2`, `-3` … when another run of that name began in the same second."""
    stamp = datetime.fromtimestamp(now_ns // 1_000_000_000, UTC).strftime("%Y%m%dT%H%M%SZ")
    path = base / f"{stamp}-{slug(name)}"
    number = 2
    while path.exists():
        path = base / f"{stamp}-{slug(name)}-{number}"
        number += 1
    return path


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _remedy(error: OSError) -> str:
    """What to do about an OSError of a file that is written."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "free some space, or put the run on another disk with --out"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "make the directory writable, or name another with --out"
        case errno.EMFILE | errno.ENFILE:
            return "raise the limit of open files (`ulimit -n`)"
        case _:
            return "check the disk, or put the run on another one with --out"


class _Appender:
    """An append-only file of whole rows, handed to the kernel with each append (our own crash loses none)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._end = self._file.seek(0, os.SEEK_END)

    def append(self, rows: bytes) -> None:
        """Raises RunInvalidError when they can't be written; the file then ends where it ended before."""
        view = memoryview(rows)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._take_back()
            raise RunInvalidError(
                f"{self.path}: {len(rows)} bytes of results can't be written: {_reason(error)}", hint=_remedy(error)
            ) from None
        self._end += len(rows)

    def _take_back(self) -> None:
        try:
            self._file.truncate(self._end)
            self._file.seek(self._end)
        except OSError:
            # A device without truncation, or a broken disk: readers tolerate a torn last line.
            return

    def close(self) -> None:
        self._file.close()


class RunDirectory:
    """One run's files. Make it with `create` (the master) or `open` (everybody else)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._appenders: dict[str, _Appender] = {}

    @classmethod
    def create(cls, path: Path | None = None, *, name: str, now_ns: int) -> Self:
        """Make the directory, with empty row files. `path` None: `runs/<UTC time>-<slug of name>`.

        Raises RunDirectoryError when it is not empty or can't be made.
        """
        path = default_path(name, now_ns) if path is None else path
        try:
            path.mkdir(parents=True, exist_ok=True)
            seen = sorted(entry.name for entry in path.iterdir())
        except FileExistsError:
            raise RunDirectoryError(f"{path}: is a file, not a directory", hint="name another with --out") from None
        except OSError as error:
            raise RunDirectoryError(f"{path}: can't be made: {_reason(error)}", hint=_remedy(error)) from None
        if seen:
            what = "holds a run already" if PLAN in seen or TURNS in seen else f"is not empty (it holds {seen[0]})"
            raise RunDirectoryError(
                f"{path}: {what}", hint="a run is never written over: name another directory with --out, or remove it"
            )
        run = cls(path)
        for file in (TURNS, WINDOWS, EVENTS):
            run._appender(file)
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run, for reading (and for its summary and report).

        Raises RunDirectoryError when there is none, or when its plan.json is of a newer schema.
        """
        if path.is_file():
            raise RunDirectoryError(f"{path}: is a file", hint=f"name the run directory: {path.parent}")
        if not path.is_dir():
            raise RunDirectoryError(
                f"{path}: there is no such run directory", hint="runs are in runs/ unless --out was used"
            )
        run = cls(path)
        if not (path / PLAN).exists():
            runs = sorted(entry.parent.name for entry in path.glob(f"*/{PLAN}"))
            hint = f"name one of the runs in it, such as {path / runs[-1]}" if runs else "is it the --out of a run?"
            raise RunDirectoryError(f"{path}: is not a run directory: it has no {PLAN}", hint=hint)
        run._check_version(PLAN)
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the row files. Closing twice does nothing."""
        while self._appenders:
            self._appenders.popitem()[1].close()

    # ------------------------------------------------------------------------------------------------ rows, written

    def append_turn_lines(self, lines: bytes) -> None:
        """Append encoded TurnRecords, each with its newline, unparsed, and hand them to the kernel.

        Raises RunInvalidError when they can't be written; no part of them is then in the file.
        """
        if not lines:
            return
        if not lines.endswith(b"\n"):
            raise InternalError(f"{self.path / TURNS}: half a row was to be appended: …{lines[-40:]!r}")
        self._appender(TURNS).append(lines)

    def append_windows(self, rows: Iterable[WindowRow]) -> None:
        """Raises RunInvalidError when they can't be written."""
        self._append(WINDOWS, rows)

    def append_event(self, event: EventRow) -> None:
        """Raises RunInvalidError when it can't be written."""
        self._append(EVENTS, (event,))

    def _append(self, file: str, rows: Iterable[msgspec.Struct]) -> None:
        encoded = msgspec.json.Encoder().encode_lines(rows)
        if encoded:
            self._appender(file).append(encoded)

    def _appender(self, file: str) -> _Appender:
        appender = self._appenders.get(file)
        if appender is None:
            try:
                appender = self._appenders[file] = _Appender(self.path / file)
            except OSError as error:
                raise RunDirectoryError(
                    f"{self.path / file}: can't be opened: {_reason(error)}", hint=_remedy(error)
                ) from None
        return appender

    # ------------------------------------------------------------------------------------------- whole files, written

    def write_plan(self, plan: PlanFile) -> None:
        """Raises UsageError when it can't be written."""
        self._write(PLAN, _pretty(plan))

    def write_summary(self, summary: Summary) -> None:
        """Raises UsageError when it can't be written."""
        self._write(SUMMARY, _pretty(summary))

    def write_windows(self, rows: Iterable[WindowRow]) -> None:
        """Replace windows.jsonl: a rebuild makes it anew. Raises UsageError when it can't be written."""
        if WINDOWS in self._appenders:
            self._appenders.pop(WINDOWS).close()
        self._write(WINDOWS, msgspec.json.Encoder().encode_lines(rows))

    def write_report(self, html: str) -> Path:
        """report.html, in UTF-8; returns its path. Raises UsageError when it can't be written."""
        return self._write(REPORT, html.encode("utf-8", "replace"))

    def write_junit(self, xml: str) -> Path:
        """junit.xml, in UTF-8; returns its path. Raises UsageError when it can't be written."""
        return self._write(JUNIT, xml.encode("utf-8", "replace"))

    def _write(self, file: str, data: bytes) -> Path:
        """Whole or not at all: a reader never sees half a file, and a full disk leaves the old one."""
        path = self.path / file
        part = self.path / f".{file}.part"
        try:
            part.write_bytes(data)
            part.replace(path)
        except OSError as error:
            _discard(part)
            raise UsageError(f"{path}: can't be written: {_reason(error)}", hint=_remedy(error)) from None
        return path

    @property
    def report_path(self) -> Path:
        return self.path / REPORT

    @property
    def telemetry(self) -> Path:
        """telemetry/: GPU and engine series. Made when it is asked for; raises UsageError when it can't be."""
        path = self.path / TELEMETRY
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path}: can't be made: {_reason(error)}", hint=_remedy(error)) from None
        return path

    # ------------------------------------------------------------------------------------------------------- reading

    def read_plan(self) -> PlanFile:
        """Raises RunDirectoryError (missing, unreadable, newer schema)."""
        return self._read(PLAN, PlanFile)

    def read_summary(self) -> Summary:
        """Raises RunDirectoryError (missing, unreadable, newer schema)."""
        return self._read(SUMMARY, Summary)

    def has_events(self) -> bool:
        return (self.path / EVENTS).exists()

    def read_turns(self, on_torn: Callable[[str], None] | None = None) -> Iterator[TurnRecord]:
        """Every turn of the run, in file order, one at a time (a run may have millions).

        A last line that a crash left torn is left out; `on_torn` gets one sentence with its line number. Any other bad
        line raises RunDirectoryError with its line number.
        """
        return self._rows(TURNS, TurnRecord, on_torn)

    def read_windows(self) -> Iterator[WindowRow]:
        """As `read_turns`."""
        return self._rows(WINDOWS, WindowRow, None)

    def read_events(self) -> Iterator[EventRow]:
        """As `read_turns`."""
        return self._rows(EVENTS, EventRow, None)

    def _rows(self, file: str, kind: type[T], on_torn: Callable[[str], None] | None) -> Iterator[T]:
        path = self.path / file
        decode = msgspec.json.Decoder(kind).decode
        try:
            with path.open("rb", buffering=_ROWS_PER_READ) as lines:
                for number, line in enumerate(lines, 1):
                    try:
                        row = decode(line)
                    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                        if line.endswith(b"\n"):
                            raise _bad_line(path, number, line, error) from None
                        if on_torn is not None:
                            on_torn(
                                f"{path}:{number}: the last line is torn ({len(line)} bytes): the run crashed; left out"
                            )
                        return
                    yield row
        except OSError as error:
            raise self._unreadable(file, error) from None

    def _read(self, file: str, kind: type[T]) -> T:
        self._check_version(file)
        try:
            return msgspec.json.decode((self.path / file).read_bytes(), type=kind)
        except OSError as error:
            raise self._unreadable(file, error) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._broken(file, error) from None

    def _check_version(self, file: str) -> None:
        """Before anything else of the file: a newer schema may differ everywhere."""
        path = self.path / file
        try:
            version = msgspec.json.decode(path.read_bytes(), type=_Versioned).schema_version
        except OSError as error:
            raise self._unreadable(file, error) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._broken(file, error) from None
        if version > SCHEMA_VERSION:
            raise RunDirectoryError(
                f"{path}: schema {version} is newer than this infersiege knows ({SCHEMA_VERSION})",
                hint="read it with the version that made it (versions.infersiege in the file), or a newer one",
            )

    def _unreadable(self, file: str, error: OSError) -> RunDirectoryError:
        missing = isinstance(error, FileNotFoundError)
        hint = {
            SUMMARY: f"make it from the turns with `infersiege report {self.path}`",
            TURNS: "without it nothing can be rebuilt: is the copy of the run directory complete?",
        }.get(file, "is this the --out of a run?")
        return RunDirectoryError(
            f"{self.path / file}: {'is missing' if missing else f'can not be read: {_reason(error)}'}",
            hint=hint if missing else "check the file's permissions",
        )

    def _broken(self, file: str, error: Exception) -> RunDirectoryError:
        hint = f"make it anew with `infersiege report {self.path}`" if file == SUMMARY else "was it edited by hand?"
        return RunDirectoryError(f"{self.path / file}: {error}", hint=hint)


class _Versioned(msgspec.Struct):
    schema_version: int


def _pretty(value: msgspec.Struct) -> bytes:
    # msgspec writes NaN and infinities as null: strict JSON by construction.
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # Already reporting a failed write of the same directory: that one is what the user needs to hear.
        return


def _bad_line(path: Path, number: int, line: bytes, error: Exception) -> RunDirectoryError:
    hint = "this line was damaged after it was written; take it out of a copy of the run to go on without it"
    if line.startswith(b"\0"):
        error = ValueError("zero bytes")
    return RunDirectoryError(f"{path}:{number}: {error}", hint=hint)
