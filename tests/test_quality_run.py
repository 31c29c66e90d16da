"""Checked prompts in whole runs against the emulator: their share, their scores, and answers that collapse."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from chat_server import Reply, chat_server
from siege import Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import PlanError
from infersiege.plan import load_plan
from infersiege.quality import read_score
from infersiege.records import Outcome, Verdict
from infersiege.swarm.source import SessionSource

OPEN = 'mode = "open"\nrate = 25\narrivals = "poisson"'
ITEMS = [
    {"id": "any", "set": "easy", "prompt": "Say anything.", "checks": [{"length": "chars", "min": 1}]},
    {"id": "none", "set": "hard", "prompt": "Say 7.", "checks": [{"number": 7}, {"contains": "seven"}]},
]


def quality_file(tmp_path: Path) -> str:
    path = tmp_path / "checks.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"infersiege_quality": 1}, *ITEMS])))
    return f'[quality]\nfile = "{path}"\n'


def source_of(tmp_path: Path, text: str, *, place: int = 0, members: int = 1) -> SessionSource:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return SessionSource(load_plan(path, (), {}), place=place, members=members)


# ------------------------------------------------------------------------------------------------------- the mix


@pytest.mark.parametrize("load", [OPEN, 'mode = "closed"\nusers = 4'])
@pytest.mark.parametrize("share", [0.02, 0.25, 0.9])
def test_a_share_of_sessions_is_replaced_and_no_arrival_moves(tmp_path: Path, load: str, share: float) -> None:
    run = "stop = {sessions = 2000}\nseed = 11"
    plain = list(source_of(tmp_path, plan_text("http://127.0.0.1:1", load=load, run=run)).tickets())
    more = f"[quality]\nshare = {share}"
    source = source_of(tmp_path, plan_text("http://127.0.0.1:1", load=load, run=run, more=more))
    mixed = list(source.tickets())
    assert [(one.index, one.offset_ns) for one in mixed] == [(one.index, one.offset_ns) for one in plain]
    checked = [one for one in mixed if source.checked_item(one) is not None]
    assert abs(len(checked) - 2000 * share) <= 3, "evenly spread, so the share holds to within a few sessions"
    assert [one.session_index for one in checked] == list(range(len(checked)))
    others = [one for one in mixed if source.checked_item(one) is None]
    assert others == [plain[one.index] for one in others], "the sessions that stay are the same ones"
    for start in range(0, 2000, 400):
        part = sum(start <= one.index < start + 400 for one in checked)
        assert abs(part - 400 * share) <= 3


def test_every_worker_has_its_part_and_together_they_are_one(tmp_path: Path) -> None:
    text = plan_text("http://127.0.0.1:1", load=OPEN, run='duration = "40s"', more="[quality]\nshare = 0.1")
    whole = list(source_of(tmp_path, text).tickets())
    parts = [list(source_of(tmp_path, text, place=place, members=4).tickets()) for place in range(4)]
    assert sorted((one for part in parts for one in part), key=lambda one: one.index) == whole
    counts = [sum(one.workload == 1 for one in part) for part in parts]
    assert max(counts) - min(counts) <= 4, counts


def test_of_two_workloads_both_give_their_share_to_their_own_channel(tmp_path: Path) -> None:
    text = plan_text(
        "http://127.0.0.1:1",
        load=OPEN,
        run="stop = {sessions = 1000}",
        workload='scenario = "short-qa"\ntrace = "builtin:short-qa"\nchannel = "target"',
        more='[channel.other]\nengine = "sglang"\nmodel = "m"\nbase_url = "http://127.0.0.1:2"\n[[workload]]\n'
        'scenario = "agent"\ntrace = "builtin:agent"\nchannel = "other"\n[quality]\nshare = 0.2',
    )
    source = source_of(tmp_path, text)
    channels = Counter(source.channel_of(one)[0] for one in source.tickets() if source.checked_item(one))
    assert channels.keys() == {"target", "other"}
    assert all(abs(count - 100) <= 6 for count in channels.values()), "replacing has nothing to do with dealing"
    ids = [source.session_id(one)[0] for one in source.tickets()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('[quality]\nfile = "none.jsonl"', "none.jsonl: cannot be read"),
        ('[quality]\nfile = "builtin:hard"', "there is no such set"),
        ("[quality]\nshare = 0", "share"),
        ("[quality]\nshare = 1.5", "share"),
        ('[[slo]]\nmetric = "quality"\nstat = "p99"\nmin = 0.9', "has no statistic"),
    ],
)
def test_a_plan_that_can_not_be(tmp_path: Path, more: str, said: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan_text("http://127.0.0.1:1", more=more))
    with pytest.raises(PlanError) as raised:
        load_plan(path, (), {})
    assert said in "\n".join(raised.value.faults), raised.value.faults


def test_the_plan_of_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(plan_text("http://127.0.0.1:1", more=quality_file(tmp_path)))
    plan = load_plan(path, (), {})
    assert msgspec.json.decode(msgspec.json.encode(plan), type=type(plan)) == plan
    assert [workload.scenario for workload in plan.workloads] == ["short-qa", "quality"]
    alone = load_plan(path, ("quality.share=1",), {})
    assert [workload.scenario for workload in alone.workloads] == ["quality"]


# ------------------------------------------------------------------------------------------------------- runs


@pytest.mark.slow
@pytest.mark.alone
def test_checked_prompts_in_a_load_on_two_workers(siege: Siege, tmp_path: Path) -> None:
    rules = '[[slo]]\nmetric = "quality"\nmin = 0.4\nmin_samples = 10\n[[slo]]\nmetric = "quality"\nmin = 0.9\n'
    with EmulatorProcess("--output-tokens", "20") as emulator:
        text = plan_text(
            emulator.base_url,
            load=OPEN,
            run='duration = "4s"',
            more=f"{rules}{quality_file(tmp_path)}share = 0.3",
        )
        ran = siege.run(text, "--workers", "2")
    check_passed(ran)
    check_conserved(ran)
    checked = [turn for turn in ran.turns if turn.scenario == "quality"]
    assert abs(len(checked) - 0.3 * len(ran.turns)) <= 3
    assert {turn.outcome for turn in checked} == {Outcome.OK}, "a failed check is no failed turn"
    assert {turn.quality for turn in checked} == {"pass easy/any", "fail hard/none: number, contains"}
    assert all(turn.quality is None for turn in ran.turns if turn.scenario != "quality")
    summary = ran.summary
    whole = summary.quality[0]
    passed = sum(bool(score and score.passed) for score in (read_score(turn.quality) for turn in checked))
    assert (whole.n, whole.passed) == (len(checked), passed)
    assert whole.failed == {"hard/none: number, contains": whole.n - whole.passed}
    assert {one.set: one.share for one in summary.quality if one.set} == {"easy": 1.0, "hard": 0.0}
    groups = {group.scenario: group for group in summary.groups}
    everything = groups[None]
    assert everything.rates["quality"] == whole.share
    assert everything.counts.ok == len(ran.turns), "they are turns like all others"
    assert everything.distributions["ttft"].n == groups["short-qa"].counts.ok, "but in no percentile of the load"
    assert groups["quality"].distributions["ttft"].n == len(checked)
    rules_of = [rule for rule in summary.rules if rule.metric == "quality"]
    if not summary.invalid:  # as on a machine too busy for its own client
        assert [rule.verdict for rule in rules_of] == [Verdict.PASS, Verdict.NO_DATA if whole.n < 30 else Verdict.FAIL]
    assert not summary.answers and "Checked answers" in ran.out
    page = (ran.path / "report.html").read_text(encoding="utf-8")
    assert "hard/none: number, contains" in page and "Quality of the answers" in page
    assert "Say anything" not in page and all(turn.answer is None for turn in ran.turns) and not summary.wrong_answers


@pytest.mark.slow
def test_a_run_whose_checker_breaks_is_no_pass_and_says_where(siege: Siege, tmp_path: Path) -> None:
    """It says what it finds in the environment, which no key of the channel is, and half a pair of surrogates."""
    secret = "kD2nM8rCq4IvLx1UboY7"
    says = "f\"no{os.environ['INFERSIEGE_SECRET']} \\ud83d\""
    (tmp_path / "own_checks.py").write_text(f"import os, sys\ndef leaves(text, calls):\n    sys.exit({says})\n")
    file = tmp_path / "own.jsonl"
    item = {"id": "any", "prompt": "Say anything.", "checks": [{"callable": "own_checks:leaves"}]}
    file.write_text("\n".join(map(json.dumps, [{"infersiege_quality": 1}, item])))
    with EmulatorProcess("--output-tokens", "20") as emulator:
        more = f'[quality]\nfile = "{file}"\nshare = 0.3\nallow_code = true\n'
        text = plan_text(emulator.base_url, load=OPEN, run='duration = "3s"', more=more)
        siege.environment |= {"PYTHONPATH": str(tmp_path), "INFERSIEGE_SECRET": secret}
        ran = siege.run(text, "--gate")
    # On a loaded machine the load generator may have been too slow as well, and then the run is invalid.
    assert ran.code == (3 if ran.summary.invalid else 5), ran.out
    check_conserved(ran)
    checked = [turn for turn in ran.turns if turn.scenario == "quality"]
    why = "callable own_checks:leaves, line 3 of own_checks.py: SystemExit: no[redacted] \ufffd"
    assert {turn.outcome for turn in ran.turns} == {Outcome.OK}, "no worker ended by it"
    assert {turn.quality for turn in checked} == {f"unscored default/any: {why}"}
    summary = ran.summary
    assert summary.unscored is not None and summary.unscored.first == f"default/any: {why}"
    assert summary.quality == () and summary.groups[0].rates["quality"] is None
    (rule,) = [rule for rule in summary.rules if rule.name == "every check is carried out"]
    assert rule.verdict is (Verdict.INVALID if summary.invalid else Verdict.NO_DATA) and why in rule.detail
    told = [event for event in ran.events if event.kind == "check_broken"]
    assert len(told) == 1 and why in told[0].detail
    assert "every check is carried out" in ran.out and "own_checks.py" in ran.out
    written = [path.read_bytes() for path in ran.path.rglob("*") if path.is_file()]
    assert written and not any(secret.encode() in data for data in (*written, ran.out.encode()))


CALLED = {"id": "c1", "type": "function", "function": {"name": "sunshine", "arguments": '{"city": "Rome"}'}}
KEPT = [
    {"id": "key", "prompt": "Say 7.", "checks": [{"number": 7}]},
    {"id": "right", "prompt": "Say 8.", "checks": [{"number": 8}]},
    {"id": "tool", "prompt": "Weather?", "checks": [{"tool": "weather"}]},
]


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
def test_answers_are_kept_where_the_plan_asks_for_it_and_nowhere_else(
    siege: Siege, tmp_path: Path, wanted: bool
) -> None:
    """The server gives the account's key back, as a proxy's page of errors may."""
    file, key = tmp_path / "kept.jsonl", "tt-83jd02kf93kd"
    file.write_text("\n".join(map(json.dumps, [{"infersiege_quality": 1}, *KEPT])))
    siege.environment["KEPT_KEY"] = key
    replies = {
        "Say 7.": Reply(text=f"<b>No</b>\nyour key is {key}"),
        "Say 8.": Reply(text="8, and a private word"),
        "Weather?": Reply(text="", tool_calls=(CALLED,)),
    }
    with chat_server(lambda asked: replies[asked.body["messages"][-1]["content"]]) as server:
        plan = (
            f'[run]\nstop = {{sessions = 3}}\n[channel.t]\nengine = "openai"\nbase_url = "{server.base_url}"\n'
            f'model = "m"\napi_key_env = "KEPT_KEY"\n[load]\nmode = "closed"\nusers = 1\nramp = "0s"\n'
            f'[quality]\nshare = 1\nfile = "{file}"\nkeep_answers = {str(wanted).lower()}\n'
        )
        ran = siege.run(plan, "--skip-doctor")
    turns = {turn.quality: turn.answer for turn in ran.turns}
    assert turns.keys() == {"fail default/key: number", "pass default/right", "fail default/tool: tool"}, ran.out
    said = {name: answer for name, answer in turns.items() if answer is not None}
    everything = "".join(one.read_text(errors="replace") for one in ran.path.rglob("*") if one.is_file())
    assert key not in everything and "private word" not in everything, "of right answers nothing is kept"
    assert ("sunshine" in everything) == wanted
    if not wanted:
        assert said == {} and ran.summary.wrong_answers == ()
        return
    failed, called = said["fail default/key: number"], said["fail default/tool: tool"]
    assert (failed.text, failed.asked) == ("<b>No</b>\nyour key is [redacted]", ('{"number": 7}',))
    assert (called.text, called.tool_calls, called.calls) == ("", ('sunshine {"city": "Rome"}',), 1)
    before = ran.summary.wrong_answers
    assert [one.prompt for one in before] == ["default/key", "default/tool"]
    for name in ("summary.json", "report.html"):
        (ran.path / name).unlink()
    code, out = siege.command("report", str(ran.path))
    assert code == 0 and ran.summary.wrong_answers == before and "sunshine" in out
    page = (ran.path / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;No&lt;/b&gt;<br>your key is [redacted]" in page


@pytest.mark.slow
@pytest.mark.alone
def test_by_themselves_each_once(siege: Siege) -> None:
    with EmulatorProcess("--output-tokens", "5") as emulator:
        plan = (
            f'[run]\nstop = {{sessions = 42}}\n[channel.t]\nengine = "vllm"\nbase_url = "{emulator.base_url}"\n'
            'model = "emulated-model"\n[load]\nmode = "closed"\nusers = 4\nramp = "0s"\n[quality]\nshare = 1\n'
        )
        ran = siege.run(plan)
    check_passed(ran)
    assert len({turn.session_id for turn in ran.turns}) == len(ran.turns) == 42
    assert ran.summary.quality[0].n == 42
    assert ran.summary.groups[0].distributions["ttft"].n == 42, "where they are all there is, they have their latencies"


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "flag"), [("loop", "repeated"), ("garble", "garbled")])
def test_answers_that_collapse_are_seen_in_ordinary_turns(siege: Siege, fault: str, flag: str) -> None:
    with EmulatorProcess("--output-tokens", "90", "--fault", fault, "--fault-every", "2") as emulator:
        ran = siege.run(plan_text(emulator.base_url, load=OPEN, run='duration = "3s"', workload=SHORT))
    share = sum(flag in turn.flags for turn in ran.turns) / len(ran.turns)
    assert 0.4 < share < 0.6, [turn.flags for turn in ran.turns]
    assert {turn.outcome for turn in ran.turns} == {Outcome.OK}
    (stage,) = ran.summary.answers
    assert getattr(stage, flag) == sum(flag in turn.flags for turn in ran.turns)
    assert any("docs/quality.md" in warning for warning in ran.summary.warnings)


SHORT = 'scenario = "short-qa"\ntrace = "builtin:short-qa"\noptions = {output_p50 = 90, output_sigma = 0.01}'


def test_replayed_sessions_are_replaced_at_their_own_times(tmp_path: Path) -> None:
    trace = tmp_path / "rows.csv"
    rows = [f"2023-11-16 18:15:{second:02d}.0000000,60,12" for second in range(60)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    text = plan_text(
        "http://127.0.0.1:1",
        load='mode = "replay"',
        run='duration = "60s"',
        workload=f'scenario = "code"\ntrace = "{trace}"',
        more="[quality]\nshare = 0.25",
    )
    source = source_of(tmp_path, text)
    tickets = list(source.tickets())
    assert [ticket.offset_ns for ticket in tickets] == [second * 10**9 for second in range(60)]
    assert abs(sum(source.checked_item(ticket) is not None for ticket in tickets) - 15) <= 2
