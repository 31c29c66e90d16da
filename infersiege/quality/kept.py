"""What is kept of an answer that failed, where a plan asks for that: redacted, cut, and fit for any file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from infersiege.quality.checks import Said
from infersiege.quality.score import Score
from infersiege.records import KeptAnswer

LONGEST_KEPT = 600
"""Characters of its text; and of all that is kept of its tool calls."""
LONGEST_ASKED = 300
"""Characters of one check."""
LOOKED_AT = 5 * LONGEST_KEPT
"""Characters in which secrets are looked for: that takes 16 ms in a text made to be slow, and more in a longer one."""
MOST_KEPT = 4
"""Checks, and tool calls."""

_SURROGATES = re.compile("[\ud800-\udfff]")
"""An answer may have halves of a pair (`"\\ud83d"` in a stream's JSON): they are in no UTF-8."""


def kept(score: Score, said: Said, redact: Callable[[str], str]) -> KeptAnswer | None:
    """What is kept of an answer; None: it passed.

    `redact`: takes secrets out, of more than what is kept: half a key would not look like one.
    """
    if score.passed:
        return None

    def fit(text: str, most: int) -> str:
        plain = redact(_SURROGATES.sub("\ufffd", text[:LOOKED_AT]))
        if len(text) > LOOKED_AT:
            # What stands before the cut may be half a key, and would be kept where much before it was taken out.
            plain = f"{plain[:-LONGEST_KEPT]}…"
        return _cut(plain, most)

    calls = said.tool_calls[:MOST_KEPT]
    return KeptAnswer(
        asked=tuple(fit(check.written, LONGEST_ASKED) for check in score.missed[:MOST_KEPT]),
        text=fit(said.text, LONGEST_KEPT),
        text_chars=len(said.text),
        tool_calls=tuple(fit(_call(call), LONGEST_KEPT // len(calls)) for call in calls),
        calls=len(said.tool_calls),
    )


def _call(call: Mapping[str, Any]) -> str:
    """`weather {"city": "Paris"}`: what a model wrote, whether it is such a call or not."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return _written(call)
    return f"{_written(function.get('name'))} {_written(function.get('arguments'))}"


def _written(value: object) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return "?"


def _cut(text: str, most: int) -> str:
    """With a mark at its end where it was longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
