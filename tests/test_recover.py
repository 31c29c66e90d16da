"""`infersiege recover`: after the death of a master every turn has one record, however often and wherever it is cut."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from crashed import OPEN, Crash, arrivals, contents
from hypothesis import given, settings
from hypothesis import strategies as st
from isolated import isolated
from records_sample import SECOND, START_NS
from siege import Siege, check_conserved, plan_text

from infersiege.emulator.process import EmulatorProcess
from infersiege.errors import UsageError
from infersiege.records import Outcome, Reason
from infersiege.rundir import RunDirectory
from infersiege.swarm.leftovers import named
from infersiege.swarm.recovered_facts import begin
from infersiege.swarm.recovery import Marker, Recovered, recover
from infersiege.swarm.spool import Spool, in_use, read_info, spool_path
from infersiege.swarm.spool_info import SpoolInfo, pid_started
from infersiege.swarm.versions import boot_id


def bring_home(crash: Crash, *, keep: bool = False, partial: bool = False) -> Recovered:
    with RunDirectory.open(crash.path) as run:
        return recover(run, crash.leftovers(), keep=keep, partial=partial)


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    return Crash(tmp_path)


def small_crash(crash: Crash) -> None:
    """One worker killed in the middle of things, one that stopped for want of a master."""
    killed, stopped = crash.worker(), crash.worker()
    done, middle = killed.take("done", 2)[0], killed.take("middle", 4)[0]
    killed.play(done, 2)
    killed.ship()
    killed.play(middle)
    killed.start(middle)
    killed.kill()
    first, second = stopped.take("first", 2)[0], stopped.take("second", 2)[0]
    stopped.play(first)
    stopped.ship(acknowledge=False)
    stopped.play(second)
    stopped.stop()


def test_every_turn_has_one_record_and_the_run_is_whole(crash: Crash) -> None:
    """di_01 for the master: rows of spools, `lost` for what was on its way, `skipped` for the rest, with the reason."""
    small_crash(crash)
    crash.master_dies()
    result = bring_home(crash)
    rows = crash.rows()
    assert {key: (row.outcome, row.reason) for key, row in rows.items()} == {
        ("done", 0): (Outcome.OK, None),
        ("done", 1): (Outcome.OK, None),
        ("middle", 0): (Outcome.OK, None),
        ("middle", 1): (Outcome.LOST, Reason.WORKER_LOST),
        ("middle", 2): (Outcome.SKIPPED, Reason.WORKER_LOST),
        ("middle", 3): (Outcome.SKIPPED, Reason.WORKER_LOST),
        ("first", 0): (Outcome.OK, None),
        ("first", 1): (Outcome.SKIPPED, Reason.NO_LEASE),
        ("second", 0): (Outcome.OK, None),
        ("second", 1): (Outcome.SKIPPED, Reason.NO_LEASE),
    }
    assert (result.spools, result.rows, result.lost, result.skipped) == (2, 4, 1, 2)
    run = RunDirectory.open(crash.path)
    plan, summary = run.read_plan(), run.read_summary()
    assert plan.planned_turns == summary.counts.planned == 10 and summary.counts.conserved()
    assert summary.exit_code == 3 and "the master ended before the run did" in summary.invalid[0]
    ends = [row.closed_ns for row in rows.values() if row.closed_ns is not None]
    assert plan.ended_ns == max(*ends, *(worker.now_ns for worker in crash.workers))
    assert [(one.worker, one.lost, one.records_received) for one in plan.workers] == [
        ("worker-1", True, 3),
        ("worker-2", False, 4),
    ]
    assert [(one.sessions_taken, one.sessions_started) for one in plan.traces] == [(4, 4)]
    assert [event.kind for event in run.read_events()] == ["recovered"]
    assert (crash.path / "report.html").exists() and not (crash.path / "recovery.json").exists()
    assert list((crash.folder / "spools").iterdir()) == []


def test_a_second_recover_changes_nothing(crash: Crash) -> None:
    small_crash(crash)
    crash.master_dies()
    bring_home(crash, keep=True)
    before, spools = contents(crash.path), contents(crash.folder / "spools")
    with pytest.raises(UsageError, match="this run is complete") as told:
        bring_home(crash)
    assert "rm -r" in (told.value.hint or "")
    assert contents(crash.path) == before and contents(crash.folder / "spools") == spools


def test_recovering_never_depends_on_where_a_row_was_torn(crash: Crash) -> None:
    """The master was killed inside a row, and its worker inside another one, and inside a line of its journal."""
    small_crash(crash)
    whole = crash.workers[0].home[0].splitlines()[0]
    crash.master_dies(tail=whole[: len(whole) // 2])
    for path in (crash.folder / "spools").glob("*-worker-1-*/*.jsonl"):
        with path.open("ab") as file:
            file.write(b'{"session_id":"middle","sta')
    result = bring_home(crash)
    assert (len(crash.rows()), result.lost, result.remarks) == (10, 1, [])


def test_zeros_that_a_power_cut_leaves_are_no_row(crash: Crash) -> None:
    """File systems grow a file before its data are on the disk."""
    small_crash(crash)
    crash.master_dies(tail=bytes(5000))
    for path in (crash.folder / "spools").glob("*-worker-1-*/*.jsonl"):
        with path.open("ab") as file:
            file.write(bytes(3000))
    bring_home(crash)
    assert len(crash.rows()) == 10


def test_a_damaged_line_of_a_spool_is_left_out_and_told(crash: Crash) -> None:
    small_crash(crash)
    crash.master_dies()
    (segment,) = (crash.folder / "spools").glob("*-worker-1-*/segment-*.jsonl")
    segment.write_bytes(b"{}\n" + segment.read_bytes())
    result = bring_home(crash)
    assert len(crash.rows()) == 10 and result.remarks == ["1 lines of the workers' spools are damaged and left out"]
    assert result.remarks[0] in RunDirectory.open(crash.path).read_summary().warnings


LINE = st.tuples(st.integers(1, 4), st.integers(0, 4), st.booleans(), st.sampled_from(("", "ship", "no answer")))
"""Turns, turns played, the next one started, what was shipped afterwards."""
LIFE = st.tuples(st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=4), st.booleans())
"""Sessions: their lines; whether the worker was killed."""


@settings(max_examples=40)
@given(st.lists(LIFE, min_size=1, max_size=3), st.integers(0, 60))
def test_conservation_whatever_the_workers_were_doing(
    tmp_path_factory: pytest.TempPathFactory,
    lives: list[tuple[list[list[tuple[int, int, bool, str]]], bool]],
    torn: int,
) -> None:
    crash = Crash(tmp_path_factory.mktemp("crash"), members=len(lives))
    in_flight = set()
    for sessions, killed in lives:
        worker = crash.worker()
        for number, parts in enumerate(sessions):
            taken = worker.take(f"{worker.name}.{number}", *(turns for turns, *_ in parts))
            for line, (turns, done, started, shipped) in zip(taken, parts, strict=True):
                worker.play(line, min(done, turns))
                if started and line.next_turn < line.end:
                    worker.start(line)
                    in_flight |= {(line.session_id, line.next_turn)} if killed else set()
                if shipped:
                    worker.ship(acknowledge=shipped == "ship")
        worker.kill() if killed else worker.stop()
    whole = b"".join(block for worker in crash.workers for block in worker.home)
    crash.master_dies(tail=whole[: min(torn, max(0, whole.find(b"\n")))])
    bring_home(crash)
    rows = crash.rows()
    assert len(rows) == crash.planned()
    ok = {key for key, row in rows.items() if row.outcome is Outcome.OK}
    assert ok == set().union(*(worker.closed for worker in crash.workers)), "no record that was closed is missing"
    assert {key for key, row in rows.items() if row.outcome is Outcome.LOST} == in_flight
    summary = RunDirectory.open(crash.path).read_summary()
    assert summary.counts.conserved() and summary.counts.planned == len(rows)
    assert not any("records, " in reason or "not conserved" in reason for reason in summary.invalid), summary.invalid


# ------------------------------------------------------------------------------------------------ cut, and called again


STRIDES = [(False, 1, "into its directory"), (True, 3, "from spools alone")]


@pytest.mark.parametrize(("out", "stride", "why"), STRIDES, ids=[why for *_, why in STRIDES])
def test_killed_at_every_step_and_called_again_it_comes_to_the_same(
    tmp_path: Path, out: bool, stride: int, why: str
) -> None:
    """kill -9 whenever a file is opened, renamed or removed: afterwards the run is the same to the letter."""
    crash = Crash(tmp_path / "crash", load=OPEN)
    small_crash(crash)
    if not out:
        crash.master_dies(tail=b'{"half')
    attempts = isolated("side_recover:recover_dying_at_each_step", str(crash.folder), str(tmp_path / "copies"), stride)
    whole, code, _ = attempts[-1]
    assert code == 0 and len(attempts) > 10, "it was killed at many steps"
    wanted = contents(Path(whole) / "run")
    rows = sorted(wanted.pop("turns.jsonl").splitlines())
    assert wanted["events.jsonl"].count(b'"kind":"recovered"') == 1
    for copy, first, again in attempts[:-1]:
        # 2: it had died when there was nothing more to do.
        assert first == 9 and again[-1] in (0, 2), (copy, again)
        found = {name: data for name, data in contents(Path(copy) / "run").items() if not name.startswith(".")}
        assert sorted(found.pop("turns.jsonl").splitlines()) == rows, copy
        assert found == wanted, copy
        assert not list((Path(copy) / "spools").iterdir()), copy


# ------------------------------------------------------------------------------------------------------ what is missing


def test_arrivals_until_the_last_worker_stopped_that_nobody_took_are_skipped(tmp_path: Path) -> None:
    """di_07 Two workers of an open loop: one killed after 1 s, one that stopped 3 s later; later arrivals are none of
    the run's."""
    crash = Crash(tmp_path, load=OPEN)
    killed, stopped = crash.worker(), crash.worker()
    due = arrivals(crash.plan, START_NS + 60 * SECOND)
    mine = {worker.name: due[worker.place :: 2] for worker in crash.workers}
    for name, turns in mine["worker-1"][:5]:
        killed.play(killed.take(name, turns)[0])
    for name, turns in mine["worker-2"][:8]:
        stopped.play(stopped.take(name, turns)[0])
    killed.kill()
    stopped.stop(after_s=2.0)
    crash.master_dies()
    result = bring_home(crash)
    ended_ns = stopped.now_ns
    wanted = arrivals(crash.plan, ended_ns)
    rows = crash.rows()
    assert len(wanted) == 29 and {name for name, _ in rows} == {name for name, _ in wanted}
    assert len(rows) == sum(turns for _, turns in wanted)
    reasons = Counter((row.worker, row.reason) for row in rows.values() if row.outcome is Outcome.SKIPPED)
    assert set(reasons) <= {("worker-1", Reason.WORKER_LOST), ("worker-2", Reason.NO_LEASE)}
    assert result.rebuilt.summary.ended_ns == ended_ns
    assert RunDirectory.open(crash.path).read_plan().stages[0].arrivals is not None


