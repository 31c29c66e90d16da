"""One session in play: its lines, which of them have started, and which wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gevent.event import Event
from gevent.pool import Group

from infersiege.quality import Item
from infersiege.records import Reason, TraceChanges
from infersiege.swarm.ledger import Ledger, OpenSession
from infersiege.swarm.routes import Clients, Way
from infersiege.traces.play.conversation import Conversation
from infersiege.traces.play.session_lines import SessionLine

Lend: TypeAlias = Callable[[], AbstractContextManager[Clients]]
"""Lends the connections of a branch, which are its own while it is played."""


@dataclass(slots=True)
class PreparedSession:
    """A session ready to be played: its text is made on demand, its place in the ledger is not taken yet."""

    lines: tuple[OpenSession, ...]
    """The main line, then the branches."""
    conversation: Conversation
    way: Way
    not_before_ns: int = 0
    """A late arrival is held until then (monotonic), so that what was missed does not come as a burst."""
    cut_for: Reason | None = None
    """Why it was ended before its time; None: it was not."""
    checked: Item | None = None
    """What its answer is held against; None: it is not checked."""

    @property
    def opened(self) -> OpenSession:
        """The main line."""
        return self.lines[0]

    @property
    def until_ns(self) -> int | None:
        """From then on no turn of it starts (monotonic); None: not before the run's end."""
        return self.lines[0].until_ns

    def cut(self, now_ns: int, reason: Reason) -> None:
        """None of its turns starts from now on."""
        self.cut_for = self.cut_for or reason
        for line in self.lines:
            line.until_ns = now_ns

    def over(self, now_ns: int) -> bool:
        """Whether its time is over, although the run's may not be."""
        return self.until_ns is not None and now_ns >= self.until_ns


@dataclass(slots=True, eq=False)
class LineInPlay:
    """One line of a session in play."""

    line: SessionLine
    opened: OpenSession
    started: bool = False
    """Somebody plays it, or is about to, or it is over."""
    running: bool = False
    """Its greenlet is at it: it will write what is left of its records itself."""
    ended_ns: int | None = None
    """When its last turn so far ended (monotonic); None: it had none."""
    over: Any = field(default_factory=Event)


class SessionInPlay:
    """The lines of one session. Only `join` and `wait` yield."""

    def __init__(self, session: PreparedSession, ledger: Ledger) -> None:
        self._ledger = ledger
        self.lines = [
            LineInPlay(line, opened) for line, opened in zip(session.conversation.lines, session.lines, strict=True)
        ]
        self._starting: dict[int | None, list[LineInPlay]] = {}
        self._joined: dict[int, list[LineInPlay]] = {}
        for line in self.lines[1:]:
            self._starting.setdefault(line.line.after, []).append(line)
            if line.line.joined_by is not None:
                self._joined.setdefault(line.line.joined_by, []).append(line)
        self._greenlets = Group() if len(self.lines) > 1 else None
        self._noted: set[str] = set()

    @property
    def main(self) -> LineInPlay:
        return self.lines[0]

    def starting(self, turn: int | None) -> list[LineInPlay]:
        """Branches that start with the end of a turn; None: with the session."""
        return [line for line in self._starting.get(turn, ()) if not line.started]

    def spawn(self, line: LineInPlay, play: Callable[[], object]) -> None:
        """Play a branch in a greenlet of its own, which begins when this one waits."""
        assert self._greenlets is not None, "a session without branches"
        line.started = True
        self._greenlets.spawn(play)

    def join(self, turn: int) -> int | None:
        """Wait until the branches that a turn joins are over; the latest end of their turns, None without any."""
        ends = []
        for line in self._joined.get(turn, ()):
            line.over.wait()
            if line.ended_ns is not None:
                ends.append(line.ended_ns)
        return max(ends, default=None)

    def due(self, line: LineInPlay, due_ns: int) -> None:
        """The next turn of a line is due (epoch ns); what has not started yet is not due before it."""
        line.opened.due_ns = due_ns
        for other in self.lines[1:]:
            if not other.started and other.opened.due_ns < due_ns:
                other.opened.due_ns = due_ns

    def due_at_most(self, line: LineInPlay, at_ns: int) -> None:
        """The next turn of a line never came: it, and what has not started yet, counts as due by then (epoch ns)."""
        for other in self.lines:
            if (other is line or not other.started) and other.opened.due_ns > at_ns:
                other.opened.due_ns = at_ns

    def end(self, line: LineInPlay, reason: Reason, detail: str | None = None) -> None:
        """No more of a line: its turns without a record are skipped, and so is all that would have started from it."""
        line.started = True
        self._ledger.skip_rest(line.opened, reason, detail)
        for turn in range(line.line.first_turn, line.line.end) if len(self.lines) > 1 else ():
            for branch in self.starting(turn):
                self.end(branch, reason, detail)
        line.over.set()

    def capped(self, cut_ns: int) -> None:
        """A turn's delay was shortened by so much."""
        first = self._first("capped")
        self._ledger.changed(
            self.main.opened, TraceChanges(capped_turns=1, capped_ns=cut_ns, capped_sessions=int(first))
        )

    def clipped(self) -> None:
        """A turn's prompt was cut."""
        first = self._first("clipped")
        self._ledger.changed(self.main.opened, TraceChanges(clipped_turns=1, clipped_sessions=int(first)))

    def too_long(self, line: LineInPlay) -> None:
        """The next turn of a line can't be sent, nor what comes after it."""
        before, first = self._ledger.closed_turns, self._first("too_long")
        self.end(line, Reason.TOO_LONG)
        skipped = self._ledger.closed_turns - before
        self._ledger.changed(self.main.opened, TraceChanges(too_long_turns=skipped, too_long_sessions=int(first)))

    def _first(self, what: str) -> bool:
        """Whether the session is counted for this for the first time."""
        first = what not in self._noted
        self._noted.add(what)
        return first

    def wait(self) -> None:
        """Until every line that was started is over."""
        if self._greenlets is not None:
            self._greenlets.join()

    def stop(self, reason: Reason) -> None:
        """Stop what still runs; every turn has its record, or a greenlet that is about to write it."""
        if self._greenlets is not None:
            self._greenlets.kill(block=False)
        for line in self.lines:
            if not line.running:
                self._ledger.skip_rest(line.opened, reason)
                line.over.set()
