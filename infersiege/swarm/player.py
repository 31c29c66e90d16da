"""Plays sessions: turn after turn, with their delays, until the session, the run or the lease is over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from infersiege.records import Outcome, Reason, TurnRecord
from infersiege.swarm.control import RunControl
from infersiege.swarm.ledger import OpenSession, request_id_of
from infersiege.swarm.turns import Route, TurnPlayer
from infersiege.traces.conversation import Conversation, PreparedTurn
from infersiege.wire.transport import Client

log = logging.getLogger("infersiege.swarm.player")


@dataclass(slots=True)
class PreparedSession:
    """A session ready to be played: its text is made on demand, its place in the ledger is not taken yet."""

    opened: OpenSession
    conversation: Conversation
    route: Route
    context_limit: int | None
    """Most tokens of prompt and output that the model takes; None: no limit is known."""
    not_before_ns: int = 0
    """A late arrival is held until then (monotonic), so that what was missed does not come as a burst."""


class ClientPool:
    """Keep-alive connections. A session borrows a client as a user owns one; the next user finds it warm."""

    def __init__(self, make: Callable[[Route], Client]) -> None:
        self._make = make
        self._idle: dict[str, list[Client]] = {}

    def take(self, route: Route) -> Client:
        idle = self._idle.get(route.labels.name)
        return idle.pop() if idle else self._make(route)

    def give(self, route: Route, client: Client) -> None:
        self._idle.setdefault(route.labels.name, []).append(client)


class SessionPlayer:
    """Plays prepared sessions on this worker."""

    def __init__(self, turns: TurnPlayer, control: RunControl, *, offset_ns: int) -> None:
        self._turns = turns
        self._control = control
        self._offset_ns = offset_ns

    def play(self, session: PreparedSession, client: Client, due_ns: int) -> TurnRecord | None:
        """Play one session to its end; returns the last turn that was sent. `due_ns`: its first turn's (monotonic).

        Every turn has its record when this returns or raises; a fault of ours is one too, and does not spread.
        """
        opened = session.opened
        ledger = self._turns.ledger
        try:
            return self._play_turns(session, client, due_ns)
        except Exception as error:
            log.exception("session %s", opened.session_id)
            ledger.skip_rest(opened, Reason.INTERNAL, f"{type(error).__name__}: {error}"[:300])
            return None
        finally:
            # Nothing here may yield: the greenlet may be on its way out.
            ledger.skip_rest(opened, self._control.reason)

    def _play_turns(self, session: PreparedSession, client: Client, due_ns: int) -> TurnRecord | None:
        last: TurnRecord | None = None
        opened, conversation = session.opened, session.conversation
        ledger = self._turns.ledger
        while (turn := conversation.next_turn()) is not None:
            if turn.index:
                due_ns += turn.delay_ns
            opened.due_ns = due_ns + self._offset_ns
            if _too_long(turn, session.context_limit):
                ledger.skip_rest(opened, Reason.TOO_LONG)
                return last
            # Built before it is due: writing 100 KB of JSON must not make it late.
            request = session.route.request(turn, request_id_of(ledger.run_id, opened.session_id, turn.index))
            if not (self._control.wait_until(max(due_ns, session.not_before_ns)) and self._control.may_start()):
                return last
            played = self._turns.play(opened, turn, session.route, request, client, reason=lambda: self._control.reason)
            due_ns = played.ended_ns
            last = played.record
            if last.outcome is Outcome.CANCELLED:
                return last
            if last.outcome is Outcome.OK and played.decoded is not None:
                conversation.answered(played.decoded.text, list(played.decoded.tool_calls))
            elif not conversation.failed():
                ledger.skip_rest(opened, Reason.AFTER_FAILURE)
                return last
        return last


def _too_long(turn: PreparedTurn, context_limit: int | None) -> bool:
    """Prompt and output together are over the limit, as far as the trace tells the prompt's length."""
    if context_limit is None or turn.asked_prompt_tokens is None:
        return False
    return turn.asked_prompt_tokens + turn.max_tokens > context_limit
