"""Recorded requests that each repeat their history -> turns that hold what is new (TR-01)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from infersiege.records import Message, Turn
from infersiege.traces.trace import Tally


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request of a session."""

    messages: list[Message]
    """All of it, checked."""
    answer: list[Message] = []
    """What its own row says was answered."""
    delay_ns: int = 0
    tools: tuple[dict[str, Any], ...] | None = None
    """None: as the session's."""
    extra: dict[str, Any] = {}
    asked_output_tokens: int | None = None


def cumulative_turns(requests: Sequence[Request], tally: Tally) -> list[Turn]:
    """A request that starts with the one before it, then its answer, becomes a turn with what is new, and the answer is
    that turn's. Any other (a compacted history, a retry, a row that is missing between) is sent as given."""
    turns: list[Turn] = []
    held: list[Message] = []
    for request in requests:
        new = request.messages[len(held) :]
        continues = bool(turns) and bool(new) and request.messages[: len(held)] == held
        lead = list(takewhile(_is_answer, new)) if continues else []
        asked = new[len(lead) :]
        if continues and asked and (lead or turns[-1].recorded_answer) and not any(map(_is_answer, asked)):
            answer = (*turns[-1].recorded_answer, *lead)
            turns[-1] = msgspec.structs.replace(turns[-1], recorded_answer=answer)
            turns.append(_turn(request, asked, whole=False))
        else:
            if continues:
                tally.odd("a request is not the one before it with an answer and what was asked then: sent as given")
            elif turns:
                tally.odd("compaction: a request does not start with the one before it and is sent as given")
            turns.append(_turn(request, request.messages, whole=True))
        held = request.messages + request.answer
    return turns


def _is_answer(message: Message) -> bool:
    return bool(message["role"] == "assistant")


def _turn(request: Request, messages: list[Message], *, whole: bool) -> Turn:
    return Turn(
        messages=tuple(messages),
        replaces_history=whole,
        delay_ns=request.delay_ns,
        recorded_answer=tuple(request.answer),
        asked_output_tokens=request.asked_output_tokens,
        tools=request.tools,
        extra=request.extra,
    )
