"""Sessions with branches: how their turns are numbered and cut, what each line's requests hold, and whole runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import Asked, ChatServer, Reply, chat_server
from hypothesis import given
from hypothesis import strategies as st
from siege import Siege, check_conserved, check_passed, plan_text

from infersiege.records import Branch, Message, Outcome, Reason, Session, Turn
from infersiege.traces import Conversation, Synthesizer
from infersiege.traces.formats.normal import write
from infersiege.traces.play.session_lines import cut_session, lines_of
from infersiege.traces.sessions.session_checks import check_branches

SYNTHESIZER = Synthesizer(1)
RUN = "stop = {sessions = 1}"
ONE_USER = 'mode = "closed"\nusers = 1\nramp = "0s"\ndrain = "2s"'
NOTED_NS = 10_000_000
"""The server notes that an answer has ended when its last byte has gone: a busy machine may do so after its client."""


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def turn(name: str, *, delay_ms: int = 0, answer: bool = True, whole: bool = False) -> Turn:
    """Asks `name`, was answered NAME."""
    return Turn(
        messages=(user(name),),
        recorded_answer=(says(name.upper()),) if answer else (),
        delay_ns=delay_ms * 1_000_000,
        replaces_history=whole,
    )


def turns(*names: str) -> tuple[Turn, ...]:
    return tuple(turn(name) for name in names)


AGENT = Session(
    session_id="agent",
    turns=turns("a", "b", "c", "d"),
    branches=(
        Branch(turns=turns("p", "q"), after=0, joined_by=2, inherits=True),
        Branch(turns=(turn("x", delay_ms=150),), after=0),
        Branch(turns=turns("deep"), after=5, joined_by=3, inherits=True),
        Branch(turns=turns("beside")),
    ),
)
"""Turns 0 to 3, then 4 and 5, then 6, 7, 8."""


# ------------------------------------------------------------------------------------------------------------ numbers


def test_turns_are_numbered_through_the_main_line_and_then_each_branch() -> None:
    lines = lines_of(AGENT)
    assert [(line.first_turn, line.end) for line in lines] == [(0, 4), (4, 6), (6, 7), (7, 8), (8, 9)]
    names = "a b c d p q x deep beside"
    assert " ".join(turn.messages[0]["content"] for turn in AGENT.all_turns()) == names


@pytest.mark.parametrize(
    ("max_turns", "names", "branches", "why"),
    [
        (4, "a b c d p q x deep beside", [(0, 2), (0, None), (5, 3), (None, None)], "nothing is cut"),
        (None, "a b c d p q x deep beside", [(0, 2), (0, None), (5, 3), (None, None)], "no limit"),
        (3, "a b c p q x deep beside", [(0, 2), (0, None), (4, None), (None, None)], "nothing joins `deep` any more"),
        (2, "a b p q x deep beside", [(0, None), (0, None), (3, None), (None, None)], "nor the first branch"),
        (1, "a p q x deep beside", [(0, None), (0, None), (2, None), (None, None)], "what starts after turn 0 stays"),
    ],
)
def test_max_turns_cuts_the_main_line_and_what_hung_on_the_rest(
    max_turns: int | None, names: str, branches: list[tuple[int | None, int | None]], why: str
) -> None:
    left = cut_session(AGENT, max_turns)
    assert [turn.messages[0]["content"] for turn in left.all_turns()] == names.split()
    assert [(branch.after, branch.joined_by) for branch in left.branches] == branches, why
    check_branches(left, "here")


def test_a_branch_of_a_branch_that_is_cut_is_cut_too_wherever_it_stands() -> None:
    session = Session(
        session_id="s",
        turns=turns("a", "b"),
        branches=(Branch(turns=turns("inner"), after=3), Branch(turns=turns("outer"), after=1)),
    )
    check_branches(session, "here")
    assert cut_session(session, 1).branches == ()


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Any legal session: a branch starts after some turn before it, and is joined by a later turn of the main line."""
    total = main = draw(st.integers(1, 5))
    branches: list[Branch] = []
    for number in range(draw(st.integers(0, 4))):
        after = draw(st.none() | st.integers(0, total - 1))
        # On the main line, later than the turn that (over other branches) began this one.
        began = after
        while began is not None and began >= main:
            began = _line_of(branches, main, began).after
        later = st.integers(0 if began is None else began + 1, main - 1) if began is None or began + 1 < main else None
        joined = draw(st.none() if later is None else st.none() | later)
        length = draw(st.integers(1, 3))
        inherits = after is not None and draw(st.booleans())
        made = tuple(turn(f"{number}.{place}") for place in range(length))
        branches.append(Branch(turns=made, after=after, joined_by=joined, inherits=inherits))
        total += length
    return Session(session_id="s", turns=turns(*map(str, range(main))), branches=tuple(branches))


