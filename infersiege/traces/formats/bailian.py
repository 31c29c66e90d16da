"""Qwen-Bailian JSON Lines (github.com/alibaba-edu/qwen-bailian-usagetraces-anon): chats with lengths and block hashes.

Times are seconds, blocks 16 tokens. Each row is a whole request: its ids cover the history as the application sent it,
so a turn replaces the history and prefixes are shared as they were in the recording. The last block of a request is
padded, so its id may be another one in the next turn; then that block is not shared, as it was not.

A row names its parent by `parent_chat_id`, -1 for none: chains of parents are sessions. Where a request has several
children (an answer that was asked for again, an edited question), the first in the file continues the line, and the
others are branches that start from the same turn. The format has no durations of answers, so the time between two
requests is taken for the delay from the end of an answer: a session lasts longer than it did by its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Branch, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.row_groups import grouped
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import MOST_TOKENS, want_int, want_number
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.lengths import block_turn, check_blocks
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "qwen-bailian"

OPTIONS = {
    "block_size": Option(default=16, at_least=1, meaning="tokens of one hash block"),
    "type": Option(default="", meaning="only requests of this type (text, search, image, file …); empty: all"),
}

_NO_PARENT = -1
_LATE_S = 1e9
"""Later times are looked at: the traces begin at 0."""
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Row(msgspec.Struct, frozen=True):
    chat_id: _Int64 | str
    timestamp: int | float
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[_Int64, ...]
    parent_chat_id: _Int64 | str | None = None
    type: str = ""


class _Key(msgspec.Struct, frozen=True):
    """What tells the session of a row."""

    chat_id: _Int64 | str
    timestamp: int | float
    parent_chat_id: _Int64 | str | None = None


def sniff(head: Head) -> bool:
    return {"chat_id", "parent_chat_id", "hash_ids", "input_length"} <= head.keys()


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for wrong rows and for times that go back."""
    reader = _Reader(source, options)
    trace = IndexedTrace(
        source, options, format=NAME, make=reader.session, decode=reader.decode, unit_hint="timestamp is in seconds"
    )
    trace.add_sessions(grouped(source.rows(), reader.root))
    for what, count in reader.oddities.items():
        trace.odd(what, count)
    reader.roots.clear()
    return trace.finish()


