"""Taking secrets out of text, before anything of it is kept. Pure.

Two nets (CL-08). `scrub` knows what keys look like wherever they stand: `sk-…`, bearer tokens, authorization headers,
URL user info and query keys. `Secrets` knows the very values that a run uses, in every form in which a server or a
library may echo them.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote, quote_plus

DETAIL_LENGTH = 300
"""Longest `error_detail`, in characters."""

REDACTED: Final = "[redacted]"
"""What stands where a secret was."""

_WHOLE_WORD_BELOW = 8
"""Known values shorter than this are replaced only as whole words, or a key `test` would eat the text around it."""

_NAMES = (
    r"(?:proxy-)?authorization|x-api-key|api[-_ ]?key|(?:access|auth|refresh|id|influx)[-_]?token|client[-_]?secret"
    r"|secret|password|passwd|token|signature|sig|key"
)
_HEADER_NAMES = (
    r"(?:proxy-)?authorization|x-api-key|api[-_ ]?key|password|passwd|x-auth-token|access[-_]token|client[-_]secret"
    r"|set-cookie|cookie"
)

_PATTERNS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    # URL user info, even with a slash or a colon in the password; up to the last @ before the path's end.
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/?#\"'<>]*@"), rf"\1{REDACTED}@"),
    # Query parameters that hold keys.
    (re.compile(rf"(?i)([?&;](?:{_NAMES})=)[^&;#\s\"'<>]+"), rf"\1{REDACTED}"),
    # `Authorization: Basic abc`, `"x-api-key": "abc"`, `'api_key': 'abc'`, `authorization=abc`, escaped JSON too.
    (
        re.compile(
            rf"(?i)((?<![a-z0-9])(?:{_HEADER_NAMES})\\?[\"']?\s*[:=,]\s*(?:b(?=[\"']))?\\?[\"']?)"
            rf"(?:(?:bearer|basic|token|digest|apikey)\s+)?(?!\[redacted\])[^\s\"'\\,;)}}\]]+"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)(?!\[redacted\])[a-z0-9._~+/=-]{6,}"), rf"\1{REDACTED}"),
    (re.compile(r"(?<![A-Za-z0-9])(?:sk|pk|rk)-[A-Za-z0-9_\-]{6,}"), REDACTED),
    (re.compile(r"\b(?:hf|gsk|xai|ghp|glpat|nvapi)[-_][A-Za-z0-9_\-]{16,}"), REDACTED),
    (re.compile(r"\bAIza[A-Za-z0-9_\-]{30,}"), REDACTED),
    # JSON web tokens.
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+"), REDACTED),
)


_KEY_WORD = re.compile(
    r"\w*(key|token|secret|auth|jwt)|authori[sz]ation|authentication|bearer|passw(or)?d|credentials?|cookie|sig(nature)?"
)
_NO_KEY = re.compile(
    r"(idempotency|routing|affinity|session-affinity|cache|partition|shard|hash|sort)-key"
    r"|(token|key)-(count|limit|budget|id|type|version)|auth-(type|mode|method|version)"
)
"""Parts of names that stand for no secret, although they have a word of one."""


def names_secret(name: str) -> bool:
    """Whether a header or a query parameter of that name holds a key, by the words of it: `X-Functions-Key`, `apikey`.

    `idempotency-key` and its like do not.
    """
    plain = _NO_KEY.sub("", re.sub(r"[-_.\s]+", "-", name.strip().lower()))
    return any(_KEY_WORD.fullmatch(word) for word in plain.split("-"))


def scrub(text: str) -> str:
    """Replace what looks like a secret. Text without one comes back as it is."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def looks_secret(text: str) -> bool:
    """Whether `scrub` would take something out."""
    return scrub(text) != text


