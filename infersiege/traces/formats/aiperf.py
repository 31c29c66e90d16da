"""AIPerf's multi-turn JSON Lines, and `dag_jsonl` with forks and spawns.

    {"session_id": "a", "turns": [{"text": "Hi", "output_length": 20}, {"texts": ["And?"], "delay": 500}]}
    {"session_id": "root", "turns": [{"messages": [...], "spawns": [{"children": ["c"], "join_at": 2}]}, {...}, {...}]}

Times are milliseconds. Each turn is a request that adds to the history; with
`context_mode: message_array_with_responses` each turn is the whole request. `delay` counts from the end of the answer
before; with `timestamp`s the distance of two turns' starts is taken, since nothing says how long answers took.

A turn's `forks` are other sessions of the file that go on from the history with this turn's answer; they end the
parent, or run beside it (`background`), and nothing waits for them. Its `spawns` start afresh; the parent's turn
`join_at` (else the one after) waits for them. `pre_session_spawns` start with the session. All of that is one session
here, named after its root: children are branches. An `orchestrator` asks nothing itself: its first child is the main
line; one with `rounds` is skipped.

Facts: docs/benchmark-modes/dag.md and docs/tutorials of ai-dynamo/aiperf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Branch, Message, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.source import Source
from infersiege.traces.files.values import shown, shown_key, want_int, want_number
from infersiege.traces.formats.aiperf_graph import Child, Graph, children_of, ident_of, raw_turns, want_list
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError, check_messages, request_extra
from infersiege.traces.sessions.chat_parts import content_of, image_part, text_part
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "aiperf-multi-turn"

_HINT = "docs/traces-formats/aiperf-multi-turn.md has the format"

OPTIONS: dict[str, Option] = {}

_MOST_TURNS = 20_000
"""Of one session: children that many spawn, which spawn others, can multiply without bound."""
_DEEPEST = 200

_WHOLE = "message_array_with_responses"
_MEDIA = ("image", "images", "audio", "audios", "video", "videos")
_TURN_KEYS = frozenset({"text", "texts", "messages", "timestamp", "delay", "output_length", *_MEDIA})
_TURN_FIELDS = frozenset(
    {*_TURN_KEYS, "type", "role", "extra", "tools", "forks", "spawns", "model", "session_id", "max_tokens"}
)


def sniff(head: Head) -> bool:
    row = head.row
    if not isinstance(row, dict):
        return False
    if row.get("orchestrator") is True and "session_id" in row:
        return True
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], dict) or "llm_calls" in turns[0]:
        return False
    if "recorded_answer" in turns[0] or "source_line" in row:
        return False
    return bool({"text", "texts", *_MEDIA} & turns[0].keys()) or (
        "messages" in turns[0] and "session_id" in row and "infersiege_trace" not in row
    )


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for wrong rows, and for children that are not in the file or are their own ancestors."""
    graph = Graph(source)

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        return _Reader(rows, tally, options).session()

    trace = IndexedTrace(source, options, format=NAME, make=make, unit_hint="all times are milliseconds")
    trace.add_sessions(graph.trees())
    return trace.finish()


class _Read(NamedTuple):
    """The turns of one row."""

    turns: tuple[Turn, ...]
    numbers: list[int]
    """Of each turn of the row, the number of the turn here whose end is its end."""
    arrival_ns: int | None


