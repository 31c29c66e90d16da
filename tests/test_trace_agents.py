"""Agents of AIPerf, Dynamo and GitHub Copilot: what runs after what, and beside what."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.records import Branch, Session
from infersiege.traces import Conversation, Synthesizer, Trace, open_trace
from infersiege.traces.formats import normal
from infersiege.traces.sessions.session_checks import check_branches

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
ALIKE = ["aiperf-multi-turn", "dynamo", "copilot-agents"]


def opened(path: Path, format: str, *rows: Any, options: dict[str, object] | None = None, **more: Any) -> Trace:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return open_trace(str(path), format=format, options=options, **more)


def all_of(trace: Trace) -> list[Session]:
    assert trace.sessions is not None
    sessions = [trace.session(index) for index in range(trace.sessions)]
    for session in sessions:
        check_branches(session, "made")
    return sessions


def again(folder: Path, sessions: list[Session]) -> list[Session]:
    buffer = io.BytesIO()
    normal.write(buffer, sessions)
    (folder / "normal.jsonl").write_bytes(buffer.getvalue())
    return all_of(open_trace(str(folder / "normal.jsonl")))


def lines(branches: tuple[Branch, ...]) -> list[tuple[int | None, int | None, int, bool]]:
    return [(branch.after, branch.joined_by, len(branch.turns), branch.inherits) for branch in branches]


def lengths(session: Session) -> list[tuple[int | None, int | None]]:
    return [(turn.asked_prompt_tokens, turn.asked_output_tokens) for turn in session.all_turns()]


# AIPerf.


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def asks(ident: str, *turns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"session_id": ident, "turns": [{"messages": [user(ident)]} | turn for turn in turns], **more}


def test_the_multi_turn_example_becomes_exactly_this():
    trace = open_trace("aiperf-multi-turn.jsonl", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped, trace.warnings) == (2, 2, {}, ())
    assert list(trace.arrivals_ns or ()) == [0, 3_000_000_000]
    tides, knots = all_of(trace)
    assert [turn.messages for turn in tides.turns] == [
        (user("When is high water at the old pier?"),), (user("And tomorrow?"),)
    ]  # fmt: skip
    assert [turn.asked_output_tokens for turn in tides.turns] == [40, 30]
    assert [turn.delay_ns for turn in tides.turns] == [0, 8_500_500_000], "the distance of the two timestamps"
    assert tides.turns[1].extra == {"temperature": 0.2}
    # A system turn goes with the first request, an assistant's is what was answered.
    assert [message["role"] for message in knots.turns[0].messages] == ["system", "user"]
    assert knots.turns[0].messages[1]["content"] == [
        {"type": "text", "text": "Name a knot for two ropes."}, {"type": "text", "text": "Say why."}
    ]  # fmt: skip
    assert knots.turns[0].recorded_answer[0]["content"] == "The sheet bend: it holds ropes of two sizes."
    assert [turn.delay_ns for turn in knots.turns] == [0, 750_000_000]


def test_the_dag_example_becomes_exactly_this():
    trace = open_trace("aiperf-multi-turn.dag.jsonl", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped, trace.arrivals_ns) == (11, 2, {}, None)
    planner, start = all_of(trace)
    assert lines(planner.branches) == [
        (None, None, 1, False),  # warm: before the session's first turn, nobody waits
        (0, None, 1, True),  # notes: goes on from turn 0 in the background
        (0, 1, 2, False),  # weather: the next turn waits for it
        (0, 2, 1, False),  # trains: turn 2 does
        (7, None, 1, False),  # fares: spawned by trains' only turn
        (0, 2, 1, False),  # ferries
        (2, None, 2, True),  # letter: the fork that ends its parent
    ]
    assert planner.turns[0].extra == {"max_tokens": 128} and planner.turns[2].extra == {"temperature": 0.0}
    assert planner.branches[2].turns[0].delay_ns == 40_000_000
    assert lines(start.branches) == [(None, None, 2, False)]
    assert [turn.replaces_history for turn in start.branches[0].turns] == [True, True]


def test_a_child_of_many_parents_is_in_each(tmp_path):
    trace = opened(
        tmp_path / "a.jsonl", "aiperf-multi-turn",
        asks("a", {"spawns": ["tool"]}, {}), asks("tool", {}, {}), asks("b", {"spawns": ["tool", "tool"]}, {}),
    )  # fmt: skip
    assert [lines(session.branches) for session in all_of(trace)] == [
        [(0, 1, 2, False)], [(0, 1, 2, False), (0, 1, 2, False)]
    ]  # fmt: skip


def test_trees_that_cannot_be_sent_are_skipped_whole(tmp_path):
    result = {"role": "tool", "tool_call_id": "c", "content": "4"}
    trace = opened(
        tmp_path / "a.jsonl", "aiperf-multi-turn",
        asks("good", {}),
        asks("parent", {"spawns": ["child"]}, {}), asks("child", {"messages": [result]}),
        {"session_id": "spine", "orchestrator": True, "rounds": 3, "spawns": ["leaf"]}, asks("leaf", {}),
        {"turns": [{"text": "listen", "audio": "a.wav"}]}, {"turns": [{"image": "/tmp/a.png"}]},
        {"turns": [{"text": "x", "role": "assistant"}]},
    )  # fmt: skip
    assert (trace.rows, trace.sessions) == (8, 1)
    assert trace.skipped == {
        "tool_result_without_call": 2, "rounds_without_requests": 2, "audio_or_video": 1, "image_is_a_local_file": 1,
        "answer_without_request": 1,
    }  # fmt: skip


def test_images_with_an_address_are_carried(tmp_path):
    trace = opened(
        tmp_path / "a.jsonl", "aiperf-multi-turn",
        {"turns": [{"text": "what?", "image": "data:image/png;base64,AA=="}, {"images": [{"contents": ["https://h/a"]}]}]},
    )  # fmt: skip
    first, second = all_of(trace)[0].turns
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert first.messages[0]["content"] == [{"type": "text", "text": "what?"}, url]
    assert second.messages[0]["content"] == [{"type": "image_url", "image_url": {"url": "https://h/a"}}]


def test_fields_that_are_not_the_requests_are_not_sent(tmp_path):
    turn = {"text": "x", "extra": {"top_p": 0.5, "color": 1, "stream": False}, "shade": 2}
    trace = opened(tmp_path / "a.jsonl", "aiperf-multi-turn", {"turns": [turn]})
    assert all_of(trace)[0].turns[0].extra == {"top_p": 0.5}
    assert len(trace.warnings) == 2 and "'color'" in trace.warnings[0] and "'shade'" in trace.warnings[1]


MALFORMED_AIPERF = [
    ([[1]], ":1: is a list, not an object"),
    ([{"turns": []}], ":1: turns is no list of objects with at least one"),
    ([{"turns": [{"text": "x"}], "session_id": 4}], ":1: session_id is no text"),
    ([asks("a", {}), asks("a", {})], ":2: session_id 'a' is that of "),
    ([{"turns": [{"role": "user"}]}], ":1: turns[0]: has neither text nor texts nor messages"),
    ([{"turns": [{"text": "x", "texts": ["y"]}]}], ":1: turns[0]: has both text and texts"),
    ([{"turns": [{"texts": [4]}]}], ":1: turns[0]: a text is a int"),
    ([{"turns": [{"text": "x", "role": "pirate"}]}], ":1: turns[0]: role is a text of 6 characters; user, system"),
    ([{"turns": [{"text": "x", "delay": 1, "timestamp": 2}]}], ":1: turns[0]: has both delay and timestamp"),
    ([{"turns": [{"text": "x", "delay": -1}]}], ":1: turns[0]: delay is -1 ms, at least 0 is wanted"),
    ([{"turns": [{"text": "x", "timestamp": 9}, {"text": "y", "timestamp": 8}]}],
     ":1: turns[1]: timestamp went back from 9 ms to 8 ms"),
    ([{"turns": [{"text": "x", "output_length": "y"}]}], ":1: turns[0]: output_length is a text of 1 characters"),
    ([{"turns": [{"text": "x", "extra": []}]}], None),
    ([{"turns": [{"text": "x", "extra": [1]}]}], ":1: turns[0]: extra is a list, an object is wanted"),
    ([asks("a", {"tools": {"a": 1}})], ":1: turns[0]: tools is no list of objects"),
    ([asks("a", {"spawns": ["b"]})], ":1: session 'b' is named, but not in the file"),
    ([asks("a", {"spawns": "b"})], ":1: turns[0]: spawns is a str, a list is wanted"),
    ([asks("a", {"spawns": [4]})], ":1: turns[0]: spawns holds a int that names no session"),
    ([asks("a", {"spawns": [{"children": ["b"], "join_at": 0}]}, {}), asks("b", {})],
     ":1: turns[0]: join_at is 0, a later turn of the session is wanted"),
    ([asks("a", {"spawns": [{"children": ["b"], "join_at": 2}]}, {}), asks("b", {})],
     ":1: turns[0]: join_at is 2, a later turn of the session is wanted"),
    ([asks("a", {"forks": ["b"]}, {}), asks("b", {})], ":1: turns[0]: forks 'b', yet more turns follow"),
    ([asks("a", {"forks": [{}]})], ":1: turns[0]: forks holds a dict that names no session"),
    ([asks("a", {"forks": ["c"]}), asks("b", {"forks": ["c"]}), asks("c", {})], ":2: 'c' is forked from two sessions"),
    ([asks("a", {"spawns": ["b"]}), asks("b", {"spawns": ["a"]})], ":1: session 'a' is among its own descendants"),
    ([asks("r", {"spawns": ["b"]}), asks("b", {"spawns": ["c"]}), asks("c", {"spawns": ["b"]})],
     ":2: session 'b' is among its own descendants"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "message"), MALFORMED_AIPERF, ids=[str(row[1])[:60] for row in MALFORMED_AIPERF])
def test_malformed_aiperf_rows_are_told_with_their_line(tmp_path, rows, message):
    path = tmp_path / "a.jsonl"
    if message is None:
        assert opened(path, "aiperf-multi-turn", *rows).sessions == 1
        return
    with pytest.raises(TraceError) as caught:
        opened(path, "aiperf-multi-turn", *rows)
    assert str(caught.value).startswith(f"{path}{message}")


def test_graphs_that_multiply_without_bound_are_refused(tmp_path):
    doubling = [asks(f"s{n}", {"spawns": [f"s{n + 1}", f"s{n + 1}"]}) for n in range(40)] + [asks("s40", {})]
    with pytest.raises(TraceError, match=r"a\.jsonl:1: session 's0' has more than 20,000 turns"):
        opened(tmp_path / "a.jsonl", "aiperf-multi-turn", *doubling)
    chain = [asks(f"s{n}", {"spawns": [f"s{n + 1}"]}) for n in range(3000)] + [asks("s3000", {})]
    with pytest.raises(TraceError, match="more than 200 sessions below each other"):
        opened(tmp_path / "b.jsonl", "aiperf-multi-turn", *chain)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_graphs_of_sessions_are_whole_and_can_be_played(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("dag")
    count = data.draw(st.integers(1, 7))
    rows = [asks(f"s{n}", *({} for _ in range(data.draw(st.integers(1, 4))))) for n in range(count)]
    for child in range(1, count):  # each has at most one parent: a row is a session's or another's branch
        parent = data.draw(st.one_of(st.none(), st.integers(0, child - 1)))
        if parent is None:
            continue
        turns = rows[parent]["turns"]
        at = data.draw(st.integers(0, len(turns) - 1))
        join = data.draw(st.integers(at + 1, len(turns) - 1)) if at + 1 < len(turns) else None
        entry: Any = {"children": [f"s{child}"], **({} if join is None else {"join_at": join})}
        if data.draw(st.booleans()):
            turns[at].setdefault("forks", []).append({"child": f"s{child}", "background": True})
        else:
            turns[at].setdefault("spawns", []).append(entry)
    trace = opened(folder / "a.jsonl", "aiperf-multi-turn", *data.draw(st.permutations(rows)))
    made = all_of(trace)
    assert trace.rows == count
    assert sum(session.turn_count for session in made) == sum(len(row["turns"]) for row in rows)
    assert len(made) + sum(len(session.branches) for session in made) == count
    assert again(folder, made) == made


# Dynamo.

T = 1_767_225_600_000


def ended(start: float, took: float, tokens: int, output: int, cached: int = 0, **context: str) -> dict[str, Any]:
    event: dict[str, Any] = {
        "schema": "dynamo.agent.trace.v1", "event_type": "request_end", "event_time_unix_ms": T + start + took,
        "request": {"model": "m", "input_tokens": tokens, "output_tokens": output, "cached_tokens": cached,
                    "request_received_ms": T + start, "total_time_ms": took},
    }  # fmt: skip
    return event | ({"agent_context": context} if context else {})


def changed(event: dict[str, Any], **request: Any) -> dict[str, Any]:
    return event | {"request": {key: value for key, value in (event["request"] | request).items() if value != "gone"}}


def test_the_dynamo_example_becomes_exactly_this():
    trace = open_trace("dynamo.jsonl", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped, trace.warnings) == (8, 2, {}, ())
    assert list(trace.arrivals_ns or ()) == [0, 1_500_000_000]
    first, second = all_of(trace)
    assert lengths(first) == [(300, 40), (400, 30), (260, 20), (220, 20), (280, 15)]
    # The tool and the client took 500 ms; the search starts 200 ms after the plan and is joined by its third request,
    # which comes 500 ms after the search's last answer.
    assert [turn.delay_ns // 1_000_000 for turn in first.turns] == [0, 500, 500]
    assert lines(first.branches) == [(0, 2, 2, False)]
    assert [turn.delay_ns // 1_000_000 for turn in first.branches[0].turns] == [200, 400]
    assert [turn.replaces_history for turn in first.turns] == [False, False, True]
    assert first.turns[0].texts[0] == second.turns[0].texts[0], (
        "128 tokens were cached at first: all sessions share them"
    )
    assert [text.tokens for text in first.turns[2].texts if text] == [(128,), (64, 68)]


JOINING = [
    # (trajectory, start, length) in ms, delays of the main line in ms, first delays of the branches, why
    ([("main", 1000, 1000), ("sub", 3000, 97_000), ("main", 101_000, 1000)], [0, 1000], [1000],
     "from the subagent's answer, not from that of the main line"),
    ([("main", 0, 1000), ("sub", 2000, 500), ("sub", 9000, 1000), ("main", 10_000, 500)], [0, 0], [1000],
     "from its last answer"),
    ([("main", 0, 9000), ("sub", 10_000, 500), ("main", 10_600, 400), ("main", 12_000, 1)], [0, 100, 1000], [1000],
     "later turns count from their own line again"),
    ([("sub", 0, 1000), ("main", 4000, 10), ("main", 5000, 10)], [3000, 990], [0],
     "the subagent was at work first: the session starts with it"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "main_ms", "first_ms", "why"), JOINING, ids=[row[3] for row in JOINING])
def test_tr_09_dynamo_turns_count_from_the_last_of_what_they_wait_for(tmp_path, sent, main_ms, first_ms, why):
    rows = [
        ended(
            start,
            took,
            100,
            5,
            session_id="r",
            trajectory_id=name,
            **({"parent_trajectory_id": "main"} if name == "sub" else {}),
        )
        for name, start, took in sent
    ]
    (session,) = all_of(opened(tmp_path / "a.jsonl", "dynamo", *rows))
    assert [turn.delay_ns // 1_000_000 for turn in session.turns] == main_ms, why
    assert [branch.turns[0].delay_ns // 1_000_000 for branch in session.branches] == first_ms
    assert [branch.joined_by is not None for branch in session.branches] == [True]


def test_replay_hashes_are_the_requests(tmp_path):
    trace = open_trace("dynamo.replay.jsonl", base=EXAMPLES)
    lead, alone = all_of(trace)
    assert (lead.session_id, alone.session_id) == ("lead", "line-3")
    assert lines(lead.branches) == [(0, 1, 1, False)], "a session with a parent is a branch of it"
    texts = [turn.texts[0] for session in (lead, alone) for turn in session.all_turns()]
    assert [text.tokens for text in texts] == [(64, 64), (64, 64, 62), (64, 64, 64, 64), (64, 36), (64, 6)]
    assert len({text.scope for text in texts}) == 1 and len({text.ids[0] for text in texts}) == 1
    # Hashes above 2^63 are told apart from each other, and fit into 64 bits.
    assert texts[0].ids[0] == 14879255164371896291 - 2**64 and texts[2].ids[3] == -1
    write = Synthesizer(1).text
    assert write(texts[1]).startswith(write(texts[0]))


def test_requests_of_one_trajectory_that_overlap_run_beside_each_other(tmp_path):
    run = {"session_id": "r"}
    rows = [ended(0, 500, 200, 10, **run), ended(900, 2000, 260, 10, 210, **run), ended(1000, 300, 240, 5, 205, **run)]
    session = all_of(opened(tmp_path / "a.jsonl", "dynamo", *rows, ended(4000, 10, 300, 3, 270, **run)))[0]
    assert lengths(session) == [(200, 10), (260, 10), (300, 3), (240, 5)]
    assert lines(session.branches) == [(0, None, 1, False)]
    beside = session.branches[0].turns[0]
    assert beside.delay_ns == 500_000_000 and beside.replaces_history
    assert [text.tokens for text in beside.texts if text] == [(200,), (5,), (35,)], "it begins with what was cached"


def test_rows_of_agents_are_put_in_the_order_of_their_starts(tmp_path):
    rows = [ended(900, 5000, 300, 9, session_id="b"), ended(0, 400, 100, 9, session_id="b")]
    session = all_of(opened(tmp_path / "a.jsonl", "dynamo", *({"timestamp": 1, "event": row} for row in rows)))[0]
    assert lengths(session) == [(100, 9), (300, 9)]


def test_dynamo_rows_without_a_request_are_counted(tmp_path):
    tool = {"event_type": "tool_end", "event_time_unix_ms": T, "tool": {}}
    trace = opened(
        tmp_path / "a.jsonl", "dynamo",
        tool, tool | {"agent_context": {"session_id": "only-tools"}},
        ended(0, 1, 10, 0, session_id="a"), ended(5, 1, 0, 4, session_id="a"), ended(9, 1, 10, 4, session_id="a"),
        changed(ended(10, 1, 10, 4), output_tokens=None),
    )  # fmt: skip
    assert (trace.rows, trace.sessions) == (6, 1)
    assert trace.skipped == {"event_of_no_session": 1, "no_requests": 1, "no_output": 2, "no_input": 1}


def test_what_is_missing_of_the_times_is_taken_from_the_others(tmp_path):
    rows = [
        changed(ended(0, 500, 10, 1, session_id="a"), total_time_ms="gone"),
        changed(ended(700, 100, 20, 1, session_id="a"), request_received_ms=None),
        changed(ended(1000, 0, 30, 1, session_id="a"), request_received_ms="gone", total_time_ms="gone"),
    ]
    session = all_of(opened(tmp_path / "a.jsonl", "dynamo", *rows))[0]
    assert [turn.delay_ns // 1_000_000 for turn in session.turns] == [0, 200, 200]


ENDED = ended(0, 5, 100, 7, session_id="a")
HASHED = {"trace_block_size": 64, "input_length": 100, "input_sequence_hashes": [1, 2]}
MALFORMED_DYNAMO = [
    ([1], "is a list, not an object"),
    ({"event": {"a": 1}}, "has no event_type"),
    (ENDED | {"agent_context": {}}, "agent_context has no session_id"),
    (ENDED | {"agent_context": [1]}, "agent_context has no session_id"),
    (ENDED | {"request": None}, "request is missing"),
    (ENDED | {"request": 3}, "request is no object"),
    (changed(ENDED, input_tokens=-4), "input_tokens is '-4', a whole number"),
    (changed(ENDED, cached_tokens=101), "cached_tokens is 101, more than the 100 of input_tokens"),
    (changed(ENDED, total_time_ms=-5), "the request ends 5 ms before it was received"),
    (changed(ENDED, request_received_ms="now"), "request_received_ms is a text of 3 characters, a number is wanted"),
    (changed(ENDED, replay=[1]), "request.replay is no object"),
    (changed(ENDED, replay=HASHED | {"input_length": 200}), "2 input_sequence_hashes for 200 tokens in blocks of 64"),
    (changed(ENDED, replay=HASHED | {"trace_block_size": 0}), "2 input_sequence_hashes for 100 tokens in blocks of 0"),
    (changed(ENDED, replay=HASHED | {"input_sequence_hashes": ["x"]}), "input_sequence_hashes is no list of whole"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message"), MALFORMED_DYNAMO, ids=[row[1][:50] for row in MALFORMED_DYNAMO])
def test_malformed_dynamo_rows_are_told_with_their_line(tmp_path, row, message):
    path = tmp_path / "a.jsonl"
    with pytest.raises(TraceError) as caught:
        opened(path, "dynamo", ENDED, row)
    assert str(caught.value).startswith(f"{path}:2: {message}")


def test_sessions_that_are_each_others_parent_are_refused(tmp_path):
    rows = [ended(0, 1, 9, 1, session_id=a, parent_session_id=b) for a, b in (("a", "b"), ("b", "a"))]
    with pytest.raises(TraceError, match=r"a\.jsonl:1: session .* is an ancestor of itself"):
        opened(tmp_path / "a.jsonl", "dynamo", *rows)


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 5000), st.integers(0, 3000), st.integers(0, 400), st.integers(0, 30), st.integers(0, 400),
        st.sampled_from(["", "plan", "search", "write"]), st.sampled_from(["", "plan", "search", "write", "gone"]),
    ),
    min_size=1, max_size=10,
)  # fmt: skip


@given(EVENTS)
@settings(max_examples=50, deadline=None)
def test_dynamo_rows_are_sent_or_skipped_and_can_be_played(tmp_path_factory, events):
    folder = tmp_path_factory.mktemp("dynamo")
    rows = []
    for start, took, tokens, output, cached, name, parent in events:
        context = {"session_id": "run", "trajectory_id": name} if name else {}
        if name and parent:
            context["parent_trajectory_id"] = parent
        rows.append(ended(start, took, tokens, output, min(cached, tokens), **context))
    sent = [(tokens, output) for _, _, tokens, output, *_ in events if tokens and output]
    if not sent:
        return
    trace = opened(folder / "a.jsonl", "dynamo", *rows)
    made = all_of(trace)
    assert sorted(pair for session in made for pair in lengths(session)) == sorted(sent)
    assert trace.rows == len(rows) == len(sent) + sum(trace.skipped.values())
    assert all(turn.delay_ns >= 0 for session in made for turn in session.all_turns())
    assert again(folder, made) == made


# GitHub Copilot.


def call(at: float, took_ms: float, prompt: int, completion: int, cached: int = 0, model: str = "A") -> dict[str, Any]:
    return {
        "timestamp": f"2026-06-01T09:00:{at:06.3f}Z", "duration_ms": took_ms, "initiator_type": "agent", "model": model,
        "tokens": {"prompt": prompt, "completion": completion, "cached": cached},
    }  # fmt: skip


def calls(*rows: dict[str, Any], ident: str = "s") -> dict[str, Any]:
    return {"session_id": ident, "date": "2026-06-01", "turns": [{"turn_id": "t", "llm_calls": list(rows)}]}


def test_the_copilot_example_becomes_exactly_this():
    trace = open_trace("copilot-agents.jsonl", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped) == (2, 2, {})
    assert trace.warnings == ("calls that started while the one before was out run beside it",)
    assert list(trace.arrivals_ns or ()) == [0, 30_000_000_000]
    heron, wren = all_of(trace)
    assert lengths(heron) == [(900, 50), (1100, 40), (300, 20), (1250, 30), (820, 60), (330, 12), (700, 10)]
    assert [turn.delay_ns / 1e9 for turn in heron.turns] == [0, 1.75, 0.0495, 1.0, 50.0, 2.0]
    # The small model's calls have a context of their own: whoever comes after the other sends all of its own.
    assert [turn.replaces_history for turn in heron.turns] == [False, False, True, True, True, True]
    assert lines(heron.branches) == [(2, None, 1, False)]
    assert heron.turns[0].texts[0] == wren.turns[0].texts[0], "600 tokens were cached at first: all sessions share them"


def test_a_model_finds_its_own_context_again_after_another_model_was_asked(tmp_path):
    rows = [call(0, 500, 400, 20, 300), call(1, 100, 90, 5, 0, "small"), call(2, 500, 480, 20, 410)]
    session = all_of(opened(tmp_path / "a.jsonl", "copilot-agents", calls(*rows)))[0]
    conversation = Conversation(session, synthesizer=Synthesizer(1))
    sent = []
    while (turn := conversation.next_turn()) is not None:
        sent.append([(message["role"], message["content"]) for message in turn.messages])
        conversation.answered("from the engine")
    assert sent[2][: len(sent[0])] == sent[0], "all of the first request, as a prefix cache sees it"
    assert [role for role, _ in sent[2]] == ["system", "user", "assistant", "user"]
    assert [role for role, _ in sent[1]] == ["user"]


def test_calls_without_tokens_are_left_out_and_counted(tmp_path):
    trace = opened(
        tmp_path / "a.jsonl", "copilot-agents",
        calls(call(0, 1, 10, 5), call(1, 1, 20, 0), call(2, 1, 0, 5)), calls(call(0, 1, 9, 0), ident="b"),
        {"session_id": "c", "turns": []},
    )  # fmt: skip
    assert (trace.rows, trace.sessions, trace.skipped) == (3, 1, {"no_output": 1, "no_requests": 1})
    assert trace.warnings[0] == "calls without prompt or completion tokens are left out (2 times)"


CALL = call(0, 5, 100, 7)
MALFORMED_COPILOT = [
    ([1], "is a list, not an object"),
    (calls(CALL) | {"session_id": None}, "session_id is no text"),
    ({"session_id": "a", "turns": 3}, "turns is no list of objects"),
    ({"session_id": "a", "turns": [{}]}, "turns[0].llm_calls is no list of objects"),
    (calls(CALL, CALL | {"tokens": None}), "turns[0].llm_calls[1]: tokens is missing"),
    (calls(CALL | {"tokens": [1]}), "turns[0].llm_calls[0]: tokens is no object"),
    (calls(CALL | {"tokens": {"prompt": 5}}), "turns[0].llm_calls[0]: completion is missing"),
    (calls(call(0, 5, 100, 7, 101)), "turns[0].llm_calls[0]: cached is 101 tokens, more than the 100 of the prompt"),
    (calls(call(0, -5, 100, 7)), "turns[0].llm_calls[0]: duration_ms is -5, at least 0 is wanted"),
    (calls(CALL | {"timestamp": "soon"}), "turns[0].llm_calls[0]: timestamp is a string of 4 characters that is"),
    (calls(CALL | {"timestamp": None}), "turns[0].llm_calls[0]: timestamp is no string, a date and time"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message"), MALFORMED_COPILOT, ids=[row[1][:60] for row in MALFORMED_COPILOT])
def test_malformed_copilot_rows_are_told_with_their_line(tmp_path, row, message):
    path = tmp_path / "a.jsonl"
    with pytest.raises(TraceError) as caught:
        opened(path, "copilot-agents", calls(CALL), row)
    assert str(caught.value).startswith(f"{path}:2: {message}")


CALLS = st.lists(
    st.tuples(
        st.integers(0, 59), st.integers(0, 9000), st.integers(0, 300), st.integers(0, 30), st.integers(0, 300),
        st.sampled_from(["A", "A", "small"]),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(st.lists(CALLS, min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_copilot_calls_are_sent_or_counted_and_normal_form_keeps_them(tmp_path_factory, sessions):
    folder = tmp_path_factory.mktemp("copilot")
    rows = [
        calls(*(call(a, b, c, d, min(c, e), m) for a, b, c, d, e, m in one), ident=f"s{number}")
        for number, one in enumerate(sessions)
    ]
    wanted = [sorted((c, d) for _, _, c, d, _, _ in one if c and d) for one in sessions]
    if not any(wanted):
        return
    trace = opened(folder / "a.jsonl", "copilot-agents", *rows)
    made = sorted(all_of(trace), key=lambda session: session.session_id)
    assert [sorted(lengths(session)) for session in made] == [one for one in wanted if one]
    assert trace.rows == len(rows) == len(made) + sum(trace.skipped.values())
    for session in made:
        held = 0
        for turn in session.turns:
            texts = sum(sum(text.tokens) for text in turn.texts if text)
            held = texts if turn.replaces_history else held + texts
            assert held == turn.asked_prompt_tokens, "what is sent is what is said to be sent"
            held += sum(turn.answer_text.tokens) if turn.answer_text else 0
    assert sorted(again(folder, made), key=lambda session: session.session_id) == made


@pytest.mark.parametrize("format", ALIKE)
def test_shared_prefixes_and_limits_are_options(tmp_path, format):
    rows: dict[str, list[Any]] = {
        "aiperf-multi-turn": [asks("a", {}), asks("b", {})],
        "dynamo": [ended(0, 5, 100, 7, 80, session_id=name) for name in "ab"],
        "copilot-agents": [calls(call(0, 5, 100, 7, 80), ident=name) for name in "ab"],
    }
    path = tmp_path / "a.jsonl"
    assert opened(path, format, *rows[format], limit=1).sessions == 1
    if format == "aiperf-multi-turn":
        return
    shared = all_of(opened(path, format, *rows[format]))
    alone = all_of(opened(path, format, *rows[format], options={"shared_prefix": False}))
    assert shared[0].turns[0].texts[0] == shared[1].turns[0].texts[0]
    assert len({session.turns[0].texts[0].scope for session in alone}) == 2
    assert [lengths(session) for session in shared] == [lengths(session) for session in alone] == [[(100, 7)]] * 2


# All of them, and TraceLab and Weka: whatever stands in a file, what comes out is a trace or one clear line.

EXAMPLE_FILES = [
    "weka.json", "weka.lines.jsonl", "tracelab-rounds.jsonl", "aiperf-multi-turn.jsonl", "aiperf-multi-turn.dag.jsonl",
    "dynamo.jsonl", "dynamo.replay.jsonl", "copilot-agents.jsonl",
]  # fmt: skip
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.lists(st.integers(-2, 2), max_size=2),
    st.sampled_from([1e300, -0.5, 2**63, 10**30, "", "x", "planner", [], {}]),
    st.dictionaries(st.sampled_from(["t", "type", "text"]), st.integers(), max_size=2),
)  # fmt: skip


def spots(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside of a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [spot for key in keys for spot in spots(value[key])]


@pytest.mark.parametrize("name", EXAMPLE_FILES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_rows_with_anything_in_them_are_read_or_refused_in_one_line(tmp_path_factory, name, data):
    text = (EXAMPLES / name).read_text()
    rows = [json.loads(text)] if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(spots(rows)))
        if data.draw(st.booleans()) and isinstance(container, dict):
            container.pop(key, None)
        elif isinstance(container, dict) or key < len(container):
            container[key] = data.draw(ODD)
    path = tmp_path_factory.mktemp("odd") / "a.jsonl"
    try:
        made = all_of(opened(path, name.split(".")[0], *rows))
    except TraceError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error) and len(str(error)) < 400
    else:
        assert made and all(turn.delay_ns >= 0 for session in made for turn in session.all_turns())


@given(
    fields=st.lists(
        st.sampled_from(["a", "0", "1", "-1", "1.5", "nan", "inf", "1e400", "9" * 5000, "", '"', "é"]), max_size=9
    )
)
@settings(max_examples=80, deadline=None)
def test_csv_rows_with_anything_in_them_are_read_or_refused_in_one_line(tmp_path_factory, fields):
    path = tmp_path_factory.mktemp("odd") / "a.csv"
    header, good, *_ = (EXAMPLES / "tracelab-replay.csv").read_text().splitlines()
    path.write_text("\n".join([header, good, ",".join(fields)]))
    try:
        all_of(open_trace(str(path), format="tracelab-replay"))
    except TraceError as error:
        assert str(error).startswith(f"{path}:3: ") and len(str(error)) < 400


# ATIF.


def step(source: str, at_s: float, tokens: int = 50, **more: Any) -> dict[str, Any]:
    stamp = f"2026-01-01T00:{int(at_s) // 60:02d}:{at_s % 60:06.3f}Z"
    return {"source": source, "timestamp": stamp, "message": "x", "metrics": {"completion_tokens": tokens}, **more}


def trajectory(name: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    agent = {"name": name, "tool_definitions": []}
    return {"schema_version": "ATIF-v1.7", "trajectory_id": name, "agent": agent, "steps": list(steps), **more}


def delegating(at_s: float, *names: str) -> dict[str, Any]:
    calls = [{"tool_call_id": name, "function_name": "task", "arguments": {}} for name in names]
    results = [{"source_call_id": name, "subagent_trajectory_ref": [{"trajectory_id": name}]} for name in names]
    return step("agent", at_s, tool_calls=calls, observation={"results": results})


ATIF = [
    # steps after the delegating one (at 2 s), last answers of the subagents, delay in s at 50 tokens a second, why
    ([step("agent", 102)], [100], 1, "100 s are the subagent's, and the second answer's own second is not waited for"),
    ([step("agent", 102)], [40, 100], 1, "the later of two"),
    ([step("agent", 102)], [200], 0, "one that was over when the answer came already: clocks differ"),
    ([step("user", 110), step("agent", 115)], [100], 14, "an answer of a second at 115 s was asked for at 114 s"),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "ends_s", "delay_s", "why"), ATIF, ids=[row[3] for row in ATIF])
def test_tr_09_atif_turns_count_from_the_last_answer_of_their_subagents(tmp_path, steps, ends_s, delay_s, why):
    names = [f"sub{number}" for number in range(len(ends_s))]
    helpers = [
        trajectory(name, step("user", 3), step("agent", 5), step("user", 6), step("agent", end_s))
        for name, end_s in zip(names, ends_s, strict=True)
    ]
    whole = trajectory("p", step("user", 0), delegating(2, *names), *steps, subagent_trajectories=helpers)
    trace = opened(tmp_path / "a.jsonl", "atif", whole, options={"answer_tokens_per_s": 50.0})
    (session,) = all_of(trace)
    assert [branch.joined_by for branch in session.branches] == [1] * len(names)
    assert [turn.delay_ns / 1e9 for turn in session.turns] == [0, delay_s], why


def test_tr_09_an_atif_subagent_without_times_takes_nothing_from_the_delay(tmp_path):
    helper = trajectory("sub", step("user", 3) | {"timestamp": None}, step("agent", 5) | {"timestamp": None})
    steps = [step("user", 0), delegating(2, "sub"), step("agent", 102)]
    whole = trajectory("p", *steps, subagent_trajectories=[helper])
    (session,) = all_of(opened(tmp_path / "a.jsonl", "atif", whole, options={"answer_tokens_per_s": 50.0}))
    assert [turn.delay_ns / 1e9 for turn in session.turns] == [0, 99]
