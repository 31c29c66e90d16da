"""`infersiege run` on real sockets: what is asked is sent, what is sent is on record, and the figures are true."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from siege import SLACK_S, START_S, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import Outcome, Phase, Reason, StampSource
from infersiege.schedule import open_tickets

pytestmark = [pytest.mark.slow, pytest.mark.alone]

AT_ONCE = 'mode = "closed"\nusers = 4\nramp = "0s"'


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--output-tokens", "20", log=tmp_path / "truth.jsonl") as process:
        yield process


def test_closed_loop_on_two_workers_agrees_with_the_servers_log(siege: Siege, emulator: EmulatorProcess) -> None:
    ran = siege.run(plan_text(emulator.base_url, load='mode = "closed"\nusers = 6\nwarmup = "500ms"'), "--workers", "2")
    check_passed(ran)
    check_conserved(ran)
    truth = {row["request_id"]: row for row in emulator.truth()}
    turns = ran.turns
    assert len(turns) > 10
    assert {turn.worker for turn in turns} == {"worker-1", "worker-2"}
    # The preflight's own request is in the log too, under an id of its own.
    assert {turn.request_id for turn in turns if turn.sent_ns} == set(truth) & {turn.request_id for turn in turns}
    for turn in turns:
        row = truth[turn.request_id]
        assert turn.outcome is Outcome.OK, turn
        assert turn.output_tokens == row["output_tokens"]
        assert turn.prompt_tokens == row["prompt_tokens"]
        assert turn.cached_tokens == row["cached_tokens"]
        assert turn.chunks == row["chunks"]
        assert turn.stamp_source is StampSource.KERNEL
        assert turn.first_token_ns is not None and turn.sent_ns is not None
        true_ttft_ns = row["first_token_ns"] - row["received_ns"]
        # Generous: two processes and a test runner share two cores.
        assert abs(turn.first_token_ns - turn.sent_ns - true_ttft_ns) < 100_000_000
    assert ran.summary.emulated
    assert "EMULATED" in ran.out
    assert siege.spools() == []


def test_di_07_ls_05_open_loop_sends_each_arrival_once_at_its_time(siege: Siege, emulator: EmulatorProcess) -> None:
    text = plan_text(
        emulator.base_url, load='mode = "open"\nrate = 20\narrivals = "poisson"', run='duration = "3s"\nseed = 5'
    )
    ran = siege.run(text, "--workers", "2")
    check_passed(ran)
    check_conserved(ran)
    asked = list(open_tickets(rate=20.0, arrivals="poisson", weights=[1.0], seed=5, duration_ns=3_000_000_000))
    turns = sorted(ran.turns, key=lambda turn: turn.due_ns)
    started_ns = ran.plan.started_ns
    assert started_ns is not None
    assert [turn.due_ns - started_ns for turn in turns] == pytest.approx(
        [ticket.offset_ns for ticket in asked], abs=2_000
    ), "due times are the schedule's, to the clock's reading"
    sessions = Counter(turn.session_id for turn in turns)
    assert set(sessions.values()) == {1}
    lateness = sorted(turn.attempt_ns - turn.due_ns for turn in turns if turn.attempt_ns is not None)
    assert lateness[0] >= 0, "nothing is sent before it is due"
    assert lateness[len(lateness) // 2] < 20_000_000


def test_constant_arrivals_do_not_wait_for_answers(siege: Siege, tmp_path: Path) -> None:
    """LS-02: an open loop goes on while the server is slow."""
    with EmulatorProcess("--step-base-ms", "200", "--output-tokens", "30", "--max-num-seqs", "64") as slow:
        text = plan_text(slow.base_url, load='mode = "open"\nrate = 8\narrivals = "constant"\ndrain = "10s"')
        ran = siege.run(text)
    check_conserved(ran)
    started = [turn for turn in ran.turns if turn.sent_ns is not None]
    assert len(started) == 24
    assert max(group.in_flight_max or 0 for group in ran.summary.groups) > 15


def test_ls_07_ls_08_long_streams_at_the_end_are_cancelled_and_their_tokens_count(siege: Siege) -> None:
    """A run ends in time with streams in flight; tokens that arrived count, latencies of cut turns don't."""
    with EmulatorProcess("--output-tokens", "2000", "--max-model-len", "8192") as emulator:
        text = plan_text(emulator.base_url, load='mode = "closed"\nusers = 3\nramp = "0s"\ndrain = "1s"')
        text = text.replace('trace = "builtin:short-qa"', 'trace = "builtin:short-qa"\noutput_scale = 100')
        ran = siege.run(text)
    assert ran.seconds < START_S + 3 + 1 + SLACK_S
    check_conserved(ran)
    cancelled = ran.by_outcome(Outcome.CANCELLED)
    assert len(cancelled) == 3
    assert all(turn.reason is Reason.RUN_END and turn.chunks > 20 and turn.first_token_ns for turn in cancelled)
    whole = ran.summary.groups[0]
    assert whole.rates["throughput"] is not None and whole.rates["throughput"] > 50
    assert whole.distributions["e2e"].n == 0, "a cut turn has no latency"