class Secrets:
    """Known secret values, such as the keys of a run. Its repr does not show them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = frozenset(value for value in (value.strip() for value in values) if value)
        self._known: dict[str, _Traces] = {}
        self._last: tuple[frozenset[str], re.Pattern[str]] | None = None

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)} values)"

    def also(self, values: Iterable[str]) -> Secrets:
        """With these as well: what one server gave a session beside the keys of the run."""
        return Secrets((*self._values, *values))

    def scrub(self, text: str) -> str:
        """Replace known values in every form, then what looks like a secret.

        No value of at least 8 characters survives, raw, URL-encoded, JSON-escaped, as hex or inside base64. Shorter
        ones are replaced as whole words.
        """
        held = self._held(text)
        if held:
            text = self._pattern(held).sub(REDACTED, text)
        return scrub(text)

    def _held(self, text: str) -> frozenset[str]:
        """Values that the text may hold. Compiling what finds them all takes milliseconds, in which no token is read;
        a server's words seldom hold one."""
        size = len(text)  # no form of a value is shorter than the value
        near = [value for value in self._values if len(value) <= size]
        if not near:
            return frozenset()
        lower, plain = text.lower(), text.translate(_PLAIN_BASE64)
        return frozenset(
            value for value in near if value in text or _may_stand_in(self._traces_of(value), text, lower, plain)
        )

    def _traces_of(self, value: str) -> _Traces:
        traces = self._known.get(value)
        if traces is None:
            traces = self._known[value] = _traces(value)
        return traces

    def _pattern(self, held: frozenset[str]) -> re.Pattern[str]:
        last = self._last
        if last is None or last[0] != held:
            forms: dict[str, None] = {}
            for value in sorted(held, key=len, reverse=True):
                forms.update(dict.fromkeys(_forms(value)))
            self._last = last = held, re.compile("|".join(sorted(forms, key=len, reverse=True)))
        return last[1]


class _Traces(NamedTuple):
    """Plain strings of which one stands in every text that holds the value."""

    written: frozenset[str]
    lower: tuple[str, ...]
    """In the text's lower case."""
    base64: tuple[str, ...]
    """In the text with `-_` written as `+/`."""


_PLAIN_BASE64: Final = str.maketrans("-_", "+/")


def _traces(value: str) -> _Traces:
    if len(value) < _WHOLE_WORD_BELOW:
        return _Traces(frozenset((value,)), (), ())
    raw = _raw(value)
    lower = (quote(raw, safe="").lower(), binascii.hexlify(raw).decode())
    return _Traces(frozenset(_written(value)), lower, tuple(_base64_cores(raw)))


def _may_stand_in(traces: _Traces, text: str, lower: str, plain: str) -> bool:
    return (
        any(form in text for form in traces.written)
        or any(form in lower for form in traces.lower)
        or any(core in plain for core in traces.base64)
    )


def _forms(value: str) -> list[str]:
    """Regular expressions of all the ways in which one value may be written."""
    if len(value) < _WHOLE_WORD_BELOW:
        return [rf"(?<!\w){re.escape(value)}(?!\w)"]
    raw = _raw(value)
    forms = [re.escape(form) for form in _written(value)]
    forms += [f"(?ai:{re.escape(form)})" for form in (quote(raw, safe=""), binascii.hexlify(raw).decode())]
    for core in _base64_cores(raw):
        pattern = "".join("[+-]" if char in "+-" else "[/_]" if char in "/_" else char for char in core)
        forms.append(rf"[A-Za-z0-9+/_=-]*{pattern}[A-Za-z0-9+/_=-]*")
    return forms


def _raw(value: str) -> bytes:
    """What was in the environment: a password there may be in no UTF-8."""
    return value.encode("utf-8", "surrogateescape")


def _written(value: str) -> set[str]:
    raw = _raw(value)
    return {
        value,
        quote(raw, safe=""),
        quote(raw),
        quote_plus(raw),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(value))[3:-3],
        repr(value)[1:-1],
    }


def _base64_cores(raw: bytes) -> list[str]:
    """What base64 of any text around the value must contain, for each of the three places where it may begin."""
    cores = []
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        bits = (shift + len(raw)) * 8
        whole = bits // 6  # a last, partial character depends on what follows
        first = -(-shift * 8 // 6)  # so does a first one on what stands before
        cores.append(encoded[first:whole])
    return cores


def one_line(text: str) -> str:
    """At most 300 printable characters without line ends."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= DETAIL_LENGTH else line[: DETAIL_LENGTH - 1] + "…"
