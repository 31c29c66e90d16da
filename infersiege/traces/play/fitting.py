"""Requests that are longer than the model takes: how long one is, and what of it is left when it is cut to fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from infersiege.records import BlockText, Message
from infersiege.traces.inspection.message_size import message_tokens, tool_tokens

Part: TypeAlias = tuple[Message, BlockText | None]
"""A message of a request, and the text that is to be written into its content."""

LEAST_TOKENS = 16
"""What a synthesised text keeps of itself however much is cut: its first word takes most of it."""

_KEPT = frozenset({"system", "developer"})
"""Roles of messages that are never dropped."""


def guessed_tokens(parts: Iterable[Part], tools: Sequence[dict[str, Any]] | None = None) -> int:
    """About how many tokens a request holds, as `traces inspect` estimates it: synthesised texts by what was asked for,
    the rest by its characters."""
    return sum(map(part_tokens, parts)) + tools_tokens(tools)


def tools_tokens(tools: Sequence[dict[str, Any]] | None) -> int:
    return tool_tokens(tools) if tools else 0


def part_tokens(part: Part) -> int:
    """Text, tool calls and synthesised text of one message; images and sounds are not counted."""
    message, block = part
    return message_tokens(message) + (sum(block.tokens) if block is not None else 0)


def clipped(parts: Sequence[Part], tokens: int, room: int, *, fixed: int = 0) -> tuple[list[Part], int] | None:
    """A request of `tokens`, cut to `room`: (its parts, the tokens that it then holds). None: it can't be.

    The largest synthesised text loses blocks from its end, then the next largest. Where that is not enough, the oldest
    messages go in whole exchanges, and of the last one the oldest calls with their results; system messages, the last
    question and the last results stay. `fixed`: tokens that are in no message (tools).
    """
    left = list(parts)
    tokens -= _shorten(left, tokens - room)
    if tokens > room:
        sizes = [part_tokens(part) for part in left]
        # What the trace counted and what is guessed of its messages differ, and the whole is the trace's.
        scale = tokens / max(1, sum(sizes) + fixed)
        gone: set[int] = set()
        for exchange in _droppable(left):
            if tokens <= room:
                break
            gone.update(exchange)
            tokens -= int(sum(sizes[place] for place in exchange) * scale)
        left = [part for place, part in enumerate(left) if place not in gone]
    return None if tokens > room or not left else (left, tokens)


def _shorten(parts: list[Part], excess: int) -> int:
    """Cut synthesised texts in place; returns how many tokens went."""
    cut = 0
    sizes = {place: sum(block.tokens) for place, (_, block) in enumerate(parts) if block is not None}
    while cut < excess and sizes:
        largest = max(sizes, key=lambda place: (sizes[place], -place))
        less = min(excess - cut, sizes.pop(largest) - LEAST_TOKENS)
        message, block = parts[largest]
        if less > 0 and block is not None:
            parts[largest] = (message, _without_end(block, less))
            cut += less
    return cut


def _without_end(block: BlockText, tokens: int) -> BlockText:
    """The text without its last tokens: whole blocks, and of the last one that stays its end."""
    left = sum(block.tokens) - tokens
    kept: list[int] = []
    for size in block.tokens:
        if left <= 0:
            break
        kept.append(min(size, left))
        left -= size
    return msgspec.structs.replace(block, ids=block.ids[: len(kept)], tokens=tuple(kept))


def _droppable(parts: Sequence[Part]) -> Iterator[list[int]]:
    """Places of the messages that may go, oldest first, each list as a whole."""
    spoken = [place for place, (message, _) in enumerate(parts) if message.get("role") not in _KEPT]
    *earlier, last = _split(parts, spoken, "user") or [[]]
    yield from earlier
    steps = _split(parts, last, "assistant")
    # What stands before the first answer is the question.
    yield from steps[1:-1] if last and parts[last[0]][0].get("role") == "user" else steps[:-1]


def _split(parts: Sequence[Part], places: Sequence[int], role: str) -> list[list[int]]:
    """Runs of messages, each of which begins with one or several of this role (but the first, perhaps)."""
    runs: list[list[int]] = []
    before: object = None
    for place in places:
        now = parts[place][0].get("role")
        if not runs or (now == role and before != role):
            runs.append([])
        runs[-1].append(place)
        before = now
    return runs