def test_tr_06_rows_in_are_sent_skipped_or_not_started(siege: Siege, emulator: EmulatorProcess, tmp_path: Path) -> None:
    trace = tmp_path / "ten.jsonl"
    rows = []
    for number in range(10):
        talk = [("user", f"q{number}"), ("assistant", "a"), ("user", "r"), ("assistant", "b")]
        rows.append(json.dumps({"messages": [{"role": role, "content": content} for role, content in talk]}))
    trace.write_text("\n".join(rows), encoding="utf-8")
    workload = f'scenario = "talks"\ntrace = "{trace}"'
    ran = siege.run(
        plan_text(emulator.base_url, workload=workload, run="stop = {sessions = 6}", load=AT_ONCE), "--workers", "3"
    )
    check_passed(ran)
    check_conserved(ran)
    (account,) = ran.summary.traces
    assert (account.rows, account.sessions, account.sessions_started, account.not_started) == (10, 10, 6, 4)
    assert Counter(turn.session_id for turn in ran.turns) == {f"talks:{name}": 2 for name in _names(ran.turns)}
    assert len(ran.turns) == 12


def _names(turns: list[object]) -> set[str]:
    return {turn.session_id.partition(":")[2] for turn in turns}  # type: ignore[attr-defined]


def test_tr_07_recorded_mode_goes_on_after_a_failure_and_live_mode_ends_the_session(
    siege: Siege, tmp_path: Path
) -> None:
    trace = tmp_path / "talk.jsonl"
    messages = []
    for number in range(5):
        messages.append(f'{{"role":"user","content":"q{number}"}}')
        messages.append(f'{{"role":"assistant","content":"a{number}"}}')
    trace.write_text('{"messages":[' + ",".join(messages) + "]}", encoding="utf-8")
    for history, expected in (
        ("recorded", ["ok", "failed", "ok", "ok", "ok"]),
        ("live", ["ok", "failed", "skipped", "skipped", "skipped"]),
    ):
        # The preflight asks once, then comes turn 0: the third request fails.
        with EmulatorProcess("--fault", "status=500", "--fault-every", "3", "--fault-first", "3") as emulator:
            workload = f'scenario = "talk"\ntrace = "{trace}"\nhistory = "{history}"'
            # Ends by work: five answers may take longer than any time that was guessed here.
            run, load = "stop = {sessions = 1}", 'mode = "closed"\nusers = 1\nramp = "0s"'
            ran = siege.run(plan_text(emulator.base_url, run=run, workload=workload, load=load))
        check_conserved(ran)
        turns = sorted(ran.turns, key=lambda turn: turn.turn)
        assert [turn.outcome.value for turn in turns] == expected, (history, ran.out)
        assert {turn.reason for turn in turns if turn.outcome is Outcome.SKIPPED} <= {Reason.AFTER_FAILURE}


