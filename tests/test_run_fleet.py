"""Runs whose workers die, stop, come back and join late: others play what is theirs, and nothing is played twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from siege import Ran, Running, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import Outcome, Reason

pytestmark = [pytest.mark.slow, pytest.mark.alone]

OPEN = 'mode = "open"\nrate = 40\narrivals = "constant"\ndrain = "2s"'
CLOSED = 'mode = "closed"\nusers = 9\nramp = "0s"\ndrain = "2s"'
SECRET = "a-secret-of-the-tests-0123456789abcdef"
BEFORE_THE_LOAD = 4
"""Requests that the server sees and no record is of: the preflight's, and those by which texts get their lengths."""


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--output-tokens", "20", log=tmp_path / "truth.jsonl") as process:
        yield process


def started(siege: Siege, emulator: EmulatorProcess, load: str, run: str, workers: int, *options: str) -> Running:
    running = siege.start(plan_text(emulator.base_url, load=load, run=run), "--workers", str(workers), *options)
    running.until('"worker":"worker-2"')
    return running


def check_once(ran: Ran, emulator: EmulatorProcess) -> None:
    """Each turn has one record; the server saw what was sent, and nothing twice."""
    check_conserved(ran)
    sessions = Counter(turn.session_id for turn in ran.turns if turn.turn == 0)
    assert not [session for session, count in sessions.items() if count > 1]
    seen = Counter(row["request_id"] for row in emulator.truth())
    assert not [request for request, count in seen.items() if count > 1], "the server got a turn twice"
    sent = {turn.request_id for turn in ran.turns if turn.outcome in (Outcome.OK, Outcome.FAILED, Outcome.CANCELLED)}
    recorded = {turn.request_id for turn in ran.turns if turn.outcome is not Outcome.SKIPPED}
    assert sent <= set(seen), "a record of what the server has not seen"
    assert len(set(seen) - recorded) == BEFORE_THE_LOAD, "a request that the server saw has no record"


def epochs(ran: Ran) -> list[str]:
    return [event.detail for event in ran.events if event.kind == "epoch"]


def test_di_01_the_others_take_a_killed_workers_arrivals_over(siege: Siege, emulator: EmulatorProcess) -> None:
    """From the second after its death on all arrivals are played, in the order and at the times of the schedule."""
    running = started(siege, emulator, OPEN, 'duration = "6s"', 4)
    time.sleep(1.0)
    os.kill(running.worker_pids()["worker-2"], signal.SIGKILL)
    ran = running.wait()
    assert ran.code == 3, ran.out
    check_once(ran, emulator)
    assert len(ran.turns) == 240, "every arrival of the schedule has a record"
    skipped = ran.by_outcome(Outcome.SKIPPED)
    assert {(turn.worker, turn.reason) for turn in skipped} == {("worker-2", Reason.WORKER_LOST)}
    assert 5 <= len(skipped) <= 30, "a second or so of its ten a second"
    (lost,) = [worker for worker in ran.summary.workers if worker.lost]
    assert lost.worker == "worker-2" and lost.back_at_ns is None
    assert 0 <= len(skipped) - lost.unplayed <= 2, "what it had set up and not sent when it died was begun"
    assert lost.taken_over_ns is not None and max(turn.due_ns for turn in skipped) < lost.taken_over_ns
    after = [turn for turn in ran.turns if turn.due_ns >= lost.taken_over_ns]
    shares = Counter(turn.worker for turn in after)
    assert set(shares) == set(lost.taken_over_by) == {"worker-1", "worker-3", "worker-4"}
    assert max(shares.values()) - min(shares.values()) <= 1
    assert {turn.epoch for turn in after} == {1}
    assert "took its share over" in ran.summary.invalid[0] and "played by nobody" in ran.summary.invalid[0]
    assert siege.spools() == []