def test_arrivals_that_a_missing_worker_may_have_played_are_in_no_record(tmp_path: Path) -> None:
    """It had taken all of its own and sent none home: `skipped` would be a lie, and so would missing load."""
    crash = Crash(tmp_path, load=OPEN)
    stopped, away = crash.worker(), crash.worker(host="bench-2")
    due = arrivals(crash.plan, START_NS + 60 * SECOND)
    for worker in (stopped, away):
        for name, turns in due[worker.place :: 2][:8]:
            worker.play(worker.take(name, turns)[0])
    stopped.stop(after_s=2.0)
    shutil.move(away.kill().parent, tmp_path.parent / f"{tmp_path.name}-away")
    crash.master_dies()
    result = bring_home(crash, partial=True)
    wanted = arrivals(crash.plan, stopped.now_ns)
    rows = crash.rows()
    assert {name for name, _ in rows} == {name for name, _ in wanted[0::2]}, "its own, until it stopped"
    assert {row.reason for row in rows.values() if row.outcome is not Outcome.OK} == {Reason.NO_LEASE}
    missing = "1 more of 2 workers"
    assert (
        f"{len(wanted[1::2])} sessions that were due have no record: {missing} may have played them" in result.remarks
    )
    summary = result.rebuilt.summary
    assert summary.counts.conserved() and summary.loads == ()
    assert not [reason for reason in summary.invalid if reason.startswith("load not delivered")], summary.invalid
    assert [reason for reason in summary.invalid if "how much of the load was there is not known" in reason]
    (rule,) = [rule for rule in summary.rules if rule.metric == "delivered_share"]
    assert rule.value is None


