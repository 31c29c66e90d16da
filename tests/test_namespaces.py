"""Four workers on hosts of their own: what the server saw is what the records say, also when a host is struck.

The long form, with every blow at random times, is bench/namespaces.py. Here one site serves all runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hosts
import pytest
from conftest import Needs
from hosts import Hosts
from remote_runs import Site, cut, faults_of, kill, plan
from siege import check_conserved, check_passed

from infersiege.records import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SESSIONS, LONGER, RATE = 200, 350, 25


@pytest.fixture(scope="module")
def site(needs: Needs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    needs(hosts.missing())
    with Site(tmp_path_factory.mktemp("fleet") / "site", 4) as ready:
        yield ready


def test_four_remote_workers_play_each_session_once(site: Site) -> None:
    """DI-03, DI-07: records = the server's log, on clocks that are thousands of seconds apart."""
    run = site.start(plan(site.hosts, SESSIONS, 2 * RATE))
    ran = run.wait()
    check_passed(ran)
    check_conserved(ran)
    assert list(faults_of(ran.path, run.log_rows(), sessions=SESSIONS)) == []
    assert Counter(turn.outcome for turn in ran.turns) == {Outcome.OK: SESSIONS}
    assert Counter(turn.worker for turn in ran.turns) == dict.fromkeys(site.workers, SESSIONS // 4)
    assert run.worker_codes() == dict.fromkeys(site.workers, 0)
    assert list((site.hosts["worker-1"].disk / "spool").glob("*")) == [], "its records came home"


def test_di_01_a_remote_worker_killed_minus_nine(site: Site) -> None:
    """Its spool is out of reach: what it had closed a second before is home, what was open is lost."""
    run = site.start(plan(site.hosts, SESSIONS, RATE))
    run.until_loaded(2.0)
    blow = kill(run, "worker-2")
    ran = run.wait()
    assert ran.code == 3, ran.out
    check_conserved(ran)
    assert list(faults_of(ran.path, run.log_rows(), blow, sessions=SESSIONS)) == []
    assert "INVALID: worker worker-2 on worker-2 was lost" in ran.out
    # 2 s until it counts as dead, then a lease of 3 s (docs/decisions/0008-epochs.md): of these no arrival is played.
    unplayed = [turn for turn in ran.turns if turn.outcome is Outcome.SKIPPED]
    assert 0 < len(unplayed) < SESSIONS / 4 - RATE / 4, "others take its share"
    assert {turn.worker for turn in unplayed} == {"worker-2"}
    late = [turn for turn in ran.by_outcome(Outcome.OK) if turn.due_ns > max(one.due_ns for one in unplayed)]
    assert len(late) > 0, "the share that others took over was played to the end"


def test_a_worker_that_was_cut_off_returns_and_doubles_nothing(site: Site) -> None:
    """6 s without a master, longer than a lease: what it did meanwhile comes home, what it did not do others do."""
    run = site.start(plan(site.hosts, LONGER, RATE))
    run.until_loaded(2.0)
    blow = cut(run, "worker-3", 6.0, "control")
    back_ns = time.time_ns()
    ran = run.wait()
    assert ran.code == 3, ran.out
    check_conserved(ran)
    assert list(faults_of(ran.path, run.log_rows(), blow, sessions=LONGER)) == []
    again = [turn for turn in ran.by_outcome(Outcome.OK) if turn.worker == "worker-3" and turn.due_ns > back_ns]
    assert again, "it has its seat again, and plays"


def test_nothing_is_left_of_the_hosts(needs: Needs, tmp_path: Path) -> None:
    """Whatever runs there ends with them, also what does not want to, and their mounts are nowhere."""
    needs(hosts.missing())
    with Hosts(tmp_path / "hosts", ["one", "two"]) as some:
        stubborn = some["one"].start("sh", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done")
        assert some["two"].run("sh", "-c", "hostname; ls ../hosts")[1] == "two\n", "no other host's disk"
        pids = [stubborn.pid, some["one"].root_pid, some["two"].root_pid]
        links = Path("/proc/net/dev").read_text(encoding="ascii")
        assert "control" not in links and "load" not in links, "this machine's own network is as it was"
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text(encoding="utf-8")
