"""Runs that their budget ends, on two workers: what is sent, what is told, and whom the end belongs to."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from siege import SLACK_S, START_S, Ran, Siege, check_conserved, check_passed, plan_text

from infersiege.cost import billed_tokens
from infersiege.emulator.process import EmulatorProcess
from infersiege.records import BudgetUse, Outcome, Reason
from infersiege.report.rebuild import rebuild

pytestmark = [pytest.mark.slow, pytest.mark.alone]

USERS = 4
AT_ONCE = f'mode = "closed"\nusers = {USERS}\nramp = "0s"\ndrain = "5s"'
PRICE = "price = {input = 1.0, output = 10.0}"
LONG = 'duration = "60s"'


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--output-tokens", "20", log=tmp_path / "truth.jsonl") as process:
        yield process


def budgeted(emulator: EmulatorProcess, budget: str, **parts: str) -> str:
    return plan_text(
        emulator.base_url, channel=f"{PRICE}\nbudget = {{{budget}}}", **{"load": AT_ONCE, "run": LONG, **parts}
    )


def sent(ran: Ran) -> list[float]:
    """Costs, tokens and requests of what was sent."""
    turns = [turn for turn in ran.turns if turn.sent_ns is not None]
    return [
        sum(turn.cost or 0.0 for turn in turns),
        sum(map(billed_tokens, turns)),
        sum(turn.attempts for turn in turns),
    ]


def check_ended(ran: Ran, kind: str) -> BudgetUse:
    """The load ended for this budget, everybody is told, and the run is as good as another."""
    (use,) = [use for use in ran.summary.budgets if use.ended_run]
    assert (use.channel, use.kind) == ("target", kind)
    events = [event.kind for event in ran.events]
    assert events[-2:] == ["budget_used_up", "load_ended"], events
    assert ran.events[-1].detail == "budget of channel target is used up"
    assert {turn.reason for turn in ran.turns if turn.outcome is not Outcome.OK} <= {Reason.BUDGET}
    warning = [text for text in ran.summary.warnings if text.startswith("budget of channel target is used up")]
    assert len(warning) == 1 and "of load instead of 1m;" in warning[0], ran.summary.warnings
    page = (ran.path / "report.html").read_text(encoding="utf-8")
    assert "budget used up" in page and "it ended the run" in page
    assert "budget of target: " in ran.out and "; it ended the run" in ran.out
    return use


@pytest.mark.parametrize("kind", ["requests", "tokens", "cost"])
def test_the_budget_ends_the_run_within_one_request_of_each_user(
    kind: str, siege: Siege, emulator: EmulatorProcess
) -> None:
    amount = {"requests": 20, "tokens": 4_000, "cost": 0.01}[kind]
    ran = siege.run(
        budgeted(emulator, f"{kind} = {amount}", more='[[slo]]\nmetric = "error_share"\nmax = 0.01'),
        "--workers",
        "2",
        "--gate",
    )
    check_passed(ran)
    check_conserved(ran)
    use = check_ended(ran, kind)
    cost, tokens, requests = sent(ran)
    used = {"requests": requests, "tokens": tokens, "cost": cost}[kind]
    assert use.used == pytest.approx(used, abs=1e-9) and use.lost == 0
    assert used >= amount, "all of it was used"
    if kind == "requests":
        assert used == amount, "a request is counted before it is sent"
    else:
        turns = [turn for turn in ran.turns if turn.sent_ns is not None]
        dearest = max((turn.cost or 0.0) if kind == "cost" else billed_tokens(turn) for turn in turns)
        assert used <= amount + USERS * dearest
    assert len([row for row in emulator.truth() if row["request_id"].startswith(ran.plan.run_id)]) == requests
    assert {turn.worker for turn in ran.turns if turn.sent_ns is not None} == {"worker-1", "worker-2"}
    assert ran.seconds < START_S + SLACK_S, "long before the minute is over"
    (stage,) = ran.plan.stages
    ended_ns = ran.events[-1].at_ns
    assert stage.steady_ended_ns == pytest.approx(ended_ns, abs=1_000), "figures are of the time until then"
    assert rebuild(ran.directory).budgets == ran.summary.budgets, "the report can be made anew"
    assert "expected cost on target: at most about" in ran.out.split("EMULATED")[0], "said before the load"


def test_a_budget_that_is_used_up_in_the_warm_up_says_so_and_nothing_else(
    siege: Siege, emulator: EmulatorProcess
) -> None:
    """More duration, which is what a run that ends in its warm-up is told, would be used up as well."""
    ran = siege.run(budgeted(emulator, "requests = 6", load=f'{AT_ONCE}\nwarmup = "30s"'), "--gate")
    assert ran.code == 3, ran.out
    (reason,) = ran.summary.invalid
    assert reason.startswith(
        "no steady window was reached: the budget of channel target (6 requests) was used up after"
    )
    assert reason.endswith(
        "before steady began at 30.0 s; raise channel.target.budget.requests, or shorten load.warmup"
    )
    assert not [warning for warning in ran.summary.warnings if "budget" in warning], ran.summary.warnings
    (rule,) = [rule for rule in ran.summary.rules if rule.metric == "delivered_share"]
    assert rule.detail == reason
    assert rebuild(ran.directory).invalid == ran.summary.invalid, "plan.json has it"


def test_ctrl_c_comes_before_a_budget(siege: Siege, emulator: EmulatorProcess) -> None:
    running = siege.start(budgeted(emulator, "requests = 100000"), "--workers", "2")
    running.until('"outcome":"ok"')
    running.interrupt()
    ran = running.wait(within_s=20)
    assert ran.code == 130, ran.out
    check_conserved(ran)
    (use,) = ran.summary.budgets
    assert not use.ended_run and use.used == sent(ran)[2] > 0
    assert "budget_used_up" not in {event.kind for event in ran.events}
    assert f"budget of target: {use.used:,.0f} of 100,000 requests used, {use.amount - use.used:,.0f} left" in ran.out


def test_a_killed_workers_grant_counts_and_the_others_go_on_to_the_end(siege: Siege, emulator: EmulatorProcess) -> None:
    load = 'mode = "closed"\nusers = 16\nramp = "0s"\ndrain = "5s"'
    running = siege.start(budgeted(emulator, "requests = 500", load=load), "--workers", "4")
    running.until('"outcome":"ok"')
    os.kill(running.worker_pids()["worker-1"], signal.SIGKILL)
    ran = running.wait(within_s=40)
    assert ran.code == 3, "a run without one of its workers is invalid, and for nothing else"
    others = ("load not delivered", "client-bound")  # a machine too busy for five processes
    assert all("worker-1 on" in reason or reason.startswith(others) for reason in ran.summary.invalid), (
        ran.summary.invalid
    )
    check_conserved(ran)
    (use,) = ran.summary.budgets
    assert use.ended_run and use.used == 500
    requests = [row for row in emulator.truth() if row["request_id"].startswith(ran.plan.run_id)]
    assert 500 - use.lost <= len(requests) <= 500, "what it had been granted, and may have sent"
    reasons = Counter(turn.reason for turn in ran.turns if turn.outcome in (Outcome.SKIPPED, Outcome.LOST))
    assert set(reasons) <= {Reason.BUDGET, Reason.WORKER_LOST}


def test_retries_count_and_a_run_of_so_many_sessions_may_end_before_them(siege: Siege) -> None:
    """Each second request is refused once: ten turns need fifteen requests, and there are twelve."""
    with EmulatorProcess("--output-tokens", "5", "--fault", "status=503", "--fault-every", "2") as emulator:
        text = plan_text(
            emulator.base_url,
            channel="retries = 5\nbudget = {requests = 12}",
            load='mode = "closed"\nusers = 1\nramp = "0s"',
            run="stop = {sessions = 10}",
        )
        ran = siege.run(text)
    check_conserved(ran)
    assert sum(turn.attempts for turn in ran.turns) == 12
    check_passed(ran)
    assert any("before all sessions were played" in warning for warning in ran.summary.warnings), ran.summary.warnings
    (use,) = ran.summary.budgets
    assert use.ended_run and use.used == 12


def test_of_a_hybrid_channel_the_part_that_serves_pays(siege: Siege) -> None:
    """The first part fails every other time, and the second one, which then serves, has a budget that ends the run."""
    with (
        EmulatorProcess("--output-tokens", "10", "--fault", "status=500", "--fault-every", "2") as broken,
        EmulatorProcess("--output-tokens", "10") as cloud,
    ):
        text = plan_text(
            broken.base_url,
            load=AT_ONCE,
            run=LONG,
            workload='scenario = "short-qa"\ntrace = "builtin:short-qa"\nchannel = "both"',
        )
        text += f"""
[channel.cloud]
engine = "vllm"
base_url = "{cloud.base_url}"
model = "emulated-model"
budget = {{requests = 15}}
[channel.both]
engine = "hybrid"
policy = "failover"
[[channel.both.part]]
channel = "target"
[[channel.both.part]]
channel = "cloud"
"""
        ran = siege.run(text, "--workers", "2")
    check_conserved(ran)
    served = Counter(turn.channel for turn in ran.by_outcome(Outcome.OK))
    assert served["cloud"] == 15 and served["target"] > 0
    (use,) = ran.summary.budgets
    assert (use.channel, use.used, use.ended_run) == ("cloud", 15, True)
    assert ran.events[-1].detail == "budget of channel cloud is used up"
