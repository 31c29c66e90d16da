"""Sends one request of a turn and writes down what happened: one attempt, one TurnRecord."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from infersiege.channels.affinity import Kept
from infersiege.channels.answer import Answer
from infersiege.channels.dialect import Decoded
from infersiege.channels.outcome import GOOD_FINISH, Conclusion, account_tokens, conclude, decode_body
from infersiege.channels.quota import quota_left
from infersiege.channels.redaction import Secrets, one_line
from infersiege.cost import priced
from infersiege.quality import collapse_flags
from infersiege.records import Outcome, Reason, TurnRecord
from infersiege.swarm.ledger import Ledger, OpenSession, request_id_of
from infersiege.swarm.routes import Leg, Route
from infersiege.traces.play.conversation import PreparedTurn
from infersiege.wire.exchange import ExchangeResult, Fault, Request
from infersiege.wire.transport import Client, Exchange

SAID_LENGTH = 120
EMULATED_HEADER = "x-infersiege-emulated"


@dataclass(frozen=True, slots=True)
class Played:
    """One attempt at a turn: its record, what was said, and when it ended (monotonic)."""

    record: TurnRecord
    decoded: Decoded | None
    ended_ns: int
    killed: BaseException | None
    """What stopped this greenlet meanwhile; to be raised once the record is in the ledger."""

    @property
    def before_first_token(self) -> bool:
        """It failed, and nothing of an answer had come."""
        record = self.record
        return record.outcome is Outcome.FAILED and record.chunks == 0 and record.first_token_ns is None


class TurnPlayer:
    """Sends requests and makes their records; whoever calls it closes them in the ledger."""

    def __init__(self, ledger: Ledger, *, offset_ns: int) -> None:
        """`offset_ns`: master's epoch minus this worker's monotonic clock."""
        self.ledger = ledger
        self.offset_ns = offset_ns
        self.in_flight: dict[Exchange, Answer] = {}
        self._of: dict[Exchange, OpenSession] = {}
        """Whose it is what is in flight."""
        self._closed_chunks = 0

    @property
    def chunks(self) -> int:
        """Content chunks seen since the start, open turns included."""
        return self._closed_chunks + sum(answer.chunks_so_far for answer in self.in_flight.values())

    def attempt(
        self,
        session: OpenSession,
        turn: PreparedTurn,
        leg: Leg,
        request: Request,
        client: Client,
        kept: Kept,
        *,
        reason: Callable[[], Reason],
        begun: Callable[[Exchange], None] | None = None,
    ) -> Played:
        """Send one request and wait for its end. Does not yield before it is under way.

        `kept`: what the server gave the session; takes what this answer adds. `reason` tells what a cancelled record
        says. `begun` is given the exchange as it begins.
        """
        route = leg.route
        answer = Answer(route.dialect.decoder(), epoch_offset_ns=self.offset_ns)
        exchange = client.start(request, answer, route.deadlines)
        self.in_flight[exchange] = answer
        if begun is not None:
            begun(exchange)
        self._of[exchange] = session
        route.watch.begin(answer, time.monotonic_ns())
        killed: BaseException | None = None
        try:
            exchange.wait()
        except BaseException as error:  # noqa: BLE001 - GreenletExit too: the record comes first, then it goes on
            exchange.abort("the session was stopped")
            killed = error
        del self.in_flight[exchange]
        del self._of[exchange]
        route.watch.end(answer)
        self._closed_chunks += answer.chunks
        result = exchange.result()
        ended_ns = result.closed_ns or time.monotonic_ns()
        kept.take(result.headers, (ended_ns + self.offset_ns) / 1e9)
        record, decoded = self._record(session, turn, leg, answer, result, kept, reason)
        return Played(record, decoded, ended_ns, killed)

    def abort_all(self, detail: str) -> None:
        """Cancel what is in flight; each waiting session wakes and writes its record."""
        for exchange in list(self.in_flight):
            exchange.abort(detail)

    def abort_over(self, now_ns: int, detail: str) -> None:
        """Cancel turns of sessions whose time is over."""
        for exchange, session in list(self._of.items()):
            if session.until_ns is not None and session.until_ns <= now_ns:
                exchange.abort(detail)

    def abort_session(self, session_id: str, detail: str) -> None:
        """Cancel what is in flight of one session."""
        for exchange, session in list(self._of.items()):
            if session.session_id == session_id:
                exchange.abort(detail)

    def _record(
        self,
        session: OpenSession,
        turn: PreparedTurn,
        leg: Leg,
        answer: Answer,
        result: ExchangeResult,
        kept: Kept,
        reason: Callable[[], Reason],
    ) -> tuple[TurnRecord, Decoded | None]:
        route = leg.route
        secrets = route.secrets + kept.values
        decoded: Decoded | None = answer.decoder.decoded() if result.streamed else None
        unreadable: Fault | None = None
        if not result.streamed:
            decoded, unreadable = decode_body(route.dialect, result)
        conclusion = conclude(
            result,
            decoded=decoded,
            stream_asked=route.channel.stream,
            parse_fault=answer.fault or unreadable,
            unterminated=answer.unterminated,
            asked_output_tokens=turn.max_tokens,
            wall_ns=self._epoch(result.closed_ns),
            secrets=secrets,
        )
        ours = {"emulated": EMULATED_HEADER in result.headers, "moved": leg.moved, "clipped": turn.clipped_tokens > 0}
        collapsed: tuple[str, ...] = ()
        if decoded is not None and conclusion.outcome is Outcome.OK:
            missing = missing_tokens(route, turn, decoded) if conclusion.finish_reason == "stop" else None
            collapsed = collapse_flags(decoded.text, decoded.reasoning, decoded.tool_calls, short_of=missing)
        record = TurnRecord(
            **self._labels(session, turn, leg),
            **self._times(answer, result, conclusion),
            **account_tokens(decoded, answer.chunks)._asdict(),
            model_answered=_said(decoded.model if decoded else None, route.labels.model, secrets),
            replica=route.replica or result.peer,
            reused_connection=result.reused_connection,
            attempts=result.attempts,
            chunks=answer.chunks,
            coalesced=answer.coalesced,
            chunks_by_second=answer.chunks_by_second,
            gaps=answer.gaps,
            keepalives=answer.keepalives,
            finish_reason=_said(conclusion.finish_reason, "stop", secrets),
            outcome=conclusion.outcome,
            reason=reason() if conclusion.outcome is Outcome.CANCELLED else None,
            error_class=conclusion.error_class,
            error_detail=conclusion.error_detail,
            flags=conclusion.flags + collapsed + tuple(flag for flag, holds in ours.items() if holds),
            http_status=result.status,
            retry_after_ns=conclusion.retry_after_ns,
            quota_left=quota_left(result.headers),
            bytes_in=result.bytes_in,
            bytes_out=result.bytes_out,
            server_ttft_ns=decoded.server_ttft_ns if decoded else None,
        )
        return priced(record, route.channel.price), decoded

    def _labels(self, session: OpenSession, turn: PreparedTurn, leg: Leg) -> dict[str, Any]:
        """Columns that are known before the turn is sent."""
        route, place = leg.route, self.ledger.place_of(session.due_ns)
        return {
            "run_id": self.ledger.run_id,
            "worker": self.ledger.worker,
            "epoch": session.epoch,
            "session_id": session.session_id,
            "turn": turn.index,
            "parent_turn": turn.parent,
            "scenario": session.scenario,
            "stage": place.stage,
            "phase": place.phase,
            "channel": route.labels.name,
            "engine": route.labels.engine,
            "dialect": route.labels.dialect,
            "model_asked": route.labels.model,
            "routed_by": leg.routed_by,
            "route_reason": leg.reason,
            "request_id": request_id_of(self.ledger.run_id, session.session_id, turn.index),
            "due_ns": session.due_ns,
            "asked_prompt_tokens": turn.asked_prompt_tokens,
            "asked_output_tokens": turn.asked_output_tokens,
        }

    def _times(self, answer: Answer, result: ExchangeResult, conclusion: Conclusion) -> dict[str, Any]:
        """Columns of when it happened, on the master's clock."""
        epoch, streamed = self._epoch, result.streamed
        last_token_ns = answer.last_token_ns
        if not streamed:
            # Without a stream the whole answer is there when its last byte is; TTFT and TPOT stay unknown.
            last_token_ns = result.closed_ns if conclusion.outcome is Outcome.OK else None
        return {
            "attempt_ns": epoch(result.attempt_ns),
            "sent_ns": epoch(result.sent_ns),
            "sent_end_ns": epoch(result.sent_end_ns),
            "first_byte_ns": epoch(result.first_byte_ns),
            "first_token_ns": epoch(answer.first_token_ns) if streamed else None,
            "first_token_slack_ns": answer.first_token_slack_ns if streamed else None,
            "first_answer_ns": epoch(answer.first_answer_ns) if streamed else None,
            "last_token_ns": epoch(last_token_ns),
            "closed_ns": epoch(result.closed_ns),
            "connect_duration_ns": result.connect_duration_ns,
            "tls_duration_ns": result.tls_duration_ns,
            "stamp_source": result.stamp_source if result.first_byte_ns is not None else None,
            "clock_step": result.clock_step,
        }

    def _epoch(self, monotonic_ns: int | None) -> int | None:
        return None if monotonic_ns is None else monotonic_ns + self.offset_ns


def missing_tokens(route: Route, turn: PreparedTurn, decoded: Decoded) -> int | None:
    """By how many tokens an answer is shorter than the length that its request forced; None: it forced none."""
    told = None if decoded.usage is None else decoded.usage.output_tokens
    if told is None or not route.forces_length(turn):
        return None
    return turn.max_tokens - told


def _said(text: str | None, usual: str, secrets: tuple[str, ...]) -> str | None:
    """A word of the server, fit to be kept: without secrets, short, on one line. `usual` needs no look."""
    if text is None or text == usual or text in GOOD_FINISH:
        return text
    return one_line(Secrets(secrets).scrub(text))[:SAID_LENGTH]