class _Reader:
    """The rows of one tree, made into a session."""

    def __init__(self, rows: Sequence[Placed], tally: Tally, options: ReadOptions) -> None:
        self._rows = {ident_of(row): row for row in rows}
        self._root = rows[0]
        self._tally = tally
        self._options = options
        self._branches: list[Branch] = []
        self._next = 0

    def session(self) -> Session:
        """Raises TraceError and UnsendableError."""
        children = children_of(self._root)
        root = want_object(self._root)
        if root.get("orchestrator") is True:
            if root.get("rounds") is not None:
                raise UnsendableError("rounds_without_requests")
            if not children:
                raise UnsendableError("no_requests")
            main, *rest = children
            read = self._turns(self._rows[main.session_id])
            self._next = len(read.turns)
            self._start(children_of(self._rows[main.session_id]), read, 0, after=None)
            self._start(rest, None, 0, after=None)
        else:
            read = self._turns(self._root)
            self._next = len(read.turns)
            self._start(children, read, 0, after=None)
        return Session(
            session_id=ident_of(self._root),
            # The session's start is its arrival: nothing goes before its first turn.
            turns=(msgspec.structs.replace(read.turns[0], delay_ns=0), *read.turns[1:]),
            branches=tuple(self._branches),
            arrival_ns=read.arrival_ns,
            source_line=self._root.line,
        )

    def _start(
        self, children: Sequence[Child], parent: _Read | None, first: int, *, after: int | None, depth: int = 0
    ) -> None:
        """Branches for the children of a row whose first turn has the number `first` and starts after `after`."""
        for child in children:
            row = self._rows[child.session_id]
            read = self._turns(row)
            start = after
            joined_by = None
            if parent is not None and child.turn is not None:
                start = first + parent.numbers[child.turn]
            if parent is not None and child.joined_by is not None and child.turn is not None:
                joined = parent.numbers[child.joined_by]
                joined_by = first + joined if joined > parent.numbers[child.turn] else None
            number = self._next
            self._next += len(read.turns)
            if self._next > _MOST_TURNS or depth > _DEEPEST:
                raise TraceError(
                    f"{self._root.place}: session {ident_of(self._root)[:40]!r} has more than {_MOST_TURNS:,} turns, "
                    f"or more than {_DEEPEST} sessions below each other",
                    hint=_HINT,
                )
            branch = Branch(turns=read.turns, after=start, joined_by=joined_by, inherits=child.inherits)
            self._branches.append(branch)
            self._start(children_of(row), read, number, after=start, depth=depth + 1)

    def _turns(self, row: Placed) -> _Read:
        value = want_object(row)
        if value.get("orchestrator") is True:
            raise UnsendableError("orchestrator_below_another")
        whole = value.get("context_mode") == _WHOLE
        turns: list[Turn] = []
        numbers: list[int] = []
        waiting: list[Message] = []
        before_ms: float | int | None = None
        arrival_ns: int | None = None
        for number, raw in enumerate(raw_turns(row)):
            place = f"{row.place}: turns[{number}]"
            delay_ns, stamp_ms = _delay(raw, before_ms, place)
            if number == 0 and stamp_ms is not None:
                arrival_ns = round(stamp_ms * 1_000_000)
            before_ms = stamp_ms
            messages = self._messages(raw, place)
            role = messages[-1]["role"]
            if "messages" not in raw and role == "assistant":
                if not turns:
                    raise UnsendableError("answer_without_request")
                answered = (*turns[-1].recorded_answer, *messages)
                turns[-1] = msgspec.structs.replace(turns[-1], recorded_answer=answered)
            elif "messages" not in raw and role in ("system", "developer"):
                waiting += messages
            else:
                turns.append(self._turn(raw, [*waiting, *messages], delay_ns, whole, place))
                waiting = []
            numbers.append(max(0, len(turns) - 1))
        if not turns:
            raise UnsendableError("no_user_message")
        return _Read(tuple(turns), numbers, arrival_ns)

    def _turn(self, raw: dict[str, Any], messages: list[Message], delay_ns: int, whole: bool, place: str) -> Turn:
        extra = raw.get("extra") or {}
        if not isinstance(extra, dict):
            raise TraceError(f"{place}: extra is a {type(extra).__name__}, an object is wanted", hint=_HINT)
        fields = request_extra(extra, frozenset(), self._tally)
        if raw.get("max_tokens") is not None:
            fields["max_tokens"] = want_int(raw, "max_tokens", place)
        for key in raw.keys() - _TURN_FIELDS:
            self._tally.odd(f"key {shown_key(key)} of turns is not sent")
        asked = None
        if raw.get("output_length") is not None:
            asked = self._options.output_tokens(want_int(raw, "output_length", place)) or None
        tools = raw.get("tools")
        if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
            raise TraceError(f"{place}: tools is no list of objects", hint=_HINT)
        return Turn(
            messages=tuple(messages),
            replaces_history=whole,
            delay_ns=delay_ns,
            asked_output_tokens=asked,
            tools=tuple(tools) if tools else None,
            extra=fields,
        )

    def _messages(self, raw: dict[str, Any], place: str) -> list[Message]:
        if "messages" in raw:
            return check_messages(raw["messages"])
        if any(raw.get(key) is not None for key in _MEDIA):
            return [{"role": _role(raw, place), "content": [*_parts(raw, place), *_images(raw, place)]}]
        parts = _parts(raw, place)
        if not parts:
            raise TraceError(f"{place}: has neither text nor texts nor messages", hint=_HINT)
        return [{"role": _role(raw, place), "content": content_of(parts)}]


