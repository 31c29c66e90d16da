"""GitHub Copilot agent sessions, JSON Lines: model calls with token counts, tool batches between them.

    {"session_id": "s", "date": "2026-06-01", "turns": [{"turn_id": "t", "llm_calls": [
      {"timestamp": "2026-06-01T09:00:00.000Z", "duration_ms": 2500.0, "initiator_type": "user", "model": "Model A",
       "tokens": {"total": 950, "prompt": 900, "completion": 50, "cached": 600}}], "tool_batches": []}]}

Each call of each user's turn is a request; `initiator_type` says which call began the user's turn (`user`) and which
followed (`agent`), not who ran beside whom. Only a call that starts before the one before it has ended is a branch.
`timestamp` is the call's start: a delay is from `timestamp + duration_ms` to the next call's, tools and idle users
included.

Calls are known by lengths. Each model of a session has a context of its own that grows from call to call (editors call
a small model in between); `tokens.cached` says what a shorter call kept of it, and what a model's first call found in
the cache is a system message that all sessions of that model share (option `shared_prefix`). Calls without prompt or
completion (cancelled ones) are left out.

Facts: analysis/GitHubCopilotCodingAgents/schema.json of Azure/AzurePublicDataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.source import Source
from infersiege.traces.files.stamps import date_ns
from infersiege.traces.files.values import want_int, want_number
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.growth import Growth, Resent, settled
from infersiege.traces.sessions.lines import RecordedLine, RecordedRequest, parts
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "copilot-agents"

_HINT = "docs/traces-formats/copilot-agents.md has the format"

OPTIONS = {
    "shared_prefix": Option(
        default=True,
        meaning="what a model's first call found in the cache is text that all sessions of that model share",
    ),
}


def sniff(head: Head) -> bool:
    row = head.row
    if not isinstance(row, dict) or not {"session_id", "turns"} <= row.keys():
        return False
    turns = row["turns"]
    return isinstance(turns, list) and bool(turns) and isinstance(turns[0], dict) and "llm_calls" in turns[0]


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for wrong rows."""
    scope = f"{NAME}:{source.sha256()[:16]}"

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        return _session(rows[0], tally, options, scope)

    trace = IndexedTrace(source, options, format=NAME, make=make, unit_hint="timestamps are dates and times of day")
    return trace.read_rows(source.rows())


class _Call(NamedTuple):
    start_ns: int
    end_ns: int
    model: str
    prompt: int
    completion: int
    cached: int


def _session(row: Placed, tally: Tally, options: ReadOptions, scope: str) -> Session:
    value = want_object(row)
    ident = value.get("session_id")
    if not isinstance(ident, str) or not ident:
        raise TraceError(f"{row.place}: session_id is no text", hint=_HINT)
    calls = sorted(_calls(value, row.place), key=lambda call: call.start_ns)
    sent = [call for call in calls if call.prompt and call.completion]
    if not sent:
        raise UnsendableError("no_output" if calls else "no_requests")
    if len(sent) < len(calls):
        tally.odd("calls without prompt or completion tokens are left out", len(calls) - len(sent))
    main = RecordedLine(requests=[])
    beside: list[RecordedLine] = []
    growths: dict[str, Growth] = {}
    resent: Resent = set()
    before = sent[0].model
    for call in sent:
        growth = growths.get(call.model)
        if growth is None:
            growth = growths[call.model] = Growth(options, f"{scope}:{ident}:{call.model}", resent)
        lengths = {"total": call.prompt, "cached": call.cached, "output": call.completion}
        if main.requests and main.requests[-1].ended_ns > call.start_ns:
            request = RecordedRequest(turn=growth.beside(**lengths), start_ns=call.start_ns, end_ns=call.end_ns)
            beside.append(RecordedLine(requests=[request], parent=main))
            continue
        shared = f"{scope}:{call.model}" if options.values["shared_prefix"] else None
        turn = growth.request(**lengths, shared_scope=shared, whole=call.model != before)
        main.requests.append(RecordedRequest(turn=turn, start_ns=call.start_ns, end_ns=call.end_ns))
        before = call.model
    if beside:
        tally.odd("calls that started while the one before was out run beside it", len(beside))
    turns, branches = parts([main, *beside])
    return Session(
        session_id=ident,
        turns=settled(turns, resent),
        branches=tuple(msgspec.structs.replace(branch, turns=settled(branch.turns, resent)) for branch in branches),
        arrival_ns=sent[0].start_ns,
        source_line=row.line,
    )


def _calls(value: dict[str, Any], place: str) -> Iterator[_Call]:
    """Raises TraceError with the path inside the row."""
    for number, turn in enumerate(_objects(value.get("turns"), "turns", place)):
        here = f"turns[{number}].llm_calls"
        for index, call in enumerate(_objects(turn.get("llm_calls"), here, place)):
            yield _call(call, f"{place}: {here}[{index}]")


def _call(call: dict[str, Any], place: str) -> _Call:
    tokens = call.get("tokens")
    if not isinstance(tokens, dict):
        raise TraceError(f"{place}: tokens is {'missing' if tokens is None else 'no object'}", hint=_HINT)
    prompt, completion = want_int(tokens, "prompt", place), want_int(tokens, "completion", place)
    cached = 0 if tokens.get("cached") is None else want_int(tokens, "cached", place)
    if cached > prompt:
        raise TraceError(f"{place}: cached is {cached} tokens, more than the {prompt} of the prompt", hint=_HINT)
    took_ms = want_number(call, "duration_ms", place)
    if took_ms < 0:
        raise TraceError(f"{place}: duration_ms is {took_ms:g}, at least 0 is wanted", hint=_HINT)
    start_ns = date_ns(call.get("timestamp"), "timestamp", place)
    took_ns = check_span(place, round(took_ms * 1_000_000), "duration_ms")
    return _Call(start_ns, start_ns + took_ns, str(call.get("model")), prompt, completion, cached)


def _objects(value: object, what: str, place: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise TraceError(f"{place}: {what} is no list of objects", hint=_HINT)
    return value
