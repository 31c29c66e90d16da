"""Clocks of workers: what is known of them is true to within its doubt, and no step of a wall clock moves anything."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from siege import Ran, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import Bye, ClockPing, Hello, Outcome, Ready, Report
from infersiege.swarm.clock import (
    CLOCK_DRIFT_NS,
    REMEMBERED_NS,
    ClockEstimate,
    ClockWatch,
    Reading,
    applied,
    clock_warnings,
    drift_ns,
)
from infersiege.swarm.fleet import WorkerState

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000


def exchange(estimate: ClockEstimate, sent_ns: int, there_ns: int, back_ns: int, offset_ns: int) -> int:
    """One that takes so long each way; gives the instant of its end on the worker's clock."""
    arrived_ns = sent_ns + there_ns
    received_ns = arrived_ns + back_ns
    estimate.add(ClockPing(worker="w", sent_ns=sent_ns, master_ns=arrived_ns + offset_ns), received_ns)
    return received_ns


WAYS = st.tuples(st.integers(0, 400 * MS), st.integers(0, 400 * MS))


@given(st.integers(-(10**18), 10**18), st.lists(st.tuples(WAYS, st.integers(0, 10 * SECOND)), min_size=1, max_size=30))
def test_the_true_offset_is_within_the_doubt(offset_ns: int, exchanges: list[tuple[tuple[int, int], int]]) -> None:
    """Whatever the network does to either way, as long as the clocks run alike."""
    estimate, now_ns = ClockEstimate(), 10**15
    for (there_ns, back_ns), pause_ns in exchanges:
        now_ns = exchange(estimate, now_ns, there_ns, back_ns, offset_ns)
        found = estimate.reading(now_ns)
        assert found is not None
        assert abs(found.offset_ns - offset_ns) <= found.uncertainty_ns + 1
        assert found.uncertainty_ns <= (there_ns + back_ns + 1) // 2 + 1, "the last one is always known"
        now_ns += pause_ns


