"""OpenAI messages, JSON Lines: `{"messages": [...], "tools": [...]}` a row, a bare list of messages, or a batch row.

A row is a session by default. Where rows share a `session_id` the option `rows` must say what they are (TR-01):
`cumulative` (each row is a whole request) or `deltas` (each row holds what is new).
"""

from __future__ import annotations

from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Message, Session, Turn
from infersiege.traces.chat import UnsendableError, check_messages, request_extra, turns_of
from infersiege.traces.head import Head
from infersiege.traces.options import Option
from infersiege.traces.source import Source
from infersiege.traces.trace import ReadOptions, SessionList, Tally, check_span
from infersiege.traces.values import want_number

NAME = "openai-messages"

OPTIONS = {
    "rows": Option(
        default="sessions",
        choices=("sessions", "cumulative", "deltas"),
        meaning="what a row is: a whole session; or one request of a `session_id`, with all its messages (cumulative) "
        "or with the new ones only (deltas)",
    ),
}

_STRUCTURAL = frozenset(
    {"messages", "tools", "session_id", "delay", "delay_ms", "timestamp", "custom_id", "method", "url", "body", "id"}
)


class _Row(msgspec.Struct, frozen=True):
    """One row, unwrapped and checked for its shape."""

    line: int
    body: dict[str, Any]
    session_id: str | None
    delay_ns: int


def sniff(head: Head) -> bool:
    row = head.row
    if isinstance(row, list):
        return bool(row) and isinstance(row[0], dict) and "role" in row[0]
    if isinstance(row, dict) and isinstance(row.get("body"), dict):
        return "messages" in row["body"]
    keys = head.keys()
    return "messages" in keys and not keys & {"hash_ids", "input_length", "output_length"}


def read(source: Source, options: ReadOptions) -> SessionList:
    """Raises TraceError for a row that is no JSON, no row of this format, or that mixes modes."""
    tally = Tally()
    mode = options.values["rows"]
    tools = _ToolSets()
    sessions: list[Session] = []
    groups: dict[str, list[_Row]] = {}
    rows = 0
    seen: set[str] = set()
    for line, raw in source.json_rows():
        full = options.limit is not None and len(sessions) + len(groups) >= options.limit
        if full and mode == "sessions":
            break
        row = _unwrap(source, line, raw)
        if mode != "sessions" and row.session_id is not None:
            if not full or row.session_id in groups:
                groups.setdefault(row.session_id, []).append(row)
                rows += 1
            continue
        if full:
            continue
        rows += 1
        if row.session_id is not None and row.session_id in seen:
            raise TraceError(
                f"{source.path}:{line}: session_id {row.session_id!r} came before, so rows are parts of sessions",
                hint='set options.rows to "cumulative" (each row is a whole request) or "deltas" (only what is new)',
            )
        if row.session_id is not None:
            seen.add(row.session_id)
        _add_session(source, [row], "sessions", options, tally, tools, sessions)
    for group in groups.values():
        _add_session(source, group, str(mode), options, tally, tools, sessions)
    tally.require_sessions(len(sessions), str(source.path), rows)
    return SessionList(
        name=options.name, format=NAME, sha256=source.sha256(), rows=rows, sessions=sessions, tally=tally
    )


