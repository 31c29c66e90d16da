"""Plays sessions: turn after turn, with their delays, until the session, the run or the lease is over."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import msgspec

from infersiege.channels.redaction import Secrets, one_line
from infersiege.channels.routing import back_off_ns, fails_over, is_refused, jitter_of
from infersiege.cost import earlier_attempt
from infersiege.quality import Item, Said, kept
from infersiege.records import EarlierAttempt, Outcome, Reason, TurnRecord
from infersiege.swarm.branches import Lend, LineInPlay, PreparedSession, SessionInPlay
from infersiege.swarm.checking import Checker
from infersiege.swarm.control import RunControl
from infersiege.swarm.ledger import OpenSession, request_id_of
from infersiege.swarm.permits import Leave, asked_tokens, too_large
from infersiege.swarm.purse import Purse
from infersiege.swarm.routes import Clients, Leg, Route, Way
from infersiege.swarm.turns import Played, TurnPlayer
from infersiege.traces.play.conversation import Conversation, PreparedTurn
from infersiege.wire.exchange import Request

log = logging.getLogger("infersiege.swarm.player")


class Tries:
    """The attempts at one turn, as they become its record.

    All figures are the last attempt's, but `attempts` counts every one and `attempt_ns` is the first one's: what waits
    between two is neither this worker's lateness nor left out of what is measured from the due time. What the others
    cost, and where, is in `earlier`.
    """

    __slots__ = ("_attempts", "_earlier", "_first", "_last", "failed_over", "retried", "retry_cut")

    def __init__(self) -> None:
        self._first: TurnRecord | None = None
        self._last: TurnRecord | None = None
        self._earlier: list[EarlierAttempt] = []
        self._attempts = 0
        self.retried = self.failed_over = self.retry_cut = False

    def add(self, record: TurnRecord) -> None:
        if self._last is not None:
            self._earlier.append(earlier_attempt(self._last))
        self._first = self._first or record
        self._last = record
        self._attempts += record.attempts

    def record(self) -> TurnRecord | None:
        """None: no attempt came to an end."""
        first, last = self._first, self._last
        if first is None or last is None:
            return None
        words = {"retried": self.retried, "failed_over": self.failed_over, "retry_cut": self.retry_cut}
        flags = [word for word, holds in words.items() if holds]
        if last is not first and first.error_class is not None:
            flags.append(f"after_{first.error_class.value}")
        if not flags:
            return last
        return msgspec.structs.replace(
            last,
            attempt_ns=first.attempt_ns,
            attempts=self._attempts,
            earlier=tuple(self._earlier),
            flags=(*last.flags, *flags),
        )


@dataclass(frozen=True, slots=True)
class LineWork:
    """What is needed to play one line of a session."""

    session: PreparedSession
    play: SessionInPlay
    line: LineInPlay
    conversation: Conversation
    way: Way
    clients: Clients
    lend: Lend


class Cleared(NamedTuple):
    """Where a turn goes, and leave to send it there at once."""

    leg: Leg
    leave: Leave
    tokens: int
    """That it asks for: its prompt and its longest answer."""


class SessionPlayer:
    """Plays prepared sessions on this worker."""

    def __init__(
        self,
        turns: TurnPlayer,
        control: RunControl,
        *,
        offset_ns: int,
        seed: int = 0,
        purse: Purse | None = None,
        keep_answers: bool = False,
        secrets: Secrets | None = None,
    ) -> None:
        """`seed`: of the jitter between retries. `purse`: what may be spent; None: there is no budget.

        `keep_answers`: of checked prompts, those that are not right. `secrets`: the run's, all of which the code that
        checks answers may have met; each route brings its own.
        """
        self._seed = seed
        self._keep_answers = keep_answers
        self._secrets = secrets or Secrets()
        self._purse = purse or Purse()
        self._turns = turns
        self._control = control
        self._offset_ns = offset_ns
        self.checker = Checker()

    def play(self, session: PreparedSession, clients: Clients, due_ns: int, lend: Lend) -> TurnRecord | None:
        """Play one session to its end; returns the last turn of its main line that was sent.

        `due_ns`: its first turn's (monotonic). `lend`: connections for its branches, which are played beside the main
        line. Every turn has its record when this returns, and when it raises, a moment later at most, since branches
        that run write their own; a fault of ours is one too, and does not spread.
        """
        play = SessionInPlay(session, self._turns.ledger)
        work = LineWork(session, play, play.main, session.conversation, session.way, clients, lend)
        try:
            self._start_branches(work, None, due_ns)
            last = self._play_line(work, due_ns)
            play.wait()
            return last
        finally:
            # Nothing here may yield: the greenlet may be on its way out.
            play.stop(self._why_over(session))

    def _play_line(self, work: LineWork, due_ns: int) -> TurnRecord | None:
        line, play = work.line, work.play
        line.started = line.running = True
        try:
            return self._play_turns(work, due_ns)
        except Exception as error:
            log.exception("session %s", line.opened.session_id)
            play.end(line, Reason.INTERNAL, one_line(self._secrets.scrub(f"{type(error).__name__}: {error}")))
            return None
        finally:
            # Nothing here may yield, as above.
            play.end(line, self._why_over(work.session))
            line.running = False

    def _play_turns(self, work: LineWork, due_ns: int) -> TurnRecord | None:
        """`due_ns`: of a first turn without a delay (monotonic)."""
        last: TurnRecord | None = None
        line, play, conversation, way = work.line, work.play, work.conversation, work.way
        while (turn := conversation.next_turn()) is not None:
            if turn.too_long:
                play.too_long(line)
                return last
            # Built before it is due: writing 100 KB of JSON must not make it late.
            early = {way.likely: way.request(way.likely, turn, self._request_id(line.opened, turn))}
            due_ns = max(due_ns, play.join(turn.index) or due_ns) + turn.delay_ns
            play.due(line, due_ns + self._offset_ns)
            if not self._wait_until(max(due_ns, work.session.not_before_ns), work.session):
                self._due_at_the_latest(work)
                return last
            tokens = asked_tokens(turn, early[way.likely])
            cleared = self._next_leg(work, tokens)
            if cleared is None:
                return last
            if turn.delay_cut_ns:
                play.capped(turn.delay_cut_ns)
            if turn.clipped_tokens:
                play.clipped()
            played, last = self._play_turn(work, turn, cleared, early)
            due_ns = line.ended_ns = played.ended_ns
            if last.outcome is Outcome.CANCELLED:
                return last
            goes_on = True
            if last.outcome is Outcome.OK and played.decoded is not None:
                conversation.answered(played.decoded.text, list(played.decoded.tool_calls))
            else:
                goes_on = conversation.failed()
            self._start_branches(work, turn.index, due_ns)
            if not goes_on:
                play.end(line, Reason.AFTER_FAILURE)
                return last
        return last

    def _start_branches(self, work: LineWork, turn: int | None, ended_ns: int) -> None:
        """Start what begins with the end of a turn (monotonic), or with the session (None)."""
        for line in work.play.starting(turn):
            conversation = work.conversation.branch(line.line)
            if conversation is None:
                work.play.end(line, Reason.AFTER_FAILURE)
                continue
            work.play.spawn(line, partial(self._play_branch, work, line, conversation, ended_ns))

    def _play_branch(self, parent: LineWork, line: LineInPlay, conversation: Conversation, ended_ns: int) -> None:
        with parent.lend() as clients:
            # It goes on where its parent was served, and elsewhere by itself; what servers gave the session is shared.
            way = replace(parent.way)
            work = replace(parent, line=line, conversation=conversation, way=way, clients=clients)
            self._play_line(work, ended_ns)

    def _play_turn(
        self, work: LineWork, turn: PreparedTurn, cleared: Cleared, early: dict[Route, Request]
    ) -> tuple[Played, TurnRecord]:
        """Send a turn, again and elsewhere as its channel says. (last attempt, the turn's record, which is closed).

        `early`: the request that was built before the turn was due, by the route that it is for.
        """
        leave: Leave | None
        leg, leave, tokens = cleared
        opened, way, ledger = work.line.opened, work.way, self._turns.ledger
        tries, record = Tries(), None
        opened.channel = leg.route.labels
        ledger.start(opened, self._request_id(opened, turn), time.monotonic_ns() + self._offset_ns)
        tried, retries = [leg.part], 0
        try:
            while True:
                route = leg.route
                request = early.get(route) or way.request(route, turn, self._request_id(opened, turn))
                early = {}  # A refusal may bring a cookie, too.
                played = self._turns.attempt(
                    opened,
                    turn,
                    leg,
                    request,
                    work.clients.of(route),
                    way.kept(route),
                    reason=lambda: self._why_cut(work.session),
                    begun=leave.begun,
                )
                tries.add(played.record)
                self._purse.paid(played.record, leave)
                if played.killed is not None:
                    raise played.killed
                if not played.before_first_token:
                    break
                if retries < route.channel.retries and is_refused(played.record.error_class, played.record.http_status):
                    retries += 1
                    tries.retry_cut = True  # Also when this greenlet is stopped while it waits.
                    leave = self._wait_to_retry(played.record, retries, work.session, tokens)
                    if leave is None:
                        break
                    tries.retry_cut, tries.retried = False, True
                    continue
                following = way.after_failure(tried) if fails_over(played.record.error_class) else None
                if following is None:
                    break
                leave = self._may_send(following.route.labels.name, work.session, tokens)
                if leave is None:
                    break
                leg, retries, tries.failed_over = following, 0, True
                tried.append(leg.part)
                opened.channel = leg.route.labels
        finally:
            record = tries.record()
            if record is not None:
                secrets = leg.route.secrets + way.kept(leg.route).values
                record = self._close(opened, record, played, work.session.checked, secrets)
        if not played.before_first_token:
            way.served = leg.part
        return played, record or played.record

    def _close(
        self, opened: OpenSession, record: TurnRecord, played: Played, checked: Item | None, secrets: tuple[str, ...]
    ) -> TurnRecord:
        """Write a turn's record, and what the checks say of its answer, where there are some and all of one."""
        try:
            if checked is not None and record.outcome is Outcome.OK and played.decoded is not None:
                text, calls, found = played.decoded.text, played.decoded.tool_calls, None
                redact = self._secrets.also(secrets).scrub
                try:
                    if played.killed is None or not checked.own_code:  # on its way out it may not wait
                        found = self.checker.score(checked, text, calls, redact=redact)
                finally:  # also where the end of the run cuts the wait for a check
                    found = found or self.checker.cut(checked)
                    record = msgspec.structs.replace(record, quality=str(found))
                    if self._keep_answers:
                        answer = kept(found, Said.of(text, calls), redact)
                        record = msgspec.structs.replace(record, answer=answer)
            return record
        finally:
            self._turns.ledger.close(opened, record)

    def _wait_to_retry(self, refused: TurnRecord, retry: int, session: PreparedSession, tokens: int) -> Leave | None:
        """Wait before the next attempt, for leave to make it. None: the load is over, there is none."""
        jitter = jitter_of(self._seed, refused.request_id, retry)
        wait_ns = back_off_ns(retry, refused.retry_after_ns, jitter)
        if not self._wait_until(time.monotonic_ns() + wait_ns, session):
            return None
        return self._may_send(refused.channel, session, tokens)

    def _next_leg(self, work: LineWork, tokens: int) -> Cleared | None:
        """Where the next turn goes, with leave to send it there at once.

        None: the load is over, or the turn asks for more tokens than the channel's rate limit ever gives, which ends
        its line.
        """
        kept: Leave | None = None
        try:
            while self._may_start(work.session):
                leg = work.way.next()
                channel = leg.route.labels.name
                rate = self._purse.never(channel, tokens)
                if rate is not None:
                    work.play.end(work.line, Reason.RATE_LIMIT, too_large(rate, tokens))
                    return None
                taken, kept = self._purse.take(channel, tokens, kept), None
                if taken is not None:
                    return Cleared(leg, taken, tokens)
                # Meanwhile another part of a hybrid channel may become the right one.
                kept = self._purse.wait(channel, tokens)
            return None
        finally:
            if kept is not None:
                self._purse.give_back(kept)

    def _may_send(self, channel: str, session: PreparedSession, tokens: int) -> Leave | None:
        """Wait for leave to send a request at once. None: the load is over, or this channel never takes it."""
        kept: Leave | None = None
        try:
            if self._purse.never(channel, tokens) is not None:
                return None
            while self._may_start(session):
                taken, kept = self._purse.take(channel, tokens, kept), None
                if taken is not None:
                    return taken
                kept = self._purse.wait(channel, tokens)
            return None
        finally:
            if kept is not None:
                self._purse.give_back(kept)

    def _may_start(self, session: PreparedSession) -> bool:
        return self._control.may_start() and not session.over(time.monotonic_ns())

    def _wait_until(self, at_ns: int, session: PreparedSession) -> bool:
        """Sleep to an instant. False: the load, or the session's part in it, is over before."""
        control = self._control
        while not session.over(time.monotonic_ns()):
            until_ns, changes = session.until_ns, control.changes
            if not control.wait_until(at_ns if until_ns is None else min(at_ns, until_ns), changes):
                return False
            if time.monotonic_ns() >= at_ns and changes == control.changes:
                return until_ns is None or at_ns < until_ns
        return False

    def _due_at_the_latest(self, work: LineWork) -> None:
        """The end of its time, or of the load, met a session in its delay: what would have come next belongs to the
        stage that it was in then, and not to one that may never have begun."""
        until_ns, closed_ns = work.session.until_ns, self._control.closed_ns
        ends_ns = [end_ns for end_ns in (None if until_ns is None else until_ns - 1, closed_ns) if end_ns is not None]
        if ends_ns:
            work.play.due_at_most(work.line, min(ends_ns) + self._offset_ns)

    def _why_over(self, session: PreparedSession) -> Reason:
        """Why no turn of a session starts any more: whichever came first."""
        if session.cut_for is not None:
            return session.cut_for
        until_ns, closed_ns = session.until_ns, self._control.closed_ns
        if session.over(time.monotonic_ns()) and (closed_ns is None or (until_ns or 0) <= closed_ns):
            return Reason.STAGE_END
        return self._control.reason

    def _why_cut(self, session: PreparedSession) -> Reason:
        """Why an open turn of a session is cut: what is open in a pause goes on, unless the load ends in it."""
        return self._control.reason if self._control.closing.is_set() else self._why_over(session)

    def _request_id(self, opened: OpenSession, turn: PreparedTurn) -> str:
        return request_id_of(self._turns.ledger.run_id, opened.session_id, turn.index)