def test_a_worker_that_is_stopped_for_eight_seconds_comes_back(siege: Siege, emulator: EmulatorProcess) -> None:
    """Others have its share meanwhile; it plays on with what is its own, and what it missed is nobody else's."""
    running = started(siege, emulator, OPEN, 'duration = "14s"', 4)
    pid = running.worker_pids()["worker-2"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(8.0)
    os.kill(pid, signal.SIGCONT)
    ran = running.wait()
    assert ran.code == 3, ran.out
    check_once(ran, emulator)
    assert len(ran.turns) == 560
    kinds = [event.kind for event in ran.events if event.kind in ("worker_lost", "worker_back", "epoch")]
    assert kinds == ["worker_lost", "epoch", "worker_back", "epoch"], ran.events
    (lost,) = [worker for worker in ran.summary.workers if worker.lost]
    ((lost_ns, back_ns),) = lost.away
    assert lost.back_at_ns == back_ns and 4 < (back_ns - lost_ns) / 1e9 < 8
    assert lost.records_promised == lost.records_received
    between = [turn for turn in ran.turns if (lost.taken_over_ns or 0) <= turn.due_ns < back_ns]
    assert len(between) > 100 and "worker-2" not in {turn.worker for turn in between}
    last = Counter(turn.worker for turn in ran.turns if turn.due_ns > back_ns + 2_000_000_000)
    assert len(last) == 4 and max(last.values()) - min(last.values()) <= 1, last
    assert "it was away for" in ran.summary.invalid[0]
    assert "worker is back" in ran.out


def test_a_worker_that_joins_late_has_the_seat_of_a_dead_one(
    siege: Siege, emulator: EmulatorProcess, free_port: Callable[[], int]
) -> None:
    """And not one arrival more: Locust's Director runs once on it, and the shares are even. It has the dead one's name,
    as a container that is started again, and is another worker all the same."""
    address = f"127.0.0.1:{free_port()}"
    siege.environment["INFERSIEGE_SECRET"] = SECRET
    running = started(siege, emulator, OPEN, 'duration = "10s"', 3, "--bind", address)
    os.kill(running.worker_pids()["worker-2"], signal.SIGKILL)
    running.until("worker_lost", file="events.jsonl")
    command = [sys.executable, "-m", "infersiege", "worker", "--master", address, "--name"]
    late = subprocess.Popen([*command, "worker-2"], env=siege.environment)
    running.until("worker_joined", file="events.jsonl")
    code, out = siege.command("worker", "--master", address, "--name", "too-late")
    in_time = running.process.poll() is None
    ran = running.wait()
    assert late.wait(20) == 0
    if in_time:  # a machine that is slow enough starts it when the run is over
        assert code == 3 and "has all of its 3 workers" in out
    assert "Traceback" not in ran.out and "Greenlet" not in ran.out, "Locust dispatches nothing behind our back"
    assert ran.code == 3, ran.out
    check_once(ran, emulator)
    assert len(ran.turns) == 400
    assert "worker-2.2" in epochs(ran)[-1]
    number = max(turn.epoch for turn in ran.turns)
    last_s = max(turn.due_ns for turn in ran.turns) / 1e9
    shares = Counter(turn.worker for turn in ran.turns if turn.due_ns / 1e9 > last_s - 3)
    assert set(shares) == {"worker-1", "worker-2.2", "worker-3"} and max(shares.values()) - min(shares.values()) <= 1
    assert {turn.epoch for turn in ran.turns if turn.worker == "worker-2.2"} == {number}
    assert [worker.worker for worker in ran.summary.workers if worker.lost] == ["worker-2"]


def in_flight(ran: Ran, at_ns: int) -> int:
    """Turns that were on their way at an instant; of a dead worker's nobody knows, so they are left out."""
    return sum(
        1 for turn in ran.turns if turn.sent_ns is not None and turn.sent_ns <= at_ns < (turn.closed_ns or turn.sent_ns)
    )


def test_users_of_a_killed_worker_are_had_by_the_others(siege: Siege, emulator: EmulatorProcess) -> None:
    """Nine users of three workers: never more than nine at a time, and nine again once the others have them."""
    running = started(siege, emulator, CLOSED, 'duration = "8s"', 3)
    os.kill(running.worker_pids()["worker-2"], signal.SIGKILL)
    ran = running.wait()
    assert ran.code == 3, ran.out
    check_once(ran, emulator)
    (lost,) = [worker for worker in ran.summary.workers if worker.lost]
    assert lost.taken_over_ns is not None and lost.lost_at_ns is not None
    assert ran.summary.groups[0].in_flight_max is not None and ran.summary.groups[0].in_flight_max <= 9
    first_ns, end_ns = lost.taken_over_ns + 1_000_000_000, lost.taken_over_ns + 3_000_000_000
    looks = [in_flight(ran, at_ns) for at_ns in range(first_ns, end_ns, 20_000_000)]
    assert max(looks) == 9 and sum(looks) / len(looks) > 8, looks
    between = [in_flight(ran, at_ns) for at_ns in range(lost.lost_at_ns, lost.taken_over_ns, 20_000_000)]
    assert not between or max(between) <= 9
    after = Counter(turn.worker for turn in ran.turns if turn.due_ns > first_ns)
    assert set(after) == {"worker-1", "worker-3"}


def test_di_07_each_session_of_a_trace_is_played_once(siege: Siege, emulator: EmulatorProcess) -> None:
    """3 workers, 9 sessions: each session id once in the records, whichever worker has it."""
    rows = "".join(
        f'{{"session_id": "s{number}", "messages": [{{"role": "user", "content": "question {number}"}}]}}\n'
        for number in range(9)
    )
    trace = siege.folder / "nine.jsonl"
    trace.write_text(rows, encoding="utf-8")
    workload = f'scenario = "nine"\ntrace = "{trace}"'
    text = plan_text(emulator.base_url, load=CLOSED, run="stop = {sessions = 9}", workload=workload)
    ran = siege.run(text, "--workers", "3")
    check_conserved(ran)
    assert sorted(turn.session_id for turn in ran.turns) == [f"nine:s{number}" for number in range(9)], ran.out
    assert Counter(turn.worker for turn in ran.turns) == {f"worker-{number}": 3 for number in (1, 2, 3)}


def test_di_11_who_has_how_many_users_of_which_scenario_is_shown(siege: Siege, emulator: EmulatorProcess) -> None:
    """3 workers, 4 users, 2 scenarios: one worker has two of them, and both scenarios are played in equal parts."""
    workloads = (
        'scenario = "short"\ntrace = "builtin:short-qa"\n[[workload]]\nscenario = "other"\ntrace = "builtin:short-qa"'
    )
    load = CLOSED.replace("9", "4")
    ran = siege.run(plan_text(emulator.base_url, load=load, workload=workloads), "--workers", "3")
    check_passed(ran)
    check_conserved(ran)
    turns = Counter(turn.worker for turn in ran.turns)
    assert len(turns) == 3
    scenarios = Counter(turn.scenario for turn in ran.turns)
    assert abs(scenarios["short"] - scenarios["other"]) <= 4 + len(turns), scenarios
    assert {worker.worker: worker.turns for worker in ran.summary.workers} == turns
