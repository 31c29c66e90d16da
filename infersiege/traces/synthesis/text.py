"""Text for what a trace knows only by length and identity: deterministic, fast, as long in tokens as the trace says."""

from __future__ import annotations

import math
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from infersiege.errors import InternalError
from infersiege.records import BlockText, Message, TextLengths
from infersiege.traces.synthesis.material import DECKS, HEADS, PIECE_UNITS, POOL_UNITS, Costs, Material, key_of

CHARS_PER_TOKEN = {"en": 5.4, "zh": 1.6}
"""Characters per token of our text where nobody knows the engine's own figure.

English: 5.4 measured with the tokenizer of SmolLM2 (49k entries); tokenizers with more entries differ little, since the
words are common ones. Chinese: typical of tokenizers made for it, others take up to three tokens a character."""

USUAL_LENGTHS: Mapping[str, TextLengths] = {
    "en": TextLengths(method="ratio", chars_per_token=CHARS_PER_TOKEN["en"], word_tokens=1.0, separator_tokens=1.0),
    "zh": TextLengths(method="ratio", chars_per_token=CHARS_PER_TOKEN["zh"], letter_tokens=0.59, separator_tokens=1.0),
}
"""Where nothing is known of the engine: a token for each English word and mark, 1.6 Chinese characters a token."""

BEYOND_TOKENS = 8
"""How far shared blocks are to end beyond the recording's boundaries. Caches find whole blocks only, and each of our
blocks is right to a word: a boundary missed by a token would cost a block of the cache."""

_SEPARATOR = "\n"
_MOST_MARK = 255


class _Place(NamedTuple):
    """Where the text of an id is in the pool, and what it costs."""

    head: list[int]
    slices: list[tuple[int, int]]
    """Words (first, end), one after the other."""
    tokens: float


