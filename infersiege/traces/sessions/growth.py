"""Requests that are known by their lengths only: a context that grows from round to round, so that prefixes stay."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple, TypeAlias

import msgspec

from infersiege.records import BlockText, Message, Turn
from infersiege.traces.trace import ReadOptions


class _Piece(NamedTuple):
    """A message of the history: texts of one scope."""

    role: str
    scope: str
    ids: tuple[int, ...]
    tokens: tuple[int, ...]
    """As recorded, not scaled."""


Resent: TypeAlias = set[tuple[str, int]]
"""(scope, first id) of texts that a later request, which replaces the history, holds again."""


def settled(turns: tuple[Turn, ...], resent: Resent) -> tuple[Turn, ...]:
    """A session's turns, once all are known: what is sent again must be the same text each time, to its last word."""
    if not resent:
        return turns
    return tuple(
        msgspec.structs.replace(turn, texts=tuple(_settled(text, resent) for text in turn.texts)) for turn in turns
    )


def _settled(text: BlockText | None, resent: Resent) -> BlockText | None:
    if text is None or (text.scope, text.ids[0]) not in resent:
        return text
    return msgspec.structs.replace(text, shared=True)


class Growth:
    """The history of one line of a session, and the turns that it makes.

    Each round adds a user message of the new tokens, and its answer. Where a round's prefix is shorter than what is
    held, the history was cut or rewritten (compaction): the request is then that many tokens from the beginning of
    what was held, as the messages they were in, and the new ones. That keeps as much identity as a length can tell: a
    prefix cache finds in it what it found in the recording.
    """

    def __init__(self, options: ReadOptions, scope: str, resent: Resent) -> None:
        """`scope`: of all texts of this line; that of its answers is `scope/answer`. `resent`: the session's."""
        self._options = options
        self._scope = scope
        self._resent = resent
        self._pieces: list[_Piece] = []
        self._held = 0
        self._sent = 0
        """Scaled tokens of the pieces."""
        self._pending: list[tuple[int, int]] = []
        """(id, tokens) of rounds that were left out: their text goes before the next one's."""
        self._count = count(1)

    @property
    def held(self) -> int:
        """Tokens of the history so far, as recorded, with the last answer; without what waits."""
        return self._held

    def wait(self, tokens: int) -> None:
        """Text of a round that is left out: it goes out with the next turn, as far as that has room for it."""
        self._pending.append((self._id(), tokens))

    def turn(
        self,
        *,
        prefix: int,
        new: int,
        output: int,
        delay_ns: int = 0,
        shared: int = 0,
        shared_scope: str = "",
        whole: bool = False,
    ) -> Turn:
        """The next request: `prefix` tokens of what was there, then `new` ones (at least 1), and its answer.

        A prefix that is longer than what is held becomes text of this round. Of a first round's, the `shared` first
        tokens are a system message of `shared_scope`: the same text in every session that has it. `whole`: the turn
        replaces the history in any case (another line's turn came before it).
        """
        replaces = whole or prefix < self._held
        if prefix < self._held:
            self._cut(prefix)
        if replaces:
            self._resent.update((piece.scope, piece.ids[0]) for piece in self._pieces)
        begin = len(self._pieces)
        if shared and not self._pieces:
            self._append(_Piece("system", shared_scope, (1,), (shared,)))
            self._held += shared
        added = self._added(prefix - self._held, new)
        self._append(_Piece("user", self._scope, tuple(one[0] for one in added), tuple(one[1] for one in added)))
        messages = self._pieces if replaces else self._pieces[begin:]
        asked = self._options.output_tokens(output)
        answer = _Piece("assistant", f"{self._scope}/answer", (self._id(),), (output,))
        turn = Turn(
            messages=tuple([_message(piece) for piece in messages]),
            texts=tuple([self._text(piece) for piece in messages]),
            replaces_history=replaces,
            delay_ns=delay_ns,
            asked_prompt_tokens=self._sent,
            asked_output_tokens=asked,
            answer_text=self._text(answer),
        )
        self._append(answer)
        self._held = prefix + new + output
        return turn

    def request(
        self, *, total: int, cached: int, output: int, shared_scope: str | None = None, whole: bool = False
    ) -> Turn:
        """The next request where only its whole length is told, and how much of it the recording's cache held.

        A request that is longer than what is held goes on from there, whatever the cache had lost. A shorter one was
        cut: as much of it as was in the cache is the beginning of what was held. What a first request found in the
        cache came from other sessions: it is the system message of `shared_scope` (None: text of its own).
        """
        cached = min(cached, total - 1)
        if not self._pieces:
            shared = 0 if shared_scope is None else cached
            return self.turn(
                prefix=shared,
                new=total - shared,
                output=output,
                shared=shared,
                shared_scope=shared_scope or "",
                whole=whole,
            )
        prefix = self._held if total > self._held else min(cached, self._held)
        return self.turn(prefix=prefix, new=total - prefix, output=output, whole=whole)

    def beside(self, *, total: int, cached: int, output: int) -> Turn:
        """A request that ran beside this line: it begins with as much as was in the cache, and leaves nothing here."""
        other = Growth(self._options, self._scope, self._resent)
        other._pieces, other._held, other._sent, other._count = list(self._pieces), self._held, self._sent, self._count
        prefix = min(cached, total - 1, self._held)
        return other.turn(prefix=prefix, new=total - prefix, output=output, whole=True)

    def _id(self) -> int:
        return next(self._count)

    def _added(self, missing: int, new: int) -> list[tuple[int, int]]:
        """(id, tokens) of a round's new text; `missing` tokens of its prefix are not held."""
        added = []
        for ident, tokens in self._pending:
            if missing > 0 and tokens > 0:
                added.append((ident, min(tokens, missing)))
                missing -= tokens
        self._pending.clear()
        return [*added, (self._id(), max(0, missing) + new)]

    def _append(self, piece: _Piece) -> None:
        last = self._pieces[-1] if self._pieces else None
        self._sent += self._scaled(piece)
        if last is not None and last.role == piece.role:  # chat templates refuse two user messages in a row
            self._pieces[-1] = last._replace(ids=last.ids + piece.ids, tokens=last.tokens + piece.tokens)
        else:
            self._pieces.append(piece)

    def _cut(self, tokens: int) -> None:
        """Keep the first tokens of what is held."""
        left = tokens
        kept = []
        for piece in self._pieces:
            sizes = []
            for size in piece.tokens:
                if left > 0:
                    sizes.append(min(size, left))
                    left -= size
            if sizes:
                kept.append(piece._replace(ids=piece.ids[: len(sizes)], tokens=tuple(sizes)))
        self._pieces = kept
        self._held = tokens
        self._sent = sum(map(self._scaled, kept))

    def _sizes(self, piece: _Piece) -> tuple[int, ...]:
        options = self._options
        if options.length_scale == options.output_scale == 1.0:
            return piece.tokens
        scale = options.output_tokens if piece.role == "assistant" else options.prompt_tokens
        return tuple(map(scale, piece.tokens))

    def _scaled(self, piece: _Piece) -> int:
        sizes = self._sizes(piece)
        return sizes[0] if len(sizes) == 1 else sum(sizes)

    def _text(self, piece: _Piece) -> BlockText:
        return BlockText(
            scope=piece.scope,
            ids=piece.ids,
            tokens=self._sizes(piece),
            language=self._options.language,
            shared=piece.role == "system",
        )


def _message(piece: _Piece) -> Message:
    return {"role": piece.role, "content": ""}
