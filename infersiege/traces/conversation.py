"""One session in play: which messages each request holds, given what was answered so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from infersiege.errors import InternalError
from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces.text import Synthesizer

_LENGTH_FIELDS = ("max_completion_tokens", "max_tokens")
_FORMAT_FIELDS = frozenset(
    {"response_format", "functions", "structured_outputs", "guided_json", "guided_regex", "guided_choice"}
    | {"guided_grammar", "json_schema", "regex", "ebnf", "grammar"}
)


def prompt_salt(nonce: str, *parts: object) -> str:
    """Sixteen hex characters of (nonce, parts): stage, repeat, and the session where prefixes are not to be shared."""
    text = "\0".join([nonce, *map(str, parts)])
    return blake2b(text.encode(), digest_size=8).hexdigest()


class PreparedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One request, ready for a dialect."""

    index: int
    """0-based place in the session."""
    messages: list[Message]
    """The whole request, salted. Messages may be shared with the trace: don't change them."""
    tools: list[dict[str, Any]] | None
    max_tokens: int
    asked_prompt_tokens: int | None
    asked_output_tokens: int | None
    """After the cap; None: the trace does not know the length."""
    delay_ns: int
    """From the end of the previous answer; scaled, then capped."""
    delay_capped: bool
    """The cap shortened the delay."""
    extra: dict[str, Any]
    plain_text: bool
    """No tools and no response format: an output length may be forced by `ignore_eos`."""


class Conversation:
    """Walks a session: `next_turn`, then `answered` or `failed`, and so on until `next_turn` gives None.

    `recorded` history puts the trace's answers into the next request, so that requests are the same, byte for byte, for
    every engine (same seed and salt). Where the trace has no answer for a turn, the engine's own is used.

    `live` history puts the engine's answer there. Tool results of the trace then go to the engine's calls: by function
    name, else by order; calls for which the trace has no result are left out. Where a result finds no call, or the
    engine answered nothing at all, the recorded answer stands in for this one turn (`substituted` counts them).
    A turn that replaces the history (compaction) is sent as given in both modes.

    `salt` becomes the first line of every request (`prompt_salt`). It is the same for all sessions of a run, so that
    prefixes which the trace shares stay shared.
    """

    def __init__(
        self,
        session: Session,
        *,
        synthesizer: Synthesizer,
        history: Literal["recorded", "live"] | str = "recorded",
        salt: str | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        default_max_tokens: int = 256,
        delay_scale: float = 1.0,
        delay_cap_ns: int | None = None,
    ) -> None:
        if history not in ("recorded", "live"):
            raise InternalError(f"history mode {history!r} is unknown")
        self.session = session
        self.substituted = 0
        """Live mode: turns whose recorded answer had to stand in."""
        self._synthesizer = synthesizer
        self._live = history == "live"
        self._salt = salt
        self._turns = session.turns if max_turns is None else session.turns[:max_turns]
        self._max_tokens = max_tokens
        self._default_max_tokens = default_max_tokens
        self._delay_scale = delay_scale
        self._delay_cap_ns = delay_cap_ns
        # Texts are kept as blocks and written anew for each request: a hundred long sessions would not fit otherwise.
        self._history: list[tuple[Message, BlockText | None]] = []
        self._next = 0
        self._open = False
        self._over = False
        self._bound: dict[str, str] = {}

    @property
    def turns(self) -> int:
        """Turns that will be played when nothing fails."""
        return len(self._turns)

    def next_turn(self) -> PreparedTurn | None:
        """The next request; None: the session is over. Raises InternalError while a turn is open."""
        if self._open:
            raise InternalError(f"session {self.session.session_id}: turn {self._next - 1} has not ended yet")
        if self._over or self._next >= len(self._turns):
            return None
        turn = self._turns[self._next]
        self._ask(turn)
        tools = turn.tools if turn.tools is not None else self.session.tools
        max_tokens, asked = self._lengths(turn)
        delay_ns, capped = self._delay(turn)
        prepared = PreparedTurn(
            index=self._next,
            messages=self._messages(),
            tools=list(tools) if tools else None,
            max_tokens=max_tokens,
            asked_prompt_tokens=turn.asked_prompt_tokens,
            asked_output_tokens=asked,
            delay_ns=delay_ns,
            delay_capped=capped,
            extra={key: value for key, value in turn.extra.items() if key not in _LENGTH_FIELDS},
            plain_text=not tools and not _FORMAT_FIELDS & turn.extra.keys(),
        )
        self._next += 1
        self._open = True
        return prepared

    def answered(self, text: str, tool_calls: Sequence[Mapping[str, Any]] = ()) -> None:
        """The open turn's answer came: its text and its tool calls in OpenAI's form."""
        turn = self._close()
        recorded = _recorded(turn)
        following = self._following()
        if not self._live:
            self._history += recorded or [(_answer(text, tool_calls), None)]
            return
        results = _result_ids(following)
        bound = _bind(_recorded_calls(turn), tool_calls, results)
        kept = [dict(call) for call in tool_calls if call.get("id") in bound.values()]
        if recorded and (len(bound) < len(results) or (not text and not kept)):
            self.substituted += 1
            self._history += recorded
            return
        self._bound = bound
        self._history.append((_answer(text, kept), None))

    def failed(self) -> bool:
        """The open turn gave no answer. Whether the session may go on: True if the next request does not need it.

        In recorded mode the recorded answer takes its place; in live mode, and where nothing was recorded, the session
        is over (TR-07), unless the next turn replaces the history.
        """
        turn = self._close()
        following = self._following()
        if following is not None and following.replaces_history:
            return True
        recorded = _recorded(turn)
        if self._live or (following is not None and not recorded):
            self._over = True
            return False
        self._history += recorded
        return True

    def _close(self) -> Turn:
        if not self._open:
            raise InternalError(f"session {self.session.session_id}: no turn is open")
        self._open = False
        return self._turns[self._next - 1]

    def _following(self) -> Turn | None:
        return self._turns[self._next] if self._next < len(self._turns) else None

    def _ask(self, turn: Turn) -> None:
        if turn.replaces_history:
            self._history.clear()
        texts = turn.texts or (None,) * len(turn.messages)
        for message, block in zip(turn.messages, texts, strict=True):
            live_id = self._bound.get(str(message.get("tool_call_id")))
            if message.get("role") == "tool" and live_id is not None:
                message = {**message, "tool_call_id": live_id}
            self._history.append((message, block))
        self._bound = {}

    def _messages(self) -> list[Message]:
        messages = [
            message if block is None else {**message, "content": _content(message, block, self._synthesizer.text(block))}
            for message, block in self._history
        ]
        if self._salt is not None and messages:
            messages[0] = salted(messages[0], self._salt)
        return messages

    def _lengths(self, turn: Turn) -> tuple[int, int | None]:
        """(max_tokens, asked output tokens): the recorded length, else the row's limit, else the default; capped."""
        cap = math.inf if self._max_tokens is None else self._max_tokens
        asked = turn.asked_output_tokens
        if asked is not None:
            asked = int(min(asked, cap))
            return asked, asked
        given = next((turn.extra[key] for key in _LENGTH_FIELDS if isinstance(turn.extra.get(key), int)), None)
        return int(min(self._default_max_tokens if given is None else given, cap)), None

    def _delay(self, turn: Turn) -> tuple[int, bool]:
        if self._next == 0:
            return 0, False
        delay_ns = round(turn.delay_ns * self._delay_scale)
        if self._delay_cap_ns is not None and delay_ns > self._delay_cap_ns:
            return self._delay_cap_ns, True
        return delay_ns, False


