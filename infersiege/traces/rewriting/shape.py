"""A session's shape without a word of its text: lengths, and hashes that say which texts are alike.

What people wrote stays at home; what a prefix cache, a scheduler and a batch see goes with the trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from infersiege.records import BlockText, Message, Session, Turn
from infersiege.traces.formats.normal import Header
from infersiege.traces.inspection.message_size import message_text, text_tokens, tool_text
from infersiege.traces.sessions.chat import REQUEST_FIELDS
from infersiege.traces.synthesis.words import WORDS

SCOPE = "shape"
BLOCK_CHARS = 256
"""Texts are hashed in pieces of so many characters: what is alike up to there stays alike."""
_ROLES = {"system": "system", "developer": "system", "assistant": "assistant"}
"""All others speak as users: results of calls that are no longer there would be refused."""
IMAGE_TOKENS = 800
"""Of an image (or another part that is no text): in the middle of what vision models charge."""


class Shaper:
    """Makes shapes with one key: whoever lacks it can't tell a text by trying which one has a given hash."""

    def __init__(self, key: bytes, *, language: str = "en") -> None:
        """`key`: up to 64 bytes, not to be told to those who get the trace. `language`: of recorded texts."""
        self._key = key
        self._language = language

    def session(self, session: Session) -> Session:
        """The same turns, times and lengths; ids are hashes, tool definitions become text of their length.

        Recorded texts become text of the session's other texts' language, of the shaper's where it has none."""
        language = _language(session)
        if language is not None and language != self._language:
            return Shaper(self._key, language=language).session(session)
        return Session(
            session_id=f"{self._hash(session.session_id.encode()):016x}",
            turns=self._line(session.turns, session.tools),
            branches=tuple(
                msgspec.structs.replace(branch, turns=self._line(branch.turns, session.tools, inherits=branch.inherits))
                for branch in session.branches
            ),
            arrival_ns=session.arrival_ns,
            source_line=session.source_line,
        )

    def _line(
        self, turns: Sequence[Turn], tools: Sequence[dict[str, Any]] | None, *, inherits: bool = False
    ) -> tuple[Turn, ...]:
        shaped = []
        for number, turn in enumerate(turns):
            own = turn.tools if turn.tools is not None else tools
            # Tool definitions stand before everything else in a prompt, and only once.
            first = (number == 0 and not inherits) or turn.replaces_history
            shaped.append(self._turn(turn, tool_text(own) if own and first else ""))
        return tuple(shaped)

    def _turn(self, turn: Turn, tools: str) -> Turn:
        texts = turn.texts or (None,) * len(turn.messages)
        messages: list[tuple[str, BlockText | None]] = []
        for message, text in zip(turn.messages, texts, strict=True):
            role = _ROLES.get(str(message.get("role")), "user")
            block = self._block(message, text)
            if messages and messages[-1][0] == role:
                messages[-1] = (role, _joined(messages[-1][1], block))
            else:
                messages.append((role, block))
        if tools and messages:
            messages[0] = (messages[0][0], _joined(self._of_text(tools), messages[0][1]))
        answer = self._answer(turn)
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
            # Names that are no request's may be people's words, too.
            extra={
                key: value
                for key, value in turn.extra.items()
                if key in REQUEST_FIELDS and isinstance(value, bool | int | float)
            },
        )

    def _answer(self, turn: Turn) -> BlockText | None:
        """All that was answered; a synthesised text belongs to the last message."""
        recorded = turn.recorded_answer
        answer = None
        for place, message in enumerate(recorded, 1):
            answer = _joined(answer, self._block(message, turn.answer_text if place == len(recorded) else None))
        if not recorded and turn.answer_text is not None:
            answer = self._kept(turn.answer_text)
        return answer

    def _block(self, message: Message, text: BlockText | None) -> BlockText | None:
        """All that a message says: what is known by blocks stays that, with hashed ids."""
        said = self._of_text(message_text(message))
        pictures = [(msgspec.json.encode(part), IMAGE_TOKENS) for part in _pictures(message)]
        if pictures:
            said = _joined(said, self._pieces(pictures, self._language))
        if text is None:
            return said
        return _joined(said, self._kept(text)) if text.last else _joined(self._kept(text), said)

    def _kept(self, text: BlockText) -> BlockText:
        pieces = (
            (f"{text.scope}\0{ident}".encode("utf-8", "surrogatepass"), tokens)
            for ident, tokens in zip(text.ids, text.tokens, strict=True)
        )
        found = self._pieces(pieces, text.language if text.language in WORDS else self._language)
        return msgspec.structs.replace(found, shared=text.shared, last=text.last)

    def _of_text(self, text: str) -> BlockText | None:
        if not text:
            return None
        pieces = [text[start : start + BLOCK_CHARS] for start in range(0, len(text), BLOCK_CHARS)]
        encoded = ((piece.encode("utf-8", "surrogatepass"), text_tokens(piece)) for piece in pieces)
        return self._pieces(encoded, self._language)

    def _pieces(self, pieces: Iterable[tuple[bytes, int]], language: str) -> BlockText:
        found = [(self._hash(data), tokens) for data, tokens in pieces]
        return BlockText(
            scope=SCOPE,
            ids=tuple(ident for ident, _ in found),
            tokens=tuple(tokens for _, tokens in found),
            language=language,
        )

    def _hash(self, data: bytes) -> int:
        """63 bits."""
        return int.from_bytes(blake2b(data, digest_size=8, key=self._key).digest(), "little") >> 1


_CHANGES = re.compile(
    r"redact|shape-only|thin [0-9.e-]+|stretch [0-9.e+-]+(?: with delays)?|multiply [0-9]+"
    r"|sample (?:share [0-9.e-]+|count [0-9]+|from [0-9.a-z]+ to (?:the end|[0-9.a-z]+))"
)
"""What we write. `--from` and `--to` were parsed as durations, whose units are these letters."""


def shape_header(header: Header, format: str) -> Header:
    """The format of the original and what was done to it, without its name, which may be a person's, and without its
    hash: who guesses a short file could try."""
    known = (change if _CHANGES.fullmatch(change) else "another change" for change in header.changes)
    return Header(infersiege_trace=header.infersiege_trace, made_from=format, changes=tuple(known))


def _joined(first: BlockText | None, second: BlockText | None) -> BlockText | None:
    """One text of both. The first says its language, so that what begins alike stays alike; where one of them is shared
    nothing may be cut."""
    if first is None or second is None:
        return first or second
    return BlockText(
        scope=SCOPE,
        ids=first.ids + second.ids,
        tokens=first.tokens + second.tokens,
        language=first.language,
        shared=first.shared or second.shared,
        last=first.last or second.last,
    )


def _pictures(message: Message) -> list[Any]:
    """Parts that are no text."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [
        part
        for part in content
        if not isinstance(part, str) and not (isinstance(part, dict) and isinstance(part.get("text"), str))
    ]


def _language(session: Session) -> str | None:
    """Of the texts that it is to be given; None: it has none."""
    blocks = (block for turn in session.all_turns() for block in (*turn.texts, turn.answer_text) if block is not None)
    return next((block.language for block in blocks if block.language in WORDS), None)
