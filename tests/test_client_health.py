"""Whether the client was the limit: the rule as a table, its figures from rows and turns, and whole runs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import metrics_turns as make
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from siege import Siege, plan_text

from infersiege import gate
from infersiege.calibrate.rig import Side
from infersiege.errors import ExitCode
from infersiege.metrics import client
from infersiege.metrics.batch import Batch
from infersiege.metrics.histogram import Histogram, bucket_of
from infersiege.metrics.summary import summarise
from infersiege.records import (
    Calibration,
    ClientHealth,
    ClientSummary,
    ClientVerdict,
    ErrorClass,
    Phase,
    TurnRecord,
    Verdict,
    WorkerSummary,
)
from infersiege.swarm.health import TICK_NS, LagLooks

MS, SECOND, T0 = make.MS, make.SECOND, make.T0
OK, STRAINED, BOUND = ClientVerdict.OK, ClientVerdict.STRAINED, ClientVerdict.CLIENT_BOUND

FIT = ClientSummary(
    worker="w1",
    verdict=OK,
    seconds=60,
    hub_lag_p99_ms=2,
    hub_lag_max_ms=9,
    cpu_share_mean=0.4,
    cpu_share_max=0.6,
    cpu_wait_share_mean=0.05,
    turns=1000,
    lateness_p99_ms=1.0,
    first_tokens=1000,
    chunks=100_000,
    tokens_per_s=5_000.0,
    turns_per_s=16.0,
)
BLIND: dict[str, Any] = {"hub_lag_p99_ms": None, "hub_lag_max_ms": None, "cpu_share_mean": None, "seconds": 0}
FEW_STALLS: dict[str, Any] = {"hub_lag_p99_ms": 1075, "hub_lag_max_ms": 1100, "held_seconds": 2, "seconds": 10}
CEILING = Calibration(
    host="h",
    cpu="c",
    cores=8,
    versions={},
    measured_ns=0,
    quick=False,
    streams=2000,
    stream_tokens_per_s=20,
    answer_tokens=100,
    tokens_per_s=40_000.0,
    turns_per_s=400.0,
    timing_error_p99_ms=0.1,
    coalesced_share=0.0,
    requests_per_s=2_000.0,
    connections_per_s=1_500.0,
)


@pytest.mark.parametrize(
    ("seen", "verdict", "reason"),
    [
        ({}, OK, "nothing is over half of a limit"),
        (BLIND, None, "nothing was seen of it"),
        (BLIND | {"wide_slack": 11}, BOUND, "its turns alone show that it was"),
        ({"wide_slack": 11}, BOUND, "more than 1 % of first tokens in doubt"),
        ({"wide_slack": 10}, STRAINED, "1 % is allowed, but more than half of it"),
        ({"wide_slack": 5}, OK, "half of it is allowed"),
        ({"wide_slack": 2, "first_tokens": 2}, OK, "two turns prove nothing, even if they are all there are"),
        ({"wide_slack": 3, "first_tokens": 3}, BOUND, "three do"),
        ({"hub_lag_p99_ms": 51, "held_seconds": 60}, BOUND, "an instant in a hundred waits for more than 50 ms"),
        ({"hub_lag_p99_ms": 50, "held_seconds": 60}, STRAINED, "50 ms is allowed, but more than half of it"),
        ({"hub_lag_p99_ms": 25, "held_seconds": 60}, OK, "half of it is allowed"),
        ({"hub_lag_p99_ms": 300, "held_seconds": 2}, OK, "one stall, such as all users beginning at once"),
        ({"hub_lag_p99_ms": 300, "held_seconds": 2, "seconds": 2}, BOUND, "of two seconds, both"),
        (FEW_STALLS | {"stalled_share": 0.2}, BOUND, "two stalls of a second in ten"),
        (FEW_STALLS | {"stalled_share": 0.05}, STRAINED, "half a second in ten is allowed, but more than half of it"),
        (FEW_STALLS | {"stalled_share": 0.025}, OK, "half of it is allowed"),
        (FEW_STALLS | {"stalled_share": 0.11, "seconds": 2, "held_seconds": 1}, OK, "a fifth of a second"),
        (FEW_STALLS | {"stalled_share": 0.03, "seconds": 60}, STRAINED, "two seconds in a minute"),
        ({"busy_seconds": 60}, OK, "a whole core, but on time: it is used well"),
        ({"busy_seconds": 60, "hub_lag_p99_ms": 26}, BOUND, "a whole core, and the loop is late"),
        (
            {"busy_seconds": 60, "lateness_p99_ms": 60_000.0},
            OK,
            "a whole core, on time; its requests waited for max_in_flight, requests per minute or a budget",
        ),
        ({"busy_seconds": 6, "hub_lag_p99_ms": 26}, STRAINED, "10 % of the seconds may be busy"),
        ({"busy_seconds": 1, "seconds": 4, "hub_lag_p99_ms": 26}, OK, "one busy second proves nothing"),
        ({"busy_seconds": 30, "hub_lag_p99_ms": 13}, STRAINED, "busy, and half as late as is allowed"),
        ({"lateness_p99_ms": 60_000.0}, OK, "a slow server holds arrivals at max_in_flight: late, but not by us"),
        ({"coalesced": 90_000}, OK, "a proxy that sends in bursts coalesces chunks, too"),
        ({"cpu_share_mean": 0.99, "cpu_share_max": 1.0, "busy_seconds": 60}, OK, "busy alone spoils no figure"),
        ({"gc_pause_max_ms": 40.0}, OK, "a pause that holds the loop up shows in its lag"),
    ],
)
def test_the_rule(seen: dict[str, Any], verdict: ClientVerdict | None, reason: str) -> None:
    judged = client.judged(replace(FIT, **seen))
    assert judged.verdict is verdict, reason
    assert bool(judged.reasons) == (verdict in (STRAINED, BOUND)), reason


@given(
    st.integers(0, 1000), st.integers(0, 400), st.integers(0, 60), st.integers(0, 60), st.floats(0, 1), st.booleans()
)
def test_worse_figures_never_make_a_better_verdict(
    wide: int, lag: int, held: int, busy: int, stalled: float, more: bool
) -> None:
    order: list[ClientVerdict | None] = [OK, STRAINED, BOUND]
    seen = replace(
        FIT, wide_slack=wide, hub_lag_p99_ms=lag, held_seconds=held, busy_seconds=busy, stalled_share=stalled
    )
    worse = replace(
        seen,
        wide_slack=min(1000, wide + 1 + 10 * more),
        hub_lag_p99_ms=lag + 1,
        held_seconds=min(60, held + 1),
        busy_seconds=min(60, busy + 1),
        stalled_share=min(1.0, stalled + 0.01),
    )
    assert order.index(client.judged(worse).verdict) >= order.index(client.judged(seen).verdict)


def test_the_run_is_what_its_worst_worker_is() -> None:
    judged = [client.judged(replace(FIT, worker=name, wide_slack=n)) for name, n in (("a", 0), ("b", 10), ("c", 20))]
    assert [one.verdict for one in judged] == [OK, STRAINED, BOUND]
    assert client.worst(judged) is BOUND and client.worst(judged[:2]) is STRAINED and client.worst([]) is None


def test_a_worker_that_nobody_watched_makes_no_run_ok() -> None:
    blind = client.judged(replace(FIT, worker="blind", **BLIND))
    fit, strained, bound = (client.judged(replace(FIT, wide_slack=n)) for n in (0, 10, 20))
    assert client.worst([fit, blind]) is client.worst([blind]) is None
    assert client.worst([strained, blind]) is STRAINED and client.worst([bound, blind]) is BOUND


# -------------------------------------------------------------------------------------------------- how many workers


@pytest.mark.parametrize(
    ("tokens", "turns", "workers", "reason"),
    [
        (0.0, 0.0, 1, "nothing still needs one"),
        (28_000.0, 280.0, 1, "70 % of 40,000 is what one should get; its turns are in the ceiling"),
        (28_001.0, 280.0, 2, "one token more"),
        (400_000.0, 4_000.0, 15, "ten times the ceiling"),
        (0.0, 1_400.0, 1, "short requests alone: 70 % of 2,000"),
        (0.0, 1_401.0, 2, "one more"),
        (20_000.0, 1_200.0, 2, "half of the tokens, and 1,000 turns beyond the 200 that belong to them: half again"),
    ],
)
def test_workers_that_a_load_needs(tokens: float, turns: float, workers: int, reason: str) -> None:
    assert client.workers_for(tokens, turns, CEILING) == workers, reason


@pytest.mark.parametrize(
    ("seen", "calibration", "words", "reason"),
    [
        ({"cpu_share_mean": 1.0, "busy_seconds": 60}, None, "at least 2 workers would have done", "by the CPU it used"),
        ({"tokens_per_s": 100_000.0}, CEILING, "4 workers would have done", "by the calibrated ceiling"),
        ({"cpu_share_mean": 0.3, "cpu_wait_share_mean": 0.6}, None, "on hosts with free cores", "others had its CPU"),
        (
            {"cpu_share_mean": 0.2, "cpu_wait_share_mean": 0.2},
            None,
            "waited for one for 20% of the time",
            "a busy host",
        ),
        ({"cpu_share_mean": 0.1}, CEILING, "workers used 10% of a core each", "more workers would not help"),
        ({"cpu_share_mean": None, "cpu_wait_share_mean": None}, None, "add workers or hosts", "nothing is known"),
    ],
)
def test_a_bound_run_says_what_would_have_done(
    seen: dict[str, Any], calibration: Calibration | None, words: str, reason: str
) -> None:
    assert words in client.advice([replace(FIT, **seen)], calibration), reason


# ------------------------------------------------------------------------------------------------ from rows and turns


def row(at_s: float, **changes: Any) -> ClientHealth:
    """The second that ends `at_s` after the steady phase's start."""
    base: dict[str, Any] = {
        "second": (T0 + round(at_s * SECOND)) // SECOND,
        "worker": "w1",
        "cpu_share": 0.4,
        "hub_lag_max_ns": 2 * MS,
        "gc_pause_max_ns": 0,
        "rss_bytes": 1,
        "open_files": 20,
        "begun_ns": T0 + round((at_s - 1) * SECOND),
        "ended_ns": T0 + round(at_s * SECOND),
        "hub_lag": {0: 98, 2: 2},
        "cpu_wait_share": 0.1,
    }
    return ClientHealth(**(base | changes))


