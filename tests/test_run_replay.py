"""Replay is faithful: delays, histories, limits, repeats and prefixes of whole runs, on real sockets."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from chat_server import Asked, ChatServer, Reply, chat_server
from siege import Ran, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import BlockText, Message, Outcome, Reason, Session, Turn, TurnRecord
from infersiege.traces import describe, open_trace
from infersiege.traces.formats.normal import write

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


def trace_of(path: Path, *sessions: Session, more: str = "salt = false", scenario: str = "talk") -> str:
    with path.open("wb") as file:
        write(file, sessions)
    return f'scenario = "{scenario}"\ntrace = "{path}"\n{more}'


def by_turn(ran: Ran) -> list[TurnRecord]:
    return sorted(ran.turns, key=lambda row: (row.scenario, row.session_id, row.turn))


@dataclass(frozen=True, slots=True)
class Scripted:
    """Two runs of one plan with a workload for each of several tests, against a server that answers by scenario."""

    ran: Ran
    again: Ran
    """With other answers of random length."""
    server: ChatServer
    """Of the first."""

    def rows(self, scenario: str) -> list[TurnRecord]:
        return [row for row in by_turn(self.ran) if row.scenario == scenario]

    def asked(self, scenario: str) -> list[Asked]:
        """In the order in which they came."""
        return [asked for asked in self.server.asked if scenario_of(asked) == scenario]


def scenario_of(asked: Asked) -> str:
    """Its system of names: run, scenario and session, turn."""
    return asked.request_id.partition(":")[0].rpartition(".")[2]


def call(ident: str, name: str) -> dict[str, object]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": "{}"}}


RESULTS: list[Message] = [{"role": "tool", "tool_call_id": ident, "content": ident} for ident in ("r1", "r2")]
LIVE_CALLS = (call("live-b", "bergen"), call("live-o", "oslo"))


def answer_by_scenario(seed: int) -> Callable[[Asked], Reply]:
    rng = random.Random(seed)

    def reply(asked: Asked) -> Reply:
        scenario = scenario_of(asked)
        if scenario.startswith("fails"):
            return Reply(status=500 if asked.turn == 1 else 200)
        if scenario.startswith("tools"):
            return Reply("", tool_calls=LIVE_CALLS) if asked.turn == 0 else Reply()
        if scenario == "lengths":
            return Reply(prompt_tokens=7 + 100 * (1 + int(asked.request_id.partition("row")[2].partition(".")[0])))
        words = sum(len(str(message["content"]).split()) for message in asked.body["messages"])
        return Reply("word " * rng.randrange(1, 400), prompt_tokens=words)

    return reply


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    folder = tmp_path_factory.mktemp("scripted")
    siege = Siege(folder)
    tools = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("oslo", "bergen"))
    answer: Message = {"role": "assistant", "content": None, "tool_calls": [call("r1", "oslo"), call("r2", "bergen")]}
    weather = Session(
        session_id="s",
        turns=(Turn(messages=(user("weather?"),), recorded_answer=(answer,)), Turn(messages=tuple(RESULTS))),
        tools=tools,
    )
    rows = [hashed(f"row{n}", (n,), tokens) for n, tokens in enumerate((100, 200, 300))]
    live = 'salt = false\nhistory = "live"'
    workloads = [
        trace_of(folder / "fails.jsonl", talk("s", 5), scenario="fails"),
        trace_of(folder / "fails.jsonl", talk("s", 5), scenario="fails-live", more=live),
        trace_of(folder / "talk.jsonl", talk("s", 5)),
        trace_of(folder / "talk.jsonl", talk("s", 5), scenario="talk-live", more=live),
        trace_of(folder / "tools.jsonl", weather, scenario="tools-recorded", more=""),
        trace_of(folder / "tools.jsonl", weather, scenario="tools-live", more='history = "live"'),
        trace_of(folder / "rows.jsonl", *rows, scenario="lengths", more="salt = false\nweight = 3"),
    ]
    found: list[tuple[Ran, ChatServer]] = []
    for seed in range(2):
        with chat_server(answer_by_scenario(seed)) as server:
            workload = "\n[[workload]]\n".join(workloads)
            text = plan_text(server.base_url, run="stop = {sessions = 9}", load=AT_ONCE, workload=workload)
            found.append((siege.run(text, ASIDE), server))
        check_conserved(found[-1][0])
    (ran, server), (again, _) = found
    assert {row.scenario for row in ran.turns} == {row.scenario for row in again.turns} and len(ran.turns) == 27
    return Scripted(ran, again, server)


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


def test_tr_07_five_turns_of_which_the_second_answers_500(scripted: Scripted) -> None:
    for scenario, expected in (
        ("fails", ["ok", "failed", "ok", "ok", "ok"]),
        ("fails-live", ["ok", "failed", "skipped", "skipped", "skipped"]),
    ):
        rows = scripted.rows(scenario)
        assert [row.outcome.value for row in rows] == expected
        skipped = {row.reason for row in rows if row.outcome is Outcome.SKIPPED}
        assert skipped == ({Reason.AFTER_FAILURE} if "skipped" in expected else set())
        for asked in scripted.asked(scenario):
            roles = [message["role"] for message in asked.body["messages"]]
            assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], "never user, user"
    last = scripted.asked("fails")[-1]
    assert last.said[2:4] == ["user: s: q1", "assistant: a1"], "the recorded text stands for the answer"


def test_tr_08_turn_5_is_as_long_in_every_run_when_recorded_and_not_when_live(scripted: Scripted) -> None:
    """A server with answers of random length; two runs of the same plan."""
    first, second = (
        {
            row.scenario: row.prompt_tokens
            for row in ran.turns
            if row.turn == 4 and row.scenario in ("talk", "talk-live")
        }
        for ran in (scripted.ran, scripted.again)
    )
    assert first["talk"] == second["talk"] == 14
    assert first["talk-live"] != second["talk-live"]


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


def long_rows(path: Path, more: str, scenario: str = "talk") -> str:
    """500, 6,000 and 900 tokens; and a talk that grows over the limit."""
    growing = Session(
        session_id="grows",
        turns=tuple(
            Turn(messages=(user(f"{n} " + "word " * 800),), recorded_answer=(says("fine"),), asked_output_tokens=4)
            for n in range(4)
        ),
    )
    rows = (hashed(f"row{n}", (n,), tokens) for n, tokens in enumerate((500, 6000, 900)))
    return trace_of(path, *rows, growing, more=more, scenario=scenario)


def test_tr_11_prompts_over_the_context_are_skipped_or_clipped_as_the_plan_says(siege: Siege, tmp_path: Path) -> None:
    """The limit is the server's own where the plan has none."""
    skips = long_rows(tmp_path / "t.jsonl", "")
    # Counts of synthesised text are a guess where no tokenizer is known: a little room is left for what it is wrong by.
    clips = long_rows(tmp_path / "t.jsonl", 'too_long = "clip"\ncontext_limit = 2200', "clips")
    with EmulatorProcess("--max-model-len", "2600", "--prefill-rate", "100000") as emulator:
        workload = f"{skips}\n[[workload]]\n{clips}"
        text = plan_text(emulator.base_url, run="stop = {sessions = 8}", load=AT_ONCE, workload=workload)
        ran = siege.run(text, within_s=60)
    check_passed(ran)
    check_conserved(ran)
    rows = {(row.scenario, row.session_id.partition(":")[2], row.turn): row for row in ran.turns}
    outcomes = {key[1:]: row.reason or row.outcome for key, row in rows.items() if key[0] == "talk"}
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
    accounts = {account.scenario: account for account in ran.summary.traces}
    account = accounts["talk"]
    assert (account.context_limit, account.too_long_turns, account.too_long_sessions) == (2600, 3, 2)
    assert any("3 turns of 2 sessions are skipped" in line for line in ran.summary.warnings), ran.summary.warnings

    clipped = {key[1:]: row for key, row in rows.items() if key[0] == "clips"}
    assert len(clipped) == 7 and {row.outcome for row in clipped.values()} == {Outcome.OK}, "no 400 for the context"
    cut = {key for key, row in clipped.items() if "clipped" in row.flags}
    assert cut == {("row1", 0), ("grows", 2), ("grows", 3)}
    row = clipped["row1", 0]
    assert row.asked_prompt_tokens == 2196 and (row.prompt_tokens or 0) > 1500
    account = accounts["clips"]
    assert (account.clipped_turns, account.clipped_sessions, account.too_long_turns) == (3, 2, 0)
    assert any("3 prompts of 2 sessions are cut" in line for line in ran.summary.warnings)
    assert "clips: the server takes" not in ran.out, "that workload has a limit of its own"


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


