"""Mooncake JSON Lines: `{"timestamp", "input_length", "output_length", "hash_ids"}`, in ms and 512-token blocks.

The same id is the same text in every row, so the prefix sharing of the recording is kept. A row may carry `messages`
(with `tools`) or `text_input` instead of ids.
"""

from __future__ import annotations

from typing import Any

from infersiege.errors import TraceError
from infersiege.records import Session, Turn
from infersiege.traces.chat import UnsendableError, check_messages, request_extra
from infersiege.traces.head import Head
from infersiege.traces.lengths import LengthTrace
from infersiege.traces.options import Option
from infersiege.traces.source import Source
from infersiege.traces.trace import ReadOptions, SessionList, Tally, Trace, check_rate, check_span
from infersiege.traces.values import want_int, want_number

NAME = "mooncake"

_UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

OPTIONS = {
    "unit": Option(default="ms", choices=tuple(_UNITS_NS), meaning="unit of `timestamp`"),
    "block_size": Option(default=512, at_least=1, meaning="tokens of one hash block"),
}

_STRUCTURAL = frozenset(
    {"timestamp", "input_length", "output_length", "hash_ids", "text_input", "messages", "tools", "session_id", "delay"}
)


def sniff(head: Head) -> bool:
    keys = head.keys()
    return (
        "timestamp" in keys
        and (
            {"input_length", "output_length", "hash_ids"} <= keys or ("output_length" in keys and "text_input" in keys)
        )
        and "chat_id" not in keys
    )


def read(source: Source, options: ReadOptions) -> Trace:
    """Raises TraceError for wrong rows, for times that go back, and where the unit can't be right."""
    clock = _Clock(source, str(options.values["unit"]))
    first = next(source.json_rows(), None)
    if first is not None and isinstance(first[1], dict) and "hash_ids" not in first[1]:
        return _read_texts(source, options, clock)
    block = int(options.values["block_size"])
    tally = Tally()
    trace = LengthTrace(options, format=NAME, sha256=source.sha256(), block_tokens=block)
    rows = 0
    for line, row in source.json_rows():
        if options.limit is not None and len(trace.arrivals_ns or ()) >= options.limit:
            break
        place = f"{source.path}:{line}"
        rows += 1
        row = _object(row, place)
        if row.get("session_id") is not None:
            raise TraceError(
                f"{place}: rows of sessions (session_id, delay) with hash_ids are not read yet",
                hint="give the session's messages instead, or leave session_id out to send each row by itself",
            )
        prompt, output = want_int(row, "input_length", place), want_int(row, "output_length", place)
        ids = _hash_ids(row, place)
        arrival_ns = clock.arrival_ns(row, line)
        if prompt == 0 or output == 0:
            tally.skip("no_input" if prompt == 0 else "no_output", f"line {line}")
            continue
        if len(ids) != -(-prompt // block):
            raise TraceError(
                f"{place}: {len(ids)} hash_ids for {prompt} tokens, {-(-prompt // block)} blocks of {block} are wanted",
                hint="set options.block_size to the trace's own",
            )
        trace.add(line=line, arrival_ns=arrival_ns, prompt=prompt, output=output, ids=ids)
    tally.require_sessions(len(trace.arrivals_ns or ()), str(source.path), rows)
    trace.finish(rows=rows, tally=tally, warnings=clock.warnings(trace.arrivals_ns or ()))
    return trace


def _read_texts(source: Source, options: ReadOptions, clock: _Clock) -> SessionList:
    """Rows with `messages` or `text_input`."""
    tally = Tally()
    sessions: list[Session] = []
    rows = 0
    for line, raw in source.json_rows():
        if options.limit is not None and len(sessions) >= options.limit:
            break
        place = f"{source.path}:{line}"
        rows += 1
        row = _object(raw, place)
        if row.get("session_id") is not None or row.get("delay") is not None:
            raise TraceError(
                f"{place}: rows of sessions are not read by the format {NAME!r}",
                hint='name format = "openai-messages" with options.rows for rows with messages and a session_id',
            )
        arrival_ns = clock.arrival_ns(row, line)
        try:
            messages = check_messages(_messages(row, place))
            turn = Turn(
                messages=tuple(messages),
                replaces_history=True,
                asked_prompt_tokens=want_int(row, "input_length", place) if "input_length" in row else None,
                asked_output_tokens=options.output_tokens(want_int(row, "output_length", place)) or None
                if "output_length" in row
                else None,
                extra=request_extra(row, _STRUCTURAL, tally),
            )
        except UnsendableError as reason:
            tally.skip(str(reason), f"line {line}")
            continue
        sessions.append(
            Session(
                session_id=f"line-{line}",
                turns=(turn,),
                arrival_ns=arrival_ns,
                tools=tuple(row["tools"]) if isinstance(row.get("tools"), list) and row["tools"] else None,
                source_line=line,
            )
        )
    tally.require_sessions(len(sessions), str(source.path), rows)
    for warning in clock.warnings([session.arrival_ns or 0 for session in sessions]):
        tally.odd(warning)
    return SessionList(
        name=options.name, format=NAME, sha256=source.sha256(), rows=rows, sessions=sessions, tally=tally
    )


class _Clock:
    """Timestamps of one unit -> ns from the first row."""

    def __init__(self, source: Source, unit: str) -> None:
        self._source = source
        self._unit = unit
        self._first: float | int | None = None
        self._before: float | int = 0

    def arrival_ns(self, row: dict[str, Any], line: int) -> int:
        """Raises TraceError for a time that went back, and for an epoch that is not of this unit."""
        place = f"{self._source.path}:{line}"
        stamp = want_number(row, "timestamp", place)
        if self._first is None:
            self._first = self._before = stamp
            self._check_epoch(stamp, place)
        if stamp < self._before:
            raise TraceError(
                f"{place}: timestamp went back from {self._before:g} {self._unit} to {stamp:g} {self._unit}",
                hint="sort the file by timestamp",
            )
        self._before = stamp
        return check_span(place, round((stamp - self._first) * _UNITS_NS[self._unit]), "time since the first row")

    def warnings(self, arrivals_ns: Any) -> tuple[str, ...]:
        other = "s" if self._unit == "ms" else "ms"
        warning = check_rate(str(self._source.path), arrivals_ns, f'set options.unit = "{other}"')
        return () if warning is None else (warning,)

    def _check_epoch(self, stamp: float | int, place: str) -> None:
        """A stamp of today in another unit is told by its size (2001 to 2286, in each unit)."""
        for unit, scale in _UNITS_NS.items():
            low, high = 1_000_000_000 * 1_000_000_000 // scale, 10_000_000_000 * 1_000_000_000 // scale
            if unit != self._unit and low <= stamp < high:
                raise TraceError(
                    f"{place}: timestamp {stamp:g} is a date of our time in {unit}, but is read in {self._unit}",
                    hint=f'set options.unit = "{unit}"',
                )


def _object(row: object, place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TraceError(f"{place}: is a {type(row).__name__}, not an object")
    return row


def _hash_ids(row: dict[str, Any], place: str) -> list[int]:
    ids = row.get("hash_ids")
    if not isinstance(ids, list) or not all(isinstance(ident, int) and -(2**63) <= ident < 2**63 for ident in ids):
        raise TraceError(f"{place}: hash_ids is no list of 64-bit whole numbers")
    return ids


def _messages(row: dict[str, Any], place: str) -> object:
    if "messages" in row:
        return row["messages"]
    text = row.get("text_input")
    if not isinstance(text, str):
        raise TraceError(f"{place}: has neither hash_ids nor messages nor text_input")
    return [{"role": "user", "content": text}]
