"""OpenAI messages, JSON Lines: `{"messages": [...], "tools": [...]}` a row, a bare list of messages, or a batch row.
A JSON array of such objects is read as well.

A row is a session by default. Where rows share a `session_id` the option `rows` must say what they are (TR-01):
`cumulative` (each row is a whole request; assistant messages that end it are its answer) or `deltas` (each row holds
what is new).

Rows may be timed: a session arrives at the `timestamp` of its first row. Later rows have a `delay` in ms from the end
of the previous answer, or a `timestamp`: as the file has no durations, the whole time between two stamps is then taken
as the delay, answer included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Message, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.source import Source
from infersiege.traces.files.stamps import UNITS_NS, Stamps
from infersiege.traces.files.values import shown_keys, want_number
from infersiege.traces.options import Option
from infersiege.traces.sessions.bodies import chat_body, is_body, tools_of
from infersiege.traces.sessions.chat import UnsendableError, check_messages, request_extra, turns_of
from infersiege.traces.sessions.cumulative import Request, cumulative_turns
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "openai-messages"

OPTIONS = {
    "rows": Option(
        default="sessions",
        choices=("sessions", "cumulative", "deltas"),
        meaning="what a row is: a whole session; or one request of a `session_id`, with all its messages (cumulative) "
        "or with the new ones only (deltas)",
    ),
    "unit": Option(default="ms", choices=tuple(UNITS_NS), meaning="unit of `timestamp`, where it is a number"),
}

_STRUCTURAL = frozenset(
    {"messages", "tools", "session_id", "delay", "delay_ms", "timestamp", "custom_id", "method", "url", "body", "id"}
)


class _Row(msgspec.Struct, frozen=True):
    """One row, unwrapped and checked for its shape."""

    place: str
    line: int
    body: dict[str, Any]
    url: object
    session_id: str | None
    delay_ns: int | None
    stamp_ns: int | None


def sniff(head: Head) -> bool:
    if _is_array_of_rows(head):
        return True
    row = head.row
    if isinstance(row, list):
        # Messages with `extra` are a trajectory's.
        return bool(row) and isinstance(row[0], dict) and "role" in row[0] and "extra" not in row[0]
    if not isinstance(row, dict):
        return False
    if isinstance(row.get("body"), dict):
        return is_body(row["body"], row.get("url")) and ("timestamp" not in row or "custom_id" in row)
    foreign = {"hash_ids", "input_length", "output_length", "trajectory_format", "traj"}
    return "messages" in row and foreign.isdisjoint(row)


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for a row that is no JSON, no row of this format, or that mixes modes."""
    reader = _Reader(str(options.values["rows"]), Stamps(str(options.values["unit"])))
    unit = "s" if options.values["unit"] == "ms" else "ms"
    trace = IndexedTrace(source, options, format=NAME, make=reader.session, unit_hint=f'set options.unit = "{unit}"')
    rows = source.elements() if _is_array_of_rows(source.head()) else source.rows()
    if reader.mode == "sessions":
        trace.read_rows(rows)
    else:
        trace.read_groups(rows, lambda placed: reader.unwrap(placed).session_id)
    reader.seen = None
    return trace


def _is_array_of_rows(head: Head) -> bool:
    """With an id in each they are vLLM's conversations."""
    return head.outline.array and "messages" in head.outline.keys and "id" not in head.outline.keys