def test_tr_14_input_tokens_are_the_servers_count(scripted: Scripted) -> None:
    """Rows of 100, 200 and 300 tokens; the server says 7 more for each."""
    found = sorted((row.asked_prompt_tokens, row.prompt_tokens, row.tokens_from) for row in scripted.rows("lengths"))
    assert found == [(100, 107, "usage"), (200, 207, "usage"), (300, 307, "usage")]
    (group,) = (group for group in scripted.ran.summary.groups if group.scenario == "lengths")
    assert group.prompt_tokens == 621


@pytest.mark.parametrize("history", ["recorded", "live"])
def test_live_mode_binds_tool_results_to_the_servers_calls_and_recorded_mode_changes_no_id(
    scripted: Scripted, history: str
) -> None:
    (asked,) = (asked for asked in scripted.asked(f"tools-{history}") if asked.turn == 1)
    _, said, *given = asked.body["messages"]
    calls = {one["id"]: one["function"]["name"] for one in said["tool_calls"]}
    if history == "recorded":
        assert calls == {"r1": "oslo", "r2": "bergen"}
        assert given == RESULTS
    else:
        assert calls == {"live-o": "oslo", "live-b": "bergen"}
        assert [(one["tool_call_id"], one["content"]) for one in given] == [("live-o", "r1"), ("live-b", "r2")]


