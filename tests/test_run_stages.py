"""The load that was asked for is the load that was there: stages, open and closed loops, mixed, late and killed."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from chat_server import Asked, Reply, chat_server
from siege import Ran, Siege, check_conserved, check_passed, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.records import DeliveredLoad, Message, Outcome, Phase, Reason, Session, Turn, TurnRecord
from infersiege.swarm.source import SessionSource
from infersiege.traces.formats.normal import write

pytestmark = [pytest.mark.slow, pytest.mark.alone]

ASIDE = "--skip-doctor"
SECOND = 1_000_000_000
STALL_S = 1.2


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def trace(path: Path, *, turns: int = 1, delay_ms: int = 0, sessions: int = 2000) -> str:
    """Small talks, all alike but for a number."""
    made = (
        Session(
            session_id=f"s{number}",
            turns=tuple(
                Turn(
                    messages=(user(f"{number}: q{turn}"),),
                    recorded_answer=({"role": "assistant", "content": "fine"},),
                    delay_ns=delay_ms * 1_000_000 if turn else 0,
                    asked_output_tokens=4,
                )
                for turn in range(turns)
            ),
        )
        for number in range(sessions)
    )
    with path.open("wb") as file:
        write(file, made)
    return str(path)


def workload(scenario: str, path: str, load: str = "", channel: str = "target") -> str:
    own = f"load = {{{load}}}\n" if load else ""
    return f'[[workload]]\nscenario = "{scenario}"\ntrace = "{path}"\nchannel = "{channel}"\n{own}'


def stage(load: str, seconds: float, more: str = "") -> str:
    return f'[[load.stages]]\n{load}\nduration = "{seconds * 1000:.0f}ms"\n{more}\n'


def loads_of(ran: Ran) -> dict[tuple[str, tuple[str, ...]], DeliveredLoad]:
    return {(load.stage, load.scenarios): load for load in ran.summary.loads}


def sent_s(turns: Sequence[TurnRecord]) -> list[float]:
    return sorted(turn.sent_ns / SECOND for turn in turns if turn.sent_ns is not None)


def scheduled(ran: Ran) -> Counter[tuple[str, str]]:
    """(stage, scenario) -> arrivals that the plan's own schedule has, of the streams that have times."""
    plan = ran.plan.typed_plan()
    source = SessionSource(plan, place=0, members=1)
    return Counter(
        (source.stage_of(ticket), plan.workloads[ticket.workload].scenario)
        for stream in source.streams
        if stream.load.mode != "closed"
        for ticket in source.tickets(stream.number)
    )