def watched(turns: list[TurnRecord]) -> client.ClientWatch:
    watch = client.ClientWatch()
    watch.add_batch(Batch(turns))
    return watch


BAD: dict[str, Any] = {"hub_lag": {200: 100}, "hub_lag_max_ns": 200 * MS, "cpu_share": 1.0}


@pytest.mark.parametrize(
    ("bad", "verdict", "reason"),
    [
        ([1, 2, 3, 4], BOUND, "seconds of the steady phase"),
        ([-3, -2, -1, 0], OK, "warm-up: users begin, and connections"),
        ([11, 12, 13], OK, "drain: what is open is cancelled"),
        ([0.4, 10.6, 11.4], OK, "less than half of them lies in steady"),
        ([1], BOUND, "one second of which nothing was left, of seven"),
    ],
)
def test_only_steady_seconds_count(bad: list[float], verdict: ClientVerdict, reason: str) -> None:
    rows = [row(at) for at in range(5, 11)] + [row(at, **BAD) for at in bad]
    (found,) = client.summaries(rows, watched(make.many(10)), [make.STEADY])
    assert found.verdict is verdict, (reason, found)


@pytest.mark.parametrize(
    ("stalls", "verdict", "reason"),
    [
        ([200], OK, "one stall of a fifth of a second in ten"),
        ([1100, 1100], BOUND, "a fifth of the time, though in two seconds only"),
        ([340], STRAINED, "a third of a second"),
        ([45, 45], OK, "too short to count"),
    ],
)
def test_long_stalls_in_few_seconds_count_for_as_long_as_they_lasted(
    stalls: list[int], verdict: ClientVerdict, reason: str
) -> None:
    """Stopped twice for 1.1 s in ten, a worker sends a fifth of its requests late; all first tokens are exact."""
    rows = []
    for at in range(1, 11):
        looks = LagLooks()
        if at <= len(stalls):
            looks.add(stalls[at - 1] * MS)
        # A report that a stall hid comes late, and is then of a longer time.
        for _ in range(100 - sum(looks.counts.values())):
            looks.add(0)
        most = max(looks.counts)
        rows.append(row(at, hub_lag=looks.counts, hub_lag_max_ns=most * MS))
    (found,) = client.summaries(rows, watched(make.many(200)), [make.STEADY])
    assert found.verdict is verdict, (reason, found)
    over = sum(max(0, ms - 50) for ms in stalls) / 10_000
    assert found.stalled_share == pytest.approx(over, abs=0.01), reason