def _line_of(branches: list[Branch], main: int, number: int) -> Branch:
    for branch in branches:
        main += len(branch.turns)
        if number < main:
            return branch
    raise AssertionError(number)


@given(session=sessions(), max_turns=st.integers(1, 6))
def test_whatever_is_cut_is_a_legal_session_with_the_same_turns_in_order(session: Session, max_turns: int) -> None:
    left = cut_session(session, max_turns)
    check_branches(left, "here")
    assert left.turns == session.turns[:max_turns]
    before, now = [list(map(id, found.all_turns())) for found in (session, left)]
    assert now == [turn for turn in before if turn in set(now)]
    assert cut_session(left, max_turns) == left


@given(session=sessions(), history=st.sampled_from(("recorded", "live")))
def test_every_turn_of_every_line_is_walked_once(session: Session, history: str) -> None:
    talk = Conversation(session, synthesizer=SYNTHESIZER, history=history)
    assert talk.turns == session.turn_count
    outlines = list(talk.outlines())
    assert [outline.index for outline in outlines] == list(range(session.turn_count))
    for line in lines_of(session):
        assert outlines[line.first_turn].parent == line.after


# ------------------------------------------------------------------------------------------------------------ history


def said(talk: Conversation | None) -> list[str]:
    """What the next request of a line holds."""
    assert talk is not None
    found = talk.next_turn()
    assert found is not None
    return [str(message["content"]) for message in found.messages]


def begun(history: str = "recorded", **more: object) -> Conversation:
    return Conversation(AGENT, synthesizer=SYNTHESIZER, history=history, **more)


@pytest.mark.parametrize(
    ("history", "inherited", "why"),
    [
        ("recorded", ["a", "A", "p"], "the trace's answer"),
        ("live", ["a", "live", "p"], "the engine's"),
    ],
)
def test_a_branch_that_inherits_begins_with_the_history_up_to_the_answer(
    history: str, inherited: list[str], why: str
) -> None:
    talk = begun(history)
    said(talk)
    talk.answered("live")
    first, second = talk.branch(talk.lines[1]), talk.branch(talk.lines[2])
    assert said(first) == inherited, why
    assert said(second) == ["x"], "a history of its own"
    assert first is not None
    first.answered("live")
    assert said(talk)[-1] == "b" and "p" not in said_so_far(talk), "the lines don't see each other"
    assert said(first)[-1] == "q"


def said_so_far(talk: Conversation) -> list[object]:
    return [message["content"] for message, _ in talk._history]


@pytest.mark.parametrize(
    ("history", "first", "answer", "starts", "why"),
    [
        ("recorded", turn("p"), True, True, "the recorded answer stands for the one that failed"),
        ("recorded", turn("p"), False, False, "there is none, and it would begin with it"),
        ("recorded", turn("p", whole=True), False, True, "it brings its whole request"),
        ("live", turn("p"), True, False, "its history does not exist"),
        ("live", turn("p", whole=True), True, True, "it brings its whole request"),
    ],
)
@pytest.mark.parametrize("inherits", [True, False])
def test_a_branch_of_a_turn_that_failed(
    history: str, first: Turn, answer: bool, starts: bool, why: str, inherits: bool
) -> None:
    session = Session(
        session_id="s",
        turns=(turn("a", answer=answer), turn("b")),
        branches=(Branch(turns=(first,), after=0, inherits=inherits),),
    )
    talk = Conversation(session, synthesizer=SYNTHESIZER, history=history)
    said(talk)
    talk.failed()
    if not inherits and history == "recorded":
        starts = True  # It needs nothing of what failed.
    assert (talk.branch(talk.lines[1]) is not None) is starts, why


