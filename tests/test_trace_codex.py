"""Codex rollouts: a call per run of the model's items, usage of the call that ended, compaction, taken-back prompts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import TraceError
from infersiege.records import Session
from infersiege.traces import READERS, Conversation, Synthesizer, Trace, open_trace
from infersiege.traces.files.source import Source
from infersiege.traces.formats import normal

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
SECOND = 10**9
Row = dict[str, Any]


class Log:
    """Writes rows as Codex does."""

    def __init__(self, ident: str = "c1", **meta: Any) -> None:
        self.rows: list[Row] = []
        self.total = 0
        self.row(0, "session_meta", {"id": ident, **meta})

    def row(self, at: float, kind: str, payload: Any) -> None:
        stamp = f"2026-03-04T07:{int(at) // 60:02d}:{at % 60:06.3f}Z"
        self.rows.append({"timestamp": stamp, "type": kind, "payload": payload})

    def item(self, at: float, kind: str, **more: Any) -> None:
        self.row(at, "response_item", {"type": kind, **more})

    def message(self, at: float, role: str, text: str) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        self.item(at, "message", role=role, content=[{"type": kind, "text": text}])

    def prompt(self, at: float, text: str) -> None:
        self.message(at, "user", text)
        self.row(at, "event_msg", {"type": "user_message", "message": text})

    def call(self, at: float, ident: str, name: str = "shell") -> None:
        self.item(at, "function_call", name=name, arguments='{"a":1}', call_id=ident)

    def output(self, at: float, ident: str, output: Any) -> None:
        self.item(at, "function_call_output", call_id=ident, output=output)

    def tokens(self, at: float, prompt: int, output: int) -> None:
        self.total += prompt + output
        usage = {"input_tokens": prompt, "cached_input_tokens": 0, "output_tokens": output}
        info = {"last_token_usage": usage, "total_token_usage": {"total_tokens": self.total}}
        self.row(at, "event_msg", {"type": "token_count", "info": info, "rate_limits": None})

    def saved(self, path: Path) -> Path:
        path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        return path


def opened(path: Path, **options: Any) -> Trace:
    return open_trace(str(path), format="codex", options={"fill": False, **options})


def only(trace: Trace) -> Session:
    assert trace.sessions == 1
    return trace.session(0)


def says(messages: Any) -> list[str]:
    return [f"{message['role']}: {message['content']}" for message in messages]


def test_golden_rollouts():
    trace = open_trace("codex.jsonl", base=EXAMPLES, format="codex", options={"fill": False})
    assert (trace.rows, trace.sessions, trace.skipped) == (30, 2, {})
    assert list(trace.arrivals_ns or ()) == [0, 59_970_000_000]
    one, two = trace.session(0), trace.session(1)
    assert one.session_id == "0199aaaa-0000-7000-8000-000000000001"
    assert says(one.turns[0].messages) == [
        "system: You are a coding agent. Work in small steps.\n\nCommands run in a sandbox.",
        "user: <environment_context>\n  <cwd>/srv/harbour</cwd>\n</environment_context>\n\n"
        "Why does the light not blink?",
    ]
    (answer,) = one.turns[0].recorded_answer
    assert answer["content"] == "I look at the two files."
    assert [call["id"] for call in answer["tool_calls"]] == ["call_1", "call_2"]
    assert one.turns[1].messages == (
        {"role": "tool", "tool_call_id": "call_1", "content": "def light(): ..."},
        {"role": "tool", "tool_call_id": "call_2", "content": "PERIOD = 0"},
    )
    assert one.turns[1].recorded_answer[0]["tool_calls"][0]["function"] == {
        "name": "apply_patch",
        "arguments": '{"input":"*** Begin Patch\\n*** End Patch"}',
    }
    assert says(one.turns[3].messages) == [
        "system: You are a coding agent. Work in small steps.",
        "user: Why does the light not blink?\n\nSummary: the period of the light was fixed.\n\nNow make it red.",
    ]
    assert [turn.replaces_history for turn in one.turns] == [False, False, False, True]
    assert [turn.asked_prompt_tokens for turn in one.turns] == [6200, 6330, 6400, 6210]
    assert [turn.asked_output_tokens for turn in one.turns] == [88, 45, 14, 5]
    assert [turn.delay_ns / SECOND for turn in one.turns] == [0, 0.6, 0.6, 13.4]
    assert says(two.turns[0].messages) == ["user: Which year was the lock built?"]
    assert two.turns[0].recorded_answer == ({"role": "assistant", "content": "In 1912."},)


def test_tr_09_delay_counts_from_the_last_item_of_the_answer_to_the_last_output(tmp_path):
    log = Log()
    log.prompt(1, "a")
    log.message(2, "assistant", "b")
    log.call(3, "c1")
    log.call(3.5, "c2")
    log.output(6, "c2", "late")
    log.output(4, "c1", "early")
    log.output(7, "c1", "again")
    log.message(9, "assistant", "c")
    session = only(opened(log.saved(tmp_path / "r.jsonl")))
    assert [turn.delay_ns / SECOND for turn in session.turns] == [0, 3.5]
    assert [message["tool_call_id"] for message in session.turns[1].messages] == ["c1", "c2"]


def test_usage_is_that_of_the_call_that_ended_and_events_that_repeat_it_are_passed_over(tmp_path):
    """The event comes before the outputs of the call's tools or after them; a change of limits repeats the last one."""
    log = Log()
    log.row(0.5, "event_msg", {"type": "token_count", "info": None, "rate_limits": {}})
    log.prompt(1, "a")
    log.call(2, "c1")
    log.tokens(2.1, 100, 10)
    log.output(3, "c1", "r")
    log.rows.append({**log.rows[-2], "timestamp": log.rows[-1]["timestamp"]})
    log.call(4, "c2")
    log.rows.append(log.rows[4])
    log.output(5, "c2", "r")
    log.tokens(5.1, 200, 20)
    log.message(6, "assistant", "b")
    session = only(opened(log.saved(tmp_path / "r.jsonl")))
    assert [(t.asked_prompt_tokens, t.asked_output_tokens) for t in session.turns] == [
        (100, 10),
        (200, 20),
        (None, None),
    ]


