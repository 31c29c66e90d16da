"""One run's files: written by the master of the run, read by everybody else."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from infersiege.errors import InternalError, RunDirectoryError, UnwrittenFileError
from infersiege.metrics.batch import Batch
from infersiege.records import (
    SCHEMA_VERSION,
    ClientHealth,
    EventRow,
    GateFile,
    SeriesRow,
    Summary,
    TurnRecord,
    WindowRow,
)
from infersiege.rundir.damage import Span, damages
from infersiege.rundir.files import (
    Appender,
    Versioned,
    check_files,
    discard,
    drop_torn_row,
    pretty,
    reason_of,
    remedy_for,
)
from infersiege.rundir.names import (
    CLIENTS,
    EVENTS,
    GATE,
    JUNIT,
    PLAN,
    READ,
    RECOVERY,
    REPORT,
    SUMMARY,
    TELEMETRY,
    TURNS,
    WINDOWS,
    default_path,
)
from infersiege.rundir.planfile import PlanFile, impossible
from infersiege.rundir.rows import UNREADABLE, LeftOut, OnBad, decoded

T = TypeVar("T")


class RunDirectory:
    """One run's files. Make it with `create` (the master) or `open` (everybody else)."""

    def __init__(self, path: Path, *, made: bool = False) -> None:
        """`made`: by this process, whose command takes --out (hints name it)."""
        self.path = path
        self._made = made
        self._appenders: dict[str, Appender] = {}

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
            raise RunDirectoryError(
                f"{path}: can't be made: {reason_of(error)}", hint=remedy_for(error, made=True)
            ) from None
        if seen:
            what = "holds a run already" if PLAN in seen or TURNS in seen else f"is not empty (it holds {seen[0]})"
            raise RunDirectoryError(
                f"{path}: {what}", hint="a run is never written over: name another directory with --out, or remove it"
            )
        run = cls(path, made=True)
        for file in (TURNS, EVENTS):
            run._appender(file)
        run.claim()
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run, for reading (and for its summary and report).

        Raises RunDirectoryError when there is none, or when its plan.json is of a newer schema.
        """
        try:
            mode = path.stat().st_mode
            inside = [entry.name for entry in path.iterdir()] if stat.S_ISDIR(mode) else []
        except FileNotFoundError:
            raise RunDirectoryError(
                f"{path}: there is no such run directory", hint="runs are in runs/ unless --out was used"
            ) from None
        except (OSError, ValueError) as error:
            why = reason_of(error) if isinstance(error, OSError) else str(error)
            raise RunDirectoryError(f"{path}: can't be read: {why}", hint="name the directory of a run") from None
        if not stat.S_ISDIR(mode):
            of = path.parent if (path.parent / PLAN).exists() else None
            hint = "name the directory of a run" if of is None else f"name the run directory: {of}"
            raise RunDirectoryError(f"{path}: is a file", hint=hint)
        run = cls(path)
        if PLAN not in inside:
            runs = sorted(entry.parent.name for entry in path.glob(f"*/{PLAN}"))
            hint = f"name one of the runs in it, such as {path / runs[-1]}" if runs else "is it the --out of a run?"
            raise RunDirectoryError(f"{path}: is not a run directory: it has no {PLAN}", hint=hint)
        check_files(path / name for name in READ)
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

    # ------------------------------------------------------------------------------------------------ after a crash

    def claim(self) -> bool:
        """Be the one process that writes turns, until this one ends or `close`. False: another one is, and lives.

        Raises RunDirectoryError when turns.jsonl can't be opened.
        """
        return self._appender(TURNS).claim()

    def drop_torn_rows(self) -> int:
        """Cut off half a row at the end of turns and events; returns how many files had one.

        Raises RunDirectoryError when that can't be done.
        """
        try:
            return sum(drop_torn_row(self.path / file) > 0 for file in (TURNS, EVENTS, f"{TELEMETRY}/{CLIENTS}"))
        except OSError as error:
            raise RunDirectoryError(
                f"{self.path}: half a row can't be taken out: {reason_of(error)}",
                hint=remedy_for(error, made=self._made),
            ) from None

    def sync_turns(self) -> None:
        """turns.jsonl is on the disk, not only in memory. Raises RunDirectoryError."""
        try:
            self._appender(TURNS).sync()
        except OSError as error:
            raise RunDirectoryError(
                f"{self.path / TURNS}: can't be written: {reason_of(error)}", hint=remedy_for(error, made=self._made)
            ) from None

    @property
    def recovery_path(self) -> Path:
        """What a recovery that is not through has noted."""
        return self.path / RECOVERY

    # ------------------------------------------------------------------------------------------------ rows, written

    def append_turn_lines(self, lines: bytes) -> None:
        """Append encoded TurnRecords, each with its newline, unparsed, and hand them to the kernel.

        Raises UnwrittenRowsError when they can't be written; no part of them is then in the file.
        """
        if not lines:
            return
        if not lines.endswith(b"\n"):
            raise InternalError(f"{self.path / TURNS}: half a row was to be appended: …{lines[-40:]!r}")
        self._appender(TURNS).append(lines)

    def append_event(self, event: EventRow) -> None:
        """Raises UnwrittenRowsError when it can't be written."""
        self._append(EVENTS, (event,))

    def append_health(self, row: ClientHealth) -> None:
        """How one worker did in one second (telemetry/clients.jsonl).

        Raises DiskError when it can't be written.
        """
        self._append(f"{self.telemetry.name}/{CLIENTS}", (row,))

    def _append(self, file: str, rows: Iterable[msgspec.Struct]) -> None:
        encoded = msgspec.json.Encoder().encode_lines(rows)
        if encoded:
            self._appender(file).append(encoded)

    def _appender(self, file: str) -> Appender:
        appender = self._appenders.get(file)
        if appender is None:
            try:
                appender = self._appenders[file] = Appender(self.path / file, made=self._made)
            except OSError as error:
                raise UnwrittenFileError(
                    f"{self.path / file}: can't be opened: {reason_of(error)}", hint=remedy_for(error, made=self._made)
                ) from None
        return appender

    # ------------------------------------------------------------------------------------------- whole files, written

    def write_plan(self, plan: PlanFile) -> None:
        """Raises UnwrittenFileError when it can't be written."""
        self._write(PLAN, pretty(plan))

    def write_summary(self, summary: Summary) -> None:
        """Raises UnwrittenFileError when it can't be written."""
        self._write(SUMMARY, pretty(summary))

    def write_windows(self, rows: Iterable[WindowRow]) -> None:
        """Replace windows.jsonl: a rebuild makes it anew. Raises UnwrittenFileError when it can't be written."""
        if WINDOWS in self._appenders:
            self._appenders.pop(WINDOWS).close()
        self._write(WINDOWS, msgspec.json.Encoder().encode_lines(rows))

    def write_report(self, html: str) -> Path:
        """report.html, in UTF-8; returns its path. Raises UnwrittenFileError when it can't be written."""
        return self._write(REPORT, html.encode("utf-8", "replace"))

    def write_junit(self, xml: str) -> Path:
        """junit.xml, in UTF-8; returns its path. Raises UnwrittenFileError when it can't be written."""
        return self._write(JUNIT, xml.encode("utf-8", "replace"))

    def write_gate(self, verdict: GateFile) -> Path:
        """gate.json; returns its path. Raises UnwrittenFileError when it can't be written."""
        return self._write(GATE, pretty(verdict))

    def _write(self, file: str, data: bytes) -> Path:
        """Whole or not at all: a reader never sees half a file, and a full disk leaves the old one."""
        path = self.path / file
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_bytes(data)
            part.replace(path)
        except OSError as error:
            discard(part)
            raise UnwrittenFileError(
                f"{path}: can't be written: {reason_of(error)}", hint=remedy_for(error, made=self._made)
            ) from None
        return path

    @property
    def report_path(self) -> Path:
        return self.path / REPORT

    @property
    def telemetry(self) -> Path:
        """telemetry/: series of the workers, of GPUs and engines. Made when asked for; or UnwrittenFileError."""
        path = self.path / TELEMETRY
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise UnwrittenFileError(
                f"{path}: can't be made: {reason_of(error)}", hint=remedy_for(error, made=self._made)
            ) from None
        return path

    # ------------------------------------------------------------------------------------------------------- reading

    def read_plan(self) -> PlanFile:
        """Raises RunDirectoryError (missing, unreadable, newer schema, what no run has)."""
        file = self._read(PLAN, PlanFile)
        if (why := impossible(file)) is not None:
            raise self._broken(PLAN, ValueError(why))
        return file

    def read_summary(self) -> Summary:
        """Raises RunDirectoryError (missing, unreadable, newer schema)."""
        return self._read(SUMMARY, Summary)

    def has_events(self) -> bool:
        return (self.path / EVENTS).exists()

    def read_turns(
        self,
        on_torn: Callable[[str], None] | None = None,
        *,
        span: Span | None = None,
        left_out: LeftOut | None = None,
    ) -> Iterator[TurnRecord]:
        """Every turn of the run, in file order, one at a time (a run may have millions).

        A last line that a crash left torn is left out; `on_torn` gets one sentence with its line number. So is any
        other line that holds no turn, and counted in `left_out`; with `span` (`PlanFile.span`) also one that holds
        what no turn of it can have, such as a negative count or an instant of another year. Raises RunDirectoryError
        when the file can't be read.
        """
        for batch in self.read_turn_batches(on_torn, span=span, left_out=left_out):
            yield from batch.turns

    def read_turn_batches(
        self,
        on_torn: Callable[[str], None] | None = None,
        *,
        span: Span | None = None,
        left_out: LeftOut | None = None,
    ) -> Iterator[Batch]:
        """As `read_turns`, some thousands of turns at a time: several times faster, for whoever looks at columns."""
        left_out = LeftOut() if left_out is None else left_out
        before = 0
        for rows in self._blocks(TURNS, TurnRecord, on_torn, left_out.add):
            batch = Batch(rows)
            damaged = {} if span is None else damages(batch, span)
            for place, what in damaged.items():
                # Right for the first line that is left out, which is the one that is named.
                left_out.add(before + place + 1, b"", ValueError(f"no turn can have this: {what}"))
            before += len(rows)
            yield Batch([turn for place, turn in enumerate(rows) if place not in damaged]) if damaged else batch

    def read_windows(self) -> Iterator[WindowRow]:
        """In file order. Raises RunDirectoryError with the number of a line that is none."""
        return self._rows(WINDOWS, WindowRow, None)

    def read_events(self) -> Iterator[EventRow]:
        """As `read_windows`."""
        return self._rows(EVENTS, EventRow, None)

    def read_health(self, on_torn: Callable[[str], None] | None = None) -> Iterator[ClientHealth]:
        """Rows of telemetry/clients.jsonl, in file order; none when there is no such file. As `read_series`."""
        file = f"{TELEMETRY}/{CLIENTS}"
        if (self.path / file).exists():
            yield from self._rows(file, ClientHealth, on_torn)

    def read_series(self, name: str, on_torn: Callable[[str], None] | None = None) -> Iterator[SeriesRow]:
        """Points of telemetry/`name` (`rundir.SERIES`), in file order; none when there is no such file.

        A torn last line as in `read_turns`, any other bad one as in `read_windows`.
        """
        file = f"{TELEMETRY}/{name}"
        if (self.path / file).exists():
            yield from self._rows(file, SeriesRow, on_torn)

    def write_series(self, name: str, rows: Iterable[SeriesRow]) -> Path:
        """Replace telemetry/`name` (series that were fetched from a database). Raises UnwrittenFileError."""
        path = self.telemetry / name
        return self._write(str(path.relative_to(self.path)), msgspec.json.Encoder().encode_lines(rows))

    def _rows(self, file: str, kind: type[T], on_torn: Callable[[str], None] | None) -> Iterator[T]:
        for rows in self._blocks(file, kind, on_torn):
            yield from rows

    def _blocks(
        self, file: str, kind: type[T], on_torn: Callable[[str], None] | None, on_bad: OnBad | None = None
    ) -> Iterator[list[T]]:
        path = self.path / file
        decoder = msgspec.json.Decoder(kind)
        try:
            yield from decoded(path, decoder, on_torn, on_bad)
        except OSError as error:
            raise self._unreadable(file, error) from None

    def _read(self, file: str, kind: type[T]) -> T:
        self._check_version(file)
        try:
            return msgspec.json.decode((self.path / file).read_bytes(), type=kind)
        except OSError as error:
            raise self._unreadable(file, error) from None
        except UNREADABLE as error:
            raise self._broken(file, error) from None

    def _check_version(self, file: str) -> None:
        """Before anything else of the file: a newer schema may differ everywhere."""
        path = self.path / file
        try:
            version = msgspec.json.decode(path.read_bytes(), type=Versioned).schema_version
        except OSError as error:
            raise self._unreadable(file, error) from None
        except UNREADABLE as error:
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
            f"{self.path / file}: {'is missing' if missing else f'can not be read: {reason_of(error)}'}",
            hint=hint if missing else "check the file's permissions",
        )

    def _broken(self, file: str, error: Exception) -> RunDirectoryError:
        hint = f"make it anew with `infersiege report {self.path}`" if file == SUMMARY else "was it edited by hand?"
        return RunDirectoryError(f"{self.path / file}: {error}", hint=hint)
