"""Traces of lengths: Azure, BurstGPT and Qwen-Bailian; what each row becomes, is refused, skipped and warned for."""

from __future__ import annotations

import json
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.records import BlockText, Session, Turn
from infersiege.traces import Conversation, Synthesizer, Trace, describe, open_trace
from infersiege.traces.files.row_groups import Places, came_before, grouped
from infersiege.traces.files.source import Row
from infersiege.traces.files.stamps import stamp_ns
from infersiege.traces.formats import normal
from infersiege.traces.sessions.lengths import scaled_blocks, together_blocks
from infersiege.traces.trace import ReadOptions

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"


def table(path: Path, header: str, *rows: str) -> str:
    """A CSV file as Azure's are: CR LF, no final newline."""
    path.write_bytes("\r\n".join([header, *rows]).encode())
    return str(path)


def sessions(trace: Trace) -> list[Session]:
    assert trace.sessions is not None
    return [trace.session(index) for index in range(trace.sessions)]


def lengths(session: Session) -> list[tuple[int | None, int | None, float]]:
    """Prompt and output tokens, and delay in seconds, of each turn."""
    return [(turn.asked_prompt_tokens, turn.asked_output_tokens, turn.delay_ns / 1e9) for turn in session.all_turns()]


def roles(session: Session) -> list[list[str]]:
    """Of each request."""
    conversation = Conversation(session, synthesizer=Synthesizer(1))
    found = []
    while (turn := conversation.next_turn()) is not None:
        found.append([message["role"] for message in turn.messages])
        conversation.answered("live")
    return found


def kept_by_the_normal_form(trace: Trace, path: Path) -> None:
    given_sessions = sessions(trace)
    with path.open("wb") as file:
        normal.write(file, given_sessions)
    again = open_trace(str(path))
    assert sessions(again) == given_sessions
    assert list(again.arrivals_ns or ()) == list(trace.arrivals_ns or ())


# ------------------------------------------------------------------------------------------------ Azure

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-11-16 18:15:46.6805900", 1700158546_680590000),
        ("2023-11-16 18:15:46.6805901", 1700158546_680590100),
        ("2023-11-16 18:15:46", 1700158546_000000000),
        ("2023-11-16 18:15:46.5+00:00", 1700158546_500000000),
        ("2023-11-16T19:15:46.5+01:00", 1700158546_500000000),
        ("2023-11-16T18:15:46Z", 1700158546_000000000),
        ("1969-12-31 23:59:59.5", -500000000),
    ],
)
def test_azure_stamps(text, expected):
    assert stamp_ns(text) == expected


@pytest.mark.parametrize("text", ["", "18:15", "2023-13-16 18:15:46", "2023-11-16 18:15:46.12345678901", "1700158546"])
def test_azure_stamps_that_are_none(text):
    with pytest.raises(ValueError, match=r"."):
        stamp_ns(text)


def test_azure_golden_example():
    trace = open_trace("azure.csv", base=EXAMPLES)
    assert trace.sha256 is not None
    scope = f"azure:{trace.sha256[:16]}"
    assert (trace.format, trace.rows, trace.sessions, trace.skipped, trace.warnings) == ("azure", 3, 3, {}, ())
    assert list(trace.arrivals_ns or ()) == [0, 740_758_000, 1_990_758_000]
    assert trace.session(1) == Session(
        session_id="line-3",
        arrival_ns=740_758_000,
        source_line=3,
        turns=(
            Turn(
                messages=({"role": "user", "content": ""},),
                texts=(BlockText(scope=scope, ids=(3,), tokens=(1250,)),),
                answer_text=BlockText(scope=f"{scope}/answer", ids=(3,), tokens=(110,)),
                asked_prompt_tokens=1250,
                asked_output_tokens=110,
            ),
        ),
    )


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("GeneratedTokens,TIMESTAMP,ContextTokens", "44,2023-11-16 18:15:46.6805900,374"),
        ('"TIMESTAMP","ContextTokens","GeneratedTokens"', '"2023-11-16 18:15:46","374","44"'),
        ("TIMESTAMP, ContextTokens, GeneratedTokens", "2023-11-16 18:15:46, 374, 44"),
        (AZURE, "2023-11-16 18:15:46,374.0,44"),
    ],
)
def test_azure_columns_are_found_by_their_names(tmp_path, header, row):
    trace = open_trace(table(tmp_path / "a.csv", header, row))
    assert lengths(trace.session(0)) == [(374, 44, 0)]