def test_tr_01_compaction_without_a_replacement_sends_its_summary(tmp_path):
    log = Log(instructions="be brief")
    log.prompt(1, "a")
    log.call(2, "c1")
    log.output(3, "c1", "r")
    log.row(5, "compacted", {"message": "summary"})
    log.message(7, "assistant", "goes on at once")
    log.prompt(8, "b")
    log.message(9, "assistant", "c")
    session = only(opened(log.saved(tmp_path / "r.jsonl")))
    assert [says(turn.messages) for turn in session.turns] == [
        ["system: be brief", "user: a"],
        ["system: be brief", "user: summary"],
        ["user: b"],
    ]
    assert [turn.replaces_history for turn in session.turns] == [False, True, False]
    assert [turn.delay_ns / SECOND for turn in session.turns] == [0, 3, 1]


def test_prompts_taken_back_are_sent_and_the_history_goes_on_without_them(tmp_path):
    log = Log()
    for n, name in enumerate("abc"):
        log.message(10 * n, "developer", f"note {name}")
        log.prompt(10 * n + 1, name)
        log.message(10 * n + 3, "assistant", name.upper())
    log.row(40, "event_msg", {"type": "thread_rolled_back", "num_turns": 2})
    log.prompt(41, "d")
    log.message(43, "assistant", "D")
    log.prompt(51, "e")
    log.message(53, "assistant", "E")
    trace = opened(log.saved(tmp_path / "r.jsonl"))
    session = only(trace)
    assert [turn.replaces_history for turn in session.turns] == [False, False, False, True, False]
    assert says(session.turns[1].messages) == ["user: note b\n\nb"], "one system message, at the front"
    assert says(session.turns[3].messages) == ["system: note a", "user: a", "assistant: A", "user: note b\n\nd"]
    conversation = Conversation(session, synthesizer=Synthesizer(1))
    for _ in session.turns:
        prepared = conversation.next_turn()
        conversation.answered("")
    assert prepared is not None
    assert says(prepared.messages)[-2:] == ["assistant: D", "user: e"]
    assert "assistant: B" not in says(prepared.messages)


def test_calls_without_outputs_and_outputs_without_calls_are_left_out(tmp_path):
    log = Log()
    log.output(0, "c0", "of a file before")
    log.prompt(1, "a")
    log.call(2, "c1")
    log.call(2, "c2")
    log.output(3, "c2", "r")
    log.prompt(4, "stop")
    log.call(5, "c3")
    trace = opened(log.saved(tmp_path / "r.jsonl"))
    turns = only(trace).turns
    assert says(turns[0].messages) == ["user: a"]
    assert [call["id"] for call in turns[0].recorded_answer[0]["tool_calls"]] == ["c2"]
    assert says(turns[1].messages) == ["tool: r", "user: stop"]
    assert [call["id"] for call in turns[1].recorded_answer[0]["tool_calls"]] == ["c3"], "the last answer stays whole"
    assert trace.warnings == (
        "results without their call are not sent",
        "tool calls without a result are left out of the history",
    )


