"""One session in play: which messages each request holds, given what was answered so far."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from infersiege.errors import InternalError
from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces.play.fitting import Part, clipped, guessed_tokens, tools_tokens
from infersiege.traces.play.session_lines import SessionLine, begins_with_main, cut_session, lines_of
from infersiege.traces.synthesis.text import Framing, Synthesizer

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
    """Its number in the session."""
    parent: int | None
    """Number of the turn after whose end it comes; None: it begins the session, or a branch beside its beginning."""
    messages: list[Message]
    """The whole request, salted. Messages may be shared with the trace: don't change them."""
    tools: list[dict[str, Any]] | None
    max_tokens: int
    asked_prompt_tokens: int | None
    """What the request holds, after a cut; None: the trace does not know the length."""
    asked_output_tokens: int | None
    """After the cap; None: the trace does not know the length."""
    delay_ns: int
    """From the end of the previous answer; scaled, then capped."""
    delay_cut_ns: int
    """What the cap took away of it."""
    extra: dict[str, Any]
    plain_text: bool
    """No tools and no response format: an output length may be forced by `ignore_eos`."""
    prompt_tokens: int
    """`asked_prompt_tokens`, or a guess by size where the trace does not know it; 0: nobody needs it."""
    clipped_tokens: int = 0
    """Prompt tokens that were cut off, so that it fits the model."""
    too_long: bool = False
    """Prompt and output together are over the context limit: it can't be sent, and `messages` is empty."""

    @property
    def delay_capped(self) -> bool:
        return self.delay_cut_ns > 0


class Playing(msgspec.Struct, frozen=True, kw_only=True):
    """How a workload wants its sessions to be played."""

    synthesizer: Synthesizer
    history: Literal["recorded", "live"] | str = "recorded"
    salt: str | None = None
    max_turns: int | None = None
    """Of the main line."""
    max_tokens: int | None = None
    default_max_tokens: int = 256
    delay_scale: float = 1.0
    delay_cap_ns: int | None = None
    context_limit: int | None = None
    """Most tokens of prompt and output together; None: no limit is known."""
    clip: bool = False
    """Prompts over it are cut to what fits; else they are `too_long`."""


class _Ended(msgspec.Struct, frozen=True):
    """How a turn ended, for the lines that go on from there."""

    turn: Turn
    history: int
    """Parts of the history before its answer."""
    answer: tuple[str, Sequence[Mapping[str, Any]]] | None
    """Text and tool calls; None: it failed."""


