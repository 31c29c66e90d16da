"""Claude Code's session files: one call per message id, results by their ids, rewinds, compactions, subagents."""

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
from infersiege.traces.sessions import session_checks

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
SECOND = 10**9
Row = dict[str, Any]


def text(value: str) -> Row:
    return {"type": "text", "text": value}


def use(ident: str, name: str = "Read", **given: Any) -> Row:
    return {"type": "tool_use", "id": ident, "name": name, "input": given}


def result(ident: str, content: Any) -> list[Row]:
    return [{"type": "tool_result", "tool_use_id": ident, "content": content}]


class Log:
    """Writes rows as Claude Code does: each hangs on the one before, unless told."""

    def __init__(self, session: str = "s1") -> None:
        self.session = session
        self.rows: list[Row] = []
        self.last: str | None = None

    def row(self, kind: str, at: float, *, parent: str | None = "last", agent: str | None = None, **more: Any) -> str:
        uuid = f"{self.session}-{agent or 'main'}-{len(self.rows)}"
        row = {
            "parentUuid": self.last if parent == "last" else parent,
            "isSidechain": agent is not None,
            "sessionId": self.session,
            "type": kind,
            "uuid": uuid,
            "timestamp": f"2026-03-03T08:{int(at) // 60:02d}:{at % 60:06.3f}Z",
            **more,
        }
        if agent is not None:
            row["agentId"] = agent
        self.rows.append(row)
        self.last = uuid
        return uuid

    def user(self, at: float, content: Any, **more: Any) -> str:
        return self.row("user", at, message={"role": "user", "content": content}, **more)

    def answer(self, at: float, ident: str, *blocks: Row, prompt: int = 10, output: int = 5, **more: Any) -> str:
        """A row per block; the output grows from row to row, as it does."""
        uuid = ""
        for number, block in enumerate(blocks, 1):
            usage = {
                "input_tokens": 1,
                "cache_read_input_tokens": prompt - 3,
                "cache_creation_input_tokens": 2,
                "output_tokens": output if number == len(blocks) else 1,
            }
            message = {"id": ident, "role": "assistant", "model": "m", "content": [block], "usage": usage}
            uuid = self.row("assistant", at + number / 100 - len(blocks) / 100, message=message, **more)
            more.pop("parent", None)
        return uuid

    def saved(self, path: Path, rows: list[Row] | None = None) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in (self.rows if rows is None else rows)))
        return path


def opened(path: Path, **options: Any) -> Trace:
    return open_trace(str(path), options={"fill": False, **options})


def only(trace: Trace) -> Session:
    assert trace.sessions == 1
    return trace.session(0)


def requests(session: Session) -> list[list[Row]]:
    """Messages of each request of the main line, as they are sent in recorded mode."""
    conversation = Conversation(session, synthesizer=Synthesizer(1))
    found = []
    while (prepared := conversation.next_turn()) is not None and prepared.index < len(session.turns):
        found.append(prepared.messages)
        conversation.answered("")
    return found


def says(messages: list[Row]) -> list[str]:
    return [f"{message['role']}: {message['content']}" for message in messages]


def test_golden_session_with_parallel_calls_and_a_subagent():
    trace = open_trace("claude-code.jsonl", base=EXAMPLES, options={"fill": False})
    assert (trace.format, trace.rows, trace.sessions, trace.skipped) == ("claude-code", 31, 2, {})
    session = trace.session(0)
    assert (session.session_id, session.arrival_ns) == ("aaaaaaaa-0000-4000-8000-000000000001", 0)
    first, second, third = session.turns
    assert first.messages == ({"role": "user", "content": "Find out why the tide table is empty."},)
    (answer,) = first.recorded_answer
    assert answer["content"] == "I'll read the loader and its test."
    assert [call["id"] for call in answer["tool_calls"]] == ["toolu_a1", "toolu_a2"]
    assert answer["tool_calls"][0]["function"] == {
        "name": "Read",
        "arguments": '{"file_path":"/srv/harbour/tides.py"}',
    }
    assert second.messages == (
        {"role": "tool", "tool_call_id": "toolu_a1", "content": "def load():\n    return []\n"},
        {"role": "tool", "tool_call_id": "toolu_a2", "content": "def test_load():\n    assert load()\n"},
    )
    assert third.messages == ({"role": "tool", "tool_call_id": "toolu_a3", "content": "In data/tides.csv."},)
    assert [turn.asked_prompt_tokens for turn in session.all_turns()] == [15003, 15224, 15332, 4203, 4253]
    assert [turn.asked_output_tokens for turn in session.all_turns()] == [96, 70, 24, 30, 9]
    assert [turn.delay_ns / SECOND for turn in session.all_turns()] == [0, 0.5, 0.25, 0.25, 0.5]
    (branch,) = session.branches
    assert (branch.after, branch.joined_by, branch.inherits) == (1, 2, False)


