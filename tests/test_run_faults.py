"""Runs in which something breaks: every turn still has one record, and the run ends in time, with the right code."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from siege import SLACK_S, START_S, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import ErrorClass, Outcome, Reason

pytestmark = [pytest.mark.slow, pytest.mark.alone]

LONG = 'scenario = "short-qa"\ntrace = "builtin:short-qa"\noutput_scale = 20'
AT_ONCE = 'mode = "closed"\nusers = 4\nramp = "0s"\ndrain = "2s"'


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--output-tokens", "60", log=tmp_path / "truth.jsonl") as process:
        yield process


def test_st_20_st_21_server_killed_in_mid_stream(siege: Siege) -> None:
    """Streams that were cut are failures of class truncated, later turns of class connect; none is missing."""
    with EmulatorProcess("--output-tokens", "400") as emulator:
        running = siege.start(plan_text(emulator.base_url, workload=LONG, load=AT_ONCE, run='duration = "5s"'))
        running.until('"outcome":"ok"')
        emulator.kill()
        ran = running.wait()
    assert ran.seconds < START_S + 5 + 2 + SLACK_S
    check_conserved(ran)
    classes = Counter(turn.error_class for turn in ran.by_outcome(Outcome.FAILED))
    # Of the four users one may have been between two answers: its request was cut before the first byte.
    assert 3 <= classes[ErrorClass.TRUNCATED] <= 4, classes
    assert classes[ErrorClass.CONNECT] > 4, classes
    assert classes[ErrorClass.CONNECT] < 1000, "a user whose server is gone pauses between attempts"
    assert set(classes) <= {ErrorClass.TRUNCATED, ErrorClass.CONNECT, ErrorClass.SERVER}


def test_st_20_server_resets_every_third_stream(siege: Siege) -> None:
    with EmulatorProcess("--output-tokens", "30", "--fault", "reset_after=3", "--fault-every", "3") as emulator:
        ran = siege.run(plan_text(emulator.base_url, load=AT_ONCE))
    check_conserved(ran)
    failed = ran.by_outcome(Outcome.FAILED)
    assert {turn.error_class for turn in failed} == {ErrorClass.TRUNCATED}
    assert len(failed) == pytest.approx(len(ran.turns) / 3, abs=4)
    assert ran.summary.groups[0].distributions["ttft"].failed_share == pytest.approx(1 / 3, abs=0.1)


def test_st_14_errors_inside_a_200_are_failures(siege: Siege) -> None:
    with EmulatorProcess("--output-tokens", "30", "--fault", "error_after=2", "--fault-every", "2") as emulator:
        ran = siege.run(plan_text(emulator.base_url, load=AT_ONCE))
    check_conserved(ran)
    failed = ran.by_outcome(Outcome.FAILED)
    assert failed and all(turn.http_status == 200 for turn in failed)
    assert {turn.error_class for turn in failed} <= {ErrorClass.STREAM_ERROR, ErrorClass.SERVER, ErrorClass.OVERLOAD}


def test_ctrl_c_leaves_a_whole_run_directory(siege: Siege, emulator: EmulatorProcess) -> None:
    running = siege.start(
        plan_text(emulator.base_url, workload=LONG, load=AT_ONCE, run='duration = "60s"'), "--workers", "2"
    )
    running.until('"outcome":"ok"')
    running.interrupt()
    ran = running.wait(within_s=20)
    assert ran.code == 130, ran.out
    check_conserved(ran)
    assert ran.summary.interrupted
    assert ran.plan.interrupted
    assert "Traceback" not in ran.out
    assert siege.spools() == []


def test_ctrl_c_twice_cuts_open_turns_at_once(siege: Siege) -> None:
    with EmulatorProcess("--output-tokens", "4000", "--max-model-len", "8192") as emulator:
        load = AT_ONCE.replace('"2s"', '"60s"')
        workload = LONG.replace("20", "200") + "\nmax_tokens = 4000"  # More would not fit and be skipped.
        running = siege.start(plan_text(emulator.base_url, workload=workload, load=load, run='duration = "60s"'))
        deadline = time.monotonic() + 30
        while len(emulator_rows(running)) == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
        running.interrupt()
        time.sleep(0.5)
        running.interrupt()
        ran = running.wait(within_s=15)
    assert ran.code == 130, ran.out
    check_conserved(ran)
    cancelled = ran.by_outcome(Outcome.CANCELLED)
    assert len(cancelled) == 4
    assert {turn.reason for turn in cancelled} == {Reason.INTERRUPTED}


def emulator_rows(running: object) -> list[str]:
    """Events of a run so far: one as soon as its load has begun."""
    path = running.path / "events.jsonl"  # type: ignore[attr-defined]
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_di_01_worker_killed_minus_nine(siege: Siege, tmp_path: Path) -> None:
    """Its closed turns come home from its spool, its open ones are lost, the run is invalid and says so."""
    with EmulatorProcess("--output-tokens", "60", log=tmp_path / "truth.jsonl") as emulator:
        running = siege.start(plan_text(emulator.base_url, load=AT_ONCE, run='duration = "6s"'), "--workers", "2")
        running.until('"worker":"worker-2"')
        os.kill(running.worker_pids()["worker-2"], signal.SIGKILL)
        ran = running.wait()
        truth = {row["request_id"] for row in emulator.truth()}
    assert ran.code == 3, ran.out
    check_conserved(ran)
    lost = ran.by_outcome(Outcome.LOST)
    assert lost and {turn.worker for turn in lost} == {"worker-2"}
    assert len(lost) <= 2, "one per user that it had"
    assert {turn.reason for turn in lost} == {Reason.WORKER_LOST}
    recorded = {turn.request_id for turn in ran.turns}
    # The server's only other ones: the preflight's, and three small prompts by which texts get their lengths.
    assert len(truth - recorded) == 4, "a request that the server saw has no record"
    assert any(event.kind == "worker_lost" for event in ran.events)
    assert "worker-2" in ran.summary.invalid[0]
    (gone,) = [worker for worker in ran.summary.workers if worker.lost]
    assert gone.lost_at_ns is not None
    assert ran.summary.started_ns <= gone.lost_at_ns <= ran.summary.ended_ns
    assert siege.spools() == []


def test_worker_lost_in_an_open_loop_its_arrivals_are_skipped(siege: Siege, emulator: EmulatorProcess) -> None:
    load = 'mode = "open"\nrate = 20\narrivals = "constant"\ndrain = "2s"'
    running = siege.start(plan_text(emulator.base_url, load=load, run='duration = "6s"'), "--workers", "2")
    running.until('"worker":"worker-1"')
    os.kill(running.worker_pids()["worker-1"], signal.SIGKILL)
    ran = running.wait()
    assert ran.code == 3
    check_conserved(ran)
    assert len(ran.turns) == 120, "every arrival of the schedule has a record"
    skipped = ran.by_outcome(Outcome.SKIPPED)
    assert skipped and {turn.reason for turn in skipped} == {Reason.WORKER_LOST}


def test_a_worker_that_is_told_to_go_early_is_a_lost_one(siege: Siege, emulator: EmulatorProcess) -> None:
    """SIGTERM: it cuts its turns and sends its records, but the rest of its share has nobody to play it."""
    load = 'mode = "open"\nrate = 20\narrivals = "constant"\ndrain = "2s"'
    running = siege.start(plan_text(emulator.base_url, load=load, run='duration = "5s"'), "--workers", "2")
    running.until('"worker":"worker-1"')
    os.kill(running.worker_pids()["worker-1"], signal.SIGTERM)
    ran = running.wait()
    assert ran.code == 3, ran.out
    check_conserved(ran)
    assert len(ran.turns) == 100, "every arrival of the schedule has a record"
    assert not ran.by_outcome(Outcome.LOST)
    assert sum(account.sessions_started for account in ran.summary.traces) < 100
    assert siege.spools() == []


def test_all_workers_killed(siege: Siege, emulator: EmulatorProcess) -> None:
    running = siege.start(plan_text(emulator.base_url, load=AT_ONCE, run='duration = "30s"'))
    running.until('"worker":"worker-1"')
    os.kill(running.worker_pids()["worker-1"], signal.SIGKILL)
    ran = running.wait(within_s=20)
    assert ran.code == 3, ran.out
    check_conserved(ran)


def test_workers_of_a_killed_master_stop_by_their_lease(siege: Siege, emulator: EmulatorProcess) -> None:
    """No turn starts once the lease is over; the workers end, and their records stay in their spools."""
    running = siege.start(plan_text(emulator.base_url, load=AT_ONCE, run='duration = "120s"'))
    running.until('"worker":"worker-1"')
    pid = running.worker_pids()["worker-1"]
    running.process.kill()
    running.process.wait()
    killed = time.monotonic()
    while Path(f"/proc/{pid}").exists() and time.monotonic() - killed < 40:
        time.sleep(0.2)
    assert time.monotonic() - killed < 16, "it has stopped 15 s after its last lease"
    rows = emulator.truth()
    last_s = max(row["received_ns"] for row in rows) / 1e9
    assert last_s < killed + 4.5, "a turn started without a lease"
    (spool,) = siege.spools()
    assert list(spool.glob("segment-*.jsonl"))


BUGGY_WORKER = """
import sys
from infersiege.swarm.patching import patch
patch()
from infersiege.channels.openai_chat import OpenAIChatDecoder
feed, calls = OpenAIChatDecoder.feed, [0]
def broken(self, payload):
    calls[0] += 1
    if calls[0] % 50 == 0:
        raise RuntimeError("a bug in the parser")
    return feed(self, payload)