def test_figures_of_a_worker() -> None:
    turns = [
        *make.many(90, first_token_slack_ns=0),
        *make.many(10, first_token_slack_ns=2 * MS, coalesced=1),
        *make.many(50, first_token_slack_ns=9 * MS, phase=Phase.WARMUP),
        make.failed(0, 1, ErrorClass.CONNECT),
    ]
    rows = [row(1), row(2, open_files=90, gc_pause_max_ns=3 * MS, cpu_share=0.9), row(40, **BAD)]
    (found,) = client.summaries(rows, watched(turns), [make.STEADY])
    assert (found.worker, found.seconds, found.open_files_max, found.gc_pause_max_ms) == ("w1", 2, 90, 3.0)
    assert (found.hub_lag_p99_ms, found.hub_lag_max_ms, found.busy_seconds) == (2, 2, 1)
    assert found.cpu_share_mean == pytest.approx(0.65) and found.cpu_wait_share_mean == pytest.approx(0.1)
    assert (found.first_tokens, found.wide_slack, found.coalesced) == (100, 10, 10)
    assert found.turns == 101 and found.turns_per_s == pytest.approx(10.1)


def test_rows_of_an_older_version_and_workers_without_rows() -> None:
    old = row(1, begun_ns=None, ended_ns=None, hub_lag={}, cpu_wait_share=None)
    other = make.many(5, worker="w2", first_token_slack_ns=9 * MS)
    blind = make.many(2, worker="w3")
    found = client.summaries([old], watched([*make.many(3), *other, *blind]), [make.STEADY])
    first, second, third = found
    assert (first.worker, first.seconds, first.hub_lag_p99_ms, first.cpu_wait_share_mean) == ("w1", 1, None, None)
    assert (second.worker, second.seconds, second.verdict) == ("w2", 0, BOUND)
    assert (third.worker, third.seconds, third.verdict, third.reasons) == ("w3", 0, None, ())


