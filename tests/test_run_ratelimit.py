"""Runs under a rate limit, on four workers: what the server sees, what is told, and that nothing waits for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from siege import Siege, check_conserved, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import Outcome, Reason
from infersiege.report.rebuild import rebuild

pytestmark = [pytest.mark.slow, pytest.mark.alone]

PER_SECOND = 10
LIMIT = f"rate_limit = {{requests_per_minute = {60 * PER_SECOND}}}"
FULL = 'mode = "closed"\nusers = 40\nramp = "0s"\nwarmup = "1s"\ndrain = "2s"'


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--output-tokens", "4", log=tmp_path / "truth.jsonl") as process:
        yield process


def answered_at_s(emulator: EmulatorProcess) -> list[float]:
    """When the server got what it answered (in its log: all but what preflight asked besides)."""
    return sorted(row["received_ns"] / 1e9 for row in emulator.truth())


def check_paced(times_s: list[float]) -> None:
    """In any span of time at most a second's worth more than the span itself gives (and a moment of the network)."""
    for first, begun in enumerate(times_s):
        for last in range(first, len(times_s)):
            span_s = times_s[last] - begun
            assert last - first + 1 <= PER_SECOND * (span_s + 1) + 6, (first, last, span_s)


def test_four_workers_keep_one_limit_and_use_it(siege: Siege, emulator: EmulatorProcess) -> None:
    """Forty users would send hundreds a second; ten a second are allowed, over all workers, also when one is killed."""
    running = siege.start(
        plan_text(emulator.base_url, channel=LIMIT, load=FULL, run='duration = "8s"'), "--workers", "4"
    )
    running.until('"outcome":"ok"')
    os.kill(running.worker_pids()["worker-2"], signal.SIGKILL)
    ran = running.wait(within_s=60)
    check_conserved(ran)
    assert ran.code == 3 and any("worker-2" in reason for reason in ran.summary.invalid), ran.out
    times_s = answered_at_s(emulator)
    check_paced(times_s)
    load_s = [at_s for at_s in times_s if at_s >= times_s[-1] - 5]
    # What the killed worker may have been granted is not given to others.
    assert len(load_s) >= 0.9 * PER_SECOND * 5
    (use,) = ran.summary.rate_limits
    assert use.held > 20 and (use.held_longest_ms or 0) > 1_000
    assert use.requests == pytest.approx(len(times_s), abs=40), "the killed worker's last are not told, preflight's are"
    said = f"rate limit of target: 600 requests a minute; {use.requests} requests sent; {use.held} turns waited for it"
    assert said in ran.out and said in (ran.path / "report.html").read_text(encoding="utf-8")
    assert any(line.startswith("rate limit of target held back") for line in ran.summary.warnings)
    assert rebuild(ran.directory).rate_limits == ran.summary.rate_limits, "the report can be made anew"
    assert not ran.by_outcome(Outcome.FAILED), "nobody was refused"


def test_an_open_load_above_the_limit_is_not_delivered_and_says_why(siege: Siege, emulator: EmulatorProcess) -> None:
    load = 'mode = "open"\nrate = 30.0\narrivals = "constant"\nwarmup = "0s"\ndrain = "1s"'
    ran = siege.run(plan_text(emulator.base_url, channel=LIMIT, load=load, run='duration = "4s"'), "--workers", "2")
    check_conserved(ran)
    assert ran.code == 3, ran.out
    (reason,) = [reason for reason in ran.summary.invalid if not reason.startswith("client-bound")]  # a busy machine
    assert reason.startswith("load not delivered in stage main: ")
    assert "the rate limit of target (600 requests a minute) held turns back; lower the rate" in reason
    assert "the 120 turns of the run take 11 s at least (600 requests a minute), which is more than the 4s" in ran.out
    check_paced(answered_at_s(emulator))


def test_a_turn_that_is_larger_than_the_limit_is_refused_and_the_others_go_on(
    siege: Siege, emulator: EmulatorProcess, tmp_path: Path
) -> None:
    trace = tmp_path / "sizes.jsonl"
    rows = []
    for number, length in enumerate((50, 5_000, 50, 50)):
        blocks = [100 * number + block for block in range(-(-length // 512))]
        rows.append(f'{{"timestamp": 0, "input_length": {length}, "output_length": 4, "hash_ids": {blocks}}}\n')
    trace.write_text("".join(rows), encoding="utf-8")
    ran = siege.run(
        plan_text(
            emulator.base_url,
            channel="rate_limit = {tokens_per_minute = 4000}",
            workload=f'scenario = "sizes"\ntrace = "{trace}"\nformat = "mooncake"',
            load='mode = "closed"\nusers = 2\nramp = "0s"\nwarmup = "0s"',
            run='duration = "20s"',
        )
    )
    check_conserved(ran)
    (refused,) = [turn for turn in ran.turns if turn.outcome is Outcome.SKIPPED]
    assert refused.reason is Reason.RATE_LIMIT
    assert "the rate limit of target gives 4,000 in a minute" in (refused.error_detail or "")
    assert len(ran.by_outcome(Outcome.OK)) == 3
    assert any("1 turns were not sent" in line for line in ran.summary.warnings), ran.summary.warnings
    assert "are not sent: it gives 4,000 in a minute" in ran.out


def test_a_plan_of_which_no_turn_fits_is_refused_before_anything_is_sent(
    siege: Siege, emulator: EmulatorProcess
) -> None:
    text = plan_text(emulator.base_url, channel="rate_limit = {tokens_per_minute = 20}")
    ran = siege.start(text).wait()
    assert ran.code == 2
    assert "error: channel.target.rate_limit.tokens_per_minute = 20: no turn can be sent: each asks for " in ran.out
    assert not ran.path.exists() and emulator.truth() == []