@given(st.integers(-90, 90), st.lists(st.tuples(WAYS, st.integers(0, 10 * SECOND)), min_size=1, max_size=30))
def test_the_true_offset_is_within_the_doubt_of_clocks_that_run_apart(
    ppm: int, exchanges: list[tuple[tuple[int, int], int]]
) -> None:
    estimate, now_ns, begun_ns = ClockEstimate(), 10**15, 10**15
    for (there_ns, back_ns), pause_ns in exchanges:
        at_ns = now_ns + there_ns
        now_ns = exchange(estimate, now_ns, there_ns, back_ns, (at_ns - begun_ns) * ppm // 1_000_000)
        found = estimate.reading(now_ns)
        assert found is not None
        true_ns = (now_ns - begun_ns) * ppm // 1_000_000
        # While an answer is on its way the clocks go on: at 90 ppm by 36 µs in 400 ms.
        assert abs(found.offset_ns - true_ns) <= found.uncertainty_ns + 40 * US
        now_ns += pause_ns


STEPS = st.tuples(st.sampled_from(["run", "stand", "ask", "arrive", "return"]), st.integers(0, 4 * SECOND))


@given(st.lists(STEPS, max_size=60), st.integers(-(10**18), 10**18))
def test_a_past_instant_is_at_the_masters_no_later_than_said_wherever_the_clock_stood_still(
    steps: list[tuple[str, int]], offset_ns: int
) -> None:
    """Exchanges under way included: while a question, or its answer, is on its way, or lies unread."""
    estimate, master_ns, mine_ns = ClockEstimate(), 10**15, 10**15 - offset_ns
    past: list[tuple[int, int]] = []
    asked_ns = answered_ns = None
    for what, length_ns in steps:
        master_ns += length_ns
        mine_ns += 0 if what == "stand" else length_ns
        past.append((mine_ns, master_ns))
        if what == "ask":
            asked_ns, answered_ns = mine_ns, None
        elif what == "arrive" and asked_ns is not None:
            answered_ns = answered_ns or master_ns
        elif what == "return" and asked_ns is not None and answered_ns is not None:
            estimate.add(ClockPing(worker="w", sent_ns=asked_ns, master_ns=answered_ns), mine_ns)
            for at_ns, there_ns in past:
                said_ns = estimate.at_latest(at_ns)
                assert (said_ns is None) == (at_ns >= asked_ns), "nothing is known of what may be after the question"
                assert said_ns is None or said_ns >= there_ns
            asked_ns = answered_ns = None


def test_the_quickest_exchange_of_the_last_minute_knows_best() -> None:
    estimate = ClockEstimate()
    exchange(estimate, 0, 100 * US, 100 * US, 7)
    exchange(estimate, SECOND, 30 * MS, 0, 7)  # a busy moment of the master
    found = estimate.reading(2 * SECOND)
    assert found is not None and found.offset_ns == 7
    assert 100 * US < found.uncertainty_ns < 400 * US, "in doubt by 100 µs more for each second"
    late = estimate.reading(SECOND + REMEMBERED_NS)
    assert late is not None and late.uncertainty_ns > 15 * MS, "only the slow one is young enough"
    assert estimate.reading(2 * SECOND + REMEMBERED_NS) is None


@pytest.mark.parametrize("jump_ns", [5 * SECOND, -5 * SECOND, 60 * MS, -2 * MS])
def test_a_clock_that_jumps_is_followed_at_once(jump_ns: int) -> None:
    """A suspended machine's monotonic clock stands still: quick exchanges of before say nothing any more."""
    estimate = ClockEstimate()
    for second in range(20):
        exchange(estimate, second * SECOND, 50 * US, 50 * US, 0)
    exchange(estimate, 20 * SECOND, 500 * US, 100 * US, jump_ns)
    found = estimate.reading(21 * SECOND)
    assert found is not None
    assert abs(found.offset_ns - jump_ns) <= found.uncertainty_ns < MS


def test_memory_is_that_of_a_minute() -> None:
    estimate, rng = ClockEstimate(), Random(1)
    for half_second in range(7200):
        exchange(estimate, half_second * SECOND // 2, rng.randrange(MS), rng.randrange(MS), 0)
    assert len(estimate._kept) <= REMEMBERED_NS // (SECOND // 2) + 1
    assert estimate.answers == 7200


def test_answers_that_are_none_are_not_believed() -> None:
    estimate = ClockEstimate()
    estimate.add(ClockPing(worker="w", sent_ns=5), 6)
    estimate.add(ClockPing(worker="w", sent_ns=7, master_ns=1), 6)
    assert estimate.answers == 0
    assert estimate.reading(6) is None


@pytest.mark.parametrize(
    ("measured", "same_boot", "right"),
    [
        (Reading(5 * SECOND, MS), False, Reading(5 * SECOND, MS)),  # another host
        (None, False, None),  # another host, and nothing known
        (Reading(20 * US, 100 * US), True, Reading(0, 0)),  # the same clock, as far as can be seen
        (Reading(-100 * US, 100 * US), True, Reading(0, 0)),
        (None, True, Reading(0, 0)),  # the same kernel, and a master too busy to answer
        (
            Reading(5 * SECOND, MS),
            True,
            Reading(5 * SECOND, MS),
        ),  # a time namespace: the kernel is one, the clock isn't
        (Reading(-3 * MS, MS), True, Reading(-3 * MS, MS)),
    ],
)
def test_one_kernel_has_one_clock_unless_what_was_measured_contradicts(
    measured: Reading | None, same_boot: bool, right: Reading | None
) -> None:
    assert applied(measured, same_boot=same_boot) == right


# ----------------------------------------------------------------------------------------------------------- warnings


def state(*, offset_ns: int = 0, uncertainty_ns: int = 0) -> WorkerState:
    hello = Hello(worker="w7", host="h", pid=1, boot_id="b", versions={}, spool_dir="/none")
    made = WorkerState("node", hello, 0, last_seen_ns=0)
    made.ready = Ready(worker="w7", plan_hash="", trace_hashes={}, clock_offset_ns=offset_ns,
                       clock_uncertainty_ns=uncertainty_ns)  # fmt: skip
    made.clock_offset_ns, made.clock_uncertainty_ns = offset_ns, uncertainty_ns
    return made


def report(offset_ns: int | None, uncertainty_ns: int | None = 0) -> Report:
    return Report(worker="w7", sequence=1, windows=(), health=None, open_turns=(), sessions=0, in_flight=0,
                  planned_turns=0, closed_turns=0, clock_offset_ns=offset_ns,
                  clock_uncertainty_ns=None if offset_ns is None else uncertainty_ns)  # fmt: skip


@pytest.mark.parametrize(
    ("start", "now", "kinds"),
    [
        ((0, 0), (0, 0), []),
        ((0, 0), (CLOCK_DRIFT_NS, 0), []),  # as much as is allowed
        ((0, 0), (CLOCK_DRIFT_NS + 1, 0), ["clock_drift"]),
        ((0, 0), (-CLOCK_DRIFT_NS - 1, MS), ["clock_drift"]),
        ((SECOND, MS), (SECOND + 49 * MS, MS), []),
        ((0, 40 * MS), (75 * MS, 40 * MS), []),  # both are right: the clock may not have moved at all
        ((0, 40 * MS), (85 * MS, 40 * MS), ["clock_drift"]),
        ((0, 60 * MS), (0, 60 * MS), ["clock_doubt"]),
        ((0, 60 * MS), (200 * MS, MS), ["clock_doubt", "clock_drift"]),
        ((0, 0), (None, None), []),  # no exchange of late
    ],
)
def test_drift_and_doubt_beyond_50_ms_are_told_once(
    start: tuple[int, int], now: tuple[int | None, int | None], kinds: list[str]
) -> None:
    worker, watch = state(offset_ns=start[0], uncertainty_ns=start[1]), ClockWatch()
    told: list[tuple[str, str, str]] = []
    for _ in range(3):
        watch.look(worker, report(*now), lambda kind, detail, worker: told.append((kind, detail, worker)))
    assert [kind for kind, _, _ in told] == kinds
    worker.report = report(*now)
    assert len(list(clock_warnings([worker]))) == len(kinds), "the summary says what the events said"
    assert all("w7" in detail and name == "w7" for _, detail, name in told)


def test_drift_of_a_worker_that_died_is_that_of_its_last_report() -> None:
    worker = state(offset_ns=5 * MS)
    assert drift_ns(worker) is None, "it was never measured again, which is not 0"
    worker.report = report(8 * MS)
    assert drift_ns(worker) == 3 * MS
    worker.bye = Bye(worker="w7", records=0, planned_turns=0, plays={}, hub_lag_p99_ns=None, cpu_share_max=None,
                     exit_reason="", spool_error=None, fault=None, clock_offset_ns=9 * MS)  # fmt: skip
    assert drift_ns(worker) == 4 * MS


# --------------------------------------------------------------------------------------------------------- whole runs

LOAD = 'mode = "open"\nrate = 40\narrivals = "constant"\ndrain = "2s"'


@contextmanager
def joining(siege: Siege, port: int, name: str, *before: str, **environ: str) -> Iterator[None]:
    """A worker of our own that joins whoever listens there, started by a command before it."""
    command = [*before, sys.executable, "-m", "infersiege", "worker", "--master", f"127.0.0.1:{port}", "--name", name]
    log = siege.folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**siege.environment, **environ})
    try:
        yield
    finally:
        process.kill()
        process.wait()
        sys.stdout.write(log.read_text(encoding="utf-8", errors="replace"))


