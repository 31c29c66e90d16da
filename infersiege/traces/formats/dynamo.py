"""NVIDIA Dynamo request and agent traces, JSON Lines of events: `request_end` rows are the requests, others come along.

    {"timestamp": 1, "event": {"event_type": "request_end", "event_time_unix_ms": 2000,
     "agent_context": {"session_id": "run-1", "trajectory_id": "run-1:main"},
     "request": {"input_tokens": 96, "output_tokens": 8, "cached_tokens": 64, "request_received_ms": 1000,
                 "total_time_ms": 900.5}}}

The envelope may be missing. All times are Unix milliseconds. A row without an `agent_context` is a session of its own.

Who belongs together: rows of one `session_id` (older: `workflow_id`), and sessions with a `parent_session_id` belong to
their parent's. Inside of it each trajectory (`trajectory_id`, older `program_id`, newer the session itself) is a line;
one with a parent is a branch that starts after the parent's last request before it that had ended, and the parent's
first later request that starts when it has ended waits for it.

With `request.replay` (block hashes) each request is its hashes, which hold for the whole file. Without, contexts grow
by lengths: `cached_tokens` say what a shorter request kept of what was held; what a trajectory's first request found
in the cache is a system message that all of that model share (option `shared_prefix`). A request that was received
before its trajectory's last answer had ended is a branch of its own, which begins with what it found in the cache.

Facts: docs/observability/request-tracing.md and docs/agents of ai-dynamo/dynamo.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from infersiege.errors import TraceError
from infersiege.records import BlockText, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed, want_object
from infersiege.traces.files.row_groups import Places, in_groups, mark
from infersiege.traces.files.source import Row, Source
from infersiege.traces.files.values import want_int, want_number
from infersiege.traces.options import Option
from infersiege.traces.sessions.chat import UnsendableError
from infersiege.traces.sessions.growth import Growth, Resent, settled
from infersiege.traces.sessions.lengths import scaled_blocks
from infersiege.traces.sessions.lines import RecordedLine, RecordedRequest, parts
from infersiege.traces.trace import ReadOptions, Tally, check_span

NAME = "dynamo"

_HINT = "docs/traces-formats/dynamo.md has the format"

OPTIONS = {
    "shared_prefix": Option(
        default=True,
        meaning="what a trajectory's first request found in the cache is text that all of that model share",
    ),
}

_RUNS = ("session_id", "workflow_id")
_TRAJECTORIES = ("trajectory_id", "program_id", "session_id")
_PARENTS = ("parent_trajectory_id", "parent_program_id", "parent_session_id")
_REQUEST = "request_end"


def sniff(head: Head) -> bool:
    row = head.row
    if not isinstance(row, dict):
        return False
    event = row.get("event", row)
    return isinstance(event, dict) and isinstance(event.get("event_type"), str) and "event_time_unix_ms" in event


def read(source: Source, options: ReadOptions) -> IndexedTrace:
    """Raises TraceError for wrong rows, and for sessions that are each other's parent."""
    scope = f"{NAME}:{source.sha256()[:16]}"

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        return _Reader(rows, tally, options, scope).session()

    trace = IndexedTrace(source, options, format=NAME, make=make, unit_hint="all times are Unix milliseconds")
    trace.add_sessions(_runs(source, trace))
    return trace.finish()


def _runs(source: Source, trace: IndexedTrace) -> Iterator[list[Row]]:
    """The rows of each session and of those below it, in the order of the file. Raises TraceError."""
    places, marks = Places(), array("q")
    parents: dict[int, int] = {}
    """Of sessions that have one."""
    for row in source.rows():
        placed = Placed(source.place(row), row.line, source.json(row))
        event = _event(placed)
        context = _context(event, placed.place)
        if context is None:
            if event["event_type"] != _REQUEST:
                trace.skip("event_of_no_session", (row,))
                continue
            own = ~len(marks)
        else:
            ident = _first(context, _RUNS) or ""
            own, parent = mark(ident), context.get("parent_session_id")
            if isinstance(parent, str) and parent != ident:
                parents.setdefault(own, mark(parent))
        marks.append(own)
        places.append(row)
    roots = _roots(marks, parents, places, source)
    for numbers in in_groups(roots):
        # The root's own rows first: it gives the session its name.
        numbers = sorted(numbers, key=lambda number: marks[number] != roots[number])
        yield [places[number] for number in numbers]


