"""Entries of one Claude Code session -> threads of model calls, each with what its request held.

An answer is written as one row per content block, all with one message id; the results of parallel calls are rows that
hang on the block that asked for them, so that a walk along `parentUuid` misses some: results are found by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from infersiege.records import Message, Turn
from infersiege.traces.files.private_values import token_count
from infersiege.traces.formats.claude_rows import Entry, answer_blocks, content_parts, result_content
from infersiege.traces.sessions.chat_parts import answer_of, user_message
from infersiege.traces.trace import ReadOptions, Tally

MAIN = ""
"""Key of the thread that is no subagent's."""


class ModelCall(msgspec.Struct, kw_only=True, eq=False):
    """One request of a thread."""

    entries: list[Entry]
    """Rows of its answer."""
    texts: list[str] = []
    tool_calls: list[dict[str, Any]] = []
    parent: ModelCall | None = None
    """The call whose answer its request continues; None: it begins anew (a thread's first, or after a compaction)."""
    asked: list[Entry] = []
    """Rows of users and tools between the two."""
    new: list[Message] = []
    """What they say."""
    turn: Turn | None = None
    """None: the file doesn't have what it asked."""
    continued: bool = False
    """Another request holds its answer."""

    @property
    def end_ns(self) -> int | None:
        return max((entry.time_ns for entry in self.entries if entry.time_ns is not None), default=None)

    @property
    def asked_ns(self) -> int | None:
        """When the last of what it asks was there."""
        return max((entry.time_ns for entry in self.asked if entry.time_ns is not None), default=None)


class Thread(msgspec.Struct, kw_only=True, eq=False):
    """The calls of the session itself, or of one subagent, in their order."""

    key: str
    entries: list[Entry] = []
    calls: list[ModelCall] = []
    callers: dict[str, ModelCall] = {}
    """Id of a tool call -> the call whose answer asked for it."""
    results: dict[str, Entry] = {}
    """Id of a tool call -> the row with its result."""
    takers: dict[str, ModelCall] = {}
    """Id of a tool call -> the call whose request brings its result."""


def threads_of(entries: Iterable[Entry]) -> list[Thread]:
    """The session's own thread first, where it has one, then subagents in the order of their first rows."""
    threads: dict[str, Thread] = {}
    roots: dict[str, str] = {}
    """Row of a subagent without an id -> the first row of its chain (files before Claude Code 2.0.29 or so)."""
    for entry in entries:
        key = MAIN
        if entry.sidechain:
            key = entry.agent or roots.get(entry.parent or "", entry.uuid)
            roots[entry.uuid] = key
        threads.setdefault(key, Thread(key=key)).entries.append(entry)
    return sorted(threads.values(), key=lambda thread: thread.key != MAIN)


def fill_thread(thread: Thread, options: ReadOptions, tally: Tally) -> None:
    """Find the thread's calls, what each of them asked, and what was answered. Raises TraceError."""
    owners = _gather(thread, tally)
    _link(thread, owners, tally)
    before: ModelCall | None = None
    for call in thread.calls:
        _ask(thread, call, before, options, tally)
        before = call if call.turn is not None else before
    thread.calls = [call for call in thread.calls if call.turn is not None]
    for call in thread.calls:
        assert call.turn is not None
        call.turn = msgspec.structs.replace(call.turn, recorded_answer=(_answer(thread, call),))


def _gather(thread: Thread, tally: Tally) -> dict[str, ModelCall]:
    """Calls by their message ids, and the places of tool calls and results. Gives the call of each answer's row."""
    calls: dict[str, ModelCall] = {}
    owners: dict[str, ModelCall] = {}
    for entry in thread.entries:
        if entry.kind == "user":
            for block in entry.blocks:
                ident = block.get("tool_use_id")
                if block.get("type") == "tool_result" and isinstance(ident, str):
                    thread.results.setdefault(ident, entry)
        if entry.kind != "assistant":
            continue
        if entry.made_up:
            tally.odd("messages of Claude Code in the model's place are left out")
            continue
        assert entry.message_id is not None
        call = calls.setdefault(entry.message_id, ModelCall(entries=[]))
        owners[entry.uuid] = call
        call.entries.append(entry)
        texts, tool_calls = answer_blocks(entry.blocks, entry.place, tally)
        call.texts += texts
        for tool in tool_calls:
            if tool["id"] not in thread.callers:
                thread.callers[tool["id"]] = call
                call.tool_calls.append(tool)
    thread.calls = list(calls.values())
    return owners