def in_step(ran: Ran) -> None:
    """Both workers' records lie on one time axis: arrivals 25 ms apart, and nothing ends before it begins."""
    check_conserved(ran)
    turns = ran.turns
    assert {turn.worker for turn in turns} == {"worker-1", "other"}
    doubt_ns = max(worker.clock_uncertainty_ns for worker in ran.summary.workers) + US
    for before, after in pairwise(sorted(turn.due_ns for turn in turns)):
        assert abs(after - before - 25 * MS) <= doubt_ns
    for turn in turns:
        assert turn.outcome is Outcome.OK
        stamps = [turn.due_ns, turn.attempt_ns, turn.sent_ns, turn.first_token_ns, turn.last_token_ns, turn.closed_ns]
        known = [stamp for stamp in stamps if stamp is not None]
        assert len(known) == len(stamps)
        # A kernel stamp may lie by its offset's error of some µs before the send.
        assert all(before <= after + MS for before, after in pairwise(known)), turn
        assert ran.summary.started_ns - doubt_ns <= known[0] and known[-1] <= ran.summary.ended_ns + doubt_ns


@pytest.mark.slow
@pytest.mark.alone
def test_a_worker_in_a_time_namespace_has_the_kernel_of_its_master_and_another_clock(
    siege: Siege, free_port: Callable[[], int], needs: Callable[[str | None], None]
) -> None:
    ahead_s = 100_000
    unshared = ["unshare", "--time", f"--monotonic={ahead_s}", "--fork", "--kill-child"]
    tried = subprocess.run([*unshared, "true"], capture_output=True, check=False) if shutil.which("unshare") else None
    needs(None if tried and not tried.returncode else "no time namespace can be made (needs root and unshare)")
    port = free_port()
    siege.environment["INFERSIEGE_SECRET"] = "of the clock test, long enough"
    with EmulatorProcess("--output-tokens", "8") as emulator:
        running = siege.start(plan_text(emulator.base_url, load=LOAD), "--workers", "1", "--expect-workers", "2",
                              "--bind", f"127.0.0.1:{port}")  # fmt: skip
        with joining(siege, port, "other", *unshared):
            ran = running.wait()
    check_passed(ran)
    in_step(ran)
    found = {worker.worker: worker for worker in ran.summary.workers}
    assert (found["worker-1"].clock_offset_ns, found["worker-1"].clock_uncertainty_ns) == (0, 0)
    other = found["other"]
    assert abs(other.clock_offset_ns + ahead_s * SECOND) <= other.clock_uncertainty_ns < 50 * MS
    assert other.clock_uncertainty_ns > 0, "it was measured"
    assert other.clock_drift_ns is not None and abs(other.clock_drift_ns) < 50 * MS
    assert not [line for line in ran.summary.warnings if "clock" in line]