class Synthesizer:
    """Writes the text of a BlockText.

    The same (seed, scope, id, language, lengths) gives the same text in every process and on every machine; fewer
    tokens of an id are a prefix of more of them, so a partly filled block still shares what it holds. Two ids differ in
    their first words, 56 bits of a hash: a million ids collide with a chance of 1 in 140,000.

    A text is its head and slices of a pool from a hashed place, cut between words where the tokens are nearest to what
    is wanted. `lengths` say what words cost; each id leaves room for the line end that joins it to the next one.
    `cache_bytes` bounds the text that is kept (least recently used goes first); 0 keeps none.
    """

    def __init__(
        self, seed: int, *, lengths: Mapping[str, TextLengths] | None = None, cache_bytes: int = 32 << 20
    ) -> None:
        """`lengths`: by language; what is missing goes by `USUAL_LENGTHS`. Raises InternalError for impossible ones."""
        self._key = key_of(seed)
        self._lengths = {**USUAL_LENGTHS, **(lengths or {})}
        self.frame = next(iter((lengths or USUAL_LENGTHS).values()))
        """What requests cost beside their texts: the same in every language."""
        self._costs: dict[str, tuple[Material, Costs]] = {}
        self._cache: OrderedDict[tuple[str, int, int, str], str] = OrderedDict()
        self._cache_limit = cache_bytes
        self._cached = 0
        for language, known in self._lengths.items():
            if not known.chars_per_token > 0:
                raise InternalError(f"chars per token of {language!r} is {known.chars_per_token}, it must be above 0")

    def text(self, block: BlockText) -> str:
        """The whole text: each id's text, joined by a line end. Ids of 0 tokens give nothing."""
        if len(block.ids) == 1:
            return self.block(block.scope, block.ids[0], block.tokens[0], block.language)
        return _SEPARATOR.join(
            [
                self.block(block.scope, ident, tokens, block.language)
                for ident, tokens in zip(block.ids, block.tokens, strict=True)
                if tokens > 0
            ]
        )

    def block(self, scope: str, ident: int, tokens: int, language: str = "en") -> str:
        """Text of one id, at least its head however few tokens are asked for; none for 0 tokens."""
        if tokens <= 0:
            return ""
        key = (scope, ident, tokens, language)
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found
        place = self._place(scope, ident, tokens, language)
        material = self._costs[language][0]
        pieces = [material.head.text(place.head)]
        pieces += [material.slice(first, end) for first, end in place.slices]
        text = pieces[0] if len(pieces) == 1 else material.head.close.join(pieces[:2])
        if len(pieces) > 2:
            text = material.space.join([text, *pieces[2:]])
        self._keep(key, text)
        return text

    def tokens(self, block: BlockText) -> float:
        """What the text of a block will hold, by what is known of the tokenizer. All but its last id count as asked."""
        last = self._place(block.scope, block.ids[-1], block.tokens[-1], block.language)
        return sum(block.tokens[:-1]) + last.tokens

    def least_tokens(self, scope: str, ident: int, language: str) -> int:
        """What an id takes when one token is asked for, and the line end after it."""
        return math.ceil(self._place(scope, ident, 1, language).tokens + self._lengths[language].separator_tokens)

    def _place(self, scope: str, ident: int, tokens: int, language: str) -> _Place:
        material, costs = self._known(language)
        digest = blake2b(f"{scope}\0{ident}\0{language}".encode(), digest_size=16, key=self._key).digest()
        head = material.head.numbers(digest[:8])
        held = costs.of_head(head)
        left = tokens - self._lengths[language].separator_tokens - held
        place = int.from_bytes(digest[8:], "little")
        slices: list[tuple[int, int]] = []
        while left > 0:
            first = place % (POOL_UNITS - PIECE_UNITS)
            end = costs.nearest(first, left)
            if end == first:
                break
            slices.append((first, end))
            taken = costs.before[end] - costs.before[first]
            held += taken
            if end < first + PIECE_UNITS:
                break
            left -= taken
            place = place * 6364136223846793005 + 1442695040888963407 & 0xFFFFFFFFFFFFFFFF  # Knuth's MMIX generator
        return _Place(head, slices, held)

    def _known(self, language: str) -> tuple[Material, Costs]:
        found = self._costs.get(language)
        if found is None:
            material = Material(self._key, language)
            found = self._costs[language] = material, costs_of(material, self._lengths[language])
        return found

    def _keep(self, key: tuple[str, int, int, str], text: str) -> None:
        size = len(text) * (1 if text.isascii() else 2)
        if size > self._cache_limit:
            return
        self._cache[key] = text
        self._cached += size
        while self._cached > self._cache_limit:
            _, old = self._cache.popitem(last=False)
            self._cached -= len(old) * (1 if old.isascii() else 2)


def costs_of(material: Material, lengths: TextLengths) -> Costs:
    """What the words of a material cost: as they were counted, else by how long they are.

    Raises InternalError for marks of another material.
    """
    items = material.head.items
    if lengths.marks:
        counted = zlib.decompress(lengths.marks)
        if len(counted) != 2 * len(items) + POOL_UNITS:
            raise InternalError(f"{len(counted)} token counts are not those of this text")
        first, later, words = counted[: len(items)], counted[len(items) : 2 * len(items)], counted[2 * len(items) :]
        return Costs(material, array("d", list(words)), list(map(float, first)), list(map(float, later)))
    per_word, per_letter, mark = lengths.word_tokens, lengths.letter_tokens, 1.0
    if not per_word and not per_letter:
        per_letter = mark = 1 / lengths.chars_per_token
        per_word = len(material.space) * per_letter
    units = array(
        "d",
        (
            per_word + per_letter * (end - start - marked)
            for start, end, marked in zip(material.starts, material.ends, material.marked, strict=True)
        ),
    )
    scales = [1.0] * DECKS
    for deck, tokens in enumerate(lengths.deck_tokens):
        start, end = material.first_of(deck)
        scales[deck] = tokens / sum(units[start:end])
    for at, (deck, marked) in enumerate(zip(material.decks, material.marked, strict=True)):
        units[at] = units[at] * scales[deck] + mark * marked
    heads = [lengths.head_tokens or per_word + per_letter * len(item) for item in items]
    return Costs(material, units, heads, heads)


