"""The search for capacity in virtual time, the verdict on a probe, the knee, idleness, and what is kept on disk."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import emulated
import metrics_turns as make
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infersiege import gate
from infersiege.capacity import hunt, shown, sweeping
from infersiege.capacity.child import why_not_begun
from infersiege.capacity.idle import requests_of, wait_until_idle
from infersiege.capacity.search import (
    INVALID_MOST,
    LEAST_RATE,
    LENGTHENED_MOST,
    MOST_RATE,
    MOST_USERS,
    Finding,
    Judged,
    Outcome,
    Range,
    Shown,
    bracket,
    most_probes,
    next_load,
    tally,
    usual_probes,
)
from infersiege.capacity.state import (
    CAPACITY,
    CapacityState,
    Identity,
    Probe,
    SweepState,
    alone_in,
    check_same,
    identity_of,
    load,
    save,
)
from infersiege.capacity.verdict import judge_probe
from infersiege.cli import infersiege
from infersiege.cli.sweep import loads_of
from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import PlanError, RunDirectoryError, UsageError
from infersiege.metrics.summary import summarise
from infersiege.plan import load_plan
from infersiege.plan.schema import Channel, Slo
from infersiege.records import Outcome as TurnOutcome
from infersiege.records import Summary, TurnRecord
from infersiege.report.capacity_page import render_curves
from infersiege.report.load_curve import Knee, LoadPoint, elbow, knee, knee_of
from infersiege.telemetry.idle import EnginePage

Server = Callable[[float], Judged]


def search(search_range: Range, server: Server) -> tuple[Finding, list[Shown]]:
    """A whole search; fails when it does not end within what was stated beforehand."""
    probes: list[Shown] = []
    most = most_probes(search_range) + LENGTHENED_MOST + INVALID_MOST
    while not isinstance(step := next_load(search_range, probes), Finding):
        assert len(probes) <= most, f"more probes than stated: {probes}"
        assert search_range.lowest <= step <= search_range.highest
        assert not search_range.whole or step == int(step)
        probes.append(Shown(step, server(step)))
    return step, probes


def up_to(limit: float) -> Server:
    return lambda load: Judged.PASS if load <= limit else Judged.FAIL


USERS = Range(start=4, lowest=1, highest=256, whole=True)
RATE = Range(start=2.0, lowest=0.1, highest=500.0, whole=False)


# ------------------------------------------------------------------------------------------ servers with a known limit


class Slots:
    """A closed loop of users on so many slots: who finds none free waits in line. Mean service 1 s, log-normal."""

    def __init__(self, slots: int, most_wait_s: float, seed: int) -> None:
        self._slots, self._most_wait_s = slots, most_wait_s
        self._random = random.Random(seed)

    @property
    def limit(self) -> float:
        """N users take N / slots seconds for a round of which 1 s is service: the rest is the wait."""
        return self._slots * (1 + self._most_wait_s)

    def __call__(self, users: float) -> Judged:
        free = [0.0] * self._slots
        ready = [self._random.random() for _ in range(int(users))]
        heapq.heapify(ready)
        waits = []
        for number in range(60 * int(users)):
            due = heapq.heappop(ready)
            start = max(due, heapq.heappop(free))
            end = start + self._random.lognormvariate(-0.045, 0.3)
            heapq.heappush(free, end)
            heapq.heappush(ready, end)
            if number >= 10 * users:  # the first rounds are warm-up
                waits.append(start - due)
        return Judged.PASS if sorted(waits)[len(waits) // 2] <= self._most_wait_s else Judged.FAIL


class MM1:
    """Poisson arrivals, one exponential server of 100/s: 90 % are done within ln(10) / (100 - rate) s."""

    def __init__(self, p90_s: float, seed: int) -> None:
        self._p90_s = p90_s
        self._random = random.Random(seed)

    @property
    def limit(self) -> float:
        return 100 - math.log(10) / self._p90_s

    def __call__(self, rate: float) -> Judged:
        if rate >= 100:
            return Judged.FAIL
        now = free = 0.0
        times = []
        for _ in range(6000):
            now += self._random.expovariate(rate)
            free = max(now, free) + self._random.expovariate(100)
            times.append(free - now)
        return Judged.PASS if sorted(times)[len(times) * 9 // 10] <= self._p90_s else Judged.FAIL


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("search_range", "server"),
    [
        (USERS, lambda seed: Slots(24, 0.6, seed)),
        (RATE, lambda seed: MM1(0.05, seed)),
    ],
    ids=["slots", "M/M/1"],
)
def test_a_computable_limit_is_found_within_ten_percent(
    search_range: Range, server: Callable[[int], Any], seed: int
) -> None:
    made = server(seed)
    found, probes = search(search_range, made)
    assert found.outcome is Outcome.FOUND
    assert found.passes == pytest.approx(made.limit, rel=0.1), (made.limit, probes)
    assert found.fails is not None and found.passes is not None
    assert found.fails <= found.passes * 1.1 + 1e-6 or found.fails == found.passes + 1
    assert len(probes) <= most_probes(search_range)


# --------------------------------------------------------------------------------------------------- the search itself


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    whole = draw(st.booleans())
    numbers = st.integers(1, 3000) if whole else st.floats(0.01, 3000)
    lowest, start, highest = sorted(float(draw(numbers)) for _ in range(3))
    return Range(
        start=start,
        lowest=lowest,
        highest=highest,
        whole=whole,
        resolution=draw(st.sampled_from([0.01, 0.1, 0.5])),
        repeats=draw(st.sampled_from([1, 3, 5])),
    )


@given(ranges(), st.floats(0.001, 5000))
def test_a_sharp_limit_is_found_in_the_usual_number_of_probes(search_range: Range, limit: float) -> None:
    assert search_range.faults() == []
    found, probes = search(search_range, up_to(limit))
    assert len(probes) <= usual_probes(search_range)
    assert found.contradictions == ()
    if limit < search_range.lowest:
        assert (found.outcome, found.passes, found.fails) == (Outcome.BELOW, None, search_range.lowest)
    elif limit >= search_range.highest:
        assert (found.outcome, found.passes, found.fails) == (Outcome.AT_LEAST, search_range.highest, None)
    else:
        assert found.outcome is Outcome.FOUND
        assert found.passes is not None and found.fails is not None
        assert found.passes <= limit < found.fails
        near = found.fails <= found.passes * (1 + search_range.resolution) * (1 + 1e-6)
        assert near or (search_range.whole and found.fails == found.passes + 1)
        confirmed = search_range.repeats // 2 + 1
        assert found.passed_of == found.failed_of == (confirmed, confirmed)


@given(ranges(), st.randoms(use_true_random=False), st.sampled_from([(1, 1, 0, 0), (5, 5, 1, 0), (9, 1, 2, 1)]))
def test_it_ends_whatever_the_probes_show(search_range: Range, draw: random.Random, weights: tuple[int, ...]) -> None:
    words = [Judged.PASS, Judged.FAIL, Judged.NO_DATA, Judged.INVALID]
    found, probes = search(search_range, lambda _: draw.choices(words, weights)[0])
    passes, fails = bracket(tally(probes))
    assert (found.passes, found.fails) == (passes, fails)
    if passes is not None and fails is not None:
        assert passes < fails
    for low, high in found.contradictions:
        assert low < high and Shown(low, Judged.FAIL) in probes and Shown(high, Judged.PASS) in probes
    # What comes next depends on the probes alone: a search that was stopped anywhere goes on the same.
    for place, probe in enumerate(probes):
        assert next_load(search_range, probes[:place]) == probe.load


def test_a_slip_on_the_way_up_is_found_out() -> None:
    """One false fail at 8 users, far below the limit of 100: the repeats turn it over, and the doubling goes on."""
    slips = iter([True])

    def server(load: float) -> Judged:
        return Judged.FAIL if load == 8 and next(slips, False) else up_to(100)(load)

    found, _ = search(USERS, server)
    assert found.outcome is Outcome.FOUND and found.passes == pytest.approx(100, rel=0.1)
    assert found.contradictions and found.contradictions[0][0] == 8, "it is said that a probe failed below the limit"


def test_where_more_load_is_better_the_lower_limit_is_promised() -> None:
    """A server that fails at 6 to 9 users only: not what the search assumes, and it must not loop or be silent."""
    found, probes = search(USERS, lambda load: Judged.FAIL if 6 <= load <= 9 or load > 60 else Judged.PASS)
    assert found.passes is not None and found.fails is not None
    assert found.passes < 6 <= found.fails, f"the lower limit is the one that can be promised: {probes}"


def test_di_08_an_invalid_probe_is_no_failure_of_the_server() -> None:
    """Client-bound from 32 users on: the search stops there, and promises no more than it saw."""
    found, probes = search(USERS, lambda load: Judged.INVALID if load >= 32 else Judged.PASS)
    assert (found.outcome, found.stopped_at, found.passes, found.fails) == (Outcome.INVALID, 32, 16, None)
    assert [probe.load for probe in probes] == [4, 8, 16, 32, 32], "once more, since a busy host has accidents"
    once = iter([Judged.INVALID])
    found, _ = search(USERS, lambda load: next(once, up_to(10)(load)))
    assert (found.outcome, found.passes) == (Outcome.FOUND, 10), "one accident is forgiven"


def test_a_tie_is_no_pass() -> None:
    """What half of the probes fail can't be promised."""
    once = [Shown(4, Judged.PASS), Shown(4, Judged.FAIL)]
    assert bracket(tally(once)) == (None, 4)
    assert bracket(tally([Shown(2, Judged.PASS), *once, Shown(8, Judged.FAIL)])) == (2, 4)
    assert bracket(tally([*once, Shown(4, Judged.PASS)])) == (4, None)


