"""Is a session one that can be played? Checks of the normal form, with messages that hold nothing of its text."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from infersiege.errors import TraceError
from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces.files.values import MOST_TOKENS
from infersiege.traces.sessions.chat import UnsendableError, check_messages
from infersiege.traces.synthesis.words import WORDS
from infersiege.traces.trace import LONGEST_NS

_HINT = "docs/traces.md has the format"
_INT64 = range(-(1 << 63), 1 << 63)


def named(session: Session) -> str:
    """The session as messages call it."""
    return f"session {session.session_id[:40]!r}"


def check_session(session: Session, place: str) -> None:
    """The values of a session, each within what can be; not how its branches hang together (`check_branches`).

    Raises TraceError with the path inside the session.
    """
    if session.arrival_ns is not None:
        _check_range(session.arrival_ns, LONGEST_NS, f"{place}: arrival_ns")
    if session.source_line is not None:
        _check_range(session.source_line, _INT64[-1], f"{place}: source_line")
    lines = [("turns", session.turns)]
    lines += [(f"branches[{number}].turns", branch.turns) for number, branch in enumerate(session.branches)]
    for path, turns in lines:
        for number, turn in enumerate(turns):
            _check_turn(turn, f"{place}: {path}[{number}]")


def _check_turn(turn: Turn, place: str) -> None:
    _check_range(turn.delay_ns, LONGEST_NS, f"{place}: delay_ns")
    for name, tokens in (
        ("asked_prompt_tokens", turn.asked_prompt_tokens),
        ("asked_output_tokens", turn.asked_output_tokens),
    ):
        if tokens is not None:
            _check_range(tokens, MOST_TOKENS, f"{place}: {name}")
    if not turn.messages:
        raise TraceError(f"{place}: messages is empty", hint="a request has at least one message")
    _check_messages(turn.messages, f"{place}: messages")
    _check_messages(turn.recorded_answer, f"{place}: recorded_answer", answer=True)
    if len(turn.texts) not in (0, len(turn.messages)):
        raise TraceError(
            f"{place}: {len(turn.texts)} texts for {len(turn.messages)} messages",
            hint="texts is left out, or has one entry (or null) for each message",
        )
    for number, text in enumerate(turn.texts):
        if text is not None:
            _check_text(text, f"{place}: texts[{number}]")
    if turn.answer_text is not None:
        _check_text(turn.answer_text, f"{place}: answer_text")


def _check_messages(messages: Sequence[Message], place: str, *, answer: bool = False) -> None:
    """Each by itself: calls and their results may stand in different turns."""
    for number, message in enumerate(messages):
        here = f"{place}[{number}]"
        role, content = message.get("role"), message.get("content")
        if not isinstance(content, str | list | None):
            raise TraceError(f"{here}: content is a {type(content).__name__}, a text or a list is wanted", hint=_HINT)
        if answer and role != "assistant":
            raise TraceError(f"{here}: is no assistant's message", hint=_HINT)
        if role == "tool":
            if not isinstance(message.get("tool_call_id"), str) or content is None:
                raise TraceError(f"{here}: a result has a tool_call_id and a content", hint=_HINT)
            continue
        try:
            check_messages([message])
        except UnsendableError as reason:
            raise TraceError(f"{here}: can't be sent ({reason})", hint=_HINT) from None


def _check_text(text: BlockText, place: str) -> None:
    if len(text.ids) != len(text.tokens):
        raise TraceError(f"{place}: {len(text.ids)} ids, but {len(text.tokens)} tokens", hint="each id has its tokens")
    if text.ids and not (min(text.ids) in _INT64 and max(text.ids) in _INT64):
        raise TraceError(f"{place}: an id is no 64-bit number", hint=_HINT)
    if text.tokens:
        for tokens in (min(text.tokens), max(text.tokens)):
            _check_range(tokens, MOST_TOKENS, f"{place}: tokens")
    if text.language not in WORDS:
        raise TraceError(f"{place}: its language is unknown", hint="languages: " + ", ".join(WORDS))


def _check_range(value: int, most: int, what: str) -> None:
    if value < 0:
        raise TraceError(f"{what} is below 0", hint=_HINT)
    if value > most:
        raise TraceError(f"{what} is more than {most:,}", hint="check its unit")


def check_branches(session: Session, place: str) -> None:
    """Raises TraceError for a session that could not be played: lines without turns, turns that wait for each other."""
    if not session.turns:
        raise TraceError(f"{place}: {named(session)} has no turns", hint=_HINT)
    if not session.branches:
        return
    waits_for: dict[int, set[int]] = {number: {number - 1} for number in range(1, len(session.turns))}
    first = len(session.turns)
    for number, branch in enumerate(session.branches):
        here = f"{place}: branch {number} of {named(session)}"
        if not branch.turns:
            raise TraceError(f"{here} has no turns", hint=_HINT)
        if branch.inherits and branch.after is None:
            raise TraceError(f"{here} inherits a history, but starts after no turn", hint=_HINT)
        last = first + len(branch.turns) - 1
        for word, other in (("starts after", branch.after), ("is joined by", branch.joined_by)):
            if other is not None and not 0 <= other < session.turn_count:
                raise TraceError(
                    f"{here} {word} turn {other}, there are {session.turn_count}",
                    hint="turns are numbered through, from 0: the main line's, then those of the branches",
                )
        if branch.after is not None:
            waits_for.setdefault(first, set()).add(branch.after)
        for turn in range(first + 1, last + 1):
            waits_for.setdefault(turn, set()).add(turn - 1)
        if branch.joined_by is not None:
            waits_for.setdefault(branch.joined_by, set()).add(last)
        first = last + 1
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        turns = [*map(str, error.args[1][:8]), *(["…"] if len(error.args[1]) > 8 else [])]
        raise TraceError(
            f"{place}: {named(session)}: turns wait for each other ({' for '.join(turns)})",
            hint="a turn that starts a branch can't wait for its end",
        ) from None
