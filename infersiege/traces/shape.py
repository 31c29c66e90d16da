"""A session's shape without a word of its text: lengths, and hashes that say which texts are alike.

What people wrote stays at home; what a prefix cache, a scheduler and a batch see goes with the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces.message_size import message_text, other_parts, text_tokens, tool_text

SCOPE = "shape"
BLOCK_CHARS = 256
"""Texts are hashed in pieces of so many characters: what is alike up to there stays alike."""
IMAGE_TOKENS = 800
"""Of an image (or another part that is no text): in the middle of what vision models charge."""


class Shaper:
    """Makes shapes with one key: whoever lacks it can't tell a text by trying which one has a given hash."""

    def __init__(self, key: bytes) -> None:
        """`key`: up to 64 bytes, not to be told to those who get the trace."""
        self._key = key

    def session(self, session: Session) -> Session:
        """The same turns, times and lengths; ids are hashes, tool definitions become text of their length."""
        return Session(
            session_id=f"{self._hash(session.session_id.encode()):016x}",
            turns=self._line(session.turns, session.tools),
            branches=tuple(
                msgspec.structs.replace(branch, turns=self._line(branch.turns, session.tools))
                for branch in session.branches
            ),
            arrival_ns=session.arrival_ns,
            source_line=session.source_line,
        )

    def _line(self, turns: Sequence[Turn], tools: Sequence[dict[str, Any]] | None) -> tuple[Turn, ...]:
        shaped = []
        for number, turn in enumerate(turns):
            own = turn.tools if turn.tools is not None else tools
            # Tool definitions stand before everything else in a prompt, and only once.
            first = number == 0 or turn.replaces_history
            shaped.append(self._turn(turn, tool_text(own) if own and first else ""))
        return tuple(shaped)

    def _turn(self, turn: Turn, tools: str) -> Turn:
        texts = turn.texts or (None,) * len(turn.messages)
        messages: list[tuple[str, BlockText | None]] = []
        for message, text in zip(turn.messages, texts, strict=True):
            # Results of calls that are no longer there would be refused; two of them are one message.
            role = str(message.get("role"))
            role = role if role in ("system", "assistant") else "user"
            block = self._block(message, text)
            if messages and messages[-1][0] == role:
                messages[-1] = (role, _joined(messages[-1][1], block))
            else:
                messages.append((role, block))
        if tools and messages:
            messages[0] = (messages[0][0], _joined(self._of_text(tools), messages[0][1]))
        answer = None
        for message in turn.recorded_answer or (({"role": "assistant"},) if turn.answer_text is not None else ()):
            answer = _joined(answer, self._block(message, None))
        if turn.answer_text is not None:
            answer = _joined(self._kept(turn.answer_text), answer)
        return Turn(
            messages=tuple({"role": role, "content": ""} for role, _ in messages),
            texts=tuple(block or BlockText(scope=SCOPE, ids=(), tokens=()) for _, block in messages),
            replaces_history=turn.replaces_history,
            delay_ns=turn.delay_ns,
            answer_text=answer,
            asked_prompt_tokens=turn.asked_prompt_tokens,
            asked_output_tokens=turn.asked_output_tokens
            if turn.asked_output_tokens is not None
            else sum(answer.tokens)
            if answer is not None
            else None,
            extra={key: value for key, value in turn.extra.items() if isinstance(value, bool | int | float)},
        )

    def _block(self, message: Message, text: BlockText | None) -> BlockText | None:
        """All that a message says: what is known by blocks stays that, with hashed ids."""
        said = self._of_text(message_text(message))
        pictures = other_parts(message)
        if pictures:
            said = _joined(said, self._pieces([(f"{pictures} images".encode(), IMAGE_TOKENS * pictures)]))
        if text is None:
            return said
        return _joined(said, self._kept(text)) if text.last else _joined(self._kept(text), said)

    def _kept(self, text: BlockText) -> BlockText:
        return self._pieces(
            (f"{text.scope}\0{ident}".encode(), tokens) for ident, tokens in zip(text.ids, text.tokens, strict=True)
        )

    def _of_text(self, text: str) -> BlockText | None:
        if not text:
            return None
        pieces = [text[start : start + BLOCK_CHARS] for start in range(0, len(text), BLOCK_CHARS)]
        return self._pieces((piece.encode("utf-8", "surrogatepass"), text_tokens(piece)) for piece in pieces)

    def _pieces(self, pieces: Iterable[tuple[bytes, int]]) -> BlockText:
        found = [(self._hash(data), tokens) for data, tokens in pieces]
        return BlockText(
            scope=SCOPE, ids=tuple(ident for ident, _ in found), tokens=tuple(tokens for _, tokens in found)
        )

    def _hash(self, data: bytes) -> int:
        """63 bits."""
        return int.from_bytes(blake2b(data, digest_size=8, key=self._key).digest(), "little") >> 1


def _joined(first: BlockText | None, second: BlockText | None) -> BlockText | None:
    if first is None or second is None:
        return first or second
    return BlockText(scope=SCOPE, ids=first.ids + second.ids, tokens=first.tokens + second.tokens)
