"""The search for bad lines in a request that a database refused: everything else is delivered, bad ones are set aside.

Writing a point again changes nothing, so the search may send lines as often as it likes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from infersiege_agents.influx.answers import Verdict
from infersiege_agents.influx.transport import Answer

SPLIT_REQUESTS = 300
SPLIT_S = 10.0
"""Bounds on the search in one request: about 15 of 10,000 lines are found one by one."""
PROBES = 8
"""Single lines that are tried when the words of a refusal don't say whether lines are at fault."""
_DROPPED = re.compile(r"partial write: .*\bdropped=(\d+)")
_FOR_LINES = (Verdict.BAD_LINES, Verdict.UNCLEAR)


class Refused(NamedTuple):
    """A line that is refused for good."""

    number: int
    """Its place in the request."""
    words: str


def search(lines: Sequence[bytes], first: Answer, send: Callable[[bytes], Answer]) -> tuple[Answer, list[Refused]]:
    """What `first`, a refusal of all `lines` together, comes to.

    Returns TAKEN and the lines that are refused for good; or what the server said that is not about lines: then all is
    to be tried again. A refusal whose words don't speak of lines is about lines only if one line alone is taken.
    """
    if first.verdict is Verdict.UNCLEAR:
        found = _probed(lines, first, send)
        if found.verdict not in (Verdict.TAKEN, Verdict.BAD_LINES):
            return found, []
    return _halved(lines, first, send)


def _probed(lines: Sequence[bytes], first: Answer, send: Callable[[bytes], Answer]) -> Answer:
    """TAKEN or BAD_LINES: it is about lines. REFUSED: nothing at all is taken; somebody has to do something."""
    probes = min(PROBES, len(lines)) if len(lines) > 1 else 0  # a single line was asked already
    for number in range(probes):
        answer = send(lines[number * len(lines) // probes] + b"\n")
        if answer.verdict is not Verdict.UNCLEAR:
            return answer
    return replace(first, verdict=Verdict.REFUSED)


def _halved(lines: Sequence[bytes], first: Answer, send: Callable[[bytes], Answer]) -> tuple[Answer, list[Refused]]:
    """Halves level by level, until only bad lines are refused. What the bounds leave is refused as a whole."""
    pieces = [(range(len(lines)), first.words)]
    refused: list[Refused] = []
    requests, ends = 0, time.monotonic() + SPLIT_S
    while pieces:
        smaller: list[tuple[range, str]] = []
        for piece, words in pieces:
            spent = requests >= SPLIT_REQUESTS or time.monotonic() >= ends
            if len(piece) == 1 or spent or _all_dropped(len(piece), words):
                refused += [Refused(number, words) for number in piece]
                continue
            middle = len(piece) // 2
            for half in (piece[:middle], piece[middle:]):
                answer = send(b"".join(lines[number] + b"\n" for number in half))
                requests += 1
                if answer.verdict in _FOR_LINES:
                    smaller.append((half, answer.words))
                elif answer.verdict is not Verdict.TAKEN:
                    return answer, []
        pieces = smaller
    return Answer(Verdict.TAKEN), refused


def _all_dropped(lines: int, words: str) -> bool:
    """InfluxDB itself says that it took no line of these: no need to look for good ones."""
    found = _DROPPED.search(words)
    return found is not None and int(found[1]) == lines
