"""OpenTelemetry GenAI spans: what they become, what waits for what, and what is wrong with those that are refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.records import Branch, Session, Turn
from infersiege.traces import READERS, Conversation, Synthesizer, Trace, open_trace
from infersiege.traces.files.source import Source
from infersiege.traces.formats import normal
from infersiege.traces.formats.azure import stamp_ns
from infersiege.traces.sessions.call_graph import Call, graph_of

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
SECOND = 10**9


def iso(seconds: float) -> str:
    return f"2026-03-02T09:{int(seconds) // 60:02d}:{seconds % 60:09.6f}Z"


def span(ident: str, start: float, end: float, parent: str | None = None, **attributes: Any) -> dict[str, Any]:
    """A span of trace `t`."""
    return {
        "trace_id": "t",
        "span_id": ident,
        "parent_span_id": parent,
        "start_time": iso(start),
        "end_time": iso(end),
        "attributes": attributes,
    }


def chat(ident: str, start: float, end: float, parent: str | None = None, **more: Any) -> dict[str, Any]:
    """A model call that asks its own name."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": [{"role": "user", "content": ident}],
        "gen_ai.output.text": f"answer {ident}",
        **more,
    }
    return span(ident, start, end, parent, **attributes)


def saved(folder: Path, *spans: dict[str, Any]) -> Path:
    path = folder / "spans.json"
    path.write_text(json.dumps({"spans": spans}))
    return path


def only(trace: Trace) -> Session:
    assert trace.sessions == 1
    return trace.session(0)


def waits_of(session: Session) -> list[set[int]]:
    """Of each turn, those that it waits for in a replay."""
    waits: list[set[int]] = [set() for _ in range(session.turn_count)]
    lines = [Branch(turns=session.turns), *session.branches]
    first = 0
    for line in lines:
        if line.after is not None:
            waits[first].add(line.after)
        for turn in range(first + 1, first + len(line.turns)):
            waits[turn].add(turn - 1)
        first += len(line.turns)
        if line.joined_by is not None:
            waits[line.joined_by].add(first - 1)
    return waits


def replayed(session: Session, durations_ns: list[int]) -> list[tuple[int, int]]:
    """(start, end) of each turn, where every answer takes as long as it did."""
    waits, turns = waits_of(session), list(session.all_turns())
    times: dict[int, tuple[int, int]] = {}
    while len(times) < len(turns):
        for number, turn in enumerate(turns):
            if number not in times and waits[number] <= times.keys():
                start = max((times[other][1] for other in waits[number]), default=0) + turn.delay_ns
                times[number] = (start, start + durations_ns[number])
    return [times[number] for number in range(len(turns))]


def test_golden_document():
    trace = open_trace("otel-genai.json", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped) == (5, 2, {})
    assert list(trace.arrivals_ns or ()) == [0, 8 * SECOND]
    plan = {"role": "user", "content": "Plan a day at the sea."}
    first = {"role": "assistant", "content": "Morning: the harbour. Afternoon: the dunes."}
    trip = trace.session(0)
    assert trip == Session(
        session_id="day-trip",
        arrival_ns=0,
        source_line=0,
        turns=(
            Turn(
                messages=(plan,),
                replaces_history=True,
                recorded_answer=(first,),
                asked_prompt_tokens=14,
                asked_output_tokens=11,
                extra={"max_tokens": 200, "temperature": 0.2},
            ),
            Turn(
                messages=({"role": "user", "content": "What is there to see at the harbour?"},),
                replaces_history=True,
                delay_ns=SECOND // 2,
                recorded_answer=({"role": "assistant", "content": "Boats and a fish market."},),
                asked_prompt_tokens=16,
                asked_output_tokens=7,
            ),
            Turn(
                messages=(
                    plan,
                    first,
                    {
                        "role": "user",
                        "content": "Harbour: boats and a fish market. Dunes: about two hours. Write the plan.",
                    },
                ),
                replaces_history=True,
                delay_ns=SECOND // 2,
                recorded_answer=(
                    {
                        "role": "assistant",
                        "content": "Start at nine at the fish market, walk the dunes after lunch.",
                    },
                ),
                asked_prompt_tokens=52,
                asked_output_tokens=24,
            ),
        ),
        branches=(
            Branch(
                after=0,
                joined_by=2,
                turns=(
                    Turn(
                        messages=({"role": "user", "content": "How long is the walk over the dunes?"},),
                        replaces_history=True,
                        delay_ns=SECOND * 3 // 4,
                        recorded_answer=({"role": "assistant", "content": "About two hours."},),
                        asked_prompt_tokens=17,
                        asked_output_tokens=5,
                    ),
                ),
            ),
        ),
    )


