"""MT-bench questions, JSON Lines: `{"question_id", "category", "turns": [...], "reference"?}`.

Turns are what the user says. Nothing is recorded of the answers, so that the engine's own are in the history in both
modes, and a session ends at a failed turn. References are for judges and are not sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from infersiege.errors import TraceError
from infersiege.records import Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.objects import objects
from infersiege.traces.files.source import Source
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.trace import ReadOptions, Tally

NAME = "mt-bench"

OPTIONS: dict[str, Option] = {
    "category": Option(default="", meaning="keep questions of this category only (`writing`); empty: all"),
}


def sniff(head: Head) -> bool:
    return {"question_id", "turns"} <= head.outline.keys


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for rows without an id or turns."""
    wanted = str(options.values["category"])

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        place, line, _ = rows[0]
        row = want_object(rows[0])
        ident, turns = row.get("question_id"), row.get("turns")
        if isinstance(ident, bool) or not isinstance(ident, str | int):
            raise TraceError(
                f"{place}: question_id is missing or neither a number nor a string", hint="is it MT-bench?"
            )
        if not isinstance(turns, list):
            raise TraceError(f"{place}: turns is no list", hint='a row is like {"question_id": 1, "turns": ["Hi"]}')
        if wanted and row.get("category") != wanted:
            raise UnsendableError("other_category")
        if not turns:
            raise UnsendableError("no_messages")
        asked = [_text(turn, number, place) for number, turn in enumerate(turns)]
        return Session(
            session_id=f"question-{ident}",
            turns=tuple(Turn(messages=({"role": "user", "content": text},)) for text in asked),
            source_line=line,
        )

    return IndexedTrace(source, options, format=NAME, make=make).read_rows(objects(source))


def _text(turn: object, number: int, place: str) -> str:
    """Of a turn as it is there, or under `content` as in the questions of Arena-Hard. Raises TraceError."""
    text = turn.get("content") if isinstance(turn, dict) else turn
    if not isinstance(text, str):
        raise TraceError(f"{place}: turn {number} is a {type(turn).__name__} without text", hint="a turn is a string")
    return text
