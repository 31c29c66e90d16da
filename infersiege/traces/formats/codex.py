"""Codex rollouts, JSON Lines: response items, calls joined with their outputs.

A model call is a run of items that the model made (messages, reasoning, calls of tools); what comes before it (messages
of users and of the program, outputs of tools) is what it asked. `token_count` events say how long both were. A file is
a session; so is a subagent's, which has a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.private_values import moment_ns, want_string
from infersiege.traces.files.source import Row, Source
from infersiege.traces.formats.codex_items import Rollout
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.coding_agents import FILL, filled
from infersiege.traces.trace import ReadOptions, Tally, Trace

NAME = "codex"

_HINT = "docs/traces-formats/codex.md has the format"

OPTIONS: dict[str, Option] = {"fill": FILL}

_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})


def sniff(head: Head) -> bool:
    outline = head.outline
    return {"timestamp", "type", "payload"} <= outline.keys and outline.values.get("type") in _TYPES


def read(source: Source, options: ReadOptions) -> Trace:
    """Raises TraceError for rows that are none of a rollout's; their text is in no message."""
    scope = f"{NAME}:{source.sha256()[:16]}"

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        return _session(rows, scope, options, tally)

    trace = IndexedTrace(source, options, format=NAME, make=make)
    trace.add_sessions(_rollouts(source))
    return trace.finish()


class _PeekedMeta(msgspec.Struct):
    id: str | None = None
    forked_from: str | None = msgspec.field(default=None, name="forked_from_id")
    source: Any = None


class _Peek(msgspec.Struct):
    type: str
    payload: _PeekedMeta | None = None


_peek = msgspec.json.Decoder(_Peek)


def _rollouts(source: Source) -> Iterator[list[Row]]:
    """The rows of each rollout: a file, or in one file what begins with the head of another session. (A fork and a
    subagent may repeat the head of the session they come from: theirs comes first.) Raises TraceError."""
    rows = source.rows()
    row = next(rows, None)
    for whole in source.documents():
        found: list[Row] = []
        known: set[str] = set()
        while row is not None and row.start < whole.end:
            raw = source.raw(row)
            # Heads are few, and all other rows are read once only.
            if b'"session_meta"' in raw[:200]:
                ids, of_this = _head_of(source, row, raw)
                if found and known and not of_this & known:
                    yield found
                    found, known = [], set()
                known |= ids
            found.append(row)
            row = next(rows, None)
        if found:
            yield found


def _head_of(source: Source, row: Row, raw: bytes) -> tuple[set[str], set[str]]:
    """(ids that the head names, its own id); none: it is no head. Raises TraceError."""
    try:
        peeked = _peek.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        source.json(row)
        raise TraceError(f"{source.place(row)}: {error}", hint="is this a rollout of Codex?") from None
    meta = peeked.payload
    if peeked.type != "session_meta" or meta is None or meta.id is None:
        return set(), set()
    return {meta.id, *([meta.forked_from] if meta.forked_from else ()), *_parents(meta.source)}, {meta.id}


def _parents(source: Any) -> list[str]:
    """Ids under `parent_thread_id` in what started the session, at any depth."""
    if not isinstance(source, dict):
        return []
    found = [value for key, value in source.items() if key == "parent_thread_id" and isinstance(value, str)]
    return found + [ident for value in source.values() for ident in _parents(value)]


def _session(rows: Sequence[Placed], scope: str, options: ReadOptions, tally: Tally) -> Session:
    """Raises UnsendableError where no request of it can be sent."""
    rollout = Rollout(options, tally)
    session_id = None
    for row in rows:
        value = want_object(row)
        kind = want_string(value, "type", row.place)
        payload = value.get("payload")
        if kind not in _TYPES:
            continue
        if not isinstance(payload, dict):
            raise TraceError(f"{row.place}: payload is a {type(payload).__name__}, an object is wanted", hint=_HINT)
        time_ns = moment_ns(value, "timestamp", row.place)
        if kind == "session_meta":
            if session_id is None:
                session_id = want_string(payload, "id", row.place)
                rollout.head(payload)
        elif kind == "response_item":
            rollout.item(payload, time_ns, row.place)
        elif kind == "event_msg":
            rollout.event(payload, row.place)
        elif kind == "compacted":
            rollout.compacted(payload, time_ns, row.place)
    turns = rollout.finish()
    if not turns:
        raise UnsendableError("no_model_call")
    return Session(
        session_id=session_id or f"line-{rows[0].line}",
        turns=tuple(filled(turns, scope=scope, ident=0, options=options)),
        arrival_ns=rollout.arrival_ns,
        source_line=rows[0].line,
    )
