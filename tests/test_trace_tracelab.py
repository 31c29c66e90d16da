"""TraceLab: the replay CSV and the rounds; contexts that grow by lengths."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces import Conversation, Synthesizer, Trace, open_trace
from infersiege.traces.formats import normal

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
HEADER = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"


def all_of(trace: Trace) -> list[Session]:
    assert trace.sessions is not None
    return [trace.session(index) for index in range(trace.sessions)]


def csv_of(path: Path, *rows: str) -> Trace:
    path.write_text(HEADER + "".join(row + "\n" for row in rows))
    return open_trace(str(path))


def requests(session: Session) -> list[list[tuple[str, str]]]:
    """(role, text) of each request's messages, as they are sent with recorded answers."""
    conversation = Conversation(session, synthesizer=Synthesizer(1))
    sent = []
    while (turn := conversation.next_turn()) is not None:
        sent.append([(message["role"], message["content"]) for message in turn.messages])
        conversation.answered("from the engine")
    return sent


def test_the_replay_example_becomes_exactly_this():
    trace = open_trace("tracelab-replay.csv", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped) == (7, 2, {})
    assert trace.warnings == ("rounds whose prefix_len is less than their session held: the history is cut",)
    assert list(trace.arrivals_ns or ()) == [0, 860_000_000]
    kiln, glaze = all_of(trace)
    assert (kiln.session_id, kiln.source_line, glaze.source_line) == ("kiln", 2, 3)
    # tool_wait_after_ms delays the round after it, and the last one's delays nothing.
    assert [turn.delay_ns for turn in kiln.turns] == [0, 250_000_000, 125_500_000]
    assert [turn.asked_prompt_tokens for turn in kiln.turns] == [600, 730, 794]
    assert [turn.asked_output_tokens for turn in kiln.turns] == [50, 40, 16]
    assert [turn.replaces_history for turn in glaze.turns] == [False, False, True, False]
    assert [turn.asked_prompt_tokens for turn in glaze.turns] == [420, 585, 650, 687]
    cut = glaze.turns[2]
    assert [message["role"] for message in cut.messages] == ["user", "assistant", "user"]
    assert [text.tokens for text in cut.texts if text] == [(420,), (20,), (210,)], "440 of 645 tokens were kept"
    sent = requests(glaze)
    assert sent[2][0] == sent[1][0] == sent[0][0], "what is kept is sent as it was, to its last word"
    assert sent[1][1][1].startswith(sent[2][1][1]) and sent[2][1][1]


def test_every_request_begins_with_what_was_there_before(shared):
    """An engine's prefix cache can find what the recording's could: the request before and its answer."""
    trace = open_trace(str(shared / "traces" / "tracelab" / "replay.multi_session_large.csv"))
    assert (trace.rows, trace.sessions, trace.skipped, trace.warnings) == (303, 48, {}, ())
    for session in all_of(trace)[:8]:
        sent = requests(session)
        for before, after in pairwise(sent):
            assert after[: len(before)] == before
            assert [role for role, _ in after[len(before) :]] == ["assistant", "user"]
    lengths = [turn.asked_prompt_tokens for session in all_of(trace) for turn in session.turns]
    recorded = [
        int(prefix) + int(new)
        for _, _, _, prefix, new, *_ in (line.split(",") for line in (trace_lines(shared)))
    ]  # fmt: skip
    assert sorted(lengths) == sorted(recorded)


def trace_lines(shared: Path) -> list[str]:
    return (shared / "traces" / "tracelab" / "replay.multi_session_large.csv").read_text().splitlines()[1:]


def test_tr_01_a_shrinking_history_is_sent_as_it_was(tmp_path):
    session = csv_of(
        tmp_path / "a.csv", "a,0,0,0,100,10,0", "a,0,1,110,50,10,0", "a,0,2,30,5,8,0", "a,0,3,0,40,8,0"
    ).session(0)
    assert [turn.replaces_history for turn in session.turns] == [False, False, True, True]
    first, second, third, fourth = requests(session)
    assert len(second) == 3 and second[0] == first[0]
    # 30 of the first message's 100 tokens and 5 new ones, in one message: templates refuse two of a user's in a row.
    assert len(third) == 1 and third[0][0] == "user"
    kept = third[0][1].split("\n")[0]
    assert first[0][1].startswith(kept) and len(kept) > 50
    assert [turn.asked_prompt_tokens for turn in session.turns] == [100, 160, 35, 40]
    assert not fourth[0][1].startswith(kept[:20]), "a prefix of 0 keeps nothing"


