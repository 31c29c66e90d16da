"""What tests of traces with texts share: files of rows, the requests of a session, messages with tool calls."""

from __future__ import annotations

import json
from pathlib import Path

from infersiege.records import Session
from infersiege.traces import Conversation, Synthesizer, Trace

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}


def write(path: Path, *rows: object) -> Path:
    """JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def requests(trace: Trace, index: int = 0) -> list[list[dict[str, object]]]:
    """The messages of each request of a session, whose live answers all are `live`."""
    conversation = Conversation(trace.session(index), synthesizer=Synthesizer(1))
    found = []
    while (turn := conversation.next_turn()) is not None:
        found.append(turn.messages)
        conversation.answered("live")
    return found


def sessions(trace: Trace) -> list[Session]:
    assert trace.sessions is not None
    return [trace.session(index) for index in range(trace.sessions)]


def calling(*idents: str, arguments: object = "{}") -> dict[str, object]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": "f", "arguments": arguments}} for i in idents
        ],
    }


def result(ident: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": ident, "content": "r"}


def talk(count: int) -> list[dict[str, object]]:
    """Messages of a user and an assistant in turn, numbered."""
    return [{"role": ("user", "assistant")[k % 2], "content": str(k)} for k in range(count)]