def _role(raw: dict[str, Any], place: str) -> str:
    role = raw.get("role") or "user"
    if role not in ("user", "system", "developer", "assistant"):
        raise TraceError(f"{place}: role is {shown(role)}; user, system, developer or assistant is wanted", hint=_HINT)
    return str(role)


def _parts(raw: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """The texts as content parts. Raises TraceError."""
    if raw.get("text") is not None and raw.get("texts") is not None:
        raise TraceError(f"{place}: has both text and texts", hint=_HINT)
    texts: list[Any] = [raw["text"]] if raw.get("text") is not None else want_list(raw, "texts", place)
    found: list[str] = []
    for text in texts:
        contents = text.get("contents") if isinstance(text, dict) else [text]
        if not isinstance(contents, list) or not all(isinstance(one, str) for one in contents):
            raise TraceError(f"{place}: a text is a {type(text).__name__}", hint=_HINT)
        found += contents
    return [text_part(text) for text in found]


def _images(raw: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """Images that can be sent as they stand: addresses and data URLs. Raises UnsendableError for all other media."""
    if any(raw.get(key) is not None for key in _MEDIA if not key.startswith("image")):
        raise UnsendableError("audio_or_video")
    images = [raw["image"]] if raw.get("image") is not None else want_list(raw, "images", place)
    found: list[Any] = []
    for image in images:
        found += image.get("contents", ()) if isinstance(image, dict) else [image]
    if not all(isinstance(url, str) and url.startswith(("http://", "https://", "data:")) for url in found):
        raise UnsendableError("image_is_a_local_file")
    return [image_part(url) for url in found]


def _delay(raw: dict[str, Any], before_ms: float | int | None, place: str) -> tuple[int, float | int | None]:
    """(delay of the turn, its timestamp in ms). Raises TraceError."""
    if raw.get("delay") is not None and raw.get("timestamp") is not None:
        raise TraceError(f"{place}: has both delay and timestamp", hint="a delay counts from the answer before it")
    if raw.get("delay") is not None:
        delay_ms = want_number(raw, "delay", place)
        if delay_ms < 0:
            raise TraceError(f"{place}: delay is {delay_ms:g} ms, at least 0 is wanted", hint=_HINT)
        return check_span(place, round(delay_ms * 1_000_000), "delay"), None
    if raw.get("timestamp") is None:
        return 0, None
    stamp_ms = want_number(raw, "timestamp", place)
    check_span(place, abs(round(stamp_ms * 1_000_000)), "timestamp")
    if before_ms is not None and stamp_ms < before_ms:
        raise TraceError(
            f"{place}: timestamp went back from {before_ms:g} ms to {stamp_ms:g} ms",
            hint="turns stand in their order",
        )
    waited_ms = 0 if before_ms is None else stamp_ms - before_ms
    return check_span(place, round(waited_ms * 1_000_000), "time since the turn before"), stamp_ms