def test_a_prefix_that_is_longer_than_what_was_held_is_new_text(tmp_path):
    trace = csv_of(tmp_path / "a.csv", "a,0,0,500,100,10,0", "a,0,1,700,5,8,0")
    assert [turn.asked_prompt_tokens for turn in trace.session(0).turns] == [600, 705]
    assert [turn.replaces_history for turn in trace.session(0).turns] == [False, False]
    assert trace.warnings == (
        "rounds whose prefix_len is more than their session held: the rest is new text (2 times)",
    )


def test_rounds_that_cannot_be_sent_are_skipped_and_their_text_goes_on(tmp_path):
    trace = csv_of(
        tmp_path / "a.csv",
        "a,0,0,0,100,10,50",
        "a,0,1,110,40,0,25",  # failed: its 40 tokens are in the next round's prefix
        "a,0,2,150,7,9,0",
        "b,10,0,0,0,5,0",
        "c,20,0,0,30,0,0",
        "d,30,0,0,30,4,0",
        "d,30,1,34,9,0,0",  # failed, and taken back
        "d,30,2,34,6,2,0",
    )
    assert trace.skipped == {"no_output": 3, "no_input": 1}
    assert trace.rows == 8 == sum(len(session.turns) for session in all_of(trace)) + sum(trace.skipped.values())
    first, last = all_of(trace)
    assert [turn.asked_prompt_tokens for turn in first.turns] == [100, 157]
    assert first.turns[1].texts[0] is not None and first.turns[1].texts[0].tokens == (40, 7)
    assert first.turns[1].delay_ns == 75_000_000
    assert [(turn.asked_prompt_tokens, turn.replaces_history) for turn in last.turns] == [(30, False), (40, False)]


MALFORMED_CSV = [
    ("a,0,0,0,1,1", ":2: has 6 columns, 7 are wanted"),
    ("a,x,0,0,1,1,0", ":2: arrival_time is a text of 1 characters, a number is wanted"),
    ("a,0,0,0,1.5,1,0", ":2: input_len is '1.5', a whole number is wanted"),
    ("a,0,0,0,1,1,", ":2: tool_wait_after_ms is '', a number is wanted"),
    ("a,0,0,0,-1,1,0", ":2: input_len is -1, a number of at least 0 is wanted"),
    ("a,0,0,0,1,1,-5", ":2: tool_wait_after_ms is -5, milliseconds from 0 to a century are wanted"),
    ("a,0,0,0,1,1,nan", ":2: tool_wait_after_ms is nan, milliseconds from 0 to a century are wanted"),
    ("a,-3,0,0,1,1,0", ":2: arrival_time is -3, milliseconds from 0 to a century are wanted"),
    ("a,0,0,0,5000000000,1,0", ":2: input_len is 5000000000, the most is 1,000,000,000"),
    ("a,0,1,0,1,1,0\nb,0,0,0,1,1,0\na,0,1,2,1,1,0", ":4: round_idx 1 of session 'a' comes after 1"),
    ("a,0,0,0,1,1,0\nb,0,0,0,1", ":3: has 5 columns, 7 are wanted"),
]


@pytest.mark.parametrize(("rows", "message"), MALFORMED_CSV, ids=[row[1][:50] for row in MALFORMED_CSV])
def test_malformed_rows_are_told_with_their_line(tmp_path, rows, message):
    with pytest.raises(TraceError) as caught:
        csv_of(tmp_path / "a.csv", rows)
    assert str(caught.value).startswith(f"{tmp_path / 'a.csv'}{message}")


