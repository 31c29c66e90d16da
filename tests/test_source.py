"""The session source: workers together play what one would, an id is one session's, accounts add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege.errors import TraceError, UsageError
from infersiege.plan.load import plan_from_json, plan_json
from infersiege.plan.load_schema import Load, Sine, Stage
from infersiege.plan.schema import Channel, Plan, Run, Stop, Workload
from infersiege.records import Plays
from infersiege.schedule import Ticket
from infersiege.swarm.ledger import request_id_of, workload_key
from infersiege.swarm.source import SessionSource, shown_id

EXAMPLES = Path(__file__).parents[1] / "examples" / "traces"
SECOND = 1_000_000_000
QUICK = {"calls": 3, "calls_max": 5, "prefix_tokens": 200, "task_p50": 200, "append_p50": 50}


def channel(name: str = "m") -> Channel:
    return Channel(engine="vllm", base_url="http://127.0.0.1:8000/v1", model=name)


def plan(
    *workloads: Workload,
    load: Load | None = None,
    run: Run | None = None,
    channels: tuple[str, ...] = ("target",),
) -> Plan:
    return Plan(
        run=run or Run(seed=7, nonce="n", stop=Stop(sessions=20)),
        channels={name: channel(name) for name in channels},
        workloads=workloads or (Workload(scenario="short-qa", trace="builtin:short-qa"),),
        load=load or Load(mode="closed", users=4),
    )


def chat_file(path: Path, ids: list[str]) -> str:
    rows = [
        {"session_id": ident, "messages": [{"role": "user", "content": f"question {number}"}]}
        for number, ident in enumerate(ids)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def played(source: SessionSource, ticket: Ticket) -> tuple[str, int | None, bytes]:
    """(session id, due, all its requests): what a worker does with one ticket."""
    conversation = source.conversation(ticket)
    requests = []
    while (turn := conversation.next_turn()) is not None:
        requests.append((turn.messages, turn.tools, turn.max_tokens, turn.delay_ns))
        conversation.answered("an answer", [])
    assert len(requests) == conversation.turns
    return source.session_id(ticket)[0], ticket.offset_ns, msgspec.json.encode(requests)


MIXED = (
    Workload(scenario="short-qa", trace="builtin:short-qa", weight=3.0),
    Workload(scenario="long-document", trace="builtin:long-document", length_scale=0.02, language="zh"),
    Workload(scenario="agent", trace="builtin:agent", options=QUICK),
)
RISING = (
    Stage(rate=20.0, duration_ns=SECOND),
    Stage(rate=60.0, duration_ns=SECOND, ramp_ns=SECOND // 2, sine=Sine(amplitude=0.5, period_ns=SECOND // 4)),
)
LOADS = [
    (Load(mode="closed", users=7), "users take the next session when they are free"),
    (Load(mode="open", rate=50.0), "Poisson arrivals"),
    (Load(mode="open", rate=50.0, arrivals="constant"), "arrivals on a grid"),
]


def test_di_07_stages_and_loads_side_by_side_are_the_same_on_any_number_of_workers() -> None:
    """Arrivals of each stream, in each stage, and prompts with the stage's salt: on 1, 2 and 7 workers."""
    described = plan(
        MIXED[0],
        msgspec.structs.replace(MIXED[2], scenario="open", load=Load(mode="open", rate=15.0)),
        msgspec.structs.replace(
            MIXED[2], scenario="bursts", load=Load(mode="open", rate=9.0, arrivals="gamma", burstiness=0.3)
        ),
        load=Load(mode="open", stages=RISING, pause_ns=SECOND // 10),
        run=Run(seed=7, nonce="n"),
    )

    def fleet(members: int) -> list[list[tuple[str, int | None, bytes]]]:
        sources = [SessionSource(described, place=place, members=members) for place in range(members)]
        return [
            sorted((played(source, t) for source in sources for t in source.tickets(stream.number)), key=str)
            for stream in sources[0].streams
        ]

    alone = fleet(1)
    assert fleet(2) == fleet(7) == alone
    assert [len(stream) for stream in alone] == [
        pytest.approx(20 + 50, abs=30),
        pytest.approx(30, abs=20),
        pytest.approx(18, abs=18),
    ]
    dues = [due_ns for stream in alone for _, due_ns, _ in stream if due_ns is not None]
    assert not [due_ns for due_ns in dues if SECOND <= due_ns < SECOND + SECOND // 10], "nothing is due in the pause"
    names = Counter(name for stream in alone for name, _, _ in stream)
    assert max(names.values()) == 1, "an id is one session's, whichever load it came with"


def test_ls_11_each_stage_has_a_salt_of_its_own() -> None:
    described = plan(load=Load(mode="open", stages=RISING), run=Run(seed=7, nonce="n"))
    source = SessionSource(described, place=0, members=1)
    first = next(source.tickets())
    assert source.stage_of(first) == "1: 20/s"
    prompts = {
        msgspec.json.encode(turn.messages)
        for stage in ("1: 20/s", "2: 60/s")
        if (turn := source.named_conversation(first, stage)[1].next_turn()) is not None
    }
    assert len(prompts) == 2


@pytest.mark.parametrize(("load", "why"), LOADS, ids=[why for _, why in LOADS])
def test_di_07_tr_08_workers_together_play_what_one_would(load: Load, why: str) -> None:
    """Sessions, due times and prompts to the letter; no two workers play the same row."""
    described = plan(*MIXED, load=load)
    alone = [
        played(source, ticket)
        for source in [SessionSource(described, place=0, members=1)]
        for ticket in source.tickets()
    ]
    assert len(alone) == 20
    for members in (2, 7):
        # As a worker on another host has it: the plan came as JSON.
        sources = [
            SessionSource(plan_from_json(plan_json(described)), place=p, members=members) for p in range(members)
        ]
        together = [played(source, ticket) for source in sources for ticket in source.tickets()]
        assert sorted(together, key=str) == sorted(alone, key=str), why


def test_the_masters_view_of_a_share_is_the_workers_own() -> None:
    """What a lost worker had to play is computed by the master, on the traces that it has open."""
    described = plan(*MIXED, load=Load(mode="open", rate=50.0))
    master = SessionSource(described, place=0, members=1)
    for place in range(3):
        worker = SessionSource(described, place=place, members=3)
        share = master.of_fleet(3).of_place(place)
        assert list(share.tickets()) == list(worker.tickets())
    assert len(list(master.tickets())) == 20, "looking at shares does not change the whole"


def test_another_seed_or_nonce_gives_other_prompts() -> None:
    def first(seed: int, nonce: str) -> tuple[str, int | None, bytes]:
        source = SessionSource(plan(run=Run(seed=seed, nonce=nonce, stop=Stop(sessions=1))), place=0, members=1)
        return played(source, next(source.tickets()))

    assert first(1, "a") == first(1, "a")
    assert first(1, "a") != first(1, "b"), "a cache of the run before must not help"
    assert first(1, "a") != first(2, "a")


def test_ids_stay_unique_when_a_trace_wraps(tmp_path: Path) -> None:
    trace = chat_file(tmp_path / "t.jsonl", ["a", "b", "c"])
    source = SessionSource(plan(Workload(scenario="talk", trace=trace, wrap=True)), place=0, members=1)
    ids = [source.session_id(ticket) for ticket in source.tickets()]
    assert ids[:4] == [("talk:a", 0), ("talk:b", 1), ("talk:c", 2), ("talk:a~1", 0)]
    assert len({name for name, _ in ids}) == 20
    prompts = [played(source, ticket)[2] for ticket in source.tickets()]
    assert len(set(prompts)) == 20, "a repeat has a salt of its own: the cache of the first pass must not help"


@given(st.lists(st.sampled_from(("a", "a~0", "a~1", "a~1~1", "a~2", "~", "~1", "b:c")), unique=True, min_size=1))
def test_an_id_that_looks_like_another_ones_repeat_is_told_apart(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    trace = chat_file(tmp_path_factory.mktemp("trace") / "t.jsonl", names)
    run = Run(seed=1, nonce="n", stop=Stop(sessions=4 * len(names)))
    source = SessionSource(plan(Workload(scenario="s", trace=trace, wrap=True), run=run), place=0, members=1)
    ids = [source.session_id(ticket)[0] for ticket in source.tickets()]
    assert Counter(ids).most_common(1)[0][1] == 1
    requests = Counter(request_id_of("r", name, 0) for name in ids)
    assert requests.most_common(1)[0][1] == 1


NAMESAKES = [
    ((("short-qa", "local"), ("short-qa", "cloud")), "the same workload on two channels"),
    ((("s", "x"), ("s", "y"), ("s.x", "x")), "a scenario that looks like another one's name with its channel"),
    ((("s", "x"), ("s", "y"), ("s:x", "x")), "the same with a colon"),
]


@pytest.mark.parametrize(("pairs", "why"), NAMESAKES, ids=[why for _, why in NAMESAKES])
def test_workloads_never_share_an_id(pairs: tuple[tuple[str, str], ...], why: str) -> None:
    """Two sessions of one id would have one place in the ledger, and one x-request-id."""
    workloads = [Workload(scenario=scenario, trace="builtin:short-qa", channel=name) for scenario, name in pairs]
    source = SessionSource(plan(*workloads, channels=("local", "cloud", "x", "y")), place=0, members=1)
    ids = [source.session_id(ticket)[0] for ticket in source.tickets()]
    assert len(set(ids)) == 20, why


def test_a_trace_id_with_a_colon_is_not_another_scenarios(tmp_path: Path) -> None:
    workloads = [
        Workload(scenario="a", trace=chat_file(tmp_path / "1.jsonl", ["b:c"])),
        Workload(scenario="a:b", trace=chat_file(tmp_path / "2.jsonl", ["c"])),
    ]
    source = SessionSource(plan(*workloads), place=0, members=1)
    assert len({source.session_id(ticket)[0] for ticket in source.tickets()}) == 2


def test_rows_are_started_skipped_or_left(tmp_path: Path) -> None:
    """Conservation of the trace side, per workload, also where two workloads share a scenario."""
    trace = chat_file(tmp_path / "t.jsonl", [f"s{number}" for number in range(6)])
    workloads = [
        Workload(scenario="talk", trace=trace, channel="local"),
        Workload(scenario="talk", trace=trace, channel="cloud", wrap=True),
        Workload(scenario="short-qa", trace="builtin:short-qa", channel="cloud"),
    ]
    source = SessionSource(plan(*workloads, channels=("local", "cloud")), place=0, members=1)
    plays = {
        workload_key("talk", "local"): Plays(taken=5, sent=4),
        workload_key("talk", "cloud"): Plays(taken=9, sent=9, repeats=3),
        workload_key("short-qa", "cloud"): Plays(taken=3, sent=3),
    }
    local, cloud, endless = source.accounts(plays)
    for account in (local, cloud):
        assert account.rows == account.rows_in_sessions == account.sessions == 6 and account.sha256
    assert (local.sessions_taken, local.sessions_started, local.not_started) == (5, 4, 2)
    assert local.repeat_factor == pytest.approx(4 / 6)
    assert (cloud.sessions_started, cloud.sessions_repeated, cloud.not_started, cloud.repeat_factor) == (9, 3, 0, 1.5)
    assert (endless.sessions, endless.sessions_started, endless.not_started) == (None, 3, None)
    assert (endless.rows, endless.rows_in_sessions, endless.repeat_factor) == (None, None, None)
    assert source.accounts({})[0].not_started == 6


def test_a_trace_that_does_not_wrap_ends_a_closed_loop(tmp_path: Path) -> None:
    trace = chat_file(tmp_path / "t.jsonl", ["a", "b", "c"])
    described = plan(Workload(scenario="talk", trace=trace), run=Run(seed=1, nonce="n", duration_ns=SECOND))
    shares = [list(SessionSource(described, place=place, members=2).tickets()) for place in range(2)]
    assert sorted(ticket.session_index for share in shares for ticket in share) == [0, 1, 2]


def test_a_closed_loop_over_a_trace_that_wraps_has_no_end(tmp_path: Path) -> None:
    trace = chat_file(tmp_path / "t.jsonl", ["a"])
    described = plan(Workload(scenario="talk", trace=trace, wrap=True), run=Run(seed=1, nonce="n", duration_ns=SECOND))
    source = SessionSource(described, place=0, members=1)
    names = [source.session_id(ticket)[0] for ticket in islice(source.tickets(), 1000)]
    assert len(set(names)) == 1000


def test_a_replay_without_times_is_refused_before_the_run() -> None:
    with pytest.raises(UsageError):
        SessionSource(plan(load=Load(mode="replay")), place=0, members=1)


def test_trace_hashes_are_of_files_and_follow_their_content(tmp_path: Path) -> None:
    """Master and workers compare them: DI-05."""

    def hashes(names: list[str]) -> dict[str, str]:
        trace = chat_file(tmp_path / "t.jsonl", names)
        workloads = (Workload(scenario="talk", trace=trace), Workload(scenario="qa", trace="builtin:short-qa"))
        return SessionSource(plan(*workloads), place=0, members=1).trace_hashes()

    before = hashes(["a", "b"])
    assert len(before) == 1, "a built-in is the same wherever the version is"
    assert hashes(["a", "b"]) == before
    assert hashes(["a", "x"]) != before


def edited(path: Path, old: bytes, new: bytes) -> None:
    """In place, of the same length."""
    data = path.read_bytes()
    assert len(old) == len(new) and old in data
    with path.open("r+b") as file:
        file.write(data.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [(b"question", b"QUESTION", "text that could be sent"), (b'{"', b"\xfe\xff", "garbage is no fault of its line")],
)
def test_a_session_of_a_trace_that_was_changed_is_not_played(tmp_path: Path, old: bytes, new: bytes, why: str) -> None:
    path = Path(chat_file(tmp_path / "t.jsonl", [f"s{number}" for number in range(3000)]))
    source = SessionSource(plan(Workload(scenario="talk", trace=str(path))), place=0, members=1)
    tickets = list(source.tickets())
    edited(path, old, new)
    with pytest.raises(TraceError, match=r"t\.jsonl: was changed while it was read"):
        for ticket in tickets:
            source.conversation(ticket)
    assert len(tickets) == 20, why


SHOWN = [
    ("s-1", True, "a plain name"),
    ("2b1e-4c1a_x.y~3", True, "an id of a log"),
    ("a@b", True, "an @ alone is no address"),
    ("user-sk-live0123456789abcdef", False, "a key"),
    ("someone@example.org/42", False, "a mail address"),
]


@pytest.mark.parametrize(("session_id", "shown", "why"), SHOWN, ids=[why for *_, why in SHOWN])
def test_an_id_that_looks_like_a_key_or_an_address_is_not_shown(session_id: str, shown: bool, why: str) -> None:
    found = shown_id(session_id)
    assert (found == session_id) is shown, why
    assert shown or ("live0123" not in found and "@" not in found and len(found) < 24)
    assert found == shown_id(session_id) == shown_id(found)


def test_ids_stay_apart_when_they_are_replaced(tmp_path: Path) -> None:
    trace = chat_file(tmp_path / "t.jsonl", [f"sk-live0123456789abcdef-{number}" for number in range(20)])
    source = SessionSource(plan(Workload(scenario="talk", trace=trace)), place=0, members=1)
    for named in (source.session_id, source.named_conversation):
        names = [named(ticket)[0] for ticket in source.tickets()]
        assert len(set(names)) == 20 and not any("sk-" in name for name in names)


SEQUENCE = """
import hashlib, json, sys
from infersiege.plan.load import plan_from_json
from infersiege.swarm.source import SessionSource
source, digest = SessionSource(plan_from_json(sys.stdin.read()), place=0, members=1), hashlib.sha256()
for ticket in source.tickets():
    name, conversation = source.named_conversation(ticket)
    digest.update(f"{ticket} {name}".encode())
    while (turn := conversation.next_turn()) is not None:
        digest.update(f"{turn.delay_ns} {json.dumps(list(turn.messages))}".encode())
        conversation.answered("", [])
print(digest.hexdigest())
"""


def test_what_is_sent_is_no_matter_of_the_process_that_sends_it() -> None:
    """Workers of other hosts have other hash seeds, locales, time zones and homes, or none."""
    traces = ["builtin:short-qa", "builtin:agent", *(str(EXAMPLES / name) for name in ("weka.json", "tau-bench.json"))]
    workloads = [Workload(scenario=f"s{at}", trace=trace, wrap=True) for at, trace in enumerate(traces)]
    text = plan_json(plan(*workloads, load=Load(mode="open", rate=5.0)))
    given = {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo", "HOME": "/"}
    told = [
        subprocess.run(
            [sys.executable, "-c", SEQUENCE],
            input=text.decode(),
            env={**{name: value for name, value in os.environ.items() if name not in given}, **more},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for more in ({}, given)
    ]
    assert told[0] == told[1] and len(told[0].strip()) == 64
