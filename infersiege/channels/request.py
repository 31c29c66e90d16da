"""What the request bodies of all dialects share: which fields are refused, which left out, and how they are written."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from infersiege.channels.leniency import encodable
from infersiege.errors import UsageError

_SEVERAL = "several answers in one stream have no times of their own; send one request for each"


def refusal(name: str, value: object) -> str | None:
    """Why a request field can't be sent; None: it can."""
    if name in ("n", "best_of"):
        return _SEVERAL if isinstance(value, int) and value > 1 else None
    if name == "echo" and value:
        return "the first chunk would be the prompt, which is nothing generated"
    if name == "background" and value:
        return "the answer would be fetched later, in another request"
    return None


def refuse(fields: Mapping[str, Any]) -> None:
    """Raise UsageError for the first field that can't be sent."""
    for name, value in fields.items():
        if (reason := refusal(name, value)) is not None:
            raise UsageError(f"{name} = {value!r} can't be measured: {reason}", hint=f"take {name} out of extra_body")


def given(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Without the keys that are None or empty."""
    return {key: value for key, value in sampling.items() if value is not None and value not in ((), [], "")}


_OTHER_WORDS = {"stop": "stop_sequences"}
"""Sampling field -> the same in Anthropic's words."""


def without(fields: Mapping[str, Any], dropped: Collection[str]) -> dict[str, Any]:
    """The fields that the server takes. `dropped` names those that it refuses, in the words of either protocol."""
    return {
        name: value
        for name, value in fields.items()
        if name not in dropped and _OTHER_WORDS.get(name, name) not in dropped
    }


def encoded(body: dict[str, Any]) -> bytes:
    """UTF-8 JSON. Never raises for text: half surrogate pairs, which JSON traces can hold, become U+FFFD."""
    try:
        return msgspec.json.encode(body)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError):
        return json.dumps(encodable(body), ensure_ascii=False, default=str).encode("utf-8", "replace")