@pytest.mark.parametrize("name", ["otel-genai.otlp.jsonl", "otel-genai.openllmetry.jsonl"])
def test_golden_tool_calls(name):
    """Two exporters, one conversation: the tool's result is paired with its call, and the tool's time is the delay."""
    trace = open_trace(name, base=EXAMPLES)
    assert trace.warnings == ()
    session = trace.session(0)
    asked, brought = session.turns
    (answer,) = asked.recorded_answer
    (call,) = answer["tool_calls"]
    assert answer["content"] is None
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert brought.messages[: len(asked.messages)] == asked.messages
    assert brought.messages[-2:] == (answer, {**brought.messages[-1], "role": "tool", "tool_call_id": call["id"]})
    assert brought.tools is not None
    assert brought.tools[0]["function"]["name"] == call["function"]["name"]
    assert brought.tools[0]["function"]["parameters"]["type"] == "object"
    assert brought.delay_ns == {"otel-genai.otlp.jsonl": 750_000_000}.get(name, 1_500_000_000)


def test_one_span_in_every_packing_is_the_same_session(tmp_path):
    """JSON Lines of spans, a document, an array, OTLP (lines and a document), the SDK's own JSON."""
    plain = chat("a", 1, 2, **{"gen_ai.usage.output_tokens": 3, "gen_ai.request.stop_sequences": ["x"]})
    listed = {
        "traceId": "t",
        "spanId": "a",
        "startTimeUnixNano": 1_772_442_001 * SECOND,
        "endTimeUnixNano": str(1_772_442_002 * SECOND),
        "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
            {
                "key": "gen_ai.input.messages",
                "value": {
                    "arrayValue": {
                        "values": [
                            {
                                "kvlistValue": {
                                    "values": [
                                        {"key": "role", "value": {"stringValue": "user"}},
                                        {"key": "content", "value": {"stringValue": "a"}},
                                    ]
                                }
                            }
                        ]
                    }
                },
            },
            {"key": "gen_ai.output.text", "value": {"stringValue": "answer a"}},
            {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "3"}},
            {"key": "gen_ai.request.stop_sequences", "value": {"arrayValue": {"values": [{"stringValue": "x"}]}}},
        ],
    }
    otlp = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": []}, {"scope": {}, "spans": [listed]}]}]}
    sdk = {
        "name": "chat",
        "context": {"trace_id": "t", "span_id": "a", "trace_state": "[]"},
        "parent_id": None,
        **{key: plain[key] for key in ("start_time", "end_time", "attributes")},
    }
    packings = {
        "line": json.dumps(plain),
        "lines of documents": json.dumps({"spans": [plain]}) + "\n\n" + json.dumps({"spans": []}),
        "document": json.dumps({"trace_id": "t", "spans": [plain]}, indent=1),
        "array": json.dumps([plain], indent=2),
        "array of documents": json.dumps([{"spans": [plain]}], indent=2),
        "OTLP line": json.dumps(otlp),
        "OTLP document": "\n" + json.dumps(otlp, indent=4),
        "SDK": json.dumps(sdk),
    }
    turns = {}
    for name, text in packings.items():
        path = tmp_path / "spans"
        path.write_text(text)
        trace = open_trace(str(path), format="otel-genai")
        assert (trace.rows, trace.skipped) == (1, {}), name
        turns[name] = only(trace).turns
    assert set(map(len, turns.values())) == {1}
    assert all(turn == turns["line"] for turn in turns.values()), turns
    assert turns["line"][0].extra == {"stop": ["x"]}