def test_golden_rewind_then_compaction():
    """What was left by the rewind was sent, too; both replace the history."""
    trace = open_trace("claude-code.jsonl", base=EXAMPLES, options={"fill": False})
    session = trace.session(1)
    assert [turn.replaces_history for turn in session.turns] == [False, False, True, True]
    asked = requests(session)
    assert says(asked[1]) == [
        "user: Which colour has the pier light?",
        "assistant: Green.",
        "user: And the other pier?",
    ]
    assert says(asked[2]) == [
        "user: Which colour has the pier light?",
        "assistant: Green.",
        "user: And the buoy at the entrance?",
    ]
    (compacted,) = asked[3]
    assert [part["type"] for part in compacted["content"]] == ["text", "text", "image_url"]
    assert compacted["content"][2]["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    assert trace.warnings == (
        "thinking of recorded answers is not sent back",
        "lines that were left by an edit or a rewind are sent before the line that went on",
    )


def test_usage_is_counted_once_per_message_id(tmp_path):
    """Each of an answer's rows repeats the usage: summed by rows it is three times too much."""
    log = Log()
    log.user(0, "a")
    blocks = ({"type": "thinking", "thinking": "hm", "signature": "s"}, text("b"), use("t1"))
    log.answer(2, "m1", *blocks, prompt=900, output=40)
    naive = sum(row["message"]["usage"]["cache_read_input_tokens"] for row in log.rows if row["type"] == "assistant")
    session = only(opened(log.saved(tmp_path / "s.jsonl")))
    (turn,) = session.turns
    assert (turn.asked_prompt_tokens, turn.asked_output_tokens) == (900, 40)
    assert naive == 3 * 897


def test_tr_09_delay_counts_from_the_last_row_of_the_answer_to_the_last_result(tmp_path):
    log = Log()
    log.user(0, "a")
    one = log.answer(2, "m1", use("t1"))
    two = log.answer(3, "m1", use("t2"))
    log.user(9, result("t2", "late"), parent=two)
    log.user(4, result("t1", "early"), parent=one)
    log.answer(10, "m2", text("b"))
    log.user(9.5, "rows are flushed out of order at times")
    log.answer(12, "m3", text("c"))
    session = only(opened(log.saved(tmp_path / "s.jsonl")))
    assert [turn.delay_ns / SECOND for turn in session.turns] == [0, 6, 0]
    assert says(list(session.turns[1].messages)) == ["tool: early", "tool: late"]


def test_results_of_parallel_calls_are_found_beside_the_chain(tmp_path):
    """A walk along parentUuid from the next answer meets only the last result (anthropics/claude-code#31330)."""
    log = Log()
    log.user(0, "a")
    rows = [log.answer(1 + n, "m1", use(f"t{n}")) for n in range(3)]
    for n, parent in enumerate(rows):
        log.user(5 + n, result(f"t{n}", f"r{n}"), parent=parent)
    log.answer(9, "m2", text("b"))
    session = only(opened(log.saved(tmp_path / "s.jsonl")))
    assert [message["tool_call_id"] for message in session.turns[1].messages] == ["t0", "t1", "t2"]


def test_calls_that_nothing_answered_are_not_in_the_history(tmp_path):
    """An interrupted tool: servers refuse a history with an open call."""
    log = Log()
    log.user(0, "a")
    log.answer(1, "m1", text("b"), use("t1"), use("t2"))
    log.user(2, result("t2", "r"))
    log.user(3, "stop that")
    log.answer(4, "m2", text("c"), use("t3"))
    trace = opened(log.saved(tmp_path / "s.jsonl"))
    turns = only(trace).turns
    assert [call["id"] for call in turns[0].recorded_answer[0]["tool_calls"]] == ["t2"]
    assert says(list(turns[1].messages)) == ["tool: r", "user: stop that"]
    assert [call["id"] for call in turns[1].recorded_answer[0]["tool_calls"]] == ["t3"], "the last answer stays whole"
    assert trace.warnings == ("tool calls without a result are left out of the history",)


