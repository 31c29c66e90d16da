"""Sessions and records for tests of the ledger, the spool and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from records_sample import plan

from infersiege.records import OpenTurn, Outcome, Phase, Reason, TurnRecord
from infersiege.rundir import PlanFile, RunDirectory
from infersiege.swarm.ledger import ChannelLabels, OpenSession, Place, unsent_record

RUN_ID = "run"
STEADY = Place("main", Phase.STEADY)
LABELS = ChannelLabels(name="target", engine="vllm", dialect="openai-chat", model="m")
Key = tuple[str, int]
"""(session, turn)."""


def session(
    session_id: str, turns: int = 1, due_ns: int = 0, *, first_turn: int = 0, after: int | None = None
) -> OpenSession:
    """A session without branches, or one line of one that has them."""
    return OpenSession(
        session_id=session_id,
        scenario="talk",
        channel=LABELS,
        turns=turns,
        due_ns=due_ns,
        first_turn=first_turn,
        after=after,
    )


def lines(session_id: str, *turns: int, due_ns: int = 0) -> tuple[OpenSession, ...]:
    """A session with a main line and branches of so many turns, each of which starts after turn 0."""
    made: list[OpenSession] = []
    for count in turns:
        first = made[-1].end if made else 0
        made.append(session(session_id, count, due_ns, first_turn=first, after=0 if made else None))
    return tuple(made)


def open_turn(
    session_id: str, turns: int = 1, turn: int = 0, *, started: bool = False, first_turn: int = 0
) -> OpenTurn:
    opened = session(session_id, turns, first_turn=first_turn)
    opened.next_turn, opened.started = max(turn, first_turn), started
    return opened.open_turn(STEADY)


def record(
    session_id: str,
    turn: int = 0,
    *,
    worker: str = "w",
    outcome: Outcome = Outcome.OK,
    reason: Reason = Reason.RUN_END,
    detail: str | None = None,
) -> TurnRecord:
    return unsent_record(
        open_turn(session_id, turn + 1, turn),
        run_id=RUN_ID,
        worker=worker,
        epoch=0,
        channel=LABELS,
        outcome=outcome,
        reason=reason,
        turn=turn,
        detail=detail,
    )


def keys(records: list[TurnRecord]) -> list[Key]:
    return [(row.session_id, row.turn) for row in records]


def run_in(path: Path) -> RunDirectory:
    """A new run directory with a plan.json."""
    run = RunDirectory.create(path, name="test", now_ns=0)
    run.write_plan(
        PlanFile(
            run_id="run",
            name="test",
            created_ns=0,
            nonce="n",
            plan_hash="h",
            plan=msgspec.to_builtins(plan()),
            versions={},
            host={},
            channels={},
            trace_hashes={},
            workers_asked=1,
        )
    )
    return run