class _ToolSets:
    """One object for all equal tool lists: thousands of rows of an agent carry the same."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[dict[str, Any], ...]] = {}

    def get(self, raw: object) -> tuple[dict[str, Any], ...] | None:
        if not raw:
            return None
        if not isinstance(raw, list) or not all(isinstance(tool, dict) for tool in raw):
            raise UnsendableError("bad_tools")
        return self._known.setdefault(msgspec.json.encode(raw), tuple(raw))


def _unwrap(source: Source, line: int, raw: object) -> _Row:
    place = f"{source.path}:{line}"
    if isinstance(raw, list):
        return _Row(line, {"messages": raw}, None, 0)
    if not isinstance(raw, dict):
        raise TraceError(f"{place}: is a {type(raw).__name__}, not an object or a list of messages")
    body = raw["body"] if isinstance(raw.get("body"), dict) else raw
    if "messages" not in body and "messages" not in raw and not str(raw.get("url", "")).startswith("/"):
        keys = ", ".join(sorted(raw)[:6])
        raise TraceError(f"{place}: has no messages (keys: {keys})", hint="name the trace's `format`")
    delays = [key for key in ("delay", "delay_ms") if raw.get(key) is not None]
    if len(delays) > 1 or (delays and raw.get("timestamp") is not None):
        raise TraceError(
            f"{place}: has {', '.join([*delays, 'timestamp'][:2])}, which say different things",
            hint="a turn is timed by its delay from the end of the previous answer, or by a timestamp, not by both",
        )
    delay_ns = round(want_number(raw, delays[0], place) * 1_000_000) if delays else 0
    if delay_ns < 0:
        raise TraceError(f"{place}: the delay is negative ({delay_ns / 1e6:g} ms)")
    check_span(place, delay_ns, "the delay")
    ident = raw.get("session_id")
    return _Row(line, body, None if ident is None else str(ident), delay_ns)


def _add_session(
    source: Source,
    rows: list[_Row],
    mode: str,
    options: ReadOptions,
    tally: Tally,
    tools: _ToolSets,
    sessions: list[Session],
) -> None:
    first = rows[0]
    try:
        session_tools = tools.get(first.body.get("tools"))
        if mode == "cumulative":
            turns = _cumulative(rows, tools, tally)
        elif mode == "deltas":
            turns = _deltas(rows, tools, tally)
        else:
            messages = check_messages(first.body.get("messages"))
            turns = turns_of(messages, extra=request_extra(first.body, _STRUCTURAL, tally))
    except UnsendableError as reason:
        tally.skip(str(reason), f"line {first.line}", len(rows))
        return
    sessions.append(
        Session(
            session_id=first.session_id or f"line-{first.line}",
            turns=tuple(turns),
            tools=session_tools,
            source_line=first.line,
        )
    )


def _deltas(rows: list[_Row], tools: _ToolSets, tally: Tally) -> list[Turn]:
    checked = check_messages([message for row in rows for message in _list(row.body.get("messages"))])
    turns: list[Turn] = []
    at = 0
    for row in rows:
        count = len(_list(row.body.get("messages")))
        part, at = checked[at : at + count], at + count
        turns.append(_turn(row, part, tools, tally, whole=False))
    return turns


def _cumulative(rows: list[_Row], tools: _ToolSets, tally: Tally) -> list[Turn]:
    """Rows that extend the one before become turns with what is new; others are sent as given (compaction)."""
    turns: list[Turn] = []
    before: list[Message] | None = None
    for row in rows:
        messages = check_messages(row.body.get("messages"))
        if before is not None and len(messages) > len(before) and messages[: len(before)] == before:
            new = messages[len(before) :]
            answer = [message for message in new if message["role"] == "assistant"]
            lead = next((n for n, message in enumerate(new) if message["role"] != "assistant"), len(new))
            if lead == len(answer) and lead < len(new):
                turns[-1] = msgspec.structs.replace(turns[-1], recorded_answer=tuple(new[:lead]))
                turns.append(_turn(row, new[lead:], tools, tally, whole=False))
                before = messages
                continue
        if before is not None:
            tally.odd("compaction: a request does not start with the one before it and is sent as given")
        turns.append(_turn(row, messages, tools, tally, whole=True))
        before = messages
    return turns


def _turn(row: _Row, messages: list[Message], tools: _ToolSets, tally: Tally, *, whole: bool) -> Turn:
    asked = list(messages)
    answer: list[Message] = []
    while not whole and asked and asked[-1]["role"] == "assistant":
        answer.insert(0, asked.pop())
    if not asked:
        raise UnsendableError("no_new_messages")
    return Turn(
        messages=tuple(asked),
        replaces_history=whole,
        delay_ns=row.delay_ns,
        recorded_answer=tuple(answer),
        tools=tools.get(row.body.get("tools")),
        extra=request_extra(row.body, _STRUCTURAL, tally),
    )


def _list(raw: object) -> list[Any]:
    if not isinstance(raw, list):
        raise UnsendableError("no_messages")
    return raw