def test_gt_09_no_data_is_no_pass() -> None:
    found, probes = search(USERS, lambda _: Judged.NO_DATA)
    assert (found.outcome, found.passes, found.stopped_at) == (Outcome.NO_DATA, None, 4)
    assert len(probes) == LENGTHENED_MOST + 1
    hopeless = [Shown(4, Judged.PASS), Shown(8, Judged.NO_DATA, hopeless=True)]
    ended = next_load(USERS, hopeless)
    assert isinstance(ended, Finding) and (ended.outcome, ended.passes) == (Outcome.NO_DATA, 4)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"start": 300}, "the start"),
        ({"start": 0, "lowest": 0, "highest": 0}, "the start (0) must be above 0"),
        ({"start": -3, "lowest": -3, "highest": -768}, "the start (-3) must be above 0"),
        ({"highest": 100_001}, "the highest load (100001) must lie between 1 and 100,000 users"),
        ({"whole": False, "lowest": 1e-7}, "the lowest load (1e-07) must lie between 1e-06 and 100,000 sessions/s"),
        ({"lowest": 0}, "the start"),
        ({"highest": math.inf}, "the start"),
        ({"start": math.nan}, "the start"),
        ({"resolution": 0.0}, "the resolution"),
        ({"resolution": math.nan}, "the resolution"),
        ({"repeats": 2}, "odd"),
        ({"repeats": 0}, "odd"),
        ({"start": 4.5}, "whole"),
    ],
)
def test_faults_of_a_range(changes: dict[str, float], fault: str) -> None:
    found = msgspec.structs.replace(USERS, **changes).faults()
    assert any(fault in one for one in found), found