def test_columns_may_stand_in_any_order_and_others_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(
        b"\xef\xbb\xbfuser,output_len,session_id,round_idx,arrival_time,tool_wait_after_ms,prefix_len,input_len\r\n"
        b"u,7,a,0,10,0,0,9\r\n"
    )
    trace = open_trace(str(path))
    assert [(t.asked_prompt_tokens, t.asked_output_tokens) for t in trace.session(0).turns] == [(9, 7)]
    assert trace.warnings == ("column 'user' is not sent",)
    path.write_text("session_id,round_idx,prefix_len,input_len,output_len\n")
    with pytest.raises(TraceError, match=r"a\.csv:1: column 'arrival_time' is missing in the header"):
        open_trace(str(path))
    path.write_text(HEADER)
    with pytest.raises(TraceError, match="the file has no rows"):
        open_trace(str(path))
    path.write_bytes(HEADER.encode() + b"\xff,0,0,0,1,1,0\n")
    with pytest.raises(TraceError, match=r"a\.csv:2: is not UTF-8"):
        open_trace(str(path))


def test_scales_are_applied_once_to_each_part(tmp_path):
    csv_of(tmp_path / "a.csv", "a,0,0,0,100,10,0", "a,0,1,110,50,30,0")
    session = open_trace(str(tmp_path / "a.csv"), length_scale=0.5, output_scale=2).session(0)
    assert [turn.asked_prompt_tokens for turn in session.turns] == [50, 50 + 20 + 25]
    assert [turn.asked_output_tokens for turn in session.turns] == [20, 60]
    assert session.turns[0].answer_text is not None and session.turns[0].answer_text.tokens == (20,)


def again(folder: Path, sessions: list[Session]) -> list[Session]:
    buffer = io.BytesIO()
    normal.write(buffer, sessions)
    (folder / "normal.jsonl").write_bytes(buffer.getvalue())
    return all_of(open_trace(str(folder / "normal.jsonl")))


COUNTS = st.tuples(st.integers(0, 300), st.integers(0, 60), st.integers(0, 40), st.integers(0, 900))


