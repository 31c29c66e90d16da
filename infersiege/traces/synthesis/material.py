"""What synthesised text is made of: a pool of sentences, and the heads by which texts differ. The same everywhere."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np

from infersiege.traces.synthesis.words import WORDS

POOL_UNITS: Final = 40_000
"""English words or Chinese characters, each with the punctuation mark after it."""
PIECE_UNITS: Final = 8_192
"""Longest slice that is taken in one piece (44 kB of English). Longer texts are made of several."""
DECKS: Final = 5
"""The words are dealt into so many decks, and the pool goes through one after the other, shuffled each time: where only
a deck's tokens as a whole are known (`calibrated`), a slice can't be far from what they make it."""


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
    """A pool of sentences: slices of it are the texts, cut between English words or Chinese characters (units)."""

    def __init__(self, key: bytes, language: str) -> None:
        """`key`: 16 bytes, of the seed. Raw output of PCG64 is used, not numpy's distributions: those may change
        between releases."""
        self.language = language
        self.words = tuple(dict.fromkeys(WORDS[language]))
        self.head = HEADS[language]
        self.space, stop, comma = (" ", ".", ",") if language == "en" else ("", "。", "，")
        picks: list[int] = np.random.PCG64(int.from_bytes(key, "little")).random_raw(2 * POOL_UNITS).tolist()
        pieces: list[str] = []
        self.starts = array("i")
        self.ends = array("i")
        """Of each unit, with its punctuation and without the space after it."""
        self.marked = bytearray()
        """1 for units that a punctuation mark follows."""
        self.decks = bytearray()
        """Which deck each unit is of."""
        at = left = 0
        for (word, deck), pick in zip(_dealt(self.words, picks[POOL_UNITS:]), picks, strict=False):
            if len(self.starts) >= POOL_UNITS:
                break
            if left == 0:
                left = 6 + (pick & 7)
                word = word.capitalize()
            left -= 1
            mark = stop if left == 0 else comma if pick & 0xF00 == 0 else ""
            units = (word,) if self.space else tuple(word)
            for number, unit in enumerate(units, 1):
                ends = mark if number == len(units) else ""
                self.starts.append(at)
                self.ends.append(at + len(unit) + len(ends))
                self.marked.append(bool(ends))
                self.decks.append(deck)
                pieces.append(unit + ends + self.space)
                at += len(pieces[-1])
        del self.starts[POOL_UNITS:], self.ends[POOL_UNITS:], self.marked[POOL_UNITS:], self.decks[POOL_UNITS:]
        self.text = "".join(pieces)[: self.ends[-1]]

    def first_of(self, deck: int) -> tuple[int, int]:
        """Units (first, end) of the pool that hold every word of a deck once."""
        first = self.decks.index(deck)
        return first, next(at for at in range(first, POOL_UNITS) if self.decks[at] != deck)

    def slice(self, first: int, end: int) -> str:
        """Units first up to end, without a space at its end."""
        return self.text[self.starts[first] : self.ends[end - 1]] if end > first else ""


class Costs:
    """Tokens of a material's units and heads, as one tokenizer has them."""

    def __init__(self, material: Material, units: array[float], first: list[float], later: list[float]) -> None:
        """`units`: of each unit of the pool, the space before it included; `first`, `later`: of the head's items."""
        self._first, self._later = first, later
        self._close = 0.0 if material.space else 1.0
        self.before = array("d", np.concatenate(([0.0], np.cumsum(np.frombuffer(units, dtype=np.float64)))))
        """Tokens of the pool before each unit; one more than there are units."""

    def of_head(self, numbers: list[int]) -> float:
        return self._first[numbers[0]] + sum([self._later[number] for number in numbers[1:]]) + self._close

    def nearest(self, first: int, tokens: float) -> int:
        """The unit before which `tokens` from unit `first` on end, as nearly as units allow; at most one piece on."""
        wanted = self.before[first] + tokens
        end = bisect_left(self.before, wanted, first, first + PIECE_UNITS)
        if end > first and wanted - self.before[end - 1] <= self.before[end] - wanted:
            end -= 1
        return end


def _dealt(words: tuple[str, ...], picks: list[int]) -> Iterator[tuple[str, int]]:
    """(word, its deck), deck after deck, as long as there are picks (Fisher and Yates)."""
    left: list[str] = []
    number = -1
    for pick in picks:
        if not left:
            number = (number + 1) % DECKS
            left = list(words[number::DECKS])
        place = (pick >> 16) % len(left)
        left[place], left[-1] = left[-1], left[place]
        yield left.pop(), number


def key_of(seed: int) -> bytes:
    return blake2b(str(seed).encode(), digest_size=16).digest()
