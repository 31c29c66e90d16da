"""In which language the page speaks: the fixed words of report.html are keys of one table per language.

The English words are the keys. What a run itself holds (names, errors, reasons of a verdict) is not translated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from infersiege.report.words_zh import CHINESE_WORDS
from infersiege.report.words_zh_charts import CHINESE_CHART_WORDS


@dataclass(frozen=True, slots=True)
class Words:
    """One language. Called with English words, it gives its own."""

    language: str
    """As `lang` of the page has it."""
    table: Mapping[str, str]
    """English words -> the same in this language, with the same {fields}; none for English."""

    def __call__(self, english: str, **values: object) -> str:
        """The words with their fields filled in; English where this language has none (tests see that it has all)."""
        words = self.table.get(english, english)
        return words.format(**values) if values else words


ENGLISH: Final = Words("en", {})
CHINESE: Final = Words("zh-Hans", {**CHINESE_WORDS, **CHINESE_CHART_WORDS})

LANGUAGES: Final[Mapping[str, Words]] = {"en": ENGLISH, "zh": CHINESE}
"""By the name that `infersiege report --language` takes."""