def test_who_was_killed_answers_for_nothing_when_another_is_missing(tmp_path: Path) -> None:
    """The one that is missing may have taken its share over."""
    crash = Crash(tmp_path, load=OPEN)
    killed, away = crash.worker(), crash.worker(host="bench-2")
    due = arrivals(crash.plan, START_NS + 60 * SECOND)
    for worker, many in ((killed, 3), (away, 12)):
        for name, turns in due[worker.place :: 2][:many]:
            worker.play(worker.take(name, turns)[0])
    away.ship()
    killed.kill()
    shutil.move(away.kill().parent, tmp_path.parent / f"{tmp_path.name}-away")
    crash.master_dies()
    (remark,) = bring_home(crash, partial=True).remarks
    played = {name for name, _ in (*due[0::2][:3], *due[1::2][:12])}
    assert {name for name, _ in crash.rows()} == played
    ended_ns = RunDirectory.open(crash.path).read_plan().ended_ns
    assert ended_ns is not None
    unknown = {name for name, _ in arrivals(crash.plan, ended_ns)} - played
    assert unknown and remark.startswith(f"{len(unknown)} sessions that were due have no record: worker-2 may")


def test_arrivals_of_a_trace_that_is_another_one_now_are_not_guessed(tmp_path: Path) -> None:
    crash = Crash(tmp_path, load=OPEN)
    small_crash(crash)
    crash.master_dies()
    run = RunDirectory.open(crash.path)
    run.write_plan(msgspec.structs.replace(run.read_plan(), trace_hashes={"talk (trace.jsonl)": "another"}))
    (remark,) = bring_home(crash).remarks
    assert "not counted" in remark and "talk (trace.jsonl)" in remark
    assert len(crash.rows()) == 10


