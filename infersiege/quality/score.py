"""What the checks say of one answer, as a turn's record keeps it: never the answer itself.

The column `quality` is `pass SET/ITEM` or `fail SET/ITEM: KIND, KIND`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from infersiege.quality.checks import Said
from infersiege.quality.items import Item

_WRITTEN = re.compile(r"(pass|fail) ([^/ ]+)/([^: ]+)(?:: (.+))?")


class Score(NamedTuple):
    """One answer held against its checks."""

    set: str
    item: str
    failed: tuple[str, ...]
    """Kinds of the checks that did not hold, each once; empty: it passed."""

    @property
    def passed(self) -> bool:
        return not self.failed

    def __str__(self) -> str:
        """The form of the record, which `read_score` reads."""
        name = f"{self.set}/{self.item}"
        return f"pass {name}" if self.passed else f"fail {name}: {', '.join(self.failed)}"


def score(item: Item, text: str, tool_calls: tuple[Mapping[str, Any], ...] = ()) -> Score:
    """Hold an answer against the checks of its prompt. Never raises."""
    said = Said.of(text, tool_calls)
    failed = (check.kind for check in item.checks if not check.holds(said))
    return Score(item.set, item.name, tuple(dict.fromkeys(failed)))


def read_score(written: str | None) -> Score | None:
    """The inverse of `str`; None for a turn without checks, and for a form that is none of ours."""
    found = None if written is None else _WRITTEN.fullmatch(written)
    if found is None:
        return None
    failed = tuple(found[4].split(", ")) if found[4] else ()
    if (found[1] == "pass") == bool(failed):
        return None
    return Score(found[2], found[3], failed)