def test_azure_crlf_without_a_final_newline(tmp_path):
    rows = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109", "2023-11-16 18:15:51,7,0"]
    trace = open_trace(table(tmp_path / "a.csv", AZURE, *rows))
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("azure", 3, 2, {"no_output": 1})
    assert list(trace.arrivals_ns or ()) == [0, 4_314_579_000]
    assert [session.source_line for session in sessions(trace)] == [2, 3]


def test_azure_images_cannot_be_sent_and_are_told():
    trace = open_trace("azure.images.csv", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped) == (3, 3, {})
    assert trace.warnings == ("the images of a row can't be sent, its tokens are sent as text (2 times)",)
    skipping = open_trace("azure.images.csv", base=EXAMPLES, options={"images": "skip"})
    assert (skipping.rows, skipping.sessions, skipping.skipped) == (3, 1, {"has_images": 2})


def test_azure_other_columns_are_named(tmp_path):
    path = table(tmp_path / "a.csv", AZURE + ",Region", "2023-11-16 18:15:46,1,1,west")
    assert open_trace(path).warnings == ("column 'Region' is not sent",)


def test_azure_lengths_are_scaled_once(tmp_path):
    path = table(tmp_path / "a.csv", AZURE, "2023-11-16 18:15:46,1000,40")
    assert lengths(open_trace(path, length_scale=0.5, output_scale=2).session(0)) == [(500, 80, 0)]


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (AZURE, ["2023-11-16 18:15:46,374"], "a.csv:2: has 2 columns, 3 are wanted"),
        (AZURE, ["2023-11-16 18:15:46,374,44,1"], "a.csv:2: has 4 columns"),
        (AZURE, ["yesterday,374,44"], "a.csv:2: TIMESTAMP is a string of 9 characters that is no date"),
        (AZURE, ["2023-11-16 18:15:46,many,44"], "a.csv:2: ContextTokens is a text of 4 characters, a whole number"),
        (AZURE, ["2023-11-16 18:15:46,1.5,44"], "a.csv:2: ContextTokens is '1.5', a whole number"),
        (AZURE, ["2023-11-16 18:15:46,-3,44"], "a.csv:2: ContextTokens is '-3', a whole number"),
        (AZURE, ["2023-11-16 18:15:46,inf,44"], "a.csv:2: ContextTokens is 'inf', a whole number"),
        (AZURE, ["2023-11-16 18:15:46,nan,44"], "a.csv:2: ContextTokens is 'nan', a whole number"),
        (AZURE, ["2023-11-16 18:15:46,,44"], "a.csv:2: ContextTokens is '', a whole number"),
        (AZURE, [f"2023-11-16 18:15:46,{10**30},44"], "a.csv:2: ContextTokens is 1000.*, the most is 1,000,000,000"),
        (AZURE, ["2023-11-16 18:15:46,1e30,44"], r"a.csv:2: ContextTokens is 1000.*, the most is 1,000,000,000"),
        (AZURE, [f"2023-11-16 18:15:46,1,{10**4000}"], "a.csv:2: GeneratedTokens is a number of 13288 bits, the most"),
        (AZURE, ["2023-11-16 18:15:46,1,1", "2023-11-16 18:15:45,1,1"], "a.csv:3: timestamp went back by 1 s"),
        (
            AZURE,
            ["0001-01-01 00:00:00,1,1", "9999-12-31 00:00:00,1,1"],
            "a.csv:3: time since the first row is 100",
        ),
        (AZURE, ["2023-11-16 18:15:46,1,1", '"' + "x" * 200_000 + '",1,1'], "a.csv:3: is no line of a CSV file"),
        (
            AZURE + ",NumImages",
            ["2023-11-16 18:15:46,1,1,x"],
            "a.csv:2: NumImages is a text of 1 characters",
        ),
        ("a,b", ["x"], "a.csv:1: the header has no column 'TIMESTAMP'"),
        (AZURE + ",TIMESTAMP", ["x"], "a.csv:1: the header has a column twice"),
        (AZURE, [], "a.csv: the file has no rows"),
        (AZURE, ["2023-11-16 18:15:46,0,1"], "none of 1 rows can be sent: no_input"),
    ],
)
def test_azure_faults(tmp_path, header, rows, message):
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(table(tmp_path / "a.csv", header, *rows), format="azure")
    assert caught.value.hint


