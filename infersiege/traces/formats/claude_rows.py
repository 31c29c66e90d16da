"""Rows of Claude Code's session files: which lines belong to which session, and what a line says.

The format has no published schema; docs/traces-formats/claude-code.md says what each fact was checked against.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec
import numpy as np

from infersiege.errors import TraceError
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.private_values import moment_ns, want_string
from infersiege.traces.files.row_groups import Places, in_groups, mark
from infersiege.traces.files.source import Row, Source
from infersiege.traces.sessions.chat_parts import image_part, text_part, tool_call
from infersiege.traces.trace import Tally

_HINT = "docs/traces-formats/claude-code.md has the format"

META_SUFFIX = ".meta.json"
"""Of the file beside a subagent's, which names the tool call that started it."""


class _PeekedMessage(msgspec.Struct):
    id: str | None = None


class _Peek(msgspec.Struct):
    """What tells the session of a line."""

    type: str
    session: str | None = msgspec.field(default=None, name="sessionId")
    message: _PeekedMessage | None = None


_peek = msgspec.json.Decoder(_Peek)


def session_rows(source: Source, trace: IndexedTrace) -> Iterator[list[Row]]:
    """The rows of each session, in the order of their first row.

    A row without a session (titles, snapshots) belongs to that of the rows around it. In a folder, files other than
    transcripts are passed over, but for those that say who started a subagent. Raises TraceError for what is no row.
    """
    places, homes = Places(), array("q")
    """Rows, and of each the mark of its session."""
    answers, homes_of_answers = array("q"), array("q")
    current: int | None = None
    for path, rows in _files(source):
        waiting = 0
        is_meta = path.endswith(META_SUFFIX)
        session = current if is_meta else None
        for row in rows:
            peeked = _Peek(type="") if is_meta else _peeked(source, row)
            if peeked.session is not None:
                session = mark(peeked.session)
                if peeked.type == "assistant" and peeked.message is not None and peeked.message.id is not None:
                    answers.append(mark(peeked.message.id))
                    homes_of_answers.append(session)
            if session is not None:
                for number in range(len(homes) - waiting, len(homes)):
                    homes[number] = session
                waiting = 0
            elif not is_meta:
                waiting += 1
            else:
                continue
            places.append(row)
            homes.append(session or 0)
        for number in range(len(homes) - waiting, len(homes)):
            homes[number] = mark(f"\0{path}")
        current = session
    copied = _copied(answers, homes_of_answers)
    if copied:
        trace.odd("rows of an answer that is in another session, too (resumed sessions begin with a copy)", copied)
    for numbers in in_groups(homes):
        yield [places[number] for number in numbers]


