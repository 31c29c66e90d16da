"""What each turn of a trace holds, in tokens, as flat arrays: all that descriptions and charts are made from.

Sessions are asked for one after the other and not kept. Within a session a branch is played after the turn that starts
it, before the turn that may wait for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from enum import IntFlag
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from infersiege.records import BlockText, Branch, Message, Session, Turn
from infersiege.traces.inspection.longest_seen import LongestSeen
from infersiege.traces.inspection.message_size import digest_of, message_tokens, other_parts, tool_tokens
from infersiege.traces.inspection.prefix_cache import Piece, PrefixCache, PromptWalk
from infersiege.traces.play.session_lines import begins_with_main
from infersiege.traces.trace import Trace

Integers = NDArray[np.int64]

UNKNOWN = -1
"""In the arrays of Measured, where a figure is not known."""

_SAMPLE_TURNS = 200_000
"""Of a trace without end, after which no other session is begun."""


class Mark(IntFlag):
    """What there is to say of a turn, as bits."""

    FIRST = 1
    """Of its line."""
    MAIN = 2
    """Of the session's main line."""
    PROMPT_ESTIMATED = 4
    OUTPUT_ESTIMATED = 8
    SHRANK = 16
    """Its prompt is shorter than the one before on its line: the history was compacted."""
    AFTER_TOOL = 32
    AFTER_USER = 64


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays of one entry per turn, in the order in which turns are played; UNKNOWN where the trace does not tell."""

    sessions: int
    """Looked at: all, or the first ones of a trace without end."""
    branches: int
    other_parts: int
    """Images and the like, of which no length is known."""
    unanswered: int
    """Turns whose history has an answer that the trace does not have."""
    sharing_told: bool
    """The trace says what prompts hold, by texts or by blocks; False: only how long they are."""
    session: Integers
    number: Integers
    """Of the turn in its session (`Session.all_turns`)."""
    prompt: Integers
    output: Integers
    own: Integers
    """Prompt tokens that the session's earlier requests held."""
    cached: Integers
    """Prompt tokens that any earlier request held."""
    delay_ns: Integers
    """UNKNOWN for the turn that a session begins with."""
    before: Integers
    """Place in these arrays of the turn after whose end it comes: on its line, or on the line that it starts from;
    UNKNOWN: it starts with the session."""
    marks: Integers
    turn_counts: Integers
    """Turns of each session."""
    arrivals_ns: Integers | None
    """Of each session."""

    def marked(self, mark: Mark) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (self.marks & mark) != 0
        return found


def measure(trace: Trace, sample: int) -> Measured:
    """Walk a finite trace in full, an endless one for its first `sample` sessions (fewer where they are very long)."""
    gathered = _Gathered()
    count = sample if trace.sessions is None else trace.sessions
    for index in range(count):
        if trace.sessions is None and len(gathered.prompt) >= _SAMPLE_TURNS:
            count = index
            break
        gathered.add(index, trace.session(index))
    arrivals = trace.arrivals_ns
    return Measured(
        sessions=count,
        branches=gathered.branches,
        other_parts=gathered.other_parts,
        unanswered=gathered.unanswered,
        sharing_told=gathered.sharing_told,
        session=_integers(gathered.session),
        number=_integers(gathered.number),
        prompt=_integers(gathered.prompt),
        output=_integers(gathered.output),
        own=_integers(gathered.own),
        cached=_integers(gathered.cached),
        delay_ns=_integers(gathered.delay_ns),
        before=_integers(gathered.before),
        marks=_integers(gathered.marks),
        turn_counts=_integers(gathered.turn_counts),
        arrivals_ns=None if arrivals is None else np.asarray(arrivals[:count], dtype=np.int64),
    )


def _integers(values: array[int]) -> Integers:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


class _Row:
    """One line of a session while it is played."""

    def __init__(self, walk: PromptWalk, turns: Sequence[Turn], start: int, mark: Mark) -> None:
        self.walk = walk
        self.turns = turns
        self.start = start
        """Number of its first turn."""
        self.mark = mark
        self.place = 0
        self.last = UNKNOWN
        """Place in the arrays of the turn that its next one comes after."""
        self.before = UNKNOWN
        """Prompt tokens of its last request."""
        self.whole = True
        """All that its next request holds is in the trace."""
        self.tools: tuple[dict[str, Any], ...] | None = None
        self.held: list[Piece] = []
        """What it holds behind the tools."""


