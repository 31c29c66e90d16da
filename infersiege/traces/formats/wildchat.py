"""WildChat and LMSYS-Chat rows: `{"conversation_hash" or "conversation_id": ..., "conversation": [{role, content}]}`.

They come as Parquet files, or as JSON of them. What real people wrote: it is sent, and is in no message or report.

WildChat has times. An answer's `timestamp` is when it was whole, and a question has none, so a session arrives when its
first answer was there (with times of rows only: at the row's, which is that of the last answer), and a turn's delay is
the time from answer to answer: longer than the user's pause by the answer's own time. LMSYS has no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Message, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.objects import objects
from infersiege.traces.files.source import Source
from infersiege.traces.files.stamps import Stamps
from infersiege.traces.files.values import shown_keys
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError, check_messages, turns_of
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "wildchat"

OPTIONS: dict[str, Option] = {
    "language": Option(default="", meaning="keep conversations of this `language` only (`English`); empty: all"),
}

_ID_KEYS = ("conversation_id", "conversation_hash", "_id")


def sniff(head: Head) -> bool:
    if isinstance(head.row, dict):
        talk = head.row.get("conversation")
        return isinstance(talk, list) and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in talk[:1])
    keys = head.outline.keys
    return head.outline.array and "conversation" in keys and not keys.isdisjoint(_ID_KEYS)


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for rows without a conversation and for times that are none."""
    reader = _Reader(str(options.values["language"]))
    return IndexedTrace(
        source, options, format=NAME, make=reader.session, unit_hint="are they the conversations' own times?"
    ).read_rows(objects(source))


class _Reader:
    def __init__(self, language: str) -> None:
        self._language = language.lower()
        self._stamps = Stamps(None)

    def session(self, rows: Sequence[Placed], tally: Tally) -> Session:
        place, line, _ = rows[0]
        row = want_object(rows[0])
        talk = row.get("conversation")
        if not isinstance(talk, list):
            raise TraceError(
                f"{place}: has no list `conversation` (keys: {shown_keys(row)})", hint="name the trace's `format`"
            )
        if self._language and str(row.get("language", "")).lower() != self._language:
            raise UnsendableError("other_language")
        turns = turns_of(check_messages([_message(said) for said in talk]))
        times = [self._time(said, place) for said in talk]
        arrival_ns, turns = _timed(turns, times, place)
        return Session(
            session_id=_name(row, line),
            turns=tuple(turns),
            arrival_ns=self._time(row, place) if arrival_ns is None else arrival_ns,
            source_line=line,
        )

    def _time(self, holder: dict[str, Any], place: str) -> int | None:
        return None if holder.get("timestamp") is None else self._stamps.ns(holder, "timestamp", place)


def _message(said: object) -> Message:
    """Role and text: the rest is about people (place, address, browser). Raises UnsendableError."""
    if not isinstance(said, dict):
        raise UnsendableError("not_a_message")
    if not isinstance(said.get("content"), str):
        raise UnsendableError("message_without_content")
    return {"role": said.get("role"), "content": said["content"]}


def _name(row: dict[str, Any], line: int) -> str:
    """Of WildChat with the line: its hash is of the text, and the same for conversations with the same text."""
    key, ident = next(((key, row[key]) for key in _ID_KEYS if isinstance(row.get(key), str | int)), ("", None))
    if ident is None:
        return f"line-{line}"
    return f"{ident}-{line}" if key == "conversation_hash" else str(ident)


def _timed(turns: list[Turn], times: Sequence[int | None], place: str) -> tuple[int | None, list[Turn]]:
    """(arrival, the turns with their delays), of the times of the messages."""
    timed: list[Turn] = []
    at = 0
    arrival_ns = answered_ns = None
    for turn in turns:
        answer = at + len(turn.messages)
        end = answer + len(turn.recorded_answer)
        asked_ns, done_ns = _last(times[at:answer]), _last(times[answer:end])
        start_ns = done_ns if asked_ns is None else asked_ns
        if timed and start_ns is not None and answered_ns is not None:
            delay_ns = check_span(place, max(0, start_ns - answered_ns), "the time between two messages")
            turn = msgspec.structs.replace(turn, delay_ns=delay_ns)
        elif not timed:
            arrival_ns = start_ns
        timed.append(turn)
        answered_ns = start_ns if done_ns is None else done_ns
        at = end
    return arrival_ns, timed


def _last(times: Sequence[int | None]) -> int | None:
    return next((time for time in reversed(times) if time is not None), None)
