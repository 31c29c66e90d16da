"""tau-bench results: a JSON array of `{"task_id", "trial", "reward", "traj": [OpenAI messages]}`.

The file has no tool schemas, so that minimal ones are made from the calls seen in it. Its sessions are one agent with
one policy prompt, so that they share their prefix.
"""

from __future__ import annotations

from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Message, Session
from infersiege.traces.chat import UnsendableError, check_messages, turns_of
from infersiege.traces.head import Head
from infersiege.traces.options import OptionTable
from infersiege.traces.source import Source
from infersiege.traces.trace import ReadOptions, SessionList, Tally

NAME = "tau-bench"
OPTIONS: OptionTable = {}


def sniff(head: Head) -> bool:
    return head.text.lstrip()[:1] == "[" and '"traj"' in head.text


def read(source: Source, options: ReadOptions) -> SessionList:
    """Raises TraceError where the file is no JSON array of trajectories."""
    tally = Tally()
    found: list[tuple[int, str, list[Message]]] = []
    rows = 0
    for index, row in enumerate(_trajectories(source)):
        if options.limit is not None and len(found) >= options.limit:
            break
        rows += 1
        if not isinstance(row, dict) or not isinstance(row.get("traj"), list):
            raise TraceError(f"{source.path}: entry {index} has no `traj`", hint="name the trace's `format`")
        ident = f"task-{row.get('task_id', index)}-trial-{row.get('trial', 0)}"
        try:
            messages = check_messages(row["traj"])
            turns_of(messages, keep_unanswered=False)
        except UnsendableError as reason:
            tally.skip(str(reason), f"entry {index}")
            continue
        found.append((index, ident, messages))
    tally.require_sessions(len(found), str(source.path), rows)
    tools = derive_tools([messages for _, _, messages in found])
    if tools:
        tally.odd(f"{len(tools)} tool schemas were made from the calls, since the file has none")
    sessions = [
        Session(
            session_id=ident,
            # The simulated user's last word was never sent to the model.
            turns=tuple(turns_of(messages, keep_unanswered=False)),
            tools=tools or None,
            source_line=index,
        )
        for index, ident, messages in found
    ]
    return SessionList(
        name=options.name, format=NAME, sha256=source.sha256(), rows=rows, sessions=sessions, tally=tally
    )


def derive_tools(conversations: list[list[Message]]) -> tuple[dict[str, Any], ...]:
    """A schema for each function called: its argument names, their JSON types, and as required what every call gave."""
    seen: dict[str, dict[str, set[str]]] = {}
    always: dict[str, set[str]] = {}
    for messages in conversations:
        for message in messages:
            for call in message.get("tool_calls") or ():
                name = call["function"]["name"]
                arguments = _arguments(call["function"].get("arguments"))
                types = seen.setdefault(name, {})
                for key, value in arguments.items():
                    types.setdefault(key, set()).add(_json_type(value))
                always[name] = always.get(name, set(arguments)) & set(arguments)
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": name.replace("_", " "),
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": min(types)} if len(types) == 1 else {}
                        for key, types in sorted(seen[name].items())
                    },
                    "required": sorted(always[name]),
                },
            },
        }
        for name in sorted(seen)
    )


def _trajectories(source: Source) -> list[Any]:
    return [source.json(row) for row in source.elements()]


def _arguments(raw: object) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw) if isinstance(raw, str) else raw
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    return "array" if isinstance(value, list) else "object"