def test_folder_is_one_trace_and_a_span_exported_twice_counts_once(tmp_path):
    """Exporters send a batch again when its answer got lost."""
    (tmp_path / "a.json").write_text(json.dumps({"spans": [chat("a", 1, 2)]}, indent=1))
    (tmp_path / "b.jsonl").write_text(json.dumps(chat("b", 3, 4)) + "\n" + json.dumps(chat("a", 1, 2)) + "\n")
    (tmp_path / "notes.txt").write_text("no trace")
    trace = open_trace(str(tmp_path))
    assert (trace.format, trace.rows, trace.skipped) == ("otel-genai", 3, {"span_seen_before": 1})
    assert [turn.messages[0]["content"] for turn in only(trace).turns] == ["a", "b"]


def test_session_is_told_by_its_own_key_then_by_the_spans_around_it_then_by_the_trace(tmp_path):
    spans = [
        chat("own", 1, 2, **{"session.id": "s1"}),
        span("agent", 2, 6, **{"gen_ai.operation.name": "invoke_agent", "gen_ai.conversation.id": "s2"}),
        span("tool", 3, 5, "agent", **{"gen_ai.operation.name": "execute_tool"}),
        chat("deep", 4, 5, "tool"),
        chat("orphan", 7, 8, "not exported"),
        {**chat("loop", 9, 10, "loop"), "trace_id": "u"},
    ]
    trace = open_trace(str(saved(tmp_path, *spans)))
    assert {trace.session(n).session_id: trace.session(n).turn_count for n in range(4)} == {
        "s1": 1,
        "s2": 1,
        "t": 1,
        "u": 1,
    }


def test_only_model_calls_are_sent(tmp_path):
    spans = [
        chat("a", 1, 2),
        span("no operation", 3, 4, **{"gen_ai.prompt.0.content": "older"}),
        span("embed", 5, 6, **{"gen_ai.operation.name": "embeddings", "gen_ai.input.messages": "[]"}),
        span("http", 5, 6, **{"http.request.method": "POST"}),
        {**span("alone", 7, 8, **{"gen_ai.operation.name": "execute_tool"}), "trace_id": "u"},
    ]
    with pytest.raises(TraceError, match="none of 1 rows can be sent: no_model_call"):
        open_trace(str(saved(tmp_path, spans[-1])))
    spans[1]["attributes"]["gen_ai.prompt.0.role"] = "user"
    trace = open_trace(str(saved(tmp_path, *spans)))
    assert (trace.rows, trace.skipped) == (5, {"no_model_call": 1})
    assert [turn.messages[0]["content"] for turn in only(trace).turns] == ["a", "older"]


PARTS = [
    ({"role": "user", "parts": [{"type": "text", "content": "a"}]}, "a", "one part stays a text"),
    ({"role": "user", "content": [{"type": "text", "text": "a"}]}, "a", "OpenAI's own parts"),
    ({"role": "human", "content": "a"}, "a", "a role of LangChain"),
    (
        {"role": "user", "parts": [{"type": "text", "content": "a"}, {"type": "text", "content": "b"}]},
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "several stay parts",
    ),
    (
        {"role": "user", "parts": [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "iVBO"}]},
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}],
        "an image's bytes",
    ),
    (
        {"role": "user", "parts": [{"type": "uri", "modality": "image", "uri": "https://example.com/a.png"}]},
        [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}],
        "an image's address",
    ),
    ({"role": "user", "content": '[{"a": 1}]'}, '[{"a": 1}]', "a text that is JSON stays a text"),
    (
        {"role": "user", "content": '[{"type": "text", "text": "a"}]'},
        "a",
        "parts as a JSON string, as OpenLLMetry writes them",
    ),
]


@pytest.mark.parametrize(("message", "content", "reason"), PARTS, ids=[reason for *_, reason in PARTS])
def test_content_of_messages(tmp_path, message, content, reason):
    path = saved(tmp_path, chat("a", 1, 2, **{"gen_ai.input.messages": json.dumps([message])}))
    assert only(open_trace(str(path))).turns[0].messages == ({"role": "user", "content": content},)