# ------------------------------------------------------------------------------------------------ BurstGPT

NARROW = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
WIDE = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def wide(at: float, session: str, elapsed: float, prompt: int, output: int, log: str = "Conversation log") -> str:
    return f"{at},{session},{elapsed},GPT-4,{prompt},{output},{prompt + output},{log}"


def test_burstgpt_golden_example():
    trace = open_trace("burstgpt.csv", base=EXAMPLES)
    assert (trace.format, trace.rows, trace.sessions, trace.skipped, trace.warnings) == ("burstgpt", 3, 3, {}, ())
    assert list(trace.arrivals_ns or ()) == [0, 45_000_000_000, 45_000_000_000], "the clock begins with the first row"
    assert [lengths(session) for session in sessions(trace)] == [[(310, 22, 0)], [(1204, 188, 0)], [(95, 410, 0)]]


def test_burstgpt_golden_sessions():
    trace = open_trace("burstgpt.sessions.csv", base=EXAMPLES)
    assert trace.sha256 is not None
    scope = f"burstgpt:{trace.sha256[:16]}"
    assert (trace.rows, trace.sessions, trace.skipped) == (6, 3, {})
    assert trace.warnings == (
        "a later turn of a session is no longer than what came before it: it is a text of its own",
    )
    assert list(trace.arrivals_ns or ()) == [0, 5_000_000_000, 61_500_000_000]
    long, api, short = sessions(trace)
    assert lengths(long) == [(120, 300, 0), (470, 210, 48), (400, 90, 51)]
    assert lengths(api) == [(640, 35, 0)]
    assert lengths(short) == [(55, 80, 0), (180, 64, 0)], "sent before the answer's end: no delay, never less"
    assert long.turns[1] == Turn(
        messages=({"role": "user", "content": ""},),
        texts=(BlockText(scope=scope, ids=(4,), tokens=(470 - 120 - 300,)),),
        answer_text=BlockText(scope=f"{scope}/answer", ids=(4,), tokens=(210,)),
        delay_ns=48_000_000_000,
        asked_prompt_tokens=470,
        asked_output_tokens=210,
    )
    assert [turn.replaces_history for turn in long.turns] == [False, False, True]
    assert roles(long) == [["user"], ["user", "assistant", "user"], ["user"]]


def test_burstgpt_request_tokens_as_what_is_new():
    trace = open_trace("burstgpt.sessions.csv", base=EXAMPLES, options={"request_tokens": "new"})
    assert trace.warnings == ()
    assert lengths(trace.session(0)) == [(120, 300, 0), (890, 210, 48), (1500, 90, 51)]
    assert roles(trace.session(0))[-1] == ["user", "assistant", "user", "assistant", "user"]


def test_burstgpt_scaled_sessions_say_what_is_sent():
    trace = open_trace("burstgpt.sessions.csv", base=EXAMPLES, length_scale=0.1, output_scale=2)
    assert lengths(trace.session(0)) == [(12, 600, 0), (12 + 600 + 5, 420, 48), (40, 180, 51)]


def test_tr_06_burstgpt_rows_that_failed_or_are_not_wanted(tmp_path):
    """TR-06: rows in = turns + skipped, by reason; a turn that failed leaves its time to the next one."""
    rows = [wide(0, "s", 1, 10, 5), wide(10, "s", 2, 20, 0), wide(30, "s", 1, 40, 5), wide(31, "", 1, 0, 9, "API log")]
    path = table(tmp_path / "b.csv", WIDE, *rows, rows[0].replace("0,s", "40,t", 1).replace("GPT-4", "ChatGPT"))
    trace = open_trace(path)
    assert (trace.rows, trace.sessions, trace.skipped) == (5, 2, {"failed_in_recording": 1, "no_input": 1})
    assert lengths(trace.session(0)) == [(10, 5, 0), (40, 5, 29)]
    chosen = open_trace(path, options={"model": "ChatGPT"})
    assert (chosen.rows, chosen.sessions, chosen.skipped) == (5, 1, {"other_model": 4})
    chosen = open_trace(path, options={"log_type": "conversation"})
    assert chosen.skipped == {"failed_in_recording": 1, "other_log_type": 1}
    with pytest.raises(TraceError, match=r"none of 5 rows can be sent: other_model \(5; first: line 2\)"):
        open_trace(path, options={"model": "none"})


