"""Messages without a tokenizer: about how many tokens they have, and which are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from infersiege.channels.accounting import estimate_tokens
from infersiege.records import Message

_CHARS_PER_TOKEN = 4
"""Of `estimate_tokens`, for text without Chinese, Japanese and Korean characters."""
_TEXT_FIELDS = ("reasoning_content", "reasoning", "refusal")


def message_tokens(message: Message) -> int:
    """Tokens of a message's text, tool calls and reasoning, by characters. Images and chat template count nothing."""
    return sum(text_tokens(text) for text in _texts(message))


def tool_text(tools: Sequence[dict[str, Any]]) -> str:
    return msgspec.json.encode(tools).decode()


def tool_tokens(tools: Sequence[dict[str, Any]]) -> int:
    """Tokens of tool definitions, by the characters of their JSON."""
    return text_tokens(tool_text(tools))


def message_text(message: Message) -> str:
    """All that `message_tokens` counts, as one text."""
    return "\n".join(_texts(message))


def other_parts(message: Message) -> int:
    """Parts of a message that are no text: images, audio, files."""
    content = message.get("content")
    return sum(_part(part) is None for part in content) if isinstance(content, list) else 0


def digest_of(value: object) -> int:
    """64 bits by which equal messages (or tool definitions) are known, whatever the order of their keys."""
    encoded = msgspec.json.encode(value, order="deterministic")
    return int.from_bytes(blake2b(encoded, digest_size=8).digest(), "little")


def _texts(message: Message) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (text for part in content if (text := _part(part)) is not None)
    yield from (text for name in _TEXT_FIELDS if isinstance(text := message.get(name), str))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list | tuple) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield f"{function.get('name') or ''}{function.get('arguments') or ''}"


def _part(part: object) -> str | None:
    """The text of a content part; None: it is something else."""
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def text_tokens(text: str) -> int:
    """Tokens of a text, by its characters; 0 for none."""
    return -(-len(text) // _CHARS_PER_TOKEN) if text.isascii() else estimate_tokens(text, 0)