@pytest.mark.parametrize("key", ["response", "result"])
@pytest.mark.parametrize("ident", ["c1", None])
def test_tool_calls_pair_with_their_results_by_id_or_by_order(tmp_path, key, ident):
    named = {} if ident is None else {"id": ident}
    history = [
        {"role": "user", "parts": [{"type": "text", "content": "a"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", **named, "name": "f", "arguments": {"x": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", **named, key: {"y": 2}}]},
    ]
    turn = only(open_trace(str(saved(tmp_path, chat("a", 1, 2, **{"gen_ai.input.messages": history}))))).turns[0]
    _, answer, result = turn.messages
    (call,) = answer["tool_calls"]
    assert call == {"id": call["id"], "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    assert call["id"] == (ident or "call_0")
    assert result == {"role": "tool", "tool_call_id": call["id"], "content": '{"y":2}'}


def test_answer_of_several_choices_is_the_first_and_reasoning_is_left_out(tmp_path):
    choices = [
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "one"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "two"}]},
    ]
    trace = open_trace(str(saved(tmp_path, chat("a", 1, 2, **{"gen_ai.output.messages": choices}))))
    assert only(trace).turns[0].recorded_answer == ({"role": "assistant", "content": "one"},)
    assert trace.warnings == (
        "an answer has several choices, the first is kept",
        "reasoning of recorded answers is not sent back",
    )


def test_output_lengths_are_scaled_and_prompts_stay_as_recorded(tmp_path):
    usage = {"gen_ai.usage.prompt_tokens": 100, "gen_ai.usage.completion_tokens": 50}
    turn = only(open_trace(str(saved(tmp_path, chat("a", 1, 2, **usage))), output_scale=0.5, length_scale=2)).turns[0]
    assert (turn.asked_prompt_tokens, turn.asked_output_tokens) == (100, 25)