def test_tr_08_the_same_plan_seed_and_nonce_send_the_same_prompts_on_one_and_two_workers(
    siege: Siege, emulator: EmulatorProcess
) -> None:
    run = 'stop = {sessions = 4}\nseed = 3\nnonce = "n"'
    workload = """
scenario = "agent"
trace = "builtin:agent"
length_scale = 0.05
options = {calls = 3, tool_delay_p50_s = 0, user_delay_p50_s = 0}
"""
    lengths = []
    for workers in ("1", "2"):
        ran = siege.run(plan_text(emulator.base_url, run=run, workload=workload, load=AT_ONCE), "--workers", workers)
        check_passed(ran)
        lengths.append({(turn.session_id, turn.turn): (turn.prompt_tokens, turn.bytes_out) for turn in ran.turns})
    # bytes_out holds the request id, whose length does not change.
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (("--workers", "5"), "load.users = 4 can't be shared among 5 workers"),
        (("--workers", "0"), "make no sense"),
        (("--workers", "2", "--expect-workers", "1"), "make no sense"),
        (("--expect-workers", "2"), "INFERSIEGE_SECRET is not set"),
        (("--bind", "127.0.0.1:99999"), "not an address"),
        (("--bind", "192.0.2.1:0"), "can't listen there"),
    ],
)
def test_options_that_make_no_sense(
    siege: Siege, emulator: EmulatorProcess, options: tuple[str, ...], fragment: str
) -> None:
    ran = siege.run(plan_text(emulator.base_url, load=AT_ONCE), *options)
    assert ran.code == 2, ran.out
    assert fragment in ran.out
    assert "Traceback" not in ran.out
    assert not ran.path.exists(), "a run that never began leaves no directory"


def test_warm_up_is_in_the_records_and_out_of_the_figures(siege: Siege, emulator: EmulatorProcess) -> None:
    ran = siege.run(plan_text(emulator.base_url, load='mode = "closed"\nusers = 2\nwarmup = "1500ms"'))
    phases = Counter(turn.phase for turn in ran.turns if turn.outcome is Outcome.OK)
    assert phases[Phase.WARMUP] > 0
    assert ran.summary.groups[0].distributions["ttft"].n == phases[Phase.STEADY]


def test_hc_02_a_users_connection_is_kept(siege: Siege, emulator: EmulatorProcess) -> None:
    ran = siege.run(plan_text(emulator.base_url, load='mode = "closed"\nusers = 2'))
    new = [turn for turn in ran.turns if turn.reused_connection is False]
    assert len(new) == 2, "one connection per user"


def test_gate_in_one_command_fails_with_its_rule_and_writes_junit(siege: Siege, emulator: EmulatorProcess) -> None:
    rule = '[[slo]]\nmetric = "ttft"\nstat = "p50"\nmax = "1ms"\n'
    ran = siege.run(plan_text(emulator.base_url, more=rule), "--gate")
    assert ran.code == 1, ran.out
    assert "<failure" in (ran.path / "junit.xml").read_text(encoding="utf-8")
    code, out = siege.command("gate", str(ran.path))
    assert code == 1 and "FAIL" in out
    code, out = siege.command("report", str(ran.path))
    assert code == 0, out


def test_gt_03_one_failure_does_not_fail_a_run_whose_rule_allows_it(siege: Siege) -> None:
    with EmulatorProcess("--fault", "status=500", "--fault-every", "5", "--fault-first", "5") as emulator:
        rule = '[[slo]]\nmetric = "error_share"\nmax = "50%"\n'
        ran = siege.run(plan_text(emulator.base_url, more=rule), "--gate")
    assert ran.summary.counts.failed == 1
    check_passed(ran)
