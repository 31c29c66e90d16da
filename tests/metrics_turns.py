"""Turns and facts for the tests of metrics, gate and JUnit: one stage of ten steady seconds, times in ms from T0."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from hypothesis import strategies as st

from infersiege.metrics.facts import RunFacts, SteadyWindow
from infersiege.metrics.histogram import bucket_of
from infersiege.records import ErrorClass, Outcome, Phase, Reason, TokensFrom, TurnRecord

MS = 1_000_000
SECOND = 1_000_000_000
T0 = 1_800_000_000 * SECOND
STEADY = SteadyWindow(stage="s1", start_ns=T0, end_ns=T0 + 10 * SECOND)


def facts(**changes: Any) -> RunFacts:
    base: dict[str, Any] = {
        "run_id": "run-1",
        "name": "a run",
        "started_ns": T0,
        "ended_ns": T0 + 12 * SECOND,
        "steady": (STEADY,),
    }
    return RunFacts(**(base | changes))


_serial = iter(range(10**9))


def turn(**changes: Any) -> TurnRecord:
    """A turn that was due and did nothing yet; each call is a session of its own."""
    base: dict[str, Any] = {
        "run_id": "run-1",
        "worker": "w1",
        "epoch": 1,
        "session_id": f"session-{next(_serial)}",
        "turn": 0,
        "parent_turn": None,
        "scenario": "chat",
        "stage": "s1",
        "phase": Phase.STEADY,
        "channel": "local",
        "replica": None,
        "engine": "vllm",
        "dialect": "openai-chat",
        "model_asked": "m",
        "request_id": "r",
        "due_ns": T0,
        "outcome": Outcome.OK,
    }
    return TurnRecord(**(base | changes))


def streamed(sent_ms: float, chunks_ms: list[float], *, tokens: int | None = None, **changes: Any) -> TurnRecord:
    """An ok turn whose chunks arrived at these times (ms from the steady start), closed with the last."""
    stamps = [T0 + round(at * MS) for at in chunks_ms]
    gaps: dict[int, int] = {}
    seconds: dict[int, int] = {}
    for before, after in pairwise(stamps):
        if after > before:
            gaps[bucket_of(after - before)] = gaps.get(bucket_of(after - before), 0) + 1
    for stamp in stamps:
        seconds[stamp // SECOND] = seconds.get(stamp // SECOND, 0) + 1
    sent_ns = T0 + round(sent_ms * MS)
    made: dict[str, Any] = {
        "due_ns": sent_ns,
        "attempt_ns": sent_ns,
        "sent_ns": sent_ns,
        "sent_end_ns": sent_ns,
        "first_token_ns": stamps[0] if stamps else None,
        "first_answer_ns": stamps[0] if stamps else None,
        "last_token_ns": stamps[-1] if stamps else None,
        "closed_ns": stamps[-1] if stamps else sent_ns + MS,
        "chunks": len(stamps),
        "chunks_by_second": seconds,
        "gaps": gaps,
        "output_tokens": len(stamps) if tokens is None else tokens,
        "tokens_from": TokensFrom.USAGE,
        "finish_reason": "stop",
        "attempts": 1,
    }
    return turn(**(made | changes))


def failed(sent_ms: float, closed_ms: float, error: ErrorClass = ErrorClass.RATE_LIMIT, **changes: Any) -> TurnRecord:
    at_ns = T0 + round(sent_ms * MS)
    made: dict[str, Any] = {
        "due_ns": at_ns,
        "attempt_ns": at_ns,
        "sent_ns": at_ns,
        "closed_ns": T0 + round(closed_ms * MS),
        "outcome": Outcome.FAILED,
        "error_class": error,
    }
    return turn(**(made | changes))


def skipped(reason: Reason, due_ms: float = 0.0, **changes: Any) -> TurnRecord:
    made: dict[str, Any] = {"due_ns": T0 + round(due_ms * MS), "outcome": Outcome.SKIPPED, "reason": reason}
    return turn(**(made | changes))


def many(count: int, ttft_ms: float = 100.0, *, spread_ms: float = 9000.0, **changes: Any) -> list[TurnRecord]:
    """Turns spread evenly over the steady seconds, 5 chunks 20 ms apart after `ttft_ms`."""
    starts = [index * spread_ms / max(count, 1) for index in range(count)]
    return [streamed(at, [at + ttft_ms + 20 * chunk for chunk in range(5)], **changes) for at in starts]


# Made once: building a strategy inside a composite one costs more than drawing from it.
_DUE = st.integers(-3000, 11_000)
_OUTCOME = st.sampled_from([*Outcome, Outcome.OK, Outcome.OK, Outcome.OK])
_PLACE = st.tuples(st.sampled_from(["chat", "agent"]), st.sampled_from(["local", "cloud"]))
_DELAYS = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 30))
_CHUNKS = st.lists(st.integers(0, 1500), max_size=7)
_REASON = st.sampled_from(list(Reason))
_ERROR = st.sampled_from(list(ErrorClass))
_TOKENS = st.tuples(
    st.none() | st.integers(0, 30),
    st.none() | st.integers(1, 9000),
    st.none() | st.integers(0, 1),
    st.none() | st.integers(0, 2 * MS),
)


@st.composite
def turns(draw: st.DrawFn) -> TurnRecord:
    """Any turn that a worker could have written, some of it outside the steady window."""
    due = T0 + draw(_DUE) * MS
    outcome = draw(_OUTCOME)
    scenario, channel = draw(_PLACE)
    base: dict[str, Any] = {
        "scenario": scenario,
        "channel": channel,
        "phase": Phase.WARMUP if due < T0 else Phase.STEADY if due < STEADY.end_ns else Phase.DRAIN,
        "due_ns": due,
        "outcome": outcome,
    }
    if outcome is Outcome.SKIPPED:
        return turn(**base, reason=draw(_REASON))
    late, connect, close = draw(_DELAYS)
    attempt = due + late * MS
    if outcome is Outcome.LOST:
        return turn(**base, attempt_ns=attempt)
    sent = attempt + connect * MS
    more, prompt, cached, slack = draw(_TOKENS)
    base |= {"attempt_ns": attempt, "sent_ns": sent, "sent_end_ns": sent}
    base |= {"prompt_tokens": prompt, "cached_tokens": cached}
    stamps = list(accumulate(draw(_CHUNKS), lambda at, gap: at + gap * MS, initial=sent + MS))[1:]
    if stamps:
        sample = streamed(0, [(stamp - T0) / MS for stamp in stamps])
        copied = ("first_token_ns", "last_token_ns", "chunks", "chunks_by_second", "gaps")
        base |= {name: getattr(sample, name) for name in copied}
        base |= {"output_tokens": None if more is None else len(stamps) + more, "first_token_slack_ns": slack}
    if outcome is Outcome.FAILED:
        base |= {"error_class": draw(_ERROR)}
    return turn(**base, closed_ns=(stamps[-1] if stamps else sent) + close * MS)