def test_rows_that_no_model_made_and_answers_without_a_question_are_left_out(tmp_path):
    log = Log()
    log.answer(0, "m0", text("the question is in another file"))
    log.user(1, "a")
    error = {"model": "<synthetic>", "id": "x", "content": [text("API Error: 529")]}
    log.row("assistant", 2, message=error, isApiErrorMessage=True)
    log.user(3, "again")
    log.answer(4, "m1", text("b"))
    log.answer(5, "m2", text("c"))
    log.user(6, "never answered")
    trace = opened(log.saved(tmp_path / "s.jsonl"))
    (turn,) = only(trace).turns
    assert says(list(turn.messages)) == ["user: a\n\nagain"]
    assert turn.recorded_answer == ({"role": "assistant", "content": "b\n\nc"},)
    assert trace.warnings == (
        "messages of Claude Code in the model's place are left out",
        "answers that went on without a new message are one answer",
        "answers whose question is not in the file are left out",
    )


def test_tr_01_compaction_sends_the_summary_in_place_of_the_history(tmp_path):
    """Older files have no boundary, only the summary's row; some link it, some don't."""
    for boundary in (True, False):
        log = Log()
        log.user(0, "a" * 400)
        log.answer(1, "m1", text("b" * 400), prompt=200)
        last = log.last
        if boundary:
            log.row("system", 2, parent=None, logicalParentUuid=last, subtype="compact_boundary")
        log.user(3, "summary", isCompactSummary=True)
        log.user(4, "go on")
        log.answer(5, "m2", text("c"), prompt=20)
        log.user(6, "more")
        log.answer(7, "m3", text("d"), prompt=30)
        session = only(opened(log.saved(tmp_path / "s.jsonl")))
        assert [says(messages) for messages in requests(session)[1:]] == [
            ["user: summary\n\ngo on"],
            ["user: summary\n\ngo on", "assistant: c", "user: more"],
        ]
        assert [turn.replaces_history for turn in session.turns] == [False, True, False]


def subagents(
    tmp_path: Path, *, link: str, folder: bool, background: bool = False, tool: str = "Agent"
) -> tuple[Trace, Session]:
    """A main line of three calls; the second starts two subagents at once, the first of which starts one itself."""
    log = Log()
    log.user(0, "a")
    log.answer(1, "m1", text("b"))
    log.user(2, "c")
    one = log.answer(3, "m2", use("t1", tool, prompt="look for x"))
    two = log.answer(3.5, "m2", use("t2", tool, prompt="look for y"))
    agents = {"a1": ("look for x", 4.0, 10.0), "a2": ("look for y", 4.5, 7.0), "a3": ("look deeper", 6.0, 8.0)}
    starters = {"a1": "t1", "a2": "t2", "a3": "t3"}
    main = log.last
    for agent, (prompt, start, end) in agents.items():
        log.last = None
        log.user(start, prompt, agent=agent)
        if agent == "a1":
            log.answer(5, "m-a1", use("t3", tool, prompt="look deeper"), agent=agent)
            more = {"toolUseResult": {"agentId": "a3"}} if link == "result" else {}
            log.user(8.5, result("t3", "found deeper"), agent=agent, **more)
        log.answer(end, f"m-{agent}-end", text("found"), agent=agent)
    log.last = main
    for agent, ident, parent, at in (("a2", "t2", two, 7.5), ("a1", "t1", one, 10.5)):
        status = {"status": "async_launched", "isAsync": True} if background else {"status": "completed"}
        named = {"agentId": agent} if link == "result" else {}
        log.user(at, result(ident, f"{agent} is done"), parent=parent, toolUseResult={**status, **named})
    log.answer(12, "m3", text("d"))
    if link == "prompt":
        for row in log.rows:
            row.pop("agentId", None)
    if not folder:
        path = log.saved(tmp_path / "s1.jsonl")
    else:
        path = tmp_path / "project"
        log.saved(path / "s1.jsonl", [row for row in log.rows if not row["isSidechain"]])
        for agent, ident in starters.items():
            own = [row for row in log.rows if row.get("agentId") == agent]
            log.saved(path / "s1" / "subagents" / f"agent-{agent}.jsonl", own)
            if link == "meta":
                meta = json.dumps({"agentType": "Explore", "toolUseId": ident}, indent=1)
                (path / "s1" / "subagents" / f"agent-{agent}.meta.json").write_text(meta)
        (path / "sessions-index.json").write_text(json.dumps({"version": 1, "entries": []}, indent=2))
    trace = open_trace(str(path), format="claude-code", options={"fill": False})
    return trace, only(trace)


