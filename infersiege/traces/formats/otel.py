"""OpenTelemetry GenAI spans: model calls with their messages and times.

A session is what shares `exgentic.session.id`, `session.id` or `gen_ai.conversation.id` (of the span, or of the nearest
span around it that has one), else a trace. Its calls are the spans whose operation is `chat`, `text_completion` or
`generate_content`, or that name no operation and hold messages; the spans around them (agents, tools, workflows) say
what runs beside what (`call_graph`). Each call's messages are its whole request.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from infersiege.records import Branch, Session, Turn
from infersiege.traces.files.head import Head
from infersiege.traces.files.indexed import IndexedTrace, Placed
from infersiege.traces.files.private_values import token_count
from infersiege.traces.files.row_groups import Places, came_before, in_groups, mark
from infersiege.traces.files.source import Row, Source
from infersiege.traces.formats.otel_messages import answer_messages, request_fields, request_messages, request_tools
from infersiege.traces.formats.otel_spans import Span, span_of, span_rows
from infersiege.traces.options import Option
from infersiege.traces.sessions.call_graph import Call, CallGraph, graph_of
from infersiege.traces.sessions.chat import UnsendableError, check_messages
from infersiege.traces.trace import ReadOptions, Tally, Trace

NAME = "otel-genai"

OPTIONS: dict[str, Option] = {}

SESSION_KEYS = ("exgentic.session.id", "session.id", "gen_ai.conversation.id")
MODEL_OPERATIONS = frozenset({"chat", "text_completion", "generate_content"})
_PROMPT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_HOLDS_MESSAGES = ("gen_ai.input.messages", "gen_ai.prompt.0.role", "gen_ai.prompt.0.content")
_SPAN_KEYS = (
    frozenset({"span_id", "attributes"}),
    frozenset({"spanId", "attributes"}),
    frozenset({"context", "attributes"}),
)

_SPAN_ID = re.compile(r'"span_?id"\s*:', re.IGNORECASE)
"""What tells a document's `spans` from other lists of that name."""


def sniff(head: Head) -> bool:
    outline = head.outline
    if "resourceSpans" in outline.keys or ("spans" in outline.keys and _SPAN_ID.search(head.text)):
        return True
    return any(keys <= outline.keys for keys in _SPAN_KEYS)


def read(source: Source, options: ReadOptions) -> Trace:
    """Raises TraceError for what is no document of spans, and for spans without ids or times."""

    def make(rows: Sequence[Placed], tally: Tally) -> Session:
        return _session(rows, options, tally)

    trace = IndexedTrace(source, options, format=NAME, make=make)
    trace.add_sessions(_sessions(source, trace))
    return trace.finish()


def _sessions(source: Source, trace: IndexedTrace) -> Iterator[list[Row]]:
    """The spans of each session, sessions in the order of their first span. A span that is there twice (exporters try
    again) counts once."""
    places = Places()
    ids, parents, own, traces = array("q"), array("q"), array("q"), array("q")
    """Marks, 0 for none: of a span, of the one around it, of the session that it names, of its trace."""
    for row in span_rows(source):
        span = span_of(source.json(row), source.place(row))
        key = _session_key(span.attributes)
        places.append(row)
        ids.append(mark((span.trace_id, span.span_id)))
        parents.append(0 if span.parent_id is None else mark((span.trace_id, span.parent_id)))
        own.append(0 if key is None else mark(key))
        traces.append(mark(span.trace_id))
    again = set(came_before(ids))
    for number in sorted(again):
        trace.skip("span_seen_before", (places[number],))
    around = _around(ids, parents, own)
    keys = array("q", (_named_by(number, around, own) or traces[number] for number in range(len(ids))))
    for numbers in in_groups(keys):
        rows = [places[number] for number in numbers if number not in again]
        if rows:
            yield rows


def _around(ids: array[int], parents: array[int], own: array[int]) -> array[int]:
    """Of each span the number of the span around it; -1: it is not there, or the span names its session itself."""
    if not ids:
        return array("q")
    known, wanted = (np.frombuffer(marks, dtype=np.int64) for marks in (ids, parents))
    order = np.argsort(known, kind="stable")  # of spans that are there twice the first
    numbers = order[np.searchsorted(known, wanted, sorter=order).clip(max=len(known) - 1)]
    numbers[(known[numbers] != wanted) | (np.frombuffer(own, dtype=np.int64) != 0)] = -1
    return array("q", numbers.astype(np.int64).tobytes())


def _named_by(number: int, around: array[int], own: array[int]) -> int:
    """The session that the span names, or the nearest one around it that names one; 0: none does."""
    seen: set[int] = set()
    while number >= 0 and not own[number] and number not in seen:
        seen.add(number)
        number = around[number]
    return own[number] if number >= 0 else 0


