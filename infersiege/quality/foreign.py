"""Words of others (a model's, a checker's exception), made fit for a record: redacted, then cut, and always UTF-8."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from infersiege.channels.redaction import one_line

Redact: TypeAlias = Callable[[str], str]
"""Takes secrets out of a text: `scrub` those that look like one, `Secrets.scrub` also the run's own."""

LONGEST_KEPT = 600
"""Characters of the longest text that is kept."""
LOOKED_AT = 5 * LONGEST_KEPT
"""Characters in which secrets are looked for: that takes 16 ms in a text made to be slow, and more in a longer one."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""NUL, which files and databases end texts at, and halves of a pair (`"\\ud83d"` in a stream's JSON): they are in no
UTF-8."""


def fit(text: str, most: int, redact: Redact) -> str:
    """At most `most` characters (LONGEST_KEPT and fewer) of a text, with a mark where it was longer.

    Secrets are taken out of more than what is kept: half a key would not look like one. Of what is no text, U+FFFD.
    """
    plain = _plain(text, redact)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def fit_line(text: str, redact: Redact) -> str:
    """As `fit`, in one line of printable characters, at most 300 (`channels.redaction.one_line`)."""
    return one_line(_plain(text, redact))


def _plain(text: str, redact: Redact) -> str:
    # Redacted first: a password may hold what is no text, or two blanks.
    plain = _NO_TEXT.sub("\ufffd", redact(text[:LOOKED_AT]))
    if len(text) > LOOKED_AT:
        # What stands before the cut may be half a key, and would be kept where much before it was taken out.
        plain = f"{plain[:-LONGEST_KEPT]}…"
    return plain