SKIPPED = [
    ({"gen_ai.input.messages": None}, "no_messages", "content is not captured unless it is asked for"),
    ({"gen_ai.input.messages": '[{"role": "user", "content": "cut o'}, "messages_cut", "a limit of attribute lengths"),
    ({"gen_ai.input.messages": [{"role": "critic", "content": "a"}]}, "not_a_message", "a role that nobody has"),
    ({"gen_ai.input.messages": [5]}, "not_a_message", "no object"),
    ({"gen_ai.input.messages": [{"role": "user", "parts": 5}]}, "message_without_content", "parts are no list"),
    (
        {"gen_ai.input.messages": [{"role": "tool", "parts": [{"type": "tool_call_response", "response": 1}]}]},
        "tool_result_without_call",
        "a result of nothing",
    ),
    (
        {"gen_ai.input.messages": [{"role": "assistant", "parts": [{"type": "tool_call", "id": "c"}]}]},
        "bad_tool_call",
        "a call without a name",
    ),
    (
        {
            "gen_ai.input.messages": [
                {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f"}]},
                {"role": "user", "content": "a"},
            ]
        },
        "tool_call_without_result",
        "servers refuse it",
    ),
    ({"gen_ai.tool.definitions": [{"type": "function"}]}, "bad_tool_definition", "a tool without a name"),
]


@pytest.mark.parametrize(("attributes", "reason", "why"), SKIPPED, ids=[why for *_, why in SKIPPED])
def test_calls_that_cannot_be_sent_are_counted_and_the_others_stay(tmp_path, attributes, reason, why):
    path = saved(tmp_path, chat("a", 1, 2), chat("b", 3, 4, **attributes), chat("c", 5, 6))
    trace = open_trace(str(path))
    assert (trace.rows, trace.sessions, trace.skipped) == (3, 1, {reason: 1})
    assert [turn.messages[0]["content"] for turn in only(trace).turns] == ["a", "c"]
    assert only(trace).turns[1].delay_ns == 3 * SECOND


GOOD = chat("a", 1, 2)
MALFORMED = [
    ({**GOOD, "span_id": None}, ":0: the span has no span_id", "no id"),
    ({**GOOD, "trace_id": 7}, ":0: trace_id is a int, a string is wanted", "an id of another kind"),
    ({key: GOOD[key] for key in GOOD if key != "start_time"}, ":0: the span has no start_time", "no start"),
    ({**GOOD, "end_time": "sk-secret"}, ":0: end_time is a string of 9 characters that is no date", "no date"),
    ({**GOOD, "end_time": iso(0.5)}, ":0: the span ends 0.500 s before it starts", "negative"),
    ({**GOOD, "start_time": 12.5}, ":0: start_time is 12.5, which is no date in s, ms, us or ns", "no epoch"),
    ({**GOOD, "attributes": "sk-secret"}, ":0: attributes is a str, an object or a list is wanted", "attributes"),
    ({**GOOD, "attributes": [{"value": {"stringValue": "sk-secret"}}]}, ":0: an attribute has no key", "no key"),
    (
        chat("a", 1, 2, **{"gen_ai.usage.input_tokens": "sk-secret"}),
        ":0: gen_ai.usage.input_tokens is a str, a whole number of tokens is wanted",
        "a count of another kind",
    ),
    (
        chat("a", 1, 2, **{"gen_ai.usage.output_tokens": -3}),
        ":0: gen_ai.usage.output_tokens is below 0",
        "a count below 0",
    ),
    ("sk-secret", ":0: is a str, not a span", "no object"),
]


@pytest.mark.parametrize(("bad", "message", "why"), MALFORMED, ids=[why for *_, why in MALFORMED])
def test_tr_15_malformed_spans_are_refused_with_their_place_and_without_their_text(tmp_path, bad, message, why):
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"spans": [bad]}))
    with pytest.raises(TraceError) as caught:
        open_trace(str(path), format="otel-genai")
    assert f"{path}{message}" in str(caught.value)
    assert "sk-secret" not in str(caught.value)
    lines = tmp_path / "spans.jsonl"
    lines.write_text(json.dumps(chat("first", 1, 2)) + "\n" + json.dumps({"spans": [bad]}) + "\n")
    with pytest.raises(TraceError) as caught:
        open_trace(str(lines))
    assert f"{lines}{message.replace(':0:', ':2:')}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"spans": [{"span_id": "sk-secret"', ":1: is not JSON"),
        ('{"spans": {"sk-secret": 1}}', ":1: is no document of spans (Expected `array | null`, got `object`"),
        ('{"resourceSpans": [{"scopeSpans": 5}]}', ":1: is no document of spans (Expected `array`, got `int`"),
    ],
)
def test_documents_that_are_none_are_refused(tmp_path, text, message):
    path = tmp_path / "spans.json"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        open_trace(str(path), format="otel-genai")
    assert f"{path}{message}" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_agents_beside_each_other_wait_for_their_own_calls_only(tmp_path):
    """By times alone the second call of either agent would wait for the first of the other."""
    agent = {"gen_ai.operation.name": "invoke_agent"}
    spans = [
        chat("plan", 0, 1),
        span("x", 1, 6, **agent),
        chat("x1", 1.5, 2, "x"),
        chat("x2", 4, 6, "x"),
        span("y", 1, 5, **agent),
        chat("y1", 1.25, 3, "y"),
        chat("y2", 3.5, 5, "y"),
        chat("sum", 7, 8),
    ]
    session = only(open_trace(str(saved(tmp_path, *spans))))
    names = [turn.messages[0]["content"] for turn in session.all_turns()]
    waits = {names[number]: {names[other] for other in waits} for number, waits in enumerate(waits_of(session))}
    assert waits == {
        "plan": set(),
        "x1": {"plan"},
        "x2": {"x1"},
        "y1": {"plan"},
        "y2": {"y1"},
        "sum": {"x2", "y2"},
    }
    delays = {name: turn.delay_ns / SECOND for name, turn in zip(names, session.all_turns(), strict=True)}
    assert delays == {"plan": 0, "x1": 0.5, "x2": 2, "y1": 0.25, "y2": 0.5, "sum": 1}