def _copied(answers: array[int], homes: array[int]) -> int:
    """Rows of answers that another session had first."""
    if not answers:
        return 0
    ids = np.frombuffer(answers, dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    ids, sessions = ids[order], np.frombuffer(homes, dtype=np.int64)[order]
    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    firsts = np.repeat(sessions[starts], np.diff(np.append(starts, len(ids))))
    return int(np.count_nonzero(sessions != firsts))


def _files(source: Source) -> Iterator[tuple[str, Iterator[Row]]]:
    """(path, rows) of each transcript; of a meta file it is one row. Rows must be taken before the next file is."""
    folder = source.path.is_dir()
    rows = _Ahead(source.rows())
    for whole in source.documents():
        path = source.place(whole).rpartition(":")[0]
        if folder and path.endswith(META_SUFFIX):
            yield path, iter((whole,))
        if not folder or ".jsonl" in PurePath(path).suffixes:
            yield path, rows.until(whole.end)
        for _ in rows.until(whole.end):
            pass


class _Ahead:
    """Rows, of which the next one is known."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._row = next(rows, None)

    def until(self, end: int) -> Iterator[Row]:
        """Rows that begin before a byte."""
        while self._row is not None and self._row.start < end:
            row, self._row = self._row, next(self._rows, None)
            yield row


def _peeked(source: Source, row: Row) -> _Peek:
    try:
        return _peek.decode(source.raw(row))
    except (msgspec.DecodeError, RecursionError) as error:
        place = source.place(row)
        value = want_object(Placed(place, row.line, source.json(row)))
        want_string(value, "type", place)
        raise TraceError(f"{place}: {error}", hint="is this a session of Claude Code?") from None


class Entry(msgspec.Struct, kw_only=True):
    """One row that has a place in the conversation: a user's, the model's, or one between them."""

    place: str
    kind: str
    """`user`, `assistant`, `system`, or another; of the others only the links count."""
    uuid: str
    parent: str | None
    time_ns: int | None
    agent: str | None
    """Of a subagent's file."""
    sidechain: bool
    message_id: str | None = None
    """Rows of one answer share it."""
    blocks: list[dict[str, Any]] = []
    usage: dict[str, Any] | None = None
    made_up: bool = False
    """An answer that no model gave: Claude Code's own message about an error."""
    boundary: bool = False
    """What stands before it is not sent any more."""
    summary: bool = False
    """What is sent instead."""
    result: dict[str, Any] = {}
    """What the tool said beside its text, where it is an object."""


def entry_of(row: Placed) -> Entry | None:
    """None: the row has no place in the conversation. Raises TraceError."""
    value = want_object(row)
    kind = want_string(value, "type", row.place)
    if not isinstance(value.get("uuid"), str):
        if kind in ("user", "assistant"):
            want_string(value, "uuid", row.place)
        return None
    parent = value.get("parentUuid") or value.get("logicalParentUuid")
    result = value.get("toolUseResult")
    entry = Entry(
        place=row.place,
        kind=kind,
        uuid=value["uuid"],
        parent=parent if isinstance(parent, str) else None,
        time_ns=moment_ns(value, "timestamp", row.place) if "timestamp" in value else None,
        agent=value["agentId"] if isinstance(value.get("agentId"), str) else None,
        sidechain=value.get("isSidechain") is True,
        boundary=kind == "system" and value.get("subtype") == "compact_boundary",
        summary=value.get("isCompactSummary") is True,
        result=result if isinstance(result, dict) else {},
    )
    if kind in ("user", "assistant"):
        _read_message(entry, value, row.place)
    return entry


def _read_message(entry: Entry, value: dict[str, Any], place: str) -> None:
    message = value.get("message")
    if not isinstance(message, dict):
        raise TraceError(f"{place}: message is a {type(message).__name__}, an object is wanted", hint=_HINT)
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise TraceError(f"{place}: message.content is no text and no list of blocks", hint=_HINT)
    entry.blocks = content
    if entry.kind == "assistant":
        ident = message.get("id", value.get("requestId"))
        entry.message_id = ident if isinstance(ident, str) else entry.uuid
        usage = message.get("usage")
        if usage is not None and not isinstance(usage, dict):
            raise TraceError(f"{place}: message.usage is a {type(usage).__name__}, an object is wanted", hint=_HINT)
        entry.usage = usage
        entry.made_up = message.get("model") == "<synthetic>" or value.get("isApiErrorMessage") is True


def content_parts(blocks: list[dict[str, Any]], tally: Tally) -> list[dict[str, Any]]:
    """Texts and images of a user's blocks as OpenAI's parts."""
    parts = []
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            parts.append(text_part(block["text"]))
        elif kind == "image" and (url := _image_url(block.get("source"))) is not None:
            parts.append(image_part(url))
        elif kind != "tool_result":
            tally.odd("a block that is no text, image or tool result is not sent")
    return parts


def _image_url(source: object) -> str | None:
    if not isinstance(source, dict):
        return None
    if isinstance(source.get("data"), str):
        return f"data:{source.get('media_type', 'image/png')};base64,{source['data']}"
    return source["url"] if isinstance(source.get("url"), str) else None


def result_content(block: dict[str, Any], tally: Tally) -> tuple[str, list[dict[str, Any]]]:
    """Text of a tool's result, and its images: a tool message holds text only, so they go to the user message."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        return msgspec.json.encode(content).decode(), []
    parts = content_parts([part for part in content if isinstance(part, dict)], tally)
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n\n".join(texts), [part for part in parts if part["type"] != "text"]


def answer_blocks(blocks: list[dict[str, Any]], place: str, tally: Tally) -> tuple[list[str], list[dict[str, Any]]]:
    """(texts, tool calls) of an answer. Raises TraceError for a call without id or name."""
    texts, calls = [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "tool_use":
            name = want_string(block, "name", place)
            calls.append(tool_call(want_string(block, "id", place), name, block.get("input", {}), tally))
        elif kind in ("thinking", "redacted_thinking"):
            tally.odd("thinking of recorded answers is not sent back")
        else:
            tally.odd("a block of an answer that is no text or tool call is not sent back")
    return texts, calls