@given(st.lists(st.sampled_from(["w1", "w2", "w3"]), max_size=30), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_workers_add_up(names: list[str], random_: random.Random) -> None:
    rows = [row(1 + place % 9, worker=name, hub_lag={place: 1}) for place, name in enumerate(names)]
    turns = [make.many(1, worker=name, first_token_slack_ns=place * MS)[0] for place, name in enumerate(names)]
    found = client.summaries(rows, watched(turns), [make.STEADY])
    random_.shuffle(rows)
    random_.shuffle(turns)
    assert client.summaries(rows, watched(turns), [make.STEADY]) == found
    assert sum(one.turns for one in found) == sum(one.seconds for one in found) == len(names)


def test_seconds_for_a_time_axis() -> None:
    turns = [make.streamed(at, [at + 100, at + 1200], first_token_slack_ns=2 * MS, coalesced=1) for at in (0, 50, 5000)]
    seconds = watched(turns).seconds("w1")
    first = T0 // SECOND
    assert {at - first: (one.first_tokens, one.wide_slack, one.chunks) for at, one in seconds.items()} == {
        0: (2, 2, 0),
        1: (0, 0, 4),
        5: (1, 1, 0),
        6: (0, 0, 2),
    }
    assert seconds[first].lateness.n == 2 and watched(turns).seconds("nobody") == {}


# ----------------------------------------------------------------------------------------------------- the summary


def bound_summary(**changes: Any) -> Any:
    clients = (client.judged(FIT), client.judged(replace(FIT, worker="w2", hub_lag_p99_ms=90, held_seconds=50)))
    return summarise(make.many(200), make.facts(clients=clients, **changes))


def test_gt_09_a_client_bound_run_passes_no_gate() -> None:
    """Not even one that meets every rule: what was measured is the client."""
    fit = summarise(make.many(200), make.facts(clients=(client.judged(FIT),)))
    assert fit.invalid == () and fit.client is OK
    assert gate.overall(fit, gate.judge((), fit)) is Verdict.PASS
    bound = bound_summary()
    assert bound.client is BOUND
    rules = gate.judge((), bound)
    assert gate.overall(bound, rules) is Verdict.INVALID
    assert gate.exit_code(bound, rules, gated=True) is ExitCode.INVALID_RUN
    assert gate.exit_code(bound, rules, gated=False) is ExitCode.INVALID_RUN


def test_a_bound_run_names_worker_reason_and_remedy_once() -> None:
    (reason,) = bound_summary(calibration=CEILING).invalid
    assert reason.startswith("client-bound: w2: its event loop was held up by 90 ms (p99) (1 of 2 workers are bound); ")


def test_a_strained_run_is_valid_with_a_warning() -> None:
    strained = client.judged(replace(FIT, hub_lag_p99_ms=40, held_seconds=50))
    found = summarise(make.many(200), make.facts(clients=(strained,)))
    assert found.invalid == () and found.client is STRAINED
    assert any(warning.startswith("strained client: w1: its event loop") for warning in found.warnings)


def of_worker(name: str, lag_ms: int | None) -> WorkerSummary:
    return WorkerSummary(
        worker=name,
        host="h",
        pid=1,
        turns=1,
        lost=False,
        lost_at_ns=None,
        records_promised=1,
        records_received=1,
        cpu_share_max=None,
        clock_offset_ns=0,
        clock_uncertainty_ns=0,
        hub_lag_p99_ns=None if lag_ms is None else lag_ms * MS,
    )


def test_without_health_rows_the_figure_of_the_whole_run_decides_for_each_worker() -> None:
    """telemetry/ is gone, or was never written by one of the workers: not watched is not fit."""
    turns = [*make.many(20), *make.many(20, worker="w2")]
    clients = client.summaries([row(at) for at in range(1, 11)], watched(turns), [make.STEADY])
    assert [(one.worker, one.verdict) for one in clients] == [("w1", OK), ("w2", None)]
    late = summarise(turns, make.facts(clients=clients, workers=(of_worker("w1", 900), of_worker("w2", 900))))
    (reason,) = late.invalid
    assert reason.startswith("client-bound: the event loop of w2 was held up by 900 ms (p99)")
    fit = summarise(turns, make.facts(clients=clients, workers=(of_worker("w1", 900), of_worker("w2", 9))))
    assert fit.invalid == () and fit.client is None
    assert not any("not watched" in one for one in fit.warnings)
    unknown = summarise(turns, make.facts(clients=clients, workers=(of_worker("w1", 900), of_worker("w2", None))))
    assert unknown.invalid == () and unknown.client is None
    (warning,) = [one for one in unknown.warnings if one.startswith("client not watched")]
    assert "w2 has no row in telemetry/clients.jsonl" in warning and "(1 of 2 workers)" in warning


# ----------------------------------------------------------------------------------------------------- the monitor


@pytest.mark.parametrize(
    ("lag_ms", "looks", "reason"),
    [
        (0, [0], "on time"),
        (9, [9], "less than a tick hides none"),
        (10, [10, 0], "one look was due and did not happen"),
        (35, [35, 25, 15, 5], "three of them"),
    ],
)
def test_looks_that_a_stall_hid_are_counted(lag_ms: int, looks: list[int], reason: str) -> None:
    found = LagLooks()
    found.add(lag_ms * MS)
    assert found.counts == {bucket_of(look): 1 for look in looks}, reason


@given(st.integers(0, 10**13))
def test_a_stall_of_any_length_weighs_what_it_lasted(lag_ns: int) -> None:
    """Hours, too (a laptop's lid), without going through millions of looks."""
    found = LagLooks()
    begun = time.perf_counter()
    found.add(lag_ns)
    assert time.perf_counter() - begun < 0.5
    assert sum(found.counts.values()) == pytest.approx(lag_ns // TICK_NS + 1, rel=0.01, abs=1)
    assert Histogram.from_sparse(found.counts).percentile(0.5) == pytest.approx(lag_ns / MS / 2, rel=0.02, abs=6)


def test_a_monitor_sees_stalls_and_starts_anew() -> None:
    """In a process of its own: gevent's loop is blocked for 300 ms."""
    script = (
        "import gevent, time\nfrom gevent.monkey import get_original\n"
        "from infersiege.swarm.health import HealthMonitor\n"
        "import msgspec\nmonitor = HealthMonitor('w')\nmonitor.start()\ngevent.sleep(0.1)\nmonitor.sample(0)\n"
        "gevent.sleep(0.05)\nget_original('time', 'sleep')(0.3)\ngevent.sleep(0.1)\n"
        "print(msgspec.json.encode(monitor.sample(0)).decode())\ngevent.sleep(0.2)\n"
        "print(msgspec.json.encode(monitor.sample(5)).decode())\nmonitor.stop()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    held, free = (msgspec.json.decode(line, type=ClientHealth) for line in ended.stdout.splitlines())
    assert held.hub_lag_max_ns > 250 * MS > free.hub_lag_max_ns
    late = Histogram.from_sparse(held.hub_lag).percentile(0.6)
    assert late is not None and late > 50, "most of that time the loop was held up"
    assert held.begun_ns is not None and held.ended_ns is not None and free.begun_ns == held.ended_ns + 5
    assert held.ended_ns - held.begun_ns > 400 * MS


# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture
def null_server() -> Iterator[int]:
    """Answers at once, streams of 40 tokens each 5 ms."""
    server = Side("infersiege.calibrate.server")
    port: int = server.read()["port"]
    server.ask({"interval_ns": 5 * MS, "tokens": 40})
    yield port
    server.close()


@pytest.mark.slow
@pytest.mark.alone
def test_di_08_a_client_that_can_do_no_more_is_named(siege: Siege, null_server: int) -> None:
    """An instant server, 200 users, agent histories of 100 KB: the server idles, and yet nothing goes faster."""
    text = plan_text(
        f"http://127.0.0.1:{null_server}/v1",
        engine="generic",
        channel='text_lengths = "ratio"',
        load='mode = "closed"\nusers = 200\nwarmup = "1s"\ndrain = "500ms"',
        run='duration = "4s"',
        workload='scenario = "agent"\ntrace = "builtin:agent"\ndelay_cap = "0s"\nmax_tokens = 40',
    )
    ran = siege.run(text, "--skip-doctor")
    summary = ran.summary
    assert ran.code == 3 and summary.client is BOUND, ran.out
    (reason,) = [reason for reason in summary.invalid if reason.startswith("client-bound")]
    assert "workers would have done" in reason, "it says what to do"
    (seen,) = summary.clients
    assert seen.busy_seconds >= 1 and seen.cpu_share_mean is not None and seen.open_files_max is not None
    assert seen.open_files_max > 200
    rows = list(ran.directory.read_health())
    assert len(rows) >= 3 and sum(sum(one.hub_lag.values()) for one in rows) > 100, "each second, ten ms apart"


@pytest.mark.slow
@pytest.mark.alone
def test_di_08_a_worker_that_is_not_let_run_is_named(siege: Siege, null_server: int) -> None:
    """A tenth of a core: stopped for 90 of each 100 ms, with a load that a fit worker hardly notices."""
    text = plan_text(
        f"http://127.0.0.1:{null_server}/v1",
        engine="generic",
        channel='text_lengths = "ratio"',
        load='mode = "closed"\nusers = 8\nwarmup = "500ms"\ndrain = "500ms"',
        run='duration = "3500ms"',
    )
    running = siege.start(text, "--skip-doctor")
    events = running.path / "events.jsonl"
    over = threading.Event()

    def starve() -> None:
        while not (events.exists() and b"stage_started" in events.read_bytes()):
            if over.wait(0.05):
                return
        (pid,) = running.worker_pids().values()
        while not over.is_set() and b"load_ended" not in events.read_bytes():
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.09)
            os.kill(pid, signal.SIGCONT)
            over.wait(0.01)

    thread = threading.Thread(target=starve)
    thread.start()
    try:
        ran = running.wait()
    finally:
        over.set()
        thread.join()
    assert ran.code == 3 and ran.summary.client is BOUND, ran.out
    assert any("event loop was held up" in reason for reason in ran.summary.clients[0].reasons)
    assert any("something kept them from running" in reason for reason in ran.summary.invalid)


@pytest.mark.slow
@pytest.mark.alone
def test_di_08_a_slow_server_is_no_slow_client(siege: Siege, tmp_path: Path) -> None:
    """Ten times too slow for an open loop, with arrivals held at max_in_flight: late by seconds, none of it ours."""
    server = Side("infersiege.calibrate.server")
    try:
        port = server.read()["port"]
        server.ask({"interval_ns": 500 * MS, "tokens": 6})
        text = plan_text(
            f"http://127.0.0.1:{port}/v1",
            engine="generic",
            channel='text_lengths = "ratio"',
            load='mode = "open"\nrate = 20.0\nmax_in_flight = 4\nwarmup = "500ms"\ndrain = "500ms"',
            run='duration = "3500ms"',
        )
        ran = siege.run(text, "--skip-doctor")
    finally:
        server.close()
    (seen,) = ran.summary.clients
    assert ran.summary.client in (OK, STRAINED), (ran.out, seen)
    assert not any(reason.startswith("client-bound") for reason in ran.summary.invalid)
    assert any("not delivered" in reason for reason in ran.summary.invalid), "that is what is wrong with it"