ITEMS = [
    ({"type": "local_shell_call", "call_id": "x", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
     "local_shell", '{"command":["ls"]}'),
    ({"type": "custom_tool_call", "call_id": "x", "name": "apply_patch", "input": "*** "},
     "apply_patch", '{"input":"*** "}'),
    ({"type": "function_call", "call_id": "x", "name": "f", "arguments": '{"b": 2}'}, "f", '{"b": 2}'),
]  # fmt: skip


@pytest.mark.parametrize(("item", "name", "arguments"), ITEMS, ids=[item["type"] for item, *_ in ITEMS])
def test_calls_of_every_kind(tmp_path, item, name, arguments):
    log = Log()
    log.prompt(1, "a")
    log.row(2, "response_item", item)
    (turn,) = only(opened(log.saved(tmp_path / "r.jsonl"))).turns
    (call,) = turn.recorded_answer[0]["tool_calls"]
    assert call == {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain", "plain"),
        ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "a\n\nb"),
        ({"content": "older", "success": True}, "older"),
        ({"other": 1}, '{"other":1}'),
    ],
)
def test_outputs_of_every_form(tmp_path, output, text):
    log = Log()
    log.prompt(1, "a")
    log.call(2, "x")
    log.output(3, "x", output)
    log.message(4, "assistant", "b")
    assert says(only(opened(log.saved(tmp_path / "r.jsonl"))).turns[1].messages) == [f"tool: {text}"]


def test_images_are_carried_verbatim(tmp_path):
    log = Log()
    url = "data:image/png;base64,iVBO"
    log.item(
        1,
        "message",
        role="user",
        content=[{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url}],
    )
    log.message(2, "assistant", "b")
    assert only(opened(log.saved(tmp_path / "r.jsonl"))).turns[0].messages[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": url}},
    ]


def test_file_is_a_session_and_the_repeated_head_of_a_parent_does_not_cut_it(tmp_path):
    """A subagent's file and a fork's begin with their own head, and may repeat that of where they come from."""
    spawn = {"subagent": {"thread_spawn": {"parent_thread_id": "parent", "depth": 1}}}
    for name, meta in (("fork", {"forked_from_id": "parent"}), ("spawned", {"source": spawn})):
        log = Log(name, **meta)
        log.row(0, "session_meta", {"id": "parent"})
        log.prompt(1, "a")
        log.message(2, "assistant", "b")
        log.saved(tmp_path / f"{name}.jsonl")
    both = Log("first")
    both.prompt(1, "a")
    both.message(2, "assistant", "b")
    both.rows += Log("second").rows
    both.prompt(3, "c")
    both.message(4, "assistant", "d")
    both.saved(tmp_path / "two.jsonl")
    trace = opened(tmp_path)
    ids = {trace.session(n).session_id: trace.session(n).turn_count for n in range(trace.sessions or 0)}
    assert ids == {"fork": 1, "spawned": 1, "first": 1, "second": 1}


def test_fill_makes_requests_as_long_as_recorded(tmp_path):
    log = Log(base_instructions={"text": "be brief " * 100})
    log.prompt(1, "a")
    log.message(2, "assistant", "b")
    log.tokens(2.1, 5000, 3)
    path = log.saved(tmp_path / "r.jsonl")
    (turn,) = only(open_trace(str(path), format="codex")).turns
    assert turn.messages == only(opened(path)).turns[0].messages
    assert turn.texts[1:] == (None,)
    assert turn.texts[0] is not None
    assert turn.texts[0].tokens[0] == pytest.approx(5000 - 900 / 4, abs=10)
    assert turn.asked_prompt_tokens == 5000


SECRET = "sk-proj-secret"
MALFORMED = [
    ({"type": "response_item", "payload": SECRET}, "payload is a str, an object is wanted", "no payload"),
    ({"type": 5, "payload": {}}, "type is a int, a string is wanted", "a type of another kind"),
    ({"type": "response_item", "payload": {"role": SECRET}}, "type is missing, a string is wanted", "no item type"),
    (
        {"type": "response_item", "timestamp": SECRET, "payload": {}},
        "timestamp is a string of 14 characters",
        "no date",
    ),
    (
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": {"a": SECRET}}},
        "content is a dict, a list of items is wanted",
        "content of another kind",
    ),
    (
        {"type": "response_item", "payload": {"type": "message", "content": SECRET}},
        "role is missing, a string is wanted",
        "no role",
    ),
    (
        {"type": "response_item", "payload": {"type": "function_call", "name": SECRET}},
        "call_id is missing, a string is wanted",
        "a call without id",
    ),
    (
        {"type": "response_item", "payload": {"type": "local_shell_call"}},
        "call_id is a NoneType, a string is wanted",
        "a shell call without id",
    ),
    (
        {"type": "compacted", "payload": {"message": {"a": SECRET}}},
        "message is a dict, a string is wanted",
        "a summary of another kind",
    ),
    (
        {
            "type": "event_msg",
            "payload": {"type": "token_count", "info": {"last_token_usage": {"input_tokens": SECRET}}},
        },
        "input_tokens is a str, a whole number of tokens is wanted",
        "a count of another kind",
    ),
    ({"type": "session_meta", "payload": {"id": {"a": SECRET}}}, "Expected `str | null`, got `object`", "a head's id"),
]


