"""A master costs what its workers cost, hardly what their requests do; it serves all of them, also when it is late."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isolated import isolated

from infersiege.metrics.windows import windows
from infersiege.records import Epoch, EpochAnswer, Hello, RateAsk, SlotsHeld
from infersiege.swarm.fleet import Fleet, WorkerState, end_of, last_line
from infersiege.swarm.ratelimit import Rate, RateLimiter
from infersiege.swarm.seats import Seats

ROOT = Path(__file__).parents[1]
SECOND = 1_000_000_000

sys.path.insert(0, str(ROOT / "bench"))
from fleet_script import Script, turns_of_a_second  # noqa: E402


def worker_of(name: str, *, seen_ns: int) -> WorkerState:
    """One that plays a part."""
    hello = Hello(worker=name, host="h", pid=1, boot_id="b", versions={}, spool_dir="/none")
    return WorkerState(f"node of {name}", hello, 0, last_seen_ns=seen_ns, admitted=True)


def report_bytes(rate: float) -> int:
    """Windows of one second, as a report carries them."""
    turns = turns_of_a_second(rate, Random(7), at_ns=1000 * SECOND)
    return len(msgspec.msgpack.encode(windows(turns)))


def test_di_04_a_report_grows_with_its_buckets_and_not_with_its_requests() -> None:
    """Ten times the requests of a busy worker are less than three times the bytes, and in the end hardly any more."""
    sizes = {rate: report_bytes(rate) for rate in (100, 1_000, 10_000)}
    assert sizes[1_000] < 4 * sizes[100]
    assert sizes[10_000] < 3 * sizes[1_000]
    assert sizes[10_000] < 100_000, "a frame may have 16 MiB"
    records = {rate: Script(rate, seed=7).record_bytes for rate in (100, 1_000)}
    assert records[1_000] > 8 * records[100], "what is sent apart, and never parsed, does grow"


# ------------------------------------------------------------------------------------------------------------- users


def naive(seats: Seats, worker: str) -> dict[int, tuple[int, ...]]:
    return {
        number: tuple(one for one, slot in slots.items() if slot.holder == worker == slot.following)
        for number, slots in seats._slots.items()
    }


@given(
    st.integers(1, 6),
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12),
)
def test_users_are_looked_up_as_if_each_worker_looked_through_all(
    workers: int, users: int, steps: list[tuple[int, bool]]
) -> None:
    """They are kept by owner, for a thousand workers: right after any sequence of losses, joins and answers."""
    names = [f"w{number}" for number in range(6)]
    seats, members, now_ns = Seats(names[:workers], streams=1, users={0: users}), names[:workers], 0
    for number, answers in steps:
        name = names[number]
        members = [one for one in members if one != name] if name in members else [*members, name]
        if not members:
            return
        seats.change(members)
        for _ in range(4):
            now_ns += 2 * SECOND
            for letter in list(seats.tick(now_ns)):
                if answers and letter.to in members and hasattr(letter.message, "number"):
                    answer = EpochAnswer(number=letter.message.number, accepted=True, next_index=(0,))
                    seats.answered(letter.to, answer, now_ns)
            for one in members:
                list(seats.held(one, SlotsHeld(epoch=seats.slots_of(one).epoch, slots={})))
                assert seats.slots_of(one).slots == naive(seats, one)


def test_each_of_ten_thousand_users_is_one_workers_of_a_thousand() -> None:
    seats = Seats([f"w{number}" for number in range(1000)], streams=1, users={0: 10_000})
    has = [seats.slots_of(f"w{number}").slots[0] for number in range(1000)]
    assert {len(one) for one in has} == {10}
    assert sorted(slot for one in has for slot in one) == list(range(10_000))


def lines_run(work: Callable[[], object]) -> int:
    """Lines of Python that a call runs, each round of a loop counted: what it costs, on any machine."""
    count = 0

    def trace(_frame: FrameType, _event: str, _arg: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def held_of(workers: int) -> Callable[[], object]:
    """A worker tells which users it has, once another one was lost and an epoch has passed."""
    names = [f"w{number}" for number in range(workers)]
    seats = Seats(names, streams=1, users={0: 10 * workers})
    seats.change(names[1:])
    for offer in list(seats.tick(0)):
        assert isinstance(offer.message, Epoch)
        seats.answered(offer.to, EpochAnswer(number=offer.message.number, accepted=True, next_index=(0,)), 0)
    list(seats.tick(SECOND))
    list(seats.tick(3 * SECOND))
    assert seats.slots_of("w1").epoch == 1
    return lambda: (list(seats.held("w1", SlotsHeld(epoch=1, slots={}))), seats.slots_of("w1"))


def permit_of(workers: int) -> Callable[[], object]:
    """One of many that send to a channel with a rate limit asks for a permit."""
    limiter = RateLimiter(Rate("cloud", requests=60_000), workers=workers)
    for number in range(workers):
        limiter.told(f"w{number}", RateAsk(), 0)
    limiter.serve(0)

    def ask() -> None:
        limiter.told("w0", RateAsk(waiting=(1,)), 1)
        assert list(limiter.serve(1)) == ["w0"]

    return ask


def name_of(workers: int) -> Callable[[], object]:
    """Whose a letter is."""
    fleet = Fleet(expected=workers)
    for number in range(workers):
        fleet.add(worker_of(f"w{number}", seen_ns=0))
    return lambda: fleet.by_name(f"w{workers - 1}")


@pytest.mark.parametrize("work", [held_of, permit_of, name_of])
def test_what_one_worker_says_costs_the_same_in_any_fleet(work: Callable[[int], Callable[[], object]]) -> None:
    """Each of a thousand says it each second: a look through all of them at each would be a million in a second."""
    assert 0 < lines_run(work(300)) <= lines_run(work(10)) + 20


# --------------------------------------------------------------------------------------------------------- real ports


def test_a_flood_of_messages_does_not_keep_the_rest_of_a_master_from_running() -> None:
    """Messages that wait are taken without a pause: leases would not go out, and the load would end."""
    side = [sys.executable, str(Path(__file__).with_name("side_flood.py"))]
    done = subprocess.run(side, capture_output=True, text=True, timeout=90, check=True)
    found = json.loads(done.stdout)
    assert found["handled"] == 800
    assert found["took_s"] > 0.8, "a flood: handling takes a millisecond each"
    assert found["longest_s"] < found["took_s"] / 3, found
    assert found["deaf_s"] > 0.5, "what came in the flood was not heard at once, and the master knows it"
    assert found["deaf_after_s"] < 0.05


def test_who_knocks_again_and_again_is_told_once_and_counted_and_locust_keeps_nothing_of_it() -> None:
    found = isolated("side_door:full", within_s=90)
    full = "the run has all of its 0 workers"
    assert found["told"] == [["late", full], ["vm-13", full], ["once", full]]
    assert found["again"] == [["late", f"{full} (it asked 3 times)"], ["vm", f"{full} (it asked 2 times)"]]
    assert found["refused"] == 6, "each gets its answer all the same"
    assert found["kept"] == 0


HERE, FULL = "a worker called wa is here already", "the run has all of its 1 workers"
AGAIN = [
    ("died", True, "in as wa.2", "killed, and started again before its silence was noticed"),
    ("died and no seat is free", True, "in as wa.2", "the seat is its own one's"),
    ("died without a --name", True, "in as wb", "the same under another name: HOST-PID"),
    ("lives", True, HERE, "two were given one name"),
    ("without a --name lives", True, FULL, "one more than the run has seats"),
    ("is not heard", True, HERE, "it reads its traces, or is dead: nobody can tell for a minute"),
    ("of another host", False, FULL, "it can't be the next process of any that is here"),
]
"""(what the first worker does, whether the next one's first knock waits, its answer, why)."""


def test_a_worker_that_is_started_again_at_once_gets_in() -> None:
    assert isolated("side_door:again", within_s=90) == [list(row[:3]) for row in AGAIN]


def test_nothing_is_kept_of_one_that_did_not_wait_for_its_answer() -> None:
    clients, waiting = isolated("side_door:given_up", within_s=90)
    assert (clients, waiting) == (2, 1), "the one that is in, and the one that came last"


def test_seats_and_names_of_a_masters_own_workers_are_nobody_elses() -> None:
    """Who waits with `--forever` knocks before a process that was just started."""
    kept = "the run has all of its 3 workers, 2 of them the master's own"
    assert isolated("side_door:own", within_s=90) == [
        ["before any is started", "in as first"],
        ["with a seat free", kept],
        ["another host's", "worker-1 is the name of one of the master's own"],
        ["own worker-1", "in as worker-1"],
        ["with a seat free still", kept],
        ["own worker-2", "in as worker-2"],
        ["once all are there", "the run has all of its 3 workers"],
        ["in the load, for a lost one", "in as second"],
        ["in the load", "the run has all of its 3 workers"],
    ]


@pytest.mark.parametrize(
    ("silent_s", "deaf_s", "lost"),
    [
        (1.9, 0.0, False),
        (2.1, 0.0, True),
        (9.0, 8.0, False),  # nine seconds without a word, of which the master has not heard the last eight yet
        (9.0, 6.5, True),
        (9.0, -1.0, True),  # heard since this look began
    ],
)
def test_a_master_that_is_late_does_not_take_its_workers_for_dead(silent_s: float, deaf_s: float, lost: bool) -> None:
    now_ns = 100 * SECOND
    worker = worker_of("w", seen_ns=now_ns - round(silent_s * SECOND))
    fleet = Fleet(expected=1, workers={"node": worker})
    assert fleet.newly_dead(now_ns, now_ns - round(deaf_s * SECOND)) == ([worker] if lost else [])
    assert worker.lost_at_ns == (now_ns if lost else None)


@pytest.mark.parametrize(
    ("seen_s", "then_s", "why"),
    [
        (0, 3, "heard before the stall: its words wait at the port"),
        (2, 5, "the master's own doing, as far as it goes"),
        (5, 6, "heard at its end: nobody was heard in the future, or its death would be noticed late"),
        (6, 6, "heard just now"),
    ],
)
def test_a_stall_of_the_master_is_not_held_against_its_workers(seen_s: int, then_s: int, why: str) -> None:
    """Of three seconds, until second six."""
    fleet = Fleet(expected=2)
    fleet.add(worker_of("w", seen_ns=seen_s * SECOND))
    fleet.add(lost := worker_of("lost", seen_ns=0))
    lost.lost_at_ns = SECOND
    fleet.forgive(3 * SECOND, 6 * SECOND)
    assert fleet.workers["node of w"].last_seen_ns == then_s * SECOND, why
    assert lost.last_seen_ns == 0, "or it would count as heard again"


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (-9, None, "killed by SIGKILL, and it said nothing"),
        (-6, "out of memory", "killed by SIGABRT: out of memory"),
        (-99, None, "killed by signal 99, and it said nothing"),
        (2, "error: no such file", "exit code 2: error: no such file"),
        (0, None, "exit code 0, and it said nothing"),
    ],
)
def test_how_a_process_ended_is_told(code: int, said: str | None, told: str) -> None:
    assert end_of(code, said) == told