# --------------------------------------------------------------------------------------------------- verdict on a probe


def judge(turns: list[TurnRecord], *slos: Slo, **changes: Any) -> Any:
    facts = make.facts(limits=gate.request_limits(slos), cuts=gate.cuts(slos), **changes)
    summary: Summary = summarise(turns, facts)
    summary = msgspec.structs.replace(summary, rules=gate.judge(slos, summary))
    return judge_probe(summary, slos, lambda: turns)


def cut(count: int, after_ms: float) -> list[TurnRecord]:
    """Turns that we cancelled so long after they were sent, before any token."""
    sent_ns = make.T0 + make.SECOND
    closed_ns = sent_ns + round(after_ms * make.MS)
    return [
        make.turn(outcome=TurnOutcome.CANCELLED, due_ns=sent_ns, sent_ns=sent_ns, closed_ns=closed_ns)
        for _ in range(count)
    ]


P50 = Slo(metric="ttft", stat="p50", at_most=150.0)
P99 = Slo(metric="ttft", stat="p99", at_most=150.0)
NOBODY = Slo(metric="cache_share", at_least=0.1)
AGAINST = Slo(metric="tpot", stat="p50", relative_max=0.1)


@pytest.mark.parametrize(
    ("turns", "slos", "judged", "factor", "reason"),
    [
        (make.many(20), (P50,), Judged.PASS, None, "measured, within"),
        (make.many(20, 200.0), (P50,), Judged.FAIL, None, "measured, outside"),
        (make.many(20), (P99,), Judged.NO_DATA, 18.0, "p99 needs 299 turns: 15 times as many, and some to spare"),
        (make.many(290), (P99,), Judged.NO_DATA, 1.5, "nearly enough"),
        (make.many(20, 200.0), (P99, P50), Judged.FAIL, None, "one broken rule is enough, whatever another lacks"),
        (
            make.many(20),
            (P50, AGAINST),
            Judged.PASS,
            None,
            "a probe has no baseline: such a rule asks nothing of it",
        ),
        (make.many(20), (P50, NOBODY), Judged.NO_DATA, None, "no length makes a server tell its cache"),
        (make.many(20), (P99, NOBODY), Judged.NO_DATA, None, "the same, beside one that length would help"),
        (cut(5, 100), (P50,), Judged.NO_DATA, 2.0, "nothing ended: the answers may take longer than the probe"),
        (make.many(95) + cut(5, 900), (P99,), Judged.FAIL, None, "cut turns past the limit break p99 for certain"),
        (make.many(285) + cut(15, 100), (P99,), Judged.NO_DATA, 1.5, "cut before the limit: nobody knows"),
        (make.many(400) + cut(10, 100), (P99,), Judged.NO_DATA, 2.0, "turns enough, but the cut ones hide it"),
        (make.many(297) + cut(3, 900), (P99,), Judged.NO_DATA, 1.5, "three of 300 may be past a p99"),
    ],
)
def test_verdict_on_a_probe(
    turns: list[TurnRecord], slos: tuple[Slo, ...], judged: Judged, factor: float | None, reason: str
) -> None:
    found = judge(turns, *slos)
    assert (found.judged, found.factor) == (judged, factor), f"{reason}: {found}"
    assert found.why


def test_a_rule_that_warns_decides_nothing() -> None:
    found = judge(make.many(20, 200.0), msgspec.structs.replace(P50, severity="warn"))
    assert found.judged is Judged.PASS


def test_an_invalid_run_is_neither_pass_nor_fail() -> None:
    found = judge(make.many(20, 200.0), P50, invalid=("client-bound: the event loop was held up",))
    assert found.judged is Judged.INVALID and "client-bound" in found.why


# ---------------------------------------------------------------------------------------------------------- the knee


LOADS = [1, 2, 4, 8, 11, 16, 32]


