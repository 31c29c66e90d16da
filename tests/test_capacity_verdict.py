"""Probes that were no steady state: an open load that the server fell behind with, too few waves, nothing measured."""

from __future__ import annotations

from typing import Any

import metrics_turns as make
import msgspec
import pytest

from infersiege import gate
from infersiege.capacity.search import Judged
from infersiege.capacity.verdict import NOTHING_FACTOR, Judgement, judge_probe
from infersiege.metrics.facts import AskedLoad, SteadyWindow
from infersiege.metrics.summary import summarise
from infersiege.plan.schema import Slo
from infersiege.records import ErrorClass, Phase, Reason, TurnRecord

LENIENT = Slo(metric="ttft", stat="p50", at_most=60_000.0)
"""Holds at any load of these tests: what is judged is the steady state."""


def judge(turns: list[TurnRecord], *loads: AskedLoad, slo: Slo = LENIENT, **changes: Any) -> Judgement:
    facts = make.facts(loads=loads, ended_ns=make.T0 + 90 * make.SECOND, **changes)
    summary = summarise(turns, facts)
    summary = msgspec.structs.replace(summary, rules=gate.judge((slo,), summary))
    return judge_probe(summary, (slo,), lambda: turns)


def served(
    rate: float, capacity: float, *, answer_s: float = 0.5, seconds: float = 10, **changes: Any
) -> list[TurnRecord]:
    """Constant arrivals at a server that starts an answer each 1 / capacity s; all end in the drain."""
    turns, free_s = [], 0.0
    for number in range(round(seconds * rate)):
        due_s = number / rate
        begun_s = max(due_s, free_s)
        free_s = begun_s + 1 / capacity
        end_ms = 1000 * (begun_s + answer_s)
        turns.append(make.streamed(1000 * due_s, [end_ms - 10, end_ms], **changes))
    return turns


def opened(rate: float, **changes: Any) -> AskedLoad:
    return AskedLoad(mode="open", rate=rate, arrivals=round(10 * rate), **changes)


@pytest.mark.parametrize(
    ("rate", "capacity", "answer_s", "judged", "reason"),
    [
        (6.0, 3.8, 0.5, Judged.FAIL, "of 60 turns 38 ended: any limit would be passed in a longer probe"),
        (3.0, 1.9, 0.5, Judged.NO_DATA, "of 30 turns 19 ended: ten seconds leave it open whether all the rest waited"),
        (2.4, 1.5, 0.5, Judged.NO_DATA, "of 24 turns 14 ended: more than a fifth, but ten turns may be chance"),
        (2.4, 2.5, 0.5, Judged.PASS, "of as many 23 ended"),
        (20.0, 15.0, 0.5, Judged.FAIL, "a quarter more than it can do"),
        (20.0, 10.0, 0.5, Judged.FAIL, "twice as much"),
        (20.0, 21.0, 0.5, Judged.PASS, "it keeps up"),
        (20.0, 21.0, 1.5, Judged.PASS, "30 are in flight as long answers want it, of 200: no growth to speak of"),
        (20.0, 21.0, 4.0, Judged.NO_DATA, "80 of 200 are: it keeps up, but ten seconds can't show that"),
        (1.5, 1.9, 0.5, Judged.NO_DATA, "15 turns show no growth that could be told from chance"),
    ],
)
def test_an_open_load_that_the_server_does_not_keep_up_with_fails(
    rate: float, capacity: float, answer_s: float, judged: Judged, reason: str
) -> None:
    found = judge(served(rate, capacity, answer_s=answer_s), opened(rate))
    assert found.judged is judged, f"{reason}: {found}"
    assert (found.factor is not None) == (judged is Judged.NO_DATA), "a longer probe tells"
    if judged is Judged.FAIL:
        assert "the server did not keep up" in found.why


def test_a_longer_probe_tells_whether_the_server_keeps_up() -> None:
    """Those that ten seconds left open, made again as long as they asked for."""
    for rate, capacity, answer_s, judged in (
        (3.0, 1.9, 0.5, Judged.FAIL),
        (2.4, 1.5, 0.5, Judged.FAIL),
        (20.0, 21.0, 4.0, Judged.PASS),
    ):
        short = judge(served(rate, capacity, answer_s=answer_s), opened(rate))
        assert short.factor is not None
        seconds = 10 * short.factor
        window = SteadyWindow(stage="s1", start_ns=make.T0, end_ns=make.T0 + round(seconds * make.SECOND))
        load = AskedLoad(mode="open", rate=rate, arrivals=round(seconds * rate))
        longer = judge(served(rate, capacity, answer_s=answer_s, seconds=seconds), load, steady=(window,))
        assert longer.judged is judged, longer


