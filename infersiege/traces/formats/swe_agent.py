"""SWE-agent trajectories (.traj): one JSON document a file, `{"history": [...], "trajectory": [...]}`; folders of them.

`history` holds the messages, `trajectory` one step for each answer with the `execution_time` of its action in seconds:
the tool's delay before the next request. Demonstrations (`is_demo`) are context of the first request. An agent sees
only the entries that bear its name, so that those of others are left out. Requests are those of the history: what a
history processor cut out of single requests is in the file at most as `query` of a step, which is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from infersiege.records import Message, Session
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.source import Source
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.chat_parts import answer
from infersiege.traces.sessions.trajectory import (
    Found,
    Said,
    cut,
    documents,
    name_of,
    openai_calls,
    read_trajectories,
    seconds_ns,
    shaped,
)
from infersiege.traces.trace import ReadOptions, Tally

NAME = "swe-agent"

OPTIONS: dict[str, Option] = {}


class _Entry(msgspec.Struct):
    """One entry of `history`."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    agent: str | None = None
    action: str | None = None
    is_demo: bool | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_ids: list[str] | None = None
    tool_call_id: str | None = None


class _Step(msgspec.Struct):
    """One step of `trajectory`: what it holds besides is in the history too."""

    action: str | None = None
    execution_time: float | None = None


class _Run(msgspec.Struct):
    history: list[_Entry]
    trajectory: list[_Step] = []


class _File(msgspec.Struct):
    """A run, or (where several attempts were made) that of the chosen attempt."""

    history: list[_Entry] | None = None
    trajectory: list[_Step] = []
    attempts: list[_Run] = []


def sniff(head: Head) -> bool:
    keys, text = head.outline.keys, head.text
    if head.outline.array or '"action"' not in text:
        return False
    steps = "trajectory" in keys and '"thought"' in text
    return steps or (("attempts" in keys or keys == {"history"}) and '"role"' in text)


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError with the file of what is no such document."""

    def make(row: Placed, tally: Tally) -> Found:
        file: _File = row.value
        run = _run(file, tally)
        said, agent = _said(run, row.place, tally)
        turns = cut(said, options, place=row.place)
        name = name_of(source, row.place)
        return Found(Session(session_id=name, turns=turns, source_line=row.line), agent)

    rows = documents(source, source.head())
    return read_trajectories(source, options, rows, make, format=NAME, decode=shaped(_File))


def _run(file: _File, tally: Tally) -> _Run:
    """Raises UnsendableError where there is none."""
    if file.history is not None:
        unplayed = len(file.attempts) - 1
        run = _Run(file.history, file.trajectory)
    elif file.attempts:
        unplayed = len(file.attempts) - 1
        run = file.attempts[-1]
    else:
        raise UnsendableError("no_messages")
    if unplayed > 0:
        tally.odd("attempts beside the one that was chosen are not played", unplayed)
    return run


def _said(run: _Run, place: str, tally: Tally) -> tuple[list[Said], str]:
    """(what was said, the agent's name)."""
    agent = next((entry.agent for entry in run.history if not entry.is_demo), None)
    own = [entry for entry in run.history if entry.agent == agent]
    if len(own) < len(run.history):
        tally.odd("entries of other agents are not in this agent's requests", len(run.history) - len(own))
    waits = _waits(own, run.trajectory, place)
    said = []
    for entry in own:
        for message in _messages(entry, tally):
            given = bool(entry.is_demo)
            wait_ns = None if given or entry.role != "assistant" else next(waits)
            said.append(Said(message, given=given, wait_ns=wait_ns))
    return said, agent or ""


def _messages(entry: _Entry, tally: Tally) -> Iterator[Message]:
    content = entry.content
    if entry.role == "assistant":
        yield answer(content, openai_calls(entry.tool_calls, tally))
        return
    if isinstance(content, list):
        content = [{key: part[key] for key in part if key != "cache_control"} for part in content]
    if entry.role != "tool":
        yield {"role": entry.role, "content": content or ""}
        return
    idents = entry.tool_call_ids or ([] if entry.tool_call_id is None else [entry.tool_call_id])
    if not idents:
        raise UnsendableError("tool_result_without_call")
    for number, ident in enumerate(idents):
        # One observation of several calls: what they said together is the first one's result.
        yield {"role": "tool", "tool_call_id": ident, "content": (content or "") if number == 0 else ""}


def _waits(own: Sequence[_Entry], steps: Sequence[_Step], place: str) -> Iterator[int | None]:
    """For each answer: how long its action took. The trajectory may have steps that the history lacks (failed queries):
    then an answer's step is the next one with its action."""
    answers = [entry for entry in own if entry.role == "assistant" and not entry.is_demo]
    by_number = len(answers) == len(steps)
    at = 0
    for entry in answers:
        found = at if by_number else next((n for n in range(at, len(steps)) if steps[n].action == entry.action), None)
        if found is None:
            yield None
            continue
        yield seconds_ns(steps[found].execution_time, f"execution_time of step {found}", place)
        at = found + 1
