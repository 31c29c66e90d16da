"""mini-swe-agent trajectories: a list of messages, or `{"info", "messages", "trajectory_format"}`; folders of them.

`extra.timestamp` of a message (s) says when it was there: the delay of a request is the time from the answer to the
last message that follows it, 0 where either has none. `extra.response.usage` of an answer has its tokens. What follows
the last answer (an empty user message, an `exit`) is no request. Conversations of the Responses API (`object:
"response"`) become chat messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from infersiege.records import Message, Session
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.source import Source
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.chat_parts import answer, joined_text, tool_call
from infersiege.traces.sessions.trajectory import (
    Found,
    Said,
    cut,
    documents,
    instant_ns,
    name_of,
    openai_message,
    read_trajectories,
    shaped,
    usage_tokens,
)
from infersiege.traces.trace import ReadOptions, Tally

NAME = "mini-swe-agent"

OPTIONS: dict[str, Option] = {}

_Messages = list[dict[str, Any]]


class _File(msgspec.Struct):
    messages: _Messages


def sniff(head: Head) -> bool:
    outline = head.outline
    if outline.array:
        # On one line it is a row of openai-messages as well.
        return {"role", "content"} <= outline.keys and not isinstance(head.row, list)
    if outline.values.get("trajectory_format", "").startswith(NAME):
        return True
    return {"info", "messages"} <= outline.keys and '"mini_version"' in head.text


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError with the file of what is no such document, or has impossible times."""

    def make(row: Placed, tally: Tally) -> Found:
        messages: _Messages = row.value if isinstance(row.value, list) else row.value.messages
        said = [one for raw in messages for one in _said(raw, row.place, tally)]
        turns = cut(said, options, place=row.place)
        return Found(Session(session_id=name_of(source, row.place), turns=turns, source_line=row.line))

    rows = documents(source, source.head())
    return read_trajectories(source, options, rows, make, format=NAME, decode=shaped(_File | _Messages))


def _said(raw: dict[str, Any], place: str, tally: Tally) -> Iterator[Said]:
    extra = raw.get("extra")
    extra = extra if isinstance(extra, dict) else {}
    at_ns = instant_ns(extra.get("timestamp"), "extra.timestamp", place)
    if raw.get("role") == "exit":
        return
    if raw.get("object") == "response":
        prompt, output = usage_tokens(raw.get("usage"), place)
        yield Said(_response(raw, tally), at_ns=at_ns, prompt_tokens=prompt, output_tokens=output)
    elif raw.get("type") == "function_call_output":
        ident = raw.get("call_id")
        yield Said({"role": "tool", "tool_call_id": ident, "content": joined_text(raw.get("output"))}, at_ns=at_ns)
    elif raw.get("role") == "assistant":
        response = extra.get("response")
        prompt, output = usage_tokens(response.get("usage") if isinstance(response, dict) else None, place)
        yield Said(openai_message(raw, tally), at_ns=at_ns, prompt_tokens=prompt, output_tokens=output)
    else:
        message = openai_message(raw, tally)
        if raw.get("type") == "message":  # of the Responses API
            message = {**message, "content": joined_text(raw.get("content"))}
        yield Said(message, at_ns=at_ns)


def _response(raw: dict[str, Any], tally: Tally) -> Message:
    """A response object of the Responses API as an assistant message. Raises UnsendableError."""
    texts, calls = [], []
    for item in raw.get("output") or ():
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "message":
            texts.append(joined_text(item.get("content")))
        elif kind == "function_call":
            ident, name = item.get("call_id") or item.get("id"), item.get("name")
            if not isinstance(ident, str) or not isinstance(name, str):
                raise UnsendableError("bad_tool_call")
            calls.append(tool_call(ident, name, item.get("arguments"), tally))
    return answer("\n".join(texts), calls)