@pytest.mark.parametrize(
    ("link", "folder"),
    [("meta", True), ("result", True), ("result", False), ("prompt", False)],
    ids=["the file beside it", "the tool's result", "the result, in one file", "the prompt, in one file (old)"],
)
def test_subagents_start_with_their_call_and_are_joined_by_the_request_with_their_result(tmp_path, link, folder):
    trace, session = subagents(tmp_path, link=link, folder=folder, tool="Task" if link == "prompt" else "Agent")
    assert len(session.turns) == 3
    by_prompt = {branch.turns[0].messages[0]["content"]: branch for branch in session.branches}
    assert {prompt: (branch.after, branch.joined_by) for prompt, branch in by_prompt.items()} == {
        "look for x": (1, 2),
        "look for y": (1, 2),
        "look deeper": (3, 4),
    }
    delays = {prompt: [t.delay_ns / SECOND for t in branch.turns] for prompt, branch in by_prompt.items()}
    assert delays == {"look for x": [0.5, 0.5], "look for y": [1.0], "look deeper": [1.0]}
    assert session.turns[2].delay_ns == SECOND // 2, "from the end of the last subagent to its result"
    assert trace.warnings == ()
    session_checks.check_branches(session, "here")


def test_subagents_in_the_background_are_waited_for_by_nobody(tmp_path):
    _, session = subagents(tmp_path, link="result", folder=True, background=True)
    assert [(branch.after, branch.joined_by) for branch in session.branches[:2]] == [(1, None), (1, None)]