def _roots(marks: array[int], parents: dict[int, int], places: Places, source: Source) -> array[int]:
    """Of each row the session that is above all of its session. Raises TraceError where there is none."""
    if not parents:
        return marks
    roots: dict[int, int] = {}
    found = array("q")
    for number, own in enumerate(marks):
        root = roots.get(own)
        if root is None:
            root, met = own, {own}
            while (parent := parents.get(root)) is not None:
                if parent in met:
                    row = Placed(source.place(places[number]), places[number].line, source.json(places[number]))
                    ident = _first(_context(_event(row), row.place) or {}, _RUNS) or ""
                    raise TraceError(
                        f"{row.place}: session {ident[:40]!r} is an ancestor of itself",
                        hint="parent_session_id is of the session that started this one",
                    )
                met.add(parent)
                root = parent
            if root != own:
                roots[own] = root
        found.append(root)
    return found


def _event(row: Placed) -> dict[str, Any]:
    value = want_object(row)
    event = value.get("event", value)
    if not isinstance(event, dict) or not isinstance(event.get("event_type"), str):
        raise TraceError(f"{row.place}: has no event_type", hint="a row is an event, or {timestamp, event}")
    return event


def _context(event: dict[str, Any], place: str) -> dict[str, Any] | None:
    context = event.get("agent_context")
    if context is None:
        return None
    if not isinstance(context, dict) or _first(context, _RUNS) is None:
        raise TraceError(f"{place}: agent_context has no session_id", hint=_HINT)
    return context


def _first(context: dict[str, Any], keys: Sequence[str]) -> str | None:
    for key in keys:
        value = context.get(key)
        if isinstance(value, str) and value:
            return value
    return None


