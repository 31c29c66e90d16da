"""JSON and text that are not quite right, read and written all the same. Pure; off the hot path."""

from __future__ import annotations

import json
from typing import Any


def lenient_json(payload: bytes) -> Any:
    """JSON by the standard library: takes bad UTF-8 (as U+FFFD), half surrogate pairs, NaN, numbers of any length.

    Raises ValueError on what is no JSON, or is nested deeper than the interpreter can follow.
    """
    try:
        return json.loads(payload.decode("utf-8", "replace"), parse_int=_integer)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _integer(digits: str) -> int | float:
    """Python refuses to read integers of more than 4300 digits, which JSON allows."""
    return int(digits) if len(digits) < 40 else float(digits)


def joined(parts: list[str]) -> str:
    """One text that can be written as UTF-8: halves of a surrogate pair from two chunks meet, single ones go."""
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return mended(text)
    return text


def mended(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encodable(value: Any) -> Any:
    """The same value with every string and key fit for UTF-8."""
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, dict):
        return {mended(key) if isinstance(key, str) else str(key): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [encodable(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, float) and value - value != 0:  # NaN and infinity are no JSON
        return None
    return value