def test_live_tool_results_of_a_branch_go_to_the_calls_of_the_turn_that_it_starts_after() -> None:
    def call(ident: str) -> dict[str, object]:
        return {"id": ident, "type": "function", "function": {"name": "look", "arguments": "{}"}}

    def result(ident: str) -> Message:
        return {"role": "tool", "tool_call_id": ident, "content": ident}

    calls: Message = {"role": "assistant", "content": None, "tool_calls": [call("r1"), call("r2")]}
    session = Session(
        session_id="s",
        turns=(Turn(messages=(user("a"),), recorded_answer=(calls,)), Turn(messages=(result("r1"),))),
        branches=(Branch(turns=(Turn(messages=(result("r2"),)),), after=0, inherits=True),),
    )
    for history, expected in (("recorded", ["r1", "r2"]), ("live", ["live1", "live1"])):
        talk = Conversation(session, synthesizer=SYNTHESIZER, history=history)
        said(talk)
        talk.answered("", [call("live1"), call("live2")])
        branch = talk.branch(talk.lines[1])
        main = talk.next_turn()
        beside = branch.next_turn() if branch is not None else None
        assert main is not None and beside is not None
        found = [request.messages[-1]["tool_call_id"] for request in (main, beside)]
        assert found == expected, "each line binds its own results, by name and then by order"
        for request in (main, beside):
            asked = {one["id"] for message in request.messages for one in message.get("tool_calls") or ()}
            assert {message.get("tool_call_id") for message in request.messages} - {None} <= asked


def test_the_delay_of_a_branchs_first_turn_counts_and_that_of_the_session_does_not() -> None:
    session = Session(
        session_id="s",
        turns=(turn("a", delay_ms=5), turn("b")),
        branches=(Branch(turns=(turn("p", delay_ms=90),), after=0),),
    )
    outlines = list(Conversation(session, synthesizer=SYNTHESIZER, delay_cap_ns=60_000_000).outlines())
    assert [(one.delay_ns, one.delay_cut_ns) for one in outlines] == [(0, 0), (0, 0), (60_000_000, 30_000_000)]


# ---------------------------------------------------------------------------------------------------------- whole runs


def trace_of(path: Path, *found: Session) -> str:
    with path.open("wb") as file:
        write(file, found)
    return f'scenario = "talk"\ntrace = "{path}"\nsalt = false'


def outcomes(ran: object) -> dict[int, str]:
    rows = sorted(ran.turns, key=lambda row: row.turn)  # type: ignore[attr-defined]
    return {row.turn: row.outcome.value if row.reason is None else f"{row.outcome} {row.reason}" for row in rows}


def slow(*numbers: int, s: float = 0.3) -> Callable[[Asked], Reply]:
    return lambda asked: Reply(after_s=s if asked.turn in numbers else 0.0)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("load", [ONE_USER, 'mode = "open"\nrate = 5\narrivals = "constant"'])
