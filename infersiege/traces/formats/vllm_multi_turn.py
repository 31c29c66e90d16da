"""vLLM's multi-turn benchmark: a JSON array of `{"id": ..., "messages": [{"role", "content"}, ...]}`.

User and assistant alternate strictly and the user begins, after a system message at most: what does not is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

from infersiege.errors import TraceError
from infersiege.records import Message, Session
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.source import Source
from infersiege.traces.files.values import shown_key, shown_keys
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError, check_messages, turns_of
from infersiege.traces.trace import ReadOptions, Tally

NAME = "vllm-multi-turn"

OPTIONS: dict[str, Option] = {}


def sniff(head: Head) -> bool:
    return head.outline.array and {"id", "messages"} <= head.outline.keys


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for an array that is not whole, entries without id or messages, and ids that come twice."""
    seen: dict[str, str] = {}

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        session = _session(rows, tally)
        # By place, since a session is made again whenever it is asked for.
        if seen.setdefault(session.session_id, rows[0].place) != rows[0].place:
            raise TraceError(f"{rows[0].place}: this id came before", hint="ids are of one entry")
        return session

    return IndexedTrace(source, options, format=NAME, make=make).read_rows(source.elements())


def _session(rows: Sequence[Placed], tally: Tally) -> Session:
    row = want_object(rows[0])
    ident = row.get("id")
    if isinstance(ident, bool) or not isinstance(ident, str | int):
        seen = "is missing" if "id" not in row else f"is a {type(ident).__name__}"
        raise TraceError(f"{rows[0].place}: id {seen}, a string or a whole number is wanted", hint="entries have an id")
    if "messages" not in row:
        raise TraceError(
            f"{rows[0].place}: has no messages (keys: {shown_keys(row)})", hint="name the trace's `format`"
        )
    for key in row.keys() - {"id", "messages"}:
        tally.odd(f"key {shown_key(key)} is not sent")
    messages = check_messages(row["messages"])
    _check_alternation(messages)
    return Session(session_id=str(ident), turns=tuple(turns_of(messages)), source_line=rows[0].line)


def _check_alternation(messages: Sequence[Message]) -> None:
    """Raises UnsendableError."""
    roles = [message["role"] for message in messages]
    if roles[0] == "system":
        del roles[0]
    if any(role != ("user", "assistant")[number % 2] for number, role in enumerate(roles)):
        raise UnsendableError("not_alternating")