def marks_of(first: Sequence[int], later: Sequence[int], words: Sequence[int]) -> bytes:
    """`TextLengths.marks` of counted tokens: of the head's items at a text's start and after a space, of the pool's."""
    return zlib.compress(bytes([min(count, _MOST_MARK) for count in (*first, *later, *words)]), 9)


class Framing:
    """What one session's requests cost beside their texts (chat template, salt), taken out of texts that are its own.

    So a request's prompt holds as many tokens as the trace says, and what requests share stays shared:

    * A request that is blocks from its beginning has its first ones made shorter, by as much as every request that
      begins with these ids, but for `BEYOND_TOKENS`. So the later ones end where the recording's did.
    * Else the last text of a turn is made shorter, where it is one id that no other request has, or ends in a block
      that is partly filled. What finds no room is taken out of a later turn's text.
    """

    def __init__(self, synthesizer: Synthesizer, *, salted: bool) -> None:
        self._synthesizer = synthesizer
        self._salted = salted
        self._counted = 0
        self._over = 0.0

    def restart(self) -> None:
        """The next turn's messages are the whole request."""
        self._counted, self._over = 0, 0.0

    def fitted(
        self, held: int, messages: Sequence[Message], texts: Sequence[BlockText | None]
    ) -> list[BlockText | None]:
        """The texts of a turn's new messages, of which `held` stand before them in the request."""
        found = list(texts)
        self._over += self._frame(held, messages)
        last = next((at for at in range(len(found) - 1, -1, -1) if found[at] is not None), None)
        for at, block in enumerate(found):
            if block is None or not block.ids:
                continue
            wanted = sum(block.tokens)
            if held == 0 and len(found) == 1 and len(block.ids) > 1:
                found[at] = block = msgspec.structs.replace(block, tokens=self._begun(block))
                self._over -= wanted - sum(block.tokens)
                wanted = sum(block.tokens)
            if at == last and wanted and _is_own(block):
                # No line end follows the last id.
                tokens = max(1, round(block.tokens[-1] - self._over + self._synthesizer.frame.separator_tokens))
                found[at] = block = msgspec.structs.replace(block, tokens=(*block.tokens[:-1], tokens))
            self._over += (self._synthesizer.tokens(block) if wanted else 0.0) - wanted
        return found

    def _begun(self, block: BlockText) -> tuple[int, ...]:
        """Tokens of a request's blocks; the first ones make room, each by what those before it left over."""
        # About half of a template stands behind the text.
        beyond = BEYOND_TOKENS + self._synthesizer.frame.request_tokens / 2
        tokens, over = list(block.tokens), round(self._over - beyond)
        for at in range(len(tokens) - (tokens[-1] < tokens[0])):
            if over <= 0:
                break
            least = self._synthesizer.least_tokens(block.scope, block.ids[at], block.language)
            less = max(0, min(over, tokens[at] - least))
            tokens[at] -= less
            over -= less
        return tuple(tokens)

    def _frame(self, held: int, messages: Sequence[Message]) -> float:
        frame = self._synthesizer.frame
        count = held + len(messages)
        if self._counted:
            cost = frame.message_tokens * (count - self._counted)
        else:
            begun_by_system = held == 0 and bool(messages) and messages[0].get("role") == "system"
            cost = frame.request_tokens
            if begun_by_system and frame.system_request_tokens is not None:
                cost = frame.system_request_tokens
            cost += frame.message_tokens * max(0, count - 1) + (frame.salt_tokens if self._salted else 0.0)
        self._counted = count
        return cost


def _is_own(block: BlockText) -> bool:
    """Whether no other request needs the end of this text."""
    return not block.shared and (len(block.ids) == 1 or block.tokens[-1] < block.tokens[0])


__all__ = ["CHARS_PER_TOKEN", "HEADS", "USUAL_LENGTHS", "Framing", "Synthesizer", "costs_of", "marks_of"]