def test_burstgpt_rows_before_the_first_session_keep_their_places(tmp_path):
    rows = [wide(0, "", 1, 1, 1), wide(1, "", 1, 2, 2, "API log"), wide(2, "s", 1, 3, 3), wide(3, "", 1, 4, 4)]
    trace = open_trace(table(tmp_path / "b.csv", WIDE, *rows, wide(4, "s", 1, 9, 1)))
    assert [lengths(session) for session in sessions(trace)] == [
        [(1, 1, 0)],
        [(2, 2, 0)],
        [(3, 3, 0), (9, 1, 1)],
        [(4, 4, 0)],
    ]


def test_burstgpt_rows_of_the_api_log_are_no_sessions(tmp_path):
    rows = [wide(0, "s", 1, 1, 1, "API log"), wide(1, "s", 1, 2, 2, "API log")]
    assert open_trace(table(tmp_path / "b.csv", WIDE, *rows)).sessions == 2


def test_burstgpt_limit_takes_all_turns_of_the_first_sessions(tmp_path):
    rows = [wide(at, name, 0, 10 * (at + 1), 1) for at, name in enumerate("abcab")]
    trace = open_trace(table(tmp_path / "b.csv", WIDE, *rows), limit=2)
    assert [session.turn_count for session in sessions(trace)] == [2, 2]
    assert trace.rows == 4


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (NARROW, ["5,ChatGPT,472,18,490"], "b.csv:2: has 5 columns, 6 are wanted"),
        (
            NARROW,
            ["soon,ChatGPT,472,18,490,API log"],
            "b.csv:2: Timestamp is a text of 4 characters, a number",
        ),
        (NARROW, ["nan,ChatGPT,472,18,490,API log"], "b.csv:2: Timestamp is 'nan', a number is wanted"),
        (NARROW, ["-5,ChatGPT,472,18,490,API log"], "b.csv:2: Timestamp is -5, at least 0 is wanted"),
        (
            NARROW,
            ["5,ChatGPT,472,?,490,API log"],
            r"b.csv:2: Response tokens is a text of 1 characters",
        ),
        (NARROW, ["5,G,1,1,2,API log", "4.5,G,1,1,2,API log"], "b.csv:3: Timestamp went back by 0.5 s to 4.5"),
        (NARROW, ["5,G,1,1,2,API log", "1e11,G,1,1,2,API log"], "b.csv:3: time since the first row is 32 centuries"),
        (WIDE, [wide(0, "s", -1, 1, 1)], "b.csv:2: Elapsed time is -1, at least 0 is wanted"),
        (WIDE, [wide(0, "s", 1e12, 1, 1)], "b.csv:2: Elapsed time is 316 centuries"),
        (WIDE.replace("Elapsed time", "Took"), [wide(0, "s", 1, 1, 1)], "b.csv:1: has no column 'Elapsed time'"),
        (WIDE.replace("Session ID", "User"), [wide(0, "s", 1, 1, 1)], "b.csv:1: has no column 'Session ID'"),
        ("Timestamp,Model", ["1,x"], "b.csv:1: the header has no column 'Request tokens'"),
        (NARROW, [], "b.csv: the file has no rows"),
    ],
)
def test_burstgpt_faults(tmp_path, header, rows, message):
    with pytest.raises(TraceError, match=message):
        open_trace(table(tmp_path / "b.csv", header, *rows), format="burstgpt")


def test_tr_03_burstgpt_rate(tmp_path):
    """TR-03: times in another unit stop the run."""
    rows = [f"{at / 1e5},G,1,1,2,API log" for at in range(10)]
    with pytest.raises(TraceError, match="per second on average") as caught:
        open_trace(table(tmp_path / "b.csv", NARROW, *rows))
    assert "seconds" in (caught.value.hint or "")


BURST_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(["Conversation log", "API log"]),
        st.integers(0, 90),
        st.integers(0, 90),
        st.integers(0, 3000),
        st.integers(0, 3000),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(rows=BURST_ROWS, counted=st.sampled_from(["whole", "new"]))
