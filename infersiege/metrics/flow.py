"""What happens when: the flow of one (scenario, channel, replica) through the windows, and what its turns cost.

It takes turns of all phases, since what happens inside a window is a matter of time and not of when a turn was due.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from infersiege.cost import billed_output_tokens
from infersiege.metrics.facts import SteadyWindow
from infersiege.records import EarlierAttempt, Outcome, Reason, TokensFrom, TurnRecord

SECOND_NS = 1_000_000_000

FlowKey = tuple[str, str, str]
"""Scenario, channel, replica; the last two may be empty."""

PAUSE_NS = 2 * SECOND_NS
LONGEST_RETRY_NS = 60 * SECOND_NS
"""A user whose request failed pauses before its next session: so long, and what the server asked for (Retry-After)."""


def class_of(failed: TurnRecord | EarlierAttempt) -> str:
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


_CUT_SHORT = (Reason.RUN_END, Reason.STAGE_END, Reason.INTERRUPTED, Reason.BUDGET)


class Flow:
    """What happened when, on one (scenario, channel, replica): turns of all phases."""

    def __init__(self, key: FlowKey, windows: tuple[SteadyWindow, ...]) -> None:
        self.key = key
        self._windows = windows
        self._starts = [window.start_ns for window in windows]
        self.sent: array[int] = array("q")
        """sent_ns of every turn that was sent."""
        self.finished: array[int] = array("q")
        """closed_ns of every ok turn."""
        self.flight_start: array[int] = array("q")
        self.flight_end: array[int] = array("q")
        """sent_ns and closed_ns, for turns that have both."""
        self.session_start: array[int] = array("q")
        self.session_end: array[int] = array("q")
        """First due_ns and last closed_ns of each session that began."""
        self.session_pause: array[int] = array("q")
        """How long its user may wait before the next one without being gone: 0 unless the session ended in failure."""
        self._sessions: dict[str, int] = {}
        self._thinking: dict[str, int] = {}
        """Sessions that the end of the load met between two turns -> when their next turn was due."""
        self.tokens: list[int] = [0] * len(windows)
        """By window: tokens of turns whose answer lies wholly inside one."""
        self.token_parts: tuple[array[float], ...] = tuple(array("d") for _ in windows)
        """By window: what cut turns and turns over its edges brought."""
        self.by_chunk = 0
        """Turns without a count, credited one token per chunk."""
        self.bill = Bill()
        self.routed = False
        """Some of its sessions are a hybrid channel's, which may have sent them elsewhere too."""

    def add_session(self, turn: TurnRecord) -> None:
        """Its part in the life of its session."""
        if turn.attempt_ns is not None:
            self._session(turn)
        elif turn.reason in _CUT_SHORT:
            self._thought(turn)

    def add(self, turn: TurnRecord) -> None:
        """What it sent, brought and cost."""
        self.bill.add(turn)
        self.routed = self.routed or turn.routed_by is not None
        if turn.sent_ns is not None:
            self.sent.append(turn.sent_ns)
            if turn.closed_ns is not None:
                self.flight_start.append(turn.sent_ns)
                self.flight_end.append(turn.closed_ns)
        if turn.outcome is Outcome.OK and turn.closed_ns is not None:
            self.finished.append(turn.closed_ns)
        tokens = turn.output_tokens
        if tokens is None and turn.chunks:
            tokens = turn.chunks
            self.by_chunk += 1
        if tokens and self._windows:
            self._credit(turn, tokens)

    def _session(self, turn: TurnRecord) -> None:
        end_ns = turn.due_ns if turn.closed_ns is None else turn.closed_ns
        pause_ns = 0
        if turn.outcome is Outcome.FAILED:
            pause_ns = PAUSE_NS + min(max(turn.retry_after_ns or 0, 0), LONGEST_RETRY_NS)
        index = self._sessions.setdefault(turn.session_id, len(self.session_start))
        if index == len(self.session_start):
            self.session_start.append(turn.due_ns)
            self.session_end.append(max(end_ns, self._thinking.pop(turn.session_id, end_ns)))
            self.session_pause.append(pause_ns)
            return
        self.session_pause[index] = max(self.session_pause[index], pause_ns)
        self.session_start[index] = min(self.session_start[index], turn.due_ns)
        self.session_end[index] = max(self.session_end[index], end_ns)

    def _thought(self, turn: TurnRecord) -> None:
        """Its user was alive, and thinking, when the load ended: up to then it was load that was asked for."""
        index = self._sessions.get(turn.session_id)
        if index is None:
            known = self._thinking.get(turn.session_id, turn.due_ns)
            self._thinking[turn.session_id] = max(known, turn.due_ns)
        else:
            self.session_end[index] = max(self.session_end[index], turn.due_ns)

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
