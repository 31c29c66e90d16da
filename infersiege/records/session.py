"""The trace side: sessions and their turns, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

Message: TypeAlias = dict[str, Any]
"""One chat message in OpenAI's form, carried verbatim."""


class BlockText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
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
    shared: bool = False
    """Other requests hold this text too and are to find it in a cache: it is never made shorter (`traces.text`)."""
    last: bool = False
    """It comes after what its message says itself, not before."""


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
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
    """Think or tool time, from the end of the previous answer. Of the main line's first turn: from the session's start,
    and it counts only where branches start with the session, too."""
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


class Branch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Turns that run beside the line they start from: a subagent, or one of several requests that were out at once.

    Its first turn's `delay_ns` counts from the end of turn `after` (without one: from the session's start).
    """

    turns: tuple[Turn, ...]
    after: int | None = None
    """Number of the turn whose end starts the branch; None: it starts with the session."""
    joined_by: int | None = None
    """Number of the turn that waits for the branch's end; None: none does, the session ends when all of it has."""
    inherits: bool = False
    """It begins with the history of the line it starts from, up to and with the answer of `after`."""


class Session(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One user's or one agent's turns: a main line and, where the recording has them, branches beside it.

    Turns are numbered through: the main line from 0, then the branches in their order. `Branch.after` and `joined_by`
    are such numbers, and so are `turn` and `parent_turn` of a TurnRecord.
    """

    session_id: str
    turns: tuple[Turn, ...]
    """The main line."""
    branches: tuple[Branch, ...] = ()
    arrival_ns: int | None = None
    """When the trace says it started, from the trace's first arrival; None: the trace has no times."""
    tools: tuple[dict[str, Any], ...] | None = None
    source_line: int | None = None
    """Line or index in the trace file."""

    @property
    def turn_count(self) -> int:
        """Turns of the main line and of all branches."""
        return len(self.turns) + sum(len(branch.turns) for branch in self.branches)

    def all_turns(self) -> Iterator[Turn]:
        """Every turn, in the order of their numbers."""
        yield from self.turns
        for branch in self.branches:
            yield from branch.turns


class WrittenPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """How the prompts of a scenario got their lengths, all of which we wrote ourselves."""

    method: str
    """As in `TextLengths.method`; of several channels, all of them."""
    least_tokens: float
    """What chat template, salt and the shortest text take: a prompt can't be shorter."""


class TextLengths(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How synthesised text of one language turns into the tokens of one engine; all workers of a run use the same."""

    method: str
    """`tokenizer` (a local one), `endpoint` (the engine's own), `calibrated` (its prompt counts), `ratio` (a guess)."""
    chars_per_token: float
    """On average, spaces included."""
    word_tokens: float = 0.0
    """Without `marks`: tokens of a word however long. Where `letter_tokens` is 0 too, only `chars_per_token` counts."""
    letter_tokens: float = 0.0
    """Without `marks`: tokens of each letter beside that."""
    deck_tokens: tuple[float, ...] = ()
    """Without `marks`: tokens of each deck of the material's words (`traces.material`), punctuation marks left out."""
    head_tokens: float = 0.0
    """Without `marks`: tokens of each part of a text's head; 0: as of other words."""
    separator_tokens: float = 0.0
    """Of the line end between two blocks."""
    salt_tokens: float = 0.0
    """Of the salt's line; not of each to the token, since it differs from run to run."""
    request_tokens: float = 0.0
    """What the chat template makes of one user message, beside its text."""
    system_request_tokens: float | None = None
    """The same where the first message is a system message (templates often have one of their own); None: as above."""
    message_tokens: float = 0.0
    """And each message after the first."""
    marks: bytes = b""
    """Counted tokens of every word of the material (`traces.text.marks_of`); empty: they go by `word_tokens`."""