def test_subagents_whose_start_is_unknown_start_by_their_time(tmp_path):
    log = Log()
    log.user(0, "a")
    log.answer(1, "m1", text("b"))
    log.user(2, "c")
    log.answer(3, "m2", text("d"))
    log.last = None
    log.user(1.5, "on my own", agent="a1")
    log.answer(2.5, "m-a1", text("e"), agent="a1")
    trace = opened(log.saved(tmp_path / "s.jsonl"))
    (branch,) = only(trace).branches
    assert (branch.after, branch.joined_by, branch.turns[0].delay_ns) == (0, None, SECOND // 2)
    assert trace.warnings == (
        "subagents whose start is not in the file start by their time, and nothing waits for them",
    )


def test_file_of_a_subagent_alone_is_a_session(tmp_path):
    log = Log()
    log.user(0, "look", agent="a1")
    log.answer(1, "m1", text("found"), agent="a1")
    session = only(opened(log.saved(tmp_path / "agent-a1.jsonl")))
    assert (len(session.turns), session.branches) == (1, ())


def test_folder_keeps_sessions_apart_and_says_where_a_resumed_one_repeats(tmp_path):
    one, two = Log("s1"), Log("s2")
    for log in (one, two):
        log.user(0, "a")
        log.answer(1, "m1", text("b"))
    two.user(2, "c")
    two.answer(3, "m2", text("d"))
    one.saved(tmp_path / "s1.jsonl")
    two.saved(tmp_path / "s2.jsonl")
    (tmp_path / "sessions-index.json").write_text('{"not": "a transcript"}')
    trace = opened(tmp_path)
    assert (trace.format, trace.rows, trace.sessions) == ("claude-code", 6, 2)
    assert trace.warnings == ("rows of an answer that is in another session, too (resumed sessions begin with a copy)",)


def test_fill_makes_requests_as_long_as_recorded_and_begins_all_sessions_alike(tmp_path):
    """The system prompt and the tools are not in the file; a text of their length stands there, the same in each."""
    rows = []
    for number, (name, prompt) in enumerate((("s1", 12_000), ("s2", 11_500))):
        log = Log(name)
        log.user(0 + 60 * number, "Which way to the harbour? " * 20)
        log.answer(1 + 60 * number, f"m1-{name}", text("b"), prompt=prompt)
        log.user(2 + 60 * number, "And then?")
        log.answer(3 + 60 * number, f"m2-{name}", text("d"), prompt=prompt + 8)
        rows += log.rows
    path = Log().saved(tmp_path / "s.jsonl", rows)
    bare, trace = opened(path), open_trace(str(path))
    blocks = []
    for index in range(2):
        first, second = trace.session(index).turns
        assert first.messages[0] == {"role": "system", "content": ""}
        assert first.messages[1:] == bare.session(index).turns[0].messages
        assert second == bare.session(index).turns[1], "it is in the history"
        assert first.texts[0] is not None
        (tokens,) = first.texts[0].tokens
        asked = first.asked_prompt_tokens
        assert asked is not None
        assert asked - tokens == pytest.approx(130, abs=5), "the rest is the message, by four characters a token"
        blocks.append(first.texts[0])
    texts = [Synthesizer(1).text(block) for block in blocks]
    assert texts[0].startswith(texts[1][: int(len(texts[1]) * 0.99)])
    longer = open_trace(str(path), length_scale=2).session(0).turns[0]
    assert longer.texts[0] is not None
    assert longer.texts[0].tokens[0] == 2 * blocks[0].tokens[0]
    assert longer.asked_prompt_tokens == 12_000 + blocks[0].tokens[0]


def test_fill_follows_every_replaced_history_and_is_another_for_subagents():
    trace = open_trace("claude-code.jsonl", base=EXAMPLES)
    filled = [
        [None if not turn.texts else turn.texts[0] for turn in trace.session(index).all_turns()] for index in range(2)
    ]
    assert [[block.ids[0] if block else None for block in line] for line in filled] == [
        [0, None, None, 1, None],
        [0, None, 0, 0],
    ]
    assert {block.scope for line in filled for block in line if block} == {f"claude-code:{(trace.sha256 or '')[:16]}"}


SECRET = "sk-ant-secret"
MALFORMED = [
    ([SECRET], "is a list, not an object", "no object"),
    ({"sessionId": "s1"}, "type is missing, a string is wanted", "no type"),
    ({"type": {"a": SECRET}}, "type is a dict, a string is wanted", "a type of another kind"),
    ({"type": "user", "message": {}}, "uuid is missing, a string is wanted", "no uuid"),
    (
        {"type": "user", "uuid": "u", "message": SECRET},
        "Expected `object | null`, got `str` - at `$.message`",
        "a message that is none",
    ),
    (
        {"type": "user", "uuid": "u", "message": {"content": {"a": SECRET}}},
        "message.content is no text and no list of blocks",
        "content of another kind",
    ),
    (
        {"type": "user", "uuid": "u", "timestamp": SECRET, "message": {"content": "a"}},
        "timestamp is a string of 13 characters that is no date",
        "no date",
    ),
    (
        {"type": "assistant", "uuid": "u", "message": {"id": "m", "content": [], "usage": SECRET}},
        "message.usage is a str, an object is wanted",
        "usage of another kind",
    ),
    (
        {"type": "assistant", "uuid": "u", "message": {"id": "m", "content": [{"type": "tool_use", "id": 5}]}},
        "name is missing, a string is wanted",
        "a call without a name",
    ),
    (
        {"type": "assistant", "uuid": "u", "sessionId": 5, "message": {"id": "m", "content": []}},
        "Expected `str | null`, got `int` - at `$.sessionId`",
        "a session of another kind",
    ),
]


@pytest.mark.parametrize(("bad", "message", "why"), MALFORMED, ids=[why for *_, why in MALFORMED])
def test_tr_15_malformed_rows_are_refused_with_their_line_and_without_their_text(tmp_path, bad, message, why):
    log = Log()
    log.user(0, SECRET)
    log.answer(1, "m1", text(SECRET))
    path = log.saved(tmp_path / "s.jsonl", [*log.rows, bad])
    with pytest.raises(TraceError) as caught:
        open_trace(str(path), format="claude-code")
    assert str(caught.value).startswith(f"{path}:3: {message}")
    assert SECRET not in str(caught.value) + str(caught.value.hint)


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ({"output_tokens": SECRET}, ":2: output_tokens is a str, a whole number of tokens is wanted"),
        ({"input_tokens": -1}, ":2: input_tokens is below 0"),
        ({"cache_read_input_tokens": 10**12}, ":2: cache_read_input_tokens is more than any request has"),
    ],
)
def test_counts_that_cannot_be_are_refused(tmp_path, usage, message):
    log = Log()
    log.user(0, "a")
    log.answer(1, "m1", text("b"))
    log.rows[1]["message"]["usage"] = usage
    path = log.saved(tmp_path / "s.jsonl")
    with pytest.raises(TraceError) as caught:
        open_trace(str(path))
    assert str(caught.value) == f"{path}{message}"


def test_file_cut_in_its_last_row_is_refused_with_its_line(tmp_path):
    log = Log()
    log.user(0, "a")
    path = log.saved(tmp_path / "s.jsonl")
    path.write_text(path.read_text() + '{"type": "assistant", "uuid": "' + SECRET)
    with pytest.raises(TraceError) as caught:
        open_trace(str(path))
    assert str(caught.value).startswith(f"{path}:2: is not JSON")
    assert SECRET not in str(caught.value)