def test_a_worker_without_a_spool_is_named_and_only_left_out_when_told_to(crash: Crash) -> None:
    """Its host has it: what comes later could not be taken any more."""
    here, there = crash.worker(), crash.worker(host="bench-2")
    here.play(here.take("a", 2)[0])
    here.kill()
    there.play(there.take("b", 2)[0])
    there.ship()
    away = there.kill()
    crash.master_dies()
    moved = crash.folder.parent / "away"
    shutil.move(away.parent, moved)
    with pytest.raises(UsageError, match="no spool of worker-2, which took part"):
        bring_home(crash)
    assert not (crash.path / "recovery.json").exists() and len(crash.rows()) == 1
    bring_home(crash, partial=True)
    assert {key: row.outcome for key, row in crash.rows().items()} == {
        ("a", 0): Outcome.OK,
        ("a", 1): Outcome.SKIPPED,
        ("b", 0): Outcome.OK,
    }
    assert any(
        "no spool of worker-2 was there" in reason for reason in RunDirectory.open(crash.path).read_summary().invalid
    )


def test_a_host_of_its_own_has_a_folder_of_its_own(crash: Crash) -> None:
    """Spools copied from another host: the folder that they lie in is enough."""
    here, there = crash.worker(), crash.worker(host="bench-2")
    for worker, name in ((here, "a"), (there, "b")):
        worker.play(worker.take(name, 1)[0])
        worker.kill()
    crash.master_dies()
    assert bring_home(crash).spools == 2
    assert {key: row.worker for key, row in crash.rows().items()} == {("a", 0): "worker-1", ("b", 0): "worker-2"}


