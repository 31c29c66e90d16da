"""What happens when: the flow of one (scenario, channel, replica) through the windows, and what its turns cost.

It takes turns of all phases, since what happens inside a window is a matter of time and not of when a turn was due.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np

from infersiege.cost import billed_output_tokens
from infersiege.metrics.batch import ABSENT, Ints, Kind, Mask, grouped, known
from infersiege.metrics.columns import priced
from infersiege.metrics.facts import SteadyWindow
from infersiege.metrics.lives import Alive, Lives
from infersiege.metrics.parts import Part
from infersiege.records import EarlierAttempt, Outcome, Reason, TokensFrom, TurnRecord

SECOND_NS = 1_000_000_000

FlowKey = tuple[str, str, str]
"""Scenario, channel, replica; the last two may be empty."""

PAUSE_NS = 2 * SECOND_NS
LONGEST_RETRY_NS = 60 * SECOND_NS
"""A user whose request failed pauses before its next session: so long, and what the server asked for (Retry-After)."""


def class_of(failed: TurnRecord | EarlierAttempt | Kind) -> str:
    return "unknown" if failed.error_class is None else failed.error_class.value


class Bill:
    """What priced turns cost, whatever became of them."""

    __slots__ = ("costs", "estimated", "output_tokens")

    def __init__(self) -> None:
        self.costs: array[float] = array("d")
        """Of single turns whose token counts the server told."""
        self.estimated: array[float] = array("d")
        """Of the others."""
        self.output_tokens = 0

    def add_all(self, part: Part) -> None:
        for place in part.places[part.of(priced(part.batch))].tolist():
            self.add(part.batch.turns[place])

    def add(self, turn: TurnRecord) -> None:
        if turn.cost is None:
            return
        (self.costs if turn.cost_from is TokensFrom.USAGE else self.estimated).append(turn.cost)
        self.output_tokens += billed_output_tokens(turn)

    def add_attempt(self, attempt: EarlierAttempt) -> None:
        if attempt.cost is None:
            return
        (self.costs if attempt.cost_from is TokensFrom.USAGE else self.estimated).append(attempt.cost)
        self.output_tokens += attempt.output_tokens

    def merge(self, other: Bill) -> None:
        """Add all that `other` has."""
        self.costs.extend(other.costs)
        self.estimated.extend(other.estimated)
        self.output_tokens += other.output_tokens


_CUT_SHORT = (Reason.RUN_END, Reason.STAGE_END, Reason.INTERRUPTED, Reason.BUDGET, Reason.STOPPED_EARLY)


class Flow:
    """What happened when, on one (scenario, channel, replica): turns of all phases."""

    def __init__(self, key: FlowKey, windows: tuple[SteadyWindow, ...]) -> None:
        self.key = key
        self._windows = windows
        self._starts = [window.start_ns for window in windows]
        self._start_ns = np.array(self._starts, dtype=np.int64)
        self._end_ns = np.array([window.end_ns for window in windows], dtype=np.int64)
        self.sent: array[int] = array("q")
        """sent_ns of every turn that was sent."""
        self.finished: array[int] = array("q")
        """closed_ns of every ok turn."""
        self.flight_start: array[int] = array("q")
        self.flight_end: array[int] = array("q")
        """sent_ns and closed_ns, for turns that have both."""
        self._lives = Lives()
        self._alive: Alive | None = None
        """Of `_lives`, once somebody has asked."""
        self.tokens: list[int] = [0] * len(windows)
        """By window: tokens of turns whose answer lies wholly inside one."""
        self.token_parts: tuple[array[float], ...] = tuple(array("d") for _ in windows)
        """By window: what cut turns and turns over its edges brought."""
        self.by_chunk = 0
        """Turns without a count, credited one token per chunk."""
        self.bill = Bill()
        self.routed = False
        """Some of its sessions are a hybrid channel's, which may have sent them elsewhere too."""

    def add_sessions(self, part: Part, sessions: Ints) -> None:
        """The part of these turns in the lives of their sessions. `sessions`: the number of each turn's."""
        batch = part.batch
        self._alive = None
        begun = part.of(known(batch.ints("attempt_ns")))
        due_ns, closed_ns = part.of(batch.ints("due_ns")), part.of(batch.ints("closed_ns"))
        pause_ns = np.zeros(len(part), dtype=np.int64)
        for place in np.flatnonzero(begun & part.of(batch.where(lambda kind: kind.outcome is Outcome.FAILED))).tolist():
            asked_ns = batch.turns[part.places[place]].retry_after_ns or 0
            pause_ns[place] = PAUSE_NS + min(max(asked_ns, 0), LONGEST_RETRY_NS)
        end_ns = np.where(known(closed_ns), closed_ns, due_ns)
        self._lives.add(sessions[begun], due_ns[begun], end_ns[begun], pause_ns[begun])
        thinking = ~begun & part.of(batch.where(lambda kind: kind.reason in _CUT_SHORT))
        self._lives.think(sessions[thinking], due_ns[thinking])

    @property
    def alive(self) -> Alive:
        """When each of its sessions was."""
        if self._alive is None:
            self._alive = self._lives.alive()
        return self._alive

    def merge(self, other: Flow, sessions: Ints) -> None:
        """Add all that `other` has. `sessions`: what its sessions' numbers are here (`Sessions.merge`)."""
        self._alive = None
        self._lives.merge(other._lives, sessions)
        self.bill.merge(other.bill)
        for mine, theirs in (
            (self.sent, other.sent),
            (self.finished, other.finished),
            (self.flight_start, other.flight_start),
            (self.flight_end, other.flight_end),
        ):
            mine.extend(theirs)
        for index, (tokens, cut) in enumerate(zip(other.tokens, other.token_parts, strict=True)):
            self.tokens[index] += tokens
            self.token_parts[index].extend(cut)
        self.by_chunk += other.by_chunk
        self.routed = self.routed or other.routed

    def add(self, part: Part) -> None:
        """What these turns sent, brought and cost."""
        batch = part.batch
        self.bill.add_all(part)
        self.routed = self.routed or part.count(batch.where(lambda kind: kind.routed_by is not None)) > 0
        sent_ns, closed_ns = part.of(batch.ints("sent_ns")), part.of(batch.ints("closed_ns"))
        sent, closed = known(sent_ns), known(closed_ns)
        for column, values in (
            (self.sent, sent_ns[sent]),
            (self.flight_start, sent_ns[sent & closed]),
            (self.flight_end, closed_ns[sent & closed]),
            (self.finished, closed_ns[part.of(batch.ok) & closed]),
        ):
            column.frombytes(values.tobytes())
        tokens, chunks = part.of(batch.ints("output_tokens")), part.of(batch.ints("chunks"))
        by_chunk = ~known(tokens) & (chunks != 0)
        self.by_chunk += int(by_chunk.sum())
        tokens = np.where(by_chunk, chunks, np.where(known(tokens), tokens, 0))
        if self._windows:
            self._credit_all(part, tokens)

    def _credit_all(self, part: Part, tokens: Ints) -> None:
        """Give the turns' tokens to the windows in which they arrived; most turns lie wholly inside one."""
        batch = part.batch
        first_ns, last_ns = part.of(batch.ints("first_token_ns")), part.of(batch.ints("last_token_ns"))
        inside = self._windows_at(first_ns)
        whole = (part.of(batch.sparse("chunks_by_second").sizes) > 0) & known(first_ns) & known(last_ns)
        whole &= (inside >= 0) & (inside == self._windows_at(last_ns))
        for index, credit in zip(*grouped(inside[whole], tokens[whole]), strict=True):
            self.tokens[index] += credit
        for place in np.flatnonzero(~whole & (tokens != 0) & self._near(part, first_ns, last_ns)).tolist():
            self._credit(batch.turns[part.places[place]], int(tokens[place]))

    def _near(self, part: Part, first_ns: Ints, last_ns: Ints) -> Mask:
        """Turns whose answer may have come in a window at all; those of a warm-up mostly have not."""
        arrived = part.sparse("chunks_by_second")
        closed_ns = part.of(part.batch.ints("closed_ns"))
        low_ns = np.full(len(part), np.iinfo(np.int64).max)
        high_ns = np.full(len(part), ABSENT)
        np.minimum.at(low_ns, arrived.turn, arrived.key * SECOND_NS)
        np.maximum.at(high_ns, arrived.turn, (arrived.key + 1) * SECOND_NS)
        for at_ns in (first_ns, last_ns, closed_ns):
            low_ns = np.where(known(at_ns), np.minimum(low_ns, at_ns), low_ns)
            high_ns = np.maximum(high_ns, at_ns)
        near = np.zeros(len(part), dtype=np.bool_)
        for window in self._windows:
            near |= (low_ns < window.end_ns) & (high_ns >= window.start_ns)
        return near

    def _windows_at(self, at_ns: Ints) -> Ints:
        """Index of the window that holds each instant; -1: none does."""
        index = np.searchsorted(self._start_ns, at_ns, side="right") - 1
        return np.where((index >= 0) & (at_ns < self._end_ns[index]), index, -1)

    def _credit(self, turn: TurnRecord, tokens: int) -> None:
        """Give a turn's tokens to the windows in which they arrived.

        They are spread evenly over its chunks, and those of one second evenly over the part of that second between
        its first and its last token. Without chunks they arrive at once, at the end.
        """
        first_ns, last_ns = turn.first_token_ns, turn.last_token_ns
        if not turn.chunks_by_second:
            at_ns = last_ns if last_ns is not None else turn.closed_ns
            inside = None if at_ns is None else self._window_at(at_ns)
            if inside is not None:
                self.tokens[inside] += tokens
            return
        if first_ns is not None and last_ns is not None:
            inside = self._window_at(first_ns)
            if inside is not None and inside == self._window_at(last_ns):
                self.tokens[inside] += tokens
                return
        per_chunk = tokens / sum(turn.chunks_by_second.values())
        for second, count in turn.chunks_by_second.items():
            start_ns, end_ns = second * SECOND_NS, (second + 1) * SECOND_NS
            if first_ns is not None:
                start_ns = max(start_ns, first_ns)
            if last_ns is not None:
                end_ns = min(end_ns, last_ns)
            for index, window in enumerate(self._windows):
                share = _share_inside(start_ns, end_ns, window)
                if share:
                    self.token_parts[index].append(per_chunk * count * share)

    def _window_at(self, at_ns: int) -> int | None:
        index = bisect_right(self._starts, at_ns) - 1
        return index if index >= 0 and at_ns < self._windows[index].end_ns else None


def _share_inside(start_ns: int, end_ns: int, window: SteadyWindow) -> float:
    """Share of [start, end) inside a window; of an instant (end <= start): 1 or 0."""
    if end_ns <= start_ns:
        return 1.0 if window.start_ns <= start_ns < window.end_ns else 0.0
    return max(0, min(end_ns, window.end_ns) - max(start_ns, window.start_ns)) / (end_ns - start_ns)