def test_spans_nested_thousands_deep_are_ordered_without_recursion(tmp_path):
    agents = [span(f"a{n}", 0, 9, f"a{n - 1}" if n else None) for n in range(3000)]
    calls = [chat("first", 1, 2, "a2999"), chat("second", 3, 4, "a2999"), chat("third", 10, 11)]
    session = only(open_trace(str(saved(tmp_path, *agents, *calls))))
    assert [turn.messages[0]["content"] for turn in session.turns] == ["first", "second", "third"]
    assert [turn.delay_ns / SECOND for turn in session.turns] == [0, 1, 6]


def test_session_that_starts_with_several_calls_at_once(tmp_path):
    session = only(open_trace(str(saved(tmp_path, chat("a", 1, 4), chat("b", 1.5, 3), chat("c", 5, 6)))))
    assert session.branches[0].after is None
    assert session.branches[0].turns[0].delay_ns == SECOND // 2
    assert session.branches[0].joined_by == 1
    assert session.turns[1].delay_ns == SECOND


def test_wait_that_the_form_cannot_hold_is_counted(tmp_path):
    """Both of the second two waited for both of the first two; a branch is joined once."""
    trace = open_trace(str(saved(tmp_path, chat("a", 0, 2), chat("b", 0, 3), chat("c", 4, 6), chat("d", 5, 7))))
    waits = waits_of(only(trace))
    names = [turn.messages[0]["content"] for turn in only(trace).all_turns()]
    assert {names[n]: sorted(names[o] for o in w) for n, w in enumerate(waits)} == {
        "a": [],
        "b": [],
        "c": ["a", "b"],
        "d": ["b"],
    }
    assert trace.warnings == ("waits for a second call that several others waited for, too, are left out",)


REAL = [
    ("code_review_workflow.json", 15, 9, 6),
    ("customer_support_escalation.json", 9, 8, 1),
    ("fan_in_dependencies.json", 4, 3, 1),
    ("multi_agent_research.json", 12, 8, 4),
    ("parallel_requests.json", 5, 4, 1),
    ("prefix_sharing_example.json", 7, 7, 0),
    ("simple_chain.json", 3, 3, 0),
    ("software_architecture_review.json", 15, 9, 6),
]


@pytest.mark.parametrize(("name", "rows", "main", "branches"), REAL, ids=[name for name, *_ in REAL])
def test_real_files_are_replayed_in_their_order_and_at_their_times(shared, name, rows, main, branches):
    """The partial order of the replay is that of the recording, and with answers that take as long as they did every
    call starts when it did: what overlapped, overlaps."""
    path = shared / "traces" / "otel" / name
    trace = open_trace(str(path))
    assert (trace.rows, trace.skipped) == (rows, {})
    sessions = [trace.session(index) for index in range(trace.sessions or 0)]
    assert sum(len(session.turns) for session in sessions) == main
    assert sum(len(session.branches) for session in sessions) == branches
    recorded = {}
    for one in json.loads(path.read_text())["spans"]:
        times = tuple(stamp_ns(one[key]) for key in ("start_time", "end_time"))
        recorded[json.dumps(json.loads(one["attributes"]["gen_ai.input.messages"]))] = times
    assert len(recorded) == rows
    for session in sessions:
        times = [recorded[json.dumps(list(turn.messages))] for turn in session.all_turns()]
        origin = min(start for start, _ in times)
        times = [(start - origin, end - origin) for start, end in times]
        assert replayed(session, [end - start for start, end in times]) == times
        assert closure(waits_of(session)) == {
            (a, b) for a, one in enumerate(times) for b, other in enumerate(times) if one[1] <= other[0]
        }


def closure(waits: list[set[int]]) -> set[tuple[int, int]]:
    before: dict[int, set[int]] = {}

    def of(turn: int) -> set[int]:
        if turn not in before:
            before[turn] = set().union(*({other} | of(other) for other in waits[turn]))
        return before[turn]

    return {(other, turn) for turn in range(len(waits)) for other in of(turn)}


