"""A prefix cache without end, and the walks of requests that are looked up in it, block by block.

A block is a hit while all before it were part of an earlier request, each with the same length; of itself as much is a
hit as was seen at that place. So of every distinct block of the tree of all requests the longest that it ever is is
missed once, whatever the order of the requests: the bound of a trace does not depend on who comes first. Only prompts
count, as in a replay: a recorded answer is new text when the next request brings it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from infersiege.records import BlockText
from infersiege.traces.inspection.longest_seen import LongestSeen

_MESSAGE = 0
"""Stands for the scope of what is known by its text."""

_BITS = (1 << 64) - 1
_BEFORE, _BLOCK, _LENGTH = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x9E3779B97F4A7C15
"""Odd numbers without a pattern."""


class Piece(NamedTuple):
    """A part of a request: blocks that are shared one by one, from the front."""

    scope: int
    """64 bits that no other scope has."""
    ids: tuple[int, ...]
    tokens: tuple[int, ...]
    """Of each block."""


class RequestShares(NamedTuple):
    """One request, in tokens."""

    tokens: int
    cached: int
    """Of these, what a prefix of any earlier request held."""
    own: int
    """Of these, what a prefix of an earlier request of the same session held."""


class _Walked(NamedTuple):
    """A piece that was looked up."""

    piece: Piece
    states: Sequence[int]
    """A hash of all that the request holds up to and with each of its blocks."""


class PrefixCache:
    """Every prefix of every request so far, each by a hash of 64 bits that covers all of its blocks."""

    def __init__(self) -> None:
        self.seen = LongestSeen()

    @staticmethod
    def text(block: BlockText) -> Piece:
        """Text that is known by length and identity."""
        scope = blake2b(f"{block.language}:{block.scope}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return Piece(int.from_bytes(scope, "little"), block.ids, block.tokens)

    @staticmethod
    def message(digest: int, tokens: int) -> Piece:
        """Text that is there: shared whole or not at all."""
        return Piece(_MESSAGE, (digest,), (tokens,))


class PromptWalk:
    """Requests of which each continues the one before, or replaces it. `fork` starts another with the same history."""

    def __init__(self, cache: PrefixCache, own: LongestSeen | None) -> None:
        """`own`: prefixes of the session's earlier requests, shared by its lines; None: there is no other request."""
        self._cache = cache
        self._own = own
        self._walked: list[_Walked] = []
        """What the last request held."""
        self._tokens = 0
        self._new: list[Piece] = []

    def fork(self) -> PromptWalk:
        """A walk that begins with all that this one holds, and with what the next request would add."""
        made = PromptWalk(self._cache, self._own)
        made._walked, made._tokens, made._new = list(self._walked), self._tokens, list(self._new)
        return made

    def add(self, pieces: Iterable[Piece]) -> None:
        """The next request holds these, too."""
        self._new += pieces

    def replace(self, pieces: Sequence[Piece]) -> None:
        """The next request holds these and nothing else."""
        kept = 0
        while kept < len(self._walked) and kept < len(pieces) and self._walked[kept].piece == pieces[kept]:
            kept += 1
        new = list(pieces[kept:])
        begun: list[_Walked] = []
        if new and kept < len(self._walked):
            begun, new[0] = _divided(self._walked[kept], new[0])
        self._walked = [*self._walked[:kept], *begun]
        self._tokens = sum(sum(one.piece.tokens) for one in self._walked)
        self._new = new

    def ask(self) -> RequestShares:
        """The next request is sent: it is looked up, and the cache holds it from now on."""
        # What is walked already was part of the line's last request, or of the one it was forked from.
        cached = own = self._tokens
        state = next((one.states[-1] for one in reversed(self._walked) if one.states), 0)
        for piece in self._new:
            states, keys = _hashes(piece, state)
            cached += self._cache.seen.take(keys, piece.tokens)
            own += 0 if self._own is None else self._own.take(keys, piece.tokens)
            self._walked.append(_Walked(piece, states))
            self._tokens += sum(piece.tokens)
            state = states[-1] if states else state
        self._new = []
        return RequestShares(self._tokens, cached, own)


def _hashes(piece: Piece, state: int) -> tuple[list[int], list[int]]:
    """(hash up to and with each block, each block's key). A key covers what is before a block, with all lengths, and
    the block without its own. So what follows a miss has keys that nobody has seen."""
    states, keys = [], []
    scope = piece.scope ^ _BLOCK
    for ident, tokens in zip(piece.ids, piece.tokens, strict=True):
        # Multiplied and folded to 64 bits, as wyhash does. Python's own hash takes -1 and -2 for the same.
        product = (state ^ _BEFORE) * ((ident ^ scope) & _BITS)
        key = (product ^ product >> 64) & _BITS
        state = (key + tokens * _LENGTH) & _BITS
        keys.append(key)
        states.append(state)
    return states, keys


def _divided(old: _Walked, new: Piece) -> tuple[list[_Walked], Piece]:
    """The blocks that two pieces begin with, as walked; and what is left of the new one."""
    count = 0
    if old.piece.scope == new.scope:
        count = min(_common(old.piece.ids, new.ids), _common(old.piece.tokens, new.tokens))
    if not count:
        return [], new
    kept = Piece(new.scope, new.ids[:count], new.tokens[:count])
    return [_Walked(kept, old.states[:count])], Piece(new.scope, new.ids[count:], new.tokens[count:])


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
