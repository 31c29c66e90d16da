"""Checked prompts: when an answer is right, and when it is none any more (docs/quality.md)."""

from __future__ import annotations

from infersiege.quality.checks import CHECKS, Said
from infersiege.quality.collapse import collapse_flags
from infersiege.quality.foreign import Redact
from infersiege.quality.items import Item, QualityTrace, open_quality
from infersiege.quality.kept import kept
from infersiege.quality.score import Score, read_score, score, unscored

__all__ = [
    "CHECKS",
    "Item",
    "QualityTrace",
    "Redact",
    "Said",
    "Score",
    "collapse_flags",
    "kept",
    "open_quality",
    "read_score",
    "score",
    "unscored",
]