def test_a_copy_of_a_spool_beside_it_brings_nothing_twice(crash: Crash) -> None:
    small_crash(crash)
    crash.master_dies()
    shutil.copytree(crash.folder / "spools", crash.folder / "copies")
    bring_home(crash)
    assert len(crash.rows()) == 10
    assert not list((crash.folder / "copies").iterdir()) and not list((crash.folder / "spools").iterdir())


def test_from_spools_alone_records_that_had_come_home_are_lost(crash: Crash) -> None:
    """The master's host is gone with the run directory: that a turn was sent is all that is known of it."""
    small_crash(crash)
    out = crash.folder / "out"
    with begin(out, crash.leftovers()) as run:
        recover(run, crash.leftovers())
    outcomes = {key: row.outcome for key, row in crash.rows(out).items()}
    assert Counter(outcomes.values()) == {Outcome.OK: 3, Outcome.LOST: 3, Outcome.SKIPPED: 4}
    assert outcomes["done", 0] is outcomes["done", 1] is Outcome.LOST, "its master had acknowledged them"
    invalid = RunDirectory.open(out).read_summary().invalid
    assert "made from the spools" in invalid[0] and "the master ended" in invalid[1]
    assert not any("not conserved" in reason for reason in invalid)


def test_the_same_words_do_when_it_was_killed_while_it_removed_a_spool_of_another_host(
    siege: Siege, crash: Crash
) -> None:
    """One of the spools that the command names is gone, and the other one is half removed."""
    crash.folder = siege.folder / "crash"
    small_crash(crash)
    crash.master_dies()
    words = ("recover", str(crash.path), *(str(one.path) for one in crash.leftovers()))
    first, second = (one.path for one in crash.leftovers())
    assert siege.command(*words, "--keep")[0] == 3
    shutil.rmtree(first)
    (second / "plan.json").unlink()
    marker = Marker(spools=(str(first), str(second)), settled=True)
    (crash.path / "recovery.json").write_bytes(msgspec.json.encode(marker))
    assert siege.command(*words)[0] == 3
    assert not second.exists() and not (crash.path / "recovery.json").exists()
    code, out = siege.command(*words)
    assert (code, out) == (2, f"error: {crash.path}: this run is complete: nothing to recover\n")


def test_spools_of_several_runs_or_without_a_plan_make_no_run(crash: Crash) -> None:
    small_crash(crash)
    spools = crash.leftovers()
    other = spools[0].path.parent / "infersiege-spool-1-other-1"
    shutil.copytree(spools[0].path, other)
    info = msgspec.structs.replace(spools[0].info, run_id="another", run_name="another run")
    (other / "spool.json").write_bytes(msgspec.json.encode(info))
    with pytest.raises(UsageError, match=r"2 runs: .*another \(another run\)"):
        begin(crash.folder / "out", crash.leftovers())
    crash.master_dies()
    with pytest.raises(UsageError, match="is a spool of run another"):
        bring_home(crash)
    shutil.rmtree(other)
    for one in spools:
        one.plan.unlink()
    with pytest.raises(UsageError, match=r"none of the spools .* holds its plan"):
        begin(crash.folder / "out", crash.leftovers())
    assert not (crash.folder / "out").exists()


# --------------------------------------------------------------------------------------------------- what is still used


