"""One document that holds every word of a material, and what its token counts say about our texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Protocol

from infersiege.records import TextLengths
from infersiege.traces import prompt_salt
from infersiege.traces.synthesis.material import Material
from infersiege.traces.synthesis.text import marks_of

SALTS: Final = 16
"""Salt lines whose mean stands for the run's: they differ by a token or so."""


class Counter(Protocol):
    """Counts the tokens of text."""

    def begun(self, text: str, offsets: Sequence[int]) -> list[int]:
        """How many tokens begin before each of the character offsets, which ascend.

        Raises CountError when it can't.
        """


class CountError(Exception):
    """Why a way to count tokens can't be used, in words that go after a colon."""


def salt_lines(count: int) -> str:
    return "".join(f"{prompt_salt('infersiege', number)}\n" for number in range(count))


class Probe:
    """The document: a salt's line; the head's items, a line each; the same in a row; the pool."""

    def __init__(self, material: Material, salt: str | None = None) -> None:
        """`salt`: the run's own; None: the mean of several stands for it."""
        self._material = material
        self._salts = SALTS if salt is None else 1
        head = material.head
        self.offsets: list[int] = []
        text = salt_lines(SALTS) if salt is None else f"{salt}\n"
        self.offsets.append(len(text))
        # Each item as the beginning of a text.
        for item in head.items:
            self.offsets += (len(text), len(text) + len(item))
            text += item + "\n"
        # And after another one. Chinese characters are set apart: side by side they would become words.
        text += "and" if material.space else "。"
        for item in head.items:
            start = len(text) if material.space else len(text) + 1
            text += (material.space or "，") + item
            self.offsets += (start, len(text))
        text += head.close
        begun = len(text)
        self.offsets.append(begun - len(material.space))
        self.offsets += [begun + end for end in material.ends]
        self.text = text + material.text

    def lengths(self, begun: Sequence[int], method: str) -> TextLengths:
        """What the counts at `offsets` say; nothing of the chat template yet."""
        items = len(self._material.head.items)
        first = [begun[1 + 2 * number + 1] - begun[1 + 2 * number] for number in range(items)]
        ends = [begun[1 + 2 * number + 1] for number in range(items - 1)]
        starts = [begun[1 + 2 * number] for number in range(1, items)]
        at = 1 + 2 * items
        later = [begun[at + 2 * number + 1] - begun[at + 2 * number] for number in range(items)]
        pool = begun[at + 2 * items :]
        words = [after - before for before, after in pairwise(pool)]
        if pool[-1] <= pool[0]:
            raise CountError("it finds no tokens in a text")
        return TextLengths(
            method=method,
            chars_per_token=len(self._material.text) / (pool[-1] - pool[0]),
            separator_tokens=(sum(starts) - sum(ends)) / (items - 1),
            salt_tokens=begun[0] / self._salts,
            marks=marks_of(first, later, words),
        )
