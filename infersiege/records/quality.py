"""How good the answers were, in summary.json: of checked prompts, and what the texts of all turns themselves tell."""

from __future__ import annotations

import msgspec


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer said that failed a check, or could not be checked: where `[quality] keep_answers` asks for it.

    Redacted and cut (`quality.kept`); no text has lone surrogates.
    """

    asked: tuple[str, ...]
    """The checks that did not hold, or could not be carried out, as the file of prompts has them: JSON."""
    text: str
    """What was checked of its text, from its beginning."""
    text_chars: int
    """Of so many characters that were checked."""
    tool_calls: tuple[str, ...] = ()
    """The first of its tool calls: name and arguments."""
    calls: int = 0
    """How many it made."""


class AnswerExample(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that was kept, in summary.json."""

    request_id: str
    """By which its turn is found in turns.jsonl, and its request in the server's log."""
    scored: bool
    """False: it could not be checked, and is neither right nor wrong."""
    answer: KeptAnswer


class WrongAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one prompt that were not right, or could not be checked, of ok turns due in steady."""

    prompt: str
    """`SET/ITEM`."""
    n: int
    """All of them, kept or not."""
    examples: tuple[AnswerExample, ...]
    """Those that were due first, of answers that differ; at most three."""


class QualityShare(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of checked prompts that passed all of their checks, of ok turns due in steady (docs/quality.md)."""

    stage: str | None = None
    """None, also below: all of them."""
    channel: str | None = None
    set: str | None = None
    """Of the file of prompts: arithmetic, format …"""
    n: int
    """Answers that were checked. Turns that failed gave none, and are in the error share."""
    passed: int
    share: float
    low: float
    """Of the 95 % range of the share (Wilson)."""
    high: float
    failed: dict[str, int] = {}
    """`SET/ITEM: KIND, KIND` of the checks that did not hold -> answers; only where stage, channel and set are None."""


class Unscored(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of checked prompts whose checks could not be carried out, of ok turns due in steady: neither right nor
    wrong, and in no share."""

    n: int
    prompts: dict[str, int]
    """`SET/ITEM` -> answers, most first."""
    first: str
    """`SET/ITEM: which check, where: what it said`, of the one that was due first."""


class AnswerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one stage that were none any more, as far as their own text tells; of turns due in steady."""

    stage: str
    scenario: str | None = None
    """None: all of them; each alone only where there are several."""
    share: float | None = None
    """Turns with any of what is below, among `ok` and `empty`; None: there were none of these."""
    ok: int
    """Turns that succeeded, among them those below but `empty`."""
    repeated: int = 0
    """Ended in a loop."""
    garbled: int = 0
    """Broken UTF-8, control characters, UTF-8 read as Latin-1."""
    blank: int = 0
    """White space only."""
    cut_short: int = 0
    """The engine stopped before a length that it was told to fill (`ignore_eos`)."""
    empty: int = 0
    """Turns that failed as `no_output`."""
