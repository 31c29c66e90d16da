"""The records held against what the servers counted themselves (DI-03)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from infersiege.metrics.batch import Batch
from infersiege.records import Outcome, ServedRequests


class RequestTally:
    """Requests by channel, as the records tell: an observer of turns."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        """Turns that were answered to their end: the server finished these."""
        self.sent: Counter[str] = Counter()
        """Requests that may have reached the server, those before the last attempt included."""

    def add_batch(self, batch: Batch) -> None:
        for kind, count in batch.counted():
            if kind.outcome is Outcome.OK:
                self.answered[kind.channel] += count
            if kind.outcome is not Outcome.SKIPPED:
                self.sent[kind.channel] += count
        for turn in batch.turns:
            if turn.earlier:
                self.sent.update(attempt.channel for attempt in turn.earlier)

    def merge(self, other: RequestTally) -> None:
        """Add all that `other` counted."""
        self.answered.update(other.answered)
        self.sent.update(other.sent)

    def compared(self, served: Sequence[ServedRequests]) -> tuple[ServedRequests, ...]:
        """The same with what the records have."""
        return tuple(
            msgspec.structs.replace(one, answered=self.answered[one.channel], sent=self.sent[one.channel])
            for one in served
        )


def disagreements(served: Sequence[ServedRequests]) -> Iterator[str]:
    """A warning for each channel where no fate of cut, failed and lost requests explains the difference."""
    for one in served:
        said = (
            f"{one.channel}: the server counted {one.counted:,} finished requests ({one.metric}), but the records have"
        )
        if one.counted < one.answered:
            yield (
                f"{said} {one.answered:,} answers: are there several engines behind one address, of which one told, or "
                "did it start anew?"
            )
        elif one.counted > one.sent:
            yield f"{said} {one.sent:,} that were sent: somebody else used the server, or records are missing"