@given(st.lists(st.lists(COUNTS, min_size=1, max_size=6), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_replay_rows_are_sent_or_skipped_and_normal_form_keeps_them(tmp_path_factory, sessions, random):
    folder = tmp_path_factory.mktemp("replay")
    queues = [
        [f"s{name},{name * 900},{number},{','.join(map(str, row))}" for number, row in enumerate(rounds)]
        for name, rounds in enumerate(sessions)
    ]
    rows = []
    while any(queues):
        rows.append(random.choice([queue for queue in queues if queue]).pop(0))
    if not any(new and output for rounds in sessions for _, new, output, _ in rounds):
        return
    trace = csv_of(folder / "a.csv", *rows)
    made = all_of(trace)
    assert trace.rows == len(rows) == sum(len(session.turns) for session in made) + sum(trace.skipped.values())
    for session in made:
        rounds = [row for row in sessions[int(session.session_id[1:])] if row[1] and row[2]]
        assert [turn.asked_prompt_tokens for turn in session.turns] == [prefix + new for prefix, new, _, _ in rounds]
        assert [turn.asked_output_tokens for turn in session.turns] == [output for _, _, output, _ in rounds]
        held = 0
        for turn in session.turns:
            texts = sum(sum(text.tokens) for text in turn.texts if text)
            held = texts if turn.replaces_history else held + texts
            assert held == turn.asked_prompt_tokens, "what is sent is what is said to be sent"
            roles = [message["role"] for message in turn.messages]
            assert all(one != next_one for one, next_one in pairwise(roles))
            held += sum(turn.answer_text.tokens) if turn.answer_text else 0
    assert again(folder, made) == made


# The rounds.


def stamp(seconds: float) -> str:
    return f"2026-03-02T09:00:{seconds:06.3f}Z"


def round_of(
    number: int, total: int, cached: int, output: int, *events: tuple[str, float], **more: Any
) -> dict[str, Any]:
    return {
        "session_id": "a", "round_index": number, "provider": "p", "model": "m", "input_tokens_total": total,
        "prefix_tokens": cached, "newly_append_tokens": total - cached, "output_tokens": output,
        "timing_events": [{"event_type": kind, "timestamp": stamp(at)} for kind, at in events], **more,
    }  # fmt: skip


def rounds_of(path: Path, *rows: Any, options: dict[str, object] | None = None) -> Trace:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_trace(str(path), format="tracelab-rounds", options=options)


def test_the_rounds_example_becomes_exactly_this():
    trace = open_trace("tracelab-rounds.jsonl", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped) == (6, 2, {})
    assert list(trace.arrivals_ns or ()) == [0, 1_000_000_000]
    moss, fern = all_of(trace)
    assert [turn.asked_prompt_tokens for turn in moss.turns] == [900, 1010, 800, 850]
    assert [turn.asked_output_tokens for turn in moss.turns] == [50, 40, 25, 15]
    # From the last event of an answer to the last input of the round after it: the tool, then the user.
    assert [turn.delay_ns / 1e9 for turn in moss.turns] == [0, 1.5, 30, 5]
    assert [turn.replaces_history for turn in moss.turns] == [False, False, True, False]
    assert [message["role"] for message in moss.turns[0].messages] == ["system", "user"]
    # What the first rounds found in the cache is the same text in both sessions; the rest is not.
    for session in (moss, fern):
        assert [text.tokens for text in session.turns[0].texts if text] == [
            (600,),
            (session.turns[0].asked_prompt_tokens - 600,),
        ]
    assert moss.turns[0].texts[0] == fern.turns[0].texts[0]
    assert moss.turns[0].texts[1].scope != fern.turns[0].texts[1].scope
    # The cut history: 640 tokens were in the cache, so they are the beginning of what was held.
    assert [text.tokens for text in moss.turns[2].texts if text] == [(600,), (40, 160)]


def test_a_cache_that_forgot_is_no_shorter_history(tmp_path):
    trace = rounds_of(tmp_path / "a.jsonl", round_of(0, 100, 0, 10), round_of(1, 150, 0, 10), round_of(2, 200, 64, 9))
    assert [turn.replaces_history for turn in trace.session(0).turns] == [False, False, False]
    assert [turn.asked_prompt_tokens for turn in trace.session(0).turns] == [100, 150, 200]
    assert trace.warnings == ("rounds without the time of an input follow the one before without a delay (3 times)",)


def test_the_shared_prefix_can_be_turned_off(tmp_path):
    rows = (round_of(0, 100, 80, 10, ("user_message", 1)), round_of(0, 90, 80, 10, ("user_message", 2), session_id="b"))
    on = all_of(rounds_of(tmp_path / "a.jsonl", *rows))
    assert on[0].turns[0].texts[0] == on[1].turns[0].texts[0]
    off = all_of(rounds_of(tmp_path / "a.jsonl", *rows, options={"shared_prefix": False}))
    assert [message["role"] for message in off[0].turns[0].messages] == ["user"]
    assert len({session.turns[0].texts[0].scope for session in off}) == 2


def test_rounds_without_counts_are_skipped(tmp_path):
    trace = rounds_of(
        tmp_path / "a.jsonl", round_of(0, 100, 0, 10), round_of(1, 0, 0, 10),
        round_of(2, 200, 110, 0), round_of(3, 210, 110, 4) | {"prefix_tokens": None},
        round_of(0, 100, 0, 10, session_id="b") | {"output_tokens": None},
    )  # fmt: skip
    assert trace.skipped == {"no_input": 1, "no_output": 2}
    assert [turn.asked_prompt_tokens for turn in trace.session(0).turns] == [100, 210]


GOOD = round_of(0, 100, 50, 10, ("user_message", 1))
MALFORMED_ROUNDS = [
    ([], "a.jsonl:1: is a list, not an object"),
    (GOOD | {"session_id": 4}, "a.jsonl:1: session_id is no text"),
    (GOOD | {"round_index": -1}, "a.jsonl:1: round_index is '-1', a whole number"),
    (GOOD | {"input_tokens_total": "9"}, "a.jsonl:1: input_tokens_total is '9', a whole number"),
    ({k: v for k, v in GOOD.items() if k != "output_tokens"}, "a.jsonl:1: output_tokens is missing"),
    (GOOD | {"prefix_tokens": 101}, "a.jsonl:1: prefix_tokens is 101, more than the 100 of input_tokens_total"),
    (GOOD | {"timing_events": [1]}, "a.jsonl:1: timing_events is no list of objects"),
    (
        GOOD | {"timing_events": [{"timestamp": "noon"}]},
        "a.jsonl:1: a timing event's timestamp is a string of 4 characters that is no date",
    ),
    (GOOD | {"timing_events": [{"timestamp": 17}]}, "a.jsonl:1: a timing event's timestamp is no string, a date"),
]


@pytest.mark.parametrize(("row", "message"), MALFORMED_ROUNDS, ids=[row[1][11:60] for row in MALFORMED_ROUNDS])
def test_malformed_rounds_are_told_with_their_line(tmp_path, row, message):
    with pytest.raises(TraceError) as caught:
        rounds_of(tmp_path / "a.jsonl", row)
    assert message in str(caught.value)
    with pytest.raises(TraceError, match=r"a\.jsonl:2: round_index 0 of session 'a' comes after 0"):
        rounds_of(tmp_path / "a.jsonl", GOOD, GOOD)


ROUNDS = st.lists(
    st.tuples(
        st.integers(0, 200), st.integers(0, 200), st.integers(0, 30), st.lists(
            st.tuples(st.sampled_from(["user_message", "tool_result", "text", "usage_report"]), st.integers(0, 59)),
            max_size=3,
        ),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@given(ROUNDS)
@settings(max_examples=40, deadline=None)
def test_rounds_are_sent_or_skipped_and_normal_form_keeps_them(tmp_path_factory, rounds):
    folder = tmp_path_factory.mktemp("rounds")
    rows = [round_of(n, a + b, a, output, *events) for n, (a, b, output, events) in enumerate(rounds)]
    sent = [(a + b, output) for a, b, output, _ in rounds if a + b and output]
    if not sent:
        return
    trace = rounds_of(folder / "a.jsonl", *rows)
    session = trace.session(0)
    assert [(turn.asked_prompt_tokens, turn.asked_output_tokens) for turn in session.turns] == sent
    assert trace.rows == len(rows) == len(session.turns) + sum(trace.skipped.values())
    assert all(turn.delay_ns >= 0 for turn in session.turns)
    assert again(folder, [session]) == [session]


@pytest.mark.parametrize("name", ["derived", "sanitized"])
def test_real_rounds_share_at_least_what_the_recording_cached(shared, name):
    path = shared / "traces" / "tracelab" / f"{name}.round_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    trace = open_trace(str(path))
    assert (trace.rows, trace.sessions, trace.skipped, trace.warnings) == (19, 2, {}, ())
    made = {session.session_id: session for session in all_of(trace)}
    for session in made.values():
        recorded = [row for row in rows if row["session_id"] == session.session_id]
        assert [turn.asked_prompt_tokens for turn in session.turns] == [row["input_tokens_total"] for row in recorded]
        assert [turn.asked_output_tokens for turn in session.turns] == [row["output_tokens"] for row in recorded]
        sent = requests(session)
        for at, row in enumerate(recorded[1:], 1):
            earlier, request = as_text(sent[at - 1]), as_text(sent[at])
            common = next(
                (n for n, pair in enumerate(zip(earlier, request, strict=False)) if pair[0] != pair[1]), len(earlier)
            )
            share = common / len(request)
            cached = row["prefix_tokens"] / row["input_tokens_total"]
            # The answer before is in the recording's cache at times, too; texts are as long as the tokens within 1 %.
            assert share > cached - 0.06, (session.session_id, at)
    claude = next(session for ident, session in made.items() if ident.startswith("claude"))
    # WebSearch took 19.291 s; its result is what the next round waited for.
    assert [turn.delay_ns // 1_000_000 for turn in claude.turns[:3]] == [0, 19_291, 12_688]


def as_text(messages: list[tuple[str, str]]) -> str:
    return "\0".join(text for _, text in messages)