def test_real_requests_share_their_prefix(shared):
    """Each request of the conversation begins with the one before it and its answer, as the file is named for."""
    trace = open_trace(str(shared / "traces" / "otel" / "prefix_sharing_example.json"))
    talk = next(trace.session(n) for n in range(4) if trace.session(n).turn_count == 4)
    conversation = Conversation(talk, synthesizer=Synthesizer(1))
    before: list[dict[str, Any]] = []
    while (prepared := conversation.next_turn()) is not None:
        assert prepared.messages[: len(before)] == before
        before = [*prepared.messages, *talk.turns[prepared.index].recorded_answer]
        conversation.answered("")
    assert len(before) == 9


def test_sniff_takes_no_other_file(shared):
    sniff = READERS["otel-genai"].sniff
    others = [path for path in (shared / "traces").rglob("*") if path.is_file() and path.parent.name != "otel"]
    others += [path for path in EXAMPLES.iterdir() if not path.name.startswith("otel-genai")]
    assert len(others) > 20
    assert [path for path in others if path.stat().st_size and sniff(Source(path).head())] == []


times = st.integers(min_value=0, max_value=12)
calls = st.lists(st.tuples(times, st.integers(min_value=1, max_value=6)), min_size=1, max_size=9)


@given(calls)
def test_lines_hold_every_wait_but_those_counted(drawn):
    intervals = sorted((start, start + length) for start, length in drawn)
    graph = graph_of([Call(start_ns=start, end_ns=end) for start, end in intervals], {})
    pairs = {(a, b) for a, x in enumerate(intervals) for b, y in enumerate(intervals) if x[1] <= y[0]}
    direct = {(a, b) for a, b in pairs if not any((a, c) in pairs and (c, b) in pairs for c in range(len(intervals)))}
    assert {(other, call) for call, waits in enumerate(graph.waits) for other in waits} == direct
    held = set()
    for line in graph.lines:
        held |= set(zip(line.calls, line.calls[1:], strict=False))
        held |= {(line.after, line.calls[0])} if line.after is not None else set()
        held |= {(line.calls[-1], line.joined_by)} if line.joined_by is not None else set()
    assert held <= direct
    assert len(direct - held) == graph.lost
    assert sorted(call for line in graph.lines for call in line.calls) == list(range(len(intervals)))


texts = st.text(max_size=12)
sessions_drawn = st.lists(
    st.lists(st.tuples(times, st.integers(min_value=1, max_value=6), texts, st.booleans()), min_size=1, max_size=5),
    min_size=1,
    max_size=4,
)


@given(sessions_drawn, st.integers())
def test_spans_are_sent_or_counted_and_the_normal_form_keeps_them(tmp_path_factory, drawn, seed):
    """Any sessions, spans in any order: rows = calls sent + skipped, each message as it was; the same again from the
    normal form."""
    folder = tmp_path_factory.mktemp("otel")
    spans = []
    for number, session in enumerate(drawn):
        for index, (start, length, text, captured) in enumerate(session):
            one = chat(f"{number}-{index}", start, start + length, **{"session.id": f"s{number}"})
            one["attributes"]["gen_ai.input.messages"] = [{"role": "user", "content": text}] if captured else None
            spans.append(one)
    random.Random(seed).shuffle(spans)
    texts_captured = sorted(text for session in drawn for *_, text, captured in session if captured)
    path = saved(folder, *spans)
    if not texts_captured:
        with pytest.raises(TraceError, match="no_messages"):
            open_trace(str(path))
        return
    trace = open_trace(str(path))
    read = [trace.session(index) for index in range(trace.sessions or 0)]
    assert sum(session.turn_count for session in read) + sum(trace.skipped.values()) == trace.rows == len(spans)
    found = sorted(turn.messages[0]["content"] for session in read for turn in session.all_turns())
    assert found == texts_captured
    with (folder / "normal.jsonl").open("wb") as file:
        normal.write(file, read)
    again = open_trace(str(folder / "normal.jsonl"))
    assert [again.session(index) for index in range(again.sessions or 0)] == read
