"""A prefix cache without end, and the lines of requests that are looked up in it, block by block.

A block is a hit while it and all before it were part of an earlier request. So every distinct block of the tree of all
requests is missed once, whatever the order of the requests: the bound of a trace does not depend on who comes first.
Only prompts count, as in a replay: a recorded answer is new text when the next request brings it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from infersiege.records import BlockText

_MESSAGE = -1
"""Stands for the scope of what is known by its text."""


class Piece(NamedTuple):
    """A part of a request: blocks that are shared one by one, from the front."""

    scope: int
    ids: tuple[int, ...]
    tokens: tuple[int, ...]
    """Of each block."""


class Found(NamedTuple):
    """One request, in tokens."""

    tokens: int
    cached: int
    """Of these, what a prefix of any earlier request held."""
    own: int
    """Of these, what a prefix of an earlier request of the same session held."""


class PrefixCache:
    """Every prefix of every request so far, each by a hash of 64 bits that covers all of its blocks."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self._scopes: dict[tuple[str, str], int] = {}

    def text(self, block: BlockText) -> Piece:
        """Text that is known by length and identity."""
        name = (block.scope, block.language)
        return Piece(self._scopes.setdefault(name, len(self._scopes)), block.ids, block.tokens)

    @staticmethod
    def message(digest: int, tokens: int) -> Piece:
        """Text that is there: shared whole or not at all."""
        return Piece(_MESSAGE, (digest,), (tokens,))


class Line:
    """Requests of which each continues the one before, or replaces it. `fork` starts another with the same history."""

    def __init__(self, cache: PrefixCache, own: set[int] | None) -> None:
        """`own`: prefixes of the session's earlier requests, shared by its lines; None: there is no other request."""
        self._cache = cache
        self._own = own
        self._walked: list[tuple[Piece, list[int]]] = []
        """What the last request held: pieces, with the hash of the prefix up to each of their blocks."""
        self._tokens = 0
        self._new: list[Piece] = []

    def fork(self) -> Line:
        """A line that begins with all that this one holds, and with what the next request would add."""
        made = Line(self._cache, self._own)
        made._walked, made._tokens, made._new = list(self._walked), self._tokens, list(self._new)
        return made

    def add(self, pieces: Iterable[Piece]) -> None:
        """The next request holds these, too."""
        self._new += pieces

    def replace(self, pieces: Sequence[Piece]) -> None:
        """The next request holds these and nothing else."""
        kept = 0
        while kept < len(self._walked) and kept < len(pieces) and self._walked[kept][0] == pieces[kept]:
            kept += 1
        new = list(pieces[kept:])
        cut: list[tuple[Piece, list[int]]] = []
        if new and kept < len(self._walked):
            cut, new[0] = _divided(*self._walked[kept], new[0])
        self._walked = [*self._walked[:kept], *cut]
        self._tokens = sum(sum(piece.tokens) for piece, _ in self._walked)
        self._new = new

    def ask(self) -> Found:
        """The next request is sent: it is looked up, and the cache holds it from now on."""
        # What is walked already was part of the line's last request, or of the one it was forked from.
        cached = own = self._tokens
        chain = next((chains[-1] for _, chains in reversed(self._walked) if chains), 0)
        hits = owns = True
        for piece in self._new:
            chains = _chains(piece, chain)
            hit, hits = _looked_up(self._cache.seen, piece, chains, hits)
            cached += hit
            if self._own is not None:
                hit, owns = _looked_up(self._own, piece, chains, owns)
                own += hit
            self._walked.append((piece, chains))
            self._tokens += sum(piece.tokens)
            chain = chains[-1] if chains else chain
        self._new = []
        return Found(self._tokens, cached, own)


def _chains(piece: Piece, chain: int) -> list[int]:
    scope = piece.scope
    return [chain := hash((chain, scope, ident)) for ident in piece.ids]


def _looked_up(seen: set[int], piece: Piece, chains: list[int], hits: bool) -> tuple[int, bool]:
    """Tokens that follow a cached prefix, and whether all of the piece did. Afterwards `seen` holds the piece."""
    if hits and seen.issuperset(chains):
        return sum(piece.tokens), True
    if not hits:
        seen.update(chains)
        return 0, False
    count = next(place for place, chain in enumerate(chains) if chain not in seen)
    seen.update(chains[count:])
    return sum(piece.tokens[:count]), False


def _divided(old: Piece, chains: list[int], new: Piece) -> tuple[list[tuple[Piece, list[int]]], Piece]:
    """The blocks that two pieces begin with, as walked; and what is left of the new one."""
    count = _common(old.ids, new.ids) if old.scope == new.scope else 0
    if not count:
        return [], new
    kept = Piece(new.scope, new.ids[:count], new.tokens[:count])
    return [(kept, chains[:count])], Piece(new.scope, new.ids[count:], new.tokens[count:])


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the longest common prefix, by comparing slices: histories of thousands of blocks grow by a few."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
