"""What an account may still ask for, as the headers of an answer tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping

REMAINING: Mapping[str, str] = {
    "x-ratelimit-remaining-requests": "requests",
    "x-ratelimit-remaining-tokens": "tokens",
    "x-ratelimit-remaining": "requests",
    "ratelimit-remaining": "requests",
    "anthropic-ratelimit-requests-remaining": "requests",
    "anthropic-ratelimit-tokens-remaining": "tokens",
    "anthropic-ratelimit-input-tokens-remaining": "input_tokens",
    "anthropic-ratelimit-output-tokens-remaining": "output_tokens",
}
"""Header, in lower case -> what is left of. OpenAI's and Anthropic's, and what gateways made of them."""

LARGEST = 1 << 53
"""More is no number of requests or tokens."""


def quota_left(headers: Mapping[str, str]) -> dict[str, int]:
    """`{requests: 12, tokens: 0 …}`, the least where several headers tell; empty: the server tells nothing.

    Header names in lower case. What is no whole number (`unlimited`, a date) is left out.
    """
    left: dict[str, int] = {}
    for header, name in REMAINING.items():
        text = headers.get(header, "").strip()
        if text.isascii() and text.isdigit() and len(text) < 17 and int(text) < LARGEST:
            left[name] = min(int(text), left.get(name, LARGEST))
    return left
