"""BurstGPT CSV (github.com/HPMLL/BurstGPT): seconds, model and lengths of requests; in its wide form also sessions.

Six columns (files 1 and 2), or eight with `Session ID` and `Elapsed time` (file 3). A response of 0 tokens is a request
that failed when it was recorded. Rows of a conversation with one session id are its turns: the delay of a turn is its
time less the previous one's time and elapsed time (the whole answer, says the data's README), never negative. Rows of
the API log name no session; each is a request of its own.

The README does not say whether `Request tokens` of a later turn counts the history. Others who worked with file 3 found
that it may fall within a session, which a history that only grows can't do, and which counting new text only would do
all the time. It is taken for what a request's prompt count is everywhere else: the whole prompt, as the application
cut it. `request_tokens = "new"` reads it the other way.
"""

from __future__ import annotations

from infersiege.errors import TraceError
from infersiege.traces.files.csv_table import CsvTable, header_names
from infersiege.traces.files.head import Head
from infersiege.traces.files.source import Source
from infersiege.traces.files.values import shown_key, want_number
from infersiege.traces.options import Option
from infersiege.traces.sessions.lengths import LengthTrace
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "burstgpt"

_LOG_TYPES = {"conversation": "Conversation log", "api": "API log"}

OPTIONS = {
    "model": Option(default="", meaning='only rows of this model, as the column says it ("ChatGPT"); empty: all'),
    "log_type": Option(default="all", choices=("all", *_LOG_TYPES), meaning="only rows of this log"),
    "request_tokens": Option(
        default="whole",
        choices=("whole", "new"),
        meaning="what `Request tokens` of a later turn of a session counts: the whole prompt, or what is new in it",
    ),
}

_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type")
_SESSION, _ELAPSED = "Session ID", "Elapsed time"
_UNUSED = "Total tokens"


def sniff(head: Head) -> bool:
    return "Request tokens" in head.first_line and set(_COLUMNS) <= set(header_names(head.first_line))


def read(source: Source, options: ReadOptions) -> LengthTrace:
    """Raises TraceError for a wrong header or row and for times that go back."""
    tally = Tally()
    reader = _Reader(source, options, tally)
    rows = 0
    for line, row in reader.table.rows():
        if reader.full and reader.sessions_at is None:
            break
        rows += reader.take(line, row)
    restarts = reader.trace.restarts()
    if restarts:
        tally.odd("a later turn of a session is no longer than what came before it: it is a text of its own", restarts)
    reader.trace.finish(source, rows=rows, tally=tally, unit_hint="Timestamp is in seconds")
    return reader.trace


class _Reader:
    """Rows -> the trace."""

    def __init__(self, source: Source, options: ReadOptions, tally: Tally) -> None:
        self.table = CsvTable(source, _COLUMNS, (_SESSION, _ELAPSED, _UNUSED))
        self.trace = LengthTrace(
            options,
            format=NAME,
            sha256=source.sha256(),
            cumulative=options.values["request_tokens"] == "whole",
        )
        places = self.table.places
        self.sessions_at = places.get(_SESSION)
        self._elapsed_at = places.get(_ELAPSED)
        self._time_at, self._model_at, self._prompt_at, self._output_at, self._log_at = (
            places[name] for name in _COLUMNS
        )
        for name in self.table.others:
            tally.odd(f"column {shown_key(name)} is not sent")
        if (self.sessions_at is None) != (self._elapsed_at is None):
            lacking = _SESSION if self.sessions_at is None else _ELAPSED
            raise TraceError(
                f"{source.path}:1: has no column {lacking!r}", hint="the wide form has both, the other none"
            )
        self._tally = tally
        self._limit = options.limit
        self._model = str(options.values["model"])
        self._log_type = _LOG_TYPES.get(str(options.values["log_type"]))
        self._before: float | int | None = None
        self._first: float | int = 0

    @property
    def full(self) -> bool:
        return self._limit is not None and len(self.trace) >= self._limit

    def take(self, line: int, row: list[str]) -> bool:
        """Whether the row counts: not where the limit is reached and it is no turn of a session that was begun."""
        log_type = row[self._log_at].strip()
        session_id = ""
        if self.sessions_at is not None and log_type == _LOG_TYPES["conversation"]:
            session_id = row[self.sessions_at].strip()
        if self.full and not (session_id and self.trace.has_session(session_id)):
            return False
        arrival_ns = self._arrival_ns(line, row[self._time_at])
        prompt = self.table.tokens(row[self._prompt_at], "Request tokens", line)
        output = self.table.tokens(row[self._output_at], "Response tokens", line)
        reason = self._why_not(row[self._model_at].strip(), log_type, prompt, output)
        if reason is not None:
            self._tally.skip(reason, self.table.where(line))
        elif session_id:
            assert self._elapsed_at is not None
            elapsed_s = self._seconds(line, _ELAPSED, row[self._elapsed_at])
            self.trace.add_turn(
                session_id,
                line=line,
                arrival_ns=arrival_ns,
                prompt=prompt,
                output=output,
                duration_ns=check_span(self.table.place(line), round(elapsed_s * 1e9), _ELAPSED),
            )
        else:
            self.trace.add(line=line, arrival_ns=arrival_ns, prompt=prompt, output=output)
        return True

    def _why_not(self, model: str, log_type: str, prompt: int, output: int) -> str | None:
        if self._model and model != self._model:
            return "other_model"
        if self._log_type is not None and log_type != self._log_type:
            return "other_log_type"
        if output == 0:
            return "failed_in_recording"
        return "no_input" if prompt == 0 else None

    def _arrival_ns(self, line: int, text: str) -> int:
        """From the file's first row: its clock begins with the first day of the recording."""
        seconds = self._seconds(line, "Timestamp", text)
        if self._before is None:
            self._first = seconds
        elif seconds < self._before:
            raise TraceError(
                f"{self.table.place(line)}: Timestamp went back by {self._before - seconds:g} s to {seconds:g}",
                hint="sort the file by Timestamp",
            )
        self._before = seconds
        span_ns = round((seconds - self._first) * 1e9)
        return check_span(self.table.place(line), span_ns, "time since the first row")

    def _seconds(self, line: int, column: str, text: str) -> float | int:
        value: float | int | str
        try:
            value = int(text)
        except ValueError:
            try:
                value = float(text)
            except ValueError:
                value = text
        seconds = want_number({column: value}, column, self.table.place(line))
        if seconds < 0:
            raise TraceError(
                f"{self.table.place(line)}: {column} is {seconds:g}, at least 0 is wanted",
                hint="times are in seconds",
            )
        return seconds