def arrived(ran: Ran) -> Counter[tuple[str, str]]:
    return Counter((turn.stage, turn.scenario) for turn in ran.turns if turn.turn == 0)


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Four loads in one run: 32 users with answers of 1 s, 40 Poisson arrivals a second with short ones, and twice 10 a
    second into what can do two: once with a cap of two, where the client holds arrivals back, and once without, where
    the server does."""
    folder = tmp_path_factory.mktemp("side-by-side")
    path, one_at_a_time = trace(folder / "t.jsonl"), threading.Lock()

    def queued(_: Asked) -> Reply:
        with one_at_a_time:
            time.sleep(0.5)
        return Reply()

    with (
        chat_server(lambda _: Reply(after_s=1.0)) as slow,
        chat_server() as quick,
        chat_server(lambda _: Reply(after_s=1.0)) as capped,
        chat_server(queued) as serial,
    ):
        others = {"quick": quick, "capped": capped, "serial": serial}
        constant = 'mode = "open", rate = 10.0, arrivals = "constant"'
        text = plan_text(
            slow.base_url,
            run='duration = "6s"\nseed = 3',
            workload=f'scenario = "closed"\ntrace = "{path}"\nchannel = "target"',
            load='mode = "closed"\nusers = 32\nramp = "500ms"\nwarmup = "1s"\ndrain = "1s"',
            more="".join(
                f'[channel.{name}]\nengine = "vllm"\nbase_url = "{server.base_url}"\nmodel = "m"\n'
                for name, server in others.items()
            )
            + workload("open", path, 'mode = "open", rate = 40.0', "quick")
            + workload("capped", path, f"{constant}, max_in_flight = 2", "capped")
            + workload("serial", path, constant, "serial")
            + '[[slo]]\nmetric = "ttft_from_due"\nstat = "p50"\nmax = "1s"\nscenario = "serial"',
        )
        return Siege(folder).run(text, ASIDE, "--workers", "2")


def test_four_loads_side_by_side_are_each_judged(side_by_side: Ran) -> None:
    assert side_by_side.code == 3, side_by_side.out
    check_conserved(side_by_side)
    reasons = [reason for reason in side_by_side.summary.invalid if not reason.startswith("client-bound")]
    assert len(reasons) == 1 and reasons[0].startswith("load not delivered") and "of capped" in reasons[0], reasons


def test_ls_05_32_users_and_40_arrivals_a_second_side_by_side(side_by_side: Ran) -> None:
    """A closed loop with answers of 1 s, and Poisson arrivals with short ones: both are what was asked for."""
    loads = loads_of(side_by_side)
    closed, opened = loads["main", ("closed",)], loads["main", ("open",)]
    assert closed.in_flight_mean == pytest.approx(32, abs=1)
    assert closed.users_asked == 32 and closed.users_mean == pytest.approx(32, abs=0.7)
    assert opened.share == 1.0 and opened.rate_begun == opened.rate_due == pytest.approx(40, rel=0.15)
    group = next(group for group in side_by_side.summary.groups if group.scenario == "closed")
    assert group.in_flight_mean == closed.in_flight_mean and group.in_flight_max == 32
    # Sent times against the process that was asked for: Kolmogorov's distance of the gaps, 1 % level and some noise.
    times = sent_s([turn for turn in side_by_side.turns if turn.scenario == "open"])
    assert len(times) == scheduled(side_by_side)["main", "open"] == pytest.approx(240, abs=4 * math.sqrt(240))
    gaps = sorted(after - before for before, after in pairwise(times))
    distance = max(
        max((place + 1) / len(gaps) - expected, expected - place / len(gaps))
        for place, gap in enumerate(gaps)
        for expected in [1 - math.exp(-40 * gap)]
    )
    assert distance < 1.63 / math.sqrt(len(gaps)) + 0.02, distance
    assert {turn.channel for turn in side_by_side.turns if turn.scenario == "open"} == {"quick"}


def test_ls_01_ls_02_ten_a_second_into_a_server_that_can_do_two(side_by_side: Ran) -> None:
    loads = loads_of(side_by_side)
    held, behind = loads["main", ("capped",)], loads["main", ("serial",)]
    assert held.rate_asked == held.rate_due == 10.0
    assert held.rate_begun is not None and held.rate_begun < 2.5 and (held.share or 1) < 0.3
    begun = sent_s([turn for turn in side_by_side.turns if turn.scenario == "capped"])
    assert len(begun) / (begun[-1] - begun[0]) == pytest.approx(2, abs=0.5), "which is all that the cap lets through"
    group = next(group for group in side_by_side.summary.groups if group.scenario == "capped")
    service, from_due = group.distributions["e2e"].p50, group.distributions["e2e_from_due"].p50
    assert service is not None and 980 < service < 1500
    assert from_due is not None and from_due > 2 * service
    assert behind.sent_rate == pytest.approx(10, abs=0.5) and (behind.finished_rate or 10) < 3
    assert any("did not keep up" in warning and "of serial" in warning for warning in side_by_side.summary.warnings)
    waits = [
        (turn.due_ns, turn.first_token_ns - turn.due_ns)
        for turn in side_by_side.turns
        if turn.scenario == "serial" and turn.first_token_ns is not None
    ]
    latest = [wait for _, wait in sorted(waits)]
    assert latest[-1] > 3 * latest[0] and latest[-1] > 2 * SECOND, "it grows with the length of the run"


def test_ls_03_what_a_stall_missed_comes_at_twice_the_rate_at_most(siege: Siege, tmp_path: Path) -> None:
    """After 2 s of silence a worker counts as lost, so it stands still for a little less."""
    load = 'mode = "open"\nrate = 50.0\narrivals = "constant"\ndrain = "2s"'
    with chat_server() as server:
        one = f'scenario = "talk"\ntrace = "{trace(tmp_path / "t.jsonl")}"'
        running = siege.start(plan_text(server.base_url, run='duration = "4s"', load=load, workload=one), ASIDE)
        running.until('"outcome":"ok"')
        pid = running.worker_pids()["worker-1"]
        os.kill(pid, signal.SIGSTOP)
        stopped = time.time()
        time.sleep(STALL_S)
        resumed = time.time()
        os.kill(pid, signal.SIGCONT)
        ran = running.wait()
    check_conserved(ran)
    assert len(ran.turns) == 200 and len(ran.by_outcome(Outcome.OK)) == 200, "late ones are sent, none is dropped"
    times = sent_s(ran.turns)
    assert not [at for at in times if stopped + 0.1 < at < resumed], "the worker stood still"
    after = [at for at in times if at >= resumed]
    for begin in after:
        inside = sum(begin <= at < begin + 0.5 for at in after)
        assert inside <= 2 * 50 * 0.5 * 1.15 + 2, f"{inside} in the half second after {begin - resumed:.2f} s"
    assert sum(at < resumed + 1 for at in after) > 75, "and they do catch up"
    lateness = ran.summary.groups[0].distributions["lateness"]
    assert lateness.max is not None and 900 * STALL_S < lateness.max < 1000 * STALL_S + 1000, "in ms"
    assert "how late the load generator was" in ran.out


def test_ls_11_ls_13_ls_16_open_stages_beside_users_who_think(siege: Siege, tmp_path: Path) -> None:
    """10/s, then up to 30/s, then 10/s again, with 4 users beside it: counts, salts and shares by stage and load."""
    one = trace(tmp_path / "one.jsonl")
    talks = trace(tmp_path / "talks.jsonl", turns=3, delay_ms=400)
    stages = stage("rate = 10.0", 1.4) + stage("rate = 30.0", 1.4, 'ramp = "400ms"') + stage("rate = 10.0", 1.4)
    with chat_server(lambda asked: Reply(after_s=0.1 if "talk" in asked.request_id else 0)) as server:
        text = plan_text(
            server.base_url,
            run="seed = 5",
            workload=f'scenario = "one"\ntrace = "{one}"',
            load='mode = "open"\ndrain = "2s"\n' + stages,
            more=workload("talk", talks, 'mode = "closed", users = 4, ramp = "200ms"'),
        )
        ran = siege.run(text, ASIDE, "--workers", "2")
    check_passed(ran)
    check_conserved(ran)
    names = ["1: 10/s", "2: 30/s", "3: 10/s"]
    assert [facts.name for facts in ran.plan.stages] == names
    expected = scheduled(ran)
    assert {key: count for key, count in arrived(ran).items() if key[1] == "one"} == expected
    for name, count in (("1: 10/s", 14), ("2: 30/s", 38), ("3: 10/s", 14)):
        assert expected[name, "one"] == pytest.approx(count, abs=4 * math.sqrt(count))
    loads = loads_of(ran)
    assert list(loads) == [(name, scenarios) for name in names for scenarios in (("one",), ("talk",))]
    for name in names:
        assert loads[name, ("one",)].share == 1.0
        talking = loads[name, ("talk",)]
        assert talking.users_asked == 4 and talking.users_mean == pytest.approx(4, abs=0.3)
        assert talking.in_flight_mean is not None and talking.in_flight_mean < 2, "they think most of the time"
    salts: dict[str, set[str]] = {}
    by_request = {turn.request_id: turn for turn in ran.turns}
    for asked in server.asked:
        turn = by_request[asked.request_id]
        if turn.scenario == "one":
            salts.setdefault(turn.stage, set()).add(asked.body["messages"][0]["content"].partition("\n")[0])
    assert sorted(salts) == names and all(len(found) == 1 for found in salts.values())
    assert len(set.union(*salts.values())) == 3, "what one stage left in a cache helps no other"
    kinds = [(event.kind, event.stage) for event in ran.events]
    assert kinds == [
        (kind, name)
        for place, name in enumerate(names)
        for kind in ("stage_started", "steady_started", "stage_ended" if place < 2 else "load_ended")
    ]
    started = ran.summary.started_ns
    assert [facts.started_ns - started for facts in ran.plan.stages] == [0, 1.4 * SECOND, 2.8 * SECOND]
    assert ran.plan.stages[1].steady_started_ns - started == 1_800_000_000, "a ramp is no steady load"


def test_ls_07_users_of_stages_come_and_go_on_time(siege: Siege, tmp_path: Path) -> None:
    """4, 8 and 2 users: who has to go ends its session at the next turn, also in the middle of a long delay."""
    talks = trace(tmp_path / "t.jsonl", turns=40, delay_ms=300)
    stages = "".join(stage(f"users = {users}", 1.4, 'warmup = "400ms"') for users in (4, 8, 2))
    with chat_server(lambda _: Reply(after_s=0.1)) as server:
        one = f'scenario = "talk"\ntrace = "{talks}"'
        load = 'mode = "closed"\nramp = "200ms"\ndrain = "2s"\n' + stages
        ran = siege.run(plan_text(server.base_url, run="seed = 5", workload=one, load=load), ASIDE, "--workers", "2")
    check_passed(ran)
    check_conserved(ran)
    for load_, users in zip(ran.summary.loads, (4, 8, 2), strict=True):
        assert load_.users_asked == users and load_.users_mean == pytest.approx(users, rel=0.05)
    ended = [turn for turn in ran.turns if turn.reason is Reason.STAGE_END]
    gone = {turn.session_id for turn in ended}
    assert len(gone) == 6 and {turn.outcome for turn in ended} == {Outcome.SKIPPED}
    steady_end = ran.plan.stages[1].steady_ended_ns
    sent = [turn.sent_ns or 0 for turn in ran.turns if turn.session_id in gone]
    assert max(sent) < steady_end + 250_000_000, "nothing of them is sent when the ramp is over"
    assert {turn.stage for turn in ran.turns if turn.session_id not in gone} == {
        "1: 4 users",
        "2: 8 users",
        "3: 2 users",
    }


def test_ls_07_a_user_comes_again_when_its_last_turn_is_over(siege: Siege, tmp_path: Path) -> None:
    """8, 2 and 8 users whose answers outlast the second stage: whoever is still at it is load, and nobody comes beside.

    What is too much in the second stage has its reason in the first one.
    """
    path = trace(tmp_path / "t.jsonl")
    with chat_server(lambda _: Reply(after_s=1.5)) as server:
        one = f'scenario = "slow"\ntrace = "{path}"'
        load = 'mode = "closed"\nramp = "0s"\ndrain = "2s"\n' + "".join(
            stage(f"users = {users}", seconds) for users, seconds in ((8, 1), (2, 0.4), (8, 2.6))
        )
        ran = siege.run(plan_text(server.base_url, run="seed = 5", workload=one, load=load), ASIDE, "--workers", "2")
    check_conserved(ran)
    assert not [reason for reason in ran.summary.invalid if "fault of infersiege" in reason]
    assert any("stage 2: 2 users" in reason and "of a stage before" in reason for reason in ran.summary.invalid)
    edges = [(turn.sent_ns, 1) for turn in ran.turns if turn.sent_ns is not None]
    edges += [(turn.closed_ns, -1) for turn in ran.turns if turn.sent_ns is not None and turn.closed_ns is not None]
    open_turns = list(accumulate(change for _, change in sorted(edges)))
    assert max(open_turns) == 8
    third = ran.summary.loads[2]
    assert third.users_mean == pytest.approx(8, rel=0.04)


def test_ls_12_a_pause_ends_sessions_and_a_busy_engine_makes_the_next_stage_dirty(siege: Siege) -> None:
    """The server goes on with what its client has given up: the second stage says that it began on a busy one."""
    options = ("--output-tokens", "600", "--step-base-ms", "10", "--step-per-sequence-ms", "0", "--ignore-disconnects")
    load = (
        'mode = "closed"\nramp = "0s"\npause = "3s"\ndrain = "500ms"\n'
        + stage("users = 4", 1.5)
        + stage("users = 2", 1)
    )
    with EmulatorProcess(*options) as emulator:
        one = 'scenario = "long"\ntrace = "builtin:short-qa"\noutput_scale = 20\nmax_tokens = 600'
        ran = siege.run(plan_text(emulator.base_url, run="seed = 1", load=load, workload=one))
    check_conserved(ran)
    first, second = ran.plan.stages
    cut = [turn for turn in ran.by_outcome(Outcome.CANCELLED) if turn.stage == first.name]
    assert len(cut) == 4 and {turn.reason for turn in cut} == {Reason.STAGE_END}
    assert all(turn.closed_ns is not None and turn.closed_ns < second.started_ns for turn in cut), "before the next one"
    in_pause = [turn for turn in ran.turns if first.started_ns + 1.5 * SECOND < (turn.sent_ns or 0) < second.started_ns]
    assert not in_pause, "nothing is sent in the pause"
    assert second.started_ns - first.started_ns == 4.5 * SECOND
    assert (first.started_dirty, second.started_dirty) == (False, True)
    (dirty,) = [event for event in ran.events if event.kind == "started_dirty"]
    assert dirty.stage == second.name and "4 running" in dirty.detail
    assert any("started dirty" in warning for warning in ran.summary.warnings)


def test_ls_12_no_turn_is_of_a_stage_that_never_came(siege: Siege, tmp_path: Path) -> None:
    """Ctrl-C in the pause after the first stage, while answers are still open: what their sessions would have done
    after a delay of 5 s belongs to the stage that there was, and was over before the interruption."""
    talks = trace(tmp_path / "t.jsonl", turns=3, delay_ms=5000)
    load = 'mode = "closed"\nramp = "0s"\npause = "4s"\ndrain = "5s"\n' + "".join(
        stage(f"users = {users}", seconds) for users, seconds in ((4, 1), (6, 4))
    )
    with chat_server(lambda _: Reply(after_s=2.5)) as server:
        shared = f'scenario = "users"\ntrace = "{talks}"\nchannel = "target"'
        beside = workload("open", talks, 'mode = "open", rate = 8.0, arrivals = "constant"')
        text = plan_text(server.base_url, run="seed = 5", workload=shared, load=load, more=beside)
        running = siege.start(text, ASIDE)
        running.until("stage_ended", file="events.jsonl")
        running.interrupt()
        ran = running.wait()
    check_conserved(ran)
    first = ran.plan.stages[0]
    assert {turn.stage for turn in ran.turns} == {first.name}
    assert len(ran.by_outcome(Outcome.OK)) == 12, "their answers came in the drain"
    skipped = ran.by_outcome(Outcome.SKIPPED)
    assert len(skipped) == 24 and {turn.reason for turn in skipped} == {Reason.STAGE_END}
    assert all(turn.due_ns < first.started_ns + SECOND for turn in ran.turns)


def test_a_run_that_is_cut_short_has_no_turns_due_after_it(siege: Siege, tmp_path: Path) -> None:
    """Without a pause, in the first of two stages: the second one began for nobody, also not for who was in a delay."""
    talks = trace(tmp_path / "t.jsonl", turns=3, delay_ms=20_000)
    load = 'mode = "closed"\nramp = "0s"\n' + stage("users = 4", 10) + stage("users = 6", 30)
    with chat_server() as server:
        one = f'scenario = "users"\ntrace = "{talks}"'
        running = siege.start(plan_text(server.base_url, run="seed = 5", workload=one, load=load), ASIDE)
        running.until('"outcome":"ok"')
        running.interrupt()
        ran = running.wait()
    check_conserved(ran)
    ended_ns = ran.plan.ended_ns or 0
    assert {turn.stage for turn in ran.turns} == {ran.plan.stages[0].name} and len(ran.plan.stages) == 1
    assert all(turn.due_ns < ended_ns for turn in ran.turns)
    assert {turn.reason for turn in ran.by_outcome(Outcome.SKIPPED)} == {Reason.INTERRUPTED}


def test_ls_12_what_was_late_before_a_pause_is_not_late_after_it(siege: Siege, tmp_path: Path) -> None:
    """A stall over the end of a stage: its arrivals are not made up for, and the next one's come when they are due."""
    load = 'mode = "open"\narrivals = "constant"\npause = "1s"\ndrain = "1s"\n' + "".join(
        stage("rate = 20.0", seconds, f'name = "{seconds}"') for seconds in (1, 2)
    )
    with EmulatorProcess() as server:
        one = f'scenario = "talk"\ntrace = "{trace(tmp_path / "t.jsonl")}"'
        running = siege.start(plan_text(server.base_url, run="seed = 1", load=load, workload=one), ASIDE)
        running.until("stage_started", file="events.jsonl")
        pid = running.worker_pids()["worker-1"]
        time.sleep(max(0.0, running.first_arrival_s() + 0.2 - time.time()))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(max(0.0, running.first_arrival_s() + 1.85 - time.time()))
        os.kill(pid, signal.SIGCONT)
        ran = running.wait()
    check_conserved(ran)
    cut = [turn for turn in ran.turns if turn.stage == "1" and turn.outcome is Outcome.SKIPPED]
    assert len(cut) > 10 and {turn.reason for turn in cut} == {Reason.STAGE_END}
    late_ms = [((turn.sent_ns or 0) - turn.due_ns) / 1e6 for turn in ran.turns if turn.stage == "2"]
    assert len(late_ms) == 40 and sorted(late_ms)[20] < 100, late_ms


