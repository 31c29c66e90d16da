"""Values of trace rows: decoded, and checked with messages that say the place and what was seen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from infersiege.channels.redaction import looks_secret
from infersiege.errors import TraceError

MOST_TOKENS = 1_000_000_000
"""Of one prompt or answer: a larger length is a misread column."""
_LARGEST_NUMBER = 1e20
"""Of anything that is counted or timed: beyond the Unix epoch in ns, and far from what a float can't hold."""

_HINT = "is the trace's format the right one, and this the right field?"


def decode_json(data: str | bytes) -> Any:
    """Any JSON value. Raises ValueError with the reason."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(_reason(data, str(error))) from None


def _reason(data: str | bytes, seen: str) -> str:
    """msgspec says of half a surrogate pair that the input was cut; Python's own parser takes it, and NaN."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return seen
    return "it holds half a surrogate pair, NaN or Infinity"


def not_json(place: str, reason: str) -> TraceError:
    return TraceError(
        f"{place}: is not JSON ({reason})",
        hint="each line must be one whole JSON value; a cut last line means a file copied in part",
    )


def want_int(row: dict[str, Any], key: str, place: str) -> int:
    """A whole number from 0 to MOST_TOKENS (3.0 counts as 3). Raises TraceError."""
    value = row.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TraceError(f"{place}: {key} {_seen(row, key)}, a whole number of at least 0 is wanted", hint=_HINT)
    check_tokens(value, key, place)
    return value


def check_tokens(value: int, key: str, place: str) -> None:
    """Raises TraceError for more tokens than any request has."""
    if value > MOST_TOKENS:
        raise TraceError(
            f"{place}: {key} is {_digits(value)}, the most is {MOST_TOKENS:,}", hint="is this the right column?"
        )


def want_number(row: dict[str, Any], key: str, place: str) -> float | int:
    """A number that can be a time or a count. Raises TraceError."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise TraceError(f"{place}: {key} {_seen(row, key)}, a number is wanted", hint=_HINT)
    if abs(value) > _LARGEST_NUMBER:
        raise TraceError(f"{place}: {key} {_seen(row, key)}, no time is so far away", hint="check its unit")
    return value


def _seen(row: dict[str, Any], key: str) -> str:
    return "is missing" if key not in row else f"is {shown(row[key])}"


def shown(value: object) -> str:
    """What messages say of a value: numbers as they are, of everything else only what it is. Traces hold people's work,
    and what stands in the wrong place may be anything."""
    if value is None or isinstance(value, bool | float):
        return repr(str(value))
    if isinstance(value, int):
        return repr(_digits(value))
    if isinstance(value, str):
        return repr(value) if _NUMBER.fullmatch(value) else f"a text of {len(value)} characters"
    return f"a {type(value).__name__}"


def _digits(value: int) -> str:
    """Long numbers have no decimal form in Python."""
    return str(value) if abs(value) < 1 << 128 else f"a number of {value.bit_length()} bits"


_NUMBER = re.compile(r"|[-+]?(?:[0-9.]{1,12}(?:e[-+]?[0-9]{1,3})?|nan|inf)", re.IGNORECASE | re.ASCII)
"""Texts that are shown: none, or a number that is no number of a card or a phone."""


def shown_key(key: str) -> str:
    """A key or a column as messages show it: words of at most 40 characters, as formats name their fields. Of all other
    keys, which may be anybody's data, only the length."""
    if len(key) <= 40 and _WORDS.fullmatch(key) and not looks_secret(key):
        return repr(key)
    return f"of {len(key)} characters"


def shown_keys(keys: Iterable[str]) -> str:
    """The first few of a row's keys, as messages list them."""
    return ", ".join(shown_key(key).strip("'") for key in sorted(keys)[:6])


_WORDS = re.compile(r"[a-z_]\w*(?:[-. ][a-z_]\w*)*", re.IGNORECASE | re.ASCII)