def test_turns_that_failed_are_not_open() -> None:
    """Half of them are refused at once: that is for the rule on errors to judge, and nothing is waiting."""
    ok = served(10.0, 100.0)
    refused = [make.failed(100 * n, 100 * n + 5, ErrorClass.RATE_LIMIT) for n in range(100)]
    found = judge(ok + refused, opened(20.0))
    assert "keep up" not in found.why


def test_the_load_that_grows_is_found_among_several() -> None:
    closed = AskedLoad(mode="closed", users=1, scenarios=("chat",))
    steady = [make.streamed(200 * n, [200 * n + 190, 200 * n + 200]) for n in range(50)]
    turns = steady + served(20.0, 10.0, scenario="agent")
    found = judge(turns, closed, opened(20.0, scenarios=("agent",)))
    assert found.judged is Judged.FAIL and "keep up" in found.why
    found = judge(steady + served(20.0, 30.0, scenario="agent"), closed, opened(20.0, scenarios=("agent",)))
    assert found.judged is Judged.PASS


@pytest.mark.parametrize(
    ("turns", "users", "judged", "factor", "reason"),
    [
        (20, 4, Judged.PASS, None, "five of each"),
        (19, 4, Judged.NO_DATA, 1.5, "one fewer"),
        (6, 10, Judged.NO_DATA, 10.0, "not even one of each: 50 are needed, and some to spare"),
    ],
)
def test_a_closed_load_needs_five_turns_of_each_user(
    turns: int, users: int, judged: Judged, factor: float | None, reason: str
) -> None:
    # Sessions that think until the next turn: alive all the time, as the delivery of the load has it.
    load = AskedLoad(mode="closed", users=users)
    facts = make.facts(loads=(load,))
    summary = msgspec.structs.replace(summarise(make.many(turns), facts), invalid=())
    summary = msgspec.structs.replace(summary, rules=gate.judge((LENIENT,), summary))
    found = judge_probe(summary, (LENIENT,), list)
    assert (found.judged, found.factor) == (judged, factor), f"{reason}: {found}"
    strict = Slo(metric="ttft", stat="p50", at_most=1.0)
    broken = msgspec.structs.replace(summary, rules=gate.judge((strict,), summary))
    assert judge_probe(broken, (strict,), list).judged is Judged.FAIL, "a rule that was broken is broken"


def test_answers_longer_than_the_probe_are_no_fault_of_the_client() -> None:
    """All were due in the warm-up, and nothing ended before the end: the probe was too short, no client the limit."""
    late = SteadyWindow(stage="s1", start_ns=make.T0 + make.SECOND, end_ns=make.T0 + 10 * make.SECOND)
    turns = [make.streamed(100 * n, [15_000, 20_000], phase=Phase.WARMUP) for n in range(4)]
    load = AskedLoad(mode="closed", users=4)
    found = judge(turns, load, steady=(late,))
    assert (found.judged, found.factor) == (Judged.NO_DATA, NOTHING_FACTOR), found
    assert "no turn was due in the steady window" in found.why


@pytest.mark.parametrize(
    ("turns", "changes", "reason"),
    [
        ([make.failed(5, 9, phase=Phase.WARMUP, due_ns=make.T0 - make.SECOND)], {}, "all failed: no length helps"),
        ([make.skipped(Reason.RUN_END, -500, phase=Phase.WARMUP)], {}, "nothing was sent at all"),
        ([], {}, "nor was there a turn"),
        (
            [make.streamed(-900, [15_000], phase=Phase.WARMUP)],
            {"invalid": ("the disk was full",)},
            "something else was wrong, too",
        ),
        ([make.streamed(-900, [15_000], phase=Phase.WARMUP)], {"interrupted": True}, "it was stopped"),
    ],
)
def test_other_probes_in_which_nothing_was_measured_are_invalid(
    turns: list[TurnRecord], changes: dict[str, Any], reason: str
) -> None:
    found = judge(turns, **changes)
    assert found.judged is Judged.INVALID, f"{reason}: {found}"
