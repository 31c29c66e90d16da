"""Mooncake files: all kinds of row, alone and as turns of sessions; what is refused, skipped and warned of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.records import BlockText, Session, Turn
from infersiege.traces import Conversation, Synthesizer, Trace, describe, open_trace
from infersiege.traces.formats import normal

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "r"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def hashed(stamp: float | None, prompt: int, ids: list[int], output: int = 10, **more: object) -> dict[str, object]:
    timed = {} if stamp is None else {"timestamp": stamp}
    return {**timed, "input_length": prompt, "output_length": output, "hash_ids": ids, **more}


def requests(trace: Trace, index: int = 0) -> list[list[dict[str, Any]]]:
    conversation = Conversation(trace.session(index), synthesizer=Synthesizer(1))
    found = []
    while (turn := conversation.next_turn()) is not None:
        found.append(turn.messages)
        conversation.answered("live")
    return found


def delays_ms(session: Session) -> list[float]:
    return [turn.delay_ns / 1e6 for turn in session.turns]


# ---------------------------------------------------------------------------------------------- rows that are sessions


def test_golden_example():
    trace = open_trace("mooncake.jsonl", base=EXAMPLES)
    assert trace.sha256 is not None
    assert (trace.format, trace.rows, trace.sessions, trace.skipped, trace.warnings) == ("mooncake", 4, 4, {}, ())
    assert list(trace.arrivals_ns or ()) == [0, 0, 3_000_000_000, 6_000_000_000]
    assert trace.session(2) == Session(
        session_id="line-3",
        arrival_ns=3_000_000_000,
        source_line=3,
        turns=(
            Turn(
                messages=({"role": "user", "content": ""},),
                texts=(
                    BlockText(scope=f"mooncake:{trace.sha256[:16]}", ids=(0, 1, 2, 4), tokens=(512, 512, 512, 164)),
                ),
                replaces_history=True,
                asked_prompt_tokens=1700,
                asked_output_tokens=200,
            ),
        ),
    )


def test_same_id_is_the_same_text(tmp_path):
    trace = open_trace(write(tmp_path / "m", hashed(0, 1030, [1, 2, 3]), hashed(3000, 1100, [1, 2, 4])))
    first, second = (str(requests(trace, index)[0][0]["content"]) for index in (0, 1))
    shared = first.rindex("\n") + 1
    assert first[:shared].count("\n") == 2
    assert first[:shared] == second[:shared]
    assert first[shared:][:6] != second[shared:][:6]


def test_ids_of_two_files_are_never_the_same_text(tmp_path):
    texts = [
        requests(open_trace(write(tmp_path / str(output), hashed(0, 512, [1], output))))[0][0]["content"]
        for output in (10, 11)
    ]
    assert texts[0] != texts[1]


def test_a_length_without_ids_is_a_text_of_its_own(tmp_path):
    rows = [{"timestamp": at, "input_length": 900, "output_length": 9} for at in (0, 5)]
    trace = open_trace(write(tmp_path / "m", *rows))
    texts = [trace.session(index).turns[0].texts[0] for index in (0, 1)]
    assert [text and (text.ids, text.tokens) for text in texts] == [((1,), (900,)), ((2,), (900,))]


def test_kinds_of_rows_may_be_mixed():
    trace = open_trace("mooncake.texts.jsonl", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped, trace.warnings) == (6, 5, {}, ())
    found = [trace.session(index) for index in range(5)]
    kinds = [(session.turns[0].messages[-1]["content"], session.turns[0].asked_output_tokens) for session in found]
    assert kinds == [
        ("Which wood floats worst?", 24),
        ("", 30),
        ("High water at noon?", 32),
        ("When does the ferry leave?", None),
        ("Name three knots.", None),
    ]
    assert found[2].tools is not None
    assert [session.turns[0].extra for session in found] == [
        {},
        {},
        {"temperature": 0.2},
        {},
        {"max_tokens": 48, "temperature": 0},
    ], "a payload's model and stream are the channel's"
    assert delays_ms(found[3]) == [0, 3000]
    assert found[3].turns[0].recorded_answer == ({"role": "assistant", "content": "At nine."},)


@pytest.mark.parametrize(
    ("payload", "messages", "why"),
    [
        ({"prompt": "Once"}, [{"role": "user", "content": "Once"}], "the completions endpoint's"),
        ({"input": "Hm?"}, [{"role": "user", "content": "Hm?"}], "the responses endpoint's"),
        ({"messages": [USER, CALL, RESULT], "tools": TOOLS}, [USER, CALL, RESULT], "tools and results"),
        ({"messages": [USER, ANSWER]}, [USER], "an answer at the end is no part of the request"),
    ],
)
def test_payloads_of_all_endpoints(tmp_path, payload, messages, why):
    trace = open_trace(write(tmp_path / "m", {"timestamp": 0, "payload": payload, "output_length": 5}))
    turn = trace.session(0).turns[0]
    assert (list(turn.messages), turn.asked_output_tokens) == (messages, 5), why


def test_text_is_sent_where_a_row_has_hashes_too(tmp_path):
    row = {"timestamp": 0, "messages": [USER], "input_length": 3, "output_length": 5, "hash_ids": ["ab"], "score": 1}
    trace = open_trace(write(tmp_path / "m", row))
    assert requests(trace) == [[USER]]
    assert trace.session(0).turns[0].asked_prompt_tokens == 3
    assert trace.warnings == (
        "a row has hash_ids beside its text: the text is sent",
        "key 'score' is no request field and is not sent",
    )


def test_keys_that_mean_nothing_are_named(tmp_path):
    trace = open_trace(write(tmp_path / "m", hashed(0, 5, [1], level=2, extra={"top_k": 3, "model": "x"})))
    assert trace.session(0).turns[0].extra == {"top_k": 3}
    assert trace.warnings == ("key 'level' is no request field and is not sent",)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (hashed(1, 0, []), "no_input"),
        (hashed(1, 5, [1], output=0), "no_output"),
        ({"timestamp": 1, "messages": [ANSWER]}, "no_user_message"),
        ({"timestamp": 1, "messages": []}, "no_messages"),
        ({"timestamp": 1, "messages": [USER, RESULT]}, "tool_result_without_call"),
        ({"timestamp": 1, "messages": [USER], "tools": 3}, "bad_tools"),
        ({"timestamp": 1, "payload": {"model": "m"}}, "no_messages"),
        ({"timestamp": 1, "payload": {"input": [3], "dimensions": 8}}, "embeddings"),
    ],
)
def test_tr_06_rows_of_which_no_request_can_be_made(tmp_path, row, reason):
    """TR-06: rows in = sessions + skipped, by reason."""
    trace = open_trace(write(tmp_path / "m", hashed(0, 5, [1]), row, row), format="mooncake")
    assert (trace.rows, trace.sessions, trace.skipped) == (3, 1, {reason: 2})
    assert any(reason in warning and "first: line 2" in warning for warning in trace.warnings)


def test_scales_change_lengths_once(tmp_path):
    path = write(tmp_path / "m", hashed(0, 1030, [1, 2, 3], output=100))
    turn = open_trace(path, length_scale=0.5, output_scale=0.25).session(0).turns[0]
    assert turn.texts[0] is not None
    assert turn.texts[0].tokens == (256, 256, 3)
    assert (turn.asked_prompt_tokens, turn.asked_output_tokens) == (515, 25)
    tiny = open_trace(path, length_scale=1e-6).session(0).turns[0]
    assert tiny.texts[0] is not None
    assert tiny.texts[0].tokens == (1,), "nothing becomes empty by scaling"


@pytest.mark.parametrize(
    ("rows", "message", "hint"),
    [
        ([hashed(0, 513, [1])], r"m:1: 1 hash_ids for 513 tokens, 2 blocks of 512", "block_size"),
        ([hashed(0, 502, list(range(32)))], r"m:1: 32 hash_ids for 502 tokens, 1 blocks", "16 would fit this row"),
        ([hashed(0, 512, [])], r"m:1: 0 hash_ids for 512 tokens, 1 blocks", "block_size"),
        ([hashed(5, 1, [1]), hashed(4, 1, [1])], r"m:2: timestamp went back from 5 ms to 4 ms", "sort"),
        ([hashed(1.7e9, 1, [1])], r"m:1: timestamp 1.7e\+09 is a date of our time in s", '"s"'),
        ([{**hashed(0, 1, [1]), "input_length": "7"}], r"m:1: input_length is '7'", None),
        ([hashed(0, 1, [1]), hashed(1e30, 1, [1])], r"m:2: timestamp is '1e\+30', no time is so far", "unit"),
        ([hashed(0, 1, [1]), hashed(10**400, 1, [1])], r"m:2: timestamp is 'a number of 1329 bits'", "unit"),
        ([hashed(0, 1, [1]), hashed(1e19, 1, [1])], r"m:2: timestamp is \d+ years from 1970", "unit"),
        ([hashed(0, 1, [1]), hashed(8e12, 1, [1])], r"m: time from the first session to the last is 3 cent", "unit"),
        ([hashed(0, 10**12, [1])], r"m:1: input_length is 1000000000000, the most is 1,000,000,000", "column"),
        ([hashed(0, 1e30, [1])], r"m:1: input_length is 10000000000\d+, the most", "column"),
        ([{**hashed(0, 1, [1]), "output_length": 10**400}], r"m:1: output_length is a number of 1329 bits", "column"),
        ([{**hashed(0, 1, [1]), "output_length": -1}], r"m:1: output_length is '-1'", None),
        ([{**hashed(0, 1, [1]), "input_length": float("inf")}], r"m:1: is not JSON", None),
        ([hashed(0, 1, [1]), hashed(None, 1, [1])], r"m:2: timestamp is missing", "before this one"),
        ([hashed(None, 1, [1]), hashed(0, 1, [1])], r"m:2: has a timestamp", "before this one"),
        ([{**hashed(0, 1, [1]), "hash_ids": [1.5]}], r"m:1: hash_ids is no list", "format"),
        ([{**hashed(0, 1, [1]), "hash_ids": [10**400]}], r"m:1: hash_ids is no list", "format"),
        ([{**hashed(0, 1, [1]), "hash_ids": [True]}], r"m:1: hash_ids is no list", "format"),
        ([hashed(0, 1, [1]), 5], r"m:2: is a int, not an object", "format"),
        (
            [{"timestamp": 0, "output_length": 5}],
            r"m:1: has none of input_length, .* \(keys: output_length, t",
            "format",
        ),
        ([{"timestamp": 0, "text_input": "a", "messages": [USER]}], r"m:1: has messages and text_input", "one of them"),
        ([{"timestamp": 0, "text_input": ["a"]}], r"m:1: text_input is a list", "messages"),
        ([{"timestamp": 0, "payload": "{}"}], r"m:1: payload is a str", "body"),
        ([{"timestamp": "noon", "text_input": "a"}], r"m:1: timestamp is a string of 4 characters that is no", "date"),
        ([hashed(0, 1, [1], session_id=[1])], r"m:1: session_id is a list", "format"),
        ([hashed(0, 1, [1], session_id=10**30)], r"m:1: session_id is a int, a string or a 64-bit", "format"),
        ([hashed(0, 1, [1], extra=3)], r"m:1: extra is a int, an object is wanted", "format"),
        ([hashed(0, 0, [])], "none of 1 rows can be sent: no_input", None),
    ],
)
def test_faults(tmp_path, rows, message, hint):
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(write(tmp_path / "m", *rows), format="mooncake")
    assert hint is None or hint in (caught.value.hint or "")


def test_epoch_milliseconds_and_dates_are_taken_from_the_first_row(tmp_path):
    path = write(tmp_path / "m", hashed(1.7e12, 1, [1]), hashed(1.7e12 + 250, 1, [1]))
    assert list(open_trace(path).arrivals_ns or ()) == [0, 250_000_000]
    dates = [{**hashed(0, 1, [1]), "timestamp": f"2026-01-31T12:00:0{second}Z"} for second in (1, 3)]
    assert list(open_trace(write(tmp_path / "d", *dates)).arrivals_ns or ()) == [0, 2_000_000_000]


def test_a_file_without_times_has_none(tmp_path):
    trace = open_trace(write(tmp_path / "m", hashed(None, 5, [1]), hashed(None, 5, [2], timestamp=None)))
    assert (trace.sessions, trace.arrivals_ns) == (2, None)


def test_tr_03_seconds_read_as_milliseconds_stop_the_run(tmp_path):
    """TR-03: a mean rate that no service has is refused; the option names the unit."""
    path = write(tmp_path / "m", *(hashed(k / 4, 5, [1]) for k in range(200)))
    with pytest.raises(TraceError, match="4000 per second on average") as caught:
        open_trace(path)
    assert '"s"' in (caught.value.hint or "")
    assert describe(open_trace(path, options={"unit": "s"})).mean_rate == pytest.approx(4.0)


def test_tr_03_milliseconds_read_as_seconds_are_warned_of(tmp_path):
    path = write(tmp_path / "m", *(hashed(at, 5, [1]) for at in (0, 10_535, 27_482)))
    assert open_trace(path).warnings == ()
    slow = open_trace(path, options={"unit": "s"})
    assert describe(slow).line().startswith("3 rows, 3 sessions, span 7 h 38 m")
    path = write(tmp_path / "m", *(hashed(at, 5, [1]) for at in (0, 10_535_000, 27_482_000)))
    assert "unit may be wrong" in open_trace(path, options={"unit": "s"}).warnings[0]


# ------------------------------------------------------------------------------------------------ rows that are turns


def test_golden_sessions_by_lengths():
    trace = open_trace("mooncake.sessions.jsonl", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped, trace.warnings) == (5, 2, {}, ())
    kiln, loom = trace.session(0), trace.session(1)
    assert (kiln.session_id, kiln.arrival_ns, delays_ms(kiln)) == ("kiln", 0, [0, 1800, 5200])
    assert [turn.replaces_history for turn in kiln.turns] == [True, True, True]
    assert [turn.texts[0] and turn.texts[0].ids for turn in kiln.turns] == [(0, 1), (0, 2, 3), (0, 2, 4)]
    assert (loom.session_id, loom.arrival_ns, delays_ms(loom)) == ("loom", 250_000_000, [0, 900.5])
    assert [turn.replaces_history for turn in loom.turns] == [False, False]
    assert [turn.asked_prompt_tokens for turn in loom.turns] == [90, 90 + 40 + 30]
    assert loom.turns[0].answer_text is not None
    assert loom.turns[0].answer_text.tokens == (40,)
    first, second = requests(trace, 1)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[0] == first[0]


def talk(count: int) -> list[dict[str, object]]:
    return [{"role": ("user", "assistant")[k % 2], "content": str(k)} for k in range(count)]


def test_tr_01_cumulative_rows_are_whole_requests_and_compaction_is_sent_as_given(tmp_path):
    """TR-01: rows with 1, 3, 5, 3 (compacted), 5 messages ask for just that, with no history doubled."""
    compacted = [{"role": "user", "content": "summary"}, ANSWER, USER]
    given_messages = [talk(1), talk(3), talk(5), compacted, [*compacted, ANSWER, USER]]
    rows = [{"session_id": "s", "messages": messages, "output_length": 4} for messages in given_messages]
    trace = open_trace(write(tmp_path / "m", *rows), options={"rows": "cumulative"})
    assert requests(trace) == given_messages
    assert [turn.replaces_history for turn in trace.session(0).turns] == [True, False, False, True, False]
    assert any("compaction" in warning for warning in trace.warnings)


def test_tr_01_delta_rows_are_joined(tmp_path):
    rows = [
        {"session_id": "s", "messages": [USER], "tools": TOOLS, "output_length": 4},
        {"session_id": "s", "messages": [CALL, RESULT], "output_length": 4},
        {"session_id": "s", "messages": [{"role": "user", "content": "b"}, ANSWER], "output_length": 4},
        {"session_id": "s", "text_input": "c", "output_length": 4},
    ]
    trace = open_trace(write(tmp_path / "m", *rows), options={"rows": "deltas"})
    turns = trace.session(0).turns
    assert requests(trace)[-1] == [
        USER,
        CALL,
        RESULT,
        {"role": "assistant", "content": "live"},
        {"role": "user", "content": "b"},
        ANSWER,
        {"role": "user", "content": "c"},
    ], "an answer in the next row is the answer of the turn before; where the trace has none, the engine's is used"
    assert turns[0].recorded_answer == (CALL,)
    assert trace.session(0).tools == tuple(TOOLS)
    assert [turn.tools for turn in turns[1:]] == [None, None, None], "deltas keep the tools that were declared"


def test_a_whole_request_without_tools_has_none(tmp_path):
    rows = [
        {"session_id": "s", "payload": {"messages": [USER], "tools": TOOLS}},
        {"session_id": "s", "payload": {"messages": [USER, ANSWER, USER]}},
    ]
    trace = open_trace(write(tmp_path / "m", *rows), format="mooncake")
    assert trace.session(0).turns[1].tools == ()


@pytest.mark.parametrize(
    "rows", [[hashed(0, 5, [1]), hashed(None, 5, [1])], [{"text_input": "a"}, {"text_input": "b"}]]
)
def test_tr_01_rows_that_share_a_session_must_say_what_they_are(tmp_path, rows):
    path = write(tmp_path / "m", *({**row, "session_id": "s"} for row in rows))
    with pytest.raises(TraceError, match=r"m:1: rows of session_id 's' do not say what they are") as caught:
        open_trace(path, format="mooncake")
    assert "cumulative" in (caught.value.hint or "")
    for said in ("cumulative", "deltas"):
        assert open_trace(path, format="mooncake", options={"rows": said}).sessions == 1


@pytest.mark.parametrize(
    ("mode", "ids", "warning"),
    [
        ("cumulative", [[1, 2, 3], [1, 2, 4, 5]], None),
        ("cumulative", [[1, 2, 3], [6, 2, 4, 5]], "compaction"),
        ("deltas", [[1, 2, 3], [6, 7, 8]], None),
        ("deltas", [[1, 2, 3], [1, 2, 4]], "is it cumulative"),
    ],
)
def test_tr_01_hash_rows_are_held_against_what_they_are_read_as(tmp_path, mode, ids, warning):
    rows = [hashed(None, 512 * len(each) - 1, each, session_id="s", delay=1) for each in ids]
    del rows[0]["delay"]
    warnings = open_trace(write(tmp_path / "m", *rows), options={"rows": mode}).warnings
    assert [warning in each for each in warnings] == [True] if warning else warnings == ()


def turns_of_session(**more: object) -> dict[str, object]:
    return {"session_id": "s", "context_mode": "history", "input_length": 5, "output_length": 5, **more}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"timestamp": 0}, {"timestamp": 5, "delay": 200}], r"m:2: has delay and timestamp, which say different"),
        ([{"timestamp": 0, "delay": 200}], r"m:1: has delay and timestamp"),
        ([{"timestamp": 0}, {"delay": -1}], r"m:2: delay is -1, at least 0 is wanted"),
        ([{"timestamp": 0}, {"delay": 1e15}], r"m:2: the delay is \d+ centuries"),
        ([{"timestamp": 0}, {"delay": 5}, {"timestamp": 9}], r"m:3: has a timestamp, the row before it in its session"),
        ([{"timestamp": 7}, {"timestamp": 3}], r"m:2: timestamp went back from 7 ms to 3 ms"),
        ([{"timestamp": 0}, {"delay": "5"}], r"m:2: delay is '5', a number is wanted"),
        ([{"context_mode": "both"}], r"m:1: message_mode or context_mode is 'both'"),
    ],
)
def test_tr_09_times_of_turns_that_contradict_each_other(tmp_path, rows, message):
    """TR-09: a delay counts from the end of the previous answer; a time of day beside it contradicts it."""
    with pytest.raises(TraceError, match=message):
        open_trace(write(tmp_path / "m", *(turns_of_session(**row) for row in rows)))


def test_tr_09_delays_and_timestamps_of_turns(tmp_path):
    rows = [
        turns_of_session(timestamp=1000, delay=0) | {"delay": None},
        turns_of_session(delay=200),
        turns_of_session(),
        turns_of_session(session_id="t", timestamp=500),
        turns_of_session(session_id="t", timestamp=900.5),
        turns_of_session(session_id="t", timestamp=900.5),
    ]
    trace = open_trace(write(tmp_path / "m", *rows))
    assert [(s.session_id, s.arrival_ns) for s in map(trace.session, range(2))] == [("t", 0), ("s", 500_000_000)]
    assert [delays_ms(trace.session(index)) for index in (0, 1)] == [[0, 400.5, 0], [0, 200, 0]]
    assert trace.warnings == (
        "a later row of a session has neither delay nor timestamp: sent at the end of the answer before",
        "a session's delays are the times between its requests, answers included: no durations are known",
    )
    assert delays_ms(open_trace(write(tmp_path / "m", *rows[:2]), options={"unit": "s"}).session(0)) == [0, 200_000]


def test_the_delay_of_a_first_row_is_not_kept(tmp_path):
    trace = open_trace(write(tmp_path / "m", turns_of_session(delay=300)))
    assert delays_ms(trace.session(0)) == [0]
    assert trace.warnings == ("the delay of a session's first row has nothing to count from and is not kept",)


def test_a_whole_request_that_cannot_be_sent_leaves_its_time_to_the_next(tmp_path):
    rows = [turns_of_session(), turns_of_session(delay=100, output_length=0), turns_of_session(delay=30)]
    trace = open_trace(write(tmp_path / "m", *rows))
    assert (trace.rows, trace.sessions, trace.skipped) == (3, 1, {"no_output": 1})
    assert delays_ms(trace.session(0)) == [0, 130]


def test_a_delta_that_cannot_be_sent_ends_its_whole_session(tmp_path):
    lost = [turns_of_session(context_mode="delta", output_length=size) for size in (5, 0, 5)]
    trace = open_trace(write(tmp_path / "m", turns_of_session(session_id="t"), *lost))
    assert (trace.rows, trace.sessions, trace.skipped) == (4, 1, {"no_output": 3})


def test_limit_takes_all_turns_of_the_first_sessions(tmp_path):
    rows = [turns_of_session(session_id=name) for name in "abcab"]
    trace = open_trace(write(tmp_path / "m", *rows), limit=2)
    assert [trace.session(index).turn_count for index in (0, 1)] == [2, 2]
    assert (trace.rows, trace.sessions) == (4, 2)


# ------------------------------------------------------------------------------------------ properties, real files

LENGTHS = st.integers(0, 3000)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["hash", "length", "text", "messages", "payload"]),
        st.sampled_from([None, "a", "b", 7]),
        st.integers(0, 50),
        LENGTHS,
        LENGTHS,
    ),
    min_size=1,
    max_size=12,
)


def shaped(rows: list[tuple[str, object, int, int, int]]) -> list[dict[str, object]]:
    """Rows in order of time; of a session the first has a timestamp, the others delays."""
    begun: set[object] = set()
    found = []
    at = 0
    for kind, name, step, prompt, output in rows:
        at += step
        row: dict[str, object] = {"timestamp": at} if name is None or name not in begun else {"delay": step}
        begun.add(name)
        if name is not None:
            row["session_id"] = name
        if kind in ("hash", "length"):
            row |= {"input_length": prompt, "output_length": output}
            row |= {"hash_ids": [step * 31 + k for k in range(-(-prompt // 64))]} if kind == "hash" else {}
        elif kind == "text":
            row |= {"text_input": f"t{prompt}", "output_length": output}
        else:
            messages = talk(1 + 2 * (prompt % 4))
            row |= {"messages": messages} if kind == "messages" else {"payload": {"messages": messages, "seed": step}}
        found.append(row)
    return found


@settings(deadline=None, max_examples=60)
@given(rows=ROWS, mode=st.sampled_from(["cumulative", "deltas"]))
def test_any_such_file_is_kept_whole_by_the_normal_form(tmp_path_factory, rows, mode):
    folder = tmp_path_factory.mktemp("m")
    path = write(folder / "m", *shaped(rows))
    try:
        trace = open_trace(path, format="mooncake", options={"rows": mode, "block_size": 64})
    except TraceError as error:
        assert "rows can be sent" in str(error)
        return
    assert trace.sessions is not None
    sessions = [trace.session(index) for index in range(trace.sessions)]
    assert trace.rows == len(rows) == sum(session.turn_count for session in sessions) + sum(trace.skipped.values())
    with (folder / "n").open("wb") as file:
        normal.write(file, sessions)
    again = open_trace(str(folder / "n"))
    assert [again.session(index) for index in range(trace.sessions)] == sessions
    assert list(again.arrivals_ns or ()) == list(trace.arrivals_ns or ())
    for index in range(trace.sessions):
        assert len(requests(trace, index)) == sessions[index].turn_count


@pytest.mark.parametrize(
    ("name", "rows", "bound", "stamps"),
    [("conversation_trace", 12_031, 0.374, 1_180), ("synthetic_trace", 3_993, 0.651, 3_982)],
)
def test_figures_of_the_published_files(shared, name, rows, bound, stamps):
    trace = open_trace(str(shared / "traces" / "mooncake" / f"{name}.jsonl"))
    described = describe(trace)
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("mooncake", rows, rows, {})
    assert described.cache_bound == pytest.approx(bound, abs=5e-4)
    assert described.ticks == stamps


def test_lengths_and_ticks_of_the_published_conversations(shared):
    described = describe(open_trace(str(shared / "traces" / "mooncake" / "conversation_trace.jsonl")))
    for lengths, wanted in (
        (described.prompt_tokens, (12035, 6909, 27370, 85400)),
        (described.output_tokens, (343, 350, 597, 1119)),
    ):
        assert lengths is not None
        assert (lengths.mean, lengths.p50, lengths.p90, lengths.p99) == pytest.approx(wanted, rel=2e-3, abs=0.51)
    assert described.peak_rate == 28
    assert described.line().startswith("12,031 rows, 12,031 sessions, span 58 min 57 s, mean 3.4/s, peak 28/s")
