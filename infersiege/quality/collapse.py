"""Answers that are no answers any more, told by their own text at the end of a turn: looped, garbled, blank, cut short.

An engine that collapses under load often goes on answering with status 200: the same words over and over, characters
of broken UTF-8, blanks. Only the last 2,048 characters are looked at (and the whole text for the replacement character,
at the speed of memchr), so a turn costs some microseconds however long it was. Nothing of the text is kept.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

REPEATED = "repeated"
GARBLED = "garbled"
BLANK = "blank"
CUT_SHORT = "cut_short"

COLLAPSE_FLAGS = (REPEATED, GARBLED, BLANK, CUT_SHORT)
"""Flags of a turn's record, in the order in which reports show them."""

TAIL = 2_048
"""Characters at the end of an answer that are looked at. A loop seldom ends before the answer does."""

LOOP_CHARS = 256
"""A loop is at least so long: lines of dashes and lists of equal cells are shorter."""
LOOP_TIMES = 4
"""And comes at least so often."""
_NEEDLE = 24

SQUEEZED_FROM = 1_024
SQUEEZED_TIMES = 12.0
"""Text that deflates by more than this is a loop with something counting in it. English and Chinese deflate 2 to 3
times at this length, program text and JSON 3 to 6 times."""

BROKEN_CHARS = 3
"""Replacement and control characters that make an answer garbled. One or two at the end are a cut character."""
MOJIBAKE_TIMES = 4

_CONTINUED = "\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
"""What a UTF-8 continuation byte is when read as Latin-1 or Windows-1252."""
_MOJIBAKE = re.compile(
    rf"[\u00c2-\u00df][{_CONTINUED}]|[\u00e0-\u00ef][{_CONTINUED}]{{2}}|[\u00f0-\u00f4][{_CONTINUED}]{{3}}"
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f-\x9f]")


def collapse_flags(
    text: str, reasoning: str = "", tool_calls: tuple[Mapping[str, Any], ...] = (), *, short_of: int | None = None
) -> tuple[str, ...]:
    """Flags of one answer that ended well as far as its protocol goes; nearly always none.

    `short_of`: tokens that are missing of a length that the request forced (`ignore_eos`); None or 0: none are.
    """
    flags = []
    if is_looped(text) or (not text and is_looped(reasoning)):
        flags.append(REPEATED)
    if is_garbled(text) or (not text and is_garbled(reasoning)):
        flags.append(GARBLED)
    if not tool_calls and (text or reasoning) and not text.strip() and not reasoning.strip():
        flags.append(BLANK)
    if short_of is not None and short_of > 0:
        flags.append(CUT_SHORT)
    return tuple(flags)


def is_looped(text: str) -> bool:
    """Whether a text ends in a loop: the same characters at least four times over, and 256 of them in all."""
    tail = text[-TAIL:]
    size = len(tail)
    if size < LOOP_CHARS:
        return False
    # The last characters, found once more before themselves: that far away the loop began anew.
    before = tail.rfind(tail[-_NEEDLE:], 0, size - 1)
    if before >= 0:
        period = size - _NEEDLE - before
        loop = max(LOOP_CHARS, LOOP_TIMES * period)
        if loop <= size and tail[size - loop + period :] == tail[size - loop : size - period]:
            return not tail[-loop:].isspace()
    if size < SQUEEZED_FROM:
        return False
    data = tail.encode("utf-8", "replace")
    return len(data) > SQUEEZED_TIMES * len(zlib.compress(data, 1)) and not tail.isspace()


def is_garbled(text: str) -> bool:
    """Whether a text holds what no writer writes: broken UTF-8, control characters, UTF-8 that was read as Latin-1."""
    if text.rstrip("\ufffd").count("\ufffd") >= BROKEN_CHARS:
        return True
    tail = text[-TAIL:]
    if len(_CONTROL.findall(tail)) >= BROKEN_CHARS:
        return True
    if tail.isascii():
        return False
    found = _MOJIBAKE.findall(tail)
    if len(found) < MOJIBAKE_TIMES:
        return False
    # Accents of a real text now and then stand before a quotation mark; most of them do not.
    strange = sum(1 for character in tail if character > "\x7f")
    return 2 * sum(map(len, found)) >= strange