@pytest.mark.parametrize(
    ("heights", "expected", "reason"),
    [
        ([min(load, 8) * 10 for load in LOADS], 8, "grows to eight slots, then flat"),
        ([min(load, 4) * 10 for load in LOADS], 4, "the same with four"),
        ([min(load, 8) * (9.8, 10.3, 9.9, 10.1, 9.7, 10.4, 10.2)[n] for n, load in enumerate(LOADS)], 8, "noisy"),
        ([10, 20, 40, 80, 60, 20, 0], 8, "goodput that collapses behind its peak"),
        ([load * 10 for load in LOADS], None, "a straight line bends nowhere"),
        ([load**2 for load in LOADS], None, "one that gets steeper neither"),
        ([10] * 7, None, "flat from the first load on"),
        ([load * 10 + (-1) ** load for load in LOADS], None, "noise is no knee"),
        ([100, 100.4, 99.9, 100.1, 100.2, 100.3, 99.8], None, "nor is that of a curve that does not rise"),
        ([92, 100, 100, 100, 100, 100, 100], None, "8 % are no rise either"),
        ([88, 100, 100, 100, 100, 100, 100], 2, "12 % are"),
        ([100 * (1 - math.exp(-load / 8)) for load in LOADS], 11, "smooth saturation: where 1 - exp bends most"),
    ],
)
def test_knee(heights: list[float], expected: float | None, reason: str) -> None:
    assert knee(LOADS, heights) == expected, reason


@pytest.mark.parametrize(
    ("heights", "expected", "reason"),
    [
        ([20 + 25 * max(load - 4, 0) for load in LOADS], 4, "the fifth of four slots waits"),
        ([20 + 25 * max(load - 8, 0) for load in LOADS], 8, "the same with eight"),
        ([(1 + 0.05 * (-1) ** n) * (20 + 25 * max(load - 8, 0)) for n, load in enumerate(LOADS)], 8, "noisy"),
        ([1 / (40 - load) for load in LOADS], 16, "M/M/1 near its limit: the last load before it goes up"),
        ([20 + load for load in LOADS], None, "every user costs the same: a processor that is shared"),
        ([20] * 7, None, "flat: the limit was not reached"),
        ([100, 100.4, 99.9, 100.1, 100.2, 100.0, 100.5], None, "nor by noise"),
        ([20 - load / 10 for load in LOADS], None, "falling"),
    ],
)
def test_elbow(heights: list[float], expected: float | None, reason: str) -> None:
    assert elbow(LOADS, heights) == expected, reason


def test_where_the_first_load_fills_the_server_the_knee_is_that_of_the_wait() -> None:
    points = [LoadPoint(load=load, throughput=50.0, ttft_p50_ms=100 + 900 * max(load - 4, 0)) for load in LOADS]
    assert knee_of(points) == Knee(4, "TTFT")
    whole = [msgspec.structs.replace(point, ttft_p50_ms=None, e2e_p50_ms=point.ttft_p50_ms) for point in points]
    assert knee_of(whole) == Knee(4, "E2E")


def test_a_knee_needs_four_loads_and_takes_throughput_where_there_is_no_goodput() -> None:
    points = [LoadPoint(load=load, throughput=min(load, 4)) for load in (1, 2, 4, 8)]
    assert knee_of(points) == Knee(4, "throughput")
    assert knee_of(points[:3]) is None
    assert knee_of([]) is None
    # Goodput turns over at 2, where the latency limit is: it is what the plan asks for.
    good = [msgspec.structs.replace(point, goodput=(1, 2, 2, 1)[n]) for n, point in enumerate(points)]
    assert knee_of(good) == Knee(2, "goodput")
    few = [msgspec.structs.replace(point, goodput=(1, None, None, 2)[n]) for n, point in enumerate(points)]
    assert knee_of(few) == Knee(4, "throughput"), "goodput of two loads only is no curve"
    invalid = [*points, LoadPoint(load=100, throughput=400, verdict="invalid")]
    assert knee_of(invalid) == Knee(4, "throughput"), "what the client could not offer is no point of the curve"


# ---------------------------------------------------------------------------------------------------------- idleness


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def page_of(base_url: str) -> EnginePage:
    return EnginePage("local", Channel(engine="vllm", base_url=base_url, model="m"), base_url)


PAGE = page_of("http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    ("answers", "pages", "by", "dirty", "waited", "reason"),
    [
        ([0.0], [PAGE], "gauges", False, 0.0, "idle: no wait at all"),
        ([3.0, 1.0, 0.0], [PAGE], "gauges", False, 0.4, "until the last one is done"),
        ([1.0], [PAGE], "gauges", True, 10.0, "somebody else's load: no longer than the limit"),
        ([None], [PAGE], "pause", False, 2.0, "an engine without such a page: a pause"),
        ([], [], "pause", False, 2.0, "clouds: a pause"),
        ([2.0, None], [PAGE], "pause", False, 2.0, "a page that goes away"),
    ],
)
def test_waiting_until_idle(
    answers: list[float | None], pages: list[EnginePage], by: str, dirty: bool, waited: float, reason: str
) -> None:
    clock = Clock()
    told: Iterable[float | None] = itertools.chain(answers, itertools.repeat(answers[-1] if answers else None))
    told = iter(told)
    found = wait_until_idle(pages, lambda _: next(told), pause_s=2.0, limit_s=10.0, clock=clock, sleep=clock.sleep)
    assert (found.by, found.dirty) == (by, dirty), reason
    assert found.waited_s == pytest.approx(waited, abs=0.25), reason
    assert bool(found.detail) == dirty


