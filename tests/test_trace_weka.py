"""Weka agent sessions: blocks, tails, subagents and their joins."""

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
from infersiege.traces import Conversation, Trace, open_trace
from infersiege.traces.formats import normal
from infersiege.traces.play.session_lines import lines_of
from infersiege.traces.sessions.session_checks import check_branches
from infersiege.traces.synthesis.text import Synthesizer

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"


def request(t: float, tokens: int, *, out: int = 5, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    """A request of 16-token blocks."""
    return {"t": t, "type": "n", "in": tokens, "out": out, "hash_ids": ids or list(range(1, tokens // 16 + 1)), **more}


def subagent(t: float, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "requests": list(requests), **more}


def document(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "s", "block_size": 16, "hash_id_scope": "local", "requests": list(requests), **more}


def opened(path: Path, *documents: Any, options: dict[str, object] | None = None) -> Trace:
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
    return open_trace(str(path), format="weka", options=options)


def session_of(path: Path, *requests: dict[str, Any], options: dict[str, object] | None = None) -> Session:
    session = opened(path, document(*requests), options=options).session(0)
    check_branches(session, "made")
    return session


def shape(branches: tuple[Branch, ...]) -> list[tuple[int | None, int | None, float]]:
    """(after, joined by, first delay in s)."""
    return [(branch.after, branch.joined_by, branch.turns[0].delay_ns / 1e9) for branch in branches]


def all_of(trace: Trace) -> list[Session]:
    assert trace.sessions is not None
    return [trace.session(index) for index in range(trace.sessions)]


def test_the_example_becomes_exactly_this():
    trace = open_trace("weka.json", base=EXAMPLES)
    assert (trace.rows, trace.sessions, trace.skipped, trace.arrivals_ns) == (1, 1, {}, None)
    session = trace.session(0)
    assert session.session_id == "bakery-refactor"
    # The last waits for the explorer, whose last answer came 1.75 s before.
    assert [turn.delay_ns / 1e9 for turn in session.turns] == [0, 5.5, 1.75]
    assert [turn.asked_prompt_tokens for turn in session.all_turns()] == [70, 112, 130, 40, 64, 20, 33]
    assert [turn.asked_output_tokens for turn in session.all_turns()] == [40, 24, 30, 12, 20, 6, 8]
    assert all(turn.replaces_history for turn in session.all_turns())
    # The explorer (turns 3 and 4), its own helper (5), and the planner (6), for which nobody waits.
    assert shape(session.branches) == [(0, 2, 1.75), (3, 4, 1.0), (2, None, 1.5)]
    assert [turn.delay_ns / 1e9 for turn in session.branches[0].turns] == [1.75, 1.5]
    text = session.turns[0].texts[0]
    assert text is not None
    assert text.scope == f"weka:{trace.sha256[:16]}:bakery-refactor"
    assert (text.ids, text.tokens) == ((1, 2, 3, 4, -1), (16, 16, 16, 16, 6))
    whole = session.turns[1].texts[0]
    assert whole is not None
    assert (whole.ids, set(whole.tokens)) == ((1, 2, 3, 4, 5, 6, 7), {16})


def test_tail_is_text_that_no_other_request_has(tmp_path):
    session = session_of(tmp_path / "a.json", request(0, 20), request(9, 20), request(20, 36))
    texts = [turn.texts[0] for turn in session.turns]
    assert [text.ids for text in texts if text] == [(1, -1), (1, -2), (1, 2, -3)]
    write = Synthesizer(1).text
    first, second, third = (write(text) for text in texts if text)
    block = first.split("\n")[0]
    assert second.startswith(block) and third.startswith(block)
    assert len({first.split("\n")[-1], second.split("\n")[-1], third.split("\n")[-1]}) == 3


def test_ids_of_two_local_files_are_never_the_same_text(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(document(request(0, 32), id=name), indent=1))
    (tmp_path / "LICENSE.md").write_text("not a trace")
    sessions = all_of(open_trace(str(tmp_path), format="weka"))
    assert [session.session_id for session in sessions] == ["a", "b"]
    assert len({session.turns[0].texts[0].scope for session in sessions}) == 2


def test_global_ids_are_the_same_text_in_all_sessions_but_tails_are_not():
    pear, plum = all_of(open_trace("weka.lines.jsonl", base=EXAMPLES))
    assert {turn.texts[0].scope for session in (pear, plum) for turn in session.turns} == {pear.turns[0].texts[0].scope}
    assert pear.turns[0].texts[0].ids[:3] == plum.turns[0].texts[0].ids[:3] == (1, 2, 3)
    tails = [turn.texts[0].ids[-1] for session in (pear, plum) for turn in session.turns if turn.texts[0].ids[-1] < 0]
    assert len(tails) == len(set(tails)) == 3


def test_a_folder_may_hold_documents_over_many_lines_and_documents_a_line(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(document(request(0, 32), id="a"), indent=2))
    rows = [json.dumps(document(request(0, 32), id=name)) for name in ("b", "c")]
    (tmp_path / "b.jsonl").write_text("\n".join(["", *rows, ""]))
    (tmp_path / "d.json").write_text(json.dumps(document(request(0, 32), id="d")))
    sessions = all_of(open_trace(str(tmp_path)))
    assert [(session.session_id, session.source_line) for session in sessions] == [
        ("a", 1), ("b", 2), ("c", 3), ("d", 1)
    ]  # fmt: skip


def test_tr_09_delay_counts_from_the_end_of_the_answer(tmp_path):
    session = session_of(
        tmp_path / "a.json",
        request(0, 32, api_time=10.5),
        request(15, 32, think_time=5.0),  # no api_time: the next delay is what the recording says it was
        request(60, 32, think_time=12.0, api_time=1),
        request(60.5, 32),  # within the rounding of t: it follows at once
        request(70, 32),
    )
    assert [turn.delay_ns / 1e9 for turn in session.turns] == [0, 4.5, 12.0, 0, 9.5]
    assert session.branches == ()


SUBAGENTS = [
    ("before_any_request", [subagent(0, request(0, 16)), request(5, 32)], [(None, 0, 0)]),
    ("joined_by_the_first_request_after_its_end",
     [request(0, 32, api_time=1), subagent(2, request(0, 16), duration_ms=4000), request(3, 32), request(6, 32)],
     [(0, 2, 1.0)]),
    ("joined_by_nobody", [request(0, 32, api_time=1), subagent(2, request(0, 16), duration_ms=9e3), request(3, 32)],
     [(0, None, 1.0)]),
    ("without_a_duration_it_ends_with_its_last_answer",
     [request(0, 32, api_time=1), subagent(2, request(0, 16, api_time=3)), request(4, 32), request(5, 32)],
     [(0, 2, 1.0)]),
    ("beside_an_answer_that_is_still_out",
     [request(0, 32, api_time=1), request(2, 32, api_time=9), subagent(4, request(0, 16))], [(0, None, 3.0)]),
    ("nested_before_any_request_of_its_parent_starts_with_it",
     [request(0, 32, api_time=1), subagent(2, subagent(1, request(0, 16)), request(5, 16)), request(9, 32)],
     [(0, 1, 4.0), (0, 2, 2.0)]),
    ("one_that_asked_nothing_hands_its_own_on",
     [request(0, 32, api_time=1), subagent(2, subagent(1, request(0, 16), duration_ms=50)), request(9, 32)],
     [(0, None, 2.0)]),
]  # fmt: skip


@pytest.mark.parametrize(("requests", "expected"), [row[1:] for row in SUBAGENTS], ids=[row[0] for row in SUBAGENTS])
def test_subagents_run_beside_their_parent(tmp_path, requests, expected):
    session = session_of(tmp_path / "a.json", *requests)
    assert shape(session.branches) == expected


JOINING = [
    # requests, delays of the main line in s, why
    ([request(0, 32, api_time=1), subagent(2, request(0, 16, api_time=97)), request(100, 32)], [0, 1],
     "from the subagent's last answer at 99 s, not from the parent's at 1 s"),
    ([request(0, 32, api_time=1), subagent(2, request(0, 16, api_time=4), duration_ms=90e3), request(100, 32)], [0, 94],
     "what the subagent did after its last answer is no request, so the parent waits for that, too"),
    ([request(0, 32, api_time=1), subagent(2, request(0, 16), duration_ms=90e3), request(100, 32)], [0, 8],
     "its last answer has no end, so it is the subagent's"),
    ([request(0, 32, api_time=1), subagent(2, request(0, 16, api_time=3)), subagent(3, request(0, 16, api_time=90)),
      request(100, 32)], [0, 7], "the later of two"),
    ([request(0, 32, api_time=1), subagent(2, request(0, 16, api_time=4)), request(4, 32, api_time=40),
      request(50, 32)], [0, 3, 6], "the parent's own answer came later"),
    ([request(0, 32), subagent(2, request(0, 16, api_time=4)), request(20, 32, think_time=12)], [0, 12],
     "the answer before had no end but 12 s to think, from 8 s on"),
    ([request(0, 32), subagent(2, request(0, 16, api_time=14)), request(20, 32, think_time=12)], [0, 4],
     "and the subagent ended within these"),
]  # fmt: skip


@pytest.mark.parametrize(("requests", "delays_s", "why"), JOINING, ids=[row[2] for row in JOINING])
def test_tr_09_what_joins_subagents_counts_from_the_last_of_what_it_waits_for(tmp_path, requests, delays_s, why):
    session = session_of(tmp_path / "a.json", *requests)
    assert [turn.delay_ns / 1e9 for turn in session.turns] == delays_s, why


def test_a_session_starts_with_its_first_request_on_whatever_line(tmp_path):
    """Two subagents were at work before the parent asked anything; its first request waits for both."""
    requests = [subagent(0, request(3, 16, api_time=1)), subagent(10, request(2, 16, api_time=1)), request(100, 32)]
    session = session_of(tmp_path / "a.json", *requests, options={"nested_times": "subagent"})
    assert shape(session.branches) == [(None, 0, 0.0), (None, 0, 9.0)]
    assert [turn.delay_ns / 1e9 for turn in session.turns] == [87.0]
    first = Conversation(session, synthesizer=Synthesizer(1)).next_turn()
    assert first is not None and first.delay_ns == 87_000_000_000, "which is played"


def test_a_parent_that_only_has_subagents(tmp_path):
    session = session_of(tmp_path / "a.json", subagent(3, request(2, 16, out=2)), subagent(3, request(0, 32, out=3)))
    assert [turn.asked_output_tokens for turn in session.turns] == [3], "the first to start is the main line"
    assert shape(session.branches) == [(None, None, 2.0)]


@pytest.mark.parametrize(
    ("option", "first", "delay_s"),
    [("auto", 50.0, 4.0), ("auto", 0.0, 4.0), ("subagent", 1.0, 5.0), ("session", 51.0, 5.0), ("auto", 1.0, 5.0)],
)
def test_times_inside_of_a_subagent_count_from_it_or_from_the_session(tmp_path, option, first, delay_s):
    requests = [request(0, 32, api_time=46), subagent(50, request(first, 16), request(first + 3, 16), duration_ms=9e3)]
    session = session_of(tmp_path / "a.json", *requests, options={"nested_times": option})
    assert shape(session.branches) == [(0, None, delay_s)]
    assert session.branches[0].turns[1].delay_ns == 3_000_000_000


def test_a_request_that_starts_while_another_is_out_runs_beside_it(tmp_path):
    path = tmp_path / "a.json"
    trace = opened(
        path, document(request(0, 32, api_time=1), request(3, 48, api_time=20), request(5, 16), request(30, 32))
    )
    session = trace.session(0)
    assert [turn.asked_prompt_tokens for turn in session.turns] == [32, 48, 32]
    assert shape(session.branches) == [(0, None, 4.0)]
    assert trace.warnings == ("requests that started while the one before was out run beside it",)


def test_requests_that_cannot_be_sent_are_left_out_and_counted(tmp_path):
    trace = opened(
        tmp_path / "a.json",
        document(request(0, 32, out=0), request(1, 32), request(2, 0, out=4), id="a"),
        document(request(0, 32, out=0), id="b"),
        document(id="c"),
        document({"t": 0, "type": "s", "in": 30, "out": 2}, id="d"),
    )
    assert (trace.rows, trace.sessions, trace.skipped) == (4, 2, {"no_output": 1, "no_requests": 1})
    assert [session.turn_count for session in all_of(trace)] == [1, 1]
    assert trace.warnings[:2] == (
        "requests without input or output tokens are left out (2 times)",
        "requests without hash_ids share no text",
    )


MALFORMED = [
    ("[1]", "a.json:1: is a list, not an object"),
    ("{", "a.json:1: is not JSON"),
    (document(request(0, 32), id=""), "a.json:1: id is a str, the session's name is wanted"),
    (document(block_size=0), "a.json:1: block_size is 0"),
    (document(block_size=None), "a.json:1: block_size is 'None', a whole number"),
    (document(hash_id_scope="world"), "a.json:1: hash_id_scope is a text of 5 characters, local or global is wanted"),
    (document() | {"requests": {}}, "a.json:1: requests is a dict, a list is wanted"),
    (document(3), "a.json:1: requests[0] is a int, an object is wanted"),
    (document(request(0, 32) | {"type": "x"}), "a.json:1: requests[0]: type is a text of 1 characters, n, s or"),
    (document(request(5, 32), request(4, 32)), "a.json:1: requests[1]: t went back from 5 s to 4 s"),
    (document(request(-1, 32)), "a.json:1: requests[0]: t is -1 s, a time of at least 0 is wanted"),
    (document(request(1e12, 32)), "a.json:1: requests[0]: t is 316 centuries"),
    (document(request(0, 32, ids=[1])), "a.json:1: requests[0]: 1 hash_ids for 32 tokens, 2 whole blocks of 16"),
    (document(request(0, 32, ids=[1, -2])), "a.json:1: requests[0]: hash_ids is no list of whole numbers"),
    (document(request(0, 32, ids=[1, True])), "a.json:1: requests[0]: hash_ids is no list of whole numbers"),
    (document(request(0, 32) | {"in": "many"}), "a.json:1: requests[0]: in is a text of 4 characters, a whole number"),
    (document(request(0, 32, api_time=-2)), "a.json:1: requests[0]: api_time is -2 s"),
    (document(subagent(1, request(0, 16, out=-1))), "a.json:1: requests[0].requests[0]: out is '-1'"),
    (document(subagent(1, request(0, 16), duration_ms="x")),
     "a.json:1: requests[0]: duration_ms is a text of 1 characters, a number"),
    (document({"t": 1, "type": "subagent"}), "a.json:1: requests[0].requests is missing, a list is wanted"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), MALFORMED, ids=[row[1][10:60] for row in MALFORMED])
def test_malformed_documents_are_told_with_their_place(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TraceError) as caught:
        open_trace(str(path), format="weka")
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_subagents_nested_without_end_are_refused(tmp_path):
    nested = subagent(0, request(0, 16))
    for _ in range(80):
        nested = subagent(0, nested)
    with pytest.raises(TraceError, match="nested more than 64 deep"):
        opened(tmp_path / "a.json", document(nested))


def test_the_line_of_a_wrong_row_and_a_session_twice(tmp_path):
    good = document(request(0, 32), id="a")
    with pytest.raises(TraceError, match=r"a\.jsonl:2: requests\[0\]: in is missing"):
        opened(tmp_path / "a.jsonl", good, document({"t": 0, "type": "n"}, id="b"))
    with pytest.raises(TraceError, match=r"b\.jsonl:3: session 'a' was at .*b\.jsonl:1 already"):
        opened(tmp_path / "b.jsonl", good, document(request(0, 32), id="b"), good)


def test_scales_change_lengths_and_keep_what_is_shared(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document(request(0, 40, out=9), request(5, 56, out=1))))
    session = open_trace(str(path), length_scale=0.75, output_scale=0.1).session(0)
    assert [turn.texts[0].tokens for turn in session.turns if turn.texts[0]] == [(12, 12, 6), (12, 12, 12, 6)]
    assert [(turn.asked_prompt_tokens, turn.asked_output_tokens) for turn in session.turns] == [(30, 1), (42, 1)]


REQUESTS = st.builds(
    lambda gap, tokens, out, api, think, kind: {
        "gap": gap, "type": kind, "in": tokens, "out": out,
        "hash_ids": list(range(tokens // 16)), "api_time": api, "think_time": think,
    },
    st.integers(0, 20), st.integers(0, 70), st.integers(0, 9), st.one_of(st.none(), st.integers(0, 30)),
    st.one_of(st.none(), st.integers(0, 30)), st.sampled_from("ns"),
)  # fmt: skip
LISTS = st.recursive(
    st.lists(REQUESTS, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            REQUESTS,
            st.builds(
                lambda gap, requests, duration: {
                    "gap": gap, "type": "subagent", "requests": requests, "duration_ms": duration,
                },
                st.integers(0, 20), inner, st.one_of(st.none(), st.integers(0, 60_000)),
            ),
        ),
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


def timed(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gaps -> times."""
    made, now = [], 0
    for one in requests:
        now += one["gap"]
        row = {key: value for key, value in one.items() if key != "gap"} | {"t": now}
        if "requests" in row:
            row["requests"] = timed(row["requests"])
        made.append(row)
    return made


def sendable(requests: list[dict[str, Any]]) -> list[tuple[int, int]]:
    found = []
    for one in requests:
        found += sendable(one["requests"]) if "requests" in one else [(one["in"], one["out"])]
    return [(tokens, out) for tokens, out in found if tokens and out]


def numbered(requests: list[dict[str, Any]], base_s: int, starts_s: dict[int, int], ends_s: dict[int, int]) -> None:
    """Give each request a length of its own, by which it is known; note when it was sent and answered."""
    for one in requests:
        if "requests" in one:
            numbered(one["requests"], base_s + one["t"], starts_s, ends_s)
            continue
        one["in"], one["hash_ids"] = 1 + len(starts_s), []
        starts_s[one["in"]] = base_s + one["t"]
        ends_s[one["in"]] = base_s + one["t"] + one["api_time"]


def replayed_s(session: Session, took_s: dict[int, int]) -> dict[int, float]:
    """When each request is sent, from the session's start, if each takes as long as it did."""
    lines, turns = lines_of(session), list(session.all_turns())
    sent: dict[int, float] = {}

    def ended(number: int) -> float:
        length = turns[number].asked_prompt_tokens
        assert length is not None
        if length not in sent:
            line = next(line for line in lines if line.holds(number))
            before = line.after if number == line.first_turn else number - 1
            waits = [other.end - 1 for other in lines if other.joined_by == number]
            waits += [] if before is None else [before]
            sent[length] = max(map(ended, waits), default=0.0) + turns[number].delay_ns / 1e9
        return sent[length] + took_s[length]

    for number in range(len(turns)):
        ended(number)
    return sent


SECONDS = st.integers(0, 20).map(lambda value: 2 * value)  # so that nothing overlaps by less than the rounding of t
TIMED = st.builds(
    lambda gap, api: {"gap": gap, "type": "n", "in": 1, "out": 1, "hash_ids": [], "api_time": api}, SECONDS, SECONDS
)
TREES = st.recursive(
    st.lists(TIMED, min_size=1, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            TIMED,
            st.builds(
                lambda gap, requests, more: {"gap": gap, "type": "subagent", "requests": requests, **more},
                SECONDS, inner, st.one_of(st.just({}), st.integers(0, 60).map(lambda two: {"duration_ms": 2000 * two})),
            ),
        ),
        min_size=1, max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_tr_09_a_replay_at_the_recorded_speed_sends_every_request_when_it_was_sent(tmp_path_factory, tree):
    requests = timed(tree)
    starts_s: dict[int, int] = {}
    ends_s: dict[int, int] = {}
    numbered(requests, 0, starts_s, ends_s)
    path = tmp_path_factory.mktemp("weka") / "a.json"
    session = opened(path, document(*requests, block_size=99), options={"nested_times": "subagent"}).session(0)
    check_branches(session, "made")
    sent_s = replayed_s(session, {name: ends_s[name] - start for name, start in starts_s.items()})
    began_s = min(starts_s.values())
    assert sent_s == {name: start - began_s for name, start in starts_s.items()}


@given(st.lists(LISTS, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_read_to_normal_form_and_back_is_equal_and_every_request_is_there(tmp_path_factory, sessions):
    folder = tmp_path_factory.mktemp("weka")
    documents = [document(*timed(requests), id=f"s{number}") for number, requests in enumerate(sessions)]
    wanted = [sendable(one["requests"]) for one in documents]
    if not any(wanted):
        return
    trace = opened(folder / "a.jsonl", *documents)
    assert trace.rows == len(documents) == len(all_of(trace)) + sum(trace.skipped.values())
    made = all_of(trace)
    assert [
        sorted((turn.asked_prompt_tokens, turn.asked_output_tokens) for turn in one.all_turns()) for one in made
    ] == [sorted(one) for one in wanted if one]
    for session in made:
        check_branches(session, "made")
        assert all(turn.delay_ns >= 0 for turn in session.all_turns())
        tails = [text.ids[-1] for turn in session.all_turns() for text in turn.texts if text and text.ids[-1] < 0]
        assert len(tails) == len(set(tails))
    buffer = io.BytesIO()
    normal.write(buffer, made)
    (folder / "normal.jsonl").write_bytes(buffer.getvalue())
    assert all_of(open_trace(str(folder / "normal.jsonl"))) == made


def test_real_files_agree_with_their_own_totals(shared):
    folder = shared / "traces" / "weka"
    trace = open_trace(str(folder))
    assert (trace.format, trace.rows, trace.sessions, trace.skipped, trace.warnings) == ("weka", 11, 11, {}, ())
    blocks = tails = 0
    for session in all_of(trace):
        recorded = json.loads((folder / f"{session.session_id}.json").read_text())
        totals = recorded["totals"]
        turns = list(session.all_turns())
        assert len(session.branches) == totals["subagent_count"]
        assert sum(turn.asked_prompt_tokens or 0 for turn in turns) == totals["combined_tokens"]["input"]
        assert sum(turn.asked_output_tokens or 0 for turn in turns) == totals["combined_tokens"]["output"]
        assert sum(turn.asked_prompt_tokens or 0 for turn in session.turns) == totals["parent_tokens"]["input"]
        for turn in turns:
            text = turn.texts[0]
            assert text is not None and turn.asked_prompt_tokens is not None
            assert sum(ident >= 0 for ident in text.ids) == turn.asked_prompt_tokens // 64, "floor(in / 64)"
            blocks += turn.asked_prompt_tokens // 64
            tails += text.ids[-1] < 0
    assert (blocks, tails) == (51_053, 95), (
        "as many hash_ids as there are in the files; one of 96 requests ends with a whole block"
    )


def test_real_subagents_overlap_and_join(shared):
    session = open_trace(str(shared / "traces" / "weka" / "trace_0277.json")).session(0)
    check_branches(session, "trace_0277")
    assert len(session.turns) == 9
    # The first is over before the parent's next request; two more run on while the parent goes on; the last ends it.
    assert [(branch.after, branch.joined_by, len(branch.turns)) for branch in session.branches] == [
        (0, 1, 4), (0, 7, 12), (0, 7, 17), (6, None, 11)
    ]  # fmt: skip
    # Turns 1 and 7 wait for subagents: 92.886 s after the last answer at 135.114 s, 363.593 s after that at 399.407 s.
    assert [round(turn.delay_ns / 1e9, 2) for turn in session.turns] == [
        0, 92.89, 7.76, 8.35, 6.87, 11.58, 33.6, 363.59, 7.59
    ]  # fmt: skip