def _link(thread: Thread, owners: dict[str, ModelCall], tally: Tally) -> None:
    """What each call continues and asks. An answer that goes on without anything new between is one answer."""
    by_uuid = {entry.uuid: entry for entry in thread.entries}
    kept: list[ModelCall] = []
    for call in thread.calls:
        parent, asked = _walk(call, by_uuid, owners)
        if parent is None or asked or any(tool["id"] in thread.results for tool in parent.tool_calls):
            call.parent, call.asked = parent, asked
            kept.append(call)
            continue
        tally.odd("answers that went on without a new message are one answer")
        parent.entries += call.entries
        parent.texts += call.texts
        parent.tool_calls += call.tool_calls
        owners.update((entry.uuid, parent) for entry in call.entries)
        thread.callers.update((tool["id"], parent) for tool in call.tool_calls)
    thread.calls = kept


def _walk(
    call: ModelCall, by_uuid: dict[str, Entry], owners: dict[str, ModelCall]
) -> tuple[ModelCall | None, list[Entry]]:
    """(the call whose answer comes before it, the users' rows between), along `parentUuid`; not past a compaction."""
    asked: list[Entry] = []
    seen: set[str] = set()
    at = call.entries[0].parent
    while at is not None and at not in seen and at in by_uuid:
        seen.add(at)
        if at in owners:
            return (owners[at] if owners[at] is not call else None), asked[::-1]
        entry = by_uuid[at]
        if entry.kind == "user":
            asked.append(entry)
        if entry.boundary or entry.summary:
            break
        at = entry.parent
    return None, asked[::-1]


def _ask(thread: Thread, call: ModelCall, before: ModelCall | None, options: ReadOptions, tally: Tally) -> None:
    """Give the call its turn; none where the file doesn't have what it asked."""
    parent = call.parent if call.parent is not None and call.parent.turn is not None else None
    call.parent = parent
    call.new = _new_messages(thread, call, tally)
    if parent is not None:
        parent.continued = True
    messages = call.new
    if parent is not before and parent is not None:
        tally.odd("lines that were left by an edit or a rewind are sent before the line that went on")
        messages = _whole(thread, call)
    if not messages:
        tally.odd("answers whose question is not in the file are left out")
        return
    prompt, output = _usage(call)
    call.turn = Turn(
        messages=tuple(messages),
        replaces_history=before is not None and parent is not before,
        asked_prompt_tokens=prompt or None,
        asked_output_tokens=options.output_tokens(output) or None,
    )


def _whole(thread: Thread, call: ModelCall) -> list[Message]:
    """All that the request of a call holds."""
    line = [call]
    while (parent := line[-1].parent) is not None:
        line.append(parent)
    messages: list[Message] = []
    for number, part in enumerate(reversed(line)):
        if number:
            messages.append(_answer(thread, line[-number]))
        messages += part.new
    return messages


def _new_messages(thread: Thread, call: ModelCall, tally: Tally) -> list[Message]:
    """What is new in the request: results of its parent's tool calls in their order, then what users said."""
    messages: list[Message] = []
    images: list[dict[str, Any]] = []
    brought: list[Entry] = []
    for tool in call.parent.tool_calls if call.parent is not None else ():
        entry = thread.results.get(tool["id"])
        if entry is None:
            tally.odd("tool calls without a result are left out of the history")
            continue
        block = next(block for block in entry.blocks if block.get("tool_use_id") == tool["id"])
        text, more = result_content(block, tally)
        messages.append({"role": "tool", "tool_call_id": tool["id"], "content": text})
        images += more
        brought.append(entry)
        thread.takers.setdefault(tool["id"], call)
    parts = [part for entry in call.asked for part in content_parts(entry.blocks, tally)]
    if images or parts:
        messages.append(user_message([*images, *parts]))
    call.asked = [*call.asked, *brought]
    return messages


def _answer(thread: Thread, call: ModelCall) -> Message:
    """The answer as the next request holds it: without the calls that nothing answered."""
    calls = [tool for tool in call.tool_calls if not call.continued or tool["id"] in thread.results]
    return answer_of(call.texts, calls)


def _usage(call: ModelCall) -> tuple[int, int]:
    """(prompt, output) tokens of the call: the same in all its rows, but for the output, which grows with them."""
    prompt = output = 0
    for entry in call.entries:
        usage = entry.usage or {}
        keys = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        prompt = max(prompt, sum(token_count(usage, key, entry.place) for key in keys))
        output = max(output, token_count(usage, "output_tokens", entry.place))
    return prompt, output


def first_text(entries: Sequence[Entry]) -> str | None:
    """What the first user's row says."""
    for entry in entries:
        if entry.kind == "user":
            return next((block.get("text") for block in entry.blocks if block.get("type") == "text"), None)
    return None
