"""What synthesised text is made of: a pool of sentences, and the heads by which texts differ. The same everywhere."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Final

import numpy as np

from infersiege.traces.words import WORDS

POOL_WORDS: Final = 40_000
PIECE_WORDS: Final = 8_192
"""Longest slice that is taken in one piece (44 kB of English). Longer texts are made of several."""


@dataclass(frozen=True, slots=True)
class HeadAlphabet:
    """The words, or characters, that the beginning of a text is drawn from: 56 bits in all."""

    items: tuple[str, ...]
    parts: int
    bits: int
    joint: str
    close: str
    """What ends a head; the pool's text goes on after it."""

    def numbers(self, digest: bytes) -> list[int]:
        """Which items the head of a digest has."""
        number = int.from_bytes(digest, "little")
        mask = (1 << self.bits) - 1
        return [number >> self.bits * part & mask for part in range(self.parts)]

    def text(self, numbers: list[int]) -> str:
        return self.joint.join([self.items[number] for number in numbers])


_HANZI: Final = tuple(dict.fromkeys("".join(WORDS["zh"])))
HEADS: Final[dict[str, HeadAlphabet]] = {
    "en": HeadAlphabet(tuple(dict.fromkeys(WORDS["en"]))[-256:], parts=7, bits=8, joint=" ", close=" "),
    "zh": HeadAlphabet(_HANZI[:128], parts=8, bits=7, joint="", close="，"),
}
"""Common words and characters, since every tokenizer has an entry for them: a head costs what its parts cost."""


class Material:
    """A pool of sentences: slices of it, between words, are the texts."""

    def __init__(self, key: bytes, language: str) -> None:
        """`key`: 16 bytes, of the seed.

        Every word comes once before any comes again, so that pieces of the pool differ less in tokens than a dice
        would make them. Raw output of PCG64 is used, not numpy's distributions: those may change between releases.
        """
        self.language = language
        self.head = HEADS[language]
        self.space, stop, comma = (" ", ".", ",") if language == "en" else ("", "。", "，")
        picks: list[int] = np.random.PCG64(int.from_bytes(key, "little")).random_raw(2 * POOL_WORDS).tolist()
        pieces: list[str] = []
        self.starts = array("i")
        self.ends = array("i")
        """Of each word, with its punctuation and without the space after it."""
        self.marked = bytearray()
        """1 for words that a punctuation mark follows."""
        at = left = 0
        for word, pick in zip(_deck(tuple(dict.fromkeys(WORDS[language])), picks[POOL_WORDS:]), picks, strict=False):
            if left == 0:
                left = 6 + (pick & 7)
                word = word.capitalize()
            left -= 1
            mark = stop if left == 0 else comma if pick & 0xF00 == 0 else ""
            self.starts.append(at)
            self.ends.append(at + len(word) + len(mark))
            self.marked.append(bool(mark))
            pieces.append(word + mark + self.space)
            at += len(pieces[-1])
        self.text = "".join(pieces)

    @cached_property
    def sentences(self) -> list[int]:
        """Numbers of the words that end a clause: no tokenizer joins what is before them with what comes after."""
        return [number for number, marked in enumerate(self.marked) if marked]

    def slice(self, first: int, end: int) -> str:
        """Words first up to end, without a space at its end."""
        return self.text[self.starts[first] : self.ends[end - 1]] if end > first else ""


class Costs:
    """Tokens of a material's words and heads, as one tokenizer has them."""

    def __init__(self, material: Material, words: array[float], first: list[float], later: list[float]) -> None:
        """`words`: of each word of the pool, the space before it included; `first`, `later`: of the head's items."""
        self._first, self._later = first, later
        self._close = 0.0 if material.space else 1.0
        self.before = array("d", np.concatenate(([0.0], np.cumsum(np.frombuffer(words, dtype=np.float64)))))
        """Tokens of the pool before each word; one more than there are words."""

    def of_head(self, numbers: list[int]) -> float:
        return self._first[numbers[0]] + sum([self._later[number] for number in numbers[1:]]) + self._close

    def nearest(self, first: int, tokens: float) -> int:
        """The word before which `tokens` from word `first` on end, as nearly as words allow; at most one piece on."""
        wanted = self.before[first] + tokens
        end = bisect_left(self.before, wanted, first, first + PIECE_WORDS)
        if end > first and wanted - self.before[end - 1] <= self.before[end] - wanted:
            end -= 1
        return end


def _deck(words: tuple[str, ...], picks: list[int]) -> Iterator[str]:
    """All words in some order, then all in another, without end as long as there are picks (Fisher and Yates)."""
    deck: list[str] = []
    for pick in picks:
        if not deck:
            deck = list(words)
        place = (pick >> 16) % len(deck)
        deck[place], deck[-1] = deck[-1], deck[place]
        yield deck.pop()


def key_of(seed: int) -> bytes:
    return blake2b(str(seed).encode(), digest_size=16).digest()