class Steered:
    """Clocks of a process that can be set while it runs."""

    def __init__(self, folder: Path, *, wall_s: float = 0.0) -> None:
        library, self._file = folder / "steppedclock.so", folder / "steps"
        source = Path(__file__).with_name("steppedclock.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        self._file.write_bytes(bytes(16))
        self.environ = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._file)}
        self.set(wall_s=wall_s)

    def set(self, *, wall_s: float = 0.0, monotonic_s: float = 0.0) -> None:
        """How far they are from the kernel's, from now on."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("qq", round(wall_s * SECOND), round(monotonic_s * SECOND)))

    def read_s(self) -> float:
        """The wall clock, as a process sees it that has these clocks."""
        look = [sys.executable, "-c", "import time; print(time.time())"]
        seen = subprocess.run(look, capture_output=True, check=True, env={**os.environ, **self.environ})
        return float(seen.stdout)


@pytest.fixture
def clocks(needs: Callable[[str | None], None], tmp_path: Path) -> Steered:
    """Clocks that are 90 s ahead."""
    needs(None if shutil.which("gcc") else "no gcc, which compiles clocks that can be set (apt-get install gcc)")
    made = Steered(tmp_path, wall_s=90)
    assert made.read_s() - time.time() == pytest.approx(90, abs=10)
    return made


@pytest.mark.slow
@pytest.mark.alone
def test_di_09_a_workers_wall_clock_is_90_s_ahead_and_is_set_in_mid_run(
    siege: Siege, free_port: Callable[[], int], clocks: Steered
) -> None:
    port = free_port()
    siege.environment["INFERSIEGE_SECRET"] = "of the clock test, long enough"
    with EmulatorProcess("--output-tokens", "3") as emulator:
        plan = plan_text(emulator.base_url, load=LOAD, run='duration = "4s"')
        running = siege.start(plan, "--workers", "1", "--expect-workers", "2", "--bind", f"127.0.0.1:{port}")
        with joining(siege, port, "other", **clocks.environ):
            running.until('"worker":"other"')
            clocks.set(wall_s=85)
            time.sleep(1)
            clocks.set(wall_s=175)
            ran = running.wait()
    # The few turns that are in the air at a step are marked, and of so short a run they may be more than 1 %.
    assert [why for why in ran.summary.invalid if not why.startswith(("client-bound", "the clock was stepped"))] == []
    in_step(ran)
    assert {worker.clock_offset_ns for worker in ran.summary.workers} == {0}
    assert {worker.clock_drift_ns for worker in ran.summary.workers} == {0}
    assert not [line for line in ran.summary.warnings if "clock of" in line]
    stepped = [turn for turn in ran.turns if turn.clock_step]
    assert {turn.worker for turn in stepped} <= {"other"}
    assert len(stepped) < 20, "only what was in the air at a step is marked"


@pytest.mark.slow
@pytest.mark.alone
def test_a_monotonic_clock_that_jumps_in_mid_run_is_told_then_and_in_the_summary(
    siege: Siege, free_port: Callable[[], int], clocks: Steered
) -> None:
    """As that of a suspended machine does. Its instants are wrong from then on, and nobody can make them right."""
    port = free_port()
    siege.environment["INFERSIEGE_SECRET"] = "of the clock test, long enough"
    with EmulatorProcess("--output-tokens", "8") as emulator:
        plan = plan_text(emulator.base_url, load=LOAD, run='duration = "4s"')
        running = siege.start(plan, "--workers", "1", "--expect-workers", "2", "--bind", f"127.0.0.1:{port}")
        with joining(siege, port, "other", **clocks.environ):
            running.until('"worker":"other"')
            clocks.set(wall_s=90, monotonic_s=0.25)
            running.until("clock_drift", within_s=5, file="events.jsonl")
            ran = running.wait()
    (event,) = [event for event in ran.events if event.kind == "clock_drift"]
    assert event.worker == "other"
    assert event.at_ns < next(event.at_ns for event in ran.events if event.kind == "load_ended"), "while it runs"
    (warning,) = [line for line in ran.summary.warnings if "clock of" in line]
    assert "clock of other drifted by -2" in warning
    found = {worker.worker: worker.clock_drift_ns for worker in ran.summary.workers}
    assert found["worker-1"] == 0
    assert found["other"] == pytest.approx(-250 * MS, abs=20 * MS)