def test_branches_are_played_beside_the_main_line_and_joined_by_it(siege: Siege, tmp_path: Path, load: str) -> None:
    with chat_server(slow(1, 4, 8)) as server:
        workload = trace_of(tmp_path / "t.jsonl", AGENT)
        ran = siege.run(plan_text(server.base_url, run=RUN, load=load, workload=workload), "--skip-doctor")
        check_passed(ran)
        check_conserved(ran)
        asked = server.by_turn()
        assert len(server.asked) == 9
    assert outcomes(ran) == dict.fromkeys(range(9), "ok")
    parents = {row.turn: row.parent_turn for row in ran.turns}
    assert parents == {0: None, 1: 0, 2: 1, 3: 2, 4: 0, 5: 4, 6: 0, 7: 5, 8: None}
    assert asked[8].at_ns < asked[0].ended_ns + 250_000_000, "it starts with the session"
    assert max(asked[1].at_ns, asked[4].at_ns) < min(asked[1].ended_ns, asked[4].ended_ns), "they run at once"
    assert asked[1].connection != asked[4].connection
    assert asked[2].at_ns + NOTED_NS >= max(asked[1].ended_ns, asked[5].ended_ns), "turn 2 joins the first branch"
    assert asked[3].at_ns + NOTED_NS >= max(asked[2].ended_ns, asked[7].ended_ns), "turn 3 joins that of the branch"
    assert asked[6].at_ns >= asked[0].ended_ns + 140_000_000, "its delay counts from the end of turn 0"
    assert asked[5].said == ["user: a", "assistant: A", "user: p", "assistant: P", "user: q"]
    assert asked[7].said[-3:] == ["user: q", "assistant: Q", "user: deep"]
    assert asked[2].said == ["user: a", "assistant: A", "user: b", "assistant: B", "user: c"]
    (account,) = ran.summary.traces
    assert account.sessions_started == 1, "a session with branches is one"


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("history", "fails", "expected", "why"),
    [
        ("recorded", 0, {0: "failed"}, "all of it goes on with the recorded answers"),
        ("recorded", 4, {4: "failed"}, "a branch that fails does not fail the main line"),
        ("live", 4, {4: "failed", 5: "skipped after_failure", 7: "skipped after_failure"},
         "the rest of the branch and what starts from it; what joins it has the trace's messages and goes on"),
        ("live", 0, {0: "failed", **dict.fromkeys(range(1, 8), "skipped after_failure")},
         "the main line and all that starts from it; not what is beside it"),
    ],
)  # fmt: skip
def test_tr_07_a_failure_in_a_session_with_branches(
    siege: Siege, tmp_path: Path, history: str, fails: int, expected: dict[int, str], why: str
) -> None:
    with chat_server(lambda asked: Reply(status=500 if asked.turn == fails else 200)) as server:
        workload = trace_of(tmp_path / "t.jsonl", AGENT) + f'\nhistory = "{history}"'
        ran = siege.run(plan_text(server.base_url, run=RUN, load=ONE_USER, workload=workload), "--skip-doctor")
    check_conserved(ran)
    assert outcomes(ran) == {**dict.fromkeys(range(9), "ok"), **expected}, why


@pytest.mark.slow
@pytest.mark.alone
def test_a_closed_loop_user_takes_its_next_session_when_the_whole_one_is_over(siege: Siege, tmp_path: Path) -> None:
    first = Session(session_id="one", turns=turns("a"), branches=(Branch(turns=turns("p", "q"), after=0),))
    second = Session(session_id="two", turns=turns("b"))
    with chat_server(slow(1, 2, s=0.2)) as server:
        workload = trace_of(tmp_path / "t.jsonl", first, second)
        run = "stop = {sessions = 2}"
        ran = siege.run(plan_text(server.base_url, run=run, load=ONE_USER, workload=workload), "--skip-doctor")
        check_conserved(ran)
        asked = {one.said[-1]: one for one in server.asked}
        assert asked["user: b"].at_ns >= asked["user: q"].ended_ns - NOTED_NS
    assert len(ran.turns) == 4


