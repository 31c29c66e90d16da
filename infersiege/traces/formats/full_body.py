"""Recorded request bodies, JSON Lines: `{"body": {...}, "timestamp": ..., "completion_tokens": ...}`.

Each row is a request of its own, sent as it was recorded. With the option `session` rows that share the value of that
field are one session, and each of its requests must repeat the one before it (TR-01). As the file has no durations, the
whole time between two requests of a session is then the delay, answer included.

`headers` of a row are never looked at: they hold keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.source import Source
from infersiege.traces.files.stamps import UNITS_NS, Stamps
from infersiege.traces.files.values import decode_json, shown_keys, want_int
from infersiege.traces.options import Option
from infersiege.traces.sessions.bodies import chat_body, is_body, tools_of
from infersiege.traces.sessions.chat import check_messages, request_extra
from infersiege.traces.sessions.cumulative import Request, cumulative_turns
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "full-body"

OPTIONS = {
    "unit": Option(default="s", choices=tuple(UNITS_NS), meaning="unit of `timestamp`, where it is a number"),
    "session": Option(
        default="",
        meaning="field of the row, of its body or of the body's `metadata` by which rows are one session; empty: each "
        "row is a session",
    ),
}

_STRUCTURAL = frozenset({"messages", "tools"})


def sniff(head: Head) -> bool:
    row = head.row
    if not isinstance(row, dict) or not {"body", "timestamp"} <= row.keys() or "custom_id" in row:
        return False
    body = row["body"]
    if isinstance(body, str):
        return body.lstrip()[:1] == "{"
    return isinstance(body, dict) and is_body(body, _url(row))


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for a row without a body or a time, and where the unit can't be right."""
    reader = _Reader(options)
    unit = "ms" if options.values["unit"] == "s" else "s"
    trace = IndexedTrace(source, options, format=NAME, make=reader.session, unit_hint=f'set options.unit = "{unit}"')
    if options.values["session"]:
        return trace.read_groups(source.rows(), reader.key)
    return trace.read_rows(source.rows())


class _Reader:
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._field = str(options.values["session"])
        self._stamps = Stamps(str(options.values["unit"]))

    def key(self, placed: Placed) -> str | None:
        row = want_object(placed)
        body = _body(row, placed.place)
        metadata = body.get("metadata")
        for holder in (row, body, metadata if isinstance(metadata, dict) else {}):
            value = holder.get(self._field)
            if isinstance(value, str | int):
                return str(value)
        return None

    def session(self, placed: Sequence[Placed], tally: Tally) -> Session:
        requests: list[Request] = []
        first_ns = before_ns = 0
        for each in placed:
            row = want_object(each)
            at_ns = self._stamps.ns(row, "timestamp", each.place)
            if not requests:
                first_ns = before_ns = at_ns
            if at_ns < before_ns:
                raise TraceError(
                    f"{each.place}: timestamp went back by {(before_ns - at_ns) / 1e9:g} s within the session",
                    hint="sort the file by timestamp",
                )
            delay_ns = check_span(each.place, at_ns - before_ns, "the time since the session's previous request")
            requests.append(self._request(row, each.place, delay_ns, tally))
            before_ns = at_ns
        if before_ns > first_ns:
            tally.odd("a session's delays are the times between its requests, answers included")
        return self._session(placed[0], requests, first_ns, tally)

    def _request(self, row: dict[str, Any], place: str, delay_ns: int, tally: Tally) -> Request:
        asked = None
        if row.get("completion_tokens") is not None:
            # 0: the request failed when it was recorded, so that nothing is known of its answer.
            asked = self._options.output_tokens(want_int(row, "completion_tokens", place)) or None
        body = chat_body(_body(row, place), _url(row), tally)
        return Request(
            messages=check_messages(body.get("messages")),
            delay_ns=delay_ns,
            tools=tools_of(body.get("tools")) or (),
            extra=request_extra(body, _STRUCTURAL, tally),
            asked_output_tokens=asked,
        )

    def _session(self, first: Placed, requests: list[Request], arrival_ns: int, tally: Tally) -> Session:
        tools = requests[0].tools or None
        turns = cumulative_turns(requests, tally)
        row = first.value
        ident = self.key(first) if self._field else row.get("request_id")
        return Session(
            session_id=str(ident) if isinstance(ident, str | int) else f"line-{first.line}",
            turns=tuple(_with_session_tools(turn, tools) for turn in turns),
            arrival_ns=arrival_ns,
            tools=tools,
            source_line=first.line,
        )


def _with_session_tools(turn: Turn, tools: tuple[dict[str, Any], ...] | None) -> Turn:
    """Tools that are the session's are not said again."""
    return msgspec.structs.replace(turn, tools=None) if turn.tools == (tools or ()) else turn


def _body(row: dict[str, Any], place: str) -> dict[str, Any]:
    """The body, also where it was recorded as the text it was on the wire. Raises TraceError."""
    body = row.get("body")
    if isinstance(body, str):
        try:
            body = decode_json(body)
        except ValueError:
            raise TraceError(f"{place}: body is a string that is no JSON", hint="was it cut when recorded?") from None
    if not isinstance(body, dict):
        seen = "is missing" if "body" not in row else f"is a {type(body).__name__}"
        raise TraceError(
            f"{place}: body {seen}, an object is wanted", hint='a row is like {"body": {...}, "timestamp": 0}'
        )
    if not is_body(body, _url(row)):
        raise TraceError(
            f"{place}: body has no messages, prompt or input (keys: {shown_keys(body)})", hint="was it cut?"
        )
    return body


def _url(row: dict[str, Any]) -> object:
    return next((row[key] for key in ("url", "path", "endpoint") if isinstance(row.get(key), str)), None)