def _session_key(attributes: dict[str, Any]) -> str | None:
    found = (attributes.get(key) for key in SESSION_KEYS)
    return next((value for value in found if isinstance(value, str) and value), None)


def _session(rows: Sequence[Placed], options: ReadOptions, tally: Tally) -> Session:
    """Raises UnsendableError where no call of it can be sent."""
    spans = [(row, span_of(row.value, row.place)) for row in rows]
    calls: list[tuple[Call, Turn, Placed]] = []
    skipped: list[tuple[str, Placed]] = []
    by_id = {(span.trace_id, span.span_id): span for _, span in spans}
    key = next((found for _, span in spans if (found := _session_key(span.attributes))), spans[0][1].trace_id)
    for row, span in spans:
        if not _is_model_call(span.attributes):
            continue
        try:
            turn = _turn(span.attributes, row.place, options, tally)
        except UnsendableError as reason:
            skipped.append((str(reason), row))
            continue
        calls.append((Call(start_ns=span.start_ns, end_ns=span.end_ns, scopes=_scopes(span, by_id)), turn, row))
    if not calls:
        raise UnsendableError(skipped[0][0] if skipped else "no_model_call")
    for why, row in skipped:
        tally.skip(why, f"line {row.line}")
    calls.sort(key=lambda entry: (entry[0].start_ns, entry[0].end_ns))
    times = {_name(span): (span.start_ns, span.end_ns) for span in by_id.values()}
    graph = graph_of([call for call, _, _ in calls], times)
    if graph.lost:
        tally.odd("waits for a second call that several others waited for, too, are left out", graph.lost)
    return _built(key, graph, [turn for _, turn, _ in calls], calls[0][2].line)


def _built(session_id: str, graph: CallGraph, turns: Sequence[Turn], line: int) -> Session:
    numbers = graph.numbers()
    main, *others = (tuple(_timed(graph, turns, call) for call in line.calls) for line in graph.lines)
    return Session(
        session_id=session_id,
        turns=main,
        branches=tuple(
            Branch(
                turns=branch,
                after=None if line.after is None else numbers[line.after],
                joined_by=None if line.joined_by is None else numbers[line.joined_by],
            )
            for branch, line in zip(others, graph.lines[1:], strict=True)
        ),
        arrival_ns=graph.calls[0].start_ns,
        source_line=line,
    )


def _timed(graph: CallGraph, turns: Sequence[Turn], call: int) -> Turn:
    return msgspec.structs.replace(turns[call], delay_ns=graph.delay_ns(call))


def _is_model_call(attributes: dict[str, Any]) -> bool:
    operation = attributes.get("gen_ai.operation.name", attributes.get("llm.request.type"))
    if isinstance(operation, str):
        return operation in MODEL_OPERATIONS or operation == "completion"
    return any(key in attributes for key in _HOLDS_MESSAGES)


def _scopes(span: Span, by_id: dict[tuple[str, str], Span]) -> tuple[str, ...]:
    """The spans around it that are no model calls, outermost first. A call that another one started runs by itself."""
    found: list[str] = []
    seen = {span.span_id}
    parent_id = span.parent_id
    while parent_id is not None and parent_id not in seen:
        seen.add(parent_id)
        parent = by_id.get((span.trace_id, parent_id))
        if parent is None:
            break
        if not _is_model_call(parent.attributes):
            found.append(_name(parent))
        parent_id = parent.parent_id
    return tuple(reversed(found))


def _name(span: Span) -> str:
    return f"{span.trace_id}/{span.span_id}"


def _turn(attributes: dict[str, Any], place: str, options: ReadOptions, tally: Tally) -> Turn:
    """Raises UnsendableError where no request can be made of the span, TraceError for counts that can't be."""
    messages = check_messages(request_messages(attributes, tally))
    output = _count(attributes, _OUTPUT_TOKENS, place)
    return Turn(
        messages=tuple(messages),
        replaces_history=True,
        recorded_answer=tuple(answer_messages(attributes, tally)),
        asked_prompt_tokens=_count(attributes, _PROMPT_TOKENS, place),
        asked_output_tokens=None if output is None else options.output_tokens(output),
        tools=request_tools(attributes),
        extra=request_fields(attributes),
    )


def _count(attributes: dict[str, Any], keys: Sequence[str], place: str) -> int | None:
    """Of tokens; 0 of an output that failed is none that could be asked for. Raises TraceError."""
    key = next((key for key in keys if attributes.get(key) is not None), None)
    return None if key is None else token_count(attributes, key, place) or None
