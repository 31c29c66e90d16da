"""The trace side: sessions and their turns, before anything is sent."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

Message: TypeAlias = dict[str, Any]
"""One chat message in OpenAI's form, carried verbatim."""


class BlockText(msgspec.Struct, frozen=True, kw_only=True):
    """Text that is known only by length and identity (hash traces, length-only traces, the built-in workloads).

    The same (scope, id) is the same text on every worker and run; different ids differ from their first word.
    """

    scope: str
    """Ids of two scopes are never the same text."""
    ids: tuple[int, ...]
    tokens: tuple[int, ...]
    """Wanted tokens of each id, same length as `ids`."""
    language: str = "en"
    """`en` or `zh`."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session and, where recorded, its answer.

    The request's history is: what the session had (unless `replaces_history`), then `messages`. A message whose
    `content` is to be synthesised has its text in `texts` at the same index, None elsewhere.
    """

    messages: tuple[Message, ...]
    """New messages since the previous answer: system, user or tool messages."""
    texts: tuple[BlockText | None, ...] = ()
    """Empty, or one entry per message: what to write into its `content`."""
    replaces_history: bool = False
    """The messages are the whole request (cumulative rows, compaction), sent as given."""
    delay_ns: int = 0
    """Think or tool time, from the end of the previous answer; 0 for a first turn."""
    recorded_answer: tuple[Message, ...] = ()
    """What the trace says was answered (assistant messages); put into the history in `recorded` mode."""
    answer_text: BlockText | None = None
    """The recorded answer of a length-only trace."""
    asked_prompt_tokens: int | None = None
    """What the trace says the whole request holds."""
    asked_output_tokens: int | None = None
    """What the trace says was answered; becomes `max_tokens`."""
    tools: tuple[dict[str, Any], ...] | None = None
    """Tool definitions of this request, verbatim; None: the session's."""
    extra: dict[str, Any] = {}
    """Other request fields that the trace carries (`tool_choice`, `response_format` …), verbatim."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One user's or one agent's ordered turns."""

    session_id: str
    turns: tuple[Turn, ...]
    arrival_ns: int | None = None
    """When the trace says it started, from the trace's first arrival; None: the trace has no times."""
    tools: tuple[dict[str, Any], ...] | None = None
    source_line: int | None = None
    """Line or index in the trace file."""