class _Reader:
    """The rows of one session."""

    def __init__(self, rows: Sequence[Placed], tally: Tally, options: ReadOptions, scope: str) -> None:
        self._rows = rows
        self._tally = tally
        self._options = options
        self._scope = scope
        context = _context(_event(rows[0]), rows[0].place)
        self._ident = f"line-{rows[0].line}" if context is None else _first(context, _RUNS) or ""
        self._growths: dict[str, Growth] = {}
        self._resent: Resent = set()
        self._skipped: list[tuple[str, str]] = []
        self._beside: list[RecordedLine] = []

    def session(self) -> Session:
        """Raises TraceError, and UnsendableError where no row is a request."""
        lines: dict[str, RecordedLine] = {}
        parents: dict[str, str] = {}
        found = []
        for row in self._rows:
            event = _event(row)
            if event["event_type"] == _REQUEST:
                found.append((*self._times(event, row.place), event, row))
        found.sort(key=lambda one: one[0])  # rows are written when an answer ends
        for start_ns, end_ns, event, row in found:
            context = _context(event, row.place) or {}
            name = _first(context, _TRAJECTORIES) or self._ident
            parent = _first(context, _PARENTS)
            if parent is not None and parent != name:
                parents.setdefault(name, parent)
            before = lines[name].requests[-1].ended_ns if name in lines else start_ns
            turn = self._turn(name, event, row, beside=before > start_ns)
            if turn is None:
                continue
            request = RecordedRequest(turn=turn, start_ns=start_ns, end_ns=end_ns)
            if before > start_ns:
                self._beside.append(RecordedLine(requests=[request], parent=lines[name]))
            else:
                lines.setdefault(name, RecordedLine(requests=[])).requests.append(request)
        if not lines:
            raise UnsendableError(self._skipped[0][0] if self._skipped else "no_requests")
        for reason, place in self._skipped:
            self._tally.skip(reason, place)
        self._join(lines, parents)
        turns, branches = parts([*lines.values(), *self._beside])
        return Session(
            session_id=self._ident,
            turns=settled(turns, self._resent),
            branches=tuple(
                msgspec.structs.replace(branch, turns=settled(branch.turns, self._resent)) for branch in branches
            ),
            arrival_ns=min(line.requests[0].start_ns for line in lines.values()),
            source_line=self._rows[0].line,
        )

    def _join(self, lines: dict[str, RecordedLine], parents: dict[str, str]) -> None:
        """Set the parents of the lines, past trajectories that asked nothing."""
        for name, line in lines.items():
            met, parent = {name}, parents.get(name)
            while parent is not None and parent not in lines and parent not in met:
                met.add(parent)
                parent = parents.get(parent)
            above = lines.get(parent) if parent is not None else None
            while above is not None and above is not line:
                above = above.parent
            if parent is not None and above is None and parent in lines:
                line.parent = lines[parent]
                line.ends_ns = max(request.ended_ns for request in line.requests)

    def _times(self, event: dict[str, Any], place: str) -> tuple[int, int]:
        """Start and end in ns. Raises TraceError."""
        request = _request(event, place)
        took = want_number(request, "total_time_ms", place) if request.get("total_time_ms") is not None else None
        if request.get("request_received_ms") is not None:
            start = want_number(request, "request_received_ms", place)
            end = want_number(event, "event_time_unix_ms", place) if took is None else start + took
        else:
            end = want_number(event, "event_time_unix_ms", place)
            start = end - (took or 0)
        if end < start or start < 0:
            raise TraceError(f"{place}: the request ends {start - end:g} ms before it was received", hint=_HINT)
        return round(start * 1_000_000), check_span(place, round(end * 1_000_000), "the request's end")

    def _turn(self, name: str, event: dict[str, Any], row: Placed, *, beside: bool) -> Turn | None:
        request = _request(event, row.place)
        replay = request.get("replay")
        if replay is not None and not isinstance(replay, dict):
            raise TraceError(f"{row.place}: request.replay is no object", hint=_HINT)
        total = (
            want_int(request, "input_tokens", row.place)
            if replay is None
            else want_int(replay, "input_length", row.place)
        )
        output = 0 if request.get("output_tokens") is None else want_int(request, "output_tokens", row.place)
        if total == 0 or output == 0:
            self._skipped.append(("no_input" if total == 0 else "no_output", f"line {row.line}"))
            return None
        if replay is not None:
            return self._hashed(replay, total, output, row)
        cached = 0 if request.get("cached_tokens") is None else want_int(request, "cached_tokens", row.place)
        if cached > total:
            raise TraceError(
                f"{row.place}: cached_tokens is {cached}, more than the {total} of input_tokens", hint=_HINT
            )
        growth = self._growths.get(name)
        if growth is None:
            growth = self._growths[name] = Growth(self._options, f"{self._scope}:{self._ident}:{name}", self._resent)
        if beside:
            return growth.beside(total=total, cached=cached, output=output)
        shared = f"{self._scope}:{request.get('model')}" if self._options.values["shared_prefix"] else None
        return growth.request(total=total, cached=cached, output=output, shared_scope=shared)

    def _hashed(self, replay: dict[str, Any], total: int, output: int, row: Placed) -> Turn:
        block = want_int(replay, "trace_block_size", row.place)
        hashes = replay.get("input_sequence_hashes")
        if not isinstance(hashes, list) or not set(map(type, hashes)) <= {int}:
            raise TraceError(f"{row.place}: input_sequence_hashes is no list of whole numbers", hint=_HINT)
        if block == 0 or len(hashes) != -(-total // block):
            raise TraceError(
                f"{row.place}: {len(hashes)} input_sequence_hashes for {total} tokens in blocks of {block}",
                hint=_HINT,
            )
        options = self._options
        asked = options.output_tokens(output)
        # Hashes are unsigned; ids are what fits into 64 bits with a sign.
        signed = [(value + (1 << 63)) % (1 << 64) - (1 << 63) for value in hashes]
        ids, sizes = scaled_blocks(signed, total, block, options)
        return Turn(
            messages=({"role": "user", "content": ""},),
            texts=(
                BlockText(
                    scope=self._scope,
                    ids=ids,
                    tokens=sizes,
                    language=options.language,
                    shared=total % block == 0,  # a whole block may be what other requests go on from
                ),
            ),
            replaces_history=True,
            asked_prompt_tokens=sum(sizes),
            asked_output_tokens=asked,
            answer_text=BlockText(
                scope=f"{self._scope}/answer", ids=(row.line,), tokens=(asked,), language=options.language
            ),
        )


def _request(event: dict[str, Any], place: str) -> dict[str, Any]:
    request = event.get("request")
    if not isinstance(request, dict):
        raise TraceError(f"{place}: request is {'missing' if request is None else 'no object'}", hint=_HINT)
    return request