class _Reader:
    def __init__(self, source: Source, options: ReadOptions) -> None:
        self.roots: dict[int | str, int | str] = {}
        """Of each chat so far, the chat that its session begins with."""
        self.oddities: dict[str, int] = {}
        self._source = source
        self._options = options
        self._block = int(options.values["block_size"])
        self._type = str(options.values["type"])
        self._scope = f"{NAME}:{source.sha256()[:16]}"
        self._decoder = msgspec.json.Decoder(_Row)
        self._key_decoder = msgspec.json.Decoder(_Key)
        self._first: float | int | None = None
        self._before: float | int = 0

    def decode(self, source: Source, row: Row) -> _Row:
        """Raises TraceError."""
        try:
            return self._decoder.decode(source.raw(row))
        except (msgspec.DecodeError, RecursionError):
            return _checked(Placed(source.place(row), row.line, source.json(row)))

    def root(self, row: Row) -> int | str:
        """Key of the row's session. For each row once, in the file's order. Raises TraceError."""
        value = self._key(row)
        stamp, parent = value.timestamp, value.parent_chat_id
        if self._first is None:
            self._check_stamp(stamp, row)
            self._first = self._before = stamp
        if not self._before <= stamp <= _LATE_S:
            self._check_stamp(stamp, row)
        self._before = stamp
        known = value.chat_id if parent == _NO_PARENT or parent is None else self.roots.get(parent)
        if known is None:
            self._odd("a parent_chat_id is not in the file before its child: the child begins a session")
            known = value.chat_id
        if value.chat_id in self.roots:
            self._odd("a chat_id comes twice: later rows that name it follow its later one")
        self.roots[value.chat_id] = known
        return known

    def _key(self, row: Row) -> _Key | _Row:
        try:
            return self._key_decoder.decode(self._source.raw(row))
        except (msgspec.DecodeError, RecursionError):
            return self.decode(self._source, row)

    def _odd(self, what: str) -> None:
        self.oddities[what] = self.oddities.get(what, 0) + 1

    def _check_stamp(self, stamp: float | int, row: Row) -> None:
        place = self._source.place(row)
        want_number({"timestamp": stamp}, "timestamp", place)
        if self._first is None:
            return
        if stamp < self._before:
            raise TraceError(
                f"{place}: timestamp went back from {self._before:g} s to {stamp:g} s",
                hint="sort the file by timestamp",
            )
        check_span(place, self._ns(stamp), "time since the first row")

    def _ns(self, stamp: float | int) -> int:
        assert self._first is not None
        return round((stamp - self._first) * 1_000_000_000)

    def session(self, placed: Sequence[Placed], tally: Tally) -> Session:
        """One of rows that hang together by their parents."""
        if len(placed) == 1:
            return self._single(placed[0])
        nodes = self._kept(placed, tally)
        lines = _lines(nodes)
        numbers: dict[int, int] = {}
        for node in (node for line in lines for node in line):
            numbers[id(node)] = len(numbers)
        main, *others = map(self._turns, lines)
        start_ns = self._ns(lines[0][0].row.timestamp)
        branches = []
        for line, turns in zip(lines[1:], others, strict=True):
            parent = line[0].parent
            if parent is None:  # the request that it came from was left out
                turns[0] = msgspec.structs.replace(turns[0], delay_ns=self._ns(line[0].row.timestamp) - start_ns)
            branches.append(Branch(turns=tuple(turns), after=None if parent is None else numbers[id(parent)]))
        return Session(
            session_id=f"chat-{placed[0].value.chat_id}",
            turns=tuple(main),
            branches=tuple(branches),
            arrival_ns=start_ns,
            source_line=placed[0].line,
        )

    def _single(self, placed: Placed) -> Session:
        """Most chats are of one request."""
        place, line, row = placed
        check_blocks(len(row.hash_ids), row.input_length, self._block, place)
        reason = self._why_not(row)
        if reason is not None:
            raise UnsendableError(reason)
        return Session(
            session_id=f"chat-{row.chat_id}",
            turns=(self._turn(row, 0),),
            arrival_ns=self._ns(row.timestamp),
            source_line=line,
        )

    def _kept(self, placed: Sequence[Placed], tally: Tally) -> list[_Node]:
        """Rows that can be sent, with the nearest ones above them that can."""
        nodes: list[_Node] = []
        above: dict[int | str, _Node | None] = {}
        left_out: list[tuple[str, str]] = []
        for place, line, row in placed:
            check_blocks(len(row.hash_ids), row.input_length, self._block, place)
            parent = above.get(row.parent_chat_id)
            reason = self._why_not(row)
            if reason is not None:
                left_out.append((reason, f"line {line}"))
                above[row.chat_id] = parent
                continue
            node = _Node(row, parent)
            if parent is not None:
                parent.children.append(node)
            nodes.append(node)
            above[row.chat_id] = node
        if not nodes:
            raise UnsendableError(left_out[0][0])
        for reason, where in left_out:
            tally.skip(reason, where)
        return nodes

    def _why_not(self, row: _Row) -> str | None:
        if self._type and row.type != self._type:
            return "other_type"
        if not row.input_length:
            return "no_input"
        return None if row.output_length else "no_output"

    def _turn(self, row: _Row, delay_ns: int) -> Turn:
        return block_turn(
            self._scope, row.hash_ids, row.input_length, self._block, row.output_length, self._options, delay_ns
        )

    def _turns(self, line: Sequence[_Node]) -> list[Turn]:
        """Each after the time since the request that it came from."""
        return [
            self._turn(
                node.row,
                0 if node.parent is None else self._ns(node.row.timestamp) - self._ns(node.parent.row.timestamp),
            )
            for node in line
        ]


class _Node:
    """A request and those that came from it."""

    __slots__ = ("children", "parent", "row")

    def __init__(self, row: _Row, parent: _Node | None) -> None:
        self.row = row
        self.parent = parent
        self.children: list[_Node] = []


def _lines(nodes: Sequence[_Node]) -> list[list[_Node]]:
    """The main line, then the branches, each after the line that it starts from."""
    starts = [node for node in nodes if node.parent is None]
    lines = []
    for start in starts:  # grows while it is walked
        line = [start]
        while line[-1].children:
            first, *others = line[-1].children
            starts += others
            line.append(first)
        lines.append(line)
    return lines


def _checked(row: Placed) -> _Row:
    """A row that is not as most are: either it can be read all the same, or it is told why not."""
    value, place = want_object(row), row.place
    stamp = want_number(value, "timestamp", place)
    prompt, output = want_int(value, "input_length", place), want_int(value, "output_length", place)
    ids = value.get("hash_ids")
    if not isinstance(ids, list) or not all(type(ident) is int and -(2**63) <= ident < 2**64 for ident in ids):
        raise TraceError(f"{place}: hash_ids is no list of 64-bit whole numbers", hint="is the format the right one?")
    return _Row(
        chat_id=_identity(value, "chat_id", place),
        timestamp=stamp,
        input_length=prompt,
        output_length=output,
        hash_ids=tuple(ids),
        parent_chat_id=None if value.get("parent_chat_id") is None else _identity(value, "parent_chat_id", place),
        type=str(value.get("type") or ""),
    )


def _identity(value: dict[str, Any], key: str, place: str) -> int | str:
    found = value.get(key)
    if isinstance(found, str) or (type(found) is int and -(2**63) <= found < 2**63):
        return found
    seen = "is missing" if key not in value else f"is a {type(found).__name__}"
    raise TraceError(f"{place}: {key} {seen}, a 64-bit whole number or a string is wanted", hint="is the file whole?")