def test_any_burstgpt_file_is_kept_whole_by_the_normal_form(tmp_path_factory, rows, counted):
    folder = tmp_path_factory.mktemp("b")
    at, lines = 0, []
    for name, log, step, elapsed, prompt, output in rows:
        at += step
        lines.append(wide(at, name, elapsed, prompt, output, log))
    try:
        trace = open_trace(table(folder / "b.csv", WIDE, *lines), options={"request_tokens": counted})
    except TraceError as error:
        assert "rows can be sent" in str(error)
        return
    found = sessions(trace)
    assert trace.rows == len(rows) == sum(session.turn_count for session in found) + sum(trace.skipped.values())
    assert all(turn.delay_ns >= 0 for session in found for turn in session.turns)
    if counted == "whole":
        sent = sorted(turn.asked_prompt_tokens or 0 for session in found for turn in session.turns)
        assert sent == sorted(row[4] for row in rows if row[4] and row[5]), "recorded prompts are asked for as they are"
    kept_by_the_normal_form(trace, folder / "n")


# ------------------------------------------------------------------------------------------------ Qwen-Bailian


def chat(ident: int | str, parent: object, stamp: float, prompt: int = 20, **more: object) -> dict[str, object]:
    return {
        "chat_id": ident,
        "parent_chat_id": parent,
        "timestamp": stamp,
        "input_length": prompt,
        "output_length": 5,
        "type": "text",
        "turn": 1,
        "hash_ids": list(range(-(-prompt // 16))),
        **more,
    }


def jsonl(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def shape(session: Session) -> list[Any]:
    """Delays in s of the main line, then (after, delays) of each branch."""
    found: list[Any] = [[turn.delay_ns / 1e9 for turn in session.turns]]
    return found + [(branch.after, [turn.delay_ns / 1e9 for turn in branch.turns]) for branch in session.branches]


def test_bailian_golden_example():
    trace = open_trace("qwen-bailian.jsonl", base=EXAMPLES)
    assert trace.sha256 is not None
    assert (trace.format, trace.rows, trace.sessions, trace.skipped, trace.warnings) == ("qwen-bailian", 6, 2, {}, ())
    assert list(trace.arrivals_ns or ()) == [0, 750_000_000]
    tree, single = sessions(trace)
    assert (tree.session_id, single.session_id, single.source_line) == ("chat-0", "chat-1", 2)
    assert shape(tree) == [[0, 9.5, 10.5], (0, [11.25, 19.75])]
    assert [turn.texts[0] and turn.texts[0].ids for turn in tree.turns] == [
        (0, 1, 2),
        (0, 1, 5, 6, 7),
        (0, 1, 5, 6, 9, 10),
    ]
    assert tree.branches[0].turns[0] == Turn(
        messages=({"role": "user", "content": ""},),
        texts=(BlockText(scope=f"qwen-bailian:{trace.sha256[:16]}", ids=(0, 1, 5, 6, 8), tokens=(16, 16, 16, 16, 2)),),
        replaces_history=True,
        delay_ns=11_250_000_000,
        asked_prompt_tokens=66,
        asked_output_tokens=31,
    )


@pytest.mark.parametrize(
    ("links", "expected", "why"),
    [
        ([(1, -1), (2, 1), (3, 2)], [[[0, 1, 1]]], "a chain is a session"),
        ([(1, None), (2, 1)], [[[0, 1]]], "null is no parent"),
        ([("a", -1), ("b", "a")], [[[0, 1]]], "ids may be strings"),
        ([(1, -1), (2, -1), (3, 1)], [[[0, 2]], [[0]]], "sessions run beside each other"),
        (
            [(1, -1), (2, 1), (3, 1), (4, 3), (5, 3), (6, 2)],
            [[[0, 1, 4], (0, [2, 1]), (3, [2])]],
            "branches of branches",
        ),
    ],
)
def test_bailian_parents(tmp_path, links, expected, why):
    rows = [chat(ident, parent, at) for at, (ident, parent) in enumerate(links)]
    trace = open_trace(jsonl(tmp_path / "q", *rows), format="qwen-bailian")
    assert ([shape(session) for session in sessions(trace)], trace.warnings) == (expected, ()), why


def test_bailian_a_parent_that_was_cut_off_begins_a_session(tmp_path):
    trace = open_trace(jsonl(tmp_path / "q", chat(7, 3, 0), chat(8, 7, 2), chat(9, 4, 3)))
    assert [shape(session) for session in sessions(trace)] == [[[0, 2]], [[0]]]
    assert trace.warnings == (
        "a parent_chat_id is not in the file before its child: the child begins a session (2 times)",
    )


def test_bailian_an_id_that_comes_twice_is_told(tmp_path):
    trace = open_trace(jsonl(tmp_path / "q", chat(1, -1, 0), chat(1, -1, 2), chat(2, 1, 3)))
    assert trace.warnings[0] == "a chat_id comes twice: later rows that name it follow its later one"
    assert trace.rows == sum(session.turn_count for session in sessions(trace)) == 3


def test_tr_06_bailian_rows_that_are_left_out_keep_their_children(tmp_path):
    """TR-06: rows in = turns + skipped, by reason; a child follows the nearest request above it that is sent."""
    rows = [chat(1, -1, 0), chat(2, 1, 1, output_length=0), chat(3, 2, 5), chat(4, 2, 7, type="image")]
    trace = open_trace(jsonl(tmp_path / "q", *rows))
    assert (trace.rows, trace.sessions, trace.skipped) == (4, 1, {"no_output": 1})
    assert shape(trace.session(0)) == [[0, 5], (0, [7])]
    chosen = open_trace(jsonl(tmp_path / "q", *rows), options={"type": "text"})
    assert (shape(chosen.session(0)), chosen.skipped) == ([[0, 5]], {"no_output": 1, "other_type": 1})


def test_bailian_without_its_root_the_children_start_beside_each_other(tmp_path):
    rows = [chat(1, -1, 3, type="image"), chat(2, 1, 5), chat(3, 1, 9), chat(4, -1, 9, type="image")]
    trace = open_trace(jsonl(tmp_path / "q", *rows), options={"type": "text"})
    assert (trace.rows, trace.sessions, trace.skipped) == (4, 1, {"other_type": 2})
    assert shape(trace.session(0)) == [[0], (None, [4])]


def test_bailian_limit_takes_all_turns_of_the_first_sessions(tmp_path):
    rows = [chat(1, -1, 0), chat(2, -1, 1), chat(3, 2, 2), chat(4, 1, 3)]
    trace = open_trace(jsonl(tmp_path / "q", *rows), limit=1)
    assert (trace.rows, trace.sessions, shape(trace.session(0))) == (2, 1, [[0, 3]])


@pytest.mark.parametrize(
    ("rows", "message", "hint"),
    [
        ([chat(1, -1, 0, hash_ids=[1])], r"q:1: 1 hash_ids for 20 tokens, 2 blocks of 16", "32 would fit"),
        ([chat(1, -1, 5), chat(2, -1, 4.5)], r"q:2: timestamp went back from 5 s to 4.5 s", "sort"),
        ([chat(1, -1, 0), chat(2, -1, 1e30)], r"q:2: timestamp is '1e\+30', no time is so far", "unit"),
        ([chat(1, -1, 0), chat(2, -1, 1e10)], r"q:2: time since the first row is 3 centuries", "unit"),
        ([chat(1, -1, 0, timestamp="5")], r"q:1: timestamp is '5', a number is wanted", None),
        ([chat(1, -1, 0, input_length=1.5)], r"q:1: input_length is '1.5'", None),
        ([chat(1, -1, 0, output_length=10**10)], r"q:1: output_length is 10000000000, the most", "column"),
        ([chat(1, -1, 0, hash_ids="ab")], r"q:1: hash_ids is no list", "format"),
        ([chat(1, [2], 0)], r"q:1: parent_chat_id is a list, a 64-bit whole number or a string", "whole"),
        ([{"timestamp": 0, **dict.fromkeys(("input_length", "output_length"), 1)}], r"q:1: hash_ids is no list", None),
        ([chat(1, -1, 0), 3], r"q:2: is a int, not an object", "format"),
        ([chat(1, -1, 0, 0)], r"none of 1 rows can be sent: no_input", "format"),
    ],
)
def test_bailian_faults(tmp_path, rows, message, hint):
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(jsonl(tmp_path / "q", *rows), format="qwen-bailian")
    assert hint is None or hint in (caught.value.hint or "")


def test_bailian_a_row_without_its_id_is_refused(tmp_path):
    row = chat(1, -1, 0)
    del row["chat_id"]
    with pytest.raises(TraceError, match=r"q:1: chat_id is missing"):
        open_trace(jsonl(tmp_path / "q", row), format="qwen-bailian")


BAILIAN_ROWS = st.lists(
    st.tuples(st.integers(-1, 12), st.integers(0, 90), st.integers(0, 200), st.integers(0, 3)), min_size=1, max_size=12
)


@settings(deadline=None, max_examples=60)
@given(rows=BAILIAN_ROWS)
def test_any_bailian_file_is_kept_whole_by_the_normal_form(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("q")
    at, lines = 0.0, []
    for ident, (parent, step, prompt, output) in enumerate(rows):
        at += step / 8
        lines.append(chat(ident, parent, at, prompt, output_length=output))
    try:
        trace = open_trace(jsonl(folder / "q", *lines))
    except TraceError as error:
        assert "rows can be sent" in str(error)
        return
    found = sessions(trace)
    assert trace.rows == len(rows) == sum(session.turn_count for session in found) + sum(trace.skipped.values())
    sent = sorted(turn.asked_prompt_tokens or 0 for session in found for turn in session.all_turns())
    assert sent == sorted(row[2] for row in rows if row[2] and row[3])
    kept_by_the_normal_form(trace, folder / "n")


# ------------------------------------------------------------------------------------------------ what they share


@given(keys=st.lists(st.sampled_from([None, "a", "b", ("a", "b"), -1, -2, 1, "1"]), max_size=20))
def test_groups_hold_all_their_rows_in_order(keys):
    rows = [Row(number, 10 * number, 10 * number + 5) for number in range(len(keys))]
    expected: dict[object, list[Row]] = {}
    for row, key in zip(rows, keys, strict=True):
        expected.setdefault(row if key is None else key, []).append(row)
    assert list(grouped(rows, lambda row: keys[row.line])) == list(expected.values())


@given(rows=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**62), st.integers(0, 2**33)), max_size=9))
def test_places_keep_rows_of_any_size(rows):
    places = Places()
    expected = [Row(line, start, start + size) for line, start, size in (*rows, (1, 5, 2**32 - 1), (2, 5, 2**32))]
    for row in expected:
        places.append(row)
    assert [places[number] for number in range(len(places))] == expected


@given(marks=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=20))
def test_what_came_before_is_told_in_order(marks):
    assert came_before(array("q", marks)) == [at for at, mark in enumerate(marks) if mark in marks[:at]]


FIELDS = ["chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids", "type", "session_id"]
JSON = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)