# ------------------------------------------------------------------------------------------------------ prefix sharing


@dataclass(frozen=True, slots=True)
class Cached:
    """A run on an emulator with room for everything that it is sent; requests came one after the other."""

    ran: Ran
    bounds: dict[str, float | None]
    """By scenario: what `describe` says can be found."""

    def share(self, scenario: str) -> float:
        """Of prompt tokens, what the emulator found in its cache."""
        rows = [row for row in self.ran.turns if row.scenario == scenario]
        assert rows and {row.outcome for row in rows} == {Outcome.OK}, self.ran.out
        return sum(row.cached_tokens or 0 for row in rows) / sum(row.prompt_tokens or 0 for row in rows)


def tree_of_blocks() -> list[Session]:
    """Sixty requests, each of which begins with some of the blocks of one before it."""
    rng = random.Random(5)
    rows: list[Session] = []
    known: list[tuple[int, ...]] = [()]
    for number in range(60):
        prefix = rng.choice(known)
        ids = (*prefix, *(number * 100 + n for n in range(rng.randrange(1, 5))))
        known.append(ids)
        rows.append(hashed(f"row{number}", ids, 512, output=2))
    return rows


MOONCAKE = Path(__file__).parents[1].parent / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl"


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Cached:
    """The tree, and where the real traces lie beside the checkout, 60 rows of one."""
    folder = tmp_path_factory.mktemp("cached")
    workloads = [trace_of(folder / "tree.jsonl", *tree_of_blocks(), scenario="tree", more="")]
    bounds = {"tree": describe(open_trace(str(folder / "tree.jsonl"))).cache_bound}
    sessions = 60
    if MOONCAKE.exists():
        slice_of = "limit = 60\nlength_scale = 0.25\nmax_tokens = 2"
        workloads.append(f'scenario = "mooncake"\ntrace = "{MOONCAKE}"\n{slice_of}')
        bounds["mooncake"] = describe(open_trace(str(MOONCAKE), limit=60, length_scale=0.25)).cache_bound
        sessions += 60
    options = ("--kv-blocks", "2000000", "--prefill-rate", "10000000", "--max-model-len", "200000")
    with EmulatorProcess(*options, "--max-num-batched-tokens", "200000") as emulator:
        text = plan_text(
            emulator.base_url,
            run=f"stop = {{sessions = {sessions}}}",
            load=AT_ONCE,
            workload="\n[[workload]]\n".join(workloads),
        )
        ran = Siege(folder).run(text)
    check_conserved(ran)
    assert len(ran.turns) == sessions
    return Cached(ran, bounds)


def test_the_emulators_cache_finds_what_describe_says_can_be_found(cached: Cached) -> None:
    """A tree of hash blocks: the salt and the texts keep what rows share, to the block."""
    bound = cached.bounds["tree"]
    assert bound is not None and 0.3 < bound < 0.9
    assert cached.share("tree") == pytest.approx(bound, abs=0.01)


def test_a_slice_of_the_mooncake_trace_is_cached_as_much_as_it_can_be(cached: Cached, shared: Path) -> None:
    bound = cached.bounds["mooncake"]
    assert bound is not None and bound > 0.02
    assert cached.share("mooncake") == pytest.approx(bound, abs=0.01)