@pytest.mark.slow
@pytest.mark.alone
def test_a_locustfile_plays_branches_too(tmp_path: Path) -> None:
    trace_of(tmp_path / "t.jsonl", AGENT)
    file = tmp_path / "talk.py"
    file.write_text(
        "from infersiege.plan.schema import Workload\n"
        "from infersiege.swarm.standalone import InferenceUser, install\n"
        "install()\n"
        "class Talk(InferenceUser):\n"
        f"    workload = Workload(scenario='talk', trace={str(tmp_path / 't.jsonl')!r}, salt=False)\n",
        encoding="utf-8",
    )
    with chat_server(slow(1, 4)) as server:
        options = ["--headless", "-u", "1", "-t", "3s", "--host", server.base_url, "--model", "m", "--only-summary"]
        command = [sys.executable, "-m", "locust", "-f", str(file), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        asked = [one for one in server.asked if _session(one) == _session(server.asked[0])]
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = {one.turn: one for one in asked}
    assert sorted(found) == list(range(9)) and len(asked) == 9, "the first session, all of its lines"
    assert max(found[1].at_ns, found[4].at_ns) < min(found[1].ended_ns, found[4].ended_ns), "they run at once"
    assert len(server.asked) > 9, "then comes the next session"


def _session(asked: Asked) -> str:
    return asked.request_id.rpartition(".")[0]


@pytest.mark.slow
def test_a_dry_run_counts_the_turns_of_branches(siege: Siege, tmp_path: Path) -> None:
    late = Session(
        session_id="late",
        turns=(turn("a"), turn("b", delay_ms=90_000)),
        branches=(Branch(turns=(turn("p", delay_ms=61_000),), after=0, inherits=True), Branch(turns=turns("q"))),
    )
    plan = tmp_path / "plan.toml"
    workload = trace_of(tmp_path / "t.jsonl", AGENT, late)
    plan.write_text(plan_text("http://127.0.0.1:1/v1", run="stop = {sessions = 2}", workload=workload), "utf-8")
    code, out = siege.command("run", str(plan), "--dry-run")
    assert code == 0, out
    assert "first 2 sessions: 13 turns" in out and "sessions in all: 2, about 13 turns" in out
    assert "first 2 sessions: talk: 2 delays are cut to delay_cap = 1m, by 31.0 s in all" in out, out
    plan.write_text(plan.read_text("utf-8").replace("salt = false", "salt = false\nmax_turns = 1"), "utf-8")
    code, out = siege.command("run", str(plan), "--dry-run")
    assert "first 2 sessions: 9 turns" in out, "the branches that start after turn 0, and those that start with it"


WIDE = Session(
    session_id="wide",
    turns=turns("a", "b", "c"),
    branches=tuple(Branch(turns=turns(f"p{n}", f"q{n}"), after=0, joined_by=2) for n in range(6)),
)
"""Six subagents at once: turns 3 to 14."""


def _stuck(server: ChatServer) -> None:
    """Until the six branches wait for their answers."""
    deadline = time.monotonic() + 20
    while len(server.asked) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(server.asked) == 8, "turn 0, turn 1, and the first turn of each branch"


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("how", "first", "reason"),
    [("ctrl-c twice", Outcome.CANCELLED, Reason.INTERRUPTED), ("kill -9 worker", Outcome.LOST, Reason.WORKER_LOST),
     ("duration", Outcome.CANCELLED, Reason.RUN_END)],
)  # fmt: skip
def test_whatever_ends_it_every_turn_of_every_branch_has_its_record(
    siege: Siege, tmp_path: Path, how: str, first: Outcome, reason: Reason
) -> None:
    with chat_server(lambda asked: Reply(after_s=0.0 if asked.turn < 2 else 8.0)) as server:
        run = 'duration = "3s"' if how == "duration" else 'duration = "60s"'
        load = ONE_USER.replace('"2s"', '"300ms"' if how == "duration" else '"10s"')
        text = plan_text(server.base_url, run=run, load=load, workload=trace_of(tmp_path / "t.jsonl", WIDE))
        running = siege.start(text, "--skip-doctor")
        _stuck(server)
        if how == "kill -9 worker":
            (pid,) = running.worker_pids().values()
            os.kill(pid, signal.SIGKILL)
        elif how == "ctrl-c twice":
            running.interrupt()
            time.sleep(0.5)
            running.interrupt()
        ran = running.wait(within_s=30)
    check_conserved(ran)
    assert "Traceback" not in ran.out
    assert siege.spools() == []
    rows = {row.turn: row for row in ran.turns}
    assert set(rows) == set(range(15))
    assert Counter(row.outcome for row in rows.values()) == {Outcome.OK: 2, first: 6, Outcome.SKIPPED: 7}
    assert {rows[turn].outcome for turn in range(3, 15, 2)} == {first}, "the first turn of each branch was on its way"
    assert {row.reason for row in rows.values() if row.outcome is not Outcome.OK} == {reason}
    assert [rows[turn].parent_turn for turn in (2, 3, 4, 13, 14)] == [1, 0, 3, 0, 13]
    (account,) = ran.summary.traces
    assert account.sessions_started == 1