class _Reader:
    def __init__(self, mode: str, stamps: Stamps) -> None:
        self.mode = mode
        self.seen: set[str] | None = set() if mode == "sessions" else None
        """Session ids so far, while the trace is opened; None afterwards, when sessions are made again."""
        self._stamps = stamps

    def session(self, placed: Sequence[Placed], tally: Tally) -> Session:
        rows = [self.unwrap(each) for each in placed]
        first = rows[0]
        if self.seen is not None and first.session_id is not None:
            self._once(first)
        body = chat_body(first.body, first.url, tally)
        session_tools = tools_of(body.get("tools"))
        if self.mode == "sessions" or first.session_id is None:
            turns = turns_of(check_messages(body.get("messages")), extra=request_extra(body, _STRUCTURAL, tally))
        else:
            parts = _parts(rows, session_tools, self.mode, tally)
            turns = cumulative_turns(parts, tally) if self.mode == "cumulative" else [_delta(part) for part in parts]
        return Session(
            session_id=first.session_id or f"line-{first.line}",
            turns=tuple(turns),
            arrival_ns=first.stamp_ns,
            tools=session_tools,
            source_line=first.line,
        )

    def unwrap(self, placed: Placed) -> _Row:
        """Raises TraceError."""
        place, line, raw = placed
        if isinstance(raw, list):
            return _Row(place, line, {"messages": raw}, None, None, None, None)
        if not isinstance(raw, dict):
            raise TraceError(
                f"{place}: is a {type(raw).__name__}, not an object or a list of messages",
                hint='a row is like {"messages": [...]}',
            )
        wrapped = isinstance(raw.get("body"), dict)
        body = raw["body"] if wrapped else raw
        if not is_body(body, raw.get("url")) if wrapped else "messages" not in raw:
            raise TraceError(f"{place}: has no messages (keys: {shown_keys(raw)})", hint="name the trace's `format`")
        delays = [key for key in ("delay", "delay_ms") if raw.get(key) is not None]
        timed = raw.get("timestamp") is not None
        if len(delays) > 1 or (delays and timed):
            raise TraceError(
                f"{place}: has {', '.join([*delays, 'timestamp'][:2])}, which say different things",
                hint="a turn is timed by its delay from the end of the previous answer, or by a timestamp, not by both",
            )
        ident = raw.get("session_id")
        return _Row(
            place,
            line,
            body,
            raw.get("url"),
            None if ident is None else str(ident),
            _delay_ns(raw, delays[0], place) if delays else None,
            self._stamps.ns(raw, "timestamp", place) if timed else None,
        )

    def _once(self, row: _Row) -> None:
        assert self.seen is not None
        assert row.session_id is not None
        if row.session_id in self.seen:
            raise TraceError(
                f"{row.place}: this session_id came before, so rows are parts of sessions",
                hint='set options.rows to "cumulative" (each row is a whole request) or "deltas" (only what is new)',
            )
        self.seen.add(row.session_id)


def _delay_ns(row: dict[str, Any], key: str, place: str) -> int:
    delay_ns = round(want_number(row, key, place) * 1_000_000)
    if delay_ns < 0:
        raise TraceError(f"{place}: the delay is negative ({delay_ns / 1e6:g} ms)", hint="a delay is 0 ms or more")
    return check_span(place, delay_ns, "the delay")


def _parts(
    rows: Sequence[_Row], session_tools: tuple[dict[str, Any], ...] | None, mode: str, tally: Tally
) -> list[Request]:
    """A request of each row: all its messages, or (deltas) the new ones; the assistant messages at its end apart."""
    bodies = [chat_body(row.body, row.url, tally) for row in rows]
    given = [_list(body.get("messages")) for body in bodies]
    if mode == "cumulative":
        checked = [check_messages(messages) for messages in given]
    else:
        joined = check_messages([message for messages in given for message in messages])
        checked, at = [], 0
        for messages in given:
            checked.append(joined[at : at + len(messages)])
            at += len(messages)
    parts = []
    for body, messages, delay_ns in zip(bodies, checked, _delays_ns(rows, tally), strict=True):
        end = len(messages)
        while end and messages[end - 1]["role"] == "assistant":
            end -= 1
        if not end:
            raise UnsendableError("no_new_messages")
        tools = tools_of(body.get("tools"))
        if tools == session_tools or (tools is None and mode == "deltas"):
            tools = None
        elif tools is None:
            tools = ()  # this request has none, whatever the session's first one had
        parts.append(
            Request(
                messages=messages[:end],
                answer=messages[end:],
                delay_ns=delay_ns,
                tools=tools,
                extra=request_extra(body, _STRUCTURAL, tally),
            )
        )
    return parts


def _delta(part: Request) -> Turn:
    return Turn(
        messages=tuple(part.messages),
        delay_ns=part.delay_ns,
        recorded_answer=tuple(part.answer),
        tools=part.tools,
        extra=part.extra,
    )


def _delays_ns(rows: Sequence[_Row], tally: Tally) -> list[int]:
    """Of each row: its delay, else the time since the row before (where both have a stamp), else 0."""
    delays: list[int] = []
    before: int | None = None
    by_stamps = False
    for row in rows:
        since = None if row.stamp_ns is None or before is None else row.stamp_ns - before
        if since is not None and since < 0:
            raise TraceError(
                f"{row.place}: timestamp went back by {-since / 1e9:g} s within the session",
                hint="sort the file by timestamp",
            )
        by_stamps = by_stamps or bool(since)
        if row.delay_ns is not None or since is None or not delays:
            delays.append(row.delay_ns or 0)
        else:
            delays.append(check_span(row.place, since, "the time since the session's previous row"))
        before = row.stamp_ns
    if by_stamps:
        tally.odd("a session's delays are the times between its requests, answers included: the file has no durations")
    return delays


def _list(raw: object) -> list[Message]:
    if not isinstance(raw, list):
        raise UnsendableError("no_messages")
    return raw