def test_a_working_engine_is_not_idle_until_it_is_done() -> None:
    with EmulatorProcess("--step-base-ms", "50", "--output-tokens", "20") as emulator:
        page = page_of(emulator.base_url)

        def busy(page: EnginePage) -> float | None:
            return requests_of(page, {})

        assert busy(page) == 0
        body = emulated.body_for("chat", model=emulator.model)
        asked = threading.Thread(target=emulated.ask, args=(emulator.port, emulated.PATHS["chat"], body))
        asked.start()
        while not busy(page):
            assert asked.is_alive(), "a second of work was never seen"
        found = wait_until_idle([page], busy, pause_s=0.0, limit_s=30.0)
        asked.join()
        assert (found.by, found.dirty) == ("gauges", False) and found.waited_s > 0.2
        assert busy(page) == 0
    assert busy(page) is None, "a page that is gone tells nothing"


# ------------------------------------------------------------------------------------------------------ state on disk


PLAN = """
[run]
duration = "3s"
[channel.a]
engine = "vllm"
base_url = "http://127.0.0.1:9"
model = "m"
[channel."b c"]
engine = "sglang"
base_url = "http://127.0.0.1:9"
model = "m"
[[workload]]
scenario = "short-qa"
trace = "builtin:short-qa"
channel = "a"
[load]
mode = "closed"
users = 4
[[slo]]
metric = "ttft"
stat = "p50"
max = "120ms"
"""


OWN_LOAD = ("--set", 'workload.0.load={mode = "closed", users = 2}', "--set", "load.users=", "--set", "load.mode=")


def written(folder: Path, text: str = PLAN) -> Path:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def state_of(folder: Path, *probes: Probe) -> CapacityState:
    plan = load_plan(written(folder), (), {})
    state = hunt.begun(folder / "out", plan, "users", USERS, 3 * make.SECOND)
    return msgspec.structs.replace(state, probes=probes)


def probe(number: int, load: float, judged: Judged | None, **changes: Any) -> Probe:
    made: dict[str, Any] = {
        "number": number,
        "directory": f"probe-{number:03}-users-{load:g}",
        "load": load,
        "duration_ns": 3 * make.SECOND,
        "ended": judged is not None,
        "judged": judged,
        "call": 1,
    }
    if judged is not None:
        made["point"] = LoadPoint(load=load, verdict=judged.value, turns=10, throughput=min(load, 8) * 10)
    return Probe(**(made | changes))


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    before = state_of(tmp_path, probe(1, 4, Judged.PASS), probe(2, 8, None))
    save(tmp_path / "out", CAPACITY, before)
    plan = load_plan(written(tmp_path), ("load.users=9", "run.duration=9s"), {})
    after = hunt.begun(tmp_path / "out", plan, "users", USERS, 3 * make.SECOND)
    assert msgspec.structs.replace(after, call=1) == before, (
        "load and duration are the probes' own, so that a search may be made finer or longer"
    )
    assert next_load(after.search, hunt.shown(after)) == 8, "what was begun and did not end is made again"
    assert len(after.probes) == 2, "and gets a directory of its own"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("run.seed=2",), "another plan"),
        (("slo.0.max=5s",), "another plan"),
    ],
)
def test_a_search_does_not_go_on_with_another_plan(tmp_path: Path, change: tuple[str, ...], message: str) -> None:
    save(tmp_path / "out", CAPACITY, state_of(tmp_path))
    plan = load_plan(written(tmp_path), change, {})
    with pytest.raises(UsageError, match=message) as raised:
        hunt.begun(tmp_path / "out", plan, "users", USERS, 3 * make.SECOND)
    assert raised.value.hint


def test_a_search_does_not_go_on_with_other_versions(tmp_path: Path) -> None:
    now = identity_of(load_plan(written(tmp_path), (), {}))
    before = msgspec.structs.replace(now, versions={**now.versions, "locust": "0.1"})
    with pytest.raises(UsageError, match=re.escape("begun with locust 0.1")):
        check_same(tmp_path, before, now)


def test_a_trace_that_changed_is_told(tmp_path: Path) -> None:
    from infersiege.rundir import PlanFile

    file = PlanFile(run_id="r", name="n", created_ns=0, nonce="n", plan={}, trace_hashes={"chat": "b"})
    first = hunt.same_traces(Identity(plan_hash="p", versions={}), file)
    assert first.trace_hashes == {"chat": "b"}
    assert hunt.same_traces(first, file) == first
    with pytest.raises(UsageError, match="the trace of chat changed"):
        hunt.same_traces(first, msgspec.structs.replace(file, trace_hashes={"chat": "c"}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "malformed|truncated"),
        (b'{"schema_version": 1', "truncated"),
        (b"[]", "Expected"),
        (None, "is not empty"),
    ],
)
def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, content: bytes | None, message: str) -> None:
    (tmp_path / ("notes.txt" if content is None else CAPACITY)).write_bytes(b"mine" if content is None else content)
    with pytest.raises(UsageError, match=message) as raised:
        load(tmp_path, CAPACITY, CapacityState)
    assert raised.value.hint and "--out" in raised.value.hint


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    save(tmp_path, CAPACITY, msgspec.structs.replace(state_of(tmp_path), schema_version=99))
    with pytest.raises(UsageError, match="schema 99"):
        load(tmp_path, CAPACITY, CapacityState)


