"""Holds answers against the checks of their prompts, without letting a slow or broken check into the load.

Checks that are rules take microseconds and run where the turn ends. A `callable` is code of the plan's author: it may
block, compute for seconds, or end the process. It runs in one thread beside the worker's loop, one answer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gevent
from gevent.threadpool import ThreadPool

from infersiege.quality import Item, Redact, Score, score, unscored
from infersiege.records import Report
from infersiege.redact import scrub

PATIENCE_S = 2.0
"""So long an answer waits for its callable, the wait for those before it included. Its row is written after that, so
that no more than these seconds of answers are only in the memory of a worker that is killed. A drain is longer by
default."""
CUT = "the run ended before it was checked"
"""Why an answer has no score whose check the end of the run cut off."""

Calls = tuple[Mapping[str, Any], ...]


class Checker:
    """Scores the answers of one worker."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._thread: ThreadPool | None = None
        """Made with the first callable: most plans have none."""
        self.first_unscored: str | None = None
        """`SET/ITEM: WHY` of the first answer that could not be checked; None: there was none."""

    def score(self, item: Item, text: str, tool_calls: Calls = (), *, redact: Redact = scrub) -> Score:
        """As `quality.score`. Blocks the greenlet, not the loop, where a check is a callable: it may have met a key, or
        a URL with a password, and say it in its exception."""
        ask = self._beside if item.own_code else score
        return self._noted(ask(item, text, tool_calls, redact=redact))

    def cut(self, item: Item) -> Score:
        """Of an answer whose greenlet had to end before its check did."""
        return self._noted(unscored(item, CUT, *item.own_code))

    def _noted(self, found: Score) -> Score:
        if found.broken is not None:
            self.first_unscored = self.first_unscored or f"{found.name}: {found.broken}"
        return found

    def _beside(self, item: Item, text: str, tool_calls: Calls, *, redact: Redact) -> Score:
        if self._thread is None:
            self._thread = ThreadPool(1)
        patience = gevent.Timeout(self._patience_s)
        try:
            with patience:
                # Waits here for the one before it: what gave up is not queued, and never runs.
                found: Score = self._thread.spawn(_score, item, text, tool_calls, redact).get()
                return found
        except gevent.Timeout as expired:
            if expired is not patience:
                raise
            return unscored(item, f"callable: no result after {self._patience_s:g} s", *item.own_code)


class CheckWatch:
    """What the master tells of answers that could not be checked: the first of the run. The summary counts them."""

    def __init__(self) -> None:
        self._told = False

    def look(self, report: Report, note: Callable[..., None]) -> None:
        """At a worker's report; writes an event."""
        if report.unscored is not None and not self._told:
            self._told = True
            # Redacted where it was written, and once more here: it is another host's word.
            note("check_broken", f"an answer could not be checked: {scrub(report.unscored)}", report.worker)


def _score(item: Item, text: str, tool_calls: Calls, redact: Redact) -> Score:
    """Whatever is raised in the thread would be raised in the worker's loop, and end it."""
    try:
        return score(item, text, tool_calls, redact=redact)
    except BaseException as error:  # noqa: BLE001
        return unscored(item, f"callable: {type(error).__name__}", *item.own_code, redact=redact)