def test_a_worker_killed_in_the_second_stage_leaves_no_turn_without_a_record(siege: Siege, tmp_path: Path) -> None:
    one = trace(tmp_path / "one.jsonl")
    talks = trace(tmp_path / "talks.jsonl", turns=4, delay_ms=100)
    stages = stage("rate = 10.0", 1) + stage("rate = 20.0", 1.6) + stage("rate = 10.0", 0.6)
    with chat_server(lambda _: Reply(after_s=0.1)) as server:
        text = plan_text(
            server.base_url,
            engine="generic",  # which has no page of metrics to be asked for in the pauses
            run="seed = 5",
            workload=f'scenario = "one"\ntrace = "{one}"',
            load='mode = "open"\ndrain = "2s"\npause = "300ms"\n' + stages,
            more=workload("talk", talks, 'mode = "closed", users = 4, ramp = "0s"')
            + workload("beside", one, 'mode = "open", rate = 5.0'),
        )
        running = siege.start(text, ASIDE, "--workers", "2")
        running.until('"stage":"2: 20/s"')
        os.kill(running.worker_pids()["worker-2"], signal.SIGKILL)
        ran = running.wait()
    assert ran.code == 3, ran.out
    check_conserved(ran)
    timed = {key: count for key, count in arrived(ran).items() if key[1] != "talk"}
    assert timed == scheduled(ran), "every arrival of both schedules has a record, in its stage"
    unplayed = [turn for turn in ran.turns if turn.reason is Reason.WORKER_LOST]
    assert {turn.worker for turn in unplayed} == {"worker-2"}
    assert {turn.stage for turn in unplayed} == {"2: 20/s", "3: 10/s"}
    assert {turn.phase for turn in unplayed} <= {Phase.STEADY, Phase.WARMUP, Phase.DRAIN}
    assert siege.spools() == []