class _Gathered:
    def __init__(self) -> None:
        self.session, self.number = array("q"), array("q")
        self.prompt, self.output = array("q"), array("q")
        self.own, self.cached = array("q"), array("q")
        self.delay_ns, self.before, self.marks, self.turn_counts = array("q"), array("q"), array("q"), array("q")
        self.branches = self.other_parts = self.unanswered = 0
        self.sharing_told = False
        self._cache = PrefixCache()

    def add(self, index: int, session: Session) -> None:
        """Play one session."""
        count = session.turn_count
        self.turn_counts.append(count)
        self.branches += len(session.branches)
        own = None if count < 2 else LongestSeen()
        begun: dict[int | None, list[tuple[Branch, int]]] = {}
        for branch, start in _starts(session):
            begun.setdefault(branch.after, []).append((branch, start))
        main = _Row(PromptWalk(self._cache, own), session.turns, 0, Mark.MAIN)
        waiting = [
            _Row(PromptWalk(self._cache, own), branch.turns, start, Mark(0)) for branch, start in begun.get(None, ())
        ]
        stack = [*reversed(waiting), main]
        while stack:
            row = stack.pop()
            if row.place == len(row.turns):
                continue
            number = row.start + row.place
            self._play(index, number, session, row)
            row.place += 1
            stack.append(row)
            stack += [self._begun(row, branch, start, own) for branch, start in reversed(begun.get(number, ()))]

    def _begun(self, parent: _Row, branch: Branch, start: int, own: LongestSeen | None) -> _Row:
        walk = parent.walk.fork() if branch.inherits else PromptWalk(self._cache, own)
        row = _Row(walk, branch.turns, start, Mark(0))
        row.last = parent.last
        if branch.inherits:
            row.whole, row.tools, row.held = parent.whole, parent.tools, list(parent.held)
        return row

    def _play(self, index: int, number: int, session: Session, row: _Row) -> None:
        turn = row.turns[row.place]
        self._ask(session, row, turn)
        found = row.walk.ask()
        prompt, own, cached = _scaled(turn, row.whole, *found)
        self.sharing_told = self.sharing_told or found.cached > 0
        self.unanswered += not row.whole
        marks = row.mark | _delay_kind(turn)
        if row.place == 0:
            marks |= Mark.FIRST
        if turn.asked_prompt_tokens is None and prompt != UNKNOWN:
            marks |= Mark.PROMPT_ESTIMATED
        if UNKNOWN != prompt < row.before:
            marks |= Mark.SHRANK
        row.before = prompt
        output = turn.asked_output_tokens
        if output is None and turn.answer_text is None and turn.recorded_answer:
            output, marks = sum(map(message_tokens, turn.recorded_answer)), marks | Mark.OUTPUT_ESTIMATED
        elif output is None and turn.answer_text is not None:
            output = sum(turn.answer_text.tokens)
        self.session.append(index)
        self.number.append(number)
        self.prompt.append(prompt)
        self.output.append(UNKNOWN if output is None else output)
        self.own.append(own)
        self.cached.append(cached)
        self.delay_ns.append(UNKNOWN if number == 0 and begins_with_main(session) else turn.delay_ns)
        self.before.append(row.last)
        row.last = len(self.before) - 1
        self.marks.append(marks)
        if row.place + 1 < len(row.turns) or session.branches:
            self._answer(row, turn)

    def _ask(self, session: Session, row: _Row, turn: Turn) -> None:
        """What the turn's request holds."""
        pieces = self._pieces(turn.messages, turn.texts)
        tools = session.tools if turn.tools is None else turn.tools
        same = row.tools is tools or row.tools == tools
        if row.place and same and not turn.replaces_history:
            row.held += pieces
            row.walk.add(pieces)
            return
        row.held = pieces if turn.replaces_history else row.held + pieces
        row.whole = row.whole or turn.replaces_history
        row.tools = tools
        front = [PrefixCache.message(digest_of(tools), tool_tokens(tools))] if tools else []
        row.walk.replace([*front, *row.held])

    def _answer(self, row: _Row, turn: Turn) -> None:
        """What the recorded answer adds to the history."""
        if turn.recorded_answer:
            texts = (*(None for _ in turn.recorded_answer[1:]), turn.answer_text)
            pieces = self._pieces(turn.recorded_answer, texts)
        elif turn.answer_text is not None:
            pieces = [self._cache.text(turn.answer_text)]
        else:
            row.whole = False
            return
        row.held += pieces
        row.walk.add(pieces)

    def _pieces(self, messages: Sequence[Message], texts: Sequence[BlockText | None]) -> list[Piece]:
        """What a message says itself goes before or after its synthesised text."""
        pieces = []
        for place, message in enumerate(messages):
            text = texts[place] if texts else None
            tokens = message_tokens(message)
            self.other_parts += other_parts(message)
            # One block a prompt is how traces of lengths are made up.
            self.sharing_told = self.sharing_told or tokens > 0 or (text is not None and len(text.ids) > 1)
            own = [PrefixCache.message(digest_of(message), tokens)] if tokens or text is None else []
            made = [] if text is None else [self._cache.text(text)]
            pieces += [*own, *made] if text is not None and text.last else [*made, *own]
        return pieces


def _starts(session: Session) -> Iterator[tuple[Branch, int]]:
    """Each branch with the number of its first turn."""
    start = len(session.turns)
    for branch in session.branches:
        yield branch, start
        start += len(branch.turns)


def _scaled(turn: Turn, whole: bool, tokens: int, cached: int, own: int) -> tuple[int, int, int]:
    """(prompt, own, cached) in the trace's own count where it has one, else by the estimate; UNKNOWN without either."""
    asked = turn.asked_prompt_tokens
    if asked is None:
        return (tokens, own, cached) if whole and tokens else (UNKNOWN, UNKNOWN, UNKNOWN)
    if not tokens:
        return asked, UNKNOWN, UNKNOWN
    if asked == tokens:
        return asked, own, cached
    return asked, round(asked * own / tokens), round(asked * cached / tokens)


def _delay_kind(turn: Turn) -> Mark:
    """Whether a tool's result or a user came before; neither, where the trace does not tell."""
    if any(message.get("role") == "tool" for message in turn.messages):
        return Mark.AFTER_TOOL
    told = turn.texts == () or any(text is None for text in turn.texts) or any(m.get("content") for m in turn.messages)
    return Mark.AFTER_USER if told else Mark(0)
