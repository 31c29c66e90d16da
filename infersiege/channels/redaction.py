"""Taking secrets out of what servers say, before anything of it is kept. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from urllib.parse import quote

DETAIL_LENGTH = 300
"""Longest `error_detail`, in characters."""

REDACTED = "[redacted]"

_NAMES = r"(?:x-)?api[-_ ]?key|authorization|proxy-authorization|access[-_]?token|auth[-_]?token|password|passwd|secret"
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)\b(bearer)\s+[^\s\"',;}\\]+"), rf"\1 {REDACTED}"),
    (re.compile(r"(?i)\b(basic)\s+[a-z0-9+/=]{8,}"), rf"\1 {REDACTED}"),
    (re.compile(r"\b(?:sk|pk|rk|ak)-[\w-]{3,}|\b(?:hf_|gh[pousr]_|glpat-|AKIA|AIza)[\w-]{8,}"), REDACTED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"), REDACTED),  # JSON web tokens
    (re.compile(r"(\w://)[^/\s@\"']+@"), rf"\1{REDACTED}@"),
    (
        re.compile(r"(?i)([?&](?:key|token|sig|signature|[\w-]*(?:api[-_]?key|token|secret))=)[^&\s\"'#]+"),
        rf"\1{REDACTED}",
    ),
    (
        re.compile(rf"(?i)\b({_NAMES})([\"']?\s*[:=]\s*[\"']?)(?!(?:bearer|basic)\b)[^\s\"',;}}&\\]+"),
        rf"\1\2{REDACTED}",
    ),
)


def scrub(text: str, secrets: Sequence[str] = ()) -> str:
    """The text without keys: those given, and whatever looks like one.

    Replaced by `[redacted]`: each of `secrets` (also percent-encoded, and as JSON writes it), `sk-…` and other known
    prefixes, bearer and basic credentials, JSON web tokens, user info and keys in URLs, and values of `api_key`,
    `authorization`, `password` and the like.
    """
    forms = {
        form for secret in secrets if secret for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])
    }
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def one_line(text: str) -> str:
    """At most 300 printable characters without line ends."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= DETAIL_LENGTH else line[: DETAIL_LENGTH - 1] + "…"