@pytest.mark.parametrize("format", ["qwen-bailian", "mooncake"])
@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=4), min_size=1, max_size=4))
def test_any_json_is_read_or_refused_by_a_trace_error(tmp_path_factory, format, rows):
    path = jsonl(tmp_path_factory.mktemp("f") / "t", *rows)
    try:
        trace = open_trace(path, format=format, options={"rows": "cumulative"} if format == "mooncake" else {})
    except TraceError as error:
        assert path in str(error)
    else:
        for session in sessions(trace):
            roles(session)


@pytest.mark.parametrize(("format", "header"), [("azure", AZURE), ("burstgpt", NARROW), ("burstgpt", WIDE)])
@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(
        st.lists(
            st.sampled_from(["5", "0", "1e3", "-1", '"a', "", "2024-05-10 00:00:00", "x"]) | st.text(max_size=6),
            min_size=3,
            max_size=8,
        ),
        max_size=4,
    )
)
def test_any_csv_is_read_or_refused_by_a_trace_error(tmp_path_factory, format, header, rows):
    path = table(tmp_path_factory.mktemp("f") / "t.csv", header, *(",".join(row) for row in rows))
    try:
        trace = open_trace(path, format=format)
    except TraceError as error:
        assert path in str(error)
    else:
        for session in sessions(trace):
            roles(session)