OpenAIChatDecoder.feed = broken
from infersiege.cli import main
main(sys.argv[1:])
"""


def test_st_21_a_bug_in_the_parser_fails_turns_and_loses_none(
    siege: Siege, emulator: EmulatorProcess, free_port: Callable[[], int]
) -> None:
    """The broken worker joins from outside, as a worker on another host does."""
    address = f"127.0.0.1:{free_port()}"
    siege.environment["INFERSIEGE_SECRET"] = "s3cret"
    running = siege.start(
        plan_text(emulator.base_url, load=AT_ONCE), "--workers", "0", "--expect-workers", "1", "--bind", address
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", BUGGY_WORKER, "worker", "--master", address, "--name", "buggy"],
        env=siege.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    ran = running.wait()
    worker.communicate(timeout=20)
    assert worker.returncode == 0
    check_conserved(ran)
    failed = ran.by_outcome(Outcome.FAILED)
    assert failed and {turn.error_class for turn in failed} == {ErrorClass.PARSE}
    assert "a bug in the parser" in (failed[0].error_detail or "")
    assert ran.by_outcome(Outcome.OK)


def test_a_worker_with_another_secret_does_not_get_in(
    siege: Siege, emulator: EmulatorProcess, free_port: Callable[[], int]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    siege.environment["INFERSIEGE_SECRET"] = "right"
    tmp = siege.folder / "tmp"
    tmp.mkdir()
    siege.environment["TMPDIR"] = str(tmp)
    text = plan_text(emulator.base_url, load=AT_ONCE, run='duration = "3s"\nwait_for_workers = "8s"')
    running = siege.start(text, "--workers", "1", "--expect-workers", "2", "--bind", address)
    stranger = subprocess.Popen(
        [sys.executable, "-m", "infersiege", "worker", "--master", address],
        env={**siege.environment, "INFERSIEGE_SECRET": "wrong"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ran = running.wait()
    finally:
        stranger.kill()
        stranger.wait()
    assert ran.code == 3, ran.out
    assert "1 of 2 workers were ready after 8 s" in ran.out
    assert "hint:" in ran.out
    assert "logs" not in ran.out and not ran.path.exists(), "nothing is named that is gone"
    assert not list(tmp.glob("infersiege-*")), "and nothing stays of a run that never began"


def test_a_worker_of_ours_that_dies_before_the_load_is_told_with_how_it_ended(
    siege: Siege, emulator: EmulatorProcess
) -> None:
    siege.environment["INFERSIEGE_SECRET"] = "s3cret"  # another worker is waited for, so the load can't begin first
    running = siege.start(plan_text(emulator.base_url, load=AT_ONCE), "--workers", "1", "--expect-workers", "2")
    deadline = time.monotonic() + START_S
    while not (pids := running.worker_pids()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(pids["worker-1"], signal.SIGKILL)
    ran = running.wait()
    assert ran.code == 3, ran.out
    assert "error: worker-1 ended before the run began: killed by SIGKILL, and it said nothing" in ran.out
    assert "logs" not in ran.out and not ran.path.exists()


def test_a_worker_without_the_key_refuses_before_the_load(siege: Siege, free_port: Callable[[], int]) -> None:
    """The master looked into its own environment; the worker's host, which sends the load, has no key."""
    address, key = f"127.0.0.1:{free_port()}", "sk-test-1234567890abcdef"
    siege.environment["INFERSIEGE_SECRET"] = "s3cret"
    without_key = dict(siege.environment)
    siege.environment["TEST_KEY"] = key
    with EmulatorProcess(api_key=key) as emulator:
        text = plan_text(emulator.base_url, load=AT_ONCE, channel='api_key_env = "TEST_KEY"')
        running = siege.start(text, "--workers", "0", "--expect-workers", "1", "--bind", address)
        worker = subprocess.Popen(
            [sys.executable, "-m", "infersiege", "worker", "--master", address],
            env=without_key,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            ran = running.wait()
            worker_code = worker.wait(10)
        finally:
            worker.kill()
            worker.wait()
    assert (ran.code, worker_code) == (2, 2), ran.out
    said = " ".join(ran.out.split())
    assert f"the environment variable TEST_KEY is not set on {socket.gethostname()}" in said
    assert "Traceback" not in said and key not in said


def test_a_worker_that_joins_late_is_turned_away_and_changes_nothing(
    siege: Siege, emulator: EmulatorProcess, free_port: Callable[[], int]
) -> None:
    """Locust dispatches its users again when a worker joins: the load must not double."""
    address = f"127.0.0.1:{free_port()}"
    siege.environment["INFERSIEGE_SECRET"] = "s3cret"
    text = plan_text(emulator.base_url, load=AT_ONCE, run='duration = "60s"')
    running = siege.start(text, "--workers", "1", "--bind", address)
    running.until('"outcome":"ok"')
    code, out = siege.command("worker", "--master", address, "--name", "late")
    running.interrupt()
    ran = running.wait()
    assert code == 3 and "has all of its 1 workers" in out
    assert ran.code == 130 and not ran.summary.invalid, ran.out
    check_conserved(ran)
    assert ran.summary.groups[0].in_flight_max == 4
    (refused,) = (event for event in ran.events if event.kind == "worker_refused")
    assert (refused.worker, refused.detail) == ("late", "the run has all of its 1 workers")


def test_workers_are_reached_on_the_address_that_was_bound(siege: Siege, emulator: EmulatorProcess) -> None:
    ran = siege.run(plan_text(emulator.base_url, load=AT_ONCE), "--workers", "2", "--bind", "127.0.0.2:0")
    check_passed(ran)
    assert {turn.worker for turn in ran.turns} == {"worker-1", "worker-2"}


def test_hc_06_a_worker_without_descriptors_says_so_and_the_run_ends(siege: Siege) -> None:
    """`ulimit -n 70`, 120 requests in flight: class client_resource, run invalid, and nothing hangs. An open load does
    not tell beforehand how many it takes; users do (tests/test_open_files.py)."""
    with EmulatorProcess("--step-base-ms", "100", "--output-tokens", "20") as slow:
        limited(siege, plan_text(slow.base_url, load='mode = "open"\nrate = 60\ndrain = "3s"', run='duration = "4s"'))


def limited(siege: Siege, text: str) -> None:
    plan = siege.folder / "limited.toml"
    plan.write_text(text, encoding="utf-8")
    out = siege.folder / "limited"
    command = f'ulimit -n 70; exec "{sys.executable}" -m infersiege run "{plan}" --out "{out}"'
    done = subprocess.run(
        ["bash", "-c", command], env=siege.environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "ulimit" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_gt_09_arrivals_that_were_never_begun_make_the_run_invalid(siege: Siege) -> None:
    """One at a time of a server that is much slower than the rate: each arrival has a record, and the run says so."""
    with EmulatorProcess("--step-base-ms", "40", "--output-tokens", "20") as slow:
        load = 'mode = "open"\nrate = 20\narrivals = "constant"\nmax_in_flight = 1\ndrain = "1s"'
        ran = siege.run(plan_text(slow.base_url, load=load, run='duration = "4s"'))
    assert ran.code == 3, ran.out
    check_conserved(ran)
    assert len(ran.turns) == 80, "every arrival of the schedule has a record"
    assert "load not delivered" in ran.summary.invalid[0]


def test_full_disk_loses_no_record(siege: Siege, emulator: EmulatorProcess, small_disk: Path) -> None:
    """The run ends, everything measured is in a run directory elsewhere, and one message says where and why."""
    ran = siege.run(plan_text(emulator.base_url, load=AT_ONCE, run='duration = "20s"'), out=small_disk / "run")
    assert ran.code == 3, ran.out
    assert "no space left" in ran.out
    assert "Traceback" not in ran.out
    rescued = Path(re.findall(r"^run directory: (.*)$", ran.out, flags=re.MULTILINE)[0])
    assert rescued != ran.path
    moved = type(ran)(ran.code, ran.out, ran.seconds, rescued)
    check_conserved(moved)
    truth = {row["request_id"] for row in emulator.truth()}
    without = truth - {turn.request_id for turn in moved.turns}
    assert len(without) == 4, "only what was asked before the load has no record: by the preflight and for text lengths"


def test_a_report_that_cannot_be_written_is_a_warning(siege: Siege, emulator: EmulatorProcess) -> None:
    """Turns and summary are there: the run is good, stays where it is, and the report can be made later."""
    running = siege.start(plan_text(emulator.base_url, load=AT_ONCE, run='duration = "2s"'))
    deadline = time.monotonic() + 40
    while not (running.path / "events.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (running.path / "report.html").mkdir()
    ran = running.wait()
    assert (ran.code, ran.summary.exit_code, ran.summary.invalid) == (2, 0, ()), ran.out
    assert f"run directory: {running.path}" in ran.out and "\nreport: " not in ran.out
    (warning,) = [line for line in ran.out.splitlines() if "report.html" in line]
    assert warning.startswith("warning: ") and f"infersiege report {running.path}" in warning
    (running.path / "report.html").rmdir()
    assert siege.command("report", str(running.path))[0] == 0
    assert (running.path / "report.html").is_file()


def test_a_closed_terminal_ends_the_run_as_ctrl_c_does(siege: Siege, emulator: EmulatorProcess) -> None:
    running = siege.start(plan_text(emulator.base_url, load=AT_ONCE, run='duration = "60s"'))
    running.until('"outcome":"ok"')
    running.process.send_signal(signal.SIGHUP)
    ran = running.wait(within_s=20)
    assert ran.code == 130, ran.out
    check_conserved(ran)
    assert siege.spools() == []


def test_a_reader_that_goes_away_does_not_end_the_run(siege: Siege, emulator: EmulatorProcess) -> None:
    """`infersiege run … | head -1`: the records and the exit code are those of the run."""
    plan = siege.folder / "piped.toml"
    plan.write_text(plan_text(emulator.base_url, load=AT_ONCE), encoding="utf-8")
    out = siege.folder / "piped"
    command = f'"{sys.executable}" -m infersiege run "{plan}" --out "{out}" | head -1; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", command], env=siege.environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (out / "report.html").exists()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_load(siege: Siege, number: int) -> None:
    """While it waits for a target that is not there: one word, code 130, no directory."""
    running = siege.start(plan_text("http://127.0.0.1:9/v1"), "--wait-for-target", "30")
    time.sleep(3)
    running.process.send_signal(number)
    ran = running.wait(within_s=10)
    assert ran.code == 130, ran.out
    assert ran.out.strip().splitlines()[-1] == "interrupted", ran.out
    assert "KeyboardInterrupt" not in ran.out
    assert not ran.path.exists()


def test_cl_08_a_key_that_the_server_echoes_is_in_no_file(siege: Siege) -> None:
    key = "sk-test-1234567890abcdef"
    siege.environment["TEST_KEY"] = key
    with EmulatorProcess("--fault", "echo_key=1", "--fault-every", "2", api_key=key) as emulator:
        text = plan_text(emulator.base_url, load=AT_ONCE, channel='api_key_env = "TEST_KEY"')
        ran = siege.run(text)
    assert ran.turns
    assert key not in ran.out
    for path in ran.path.rglob("*"):
        if path.is_file():
            assert key.encode() not in path.read_bytes(), path


def test_a_spool_that_can_not_be_written_is_named(siege: Siege, emulator: EmulatorProcess) -> None:
    blocked = siege.folder / "a-file"
    blocked.write_text("", encoding="utf-8")
    siege.environment["INFERSIEGE_SPOOL"] = str(blocked)
    ran = siege.run(plan_text(emulator.base_url, load=AT_ONCE))
    assert ran.code == 2, ran.out
    assert "INFERSIEGE_SPOOL" in ran.out
    assert "Traceback" not in ran.out
    assert not ran.path.exists()
