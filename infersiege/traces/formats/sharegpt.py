"""ShareGPT: a JSON array, or JSON Lines, of `{"id": ..., "conversations": [{"from": "human", "value": ...}, ...]}`.

Long talks of such data sets were cut into parts for training. FastChat, whose cut files everyone uses, names a part
`ID_N`, where N is the number of messages before it; parts that follow each other and fit by that number are put
together again. (Benchmarks that take a talk's first two messages ask a part's first question without what it is about.)
Files that number their parts 0, 1, 2 can't be told from files of numbered talks: the option `join_parts` says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Message, Session
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.objects import objects
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import decode_json, shown_keys
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError, check_messages, turns_of
from infersiege.traces.sessions.chat_parts import answer, tool_call
from infersiege.traces.trace import ReadOptions, Tally

NAME = "sharegpt"

OPTIONS: dict[str, Option] = {
    "join_parts": Option(
        default="offsets",
        choices=("offsets", "numbers", "no"),
        meaning="rows named ID_N that are parts of one talk: N counts the messages before the part, or the parts; or "
        "each row is a talk",
    ),
}

_KEYS = ("conversations", "items", "conversation")

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
    "function_call": "call",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
}

_PART = re.compile(r"(.+)_(\d{1,9})")
_FROM = re.compile(r'"from"\s*:')


def sniff(head: Head) -> bool:
    if isinstance(head.row, dict):
        talk = next((head.row[key] for key in _KEYS if isinstance(head.row.get(key), list)), None)
        return talk is not None and all(isinstance(said, dict) and "from" in said for said in talk[:1])
    return head.outline.array and not head.outline.keys.isdisjoint(_KEYS) and _FROM.search(head.text) is not None


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for an array that is not whole and for rows that hold no conversation."""
    trace = IndexedTrace(source, options, format=NAME, make=_session)
    count = 0
    for rows in _talks(source, str(options.values["join_parts"]), trace):
        if options.limit is not None and count >= options.limit:
            break
        count += trace.add(rows)
    return trace.finish()


class _Glimpse(msgspec.Struct):
    """What joining parts needs to know of a row."""

    id: str | int | None = None
    conversations: list[msgspec.Raw] = []
    items: list[msgspec.Raw] = []


def _talks(source: Source, join: str, trace: IndexedTrace) -> Iterator[list[Row]]:
    """The rows of each talk."""
    if join == "no":
        yield from ([row] for row in objects(source))
        return
    decoder = msgspec.json.Decoder(_Glimpse)
    talk: list[Row] = []
    base, wanted = "", -1
    numbered = 0
    for row in objects(source):
        ident, messages = _glimpse(decoder, source.raw(row))
        match = _PART.fullmatch(ident)
        name, number = (match[1], int(match[2])) if match else ("", -1)
        if talk and match and name == base and number == wanted:
            talk.append(row)
        else:
            numbered += bool(talk and match and join == "offsets" and name == base and number == 1)
            if talk:
                yield talk
            talk = [row]
            # A part that is not the first belongs to a talk whose beginning is not here.
            base = name if number == 0 else ""
        wanted = number + (messages if join == "offsets" else 1)
    if talk:
        yield talk
    if numbered:
        trace.odd(
            'a row named ID_1 follows ID_0: if they are parts of one talk, set options.join_parts = "numbers"', numbered
        )


def _glimpse(decoder: msgspec.json.Decoder[_Glimpse], raw: bytes) -> tuple[str, int]:
    """Id and number of messages; what can't be read is told when its session is made."""
    try:
        found = decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return "", 0
    return ("" if found.id is None else str(found.id)), len(found.conversations) or len(found.items)


def _session(rows: Sequence[Placed], tally: Tally) -> Session:
    first = want_object(rows[0])
    said = [each for row in rows for each in _conversation(row)]
    system = first.get("system")
    messages = _messages(said, tally)
    if said and not messages:
        raise UnsendableError("no_user_message")
    if isinstance(system, str) and system:
        messages.insert(0, {"role": "system", "content": system})
    ident = first.get("id")
    named = isinstance(ident, str | int) and str(ident)
    name = str(ident) if named else f"line-{rows[0].line}"
    return Session(
        session_id=name.rpartition("_")[0] if len(rows) > 1 else name,
        turns=tuple(turns_of(check_messages(messages))),
        tools=_tools(first.get("tools"), tally),
        source_line=rows[0].line,
    )


def _conversation(row: Placed) -> list[Any]:
    value = want_object(row)
    for key in _KEYS:
        if isinstance(value.get(key), list):
            talk: list[Any] = value[key]
            return talk
    raise TraceError(
        f"{row.place}: has no list of conversations (keys: {shown_keys(value)})", hint="name the trace's `format`"
    )


def _messages(said: Sequence[Any], tally: Tally) -> list[Message]:
    """In OpenAI's form. What comes before the first user's message is left out, but for a system prompt; messages of
    one role that follow each other are one, with an empty line between (many chat templates take no others)."""
    messages: list[Message] = []
    calls: list[str] = []
    made = 0
    begun = False
    for each in said:
        role, text = _said(each)
        if role == "user":
            begun = True
        elif role != "system" and not begun:
            tally.odd("a talk begins with an answer, which is left out")
            continue
        if role == "call":
            call = _call(text, f"call_{made}", tally)
            role = "assistant"
            if call is not None:
                calls.append(f"call_{made}")
                made += 1
                if messages[-1]["role"] == "assistant":
                    messages[-1].setdefault("tool_calls", []).append(call)
                else:
                    messages.append(answer(None, [call]))
                continue
        if role == "tool":
            if calls:
                messages.append({"role": "tool", "tool_call_id": calls.pop(0), "content": text})
                continue
            tally.odd("a tool's result without a call in a field of its own is sent as a user's message")
            role = "user"
        if messages and messages[-1]["role"] == role and not messages[-1].get("tool_calls"):
            tally.odd("messages of one role that follow each other are sent as one")
            messages[-1]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    return messages


def _said(each: object) -> tuple[str, str]:
    """(our role, text). Raises UnsendableError."""
    if not isinstance(each, dict):
        raise UnsendableError("not_a_message")
    role, text = each.get("from", each.get("role")), each.get("value", each.get("content"))
    known = _ROLES.get(role.lower()) if isinstance(role, str) else None
    if known is None:
        raise UnsendableError("unknown_role")
    if not isinstance(text, str):
        raise UnsendableError("message_without_content")
    return known, text


def _call(text: str, ident: str, tally: Tally) -> dict[str, Any] | None:
    """A `function_call`, whose value is `{"name", "arguments"}` as JSON; None: it is plain text."""
    try:
        value = decode_json(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    return tool_call(ident, value["name"], value.get("arguments"), tally)


def _tools(raw: object, tally: Tally) -> tuple[dict[str, Any], ...] | None:
    """The tools of a talk, which are JSON in a string there."""
    if not raw:
        return None
    try:
        tools = decode_json(raw) if isinstance(raw, str) else raw
    except ValueError:
        tools = None
    if isinstance(tools, dict):
        tools = [tools]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        tally.odd("`tools` of a talk is no list of tools and is not sent")
        return None
    return tuple(tool if "function" in tool else {"type": "function", "function": tool} for tool in tools) or None
