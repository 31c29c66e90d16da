"""Values of rows that hold people's work: checked with messages that say the place and the kind, never the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infersiege.errors import TraceError
from infersiege.traces.files.stamps import Stamps
from infersiege.traces.files.values import MOST_TOKENS

_HINT = "is the format the right one, and the file whole? docs/traces-formats has a page of each format"


def token_count(usage: Mapping[str, Any], key: str, place: str) -> int:
    """0 where it is missing or null. Raises TraceError."""
    value = usage.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(f"{place}: {key} is a {type(value).__name__}, a whole number of tokens is wanted", hint=_HINT)
    if not 0 <= value <= MOST_TOKENS:
        raise TraceError(f"{place}: {key} is {'below 0' if value < 0 else 'more than any request has'}", hint=_HINT)
    return value


def want_string(row: Mapping[str, Any], key: str, place: str) -> str:
    """Raises TraceError."""
    value = row.get(key)
    if not isinstance(value, str):
        seen = "is missing" if key not in row else f"is a {type(value).__name__}"
        raise TraceError(f"{place}: {key} {seen}, a string is wanted", hint=_HINT)
    return value


def moment_ns(row: Mapping[str, Any], key: str, place: str) -> int:
    """ns since the epoch of an ISO date, or of a Unix time whose size tells its unit. Raises TraceError."""
    value = row.get(key)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        seen = "is missing" if key not in row else f"is a {type(value).__name__}"
        raise TraceError(f"{place}: {key} {seen}, a date or a Unix time is wanted", hint=_HINT)
    return Stamps(None).ns({key: value}, key, place)