@pytest.mark.parametrize(
    ("probes", "load", "seconds", "reason"),
    [
        ((), 4, 3.0, "as asked"),
        ((probe(1, 4, Judged.NO_DATA, longer_ns=9 * make.SECOND),), 4, 9.0, "as long as it should have been"),
        ((probe(1, 4, Judged.NO_DATA, longer_ns=9 * make.SECOND),), 2, 18.0, "less load: the same turns take more"),
        ((probe(1, 4, Judged.NO_DATA, longer_ns=9 * make.SECOND),), 6, 6.0, "more load: the same turns in less time"),
        ((probe(1, 4, Judged.NO_DATA, longer_ns=9 * make.SECOND),), 400, 3.0, "never shorter than asked"),
        ((probe(1, 4, Judged.NO_DATA, longer_ns=900 * make.SECOND),), 4, 24.0, "eight times at most"),
    ],
)
def test_length_of_a_probe(tmp_path: Path, probes: tuple[Probe, ...], load: float, seconds: float, reason: str) -> None:
    assert hunt.length_of(state_of(tmp_path, *probes), load) == round(seconds * make.SECOND), reason


def resumed(tmp_path: Path, *probes: Probe) -> CapacityState:
    """The same search in another call."""
    save(tmp_path / "out", CAPACITY, state_of(tmp_path, *probes))
    return hunt.begun(tmp_path / "out", load_plan(written(tmp_path), (), {}), "users", USERS, 3 * make.SECOND)


@pytest.mark.parametrize(
    ("probes", "outcome", "at"),
    [
        ([probe(1, 4, Judged.PASS), probe(2, 8, Judged.INVALID), probe(3, 8, Judged.INVALID)], Outcome.INVALID, 8),
        ([probe(1, 4, Judged.PASS), probe(2, 8, Judged.NO_DATA, hopeless=True)], Outcome.NO_DATA, 8),
        ([probe(n, 4, Judged.NO_DATA) for n in range(1, LENGTHENED_MOST + 2)], Outcome.NO_DATA, 4),
        (
            [probe(n, 4, (Judged.PASS, Judged.FAIL)[n % 2]) for n in range(1, most_probes(USERS) + 1)],
            Outcome.UNCONFIRMED,
            None,
        ),
    ],
    ids=["invalid", "hopeless", "lengthened", "used up"],
)
def test_going_on_takes_up_what_ended_without_an_answer(
    tmp_path: Path, probes: list[Probe], outcome: Outcome, at: float | None
) -> None:
    """The message says what to change (workers, length, a host of its own): the next call must be able to try it."""
    ended = hunt.next_step(state_of(tmp_path, *probes))
    assert isinstance(ended, Finding) and (ended.outcome, ended.stopped_at) == (outcome, at)
    again = resumed(tmp_path, *probes)
    step = hunt.next_step(again)
    assert not isinstance(step, Finding) and (at is None or step == at), "what has a verdict stays"
    more = [probe(len(probes) + 1, 8, Judged.INVALID, call=2), probe(len(probes) + 2, 8, Judged.INVALID, call=2)]
    found = hunt.next_step(msgspec.structs.replace(again, probes=(*again.probes, *more)))
    assert isinstance(found, Finding) and found.outcome is Outcome.INVALID, "and the new call has the same bounds"


def test_a_probe_of_eight_times_the_length_is_the_last(tmp_path: Path) -> None:
    needs = probe(1, 4, Judged.NO_DATA, longer_ns=900 * make.SECOND)
    length_ns = hunt.length_of(state_of(tmp_path, needs), 4)
    assert length_ns == 8 * 3 * make.SECOND and not hunt.ended_as(needs, state_of(tmp_path)).hopeless
    longest = msgspec.structs.replace(needs, duration_ns=length_ns)
    hopeless = hunt.ended_as(longest, state_of(tmp_path))
    assert isinstance(hunt.next_step(state_of(tmp_path, hopeless)), Finding)
    assert not hunt.ended_as(msgspec.structs.replace(longest, judged=Judged.PASS), state_of(tmp_path)).hopeless


def test_two_calls_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    with (
        alone_in(tmp_path / "out"),
        pytest.raises(UsageError, match="another capacity, sweep or run works in it"),
        alone_in(tmp_path / "out"),
    ):
        pass
    with alone_in(tmp_path / "out"):
        assert load(tmp_path / "out", CAPACITY, CapacityState) is None, "the lock leaves nothing in the folder"


# -------------------------------------------------------------------------------------------------- what people read


def finished(tmp_path: Path, *probes: Probe) -> CapacityState:
    state = state_of(tmp_path, *probes)
    found = next_load(state.search, hunt.shown(state))
    assert isinstance(found, Finding)
    points = [one.point for one in probes if one.point is not None]
    return msgspec.structs.replace(state, finding=found, knee=knee_of(points))


def usual(tmp_path: Path) -> CapacityState:
    words = {"p": Judged.PASS, "f": Judged.FAIL}
    steps = [(4, "p"), (8, "p"), (16, "f"), (11, "p"), (13, "f"), (12, "f"), (11, "f"), (11, "p"), (12, "f")]
    return finished(tmp_path, *(probe(n, load, words[word]) for n, (load, word) in enumerate(steps, 1)))


def test_the_conclusion_says_how_sure_it_is(tmp_path: Path) -> None:
    said = hunt.conclusion(usual(tmp_path))
    assert said[0] == "capacity: 11 users; the limit lies between 11 users and 12 users"
    assert "at 11 users 2 of 3 probes passed" in said
    assert "at 12 users 2 of 2 probes failed" in said
    assert any("knee" in line for line in said)


