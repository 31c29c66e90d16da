"""Text for what a trace knows only by length and identity: deterministic, fast, different from its first word on."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

import numpy as np

from infersiege.errors import InternalError
from infersiege.records import BlockText
from infersiege.traces.words import WORDS

CHARS_PER_TOKEN = {"en": 5.4, "zh": 1.6}
"""Characters per token of our text where the engine's own ratio is not known.

English: 5.4 measured with the tokenizer of SmolLM2 (49k entries); tokenizers with more entries differ little, since the
words are common ones. Chinese: typical of tokenizers made for it, others take up to three tokens a character. An
engine's usage counts give the true ratio, which then goes to `Synthesizer(chars_per_token=...)`."""

_POOL_CHARS = 1 << 20
_PIECE_CHARS = 1 << 16
_SYLLABLES = tuple(c + v for c in "bcdfghjklmnprstvwxz" for v in ("a", "e", "i", "o", "u", "y", "ai"))[:128]
_SEPARATOR = "\n"
_HEAD_TOKENS = 9
"""What the first word takes: no tokenizer knows it, so it is cut into its syllables or characters."""


class Synthesizer:
    """Writes the text of a BlockText.

    The same (seed, scope, id, language) gives the same text in every process and on every machine; fewer tokens of an
    id are a prefix of more of them, so a partly filled block still shares what it holds. Two ids start with different
    words (56 bits of a hash: a million ids collide with a chance of 1 in 140,000).

    Material is built once per language; a block is a slice of it from a hashed place, so that it costs a copy and one
    short hash. `cache_bytes` bounds the text that is kept (least recently used goes first); 0 keeps none.
    """

    def __init__(
        self, seed: int, *, chars_per_token: dict[str, float] | None = None, cache_bytes: int = 32 << 20
    ) -> None:
        self._key = blake2b(str(seed).encode(), digest_size=16).digest()
        self._ratio = {**CHARS_PER_TOKEN, **(chars_per_token or {})}
        for language, ratio in self._ratio.items():
            if not ratio > 0:
                raise InternalError(f"chars per token of {language!r} is {ratio}, it must be above 0")
        self._pools: dict[str, tuple[str, list[int]]] = {}
        self._cache: OrderedDict[tuple[str, int, int, str], str] = OrderedDict()
        self._cache_limit = cache_bytes
        self._cached = 0

    @property
    def cached_bytes(self) -> int:
        """Size of the kept text, counted as it lies in memory (two bytes a character for Chinese)."""
        return self._cached

    def text(self, block: BlockText) -> str:
        """The whole text: each id's text, joined by a line end. Ids of 0 tokens give nothing."""
        if len(block.ids) == 1:
            return self.block(block.scope, block.ids[0], block.tokens[0], block.language)
        return _SEPARATOR.join(
            self.block(block.scope, ident, tokens, block.language)
            for ident, tokens in zip(block.ids, block.tokens, strict=True)
            if tokens > 0
        )

    def block(self, scope: str, ident: int, tokens: int, language: str = "en") -> str:
        """Text of one id, at least its first word however few tokens are asked for; none for 0 tokens."""
        if tokens <= 0:
            return ""
        key = (scope, ident, tokens, language)
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found
        text = self._make(scope, ident, tokens, language)
        self._keep(key, text)
        return text

    def _make(self, scope: str, ident: int, tokens: int, language: str) -> str:
        digest = blake2b(f"{scope}\0{ident}\0{language}".encode(), digest_size=16, key=self._key).digest()
        head = _head(digest[:8], language)
        wanted = round((tokens - _HEAD_TOKENS) * self._ratio[language])
        if wanted <= 0:
            return head
        pool, starts = self._pool(language)
        place = int.from_bytes(digest[8:], "little")
        if wanted <= _PIECE_CHARS:
            start = starts[place % len(starts)]
            return head + pool[start : start + wanted]
        pieces = [head]
        while wanted > 0:
            start = starts[place % len(starts)]
            pieces.append(pool[start : start + min(wanted, _PIECE_CHARS)])
            wanted -= _PIECE_CHARS
            place = place * 6364136223846793005 + 1442695040888963407 & 0xFFFFFFFFFFFFFFFF  # Knuth's MMIX generator
        return "".join(pieces)

    def _pool(self, language: str) -> tuple[str, list[int]]:
        found = self._pools.get(language)
        if found is None:
            found = self._pools[language] = _material(self._key, language)
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


def _head(digest: bytes, language: str) -> str:
    """The first word: eight syllables (or characters) of seven bits each."""
    number = int.from_bytes(digest, "little")
    alphabet = _SYLLABLES if language == "en" else _CHARACTERS
    word = "".join(alphabet[number >> 7 * place & 127] for place in range(8))
    return word.capitalize() + " " if language == "en" else word + "，"


def _material(key: bytes, language: str) -> tuple[str, list[int]]:
    """A pool of sentences and the places where a word starts, each with a whole piece of text after it.

    Raw output of PCG64 is used, not numpy's distributions: those may change between releases of numpy.
    """
    words = WORDS[language]
    source = np.random.PCG64(int.from_bytes(key, "little"))
    picks = source.random_raw(_POOL_CHARS // 2)
    space, stop, comma = (" ", ". ", ", ") if language == "en" else ("", "。", "，")
    pieces: list[str] = []
    starts: list[int] = []
    at = left = 0
    for pick in picks.tolist():
        word = words[(pick >> 16) % len(words)]
        if left == 0:
            left = 6 + (pick & 7)
            word = word.capitalize()
        left -= 1
        word += stop if left == 0 else comma if pick & 0xF00 == 0 else space
        starts.append(at)
        pieces.append(word)
        at += len(word)
        if at >= _POOL_CHARS:
            break
    return "".join(pieces), [start for start in starts if start + _PIECE_CHARS <= at]


_CHARACTERS = tuple(dict.fromkeys("".join(WORDS["zh"])))[:128]
