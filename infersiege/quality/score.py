"""What the checks say of one answer, as a turn's record keeps it: never the answer itself (`kept` may do that).

The column `quality` is `pass SET/ITEM`, `fail SET/ITEM: KIND, KIND`, or, where a check could not be carried out,
`unscored SET/ITEM: WHY`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infersiege.channels.redaction import scrub
from infersiege.quality.checks import Check, CheckError, Said
from infersiege.quality.foreign import Redact, fit_line
from infersiege.quality.items import Item

UNSCORED = "unscored "
"""How the column begins where a check could not be carried out."""

_WRITTEN = re.compile(r"(pass|fail|unscored) ([^/ ]+)/([^: ]+)(?:: (.+))?")


@dataclass(frozen=True, slots=True)
class Score:
    """One answer held against its checks."""

    set: str
    item: str
    failed: tuple[str, ...] = ()
    """Kinds of the checks that did not hold, each once; empty: it passed, or is not scored."""
    broken: str | None = None
    """Why it is not scored: the check that could not be carried out, where and why, as `fit_line` has it; None: all
    were."""
    missed: tuple[Check, ...] = field(default=(), compare=False, repr=False)
    """The checks that did not hold, or could not be carried out. Not part of the written form."""

    @property
    def passed(self) -> bool:
        return not self.failed and self.broken is None

    @property
    def name(self) -> str:
        return f"{self.set}/{self.item}"

    def __str__(self) -> str:
        """The form of the record, which `read_score` reads."""
        if self.broken is not None:
            return f"{UNSCORED}{self.name}: {self.broken}"
        return f"fail {self.name}: {', '.join(self.failed)}" if self.failed else f"pass {self.name}"


def score(item: Item, text: str, tool_calls: tuple[Mapping[str, Any], ...] = (), *, redact: Redact = scrub) -> Score:
    """Hold an answer against the checks of its prompt.

    One check that can't be carried out leaves the answer without a score, whatever the others say: those that fail
    would be counted, and those that pass would not. Raises nothing but what stops a program (KeyboardInterrupt).
    """
    said = Said.of(text, tool_calls)
    missed = []
    for check in item.checks:
        try:
            if not check.holds(said):
                missed.append(check)
        except CheckError as error:
            return unscored(item, str(error), check, redact=redact)
        except Exception as error:  # noqa: BLE001 - the record of a turn is worth more than what a check says of it
            return unscored(item, f"{check.kind}: {type(error).__name__}", check, redact=redact)
    return Score(item.set, item.name, tuple(dict.fromkeys(check.kind for check in missed)), missed=tuple(missed))


def unscored(item: Item, why: str, *checks: Check, redact: Redact = scrub) -> Score:
    """An answer of which the checks could not tell anything; `checks`: those that could not be carried out.

    `why`: a checker's words, whatever they hold; a key that it met is for `redact`.
    """
    return Score(item.set, item.name, broken=fit_line(why, redact) or "no reason", missed=checks)


def read_score(written: str | None) -> Score | None:
    """The inverse of `str`; None for a turn without checks, and for a form that is none of ours."""
    found = None if written is None else _WRITTEN.fullmatch(written)
    if found is None:
        return None
    word, of_set, item, rest = found.groups()
    if (word == "pass") == bool(rest):
        return None
    if word == "unscored":
        return Score(of_set, item, broken=rest)
    return Score(of_set, item, tuple(rest.split(", ")) if rest else ())