def test_a_spool_in_use_is_never_touched(crash: Crash) -> None:
    small_crash(crash)
    crash.master_dies()
    living = crash.worker()  # its process, this one, holds the journal
    living.play(living.take("c", 1)[0])
    before = contents(crash.folder)
    with pytest.raises(UsageError, match=r"worker-3 .* still lives"):
        bring_home(crash)
    assert contents(crash.folder) == before
    living.kill()
    bring_home(crash)
    assert ("c", 0) in crash.rows()


def test_a_process_lives_by_its_number_and_start(tmp_path: Path) -> None:
    """A number comes again; a zombie has ended; a process of another boot is none of ours."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = pid_started(child.pid)
    assert started is not None
    info = SpoolInfo(
        run_id="r",
        run_name="r",
        worker="w",
        host="h",
        pid=child.pid,
        pid_started=started,
        boot_id=boot_id(),
        place=0,
        members=1,
        offset_ns=0,
        clock_offset_ns=0,
        clock_uncertainty_ns=0,
        written_ns=0,
        versions={},
        plan_hash="h",
    )
    assert in_use(tmp_path, info)
    assert not in_use(tmp_path, msgspec.structs.replace(info, pid_started=started - 1))
    assert not in_use(tmp_path, msgspec.structs.replace(info, boot_id="another"))
    child.kill()
    while Path(f"/proc/{child.pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert not in_use(tmp_path, info), "nobody has waited for it yet"
    child.communicate()


def test_a_run_directory_that_its_master_writes_is_left_alone(crash: Crash) -> None:
    small_crash(crash)
    with RunDirectory.create(crash.path, name="crash test", now_ns=START_NS) as writing:
        other = Crash(crash.folder / "b")
        other.master_dies()
        writing.write_plan(RunDirectory.open(other.path).read_plan())
        shutil.rmtree(other.folder)
        before = contents(crash.folder / "spools")
        with pytest.raises(UsageError, match="another process writes to it"):
            bring_home(crash)
    assert contents(crash.folder / "spools") == before


# ------------------------------------------------------------------------------------------------------------ the spool


def test_a_spool_says_whose_it_is_and_is_its_owners_only(tmp_path: Path) -> None:
    worker = Crash(tmp_path).worker()
    worker.take("a", 1)
    directory = worker.kill()
    assert directory.stat().st_mode & 0o777 == 0o700
    info = read_info(directory)
    assert info is not None and (info.run_id, info.worker, info.started_ns) == ("run", "worker-1", START_NS)
    assert (info.stopped_ns, info.bye) == (None, None)
    assert {path.name for path in directory.iterdir()} == {"spool.json", "plan.json", "journal.jsonl"}


def test_spools_of_two_lives_never_share_a_directory(tmp_path: Path) -> None:
    """In a container the first worker has the same process number at every start."""
    environ = {"INFERSIEGE_SPOOL": str(tmp_path)}
    first, second = (spool_path("../w 1/ä", environ) for _ in range(2))
    assert first != second and first.parent == second.parent == tmp_path


def test_a_spool_is_not_written_into_what_somebody_else_laid_out(tmp_path: Path) -> None:
    """The temporary directory is everybody's."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "spool").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="somebody else"):
        Spool(tmp_path / "spool", "w")
    assert list((tmp_path / "elsewhere").iterdir()) == []


NOTHING = [
    ([], "no spool in sight", "there is no spool of run run on this host"),
    (["nowhere"], "a path that is not there", "there is no such spool"),
    (["empty"], "a directory without spools", "is no spool of a worker"),
]


@pytest.mark.parametrize(("names", "why", "said"), NOTHING, ids=[why for _, why, _ in NOTHING])
def test_nothing_to_recover_is_said(tmp_path: Path, names: list[str], why: str, said: str) -> None:
    crash = Crash(tmp_path)
    crash.master_dies()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=said), RunDirectory.open(crash.path) as run:
        recover(run, named([tmp_path / name for name in names]))