def test_the_conclusion_of_other_ends(tmp_path: Path) -> None:
    one = [probe(1, 4, Judged.PASS), probe(2, 8, Judged.INVALID, why="client-bound"), probe(3, 8, Judged.INVALID)]
    last = msgspec.structs.replace(one[2], why="client-bound: the event loop was held up")
    first = hunt.conclusion(finished(tmp_path, *one[:2], last))[0]
    assert "at least 4 users" in first and "8 users could not be offered" in first and "client-bound" in first
    lowest = [probe(n, load, Judged.FAIL) for n, load in enumerate((4, 2, 1, 1), 1)]
    assert hunt.conclusion(finished(tmp_path, *lowest))[0] == "capacity: below 1 user, the lowest load allowed"


def test_the_conclusion_has_the_warnings_behind_it_and_mixed_workers(tmp_path: Path) -> None:
    warned = ("the first wave weighs heavily",)
    steps = [(4, Judged.PASS), (8, Judged.FAIL), (6, Judged.PASS), (7, Judged.FAIL), (6, Judged.PASS), (7, Judged.FAIL)]
    probes = [probe(n, load, judged, workers=1) for n, (load, judged) in enumerate(steps, 1)]
    assert not any("warning" in line or "workers" in line for line in hunt.conclusion(finished(tmp_path, *probes)))
    probes[4] = msgspec.structs.replace(probes[4], warnings=warned, workers=2)
    probes[0] = msgspec.structs.replace(probes[0], warnings=("of a load that is far from the limit",))
    said = hunt.conclusion(finished(tmp_path, *probes))
    assert [line for line in said if "warning" in line] == ["warning of probe 5: the first wave weighs heavily"]
    assert "the number of workers was not the same: 1 in probe 1, 2, 3, 4, 6; 2 in probe 5" in said


def test_the_page_holds_every_run_and_asks_for_nothing(tmp_path: Path) -> None:
    state = usual(tmp_path)
    nasty = msgspec.structs.replace(state, name="</script><img src=x onerror=alert(1)>")
    page = render_curves(shown.capacity_page(nasty, load_plan(written(tmp_path), (), {}).slos))
    assert "<img src=x" not in page and "default-src &#x27;none&#x27;" in page.replace("'none'", "&#x27;none&#x27;")
    for one in state.probes:
        assert f'href="{one.directory}/report.html"' in page
    data = json.loads(page.split('id="figure-data">')[1].split("</script>")[0])
    assert "throughput" in data and "memory" not in data, "what nobody knows has no chart"
    words = {note["text"] for note in data["throughput"]["layout"]["annotations"]}
    assert words == {"capacity", "knee"} or words == {"capacity + knee"}
    marks = data["throughput"]["data"][1]
    assert marks["x"] == [one.load for one in state.probes]
    assert marks["marker"]["symbol"].count("x") == 5, "what failed is a cross"


def test_a_table_of_a_sweep_survives_any_name(tmp_path: Path) -> None:
    state = SweepState(
        name="s",
        unit="users",
        identity=Identity(plan_hash="p", versions={}),
        loads=(1, 2),
        channels=("a|b", "c"),
        engines={"a|b": "vllm 0.32"},
        probe_duration_ns=make.SECOND,
        probes=(probe(1, 1, Judged.PASS, channel="a|b", emulated=True), probe(2, 1, None, channel="c", ended=True)),
    )
    lines = shown.sweep_markdown(state).splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, "as many cells in each line"
    assert "a\\|b" in lines[2] and "EMULATED" in lines[2] and "no run" in lines[3]
    assert sweeping.left(state) == [("c", 1), ("a|b", 2), ("c", 2)], "only what is missing, load by load"
    assert sweeping.exit_code_of(state) == 4


def test_a_sweep_with_fewer_loads_shows_those(tmp_path: Path) -> None:
    state = SweepState(
        name="s",
        unit="users",
        identity=Identity(plan_hash="p", versions={}),
        loads=(2,),
        channels=(),
        probe_duration_ns=make.SECOND,
        probes=(probe(1, 1, Judged.INVALID), probe(2, 2, Judged.PASS, warnings=("few turns",))),
    )
    page = shown.sweep_page(state)
    assert page.lines[0] == "1 of 1 runs" and page.runs == {"": ["probe-002-users-2"]}
    assert "also there, and not asked for now: probe-001-users-1" in page.lines
    assert "probe-002-users-2: warning: few turns" in page.lines
    lines = shown.sweep_markdown(state).splitlines()
    assert len(lines) == 3 and "1 warning" in lines[2]
    assert sweeping.exit_code_of(state) == 0, "of what was asked for"


# ------------------------------------------------------------------------------------------------------- command line


def test_a_sweep_over_channels_leaves_the_others_out(tmp_path: Path) -> None:
    path = written(tmp_path)
    plan = load_plan(path, (), {})
    for name in plan.channels:
        alone = load_plan(path, sweeping.only_to(plan, name), {})
        assert list(alone.channels) == [name] and alone.workloads[0].channel == name
    assert sweeping.channels_of(plan, ["b c", "b c"], every=False) == ("b c",)
    assert sweeping.channels_of(plan, [], every=True) == ("a", "b c")
    with pytest.raises(UsageError, match="no such channel"):
        sweeping.channels_of(plan, ["d"], every=False)
    ruled = load_plan(path, ("slo.0.channel=a",), {})
    with pytest.raises(UsageError, match="about channel a only"):
        sweeping.channels_of(ruled, ["a"], every=False)


