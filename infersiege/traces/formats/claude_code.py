"""Claude Code sessions, JSON Lines: one file of a session, or a folder of them with the subagents' files.

A session is one line of requests in the order in which they were made. Where the user edited a message or went back,
the line that was left was sent, too: it stays, and the request that went on elsewhere replaces the history. So does a
request after a compaction. A subagent is a branch, from the answer whose tool call started it to the request that
brings its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

import msgspec

from infersiege.records import Branch, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.source import Source
from infersiege.traces.files.values import decode_json
from infersiege.traces.formats.claude_rows import META_SUFFIX, Entry, entry_of, session_rows
from infersiege.traces.formats.claude_threads import MAIN, ModelCall, Thread, fill_thread, first_text, threads_of
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.coding_agents import FILL, filled
from infersiege.traces.trace import ReadOptions, Tally, Trace

NAME = "claude-code"

OPTIONS: dict[str, Option] = {"fill": FILL}

_SNIFFED_LINES = 40
"""A file may begin with titles, snapshots and modes."""
_SUBAGENT_TOOLS = frozenset({"Task", "Agent"})


def sniff(head: Head) -> bool:
    first = head.row if head.row is not None else head.outline.values
    if not isinstance(first, dict) or not isinstance(first.get("type"), str) or "payload" in first:
        return False
    if _is_threaded(head.outline.keys):
        return True
    for line in head.text.split("\n", _SNIFFED_LINES)[:_SNIFFED_LINES]:
        try:
            row = decode_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and _is_threaded(row.keys()):
            return True
    return False


def _is_threaded(keys: Iterable[str]) -> bool:
    return {"type", "uuid", "parentUuid", "sessionId"} <= set(keys)


def read(source: Source, options: ReadOptions) -> Trace:
    """Raises TraceError for rows that are none of Claude Code's; their text is in no message."""
    scope = f"{NAME}:{source.sha256()[:16]}"

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        return _session(rows, scope, options, tally)

    trace = IndexedTrace(source, options, format=NAME, make=make)
    trace.add_sessions(session_rows(source, trace))
    return trace.finish()


def _session(rows: Sequence[Placed], scope: str, options: ReadOptions, tally: Tally) -> Session:
    """Raises UnsendableError where no request of it can be sent."""
    starters: dict[str, str] = {}
    entries: list[Entry] = []
    session_id = None
    for row in rows:
        path = row.place.rpartition(":")[0]
        if path.endswith(META_SUFFIX):
            if isinstance(row.value, dict) and isinstance(row.value.get("toolUseId"), str):
                starters[PurePath(path).name.removeprefix("agent-").removesuffix(META_SUFFIX)] = row.value["toolUseId"]
            continue
        entry = entry_of(row)
        if session_id is None and isinstance(row.value.get("sessionId"), str):
            session_id = row.value["sessionId"]
        if entry is not None:
            entries.append(entry)
    threads = threads_of(entries)
    for thread in threads:
        fill_thread(thread, options, tally)
    threads = [thread for thread in threads if thread.calls]
    if not threads:
        raise UnsendableError("no_model_call")
    links = _links(threads, starters, tally)
    return _built(session_id or f"line-{rows[0].line}", rows[0].line, threads, links, scope, options)


class _Link(msgspec.Struct, frozen=True):
    """Where a subagent's thread begins and ends."""

    after: ModelCall | None = None
    joined_by: ModelCall | None = None


def _links(threads: Sequence[Thread], starters: dict[str, str], tally: Tally) -> list[_Link]:
    """Of each thread but the first. By the file beside the subagent's, by the tool's result that names it, by the
    prompt that is its first message; else by time."""
    starters = dict(starters)
    background: set[str] = set()
    for thread in threads:
        for ident, entry in thread.results.items():
            agent = entry.result.get("agentId")
            if isinstance(agent, str):
                starters.setdefault(agent, ident)
            if entry.result.get("status") == "async_launched" or entry.result.get("isAsync") is True:
                background.add(ident)
    taken = set(starters.values())
    prompts: dict[object, list[str]] = {}
    for thread in threads:
        for call in thread.calls:
            for tool_id, prompt in _subagent_prompts(call):
                if tool_id not in taken:
                    prompts.setdefault(prompt, []).append(tool_id)
    links = []
    for thread in threads[1:]:
        started_by = starters.get(thread.key)
        same = prompts.get(first_text(thread.entries), [])
        if started_by is None and same:
            started_by = same.pop(0)
        link = _link(threads, thread, started_by, joins=started_by not in background)
        if link is None:
            tally.odd("subagents whose start is not in the file start by their time, and nothing waits for them")
            link = _Link(after=_latest_before(threads[0], thread))
        links.append(link)
    return links


def _subagent_prompts(call: ModelCall) -> list[tuple[str, str]]:
    found = []
    for entry in call.entries:
        for block in entry.blocks:
            given = block.get("input")
            if (
                block.get("name") in _SUBAGENT_TOOLS
                and isinstance(given, dict)
                and isinstance(given.get("prompt"), str)
            ):
                found.append((str(block.get("id")), given["prompt"]))
    return found


def _link(threads: Sequence[Thread], thread: Thread, ident: str | None, *, joins: bool) -> _Link | None:
    for other in threads:
        call = other.callers.get(ident or "")
        if call is not None and other is not thread and call.turn is not None:
            return _Link(after=call, joined_by=other.takers.get(ident or "") if joins else None)
    return None


def _latest_before(main: Thread, thread: Thread) -> ModelCall | None:
    start_ns = thread.calls[0].asked_ns
    ended = [
        call for call in main.calls if call.end_ns is not None and start_ns is not None and call.end_ns <= start_ns
    ]
    return ended[-1] if ended else None


def _built(
    session_id: str,
    line: int,
    threads: Sequence[Thread],
    links: Sequence[_Link],
    scope: str,
    options: ReadOptions,
) -> Session:
    numbers = {id(call): number for number, call in enumerate(call for thread in threads for call in thread.calls)}
    joined: dict[int, list[ModelCall]] = {}
    for thread, link in zip(threads[1:], links, strict=True):
        if link.joined_by is not None:
            joined.setdefault(id(link.joined_by), []).append(thread.calls[-1])
    start_ns = threads[0].calls[0].asked_ns
    lines = []
    for number, thread in enumerate(threads):
        before = None if number == 0 else links[number - 1].after
        turns = []
        for call in thread.calls:
            waits = [other.end_ns for other in (before, *joined.get(id(call), ())) if other is not None]
            turns.append(_delayed(call, waits or [start_ns]))
            before = call
        ident = 0 if thread.key == MAIN else 1
        lines.append(tuple(filled(turns, scope=scope, ident=ident, options=options)))
    return Session(
        session_id=session_id,
        turns=lines[0],
        branches=tuple(
            Branch(
                turns=turns,
                after=None if link.after is None else numbers[id(link.after)],
                joined_by=None if link.joined_by is None else numbers[id(link.joined_by)],
            )
            for turns, link in zip(lines[1:], links, strict=True)
        ),
        arrival_ns=start_ns,
        source_line=line,
    )


def _delayed(call: ModelCall, ends_ns: Sequence[int | None]) -> Turn:
    """The turn with its delay: from the end of the last thing it waits for to when all it asks was there.

    Rows are flushed out of order at times: never below 0.
    """
    assert call.turn is not None
    known = [end_ns for end_ns in ends_ns if end_ns is not None]
    if call.asked_ns is None or not known:
        return call.turn
    return msgspec.structs.replace(call.turn, delay_ns=max(0, call.asked_ns - max(known)))