def test_the_command(siege: Siege, crash: Crash) -> None:
    """Listing (0), recovering (3), again (2), nothing there (0)."""
    crash.folder = siege.folder
    for worker in (killed := crash.worker(host="spool"), crash.worker(host="spool")):
        worker.play(worker.take(worker.name, 2)[0])
    killed.kill()
    crash.workers[1].stop()
    crash.master_dies()
    code, out = siege.command("recover")
    assert code == 0, out
    assert "run run (crash test):" in out and "worker-1 on bench-1: was killed, 1 sessions taken, 1 records here" in out
    assert "worker-2 on bench-1: stopped" in out and "infersiege recover RUN_DIR" in out
    assert siege.command("recover", "--keep")[0] == 2
    code, out = siege.command("recover", str(crash.path))
    assert code == 3, out
    assert "2 spools: 3 records brought home, 0 turns lost on their way, 1 turns that nobody will play" in out
    code, out = siege.command("recover", str(crash.path))
    assert (code, out) == (2, f"error: {crash.path}: this run is complete: nothing to recover\n")
    code, out = siege.command("recover")
    assert code == 0 and "nothing was left behind" in out


# ----------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
@pytest.mark.alone
def test_di_03_the_master_is_killed_under_load_and_the_records_are_the_servers(siege: Siege, tmp_path: Path) -> None:
    """Three workers; one is killed with the master, the spool of another one comes from another host, and the recovery
    is itself killed before it is through: each request of the server's log has its record, and none has two."""
    log = tmp_path / "truth.jsonl"
    load = 'mode = "open"\nrate = 30\narrivals = "poisson"'
    with EmulatorProcess("--output-tokens", "40", log=log) as emulator:
        running = siege.start(plan_text(emulator.base_url, load=load, run='duration = "60s"'), "--workers", "3")
        running.until('"outcome":"ok"')
        time.sleep(2)
        pids = running.worker_pids()
        running.process.kill()
        os.kill(pids["worker-2"], signal.SIGKILL)
        running.process.wait()
        code, out = siege.command("recover", str(running.path))
        assert code == 2 and "still lives" in out, out
        deadline = time.monotonic() + 25
        while any(pid_started(pid) is not None for pid in pids.values()):
            assert time.monotonic() < deadline, "workers of a dead master stop within 15 s"
            time.sleep(0.1)
        truth = emulator.truth()
    away = tmp_path / "from-another-host"
    away.mkdir()
    (moved,) = [path for path in siege.spools() if "worker-3" in path.name]
    shutil.move(moved, away)
    code, out = siege.command("recover", str(running.path))
    assert code == 2 and "worker-3" in out, out
    command = [sys.executable, "-m", "infersiege", "recover", str(running.path), str(away)]
    for seconds in (0.8, 1.0, 1.2):
        with pytest.raises(subprocess.TimeoutExpired):  # it is killed then
            subprocess.run(command, env=siege.environment, timeout=seconds, capture_output=True, check=False)
            raise subprocess.TimeoutExpired(command, seconds)
    code, out = siege.command(*command[3:])
    assert code in (2, 3), out
    ran = type(running.wait())(3, out, 0.0, running.path)
    turns = {turn.request_id: turn for turn in ran.turns}
    asked = {row["request_id"] for row in truth} - {"", None}
    sent = {name for name, turn in turns.items() if turn.outcome is not Outcome.SKIPPED}
    assert len(asked - sent) == 4, "what was asked before the load: by the preflight and for text lengths"
    assert {turns[name].outcome for name in sent - asked} <= {Outcome.LOST, Outcome.CANCELLED, Outcome.FAILED}
    answered = {row["request_id"] for row in truth if row["finish"] in ("stop", "length")}
    lost = {name for name, turn in turns.items() if turn.outcome is Outcome.LOST}
    assert all(turns[name].worker == "worker-2" for name in lost)
    assert {name for name, turn in turns.items() if turn.outcome is Outcome.OK} >= (answered & sent) - lost
    if code == 3:
        check_conserved(ran)
    assert siege.spools() == [] and not list(away.iterdir())
    assert ran.summary.exit_code == 3
