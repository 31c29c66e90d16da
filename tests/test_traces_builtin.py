"""The built-in workloads and the text they are written with."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from infersiege.errors import TraceError
from infersiege.records import Turn
from infersiege.traces import BUILTINS, CHARS_PER_TOKEN, READERS, Conversation, Synthesizer, describe, open_trace
from infersiege.traces.sessions.session_checks import check_branches

SYNTHESIZER = Synthesizer(1)
DOCS = Path(__file__).parents[1] / "docs" / "traces.md"


def turns_of(name: str, sessions: int = 400, **options: object) -> list[Turn]:
    trace = open_trace(f"builtin:{name}", seed=1, options=options)
    return [turn for index in range(sessions) for turn in trace.session(index).turns]


def test_short_qa_lengths_are_as_documented():
    described = describe(open_trace("builtin:short-qa"), sample=4000)
    assert described.prompt_tokens is not None
    assert described.output_tokens is not None
    assert described.prompt_tokens.p50 == pytest.approx(100, rel=0.1)
    assert described.output_tokens.p50 == pytest.approx(130, rel=0.1)
    assert described.output_tokens.p90 == pytest.approx(130 * math.exp(0.86 * 1.2816), rel=0.12)


def test_long_document_lengths_are_as_documented():
    described = describe(open_trace("builtin:long-document"), sample=1500)
    assert described.prompt_tokens is not None
    assert described.output_tokens is not None
    assert described.prompt_tokens.p50 == pytest.approx(8_400, rel=0.1)
    assert described.output_tokens.p50 == pytest.approx(170, rel=0.1)


def test_agent_shape_is_as_documented():
    trace = open_trace("builtin:agent", seed=2)
    sessions = [trace.session(index) for index in range(600)]
    counts = sorted(len(session.turns) for session in sessions)
    assert counts[300] == pytest.approx(45, rel=0.15)
    first = sorted(session.turns[0].asked_prompt_tokens or 0 for session in sessions)
    assert first[300] == pytest.approx(24_000, rel=0.1)
    later = [turn for session in sessions for turn in session.turns[1:]]
    by_tool = [turn for turn in later if turn.messages[0]["role"] == "tool"]
    assert len(by_tool) / len(later) == pytest.approx(0.85, abs=0.02)
    appended = sorted(turn.texts[0].tokens[0] for turn in later if turn.texts[0] is not None)
    assert appended[len(appended) // 2] == pytest.approx(660, rel=0.1)
    assert 0.02 <= sum(tokens >= 10_000 for tokens in appended) / len(appended) <= 0.04
    outputs = sorted(turn.asked_output_tokens or 0 for turn in later)
    assert outputs[len(outputs) // 2] == pytest.approx(216, rel=0.1)
    delays = sorted(turn.delay_ns / 1e9 for turn in by_tool)
    assert delays[len(delays) // 2] == pytest.approx(9, rel=0.1)
    waits = sorted(turn.delay_ns / 1e9 for turn in later if turn.messages[0]["role"] == "user")
    assert waits[len(waits) // 2] == pytest.approx(100, rel=0.15)


def test_agent_prefix_is_shared_and_of_the_asked_size():
    trace = open_trace("builtin:agent")
    synthesizer = Synthesizer(1)
    starts = []
    for index in (0, 1):
        session = trace.session(index)
        turn = Conversation(session, synthesizer=synthesizer).next_turn()
        assert turn is not None
        starts.append((turn.tools, turn.messages[0]))
        assert turn.messages[1]["content"].split()[0] not in {str(seen) for seen in starts[:-1]}
    assert starts[0] == starts[1]
    chars = len(str(starts[0][0])) + len(str(starts[0][1]["content"]))
    assert chars / CHARS_PER_TOKEN["en"] == pytest.approx(15_000, rel=0.1)


def test_agent_asked_prompt_tokens_add_up():
    """What a request is said to hold is what is written into it, by the same ratio."""
    trace = open_trace("builtin:agent", options={"calls": 8}, length_scale=0.1)
    synthesizer = Synthesizer(1)
    conversation = Conversation(trace.session(4), synthesizer=synthesizer)
    while (turn := conversation.next_turn()) is not None:
        chars = len(str(turn.tools)) + sum(
            len(str(m["content"] or "")) + len(str(m.get("tool_calls", ""))) for m in turn.messages
        )
        assert turn.asked_prompt_tokens is not None
        assert chars / CHARS_PER_TOKEN["en"] == pytest.approx(turn.asked_prompt_tokens, rel=0.15)
        conversation.answered("x")


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.01, 0.001])
def test_agent_scales_down_to_small_models(scale):
    trace = open_trace("builtin:agent", length_scale=scale, options={"calls": 5, "calls_sigma": 0})
    turns = trace.session(0).turns
    assert len(turns) == 5
    asked = turns[0].asked_prompt_tokens
    assert asked is not None
    assert asked <= 60_000 * scale + 400
    assert (
        turns[0].asked_output_tokens
        == open_trace("builtin:agent", options={"calls": 5, "calls_sigma": 0}).session(0).turns[0].asked_output_tokens
    ), "output has a scale of its own"


def test_agent_without_tools():
    turns = turns_of("agent", 5, prefix_tokens=0, tool_share=0.0, calls=3)
    assert all(turn.messages[0]["role"] == "user" for turn in turns)
    assert all("tool_calls" not in turn.recorded_answer[0] for turn in turns)


def test_long_document_questions_as_turns_keep_the_document_in_the_history():
    trace = open_trace("builtin:long-document", length_scale=0.01, options={"questions": 3})
    session = trace.session(5)
    assert len(session.turns) == 3
    conversation = Conversation(session, synthesizer=Synthesizer(1))
    requests = []
    while (turn := conversation.next_turn()) is not None:
        requests.append(turn.messages)
        conversation.answered("x")
    assert requests[2][: len(requests[1])] == requests[1]
    assert len({request[-1]["content"] for request in requests}) == 3


def test_long_document_questions_as_sessions_share_the_document():
    options = {"questions": 3, "questions_as": "sessions"}
    trace = open_trace("builtin:long-document", length_scale=0.01, options=options)
    as_turns = open_trace("builtin:long-document", length_scale=0.01, options={"questions": 3})
    sessions = [trace.session(index) for index in range(6)]
    assert [len(session.turns) for session in sessions] == [1] * 6
    documents = [session.turns[0].texts[0] for session in sessions]
    assert documents[0] == documents[1] == documents[2] != documents[3]
    (alone,) = as_turns.session(0).turns[0].texts
    assert documents[0] is not None
    assert alone is not None
    assert (documents[0].scope, documents[0].ids, documents[0].tokens) == (alone.scope, alone.ids, alone.tokens)
    questions = [session.turns[0].messages[0]["content"] for session in sessions]
    assert questions[:3] == [turn.messages[0]["content"] for turn in as_turns.session(0).turns]
    assert len({session.session_id for session in sessions}) == 6


@pytest.mark.parametrize("name", BUILTINS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_builtins_are_deterministic_endless_and_speak_the_language(name, language):
    traces = [open_trace(f"builtin:{name}", seed=3, language=language, length_scale=0.05) for _ in range(2)]
    assert traces[0].sessions is None
    assert [traces[0].session(k) for k in (0, 9, 10**9)] == [traces[1].session(k) for k in (0, 9, 10**9)]
    other = open_trace(f"builtin:{name}", seed=4, language=language, length_scale=0.05)
    assert other.session(9) != traces[0].session(9)
    turn = Conversation(traces[0].session(2), synthesizer=Synthesizer(3)).next_turn()
    assert turn is not None
    text = "".join(str(message["content"]) for message in turn.messages)
    assert bool(re.search("[一-鿿]", text)) is (language == "zh")
    with pytest.raises(IndexError):
        traces[0].session(-1)


def test_limit_makes_a_builtin_finite():
    trace = open_trace("builtin:short-qa", limit=3)
    assert trace.sessions == 3
    with pytest.raises(IndexError):
        trace.session(3)


def test_short_questions_of_two_sessions_differ():
    trace = open_trace("builtin:short-qa", seed=1)
    synthesizer = Synthesizer(1)
    seen = set()
    for index in range(300):
        turn = Conversation(trace.session(index), synthesizer=synthesizer).next_turn()
        assert turn is not None
        seen.add(str(turn.messages))
    assert len(seen) == 300


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"cals": 3}, ["option 'cals' is unknown, did you mean 'calls'?"]),
        ({"zzz": 3}, ["option 'zzz' is unknown"]),
        ({"calls": 0}, ["option 'calls' is at least 1, not 0"]),
        ({"calls": 2.5}, ["option 'calls' is a whole number, not 2.5"]),
        ({"calls": True}, ["option 'calls' is a number, not True"]),
        ({"calls": "3"}, ["option 'calls' is a number, not '3'"]),
        ({"tool_share": 1.5}, ["option 'tool_share' is at most 1, not 1.5"]),
        ({"tool_share": float("nan")}, ["option 'tool_share' is a finite number, not nan"]),
        ({"calls": 10**400}, ["option 'calls' is at most 1e+09, not 1000000000"]),
        ({"calls_max": 10**6}, ["option 'calls_max' is at most 10000, not 1000000"]),
        ({"append_p50": 10**10}, ["option 'append_p50' is at most 1e+09, not 10000000000"]),
        (
            {"cals": 1, "tool_share": -1, "append_p50": "x"},
            ["'cals' is unknown", "'tool_share' is at least 0", "'append_p50' is a number"],
        ),
    ],
)
def test_options_are_checked_all_at_once(options, messages):
    with pytest.raises(TraceError) as caught:
        open_trace("builtin:agent", options=options)
    assert str(caught.value).startswith("builtin:agent: ")
    for message in messages:
        assert message in str(caught.value)
    assert "tool_share" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("long-document", {"questions_as": "tunrs"}, "option 'questions_as' is one of turns, sessions, not 'tunrs'"),
        ("short-qa", {"system_tokens": -1}, "option 'system_tokens' is at least 0"),
    ],
)
def test_choices_and_bounds(name, options, message):
    with pytest.raises(TraceError, match=message):
        open_trace(f"builtin:{name}", options=options)


def test_describing_very_long_sessions_comes_to_an_end():
    """Each request repeats the whole session: to walk it anew for each one would take minutes."""
    found = describe(open_trace("builtin:agent", options={"calls": 10**9, "calls_max": 10_000}))
    assert found.sampled == 20
    assert found.turns == 200_000
    assert found.cache_bound is not None and found.cache_bound > 0.99


def test_a_prefix_that_would_fill_the_memory_is_refused_before_it_is_made():
    with pytest.raises(TraceError, match="tools and system prompts of 150,000,000 tokens, the most is 10,000,000"):
        open_trace("builtin:agent", length_scale=1e4)


def test_whole_numbers_are_taken_where_a_number_is_wanted():
    turns_of("agent", 1, tool_share=1, calls=2)


@pytest.mark.parametrize(
    ("position", "roles", "why"),
    [
        ("before", ["user"], "the document opens the first question, so later turns share it"),
        ("after", ["user"], "two first questions about it share nothing"),
        ("system", ["system", "user"], "the document is the system prompt"),
    ],
)
def test_long_document_position(position, roles, why):
    trace = open_trace("builtin:long-document", options={"position": position, "input_p50": 400})
    session = trace.session(0)
    turn = Conversation(session, synthesizer=SYNTHESIZER).next_turn()
    assert turn is not None
    assert [message["role"] for message in turn.messages] == roles, why
    question = session.turns[0].messages[-1]["content"]
    text = turn.messages[-1]["content"]
    assert (text == question, text.endswith(question), text.startswith(question)) == {
        "before": (False, True, False),
        "after": (False, False, True),
        "system": (True, True, True),
    }[position], why


def test_long_document_sessions_come_back_to_a_few_documents():
    trace = open_trace("builtin:long-document", options={"documents": 5, "questions_as": "sessions", "questions": 1})
    sessions = [trace.session(index) for index in range(400)]
    blocks = [session.turns[0].texts[0] for session in sessions]
    assert {block.ids for block in blocks if block is not None} == {(0,), (1,), (2,), (3,), (4,)}
    lengths = {(block.ids, block.tokens) for block in blocks if block is not None}
    assert len(lengths) == 5, "a document has one length, whoever asks about it"
    questions = {session.turns[0].messages[0]["content"] for session in sessions}
    assert len(questions) > 350, "and each asks a question of his own"
    assert len({session.session_id for session in sessions}) == 400
    bound = describe(trace, sample=400).cache_bound
    assert bound is not None
    assert bound > 0.9


def test_long_document_reuse_can_be_skewed():
    counts = {}
    for skew in (0.0, 1.0):
        trace = open_trace("builtin:long-document", options={"documents": 10, "reuse_skew": skew})
        ids = [block.ids[0] for index in range(600) if (block := trace.session(index).turns[0].texts[0]) is not None]
        counts[skew] = ids.count(0)
    assert 30 < counts[0.0] < 100, "one in ten"
    assert 150 < counts[1.0] < 270, "1 / (1 + 1/2 + ... + 1/10) = 34 %"


def test_different_agents_have_different_prefixes():
    trace = open_trace("builtin:agent", options={"agents": 3, "prefix_tokens": 2_000}, length_scale=0.5)
    sessions = [trace.session(index) for index in range(40)]
    assert len({str(session.tools) for session in sessions}) == 3
    assert len({session.turns[0].texts[0] for session in sessions}) == 3


def test_subagents_work_beside_a_tool_and_are_waited_for():
    trace = open_trace("builtin:agent", options={"subagent_share": 0.5, "calls": 8}, length_scale=0.05)
    plain = open_trace("builtin:agent", options={"calls": 8}, length_scale=0.05)
    branches = 0
    for index in range(30):
        session = trace.session(index)
        check_branches(session, "agent")
        assert session.turns == plain.session(index).turns, "the main line is the same without them"
        for branch in session.branches:
            assert branch.joined_by == (branch.after or 0) + 1
            assert branch.joined_by is not None
            assert session.turns[branch.joined_by].messages[0]["role"] == "tool"
            assert all(turn.tools is not None and len(turn.tools) < len(session.tools or ()) for turn in branch.turns)
            branches += 1
    assert branches > 30


def documented(section: str) -> dict[str, str]:
    """Rows of the table of options: name -> default."""
    return dict(re.findall(r"^\| `([a-z0-9_]+)` \| `([^`]*)` \|", section, flags=re.MULTILINE))


@pytest.mark.parametrize("name", BUILTINS)
def test_docs_name_every_option_of_a_workload_with_its_default(name):
    section = DOCS.read_text(encoding="utf-8").split(f"### `{name}`\n")[1].split("\n#")[0]
    assert documented(section) == {key: str(option.default).lower() for key, option in BUILTINS[name].options.items()}


@pytest.mark.parametrize("name", READERS)
def test_every_format_has_a_page_that_names_its_options_with_their_defaults(name):
    page = (DOCS.parent / "traces-formats" / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# `{name}`")
    assert documented(page) == {key: str(option.default).lower() for key, option in READERS[name].options.items()}
    assert "**Kept**" in page
    assert "**Lost**" in page


def test_docs_name_every_format():
    text = DOCS.read_text(encoding="utf-8")
    for name in [*READERS, *(f"builtin:{name}" for name in BUILTINS)]:
        assert f"`{name}`" in text
