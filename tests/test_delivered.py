"""Asked and delivered load, stage by stage and load by load: what the summary says, warns of, and calls invalid."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import metrics_turns as make
import msgspec
import pytest
from rich.console import Console

from infersiege.metrics.facts import AskedLoad, SteadyWindow
from infersiege.metrics.summary import summarise
from infersiege.metrics.windows import windows
from infersiege.plan.load_schema import Load, Sine, Stage
from infersiege.plan.schema import Channel, Plan, Run, Stop, Workload
from infersiege.plan.streams import spans_of
from infersiege.records import Phase, Reason, Summary, TurnRecord, WorkerSummary
from infersiege.report.delivered import TITLE
from infersiege.report.latency import DUE_TITLE
from infersiege.report.rebuild import run_facts
from infersiege.report.tables import print_summary
from infersiege.rundir import PlanFile, StageFacts
from infersiege.swarm.dry import dry_run

T0, SECOND = make.T0, make.SECOND
TWO = tuple(
    SteadyWindow(stage=name, start_ns=T0 + start * SECOND, end_ns=T0 + (start + 10) * SECOND)
    for name, start in (("high", 0), ("low", 10))
)


def users(count: int, from_s: int, to_s: int, stage: str, scenario: str = "chat") -> list[TurnRecord]:
    """Answers of a second, one after the other, of so many users."""
    return [
        make.streamed(at * 1000, [at * 1000 + 100, at * 1000 + 999], stage=stage, scenario=scenario)
        for at in range(from_s, to_s)
        for _ in range(count)
    ]


def shown(summary: Summary) -> str:
    said = io.StringIO()
    print_summary(summary, Console(width=200, file=said, color_system=None))
    return said.getvalue()


def test_each_stage_and_load_is_held_against_what_it_asked_for() -> None:
    """8 then 2 users of one scenario; beside them 4 of another, of whom two are missing in the second stage."""
    loads = tuple(
        AskedLoad(mode="closed", stage=stage, scenarios=(scenario,), users=asked)
        for stage, chat in (("high", 8), ("low", 2))
        for scenario, asked in (("chat", chat), ("agent", 4))
    )
    turns = [*users(8, 0, 10, "high"), *users(2, 10, 20, "low")]
    turns += [*users(4, 0, 10, "high", "agent"), *users(2, 10, 20, "low", "agent")]
    summary = summarise(turns, make.facts(steady=TWO, loads=loads, ended_ns=T0 + 20 * SECOND))
    found = [(one.stage, one.scenarios, one.users_asked, round(one.users_mean or 0, 1)) for one in summary.loads]
    assert found == [
        ("high", ("chat",), 8, 8.0),
        ("high", ("agent",), 4, 4.0),
        ("low", ("chat",), 2, 2.0),
        ("low", ("agent",), 4, 2.0),
    ]
    (reason,) = summary.invalid
    assert reason.startswith("load not delivered in stage low: 2.0 of 4 users of agent were alive")
    shares = {(one.scenario, one.stage): one.rates["delivered_share"] for one in summary.groups}
    assert shares["agent", None] == pytest.approx(0.5, abs=0.01) and shares["chat", None] == pytest.approx(1, abs=0.01)
    text = shown(summary)
    assert TITLE in text and "low · agent" in text and DUE_TITLE in text


def test_ls_07_open_turns_of_a_larger_stage_are_named_as_the_reason() -> None:
    loads = tuple(AskedLoad(mode="closed", stage=stage, users=asked) for stage, asked in (("high", 8), ("low", 2)))
    late = [make.streamed(9_000, [9_100, 15_000], stage="high") for _ in range(6)]
    turns = [*users(8, 0, 9, "high"), *users(2, 9, 10, "high"), *late, *users(2, 10, 20, "low")]
    (reason,) = summarise(turns, make.facts(steady=TWO, loads=loads, ended_ns=T0 + 20 * SECOND)).invalid
    assert "turns of a stage before were still open; give the stage more warm-up, or set load.pause" in reason


THIRD = SteadyWindow(stage="again", start_ns=T0 + 20 * SECOND, end_ns=T0 + 30 * SECOND)

STOPPED = [
    (12, "turns of wa, lost meanwhile, went on beside those of the workers that had its users", "in this stage"),
    (2, "turns of wa, lost meanwhile, went on beside", "before it: what was open then may be so still"),
    (21, "this is a fault of infersiege", "later than this stage"),
    (None, "this is a fault of infersiege", "never"),
]
"""(when the worker was lost, what is said, why)."""


@pytest.mark.parametrize(("lost_s", "said", "why"), STOPPED, ids=[why for *_, why in STOPPED])
def test_turns_of_a_worker_that_stood_still_are_no_fault_of_ours(lost_s: int | None, said: str, why: str) -> None:
    """Two turns are open for all of the second stage, beside the four users whom others have."""
    loads = tuple(AskedLoad(mode="closed", stage=window.stage, users=4) for window in TWO)
    held = [make.streamed(10_000, [10_100, 19_990], stage="low", worker="wa") for _ in range(2)]
    turns = [*users(4, 0, 10, "high"), *users(4, 10, 20, "low"), *held]
    lost = WorkerSummary(
        worker="wa",
        host="vm",
        pid=1,
        turns=2,
        lost=lost_s is not None,
        lost_at_ns=None if lost_s is None else T0 + lost_s * SECOND,
        records_promised=None,
        records_received=2,
        hub_lag_p99_ns=None,
        cpu_share_max=None,
        clock_offset_ns=0,
        clock_uncertainty_ns=0,
    )
    facts = make.facts(steady=TWO, loads=loads, ended_ns=T0 + 20 * SECOND, workers=(lost,))
    reason = summarise(turns, facts).invalid[-1]
    assert reason.startswith("more load than asked in stage low: 6.0 sessions were alive on average where 4 users")
    assert said in reason, why


MORE_THAN_ASKED = [
    ((8, 2, 4), "turns of a stage before were still open", "the first one had more"),
    ((4, 2, 4), "this is a fault of infersiege", "no stage had more"),
    ((1, 2, 4), "this is a fault of infersiege", "stages before it had fewer"),
]


@pytest.mark.parametrize(("asked", "said", "why"), MORE_THAN_ASKED, ids=[why for *_, why in MORE_THAN_ASKED])
def test_ls_07_whose_fault_it_is_that_more_is_there(asked: tuple[int, ...], said: str, why: str) -> None:
    """6 sessions where 4 were asked for, in the third stage."""
    windows_ = (*TWO, THIRD)
    loads = tuple(
        AskedLoad(mode="closed", stage=window.stage, users=count) for window, count in zip(windows_, asked, strict=True)
    )
    turns = [*users(asked[0], 0, 10, "high"), *users(asked[1], 10, 20, "low"), *users(6, 20, 30, "again")]
    (reason,) = summarise(turns, make.facts(steady=windows_, loads=loads, ended_ns=T0 + 30 * SECOND)).invalid
    assert "more load than asked in stage again: 6.0 sessions" in reason and said in reason, why


@pytest.mark.parametrize(
    ("answers_ms", "grew", "why"),
    [
        (900, False, "18 turns are open at the end, which is a tenth of all"),
        (2500, True, "50 are open at the end, a quarter of all"),
    ],
)
def test_ls_02_turns_that_are_open_at_the_end_are_growth_where_they_are_many(
    answers_ms: int, grew: bool, why: str
) -> None:
    """20/s for 10 s: in a short run what is on its way at its end alone is no sign that the server falls behind."""
    turns = [make.streamed(50 * n, [50.0 * n + 10, 50.0 * n + answers_ms]) for n in range(200)]
    loads = (AskedLoad(mode="open", rate=20.0, arrivals=200),)
    said = summarise(turns, make.facts(loads=loads, ended_ns=T0 + 20 * SECOND)).warnings
    assert any("did not keep up" in line for line in said) is grew, why


def test_ls_02_an_open_loop_that_the_server_can_not_follow_is_named() -> None:
    """10/s into a server that ends 2/s; in a closed loop, and where it keeps up, there is nothing to say."""
    turns = [make.streamed(100 * n, [500.0 * n + 500, 500.0 * n + 510]) for n in range(100)]
    loads = (AskedLoad(mode="open", rate=10.0, arrivals=100),)
    facts = make.facts(loads=loads, ended_ns=T0 + 60 * SECOND)
    summary = summarise(turns, facts)
    assert summary.invalid == (), "the client did what it was to do"
    (warning,) = [line for line in summary.warnings if "did not keep up" in line]
    assert "10 turns/s were sent and 1.9 ended, so 81 more were open" in warning
    due = summary.groups[0].distributions["ttft_from_due"]
    assert due.p50 is not None and due.p50 > 15_000
    (load,) = summary.loads
    assert (load.rate_asked, load.rate_due, load.rate_begun, load.sent_rate) == (10.0, 10.0, 10.0, 10.0)
    assert load.finished_rate == pytest.approx(1.9)
    quick = summarise(make.many(100), make.facts(loads=loads)).warnings
    assert not any("did not keep up" in line for line in quick)


def test_ls_10_the_share_of_the_first_wave_is_said() -> None:
    loads = (AskedLoad(mode="closed", users=50),)
    (warning,) = [w for w in summarise(make.many(200), make.facts(loads=loads)).warnings if "first wave" in w]
    assert "(25% of them)" in warning


def test_a_session_that_its_stage_ended_was_alive_until_then() -> None:
    """A user in think time when it had to go was there; it asked for no more turns."""
    first = make.streamed(0, [100, 1000], session_id="s")
    rest = make.skipped(Reason.STAGE_END, 9_999, session_id="s", turn=1)
    loads = (AskedLoad(mode="closed", users=1),)
    summary = summarise([first, rest], make.facts(loads=loads))
    assert summary.groups[0].rates["users"] == pytest.approx(1.0, abs=0.001)
    assert summary.groups[0].rates["asked_rate"] == pytest.approx(0.1)
    # Whether its arrival was begun is another matter: that was asked for.
    unbegun = summarise([make.skipped(Reason.STAGE_END)], make.facts(loads=(AskedLoad(mode="open", rate=0.1),)))
    assert unbegun.groups[0].rates["delivered_share"] == 0.0


def test_seconds_have_latencies_from_due() -> None:
    late = make.streamed(500, [700, 900], due_ns=T0)
    rows = [row for row in windows([late]) if row.ttft]
    assert len(rows) == 1 and rows[0].phase is Phase.STEADY
    (ttft,), (from_due,) = rows[0].ttft, rows[0].ttft_from_due
    assert from_due > ttft and rows[0].e2e_from_due and rows[0].e2e


def test_a_rate_that_swings_is_expected_as_it_swings() -> None:
    """Half a period of a sine has more than its mean: the mean would call the schedule itself too short."""
    sine = Sine(amplitude=1.0, period_ns=20 * SECOND)
    stages = (Stage(rate=10.0, duration_ns=10 * SECOND, sine=sine), Stage(rate=10.0, duration_ns=10 * SECOND))
    plan = Plan(
        run=Run(),
        channels={"c": Channel(engine="vllm", model="m")},
        workloads=(Workload(scenario="s", trace="builtin:short-qa"),),
        load=Load(mode="open", stages=stages),
    )
    facts = tuple(
        StageFacts(
            name=f"{place}",
            started_ns=T0 + 10 * place * SECOND,
            steady_started_ns=T0 + 10 * place * SECOND,
            steady_ended_ns=T0 + 10 * (place + 1) * SECOND,
            rate=10.0,
            arrivals=100,
        )
        for place in range(2)
    )
    file = PlanFile(
        run_id="r", name="n", created_ns=T0, nonce="n", plan=msgspec.to_builtins(plan), stages=facts, ended_ns=T0
    )
    swinging, steady = run_facts(file, started_ns=T0, ended_ns=T0 + 20 * SECOND).loads
    assert swinging.rate == pytest.approx(10 * (1 + 2 / 3.141592653589793))
    assert steady.rate == pytest.approx(10)


@pytest.mark.parametrize(
    ("load", "settling"),
    [
        (Load(users=4, warmup_ns=0, ramp_ns=SECOND), "ramp of 1.0 s (load.ramp)"),
        (Load(users=4, warmup_ns=30 * SECOND, ramp_ns=SECOND), "warm-up of 30 s (load.warmup)"),
        (Load(users=4, warmup_ns=SECOND, ramp_ns=SECOND), "warm-up of 1.0 s (load.warmup)"),
        (Load(users=4, warmup_ns=0, ramp_ns=0), None),
        (
            Load(warmup_ns=9 * SECOND, stages=(Stage(users=4, duration_ns=60 * SECOND, warmup_ns=0, ramp_ns=SECOND),)),
            "ramp of 1.0 s (stage.ramp)",
        ),
    ],
    ids=["the ramp", "the warm-up is longer", "as long", "neither", "of a stage"],
)
def test_what_a_run_measures_after_is_named_by_its_key(load: Load, settling: str | None) -> None:
    plan = Plan(
        run=Run(stop=Stop(sessions=10), duration_ns=60 * SECOND),
        channels={"c": Channel(engine="vllm", model="m")},
        workloads=(Workload(scenario="s", trace="builtin:short-qa"),),
        load=load,
    )
    stage = StageFacts(
        name="main", started_ns=T0, steady_started_ns=T0 + spans_of(plan)[0].steady_ns, steady_ended_ns=T0 + 99 * SECOND
    )
    file = PlanFile(run_id="r", name="n", created_ns=T0, nonce="n", plan=msgspec.to_builtins(plan), stages=(stage,))
    facts = run_facts(file, started_ns=T0, ended_ns=T0 + 99 * SECOND)
    assert (facts.settling, facts.counted) == (settling, True)


def test_a_dry_run_of_a_mix_counts_every_load(capsys: pytest.CaptureFixture[str]) -> None:
    workload = Workload(scenario="a", trace="builtin:short-qa")
    own = msgspec.structs.replace(workload, scenario="b", load=Load(mode="open", rate=5.0))
    plan = Plan(
        run=Run(seed=1, nonce="n", duration_ns=10 * SECOND),
        channels={"c": Channel(engine="vllm", model="m", base_url="http://127.0.0.1:1/v1")},
        workloads=(workload, own),
        load=Load(mode="open", rate=2.0, arrivals="constant"),
    )
    dry_run(plan, Console(width=200))
    out = capsys.readouterr().out
    sessions = int(out.split("sessions in all: ")[1].split(",")[0])
    assert 20 + 20 <= sessions <= 20 + 85, out


LOCUSTFILE = """
from infersiege.plan.load_schema import Load
from infersiege.plan.schema import Workload
from infersiege.swarm.standalone import InferenceUser, install
install()
class Own(InferenceUser):
    workload = Workload(scenario="b", trace="builtin:short-qa", load=Load(mode="open", rate=5.0))
"""


def test_a_locustfile_can_not_give_a_workload_its_load(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(LOCUSTFILE, encoding="utf-8")
    options = ["-f", str(file), "--headless", "-u", "1", "-t", "1s", "--host", "http://127.0.0.1:9/v1", "--model", "m"]
    done = subprocess.run(
        [sys.executable, "-m", "locust", *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "error: the workload 'b' has a load of its own, which a locustfile can't give it\nhint: " in done.stderr
    assert "Traceback" not in done.stderr