@pytest.mark.parametrize(
    ("text", "whole", "loads"),
    [
        ("1,2,4", True, (1, 2, 4)),
        ("4, 2,4", True, (4, 2)),
        ("0.5,2", False, (0.5, 2)),
        ("0", True, None),
        ("1.5", True, None),
        ("1,,2", True, None),
        ("nan", False, None),
        ("inf", False, None),
        ("-1", False, None),
        ("1e9", False, None),
    ],
)
def test_loads_of_a_sweep(text: str, whole: bool, loads: tuple[float, ...] | None) -> None:
    if loads is not None:
        assert loads_of("--users", text, whole=whole) == loads
        return
    with pytest.raises(UsageError, match=r"^--users"):
        loads_of("--users", text, whole=whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["capacity", "--set", "slo="], r"no \[\[slo\]\]"),
        (["capacity", "--set", "slo.0.severity=warn"], r"no \[\[slo\]\] that can fail"),
        (["capacity", "--set", "load.mode=replay", "--set", "load.users="], "replay"),
        (["capacity", "--set", "run.duration=", "--set", "run.stop={sessions = 5}"], "needs a length"),
        (["capacity", "--probe-duration", "2"], "--probe-duration .*no unit"),
        (["capacity", "--repeats", "2"], "odd number"),
        (["capacity", "--start", "3", "--highest", "2"], "the start"),
        (["capacity", "--start", "0"], r"the start \(0\) must be above 0"),
        (["capacity", "--start", "-3"], r"the start \(-3\) must be above 0"),
        (["capacity", "--highest", "100001"], r"the highest load \(100001\) must lie between 1 and 100,000 users"),
        (["capacity", *OWN_LOAD], "every workload has a load of its own"),
        (["sweep", *OWN_LOAD, "--users", "1"], "every workload has a load of its own"),
        (["capacity", "--pause", "nan"], "--pause"),
        (["sweep"], "needs --users"),
        (["sweep", "--rate", "1"], "needs --users"),
        (["sweep", "--users", "1", "--channel", "z"], "--channel z"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    command, *options = arguments
    with pytest.raises(UsageError, match=message):
        infersiege.main(
            [command, str(written(tmp_path)), "--out", str(tmp_path / "out"), *options], standalone_mode=False
        )
    assert not (tmp_path / "out").exists(), "nothing was begun"


NOT_BEGUN = [
    (2, "a plan that the user can mend"),
    (3, "its workers did not come, or one of them was turned away"),
    (4, "a target that is not there"),
    (70, "a fault of ours"),
    (1, "a code that no run ends with which left no figures"),
]


@pytest.mark.parametrize(("code", "why"), NOT_BEGUN)
def test_a_run_that_could_not_begin_ends_a_search_as_it_ended(tmp_path: Path, code: int, why: str) -> None:
    log = tmp_path / "probe.log"
    log.write_text("waiting\nerror: worker-1 ended before the run began\nhint: see its host\n", encoding="utf-8")
    error = why_not_begun("probe-001", code, log, RunDirectoryError("no plan.json"))
    assert error.exit_code == (code if code in (2, 3, 4) else 70), why
    assert (str(error), error.hint) == ("probe-001: worker-1 ended before the run began", "see its host")


def test_rules_that_low_loads_break_are_pointed_out() -> None:
    slos = (Slo(metric="throughput", at_least=500.0), P50)
    assert len(hunt.notes_on(slos)) == 1 and "throughput" in hunt.notes_on(slos)[0]


def test_a_mixed_plan_says_what_is_varied(tmp_path: Path) -> None:
    more = '[[workload]]\nscenario = "own"\ntrace = "builtin:short-qa"\nchannel = "a"\n'
    plan = load_plan(written(tmp_path, PLAN + more), ("workload.1.load={mode = 'open', rate = 1.0}",), {})
    assert hunt.unit_of(plan, "capacity") == "users"
    assert hunt.fixed_loads(plan) == ("only [load] is varied, which is that of short-qa; own keeps its own load",)
    assert hunt.begun(tmp_path / "out", plan, "users", USERS, make.SECOND).notes == hunt.fixed_loads(plan)


def test_the_bounds_of_a_range_are_those_of_a_plan(tmp_path: Path) -> None:
    path = written(tmp_path)
    for most, more in ((MOST_USERS, MOST_USERS + 1), (1, 0)):
        assert load_plan(path, (f"load.users={most}",), {}).load.users == most
        with pytest.raises(PlanError):
            load_plan(path, (f"load.users={more}",), {})
    opened = ("load.users=", "load.mode=open")
    for bound, beyond in ((MOST_RATE, 1.01 * MOST_RATE), (LEAST_RATE, 0.99 * LEAST_RATE)):
        assert load_plan(path, (*opened, f"load.rate={bound}"), {}).load.rate == bound
        with pytest.raises(PlanError):
            load_plan(path, (*opened, f"load.rate={beyond}"), {})