@pytest.mark.parametrize(("bad", "message", "why"), MALFORMED, ids=[why for *_, why in MALFORMED])
def test_tr_15_malformed_rows_are_refused_with_their_line_and_without_their_text(tmp_path, bad, message, why):
    log = Log()
    log.prompt(1, SECRET)
    log.message(2, "assistant", SECRET)
    log.rows.append({"timestamp": log.rows[0]["timestamp"], **bad})
    path = log.saved(tmp_path / "r.jsonl")
    with pytest.raises(TraceError) as caught:
        open_trace(str(path), format="codex")
    assert str(caught.value).startswith(f"{path}:5: {message}")
    assert SECRET not in str(caught.value) + str(caught.value.hint)


def test_rollouts_without_a_model_call_are_counted(tmp_path):
    log = Log()
    log.prompt(1, "a")
    path = log.saved(tmp_path / "r.jsonl")
    with pytest.raises(TraceError, match=r"none of 3 rows can be sent: no_model_call \(3; first: line 1\)"):
        opened(path)
    other = Log("c2")
    other.prompt(1, "a")
    other.message(2, "assistant", "b")
    log.rows += other.rows
    trace = opened(log.saved(path))
    assert (trace.rows, trace.sessions, trace.skipped) == (7, 1, {"no_model_call": 3})


def test_sniff_takes_no_other_file(shared):
    sniff = READERS["codex"].sniff
    others = [path for path in (shared / "traces").rglob("*") if path.is_file() and path.stat().st_size]
    others += [path for path in EXAMPLES.iterdir() if not path.name.startswith("codex")]
    assert [path for path in others if sniff(Source(path).head())] == []
    assert sniff(Source(EXAMPLES / "codex.jsonl").head())


words = st.text(min_size=1, max_size=10)
exchange = st.tuples(
    words, words, st.lists(words, max_size=3), st.integers(1, 99_999), st.integers(1, 999), st.booleans()
)


@given(st.lists(st.lists(exchange, min_size=1, max_size=5), min_size=1, max_size=3))
def test_every_call_is_sent_once_with_what_the_file_says(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("codex")
    rows = 0
    for number, session in enumerate(drawn):
        log = Log(f"s{number}")
        for index, (asked, answered, results, prompt, output, early) in enumerate(session):
            at = index * 10.0
            log.prompt(at, asked)
            log.item(at + 1, "reasoning", summary=[])
            log.message(at + 2, "assistant", answered)
            for n in range(len(results)):
                log.call(at + 3, f"{index}-{n}")
            if early:
                log.tokens(at + 4, prompt, output)
            for n, result in enumerate(results):
                log.output(at + 5, f"{index}-{n}", result)
            if not early:
                log.tokens(at + 6, prompt, output)
        log.prompt(50, "the end")
        log.message(51, "assistant", "bye")
        rows += len(log.rows)
        log.saved(folder / f"rollout-{number}.jsonl")
    trace = opened(folder)
    assert (trace.rows, trace.sessions, trace.skipped) == (rows, len(drawn), {})
    read = {trace.session(n).session_id: trace.session(n) for n in range(len(drawn))}
    for number, session in enumerate(drawn):
        turns = read[f"s{number}"].turns
        assert len(turns) == len(session) + 1
        before: list[str] = []
        for turn, (asked, answered, results, prompt, output, _) in zip(turns, session, strict=False):
            assert says(turn.messages) == [*(f"tool: {result}" for result in before), f"user: {asked}"]
            assert turn.recorded_answer[0]["content"] == answered
            assert (turn.asked_prompt_tokens, turn.asked_output_tokens) == (prompt, output)
            before = results
    buffer = io.BytesIO()
    sessions = [trace.session(n) for n in range(len(drawn))]
    normal.write(buffer, sessions)
    path = tmp_path_factory.mktemp("normal") / "normal.jsonl"
    path.write_bytes(buffer.getvalue())
    again = open_trace(str(path))
    assert [again.session(n) for n in range(len(drawn))] == sessions