# ------------------------------------------------------------------------------------- blocks that scaling makes short


@pytest.mark.parametrize(
    ("block", "scale", "together", "why"),
    [
        (512, 0.05, 1, "26 tokens hold a text's first words"),
        (64, 0.05, 4, "3 tokens don't, 13 do"),
        (64, 0.1875, 1, "exactly 12"),
        (16, 0.5, 2, "8 are too few"),
        (16, 1.0, 1, "a trace's own size stays"),
        (4, 1.0, 1, "however small"),
        (4, 0.9, 2, "and is not made smaller"),
        (4, 2.0, 1, "or larger than it was"),
    ],
)
def test_short_blocks_are_put_together(block: int, scale: float, together: int, why: str) -> None:
    options = ReadOptions(name="t", length_scale=scale)
    ids, sizes = scaled_blocks(range(10), 10 * block - 1, block, options)
    assert len(ids) == len(set(ids)) == -(-10 // together), why
    assert set(sizes[:-1]) <= {options.prompt_tokens(block * together)}
    assert sum(sizes) == pytest.approx((10 * block - 1) * scale, abs=0.5 * len(ids))


@given(
    one=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    other=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    common=st.lists(st.integers(-(2**63), 2**64), max_size=40),
    scale=st.floats(0.001, 1),
)
def test_blocks_put_together_are_shared_as_far_as_all_of_their_ids_are(
    one: list[int], other: list[int], common: list[int], scale: float
) -> None:
    options = ReadOptions(name="t", length_scale=scale)
    rows = [[*common, *own] for own in (one, other)]
    first, second = (scaled_blocks(ids, 16 * len(ids), 16, options)[0] for ids in rows)
    together = together_blocks(16, options)
    pieces = [[tuple(ids[at : at + together]) for at in range(0, len(ids), together)] for ids in rows]
    same = [mine == its for mine, its in zip(*pieces, strict=False)]
    assert [mine == its for mine, its in zip(first, second, strict=False)] == same
    assert all(same[: len(common) // together])


def test_describe_sees_the_blocks_that_a_run_sends(tmp_path: Path) -> None:
    """What short blocks shared of a block that holds others as well is shared no more, in the bound as in the run."""
    path = tmp_path / "rows.jsonl"
    rows = ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 7])
    lines = [{"timestamp": 0, "input_length": 16 * len(ids), "output_length": 1, "hash_ids": ids} for ids in rows]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    bounds = []
    for scale in (1.0, 0.375, 0.25):
        trace = open_trace(str(path), format="mooncake", options={"block_size": 16}, length_scale=scale)
        bounds.append(describe(trace).cache_bound)
    whole, in_twos, in_threes = bounds
    assert whole == pytest.approx((4 + 2) / 13)
    assert in_twos == pytest.approx((24 + 12) / (30 + 30 + 18))
    assert in_threes == pytest.approx(12 / (20 + 20 + 12))


# ------------------------------------------------------------------------------------------------ real files


@pytest.mark.parametrize(
    ("name", "rows", "prompts", "outputs", "rate", "variation", "gap_s"),
    [
        ("conv", 19_366, (1155, 1020, 2734, 4142), (211, 129, 424, 601), 5.5, 1.09, 4),
        ("code", 8_819, (2048, 1469, 5188, 7436), (28, 13, 55, 251), 2.6, 13.2, 217),
    ],
)
def test_figures_of_the_azure_files(shared, name, rows, prompts, outputs, rate, variation, gap_s):
    trace = open_trace(str(shared / "traces" / "azure" / f"AzureLLMInferenceTrace_{name}.csv"))
    described = describe(trace)
    assert (trace.format, described.rows, described.sessions, described.skipped) == ("azure", rows, rows, {})
    for found, wanted in ((described.prompt_tokens, prompts), (described.output_tokens, outputs)):
        assert found is not None
        assert (found.mean, found.p50, found.p90, found.p99) == pytest.approx(wanted, rel=2e-3, abs=0.51)
    assert described.mean_rate == pytest.approx(rate, abs=0.05)
    assert described.interarrival_cv == pytest.approx(variation, abs=0.05)
    assert trace.arrivals_ns is not None
    assert max(after - before for before, after in pairwise(trace.arrivals_ns)) // 10**9 == gap_s


@pytest.mark.parametrize(("name", "rows", "prompts"), [("1", 3, [472, 1087, 417]), ("3", 4, [906, 36, 1779, 935])])
def test_heads_of_the_burstgpt_files(shared, name, rows, prompts):
    trace = open_trace(str(shared / "traces" / "burstgpt" / f"BurstGPT_{name}.rows-transcribed.csv"))
    assert (trace.format, trace.rows, trace.sessions, trace.skipped, trace.warnings) == ("burstgpt", rows, rows, {}, ())
    assert [session.turns[0].asked_prompt_tokens for session in sessions(trace)] == prompts