def test_sessions_without_a_model_call_are_counted(tmp_path):
    one, two = Log("s1"), Log("s2")
    one.user(0, "hello?")
    two.user(1, "a")
    two.answer(2, "m1", text("b"))
    trace = opened(one.saved(tmp_path / "s.jsonl", one.rows + two.rows))
    assert (trace.rows, trace.sessions, trace.skipped) == (3, 1, {"no_model_call": 1})


def test_sniff_takes_no_other_file_and_looks_past_titles_and_snapshots(shared, tmp_path):
    sniff = READERS["claude-code"].sniff
    others = [path for path in (shared / "traces").rglob("*") if path.is_file() and path.stat().st_size]
    others += [path for path in EXAMPLES.iterdir() if not path.name.startswith("claude-code")]
    assert [path for path in others if sniff(Source(path).head())] == []
    log = Log()
    log.user(0, "a" * 300_000)
    assert sniff(Source(log.saved(tmp_path / "long.jsonl")).head())
    titles = [
        {"type": "summary", "summary": "a", "leafUuid": "x"},
        {"type": "mode", "sessionId": "s1", "mode": "normal"},
    ]
    assert sniff(Source(log.saved(tmp_path / "titled.jsonl", [*titles, {**log.rows[0], "message": {}}])).head())
    assert not sniff(Source(log.saved(tmp_path / "titles.jsonl", titles)).head())


words = st.text(min_size=1, max_size=10)
exchanges = st.lists(
    st.tuples(words, words, st.lists(words, max_size=3), st.integers(0, 99_999), st.integers(1, 999), st.booleans()),
    min_size=1,
    max_size=5,
)


@given(st.lists(exchanges, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_every_call_is_sent_once_with_what_the_file_says(tmp_path_factory, drawn, random):
    """Sessions of any exchanges, each answer in as many rows as it has blocks, rows of sessions interleaved, results in
    any order: what is read is what was written, and the normal form keeps it."""
    folder = tmp_path_factory.mktemp("claude")
    logs = []
    for number, session in enumerate(drawn):
        log = Log(f"s{number}")
        for index, (asked, answered, results, prompt, output, noise) in enumerate(session):
            log.user(index, asked)
            if noise:
                log.row("attachment", index, attachment={"type": "task_reminder"})
                log.rows.append({"type": "mode", "sessionId": log.session, "mode": "normal"})
            ident = f"m{number}-{index}"
            parents = [log.answer(index + 0.2, ident, text(answered), prompt=prompt + 3, output=output)]
            for n in range(len(results)):
                usage = {"prompt": prompt + 3, "output": output}
                parents.append(log.answer(index + 0.3, ident, use(f"t{number}-{index}-{n}"), **usage))
            order = list(range(len(results)))
            random.shuffle(order)
            for n in order:
                log.user(index + 0.5, result(f"t{number}-{index}-{n}", results[n]), parent=parents[n + 1])
        log.user(50, "the end")
        log.answer(51, f"m{number}-end", text("bye"))
        logs.append(log)
    rows = [list(log.rows) for log in logs]
    mixed = []
    while any(rows):
        mixed.append(random.choice([queue for queue in rows if queue]).pop(0))
    trace = opened(logs[0].saved(folder / "s.jsonl", mixed))
    assert (trace.rows, trace.sessions, trace.skipped) == (len(mixed), len(drawn), {})
    read = {trace.session(n).session_id: trace.session(n) for n in range(len(drawn))}
    for number, session in enumerate(drawn):
        turns = read[f"s{number}"].turns
        assert len(turns) == len(session) + 1
        asked_before: list[str] = []
        for turn, (asked, answered, results, prompt, output, _) in zip(turns, session, strict=False):
            assert says(list(turn.messages)) == [*(f"tool: {r}" for r in asked_before), f"user: {asked}"]
            assert turn.recorded_answer[0]["content"] == answered
            assert (turn.asked_prompt_tokens, turn.asked_output_tokens) == (prompt + 3, output)
            asked_before = results
    buffer = io.BytesIO()
    sessions = [trace.session(n) for n in range(len(drawn))]
    normal.write(buffer, sessions)
    (folder / "normal.jsonl").write_bytes(buffer.getvalue())
    again = open_trace(str(folder / "normal.jsonl"))
    assert [again.session(n) for n in range(len(drawn))] == sessions
