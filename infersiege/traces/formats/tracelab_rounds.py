"""TraceLab rounds, JSON Lines: agent rounds with token counts, times of events, and tools; raw, derived or sanitized.

    {"session_id": "claude:1", "round_index": 0, "provider": "claude", "model": "m", "input_tokens_total": 900,
     "prefix_tokens": 600, "newly_append_tokens": 300, "output_tokens": 50, "timing_events": [
       {"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"},
       {"event_type": "text", "timestamp": "2026-06-01T05:40:24.500Z"}]}

`input_tokens_total` is the whole request; `prefix_tokens` is what the provider's cache held of it, at times less than
what the session had sent before (the cache forgets). So a request that is longer than what the session holds goes on
from there, and a shorter one is a cut history: `prefix_tokens` of it are the beginning of what was held. What the first
round found in the cache came from other sessions, so it is a system message that all sessions of one provider and model
share (option `shared_prefix`).

A round is sent when its last `user_message` or `tool_result` is there, and ends with the last of its other events; a
delay is from one round's end to the next one's sending, tools included. Rounds without such events follow without one.

Facts: the files of uw-syfi/TraceLab.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.source import Source
from infersiege.traces.files.stamps import date_ns
from infersiege.traces.files.values import want_int
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.growth import Growth, Resent, settled
from infersiege.traces.sessions.lines import RecordedLine, RecordedRequest, parts
from infersiege.traces.trace import ReadOptions, Tally

NAME = "tracelab-rounds"

_HINT = "docs/traces-formats/tracelab-rounds.md has the format"

OPTIONS = {
    "shared_prefix": Option(
        default=True,
        meaning="what a session's first request found in the cache is text that all sessions of that model share",
    ),
}

_INPUTS = frozenset({"user_message", "tool_result"})
"""Events that a round waits for; all others are parts of its answer."""


def sniff(head: Head) -> bool:
    return {"session_id", "round_index", "input_tokens_total"} <= head.keys()


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for wrong rows, and for rounds that are not in order."""
    scope = f"{NAME}:{source.sha256()[:16]}"

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        return _session(rows, tally, options, scope)

    trace = IndexedTrace(source, options, format=NAME, make=make, unit_hint="timestamps are dates and times of day")
    return trace.read_groups(source.rows(), _ident)


def _ident(row: Placed) -> str:
    ident = want_object(row).get("session_id")
    if not isinstance(ident, str) or not ident:
        raise TraceError(f"{row.place}: session_id is no text", hint=_HINT)
    return ident


class _Times(NamedTuple):
    sent_ns: int | None
    ended_ns: int | None


def _session(rows: Sequence[Placed], tally: Tally, options: ReadOptions, scope: str) -> Session:
    ident = _ident(rows[0])
    resent: Resent = set()
    growth = Growth(options, f"{scope}:{ident}", resent)
    line = RecordedLine(requests=[])
    before, now_ns, untimed = -1, None, 0
    skipped: list[str] = []
    arrival_ns: int | None = None
    for row in rows:
        value = want_object(row)
        number = want_int(value, "round_index", row.place)
        if number <= before:
            raise TraceError(
                f"{row.place}: round_index {number} of session {ident[:40]!r} comes after {before}",
                hint="a session's rounds stand in their order",
            )
        before = number
        times = _times(value, row.place)
        if arrival_ns is None and times.sent_ns is not None:
            arrival_ns = times.sent_ns
        total = _count(value, "input_tokens_total", row.place)
        cached = _count(value, "prefix_tokens", row.place)
        output = _count(value, "output_tokens", row.place)
        if cached > total:
            raise TraceError(
                f"{row.place}: prefix_tokens is {cached}, more than the {total} of input_tokens_total",
                hint="the prefix is a part of the input",
            )
        if total == 0 or output == 0:
            skipped.append("no_input" if total == 0 else "no_output")
            continue
        untimed += times.sent_ns is None
        sent_ns = times.sent_ns if times.sent_ns is not None else now_ns or 0
        now_ns = sent_ns if times.ended_ns is None else max(sent_ns, times.ended_ns)
        shared_scope = (
            f"{scope}:{value.get('provider')}:{value.get('model')}" if options.values["shared_prefix"] else None
        )
        turn = growth.request(total=total, cached=cached, output=output, shared_scope=shared_scope)
        line.requests.append(RecordedRequest(turn=turn, start_ns=sent_ns, end_ns=now_ns))
    if not line.requests:
        raise UnsendableError(skipped[0])
    for reason in skipped:
        tally.skip(reason, f"session {ident[:40]!r}")
    if untimed:
        tally.odd("rounds without the time of an input follow the one before without a delay", untimed)
    turns, _ = parts([line])
    return Session(session_id=ident, turns=settled(turns, resent), arrival_ns=arrival_ns, source_line=rows[0].line)


def _count(value: dict[str, Any], key: str, place: str) -> int:
    """Tokens; a count that the provider did not report (null) is 0."""
    return 0 if key in value and value[key] is None else want_int(value, key, place)


def _times(value: dict[str, Any], place: str) -> _Times:
    """When a round was sent and when its answer had ended. Raises TraceError."""
    events = value.get("timing_events")
    if events is None:
        return _Times(None, None)
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise TraceError(f"{place}: timing_events is no list of objects", hint=_HINT)
    inputs = [event for event in events if str(event.get("event_type")) in _INPUTS]
    others = [event for event in events if str(event.get("event_type")) not in _INPUTS]
    return _Times(_last_ns(inputs, place), _last_ns(others, place))


def _last_ns(events: Sequence[dict[str, Any]], place: str) -> int | None:
    stamps = [event["timestamp"] for event in events if event.get("timestamp") is not None]
    return max((date_ns(stamp, "a timing event's timestamp", place) for stamp in stamps), default=None)