def test_the_last_line_of_a_log_is_what_it_said_last(tmp_path: Path) -> None:
    log = tmp_path / "worker-1.log"
    assert last_line(log) is None
    log.write_bytes(b"")
    assert last_line(log) is None
    log.write_bytes(b"first\nerror: \xff " + b"x" * 1000 + b"\n\n")
    assert last_line(log) == ("error: \N{REPLACEMENT CHARACTER} " + "x" * 1000)[:300]
    log.write_bytes(b"first\nerror: no room\nhint: make some\n")
    assert last_line(log) == "error: no room; hint: make some"


@pytest.mark.slow
@pytest.mark.alone
def test_di_04_twenty_busy_workers_leave_the_master_as_it_was() -> None:
    """20 workers x 200 requests/s; docs/distributed.md has five minutes of it."""
    command = [sys.executable, str(ROOT / "bench" / "fleet.py"), "--json", "--must-carry", "0"]
    command += ["--workers", "20", "--rate", "200", "--seconds", "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["lost"] == 0 and found["held"] == 0 and found["ended"]
    assert found["lease_gap_max"] < 3000, "as long as a lease lasts"
    assert found["acknowledged"] > 20 * 2 * 3, "two segments of each worker in each second"
    assert found["record_bytes_per_s"] > 4_000_000, "it was busy"
    first, last = found["rss_bytes"][0], found["rss_bytes"][-1]
    # Of 6 MB of records that come each second nothing stays.
    assert last - first < 16 * 2**20, f"{first / 2**20:.0f} MiB became {last / 2**20:.0f}"
