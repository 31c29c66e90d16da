"""Replay is faithful: delays, histories, limits, repeats and prefixes of whole runs, on real sockets."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from chat_server import Asked, Reply, chat_server
from siege import Ran, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import BlockText, Message, Outcome, Reason, Session, Turn, TurnRecord
from infersiege.traces import describe, open_trace
from infersiege.traces.normal import write

pytestmark = [pytest.mark.slow, pytest.mark.alone]

AT_ONCE = 'mode = "closed"\nusers = 1\nramp = "0s"\ndrain = "2s"'
ASIDE = "--skip-doctor"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def talk(name: str, turns: int, *, delay_ms: int = 0) -> Session:
    made = tuple(
        Turn(messages=(user(f"{name}: q{n}"),), recorded_answer=(says(f"a{n}"),), delay_ns=delay_ms * 1_000_000)
        for n in range(turns)
    )
    return Session(session_id=name, turns=made)


def hashed(name: str, ids: tuple[int, ...], block: int, *, at_ms: int | None = None, output: int = 4) -> Session:
    """One request that is known by its blocks."""
    turn = Turn(
        messages=(user(""),),
        texts=(BlockText(scope="test", ids=ids, tokens=(block,) * len(ids)),),
        replaces_history=True,
        asked_prompt_tokens=block * len(ids),
        asked_output_tokens=output,
    )
    return Session(session_id=name, turns=(turn,), arrival_ns=None if at_ms is None else at_ms * 1_000_000)


def trace_of(path: Path, *sessions: Session, more: str = "salt = false") -> str:
    with path.open("wb") as file:
        write(file, sessions)
    return f'scenario = "talk"\ntrace = "{path}"\n{more}'


def by_turn(ran: Ran) -> list[TurnRecord]:
    return sorted(ran.turns, key=lambda row: (row.scenario, row.session_id, row.turn))


def test_tr_06_every_session_is_played_or_skipped_or_not_started(siege: Siege, tmp_path: Path) -> None:
    """10 sessions, 3 workers, and a time limit in the middle."""
    with chat_server(lambda _: Reply(after_s=0.2)) as server:
        workload = trace_of(tmp_path / "t.jsonl", *(talk(f"s{n}", 4, delay_ms=100) for n in range(10)))
        load = AT_ONCE.replace("users = 1", "users = 3")
        text = plan_text(server.base_url, run='duration = "1600ms"', load=load, workload=workload)
        ran = siege.run(text, ASIDE, "--workers", "3")
    check_conserved(ran)
    (account,) = ran.summary.traces
    started = {row.session_id for row in ran.turns}
    assert account.rows == account.sessions == 10
    assert account.sessions_started == len(started) and account.not_started == 10 - len(started) > 0
    assert Counter(row.session_id for row in ran.turns) == dict.fromkeys(started, 4), "all turns of each"
    skipped = ran.by_outcome(Outcome.SKIPPED)
    assert skipped and {row.reason for row in skipped} == {Reason.RUN_END}


@pytest.mark.parametrize(
    ("history", "expected"),
    [("recorded", ["ok", "failed", "ok", "ok", "ok"]), ("live", ["ok", "failed", "skipped", "skipped", "skipped"])],
)
def test_tr_07_five_turns_of_which_the_second_answers_500(
    siege: Siege, tmp_path: Path, history: str, expected: list[str]
) -> None:
    with chat_server(lambda asked: Reply(status=500 if asked.turn == 1 else 200)) as server:
        workload = trace_of(tmp_path / "t.jsonl", talk("s", 5), more=f'salt = false\nhistory = "{history}"')
        text = plan_text(server.base_url, run="stop = {sessions = 1}", load=AT_ONCE, workload=workload)
        ran = siege.run(text, ASIDE)
    check_conserved(ran)
    assert [row.outcome.value for row in by_turn(ran)] == expected
    assert {row.reason for row in ran.by_outcome(Outcome.SKIPPED)} <= {Reason.AFTER_FAILURE}
    for asked in server.asked:
        roles = [message["role"] for message in asked.body["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], "never user, user"
    if history == "recorded":
        assert server.asked[-1].said[2:4] == ["user: s: q1", "assistant: a1"], "the recorded text stands for the answer"


def test_tr_08_turn_5_is_as_long_in_every_run_when_recorded_and_not_when_live(siege: Siege, tmp_path: Path) -> None:
    """A server with answers of random length; two runs of the same plan."""
    session = talk("s", 5)
    recorded = trace_of(tmp_path / "t.jsonl", session)
    live = recorded.replace('"talk"', '"live"') + '\nhistory = "live"'
    lengths: list[dict[str, int | None]] = []
    for seed in range(2):
        rng = random.Random(seed)

        def reply(asked: Asked, rng: random.Random = rng) -> Reply:
            words = sum(len(str(message["content"]).split()) for message in asked.body["messages"])
            return Reply("word " * rng.randrange(1, 400), prompt_tokens=words)

        with chat_server(reply) as server:
            workload = f"{recorded}\n[[workload]]\n{live}"
            text = plan_text(server.base_url, run="stop = {sessions = 2}", load=AT_ONCE, workload=workload)
            ran = siege.run(text, ASIDE)
        check_conserved(ran)
        lengths.append({row.scenario: row.prompt_tokens for row in ran.turns if row.turn == 4})
    first, second = lengths
    assert first["talk"] == second["talk"] == 14
    assert first["live"] != second["live"]


def test_tr_09_delays_count_from_the_end_of_the_answer_and_caps_are_told(siege: Siege, tmp_path: Path) -> None:
    """Scaled, divided by the speed of a replay, and then capped; the answer takes longer than the delay."""
    delays_ms = (0, 400, 90_000, 100)
    turns = tuple(
        Turn(messages=(user(f"q{n}"),), recorded_answer=(says("a"),), delay_ns=delay * 1_000_000)
        for n, delay in enumerate(delays_ms)
    )
    session = Session(session_id="s", turns=turns, arrival_ns=0)
    more = 'salt = false\ndelay_cap = "300ms"\ndelay_scale = 2.0'
    load = 'mode = "replay"\nspeed = 4.0\ndrain = "2s"'
    with chat_server(lambda asked: Reply(after_s=0.5 if asked.turn == 0 else 0)) as server:
        workload = trace_of(tmp_path / "t.jsonl", session, more=more)
        text = plan_text(server.base_url, run="stop = {sessions = 1}", load=load, workload=workload)
        plan = tmp_path / "dry.toml"
        plan.write_text(text, encoding="utf-8")
        code, before = siege.command("run", str(plan), "--dry-run")
        ran = siege.run(text, ASIDE)
    check_passed(ran)
    check_conserved(ran)
    asked, rows = server.by_turn(), by_turn(ran)
    for turn, wanted_ms in ((1, 200), (2, 300), (3, 50)):
        after_ms = (asked[turn].at_ns - asked[turn - 1].ended_ns) / 1e6
        assert wanted_ms - 5 < after_ms < wanted_ms + 150, (turn, after_ms)
        before_ns = rows[turn - 1].closed_ns
        assert before_ns is not None and rows[turn].due_ns == before_ns + wanted_ms * 1_000_000
    (account,) = ran.summary.traces
    assert (account.capped_delays, round(account.capped_delay_s, 3)) == (1, 44.7)
    line = "talk: 1 delays are cut to delay_cap = 300ms, by 44.7 s in all"
    assert line in ran.summary.warnings
    assert code == 0 and f"first 1 sessions: {line}" in before, before


def long_rows(path: Path, more: str) -> str:
    """500, 6,000 and 900 tokens; and a talk that grows over the limit."""
    growing = Session(
        session_id="grows",
        turns=tuple(
            Turn(messages=(user(f"{n} " + "word " * 800),), recorded_answer=(says("fine"),), asked_output_tokens=4)
            for n in range(4)
        ),
    )
    rows = (hashed(f"row{n}", (n,), tokens) for n, tokens in enumerate((500, 6000, 900)))
    return trace_of(path, *rows, growing, more=more)


def test_tr_11_the_servers_own_context_is_the_limit_and_what_is_over_it_is_skipped(
    siege: Siege, tmp_path: Path
) -> None:
    workload = long_rows(tmp_path / "t.jsonl", "")
    with EmulatorProcess("--max-model-len", "2600", "--prefill-rate", "100000") as emulator:
        ran = siege.run(
            plan_text(emulator.base_url, run="stop = {sessions = 4}", load=AT_ONCE, workload=workload), within_s=60
        )
    check_passed(ran)
    check_conserved(ran)
    outcomes = {(row.session_id.partition(":")[2], row.turn): row.reason or row.outcome for row in ran.turns}
    assert outcomes == {
        ("row0", 0): Outcome.OK,
        ("row1", 0): Reason.TOO_LONG,
        ("row2", 0): Outcome.OK,
        ("grows", 0): Outcome.OK,
        ("grows", 1): Outcome.OK,
        ("grows", 2): Reason.TOO_LONG,
        ("grows", 3): Reason.TOO_LONG,
    }
    assert "talk: the server takes 2,600 tokens; turns over it are skipped" in ran.out
    (account,) = ran.summary.traces
    assert (account.context_limit, account.too_long_turns, account.too_long_sessions) == (2600, 3, 2)
    assert any("3 turns of 2 sessions are skipped" in line for line in ran.summary.warnings), ran.summary.warnings


def test_tr_11_prompts_over_the_context_are_clipped_when_the_plan_says_so(siege: Siege, tmp_path: Path) -> None:
    # Counts of synthesised text are a guess where no tokenizer is known: a little room is left for what it is wrong by.
    workload = long_rows(tmp_path / "t.jsonl", 'too_long = "clip"\ncontext_limit = 2200')
    with EmulatorProcess("--max-model-len", "2600", "--prefill-rate", "100000") as emulator:
        ran = siege.run(plan_text(emulator.base_url, run="stop = {sessions = 4}", load=AT_ONCE, workload=workload))
    check_passed(ran)
    check_conserved(ran)
    assert {row.outcome for row in ran.turns} == {Outcome.OK}, "no 400 for the context"
    cut = {(row.session_id.partition(":")[2], row.turn) for row in ran.turns if "clipped" in row.flags}
    assert cut == {("row1", 0), ("grows", 2), ("grows", 3)}
    (row,) = (row for row in ran.turns if row.session_id.endswith("row1"))
    assert row.asked_prompt_tokens == 2196 and (row.prompt_tokens or 0) > 1500
    (account,) = ran.summary.traces
    assert (account.clipped_turns, account.clipped_sessions, account.too_long_turns) == (3, 2, 0)
    assert any("3 prompts of 2 sessions are cut" in line for line in ran.summary.warnings)
    assert "the server takes" not in ran.out, "the plan has a limit of its own"


def test_tr_12_ten_rows_a_hundred_requests(siege: Siege, tmp_path: Path) -> None:
    """Warned of with the factor, and each repeat has a salt of its own."""
    with chat_server() as server:
        workload = trace_of(tmp_path / "t.jsonl", *(talk(f"s{n}", 1) for n in range(10)), more="wrap = true")
        load = AT_ONCE.replace("users = 1", "users = 4")
        text = plan_text(server.base_url, run="stop = {sessions = 100}", load=load, workload=workload)
        ran = siege.run(text, ASIDE, "--workers", "2")
    check_conserved(ran)
    (account,) = ran.summary.traces
    assert account.repeat_factor == 10.0
    assert any("played 10.0 times" in line for line in ran.summary.warnings), ran.summary.warnings
    salts = Counter(asked.body["messages"][0]["content"].partition("\n")[0] for asked in server.asked)
    assert sorted(salts.values()) == [10] * 10
    assert max(Counter(json.dumps(asked.body["messages"]) for asked in server.asked).values()) == 1


def test_tr_14_input_tokens_are_the_servers_count(siege: Siege, tmp_path: Path) -> None:
    """Rows of 100, 200 and 300 tokens; the server says 7 more for each."""
    rows = [hashed(f"row{n}", (n,), tokens) for n, tokens in enumerate((100, 200, 300))]
    said = {0: 107, 1: 207, 2: 307}
    with chat_server(
        lambda asked: Reply(prompt_tokens=said[int(asked.request_id.partition("row")[2].partition(".")[0])])
    ) as server:
        text = plan_text(
            server.base_url,
            run="stop = {sessions = 3}",
            load=AT_ONCE,
            workload=trace_of(tmp_path / "t.jsonl", *rows),
        )
        ran = siege.run(text, ASIDE)
    check_conserved(ran)
    found = sorted((row.asked_prompt_tokens, row.prompt_tokens, row.tokens_from) for row in ran.turns)
    assert found == [(100, 107, "usage"), (200, 207, "usage"), (300, 307, "usage")]
    assert ran.summary.groups[0].prompt_tokens == 621


@pytest.mark.parametrize("history", ["recorded", "live"])
def test_live_mode_binds_tool_results_to_the_servers_calls_and_recorded_mode_changes_no_id(
    siege: Siege, tmp_path: Path, history: str
) -> None:
    def call(ident: str, name: str) -> dict[str, object]:
        return {"id": ident, "type": "function", "function": {"name": name, "arguments": "{}"}}

    tools = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("oslo", "bergen"))
    answer: Message = {"role": "assistant", "content": None, "tool_calls": [call("r1", "oslo"), call("r2", "bergen")]}
    results = [{"role": "tool", "tool_call_id": ident, "content": ident} for ident in ("r1", "r2")]
    session = Session(
        session_id="s",
        turns=(Turn(messages=(user("weather?"),), recorded_answer=(answer,)), Turn(messages=tuple(results))),
        tools=tools,
    )
    live = (call("live-b", "bergen"), call("live-o", "oslo"))
    with chat_server(lambda asked: Reply("", tool_calls=live) if asked.turn == 0 else Reply()) as server:
        workload = trace_of(tmp_path / "t.jsonl", session, more=f'history = "{history}"')
        text = plan_text(server.base_url, run="stop = {sessions = 1}", load=AT_ONCE, workload=workload)
        ran = siege.run(text, ASIDE)
    check_conserved(ran)
    _, said, *given = server.by_turn()[1].body["messages"]
    calls = {one["id"]: one["function"]["name"] for one in said["tool_calls"]}
    if history == "recorded":
        assert calls == {"r1": "oslo", "r2": "bergen"}
        assert given == results
    else:
        assert calls == {"live-o": "oslo", "live-b": "bergen"}
        assert [(one["tool_call_id"], one["content"]) for one in given] == [("live-o", "r1"), ("live-b", "r2")]


# ------------------------------------------------------------------------------------------------------ prefix sharing


def shared_share(siege: Siege, workload: str, sessions: int) -> float:
    """Share of prompt tokens that an emulator with room for everything found in its cache."""
    options = ("--kv-blocks", "2000000", "--prefill-rate", "10000000", "--max-model-len", "200000")
    with EmulatorProcess(*options, "--max-num-batched-tokens", "200000") as emulator:
        load = 'mode = "closed"\nusers = 1\nramp = "0s"'
        text = plan_text(emulator.base_url, run=f"stop = {{sessions = {sessions}}}", load=load, workload=workload)
        ran = siege.run(text)
    check_conserved(ran)
    assert {row.outcome for row in ran.turns} == {Outcome.OK}, ran.out
    prompt = sum(row.prompt_tokens or 0 for row in ran.turns)
    return sum(row.cached_tokens or 0 for row in ran.turns) / prompt


def test_the_emulators_cache_finds_what_describe_says_can_be_found(siege: Siege, tmp_path: Path) -> None:
    """A tree of hash blocks: the salt and the texts keep what rows share, to the block."""
    rng = random.Random(5)
    rows: list[Session] = []
    known: list[tuple[int, ...]] = [()]
    for number in range(60):
        prefix = rng.choice(known)
        ids = (*prefix, *(number * 100 + n for n in range(rng.randrange(1, 5))))
        known.append(ids)
        rows.append(hashed(f"row{number}", ids, 512, output=2))
    workload = trace_of(tmp_path / "t.jsonl", *rows, more="")
    bound = describe(open_trace(str(tmp_path / "t.jsonl"))).cache_bound
    assert bound is not None and 0.3 < bound < 0.9
    assert shared_share(siege, workload, 60) == pytest.approx(bound, abs=0.01)


def test_a_slice_of_the_mooncake_trace_is_cached_as_much_as_it_can_be(
    siege: Siege, tmp_path: Path, shared: Path
) -> None:
    (path,) = (shared / "traces" / "mooncake").glob("conversation*.jsonl")
    more = f'scenario = "talk"\ntrace = "{path}"\nlimit = 200\nmax_tokens = 2'
    bound = describe(open_trace(str(path), limit=200)).cache_bound
    assert bound is not None
    assert shared_share(siege, more, 200) == pytest.approx(bound, abs=0.01)