class Conversation:
    """Walks one line of a session: `next_turn`, then `answered` or `failed`, and so on until `next_turn` gives None.

    It begins as the main line; `branch` gives the walk of a branch, to be asked for when the turn that it starts after
    has ended and before the next one of that line.

    `recorded` history puts the trace's answers into the next request, so that requests are the same, byte for byte, for
    every engine (same seed and salt). Where the trace has no answer for a turn, the engine's own is used.

    `live` history puts the engine's answer there. Tool results of the trace then go to the engine's calls: by function
    name, else by order; calls for which the trace has no result are left out. Where a result finds no call, or the
    engine answered nothing at all, the recorded answer stands in for this one turn (`substituted` counts them).
    A turn that replaces the history (compaction) is sent as given in both modes.

    `salt` becomes the first line of every request (`prompt_salt`). It is the same for all sessions of a run, so that
    prefixes which the trace shares stay shared.
    """

    def __init__(self, session: Session, **playing: Any) -> None:
        """`playing`: the fields of `Playing`."""
        rules = Playing(**playing)
        if rules.history not in ("recorded", "live"):
            raise InternalError(f"history mode {rules.history!r} is unknown")
        self.session = cut_session(session, rules.max_turns)
        """As it is played."""
        self.lines = lines_of(self.session)
        """The main line, then the branches."""
        self._begin(self.lines[0], rules, [])

    def _begin(self, line: SessionLine, rules: Playing, history: list[Part]) -> None:
        self.line = line
        self.substituted = 0
        """Live mode: turns whose recorded answer had to stand in."""
        self._rules = rules
        # Texts are kept as blocks and written anew for each request: a hundred long sessions would not fit otherwise.
        self._history = history
        self._next = 0
        self._open = False
        self._over = False
        self._ended: _Ended | None = None
        self._bound: dict[str, str] = {}
        self._framing = Framing(rules.synthesizer, salted=rules.salt is not None)

    @property
    def turns(self) -> int:
        """Turns of all lines, that will be played when nothing fails."""
        return self.lines[-1].end

    def branch(self, line: SessionLine) -> Conversation | None:
        """The walk of a branch that starts now. None: it needs an answer that was not given.

        In recorded mode a failed turn's recorded answer stands for it, and a branch with a history of its own needs
        none. In live mode nothing starts from a turn that failed, unless its first request replaces the history.
        """
        began = Conversation.__new__(Conversation)
        began.session, began.lines = self.session, self.lines
        ended, first = self._ended, line.turns[0]
        began._begin(line, self._rules, [])
        if line.after is None or ended is None:
            return began
        if line.inherits:
            began._history = self._history[: ended.history]
            began._framing = copy.copy(self._framing)
            if ended.answer is not None:
                began._take_answer(ended.turn, *ended.answer, first)
                return began
            return began if began._take_failure(ended.turn, first) else None
        live = self._rules.history == "live"
        return None if ended.answer is None and live and not first.replaces_history else began

    def next_turn(self) -> PreparedTurn | None:
        """The next request; None: the line is over. Raises InternalError while a turn is open."""
        return self._advance(write=True)

    def outlines(self) -> Iterator[PreparedTurn]:
        """Every turn of every line in the order of their numbers, as if each were answered; no text is made.

        What comes after a turn that is too long is left out, as it is never sent. To be asked of a conversation that
        has not begun, which is then at its end.
        """
        waiting: dict[int | None, list[SessionLine]] = {}
        for line in self.lines[1:]:
            waiting.setdefault(line.after, []).append(line)
        found: list[PreparedTurn] = []
        left = [self, *filter(None, map(self.branch, waiting.get(None, ())))]
        while left:
            walk = left.pop()
            while (turn := walk._advance(write=False)) is not None:
                found.append(turn)
                if turn.too_long:
                    break
                walk.answered("")
                left += filter(None, map(walk.branch, waiting.get(turn.index, ())))
        yield from sorted(found, key=lambda turn: turn.index)

    def _advance(self, *, write: bool) -> PreparedTurn | None:
        line = self.line
        if self._open:
            raise InternalError(
                f"session {self.session.session_id}: turn {line.first_turn + self._next - 1} has not ended yet"
            )
        if self._over or self._next >= len(line.turns):
            return None
        turn = line.turns[self._next]
        self._ask(turn)
        tools = turn.tools if turn.tools is not None else self.session.tools
        max_tokens, asked = self._lengths(turn)
        parts, tokens, cut_off = self._fitted(turn, tools, max_tokens, always=not write)
        delay_ns, delay_cut_ns = self._delay(turn)
        prepared = PreparedTurn(
            index=line.first_turn + self._next,
            parent=line.first_turn + self._next - 1 if self._next else line.after,
            messages=self._messages(parts) if write and parts is not None else [],
            tools=list(tools) if tools else None,
            max_tokens=max_tokens,
            asked_prompt_tokens=None if turn.asked_prompt_tokens is None else tokens,
            asked_output_tokens=asked,
            delay_ns=delay_ns,
            delay_cut_ns=delay_cut_ns,
            extra={key: value for key, value in turn.extra.items() if key not in _LENGTH_FIELDS},
            plain_text=not tools and not _FORMAT_FIELDS & turn.extra.keys(),
            prompt_tokens=tokens,
            clipped_tokens=cut_off,
            too_long=parts is None,
        )
        self._next += 1
        self._open = True
        return prepared

    def answered(self, text: str, tool_calls: Sequence[Mapping[str, Any]] = ()) -> None:
        """The open turn's answer came: its text and its tool calls in OpenAI's form."""
        turn = self._close((text, tool_calls))
        self._take_answer(turn, text, tool_calls, self._following())

    def failed(self) -> bool:
        """The open turn gave no answer. Whether the line may go on: True if the next request does not need it.

        In recorded mode the recorded answer takes its place; in live mode, and where nothing was recorded, the line
        is over (TR-07), unless the next turn replaces the history.
        """
        turn = self._close(None)
        self._over = not self._take_failure(turn, self._following())
        return not self._over

    def _take_answer(
        self, turn: Turn, text: str, tool_calls: Sequence[Mapping[str, Any]], following: Turn | None
    ) -> None:
        recorded = _recorded(turn)
        if self._rules.history != "live":
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

    def _take_failure(self, turn: Turn, following: Turn | None) -> bool:
        if following is not None and following.replaces_history:
            return True
        recorded = _recorded(turn)
        if self._rules.history == "live" or (following is not None and not recorded):
            return False
        self._history += recorded
        return True

    def _close(self, answer: tuple[str, Sequence[Mapping[str, Any]]] | None) -> Turn:
        if not self._open:
            raise InternalError(f"session {self.session.session_id}: no turn is open")
        self._open = False
        turn = self.line.turns[self._next - 1]
        self._ended = _Ended(turn, len(self._history), answer)
        return turn

    def _following(self) -> Turn | None:
        return self.line.turns[self._next] if self._next < len(self.line.turns) else None

    def _ask(self, turn: Turn) -> None:
        if turn.replaces_history:
            self._history.clear()
            self._framing.restart()
        texts = self._framing.fitted(len(self._history), turn.messages, turn.texts or (None,) * len(turn.messages))
        for message, block in zip(turn.messages, texts, strict=True):
            live_id = self._bound.get(str(message.get("tool_call_id")))
            if message.get("role") == "tool" and live_id is not None:
                message = {**message, "tool_call_id": live_id}
            self._history.append((message, block))
        self._bound = {}

    def _fitted(
        self, turn: Turn, tools: Sequence[dict[str, Any]] | None, max_tokens: int, *, always: bool
    ) -> tuple[Sequence[Part] | None, int, int]:
        """(what is sent, its tokens, tokens cut off). None: too long. `always`: guess a length that nobody needs."""
        parts, limit, tokens = self._history, self._rules.context_limit, turn.asked_prompt_tokens
        if tokens is None:
            tokens = guessed_tokens(parts, tools) if always or limit is not None else 0
        if limit is None or tokens + max_tokens <= limit:
            return parts, tokens, 0
        if self._rules.clip:
            fitted = clipped(parts, tokens, limit - max_tokens, fixed=tools_tokens(tools))
            if fitted is not None:
                return fitted[0], fitted[1], tokens - fitted[1]
        return None, tokens, 0

    def _messages(self, parts: Sequence[Part]) -> list[Message]:
        synthesizer, salt = self._rules.synthesizer, self._rules.salt
        messages = [
            message if block is None else {**message, "content": _content(message, block, synthesizer.text(block))}
            for message, block in parts
        ]
        if salt is not None and messages:
            messages[0] = salted(messages[0], salt)
        return messages

    def _lengths(self, turn: Turn) -> tuple[int, int | None]:
        """(max_tokens, asked output tokens): the recorded length, else the row's limit, else the default; capped."""
        rules = self._rules
        cap = math.inf if rules.max_tokens is None else rules.max_tokens
        asked = turn.asked_output_tokens
        if asked is not None:
            asked = int(min(asked, cap))
            return asked, asked
        given = next((turn.extra[key] for key in _LENGTH_FIELDS if isinstance(turn.extra.get(key), int)), None)
        return int(min(rules.default_max_tokens if given is None else given, cap)), None

    def _delay(self, turn: Turn) -> tuple[int, int]:
        """(delay, what the cap took away of it)."""
        if self._next == 0 and self.line.first_turn == 0 and begins_with_main(self.session):
            return 0, 0  # The session has its arrival.
        cap_ns = self._rules.delay_cap_ns
        delay_ns = round(turn.delay_ns * self._rules.delay_scale)
        if cap_ns is not None and delay_ns > cap_ns:
            return cap_ns, delay_ns - cap_ns
        return delay_ns, 0


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


def _recorded(turn: Turn) -> list[Part]:
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