def salted(message: Message, salt: str) -> Message:
    """A copy whose text starts with the salt's line; of content parts the first gets it, or a new one before it."""
    line = salt + "\n"
    content = message.get("content")
    if isinstance(content, list):
        first = content[0] if content else None
        if isinstance(first, dict) and first.get("type") == "text" and isinstance(first.get("text"), str):
            return {**message, "content": [{**first, "text": line + first["text"]}, *content[1:]]}
        return {**message, "content": [{"type": "text", "text": line}, *content]}
    return {**message, "content": line + (content or "")}


def _content(message: Message, block: BlockText, text: str) -> str:
    """A synthesised text and what the message says itself: the document, then the question, or the other way round."""
    own = message.get("content")
    if not own:
        return text
    return f"{own}\n\n{text}" if block.last else f"{text}\n\n{own}"


def _answer(text: str, tool_calls: Sequence[Mapping[str, Any]]) -> Message:
    answer: Message = {"role": "assistant", "content": text if text or not tool_calls else None}
    if tool_calls:
        answer["tool_calls"] = [dict(call) for call in tool_calls]
    return answer


def _recorded(turn: Turn) -> list[tuple[Message, BlockText | None]]:
    """The recorded answer; a synthesised text is the content of its last message, or all of it."""
    if not turn.recorded_answer:
        return [] if turn.answer_text is None else [({"role": "assistant", "content": ""}, turn.answer_text)]
    *before, last = turn.recorded_answer
    return [*((message, None) for message in before), (last, turn.answer_text)]


def _recorded_calls(turn: Turn) -> list[Mapping[str, Any]]:
    return [call for message in turn.recorded_answer for call in message.get("tool_calls") or ()]


def _result_ids(turn: Turn | None) -> list[str]:
    """Ids of the calls whose results the next turn brings."""
    if turn is None or turn.replaces_history:
        return []
    return [str(message["tool_call_id"]) for message in turn.messages if message.get("role") == "tool"]


def _bind(
    recorded: Sequence[Mapping[str, Any]], live: Sequence[Mapping[str, Any]], results: Sequence[str]
) -> dict[str, str]:
    """Recorded call id -> live call id, for the recorded calls that have a result: same name first, then order."""
    names = {str(call.get("id")): _name(call) for call in recorded}
    free = [call for call in live if call.get("id")]
    bound: dict[str, str] = {}
    for by_name in (True, False):
        for ident in results:
            if ident in bound:
                continue
            match = next((call for call in free if not by_name or _name(call) == names.get(ident)), None)
            if match is not None:
                bound[ident] = str(match["id"])
                free.remove(match)
    return bound


def _name(call: Mapping[str, Any]) -> str | None:
    function = call.get("function")
    return function.get("name") if isinstance(function, Mapping) else None
