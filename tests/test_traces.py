"""Trace readers: what is read, what is skipped and why, what is refused and with which words."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.traces import READERS, Conversation, Synthesizer, Trace, describe, open_trace
from infersiege.traces.azure import stamp_ns

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def requests(trace: Trace, index: int = 0) -> list[list[dict[str, object]]]:
    conversation = Conversation(trace.session(index), synthesizer=Synthesizer(1))
    found = []
    while (turn := conversation.next_turn()) is not None:
        found.append(turn.messages)
        conversation.answered("live")
    return found


USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}


def calling(*idents: str, arguments: object = "{}") -> dict[str, object]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": "f", "arguments": arguments}} for i in idents
        ],
    }


def result(ident: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": ident, "content": "r"}


# ------------------------------------------------------------------------------------------------ OpenAI messages


def test_openai_row_is_a_session_cut_at_its_answers(tmp_path):
    system = {"role": "system", "content": "s"}
    more = {"role": "user", "content": "more"}
    path = write(tmp_path / "t.jsonl", {"messages": [system, USER, ANSWER, more, calling("c"), result("c"), ANSWER]})
    trace = open_trace(path.name, base=tmp_path)
    session = trace.session(0)
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("openai-messages", 1, 1, {})
    assert [turn.messages for turn in session.turns] == [(system, USER), (more,), (result("c"),)]
    assert [turn.recorded_answer for turn in session.turns] == [(ANSWER,), (calling("c"),), (ANSWER,)]
    assert requests(trace)[-1] == [system, USER, ANSWER, more, calling("c"), result("c")]


@pytest.mark.parametrize(
    ("messages", "asked", "why"),
    [
        ([USER], [1], "a last message without an answer is a request"),
        ([USER, ANSWER, ANSWER, USER, ANSWER], [1, 4], "two assistant messages are one answer"),
        ([ANSWER, USER, ANSWER], [2], "a greeting belongs to the first request"),
        ([{"role": "developer", "content": "d"}, USER, ANSWER], [2], "developer messages lead like system ones"),
        ([USER, calling("a", "b"), result("b"), result("a"), ANSWER], [1, 4], "results come in any order"),
        ([USER, calling("a")], [1], "the last calls need no results"),
    ],
)
def test_openai_turns(tmp_path, messages, asked, why):
    trace = open_trace(str(write(tmp_path / "t.jsonl", {"messages": messages})))
    assert [len(request) for request in requests(trace)] == asked, why


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no_messages"),
        ("hi", "no_messages"),
        ([ANSWER], "no_user_message"),
        ([{"role": "robot", "content": "x"}], "not_a_message"),
        ([{"role": "user"}], "message_without_content"),
        ([{"role": "user", "content": None}], "message_without_content"),
        ([USER, result("c"), ANSWER], "tool_result_without_call"),
        ([USER, calling("a"), result("b"), ANSWER], "tool_result_without_call"),
        ([USER, calling("a"), result("a"), result("a"), ANSWER], "tool_result_without_call"),
        ([USER, calling("a", "b"), result("a"), ANSWER], "tool_call_without_result"),
        ([USER, calling("a"), USER, ANSWER], "tool_call_without_result"),
        ([USER, calling("a", "a"), result("a"), ANSWER], "bad_tool_call"),
        ([USER, {"role": "assistant", "tool_calls": [{"id": "x"}]}], "bad_tool_call"),
    ],
)
def test_tr_06_rows_that_no_server_would_take_are_skipped_by_reason(tmp_path, messages, reason):
    """TR-06: rows in = sessions + skipped, by reason."""
    path = write(tmp_path / "t.jsonl", {"messages": [USER, ANSWER]}, {"messages": messages}, {"messages": messages})
    trace = open_trace(str(path))
    assert trace.skipped == {reason: 2}
    assert trace.rows == trace.sessions + 2
    assert any(reason in warning and "line 2" in warning for warning in trace.warnings)


def test_a_trace_of_skipped_rows_only_is_refused(tmp_path):
    path = write(tmp_path / "t.jsonl", {"messages": [ANSWER]})
    with pytest.raises(TraceError, match=r"none of 1 rows can be sent: no_user_message \(1; first: line 1\)"):
        open_trace(str(path))


def test_images_and_parts_are_carried_verbatim(tmp_path):
    parts = [{"type": "text", "text": "Ж"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    trace = open_trace(str(write(tmp_path / "t.jsonl", {"messages": [{"role": "user", "content": parts}]})))
    assert requests(trace) == [[{"role": "user", "content": parts}]]


def test_request_fields_are_kept_and_the_data_sets_own_are_not_sent(tmp_path):
    row = {
        "messages": [USER, {**ANSWER, "weight": 1}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "auto",
        "max_tokens": 5,
        "model": "m",
        "stream": False,
        "quality_score": 3,
    }
    trace = open_trace(str(write(tmp_path / "t.jsonl", row)))
    session = trace.session(0)
    assert session.turns[0].extra == {"tool_choice": "auto", "max_tokens": 5}
    assert session.tools == tuple(row["tools"])
    assert session.turns[0].recorded_answer == (ANSWER,), "weight is a training mark that servers refuse"
    assert trace.warnings == ("key 'quality_score' is no request field and is not sent",)


def test_arguments_stay_a_json_string(tmp_path):
    messages = [USER, calling("a", arguments={"x": [1, "é"]}), result("a"), ANSWER]
    sent = requests(open_trace(str(write(tmp_path / "t.jsonl", {"messages": messages}))))[1]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"x":[1,"é"]}'


def test_bare_lists_and_batch_rows_are_read(tmp_path):
    batch = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [USER], "seed": 1}}
    trace = open_trace(str(write(tmp_path / "t.jsonl", [USER, ANSWER], batch)))
    assert trace.sessions == 2
    assert trace.session(1).turns[0].extra == {"seed": 1}


def talk(count: int) -> list[dict[str, object]]:
    return [{"role": ("user", "assistant")[k % 2], "content": str(k)} for k in range(count)]


def test_tr_01_cumulative_rows_are_whole_requests_and_compaction_is_sent_as_given(tmp_path):
    """TR-01: rows with 1, 3, 5, 3 (compacted), 5 messages ask for just that, with no history doubled."""
    compacted = [{"role": "user", "content": "summary"}, ANSWER, USER]
    given = [talk(1), talk(3), talk(5), compacted, [*compacted, ANSWER, USER]]
    path = write(tmp_path / "t.jsonl", *({"session_id": "s", "messages": messages} for messages in given))
    trace = open_trace(str(path), options={"rows": "cumulative"})
    assert requests(trace) == given
    assert any("compaction" in warning for warning in trace.warnings)
    session = trace.session(0)
    assert [turn.replaces_history for turn in session.turns] == [True, False, False, True, False]
    assert session.turns[0].recorded_answer == ({"role": "assistant", "content": "1"},)


def test_tr_01_delta_rows_are_joined(tmp_path):
    rows = [
        {"session_id": "s", "messages": [USER, ANSWER]},
        {"session_id": "s", "messages": [{"role": "user", "content": "b"}], "delay_ms": 200},
    ]
    trace = open_trace(str(write(tmp_path / "t.jsonl", *rows)), options={"rows": "deltas"})
    assert [len(request) for request in requests(trace)] == [1, 3]
    assert trace.session(0).turns[1].delay_ns == 200_000_000


def test_tr_01_rows_that_share_a_session_need_an_explicit_mode(tmp_path):
    rows = [{"session_id": "s", "messages": talk(1)}, {"session_id": "s", "messages": talk(3)}]
    with pytest.raises(TraceError, match=r"t.jsonl:2: session_id 's' came before") as caught:
        open_trace(str(write(tmp_path / "t.jsonl", *rows)))
    assert "cumulative" in (caught.value.hint or "")


def test_tr_09_delay_and_timestamp_together_are_an_error(tmp_path):
    """TR-09: a delay counts from the end of the previous answer; a time of day beside it contradicts it."""
    path = write(tmp_path / "t.jsonl", {"session_id": "s", "messages": [USER], "delay_ms": 200, "timestamp": 5})
    with pytest.raises(TraceError, match=r"t.jsonl:1: has delay_ms, timestamp"):
        open_trace(str(path), options={"rows": "deltas"})


# ------------------------------------------------------------------------------------------------ Mooncake


def mooncake(stamp: float, prompt: int, ids: list[int], output: int = 10) -> dict[str, object]:
    return {"timestamp": stamp, "input_length": prompt, "output_length": output, "hash_ids": ids}


def test_mooncake_same_id_is_same_text(tmp_path):
    path = write(tmp_path / "m.jsonl", mooncake(0, 1030, [1, 2, 3]), mooncake(3000, 1100, [1, 2, 4]))
    trace = open_trace(str(path))
    first, second = (str(requests(trace, index)[0][0]["content"]) for index in (0, 1))
    shared = first.rindex("\n") + 1
    assert first[:shared].count("\n") == 2
    assert first[:shared] == second[:shared]
    assert first[shared:][:6] != second[shared:][:6]
    assert trace.arrivals_ns is not None
    assert list(trace.arrivals_ns) == [0, 3_000_000_000]
    session = trace.session(1)
    assert (session.turns[0].asked_prompt_tokens, session.turns[0].asked_output_tokens) == (1100, 10)


def test_mooncake_ids_of_two_files_are_never_the_same_text(tmp_path):
    texts = []
    for name, output in (("a", 10), ("b", 11)):
        path = write(tmp_path / f"{name}.jsonl", mooncake(0, 512, [1], output))
        texts.append(requests(open_trace(str(path)))[0][0]["content"])
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("rows", "message", "hint"),
    [
        ([mooncake(0, 513, [1])], r"m.jsonl:1: 1 hash_ids for 513 tokens, 2 blocks of 512", "block_size"),
        ([mooncake(0, 512, [1, 2])], r"m.jsonl:1: 2 hash_ids for 512 tokens, 1 blocks", "block_size"),
        ([mooncake(5, 1, [1]), mooncake(4, 1, [1])], r"m.jsonl:2: timestamp went back from 5 ms to 4 ms", "sort"),
        ([mooncake(1.7e9, 1, [1])], r"m.jsonl:1: timestamp 1.7e\+09 is a date of our time in s", '"s"'),
        ([{**mooncake(0, 1, [1]), "input_length": "7"}], r"m.jsonl:1: input_length is '7'", None),
        ([mooncake(0, 1, [1]), mooncake(1e30, 1, [1])], r"m.jsonl:2: timestamp is '1e\+30', no time is so far", "unit"),
        ([mooncake(0, 1, [1]), mooncake(10**30, 1, [1])], r"m.jsonl:2: timestamp is '1000000000", "unit"),
        ([mooncake(0, 1, [1]), mooncake(10**400, 1, [1])], r"m.jsonl:2: ", None),
        (
            [mooncake(0, 1, [1]), mooncake(1e19, 1, [1])],
            r"m.jsonl:2: time since the first row is 3,162,315 centuries",
            "unit",
        ),
        ([mooncake(0, 10**12, [1])], r"m.jsonl:1: input_length is 1000000000000, the most is 1,000,000,000", "column"),
        ([mooncake(0, 1e30, [1])], r"m.jsonl:1: input_length is 10000000000\d+, the most", "column"),
        ([{**mooncake(0, 1, [1]), "output_length": 10**400}], r"m.jsonl:1: ", None),
        ([{**mooncake(0, 1, [1]), "output_length": -1}], r"m.jsonl:1: output_length is '-1'", None),
        ([{**mooncake(0, 1, [1]), "input_length": float("inf")}], r"m.jsonl:1: is not JSON", None),
        ([{**mooncake(0, 1, [1]), "timestamp": None}], r"m.jsonl:1: timestamp is 'None'", None),
        ([{**mooncake(0, 1, [1]), "hash_ids": [1.5]}], r"m.jsonl:1: hash_ids is no list", None),
        ([mooncake(0, 1, [1]), 5], r"m.jsonl:2: is a int, not an object", None),
        ([mooncake(0, 0, [])], "none of 1 rows can be sent: no_input", None),
    ],
)
def test_mooncake_faults(tmp_path, rows, message, hint):
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(str(write(tmp_path / "m.jsonl", *rows)), format="mooncake")
    assert hint is None or hint in (caught.value.hint or "")


def test_mooncake_epoch_milliseconds_are_taken_from_the_first_row(tmp_path):
    path = write(tmp_path / "m.jsonl", mooncake(1.7e12, 1, [1]), mooncake(1.7e12 + 250, 1, [1]))
    assert list(open_trace(str(path)).arrivals_ns or ()) == [0, 250_000_000]


def test_mooncake_rows_with_text(tmp_path):
    rows = [
        {"timestamp": 0, "text_input": "hello", "output_length": 7},
        {"timestamp": 100, "messages": [USER], "tools": [{"type": "function"}], "output_length": 8},
    ]
    trace = open_trace(str(write(tmp_path / "m.jsonl", *rows)), format="mooncake", output_scale=2)
    assert requests(trace) == [[{"role": "user", "content": "hello"}]]
    assert trace.session(1).tools == ({"type": "function"},)
    assert trace.session(1).turns[0].asked_output_tokens == 16
    assert list(trace.arrivals_ns or ()) == [0, 100_000_000]


def test_mooncake_zero_output_is_skipped(tmp_path):
    trace = open_trace(str(write(tmp_path / "m.jsonl", mooncake(0, 5, [1]), mooncake(1, 5, [1], output=0))))
    assert (trace.rows, trace.sessions, trace.skipped) == (2, 1, {"no_output": 1})


def test_tr_03_seconds_read_as_milliseconds_stop_the_run(tmp_path):
    """TR-03: a mean rate that no service has is refused; the option names the unit."""
    path = write(tmp_path / "m.jsonl", *(mooncake(k / 4, 5, [1]) for k in range(20_000 // 100)))
    with pytest.raises(TraceError, match="4000 per second on average") as caught:
        open_trace(str(path))
    assert '"s"' in (caught.value.hint or "")
    assert describe(open_trace(str(path), options={"unit": "s"})).mean_rate == pytest.approx(4.0)


def test_tr_03_milliseconds_read_as_seconds_are_warned_of(tmp_path):
    path = write(tmp_path / "m.jsonl", *(mooncake(at, 5, [1]) for at in (0, 10_535, 27_482)))
    assert open_trace(str(path)).warnings == ()
    slow = open_trace(str(path), options={"unit": "s"})
    assert describe(slow).line().startswith("3 rows, 3 sessions, span 7 h 38 m")
    path = write(tmp_path / "m.jsonl", *(mooncake(at, 5, [1]) for at in (0, 10_535_000, 27_482_000)))
    assert "unit may be wrong" in open_trace(str(path), options={"unit": "s"}).warnings[0]


def test_scales_change_lengths_once(tmp_path):
    path = write(tmp_path / "m.jsonl", mooncake(0, 1030, [1, 2, 3], output=100))
    turn = open_trace(str(path), length_scale=0.5, output_scale=0.25).session(0).turns[0]
    assert turn.texts[0] is not None
    assert turn.texts[0].tokens == (256, 256, 3)
    assert turn.asked_prompt_tokens == 515
    assert turn.asked_output_tokens == 25
    assert turn.answer_text is not None
    assert turn.answer_text.tokens == (25,)
    tiny = open_trace(str(path), length_scale=1e-6).session(0).turns[0]
    assert tiny.texts[0] is not None
    assert tiny.texts[0].tokens == (1, 1, 1), "nothing becomes empty by scaling"


# ------------------------------------------------------------------------------------------------ Azure


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-11-16 18:15:46.6805900", 1700158546_680590000),
        ("2023-11-16 18:15:46.6805901", 1700158546_680590100),
        ("2023-11-16 18:15:46", 1700158546_000000000),
        ("2023-11-16 18:15:46.5+00:00", 1700158546_500000000),
        ("2023-11-16T19:15:46.5+01:00", 1700158546_500000000),
        ("2023-11-16T18:15:46Z", 1700158546_000000000),
    ],
)
def test_azure_stamps(text, expected):
    assert stamp_ns(text) == expected


@pytest.mark.parametrize("text", ["", "18:15", "2023-13-16 18:15:46", "2023-11-16 18:15:46.12345678901", "1700158546"])
def test_azure_stamps_that_are_none(text):
    with pytest.raises(ValueError, match=r"."):
        stamp_ns(text)


def azure(tmp_path: Path, *rows: str, header: str = "TIMESTAMP,ContextTokens,GeneratedTokens") -> str:
    path = tmp_path / "a.csv"
    path.write_bytes("\r\n".join([header, *rows]).encode())
    return str(path)


def test_azure_crlf_without_a_final_newline(tmp_path):
    path = azure(
        tmp_path, "2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109", "2023-11-16 18:15:51,7,0"
    )
    trace = open_trace(path)
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("azure", 3, 2, {"no_output": 1})
    assert list(trace.arrivals_ns or ()) == [0, 4_314_579_000]
    turn = trace.session(1).turns[0]
    assert (turn.asked_prompt_tokens, turn.asked_output_tokens) == (396, 109)
    assert trace.session(0).source_line == 2


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (["2023-11-16 18:15:46,374"], None, "a.csv:2: has 2 columns"),
        (["yesterday,374,44"], None, "a.csv:2: 'yesterday' is no timestamp"),
        (["2023-11-16 18:15:46,many,44"], None, "a.csv:2: invalid literal"),
        (["2023-11-16 18:15:46,1,1", "2023-11-16 18:15:45,1,1"], None, "a.csv:3: timestamp went back by 1 s"),
        (["2023-11-16 18:15:46,1e30,44"], None, "a.csv:2: invalid literal"),
        (["2023-11-16 18:15:46,inf,44"], None, "a.csv:2: invalid literal"),
        ([f"2023-11-16 18:15:46,{10**30},44"], None, "a.csv:2: ContextTokens is 1000.*, the most is 1,000,000,000"),
        ([f"2023-11-16 18:15:46,1,{10**4000}"], None, "a.csv:2: GeneratedTokens is a number of 13288 bits, the most"),
        (["0001-01-01 00:00:00,1,1", "9999-12-31 00:00:00,1,1"], None, "a.csv:3: time since the first row is 100 cent"),
        (["2023-11-16 18:15:46,1,1", '"' + "x" * 200_000 + '",1,1'], None, "a.csv:3: is no line of a CSV file"),
        (["x"], "a,b", "a.csv:1: header is 'a,b'"),
        ([], None, "a.csv: the file has no rows"),
    ],
)
def test_azure_faults(tmp_path, rows, header, message):
    path = azure(tmp_path, *rows, **({"header": header} if header else {}))
    with pytest.raises(TraceError, match=message):
        open_trace(path, format="azure")


def test_azure_image_column_is_warned_of(tmp_path):
    path = azure(tmp_path, "2023-11-16 18:15:46,1,1,3", header="TIMESTAMP,ContextTokens,GeneratedTokens,NumImages")
    assert open_trace(path).warnings == ("column 'NumImages' is not sent",)


# ------------------------------------------------------------------------------------------------ all formats


def test_a_first_line_longer_than_the_head_is_still_told(tmp_path):
    path = write(tmp_path / "t.jsonl", {"messages": [{"role": "user", "content": "x" * 400_000}]})
    assert open_trace(str(path)).format == "openai-messages"


def test_formats_that_both_fit_are_named(tmp_path, monkeypatch):
    copy = dict(READERS)
    copy["other"] = READERS["azure"]
    monkeypatch.setattr("infersiege.traces.READERS", copy)
    with pytest.raises(TraceError, match=r"could be azure or other") as caught:
        open_trace(azure(tmp_path, "2023-11-16 18:15:46,1,1"))
    assert "'azure' or 'other'" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file has no rows"),
        (b"\n\n", "the file has no rows"),
        (b"{oops\n", r"t:1: is not JSON \("),
        (b"\n{oops\n", r"t:2: is not JSON \("),
        (
            b'{"messages": [{"role": "user", "content": "\\ud800"}]}\n',
            r"t:1: is not JSON \(it holds half a surrogate pair",
        ),
        (b"[" * 100_000 + b"]" * 100_000 + b"\n", r"t:1: is not JSON \(nested too deeply\)"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n", r"t:1: is not JSON \(nested too deeply\)"),
        (b"hello\nworld\n", r"t:1: format can't be told from 'hello'"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n{"mess', r"t:2: is not JSON"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n\xff\xfe\n', r"t:2: is not UTF-8"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n"x"\n', r"t:2: is a str"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n{"a": 1}\n', r"t:2: has no messages \(keys: a\)"),
        (b"\x1f\x8b\x08\x00", "cannot be read"),
    ],
)
def test_broken_files_are_named_by_line(tmp_path, content, message):
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(str(path))
    assert str(path) in str(caught.value)
    assert caught.value.hint or "is a str" in message


def test_byte_order_mark_and_empty_lines_are_passed_over(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"messages": [USER]}).encode() + b"\r\n\r\n")
    assert open_trace(str(path)).sessions == 1


@pytest.mark.parametrize(
    ("spec", "kwargs", "message", "hint"),
    [
        ("none.jsonl", {}, "none.jsonl: no such trace file", "relative to the plan"),
        (".", {}, "no trace file in this folder", "looked for"),
        ("builtin:agnet", {}, "built-in workload 'agnet' is unknown", "did you mean 'agent'?"),
        ("builtin:agent", {"format": "azure"}, "has no format", "leave"),
        ("builtin:agent", {"language": "fr"}, "language 'fr' is unknown", "en, zh"),
        ("x", {"format": "moncake"}, "trace format 'moncake' is unknown", "did you mean 'mooncake'?"),
    ],
)
def test_wrong_names_come_with_the_nearest_right_one(tmp_path, spec, kwargs, message, hint):
    with pytest.raises(TraceError, match=message) as caught:
        open_trace(spec, base=tmp_path, **kwargs)
    assert hint in (caught.value.hint or "")


@pytest.mark.timeout(20)
def test_only_regular_files_are_traces(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("none")
    for spec, reason in (
        ("pipe", "pipe: is a pipe, not a file"),
        ("/dev/zero", "/dev/zero: is a device, not a file"),
        ("loop", "loop: cannot be read: Too many levels of symbolic links"),
        ("nowhere", "nowhere: cannot be read: No such file or directory"),
        ("x" * 5000, "x: cannot be read: File name too long"),
    ):
        with pytest.raises(TraceError, match=reason):
            open_trace(spec, base=tmp_path)


def test_lines_end_where_json_lines_end(tmp_path):
    """U+2028, and other line ends of Unicode, are plain characters of a string."""
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a\u2028b\x85c"}]}, ensure_ascii=False) + "\n")
    assert requests(open_trace(str(path)))[0][0]["content"] == "a\u2028b\x85c"


def test_unreadable_file_is_a_trace_error(tmp_path):
    target = tmp_path / "t.jsonl"
    target.write_bytes(gzip.compress(b"x" * 10_000)[:40])
    with pytest.raises(TraceError, match="cannot be read"):
        open_trace(str(target))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = [
    "messages",
    "role",
    "content",
    "tools",
    "tool_calls",
    "timestamp",
    "input_length",
    "hash_ids",
    "session_id",
    "body",
]
ROW = st.dictionaries(st.sampled_from(KEYS), JSON | st.lists(st.dictionaries(st.sampled_from(KEYS), JSON)), max_size=5)


@pytest.mark.parametrize("format", ["openai-messages", "mooncake", "tau-bench", "azure", None])
@settings(deadline=None, max_examples=60)
@given(rows=st.lists(ROW | JSON, max_size=4))
def test_any_json_is_read_or_refused_by_a_trace_error(tmp_path_factory, format, rows):
    path = tmp_path_factory.mktemp("fuzz") / "t"
    write(path, *rows)
    try:
        trace = open_trace(str(path), format=format, options={})
    except TraceError as error:
        assert str(path) in str(error)
    else:
        assert trace.sessions
        for index in range(trace.sessions):
            requests(trace, index)


@pytest.mark.parametrize("format", ["openai-messages", "mooncake", "tau-bench", "azure", None])
@settings(deadline=None, max_examples=40)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_by_a_trace_error(tmp_path_factory, format, data):
    path = tmp_path_factory.mktemp("fuzz") / "t"
    path.write_bytes(data)
    with pytest.raises(TraceError):
        open_trace(str(path), format=format)
