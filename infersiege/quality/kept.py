"""What is kept of an answer that failed, where a plan asks for that: redacted, cut, and fit for any file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from infersiege.quality.checks import Said
from infersiege.quality.foreign import LONGEST_KEPT, Redact, fit
from infersiege.quality.score import Score
from infersiege.records import KeptAnswer

LONGEST_ASKED = 300
"""Characters of one check."""
MOST_KEPT = 4
"""Checks, and tool calls."""


def kept(score: Score, said: Said, redact: Redact) -> KeptAnswer | None:
    """What is kept of an answer; None: it passed.

    Of its text LONGEST_KEPT characters, and as many of all of its tool calls together.
    """
    if score.passed:
        return None
    calls = said.tool_calls[:MOST_KEPT]
    return KeptAnswer(
        asked=tuple(fit(check.written, LONGEST_ASKED, redact) for check in score.missed[:MOST_KEPT]),
        text=fit(said.text, LONGEST_KEPT, redact),
        text_chars=len(said.text),
        tool_calls=tuple(fit(_call(call), LONGEST_KEPT // len(calls), redact) for call in calls),
        calls=len(said.tool_calls),
    )


def received(answer: KeptAnswer) -> KeptAnswer:
    """What a record says was kept, with no more in it than `kept` keeps; an answer of `kept` as it is.

    Records come from other hosts: whatever a worker sends there would be in summaries and pages.
    """
    calls = answer.tool_calls[:MOST_KEPT]
    return msgspec.structs.replace(
        answer,
        asked=tuple(fit(one, LONGEST_ASKED, str) for one in answer.asked[:MOST_KEPT]),
        text=fit(answer.text, LONGEST_KEPT, str),
        tool_calls=tuple(fit(one, LONGEST_KEPT // len(calls), str) for one in calls),
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
